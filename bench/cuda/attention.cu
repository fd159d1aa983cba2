/* Attention on CUDA: what its kernels give compared with a plain one in f32, and how long they
 * take.
 *
 *     make build/cuda/attention CUDA_ARCHS=90
 *     build/cuda/attention [check] [time] [--shape TEXT] [--way TEXT] [--rounds N]
 *
 * --shape, --way: those whose name has the text. check: for each shape, the largest error of y and
 * lse over the largest number, and whether a second run gives the same bits. time: medians by
 * cudaEvent. TFLOP/s count two products of the scores that are seen. Operands are random. */
#include "zeroflow.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cuda/gpu.cu"
#include "cuda/launch.cu"
#include "cuda/element.cu"
#include "cuda/reduce.cu"
#include "cuda/random.cu"
#include "cuda/cores/mma.cu"
#include "cuda/cores/wgmma.cu"
#include "ops/binary.cu"
#include "ops/move.cu"
#include "ops/block_mask.cu"
#include "ops/attention.cu"
#include "ops/attention_plain.cu"
#include "ops/attention_mma.cu"
#include "ops/attention_sm90.cu"
#include "ops/attention_grad_sm90.cu"
#include "ops/attention_launch.cu"

#define CHECK(call) check((call), #call)
static void check(cudaError_t code, const char *what)
{
    if (code == cudaSuccess) return;
    fprintf(stderr, "attention: %s: %s\n", what, cudaGetErrorString(code));
    exit(1);
}

enum form { PACKED, SEPARATE };
enum bias_form { NONE, OF_KEYS /* [b,1,1,n] */, OF_ALL /* [b,h,m,n] */ };

typedef struct shape {
    const char *name;
    int batch, heads, m, n, d;
    enum form form;
    enum bias_form bias;
    double p;
    bool causal, f16;
} shape;

static const shape checked[] = {
    {"plain", 2, 2, 128, 128, 64, PACKED, NONE, 0, false, false},
    {"plain f16", 2, 2, 128, 128, 64, PACKED, NONE, 0, false, true},
    {"one tile", 1, 3, 64, 64, 64, PACKED, NONE, 0, false, false},
    {"causal", 2, 3, 256, 256, 64, PACKED, NONE, 0, true, false},
    {"causal tails", 2, 3, 333, 333, 64, PACKED, NONE, 0, true, false},
    {"tails", 2, 3, 77, 203, 64, SEPARATE, NONE, 0, false, false},
    {"tails f16 dropout", 2, 3, 77, 200, 64, SEPARATE, OF_KEYS, 0.125, false, true},
    {"causal m < n", 1, 2, 70, 300, 64, SEPARATE, NONE, 0, true, false},
    {"causal m < n, bias", 1, 2, 200, 264, 64, SEPARATE, OF_ALL, 0.125, true, false},
    {"one query", 3, 2, 1, 136, 64, SEPARATE, OF_KEYS, 0, false, false},
    {"bias of keys", 1, 2, 130, 256, 64, SEPARATE, OF_KEYS, 0, false, false},
    {"bias of all", 2, 2, 200, 200, 64, PACKED, OF_ALL, 0, false, false},
    {"dropout", 2, 2, 256, 256, 64, PACKED, NONE, 0.125, false, false},
    {"BERT", 2, 4, 512, 512, 64, PACKED, OF_KEYS, 0.125, false, false},
    {"BERT 128 f16", 3, 4, 128, 128, 64, PACKED, OF_KEYS, 0.5, false, true},
    {"GPT dropout", 1, 3, 1024, 1024, 64, PACKED, NONE, 0.125, true, false},
};
static const shape timed[] = {
    {"BERT 64 x 512", 64, 16, 512, 512, 64, PACKED, OF_KEYS, 0.125, false, false},
    {"BERT 64 x 512, no dropout", 64, 16, 512, 512, 64, PACKED, OF_KEYS, 0, false, false},
    {"BERT 256 x 128", 256, 16, 128, 128, 64, PACKED, OF_KEYS, 0.125, false, false},
    {"GPT 32 x 1024", 32, 12, 1024, 1024, 64, PACKED, NONE, 0, true, false},
    {"GPT 32 x 1024, dropout", 32, 12, 1024, 1024, 64, PACKED, NONE, 0.125, true, false},
    {"full 8 x 4096", 8, 16, 4096, 4096, 64, PACKED, NONE, 0, false, false},
    {"bias of all 8 x 512", 8, 16, 512, 512, 64, PACKED, OF_ALL, 0, false, false},
};

/* ------------------------------------------------------------------------- plain reference */

/* A block a query. Shared: n + 32 floats. */
template <class T>
__global__ void plain(const zfd_heads a, float *y, float *lse)
{
    ZFD_SHARED(float, room);
    float *p = room + 32;
    const int query = (int)(blockIdx.x % (unsigned)a.m);
    const zfd_one_head head = zfd_one_head_of(a, (int)(blockIdx.x / (unsigned)a.m));
    const zfd_dropper drop = zfd_dropper_of(a.drop);
    const T *q = static_cast<const T *>(a.q) + zfd_token_at(a, head, a.m, query, a.row);
    const T *k = static_cast<const T *>(a.k) + zfd_token_at(a, head, a.n, 0, a.row);
    const T *v = static_cast<const T *>(a.v) + zfd_token_at(a, head, a.n, 0, a.row);
    const int sees = zfd_sees(a, query);
    float high = -INFINITY, sum = 0;
    for (int n = (int)threadIdx.x; n < sees; n += (int)blockDim.x) {
        float x = 0;
        for (int i = 0; i < a.d; i++)
            x = fmaf(zfd_to_f32(q[i]), zfd_to_f32(k[n * a.row + i]), x);
        x *= a.scale * 0.693147181f;
        if (a.bias) x += zfd_to_f32(zfd_bias_row<T>(a, head, query)[n * a.bias_step[3]]);
        p[n] = x;
        high = fmaxf(high, x);
    }
    high = zfd_block_max(high, room);
    for (int n = (int)threadIdx.x; n < sees; n += (int)blockDim.x) {
        p[n] = high == -INFINITY ? 0 : expf(p[n] - high);
        sum += p[n];
        p[n] *= zfd_kept(drop, zfd_score_number(a, head, query) + (unsigned)n);
    }
    sum = zfd_block_sum(sum, room);
    __syncthreads();
    if (threadIdx.x == 0) lse[(int64_t)head.number * a.m + query] = high + logf(sum);
    for (int i = (int)threadIdx.x; i < a.d; i += (int)blockDim.x) {
        float x = 0;
        for (int n = 0; n < sees; n++) x = fmaf(p[n], zfd_to_f32(v[n * a.row + i]), x);
        y[zfd_token_at(a, head, a.m, query, a.heads * a.d) + i] =
            sum == 0 ? 0 : x / sum;
    }
}

/* -------------------------------------------------------------------------------- a problem */

/* In memory of the device; freed at once when the shape is done. */
struct problem {
    const shape *of;
    zfd_device device;
    zf_run run;
    zf_attribute attributes[5];
    zf_array args[4], saved[1];
    zf_launch launch;
    zf_error error;
    std::vector<void *> memory;

    template <class T> T *take(int64_t count)
    {
        void *at = NULL;
        CHECK(cudaMalloc(&at, (size_t)count * sizeof(T)));
        memory.push_back(at);
        return static_cast<T *>(at);
    }
    /* Numbers of 16 bits, between -1 and 1; of a bias, every fifth is -inf. */
    void *random(int64_t count, uint32_t state, bool is_bias)
    {
        std::vector<uint16_t> host((size_t)count);
        for (uint16_t &x : host) {
            state = state * 1664525u + 1013904223u;
            const float f = (float)(int32_t)state * 4.6566e-10f;
            const bool hidden = is_bias && state >> 8 & 1 && state >> 9 & 1;
            const float value = hidden ? -INFINITY : f * (is_bias ? 1 : 1.7f);
            if (of->f16) {
                __half h = __float2half(value);
                memcpy(&x, &h, 2);
            } else {
                __nv_bfloat16 h = __float2bfloat16(value);
                memcpy(&x, &h, 2);
            }
        }
        uint16_t *at = take<uint16_t>(count);
        CHECK(cudaMemcpy(at, host.data(), (size_t)count * 2, cudaMemcpyHostToDevice));
        return at;
    }
    zf_array array(void *data, zf_dtype dtype, std::vector<int64_t> dims)
    {
        zf_array x;
        memset(&x, 0, sizeof x);
        x.data = data, x.dtype = dtype, x.shape.rank = (int)dims.size();
        for (size_t i = 0; i < dims.size(); i++) x.shape.dims[i] = dims[i];
        return x;
    }
    explicit problem(const shape *s) : of(s)
    {
        const int64_t b = s->batch, h = (int64_t)s->heads * s->d, m = s->m, n = s->n;
        const zf_dtype dtype = s->f16 ? ZF_F16 : ZF_BF16;
        int count = 0, number = 0;
        memset(&device, 0, sizeof device);
        memset(&launch, 0, sizeof launch);
        memset(&error, 0, sizeof error);
        CHECK(cudaGetDevice(&number));
        CHECK(cudaDeviceGetAttribute(&device.processors, cudaDevAttrMultiProcessorCount, number));
        CHECK(cudaDeviceGetAttribute(&device.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                     number));
        memset(&run, 0, sizeof run);
        run.seed = 0x123456789abcdef, run.step = 7, run.world = 2, run.slot = 1;
        device.run = take<zf_run>(1);
        CHECK(cudaMemcpy(device.run, &run, sizeof run, cudaMemcpyHostToDevice));
        if (s->form == PACKED) {
            args[count++] = array(random(b * m * 3 * h, 1, false), dtype, {b, m, 3 * h});
        } else {
            args[count++] = array(random(b * m * h, 1, false), dtype, {b, m, h});
            args[count++] = array(random(b * n * h, 2, false), dtype, {b, n, h});
            args[count++] = array(random(b * n * h, 3, false), dtype, {b, n, h});
        }
        if (s->bias == OF_KEYS)
            args[count++] = array(random(b * n, 4, true), dtype, {b, 1, 1, n});
        if (s->bias == OF_ALL)
            args[count++] =
                array(random(b * s->heads * m * n, 4, true), dtype, {b, s->heads, m, n});
        attributes[0].f = s->p, attributes[1].i = 3, attributes[2].i = s->heads;
        attributes[3].f = 1 / sqrt((double)s->d), attributes[4].i = s->causal;
        launch.op = ZF_OP_attention;
        launch.arg_count = count, launch.args = args;
        launch.out = array(take<uint16_t>(b * m * h), dtype, {b, m, h});
        saved[0] = array(take<float>(b * s->heads * m), ZF_F32, {b, s->heads, m});
        launch.saved = saved, launch.attributes = attributes;
        launch.run = &run, launch.backend = &device, launch.error = &error;
    }
    ~problem()
    {
        for (void *at : memory) cudaFree(at);
    }
    void ok()
    {
        if (error.status) fprintf(stderr, "attention: %s: %s\n", of->name, error.text), exit(1);
        CHECK(cudaGetLastError());
    }
    int64_t y_count() const { return (int64_t)of->batch * of->m * of->heads * of->d; }
    int64_t rows() const { return (int64_t)of->batch * of->heads * of->m; }
    /* Scores that are seen. */
    double scores() const
    {
        double of_head = 0;
        for (int i = 0; i < of->m; i++)
            of_head += of->causal ? std::max(0, std::min(of->n, i + 1 + of->n - of->m)) : of->n;
        return of_head * of->batch * of->heads;
    }
};

/* A way to run it. */
typedef struct way {
    const char *name;
    void (*run)(problem *);
} way;

static void forward(problem *p, bool wgmma)
{
    p->device.wgmma = wgmma;
    (void)zfd_cuda_attention(&p->launch);
    p->ok();
}
static void forward_mma(problem *p) { forward(p, false); }
static void forward_wgmma(problem *p) { forward(p, true); }

static const way ways[] = {{"mma", forward_mma}, {"wgmma", forward_wgmma}};

/* ------------------------------------------------------------------------------------ check */

static float number_of(uint16_t x, bool f16)
{
    __half h;
    __nv_bfloat16 b;
    memcpy(static_cast<void *>(&h), &x, 2), memcpy(static_cast<void *>(&b), &x, 2);
    return f16 ? __half2float(h) : __bfloat162float(b);
}

static void check_shape(const shape *s, const char *by_way)
{
    problem p(s);
    zfd_heads a;
    const size_t count = (size_t)p.y_count(), rows = (size_t)p.rows();
    float *y = p.take<float>(p.y_count()), *lse = p.take<float>(p.rows());
    std::vector<uint16_t> got(count), again(count);
    std::vector<float> want(count), got_lse(rows), again_lse(rows), want_lse(rows);
    if (zfd_heads_of(&p.launch, 0, &a)) p.ok();
    for (const way &w : ways) {
        if (!strstr(w.name, by_way)) continue;
        const size_t bytes = sizeof(float) * (size_t)(64 + s->n);
        double worst = 0, worst_lse = 0, most = 0, squares = 0, all = 0;
        if (s->f16)
            ZFD_LAUNCH(plain<zfd_f16>, (unsigned)rows, 128, bytes, NULL, a, y, lse);
        else ZFD_LAUNCH(plain<zfd_bf16>, (unsigned)rows, 128, bytes, NULL, a, y, lse);
        CHECK(cudaMemcpy(want.data(), y, count * 4, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(want_lse.data(), lse, rows * 4, cudaMemcpyDeviceToHost));
        for (int turn = 0; turn < 2; turn++) {
            CHECK(cudaMemset(p.launch.out.data, 0xff, count * 2));
            CHECK(cudaMemset(p.saved[0].data, 0xff, rows * 4));
            w.run(&p);
            CHECK(cudaDeviceSynchronize());
            CHECK(cudaMemcpy(turn ? again.data() : got.data(), p.launch.out.data, count * 2,
                             cudaMemcpyDeviceToHost));
            CHECK(cudaMemcpy(turn ? again_lse.data() : got_lse.data(), p.saved[0].data, rows * 4,
                             cudaMemcpyDeviceToHost));
        }
        for (size_t i = 0; i < count; i++) {
            const double x = number_of(got[i], s->f16), by = fabs(x - want[i]);
            worst = by <= worst ? worst : by; /* and NaN */
            most = std::max(most, fabs((double)want[i]));
            squares += by * by, all += (double)want[i] * want[i];
        }
        for (size_t i = 0; i < rows; i++) {
            const double by = got_lse[i] == want_lse[i] ? 0 : fabs(got_lse[i] - want_lse[i]);
            worst_lse = by <= worst_lse ? worst_lse : by;
        }
        const bool same = got == again && !memcmp(got_lse.data(), again_lse.data(), rows * 4);
        printf("%-28s %-8s y: max %.1e of %.2g, rms %.1e; lse %.1e; %s %s\n", s->name, w.name,
               worst, most, sqrt(squares / all), worst_lse, same ? "same bits" : "BITS DIFFER",
               sqrt(squares / all) < 1e-2 && worst_lse < 1e-3 ? "" : "WRONG");
        fflush(stdout);
    }
}

/* ------------------------------------------------------------------------------------- time */

static void time_shape(const shape *s, const char *by_way, int rounds)
{
    problem p(s);
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (const way &w : ways) {
        if (!strstr(w.name, by_way)) continue;
        std::vector<float> ms((size_t)rounds);
        for (int i = 0; i < 3; i++) w.run(&p);
        for (float &x : ms) {
            CHECK(cudaEventRecord(begin));
            w.run(&p);
            CHECK(cudaEventRecord(end));
            CHECK(cudaEventSynchronize(end));
            CHECK(cudaEventElapsedTime(&x, begin, end));
        }
        std::sort(ms.begin(), ms.end());
        printf("%-28s %-8s %8.1f us  %6.1f TFLOP/s\n", s->name, w.name, 1e3 * ms[ms.size() / 2],
               4 * s->d * p.scores() / ms[ms.size() / 2] * 1e-9);
        fflush(stdout);
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
}

int main(int count, char **args)
{
    bool checks = false, times = false;
    const char *only = "", *by = "";
    int rounds = 30;
    for (int i = 1; i < count; i++) {
        if (!strcmp(args[i], "check")) checks = true;
        else if (!strcmp(args[i], "time")) times = true;
        else if (!strcmp(args[i], "--rounds") && i + 1 < count) rounds = atoi(args[++i]);
        else if (!strcmp(args[i], "--shape") && i + 1 < count) only = args[++i];
        else if (!strcmp(args[i], "--way") && i + 1 < count) by = args[++i];
        else {
            fprintf(stderr, "attention: what is \"%s\"?\n", args[i]);
            return 2;
        }
    }
    if (!checks && !times) checks = times = true;
    for (const shape &s : checked)
        if (checks && strstr(s.name, only)) check_shape(&s, by);
    for (const shape &s : timed)
        if (times && strstr(s.name, only)) time_shape(&s, by, rounds > 0 ? rounds : 1);
    return 0;
}
