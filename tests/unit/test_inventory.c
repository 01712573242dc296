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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "inventory/sources.h"

/* ---- the file ---- */

#define HEAD       "{\"format\":\"eth-hpp-inventory\",\"version\":1,\"node\":\"n1\",\"source\":\"nvml\","
#define GPU(index) "{\"index\":" #index ",\"device\":\"T4\",\"memory_bytes\":16e9}"

static enum eth_hpp_status parse(const char *text, struct eth_hpp_inventory *inventory,
                                 struct eth_hpp_error *err)
{
    return eth_hpp_inventory_parse("i.json", text, strlen(text), inventory, err);
}

static void an_inventory_reads_back_as_it_was_written(void **state)
{
    (void)state;
    static const char text[] = HEAD
        "\"collected_at\":\"2026-12-01T20:36:02Z\",\"driver\":\"580.1\",\"nccl\":null,"
        "\"gpus\":[{\"index\":0,\"uuid\":\"GPU-1\",\"name\":\"NVIDIA X\",\"device\":\"X\","
        "\"memory_bytes\":42949672960,\"compute_capability\":\"8.0\",\"multiprocessors\":108,"
        "\"max_sm_clock_hz\":1410000000,\"pci\":\"0000:07:00.0\",\"pcie_generation\":4,"
        "\"pcie_width\":16,\"numa_node\":1,\"mig\":true,\"healthy\":false}," GPU(
            3) "],"
               "\"gpu_links\":[{\"gpus\":[0,3],\"kind\":\"nvlink\",\"bandwidth\":3e11}],"
               "\"nics\":[{\"name\":\"mlx5_0\",\"kind\":\"infiniband\",\"bandwidth\":25e9,"
               "\"numa_node\":0},{\"name\":\"eth0\",\"kind\":\"ethernet\"}],"
               "\"emulation\":{\"devices\":[\"X\",\"T4\"],\"speed\":[1.0,0.8],\"time_scale\":5e4},"
               "\"extra\":{\"why_empty\":\"a reason\"}}";
    struct eth_hpp_inventory first, second;
    struct eth_hpp_error err;
    char *written = NULL, *again = NULL;
    assert_int_equal(parse(text, &first, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_inventory_print(&first, &written, &err), ETH_HPP_OK);
    assert_int_equal(parse(written, &second, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_inventory_print(&second, &again, &err), ETH_HPP_OK);
    assert_string_equal(written, again);
    assert_int_equal(second.gpu_count, 2);
    assert_int_equal(second.gpus[1].index, 3);
    assert_true(second.gpus[0].mig && !second.gpus[0].healthy);
    assert_true(!second.gpus[1].mig && second.gpus[1].healthy);
    assert_int_equal(second.gpus[0].numa_node, 1);
    assert_int_equal(second.gpus[1].numa_node, -1);
    assert_string_equal(second.gpus[0].pci, "0000:07:00.0");
    assert_int_equal(second.gpu_links[0].gpus[1], 3);
    assert_true(second.nics[0].bandwidth == 25e9 && second.nics[1].bandwidth == 0);
    assert_int_equal(second.emulation.count, 2);
    assert_true(second.emulation.gpus[1].speed == 0.8 && second.emulation.time_scale == 5e4);
    assert_string_equal(second.why_empty, "a reason");
    free(written);
    free(again);
    eth_hpp_inventory_free(&first);
    eth_hpp_inventory_free(&second);
}

static void a_wrong_inventory_is_refused_with_the_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {HEAD "\"gpus\":[" GPU(0) "," GPU(0) "]}", "gpus[1]: index 0 stands twice"},
        {HEAD "\"gpus\":[{\"index\":0,\"device\":\"T4\"}]}", "gpus[0].memory_bytes"},
        {HEAD "\"gpus\":[{\"index\":0,\"device\":\"T4\",\"memory_bytes\":0}]}",
         "gpus[0].memory_bytes: must be 1.."},
        {HEAD "\"gpus\":[{\"index\":0,\"memory_bytes\":1e9}]}", "gpus[0].device"},
        {HEAD "\"gpus\":[{\"indx\":0}]}", "unknown key \"indx\""},
        {HEAD "\"gpus\":[" GPU(64) "]}", "gpus[0].index: must be 0..63"},
        {HEAD "\"gpus\":[" GPU(0) "],\"gpu_links\":[{\"gpus\":[0,1],\"kind\":\"pcie\","
                                  "\"bandwidth\":1e9}]}",
         "there is no GPU with index 1"},
        {HEAD "\"gpus\":[" GPU(0) "],\"emulation\":{\"devices\":[\"T4\",\"T4\"],\"speed\":[1,1],"
                                  "\"time_scale\":1}}",
         "emulation has 2 devices for 1 GPUs"},
        {HEAD "\"gpus\":[" GPU(0) "],\"emulation\":{\"devices\":[\"T4\"],\"speed\":[0],"
                                  "\"time_scale\":1}}",
         "emulation.speed[0]: must be"},
        {"{\"format\":\"eth-hpp-inventory\",\"version\":1,\"node\":\"n\",\"source\":\"magic\","
         "\"gpus\":[]}",
         "source must be nvml, file or none, is \"magic\""},
        {HEAD "\"gpus\":[],\"gpsu\":[]}", "unknown key \"gpsu\""},
        {HEAD "\"gpus\":[", "truncated"},
        {"{\"format\":\"eth-hpp-inventory\",\"version\":2}", "up to version 1"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_inventory inventory;
        struct eth_hpp_error err = {0};
        assert_int_equal(parse(cases[i].text, &inventory, &err), ETH_HPP_ERR_INPUT);
        if (strstr(err.text, cases[i].message) == NULL)
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.text, cases[i].message);
    }
}

/* ---- NVML, emulated ---- */

static void open_emulated_driver(void)
{
    /* Once it is loaded, the library of this name is found whatever the search path. */
    static void *library;
    if (library == NULL)
        library = dlopen(NVML_EMULATION, RTLD_NOW);
    if (library == NULL)
        fail_msg("%s", dlerror());
}

static struct eth_hpp_inventory collect(const char *scenario)
{
    struct eth_hpp_inventory inventory = {.source = "none"};
    struct eth_hpp_error err;
    open_emulated_driver();
    setenv("ETH_HPP_NVML_EMULATION", scenario, 1);
    assert_int_equal(eth_hpp_nvml_collect(&inventory, &err), ETH_HPP_OK);
    return inventory;
}

static void unlike_gpus_are_named_and_linked(void **state)
{
    (void)state;
    struct eth_hpp_inventory inventory = collect("unlike");
    assert_string_equal(inventory.source, "nvml");
    assert_string_equal(inventory.driver, "0.0-emulated");
    assert_int_equal(inventory.gpu_count, 3);
    assert_string_equal(inventory.gpus[0].device, "A100-SXM-40GB");
    assert_string_equal(inventory.gpus[1].device, "V100-SXM-16GB");
    assert_string_equal(inventory.gpus[2].device, "NVIDIA Future X1"); /* not in the database */
    assert_string_equal(inventory.gpus[0].pci, "0000:07:00.0");
    assert_string_equal(inventory.gpus[0].compute_capability, "8.0");
    assert_int_equal(inventory.gpus[0].multiprocessors, 108);
    assert_int_equal(inventory.gpus[1].multiprocessors, 80);
    assert_int_equal(inventory.gpus[2].multiprocessors, 200);
    assert_true(inventory.gpus[0].max_sm_clock_hz == 1410e6);
    assert_true(inventory.gpus[0].memory_bytes == 40960.0 * 1048576);
    assert_int_equal(inventory.gpu_link_count, 3);
    assert_string_equal(inventory.gpu_links[0].kind, "host");
    assert_true(inventory.gpu_links[0].bandwidth == 0.985e9 * 16); /* the slower of the two */
    eth_hpp_inventory_free(&inventory);
}

static void gpus_behind_a_switch_reach_each_other_over_all_links(void **state)
{
    (void)state;
    struct eth_hpp_inventory inventory = collect("switch");
    assert_int_equal(inventory.gpu_link_count, 6);
    for (int i = 0; i < 6; i++) {
        assert_string_equal(inventory.gpu_links[i].kind, "nvlink");
        assert_true(inventory.gpu_links[i].bandwidth == 300e9);
    }
    eth_hpp_inventory_free(&inventory);
}

static void slices_are_devices_of_their_own(void **state)
{
    (void)state;
    struct eth_hpp_inventory inventory = collect("slices");
    assert_int_equal(inventory.gpu_count, 3);
    assert_string_equal(inventory.gpus[0].device, "A100-SXM-80GB/3g.40gb");
    assert_string_equal(inventory.gpus[0].uuid, "MIG-emulated-0");
    assert_int_equal(inventory.gpus[0].multiprocessors, 42);
    assert_true(inventory.gpus[0].memory_bytes == 40192.0 * 1048576 && inventory.gpus[0].mig);
    assert_string_equal(inventory.gpus[1].device, "A100-SXM-80GB/2g.20gb");
    assert_string_equal(inventory.gpus[2].device, "A100-SXM-40GB");
    assert_false(inventory.gpus[2].mig);
    assert_int_equal(inventory.gpus[2].index, 2);
    for (int i = 0; i < inventory.gpu_link_count; i++)
        assert_string_equal(inventory.gpu_links[i].kind, "host");
    eth_hpp_inventory_free(&inventory);
}

static void sick_gpus_are_marked_or_left_out(void **state)
{
    (void)state;
    struct eth_hpp_inventory inventory = collect("sick");
    assert_int_equal(inventory.gpu_count, 1);
    assert_string_equal(inventory.gpus[0].device, "T4");
    assert_false(inventory.gpus[0].healthy);
    assert_string_equal(inventory.why_empty, "");
    eth_hpp_inventory_free(&inventory);
}

static void a_node_without_gpus_says_why(void **state)
{
    (void)state;
    struct eth_hpp_inventory inventory = collect("no-driver");
    assert_int_equal(inventory.gpu_count, 0);
    assert_string_equal(inventory.source, "none");
    assert_non_null(strstr(inventory.why_empty, "Driver Not Loaded"));
    eth_hpp_inventory_free(&inventory);
    inventory = collect("empty");
    assert_int_equal(inventory.gpu_count, 0);
    assert_non_null(strstr(inventory.why_empty, "sees no GPU"));
    eth_hpp_inventory_free(&inventory);
}

static void a_missing_driver_is_no_error(void **state)
{
    (void)state;
    struct eth_hpp_inventory inventory = {.source = "none"};
    struct eth_hpp_error err;
    void *real = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (real != NULL || access("/proc/driver/nvidia", F_OK) == 0) {
        print_message("# skipped: this machine has a driver\n");
        skip();
    }
    assert_int_equal(eth_hpp_nvml_collect(&inventory, &err), ETH_HPP_OK);
    assert_non_null(strstr(inventory.why_empty, "no NVIDIA driver"));
    eth_hpp_inventory_free(&inventory);
}

/* ---- the site's file ---- */

#define SITE "{\"format\":\"eth-hpp-site\",\"version\":1,\"nodes\":["

static enum eth_hpp_status site_parse(const char *text, const char *node,
                                      struct eth_hpp_site_node *site, struct eth_hpp_error *err)
{
    return eth_hpp_site_file_parse("s.json", text, strlen(text), node, site, err);
}

static void a_site_file_cannot_name_millions_of_nodes(void **state)
{
    (void)state;
    struct eth_hpp_site_node site;
    struct eth_hpp_error err;
    char text[4096] = SITE;
    for (int i = 0; i < 50; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s{\"name\":\"n%d-[1-50000]\"}",
                 i > 0 ? "," : "", i);
    strcat(text, "]}");
    assert_int_equal(site_parse(text, "x", &site, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "nodes[20]: hostlist \"n20-[1-50000]\": has too many names"));
}

static void what_a_site_states_wins_and_the_rest_is_found(void **state)
{
    (void)state;
    static const char text[] = SITE "{\"name\":\"gpu[01-03]\",\"gpus\":[" GPU(
        0) "]},"
           "{\"name\":\"gpu04\",\"nics\":[{\"name\":\"ib0\",\"bandwidth\":1e9}]}]}";
    struct eth_hpp_site_node site;
    struct eth_hpp_error err;
    struct eth_hpp_inventory found = collect("switch");
    assert_int_equal(site_parse(text, "gpu02", &site, &err), ETH_HPP_OK);
    eth_hpp_site_node_apply(&site, &found);
    assert_string_equal(found.source, "file");
    assert_int_equal(found.gpu_count, 1);
    assert_int_equal(found.gpu_link_count, 0);
    eth_hpp_site_node_free(&site);
    eth_hpp_inventory_free(&found);

    found = collect("switch");
    assert_int_equal(site_parse(text, "gpu04", &site, &err), ETH_HPP_OK);
    eth_hpp_site_node_apply(&site, &found);
    assert_string_equal(found.source, "nvml");
    assert_int_equal(found.gpu_count, 4);
    assert_int_equal(found.nic_count, 1);
    eth_hpp_site_node_free(&site);
    eth_hpp_inventory_free(&found);

    assert_int_equal(site_parse(text, "gpu05", &site, &err), ETH_HPP_OK);
    assert_false(site.found || site.has_gpus || site.has_nics || site.has_emulation);
}

static void a_site_states_slow_links_between_nodes(void **state)
{
    (void)state;
    static const char text[] = SITE "{\"name\":\"n[1-4]\"}],\"links\":[{\"between\":[\"n[1-2]\","
                                    "\"n[3-4]\"],\"bandwidth\":5e9,\"latency_s\":3e-5}]}";
    struct eth_hpp_site_node site;
    struct eth_hpp_error err;
    assert_int_equal(site_parse(text, "n1", &site, &err), ETH_HPP_OK);
    assert_int_equal(site.link_count, 1);
    assert_string_equal(site.links[0].between[1], "n[3-4]");
    assert_true(site.links[0].bandwidth == 5e9 && site.links[0].latency_s == 3e-5);
    eth_hpp_site_node_free(&site);
}

static void emulated_gpus_take_their_memory_from_the_database(void **state)
{
    (void)state;
    static const char text[] =
        SITE "{\"name\":\"n1\",\"emulation\":{\"devices\":[\"H100-SXM\",\"T4\"],"
             "\"speed\":[1.0,0.5],\"time_scale\":5e4}}]}";
    struct eth_hpp_site_node site;
    struct eth_hpp_error err;
    struct eth_hpp_inventory inventory = {.source = "none", .why_empty = "no driver"};
    assert_int_equal(site_parse(text, "n1", &site, &err), ETH_HPP_OK);
    eth_hpp_site_node_apply(&site, &inventory);
    assert_int_equal(inventory.gpu_count, 2);
    assert_string_equal(inventory.gpus[1].device, "T4");
    assert_string_equal(inventory.gpus[1].name, "emulated T4");
    assert_true(inventory.gpus[0].memory_bytes > 79e9 && inventory.gpus[0].memory_bytes < 90e9);
    assert_string_equal(inventory.why_empty, "");
    assert_true(inventory.emulation.gpus[1].speed == 0.5);
    eth_hpp_site_node_free(&site);
    eth_hpp_inventory_free(&inventory);
}

static void a_wrong_site_file_is_refused_with_the_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {SITE "{\"name\":\"n[1-\"}]}", "nodes[0]: hostlist"},
        {SITE "{\"name\":\"n1\"},{\"name\":\"n[1-2]\"}]}", "node n1 stands in two entries"},
        {SITE "{\"name\":\"n2\",\"gpus\":[{}]}]}", "nodes[0].gpus[0].index"},
        {SITE "{\"name\":\"n1\",\"emulation\":{\"devices\":[\"X9\"],\"speed\":[1],"
              "\"time_scale\":1}}]}",
         "\"X9\" is not in the device database"},
        {SITE "{\"name\":\"n1\",\"gpus\":[],\"emulation\":{\"devices\":[\"T4\"],\"speed\":[1],"
              "\"time_scale\":1}}]}",
         "emulation has 1 devices for 0 GPUs"},
        {SITE "{\"name\":\"n1\"}],\"links\":[{\"between\":[\"n1\"],\"bandwidth\":1e9}]}",
         "links[0].between: must have 2..2 entries"},
        {SITE "]}", "nodes: must have 1.."},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_site_node site;
        struct eth_hpp_error err = {0};
        assert_int_equal(site_parse(cases[i].text, "n1", &site, &err), ETH_HPP_ERR_INPUT);
        if (strstr(err.text, cases[i].message) == NULL)
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.text, cases[i].message);
    }
}

static void a_site_file_that_others_can_write_is_refused(void **state)
{
    (void)state;
    static const char text[] = SITE "{\"name\":\"n1\",\"gpus\":[" GPU(0) "]}]}";
    char folder[] = "test_site.XXXXXX", path[64];
    struct eth_hpp_site_node site;
    struct eth_hpp_error err;
    if (geteuid() != 0) {
        print_message("# skipped: only root can make a file that is accepted\n");
        skip();
    }
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/site.json", folder);
    assert_int_equal(eth_hpp_file_write(path, text, strlen(text), 0644, &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_site_file_load(path, "n1", &site, &err), ETH_HPP_OK);
    assert_true(site.has_gpus);
    eth_hpp_site_node_free(&site);
    assert_int_equal(chmod(path, 0664), 0);
    assert_int_equal(eth_hpp_site_file_load(path, "n1", &site, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "must not be writable by others"));
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(chown(path, 12345, 12345), 0);
    assert_int_equal(eth_hpp_site_file_load(path, "n1", &site, &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "must be owned by root, its owner is 12345"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- all together ---- */

static void a_broken_site_file_leaves_an_inventory_that_says_so(void **state)
{
    (void)state;
    struct eth_hpp_inventory inventory;
    struct eth_hpp_error err;
    open_emulated_driver();
    setenv("ETH_HPP_NVML_EMULATION", "switch", 1);
    eth_hpp_log_set_level(ETH_HPP_LOG_ERROR);
    assert_int_equal(eth_hpp_inventory_collect("n1", "/no/such/file", &inventory, &err),
                     ETH_HPP_OK);
    eth_hpp_log_set_level(ETH_HPP_LOG_INFO);
    assert_int_equal(inventory.gpu_count, 0);
    assert_string_equal(inventory.source, "none");
    assert_non_null(strstr(inventory.why_empty, "/no/such/file: cannot open"));
    assert_int_equal(strlen(inventory.collected_at), strlen("2026-12-01T20:36:02Z"));
    eth_hpp_inventory_free(&inventory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_inventory_reads_back_as_it_was_written),
        cmocka_unit_test(a_wrong_inventory_is_refused_with_the_place),
        cmocka_unit_test(a_missing_driver_is_no_error), /* before the emulated driver is loaded */
        cmocka_unit_test(unlike_gpus_are_named_and_linked),
        cmocka_unit_test(gpus_behind_a_switch_reach_each_other_over_all_links),
        cmocka_unit_test(slices_are_devices_of_their_own),
        cmocka_unit_test(sick_gpus_are_marked_or_left_out),
        cmocka_unit_test(a_node_without_gpus_says_why),
        cmocka_unit_test(a_site_file_cannot_name_millions_of_nodes),
        cmocka_unit_test(what_a_site_states_wins_and_the_rest_is_found),
        cmocka_unit_test(a_site_states_slow_links_between_nodes),
        cmocka_unit_test(emulated_gpus_take_their_memory_from_the_database),
        cmocka_unit_test(a_wrong_site_file_is_refused_with_the_place),
        cmocka_unit_test(a_site_file_that_others_can_write_is_refused),
        cmocka_unit_test(a_broken_site_file_leaves_an_inventory_that_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
