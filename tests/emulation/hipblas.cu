/* cuda/hip/blas.cu against a library with hipBLASLt's calls, which computes on the host at once. */
#include "planted.h"
#include "zeroflow.h"

#include <dlfcn.h>
#include <stdarg.h>

#include "cuda/gpu.cu"
#include "cuda/launch.cu"
#include "cuda/element.cu"
#include "cuda/products.cu"

static void *library_open(const char *name, int) { return strstr(name, ".0") ? &name : NULL; }
static void *library_symbol(void *, const char *name);
static int library_close(void *) { return 0; }
#define dlopen  library_open
#define dlsym   library_symbol
#define dlclose library_close
#include "cuda/hip/blas.cu"
#undef dlopen
#undef dlsym
#undef dlclose

namespace
{

struct matrix {
    int type;
    uint64_t rows, cols;
    int64_t ld, step;
    int32_t batch;
};
struct operation {
    int32_t turn_a, turn_b, epilogue, bias_type;
    const void *bias;
};

int live, broken;        /* descriptors that were not freed; what calls return that fail */
uint64_t most_workspace; /* as asked for last */
const char *lacks;       /* the function that the library does not have */

int create(void **to)
{
    *to = &live;
    return broken;
}
int destroy(void *) { return 0; }
int version(void *, int *to)
{
    *to = 1203;
    return 0;
}
int operation_new(void **to, int compute, int scale)
{
    live++;
    *to = new operation{111, 111, 1, -1, NULL};
    return compute != 2 || scale != 0;
}
int operation_free(void *of)
{
    live--;
    delete static_cast<operation *>(of);
    return 0;
}
int operation_set(void *of, int attribute, const void *from, size_t bytes)
{
    operation *o = static_cast<operation *>(of);
    int32_t *const words[] = {&o->turn_a, &o->turn_b, &o->epilogue, NULL, &o->bias_type};
    if (attribute == 3 && bytes == sizeof o->bias) memcpy(&o->bias, from, bytes);
    else if (attribute < 0 || attribute > 4 || attribute == 3 || bytes != 4) return 3;
    else memcpy(words[attribute], from, bytes);
    return 0;
}
int layout_new(void **to, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    live++;
    *to = new matrix{type, rows, cols, ld, 0, 1};
    return 0;
}
int layout_free(void *of)
{
    live--;
    delete static_cast<matrix *>(of);
    return 0;
}
int layout_set(void *of, int attribute, const void *from, size_t bytes)
{
    matrix *m = static_cast<matrix *>(of);
    if (attribute == 0 && bytes == 4) memcpy(&m->batch, from, bytes);
    else if (attribute == 1 && bytes == 8) memcpy(&m->step, from, bytes);
    else return 3;
    return 0;
}
int preference_new(void **to)
{
    live++;
    *to = &most_workspace;
    return 0;
}
int preference_free(void *)
{
    live--;
    return 0;
}
int preference_set(void *, int attribute, const void *from, size_t bytes)
{
    if (attribute != 1 || bytes != sizeof most_workspace) return 3;
    memcpy(&most_workspace, from, bytes);
    return 0;
}

/* Of four: the second fails, and the third needs a workspace. */
int heuristic(void *, void *, void *, void *, void *, void *, void *, int most,
              zfd_hipblas_found *results, int *count)
{
    for (*count = 0; *count < 4 && *count < most; ++*count) {
        results[*count] = {};
        results[*count].algo.data[0] = (uint8_t)(7 + *count);
        results[*count].state = *count == 1 ? 7 : 0;
        results[*count].workspace = *count == 2 ? 64 : 0;
    }
    return 0;
}

float element(const matrix *m, const void *data, int64_t at)
{
    if (m->type == 0) return static_cast<const float *>(data)[at];
    if (m->type == 2) return zfd_to_f32(static_cast<const zfd_f16 *>(data)[at]);
    return zfd_to_f32(static_cast<const zfd_bf16 *>(data)[at]);
}

/* Matrices are column-major. */
int multiply(void *, void *of, const void *alpha, const void *A, void *a_, const void *B, void *b_,
             const void *beta, const void *C, void *c_, void *D, void *d_,
             const zfd_hipblas_algo *algo, void *workspace, size_t bytes, cudaStream_t)
{
    const operation *o = static_cast<operation *>(of);
    const matrix *a = static_cast<matrix *>(a_), *b = static_cast<matrix *>(b_),
                 *c = static_cast<matrix *>(c_), *d = static_cast<matrix *>(d_);
    const uint64_t inner = o->turn_a == 112 ? a->rows : a->cols;
    if (broken) return broken;
    if (algo->data[0] != 7 || workspace || bytes || c != d) return 3;
    if ((o->turn_b == 112 ? b->cols : b->rows) != inner) return 3;
    for (int64_t n = 0; n < d->batch; n++)
        for (int64_t col = 0; col < (int64_t)d->cols; col++)
            for (int64_t row = 0; row < (int64_t)d->rows; row++) {
                const int64_t at = n * d->step + col * d->ld + row;
                float sum = 0;
                for (int64_t k = 0; k < (int64_t)inner; k++)
                    sum += element(a, A, n * a->step + (o->turn_a == 112 ? row * a->ld + k
                                                                         : k * a->ld + row)) *
                           element(b, B, n * b->step + (o->turn_b == 112 ? k * b->ld + col
                                                                         : col * b->ld + k));
                sum *= *static_cast<const float *>(alpha);
                if (o->epilogue == 4) {
                    const matrix bias = {o->bias_type, 0, 0, 0, 0, 0};
                    sum += element(&bias, o->bias, row);
                }
                if (*static_cast<const float *>(beta) != 0) sum += element(c, C, at);
                if (d->type == 0) static_cast<float *>(D)[at] = sum;
                else if (d->type == 2) static_cast<zfd_f16 *>(D)[at] = zfd_from_f32<zfd_f16>(sum);
                else static_cast<zfd_bf16 *>(D)[at] = zfd_from_f32<zfd_bf16>(sum);
            }
    return 0;
}

enum { M = 3, N = 4, K = 5, BATCH = 2 };

/* Small whole numbers, of which every dtype has all sums. */
float number(int i) { return (float)(i * 7 % 5 - 2); }

template <class T> const char *product(zf_dtype dtype, bool turn_a, bool turn_b, bool adds)
{
    static T a[BATCH * M * K], b[BATCH * K * N], c[BATCH * M * N], bias[N], added[BATCH * M * N];
    zfd_gemm g = {};
    zfd_device d = {};
    zfd_descriptors descriptors;
    zfd_algo found[16];
    zf_error error = {ZF_OK, ""};
    g.m = M, g.n = N, g.k = K, g.batch = BATCH;
    g.a_row = turn_a ? M : K, g.b_row = turn_b ? K : N, g.c_row = N;
    g.a_batch = M * K, g.b_batch = K * N, g.c_batch = M * N;
    g.turn_a = turn_a, g.turn_b = turn_b, g.from = g.to = dtype, g.bias = adds, g.lies = 16;
    for (int i = 0; i < BATCH * M * K; i++) a[i] = zfd_from_f32<T>(number(i));
    for (int i = 0; i < BATCH * K * N; i++) b[i] = zfd_from_f32<T>(number(i + 3));
    for (int i = 0; i < BATCH * M * N; i++) added[i] = zfd_from_f32<T>(number(i + 1));
    for (int i = 0; i < N; i++) bias[i] = zfd_from_f32<T>(number(i + 2));
    if (zfd_blas.open(&d, &error) || !d.blas) return "it does not open";
    if (zfd_blas.version(&d) != 1203) return "another version";
    if (!strstr(zfd_blas.remark(&d), "are not split along k")) return "what is said of split k";
    most_workspace = 1;
    if (!zfd_blas.describe(&g, 0, &descriptors) ||
        zfd_blas.recommend(&d, &g, &descriptors, 1 << 20, found, 16) != 2 || most_workspace)
        return "an algorithm that takes a workspace, or fails";
    const char *failed = zfd_blas.multiply(&d, NULL, &g, &descriptors, found, a, b, c,
                                           adds ? added : NULL, adds ? bias : NULL, 2, NULL, 0);
    if (failed) return failed;
    for (int n = 0; n < BATCH; n++)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                float sum = 0;
                for (int k = 0; k < K; k++)
                    sum += number(n * M * K + (turn_a ? k * M + i : i * K + k)) *
                           number(3 + n * K * N + (turn_b ? j * K + k : k * N + j));
                sum = 2 * sum + (adds ? number(j + 2) + number(n * M * N + i * N + j + 1) : 0);
                if (zfd_to_f32(c[(n * M + i) * N + j]) != sum) return "an element of the product";
            }
    broken = 7;
    failed = zfd_blas.multiply(&d, NULL, &g, &descriptors, found, a, b, c, NULL, bias, 1, NULL, 0);
    broken = 6;
    const char *said =
        zfd_blas.multiply(&d, NULL, &g, &descriptors, found, a, b, c, NULL, bias, 1, NULL, 0);
    broken = 0;
    zfd_blas.close(&d);
    if (failed != zfd_unable || !said || strcmp(said, "hipblasLtMatmul failed"))
        return "a product that is not supported, or fails";
    return live ? "a descriptor is not freed" : "";
}

} /* namespace */

static void *library_symbol(void *, const char *name)
{
    static const struct {
        const char *name;
        void *of;
    } all[] = {{"Create", (void *)create},
               {"Destroy", (void *)destroy},
               {"GetVersion", (void *)version},
               {"MatmulDescCreate", (void *)operation_new},
               {"MatmulDescDestroy", (void *)operation_free},
               {"MatmulDescSetAttribute", (void *)operation_set},
               {"MatrixLayoutCreate", (void *)layout_new},
               {"MatrixLayoutDestroy", (void *)layout_free},
               {"MatrixLayoutSetAttribute", (void *)layout_set},
               {"MatmulPreferenceCreate", (void *)preference_new},
               {"MatmulPreferenceDestroy", (void *)preference_free},
               {"MatmulPreferenceSetAttribute", (void *)preference_set},
               {"MatmulAlgoGetHeuristic", (void *)heuristic},
               {"Matmul", (void *)multiply}};
    for (const auto &f : all)
        if (!strncmp(name, "hipblasLt", 9) && !strcmp(name + 9, f.name) &&
            !(lacks && !strcmp(lacks, f.name)))
            return f.of;
    return NULL;
}

extern "C" const char *planted_hipblas(void)
{
    zfd_hipblas some;
    zfd_device d = {};
    zf_error error = {ZF_OK, ""};
    broken = 5;
    (void)zfd_blas.open(&d, &error);
    broken = 0;
    if (strcmp(error.text, "zf_cuda_backend: hipblasLtCreate: status 5"))
        return "a library that does not open";
    lacks = "MatmulPreferenceCreate";
    if (zfd_hipblas_find(&some)) return "a library without one of the functions";
    lacks = NULL;
    for (int way = 0; way < 8; way++) {
        const bool turn_a = way & 1, turn_b = way & 2, adds = way & 4;
        const char *wrong = product<float>(ZF_F32, turn_a, turn_b, adds);
        if (!*wrong) wrong = product<zfd_f16>(ZF_F16, turn_a, turn_b, adds);
        if (!*wrong) wrong = product<zfd_bf16>(ZF_BF16, turn_a, turn_b, adds);
        if (*wrong) return wrong;
    }
    return "";
}
