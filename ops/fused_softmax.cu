/* Softmax with what stands around it on CUDA: ops/fused_softmax.c.
 */
