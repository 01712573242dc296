#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "inventory/device_db.h"
#include "inventory/sources.h"
#include "base/hostlist.h"

enum {
    FILE_LIMIT = 4 << 20,
    NODES_MAX = 100000,
    NAMES_MAX = 1 << 20, /* in all hostlists of a file */
    LIST_LONGEST = 4000
};

void eth_hpp_site_node_free(struct eth_hpp_site_node *site)
{
    for (int i = 0; i < site->link_count; i++) {
        free(site->links[i].between[0]);
        free(site->links[i].between[1]);
    }
    free(site->links);
    eth_hpp_inventory_free(&site->stated);
    *site = (struct eth_hpp_site_node){0};
}

/* Does the hostlist name the node? Records what is wrong with it. */
static bool names_node(const struct eth_hpp_json *at, const char *list, const char *node,
                       int *names_left)
{
    char **names = NULL;
    int count = 0;
    bool found = false;
    struct eth_hpp_error reason = {0};
    if (eth_hpp_json_failed(at))
        return false;
    if (eth_hpp_hostlist_expand(list, *names_left, &names, &count, &reason) != ETH_HPP_OK) {
        eth_hpp_json_fail(at, "%s", reason.text);
        return false;
    }
    *names_left -= count;
    for (int i = 0; i < count && !found; i++)
        found = strcmp(names[i], node) == 0;
    eth_hpp_hostlist_free(names, count);
    return found;
}

/* Emulated GPUs that the file does not list: what the device database knows of them. */
static void derive_gpus(const struct eth_hpp_json *at, struct eth_hpp_site_node *site)
{
    struct eth_hpp_inventory *stated = &site->stated;
    if (eth_hpp_json_failed(at))
        return;
    stated->gpus = calloc((size_t)stated->emulation.count, sizeof(*stated->gpus));
    if (stated->gpus == NULL) {
        eth_hpp_json_fail(at, "out of memory");
        return;
    }
    for (int i = 0; i < stated->emulation.count; i++) {
        const char *device = stated->emulation.gpus[i].device;
        const struct eth_hpp_device_spec *spec = eth_hpp_device_db_find(device);
        if (spec == NULL) {
            eth_hpp_json_fail(at,
                              "emulation.devices[%d]: \"%s\" is not in the device database: "
                              "list the node's gpus with their memory_bytes",
                              i, device);
            return;
        }
        struct eth_hpp_inventory_gpu *gpu = &stated->gpus[i];
        *gpu = (struct eth_hpp_inventory_gpu){
            .index = i, .memory_bytes = spec->memory_bytes, .numa_node = -1, .healthy = true};
        snprintf(gpu->device, sizeof(gpu->device), "%s", device);
        snprintf(gpu->name, sizeof(gpu->name), "emulated %.80s", device);
        stated->gpu_count = i + 1;
    }
    site->has_gpus = true;
}

static void read_node(const struct eth_hpp_json *at, const char *node, int *names_left,
                      struct eth_hpp_site_node *site)
{
    struct eth_hpp_site_node entry = {0};
    eth_hpp_json_keys(at, "name", "gpus", "nics", "emulation", NULL);
    entry.found = names_node(at, eth_hpp_json_string(at, "name", LIST_LONGEST), node, names_left);
    entry.has_gpus = eth_hpp_json_has(at, "gpus");
    entry.has_nics = eth_hpp_json_has(at, "nics");
    entry.has_emulation = eth_hpp_json_has(at, "emulation");
    if (entry.has_gpus)
        eth_hpp_inventory_read_gpus(at, &entry.stated);
    if (entry.has_nics)
        eth_hpp_inventory_read_nics(at, &entry.stated);
    if (entry.has_emulation)
        eth_hpp_inventory_read_emulation(at, &entry.stated);
    if (entry.has_emulation && !entry.has_gpus)
        derive_gpus(at, &entry);
    if (entry.has_emulation && entry.stated.emulation.count != entry.stated.gpu_count)
        eth_hpp_json_fail(at, "emulation has %d devices for %d GPUs", entry.stated.emulation.count,
                          entry.stated.gpu_count);
    if (entry.found && site->found)
        eth_hpp_json_fail(at, "name: node %s stands in two entries", node);
    if (entry.found && !site->found)
        *site = entry;
    else
        eth_hpp_site_node_free(&entry);
}

static void read_link(const struct eth_hpp_json *at, int *names_left,
                      struct eth_hpp_site_link *link)
{
    eth_hpp_json_keys(at, "between", "bandwidth", "latency_s", NULL);
    struct eth_hpp_json ends = eth_hpp_json_array(at, "between", 2, 2);
    for (size_t e = 0; e < 2; e++) {
        const char *list = eth_hpp_json_item_string(&ends, e, LIST_LONGEST);
        names_node(&ends, list, "", names_left); /* checks the list */
        link->between[e] = strdup(list);
        if (link->between[e] == NULL)
            eth_hpp_json_fail(&ends, "out of memory");
    }
    link->bandwidth = eth_hpp_json_number(at, "bandwidth", 1, 1e15);
    link->latency_s = eth_hpp_json_number_or(at, "latency_s", 0, 10, 0);
}

static void read_links(const struct eth_hpp_json *root, int *names_left,
                       struct eth_hpp_site_node *site)
{
    struct eth_hpp_json list = eth_hpp_json_array(root, "links", 0, NODES_MAX);
    size_t count = eth_hpp_json_length(&list);
    site->links = count > 0 ? calloc(count, sizeof(*site->links)) : NULL;
    if (count > 0 && site->links == NULL)
        eth_hpp_json_fail(&list, "out of memory");
    for (size_t i = 0; site->links != NULL && i < count && !eth_hpp_json_failed(root); i++) {
        struct eth_hpp_json at = eth_hpp_json_item(&list, i);
        site->link_count = (int)i + 1;
        read_link(&at, names_left, &site->links[i]);
    }
}

enum eth_hpp_status eth_hpp_site_file_parse(const char *name, const char *text, size_t size,
                                            const char *node, struct eth_hpp_site_node *site,
                                            struct eth_hpp_error *err)
{
    struct eth_hpp_json root;
    struct eth_hpp_site_node made = {0};
    struct eth_hpp_error reason = {0};
    struct eth_hpp_json_document *document = eth_hpp_json_parse(name, text, size, &root, &reason);
    if (document == NULL)
        return eth_hpp_error_set(err, reason.status, "%s", reason.text);
    eth_hpp_json_format(&root, "eth-hpp-site", 1);
    eth_hpp_json_keys(&root, "format", "version", "nodes", "links", NULL);
    struct eth_hpp_json nodes = eth_hpp_json_array(&root, "nodes", 1, NODES_MAX);
    int names_left = NAMES_MAX;
    for (size_t i = 0; i < eth_hpp_json_length(&nodes); i++) {
        struct eth_hpp_json at = eth_hpp_json_item(&nodes, i);
        read_node(&at, node, &names_left, &made);
    }
    if (eth_hpp_json_has(&root, "links"))
        read_links(&root, &names_left, &made);
    enum eth_hpp_status status = eth_hpp_json_finish(document, err);
    if (status != ETH_HPP_OK) {
        eth_hpp_site_node_free(&made);
        return status;
    }
    *site = made;
    return ETH_HPP_OK;
}

/* What root states must not come from anybody else. */
static enum eth_hpp_status check_owner(const char *path, int fd, struct eth_hpp_error *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "%s: cannot stat: %s", path, strerror(errno));
    if (info.st_uid != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: a site file must be owned by root, its owner is %u", path,
                                 (unsigned)info.st_uid);
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "%s: a site file must not be writable by others, its mode is %o: "
                                 "chmod go-w",
                                 path, (unsigned)info.st_mode & 07777);
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_site_file_load(const char *path, const char *node,
                                           struct eth_hpp_site_node *site,
                                           struct eth_hpp_error *err)
{
    char *text = NULL;
    size_t size, bytes;
    int fd;
    enum eth_hpp_status status = eth_hpp_file_open(path, &fd, &bytes, err);
    if (status != ETH_HPP_OK)
        return status;
    /* The file that was checked is the one that is read, whatever the path leads to by now. */
    status = check_owner(path, fd, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_file_read_opened(fd, path, bytes, FILE_LIMIT, &text, &size, err);
    close(fd);
    if (status == ETH_HPP_OK)
        status = eth_hpp_site_file_parse(path, text, size, node, site, err);
    free(text);
    return status;
}

void eth_hpp_site_node_apply(struct eth_hpp_site_node *site, struct eth_hpp_inventory *inventory)
{
    struct eth_hpp_inventory *stated = &site->stated;
    if (site->has_gpus) {
        free(inventory->gpus);
        free(inventory->gpu_links);
        inventory->gpus = stated->gpus;
        inventory->gpu_count = stated->gpu_count;
        inventory->gpu_links = NULL;
        inventory->gpu_link_count = 0;
        stated->gpus = NULL;
        stated->gpu_count = 0;
        snprintf(inventory->source, sizeof(inventory->source), "file");
        inventory->why_empty[0] = '\0';
        if (inventory->gpu_count == 0)
            snprintf(inventory->why_empty, sizeof(inventory->why_empty),
                     "the site's file states that this node has no GPUs");
    }
    if (site->has_nics) {
        free(inventory->nics);
        inventory->nics = stated->nics;
        inventory->nic_count = stated->nic_count;
        stated->nics = NULL;
        stated->nic_count = 0;
    }
    if (site->has_emulation)
        inventory->emulation = stated->emulation;
}
