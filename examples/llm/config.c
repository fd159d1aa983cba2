/* config.json of Llama and its relatives. */
#include "config.h"
#include "../frame/options/fail.h"

#include <string.h>

/* ----------------------------------------------------------------------------------- families */

static const llm_family_desc llama = {.architecture = "LlamaForCausalLM", .norms = LLM_NORMS},
                             mistral = {.architecture = "MistralForCausalLM",
                                        .kv_heads = 8,
                                        .window = 4096,
                                        .no_attention_bias = true,
                                        .no_mlp_bias = true,
                                        .norms = LLM_NORMS},
                             ministral = {.architecture = "MinistralForCausalLM",
                                          .kv_heads = 8,
                                          .window = 4096,
                                          .no_attention_bias = true,
                                          .no_mlp_bias = true,
                                          .norms = LLM_NORMS},
                             qwen2 = {.architecture = "Qwen2ForCausalLM",
                                      .kv_heads = 32,
                                      .window = 4096,
                                      .no_attention_bias = true,
                                      .no_mlp_bias = true,
                                      .norms = LLM_NORMS,
                                      .qkv_bias = true},
                             qwen3 = {.architecture = "Qwen3ForCausalLM",
                                      .kv_heads = 32,
                                      .width = 128,
                                      .window = 4096,
                                      .no_mlp_bias = true,
                                      .norms = LLM_NORMS,
                                      .queries = LLM_NORM_OF_HEADS};

static const llm_family_desc *const families[LLM_FAMILIES] = {
    [LLM_LLAMA] = &llama,         [LLM_MISTRAL] = &mistral,   [LLM_MINISTRAL] = &ministral,
    [LLM_QWEN2] = &qwen2,         [LLM_QWEN3] = &qwen3,       [LLM_GEMMA3] = &llm_gemma3,
    [LLM_GRANITE] = &llm_granite, [LLM_OLMO2] = &llm_olmo2,   [LLM_SMOLLM3] = &llm_smollm3,
    [LLM_PHI3] = &llm_phi3,       [LLM_GEMMA2] = &llm_gemma2, [LLM_STARCODER2] = &llm_starcoder2,
    [LLM_NEOX] = &llm_neox,       [LLM_FALCON] = &llm_falcon, [LLM_MIXTRAL] = &llm_mixtral,
    [LLM_QWEN2_MOE] = &llm_qwen2_moe, [LLM_QWEN3_MOE] = &llm_qwen3_moe, [LLM_OLMOE] = &llm_olmoe,
    [LLM_DEEPSEEK3] = &llm_deepseek3, [LLM_BLOOM] = &llm_bloom};

const llm_family_desc *llm_family_of(const llm_config *c) { return families[c->family]; }

static const zf_config_family *family_of(const void *config)
{
    return &llm_family_of(config)->config;
}

static bool is_qwen(const llm_config *c)
{
    return c->family == LLM_QWEN2 || c->family == LLM_QWEN3 || c->family == LLM_QWEN2_MOE;
}

/* ------------------------------------------------------------------------------------- layers */

static bool has_bit(const int64_t *bits, int64_t layer)
{
    return layer < LLM_LAYERS && ((uint64_t)bits[layer / 64] >> layer % 64 & 1);
}

void llm_mark(int64_t *bits, int64_t layer)
{
    if (layer < LLM_LAYERS) bits[layer / 64] |= (int64_t)((uint64_t)1 << layer % 64);
}

bool llm_is_full(const llm_config *c, int64_t layer)
{
    return !c->window || has_bit(c->full, layer);
}

bool llm_is_plain(const llm_config *c, int64_t layer)
{
    return c->alibi || has_bit(c->plain, layer);
}

bool llm_is_sparse(const llm_config *c, int64_t layer)
{
    return c->experts && !has_bit(c->dense, layer);
}

/* ------------------------------------------------------------------------------------ reading */

void llm_set_rope(llm_config *c, const zf_rope_desc *rope)
{
    c->theta = rope->theta, c->scaling = rope->scaling, c->factor = rope->factor;
    c->low = rope->low_factor, c->high = rope->high_factor, c->original = rope->original;
    c->attention = rope->attention, c->unrounded = rope->unrounded;
}

void llm_read_types(llm_config *c, const zf_json *types, zf_error *error)
{
    int64_t layer = 0, sliding = 0;
    for (const zf_json *v = zf_json_first(types); v && !error->status; v = zf_json_next(v)) {
        const char *text = "";
        bool full;
        zf_json_to_string(v, &text, error);
        full = !strcmp(text, "full_attention");
        if (!error->status && !full && strcmp(text, "sliding_attention"))
            zf_json_expected(v, error, "full_attention or sliding_attention");
        if (full) llm_mark(c->full, layer);
        sliding += !full, layer++;
    }
    if (error->status) return;
    if (layer != c->layers)
        zf_json_expected(types, error, "a list of num_hidden_layers (%lld)", (long long)c->layers);
    else if (sliding && !c->window)
        zf_json_fail(types, error, "names sliding layers, and there is no sliding_window%s",
                     c->family == LLM_LLAMA ? " in a llama" : "");
    if (!sliding) c->window = 0;
}

/* A count, at least `least`: from the file, or `empty` for null, or `absent` if it is missing. */
static void read_count(const zf_json *json, const char *key, int64_t least, int64_t absent,
                       int64_t empty, int64_t *out, zf_error *error)
{
    const zf_json *v = zf_json_member(json, key);
    *out = !v ? absent : zf_json_type_of(v) == ZF_JSON_NULL ? empty : *out;
    if (zf_config_member(json, key)) zf_json_to_int(v, least, INT32_MAX, out, error);
}

void llm_read_window(llm_config *c, const zf_json *json, int64_t absent, zf_error *error)
{
    /* Of a Qwen2-MoE transformers writes 0 where there is none. */
    read_count(json, "sliding_window", c->family != LLM_QWEN2_MOE, absent, 0, &c->window, error);
}

static void read_rope(llm_config *c, const zf_json *json, zf_error *error)
{
    zf_rope_desc rope = {.theta = 0};
    if (zf_config_read_rope(json, c->positions, &rope, error)) llm_set_rope(c, &rope);
}

void llm_set_part(llm_config *c, double part, const zf_json *json, zf_error *error)
{
    const int64_t width = c->width ? c->width : c->hidden / c->heads;
    c->rotated = part < 1 ? (int64_t)((double)width * part) : 0;
    if (part < 1 && (c->rotated < 2 || c->rotated % 2))
        zf_json_fail(
            zf_json_member(json, "hidden_size"), error,
            "with partial_rotary_factor gives heads of which %lld numbers are rotated; the "
            "number must be even and at least 2",
            (long long)c->rotated);
}

void llm_read_eps(llm_config *c, const zf_json *json, const char *key, zf_error *error)
{
    const zf_json *other = zf_config_member(json, "rms_norm_eps");
    double eps = 1e-5;
    zf_json_to_double(zf_config_member(json, key), 0, 1, &eps, error);
    if (!error->status && other && c->eps != eps)
        zf_json_expected(other, error, "%.17g, as %s", eps, key);
    c->eps = eps;
}

void llm_repeat(const zf_json *json, const char *key, bool value, const char *why, zf_error *error)
{
    bool other = value;
    zf_json_to_bool(zf_config_member(json, key), &other, error);
    if (!error->status && other != value)
        zf_json_expected(zf_json_member(json, key), error, "%s%s", value ? "true" : "false", why);
}

void llm_repeat_count(const zf_json *json, const char *key, int64_t value, const char *why,
                      zf_error *error)
{
    int64_t other = value;
    zf_json_to_int(zf_config_member(json, key), 1, INT32_MAX, &other, error);
    if (!error->status && other != value)
        zf_json_expected(zf_json_member(json, key), error, "%lld%s", (long long)value, why);
}

void llm_check_experts(const llm_config *c, const zf_json *json, zf_error *error)
{
    if (!error->status && c->chosen > c->experts)
        zf_json_expected(zf_json_member(json, "num_experts_per_tok"), error,
                         "at most the number of experts (%lld)", (long long)c->experts);
}

/* Which layers have a window. */
static void read_windows(llm_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *types = zf_config_member(json, "layer_types");
    int64_t from = 0;
    const bool none = c->family == LLM_LLAMA;
    bool used = !none, uses = false;
    if (used) llm_read_window(c, json, llm_family_of(c)->window, error);
    else if (zf_config_member(json, "sliding_window"))
        zf_json_expected(zf_config_member(json, "sliding_window"), error, "null in a llama");
    zf_json_to_bool(zf_config_member(json, "use_sliding_window"), &uses, error);
    if (!is_qwen(c) && uses && !error->status)
        zf_json_expected(zf_json_member(json, "use_sliding_window"), error,
                         "false in this family, which does not read it");
    if (is_qwen(c)) {
        used = uses, from = 28;
        zf_json_to_int(zf_config_member(json, "max_window_layers"), 0, INT32_MAX, &from, error);
    }
    if (!used || (!types && from >= c->layers)) c->window = 0;
    if (c->window && c->layers > LLM_LAYERS)
        zf_json_expected(zf_json_member(json, "num_hidden_layers"), error,
                         "at most %d in a model with a sliding_window", LLM_LAYERS);
    if (types && c->family == LLM_MISTRAL) c->family = LLM_MINISTRAL;
    if (types) llm_read_types(c, types, error);
    for (int64_t k = 0; !types && c->window && k < from; k++) llm_mark(c->full, k);
    if (!c->window) memset(c->full, 0, sizeof c->full);
}

/* The ids that transformers takes where the file has none. */
static void read_ids(llm_config *c, const zf_json *json)
{
    if (is_qwen(c) || llm_family_of(c)->config.defaults) return;
    if (!zf_json_member(json, "bos_token_id")) c->begin = 1;
    if (!zf_json_member(json, "eos_token_id")) c->ends[0] = 2;
}

/* What rows cannot say. */
static void read_file(llm_config *c, const zf_json *json, zf_error *error)
{
    const llm_family_desc *family = llm_family_of(c);
    read_count(json, "num_key_value_heads", 1, family->kv_heads, 0, &c->kv_heads, error);
    if (!c->width && !zf_json_member(json, "head_dim")) c->width = family->width;
    if (!family->reads_rope) read_rope(c, json, error);
    if (!family->reads_windows) read_windows(c, json, error);
    if (family->read && !error->status) family->read(c, json, error);
    read_ids(c, json);
    if (family->no_attention_bias) c->attention_bias = 0;
    if (family->no_mlp_bias) c->mlp_bias = 0;
}

static bool read_more(void *config, const zf_json *json, zf_error *error)
{
    llm_config *c = config;
    if (json) read_file(c, json, error);
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!json && c->experts) c->expert_width = c->intermediate;
    if (!c->width) c->width = c->hidden / c->heads;
    if (error->status) return false;
    if (c->heads % c->kv_heads)
        return fail(error, ZF_ERR_MISMATCH,
                    "config.json: num_key_value_heads (%lld) must be a divisor of "
                    "num_attention_heads (%lld)",
                    (long long)c->kv_heads, (long long)c->heads);
    return c->width % 2 == 0 || c->alibi ||
           fail(error, ZF_ERR_MISMATCH,
                "config.json: heads are %lld wide; rope needs an even width", (long long)c->width);
}

/* ------------------------------------------------------------------------------------ writing */

static void write_rope(const llm_config *c, zf_json_writer *w)
{
    static const char *const names[] = {[ZF_ROPE_PLAIN] = "dynamic",
                                        [ZF_ROPE_LINEAR] = "linear",
                                        [ZF_ROPE_LLAMA3] = "llama3",
                                        [ZF_ROPE_YARN] = "yarn"};
    const bool yarn = c->scaling == ZF_ROPE_YARN;
    zf_json_put_key(w, "rope_scaling");
    if (c->factors) {
        llm_write_longrope(c, w);
        return;
    }
    if (!c->scaling && c->factor == 0) {
        zf_json_put_null(w);
        return;
    }
    zf_json_begin_object(w);
    zf_json_put_text_member(w, "rope_type", names[c->scaling]);
    zf_json_put_double_member(w, "factor", c->factor);
    if (c->scaling >= ZF_ROPE_LLAMA3) {
        zf_json_put_double_member(w, yarn ? "beta_slow" : "low_freq_factor", c->low);
        zf_json_put_double_member(w, yarn ? "beta_fast" : "high_freq_factor", c->high);
        zf_json_put_int_member(w, "original_max_position_embeddings", c->original);
    }
    if (yarn) {
        zf_json_put_double_member(w, "attention_factor", c->attention);
        zf_json_put_bool_member(w, "truncate", !c->unrounded);
    }
    zf_json_end(w);
}

void llm_write_types(const llm_config *c, zf_json_writer *w)
{
    zf_json_put_key(w, "layer_types");
    zf_json_begin_array(w);
    for (int64_t k = 0; k < c->layers; k++)
        zf_json_put_string(w, llm_is_full(c, k) ? "full_attention" : "sliding_attention");
    zf_json_end(w);
}

/* Which layers have the window: from one on (of Qwen), or a list. */
static void write_windows(const llm_config *c, zf_json_writer *w)
{
    int64_t from = 0, full = 0;
    while (from < c->layers && llm_is_full(c, from)) from++;
    for (int64_t k = from; k < c->layers; k++) full += llm_is_full(c, k);
    if (is_qwen(c)) {
        zf_json_put_bool_member(w, "use_sliding_window", c->window > 0);
        zf_json_put_int_member(w, "max_window_layers", from);
    }
    if (full || c->family == LLM_MINISTRAL) llm_write_types(c, w);
}

static void write_more(const void *config, zf_json_writer *w)
{
    const llm_config *c = config;
    const llm_family_desc *family = llm_family_of(c);
    if (!c->alibi) write_rope(c, w);
    if (family->write) family->write(c, w);
    if (c->family != LLM_LLAMA && !c->alibi) {
        zf_json_put_key(w, "sliding_window");
        if (c->window) zf_json_put_int(w, c->window);
        else zf_json_put_null(w);
    }
    if (!family->reads_windows) write_windows(c, w);
}

static const char *architecture_of(const void *config)
{
    return llm_family_of(config)->architecture;
}

/* -------------------------------------------------------------------------------------- table */

static const char *const other_keys[] = {"rope_scaling",
                                         "rope_parameters",
                                         "partial_rotary_factor",
                                         "sliding_window",
                                         "use_sliding_window",
                                         "max_window_layers",
                                         "layer_types",
                                         "cache_implementation", /* of transformers' caches */
                                         NULL};

/* Gemma 3 and Qwen2.5-VL: their text parts. That of Qwen2.5-VL is a Qwen2, since positions of text
 * are the same number in all sections of its rope. */
static const char *const others_gemma3[] = {"vision_config", "mm_tokens_per_image",
                                            "boi_token_index", "eoi_token_index",
                                            "image_token_index", NULL},
                         *const others_qwen[] = {"vision_config", "image_token_id",
                                                 "video_token_id", "vision_start_token_id",
                                                 "vision_end_token_id", "vision_token_id", NULL};

static const zf_config_nest nests[] = {
    {"gemma3", "gemma3_text", others_gemma3, "{}", .tied = true},
    {"qwen2_5_vl", "qwen2", others_qwen,
     "{\"rms_norm_eps\": 1e-5, \"num_key_value_heads\": 8, \"max_window_layers\": 80}",
     .either = true},
    {.type = NULL}};

#define AT(member) offsetof(llm_config, member)
const zf_config_table llm_members = {
    .types = {"llama", "mistral", "ministral", "qwen2", "qwen3", "gemma3_text", "granite", "olmo2",
              "smollm3", "phi3", "gemma2", "starcoder2", "gpt_neox", "falcon", "mixtral", "qwen2_moe",
              "qwen3_moe", "olmoe", "deepseek_v3", "bloom"},
    .type = AT(family),
    .bytes = sizeof(llm_config),
    .defaults = &(const llm_config){LLM_DEFAULTS(10000, 1e-6, -1, -1, -1)},
    .sizes = {{"15m", 6, 288, 6, 32000, 768},
              {"110m", 12, 768, 12, 32000, 2048},
              {"160m", 12, 768, 12, 32000, 3072},
              {"moe-15m", 6, 288, 6, 32000, 384}},
    .size_types = {LLM_LLAMA, LLM_LLAMA, LLM_LLAMA, LLM_MIXTRAL},
    .rows = {{"vocab_size", ZF_CONFIG_COUNT, .at = AT(vocab), .least = 8, .most = INT32_MAX,
              .use = ZF_CONFIG_NEEDED},
             {"max_position_embeddings", ZF_CONFIG_COUNT, .at = AT(positions), .least = 1,
              .most = 1 << 24, .use = ZF_CONFIG_NEEDED},
             {"hidden_size", ZF_CONFIG_COUNT, .at = AT(hidden), .least = 1, .most = 1 << 20,
              .use = ZF_CONFIG_NEEDED},
             {"num_hidden_layers", ZF_CONFIG_COUNT, .at = AT(layers), .least = 1, .most = 1 << 16,
              .use = ZF_CONFIG_NEEDED},
             {"head_dim", ZF_CONFIG_COUNT, .at = AT(width), .least = 2, .most = 1024},
             {"num_attention_heads", ZF_CONFIG_COUNT, .at = AT(heads), .least = 1, .most = 1 << 16,
              .use = ZF_CONFIG_NEEDED},
             {"num_key_value_heads", ZF_CONFIG_COUNT, .at = AT(kv_heads), .least = 1,
              .most = 1 << 16},
             {"intermediate_size", ZF_CONFIG_COUNT, .at = AT(intermediate), .least = 1,
              .most = 1 << 22, .use = ZF_CONFIG_NEEDED},
             {"hidden_act", ZF_CONFIG_ACTIVATION, .at = AT(activation),
              .text = "gelu_pytorch_tanh"},
             {"rms_norm_eps", ZF_CONFIG_NUMBER, .at = AT(eps), .most = 1},
             {"rope_theta", ZF_CONFIG_NUMBER, .at = AT(theta), .least = 1e-6, .most = 1e12},
             {"attention_dropout", ZF_CONFIG_NUMBER, .at = AT(attention_dropout), .most = 0.999},
             {"attention_bias", ZF_CONFIG_TRUTH, .at = AT(attention_bias), .use = ZF_CONFIG_RARE},
             {"mlp_bias", ZF_CONFIG_TRUTH, .at = AT(mlp_bias), .use = ZF_CONFIG_RARE},
             {"initializer_range", ZF_CONFIG_NUMBER, .at = AT(std), .most = 10},
             {"tie_word_embeddings", ZF_CONFIG_TRUTH, .at = AT(tied)},
             {"bos_token_id", ZF_CONFIG_TOKEN, .at = AT(begin)},
             {"eos_token_id", ZF_CONFIG_TOKENS, .at = AT(ends)},
             {"pad_token_id", ZF_CONFIG_TOKEN, .at = AT(pad)},
             {"zeroflow_attention", ZF_CONFIG_BLOCKS, .at = AT(layout)}},
    .keys = other_keys,
    .nests = nests,
    .vocab = AT(vocab),
    .positions = AT(positions),
    .layers = AT(layers),
    .hidden = AT(hidden),
    .heads = AT(heads),
    .intermediate = AT(intermediate),
    .tied = AT(tied),
    .end = AT(ends),
    .ends = LLM_ENDS,
    .pad = AT(pad),
    .width = AT(width),
    .dropouts = {AT(attention_dropout), AT(dropout), AT(embedding_dropout)},
    .bits = AT(bits),
    .scores = AT(scores),
    .layout = AT(layout),
    .window = AT(window),
    .architecture_of = architecture_of,
    .family_of = family_of,
    .read_more = read_more,
    .write_more = write_more,
};
