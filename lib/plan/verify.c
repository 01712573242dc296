/* The proof that all ranks' instruction lists go together and cannot wait in a circle. */
#include "plan/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/waits.h"

/*
 * The graph of waits. A node is an instruction; a send and its receive are one node, and so are the
 * parts of one sum, since each completes with the other. Programs are in rank order.
 */
struct graph {
    const struct eth_hpp_plan *plan;
    const struct eth_hpp_program *programs;
    int program_count;
    int *base;   /* [program_count + 1] id of a program's first instruction */
    int *merged; /* [instructions] the id that stands for a merged node */
    int (*edges)[2];
    int edge_count, edge_room;
    struct eth_hpp_error *err;
};

static int program_of(const struct graph *g, int id)
{
    int low = 0, high = g->program_count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(g->base[middle] <= id ? &low : &high) = middle;
    }
    return low;
}

/* "rank 3: send-gradient of micro-batch 2 to rank 1" */
static void describe(const struct eth_hpp_program *program, int index, char *text, size_t size)
{
    const struct eth_hpp_instruction *in = &program->instructions[index];
    int used = snprintf(text, size, "rank %d: %s", program->rank, eth_hpp_opcode_name(in->opcode));
    if (in->micro_batch >= 0)
        used += snprintf(text + used, size - (size_t)used, " of micro-batch %d", in->micro_batch);
    if (in->block >= 0)
        used += snprintf(text + used, size - (size_t)used, " of block %d", in->block);
    if (in->peer >= 0)
        snprintf(text + used, size - (size_t)used, " with rank %d", in->peer);
}

static enum eth_hpp_status refuse(const struct graph *g, int program, int index, const char *why)
{
    char text[160];
    describe(&g->programs[program], index, text, sizeof(text));
    return eth_hpp_error_set(g->err, ETH_HPP_ERR_INTERNAL, "%s %s", text, why);
}

static int find_program(const struct graph *g, int rank)
{
    for (int low = 0, high = g->program_count - 1; low <= high;) {
        int middle = (low + high) / 2, found = g->programs[middle].rank;
        if (found == rank)
            return middle;
        if (found < rank)
            low = middle + 1;
        else
            high = middle - 1;
    }
    return -1;
}

/* ---- sends and receives ---- */

static bool is_send(enum eth_hpp_opcode opcode)
{
    return opcode == ETH_HPP_SEND_ACTIVATION || opcode == ETH_HPP_SEND_GRADIENT;
}

static bool is_receive(enum eth_hpp_opcode opcode)
{
    return opcode == ETH_HPP_RECV_ACTIVATION || opcode == ETH_HPP_RECV_GRADIENT;
}

static int find_queue(const struct eth_hpp_program *program, enum eth_hpp_queue_kind kind, int peer)
{
    for (int q = 0; q < program->queue_count; q++)
        if (program->queues[q].kind == kind && program->queues[q].peer == peer)
            return q;
    return -1;
}

/* The next instruction of a queue at or after `index`, or -1. */
static int next_on_queue(const struct eth_hpp_program *program, int queue, int index)
{
    for (; index < program->count; index++)
        if (program->instructions[index].queue == queue)
            return index;
    return -1;
}

static bool go_together(const struct eth_hpp_instruction *send,
                        const struct eth_hpp_instruction *receive)
{
    enum eth_hpp_opcode wanted =
        send->opcode == ETH_HPP_SEND_ACTIVATION ? ETH_HPP_RECV_ACTIVATION : ETH_HPP_RECV_GRADIENT;
    return receive->opcode == wanted && receive->micro_batch == send->micro_batch &&
           receive->samples == send->samples && receive->bytes == send->bytes;
}

/* Pairs the k-th send of a queue with the k-th receive of the peer's queue from this rank. */
static enum eth_hpp_status match_queue(struct graph *g, int p, int queue)
{
    const struct eth_hpp_program *mine = &g->programs[p];
    int q = find_program(g, mine->queues[queue].peer), i = next_on_queue(mine, queue, 0);
    const struct eth_hpp_program *theirs = q >= 0 ? &g->programs[q] : NULL;
    int other = theirs != NULL ? find_queue(theirs, ETH_HPP_QUEUE_RECV, mine->rank) : -1;
    int j = other >= 0 ? next_on_queue(theirs, other, 0) : -1;
    while (i >= 0) {
        if (j < 0)
            return refuse(g, p, i, "has no receive");
        if (!is_send(mine->instructions[i].opcode))
            return refuse(g, p, i, "stands on a send queue");
        if (!go_together(&mine->instructions[i], &theirs->instructions[j]))
            return refuse(g, p, i, "meets another receive, or one of another size");
        g->merged[g->base[q] + j] = g->base[p] + i;
        i = next_on_queue(mine, queue, i + 1);
        j = next_on_queue(theirs, other, j + 1);
    }
    return j < 0 ? ETH_HPP_OK : refuse(g, q, j, "has no send");
}

static enum eth_hpp_status match_hand_overs(struct graph *g)
{
    for (int p = 0; p < g->program_count; p++)
        for (int q = 0; q < g->programs[p].queue_count; q++)
            if (g->programs[p].queues[q].kind == ETH_HPP_QUEUE_SEND) {
                enum eth_hpp_status status = match_queue(g, p, q);
                if (status != ETH_HPP_OK)
                    return status;
            }
    for (int p = 0; p < g->program_count; p++)
        for (int i = 0; i < g->programs[p].count; i++)
            if (is_receive(g->programs[p].instructions[i].opcode) &&
                g->merged[g->base[p] + i] == g->base[p] + i)
                return refuse(g, p, i, "has no send");
    return ETH_HPP_OK;
}

/* ---- sums ---- */

/* Position of a block in the one order of sums. */
static int sum_position(const struct eth_hpp_plan *plan, int block)
{
    return plan->blocks[block].tied < 0 ? plan->layers - plan->blocks[block].first_layer
                                        : plan->layers + 1 + block;
}

static enum eth_hpp_status check_sum_order(const struct graph *g, int p)
{
    const struct eth_hpp_program *program = &g->programs[p];
    int before = -1;
    for (int i = 0; i < program->count; i++) {
        if (program->instructions[i].opcode != ETH_HPP_SYNC_BLOCK)
            continue;
        int block = program->instructions[i].block;
        if (block < 0 || block >= g->plan->block_count)
            return refuse(g, p, i, "is of a block that the plan does not have");
        int position = sum_position(g->plan, block);
        if (position <= before)
            return refuse(g, p, i, "is out of the order of sums that all ranks share");
        before = position;
    }
    return ETH_HPP_OK;
}

/* Merges an instruction of all ranks in the list (NULL: of all programs). */
static enum eth_hpp_status merge_sum(struct graph *g, enum eth_hpp_opcode opcode, int block)
{
    const struct eth_hpp_block *owners = block >= 0 ? &g->plan->blocks[block] : NULL;
    int first = -1, found = 0, expected = owners != NULL ? owners->rank_count : g->program_count;
    for (int p = 0; p < g->program_count; p++) {
        const struct eth_hpp_program *program = &g->programs[p];
        for (int i = 0; i < program->count; i++) {
            if (program->instructions[i].opcode != opcode ||
                program->instructions[i].block != block)
                continue;
            int position = 0;
            while (owners != NULL && position < owners->rank_count &&
                   owners->ranks[position] != program->rank)
                position++;
            if (owners != NULL && position == owners->rank_count)
                return refuse(g, p, i, "is not among the block's owners");
            first = first < 0 ? g->base[p] + i : first;
            g->merged[g->base[p] + i] = first;
            found++;
        }
    }
    if (found != 0 && found != expected)
        return eth_hpp_error_set(g->err, ETH_HPP_ERR_INTERNAL,
                                 "%s of block %d is issued by %d ranks, but %d belong to it",
                                 eth_hpp_opcode_name(opcode), block, found, expected);
    return ETH_HPP_OK;
}

/* A block that several workers hold must be summed, and gathered where the optimizer is sharded. */
static enum eth_hpp_status check_summed(const struct graph *g, int block, enum eth_hpp_opcode by)
{
    const struct eth_hpp_block *owners = &g->plan->blocks[block];
    int p = find_program(g, owners->ranks[0]);
    if (p < 0)
        return ETH_HPP_OK; /* a missing program is found by its count */
    struct eth_hpp_place place = g->programs[p].place;
    const struct eth_hpp_stage *stage = &g->plan->pipelines[place.pipeline].stages[place.stage];
    if (owners->rank_count <= stage->tensor_parallel)
        return ETH_HPP_OK;
    for (int i = 0; i < g->programs[p].count; i++)
        if (g->programs[p].instructions[i].opcode == by &&
            g->programs[p].instructions[i].block == block)
            return ETH_HPP_OK;
    return eth_hpp_error_set(
        g->err, ETH_HPP_ERR_INTERNAL, "rank %d does not %s block %d, which %d ranks hold",
        owners->ranks[0], by == ETH_HPP_SYNC_BLOCK ? "sum" : "gather", block, owners->rank_count);
}

static enum eth_hpp_status match_sums(struct graph *g)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    for (int p = 0; p < g->program_count && status == ETH_HPP_OK; p++)
        status = check_sum_order(g, p);
    for (int b = 0; b < g->plan->block_count && status == ETH_HPP_OK; b++) {
        status = check_summed(g, b, ETH_HPP_SYNC_BLOCK);
        if (status == ETH_HPP_OK && g->plan->sharded_optimizer)
            status = check_summed(g, b, ETH_HPP_GATHER_BLOCK);
        if (status == ETH_HPP_OK)
            status = merge_sum(g, ETH_HPP_SYNC_BLOCK, b);
        if (status == ETH_HPP_OK)
            status = merge_sum(g, ETH_HPP_GATHER_BLOCK, b);
    }
    if (status == ETH_HPP_OK)
        status = merge_sum(g, ETH_HPP_REDUCE_LOSS, -1);
    return status == ETH_HPP_OK ? merge_sum(g, ETH_HPP_REDUCE_NORM, -1) : status;
}

/* ---- waits ---- */

static bool add_edge(struct graph *g, int from, int to)
{
    if (g->edge_count == g->edge_room) {
        int room = g->edge_room == 0 ? 1024 : g->edge_room * 2;
        void *edges = realloc(g->edges, (size_t)room * sizeof(*g->edges));
        if (edges == NULL)
            return false;
        g->edges = edges;
        g->edge_room = room;
    }
    g->edges[g->edge_count][0] = g->merged[from];
    g->edges[g->edge_count++][1] = g->merged[to];
    return true;
}

/* The instructions of one program by opcode and micro-batch: heads of chains. */
struct finder {
    int micro_batches;
    int *head; /* [opcode][micro-batch] first instruction, -1 none */
    int *next; /* [instruction] next one of the same chain */
};

/* Every `opcode` of micro-batch m (none where m < 0) comes before instruction `to`. */
static bool after_all(struct graph *g, const struct finder *f, int p, enum eth_hpp_opcode opcode,
                      int m, int to)
{
    if (m < 0 || m >= f->micro_batches)
        return true;
    for (int i = f->head[(int)opcode * f->micro_batches + m]; i >= 0; i = f->next[i])
        if (!add_edge(g, g->base[p] + i, g->base[p] + to))
            return false;
    return true;
}

/* The waits of program.h, instruction by instruction. */
static bool add_waits(struct graph *g, const struct finder *f, int p, int i)
{
    const struct eth_hpp_program *program = &g->programs[p];
    int m = program->instructions[i].micro_batch, last = f->micro_batches - 1;
    switch (program->instructions[i].opcode) {
    case ETH_HPP_RECV_ACTIVATION:
        return after_all(g, f, p, ETH_HPP_BACKWARD, m - program->input_buffers, i);
    case ETH_HPP_FORWARD:
        return after_all(g, f, p, ETH_HPP_RECV_ACTIVATION, m, i) &&
               after_all(g, f, p, ETH_HPP_SEND_ACTIVATION, m - program->output_buffers, i);
    case ETH_HPP_SEND_ACTIVATION:
        return after_all(g, f, p, ETH_HPP_FORWARD, m, i);
    case ETH_HPP_RECV_GRADIENT:
        return after_all(g, f, p, ETH_HPP_BACKWARD, m - program->output_gradient_buffers, i);
    case ETH_HPP_BACKWARD:
        return after_all(g, f, p, ETH_HPP_FORWARD, m, i) &&
               after_all(g, f, p, ETH_HPP_RECV_GRADIENT, m, i) &&
               after_all(g, f, p, ETH_HPP_SEND_GRADIENT, m - program->input_gradient_buffers, i);
    case ETH_HPP_SEND_GRADIENT:
    case ETH_HPP_SYNC_BLOCK:
        return after_all(g, f, p, ETH_HPP_BACKWARD, m >= 0 ? m : last, i);
    case ETH_HPP_REDUCE_LOSS:
        return after_all(g, f, p, ETH_HPP_FORWARD, last, i);
    case ETH_HPP_REDUCE_NORM:
    case ETH_HPP_OPTIMIZER_STEP:
    case ETH_HPP_GATHER_BLOCK:
        /* After everything listed in front: the sums, then the norm, then the step. */
        return i == 0 || add_edge(g, g->base[p] + i - 1, g->base[p] + i);
    }
    return true;
}

/* Order of queues that share, issue behind the computation listed before, and the waits. */
static bool add_program_edges(struct graph *g, int p, const struct finder *f, int *last_issued)
{
    const struct eth_hpp_program *program = &g->programs[p];
    int compute = -1;
    for (int q = 0; q < program->queue_count; q++)
        last_issued[q] = -1;
    for (int i = 0; i < program->count; i++) {
        const struct eth_hpp_instruction *in = &program->instructions[i];
        int *last = &last_issued[program->queues[in->queue].shares], before = *last;
        if (before >= 0 && !add_edge(g, g->base[p] + before, g->base[p] + i))
            return false;
        if (compute >= 0 && compute != before && !add_edge(g, g->base[p] + compute, g->base[p] + i))
            return false;
        if (!add_waits(g, f, p, i))
            return false;
        *last = i;
        if (in->opcode == ETH_HPP_FORWARD || in->opcode == ETH_HPP_BACKWARD)
            compute = i;
    }
    return true;
}

static bool add_edges(struct graph *g, int p)
{
    const struct eth_hpp_program *program = &g->programs[p];
    int micro_batches = g->plan->pipelines[program->place.pipeline].micro_batches;
    size_t heads = (size_t)(ETH_HPP_GATHER_BLOCK + 1) * (size_t)micro_batches;
    struct finder f = {micro_batches, malloc(heads * sizeof(int)),
                       malloc((size_t)program->count * sizeof(int))};
    int *last_issued = malloc((size_t)program->queue_count * sizeof(int));
    bool done = false;
    if (f.head != NULL && f.next != NULL && last_issued != NULL) {
        memset(f.head, -1, heads * sizeof(int));
        for (int i = program->count - 1; i >= 0; i--) {
            int m = program->instructions[i].micro_batch;
            if (m < 0)
                continue;
            int *head = &f.head[(int)program->instructions[i].opcode * micro_batches + m];
            f.next[i] = *head;
            *head = i;
        }
        done = add_program_edges(g, p, &f, last_issued);
    }
    free(f.head);
    free(f.next);
    free(last_issued);
    return done;
}

static enum eth_hpp_status find_deadlock(const struct graph *g)
{
    int stuck;
    if (!eth_hpp_waits_find_cycle((const int(*)[2])g->edges, g->edge_count,
                                  g->base[g->program_count], &stuck))
        return eth_hpp_error_memory(g->err, "the graph of waits");
    if (stuck < 0)
        return ETH_HPP_OK;
    int p = program_of(g, stuck);
    return refuse(g, p, stuck - g->base[p], "waits for itself through other ranks: a deadlock");
}

/* ---- one program by itself ---- */

/* Each micro-batch runs forward once, then backward once, and few enough are held at a time. */
static enum eth_hpp_status check_computes(const struct graph *g, int p)
{
    const struct eth_hpp_program *program = &g->programs[p];
    const struct eth_hpp_pipeline *pipeline = &g->plan->pipelines[program->place.pipeline];
    int forwards = 0, backwards = 0;
    for (int i = 0; i < program->count; i++) {
        const struct eth_hpp_instruction *in = &program->instructions[i];
        bool forward = in->opcode == ETH_HPP_FORWARD;
        if (!forward && in->opcode != ETH_HPP_BACKWARD)
            continue;
        if (in->micro_batch != (forward ? forwards++ : backwards++))
            return refuse(g, p, i, "is out of turn");
        if (backwards > forwards)
            return refuse(g, p, i, "comes before its forward");
        if (forwards - backwards > pipeline->stages[program->place.stage].in_flight)
            return refuse(g, p, i, "holds more micro-batches than the stage's in_flight");
    }
    if (forwards != pipeline->micro_batches || backwards != pipeline->micro_batches)
        return eth_hpp_error_set(g->err, ETH_HPP_ERR_INTERNAL,
                                 "rank %d runs %d forwards and %d backwards of %d micro-batches",
                                 program->rank, forwards, backwards, pipeline->micro_batches);
    return ETH_HPP_OK;
}

static int compare_programs(const void *a, const void *b)
{
    const struct eth_hpp_program *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static enum eth_hpp_status check_all(struct graph *g)
{
    enum eth_hpp_status status = ETH_HPP_OK;
    for (int p = 0; p < g->program_count && status == ETH_HPP_OK; p++)
        status = check_computes(g, p);
    if (status == ETH_HPP_OK)
        status = match_hand_overs(g);
    if (status == ETH_HPP_OK)
        status = match_sums(g);
    for (int p = 0; p < g->program_count && status == ETH_HPP_OK; p++)
        if (!add_edges(g, p))
            status = eth_hpp_error_memory(g->err, "the graph of waits");
    return status == ETH_HPP_OK ? find_deadlock(g) : status;
}

enum eth_hpp_status eth_hpp_program_verify(const struct eth_hpp_plan *plan,
                                           const struct eth_hpp_program *programs, int count,
                                           struct eth_hpp_error *err)
{
    struct eth_hpp_program *sorted = malloc((size_t)(count > 0 ? count : 1) * sizeof(*sorted));
    struct graph g = {.plan = plan, .programs = sorted, .err = err};
    enum eth_hpp_status status = ETH_HPP_OK;
    g.base = malloc(((size_t)count + 1) * sizeof(*g.base));
    if (sorted == NULL || g.base == NULL) {
        status = eth_hpp_error_memory(err, "the graph of waits");
        goto out;
    }
    for (int p = 0; p < count; p++)
        if (programs[p].count > 0)
            sorted[g.program_count++] = programs[p];
    qsort(sorted, (size_t)g.program_count, sizeof(*sorted), compare_programs);
    if (g.program_count != eth_hpp_plan_computing_ranks(plan)) {
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL,
                                   "there are %d instruction lists for %d ranks", g.program_count,
                                   eth_hpp_plan_computing_ranks(plan));
        goto out;
    }
    g.base[0] = 0;
    for (int p = 0; p < g.program_count; p++)
        g.base[p + 1] = g.base[p] + sorted[p].count;
    int total = g.base[g.program_count];
    g.merged = malloc((size_t)(total > 0 ? total : 1) * sizeof(*g.merged));
    if (g.merged == NULL) {
        status = eth_hpp_error_memory(err, "the graph of waits");
        goto out;
    }
    for (int i = 0; i < total; i++)
        g.merged[i] = i;
    status = check_all(&g);
out:
    free(sorted);
    free(g.base);
    free(g.merged);
    free(g.edges);
    return status;
}
