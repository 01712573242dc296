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

#include "gpu_run.h"
#include "unit/valgrind.h"

#ifdef __SANITIZE_ADDRESS__ /* under which emulated kernels take long */
enum { STEPS = 2, ORDERS = 1 };
#else
enum { STEPS = 4, ORDERS = 2 };
#endif

/* What all are held against: one rank. */
struct reference {
    double losses[STEPS];
};

static struct reference train_alone(const struct eth_hpp_model *model, enum eth_hpp_dtype dtype,
                                    const char *device)
{
    struct gpu_run run = gpu_run_make(model, dtype, device);
    struct reference reference;
    run.steps = STEPS;
    gpu_run_well(&run, 1, ONE_RANK, "one rank");
    for (int step = 0; step < STEPS; step++)
        reference.losses[step] = run.metrics[0][step].loss;
    gpu_run_free(&run);
    return reference;
}

static void check_losses(const struct gpu_run *run, int ranks, const struct reference *right,
                         double within, const char *name)
{
    for (int rank = 0; rank < ranks; rank++)
        for (int step = 0; step < STEPS; step++) {
            const double loss = run->metrics[rank][step].loss, due = right->losses[step];
            if (!(fabs(loss - due) <= within * due))
                fail_msg("%s: step %d on rank %d: loss %.9g for %.9g", name, step, rank, loss, due);
        }
}

/* ---- in fp32, the CPU's losses ---- */

/* Sums are taken in other orders. */
static const double FP32_BOUND = 1e-4;

static void check_plan(const struct eth_hpp_model *model, const struct reference *right,
                       const char *name, const char *optimizer, int ranks, const char *pipelines)
{
    struct gpu_run run = gpu_run_make(model, ETH_HPP_FP32, "cuda");
    run.optimizer = optimizer;
    run.steps = STEPS;
    for (int order = 1; order <= ORDERS; order++) {
        char seed[8];
        snprintf(seed, sizeof(seed), "%d", order);
        setenv("ETH_HPP_EMULATED_ORDER", seed, 1);
        gpu_run_well(&run, ranks, pipelines, name);
        check_losses(&run, ranks, right, FP32_BOUND, name);
    }
    gpu_run_free(&run);
}

static void gpus_train_as_the_cpu_does_under_any_plan(void **state)
{
    static const struct {
        const char *name, *optimizer;
        int ranks;
        const char *pipelines;
    } plans[] = {
        {"one rank", "replicated", 1, ONE_RANK},
        {"recompute", "replicated", 1,
         PIPELINE(2, 4, STAGE(0, 6, ",\"recompute\":true", WORKER(0, 2)))},
        {"a pipeline", "replicated", 2, CHAIN},
        {"unlike pipelines", "replicated", 3, UNLIKE},
        {"workers that share, sharded", "sharded", 3, SHARING},
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
    const struct reference right = train_alone(&gpu_gpt, ETH_HPP_FP32, "cpu");
    assert_true(right.losses[STEPS - 1] != right.losses[0]);
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++)
        check_plan(&gpu_gpt, &right, plans[i].name, plans[i].optimizer, plans[i].ranks,
                   plans[i].pipelines);
}

static void a_llama_trains_on_gpus_as_on_the_cpu(void **state)
{
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    const struct reference right = train_alone(&gpu_llama, ETH_HPP_FP32, "cpu");
    assert_true(right.losses[STEPS - 1] != right.losses[0]);
    check_plan(&gpu_llama, &right, "one rank", "replicated", 1, ONE_RANK);
    check_plan(&gpu_llama, &right, "unlike pipelines, sharded", "sharded", 3, UNLIKE);
}

static void a_gpu_that_is_idle_holds_nobody_up(void **state)
{
    struct gpu_run run = gpu_run_make(&gpu_gpt, ETH_HPP_FP32, "cuda");
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    const struct reference right = train_alone(&gpu_gpt, ETH_HPP_FP32, "cpu");
    run.steps = STEPS;
    gpu_run_well(&run, 4, UNLIKE, "unlike pipelines on three of four");
    check_losses(&run, 3, &right, FP32_BOUND, "unlike pipelines on three of four");
    gpu_run_free(&run);
}

static void gpus_without_nccl_train_by_copies_through_the_host(void **state)
{
    struct gpu_run run = gpu_run_make(&gpu_gpt, ETH_HPP_FP32, "cuda");
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    const struct reference right = train_alone(&gpu_gpt, ETH_HPP_FP32, "cpu");
    setenv("ETH_HPP_NCCL_LIBRARY", "none", 1);
    run.transport = "staged";
    run.steps = STEPS;
    gpu_run_well(&run, 3, UNLIKE, "unlike pipelines");
    check_losses(&run, 3, &right, FP32_BOUND, "unlike pipelines");
    run.optimizer = "sharded";
    gpu_run_well(&run, 3, SHARING, "workers that share, sharded");
    check_losses(&run, 3, &right, FP32_BOUND, "workers that share, sharded");
    unsetenv("ETH_HPP_NCCL_LIBRARY");
    gpu_run_free(&run);
}

/* ---- in values of 2 bytes ---- */

/* Against fp32 on the CPU: within `bound_of_dtype`; between plans as in fp32, since values are the
 * same ones but where a master lies next to the middle of two. */
static void check_dtype(const struct eth_hpp_model *model, enum eth_hpp_dtype dtype,
                        double bound_of_dtype)
{
    const struct reference exact = train_alone(model, ETH_HPP_FP32, "cpu");
    const struct reference right = train_alone(model, dtype, "cuda");
    struct gpu_run run = gpu_run_make(model, dtype, "cuda");
    run.steps = STEPS;
    run.check_replicas = 1;
    gpu_run_well(&run, 3, UNLIKE, "unlike pipelines");
    check_losses(&run, 3, &exact, bound_of_dtype, "unlike pipelines, against fp32");
    check_losses(&run, 3, &right, FP32_BOUND, "unlike pipelines");
    run.optimizer = "sharded";
    gpu_run_well(&run, 3, SHARING, "workers that share, sharded");
    check_losses(&run, 3, &right, FP32_BOUND, "workers that share, sharded");
    gpu_run_free(&run);
}

/* The loss is a mean of differences of logits, which are off by half of the distance to the next
 * number, 2^-8 of them: more than one such distance it is not off. */
static const double BF16_BOUND = 0x1p-8;

static void bf16_trains_as_fp32_does_under_any_plan(void **state)
{
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    check_dtype(&gpu_gpt, ETH_HPP_BF16, BF16_BOUND);
    check_dtype(&gpu_llama, ETH_HPP_BF16, BF16_BOUND);
}

/* The same, of numbers with eight times as many digits. */
static const double FP16_BOUND = 0x1p-11;

static void fp16_trains_as_fp32_does_under_any_plan(void **state)
{
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    check_dtype(&gpu_gpt, ETH_HPP_FP16, FP16_BOUND);
    check_dtype(&gpu_llama, ETH_HPP_FP16, FP16_BOUND);
}

/* ---- unlike GPUs, and memory ---- */

/* Sums that depend on how many processors a GPU has would make weights differ. */
static void replicas_on_unlike_gpus_stay_the_same_bit_by_bit(void **state)
{
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    for (int dtype = ETH_HPP_FP32; dtype <= ETH_HPP_BF16; dtype++) {
        struct gpu_run run = gpu_run_make(&gpu_gpt, (enum eth_hpp_dtype)dtype, "cuda");
        run.steps = STEPS;
        run.check_replicas = 1;
        run.unlike = true;
        gpu_run_well(&run, 3, UNLIKE, "unlike pipelines");
        run.optimizer = "sharded";
        gpu_run_well(&run, 3, SHARING, "workers that share, sharded");
        gpu_run_free(&run);
    }
}

static void allow_no_more_memory(struct eth_hpp_context *context)
{
    enum { MORE_THAN_RESERVED = 512 << 20 };
    const struct eth_hpp_kernels *kernels = context->kernels;
    void *memory = NULL;
    struct eth_hpp_error err = {0};
    setenv("ETH_HPP_EMULATED_NO_MORE_MEMORY", "1", 1);
    if (kernels->ops->allocate(kernels->state, MORE_THAN_RESERVED, &memory, &err) == ETH_HPP_OK) {
        eth_hpp_error_set(&err, ETH_HPP_ERR_INTERNAL, "the emulated GPU still has memory");
        eth_hpp_fail(context, &err);
    }
}

static void no_step_takes_memory(void **state)
{
    struct gpu_run run = gpu_run_make(&gpu_gpt, ETH_HPP_BF16, "cuda");
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    run.steps = STEPS;
    run.before = allow_no_more_memory;
    gpu_run_well(&run, 3, UNLIKE, "unlike pipelines");
    run.optimizer = "sharded";
    gpu_run_well(&run, 3, SHARING, "workers that share, sharded");
    gpu_run_free(&run);
}

/* ---- what is refused ---- */

static void gpus_beside_cpus_are_refused(void **state)
{
    struct gpu_run run = gpu_run_make(&gpu_gpt, ETH_HPP_FP32, "cuda");
    struct ranks_result result;
    (void)state;
    skip_in_valgrind("the log is looked at");
    run.device[1] = "cpu";
    gpu_run_ranks(&run, 2, CHAIN, &result);
    assert_int_equal(result.exit_code[0], ETH_HPP_EXIT_USAGE);
    assert_int_equal(result.exit_code[1], ETH_HPP_EXIT_USAGE);
    assert_int_equal(ranks_log_count(&result, "rank 1 computes on a CPU and rank 0 on a GPU"), 1);
    gpu_run_free(&run);
}

static void memory_is_taken_beyond_what_was_reserved(void **state)
{
    struct eth_hpp_kernels *kernels;
    struct eth_hpp_error err = {0};
    void *within = NULL, *beyond = NULL;
    char last = 1;
    (void)state;
    setenv("ETH_HPP_CUDA_MODULE", EMULATED_MODULE, 1);
    assert_int_equal(eth_hpp_kernels_create("cuda", ETH_HPP_FP32, &kernels, &err), ETH_HPP_OK);
    const struct eth_hpp_kernels_ops *ops = kernels->ops;
    assert_int_equal(ops->reserve(kernels->state, 1 << 20, &err), ETH_HPP_OK);
    assert_int_equal(ops->allocate(kernels->state, 900 << 10, &within, &err), ETH_HPP_OK);
    assert_int_equal(ops->allocate(kernels->state, 900 << 10, &beyond, &err), ETH_HPP_OK);
    ops->zero(kernels->state, within, 900 << 10);
    ops->zero(kernels->state, beyond, 900 << 10);
    assert_int_equal(ops->to_host(kernels->state, &last, (char *)beyond + (900 << 10) - 1, 1, &err),
                     ETH_HPP_OK);
    assert_int_equal(last, 0);
    ops->release(kernels->state, within);
    ops->release(kernels->state, beyond);
    eth_hpp_kernels_destroy(kernels);
}

static void a_device_that_is_no_device_is_named(void **state)
{
    struct gpu_run run = gpu_run_make(&gpu_gpt, ETH_HPP_FP32, "abacus");
    struct ranks_result result;
    (void)state;
    skip_in_valgrind("the log is looked at");
    gpu_run_ranks(&run, 1, ONE_RANK, &result);
    assert_int_equal(result.exit_code[0], ETH_HPP_EXIT_USAGE);
    assert_int_equal(ranks_log_count(&result, "no kernels for \"abacus\""), 1);
    gpu_run_free(&run);
}

static void bf16_on_a_cpu_is_refused(void **state)
{
    struct gpu_run run = gpu_run_make(&gpu_gpt, ETH_HPP_BF16, "cpu");
    struct ranks_result result;
    (void)state;
    skip_in_valgrind("the log is looked at");
    gpu_run_ranks(&run, 1, ONE_RANK, &result);
    assert_int_equal(result.exit_code[0], ETH_HPP_EXIT_USAGE);
    assert_int_equal(ranks_log_count(&result, "the plan's dtype is bf16"), 1);
    gpu_run_free(&run);
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
        cmocka_unit_test(gpus_train_as_the_cpu_does_under_any_plan),
        cmocka_unit_test(a_llama_trains_on_gpus_as_on_the_cpu),
        cmocka_unit_test(a_gpu_that_is_idle_holds_nobody_up),
        cmocka_unit_test(gpus_without_nccl_train_by_copies_through_the_host),
        cmocka_unit_test(bf16_trains_as_fp32_does_under_any_plan),
        cmocka_unit_test(fp16_trains_as_fp32_does_under_any_plan),
        cmocka_unit_test(replicas_on_unlike_gpus_stay_the_same_bit_by_bit),
        cmocka_unit_test(no_step_takes_memory),
        cmocka_unit_test(gpus_beside_cpus_are_refused),
        cmocka_unit_test(memory_is_taken_beyond_what_was_reserved),
        cmocka_unit_test(a_device_that_is_no_device_is_named),
        cmocka_unit_test(bf16_on_a_cpu_is_refused),
        cmocka_unit_test(a_module_that_is_missing_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
