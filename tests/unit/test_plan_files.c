#include "plan_fixtures.h"

#include <unistd.h>

struct refusal {
    const char *from, *to, *message;
};

/* Every change of the good text must be refused with a message that holds the words. */
#define REFUSES(kind, good, cases)                                                                 \
    for (size_t i = 0; i < sizeof(cases) / sizeof((cases)[0]); i++) {                              \
        struct eth_hpp_##kind read;                                                                \
        struct eth_hpp_error err = {0};                                                            \
        const char *bad = with(good, (cases)[i].from, (cases)[i].to);                              \
        if (eth_hpp_##kind##_parse(#kind ".json", bad, strlen(bad), &read, &err) !=                \
            ETH_HPP_ERR_INPUT)                                                                     \
            fail_msg("case %zu (\"%s\") is read", i, (cases)[i].to);                               \
        if (strstr(err.text, (cases)[i].message) == NULL ||                                        \
            strncmp(err.text, #kind ".json: ", sizeof(#kind ".json: ") - 1) != 0)                  \
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.text, (cases)[i].message);            \
    }

/* ---- clusters ---- */

static void clusters_are_read_with_hostlists_expanded(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f, CLUSTER, PROFILE, NULL);
    assert_int_equal(f.cluster.node_count, 3);
    assert_int_equal(f.cluster.gpu_count, 6);
    assert_string_equal(f.cluster.nodes[1].name, "a2");
    assert_int_equal(f.cluster.nodes[2].first_rank, 4);
    assert_true(f.cluster.devices[1].reserved_bytes == 1e9);
    assert_true(f.cluster.devices[0].reserved_bytes == 0);
    fixture_close(&f);
}

static void a_known_device_needs_no_figures(void **state)
{
    (void)state;
    static const char text[] =
        "{\"format\":\"eth-hpp-cluster\",\"version\":1,\"nodes\":[{\"name\":\"n\","
        "\"gpus\":[\"T4\",\"A100-SXM-40GB\",\"T4\"],\"intra_bandwidth\":1e9,"
        "\"inter_bandwidth\":1e9}]}";
    struct eth_hpp_cluster cluster;
    struct eth_hpp_error err = {0};
    must(eth_hpp_cluster_parse("c", text, strlen(text), &cluster, &err), &err);
    assert_int_equal(cluster.device_count, 2);
    assert_true(cluster.devices[0].memory_bytes > 15e9 && !cluster.devices[0].bf16);
    assert_true(cluster.devices[1].half_flops == 312e12 && cluster.devices[1].bf16);
    assert_int_equal(cluster.nodes[0].devices[2], 0);
    eth_hpp_cluster_free(&cluster);
}

static void bad_clusters_are_refused(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"\"count\":2", "\"count\":0", "nodes[0].count: must be 1..1024, is 0"},
        {"\"count\":2", "\"count\":2.5", "must be a whole number"},
        {"\"count\":2", "\"gpus\":[\"fast\"]", "has both"},
        {"\"count\":2", "\"cuont\":2", "unknown key \"cuont\""},
        {"\"version\":1", "\"version\":2", "use a newer eth-hpp"},
        {"eth-hpp-cluster", "eth-hpp-plan", "must be \"eth-hpp-cluster\""},
        {"a[1-2]", "a[1-2],b1", "node b1 stands twice"},
        {"a[1-2]", "a[2-1]", "range"},
        {"a[1-2]", "a[1-2", "bracket"},
        {"\"intra_bandwidth\":1e11", "\"intra_bandwidth\":0", "intra_bandwidth: must be"},
        {"\"intra_bandwidth\":1e11", "\"intra_bandwidth\":-1", "intra_bandwidth: must be"},
        {"\"device\":\"fast\"", "\"device\":\"fats\"", "not in the device database"},
        {"4e10", "NaN", "memory_bytes"},
        {"\"reserved_bytes\":1e9", "\"reserved_bytes\":1e11", "reserved_bytes: must be"},
        {"\"nodes\":[", "\"links\":[{\"between\":[\"a1\",\"c1\"],\"bandwidth\":1}],\"nodes\":[",
         "there is no node c1"},
        {"\"nodes\":[", "\"links\":[{\"between\":[\"a1\"],\"bandwidth\":1}],\"nodes\":[",
         "between: must have 2..2 entries, has 1"},
        {"\"a[1-2]\",\"device\":\"fast\",\"count\":2",
         "\"a[1-2000]\",\"device\":\"fast\",\"count\":1000", "more than 16384 GPUs"},
        {"\"nodes\":[",
         "\"links\":[{\"between\":[\"a[1-1000000]\",\"b1\"],\"bandwidth\":1}],\"nodes\":[",
         "there is no node a3"},
        {"\"nodes\":[",
         "\"links\":[{\"between\":[\"a[1-9999999]\",\"b1\"],\"bandwidth\":1}],\"nodes\":[",
         "has too many names"},
    };
    REFUSES(cluster, CLUSTER, cases);
}

static void clusters_read_back_as_they_were_written(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_cluster back;
    struct eth_hpp_error err = {0};
    char path[] = "test_plan_files.XXXXXX";
    fixture_open(&f,
                 with(CLUSTER, "\"nodes\":[",
                      "\"links\":[{\"between\":[\"a[1-2]\",\"b1\"],\"bandwidth\":5e8,"
                      "\"latency_s\":1e-3}],\"nodes\":["),
                 PROFILE, NULL);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    must(eth_hpp_cluster_save(&f.cluster, path, &err), &err);
    must(eth_hpp_cluster_load(path, &back, &err), &err);
    assert_int_equal(back.node_count, 3);
    assert_string_equal(back.nodes[1].name, "a2");
    assert_true(back.nodes[2].inter_bandwidth == 1e9);
    assert_int_equal(back.link_count, 1);
    assert_int_equal(back.links[0].from_count, 2);
    assert_true(back.links[0].latency_s == 1e-3);
    eth_hpp_cluster_free(&back);
    fixture_close(&f);
    unlink(path);
}

/* ---- profiles ---- */

#define TEN "0123456789"

static void bad_profiles_are_refused(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"\"repeat\":4", "\"repeat\":0", "layers[1].repeat: must be 1..10000, is 0"},
        {"[1e-3,2e-3]", "[0,2e-3]", "times.fast.1.1.decoder[0]: must be"},
        {"[1e-3,2e-3]", "[1e-3,-2e-3]", "decoder[1]: must be"},
        {"[1e-3,2e-3]", "[1e-3]", "must be [forward_s, backward_s]"},
        {"[1e-3,2e-3]", "[1e300,2e-3]", "decoder[0]: must be"},
        {"\"embedding\":[1e-4,1e-4],", "", "has times of 2 kinds of layer, but there are 3"},
        {"\"embedding\":[1e-4,1e-4]", "\"embeding\":[1e-4,1e-4]", "is no kind of layer"},
        {"{\"fast\":{\"1\":{\"1\"", "{\"fast\":{\"1\":{\"0\"", "samples must be a whole number"},
        {"{\"fast\":{\"1\":{\"1\"", "{\"fast\":{\"0\":{\"1\"", "tensor parallelism must be"},
        {"{\"fast\":{\"1\":{\"1\"", "{\"fast\":{\"2\":{\"1\"",
         "has nothing for tensor parallelism"},
        {"\"memory\":{\"1\":{\"embedding\"", "\"memory\":{\"1\":{\"other\"", "is neither a kind"},
        {"\"optimizer_bytes\":8e6", "\"optimizer_bytes\":8e9", "optimizer_bytes: must be"},
        {"\"kinds\":[\"embedding\",\"head\"]", "\"kinds\":[\"tail\"]", "is no kind of layer"},
        {"\"name\":\"token-embedding\"", "\"name\":\"head\"", "is a kind of layer already"},
        {"\"dtype\":\"fp32\"", "\"dtype\":\"fp31\"", "must be fp32, bf16 or fp16"},
        {"\"sequence_length\":64", "\"sequence_length\":0", "sequence_length: must be"},
        {"\"model\":\"toy\"", "\"modle\":\"toy\"", "unknown key \"modle\""},
        {"\"kind\":\"head\"", "\"kind\":\"decoder\"", "with other sizes"},
        {"{\"fast\":1e-10", "{\"" TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN "\":1e-10",
         "names have 1..95 bytes"},
    };
    REFUSES(profile, PROFILE, cases);
}

static void profiles_read_back_as_they_were_written(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_profile back;
    struct eth_hpp_error err = {0};
    char path[] = "test_plan_files.XXXXXX";
    fixture_open(&f, CLUSTER, PROFILE, NULL);
    f.profile.estimated = true;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    must(eth_hpp_profile_save(&f.profile, path, &err), &err);
    must(eth_hpp_profile_load(path, &back, &err), &err);
    assert_int_equal(back.layer_count, 6);
    assert_int_equal(back.layers[4], 1);
    assert_true(back.estimated);
    assert_true(eth_hpp_profile_optimizer_s(&back, "slow") == 2e-10);
    const struct eth_hpp_times *times = eth_hpp_profile_find_times(&back, "slow", 1);
    assert_int_equal(times->samples[1], 8);
    assert_true(times->times[back.kind_count + 1].backward_s == 48e-3);
    assert_true(eth_hpp_profile_find_memory(&back, 1)->tied[0].state_bytes == 1.6e7);
    eth_hpp_profile_free(&back);
    fixture_close(&f);
    unlink(path);
}

/* ---- plans ---- */

static void plans_get_their_defaults_ranks_and_blocks(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
    assert_int_equal(f.plan.pipelines[0].stages[0].in_flight, 2);
    assert_int_equal(f.plan.pipelines[1].stages[1].in_flight, 1);
    assert_int_equal(f.plan.pipelines[1].stages[1].workers[1].ranks[0], 4);
    static const struct {
        int first, end, count, ranks[5];
    } expected[] = {
        {0, 2, 2, {0, 2}}, {2, 3, 3, {0, 3, 4}}, {3, 6, 3, {1, 3, 4}}, {0, 0, 5, {0, 1, 2, 3, 4}}};
    assert_int_equal(f.plan.block_count, 4);
    for (int b = 0; b < 4; b++) {
        assert_int_equal(f.plan.blocks[b].first_layer, expected[b].first);
        assert_int_equal(f.plan.blocks[b].end_layer, expected[b].end);
        assert_int_equal(f.plan.blocks[b].rank_count, expected[b].count);
        assert_memory_equal(f.plan.blocks[b].ranks, expected[b].ranks,
                            (size_t)expected[b].count * sizeof(int));
    }
    assert_int_equal(eth_hpp_plan_find_rank(&f.plan, 4).worker, 1);
    assert_int_equal(eth_hpp_plan_find_rank(&f.plan, 5).pipeline, -1);
    fixture_close(&f);
}

static void bad_plans_are_refused(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"\"layers\":[3,6]", "\"layers\":[2,6]", "does not follow layer 3"},
        {"\"layers\":[3,6]", "\"layers\":[3,5]", "end at layer 5, but the model has 6"},
        {"\"layers\":[3,6]", "\"layers\":[3,3]", "does not follow layer 3"},
        {"\"samples\":3", "\"samples\":2", "add up to 3, but the micro-batch is 4"},
        {"\"samples\":1}", "\"samples\":0}", "samples: must be 1.."},
        {"\"samples\":3", "\"samples\":3.5", "must be a whole number"},
        {"\"global_batch\":20", "\"global_batch\":21", "add up to 20 samples"},
        {"\"node\":\"b1\",\"gpus\":[0]", "\"node\":\"a2\",\"gpus\":[1]", "is used twice"},
        {"\"node\":\"b1\",\"gpus\":[0]", "\"node\":\"b1\",\"gpus\":[0,1]", "must have 1..1"},
        {"\"node\":\"b1\",\"gpus\":[0]", "\"node\":\"b1\",\"gpus\":[0],\"ranks\":[4]",
         "for all GPUs or for none"},
        {"\"layers\":[3,6]", "\"layers\":[3,6],\"in_flight\":3", "must not grow"},
        {"\"layers\":[3,6]", "\"layers\":[3,6],\"in_flight\":0", "in_flight: must be 1.."},
        {"\"schedule\":\"1f1b\"", "\"schedule\":\"zb\"", "must be \"1f1b\""},
        {"\"schedule\":\"1f1b\"", "\"schedule\":\"1f1b\",\"optimizer\":\"lazy\"", "optimizer"},
        {"\"schedule\":\"1f1b\"", "\"schedule\":\"1f1b\",\"priority\":1", "unknown key"},
        {"\"micro_batches\":6", "\"micro_batches\":0", "micro_batches: must be 1.."},
        {"\"pipelines\":[", "\"idle\":[{\"node\":\"a1\",\"gpus\":[1]}],\"pipelines\":[",
         "GPU 1 of node a1 is used twice"},
        {"\"pipelines\":[",
         "\"extra\":{\"nodes\":[{\"name\":\"n[1-200000]\",\"gpus\":[\"x\",\"y\"]}]},\"pipelines\":"
         "[",
         "extra.nodes[0]: there are more than 200000 GPUs"},
    };
    REFUSES(plan, UNLIKE_PLAN, cases);
}

static void plans_read_back_as_they_were_written(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_plan back;
    struct eth_hpp_error err = {0};
    char *text, *again;
    fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
    must(eth_hpp_plan_note_nodes(&f.plan, &f.cluster, &err), &err);
    f.plan.emulated = true;
    must(eth_hpp_plan_print(&f.plan, &text, &err), &err);
    must(eth_hpp_plan_parse("back", text, strlen(text), &back, &err), &err);
    assert_int_equal(back.block_count, 4);
    assert_string_equal(back.blocks[3].tied_name, "token-embedding");
    assert_int_equal(back.node_count, 3);
    assert_string_equal(back.nodes[2].devices[1], "slow");
    assert_true(back.emulated && !back.estimated);
    must(eth_hpp_plan_print(&back, &again, &err), &err);
    assert_string_equal(text, again);
    free(text);
    free(again);
    eth_hpp_plan_free(&back);
    fixture_close(&f);
}

static void tied_blocks_are_held_against_the_profile(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_error err = {0};
    fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
    must(eth_hpp_plan_complete(&f.plan, &f.cluster, &f.profile, &err), &err);
    struct eth_hpp_block *tied = &f.plan.blocks[3];
    tied->rank_count--;
    assert_int_equal(eth_hpp_plan_complete(&f.plan, &f.cluster, &f.profile, &err),
                     ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "blocks[3].ranks: are not the 5 ranks"));
    tied->rank_count++;
    tied->tied_name[0] = 'T';
    assert_int_equal(eth_hpp_plan_complete(&f.plan, &f.cluster, &f.profile, &err),
                     ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "no tied tensor \"Token-embedding\""));
    tied->tied = -1;
    f.profile.tied_count = 0;
    must(eth_hpp_plan_complete(&f.plan, &f.cluster, &f.profile, &err), &err);
    fixture_close(&f);
}

static void blocks_of_the_file_are_checked(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_plan back;
    struct eth_hpp_error err = {0};
    char *text;
    fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
    f.plan.blocks[1].end_layer = 4;
    f.plan.blocks[2].first_layer = 4;
    must(eth_hpp_plan_print(&f.plan, &text, &err), &err);
    assert_int_equal(eth_hpp_plan_parse("p", text, strlen(text), &back, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "blocks[1]: is not the maximal run of layers"));
    free(text);
    fixture_close(&f);
}

/* ---- binding ---- */

static void a_plan_is_bound_to_other_nodes_of_the_same_kinds(void **state)
{
    (void)state;
    static const char other[] =
        "{\"format\":\"eth-hpp-cluster\",\"version\":1,"
        "\"devices\":{\"fast~0.90\":{\"memory_bytes\":4e10},\"fast\":{\"memory_bytes\":4e10},"
        "\"slow\":{\"memory_bytes\":1.6e10}},\"nodes\":["
        "{\"name\":\"z1\",\"gpus\":[\"fast\",\"slow\",\"slow\"],\"intra_bandwidth\":1,"
        "\"inter_bandwidth\":1},"
        "{\"name\":\"z[2-3]\",\"gpus\":[\"fast\",\"fast~0.90\"],\"intra_bandwidth\":1,"
        "\"inter_bandwidth\":1}]}";
    struct fixture f, g;
    struct eth_hpp_error err = {0};
    fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
    must(eth_hpp_plan_note_nodes(&f.plan, &f.cluster, &err), &err);
    fixture_open(&g, other, PROFILE, NULL);
    must(eth_hpp_plan_bind(&f.plan, &g.cluster, &g.profile, &err), &err);
    const struct eth_hpp_worker *slow = &f.plan.pipelines[1].stages[1].workers[1];
    assert_string_equal(slow->node, "z1");
    assert_int_equal(slow->gpus[0], 1);
    assert_int_equal(slow->ranks[0], 1);
    assert_string_equal(f.plan.pipelines[0].stages[1].workers[0].node, "z2");
    assert_int_equal(f.plan.pipelines[0].stages[1].workers[0].ranks[0], 4);
    assert_int_equal(f.plan.idle_count, 1);
    assert_int_equal(f.plan.idle[0].gpu_count, 2);
    assert_int_equal(f.plan.blocks[0].ranks[0], 3);
    fixture_close(&f);
    fixture_close(&g);
}

static void a_plan_that_does_not_fit_the_allocation_is_refused(void **state)
{
    (void)state;
    static const char other[] =
        "{\"format\":\"eth-hpp-cluster\",\"version\":1,"
        "\"devices\":{\"fast\":{\"memory_bytes\":4e10},\"slow\":{\"memory_bytes\":1.6e10}},"
        "\"nodes\":[{\"name\":\"z[1-2]\",\"gpus\":[\"fast\",\"slow\"],\"intra_bandwidth\":1,"
        "\"inter_bandwidth\":1},{\"name\":\"z3\",\"gpus\":[\"fast\",\"fast\"],"
        "\"intra_bandwidth\":1,\"inter_bandwidth\":1}]}";
    struct fixture f, g;
    struct eth_hpp_error err = {0};
    fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
    fixture_open(&g, other, PROFILE, NULL);
    assert_int_equal(eth_hpp_plan_bind(&f.plan, &g.cluster, &g.profile, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "does not note the kinds of GPU of node a1"));
    must(eth_hpp_plan_note_nodes(&f.plan, &f.cluster, &err), &err);
    assert_int_equal(eth_hpp_plan_bind(&f.plan, &g.cluster, &g.profile, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "made for a node like a2 (fast, fast)"));
    assert_string_equal(f.plan.pipelines[0].stages[0].workers[0].node, "a1");
    fixture_close(&f);
    fixture_close(&g);
}

static void ranks_take_the_numbers_of_a_job(void **state)
{
    (void)state;
    static const int rank_of[] = {5, 4, 3, 2, 1, 0};
    struct fixture f;
    struct eth_hpp_error err = {0};
    fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
    must(eth_hpp_plan_renumber(&f.plan, rank_of, 6, &err), &err);
    assert_int_equal(f.plan.pipelines[0].stages[0].workers[0].ranks[0], 5);
    assert_int_equal(f.plan.blocks[0].ranks[0], 3);
    assert_int_equal(f.plan.blocks[0].ranks[1], 5);
    assert_int_equal(eth_hpp_plan_renumber(&f.plan, rank_of, 3, &err), ETH_HPP_ERR_INPUT);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clusters_are_read_with_hostlists_expanded),
        cmocka_unit_test(a_known_device_needs_no_figures),
        cmocka_unit_test(bad_clusters_are_refused),
        cmocka_unit_test(clusters_read_back_as_they_were_written),
        cmocka_unit_test(bad_profiles_are_refused),
        cmocka_unit_test(profiles_read_back_as_they_were_written),
        cmocka_unit_test(plans_get_their_defaults_ranks_and_blocks),
        cmocka_unit_test(bad_plans_are_refused),
        cmocka_unit_test(plans_read_back_as_they_were_written),
        cmocka_unit_test(tied_blocks_are_held_against_the_profile),
        cmocka_unit_test(blocks_of_the_file_are_checked),
        cmocka_unit_test(a_plan_is_bound_to_other_nodes_of_the_same_kinds),
        cmocka_unit_test(a_plan_that_does_not_fit_the_allocation_is_refused),
        cmocka_unit_test(ranks_take_the_numbers_of_a_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
