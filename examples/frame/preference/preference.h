/* Training on pairs of answers (Rafailov et al. 2023 and relatives): the objective and its command.
 * The graph is in causal_end (causal.h).
 *
 * The reference is the model before the first step: the base of a new adapter, an adapter as it was
 * loaded, or all parameters. Its log p of each token are computed once, by the program that
 * evaluates, and are kept in checkpoints: no second model is in memory, and the first loss of a
 * pair is ln 2 to the last bit. */
#ifndef PREFERENCE_H
#define PREFERENCE_H

#include "../model/sample.h"

extern const objective preference_objective;

/* The command dpo: the whole command line; an exit status. */
int preference_command(const sample_model *sample, int argc, char **argv);

#endif
