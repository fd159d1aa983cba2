/* A BERT in memory: its graph, its program, its inputs; what training, evaluation and filling in
 * share. */
#ifndef BERT_SESSION_H
#define BERT_SESSION_H

#include "../common/device.h"
#include "batch.h"
#include "model.h"
#include "tokenizer.h"

/* How ranks share a step: its global batch is cut into world * micro_batches parts, of which rank r
 * runs part k * world + r as its micro-batch k. Each rank has a session of its own. */
typedef struct bert_sharing {
    const zf_comm *comm;   /* NULL: one rank */
    int64_t micro_batches; /* of a step on each rank; 0: 1 */
    int64_t stage;         /* of ZeRO */
    int64_t bucket;        /* bytes of a bucket of parameters; 0: the default */
    int64_t prefetch;      /* bytes gathered ahead of their use; -1: nothing is */
    const zf_cost *cost;   /* by which it is decided when; NULL: as early as these bytes allow */
    bool measure;          /* the session's own, measured */
} bert_sharing;

typedef struct bert_session_desc {
    bert_config config;
    bert_shape shape; /* of one part */
    bert_sharing sharing;
    device_desc device;
    int64_t threads;
    uint64_t seed;
    bool train; /* else: forward only */
    zf_optimizer optimizer;
    double weight_decay, clip;
    double beta1, beta2, eps;    /* of AdamW and LAMB; 0: the optimizer's own */
    double momentum;             /* of SGD */
    double min_coeff, max_coeff; /* of LAMB; 0: its own */
    const char *no_fuse;         /* zf_fuse_desc.without */
    zf_recompute_mode recompute;
    int64_t memory; /* that the plan is kept within by recomputation; 0: any */
    zf_dtype dtype; /* in which it computes */
    bool keep_gradients, keep_logits;
    /* Parameters, and the sharing but for micro-batches, are this session's; forward only, no
     * dropout */
    struct bert_session *share;
} bert_session_desc;

typedef struct bert_session {
    zf_graph *graph;
    zf_backend *backend; /* of its own, NULL when shared */
    zf_program *program;
    bert_model model;
    bert_shape shape;
    bert_sharing sharing;
    int32_t rank, world;
    zf_cost cost; /* measured */
    zf_dtype dtype;
    bool buckets;                /* parameters lie in buckets: zf_zero was run */
    int32_t *positions, *labels; /* of the part under way, [shape.predictions] */
} bert_session;

/* "off" (or NULL), "layers", or the bytes that the peak of the plan must not exceed, perhaps with K,
 * M, G or T behind them; false: it is none of these. */
bool bert_recompute(const char *text, zf_recompute_mode *mode, int64_t *memory);

/* The step of one rank, as the passes make it of a model. */
zf_training bert_training(const bert_model *m, const bert_session_desc *d);

/* False with *error, and then there is nothing to close. */
bool bert_session_open(bert_session *s, const bert_session_desc *d, zf_error *error);
void bert_session_close(bert_session *s);

/* Writes a batch into the inputs. labelled, pairs: counts of the global batch, whose mean the
 * losses are. */
zf_status bert_session_feed(bert_session *s, const bert_batch *batch, double labelled,
                            double pairs);

/* This rank's parts of a global batch: runs all but the last, which it writes for zf_step. */
zf_status bert_session_feed_parts(bert_session *s, const bert_batch *global, double labelled,
                                  double pairs);

/* One of the scalar outputs after a step; 0 for one that the model does not have. */
double bert_session_scalar(bert_session *s, zf_tensor output);

/* Steps that were skipped because gradients were not finite; 0 without a loss scale. */
int64_t bert_session_skipped(bert_session *s);

/* Losses of global batches 0, 1, ... of held-out examples: means over all labelled positions and
 * pairs, the same on all ranks. */
typedef struct bert_score {
    double mlm_loss, mlm_accuracy, nsp_loss;
    int64_t labelled;
} bert_score;
bool bert_session_score(bert_session *s, const bert_examples *held_out, int64_t batches,
                        bert_score *score, zf_error *error);

/* The five best guesses for one [MASK]. */
enum { BERT_GUESSES = 5 };
typedef struct bert_guess {
    int32_t token[BERT_GUESSES];
    double probability[BERT_GUESSES];
} bert_guess;

/* Guesses for the labelled positions of the batch that has been fed, among the ids below `tokens`
 * (a model may have room for more than its vocabulary holds); s was opened with keep_logits. */
bool bert_session_guess(bert_session *s, int64_t positions, int64_t tokens, bert_guess *guesses,
                        zf_error *error);

/* Puts ids (with [CLS], [SEP]) into batch row 0, the [MASK] positions labelled 0. Returns how many
 * there are, -1 when the text is too long. */
int64_t bert_fill_batch(bert_batch *batch, const bert_vocab *vocab, const char *text);

#endif
