/* What the samples' frame asks of a causal language model: its configuration, its graph, and its
 * weights as Hugging Face's files have them. All else that a sample of one needs is lm_*.c: text
 * and batches, sessions, checkpoints, and the commands pretrain, generate and export.
 *
 *     examples/gpt/model.c    gpt_kind      a model
 *     examples/gpt/main.c                   its commands
 */
#ifndef LM_H
#define LM_H

#include "weights.h"

typedef struct lm_shape {
    int64_t batch, sequence;
    bool masked; /* with attention_mask */
} lm_shape;

typedef struct lm_model {
    zf_tensor input_ids;      /* i32 [B, T] */
    zf_tensor attention_mask; /* u8 [B, T], 1: a token; invalid unless the shape is masked */
    /* Of training and evaluation: */
    zf_tensor labels;      /* i32 [B, T], the token behind each; -100: none */
    zf_tensor loss_weight; /* f32 []: 1 / labels of the batch */
    zf_tensor lr;          /* f32 [] */
    zf_tensor loss;        /* output, f32 [] */
    /* Of generation: */
    zf_tensor last;   /* i32 [B], b * T + t of the token to be followed */
    zf_tensor logits; /* output, f32 [B, vocab], of the one that follows */
} lm_model;

enum { LM_DROPOUTS = 4 };

/* The members of a configuration that the frame reads and sets. */
typedef struct lm_facts {
    int64_t *vocab, *positions;
    int64_t *tied; /* 0: the head has a weight of its own, not that of the word embedding */
    int64_t *end;  /* the id of the token in front of a text and behind it; -1: not known */
    double *dropouts[LM_DROPOUTS]; /* the first is what a checkpoint notes; NULL behind the last */
} lm_facts;

typedef struct lm_kind {
    const char *program;   /* "gpt" */
    const char *title;     /* "GPT-2" */
    const char *models;    /* --model's help */
    const char *otherwise; /* --model's default */
    size_t config_bytes;   /* of a configuration, at most LM_CONFIG; it has no pointers */
    /* Of a name, the path of a config.json, or a folder with one. False with *error. */
    bool (*load)(const char *name_or_path, void *config, zf_error *error);
    /* What the weights at `path` say about the model. */
    bool (*fit)(void *config, const char *path, zf_error *error);
    /* A config.json: a writer whose text it is, to be freed; NULL out of memory. */
    zf_json_writer *(*json)(const void *config);
    lm_facts (*facts)(void *config);
    /* The forward graph up to the loss; next: up to the logits of one token that follows each
     * sequence. A mistake is the graph's error. */
    lm_model (*build)(zf_graph *g, const void *config, const lm_shape *shape, bool next);
    /* Weights, in and out, under Hugging Face's names (weights.h). gradients: those that outputs
     * "gradient/NAME" keep. False with *error. */
    bool (*import)(zf_program *program, zf_graph *g, const char *path, weights_report *report,
                   zf_error *error);
    bool (*export)(zf_program *program, zf_graph *g, const char *path, bool gradients,
                   zf_dtype dtype, zf_error *error);
    bool (*is_head)(const char *param); /* of a checkpoint, which another one may lack */
} lm_kind;

/* Room for a configuration of any kind. */
enum { LM_CONFIG = 512 };
typedef union lm_config {
    char bytes[LM_CONFIG];
    double number; /* aligned for what is in it */
    int64_t integer;
} lm_config;

/* Commands: each takes the whole command line, reads its own options, returns an exit status. */
int lm_pretrain(const lm_kind *kind, int argc, char **argv);
int lm_generate(const lm_kind *kind, int argc, char **argv);
int lm_export(const lm_kind *kind, int argc, char **argv);

#endif
