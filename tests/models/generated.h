/* Generation against transformers: the most likely tokens after three prompts of different lengths,
 * which go on together. The goldens are made by tests/golden/llm/make.py and tests/golden/gpt/make.py. */
#ifndef GENERATED_H
#define GENERATED_H

#include "../../examples/frame/commands/frame.h"
#include "../support/test.h"

typedef struct generated_case {
    const sample_model *sample;
    const char *folder, *file, *name; /* of the model; of the golden, and the tensor in it */
    int64_t chunk;                    /* tokens of a prompt in a step, at most; 0: as decoder_desc */
    double penalty;                   /* of repetitions */
} generated_case;

void check_generated(test *t, const generated_case *c);

#endif
