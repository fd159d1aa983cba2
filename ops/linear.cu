/* Products with what follows them on CUDA: ops/linear.c.
 */
