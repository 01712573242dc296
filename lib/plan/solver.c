#include "plan/solver.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "plan/anneal.h"
#include "plan/bound.h"
#include "plan/exact.h"
#include "plan/idle.h"
#include "plan/order.h"
#include "plan/polish.h"
#include "plan/program.h"
#include "plan/simulate.h"
#include "plan/starts.h"

/* What each effort adds to those before it: rounds of annealing. Work is counted in stages looked
 * at and takes about 0.2 us each, so that deep pipelines get fewer tries rather than more time. */
struct budget {
    int rounds, work; /* of each round, for up to 64 GPUs */
    int candidates;   /* at first: a few tries only get anywhere if they all go to one */
    int plans;        /* work for trying all plans of few GPUs */
};
static const struct budget budgets[] = {[ETH_HPP_EFFORT_QUICK] = {1, 20000, 1, 0},
                                        [ETH_HPP_EFFORT_DEFAULT] = {2, 300000, 12, 850000},
                                        [ETH_HPP_EFFORT_THOROUGH] = {40, 800000, 8, 20000000}};

/* With few GPUs a draft costs little, and many starts end in plans that no move leads out of. */
enum { FEW_GPUS = 16, FEW_ROUNDS = 3, FEW_CANDIDATES = 16, FEW_WORK = 500000 };

static struct budget budget_of(const struct eth_hpp_workshop *shop)
{
    struct budget budget = budgets[shop->effort];
    if (shop->effort == ETH_HPP_EFFORT_DEFAULT && shop->cost->cluster->gpu_count <= FEW_GPUS) {
        budget.rounds = FEW_ROUNDS;
        budget.candidates = FEW_CANDIDATES;
        budget.work = FEW_WORK;
    }
    return budget;
}

/* Plans evaluated to polish one. */
enum { POLISHES = 400 };

/* ---- search ---- */

/* Puts the better half of the first `count` candidates first. */
static void halve(struct eth_hpp_candidates *candidates, int count)
{
    for (int i = 0; i < (count + 1) / 2; i++) {
        int best = i;
        for (int j = i + 1; j < count; j++)
            if (candidates->list[j].step_s < candidates->list[best].step_s)
                best = j;
        if (best == i)
            continue;
        struct eth_hpp_candidate *a = &candidates->list[i], *b = &candidates->list[best];
        double step_s = a->step_s;
        eth_hpp_draft_swap(&a->draft, &b->draft);
        a->step_s = b->step_s;
        b->step_s = step_s;
    }
}

/* Drafts of one search. The best one's step is as the simulator has it. */
struct drafts {
    struct eth_hpp_candidates starts, work;
    struct eth_hpp_candidate best; /* step_s INFINITY: there is none yet */
    uint64_t seed;
};

/* Lays a draft out whole and leaves its step as the simulator has it, which the search for the sake
 * of speed reckons only nearly. */
static bool lay_exactly(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft)
{
    bool unfolded = shop->unfolded, extrapolate = shop->evaluator.extrapolate;
    shop->unfolded = true;
    shop->evaluator.extrapolate = false;
    bool fits = eth_hpp_draft_lay(shop, draft) == ETH_HPP_DRAFT_FITS;
    shop->unfolded = unfolded;
    shop->evaluator.extrapolate = extrapolate;
    return fits && !shop->failed;
}

static void take_candidate(struct eth_hpp_candidate *to, const struct eth_hpp_candidate *from)
{
    to->step_s = from->step_s;
    eth_hpp_draft_copy(&to->draft, &from->draft);
}

static void take_if_better(struct eth_hpp_workshop *shop, struct drafts *drafts,
                           const struct eth_hpp_candidate *candidate)
{
    if (candidate->step_s == INFINITY || !lay_exactly(shop, &candidate->draft) ||
        shop->step.step_s >= drafts->best.step_s)
        return;
    take_candidate(&drafts->best, candidate);
    drafts->best.step_s = shop->step.step_s;
}

/* Anneals the best starts, then the better half of them, and so on to the best, with equal effort
 * each time. */
static void improve(struct eth_hpp_workshop *shop, struct drafts *drafts, double hot,
                    double lower_bound_s)
{
    double size = fmax(1, shop->cost->cluster->gpu_count / 64.0);
    struct budget budget = budget_of(shop);
    double work = budget.work * sqrt(sqrt(size));
    int count = budget.candidates, halvings = 1;
    count = drafts->starts.count < count ? drafts->starts.count : count;
    while (1 << (halvings - 1) < count)
        halvings++;
    for (int i = 0; i < count; i++)
        take_candidate(&drafts->work.list[i], &drafts->starts.list[i]);
    for (; count > 0; count = count > 1 ? (count + 1) / 2 : 0) {
        for (int i = 0; i < count; i++)
            eth_hpp_anneal(shop, &drafts->work.list[i].draft, &drafts->work.list[i].step_s,
                           (int64_t)(work / halvings / count), ++drafts->seed, hot, lower_bound_s);
        halve(&drafts->work, count);
    }
    take_if_better(shop, drafts, &drafts->work.list[0]);
}

/* The search of one effort. Rounds after the first are annealed from twice as hot in turn, and take
 * the best draft of all before them in place of the least promising start. */
static void search_with(struct eth_hpp_workshop *shop, enum eth_hpp_effort effort,
                        struct drafts *drafts, double lower_bound_s)
{
    shop->effort = effort;
    drafts->starts.count = 0;
    eth_hpp_starts_collect(shop, &drafts->starts);
    if (shop->failed || drafts->starts.count == 0)
        return;
    take_if_better(shop, drafts, &drafts->starts.list[0]);
    if (shop->options->shape == ETH_HPP_SHAPE_EVEN)
        return;
    double hot = eth_hpp_anneal_hot(shop->cost->cluster->gpu_count);
    struct budget budget = budget_of(shop);
    for (int round = 0; round < budget.rounds && !shop->failed; round++) {
        int last = budget.candidates - 1;
        if (drafts->best.step_s <= ETH_HPP_ANNEAL_CLOSED * lower_bound_s)
            return;
        if (round % 4 == 3 && last < drafts->starts.count)
            take_candidate(&drafts->starts.list[last], &drafts->best);
        improve(shop, drafts, round % 2 == 0 ? hot : 2 * hot, lower_bound_s);
    }
}

/* ---- from the layout to a plan ---- */

/* Hands out a node's GPUs of a kind, lowest index first. */
struct gpu_desk {
    const struct eth_hpp_cluster *cluster;
    bool *taken; /* [global GPU: the node's first_rank + index] */
};

static bool take(struct gpu_desk *desk, const struct eth_hpp_layout_worker *from,
                 int tensor_parallel, struct eth_hpp_worker *to)
{
    const struct eth_hpp_node *node = &desk->cluster->nodes[from->node];
    snprintf(to->node, sizeof(to->node), "%s", node->name);
    to->samples = from->samples;
    to->gpus = malloc((size_t)tensor_parallel * sizeof(*to->gpus));
    to->ranks = malloc((size_t)tensor_parallel * sizeof(*to->ranks));
    if (to->gpus == NULL || to->ranks == NULL)
        return false;
    for (int g = 0, t = 0; g < node->gpus && t < tensor_parallel; g++)
        if (node->devices[g] == from->device && !desk->taken[node->first_rank + g]) {
            desk->taken[node->first_rank + g] = true;
            to->gpus[t] = g;
            to->ranks[t++] = node->first_rank + g;
        }
    return true;
}

static bool fill_stage(struct gpu_desk *desk, const struct eth_hpp_layout *layout,
                       const struct eth_hpp_layout_stage *from, struct eth_hpp_stage *to)
{
    *to = (struct eth_hpp_stage){.first_layer = from->first_layer,
                                 .end_layer = from->end_layer,
                                 .tensor_parallel = from->tensor_parallel,
                                 .recompute = from->recompute,
                                 .in_flight = from->in_flight};
    to->workers = calloc((size_t)from->worker_count, sizeof(*to->workers));
    for (int w = 0; to->workers != NULL && w < from->worker_count; w++) {
        to->worker_count = w + 1;
        if (!take(desk, &layout->workers[from->first_worker + w], from->tensor_parallel,
                  &to->workers[w]))
            return false;
    }
    return to->workers != NULL;
}

/* As many micro-batches in flight as the stages' instruction lists hold. */
static void limit_in_flight(struct eth_hpp_pipeline *pipeline)
{
    for (int s = pipeline->stage_count - 2; s >= 0; s--) {
        const int most = pipeline->stages[s + 1].in_flight + ETH_HPP_MORE_IN_FLIGHT;
        if (pipeline->stages[s].in_flight > most)
            pipeline->stages[s].in_flight = most;
    }
}

static bool fill_pipelines(struct gpu_desk *desk, const struct eth_hpp_layout *layout,
                           struct eth_hpp_plan *plan)
{
    plan->pipelines = calloc((size_t)layout->pipeline_count, sizeof(*plan->pipelines));
    for (int p = 0; plan->pipelines != NULL && p < layout->pipeline_count; p++) {
        const struct eth_hpp_layout_pipeline *from = &layout->pipelines[p];
        struct eth_hpp_pipeline *to = &plan->pipelines[p];
        plan->pipeline_count = p + 1;
        to->micro_batch = from->micro_batch;
        to->micro_batches = from->micro_batches;
        to->stages = calloc((size_t)from->stage_count, sizeof(*to->stages));
        for (int s = 0; to->stages != NULL && s < from->stage_count; s++) {
            to->stage_count = s + 1;
            if (!fill_stage(desk, layout, &layout->stages[from->first_stage + s], &to->stages[s]))
                return false;
        }
        if (to->stages == NULL)
            return false;
        limit_in_flight(to);
    }
    return plan->pipelines != NULL;
}

static enum eth_hpp_status make_plan(struct eth_hpp_workshop *shop, struct eth_hpp_plan *plan,
                                     struct eth_hpp_error *err)
{
    const struct eth_hpp_profile *profile = shop->cost->profile;
    struct gpu_desk desk = {shop->cost->cluster, NULL};
    enum eth_hpp_status status = ETH_HPP_OK;
    snprintf(plan->model, sizeof(plan->model), "%s", profile->model);
    plan->layers = profile->layer_count;
    plan->sequence_length = profile->sequence_length;
    plan->global_batch = shop->options->global_batch;
    plan->dtype = profile->dtype;
    plan->estimated = profile->estimated;
    plan->sharded_optimizer = shop->layout.sharded_optimizer;
    desk.taken = calloc((size_t)desk.cluster->gpu_count, sizeof(*desk.taken));
    if (desk.taken == NULL || !fill_pipelines(&desk, &shop->layout, plan) ||
        !eth_hpp_idle_fill(shop->cost, desk.taken, shop->step.step_s, plan))
        status = eth_hpp_error_memory(err, "the plan");
    free(desk.taken);
    if (status == ETH_HPP_OK)
        status = eth_hpp_plan_note_nodes(plan, shop->cost->cluster, err);
    return status == ETH_HPP_OK ? eth_hpp_plan_make_blocks(plan, profile, err) : status;
}

/* What is predicted is what the simulator says of the finished plan. */
static enum eth_hpp_status predict(struct eth_hpp_workshop *shop, double lower_bound_s,
                                   struct eth_hpp_plan *plan, struct eth_hpp_error *err)
{
    struct eth_hpp_simulation simulation;
    enum eth_hpp_status status =
        eth_hpp_simulate(plan, shop->cost->cluster, shop->cost->profile, false, &simulation, err);
    if (status != ETH_HPP_OK)
        return status;
    if (!simulation.feasible) {
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                                   "the solver's plan does not fit: it %s", simulation.why);
        eth_hpp_simulation_free(&simulation);
        return status;
    }
    plan->predicted = simulation.predicted; /* takes the ranks over */
    plan->predicted.lower_bound_s = lower_bound_s;
    plan->predicted.gap = lower_bound_s > 0 ? plan->predicted.step_s / lower_bound_s - 1 : 0;
    return ETH_HPP_OK;
}

/* ---- the whole ---- */

static enum eth_hpp_status infeasible(const struct eth_hpp_workshop *shop,
                                      struct eth_hpp_error *err)
{
    const struct eth_hpp_solver_options *options = shop->options;
    double most = 0;
    for (int p = 0; p < shop->pools.count; p++)
        most = fmax(most, shop->cost->cluster->devices[shop->pools.pools[p].device].memory_bytes);
    if (options->memory_margin_bytes >= most)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INFEASIBLE,
                                 "a memory margin of %g bytes leaves nothing of any GPU: the "
                                 "largest has %g",
                                 options->memory_margin_bytes, most);
    if (shop->excess[0] != '\0')
        return eth_hpp_error_set(err, ETH_HPP_ERR_INFEASIBLE,
                                 "%s does not fit these GPUs: memory is short, %s",
                                 shop->cost->profile->model, shop->excess);
    return eth_hpp_error_set(err, ETH_HPP_ERR_INFEASIBLE,
                             "no plan of this shape for a global batch of %d on %d GPUs: choose a "
                             "batch that more pipelines and micro-batches divide",
                             options->global_batch, shop->cost->cluster->gpu_count);
}

/* It takes as long as a whole quick search. */
static bool is_polished(const struct eth_hpp_workshop *shop)
{
    return shop->cost->cluster->gpu_count <= FEW_GPUS &&
           shop->options->shape == ETH_HPP_SHAPE_HPP &&
           shop->options->effort != ETH_HPP_EFFORT_QUICK;
}

/* Lays a draft, polishes it where GPUs are few, and keeps it in *best if it is shorter than *step.
 */
static void polish(struct eth_hpp_workshop *shop, const struct eth_hpp_draft *draft,
                   struct eth_hpp_layout *best, struct eth_hpp_step *step)
{
    if (shop->failed || draft->group_count == 0 || /* never annealed */
        !lay_exactly(shop, draft))
        return;
    if (is_polished(shop))
        eth_hpp_polish(shop, POLISHES);
    if (shop->failed || (best->pipeline_count > 0 && shop->step.step_s >= step->step_s))
        return;
    *step = shop->step;
    if (!eth_hpp_layout_copy(best, &shop->layout)) {
        shop->failed = true;
        eth_hpp_error_memory(&shop->error, "the solver");
    }
}

/* The best plan of the search so far. */
struct found {
    struct eth_hpp_layout layout; /* no pipelines: there is none */
    struct eth_hpp_step step;
};

/* Where GPUs are few, tries all plans that may be shorter than those of the first effort. True if
 * that was possible. */
static bool try_all(struct eth_hpp_workshop *shop, const struct drafts *drafts, struct found *found)
{
    double step_s = INFINITY;
    bool closed = false;
    shop->unfolded = true;
    polish(shop, &drafts->best.draft, &found->layout, &found->step);
    if (found->layout.pipeline_count > 0)
        step_s = found->step.step_s;
    if (!shop->failed &&
        eth_hpp_exact_search(shop, budgets[shop->options->effort].plans, &step_s, &closed)) {
        found->step = shop->step;
        if (!eth_hpp_layout_copy(&found->layout, &shop->layout)) {
            shop->failed = true;
            eth_hpp_error_memory(&shop->error, "the solver");
        }
    }
    shop->unfolded = false;
    return closed;
}

/* Leaves the best plan in the shop. Where GPUs are few, rules for all pipelines do not serve a plan
 * as well, and other drafts may be better once they are polished. */
static enum eth_hpp_status finish(struct eth_hpp_workshop *shop, const struct drafts *drafts,
                                  struct found *found, struct eth_hpp_error *err)
{
    shop->unfolded = true;
    polish(shop, &drafts->best.draft, &found->layout, &found->step);
    if (is_polished(shop) && shop->effort != ETH_HPP_EFFORT_QUICK) {
        for (int i = 0; i < drafts->starts.count; i++)
            polish(shop, &drafts->starts.list[i].draft, &found->layout, &found->step);
        for (int i = 0; i < budget_of(shop).candidates && i < drafts->starts.count; i++)
            polish(shop, &drafts->work.list[i].draft, &found->layout, &found->step);
    }
    if (!shop->failed && found->layout.pipeline_count == 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL, "the solver lost its best plan");
    if (!shop->failed) {
        struct eth_hpp_layout other = shop->layout;
        shop->layout = found->layout;
        found->layout = other;
        shop->step = found->step;
    }
    return shop->failed ? eth_hpp_error_set(err, shop->error.status, "%s", shop->error.text)
                        : ETH_HPP_OK;
}

/* Every effort begins with those below it, so that more effort never finds less. */
static enum eth_hpp_status search(struct eth_hpp_workshop *shop, double lower_bound_s,
                                  struct eth_hpp_error *err)
{
    struct drafts *drafts = calloc(1, sizeof(*drafts));
    struct found found = {0};
    enum eth_hpp_status status = ETH_HPP_OK;
    bool closed = false;
    if (drafts == NULL)
        return eth_hpp_error_memory(err, "the solver");
    drafts->best.step_s = INFINITY;
    for (int effort = 0; effort <= (int)shop->options->effort && !shop->failed && !closed;
         effort++) {
        search_with(shop, (enum eth_hpp_effort)effort, drafts, lower_bound_s);
        if (effort == ETH_HPP_EFFORT_QUICK && is_polished(shop) && !shop->failed)
            closed = try_all(shop, drafts, &found);
    }
    if (shop->failed)
        status = eth_hpp_error_set(err, shop->error.status, "%s", shop->error.text);
    else if (drafts->best.step_s == INFINITY && found.layout.pipeline_count == 0)
        status = infeasible(shop, err);
    else
        status = finish(shop, drafts, &found, err);
    eth_hpp_layout_free(&found.layout);
    free(drafts);
    return status;
}

static enum eth_hpp_status solve(const struct eth_hpp_cluster *cluster,
                                 const struct eth_hpp_profile *profile,
                                 const struct eth_hpp_solver_options *options,
                                 struct eth_hpp_plan *plan, struct eth_hpp_error *err)
{
    double start = eth_hpp_clock_now();
    struct eth_hpp_cost cost = {0};
    struct eth_hpp_workshop shop = {0};
    struct eth_hpp_plan made = {0};
    if (options->global_batch < 1)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "the global batch must be at least 1");
    double lower_bound_s = 0;
    enum eth_hpp_status status = eth_hpp_cost_init(&cost, cluster, profile, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_workshop_init(&shop, &cost, options, err);
    if (status == ETH_HPP_OK) {
        lower_bound_s = eth_hpp_bound(&cost, options->global_batch);
        status = search(&shop, lower_bound_s, err);
    }
    if (status == ETH_HPP_OK)
        status = make_plan(&shop, &made, err);
    if (status == ETH_HPP_OK)
        status = predict(&shop, lower_bound_s, &made, err);
    if (status == ETH_HPP_OK) {
        made.search.seconds = eth_hpp_clock_now() - start;
        made.search.considered = shop.considered;
        snprintf(made.search.solver, sizeof(made.search.solver), "families and annealing");
        *plan = made;
    } else {
        eth_hpp_plan_free(&made);
    }
    eth_hpp_workshop_free(&shop);
    eth_hpp_cost_free(&cost);
    return status;
}

/* The search meets the nodes in an order of their own, so that the file's changes nothing. */
enum eth_hpp_status eth_hpp_solve(const struct eth_hpp_cluster *cluster,
                                  const struct eth_hpp_profile *profile,
                                  const struct eth_hpp_solver_options *options,
                                  struct eth_hpp_plan *plan, struct eth_hpp_error *err)
{
    struct eth_hpp_cluster ordered = {0};
    struct eth_hpp_plan made = {0};
    int *rank_of = NULL;
    enum eth_hpp_status status = eth_hpp_order_make(cluster, &ordered, &rank_of, err);
    if (status == ETH_HPP_OK)
        status = solve(&ordered, profile, options, &made, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_plan_renumber(&made, rank_of, cluster->gpu_count, err);
    if (status == ETH_HPP_OK)
        *plan = made;
    else
        eth_hpp_plan_free(&made);
    free(rank_of);
    eth_hpp_cluster_free(&ordered);
    return status;
}
