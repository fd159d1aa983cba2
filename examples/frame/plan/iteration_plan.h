/* The bytes of an iteration of grpo or ppo, before anything runs: the programs of all its phases
 * are compiled over stores that allocate nothing, in the order in which a run compiles them. */
#ifndef ITERATION_PLAN_H
#define ITERATION_PLAN_H

#include "../experience/policy_options.h"

typedef struct iteration_desc {
    const sample_model *sample;
    const void *config;
    zf_training training;
    int64_t group, prompt, answer; /* answers to a prompt; tokens of each, at most */
    int64_t batch;                 /* answers of a step, over all ranks */
    int32_t world, nodes;
    int64_t threads;           /* of a rank */
    bool reference;            /* one is compared with: without an adapter it is a copy */
    const char *reward;        /* the folder of a reward model; NULL: none */
    /* Of ppo; NULL: of grpo. The critic begins as the model of a folder, or NULL: as the policy,
     * whose folder is `folder` (an adapter of it shares its base) */
    const policy_kind *ppo;
    const char *critic, *folder;
    int64_t texts; /* rows of --ptx in a step, over all ranks */
    device_desc device;
} iteration_desc;

/* Sampling, scoring, reference, reward model, values, critic, training. */
enum { ITERATION_PHASES = 7 };

/* Device bytes of a rank. Phases run in turns in one memory; those that do not fit have their
 * own. */
typedef struct iteration_phase {
    const char *name; /* NULL: there is none */
    size_t held, caches, values; /* in turns: gathered parameters, caches, values of a step */
    size_t kept; /* inputs and constants, and of a model that shares no parameters these as well */
    bool apart;  /* the values have memory of their own */
} iteration_phase;

typedef struct iteration_plan {
    iteration_phase phases[ITERATION_PHASES];
    size_t parameters, states; /* of what is trained, and of the base of adapters */
    size_t shared;             /* the memory in which phases run in turns */
    size_t total;              /* all that is allocated */
    size_t host, disk;         /* of the spaces of zf_offload */
    int64_t parameter_count, answers;
    size_t moved; /* bytes that a rank sends or copies to gather what is sampled from */
} iteration_plan;

/* False with *error. */
bool iteration_plan_of(iteration_plan *out, const iteration_desc *d, zf_error *error);

#endif
