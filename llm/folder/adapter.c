/* Adapters of low rank: what describes them, and PEFT's files. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char zfl_before[] = "base_model.model.", zfl_layer[] = ".base_layer";

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
    digest = zfl_note_text(zfl_note_text(digest, " ranks ", d.ranks), " alphas ", d.alphas);
    digest = zfl_note_text(digest, " dora", d.dora ? "yes" : "");
    snprintf(text, 64, "r=%lld,alpha=%.9g,dropout=%.6g%s,%08x", (long long)d.rank, d.alpha,
             d.dropout, d.rslora ? ",rslora" : "", (unsigned)digest);
    return text;
}

/* ------------------------------------------------------------------------------------------ in */

struct zf_adapter {
    zf_json *config;
    zf_weights *weights;
    zf_lora_desc desc;
    zf_text targets, keep, ranks, alphas;
    bool ties;    /* what is kept of tied weights is kept of both */
    bool repeats; /* the files have weights of the base: of the embedding and of the head */
    char path[ZF_FOLDER_PATH]; /* of the tensors */
};

/* Members of adapter_config.json that are read elsewhere, or change nothing once it is trained. */
static const char *const zfl_adapter_keys[] = {"alpha_pattern",
                                               "auto_mapping",
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
                                               "rank_pattern",
                                               "revision",
                                               "runtime_config",
                                               "target_modules",
                                               "task_type",
                                               "use_dora",
                                               "use_rslora",
                                               NULL};

/* Members that would change numbers, and the values that do not. */
static bool zfl_check_unknown(const zf_json *config, zf_error *error)
{
    static const char *const off[] = {"lora_bias", "use_qalora", "use_bdlora", NULL};
    static const char *const empty[] = {"trainable_token_indices",
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
    static const char *const biases[] = {"none", "all", "lora_only", NULL};
    const char *type = "LORA", *bias = biases[0], *init;
    if (zf_json_to_string(v, &type, error)) return false;
    if (!v || strcmp(type, "LORA")) return zf_json_expected(v, error, "\"LORA\""), false;
    v = zf_json_member(config, "bias");
    if (v && zf_json_to_string(v, &bias, error)) return false;
    if (!zfl_is_listed(biases, bias))
        return zf_json_expected(v, error, "none, all or lora_only"), false;
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
    if (zf_json_type_of(zf_json_member(c, "use_dora")) != ZF_JSON_NULL)
        zf_json_to_bool(zf_json_member(c, "use_dora"), &a->desc.dora, error);
    if (zf_json_type_of(zf_json_member(c, "ensure_weight_tying")) != ZF_JSON_NULL)
        zf_json_to_bool(zf_json_member(c, "ensure_weight_tying"), &a->ties, error);
    return !error->status;
}

/* Writes a name with another end: of a product, that of its parameter. */
static void zfl_param_name(const char *in_files, char name[ZFL_PARAM_NAME])
{
    snprintf(name, ZFL_PARAM_NAME, "%s", in_files);
    for (int k = 0; k < ZFL_LOWS; k++)
        if (zfl_ends_in(in_files, zfl_lows[k].file))
            snprintf(name, ZFL_PARAM_NAME, "%.*s%s",
                     (int)(strlen(in_files) - strlen(zfl_lows[k].file)), in_files,
                     zfl_lows[k].param);
}

/* Where MODULE.base_layer.NAME has .base_layer; NULL: it has none. */
static const char *zfl_layer_in(const char *name)
{
    const char *dot = strrchr(name, '.');
    const size_t before = dot ? (size_t)(dot - name) : 0, length = sizeof zfl_layer - 1;
    return before > length && !memcmp(dot - length, zfl_layer, length) ? dot - length : NULL;
}

/* The name of the parameter of a tensor: NAME of base_model.model.NAME. Older files have no
 * base_model.model. A parameter of the base next to a product is MODULE.base_layer.NAME. */
static const char *zfl_name_in_base(const zf_adapter *a, int32_t index, char name[ZFL_PARAM_NAME])
{
    const char *whole = zf_weights_name(a->weights, index), *layer;
    if (zfl_begins(whole, zfl_before)) whole += sizeof zfl_before - 1;
    layer = zfl_layer_in(whole);
    if (layer)
        snprintf(name, ZFL_PARAM_NAME, "%.*s%s", (int)(layer - whole), whole,
                 layer + sizeof zfl_layer - 1);
    else zfl_param_name(whole, name);
    return name;
}

/* The parameter is of a module that modules_to_save names, by the end of its name as PEFT does, or
 * of one inside it. */
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

/* ----------------------------------------------------------------------- patterns of modules */

/* Whether `$`, anchored as PEFT does it, matches a name: the whole, or what follows a dot. A
 * pattern without other special characters than dots needs no PCRE2. */
static bool zfl_matches_module(const zf_json *v, const char *module, bool *matches, zf_error *error)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    size_t bytes;
    const char *pattern = zf_json_key(v, &bytes);
    const size_t length = strlen(module);
    zf_text whole = {.at = NULL};
    zf_error why = {ZF_OK, ""};
    zfl_regex *regex = NULL;
    *matches = false;
    if (strspn(pattern, plain) == bytes) {
        const char *at = module + length - bytes;
        if (bytes > length || (at > module && at[-1] != '.')) return true;
        *matches = true;
        for (size_t i = 0; i < bytes; i++) *matches &= pattern[i] == '.' || pattern[i] == at[i];
        return true;
    }
    zf_text_add_string(&whole, "^(?:.*\\.)?(?:");
    zf_text_add(&whole, pattern, bytes);
    zf_text_add_string(&whole, ")$");
    if (!whole.failed) regex = zfl_regex_new(whole.at, whole.count, &why);
    if (regex) (void)zfl_regex_each(regex, module, length, zfl_note, matches, &why);
    if (whole.failed || why.status == ZF_ERR_NOMEM) zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    else if (why.status) zf_json_fail(v, error, "cannot be used: %.300s", why.text);
    zfl_regex_free(regex);
    zf_text_free(&whole);
    return !error->status;
}

/* The member of a pattern that counts for a module; NULL: none. */
static const zf_json *zfl_pattern_of(const zf_adapter *a, const char *key, const char *module,
                                     zf_error *error)
{
    const zf_json *pattern = zf_json_member(a->config, key);
    bool matches = false;
    if (pattern && zf_json_type_of(pattern) > ZF_JSON_NULL &&
        zf_json_type_of(pattern) != ZF_JSON_OBJECT)
        zf_json_expected(pattern, error, "an object of modules and numbers");
    for (const zf_json *v = zf_json_first(pattern); v && !error->status; v = zf_json_next(v))
        if (zfl_matches_module(v, module, &matches, error) && matches) return v;
    return NULL;
}

/* Adds "MODULE:NUMBER" to a list, the number as JSON has it: the same in every locale. */
static bool zfl_list_number(zf_text *list, const char *module, double x, zf_error *error)
{
    zf_json_writer *w = zf_json_writer_new(0, NULL);
    const char *text;
    size_t bytes;
    zf_json_put_double(w, x);
    text = zf_json_text(w, &bytes, error);
    zfl_list_name(list, module, strlen(module));
    zf_text_add_string(list, ":");
    if (text) zf_text_add(list, text, bytes);
    zf_json_writer_free(w);
    return text != NULL;
}

/* The rank and the alpha that patterns have for a module; NULL: those of all. */
typedef struct zfl_numbers {
    const zf_json *rank, *alpha;
    int64_t r;
    double x;
} zfl_numbers;

static bool zfl_numbers_of(const zf_adapter *a, const char *module, zfl_numbers *n, zf_error *error)
{
    *n = (zfl_numbers){.rank = zfl_pattern_of(a, "rank_pattern", module, error)};
    if (!error->status) n->alpha = zfl_pattern_of(a, "alpha_pattern", module, error);
    return !error->status && !zf_json_to_int(n->rank, 1, INT32_MAX, &n->r, error) &&
           !zf_json_to_double(n->alpha, -1e9, 1e9, &n->x, error);
}

/* Notes the rank and the alpha of a module that has its own; `in_files`: its name there. */
static bool zfl_read_pattern(zf_adapter *a, const char *module, const char *in_files,
                             zf_error *error)
{
    zfl_numbers n;
    return zfl_numbers_of(a, in_files, &n, error) &&
           (!n.rank || zfl_list_number(&a->ranks, module, (double)n.r, error)) &&
           (!n.alpha || zfl_list_number(&a->alphas, module, n.x, error));
}

/* ------------------------------------------------------------------------- modules of experts */

static const char zfl_experts_in[] = ".experts.";

/* Where MODULE.experts.NUMBER.NAME has NUMBER, of *length digits and a dot; NULL: it has none. */
static const char *zfl_expert_number(const char *module, size_t *length)
{
    const char *at = strstr(module, zfl_experts_in);
    if (!at) return NULL;
    at += sizeof zfl_experts_in - 1;
    *length = strspn(at, "0123456789");
    return *length && at[(*length)++] == '.' ? at : NULL;
}

/* The module of all experts of which one expert's is a part, and the same of expert 0; false: it is
 * no expert's. */
static bool zfl_of_experts(const char *one, char all[ZFL_PARAM_NAME], char first[ZFL_PARAM_NAME])
{
    size_t length = 0;
    const char *at = zfl_expert_number(one, &length);
    snprintf(all, ZFL_PARAM_NAME, "%.*s%s", at ? (int)(at - one) : 0, one, at ? at + length : one);
    snprintf(first, ZFL_PARAM_NAME, "%.*s0.%s", at ? (int)(at - one) : 0, one, at ? at + length : "");
    return at != NULL;
}

static bool zfl_lists(const zf_text *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list->count ? list->at : NULL; (at = at ? strstr(at, name) : NULL); at++)
        if ((at == list->at || at[-1] == ',') && (!at[length] || at[length] == ',')) return true;
    return false;
}

/* Notes a module with a product, or the module of all experts of which it is a part. */
static bool zfl_read_target(zf_adapter *a, const char *module, zf_error *error)
{
    char all[ZFL_PARAM_NAME], first[ZFL_PARAM_NAME];
    zfl_numbers n, of_first;
    const bool part = zfl_of_experts(module, all, first);
    if (!part || !zfl_lists(&a->targets, all)) {
        zfl_list_name(&a->targets, all, strlen(all));
        return zfl_read_pattern(a, all, part ? first : module, error);
    }
    if (!zfl_numbers_of(a, module, &n, error) || !zfl_numbers_of(a, first, &of_first, error))
        return false;
    return (n.r == of_first.r && n.x == of_first.x && !n.alpha == !of_first.alpha) ||
           zfl_fail(error, ZF_ERR_MISMATCH,
                    "%s: %.200s has another rank or alpha than %.200s: all experts of a layer must "
                    "have the same",
                    a->path, module, first);
}

/* The adapter trains biases of the base as well. */
static bool zfl_has_biases(const zf_adapter *a)
{
    const char *bias = zf_json_string(zf_json_member(a->config, "bias"), NULL);
    return bias && strcmp(bias, "none") != 0;
}

/* What a tensor says of the description. */
static bool zfl_read_module(zf_adapter *a, const char *name, const char *whole, zf_error *error)
{
    const struct zfl_low *low = zfl_low_of(name);
    char module[ZFL_PARAM_NAME];
    if (low && low->first) {
        snprintf(module, sizeof module, "%.*s", (int)(strlen(name) - strlen(low->param)), name);
        return zfl_read_target(a, module, error);
    }
    if (zfl_is_saved(a, name) || (zfl_has_biases(a) && zfl_ends_in(name, ".bias"))) {
        zfl_list_name(&a->keep, name, strlen(name));
        return true;
    }
    return low || a->ties || a->repeats ||
           zfl_fail(error, ZF_ERR_MISMATCH,
                    "%s: %.200s is neither a lora_A.weight nor a lora_B.weight, nor of "
                    "modules_to_save: it is no adapter of this kind",
                    a->path, whole);
}

/* PEFT writes the weights of the embedding and of the head where one of them has a product. */
static bool zfl_has_layers(const zf_adapter *a)
{
    for (int32_t i = 0; i < zf_weights_count(a->weights); i++) {
        const char *name = zf_weights_name(a->weights, i);
        if (zfl_layer_in(name) && zfl_ends_in(name, ".weight")) return true;
    }
    return false;
}

/* The tensors' modules become the targets; others are kept. */
static bool zfl_read_modules(zf_adapter *a, zf_error *error)
{
    a->repeats = zfl_has_layers(a);
    for (int32_t i = 0; i < zf_weights_count(a->weights); i++) {
        char name[ZFL_PARAM_NAME];
        if (!zfl_read_module(a, zfl_name_in_base(a, i, name), zf_weights_name(a->weights, i), error))
            return false;
    }
    if (a->targets.failed || a->keep.failed || a->ranks.failed || a->alphas.failed)
        return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (!a->targets.count)
        return zfl_fail(error, ZF_ERR_FORMAT, "%s has no lora_A.weight and no lora_embedding_A",
                        a->path);
    a->desc.targets = a->targets.at, a->desc.keep = a->keep.at;
    a->desc.ranks = a->ranks.at, a->desc.alphas = a->alphas.at;
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
    zf_text_free(&a->ranks);
    zf_text_free(&a->alphas);
    free(a);
}

const zf_lora_desc *zf_adapter_desc(const zf_adapter *a) { return &a->desc; }

/* A product of the graph is with a weight of the module. */
static bool zfl_is_adapted(zf_graph *g, const char *module)
{
    char name[ZFL_PARAM_NAME];
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        const struct zfl_low *low = zfl_low_of_param(zf_param_at(g, i));
        if (!low) continue;
        zf_param_plain_name(zf_param_at(g, i), name, sizeof name);
        name[strlen(name) - strlen(low->param)] = '\0';
        if (!strcmp(name, module)) return true;
    }
    return false;
}

/* The name of a parameter in the files: of a bias next to a product, that of its layer. */
static const char *zfl_name_in_files(zf_graph *g, const char *param, char name[ZFL_PARAM_NAME + 32])
{
    const struct zfl_low *low = zfl_low_of(param);
    char module[ZFL_PARAM_NAME];
    snprintf(module, sizeof module, "%s", param);
    if (zfl_ends_in(param, ".bias")) *strrchr(module, '.') = '\0';
    if (low)
        snprintf(name, ZFL_PARAM_NAME + 32, "%.*s%s", (int)(strlen(param) - strlen(low->param)),
                 param, low->file);
    else if (zfl_ends_in(param, ".bias") && zfl_is_adapted(g, module))
        snprintf(name, ZFL_PARAM_NAME + 32, "%s%s.bias", module, zfl_layer);
    else snprintf(name, ZFL_PARAM_NAME + 32, "%s", param);
    return name;
}

/* The tensor of a parameter; -1. */
static int32_t zfl_adapter_find(const zf_adapter *a, zf_graph *g, const char *param)
{
    char in_files[ZFL_PARAM_NAME + 32], name[sizeof zfl_before + sizeof in_files];
    int32_t at;
    snprintf(name, sizeof name, "%s%s", zfl_before, zfl_name_in_files(g, param, in_files));
    at = zf_weights_find(a->weights, name);
    return at < 0 ? zf_weights_find(a->weights, name + sizeof zfl_before - 1) : at;
}

/* The weights of a head are those of the word embedding, which the adapter keeps. */
static bool zfl_keeps_tied(zf_graph *g, const zf_exchange *x)
{
    return x && x->words && x->head && !zf_valid(zf_exchange_find(g, x->head)) &&
           !(x->score && zf_valid(zf_exchange_find(g, x->score))) &&
           zf_param_adapter(zf_exchange_find(g, zfl_words_of(x, g)));
}

/* The tensor repeats one that was taken, to which it is tied. */
static bool zfl_repeats(zf_adapter *a, int32_t index, zf_error *error)
{
    char name[ZFL_PARAM_NAME];
    if (zfl_low_of(zfl_name_in_base(a, index, name))) return false;
    for (int32_t i = 0; i < zf_weights_count(a->weights) && a->ties; i++)
        if (zf_weights_taken(a->weights, i) && zf_weights_equal(a->weights, i, index, error))
            return true;
    return false;
}

/* The parameter of the base of which the tensor is a copy; invalid: of none. */
static zf_tensor zfl_copied_param(const zf_adapter *a, int32_t index, zf_graph *g,
                                  const zf_exchange *x)
{
    char name[ZFL_PARAM_NAME];
    zf_tensor param = zf_exchange_find(g, zfl_name_in_base(a, index, name));
    if (!zf_valid(param) && x && x->head && !strcmp(name, x->head))
        param = zf_exchange_find(g, zfl_words_of(x, g));
    return a->repeats && zf_valid(param) && !zf_param_adapter(param) ? param : ZF_NONE;
}

/* Rounds values to what a parameter can have. */
static bool zfl_round_as(zf_tensor param, float *values, size_t count, zf_error *error)
{
    const zf_quantize_desc blocks = zf_param_blocks(param);
    char *data = malloc(zf_tensor_bytes(param) + 1);
    if (!data) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (blocks.bits) {
        zf_quantize_values(data, values, count, &blocks);
        zf_dequantize_values(values, data, count, &blocks);
    } else {
        zf_convert(data, zf_tensor_dtype(param), values, ZF_F32, count);
        zf_convert(values, ZF_F32, data, zf_tensor_dtype(param), count);
    }
    free(data);
    return true;
}

/* The tensor is that of a parameter of the base, as the program has it. */
static bool zfl_copies(zf_adapter *a, int32_t index, zf_program *p, zf_graph *g,
                       const zf_exchange *x, zf_error *error)
{
    const zf_tensor param = zfl_copied_param(a, index, g, x);
    const size_t count = zf_valid(param) ? (size_t)zf_shape_count(zf_param_shape(param)) : 0;
    float *theirs, *own;
    bool equal;
    if (!zf_valid(param) || zfl_is_turned(x, param)) return false;
    theirs = zf_weights_take(a->weights, index, zf_param_shape(param), error);
    own = malloc(count * sizeof *own + 1);
    if (theirs && !own) zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    equal = theirs && own && !zf_weights_get(p, param, own, error) &&
            zfl_round_as(param, theirs, count, error);
    if (equal && memcmp(theirs, own, count * sizeof *own))
        equal = zfl_fail(error, ZF_ERR_MISMATCH,
                         "%s: %s differs from that of the model: it is an adapter of another one",
                         a->path, zf_weights_name(a->weights, index));
    free(theirs);
    free(own);
    return equal;
}

/* Takes a parameter, of which the files have a tensor, or one for each expert. */
static bool zfl_take_param(zf_adapter *a, zf_program *p, zf_graph *g, const zf_exchange *x,
                           zf_tensor param, zf_error *error)
{
    const int64_t parts = zfl_parts_of(x, param);
    char name[ZFL_PARAM_NAME], part[ZFL_PARAM_NAME];
    bool good = true;
    zf_param_plain_name(param, name, sizeof name);
    for (int64_t i = 0; i < (parts ? parts : 1) && good; i++) {
        const zf_shape shape = parts ? zfl_part_shape(param) : ZF_SCALAR;
        int32_t at;
        if (parts) zfl_part_name(x, name, i, part);
        at = zfl_adapter_find(a, g, parts ? part : name);
        if (at < 0)
            return zfl_fail(error, ZF_ERR_FORMAT, "%s: there is no tensor %s%s", a->path,
                            zfl_before, parts ? part : name);
        good = parts ? zfl_move_to(a->weights, at, p, param, (size_t)(i * zf_shape_count(shape)),
                                   shape, error)
                     : zfl_import_param(x, p, a->weights, at, param, error);
    }
    return good;
}

bool zf_adapter_take(zf_adapter *a, zf_program *p, zf_graph *g, const zf_exchange *x,
                     zf_error *error)
{
    bool good = true;
    if (!a->ties && zfl_keeps_tied(g, x))
        return zfl_fail(error, ZF_ERR_MISMATCH,
                        "%s keeps %s, to which the model ties its head: adapter_config.json must "
                        "have \"ensure_weight_tying\": true",
                        a->path, zfl_words_of(x, g));
    for (int32_t i = 0; i < zf_param_count(g) && good; i++)
        if (zf_param_adapter(zf_param_at(g, i)))
            good = zfl_take_param(a, p, g, x, zf_param_at(g, i), error);
    for (int32_t i = 0; i < zf_weights_count(a->weights) && good; i++)
        if (!zf_weights_taken(a->weights, i) && !zfl_repeats(a, i, error) &&
            !zfl_copies(a, i, p, g, x, error))
            good = error->status ? false
                                 : zfl_fail(error, ZF_ERR_MISMATCH,
                                            "%s: %s fits no weight of the model: it is an adapter "
                                            "of another one",
                                            a->path, zf_weights_name(a->weights, i));
    return good;
}

/* The head reads a word embedding of which other readers get a product. */
bool zf_adapter_can_merge(zf_graph *g, const zf_exchange *x, zf_error *error)
{
    char module[ZFL_PARAM_NAME];
    const char *words = x->words ? zfl_words_of(x, g) : "";
    const bool tied = *words && x->head && !zf_valid(zf_exchange_find(g, x->head)) &&
                      !(x->score && zf_valid(zf_exchange_find(g, x->score)));
    snprintf(module, sizeof module, "%.*s", *words ? (int)(strlen(words) - strlen(".weight")) : 0,
             words);
    return !tied || !zfl_is_adapted(g, module) ||
           zfl_fail(error, ZF_ERR_ARGUMENT,
                    "the adapter changes %s where tokens are read and not in the head, which is "
                    "tied to it: the sum would change both; use the adapter as it is",
                    words);
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

/* Where a module's name has the number of an expert in PEFT's files; NULL: nowhere. */
static const char *zfl_after_experts(const char *module)
{
    const char *const word = zfl_experts_in + 1, *at = strstr(module, word);
    return at && (at == module || at[-1] == '.') ? at + strlen(word) : NULL;
}

/* How many names PEFT has for the modules that the target names: one for each expert where the
 * number of the expert is inside; else 0. */
static int64_t zfl_target_parts(zf_graph *g, const zf_exchange *x, const char *target)
{
    char name[ZFL_PARAM_NAME];
    for (int32_t i = 0; zfl_after_experts(target) && i < zf_param_count(g); i++) {
        const zf_tensor param = zf_param_at(g, i);
        const struct zfl_low *low = zfl_low_of_param(param);
        if (!low || !zfl_parts_of(x, param)) continue;
        zf_param_plain_name(param, name, sizeof name);
        name[strlen(name) - strlen(low->param)] = '\0';
        if (zfl_ends_in(name, target)) return zfl_parts_of(x, param);
    }
    return 0;
}

/* The name of part i of a target. */
static void zfl_target_part(const char *target, int64_t i, char part[ZFL_PARAM_NAME])
{
    const char *after = zfl_after_experts(target);
    snprintf(part, ZFL_PARAM_NAME, "%.*s%lld.%s", (int)(after - target), target, (long long)i, after);
}

/* The targets as PEFT lists them. Those of all-linear are the last parts of the modules' names. */
static void zfl_put_targets(zf_json_writer *w, zf_text *seen, zf_graph *g, const zf_exchange *x,
                            const char *targets)
{
    char name[ZFL_PARAM_NAME], part[ZFL_PARAM_NAME];
    int64_t parts;
    const bool all = !targets || !strcmp(targets, "all-linear");
    zf_json_put_key(w, "target_modules");
    zf_json_begin_array(w);
    for (size_t length; !all && *targets; targets += length + (targets[length] == ',')) {
        length = strcspn(targets, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, targets);
        parts = zfl_target_parts(g, x, name);
        if (!parts) zfl_put_once(w, seen, name);
        for (int64_t i = 0; i < parts; i++) {
            zfl_target_part(name, i, part);
            zfl_put_once(w, seen, part);
        }
    }
    for (int32_t i = 0; all && i < zf_param_count(g); i++) {
        const struct zfl_low *low = zfl_low_of_param(zf_param_at(g, i));
        if (!low || !low->first) continue;
        zf_param_plain_name(zf_param_at(g, i), name, sizeof name);
        name[strlen(name) - strlen(low->param)] = '\0';
        zfl_put_once(w, seen, strrchr(name, '.') ? strrchr(name, '.') + 1 : name);
    }
    zf_json_end(w);
}

/* The adapter trains the biases of the base: PEFT's bias "all". */
static bool zfl_keeps_biases(zf_graph *g)
{
    char name[ZFL_PARAM_NAME];
    bool any = false;
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        const zf_tensor param = zf_param_at(g, i);
        if (!zfl_ends_in(zf_param_plain_name(param, name, sizeof name), ".bias")) continue;
        if (!zf_param_adapter(param)) return false;
        any = true;
    }
    return any;
}

/* The module of a kept parameter, in the base; "": it belongs to none, or is not kept, or is one of
 * all biases. */
static const char *zfl_kept_module(zf_tensor param, char name[ZFL_PARAM_NAME])
{
    zf_param_plain_name(param, name, ZFL_PARAM_NAME);
    if (!zf_param_adapter(param) || zf_adapter_is_product(param) || !strrchr(name, '.')) return "";
    if (zfl_ends_in(name, ".bias") && zfl_keeps_biases(param.graph)) return "";
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

bool zf_adapter_can_write(zf_graph *g, zf_error *error)
{
    const bool biases = zfl_keeps_biases(g);
    char name[ZFL_PARAM_NAME];
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        const zf_tensor param = zf_param_at(g, i);
        const char *module = zfl_kept_module(param, name);
        if (!zf_param_adapter(param) || zf_adapter_is_product(param)) continue;
        if (!*module && biases && zfl_ends_in(name, ".bias")) continue;
        if (zf_param_shape(param).rank == 3)
            return zfl_fail(error, ZF_ERR_ARGUMENT,
                            "the adapter keeps %.200s, which has matrices of experts: an adapter "
                            "can have products of these, as targets",
                            zf_tensor_name(param));
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

/* The modules that are kept. Of texts with labels PEFT always keeps a module called classifier, as a
 * whole. */
static void zfl_put_kept(zf_json_writer *w, zf_text *seen, zf_graph *g, const char *task)
{
    const bool labels = task && !strcmp(task, "SEQ_CLS");
    char name[ZFL_PARAM_NAME];
    bool begun = false;
    zf_json_put_key(w, "modules_to_save");
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        const char *module = zfl_kept_module(zf_param_at(g, i), name);
        if (!*module) continue;
        if (!begun) zf_json_begin_array(w);
        begun = true;
        zfl_put_once(w, seen, labels && zfl_begins(module, "classifier.") ? "classifier" : module);
    }
    if (begun) zf_json_end(w);
    else zf_json_put_null(w);
}

static void zfl_put_number(zf_json_writer *w, const char *key, double x)
{
    if (x == floor(x) && fabs(x) < 1e15) zf_json_put_int_member(w, key, (int64_t)x);
    else zf_json_put_double_member(w, key, x);
}

/* A list "MODULE:NUMBER,..." as an object. */
static bool zfl_put_pattern(zf_json_writer *w, zf_graph *g, const zf_exchange *x, const char *key,
                            const char *list, zf_error *error)
{
    zf_json_put_key(w, key);
    zf_json_begin_object(w);
    for (size_t length; list && *list && !error->status; list += length + (list[length] == ',')) {
        const size_t n = strcspn(list, ":");
        char name[ZFL_PARAM_NAME], part[ZFL_PARAM_NAME];
        double value = 0;
        int64_t parts;
        zf_json *number;
        length = strcspn(list, ",");
        snprintf(name, sizeof name, "%.*s", (int)(n < length ? n : length), list);
        number = zf_json_parse(list + n + 1, length > n ? length - n - 1 : 0, NULL, error);
        parts = zfl_target_parts(g, x, name);
        if (!number || zf_json_to_double(number, -1e300, 1e300, &value, error)) parts = -1;
        if (!parts) zfl_put_number(w, name, value);
        for (int64_t i = 0; i < parts; i++) {
            zfl_target_part(name, i, part);
            zfl_put_number(w, part, value);
        }
        zf_json_free(number);
    }
    zf_json_end(w);
    return !error->status;
}

static bool zfl_write_config(zf_text *out, zf_graph *g, const zf_adapter_about *about,
                             zf_error *error)
{
    static const char *const nothing[] = {"auto_mapping", "layers_pattern", "layers_to_transform",
                                          "revision"};
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_text seen = {.at = NULL};
    const char *text = NULL;
    size_t bytes;
    zf_json_begin_object(w);
    zf_json_put_text_member(w, "peft_type", "LORA");
    zf_json_put_text_member(w, "task_type", about->task);
    zf_json_put_text_member(w, "base_model_name_or_path", about->base);
    zf_json_put_int_member(w, "r", about->desc->rank);
    zfl_put_number(w, "lora_alpha", about->desc->alpha);
    zf_json_put_double_member(w, "lora_dropout", about->desc->dropout);
    zf_json_put_bool_member(w, "use_rslora", about->desc->rslora);
    zf_json_put_bool_member(w, "use_dora", about->desc->dora);
    zf_json_put_text_member(w, "bias", zfl_keeps_biases(g) ? "all" : "none");
    zf_json_put_bool_member(w, "fan_in_fan_out", about->exchange && about->exchange->turned);
    zf_json_put_bool_member(w, "inference_mode", true);
    zf_json_put_bool_member(w, "init_lora_weights", true);
    zfl_put_targets(w, &seen, g, about->exchange, about->desc->targets);
    zf_text_clear(&seen);
    zfl_put_kept(w, &seen, g, about->task);
    if (zfl_keeps_tied(g, about->exchange))
        zf_json_put_bool_member(w, "ensure_weight_tying", true);
    for (size_t k = 0; k < sizeof nothing / sizeof *nothing; k++)
        zf_json_put_key(w, nothing[k]), zf_json_put_null(w);
    if (zfl_put_pattern(w, g, about->exchange, "rank_pattern", about->desc->ranks, error))
        (void)zfl_put_pattern(w, g, about->exchange, "alpha_pattern", about->desc->alphas, error);
    zf_json_end(w);
    if (seen.failed) zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    else if (!error->status && (text = zf_json_text(w, &bytes, error)))
        zf_text_add(out, text, bytes);
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
    return 1 + (zf_param_adapter(param) && zfl_keeps_tied(param.graph, x) &&
                zfl_is_words(x, name));
}

/* Describes a tensor of f32 that begins at byte `at`; the byte after it. */
static int64_t zfl_put_tensor(zf_json_writer *w, const char *in_base, zf_shape s, int64_t at)
{
    char name[sizeof zfl_before + ZFL_PARAM_NAME + 32];
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
        const zf_shape s = zfl_file_shape(x, param);
        char name[ZFL_PARAM_NAME], part[ZFL_PARAM_NAME], in_files[ZFL_PARAM_NAME + 32];
        if (!zfl_is_in_files(g, param)) continue;
        zf_param_plain_name(param, name, sizeof name);
        for (int64_t k = 0; k < zfl_parts_of(x, param); k++) {
            zfl_part_name(x, name, k, part);
            at = zfl_put_tensor(w, zfl_name_in_files(g, part, in_files), zfl_part_shape(param), at);
        }
        if (zfl_parts_of(x, param)) continue;
        at = zfl_put_tensor(w, zfl_name_in_files(g, name, in_files), s, at);
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
    const bool turned = zfl_is_turned(x, param);
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
