/* Granite (IBM 2024): a Llama in which four numbers multiply.
 *
 *     x = embedding_multiplier embedding        scores attention_multiplier q k^T
 *     x += residual_multiplier attend(norm(x))
 *     x += residual_multiplier ffn(norm(x))     logits / logits_scaling */

static const zf_config_row zfl_granite_rows[] = {
    {"embedding_multiplier", ZF_CONFIG_NUMBER, .at = ZFL_AT(embedding), .least = 1e-6, .most = 1e6},
    {"attention_multiplier", ZF_CONFIG_NUMBER, .at = ZFL_AT(score), .least = 1e-6, .most = 1e6},
    {"residual_multiplier", ZF_CONFIG_NUMBER, .at = ZFL_AT(residual), .least = 1e-6, .most = 1e6},
    {"logits_scaling", ZF_CONFIG_NUMBER, .at = ZFL_AT(logits), .least = 1e-6, .most = 1e6},
    {.key = NULL}};

static const zfl_family_desc zfl_granite = {
    .architecture = "GraniteForCausalLM",
    .config = {.rows = zfl_granite_rows,
               .defaults =
                   &(const zf_causal_config){ZFL_DEFAULTS(10000, 1e-6, 1, 2, -1), .embedding = 1,
                                             .score = 1, .residual = 1, .logits = 1}},
    .norms = ZFL_NORMS,
};
