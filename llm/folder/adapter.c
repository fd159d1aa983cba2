/* Adapters of low rank: what describes them, and PEFT's files. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char zfl_before[] = "base_model.model.";

/* The digest of a text of the description goes on from another one. */
static uint64_t zfl_note_text(uint64_t digest, const char *what, const char *text)
{
    if (!text || !*text) return digest;
    digest = zf_digest_bytes(digest, what, strlen(what));
    return zf_digest_bytes(digest, text, strlen(text));
}

const char *zf_adapter_note(char text[64], const zf_training *t)
{
    const zf_lora_desc d = zf_training_resolved(t).lora;
    const char *targets = d.targets ? d.targets : "all-linear";
    uint64_t digest = zfl_note_text(ZF_DIGEST_START, "", targets);
    if (!d.rank) return "none";
    digest = zfl_note_text(zfl_note_text(digest, " keep ", d.keep), " name ", d.name);
    snprintf(text, 64, "r=%lld,alpha=%.9g,dropout=%.6g%s,%08x", (long long)d.rank, d.alpha,
             d.dropout, d.rslora ? ",rslora" : "", (unsigned)digest);
    return text;
}

/* ------------------------------------------------------------------------------------------ in */

struct zf_adapter {
    zf_json *config;
    zf_weights *weights;
    zf_lora_desc desc;
    zf_text targets, keep;
    bool ties; /* what is kept of tied weights is kept of both */
    char path[ZF_FOLDER_PATH]; /* of the tensors */
};

/* Members of adapter_config.json that are read elsewhere, or change nothing once it is trained. */
static const char *const zfl_adapter_keys[] = {"auto_mapping",
                                               "base_model_name_or_path",
                                               "bias",
                                               "corda_config",
                                               "ensure_weight_tying",
                                               "eva_config",
                                               "exclude_modules",
                                               "fan_in_fan_out",
                                               "inference_mode",
                                               "init_lora_weights",
                                               "layers_pattern",
                                               "layers_to_transform",
                                               "lora_alpha",
                                               "lora_dropout",
                                               "lora_ga_config",
                                               "megatron_core",
                                               "modules_to_save",
                                               "peft_type",
                                               "peft_version",
                                               "qalora_group_size",
                                               "r",
                                               "revision",
                                               "runtime_config",
                                               "target_modules",
                                               "task_type",
                                               "use_rslora",
                                               NULL};

/* Members that would change numbers, and the values that do not. */
static bool zfl_check_unknown(const zf_json *config, zf_error *error)
{
    static const char *const off[] = {"use_dora", "lora_bias", "use_qalora", "use_bdlora", NULL};
    static const char *const empty[] = {"rank_pattern",
                                        "alpha_pattern",
                                        "trainable_token_indices",
                                        "layer_replication",
                                        "target_parameters",
                                        "alora_invocation_tokens",
                                        "arrow_config",
                                        "kasa_config",
                                        "loftq_config",
                                        "megatron_config",
                                        "monteclora_config",
                                        "velora_config",
                                        NULL},
                             *const plain[] = {"gaussian", "orthogonal", "eva"};
    const zf_json *saves = zf_json_member(config, "modules_to_save");
    const zf_json *v = zf_json_require(config, "peft_type", error);
    const char *type = "LORA", *bias = "none", *init;
    if (zf_json_to_string(v, &type, error)) return false;
    if (!v || strcmp(type, "LORA")) return zf_json_expected(v, error, "\"LORA\""), false;
    v = zf_json_member(config, "bias");
    if (v && zf_json_to_string(v, &bias, error)) return false;
    if (strcmp(bias, "none")) return zf_json_expected(v, error, "\"none\""), false;
    v = zf_json_member(config, "init_lora_weights");
    init = zf_json_string(v, NULL); /* others have changed the base as well */
    for (size_t k = 0; init && k < sizeof plain / sizeof *plain; k++)
        if (!strcmp(init, plain[k])) init = NULL;
    if (init) return zf_json_expected(v, error, "true, false, gaussian, orthogonal or eva"), false;
    for (size_t k = 0; off[k]; k++) {
        bool on = false;
        v = zf_json_member(config, off[k]);
        if (zf_json_type_of(v) != ZF_JSON_NULL && zf_json_to_bool(v, &on, error)) return false;
        if (on) return zf_json_fail(v, error, "is true, which is not supported"), false;
    }
    for (size_t k = 0; empty[k]; k++) {
        v = zf_json_member(config, empty[k]);
        if (v && zf_json_type_of(v) != ZF_JSON_NULL && zf_json_length(v) != 0)
            return zf_json_fail(v, error, "is not empty, which is not supported"), false;
    }
    if (zf_json_type_of(saves) != ZF_JSON_NULL && zf_json_type_of(saves) != ZF_JSON_ARRAY)
        return zf_json_expected(saves, error, "null or a list of modules"), false;
    for (v = zf_json_first(saves); v; v = zf_json_next(v)) {
        const char *module = zf_json_string(v, NULL);
        if (!module || !*module) return zf_json_expected(v, error, "the name of a module"), false;
    }
    for (v = zf_json_first(config); v && !error->status; v = zf_json_next(v)) {
        const char *key = zf_json_key(v, NULL);
        if (zf_json_type_of(v) != ZF_JSON_NULL && !zfl_is_listed(zfl_adapter_keys, key) &&
            !zfl_is_listed(off, key) && !zfl_is_listed(empty, key))
            zf_json_fail(v, error, "is not read, and may change what the adapter computes");
    }
    return !error->status;
}

static bool zfl_adapter_read_config(zf_adapter *a, zf_error *error)
{
    const zf_json *c = a->config;
    if (!zfl_check_unknown(c, error)) return false;
    a->desc.alpha = 8;
    zf_json_to_int(zf_json_require(c, "r", error), 1, INT32_MAX, &a->desc.rank, error);
    zf_json_to_double(zf_json_member(c, "lora_alpha"), -1e9, 1e9, &a->desc.alpha, error);
    if (a->desc.alpha == 0) a->desc.alpha = ZF_ZERO;
    zf_json_to_bool(zf_json_member(c, "use_rslora"), &a->desc.rslora, error);
    if (zf_json_type_of(zf_json_member(c, "ensure_weight_tying")) != ZF_JSON_NULL)
        zf_json_to_bool(zf_json_member(c, "ensure_weight_tying"), &a->ties, error);
    return !error->status;
}

/* The name of a tensor in the base: NAME of base_model.model.NAME. Older files have no
 * base_model.model. */
static const char *zfl_name_in_base(const zf_adapter *a, int32_t index)
{
    const char *name = zf_weights_name(a->weights, index);
    return zfl_begins(name, zfl_before) ? name + sizeof zfl_before - 1 : name;
}

/* The parameter is of a module that modules_to_save names, by the end of its name as PEFT does, or of
 * one inside it. */
static bool zfl_is_saved(const zf_adapter *a, const char *name)
{
    const zf_json *list = zf_json_member(a->config, "modules_to_save");
    char module[ZFL_PARAM_NAME], *dot;
    snprintf(module, sizeof module, "%s", name);
    while ((dot = strrchr(module, '.')) != NULL) {
        *dot = '\0';
        for (const zf_json *v = zf_json_first(list); v; v = zf_json_next(v))
            if (zfl_ends_in(module, zf_json_string(v, NULL))) return true;
    }
    return false;
}

static void zfl_list_name(zf_text *list, const char *name, size_t length)
{
    if (list->count) zf_text_add_string(list, ",");
    zf_text_add(list, name, length);
}

/* The tensors' modules become the targets; others are kept. */
static bool zfl_read_modules(zf_adapter *a, zf_error *error)
{
    for (int32_t i = 0; i < zf_weights_count(a->weights); i++) {
        const char *name = zfl_name_in_base(a, i);
        if (zfl_ends_in(name, zfl_end_a))
            zfl_list_name(&a->targets, name, strlen(name) - (sizeof zfl_end_a - 1));
        else if (zfl_is_saved(a, name)) zfl_list_name(&a->keep, name, strlen(name));
        else if (!zfl_ends_in(name, zfl_end_b) && !a->ties)
            return zfl_fail(error, ZF_ERR_MISMATCH,
                            "%s: %.200s is neither a lora_A.weight nor a lora_B.weight, nor of "
                            "modules_to_save: it is no adapter of this kind",
                            a->path, zf_weights_name(a->weights, i));
    }
    if (a->targets.failed || a->keep.failed)
        return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (!a->targets.count)
        return zfl_fail(error, ZF_ERR_FORMAT, "%s has no lora_A.weight", a->path);
    a->desc.targets = a->targets.at, a->desc.keep = a->keep.at;
    return true;
}

bool zf_adapter_is_at(const char *path)
{
    char file[ZF_FOLDER_PATH];
    snprintf(file, sizeof file, "%s/adapter_config.json", path);
    return !access(file, F_OK);
}

zf_adapter *zf_adapter_open(const char *path, zf_error *error)
{
    zf_adapter *a = calloc(1, sizeof *a);
    if (!a) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory"), NULL;
    snprintf(a->path, sizeof a->path, "%s/adapter_config.json", path);
    if (!zf_adapter_is_at(path)) {
        zfl_fail(error, ZF_ERR_IO, "%s is no adapter: it has no adapter_config.json", path);
    } else if ((a->config = zf_json_read(a->path, NULL, error)) &&
               zfl_adapter_read_config(a, error)) {
        snprintf(a->path, sizeof a->path, "%s/adapter_model.safetensors", path);
        if ((a->weights = zf_weights_open(a->path, error)) && zfl_read_modules(a, error)) return a;
    }
    zf_adapter_close(a);
    return NULL;
}

void zf_adapter_close(zf_adapter *a)
{
    if (!a) return;
    zf_json_free(a->config);
    zf_weights_close(a->weights);
    zf_text_free(&a->targets);
    zf_text_free(&a->keep);
    free(a);
}

const zf_lora_desc *zf_adapter_desc(const zf_adapter *a) { return &a->desc; }

/* The tensor of a parameter; -1. */
static int32_t zfl_adapter_find(const zf_adapter *a, const char *param)
{
    char name[sizeof zfl_before + ZFL_PARAM_NAME];
    int32_t at;
    snprintf(name, sizeof name, "%s%s", zfl_before, param);
    at = zf_weights_find(a->weights, name);
    return at < 0 ? zf_weights_find(a->weights, param) : at;
}

/* The weights of a head are those of the word embedding, which the adapter keeps. */
static bool zfl_keeps_tied(zf_graph *g, const zf_exchange *x)
{
    return x && x->words && x->head && !zf_valid(zf_exchange_find(g, x->head)) &&
           !(x->score && zf_valid(zf_exchange_find(g, x->score))) &&
           zf_param_adapter(zf_exchange_find(g, x->words));
}

/* The tensor repeats one that was taken, to which it is tied. */
static bool zfl_repeats(zf_adapter *a, int32_t index, zf_error *error)
{
    if (zfl_ends_in(zf_weights_name(a->weights, index), zfl_end_b)) return false;
    for (int32_t i = 0; i < zf_weights_count(a->weights) && a->ties; i++)
        if (zf_weights_taken(a->weights, i) && zf_weights_equal(a->weights, i, index, error))
            return true;
    return false;
}

bool zf_adapter_take(zf_adapter *a, zf_program *p, zf_graph *g, const zf_exchange *x,
                     zf_error *error)
{
    bool good = true;
    if (!a->ties && zfl_keeps_tied(g, x))
        return zfl_fail(error, ZF_ERR_MISMATCH,
                        "%s keeps %s, to which the model ties its head: adapter_config.json must "
                        "have \"ensure_weight_tying\": true",
                        a->path, x->words);
    for (int32_t i = 0; i < zf_param_count(g) && good; i++) {
        zf_tensor param = zf_param_at(g, i);
        char name[ZFL_PARAM_NAME];
        int32_t at;
        if (!zf_param_adapter(param)) continue;
        at = zfl_adapter_find(a, zf_param_plain_name(param, name, sizeof name));
        if (at < 0)
            return zfl_fail(error, ZF_ERR_FORMAT, "%s: there is no tensor %s%s", a->path,
                            zfl_before, name);
        good = zfl_import_param(zf_adapter_is_product(param) ? NULL : x, p, a->weights, at, param,
                                error);
    }
    for (int32_t i = 0; i < zf_weights_count(a->weights) && good; i++)
        if (!zf_weights_taken(a->weights, i) && !zfl_repeats(a, i, error))
            good = zfl_fail(error, ZF_ERR_MISMATCH,
                            "%s: %s fits no weight of the model: it is an adapter of another one",
                            a->path, zf_weights_name(a->weights, i));
    return good;
}

/* ----------------------------------------------------------------------------------------- out */

/* A list of names without repetitions; what it has lies in `seen`, with commas around. */
static void zfl_put_once(zf_json_writer *w, zf_text *seen, const char *item)
{
    char text[ZFL_PARAM_NAME + 2];
    snprintf(text, sizeof text, ",%s,", item);
    if (!seen->count) zf_text_add_string(seen, ",");
    if (seen->failed || strstr(seen->at, text)) return;
    zf_text_add_string(seen, text + 1);
    zf_json_put_string(w, item);
}

/* The targets as PEFT lists them. Those of all-linear are the last parts of the modules' names. */
static void zfl_put_targets(zf_json_writer *w, zf_text *seen, zf_graph *g, const char *targets)
{
    char name[ZFL_PARAM_NAME];
    const bool all = !targets || !strcmp(targets, "all-linear");
    zf_json_put_key(w, "target_modules");
    zf_json_begin_array(w);
    for (size_t length; !all && *targets; targets += length + (targets[length] == ',')) {
        length = strcspn(targets, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, targets);
        zfl_put_once(w, seen, name);
    }
    for (int32_t i = 0; all && i < zf_param_count(g); i++) {
        zf_param_plain_name(zf_param_at(g, i), name, sizeof name);
        if (!zf_adapter_is_product(zf_param_at(g, i)) || !zfl_ends_in(name, zfl_end_a)) continue;
        name[strlen(name) - (sizeof zfl_end_a - 1)] = '\0';
        zfl_put_once(w, seen, strrchr(name, '.') ? strrchr(name, '.') + 1 : name);
    }
    zf_json_end(w);
}

/* The module of a kept parameter, in the base; "": it belongs to none, or is not kept. */
static const char *zfl_kept_module(zf_tensor param, char name[ZFL_PARAM_NAME])
{
    zf_param_plain_name(param, name, ZFL_PARAM_NAME);
    if (!zf_param_adapter(param) || zf_adapter_is_product(param) || !strrchr(name, '.')) return "";
    *strrchr(name, '.') = '\0';
    return name;
}

/* The parameter is of a module of which another one is kept. */
static bool zfl_is_next_to_kept(zf_graph *g, zf_tensor param)
{
    const char *name = zf_tensor_name(param), *dot = strrchr(name, '.');
    char kept[ZFL_PARAM_NAME];
    for (int32_t i = 0; i < zf_param_count(g) && dot && !zf_param_adapter(param); i++) {
        const char *module = zfl_kept_module(zf_param_at(g, i), kept);
        if (strlen(module) == (size_t)(dot - name) && !memcmp(module, name, strlen(module)))
            return true;
    }
    return false;
}

/* A product of the graph is with a weight of the module. */
static bool zfl_is_adapted(zf_graph *g, const char *module)
{
    char name[ZFL_PARAM_NAME];
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        if (!zf_adapter_is_product(zf_param_at(g, i))) continue;
        zf_param_plain_name(zf_param_at(g, i), name, sizeof name);
        if (zfl_begins(name, module) && !strcmp(name + strlen(module), zfl_end_a)) return true;
    }
    return false;
}

bool zf_adapter_can_write(zf_graph *g, zf_error *error)
{
    char name[ZFL_PARAM_NAME];
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        const zf_tensor param = zf_param_at(g, i);
        const char *module = zfl_kept_module(param, name);
        if (!zf_param_adapter(param) || zf_adapter_is_product(param)) continue;
        if (!*module)
            return zfl_fail(error, ZF_ERR_ARGUMENT,
                            "the adapter keeps %.200s, which is of no module: PEFT's files keep "
                            "modules",
                            zf_tensor_name(param));
        if (zfl_is_adapted(g, module))
            return zfl_fail(error, ZF_ERR_ARGUMENT,
                            "the adapter keeps %.200s, and has a product with the weight of its "
                            "module: PEFT's files have a module as one or the other",
                            zf_tensor_name(param));
    }
    return true;
}

/* The modules that are kept. */
static void zfl_put_kept(zf_json_writer *w, zf_text *seen, zf_graph *g)
{
    char name[ZFL_PARAM_NAME];
    bool begun = false;
    zf_json_put_key(w, "modules_to_save");
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        const char *module = zfl_kept_module(zf_param_at(g, i), name);
        if (!*module) continue;
        if (!begun) zf_json_begin_array(w);
        begun = true;
        zfl_put_once(w, seen, module);
    }
    if (begun) zf_json_end(w);
    else zf_json_put_null(w);
}

static bool zfl_write_config(zf_text *out, zf_graph *g, const zf_adapter_about *about,
                             zf_error *error)
{
    static const char *const nothing[] = {"auto_mapping", "layers_pattern", "layers_to_transform",
                                          "revision"};
    const double alpha = about->desc->alpha;
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_text seen = {.at = NULL};
    const char *text = NULL;
    size_t bytes;
    zf_json_begin_object(w);
    zf_json_put_text_member(w, "peft_type", "LORA");
    zf_json_put_text_member(w, "task_type", about->task);
    zf_json_put_text_member(w, "base_model_name_or_path", about->base);
    zf_json_put_int_member(w, "r", about->desc->rank);
    if (alpha == floor(alpha) && fabs(alpha) < 1e15)
        zf_json_put_int_member(w, "lora_alpha", (int64_t)alpha);
    else zf_json_put_double_member(w, "lora_alpha", alpha);
    zf_json_put_double_member(w, "lora_dropout", about->desc->dropout);
    zf_json_put_bool_member(w, "use_rslora", about->desc->rslora);
    zf_json_put_bool_member(w, "use_dora", false);
    zf_json_put_text_member(w, "bias", "none");
    zf_json_put_bool_member(w, "fan_in_fan_out", about->exchange && about->exchange->turned);
    zf_json_put_bool_member(w, "inference_mode", true);
    zf_json_put_bool_member(w, "init_lora_weights", true);
    zfl_put_targets(w, &seen, g, about->desc->targets);
    zf_text_clear(&seen);
    zfl_put_kept(w, &seen, g);
    if (zfl_keeps_tied(g, about->exchange))
        zf_json_put_bool_member(w, "ensure_weight_tying", true);
    for (size_t k = 0; k < sizeof nothing / sizeof *nothing; k++)
        zf_json_put_key(w, nothing[k]), zf_json_put_null(w);
    zf_json_put_key(w, "rank_pattern"), zf_json_begin_object(w), zf_json_end(w);
    zf_json_put_key(w, "alpha_pattern"), zf_json_begin_object(w), zf_json_end(w);
    zf_json_end(w);
    if (seen.failed) zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    else if ((text = zf_json_text(w, &bytes, error))) zf_text_add(out, text, bytes);
    zf_json_writer_free(w);
    zf_text_free(&seen);
    return text != NULL;
}

/* The parameter is in the files. */
static bool zfl_is_in_files(zf_graph *g, zf_tensor param)
{
    return zf_param_adapter(param) || zfl_is_next_to_kept(g, param);
}

/* How many tensors a parameter is in the files: two for a word embedding that is kept, and to which
 * a head is tied. */
static int zfl_written_times(zf_tensor param, const char *name, const zf_exchange *x)
{
    return 1 + (zf_param_adapter(param) && zfl_keeps_tied(param.graph, x) && !strcmp(name, x->words));
}

/* Describes a tensor of f32 that begins at byte `at`; the byte after it. */
static int64_t zfl_put_tensor(zf_json_writer *w, const char *in_base, zf_shape s, int64_t at)
{
    char name[sizeof zfl_before + ZFL_PARAM_NAME];
    snprintf(name, sizeof name, "%s%s", zfl_before, in_base);
    zf_json_put_key(w, name);
    zf_json_begin_object(w);
    zf_json_put_text_member(w, "dtype", "F32");
    zf_json_put_key(w, "shape");
    zf_json_begin_array(w);
    for (int32_t k = 0; k < s.rank; k++) zf_json_put_int(w, s.dims[k]);
    zf_json_end(w);
    zf_json_put_key(w, "data_offsets");
    zf_json_begin_array(w);
    zf_json_put_int(w, at);
    zf_json_put_int(w, at += 4 * zf_shape_count(s));
    zf_json_end(w);
    zf_json_end(w);
    return at;
}

/* The header of a safetensors file: its length in 8 bytes, and JSON, padded to a multiple of 8. */
static bool zfl_write_header(zf_text *out, zf_graph *g, const zf_exchange *x, zf_error *error)
{
    zf_json_writer *w = zf_json_writer_new(0, NULL);
    unsigned char length[8];
    const char *text;
    size_t bytes, padded;
    int64_t at = 0;
    zf_json_begin_object(w);
    zf_json_put_key(w, "__metadata__");
    zf_json_begin_object(w);
    zf_json_put_text_member(w, "format", "pt");
    zf_json_end(w);
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        zf_tensor param = zf_param_at(g, i);
        const bool product = zf_adapter_is_product(param);
        zf_shape s = product ? zf_tensor_shape(param) : zfl_file_shape(x, param);
        char name[ZFL_PARAM_NAME];
        if (!zfl_is_in_files(g, param)) continue;
        zf_param_plain_name(param, name, sizeof name);
        at = zfl_put_tensor(w, name, s, at);
        if (zfl_written_times(param, name, x) > 1) at = zfl_put_tensor(w, x->head, s, at);
    }
    zf_json_end(w);
    if ((text = zf_json_text(w, &bytes, error))) {
        padded = (bytes + 7) / 8 * 8;
        for (int k = 0; k < 8; k++) length[k] = (unsigned char)((uint64_t)padded >> 8 * k);
        zf_text_add(out, length, sizeof length);
        zf_text_add(out, text, bytes);
        zf_text_add(out, "       ", padded - bytes);
    }
    zf_json_writer_free(w);
    return text != NULL;
}

/* Adds the values of a parameter, little-endian, as the machine has them. */
static bool zfl_write_values(zf_text *out, zf_program *p, zf_tensor param, const zf_exchange *x,
                             zf_error *error)
{
    const size_t count = (size_t)zf_shape_count(zf_param_shape(param));
    const bool turned = !zf_adapter_is_product(param) && zfl_is_turned(x, param);
    char name[ZFL_PARAM_NAME];
    float *values = malloc(2 * count * sizeof *values + 1);
    bool good = values ? !zf_weights_get(p, param, values, error)
                       : zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    zf_param_plain_name(param, name, sizeof name);
    if (good && turned)
        zfl_turn((char *)(values + count), (const char *)values, zf_param_shape(param),
                 sizeof *values);
    for (int k = 0; good && k < zfl_written_times(param, name, x); k++)
        zf_text_add(out, turned ? values + count : values, count * sizeof *values);
    free(values);
    return good;
}

bool zf_adapter_write(zf_adapter_files *files, zf_program *p, zf_graph *g,
                      const zf_adapter_about *about, zf_error *error)
{
    bool good;
    *files = (zf_adapter_files){.config = {.at = NULL}};
    good = zf_adapter_can_write(g, error) && zfl_write_config(&files->config, g, about, error) &&
           zfl_write_header(&files->model, g, about->exchange, error);
    for (int32_t i = 0; i < zf_param_count(g) && good; i++)
        if (zfl_is_in_files(g, zf_param_at(g, i)))
            good = zfl_write_values(&files->model, p, zf_param_at(g, i), about->exchange, error);
    if (good && (files->config.failed || files->model.failed))
        good = zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    return good;
}

void zf_adapter_files_free(zf_adapter_files *files)
{
    zf_text_free(&files->config);
    zf_text_free(&files->model);
}
