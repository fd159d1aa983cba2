/* Generation: a model that continues texts token by token. Keys and values of tokens that it has seen
 * are in caches, so that each token is computed once. Two programs over the same parameters and
 * caches: one takes many tokens of each text (a prompt), the other one. The cache of a layer with a
 * window has room for the window and the tokens of a step, not for the context.
 *
 *     text 0   | past            | new tokens | room ...      |
 *     text 1   | past    | new tokens    | room ...           |
 *              0                                           context
 */
#ifndef DECODER_H
#define DECODER_H

#include "session.h"

typedef struct decoder_desc {
    int64_t texts;   /* that go on together */
    int64_t context; /* tokens of a text, at most */
    int64_t chunk;   /* tokens of a text that a step takes, at most; 0: 256 for all texts together */
    /* Of shared parameters that are sharded over ranks: all ranks gather them when the decoder is
     * opened, and each has a copy of all until it is closed. Else each step gathers them */
    bool whole;
} decoder_desc;

typedef struct decoder {
    session prompt, token;
    int64_t texts, context, chunk, vocab;
    bool rings;                 /* caches of windows have fewer tokens than the context */
    int32_t *past, *most;       /* [texts]: tokens in the caches; and at most since the text began */
    float *logits;              /* [texts, vocab], of the token after each text */
    int32_t *ids, *at, *counts; /* room for a step: [texts, chunk] twice, [texts] */
    float *row;                 /* [texts, vocab] */
} decoder;

/* Opens both programs. d: a desc with sample and config; its shape is set. With d->share the
 * parameters are those of that session, all ranks of which must call this and decoder_add; else those
 * of the folder `load`, in the dtype of session_open_folder. False with *error, and then there is
 * nothing to close. */
bool decoder_open(decoder *, const decoder_desc *, session_desc *d, const char *load, int64_t dtype,
                  zf_error *error);
void decoder_close(decoder *);

/* Adds count[k] tokens to each text k, and sets its logits if there are any. More tokens than the
 * context are an error. */
bool decoder_add(decoder *, const int32_t *const *ids, const int64_t *count, zf_error *error);
/* Goes back to the first `past` tokens of a text, or to its beginning where the cache of a window
 * no longer has what these need. Returns the number of tokens that are left. */
int64_t decoder_rewind(decoder *, int64_t text, int64_t past);

#endif
