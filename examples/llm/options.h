/* What a run says of the experts of a model. */
#ifndef LLM_OPTIONS_H
#define LLM_OPTIONS_H

#include "../frame/model/sample.h"

/* Options of pretrain and finetune, and what sets them in a zf_causal_config. */
zf_options llm_options(void);
void llm_configure(void *config, const settings *o);
/* For sample_model.wrong: what an adapter leaves as it is, or a folder lacks. */
const char *llm_wrong(const settings *o);
/* For sample_model.rows. */
int64_t llm_rows(const void *config, const settings *o, int64_t tokens);
/* For sample_model.unlike: members of config.json that other programs do not read. */
const char *llm_unlike(const void *config);

#endif
