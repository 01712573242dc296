#include <dirent.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inventory/sources.h"

enum { PATH_LENGTH = 512 };

/* ---- small reads ---- */

/* First line of a sysfs file; false where it cannot be read. */
static bool read_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool got = fgets(line, (int)size, file) != NULL;
    fclose(file);
    if (got)
        line[strcspn(line, "\n")] = '\0';
    return got;
}

static double read_number(const char *path, double fallback)
{
    char line[64], *end;
    if (!read_line(path, line, sizeof(line)))
        return fallback;
    double value = strtod(line, &end);
    return end == line ? fallback : value;
}

bool eth_hpp_sysfs_interface_present(const char *name)
{
    return if_nametoindex(name) != 0;
}

int eth_hpp_sysfs_pci_numa_node(const char *root, const char *pci)
{
    char path[PATH_LENGTH];
    if (pci[0] == '\0' || strchr(pci, '/') != NULL)
        return -1;
    snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/numa_node", root, pci);
    return (int)read_number(path, -1);
}

/* ---- the list ---- */

static enum eth_hpp_status add_nic(struct eth_hpp_inventory *inventory,
                                   const struct eth_hpp_inventory_nic *nic,
                                   struct eth_hpp_error *err)
{
    if (inventory->nic_count == ETH_HPP_INVENTORY_NICS_MAX)
        return ETH_HPP_OK;
    struct eth_hpp_inventory_nic *nics =
        realloc(inventory->nics, ((size_t)inventory->nic_count + 1) * sizeof(*nics));
    if (nics == NULL)
        return eth_hpp_error_memory(err, "network cards");
    nics[inventory->nic_count++] = *nic;
    inventory->nics = nics;
    return ETH_HPP_OK;
}

static int order_names(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static void free_names(char **names, int count)
{
    for (int i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

/* Names in a folder, sorted, so that an inventory does not depend on the order of a directory.
 * No folder: no names. Returns the count, or -1 when out of memory. */
static int list_folder(const char *path, char ***names)
{
    int count = 0;
    *names = NULL;
    DIR *folder = opendir(path);
    if (folder == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        char **more = realloc(*names, ((size_t)count + 1) * sizeof(**names));
        char *name = strdup(entry->d_name);
        if (more != NULL)
            *names = more;
        if (more == NULL || name == NULL) {
            free(name);
            free_names(*names, count);
            closedir(folder);
            return -1;
        }
        (*names)[count++] = name;
    }
    closedir(folder);
    if (count > 0)
        qsort(*names, (size_t)count, sizeof(**names), order_names);
    return count;
}

/* ---- InfiniBand and RoCE ---- */

/* One entry a port that is active; a card's first port has the card's name. */
static enum eth_hpp_status add_port(const char *root, const char *card, const char *port,
                                    struct eth_hpp_inventory *inventory, struct eth_hpp_error *err)
{
    char path[PATH_LENGTH], line[64];
    struct eth_hpp_inventory_nic nic = {0};
    snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%s/state", root, card, port);
    if (!read_line(path, line, sizeof(line)) || strstr(line, "ACTIVE") == NULL)
        return ETH_HPP_OK;
    snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%s/rate", root, card, port);
    nic.bandwidth = read_number(path, 0) * 1e9 / 8; /* "200 Gb/sec (4X HDR)" */
    snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%s/link_layer", root, card, port);
    bool infiniband = !read_line(path, line, sizeof(line)) || strcmp(line, "InfiniBand") == 0;
    snprintf(nic.kind, sizeof(nic.kind), "%s", infiniband ? "infiniband" : "ethernet");
    if (strcmp(port, "1") == 0)
        snprintf(nic.name, sizeof(nic.name), "%.90s", card);
    else
        snprintf(nic.name, sizeof(nic.name), "%.80s:%.10s", card, port);
    snprintf(path, sizeof(path), "%s/class/infiniband/%s/device/numa_node", root, card);
    nic.numa_node = (int)read_number(path, -1);
    return add_nic(inventory, &nic, err);
}

static enum eth_hpp_status collect_infiniband(const char *root, struct eth_hpp_inventory *inventory,
                                              struct eth_hpp_error *err)
{
    char path[PATH_LENGTH], **cards;
    enum eth_hpp_status status = ETH_HPP_OK;
    snprintf(path, sizeof(path), "%s/class/infiniband", root);
    int count = list_folder(path, &cards);
    if (count < 0)
        return eth_hpp_error_memory(err, "network cards");
    for (int i = 0; i < count && status == ETH_HPP_OK; i++) {
        char **ports;
        snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports", root, cards[i]);
        int port_count = list_folder(path, &ports);
        if (port_count < 0)
            status = eth_hpp_error_memory(err, "network cards");
        for (int p = 0; p < port_count && status == ETH_HPP_OK; p++)
            status = add_port(root, cards[i], ports[p], inventory, err);
        free_names(ports, port_count);
    }
    free_names(cards, count);
    return status;
}

/* ---- network interfaces ---- */

/* An InfiniBand or RoCE card's interface leads to the same hardware as its port. */
static bool belongs_to_infiniband(const char *root, const char *name)
{
    char path[PATH_LENGTH];
    struct stat info;
    snprintf(path, sizeof(path), "%s/class/net/%s/device/infiniband", root, name);
    return stat(path, &info) == 0;
}

static bool is_hardware(const char *root, const char *name)
{
    char path[PATH_LENGTH];
    struct stat info;
    snprintf(path, sizeof(path), "%s/class/net/%s/device", root, name);
    return stat(path, &info) == 0;
}

static bool is_up(const char *root, const char *name)
{
    char path[PATH_LENGTH], line[64];
    snprintf(path, sizeof(path), "%s/class/net/%s/operstate", root, name);
    return read_line(path, line, sizeof(line)) && strcmp(line, "up") == 0;
}

static enum eth_hpp_status add_interface(const char *root, const char *name,
                                         struct eth_hpp_inventory *inventory,
                                         struct eth_hpp_error *err)
{
    char path[PATH_LENGTH];
    struct eth_hpp_inventory_nic nic = {.kind = "ethernet"};
    snprintf(nic.name, sizeof(nic.name), "%.90s", name);
    snprintf(path, sizeof(path), "%s/class/net/%s/speed", root, name);
    double megabits = read_number(path, 0); /* -1 or an error: the driver does not tell */
    nic.bandwidth = megabits > 0 ? megabits * 1e6 / 8 : 0;
    snprintf(path, sizeof(path), "%s/class/net/%s/device/numa_node", root, name);
    nic.numa_node = (int)read_number(path, -1);
    return add_nic(inventory, &nic, err);
}

enum eth_hpp_status eth_hpp_sysfs_collect_nics(const char *root, eth_hpp_sysfs_present present,
                                               struct eth_hpp_inventory *inventory,
                                               struct eth_hpp_error *err)
{
    char path[PATH_LENGTH], **names;
    bool hardware = false;
    enum eth_hpp_status status = collect_infiniband(root, inventory, err);
    if (status != ETH_HPP_OK)
        return status;
    snprintf(path, sizeof(path), "%s/class/net", root);
    int count = list_folder(path, &names);
    if (count < 0)
        return eth_hpp_error_memory(err, "network cards");
    for (int i = 0; i < count; i++)
        hardware = hardware || (present(names[i]) && is_hardware(root, names[i]));
    for (int i = 0; i < count && status == ETH_HPP_OK; i++) {
        bool counts = strcmp(names[i], "lo") != 0 && present(names[i]) && is_up(root, names[i]) &&
                      is_hardware(root, names[i]) == hardware &&
                      !belongs_to_infiniband(root, names[i]);
        if (counts)
            status = add_interface(root, names[i], inventory, err);
    }
    free_names(names, count);
    return status;
}
