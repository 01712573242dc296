#include "inventory/inventory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inventory/sources.h"

enum { FILE_LIMIT = 1 << 20 };

static void copy(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from != NULL ? from : "");
}

/* An array for a list of the file; a list that is empty, or wrong, needs none. */
static void *make_list(const struct eth_hpp_json *list, size_t item_size)
{
    size_t count = eth_hpp_json_length(list);
    if (count == 0)
        return NULL;
    void *items = calloc(count, item_size);
    if (items == NULL)
        eth_hpp_json_fail(list, "out of memory");
    return items;
}

static void read_gpu(const struct eth_hpp_json *at, struct eth_hpp_inventory_gpu *gpu)
{
    eth_hpp_json_keys(at, "index", "uuid", "name", "device", "memory_bytes", "compute_capability",
                      "multiprocessors", "max_sm_clock_hz", "pci", "pcie_generation", "pcie_width",
                      "numa_node", "mig", "healthy", NULL);
    gpu->index = (int)eth_hpp_json_integer(at, "index", 0, ETH_HPP_INVENTORY_GPUS_MAX - 1);
    copy(gpu->uuid, sizeof(gpu->uuid),
         eth_hpp_json_string_or(at, "uuid", sizeof(gpu->uuid) - 1, ""));
    copy(gpu->device, sizeof(gpu->device),
         eth_hpp_json_string(at, "device", sizeof(gpu->device) - 1));
    copy(gpu->name, sizeof(gpu->name),
         eth_hpp_json_string_or(at, "name", sizeof(gpu->name) - 1, gpu->device));
    gpu->memory_bytes = eth_hpp_json_number(at, "memory_bytes", 1, 1e15);
    copy(gpu->compute_capability, sizeof(gpu->compute_capability),
         eth_hpp_json_string_or(at, "compute_capability", sizeof(gpu->compute_capability) - 1, ""));
    gpu->multiprocessors = (int)eth_hpp_json_integer_or(at, "multiprocessors", 0, 100000, 0);
    gpu->max_sm_clock_hz = eth_hpp_json_number_or(at, "max_sm_clock_hz", 0, 1e11, 0);
    copy(gpu->pci, sizeof(gpu->pci), eth_hpp_json_string_or(at, "pci", sizeof(gpu->pci) - 1, ""));
    gpu->pcie_generation = (int)eth_hpp_json_integer_or(at, "pcie_generation", 0, 20, 0);
    gpu->pcie_width = (int)eth_hpp_json_integer_or(at, "pcie_width", 0, 64, 0);
    gpu->numa_node = (int)eth_hpp_json_integer_or(at, "numa_node", -1, 4096, -1);
    gpu->mig = eth_hpp_json_boolean_or(at, "mig", false);
    gpu->healthy = eth_hpp_json_boolean_or(at, "healthy", true);
}

void eth_hpp_inventory_read_gpus(const struct eth_hpp_json *object,
                                 struct eth_hpp_inventory *inventory)
{
    struct eth_hpp_json list = eth_hpp_json_array(object, "gpus", 0, ETH_HPP_INVENTORY_GPUS_MAX);
    inventory->gpus = make_list(&list, sizeof(*inventory->gpus));
    for (size_t i = 0; inventory->gpus != NULL && i < eth_hpp_json_length(&list); i++) {
        struct eth_hpp_json at = eth_hpp_json_item(&list, i);
        read_gpu(&at, &inventory->gpus[i]);
        for (size_t j = 0; j < i; j++)
            if (inventory->gpus[j].index == inventory->gpus[i].index)
                eth_hpp_json_fail(&at, "index %d stands twice", inventory->gpus[i].index);
        inventory->gpu_count = (int)i + 1;
    }
}

static bool has_gpu(const struct eth_hpp_inventory *inventory, int index)
{
    for (int i = 0; i < inventory->gpu_count; i++)
        if (inventory->gpus[i].index == index)
            return true;
    return false;
}

static void read_gpu_links(const struct eth_hpp_json *object, struct eth_hpp_inventory *inventory)
{
    struct eth_hpp_json list =
        eth_hpp_json_array(object, "gpu_links", 0, ETH_HPP_INVENTORY_LINKS_MAX);
    inventory->gpu_links = make_list(&list, sizeof(*inventory->gpu_links));
    for (size_t i = 0; inventory->gpu_links != NULL && i < eth_hpp_json_length(&list); i++) {
        struct eth_hpp_inventory_gpu_link *link = &inventory->gpu_links[i];
        struct eth_hpp_json at = eth_hpp_json_item(&list, i);
        eth_hpp_json_keys(&at, "gpus", "kind", "bandwidth", NULL);
        struct eth_hpp_json ends = eth_hpp_json_array(&at, "gpus", 2, 2);
        for (size_t e = 0; e < 2; e++) {
            link->gpus[e] =
                (int)eth_hpp_json_item_integer(&ends, e, 0, ETH_HPP_INVENTORY_GPUS_MAX - 1);
            if (!has_gpu(inventory, link->gpus[e]))
                eth_hpp_json_fail(&ends, "there is no GPU with index %d", link->gpus[e]);
        }
        copy(link->kind, sizeof(link->kind),
             eth_hpp_json_string(&at, "kind", sizeof(link->kind) - 1));
        link->bandwidth = eth_hpp_json_number(&at, "bandwidth", 1, 1e15);
        inventory->gpu_link_count = (int)i + 1;
    }
}

void eth_hpp_inventory_read_nics(const struct eth_hpp_json *object,
                                 struct eth_hpp_inventory *inventory)
{
    struct eth_hpp_json list = eth_hpp_json_array(object, "nics", 0, ETH_HPP_INVENTORY_NICS_MAX);
    inventory->nics = make_list(&list, sizeof(*inventory->nics));
    for (size_t i = 0; inventory->nics != NULL && i < eth_hpp_json_length(&list); i++) {
        struct eth_hpp_inventory_nic *nic = &inventory->nics[i];
        struct eth_hpp_json at = eth_hpp_json_item(&list, i);
        eth_hpp_json_keys(&at, "name", "kind", "bandwidth", "numa_node", NULL);
        copy(nic->name, sizeof(nic->name), eth_hpp_json_string(&at, "name", sizeof(nic->name) - 1));
        copy(nic->kind, sizeof(nic->kind),
             eth_hpp_json_string_or(&at, "kind", sizeof(nic->kind) - 1, "ethernet"));
        nic->bandwidth = eth_hpp_json_number_or(&at, "bandwidth", 1, 1e15, 0);
        nic->numa_node = (int)eth_hpp_json_integer_or(&at, "numa_node", -1, 4096, -1);
        inventory->nic_count = (int)i + 1;
    }
}

void eth_hpp_inventory_read_emulation(const struct eth_hpp_json *object,
                                      struct eth_hpp_inventory *inventory)
{
    struct eth_hpp_emulation *emulation = &inventory->emulation;
    struct eth_hpp_json at = eth_hpp_json_object(object, "emulation");
    eth_hpp_json_keys(&at, "devices", "speed", "time_scale", NULL);
    struct eth_hpp_json devices = eth_hpp_json_array(&at, "devices", 1, ETH_HPP_INVENTORY_GPUS_MAX);
    size_t count = eth_hpp_json_length(&devices);
    struct eth_hpp_json speed = eth_hpp_json_array(&at, "speed", count, count);
    for (size_t i = 0; i < count && i < ETH_HPP_INVENTORY_GPUS_MAX; i++) {
        copy(emulation->gpus[i].device, sizeof(emulation->gpus[i].device),
             eth_hpp_json_item_string(&devices, i, ETH_HPP_TEXT_MAX - 1));
        emulation->gpus[i].speed = eth_hpp_json_item_number(&speed, i, 1e-3, 1e3);
        emulation->count = (int)i + 1;
    }
    emulation->time_scale = eth_hpp_json_number(&at, "time_scale", 0, 1e12);
}

static void read_inventory(const struct eth_hpp_json *root, struct eth_hpp_inventory *inventory)
{
    eth_hpp_json_format(root, "eth-hpp-inventory", 1);
    eth_hpp_json_keys(root, "format", "version", "node", "collected_at", "source", "driver", "nccl",
                      "gpus", "gpu_links", "nics", "emulation", NULL);
    copy(inventory->node, sizeof(inventory->node),
         eth_hpp_json_string(root, "node", sizeof(inventory->node) - 1));
    copy(inventory->collected_at, sizeof(inventory->collected_at),
         eth_hpp_json_string_or(root, "collected_at", sizeof(inventory->collected_at) - 1, ""));
    copy(inventory->source, sizeof(inventory->source),
         eth_hpp_json_string(root, "source", sizeof(inventory->source) - 1));
    if (strcmp(inventory->source, "nvml") != 0 && strcmp(inventory->source, "file") != 0 &&
        strcmp(inventory->source, "none") != 0)
        eth_hpp_json_fail(root, "source must be nvml, file or none, is \"%s\"", inventory->source);
    copy(inventory->driver, sizeof(inventory->driver),
         eth_hpp_json_string_or(root, "driver", sizeof(inventory->driver) - 1, ""));
    copy(inventory->nccl, sizeof(inventory->nccl),
         eth_hpp_json_string_or(root, "nccl", sizeof(inventory->nccl) - 1, ""));
    eth_hpp_inventory_read_gpus(root, inventory);
    if (eth_hpp_json_has(root, "gpu_links"))
        read_gpu_links(root, inventory);
    if (eth_hpp_json_has(root, "nics"))
        eth_hpp_inventory_read_nics(root, inventory);
    if (eth_hpp_json_has(root, "emulation")) {
        eth_hpp_inventory_read_emulation(root, inventory);
        if (inventory->emulation.count != inventory->gpu_count)
            eth_hpp_json_fail(root, "emulation has %d devices for %d GPUs",
                              inventory->emulation.count, inventory->gpu_count);
    }
    if (eth_hpp_json_has(root, "extra")) {
        struct eth_hpp_json extra = eth_hpp_json_object(root, "extra");
        copy(inventory->why_empty, sizeof(inventory->why_empty),
             eth_hpp_json_string_or(&extra, "why_empty", sizeof(inventory->why_empty) - 1, ""));
    }
}

static enum eth_hpp_status finish(struct eth_hpp_json_document *document,
                                  const struct eth_hpp_json *root,
                                  struct eth_hpp_inventory *inventory, struct eth_hpp_error *err)
{
    struct eth_hpp_inventory made = {0};
    read_inventory(root, &made);
    enum eth_hpp_status status = eth_hpp_json_finish(document, err);
    if (status != ETH_HPP_OK) {
        eth_hpp_inventory_free(&made);
        return status;
    }
    *inventory = made;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_inventory_load(const char *path, struct eth_hpp_inventory *inventory,
                                           struct eth_hpp_error *err)
{
    struct eth_hpp_json root;
    struct eth_hpp_error reason = {0};
    struct eth_hpp_json_document *document = eth_hpp_json_load(path, FILE_LIMIT, &root, &reason);
    if (document == NULL)
        return eth_hpp_error_set(err, reason.status, "%s", reason.text);
    return finish(document, &root, inventory, err);
}

enum eth_hpp_status eth_hpp_inventory_parse(const char *name, const char *text, size_t size,
                                            struct eth_hpp_inventory *inventory,
                                            struct eth_hpp_error *err)
{
    struct eth_hpp_json root;
    struct eth_hpp_error reason = {0};
    struct eth_hpp_json_document *document = eth_hpp_json_parse(name, text, size, &root, &reason);
    if (document == NULL)
        return eth_hpp_error_set(err, reason.status, "%s", reason.text);
    return finish(document, &root, inventory, err);
}

void eth_hpp_inventory_free(struct eth_hpp_inventory *inventory)
{
    free(inventory->gpus);
    free(inventory->gpu_links);
    free(inventory->nics);
    *inventory = (struct eth_hpp_inventory){0};
}
