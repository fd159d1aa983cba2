/* OLMo 2 (Walsh et al. 2025): norms come after attention and feed-forward, not before, and q and k
 * have a norm of whole rows.
 *
 *     x += norm(attend(x))
 *     x += norm(ffn(x)) */

static const zfl_family_desc zfl_olmo2 = {
    .architecture = "Olmo2ForCausalLM",
    .config = {.defaults = &(const zf_causal_config){ZFL_DEFAULTS(10000, 1e-5, -1, 50279, 1)}},
    .no_mlp_bias = true,
    .norms = {.after_attention = "post_attention_layernorm",
              .after_mlp = "post_feedforward_layernorm"},
    .queries = ZFL_NORM_OF_ROWS,
};
