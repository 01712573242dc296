#include "plan/pipeline.h"

#include <stdlib.h>
#include <string.h>

void eth_hpp_pipeline_scratch_free(struct eth_hpp_pipeline_scratch *scratch)
{
    free(scratch->remembered);
    free(scratch->arrivals);
    free(scratch->position);
    free(scratch->clock);
    *scratch = (struct eth_hpp_pipeline_scratch){0};
}

static bool reserve(struct eth_hpp_pipeline_scratch *scratch, int stages, int micro_batches)
{
    size_t arrivals = 2 * (size_t)stages * (size_t)micro_batches;
    if (arrivals > scratch->arrival_room) {
        double *larger = realloc(scratch->arrivals, 2 * arrivals * sizeof(*larger));
        if (larger == NULL)
            return false;
        scratch->arrivals = larger;
        scratch->arrival_room = 2 * arrivals;
    }
    if (stages > scratch->stage_room) {
        int *position = realloc(scratch->position, 2 * (size_t)stages * sizeof(*position));
        if (position != NULL)
            scratch->position = position;
        double *clock = realloc(scratch->clock, 6 * (size_t)stages * sizeof(*clock));
        if (clock != NULL)
            scratch->clock = clock;
        if (position == NULL || clock == NULL)
            return false;
        scratch->stage_room = 2 * stages;
    }
    return true;
}

struct run {
    struct eth_hpp_stage_run *stages;
    int stage_count, micro_batches;
    bool blocking;
    double *activation, *gradient; /* [stage][micro-batch] arrival, negative: not yet */
    double *clock, *activation_channel, *gradient_channel; /* [stage] when it is free */
    int *position;
    const struct eth_hpp_observer *observer;
    int first_stage;
};

static double later(double a, double b)
{
    return a > b ? a : b;
}

static void tell(const struct run *r, enum eth_hpp_opcode opcode, int s, int m, double start,
                 double end)
{
    eth_hpp_observer_tell(r->observer, (struct eth_hpp_span){.opcode = opcode,
                                                             .stage = r->first_stage + s,
                                                             .micro_batch = m,
                                                             .block = -1,
                                                             .start_s = start,
                                                             .end_s = end});
}

/* Hands something over on a channel that is free from *channel on; returns when it has arrived. */
static double hand_over(const struct run *r, enum eth_hpp_opcode opcode, int s, int m, double ready,
                        double transfer_s, double *channel)
{
    double start = later(*channel, ready);
    *channel = start + transfer_s;
    tell(r, opcode, s, m, start, *channel);
    return *channel;
}

static void forward(struct run *r, int s, int m)
{
    struct eth_hpp_stage_run *stage = &r->stages[s];
    double start = later(r->clock[s], r->activation[s * r->micro_batches + m]);
    double end = start + stage->forward_s;
    r->clock[s] = end;
    tell(r, ETH_HPP_FORWARD, s, m, start, end);
    if (s + 1 == r->stage_count) {
        r->gradient[s * r->micro_batches + m] = end;
        return;
    }
    double arrival = hand_over(r, ETH_HPP_SEND_ACTIVATION, s, m, end, stage->transfer_s,
                               &r->activation_channel[s]);
    r->activation[(s + 1) * r->micro_batches + m] = arrival;
    if (r->blocking)
        r->clock[s] = arrival;
}

static void backward(struct run *r, int s, int m)
{
    struct eth_hpp_stage_run *stage = &r->stages[s];
    double start = later(r->clock[s], r->gradient[s * r->micro_batches + m]);
    double end = start + stage->backward_s;
    r->clock[s] = end;
    stage->last_start_s = start;
    stage->last_end_s = end;
    tell(r, ETH_HPP_BACKWARD, s, m, start, end);
    if (s == 0)
        return;
    double arrival = hand_over(r, ETH_HPP_SEND_GRADIENT, s, m, end, stage[-1].transfer_s,
                               &r->gradient_channel[s]);
    r->gradient[(s - 1) * r->micro_batches + m] = arrival;
    if (r->blocking)
        r->clock[s] = arrival;
}

/* Runs a stage as far as its inputs have arrived; returns how many computations that were. */
static int advance(struct run *r, int s)
{
    struct eth_hpp_stage_run *stage = &r->stages[s];
    int n = r->micro_batches, start = r->position[s], i = start;
    const double *activation = r->activation + s * n, *gradient = r->gradient + s * n;
    for (; i < 2 * n; i++) {
        struct eth_hpp_compute next =
            stage->order != NULL ? stage->order[i] : eth_hpp_schedule_at(n, stage->in_flight, i);
        if ((next.backward ? gradient : activation)[next.micro_batch] < 0)
            break;
        if (next.backward)
            backward(r, s, next.micro_batch);
        else
            forward(r, s, next.micro_batch);
    }
    r->position[s] = i;
    return i - start;
}

static enum eth_hpp_status run_pipeline(struct eth_hpp_stage_run *stages, int stage_count,
                                        int micro_batches, bool blocking,
                                        struct eth_hpp_pipeline_scratch *scratch, double *end_s,
                                        struct eth_hpp_error *err)
{
    if (!reserve(scratch, stage_count, micro_batches))
        return eth_hpp_error_memory(err, "the simulation of a pipeline");
    size_t cells = (size_t)stage_count * (size_t)micro_batches;
    struct run r = {.stages = stages,
                    .stage_count = stage_count,
                    .micro_batches = micro_batches,
                    .blocking = blocking,
                    .activation = scratch->arrivals,
                    .gradient = scratch->arrivals + cells,
                    .clock = scratch->clock,
                    .activation_channel = scratch->clock + stage_count,
                    .gradient_channel = scratch->clock + 2 * stage_count,
                    .position = scratch->position,
                    .observer = scratch->observer,
                    .first_stage = scratch->first_stage};
    for (size_t i = 0; i < 2 * cells; i++)
        scratch->arrivals[i] = -1;
    for (int m = 0; m < micro_batches; m++)
        r.activation[m] = 0;
    for (int s = 0; s < stage_count; s++) {
        r.position[s] = 0;
        r.clock[s] = r.activation_channel[s] = r.gradient_channel[s] = 0;
    }
    scratch->computations += 2 * (int64_t)micro_batches * stage_count;
    for (int left = 2 * micro_batches * stage_count; left > 0;) {
        int moved = 0;
        /* Down with the activations, then up with the gradients. */
        for (int s = 0; s < stage_count; s++)
            moved += advance(&r, s);
        for (int s = stage_count - 2; s >= 0; s--)
            moved += advance(&r, s);
        if (moved == 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL, "the schedule deadlocks");
        left -= moved;
    }
    *end_s = 0;
    for (int s = 0; s < stage_count; s++)
        *end_s = later(*end_s, stages[s].last_end_s);
    return ETH_HPP_OK;
}

/* ---- remembered runs ---- */

bool eth_hpp_pipeline_remember(struct eth_hpp_pipeline_scratch *scratch)
{
    scratch->remembered = calloc(ETH_HPP_REMEMBERED, sizeof(*scratch->remembered));
    return scratch->remembered != NULL;
}

static bool same_stage(const struct eth_hpp_stage_run *a, const struct eth_hpp_stage_run *b)
{
    return a->forward_s == b->forward_s && a->backward_s == b->backward_s &&
           a->transfer_s == b->transfer_s && a->in_flight == b->in_flight;
}

/* The place where a run like this is remembered, if it is (*found); NULL where it cannot be. */
static struct eth_hpp_remembered_run *find_remembered(struct eth_hpp_pipeline_scratch *scratch,
                                                      const struct eth_hpp_stage_run *stages,
                                                      int stage_count, int micro_batches,
                                                      bool *found)
{
    uint64_t hash = (uint64_t)micro_batches;
    if (scratch->remembered == NULL || stage_count > ETH_HPP_REMEMBERED_STAGES)
        return NULL;
    for (int s = 0; s < stage_count; s++) {
        const double numbers[] = {stages[s].forward_s, stages[s].backward_s, stages[s].transfer_s,
                                  stages[s].in_flight};
        if (stages[s].order != NULL)
            return NULL;
        for (int i = 0; i < 4; i++) {
            uint64_t bits;
            memcpy(&bits, &numbers[i], sizeof(bits));
            hash = (hash ^ bits) * 0x9e3779b97f4a7c15u;
            hash ^= hash >> 29;
        }
    }
    struct eth_hpp_remembered_run *run = &scratch->remembered[hash % ETH_HPP_REMEMBERED];
    *found = run->stage_count == stage_count && run->micro_batches == micro_batches;
    for (int s = 0; *found && s < stage_count; s++)
        *found = same_stage(&run->stages[s], &stages[s]);
    return run;
}

enum eth_hpp_status eth_hpp_pipeline_run(struct eth_hpp_stage_run *stages, int stage_count,
                                         int micro_batches, bool blocking,
                                         struct eth_hpp_pipeline_scratch *scratch, double *end_s,
                                         struct eth_hpp_error *err)
{
    bool found = false;
    struct eth_hpp_remembered_run *run =
        blocking ? NULL : find_remembered(scratch, stages, stage_count, micro_batches, &found);
    if (found) {
        for (int s = 0; s < stage_count; s++) {
            stages[s].last_start_s = run->stages[s].last_start_s;
            stages[s].last_end_s = run->stages[s].last_end_s;
        }
        *end_s = run->end_s;
        return ETH_HPP_OK;
    }
    enum eth_hpp_status status =
        run_pipeline(stages, stage_count, micro_batches, blocking, scratch, end_s, err);
    if (status == ETH_HPP_OK && run != NULL) {
        run->stage_count = stage_count;
        run->micro_batches = micro_batches;
        run->end_s = *end_s;
        memcpy(run->stages, stages, (size_t)stage_count * sizeof(*stages));
    }
    return status;
}

/* ---- the pace ---- */

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

struct eth_hpp_pipeline_pace eth_hpp_pipeline_find_pace(const struct eth_hpp_stage_run *stages,
                                                        int stage_count, int micro_batches)
{
    struct eth_hpp_pipeline_pace pace = {0, 0};
    double through = 0; /* one micro-batch alone */
    double slowest = 0; /* what holds up the forwards on their way to stage s */
    int n = micro_batches;
    for (int s = 0; s < stage_count; s++)
        through += stages[s].forward_s + stages[s].backward_s + 2 * stages[s].transfer_s;
    for (int s = 0; s < stage_count; s++) {
        double round = 0;
        slowest = later(slowest, stages[s].forward_s);
        for (int u = s; u < stage_count; u++) {
            int last = smaller(stages[u].in_flight, n);
            int advance = smaller(stages[s].in_flight, n) - last + 1;
            round += stages[u].forward_s + stages[u].backward_s;
            if (n > advance)
                pace.beat_s = later(pace.beat_s, round / advance);
            pace.least_s = later(pace.least_s, through + (last - 1) * slowest +
                                                   (double)((n - last) / advance) * round);
            round += 2 * stages[u].transfer_s;
        }
        slowest = later(slowest, stages[s].transfer_s);
        pace.beat_s = later(pace.beat_s, stages[s].transfer_s);
        pace.least_s = later(pace.least_s, through + (n - 1) * stages[s].transfer_s);
    }
    return pace;
}

/* Of a pipeline whose first `run` micro-batches end at end_s. Senders that wait have a beat that no
 * formula here tells: it is what the second half of these takes. */
static enum eth_hpp_status find_beat(const struct eth_hpp_stage_run *stages, int stage_count,
                                     int run, bool blocking,
                                     struct eth_hpp_pipeline_scratch *scratch, double end_s,
                                     double *beat_s, struct eth_hpp_error *err)
{
    if (!blocking) {
        *beat_s = eth_hpp_pipeline_find_pace(stages, stage_count, run).beat_s;
        return ETH_HPP_OK;
    }
    double half_s = 0;
    struct eth_hpp_stage_run *again = malloc((size_t)stage_count * sizeof(*again));
    if (again == NULL)
        return eth_hpp_error_memory(err, "the simulation of a pipeline");
    memcpy(again, stages, (size_t)stage_count * sizeof(*again));
    enum eth_hpp_status status =
        run_pipeline(again, stage_count, run / 2, blocking, scratch, &half_s, err);
    *beat_s = (end_s - half_s) / (run - run / 2);
    free(again);
    return status;
}

enum eth_hpp_status eth_hpp_pipeline_run_most(struct eth_hpp_stage_run *stages, int stage_count,
                                              int micro_batches, int most, bool blocking,
                                              struct eth_hpp_pipeline_scratch *scratch,
                                              double *end_s, struct eth_hpp_error *err)
{
    const int run = smaller(micro_batches, most);
    enum eth_hpp_status status =
        eth_hpp_pipeline_run(stages, stage_count, run, blocking, scratch, end_s, err);
    if (status != ETH_HPP_OK || run == micro_batches)
        return status;
    double beat_s = 0;
    status = find_beat(stages, stage_count, run, blocking, scratch, *end_s, &beat_s, err);
    const double rest_s = (micro_batches - run) * beat_s;
    *end_s += rest_s;
    for (int s = 0; s < stage_count; s++) {
        stages[s].last_start_s += rest_s;
        stages[s].last_end_s += rest_s;
    }
    return status;
}
