/* hipBLASLt (cuda/products.cu), loaded when a device is opened. Its types are declared here, as
 * versions 0.6 to 1.x have them, so that a build needs none of its files. Without it all products
 * are computed by the plain kernel.
 *
 * Where it splits k, it does not promise partial sums in f32, nor their order. So it gets no
 * workspace, which leaves only algorithms that do not split; the remark says so. */
#include <dlfcn.h>

typedef struct zfd_hipblas_algo {
    uint8_t data[16];
    size_t workspace;
} zfd_hipblas_algo;

typedef struct zfd_hipblas_found {
    zfd_hipblas_algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} zfd_hipblas_found;

enum {
    ZFD_HIPBLAS_NOT_SUPPORTED = 7,
    ZFD_HIPBLAS_OP_N = 111,
    ZFD_HIPBLAS_OP_T,
    ZFD_HIPBLAS_COMPUTE_32F = 2,
    ZFD_HIPBLAS_R_32F = 0, /* types of elements */
    ZFD_HIPBLAS_R_16F = 2,
    ZFD_HIPBLAS_R_16BF = 14,
    ZFD_HIPBLAS_TURN_A = 0, /* attributes of a product, */
    ZFD_HIPBLAS_TURN_B,
    ZFD_HIPBLAS_EPILOGUE,
    ZFD_HIPBLAS_BIAS_POINTER,
    ZFD_HIPBLAS_BIAS_TYPE,
    ZFD_HIPBLAS_EPILOGUE_BIAS = 4,
    ZFD_HIPBLAS_BATCH_COUNT = 0, /* of a matrix, */
    ZFD_HIPBLAS_BATCH_STEP,
    ZFD_HIPBLAS_MOST_WORKSPACE = 1 /* and of a preference */
};

/* The functions, in the order of zfd_hipblas_names. */
typedef struct zfd_hipblas {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*version)(void *handle, int *version);
    int (*operation)(void **to, int compute, int scale);
    int (*operation_free)(void *of);
    int (*operation_set)(void *of, int attribute, const void *value, size_t bytes);
    int (*layout)(void **to, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_free)(void *of);
    int (*layout_set)(void *of, int attribute, const void *value, size_t bytes);
    int (*preference)(void **to);
    int (*preference_free)(void *of);
    int (*preference_set)(void *of, int attribute, const void *value, size_t bytes);
    int (*heuristic)(void *handle, void *operation, void *a, void *b, void *c, void *d,
                     void *preference, int most, zfd_hipblas_found *results, int *count);
    int (*multiply)(void *handle, void *operation, const void *alpha, const void *A, void *a,
                    const void *B, void *b, const void *beta, const void *C, void *c, void *D,
                    void *d, const zfd_hipblas_algo *algo, void *workspace, size_t bytes,
                    cudaStream_t stream);
} zfd_hipblas;

static const char *const zfd_hipblas_names[] = {
    "Create",
    "Destroy",
    "GetVersion",
    "MatmulDescCreate",
    "MatmulDescDestroy",
    "MatmulDescSetAttribute",
    "MatrixLayoutCreate",
    "MatrixLayoutDestroy",
    "MatrixLayoutSetAttribute",
    "MatmulPreferenceCreate",
    "MatmulPreferenceDestroy",
    "MatmulPreferenceSetAttribute",
    "MatmulAlgoGetHeuristic",
    "Matmul"};

enum { ZFD_HIPBLAS_NAMES = sizeof zfd_hipblas_names / sizeof *zfd_hipblas_names };
static_assert(sizeof(zfd_hipblas) == ZFD_HIPBLAS_NAMES * sizeof(void *), "a name for each");

/* Loads the library; false where it is not there, or lacks a function. */
static bool zfd_hipblas_find(zfd_hipblas *all)
{
    static const char *const files[] = {"libhipblaslt.so.1", "libhipblaslt.so.0",
                                        "libhipblaslt.so"};
    void *of[ZFD_HIPBLAS_NAMES], *library = NULL;
    for (int i = 0; i < 3 && !library; i++) library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < ZFD_HIPBLAS_NAMES && library; i++) {
        char name[64];
        snprintf(name, sizeof name, "hipblasLt%s", zfd_hipblas_names[i]);
        of[i] = dlsym(library, name);
        if (!of[i]) (void)dlclose(library), library = NULL;
    }
    if (library) memcpy(static_cast<void *>(all), of, sizeof *all);
    return library != NULL;
}

/* Loaded once for all devices; the library stays. */
static const zfd_hipblas *zfd_hipblas_load(void)
{
    static zfd_hipblas all;
    static const bool there = zfd_hipblas_find(&all);
    return there ? &all : NULL;
}

/* What a product is described by. It is made for each call and freed after it: the library has no
 * way to put it into memory of ours. Calls are captured once, so this takes time only then. */
typedef struct zfd_hipblas_call {
    void *operation, *a, *b, *c;
} zfd_hipblas_call;

/* The library needs no descriptors between calls. */
typedef struct zfd_descriptors {
    bool made;
} zfd_descriptors;

static int zfd_hipblas_type(int64_t dtype)
{
    return dtype == ZF_BF16  ? ZFD_HIPBLAS_R_16BF
           : dtype == ZF_F16 ? ZFD_HIPBLAS_R_16F
                             : ZFD_HIPBLAS_R_32F;
}

static bool zfd_hipblas_layout(const zfd_hipblas *f, void **to, int64_t dtype, int64_t rows,
                               int64_t cols, int64_t ld, int64_t batch, int64_t step)
{
    const int32_t count = (int32_t)batch;
    return !f->layout(to, zfd_hipblas_type(dtype), (uint64_t)rows, (uint64_t)cols, ld) &&
           (batch == 1 ||
            (!f->layout_set(*to, ZFD_HIPBLAS_BATCH_COUNT, &count, sizeof count) &&
             !f->layout_set(*to, ZFD_HIPBLAS_BATCH_STEP, &step, sizeof step)));
}

static bool zfd_hipblas_set(const zfd_hipblas *f, void *operation, int attribute, int32_t value)
{
    return !f->operation_set(operation, attribute, &value, sizeof value);
}

static void zfd_hipblas_end(const zfd_hipblas *f, const zfd_hipblas_call *call)
{
    if (call->operation) f->operation_free(call->operation);
    if (call->a) f->layout_free(call->a);
    if (call->b) f->layout_free(call->b);
    if (call->c) f->layout_free(call->c);
}

/* Describes the product, with operands swapped; false where that fails. zfd_hipblas_end frees
 * it. */
static bool zfd_hipblas_begin(const zfd_hipblas *f, const zfd_gemm *g, const void *bias,
                              zfd_hipblas_call *call)
{
    memset(call, 0, sizeof *call);
    return g->batch <= INT32_MAX &&
           !f->operation(&call->operation, ZFD_HIPBLAS_COMPUTE_32F, ZFD_HIPBLAS_R_32F) &&
           zfd_hipblas_set(f, call->operation, ZFD_HIPBLAS_TURN_A,
                           g->turn_b ? ZFD_HIPBLAS_OP_T : ZFD_HIPBLAS_OP_N) &&
           zfd_hipblas_set(f, call->operation, ZFD_HIPBLAS_TURN_B,
                           g->turn_a ? ZFD_HIPBLAS_OP_T : ZFD_HIPBLAS_OP_N) &&
           (!g->bias ||
            (zfd_hipblas_set(f, call->operation, ZFD_HIPBLAS_EPILOGUE, ZFD_HIPBLAS_EPILOGUE_BIAS) &&
             zfd_hipblas_set(f, call->operation, ZFD_HIPBLAS_BIAS_TYPE,
                             zfd_hipblas_type(g->from)) &&
             !f->operation_set(call->operation, ZFD_HIPBLAS_BIAS_POINTER, &bias, sizeof bias))) &&
           zfd_hipblas_layout(f, &call->b, g->from, g->turn_b ? g->k : g->n,
                              g->turn_b ? g->n : g->k, g->b_row, g->batch, g->b_batch) &&
           zfd_hipblas_layout(f, &call->a, g->from, g->turn_a ? g->m : g->k,
                              g->turn_a ? g->k : g->m, g->a_row, g->batch, g->a_batch) &&
           zfd_hipblas_layout(f, &call->c, g->to, g->n, g->m, g->c_row, g->batch, g->c_batch);
}

static zf_status zfd_hipblas_open(zfd_device *d, zf_error *error)
{
    const zfd_hipblas *f = zfd_hipblas_load();
    int code;
    if (!f) return ZF_OK;
    code = f->create(&d->blas);
    if (!code) return ZF_OK;
    d->blas = NULL;
    return zfd_cuda_fail(error, ZF_ERR_BACKEND, "zf_cuda_backend: hipblasLtCreate: status %d",
                         code);
}

static void zfd_hipblas_close(zfd_device *d) { (void)zfd_hipblas_load()->destroy(d->blas); }

static unsigned long long zfd_hipblas_version(const zfd_device *d)
{
    int version = 0;
    if (d->blas) (void)zfd_hipblas_load()->version(d->blas, &version);
    return (unsigned long long)version;
}

static const char *zfd_hipblas_remark(const zfd_device *d)
{
    if (d->blas)
        return "products are not split along k: hipBLASLt does not promise partial sums in f32";
    return d->cores == ZFD_NO_CORES
               ? "products run by a plain kernel, which is slow: libhipblaslt.so was not found"
               : "products run by a simple kernel, which is slower than hipBLASLt's: "
                 "libhipblaslt.so was not found";
}

static bool zfd_hipblas_describe(const zfd_gemm *g, int target, zfd_descriptors *to)
{
    (void)g, (void)target; /* it cannot leave processors to others */
    to->made = true;
    return true;
}

static int zfd_hipblas_recommend(const zfd_device *d, const zfd_gemm *g, zfd_descriptors *,
                                 uint64_t, zfd_algo *results, int most)
{
    enum { MOST = 16 };
    const zfd_hipblas *f = zfd_hipblas_load();
    zfd_hipblas_found found[MOST];
    zfd_hipblas_call call;
    const uint64_t none = 0;
    void *want = NULL;
    int count = 0, good = 0;
    if (!d->blas) return 0;
    memset(found, 0, sizeof found);
    if (!zfd_hipblas_begin(f, g, reinterpret_cast<void *>((uintptr_t)g->lies), &call) ||
        f->preference(&want) ||
        f->preference_set(want, ZFD_HIPBLAS_MOST_WORKSPACE, &none, sizeof none) ||
        f->heuristic(d->blas, call.operation, call.b, call.a, call.c, call.c, want,
                     most < MOST ? most : MOST, found, &count))
        count = 0;
    if (want) f->preference_free(want);
    zfd_hipblas_end(f, &call);
    for (int i = 0; i < count; i++) {
        if (found[i].state || found[i].workspace) continue;
        memset(&results[good], 0, sizeof *results);
        memcpy(results[good++].words, &found[i].algo, sizeof found[i].algo);
    }
    return good;
}

static const char *zfd_hipblas_multiply(const zfd_device *d, cudaStream_t stream, const zfd_gemm *g,
                                        zfd_descriptors *, const zfd_algo *algo, const void *a,
                                        const void *b, void *c, const void *added, const void *bias,
                                        float alpha, void *, size_t)
{
    const zfd_hipblas *f = zfd_hipblas_load();
    const float beta = added ? 1.0f : 0.0f;
    zfd_hipblas_algo by;
    zfd_hipblas_call call;
    int code = ZFD_HIPBLAS_NOT_SUPPORTED;
    memcpy(&by, algo->words, sizeof by);
    if (zfd_hipblas_begin(f, g, bias, &call))
        code = f->multiply(d->blas, call.operation, &alpha, b, call.b, a, call.a, &beta,
                           added ? added : c, call.c, c, call.c, &by, NULL, 0, stream);
    zfd_hipblas_end(f, &call);
    if (code == ZFD_HIPBLAS_NOT_SUPPORTED) return zfd_unable;
    return code ? "hipblasLtMatmul failed" : NULL;
}

static const zfd_library zfd_blas = {"hipBLASLt",          zfd_hipblas_open,
                                     zfd_hipblas_close,    zfd_hipblas_version,
                                     zfd_hipblas_remark,   zfd_hipblas_describe,
                                     zfd_hipblas_recommend, zfd_hipblas_multiply};
