#include "fuzz.h"

#include "plan/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct eth_hpp_plan plan;
    struct eth_hpp_error err;
    if (eth_hpp_plan_parse("input", (const char *)data, size, &plan, &err) == ETH_HPP_OK)
        eth_hpp_plan_free(&plan);
    return 0;
}
