#include "tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T = TINY_SEQUENCE, D = TINY_WIDTH, V = TINY_VOCABULARY };

static float *weights(const struct tiny_model *model, int layer, int which)
{
    return eth_hpp_tensor_weights(model->context, (size_t)model->tensor_of[layer][which]);
}

static float *gradient(const struct tiny_model *model, int layer, int which)
{
    return eth_hpp_tensor_gradient(model->context, (size_t)model->tensor_of[layer][which]);
}

/* Where a layer's input is kept. */
static float *kept(const struct tiny_model *model, int slot, int layer)
{
    const struct eth_hpp_assignment *a = model->part;
    int layers = a->end_layer - a->first_layer;
    return model->kept +
           (size_t)(slot * layers + layer - a->first_layer) * (size_t)(a->samples * T * D);
}

static void middle_forward(const struct tiny_model *model, int layer, int rows, const float *input,
                           float *output)
{
    const float *w = weights(model, layer, 0), *b = weights(model, layer, 1);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < D; j++) {
            double sum = b[j];
            for (int i = 0; i < D; i++)
                sum += (double)input[r * D + i] * w[i * D + j];
            output[r * D + j] = input[r * D + j] + (float)tanh(sum);
        }
}

/* In place: the gradient of the output becomes that of the input. */
static void middle_backward(const struct tiny_model *model, int layer, int rows, const float *input,
                            float *grad)
{
    const float *w = weights(model, layer, 0), *b = weights(model, layer, 1);
    float *gw = gradient(model, layer, 0), *gb = gradient(model, layer, 1);
    for (int r = 0; r < rows; r++) {
        double inner[D];
        for (int j = 0; j < D; j++) {
            double sum = b[j];
            for (int i = 0; i < D; i++)
                sum += (double)input[r * D + i] * w[i * D + j];
            inner[j] = grad[r * D + j] * (1 - tanh(sum) * tanh(sum));
            gb[j] += (float)inner[j];
        }
        for (int i = 0; i < D; i++) {
            double sum = 0;
            for (int j = 0; j < D; j++) {
                gw[i * D + j] += (float)(input[r * D + i] * inner[j]);
                sum += inner[j] * w[i * D + j];
            }
            grad[r * D + i] += (float)sum;
        }
    }
}

/* Softmax over the table; returns the loss of a row. */
static double row_softmax(const float *x, const float *table, int target, double *p)
{
    double most = -INFINITY, sum = 0;
    for (int v = 0; v < V; v++) {
        p[v] = 0;
        for (int i = 0; i < D; i++)
            p[v] += (double)x[i] * table[v * D + i];
        most = fmax(most, p[v]);
    }
    double at_target = p[target];
    for (int v = 0; v < V; v++)
        sum += p[v] = exp(p[v] - most);
    for (int v = 0; v < V; v++)
        p[v] /= sum;
    return most + log(sum) - at_target;
}

static enum eth_hpp_status forward(void *user, const struct eth_hpp_micro_batch *mb,
                                   const void *input, void *output, struct eth_hpp_error *err)
{
    struct tiny_model *model = user;
    const struct eth_hpp_assignment *a = model->part;
    const int rows = mb->samples * T;
    const size_t bytes = sizeof(float) * (size_t)(rows * D);
    (void)err;
    float *x = kept(model, mb->slot, a->first_layer);
    if (model->disturb != NULL)
        model->disturb(mb, x);
    if (input != NULL)
        memcpy(x, input, bytes);
    for (int l = a->first_layer; l < a->end_layer; l++) {
        float *next = l + 1 < a->end_layer ? kept(model, mb->slot, l + 1) : output;
        if (l == TINY_LAYERS - 1 || next == NULL)
            break; /* the loss below; or a replay that has all that backward needs */
        if (l == 0)
            for (int r = 0; r < rows; r++)
                memcpy(next + r * D,
                       (float *)eth_hpp_tensor_weights(model->context, (size_t)model->table) +
                           mb->tokens[r] * D,
                       sizeof(float) * D);
        else
            middle_forward(model, l, rows, kept(model, mb->slot, l), next);
    }
    if (a->end_layer < TINY_LAYERS || mb->replay)
        return ETH_HPP_OK;
    const float *table = eth_hpp_tensor_weights(model->context, (size_t)model->table);
    for (int r = 0; r < rows; r++) {
        double p[V];
        if (mb->targets[r] < 0)
            continue;
        mb->loss[0] +=
            row_softmax(kept(model, mb->slot, TINY_LAYERS - 1) + r * D, table, mb->targets[r], p);
        mb->loss[1] += 1;
    }
    return ETH_HPP_OK;
}

static void head_backward(const struct tiny_model *model, const struct eth_hpp_micro_batch *mb,
                          float *grad)
{
    const float *x = kept(model, mb->slot, TINY_LAYERS - 1);
    const float *table = eth_hpp_tensor_weights(model->context, (size_t)model->table);
    float *table_gradient = eth_hpp_tensor_gradient(model->context, (size_t)model->table);
    memset(grad, 0, sizeof(float) * (size_t)(mb->samples * T * D));
    for (int r = 0; r < mb->samples * T; r++) {
        double p[V];
        if (mb->targets[r] < 0)
            continue;
        row_softmax(x + r * D, table, mb->targets[r], p);
        p[mb->targets[r]] -= 1;
        for (int v = 0; v < V; v++)
            for (int i = 0; i < D; i++) {
                grad[r * D + i] += (float)(p[v] * table[v * D + i]);
                table_gradient[v * D + i] += (float)(p[v] * x[r * D + i]);
            }
    }
}

static enum eth_hpp_status backward(void *user, const struct eth_hpp_micro_batch *mb,
                                    const void *input, const void *output_gradient,
                                    void *input_gradient, struct eth_hpp_error *err)
{
    struct tiny_model *model = user;
    const struct eth_hpp_assignment *a = model->part;
    const int rows = mb->samples * T;
    const size_t bytes = sizeof(float) * (size_t)(rows * D);
    float *grad = malloc(bytes);
    (void)input;
    (void)err;
    if (output_gradient != NULL)
        memcpy(grad, output_gradient, bytes);
    for (int l = a->end_layer - 1; l >= a->first_layer; l--) {
        if (l == TINY_LAYERS - 1) {
            head_backward(model, mb, grad);
        } else if (l > 0) {
            middle_backward(model, l, rows, kept(model, mb->slot, l), grad);
        } else {
            float *table = eth_hpp_tensor_gradient(model->context, (size_t)model->table);
            for (int r = 0; r < rows; r++)
                for (int i = 0; i < D; i++)
                    table[mb->tokens[r] * D + i] += grad[r * D + i];
        }
        if (model->report_layers)
            eth_hpp_layer_done(model->context, l);
    }
    if (input_gradient != NULL)
        memcpy(input_gradient, grad, bytes);
    free(grad);
    return ETH_HPP_OK;
}

/* Some targets are left out, unevenly, so that a mean of means would differ; and all of the last
 * samples of a batch, so that some micro-batches and some ranks have none. */
static enum eth_hpp_status sample(void *user, int64_t number, int32_t *tokens, int32_t *targets,
                                  struct eth_hpp_error *err)
{
    (void)user;
    (void)err;
    for (int t = 0; t < T; t++) {
        tokens[t] = (int32_t)((number * 5 + t * t) % V);
        targets[t] = number % 8 > 4 || (number + t) % 4 == 0
                         ? -1
                         : (int32_t)((number * 5 + (t + 1) * (t + 1)) % V);
    }
    return ETH_HPP_OK;
}

/* Each layer has two tensors; those of the first and last are small and otherwise unused. */
static size_t count_of(int layer, int which)
{
    if (layer == 0 || layer == TINY_LAYERS - 1)
        return 3;
    return which == 0 ? TINY_WEIGHTS : D;
}

enum eth_hpp_status tiny_model_open(struct tiny_model *model, struct eth_hpp_context *context,
                                    struct eth_hpp_error *err)
{
    static const struct eth_hpp_stage_ops ops = {
        .forward = forward, .backward = backward, .sample = sample};
    const struct eth_hpp_assignment *a = eth_hpp_get_assignment(context);
    struct eth_hpp_tensor tensors[TINY_TENSORS + 1];
    char names[TINY_LAYERS][2][32];
    size_t count = 0, handed = sizeof(float) * T * D;
    model->context = context;
    model->part = a;
    model->kept = NULL;
    model->table = -1;
    if (a->idle)
        return eth_hpp_register(context, NULL, 0, 0, 0, &ops, model, err);
    for (int l = a->first_layer; l < a->end_layer; l++) {
        if (l == 0 || l == TINY_LAYERS - 1) { /* a rank with both ends names the table twice */
            model->table = (int)count;
            tensors[count++] = (struct eth_hpp_tensor){
                .name = "table", .layer = l, .tied = "table", .count = TINY_TABLE};
        }
        for (int which = 0; which < 2; which++) {
            model->tensor_of[l][which] = (int)count;
            snprintf(names[l][which], sizeof(names[l][which]), "%d.%s", l,
                     which == 0 ? "weight" : "bias");
            tensors[count++] = (struct eth_hpp_tensor){.name = names[l][which],
                                                       .layer = l,
                                                       .count = count_of(l, which),
                                                       .weight_decay = which == 0};
        }
    }
    enum eth_hpp_status status =
        eth_hpp_register(context, tensors, count, a->first_layer > 0 ? handed : 0,
                         a->end_layer < a->layers ? handed : 0, &ops, model, err);
    if (status != ETH_HPP_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        float *first = eth_hpp_tensor_gradient(context, i);
        for (size_t j = 0; j < tensors[i].count; j++)
            first[j] =
                (float)sin((double)(j * 7 + (tensors[i].tied ? 3 : (size_t)tensors[i].layer * 13)));
        eth_hpp_tensor_set_weights(context, i, first);
    }
    model->kept = malloc(sizeof(float) * (size_t)(a->in_flight * (a->end_layer - a->first_layer) *
                                                  a->samples * T * D));
    return ETH_HPP_OK;
}

void tiny_model_close(struct tiny_model *model)
{
    free(model->kept);
}
