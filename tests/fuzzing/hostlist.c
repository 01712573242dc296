#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/hostlist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char **names, *text = strndup((const char *)data, size);
    int count;
    struct eth_hpp_error err;
    if (text != NULL && eth_hpp_hostlist_expand(text, 10000, &names, &count, &err) == ETH_HPP_OK) {
        free(eth_hpp_hostlist_fold((const char *const *)names, count));
        eth_hpp_hostlist_free(names, count);
    }
    free(text);
    return 0;
}
