#include "tests/device/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/device/values.h"

static void demand(bool fine, const struct eth_hpp_error *err)
{
    if (fine)
        return;
    printf("Bail out! %s\n", err->text[0] != '\0' ? err->text : "no memory");
    exit(1);
}

static double next_number(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) / (1 << 24) * 2 - 1;
}

void device_check_align(struct device_check *check, struct device_tensor *tensor)
{
    struct eth_hpp_error err = {0};
    const size_t bytes = tensor->count * (size_t)eth_hpp_dtype_bytes(tensor->dtype);
    void *elements = malloc(bytes);
    demand(elements != NULL, &err);
    device_values_pack(tensor->dtype, tensor->count, tensor->numbers, elements);
    demand(check->device->ops->to_device(check->device->state, tensor->memory, elements, bytes,
                                         &err) == ETH_HPP_OK,
           &err);
    free(elements);
}

static struct device_tensor make(struct device_check *check, enum eth_hpp_dtype dtype, size_t count,
                                 double scale)
{
    struct eth_hpp_error err = {0};
    struct device_tensor tensor = {
        .count = count, .dtype = dtype, .numbers = malloc(count * sizeof(double))};
    demand(tensor.numbers != NULL, &err);
    demand(check->device->ops->allocate(check->device->state,
                                        count * (size_t)eth_hpp_dtype_bytes(dtype), &tensor.memory,
                                        &err) == ETH_HPP_OK,
           &err);
    for (size_t i = 0; i < count; i++)
        tensor.numbers[i] = next_number(&check->seed) * scale;
    device_check_align(check, &tensor);
    return tensor;
}

struct device_tensor device_check_values(struct device_check *check, size_t count, double scale)
{
    return make(check, check->dtype, count, scale);
}

struct device_tensor device_check_sums(struct device_check *check, size_t count, double scale)
{
    return make(check, ETH_HPP_FP32, count, scale);
}

void device_check_release(struct device_check *check, struct device_tensor *tensor)
{
    check->device->ops->release(check->device->state, tensor->memory);
    free(tensor->numbers);
}

void device_check_compare(struct device_check *check, const char *what,
                          const struct device_tensor *tensor)
{
    struct eth_hpp_error err = {0};
    const size_t bytes = tensor->count * (size_t)eth_hpp_dtype_bytes(tensor->dtype);
    void *elements = malloc(bytes);
    double *found = malloc(tensor->count * sizeof(double)), largest = 1e-30;
    demand(elements != NULL && found != NULL, &err);
    demand(check->device->ops->to_host(check->device->state, elements, tensor->memory, bytes,
                                       &err) == ETH_HPP_OK,
           &err);
    device_values_unpack(tensor->dtype, tensor->count, elements, found);
    for (size_t i = 0; i < tensor->count; i++)
        largest = fmax(largest, fabs(tensor->numbers[i]));
    for (size_t i = 0; i < tensor->count; i++) {
        const double error =
            fabs(found[i] - tensor->numbers[i]) / (largest * device_values_rounding(tensor->dtype));
        if (error <= check->worst) /* a NaN is not */
            continue;
        check->worst = isnan(error) ? INFINITY : error;
        snprintf(check->where, sizeof(check->where), "%s[%zu]: %g for %g", what, i, found[i],
                 tensor->numbers[i]);
    }
    free(elements);
    free(found);
}

void device_check_end(struct device_check *check, const char *operation, double most)
{
    const bool fine = check->worst <= most;
    check->checks++;
    check->failures += !fine;
    printf("%sok %d %s (%s, %s): %.2g roundings off, at most %g\n", fine ? "" : "not ",
           check->checks, operation, eth_hpp_dtype_name(check->dtype), check->label, check->worst,
           most);
    if (!fine)
        printf("# %s\n", check->where);
    check->worst = 0;
    check->where[0] = '\0';
}
