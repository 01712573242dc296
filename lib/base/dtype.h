/* The number types of a job: one for all its devices. */
#ifndef ETH_HPP_BASE_DTYPE_H
#define ETH_HPP_BASE_DTYPE_H

enum eth_hpp_dtype { ETH_HPP_FP32, ETH_HPP_BF16, ETH_HPP_FP16 };

const char *eth_hpp_dtype_name(enum eth_hpp_dtype dtype); /* "fp32", "bf16", "fp16" */
/* The dtype of this name, or -1. */
int eth_hpp_dtype_find(const char *name);

/* Bytes of an activation value. */
int eth_hpp_dtype_bytes(enum eth_hpp_dtype dtype);
/* Bytes of weights, gradient and optimizer state of one parameter, and the optimizer's part of it
 * that sharding divides: fp32 16 and 8 (two moments); else 18 and 12 (moments and the fp32 master
 * weight beside the 2-byte weight and the fp32 gradient). */
int eth_hpp_dtype_state_bytes(enum eth_hpp_dtype dtype);
int eth_hpp_dtype_optimizer_bytes(enum eth_hpp_dtype dtype);

#endif
