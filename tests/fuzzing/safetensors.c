#include "fuzz.h"

#include <stdlib.h>

#include "runtime/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct eth_hpp_safetensors file;
    struct eth_hpp_error err;
    const char *path = fuzz_file(data, size, "");
    if (path == NULL || eth_hpp_safetensors_open(path, &file, &err) != ETH_HPP_OK)
        return 0;
    for (size_t i = 0; i < file.count; i++) {
        float *numbers = malloc(file.tensors[i].count * sizeof(*numbers) + 1);
        if (numbers != NULL)
            eth_hpp_safetensors_read(&file, &file.tensors[i], numbers, &err);
        free(numbers);
    }
    eth_hpp_safetensors_close(&file);
    return 0;
}
