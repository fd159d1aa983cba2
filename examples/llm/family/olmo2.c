/* OLMo 2 (Walsh et al. 2025): norms come after attention and feed-forward, not before, and q and k
 * have a norm of whole rows.
 *
 *     x += norm(attend(x))
 *     x += norm(ffn(x)) */
#include "../config.h"

const llm_family_desc llm_olmo2 = {
    .architecture = "Olmo2ForCausalLM",
    .config = {.defaults = &(const llm_config){LLM_DEFAULTS(10000, 1e-5, -1, 50279, 1)}},
    .no_mlp_bias = true,
    .norms = {.after_attention = "post_attention_layernorm",
              .after_mlp = "post_feedforward_layernorm"},
    .queries = LLM_NORM_OF_ROWS,
};
