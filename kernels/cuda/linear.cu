/* Matrix products by cuBLASLt, and the sums of columns for the gradients of biases. */
#include "kernels/cuda/device.h"

#include <cstdlib>
#include <cstring>

namespace eth_hpp {

constexpr size_t WORKSPACE_BYTES = 32
                                   << 20; /* what NVIDIA recommends for Hopper; others need less */

/* Parts of a product that is split along k are added up in fp32, not in D's type. */
constexpr uint32_t FP32_PARTS = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

/* D [n][m] = A x B (+ C) as cuBLASLt sees it: column by column, which makes a row-major
 * matrix the transpose of itself. */
struct product {
    size_t m, n, k;
    bool a_transposed, b_transposed;
    bool d_sums;   /* C and D hold sums, else values */
    bool has_bias; /* of m values, for each of D's columns */
};

/* A kind of product, described once with the algorithm that cuBLASLt chose for it. */
struct described {
    product shape;
    uint32_t alignment; /* bytes, of all matrices and the bias */
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    described *next;
};

struct products {
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace;
    described *known;
};

static cudaDataType_t value_type(const cuda *state)
{
    switch (state->values) {
    case ETH_HPP_BF16:
        return CUDA_R_16BF;
    case ETH_HPP_FP16:
        return CUDA_R_16F;
    case ETH_HPP_FP32:
        break;
    }
    return CUDA_R_32F;
}

/* As far as cuBLASLt asks. It takes 256 for granted, but a weight's place in its block promises
 * less, and there are algorithms that need what they were promised. A bias counts with D, beside
 * which it is read. */
static uint32_t alignment_of(const void *a, const void *b, const void *bias, const void *c,
                             const void *d)
{
    const uintptr_t all =
        (uintptr_t)a | (uintptr_t)b | (uintptr_t)bias | (uintptr_t)c | (uintptr_t)d | 256;
    return (uint32_t)(all & -all);
}

static cublasStatus_t promise(cublasLtMatmulPreference_t preference, uint32_t alignment)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (const auto matrix :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        if (status == CUBLAS_STATUS_SUCCESS)
            status = cublasLtMatmulPreferenceSetAttribute(preference, matrix, &alignment,
                                                          sizeof(alignment));
    return status;
}

static cublasStatus_t layout(cublasLtMatrixLayout_t *made, cudaDataType_t type, size_t rows,
                             size_t columns)
{
    return cublasLtMatrixLayoutCreate(made, type, rows, columns, (int64_t)rows);
}

static cublasStatus_t set(cublasLtMatmulDesc_t how, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t size)
{
    return cublasLtMatmulDescSetAttribute(how, attribute, value, size);
}

static cublasStatus_t describe(cuda *state, const product &p, described *d)
{
    const cudaDataType_t type = value_type(state);
    const cublasOperation_t turned = CUBLAS_OP_T;
    const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    cublasStatus_t status = cublasLtMatmulDescCreate(&d->how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS && p.a_transposed)
        status = set(d->how, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof(turned));
    if (status == CUBLAS_STATUS_SUCCESS && p.b_transposed)
        status = set(d->how, CUBLASLT_MATMUL_DESC_TRANSB, &turned, sizeof(turned));
    if (status == CUBLAS_STATUS_SUCCESS && p.has_bias)
        status = set(d->how, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof(bias));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = layout(&d->a, type, p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = layout(&d->b, type, p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = layout(&d->d, p.d_sums ? CUDA_R_32F : type, p.m, p.n);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = promise(state->products->preference, d->alignment);
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            cublasLtMatmulAlgoGetHeuristic(state->products->handle, d->how, d->a, d->b, d->d, d->d,
                                           state->products->preference, 1, &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = count > 0 ? found.state : CUBLAS_STATUS_NOT_SUPPORTED;
    d->algorithm = found.algo;
    return status;
}

static void forget(described *d)
{
    if (d->how != nullptr)
        cublasLtMatmulDescDestroy(d->how);
    for (cublasLtMatrixLayout_t made : {d->a, d->b, d->d})
        if (made != nullptr)
            cublasLtMatrixLayoutDestroy(made);
    free(d);
}

static bool same(const product &a, const product &b)
{
    return a.m == b.m && a.n == b.n && a.k == b.k && a.a_transposed == b.a_transposed &&
           a.b_transposed == b.b_transposed && a.d_sums == b.d_sums && a.has_bias == b.has_bias;
}

/* A stage has a dozen kinds of products. */
static described *find(cuda *state, const product &p, uint32_t alignment)
{
    for (described *d = state->products->known; d != nullptr; d = d->next)
        if (same(d->shape, p) && d->alignment == alignment)
            return d;
    auto *d = static_cast<described *>(calloc(1, sizeof(described)));
    if (d == nullptr) {
        note(state, "a matrix product", CUBLAS_STATUS_ALLOC_FAILED);
        return nullptr;
    }
    d->shape = p;
    d->alignment = alignment;
    const cublasStatus_t status = describe(state, p, d);
    if (status != CUBLAS_STATUS_SUCCESS) {
        note(state, "the description of a matrix product", status);
        forget(d);
        return nullptr;
    }
    d->next = state->products->known;
    state->products->known = d;
    return d;
}

/* c: NULL, or laid out like d, which it may be. */
static void multiply(cuda *state, const product &p, const void *a, const void *b, const void *bias,
                     const void *c, void *d_memory)
{
    const float one = 1, kept = c != nullptr ? 1 : 0;
    described *d = find(state, p, alignment_of(a, b, bias, c, d_memory));
    if (d == nullptr)
        return;
    if (p.has_bias)
        note(state, "a bias", set(d->how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)));
    note(state, "a matrix product",
         cublasLtMatmul(state->products->handle, d->how, &one, a, d->a, b, d->b, &kept,
                        c != nullptr ? c : d_memory, d->d, d_memory, d->d, &d->algorithm,
                        state->products->workspace, WORKSPACE_BYTES, compute_stream(state)));
}

/* output^T [out] = (weight^T or weight) x input^T */
static void linear_forward(void *at, const struct eth_hpp_linear *shape, const void *input,
                           const void *weight, const void *bias, const void *residual, void *output)
{
    const product p = {shape->out, shape->rows, shape->in,      shape->out_major,
                       false,      false,       bias != nullptr};
    multiply(static_cast<cuda *>(at), p, weight, input, bias, residual, output);
}

static void linear_backward_input(void *at, const struct eth_hpp_linear *shape,
                                  const void *output_gradient, const void *weight,
                                  void *input_gradient)
{
    const product p = {shape->in, shape->rows, shape->out, !shape->out_major, false, false, false};
    multiply(static_cast<cuda *>(at), p, weight, output_gradient, nullptr, nullptr, input_gradient);
}

/* ---- gradients of biases ---- */

constexpr int ROWS = THREADS / WARP;

/* A block takes WARP columns: its lanes go over the columns, its warps over the rows. */
template <typename T>
__global__ void column_sums_kernel(size_t rows, size_t width, const T *matrix, float *sums)
{
    __shared__ float partial[ROWS][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const size_t column = (size_t)blockIdx.x * WARP + lane;
    float sum = 0;
    if (column < width)
        for (size_t row = warp; row < rows; row += ROWS)
            sum += to_float(matrix[row * width + column]);
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || column >= width)
        return;
    for (int i = 1; i < ROWS; i++)
        sum += partial[i][lane];
    sums[column] += sum;
}

static void linear_backward_weight(void *at, const struct eth_hpp_linear *shape,
                                   const void *output_gradient, const void *input,
                                   void *weight_gradient, void *bias_gradient)
{
    cuda *state = static_cast<cuda *>(at);
    const bool out_major = shape->out_major;
    const product p = {out_major ? shape->in : shape->out,
                       out_major ? shape->out : shape->in,
                       shape->rows,
                       false,
                       true,
                       true,
                       false};
    multiply(state, p, out_major ? input : output_gradient, out_major ? output_gradient : input,
             nullptr, weight_gradient, weight_gradient);
    if (bias_gradient == nullptr)
        return;
    with_value(state, [=](auto value) {
        using T = decltype(value);
        launch(state, "the gradient of a bias", column_sums_kernel<T>,
               (unsigned)divide_up(shape->out, WARP), THREADS, shape->rows, shape->out,
               (const T *)output_gradient, (float *)bias_gradient);
    });
}

enum eth_hpp_status products_open(cuda *state, struct eth_hpp_error *err)
{
    auto *made = static_cast<products *>(calloc(1, sizeof(products)));
    if (made == nullptr)
        return eth_hpp_error_memory(err, "cuBLASLt");
    state->products = made;
    cublasStatus_t status = cublasLtCreate(&made->handle);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceCreate(&made->preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(made->preference,
                                                      CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &WORKSPACE_BYTES, sizeof(WORKSPACE_BYTES));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(made->preference,
                                                      CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &FP32_PARTS, sizeof(FP32_PARTS));
    if (status != CUBLAS_STATUS_SUCCESS)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cuBLASLt cannot be opened: %s",
                                 cublasLtGetStatusString(status));
    if (cudaMalloc(&made->workspace, WORKSPACE_BYTES) != cudaSuccess)
        return eth_hpp_error_set(err, ETH_HPP_ERR_MEMORY,
                                 "the GPU has no %zu bytes for cuBLASLt's workspace",
                                 WORKSPACE_BYTES);
    return ETH_HPP_OK;
}

void products_close(cuda *state)
{
    products *made = state->products;
    if (made == nullptr)
        return;
    while (made->known != nullptr) {
        described *d = made->known;
        made->known = d->next;
        forget(d);
    }
    cudaFree(made->workspace);
    if (made->preference != nullptr)
        cublasLtMatmulPreferenceDestroy(made->preference);
    if (made->handle != nullptr)
        cublasLtDestroy(made->handle);
    free(made);
    state->products = nullptr;
}

void linear_provide(struct eth_hpp_kernels_ops *ops)
{
    ops->linear_forward = linear_forward;
    ops->linear_backward_input = linear_backward_input;
    ops->linear_backward_weight = linear_backward_weight;
}

} // namespace eth_hpp
