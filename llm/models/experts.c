/* Layers of experts in a model, and the losses of their routers. */

/* The layers that have been built: for losses of their routers. */
typedef struct zfl_routers {
    zf_moe_parts *layer; /* room for all layers; NULL: they are not kept */
    int64_t count;
    bool trains; /* capacities hold */
} zfl_routers;

/* The shared expert, times the sigmoid of a number of each token. */
static zf_tensor zfl_shared_expert(zf_tensor x, const zf_causal_config *c)
{
    const zf_nn_linear_desc linear = {.std = ZF_GIVEN(c->std), .no_bias = true};
    zf_tensor gate, up, by;
    zf_push(x.graph, "shared_expert");
    gate = zf_causal_linear(x, "gate_proj", c->shared_width, &linear, c->bits);
    up = zf_causal_linear(x, "up_proj", c->shared_width, &linear, c->bits);
    if (c->activation == ZF_ACTIVATION_SILU) gate = zf_swiglu(gate, up);
    else gate = zf_mul(zf_nn_activation(gate, (zf_activation)c->activation), up);
    up = zf_causal_linear(gate, "down_proj", c->hidden, &linear, c->bits);
    zf_pop(x.graph);
    by = zf_sigmoid(zf_nn_linear(x, "shared_expert_gate", 1, &linear));
    return zf_mul(by, up);
}

/* The experts of a layer, x [B, T, H]; adds the layer to *routers. */
static zf_tensor zfl_experts(zf_tensor x, const zf_causal_config *c, zfl_routers *routers)
{
    zf_moe_parts parts;
    const zf_moe_desc d = {.experts = c->experts,
                           .k = c->chosen,
                           .intermediate = c->expert_width,
                           .activation = (zf_activation)c->activation,
                           .gated = true,
                           .normalize = c->normalize != 0,
                           .capacity = routers->trains ? c->of.capacity : 0,
                           .random = routers->trains && c->of.random != 0,
                           .biased = c->router_bias != 0,
                           .balance = c->of.balance_bias > 0,
                           .residual = c->residual_experts != 0,
                           .std = ZF_GIVEN(c->std),
                           .quantized = {.bits = (int32_t)c->bits, .block = 64, .scale = ZF_BF16},
                           .names = &zfl_causal_of(c)->expert_names,
                           .parts = &parts};
    zf_tensor y;
    y = zf_moe(x, &d);
    if (routers->layer) routers->layer[routers->count++] = parts;
    return c->shared_width ? zf_add(y, zfl_shared_expert(x, c)) : y;
}

/* The bias of routers is updated by the sign of its gradient. */
static void zfl_balance_routers(zf_graph *g, double rate)
{
    const zf_param_group bias = {.params = "*.gate.e_score_correction_bias",
                                 .rate = rate,
                                 .constant = true,
                                 .no_decay = true,
                                 .beta1 = 1e-45,
                                 .optimizer = "lion"};
    zf_param_groups(g, &bias, 1);
}

/* 1 for each token, and 0 for padding; ZF_NONE: all are tokens. */
static zf_tensor zfl_mask_of_tokens(const zf_causal_inputs *in)
{
    if (!zf_valid(in->attention_mask)) return ZF_NONE;
    return zf_cast(zf_reshape(in->attention_mask, ZF_SHAPE(-1)), ZF_F32);
}

/* Outputs of how often experts of each layer are chosen. */
static void zfl_watch_experts(const zfl_routers *routers, const zf_causal_config *c,
                              const zf_causal_inputs *in)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->layers && n < routers->count; i++) {
        char name[40];
        if (!zfl_is_sparse(c, i)) continue;
        snprintf(name, sizeof name, "experts.%lld", (long long)i);
        zf_output_ex(zf_moe_load(&routers->layer[n++], zfl_mask_of_tokens(in)), name,
                     &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
    }
}

/* x, or an error of the graph: the routing says something, and the model has no experts. */
static zf_tensor zfl_check_routers(zf_tensor x, const zfl_routers *routers,
                                   const zf_causal_config *c)
{
    const zf_causal_routing *o = &c->of;
    const bool given_some = o->aux_loss > 0 || o->z_loss > 0 || o->capacity > 0 ||
                            o->balance_bias > 0 || o->residual;
    if (!routers->trains || !given_some) return x;
    if (routers->count && o->balance_bias > 0) zfl_balance_routers(x.graph, o->balance_bias);
    if (routers->count) return x;
    return zf_fail(x,
                   c->experts && !routers->layer
                       ? "out of memory"
                       : "aux_loss, z_loss, capacity, balance_bias and residual are for layers of "
                         "experts, and the model has none");
}

/* What routers add to the mean loss of a token; invalid: nothing. */
static zf_tensor zfl_penalty(const zfl_routers *routers, const zf_causal_config *c,
                             const zf_causal_inputs *in)
{
    const zf_moe_balance form = c->of.by_layer ? ZF_BALANCE_LAYERS : ZF_BALANCE_POOLED;
    const double aux = c->of.aux_loss, z = c->of.z_loss;
    zf_tensor mask, sum = ZF_NONE;
    if (!routers->count || (aux == 0 && z == 0)) return ZF_NONE;
    mask = zfl_mask_of_tokens(in);
    if (aux > 0)
        sum = zf_scale(zf_moe_balance_loss(routers->layer, routers->count, mask, form), aux);
    if (z > 0) {
        const zf_tensor loss = zf_scale(zf_moe_z_loss(routers->layer, routers->count, mask), z);
        sum = zf_valid(sum) ? zf_add(sum, loss) : loss;
    }
    return sum;
}
