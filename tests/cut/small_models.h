/* The inputs of small models that ranks train together. */
#ifndef SMALL_MODELS_H
#define SMALL_MODELS_H

#include "../support/test.h"

enum { VOCAB = 29, TOKENS = 8 };

/* Element i of an input of part `part` of a step. */
static double element(const char *name, int64_t i, int64_t part, int step)
{
    const int64_t n = i + 100 * part;
    if (!strcmp(name, "lr")) return 0.01;
    if (strstr(name, "weight")) return 0.125;
    if (!strcmp(name, "positions")) return (double)(3 * i);
    if (!strcmp(name, "next_sentence_label") || !strcmp(name, "token_type_ids"))
        return (double)((n + step) % 2);
    if (strstr(name, "mask")) return i % TOKENS != TOKENS - 1;
    return (double)((n * n + 7 * n + 3 * step) % VOCAB);
}

/* Writes all inputs of a model, of part `part` of a step. */
static inline void feed(zf_graph *g, zf_program *p, int64_t part, int step)
{
    unsigned char bytes[8 * 512];
    zf_node node;
    for (int32_t k = 0; zf_graph_node(g, k, &node); k++) {
        const int64_t count = zf_shape_count(node.shape);
        if (node.op != ZF_OP_input) continue;
        for (int64_t i = 0; i < count; i++) {
            const double x = element(node.name, i, part, step);
            if (node.dtype == ZF_U8) bytes[i] = (unsigned char)x;
            else if (node.dtype == ZF_I32) ((int32_t *)(void *)bytes)[i] = (int32_t)x;
            else ((float *)(void *)bytes)[i] = (float)x;
        }
        zf_write(p, zf_graph_find(g, node.name), bytes,
                 (size_t)count * zf_dtype_size(node.dtype));
    }
}

#endif
