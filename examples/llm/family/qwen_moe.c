/* Qwen2-MoE (Qwen 2024), in whose layers each token also has a shared expert, times the sigmoid of a
 * number of its own; and Qwen3-MoE (Qwen 2025), which has none. Some layers may be without experts. */
#include "../config.h"

static const char *const keys[] = {"mlp_only_layers", "decoder_sparse_step", "output_router_logits",
                                   "qkv_bias", NULL};

#define AT(member) offsetof(llm_config, member)
#define ROWS                                                                                       \
    {"num_experts", ZF_CONFIG_COUNT, .at = AT(experts), .least = 1, .most = 1 << 14,               \
     .other = {"num_local_experts"}},                                                              \
        {"num_experts_per_tok", ZF_CONFIG_COUNT, .at = AT(chosen), .least = 1, .most = 64},        \
        {"moe_intermediate_size", ZF_CONFIG_COUNT, .at = AT(expert_width), .least = 1,             \
         .most = 1 << 22},                                                                         \
        {"norm_topk_prob", ZF_CONFIG_TRUTH, .at = AT(normalize)},                                  \
    {                                                                                              \
        "router_aux_loss_coef", ZF_CONFIG_NUMBER, .at = AT(balance), .most = 1e3                   \
    }
static const zf_config_row rows2[] = {ROWS,
                                      {"shared_expert_intermediate_size", ZF_CONFIG_COUNT,
                                       .at = AT(shared_width), .least = 1, .most = 1 << 22},
                                      {.key = NULL}},
                           rows3[] = {ROWS, {.key = NULL}};

/* Which layers have no experts: listed ones, and those that the step leaves out. */
static void read_layers(llm_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *only = zf_config_member(json, "mlp_only_layers");
    int64_t step = 1;
    zf_json_to_int(zf_config_member(json, "decoder_sparse_step"), 1, INT32_MAX, &step, error);
    if ((only || step > 1) && c->layers > LLM_LAYERS && !error->status)
        zf_json_expected(zf_json_member(json, "num_hidden_layers"), error,
                         "at most %d in a model of which some layers have no experts", LLM_LAYERS);
    for (int64_t i = 0; i < c->layers && step > 1; i++)
        if ((i + 1) % step) llm_mark(c->dense, i);
    for (const zf_json *v = zf_json_first(only); v && !error->status; v = zf_json_next(v)) {
        int64_t layer = 0;
        zf_json_to_int(v, 0, c->layers - 1, &layer, error);
        llm_mark(c->dense, layer);
    }
}

static void read(llm_config *c, const zf_json *json, zf_error *error)
{
    if (c->family == LLM_QWEN2_MOE) llm_repeat(json, "qkv_bias", true, " in this family", error);
    else llm_repeat(json, "use_sliding_window", false, " in this family", error);
    read_layers(c, json, error);
    llm_check_experts(c, json, error);
}

static void write(const llm_config *c, zf_json_writer *w)
{
    zf_json_put_int_member(w, "decoder_sparse_step", 1);
    zf_json_put_key(w, "mlp_only_layers");
    zf_json_begin_array(w);
    for (int64_t i = 0; i < c->layers; i++)
        if (!llm_is_sparse(c, i)) zf_json_put_int(w, i);
    zf_json_end(w);
}

const llm_family_desc llm_qwen2_moe = {
    .architecture = "Qwen2MoeForCausalLM",
    .config = {.rows = rows2,
               .keys = keys,
               .defaults = &(const llm_config){LLM_DEFAULTS(10000, 1e-6, -1, -1, -1), .experts = 60,
                                               .chosen = 4, .expert_width = 1408,
                                               .shared_width = 5632, .balance = 0.001}},
    .kv_heads = 16,
    .window = 4096,
    .no_attention_bias = true,
    .no_mlp_bias = true,
    .read = read,
    .write = write,
    .norms = LLM_NORMS,
    .qkv_bias = true,
};

const llm_family_desc llm_qwen3_moe = {
    .architecture = "Qwen3MoeForCausalLM",
    .config = {.rows = rows3,
               .keys = keys,
               .defaults = &(const llm_config){LLM_DEFAULTS(10000, 1e-6, -1, -1, -1),
                                               .experts = 128, .chosen = 8, .expert_width = 768,
                                               .balance = 0.001}},
    .kv_heads = 4,
    .no_mlp_bias = true,
    .read = read,
    .write = write,
    .reads_windows = true,
    .norms = LLM_NORMS,
    .queries = LLM_NORM_OF_HEADS,
};
