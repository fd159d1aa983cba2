/* Llama and its relatives (zf_causal_model), for the samples' frame. */
#ifndef LLM_MODEL_H
#define LLM_MODEL_H

#include "../frame/model/causal.h"

/* One of 15m, 110m, 160m, the path of a Hugging Face config.json, or of a folder with one. False
 * with *error. */
bool llm_config_load(const char *name_or_path, zf_causal_config *config, zf_error *error);

/* For the samples' frame. */
extern const sample_model llm_sample;

/* Builds the forward graph up to the loss, or for an answer up to the logits of the token after
 * each sequence; of a model that scores, as score.h says. A mistake is the graph's error. */
zf_tensor llm_build(zf_graph *g, const zf_causal_config *config, const sample_shape *shape,
                    sample_purpose purpose);

#endif
