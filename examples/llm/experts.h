/* Layers of experts, and what a run says of them. */
#ifndef LLM_EXPERTS_H
#define LLM_EXPERTS_H

#include "config.h"

/* The layers that have been built: for losses of their routers. */
typedef struct llm_routers {
    zf_moe_parts *layer; /* room for all layers; NULL: they are not kept */
    int64_t count;
    bool trains; /* capacities hold */
} llm_routers;

/* The experts of a layer, x [B, T, H]; adds the layer to *routers. */
zf_tensor llm_experts(zf_tensor x, const llm_config *config, llm_routers *routers);

/* What routers add to the loss of a part; invalid: nothing. */
zf_tensor llm_penalty(const llm_routers *routers, const llm_config *config,
                      const causal_inputs *in);

/* x, or an error of the graph: options of experts are given, and the model has none. */
zf_tensor llm_check_routers(zf_tensor x, const llm_routers *routers, const llm_config *config);

/* Options of pretrain and finetune, and what sets them in a configuration. */
zf_options llm_options(void);
void llm_configure(void *config, const settings *o);
/* For sample_model.wrong: losses of routers that an adapter leaves as they are. */
const char *llm_wrong(const settings *o);

#endif
