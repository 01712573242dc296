/* What a rank of two unlike pipelines does when: on a transport that only counts, and on a device
 * that may hang. */
#include "tests/unit/plan_fixtures.h"

#include "runtime/context.h"
#include "tests/emulation/agreeing_transport.h"

enum { LAYERS = 6, MICRO_BATCHES = 2 };

/* Rank 0 has all layers; ranks 1 and 2 have two and four of them. */
static const char plan_text[] =
    PLAN_HEAD "\"global_batch\":4,\"pipelines\":["
              "{\"micro_batch\":1,\"micro_batches\":2,\"stages\":["
              "{\"layers\":[0,6],\"workers\":[{\"node\":\"a1\",\"gpus\":[0],\"samples\":1}]}]},"
              "{\"micro_batch\":1,\"micro_batches\":2,\"stages\":["
              "{\"layers\":[0,2],\"workers\":[{\"node\":\"a1\",\"gpus\":[1],\"samples\":1}]},"
              "{\"layers\":[2,6],\"workers\":[{\"node\":\"a2\",\"gpus\":[0],\"samples\":1}]}]}]}";

static struct transport {
    int sums;  /* started */
    int waits; /* for sums, before the backward was over */
    bool in_backward;
} transport;

static enum eth_hpp_status start_sum(void *group, float *data, size_t count,
                                     enum eth_hpp_sum_half halves, struct eth_hpp_request **request,
                                     struct eth_hpp_error *err)
{
    (void)data;
    (void)count;
    (void)halves;
    (void)err;
    transport.sums++;
    *request = group;
    return ETH_HPP_OK;
}

static enum eth_hpp_status count_wait(struct eth_hpp_request *request, double timeout_s,
                                      struct eth_hpp_error *err)
{
    transport.waits += transport.in_backward;
    return agreeing_wait(request, timeout_s, err);
}

static const struct eth_hpp_comm_ops counting = {AGREEING_TRANSPORT, .group_sum = start_sum,
                                                 .wait = count_wait};

/* ---- the model ---- */

static int started[MICRO_BATCHES][LAYERS]; /* sums, when the layer was done */

static enum eth_hpp_status forward(void *user, const struct eth_hpp_micro_batch *micro_batch,
                                   const void *input, void *output, struct eth_hpp_error *err)
{
    (void)user;
    (void)input;
    (void)output;
    (void)err;
    micro_batch->loss[1] += 1;
    return ETH_HPP_OK;
}

static enum eth_hpp_status backward(void *user, const struct eth_hpp_micro_batch *micro_batch,
                                    const void *input, const void *output_gradient,
                                    void *input_gradient, struct eth_hpp_error *err)
{
    (void)input;
    (void)output_gradient;
    (void)input_gradient;
    (void)err;
    transport.in_backward = true;
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        eth_hpp_layer_done(user, layer);
        started[micro_batch->index][layer] = transport.sums;
    }
    transport.in_backward = false;
    return ETH_HPP_OK;
}

static enum eth_hpp_status sample(void *user, int64_t number, int32_t *tokens, int32_t *targets,
                                  struct eth_hpp_error *err)
{
    (void)user;
    (void)number;
    memset(tokens, 0, sizeof(*tokens) * 64);
    memset(targets, 0, sizeof(*targets) * 64);
    (void)err;
    return ETH_HPP_OK;
}

/* ---- a device that hangs ---- */

/* The CPU's kernels on a device that gets to `never` no more, nor to what was recorded after it. */
static struct {
    struct eth_hpp_kernels_ops ops;
    const struct eth_hpp_kernels_ops *healthy;
    struct eth_hpp_event *never;
    bool hangs;
} hanging;

static void record_and_hang(void *state, struct eth_hpp_event *event, int stream)
{
    hanging.healthy->event_record(state, event, stream);
    hanging.hangs = hanging.hangs || event == hanging.never;
}

static enum eth_hpp_status test_if_before(void *state, struct eth_hpp_event *event, bool *done,
                                          struct eth_hpp_error *err)
{
    (void)err;
    *done = !hanging.hangs || hanging.healthy->event_seconds(state, event, hanging.never) > 0;
    return ETH_HPP_OK;
}

static void hang_in(struct eth_hpp_context *context, enum eth_hpp_opcode opcode, int micro_batch)
{
    const struct eth_hpp_executor *executor = &context->executor;
    hanging.healthy = context->kernels->ops;
    hanging.ops = *hanging.healthy;
    hanging.ops.event_record = record_and_hang;
    hanging.ops.event_test = test_if_before;
    hanging.hangs = false;
    context->kernels->ops = &hanging.ops;
    for (int i = 0; i < executor->program.count; i++)
        if (executor->program.instructions[i].opcode == opcode &&
            executor->program.instructions[i].micro_batch == micro_batch)
            hanging.never = executor->spans[i].to;
}

enum { NEVER = -2 }; /* where a device hangs that does not */

static enum eth_hpp_status run_step(const struct eth_hpp_plan *plan, enum eth_hpp_opcode hanging_in,
                                    int micro_batch, struct eth_hpp_error *outcome)
{
    static const int ranks[] = {0, 1, 2};
    const struct eth_hpp_stage_ops ops = {
        .forward = forward, .backward = backward, .sample = sample};
    const struct eth_hpp_optimizer_options optimizer = {.beta1 = 0.9, .beta2 = 0.9, .epsilon = 1};
    struct eth_hpp_tensor tensors[LAYERS + 1];
    struct eth_hpp_error err = {0};
    struct eth_hpp_context context = {
        .plan = *plan, .job = {.size = 6}, .timeout_s = 0.05, .loss_scale = {.factor = 1}};
    static const char *const names[LAYERS] = {"0", "1", "2", "3", "4", "5"};
    for (int layer = 0; layer < LAYERS; layer++)
        tensors[layer] = (struct eth_hpp_tensor){.name = names[layer], .layer = layer, .count = 16};
    tensors[LAYERS] =
        (struct eth_hpp_tensor){.name = "tied", .tied = "token-embedding", .count = 16};
    must(eth_hpp_kernels_create("cpu", ETH_HPP_FP32, &context.kernels, &err), &err);
    must(eth_hpp_comm_create(&counting, &transport, &context.comm, &err), &err);
    must(eth_hpp_comm_group_open(context.comm, ranks, 3, 99, &context.active, &err), &err);
    context.arena.kernels = context.kernels;
    eth_hpp_context_fill_assignment(&context);
    must(eth_hpp_register(&context, tensors, LAYERS + 1, 0, 0, &ops, &context, &err), &err);
    const struct eth_hpp_kernels_ops *healthy = context.kernels->ops;
    if (micro_batch != NEVER)
        hang_in(&context, hanging_in, micro_batch);
    enum eth_hpp_status status = eth_hpp_executor_run(&context, &optimizer, NULL, outcome);
    context.kernels->ops = healthy;
    eth_hpp_comm_close(context.comm);
    eth_hpp_executor_free(&context);
    eth_hpp_parameters_free(&context);
    eth_hpp_arena_free(&context.arena);
    eth_hpp_kernels_destroy(context.kernels);
    return status;
}

static void a_blocks_sum_starts_when_the_last_backward_has_passed_its_layers(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_error err = {0};
    fixture_open(&f, CLUSTER, PROFILE, plan_text);
    transport = (struct transport){0};
    must(run_step(&f.plan, ETH_HPP_FORWARD, NEVER, &err), &err);
    for (int layer = 0; layer < LAYERS; layer++) {
        assert_int_equal(started[0][layer], 0); /* more gradients are to come */
        /* Layers 2 to 5; then layers 0 and 1, and the tensor that the first layer shares. */
        assert_int_equal(started[1][layer], layer > 2 ? 0 : layer > 0 ? 1 : 3);
    }
    assert_int_equal(transport.sums, 3);
    assert_int_equal(transport.waits, 0);
    fixture_close(&f);
}

static void a_device_that_hangs_is_named_with_the_instruction(void **state)
{
    (void)state;
    struct fixture f;
    static const struct {
        enum eth_hpp_opcode opcode;
        int micro_batch;
        const char *text;
    } cases[] = {
        {ETH_HPP_FORWARD, 1, "step 0, micro-batch 1 of pipeline 0, forward: the device"},
        {ETH_HPP_BACKWARD, 0, "step 0, micro-batch 0 of pipeline 0, backward: the device"},
        {ETH_HPP_OPTIMIZER_STEP, -1, "step 0, optimizer-step: the device"},
    };
    fixture_open(&f, CLUSTER, PROFILE, plan_text);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_error err = {0};
        assert_int_equal(run_step(&f.plan, cases[i].opcode, cases[i].micro_batch, &err),
                         ETH_HPP_ERR_TIMEOUT);
        if (strncmp(err.text, cases[i].text, strlen(cases[i].text)) != 0)
            fail_msg("%s", err.text);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_blocks_sum_starts_when_the_last_backward_has_passed_its_layers),
        cmocka_unit_test(a_device_that_hangs_is_named_with_the_instruction)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
