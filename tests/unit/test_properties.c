/* What must hold of the plans of any instance, tried on random ones. */
#include "plan_fixtures.h"

#include <math.h>

#include "plan/simulate.h"
#include "plan/solver.h"
#include "tests/bench/tiny.h"
#include "tests/unit/valgrind.h"

/* ETH_HPP_TEST_INSTANCES=N: that many in place of the few that a test has time for; in valgrind,
 * which takes forty times as long, a quarter of these. */
static unsigned instances(unsigned few)
{
    const char *wanted = getenv("ETH_HPP_TEST_INSTANCES");
    if (wanted != NULL)
        return (unsigned)strtoul(wanted, NULL, 10);
    return in_valgrind() ? (few + 3) / 4 : few;
}

static void open_instance(struct tiny *tiny, unsigned seed)
{
    struct eth_hpp_error err = {0};
    int gpus = 1 + (int)(seed * 7 % 12), layers = 1 + (int)(seed * 5 % 14);
    if (!tiny_open(tiny, seed, gpus, layers, 1 + (int)(seed * 11 % 40), &err))
        fail_msg("seed %u: %s", seed, err.text);
}

/* False where nothing fits. */
static bool plan_of(const struct eth_hpp_cluster *cluster, const struct tiny *tiny,
                    enum eth_hpp_effort effort, struct eth_hpp_plan *plan)
{
    struct eth_hpp_error err = {0};
    struct eth_hpp_solver_options options = {.global_batch = tiny->global_batch, .effort = effort};
    enum eth_hpp_status status = eth_hpp_solve(cluster, &tiny->profile, &options, plan, &err);
    if (status != ETH_HPP_OK && status != ETH_HPP_ERR_INFEASIBLE)
        fail_msg("%s", err.text);
    return status == ETH_HPP_OK;
}

/* ---- every plan is whole ---- */

/* Counts each GPU of a plan; `used` is by rank. */
static void count_worker(const struct eth_hpp_cluster *cluster, const struct eth_hpp_worker *worker,
                         int gpus, int *used)
{
    int n = eth_hpp_cluster_find_node(cluster, worker->node);
    assert_true(n >= 0);
    for (int t = 0; t < gpus; t++) {
        assert_in_range(worker->gpus[t], 0, cluster->nodes[n].gpus - 1);
        assert_int_equal(worker->ranks[t], cluster->nodes[n].first_rank + worker->gpus[t]);
        used[worker->ranks[t]]++;
    }
}

static void check_pipeline(const struct eth_hpp_cluster *cluster, const struct tiny *tiny,
                           const struct eth_hpp_pipeline *pipeline, int *used)
{
    int layer = 0, in_flight = INT32_MAX;
    for (int s = 0; s < pipeline->stage_count; s++) {
        const struct eth_hpp_stage *stage = &pipeline->stages[s];
        int samples = 0;
        assert_int_equal(stage->first_layer, layer);
        assert_true(stage->end_layer > layer);
        assert_in_range(stage->in_flight, 1, in_flight);
        for (int w = 0; w < stage->worker_count; w++) {
            assert_true(stage->workers[w].samples >= 1);
            samples += stage->workers[w].samples;
            count_worker(cluster, &stage->workers[w], stage->tensor_parallel, used);
        }
        assert_int_equal(samples, pipeline->micro_batch);
        layer = stage->end_layer;
        in_flight = stage->in_flight;
    }
    assert_int_equal(layer, tiny->profile.layer_count);
}

static void check_whole(const struct eth_hpp_cluster *cluster, const struct tiny *tiny,
                        const struct eth_hpp_plan *plan)
{
    int *used = calloc((size_t)cluster->gpu_count, sizeof(*used)), batch = 0;
    assert_non_null(used);
    for (int p = 0; p < plan->pipeline_count; p++) {
        check_pipeline(cluster, tiny, &plan->pipelines[p], used);
        batch += plan->pipelines[p].micro_batch * plan->pipelines[p].micro_batches;
    }
    assert_int_equal(batch, tiny->global_batch);
    for (int i = 0; i < plan->idle_count; i++)
        for (int g = 0; g < plan->idle[i].gpu_count; g++)
            used[plan->idle[i].ranks[g]]++;
    for (int r = 0; r < cluster->gpu_count; r++)
        assert_int_equal(used[r], 1);
    for (int r = 0; r < plan->predicted.rank_count; r++)
        assert_true(plan->predicted.ranks[r].peak_memory_bytes <=
                    plan->predicted.ranks[r].memory_limit_bytes);
    free(used);
}

static void plans_are_whole_fit_and_take_what_they_say(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < instances(150); seed++) {
        struct tiny tiny;
        struct eth_hpp_plan plan;
        struct eth_hpp_error err = {0};
        struct eth_hpp_simulation s;
        open_instance(&tiny, seed);
        if (plan_of(&tiny.cluster, &tiny, ETH_HPP_EFFORT_QUICK, &plan)) {
            check_whole(&tiny.cluster, &tiny, &plan);
            must(eth_hpp_simulate(&plan, &tiny.cluster, &tiny.profile, false, &s, &err), &err);
            assert_true(s.feasible);
            assert_true(fabs(s.step.step_s / plan.predicted.step_s - 1) < 1e-9);
            assert_true(plan.predicted.lower_bound_s <= s.step.step_s);
            eth_hpp_simulation_free(&s);
            eth_hpp_plan_free(&plan);
        }
        tiny_close(&tiny);
    }
}

/* ---- more is never worse ---- */

enum change { ONE_MORE_GPU, A_FASTER_KIND, MORE_MEMORY, CHANGES };
static const char *const changes[CHANGES] = {"one more GPU", "a faster kind", "more memory"};

static void change(struct tiny *tiny, enum change what, unsigned seed)
{
    struct eth_hpp_error err = {0};
    struct eth_hpp_cluster *cluster = &tiny->cluster;
    struct eth_hpp_node node = cluster->nodes[seed % (unsigned)cluster->node_count];
    int device = node.devices[0];
    if (what == ONE_MORE_GPU) {
        snprintf(node.name, sizeof(node.name), "new");
        node.gpus = 1;
        must(eth_hpp_cluster_add_node(cluster, &node, &err), &err);
    }
    if (what == MORE_MEMORY)
        cluster->devices[device].memory_bytes *= 1.25;
    for (int t = 0; what == A_FASTER_KIND && t < tiny->profile.times_count; t++) {
        struct eth_hpp_times *times = &tiny->profile.times[t];
        if (strcmp(times->device, cluster->devices[device].name) != 0)
            continue;
        for (int i = 0; i < times->points * tiny->profile.kind_count; i++) {
            times->times[i].forward_s *= 0.8;
            times->times[i].backward_s *= 0.8;
        }
    }
}

static void more_never_makes_a_plan_much_slower(void **state)
{
    (void)state;
    int slower = 0;
    for (unsigned seed = 0; seed < instances(8); seed++) {
        struct tiny tiny;
        struct eth_hpp_plan plan;
        open_instance(&tiny, seed);
        bool fits = plan_of(&tiny.cluster, &tiny, ETH_HPP_EFFORT_DEFAULT, &plan);
        tiny_close(&tiny);
        if (!fits)
            continue;
        double before_s = plan.predicted.step_s;
        eth_hpp_plan_free(&plan);
        for (int what = 0; what < CHANGES; what++) {
            open_instance(&tiny, seed);
            change(&tiny, (enum change)what, seed);
            double after_s = INFINITY;
            if (plan_of(&tiny.cluster, &tiny, ETH_HPP_EFFORT_DEFAULT, &plan)) {
                after_s = plan.predicted.step_s;
                eth_hpp_plan_free(&plan);
            }
            if (after_s > 1.03 * before_s) {
                print_error("seed %u: with %s the step takes %g s in place of %g s (%+.1f %%)\n",
                            seed, changes[what], after_s, before_s, 100 * (after_s / before_s - 1));
                slower++;
            }
            tiny_close(&tiny);
        }
    }
    assert_int_equal(slower, 0);
}

/* ---- memory that is just enough ---- */

/* Leaves each kind of GPU what the plan needs of it, and a per cent. */
static void tighten(struct tiny *tiny, const struct eth_hpp_plan *plan)
{
    double peak[8] = {0};
    assert_true(tiny->cluster.device_count <= 8);
    for (int i = 0; i < plan->predicted.rank_count; i++) {
        const struct eth_hpp_predicted_rank *rank = &plan->predicted.ranks[i];
        const struct eth_hpp_node *node = tiny->cluster.nodes;
        while (rank->rank >= node->first_rank + node->gpus)
            node++;
        int device = node->devices[rank->rank - node->first_rank];
        peak[device] = fmax(peak[device], rank->peak_memory_bytes);
    }
    for (int d = 0; d < tiny->cluster.device_count; d++)
        if (peak[d] > 0)
            tiny->cluster.devices[d].memory_bytes = 1.01 * peak[d];
}

/* Never refused; and no longer than it was where all plans of so few GPUs can be tried. */
static void a_plan_that_just_fits_is_found(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < instances(12); seed++) {
        struct tiny tiny;
        struct eth_hpp_plan plan;
        open_instance(&tiny, seed);
        if (plan_of(&tiny.cluster, &tiny, ETH_HPP_EFFORT_DEFAULT, &plan)) {
            double before_s = plan.predicted.step_s;
            tighten(&tiny, &plan);
            eth_hpp_plan_free(&plan);
            if (!plan_of(&tiny.cluster, &tiny, ETH_HPP_EFFORT_DEFAULT, &plan))
                fail_msg("seed %u: refused, although a plan fits", seed);
            if (tiny.cluster.gpu_count <= 8 && plan.predicted.step_s > 1.03 * before_s)
                fail_msg("seed %u: %g s, although a plan of %g s fits", seed, plan.predicted.step_s,
                         before_s);
            eth_hpp_plan_free(&plan);
        }
        tiny_close(&tiny);
    }
}

/* ---- options ---- */

static void check_options(const struct eth_hpp_plan *plan,
                          const struct eth_hpp_solver_options *options)
{
    assert_true(options->max_pipelines == 0 || plan->pipeline_count <= options->max_pipelines);
    assert_false(options->no_sharded && plan->sharded_optimizer);
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++) {
            const struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
            assert_false(options->no_recompute && stage->recompute);
            assert_true(options->max_in_flight == 0 || stage->in_flight <= options->max_in_flight);
            assert_true(options->max_tensor_parallel == 0 ||
                        stage->tensor_parallel <= options->max_tensor_parallel);
        }
}

static void plans_keep_to_the_options(void **state)
{
    static const struct eth_hpp_solver_options choices[] = {
        {.max_pipelines = 1},
        {.no_sharded = true, .no_recompute = true},
        {.max_in_flight = 1, .max_tensor_parallel = 1},
        {.max_pipelines = 2, .max_in_flight = 2, .memory_margin_bytes = 2e7}};
    (void)state;
    for (unsigned seed = 0; seed < instances(8); seed++)
        for (int i = 0; i < 4; i++) {
            struct tiny tiny;
            struct eth_hpp_plan plan;
            struct eth_hpp_error err = {0};
            struct eth_hpp_solver_options options = choices[i];
            open_instance(&tiny, seed);
            options.global_batch = tiny.global_batch;
            options.effort = ETH_HPP_EFFORT_DEFAULT;
            if (eth_hpp_solve(&tiny.cluster, &tiny.profile, &options, &plan, &err) == ETH_HPP_OK) {
                check_whole(&tiny.cluster, &tiny, &plan);
                check_options(&plan, &options);
                for (int r = 0; r < plan.predicted.rank_count; r++)
                    assert_true(plan.predicted.ranks[r].peak_memory_bytes <=
                                plan.predicted.ranks[r].memory_limit_bytes -
                                    options.memory_margin_bytes);
                eth_hpp_plan_free(&plan);
            }
            tiny_close(&tiny);
        }
}

/* ---- the order of nodes ---- */

/* The same cluster with its devices and nodes the other way round, from node `turn` on. */
static void turn_round(const struct eth_hpp_cluster *from, int turn, struct eth_hpp_cluster *to)
{
    struct eth_hpp_error err = {0};
    int nodes = from->node_count, index;
    memset(to, 0, sizeof(*to));
    for (int d = from->device_count - 1; d >= 0; d--) {
        must(eth_hpp_cluster_add_device(to, from->devices[d].name, &index, &err), &err);
        to->devices[index] = from->devices[d];
    }
    for (int i = 0; i < nodes; i++) {
        must(eth_hpp_cluster_add_node(to, &from->nodes[(turn + nodes - i) % nodes], &err), &err);
        for (int g = 0; g < to->nodes[i].gpus; g++)
            to->nodes[i].devices[g] = from->device_count - 1 - to->nodes[i].devices[g];
    }
    for (int l = 0; l < from->link_count; l++) {
        must(eth_hpp_cluster_add_link(to, &from->links[l], &err), &err);
        for (int i = 0; i < to->links[l].from_count; i++)
            to->links[l].from[i] = (turn + nodes - to->links[l].from[i]) % nodes;
        for (int i = 0; i < to->links[l].to_count; i++)
            to->links[l].to[i] = (turn + nodes - to->links[l].to[i]) % nodes;
    }
}

static void assert_same_pipelines(const struct eth_hpp_plan *a, const struct eth_hpp_plan *b)
{
    assert_int_equal(a->pipeline_count, b->pipeline_count);
    assert_int_equal(a->sharded_optimizer, b->sharded_optimizer);
    for (int p = 0; p < a->pipeline_count; p++) {
        const struct eth_hpp_pipeline *x = &a->pipelines[p], *y = &b->pipelines[p];
        assert_int_equal(x->micro_batch, y->micro_batch);
        assert_int_equal(x->micro_batches, y->micro_batches);
        assert_int_equal(x->stage_count, y->stage_count);
        for (int s = 0; s < x->stage_count; s++) {
            const struct eth_hpp_stage *u = &x->stages[s], *v = &y->stages[s];
            assert_int_equal(u->end_layer, v->end_layer);
            assert_int_equal(u->tensor_parallel, v->tensor_parallel);
            assert_int_equal(u->in_flight, v->in_flight);
            assert_int_equal(u->worker_count, v->worker_count);
            for (int w = 0; w < u->worker_count; w++) {
                assert_string_equal(u->workers[w].node, v->workers[w].node);
                assert_int_equal(u->workers[w].gpus[0], v->workers[w].gpus[0]);
                assert_int_equal(u->workers[w].samples, v->workers[w].samples);
            }
        }
    }
}

static void the_order_of_nodes_changes_nothing(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < instances(40); seed++) {
        struct tiny tiny;
        struct eth_hpp_plan plan, other;
        struct eth_hpp_cluster turned;
        open_instance(&tiny, seed);
        if (plan_of(&tiny.cluster, &tiny, ETH_HPP_EFFORT_QUICK, &plan)) {
            for (int turn = 0; turn < tiny.cluster.node_count; turn++) {
                turn_round(&tiny.cluster, turn, &turned);
                assert_true(plan_of(&turned, &tiny, ETH_HPP_EFFORT_QUICK, &other));
                check_whole(&turned, &tiny, &other);
                assert_true(other.predicted.step_s == plan.predicted.step_s);
                assert_true(other.predicted.lower_bound_s == plan.predicted.lower_bound_s);
                assert_same_pipelines(&plan, &other);
                eth_hpp_plan_free(&other);
                eth_hpp_cluster_free(&turned);
            }
            eth_hpp_plan_free(&plan);
        }
        tiny_close(&tiny);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_whole_fit_and_take_what_they_say),
        cmocka_unit_test(more_never_makes_a_plan_much_slower),
        cmocka_unit_test(a_plan_that_just_fits_is_found),
        cmocka_unit_test(plans_keep_to_the_options),
        cmocka_unit_test(the_order_of_nodes_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
