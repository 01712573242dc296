/* The bound's figures where they can be worked out by hand. That no plan beats it is
 * test_optimum's.
 */
#include "plan_fixtures.h"

#include <math.h>

#include "plan/bound.h"

static double bound_of(const char *cluster, const char *profile, int batch)
{
    struct fixture f;
    struct eth_hpp_cost cost;
    struct eth_hpp_error err = {0};
    fixture_open(&f, cluster, profile, NULL);
    must(eth_hpp_cost_init(&cost, &f.cluster, &f.profile, &err), &err);
    double bound = eth_hpp_bound(&cost, batch);
    eth_hpp_cost_free(&cost);
    fixture_close(&f);
    return bound;
}

static void assert_near(double value, double expected)
{
    if (!(fabs(value / expected - 1) < 0.004))
        fail_msg("%g is not about %g", value, expected);
}

/* Four fast GPUs and two at a third of their speed do the work of 14/3: 15.2 ms a sample. */
static void a_large_batch_takes_all_gpus_at_their_best(void **state)
{
    (void)state;
    double best = 2800 * 15.2e-3 / (14.0 / 3), bound = bound_of(CLUSTER, PROFILE, 2800);
    assert_true(bound >= best);
    assert_near(bound, best);
}

/* However many GPUs there are, a sample passes all layers one after the other; then the optimizer
 * updates 5.1 million parameters, four fast GPUs and two at half of their speed together. */
static void one_sample_takes_its_way_through_all_layers(void **state)
{
    (void)state;
    double optimizer = 5.101e6 / (4 / 1e-10 + 2 / 2e-10);
    assert_near(bound_of(CLUSTER, PROFILE, 1), 15.2e-3 + optimizer);
}

/* Two GPUs with a sample each would sum the tied tensor, 4 MB at 0.1 GB/s, after all. It is shorter
 * to run all on one GPU, but no plan can do with less than that either. */
static void sums_of_the_first_layer_come_last(void **state)
{
    (void)state;
    static const char *const cluster =
        "{\"format\":\"eth-hpp-cluster\",\"version\":1,"
        "\"devices\":{\"fast\":{\"memory_bytes\":4e10}},\"nodes\":["
        "{\"name\":\"a[1-2]\",\"device\":\"fast\",\"count\":1,\"intra_bandwidth\":%s,"
        "\"inter_bandwidth\":%s}]}";
    char slow[512], fast[512];
    snprintf(slow, sizeof(slow), cluster, "1e8", "1e8");
    snprintf(fast, sizeof(fast), cluster, "1e12", "1e12");
    assert_near(bound_of(slow, PROFILE, 2), 2 * 15.2e-3);
    assert_near(bound_of(fast, PROFILE, 2), 15.2e-3 + 5.101e6 * 1e-10 / 2);
}

/* A GPU that holds no more than some layers leaves the later ones to others, who cannot start
 * before a sample has come to them. */
static void memory_makes_later_layers_wait(void **state)
{
    (void)state;
    static const char *const cluster =
        "{\"format\":\"eth-hpp-cluster\",\"version\":1,"
        "\"devices\":{\"fast\":{\"memory_bytes\":%s,\"reserved_bytes\":0}},\"nodes\":["
        "{\"name\":\"a1\",\"device\":\"fast\",\"count\":2,\"intra_bandwidth\":1e11,"
        "\"inter_bandwidth\":1e10}]}";
    char text[512];
    double bounds[2];
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof(text), cluster, i == 0 ? "4e10" : "4e8");
        bounds[i] = bound_of(text, PROFILE, 8);
    }
    assert_near(bounds[0], 8 * 15.2e-3 / 2 + 5.101e6 * 1e-10 / 2);
    /* Half of the layers: one GPU idles for 6 ms while the other half has its first and its last
     * sample, or both share what is left of that. */
    assert_true(bounds[1] > 1.02 * bounds[0]);
    snprintf(text, sizeof(text), cluster, "1e8"); /* not even a layer's state and sample */
    assert_true(isinf(bound_of(text, PROFILE, 8)));
}

/* Two nodes do half of the batch each, unless the network between them carries next to nothing:
 * then one does all. */
static void a_slow_network_leaves_nodes_alone(void **state)
{
    (void)state;
    static const char *const cluster =
        "{\"format\":\"eth-hpp-cluster\",\"version\":1,"
        "\"devices\":{\"fast\":{\"memory_bytes\":4e10}},\"nodes\":["
        "{\"name\":\"a[1-2]\",\"device\":\"fast\",\"count\":2,\"intra_bandwidth\":1e11,"
        "\"inter_bandwidth\":%s}]}";
    static const char *const bandwidths[] = {"1e12", "1e8", "1e7", "1e3"};
    double optimizer = 5.101e6 * 1e-10 / 4, bounds[4];
    char text[512];
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof(text), cluster, bandwidths[i]);
        bounds[i] = bound_of(text, PROFILE, 64);
    }
    assert_near(bounds[0], 64 * 15.2e-3 / 4 + optimizer);
    assert_true(bounds[1] >= bounds[0] && bounds[2] > 1.02 * bounds[1] && bounds[3] > bounds[2]);
    assert_near(bounds[3], 64 * 15.2e-3 / 2 + optimizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_batch_takes_all_gpus_at_their_best),
        cmocka_unit_test(one_sample_takes_its_way_through_all_layers),
        cmocka_unit_test(sums_of_the_first_layer_come_last),
        cmocka_unit_test(memory_makes_later_layers_wait),
        cmocka_unit_test(a_slow_network_leaves_nodes_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
