/* What the parts of zf-plan share. */
#ifndef PLAN_H
#define PLAN_H

#include "../../examples/frame/model/sample.h"

enum { PLAN_DEFAULTS = 8 };

typedef struct options {
    const char *config;         /* of --config; NULL: the model is one of these sizes */
    const sample_model *sample; /* of --config, */
    zf_config_any model;        /* and what the file says */
    int64_t gpt; /* of MODELS; of --config whether tokens are predicted from left to right */
    double dropout; /* below 0: the model's own */
    int64_t layers, hidden, heads, vocab, seq, batch, world, nodes, ranks_per_node, mics, memory;
    int64_t pipe; /* ranks along pipe */
    bool search;
    int64_t examples; /* sequences of a step over all ranks; 0: not given */
    zf_option_texts phase; /* as they are given */
    curriculum curriculum;
    int64_t positions;                 /* of a model of sizes; 0: seq */
    int64_t steps, recipe;             /* recipe 1: bert44 */
    char defaults[PLAN_DEFAULTS][16];  /* of the recipe */
    int64_t given_pipe, given_micro_batches; /* as they are given; 0: they are not */
    bool given_precision;
    int64_t link, between;        /* bytes a second, in place of the cost table's; 0: that */
    const char *schedule_name;
    zf_pipe schedule;     /* that of schedule_name */
    int64_t tensor, context, data; /* ranks along these and pipe: world is their product */
    bool picture;         /* draw it, however wide it is */
    bool json, fit; /* fit: find the largest models within these bytes of each space; 0: none */
    int64_t device, host, disk;
    const char *cost_file; /* may be NULL */
    const char *svg;       /* a picture of the plan; NULL: none */
    const char *html;      /* a page about it; NULL: none */
    const char *deepspeed_config, *deepspeed_version;
    bool deepspeed_loose, explain, deepspeed_keys;
    zf_block_mask_desc blocks;        /* of --attention, */
    char attention[ZF_CONFIG_LAYOUT]; /* and its text; "": tokens see all */
    bool layout;           /* print it, and no plan */
    zf_cost cost;          /* its contents, or the default */
    zf_training t;
    int32_t variants; /* of the step */
} options;

typedef struct meter {
    size_t bytes, peak; /* bytes of the graph now, and at most */
} meter;

typedef struct result {
    zf_plan plan;
    zf_work work; /* sum over all operators */
    zf_estimate estimate;
    double plain_seconds; /* of a step of plain_of, estimated; 0: it is the same */
    meter meter;
    double plan_ms;
} result;

/* What a rank of a stage takes. */
typedef struct stage_plan {
    zf_plan plan;
    zf_estimate estimate;
    int32_t layers;
    int64_t slots; /* micro-batches of one chunk in flight, at most */
    size_t peak; /* bytes of the device */
} stage_plan;

typedef struct stages_plan {
    stage_plan *stages;
    int64_t count, largest, slowest;
    double idle;    /* the time in which a rank waits, over that in which it computes */
    double seconds; /* of a step, estimated */
    double plan_ms;
    size_t plan_peak_bytes;
} stages_plan;

typedef enum plan_axis { PLAN_DATA, PLAN_CONTEXT, PLAN_TENSOR, PLAN_PIPE, PLAN_AXES } plan_axis;
const char *plan_axis_name(plan_axis axis);
/* Bytes that a rank sends in a step along the axis. */
size_t plan_sent(const zf_plan *plan, plan_axis axis);

/* Returns 0 if the command line is good; a status + 1 where the program ends. */
int plan_read_options(int argc, char **argv, options *o);
/* The description by which a step has variants. */
zf_training plan_varying(const options *o);

/* Reads --config, if it is given. False with *error. */
bool plan_config(options *o, zf_error *error);
/* False with an error where sequences are longer than the model's positions. */
bool plan_fits_positions(const options *o, char error[512]);
/* "GPT", or the model_type of --config. */
const char *plan_model_name(const options *o);
/* Builds the forward graph; returns the loss. A mistake is the graph's error. */
zf_tensor plan_model(zf_graph *g, const options *o);

/* A graph whose memory is metered; NULL: there is none. */
zf_graph *plan_graph(result *r);
double plan_now_ms(void);
/* A rank adds the gradients of its micro-batches before the ranks do (ZF_SUM_MICRO). */
bool plan_adds_first(const options *o);
/* Runs the passes of the options, without a plan. */
zf_status plan_rewrite(zf_graph *g, zf_tensor loss, const options *o);
/* Runs the passes, from the loss to a verified plan. */
zf_status plan_passes(zf_graph *g, zf_tensor loss, const options *o, result *r);
/* Plans the graph of the options; false with the graph's error. */
bool plan_of(const options *o, result *r, char error[512]);
/* The options with all that makes ranks send less left out; false: they have none of it. */
bool plan_plain(const options *o, options *plain);

/* Micro-batches of one chunk of which a rank keeps what their backward passes need. */
int64_t plan_slots(zf_pipe p, int64_t rank);
/* kind[k]: the first stage that takes the memory of stage k; false: memory is lacking. */
bool plan_kinds(const zf_graph *g, const zf_pipe *pipe, int32_t *kind);
/* The plan of each stage; false with the error of one, and then there is nothing to free. */
bool plan_stages(const options *o, stages_plan *p, char error[512]);
void plan_stages_free(stages_plan *p);

enum { PLAN_MOVEMENTS = 10 };
/* What moves bytes in a step, and its name. */
zf_moved plan_moved(const zf_plan *plan, int k);
const char *plan_movement(int k);
/* Maximum of NCCL's memory on a rank's device, in addition to the plan: zeroflow.h,
 * zf_nccl_desc.ctas, with its defaults: 16 blocks, 32 MiB of staging, three channels. */
double plan_nccl_bytes(const options *o);

/* ------------------------------------------------------- printing; each returns an exit status */

void plan_print_table(const options *o, const result *r);
void plan_print_stages(const options *o, const stages_plan *p);
int plan_print_stages_json(const options *o, const stages_plan *p);
/* The model; and the ranks. */
void plan_print_head(const options *o);
void plan_print_ranks(const options *o);
int plan_print_json(const options *o, zf_graph *g, const result *r);
/* Prints the text of a writer, and frees it; returns an exit status. */
int plan_end_json(zf_json_writer *w);
/* Members of an object: what the options say; bytes. */
void plan_put_options(zf_json_writer *w, const options *o);
void plan_put_bytes(zf_json_writer *w, const char *key, size_t bytes);
/* Prints the layout of --attention, of each head if they differ. */
int plan_print_layout(const options *o);
/* Prints a row for each model and way, each as soon as it is found. */
int plan_print_fit(const options *o);
/* Sets what --recipe stands for. False with *error. */
bool plan_recipe(options *o, const zf_options *all, int32_t tables, zf_error *error);
/* --curriculum, as it was given, says after which steps it ends. */
bool plan_curriculum_ends(const options *o);
/* Shapes change in the run. */
bool plan_changes(const options *o);
/* Prints the plan of a run whose shapes change. */
int plan_print_phases(const options *o);
/* Prints the layouts that fit --device and are fastest. */
int plan_print_search(const options *o);
/* Draws the plan where --svg asks for it, and writes the page of --html. */
int plan_draw(const options *o, zf_graph *g);

#endif
