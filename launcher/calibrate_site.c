/* Links that an administrator states. */
#include "launcher/calibrate.h"

#include <stdlib.h>

#include "base/hostlist.h"
#include "inventory/sources.h"

enum { NODES_MAX = 100000 };

/* Those nodes of a hostlist that are in the cluster; *nodes is freed by the caller. */
static enum eth_hpp_status find_nodes(const char *list, const struct eth_hpp_cluster *cluster,
                                      int **nodes, int *count, struct eth_hpp_error *err)
{
    char **names;
    int name_count, found = 0;
    enum eth_hpp_status status = eth_hpp_hostlist_expand(list, NODES_MAX, &names, &name_count, err);
    if (status != ETH_HPP_OK)
        return status;
    int *made = calloc((size_t)name_count + 1, sizeof(*made));
    for (int i = 0; made != NULL && i < name_count; i++) {
        int node = eth_hpp_cluster_find_node(cluster, names[i]);
        if (node >= 0)
            made[found++] = node;
    }
    eth_hpp_hostlist_free(names, name_count);
    if (made == NULL)
        return eth_hpp_error_memory(err, "the site's links");
    *nodes = made;
    *count = found;
    return ETH_HPP_OK;
}

static enum eth_hpp_status apply_link(const struct eth_hpp_site_link *stated,
                                      struct eth_hpp_cluster *cluster, struct eth_hpp_error *err)
{
    struct eth_hpp_link link = {.bandwidth = stated->bandwidth, .latency_s = stated->latency_s};
    enum eth_hpp_status status =
        find_nodes(stated->between[0], cluster, &link.from, &link.from_count, err);
    if (status == ETH_HPP_OK)
        status = find_nodes(stated->between[1], cluster, &link.to, &link.to_count, err);
    if (status == ETH_HPP_OK && link.from_count > 0 && link.to_count > 0)
        status = eth_hpp_cluster_add_link(cluster, &link, err);
    free(link.from);
    free(link.to);
    return status;
}

enum eth_hpp_status eth_hpp_calibrate_apply_site(const char *site_file,
                                                 struct eth_hpp_cluster *cluster,
                                                 struct eth_hpp_error *err)
{
    struct eth_hpp_site_node site;
    enum eth_hpp_status status =
        eth_hpp_site_file_load(site_file, cluster->nodes[0].name, &site, err);
    if (status != ETH_HPP_OK)
        return status;
    for (int i = 0; i < site.link_count && status == ETH_HPP_OK; i++)
        status = apply_link(&site.links[i], cluster, err);
    eth_hpp_site_node_free(&site);
    return status;
}
