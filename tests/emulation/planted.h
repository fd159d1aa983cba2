/* Programs with and without mistakes: planted.cu. They return a cudaError_t. */
#ifndef PLANTED_H
#define PLANTED_H

#ifdef __cplusplus
extern "C" {
#endif

/* out[0..96): 95, 94, ..., 0 */
int planted_reverse(float *out, int first_barrier, int second_barrier);
/* out[0..32): 496 each */
int planted_warp(float *out, int leaves);
/* out[0..96): 1 each. Kinds: 0 right, 1 waits in two places, 2 right, 3 leaves before the barrier
 */
int planted_barrier(float *out, int kind);
/* out[0..2): 3 each */
int planted_mask(float *out, int without);
/* out[0..32): 1 each, written `by` elements further on, also in shared memory */
int planted_write(float *out, int by, int shared);
/* *out: 0, copied, or read as it lies on the device */
int planted_read(float *out, int by_host);
/* *out: 7 */
int planted_streams(float *out, int waits);
/* *out: 3 */
int planted_graph(float *out, int waits, int joins);
/* *out: 1 */
int planted_staging(float *out, int waits);
/* *out: 1, by a kernel on a stream of the device that is current, or of another */
int planted_device(float *out, int other);
/* A stream waits for an event, last recorded in it or in a graph that is complete */
int planted_event(float *out, int in_graph);
/* *out: 8, by a product whose workspace begins `by` bytes after a multiple of 256, or whose handle
 * is another device's */
int planted_product(float *out, int by, int other);
/* 12 results of each of x * y threads */
int planted_operations(float *out, int x, int y);
/* 3 results of each of 64 lanes in warps of 32: 528 or 1552, 11, 6 or 38. Mistakes: 1 a shuffle by
 * the lane of the wave, 2 a ballot of the wave's first half, 3 a sum over 64 lanes */
int planted_waves(float *out, int mistake);
/* The instructions for products that an architecture of AMD has (emulation.h). */
int planted_architecture(const char *name);
/* hipBLASLt (cuda/hip/blas.cu), as a library that computes on the host: "" or what was wrong. */
const char *planted_hipblas(void);
/* What is said of AMD's driver, a device and settings (cuda/hip/driver.cu): "" or what was wrong. */
const char *planted_hip_driver(void);
/* *wrong: how many elements of a product by warpgroups, of n columns, are wrong: none. Ways: A in
 * rows or (2, 3) across, or (4, 5) in registers; B in rows or (odd) across. Mistakes: 1 reads the
 * result before it is there, 2 has no barrier, 3 waits for too many threads */
int planted_warpgroup(float *wrong, int n, int way, int f16, int mistake);
/* Three ranks, threads, each with a device. out[0..3): 6, the sum over ranks of 1, 2, 3, as each
 * has it; out[3..6): 1, 2, 3, gathered. Mistakes: 1 the sum does not wait for what is summed, 2 a
 * rank sums fewer elements, 3 a rank does not come, 4 it gives up a sum, and frees its memory,
 * before the others come, 5 the same of what is gathered. Of 3 to 5, out[0..3) is -1 for ranks that
 * gave up. Returns the most that a rank returns; -1: there is no nccl.h. */
int planted_ranks(float *out, int mistake);

#ifdef __cplusplus
}
#endif
#endif
