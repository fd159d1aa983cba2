/* The options of commands that train on rewards, besides those of a run; and what differs between
 * them. */
#ifndef POLICY_OPTIONS_H
#define POLICY_OPTIONS_H

#include "../model/settings.h"
#include "../model/session.h"

struct experience;
struct experience_part;
struct policy_options;

/* Numbers that a checkpoint amid the steps of an iteration has. */
typedef struct experience_region {
    void *at;
    size_t bytes;
} experience_region;

/* A command. */
typedef struct policy_kind {
    const char *usage;
    const settings_default *defaults;
    const zf_option *rows; /* its own, over policy_options */
    const char *(*wrong)(const struct policy_options *own,
                         const settings *o); /* as sample_model.wrong */
    const char *columns[SAMPLE_LOSSES]; /* objective.losses */
    /* Opens what it has besides (experience.own), over the parameters of the session, which trains.
     * False with *error, and then there is nothing to close. NULL: nothing. */
    bool (*open)(struct experience *e, session *s, zf_error *error);
    void (*close)(struct experience *e);
    /* Sets the advantage of each token by rewards and scores. False with *error. */
    bool (*advantages)(struct experience *e, session *s, zf_error *error);
    /* What is trained besides, on the batch of step `batch` of a pass over the answers, before the
     * session is; `step`: of the run, -1 before the first. False with *error. NULL: nothing. */
    bool (*step)(struct experience *e, session *s, int64_t batch, int64_t step, zf_error *error);
    /* What steps on the answers of an iteration need besides, at most 4 regions; returns how many.
     * NULL: none. */
    int (*keeps)(struct experience *e, experience_region *out);
    /* Its sessions, as experience_parts; returns how many. NULL: none. */
    int (*parts)(const struct experience *e, struct experience_part *out);
    /* As objective.number and .note; NULL: none. */
    bool (*number)(const struct experience *e, const char *name, double *out);
    void (*note)(const struct experience *e, char *text, size_t size);
} policy_kind;

/* Of ppo alone. */
typedef struct ppo_options {
    const char *critic; /* a folder */
    double critic_lr, kl_target;
    int64_t critic_every, critic_warmup, kl_horizon;
    zf_value_desc value;
    bool no_whiten;
    const char *ptx; /* a file */
    int64_t ptx_rows;
    double ptx_coefficient;
} ppo_options;

typedef struct policy_options {
    zf_option_texts reward, stop;
    int64_t group, tokens, answers, epochs, redraws, held_out_every;
    const char *held_out, *samples; /* files */
    double reward_deadline;
    zf_sampling how;
    bool off_policy, reward_standardize, leave_cut;
    zf_policy_desc loss;
    zf_advantage_desc advantage;
    ppo_options ppo;
    const policy_kind *kind; /* no options */
    const sample_model *sample;
} policy_options;

#endif
