/* Layers of experts in a model, the losses of their routers, and their options. */
#include "experts.h"
#include "../frame/model/settings.h"

#include <string.h>

/* ---------------------------------------------------------------------------------- options */

/* Options of the run; others' options have another address. */
static llm_training given;

static const zf_option rows[] = {
    ZF_OPTION(llm_training, NUMBER, aux_loss, 0, "[0,1e3]", .topic = "experts",
              .traits = ZF_OPTION_CHANGES,
              .help = "factor of the loss that spreads tokens over experts; 0: there is none"),
    ZF_OPTION(llm_training, CHOICE, by_layer, 0, "pooled|layers", .flag = "aux-loss-of",
              .traits = ZF_OPTION_CHANGES, .with = "aux_loss",
              .help = "pooled: over all layers together, as transformers; layers: of each, as "
                      "Switch"),
    ZF_OPTION(llm_training, NUMBER, z_loss, 0, "[0,1e3]", .traits = ZF_OPTION_CHANGES,
              .help = "factor of the loss that keeps the router's logits small"),
    ZF_OPTION(llm_training, NUMBER, capacity, 0, "[0,1e4]", .traits = ZF_OPTION_CHANGES,
              .help = "an expert has this times the mean number of rows at most, and drops further "
                      "ones; 0: none is dropped"),
    ZF_OPTION(llm_training, CHOICE, random, 0, "position|random", .flag = "drop",
              .traits = ZF_OPTION_CHANGES, .with = "capacity",
              .help = "which are dropped: those of later tokens, or by chance"),
    {.name = NULL}};

zf_options llm_options(void) { return (zf_options){.rows = rows, .desc = &given}; }

void llm_configure(void *config, const settings *o)
{
    if (o->own == &given) ((llm_config *)config)->of = given;
}

/* The adapter changes routers: their module, gate, is a target, or is kept and trained itself. */
static bool adapts_routers(const zf_lora_desc *d)
{
    const char *all = d->targets;
    if (!all || !strcmp(all, "all-linear")) return true;
    for (const char *at = strstr(all, "gate"); at; at = strstr(at + 1, "gate"))
        if ((at == all || at[-1] == ',' || at[-1] == '.') && (!at[4] || at[4] == ',')) return true;
    return d->keep && (strstr(d->keep, "gate") || strchr(d->keep, '*'));
}

const char *llm_wrong(const settings *o)
{
    const bool penalized = o->own == &given && (given.aux_loss > 0 || given.z_loss > 0);
    return penalized && settings_adapts(o) && !adapts_routers(&o->training.lora)
               ? "--aux-loss and --z-loss train routers: their module, gate, must be a target of "
                 "--lora, or be kept"
               : NULL;
}

/* ------------------------------------------------------------------------------------ graph */

/* The shared expert, times the sigmoid of a number of each token. */
static zf_tensor shared_expert(zf_tensor x, const llm_config *c)
{
    const zf_nn_linear_desc linear = {.std = ZF_GIVEN(c->std), .no_bias = true};
    zf_tensor gate, up, by;
    zf_push(x.graph, "shared_expert");
    gate = zf_nn_linear(x, "gate_proj", c->shared_width, &linear);
    up = zf_nn_linear(x, "up_proj", c->shared_width, &linear);
    if (c->activation == ZF_ACTIVATION_SILU) gate = zf_swiglu(gate, up);
    else gate = zf_mul(zf_nn_activation(gate, (zf_activation)c->activation), up);
    up = zf_nn_linear(gate, "down_proj", c->hidden, &linear);
    zf_pop(x.graph);
    by = zf_sigmoid(zf_nn_linear(x, "shared_expert_gate", 1, &linear));
    return zf_mul(by, up);
}

zf_tensor llm_experts(zf_tensor x, const llm_config *c, llm_routers *routers)
{
    zf_moe_parts parts;
    const zf_moe_desc d = {.experts = c->experts,
                           .k = c->chosen,
                           .intermediate = c->expert_width,
                           .activation = (zf_activation)c->activation,
                           .gated = true,
                           .normalize = c->normalize != 0,
                           .capacity = routers->trains ? c->of.capacity : 0,
                           .least = routers->trains && c->of.capacity > 0,
                           .random = routers->trains && c->of.random != 0,
                           .std = ZF_GIVEN(c->std),
                           .names = &llm_family_of(c)->expert_names,
                           .parts = &parts};
    zf_tensor y;
    if (c->bits)
        return zf_fail(x, "--weights int8 and int4 are not for models with experts, whose products "
                          "need floats");
    y = zf_moe(x, &d);
    if (routers->layer) routers->layer[routers->count++] = parts;
    return c->shared_width ? zf_add(y, shared_expert(x, c)) : y;
}

zf_tensor llm_check_routers(zf_tensor x, const llm_routers *routers, const llm_config *c)
{
    const bool given_some = c->of.aux_loss > 0 || c->of.z_loss > 0 || c->of.capacity > 0;
    if (!routers->trains || routers->count || !given_some) return x;
    return zf_fail(x, c->experts && !routers->layer
                          ? "out of memory"
                          : "--aux-loss, --z-loss and --capacity are for layers of experts, and the "
                            "model has none");
}

/* The share of this part in the global batch, by its labels. */
static zf_tensor share_of(const causal_inputs *in)
{
    zf_graph *g = in->labels.graph;
    const zf_tensor none = zf_constant(g, ZF_I32, ZF_SCALAR, -100),
                    one = zf_constant(g, ZF_F32, ZF_SCALAR, 1),
                    zero = zf_constant(g, ZF_F32, ZF_SCALAR, 0);
    const zf_tensor count = zf_sum(zf_where(zf_equal(in->labels, none), zero, one));
    return zf_mul(count, in->loss_weight);
}

zf_tensor llm_penalty(const llm_routers *routers, const llm_config *c, const causal_inputs *in)
{
    const zf_moe_balance form = c->of.by_layer ? ZF_BALANCE_LAYERS : ZF_BALANCE_POOLED;
    const double aux = c->of.aux_loss, z = c->of.z_loss;
    zf_tensor mask = ZF_NONE, sum = ZF_NONE;
    if (!routers->count || (aux == 0 && z == 0)) return ZF_NONE;
    if (zf_valid(in->attention_mask))
        mask = zf_cast(zf_reshape(in->attention_mask, ZF_SHAPE(-1)), ZF_F32);
    if (aux > 0)
        sum = zf_scale(zf_moe_balance_loss(routers->layer, routers->count, mask, form), aux);
    if (z > 0) {
        const zf_tensor loss = zf_scale(zf_moe_z_loss(routers->layer, routers->count, mask), z);
        sum = zf_valid(sum) ? zf_add(sum, loss) : loss;
    }
    return zf_mul(sum, share_of(in));
}
