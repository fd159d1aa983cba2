/* What a test asks of the emulated device (tests/emulation/block.cpp says how it works). */
#ifndef EMULATION_H
#define EMULATION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order in which ready work, blocks and threads are taken from now on, on every device. */
void emulation_seed(uint64_t seed);
/* How many GPUs there are, at most 8; at first 2, or EMULATED_DEVICES in the environment. */
void emulation_devices(int count);
/* How much shared memory a block can have; 227 KiB at first. */
void emulation_shared(size_t bytes);
/* How many lanes a wave has, 32 or 64, and which instructions for products devices have that are
 * opened later; 32, and mma, at first. mfma takes waves of 64 lanes, wmma of 32. */
enum { EMULATION_NO_CORES, EMULATION_MMA, EMULATION_MFMA, EMULATION_WMMA };
void emulation_waves(int lanes, int cores);
/* How many multiprocessors a device has; 2 at first. */
void emulation_processors(int count);
/* The compute capability of all devices is `major`.0; 9.0 at first. */
void emulation_capability(int major);
/* Of which CUDA the driver is: 12040 for 12.4; 0: there is none; -1, as at first: that of the
 * toolkit. */
void emulation_driver(int version);
/* What was found since emulation_clear: one finding a line; "" when nothing. */
const char *emulation_report(void);
/* Forgets the findings, and the errors that they left on the devices. */
void emulation_clear(void);
/* Allocations, streams, events, graphs, handles and communicators that are not freed. */
int emulation_live(void);
/* The calls of `function` ("cudaMalloc") after the next `after` give the error `code`, and do
 * nothing; NULL: none do. */
void emulation_refuse(const char *function, int after, int code);
/* How many multiprocessors the product that an algorithm was asked for last may take; 0: all. */
int emulation_product_processors(void);
/* Bytes of the device that each of NCCL's communicators takes when its ranks are connected, for as
 * many blocks as it may have. */
enum { EMULATION_NCCL_BYTES = 96 << 10 };
/* Bytes that ranks have sent one another by NCCL's calls since the program began; one that all share
 * counts as a ring of them sends it. */
long emulation_sent(void);
/* Kernels run since the program began. */
long emulation_kernels(void);

#ifdef __cplusplus
}
#endif
#endif
