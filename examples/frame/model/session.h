/* A model in memory: its graph and its program, for training, evaluation or answers. */
#ifndef SESSION_H
#define SESSION_H

#include "../options/device.h"
#include "sample.h"

/* How ranks share a step: its global batch is split into world * micro_batches parts. Part k *
 * world + r is micro-batch k of rank r. Each rank has a session of its own. */
typedef struct sharing {
    const zf_comm *comm;   /* NULL: one rank */
    int64_t micro_batches; /* of a step on each rank; 0: 1 */
    int64_t stage;         /* of ZeRO */
    int32_t nodes;         /* in which the ranks are; 0: 1 */
    bool hpz, mics, quantized_weights, quantized_gradients, loco; /* of zf_zero_desc */
    double loco_beta; /* 0: 0 */
    int64_t loco_reset, loco_bits, quantized_block;
    int64_t bucket;        /* bytes of a bucket of parameters; 0: the default */
    int64_t tile;          /* bytes of a weight that is not cut (zf_tile); 0: none is */
    int64_t prefetch;      /* bytes gathered ahead of their use; 0 or less: none */
    const zf_cost *cost;   /* rates that decide when; NULL: as early as these bytes allow */
    bool measure;          /* measures rates of its own */
} sharing;

typedef struct session_desc {
    const sample_model *sample;
    sample_purpose purpose;
    const void *config; /* of this sample */
    sample_shape shape; /* of one part */
    sharing sharing;
    device_desc device;
    int64_t threads;
    uint64_t seed;
    zf_optimizer optimizer;
    double weight_decay, clip;
    double beta1, beta2, eps;    /* of AdamW, LAMB, Lion; 0: the optimizer's own */
    double momentum;             /* of SGD */
    double min_coeff, max_coeff; /* of LAMB; 0: its own */
    int64_t freeze_step;         /* of 1-bit optimizers; 0/1 Adam has these as well: */
    int64_t var_update_scaler, local_step_scaler, local_step_clipper; /* 0: its own */
    const char *no_fuse;         /* zf_fuse_desc.without */
    zf_recompute_mode recompute;
    int64_t memory; /* limit of the plan's bytes, kept by recomputing; 0: none */
    zf_offload_desc offload;
    bool delay;         /* updates are delayed (zf_delay), */
    int64_t delay_from; /* from the step after this one on */
    const char *offload_dir; /* for values on a disk */
    int64_t fit; /* bytes into which a step is fitted (zf_training.fit); 0: any */
    zf_dtype dtype;      /* in which it computes */
    /* The base is frozen, and this adapter stands beside it; NULL, or rank 0: none. It must outlive
     * the session */
    const zf_lora_desc *lora;
    const char *adapter; /* of session_open_folder: the folder of an adapter, or NULL */
    bool keep_gradients; /* as outputs "gradient/NAME" */
    /* The session whose parameters, dtype and sharing (except micro-batches) this one uses, and
     * whose caches, if it has any; not for training. */
    struct session *share;
} session_desc;

enum { SESSION_VARIANTS = 4 };

typedef struct session {
    const sample_model *sample;
    zf_graph *graphs[SESSION_VARIANTS]; /* of all variants of the step, and their programs: */
    zf_program *programs[SESSION_VARIANTS];
    int32_t variants;
    zf_training training; /* the description of the last one, which says when it is whose turn */
    zf_graph *graph; /* those of the step in progress */
    zf_backend *backend, *own; /* own: NULL when it belongs to another session */
    zf_backend *host; /* beside a device: what computes in host memory; NULL: `backend` */
    zf_program *program;
    zf_tensor lr; /* an input; invalid unless the session trains */
    sample_shape shape;
    sharing sharing;
    int32_t rank, world;
    zf_cost cost; /* measured */
    zf_offload_desc offload;
    zf_choice choice; /* of session_desc.fit */
    zf_lora_desc lora;
    struct adapter_reader *adapter; /* that of session_open_folder */
    zf_dtype dtype;
    bool buckets;      /* parameters are in buckets: zf_zero was run */
    bool keeps;        /* gradients, which are read after others that share its parameters ran */
    int32_t *labelled; /* room for positions and labels of the current part, [2, predictions] */
} session;

/* The description of one rank's step, for zf_passes. */
zf_training session_training(zf_graph *g, const session_desc *d);

/* If weights of few bits are asked for, the graph has some. False with *error. */
bool session_has_blocks(zf_graph *g, const session_desc *d, zf_error *error);

/* False with *error, and then there is nothing to close. */
bool session_open(session *s, const session_desc *d, zf_error *error);
void session_close(session *s);
/* When `done` steps have been made: takes the variant of the next one. */
void session_turn(session *s, int64_t done);

/* Writes an input; ignores one that the model does not have. */
zf_status session_write(session *s, const char *input, const void *data, size_t bytes);

/* Runs this rank's parts of a global batch, except the last, which it writes for zf_step. The
 * losses are means over the batch, or with `sums` sums. */
zf_status session_feed(session *s, const void *batch, bool sums);

/* A scalar output after a step; 0 for one that the model does not have. */
double session_scalar(session *s, const char *output);

/* Losses of held-out batches 0, 1, ..., at most as many as there are: means over all labels and pairs, the same on all ranks. */
bool session_score(session *s, const dataset *d, int64_t batches, sample_score *score,
                   zf_error *error);
/* The losses of the batch of a step. */
bool session_score_step(session *s, const dataset *d, int64_t step, sample_score *score,
                        zf_error *error);

/* Steps that were skipped because gradients were not finite; 0 without a loss scale. */
int64_t session_skipped(session *s);

/* ------------------------------------------- models of folders: of a checkpoint or transformers */

/* Reads the parameters at `path`: a checkpoint, a folder of Hugging Face, or a file of weights.
 * Missing and additional ones are reported. */
bool session_take(session *s, const char *path, weights_report *report, zf_error *error);
/* Sets what the weights at such a path show about the model: whether its head is tied. */
bool session_config_take(const sample_model *sample, void *config, const char *path,
                         zf_error *error);

/* The dtype in which a command computes: the index of a choice. */
#define SESSION_DTYPES "auto|f32|bf16|f16"

/* The model of a folder, according to its config.json and its weights. */
bool session_config(const sample_model *sample, const char *path, void *config, zf_error *error);
/* A session with a folder's weights, and those of an adapter, from a desc with its configuration.
 * dtype: of SESSION_DTYPES; auto is the one the checkpoint was trained in, else f32. */
bool session_open_folder(session *s, const char *path, session_desc *d, int64_t dtype,
                         zf_error *error);

#endif
