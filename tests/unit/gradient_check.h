/* Gradients in double against central differences, for tests of kernels and models. */
#ifndef ETH_HPP_TESTS_GRADIENT_CHECK_H
#define ETH_HPP_TESTS_GRADIENT_CHECK_H

#include <math.h>
#include <stdlib.h>

/* Small numbers without a pattern; the same at every run. */
static inline double gradient_check_number(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) / (1 << 24) * 2 - 1;
}

static inline double *gradient_check_numbers(size_t count, unsigned seed)
{
    double *numbers = malloc(count * sizeof(*numbers));
    assert_non_null(numbers);
    for (size_t i = 0; i < count; i++)
        numbers[i] = gradient_check_number(&seed);
    return numbers;
}

static inline double gradient_check_dot(const double *a, const double *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Compares gradient[i] with the slope of loss(at) in x[i], for at most 300 of the elements. */
static inline void gradient_check(const char *what, double (*loss)(void *at), void *at, double *x,
                                  size_t count, const double *gradient)
{
    const size_t stride = count / 300 + 1;
    for (size_t i = 0; i < count; i += stride) {
        const double kept = x[i], step = 1e-5;
        x[i] = kept + step;
        const double above = loss(at);
        x[i] = kept - step;
        const double below = loss(at);
        x[i] = kept;
        const double slope = (above - below) / (2 * step);
        if (!(fabs(slope - gradient[i]) <= 1e-7 + 1e-6 * fabs(slope)))
            fail_msg("%s[%zu]: gradient %.12g, slope %.12g", what, i, gradient[i], slope);
    }
}

#endif
