#include "inventory/inventory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_number(struct json_object **object, const char *key, double value)
{
    eth_hpp_json_put(object, key, eth_hpp_json_new_number(value));
}

/* An unknown text is null in the file. */
static void put_text(struct json_object **object, const char *key, const char *text)
{
    if (text[0] != '\0')
        eth_hpp_json_put(object, key, json_object_new_string(text));
    else if (*object != NULL)
        json_object_object_add(*object, key, NULL);
}

static struct json_object *write_gpu(const struct eth_hpp_inventory_gpu *gpu)
{
    struct json_object *at = json_object_new_object();
    put_number(&at, "index", gpu->index);
    put_text(&at, "uuid", gpu->uuid);
    put_text(&at, "name", gpu->name);
    put_text(&at, "device", gpu->device);
    put_number(&at, "memory_bytes", gpu->memory_bytes);
    put_text(&at, "compute_capability", gpu->compute_capability);
    put_number(&at, "multiprocessors", gpu->multiprocessors);
    put_number(&at, "max_sm_clock_hz", gpu->max_sm_clock_hz);
    put_text(&at, "pci", gpu->pci);
    put_number(&at, "pcie_generation", gpu->pcie_generation);
    put_number(&at, "pcie_width", gpu->pcie_width);
    put_number(&at, "numa_node", gpu->numa_node);
    eth_hpp_json_put(&at, "mig", json_object_new_boolean(gpu->mig));
    eth_hpp_json_put(&at, "healthy", json_object_new_boolean(gpu->healthy));
    return at;
}

static struct json_object *write_link(const struct eth_hpp_inventory_gpu_link *link)
{
    struct json_object *at = json_object_new_object(), *ends = json_object_new_array();
    for (int e = 0; e < 2; e++)
        eth_hpp_json_append(&ends, json_object_new_int(link->gpus[e]));
    eth_hpp_json_put(&at, "gpus", ends);
    put_text(&at, "kind", link->kind);
    put_number(&at, "bandwidth", link->bandwidth);
    return at;
}

static struct json_object *write_nic(const struct eth_hpp_inventory_nic *nic)
{
    struct json_object *at = json_object_new_object();
    put_text(&at, "name", nic->name);
    put_text(&at, "kind", nic->kind);
    if (nic->bandwidth > 0)
        put_number(&at, "bandwidth", nic->bandwidth);
    put_number(&at, "numa_node", nic->numa_node);
    return at;
}

static struct json_object *write_emulation(const struct eth_hpp_emulation *emulation)
{
    struct json_object *at = json_object_new_object();
    struct json_object *devices = json_object_new_array(), *speed = json_object_new_array();
    for (int i = 0; i < emulation->count; i++) {
        eth_hpp_json_append(&devices, json_object_new_string(emulation->gpus[i].device));
        eth_hpp_json_append(&speed, eth_hpp_json_new_number(emulation->gpus[i].speed));
    }
    eth_hpp_json_put(&at, "devices", devices);
    eth_hpp_json_put(&at, "speed", speed);
    put_number(&at, "time_scale", emulation->time_scale);
    return at;
}

static struct json_object *write_inventory(const struct eth_hpp_inventory *inventory)
{
    struct json_object *root = eth_hpp_json_new_file("eth-hpp-inventory", 1);
    struct json_object *gpus = json_object_new_array(), *links = json_object_new_array(),
                       *nics = json_object_new_array();
    for (int i = 0; i < inventory->gpu_count; i++)
        eth_hpp_json_append(&gpus, write_gpu(&inventory->gpus[i]));
    for (int i = 0; i < inventory->gpu_link_count; i++)
        eth_hpp_json_append(&links, write_link(&inventory->gpu_links[i]));
    for (int i = 0; i < inventory->nic_count; i++)
        eth_hpp_json_append(&nics, write_nic(&inventory->nics[i]));
    put_text(&root, "node", inventory->node);
    put_text(&root, "collected_at", inventory->collected_at);
    put_text(&root, "source", inventory->source);
    put_text(&root, "driver", inventory->driver);
    put_text(&root, "nccl", inventory->nccl);
    eth_hpp_json_put(&root, "gpus", gpus);
    eth_hpp_json_put(&root, "gpu_links", links);
    eth_hpp_json_put(&root, "nics", nics);
    if (inventory->emulation.count > 0)
        eth_hpp_json_put(&root, "emulation", write_emulation(&inventory->emulation));
    else
        put_text(&root, "emulation", "");
    if (inventory->why_empty[0] != '\0') {
        struct json_object *extra = json_object_new_object();
        put_text(&extra, "why_empty", inventory->why_empty);
        eth_hpp_json_put(&root, "extra", extra);
    }
    return root;
}

enum eth_hpp_status eth_hpp_inventory_print(const struct eth_hpp_inventory *inventory, char **text,
                                            struct eth_hpp_error *err)
{
    char *made = NULL;
    struct json_object *root = write_inventory(inventory);
    if (root == NULL)
        return eth_hpp_error_memory(err, "the inventory");
    const char *body = json_object_to_json_string_ext(
        root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (body == NULL || asprintf(&made, "%s\n", body) < 0)
        made = NULL;
    json_object_put(root);
    if (made == NULL)
        return eth_hpp_error_memory(err, "the inventory");
    *text = made;
    return ETH_HPP_OK;
}
