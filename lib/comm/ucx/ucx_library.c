#include "comm/ucx/ucx_library.h"

#include "base/library.h"
#include "config.h"

struct eth_hpp_ucp eth_hpp_ucp;

enum eth_hpp_status eth_hpp_ucp_open(struct eth_hpp_error *err)
{
    void *library;
    enum eth_hpp_status status =
        eth_hpp_library_open(ETH_HPP_UCP_LIBRARY, "libucx0", &library, err);
#define FIND(prefix, name)                                                                         \
    if (status == ETH_HPP_OK)                                                                      \
        status = eth_hpp_library_find(library, ETH_HPP_UCP_LIBRARY, #prefix "_" #name,             \
                                      &eth_hpp_ucp.name, err);
    ETH_HPP_UCP_FUNCTIONS(FIND)
#undef FIND
    return status;
}
