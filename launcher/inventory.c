/* eth-hpp inventory: what this node has. */
#include "launcher/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "inventory/inventory.h"
#include "launcher/node.h"

enum { SITE_FILE, NODE, OUTPUT, OPTIONS };

static const struct eth_hpp_option options[OPTIONS] = {
    [SITE_FILE] = {.name = "site-file",
                   .kind = ETH_HPP_OPTION_FILE,
                   .argument = "FILE",
                   .help = "what the administrator states of the nodes (eth-hpp-site)"},
    [NODE] = {.name = "node",
              .kind = ETH_HPP_OPTION_TEXT,
              .argument = "NAME",
              .help = "name of this node (default: Slurm's, else the host's)"},
    [OUTPUT] = {.name = "output",
                .kind = ETH_HPP_OPTION_FILE,
                .argument = "FILE",
                .help = "where to write the inventory; - is standard output",
                .fallback = "-"},
};

static enum eth_hpp_status run(const struct eth_hpp_option_set *set, int argc, char **argv,
                               struct eth_hpp_error *err)
{
    (void)argc;
    (void)argv;
    char node[ETH_HPP_TEXT_MAX], *text = NULL;
    struct eth_hpp_inventory inventory;
    const char *named = eth_hpp_option_text(set, NODE);
    if (named != NULL && strlen(named) >= sizeof(node))
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "--node: a node's name has at most %zu bytes, this one %zu",
                                 sizeof(node) - 1, strlen(named));
    eth_hpp_node_name(node, sizeof(node));
    enum eth_hpp_status status = eth_hpp_inventory_collect(
        named != NULL ? named : node, eth_hpp_option_text(set, SITE_FILE), &inventory, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_inventory_print(&inventory, &text, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_file_output(eth_hpp_option_text(set, OUTPUT), text, err);
    free(text);
    eth_hpp_inventory_free(&inventory);
    return status;
}

int eth_hpp_command_inventory(int argc, char **argv)
{
    static const struct eth_hpp_command command = {
        .name = "inventory",
        .arguments = "[OPTIONS]",
        .what = "Writes what this node has: GPUs, links between them, network cards.",
        .table = options,
        .count = OPTIONS,
        .run = run};
    return eth_hpp_command_run(&command, argc, argv);
}
