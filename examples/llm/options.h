/* What a run says of the experts of a model. */
#ifndef LLM_OPTIONS_H
#define LLM_OPTIONS_H

#include "../frame/model/sample.h"

/* Options of pretrain and finetune, and what sets them in a zf_causal_config. */
zf_options llm_options(void);
void llm_configure(void *config, const settings *o);
/* For sample_model.wrong: losses of routers that an adapter leaves as they are. */
const char *llm_wrong(const settings *o);

#endif
