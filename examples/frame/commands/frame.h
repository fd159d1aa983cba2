/* The commands that every sample of training has. Each takes the whole command line, reads its own
 * options and returns an exit status. */
#ifndef FRAME_H
#define FRAME_H

#include "../model/sample.h"
#include "../model/settings.h"

int pretrain_command(const sample_model *sample, const settings_desc *desc, int argc, char **argv);
/* The options of examples (--data) of a command that reads a checkpoint, over `settings`. */
extern const zf_option frame_examples_rows[];
/* Losses of a checkpoint on the held-out part of a text. */
int evaluate_command(const sample_model *sample, int argc, char **argv);
/* The same with options of the sample's own: settings.own of its data. */
int evaluate_command_with(const sample_model *sample, zf_options own, int argc, char **argv);
/* Writes the weights of a checkpoint as transformers reads them; merge_command, with those of an
 * adapter added to them. */
int export_command(const sample_model *sample, int argc, char **argv);
int merge_command(const sample_model *sample, int argc, char **argv);

#endif
