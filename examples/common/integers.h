/* Integer tensors of batch files, which comparisons with other systems are made of. */
#ifndef INTEGERS_H
#define INTEGERS_H

#include "../../zeroflow.h"

/* What a value must be: in [0, limit), or, where that is allowed, -100, which stands for none. */
typedef struct integers_rule {
    const char *name; /* of the tensor */
    int rank;         /* 2: [B,T] or [S,B,T]; 1: [B] or [S,B] */
    int64_t limit;
    bool ignored;  /* -100 is allowed */
    bool optional; /* the file may be without it */
} integers_rule;

/* The values of a tensor of I64, I32, U8 or BOOL, to be freed, and its shape, of which the first
 * dimension is S. NULL with *error; where it is optional and not there, without. */
int64_t *integers_load(zf_safetensors *file, const char *path, const integers_rule *rule,
                       zf_shape *shape, zf_error *error);

/* The file has no tensors but those of the rules; false with *error. */
bool integers_all_known(const zf_safetensors *file, const char *path, const integers_rule *rules,
                        int count, zf_error *error);

#endif
