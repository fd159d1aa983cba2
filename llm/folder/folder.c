/* The files of a folder with a model: what there is of it, its tokenizer, exports. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool zf_folder_is(const char *path)
{
    struct stat about;
    return !stat(path, &about) && S_ISDIR(about.st_mode);
}

static bool zfl_has(const char *path, const char *name)
{
    char file[ZF_FOLDER_PATH];
    snprintf(file, sizeof file, "%s/%s", path, name);
    return !access(file, F_OK);
}

bool zf_folder_is_checkpoint(const char *path) { return zfl_has(path, "manifest.json"); }

zf_dtype zf_folder_precision(const char *path)
{
    char note[8] = "f32";
    zf_error none;
    (void)zf_checkpoint_note(path, "precision", note, sizeof note, &none);
    return !strcmp(note, "bf16") ? ZF_BF16 : !strcmp(note, "f16") ? ZF_F16 : ZF_F32;
}

bool zf_folder_load(zf_program *program, const char *path, bool masters, bool merge,
                    zf_error *error)
{
    zf_store *store = zf_program_store(program);
    zf_status status = zf_load(
        store, path, &(zf_load_desc){.params_only = true, .masters = masters, .merge = merge});
    return !status || zfl_fail(error, status, "%s", zf_store_error(store));
}

bool zf_folder_has_vocab(const char *path)
{
    return zfl_has(path, "vocab.txt") || zfl_has(path, "tokenizer.json");
}

bool zf_folder_has_weights(const char *path)
{
    return zf_folder_is_checkpoint(path) || zfl_has(path, "model.safetensors") ||
           zfl_has(path, "model.safetensors.index.json");
}

bool zf_folder_has_bpe(const char *path)
{
    char file[ZF_FOLDER_PATH];
    zf_json *json;
    const zf_json *model;
    const char *type;
    bool is;
    if (zfl_has(path, "vocab.txt") || !zfl_has(path, "tokenizer.json")) return false;
    snprintf(file, sizeof file, "%s/tokenizer.json", path);
    json = zf_json_read(file, NULL, &(zf_error){ZF_OK, ""});
    model = zf_json_member(json, "model");
    type = zf_json_string(zf_json_member(model, "type"), NULL);
    is = type ? strcmp(type, "WordPiece") != 0 : zf_json_member(model, "merges") != NULL;
    zf_json_free(json);
    return is;
}

/* The path is a file of weights, not a folder. */
static bool zfl_names_weights(const char *path)
{
    static const char end[] = ".safetensors";
    size_t n = strlen(path);
    return n >= sizeof end - 1 && !strcmp(path + n - (sizeof end - 1), end);
}

zf_wordpiece *zf_folder_vocab(const char *path, const zf_wordpiece_options *options,
                              zf_error *error)
{
    char cased[8] = "";
    zf_wordpiece_options all = {ZF_WORDPIECE_UNSAID, ZF_WORDPIECE_UNSAID, ZF_WORDPIECE_UNSAID,
                                ZF_WORDPIECE_UNSAID};
    if (options) all = *options;
    if (zf_folder_is_checkpoint(path) && !zfl_has(path, "tokenizer_config.json")) {
        if (zf_checkpoint_note(path, "cased", cased, sizeof cased, error)) return NULL;
        if (!all.lower_case)
            all.lower_case = strcmp(cased, "yes") ? ZF_WORDPIECE_YES : ZF_WORDPIECE_NO;
    }
    return zf_wordpiece_open(path, &all, error);
}

const char *zf_folder_file(int which)
{
    static const char *const names[] = {"tokenizer.json",          "tokenizer_config.json",
                                        "special_tokens_map.json", "added_tokens.json",
                                        "chat_template.jinja",     "generation_config.json",
                                        "reward.json"};
    return names[which];
}

bool zf_folder_texts_read(zf_folder_texts *t, const char *tokenizer, const char *model,
                          zf_error *error)
{
    char file[ZF_FOLDER_PATH];
    for (int k = 0; k < ZF_FOLDER_FILES; k++) {
        const char *folder = k < ZF_FOLDER_TOKENIZER_FILES ? tokenizer : model;
        if (!folder || !zfl_has(folder, zf_folder_file(k))) continue;
        snprintf(file, sizeof file, "%s/%s", folder, zf_folder_file(k));
        if (!zf_text_read(file, &t->text[k], error)) return false;
    }
    return true;
}

bool zf_folder_texts_write(const zf_folder_texts *t, const char *folder, zf_error *error)
{
    char file[ZF_FOLDER_PATH];
    for (int k = 0; k < ZF_FOLDER_FILES; k++) {
        const zf_text *text = &t->text[k];
        snprintf(file, sizeof file, "%s/%s", folder, zf_folder_file(k));
        if (text->at && !zf_file_save(file, text->at, text->count, error)) return false;
    }
    return true;
}

void zf_folder_texts_free(zf_folder_texts *t)
{
    for (int k = 0; k < ZF_FOLDER_FILES; k++) zf_text_free(&t->text[k]);
}

/* ---------------------------------------------------------------------------------- writing */

bool zf_folder_make(const char *path, zf_error *error)
{
    if (!mkdir(path, 0777) || (errno == EEXIST && zf_folder_is(path))) return true;
    return zfl_fail(error, ZF_ERR_IO, "cannot make the folder %s: %s", path, strerror(errno));
}

/* Writes a JSON writer's text to a file of the folder, and frees the writer. */
static bool zfl_put_json(const char *path, const char *name, zf_json_writer *json, zf_error *error)
{
    char file[ZF_FOLDER_PATH];
    zf_text text = {.at = NULL};
    size_t bytes;
    const char *json_text = json ? zf_json_text(json, &bytes, error) : NULL;
    bool good = json_text || (json ? false : zfl_fail(error, ZF_ERR_NOMEM, "out of memory"));
    snprintf(file, sizeof file, "%s/%s", path, name);
    if (good) zf_text_add(&text, json_text, bytes), zf_text_add_string(&text, "\n");
    if (text.failed) good = zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    good = good && zf_file_save(file, text.at, text.count, error);
    zf_text_free(&text);
    zf_json_writer_free(json);
    return good;
}

static void zfl_folder_begin(zf_json_writer *w, const char *key)
{
    zf_json_put_key(w, key);
    zf_json_begin_object(w);
}

/* The special tokens, by transformers' names. */
static void zfl_put_special_tokens(zf_json_writer *w, zf_folder_frame frame)
{
    static const char *const keys[ZF_WORDPIECE_SPECIAL_COUNT] = {
        "pad_token", "unk_token", "cls_token", "sep_token", "mask_token"};
    for (int k = 0; k < ZF_WORDPIECE_SPECIAL_COUNT; k++)
        zf_json_put_text_member(w, keys[k], zf_wordpiece_special_token(k));
    if (frame != ZF_FOLDER_GPT) return;
    zf_json_put_text_member(w, "bos_token", zf_wordpiece_special_token(ZF_WORDPIECE_SEP));
    zf_json_put_text_member(w, "eos_token", zf_wordpiece_special_token(ZF_WORDPIECE_SEP));
}

/* The properties of an added token, without its id. */
static void zfl_put_added_token(zf_json_writer *w, const zf_wordpiece *vocab, int32_t id)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    zf_json_put_text_member(w, "content", zf_wordpiece_token(vocab, id));
    for (int flag = 0; flag < 4; flag++) zf_json_put_bool_member(w, flags[flag], false);
    zf_json_put_bool_member(w, "special", zf_wordpiece_is_special(vocab, id));
}

static zf_json_writer *zfl_tokenizer_config(const zf_wordpiece *vocab, zf_folder_frame frame,
                                            int64_t longest)
{
    zf_wordpiece_options o = zf_wordpiece_options_of(vocab);
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    /* A BertTokenizer adds [CLS] and [SEP] by itself, which is wrong for GPT, and drops
     * controls. */
    zf_json_put_text_member(w, "tokenizer_class",
                            frame == ZF_FOLDER_BERT && o.clean_text == ZF_WORDPIECE_YES
                                ? "BertTokenizer"
                                : "PreTrainedTokenizerFast");
    zf_json_put_bool_member(w, "do_lower_case", o.lower_case == ZF_WORDPIECE_YES);
    zf_json_put_bool_member(w, "strip_accents", o.strip_accents == ZF_WORDPIECE_YES);
    zf_json_put_bool_member(w, "tokenize_chinese_chars", o.chinese_chars == ZF_WORDPIECE_YES);
    zf_json_put_int_member(w, "model_max_length", longest);
    zfl_put_special_tokens(w, frame);
    zfl_folder_begin(w, "added_tokens_decoder");
    for (int32_t id = 0; id < zf_wordpiece_size(vocab); id++) {
        char key[16];
        if (!zf_wordpiece_is_added(vocab, id)) continue;
        snprintf(key, sizeof key, "%d", (int)id);
        zfl_folder_begin(w, key);
        zfl_put_added_token(w, vocab, id);
        zf_json_end(w);
    }
    zf_json_end(w);
    zf_json_end(w);
    return w;
}

static zf_json_writer *zfl_special_tokens_map(zf_folder_frame frame)
{
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    zfl_put_special_tokens(w, frame);
    zf_json_end(w);
    return w;
}

/* The parts of the text in order: a special token, or ($A, $B) a text, with its token type. */
static void zfl_put_template(zf_json_writer *w, const char *key, const char *const *pieces)
{
    int type = 0;
    zf_json_put_key(w, key);
    zf_json_begin_array(w);
    for (; *pieces; pieces++) {
        bool text = strlen(*pieces) == 1;
        if (!strcmp(*pieces, "B")) type = 1;
        zf_json_begin_object(w);
        zfl_folder_begin(w, text ? "Sequence" : "SpecialToken");
        zf_json_put_text_member(w, "id", *pieces);
        zf_json_put_int_member(w, "type_id", type);
        zf_json_end(w);
        zf_json_end(w);
    }
    zf_json_end(w);
}

static void zfl_put_post_processor(zf_json_writer *w, const zf_wordpiece *vocab,
                                   zf_folder_frame frame)
{
    static const char *const single[2][4] = {{"[CLS]", "A", "[SEP]", NULL}, {"[SEP]", "A", NULL}},
                             *const pair[2][6] = {{"[CLS]", "A", "[SEP]", "B", "[SEP]", NULL},
                                                  {"[SEP]", "A", "[SEP]", "B", NULL}};
    static const int used[] = {ZF_WORDPIECE_CLS, ZF_WORDPIECE_SEP};
    zfl_folder_begin(w, "post_processor");
    zf_json_put_text_member(w, "type", "TemplateProcessing");
    zfl_put_template(w, "single", single[frame]);
    zfl_put_template(w, "pair", pair[frame]);
    zfl_folder_begin(w, "special_tokens");
    for (int k = frame == ZF_FOLDER_GPT; k < 2; k++) {
        const char *token = zf_wordpiece_special_token(used[k]);
        zfl_folder_begin(w, token);
        zf_json_put_text_member(w, "id", token);
        zf_json_put_key(w, "ids");
        zf_json_begin_array(w);
        zf_json_put_int(w, zf_wordpiece_id(vocab, token));
        zf_json_end(w);
        zf_json_put_key(w, "tokens");
        zf_json_begin_array(w);
        zf_json_put_string(w, token);
        zf_json_end(w);
        zf_json_end(w);
    }
    zf_json_end(w);
    zf_json_end(w);
}

static void zfl_put_added_tokens(zf_json_writer *w, const zf_wordpiece *vocab)
{
    zf_json_put_key(w, "added_tokens");
    zf_json_begin_array(w);
    for (int32_t id = 0; id < zf_wordpiece_size(vocab); id++) {
        if (!zf_wordpiece_is_added(vocab, id)) continue;
        zf_json_begin_object(w);
        zf_json_put_int_member(w, "id", id);
        zfl_put_added_token(w, vocab, id);
        zf_json_end(w);
    }
    zf_json_end(w);
}

static void zfl_put_model(zf_json_writer *w, const zf_wordpiece *vocab)
{
    zfl_folder_begin(w, "model");
    zf_json_put_text_member(w, "type", "WordPiece");
    zf_json_put_text_member(w, "unk_token", zf_wordpiece_special_token(ZF_WORDPIECE_UNK));
    zf_json_put_text_member(w, "continuing_subword_prefix", "##");
    zf_json_put_int_member(w, "max_input_chars_per_word", ZF_WORDPIECE_WORD_CHARS);
    zfl_folder_begin(w, "vocab");
    for (int32_t id = 0; id < zf_wordpiece_size(vocab); id++) {
        if (zf_wordpiece_is_piece(vocab, id))
            zf_json_put_int_member(w, zf_wordpiece_token(vocab, id), id);
    }
    zf_json_end(w);
    zf_json_end(w);
}

static zf_json_writer *zfl_tokenizer(const zf_wordpiece *vocab, zf_folder_frame frame)
{
    zf_wordpiece_options o = zf_wordpiece_options_of(vocab);
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    zf_json_put_text_member(w, "version", "1.0");
    zf_json_put_key(w, "truncation"), zf_json_put_null(w);
    zf_json_put_key(w, "padding"), zf_json_put_null(w);
    zfl_put_added_tokens(w, vocab);
    zfl_folder_begin(w, "normalizer");
    zf_json_put_text_member(w, "type", "BertNormalizer");
    zf_json_put_bool_member(w, "clean_text", o.clean_text == ZF_WORDPIECE_YES);
    zf_json_put_bool_member(w, "handle_chinese_chars", o.chinese_chars == ZF_WORDPIECE_YES);
    zf_json_put_bool_member(w, "strip_accents", o.strip_accents == ZF_WORDPIECE_YES);
    zf_json_put_bool_member(w, "lowercase", o.lower_case == ZF_WORDPIECE_YES);
    zf_json_end(w);
    zfl_folder_begin(w, "pre_tokenizer");
    zf_json_put_text_member(w, "type", "BertPreTokenizer");
    zf_json_end(w);
    zfl_put_post_processor(w, vocab, frame);
    zfl_folder_begin(w, "decoder");
    zf_json_put_text_member(w, "type", "WordPiece");
    zf_json_put_text_member(w, "prefix", "##");
    zf_json_put_bool_member(w, "cleanup", true);
    zf_json_end(w);
    zfl_put_model(w, vocab);
    zf_json_end(w);
    return w;
}

/* One token a line, in the order of their ids. */
static bool zfl_put_vocab(const char *path, const zf_wordpiece *vocab, zf_error *error)
{
    char file[ZF_FOLDER_PATH];
    zf_text text = {.at = NULL};
    bool good;
    snprintf(file, sizeof file, "%s/vocab.txt", path);
    for (int32_t id = 0; id < zf_wordpiece_size(vocab); id++) {
        zf_text_add_string(&text, zf_wordpiece_token(vocab, id));
        zf_text_add_string(&text, "\n");
    }
    good = text.failed ? zfl_fail(error, ZF_ERR_NOMEM, "out of memory")
                       : zf_file_save(file, text.at, text.count, error);
    zf_text_free(&text);
    return good;
}

bool zf_folder_put_tokenizer(const char *path, const zf_wordpiece *vocab, zf_folder_frame frame,
                             int64_t longest, zf_error *error)
{
    return zfl_put_vocab(path, vocab, error) &&
           zfl_put_json(path, "tokenizer.json", zfl_tokenizer(vocab, frame), error) &&
           zfl_put_json(path, "tokenizer_config.json", zfl_tokenizer_config(vocab, frame, longest),
                        error) &&
           zfl_put_json(path, "special_tokens_map.json", zfl_special_tokens_map(frame), error);
}

/* A file that is there already and that this export does not write would be read with it. */
static bool zfl_expect_own_files(const char *to, const zf_folder_texts *texts,
                                 const zf_wordpiece *vocab, zf_error *error)
{
    static const int of_words[] = {0, 1, 2}; /* those that zf_folder_put_tokenizer writes */
    const char *other = !vocab && zfl_has(to, "vocab.txt") ? "vocab.txt" : NULL;
    for (int k = 0; k < ZF_FOLDER_FILES && !other; k++) {
        bool own = texts->text[k].at != NULL;
        for (size_t w = 0; vocab && w < sizeof of_words / sizeof *of_words; w++)
            own = own || of_words[w] == k;
        if (!own && zfl_has(to, zf_folder_file(k))) other = zf_folder_file(k);
    }
    return !other ||
           zfl_fail(error, ZF_ERR_ARGUMENT,
                    "%s has the file %s, which the exported model has not: remove it, or name "
                    "another folder",
                    to, other);
}

/* A folder that holds something else than a model for transformers stays as it is. */
static bool zfl_may_export(const char *to, zf_error *error)
{
    if (!zf_folder_is_checkpoint(to) && !zf_adapter_is_at(to)) return true;
    return zfl_fail(error, ZF_ERR_ARGUMENT, "%.300s holds %s; name another place", to,
                    zf_folder_is_checkpoint(to) ? "the checkpoint of a run" : "an adapter");
}

bool zf_folder_export(const char *to, const char *from, zf_json_writer *config,
                      zf_folder_frame frame, int64_t longest, char weights[ZF_FOLDER_PATH],
                      zf_error *error)
{
    bool file = zfl_names_weights(to), bpe = zf_folder_has_bpe(from), good;
    zf_wordpiece *vocab = NULL;
    zf_folder_texts texts = {{{.at = NULL}}};
    snprintf(weights, ZF_FOLDER_PATH, file ? "%s" : "%s/model.safetensors", to);
    if (file) {
        zf_json_writer_free(config);
        return true;
    }
    good =
        zfl_may_export(to, error) && zf_folder_texts_read(&texts, bpe ? from : NULL, from, error);
    if (good && !bpe && zf_folder_has_vocab(from))
        good = (vocab = zf_folder_vocab(from, NULL, error)) != NULL;
    good = good && zf_folder_make(to, error) && zfl_expect_own_files(to, &texts, vocab, error);
    if (good) good = zfl_put_json(to, "config.json", config, error);
    else zf_json_writer_free(config);
    good = good && (!vocab || zf_folder_put_tokenizer(to, vocab, frame, longest, error));
    good = good && zf_folder_texts_write(&texts, to, error);
    zf_folder_texts_free(&texts);
    zf_wordpiece_free(vocab);
    return good;
}

bool zf_folder_tokenizer_open(zf_folder_tokenizer *t, const zf_wordpiece *vocab,
                              zf_folder_frame frame, int64_t longest, zf_error *error)
{
    zf_wordpiece_file source = zf_wordpiece_source(vocab);
    bool lines = !strcmp(source.name, "vocab.txt");
    zf_attachment *file = &t->files[0], *config = &t->files[1];
    *t = (zf_folder_tokenizer){.json = lines ? NULL : zfl_tokenizer(vocab, frame),
                               .config = zfl_tokenizer_config(vocab, frame, longest)};
    *file = (zf_attachment){source.name, source.data, source.bytes};
    *config = (zf_attachment){"tokenizer_config.json", NULL, 0};
    if (!lines) file->data = zf_json_text(t->json, &file->bytes, error);
    config->data = zf_json_text(t->config, &config->bytes, error);
    if (file->data && config->data) return true;
    zf_folder_tokenizer_close(t);
    return false;
}

void zf_folder_tokenizer_close(zf_folder_tokenizer *t)
{
    zf_json_writer_free(t->json);
    zf_json_writer_free(t->config);
}
