/* What each rank does, as a thread or as a process, with its store: two programs train a perceptron
 * in turns, it is evaluated in between, saved, and trained further in two other stores: one that
 * loads it before it has a program, at another stage, and one to which it is copied. */
#ifndef TURNS_H
#define TURNS_H

#include <stdlib.h>
#include <string.h>

enum { TURNS_ROWS = 3, TURNS_IN = 33, TURNS_OUT = 35, TURNS_SLOTS = 12 };

typedef struct turns_program {
    zf_graph *graph;
    zf_program *program;
} turns_program;

static void turns_close(turns_program *p)
{
    zf_program_free(p->program);
    zf_graph_free(p->graph);
    *p = (turns_program){NULL, NULL};
}

static zf_status turns_open(turns_program *p, zf_store *store, const zf_comm *comm, int32_t stage,
                            bool training, zf_error *error)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3};
    zf_graph *g = p->graph = zf_graph_new(NULL);
    zf_tensor x, lr, h;
    if (!g) return error->status = ZF_ERR_NOMEM;
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(TURNS_ROWS, TURNS_IN));
    lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    h = zf_matmul(x, zf_param(g, "a", ZF_SHAPE(TURNS_IN, TURNS_OUT), &normal));
    h = zf_dropout(zf_tanh(h), 0.2);
    h = zf_matmul(h, zf_param(g, "b", ZF_SHAPE(TURNS_OUT, TURNS_OUT), &normal));
    h = zf_output_ex(zf_scale(zf_sum(zf_mul(h, h)), 1.0 / TURNS_SLOTS), "error",
                     &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
    if (training) {
        zf_autograd(g, h);
        zf_clip(g, 0.1);
        zf_adamw(g, lr, NULL);
    }
    zf_zero(g, &(zf_zero_desc){.stage = stage,
                               .world = comm->world,
                               .micro_batches = TURNS_SLOTS / comm->world,
                               .bucket_bytes = 1,
                               .store = store});
    if (training) zf_prefetch(g, &(zf_training){.prefetch = {.bytes = 1 << 20}});
    p->program = zf_compile(
        g, &(zf_compile_desc){.store = store, .must_exist = !training, .evaluate = !training});
    if (p->program) return ZF_OK;
    snprintf(error->text, sizeof error->text, "%s", zf_graph_error(g));
    return error->status = zf_graph_status(g);
}

static zf_status turns_step(turns_program *p, const zf_comm *comm, int64_t step, zf_error *error)
{
    float x[TURNS_ROWS * TURNS_IN], lr = 0.01f;
    zf_tensor rate = zf_graph_find(p->graph, "lr"), input = zf_graph_find(p->graph, "x");
    zf_status status = zf_write(p->program, rate, &lr, sizeof lr);
    for (int64_t slot = comm->rank; slot < TURNS_SLOTS && !status; slot += comm->world) {
        for (int i = 0; i < TURNS_ROWS * TURNS_IN; i++)
            x[i] = (float)(i * 7 % 31 + step * 3 - slot) / 53;
        status = zf_write(p->program, input, x, sizeof x);
        if (!status)
            status = slot + comm->world < TURNS_SLOTS ? zf_micro(p->program) : zf_step(p->program);
    }
    if (status) snprintf(error->text, sizeof error->text, "%s", zf_program_error(p->program));
    return error->status = status;
}

enum { TURNS_IMAGE = 4 * (8 + 3 * TURNS_OUT * (TURNS_IN + TURNS_OUT)) };

/* All parameters and states, each read by all ranks. */
static zf_status turns_image(zf_store *store, unsigned char image[TURNS_IMAGE], zf_error *error)
{
    static const char *const names[] = {"a",         "b",         "adamw.step", "adamw.m/a",
                                        "adamw.m/b", "adamw.v/a", "adamw.v/b"};
    size_t at = 0;
    memset(image, 0, TURNS_IMAGE);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        zf_stored about = zf_store_at(store, zf_store_find(store, names[k]));
        size_t bytes = (size_t)zf_shape_count(about.shape) * zf_dtype_size(about.dtype);
        if (zf_store_read(store, names[k], image + at, bytes)) {
            snprintf(error->text, sizeof error->text, "%s", zf_store_error(store));
            return error->status = ZF_ERR_COMM;
        }
        at += bytes;
    }
    return ZF_OK;
}

static zf_status turns_store_failed(const zf_store *store, zf_status status, zf_error *error)
{
    if (status && !error->status)
        snprintf(error->text, sizeof error->text, "%s", zf_store_error(store));
    return status ? error->status = status : ZF_OK;
}

/* Runs it all. images[0] is what training at `stage` makes of six steps, images[1] what comes of
 * the same when the last two are made in the store that has loaded the first four, images[2] the
 * same of the store that they were copied to. */
static zf_status turns_run(const zf_comm *comm, int32_t stage, const char *path,
                           unsigned char images[3][TURNS_IMAGE], zf_error *error)
{
    zf_store *stores[3] = {NULL};
    turns_program p[5] = {{NULL, NULL}};
    zf_status status = ZF_OK;
    for (int k = 0; k < 3 && !status; k++)
        if (!(stores[k] = zf_store_new(&(zf_store_desc){.comm = comm, .seed = k ? 0 : 7}, error)))
            status = error->status;
    if (!status) status = turns_open(&p[0], stores[0], comm, stage, true, error);
    if (!status) status = turns_open(&p[1], stores[0], comm, stage, true, error);
    if (!status) status = turns_open(&p[2], stores[0], comm, stage, false, error);
    for (int step = 0; step < 4 && !status; step++) {
        status = turns_step(&p[step % 2], comm, step, error);
        if (!status) status = turns_step(&p[2], comm, 9, error);
    }
    if (!status) status = turns_store_failed(stores[0], zf_save(stores[0], path, NULL), error);
    if (!status) status = turns_store_failed(stores[1], zf_load(stores[1], path, NULL), error);
    if (!status) status = turns_open(&p[3], stores[1], comm, (stage + 2) % 4, true, error);
    if (!status) status = turns_open(&p[4], stores[2], comm, (stage + 1) % 4, true, error);
    if (!status)
        status = turns_store_failed(stores[2], zf_store_copy(stores[2], stores[0]), error);
    if (!status) status = turns_image(stores[2], images[2], error);
    if (!status) status = turns_image(stores[0], images[0], error);
    if (!status && memcmp(images[0], images[2], TURNS_IMAGE)) {
        snprintf(error->text, sizeof error->text, "what was copied has other bits");
        status = error->status = ZF_ERR_MISMATCH;
    }
    for (int step = 4; step < 6 && !status; step++) {
        status = turns_step(&p[step % 2], comm, step, error);
        if (!status) status = turns_step(&p[3], comm, step, error);
    }
    if (!status) status = turns_image(stores[0], images[0], error);
    if (!status) status = turns_image(stores[1], images[1], error);
    for (int k = 0; k < 5; k++) turns_close(&p[k]);
    for (int k = 0; k < 3; k++) zf_store_free(stores[k]);
    return status;
}

#endif
