/* Comparison with files that other systems have made (tests/golden). */
#ifndef GOLDEN_H
#define GOLDEN_H

#include "test.h"

/* Opens a safetensors file, closed when the test ends; NULL after reporting a failure. */
zf_safetensors *open_file(test *t, const char *path);
/* A tensor of a file as doubles, to be freed; *count elements. NULL when there is none. */
double *values_of(zf_safetensors *file, const char *name, int64_t *count);
double square_sum(const double *x, int64_t count);
/* Mean squared error of a tensor over the mean square of the golden one; infinite when it is not
 * there or has another size. */
double error_of(zf_safetensors *file, zf_safetensors *golden, const char *name);
/* Two files have the same bytes. */
bool same_files(const char *a, const char *b);

#endif
