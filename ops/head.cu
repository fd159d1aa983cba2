/* The head of a language model on CUDA: ops/head.c.
 */
