/* eth-hpp show: a plan file as a table. */
#include "launcher/command.h"

#include <stdio.h>

#include "launcher/planning.h"
#include "plan/report.h"

enum { CLUSTER, OPTIONS };
static const struct eth_hpp_option options[OPTIONS] = {
    [CLUSTER] = {.like = &eth_hpp_planning_cluster,
                 .help = "the cluster (eth-hpp-cluster), to name the kinds of GPU"},
};

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
        eth_hpp_report_print(&plan, cluster_path != NULL ? &cluster : NULL, stdout);
    eth_hpp_cluster_free(&cluster);
    eth_hpp_plan_free(&plan);
    return status;
}

int eth_hpp_command_show(int argc, char **argv)
{
    static const struct eth_hpp_command command = {.name = "show",
                                                   .arguments = "[OPTIONS] PLAN",
                                                   .what = "Draws a plan file as a table.",
                                                   .table = options,
                                                   .count = OPTIONS,
                                                   .words = true,
                                                   .run = run};
    return eth_hpp_command_run(&command, argc, argv);
}
