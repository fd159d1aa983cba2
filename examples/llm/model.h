/* Llama and its relatives: the configuration as config.json has it, the graph, the weights as Hugging
 * Face files. Llama, Mistral and Qwen (Touvron et al. 2023; Jiang et al. 2023; Qwen 2024) are in
 * config.c and model.c, the others have a file each in family/ (config.h). */
#ifndef LLM_MODEL_H
#define LLM_MODEL_H

#include "config.h"

/* One of 15m, 110m, 160m, the path of a Hugging Face config.json, or of a folder with one. False
 * with *error. */
bool llm_config_load(const char *name_or_path, llm_config *config, zf_error *error);

/* For the samples' frame. Parameters have the names of the files. Files may lack the prefix
 * "model.", may have a head although it is tied, and may have rotary_emb.inv_freq. */
extern const sample_model llm_sample;

/* Builds the forward graph up to the loss, or for an answer up to the logits of the token after
 * each sequence; of a model that scores, as score.h says. A mistake is the graph's error. */
zf_tensor llm_build(zf_graph *g, const llm_config *config, const sample_shape *shape,
                    sample_purpose purpose);

#endif
