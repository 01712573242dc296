/* What ranks hold, against what planning foresees: every rank of random plans, one after the other
 * in this process, on a transport that only pretends. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "models/transformer.h"
#include "plan/derive.h"
#include "plan/simulate.h"
#include "runtime/context.h"
#include "tests/emulation/agreeing_transport.h"
#include "tests/unit/plan_fixtures.h"

enum { GPUS = 24, LAYERS = 8, SEQUENCE = 64 };

/* ---- a transport whose groups agree at once ---- */

static int nothing;

static const struct eth_hpp_comm_ops pretending = {AGREEING_TRANSPORT, .wait = agreeing_wait};

/* ---- random plans ---- */

static unsigned random_state;

static int pick(int most)
{
    random_state = random_state * 1103515245u + 12345u;
    return (int)(random_state >> 16) % most;
}

/* Writes a stage of one or two workers on the GPUs from *gpu on; returns its length. */
static size_t print_stage(char *text, size_t size, int stage, int depth, int micro_batch, int live,
                          int *gpu)
{
    const int split = micro_batch > 1 ? pick(micro_batch) : 0;
    size_t used =
        (size_t)snprintf(text, size,
                         "%s{\"layers\":[%d,%d],\"in_flight\":%d,\"recompute\":%s,\"workers\":["
                         "{\"node\":\"n\",\"gpus\":[%d],\"samples\":%d}",
                         stage > 0 ? "," : "", stage * LAYERS / depth, (stage + 1) * LAYERS / depth,
                         live, pick(3) == 0 ? "true" : "false", *gpu, micro_batch - split);
    ++*gpu;
    if (split > 0)
        used += (size_t)snprintf(text + used, size - used,
                                 ",{\"node\":\"n\",\"gpus\":[%d],\"samples\":%d}", (*gpu)++, split);
    return used + (size_t)snprintf(text + used, size - used, "]}");
}

static void print_plan(char *text, size_t size, const char *model, enum eth_hpp_dtype dtype)
{
    int gpu = 0, batch = 0;
    char pipelines[12000] = "";
    size_t used = 0;
    for (int p = 0; p < 3; p++) {
        const int depth = 1 + pick(LAYERS), micro_batch = 1 + pick(6), n = 1 + pick(9);
        int live = n + 2;
        if (gpu + depth * 2 > GPUS)
            break;
        batch += micro_batch * n;
        used += (size_t)snprintf(pipelines + used, sizeof(pipelines) - used,
                                 "%s{\"micro_batch\":%d,\"micro_batches\":%d,\"stages\":[",
                                 p > 0 ? "," : "", micro_batch, n);
        for (int s = 0; s < depth; s++) {
            live = live > 1 ? 1 + pick(live) : 1;
            used += print_stage(pipelines + used, sizeof(pipelines) - used, s, depth, micro_batch,
                                live, &gpu);
        }
        used += (size_t)snprintf(pipelines + used, sizeof(pipelines) - used, "]}");
    }
    snprintf(text, size,
             "{\"format\":\"eth-hpp-plan\",\"version\":1,\"model\":{\"name\":\"%s\",\"layers\":%d,"
             "\"sequence_length\":%d},\"schedule\":\"1f1b\",\"dtype\":\"%s\",\"optimizer\":\"%s\","
             "\"global_batch\":%d,\"pipelines\":[%s]}",
             model, LAYERS, SEQUENCE, eth_hpp_dtype_name(dtype), pick(2) ? "sharded" : "replicated",
             batch, pipelines);
}

/* ---- a rank ---- */

static enum eth_hpp_status sample(void *data, int64_t number, int32_t *tokens, int32_t *targets,
                                  struct eth_hpp_error *err)
{
    (void)data;
    (void)number;
    (void)tokens;
    (void)targets;
    (void)err;
    return ETH_HPP_OK;
}

static struct eth_hpp_kernels *kernels;

/* Bytes that a rank holds before its first step. */
static size_t held(const struct eth_hpp_plan *plan, const struct eth_hpp_model *model, int rank)
{
    struct eth_hpp_error err = {0};
    struct eth_hpp_context context = {
        .plan = *plan, .job = {.rank = rank, .size = GPUS}, .kernels = kernels};
    const struct eth_hpp_transformer_options options = {
        .model = model, .seed = 1, .sample = sample};
    struct eth_hpp_transformer *transformer;
    must(eth_hpp_comm_create(&pretending, &nothing, &context.comm, &err), &err);
    context.arena.kernels = kernels;
    eth_hpp_context_fill_assignment(&context);
    must(eth_hpp_transformer_create(&context, &options, &transformer, &err), &err);
    const size_t bytes = context.arena.bytes;
    eth_hpp_transformer_destroy(transformer);
    eth_hpp_comm_close(context.comm);
    eth_hpp_executor_free(&context);
    eth_hpp_parameters_free(&context);
    eth_hpp_arena_free(&context.arena);
    return bytes;
}

/* ---- the tests ---- */

static const char cluster_text[] =
    "{\"format\":\"eth-hpp-cluster\",\"version\":1,"
    "\"devices\":{\"A100-SXM-40GB\":{\"memory_bytes\":4e10,\"reserved_bytes\":1e9}},"
    "\"nodes\":[{\"name\":\"n\",\"device\":\"A100-SXM-40GB\",\"count\":24,"
    "\"intra_bandwidth\":1e11,\"inter_bandwidth\":1e10}]}";

/* Of what was foreseen. It counts hand-over buffers for neighbours on both sides, which the first
 * and the last stage do not have. */
static const double LEAST = 0.8;

/* Every rank of one random plan. */
static void check_plan(const struct eth_hpp_model *model, enum eth_hpp_dtype dtype, unsigned seed)
{
    static char text[16384];
    const struct eth_hpp_derive_options deriving = {.sequence_length = SEQUENCE, .dtype = dtype};
    struct eth_hpp_error err = {0};
    struct eth_hpp_cluster cluster;
    struct eth_hpp_profile profile;
    struct eth_hpp_plan plan;
    struct eth_hpp_simulation simulation;
    random_state = seed;
    print_plan(text, sizeof(text), model->name, dtype);
    must(eth_hpp_cluster_parse("c", cluster_text, strlen(cluster_text), &cluster, &err), &err);
    must(eth_hpp_derive_profile(model, &cluster, &deriving, &profile, &err), &err);
    must(eth_hpp_plan_parse("p", text, strlen(text), &plan, &err), &err);
    must(eth_hpp_plan_complete(&plan, &cluster, &profile, &err), &err);
    must(eth_hpp_simulate(&plan, &cluster, &profile, false, &simulation, &err), &err);
    for (int i = 0; i < simulation.predicted.rank_count; i++) {
        const struct eth_hpp_predicted_rank *rank = &simulation.predicted.ranks[i];
        const double foreseen = rank->peak_memory_bytes - 1e9;
        const double share = (double)held(&plan, model, rank->rank) / foreseen;
        const struct eth_hpp_place place = eth_hpp_plan_find_rank(&plan, rank->rank);
        const struct eth_hpp_stage *stage = &plan.pipelines[place.pipeline].stages[place.stage];
        if (share > 1 || share < LEAST)
            fail_msg("%s, seed %u, rank %d, layers %d to %d: %.3f of %.0f bytes",
                     eth_hpp_dtype_name(dtype), seed, rank->rank, stage->first_layer,
                     stage->end_layer - 1, share, foreseen);
    }
    eth_hpp_simulation_free(&simulation);
    eth_hpp_plan_free(&plan);
    eth_hpp_profile_free(&profile);
    eth_hpp_cluster_free(&cluster);
}

static void check_plans(enum eth_hpp_dtype dtype)
{
    enum { MODELS = 4 };
    struct eth_hpp_model models[MODELS] = {*eth_hpp_preset_find("gpt2-tiny6")};
    models[1] = models[0];
    models[1].vocabulary = 1009; /* sizes that no line of a cache divides */
    models[1].hidden = 60;
    models[1].head_size = 15;
    models[1].inner = 230;
    models[1].tied = false;
    models[2] = models[3] = *eth_hpp_preset_find("llama-tiny");
    models[3].family = ETH_HPP_QWEN2;
    models[3].vocabulary = 1009;
    models[3].hidden = 60; /* fewer than the queries' 128 */
    models[3].heads = 8;
    models[3].inner = 92;
    models[3].tied = true;
    for (unsigned seed = 0; seed < 40; seed++)
        check_plan(&models[seed % MODELS], dtype, seed);
}

static void ranks_hold_what_planning_foresees(void **state)
{
    (void)state;
    check_plans(ETH_HPP_FP32);
}

static void cast_nothing(void *state, size_t count, const void *sums, void *values)
{
    (void)state;
    (void)count;
    (void)sums;
    (void)values;
}

/* Values of 2 bytes, with masters beside them: nothing is computed with before the first step. */
static void ranks_with_masters_hold_what_planning_foresees(void **state)
{
    (void)state;
    const struct eth_hpp_kernels whole = *kernels;
    struct eth_hpp_kernels_ops ops = *kernels->ops;
    ops.cast = cast_nothing;
    kernels->ops = &ops;
    kernels->value_bytes = 2;
    check_plans(ETH_HPP_BF16);
    *kernels = whole;
}

static int open_kernels(void **state)
{
    (void)state;
    return eth_hpp_kernels_create("cpu", ETH_HPP_FP32, &kernels, NULL) == ETH_HPP_OK ? 0 : -1;
}

static int close_kernels(void **state)
{
    (void)state;
    eth_hpp_kernels_destroy(kernels);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_hold_what_planning_foresees),
        cmocka_unit_test(ranks_with_masters_hold_what_planning_foresees)};
    return cmocka_run_group_tests(tests, open_kernels, close_kernels);
}
