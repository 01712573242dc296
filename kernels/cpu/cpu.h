/*
 * The CPU kernels. Every file here has the operations of one kind and one function that puts them
 * into the table; the state that operations get are the threads, or NULL for none but the caller's.
 * All are written over the type `real`: float in the library; the unit tests build
 * the same files once more with double (ETH_HPP_CPU_FLOAT64), to check gradients against finite
 * differences.
 */
#ifndef ETH_HPP_KERNELS_CPU_CPU_H
#define ETH_HPP_KERNELS_CPU_CPU_H

#include "kernels/cpu/threads.h"
#include "kernels/kernels.h"

#ifdef ETH_HPP_CPU_FLOAT64
typedef double real;
#define ETH_HPP_CPU(name) eth_hpp_cpu64_##name
#else
typedef float real;
#define ETH_HPP_CPU(name) eth_hpp_cpu_##name
#endif

/* Compiled for plain x86-64 and for AVX2, chosen when the program starts. The results differ only
 * where a reduction is vectorised. */
#if defined(__x86_64__) && defined(__linux__) && !defined(ETH_HPP_CPU_FLOAT64)
#define ETH_HPP_CPU_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define ETH_HPP_CPU_CLONES
#endif

/* Chunks that threads take of a loop over elements, and over columns where each column is summed up
 * in the order of its rows. */
enum { ETH_HPP_CPU_ELEMENTS = 16384, ETH_HPP_CPU_COLUMNS = 64 };

/* Chunks of a loop over rows. */
static inline size_t eth_hpp_cpu_rows(size_t width)
{
    return ETH_HPP_CPU_ELEMENTS / width + 1;
}

/* Opens the table; eth_hpp_kernels_create calls it for "cpu". */
enum eth_hpp_status ETH_HPP_CPU(create)(struct eth_hpp_kernels **kernels,
                                        struct eth_hpp_error *err);

void ETH_HPP_CPU(memory_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(streams_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(embedding_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(layernorm_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(linear_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(attention_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(dropout_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(elementwise_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(swiglu_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(rotary_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(cross_entropy_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(optimizer_provide)(struct eth_hpp_kernels_ops *ops);
void ETH_HPP_CPU(initialise_provide)(struct eth_hpp_kernels_ops *ops);

#endif
