/* The CPU's kernels over double, opened for a group of tests, and gradients that are added to. */
#ifndef ETH_HPP_TESTS_KERNELS64_H
#define ETH_HPP_TESTS_KERNELS64_H

#include <string.h>

#define ETH_HPP_CPU_FLOAT64
#include "kernels/cpu/cpu.h"
#include "tests/unit/gradient_check.h"

static struct eth_hpp_kernels *kernels;
static const struct eth_hpp_kernels_ops *op;

static inline int open_kernels(void **state)
{
    (void)state;
    if (eth_hpp_cpu64_create(&kernels, NULL) != ETH_HPP_OK)
        return -1;
    op = kernels->ops;
    return 0;
}

static inline int close_kernels(void **state)
{
    (void)state;
    eth_hpp_kernels_destroy(kernels);
    return 0;
}

/* Gradients start from something, so that ADDS TO is seen; `without_start` takes it off again. */
static const double START = 0.25;

static inline double *started(size_t count)
{
    double *numbers = malloc(count * sizeof(*numbers));
    assert_non_null(numbers);
    for (size_t i = 0; i < count; i++)
        numbers[i] = START;
    return numbers;
}

static inline const double *without_start(double *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        numbers[i] -= START;
    return numbers;
}

#endif
