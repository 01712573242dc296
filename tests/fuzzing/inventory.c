#include "fuzz.h"

#include "inventory/inventory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct eth_hpp_inventory inventory;
    struct eth_hpp_error err;
    if (eth_hpp_inventory_parse("input", (const char *)data, size, &inventory, &err) == ETH_HPP_OK)
        eth_hpp_inventory_free(&inventory);
    return 0;
}
