#include "launcher/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 4096 };

static const struct eth_hpp_inventory_gpu *by_index(const struct eth_hpp_inventory *inventory,
                                                    int index)
{
    for (int i = 0; i < inventory->gpu_count; i++)
        if (inventory->gpus[i].index == index)
            return &inventory->gpus[i];
    return NULL;
}

/* CUDA takes any prefix of a UUID that fits one device only. */
static const struct eth_hpp_inventory_gpu *by_uuid(const struct eth_hpp_inventory *inventory,
                                                   const char *uuid)
{
    const struct eth_hpp_inventory_gpu *found = NULL;
    for (int i = 0; i < inventory->gpu_count; i++)
        if (strncmp(inventory->gpus[i].uuid, uuid, strlen(uuid)) == 0) {
            if (found != NULL)
                return NULL;
            found = &inventory->gpus[i];
        }
    return found;
}

static bool is_number(const char *word)
{
    return *word != '\0' && strspn(word, "0123456789") == strlen(word) && strlen(word) < 6;
}

/* The device that one word of the list means, among the node's. */
static const struct eth_hpp_inventory_gpu *resolve(const struct eth_hpp_inventory *inventory,
                                                   const struct eth_hpp_inventory *visible,
                                                   const char *word)
{
    if (!is_number(word))
        return by_uuid(inventory, word);
    if (visible == NULL || visible->gpu_count == 0)
        return by_index(inventory, atoi(word));
    const struct eth_hpp_inventory_gpu *seen = by_index(visible, atoi(word));
    return seen != NULL && seen->uuid[0] != '\0' ? by_uuid(inventory, seen->uuid) : NULL;
}

/* The list in words; CUDA stops at the first that is no device. Returns their number. */
static int split(char *text, const char **words)
{
    int count = 0;
    char *state = NULL;
    for (char *word = strtok_r(text, ", ", &state); word != NULL && count < TEXT_MAX / 2;
         word = strtok_r(NULL, ", ", &state)) {
        bool device =
            is_number(word) || strncmp(word, "GPU-", 4) == 0 || strncmp(word, "MIG-", 4) == 0;
        if (!device)
            break;
        words[count++] = word;
    }
    return count;
}

static enum eth_hpp_status too_few(const struct eth_hpp_inventory *inventory, int count,
                                   const struct eth_hpp_bootstrap_place *place,
                                   struct eth_hpp_error *err)
{
    if (inventory->gpu_count == 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "node %s has no GPU: %s", inventory->node,
                                 inventory->why_empty[0] != '\0' ? inventory->why_empty
                                                                 : "none is in its inventory");
    if (count == 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "the job has no GPU on node %s, which has %d: ask for them, e.g. "
                                 "--gpus-per-node=%d",
                                 inventory->node, inventory->gpu_count, inventory->gpu_count);
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                             "%d ranks but %d GPU%s on node %s: each rank needs a GPU of its own; "
                             "ask for --ntasks-per-node=%d or more GPUs",
                             place->local_size, count, count == 1 ? "" : "s", inventory->node,
                             count);
}

enum eth_hpp_status
eth_hpp_gpu_find(const struct eth_hpp_inventory *inventory, const struct eth_hpp_inventory *visible,
                 const struct eth_hpp_bootstrap_place *place, const char *cuda_visible_devices,
                 const struct eth_hpp_inventory_gpu **gpu, struct eth_hpp_error *err)
{
    const struct eth_hpp_inventory_gpu *found = NULL;
    int position = place->local_rank, count = inventory->gpu_count;
    if (cuda_visible_devices != NULL && inventory->gpu_count > 0) {
        char text[TEXT_MAX];
        const char *words[TEXT_MAX / 2];
        snprintf(text, sizeof(text), "%s", cuda_visible_devices);
        count = split(text, words);
        position = count == 1 ? 0 : position;
        if (position < count) {
            found = resolve(inventory, visible, words[position]);
            if (found == NULL)
                return eth_hpp_error_set(
                    err, ETH_HPP_ERR_INPUT,
                    "device \"%.64s\" of CUDA_VISIBLE_DEVICES is not in the inventory of node %s",
                    words[position], inventory->node);
        }
    } else if (position < count) {
        found = &inventory->gpus[position];
    }
    if (found == NULL)
        return too_few(inventory, count, place, err);
    if (!found->healthy)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "GPU %d (%s) of node %s reports memory errors: leave the node out "
                                 "(--exclude=%s) until it has been reset",
                                 found->index, found->name, inventory->node, inventory->node);
    *gpu = found;
    return ETH_HPP_OK;
}

void eth_hpp_gpu_processors(struct eth_hpp_inventory_gpu *gpu)
{
    *gpu = (struct eth_hpp_inventory_gpu){.memory_bytes = (double)sysconf(_SC_PHYS_PAGES) *
                                                          (double)sysconf(_SC_PAGESIZE),
                                          .numa_node = -1,
                                          .healthy = true};
    snprintf(gpu->name, sizeof(gpu->name), "the machine's processors");
    snprintf(gpu->device, sizeof(gpu->device), ETH_HPP_CPU_DEVICE);
}
