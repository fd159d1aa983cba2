/* cuBLASLt on the CPU: strided batches of products of f32, bf16 and f16, with sums in f32 and the
 * epilogue that adds a bias. What it is strict about: an algorithm belongs to the problem that it
 * was given for, to the alignment that was promised, and needs its workspace, at a multiple of 256
 * bytes, which it overwrites; a handle, to the device that was current when it was made.
 * Matrices of 16-bit elements with rows that do not begin at multiples of 4 bytes it does not take,
 * so that what is written for such cases is tested as well.
 */
#include "machine.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <string.h>

#include <algorithm>
#include <set>
#include <vector>

using namespace emulation;

struct cublasLtContext {
    int device;
};

namespace
{

struct layout {
    cudaDataType type;
    int32_t order, batch;
    uint64_t rows, cols;
    int64_t ld, stride;
};

struct operation {
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t turn_a, turn_b, epilogue;
    const void *bias;
    int32_t bias_type;  /* -1: D's */
    int32_t processors; /* that it is chosen for; 0: all */
};

struct preference {
    uint64_t workspace;
    uint32_t align[4];
};

/* What lies in a cublasLtMatmulAlgo_t. */
struct algorithm {
    uint64_t mark, number, workspace, problem;
    uint32_t align[4];
};

static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits");
static_assert(sizeof(operation) <= sizeof(cublasLtMatmulDescOpaque_t), "fits");
static_assert(sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "fits");
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "fits");

std::set<cublasLtHandle_t> handles; /* those of devices that are given up are never destroyed */
int chosen_for;                     /* processors, of the product that was asked for last */

enum { MARK = 0x5a45524f, ALGORITHMS = 3, WORKSPACE = 4096, WORKSPACE_LIES = 256 };

/* The handle is of the device that is current. */
bool is_here(cublasLtHandle_t handle, const char *function)
{
    if (handle->device == current_device()) return true;
    found("%s: the handle is of device %d, and device %d is current", function, handle->device,
          current_device());
    return false;
}

template <class T, class O> T get(const O *opaque)
{
    T value;
    memcpy(&value, opaque, sizeof value);
    return value;
}
template <class T, class O> void put(O *opaque, const T &value)
{
    memset(opaque, 0, sizeof *opaque);
    memcpy(opaque, &value, sizeof value);
}

size_t size_of(int type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 0;
}

float load(const void *from, int type, int64_t at)
{
    if (type == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16 *>(from)[at]);
    if (type == CUDA_R_16F) return __half2float(static_cast<const __half *>(from)[at]);
    return static_cast<const float *>(from)[at];
}

void store(void *to, int type, int64_t at, float x)
{
    if (type == CUDA_R_16BF) static_cast<__nv_bfloat16 *>(to)[at] = __float2bfloat16_rn(x);
    else if (type == CUDA_R_16F) static_cast<__half *>(to)[at] = __float2half_rn(x);
    else static_cast<float *>(to)[at] = x;
}

/* To the 10 bits of fraction that TF32 has. */
float narrow(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7f800000) == 0x7f800000) return x;
    bits = (bits + 0xfff + (bits >> 13 & 1)) & 0xffffe000;
    memcpy(&x, &bits, 4);
    return x;
}

int64_t at(const layout &l, int64_t batch, int64_t row, int64_t col)
{
    return batch * l.stride + (l.order == CUBLASLT_ORDER_ROW ? row * l.ld + col : col * l.ld + row);
}

/* Bytes from the first element to after the last. */
size_t extent(const layout &l)
{
    return (size_t)(at(l, l.batch - 1, (int64_t)l.rows - 1, (int64_t)l.cols - 1) + 1) *
           size_of(l.type);
}

struct product {
    operation o;
    layout a, b, c, d;
    float alpha, beta;
    const void *in_a, *in_b, *in_c;
    void *out, *workspace;
    size_t bytes;
};

/* d[r,c] = alpha sum over k of a[r,k] b[k,c] + beta c[r,c] + bias[r], k in eight sums. */
void multiply(const product &p)
{
    enum { LANES = 8 };
    const bool ta = p.o.turn_a == CUBLAS_OP_T, tb = p.o.turn_b == CUBLAS_OP_T;
    const bool tf32 = p.o.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && p.a.type == CUDA_R_32F;
    const int64_t rows = (int64_t)p.d.rows, cols = (int64_t)p.d.cols;
    const int64_t inner = (int64_t)(ta ? p.a.rows : p.a.cols), padded = (inner + LANES - 1) / LANES;
    std::vector<float> a((size_t)(rows * padded * LANES)), b((size_t)(padded * LANES));
    if (p.workspace) memset(p.workspace, 0xff, p.bytes);
    for (int64_t n = 0; n < p.d.batch; n++) {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < inner; k++) {
                float x = load(p.in_a, p.a.type, ta ? at(p.a, n, k, r) : at(p.a, n, r, k));
                a[(size_t)(r * padded * LANES + k)] = tf32 ? narrow(x) : x;
            }
        for (int64_t c = 0; c < cols; c++) {
            for (int64_t k = 0; k < inner; k++) {
                float x = load(p.in_b, p.b.type, tb ? at(p.b, n, c, k) : at(p.b, n, k, c));
                b[(size_t)k] = tf32 ? narrow(x) : x;
            }
            for (int64_t r = 0; r < rows; r++) {
                float lanes[LANES] = {0}, sum = 0;
                const float *of_a = a.data() + r * padded * LANES;
                for (int64_t k = 0; k < padded * LANES; k += LANES)
                    for (int i = 0; i < LANES; i++) lanes[i] += of_a[k + i] * b[(size_t)(k + i)];
                for (int i = 0; i < LANES; i++) sum += lanes[i];
                sum *= p.alpha;
                if (p.beta != 0) sum += p.beta * load(p.in_c, p.c.type, at(p.c, n, r, c));
                if (p.o.epilogue == CUBLASLT_EPILOGUE_BIAS)
                    sum += load(p.o.bias, p.o.bias_type < 0 ? p.d.type : p.o.bias_type, r);
                store(p.out, p.d.type, at(p.d, n, r, c), sum);
            }
        }
    }
}

/* A number for a problem: descriptors but for pointers. */
uint64_t problem_of(const operation &o, const layout *all)
{
    uint64_t h = 0xcbf29ce484222325u;
    auto mix = [&h](uint64_t x) { h = (h ^ x) * 0x100000001b3u; };
    mix((uint64_t)o.compute), mix((uint64_t)o.turn_a), mix((uint64_t)o.turn_b);
    mix((uint64_t)o.epilogue), mix((uint64_t)o.processors);
    for (int i = 0; i < 4; i++) {
        mix((uint64_t)all[i].type), mix((uint64_t)all[i].order), mix((uint64_t)all[i].batch);
        mix(all[i].rows), mix(all[i].cols), mix((uint64_t)all[i].ld), mix((uint64_t)all[i].stride);
    }
    return h;
}

/* Descriptors that fit together, of a problem that is offered. */
cublasStatus_t check(const operation &o, const layout *all)
{
    const layout &a = all[0], &b = all[1], &c = all[2], &d = all[3];
    bool ta = o.turn_a == CUBLAS_OP_T, tb = o.turn_b == CUBLAS_OP_T;
    uint64_t rows = ta ? a.cols : a.rows, inner = ta ? a.rows : a.cols;
    if ((tb ? b.cols : b.rows) != inner || (tb ? b.rows : b.cols) != d.cols || rows != d.rows ||
        c.rows != d.rows || c.cols != d.cols || a.type != b.type || c.type != d.type ||
        a.batch != d.batch || b.batch != d.batch || c.batch != d.batch)
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((o.compute != CUBLAS_COMPUTE_32F && o.compute != CUBLAS_COMPUTE_32F_FAST_TF32) ||
        o.scale != CUDA_R_32F || !rows || !inner || !d.cols ||
        (o.epilogue != CUBLASLT_EPILOGUE_DEFAULT && o.epilogue != CUBLASLT_EPILOGUE_BIAS) ||
        (a.type == CUDA_R_32F && d.type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 4; i++) {
        uint64_t least = all[i].order == CUBLASLT_ORDER_ROW ? all[i].cols : all[i].rows;
        if (!size_of(all[i].type)) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (all[i].ld < (int64_t)least) return CUBLAS_STATUS_INVALID_VALUE;
        if ((uint64_t)all[i].ld * size_of(all[i].type) % 4) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

} /* namespace */

#define CALL(name)                                                                                 \
    std::unique_lock<std::mutex> held(lock);                                                       \
    if (int code_ = refused(#name)) return (cublasStatus_t)code_

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    CALL(cublasLtCreate);
    *handle = new cublasLtContext{current_device()};
    handles.insert(*handle);
    count(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    CALL(cublasLtDestroy);
    handles.erase(handle);
    delete handle;
    count(-1);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" int emulation_product_processors(void)
{
    std::unique_lock<std::mutex> held(lock);
    return chosen_for;
}

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

/* ---------------------------------------------------------------------------- descriptors */

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t,
                                               cublasComputeType_t compute, cudaDataType_t scale)
{
    put(desc, operation{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL,
                        -1, 0});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    CALL(cublasLtMatmulDescCreate);
    *desc = new cublasLtMatmulDescOpaque_t();
    count(1);
    return cublasLtMatmulDescInit_internal(*desc, sizeof **desc, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    CALL(cublasLtMatmulDescDestroy);
    delete desc;
    count(-1);
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> static bool take(T *to, const void *from, size_t bytes)
{
    if (bytes == sizeof *to) memcpy(to, from, bytes);
    return bytes == sizeof *to;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *from, size_t bytes)
{
    operation o = get<operation>(desc);
    int32_t host = CUBLASLT_POINTER_MODE_HOST;
    bool good = false;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: good = take(&o.turn_a, from, bytes); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: good = take(&o.turn_b, from, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: good = take(&o.epilogue, from, bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: good = take(&o.bias, from, bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: good = take(&o.bias_type, from, bytes); break;
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: good = take(&o.processors, from, bytes); break;
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        good = take(&host, from, bytes) && host == CUBLASLT_POINTER_MODE_HOST;
        break;
    default: break;
    }
    put(desc, o);
    return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t to, size_t,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld)
{
    put(to, layout{type, CUBLASLT_ORDER_COL, 1, rows, cols, ld, 0});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *to, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    CALL(cublasLtMatrixLayoutCreate);
    *to = new cublasLtMatrixLayoutOpaque_t();
    count(1);
    return cublasLtMatrixLayoutInit_internal(*to, sizeof **to, type, rows, cols, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t of)
{
    CALL(cublasLtMatrixLayoutDestroy);
    delete of;
    count(-1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t to,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *from, size_t bytes)
{
    layout l = get<layout>(to);
    bool good = false;
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER: good = take(&l.order, from, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: good = take(&l.batch, from, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: good = take(&l.stride, from, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_LD: good = take(&l.ld, from, bytes); break;
    default: break;
    }
    put(to, l);
    return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t to, size_t)
{
    put(to, preference{0, {256, 256, 256, 256}});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *to)
{
    CALL(cublasLtMatmulPreferenceCreate);
    *to = new cublasLtMatmulPreferenceOpaque_t();
    count(1);
    return cublasLtMatmulPreferenceInit_internal(*to, sizeof **to);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t of)
{
    CALL(cublasLtMatmulPreferenceDestroy);
    delete of;
    count(-1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t to,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *from, size_t bytes)
{
    preference p = get<preference>(to);
    uint32_t mask;
    bool good = false;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: good = take(&p.workspace, from, bytes); break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: good = take(&mask, from, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: good = take(&p.align[0], from, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: good = take(&p.align[1], from, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: good = take(&p.align[2], from, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: good = take(&p.align[3], from, bytes); break;
    default: break;
    }
    put(to, p);
    return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* ------------------------------------------------------------------------------- products */

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t want, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *given)
{
    CALL(cublasLtMatmulAlgoGetHeuristic);
    operation o = get<operation>(desc);
    preference p = get<preference>(want);
    layout all[] = {get<layout>(a), get<layout>(b), get<layout>(c), get<layout>(d)};
    cublasStatus_t status = check(o, all);
    *given = 0;
    chosen_for = o.processors;
    if (!is_here(handle, "cublasLtMatmulAlgoGetHeuristic")) return CUBLAS_STATUS_INVALID_VALUE;
    if (status) return status;
    for (int i = 0; i < ALGORITHMS && *given < most; i++) {
        algorithm chosen = {MARK, (uint64_t)i, i ? 0 : (uint64_t)WORKSPACE, problem_of(o, all), {}};
        cublasLtMatmulHeuristicResult_t *r = &results[*given];
        if (chosen.workspace > p.workspace) continue;
        memcpy(chosen.align, p.align, sizeof chosen.align);
        memset(r, 0, sizeof *r);
        put(&r->algo, chosen);
        r->workspaceSize = chosen.workspace;
        r->state = CUBLAS_STATUS_SUCCESS;
        r->wavesCount = 1;
        ++*given;
    }
    return *given ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b_, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                              cudaStream_t stream)
{
    CALL(cublasLtMatmul);
    operation o = get<operation>(desc);
    layout all[] = {get<layout>(a), get<layout>(b_), get<layout>(c), get<layout>(d)};
    const void *matrices[] = {A, B, C, D};
    cublasStatus_t status = check(o, all);
    product p = {o, all[0], all[1], all[2], all[3], 0, 0, A, B, C, D, NULL, 0};
    memcpy(&p.alpha, alpha, sizeof p.alpha);
    memcpy(&p.beta, beta, sizeof p.beta);
    if (!is_here(handle, "cublasLtMatmul")) return CUBLAS_STATUS_INVALID_VALUE;
    if (status) return status;
    if (algo) {
        algorithm chosen = get<algorithm>(algo);
        if (chosen.mark != MARK || chosen.problem != problem_of(o, all)) {
            found("cublasLtMatmul: the algorithm is that of another problem");
            return CUBLAS_STATUS_INVALID_VALUE;
        }
        if (chosen.workspace > bytes) {
            found("cublasLtMatmul: the algorithm needs %zu bytes of workspace, not %zu",
                  (size_t)chosen.workspace, bytes);
            return CUBLAS_STATUS_INVALID_VALUE;
        }
        for (int i = 0; i < 4; i++)
            if ((uintptr_t)matrices[i] % std::max(chosen.align[i], 1u)) {
                found("cublasLtMatmul: matrix %c lies otherwise than at multiples of %u bytes",
                      'A' + i, chosen.align[i]);
                return CUBLAS_STATUS_INVALID_VALUE;
            }
        if (chosen.workspace) p.workspace = workspace, p.bytes = bytes;
    }
    if (p.workspace && (uintptr_t)workspace % WORKSPACE_LIES) {
        found("cublasLtMatmul: the workspace is not at a multiple of %d bytes", WORKSPACE_LIES);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (p.workspace && !on_device(workspace, bytes)) {
        found("cublasLtMatmul: %zu bytes of workspace that are not the device's", bytes);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    for (int i = 0; i < 4; i++)
        if (!on_device(matrices[i], extent(all[i]))) {
            found("cublasLtMatmul: matrix %c, %zu bytes, is not in an allocation of the device",
                  'A' + i, extent(all[i]));
            return CUBLAS_STATUS_INVALID_VALUE;
        }
    if (o.epilogue == CUBLASLT_EPILOGUE_BIAS &&
        !on_device(o.bias,
                   (size_t)all[3].rows * size_of(o.bias_type < 0 ? all[3].type : o.bias_type))) {
        found("cublasLtMatmul: the bias is not in an allocation of the device");
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (add(stream, simple("cublasLtMatmul", [p]() { multiply(p); })))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    return CUBLAS_STATUS_SUCCESS;
}
