/* The options of a run of training: the passes' (zf_training_options), and those of data, schedule,
 * ranks and files. An option is a member of settings and a row in settings.c. From the rows come
 * the command line, --help, what a checkpoint notes and what ranks compare. A sample can have other
 * defaults, and options of its own. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include "../options/device.h"
#include "../folder/tokenizing.h"
#include "shape_phases.h"

struct sample_model;

enum { SETTINGS_DEFAULTS = 24 }; /* of a sample and of all, at most */

typedef struct settings {
    const char *model, *corpus, *vocab, *init, *save, *load, *log, *svg, *report, *batch_file,
        *dump, *dump_grads, *cost, *save_cost, *rendezvous, *offload_dir, *data, *tokenizer, *chat,
        *chat_vars, *date, *adapter, *tensorboard, *report_html, *trace, *deepspeed_config,
        *deepspeed_version;
    int64_t seq, batch, steps, schedule, warmup, first_rate, seed, threads, eval_batches, eval_every,
        save_every, compare_every, keep, ranks, nodes, ranks_per_node, mics, memory;
    int64_t weights; /* of ZF_CONFIG_WEIGHTS */
    int64_t tensorboard_names; /* zf_metric_names */
    int64_t warmup_form, schedule_steps, lr_every, lr_fall;
    double start_lr, lr_rate;
    double lr, end_lr, dropout, seconds, deadline;
    device_desc device;
    tokenizing words;
    bool quiet, overwrite, alone, pack, check, lr_stairs, explain, deepspeed_loose;
    /* As it was given: a 0 stands for the default. The session sets what depends on the graph */
    zf_training training;
    struct zf_adapter *adapts; /* that of --adapter, which training.lora points to */
    zf_deepspeed deepspeed; /* of --deepspeed-config */
    zf_option_texts phase;  /* as they are given (shape_phases.h) */
    curriculum curriculum;
    int64_t longest; /* tokens of an example in any phase; 0: seq */
    zf_layer_drop_desc layer_drop;
    zf_block_mask_desc blocks;        /* of --attention, */
    char attention[ZF_CONFIG_LAYOUT]; /* and its text; "": it is not given */
    char *arguments; /* copies of the command line, which texts of options point to */
    char defaults[SETTINGS_DEFAULTS][40]; /* and of defaults */
    int32_t default_count;
    const void *own; /* the sample's own, or NULL */
    bool evaluates;  /* nothing is trained: all of --data is held out */
    bool tunes;      /* a folder of --model has the first weights, too */
} settings;

/* A default of one sample, for an option that has an effect and is not given. */
typedef struct settings_default {
    const char *option, *text;
} settings_default;

/* What a sample passes. */
typedef struct settings_desc {
    const settings_default *defaults; /* the last has option NULL; or NULL */
    zf_options own;                   /* rows NULL: it has no options of its own */
    /* Sets what one option stands for: phases, and *list of defaults before the sample's; NULL:
     * nothing. False with *error */
    bool (*choose)(void *own, settings *o, const settings_default **list, zf_error *error);
    /* Sets what is not given in own.desc where its default depends on other options; or NULL */
    void (*complete)(void *own, const settings *o);
    bool tunes;
    const char *usage; /* of --help; NULL: that of pretrain or finetune */
} settings_desc;

/* The tables of a run, in the order of --help. */
enum { SETTINGS_TABLES = 7 };
typedef struct settings_tables {
    zf_options all[SETTINGS_TABLES];
    int32_t count;
} settings_tables;
settings_tables settings_tables_of(settings *o, const struct sample_model *sample,
                                   const settings_desc *desc);

/* Reads a command line, argv[0] being the command: flags, folders that other options name (the
 * model, the vocabulary, with `tunes` --init), defaults, and the rules of the tables. False with
 * *error. */
bool settings_read(settings *o, settings_tables *tables, const struct sample_model *sample,
                   const settings_desc *desc, int argc, char **argv, zf_error *error);

/* Sets what --help shows as the defaults of a sample. False with *error. */
bool settings_show(settings *o, const settings_tables *tables, const settings_desc *desc,
                   zf_error *error);

void settings_free(settings *o);

/* The learning rate over the steps. */
zf_schedule settings_schedule(const settings *o);
/* What a user must know of --deepspeed-config. */
void settings_tell(const settings *o);
/* The parts of a batch on each rank. */
int64_t settings_micro_batches(const settings *o);
/* --cost measure. */
bool settings_measures(const settings *o);
/* The folder of the weights that training begins with, also where it goes on; NULL: they are
 * random. */
const char *settings_first(const settings *o);
/* --lora is given. */
bool settings_adapts(const settings *o);
/* Some kind lies in this space. */
bool settings_offloads(const zf_offload_desc *d, zf_space space);

#endif
