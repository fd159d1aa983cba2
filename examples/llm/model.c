#include "model.h"
#include "gemma.h"
#include "../frame/options/fail.h"
#include "../frame/score/score.h"
#include "../../zeroflow_llm.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------ configuration */

static const struct {
    const char *architecture;
    int64_t kv_heads, width, window; /* defaults of the file; 0: heads, hidden / heads, none */
} families[] = {
    [LLM_LLAMA] = {"LlamaForCausalLM", 0, 0, 0},
    [LLM_MISTRAL] = {"MistralForCausalLM", 8, 0, 4096},
    [LLM_MINISTRAL] = {"MinistralForCausalLM", 8, 0, 4096},
    [LLM_QWEN2] = {"Qwen2ForCausalLM", 32, 0, 4096},
    [LLM_QWEN3] = {"Qwen3ForCausalLM", 32, 128, 4096},
    [LLM_GEMMA3] = {"Gemma3ForCausalLM", 4, 256, 4096},
};

static bool is_qwen(const llm_config *c) 
{
    return c->family == LLM_QWEN2 || c->family == LLM_QWEN3;
}

static bool is_gemma(const llm_config *c) { return c->family == LLM_GEMMA3; }

static bool is_full(const llm_config *c, int64_t layer)
{
    return !c->window || (uint64_t)c->full[layer / 64] >> layer % 64 & 1;
}

/* A count: from the file, or `empty` for null, or `absent` if it is missing. */
static void read_count(const zf_json *json, const char *key, int64_t absent, int64_t empty,
                       int64_t *out, zf_error *error)
{
    const zf_json *v = zf_json_member(json, key);
    *out = !v ? absent : zf_json_type_of(v) == ZF_JSON_NULL ? empty : *out;
    if (zf_config_member(json, key)) zf_json_to_int(v, 1, INT32_MAX, out, error);
}

static void read_rope(llm_config *c, const zf_json *json, zf_error *error)
{
    zf_rope_desc rope = {.theta = 0};
    if (zf_config_read_rope(json, c->positions, &rope, error)) llm_set_rope(c, &rope);
}

/* Which layers have a window. */
static void read_windows(llm_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *types = zf_config_member(json, "layer_types");
    int64_t from = 0;
    bool used = c->family != LLM_LLAMA, uses = false;
    if (used) read_count(json, "sliding_window", families[c->family].window, 0, &c->window, error);
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
    for (int64_t k = 0; !types && c->window && k < from; k++) llm_set_full(c, k);
    if (!c->window) memset(c->full, 0, sizeof c->full);
}

/* The ids that transformers takes where the file has none. */
static void read_ids(llm_config *c, const zf_json *json)
{
    if (is_qwen(c) || is_gemma(c)) return;
    if (!zf_json_member(json, "bos_token_id")) c->begin = 1;
    if (!zf_json_member(json, "eos_token_id")) c->ends[0] = 2;
}

static bool read_more(void *config, const zf_json *json, zf_error *error)
{
    llm_config *c = config;
    if (json) {
        read_count(json, "num_key_value_heads", families[c->family].kv_heads, 0, &c->kv_heads,
                   error);
        if (!c->width && !zf_json_member(json, "head_dim")) c->width = families[c->family].width;
        if (!is_gemma(c)) read_rope(c, json, error), read_windows(c, json, error);
        (void)llm_gemma_read(c, json, error);
        read_ids(c, json);
        if (c->family == LLM_MISTRAL || c->family == LLM_MINISTRAL || c->family == LLM_QWEN2)
            c->attention_bias = 0;
        if (c->family != LLM_LLAMA) c->mlp_bias = 0;
    }
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!c->width) c->width = c->hidden / c->heads;
    if (error->status) return false;
    if (c->heads % c->kv_heads)
        return fail(error, ZF_ERR_MISMATCH,
                    "config.json: num_key_value_heads (%lld) must be a divisor of "
                    "num_attention_heads (%lld)",
                    (long long)c->kv_heads, (long long)c->heads);
    return c->width % 2 == 0 ||
           fail(error, ZF_ERR_MISMATCH,
                "config.json: heads are %lld wide; rope needs an even width", (long long)c->width);
}

static void write_rope(const llm_config *c, zf_json_writer *w)
{
    static const char *const names[] = {[ZF_ROPE_PLAIN] = "dynamic",
                                        [ZF_ROPE_LINEAR] = "linear",
                                        [ZF_ROPE_LLAMA3] = "llama3",
                                        [ZF_ROPE_YARN] = "yarn"};
    const bool yarn = c->scaling == ZF_ROPE_YARN;
    zf_json_put_key(w, "rope_scaling");
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

/* Which layers have the window: from one on (of Qwen), or a list. */
static void write_windows(const llm_config *c, zf_json_writer *w)
{
    int64_t from = 0, full = 0;
    while (from < c->layers && is_full(c, from)) from++;
    for (int64_t k = from; k < c->layers; k++) full += is_full(c, k);
    if (is_qwen(c)) {
        zf_json_put_bool_member(w, "use_sliding_window", c->window > 0);
        zf_json_put_int_member(w, "max_window_layers", from);
    }
    if (!full && c->family != LLM_MINISTRAL && !is_gemma(c)) return;
    zf_json_put_key(w, "layer_types");
    zf_json_begin_array(w);
    for (int64_t k = 0; k < c->layers; k++)
        zf_json_put_string(w, is_full(c, k) ? "full_attention" : "sliding_attention");
    zf_json_end(w);
}

static void write_more(const void *config, zf_json_writer *w)
{
    const llm_config *c = config;
    write_rope(c, w);
    if (is_gemma(c)) llm_gemma_write(c, w);
    if (c->family != LLM_LLAMA) {
        zf_json_put_key(w, "sliding_window");
        if (c->window) zf_json_put_int(w, c->window);
        else zf_json_put_null(w);
    }
    write_windows(c, w);
}

static const char *architecture_of(const void *config)
{
    return families[((const llm_config *)config)->family].architecture;
}

static const char *const other_keys[] = {
    "rope_scaling", "rope_parameters", "partial_rotary_factor", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types",
    /* of transformers' caches */
    "cache_implementation",
    /* llm_gemma_keys */
    "hidden_activation", "query_pre_attn_scalar", "rope_local_base_freq", "sliding_window_pattern",
    "_sliding_window_pattern", "use_bidirectional_attention", NULL};

#define AT(member) offsetof(llm_config, member)
static const zf_config_table members = {
    .types = {"llama", "mistral", "ministral", "qwen2", "qwen3", "gemma3_text"},
    .type = AT(family),
    .bytes = sizeof(llm_config),
    .defaults = &(const llm_config){.vocab = 32000,
                                    .positions = 2048,
                                    .eps = 1e-6,
                                    .std = 0.02,
                                    .theta = 10000,
                                    .activation = ZF_ACTIVATION_SILU,
                                    .begin = -1,
                                    .pad = -1,
                                    .ends = {-1, -1, -1, -1, -1, -1, -1, -1}},
    .sizes = {{"15m", 6, 288, 6, 32000, 768},
              {"110m", 12, 768, 12, 32000, 2048},
              {"160m", 12, 768, 12, 32000, 3072}},
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
             {"hidden_act", ZF_CONFIG_ACTIVATION, .at = AT(activation)},
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
    .dropouts = {AT(attention_dropout)},
    .bits = AT(bits),
    .scores = AT(scores),
    .layout = AT(layout),
    .window = AT(window),
    .architecture_of = architecture_of,
    .read_more = read_more,
    .write_more = write_more,
};

bool llm_config_load(const char *name, llm_config *c, zf_error *error)
{
    return zf_config_load(&members, name, c, error);
}

/* -------------------------------------------------------------------------------------- graph */

static zf_tensor ones(zf_graph *g, const char *name, int64_t count)
{
    zf_tensor gamma;
    zf_push(g, "%s", name);
    gamma = zf_param(g, "weight", ZF_SHAPE(count), &(zf_param_desc){.init = ZF_ONES});
    zf_pop(g);
    return gamma;
}

/* Adds y to the residual *x, then applies the norm `name`. */
static zf_tensor norm(zf_tensor *x, zf_tensor y, const char *name, const llm_config *c)
{
    zf_residual_desc d = {.eps = ZF_GIVEN(c->eps), .sum = x};
    if (is_gemma(c)) return *x = zf_add(*x, y), llm_gemma_norm(*x, name, c->eps);
    return zf_residual_rms_norm(y, *x, ones(y.graph, name, c->hidden), &d);
}

static zf_tensor plain_norm(zf_tensor x, const char *name, const llm_config *c)
{
    return is_gemma(c) ? llm_gemma_norm(x, name, c->eps) : zf_nn_rms_norm(x, name, c->eps);
}

/* The norm of x [B, T, heads width], for each head separately. */
static zf_tensor head_norm(zf_tensor x, const char *name, const llm_config *c)
{
    zf_shape s = zf_tensor_shape(x);
    zf_tensor y = zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], s.dims[2] / c->width, c->width));
    return zf_reshape(plain_norm(y, name, c), s);
}

static zf_tensor attend(zf_tensor x, zf_tensor mask, const causal_inputs *in, const llm_config *c,
                        int64_t layer)
{
    bool bias = c->attention_bias || c->family == LLM_QWEN2;
    zf_nn_linear_desc into = {.std = ZF_GIVEN(c->std), .no_bias = !bias},
                      out = {.std = ZF_GIVEN(c->std), .no_bias = !c->attention_bias};
    const bool near = c->near_theta > 0 && !is_full(c, layer);
    zf_rope_desc rope = {.theta = near ? c->near_theta : c->theta,
                         .scaling = near ? ZF_ROPE_PLAIN : (zf_rope_scaling)c->scaling,
                         .factor = c->factor,
                         .low_factor = c->low,
                         .high_factor = c->high,
                         .original = c->original,
                         .unrounded = c->unrounded != 0,
                         .attention = c->attention,
                         .positions = zf_valid(in->positions) ? in->positions : ZF_NONE};
    zf_attention_desc attention = {.heads = c->heads,
                                   .kv_heads = c->kv_heads,
                                   .scale = c->query ? 1 / sqrt((double)c->query) : 0,
                                   .dropout = c->attention_dropout,
                                   .causal = true,
                                   .window = is_full(c, layer) ? 0 : c->window,
                                   .mask = mask};
    int64_t of_k = c->kv_heads * c->width;
    zf_tensor q = causal_linear(x, "q_proj", c->heads * c->width, &into, c->bits),
              k = causal_linear(x, "k_proj", of_k, &into, c->bits),
              v = causal_linear(x, "v_proj", of_k, &into, c->bits);
    causal_masks(&attention, in);
    causal_caches(&attention, in, of_k);
    if (c->family == LLM_QWEN3 || is_gemma(c))
        q = head_norm(q, "q_norm", c), k = head_norm(k, "k_norm", c);
    rope.heads = c->heads, q = zf_rope(q, &rope);
    rope.heads = c->kv_heads, k = zf_rope(k, &rope);
    return causal_linear(zf_attention(q, k, v, &attention), "o_proj", c->hidden, &out, c->bits);
}

static zf_tensor feed_forward(zf_tensor x, const llm_config *c)
{
    zf_nn_linear_desc linear = {.std = ZF_GIVEN(c->std), .no_bias = !c->mlp_bias};
    zf_tensor gate = causal_linear(x, "gate_proj", c->intermediate, &linear, c->bits),
              up = causal_linear(x, "up_proj", c->intermediate, &linear, c->bits);
    if (c->activation == ZF_ACTIVATION_SILU) gate = zf_swiglu(gate, up);
    else gate = zf_mul(zf_nn_activation(gate, (zf_activation)c->activation), up);
    return causal_linear(gate, "down_proj", c->hidden, &linear, c->bits);
}

/* What the head is given, [B T, H]; *words, its weight: the embedding, if they are tied or there is
 * no head. */
static zf_tensor body(zf_graph *g, const llm_config *c, const sample_shape *s,
                      const causal_inputs *in, zf_tensor *words)
{
    zf_nn_embedding_desc table = {.std = ZF_GIVEN(c->std)};
    zf_tensor mask = causal_padding(in, s), x, y = ZF_NONE;
    zf_push(g, "model");
    *words = zf_nn_embedding_table(g, "embed_tokens", c->vocab, c->hidden, &table);
    x = zf_embedding_ex(*words, in->input_ids,
                        &(zf_embedding_desc){.padded = c->pad >= 0, .padding = c->pad});
    if (is_gemma(c)) x = zf_scale(x, (float)sqrt((double)c->hidden));
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "layers.%lld", (long long)i);
        y = i ? norm(&x, y, "input_layernorm", c) : plain_norm(x, "input_layernorm", c);
        zf_push(g, "self_attn");
        y = attend(y, mask, in, c, i);
        zf_pop(g);
        if (is_gemma(c)) y = plain_norm(y, "post_attention_layernorm", c);
        y = norm(&x, y, is_gemma(c) ? "pre_feedforward_layernorm" : "post_attention_layernorm", c);
        zf_push(g, "mlp");
        y = feed_forward(y, c);
        zf_pop(g);
        if (is_gemma(c)) y = plain_norm(y, "post_feedforward_layernorm", c);
        zf_pop(g);
    }
    x = norm(&x, y, "norm", c);
    zf_pop(g);
    if (!c->tied && !c->scores) {
        *words = causal_weight(g, "lm_head.weight", c->vocab, c->hidden, ZF_GIVEN(c->std), c->bits);
        if (!zf_valid(*words))
            *words = zf_nn_embedding_table(g, "lm_head", c->vocab, c->hidden, &table);
    }
    return zf_reshape(x, ZF_SHAPE(s->batch * s->sequence, c->hidden));
}

zf_tensor llm_build(zf_graph *g, const llm_config *c, const sample_shape *s, sample_purpose purpose)
{
    sample_shape rows = *s;
    causal_inputs in = c->scores ? score_begin(g, &rows, purpose) : causal_begin(g, &rows, purpose);
    zf_tensor words, x;
    causal_blocks(&in, &rows, c->layout, c->heads);
    x = body(g, c, &rows, &in, &words);
    return c->scores ? score_end(x, &rows, purpose) : causal_end(x, words, &in);
}

/* -------------------------------------------------------------------------------- to the frame */

static void build(zf_graph *g, const void *config, const sample_shape *shape,
                  sample_purpose purpose)
{
    llm_build(g, config, shape, purpose);
}

const sample_model llm_sample = {
    .program = "llm",
    .title = "Llama",
    .models = "15m 110m 160m, or a config.json, perhaps of a folder; else that of\n"
              "                                    --load or --init, else 15m",
    .otherwise = "15m",
    .config = &members,
    .build = build,
    .exchange = {.prefix = "model.",
                 .words = "model.embed_tokens.weight",
                 .head = "lm_head.weight",
                 .score = "score.weight",
                 .inside = {"layers.", "embed_tokens.", "norm."},
                 .heads = {"lm_head.", "score."},
                 .buffers = {".rotary_emb.inv_freq"}},
    .objective = &causal_objective,
};
