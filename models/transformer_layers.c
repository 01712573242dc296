#include "models/transformer_layers.h"

static size_t rows_of(const struct eth_hpp_transformer_run *run)
{
    return run->samples * run->shape.sequence;
}

/* The hidden vectors of all rows: elements and bytes. */
static size_t hidden_count(const struct eth_hpp_transformer_run *run)
{
    return rows_of(run) * run->shape.hidden;
}

static size_t hidden_bytes(const struct eth_hpp_transformer_run *run)
{
    return hidden_count(run) * run->shape.value_bytes;
}

static struct eth_hpp_linear linear_of(const struct eth_hpp_transformer_run *run, size_t in,
                                       size_t out)
{
    return (struct eth_hpp_linear){
        .rows = rows_of(run), .in = in, .out = out, .out_major = run->shape.gated};
}

/* ---- dropout ---- */

enum operation { AFTER_EMBEDDING, ON_ATTENTION, AFTER_PROJECTION, AFTER_OUTER };

static struct eth_hpp_dropout dropout_of(const struct eth_hpp_transformer_layer *layer,
                                         const struct eth_hpp_transformer_run *run,
                                         enum operation operation)
{
    const struct eth_hpp_model *model = run->model;
    return (struct eth_hpp_dropout){.rate = operation == AFTER_EMBEDDING ? model->embedding_dropout
                                            : operation == ON_ATTENTION  ? model->attention_dropout
                                                                         : model->residual_dropout,
                                    .seed = run->seed,
                                    .step = run->step,
                                    .first_sample = run->first_sample,
                                    .layer = (uint16_t)layer->number,
                                    .operation = (uint8_t)operation};
}

/* Of hidden vectors, in place. */
static void drop(const struct eth_hpp_transformer_layer *layer,
                 const struct eth_hpp_transformer_run *run, enum operation operation, void *values)
{
    const struct eth_hpp_dropout dropout = dropout_of(layer, run, operation);
    if (dropout.rate > 0)
        run->kernels->ops->dropout(run->kernels->state, &dropout, run->samples,
                                   run->shape.sequence * run->shape.hidden, values);
}

/* The gradient before a dropout, from the one after it, which is still needed as it is: in `room`
 * where anything is dropped. */
static const void *undropped(const struct eth_hpp_transformer_layer *layer,
                             const struct eth_hpp_transformer_run *run, enum operation operation,
                             const void *gradient, void *room)
{
    if (dropout_of(layer, run, operation).rate <= 0)
        return gradient;
    run->kernels->ops->copy(run->kernels->state, room, gradient, hidden_bytes(run));
    drop(layer, run, operation, room);
    return room;
}

/* `dropout` is filled, and part of the shape where anything is dropped. */
static struct eth_hpp_attention attention_of(const struct eth_hpp_transformer_layer *layer,
                                             const struct eth_hpp_transformer_run *run,
                                             struct eth_hpp_dropout *dropout)
{
    *dropout = dropout_of(layer, run, ON_ATTENTION);
    return (struct eth_hpp_attention){.samples = run->samples,
                                      .sequence = run->shape.sequence,
                                      .heads = run->shape.heads,
                                      .key_value_heads = run->shape.key_value_heads,
                                      .head_size = run->shape.head_size,
                                      .dropout = dropout->rate > 0 ? dropout : NULL};
}

/* The memory after one vector a row. */
static void *after_hidden(const struct eth_hpp_transformer_run *run, void *memory)
{
    return (char *)memory + hidden_bytes(run);
}

/* The memory after attention's output or its gradient, or one hidden vector a row. */
static void *after_attention(const struct eth_hpp_transformer_run *run, void *memory)
{
    const size_t width = eth_hpp_transformer_query_width(&run->shape);
    const size_t values = width > run->shape.hidden ? width : run->shape.hidden;
    return (char *)memory + rows_of(run) * values * run->shape.value_bytes;
}

/* ---- pieces: a norm by the indices of its tensors, a linear layer by that of its weight ---- */

/* Where a norm keeps its rows' means: RMS norms, which have no bias, have none. */
static void *mean_of(const struct eth_hpp_transformer_layer *layer,
                     const struct eth_hpp_transformer_run *run, size_t weight,
                     enum eth_hpp_saved mean)
{
    return layer->weights[weight + 1] != NULL ? run->saved[mean] : NULL;
}

static void norm(const struct eth_hpp_transformer_layer *layer,
                 const struct eth_hpp_transformer_run *run, size_t weight, enum eth_hpp_saved mean,
                 const void *input, void *output)
{
    run->kernels->ops->layernorm_forward(run->kernels->state, rows_of(run), run->shape.hidden,
                                         run->model->norm_epsilon, input, layer->weights[weight],
                                         layer->weights[weight + 1], output,
                                         mean_of(layer, run, weight, mean), run->saved[mean + 1]);
}

static void norm_backward(const struct eth_hpp_transformer_layer *layer,
                          const struct eth_hpp_transformer_run *run, size_t weight,
                          enum eth_hpp_saved mean, const void *output_gradient, const void *input,
                          void *input_gradient)
{
    run->kernels->ops->layernorm_backward(
        run->kernels->state, rows_of(run), run->shape.hidden, output_gradient, input,
        layer->weights[weight], mean_of(layer, run, weight, mean), run->saved[mean + 1],
        input_gradient, layer->gradients[weight], layer->gradients[weight + 1]);
}

static void linear(const struct eth_hpp_transformer_layer *layer,
                   const struct eth_hpp_transformer_run *run, const struct eth_hpp_linear *shape,
                   size_t weight, const void *input, const void *residual, void *output)
{
    run->kernels->ops->linear_forward(run->kernels->state, shape, input, layer->weights[weight],
                                      layer->weights[weight + 1], residual, output);
}

/* The linear layer at the end of a branch: what it gives goes through dropout and is added to what
 * passed the branch by, at once where nothing is dropped. */
static void join(const struct eth_hpp_transformer_layer *layer,
                 const struct eth_hpp_transformer_run *run, const struct eth_hpp_linear *shape,
                 size_t weight, enum operation operation, const void *input, const void *residual,
                 void *output)
{
    const bool drops = dropout_of(layer, run, operation).rate > 0;
    linear(layer, run, shape, weight, input, drops ? NULL : residual, output);
    if (!drops)
        return;
    drop(layer, run, operation, output);
    run->kernels->ops->add(run->kernels->state, hidden_count(run), residual, output);
}

static void linear_weight_backward(const struct eth_hpp_transformer_layer *layer,
                                   const struct eth_hpp_transformer_run *run,
                                   const struct eth_hpp_linear *shape, size_t weight,
                                   const void *output_gradient, const void *input)
{
    run->kernels->ops->linear_backward_weight(run->kernels->state, shape, output_gradient, input,
                                              layer->gradients[weight],
                                              layer->gradients[weight + 1]);
}

static void linear_input_backward(const struct eth_hpp_transformer_layer *layer,
                                  const struct eth_hpp_transformer_run *run,
                                  const struct eth_hpp_linear *shape, size_t weight,
                                  const void *output_gradient, void *input_gradient)
{
    run->kernels->ops->linear_backward_input(run->kernels->state, shape, output_gradient,
                                             layer->weights[weight], input_gradient);
}

/* Turns queries and keys by their positions, or their gradients back, where the model's positions
 * are rotary. */
static void turn(const struct eth_hpp_transformer_run *run, bool back, void *qkv)
{
    const struct eth_hpp_rotary shape = {.rows = rows_of(run),
                                         .sequence = run->shape.sequence,
                                         .heads = run->shape.heads + run->shape.key_value_heads,
                                         .head_size = run->shape.head_size,
                                         .stride = eth_hpp_transformer_qkv_width(&run->shape),
                                         .theta = run->model->rope_theta,
                                         .back = back};
    if (shape.theta > 0)
        run->kernels->ops->rotary(run->kernels->state, &shape, qkv);
}

/* The MLP's activation function, from what it keeps. */
static void activate(const struct eth_hpp_transformer_run *run, void *output)
{
    const void *inside = run->saved[ETH_HPP_SAVED_INNER];
    const size_t rows = rows_of(run), width = run->shape.inner;
    if (run->shape.gated)
        run->kernels->ops->swiglu_forward(run->kernels->state, rows, width, inside, output);
    else
        run->kernels->ops->gelu_forward(run->kernels->state, rows * width, inside, output);
}

/* In one of the two places: the gradient of its input from that of its output. */
static const void *activate_backward(const struct eth_hpp_transformer_run *run, void *gradient)
{
    void *inside = run->saved[ETH_HPP_SAVED_INNER];
    const size_t rows = rows_of(run), width = run->shape.inner;
    if (run->shape.gated) {
        run->kernels->ops->swiglu_backward(run->kernels->state, rows, width, gradient, inside);
        return inside;
    }
    run->kernels->ops->gelu_backward(run->kernels->state, rows * width, inside, gradient);
    return gradient;
}

/* ---- decoder: x1 = x + projection(attention(norm(x))), out = x1 + outer(activation(inner(
 * norm(x1)))); attention's probabilities and what is added to x and x1 go through dropout ---- */

/* The decoder's matrix products. */
struct products {
    struct eth_hpp_linear qkv, projection, inner, outer;
};

static struct products products_of(const struct eth_hpp_transformer_run *run)
{
    const struct eth_hpp_transformer_shape *shape = &run->shape;
    return (struct products){
        .qkv = linear_of(run, shape->hidden, eth_hpp_transformer_qkv_width(shape)),
        .projection = linear_of(run, eth_hpp_transformer_query_width(shape), shape->hidden),
        .inner = linear_of(run, shape->hidden, eth_hpp_transformer_inner_width(shape)),
        .outer = linear_of(run, shape->inner, shape->hidden)};
}

/* Up to the MLP's inner activations: all that backward needs. */
static void decoder_saved(const struct eth_hpp_transformer_layer *layer,
                          const struct eth_hpp_transformer_run *run, const void *input)
{
    const struct eth_hpp_kernels_ops *op = run->kernels->ops;
    const struct products by = products_of(run);
    struct eth_hpp_dropout dropout;
    const struct eth_hpp_attention attention = attention_of(layer, run, &dropout);
    void *const *saved = run->saved, *normed = run->workspace[ETH_HPP_WORK_LEFT];

    norm(layer, run, ETH_HPP_NORM1_WEIGHT, ETH_HPP_SAVED_NORM1_MEAN, input, normed);
    linear(layer, run, &by.qkv, ETH_HPP_QKV_WEIGHT, normed, NULL, saved[ETH_HPP_SAVED_QKV]);
    turn(run, false, saved[ETH_HPP_SAVED_QKV]);
    op->attention_forward(run->kernels->state, &attention, saved[ETH_HPP_SAVED_QKV],
                          saved[ETH_HPP_SAVED_ATTENTION], saved[ETH_HPP_SAVED_LOG_SUM]);
    join(layer, run, &by.projection, ETH_HPP_PROJECTION_WEIGHT, AFTER_PROJECTION,
         saved[ETH_HPP_SAVED_ATTENTION], input, saved[ETH_HPP_SAVED_MIDDLE]);
    norm(layer, run, ETH_HPP_NORM2_WEIGHT, ETH_HPP_SAVED_NORM2_MEAN, saved[ETH_HPP_SAVED_MIDDLE],
         normed);
    linear(layer, run, &by.inner, ETH_HPP_INNER_WEIGHT, normed, NULL, saved[ETH_HPP_SAVED_INNER]);
}

static void decoder_forward(const struct eth_hpp_transformer_layer *layer,
                            const struct eth_hpp_transformer_run *run, const void *input,
                            void *output)
{
    const struct products by = products_of(run);
    void *activated = run->workspace[ETH_HPP_WORK_RIGHT];

    decoder_saved(layer, run, input);
    activate(run, activated);
    join(layer, run, &by.outer, ETH_HPP_OUTER_WEIGHT, AFTER_OUTER, activated,
         run->saved[ETH_HPP_SAVED_MIDDLE], output);
}

/* The residual passes the gradient on as it is; each branch adds its own to it. */
static void mlp_backward(const struct eth_hpp_transformer_layer *layer,
                         const struct eth_hpp_transformer_run *run, void *gradient)
{
    const struct products by = products_of(run);
    const void *middle = run->saved[ETH_HPP_SAVED_MIDDLE];
    void *left = run->workspace[ETH_HPP_WORK_LEFT], *right = run->workspace[ETH_HPP_WORK_RIGHT];
    void *normed_gradient = after_hidden(run, right);
    const void *outer_gradient = undropped(layer, run, AFTER_OUTER, gradient, right);

    activate(run, left);
    linear_weight_backward(layer, run, &by.outer, ETH_HPP_OUTER_WEIGHT, outer_gradient, left);
    linear_input_backward(layer, run, &by.outer, ETH_HPP_OUTER_WEIGHT, outer_gradient, left);
    const void *inner_gradient = activate_backward(run, left);
    norm(layer, run, ETH_HPP_NORM2_WEIGHT, ETH_HPP_SAVED_NORM2_MEAN, middle, right);
    linear_weight_backward(layer, run, &by.inner, ETH_HPP_INNER_WEIGHT, inner_gradient, right);
    linear_input_backward(layer, run, &by.inner, ETH_HPP_INNER_WEIGHT, inner_gradient,
                          normed_gradient);
    norm_backward(layer, run, ETH_HPP_NORM2_WEIGHT, ETH_HPP_SAVED_NORM2_MEAN, normed_gradient,
                  middle, gradient);
}

static void attention_backward(const struct eth_hpp_transformer_layer *layer,
                               const struct eth_hpp_transformer_run *run, const void *input,
                               void *gradient)
{
    const struct eth_hpp_kernels_ops *op = run->kernels->ops;
    const struct products by = products_of(run);
    struct eth_hpp_dropout dropout;
    const struct eth_hpp_attention attention = attention_of(layer, run, &dropout);
    void *const *saved = run->saved, *qkv_gradient = run->workspace[ETH_HPP_WORK_RIGHT];
    void *left = run->workspace[ETH_HPP_WORK_LEFT], *second = after_attention(run, left);
    const void *projected = undropped(layer, run, AFTER_PROJECTION, gradient, second);

    linear_weight_backward(layer, run, &by.projection, ETH_HPP_PROJECTION_WEIGHT, projected,
                           saved[ETH_HPP_SAVED_ATTENTION]);
    linear_input_backward(layer, run, &by.projection, ETH_HPP_PROJECTION_WEIGHT, projected, left);
    op->attention_backward(run->kernels->state, &attention, left, saved[ETH_HPP_SAVED_QKV],
                           saved[ETH_HPP_SAVED_ATTENTION], saved[ETH_HPP_SAVED_LOG_SUM],
                           qkv_gradient, second);
    turn(run, true, qkv_gradient);
    norm(layer, run, ETH_HPP_NORM1_WEIGHT, ETH_HPP_SAVED_NORM1_MEAN, input, left);
    linear_weight_backward(layer, run, &by.qkv, ETH_HPP_QKV_WEIGHT, qkv_gradient, left);
    linear_input_backward(layer, run, &by.qkv, ETH_HPP_QKV_WEIGHT, qkv_gradient, second);
    norm_backward(layer, run, ETH_HPP_NORM1_WEIGHT, ETH_HPP_SAVED_NORM1_MEAN, second, input,
                  gradient);
}

/* ---- head: loss = cross-entropy(norm(x) x token embedding^T, or a matrix of its own) ---- */

static struct eth_hpp_linear logits_of(const struct eth_hpp_transformer_run *run)
{
    struct eth_hpp_linear shape = linear_of(run, run->shape.hidden, run->shape.vocabulary);
    shape.out_major = true;
    return shape;
}

static void head_logits(const struct eth_hpp_transformer_layer *layer,
                        const struct eth_hpp_transformer_run *run, const void *normed)
{
    const struct eth_hpp_linear shape = logits_of(run);
    run->kernels->ops->linear_forward(run->kernels->state, &shape, normed,
                                      layer->weights[ETH_HPP_LOGITS_WEIGHT], NULL, NULL,
                                      run->workspace[ETH_HPP_WORK_RIGHT]);
}

static void head_forward(const struct eth_hpp_transformer_layer *layer,
                         const struct eth_hpp_transformer_run *run, const void *input)
{
    void *normed = run->workspace[ETH_HPP_WORK_LEFT];
    norm(layer, run, ETH_HPP_NORM_WEIGHT, ETH_HPP_SAVED_NORM1_MEAN, input, normed);
    head_logits(layer, run, normed);
    run->kernels->ops->cross_entropy_forward(
        run->kernels->state, rows_of(run), run->shape.vocabulary,
        run->workspace[ETH_HPP_WORK_RIGHT], run->targets, run->loss);
}

static void head_backward(const struct eth_hpp_transformer_layer *layer,
                          const struct eth_hpp_transformer_run *run, const void *input,
                          void *gradient)
{
    const struct eth_hpp_kernels_ops *op = run->kernels->ops;
    const struct eth_hpp_linear shape = logits_of(run);
    void *left = run->workspace[ETH_HPP_WORK_LEFT], *logits = run->workspace[ETH_HPP_WORK_RIGHT];

    norm(layer, run, ETH_HPP_NORM_WEIGHT, ETH_HPP_SAVED_NORM1_MEAN, input, left);
    if (!run->logits_held)
        head_logits(layer, run, left);
    op->cross_entropy_backward(run->kernels->state, rows_of(run), run->shape.vocabulary, logits,
                               run->targets, run->loss_scale);
    op->linear_backward_weight(run->kernels->state, &shape, logits, left,
                               layer->gradients[ETH_HPP_LOGITS_WEIGHT], NULL);
    op->linear_backward_input(run->kernels->state, &shape, logits,
                              layer->weights[ETH_HPP_LOGITS_WEIGHT], left);
    op->zero(run->kernels->state, gradient, hidden_bytes(run));
    norm_backward(layer, run, ETH_HPP_NORM_WEIGHT, ETH_HPP_SAVED_NORM1_MEAN, left, input, gradient);
}

/* ---- by kind ---- */

void eth_hpp_transformer_layer_forward(const struct eth_hpp_transformer_layer *layer,
                                       const struct eth_hpp_transformer_run *run, const void *input,
                                       void *output)
{
    switch (layer->kind) {
    case ETH_HPP_KIND_EMBEDDING:
        run->kernels->ops->embedding_forward(
            run->kernels->state, rows_of(run), run->shape.sequence, run->shape.hidden, run->tokens,
            layer->weights[ETH_HPP_TOKENS], layer->weights[ETH_HPP_POSITIONS], output);
        drop(layer, run, AFTER_EMBEDDING, output);
        break;
    case ETH_HPP_KIND_DECODER:
        decoder_forward(layer, run, input, output);
        break;
    case ETH_HPP_KIND_HEAD:
        head_forward(layer, run, input);
        break;
    case ETH_HPP_KINDS:
        break;
    }
}

void eth_hpp_transformer_layer_recompute(const struct eth_hpp_transformer_layer *layer,
                                         const struct eth_hpp_transformer_run *run,
                                         const void *input)
{
    /* The embedding saves nothing, and the head's backward makes its norm again anyway. */
    if (layer->kind == ETH_HPP_KIND_DECODER)
        decoder_saved(layer, run, input);
}

void eth_hpp_transformer_layer_backward(const struct eth_hpp_transformer_layer *layer,
                                        const struct eth_hpp_transformer_run *run,
                                        const void *input, void *gradient)
{
    switch (layer->kind) {
    case ETH_HPP_KIND_EMBEDDING:
        drop(layer, run, AFTER_EMBEDDING, gradient);
        run->kernels->ops->embedding_backward(
            run->kernels->state, rows_of(run), run->shape.sequence, run->shape.hidden, run->tokens,
            gradient, layer->gradients[ETH_HPP_TOKENS], layer->gradients[ETH_HPP_POSITIONS]);
        break;
    case ETH_HPP_KIND_DECODER:
        mlp_backward(layer, run, gradient);
        attention_backward(layer, run, input, gradient);
        break;
    case ETH_HPP_KIND_HEAD:
        head_backward(layer, run, input, gradient);
        break;
    case ETH_HPP_KINDS:
        break;
    }
}
