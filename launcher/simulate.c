/* eth-hpp simulate: the predicted step of a plan. */
#include "launcher/command.h"

#include <stdio.h>

#include "launcher/planning.h"
#include "plan/simulate.h"

enum { CLUSTER, PROFILE, PLAN, BLOCKING, JSON, TRACE, SVG, OPTIONS };
static const struct eth_hpp_option options[OPTIONS] = {
    [CLUSTER] = {.like = &eth_hpp_planning_cluster},
    [PROFILE] = {.like = &eth_hpp_planning_profile},
    [PLAN] = {.like = &eth_hpp_job_options[ETH_HPP_JOB_PLAN], .help = "the plan (eth-hpp-plan)"},
    [BLOCKING] = {.name = "blocking-transfers",
                  .kind = ETH_HPP_OPTION_FLAG,
                  .help = "a sender waits for its transfer, as in trainers that do not overlap"},
    [JSON] = {.name = "json", .kind = ETH_HPP_OPTION_FLAG, .help = "print JSON"},
    [TRACE] = {.like = &eth_hpp_planning_trace},
    [SVG] = {.like = &eth_hpp_planning_svg},
};

static void print_text(const struct eth_hpp_simulation *simulation)
{
    const struct eth_hpp_predicted *predicted = &simulation->predicted;
    printf("step_s %.9g\ncompute_s %.9g\nexposed_sync_s %.9g\noptimizer_s %.9g\n"
           "bubble_fraction %.4f\n",
           predicted->step_s, predicted->compute_s, predicted->exposed_sync_s,
           predicted->optimizer_s, predicted->bubble_fraction);
    for (int i = 0; i < predicted->rank_count; i++)
        printf("rank %d: busy %.6g s, peak memory %.3f of %.3f GiB\n", predicted->ranks[i].rank,
               predicted->ranks[i].busy_s, predicted->ranks[i].peak_memory_bytes / (1 << 30),
               predicted->ranks[i].memory_limit_bytes / (1 << 30));
}

static struct json_object *number(double value)
{
    return eth_hpp_json_new_number(value);
}

static enum eth_hpp_status print_json(const struct eth_hpp_simulation *simulation,
                                      struct eth_hpp_error *err)
{
    const struct eth_hpp_predicted *predicted = &simulation->predicted;
    struct json_object *root = json_object_new_object(), *ranks = json_object_new_array();
    eth_hpp_json_put(&root, "feasible", json_object_new_boolean(simulation->feasible));
    eth_hpp_json_put(&root, "step_s", number(predicted->step_s));
    eth_hpp_json_put(&root, "compute_s", number(predicted->compute_s));
    eth_hpp_json_put(&root, "exposed_sync_s", number(predicted->exposed_sync_s));
    eth_hpp_json_put(&root, "optimizer_s", number(predicted->optimizer_s));
    eth_hpp_json_put(&root, "busiest_network_s", number(simulation->step.network_s));
    eth_hpp_json_put(&root, "bubble_fraction", number(predicted->bubble_fraction));
    eth_hpp_json_put(&root, "blocks", json_object_new_int(simulation->step.blocks));
    for (int i = 0; i < predicted->rank_count; i++) {
        const struct eth_hpp_predicted_rank *rank = &predicted->ranks[i];
        struct json_object *entry = json_object_new_object();
        eth_hpp_json_put(&entry, "rank", json_object_new_int(rank->rank));
        eth_hpp_json_put(&entry, "busy_s", number(rank->busy_s));
        eth_hpp_json_put(&entry, "peak_memory_bytes", number(rank->peak_memory_bytes));
        eth_hpp_json_put(&entry, "memory_limit_bytes", number(rank->memory_limit_bytes));
        eth_hpp_json_append(&ranks, entry);
    }
    eth_hpp_json_put(&root, "ranks", ranks);
    return eth_hpp_json_save(root, "-", err);
}

static enum eth_hpp_status load(const struct eth_hpp_option_set *set,
                                struct eth_hpp_cluster *cluster, struct eth_hpp_profile *profile,
                                struct eth_hpp_plan *plan, struct eth_hpp_error *err)
{
    for (int i = CLUSTER; i <= PLAN; i++)
        if (eth_hpp_option_text(set, (size_t)i) == NULL)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "--%s is needed", set->table[i].name);
    enum eth_hpp_status status =
        eth_hpp_cluster_load(eth_hpp_option_text(set, CLUSTER), cluster, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_profile_load(eth_hpp_option_text(set, PROFILE), profile, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_plan_load(eth_hpp_option_text(set, PLAN), plan, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_plan_complete(plan, cluster, profile, err);
    return status;
}

static enum eth_hpp_status run(const struct eth_hpp_option_set *set, int argc, char **argv,
                               struct eth_hpp_error *err)
{
    (void)argc;
    (void)argv;
    struct eth_hpp_cluster cluster = {0};
    struct eth_hpp_profile profile = {0};
    struct eth_hpp_plan plan = {0};
    struct eth_hpp_simulation simulation = {0};
    enum eth_hpp_status status = load(set, &cluster, &profile, &plan, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_simulate(&plan, &cluster, &profile, eth_hpp_option_flag(set, BLOCKING),
                                  &simulation, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_planning_draw(eth_hpp_option_text(set, TRACE),
                                       eth_hpp_option_text(set, SVG), &plan, &cluster, &profile,
                                       eth_hpp_option_flag(set, BLOCKING), err);
    if (status == ETH_HPP_OK && eth_hpp_option_flag(set, JSON))
        status = print_json(&simulation, err);
    else if (status == ETH_HPP_OK)
        print_text(&simulation);
    if (status == ETH_HPP_OK && !simulation.feasible)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INFEASIBLE, "the plan does not fit: it %s",
                                   simulation.why);
    eth_hpp_simulation_free(&simulation);
    eth_hpp_plan_free(&plan);
    eth_hpp_profile_free(&profile);
    eth_hpp_cluster_free(&cluster);
    return status;
}

int eth_hpp_command_simulate(int argc, char **argv)
{
    static const struct eth_hpp_command command = {
        .name = "simulate",
        .arguments = "--cluster=FILE --profile=FILE --plan=FILE [OPTIONS]",
        .what = "Predicts the step of a plan: its time, and the memory of each rank.",
        .table = options,
        .count = OPTIONS,
        .run = run};
    return eth_hpp_command_run(&command, argc, argv);
}
