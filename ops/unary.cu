/* Elementwise over one operand on CUDA: ops/unary.c.
 */
