#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "inventory/sources.h"

static void put(const char *root, const char *path, const char *text)
{
    char full[512], made[512];
    struct eth_hpp_error err;
    snprintf(full, sizeof(full), "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        snprintf(made, sizeof(made), "%.*s", (int)(slash - full), full);
        mkdir(made, 0700);
    }
    assert_int_equal(eth_hpp_file_write(full, text, strlen(text), 0600, &err), ETH_HPP_OK);
}

static void remove_tree(const char *root)
{
    char command[600];
    snprintf(command, sizeof(command), "rm -r '%s'", root);
    assert_int_equal(system(command), 0);
}

static bool all_but_foreign(const char *name)
{
    return strcmp(name, "foreign0") != 0;
}

static void network_cards_come_from_sysfs(void **state)
{
    (void)state;
    char root[] = "test_sysfs.XXXXXX";
    assert_non_null(mkdtemp(root));
    put(root, "class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    put(root, "class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n");
    put(root, "class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    put(root, "class/infiniband/mlx5_0/device/numa_node", "1\n");
    put(root, "class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    put(root, "class/infiniband/mlx5_2/ports/1/state", "4: ACTIVE\n");
    put(root, "class/infiniband/mlx5_2/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    put(root, "class/infiniband/mlx5_2/ports/1/link_layer", "Ethernet\n");
    put(root, "class/net/ib0/operstate", "up\n"); /* the same hardware as mlx5_0 */
    put(root, "class/net/ib0/device/infiniband/mlx5_0/x", "\n");
    put(root, "class/net/eth0/operstate", "up\n");
    put(root, "class/net/eth0/speed", "10000\n");
    put(root, "class/net/eth0/device/numa_node", "0\n");
    put(root, "class/net/eth1/operstate", "up\n"); /* a speed that is not told */
    put(root, "class/net/eth1/speed", "-1\n");
    put(root, "class/net/eth1/device/numa_node", "-1\n");
    put(root, "class/net/eth2/operstate", "down\n");
    put(root, "class/net/eth2/device/numa_node", "0\n");
    put(root, "class/net/docker0/operstate", "up\n");
    put(root, "class/net/lo/operstate", "up\n");
    put(root, "class/net/foreign0/operstate", "up\n"); /* of another network namespace */
    put(root, "class/net/foreign0/device/numa_node", "0\n");
    put(root, "bus/pci/devices/0000:07:00.0/numa_node", "3\n");
    struct eth_hpp_inventory inventory = {0};
    struct eth_hpp_error err;
    assert_int_equal(eth_hpp_sysfs_collect_nics(root, all_but_foreign, &inventory, &err),
                     ETH_HPP_OK);
    assert_int_equal(inventory.nic_count, 4);
    assert_string_equal(inventory.nics[0].name, "mlx5_0");
    assert_string_equal(inventory.nics[0].kind, "infiniband");
    assert_true(inventory.nics[0].bandwidth == 25e9);
    assert_int_equal(inventory.nics[0].numa_node, 1);
    assert_string_equal(inventory.nics[1].name, "mlx5_2");
    assert_string_equal(inventory.nics[1].kind, "ethernet");
    assert_string_equal(inventory.nics[2].name, "eth0");
    assert_true(inventory.nics[2].bandwidth == 1.25e9);
    assert_string_equal(inventory.nics[3].name, "eth1");
    assert_true(inventory.nics[3].bandwidth == 0);
    assert_int_equal(eth_hpp_sysfs_pci_numa_node(root, "0000:07:00.0"), 3);
    assert_int_equal(eth_hpp_sysfs_pci_numa_node(root, "0000:08:00.0"), -1);
    assert_int_equal(eth_hpp_sysfs_pci_numa_node(root, "../../../x"), -1);
    eth_hpp_inventory_free(&inventory);
    remove_tree(root);
}

static void a_node_with_virtual_interfaces_alone_uses_them(void **state)
{
    (void)state;
    char root[] = "test_sysfs.XXXXXX";
    assert_non_null(mkdtemp(root));
    put(root, "class/net/eth0/operstate", "up\n");
    put(root, "class/net/eth0/speed", "1000\n");
    put(root, "class/net/lo/operstate", "up\n");
    struct eth_hpp_inventory inventory = {0};
    struct eth_hpp_error err;
    assert_int_equal(eth_hpp_sysfs_collect_nics(root, all_but_foreign, &inventory, &err),
                     ETH_HPP_OK);
    assert_int_equal(inventory.nic_count, 1);
    assert_true(inventory.nics[0].bandwidth == 125e6);
    eth_hpp_inventory_free(&inventory);
    remove_tree(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(network_cards_come_from_sysfs),
        cmocka_unit_test(a_node_with_virtual_interfaces_alone_uses_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
