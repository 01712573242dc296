#include <math.h>

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/softmax.h"

/* Scores are made and used in tiles of this many queries and keys, on the stack. */
enum { TILE = 64 };

/* One head of one sample: where its rows start, how far apart they are. */
struct head {
    size_t sequence, size;
    size_t qkv_stride, output_stride;
    real scale;
    const struct eth_hpp_dropout *dropout; /* or NULL */
    size_t sample, number;                 /* among the operation's samples, in the sample */
};

/* A tile of scores: some queries against some keys, of which a query sees those up to itself. */
struct tile {
    size_t first_query, queries, first_key, keys;
};

static struct head head_of(const struct eth_hpp_attention *shape)
{
    return (struct head){.sequence = shape->sequence,
                         .size = shape->head_size,
                         .qkv_stride =
                             (shape->heads + 2 * shape->key_value_heads) * shape->head_size,
                         .output_stride = shape->heads * shape->head_size,
                         .scale = (real)(1 / sqrt((double)shape->head_size)),
                         .dropout = shape->dropout};
}

static size_t tile_end(size_t first, size_t sequence)
{
    return first + TILE < sequence ? first + TILE : sequence;
}

static struct tile tile_of(const struct head *head, size_t first_query, size_t first_key)
{
    return (struct tile){.first_query = first_query,
                         .queries = tile_end(first_query, head->sequence) - first_query,
                         .first_key = first_key,
                         .keys = tile_end(first_key, head->sequence) - first_key};
}

/* How many of the tile's keys this query sees. */
static size_t visible_keys(const struct tile *tile, size_t query)
{
    const size_t visible = tile->first_query + query + 1 - tile->first_key;
    return visible < tile->keys ? visible : tile->keys;
}

/* scores = scale x a b^T over the head's size, for rows of a and b */
static void multiply_rows(const struct head *head, const struct tile *tile, real factor,
                          const real *a, size_t a_stride, const real *b, size_t b_stride,
                          real scores[TILE][TILE])
{
    const struct eth_hpp_cpu_gemm product = {.m = tile->queries,
                                             .n = tile->keys,
                                             .k = head->size,
                                             .b_transposed = true,
                                             .factor = factor,
                                             .kept = 0,
                                             .a = a,
                                             .b = b,
                                             .a_stride = a_stride,
                                             .b_stride = b_stride,
                                             .c_stride = TILE,
                                             .c = &scores[0][0]};
    ETH_HPP_CPU(gemm)(&product);
}

/* rows = beta x rows + scores b: a sum over keys for each query */
static void sum_over_keys(const struct head *head, const struct tile *tile, real scores[TILE][TILE],
                          const real *b, size_t b_stride, real beta, real *rows, size_t rows_stride)
{
    const struct eth_hpp_cpu_gemm product = {.m = tile->queries,
                                             .n = head->size,
                                             .k = tile->keys,
                                             .factor = 1,
                                             .kept = beta,
                                             .a = &scores[0][0],
                                             .b = b,
                                             .a_stride = TILE,
                                             .b_stride = b_stride,
                                             .c_stride = rows_stride,
                                             .c = rows};
    ETH_HPP_CPU(gemm)(&product);
}

/* rows = beta x rows + scores^T b: a sum over queries for each key */
static void sum_over_queries(const struct head *head, const struct tile *tile,
                             real scores[TILE][TILE], const real *b, size_t b_stride, real beta,
                             real *rows, size_t rows_stride)
{
    const struct eth_hpp_cpu_gemm product = {.m = tile->keys,
                                             .n = head->size,
                                             .k = tile->queries,
                                             .a_transposed = true,
                                             .factor = 1,
                                             .kept = beta,
                                             .a = &scores[0][0],
                                             .b = b,
                                             .a_stride = TILE,
                                             .b_stride = b_stride,
                                             .c_stride = rows_stride,
                                             .c = rows};
    ETH_HPP_CPU(gemm)(&product);
}

/* Turns the first `visible` of a row of scores into exp(score - shift) and the rest into 0. */
ETH_HPP_CPU_CLONES
static real exponentiate(real *scores, size_t visible, size_t keys, real shift)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t k = 0; k < visible; k++) {
        scores[k] = eth_hpp_cpu_exp(scores[k] - shift);
        sum += scores[k];
    }
    for (size_t k = visible; k < keys; k++)
        scores[k] = 0;
    return sum;
}

/* Drops from a row of probabilities, or of their gradients. Rows count as whole spans, so that
 * each tile begins with one. */
static void drop_row(const struct head *head, const struct tile *tile, size_t query, real *row)
{
    const size_t pitch =
        (head->sequence + ETH_HPP_CPU_SPAN - 1) / ETH_HPP_CPU_SPAN * ETH_HPP_CPU_SPAN;
    const size_t place = head->number * head->sequence + tile->first_query + query;
    if (head->dropout != NULL)
        ETH_HPP_CPU(drop)
    (head->dropout, head->sample, place * pitch + tile->first_key, visible_keys(tile, query), row);
}

static void row_scale(real *row, size_t count, real factor)
{
    for (size_t i = 0; i < count; i++)
        row[i] *= factor;
}

/* The running softmax of a tile of queries: output = (sum of exp(score - most) value), and the sum
 * of the exponentials. */
static void forward_tile(const struct head *head, const struct tile *tile, const real *query,
                         const real *key, const real *value, real *output, real most[TILE],
                         real sum[TILE])
{
    real scores[TILE][TILE];
    const bool first = tile->first_key == 0;
    multiply_rows(head, tile, head->scale, query, head->qkv_stride, key, head->qkv_stride, scores);
    for (size_t q = 0; q < tile->queries; q++) {
        const size_t visible = visible_keys(tile, q);
        const real here = eth_hpp_cpu_largest(visible, scores[q]);
        const real shift = first || here > most[q] ? here : most[q];
        const real fade = first ? 0 : eth_hpp_cpu_exp(most[q] - shift);
        sum[q] = fade * (first ? 0 : sum[q]) + exponentiate(scores[q], visible, tile->keys, shift);
        drop_row(head, tile, q, scores[q]); /* the sum is of all */
        if (!first)
            row_scale(output + q * head->output_stride, head->size, fade);
        most[q] = shift;
    }
    sum_over_keys(head, tile, scores, value, head->qkv_stride, !first, output, head->output_stride);
}

static void forward_head(const struct head *head, const real *query, const real *key,
                         const real *value, real *output, real *log_sum)
{
    const size_t stride = head->qkv_stride;
    for (size_t q = 0; q < head->sequence; q += TILE) {
        real most[TILE], sum[TILE];
        real *rows = output + q * head->output_stride;
        const size_t end = tile_end(q, head->sequence);
        for (size_t k = 0; k < end; k += TILE) {
            const struct tile tile = tile_of(head, q, k);
            forward_tile(head, &tile, query + q * stride, key + k * stride, value + k * stride,
                         rows, most, sum);
        }
        for (size_t i = 0; i < end - q; i++) {
            row_scale(rows + i * head->output_stride, head->size, 1 / sum[i]);
            log_sum[q + i] = most[i] + (real)log((double)sum[i]);
        }
    }
}

/* What an operation was called with. */
struct attention {
    struct head head;
    size_t heads, key_value_heads;
    const real *qkv;
    real *output, *log_sum;             /* forward */
    const real *output_gradient, *made; /* backward; made: forward's output */
    const real *made_log_sum;
    real *qkv_gradient, *scratch;
};

static struct attention attention_of(const struct eth_hpp_attention *shape)
{
    return (struct attention){
        .head = head_of(shape), .heads = shape->heads, .key_value_heads = shape->key_value_heads};
}

/* Head i, counted over all samples. */
static struct head head_at(const struct attention *at, size_t i)
{
    struct head head = at->head;
    head.sample = i / at->heads;
    head.number = i % at->heads;
    return head;
}

/* How many heads share one of keys and values. */
static size_t group_of(const struct attention *at)
{
    return at->heads / at->key_value_heads;
}

/* Where a head's queries, keys and values begin in qkv, and its rows in the output. */
static size_t queries_of(const struct head *head)
{
    return head->sample * head->sequence * head->qkv_stride + head->number * head->size;
}

static size_t keys_of(const struct attention *at, const struct head *head)
{
    return head->sample * head->sequence * head->qkv_stride +
           (at->heads + head->number / group_of(at)) * head->size;
}

static size_t values_of(const struct attention *at, const struct head *head)
{
    return keys_of(at, head) + at->key_value_heads * head->size;
}

static size_t output_of(const struct head *head)
{
    return head->sample * head->sequence * head->output_stride + head->number * head->size;
}

static void forward_heads(const void *work, size_t first, size_t end)
{
    const struct attention *at = work;
    for (size_t i = first; i < end; i++) {
        const struct head head = head_at(at, i);
        forward_head(&head, at->qkv + queries_of(&head), at->qkv + keys_of(at, &head),
                     at->qkv + values_of(at, &head), at->output + output_of(&head),
                     at->log_sum + i * head.sequence);
    }
}

static void attention_forward(void *state, const struct eth_hpp_attention *shape, const void *qkv,
                              void *output, void *log_sum)
{
    struct attention at = attention_of(shape);
    at.qkv = qkv;
    at.output = output;
    at.log_sum = log_sum;
    eth_hpp_cpu_threads_run(state, shape->samples * shape->heads, 1, forward_heads, &at);
}

/* What backward reads and writes of one head. */
struct head_gradients {
    const real *query, *key, *value, *output, *output_gradient, *log_sum;
    real *query_gradient, *key_gradient, *value_gradient;
    bool adds;     /* to the gradients of keys and values: another head has written them */
    real *row_sum; /* [sequence] sum of output x its gradient, a query's mean of dP weighted by P */
};

/* With P = exp(S - log_sum), dropout's factors M and dP = M dO V^T:
 *   dV = (M P)^T dO,   dS = P (dP - row_sum),   dQ = scale dS K,   dK = scale dS^T Q.
 * A key's first tile of queries is the one on the diagonal; a query's first tile of keys is 0. */
static void backward_tile(const struct head *head, const struct tile *tile,
                          const struct head_gradients *at)
{
    real scores[TILE][TILE], slopes[TILE][TILE];
    const size_t stride = head->qkv_stride;
    const size_t queries = tile->first_query * stride, keys = tile->first_key * stride;
    const real *dout = at->output_gradient + tile->first_query * head->output_stride;
    const real seen = at->adds || tile->first_key != tile->first_query;

    multiply_rows(head, tile, head->scale, at->query + queries, head->qkv_stride, at->key + keys,
                  head->qkv_stride, scores);
    for (size_t q = 0; q < tile->queries; q++)
        exponentiate(scores[q], visible_keys(tile, q), tile->keys,
                     at->log_sum[tile->first_query + q]);
    multiply_rows(head, tile, 1, dout, head->output_stride, at->value + keys, head->qkv_stride,
                  slopes);
    for (size_t q = 0; q < tile->queries; q++) {
        const real row_sum = at->row_sum[tile->first_query + q];
        drop_row(head, tile, q, slopes[q]);
        for (size_t k = 0; k < tile->keys; k++)
            slopes[q][k] = scores[q][k] * (slopes[q][k] - row_sum) * head->scale;
        drop_row(head, tile, q, scores[q]);
    }
    sum_over_queries(head, tile, scores, dout, head->output_stride, seen, at->value_gradient + keys,
                     head->qkv_stride);
    sum_over_keys(head, tile, slopes, at->key + keys, head->qkv_stride, tile->first_key != 0,
                  at->query_gradient + queries, head->qkv_stride);
    sum_over_queries(head, tile, slopes, at->query + queries, head->qkv_stride, seen,
                     at->key_gradient + keys, head->qkv_stride);
}

static void backward_head(const struct head *head, const struct head_gradients *at)
{
    for (size_t q = 0; q < head->sequence; q++) {
        const size_t row = q * head->output_stride;
        real sum = 0;
        for (size_t i = 0; i < head->size; i++)
            sum += at->output[row + i] * at->output_gradient[row + i];
        at->row_sum[q] = sum;
    }
    for (size_t q = 0; q < head->sequence; q += TILE)
        for (size_t k = 0; k <= q; k += TILE) {
            const struct tile tile = tile_of(head, q, k);
            backward_tile(head, &tile, at);
        }
}

/* A loop's element are the heads that share one of keys and values. */
static void backward_groups(const void *work, size_t first, size_t end)
{
    const struct attention *at = work;
    const size_t group = group_of(at);
    for (size_t i = first * group; i < end * group; i++) {
        const struct head head = head_at(at, i);
        const struct head_gradients gradients = {
            .query = at->qkv + queries_of(&head),
            .key = at->qkv + keys_of(at, &head),
            .value = at->qkv + values_of(at, &head),
            .output = at->made + output_of(&head),
            .output_gradient = at->output_gradient + output_of(&head),
            .log_sum = at->made_log_sum + i * head.sequence,
            .query_gradient = at->qkv_gradient + queries_of(&head),
            .key_gradient = at->qkv_gradient + keys_of(at, &head),
            .value_gradient = at->qkv_gradient + values_of(at, &head),
            .adds = i % group != 0,
            .row_sum = at->scratch + i * head.sequence,
        };
        backward_head(&head, &gradients);
    }
}

static void attention_backward(void *state, const struct eth_hpp_attention *shape,
                               const void *output_gradient, const void *qkv, const void *output,
                               const void *log_sum, void *qkv_gradient, void *scratch)
{
    struct attention at = attention_of(shape);
    at.qkv = qkv;
    at.output_gradient = output_gradient;
    at.made = output;
    at.made_log_sum = log_sum;
    at.qkv_gradient = qkv_gradient;
    at.scratch = scratch;
    eth_hpp_cpu_threads_run(state, shape->samples * shape->key_value_heads, 1, backward_groups,
                            &at);
}

void ETH_HPP_CPU(attention_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->attention_forward = attention_forward;
    ops->attention_backward = attention_backward;
}
