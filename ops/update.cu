/* Optimizers on CUDA: ops/update.c.
 */
