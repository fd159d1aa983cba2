/* Rows of a table by index on CUDA: ops/rows.c.
 */
