/*
 * train MODEL DTYPE RANKS STEPS SECONDS: trains the model on the first GPU, in one process or in
 * several that share it, and prints a row of a table. The ranks are forked and find each other
 * through shared memory, as in the unit tests; all else is what jobs run. Several ranks must come
 * to the losses of one. Exits with 0, with 1 where something is wrong, and with 3 where the GPU is
 * too small.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "emulation/ranks.h"
#include "inventory/device_db.h"
#include "launcher/node.h"
#include "models/transformer.h"
#include "plan/derive.h"
#include "plan/simulate.h"
#include "runtime/context.h"

enum {
    STEPS_MAX = 64,
    SAMPLES = 8,
    MICRO_BATCHES = 4,
    WARM_UP = 2,
    TOKENS = 64,
    TOO_SMALL = 3,
    LIMIT_S = 240
};

/* Room beyond what a plan foresees, so that what it fails to foresee is seen, and not refused. */
#define SPARE 1.25

/* Of two bf16 trainings whose sums were taken in other orders (tests/unit/test_gpu_training.c). */
#define LOSS_WITHIN 0x1p-8

struct run {
    struct eth_hpp_model model;
    enum eth_hpp_dtype dtype;
    int ranks, steps, samples;
    double seconds; /* after which no more steps are begun, but for the least number */
    char plan_path[64];
    char detour[400];                 /* of several ranks: why their data do not go by NCCL */
    double foreseen_bytes[RANKS_MAX]; /* that ranks hold at most */
    struct shared {
        bool emulated, no_memory;
        int steps;          /* that were trained */
        char transport[16]; /* of several ranks */
        double held_bytes[RANKS_MAX];
        struct eth_hpp_metrics metrics[STEPS_MAX]; /* of rank 0 */
    } * shared;
};

static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    exit(1);
}

/* ---- the plan ---- */

/* Pipelines of two stages, cut unlike, so that blocks are summed that no two stages share whole. */
static void write_pipelines(const struct run *run, char *text, size_t size)
{
    const int layers = eth_hpp_model_layers(&run->model), third = layers / 3, half = layers / 2;
#define WORKER "\"workers\":[{\"node\":\"n\",\"gpus\":[%d],\"ranks\":[%d],\"samples\":%d}]"
    if (run->ranks == 1)
        snprintf(text, size,
                 "{\"micro_batch\":%d,\"micro_batches\":%d,\"stages\":[{\"layers\":[0,%d]," WORKER
                 "}]}",
                 run->samples, MICRO_BATCHES, layers, 0, 0, run->samples);
    else
        snprintf(text, size,
                 "{\"micro_batch\":%d,\"micro_batches\":3,\"stages\":["
                 "{\"layers\":[0,%d]," WORKER "},{\"layers\":[%d,%d]," WORKER "}]},"
                 "{\"micro_batch\":%d,\"micro_batches\":1,\"stages\":["
                 "{\"layers\":[0,%d]," WORKER "},{\"layers\":[%d,%d]," WORKER "}]}",
                 run->samples, half, 0, 0, run->samples, half, layers, 1, 1, run->samples,
                 run->samples, third, 2, 2, run->samples, third, layers, 3, 3, run->samples);
#undef WORKER
}

/* What there is to plan for. A kind of GPU from the table stands for the real one: what a plan
 * foresees of memory is the same on all. */
static void make_cluster(const struct run *run, struct eth_hpp_cluster *cluster)
{
    char text[512];
    struct eth_hpp_error err = {0};
    snprintf(text, sizeof(text),
             "{\"format\":\"eth-hpp-cluster\",\"version\":1,\"nodes\":[{\"name\":\"n\","
             "\"device\":\"A100-SXM-80GB\",\"count\":%d,\"intra_bandwidth\":1e11,"
             "\"inter_bandwidth\":1e10}]}",
             run->ranks);
    if (eth_hpp_cluster_parse("cluster", text, strlen(text), cluster, &err) != ETH_HPP_OK)
        die("%s", err.text);
}

/* As `eth-hpp plan` leaves one that is given to it: with the memory that each rank is to reserve.
 */
static void foresee(struct run *run, struct eth_hpp_plan *plan)
{
    const struct eth_hpp_derive_options deriving = {.sequence_length = run->model.context,
                                                    .dtype = run->dtype};
    struct eth_hpp_error err = {0};
    struct eth_hpp_cluster cluster;
    struct eth_hpp_profile profile;
    struct eth_hpp_simulation simulation;
    make_cluster(run, &cluster);
    if (eth_hpp_derive_profile(&run->model, &cluster, &deriving, &profile, &err) != ETH_HPP_OK ||
        eth_hpp_plan_complete(plan, &cluster, &profile, &err) != ETH_HPP_OK ||
        eth_hpp_simulate(plan, &cluster, &profile, false, &simulation, &err) != ETH_HPP_OK)
        die("%s", err.text);
    for (int i = 0; i < simulation.predicted.rank_count; i++) {
        struct eth_hpp_predicted_rank *rank = &simulation.predicted.ranks[i];
        run->foreseen_bytes[rank->rank] = rank->peak_memory_bytes - ETH_HPP_RESERVED_BYTES;
        rank->memory_limit_bytes = SPARE * rank->peak_memory_bytes;
    }
    plan->predicted = simulation.predicted;
    simulation.predicted = (struct eth_hpp_predicted){0};
    eth_hpp_simulation_free(&simulation);
    eth_hpp_profile_free(&profile);
    eth_hpp_cluster_free(&cluster);
}

static void write_plan(struct run *run)
{
    char pipelines[2048], text[4096];
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan plan;
    write_pipelines(run, pipelines, sizeof(pipelines));
    snprintf(text, sizeof(text),
             "{\"format\":\"eth-hpp-plan\",\"version\":1,\"model\":{\"name\":\"%s\",\"layers\":%d,"
             "\"sequence_length\":%d},\"global_batch\":%d,\"schedule\":\"1f1b\",\"dtype\":\"%s\","
             "\"pipelines\":[%s]}",
             run->model.name, eth_hpp_model_layers(&run->model), run->model.context,
             MICRO_BATCHES * run->samples, eth_hpp_dtype_name(run->dtype), pipelines);
    if (eth_hpp_plan_parse("plan", text, strlen(text), &plan, &err) != ETH_HPP_OK)
        die("%s", err.text);
    foresee(run, &plan);
    if (eth_hpp_plan_save(&plan, run->plan_path, &err) != ETH_HPP_OK)
        die("%s", err.text);
    eth_hpp_plan_free(&plan);
}

/* ---- a rank ---- */

/* Few of the vocabulary's tokens, each followed by the same one: soon learnt. */
static enum eth_hpp_status sample(void *data, int64_t number, int32_t *tokens, int32_t *targets,
                                  struct eth_hpp_error *err)
{
    const struct eth_hpp_model *model = data;
    (void)err;
    const int64_t few = model->vocabulary < TOKENS ? model->vocabulary : TOKENS;
    for (int64_t t = 0; t < model->context; t++) {
        tokens[t] = (int32_t)((number * 5 + t) % few);
        targets[t] = (int32_t)((number * 5 + t + 1) % few);
    }
    return ETH_HPP_OK;
}

static void must(struct run *run, struct eth_hpp_context *context, enum eth_hpp_status status,
                 const struct eth_hpp_error *err)
{
    if (status == ETH_HPP_ERR_MEMORY)
        run->shared->no_memory = true;
    if (status != ETH_HPP_OK)
        eth_hpp_fail(context, err);
}

/* Rank 0 has the clock, and all stop together. */
static void train_steps(struct run *run, struct eth_hpp_context *context,
                        const struct eth_hpp_optimizer_options *optimizer)
{
    struct eth_hpp_error err = {0};
    struct eth_hpp_metrics metrics = {0};
    const double start = eth_hpp_clock_now();
    const bool first = context->job.rank == 0;
    for (int step = 0; step < run->steps && !metrics.stop; step++) {
        if (first && step >= WARM_UP && eth_hpp_clock_now() - start >= run->seconds)
            eth_hpp_request_stop(context);
        must(run, context, eth_hpp_step(context, optimizer, &metrics, &err), &err);
        if (first) {
            run->shared->metrics[step] = metrics;
            run->shared->steps = step + 1;
        }
    }
}

static int train(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    struct run *run = user;
    const struct eth_hpp_init_options options = {.plan_path = run->plan_path,
                                                 .timeout_s = LIMIT_S / 2};
    const struct eth_hpp_transformer_options transformer_options = {
        .model = &run->model, .seed = 3, .sample = sample, .data = &run->model};
    const struct eth_hpp_optimizer_options optimizer = {.learning_rate = 1e-3,
                                                        .beta1 = 0.9,
                                                        .beta2 = 0.95,
                                                        .epsilon = 1e-8,
                                                        .weight_decay = 0.1,
                                                        .clip_norm = 1};
    struct eth_hpp_context *context = NULL;
    struct eth_hpp_transformer *transformer;
    struct eth_hpp_error err = {0};
    const bool first = eth_hpp_bootstrap_get_place(bootstrap)->rank == 0;
    must(run, NULL, eth_hpp_context_open(bootstrap, &options, &context, &err), &err);
    must(run, context,
         eth_hpp_transformer_create(context, &transformer_options, &transformer, &err), &err);
    if (first)
        run->shared->emulated = strstr(context->kernels->name, "emulated") != NULL;
    if (first && run->ranks > 1)
        snprintf(run->shared->transport, sizeof(run->shared->transport), "%s",
                 eth_hpp_comm_name(context->comm));
    run->shared->held_bytes[context->job.rank] = (double)context->arena.bytes;
    train_steps(run, context, &optimizer);
    eth_hpp_transformer_destroy(transformer);
    eth_hpp_finalize(context);
    return 0;
}

/* ---- runs ---- */

/* Why ranks exchanged data through the host, where they did: an older NCCL. */
static void note_detour(struct run *run, const char *log)
{
    static const char mark[] = "GPUs exchange data through the host";
    const char *line = strstr(log, mark);
    if (line != NULL)
        snprintf(run->detour, sizeof(run->detour), "%.*s", (int)strcspn(line, "\n"), line);
}

/* What the runtime holds is what the plan said, or plans that fit do not. */
static void compare_memory(const struct run *run)
{
    for (int rank = 0; rank < run->ranks; rank++)
        if (run->shared->held_bytes[rank] > run->foreseen_bytes[rank])
            die("%s %s: rank %d of %d holds %.0f bytes where the plan foresees %.0f",
                run->model.name, eth_hpp_dtype_name(run->dtype), rank, run->ranks,
                run->shared->held_bytes[rank], run->foreseen_bytes[rank]);
}

/* False where the GPU has too little memory. */
static bool run_ranks(struct run *run)
{
    struct ranks_result result;
    snprintf(run->plan_path, sizeof(run->plan_path), "device-train.%d.json", (int)getpid());
    write_plan(run);
    run->shared->no_memory = false;
    ranks_run(run->ranks, train, run, LIMIT_S, &result);
    unlink(run->plan_path);
    for (int rank = 0; rank < run->ranks; rank++)
        if (result.exit_code[rank] != 0 && !run->shared->no_memory)
            die("%s %s: rank %d of %d ended with %d: %s", run->model.name,
                eth_hpp_dtype_name(run->dtype), rank, run->ranks, result.exit_code[rank],
                result.log);
    if (!run->shared->no_memory)
        compare_memory(run);
    note_detour(run, result.log);
    return !run->shared->no_memory;
}

/* With as many samples of a micro-batch as the GPU holds. */
static void run_as_large_as_fits(struct run *run)
{
    for (run->samples = SAMPLES; run->samples > 0; run->samples /= 2)
        if (run_ranks(run))
            return;
    printf("%-12s %-5s %5d  the GPU has too little memory\n", run->model.name,
           eth_hpp_dtype_name(run->dtype), run->ranks);
    exit(TOO_SMALL);
}

/* Several ranks against one, by the same samples. */
static void compare_with_one_rank(const struct run *run)
{
    struct run one = *run;
    double losses[STEPS_MAX];
    for (int step = 0; step < run->steps; step++)
        losses[step] = run->shared->metrics[step].loss;
    one.ranks = 1;
    one.seconds = LIMIT_S; /* as many steps */
    if (!run_ranks(&one))
        die("one rank has too little memory where %d have enough", run->ranks);
    for (int step = 0; step < run->steps; step++)
        if (!(fabs(losses[step] / run->shared->metrics[step].loss - 1) <= LOSS_WITHIN))
            die("step %d: the loss of %d ranks is %.9g, of one rank %.9g", step, run->ranks,
                losses[step], run->shared->metrics[step].loss);
}

/* ---- the row ---- */

static int order_numbers(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median_step_s(const struct run *run)
{
    double seconds[STEPS_MAX];
    const int count = run->steps - WARM_UP;
    for (int i = 0; i < count; i++)
        seconds[i] = run->shared->metrics[WARM_UP + i].step_s;
    qsort(seconds, (size_t)count, sizeof(*seconds), order_numbers);
    return seconds[count / 2];
}

/* As arXiv:2204.02311, appendix B, counts them: a backward is two forwards. */
static double flops_per_token(const struct eth_hpp_model *model)
{
    double forward = 0;
    for (int layer = 0; layer < eth_hpp_model_layers(model); layer++)
        forward +=
            eth_hpp_model_forward_flops(model, eth_hpp_model_kind(model, layer), model->context);
    return 3 * forward / model->context;
}

/* The dense peak of the GPU, 0 where it is not known. */
static double peak_flops(enum eth_hpp_dtype dtype)
{
    struct eth_hpp_inventory inventory;
    struct eth_hpp_error err = {0};
    double peak = 0;
    if (eth_hpp_node_visible(&inventory, 10, &err) != ETH_HPP_OK)
        return 0;
    const struct eth_hpp_device_spec *spec =
        inventory.gpu_count > 0 ? eth_hpp_device_db_find(inventory.gpus[0].device) : NULL;
    if (spec != NULL)
        peak = dtype == ETH_HPP_FP32 ? spec->single_flops : spec->half_flops;
    eth_hpp_inventory_free(&inventory);
    return peak;
}

static void print_row(const struct run *run, double step_s, double first_loss, double last_loss)
{
    const double tokens = (double)MICRO_BATCHES * run->samples * run->model.context;
    const double peak = run->shared->emulated ? 0 : peak_flops(run->dtype);
    char utilisation[32] = "-";
    if (peak > 0)
        snprintf(utilisation, sizeof(utilisation), "%.1f %%",
                 100 * tokens / step_s * flops_per_token(&run->model) / peak);
    printf("%-12s %-5s %5d %8d x %-5d %9.1f %12.0f %8s  %.4f -> %.4f%s%s%s\n", run->model.name,
           eth_hpp_dtype_name(run->dtype), run->ranks, MICRO_BATCHES * run->samples,
           run->model.context, 1e3 * step_s, tokens / step_s, utilisation, first_loss, last_loss,
           run->shared->transport[0] != '\0' ? "  by " : "", run->shared->transport,
           run->shared->emulated ? "  (emulated)" : "");
}

int main(int argc, char **argv)
{
    struct run run = {.ranks = argc > 3 ? atoi(argv[3]) : 0,
                      .steps = argc > 4 ? atoi(argv[4]) : 0,
                      .seconds = argc > 5 ? atof(argv[5]) : LIMIT_S};
    struct eth_hpp_error err = {0};
    const int dtype = argc > 2 ? eth_hpp_dtype_find(argv[2]) : -1;
    if (dtype < 0 || (run.ranks != 1 && run.ranks != 4) || run.steps <= WARM_UP ||
        run.steps > STEPS_MAX || eth_hpp_model_find(argv[1], &run.model, &err) != ETH_HPP_OK)
        die("usage: train MODEL fp32|bf16|fp16 1|4 STEPS (%d to %d) [SECONDS]%s%s", WARM_UP + 1,
            STEPS_MAX, err.text[0] != '\0' ? ": " : "", err.text);
    run.dtype = (enum eth_hpp_dtype)dtype;
    run.shared =
        mmap(NULL, sizeof(*run.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run.shared == MAP_FAILED)
        die("out of memory");
    setenv("ETH_HPP_DEVICE", "cuda", 1);
    run_as_large_as_fits(&run);
    run.steps = run.shared->steps;
    const double step_s = median_step_s(&run), first_loss = run.shared->metrics[0].loss,
                 last_loss = run.shared->metrics[run.steps - 1].loss;
    if (!(last_loss < first_loss))
        die("%s: the loss does not fall: %g -> %g", run.model.name, first_loss, last_loss);
    if (run.ranks > 1)
        compare_with_one_rank(&run);
    print_row(&run, step_s, first_loss, last_loss);
    if (run.detour[0] != '\0')
        printf("skipped: ranks that share the GPU by NCCL: %s\n", run.detour);
    munmap(run.shared, sizeof(*run.shared));
    return 0;
}
