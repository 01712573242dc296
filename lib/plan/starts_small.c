#include "plan/starts_small.h"

#include <math.h>
#include <stdlib.h>

#include "plan/classes.h"

enum { KEPT = 3, PIPELINES = 6, MICRO_BATCHES = 8 };
/* Which stages recompute: none, all, or the first, which keeps most in flight. */
enum { NONE, ALL, FIRST, RECOMPUTES };
static const int chains_of[] = {
    [ETH_HPP_EFFORT_QUICK] = 0, [ETH_HPP_EFFORT_DEFAULT] = 3000, [ETH_HPP_EFFORT_THOROUGH] = 40000};

/* A chain of stages that uses some of the GPUs. */
struct chain {
    double beat_s;  /* of a micro-batch */
    double first_s; /* of the first one, with what else a step takes */
    double share_s; /* of the batch's part that falls to as many of its GPUs */
    struct eth_hpp_draft_group group;
};

/* The best chains of one use, the best first, for each micro-batch. */
struct chains {
    struct kept {
        int count;
        struct chain list[KEPT];
    } of[MICRO_BATCHES];
};

/* The best division of the GPUs of a use: how many samples it serves in the time at hand. */
struct division {
    double samples;
    int use, size, chain; /* of its last pipeline */
};

struct small {
    struct eth_hpp_workshop *shop;
    struct eth_hpp_candidates *candidates;
    struct eth_hpp_draft *draft; /* of the chain at hand, and of divisions */
    int pools, uses;
    int sizes;                    /* micro-batches of 1 to so many samples */
    int left[ETH_HPP_SMALL_GPUS]; /* GPUs of each pool that the chain at hand has yet to use */
    int chains_left;              /* to be tried */
    struct chains *chains;        /* [use] */
    struct division (*best)[ETH_HPP_SMALL_USES]; /* [pipelines][use] */
    bool (*holds)[ETH_HPP_SMALL_USES];           /* [all][use]: is a use part of another? */
};

/* ---- uses: how many GPUs of each pool, as one number ---- */

static int open_use(const struct small *small, int use, int *gpus)
{
    int sum = 0;
    for (int p = 0; p < small->pools; p++) {
        int radix = small->shop->pools.pools[p].gpus + 1;
        gpus[p] = use % radix;
        use /= radix;
        sum += gpus[p];
    }
    return sum;
}

static bool holds(const struct small *small, int all, int use)
{
    int a[ETH_HPP_SMALL_GPUS], b[ETH_HPP_SMALL_GPUS];
    open_use(small, all, a);
    open_use(small, use, b);
    for (int p = 0; p < small->pools; p++)
        if (b[p] > a[p])
            return false;
    return true;
}

/* Divisions ask it too often to reckon it anew each time. */
static void compare_uses(struct small *small)
{
    for (int all = 0; all < small->uses; all++)
        for (int use = 0; use <= all; use++)
            small->holds[all][use] = holds(small, all, use);
}

/* ---- chains ---- */

/* Lays the chain at hand alone, or as often as there is room where the optimizer's state is shared.
 * What is left of its step when the beats of the other micro-batches are taken off is the first's.
 * Where the state is shared with other chains, only its beat without hand-overs is known. */
static bool time_chain(struct small *small, double beat_s, struct chain *chain)
{
    struct eth_hpp_draft_group *group = &small->draft->groups[0];
    int each = group->replicas * group->micro_batch;
    int n = (small->shop->options->global_batch + each - 1) / each;
    enum eth_hpp_draft_fault fault = eth_hpp_draft_lay(small->shop, small->draft);
    chain->beat_s = beat_s;
    chain->first_s = beat_s * group->stage_count;
    if (fault == ETH_HPP_DRAFT_FITS) {
        chain->beat_s = small->shop->prices[0].pace.beat;
        chain->first_s = fmax(chain->beat_s, small->shop->step.step_s - (n - 1) * chain->beat_s);
    } else if (fault != ETH_HPP_DRAFT_GPUS) {
        return false;
    }
    chain->share_s = chain->first_s + (n - 1) * chain->beat_s;
    chain->group = *group;
    return true;
}

/* Cuts the layers of the chain at hand and keeps it among the best of its use. */
static void keep_chain(struct small *small, struct kept *to)
{
    struct eth_hpp_draft_group *group = &small->draft->groups[0];
    struct chain chain;
    for (int recompute = NONE; recompute < RECOMPUTES; recompute++) {
        double beat_s = INFINITY;
        if ((recompute != NONE && small->shop->options->no_recompute) ||
            (recompute == FIRST && group->stage_count == 1))
            break;
        for (int s = 0; s < group->stage_count; s++)
            group->stages[s].recompute = recompute == ALL || (recompute == FIRST && s == 0);
        small->chains_left--;
        if (!eth_hpp_draft_balance(small->shop, small->draft, 0, &beat_s) ||
            !time_chain(small, beat_s, &chain))
            continue;
        int at = to->count;
        if (at == KEPT && chain.share_s >= to->list[--at].share_s)
            continue;
        to->count = at + 1;
        for (; at > 0 && to->list[at - 1].share_s > chain.share_s; at--)
            to->list[at] = to->list[at - 1];
        to->list[at] = chain;
    }
}

static void add_stages(struct small *small, int gpus, struct kept *to);

/* Gives the last stage workers of the pools from `pool` on, then goes on to the next stage. */
static void add_parts(struct small *small, int pool, int gpus, struct kept *to)
{
    struct eth_hpp_draft_group *group = &small->draft->groups[0];
    struct eth_hpp_draft_stage *stage = &group->stages[group->stage_count - 1];
    int degree = small->shop->cost->degree[stage->degree];
    if (stage->part_count > 0) {
        if (gpus == 0)
            keep_chain(small, to);
        else
            add_stages(small, gpus, to);
    }
    if (stage->part_count == ETH_HPP_DRAFT_PARTS)
        return;
    int busy = eth_hpp_draft_workers(stage);
    for (int p = pool; p < small->pools; p++) {
        if (!eth_hpp_classes_has_degree(small->shop, p, stage->degree))
            continue;
        for (int w = 1; w * degree <= small->left[p] && busy + w <= group->micro_batch; w++) {
            int part = stage->part_count++;
            stage->parts[part].pool = p;
            stage->parts[part].workers = w;
            small->left[p] -= w * degree;
            add_parts(small, p + 1, gpus - w * degree, to);
            small->left[p] += w * degree;
            stage->part_count = part;
        }
    }
}

static void add_stages(struct small *small, int gpus, struct kept *to)
{
    struct eth_hpp_draft_group *group = &small->draft->groups[0];
    if (group->stage_count == small->shop->cost->profile->layer_count ||
        group->stage_count == ETH_HPP_DRAFT_STAGES)
        return;
    int at = group->stage_count++;
    for (int d = 0; d < small->shop->cost->degrees && small->chains_left > 0; d++) {
        if (!eth_hpp_classes_may_use(small->shop, d))
            continue;
        group->stages[at] = (struct eth_hpp_draft_stage){.degree = d};
        add_parts(small, 0, gpus, to);
    }
    group->stage_count = at;
}

/* Finds the chains of all uses for micro-batches of one size, trying so many of each. */
static void find_chains(struct small *small, int size, int chains)
{
    int total = small->shop->cost->cluster->gpu_count;
    small->draft->group_count = 1;
    for (int use = 1; use < small->uses; use++) {
        struct kept *kept = &small->chains[use].of[size - 1];
        int gpus = open_use(small, use, small->left), owners = total / gpus;
        kept->count = 0;
        small->chains_left = chains;
        if (!small->draft->sharded_optimizer)
            owners = 1;
        else if (owners == 1 && gpus < total)
            owners = 2; /* there is room for another chain */
        small->draft->groups[0] =
            (struct eth_hpp_draft_group){.replicas = owners, .micro_batch = size};
        add_stages(small, gpus, kept);
    }
}

/* ---- divisions ---- */

/* Whole micro-batches that a chain serves in a time. */
static double served(const struct chain *chain, double step_s)
{
    if (step_s < chain->first_s)
        return 0;
    return chain->group.micro_batch *
           (1 + floor((step_s - chain->first_s) / chain->beat_s * (1 + 1e-9)));
}

/* The pipeline of a use that serves most in a time, with micro-batches of one size, or of any (0);
 * 0 samples where none serves any. */
static struct division serve_alone(const struct small *small, int use, int size, double step_s)
{
    struct division best = {0};
    for (int m = size > 0 ? size : 1; m <= (size > 0 ? size : small->sizes); m++) {
        const struct kept *kept = &small->chains[use].of[m - 1];
        for (int i = 0; i < kept->count; i++) {
            double samples = served(&kept->list[i], step_s);
            if (samples > best.samples)
                best = (struct division){samples, use, m, i};
        }
    }
    return best;
}

/* The most samples that so many pipelines of any part of the GPUs serve in a time, for each use,
 * with micro-batches of one size, or of any (0). */
static double divide(struct small *small, int pipelines, int size, double step_s)
{
    struct division alone[ETH_HPP_SMALL_USES];
    for (int use = 0; use < small->uses; use++) {
        small->best[0][use] = (struct division){0};
        alone[use] = serve_alone(small, use, size, step_s);
    }
    for (int k = 1; k <= pipelines; k++)
        for (int all = 0; all < small->uses; all++) {
            struct division *best = &small->best[k][all];
            *best = (struct division){.samples = -1};
            for (int use = 1; use <= all; use++) {
                if (!small->holds[all][use] || alone[use].samples <= 0)
                    continue;
                double others = small->best[k - 1][all - use].samples;
                if (others < 0 || alone[use].samples + others <= best->samples)
                    continue;
                *best = alone[use];
                best->samples += others;
            }
        }
    return small->best[pipelines][small->uses - 1].samples;
}

/* Makes a draft of the division found last and offers it. */
static void offer(struct small *small, int pipelines, int character)
{
    struct eth_hpp_draft *draft = small->draft;
    int use = small->uses - 1;
    draft->group_count = 0;
    for (int k = pipelines; k > 0; k--) {
        const struct division *division = &small->best[k][use];
        struct eth_hpp_draft_group *group = &draft->groups[draft->group_count++];
        *group = small->chains[division->use].of[division->size - 1].list[division->chain].group;
        group->replicas = 1;
        use -= division->use;
    }
    eth_hpp_draft_join(draft);
    for (int by_stage = 0; by_stage < 2; by_stage++) {
        for (int g = 0; g < draft->group_count; g++)
            draft->groups[g].by_stage = by_stage > 0;
        eth_hpp_candidates_offer(small->candidates, small->shop, draft, character);
    }
}

/* The set of pipelines that serves the batch soonest, for each number of them. */
static void try_divisions(struct small *small, int size, int character)
{
    double batch = small->shop->options->global_batch;
    for (int k = 1; k <= PIPELINES; k++) {
        double low = 0, high = 1e-6;
        for (; high < 1e9 && divide(small, k, size, high) < batch; high *= 4)
            low = high;
        if (high >= 1e9)
            return; /* so many pipelines cannot be */
        for (int turn = 0; turn < 12; turn++) {
            double middle = (low + high) / 2;
            *(divide(small, k, size, middle) < batch ? &low : &high) = middle;
        }
        if (divide(small, k, size, high) >= batch)
            offer(small, k, character + k);
    }
}

void eth_hpp_starts_small(struct eth_hpp_workshop *shop, struct eth_hpp_candidates *candidates,
                          int character)
{
    struct small small = {.shop = shop, .candidates = candidates, .pools = shop->pools.count};
    int batch = shop->options->global_batch, chains = chains_of[shop->effort];
    if (shop->cost->cluster->gpu_count > ETH_HPP_SMALL_GPUS || chains == 0)
        return;
    small.uses = 1;
    for (int p = 0; p < small.pools; p++)
        small.uses *= shop->pools.pools[p].gpus + 1;
    if (small.uses > ETH_HPP_SMALL_USES)
        return;
    small.draft = calloc(1, sizeof(*small.draft));
    small.chains = calloc((size_t)small.uses, sizeof(*small.chains));
    small.best = calloc(PIPELINES + 1, sizeof(*small.best));
    small.holds = calloc((size_t)small.uses, sizeof(*small.holds));
    if (small.draft == NULL || small.chains == NULL || small.best == NULL || small.holds == NULL) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
    } else {
        compare_uses(&small);
    }
    small.sizes = batch < MICRO_BATCHES ? batch : MICRO_BATCHES;
    for (int sharded = 0; sharded < (shop->options->no_sharded ? 1 : 2) && !shop->failed;
         sharded++) {
        small.draft->sharded_optimizer = sharded > 0;
        for (int size = 1; size <= small.sizes; size++)
            find_chains(&small, size, chains / (2 * small.sizes * small.uses));
        for (int size = 0; size <= small.sizes; size++)
            if (size == 0 || batch % size == 0)
                try_divisions(&small, size,
                              character + (sharded * (MICRO_BATCHES + 1) + size) * (PIPELINES + 1));
    }
    free(small.draft);
    free(small.chains);
    free(small.best);
    free(small.holds);
}
