/* The objective of a reward model: of two answers, the chosen one gets the higher score
 * (score.h). */
#ifndef REWARD_H
#define REWARD_H

#include "score.h"

/* The command: trains a model of a folder on pairs (--data); it has the options of finetune, and
 * its own. The whole command line; returns an exit status. */
int reward_command(const sample_model *sample, int argc, char **argv);

/* The command: prints the scores of texts (--data), one a line. */
int score_command(const sample_model *sample, int argc, char **argv);

extern const objective reward_objective;

#endif
