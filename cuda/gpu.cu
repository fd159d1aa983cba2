/* Operations of a warp. All its 32 threads take part, and the order of every sum follows from that
 * number. No other file names the device's own operations, which differ by maker. */

#define ZFD_ALL_LANES 0xffffffffu

/* The value that thread `lane` has, or the one whose number differs in these bits. */
#define zfd_shuffle(...)     __shfl_sync(ZFD_ALL_LANES, __VA_ARGS__)
#define zfd_shuffle_xor(...) __shfl_xor_sync(ZFD_ALL_LANES, __VA_ARGS__)
/* Bit k: the value of thread k is not 0. */
#define zfd_ballot(...)      __ballot_sync(ZFD_ALL_LANES, __VA_ARGS__)
/* The value of some thread is not 0. */
#define zfd_any(...)         __any_sync(ZFD_ALL_LANES, __VA_ARGS__)
/* What the threads wrote before is seen by all of them. */
#define zfd_sync_warp()      __syncwarp()
