/* Every operation of the table, at sizes that fill blocks and at sizes that do not. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/check.h"
#include "tests/device/values.h"

typedef struct device_tensor tensor;

/* Calls an operation of both tables. */
#define BOTH(check, operation, on_device, on_reference)                                            \
    do {                                                                                           \
        (check)->device->ops->operation on_device;                                                 \
        (check)->reference->ops->operation on_reference;                                           \
    } while (0)

static int32_t *upload_tokens(struct device_check *check, size_t count, const int32_t *tokens)
{
    void *memory = NULL;
    struct eth_hpp_error err = {0};
    struct eth_hpp_kernels *device = check->device;
    if (device->ops->allocate(device->state, count * sizeof(*tokens), &memory, &err) !=
            ETH_HPP_OK ||
        device->ops->to_device(device->state, memory, tokens, count * sizeof(*tokens), &err) !=
            ETH_HPP_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    return memory;
}

static void release_all(struct device_check *check, tensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++)
        device_check_release(check, &tensors[i]);
}

#define RELEASE(check, ...)                                                                        \
    release_all(check, (tensor[]){__VA_ARGS__}, sizeof((tensor[]){__VA_ARGS__}) / sizeof(tensor))

static void check_embedding(struct device_check *check, size_t samples, size_t sequence,
                            size_t width, bool with_positions)
{
    enum { TOKENS = 11 };
    struct eth_hpp_kernels *d = check->device, *r = check->reference;
    const size_t rows = samples * sequence;
    int32_t tokens[256];
    for (size_t i = 0; i < rows; i++)
        tokens[i] = (int32_t)(i * i % TOKENS);
    int32_t *on_device = upload_tokens(check, rows, tokens);
    tensor table = device_check_values(check, TOKENS * width, 1);
    tensor positions = device_check_values(check, sequence * width, 1);
    tensor output = device_check_values(check, rows * width, 1);
    tensor table_gradient = device_check_sums(check, TOKENS * width, 1);
    tensor position_gradient = device_check_sums(check, sequence * width, 1);
    BOTH(check, embedding_forward,
         (d->state, rows, sequence, width, on_device, table.memory,
          with_positions ? positions.memory : NULL, output.memory),
         (r->state, rows, sequence, width, tokens, table.numbers,
          with_positions ? positions.numbers : NULL, output.numbers));
    device_check_compare(check, "output", &output);
    device_check_end(check, "embedding_forward", 4);
    device_check_align(check, &output);
    BOTH(check, embedding_backward,
         (d->state, rows, sequence, width, on_device, output.memory, table_gradient.memory,
          with_positions ? position_gradient.memory : NULL),
         (r->state, rows, sequence, width, tokens, output.numbers, table_gradient.numbers,
          with_positions ? position_gradient.numbers : NULL));
    device_check_compare(check, "token_gradient", &table_gradient);
    device_check_compare(check, "position_gradient", &position_gradient);
    device_check_end(check, "embedding_backward", 16);
    d->ops->release(d->state, on_device);
    RELEASE(check, table, positions, output, table_gradient, position_gradient);
}

/* With `centred` false it is RMSNorm. */
static void check_layernorm(struct device_check *check, size_t rows, size_t width, bool centred)
{
    struct eth_hpp_kernels *d = check->device, *r = check->reference;
    tensor input = device_check_values(check, rows * width, 2);
    tensor weight = device_check_values(check, width, 1),
           bias = device_check_values(check, width, 1);
    tensor output = device_check_values(check, rows * width, 1);
    tensor mean = device_check_sums(check, rows, 1), rstd = device_check_sums(check, rows, 1);
    tensor gradient = device_check_values(check, rows * width, 1);
    tensor of_weight = device_check_sums(check, width, 1),
           of_bias = device_check_sums(check, width, 1);
    BOTH(check, layernorm_forward,
         (d->state, rows, width, 1e-5, input.memory, weight.memory, centred ? bias.memory : NULL,
          output.memory, centred ? mean.memory : NULL, rstd.memory),
         (r->state, rows, width, 1e-5, input.numbers, weight.numbers, centred ? bias.numbers : NULL,
          output.numbers, centred ? mean.numbers : NULL, rstd.numbers));
    device_check_compare(check, "output", &output);
    device_check_compare(check, "mean", &mean);
    device_check_compare(check, "rstd", &rstd);
    device_check_end(check, centred ? "layernorm_forward" : "layernorm_forward, RMS", 16);
    device_check_align(check, &output);
    device_check_align(check, &mean);
    device_check_align(check, &rstd);
    BOTH(check, layernorm_backward,
         (d->state, rows, width, output.memory, input.memory, weight.memory,
          centred ? mean.memory : NULL, rstd.memory, gradient.memory, of_weight.memory,
          centred ? of_bias.memory : NULL),
         (r->state, rows, width, output.numbers, input.numbers, weight.numbers,
          centred ? mean.numbers : NULL, rstd.numbers, gradient.numbers, of_weight.numbers,
          centred ? of_bias.numbers : NULL));
    device_check_compare(check, "input_gradient", &gradient);
    device_check_compare(check, "weight_gradient", &of_weight);
    device_check_compare(check, "bias_gradient", &of_bias);
    device_check_end(check, centred ? "layernorm_backward" : "layernorm_backward, RMS", 32);
    RELEASE(check, input, weight, bias, output, mean, rstd, gradient, of_weight, of_bias);
}

/* The bias lies `shift` elements behind an aligned place, as it may in a block, and the weight
 * eight times as many. */
static void check_linear(struct device_check *check, const struct eth_hpp_linear *shape,
                         bool with_bias, bool with_residual, size_t shift)
{
    struct eth_hpp_kernels *d = check->device, *r = check->reference;
    const size_t in = shape->rows * shape->in, out = shape->rows * shape->out;
    const size_t shift_bytes = shift * d->value_bytes;
    tensor input = device_check_values(check, in, 1), output = device_check_values(check, out, 1);
    tensor weight = device_check_values(check, 8 * shift + shape->in * shape->out, 1);
    tensor bias = device_check_values(check, shift + shape->out, 1);
    const char *on_device = (char *)weight.memory + 8 * shift_bytes,
               *bias_on_device = with_bias ? (char *)bias.memory + shift_bytes : NULL;
    const double *numbers = weight.numbers + 8 * shift,
                 *bias_numbers = with_bias ? bias.numbers + shift : NULL;
    tensor residual = device_check_values(check, out, 1);
    tensor input_gradient = device_check_values(check, in, 1);
    tensor weight_gradient = device_check_sums(check, shape->in * shape->out, 1);
    tensor bias_gradient = device_check_sums(check, shape->out, 1);
    BOTH(check, linear_forward,
         (d->state, shape, input.memory, on_device, bias_on_device,
          with_residual ? residual.memory : NULL, output.memory),
         (r->state, shape, input.numbers, numbers, bias_numbers,
          with_residual ? residual.numbers : NULL, output.numbers));
    device_check_compare(check, "output", &output);
    device_check_end(check, "linear_forward", 16);
    device_check_align(check, &output);
    BOTH(check, linear_backward_input,
         (d->state, shape, output.memory, on_device, input_gradient.memory),
         (r->state, shape, output.numbers, numbers, input_gradient.numbers));
    device_check_compare(check, "input_gradient", &input_gradient);
    device_check_end(check, "linear_backward_input", 16);
    BOTH(check, linear_backward_weight,
         (d->state, shape, output.memory, input.memory, weight_gradient.memory,
          with_bias ? bias_gradient.memory : NULL),
         (r->state, shape, output.numbers, input.numbers, weight_gradient.numbers,
          with_bias ? bias_gradient.numbers : NULL));
    device_check_compare(check, "weight_gradient", &weight_gradient);
    device_check_compare(check, "bias_gradient", &bias_gradient);
    device_check_end(check, "linear_backward_weight", 32);
    RELEASE(check, input, output, weight, bias, residual, input_gradient, weight_gradient,
            bias_gradient);
}

static void check_attention(struct device_check *check, const struct eth_hpp_attention *shape)
{
    struct eth_hpp_kernels *d = check->device, *r = check->reference;
    const size_t rows = shape->samples * shape->sequence, width = shape->heads * shape->head_size;
    const size_t qkv_width = width + 2 * shape->key_value_heads * shape->head_size;
    tensor qkv = device_check_values(check, rows * qkv_width, 1);
    tensor output = device_check_values(check, rows * width, 1);
    tensor log_sum = device_check_sums(check, rows * shape->heads, 1);
    tensor scratch = device_check_sums(check, rows * shape->heads, 1);
    tensor output_gradient = device_check_values(check, rows * width, 1);
    tensor gradient = device_check_values(check, rows * qkv_width, 1);
    BOTH(check, attention_forward, (d->state, shape, qkv.memory, output.memory, log_sum.memory),
         (r->state, shape, qkv.numbers, output.numbers, log_sum.numbers));
    device_check_compare(check, "output", &output);
    device_check_compare(check, "log_sum", &log_sum);
    device_check_end(check, "attention_forward", 16);
    device_check_align(check, &output);
    device_check_align(check, &log_sum);
    BOTH(check, attention_backward,
         (d->state, shape, output_gradient.memory, qkv.memory, output.memory, log_sum.memory,
          gradient.memory, scratch.memory),
         (r->state, shape, output_gradient.numbers, qkv.numbers, output.numbers, log_sum.numbers,
          gradient.numbers, scratch.numbers));
    device_check_compare(check, "qkv_gradient", &gradient);
    device_check_end(check, "attention_backward", 32);
    RELEASE(check, qkv, output, log_sum, scratch, output_gradient, gradient);
}

static void check_elementwise(struct device_check *check, size_t count)
{
    struct eth_hpp_kernels *d = check->device, *r = check->reference;
    tensor input = device_check_values(check, count, 4),
           output = device_check_values(check, count, 1);
    tensor sums = device_check_sums(check, count, 1);
    BOTH(check, gelu_forward, (d->state, count, input.memory, output.memory),
         (r->state, count, input.numbers, output.numbers));
    device_check_compare(check, "output", &output);
    device_check_end(check, "gelu_forward", 8);
    device_check_align(check, &output);
    BOTH(check, gelu_backward, (d->state, count, input.memory, output.memory),
         (r->state, count, input.numbers, output.numbers));
    device_check_compare(check, "gradient", &output);
    device_check_end(check, "gelu_backward", 8);
    device_check_align(check, &output);
    BOTH(check, add, (d->state, count, input.memory, output.memory),
         (r->state, count, input.numbers, output.numbers));
    device_check_compare(check, "total", &output);
    device_check_end(check, "add", 2);
    BOTH(check, scale, (d->state, count, 0.3, sums.memory), (r->state, count, 0.3, sums.numbers));
    device_check_compare(check, "sums", &sums);
    device_check_end(check, "scale", 2);
    RELEASE(check, input, output, sums);
}

static void check_swiglu(struct device_check *check, size_t rows, size_t width)
{
    struct eth_hpp_kernels *d = check->device, *r = check->reference;
    tensor input = device_check_values(check, rows * 2 * width, 4);
    tensor output = device_check_values(check, rows * width, 1);
    BOTH(check, swiglu_forward, (d->state, rows, width, input.memory, output.memory),
         (r->state, rows, width, input.numbers, output.numbers));
    device_check_compare(check, "output", &output);
    device_check_end(check, "swiglu_forward", 8);
    device_check_align(check, &output);
    BOTH(check, swiglu_backward, (d->state, rows, width, output.memory, input.memory),
         (r->state, rows, width, output.numbers, input.numbers));
    device_check_compare(check, "input", &input);
    device_check_end(check, "swiglu_backward", 8);
    RELEASE(check, input, output);
}

static void check_rotary(struct device_check *check, const struct eth_hpp_rotary *shape)
{
    struct eth_hpp_kernels *d = check->device, *r = check->reference;
    tensor values = device_check_values(check, shape->rows * shape->stride, 1);
    BOTH(check, rotary, (d->state, shape, values.memory), (r->state, shape, values.numbers));
    device_check_compare(check, "values", &values);
    device_check_end(check, "rotary", 4);
    RELEASE(check, values);
}

static void check_dropout(struct device_check *check, const struct eth_hpp_dropout *dropout,
                          size_t samples, size_t count)
{
    struct eth_hpp_kernels *d = check->device, *r = check->reference;
    tensor values = device_check_values(check, samples * count, 1);
    BOTH(check, dropout, (d->state, dropout, samples, count, values.memory),
         (r->state, dropout, samples, count, values.numbers));
    device_check_compare(check, "values", &values);
    device_check_end(check, "dropout", 2);
    RELEASE(check, values);
}

static void check_cross_entropy(struct device_check *check, size_t rows, size_t classes)
{
    struct eth_hpp_kernels *d = check->device, *r = check->reference;
    struct eth_hpp_error err = {0};
    int32_t targets[64];
    for (size_t i = 0; i < rows; i++)
        targets[i] = i % 5 == 3 ? -1 : (int32_t)(i * 7 % classes);
    int32_t *on_device = upload_tokens(check, rows, targets);
    tensor logits = device_check_values(check, rows * classes, 6);
    double loss[2] = {0, 0}, found[2] = {0, 0};
    void *loss_memory = NULL;
    d->ops->allocate(d->state, sizeof(loss), &loss_memory, &err);
    d->ops->zero(d->state, loss_memory, sizeof(loss));
    BOTH(check, cross_entropy_forward,
         (d->state, rows, classes, logits.memory, on_device, loss_memory),
         (r->state, rows, classes, logits.numbers, targets, loss));
    d->ops->to_host(d->state, found, loss_memory, sizeof(found), &err);
    check->worst = found[1] == loss[1] ? fabs(found[0] - loss[0]) / loss[0] / 0x1p-24 : INFINITY;
    snprintf(check->where, sizeof(check->where), "loss %g of %g for %g of %g", found[0], found[1],
             loss[0], loss[1]);
    device_check_end(check, "cross_entropy_forward", 8);
    BOTH(check, cross_entropy_backward, (d->state, rows, classes, logits.memory, on_device, 8),
         (r->state, rows, classes, logits.numbers, targets, 8));
    device_check_compare(check, "logits", &logits);
    device_check_end(check, "cross_entropy_backward", 8);
    d->ops->release(d->state, on_device);
    d->ops->release(d->state, loss_memory);
    RELEASE(check, logits);
}

static void check_norms(struct device_check *check, size_t count)
{
    struct eth_hpp_kernels *d = check->device, *r = check->reference;
    struct eth_hpp_error err = {0};
    tensor sums = device_check_sums(check, count, 1);
    double squares = 0.5, found = 0;
    void *memory = NULL;
    d->ops->allocate(d->state, sizeof(found), &memory, &err);
    d->ops->to_device(d->state, memory, &squares, sizeof(squares), &err);
    BOTH(check, sum_of_squares, (d->state, count, sums.memory, memory),
         (r->state, count, sums.numbers, &squares));
    d->ops->to_host(d->state, &found, memory, sizeof(found), &err);
    check->worst = fabs(found - squares) / squares / 0x1p-50;
    device_check_end(check, "sum_of_squares", 8);
    d->ops->release(d->state, memory);
    RELEASE(check, sums);
}

/* ---- what has the same bits on every device ---- */

static void compare_bits(struct device_check *check, const char *what, size_t count,
                         const float *wanted, const void *memory)
{
    struct eth_hpp_error err = {0};
    float *found = malloc(count * sizeof(*found));
    if (found == NULL || check->device->ops->to_host(check->device->state, found, memory,
                                                     count * sizeof(*found), &err) != ETH_HPP_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    for (size_t i = 0; i < count && check->worst == 0; i++)
        if (memcmp(&found[i], &wanted[i], sizeof(found[i])) != 0) {
            check->worst = INFINITY;
            snprintf(check->where, sizeof(check->where), "%s[%zu]: %a for %a", what, i,
                     (double)found[i], (double)wanted[i]);
        }
    free(found);
}

static float *floats_of(const tensor *from)
{
    float *made = malloc(from->count * sizeof(*made));
    if (made == NULL) {
        printf("Bail out! no memory\n");
        exit(1);
    }
    for (size_t i = 0; i < from->count; i++)
        made[i] = (float)from->numbers[i];
    return made;
}

static void check_adamw(struct device_check *check, size_t count)
{
    const struct eth_hpp_adamw settings = {.learning_rate = 3e-4,
                                           .beta1 = 0.9,
                                           .beta2 = 0.95,
                                           .epsilon = 1e-8,
                                           .weight_decay = 0.1,
                                           .gradient_scale = 1.0 / 3,
                                           .step = 5};
    struct eth_hpp_kernels *d = check->device, *e = check->exact;
    tensor gradient = device_check_sums(check, count, 1),
           weights = device_check_sums(check, count, 1);
    tensor first = device_check_sums(check, count, 0.1),
           second = device_check_sums(check, count, 0.01);
    for (size_t i = 0; i < count; i++)
        second.numbers[i] = fabs(second.numbers[i]);
    device_check_align(check, &second);
    float *g = floats_of(&gradient), *w = floats_of(&weights);
    float *m = floats_of(&first), *v = floats_of(&second);
    d->ops->adamw(d->state, count, &settings, gradient.memory, weights.memory, first.memory,
                  second.memory);
    e->ops->adamw(e->state, count, &settings, g, w, m, v);
    compare_bits(check, "weights", count, w, weights.memory);
    compare_bits(check, "first_moment", count, m, first.memory);
    compare_bits(check, "second_moment", count, v, second.memory);
    device_check_end(check, "adamw", 0);
    free(g);
    free(w);
    free(m);
    free(v);
    RELEASE(check, gradient, weights, first, second);
}

/* To the values that the device's dtype has nearest. */
static void check_cast(struct device_check *check, size_t count)
{
    struct eth_hpp_kernels *d = check->device;
    struct eth_hpp_error err = {0};
    tensor sums = device_check_sums(check, count, 3);
    tensor values = device_check_values(check, count, 1);
    const size_t bytes = count * (size_t)eth_hpp_dtype_bytes(check->dtype);
    float *wanted = malloc(bytes), *found = malloc(bytes);
    if (wanted == NULL || found == NULL) {
        printf("Bail out! no memory\n");
        exit(1);
    }
    sums.numbers[0] = 1 + 0x1p-8;  /* between two of bf16, the even one below */
    sums.numbers[1] = 1 + 0x3p-11; /* and of fp16, above */
    device_check_align(check, &sums);
    d->ops->cast(d->state, count, sums.memory, values.memory);
    device_values_pack(check->dtype, count, sums.numbers, wanted);
    d->ops->to_host(d->state, found, values.memory, bytes, &err);
    check->worst = memcmp(found, wanted, bytes) == 0 ? 0 : INFINITY;
    device_check_end(check, "cast", 0);
    free(wanted);
    free(found);
    RELEASE(check, sums, values);
}

static void check_initialisation(struct device_check *check, size_t count)
{
    struct eth_hpp_kernels *d = check->device, *e = check->exact;
    struct eth_hpp_error err = {0};
    tensor weights = device_check_sums(check, count, 1);
    float *wanted = floats_of(&weights);
    uint64_t sum = 3, found = 3;
    void *memory = NULL;
    d->ops->random_normal(d->state, count, 0xfeedull << 40, 77, 0.02, weights.memory);
    e->ops->random_normal(e->state, count, 0xfeedull << 40, 77, 0.02, wanted);
    compare_bits(check, "weights", count, wanted, weights.memory);
    device_check_end(check, "random_normal", 0);

    d->ops->allocate(d->state, sizeof(found), &memory, &err);
    d->ops->to_device(d->state, memory, &found, sizeof(found), &err);
    d->ops->checksum(d->state, count, weights.memory, memory);
    e->ops->checksum(e->state, count, wanted, &sum);
    d->ops->to_host(d->state, &found, memory, sizeof(found), &err);
    check->worst = found == sum ? 0 : INFINITY;
    device_check_end(check, "checksum", 0);
    d->ops->release(d->state, memory);

    d->ops->fill(d->state, count, 0.7, weights.memory);
    e->ops->fill(e->state, count, 0.7, wanted);
    compare_bits(check, "weights", count, wanted, weights.memory);
    device_check_end(check, "fill", 0);
    free(wanted);
    RELEASE(check, weights);
}

int device_check_all(struct device_check *check)
{
    const struct eth_hpp_dropout dropout = {.rate = 0.3,
                                            .seed = 0x123456789abcdefull,
                                            .step = 7,
                                            .first_sample = 0x1ffffffffll,
                                            .layer = 5,
                                            .operation = 3};
    check_embedding(check, 3, 5, 7, true);
    check_embedding(check, 4, 33, 64, true);
    check_embedding(check, 2, 9, 40, false);
    check_layernorm(check, 9, 5, true);
    check_layernorm(check, 40, 768, true);
    check_layernorm(check, 9, 5, false);
    check_layernorm(check, 40, 768, false);
    check_linear(check, &(struct eth_hpp_linear){.rows = 5, .in = 3, .out = 7}, true, false, 0);
    check_linear(check, &(struct eth_hpp_linear){.rows = 33, .in = 64, .out = 48}, false, true, 0);
    check_linear(check, &(struct eth_hpp_linear){.rows = 33, .in = 64, .out = 48}, true, false, 1);
    check_linear(check,
                 &(struct eth_hpp_linear){.rows = 17, .in = 32, .out = 72, .out_major = true}, true,
                 true, 0);
    check_attention(check, &(struct eth_hpp_attention){2, 7, 3, 3, 8, NULL});
    check_attention(check, &(struct eth_hpp_attention){1, 100, 2, 2, 64, NULL});
    check_attention(check, &(struct eth_hpp_attention){1, 65, 2, 2, 80, NULL});
    check_attention(check, &(struct eth_hpp_attention){2, 70, 2, 2, 24, &dropout});
    check_attention(check, &(struct eth_hpp_attention){1, 37, 1, 1, 128, &dropout});
    check_attention(check, &(struct eth_hpp_attention){1, 37, 1, 1, 256, &dropout});
    check_attention(check, &(struct eth_hpp_attention){2, 70, 6, 2, 24, &dropout});
    check_attention(check, &(struct eth_hpp_attention){1, 35, 4, 2, 160, NULL});
    check_attention(check, &(struct eth_hpp_attention){1, 45, 4, 1, 128, NULL});
    check_elementwise(check, 1000);
    check_swiglu(check, 9, 111);
    check_rotary(check, &(struct eth_hpp_rotary){3 * 17, 17, 5, 6, 47, 10000, false});
    check_rotary(check, &(struct eth_hpp_rotary){2 * 300, 300, 3, 128, 512, 500000, true});
    check_dropout(check, &dropout, 3, 200);
    check_dropout(check, &dropout, 1, 3); /* less than a thread draws at a time */
    check_cross_entropy(check, 11, 7);
    check_cross_entropy(check, 9, 1003);
    check_norms(check, 100003);
    check_adamw(check, 1001);
    check_cast(check, 1003);
    check_initialisation(check, 1003);
    check_initialisation(check, 3);
    return check->failures;
}
