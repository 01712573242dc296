/*
 * The GPU module: one shared object with everything that needs CUDA, opened when a GPU is there, so
 * that one build serves login, CPU and GPU nodes. It exports this one function.
 */
#ifndef ETH_HPP_KERNELS_MODULE_H
#define ETH_HPP_KERNELS_MODULE_H

#include "kernels/kernels.h"

#define ETH_HPP_MODULE_FILE  "libethhpp_cuda.so"
#define ETH_HPP_MODULE_ENTRY "eth_hpp_module_get"

struct eth_hpp_module {
    /* Both must be those of whoever opens the module, who looks at nothing else before. The first
     * two members stay what they are in every version. */
    const char *version;
    size_t ops_bytes; /* of struct eth_hpp_kernels_ops */
    /* eth_hpp_cuda_create */
    enum eth_hpp_status (*kernels_create)(const char *uuid, enum eth_hpp_dtype values,
                                          struct eth_hpp_kernels **kernels,
                                          struct eth_hpp_error *err);
};

ETH_HPP_API const struct eth_hpp_module *eth_hpp_module_get(void);

#endif
