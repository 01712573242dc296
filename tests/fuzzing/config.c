#include "fuzz.h"

#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct eth_hpp_model model;
    struct eth_hpp_error err;
    const char *path = fuzz_file(data, size, "");
    if (path != NULL)
        eth_hpp_model_find(path, &model, &err);
    return 0;
}
