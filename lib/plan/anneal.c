#include "plan/anneal.h"

#include <math.h>
#include <stdlib.h>

#include "plan/moves.h"

/* A temperature accepts a step that is this fraction longer with probability 1/e. */
#define COLD 0.0003

/* Many moves do not apply to a draft; that costs little. */
enum { ATTEMPTS = 64 };

void eth_hpp_anneal(struct eth_hpp_workshop *shop, struct eth_hpp_draft *draft, double *step_s,
                    int64_t work, uint64_t seed, double hot, double lower_bound_s)
{
    struct eth_hpp_draft *now = calloc(1, sizeof(*now)), *next = calloc(1, sizeof(*next));
    struct eth_hpp_search search = {
        .shop = shop, .options = shop->options, .draft = next, .random = seed};
    if (now == NULL || next == NULL) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
        goto out;
    }
    eth_hpp_draft_copy(now, draft);
    double now_s = *step_s;
    for (int64_t begin = shop->work, spent; (spent = shop->work - begin) < work && !shop->failed &&
                                            *step_s > ETH_HPP_ANNEAL_CLOSED * lower_bound_s;) {
        double temperature = hot * pow(COLD / hot, (double)spent / (double)work);
        shop->work++; /* a move that does not apply is not free either */
        bool changed = false;
        for (int attempt = 0; attempt < ATTEMPTS && !changed; attempt++) {
            eth_hpp_draft_copy(next, now);
            changed = eth_hpp_search_change(&search);
        }
        /* Metropolis' rule with its die cast first: what must take longer is not evaluated. */
        shop->limit_s = now_s * (1 - temperature * log(1 - eth_hpp_search_unit(&search)));
        double next_s = changed ? eth_hpp_draft_step_s(shop, next) : INFINITY;
        if (isinf(next_s))
            continue;
        now_s = next_s;
        eth_hpp_draft_copy(now, next);
        if (now_s < *step_s) {
            *step_s = now_s;
            eth_hpp_draft_copy(draft, now);
        }
    }
out:
    shop->limit_s = INFINITY;
    free(now);
    free(next);
}
