/* Collectives on CUDA: ops/collective.c.
 */
