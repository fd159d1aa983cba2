/* What the parts of zf-plan share. */
#ifndef PLAN_H
#define PLAN_H

#include "../../zeroflow_llm.h"

typedef struct options {
    int64_t gpt; /* of MODELS */
    int64_t layers, hidden, heads, vocab, seq, batch, world, nodes, ranks_per_node, mics, memory;
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

/* Returns 0 if the command line is good; a status + 1 where the program ends. */
int plan_read_options(int argc, char **argv, options *o);
/* The description by which a step has variants. */
zf_training plan_varying(const options *o);

/* Builds the forward graph; returns the loss. A mistake is the graph's error. */
zf_tensor plan_model(zf_graph *g, const options *o);

/* A graph whose memory is metered; NULL: there is none. */
zf_graph *plan_graph(result *r);
/* Runs the passes, from the loss to a verified plan. */
zf_status plan_passes(zf_graph *g, zf_tensor loss, const options *o, result *r);
/* Plans the graph of the options; false with the graph's error. */
bool plan_of(const options *o, result *r, char error[512]);
/* The options with all that makes ranks send less left out; false: they have none of it. */
bool plan_plain(const options *o, options *plain);

enum { PLAN_MOVEMENTS = 10 };
/* What moves bytes in a step, and its name. */
zf_moved plan_moved(const zf_plan *plan, int k);
const char *plan_movement(int k);
/* Maximum of NCCL's memory on a rank's device, in addition to the plan: zeroflow.h,
 * zf_nccl_desc.ctas, with its defaults: 16 blocks, 32 MiB of staging, three channels. */
double plan_nccl_bytes(const options *o);

/* ------------------------------------------------------- printing; each returns an exit status */

void plan_print_table(const options *o, const result *r);
int plan_print_json(const options *o, zf_graph *g, const result *r);
/* Members of an object: what the options say; bytes. */
void plan_put_options(zf_json_writer *w, const options *o);
void plan_put_bytes(zf_json_writer *w, const char *key, size_t bytes);
/* Prints the layout of --attention, of each head if they differ. */
int plan_print_layout(const options *o);
/* Prints a row for each model and way, each as soon as it is found. */
int plan_print_fit(const options *o);
/* Draws the plan where --svg asks for it, and writes the page of --html. */
int plan_draw(const options *o, zf_graph *g);

#endif
