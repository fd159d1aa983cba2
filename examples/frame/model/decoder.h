/* The sessions of a decoder: one takes prompts, the other one token of each text. */
#ifndef DECODER_H
#define DECODER_H

#include "session.h"

typedef struct decoder_desc {
    int64_t texts;   /* that go on together */
    int64_t context; /* tokens of a text, at most */
    int64_t chunk; /* tokens of a text that a step takes, at most; 0: 256 for all texts together */
    /* Ranks add different numbers of tokens. All of them open the decoder, and call decoder_hold
     * before the first token and after the parameters have changed: parameters that are sharded or
     * offloaded are gathered there, and not in each step */
    bool hold;
} decoder_desc;

typedef struct decoder {
    session prompt, token;
    zf_decoder steps; /* of these */
} decoder;

/* Opens both programs. d: a desc with sample and config; its shape is set. With d->share the
 * parameters are those of that session, all ranks of which must call this and zf_decoder_add;
 * else those of the folder `load`, in the dtype of session_open_folder. False with *error, and
 * then there is nothing to close. */
bool decoder_open(decoder *, const decoder_desc *, session_desc *d, const char *load, int64_t dtype,
                  zf_error *error);
bool decoder_hold(decoder *, zf_error *error); /* False with *error. */
void decoder_close(decoder *);

#endif
