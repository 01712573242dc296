/* The solver and its bound against the best plan of tiny instances, which is found by trying all.
 */
#include "plan_fixtures.h"

#include <math.h>

#include "plan/simulate.h"
#include "plan/solver.h"
#include "tests/bench/exhaustive.h"
#include "tests/bench/tiny.h"
#include "tests/bench/unlay.h"

/* ETH_HPP_TEST_INSTANCES=N: that many in place of the few that a test has time for. */
static unsigned instances(unsigned few)
{
    const char *wanted = getenv("ETH_HPP_TEST_INSTANCES");
    return wanted != NULL ? (unsigned)strtoul(wanted, NULL, 10) : few;
}

/* With networks so many times as slow as the instance's. */
static void open_tiny(struct tiny *tiny, struct eth_hpp_cost *cost, unsigned seed, double slower)
{
    struct eth_hpp_error err = {0};
    if (!tiny_open(tiny, seed, 2 + (int)(seed % 3), 1 + (int)(seed % 5), 1 + (int)(seed % 8), &err))
        fail_msg("seed %u: %s", seed, err.text);
    for (int n = 0; n < tiny->cluster.node_count; n++)
        tiny->cluster.nodes[n].inter_bandwidth /= slower;
    must(eth_hpp_cost_init(cost, &tiny->cluster, &tiny->profile, &err), &err);
}

struct compared {
    double solved_s; /* INFINITY: the solver found no plan */
    double bound_s, best_s;
};

/* A tiny instance's plan of the solver beside the best one that there is. */
static struct compared compare(unsigned seed, double slower, enum eth_hpp_effort effort)
{
    struct tiny tiny;
    struct eth_hpp_cost cost = {0};
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan plan = {0};
    struct eth_hpp_layout best = {0};
    struct compared found = {.solved_s = INFINITY};
    open_tiny(&tiny, &cost, seed, slower);
    struct eth_hpp_solver_options options = {.global_batch = tiny.global_batch, .effort = effort};
    enum eth_hpp_status status = eth_hpp_solve(&tiny.cluster, &tiny.profile, &options, &plan, &err);
    if (status == ETH_HPP_OK)
        found.solved_s = plan.predicted.step_s;
    assert_true(status == ETH_HPP_OK || status == ETH_HPP_ERR_INFEASIBLE);
    found.bound_s = plan.predicted.lower_bound_s;
    assert_true(exhaustive_search(&cost, tiny.global_batch, found.solved_s, &best, &found.best_s));
    eth_hpp_layout_free(&best);
    eth_hpp_plan_free(&plan);
    eth_hpp_cost_free(&cost);
    tiny_close(&tiny);
    return found;
}

static void check_bound(double slower)
{
    for (unsigned seed = 1000; seed < 1000 + instances(40); seed++) {
        struct compared found = compare(seed, slower, ETH_HPP_EFFORT_QUICK);
        if (found.best_s < found.bound_s)
            fail_msg("seed %u, networks %g times as slow: a plan takes %g s, the bound is %g s",
                     seed, slower, found.best_s, found.bound_s);
    }
}

static void no_plan_beats_the_bound(void **state)
{
    (void)state;
    check_bound(1);
}

static void no_plan_over_slow_networks_beats_the_bound(void **state)
{
    (void)state;
    check_bound(10);
    check_bound(100);
}

static void the_default_effort_finds_the_best_plan(void **state)
{
    (void)state;
    for (unsigned seed = 2000; seed < 2000 + instances(40); seed++) {
        struct compared found = compare(seed, 1, ETH_HPP_EFFORT_DEFAULT);
        if (found.solved_s > 1.005 * found.best_s)
            fail_msg("seed %u: a plan takes %g s, the solver's %g s", seed, found.best_s,
                     found.solved_s);
    }
}

/* The reference is only worth something if it leaves nothing out: started without any knowledge it
 * must come to the same step as when it starts from that step, and its plan must be one. */
static void the_best_plan_is_found_whatever_is_known(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 12; seed++) {
        struct tiny tiny;
        struct eth_hpp_cost cost = {0};
        struct eth_hpp_error err = {0};
        struct eth_hpp_layout best = {0}, again = {0};
        struct eth_hpp_plan plan = {0};
        double best_s = 0, again_s = 0;
        if (!tiny_open(&tiny, seed, 2 + (int)(seed % 2), 1 + (int)(seed % 4), 1 + (int)(seed % 5),
                       &err))
            fail_msg("seed %u: %s", seed, err.text);
        must(eth_hpp_cost_init(&cost, &tiny.cluster, &tiny.profile, &err), &err);
        assert_true(exhaustive_search(&cost, tiny.global_batch, INFINITY, &best, &best_s));
        if (!isinf(best_s)) {
            must(unlay(&best, &tiny.cluster, &tiny.profile, &plan, &err), &err);
            assert_true(fabs(plan.predicted.step_s / best_s - 1) < 1e-9);
            assert_true(
                exhaustive_search(&cost, tiny.global_batch, best_s * 1.001, &again, &again_s));
            assert_true(fabs(again_s / best_s - 1) < 1e-8);
        }
        eth_hpp_plan_free(&plan);
        eth_hpp_layout_free(&again);
        eth_hpp_layout_free(&best);
        eth_hpp_cost_free(&cost);
        tiny_close(&tiny);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_plan_is_found_whatever_is_known),
        cmocka_unit_test(no_plan_beats_the_bound),
        cmocka_unit_test(no_plan_over_slow_networks_beats_the_bound),
        cmocka_unit_test(the_default_effort_finds_the_best_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
