/* How experts are trained: the options of a run. */
#include "options.h"
#include "../frame/model/settings.h"

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
    {.name = NULL}};

zf_options llm_options(void) { return (zf_options){.rows = rows, .desc = &given}; }

void llm_configure(void *config, const settings *o)
{
    if (o->own == &given) ((zf_causal_config *)config)->of = given;
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
