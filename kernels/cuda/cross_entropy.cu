#include "kernels/cuda/device.h"

namespace eth_hpp {

/* A block takes a row: its largest logit and the sum of exp(logit - largest). */
struct softmax {
    float largest, sum;
};

template <typename T> __device__ softmax row_softmax(size_t classes, const T *logits)
{
    softmax row = {-INFINITY, 0};
    for (size_t i = threadIdx.x; i < classes; i += THREADS)
        row.largest = larger(row.largest, to_float(logits[i]));
    row.largest = block_largest(row.largest);
    for (size_t i = threadIdx.x; i < classes; i += THREADS)
        row.sum += expf(to_float(logits[i]) - row.largest);
    row.sum = block_sum(row.sum);
    return row;
}

template <typename T>
__global__ void cross_entropy_forward_kernel(size_t classes, const T *logits,
                                             const int32_t *targets, double *loss)
{
    const int32_t target = targets[blockIdx.x];
    if (target < 0)
        return; /* the whole block */
    const T *x = logits + blockIdx.x * classes;
    const softmax row = row_softmax(classes, x);
    if (threadIdx.x == 0) {
        atomicAdd(&loss[0], log((double)row.sum) + ((double)row.largest - to_float(x[target])));
        atomicAdd(&loss[1], 1.0);
    }
}

template <typename T>
__global__ void cross_entropy_backward_kernel(size_t classes, T *logits, const int32_t *targets,
                                              float scale)
{
    const int32_t target = targets[blockIdx.x];
    T *x = logits + blockIdx.x * classes;
    if (target < 0) {
        for (size_t i = threadIdx.x; i < classes; i += THREADS)
            store(&x[i], 0);
        return;
    }
    const softmax row = row_softmax(classes, x);
    for (size_t i = threadIdx.x; i < classes; i += THREADS) {
        const float probability = expf(to_float(x[i]) - row.largest) / row.sum;
        store(&x[i], scale * (i == (size_t)target ? probability - 1 : probability));
    }
}

static void cross_entropy_forward(void *at, size_t rows, size_t classes, const void *logits,
                                  const int32_t *targets, double *loss)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "cross_entropy_forward", cross_entropy_forward_kernel<T>, (unsigned)rows,
               THREADS, classes, (const T *)logits, targets, loss);
    });
}

static void cross_entropy_backward(void *at, size_t rows, size_t classes, void *logits,
                                   const int32_t *targets, double scale)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "cross_entropy_backward", cross_entropy_backward_kernel<T>, (unsigned)rows,
               THREADS, classes, (T *)logits, targets, (float)scale);
    });
}

void cross_entropy_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->cross_entropy_forward = cross_entropy_forward;
    ops->cross_entropy_backward = cross_entropy_backward;
}

} // namespace eth_hpp
