/* Ranks by NCCL, with and without mistakes (planted.h). */
#include "planted.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <thread>

enum { WORLD = 3, COUNT = 32 };

static __global__ void fill_rank(float *x, float value) { x[threadIdx.x] = value; }

/* Until the stream has done its work, or for so many looks. */
static int look(cudaStream_t stream, int looks)
{
    cudaError_t code = cudaErrorNotReady;
    while (looks-- > 0 && (code = cudaStreamQuery(stream)) == cudaErrorNotReady) usleep(100);
    return code;
}

static int one_rank(float *out, int rank, ncclUniqueId id, int mistake, std::atomic<bool> *gone)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    ncclResult_t state = ncclInProgress;
    cudaStream_t fills, sums;
    cudaEvent_t filled;
    float *x, *sum, *all;
    const bool last = rank == WORLD - 1;
    int code, count = mistake == 2 && last ? COUNT - 1 : COUNT;
    config.blocking = 0;
    cudaSetDevice(rank);
    cudaMalloc(&x, COUNT * sizeof *x), cudaMalloc(&sum, COUNT * sizeof *x);
    cudaMalloc(&all, WORLD * COUNT * sizeof *x);
    cudaStreamCreateWithFlags(&fills, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&sums, cudaStreamNonBlocking);
    cudaEventCreate(&filled);
    ncclCommInitRankConfig(&comm, WORLD, id, rank, &config);
    while (state == ncclInProgress) ncclCommGetAsyncError(comm, &state);
    ZFD_LAUNCH(fill_rank, 1, COUNT, 0, fills, x, (float)(rank + 1));
    cudaEventRecord(filled, fills);
    if (mistake != 1) cudaStreamWaitEvent(sums, filled, 0);
    while (mistake >= 4 && !last && !*gone) usleep(100);
    if (mistake != 5 && (mistake != 3 || !last))
        ncclAllReduce(x, sum, (size_t)count, ncclFloat32, ncclSum, comm, sums);
    if (mistake != 4 && (mistake != 3 || !last)) {
        ncclGroupStart();
        for (int r = 0; r < WORLD; r++) {
            ncclSend(x, COUNT, ncclFloat32, r, comm, sums);
            ncclRecv(all + r * COUNT, COUNT, ncclFloat32, r, comm, sums);
        }
        ncclGroupEnd();
    }
    cudaStreamSynchronize(fills);
    code = look(sums, mistake >= 3 ? 50 : 100000);
    if (code == cudaErrorNotReady) {
        out[rank] = -1;
        ncclCommAbort(comm); /* then nothing waits for it */
        comm = NULL;
        code = cudaStreamSynchronize(sums);
    } else if (!code && mistake < 3) {
        code = cudaMemcpy(&out[rank], sum, sizeof *out, cudaMemcpyDeviceToHost);
        if (rank == 0)
            for (int r = 0; r < WORLD; r++)
                cudaMemcpy(&out[WORLD + r], all + r * COUNT, sizeof *out, cudaMemcpyDeviceToHost);
    }
    if (comm) ncclCommDestroy(comm);
    cudaEventDestroy(filled);
    cudaStreamDestroy(fills), cudaStreamDestroy(sums);
    cudaFree(x), cudaFree(sum), cudaFree(all);
    if (last) *gone = true;
    return code;
}

extern "C" int planted_ranks(float *out, int mistake)
{
    std::thread threads[WORLD];
    int codes[WORLD], most = 0;
    ncclUniqueId id;
    std::atomic<bool> gone(false);
    ncclGetUniqueId(&id);
    for (int r = 0; r < WORLD; r++)
        threads[r] = std::thread([&, r]() { codes[r] = one_rank(out, r, id, mistake, &gone); });
    for (int r = 0; r < WORLD; r++) threads[r].join();
    for (int r = 0; r < WORLD; r++) most = codes[r] > most ? codes[r] : most;
    return most;
}

#else
extern "C" int planted_ranks(float *, int) { return -1; }
#endif
