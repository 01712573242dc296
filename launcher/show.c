/* eth-hpp show: a plan file as a table, and its step as a timeline. */
#include "launcher/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "launcher/planning.h"
#include "plan/report.h"
#include "plan/timeline.h"

enum { CLUSTER, PROFILE, TRACE, SVG, OPTIONS };
static const struct eth_hpp_option options[OPTIONS] = {
    [CLUSTER] =
        {.like = &eth_hpp_planning_cluster,
         .help =
             "the cluster (eth-hpp-cluster); names the kinds of GPU that the plan does not note"},
    [PROFILE] = {.like = &eth_hpp_planning_profile,
                 .help = "what layers cost (eth-hpp-profile): with the cluster, draws the step"},
    [TRACE] = {.like = &eth_hpp_planning_trace},
    [SVG] = {.like = &eth_hpp_planning_svg},
};

/* Rows that a person reads on a screen, and its width where it is not known. */
enum { ROWS_MOST = 32, COLUMNS = 100, COLUMNS_MOST = 400 };

static int terminal_columns(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return COLUMNS;
    return size.ws_col < COLUMNS_MOST ? size.ws_col : COLUMNS_MOST;
}

/* Colours on a terminal only, and not where the user does not want them (no-color.org). */
static bool wants_colour(void)
{
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && (no_colour == NULL || *no_colour == '\0') &&
           (term == NULL || strcmp(term, "dumb") != 0);
}

/* What the plan's layers cost: by the file, or estimated again where the plan was. *found is false
 * where there is neither. */
static enum eth_hpp_status get_profile(const char *path, const struct eth_hpp_plan *plan,
                                       const struct eth_hpp_cluster *cluster,
                                       struct eth_hpp_profile *profile, bool *found,
                                       struct eth_hpp_error *err)
{
    *found = path != NULL || (plan->estimated && !plan->emulated);
    if (path != NULL)
        return eth_hpp_profile_load(path, profile, err);
    if (*found)
        *found = eth_hpp_planning_estimate(plan->model, plan->sequence_length, (int)plan->dtype,
                                           cluster, profile, NULL) == ETH_HPP_OK;
    return ETH_HPP_OK;
}

static enum eth_hpp_status draw(const struct eth_hpp_option_set *set,
                                const struct eth_hpp_plan *plan,
                                const struct eth_hpp_cluster *cluster,
                                const struct eth_hpp_profile *profile, struct eth_hpp_error *err)
{
    struct eth_hpp_timeline timeline;
    enum eth_hpp_status status =
        eth_hpp_timeline_make(plan, cluster, profile, false, ROWS_MOST, &timeline, err);
    if (status == ETH_HPP_OK) {
        putchar('\n');
        eth_hpp_timeline_print(&timeline, terminal_columns(), wants_colour(), stdout);
        eth_hpp_timeline_free(&timeline);
    } else if (status == ETH_HPP_ERR_UNSUPPORTED) {
        printf("  %s\n", err->text); /* the table is there */
    } else {
        return status;
    }
    return eth_hpp_planning_draw(eth_hpp_option_text(set, TRACE), eth_hpp_option_text(set, SVG),
                                 plan, cluster, profile, false, err);
}

/* The plan with its cluster, where there is one. */
static enum eth_hpp_status show(const struct eth_hpp_option_set *set, struct eth_hpp_plan *plan,
                                const struct eth_hpp_cluster *cluster, struct eth_hpp_error *err)
{
    struct eth_hpp_profile profile = {0};
    bool draws = false;
    enum eth_hpp_status status = ETH_HPP_OK;
    if (cluster != NULL)
        status =
            get_profile(eth_hpp_option_text(set, PROFILE), plan, cluster, &profile, &draws, err);
    if (status == ETH_HPP_OK && !draws &&
        (eth_hpp_option_text(set, TRACE) != NULL || eth_hpp_option_text(set, SVG) != NULL))
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "--trace and --svg need --cluster=FILE and --profile=FILE");
    if (status == ETH_HPP_OK && draws)
        status = eth_hpp_plan_complete(plan, cluster, &profile, err);
    if (status == ETH_HPP_OK) {
        eth_hpp_report_print(plan, cluster, stdout);
        if (draws)
            status = draw(set, plan, cluster, &profile, err);
        else
            printf("  --cluster=FILE and --profile=FILE draw the step\n");
    }
    eth_hpp_profile_free(&profile);
    return status;
}

static enum eth_hpp_status run(const struct eth_hpp_option_set *set, int argc, char **argv,
                               struct eth_hpp_error *err)
{
    struct eth_hpp_cluster cluster = {0};
    struct eth_hpp_plan plan = {0};
    const char *cluster_path = eth_hpp_option_text(set, CLUSTER);
    if (argc != 1)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "one plan file is needed, %d are given",
                                 argc);
    enum eth_hpp_status status = eth_hpp_plan_load(argv[0], &plan, err);
    if (status == ETH_HPP_OK && cluster_path != NULL)
        status = eth_hpp_cluster_load(cluster_path, &cluster, err);
    if (status == ETH_HPP_OK)
        status = show(set, &plan, cluster_path != NULL ? &cluster : NULL, err);
    eth_hpp_cluster_free(&cluster);
    eth_hpp_plan_free(&plan);
    return status;
}

int eth_hpp_command_show(int argc, char **argv)
{
    static const struct eth_hpp_command command = {
        .name = "show",
        .arguments = "PLAN [OPTIONS]",
        .what = "Draws a plan file as a table, and its predicted step as a timeline: with the "
                "cluster and the\nprofile, or with the cluster alone where the plan's times are "
                "estimated.",
        .table = options,
        .count = OPTIONS,
        .words = true,
        .mixed = true,
        .run = run};
    return eth_hpp_command_run(&command, argc, argv);
}
