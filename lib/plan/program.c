#include "plan/program.h"

#include <stdlib.h>

#include "plan/schedule.h"

const char *eth_hpp_opcode_name(enum eth_hpp_opcode opcode)
{
    static const char *const names[] = {[ETH_HPP_RECV_ACTIVATION] = "recv-activation",
                                        [ETH_HPP_FORWARD] = "forward",
                                        [ETH_HPP_SEND_ACTIVATION] = "send-activation",
                                        [ETH_HPP_RECV_GRADIENT] = "recv-gradient",
                                        [ETH_HPP_BACKWARD] = "backward",
                                        [ETH_HPP_SEND_GRADIENT] = "send-gradient",
                                        [ETH_HPP_SYNC_BLOCK] = "sync-block",
                                        [ETH_HPP_REDUCE_LOSS] = "reduce-loss",
                                        [ETH_HPP_REDUCE_NORM] = "reduce-norm",
                                        [ETH_HPP_OPTIMIZER_STEP] = "optimizer-step",
                                        [ETH_HPP_GATHER_BLOCK] = "gather-block"};
    return names[opcode];
}

void eth_hpp_program_free(struct eth_hpp_program *program)
{
    free(program->instructions);
    free(program->queues);
    *program = (struct eth_hpp_program){0};
}

/* ---- building a list ---- */

struct builder {
    struct eth_hpp_program program;
    int room, queue_room;
    bool failed; /* out of memory: reported once at the end */
};

static int find_queue(struct builder *b, enum eth_hpp_queue_kind kind, int peer)
{
    struct eth_hpp_program *program = &b->program;
    for (int q = 0; q < program->queue_count; q++)
        if (program->queues[q].kind == kind && program->queues[q].peer == peer)
            return q;
    if (program->queue_count == b->queue_room) {
        int room = b->queue_room == 0 ? 8 : b->queue_room * 2;
        struct eth_hpp_queue *queues = realloc(program->queues, (size_t)room * sizeof(*queues));
        if (queues == NULL) {
            b->failed = true;
            return 0;
        }
        program->queues = queues;
        b->queue_room = room;
    }
    program->queues[program->queue_count] =
        (struct eth_hpp_queue){kind, peer, program->queue_count};
    return program->queue_count++;
}

static void emit(struct builder *b, enum eth_hpp_queue_kind kind,
                 struct eth_hpp_instruction instruction)
{
    struct eth_hpp_program *program = &b->program;
    if (program->count == b->room) {
        int room = b->room == 0 ? 64 : b->room * 2;
        struct eth_hpp_instruction *list =
            realloc(program->instructions, (size_t)room * sizeof(*list));
        if (list == NULL) {
            b->failed = true;
            return;
        }
        program->instructions = list;
        b->room = room;
    }
    instruction.queue = find_queue(b, kind, instruction.peer);
    program->instructions[program->count++] = instruction;
}

static void emit_local(struct builder *b, enum eth_hpp_queue_kind kind, enum eth_hpp_opcode opcode,
                       int micro_batch)
{
    emit(b, kind,
         (struct eth_hpp_instruction){
             .opcode = opcode, .micro_batch = micro_batch, .peer = -1, .block = -1});
}

/* One hand-over for each worker of the neighbour stage that has some of this worker's samples. */
static void emit_hand_overs(struct builder *b, const struct eth_hpp_stage *mine, int worker,
                            const struct eth_hpp_stage *neighbour, enum eth_hpp_opcode opcode,
                            double bytes_per_sample, int micro_batch)
{
    bool sends = opcode == ETH_HPP_SEND_ACTIVATION || opcode == ETH_HPP_SEND_GRADIENT;
    int begin = 0, at = 0;
    for (int w = 0; w < worker; w++)
        begin += mine->workers[w].samples;
    int end = begin + mine->workers[worker].samples;
    for (int w = 0; w < neighbour->worker_count; w++) {
        int next = at + neighbour->workers[w].samples;
        int first = at > begin ? at : begin, last = next < end ? next : end;
        at = next;
        if (first >= last)
            continue;
        emit(b, sends ? ETH_HPP_QUEUE_SEND : ETH_HPP_QUEUE_RECV,
             (struct eth_hpp_instruction){.opcode = opcode,
                                          .micro_batch = micro_batch,
                                          .peer = neighbour->workers[w].ranks[0],
                                          .first_sample = first - begin,
                                          .samples = last - first,
                                          .block = -1,
                                          .bytes = bytes_per_sample * (last - first)});
    }
}

/* ---- one rank ---- */

struct site {
    const struct eth_hpp_plan *plan;
    const struct eth_hpp_pipeline *pipeline;
    const struct eth_hpp_stage *before, *stage, *after; /* NULL where there is none */
    int worker;
    bool leads; /* the first rank of its tensor-parallel group: hands over */
    double input_bytes, output_bytes;
};

static void emit_receives(struct builder *b, const struct site *site, enum eth_hpp_opcode opcode,
                          int micro_batch)
{
    bool activation = opcode == ETH_HPP_RECV_ACTIVATION;
    const struct eth_hpp_stage *from = activation ? site->before : site->after;
    if (from != NULL && site->leads && micro_batch < site->pipeline->micro_batches)
        emit_hand_overs(b, site->stage, site->worker, from, opcode,
                        activation ? site->input_bytes : site->output_bytes, micro_batch);
}

static void emit_compute(struct builder *b, const struct site *site, struct eth_hpp_compute compute)
{
    int m = compute.micro_batch;
    emit_local(b, ETH_HPP_QUEUE_COMPUTE, compute.backward ? ETH_HPP_BACKWARD : ETH_HPP_FORWARD, m);
    const struct eth_hpp_stage *to = compute.backward ? site->before : site->after;
    if (to != NULL && site->leads)
        emit_hand_overs(b, site->stage, site->worker, to,
                        compute.backward ? ETH_HPP_SEND_GRADIENT : ETH_HPP_SEND_ACTIVATION,
                        compute.backward ? site->input_bytes : site->output_bytes, m);
    if (compute.backward) {
        emit_receives(b, site, ETH_HPP_RECV_ACTIVATION, m + b->program.input_buffers);
        emit_receives(b, site, ETH_HPP_RECV_GRADIENT, m + b->program.output_gradient_buffers);
    }
}

/* Is the rank among the block's owners, of which there is more than one worker? */
static bool sums_block(const struct eth_hpp_block *block, const struct eth_hpp_stage *stage,
                       int rank)
{
    int low = 0, high = block->rank_count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(block->ranks[middle] <= rank ? &low : &high) = middle;
    }
    return block->rank_count > stage->tensor_parallel && block->ranks[low] == rank;
}

/* Sums go from the last layers to the first, then the tied tensors; gathers the other way round. */
static void emit_blocks(struct builder *b, const struct site *site, const double *gradient_bytes,
                        enum eth_hpp_opcode opcode)
{
    const struct eth_hpp_plan *plan = site->plan;
    int layer_blocks = 0;
    while (layer_blocks < plan->block_count && plan->blocks[layer_blocks].tied < 0)
        layer_blocks++;
    for (int i = 0; i < plan->block_count; i++) {
        int position = opcode == ETH_HPP_SYNC_BLOCK ? i : plan->block_count - 1 - i;
        int block = position < layer_blocks ? layer_blocks - 1 - position : position;
        if (sums_block(&plan->blocks[block], site->stage, b->program.rank))
            emit(b, ETH_HPP_QUEUE_SYNC,
                 (struct eth_hpp_instruction){.opcode = opcode,
                                              .micro_batch = -1,
                                              .peer = -1,
                                              .block = block,
                                              .bytes = gradient_bytes[block] /
                                                       site->stage->tensor_parallel});
    }
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* How many micro-batches the stage at hand has in flight. */
static int in_flight(const struct site *site)
{
    const struct eth_hpp_stage *stage = &site->pipeline->stages[site->pipeline->stage_count - 1];
    int most = stage->in_flight;
    while (stage-- != site->stage)
        most = smaller(stage->in_flight, most + ETH_HPP_MORE_IN_FLIGHT);
    return most;
}

static void emit_program(struct builder *b, const struct site *site, const double *gradient_bytes)
{
    struct eth_hpp_program *program = &b->program;
    const int n = site->pipeline->micro_batches, live = smaller(n, in_flight(site));
    /* As many as planning counts on, however few micro-batches there are. */
    program->input_buffers = live + 1;
    program->output_buffers = ETH_HPP_SEND_BUFFERS;
    program->output_gradient_buffers = ETH_HPP_GRADIENT_BUFFERS;
    program->input_gradient_buffers = ETH_HPP_SEND_BUFFERS;
    for (int m = 0; m < program->input_buffers; m++)
        emit_receives(b, site, ETH_HPP_RECV_ACTIVATION, m);
    for (int m = 0; m < program->output_gradient_buffers; m++)
        emit_receives(b, site, ETH_HPP_RECV_GRADIENT, m);
    for (int i = 0; i < 2 * n; i++) {
        if (i == 2 * n - 1)
            emit_blocks(b, site, gradient_bytes, ETH_HPP_SYNC_BLOCK);
        emit_compute(b, site, eth_hpp_schedule_at(n, live, i));
    }
    emit_local(b, ETH_HPP_QUEUE_SYNC, ETH_HPP_REDUCE_LOSS, -1);
    emit_local(b, ETH_HPP_QUEUE_SYNC, ETH_HPP_REDUCE_NORM, -1);
    emit_local(b, ETH_HPP_QUEUE_COMPUTE, ETH_HPP_OPTIMIZER_STEP, -1);
    if (site->plan->sharded_optimizer)
        emit_blocks(b, site, gradient_bytes, ETH_HPP_GATHER_BLOCK);
}

enum eth_hpp_status eth_hpp_program_compile(const struct eth_hpp_plan *plan,
                                            const double *output_bytes,
                                            const double *gradient_bytes, int rank,
                                            struct eth_hpp_program *program,
                                            struct eth_hpp_error *err)
{
    struct eth_hpp_place place = eth_hpp_plan_find_rank(plan, rank);
    struct builder b = {.program = {.rank = rank, .place = place}};
    if (plan->block_count == 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "the plan has no ranks and blocks yet");
    if (place.pipeline < 0) {
        *program = b.program;
        return ETH_HPP_OK;
    }
    const struct eth_hpp_pipeline *pipeline = &plan->pipelines[place.pipeline];
    const struct eth_hpp_stage *stage = &pipeline->stages[place.stage];
    bool first = place.stage == 0, last = place.stage + 1 == pipeline->stage_count;
    struct site site = {
        .plan = plan,
        .pipeline = pipeline,
        .before = first ? NULL : stage - 1,
        .stage = stage,
        .after = last ? NULL : stage + 1,
        .worker = place.worker,
        .leads = stage->workers[place.worker].ranks[0] == rank,
        .input_bytes = first ? 0 : output_bytes[stage->first_layer - 1],
        .output_bytes = output_bytes[stage->end_layer - 1],
    };
    emit_program(&b, &site, gradient_bytes);
    if (b.failed) {
        eth_hpp_program_free(&b.program);
        return eth_hpp_error_memory(err, "an instruction list");
    }
    *program = b.program;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_program_sizes(const struct eth_hpp_plan *plan,
                                          const struct eth_hpp_profile *profile,
                                          double **output_bytes, double **gradient_bytes,
                                          struct eth_hpp_error *err)
{
    if (plan->layers != profile->layer_count)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "the plan has %d layers, the profile of %s has %d", plan->layers,
                                 profile->model, profile->layer_count);
    double *output = malloc((size_t)plan->layers * sizeof(*output));
    double *gradient = calloc((size_t)plan->block_count + 1, sizeof(*gradient));
    enum eth_hpp_status status = ETH_HPP_OK;
    if (output == NULL || gradient == NULL)
        status = eth_hpp_error_memory(err, "the sizes of hand-overs");
    for (int i = 0; i < plan->layers && status == ETH_HPP_OK; i++)
        output[i] = profile->kinds[profile->layers[i]].output_bytes;
    for (int b = 0; b < plan->block_count && status == ETH_HPP_OK; b++) {
        const struct eth_hpp_block *block = &plan->blocks[b];
        for (int i = block->first_layer; i < block->end_layer; i++)
            gradient[b] += profile->kinds[profile->layers[i]].gradient_bytes;
        if (block->tied >= profile->tied_count)
            status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                       "the profile of %s has no tied tensor \"%s\"",
                                       profile->model, block->tied_name);
        else if (block->tied >= 0)
            gradient[b] = profile->tied[block->tied].gradient_bytes;
    }
    if (status != ETH_HPP_OK) {
        free(output);
        free(gradient);
        return status;
    }
    *output_bytes = output;
    *gradient_bytes = gradient;
    return ETH_HPP_OK;
}
