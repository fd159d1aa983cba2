/* Shapes on CUDA: ops/move.c.
 */
