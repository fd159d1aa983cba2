/* Tokenizers of language models, as Hugging Face's tokenizer.json describes them.
 *
 *     text --added tokens set apart--> pieces --normalize, split--> words --BPE--> ids
 *     ids --tokens--> texts --decoder--> text
 *
 * Supported: the model BPE (of bytes, as GPT-2, Llama 3 and Qwen have it, or of characters with
 * byte_fallback, as Llama 2 and Mistral); the normalizers NFC, NFD, Prepend, Replace, Strip, and
 * Sequence; the pre_tokenizers ByteLevel, Split, Digits, Metaspace, WhitespaceSplit, and Sequence;
 * the post_processors TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel, and
 * Sequence; the decoders ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, and Sequence;
 * added tokens with all their flags. What is not supported is an error that names it and its place.
 * As by transformers, truncation and padding are not done, and BPE's dropout must be 0.
 *
 * Ids equal those of the package tokenizers. A text that is not UTF-8 is an error. Regular
 * expressions need PCRE2 (regex.h); characters newer than its edition of Unicode may differ.
 *
 * A tokenizer never changes, so any number of threads may use one.
 */
#ifndef TOKENS_H
#define TOKENS_H

#include "../../zeroflow.h"
#include "../base/buffer.h"

typedef struct tokens tokens;

/* Reads a tokenizer.json, or that of a folder. NULL with *error. */
tokens *tokens_load(const char *path, zf_error *error);
/* The same of its text; `name` stands for the path in messages. */
tokens *tokens_parse(const char *text, size_t bytes, const char *name, zf_error *error);
void tokens_free(tokens *);

/* The largest id plus one. */
int32_t tokens_size(const tokens *);
/* The token of an id, *bytes long and terminated; NULL: the id has none. */
const char *tokens_text(const tokens *, int32_t id, size_t *bytes);
/* The id of a token, an added one or one of the model; -1: there is none. */
int32_t tokens_id(const tokens *, const char *text);
/* It is an added token, and a special one. */
bool tokens_is_special(const tokens *, int32_t id);

enum {
    TOKENS_FRAME = 1,  /* with the tokens that post_processor adds around a text, such as <s> */
    TOKENS_LITERAL = 2 /* special tokens in the text are ordinary text */
};

/* Appends the ids of a text. False with *error: not UTF-8; a regular expression was given up;
 * out of memory. Then *out may have some of them. */
bool tokens_encode(const tokens *, const char *text, size_t bytes, unsigned flags, id_list *out,
                   zf_error *error);

enum { TOKENS_NO_SPECIAL = 1 /* without special tokens */ };

/* Appends the text of ids; ignores ids without a token. Bytes that are not UTF-8 become U+FFFD.
 * False with *error out of memory. */
bool tokens_decode(const tokens *, const int32_t *ids, size_t count, unsigned flags, buffer *out,
                   zf_error *error);

/* The text of ids that arrive one by one. An incomplete character waits for the next id. The pieces
 * together are the text of all ids, except for bytes that are not UTF-8. */
typedef struct token_stream {
    const tokens *tokens;
    unsigned flags;
    id_list ids; /* the ids of the last piece, then those that wait */
    size_t given;
    buffer before, text;
} token_stream;

/* ids: those before the first, which decide whether its text begins with a space. */
bool token_stream_open(token_stream *, const tokens *, unsigned flags, const int32_t *ids,
                       size_t count, zf_error *error);
/* The text that this id completes, *bytes long, often 0, and terminated. Valid until the next call.
 * NULL with *error. */
const char *token_stream_put(token_stream *, int32_t id, size_t *bytes, zf_error *error);
/* The text that still waits, with U+FFFD for an incomplete character. */
const char *token_stream_end(token_stream *, size_t *bytes, zf_error *error);
void token_stream_close(token_stream *);

#endif
