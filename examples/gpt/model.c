#include "model.h"
#include "../frame/score/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ configuration */

/* The id that transformers takes where the file has none, if it is one of the vocabulary. */
static bool read_more(void *config, const zf_json *json, zf_error *error)
{
    gpt_config *c = config;
    (void)error;
    if (!json || c->vocab <= 50256) return true;
    if (!zf_json_member(json, "bos_token_id")) c->begin = 50256;
    if (!zf_json_member(json, "eos_token_id")) c->ends[0] = 50256;
    return true;
}

/* Of a head that sums a text up. */
static const char *const other_keys[] = {
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
    "summary_first_dropout", NULL};

#define AT(member) offsetof(gpt_config, member)
static const zf_config_table members = {
    .types = {"gpt2"},
    .architecture = "GPT2LMHeadModel",
    .bytes = sizeof(gpt_config),
    .defaults = &(const gpt_config){.vocab = 50257,
                                    .activation = ZF_ACTIVATION_GELU_TANH,
                                    .tied = 1,
                                    .begin = -1,
                                    .ends = {-1, -1, -1, -1, -1, -1, -1, -1},
                                    .positions = 1024,
                                    .eps = 1e-5,
                                    .embedding_dropout = 0.1,
                                    .attention_dropout = 0.1,
                                    .residual_dropout = 0.1,
                                    .std = 0.02},
    .sizes = {{"small", 4, 256, 4, 8192, 0},
              {"124m", 12, 768, 12, 50257, 0},
              {"355m", 24, 1024, 16, 50257, 0},
              {"774m", 36, 1280, 20, 50257, 0},
              {"1558m", 48, 1600, 25, 50257, 0}},
    .rows = {{"vocab_size", ZF_CONFIG_COUNT, .at = AT(vocab), .least = 8, .most = INT32_MAX,
              .use = ZF_CONFIG_NEEDED},
             {"n_positions", ZF_CONFIG_COUNT, .at = AT(positions), .least = 1, .most = 1 << 24,
              .other = {"max_position_embeddings", "n_ctx"}},
             {"n_embd", ZF_CONFIG_COUNT, .at = AT(hidden), .least = 1, .most = 1 << 20,
              .use = ZF_CONFIG_NEEDED, .other = {"hidden_size"}},
             {"n_layer", ZF_CONFIG_COUNT, .at = AT(layers), .least = 1, .most = 1 << 16,
              .use = ZF_CONFIG_NEEDED, .other = {"num_hidden_layers"}},
             {"n_head", ZF_CONFIG_COUNT, .at = AT(heads), .least = 1, .most = 1 << 16,
              .use = ZF_CONFIG_NEEDED, .other = {"num_attention_heads"}},
             {"n_inner", ZF_CONFIG_COUNT, .at = AT(intermediate), .least = 1, .most = 1 << 22},
             {"activation_function", ZF_CONFIG_ACTIVATION, .at = AT(activation)},
             {"layer_norm_epsilon", ZF_CONFIG_NUMBER, .at = AT(eps), .most = 1},
             {"embd_pdrop", ZF_CONFIG_NUMBER, .at = AT(embedding_dropout), .most = 0.999},
             {"attn_pdrop", ZF_CONFIG_NUMBER, .at = AT(attention_dropout), .most = 0.999},
             {"resid_pdrop", ZF_CONFIG_NUMBER, .at = AT(residual_dropout), .most = 0.999},
             {"initializer_range", ZF_CONFIG_NUMBER, .at = AT(std), .most = 10},
             {"tie_word_embeddings", ZF_CONFIG_TRUTH, .at = AT(tied)},
             {"scale_attn_by_inverse_layer_idx", ZF_CONFIG_TRUTH, .at = AT(inverse_layer),
              .use = ZF_CONFIG_RARE},
             {"reorder_and_upcast_attn", ZF_CONFIG_TRUTH, .at = AT(upcast), .use = ZF_CONFIG_RARE},
             {"bos_token_id", ZF_CONFIG_TOKEN, .at = AT(begin)},
             {"eos_token_id", ZF_CONFIG_TOKENS, .at = AT(ends)},
             {.key = "scale_attn_weights", .kind = ZF_CONFIG_TRUE},
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
    .read_more = read_more,
    .bits = AT(bits),
    .scores = AT(scores),
    .layout = AT(layout),
    .dropouts = {AT(residual_dropout), AT(embedding_dropout), AT(attention_dropout)},
};

bool gpt_config_load(const char *name, gpt_config *c, zf_error *error)
{
    return zf_config_load(&members, name, c, error);
}

/* -------------------------------------------------------------------------------------- graph */

/* Layer `number`, from 1 on: x [B, T, H] -> the same shape. First values of what is added to x are
 * smaller in a model of more layers. */
static zf_tensor block(zf_tensor x, zf_tensor mask, const causal_inputs *in, const gpt_config *c,
                       int64_t number)
{
    zf_nn_linear_desc into = {.std = ZF_GIVEN(c->std)},
                      out = {.std = ZF_GIVEN(c->std / sqrt(2.0 * (double)c->layers))};
    zf_attention_desc attention = {
        .heads = c->heads, .dropout = c->attention_dropout, .causal = true, .mask = mask};
    zf_tensor y, part[3] = {ZF_NONE, ZF_NONE, ZF_NONE};
    if (c->inverse_layer)
        attention.scale = 1 / (sqrt((double)(c->hidden / c->heads)) * (double)number);
    y = zf_causal_linear(zf_nn_layer_norm(x, "ln_1", c->eps), "attn.c_attn", 3 * c->hidden, &into,
                      c->bits);
    zf_causal_masks(&attention, &in->model, c->hidden);
    for (int k = 0; k < 3 && zf_valid(in->model.decode.past); k++)
        part[k] = zf_slice(y, 2, k * c->hidden, (k + 1) * c->hidden);
    y = zf_attention(zf_valid(in->model.decode.past) ? part[0] : y, part[1], part[2], &attention);
    y = zf_causal_linear(y, "attn.c_proj", c->hidden, &out, c->bits);
    y = zf_causal_branch(y, &in->model, number - 1, c->layers, 0);
    x = zf_add(x, zf_dropout(y, c->residual_dropout));

    y = zf_causal_linear(zf_nn_layer_norm(x, "ln_2", c->eps), "mlp.c_fc", c->intermediate, &into,
                      c->bits);
    y = zf_causal_linear(zf_nn_activation(y, (zf_activation)c->activation), "mlp.c_proj",
                      c->hidden, &out, c->bits);
    y = zf_causal_branch(y, &in->model, number - 1, c->layers, 1);
    return zf_add(x, zf_dropout(y, c->residual_dropout));
}

/* The input of the head, [B T, H]; *words: its weight, the embedding if they are tied or there is
 * no head. */
static zf_tensor body(zf_graph *g, const gpt_config *c, const sample_shape *s,
                      const causal_inputs *in, zf_tensor *words)
{
    zf_nn_embedding_desc table = {.std = ZF_GIVEN(c->std)};
    zf_tensor positions, mask = zf_causal_padding(&in->model), x;
    zf_push(g, "transformer");
    *words = zf_nn_embedding_table(g, "wte", c->vocab, c->hidden, &table);
    positions = zf_nn_embedding_table(g, "wpe", c->positions, c->hidden, &table);
    x = zf_embedding(*words, in->model.input_ids);
    positions = zf_valid(in->model.positions) ? zf_embedding(positions, in->model.positions)
                                        : zf_slice(positions, 0, 0, s->sequence);
    x = zf_dropout(zf_add(x, positions), c->embedding_dropout);
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "h.%lld", (long long)i);
        x = block(x, mask, in, c, i + 1);
        zf_pop(g);
    }
    x = zf_nn_layer_norm(x, "ln_f", c->eps);
    zf_pop(g);
    if (!c->tied && !c->scores) *words = zf_nn_embedding_table(g, "lm_head", c->vocab, c->hidden, &table);
    return zf_reshape(x, ZF_SHAPE(s->batch * s->sequence, c->hidden));
}

zf_tensor gpt_build(zf_graph *g, const gpt_config *c, const sample_shape *s, sample_purpose purpose)
{
    sample_shape rows = *s;
    causal_inputs in = c->scores ? score_begin(g, &rows, purpose) : causal_begin(g, &rows, purpose);
    zf_tensor words, x;
    zf_causal_blocks(&in.model, c->layout, c->heads);
    x = body(g, c, &rows, &in, &words);
    return c->scores ? score_end(x, &rows, purpose) : causal_end(x, words, &in);
}

/* -------------------------------------------------------------------------------- to the frame */

/* A weight of GPT-2's Conv1D. */
static bool is_turned(zf_tensor param)
{
    return zf_tensor_shape(param).rank == 2 && strstr(zf_tensor_name(param), ".c_");
}

static void build(zf_graph *g, const void *config, const sample_shape *shape,
                  sample_purpose purpose)
{
    gpt_build(g, config, shape, purpose);
}

static const zf_config_table *config(void) { return &members; }

static const zf_exchange *exchange(void)
{
    static const zf_exchange names = {
        .prefix = "transformer.",
        .words = "transformer.wte.weight",
        .head = "lm_head.weight",
        .score = "score.weight",
        .inside = {"h.", "wte.", "wpe.", "ln_f."},
        .heads = {"lm_head.", "score."},
        .buffers = {".attn.bias", ".attn.masked_bias"},
        .turned = is_turned};
    return &names;
}

const sample_model gpt_sample = {
    .program = "gpt",
    .title = "GPT-2",
    .models = "small 124m 355m 774m 1558m, or a config.json, perhaps of a folder; else that of\n"
              "                                    --load or --init, else small",
    .otherwise = "small",
    .config = config,
    .build = build,
    .exchange = exchange,
    .objective = &causal_objective,
};
