#include "launcher/planning.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "plan/derive.h"
#include "plan/timeline.h"

const struct eth_hpp_option eth_hpp_planning_cluster = {.name = "cluster",
                                                        .kind = ETH_HPP_OPTION_FILE,
                                                        .argument = "FILE",
                                                        .help = "the cluster (eth-hpp-cluster)"};

const struct eth_hpp_option eth_hpp_planning_profile = {.name = "profile",
                                                        .kind = ETH_HPP_OPTION_FILE,
                                                        .argument = "FILE",
                                                        .help =
                                                            "what layers cost (eth-hpp-profile)"};

const struct eth_hpp_option eth_hpp_planning_trace = {
    .name = "trace",
    .kind = ETH_HPP_OPTION_FILE,
    .argument = "FILE",
    .help = "write the predicted step as trace events, for ui.perfetto.dev"};

const struct eth_hpp_option eth_hpp_planning_svg = {.name = "svg",
                                                    .kind = ETH_HPP_OPTION_FILE,
                                                    .argument = "FILE",
                                                    .help = "draw the predicted step as a picture"};

enum eth_hpp_status eth_hpp_planning_estimate(const char *model, int sequence_length, int dtype,
                                              const struct eth_hpp_cluster *cluster,
                                              struct eth_hpp_profile *profile,
                                              struct eth_hpp_error *err)
{
    struct eth_hpp_model found;
    enum eth_hpp_status status = eth_hpp_model_find(model, &found, err);
    if (status != ETH_HPP_OK)
        return status;
    struct eth_hpp_derive_options options = {
        .sequence_length = sequence_length > 0 ? sequence_length : found.context,
        .dtype = dtype >= 0 ? (enum eth_hpp_dtype)dtype : eth_hpp_derive_dtype(cluster)};
    return eth_hpp_derive_profile(&found, cluster, &options, profile, err);
}

/* ---- pictures ---- */

/* A trace of more events than viewers like to open shows like pipelines once; a picture of more
 * rows than a person reads does, too. */
enum { TRACE_EVENTS_MOST = 100000, SVG_ROWS_MOST = 40 };

/* The most rows that keep a trace within its events: a micro-batch is two computations of a stage
 * and up to four hand-overs. */
static int trace_rows(const struct eth_hpp_plan *plan)
{
    int most = 1;
    for (int p = 0; p < plan->pipeline_count; p++)
        if (plan->pipelines[p].micro_batches > most)
            most = plan->pipelines[p].micro_batches;
    int rows = TRACE_EVENTS_MOST / 6 / most;
    return rows > 0 ? rows : 1;
}

struct picture {
    const char *option, *path;
    int most_rows;
    enum eth_hpp_status (*print)(const struct eth_hpp_timeline *timeline, char **text,
                                 struct eth_hpp_error *err);
};

enum eth_hpp_status eth_hpp_planning_draw(const char *trace, const char *svg,
                                          const struct eth_hpp_plan *plan,
                                          const struct eth_hpp_cluster *cluster,
                                          const struct eth_hpp_profile *profile,
                                          bool blocking_transfers, struct eth_hpp_error *err)
{
    const struct picture pictures[] = {{"trace", trace, trace_rows(plan), eth_hpp_trace_print},
                                       {"svg", svg, SVG_ROWS_MOST, eth_hpp_svg_print}};
    enum eth_hpp_status status = ETH_HPP_OK;
    for (int i = 0; i < 2 && status == ETH_HPP_OK; i++) {
        struct eth_hpp_timeline timeline;
        char *text = NULL;
        if (pictures[i].path == NULL)
            continue;
        if (strcmp(pictures[i].path, "-") == 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "--%s needs a file",
                                     pictures[i].option);
        status = eth_hpp_timeline_make(plan, cluster, profile, blocking_transfers,
                                       pictures[i].most_rows, &timeline, err);
        if (status != ETH_HPP_OK)
            break;
        status = pictures[i].print(&timeline, &text, err);
        if (status == ETH_HPP_OK)
            status = eth_hpp_file_output(pictures[i].path, text, err);
        free(text);
        eth_hpp_timeline_free(&timeline);
    }
    return status;
}
