/* Products on CUDA: ops/matmul.c.
 */
