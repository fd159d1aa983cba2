/* A model in memory: its graph and its program, for training, evaluation or answers. */
#ifndef SESSION_H
#define SESSION_H

#include "device.h"
#include "sample.h"

/* How ranks share a step: its global batch is cut into world * micro_batches parts, of which rank r
 * runs part k * world + r as its micro-batch k. Each rank has a session of its own. */
typedef struct sharing {
    const zf_comm *comm;   /* NULL: one rank */
    int64_t micro_batches; /* of a step on each rank; 0: 1 */
    int64_t stage;         /* of ZeRO */
    int64_t bucket;        /* bytes of a bucket of parameters; 0: the default */
    int64_t prefetch;      /* bytes gathered ahead of their use; 0 or less: nothing is */
    const zf_cost *cost;   /* by which it is decided when; NULL: as early as these bytes allow */
    bool measure;          /* the session's own, measured */
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
    const char *no_fuse;         /* zf_fuse_desc.without */
    zf_recompute_mode recompute;
    int64_t memory;      /* that the plan is kept within by recomputation; 0: any */
    zf_offload_desc offload;
    const char *offload_dir; /* of what lies on a disk */
    zf_dtype dtype;      /* in which it computes */
    bool keep_gradients; /* as outputs "gradient/NAME" */
    /* Parameters, their dtype, and the sharing but for micro-batches, are this session's; not for
     * training. */
    struct session *share;
} session_desc;

typedef struct session {
    const sample_model *sample;
    zf_graph *graph;
    zf_backend *backend, *own; /* own: NULL when it is another's */
    zf_program *program;
    zf_tensor lr; /* an input; invalid unless the session trains */
    sample_shape shape;
    sharing sharing;
    int32_t rank, world;
    zf_cost cost; /* measured */
    zf_offload_desc offload;
    zf_dtype dtype;
    bool buckets;      /* parameters lie in buckets: zf_zero was run */
    int32_t *labelled; /* room for positions and labels of the part that is fed, [2, predictions] */
} session;

/* The step of one rank, as the passes make it of a graph. */
zf_training session_training(zf_graph *g, const session_desc *d);

/* False with *error, and then there is nothing to close. */
bool session_open(session *s, const session_desc *d, zf_error *error);
void session_close(session *s);

/* Writes an input; one that the model does not have is passed over. */
zf_status session_write(session *s, const char *input, const void *data, size_t bytes);

/* This rank's parts of a global batch: runs all but the last, which it writes for zf_step. The
 * losses are means over the batch; sums: they are sums. */
zf_status session_feed(session *s, const void *batch, bool sums);

/* A scalar output after a step; 0 for one that the model does not have. */
double session_scalar(session *s, const char *output);

/* Losses of held-out batches 0, 1, ...: means over all labels and pairs, the same on all ranks. */
bool session_score(session *s, const dataset *d, int64_t batches, sample_score *score,
                   zf_error *error);
/* The losses of the batch of a step. */
bool session_score_step(session *s, const dataset *d, int64_t step, sample_score *score,
                        zf_error *error);

/* Steps that were skipped because gradients were not finite; 0 without a loss scale. */
int64_t session_skipped(session *s);

/* ------------------------------------------- models of folders: of a checkpoint or transformers */

/* The parameters become those at `path`: of a checkpoint, a folder of Hugging Face, or a file of
 * weights. What these lack or have besides is reported. */
bool session_take(session *s, const char *path, weights_report *report, zf_error *error);
/* What the weights at such a path say about the model: whether its head is tied. */
bool session_config_take(const sample_model *sample, void *config, const char *path,
                         zf_error *error);

/* How a command computes: the index of a choice. */
#define SESSION_DTYPES "auto|f32|bf16|f16"

/* The model of a folder, as its config.json and its weights say. */
bool session_config(const sample_model *sample, const char *path, void *config, zf_error *error);
/* A session with its weights, by a desc that has its configuration. dtype: of SESSION_DTYPES; auto
 * is what the checkpoint was trained in, else f32. */
bool session_open_folder(session *s, const char *path, session_desc *d, int64_t dtype,
                         zf_error *error);

#endif
