#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "inventory/sources.h"

static void set_time(struct eth_hpp_inventory *inventory)
{
    struct tm parts;
    time_t now = time(NULL);
    if (gmtime_r(&now, &parts) != NULL)
        strftime(inventory->collected_at, sizeof(inventory->collected_at), "%Y-%m-%dT%H:%M:%SZ",
                 &parts);
}

/* A site file that cannot be used leaves the node without a description: guessing in its place
 * could plan on GPUs that the administrator meant to keep out. */
static void use_no_gpus(struct eth_hpp_inventory *inventory, const char *why)
{
    eth_hpp_log_warning("%s", why);
    snprintf(inventory->source, sizeof(inventory->source), "none");
    snprintf(inventory->why_empty, sizeof(inventory->why_empty), "%.250s", why);
}

enum eth_hpp_status eth_hpp_inventory_collect(const char *node, const char *site_file,
                                              struct eth_hpp_inventory *inventory,
                                              struct eth_hpp_error *err)
{
    struct eth_hpp_inventory made = {.source = "none"};
    struct eth_hpp_site_node site = {0};
    struct eth_hpp_error reason = {0};
    enum eth_hpp_status status = ETH_HPP_OK;
    bool site_broken =
        site_file != NULL && eth_hpp_site_file_load(site_file, node, &site, &reason) != ETH_HPP_OK;
    snprintf(made.node, sizeof(made.node), "%s", node);
    set_time(&made);
    if (site_broken)
        use_no_gpus(&made, reason.text);
    else if (!site.has_gpus)
        status = eth_hpp_nvml_collect(&made, err);
    if (status == ETH_HPP_OK && !site.has_nics)
        status = eth_hpp_sysfs_collect_nics("/sys", eth_hpp_sysfs_interface_present, &made, err);
    if (status == ETH_HPP_OK) {
        eth_hpp_site_node_apply(&site, &made);
        *inventory = made;
        made = (struct eth_hpp_inventory){0};
    }
    eth_hpp_site_node_free(&site);
    eth_hpp_inventory_free(&made);
    return status;
}
