/* A text that a policy goes on predicting while it learns from rewards (PPO-ptx, Ouyang et al. 2022):
 * documents, between which are blank lines, as one line of tokens. */
#ifndef PTX_H
#define PTX_H

#include "../../../zeroflow_llm.h"
#include "../data/causal_batch.h"

/* how: by which prompts become ids; its first end is after each document. row: tokens of a row, of which
 * there must be more. False with *error, and then there is nothing to free. */
bool ptx_read(causal_tokens *out, const char *path, const zf_answer_desc *how, int64_t row,
              zf_error *error);

#endif
