/* What an iteration trains on: answers, their rewards, and what the steps take of them. */
#ifndef EXPERIENCE_H
#define EXPERIENCE_H

#include "../data/causal_batch.h"
#include "../model/decoder.h"
#include "../score/model_reward.h"
#include "phases.h"
#include "policy_options.h"

/* What is alike in all iterations. */
typedef struct experience_desc {
    const policy_options *o;
    const settings *run;
    const zf_prompts *data, *held_out; /* held_out: NULL: none */
    causal_tokens text; /* of --ptx, or none */
    const zf_answer_desc *how;
    zf_rewards *rewards;
    const model_rewards *models; /* of these rewards, over the policy's base; NULL: none */
    uint64_t seed;
    int64_t batch, sequence; /* answers of a step; tokens of a row */
    const void *config;      /* of the sample */
    const char *no_fuse;     /* fusions that are left out */
    bool reference;          /* there is one: the base of an adapter, */
    bool first;              /* or the adapter as it was loaded, */
    bool copy;               /* or a copy of the weights of --init */
} experience_desc;

/* Numbers of an iteration, over all answers. */
typedef struct experience_log {
    /* mean; mean deviation of groups, of groups of one that of all; share of groups with equal
     * rewards */
    double reward, deviation, no_signal;
    double kl1, kl3;               /* to the reference, of a token; NaN without one */
    double entropy, length, ended; /* of a token; tokens; share that has ended by itself */
    double mismatch;               /* mean |log p - sampled| of a token */
    double redrawn;  /* groups that were drawn anew, as a share of all */
    double held_out; /* mean reward of held-out prompts; NaN in other iterations */
    double held_out_length, held_out_ended; /* of their answers, as length and ended */
} experience_log;

/* [answers], [answers, sequence]. All ranks have all of them. */
typedef struct experience {
    const experience_desc *desc;
    int64_t answers;
    int32_t *ids, *labels;
    int32_t *group; /* [answers]: the answers to the same prompt have the same number */
    float *weight;  /* [answers], of each token of it in its step */
    float *advantage, *old, *entropy, *reference, *correction, *sampled;
    double *reward; /* NaN: not scorable */
    decoder decoder;
    session score, base; /* evaluate the policy and its reference */
    joined_rewards judges;
    bool opened;         /* these are open */
    experience_log log;
    phases *spent; /* of the iteration */
    void *own; /* of the kind */
} experience;

/* False with *error, out of memory; to be closed all the same. */
bool experience_new(experience *e, const experience_desc *desc, zf_error *error);
void experience_close(experience *e);

/* Opens the programs that run over the parameters of a session that trains: experience_make does so
 * first. False with *error. */
bool experience_open(experience *e, session *s, zf_error *error);

/* Samples, rewards and scores the answers of an iteration over the parameters of a session that
 * trains. All ranks must call it. False with *error. */
bool experience_make(experience *e, session *s, int64_t iteration, zf_error *error);

/* Answers the held-out prompts over the parameters as they are now, as before that iteration, and
 * prints what their rewards are. All ranks must call it. False with *error. */
bool experience_evaluate(experience *e, session *s, int64_t iteration, zf_error *error);

/* An output [rows, sequence] of all answers by a session: each rank computes parts of the shape of
 * training's, and gets those of the others. out [answers, sequence]. False with *error. */
bool experience_score(const experience *e, session *by, const char *output, float *out,
                      zf_error *error);
/* The same of two outputs; the second may be NULL. */
bool experience_score_two(const experience *e, session *by, const char *const outputs[2],
                          float *const out[2], zf_error *error);

/* The sessions of an iteration besides the one that trains. */
enum { EXPERIENCE_PARTS = 8 + MODEL_REWARDS };
typedef struct experience_part {
    const char *name; /* of its phase */
    const session *session;
    bool whole; /* it has parameters, and a store, of its own */
} experience_part;
int experience_parts(const experience *e, experience_part out[EXPERIENCE_PARTS]);
/* Bytes of the device that a step takes in the memory of phases that run in turns. */
size_t experience_turn_bytes(const zf_program *program);

/* kept.c: an iteration as bytes, for a checkpoint amid its steps. False with *error: out of memory;
 * bytes that are not those of this iteration. */
bool experience_keep(experience *e, int64_t iteration, zf_text *out, zf_error *error);
bool experience_take(experience *e, int64_t iteration, const zf_text *from, zf_error *error);

/* answers.c */

/* Writes the answers of an iteration, and sets experience.reward. Groups with equal rewards are
 * replaced by answers to other prompts, at most policy_options.redraws times; log.redrawn is set.
 * All ranks must call it, with the parameters held (decoder_hold). False with *error; else r is to
 * be freed. */
bool answers_sample(experience *e, session *s, int64_t iteration, zf_rollouts *r, zf_error *error);

/* Answers the held-out prompts with the most likely tokens: log.held_out is the mean of their
 * rewards, and the first ten are added to the file of policy_options.samples. Called likewise. */
bool answers_evaluate(experience *e, session *s, int64_t iteration, zf_error *error);

#endif
