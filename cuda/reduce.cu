/* Sums and maxima over the threads of a warp or a block, always in one order, so that every run has
 * the same bits. All threads of the warp or block must take part. */

__device__ __forceinline__ float zfd_warp_sum(float x)
{
#pragma unroll
    for (int step = ZFD_WARP / 2; step; step /= 2) x += zfd_shuffle_xor(x, step);
    return x;
}

__device__ __forceinline__ float zfd_warp_max(float x)
{
#pragma unroll
    for (int step = ZFD_WARP / 2; step; step /= 2)
        x = fmaxf(x, zfd_shuffle_xor(x, step));
    return x;
}

/* For a block of at most 32 whole warps; `shared` has room for 32 floats. Every thread gets the
 * result. Begins with a barrier, since `shared` may have been in use. */
__device__ __forceinline__ float zfd_block_sum(float x, float *shared)
{
    int lane = (int)threadIdx.x % ZFD_WARP, warp = (int)threadIdx.x / ZFD_WARP;
    x = zfd_warp_sum(x);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = lane < (int)blockDim.x / ZFD_WARP ? shared[lane] : 0;
    return zfd_warp_sum(x);
}

__device__ __forceinline__ float zfd_block_max(float x, float *shared)
{
    int lane = (int)threadIdx.x % ZFD_WARP, warp = (int)threadIdx.x / ZFD_WARP;
    x = zfd_warp_max(x);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = lane < (int)blockDim.x / ZFD_WARP ? shared[lane] : -INFINITY;
    return zfd_warp_max(x);
}
