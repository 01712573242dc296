#include "kernels/cuda/device.h"

namespace eth_hpp {

/* A warp takes a row. Without mean, bias and bias_gradient it is RMSNorm. */
constexpr int ROWS = THREADS / WARP;

template <typename T>
__global__ void layernorm_forward_kernel(size_t rows, size_t width, float epsilon, const T *input,
                                         const T *weight, const T *bias, T *output, float *mean,
                                         float *rstd)
{
    const size_t row = (size_t)blockIdx.x * ROWS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= rows)
        return; /* the whole warp */
    const T *x = input + row * width;
    float sum = 0, squares = 0;
    for (size_t i = lane; i < width; i += WARP)
        sum += to_float(x[i]);
    const float m = mean == nullptr ? 0 : warp_sum(sum) / (float)width;
    for (size_t i = lane; i < width; i += WARP) {
        const float distance = to_float(x[i]) - m;
        squares += distance * distance;
    }
    const float s = 1 / sqrtf(warp_sum(squares) / (float)width + epsilon);
    for (size_t i = lane; i < width; i += WARP)
        store(&output[row * width + i], (to_float(x[i]) - m) * s * to_float(weight[i]) +
                                            (bias == nullptr ? 0 : to_float(bias[i])));
    if (lane == 0)
        rstd[row] = s;
    if (lane == 0 && mean != nullptr)
        mean[row] = m;
}

/* With n = (x - mean) rstd and g = dout w:  dx += rstd (g - mean(g) - n mean(g n)), without mean(g)
 * where no mean was taken off. */
template <typename T>
__global__ void layernorm_input_kernel(size_t rows, size_t width, const T *output_gradient,
                                       const T *input, const T *weight, const float *mean,
                                       const float *rstd, T *input_gradient)
{
    const size_t row = (size_t)blockIdx.x * ROWS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= rows)
        return;
    const T *dout = output_gradient + row * width, *x = input + row * width;
    T *dx = input_gradient + row * width;
    const float m = mean == nullptr ? 0 : mean[row], s = rstd[row];
    float sum = 0, product = 0;
    for (size_t i = lane; i < width; i += WARP) {
        const float g = to_float(dout[i]) * to_float(weight[i]);
        sum += g;
        product += g * (to_float(x[i]) - m) * s;
    }
    sum = mean == nullptr ? 0 : warp_sum(sum) / (float)width;
    product = warp_sum(product) / (float)width;
    for (size_t i = lane; i < width; i += WARP) {
        const float n = (to_float(x[i]) - m) * s;
        const float g = to_float(dout[i]) * to_float(weight[i]);
        store(&dx[i], to_float(dx[i]) + s * (g - sum - n * product));
    }
}

/* A block takes WARP columns: its lanes go over the columns, its warps over the rows. */
template <typename T>
__global__ void layernorm_weight_kernel(size_t rows, size_t width, const T *output_gradient,
                                        const T *input, const float *mean, const float *rstd,
                                        float *weight_gradient, float *bias_gradient)
{
    __shared__ float weights[ROWS][WARP], biases[ROWS][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const size_t column = (size_t)blockIdx.x * WARP + lane;
    float of_weight = 0, of_bias = 0;
    if (column < width)
        for (size_t row = warp; row < rows; row += ROWS) {
            const float dout = to_float(output_gradient[row * width + column]);
            const float m = mean == nullptr ? 0 : mean[row];
            of_weight += dout * ((to_float(input[row * width + column]) - m) * rstd[row]);
            of_bias += dout;
        }
    weights[warp][lane] = of_weight;
    biases[warp][lane] = of_bias;
    __syncthreads();
    if (warp != 0 || column >= width)
        return;
    for (int i = 1; i < ROWS; i++) {
        of_weight += weights[i][lane];
        of_bias += biases[i][lane];
    }
    weight_gradient[column] += of_weight;
    if (bias_gradient != nullptr)
        bias_gradient[column] += of_bias;
}

static void layernorm_forward(void *at, size_t rows, size_t width, double epsilon,
                              const void *input, const void *weight, const void *bias, void *output,
                              void *mean, void *rstd)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "layernorm_forward", layernorm_forward_kernel<T>,
               (unsigned)divide_up(rows, ROWS), THREADS, rows, width, (float)epsilon,
               (const T *)input, (const T *)weight, (const T *)bias, (T *)output, (float *)mean,
               (float *)rstd);
    });
}

static void layernorm_backward(void *at, size_t rows, size_t width, const void *output_gradient,
                               const void *input, const void *weight, const void *mean,
                               const void *rstd, void *input_gradient, void *weight_gradient,
                               void *bias_gradient)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        const auto *dout = (const T *)output_gradient;
        launch(state, "layernorm_backward", layernorm_input_kernel<T>,
               (unsigned)divide_up(rows, ROWS), THREADS, rows, width, dout, (const T *)input,
               (const T *)weight, (const float *)mean, (const float *)rstd, (T *)input_gradient);
        launch(state, "layernorm_backward", layernorm_weight_kernel<T>,
               (unsigned)divide_up(width, WARP), THREADS, rows, width, dout, (const T *)input,
               (const float *)mean, (const float *)rstd, (float *)weight_gradient,
               (float *)bias_gradient);
    });
}

void layernorm_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->layernorm_forward = layernorm_forward;
    ops->layernorm_backward = layernorm_backward;
}

} // namespace eth_hpp
