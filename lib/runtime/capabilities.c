#include "runtime/capabilities.h"

#include <limits.h>
#include <string.h>

#include "kernels/kernels.h"

#define ALL_DEVICES .max_tensor_parallel = 1, .recompute = true, .sharded_optimizer = true

const struct eth_hpp_capabilities *eth_hpp_capabilities_get(const char *device)
{
    static const struct eth_hpp_capabilities processors = {ALL_DEVICES, .max_head_size = INT_MAX,
                                                           .dtypes = {[ETH_HPP_FP32] = true}};
    static const struct eth_hpp_capabilities gpus = {
        ALL_DEVICES, .max_head_size = ETH_HPP_HEAD_SIZE_MOST,
        .dtypes = {[ETH_HPP_FP32] = true, [ETH_HPP_BF16] = true, [ETH_HPP_FP16] = true}};
    return strcmp(device, "cpu") == 0 ? &processors : &gpus;
}

static enum eth_hpp_status check_stage(const struct eth_hpp_capabilities *capabilities,
                                       const struct eth_hpp_plan *plan, int p, int s,
                                       struct eth_hpp_error *err)
{
    const struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
    if (stage->tensor_parallel > capabilities->max_tensor_parallel)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "the plan's pipelines[%d].stages[%d] has tensor_parallel %d, this "
                                 "runtime can run %d at most",
                                 p, s, stage->tensor_parallel, capabilities->max_tensor_parallel);
    if (stage->recompute && !capabilities->recompute)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "the plan's pipelines[%d].stages[%d] recomputes, which this "
                                 "runtime cannot do",
                                 p, s);
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_capabilities_check(const struct eth_hpp_capabilities *capabilities,
                                               const struct eth_hpp_plan *plan,
                                               struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    if (!capabilities->dtypes[plan->dtype])
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "the plan's dtype is %s, which this runtime does not train in on "
                                 "this device: plan with --dtype=fp32",
                                 eth_hpp_dtype_name(plan->dtype));
    if (plan->sharded_optimizer && !capabilities->sharded_optimizer)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "the plan's optimizer is sharded, this runtime can run a "
                                 "replicated one");
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; status == ETH_HPP_OK && s < plan->pipelines[p].stage_count; s++)
            status = check_stage(capabilities, plan, p, s, err);
    return status;
}
