/* Warps of 32 threads in waves of 64 lanes (cuda/gpu.cu), and mistakes that waves of 32 hide. */
#include "planted.h"
#include "zeroflow.h"

#include <stdarg.h>

#include "cuda/gpu.cu"
#include "cuda/launch.cu"
#include "cuda/element.cu"
#include "cuda/cores/waves.cu"

enum { LANES = 64, RESULTS = 3 };

/* Of each lane: the sum over its warp; the ballot, of which lanes are multiples of 3; and x of the
 * warp's lane 5. */
static __global__ void of_warps(float *out, int mistake)
{
    const int lane = (int)threadIdx.x % 32;
    const float x = (float)(threadIdx.x + 1);
    float sum = x, *to = out + threadIdx.x * RESULTS;
    if (mistake == 3) sum += zfd_wave_read(sum, zfd_wave_lane() ^ 32);
    for (int step = 16; step; step /= 2) sum += zfd_shuffle_xor(sum, step);
    to[0] = sum;
    to[1] = (float)__popc(mistake == 2 ? (uint32_t)zfd_wave_ballot(lane % 3 == 0)
                                       : zfd_ballot(lane % 3 == 0));
    to[2] = mistake == 1 ? zfd_wave_read(x, 5) : zfd_shuffle(x, 5);
}

extern "C" int planted_waves(float *out, int mistake)
{
    float *memory = NULL;
    cudaError_t code = cudaMalloc(&memory, sizeof(float) * LANES * RESULTS);
    if (!code) ZFD_LAUNCH(of_warps, 1, LANES, 0, NULL, memory, mistake);
    if (!code) code = cudaDeviceSynchronize();
    if (!code) code = cudaMemcpy(out, memory, sizeof(float) * LANES * RESULTS, cudaMemcpyDefault);
    cudaFree(memory);
    return (int)code;
}

extern "C" int planted_architecture(const char *name) { return zfd_cores_of_architecture(name); }
