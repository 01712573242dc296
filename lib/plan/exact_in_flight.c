/* Micro-batches in flight, chosen so that a pipeline ends early. */
#include <math.h>

#include "plan/exact_parts.h"

static int smaller_int(int a, int b)
{
    return a < b ? a : b;
}

static double run(struct eth_hpp_exact *x, int n)
{
    struct eth_hpp_workshop *shop = x->shop;
    double end_s = INFINITY;
    int64_t before = shop->evaluator.pipeline.computations;
    if (eth_hpp_pipeline_run_most(x->runs, x->made.stage_count, n, eth_hpp_pipeline_exact(x->runs),
                                  false, &shop->evaluator.pipeline, &end_s,
                                  &shop->error) != ETH_HPP_OK)
        shop->failed = true;
    shop->work += 1 + (shop->evaluator.pipeline.computations - before) / 16;
    return end_s;
}

/* As many as `wanted`, or what memory holds. Never more than the stage before. */
static void set_in_flight(struct eth_hpp_exact *x, int n, int (*wanted)(int behind))
{
    int most = n;
    for (int s = 0; s < x->made.stage_count; s++) {
        most = smaller_int(most, smaller_int(x->most[s], wanted(x->made.stage_count - 1 - s)));
        x->runs[s].in_flight = most;
    }
}

static int in_step(int behind)
{
    return 1 + behind;
}

static int ahead(int behind)
{
    return 1 + 2 * behind;
}

static int all_there_are(int behind)
{
    (void)behind;
    return INT32_MAX;
}

/* One more or less in flight in the stages from `first` to `last`; false where that cannot be. */
static bool shift(struct eth_hpp_exact *x, int n, int first, int last, int by)
{
    struct eth_hpp_stage_run *runs = x->runs;
    int before = first > 0 ? runs[first - 1].in_flight : n;
    int behind = last + 1 < x->made.stage_count ? runs[last + 1].in_flight : 1;
    if (runs[first].in_flight + by > before || runs[last].in_flight + by < behind)
        return false;
    for (int s = first; s <= last; s++)
        if (runs[s].in_flight + by > x->most[s])
            return false;
    for (int s = first; s <= last; s++)
        runs[s].in_flight += by;
    return true;
}

/* Changes what is in flight as long as that ends earlier. */
static double climb(struct eth_hpp_exact *x, int n, double end_s)
{
    int last = x->made.stage_count - 1;
    for (bool better = true; better && !x->shop->failed;) {
        better = false;
        for (int s = 0; s <= last; s++)
            for (int way = 0; way < 4; way++) {
                int first = way & 1 ? 0 : s, by = way & 2 ? -1 : 1;
                if ((s == 0 && first == 0 && (way & 1)) || !shift(x, n, first, s, by))
                    continue;
                double new_s = run(x, n);
                if (new_s < end_s * (1 - 1e-12)) {
                    end_s = new_s;
                    better = true;
                } else {
                    shift(x, n, first, s, -by);
                }
            }
    }
    return end_s;
}

double eth_hpp_exact_settle(struct eth_hpp_exact *x, int n)
{
    static int (*const wanted[])(int) = {in_step, ahead, all_there_are};
    int best[ETH_HPP_EXACT_GPUS];
    double best_s = INFINITY;
    for (int i = 0; i < 3; i++) {
        set_in_flight(x, n, wanted[i]);
        double end_s = run(x, n);
        if (end_s >= best_s)
            continue;
        best_s = end_s;
        for (int s = 0; s < x->made.stage_count; s++)
            best[s] = x->runs[s].in_flight;
    }
    for (int s = 0; s < x->made.stage_count; s++)
        x->runs[s].in_flight = best[s];
    bool alone = x->made.stage_count == 1; /* has nothing to wait for */
    return best_s < 1.2 * x->until_s && !alone ? climb(x, n, best_s) : best_s;
}
