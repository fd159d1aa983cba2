/* Elementwise chains on CUDA: ops/chain.c.
 */
