/* The data of the three steps of RLHF: each line of a file of pairs belongs to one step, by the
 * seed and its number. */
#ifndef SPLIT_H
#define SPLIT_H

#include "../../../zeroflow_llm.h"

enum { SPLIT_STEPS = 3 };

/* Writes the lines of `from`, {"prompt", "chosen", "rejected"}, to DIR/sft.jsonl, as a prompt and
 * its response, or as messages, and as they are to DIR/reward.jsonl and DIR/ppo.jsonl; parts: in
 * what proportions. False with *error: the file, and the line that has no prompt or chosen answer;
 * a step without a line. */
bool split_write(const char *from, const char *dir, const double parts[SPLIT_STEPS], uint64_t seed,
                 zf_error *error);

#endif
