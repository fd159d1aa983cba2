/* The parameters of a model in Hugging Face's files, in and out (weights.h): a table says how the
 * files call them, where that is not how the model does. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include "weights.h"

enum { EXCHANGE_NAMES = 6 };

typedef struct exchange {
    const char *prefix; /* of most parameters: "bert."; files may lack it; NULL: there is none */
    /* The word embedding, and the weight of a head that may be tied to it. Of tied ones, files have
     * one or both. */
    const char *words, *head;
    /* A bias that files have under two names, the second of which counts; NULL: none. It is written
     * under both where the head is not tied. */
    const char *bias, *head_bias;
    /* Lists, NULL behind the last name. */
    const char *inside[EXCHANGE_NAMES];  /* beginnings without the prefix: such tensors of a file must
                                            all be the model's; others may be of another task */
    const char *heads[EXCHANGE_NAMES];   /* beginnings: such parameters may be missing in a file */
    const char *buffers[EXCHANGE_NAMES]; /* ends: such tensors say nothing */
    /* The name that older files have for a parameter; false: the same. NULL: there are none. */
    bool (*older)(const char *name, char *older, size_t size);
    /* Whether files hold a weight as [in, out]; it is [out, in] here. NULL: none. */
    bool (*turned)(zf_tensor param);
} exchange;

/* Whether a parameter is one that files may lack. */
bool exchange_is_head(const exchange *x, const char *param);

/* False where the files have a head that differs from the word embedding; also with *error. */
bool exchange_is_tied(const exchange *x, weights *w, zf_error *error);

/* Reads every parameter. One that is missing (but for heads, which then keep their first values) or
 * of another shape, and a tensor of the model's inside that the model does not have, is an error
 * that names it. What else the files have is reported. Parameters of bf16 or f16 are rounded, their
 * master weights are not. */
bool exchange_import(const exchange *x, zf_program *program, zf_graph *g, const char *path,
                     weights_report *report, zf_error *error);

/* Writes parameters: their master weights, where there are any, rounded to `dtype`. gradients:
 * instead those gradients that outputs "gradient/NAME" keep, in their own dtype. All ranks must
 * call; path NULL: another one writes. */
bool exchange_export(const exchange *x, zf_program *program, zf_graph *g, const char *path,
                     bool gradients, zf_dtype dtype, zf_error *error);

/* Parameters of one program become those of another, of the same names and shapes. One that `from`
 * lacks keeps its value if it is of a head, and else is an error, as is one of `from` that is
 * neither of a head nor of `to`; what is left is reported. `path` stands for `from` in messages. */
bool exchange_copy(const exchange *x, zf_program *to, zf_graph *to_graph, zf_program *from,
                   zf_graph *from_graph, const char *path, weights_report *report, zf_error *error);

#endif
