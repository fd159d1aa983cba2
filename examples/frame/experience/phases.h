/* Where the time of an iteration goes, and the bytes that a rank sends or copies. */
#ifndef PHASES_H
#define PHASES_H

#include "../../../zeroflow.h"

typedef enum phase {
    PHASE_GATHER, /* of the parameters that are sampled from */
    PHASE_PROMPT, /* of answers: steps that take several tokens of a text */
    PHASE_DECODE, /* the other steps, and drawing tokens */
    PHASE_SCORE,  /* log p of policy and reference, and values */
    PHASE_REWARD,
    PHASE_TRAIN, /* steps, with their log and checkpoints */
    PHASE_OTHER,
    PHASES
} phase;

typedef struct phases {
    double began, since; /* of the iteration, of the current phase: seconds of a clock */
    phase now;
    double seconds[PHASES];
    int64_t tokens[PHASES]; /* of all ranks; 0: it has none */
    size_t moved[PHASES];   /* bytes of this rank */
    bool some;              /* an iteration has begun */
} phases;

/* An iteration begins, or ends, with PHASE_OTHER. */
void phases_begin(phases *p);
void phases_end(phases *p);
/* The current phase ends, and another one begins. */
void phases_enter(phases *p, phase next);
/* Of the current phase, so many seconds were of another one. */
void phases_give(phases *p, phase to, double seconds);
/* The current phase has taken so many tokens, and moved what the last step of a program did,
 * `steps` times. */
void phases_count(phases *p, int64_t tokens, const zf_program *program, int64_t steps);
/* The current phase has summed or gathered so many numbers of 4 bytes of `world` ranks: an
 * all_reduce, or an all_gather of `count` of each rank. */
void phases_sum(phases *p, int64_t count, int32_t world);
void phases_gather(phases *p, int64_t count, int32_t world);

/* "1.20 s: gather 0.10 s 8% 1.5 MiB, prompt 0.20 s 17% 4096 tokens/s, ..." */
void phases_text(const phases *p, char *text, size_t size);

#endif
