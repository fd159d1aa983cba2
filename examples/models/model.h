/* What the programs of this folder share. A model is a function that builds its loss for `batch`
 * examples. The inputs of that graph are its data; the first dimension of each is the examples.
 * Without data of its own, a program learns one batch of random numbers by heart. */
#ifndef MODEL_H
#define MODEL_H

#include "zeroflow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct model {
    const char *name;
    zf_tensor (*loss)(zf_graph *graph, int64_t batch);
    int64_t batch;
    int64_t below; /* integers of inputs are 0 to below - 1 */
} model;

/* Writes random numbers to an input: in [-1, 1), or integers. */
static inline zf_status model_fill(zf_program *p, zf_tensor input, int64_t below, uint32_t *state)
{
    const size_t count = (size_t)zf_shape_count(zf_tensor_shape(input));
    const zf_dtype dtype = zf_tensor_dtype(input);
    float *x = calloc(count + 1, sizeof *x);
    void *raw = calloc(count + 1, zf_dtype_size(dtype));
    zf_status status = x && raw ? ZF_OK : ZF_ERR_NOMEM;
    for (size_t i = 0; i < count && !status; i++) {
        *state = *state * 1664525u + 1013904223u; /* Numerical Recipes' generator */
        x[i] = dtype == ZF_F32 ? (float)(*state >> 8) * 0x1p-23f - 1
                               : (float)((uint64_t)(*state >> 8) * (uint64_t)below >> 24);
    }
    if (!status) zf_convert(raw, dtype, x, ZF_F32, count);
    if (!status) status = zf_write(p, input, raw, zf_tensor_bytes(input));
    free(x), free(raw);
    return status;
}

/* Trains `steps` steps of AdamW and prints the first and the last loss. */
static inline zf_status model_train(const model *m, int64_t steps)
{
    zf_graph *g = zf_graph_new(NULL);
    const zf_tensor loss = m->loss(g, m->batch);
    const float lr = 0.01f;
    uint32_t state = 1;
    zf_status status = zf_passes(g, &(zf_training){.loss = loss, .clip = 1});
    zf_program *p = status ? NULL : zf_compile(g, &(zf_compile_desc){.seed = 1});
    zf_node node;
    if (p) status = zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr);
    else status = status ? status : zf_graph_status(g);
    for (int32_t i = 0; p && !status && zf_graph_node(g, i, &node); i++)
        if (node.op == ZF_OP_input && strcmp(node.name, "lr"))
            status = model_fill(p, zf_graph_find(g, node.name), m->below, &state);
    for (int64_t step = 1; p && !status && step <= steps; step++) {
        float now = 0;
        status = zf_step(p);
        if (!status) status = zf_read(p, zf_graph_find(g, "loss"), &now, sizeof now);
        if (!status && (step == 1 || step == steps))
            printf("%s: step %d  loss %.4f\n", m->name, (int)step, now);
    }
    if (status) fprintf(stderr, "%s: %s\n", m->name, p ? zf_program_error(p) : zf_graph_error(g));
    zf_program_free(p);
    zf_graph_free(g);
    return status;
}

/* The tests have a main of their own. */
#ifdef MODEL_WITHOUT_MAIN
#define MODEL_MAIN(model)
#else
#define MODEL_MAIN(model)                                                                          \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return model_train(&(model), argc > 1 ? atoi(argv[1]) : 200) ? EXIT_FAILURE                \
                                                                     : EXIT_SUCCESS;               \
    }
#endif

#endif
