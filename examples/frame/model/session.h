/* A model in memory: its graph and its program, for training, evaluation or answers. */
#ifndef SESSION_H
#define SESSION_H

#include "../options/device.h"
#include "shape_phases.h"
#include "sample.h"

/* The adapter of a session that shares parameters. */
typedef enum session_adapter {
    SESSION_OWN,  /* that of the other session */
    SESSION_BASE, /* none: what is computed is the base, whatever the adapter has become */
    /* That of the other session with the values that it has now: the first such session copies
     * them, to an adapter called "ref", and later ones use these, which checkpoints hold */
    SESSION_FIRST,
    /* One of its own, as training.lora says, or parameters of its own (sample_shape.scope): what is
     * not in the store has first values. It may be trained, with a name of the training */
    SESSION_NEXT
} session_adapter;

/* With several ranks the global batch of a step is split into ranks x micro-batches parts. Part k *
 * ranks + r is micro-batch k of rank r. Each rank has a session of its own. */
typedef struct session_desc {
    const sample_model *sample;
    sample_purpose purpose;
    const void *config; /* of this sample */
    sample_shape shape; /* of one part */
    /* With phases: the shape of each phases.shapes, in its place; else NULL. They must outlive
     * the session */
    const sample_shape *shapes;
    const shape_phases *phases;
    /* The passes. The session sets loss, lr, variant, backend, zero.world and zero.store. clip 0:
     * the norm of the gradients is an output all the same */
    zf_training training;
    const zf_comm *comm; /* NULL: one rank */
    bool measure;        /* training.cost is measured */
    device_desc device;
    int64_t threads;
    uint64_t seed;
    const char *offload_dir; /* for values on a disk */
    int64_t fit;         /* bytes into which a step is fitted (zf_training.fit); 0: any */
    const char *adapter; /* of session_open_folder: the folder of an adapter, or NULL */
    bool average;        /* of session_open_folder: parameters take the averages of --ema */
    /* The session whose parameters, dtype, adapter and zf_zero_desc (except micro_batches) this one
     * uses, and whose caches, if it has any; not for training, except by SESSION_NEXT. */
    struct session *share;
    /* The session in whose memory, and on whose backend, the values of this one's steps lie, in
     * turns with its own, over other parameters; without `share` */
    struct session *turns;
    size_t reserve; /* bytes of a step, at least: those of a larger one that shares its memory */
    bool plan_only; /* nothing is allocated (zf_store_desc.plan_only), also of those that share it */
    bool hold; /* of SAMPLE_GENERATE with `share`: parameters are gathered by session_hold */
    session_adapter with; /* the adapter, with `share` */
} session_desc;

enum { SESSION_VARIANTS = 4 * SHAPE_PHASES };

typedef struct session {
    const sample_model *sample;
    zf_graph *graphs[SESSION_VARIANTS]; /* a graph for each variant of the step */
    zf_program *programs[SESSION_VARIANTS]; /* a program for each variant of the step */
    zf_store *planned;  /* of session_desc.plan_only, without `share`; or NULL */
    bool plans;         /* it only plans, or shares with one that does */
    zf_graph *gathers;  /* of session_desc.hold: the graph, */
    zf_program *gather; /* and the program that session_hold runs; NULL: it has nothing to gather */
    int32_t variants; /* of the optimizer times shapes: number of the first * shapes + shape */
    const sample_shape *shapes; /* of session_desc, as phases */
    const shape_phases *phases;
    zf_training training; /* that of a variant; zf_variant_at gives the variant of a step */
    zf_graph *graph; /* of the variant in progress */
    zf_backend *backend, *own; /* own: NULL when it belongs to another session */
    zf_backend *host; /* with a device: what computes in host memory; NULL: `backend` */
    zf_program *program;
    zf_tensor lr; /* an input; invalid unless the session trains */
    sample_shape shape;
    const zf_comm *comm; /* NULL: one rank */
    int32_t rank, world;
    int64_t micro_batches;
    zf_cost cost; /* measured */
    zf_choice choice; /* of session_desc.fit */
    struct zf_adapter *adapter; /* that of session_open_folder */
    zf_dtype dtype;
    device_desc device; /* of the desc, as are threads */
    int64_t threads;
    bool buckets;      /* parameters are in buckets: zf_zero was run */
    bool keeps;        /* gradients, which are read after others that share its parameters ran */
    const float *reference; /* of objective.refer; NULL: none, or not yet */
    int32_t *labelled; /* room for positions and labels of the current part, [2, predictions] */
} session;

/* Sets an option of the selected optimizer, "weight-decay", which it must have. */
void session_set(zf_training *t, const char *option, double value);

/* What an adapter keeps: the modules `head`, as "score", and those in `keep`, by names of a graph in
 * which these are under `scope`, or NULL: as they are. To be freed; NULL with *error. */
char *session_keep(const char *head, const char *keep, const char *scope, zf_error *error);

/* What names of adapters of SESSION_NEXT begin with that only score: checkpoints do not have
 * them. */
#define SESSION_JUDGE "reward"
/* Whether an adapter in the store of a session is one of these. NULL: it is none. */
bool session_is_judge(const session *s, const char *adapter);

/* If weights of few bits are asked for, the graph has some. False with *error. */
bool session_has_blocks(zf_graph *g, const session_desc *d, zf_error *error);
/* Which matrices of a model with weights of few bits stay floats: ", but for those of up_proj,
 * whose rows ..."; "" where none does, or all do. Returns text, of so many bytes. */
const char *session_floats(zf_graph *g, char *text, size_t bytes);
/* The same as a line of standard error, if some do. */
void session_tell_floats(const session *s);

/* False with *error, and then there is nothing to close. */
bool session_open(session *s, const session_desc *d, zf_error *error);
void session_close(session *s);
/* When `done` steps have been made: takes the variant of the next one. */
void session_turn(session *s, int64_t done);

/* Of a session with session_desc.hold: gathers the parameters that it reads, as they are now. All
 * ranks must call it; then they may make different numbers of steps, until a session that trains
 * makes one. False with *error. */
bool session_hold(session *s, zf_error *error);

/* Writes an input; ignores one that the model does not have. */
zf_status session_write(session *s, const char *input, const void *data, size_t bytes);

/* Runs this rank's parts of a global batch, except the last, which it writes for zf_step. The
 * losses are means over the batch, or with `sums` sums. */
zf_status session_feed(session *s, const void *batch, bool sums);

/* Numbers of all parameters, of all ranks that share the model. */
int64_t session_parameters(const session *s);

/* A scalar output after a step; 0 for one that the model does not have. */
double session_scalar(session *s, const char *output);

/* Losses of held-out batches 0, 1, ..., at most as many as there are: means over all labels and
 * pairs, the same on all ranks. */
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
bool session_take(session *s, const char *path, zf_weights_report *report, zf_error *error);
/* Sets what the weights at such a path show about the model: whether its head is tied. */
bool session_config_take(const sample_model *sample, void *config, const char *path,
                         zf_error *error);

/* Whether an adapter is one of the weights at `base`: that of a run of ours knows their digest.
 * Else false with *error. */
bool session_fits_base(const char *adapter, const char *base, zf_error *error);

/* The model of a folder, according to its config.json and its weights. adapter: one of it, whose
 * config.json, if it has one, says which blocks tokens see; NULL: none. */
bool session_config(const sample_model *sample, const char *path, const char *adapter, void *config,
                    zf_error *error);
/* A session with a folder's weights, and those of an adapter, from a desc with its configuration.
 * It does not train: a weight that is missing or not used is an error.
 * dtype: an index in FOLDER_DTYPES; auto is the one the checkpoint was trained in, else f32. */
bool session_open_folder(session *s, const char *path, session_desc *d, int64_t dtype,
                         zf_error *error);

#endif
