#include "plan/deal.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BACK_MAX = 64 };

static double pace_s(const struct eth_hpp_pace *pace, int64_t n)
{
    return pace->fill + (double)n * pace->beat;
}

/* Micro-batches that every replica of a group can do within `s`, at least one. */
static int within(const struct eth_hpp_pace *pace, double s)
{
    double n = (s - pace->fill) / pace->beat;
    return n < 1 ? 1 : n > 1e9 ? 1000000000 : (int)n;
}

/* What is dealt within `s`: samples, and rounds of the groups' replicas. */
struct dealt {
    int64_t samples, rounds;
};

static struct dealt dealt(const struct eth_hpp_pace *paces, int groups, double s)
{
    struct dealt sum = {0, 0};
    for (int g = 0; g < groups; g++) {
        int each = within(&paces[g], s);
        sum.samples += (int64_t)paces[g].replicas * paces[g].micro_batch * each;
        sum.rounds += each;
    }
    return sum;
}

/* Gives `rest` samples to the pipelines that finish one more micro-batch first; those of group
 * `except` get none. totals[g] are the micro-batches of all replicas of a group. True if nothing is
 * left over. */
static bool deal_rest(const struct eth_hpp_pace *paces, int groups, int except, int64_t rest,
                      int64_t *totals)
{
    while (rest > 0) {
        int best = -1;
        double best_s = INFINITY;
        for (int g = 0; g < groups; g++) {
            double s = pace_s(&paces[g], totals[g] / paces[g].replicas + 1);
            if (g == except || paces[g].micro_batch > rest || s >= best_s)
                continue;
            best = g;
            best_s = s;
        }
        if (best < 0)
            return false;
        /* Its replicas that have not had their turn are all as good. */
        int64_t turn = paces[best].replicas - totals[best] % paces[best].replicas;
        int64_t can = rest / paces[best].micro_batch;
        totals[best] += turn < can ? turn : can;
        rest -= (turn < can ? turn : can) * paces[best].micro_batch;
    }
    return true;
}

/* A rest that is no micro-batch of anyone is made one by giving some back elsewhere. */
static bool deal_around(const struct eth_hpp_pace *paces, int groups, int64_t rest, int64_t *totals)
{
    int64_t start[ETH_HPP_DEAL_GROUPS];
    memcpy(start, totals, (size_t)groups * sizeof(*start));
    if (deal_rest(paces, groups, -1, rest, totals))
        return true;
    for (int back = 1; back <= BACK_MAX; back++)
        for (int g = 0; g < groups; g++) {
            memcpy(totals, start, (size_t)groups * sizeof(*start));
            totals[g] -= back;
            if (totals[g] >= paces[g].replicas &&
                deal_rest(paces, groups, g, rest + (int64_t)back * paces[g].micro_batch, totals))
                return true;
        }
    return false;
}

bool eth_hpp_deal(const struct eth_hpp_pace *paces, int groups, int global_batch, int *counts,
                  int *more)
{
    int64_t totals[ETH_HPP_DEAL_GROUPS];
    double low = 0, high, rate = 0, samples = global_batch, beat = 0;
    struct dealt least = dealt(paces, groups, low), most;
    if (least.samples > global_batch)
        return false;
    for (int g = 0; g < groups; g++) { /* where fractions of micro-batches would end */
        double each = paces[g].replicas * paces[g].micro_batch / paces[g].beat;
        rate += each;
        samples += each * paces[g].fill;
        beat = paces[g].beat > beat ? paces[g].beat : beat;
    }
    high = samples / rate;
    most = dealt(paces, groups, high);
    if (most.samples <= global_batch) {
        low = high;
        least = most;
    }
    high += beat;
    while ((most = dealt(paces, groups, high)).samples <= global_batch)
        high *= 2;
    /* Where one group's round makes the difference, nothing lies between. */
    for (int i = 0; i < 60 && high - low > 1e-12 * high && most.rounds - least.rounds > 1; i++) {
        double middle = (low + high) / 2;
        struct dealt here = dealt(paces, groups, middle);
        bool fits = here.samples <= global_batch;
        *(fits ? &low : &high) = middle;
        *(fits ? &least : &most) = here;
    }
    for (int g = 0; g < groups; g++)
        totals[g] = (int64_t)paces[g].replicas * within(&paces[g], low);
    if (!deal_around(paces, groups, global_batch - least.samples, totals))
        return false;
    for (int g = 0; g < groups; g++) {
        counts[g] = (int)(totals[g] / paces[g].replicas);
        more[g] = (int)(totals[g] % paces[g].replicas);
    }
    return true;
}

bool eth_hpp_deal_evenly(const struct eth_hpp_pace *paces, int groups, int global_batch,
                         int *counts, int *more)
{
    int64_t round = 0;
    for (int g = 0; g < groups; g++) {
        if (paces[g].micro_batch != paces[0].micro_batch)
            return false;
        round += (int64_t)paces[g].replicas * paces[g].micro_batch;
    }
    for (int g = 0; g < groups; g++) {
        counts[g] = (int)(global_batch / round);
        more[g] = 0;
    }
    return global_batch % round == 0 && counts[0] > 0;
}
