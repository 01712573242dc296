#include "kernels/module.h"

#include "config.h"
#include "kernels/cuda/create.h"

const struct eth_hpp_module *eth_hpp_module_get(void)
{
    static const struct eth_hpp_module module = {
        .version = PACKAGE_VERSION,
        .ops_bytes = sizeof(struct eth_hpp_kernels_ops),
        .kernels_create = eth_hpp_cuda_create,
    };
    return &module;
}
