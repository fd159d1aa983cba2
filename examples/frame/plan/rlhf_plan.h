/* The command zf-plan rlhf: the bytes of each phase of an iteration of grpo on each of N ranks. */
#ifndef RLHF_PLAN_H
#define RLHF_PLAN_H

#include "../model/sample.h"

/* argv[0] is "rlhf"; an exit status: 0 if there is a plan that fits, 1 if there is none, 2 for bad
 * usage. */
int rlhf_plan_command(const sample_model *sample, int argc, char **argv);

#endif
