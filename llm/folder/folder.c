#define _POSIX_C_SOURCE 200809L
#include "../base/fail.h"
#include "../base/file.h"
#include "folder.h"
#include "../base/put.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool folder_is(const char *path)
{
    struct stat about;
    return !stat(path, &about) && S_ISDIR(about.st_mode);
}

static bool has(const char *path, const char *name)
{
    char file[FOLDER_PATH];
    snprintf(file, sizeof file, "%s/%s", path, name);
    return !access(file, F_OK);
}

bool folder_is_checkpoint(const char *path) { return has(path, "manifest.json"); }

zf_dtype folder_precision(const char *path)
{
    char note[8] = "f32";
    zf_error none;
    (void)zf_checkpoint_note(path, "precision", note, sizeof note, &none);
    return !strcmp(note, "bf16") ? ZF_BF16 : !strcmp(note, "f16") ? ZF_F16 : ZF_F32;
}

bool folder_load(zf_program *program, const char *path, bool masters, bool merge, zf_error *error)
{
    zf_store *store = zf_program_store(program);
    zf_status status =
        zf_load(store, path,
                &(zf_load_desc){.params_only = true, .masters = masters, .merge = merge});
    return !status || fail(error, status, "%s", zf_store_error(store));
}

bool folder_has_vocab(const char *path)
{
    return has(path, "vocab.txt") || has(path, "tokenizer.json");
}

bool folder_has_weights(const char *path)
{
    return folder_is_checkpoint(path) || has(path, "model.safetensors") ||
           has(path, "model.safetensors.index.json");
}

bool folder_has_bpe(const char *path)
{
    char file[FOLDER_PATH];
    zf_json *json;
    const zf_json *model;
    const char *type;
    bool is;
    if (has(path, "vocab.txt") || !has(path, "tokenizer.json")) return false;
    snprintf(file, sizeof file, "%s/tokenizer.json", path);
    json = zf_json_read(file, NULL, &(zf_error){ZF_OK, ""});
    model = zf_json_member(json, "model");
    type = zf_json_string(zf_json_member(model, "type"), NULL);
    is = type ? strcmp(type, "WordPiece") != 0 : zf_json_member(model, "merges") != NULL;
    zf_json_free(json);
    return is;
}

/* The path is a file of weights, not a folder. */
static bool names_weights(const char *path)
{
    static const char end[] = ".safetensors";
    size_t n = strlen(path);
    return n >= sizeof end - 1 && !strcmp(path + n - (sizeof end - 1), end);
}

bert_vocab *folder_vocab(const char *path, const bert_tokenizer_options *options, zf_error *error)
{
    char err[512] = "", cased[8] = "";
    bert_tokenizer_options all = {BERT_UNSAID, BERT_UNSAID, BERT_UNSAID, BERT_UNSAID};
    bert_vocab *vocab;
    if (options) all = *options;
    if (folder_is_checkpoint(path) && !has(path, "tokenizer_config.json")) {
        if (zf_checkpoint_note(path, "cased", cased, sizeof cased, error)) return NULL;
        if (!all.lower_case) all.lower_case = strcmp(cased, "yes") ? BERT_YES : BERT_NO;
    }
    vocab = bert_vocab_load(path, &all, err, sizeof err);
    if (!vocab) fail(error, ZF_ERR_FORMAT, "%s", err);
    return vocab;
}

const char *const folder_files[FOLDER_FILES] = {"tokenizer.json", "tokenizer_config.json",
                                               "chat_template.jinja"};

bool folder_texts_read(folder_texts *t, const char *folder, zf_error *error)
{
    char file[FOLDER_PATH];
    *t = (folder_texts){{{.at = NULL}}};
    for (int k = 0; k < FOLDER_FILES; k++) {
        if (!has(folder, folder_files[k])) continue;
        snprintf(file, sizeof file, "%s/%s", folder, folder_files[k]);
        if (!file_read(file, &t->text[k], error)) return false;
    }
    return true;
}

bool folder_texts_write(const folder_texts *t, const char *folder, zf_error *error)
{
    char file[FOLDER_PATH];
    bool good = true;
    for (int k = 0; k < FOLDER_FILES && good; k++) {
        FILE *out;
        if (!t->text[k].at) continue;
        snprintf(file, sizeof file, "%s/%s", folder, folder_files[k]);
        out = fopen(file, "wb");
        good = out && fwrite(t->text[k].at, 1, t->text[k].count, out) == t->text[k].count;
        if (out && fclose(out)) good = false;
    }
    return good || fail(error, ZF_ERR_IO, "cannot write %s: %s", file, strerror(errno));
}

void folder_texts_free(folder_texts *t)
{
    for (int k = 0; k < FOLDER_FILES; k++) buffer_free(&t->text[k]);
}

bool folder_generation_ends(const char *folder, int32_t *ids, int room, zf_error *error)
{
    char file[FOLDER_PATH];
    zf_json *json;
    const zf_json *ends, *v;
    bool list;
    snprintf(file, sizeof file, "%s/generation_config.json", folder);
    if (access(file, F_OK)) return true;
    if (!(json = zf_json_read(file, NULL, error))) return false;
    ends = zf_json_member(json, "eos_token_id");
    list = zf_json_type_of(ends) == ZF_JSON_ARRAY;
    v = list ? zf_json_first(ends) : zf_json_type_of(ends) > ZF_JSON_NULL ? ends : NULL;
    for (int k = 0; v && !error->status; v = list ? zf_json_next(v) : NULL, k++) {
        int64_t id = -1;
        if (k == room) zf_json_fail(ends, error, "has more than %d ids", room);
        else if (!zf_json_to_int(v, 0, INT32_MAX, &id, error)) ids[k] = (int32_t)id;
    }
    zf_json_free(json);
    return !error->status;
}

/* ---------------------------------------------------------------------------------- writing */

bool folder_make(const char *path, zf_error *error)
{
    if (!mkdir(path, 0777) || (errno == EEXIST && folder_is(path))) return true;
    return fail(error, ZF_ERR_IO, "cannot make the folder %s: %s", path, strerror(errno));
}

/* Writes a JSON writer's text to a file of the folder, and frees the writer. */
static bool put_json(const char *path, const char *name, zf_json_writer *json, zf_error *error)
{
    char file[FOLDER_PATH];
    zf_status status;
    snprintf(file, sizeof file, "%s/%s", path, name);
    status = json ? zf_json_save(json, file, error) : ZF_ERR_NOMEM;
    if (!json) fail(error, status, "out of memory");
    zf_json_writer_free(json);
    return !status;
}

static void begin(zf_json_writer *w, const char *key)
{
    zf_json_put_key(w, key);
    zf_json_begin_object(w);
}

/* The special tokens, by transformers' names. */
static void put_special_tokens(zf_json_writer *w, folder_frame frame)
{
    static const char *const keys[BERT_SPECIAL_COUNT] = {"pad_token", "unk_token", "cls_token",
                                                         "sep_token", "mask_token"};
    for (int k = 0; k < BERT_SPECIAL_COUNT; k++) put_text(w, keys[k], bert_special_tokens[k]);
    if (frame != FOLDER_GPT) return;
    put_text(w, "bos_token", bert_special_tokens[BERT_SEP]);
    put_text(w, "eos_token", bert_special_tokens[BERT_SEP]);
}

/* The properties of an added token, without its id. */
static void put_added_token(zf_json_writer *w, const bert_vocab *vocab, int32_t id)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    put_text(w, "content", bert_vocab_token(vocab, id));
    for (int flag = 0; flag < 4; flag++) put_bool(w, flags[flag], false);
    put_bool(w, "special", bert_vocab_is_special(vocab, id));
}

static zf_json_writer *tokenizer_config(const bert_vocab *vocab, folder_frame frame,
                                        int64_t longest)
{
    bert_tokenizer_options o = bert_vocab_options(vocab);
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    /* A BertTokenizer adds [CLS] and [SEP] by itself, which is wrong for GPT, and drops
     * controls. */
    put_text(w, "tokenizer_class",
             frame == FOLDER_BERT && o.clean_text == BERT_YES ? "BertTokenizer"
                                                              : "PreTrainedTokenizerFast");
    put_bool(w, "do_lower_case", o.lower_case == BERT_YES);
    put_bool(w, "strip_accents", o.strip_accents == BERT_YES);
    put_bool(w, "tokenize_chinese_chars", o.chinese_chars == BERT_YES);
    put_int(w, "model_max_length", longest);
    put_special_tokens(w, frame);
    begin(w, "added_tokens_decoder");
    for (int32_t id = 0; id < bert_vocab_size(vocab); id++) {
        char key[16];
        if (!bert_vocab_is_added(vocab, id)) continue;
        snprintf(key, sizeof key, "%d", (int)id);
        begin(w, key);
        put_added_token(w, vocab, id);
        zf_json_end(w);
    }
    zf_json_end(w);
    zf_json_end(w);
    return w;
}

static zf_json_writer *special_tokens_map(folder_frame frame)
{
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    put_special_tokens(w, frame);
    zf_json_end(w);
    return w;
}

/* The parts of the text in order: a special token, or ($A, $B) a text, with its token type. */
static void put_template(zf_json_writer *w, const char *key, const char *const *pieces)
{
    int type = 0;
    zf_json_put_key(w, key);
    zf_json_begin_array(w);
    for (; *pieces; pieces++) {
        bool text = strlen(*pieces) == 1;
        if (!strcmp(*pieces, "B")) type = 1;
        zf_json_begin_object(w);
        begin(w, text ? "Sequence" : "SpecialToken");
        put_text(w, "id", *pieces);
        put_int(w, "type_id", type);
        zf_json_end(w);
        zf_json_end(w);
    }
    zf_json_end(w);
}

static void put_post_processor(zf_json_writer *w, const bert_vocab *vocab, folder_frame frame)
{
    static const char *const single[2][4] = {{"[CLS]", "A", "[SEP]", NULL}, {"[SEP]", "A", NULL}},
                             *const pair[2][6] = {{"[CLS]", "A", "[SEP]", "B", "[SEP]", NULL},
                                                  {"[SEP]", "A", "[SEP]", "B", NULL}};
    static const int used[] = {BERT_CLS, BERT_SEP};
    begin(w, "post_processor");
    put_text(w, "type", "TemplateProcessing");
    put_template(w, "single", single[frame]);
    put_template(w, "pair", pair[frame]);
    begin(w, "special_tokens");
    for (int k = frame == FOLDER_GPT; k < 2; k++) {
        const char *token = bert_special_tokens[used[k]];
        begin(w, token);
        put_text(w, "id", token);
        zf_json_put_key(w, "ids");
        zf_json_begin_array(w);
        zf_json_put_int(w, bert_vocab_id(vocab, token));
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

static void put_added_tokens(zf_json_writer *w, const bert_vocab *vocab)
{
    zf_json_put_key(w, "added_tokens");
    zf_json_begin_array(w);
    for (int32_t id = 0; id < bert_vocab_size(vocab); id++) {
        if (!bert_vocab_is_added(vocab, id)) continue;
        zf_json_begin_object(w);
        put_int(w, "id", id);
        put_added_token(w, vocab, id);
        zf_json_end(w);
    }
    zf_json_end(w);
}

static void put_model(zf_json_writer *w, const bert_vocab *vocab)
{
    begin(w, "model");
    put_text(w, "type", "WordPiece");
    put_text(w, "unk_token", bert_special_tokens[BERT_UNK]);
    put_text(w, "continuing_subword_prefix", "##");
    put_int(w, "max_input_chars_per_word", BERT_WORD_CHARS);
    begin(w, "vocab");
    for (int32_t id = 0; id < bert_vocab_size(vocab); id++) {
        if (bert_vocab_is_piece(vocab, id)) put_int(w, bert_vocab_token(vocab, id), id);
    }
    zf_json_end(w);
    zf_json_end(w);
}

static zf_json_writer *tokenizer(const bert_vocab *vocab, folder_frame frame)
{
    bert_tokenizer_options o = bert_vocab_options(vocab);
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    put_text(w, "version", "1.0");
    zf_json_put_key(w, "truncation"), zf_json_put_null(w);
    zf_json_put_key(w, "padding"), zf_json_put_null(w);
    put_added_tokens(w, vocab);
    begin(w, "normalizer");
    put_text(w, "type", "BertNormalizer");
    put_bool(w, "clean_text", o.clean_text == BERT_YES);
    put_bool(w, "handle_chinese_chars", o.chinese_chars == BERT_YES);
    put_bool(w, "strip_accents", o.strip_accents == BERT_YES);
    put_bool(w, "lowercase", o.lower_case == BERT_YES);
    zf_json_end(w);
    begin(w, "pre_tokenizer");
    put_text(w, "type", "BertPreTokenizer");
    zf_json_end(w);
    put_post_processor(w, vocab, frame);
    begin(w, "decoder");
    put_text(w, "type", "WordPiece");
    put_text(w, "prefix", "##");
    put_bool(w, "cleanup", true);
    zf_json_end(w);
    put_model(w, vocab);
    zf_json_end(w);
    return w;
}

/* One token a line, in the order of their ids. */
static bool put_vocab(const char *path, const bert_vocab *vocab, zf_error *error)
{
    char file[FOLDER_PATH];
    FILE *out;
    bool good;
    snprintf(file, sizeof file, "%s/vocab.txt", path);
    out = fopen(file, "wb");
    good = out != NULL;
    for (int32_t id = 0; good && id < bert_vocab_size(vocab); id++)
        good = fprintf(out, "%s\n", bert_vocab_token(vocab, id)) > 0;
    if (out && fclose(out)) good = false;
    return good || fail(error, ZF_ERR_IO, "cannot write %s: %s", file, strerror(errno));
}

bool folder_put_tokenizer(const char *path, const bert_vocab *vocab, folder_frame frame,
                          int64_t longest, zf_error *error)
{
    return put_vocab(path, vocab, error) &&
           put_json(path, "tokenizer.json", tokenizer(vocab, frame), error) &&
           put_json(path, "tokenizer_config.json", tokenizer_config(vocab, frame, longest),
                    error) &&
           put_json(path, "special_tokens_map.json", special_tokens_map(frame), error);
}

bool folder_export(const char *to, const char *from, zf_json_writer *config, folder_frame frame,
                   int64_t longest, char weights[FOLDER_PATH], zf_error *error)
{
    bool file = names_weights(to), bpe = folder_has_bpe(from), good;
    bert_vocab *vocab = NULL;
    folder_texts texts = {{{.at = NULL}}};
    snprintf(weights, FOLDER_PATH, file ? "%s" : "%s/model.safetensors", to);
    if (file) {
        zf_json_writer_free(config);
        return true;
    }
    if (bpe) good = folder_texts_read(&texts, from, error);
    else good = !folder_has_vocab(from) || (vocab = folder_vocab(from, NULL, error)) != NULL;
    good = good && folder_make(to, error);
    if (good) good = put_json(to, "config.json", config, error);
    else zf_json_writer_free(config);
    good = good && (!vocab || folder_put_tokenizer(to, vocab, frame, longest, error));
    good = good && folder_texts_write(&texts, to, error);
    folder_texts_free(&texts);
    bert_vocab_free(vocab);
    return good;
}

bool folder_tokenizer_open(folder_tokenizer *t, const bert_vocab *vocab, folder_frame frame,
                           int64_t longest, zf_error *error)
{
    bert_vocab_file source = bert_vocab_source(vocab);
    bool lines = !strcmp(source.name, "vocab.txt");
    zf_attachment *file = &t->files[0], *config = &t->files[1];
    *t = (folder_tokenizer){.json = lines ? NULL : tokenizer(vocab, frame),
                            .config = tokenizer_config(vocab, frame, longest)};
    *file = (zf_attachment){source.name, source.data, source.bytes};
    *config = (zf_attachment){"tokenizer_config.json", NULL, 0};
    if (!lines) file->data = zf_json_text(t->json, &file->bytes, error);
    config->data = zf_json_text(t->config, &config->bytes, error);
    if (file->data && config->data) return true;
    folder_tokenizer_close(t);
    return false;
}

void folder_tokenizer_close(folder_tokenizer *t)
{
    zf_json_writer_free(t->json);
    zf_json_writer_free(t->config);
}
