/* Weights in Hugging Face's formats: one safetensors file, several with an index
 * (model.safetensors.index.json), or a folder with either. Tensors are f32, f64, bf16 or f16;
 * programs read and write them as f32.
 *
 *     weights *w = weights_open("bert-base-uncased", &error);
 *     for each parameter: weights_take(w, weights_find(w, NAME), shape, &error), weights_put(...)
 *     for each tensor that was not taken: weights_untaken(w, ...)
 */
#ifndef WEIGHTS_H
#define WEIGHTS_H

#include "../../zeroflow.h"

typedef struct weights weights;

/* NULL with *error, which recognises files of PyTorch's own. */
weights *weights_open(const char *path, zf_error *error);
void weights_close(weights *w); /* NULL: nothing */

int32_t weights_count(const weights *w);
/* The name without "module." and "_orig_mod.", prefixes that wrappers of PyTorch add. */
const char *weights_name(const weights *w, int32_t index);
int32_t weights_find(const weights *w, const char *name); /* -1: none */

/* The values, which the caller frees; marks the tensor as taken. NULL with *error where it has
 * another shape, or no float values. */
float *weights_take(weights *w, int32_t index, zf_shape shape, zf_error *error);
/* The same into a parameter of the file's shape (weights_put), a few values at a time. */
bool weights_move(weights *w, int32_t index, zf_program *program, zf_tensor param, zf_error *error);
/* Marks a tensor as taken without reading it. */
void weights_pass(weights *w, int32_t index);
bool weights_taken(const weights *w, int32_t index);
/* Whether two tensors have one shape and equal values; an index of -1 equals any. False also with
 * *error. */
bool weights_equal(weights *w, int32_t a, int32_t b, zf_error *error);

/* What an import reports: parameters that the files lack, which keep first values, and tensors that
 * the model does not use; their numbers, and as many names as there is room for. */
enum { WEIGHTS_NAMES = 240 };
typedef struct weights_report {
    int32_t fresh, unused;
    char fresh_names[WEIGHTS_NAMES], unused_names[WEIGHTS_NAMES]; /* "a, b, ..." */
} weights_report;
void weights_fresh(weights_report *report, const char *name);
void weights_unused(weights_report *report, const char *name);
void weights_print(const char *path, const weights_report *report);

/* Sets the parameter to `values`, rounded to its dtype, or to its few bits; its master weights are not
 * rounded. */
zf_status weights_put(zf_program *program, zf_tensor param, const float *values, zf_error *error);
/* The values that training continues from: the master weights, if there are any. All ranks must
 * call it. */
zf_status weights_get(zf_program *program, zf_tensor param, float *values, zf_error *error);

/* A shape as "[2,3]"; returns text. */
enum { SHAPE_TEXT = 21 * ZF_MAX_RANK + 2 };
const char *shape_text(char text[SHAPE_TEXT], zf_shape shape);

#endif
