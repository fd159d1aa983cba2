/* Attention on CUDA: ops/attention.c.
 */
