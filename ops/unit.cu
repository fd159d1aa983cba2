/* Units on CUDA: ops/unit.c.
 */
