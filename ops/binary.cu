/* Elementwise over two or three operands on CUDA: ops/binary.c.
 */
