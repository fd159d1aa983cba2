/* Tokenizers of language models, as Hugging Face's tokenizer.json describes them.
 *
 *     text --added tokens set apart--> pieces --normalize, split--> words --model--> ids
 *     ids --tokens--> texts --decoder--> text
 *
 * Supported: the models BPE (of bytes, as GPT-2, Llama 3 and Qwen have it, or of characters with
 * byte_fallback, as Llama 2 and Mistral) and Unigram, with or without byte_fallback; the
 * normalizers Lowercase, NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, and Sequence; the
 * pre_tokenizers ByteLevel, Split, Digits, Metaspace, WhitespaceSplit, and Sequence; the
 * post_processors TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel, and Sequence;
 * the decoders ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, and Sequence; added tokens
 * with all their flags. What is not supported is an error that names it and its place, and so is a
 * member that is not read. As by transformers, truncation and padding are not done, and BPE's
 * dropout must be 0.
 *
 * Of a folder, special tokens that only tokenizer_config.json, special_tokens_map.json or
 * added_tokens.json have are added as transformers 5 adds them; split_special_tokens is obeyed, and
 * other members that would change texts must say what tokenizer.json says.
 *
 * Ids equal those of the package tokenizers. A text that is not UTF-8 is an error. Regular
 * expressions need PCRE2; characters newer than its edition of Unicode may differ.
 *
 * A tokenizer never changes, so any number of threads may use one.
 */

typedef struct zf_tokenizer zf_tokenizer;

/* False: the implementation was compiled without PCRE2. A tokenizer that needs regular
 * expressions is an error then, which says so. */
ZF_API bool zf_regex_there(void);

/* Reads a tokenizer.json, or that of a folder. NULL with *error. */
ZF_API zf_tokenizer *zf_tokenizer_open(const char *path, zf_error *error);

/* The same of its text; `name` stands for the path in messages. */
ZF_API zf_tokenizer *zf_tokenizer_parse(const char *text, size_t bytes, const char *name,
                                        zf_error *error);
ZF_API void zf_tokenizer_free(zf_tokenizer *);

/* The largest id plus one. */
ZF_API int32_t zf_tokenizer_size(const zf_tokenizer *);

/* The token of an id, *bytes long and terminated; NULL: the id has none. */
ZF_API const char *zf_tokenizer_token(const zf_tokenizer *, int32_t id, size_t *bytes);

/* The id of a token, an added one or one of the model; -1: there is none. */
ZF_API int32_t zf_tokenizer_id(const zf_tokenizer *, const char *text);

/* It is an added token, and a special one. */
ZF_API bool zf_tokenizer_is_special(const zf_tokenizer *, int32_t id);

enum {
    ZF_TOKENIZER_FRAME =
        1, /* with the tokens that post_processor adds around a text, such as <s> */
    ZF_TOKENIZER_LITERAL = 2 /* special tokens in the text are ordinary text */
};

/* Appends the ids of a text. False with *error: not UTF-8; a regular expression was given up;
 * out of memory. Then *out may have some of them. */
ZF_API bool zf_tokenizer_encode(const zf_tokenizer *, const char *text, size_t bytes,
                                unsigned flags, zf_ids *out, zf_error *error);

enum { ZF_TOKENIZER_NO_SPECIAL = 1 /* without special tokens */ };

/* Appends the text of ids; ignores ids without a token. Bytes that are not UTF-8 become U+FFFD.
 * False with *error out of memory. */
ZF_API bool zf_tokenizer_decode(const zf_tokenizer *, const int32_t *ids, size_t count,
                                unsigned flags, zf_text *out, zf_error *error);

/* False with *error, which names the first token that a model of `vocab` ids does not have: a
 * folder may have more tokens than ids. tokens or words: where the ids are from; the other is
 * NULL. */
ZF_API bool zf_ids_check(const int32_t *ids, size_t count, int64_t vocab,
                         const zf_tokenizer *tokens, const zf_wordpiece *words, zf_error *error);

/* The text of ids that arrive one by one. An incomplete character waits for the next id. The pieces
 * together are the text of all ids, except for bytes that are not UTF-8. */
typedef struct zf_token_stream {
    const zf_tokenizer *tokens;
    unsigned flags;
    zf_ids ids; /* the ids of the last piece, then those that wait */
    size_t given;
    zf_text before, text;
} zf_token_stream;

/* ids: those before the first, which decide whether its text begins with a space. */
ZF_API bool zf_token_stream_open(zf_token_stream *, const zf_tokenizer *, unsigned flags,
                                 const int32_t *ids, size_t count, zf_error *error);

/* The text that this id completes, *bytes long, often 0, and terminated. Valid until the next call.
 * NULL with *error. */
ZF_API const char *zf_token_stream_put(zf_token_stream *, int32_t id, size_t *bytes,
                                       zf_error *error);

/* The text that still waits, with U+FFFD for an incomplete character. */
ZF_API const char *zf_token_stream_end(zf_token_stream *, size_t *bytes, zf_error *error);
ZF_API void zf_token_stream_close(zf_token_stream *);
