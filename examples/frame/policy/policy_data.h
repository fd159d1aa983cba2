/* The dataset of a command that samples answers: prompts, what ends an answer, and rewards. */
#ifndef POLICY_DATA_H
#define POLICY_DATA_H

#include "../model/dataset.h"
#include "../experience/experience.h"

enum { POLICY_ENDS = ZF_CONFIG_ENDS + 2 };

/* dataset.own */
typedef struct policy_data {
    zf_tokenizer *tokens;
    zf_chat chat;
    int32_t ends[POLICY_ENDS];
    zf_answer_desc how;
    zf_prompts prompts, held_out;
    zf_rewards *rewards;
    model_rewards models; /* of these */
    policy_graph graph;
    int64_t text_rows, parts; /* of a step: rows of --ptx, and the parts that it is split into */
    experience_desc experience;
} policy_data;

/* Of an objective: open_data, close, and fit_shape: a row is a prompt and its answer. */
bool policy_data_open(dataset *d, const settings *o, const zf_config_facts *facts, void *config,
                      zf_error *error);
void policy_data_close(dataset *d);
void policy_data_fit(const dataset *d, const settings *o, int64_t parts, sample_shape *shape);

/* Of a text that a policy goes on predicting while it learns from rewards (ptx.c).
 *
 * how: by which prompts become ids; its first end is after each document. row: tokens of a row, of
 * which there must be more. False with *error, and then there is nothing to free. */
bool ptx_read(causal_tokens *out, const char *path, const zf_answer_desc *how, int64_t row,
              zf_error *error);

#endif
