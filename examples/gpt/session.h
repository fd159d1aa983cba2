/* A GPT-2 in memory: its graph and its program, for training, evaluation or generation. */
#ifndef GPT_SESSION_H
#define GPT_SESSION_H

#include "../common/device.h"
#include "batch.h"
#include "model.h"

typedef enum gpt_purpose { GPT_TRAIN, GPT_EVALUATE, GPT_GENERATE } gpt_purpose;

typedef struct gpt_session_desc {
    gpt_purpose purpose;
    gpt_config config;
    gpt_shape shape;
    zf_dtype dtype; /* it computes in: f32, bf16 or f16 */
    device_desc device;
    int64_t threads;
    uint64_t seed;
    double weight_decay, clip;
    double beta1, beta2, eps;  /* 0: AdamW's own */
    const char *no_fuse;       /* zf_fuse_desc.without */
    bool keep_gradients;       /* as outputs "gradient/NAME" */
    struct gpt_session *share; /* the parameters are this session's; not for training */
} gpt_session_desc;

typedef struct gpt_session {
    zf_graph *graph;
    zf_backend *backend, *own; /* own: NULL when it is another's */
    zf_program *program;
    gpt_model model;
    gpt_shape shape;
} gpt_session;

/* The step, as the passes make it of a model. */
zf_training gpt_training(const gpt_model *m, const gpt_session_desc *d);

/* False with *error, and then there is nothing to close. */
bool gpt_session_open(gpt_session *s, const gpt_session_desc *d, zf_error *error);
void gpt_session_close(gpt_session *s);

/* The parameters become those at `path`: of a checkpoint, a folder of Hugging Face, or a file of
 * weights. What these lack or have besides is reported. */
bool gpt_session_take(gpt_session *s, const char *path, weights_report *report, zf_error *error);
/* What the weights at such a path say about the model: whether its head is tied. */
bool gpt_config_take(gpt_config *config, const char *path, zf_error *error);

/* How a command computes: the index of a choice "auto|f32|bf16|f16". */
#define GPT_DTYPES "auto|f32|bf16|f16"

/* The model of a folder, of a checkpoint or of Hugging Face, as its config.json and its weights
 * say. */
bool gpt_folder_config(const char *path, gpt_config *config, zf_error *error);
/* A session with its weights, by a desc that has its configuration. dtype 0: what the checkpoint was
 * trained in, else f32. */
bool gpt_folder_open(gpt_session *s, const char *path, gpt_session_desc *d, int64_t dtype,
                     zf_error *error);

/* Writes a batch for training or evaluation. */
zf_status gpt_session_feed(gpt_session *s, const gpt_batch *batch);
/* A scalar output after a step. */
double gpt_session_scalar(gpt_session *s, const char *output);

/* The next token after logits[0..count): the likeliest at temperature 0, else one drawn with
 * probabilities softmax(logits / temperature), by `dice`, which is a different number each time. */
int32_t gpt_sample(const float *logits, int64_t count, double temperature, uint64_t dice);

#endif
