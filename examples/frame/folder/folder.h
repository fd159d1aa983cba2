/* Options of the commands that use the model of a folder. A command lists the tables that it
 * has. */
#ifndef FOLDER_H
#define FOLDER_H

#include "../../../zeroflow.h"

/* The dtype in which a command computes. */
#define FOLDER_DTYPES "auto|f32|bf16|f16"

typedef struct folder_options {
    const char *load, *adapter, *tokenizer; /* folders */
    int64_t dtype;                          /* the index in FOLDER_DTYPES */
    int64_t weights;                        /* the index in ZF_CONFIG_WEIGHTS */
    int64_t threads;                        /* 0: all processors that the process may use */
    bool average;                           /* of the weights, by --ema, in place of them */
} folder_options;

/* load, model, which is the same, and average; adapter; tokenizer; dtype and threads; weights. */
extern const zf_option folder_load_rows[], folder_adapter_rows[], folder_tokenizer_rows[],
    folder_compute_rows[], folder_weights_rows[];

/* What a command says that was given no folder. */
extern const char folder_is_missing[];

/* The worker threads: o->threads, or all processors. */
int64_t folder_threads(const folder_options *o);

#endif
