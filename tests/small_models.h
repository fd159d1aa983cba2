/* The inputs of small models that ranks train together. */
#ifndef SMALL_MODELS_H
#define SMALL_MODELS_H

#include "test.h"

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

#endif
