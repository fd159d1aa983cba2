/* config.json, read and written by a table. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
char *realpath(const char *, char *); /* strict C11 hides it */

/* ----------------------------------------------------------------------------------- members */

static int64_t *zfl_integer_at(void *config, size_t at) { return (int64_t *)((char *)config + at); }
static double *zfl_number_at(void *config, size_t at) { return (double *)((char *)config + at); }

/* What the type of a configuration has of its own. */
static const zf_config_family *zfl_family_of(const zf_config_table *t, const void *config)
{
    static const zf_config_family none = {.rows = NULL};
    const zf_config_family *family = t->family_of ? t->family_of(config) : NULL;
    return family ? family : &none;
}

/* One of the rows, which may be NULL, reads the member at an offset. */
static bool zfl_reads_member(const zf_config_row *rows, size_t at)
{
    while (rows && rows->key && rows->at != at) rows++;
    return rows && rows->key;
}

zf_config_facts zf_config_facts_of(const zf_config_table *t, void *config)
{
    zf_config_facts f = {.vocab = zfl_integer_at(config, t->vocab),
                         .positions = zfl_integer_at(config, t->positions),
                         .tied = zfl_integer_at(config, t->tied),
                         .begin = t->begin ? zfl_integer_at(config, t->begin) : NULL,
                         .end = t->end ? zfl_integer_at(config, t->end) : NULL,
                         .ends = !t->end   ? 0
                                 : t->ends ? t->ends
                                           : 1,
                         .pad = t->pad ? zfl_integer_at(config, t->pad) : NULL,
                         .bits = t->bits ? zfl_integer_at(config, t->bits) : NULL,
                         .scores = t->scores ? zfl_integer_at(config, t->scores) : NULL,
                         .layout = t->layout ? (char *)config + t->layout : NULL};
    for (int k = 0; k < ZF_CONFIG_DROPOUTS && t->dropouts[k]; k++)
        f.dropouts[k] = zfl_number_at(config, t->dropouts[k]);
    return f;
}

void zf_config_set_dropout(const zf_config_table *t, void *config, double p)
{
    for (int k = 0; k < ZF_CONFIG_DROPOUTS && t->dropouts[k]; k++)
        if (!t->family_of || zfl_reads_member(t->rows, t->dropouts[k]) ||
            zfl_reads_member(zfl_family_of(t, config)->rows, t->dropouts[k]))
            *zfl_number_at(config, t->dropouts[k]) = p;
}

static int64_t zfl_value_of(const void *config, size_t at)
{
    int64_t value;
    memcpy(&value, (const char *)config + at, sizeof value);
    return value;
}

const char *zf_config_layout(const zf_config_table *t, const void *config)
{
    return t->layout ? (const char *)config + t->layout : "";
}

/* The desc of a layout; its texts are in `copy`. False with *error. */
static bool zfl_read_layout(const char *text, char copy[ZF_CONFIG_LAYOUT], zf_block_mask_desc *d,
                            zf_error *error)
{
    *d = (zf_block_mask_desc){.tokens = 0};
    snprintf(copy, ZF_CONFIG_LAYOUT, "%s", text);
    return !zf_block_mask_parse(copy, d, error);
}

int64_t zf_config_positions(const zf_config_table *t, const void *config)
{
    const int64_t positions = zfl_value_of(config, t->positions);
    char copy[ZF_CONFIG_LAYOUT];
    zf_block_mask_desc d;
    zf_error unread;
    if (!*zf_config_layout(t, config)) return positions;
    return zfl_read_layout(zf_config_layout(t, config), copy, &d, &unread) && d.length < positions
               ? d.length
               : positions;
}

static bool zfl_layout_is_long(zf_error *error)
{
    return zfl_fail(error, ZF_ERR_ARGUMENT, "a layout of attention has at most %d characters",
                    ZF_CONFIG_LAYOUT - 1);
}

/* Names the file of a layout by its whole path and its digest. */
static bool zfl_settle_file(zf_block_mask_desc *d, int64_t heads, char path[PATH_MAX],
                            zf_error *error)
{
    zf_block_mask_desc whole = *d;
    zf_block_mask *mask;
    if (!d->path) return true;
    if (!realpath(d->path, path))
        return zfl_fail(error, ZF_ERR_IO, "%s: %s", d->path, strerror(errno));
    d->path = whole.path = path, whole.tokens = d->length, whole.heads = heads;
    if (!(mask = zf_block_mask_new(&whole, error))) return false;
    d->digest = zf_block_mask_info_of(mask).digest;
    zf_block_mask_free(mask);
    return true;
}

bool zf_config_set_layout(const zf_config_table *t, void *config, const char *text, int64_t length,
                          zf_error *error)
{
    char *layout = zf_config_facts_of(t, config).layout, copy[ZF_CONFIG_LAYOUT], path[PATH_MAX];
    zf_block_mask_desc d;
    if (strlen(text) >= sizeof copy) return zfl_layout_is_long(error);
    if (!zfl_read_layout(text, copy, &d, error)) return false;
    if ((int32_t)d.layout <= ZF_LAYOUT_ALL) { /* a 0 that was given is negative */
        if (layout) memset(layout, 0, ZF_CONFIG_LAYOUT);
        return true;
    }
    if (!layout)
        return zfl_fail(error, ZF_ERR_ARGUMENT, "attention of this kind of model sees all tokens");
    if (!d.length) d.length = length;
    if (!zfl_settle_file(&d, *zfl_integer_at(config, t->heads), path, error)) return false;
    memset(layout, 0, ZF_CONFIG_LAYOUT); /* configurations are compared byte by byte */
    return zf_block_mask_text(&d, layout, ZF_CONFIG_LAYOUT) < ZF_CONFIG_LAYOUT ||
           zfl_layout_is_long(error);
}

bool zf_config_scores(const zf_config_table *t, const void *config)
{
    return t->scores && zfl_value_of(config, t->scores);
}

int64_t zf_config_window(const zf_config_table *t, const void *config)
{
    return t->window && !*zf_config_layout(t, config) ? zfl_value_of(config, t->window) : 0;
}

bool zf_config_set_weights(const zf_config_table *t, void *config, int64_t choice, zf_error *error)
{
    int64_t *bits = zf_config_facts_of(t, config).bits;
    if (bits) *bits = choice == 1 ? 8 : choice == 2 ? 4 : 0;
    return bits || !choice ||
           zfl_fail(error, ZF_ERR_ARGUMENT, "weights of this kind of model stay floats");
}

int64_t zf_config_bits(const zf_config_table *t, const void *config)
{
    int64_t bits = 0;
    if (t->bits) memcpy(&bits, (const char *)config + t->bits, sizeof bits);
    return bits;
}

static const struct {
    const char *name;
    zf_activation activation;
} zfl_activations[] = {
    /* The first name of each activation is the one that is written. */
    {"gelu", ZF_ACTIVATION_GELU},           {"gelu_python", ZF_ACTIVATION_GELU},
    {"gelu_new", ZF_ACTIVATION_GELU_TANH},  {"gelu_pytorch_tanh", ZF_ACTIVATION_GELU_TANH},
    {"gelu_fast", ZF_ACTIVATION_GELU_TANH}, {"relu", ZF_ACTIVATION_RELU},
    {"silu", ZF_ACTIVATION_SILU},           {"swish", ZF_ACTIVATION_SILU},
};
enum { ZFL_ACTIVATIONS = sizeof zfl_activations / sizeof zfl_activations[0] };

/* ----------------------------------------------------------------------------------- reading */

const zf_json *zf_config_member(const zf_json *json, const char *key)
{
    const zf_json *v = zf_json_member(json, key);
    return zf_json_type_of(v) == ZF_JSON_NULL ? NULL : v;
}

/* The member of a row, which must be there if it is needed and not in the list. */
static const zf_json *zfl_config_find(const zf_json *json, const zf_config_row *row,
                                      const char *const *optional, zf_error *error)
{
    const zf_json *v = zf_config_member(json, row->key);
    for (int k = 0; k < 2 && !v && row->other[k]; k++) v = zf_config_member(json, row->other[k]);
    if (v || !(row->use & ZF_CONFIG_NEEDED) || (optional && zfl_is_listed(optional, row->key)))
        return v;
    return zf_json_require(json, row->key, error);
}

static void zfl_read_activation(const zf_json *v, int64_t *activation, zf_error *error)
{
    const char *text = NULL;
    zf_json_to_string(v, &text, error);
    if (error->status || !text) return;
    for (int i = 0; i < ZFL_ACTIVATIONS; i++)
        if (!strcmp(text, zfl_activations[i].name)) {
            *activation = zfl_activations[i].activation;
            return;
        }
    zf_json_expected(v, error, "one of gelu, gelu_new, gelu_pytorch_tanh, relu and silu");
}

static void zfl_expect_text(const zf_json *v, const char *wanted, zf_error *error)
{
    const char *text = NULL;
    zf_json_to_string(v, &text, error);
    if (!error->status && text && strcmp(text, wanted))
        zf_json_expected(v, error, "\"%s\"", wanted);
}

static void zfl_expect_truth(const zf_json *v, bool wanted, zf_error *error)
{
    bool is = wanted;
    zf_json_to_bool(v, &is, error);
    if (!error->status && is != wanted) zf_json_expected(v, error, wanted ? "true" : "false");
}

/* The key of a member. */
static const char *zfl_config_key_of(const zf_config_table *t, size_t at)
{
    const zf_config_row *row = t->rows;
    while (row->key && (row->at != at || row->kind != ZF_CONFIG_COUNT)) row++;
    return row->key;
}

/* An id. Those beyond the vocabulary never occur; PyTorch counts negative ones of [PAD] from the
 * end of the vocabulary, and refuses others that are not in it. */
static void zfl_config_read_id(const zf_config_table *t, const zf_config_row *row, const zf_json *v,
                               void *config, zf_error *error)
{
    const int64_t vocab = *zfl_integer_at(config, t->vocab);
    const bool pads = row->at == t->pad && t->pad;
    int64_t id = -1;
    if (zf_json_to_int(v, pads ? -vocab : -1, pads ? vocab - 1 : INT32_MAX, &id, error)) return;
    *zfl_integer_at(config, row->at) = pads && id < 0 ? id + vocab : id;
}

/* An id or several. */
static void zfl_config_read_ids(const zf_config_table *t, const zf_json *v, int64_t *ids,
                                zf_error *error)
{
    const bool list = zf_json_type_of(v) == ZF_JSON_ARRAY;
    int64_t room = t->ends ? t->ends : 1;
    if (list && zf_json_length(v) > room)
        zf_json_fail(v, error, "has more than %lld ids", (long long)room);
    for (int64_t k = 0; k < room; k++) ids[k] = -1;
    if (!list) zf_json_to_int(v, -1, INT32_MAX, ids, error);
    for (v = list ? zf_json_first(v) : NULL; v && !error->status; v = zf_json_next(v))
        zf_json_to_int(v, -1, INT32_MAX, ids++, error);
}

/* A layout, which must be one of blocks, and say of how many tokens it is. */
static void zfl_config_read_blocks(const zf_json *v, char *layout, zf_error *error)
{
    const char *text = "";
    char copy[ZF_CONFIG_LAYOUT];
    zf_block_mask_desc d;
    zf_error why = {ZF_OK, ""};
    zf_json_to_string(v, &text, error);
    if (!v || error->status) return;
    if (strlen(text) >= sizeof copy)
        zf_json_expected(v, error, "at most %d characters", ZF_CONFIG_LAYOUT - 1);
    else if (!zfl_read_layout(text, copy, &d, &why)) zf_json_fail(v, error, "%s", why.text);
    else if ((int32_t)d.layout <= ZF_LAYOUT_ALL || d.length < 1)
        zf_json_expected(v, error, "a layout with its length, as \"window,length=512\"");
    else snprintf(layout, ZF_CONFIG_LAYOUT, "%s", text);
}

static const char zfl_layout_key[] = "zeroflow_attention";

bool zf_config_read_layout(const char *folder, char layout[ZF_CONFIG_LAYOUT], bool *there,
                           zf_error *error)
{
    char path[1024];
    zf_json *json;
    *layout = 0;
    snprintf(path, sizeof path, "%s/config.json", folder);
    *there = !access(path, F_OK);
    if (!*there) return true;
    if (!(json = zf_json_read(path, NULL, error))) return false;
    zfl_config_read_blocks(zf_config_member(json, zfl_layout_key), layout, error);
    zf_json_free(json);
    return !error->status;
}

static void zfl_read_row(const zf_config_table *t, const zf_config_row *row, const zf_json *json,
                         void *config, zf_error *error)
{
    const zf_json *v = zfl_config_find(json, row, zfl_family_of(t, config)->optional, error);
    int64_t *integer = zfl_integer_at(config, row->at), hidden = *zfl_integer_at(config, t->hidden);
    bool truth;
    switch (row->kind) {
    case ZF_CONFIG_COUNT:
        zf_json_to_int(v, (int64_t)row->least, (int64_t)row->most, integer, error);
        if (row->at != t->heads || !*integer || error->status) return;
        if (hidden % *integer && !(t->width && *zfl_integer_at(config, t->width)))
            zf_json_expected(v, error, "a divisor of %s (%lld)", zfl_config_key_of(t, t->hidden),
                             (long long)hidden);
        *zfl_integer_at(config, t->intermediate) = 4 * hidden;
        return;
    case ZF_CONFIG_NUMBER:
        zf_json_to_double(v, row->least, row->most, zfl_number_at(config, row->at), error);
        return;
    case ZF_CONFIG_TRUTH:
        truth = *integer;
        zf_json_to_bool(v, &truth, error);
        *integer = truth;
        return;
    case ZF_CONFIG_ACTIVATION: zfl_read_activation(v, integer, error); return;
    case ZF_CONFIG_BLOCKS: zfl_config_read_blocks(v, (char *)config + row->at, error); return;
    case ZF_CONFIG_TOKEN:
    case ZF_CONFIG_TOKENS:
        if (zf_json_member(json, row->key) && !v) *integer = -1;
        if (!v || error->status) return;
        if (row->kind == ZF_CONFIG_TOKEN) zfl_config_read_id(t, row, v, config, error);
        else zfl_config_read_ids(t, v, integer, error);
        return;
    case ZF_CONFIG_TRUE: zfl_expect_truth(v, true, error); return;
    case ZF_CONFIG_FALSE: zfl_expect_truth(v, false, error); return;
    default: zfl_expect_text(v, row->text, error);
    }
}

static void zfl_read_type(const zf_config_table *t, const zf_json *json, void *config,
                          zf_error *error)
{
    const zf_json *v = zf_config_member(json, "model_type");
    const char *text = NULL;
    char names[400] = "";
    zf_json_to_string(v, &text, error);
    for (int64_t k = 0; t->types[k] && text && !error->status; k++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s\"%s\"", k ? t->types[k + 1] ? ", " : " or " : "",
                 t->types[k]);
        if (strcmp(text, t->types[k])) continue;
        if (t->type) *zfl_integer_at(config, t->type) = k;
        return;
    }
    if (text && !error->status) zf_json_expected(v, error, "%s", names);
}

static const char zfl_classifies[] = "ForSequenceClassification";

/* The labels of a model that classifies texts. */
static int64_t zfl_label_count(const zf_json *json, zf_error *error)
{
    int64_t count = 2; /* of transformers, where the file says nothing */
    zf_json_to_int(zf_config_member(json, "num_labels"), 0, INT32_MAX, &count, error);
    return zf_config_member(json, "id2label") ? zf_json_length(zf_config_member(json, "id2label"))
                                              : count;
}

/* A model that classifies texts by one label gives them a score; one of more labels is not read. */
static void zfl_read_scores(const zf_config_table *t, const zf_json *json, void *config,
                            zf_error *error)
{
    const zf_json *v = zf_json_element(zf_config_member(json, "architectures"), 0);
    const char *name = "";
    int64_t labels;
    size_t length;
    if (!t->scores || error->status || zf_json_to_string(v, &name, error)) return;
    length = strlen(name);
    if (length < sizeof zfl_classifies ||
        strcmp(name + length - (sizeof zfl_classifies - 1), zfl_classifies))
        return;
    labels = zfl_label_count(json, error);
    if (labels != 1 && !error->status)
        zf_json_fail(v, error,
                     "has %lld labels (num_labels, id2label); a score, which is one label, is read "
                     "alone",
                     (long long)labels);
    *zfl_integer_at(config, t->scores) = 1;
}

/* Keys that change nothing: of classes, heads and outputs of other tasks, of how transformers runs
 * or saved a model, and of generation, which transformers 5 reads in generation_config.json
 * alone. */
static const char *const zfl_idle_keys[] = {
    /* files and classes */
    "_commit_hash", "_name_or_path", "architectures", "auto_map", "dtype", "model_type",
    "tokenizer_class", "torch_dtype", "transformers.js_config", "transformers_version",
    "unsloth_fixed", "unsloth_version",
    /* how it runs */
    "_attn_implementation", "_attn_implementation_autoset", "_flash_attn_2_enabled",
    "attn_implementation", "chunk_size_feed_forward", "gradient_checkpointing", "pretraining_tp",
    "tf_legacy_loss", "torchscript", "use_bfloat16", "use_cache",
    /* other tasks and other outputs */
    "bos_token_id", "classifier_dropout", "decoder_start_token_id", "eos_token_id",
    "finetuning_task", "id2label", "is_decoder", "label2id", "num_labels", "output_attentions",
    "output_hidden_states", "pad_token_id", "prefix", "problem_type", "return_dict", "sep_token_id",
    "task_specific_params",
    /* generation */
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens", "min_length",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens",
    "temperature", "top_k", "top_p", "typical_p", NULL};

static bool zfl_has_row(const zf_config_row *row, const char *key)
{
    for (; row && row->key; row++)
        if (!strcmp(key, row->key) || (row->other[0] && !strcmp(key, row->other[0])) ||
            (row->other[1] && !strcmp(key, row->other[1])))
            return true;
    return false;
}

/* Keys that are known to no row must change nothing. */
static void zfl_expect_known(const zf_config_table *t, const void *config, const zf_json *json,
                             zf_error *error)
{
    const zf_config_family *family = zfl_family_of(t, config);
    static const char *const off[] = {"add_cross_attention", "is_encoder_decoder",
                                      "tie_encoder_decoder", NULL};
    for (const zf_json *v = zf_json_first(json); v && !error->status; v = zf_json_next(v)) {
        const char *key = zf_json_key(v, NULL);
        if (zf_json_type_of(v) == ZF_JSON_NULL || zfl_has_row(t->rows, key) ||
            zfl_has_row(family->rows, key) || (family->keys && zfl_is_listed(family->keys, key)))
            continue;
        if (zfl_is_listed(off, key)) zfl_expect_truth(v, false, error);
        else if (!strcmp(key, "quantization_config"))
            zf_json_fail(v, error, "says that the weights are quantised, which is not read");
        else if (!strcmp(key, "pruned_heads")) {
            if (zf_json_length(v))
                zf_json_fail(v, error, "removes heads; all layers must have all of them");
        } else if (!zfl_is_listed(t->keys, key) && !zfl_is_listed(zfl_idle_keys, key))
            zf_json_fail(v, error,
                         "is not read, and may change what the model computes; remove it if it "
                         "changes nothing");
    }
}

bool zf_config_is_path(const char *name)
{
    char file[1024];
    if (strpbrk(name, "./")) return true;
    snprintf(file, sizeof file, "%s/config.json", name);
    return !access(file, F_OK);
}


static void zfl_read_rows(const zf_config_table *t, const zf_config_row *row, const zf_json *json,
                          void *config, zf_error *error)
{
    for (; row && row->key; row++)
        if (!(row->use & ZF_CONFIG_WRITTEN)) zfl_read_row(t, row, json, config, error);
}

/* The values of a type where the file has none. */
static void zfl_take_defaults(const zf_config_table *t, void *config)
{
    const void *defaults = zfl_family_of(t, config)->defaults;
    const int64_t type = t->type ? *zfl_integer_at(config, t->type) : 0;
    if (!defaults) return;
    memcpy(config, defaults, t->bytes);
    if (t->type) *zfl_integer_at(config, t->type) = type;
}

static bool zfl_load_size(const zf_config_table *t, const char *name, void *config, zf_error *error)
{
    char names[256] = "";
    for (const zf_config_size *s = t->sizes; s->name; s++) {
        size_t n = strlen(names);
        if (!strcmp(name, s->name)) {
            if (t->type) *zfl_integer_at(config, t->type) = t->size_types[s - t->sizes];
            zfl_take_defaults(t, config);
            *zfl_integer_at(config, t->layers) = s->layers;
            *zfl_integer_at(config, t->hidden) = s->hidden;
            *zfl_integer_at(config, t->heads) = s->heads;
            *zfl_integer_at(config, t->intermediate) =
                s->intermediate ? s->intermediate : 4 * s->hidden;
            if (s->vocab) *zfl_integer_at(config, t->vocab) = s->vocab;
            return !t->read_more || t->read_more(config, NULL, error);
        }
        snprintf(names + n, sizeof names - n, "%s, ", s->name);
    }
    return zfl_fail(error, ZF_ERR_ARGUMENT, "model \"%.100s\" is none of %sand no config.json",
                    name, names);
}

bool zf_config_load(const zf_config_table *t, const char *name, void *config, zf_error *error)
{
    zf_json *json;
    memcpy(config, t->defaults, t->bytes);
    if (!zf_config_is_path(name)) return zfl_load_size(t, name, config, error);
    json = zfl_read_file(name, error);
    if (json) json = zfl_take_text_part(t, json, error);
    if (!json) return false;
    zfl_read_type(t, json, config, error);
    zfl_take_defaults(t, config);
    zfl_read_rows(t, t->rows, json, config, error);
    zfl_read_rows(t, zfl_family_of(t, config)->rows, json, config, error);
    zfl_read_scores(t, json, config, error);
    if (t->read_architecture) {
        const char *architecture = "";
        zf_json_to_string(zf_json_element(zf_config_member(json, "architectures"), 0),
                          &architecture, error);
        t->read_architecture(config, architecture);
    }
    if (!error->status) zfl_expect_known(t, config, json, error);
    if (t->read_more && !error->status) (void)t->read_more(config, json, error);
    zf_json_free(json);
    return !error->status;
}

/* ----------------------------------------------------------------------------------- writing */

/* An id, a list of several, or null. */
static void zfl_config_write_ids(zf_json_writer *w, const int64_t *ids, int64_t room)
{
    const bool list = room > 1 && ids[0] >= 0 && ids[1] >= 0;
    if (ids[0] < 0) zf_json_put_null(w);
    if (list) zf_json_begin_array(w);
    for (int64_t k = 0; k < (list ? room : 1) && ids[k] >= 0; k++) zf_json_put_int(w, ids[k]);
    if (list) zf_json_end(w);
}

static void zfl_write_row(const zf_config_table *t, zf_json_writer *w, const zf_config_row *row,
                          void *config)
{
    const int64_t *integer = zfl_integer_at(config, row->at);
    int i = 0;
    if (row->kind >= ZF_CONFIG_TRUE || (row->use & ZF_CONFIG_RARE && !*integer)) return;
    if (row->kind == ZF_CONFIG_BLOCKS && !*zf_config_layout(t, config)) return;
    zf_json_put_key(w, row->key);
    switch (row->kind) {
    case ZF_CONFIG_NUMBER: zf_json_put_double(w, *zfl_number_at(config, row->at)); return;
    case ZF_CONFIG_TRUTH: zf_json_put_bool(w, *integer != 0); return;
    case ZF_CONFIG_BLOCKS: zf_json_put_string(w, zf_config_layout(t, config)); return;
    case ZF_CONFIG_TOKENS: zfl_config_write_ids(w, integer, t->ends); return;
    case ZF_CONFIG_ACTIVATION:
        while ((int64_t)zfl_activations[i].activation != *integer) i++;
        zf_json_put_string(w, row->text && *integer == ZF_ACTIVATION_GELU_TANH
                                  ? row->text
                                  : zfl_activations[i].name);
        return;
    default:
        if (row->kind == ZF_CONFIG_TOKEN && *integer < 0) zf_json_put_null(w);
        else zf_json_put_int(w, *integer);
    }
}

/* That of the table, or its beginning with the end of a model that scores. */
static void zfl_write_architecture(const zf_config_table *t, zf_json_writer *w, const void *config)
{
    static const char *const ends[] = {"ForCausalLM", "LMHeadModel"};
    const char *name = t->architecture_of ? t->architecture_of(config) : t->architecture;
    size_t length = strlen(name);
    char scores[128];
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++)
        if (strstr(name, ends[k])) length = (size_t)(strstr(name, ends[k]) - name);
    snprintf(scores, sizeof scores, "%.*s%s", (int)length, name, zfl_classifies);
    zf_json_put_key(w, "architectures");
    zf_json_begin_array(w);
    zf_json_put_string(w, zf_config_scores(t, config) ? scores : name);
    zf_json_end(w);
}

/* The one label, as transformers names it: from it it has the number of labels. */
static void zfl_write_label(zf_json_writer *w)
{
    zf_json_put_key(w, "id2label");
    zf_json_begin_object(w);
    zf_json_put_text_member(w, "0", "LABEL_0");
    zf_json_end(w);
    zf_json_put_key(w, "label2id");
    zf_json_begin_object(w);
    zf_json_put_int_member(w, "LABEL_0", 0);
    zf_json_end(w);
}

zf_json_writer *zf_config_json(const zf_config_table *t, const void *config)
{
    const zf_config_family *family = zfl_family_of(t, config);
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_config_any copy;
    memcpy(&copy, config, t->bytes);
    zf_json_begin_object(w);
    zfl_write_architecture(t, w, config);
    zf_json_put_key(w, "model_type"),
        zf_json_put_string(w, t->types[t->type ? *zfl_integer_at(&copy, t->type) : 0]);
    for (const zf_config_row *row = t->rows; row->key; row++)
        if (!family->unwritten || !zfl_is_listed(family->unwritten, row->key))
            zfl_write_row(t, w, row, &copy);
    for (const zf_config_row *row = family->rows; row && row->key; row++)
        zfl_write_row(t, w, row, &copy);
    if (zf_config_scores(t, config)) zfl_write_label(w);
    if (t->write_more) t->write_more(&copy, w);
    zf_json_end(w);
    return w;
}
