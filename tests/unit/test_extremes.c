/* Plans at the edges of what can be asked for. */
#include "plan_fixtures.h"

#include <math.h>

#include "plan/simulate.h"
#include "plan/solver.h"

/* One kind of GPU and one of layer unless the test says otherwise; all figures made up. */
struct edge {
    int nodes, gpus_per_node;
    double fast_s,
        slow_s; /* forward of a sample; slow_s > 0: half of the nodes are of a slow kind */
    double inter_bandwidth, slow_inter_bandwidth;
    int layers, batch;
};

static void open_edge(struct fixture *f, const struct edge *e)
{
    static char cluster[2048], profile[4096];
    size_t used = (size_t)snprintf(cluster, sizeof(cluster),
                                   "{\"format\":\"eth-hpp-cluster\",\"version\":1,\"devices\":{"
                                   "\"fast\":{\"memory_bytes\":4e10},"
                                   "\"slow\":{\"memory_bytes\":4e10}},\"nodes\":[");
    for (int kind = 0; kind < (e->slow_s > 0 ? 2 : 1); kind++)
        used += (size_t)snprintf(
            cluster + used, sizeof(cluster) - used,
            "%s{\"name\":\"%s[1-%d]\",\"device\":\"%s\",\"count\":%d,\"intra_bandwidth\":1e11,"
            "\"inter_bandwidth\":%g}",
            kind > 0 ? "," : "", kind > 0 ? "s" : "f", e->nodes, kind > 0 ? "slow" : "fast",
            e->gpus_per_node, kind > 0 ? e->slow_inter_bandwidth : e->inter_bandwidth);
    snprintf(cluster + used, sizeof(cluster) - used, "]}");
    used = (size_t)snprintf(
        profile, sizeof(profile),
        "{\"format\":\"eth-hpp-profile\",\"version\":1,\"model\":\"edge\","
        "\"sequence_length\":8,\"dtype\":\"fp32\",\"layers\":[{\"kind\":\"decoder\","
        "\"repeat\":%d,\"parameters\":1e6,\"gradient_bytes\":4e6,\"output_bytes\":1e5}],"
        "\"memory\":{\"1\":{\"decoder\":{\"state_bytes\":1.6e8,\"optimizer_bytes\":8e7,"
        "\"saved_bytes\":1e8}}},\"times\":{",
        e->layers);
    for (int kind = 0; kind < 2; kind++) {
        double s = kind > 0 && e->slow_s > 0 ? e->slow_s : e->fast_s;
        used += (size_t)snprintf(profile + used, sizeof(profile) - used,
                                 "%s\"%s\":{\"1\":{\"1\":{\"decoder\":[%g,%g]},"
                                 "\"4\":{\"decoder\":[%g,%g]}}}",
                                 kind > 0 ? "," : "", kind > 0 ? "slow" : "fast", s, 2 * s, 4 * s,
                                 8 * s);
    }
    snprintf(profile + used, sizeof(profile) - used, "}}");
    fixture_open(f, cluster, profile, NULL);
}

/* Plans and checks that the plan is one: it passes the strict reader, fits, and takes what it says.
 */
static void plan_edge(struct fixture *f, const struct edge *e, enum eth_hpp_effort effort)
{
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan back;
    struct eth_hpp_simulation s;
    char *text;
    struct eth_hpp_solver_options options = {.global_batch = e->batch, .effort = effort};
    open_edge(f, e);
    must(eth_hpp_solve(&f->cluster, &f->profile, &options, &f->plan, &err), &err);
    must(eth_hpp_plan_print(&f->plan, &text, &err), &err);
    must(eth_hpp_plan_parse("solved", text, strlen(text), &back, &err), &err);
    must(eth_hpp_plan_complete(&back, &f->cluster, &f->profile, &err), &err);
    must(eth_hpp_simulate(&back, &f->cluster, &f->profile, false, &s, &err), &err);
    assert_true(s.feasible);
    assert_true(fabs(s.step.step_s / f->plan.predicted.step_s - 1) < 1e-9);
    assert_true(f->plan.predicted.lower_bound_s > 0 &&
                f->plan.predicted.lower_bound_s <= s.step.step_s);
    eth_hpp_simulation_free(&s);
    eth_hpp_plan_free(&back);
    free(text);
}

static int idle_gpus(const struct eth_hpp_plan *plan, const char *prefix)
{
    int count = 0;
    for (int i = 0; i < plan->idle_count; i++)
        if (strncmp(plan->idle[i].node, prefix, strlen(prefix)) == 0)
            count += plan->idle[i].gpu_count;
    return count;
}

static void one_gpu_runs_everything(void **state)
{
    (void)state;
    static const struct edge e = {1, 1, 1e-3, 0, 1e10, 0, 6, 8};
    struct fixture f;
    plan_edge(&f, &e, ETH_HPP_EFFORT_DEFAULT);
    assert_int_equal(f.plan.pipeline_count, 1);
    assert_int_equal(f.plan.pipelines[0].stage_count, 1);
    assert_true(f.plan.predicted.gap < 1e-3); /* nothing is lost, and the bound knows it */
    fixture_close(&f);
}

static void one_layer_is_not_cut(void **state)
{
    (void)state;
    static const struct edge e = {2, 4, 1e-2, 0, 1e10, 0, 1, 64};
    struct fixture f;
    plan_edge(&f, &e, ETH_HPP_EFFORT_DEFAULT);
    for (int p = 0; p < f.plan.pipeline_count; p++)
        assert_int_equal(f.plan.pipelines[p].stage_count, 1);
    assert_int_equal(idle_gpus(&f.plan, ""), 0);
    fixture_close(&f);
}

static void a_batch_of_one_sample_goes_through(void **state)
{
    (void)state;
    static const struct edge e = {4, 8, 1e-3, 0, 1e10, 0, 12, 1};
    struct fixture f;
    plan_edge(&f, &e, ETH_HPP_EFFORT_DEFAULT);
    assert_int_equal(f.plan.pipeline_count, 1);
    assert_int_equal(f.plan.pipelines[0].micro_batches, 1);
    assert_true(f.plan.predicted.gap < 1e-2);
    fixture_close(&f);
}

/* A sample a GPU: pipelines of one micro-batch side by side, or GPUs that share one. */
static void a_sample_for_each_gpu_is_dealt(void **state)
{
    (void)state;
    static const struct edge e = {2, 4, 1e-1, 0, 1e11, 0, 4, 8};
    struct fixture f;
    plan_edge(&f, &e, ETH_HPP_EFFORT_DEFAULT);
    assert_int_equal(idle_gpus(&f.plan, ""), 0);
    for (int p = 0; p < f.plan.pipeline_count; p++)
        assert_int_equal(f.plan.pipelines[p].micro_batches, 1);
    assert_true(f.plan.predicted.gap < 1e-2);
    fixture_close(&f);
}

static void hundreds_of_layers_are_cut(void **state)
{
    (void)state;
    static const struct edge e = {4, 4, 1e-3, 2e-3, 1e11, 1e11, 500, 64};
    struct fixture f;
    plan_edge(&f, &e, ETH_HPP_EFFORT_QUICK);
    assert_int_equal(idle_gpus(&f.plan, ""), 0);
    assert_true(f.plan.predicted.gap < 0.5);
    fixture_close(&f);
}

static void a_kind_a_hundred_times_slower_stays_idle_with_the_reason(void **state)
{
    (void)state;
    static const struct edge e = {2, 2, 1e-3, 1e-1, 1e11, 1e11, 4, 16};
    struct fixture f;
    plan_edge(&f, &e, ETH_HPP_EFFORT_DEFAULT);
    assert_int_equal(idle_gpus(&f.plan, "f"), 0);
    assert_int_equal(idle_gpus(&f.plan, "s"), 4);
    for (int i = 0; i < f.plan.idle_count; i++)
        if (strstr(f.plan.idle[i].why, "takes it") == NULL)
            fail_msg("%s", f.plan.idle[i].why);
    fixture_close(&f);
}

/* Nodes behind a link a thousand times slower are no help, and do no harm either. */
static void links_a_thousand_times_apart_do_no_harm(void **state)
{
    (void)state;
    static const struct edge without = {2, 2, 1e-3, 0, 1e10, 0, 8, 64};
    static const struct edge with_slow = {2, 2, 1e-3, 1e-3, 1e10, 1e7, 8, 64};
    struct fixture f;
    plan_edge(&f, &without, ETH_HPP_EFFORT_DEFAULT);
    double alone_s = f.plan.predicted.step_s;
    fixture_close(&f);
    plan_edge(&f, &with_slow, ETH_HPP_EFFORT_DEFAULT);
    assert_true(f.plan.predicted.step_s <= 1.0001 * alone_s);
    fixture_close(&f);
}

static void the_largest_batch_is_planned(void **state)
{
    (void)state;
    static const struct edge e = {2, 4, 1e-3, 3e-3, 1e10, 1e10, 24, 1 << 24};
    struct fixture f;
    plan_edge(&f, &e, ETH_HPP_EFFORT_DEFAULT);
    assert_int_equal(idle_gpus(&f.plan, ""), 0);
    assert_true(f.plan.predicted.gap < 1e-2);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_gpu_runs_everything),
        cmocka_unit_test(one_layer_is_not_cut),
        cmocka_unit_test(a_batch_of_one_sample_goes_through),
        cmocka_unit_test(the_largest_batch_is_planned),
        cmocka_unit_test(a_sample_for_each_gpu_is_dealt),
        cmocka_unit_test(hundreds_of_layers_are_cut),
        cmocka_unit_test(a_kind_a_hundred_times_slower_stays_idle_with_the_reason),
        cmocka_unit_test(links_a_thousand_times_apart_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
