#include "kernels/adamw.h"
#include "kernels/cuda/device.h"

namespace eth_hpp {

struct adamw_factors {
    float gradient, beta1, rest1, beta2, rest2, unbias1, unbias2, rate, epsilon, decay;
};

static adamw_factors factors_of(const struct eth_hpp_adamw *by)
{
    adamw_factors f;
    f.gradient = (float)by->gradient_scale;
    f.beta1 = (float)by->beta1;
    f.rest1 = (float)(1 - by->beta1);
    f.beta2 = (float)by->beta2;
    f.rest2 = (float)(1 - by->beta2);
    f.unbias1 = (float)eth_hpp_adamw_unbias(by->beta1, by->step);
    f.unbias2 = (float)eth_hpp_adamw_unbias(by->beta2, by->step);
    f.rate = (float)by->learning_rate;
    f.epsilon = (float)by->epsilon;
    f.decay = (float)by->weight_decay;
    return f;
}

/* The steps of kernels/cpu/optimizer.c in its order, each rounded on its own. */
__global__ void adamw_kernel(size_t count, adamw_factors f, const float *gradient, float *weights,
                             float *first_moment, float *second_moment)
{
    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        const float g = __fmul_rn(gradient[i], f.gradient);
        const float m = __fadd_rn(__fmul_rn(f.beta1, first_moment[i]), __fmul_rn(f.rest1, g));
        const float v =
            __fadd_rn(__fmul_rn(f.beta2, second_moment[i]), __fmul_rn(f.rest2, __fmul_rn(g, g)));
        const float root = __fsqrt_rn(__fmul_rn(v, f.unbias2));
        const float step = __fdiv_rn(__fmul_rn(m, f.unbias1), __fadd_rn(root, f.epsilon));
        const float change = __fadd_rn(step, __fmul_rn(f.decay, weights[i]));
        weights[i] = __fsub_rn(weights[i], __fmul_rn(f.rate, change));
        first_moment[i] = m;
        second_moment[i] = v;
    }
}

template <typename T> __global__ void cast_kernel(size_t count, const float *sums, T *values)
{
    for (size_t i = grid_first(); i < count; i += grid_stride())
        store(&values[i], sums[i]);
}

/* PARTS sums whatever the device, added up in one order. */
__global__ void squares_kernel(size_t count, const float *sums, double *parts)
{
    double sum = 0;
    for (size_t i = grid_first(); i < count; i += grid_stride())
        sum += (double)sums[i] * (double)sums[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void add_parts_kernel(const double *parts, double *result)
{
    double total = 0;
    for (int i = 0; i < PARTS; i++)
        total += parts[i];
    *result += total;
}

/* The finaliser of splitmix64 (Steele, Lea and Flood 2014). */
__device__ __forceinline__ uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

__global__ void checksum_kernel(size_t count, const uint32_t *words, uint64_t *result)
{
    uint64_t total = 0;
    for (size_t i = grid_first(); i < count; i += grid_stride())
        total += mix(words[i] + (i + 1) * 0x9e3779b97f4a7c15ull);
    total = block_sum(total);
    if (threadIdx.x == 0)
        atomicAdd((unsigned long long *)result, (unsigned long long)total);
}

static void adamw(void *at, size_t count, const struct eth_hpp_adamw *settings,
                  const void *gradient, void *weights, void *first_moment, void *second_moment)
{
    cuda *state = static_cast<cuda *>(at);
    launch(state, "adamw", adamw_kernel, blocks_for(state, count, THREADS), THREADS, count,
           factors_of(settings), (const float *)gradient, (float *)weights, (float *)first_moment,
           (float *)second_moment);
}

static void sum_of_squares(void *at, size_t count, const void *sums, double *result)
{
    cuda *state = static_cast<cuda *>(at);
    launch(state, "sum_of_squares", squares_kernel, PARTS, THREADS, count, (const float *)sums,
           state->parts);
    launch(state, "sum_of_squares", add_parts_kernel, 1, 1, (const double *)state->parts, result);
}

static void cast(void *at, size_t count, const void *sums, void *values)
{
    cuda *state = static_cast<cuda *>(at);
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "cast", cast_kernel<T>, blocks_for(state, count, THREADS), THREADS, count,
               (const float *)sums, (T *)values);
    });
}

static void checksum(void *at, size_t count, const void *words, uint64_t *result)
{
    cuda *state = static_cast<cuda *>(at);
    launch(state, "checksum", checksum_kernel, blocks_for(state, count, THREADS), THREADS, count,
           (const uint32_t *)words, result);
}

void optimizer_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->adamw = adamw;
    ops->sum_of_squares = sum_of_squares;
    ops->cast = cast;
    ops->checksum = checksum;
}

} // namespace eth_hpp
