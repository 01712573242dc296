/* What is said to bound a step, against cases worked out by hand. */
#include "plan_fixtures.h"

#include <math.h>

#include "plan/explain.h"

static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-5 * fabs(b) + 1e-9)
        fail_msg("%.12g is not %.12g", a, b);
}

static void explain(const struct fixture *f, struct eth_hpp_explanation *explanation)
{
    struct eth_hpp_error err = {0};
    must(eth_hpp_explain_shares(&f->plan, &f->cluster, &f->profile, explanation, &err), &err);
}

static const struct eth_hpp_explained_resource *find(const struct eth_hpp_explanation *e,
                                                     enum eth_hpp_explained_kind kind, int index)
{
    for (int r = 0; r < e->resource_count; r++)
        if (e->resources[r].kind == kind && e->resources[r].index == index)
            return &e->resources[r];
    fail_msg("no such resource");
    return NULL;
}

static double share(const struct eth_hpp_explanation *e, enum eth_hpp_explained_kind kind,
                    int index)
{
    return find(e, kind, index)->share;
}

static double sum_of_shares(const struct eth_hpp_explanation *e)
{
    double sum = e->several_share;
    for (int r = 0; r < e->resource_count; r++)
        sum += e->resources[r].share;
    return sum;
}

#define ONE_GPU                                                                                    \
    PLAN_HEAD "\"global_batch\":6,\"pipelines\":[{\"micro_batch\":2,\"micro_batches\":3,"          \
              "\"stages\":[{\"layers\":[0,6],\"workers\":["                                        \
              "{\"node\":\"a1\",\"gpus\":[0],\"samples\":2}]}]}]}"

static void one_gpu_waits_for_itself(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_explanation e;
    fixture_open(&f, CLUSTER, PROFILE, ONE_GPU);
    explain(&f, &e);
    double compute_s = 6 * 15.2e-3, optimizer_s = 5.101e6 * 1e-10;
    assert_near(e.step_s, compute_s + optimizer_s);
    assert_int_equal(e.resources[0].kind, ETH_HPP_EXPLAINED_COMPUTE);
    assert_near(e.resources[0].share, compute_s / e.step_s);
    assert_near(e.resources[0].twice_s, compute_s / 2 + optimizer_s);
    assert_near(share(&e, ETH_HPP_EXPLAINED_OPTIMIZER, -1), optimizer_s / e.step_s);
    assert_near(e.several_share, 0);
    assert_near(e.fill_drain_s, 0);
    assert_near(e.exposed_sync_s, 0);
    eth_hpp_explanation_free(&e);
    fixture_close(&f);
}

#define TWO_STAGES                                                                                 \
    PLAN_HEAD "\"global_batch\":3,\"pipelines\":[{\"micro_batch\":1,\"micro_batches\":3,"          \
              "\"stages\":[{\"layers\":[0,3],\"workers\":["                                        \
              "{\"node\":\"a1\",\"gpus\":[0],\"samples\":1}]},"                                    \
              "{\"layers\":[3,6],\"workers\":["                                                    \
              "{\"node\":\"a2\",\"gpus\":[0],\"samples\":1}]}]}]}"

static void a_pipeline_fills_and_drains(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_explanation e;
    fixture_open(&f, CLUSTER, PROFILE, TWO_STAGES);
    explain(&f, &e);
    /* It ends at 33.4 ms with a beat of 9 (the second stage's 3 + 6): see the simulator's test. */
    assert_near(e.fill_drain_s, 33.4e-3 - 3 * 9e-3);
    /* The hand-overs to and from the second stage are 0.1 ms each, and the tied sum is 0.4. */
    assert_near(share(&e, ETH_HPP_EXPLAINED_NETWORK, 0), 0.6e-3 / e.step_s);
    assert_near(share(&e, ETH_HPP_EXPLAINED_INSIDE, 0), 0);
    assert_near(e.exposed_sync_s, 0.4e-3);
    assert_near(sum_of_shares(&e), 1);
    assert_near(e.several_share, 0);
    eth_hpp_explanation_free(&e);
    fixture_close(&f);
}

#define REPLICAS(fast, slow)                                                                       \
    PLAN_HEAD "\"global_batch\":4,\"pipelines\":["                                                 \
              "{\"micro_batch\":1,\"micro_batches\":" fast ",\"stages\":[{\"layers\":[0,6],"       \
              "\"workers\":[{\"node\":\"a1\",\"gpus\":[0],\"samples\":1}]}]},"                     \
              "{\"micro_batch\":1,\"micro_batches\":" slow ",\"stages\":[{\"layers\":[0,6],"       \
              "\"workers\":[{\"node\":\"b1\",\"gpus\":[0],\"samples\":1}]}]}]}"

static void pipelines_share_the_step_by_their_data(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_explanation e;
    fixture_open(&f, CLUSTER, PROFILE, REPLICAS("3", "1"));
    explain(&f, &e);
    /* Both take 45.6 ms; the fast one has three samples of four. Then 20.404 ms of sums over the
     * slow one's network of 1e9, which is not the only one in the ring, but the slowest. */
    assert_near(share(&e, ETH_HPP_EXPLAINED_COMPUTE, 0), 0.75 * 45.6e-3 / e.step_s);
    assert_near(share(&e, ETH_HPP_EXPLAINED_COMPUTE, 1), 0.25 * 45.6e-3 / e.step_s);
    assert_near(share(&e, ETH_HPP_EXPLAINED_NETWORK, 2), 20.404e-3 / e.step_s);
    assert_near(share(&e, ETH_HPP_EXPLAINED_NETWORK, 0), 0);
    assert_near(e.whole_micro_batches_s, 0);
    assert_string_equal(find(&e, ETH_HPP_EXPLAINED_NETWORK, 0)->nodes, "a[1-2]");
    /* Twice as fast, it would have six samples for one of the slow one's: 4 in 4 x 45.6 / 7 ms. */
    assert_near(find(&e, ETH_HPP_EXPLAINED_COMPUTE, 0)->twice_s,
                e.step_s - 45.6e-3 + 4 * 45.6e-3 / 7);
    eth_hpp_explanation_free(&e);
    fixture_close(&f);
}

static void whole_micro_batches_cost_what_a_finer_deal_would_save(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_explanation e;
    fixture_open(&f, CLUSTER, PROFILE, REPLICAS("2", "2"));
    explain(&f, &e);
    assert_near(e.whole_micro_batches_s, 2 * 45.6e-3 - 45.6e-3);
    eth_hpp_explanation_free(&e);
    fixture_close(&f);
}

static void a_balanced_stage_needs_several_at_once(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_explanation e;
    /* A fast GPU with three samples and a slow one with one take the same time. */
    fixture_open(&f, CLUSTER, PROFILE,
                 PLAN_HEAD "\"global_batch\":8,\"pipelines\":[{\"micro_batch\":4,"
                           "\"micro_batches\":2,\"stages\":[{\"layers\":[0,6],\"workers\":["
                           "{\"node\":\"a1\",\"gpus\":[0],\"samples\":3},"
                           "{\"node\":\"b1\",\"gpus\":[0],\"samples\":1}]}]}]}");
    explain(&f, &e);
    assert_near(share(&e, ETH_HPP_EXPLAINED_COMPUTE, 0), 0);
    assert_near(share(&e, ETH_HPP_EXPLAINED_COMPUTE, 1), 0);
    assert_near(e.several_share, 2 * 45.6e-3 / e.step_s);
    assert_near(sum_of_shares(&e), 1);
    eth_hpp_explanation_free(&e);
    fixture_close(&f);
}

/* ---- searches and words ---- */

static const struct eth_hpp_solver_options options = {.global_batch = 24,
                                                      .effort = ETH_HPP_EFFORT_QUICK};

static void explain_best(struct fixture *f, struct eth_hpp_explanation *e)
{
    struct eth_hpp_error err = {0};
    fixture_open(f, CLUSTER, PROFILE, NULL);
    must(eth_hpp_solve(&f->cluster, &f->profile, &options, &f->plan, &err), &err);
    must(eth_hpp_explain(&f->plan, &f->cluster, &f->profile, &options, e, &err), &err);
}

static void one_more_node_of_each_kind_is_searched_for(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_explanation e;
    explain_best(&f, &e);
    assert_int_equal(e.node_count, 2);
    assert_int_equal(e.nodes[0].like_node, 0);
    assert_int_equal(e.nodes[1].like_node, 2);
    assert_near(e.quick_s, f.plan.predicted.step_s);
    /* Two fast GPUs more than four fast and two slow ones. */
    assert_true(e.nodes[0].step_s < 0.85 * e.quick_s);
    assert_true(e.unlimited_memory_s <= e.quick_s * 1.001);
    assert_true(e.larger_batch_s > 2 * e.quick_s);
    assert_int_equal(e.kinds_left_out, 0);
    eth_hpp_explanation_free(&e);
    fixture_close(&f);
}

static void it_is_said_to_a_person_and_to_a_script(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_explanation e;
    char *text;
    size_t size;
    explain_best(&f, &e);
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    eth_hpp_explanation_print(&e, &f.cluster, out);
    assert_int_equal(fclose(out), 0);
    const char *said[] = {" is bound by the computation of fast",
                          "twice as fast: ", "one more node like a1 (2 fast): ",
                          "unlimited memory: ", "one more node like b1 (2 slow): "};
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++)
        if (strstr(text, said[i]) == NULL)
            fail_msg("\"%s\" is not in:\n%s", said[i], text);
    struct json_object *root = eth_hpp_explanation_json(&e, &f.cluster), *list, *first, *value;
    assert_non_null(root);
    assert_true(json_object_object_get_ex(root, "waits_for", &list));
    assert_int_equal(json_object_array_length(list), e.resource_count);
    first = json_object_array_get_idx(list, 0);
    assert_true(json_object_object_get_ex(first, "device", &value));
    assert_string_equal(json_object_get_string(value), "fast");
    assert_true(json_object_object_get_ex(root, "one_more_node", &list));
    assert_int_equal(json_object_array_length(list), 2);
    json_object_put(root);
    free(text);
    eth_hpp_explanation_free(&e);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_gpu_waits_for_itself),
        cmocka_unit_test(a_pipeline_fills_and_drains),
        cmocka_unit_test(pipelines_share_the_step_by_their_data),
        cmocka_unit_test(whole_micro_batches_cost_what_a_finer_deal_would_save),
        cmocka_unit_test(a_balanced_stage_needs_several_at_once),
        cmocka_unit_test(one_more_node_of_each_kind_is_searched_for),
        cmocka_unit_test(it_is_said_to_a_person_and_to_a_script),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
