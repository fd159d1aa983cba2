/* OLMoE (Muennighoff et al. 2024): layers of experts; q and k have a norm of whole rows. */
#include "../config.h"

static const char *const keys[] = {"clip_qkv", "output_router_logits", NULL};

#define AT(member) offsetof(llm_config, member)
static const zf_config_row rows[] = {
    {"num_experts", ZF_CONFIG_COUNT, .at = AT(experts), .least = 1, .most = 1 << 14,
     .other = {"num_local_experts"}},
    {"num_experts_per_tok", ZF_CONFIG_COUNT, .at = AT(chosen), .least = 1, .most = 64},
    {"norm_topk_prob", ZF_CONFIG_TRUTH, .at = AT(normalize)},
    {"router_aux_loss_coef", ZF_CONFIG_NUMBER, .at = AT(balance), .most = 1e3},
    {.key = NULL}};

static void read(llm_config *c, const zf_json *json, zf_error *error)
{
    static const char *const absent[] = {"clip_qkv", "sliding_window"};
    for (int k = 0; k < 2 && !error->status; k++)
        if (zf_config_member(json, absent[k]))
            zf_json_expected(zf_config_member(json, absent[k]), error, "null in this family");
    llm_check_experts(c, json, error);
    c->expert_width = c->intermediate;
}

const llm_family_desc llm_olmoe = {
    .architecture = "OlmoeForCausalLM",
    .config = {.rows = rows,
               .keys = keys,
               .defaults = &(const llm_config){LLM_DEFAULTS(10000, 1e-5, -1, 50279, 1),
                                               .experts = 64, .chosen = 8, .balance = 0.01}},
    .no_mlp_bias = true,
    .read = read,
    .reads_windows = true,
    .norms = LLM_NORMS,
    .queries = LLM_NORM_OF_ROWS,
};
