/* The way into the CUDA kernels, for C. */
#ifndef ETH_HPP_KERNELS_CUDA_CREATE_H
#define ETH_HPP_KERNELS_CUDA_CREATE_H

#include "kernels/kernels.h"

/* Opens the kernels on the GPU of this UUID as NVML writes it (NULL: the first), for values of this
 * dtype. Errors: UNSUPPORTED (no driver, no such device, a dtype that it does not have), MEMORY,
 * IO.
 */
enum eth_hpp_status eth_hpp_cuda_create(const char *uuid, enum eth_hpp_dtype values,
                                        struct eth_hpp_kernels **kernels,
                                        struct eth_hpp_error *err);

#endif
