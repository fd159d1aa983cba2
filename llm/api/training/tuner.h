/* Fine-tuning of a model of zf_causal_model, or of an adapter of it, on examples (tuning.h), by one
 * rank. More ranks, micro-batches, checkpoints and logs are of programs of one's own, or of
 * build/llm.
 *
 *     zf_tuner t;
 *     zf_tuner_desc d = {.folder = "DIR", .data = "chats.jsonl", .tokenizer = words, .chat = &chat,
 *                        .backend = cpu, .training.lora.rank = 8};
 *     zf_tuner_open(&t, &d, &error);
 *     for (int64_t step = 0; step < 100; step++) zf_tuner_step(&t, 1e-4, &loss, &error);
 *     zf_tuner_save(&t, "adapter", &error);
 *
 * A zf_generator answers by what has been trained (zf_generator_desc.tuner). */

typedef struct zf_tuner_desc {
    const char *folder; /* config.json and weights of Hugging Face; it is not copied */
    const char *data;   /* JSON Lines: prompts with responses, or chats */
    const zf_tokenizer *tokenizer; /* of the folder */
    /* The template of chats, and the token that ends a response. NULL, or one without a template: a
     * prompt is followed by its response */
    const zf_chat *chat;
    zf_backend *backend; /* which must live longer */
    /* The passes of a step, for one rank and without micro-batches; loss and lr are set. With a
     * member of `lora` an adapter is trained, and the base stays */
    zf_training training;
    int64_t sequence; /* tokens of a row, at most the model's positions; 0: 512 or these */
    int64_t batch;    /* rows of a step; 0: 8 */
    uint64_t seed;    /* of the order of examples, of an adapter's first values, of dropout */
} zf_tuner_desc;

/* What a program may read: the numbers of examples and rows in `data`, the configuration. */
typedef struct zf_tuner {
    zf_causal_config config;
    zf_tuning data;
    zf_training training; /* as given, but for loss and lr */
    const char *folder;
    zf_backend *backend;
    zf_graph *graph;
    zf_program *program;
    zf_causal_batch batch;
    uint64_t seed;
    int64_t steps; /* that have been made */
} zf_tuner;

/* False with *error, and then there is nothing to close: the folder, the data or the passes are
 * wrong, or out of memory. */
ZF_API bool zf_tuner_open(zf_tuner *, const zf_tuner_desc *, zf_error *error);
ZF_API void zf_tuner_close(zf_tuner *); /* all zero: nothing */

/* Trains on the next `batch` rows at the rate lr: every epoch has all rows that are not held out,
 * in an order of its own. *loss, which may be NULL: the mean cross-entropy of a labelled token,
 * before the update. False with *error. */
ZF_API bool zf_tuner_step(zf_tuner *, double lr, double *loss, zf_error *error);

/* Writes a folder, which is made if it does not exist: PEFT's files of the adapter, or a model for
 * transformers with all weights in f32, the files of its tokenizer and config.json
 * (zf_folder_export). False with *error. */
ZF_API bool zf_tuner_save(zf_tuner *, const char *folder, zf_error *error);
