/* Small programs for the device, each right or, when asked, with a mistake in it that the emulation
 * must find (found.c). They return what the device made. */
#include "planted.h"

#include <cublasLt.h>

enum { THREADS = 96, WARP = 32 };

static __global__ void fill_with(float *out, int count, float value)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) out[i] = value;
}

/* ------------------------------------------------------------------------------- in a block */

/* out[i] = x[count - 1 - i], through shared memory, twice. */
static __global__ void reverse(float *out, const float *x, bool first_barrier, bool second_barrier)
{
    ZFD_SHARED(float, kept);
    int i = (int)threadIdx.x, n = (int)blockDim.x;
    float mine = x[i];
    for (int round = 0; round < 3; round++) {
        kept[i] = mine;
        if (first_barrier) __syncthreads();
        mine = kept[n - 1 - i];
        if (second_barrier) __syncthreads();
    }
    out[i] = mine;
}

static __global__ void sum_of_warp(float *out, bool lane_leaves)
{
    float x = (float)threadIdx.x;
    if (lane_leaves && threadIdx.x == 5) return;
    for (int by = WARP / 2; by; by /= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
    out[threadIdx.x] = x;
}

static __global__ void wait_in_two_places(float *out, bool apart)
{
    if (apart && threadIdx.x >= WARP) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}

static __global__ void leave_before_the_barrier(float *out, bool leaves)
{
    if (leaves && threadIdx.x == 40) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

static __global__ void mask_without_its_lane(float *out, bool without)
{
    unsigned mask = without && threadIdx.x < 2 ? 2 : 3;
    if (threadIdx.x < 2) out[threadIdx.x] = (float)__ballot_sync(mask, 1);
}

static __global__ void write_next_to(float *out, int by) { out[by + (int)threadIdx.x] = 1; }

static __global__ void write_next_to_shared(float *out, int by)
{
    ZFD_SHARED(float, kept);
    kept[(int)threadIdx.x + by] = 1;
    __syncthreads();
    out[threadIdx.x] = kept[threadIdx.x];
}

/* Runs a kernel of one block, whose results are given to `out`. */
template <class F> static int on_device(float *out, int count, F launch)
{
    float *memory = NULL;
    cudaError_t code = cudaMalloc(&memory, (size_t)count * sizeof *memory);
    if (!code) launch(memory);
    if (!code) code = cudaGetLastError();
    if (!code) code = cudaDeviceSynchronize();
    if (!code)
        code = cudaMemcpy(out, memory, (size_t)count * sizeof *memory, cudaMemcpyDeviceToHost);
    cudaFree(memory);
    return code;
}

extern "C" int planted_reverse(float *out, int first_barrier, int second_barrier)
{
    float x[THREADS], *in = NULL;
    for (int i = 0; i < THREADS; i++) x[i] = (float)i;
    cudaMalloc(&in, sizeof x);
    cudaMemcpy(in, x, sizeof x, cudaMemcpyHostToDevice);
    int code = on_device(out, THREADS, [=](float *to) {
        ZFD_LAUNCH(reverse, 1, THREADS, sizeof(float) * THREADS, NULL, to, in, first_barrier != 0,
                   second_barrier != 0);
    });
    cudaFree(in);
    return code;
}

extern "C" int planted_warp(float *out, int leaves)
{
    return on_device(
        out, WARP, [=](float *to) { ZFD_LAUNCH(sum_of_warp, 1, WARP, 0, NULL, to, leaves != 0); });
}

extern "C" int planted_barrier(float *out, int kind)
{
    return on_device(out, THREADS, [=](float *to) {
        if (kind & 2)
            ZFD_LAUNCH(leave_before_the_barrier, 1, THREADS, 0, NULL, to, (kind & 1) != 0);
        else ZFD_LAUNCH(wait_in_two_places, 1, THREADS, 0, NULL, to, (kind & 1) != 0);
    });
}

extern "C" int planted_mask(float *out, int without)
{
    return on_device(out, 2, [=](float *to) {
        ZFD_LAUNCH(mask_without_its_lane, 1, WARP, 0, NULL, to, without != 0);
    });
}

extern "C" int planted_write(float *out, int by, int shared)
{
    return on_device(out, WARP, [=](float *to) {
        if (shared) ZFD_LAUNCH(write_next_to_shared, 1, WARP, sizeof(float) * WARP, NULL, to, by);
        else ZFD_LAUNCH(write_next_to, 1, WARP, 0, NULL, to, by);
    });
}

extern "C" int planted_read(float *out, int by_host)
{
    float *x = NULL;
    int code = cudaMalloc(&x, sizeof *x);
    if (!code) code = cudaMemset(x, 0, sizeof *x);
    if (!code && !by_host) code = cudaMemcpy(out, x, sizeof *x, cudaMemcpyDeviceToHost);
    if (!code && by_host) *out = *x;
    cudaFree(x);
    return code;
}

/* -------------------------------------------------------------------------- between streams */

/* One stream fills what another copies out. */
extern "C" int planted_streams(float *out, int waits)
{
    const int count = 64;
    cudaStream_t a, b;
    cudaEvent_t filled;
    float *x, *host;
    cudaMalloc(&x, count * sizeof *x);
    cudaMallocHost(&host, count * sizeof *host);
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&filled, cudaEventDisableTiming);
    ZFD_LAUNCH(fill_with, 1, 64, 0, a, x, count, 7.0f);
    cudaEventRecord(filled, a);
    if (waits) cudaStreamWaitEvent(b, filled, 0);
    cudaMemcpyAsync(host, x, count * sizeof *x, cudaMemcpyDeviceToHost, b);
    int code = cudaStreamSynchronize(b);
    *out = host[0];
    cudaEventDestroy(filled);
    cudaStreamDestroy(a), cudaStreamDestroy(b);
    cudaFree(x), cudaFreeHost(host);
    return code;
}

/* The same as a graph, three times: what is filled grows from launch to launch. */
static __global__ void add_one(float *x) { x[threadIdx.x] += 1; }

extern "C" int planted_graph(float *out, int waits, int joins)
{
    cudaStream_t a, b;
    cudaEvent_t reached, done;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    float *x, *y;
    cudaMalloc(&x, 32 * sizeof *x), cudaMalloc(&y, 32 * sizeof *y);
    cudaMemset(x, 0, 32 * sizeof *x);
    cudaDeviceSynchronize();
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreate(&reached), cudaEventCreate(&done);
    cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal);
    if (!waits) cudaEventRecord(reached, a), cudaStreamWaitEvent(b, reached, 0);
    ZFD_LAUNCH(add_one, 1, 32, 0, a, x);
    if (waits) cudaEventRecord(reached, a), cudaStreamWaitEvent(b, reached, 0);
    cudaMemcpyAsync(y, x, 32 * sizeof *x, cudaMemcpyDeviceToDevice, b);
    cudaEventRecord(done, b);
    if (joins) cudaStreamWaitEvent(a, done, 0);
    int code = cudaStreamEndCapture(a, &graph);
    if (!code) code = cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < 3 && !code; i++) code = cudaGraphLaunch(exec, a);
    if (!code) code = cudaStreamSynchronize(a);
    if (!code) code = cudaMemcpy(out, y, sizeof *out, cudaMemcpyDeviceToHost);
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
    cudaEventDestroy(reached), cudaEventDestroy(done);
    cudaStreamDestroy(a), cudaStreamDestroy(b);
    cudaFree(x), cudaFree(y);
    return code;
}

/* A staging buffer that is filled again, after its copy or too early. */
extern "C" int planted_staging(float *out, int waits)
{
    cudaStream_t stream;
    float *x, *stage;
    cudaMalloc(&x, sizeof *x), cudaMallocHost(&stage, sizeof *stage);
    cudaStreamCreate(&stream);
    *stage = 1;
    cudaMemcpyAsync(x, stage, sizeof *x, cudaMemcpyHostToDevice, stream);
    if (waits) cudaStreamSynchronize(stream);
    *stage = 2;
    cudaMemcpyAsync(out, x, sizeof *x, cudaMemcpyDeviceToHost, stream);
    int code = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    cudaFree(x), cudaFreeHost(stage);
    return code;
}

extern "C" int planted_device(float *out, int other)
{
    cudaStream_t stream;
    float *x;
    cudaSetDevice(0);
    cudaMalloc(&x, sizeof *x), cudaMemset(x, 0, sizeof *x);
    cudaDeviceSynchronize();
    cudaSetDevice(other ? 1 : 0);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaSetDevice(0);
    ZFD_LAUNCH(add_one, 1, 1, 0, stream, x);
    int code = cudaGetLastError();
    cudaStreamSynchronize(stream);
    cudaMemcpy(out, x, sizeof *out, cudaMemcpyDeviceToHost);
    cudaStreamDestroy(stream);
    cudaFree(x);
    return code;
}

extern "C" int planted_event(float *out, int in_graph)
{
    cudaStream_t a, b;
    cudaEvent_t event;
    cudaGraph_t graph = NULL;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreate(&event);
    *out = 0;
    if (in_graph) cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed);
    cudaEventRecord(event, a);
    if (in_graph) cudaStreamEndCapture(a, &graph);
    int code = cudaStreamWaitEvent(b, event, 0);
    cudaGetLastError();
    if (graph) cudaGraphDestroy(graph);
    cudaEventDestroy(event);
    cudaStreamDestroy(a), cudaStreamDestroy(b);
    return code;
}

/* c = a b, 8 by 8, all ones. */
extern "C" int planted_product(float *out, int by, int other)
{
    const float one = 1, zero = 0;
    size_t most = 1 << 16;
    int found = 0;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t matrix;
    cublasLtMatmulPreference_t want;
    cublasLtMatmulHeuristicResult_t algorithm;
    float *x;
    char *work;
    cudaSetDevice(other ? 1 : 0);
    cublasLtCreate(&handle);
    cudaSetDevice(0);
    cudaMalloc(&x, 128 * sizeof *x), cudaMalloc(&work, most + 256);
    ZFD_LAUNCH(fill_with, 1, 64, 0, NULL, x, 64, 1.0f);
    cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&matrix, CUDA_R_32F, 8, 8, 8);
    cublasLtMatmulPreferenceCreate(&want);
    cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                         sizeof most);
    int code = cublasLtMatmulAlgoGetHeuristic(handle, product, matrix, matrix, matrix, matrix, want,
                                              1, &algorithm, &found);
    if (!code)
        code = cublasLtMatmul(handle, product, &one, x, matrix, x, matrix, &zero, x + 64, matrix,
                              x + 64, matrix, &algorithm.algo, work + by, most, NULL);
    cudaMemcpy(out, x + 64, sizeof *out, cudaMemcpyDeviceToHost);
    cublasLtMatmulPreferenceDestroy(want);
    cublasLtMatrixLayoutDestroy(matrix);
    cublasLtMatmulDescDestroy(product);
    cublasLtDestroy(handle);
    cudaFree(x), cudaFree(work);
    return code;
}

/* ----------------------------------------------------------------------------- arithmetic */

/* out[0..12) of each lane: what warp operations give. */
static __global__ void warp_operations(float *out)
{
    int lane = (int)(threadIdx.x + threadIdx.y * blockDim.x) % WARP;
    float *to = out + (threadIdx.x + threadIdx.y * blockDim.x) * 12;
    const unsigned all = 0xffffffffu, half = lane < 16 ? 0xffffu : 0xffff0000u;
    to[0] = __shfl_sync(all, (float)lane, 3);
    to[1] = __shfl_sync(all, (float)lane, lane + 1, 8);
    to[2] = (float)__shfl_up_sync(all, (double)lane, 2);
    to[3] = (float)__shfl_down_sync(all, lane, 2, 16);
    to[4] = (float)__shfl_xor_sync(half, (long long)lane, 5);
    to[5] = (float)__popc(__ballot_sync(all, lane % 3 == 0));
    to[6] = (float)__any_sync(half, lane == 20);
    to[7] = (float)__all_sync(half, lane >= 16);
    to[8] = (float)__reduce_add_sync(all, lane - 16);
    to[9] = (float)__reduce_max_sync(half, (unsigned)lane);
    to[10] = (float)__popc(__match_any_sync(all, lane / 5));
    to[11] = (float)__syncthreads_count(lane == 0);
}

extern "C" int planted_operations(float *out, int x, int y)
{
    return on_device(out, x * y * 12, [=](float *to) {
        ZFD_LAUNCH(warp_operations, 1, dim3((unsigned)x, (unsigned)y), 0, NULL, to);
    });
}
