/* Granite (IBM 2024): a Llama in which four numbers multiply.
 *
 *     x = embedding_multiplier embedding        scores attention_multiplier q k^T
 *     x += residual_multiplier attend(norm(x))
 *     x += residual_multiplier ffn(norm(x))     logits / logits_scaling */
#include "../config.h"

#define AT(member) offsetof(llm_config, member)
static const zf_config_row rows[] = {
    {"embedding_multiplier", ZF_CONFIG_NUMBER, .at = AT(embedding), .least = 1e-6, .most = 1e6},
    {"attention_multiplier", ZF_CONFIG_NUMBER, .at = AT(score), .least = 1e-6, .most = 1e6},
    {"residual_multiplier", ZF_CONFIG_NUMBER, .at = AT(residual), .least = 1e-6, .most = 1e6},
    {"logits_scaling", ZF_CONFIG_NUMBER, .at = AT(logits), .least = 1e-6, .most = 1e6},
    {.key = NULL}};

const llm_family_desc llm_granite = {
    .architecture = "GraniteForCausalLM",
    .config = {.rows = rows,
               .defaults = &(const llm_config){LLM_DEFAULTS(10000, 1e-6, 1, 2, -1), .embedding = 1,
                                               .score = 1, .residual = 1, .logits = 1}},
    .norms = LLM_NORMS,
};
