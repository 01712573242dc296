#include "plan/bound.h"

#include <stdlib.h>
#include <string.h>

#include "plan/bound_lp.h"
#include "plan/bound_network.h"
#include "plan/bound_stages.h"

/* So many times the GPUs that there are, rounding apart, are more. */
#define PROVEN (1 + 1e-9)

/* ---- prices at a step: step 4 of the proof ---- */

/* The part of its window that a worker with the cells from `first` to `last` can compute in. */
static double use_of(const struct eth_hpp_bound_room *b, const struct eth_hpp_bound_setting *s,
                     const struct sums *sums, int first, int last, double window)
{
    double forward = 0, backward = 0, n = b->global_batch / s->least_samples;
    double most = sums[last + 1].most_s - sums[first].most_s;
    int from, end;
    eth_hpp_bound_inner(b, first, last, &from, &end);
    if (from < end) {
        forward = sums[end].forward_s - sums[from].forward_s;
        backward = sums[end].backward_s - sums[from].backward_s;
    }
    double own = forward + backward, spare = window * (1 + 1e-12) - own - b->behind_s[last];
    if (spare < 0)
        return 0;
    if (own > 0)
        n = eth_hpp_bound_smaller(
            n, eth_hpp_bound_smaller(
                   eth_hpp_bound_whole(window / own),
                   1 + eth_hpp_bound_whole(spare / eth_hpp_bound_larger(forward, backward))));
    return eth_hpp_bound_smaller(1, n * most / window);
}

/* The first row from cell `first` on whose price falls if stages use this part of their window, or
 * the number of rows. */
static int find_dear(const struct eth_hpp_bound_room *b, int i,
                     const struct eth_hpp_bound_setting *s, int first, int end, double used_s)
{
    int tensor_parallel = b->cost->degree[s->degree], r = b->row_of[first];
    while (r < b->row_of[end] && tensor_parallel * s->once_s[b->row[r].kind] >=
                                     b->price[r * b->devices + i] * used_s * (1 - 1e-12))
        r++;
    return r < b->row_of[end] ? r : b->rows;
}

/* Lowers a device's prices of rows from cell `first` on to what stages that begin there take. */
static void price_stages(struct eth_hpp_bound_room *b, int i, int setting, int first, double window)
{
    const struct eth_hpp_bound_setting *s = &b->settings[setting];
    const struct sums *sums = &b->sums[setting * (b->cells + 1)];
    const struct reach *reach = &b->reach[setting * b->cells + first];
    const struct eth_hpp_device *device = &b->cost->cluster->devices[b->device[i]];
    int tensor_parallel = b->cost->degree[s->degree];
    int dear = find_dear(b, i, s, first, reach->end, window * reach->use);
    double best = 0;
    if (dear == b->rows)
        return;
    for (int last = reach->end - 1; last >= b->row[dear].cell; last--) {
        if (best < reach->use) {
            double use = use_of(b, s, sums, first, last, window);
            if (use > best)
                use = eth_hpp_bound_smaller(
                    use, eth_hpp_bound_use(
                             b,
                             eth_hpp_bound_in_flight(
                                 device, s,
                                 eth_hpp_bound_holding(b, s->degree, s->recompute, first, last)),
                             sums[last + 1].most_s - sums[first].most_s, last));
            best = eth_hpp_bound_larger(best, use);
        }
        for (int r = b->row_of[last]; r < b->row_of[last + 1] && best > 0; r++) {
            double *price = &b->price[r * b->devices + i];
            *price = eth_hpp_bound_smaller(*price, tensor_parallel * s->once_s[b->row[r].kind] /
                                                       (best * window));
        }
    }
}

static double tail_s(const struct eth_hpp_bound_room *b, double step_s)
{
    double tail = b->optimizer_s;
    if (step_s < b->alone_s)
        tail += b->sum_s;
    if (step_s < b->tied_alone_s)
        tail += b->tied_sum_s;
    return tail;
}

static void find_prices(struct eth_hpp_bound_room *b, double step_s)
{
    double all_s = step_s - tail_s(b, step_s);
    for (int i = 0; i < b->rows * b->devices; i++)
        b->price[i] = INFINITY;
    for (int i = 0; i < b->devices; i++)
        for (int j = b->first_setting[i]; j < b->first_setting[i + 1]; j++)
            for (int c = 0; c < b->cells && all_s > b->before_s[c]; c++)
                price_stages(b, i, j, c, all_s - b->before_s[c]);
}

/* Is there a layer that fits on no device? */
static bool fits_nowhere(const struct eth_hpp_bound_room *b)
{
    bool held[ETH_HPP_BOUND_CELLS] = {false};
    for (int i = 0; i < b->first_setting[b->devices] * b->cells; i++)
        for (int c = i % b->cells; c < b->reach[i].end; c++)
            held[c] = true;
    for (int c = 0; c < b->cells; c++)
        if (!held[c])
            return true;
    return false;
}

/* ---- the linear programme ---- */

/* Does a row cost all but the same as these prices? Rows that do become one. */
static bool alike(const double *a, const double *b, int count)
{
    for (int i = 0; i < count; i++)
        if (a[i] != b[i] && !(fabs(a[i] - b[i]) < 5e-4 * b[i]))
            return false;
    return true;
}

/* The loads of the programme from the prices, at the lower price where rows become one. */
static void find_loads(struct eth_hpp_bound_room *b)
{
    int rows = 0, devices = b->devices;
    double most = 0;
    for (int r = 0; r < b->rows; r++) {
        const double *price = &b->price[r * devices];
        if (rows == 0 || b->row[r].kind != b->row[r - 1].kind ||
            !alike(price, &b->load[(rows - 1) * devices], devices)) {
            memcpy(&b->load[rows * devices], price, (size_t)devices * sizeof(*price));
            b->load_kind[rows] = b->row[r].kind;
            b->layers[rows++] = 0;
        }
        b->layers[rows - 1] += b->row[r].layers;
        for (int i = 0; i < devices; i++)
            b->load[(rows - 1) * devices + i] =
                eth_hpp_bound_smaller(b->load[(rows - 1) * devices + i], price[i]);
    }
    for (int i = 0; i < rows * devices; i++) {
        b->load[i] *= (double)b->global_batch * b->layers[i / devices] / b->gpus[i % devices];
        most = isinf(b->load[i]) ? most : eth_hpp_bound_larger(most, b->load[i]);
    }
    for (int i = 0; i < rows * devices; i++) /* the programme wants finite loads */
        b->load[i] = eth_hpp_bound_smaller(b->load[i], 1e3 * most);
    b->load_rows = rows;
}

/* How many times the GPUs that there are it takes to end within a step: more than 1 proves that no
 * plan does. INFINITY where no GPU can hold some layer. */
static double needed(struct eth_hpp_bound_room *b, double step_s)
{
    find_prices(b, step_s);
    for (int r = 0; r < b->rows; r++) {
        double least = INFINITY;
        for (int i = 0; i < b->devices; i++)
            least = eth_hpp_bound_smaller(least, b->price[r * b->devices + i]);
        if (isinf(least))
            return INFINITY;
    }
    find_loads(b);
    double more = eth_hpp_bound_lp_proven(b->load, b->load_rows, b->devices, b->worth);
    if (more > PROVEN) /* by what was found at another step */
        return more;
    more = eth_hpp_bound_lp(b->load, b->load_rows, b->devices, b->worth);
    return more > PROVEN ? more : eth_hpp_bound_over_network(b, step_s, 1);
}

/* The least time of all computation without memory, fill, drain and whole numbers. Leaves its
 * loads, in seconds. */
static double simple_bound(struct eth_hpp_bound_room *b)
{
    for (int r = 0; r < b->rows; r++)
        for (int i = 0; i < b->devices; i++) {
            double least = INFINITY;
            for (int j = b->first_setting[i]; j < b->first_setting[i + 1]; j++)
                least = eth_hpp_bound_smaller(least, b->cost->degree[b->settings[j].degree] *
                                                         b->settings[j].once_s[b->row[r].kind]);
            b->price[r * b->devices + i] = least;
        }
    find_loads(b);
    return eth_hpp_bound_lp(b->load, b->load_rows, b->devices, b->worth);
}

/* The same with what networks carry, by the loads of the simple bound. */
static double needed_simply(struct eth_hpp_bound_room *b, double step_s)
{
    return eth_hpp_bound_over_network(b, step_s, step_s - b->optimizer_s);
}

/* The longest step that is proven to be impossible, where `low` is. One that needs so many times
 * what there is takes at least about that much longer, which is where to look next; but networks
 * that become fast enough change all at once, and then it is mostly nearer. */
static double raise(struct eth_hpp_bound_room *b, double low,
                    double (*find_needed)(struct eth_hpp_bound_room *b, double step_s))
{
    const double precision = 0.002;
    double high = INFINITY, more = find_needed(b, low), further = precision;
    for (int turn = 0; turn < 40 && more > PROVEN && high > (1 + precision) * low; turn++) {
        double step_s = low * (1 + further);
        if (isinf(high))
            step_s = low * eth_hpp_bound_smaller(eth_hpp_bound_larger(more, 1 + further), 2);
        else if (step_s >= high)
            step_s = sqrt(low * high);
        double there = find_needed(b, step_s);
        if (there > PROVEN) {
            low = step_s;
            more = there;
            further *= 2;
        } else {
            high = step_s;
            further = precision;
        }
    }
    return low;
}

static double search(struct eth_hpp_bound_room *b)
{
    double all_s = simple_bound(b);
    if (all_s + b->optimizer_s <= 0)
        return 0;
    if (fits_nowhere(b))
        return INFINITY;
    b->forward_s = eth_hpp_bound_forward_s(b, all_s);
    return raise(b, raise(b, all_s + b->optimizer_s, needed_simply), needed);
}

double eth_hpp_bound(const struct eth_hpp_cost *cost, int global_batch)
{
    struct eth_hpp_bound_room b = {.cost = cost, .global_batch = global_batch};
    double bound = 0;
    if (eth_hpp_bound_open(&b)) {
        size_t count = (size_t)(b.rows * b.devices);
        b.price = calloc(count, sizeof(*b.price));
        b.load = calloc(count, sizeof(*b.load));
        b.layers = calloc((size_t)b.rows, sizeof(*b.layers));
        b.worth = calloc((size_t)b.devices, sizeof(*b.worth));
        b.load_kind = calloc((size_t)b.rows, sizeof(*b.load_kind));
        if (b.price != NULL && b.load != NULL && b.layers != NULL && b.load_kind != NULL &&
            b.worth != NULL)
            bound = search(&b) * (1 - 1e-9); /* rounding must not pass the truth */
    }
    free(b.price);
    free(b.load);
    free(b.layers);
    free(b.worth);
    free(b.load_kind);
    eth_hpp_bound_close(&b);
    return bound;
}
