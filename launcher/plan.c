/* eth-hpp plan: the best plan for a cluster, without one at hand. */
#include "launcher/command.h"

#include <stdio.h>
#include <string.h>

#include "launcher/planning.h"
#include "plan/explain.h"
#include "plan/report.h"
#include "plan/remedy.h"

enum {
    CLUSTER,
    PROFILE,
    MODEL,
    SEQ,
    DTYPE,
    GLOBAL_BATCH,
    OUTPUT,
    SHAPE,
    EFFORT,
    MAX_TP,
    MAX_IN_FLIGHT,
    MAX_PIPELINES,
    NO_RECOMPUTE,
    OPTIMIZER,
    MEMORY_MARGIN,
    TRACE,
    SVG,
    EXPLAIN,
    JSON,
    OPTIONS
};

static const struct eth_hpp_option options[OPTIONS] = {
    [CLUSTER] = {.like = &eth_hpp_planning_cluster},
    [PROFILE] = {.like = &eth_hpp_planning_profile,
                 .help = "what layers cost (eth-hpp-profile); without it times are estimated"},
    [MODEL] = {.like = &eth_hpp_job_options[ETH_HPP_JOB_MODEL],
               .help = "a preset or a Hugging Face config.json, where there is no profile"},
    [SEQ] = {.like = &eth_hpp_job_options[ETH_HPP_JOB_SEQ]},
    [DTYPE] = {.like = &eth_hpp_job_options[ETH_HPP_JOB_DTYPE]},
    [GLOBAL_BATCH] = {.like = &eth_hpp_job_options[ETH_HPP_JOB_GLOBAL_BATCH]},
    [OUTPUT] = {.name = "output",
                .kind = ETH_HPP_OPTION_FILE,
                .argument = "FILE",
                .help = "where to write the plan; - is standard output"},
    [SHAPE] = {.name = "shape",
               .kind = ETH_HPP_OPTION_CHOICE,
               .argument = "SHAPE",
               .help = "hpp: everything; even: the same layers and data for every GPU; "
                       "layer-balanced: one pipeline shape, even data",
               .choices = "hpp|even|layer-balanced",
               .fallback = "hpp"},
    [EFFORT] = {.name = "effort",
                .kind = ETH_HPP_OPTION_CHOICE,
                .argument = "EFFORT",
                .help = "quick, default or thorough",
                .choices = "quick|default|thorough",
                .fallback = "default"},
    [MAX_TP] = {.name = "max-tp",
                .kind = ETH_HPP_OPTION_COUNT,
                .argument = "N",
                .help = "largest tensor parallelism (default: the profile's)",
                .least = 1,
                .most = 1024},
    [MAX_IN_FLIGHT] = {.name = "max-in-flight",
                       .kind = ETH_HPP_OPTION_COUNT,
                       .argument = "N",
                       .help = "most micro-batches that a stage may hold",
                       .least = 1,
                       .most = 1 << 20},
    [MAX_PIPELINES] = {.name = "max-pipelines",
                       .kind = ETH_HPP_OPTION_COUNT,
                       .argument = "N",
                       .help = "most pipelines side by side",
                       .least = 1,
                       .most = 1 << 20},
    [NO_RECOMPUTE] = {.name = "no-recompute",
                      .kind = ETH_HPP_OPTION_FLAG,
                      .help = "never run a forward again to save memory"},
    [OPTIMIZER] = {.name = "optimizer",
                   .kind = ETH_HPP_OPTION_CHOICE,
                   .argument = "WHERE",
                   .help = "auto, or replicated: each GPU holds the whole optimizer state",
                   .choices = "auto|replicated",
                   .fallback = "auto"},
    [MEMORY_MARGIN] = {.name = "memory-margin",
                       .kind = ETH_HPP_OPTION_NUMBER,
                       .argument = "BYTES",
                       .help = "memory to leave free on each GPU",
                       .least = 0,
                       .most = 1e15,
                       .fallback = "0"},
    [TRACE] = {.like = &eth_hpp_planning_trace},
    [SVG] = {.like = &eth_hpp_planning_svg},
    [EXPLAIN] = {.name = "explain",
                 .kind = ETH_HPP_OPTION_FLAG,
                 .help = "say what bounds the step, and what one more node of each kind gives"},
    [JSON] = {.name = "json",
              .kind = ETH_HPP_OPTION_FLAG,
              .help = "print the explanation as JSON on standard output"},
};

/* A count that may be left out. */
static int count_or_zero(const struct eth_hpp_option_set *set, size_t index)
{
    return eth_hpp_option_text(set, index) != NULL ? (int)eth_hpp_option_number(set, index) : 0;
}

/* The profile of the file, or an estimated one of the model. */
static enum eth_hpp_status get_profile(const struct eth_hpp_option_set *set,
                                       const struct eth_hpp_cluster *cluster,
                                       struct eth_hpp_profile *profile, struct eth_hpp_error *err)
{
    const char *path = eth_hpp_option_text(set, PROFILE), *name = eth_hpp_option_text(set, MODEL);
    if ((path == NULL) == (name == NULL))
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "give --profile=FILE, or --model=MODEL for estimated times");
    if (path != NULL && eth_hpp_option_text(set, SEQ) != NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "--seq belongs to --model: the profile has its own");
    if (path == NULL)
        return eth_hpp_planning_estimate(name, count_or_zero(set, SEQ),
                                         eth_hpp_dtype_find(eth_hpp_option_text(set, DTYPE)),
                                         cluster, profile, err);
    enum eth_hpp_status status = eth_hpp_profile_load(path, profile, err);
    return status == ETH_HPP_OK ? eth_hpp_command_agrees_dtype(set, DTYPE, profile->dtype, err)
                                : status;
}

static struct eth_hpp_solver_options solver_options(const struct eth_hpp_option_set *set,
                                                    const struct eth_hpp_cluster *cluster)
{
    int batch = count_or_zero(set, GLOBAL_BATCH);
    return (struct eth_hpp_solver_options){
        .global_batch = batch > 0 ? batch : 8 * cluster->gpu_count,
        .shape = (enum eth_hpp_shape)eth_hpp_option_number(set, SHAPE),
        .effort = (enum eth_hpp_effort)eth_hpp_option_number(set, EFFORT),
        .max_tensor_parallel = count_or_zero(set, MAX_TP),
        .max_in_flight = count_or_zero(set, MAX_IN_FLIGHT),
        .max_pipelines = count_or_zero(set, MAX_PIPELINES),
        .no_recompute = eth_hpp_option_flag(set, NO_RECOMPUTE),
        .no_sharded = strcmp(eth_hpp_option_text(set, OPTIMIZER), "replicated") == 0,
        .memory_margin_bytes = eth_hpp_option_number(set, MEMORY_MARGIN)};
}

static enum eth_hpp_status
explain(const struct eth_hpp_option_set *set, const struct eth_hpp_plan *plan,
        const struct eth_hpp_cluster *cluster, const struct eth_hpp_profile *profile,
        const struct eth_hpp_solver_options *wanted, struct eth_hpp_error *err)
{
    struct eth_hpp_explanation explanation;
    enum eth_hpp_status status = eth_hpp_explain(plan, cluster, profile, wanted, &explanation, err);
    if (status != ETH_HPP_OK)
        return status;
    if (eth_hpp_option_flag(set, JSON))
        status = eth_hpp_json_save(eth_hpp_explanation_json(&explanation, cluster), "-", err);
    else
        eth_hpp_explanation_print(&explanation, cluster, stderr);
    eth_hpp_explanation_free(&explanation);
    return status;
}

static enum eth_hpp_status check_options(const struct eth_hpp_option_set *set,
                                         struct eth_hpp_error *err)
{
    const char *output = eth_hpp_option_text(set, OUTPUT);
    if (eth_hpp_option_text(set, CLUSTER) == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "--cluster=FILE is needed");
    if (eth_hpp_option_flag(set, JSON) && !eth_hpp_option_flag(set, EXPLAIN))
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "--json belongs to --explain; --output=- prints the plan");
    if (eth_hpp_option_flag(set, JSON) && output != NULL && strcmp(output, "-") == 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "--json and --output=- both want standard output");
    return ETH_HPP_OK;
}

static enum eth_hpp_status run(const struct eth_hpp_option_set *set, int argc, char **argv,
                               struct eth_hpp_error *err)
{
    (void)argc;
    (void)argv;
    struct eth_hpp_cluster cluster = {0};
    struct eth_hpp_profile profile = {0};
    struct eth_hpp_plan plan = {0};
    struct eth_hpp_solver_options wanted = {0};
    const char *output = eth_hpp_option_text(set, OUTPUT);
    enum eth_hpp_status status = check_options(set, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_cluster_load(eth_hpp_option_text(set, CLUSTER), &cluster, err);
    if (status == ETH_HPP_OK)
        status = get_profile(set, &cluster, &profile, err);
    if (status == ETH_HPP_OK) {
        wanted = solver_options(set, &cluster);
        status = eth_hpp_remedy_solve(&cluster, &profile, &wanted, true, &plan, err);
    }
    if (status == ETH_HPP_OK)
        eth_hpp_report_print(&plan, &cluster, stderr);
    if (status == ETH_HPP_OK && output != NULL)
        status = eth_hpp_plan_save(&plan, output, err);
    if (status == ETH_HPP_OK)
        status =
            eth_hpp_planning_draw(eth_hpp_option_text(set, TRACE), eth_hpp_option_text(set, SVG),
                                  &plan, &cluster, &profile, false, err);
    if (status == ETH_HPP_OK && eth_hpp_option_flag(set, EXPLAIN))
        status = explain(set, &plan, &cluster, &profile, &wanted, err);
    eth_hpp_plan_free(&plan);
    eth_hpp_profile_free(&profile);
    eth_hpp_cluster_free(&cluster);
    return status;
}

int eth_hpp_command_plan(int argc, char **argv)
{
    static const struct eth_hpp_command command = {
        .name = "plan",
        .arguments = "--cluster=FILE (--profile=FILE | --model=MODEL) [OPTIONS]",
        .what = "Finds the plan with the shortest predicted step, and how far from the optimum it "
                "can be at\nmost. The table goes to standard error. Exit code 3: nothing fits.",
        .table = options,
        .count = OPTIONS,
        .run = run};
    return eth_hpp_command_run(&command, argc, argv);
}
