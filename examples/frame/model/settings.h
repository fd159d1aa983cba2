/* The options of a run of training, their rows, and the combinations that are errors. An option is
 * a member of settings and a row in settings_rows; its kind says what else a run does with it
 * (options.h). A sample can have other defaults, and options of its own. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include "../options/device.h"
#include "../options/options.h"
#include "../options/tokenizing.h"

struct sample_model;

typedef struct settings {
    const char *model, *corpus, *vocab, *init, *save, *load, *log, *svg, *report, *batch_file,
        *dump, *dump_grads, *no_fuse, *cost, *save_cost, *recompute, *rendezvous,
        *offload, *offload_dir, *memory, *tile, *data, *tokenizer, *chat, *date,
        *lora;
    int64_t precision, seq, batch, steps, optimizer, schedule, warmup, seed, threads,
        eval_batches, eval_every, save_every, compare_every, keep;
    int64_t ranks, nodes, ranks_per_node, zero, mics, micro_batches, bucket, prefetch,
        quantized_block, loco_reset, loco_bits;
    int64_t freeze_step, var_update_scaler, local_step_scaler,
        local_step_clipper; /* of 1-bit optimizers */
    int64_t weights; /* of CONFIG_WEIGHTS */
    int64_t first_rate; /* 0: the schedule's first step has the rate of step 0 */
    int64_t delay_update; /* the step after which updates are delayed; -1: none is */
    double lr, end_lr, weight_decay, clip, dropout, beta1, beta2, eps, momentum, min_coeff,
        max_coeff, loco_beta, seconds, deadline;
    device_desc device;
    tokenizing words;
    bool quiet, overwrite, alone, hpz, quantized_weights, quantized_gradients, loco;
    bool evaluates; /* nothing is trained: all of --data is held out */
    bool tunes; /* a folder of --model has the first weights, too */
    const void *own; /* the sample's own, or NULL */
} settings;

/* The defaults of most samples. */
settings settings_defaults(void);

enum { SETTINGS_ROWS = 96 };

/* All rows, including those of the sample's own options (the last has name NULL). */
void settings_rows(option_row rows[SETTINGS_ROWS], const struct sample_model *sample,
                   const option_row *own, settings *o);

/* Fills in the model and the vocabulary from a folder that other options name, if they are not
 * given, and with `tunes` --init from the model; `otherwise` is the model if no folder has one. */
void settings_look_into_folders(settings *o, const char *otherwise);

/* Describes a mistake in the combination of options; NULL: none. */
const char *settings_wrong(const settings *o);

/* Reads a number of bytes from 1 on, perhaps with K, M, G or T behind it. */
bool settings_bytes(const char *text, int64_t *bytes);
/* Reads --recompute: "off" (or NULL), "layers", or the maximum of the plan's peak in bytes,
 * optionally with K, M, G or T; false: none of these. */
bool settings_recompute(const char *text, zf_recompute_mode *mode, int64_t *memory);
/* Reads --offload: "off" (or NULL), or KIND=SPACE,... of kinds of zf_offload_desc, each once, and
 * piece=BYTES; false, with SETTINGS_OFFLOAD as the message, for anything else. */
#define SETTINGS_OFFLOAD                                                                           \
    "--offload is off, or optimizer, parameters, gradients or activations, =host or =disk, "       \
    "or piece=BYTES, with ',' between them"
bool settings_offload(const char *text, zf_offload_desc *offload);
/* Some kind lies in this space. */
bool settings_offloads(const zf_offload_desc *d, zf_space space);

/* --cost measure. */
bool settings_measures(const settings *o);

#endif
