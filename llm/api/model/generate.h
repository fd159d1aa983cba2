/* Generation: models that continue texts token by token. Keys and values of the tokens that a
 * model has seen are in caches, so that each token is computed once.
 *
 *     zf_generator      a model of a folder: its programs, its parameters
 *     zf_generate       a prompt in, an answer out
 *     zf_decoder        the same for programs of one's own: ids in, logits out
 *     zf_answer         the text of ids that arrive one by one, with texts that end it
 *     zf_answers_write  many answers by a decoder, which goes on with the next where one has ended
 *
 * A model is a function that builds the graph of a step between zf_decode_begin and
 * zf_decode_end. */

/* The shape of a step. */

typedef struct zf_decode_shape {
    int64_t texts;   /* B: texts that go on together */
    int64_t tokens;  /* T: new tokens of each text, at most */
    int64_t context; /* tokens of a text for which caches have room */
    int64_t chunk;   /* T of the largest step over the same caches */
} zf_decode_shape;

/* The inputs of a step, which zf_decoder_add writes. */
typedef struct zf_decode_inputs {
    zf_tensor input_ids; /* i32 [B, T] */
    zf_tensor last;      /* i32 [B], b * T + t of the last new token */
    zf_tensor positions; /* i32 [B, T], the place of each token in its text */
    zf_tensor past;      /* i32 [B], tokens in the caches */
    zf_tensor count;     /* i32 [B], new tokens */
    zf_decode_shape shape;
} zf_decode_inputs;

ZF_API zf_decode_inputs zf_decode_begin(zf_graph *g, const zf_decode_shape *shape);
/* Gives the attention of a layer its caches, f32 [B, context, width]; width: of its keys. With a
 * window they are a ring of fewer tokens. Takes its dropout away. */
ZF_API void zf_decode_caches(zf_attention_desc *attention, const zf_decode_inputs *in,
                             int64_t width);
/* The output "logits" f32 [B, vocab] of the token after each text. x [B * T, H]: from the last
 * layer; words [vocab, H]: the head's weight, which may be quantized. */
ZF_API zf_tensor zf_decode_end(zf_tensor x, zf_tensor words, const zf_decode_inputs *in);
/* The tokens of a cache that a window needs with steps of `chunk` tokens, where they are fewer than
 * the context: it is a ring then. 0: it is none. */
ZF_API int64_t zf_decode_ring(int64_t window, int64_t context, int64_t chunk);

/* A compiled step, which the caller owns. */
typedef struct zf_decode_step {
    zf_graph *graph;
    zf_program *program;
    int64_t tokens; /* T */
} zf_decode_step;

/* Two steps over the same parameters and caches: one takes many tokens of each text (a prompt), the
 * other one. */
typedef struct zf_decoder_desc {
    zf_decode_step prompt, token;
    int64_t texts, context;
    bool rings; /* caches of windows have fewer tokens than the context */
} zf_decoder_desc;

typedef struct zf_decoder {
    zf_decode_step prompt, token;
    int64_t texts, context, vocab;
    bool rings;
    int32_t *past;              /* [texts]: tokens in the caches */
    float *logits;              /* [texts, vocab], of the token after each text */
    int32_t *most;              /* [texts]: tokens in the caches, at most since the text began */
    int32_t *ids, *at, *counts; /* room for a step: [texts, T] twice, [2 texts] */
    float *row;                 /* [texts, vocab] */
    double prompt_seconds;      /* in steps of `prompt`, since it was opened */
} zf_decoder;

/* False with *error, out of memory. */
ZF_API bool zf_decoder_open(zf_decoder *, const zf_decoder_desc *, zf_error *error);
ZF_API void zf_decoder_close(zf_decoder *); /* all zero: nothing */

/* Adds count[k] tokens to each text k, and sets its logits if there are any. More tokens than the
 * context are an error, and so are logits that are not finite (ZF_ERR_NAN, which zf_decoder_blame
 * explains). With sharded parameters that are not held (zf_hold) all ranks must call it. Where the
 * programs have temporary caches (zf_compile_desc), and another program has run in their memory,
 * texts that go on are ZF_ERR_STAGE, and others begin anew. */
ZF_API bool zf_decoder_add(zf_decoder *, const int32_t *const *ids, const int64_t *count,
                           zf_error *error);
/* After ZF_ERR_NAN: adds to *error the name of a parameter that has a value that is not finite, or
 * that all are finite. With sharded parameters all ranks must call it. */
ZF_API void zf_decoder_blame(const zf_decoder *, zf_error *error);
/* Goes back to the first `past` tokens of a text, or to its beginning where the cache of a window
 * no longer has what these need. Returns the number of tokens that are left. */
ZF_API int64_t zf_decoder_rewind(zf_decoder *, int64_t text, int64_t past);

/* How an answer is written. */
typedef struct zf_answer_desc {
    const zf_tokenizer *tokenizer; /* one of these two */
    const zf_wordpiece *words;
    const zf_chat *chat; /* prompts are messages of a user; NULL: texts that are continued */
    int32_t begin;       /* of words: the token before a prompt */
    const int32_t *ends; /* [end_count] tokens that end it; negative ones count for nothing */
    int32_t end_count;
    bool keep_end; /* the token that ends it is one of its ids, and no part of its text */
    const char *const *stops; /* [stop_count] texts that end it, and are not part of it */
    int32_t stop_count;
    int64_t vocab; /* ids of the model, beyond which a prompt's must not be; 0: not known */
} zf_answer_desc;

/* Why an answer has ended. */
typedef enum zf_finish {
    ZF_FINISH_LENGTH, /* it was cut: it has as many tokens as it may have */
    ZF_FINISH_END,    /* a token of zf_answer_desc.ends */
    ZF_FINISH_STOP    /* a text of zf_answer_desc.stops */
} zf_finish;

/* An answer that grows. */
typedef struct zf_answer {
    zf_ids ids;   /* all ids, first those of the prompt */
    size_t given; /* ids of the prompt */
    zf_text text; /* the text, which may begin with that of the prompt */
    bool done;
    zf_finish finish; /* of one that is done */
    size_t prompt, shown; /* bytes of the prompt; those that zf_answer_shown gave */
    uint64_t owner;       /* of its random numbers (zf_sampler_dice) */
    float *logp;          /* of each drawn token, of zf_answers_desc.logp, or NULL; freed with it */
    zf_token_stream stream;
} zf_answer;

/* Appends the ids of a prompt: a text to be continued, without an end token that the tokenizer
 * adds, or a message of d->chat. False with *error. */
ZF_API bool zf_answer_prompt(const zf_answer_desc *d, const char *text, size_t bytes, zf_ids *out,
                             zf_error *error);
/* The same of a conversation (zf_chat_write), and the beginning of an answer. Needs d->chat. */
ZF_API bool zf_answer_prompt_chat(const zf_answer_desc *d, const zf_json *conversation,
                                  zf_ids *out, zf_error *error);

/* Begins an answer to the ids in a->ids, which the caller has added to an answer that is all
 * zero, and to the text in a->text. False with *error: there are no ids, one that the model does
 * not have, or out of memory. */
ZF_API bool zf_answer_begin(zf_answer *a, const zf_answer_desc *d, zf_error *error);
ZF_API void zf_answer_free(zf_answer *a);
/* Adds a token, or ends the answer: a negative id (its length), a token of `ends`, a text of
 * `stops`. False with *error out of memory. */
ZF_API bool zf_answer_put(zf_answer *a, const zf_answer_desc *d, int32_t id, zf_error *error);
/* The text that is new since the last call, *bytes long, without an end that could become a text of
 * `stops`. Valid until the next call. */
ZF_API const char *zf_answer_shown(zf_answer *a, const zf_answer_desc *d, size_t *bytes);

/* How many answers are written together. */
typedef struct zf_answers_desc {
    zf_decoder *decoder; /* whose texts go on together; answers may be more, or fewer */
    const zf_answer_desc *how;
    zf_sampling sampling; /* top_p and repetition 0: 1 */
    uint64_t seed;
    int64_t tokens; /* of an answer, at most */
    bool logp;      /* the log-probability of each drawn token is kept (zf_sampler_logp) */
    bool slides;    /* a text for which the context has no room goes on with its last half */
    void (*show)(void *user, zf_answer *a); /* after each token; NULL: not called */
    void *user;
} zf_answers_desc;

/* Writes answers that have begun (zf_answer_begin), each with an owner of its random numbers. Where
 * one has ended, the decoder goes on with the next one. An answer depends on no other and not on
 * the number of texts of the decoder, except that products of one row round otherwise than those of
 * several: it is the same for each decoder of two texts or more. Where parameters are sharded, all
 * ranks must write the same answers. False with *error: a prompt and its answer do not fit the
 * context; logits that are not finite; out of memory. */
ZF_API bool zf_answers_write(zf_answer *answers, int64_t count, const zf_answers_desc *d,
                             zf_error *error);

/* A conversation with a decoder of one text, whose caches keep what they have of it; all zero:
 * nothing has been said. */
typedef struct zf_talk {
    zf_chat_message *messages; /* [count], with texts of their own; roles are the caller's */
    size_t count, room;
    zf_ids seen; /* the tokens in the caches */
} zf_talk;

/* Adds a message. role: "system", "user", ..., which must stay. False with *error out of memory. */
ZF_API bool zf_talk_say(zf_talk *, const char *role, const char *text, size_t bytes,
                        zf_error *error);
/* Answers the messages, and adds the answer to them. d: without `logp` and `slides`; d->how with a
 * chat. *answer: all zero; to be freed by zf_answer_free all the same. False with *error, and the
 * messages are as before: ZF_ERR_LIMIT where they and an answer do not fit the context; else that
 * of zf_answers_write. */
ZF_API bool zf_talk_answer(zf_talk *, const zf_answers_desc *d, zf_answer *answer,
                           zf_error *error);
ZF_API void zf_talk_forget(zf_talk *, size_t count); /* all messages but the first `count` */
ZF_API void zf_talk_free(zf_talk *);

/* A family of models, for zf_generator. */
typedef struct zf_model {
    const zf_config_table *config;
    /* Builds the graph of a step. A mistake is the graph's error. */
    void (*build)(zf_graph *g, const void *config, const zf_decode_shape *shape);
    zf_exchange exchange;
} zf_model;

typedef struct zf_generator_desc {
    const zf_model *model; /* NULL: zf_causal_model() */
    const char *folder;  /* with config.json and weights of Hugging Face */
    zf_backend *backend; /* which must live longer */
    /* The model as this tuner has trained it so far: parameters are shared, so it must live longer,
     * and may train on between answers. model, folder and backend are the tuner's, and NULL here.
     * NULL: that of the folder's files */
    const struct zf_tuner *tuner;
    int64_t context;     /* tokens; 0: the model's positions, which it must not exceed */
    int64_t chunk;       /* tokens of a prompt that a step takes, at most; 0: 256 */
} zf_generator_desc;

enum { ZF_GENERATOR_ENDS = ZF_CONFIG_ENDS };

/* A model of a folder, for one text at a time. */
typedef struct zf_generator {
    zf_config_any config;
    zf_graph *graphs[2]; /* of prompts, of one token; and their programs */
    zf_program *programs[2];
    zf_decoder decoder;
    int32_t ends[ZF_GENERATOR_ENDS]; /* the ids that end a text by its files; -1: none */
    zf_folder_generation says; /* its generation_config.json: .how = says.how does as it says */
} zf_generator;

/* False with *error, and then there is nothing to close. */
ZF_API bool zf_generator_open(zf_generator *, const zf_generator_desc *, zf_error *error);
ZF_API void zf_generator_close(zf_generator *); /* all zero: nothing */

typedef struct zf_generate_desc {
    zf_sampling how; /* all zero: always the most likely token */
    uint64_t seed;
    int64_t tokens; /* of the answer, at most; 0: 64, or half of a context of fewer than 128 */
    const char *const *stops; /* [stop_count] texts that end it */
    int32_t stop_count;
    void (*show)(void *user, const char *text, size_t bytes); /* new text; NULL: nobody waits */
    void *user;
    const zf_chat *chat; /* the prompt is a message of a user; NULL: a text that is continued */
    zf_talk *talk; /* with `chat`: the message's conversation, which goes on; NULL: it begins */
} zf_generate_desc;

/* Appends the answer to a prompt, without the prompt. False with *error, and a conversation is as
 * before:
 * the prompt and the answer do not fit the context; the tokenizer's errors; out of memory. */
ZF_API bool zf_generate(zf_generator *g, const zf_tokenizer *tokenizer, const char *prompt,
                        const zf_generate_desc *desc, zf_text *out, zf_error *error);
