/* A schedule of shapes: tokens of an example and examples of a batch change with the steps of a
 * run, by --phase or --curriculum. Each shape is a variant of the step, over one store. */
#ifndef SHAPE_PHASES_H
#define SHAPE_PHASES_H

#include "../../../zeroflow.h"

enum { SHAPE_PHASES = 64, SHAPE_PHASES_TEXT = 4000 };

typedef struct shape_phase {
    int64_t first, steps;    /* steps that are made before it, and its own */
    int64_t before;          /* examples of the phases before it */
    int64_t sequence, batch; /* tokens of an example, examples of a batch */
    int32_t shape;           /* of phases.shapes */
    zf_schedule rate;        /* of --phase: from its first step on */
} shape_phase;

typedef struct shape_phases {
    shape_phase at[SHAPE_PHASES];
    int32_t count;                /* 0: the shape is the same in all steps */
    int32_t shapes;               /* different ones, */
    int32_t first[SHAPE_PHASES];  /* and the first phase of each */
    bool curriculum;              /* the rate is that of the whole run, */
    bool by_tokens;               /* whose steps are equal shares of its tokens */
    char text[SHAPE_PHASES_TEXT]; /* what they are, for a checkpoint; "": there are none */
} shape_phases;

/* --curriculum */
enum { CURRICULUM_LINEAR, CURRICULUM_ROOT, CURRICULUM_DISCRETE }; /* of schedule */
typedef struct curriculum {
    int64_t min, max, steps, schedule, round;
    double root;
    const char *lengths, *ends;
    int64_t rate; /* CURRICULUM_BY_TOKENS */
} curriculum;
enum { CURRICULUM_BY_STEPS, CURRICULUM_BY_TOKENS }; /* of rate */
extern const zf_option curriculum_rows[];

/* What a run says of its shape, and of what changes it. */
typedef struct shape_phases_desc {
    const zf_option_texts *phase; /* as they are given */
    const curriculum *curriculum; /* resolved */
    int64_t seq, batch, steps;
    zf_schedule schedule; /* of the run; warmup below 0: a tenth of a phase */
} shape_phases_desc;

/* Makes the phases, and sets seq and batch to those of the last, and of --phase steps to those of
 * all. False with *error. */
bool shape_phases_make(shape_phases *p, shape_phases_desc *d, zf_error *error);
/* The phase of the step that follows `done` steps; NULL: there are none. */
const shape_phase *shape_phases_at(const shape_phases *p, int64_t done);
/* The tokens of the first `done` steps. */
int64_t shape_phases_tokens(const shape_phases *p, int64_t done);
/* The learning rate of the step that follows `done` steps. run: the schedule of the run. */
double shape_phases_rate(const shape_phases *p, const zf_schedule *run, int64_t done);
/* Prints a line for each phase. */
void shape_phases_tell(const shape_phases *p);

#endif
