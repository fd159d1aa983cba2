/* Reads and writes the parameters of a model in Hugging Face's files (zf_weights). A table gives
 * the names in files where they differ from the model's. */

enum { ZF_EXCHANGE_NAMES = 6 };

typedef struct zf_exchange {
    const char *prefix; /* of most parameters: "bert."; files may lack it; NULL: there is none */
    /* The word embedding, and the weight of a head that may be tied to it. Files of tied models
 * have one or both. other_words: those of some of the models; NULL after the last */
    const char *words, *other_words[ZF_EXCHANGE_NAMES], *head;
    const char *score; /* the weight that a model which scores has instead of a head; NULL: there is
                        * none */
    /* A bias that files have under two names, of which the second counts; NULL: none. If the head
     * is not tied, it is written under both. */
    const char *bias, *head_bias;
    /* Lists, NULL after the last name. */
    const char *inside[ZF_EXCHANGE_NAMES]; /* beginnings without the prefix: every such tensor of a
                                          * file must be in the model; others may belong to another
                                          * task */
    const char *heads[ZF_EXCHANGE_NAMES]; /* beginnings: such parameters may be missing in a file */
    const char *buffers[ZF_EXCHANGE_NAMES]; /* ends: such tensors carry no information */
    /* The name of a parameter in older files; false: the same. NULL: there are none. */
    bool (*older)(const char *name, char *older, size_t size);
    /* A parameter of three dimensions with this in its name is several tensors in files, one for
     * each index of the first dimension, whose number follows it there: of "experts.", a.experts.w
     * [2, n, k] is a.experts.0.w and a.experts.1.w. NULL: none is */
    const char *parts;
    /* The end of names of parameters that files may lack, which then have their first values; NULL:
     * there are none. */
    const char *fresh;
    /* Of a model of several parts: what files may have before the names of the text part, or after
     * the prefix ("language_model."); NULL: nothing. And beginnings of the other parts' names, with
     * and without the prefix, which are left out and counted (zf_weights_report.others) */
    const char *within;
    const char *others[ZF_EXCHANGE_NAMES];
    /* Whether files hold a weight as [in, out]; it is [out, in] here. NULL: none. */
    bool (*turned)(zf_tensor param);
    /* Of another kind of model, which a graph is that has its word embedding; NULL: there is
     * none */
    const struct zf_exchange *next;
} zf_exchange;

/* The parameter of the graph that files call so: one that an adapter keeps has the adapter's name
 * in its own. Invalid where there is none. */
ZF_API zf_tensor zf_exchange_find(zf_graph *g, const char *name);

/* Whether a parameter is one that files may lack. */
ZF_API bool zf_exchange_is_head(const zf_exchange *x, const char *param);

/* False where the files have a head that differs from the word embedding; also with *error. */
ZF_API bool zf_exchange_is_tied(const zf_exchange *x, zf_weights *w, zf_error *error);

/* Reads every parameter but those of an adapter's products. It is an error if one is missing
 * (except heads, `fresh` and what an adapter keeps, which then have their first values) or has another
 * shape, or if a tensor of the model's `inside` is unknown. Other tensors of the files are
 * reported. Parameters of bf16 or f16 are rounded, their master weights are not. */
ZF_API bool zf_exchange_import(const zf_exchange *x, zf_program *program, zf_graph *g,
                               const char *path, zf_weights_report *report, zf_error *error);

/* Writes parameters but those of an adapter's products: their master weights, if any, rounded to
 * `dtype`; those that it keeps without its name.
 * gradients: instead, the gradients that outputs "gradient/NAME" keep, in their own dtype. A
 * symbolic link at `path` is replaced; what it points to stays. All ranks must call it; path NULL:
 * another rank writes. */
ZF_API bool zf_exchange_export(const zf_exchange *x, zf_program *program, zf_graph *g,
                               const char *path, bool gradients, zf_dtype dtype, zf_error *error);

/* Opens a checkpoint, of ranks in any layout, for an export of the parameters of a graph: master
 * weights, if it has any, or, with `average`, the averages of --ema. All of it is checked, and that it
 * has the parameters. To be closed by zf_checkpoint_close; NULL with *error. */
ZF_API zf_checkpoint *zf_exchange_open(const char *path, bool average, zf_graph *g,
                                       const zf_allocator *allocator, zf_error *error);

/* Writes what zf_exchange_export would write of a program with these values, one parameter at a time:
 * no more than that is in memory. */
ZF_API bool zf_exchange_export_from(const zf_exchange *x, zf_checkpoint *from, zf_graph *g,
                                    const char *path, zf_dtype dtype, zf_error *error);

/* Whether the parameters of one graph can be copied to another, by name, except those of an
 * adapter's products. One that `from` lacks keeps its value if it belongs to a head or is kept by
 * an adapter, and is an error otherwise. So is one of `from` that `to` lacks and that belongs to no
 * head. Others are reported. `path` names `from` in messages. */
ZF_API bool zf_exchange_match(const zf_exchange *x, zf_graph *to, zf_graph *from, const char *path,
                              zf_weights_report *report, zf_error *error);

/* Copies the parameters that both programs have, except those of an adapter's products; shapes must
 * be equal. */
ZF_API bool zf_exchange_copy_part(zf_program *to, zf_graph *to_graph, zf_program *from,
                                  zf_graph *from_graph, const char *path, zf_error *error);

/* Both: copies all parameters of one program to another. */
ZF_API bool zf_exchange_copy(const zf_exchange *x, zf_program *to, zf_graph *to_graph,
                             zf_program *from, zf_graph *from_graph, const char *path,
                             zf_weights_report *report, zf_error *error);
