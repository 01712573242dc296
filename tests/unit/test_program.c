#include "plan_fixtures.h"

#include "plan/program.h"
#include "plan/schedule.h"

enum { RANKS_MAX = 64 };

struct programs {
    struct eth_hpp_program list[RANKS_MAX];
    int count;
};

static void compile_all(const struct fixture *f, struct programs *programs)
{
    struct eth_hpp_error err = {0};
    double *output_bytes, *gradient_bytes;
    must(eth_hpp_program_sizes(&f->plan, &f->profile, &output_bytes, &gradient_bytes, &err), &err);
    programs->count = f->cluster.gpu_count;
    assert_true(programs->count <= RANKS_MAX);
    for (int r = 0; r < programs->count; r++)
        must(eth_hpp_program_compile(&f->plan, output_bytes, gradient_bytes, r, &programs->list[r],
                                     &err),
             &err);
    free(output_bytes);
    free(gradient_bytes);
}

static void free_all(struct programs *programs)
{
    for (int r = 0; r < programs->count; r++)
        eth_hpp_program_free(&programs->list[r]);
}

/* The list as text: "recv-activation 0 <0 [0,2)" and so on, one a line. */
static void print(const struct eth_hpp_program *program, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < program->count && used < size; i++) {
        const struct eth_hpp_instruction *in = &program->instructions[i];
        used += (size_t)snprintf(text + used, size - used, "%s", eth_hpp_opcode_name(in->opcode));
        if (in->micro_batch >= 0)
            used += (size_t)snprintf(text + used, size - used, " %d", in->micro_batch);
        if (in->peer >= 0)
            used += (size_t)snprintf(text + used, size - used, " rank %d [%d,%d) %g", in->peer,
                                     in->first_sample, in->first_sample + in->samples, in->bytes);
        if (in->block >= 0)
            used +=
                (size_t)snprintf(text + used, size - used, " block %d %g", in->block, in->bytes);
        used += (size_t)snprintf(text + used, size - used, "\n");
    }
}

/* ---- schedules ---- */

static void one_f_one_b_warms_up_and_then_alternates(void **state)
{
    (void)state;
    static const char expected[] = "F0F1F2B0F3B1B2B3", gpipe[] = "F0F1F2F3B0B1B2B3";
    char one[64] = "", two[64] = "";
    for (int i = 0; i < 8; i++) {
        struct eth_hpp_compute a = eth_hpp_schedule_at(4, 3, i), b = eth_hpp_schedule_at(4, 4, i);
        sprintf(one + strlen(one), "%c%d", a.backward ? 'B' : 'F', a.micro_batch);
        sprintf(two + strlen(two), "%c%d", b.backward ? 'B' : 'F', b.micro_batch);
    }
    assert_string_equal(one, expected);
    assert_string_equal(two, gpipe);
}

/* ---- lists ---- */

static void a_mixed_stage_exchanges_samples_by_index(void **state)
{
    (void)state;
    static const char sender[] = "recv-gradient 0 rank 3 [0,3) 3e+06\n"
                                 "recv-gradient 0 rank 4 [3,4) 1e+06\n"
                                 "recv-gradient 1 rank 3 [0,3) 3e+06\n"
                                 "recv-gradient 1 rank 4 [3,4) 1e+06\n"
                                 "forward 0\n"
                                 "send-activation 0 rank 3 [0,3) 3e+06\n"
                                 "send-activation 0 rank 4 [3,4) 1e+06\n"
                                 "forward 1\n"
                                 "send-activation 1 rank 3 [0,3) 3e+06\n"
                                 "send-activation 1 rank 4 [3,4) 1e+06\n"
                                 "backward 0\n"
                                 "sync-block block 0 4.4e+06\n"
                                 "sync-block block 3 4e+06\n"
                                 "backward 1\n"
                                 "reduce-loss\n"
                                 "reduce-norm\n"
                                 "optimizer-step\n";
    static const char receiver[] = "recv-activation 0 rank 2 [0,1) 1e+06\n"
                                   "recv-activation 1 rank 2 [0,1) 1e+06\n"
                                   "forward 0\n"
                                   "backward 0\n"
                                   "send-gradient 0 rank 2 [0,1) 1e+06\n"
                                   "forward 1\n"
                                   "sync-block block 2 8.004e+06\n"
                                   "sync-block block 1 4e+06\n"
                                   "sync-block block 3 4e+06\n"
                                   "backward 1\n"
                                   "send-gradient 1 rank 2 [0,1) 1e+06\n"
                                   "reduce-loss\n"
                                   "reduce-norm\n"
                                   "optimizer-step\n";
    struct fixture f;
    struct programs programs;
    char text[4096];
    fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
    compile_all(&f, &programs);
    print(&programs.list[2], text, sizeof(text));
    assert_string_equal(text, sender);
    print(&programs.list[4], text, sizeof(text));
    assert_string_equal(text, receiver);
    assert_int_equal(programs.list[5].count, 0); /* idle */
    assert_int_equal(programs.list[0].input_buffers, 3);
    assert_int_equal(programs.list[1].input_buffers, 2);
    free_all(&programs);
    fixture_close(&f);
}

/* ---- the proof ---- */

static void verify(const struct fixture *f, const struct programs *programs, const char *message)
{
    struct eth_hpp_error err = {0};
    enum eth_hpp_status status =
        eth_hpp_program_verify(&f->plan, programs->list, programs->count, &err);
    if (message == NULL) {
        must(status, &err);
        return;
    }
    assert_int_equal(status, ETH_HPP_ERR_INTERNAL);
    if (strstr(err.text, message) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", err.text, message);
}

/* Index of the n-th instruction of an opcode in a rank's list. */
static int nth(const struct eth_hpp_program *program, enum eth_hpp_opcode opcode, int n)
{
    for (int i = 0; i < program->count; i++)
        if (program->instructions[i].opcode == opcode && n-- == 0)
            return i;
    fail_msg("no such instruction");
    return -1;
}

static void swap(struct eth_hpp_program *program, int a, int b)
{
    struct eth_hpp_instruction keep = program->instructions[a];
    program->instructions[a] = program->instructions[b];
    program->instructions[b] = keep;
}

/* Puts instruction `from` behind `to`, which stands later. */
static void postpone(struct eth_hpp_program *program, int from, int to)
{
    for (; from < to; from++)
        swap(program, from, from + 1);
}

static void drop(struct eth_hpp_program *program, int at)
{
    program->count--;
    memmove(&program->instructions[at], &program->instructions[at + 1],
            (size_t)(program->count - at) * sizeof(program->instructions[0]));
}

static void a_sharded_optimizer_gathers_the_first_block_first(void **state)
{
    (void)state;
    struct fixture f;
    struct programs programs;
    char text[4096];
    fixture_open(&f, CLUSTER, PROFILE,
                 with(UNLIKE_PLAN, "\"schedule\":\"1f1b\"",
                      "\"schedule\":\"1f1b\",\"optimizer\":\"sharded\""));
    compile_all(&f, &programs);
    print(&programs.list[4], text, sizeof(text));
    assert_non_null(strstr(text, "optimizer-step\ngather-block block 3 4e+06\n"
                                 "gather-block block 1 4e+06\ngather-block block 2 8.004e+06\n"));
    verify(&f, &programs, NULL);
    for (int p = 0; p < programs.count; p++) /* nobody hands out the weights of block 2 */
        for (int i = programs.list[p].count - 1; i >= 0; i--)
            if (programs.list[p].instructions[i].opcode == ETH_HPP_GATHER_BLOCK &&
                programs.list[p].instructions[i].block == 2)
                drop(&programs.list[p], i);
    verify(&f, &programs, "does not gather block 2");
    free_all(&programs);
    fixture_close(&f);
}

static void compiled_lists_are_proved(void **state)
{
    (void)state;
    struct fixture f;
    struct programs programs;
    fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
    compile_all(&f, &programs);
    verify(&f, &programs, NULL);
    free_all(&programs);
    fixture_close(&f);
}

/* Each way to break the lists; the verifier must find it. */
static void broken_lists_are_refused(void **state)
{
    (void)state;
    for (int way = 0; way < 11; way++) {
        struct fixture f;
        struct programs programs;
        const char *message = NULL;
        fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
        compile_all(&f, &programs);
        struct eth_hpp_program *first = &programs.list[0], *second = &programs.list[1],
                               *slow = &programs.list[4];
        switch (way) {
        case 0:
            drop(first, nth(first, ETH_HPP_SEND_ACTIVATION, 5));
            message = "has no send";
            break;
        case 1:
            drop(second, nth(second, ETH_HPP_RECV_ACTIVATION, 5));
            message = "has no receive";
            break;
        case 2:
            first->instructions[nth(first, ETH_HPP_SEND_ACTIVATION, 0)].bytes++;
            message = "meets another receive";
            break;
        case 3: /* sums in another order than the others */
            swap(slow, nth(slow, ETH_HPP_SYNC_BLOCK, 0), nth(slow, ETH_HPP_SYNC_BLOCK, 1));
            message = "out of the order of sums";
            break;
        case 4:
            drop(slow, nth(slow, ETH_HPP_SYNC_BLOCK, 0));
            message = "but 3 belong to it";
            break;
        case 5: /* a gradient is waited for that comes only after the forward behind the wait */
            f.plan.pipelines[0].stages[1].in_flight = 2;
            swap(first, nth(first, ETH_HPP_FORWARD, 1), nth(first, ETH_HPP_BACKWARD, 0));
            swap(second, nth(second, ETH_HPP_FORWARD, 1), nth(second, ETH_HPP_BACKWARD, 0));
            message = "deadlock";
            break;
        case 6: /* receives posted only after what they feed */
            postpone(second, nth(second, ETH_HPP_RECV_ACTIVATION, 5),
                     nth(second, ETH_HPP_FORWARD, 5));
            message = "deadlock";
            break;
        case 7:
            drop(slow, nth(slow, ETH_HPP_FORWARD, 1));
            message = "comes before its forward";
            break;
        case 8: /* more held than planned */
            swap(second, nth(second, ETH_HPP_FORWARD, 1), nth(second, ETH_HPP_BACKWARD, 0));
            message = "more micro-batches than the stage's in_flight";
            break;
        case 9:
            slow->instructions[nth(slow, ETH_HPP_SYNC_BLOCK, 0)].block = 0;
            message = "order of sums";
            break;
        case 10: /* no buffer for a receive until its own backward is done */
            second->input_buffers = 0;
            message = "deadlock";
            break;
        }
        verify(&f, &programs, message);
        free_all(&programs);
        fixture_close(&f);
    }
}

/* Lets one queue of a program use the communicator or the resources of another. */
static void share(struct eth_hpp_program *program, enum eth_hpp_opcode one,
                  enum eth_hpp_opcode other)
{
    int from = program->instructions[nth(program, one, 0)].queue;
    program->queues[from].shares = program->instructions[nth(program, other, 0)].queue;
}

/* Each way of sharing communicators, resources or streams that is known to hang; lists that stand
 * as compiled otherwise. */
static void sharing_that_deadlocks_is_refused(void **state)
{
    (void)state;
    for (int way = 0; way < 6; way++) {
        struct fixture f;
        struct programs programs;
        const char *message = "deadlock";
        fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
        compile_all(&f, &programs);
        struct eth_hpp_program *first = &programs.list[0], *second = &programs.list[1];
        switch (way) {
        case 0: /* one communicator between two neighbours for both directions */
            share(first, ETH_HPP_RECV_GRADIENT, ETH_HPP_SEND_ACTIVATION);
            share(second, ETH_HPP_SEND_GRADIENT, ETH_HPP_RECV_ACTIVATION);
            break;
        case 1: /* one for each direction, but split with shared resources on one side */
            share(first, ETH_HPP_RECV_GRADIENT, ETH_HPP_SEND_ACTIVATION);
            break;
        case 2: /* the last gradient behind sums that wait for the neighbour's last backward */
            share(second, ETH_HPP_SEND_GRADIENT, ETH_HPP_SYNC_BLOCK);
            break;
        case 3: /* receives posted ahead on the stream of the kernels that they wait for */
            share(first, ETH_HPP_RECV_GRADIENT, ETH_HPP_FORWARD);
            break;
        case 4: /* sums on the stream of the backward that they run beside */
            share(first, ETH_HPP_SYNC_BLOCK, ETH_HPP_BACKWARD);
            break;
        case 5: /* sums behind gradients that were received before */
            share(first, ETH_HPP_RECV_GRADIENT, ETH_HPP_SYNC_BLOCK);
            message = NULL;
            break;
        }
        verify(&f, &programs, message);
        free_all(&programs);
        fixture_close(&f);
    }
}

static void a_missing_rank_is_found(void **state)
{
    (void)state;
    struct fixture f;
    struct programs programs;
    struct eth_hpp_error err = {0};
    fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
    compile_all(&f, &programs);
    assert_int_equal(eth_hpp_program_verify(&f.plan, programs.list, 4, &err), ETH_HPP_ERR_INTERNAL);
    assert_non_null(strstr(err.text, "4 instruction lists for 5 ranks"));
    free_all(&programs);
    fixture_close(&f);
}

/* ---- random plans ---- */

static unsigned random_state;

static int pick(int most)
{
    random_state = random_state * 1103515245u + 12345u;
    return (int)(random_state >> 16) % most;
}

/* A random valid plan for one big node of `gpus` fast GPUs, as text. */
static void random_plan(char *text, size_t size, int gpus)
{
    int gpu = 0, batch = 0;
    char pipelines[12000] = "";
    size_t used = 0;
    for (int p = 0; gpu < gpus && p < 3; p++) {
        int depth = 1 + pick(4), micro_batch = 1 + pick(4), n = 1 + pick(40), live = n + 2;
        if (gpu + depth * 2 > gpus)
            break;
        batch += micro_batch * n;
        used += (size_t)snprintf(pipelines + used, sizeof(pipelines) - used,
                                 "%s{\"micro_batch\":%d,\"micro_batches\":%d,\"stages\":[",
                                 p > 0 ? "," : "", micro_batch, n);
        for (int s = 0; s < depth; s++) {
            int first = s * 6 / depth, end = (s + 1) * 6 / depth;
            int split = micro_batch > 1 ? pick(micro_batch) : 0;
            live = live > 1 ? 1 + pick(live) : 1;
            used += (size_t)snprintf(pipelines + used, sizeof(pipelines) - used,
                                     "%s{\"layers\":[%d,%d],\"in_flight\":%d,\"workers\":["
                                     "{\"node\":\"n\",\"gpus\":[%d],\"samples\":%d}",
                                     s > 0 ? "," : "", first, end, live, gpu, micro_batch - split);
            gpu++;
            if (split > 0)
                used += (size_t)snprintf(pipelines + used, sizeof(pipelines) - used,
                                         ",{\"node\":\"n\",\"gpus\":[%d],\"samples\":%d}", gpu++,
                                         split);
            used += (size_t)snprintf(pipelines + used, sizeof(pipelines) - used, "]}");
        }
        used += (size_t)snprintf(pipelines + used, sizeof(pipelines) - used, "]}");
    }
    snprintf(text, size, PLAN_HEAD "\"optimizer\":\"%s\",\"global_batch\":%d,\"pipelines\":[%s]}",
             pick(2) ? "sharded" : "replicated", batch, pipelines);
}

static void random_plans_compile_to_lists_that_are_proved(void **state)
{
    (void)state;
    static const char cluster[] =
        "{\"format\":\"eth-hpp-cluster\",\"version\":1,"
        "\"devices\":{\"fast\":{\"memory_bytes\":4e10}},\"nodes\":[{\"name\":\"n\","
        "\"device\":\"fast\",\"count\":24,\"intra_bandwidth\":1e11,\"inter_bandwidth\":1e10}]}";
    static char text[16384];
    for (unsigned seed = 0; seed < 200; seed++) {
        struct fixture f;
        struct programs programs;
        random_state = seed;
        random_plan(text, sizeof(text), 24);
        fixture_open(&f, cluster, PROFILE, text);
        compile_all(&f, &programs);
        verify(&f, &programs, NULL);
        free_all(&programs);
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_f_one_b_warms_up_and_then_alternates),
        cmocka_unit_test(a_mixed_stage_exchanges_samples_by_index),
        cmocka_unit_test(a_sharded_optimizer_gathers_the_first_block_first),
        cmocka_unit_test(compiled_lists_are_proved),
        cmocka_unit_test(broken_lists_are_refused),
        cmocka_unit_test(sharing_that_deadlocks_is_refused),
        cmocka_unit_test(a_missing_rank_is_found),
        cmocka_unit_test(random_plans_compile_to_lists_that_are_proved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
