#include "fuzz.h"

#include "plan/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct eth_hpp_cluster cluster;
    struct eth_hpp_error err;
    if (eth_hpp_cluster_parse("input", (const char *)data, size, &cluster, &err) == ETH_HPP_OK)
        eth_hpp_cluster_free(&cluster);
    return 0;
}
