/* Products of a warpgroup (cuda/cores/wgmma.cu), by operands that lie in every way. */
#include "planted.h"
#include "zeroflow.h"

#include <stdarg.h>
#include <time.h>

#include "cuda/gpu.cu"
#include "cuda/launch.cu"
#include "cuda/element.cu"
#include "cuda/cores/mma.cu"
#include "cuda/cores/wgmma.cu"

enum { DEPTH = 64 };

/* x, of `rows` rows of DEPTH, or as its transpose where `across`, into tiles of shared memory. */
template <class T> static __device__ void lay(T *tile, const float *x, int rows, bool across)
{
    for (int i = (int)threadIdx.x; i < rows * DEPTH; i += (int)blockDim.x) {
        const int row = i / DEPTH, k = i % DEPTH;
        T *of = tile + row / 64 * 64 * DEPTH;
        const int down = across ? k : row % 64, right = across ? row % 64 : k;
        of[zfd_swizzled(down, right / 8) + right % 8] = zfd_from_f32<T>(x[i]);
    }
}

/* out[64,N] = twice A[64,DEPTH] B[N,DEPTH]^T, by each warpgroup in turn. */
template <class T, int N, bool A_ACROSS, bool B_ACROSS, bool IN_REGISTERS>
static __global__ void multiply(float *out, const float *a, const float *b, int mistake)
{
    ZFD_SHARED(T, a_tile);
    T *b_tile = a_tile + 64 * DEPTH;
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    float c[N / 2];
    uint32_t rows[DEPTH / 16][4];
    for (int i = 0; i < N / 2; i++) c[i] = 1000;
    lay(a_tile, a, 64, A_ACROSS);
    lay(b_tile, b, N, B_ACROSS);
    for (int s = 0; s < DEPTH / 16; s++)
        for (int i = 0; i < 4; i++) {
            const float *x = a + (row + i % 2 * 8) * DEPTH + 16 * s + i / 2 * 8 + lane % 4 * 2;
            T two[2] = {zfd_from_f32<T>(x[0]), zfd_from_f32<T>(x[1])};
            memcpy(&rows[s][i], static_cast<void *>(two), 4);
        }
    zfd_shared_to_products();
    if (mistake != 2) __syncthreads();
    const uint64_t of_a = zfd_wgmma_operand(a_tile), of_b = zfd_wgmma_operand(b_tile, 128 * 64);
    zfd_wgmma_begin();
    for (int round = 0; round < 2; round++) {
        for (int s = 0; s < DEPTH / 16; s++) {
            const uint64_t x = of_a + (unsigned)(s * zfd_wgmma_step<A_ACROSS>::of);
            const uint64_t y = of_b + (unsigned)(s * zfd_wgmma_step<B_ACROSS>::of);
            if (IN_REGISTERS)
                zfd_wgmma<T, N>::template rows<B_ACROSS>(c, rows[s], y, round || s);
            else
                zfd_wgmma<T, N>::template both<A_ACROSS, B_ACROSS>(c, x, y, round || s);
        }
        zfd_wgmma_commit();
    }
    if (mistake != 1) zfd_wgmma_wait<0>();
    zfd_wgmma_settle(c);
    for (int i = 0; i < N / 2; i++)
        out[(row + i % 4 / 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] = c[i];
    zfd_barrier(1, (int)blockDim.x + (mistake == 3 ? 32 : 0));
    zfd_wgmma_wait<0>();
}

template <class T, int N, bool A_ACROSS, bool B_ACROSS, bool IN_REGISTERS>
static void launch(float *out, const float *a, const float *b, int mistake)
{
    ZFD_LAUNCH((multiply<T, N, A_ACROSS, B_ACROSS, IN_REGISTERS>), 1, 256,
               2 * (64 + N) * DEPTH, NULL, out, a, b, mistake);
}

template <class T, int N>
static void launch_of(int way, float *out, const float *a, const float *b, int mistake)
{
    if (way == 0) launch<T, N, false, false, false>(out, a, b, mistake);
    if (way == 1) launch<T, N, false, true, false>(out, a, b, mistake);
    if (way == 2) launch<T, N, true, false, false>(out, a, b, mistake);
    if (way == 3) launch<T, N, true, true, false>(out, a, b, mistake);
    if (way == 4) launch<T, N, false, false, true>(out, a, b, mistake);
    if (way == 5) launch<T, N, false, true, true>(out, a, b, mistake);
}

extern "C" int planted_warpgroup(float *wrong, int n, int way, int f16, int mistake)
{
    const int count = (64 + n) * DEPTH;
    float *memory = NULL, *host = static_cast<float *>(malloc(sizeof(float) * (size_t)count));
    float *out = static_cast<float *>(malloc(sizeof(float) * 64 * (size_t)n));
    cudaError_t code = cudaMalloc(&memory, sizeof(float) * (size_t)(count + 64 * n));
    for (int i = 0; i < count; i++) host[i] = (float)(i * 7919 % 31 - 15);
    if (!code) code = cudaMemcpy(memory, host, sizeof(float) * (size_t)count, cudaMemcpyDefault);
    const float *a = memory, *b = memory + 64 * DEPTH;
    if (n == 64 && f16) launch_of<zfd_f16, 64>(way, memory + count, a, b, mistake);
    if (n == 64 && !f16) launch_of<zfd_bf16, 64>(way, memory + count, a, b, mistake);
    if (n == 128 && f16) launch_of<zfd_f16, 128>(way, memory + count, a, b, mistake);
    if (n == 128 && !f16) launch_of<zfd_bf16, 128>(way, memory + count, a, b, mistake);
    if (!code) code = cudaDeviceSynchronize();
    if (!code)
        code = cudaMemcpy(out, memory + count, sizeof(float) * 64 * (size_t)n, cudaMemcpyDefault);
    *wrong = 0;
    for (int i = 0; i < 64 * n && !code; i++) {
        float sum = 0;
        for (int k = 0; k < DEPTH; k++)
            sum += 2 * host[i / n * DEPTH + k] * host[(64 + i % n) * DEPTH + k];
        *wrong += !(out[i] == sum);
    }
    cudaFree(memory);
    free(host), free(out);
    return (int)code;
}
