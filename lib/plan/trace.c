/* The trace event format: "Trace Event Format" of the Chromium project, complete events (ph X) and
 * metadata (ph M). Times are microseconds; viewers count whole nanoseconds and take events of one
 * thread that overlap for an error, so starts and ends are cut to nanoseconds alike. */
#include "plan/timeline.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

/* A row's threads, which are the queues of its program. */
enum thread { COMPUTE, SEND_DOWN, SEND_UP, RECEIVE_DOWN, RECEIVE_UP, SUMS, THREADS };
static const char *const thread_names[THREADS] = {[COMPUTE] = "compute",
                                                  [SEND_DOWN] = "send activations",
                                                  [SEND_UP] = "send gradients",
                                                  [RECEIVE_DOWN] = "receive activations",
                                                  [RECEIVE_UP] = "receive gradients",
                                                  [SUMS] = "sums of gradients"};

static enum thread thread_of(enum eth_hpp_opcode opcode)
{
    switch (opcode) {
    case ETH_HPP_SEND_ACTIVATION:
        return SEND_DOWN;
    case ETH_HPP_SEND_GRADIENT:
        return SEND_UP;
    case ETH_HPP_RECV_ACTIVATION:
        return RECEIVE_DOWN;
    case ETH_HPP_RECV_GRADIENT:
        return RECEIVE_UP;
    case ETH_HPP_SYNC_BLOCK:
    case ETH_HPP_GATHER_BLOCK:
        return SUMS;
    default:
        return COMPUTE;
    }
}

struct writer {
    FILE *out;
    bool started; /* an event stands before */
    bool failed;  /* out of memory */
};

/* A text as a JSON string, quotes included. */
static void put_text(struct writer *writer, const char *text)
{
    struct json_object *string = json_object_new_string(text);
    if (string == NULL)
        writer->failed = true;
    else
        fputs(json_object_to_json_string_ext(string, JSON_C_TO_STRING_NOSLASHESCAPE), writer->out);
    json_object_put(string);
}

static void begin_event(struct writer *writer)
{
    fputs(writer->started ? ",\n" : "\n", writer->out);
    writer->started = true;
}

static void put_name(struct writer *writer, const char *what, int process, int thread,
                     const char *name)
{
    begin_event(writer);
    fprintf(writer->out,
            "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", what,
            process, thread);
    put_text(writer, name);
    fputs("}}", writer->out);
}

static void put_order(struct writer *writer, const char *what, int process, int thread, int order)
{
    begin_event(writer);
    fprintf(writer->out,
            "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
            what, process, thread, order);
}

/* A block's layers, or the name of its tied tensor. */
static void put_block(struct writer *writer, const struct eth_hpp_block *block)
{
    if (block->tied < 0) {
        fprintf(writer->out, "\"layers\":[%d,%d]", block->first_layer, block->end_layer);
        return;
    }
    fputs("\"tied\":", writer->out);
    put_text(writer, block->tied_name);
}

static void put_span(struct writer *writer, const struct eth_hpp_timeline *timeline,
                     const struct eth_hpp_timeline_row *row, int process,
                     const struct eth_hpp_span *span)
{
    int64_t start_ns = (int64_t)(1e9 * span->start_s);
    int64_t length_ns = (int64_t)(1e9 * eth_hpp_timeline_end(row, span)) - start_ns;
    begin_event(writer);
    fprintf(writer->out, "{\"ph\":\"X\",\"name\":\"%s", eth_hpp_opcode_name(span->opcode));
    if (span->micro_batch >= 0)
        fprintf(writer->out, " %d", span->micro_batch);
    fprintf(writer->out, "\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{", process,
            (int)thread_of(span->opcode), 1e-3 * (double)start_ns, 1e-3 * (double)length_ns);
    if (span->micro_batch >= 0)
        fprintf(writer->out, "\"micro_batch\":%d", span->micro_batch);
    else if (span->block >= 0)
        put_block(writer, &timeline->plan->blocks[span->block]);
    fputs("}}", writer->out);
}

static void put_row(struct writer *writer, const struct eth_hpp_timeline *timeline,
                    const struct eth_hpp_timeline_row *row)
{
    const struct eth_hpp_stage *stage =
        &timeline->plan->pipelines[row->pipeline].stages[row->stage];
    int process = stage->workers[row->worker < 0 ? 0 : row->worker].ranks[0];
    char who[256], where[160], name[512];
    eth_hpp_timeline_describe_row(timeline, row, who, sizeof(who));
    eth_hpp_timeline_describe_pipeline(timeline, row, where, sizeof(where));
    if (row->worker < 0)
        snprintf(name, sizeof(name), "%s of %s", who, where);
    else
        snprintf(name, sizeof(name), "%s, stage %d of %s", who, row->stage, where);
    put_name(writer, "process_name", process, 0, name);
    put_order(writer, "process_sort_index", process, 0, (int)(row - timeline->rows));
    bool used[THREADS] = {false};
    for (int i = 0; i < row->span_count; i++)
        used[thread_of(row->spans[i].opcode)] = true;
    for (int t = 0; t < THREADS; t++)
        if (used[t]) {
            put_name(writer, "thread_name", process, t, thread_names[t]);
            put_order(writer, "thread_sort_index", process, t, t);
        }
    for (int i = 0; i < row->span_count; i++)
        put_span(writer, timeline, row, process, &row->spans[i]);
}

enum eth_hpp_status eth_hpp_trace_print(const struct eth_hpp_timeline *timeline, char **text,
                                        struct eth_hpp_error *err)
{
    char *made = NULL, step[256];
    size_t size = 0;
    struct writer writer = {.out = open_memstream(&made, &size)};
    if (writer.out == NULL)
        return eth_hpp_error_memory(err, "the trace");
    eth_hpp_timeline_describe_step(timeline, step, sizeof(step));
    fputs("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"simulated\":", writer.out);
    put_text(&writer, step);
    fprintf(writer.out, ",\"stages_left_out\":%d},\"traceEvents\":[", timeline->left_out);
    for (int r = 0; r < timeline->row_count; r++)
        put_row(&writer, timeline, &timeline->rows[r]);
    fputs("\n]}\n", writer.out);
    writer.failed |= ferror(writer.out) != 0;
    writer.failed |= fclose(writer.out) != 0;
    if (writer.failed) {
        free(made);
        return eth_hpp_error_memory(err, "the trace");
    }
    *text = made;
    return ETH_HPP_OK;
}
