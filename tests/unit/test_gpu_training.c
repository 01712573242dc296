/*
 * The whole GPU path on an emulated GPU: the module's own kernels, streams and memory, one rank and
 * several, against the CPU. The emulated device puts off what it is told in ever other ways, so
 * that a wait that is missing shows as another loss.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulation/ranks.h"
#include "models/transformer.h"
#include "runtime/context.h"
#include "tiny_plan.h"
#include "unit/valgrind.h"

#ifdef __SANITIZE_ADDRESS__
/* Ranks open oneDNN and UCX at run time: with thread-local data the leak checker crashes, and
 * without them it takes OpenMP's for leaks. */
__attribute__((visibility("default"))) const char *__lsan_default_options(void);
const char *__lsan_default_options(void)
{
    return "detect_leaks=0";
}
#endif

#ifdef __SANITIZE_ADDRESS__ /* under which emulated kernels take long */
enum { STEPS = 2, ORDERS = 1 };
#else
enum { STEPS = 4, ORDERS = 2 };
#endif

static const struct eth_hpp_model model = {.name = "tiny",
                                           .family = ETH_HPP_GPT2,
                                           .vocabulary = 29,
                                           .context = TINY_SEQUENCE,
                                           .decoders = TINY_LAYERS - 2,
                                           .hidden = 16,
                                           .inner = 64,
                                           .heads = 2,
                                           .key_value_heads = 2,
                                           .head_size = 8,
                                           .tied = true,
                                           .attention_dropout = 0.1,
                                           .residual_dropout = 0.1};

static const struct eth_hpp_optimizer_options optimizer = {.learning_rate = 0.01,
                                                           .beta1 = 0.9,
                                                           .beta2 = 0.95,
                                                           .epsilon = 1e-8,
                                                           .weight_decay = 0.1,
                                                           .clip_norm = 0.5};

/* ---- a rank ---- */

struct run {
    char plan_path[64];
    const char *device[RANKS_MAX]; /* by rank */
    double (*losses)[STEPS];       /* by rank; in memory that they share */
    double memory_bytes;           /* of each GPU; 0: enough */
};

static enum eth_hpp_status sample(void *data, int64_t number, int32_t *tokens, int32_t *targets,
                                  struct eth_hpp_error *err)
{
    (void)data;
    (void)err;
    for (int t = 0; t < TINY_SEQUENCE; t++) {
        tokens[t] = (int32_t)((number * 5 + t * t) % model.vocabulary);
        targets[t] = (number + t) % 4 == 0
                         ? -1
                         : (int32_t)((number * 5 + (t + 1) * (t + 1)) % model.vocabulary);
    }
    return ETH_HPP_OK;
}

static int train(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct run *run = user;
    const int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    const struct eth_hpp_init_options options = {
        .plan_path = run->plan_path, .timeout_s = 60, .check_replicas = 2};
    const struct eth_hpp_transformer_options transformer_options = {
        .model = &model, .seed = 3, .sample = sample};
    struct eth_hpp_context *context = NULL;
    struct eth_hpp_transformer *transformer;
    struct eth_hpp_error err = {0};
    struct eth_hpp_metrics metrics;
    setenv("ETH_HPP_DEVICE", run->device[rank], 1);
    if (eth_hpp_context_open(bootstrap, &options, &context, &err) != ETH_HPP_OK)
        eth_hpp_fail(NULL, &err);
    if (eth_hpp_transformer_create(context, &transformer_options, &transformer, &err) != ETH_HPP_OK)
        eth_hpp_fail(context, &err);
    for (int step = 0; step < STEPS; step++) {
        if (eth_hpp_step(context, &optimizer, &metrics, &err) != ETH_HPP_OK)
            eth_hpp_fail(context, &err);
        RANK_CHECK(metrics.busy_s > 0 && metrics.optimizer_s > 0 && metrics.sync_exposed_s >= 0);
        run->losses[rank][step] = metrics.loss;
    }
    eth_hpp_transformer_destroy(transformer);
    eth_hpp_finalize(context);
    return 0;
}

/* ---- runs ---- */

static void open_run(struct run *run, const char *device, const char *optimizer_kind,
                     const char *pipelines)
{
    *run = (struct run){.losses = mmap(NULL, sizeof(double[RANKS_MAX][STEPS]),
                                       PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    for (int rank = 0; rank < RANKS_MAX; rank++)
        run->device[rank] = device;
    snprintf(run->plan_path, sizeof(run->plan_path), "test_gpu_training.%d.json", (int)getpid());
    tiny_plan_write(run->plan_path, ETH_HPP_TOKEN_EMBEDDING, optimizer_kind, pipelines);
}

static void close_run(struct run *run)
{
    unlink(run->plan_path);
    munmap(run->losses, sizeof(double[RANKS_MAX][STEPS]));
}

static void run_ranks(struct run *run, int ranks, const char *name)
{
    struct ranks_result result;
    ranks_run(ranks, train, run, 120, &result);
    for (int rank = 0; rank < ranks; rank++)
        if (result.exit_code[rank] != 0)
            fail_msg("%s: rank %d ended with %d: %s", name, rank, result.exit_code[rank],
                     result.log);
}

#define ONE_RANK PIPELINE(4, 2, STAGE(0, 6, "", WORKER(0, 4)))

/* What all are held against: one rank on the CPU. */
static double right[STEPS];

static int train_on_the_cpu(void **state)
{
    struct run run;
    (void)state;
    setenv("ETH_HPP_CUDA_MODULE", EMULATED_MODULE, 1);
    open_run(&run, "cpu", "replicated", ONE_RANK);
    run_ranks(&run, 1, "the CPU");
    for (int step = 0; step < STEPS; step++)
        right[step] = run.losses[0][step];
    close_run(&run);
    return 0;
}

static void check_plan(const char *name, const char *optimizer_kind, int ranks,
                       const char *pipelines)
{
    struct run run;
    open_run(&run, "cuda", optimizer_kind, pipelines);
    for (int order = 1; order <= ORDERS; order++) {
        char seed[8];
        snprintf(seed, sizeof(seed), "%d", order);
        setenv("ETH_HPP_EMULATED_ORDER", seed, 1);
        run_ranks(&run, ranks, name);
        for (int rank = 0; rank < ranks; rank++)
            for (int step = 0; step < STEPS; step++)
                if (!(fabs(run.losses[rank][step] - right[step]) <= 1e-4 * right[step]))
                    fail_msg("%s, order %d: step %d on rank %d: loss %.9g for %.9g", name, order,
                             step, rank, run.losses[rank][step], right[step]);
    }
    close_run(&run);
}

/* ---- the tests ---- */

static void one_gpu_trains_as_the_cpu_does(void **state)
{
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    assert_true(right[STEPS - 1] != right[0]);
    check_plan("one rank", "replicated", 1, ONE_RANK);
    check_plan("recompute", "replicated", 1,
               PIPELINE(2, 4, STAGE(0, 6, ",\"recompute\":true", WORKER(0, 2))));
}

static void gpus_train_as_the_cpu_does_under_any_plan(void **state)
{
    static const struct {
        const char *name, *optimizer_kind;
        int ranks;
        const char *pipelines;
    } plans[] = {
        {"a pipeline", "replicated", 2,
         PIPELINE(2, 4, STAGE(0, 3, "", WORKER(0, 2)) "," STAGE(3, 6, "", WORKER(1, 2)))},
        {"unlike pipelines", "replicated", 3,
         PIPELINE(2, 3,
                  STAGE(0, 2, "", WORKER(0, 2)) "," STAGE(
                      2, 6, "", WORKER(1, 2))) "," PIPELINE(1, 2, STAGE(0, 6, "", WORKER(2, 1)))},
        {"workers that share, sharded", "sharded", 3,
         PIPELINE(
             4, 2,
             STAGE(0, 3, "", WORKER(0, 3) "," WORKER(1, 1)) "," STAGE(3, 6, "", WORKER(2, 4)))},
        {"all in flight, recomputed", "replicated", 4,
         PIPELINE(1, 8,
                  STAGE(0, 1, ",\"in_flight\":8,\"recompute\":true", WORKER(0, 1)) "," STAGE(
                      1, 3, ",\"in_flight\":8",
                      WORKER(1, 1)) "," STAGE(3, 5, ",\"in_flight\":8,\"recompute\":true",
                                              WORKER(2, 1)) "," STAGE(5, 6, ",\"in_flight\":8",
                                                                      WORKER(3, 1)))},
    };
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++)
        check_plan(plans[i].name, plans[i].optimizer_kind, plans[i].ranks, plans[i].pipelines);
}

static void gpus_beside_cpus_are_refused(void **state)
{
    struct run run;
    struct ranks_result result;
    (void)state;
    skip_in_valgrind("the log is looked at");
    open_run(&run, "cuda", "replicated",
             PIPELINE(2, 4, STAGE(0, 3, "", WORKER(0, 2)) "," STAGE(3, 6, "", WORKER(1, 2))));
    run.device[1] = "cpu";
    ranks_run(2, train, &run, 60, &result);
    assert_int_equal(result.exit_code[0], ETH_HPP_EXIT_USAGE);
    assert_int_equal(result.exit_code[1], ETH_HPP_EXIT_USAGE);
    assert_int_equal(ranks_log_count(&result, "rank 1 computes on a CPU and rank 0 on a GPU"), 1);
    close_run(&run);
}

static void a_device_that_is_no_device_is_named(void **state)
{
    struct run run;
    struct ranks_result result;
    (void)state;
    skip_in_valgrind("the log is looked at");
    open_run(&run, "abacus", "replicated", PIPELINE(2, 4, STAGE(0, 6, "", WORKER(0, 2))));
    ranks_run(1, train, &run, 60, &result);
    assert_int_equal(result.exit_code[0], ETH_HPP_EXIT_USAGE);
    assert_int_equal(ranks_log_count(&result, "no kernels for \"abacus\""), 1);
    close_run(&run);
}

static void a_module_that_is_missing_is_named(void **state)
{
    struct eth_hpp_kernels *kernels = NULL;
    struct eth_hpp_error err = {0};
    (void)state;
    setenv("ETH_HPP_CUDA_MODULE", "/nowhere/libethhpp_cuda.so", 1);
    assert_int_equal(eth_hpp_kernels_create("cuda", ETH_HPP_FP32, &kernels, &err),
                     ETH_HPP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "/nowhere/libethhpp_cuda.so"));
    assert_non_null(strstr(err.text, "--with-cuda"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_gpu_trains_as_the_cpu_does),
        cmocka_unit_test(gpus_train_as_the_cpu_does_under_any_plan),
        cmocka_unit_test(gpus_beside_cpus_are_refused),
        cmocka_unit_test(a_device_that_is_no_device_is_named),
        cmocka_unit_test(a_module_that_is_missing_is_named),
    };
    return cmocka_run_group_tests(tests, train_on_the_cpu, NULL);
}
