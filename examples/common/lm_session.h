/* A language model in memory: its graph and its program, for training, evaluation or generation. */
#ifndef LM_SESSION_H
#define LM_SESSION_H

#include "device.h"
#include "lm.h"
#include "lm_batch.h"

typedef enum lm_purpose { LM_TRAIN, LM_EVALUATE, LM_GENERATE } lm_purpose;

typedef struct lm_session_desc {
    const lm_kind *kind;
    lm_purpose purpose;
    const void *config; /* of this kind */
    lm_shape shape;
    zf_dtype dtype; /* it computes in: f32, bf16 or f16 */
    device_desc device;
    int64_t threads;
    uint64_t seed;
    double weight_decay, clip;
    double beta1, beta2, eps;  /* 0: AdamW's own */
    const char *no_fuse;       /* zf_fuse_desc.without */
    bool keep_gradients;       /* as outputs "gradient/NAME" */
    struct lm_session *share; /* the parameters are this session's; not for training */
} lm_session_desc;

typedef struct lm_session {
    const lm_kind *kind;
    zf_graph *graph;
    zf_backend *backend, *own; /* own: NULL when it is another's */
    zf_program *program;
    lm_model model;
    lm_shape shape;
} lm_session;

/* The step, as the passes make it of a model. */
zf_training lm_training(const lm_model *m, const lm_session_desc *d);

/* False with *error, and then there is nothing to close. */
bool lm_session_open(lm_session *s, const lm_session_desc *d, zf_error *error);
void lm_session_close(lm_session *s);

/* The parameters become those at `path`: of a checkpoint, a folder of Hugging Face, or a file of
 * weights. What these lack or have besides is reported. */
bool lm_session_take(lm_session *s, const char *path, weights_report *report, zf_error *error);
/* What the weights at such a path say about the model: whether its head is tied. */
bool lm_config_take(const lm_kind *kind, void *config, const char *path, zf_error *error);

/* How a command computes: the index of a choice "auto|f32|bf16|f16". */
#define LM_DTYPES "auto|f32|bf16|f16"

/* The model of a folder, of a checkpoint or of Hugging Face, as its config.json and its weights
 * say. */
bool lm_folder_config(const lm_kind *kind, const char *path, void *config, zf_error *error);
/* A session with its weights, by a desc that has its configuration. dtype 0: what the checkpoint
 * was trained in, else f32. */
bool lm_folder_open(lm_session *s, const char *path, lm_session_desc *d, int64_t dtype,
                     zf_error *error);

/* Writes a batch for training or evaluation. */
zf_status lm_session_feed(lm_session *s, const lm_batch *batch);
/* A scalar output after a step. */
double lm_session_scalar(lm_session *s, const char *output);

/* The next token after logits[0..count): the likeliest at temperature 0, else one drawn with
 * probabilities softmax(logits / temperature), by `dice`, which is a different number each time. */
int32_t lm_sample(const float *logits, int64_t count, double temperature, uint64_t dice);

#endif
