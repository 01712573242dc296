#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "launcher/gpu.h"
#include "launcher/node.h"

/* ---- the rank's own GPU ---- */

static struct eth_hpp_inventory_gpu node_gpus[] = {
    {.index = 0, .uuid = "GPU-aaaa-1", .device = "A", .healthy = true},
    {.index = 1, .uuid = "GPU-aaab-2", .device = "A", .healthy = true},
    {.index = 2, .uuid = "GPU-bbbb-3", .device = "B", .healthy = false},
    {.index = 3, .uuid = "GPU-cccc-4", .device = "B", .healthy = true},
};
static struct eth_hpp_inventory node = {.node = "n1", .gpus = node_gpus, .gpu_count = 4};

static int find(const struct eth_hpp_inventory *visible, int local_rank, int local_size,
                const char *devices, struct eth_hpp_error *err)
{
    const struct eth_hpp_inventory_gpu *gpu = NULL;
    struct eth_hpp_bootstrap_place place = {.local_rank = local_rank, .local_size = local_size};
    *err = (struct eth_hpp_error){0};
    if (eth_hpp_gpu_find(&node, visible, &place, devices, &gpu, err) != ETH_HPP_OK)
        return -1;
    return gpu->index;
}

static void the_local_rank_chooses_among_several_devices(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    assert_int_equal(find(NULL, 0, 2, "3,1", &err), 3);
    assert_int_equal(find(NULL, 1, 2, "3,1", &err), 1);
    assert_int_equal(find(NULL, 1, 2, NULL, &err), 1);
}

static void a_single_device_is_the_tasks_own_whatever_its_local_rank(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    assert_int_equal(find(NULL, 3, 4, "1", &err), 1);
}

static void numbers_that_a_cgroup_has_shifted_are_matched_by_uuid(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    struct eth_hpp_inventory_gpu own[] = {{.index = 0, .uuid = "GPU-cccc-4"}};
    struct eth_hpp_inventory visible = {.gpus = own, .gpu_count = 1};
    assert_int_equal(find(&visible, 2, 4, "0", &err), 3);
}

static void devices_may_be_named_by_a_uuid_or_its_beginning(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    assert_int_equal(find(NULL, 0, 1, "GPU-aaab-2", &err), 1);
    assert_int_equal(find(NULL, 0, 1, "GPU-cc", &err), 3);
    assert_int_equal(find(NULL, 0, 1, "GPU-aaa", &err), -1); /* two devices */
}

static void what_a_rank_cannot_have_is_refused_with_the_remedy(void **state)
{
    (void)state;
    static const struct {
        int local_rank, local_size;
        const char *devices, *message;
    } cases[] = {
        {2, 3, "0,1", "3 ranks but 2 GPUs on node n1"},
        {4, 5, NULL, "5 ranks but 4 GPUs on node n1"},
        {0, 1, "", "the job has no GPU on node n1, which has 4: ask for them"},
        {0, 1, "NoDevFiles", "--gpus-per-node=4"},
        {0, 1, "7", "device \"7\" of CUDA_VISIBLE_DEVICES is not in the inventory of node n1"},
        {0, 1, "2", "GPU 2 () of node n1 reports memory errors"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_error err;
        assert_int_equal(
            find(NULL, cases[i].local_rank, cases[i].local_size, cases[i].devices, &err), -1);
        assert_int_equal(err.status, ETH_HPP_ERR_INPUT);
        if (strstr(err.text, cases[i].message) == NULL)
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.text, cases[i].message);
    }
}

static void a_node_without_gpus_says_why(void **state)
{
    (void)state;
    const struct eth_hpp_inventory_gpu *gpu;
    struct eth_hpp_inventory empty = {.node = "n2", .why_empty = "no driver here"};
    struct eth_hpp_bootstrap_place place = {.local_size = 1};
    struct eth_hpp_error err;
    assert_int_equal(eth_hpp_gpu_find(&empty, NULL, &place, "0", &gpu, &err), ETH_HPP_ERR_INPUT);
    assert_string_equal(err.text, "node n2 has no GPU: no driver here");
}

/* ---- the node's inventory ---- */

static void a_driver_that_hangs_does_not_hang_the_launch(void **state)
{
    (void)state;
    struct eth_hpp_inventory inventory;
    struct eth_hpp_error err;
    if (dlopen(NVML_EMULATION, RTLD_NOW) == NULL)
        fail_msg("%s", dlerror());
    setenv("ETH_HPP_NVML_EMULATION", "hang", 1);
    unsetenv("ETH_HPP_INVENTORY");
    unsetenv("ETH_HPP_SITE_FILE");
    time_t start = time(NULL);
    assert_int_equal(eth_hpp_node_inventory(&inventory, 1.0, &err), ETH_HPP_OK);
    assert_true(time(NULL) - start < 5);
    assert_int_equal(inventory.gpu_count, 0);
    assert_non_null(strstr(inventory.why_empty, "did not answer within 1 s"));
    eth_hpp_inventory_free(&inventory);
    setenv("ETH_HPP_NVML_EMULATION", "switch", 1);
    assert_int_equal(eth_hpp_node_inventory(&inventory, 10.0, &err), ETH_HPP_OK);
    assert_int_equal(inventory.gpu_count, 4);
    eth_hpp_inventory_free(&inventory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_local_rank_chooses_among_several_devices),
        cmocka_unit_test(a_single_device_is_the_tasks_own_whatever_its_local_rank),
        cmocka_unit_test(numbers_that_a_cgroup_has_shifted_are_matched_by_uuid),
        cmocka_unit_test(devices_may_be_named_by_a_uuid_or_its_beginning),
        cmocka_unit_test(what_a_rank_cannot_have_is_refused_with_the_remedy),
        cmocka_unit_test(a_node_without_gpus_says_why),
        cmocka_unit_test(a_driver_that_hangs_does_not_hang_the_launch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
