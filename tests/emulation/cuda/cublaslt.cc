/* EMULATED: matrix products on the host, in order and in fp32, with the checks of shapes and types
 * that cuBLASLt's documentation promises. */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct eth_hpp_emulated_blas {};

struct eth_hpp_emulated_matmul {
    cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr;
};

struct eth_hpp_emulated_layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t stride; /* from a column to the next one */
};

struct eth_hpp_emulated_preference {
    uint64_t workspace = 0;
    uint32_t reductions = 7;
    uint32_t alignment[4] = {256, 256, 256, 256}; /* of A, B, C and D */
};

namespace {

float load(const void *at, cudaDataType_t type, size_t i)
{
    switch (type) {
    case CUDA_R_16F:
        return __half2float(((const __half *)at)[i]);
    case CUDA_R_16BF:
        return __bfloat162float(((const __nv_bfloat16 *)at)[i]);
    default:
        return ((const float *)at)[i];
    }
}

void store(void *at, cudaDataType_t type, size_t i, float x)
{
    switch (type) {
    case CUDA_R_16F:
        ((__half *)at)[i] = __float2half(x);
        break;
    case CUDA_R_16BF:
        ((__nv_bfloat16 *)at)[i] = __float2bfloat16(x);
        break;
    default:
        ((float *)at)[i] = x;
    }
}

/* A product's shapes, once they are known to fit. */
struct product {
    eth_hpp_emulated_matmul how;
    eth_hpp_emulated_layout a, b, c;
    uint64_t m, n, k;
};

bool fits(const product &p)
{
    const uint64_t a_rows = p.how.a == CUBLAS_OP_N ? p.a.rows : p.a.columns;
    const uint64_t b_rows = p.how.b == CUBLAS_OP_N ? p.b.rows : p.b.columns;
    const uint64_t b_columns = p.how.b == CUBLAS_OP_N ? p.b.columns : p.b.rows;
    return a_rows == p.m && b_rows == p.k && b_columns == p.n && p.a.type == p.b.type &&
           (uint64_t)p.a.stride >= p.a.rows && (uint64_t)p.b.stride >= p.b.rows &&
           (uint64_t)p.c.stride >= p.c.rows && (p.c.type == p.a.type || p.c.type == CUDA_R_32F);
}

bool describe(cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
              cublasLtMatrixLayout_t d, product *p)
{
    *p = {*description, *a, *b, *d, d->rows, d->columns, 0};
    p->k = description->a == CUBLAS_OP_N ? a->columns : a->rows;
    return fits(*p);
}

void multiply(const product &p, float alpha, const void *a, const void *b, float beta,
              const void *c, void *d)
{
    for (uint64_t j = 0; j < p.n; j++)
        for (uint64_t i = 0; i < p.m; i++) {
            const uint64_t a_at = p.how.a == CUBLAS_OP_N ? i : i * p.a.stride;
            const uint64_t a_step = p.how.a == CUBLAS_OP_N ? p.a.stride : 1;
            const uint64_t b_at = p.how.b == CUBLAS_OP_N ? j * p.b.stride : j;
            const uint64_t b_step = p.how.b == CUBLAS_OP_N ? 1 : p.b.stride;
            float sum = 0;
            for (uint64_t k = 0; k < p.k; k++)
                sum += load(a, p.a.type, a_at + k * a_step) * load(b, p.b.type, b_at + k * b_step);
            sum *= alpha;
            const uint64_t c_at = i + j * p.c.stride;
            if (beta != 0) /* with 0, c may hold anything */
                sum += beta * load(c, p.c.type, c_at);
            if (p.how.epilogue == CUBLASLT_EPILOGUE_BIAS)
                sum += load(p.how.bias, p.c.type, i);
            store(d, p.c.type, c_at, sum);
        }
}

} // namespace

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "<unknown>";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = new eth_hpp_emulated_blas();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t,
                                        cudaDataType_t scale)
{
    if (scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *description = new eth_hpp_emulated_matmul();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description)
{
    delete description;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size)
{
    void *to = nullptr;
    size_t wanted = sizeof(int32_t);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        to = &description->a;
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        to = &description->b;
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        to = &description->epilogue;
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        to = &description->bias;
        wanted = sizeof(void *);
        break;
    }
    if (size != wanted)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride)
{
    *layout = new eth_hpp_emulated_layout{type, rows, columns, stride};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = new eth_hpp_emulated_preference();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    void *to = &preference->workspace;
    size_t wanted = sizeof(preference->workspace);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
        to = &preference->reductions;
        wanted = sizeof(preference->reductions);
    } else if (attribute != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        to = &preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
        wanted = sizeof(preference->alignment[0]);
    }
    if (size != wanted)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    product p;
    if (wanted < 1 || !describe(description, a, b, d, &p))
        return CUBLAS_STATUS_INVALID_VALUE;
    /* The real one might take an algorithm that rounds partial sums to D's type. */
    if (preference->reductions != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    results[0] = cublasLtMatmulHeuristicResult_t();
    for (int i = 0; i < 4; i++)
        results[0].algo.data[i] = preference->alignment[i];
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *, size_t, cudaStream_t stream)
{
    product p;
    if (!describe(description, a_layout, b_layout, d_layout, &p) || c_layout != d_layout)
        return CUBLAS_STATUS_INVALID_VALUE;
    const void *const operands[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)operands[i] % algo->data[i] != 0) /* the algorithm may have counted on it */
            return CUBLAS_STATUS_INVALID_VALUE;
    if ((uintptr_t)p.how.bias % algo->data[3] != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    const float by = *(const float *)alpha, kept = *(const float *)beta;
    const cudaError_t error =
        eth_hpp_emulated_enqueue(stream, [=] { multiply(p, by, a, b, kept, c, d); });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
