/* Bloom (BigScience 2022): layer norms with biases, one of them after the embedding; an MLP of two
 * products; q, k and v are one product, head by head. Tokens have no positions: attention has ALiBi
 * (Press et al. 2022), a number for each head and key that is added to scores.
 *
 *     x = norm(embedding)       score of key n, head h: q k / sqrt(d) + slope(h) n
 *     x += attend(norm(x))
 *     x += ffn(norm(x))
 *
 * Of a query m that is slope(h) (n - m), since the same number for all keys changes no softmax. In
 * 16 bits it is rounded to these, as transformers does. */
#include "../config.h"

#include <math.h>
#include <stdlib.h>

/* The last lines: of its first files. */
static const char
    *const file_keys[] = {"apply_residual_connection_post_layernorm",
                          "slow_but_exact",
                          "n_embed",
                          "unk_token_id",
                          "attention_softmax_in_fp32",
                          "bias_dropout_fusion",
                          "masked_softmax_fusion",
                          "offset_alibi",
                          "skip_bias_add",
                          "skip_bias_add_qkv",
                          NULL},
           *const optional[] = {"max_position_embeddings", "intermediate_size", "num_hidden_layers",
                                "num_attention_heads", NULL},
           *const unwritten[] = {
               "head_dim",          "num_key_value_heads", "intermediate_size",       "hidden_act",
               "rms_norm_eps",      "rope_theta",          "attention_bias",          "mlp_bias",
               "num_hidden_layers", "num_attention_heads", "max_position_embeddings", NULL};

#define AT(member) offsetof(llm_config, member)
static const zf_config_row rows[] = {
    {"n_layer", ZF_CONFIG_COUNT, .at = AT(layers), .least = 1, .most = 1 << 16,
     .use = ZF_CONFIG_NEEDED, .other = {"num_hidden_layers"}},
    {"n_head", ZF_CONFIG_COUNT, .at = AT(heads), .least = 1, .most = 1 << 16,
     .use = ZF_CONFIG_NEEDED, .other = {"num_attention_heads"}},
    {"seq_length", ZF_CONFIG_COUNT, .at = AT(positions), .least = 1, .most = 1 << 24},
    {"layer_norm_epsilon", ZF_CONFIG_NUMBER, .at = AT(eps), .most = 1},
    {"hidden_dropout", ZF_CONFIG_NUMBER, .at = AT(dropout), .most = 0.999},
    {.key = NULL}};

static const char here[] = " in this family";

static void read(llm_config *c, const zf_json *json, zf_error *error)
{
    llm_repeat(json, "apply_residual_connection_post_layernorm", false, here, error);
    if (!error->status) llm_repeat_count(json, "n_embed", c->hidden, ", as hidden_size", error);
    if (!error->status) llm_repeat_count(json, "intermediate_size", 4 * c->hidden, here, error);
    if (!error->status) llm_repeat_count(json, "head_dim", c->hidden / c->heads, here, error);
    if (!error->status) llm_repeat_count(json, "num_key_value_heads", c->heads, here, error);
    c->attention_bias = c->mlp_bias = c->alibi = 1;
    c->activation = ZF_ACTIVATION_GELU_TANH, c->intermediate = 4 * c->hidden;
    c->kv_heads = c->heads, c->width = c->hidden / c->heads;
}

/* Nothing says how rope is, since there is none. */
static void write(const llm_config *c, zf_json_writer *w)
{
    (void)c;
    zf_json_put_bool_member(w, "apply_residual_connection_post_layernorm", false);
}

double llm_alibi_slope(int64_t head, int64_t heads)
{
    int64_t whole = 1; /* the largest power of 2 that is no more than `heads` */
    while (2 * whole <= heads) whole *= 2;
    if (head < whole) return exp2(-8.0 * (double)(head + 1) / (double)whole);
    return exp2(-4.0 * (double)(2 * (head - whole) + 1) / (double)whole);
}

/* 0, 1, ..., count - 1, or the slopes of so many heads. */
static zf_tensor numbers(zf_graph *g, int64_t count, bool slopes)
{
    double *x = malloc((size_t)count * sizeof *x + 1);
    const zf_shape shape = slopes ? ZF_SHAPE(1, count, 1, 1) : ZF_SHAPE(1, 1, 1, count);
    zf_tensor made;
    if (!x) return zf_fail(zf_constant(g, ZF_F32, ZF_SCALAR, 0), "out of memory");
    for (int64_t k = 0; k < count; k++) x[k] = slopes ? llm_alibi_slope(k, count) : (double)k;
    made = zf_values(g, ZF_F32, shape, x);
    free(x);
    return made;
}

zf_tensor llm_alibi(zf_graph *g, int64_t heads, int64_t keys, zf_tensor mask)
{
    zf_tensor places;
    if (zf_valid(mask)) {
        places = zf_cast(zf_cumsum(zf_cast(mask, ZF_I32), 1), ZF_F32);
        places = zf_sub(places, zf_constant(g, ZF_F32, ZF_SCALAR, 1)); /* the first token is 0 */
        places = zf_reshape(places, ZF_SHAPE(-1, 1, 1, keys));
    } else {
        places = numbers(g, keys, false);
    }
    return zf_mul(numbers(g, heads, true), places);
}

const llm_family_desc llm_bloom = {
    .architecture = "BloomForCausalLM",
    .config = {.rows = rows,
               .keys = file_keys,
               .optional = optional,
               .unwritten = unwritten,
               .defaults = &(const llm_config){.vocab = 250880,
                                               .positions = 2048,
                                               .std = 0.02,
                                               .activation = ZF_ACTIVATION_GELU_TANH,
                                               .eps = 1e-5,
                                               .begin = 1,
                                               .pad = 3,
                                               .tied = 1,
                                               .ends = {2, -1, -1, -1, -1, -1, -1, -1}}},
    .read = read,
    .write = write,
    .reads_rope = true,
    .reads_windows = true,
    .names = {.model = "transformer",
              .embedding = "word_embeddings",
              .embedding_norm = "word_embeddings_layernorm",
              .layers = "h",
              .attention = "self_attention",
              .out = "dense",
              .last_norm = "ln_f"},
    .norms = LLM_NORMS,
    .layer_norm = true,
    .dropouts = true,
    .mlp = {"dense_h_to_4h", "dense_4h_to_h"},
    .grouped = "query_key_value",
};
