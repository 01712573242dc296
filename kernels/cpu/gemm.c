#include "kernels/cpu/gemm.h"

#ifndef ETH_HPP_CPU_FLOAT64
#include <oneapi/dnnl/dnnl.h>

/* Of the OpenMP runtime that oneDNN uses; omp.h is part of a compiler and not with every one. */
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int count);
#endif

static real element(const struct eth_hpp_cpu_gemm *p, size_t i, size_t j)
{
    real sum = 0;
    for (size_t l = 0; l < p->k; l++) {
        const real a = p->a_transposed ? p->a[l * p->a_stride + i] : p->a[i * p->a_stride + l];
        const real b = p->b_transposed ? p->b[j * p->b_stride + l] : p->b[l * p->b_stride + j];
        sum += a * b;
    }
    return sum;
}

static void multiply_plainly(const struct eth_hpp_cpu_gemm *p)
{
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->n; j++) {
            real *c = &p->c[i * p->c_stride + j];
            const real kept = p->kept == 0 ? 0 : p->kept * *c;
            *c = kept + p->factor * element(p, i, j);
        }
}

#ifdef ETH_HPP_CPU_FLOAT64
void ETH_HPP_CPU(gemm)(const struct eth_hpp_cpu_gemm *product)
{
    multiply_plainly(product);
}
#else
void ETH_HPP_CPU(gemm)(const struct eth_hpp_cpu_gemm *product)
{
    /* The setting is the calling thread's own, and the user's program may want another. */
    const int before = omp_get_max_threads();
    if (before != 1)
        omp_set_num_threads(1);
    const dnnl_status_t status = dnnl_sgemm(
        product->a_transposed ? 'T' : 'N', product->b_transposed ? 'T' : 'N',
        (dnnl_dim_t)product->m, (dnnl_dim_t)product->n, (dnnl_dim_t)product->k, product->factor,
        product->a, (dnnl_dim_t)product->a_stride, product->b, (dnnl_dim_t)product->b_stride,
        product->kept, product->c, (dnnl_dim_t)product->c_stride);
    if (before != 1)
        omp_set_num_threads(before);
    /* Right arguments fail only where there is no memory for oneDNN's own buffers, before c has
     * been touched. */
    if (status != dnnl_success)
        multiply_plainly(product);
}
#endif
