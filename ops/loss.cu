/* Losses over rows of logits on CUDA: ops/loss.c.
 */
