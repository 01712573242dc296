/* check_kernels [LABEL]: checks the CUDA kernels on the first GPU, in every dtype that it has. */
#include <stdio.h>

#include "kernels/cuda/create.h"
#include "tests/device/check.h"

/* The CPU's kernels over double. */
enum eth_hpp_status eth_hpp_cpu64_create(struct eth_hpp_kernels **kernels,
                                         struct eth_hpp_error *err);

static int check_dtype(enum eth_hpp_dtype dtype, struct device_check *check)
{
    struct eth_hpp_error err = {0};
    enum eth_hpp_status status = eth_hpp_cuda_create(NULL, dtype, &check->device, &err);
    if (status == ETH_HPP_ERR_UNSUPPORTED && dtype != ETH_HPP_FP32) {
        printf("ok %d %s # skip %s\n", ++check->checks, eth_hpp_dtype_name(dtype), err.text);
        return 0;
    }
    if (status != ETH_HPP_OK) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    check->dtype = dtype;
    device_check_all(check);
    if (check->device->ops->synchronize(check->device->state, &err) != ETH_HPP_OK) {
        printf("Bail out! %s\n", err.text);
        check->failures++;
    }
    eth_hpp_kernels_destroy(check->device);
    return check->failures;
}

int main(int argc, char **argv)
{
    static const enum eth_hpp_dtype dtypes[] = {ETH_HPP_FP32, ETH_HPP_BF16, ETH_HPP_FP16};
    struct device_check check = {.label = argc > 1 ? argv[1] : "emulated", .seed = 1};
    struct eth_hpp_error err = {0};
    if (eth_hpp_cpu64_create(&check.reference, &err) != ETH_HPP_OK ||
        eth_hpp_kernels_create("cpu", ETH_HPP_FP32, &check.exact, &err) != ETH_HPP_OK) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        check_dtype(dtypes[i], &check);
    printf("1..%d\n", check.checks);
    eth_hpp_kernels_destroy(check.reference);
    eth_hpp_kernels_destroy(check.exact);
    return check.failures > 0;
}
