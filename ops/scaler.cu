/* The loss scale on CUDA: ops/scaler.c.
 */
