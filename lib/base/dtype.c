#include "base/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    int bytes, state_bytes, optimizer_bytes;
} dtypes[] = {
    [ETH_HPP_FP32] = {"fp32", 4, 16, 8},
    [ETH_HPP_BF16] = {"bf16", 2, 18, 12},
    [ETH_HPP_FP16] = {"fp16", 2, 18, 12},
};

const char *eth_hpp_dtype_name(enum eth_hpp_dtype dtype)
{
    return dtypes[dtype].name;
}

int eth_hpp_dtype_find(const char *name)
{
    for (int i = 0; i < (int)(sizeof(dtypes) / sizeof(dtypes[0])); i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return i;
    return -1;
}

int eth_hpp_dtype_bytes(enum eth_hpp_dtype dtype)
{
    return dtypes[dtype].bytes;
}

int eth_hpp_dtype_state_bytes(enum eth_hpp_dtype dtype)
{
    return dtypes[dtype].state_bytes;
}

int eth_hpp_dtype_optimizer_bytes(enum eth_hpp_dtype dtype)
{
    return dtypes[dtype].optimizer_bytes;
}
