#include "kernels/cpu/gemm.h"

#ifndef ETH_HPP_CPU_FLOAT64
#include <oneapi/dnnl/dnnl.h>

#include "base/library.h"
#include "config.h"

/* oneDNN, and of the OpenMP runtime that it uses what omp.h declares, which is part of a compiler
 * and not with every one. */
static struct {
    __typeof__(&dnnl_sgemm) sgemm;
    int (*get_max_threads)(void);
    void (*set_num_threads)(int count);
} onednn;

enum eth_hpp_status ETH_HPP_CPU(gemm_open)(struct eth_hpp_error *err)
{
    static const char file[] = ETH_HPP_ONEDNN_LIBRARY;
    void *library;
    enum eth_hpp_status status = eth_hpp_library_open(file, "libdnnl2", &library, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_library_find(library, file, "dnnl_sgemm", &onednn.sgemm, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_library_find(library, file, "omp_get_max_threads", &onednn.get_max_threads,
                                      err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_library_find(library, file, "omp_set_num_threads", &onednn.set_num_threads,
                                      err);
    return status;
}
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
enum eth_hpp_status ETH_HPP_CPU(gemm_open)(struct eth_hpp_error *err)
{
    (void)err;
    return ETH_HPP_OK;
}

void ETH_HPP_CPU(gemm)(const struct eth_hpp_cpu_gemm *product)
{
    multiply_plainly(product);
}
#else
void ETH_HPP_CPU(gemm)(const struct eth_hpp_cpu_gemm *product)
{
    /* The setting is the calling thread's own, and the user's program may want another. */
    const int before = onednn.get_max_threads();
    if (before != 1)
        onednn.set_num_threads(1);
    const dnnl_status_t status = onednn.sgemm(
        product->a_transposed ? 'T' : 'N', product->b_transposed ? 'T' : 'N',
        (dnnl_dim_t)product->m, (dnnl_dim_t)product->n, (dnnl_dim_t)product->k, product->factor,
        product->a, (dnnl_dim_t)product->a_stride, product->b, (dnnl_dim_t)product->b_stride,
        product->kept, product->c, (dnnl_dim_t)product->c_stride);
    if (before != 1)
        onednn.set_num_threads(before);
    /* Right arguments fail only where there is no memory for oneDNN's own buffers, before c has
     * been touched. */
    if (status != dnnl_success)
        multiply_plainly(product);
}
#endif
