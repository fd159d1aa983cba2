/* Sums and maxima over the threads of a warp or a block, always in one order, so that every run has
 * the same bits. All threads of the warp or block must take part. */

__device__ __forceinline__ float zfi_warp_sum(float x)
{
#pragma unroll
    for (int step = ZFI_WARP / 2; step; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

__device__ __forceinline__ float zfi_warp_max(float x)
{
#pragma unroll
    for (int step = ZFI_WARP / 2; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* For a block of at most 32 whole warps; `shared` has room for 32 floats. Every thread gets the
 * result. Begins with a barrier, since `shared` may have been in use. */
__device__ __forceinline__ float zfi_block_sum(float x, float *shared)
{
    int lane = (int)threadIdx.x % ZFI_WARP, warp = (int)threadIdx.x / ZFI_WARP;
    x = zfi_warp_sum(x);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = lane < (int)blockDim.x / ZFI_WARP ? shared[lane] : 0;
    return zfi_warp_sum(x);
}

__device__ __forceinline__ float zfi_block_max(float x, float *shared)
{
    int lane = (int)threadIdx.x % ZFI_WARP, warp = (int)threadIdx.x / ZFI_WARP;
    x = zfi_warp_max(x);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = lane < (int)blockDim.x / ZFI_WARP ? shared[lane] : -INFINITY;
    return zfi_warp_max(x);
}
