/* Folders with a model, in the format of Hugging Face's transformers and tokenizers.
 *
 *     config.json  model.safetensors  vocab.txt  tokenizer.json  tokenizer_config.json
 *     special_tokens_map.json
 *
 * A checkpoint of zf_save is a folder too: its weights are params.safetensors or one file per rank,
 * listed in manifest.json. */

ZF_API bool zf_folder_is(const char *path); /* a folder, of any kind */
ZF_API bool zf_folder_is_checkpoint(const char *path);

/* The dtype in which a checkpoint was trained; f32 where it does not say. */
ZF_API zf_dtype zf_folder_precision(const char *path);

/* Loads the parameters of a checkpoint into a program; masters: the master weights of those trained
 * in 16 bits; merge: the program may have others. False with *error. */
ZF_API bool zf_folder_load(zf_program *program, const char *path, bool masters, bool merge,
                           zf_error *error);
ZF_API bool zf_folder_has_vocab(const char *path);

/* It is a checkpoint, or has model.safetensors or the index of several. */
ZF_API bool zf_folder_has_weights(const char *path);

/* The folder has a tokenizer.json, and no vocab.txt; its model is for zf_tokenizer_open: BPE, or
 * a kind that is refused there. */
ZF_API bool zf_folder_has_bpe(const char *path);

/* The files that are kept as they are: first those of a tokenizer with a BPE model (tokenizer.json,
 * tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja), then
 * those of a model (generation_config.json, and reward.json, which says how a model that scores has
 * scored held-out texts). at NULL: a file that is not there. */
enum { ZF_FOLDER_TOKENIZER_FILES = 5, ZF_FOLDER_REWARD = 6, ZF_FOLDER_FILES };
ZF_API const char *zf_folder_file(int which);

typedef struct zf_folder_texts {
    zf_text text[ZF_FOLDER_FILES];
} zf_folder_texts;

/* Reads those of a tokenizer from one folder, those of a model from another; NULL: not. The texts
 * must be all zero, or read from the other one. False with *error; to be freed all the same. */
ZF_API bool zf_folder_texts_read(zf_folder_texts *, const char *tokenizer, const char *model,
                                 zf_error *error);
ZF_API bool zf_folder_texts_write(const zf_folder_texts *, const char *folder, zf_error *error);
ZF_API void zf_folder_texts_free(zf_folder_texts *);
ZF_API bool zf_folder_make(const char *path, zf_error *error); /* if it does not exist */

/* What a folder's generation_config.json says about answers. */
typedef struct zf_folder_generation {
    bool has_ends, has_sampling, has_penalty; /* it says which ids, how, with which penalty */
    int32_t ends[ZF_CONFIG_ENDS];             /* ids that end a text; -1 after the last */
    zf_sampling how; /* as transformers completes it: without do_sample a temperature of 0 */
} zf_folder_generation;

/* Without such a file it says nothing. Lengths are the caller's. A member that is not read and may
 * change the text is an error that names it. False with *error. */
ZF_API bool zf_folder_generation_read(zf_folder_generation *g, const char *folder,
                                      zf_error *error);

/* The ids that end a text, as transformers takes them: those of generation_config.json, else those
 * of config.json; -1 after the last. */
ZF_API void zf_folder_generation_ends(const zf_folder_generation *g, const zf_config_facts *facts,
                               int32_t ends[ZF_CONFIG_ENDS]);

/* The vocabulary of a folder of either kind, or of a file (zf_wordpiece_open). `options`
 * override its own; may be NULL. NULL with *error. */
ZF_API zf_wordpiece *zf_folder_vocab(const char *path, const zf_wordpiece_options *options,
                                     zf_error *error);

/* The special tokens that a tokenizer adds to a text. */
typedef enum zf_folder_frame {
    ZF_FOLDER_BERT, /* [CLS] A [SEP], [CLS] A [SEP] B [SEP] */
    ZF_FOLDER_GPT   /* [SEP] A: [SEP] ends a text, so it also comes before one */
} zf_folder_frame;

/* Writes the files of a tokenizer. longest: maximum number of tokens in a text. */
ZF_API bool zf_folder_put_tokenizer(const char *path, const zf_wordpiece *vocab,
                                    zf_folder_frame frame, int64_t longest, zf_error *error);

enum { ZF_FOLDER_PATH = 1024 };

/* Begins an export of the model in folder `from` to `to`: a file X.safetensors, or a folder for
 * transformers, which gets a config.json and, if `from` has a vocabulary, the files of a tokenizer
 * (training on a batch file leaves none), and the files that are kept as they are. Files are
 * replaced as by zf_file_save; one that `to` has and `from` has not is an error, since it would
 * change what is read. A folder that holds a checkpoint or an adapter is an error too. Frees
 * `config`. weights: the path of the file of weights, which the caller writes. */
ZF_API bool zf_folder_export(const char *to, const char *from, zf_json_writer *config,
                             zf_folder_frame frame, int64_t longest, char weights[ZF_FOLDER_PATH],
                             zf_error *error);

/* The tokenizer files of a checkpoint: its vocab.txt as it was read, even if the file has changed
 * since; or, without one, tokenizer.json; and tokenizer_config.json. */
typedef struct zf_folder_tokenizer {
    zf_attachment files[2];
    zf_json_writer *json, *config; /* own the texts of these */
} zf_folder_tokenizer;
ZF_API bool zf_folder_tokenizer_open(zf_folder_tokenizer *, const zf_wordpiece *vocab,
                                     zf_folder_frame frame, int64_t longest, zf_error *error);
ZF_API void zf_folder_tokenizer_close(zf_folder_tokenizer *);
