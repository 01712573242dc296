/* check_kernels: checks the GPU module's kernels on the first GPU, in every dtype that it has. */
#include <stdio.h>

#include "tests/device/check.h"

/* The CPU's kernels over double. */
enum eth_hpp_status eth_hpp_cpu64_create(struct eth_hpp_kernels **kernels,
                                         struct eth_hpp_error *err);

/* False where the GPU, or the module, cannot be used at all. */
static bool check_dtype(enum eth_hpp_dtype dtype, struct device_check *check)
{
    struct eth_hpp_error err = {0};
    enum eth_hpp_status status = eth_hpp_kernels_create("cuda", dtype, &check->device, &err);
    if (status == ETH_HPP_ERR_UNSUPPORTED && dtype != ETH_HPP_FP32) {
        printf("ok %d %s # skip %s\n", ++check->checks, eth_hpp_dtype_name(dtype), err.text);
        return true;
    }
    if (status != ETH_HPP_OK) {
        printf("Bail out! %s\n", err.text);
        return false;
    }
    check->dtype = dtype;
    check->label = check->device->name;
    if (dtype == ETH_HPP_FP32)
        printf("# on %s\n", check->device->model);
    device_check_all(check);
    status = check->device->ops->synchronize(check->device->state, &err);
    if (status != ETH_HPP_OK)
        printf("Bail out! %s\n", err.text);
    eth_hpp_kernels_destroy(check->device);
    return status == ETH_HPP_OK;
}

int main(void)
{
    static const enum eth_hpp_dtype dtypes[] = {ETH_HPP_FP32, ETH_HPP_BF16, ETH_HPP_FP16};
    struct device_check check = {.seed = 1};
    struct eth_hpp_error err = {0};
    if (eth_hpp_cpu64_create(&check.reference, &err) != ETH_HPP_OK ||
        eth_hpp_kernels_create("cpu", ETH_HPP_FP32, &check.exact, &err) != ETH_HPP_OK) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    bool usable = true;
    for (size_t i = 0; usable && i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        usable = check_dtype(dtypes[i], &check);
    printf("1..%d\n", check.checks);
    eth_hpp_kernels_destroy(check.reference);
    eth_hpp_kernels_destroy(check.exact);
    return !usable || check.failures > 0;
}
