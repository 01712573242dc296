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

struct cross_entropy {
    size_t classes;
    const real *logits;
    const int32_t *targets;
    double *losses;  /* forward: of each row */
    real *gradients; /* backward */
    real scale;
};

static void forward_rows(const void *work, size_t first, size_t end)
{
    const struct cross_entropy *at = work;
    for (size_t r = first; r < end; r++) {
        if (at->targets[r] < 0)
            continue;
        const real *x = at->logits + r * at->classes;
        const real most = largest(at->classes, x);
        at->losses[r] = log((double)sum_exponentials(at->classes, x, most)) +
                        ((double)most - (double)x[at->targets[r]]);
    }
}

/* The threads write the losses of some rows side by side; they are added up in order. */
static void cross_entropy_forward(void *state, size_t rows, size_t classes, const void *logits,
                                  const int32_t *targets, double *loss)
{
    enum { ROWS = 512 };
    double losses[ROWS];
    for (size_t first = 0; first < rows; first += ROWS) {
        const size_t count = rows - first < ROWS ? rows - first : ROWS;
        const struct cross_entropy at = {.classes = classes,
                                         .logits = (const real *)logits + first * classes,
                                         .targets = targets + first,
                                         .losses = losses};
        eth_hpp_cpu_threads_run(state, count, eth_hpp_cpu_rows(classes), forward_rows, &at);
        for (size_t r = 0; r < count; r++)
            if (at.targets[r] >= 0) {
                loss[0] += losses[r];
                loss[1] += 1;
            }
    }
}

static void backward_rows(const void *work, size_t first, size_t end)
{
    const struct cross_entropy *at = work;
    for (size_t r = first; r < end; r++) {
        real *x = at->gradients + r * at->classes;
        if (at->targets[r] < 0) {
            memset(x, 0, at->classes * sizeof(real));
            continue;
        }
        const real most = largest(at->classes, x);
        to_probabilities(at->classes, x, most, sum_exponentials(at->classes, x, most));
        x[at->targets[r]] -= 1;
        for (size_t i = 0; at->scale != 1 && i < at->classes; i++)
            x[i] *= at->scale;
    }
}

static void cross_entropy_backward(void *state, size_t rows, size_t classes, void *logits,
                                   const int32_t *targets, double scale)
{
    const struct cross_entropy at = {
        .classes = classes, .targets = targets, .gradients = logits, .scale = (real)scale};
    eth_hpp_cpu_threads_run(state, rows, eth_hpp_cpu_rows(classes), backward_rows, &at);
}

void ETH_HPP_CPU(cross_entropy_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->cross_entropy_forward = cross_entropy_forward;
    ops->cross_entropy_backward = cross_entropy_backward;
}
