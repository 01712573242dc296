#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/softmax.h"

ETH_HPP_CPU_CLONES
static real largest(size_t count, const real *x)
{
    return eth_hpp_cpu_largest(count, x);
}

/* The sum of exp(x - shift). */
ETH_HPP_CPU_CLONES
static real sum_exponentials(size_t count, const real *x, real shift)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < count; i++)
        sum += eth_hpp_cpu_exp(x[i] - shift);
    return sum;
}

ETH_HPP_CPU_CLONES
static void to_probabilities(size_t count, real *x, real shift, real sum)
{
    const real factor = 1 / sum;
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] = eth_hpp_cpu_exp(x[i] - shift) * factor;
}

static void cross_entropy_forward(void *state, size_t rows, size_t classes, const void *logits,
                                  const int32_t *targets, double *loss)
{
    (void)state;
    for (size_t r = 0; r < rows; r++) {
        if (targets[r] < 0)
            continue;
        const real *x = (const real *)logits + r * classes;
        const real most = largest(classes, x);
        loss[0] += log((double)sum_exponentials(classes, x, most)) +
                   ((double)most - (double)x[targets[r]]);
        loss[1] += 1;
    }
}

static void cross_entropy_backward(void *state, size_t rows, size_t classes, void *logits,
                                   const int32_t *targets)
{
    (void)state;
    for (size_t r = 0; r < rows; r++) {
        real *x = (real *)logits + r * classes;
        if (targets[r] < 0) {
            memset(x, 0, classes * sizeof(real));
            continue;
        }
        const real most = largest(classes, x);
        to_probabilities(classes, x, most, sum_exponentials(classes, x, most));
        x[targets[r]] -= 1;
    }
}

void ETH_HPP_CPU(cross_entropy_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->cross_entropy_forward = cross_entropy_forward;
    ops->cross_entropy_backward = cross_entropy_backward;
}
