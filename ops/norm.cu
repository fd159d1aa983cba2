/* Softmax, LayerNorm and RMSNorm on CUDA: ops/norm.c.
 */
