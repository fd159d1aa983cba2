/* The numbers of graphs: a graph's text is run on seeded values, and all results are kept under
 * their names, so that the numbers of two graphs can be compared. */
#ifndef NUMBERS_H
#define NUMBERS_H

#include "test.h"

typedef struct number {
    char name[300]; /* "STEP KIND NAME": "1 output loss", "3 param h0.w", "1 gradient h0.w", "1
                       state adamw.step" */
    zf_dtype dtype;
    size_t bytes;
    unsigned char *data;
} number;

typedef struct numbers {
    number *list;
    int count;
} numbers;

typedef struct numbers_desc {
    int steps;         /* 0: 1; values are kept after the first and after the last */
    bool fast;         /* the fast kernels instead of the reference */
    int threads;       /* 0: 1 */
    const char *offload_dir; /* zf_store_desc.offload_dir */
    const char *donor; /* text of a graph whose parameters and states are shared; NULL: none */
    bool evaluate, no_reuse, poison;
    bool no_gradients; /* do not add outputs for the gradients */
    bool first_values; /* parameters keep their first values */
    /* Parts of the global batch: a graph that is not for ranks runs them as micro-batches */
    int64_t slots;
    uint64_t seed; /* of the lockstep run: when collectives of other queues are done */
} numbers_desc;

/* Runs the graph, on as many ranks as it is for. Inputs and parameters get values that depend on
 * their names: floats in [-1, 1], "lr" 0.01, integers 0, 1 or 2, where "label" is in the name
 * sometimes -100. Parameters of records keep their first values. False with *error. */
bool numbers_of(numbers *out, const char *text, const numbers_desc *desc, zf_error *error);
void numbers_free(numbers *numbers);
const number *numbers_find(const numbers *numbers, const char *name);

/* Compares, bit for bit (any NaN equals any other), the numbers that both have and whose name,
 * after the step, begins with `prefix` ("" for all); returns their number, or -1 with
 * why[0..size). */
int numbers_compare(const numbers *a, const numbers *b, const char *prefix, char *why, size_t size);
/* The same for floats, with differences of up to `within` of the largest element. */
int numbers_compare_within(const numbers *a, const numbers *b, const char *prefix, double within,
                           char *why, size_t size);

/* Element i of something called `name`: in [-1, 1). */
double seeded(const char *name, int64_t i);
/* Gives the tensor seeded values. */
zf_status write_seeded(zf_program *program, zf_tensor tensor);
/* The text of the graph, to be freed. */
char *text_of(const zf_graph *graph);
/* The graph's text after the passes (tools/pass.h), to be freed; NULL after a failed check. */
char *text_after(test *t, const char *graph, const char *passes);
/* The graph's text with every f32 an f64, to be freed. */
char *text_in_f64(const char *graph);
/* Element i as a double. */
double number_at(const number *number, int64_t i);
int64_t number_count(const number *number);
/* The minimum of bytes of a plan of the graph with recomputation, from the messages about
 * impossible limits; -1 where there are none. */
long long numbers_least_peak(const char *text);

#endif
