/* Reductions on CUDA: ops/reduce.c.
 */
