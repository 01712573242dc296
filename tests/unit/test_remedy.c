/* What would make a model fit is tried in these tests too, and a little less of it. */
#include "plan_fixtures.h"

#include "plan/remedy.h"

/* Two nodes of two GPUs, each with room for about one decoder of the profile and its sample. */
static const char *tight_cluster(double memory_bytes)
{
    static char text[1024];
    snprintf(text, sizeof(text),
             "{\"format\":\"eth-hpp-cluster\",\"version\":1,"
             "\"devices\":{\"fast\":{\"memory_bytes\":%.0f,\"reserved_bytes\":0}},\"nodes\":["
             "{\"name\":\"a[1-2]\",\"device\":\"fast\",\"count\":1,\"intra_bandwidth\":1e10,"
             "\"inter_bandwidth\":1e10}],"
             "\"links\":[{\"between\":[\"a1\",\"a2\"],\"bandwidth\":1e9,\"latency_s\":1e-4}]}",
             memory_bytes);
    return text;
}

static bool fits(const struct fixture *f, const struct eth_hpp_remedy *remedy,
                 const struct eth_hpp_solver_options *options)
{
    struct eth_hpp_cluster changed;
    struct eth_hpp_plan plan = {0};
    struct eth_hpp_error err = {0};
    must(eth_hpp_remedy_apply(&f->cluster, remedy, &changed, &err), &err);
    enum eth_hpp_status status = eth_hpp_solve(&changed, &f->profile, options, &plan, &err);
    if (status != ETH_HPP_OK && status != ETH_HPP_ERR_INFEASIBLE)
        fail_msg("%s", err.text);
    eth_hpp_plan_free(&plan);
    eth_hpp_cluster_free(&changed);
    return status == ETH_HPP_OK;
}

static void nodes_and_memory_that_are_named_do_and_less_does_not(void **state)
{
    (void)state;
    static const double memories[] = {1.5e8, 1.8e8, 2.6e8};
    for (size_t i = 0; i < sizeof(memories) / sizeof(memories[0]); i++) {
        struct fixture f;
        struct eth_hpp_error err = {0};
        struct eth_hpp_remedy remedy, change;
        struct eth_hpp_solver_options options = {.global_batch = 8, .no_recompute = true};
        fixture_open(&f, tight_cluster(memories[i]), PROFILE, NULL);
        change = (struct eth_hpp_remedy){0};
        assert_false(fits(&f, &change, &options));
        must(eth_hpp_remedy_find(&f.cluster, &f.profile, &options, &remedy, &err), &err);
        assert_true(remedy.nodes > 0 && remedy.memory_bytes > 0);
        change = (struct eth_hpp_remedy){.nodes = remedy.nodes, .like_node = remedy.like_node};
        assert_true(fits(&f, &change, &options));
        change.nodes--;
        assert_false(fits(&f, &change, &options));
        change = (struct eth_hpp_remedy){.memory_bytes = remedy.memory_bytes};
        assert_true(fits(&f, &change, &options));
        change.memory_bytes *= 0.9;
        if (change.memory_bytes > 6.5e7) /* the least that is tried */
            assert_false(fits(&f, &change, &options));
        fixture_close(&f);
    }
}

/* A node that is added has the links of the node that it is like. */
static void nodes_that_are_added_are_like_the_others(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_error err = {0};
    struct eth_hpp_cluster changed;
    const struct eth_hpp_remedy remedy = {.nodes = 2, .like_node = 1};
    fixture_open(&f, tight_cluster(1e9), PROFILE, NULL);
    must(eth_hpp_remedy_apply(&f.cluster, &remedy, &changed, &err), &err);
    assert_int_equal(changed.node_count, 4);
    assert_int_equal(changed.gpu_count, 4);
    assert_int_equal(changed.nodes[3].first_rank, 3);
    assert_string_not_equal(changed.nodes[2].name, changed.nodes[3].name);
    assert_int_equal(changed.links[0].from_count, 1);
    assert_int_equal(changed.links[0].to_count, 3);
    assert_int_equal(changed.links[0].to[2], 3);
    eth_hpp_cluster_free(&changed);
    fixture_close(&f);
}

static void what_does_not_fit_is_said_with_what_would_do(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan plan;
    struct eth_hpp_solver_options options = {.global_batch = 8, .no_recompute = true};
    fixture_open(&f, tight_cluster(1.8e8), PROFILE, NULL);
    assert_int_equal(eth_hpp_remedy_solve(&f.cluster, &f.profile, &options, false, &plan, &err),
                     ETH_HPP_ERR_INFEASIBLE);
    if (strstr(err.text, "GiB of the 0.17 GiB of a fast in stage") == NULL ||
        strstr(err.text, "what would do: ") == NULL || strstr(err.text, " like a1, or ") == NULL ||
        strstr(err.text, " GiB more on each") == NULL)
        fail_msg("%s", err.text);
    fixture_close(&f);
}

/* Settings are only named to those who can change them. */
static void settings_that_stand_in_the_way_are_named(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_plan plan;
    struct eth_hpp_solver_options options = {
        .global_batch = 8, .memory_margin_bytes = 3.99e10, .max_in_flight = 1};
    fixture_open(&f, tight_cluster(4e10), PROFILE, NULL);
    for (int settings = 0; settings < 2; settings++) {
        struct eth_hpp_error err = {0};
        assert_int_equal(
            eth_hpp_remedy_solve(&f.cluster, &f.profile, &options, settings > 0, &plan, &err),
            ETH_HPP_ERR_INFEASIBLE);
        bool named = strstr(err.text, "no memory margin") != NULL;
        if (named != (settings > 0) || strstr(err.text, "more micro-batches in flight") != NULL)
            fail_msg("%s", err.text);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_and_memory_that_are_named_do_and_less_does_not),
        cmocka_unit_test(nodes_that_are_added_are_like_the_others),
        cmocka_unit_test(what_does_not_fit_is_said_with_what_would_do),
        cmocka_unit_test(settings_that_stand_in_the_way_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
