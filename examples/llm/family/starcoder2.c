/* StarCoder2 (Lozhkov et al. 2024): a Llama with layer norms, biases, and an MLP of two products.
 *
 *     x = dropout(embedding)
 *     x += dropout(attend(norm(x)))
 *     x += dropout(c_proj(gelu(c_fc(norm(x))))) */
#include "../config.h"

static const char *const keys[] = {"norm_epsilon", "use_bias", NULL};

static const char *const unwritten[] = {"rms_norm_eps", "attention_bias", "mlp_bias", NULL};

#define AT(member) offsetof(llm_config, member)
static const zf_config_row rows[] = {
    {"residual_dropout", ZF_CONFIG_NUMBER, .at = AT(dropout), .most = 0.999},
    {"embedding_dropout", ZF_CONFIG_NUMBER, .at = AT(embedding_dropout), .most = 0.999},
    /* Of published files; transformers does not read them. */
    {.key = "mlp_type", .kind = ZF_CONFIG_TEXT, .text = "default"},
    {.key = "norm_type", .kind = ZF_CONFIG_TEXT, .text = "layer_norm"},
    {.key = "scale_attn_weights", .kind = ZF_CONFIG_TRUE},
    {.key = NULL}};

static void read(llm_config *c, const zf_json *json, zf_error *error)
{
    bool bias = true;
    llm_read_eps(c, json, "norm_epsilon", error);
    zf_json_to_bool(zf_config_member(json, "use_bias"), &bias, error);
    llm_repeat(json, "attention_bias", bias, ", as use_bias", error);
    llm_repeat(json, "mlp_bias", bias, ", as use_bias", error);
    c->attention_bias = c->mlp_bias = bias;
    llm_read_window(c, json, 0, error);
}

static void write(const llm_config *c, zf_json_writer *w)
{
    zf_json_put_double_member(w, "norm_epsilon", c->eps);
    zf_json_put_bool_member(w, "use_bias", c->mlp_bias != 0);
}

const llm_family_desc llm_starcoder2 = {
    .architecture = "Starcoder2ForCausalLM",
    .config = {.rows = rows,
               .keys = keys,
               .unwritten = unwritten,
               .defaults = &(const llm_config){.vocab = 49152,
                                               .positions = 4096,
                                               .std = 0.018042,
                                               .activation = ZF_ACTIVATION_GELU_TANH,
                                               .theta = 10000,
                                               .eps = 1e-5,
                                               .begin = 50256,
                                               .pad = -1,
                                               .tied = 1,
                                               .ends = {50256, -1, -1, -1, -1, -1, -1, -1}}},
    .kv_heads = 2,
    .read = read,
    .write = write,
    .reads_windows = true,
    .norms = LLM_NORMS,
    .layer_norm = true,
    .dropouts = true,
    .mlp = {"c_fc", "c_proj"},
};
