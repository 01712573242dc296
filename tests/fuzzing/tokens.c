#include "fuzz.h"

#include "runtime/data.h"

enum { SEQUENCE = 8 };

/* The first byte says whether it is a text or a file of tokens, and whether it is shuffled. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct eth_hpp_data_options options = {
        .sequence_length = SEQUENCE, .shuffle = size > 0 && (data[0] & 2), .seed = 1};
    int32_t tokens[SEQUENCE], targets[SEQUENCE];
    struct eth_hpp_data *opened;
    struct eth_hpp_error err;
    const char *path =
        size > 0 ? fuzz_file(data + 1, size - 1, data[0] & 1 ? ".bin" : ".txt") : NULL;
    if (path == NULL || eth_hpp_data_open(path, &options, &opened, &err) != ETH_HPP_OK)
        return 0;
    for (int64_t number = 0; number < 4; number++)
        eth_hpp_data_sample(opened, number, tokens, targets, &err);
    eth_hpp_data_close(opened);
    return 0;
}
