/* eth-hpp profile: measures this device and writes the file that planning reads. */
#include "launcher/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/calibrate.h"
#include "launcher/node.h"

enum { MODEL, SEQ, GPU, MOST, DEVICE, OUTPUT, OPTIONS };
#define DRIVER_TIMEOUT_S 10.0

static const struct eth_hpp_option options[OPTIONS] = {
    [MODEL] = {.name = "model",
               .kind = ETH_HPP_OPTION_TEXT,
               .argument = "MODEL",
               .help = "a preset (gpt2, llama-7b, ...) or a Hugging Face config.json"},
    [SEQ] = {.name = "seq",
             .kind = ETH_HPP_OPTION_COUNT,
             .argument = "N",
             .help = "tokens of one sample (default: the model's context)",
             .least = 1,
             .most = 1 << 20},
    [GPU] = {.name = "gpu",
             .kind = ETH_HPP_OPTION_COUNT,
             .argument = "N",
             .help = "which of the node's GPUs, as the inventory counts them",
             .least = 0,
             .most = ETH_HPP_INVENTORY_GPUS_MAX - 1,
             .fallback = "0"},
    [MOST] = {.name = "samples",
              .kind = ETH_HPP_OPTION_COUNT,
              .argument = "N",
              .help = "largest micro-batch to measure",
              .least = 1,
              .most = 4096,
              .fallback = "64"},
    [DEVICE] = {.name = "device",
                .kind = ETH_HPP_OPTION_TEXT,
                .argument = "NAME",
                .help = "name of the device in the file (default: the inventory's)"},
    [OUTPUT] = {.name = "output",
                .kind = ETH_HPP_OPTION_FILE,
                .argument = "FILE",
                .help = "where to write the profile; - is standard output",
                .fallback = "-"},
};

static enum eth_hpp_status find_device(int index, struct eth_hpp_launch_rank *rank,
                                       struct eth_hpp_error *err)
{
    struct eth_hpp_inventory inventory;
    struct eth_hpp_inventory_gpu processors;
    struct eth_hpp_bootstrap_place place = {.size = 1, .local_size = 1};
    const struct eth_hpp_inventory_gpu *gpu = NULL;
    enum eth_hpp_status status = eth_hpp_node_inventory(&inventory, DRIVER_TIMEOUT_S, err);
    if (status != ETH_HPP_OK)
        return status;
    if (inventory.gpu_count == 0) {
        eth_hpp_gpu_processors(&processors);
        gpu = &processors;
    }
    for (int i = 0; i < inventory.gpu_count; i++)
        if (inventory.gpus[i].index == index)
            gpu = &inventory.gpus[i];
    if (gpu != NULL)
        eth_hpp_launch_rank_fill(&inventory, gpu, &place, rank);
    else
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "--gpu=%d: node %s has no such GPU",
                                   index, inventory.node);
    eth_hpp_inventory_free(&inventory);
    return status;
}

static enum eth_hpp_status profile(const struct eth_hpp_option_set *set, int argc, char **argv,
                                   struct eth_hpp_error *err)
{
    (void)argc;
    (void)argv;
    struct eth_hpp_model model;
    struct eth_hpp_launch_rank rank;
    struct eth_hpp_launch_times times;
    struct eth_hpp_profile made;
    const char *name = eth_hpp_option_text(set, MODEL), *device = eth_hpp_option_text(set, DEVICE);
    if (name == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "no model: give --model=MODEL");
    enum eth_hpp_status status = eth_hpp_model_find(name, &model, err);
    if (status == ETH_HPP_OK)
        status = find_device((int)eth_hpp_option_number(set, GPU), &rank, err);
    if (status != ETH_HPP_OK)
        return status;
    int sequence = eth_hpp_option_text(set, SEQ) != NULL ? (int)eth_hpp_option_number(set, SEQ)
                                                         : model.context;
    status = eth_hpp_calibrate_device(&model, sequence, ETH_HPP_FP32, &rank,
                                      (int)eth_hpp_option_number(set, MOST), ETH_HPP_CALIBRATE_YES,
                                      &times, err);
    if (status == ETH_HPP_OK)
        status =
            eth_hpp_calibrate_profile(&model, sequence, ETH_HPP_FP32,
                                      device != NULL ? device : rank.device, &times, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_profile_save(&made, eth_hpp_option_text(set, OUTPUT), err);
    eth_hpp_profile_free(&made);
    return status;
}

int eth_hpp_command_profile(int argc, char **argv)
{
    static const struct eth_hpp_command command = {
        .name = "profile",
        .arguments = "--model=MODEL [OPTIONS]",
        .what = "Measures how long the model's layers take on this device, as a launch does, and "
                "writes the\nprofile that `plan`, `simulate` and `launch --profile` read.",
        .table = options,
        .count = OPTIONS,
        .run = profile};
    return eth_hpp_command_run(&command, argc, argv);
}
