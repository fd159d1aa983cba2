#include "model.h"
#include "../frame/score/score.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ configuration */

enum { OFFSET = 2 }; /* rows of the position embedding before that of position 0 */
static const double eps = 1e-5;

/* What transformers takes where the file has none. */
static bool read_more(void *config, const zf_json *json, zf_error *error)
{
    opt_config *c = config;
    (void)error;
    if (!c->words) c->words = c->hidden;
    if (!json) return true;
    if (!zf_json_member(json, "bos_token_id")) c->begin = 2;
    if (!zf_json_member(json, "eos_token_id")) c->ends[0] = 2;
    if (!zf_json_member(json, "pad_token_id")) c->pad = 1;
    return true;
}

/* Not read by transformers. */
static const char *const other_keys[] = {"activation_dropout", NULL};

#define AT(member) offsetof(opt_config, member)
static const zf_config_table members = {
    .types = {"opt"},
    .architecture = "OPTForCausalLM",
    .bytes = sizeof(opt_config),
    .defaults = &(const opt_config){.vocab = 50272,
                                    .positions = 2048,
                                    .norm_before = 1,
                                    .dropout = 0.1,
                                    .std = 0.02,
                                    .activation = ZF_ACTIVATION_RELU,
                                    .tied = 1,
                                    .begin = -1,
                                    .pad = -1,
                                    .ends = {-1, -1, -1, -1, -1, -1, -1, -1}},
    .sizes = {{"125m", 12, 768, 12, 50272, 0}, {"1300m", 24, 2048, 32, 50272, 0}},
    .rows = {{"vocab_size", ZF_CONFIG_COUNT, .at = AT(vocab), .least = 8, .most = INT32_MAX,
              .use = ZF_CONFIG_NEEDED},
             {"max_position_embeddings", ZF_CONFIG_COUNT, .at = AT(positions), .least = 1,
              .most = 1 << 24},
             {"hidden_size", ZF_CONFIG_COUNT, .at = AT(hidden), .least = 1, .most = 1 << 20,
              .use = ZF_CONFIG_NEEDED},
             {"num_hidden_layers", ZF_CONFIG_COUNT, .at = AT(layers), .least = 1, .most = 1 << 16,
              .use = ZF_CONFIG_NEEDED},
             {"num_attention_heads", ZF_CONFIG_COUNT, .at = AT(heads), .least = 1, .most = 1 << 16,
              .use = ZF_CONFIG_NEEDED},
             {"ffn_dim", ZF_CONFIG_COUNT, .at = AT(intermediate), .least = 1, .most = 1 << 22,
              .use = ZF_CONFIG_NEEDED},
             {"word_embed_proj_dim", ZF_CONFIG_COUNT, .at = AT(words), .least = 1, .most = 1 << 20},
             {"do_layer_norm_before", ZF_CONFIG_TRUTH, .at = AT(norm_before)},
             {"_remove_final_layer_norm", ZF_CONFIG_TRUTH, .at = AT(norm_removed)},
             {"activation_function", ZF_CONFIG_ACTIVATION, .at = AT(activation)},
             {"dropout", ZF_CONFIG_NUMBER, .at = AT(dropout), .most = 0.999},
             {"attention_dropout", ZF_CONFIG_NUMBER, .at = AT(attention_dropout), .most = 0.999},
             {"layerdrop", ZF_CONFIG_NUMBER, .at = AT(layerdrop), .most = 0},
             {"init_std", ZF_CONFIG_NUMBER, .at = AT(std), .most = 10},
             {"tie_word_embeddings", ZF_CONFIG_TRUTH, .at = AT(tied)},
             {"bos_token_id", ZF_CONFIG_TOKEN, .at = AT(begin)},
             {"eos_token_id", ZF_CONFIG_TOKENS, .at = AT(ends)},
             {"pad_token_id", ZF_CONFIG_TOKEN, .at = AT(pad)},
             {.key = "enable_bias", .kind = ZF_CONFIG_TRUE},
             {.key = "layer_norm_elementwise_affine", .kind = ZF_CONFIG_TRUE},
             {"zeroflow_attention", ZF_CONFIG_BLOCKS, .at = AT(layout)}},
    .keys = other_keys,
    .vocab = AT(vocab),
    .positions = AT(positions),
    .layers = AT(layers),
    .hidden = AT(hidden),
    .heads = AT(heads),
    .intermediate = AT(intermediate),
    .tied = AT(tied),
    .begin = AT(begin),
    .end = AT(ends),
    .ends = ZF_CONFIG_ENDS,
    .pad = AT(pad),
    .read_more = read_more,
    .bits = AT(bits),
    .scores = AT(scores),
    .layout = AT(layout),
    .dropouts = {AT(dropout), AT(attention_dropout)},
};

/* -------------------------------------------------------------------------------------- graph */

static zf_tensor linear(zf_tensor x, const char *name, int64_t out, const opt_config *c)
{
    return zf_causal_linear(x, name, out, &(zf_nn_linear_desc){.std = ZF_GIVEN(c->std)}, c->bits);
}

/* Between widths, without a bias. */
static zf_tensor project(zf_tensor x, const char *name, int64_t out, const opt_config *c)
{
    const zf_nn_linear_desc d = {.std = ZF_GIVEN(c->std), .no_bias = true};
    return zf_causal_linear(x, name, out, &d, c->bits);
}

static zf_tensor attend(zf_tensor x, zf_tensor mask, const causal_inputs *in, const opt_config *c)
{
    zf_attention_desc attention = {
        .heads = c->heads, .dropout = c->attention_dropout, .causal = true, .mask = mask};
    zf_tensor q, k, v;
    zf_push(x.graph, "self_attn");
    q = linear(x, "q_proj", c->hidden, c);
    k = linear(x, "k_proj", c->hidden, c);
    v = linear(x, "v_proj", c->hidden, c);
    zf_causal_masks(&attention, &in->model, c->hidden);
    x = linear(zf_attention(q, k, v, &attention), "out_proj", c->hidden, c);
    zf_pop(x.graph);
    return x;
}

static zf_tensor feed_forward(zf_tensor x, const opt_config *c)
{
    x = zf_nn_activation(linear(x, "fc1", c->intermediate, c), (zf_activation)c->activation);
    return linear(x, "fc2", c->hidden, c);
}

/* x [B, T, H] -> the same shape. */
static zf_tensor layer(zf_tensor x, zf_tensor mask, const causal_inputs *in, const opt_config *c,
                       int64_t number)
{
    static const char *const norms[] = {"self_attn_layer_norm", "final_layer_norm"};
    for (int k = 0; k < 2; k++) {
        zf_tensor y = c->norm_before ? zf_nn_layer_norm(x, norms[k], eps) : x;
        y = k ? feed_forward(y, c) : attend(y, mask, in, c);
        y = zf_causal_branch(y, &in->model, number, c->layers, k);
        x = zf_add(x, zf_dropout(y, c->dropout));
        if (!c->norm_before) x = zf_nn_layer_norm(x, norms[k], eps);
    }
    return x;
}

/* Rows of the position embedding, i32 [B, T]: of a token, how many tokens its row has up to it, and
 * 1; of padding 1. Counts are sums, which are exact where the graph computes in 16 bits. */
static zf_tensor masked_positions(zf_tensor mask, const sample_shape *s)
{
    const int64_t n = s->sequence;
    double *number = malloc((size_t)n * sizeof *number);
    zf_tensor at, there = zf_cast(mask, ZF_F32), counts;
    for (int64_t i = 0; number && i < n; i++) number[i] = (double)i;
    at = number ? zf_values(mask.graph, ZF_I32, ZF_SHAPE(n), number) : (zf_tensor){mask.graph, 0};
    free(number);
    counts = zf_less(zf_reshape(at, ZF_SHAPE(n, 1)), zf_reshape(at, ZF_SHAPE(1, n)));
    counts = zf_where(counts, zf_constant(mask.graph, ZF_F32, ZF_SCALAR, 0),
                      zf_reshape(there, ZF_SHAPE(s->batch, 1, n)));
    counts = zf_mul(zf_sum_ex(counts, &(zf_reduce_desc){.axis = -1}), there);
    return zf_cast(zf_add(counts, zf_constant(mask.graph, ZF_F32, ZF_SCALAR, 1)), ZF_I32);
}

/* What the first layer is given, [B, T, H]; *words: the embedding. */
static zf_tensor embed(zf_graph *g, const opt_config *c, const sample_shape *s,
                       const causal_inputs *in, zf_tensor *words)
{
    const zf_nn_embedding_desc table = {.std = ZF_GIVEN(c->std)};
    zf_tensor x, positions;
    *words = zf_nn_embedding_table(g, "embed_tokens", c->vocab, c->words, &table);
    x = zf_embedding_ex(*words, in->model.input_ids,
                        &(zf_embedding_desc){.padded = c->pad >= 0, .padding = c->pad});
    if (c->words != c->hidden) x = project(x, "project_in", c->hidden, c);
    positions = zf_nn_embedding_table(g, "embed_positions", c->positions + OFFSET, c->hidden, &table);
    if (zf_valid(in->model.attention_mask))
        positions = zf_embedding(positions, masked_positions(in->model.attention_mask, s));
    else if (zf_valid(in->model.positions))
        positions = zf_embedding(zf_slice(positions, 0, OFFSET, c->positions + OFFSET),
                                 in->model.positions);
    else positions = zf_slice(positions, 0, OFFSET, s->sequence + OFFSET);
    return zf_add(x, positions);
}

/* The input of the head, [B T, words]; *words: its weight, the embedding if they are tied or there
 * is no head. */
static zf_tensor body(zf_graph *g, const opt_config *c, const sample_shape *s,
                      const causal_inputs *in, zf_tensor *words)
{
    const zf_nn_embedding_desc table = {.std = ZF_GIVEN(c->std)};
    zf_tensor mask = zf_causal_padding(&in->model), x;
    zf_push(g, "model.decoder");
    x = embed(g, c, s, in, words);
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "layers.%lld", (long long)i);
        x = layer(x, mask, in, c, i);
        zf_pop(g);
    }
    if (c->norm_before && !c->norm_removed) x = zf_nn_layer_norm(x, "final_layer_norm", eps);
    if (c->words != c->hidden) x = project(x, "project_out", c->words, c);
    zf_pop(g);
    if (!c->tied && !c->scores)
        *words = zf_nn_embedding_table(g, "lm_head", c->vocab, c->words, &table);
    return zf_reshape(x, ZF_SHAPE(s->batch * s->sequence, c->words));
}

zf_tensor opt_build(zf_graph *g, const opt_config *c, const sample_shape *s, sample_purpose purpose)
{
    sample_shape rows = *s;
    causal_inputs in = c->scores ? score_begin(g, &rows, purpose) : causal_begin(g, &rows, purpose);
    zf_tensor words, x;
    zf_causal_blocks(&in.model, c->layout, c->heads);
    x = body(g, c, &rows, &in, &words);
    return c->scores ? score_end(x, &rows, purpose) : causal_end(x, words, &in);
}

/* -------------------------------------------------------------------------------- to the frame */

static void build(zf_graph *g, const void *config, const sample_shape *shape,
                  sample_purpose purpose)
{
    opt_build(g, config, shape, purpose);
}

static const zf_config_table *config(void) { return &members; }

static const zf_exchange *exchange(void)
{
    static const zf_exchange names = {
        .prefix = "model.",
        .words = "model.decoder.embed_tokens.weight",
        .head = "lm_head.weight",
        .score = "score.weight",
        .inside = {"decoder."},
        .heads = {"lm_head.", "score."}};
    return &names;
}

const sample_model opt_sample = {
    .program = "opt",
    .title = "OPT",
    .models = "125m 1300m, or a config.json, perhaps of a folder; else that of\n"
              "                                    --load or --init, else 125m",
    .otherwise = "125m",
    .config = config,
    .build = build,
    .exchange = exchange,
    .objective = &causal_objective,
};
