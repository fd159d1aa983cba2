/* LayerNorm with what stands around it on CUDA: ops/fused_norm.c.
 */
