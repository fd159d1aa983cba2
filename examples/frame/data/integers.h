/* Integer tensors of batch files, for comparisons with other systems. */
#ifndef INTEGERS_H
#define INTEGERS_H

#include "../../../zeroflow.h"

/* The allowed values: [0, limit), and, if allowed, -100 for no label. */
typedef struct integers_rule {
    const char *name; /* of the tensor */
    int rank;         /* 2: [B,T] or [S,B,T]; 1: [B] or [S,B] */
    int64_t limit;
    bool ignored;  /* -100 is allowed */
    bool optional; /* the file may lack it */
} integers_rule;

/* The values of a tensor of I64, I32, U8 or BOOL, which the caller frees, and its shape, whose
 * first dimension is S. NULL with *error; NULL without an error where it is optional and
 * missing. */
int64_t *integers_load(zf_safetensors *file, const char *path, const integers_rule *rule,
                       zf_shape *shape, zf_error *error);

/* Checks that the file has no other tensors than those of the rules; false with *error. */
bool integers_all_known(const zf_safetensors *file, const char *path, const integers_rule *rules,
                        int count, zf_error *error);

#endif
