/*
 * Values of 2 bytes beside fp32 masters, on an emulated GPU: what checkpoints keep, what the
 * comparison of replicas sees, and what is measured.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>

#include "folder.h"
#include "gpu_run.h"
#include "models/transformer_measure.h"
#include "unit/valgrind.h"

enum { BEFORE = 2, STEPS = 4 };

/* ---- checkpoints ---- */

struct plan {
    enum eth_hpp_dtype dtype;
    const char *device, *optimizer;
    int ranks;
    const char *pipelines;
};

/* The losses of so many steps, from the folder's checkpoint on if there is one. */
static void run_plan(const struct plan *plan, const char *checkpoints, int steps,
                     struct eth_hpp_metrics *metrics)
{
    struct gpu_run run = gpu_run_make(&gpu_llama, plan->dtype, plan->device);
    run.optimizer = plan->optimizer;
    run.folder = checkpoints;
    run.steps = steps;
    gpu_run_well(&run, plan->ranks, plan->pipelines, eth_hpp_dtype_name(plan->dtype));
    memcpy(metrics, run.metrics[0], sizeof(*metrics) * (size_t)steps);
    gpu_run_free(&run);
}

/* Trains without a break, and with one after which another plan goes on. */
static void check_break(const struct plan *first, const struct plan *second, double loss_within,
                        double norm_within)
{
    struct eth_hpp_metrics whole[STEPS], begun[BEFORE], rest[STEPS - BEFORE];
    run_plan(first, NULL, STEPS, whole);
    assert_int_equal(make_folder(NULL), 0);
    run_plan(first, folder, BEFORE, begun);
    run_plan(second, folder, STEPS - BEFORE, rest);
    assert_int_equal(remove_folder(NULL), 0);
    for (int i = 0; i < STEPS - BEFORE; i++) {
        const struct eth_hpp_metrics *due = &whole[BEFORE + i];
        assert_int_equal(rest[i].step, BEFORE + i);
        if (!(fabs(rest[i].loss - due->loss) <= loss_within * due->loss) ||
            !(fabs(rest[i].gradient_norm - due->gradient_norm) <= norm_within * due->gradient_norm))
            fail_msg("step %d: loss %.9g for %.9g, norm %.9g for %.9g", BEFORE + i, rest[i].loss,
                     due->loss, rest[i].gradient_norm, due->gradient_norm);
    }
}

static const struct plan in_fp16 = {ETH_HPP_FP16, "cuda", "replicated", 3, UNLIKE};
static const struct plan sharded = {ETH_HPP_BF16, "cuda", "sharded", 3, SHARING};
static const struct plan replicated = {ETH_HPP_BF16, "cuda", "replicated", 3, UNLIKE};
static const struct plan on_the_cpu = {ETH_HPP_FP32, "cpu", "replicated", 1, ONE_RANK};

/* Masters that came back rounded to bf16 would show: steps are smaller than its distances. */
static void masters_come_back_under_any_plan(void **state)
{
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    check_break(&sharded, &sharded, 1e-6, 1e-5);
    check_break(&sharded, &replicated, 1e-6, 1e-5);
    check_break(&replicated, &sharded, 1e-6, 1e-5);
}

static void a_training_goes_on_in_another_dtype(void **state)
{
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    check_break(&sharded, &on_the_cpu, 0x1p-8, 0.05);
    check_break(&on_the_cpu, &replicated, 0x1p-8, 0.05);
    check_break(&sharded, &in_fp16, 0x1p-8, 0.05);
}

/* ---- replicas ---- */

/* Before the second step rank 2 gets another number where a tensor's first value, or master, is;
 * the step would cast the master again. */
static void disturb(struct eth_hpp_context *context, void *memory, size_t size)
{
    const struct eth_hpp_kernels *kernels = context->kernels;
    const uint16_t number[2] = {0x1234, 0x3f00};
    struct eth_hpp_error err = {0};
    if (context->step != 1)
        return;
    if (context->job.rank == 2)
        RANK_CHECK(kernels->ops->to_device(kernels->state, memory, number, size, &err) ==
                   ETH_HPP_OK);
    if (eth_hpp_replicas_compare(context, &err) != ETH_HPP_OK)
        eth_hpp_fail(context, &err);
}

static void disturb_value(struct eth_hpp_context *context)
{
    disturb(context, eth_hpp_tensor_weights(context, 3), sizeof(uint16_t));
}

static void disturb_master(struct eth_hpp_context *context)
{
    disturb(context, eth_hpp_weights_masters(context, 3), sizeof(float));
}

static void check_disturbed(void (*before)(struct eth_hpp_context *context))
{
    struct gpu_run run = gpu_run_make(&gpu_llama, ETH_HPP_BF16, "cuda");
    struct ranks_result result;
    run.before = before;
    run.check_replicas = 1;
    gpu_run_ranks(&run, 3, UNLIKE, &result);
    if (ranks_log_count(&result, "no longer hold the same weights") != 1)
        fail_msg("%s", result.log);
    gpu_run_free(&run);
}

static void replicas_that_differ_are_noticed_by_value_and_by_master(void **state)
{
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    check_disturbed(disturb_master);
    check_disturbed(disturb_value);
}

/* ---- the scale of the loss in fp16 ---- */

#define TOO_LARGE 0x1p20

static void read_values(struct eth_hpp_context *context, uint16_t *values)
{
    const struct eth_hpp_kernels *kernels = context->kernels;
    struct eth_hpp_error err = {0};
    RANK_CHECK(kernels->ops->to_host(kernels->state, values, eth_hpp_tensor_weights(context, 3),
                                     8 * sizeof(*values), &err) == ETH_HPP_OK);
}

/* The second step has a scale that overflows, and must change nothing. */
static void overflow(struct eth_hpp_context *context)
{
    static uint16_t before[8];
    uint16_t after[8];
    if (context->step == 1) {
        context->loss_scale.factor = TOO_LARGE;
        read_values(context, before);
    }
    if (context->step != 2)
        return;
    read_values(context, after);
    RANK_CHECK(memcmp(before, after, sizeof(before)) == 0);
    RANK_CHECK(context->loss_scale.factor == TOO_LARGE / 2 && context->updates == 1);
}

static void go_on(struct eth_hpp_context *context)
{
    RANK_CHECK(context->step == GPU_STEPS_MAX && context->updates < GPU_STEPS_MAX);
    RANK_CHECK(context->loss_scale.factor < TOO_LARGE / 2 && context->loss_scale.factor > 1024);
    RANK_CHECK(context->loss_scale.steps == context->updates - 1);
}

static void an_overflow_leaves_the_update_out_on_all_ranks_and_halves_the_scale(void **state)
{
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    struct gpu_run run = gpu_run_make(&gpu_llama, ETH_HPP_FP16, "cuda");
    assert_int_equal(make_folder(NULL), 0);
    run.optimizer = "sharded";
    run.steps = GPU_STEPS_MAX;
    run.folder = folder;
    run.before = overflow;
    gpu_run_well(&run, 3, SHARING, "overflow");
    for (int rank = 0; rank < 3; rank++) {
        const struct eth_hpp_metrics *last = &run.metrics[rank][GPU_STEPS_MAX - 1];
        assert_true(run.metrics[rank][1].overflow && run.metrics[rank][1].gradient_norm == 0);
        assert_true(!last->overflow && last->gradient_norm > 0);
        assert_true(last->loss < run.metrics[rank][1].loss);
    }
    run.steps = 1;
    run.before = go_on;
    gpu_run_well(&run, 3, UNLIKE, "after an overflow");
    assert_int_equal(remove_folder(NULL), 0);
    gpu_run_free(&run);
}

static void the_scale_grows_while_all_fits_and_does_not_fall_below_1(void **state)
{
    (void)state;
    struct eth_hpp_loss_scale scale = eth_hpp_loss_scale_first(ETH_HPP_FP16);
    const double first = scale.factor;
    for (int step = 0; step < 4000; step++)
        eth_hpp_loss_scale_fits(&scale);
    assert_true(scale.factor == 4 * first);
    while (scale.factor > 1)
        assert_true(eth_hpp_loss_scale_overflows(&scale));
    assert_false(eth_hpp_loss_scale_overflows(&scale));
    assert_true(scale.factor == 1);
    assert_true(eth_hpp_loss_scale_first(ETH_HPP_BF16).factor == 1);
}

/* ---- measuring ---- */

static void layers_are_measured_in_bf16(void **state)
{
    struct eth_hpp_kernels *kernels;
    struct eth_hpp_error err = {0};
    (void)state;
    skip_in_valgrind("kernels switch stacks");
    setenv("ETH_HPP_CUDA_MODULE", EMULATED_MODULE, 1);
    assert_int_equal(eth_hpp_kernels_create("cuda", ETH_HPP_BF16, &kernels, &err), ETH_HPP_OK);
    for (int kind = 0; kind < ETH_HPP_KINDS; kind++) {
        struct eth_hpp_transformer_measure *measure;
        double forward_s = 0, backward_s = 0, s_per_parameter = 0;
        assert_int_equal(eth_hpp_transformer_measure_open(kernels, &gpu_gpt, kind, TINY_SEQUENCE, 2,
                                                          &measure, &err),
                         ETH_HPP_OK);
        assert_int_equal(
            eth_hpp_transformer_measure_layer(measure, 2, &forward_s, &backward_s, &err),
            ETH_HPP_OK);
        assert_int_equal(eth_hpp_transformer_measure_optimizer(measure, &s_per_parameter, &err),
                         ETH_HPP_OK);
        assert_true(forward_s > 0 && backward_s > 0 && s_per_parameter > 0);
        eth_hpp_transformer_measure_close(measure);
    }
    eth_hpp_kernels_destroy(kernels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masters_come_back_under_any_plan),
        cmocka_unit_test(a_training_goes_on_in_another_dtype),
        cmocka_unit_test(replicas_that_differ_are_noticed_by_value_and_by_master),
        cmocka_unit_test(an_overflow_leaves_the_update_out_on_all_ranks_and_halves_the_scale),
        cmocka_unit_test(the_scale_grows_while_all_fits_and_does_not_fall_below_1),
        cmocka_unit_test(layers_are_measured_in_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
