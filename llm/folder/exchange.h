/* Reads and writes the parameters of a model in Hugging Face's files (weights.h). A table gives the
 * names in files where they differ from the model's. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include "weights.h"

enum { EXCHANGE_NAMES = 6 };

typedef struct exchange {
    const char *prefix; /* of most parameters: "bert."; files may lack it; NULL: there is none */
    /* The word embedding, and the weight of a head that may be tied to it. Files of tied models
     * have one or both. */
    const char *words, *head;
    /* A bias that files have under two names, of which the second counts; NULL: none. If the head
     * is not tied, it is written under both. */
    const char *bias, *head_bias;
    /* Lists, NULL after the last name. */
    const char *inside[EXCHANGE_NAMES];  /* beginnings without the prefix: every such tensor of a
                                          * file must be in the model; others may belong to another
                                          * task */
    const char *heads[EXCHANGE_NAMES];   /* beginnings: such parameters may be missing in a file */
    const char *buffers[EXCHANGE_NAMES]; /* ends: such tensors carry no information */
    /* The name of a parameter in older files; false: the same. NULL: there are none. */
    bool (*older)(const char *name, char *older, size_t size);
    /* Whether files hold a weight as [in, out]; it is [out, in] here. NULL: none. */
    bool (*turned)(zf_tensor param);
} exchange;

/* Whether a parameter is one that files may lack. */
bool exchange_is_head(const exchange *x, const char *param);

/* False where the files have a head that differs from the word embedding; also with *error. */
bool exchange_is_tied(const exchange *x, weights *w, zf_error *error);

/* Reads every parameter but those of an adapter (adapter.h). It is an error if one is missing (except heads, which then keep their
 * first values) or has another shape, or if a tensor of the model's `inside` is unknown. Other
 * tensors of the files are reported. Parameters of bf16 or f16 are rounded, their master weights
 * are not. */
bool exchange_import(const exchange *x, zf_program *program, zf_graph *g, const char *path,
                     weights_report *report, zf_error *error);

/* Writes parameters but those of an adapter: their master weights, if any, rounded to `dtype`. gradients: instead, the
 * gradients that outputs "gradient/NAME" keep, in their own dtype. All ranks must call it; path
 * NULL: another rank writes. */
bool exchange_export(const exchange *x, zf_program *program, zf_graph *g, const char *path,
                     bool gradients, zf_dtype dtype, zf_error *error);

/* Whether the parameters of one graph can be copied to another, by name, except those of an adapter.
 * One that `from` lacks keeps its value if it belongs to a head, and is an error otherwise. So is one
 * of `from` that `to` lacks and that belongs to no head. Others are reported. `path` names `from` in
 * messages. */
bool exchange_match(const exchange *x, zf_graph *to, zf_graph *from, const char *path,
                    weights_report *report, zf_error *error);
/* Copies the parameters that both programs have, except those of an adapter; shapes must be equal. */
bool exchange_copy_part(zf_program *to, zf_graph *to_graph, zf_program *from, zf_graph *from_graph,
                        const char *path, zf_error *error);
/* Both: copies all parameters of one program to another. */
bool exchange_copy(const exchange *x, zf_program *to, zf_graph *to_graph, zf_program *from,
                   zf_graph *from_graph, const char *path, weights_report *report, zf_error *error);

#endif
