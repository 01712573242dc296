#include "plan/simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/program.h"

void eth_hpp_simulation_free(struct eth_hpp_simulation *simulation)
{
    free(simulation->predicted.ranks);
    *simulation = (struct eth_hpp_simulation){0};
}

/* ---- the instruction lists ---- */

/* The compute order of the list of one rank. */
static struct eth_hpp_compute *order_of(const struct eth_hpp_program *program)
{
    int count = 0;
    struct eth_hpp_compute *order = malloc((size_t)program->count * sizeof(*order));
    for (int i = 0; order != NULL && i < program->count; i++) {
        const struct eth_hpp_instruction *in = &program->instructions[i];
        if (in->opcode == ETH_HPP_FORWARD || in->opcode == ETH_HPP_BACKWARD)
            order[count++] =
                (struct eth_hpp_compute){in->opcode == ETH_HPP_BACKWARD, in->micro_batch};
    }
    return order;
}

/* The orders of all stages of a plan. Pipelines that are cut alike share theirs. */
struct orders {
    const struct eth_hpp_compute **list; /* [stage of the layout] */
    int *stage_of;                       /* the first stage of each pipeline that has its own, */
    const struct eth_hpp_pipeline **own; /* and the pipeline */
    int own_count;
};

static void free_orders(struct orders *orders)
{
    for (int i = 0; i < orders->own_count; i++)
        for (int s = 0; s < orders->own[i]->stage_count; s++)
            free((void *)orders->list[orders->stage_of[i] + s]);
    free(orders->list);
    free(orders->stage_of);
    free(orders->own);
}

/* Do the stages of both compute in the same order? */
static bool in_like_order(const struct eth_hpp_pipeline *a, const struct eth_hpp_pipeline *b)
{
    bool like = a->stage_count == b->stage_count && a->micro_batches == b->micro_batches;
    for (int s = 0; s < a->stage_count && like; s++)
        like = a->stages[s].in_flight == b->stages[s].in_flight;
    return like;
}

/* Compiles the orders of a pipeline whose first stage is `at` in the layout. */
static enum eth_hpp_status compile_pipeline(const struct eth_hpp_plan *plan,
                                            const struct eth_hpp_pipeline *pipeline,
                                            const double *output_bytes,
                                            const double *gradient_bytes, int at,
                                            struct orders *orders, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    orders->own[orders->own_count] = pipeline;
    orders->stage_of[orders->own_count++] = at;
    for (int s = 0; s < pipeline->stage_count && status == ETH_HPP_OK; s++) {
        struct eth_hpp_program program;
        status = eth_hpp_program_compile(plan, output_bytes, gradient_bytes,
                                         pipeline->stages[s].workers[0].ranks[0], &program, err);
        if (status != ETH_HPP_OK)
            break;
        orders->list[at + s] = order_of(&program);
        if (orders->list[at + s] == NULL)
            status = eth_hpp_error_memory(err, "the simulation");
        eth_hpp_program_free(&program);
    }
    return status;
}

/* *orders is to be freed whatever comes of it. */
static enum eth_hpp_status compile_orders(const struct eth_hpp_plan *plan,
                                          const struct eth_hpp_profile *profile, int stage_count,
                                          struct orders *orders, struct eth_hpp_error *err)
{
    double *output_bytes = NULL, *gradient_bytes = NULL;
    size_t pipelines = (size_t)plan->pipeline_count;
    orders->list = calloc((size_t)stage_count, sizeof(*orders->list));
    orders->stage_of = calloc(pipelines, sizeof(*orders->stage_of));
    orders->own = calloc(pipelines, sizeof(*orders->own));
    if (orders->list == NULL || orders->stage_of == NULL || orders->own == NULL)
        return eth_hpp_error_memory(err, "the simulation");
    enum eth_hpp_status status =
        eth_hpp_program_sizes(plan, profile, &output_bytes, &gradient_bytes, err);
    for (int p = 0, at = 0; p < plan->pipeline_count && status == ETH_HPP_OK; p++) {
        const struct eth_hpp_pipeline *pipeline = &plan->pipelines[p];
        int like = 0;
        while (like < orders->own_count && !in_like_order(orders->own[like], pipeline))
            like++;
        if (like == orders->own_count)
            status =
                compile_pipeline(plan, pipeline, output_bytes, gradient_bytes, at, orders, err);
        else
            memcpy(&orders->list[at], &orders->list[orders->stage_of[like]],
                   (size_t)pipeline->stage_count * sizeof(*orders->list));
        at += pipeline->stage_count;
    }
    free(output_bytes);
    free(gradient_bytes);
    return status;
}

/* A step of more forwards and backwards than this is taken to go on at its beat once it is in step,
 * which is all but exact: every one of them would take memory. */
#define LONG 1e6

static double count_computations(const struct eth_hpp_plan *plan)
{
    double count = 0;
    for (int p = 0; p < plan->pipeline_count; p++)
        count += 2.0 * plan->pipelines[p].micro_batches * plan->pipelines[p].stage_count;
    return count;
}

/* ---- checks against the profile ---- */

static enum eth_hpp_status check_times(const struct eth_hpp_cost *cost,
                                       const struct eth_hpp_layout *layout,
                                       struct eth_hpp_error *err)
{
    for (int s = 0; s < layout->stage_count; s++) {
        const struct eth_hpp_layout_stage *stage = &layout->stages[s];
        int degree = eth_hpp_cost_degree(cost, stage->tensor_parallel);
        for (int w = 0; w < stage->worker_count; w++) {
            const struct eth_hpp_layout_worker *worker = &layout->workers[stage->first_worker + w];
            const char *device = cost->cluster->devices[worker->device].name;
            int most = degree < 0 ? 0 : eth_hpp_cost_most_samples(cost, worker->device, degree);
            if (most == 0)
                return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                         "the profile has no times of %s at tensor parallelism %d",
                                         device, stage->tensor_parallel);
            if (worker->samples > most)
                return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                         "%d samples on a %s of %s, whose times are profiled up "
                                         "to %d",
                                         worker->samples, device,
                                         cost->cluster->nodes[worker->node].name, most);
        }
    }
    return ETH_HPP_OK;
}

/* ---- ranks ---- */

static int compare_ranks(const void *a, const void *b)
{
    const struct eth_hpp_predicted_rank *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* The worker that is furthest over its memory is named. */
static void check_memory(const struct eth_hpp_plan *plan, int p, int s, int w, const char *device,
                         double peak, double limit, double *worst,
                         struct eth_hpp_simulation *simulation)
{
    if (peak <= limit || peak / limit <= *worst)
        return;
    const struct eth_hpp_worker *worker = &plan->pipelines[p].stages[s].workers[w];
    *worst = peak / limit;
    simulation->feasible = false;
    snprintf(simulation->why, sizeof(simulation->why),
             "needs %.2f GiB of the %.2f GiB of GPU %d of %s (%s), pipeline %d stage %d",
             peak / (1 << 30), limit / (1 << 30), worker->gpus[0], worker->node, device, p, s);
}

static void fill_worker(const struct eth_hpp_plan *plan, const struct eth_hpp_evaluator *evaluator,
                        const struct eth_hpp_layout *layout, int p, int s, int w, double *worst,
                        struct eth_hpp_simulation *simulation)
{
    const struct eth_hpp_cost *cost = evaluator->cost;
    const struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
    int at = layout->pipelines[p].first_stage + s, index = layout->stages[at].first_worker + w;
    const struct eth_hpp_layout_worker *worker = &layout->workers[index];
    const struct eth_hpp_device *device = &cost->cluster->devices[worker->device];
    double peak = eth_hpp_evaluate_peak(evaluator, layout, p, at, index);
    struct eth_hpp_layer_time time = eth_hpp_cost_layers(
        cost, worker->device, eth_hpp_cost_degree(cost, stage->tensor_parallel), stage->first_layer,
        stage->end_layer, worker->samples, stage->recompute);
    check_memory(plan, p, s, w, device->name, peak, device->memory_bytes, worst, simulation);
    for (int t = 0; t < stage->tensor_parallel; t++)
        simulation->predicted.ranks[simulation->predicted.rank_count++] =
            (struct eth_hpp_predicted_rank){.rank = stage->workers[w].ranks[t],
                                            .busy_s = plan->pipelines[p].micro_batches *
                                                      (time.forward_s + time.backward_s),
                                            .peak_memory_bytes = peak,
                                            .memory_limit_bytes = device->memory_bytes};
}

static enum eth_hpp_status fill_ranks(const struct eth_hpp_plan *plan,
                                      const struct eth_hpp_evaluator *evaluator,
                                      const struct eth_hpp_layout *layout,
                                      struct eth_hpp_simulation *simulation,
                                      struct eth_hpp_error *err)
{
    struct eth_hpp_predicted *predicted = &simulation->predicted;
    double worst = 0;
    predicted->ranks = calloc((size_t)simulation->step.gpus, sizeof(*predicted->ranks));
    if (predicted->ranks == NULL)
        return eth_hpp_error_memory(err, "the simulation");
    simulation->feasible = true;
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 0; s < plan->pipelines[p].stage_count; s++)
            for (int w = 0; w < plan->pipelines[p].stages[s].worker_count; w++)
                fill_worker(plan, evaluator, layout, p, s, w, &worst, simulation);
    qsort(predicted->ranks, (size_t)predicted->rank_count, sizeof(*predicted->ranks),
          compare_ranks);
    return ETH_HPP_OK;
}

/* The share of all computing GPUs' time in which they do not compute; a fast worker that waits for
 * a slow one of its stage idles too. */
static double bubble(const struct eth_hpp_predicted *predicted)
{
    double busy_s = 0;
    for (int r = 0; r < predicted->rank_count; r++)
        busy_s += predicted->ranks[r].busy_s;
    double idle = 1 - busy_s / (predicted->step_s * predicted->rank_count);
    return idle > 0 ? idle : 0;
}

static void fill_predicted(struct eth_hpp_simulation *simulation)
{
    const struct eth_hpp_step *step = &simulation->step;
    simulation->predicted.step_s = step->step_s;
    simulation->predicted.compute_s = step->compute_s;
    simulation->predicted.exposed_sync_s = step->exposed_sync_s;
    simulation->predicted.optimizer_s = step->optimizer_s;
    simulation->predicted.bubble_fraction = bubble(&simulation->predicted);
}

enum eth_hpp_status eth_hpp_simulate(const struct eth_hpp_plan *plan,
                                     const struct eth_hpp_cluster *cluster,
                                     const struct eth_hpp_profile *profile, bool blocking_transfers,
                                     struct eth_hpp_simulation *simulation,
                                     struct eth_hpp_error *err)
{
    return eth_hpp_simulate_observed(plan, cluster, profile, blocking_transfers, NULL, simulation,
                                     err);
}

enum eth_hpp_status
eth_hpp_simulate_observed(const struct eth_hpp_plan *plan, const struct eth_hpp_cluster *cluster,
                          const struct eth_hpp_profile *profile, bool blocking_transfers,
                          struct eth_hpp_observer *observer, struct eth_hpp_simulation *simulation,
                          struct eth_hpp_error *err)
{
    struct eth_hpp_cost cost = {0};
    struct eth_hpp_evaluator evaluator = {
        .cost = &cost, .blocking_transfers = blocking_transfers, .observer = observer};
    struct eth_hpp_layout layout = {0};
    struct eth_hpp_simulation made = {0};
    struct orders orders = {0};
    enum eth_hpp_status status = eth_hpp_cost_init(&cost, cluster, profile, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_layout_from_plan(plan, cluster, &layout, err);
    if (status == ETH_HPP_OK)
        status = check_times(&cost, &layout, err);
    if (status == ETH_HPP_OK && (observer != NULL || count_computations(plan) <= LONG))
        status = compile_orders(plan, profile, layout.stage_count, &orders, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_evaluate(&evaluator, &layout, orders.list, &made.step, err);
    if (status == ETH_HPP_OK)
        status = fill_ranks(plan, &evaluator, &layout, &made, err);
    if (status == ETH_HPP_OK) {
        fill_predicted(&made);
        *simulation = made;
    }
    free_orders(&orders);
    eth_hpp_layout_free(&layout);
    eth_hpp_evaluator_free(&evaluator);
    eth_hpp_cost_free(&cost);
    return status;
}
