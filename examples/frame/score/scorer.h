/* Scores of texts by the model of a folder (score.h): a checkpoint of `reward`, a folder of
 * transformers' ...ForSequenceClassification with one label, or an adapter with such a head.
 *
 *     scorer r;
 *     scorer_open(&r, &(scorer_desc){.sample = &llm_sample, .folder = "rm", .tokens = 512}, &error);
 *     scorer_run(&r, ids, counts, n, scores, &error);
 *     scorer_close(&r);
 */
#ifndef SCORER_H
#define SCORER_H

#include "../model/session.h"
#include "../model/settings.h"

typedef struct scorer_desc {
    const sample_model *sample;
    /* Of the model. An adapter names the folder of its base itself (base_model_name_or_path),
     * unless `adapter` is that adapter and `folder` its base */
    const char *folder, *adapter;
    int64_t dtype;   /* an index in FOLDER_DTYPES */
    int64_t weights; /* an index in ZF_CONFIG_WEIGHTS */
    int64_t
        texts; /* of a step; 0: 8. A step of fewer is filled, so a text has the same bits in any */
    int64_t tokens;  /* of a text, at most; 0: as many as the model has positions */
    int64_t threads;
    bool average; /* parameters take the averages of --ema */
    bool plan_only; /* as session_desc.plan_only: it has no weights, and scores nothing */
} scorer_desc;

/* What reward.json says of scores that the model gave to held-out texts. */
typedef struct scorer_scale {
    bool known;             /* there is a reward.json */
    double mean, deviation; /* of chosen texts */
} scorer_scale;

typedef struct scorer {
    session session;
    zf_config_any config;
    scorer_scale scale;
    const char *base, *adapter; /* the folders of the weights, and of an adapter or NULL */
    int64_t texts, tokens;
    int32_t *ids, *last; /* of a step */
    float *scores;
    char base_path[ZF_FOLDER_PATH];
    char *keep; /* of scorer_join */
} scorer;

/* Reads what the folder says, without weights: config, scale, base and adapter, for which r and the
 * desc must live. False with *error: it has no head that scores. There is nothing to close. */
bool scorer_read(scorer *r, const scorer_desc *desc, zf_error *error);
/* The same with the weights. False with *error, and then there is nothing to close. */
bool scorer_open(scorer *r, const scorer_desc *desc, zf_error *error);
void scorer_close(scorer *r); /* not open: nothing. What was read stays */

/* Whether what was read is an adapter of the weights that a run trains an adapter of, of a model
 * with this configuration. False with *error: a folder cannot be read. */
bool scorer_shares(const scorer *r, const settings *o, const void *config, bool *shares,
                   zf_error *error);
/* Opens what was read and shares, over the parameters of a session and in its memory: the adapter
 * gets the name, and the session's dtype. All ranks must call it. False with *error, and then there
 * is nothing to close. */
bool scorer_join(scorer *r, const scorer_desc *desc, session *with, const char *name,
                 zf_error *error);

/* The scores of n texts, text i with counts[i] ids, at its last one. After scorer_join with
 * several ranks each scores a part, and all must call it. False with *error: a text is empty, or
 * longer than `tokens`; an id is not in the vocabulary; a score is not finite. */
bool scorer_run(scorer *r, const int32_t *const *ids, const int64_t *counts, int64_t n,
                double *scores, zf_error *error);

/* Whether the ids of another model mean the same: as many, and in both tokenizers the same tokens.
 * `folder`: of the other model's tokenizer. False with *error. */
bool scorer_fits(const scorer *r, int64_t vocab, const char *folder, zf_error *error);

#endif
