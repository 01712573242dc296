#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "emulation/ranks.h"
#include "unit/valgrind.h"
#include "launcher/calibrate.h"
#include "plan/derive.h"

enum { JOB_RANKS_MAX = 64 };

/* ---- a job of described ranks ---- */

static struct eth_hpp_launch_rank ranks[JOB_RANKS_MAX];
static int rank_count;

static void start_job(void)
{
    memset(ranks, 0, sizeof(ranks));
    rank_count = 0;
}

static void add_rank(const char *node, const char *device, int index)
{
    struct eth_hpp_launch_rank *rank = &ranks[rank_count++];
    snprintf(rank->version, sizeof(rank->version), "1");
    snprintf(rank->node, sizeof(rank->node), "%s", node);
    snprintf(rank->device, sizeof(rank->device), "%s", device);
    snprintf(rank->gpu.device, sizeof(rank->gpu.device), "%s", device);
    rank->gpu.index = index;
    rank->gpu.memory_bytes = 16e9;
}

static void add_nodes(int nodes, int gpus)
{
    for (int n = 0; n < nodes; n++)
        for (int g = 0; g < gpus; g++) {
            char name[16];
            snprintf(name, sizeof(name), "n%d", n);
            add_rank(name, "T4", g);
        }
}

/* ---- who measures with whom ---- */

static void each_pair_of_nodes_meets_once_and_no_node_twice_in_a_round(void **state)
{
    (void)state;
    for (int nodes = 1; nodes <= 9; nodes++) {
        struct eth_hpp_link_measure *pairs;
        struct eth_hpp_error err;
        int *rounds, count, met[16][16] = {{0}}, inside = 0;
        start_job();
        add_nodes(nodes, 2);
        assert_int_equal(eth_hpp_calibrate_pairs(ranks, rank_count, &pairs, &rounds, &count, &err),
                         ETH_HPP_OK);
        for (int i = 0; i < count; i++) {
            inside += rounds[i] == 0;
            met[pairs[i].from / 2][pairs[i].to / 2]++;
            for (int j = 0; j < i; j++) {
                bool shared = pairs[i].from == pairs[j].from || pairs[i].from == pairs[j].to ||
                              pairs[i].to == pairs[j].from || pairs[i].to == pairs[j].to;
                assert_false(shared && rounds[i] == rounds[j]);
            }
        }
        assert_int_equal(inside, nodes);
        for (int a = 0; a < nodes; a++)
            for (int b = a + 1; b < nodes; b++)
                assert_int_equal(met[a][b] + met[b][a], 1);
        free(pairs);
        free(rounds);
    }
}

static void many_nodes_are_measured_in_a_bounded_number_of_rounds(void **state)
{
    (void)state;
    struct eth_hpp_link_measure *pairs;
    struct eth_hpp_error err;
    int *rounds, count;
    start_job();
    add_nodes(64, 1);
    assert_int_equal(eth_hpp_calibrate_pairs(ranks, rank_count, &pairs, &rounds, &count, &err),
                     ETH_HPP_OK);
    assert_int_equal(count, 15 * 32);
    assert_int_equal(rounds[count - 1], 15);
    free(pairs);
    free(rounds);
}

/* ---- the cluster ---- */

static struct eth_hpp_cluster make_cluster(int **rank_of)
{
    struct eth_hpp_cluster cluster;
    struct eth_hpp_error err;
    assert_int_equal(eth_hpp_launch_cluster_make(ranks, rank_count, &cluster, rank_of, &err),
                     ETH_HPP_OK);
    return cluster;
}

static void ranks_that_alternate_between_nodes_are_put_in_order(void **state)
{
    (void)state;
    int *rank_of;
    start_job();
    add_rank("a", "T4", 1);
    add_rank("b", "V100-SXM-16GB", 0);
    add_rank("a", "T4", 0);
    add_rank("b", "V100-SXM-16GB", 3);
    struct eth_hpp_cluster cluster = make_cluster(&rank_of);
    assert_int_equal(cluster.node_count, 2);
    assert_int_equal(cluster.gpu_count, 4);
    assert_int_equal(rank_of[0], 0);
    assert_int_equal(rank_of[1], 2);
    assert_int_equal(rank_of[2], 1);
    assert_int_equal(rank_of[3], 3);
    assert_string_equal(cluster.devices[cluster.nodes[1].devices[0]].name, "V100-SXM-16GB");
    free(rank_of);
    eth_hpp_cluster_free(&cluster);
}

static void an_unknown_gpu_is_estimated_from_its_multiprocessors_or_refused(void **state)
{
    (void)state;
    struct eth_hpp_cluster cluster;
    struct eth_hpp_error err;
    int *rank_of;
    start_job();
    add_rank("a", "Future X1", 0);
    assert_int_equal(eth_hpp_launch_cluster_make(ranks, 1, &cluster, &rank_of, &err),
                     ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "nothing is known of the GPU"));
    ranks[0].gpu.multiprocessors = 108;
    ranks[0].gpu.max_sm_clock_hz = 1.41e9;
    snprintf(ranks[0].gpu.compute_capability, sizeof(ranks[0].gpu.compute_capability), "8.0");
    cluster = make_cluster(&rank_of);
    assert_true(cluster.devices[0].estimated && cluster.devices[0].bf16);
    assert_true(fabs(cluster.devices[0].half_flops - 312e12) < 1e12); /* an A100's */
    eth_hpp_cluster_free(&cluster);
    free(rank_of);
}

static void ranks_that_cannot_work_together_are_refused(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    start_job();
    add_rank("a", "T4", 0);
    add_rank("a", "T4", 1);
    add_rank("b", "T4", 0);
    assert_int_equal(eth_hpp_launch_ranks_check(ranks, 3, &err), ETH_HPP_OK);
    ranks[1].gpu.index = 0;
    assert_int_equal(eth_hpp_launch_ranks_check(ranks, 3, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "ranks 0 and 1 both have GPU 0 of node a"));
    ranks[1].gpu.index = 1;
    ranks[2].time_scale = 5;
    assert_int_equal(eth_hpp_launch_ranks_check(ranks, 3, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "b has emulated devices and a has not"));
    ranks[2].time_scale = 0;
    ranks[2].version[0] = '2';
    assert_int_equal(eth_hpp_launch_ranks_check(ranks, 3, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "install one version on all nodes"));
}

/* ---- measured links ---- */

static void figures_that_differ_by_noise_become_one_and_slow_pairs_are_limited(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    int *rank_of;
    start_job();
    add_nodes(4, 1);
    struct eth_hpp_cluster cluster = make_cluster(&rank_of);
    struct eth_hpp_link_measure pairs[] = {
        {0, 1, 20e-6, 1.0e9}, {0, 2, 21e-6, 0.9e9}, {0, 3, 50e-6, 0.2e9},
        {1, 2, 22e-6, 1.1e9}, {1, 3, 20e-6, 0.8e9}, {2, 3, 20e-6, 0.85e9},
    };
    assert_int_equal(eth_hpp_calibrate_apply_links(pairs, 6, ranks, &cluster, &err), ETH_HPP_OK);
    for (int n = 1; n < 4; n++)
        assert_true(cluster.nodes[n].inter_bandwidth == cluster.nodes[0].inter_bandwidth);
    assert_int_equal(cluster.link_count, 1);
    assert_int_equal(cluster.links[0].from[0], 0);
    assert_int_equal(cluster.links[0].to[0], 3);
    assert_true(cluster.links[0].bandwidth == 0.2e9 && cluster.links[0].latency_s == 50e-6);
    eth_hpp_cluster_free(&cluster);
    free(rank_of);
}

static void a_slower_network_of_some_nodes_is_theirs_and_no_limited_link(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    int *rank_of;
    start_job();
    add_nodes(4, 1);
    struct eth_hpp_cluster cluster = make_cluster(&rank_of);
    struct eth_hpp_link_measure pairs[] = {
        {0, 1, 2e-5, 1.1e9},  {0, 2, 2e-5, 0.11e9}, {0, 3, 2e-5, 0.12e9},
        {1, 2, 2e-5, 0.12e9}, {1, 3, 2e-5, 0.11e9}, {2, 3, 2e-5, 0.115e9},
    };
    assert_int_equal(eth_hpp_calibrate_apply_links(pairs, 6, ranks, &cluster, &err), ETH_HPP_OK);
    assert_true(cluster.nodes[0].inter_bandwidth == 1.1e9);
    assert_true(cluster.nodes[1].inter_bandwidth == 1.1e9);
    assert_true(cluster.nodes[2].inter_bandwidth < 0.13e9);
    assert_true(cluster.nodes[3].inter_bandwidth == cluster.nodes[2].inter_bandwidth);
    assert_int_equal(cluster.link_count, 0);
    eth_hpp_cluster_free(&cluster);
    free(rank_of);
}

static void links_that_a_site_states_are_those_of_the_jobs_nodes(void **state)
{
    (void)state;
    static const char text[] =
        "{\"format\":\"eth-hpp-site\",\"version\":1,\"nodes\":[{\"name\":\"n[0-9]\"}],\"links\":["
        "{\"between\":[\"n[0-1]\",\"n[2,7]\"],\"bandwidth\":5e8,\"latency_s\":3e-5},"
        "{\"between\":[\"n[0-1]\",\"n[5-9]\"],\"bandwidth\":1e8}]}";
    char folder[] = "test_site.XXXXXX", path[64];
    struct eth_hpp_error err;
    int *rank_of;
    if (geteuid() != 0) {
        print_message("# skipped: only root can make a file that is accepted\n");
        skip();
    }
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/site.json", folder);
    assert_int_equal(eth_hpp_file_write(path, text, strlen(text), 0644, &err), ETH_HPP_OK);
    start_job();
    add_nodes(4, 1);
    struct eth_hpp_cluster cluster = make_cluster(&rank_of);
    assert_int_equal(eth_hpp_calibrate_apply_site(path, &cluster, &err), ETH_HPP_OK);
    assert_int_equal(cluster.link_count, 1); /* the other one leads to no node of the job */
    assert_int_equal(cluster.links[0].from_count, 2);
    assert_int_equal(cluster.links[0].to_count, 1);
    assert_int_equal(cluster.links[0].to[0], 2);
    assert_true(cluster.links[0].bandwidth == 5e8);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(eth_hpp_calibrate_apply_site(path, &cluster, &err), ETH_HPP_ERR_INPUT);
    eth_hpp_cluster_free(&cluster);
    free(rank_of);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- measured devices ---- */

static struct eth_hpp_launch_times times_at(double speed, int points)
{
    struct eth_hpp_launch_times times = {.points = points, .optimizer_s_per_parameter = 1e-9};
    for (int p = 0; p < points; p++) {
        times.samples[p] = 1 << p;
        for (int k = 0; k < ETH_HPP_KINDS; k++)
            times.times[p][k] = (struct eth_hpp_layer_time){.forward_s = (1 << p) * 0.01 / speed,
                                                            .backward_s = (1 << p) * 0.02 / speed};
    }
    return times;
}

static void gpus_off_their_kinds_median_become_devices_of_their_own(void **state)
{
    (void)state;
    struct eth_hpp_launch_times times[] = {times_at(1, 4), times_at(1.02, 3), times_at(0.8, 2),
                                           times_at(0.98, 4), times_at(0.5, 4)};
    struct eth_hpp_error err;
    start_job();
    for (int r = 0; r < 4; r++)
        add_rank("a", "T4", r);
    add_rank("b", "V100-SXM-16GB", 0); /* slower, but alone of its kind */
    assert_int_equal(eth_hpp_calibrate_name_devices(times, 6, ranks, 5, &err), ETH_HPP_OK);
    assert_string_equal(ranks[0].device, "T4");
    assert_string_equal(ranks[1].device, "T4");
    assert_string_equal(ranks[2].device, "T4~0.80");
    assert_string_equal(ranks[3].device, "T4");
    assert_string_equal(ranks[4].device, "V100-SXM-16GB");
}

static void a_profile_has_the_median_of_each_devices_ranks(void **state)
{
    (void)state;
    struct eth_hpp_launch_times times[] = {times_at(1, 4), times_at(1.04, 3), times_at(0.97, 4),
                                           times_at(0.8, 2)};
    struct eth_hpp_error err;
    struct eth_hpp_profile profile;
    start_job();
    for (int r = 0; r < 3; r++)
        add_rank("a", "T4", r);
    add_rank("a", "T4~0.80", 3);
    assert_int_equal(
        eth_hpp_derive_layers(eth_hpp_preset_find("gpt2-tiny6"), 64, ETH_HPP_FP32, &profile, &err),
        ETH_HPP_OK);
    assert_int_equal(eth_hpp_calibrate_fill_profile(times, ranks, 4, &profile, &err), ETH_HPP_OK);
    const struct eth_hpp_times *found = eth_hpp_profile_find_times(&profile, "T4", 1);
    assert_int_equal(found->points, 3); /* those that all have */
    assert_true(fabs(found->times[0].forward_s - 0.01) < 1e-12);
    found = eth_hpp_profile_find_times(&profile, "T4~0.80", 1);
    assert_int_equal(found->points, 2);
    assert_true(fabs(found->times[0].forward_s - 0.0125) < 1e-12);
    assert_true(eth_hpp_profile_optimizer_s(&profile, "T4") == 1e-9);
    eth_hpp_profile_free(&profile);
}

static void gpus_find_their_device_in_a_given_profile(void **state)
{
    (void)state;
    struct eth_hpp_launch_times times[] = {times_at(1, 2), times_at(0.8, 2), times_at(0.5, 2)};
    struct eth_hpp_error err;
    struct eth_hpp_profile profile;
    start_job();
    add_rank("a", "T4", 0);
    add_rank("a", "T4~0.80", 1);
    add_rank("a", "T4~0.50", 2);
    assert_int_equal(
        eth_hpp_derive_layers(eth_hpp_preset_find("gpt2-tiny6"), 64, ETH_HPP_FP32, &profile, &err),
        ETH_HPP_OK);
    assert_int_equal(eth_hpp_calibrate_fill_profile(times, ranks, 3, &profile, &err), ETH_HPP_OK);
    start_job();
    add_rank("a", "T4~0.78", 0);
    add_rank("a", "T4~0.93", 1);
    add_rank("a", "T4~0.61", 2);
    add_rank("b", "L4~0.80", 0);
    eth_hpp_calibrate_match_devices(&profile, ranks, rank_count);
    assert_string_equal(ranks[0].device, "T4~0.80");
    assert_string_equal(ranks[1].device, "T4");
    assert_string_equal(ranks[2].device, "T4~0.50");
    assert_string_equal(ranks[3].device, "L4~0.80");
    eth_hpp_profile_free(&profile);
}

/* ---- measuring and keeping ---- */

static enum eth_hpp_status calibrate(const struct eth_hpp_model *model, int need, int most,
                                     enum eth_hpp_calibrate_when when,
                                     struct eth_hpp_launch_times *times, struct eth_hpp_error *err)
{
    const struct eth_hpp_calibrate_request request = {
        .need = need, .most = most, .budget_s = 4, .when = when};
    return eth_hpp_calibrate_device(model, 64, ETH_HPP_FP32, &ranks[0], &request, times, err);
}

static void an_emulated_device_takes_its_emulated_time_and_is_cached(void **state)
{
    (void)state;
    const struct eth_hpp_model *model = eth_hpp_preset_find("gpt2-tiny6");
    struct eth_hpp_launch_times first, again;
    struct eth_hpp_error err;
    char folder[] = "test_cache.XXXXXX", here[512], cache[1024], command[1100];
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(here, sizeof(here)));
    snprintf(cache, sizeof(cache), "%s/%s", here, folder);
    setenv("XDG_CACHE_HOME", cache, 1);
    start_job();
    add_rank("a", "V100-SXM-16GB", 0);
    ranks[0].speed = 0.5;
    ranks[0].time_scale = 2e5; /* slower than any machine that runs the tests */
    assert_int_equal(calibrate(model, 2, 2, ETH_HPP_CALIBRATE_AUTO, &first, &err), ETH_HPP_OK);
    assert_int_equal(first.points, 2);
    double flops = eth_hpp_model_forward_flops(model, ETH_HPP_KIND_DECODER, 64);
    double expected = 1e-4 + 2e5 * 2 * flops / (0.45 * 125e12 * 0.5);
    double measured = first.times[1][ETH_HPP_KIND_DECODER].forward_s;
    assert_true(measured >= expected);
    assert_true(measured < 1.5 * expected || in_valgrind()); /* slower than the device */
    assert_true(first.optimizer_s_per_parameter > 0);

    assert_int_equal(calibrate(model, 1, 2, ETH_HPP_CALIBRATE_AUTO, &again, &err), ETH_HPP_OK);
    assert_true(again.times[1][ETH_HPP_KIND_DECODER].forward_s == measured); /* not measured anew */
    /* A given plan may need more than was measured. */
    assert_int_equal(calibrate(model, 3, 2, ETH_HPP_CALIBRATE_AUTO, &again, &err), ETH_HPP_OK);
    assert_true(again.samples[again.points - 1] >= 3);
    ranks[0].gpu.index = 1; /* another GPU may be slower: nothing is taken over */
    assert_int_equal(calibrate(model, 1, 1, ETH_HPP_CALIBRATE_AUTO, &again, &err), ETH_HPP_OK);
    assert_int_equal(again.points, 1);
    snprintf(command, sizeof(command), "rm -r '%s'", cache);
    assert_int_equal(system(command), 0);
}

static void what_cannot_be_measured_is_derived_or_refused(void **state)
{
    (void)state;
    struct eth_hpp_launch_times times;
    struct eth_hpp_error err;
    /* Whatever is installed here. */
    assert_int_equal(setenv("ETH_HPP_CUDA_MODULE", "/nowhere/libethhpp_cuda.so", 1), 0);
    start_job();
    add_rank("a", "T4", 0); /* a real one, and there is none here */
    const struct eth_hpp_model *model = eth_hpp_preset_find("gpt2-tiny6");
    assert_int_equal(calibrate(model, 1, 2, ETH_HPP_CALIBRATE_AUTO, &times, &err), ETH_HPP_OK);
    assert_int_equal(times.points, 0);
    assert_int_equal(calibrate(model, 1, 2, ETH_HPP_CALIBRATE_YES, &times, &err),
                     ETH_HPP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "cannot be measured"));
    assert_int_equal(unsetenv("ETH_HPP_CUDA_MODULE"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_pair_of_nodes_meets_once_and_no_node_twice_in_a_round),
        cmocka_unit_test(many_nodes_are_measured_in_a_bounded_number_of_rounds),
        cmocka_unit_test(ranks_that_alternate_between_nodes_are_put_in_order),
        cmocka_unit_test(an_unknown_gpu_is_estimated_from_its_multiprocessors_or_refused),
        cmocka_unit_test(ranks_that_cannot_work_together_are_refused),
        cmocka_unit_test(figures_that_differ_by_noise_become_one_and_slow_pairs_are_limited),
        cmocka_unit_test(a_slower_network_of_some_nodes_is_theirs_and_no_limited_link),
        cmocka_unit_test(links_that_a_site_states_are_those_of_the_jobs_nodes),
        cmocka_unit_test(gpus_off_their_kinds_median_become_devices_of_their_own),
        cmocka_unit_test(a_profile_has_the_median_of_each_devices_ranks),
        cmocka_unit_test(gpus_find_their_device_in_a_given_profile),
        cmocka_unit_test(an_emulated_device_takes_its_emulated_time_and_is_cached),
        cmocka_unit_test(what_cannot_be_measured_is_derived_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
