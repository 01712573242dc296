/*
 * Checks of a device's kernels against the CPU's, which the unit tests check in double against
 * finite differences. Both get the same random numbers, which the device's dtype can hold, so that
 * what is left is the device's own rounding. Prints a line of TAP for each operation.
 */
#ifndef ETH_HPP_TESTS_DEVICE_CHECK_H
#define ETH_HPP_TESTS_DEVICE_CHECK_H

#include "base/dtype.h"
#include "kernels/kernels.h"

struct device_check {
    struct eth_hpp_kernels *device, *reference; /* the reference is over double */
    struct eth_hpp_kernels *exact;              /* the CPU's over float: the same bits are due */
    enum eth_hpp_dtype dtype;
    const char *label; /* printed behind each line: what device that was */
    unsigned seed;
    int checks, failures;
    /* of the operation that is being checked */
    double worst;
    char where[128];
};

/* A tensor on both sides. */
struct device_tensor {
    size_t count;
    enum eth_hpp_dtype dtype; /* fp32 for sums */
    double *numbers;          /* the reference's, in host memory */
    void *memory;             /* the device's */
};

/* Tensors of random numbers within +-scale. They end the program where there is no memory. */
struct device_tensor device_check_values(struct device_check *check, size_t count, double scale);
struct device_tensor device_check_sums(struct device_check *check, size_t count, double scale);
void device_check_release(struct device_check *check, struct device_tensor *tensor);

/* Hands the reference's numbers to the device, so that the next operation starts alike on both. */
void device_check_align(struct device_check *check, struct device_tensor *tensor);

/* Compares a result: errors count in units of the dtype's rounding, relative to the largest number
 * of the tensor. */
void device_check_compare(struct device_check *check, const char *what,
                          const struct device_tensor *tensor);

/* Ends an operation: it passes where no compared result was further off than `most` roundings. */
void device_check_end(struct device_check *check, const char *operation, double most);

/* All operations; the number of failures. */
int device_check_all(struct device_check *check);

#endif
