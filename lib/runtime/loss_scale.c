/*
 * fp16 has few exponents: gradients of values underflow long before those of weights matter. So the
 * loss, and with it every gradient, is taken times one scale for the whole job (arXiv:1710.03740),
 * which the update divides out again. As long as nothing overflows the scale grows; where something
 * does, the gradients' norm, which is the same on all ranks, is not finite: then all of them leave
 * the update out and go on with half of it.
 */
#include "runtime/context.h"

/* Gradients here are sums over the tokens, so that the first scale can be small. */
#define FIRST_SCALE 1024.0
enum { STEPS_TO_GROW = 2000 };

struct eth_hpp_loss_scale eth_hpp_loss_scale_first(enum eth_hpp_dtype dtype)
{
    return (struct eth_hpp_loss_scale){.factor = dtype == ETH_HPP_FP16 ? FIRST_SCALE : 1};
}

void eth_hpp_loss_scale_fits(struct eth_hpp_loss_scale *scale)
{
    if (++scale->steps == STEPS_TO_GROW) {
        scale->factor *= 2;
        scale->steps = 0;
    }
}

bool eth_hpp_loss_scale_overflows(struct eth_hpp_loss_scale *scale)
{
    if (scale->factor <= 1)
        return false;
    scale->factor /= 2;
    scale->steps = 0;
    return true;
}
