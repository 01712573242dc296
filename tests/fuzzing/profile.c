#include "fuzz.h"

#include "plan/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct eth_hpp_profile profile;
    struct eth_hpp_error err;
    if (eth_hpp_profile_parse("input", (const char *)data, size, &profile, &err) == ETH_HPP_OK)
        eth_hpp_profile_free(&profile);
    return 0;
}
