#include "plan/exact.h"

#include <math.h>
#include <stdlib.h>

#include "plan/exact_parts.h"
#include "plan/polish.h"

/* Plans evaluated to polish one; and of work that is left a use may take so many parts. */
enum { POLISHES = 400, SHARES = 16 };
/* Up to so many GPUs a search that is cut short finds plans all the same (tests/bench/optimum). */
enum { FEW = 6 };

/* ---- uses: how many GPUs of each pool, as one number ---- */

void eth_hpp_exact_open_use(const struct eth_hpp_exact *x, int use, int *taken)
{
    for (int p = 0; p < x->pool_count; p++) {
        taken[p] = use % (x->pools[p].gpus + 1);
        use /= x->pools[p].gpus + 1;
    }
}

static int close_use(const struct eth_hpp_exact *x, const int *taken)
{
    int use = 0;
    for (int p = x->pool_count - 1; p >= 0; p--)
        use = use * (x->pools[p].gpus + 1) + taken[p];
    return use;
}

static int count_gpus(const struct eth_hpp_exact *x, int use)
{
    int taken[ETH_HPP_EXACT_GPUS], sum = 0;
    eth_hpp_exact_open_use(x, use, taken);
    for (int p = 0; p < x->pool_count; p++)
        sum += taken[p];
    return sum;
}

bool eth_hpp_exact_holds(const struct eth_hpp_exact *x, int all, int use)
{
    int a[ETH_HPP_EXACT_GPUS], b[ETH_HPP_EXACT_GPUS];
    eth_hpp_exact_open_use(x, all, a);
    eth_hpp_exact_open_use(x, use, b);
    for (int p = 0; p < x->pool_count; p++)
        if (b[p] > a[p])
            return false;
    return true;
}

int eth_hpp_exact_standard(const struct eth_hpp_exact *x, int use, int *stand)
{
    int taken[ETH_HPP_EXACT_GPUS];
    eth_hpp_exact_open_use(x, use, taken);
    for (int p = 0; p < x->pool_count; p++)
        stand[p] = p;
    for (int p = 1; p < x->pool_count; p++)
        for (int q = p, r; q > 0; q = r) { /* insertion among the pools that are like it */
            for (r = q - 1; r >= 0 && x->pools[r].like != x->pools[q].like;)
                r--;
            if (r < 0 || taken[r] >= taken[q])
                break;
            int keep = taken[r], place = stand[r];
            taken[r] = taken[q];
            stand[r] = stand[q];
            taken[q] = keep;
            stand[q] = place;
        }
    return close_use(x, taken);
}

/* ---- what a cluster has ---- */

static bool like_nodes(const struct eth_hpp_workshop *shop, int a, int b)
{
    for (int p = 0; p < shop->pools.count; p++) {
        const struct eth_hpp_pool *pool = &shop->pools.pools[p];
        bool has_a = false, has_b = false;
        for (int i = 0; i < pool->node_count; i++) {
            has_a = has_a || pool->nodes[i] == a;
            has_b = has_b || pool->nodes[i] == b;
        }
        if (has_a != has_b)
            return false;
    }
    return true;
}

/* Only nodes of one kind of GPU can be exchanged pool by pool. */
static int find_like(const struct eth_hpp_exact *x, int pool)
{
    const struct eth_hpp_exact_pool *mine = &x->pools[pool];
    if (x->cost->cluster->nodes[mine->node].gpus != mine->gpus)
        return pool;
    for (int q = 0; q < pool; q++)
        if (x->pools[q].device == mine->device && x->pools[q].gpus == mine->gpus &&
            like_nodes(x->shop, x->pools[q].node, mine->node))
            return q;
    return pool;
}

/* False where there are too many GPUs, or ways to take some of them. */
static bool find_pools(struct eth_hpp_exact *x)
{
    const struct eth_hpp_cluster *cluster = x->cost->cluster;
    x->use_count = 1;
    for (int n = 0; n < cluster->node_count; n++)
        for (int p = 0; p < x->shop->pools.count; p++) {
            const struct eth_hpp_pool *pool = &x->shop->pools.pools[p];
            for (int i = 0; i < pool->node_count; i++) {
                if (pool->nodes[i] != n)
                    continue;
                x->gpus += pool->per_node;
                x->use_count *= pool->per_node + 1;
                if (x->gpus > ETH_HPP_EXACT_GPUS || x->use_count > ETH_HPP_EXACT_USES)
                    return false;
                x->pools[x->pool_count] = (struct eth_hpp_exact_pool){
                    .node = n, .device = pool->device, .gpus = pool->per_node};
                x->pools[x->pool_count].like = find_like(x, x->pool_count);
                x->pool_count++;
            }
        }
    return true;
}

/* Sums with two owners in these pools: more owners take longer. Of one byte, and of the first layer
 * and what is tied to it. */
static void find_sums(struct eth_hpp_exact *x, int p, int q)
{
    const struct eth_hpp_profile *profile = x->cost->profile;
    const struct eth_hpp_node *a = &x->cost->cluster->nodes[x->pools[p].node],
                              *b = &x->cost->cluster->nodes[x->pools[q].node];
    const struct eth_hpp_link *link = NULL;
    double bytes = profile->kinds[profile->layers[0]].gradient_bytes, sums = 1;
    /* Each of a group's GPUs sums a part. A third owner may stand on another node, and then the
     * ring takes the network. */
    double bandwidth =
        fmax(a->intra_bandwidth * x->cost->degree[x->cost->degrees - 1], a->inter_bandwidth);
    double latency_s = fmin(a->intra_latency_s, a->inter_latency_s);
    for (int t = 0; t < profile->tied_count; t++)
        if (profile->tied[t].kinds >> profile->layers[0] & 1) {
            bytes += profile->tied[t].gradient_bytes;
            sums++;
        }
    if (a != b) {
        bandwidth = fmin(a->inter_bandwidth, b->inter_bandwidth);
        latency_s = fmax(a->inter_latency_s, b->inter_latency_s);
        link = eth_hpp_cost_link(x->cost, x->pools[p].node, x->pools[q].node);
    }
    if (link != NULL) {
        bandwidth = fmin(bandwidth, link->bandwidth);
        latency_s = fmax(latency_s, link->latency_s);
    }
    x->byte_s[p][q] = 1 / bandwidth;
    x->sum_s[p][q] = bytes / bandwidth + 2 * sums * latency_s;
}

/* What sums take at the end of a plan in which these GPUs are not all that work. */
static double tail_s(const struct eth_hpp_exact *x, int use)
{
    int taken[ETH_HPP_EXACT_GPUS];
    double least = INFINITY;
    eth_hpp_exact_open_use(x, use, taken);
    for (int p = 0; p < x->pool_count; p++)
        for (int q = 0; q < x->pool_count; q++)
            if (taken[p] > 0 && taken[q] < x->pools[q].gpus)
                least = fmin(least, x->sum_s[p][q]);
    return least;
}

/* ---- samples that GPUs can serve ---- */

/* At most, if each GPU did nothing but its best. */
static int can_serve(const struct eth_hpp_exact *x, int use)
{
    const struct eth_hpp_exact_weights *weights = &x->weights_of[x->sizes];
    int taken[ETH_HPP_EXACT_GPUS];
    double rate = 0;
    eth_hpp_exact_open_use(x, use, taken);
    for (int p = 0; p < x->pool_count; p++)
        rate += taken[p] * weights->rate[p];
    double samples = floor(rate * x->limit_s / weights->weight[0] * (1 + 1e-9));
    return samples < x->global_batch ? (int)samples : x->global_batch;
}

/* The most samples that a pipeline which was found for a use serves. */
static int served_by_one(const struct eth_hpp_exact *x, int use)
{
    int b = x->global_batch, row = use * (x->global_batch + 1);
    while (b > 0 && x->lists[row + b].count == 0)
        b--;
    return b;
}

/* All pipelines of a use are known, and what uses of fewer GPUs can serve: what it can serve. */
static void find_served(struct eth_hpp_exact *x, int known)
{
    int stand[ETH_HPP_EXACT_GPUS];
    for (int all = 1; all < x->use_count; all++) {
        if (eth_hpp_exact_standard(x, all, stand) != known)
            continue;
        int most = served_by_one(x, known);
        for (int use = 1; use < all; use++)
            if (eth_hpp_exact_holds(x, all, use) && x->serves[use] + x->serves[all - use] > most)
                most = x->serves[use] + x->serves[all - use];
        x->serves[all] = most < x->serves[all] ? most : x->serves[all];
    }
}

/* ---- pipelines ---- */

static void find_pipelines(struct eth_hpp_exact *x, int use, int micro_batch)
{
    int all = x->use_count - 1, batch = x->global_batch;
    int others = x->shop->options->max_pipelines == 1 ? 0 : x->serves[all - use];
    int least = (batch - others + micro_batch - 1) / micro_batch;
    int most = (batch - 1) / micro_batch;
    if (use != all && others > 0 && most > 0 && least <= most)
        eth_hpp_exact_find(x, use, micro_batch, least > 1 ? least : 1, most, tail_s(x, use));
    if (batch % micro_batch == 0) /* it serves the whole batch */
        eth_hpp_exact_find(x, use, micro_batch, batch / micro_batch, batch / micro_batch, 0);
}

/* All pipelines of all uses, those of fewer GPUs first. Work that some do not need is left to the
 * others. */
static void find_all(struct eth_hpp_exact *x, int64_t work_end)
{
    int stand[ETH_HPP_EXACT_GPUS];
    int64_t parts = 0;
    for (int use = 0; use < x->use_count; use++) {
        x->serves[use] = can_serve(x, use);
        parts += eth_hpp_exact_standard(x, use, stand) == use ? x->sizes : 0;
    }
    for (int gpus = 1; gpus <= x->gpus; gpus++)
        for (int use = 1; use < x->use_count; use++) {
            if (count_gpus(x, use) != gpus || eth_hpp_exact_standard(x, use, stand) != use)
                continue;
            for (int m = 1; m <= x->sizes && !x->shop->failed; m++) {
                int64_t left = work_end - x->shop->work;
                x->work_end =
                    x->shop->work + (left > 0 ? left / (parts > SHARES ? parts / SHARES : 1) : 0);
                parts--;
                find_pipelines(x, use, m);
                x->cut_short = x->cut_short || x->shop->work >= x->work_end;
            }
            find_served(x, use);
        }
}

/* ---- the whole ---- */

static void clear_lists(struct eth_hpp_exact *x)
{
    for (int i = 0; x->lists != NULL && i < x->use_count * (x->global_batch + 1); i++)
        x->lists[i].count = 0;
}

static void search(struct eth_hpp_exact *x, int64_t work)
{
    int64_t begin = x->shop->work;
    clear_lists(x);
    find_all(x, begin + work / 4 * 3);
    x->work_end = begin + work;
    eth_hpp_exact_combine(x);
    x->cut_short = x->cut_short || x->shop->work >= x->work_end;
}

static bool open_search(struct eth_hpp_exact *x)
{
    x->lists = calloc((size_t)x->use_count * ((size_t)x->global_batch + 1), sizeof(*x->lists));
    x->soonest_s =
        calloc((size_t)x->use_count * ((size_t)x->global_batch + 1), sizeof(*x->soonest_s));
    for (int p = 0; p < x->pool_count; p++)
        for (int q = 0; q < x->pool_count; q++)
            find_sums(x, p, q);
    return x->lists != NULL && x->soonest_s != NULL && eth_hpp_exact_weigh(x);
}

static void close_search(struct eth_hpp_exact *x)
{
    for (int i = 0; x->lists != NULL && i < x->use_count * (x->global_batch + 1); i++)
        free(x->lists[i].pipelines);
    free(x->lists);
    free(x->soonest_s);
    free(x->weights_of);
    free(x->sums);
    eth_hpp_layout_free(&x->layout);
    eth_hpp_layout_free(&x->best);
}

/* Looks for a plan that takes less than `within` times the best one, with so much work. Leaves it
 * in the shop. */
static bool look_within(struct eth_hpp_exact *x, double within, int64_t work)
{
    int64_t end = x->shop->work + work;
    int ways = x->shop->options->no_sharded ? 1 : 2; /* of keeping the optimizer's state */
    x->cut_short = false;
    x->best.pipeline_count = 0;
    for (; ways > 0 && !x->shop->failed; ways--) {
        x->sharded = ways == 1 && !x->shop->options->no_sharded;
        x->limit_s = within * x->best_step.step_s;
        search(x, (end - x->shop->work) / ways);
    }
    if (x->shop->failed || x->best.pipeline_count == 0)
        return false;
    struct eth_hpp_layout other = x->shop->layout;
    x->shop->layout = x->best;
    x->best = other;
    x->shop->step = x->best_step;
    eth_hpp_polish(x->shop, POLISHES);
    x->best_step = x->shop->step;
    return true;
}

bool eth_hpp_exact_search(struct eth_hpp_workshop *shop, int64_t work, double *step_s, bool *closed)
{
    static const double within[] = {0.95, 0.99, 0.999};
    struct eth_hpp_exact x = {.shop = shop,
                              .cost = shop->cost,
                              .global_batch = shop->options->global_batch,
                              .best_step = {.step_s = *step_s}};
    bool extrapolate = shop->evaluator.extrapolate, better = false, hopeless = false;
    const bool few = shop->cost->cluster->gpu_count <= FEW;
    *closed = false;
    if (x.global_batch > ETH_HPP_EXACT_BATCH || !find_pools(&x))
        return false;
    shop->evaluator.extrapolate = false;
    if (!open_search(&x)) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
    }
    int64_t end = shop->work + (few ? work : work / 2);
    /* The nearer to the best plan known, the less is dropped: where that was too little before, and
     * of no use, it would be again, unless GPUs are very few. */
    for (int left = 3; left > 0 && !shop->failed && !hopeless; left--) {
        bool found = look_within(&x, within[3 - left], (end - shop->work) / (left > 1 ? 2 : 1));
        better = better || found;
        hopeless = !few && x.cut_short && !found;
    }
    *closed = !x.cut_short;
    *step_s = x.best_step.step_s;
    close_search(&x);
    shop->evaluator.extrapolate = extrapolate;
    return better;
}
