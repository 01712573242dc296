#include "fuzz.h"

#include "inventory/sources.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct eth_hpp_site_node site;
    struct eth_hpp_error err;
    if (eth_hpp_site_file_parse("input", (const char *)data, size, "node1", &site, &err) ==
        ETH_HPP_OK)
        eth_hpp_site_node_free(&site);
    return 0;
}
