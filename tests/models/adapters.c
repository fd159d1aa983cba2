/* Several adapters over one base, in one store: an actor and a critic that are trained in turns, a
 * reference that stays as it was, and the base; at every stage, on several ranks, with values in
 * host memory or on a disk, and after a checkpoint. */
#define _POSIX_C_SOURCE 200809L
#include "../support/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { RANKS = 4, SLOTS = 4, ROWS = 3, IN = 33, HIDDEN = 35, IMAGE = 1 << 18, PROGRAMS = 4 };

enum { ACTOR, CRITIC, REFERENCE, BASE };

static const struct {
    const char *adapter, *training, *keep;
} roles[PROGRAMS] = {{"actor", "actor", NULL},
                     {"critic", "critic", "score,*.norm"},
                     {"ref", "", NULL},
                     {NULL, "", NULL}};

/* How a rank works. */
typedef struct way {
    int32_t stage, other_stage; /* other_stage: after the checkpoint */
    zf_offload_desc offload, other_offload;
    zf_dtype dtype;
} way;

typedef struct family {
    const zf_comm *comm;
    zf_store *store;
    zf_graph *graphs[PROGRAMS];
    zf_program *programs[PROGRAMS];
} family;

static void close_family(family *f)
{
    for (int k = 0; k < PROGRAMS; k++) zf_program_free(f->programs[k]), zf_graph_free(f->graphs[k]);
    zf_store_free(f->store);
    *f = (family){.store = NULL};
}

static zf_tensor model(zf_graph *g)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3}, ones = {.init = ZF_ONES};
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, IN)), h;
    zf_push(g, "layer");
    h = zf_linear(x, zf_param(g, "in.weight", ZF_SHAPE(HIDDEN, IN), &normal),
                  zf_param(g, "in.bias", ZF_SHAPE(HIDDEN), &normal));
    h = zf_mul(zf_tanh(h), zf_param(g, "norm", ZF_SHAPE(HIDDEN), &ones));
    h = zf_tanh(zf_matmul(h, zf_param(g, "between", ZF_SHAPE(HIDDEN, HIDDEN), &normal)));
    zf_pop(g);
    h = zf_linear(h, zf_param(g, "score.weight", ZF_SHAPE(2, HIDDEN), &normal),
                  zf_param(g, "score.bias", ZF_SHAPE(2), NULL));
    h = zf_cast(h, ZF_F32);
    return zf_output_ex(zf_scale(zf_sum(zf_mul(h, h)), 1.0 / SLOTS), "error",
                        &(zf_output_desc){ZF_REDUCTION_SUM});
}

static zf_status say(zf_error *error, zf_status status, const char *text)
{
    if (status && !error->status) snprintf(error->text, sizeof error->text, "%s", text);
    return status ? error->status = status : ZF_OK;
}

/* Compiles the program of a role. */
static zf_status open_role(family *f, int k, const way *w, bool other, zf_error *error)
{
    const bool trains = k < REFERENCE;
    zf_graph *g = f->graphs[k] = zf_graph_new(NULL);
    zf_tensor loss = g ? model(g) : ZF_NONE;
    zf_training d = {.name = trains ? roles[k].training : NULL,
                     .loss = trains ? loss : ZF_NONE,
                     .precision.dtype = w->dtype,
                     .clip = 0.5,
                     .offload = other ? w->other_offload : w->offload,
                     .zero = {.stage = other ? w->other_stage : w->stage,
                              .world = f->comm->world,
                              .micro_batches = SLOTS / f->comm->world,
                              .bucket_bytes = 3000,
                              .store = f->store}};
    if (!g) return say(error, ZF_ERR_NOMEM, "out of memory");
    if (!trains) d.clip = 0, d.offload = (zf_offload_desc){.parameters = d.offload.parameters};
    if (roles[k].adapter)
        d.lora = (zf_lora_desc){.name = roles[k].adapter,
                                .rank = 3,
                                .targets = "in,between",
                                .dropout = trains ? 0.2 : 0,
                                .keep = roles[k].keep};
    zf_passes(g, &d);
    f->programs[k] = zf_compile(g, &(zf_compile_desc){.store = f->store, .evaluate = !trains});
    return f->programs[k] ? ZF_OK : say(error, zf_graph_status(g), zf_graph_error(g));
}

static zf_status open_family(family *f, const zf_comm *comm, const char *folder, zf_error *error)
{
    *f = (family){.comm = comm};
    f->store = zf_store_new(
        &(zf_store_desc){.comm = comm->world > 1 ? comm : NULL, .seed = 5, .offload_dir = folder},
        error);
    return f->store ? ZF_OK : error->status;
}

/* One step of a role; *loss NULL: not wanted. */
static zf_status step(family *f, int k, int64_t number, float *loss, zf_error *error)
{
    zf_graph *g = f->graphs[k];
    zf_program *p = f->programs[k];
    float x[ROWS * IN], lr = 0.01f;
    zf_status status = k < REFERENCE ? zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr) : ZF_OK;
    for (int64_t slot = f->comm->rank; slot < SLOTS && !status; slot += f->comm->world) {
        for (int i = 0; i < ROWS * IN; i++)
            x[i] = (float)(i * 7 % 31 + number * 3 - slot) / 53;
        status = zf_write(p, zf_graph_find(g, "x"), x, sizeof x);
        if (!status) status = slot + f->comm->world < SLOTS ? zf_micro(p) : zf_step(p);
    }
    if (!status && loss) status = zf_read(p, zf_graph_find(g, "error"), loss, sizeof *loss);
    return say(error, status, zf_program_error(p));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The values of all tensors by the order of their names; *bytes of them. */
static zf_status take_image(zf_store *s, unsigned char image[IMAGE], size_t *bytes, zf_error *error)
{
    const char *names[200];
    const int32_t count = zf_store_count(s);
    *bytes = 0;
    if (count > 200) return say(error, ZF_ERR_LIMIT, "too many tensors");
    for (int32_t k = 0; k < count; k++) names[k] = zf_store_at(s, k).name;
    qsort(names, (size_t)count, sizeof *names, by_name);
    for (int32_t k = 0; k < count; k++) {
        const zf_stored about = zf_store_at(s, zf_store_find(s, names[k]));
        const size_t size = (size_t)zf_shape_count(about.shape) * zf_dtype_size(about.dtype);
        if (*bytes + size > IMAGE) return say(error, ZF_ERR_LIMIT, "an image is too large");
        if (zf_store_read(s, names[k], image + *bytes, size))
            return say(error, ZF_ERR_COMM, zf_store_error(s));
        *bytes += size;
    }
    return ZF_OK;
}

/* What adapters and their trainings have. */
static bool is_trained(void *user, const zf_stored *tensor)
{
    (void)user;
    return tensor->state || tensor->adapter;
}

/* What a rank finds. */
typedef struct found {
    const zf_comm *comm;
    way way;
    char folder[300], path[320];
    unsigned char *images[2]; /* of what was trained, and of what was resumed */
    size_t bytes[2];
    float first[2], last[3]; /* losses of the base and of the reference, at the end after going on too */
    zf_error error;
} found;

/* Two trainings in turns; the reference is the actor after two steps. */
static zf_status begin(family *f, found *r, const way *w)
{
    zf_error *error = &r->error;
    zf_status status = open_family(f, r->comm, r->folder, error);
    static const int first[] = {ACTOR, CRITIC, BASE};
    for (int k = 0; k < 3 && !status; k++) status = open_role(f, first[k], w, false, error);
    if (!status) status = step(f, BASE, 9, &r->first[0], error);
    for (int n = 0; n < 4 && !status; n++) status = step(f, n % 2, n, NULL, error);
    if (!status) status = open_role(f, REFERENCE, w, false, error);
    if (!status)
        status = say(error, zf_lora_copy(f->store, "ref", "actor"), zf_store_error(f->store));
    if (!status) status = step(f, REFERENCE, 9, &r->first[1], error);
    return status;
}

/* The checkpoint of the adapters goes on in another store, over the same base. */
static zf_status go_on(family *f, found *r, const way *w)
{
    zf_error *error = &r->error;
    zf_status status = open_family(f, r->comm, r->folder, error);
    if (!status)
        status = say(error, zf_load(f->store, r->path, &(zf_load_desc){.merge = true}),
                     zf_store_error(f->store));
    for (int k = 0; k < PROGRAMS && !status; k++) status = open_role(f, k, w, true, error);
    return status;
}

static void *work(void *user)
{
    found *r = user;
    family f = {.store = NULL}, again = {.store = NULL};
    zf_status status = begin(&f, r, &r->way);
    if (!status)
        status = say(&r->error, zf_save(f.store, r->path, &(zf_save_desc){.select = is_trained}),
                     zf_store_error(f.store));
    if (!status) status = go_on(&again, r, &r->way);
    for (int n = 4; n < 8 && !status; n++) {
        status = step(&f, n % 2, n, NULL, &r->error);
        if (!status) status = step(&again, n % 2, n, NULL, &r->error);
    }
    if (!status) status = step(&f, BASE, 9, &r->last[0], &r->error);
    if (!status) status = step(&f, REFERENCE, 9, &r->last[1], &r->error);
    if (!status) status = step(&again, REFERENCE, 9, &r->last[2], &r->error);
    if (!status) status = take_image(f.store, r->images[0], &r->bytes[0], &r->error);
    if (!status) status = take_image(again.store, r->images[1], &r->bytes[1], &r->error);
    close_family(&again);
    close_family(&f);
    return NULL;
}

static void free_images(void *user)
{
    found *r = user;
    for (int k = 0; k < RANKS + 1; k++) free(r[k].images[0]), free(r[k].images[1]);
}

/* Runs a way on `world` ranks; into r[0..world). */
static bool run_way(test *t, found *r, int32_t world, const way *w)
{
    zf_error error = {ZF_OK, ""};
    zf_local *group = zf_local_new(&(zf_local_desc){.world = world}, &error);
    pthread_t threads[RANKS];
    if (!group) return false;
    for (int32_t k = 0; k < world; k++) {
        found *one = &r[k];
        *one = (found){.comm = zf_local_comm(group, k),
                       .way = *w,
                       .images = {one->images[0], one->images[1]}};
        snprintf(one->folder, sizeof one->folder, "%s", test_path("adapters-disk"));
        snprintf(one->path, sizeof one->path, "%s", test_path("adapters"));
        mkdir(one->folder, 0700);
        if (pthread_create(&threads[k], NULL, work, one)) abort();
    }
    for (int32_t k = 0; k < world; k++) pthread_join(threads[k], NULL);
    zf_local_free(group);
    for (int32_t k = 0; k < world; k++)
        if (r[k].error.status) {
            test_fail(t, __FILE__, __LINE__, "a rank", r[k].error.text);
            return false;
        }
    return true;
}

/* What every rank has found is what one rank at stage 0 has. */
static void check_found(test *t, const found *a, const found *expected)
{
    CHECK(t, a->bytes[0] && a->bytes[0] == expected->bytes[0] &&
                 !memcmp(a->images[0], expected->images[0], a->bytes[0]));
    CHECK(t, a->bytes[1] == a->bytes[0] && !memcmp(a->images[0], a->images[1], a->bytes[0]));
    CHECK(t, !memcmp(a->first, expected->first, sizeof a->first));
    CHECK(t, a->first[0] == a->last[0] && a->first[1] == a->last[1] && a->last[1] == a->last[2] &&
                 a->first[0] != a->first[1]);
}

/* Ways of `world` ranks, of which the first is that of one rank at stage 0. */
static void check_ways(test *t, zf_dtype dtype)
{
    static const struct {
        int32_t world;
        way way;
    } ways[] = {
        {1, {.stage = 0, .other_stage = 3}},
        {1, {.stage = 0, .offload = {.parameters = ZF_HOST, .optimizer = ZF_HOST}, .other_stage = 1}},
        {2, {.stage = 3, .other_stage = 0, .other_offload = {.optimizer = ZF_HOST}}},
        {2, {.stage = 1, .offload = {.optimizer = ZF_DISK}, .other_stage = 2}},
        {4, {.stage = 2, .other_stage = 3, .other_offload = {.parameters = ZF_HOST}}},
        {4, {.stage = 3, .offload = {.parameters = ZF_DISK, .optimizer = ZF_HOST}}},
    };
    static found found_by[1 + RANKS]; /* the first is what is expected */
    memset(found_by, 0, sizeof found_by);
    for (int k = 0; k < 1 + RANKS; k++)
        for (int n = 0; n < 2; n++) found_by[k].images[n] = malloc(IMAGE);
    test_defer(t, free_images, found_by);
    for (int k = 0; k < 1 + RANKS; k++) CHECK(t, found_by[k].images[0] && found_by[k].images[1]);
    for (size_t k = 0; k < sizeof ways / sizeof *ways && !t->failed; k++) {
        way w = ways[k].way;
        w.dtype = dtype;
        if (!run_way(t, found_by + (k > 0), ways[k].world, &w)) return;
        for (int32_t r = 0; r < ways[k].world && !t->failed; r++)
            check_found(t, &found_by[(k > 0) + r], &found_by[0]);
    }
}

TEST_ONCE(adapters_over_one_base_keep_the_bits) { check_ways(t, ZF_F32); }

TEST_ONCE(adapters_over_one_base_keep_the_bits_of_bf16) { check_ways(t, ZF_BF16); }
