/* How experts are trained: the options of a run. */
#include "options.h"
#include "../frame/model/settings.h"

#include <math.h>
#include <string.h>

/* Options of the run; others' options have another address. */
static zf_causal_routing given;

static const zf_option rows[] = {
    ZF_OPTION(zf_causal_routing, NUMBER, aux_loss, 0, "[0,1e3]", .topic = "experts",
              .traits = ZF_OPTION_CHANGES,
              .help = "factor of the loss that spreads tokens over experts; 0: there is none"),
    ZF_OPTION(zf_causal_routing, CHOICE, by_layer, 0, "pooled|layers", .flag = "aux-loss-of",
              .traits = ZF_OPTION_CHANGES, .with = "aux_loss",
              .help = "pooled: over all layers together, as transformers; layers: of each, as "
                      "Switch"),
    ZF_OPTION(zf_causal_routing, NUMBER, z_loss, 0, "[0,1e3]", .traits = ZF_OPTION_CHANGES,
              .help = "factor of the loss that keeps the router's logits small"),
    ZF_OPTION(zf_causal_routing, NUMBER, capacity, 0, "[0,1e4]", .traits = ZF_OPTION_CHANGES,
              .help = "an expert has this times the mean number of rows at most, and drops further "
                      "ones; 0: none is dropped"),
    ZF_OPTION(zf_causal_routing, CHOICE, random, 0, "position|random", .flag = "drop",
              .traits = ZF_OPTION_CHANGES, .with = "capacity",
              .help = "which are dropped: those of later tokens, or by chance"),
    ZF_OPTION(zf_causal_routing, NUMBER, balance_bias, 0, "[0,1]", .traits = ZF_OPTION_CHANGES,
              .help = "routers have a bias for the choice, which moves by this in a step: up for "
                      "experts chosen less often than the mean; 0: it is not trained"),
    ZF_OPTION(zf_causal_routing, FLAG, residual, 0, NULL, .flag = "residual-moe",
              .traits = ZF_OPTION_CHANGES,
              .help = "layers of experts have an MLP for all tokens too, mixed with them (PR-MoE)"),
    {.name = NULL}};

zf_options llm_options(void) { return (zf_options){.rows = rows, .desc = &given}; }

void llm_configure(void *config, const settings *o)
{
    zf_causal_config *c = config;
    if (o->own != &given) return;
    c->of = given, c->of.watched = true;
    if (given.balance_bias > 0) c->router_bias = 1;
    if (given.residual) c->residual_experts = 1;
}

int64_t llm_rows(const void *config, const settings *o, int64_t tokens)
{
    const zf_causal_config *c = config;
    const int64_t ranks = o->training.expert > 1 ? o->training.expert : 1,
                  each = c->experts / ranks, choices = tokens * c->chosen,
                  most = tokens * (c->chosen < each ? c->chosen : each);
    const double mean = (double)choices / (double)ranks, factor = o->training.expert_rows;
    if (c->of.capacity > 0) {
        const double own = ceil((double)choices / (double)c->experts * c->of.capacity);
        return c->experts * (own < (double)tokens ? (int64_t)own : tokens);
    }
    if (ranks == 1) return choices;
    return ranks * (factor > 0 && ceil(factor * mean) < (double)most ? (int64_t)ceil(factor * mean)
                                                                     : most);
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

/* The pattern's first `length` characters, with * and ?, are those of the name. */
static bool matches(const char *pattern, size_t length, const char *name)
{
    if (!length) return !*name;
    if (*pattern != '*')
        return *name && (*pattern == '?' || *pattern == *name) &&
               matches(pattern + 1, length - 1, name + 1);
    for (;; name++) {
        if (matches(pattern + 1, length - 1, name)) return true;
        if (!*name) return false;
    }
}

/* The pattern's first `length` characters are those of the router of some layer. */
static bool names_router(const char *pattern, size_t length)
{
    static const char *const scopes[] = {"block_sparse_moe", "mlp"};
    char name[80];
    for (int i = 0; i < 2 * ZF_CAUSAL_LAYERS; i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.gate.weight", i / 2, scopes[i % 2]);
        if (matches(pattern, length, name)) return true;
    }
    return false;
}

/* The text of --param-groups, PATTERN|PATTERN:OPTION,OPTION;..., freezes the router of some layer. */
static bool freezes_routers(const char *groups)
{
    for (const char *at = groups, *end; at && *at; at = end + (*end == ';')) {
        const char *colon, *frozen;
        end = at + strcspn(at, ";"), colon = at + strcspn(at, ":;"), frozen = strstr(colon, "frozen");
        for (const char *one = at; frozen && frozen < end && one < colon;) {
            const size_t length = strcspn(one, "|:");
            if (names_router(one, length)) return true;
            one += length + 1;
        }
    }
    return false;
}

const char *llm_wrong(const settings *o)
{
    const bool own = o->own == &given, adapts = own && settings_adapts(o);
    if (own && (given.aux_loss > 0 || given.z_loss > 0) &&
        freezes_routers(o->training.param_groups))
        return "--aux-loss and --z-loss train routers, and --param-groups freezes one or more: leave "
               "one out";
    if (adapts && (given.aux_loss > 0 || given.z_loss > 0) && !adapts_routers(&o->training.lora))
        return "--aux-loss and --z-loss train routers: their module, gate, must be a target of "
               "--lora, or be kept";
    if (adapts && given.balance_bias > 0)
        return "--balance-bias trains the bias of routers, which --lora leaves as it is";
    if (own && given.residual && settings_first(o))
        return "--residual-moe is for a new model: that of a folder has its layers already";
    return NULL;
}

const char *llm_unlike(const void *config)
{
    const zf_causal_config *c = config;
    if (c->residual_experts)
        return "zeroflow_residual_experts in config.json: layers of experts have an MLP for all "
               "tokens; programs that do not read that compute another model";
    return c->router_bias ? "zeroflow_router_bias in config.json: experts are chosen by scores and a "
                            "bias; programs that do not read that choose others"
                          : NULL;
}
