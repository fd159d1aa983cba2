/* Adapters of low rank: what describes them, and PEFT's files. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char zfl_before[] = "base_model.model.", zfl_end_a[] = ".lora_A.weight",
                  zfl_end_b[] = ".lora_B.weight";

static bool zfl_adapter_ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

bool zf_adapter_is_param(const char *name)
{
    return zfl_adapter_ends_in(name, zfl_end_a) || zfl_adapter_ends_in(name, zfl_end_b);
}

const char *zf_adapter_note(char text[64], const zf_training *t)
{
    const zf_lora_desc d = zf_training_resolved(t).lora;
    const char *targets = d.targets ? d.targets : "all-linear";
    if (!d.rank) return "none";
    snprintf(text, 64, "r=%lld,alpha=%.9g,dropout=%.6g%s,%08x", (long long)d.rank, d.alpha,
             d.dropout, d.rslora ? ",rslora" : "",
             (unsigned)zf_digest_bytes(ZF_DIGEST_START, targets, strlen(targets)));
    return text;
}

/* ------------------------------------------------------------------------------------------ in */

struct zf_adapter {
    zf_json *config;
    zf_weights *weights;
    zf_lora_desc desc;
    zf_text targets;
    char path[ZF_FOLDER_PATH]; /* of the tensors */
};

/* Members of adapter_config.json that are read elsewhere, or change nothing once it is trained. */
static const char *const zfl_adapter_keys[] = {"auto_mapping",
                                               "base_model_name_or_path",
                                               "bias",
                                               "corda_config",
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
    static const char *const off[] = {"use_dora",   "lora_bias",           "use_qalora",
                                      "use_bdlora", "ensure_weight_tying", NULL};
    static const char *const empty[] = {"rank_pattern",
                                        "alpha_pattern",
                                        "modules_to_save",
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
    return !error->status;
}

/* The module of a tensor's name, NAME of base_model.model.NAME.lora_A.weight: its beginning and
 * length. Older files have no base_model.model. */
static const char *zfl_module_of(const char *name, size_t *length)
{
    if (!strncmp(name, zfl_before, sizeof zfl_before - 1)) name += sizeof zfl_before - 1;
    *length = strlen(name) - (sizeof zfl_end_a - 1);
    return name;
}

/* The tensors' modules become the targets. */
static bool zfl_read_modules(zf_adapter *a, zf_error *error)
{
    for (int32_t i = 0; i < zf_weights_count(a->weights); i++) {
        const char *name = zf_weights_name(a->weights, i);
        size_t length;
        if (!zf_adapter_is_param(name))
            return zfl_fail(error, ZF_ERR_MISMATCH,
                            "%s: %.200s is neither a lora_A.weight nor a lora_B.weight: it is no "
                            "adapter of this kind",
                            a->path, name);
        if (!zfl_adapter_ends_in(name, zfl_end_a)) continue;
        name = zfl_module_of(name, &length);
        if (a->targets.count) zf_text_add_string(&a->targets, ",");
        zf_text_add(&a->targets, name, length);
    }
    if (a->targets.failed) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (!a->targets.count)
        return zfl_fail(error, ZF_ERR_FORMAT, "%s has no lora_A.weight", a->path);
    a->desc.targets = a->targets.at;
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
    free(a);
}

const zf_lora_desc *zf_adapter_desc(const zf_adapter *a) { return &a->desc; }

/* The tensor of a parameter; -1. */
static int32_t zfl_adapter_find(const zf_adapter *a, const char *param)
{
    char name[600];
    int32_t at;
    snprintf(name, sizeof name, "%s%s", zfl_before, param);
    at = zf_weights_find(a->weights, name);
    return at < 0 ? zf_weights_find(a->weights, param) : at;
}

bool zf_adapter_take(zf_adapter *a, zf_program *p, zf_graph *g, zf_error *error)
{
    bool good = true;
    for (int32_t i = 0; i < zf_param_count(g) && good; i++) {
        zf_tensor param = zf_param_at(g, i);
        const char *name = zf_tensor_name(param);
        int32_t at = zf_adapter_is_param(name) ? zfl_adapter_find(a, name) : -1;
        float *values;
        if (!zf_adapter_is_param(name)) continue;
        if (at < 0)
            return zfl_fail(error, ZF_ERR_FORMAT, "%s: there is no tensor %s%s", a->path,
                            zfl_before, name);
        values = zf_weights_take(a->weights, at, zf_tensor_shape(param), error);
        good = values && !zf_weights_put(p, param, values, error);
        free(values);
    }
    for (int32_t i = 0; i < zf_weights_count(a->weights) && good; i++)
        if (!zf_weights_taken(a->weights, i))
            good = zfl_fail(error, ZF_ERR_MISMATCH,
                            "%s: %s fits no weight of the model: it is an adapter of another one",
                            a->path, zf_weights_name(a->weights, i));
    return good;
}

/* ----------------------------------------------------------------------------------------- out */

/* The targets as PEFT lists them. Those of all-linear are the last parts of the modules' names. */
static void zfl_put_targets(zf_json_writer *w, zf_graph *g, const char *targets)
{
    char seen[1024] = ",", item[300];
    if (!targets) targets = "all-linear";
    zf_json_put_key(w, "target_modules");
    zf_json_begin_array(w);
    if (strcmp(targets, "all-linear")) {
        for (size_t length; *targets; targets += length + (targets[length] == ',')) {
            length = strcspn(targets, ",");
            snprintf(item, sizeof item, "%.*s", (int)length, targets);
            zf_json_put_string(w, item);
        }
    } else {
        for (int32_t i = 0; i < zf_param_count(g); i++) {
            const char *name = zf_tensor_name(zf_param_at(g, i)), *last = name;
            size_t length = strlen(name) - (sizeof zfl_end_a - 1), room = strlen(seen);
            if (!zfl_adapter_ends_in(name, zfl_end_a)) continue;
            for (const char *at = name; at < name + length; at++)
                if (*at == '.') last = at + 1;
            snprintf(item, sizeof item, ",%.*s,", (int)(name + length - last), last);
            if (strstr(seen, item)) continue;
            snprintf(seen + room, sizeof seen - room, "%s", item + 1);
            item[strlen(item) - 1] = '\0';
            zf_json_put_string(w, item + 1);
        }
    }
    zf_json_end(w);
}

static bool zfl_write_config(zf_text *out, zf_graph *g, const zf_adapter_about *about,
                             zf_error *error)
{
    static const char *const nothing[] = {"auto_mapping", "layers_pattern", "layers_to_transform",
                                          "modules_to_save", "revision"};
    const double alpha = about->desc->alpha;
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    const char *text;
    size_t bytes;
    zf_json_begin_object(w);
    zf_json_put_text_member(w, "peft_type", "LORA");
    zf_json_put_text_member(w, "task_type", about->causal ? "CAUSAL_LM" : NULL);
    zf_json_put_text_member(w, "base_model_name_or_path", about->base);
    zf_json_put_int_member(w, "r", about->desc->rank);
    if (alpha == floor(alpha) && fabs(alpha) < 1e15)
        zf_json_put_int_member(w, "lora_alpha", (int64_t)alpha);
    else zf_json_put_double_member(w, "lora_alpha", alpha);
    zf_json_put_double_member(w, "lora_dropout", about->desc->dropout);
    zf_json_put_bool_member(w, "use_rslora", about->desc->rslora);
    zf_json_put_bool_member(w, "use_dora", false);
    zf_json_put_text_member(w, "bias", "none");
    zf_json_put_bool_member(w, "fan_in_fan_out", about->turned);
    zf_json_put_bool_member(w, "inference_mode", true);
    zf_json_put_bool_member(w, "init_lora_weights", true);
    zfl_put_targets(w, g, about->desc->targets);
    for (size_t k = 0; k < sizeof nothing / sizeof *nothing; k++)
        zf_json_put_key(w, nothing[k]), zf_json_put_null(w);
    zf_json_put_key(w, "rank_pattern"), zf_json_begin_object(w), zf_json_end(w);
    zf_json_put_key(w, "alpha_pattern"), zf_json_begin_object(w), zf_json_end(w);
    zf_json_end(w);
    if ((text = zf_json_text(w, &bytes, error))) zf_text_add(out, text, bytes);
    zf_json_writer_free(w);
    return text != NULL;
}

/* The header of a safetensors file: its length in 8 bytes, and JSON, padded to a multiple of 8. */
static bool zfl_write_header(zf_text *out, zf_graph *g, zf_error *error)
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
        zf_shape s = zf_tensor_shape(param);
        char name[600];
        if (!zf_adapter_is_param(zf_tensor_name(param))) continue;
        snprintf(name, sizeof name, "%s%s", zfl_before, zf_tensor_name(param));
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
static bool zfl_write_values(zf_text *out, zf_program *p, zf_tensor param, zf_error *error)
{
    size_t count = (size_t)zf_shape_count(zf_tensor_shape(param));
    float *values = malloc(count * sizeof *values + 1);
    bool good = values ? !zf_weights_get(p, param, values, error)
                       : zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (good) zf_text_add(out, values, count * sizeof *values);
    free(values);
    return good;
}

bool zf_adapter_write(zf_adapter_files *files, zf_program *p, zf_graph *g,
                      const zf_adapter_about *about, zf_error *error)
{
    bool good;
    *files = (zf_adapter_files){.config = {.at = NULL}};
    good = zfl_write_config(&files->config, g, about, error) &&
           zfl_write_header(&files->model, g, error);
    for (int32_t i = 0; i < zf_param_count(g) && good; i++)
        if (zf_adapter_is_param(zf_tensor_name(zf_param_at(g, i))))
            good = zfl_write_values(&files->model, p, zf_param_at(g, i), error);
    if (good && (files->config.failed || files->model.failed))
        good = zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    return good;
}

void zf_adapter_files_free(zf_adapter_files *files)
{
    zf_text_free(&files->config);
    zf_text_free(&files->model);
}
