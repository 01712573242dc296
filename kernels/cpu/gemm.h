/* Matrix products: by oneDNN over float, by a plain loop over the double of the unit tests. */
#ifndef ETH_HPP_KERNELS_CPU_GEMM_H
#define ETH_HPP_KERNELS_CPU_GEMM_H

#include "kernels/cpu/cpu.h"

/* c[m][n] = factor x A[m][k] B[k][n] + kept x c, all row-major; with kept 0 c is only written.
 * Transposed means that memory holds A as [k][m], or B as [n][k]. Strides are from row to row in
 * memory. */
struct eth_hpp_cpu_gemm {
    size_t m, n, k;
    bool a_transposed, b_transposed;
    real factor, kept;
    const real *a, *b;
    size_t a_stride, b_stride, c_stride;
    real *c;
};

/* To be called before the first product: opens oneDNN. Errors: UNSUPPORTED (it is not installed).
 */
enum eth_hpp_status ETH_HPP_CPU(gemm_open)(struct eth_hpp_error *err);

/* By the calling thread alone. */
void ETH_HPP_CPU(gemm)(const struct eth_hpp_cpu_gemm *product);

#endif
