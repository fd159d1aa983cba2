/* The options of a run of training that samples have in common, their rows, and what they must not
 * say together. A sample names the options that it offers, and gives rows of its own for others, or
 * where its own says something else. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include "device.h"
#include "options.h"
#include "tokenizing.h"

/* As members, so that a sample's own settings can begin with them. */
#define SETTINGS_MEMBERS                                                                           \
    const char *model, *corpus, *vocab, *init, *save, *load, *log, *report, *batch_file, *dump,    \
        *dump_grads, *no_fuse;                                                                     \
    int64_t precision, seq, batch, steps, schedule, warmup, seed, threads, eval_batches,           \
        save_every, keep;                                                                          \
    double lr, end_lr, weight_decay, clip, dropout, beta1, beta2, eps;                             \
    int64_t first_rate; /* 0: the schedule's first step has the rate of step 0 */                  \
    device_desc device;                                                                            \
    tokenizing words;                                                                              \
    bool quiet, overwrite;

typedef struct settings {
    SETTINGS_MEMBERS
} settings;

enum { SETTINGS_ROWS = 96 };

/* rows: those of `names` ("model corpus ..."), in this order, of `own` (the last has name NULL) or
 * else of the frame, and one with name NULL. */
void settings_rows(option_row rows[SETTINGS_ROWS], const char *names, const option_row *own,
                   settings *o);

/* A folder that options name has the model and the vocabulary of which they say nothing;
 * `otherwise` is the model where none does. */
void settings_look_into_folders(settings *o, const char *otherwise);

/* What is wrong with the options as a whole, or NULL. */
const char *settings_no_text(const settings *o); /* to train on */
const char *settings_nowhere_to_save(const settings *o);

#endif
