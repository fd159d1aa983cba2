/* Checkpoints of ranks: a checkpoint of any stage and world can be resumed at any other with the
 * same bits; no rank holds more than its shards; damaged, missing or contradictory files are named;
 * a failure on one rank is a failure on all and changes nothing. */
#if defined(__linux__)
#define _GNU_SOURCE
#else
#define _DARWIN_C_SOURCE
#endif
#include "checkpoint_files.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

/* --------------------------------------------------------------------------------------- models */

enum {
    RANKS = 4,  /* of one node at most, */
    MOST = 12,  /* and of several */
    SLOTS = 12, /* parts of the global batch, which 1, 2, 3 and 4 ranks share */
    ROWS = 2,
    IN = 37,
    HIDDEN = 71, /* 2627 weights: three blocks of 1024 */
    OUT = 5
};

typedef struct model_desc {
    int32_t stage, world;
    int32_t nodes; /* in which the ranks are; 0: 1 */
    bool hpz, mics, weights, gradients, loco; /* weights and gradients: quantised */
    bool lamb;
    bool tiny; /* a few elements, so that every byte of a checkpoint can be tried */
    size_t bucket;
    uint64_t seed;
    zf_dtype dtype;      /* of the parameters */
    zf_space offload;    /* where states of the optimizer lie */
    bool forward;        /* no optimizer */
    zf_backend *backend; /* of the last rank; NULL: its own */
    zf_local *group;     /* NULL: lockstep */
    zf_comm *last;       /* of the last rank, instead of the group's */
} model_desc;

/* The ranks of one model. */
typedef struct model {
    int32_t world;
    zf_comm comms[MOST]; /* say who is who; lockstep needs no more */
    zf_graph *graphs[MOST];
    zf_program *programs[MOST];
    zf_lockstep_desc lockstep;
} model;

static void model_free(void *object)
{
    model *m = object;
    for (int r = 0; r < MOST; r++) zf_program_free(m->programs[r]);
    for (int r = 0; r < MOST; r++) zf_graph_free(m->graphs[r]);
    *m = (model){.world = 0};
}

static zf_status fails_with(zf_error *error, zf_status status, const char *text)
{
    error->status = status;
    snprintf(error->text, sizeof error->text, "%s", text);
    return status;
}

/* A perceptron with dropout, clipping and an optimizer. Frees what `m` was. */
static zf_status model_new(test *t, model *m, const model_desc *d, zf_error *error)
{
    const int64_t in = d->tiny ? 2 : IN, hidden = d->tiny ? 3 : HIDDEN, out = d->tiny ? 1 : OUT;
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3, .dtype = d->dtype},
                        zeros = {.dtype = d->dtype};
    const zf_allocator *allocator = d->group ? NULL : &t->allocator; /* it is of one thread */
    model_free(m);
    m->world = d->world;
    m->lockstep = (zf_lockstep_desc){m->programs, d->world, 0};
    for (int32_t r = 0; r < d->world; r++) {
        zf_graph_desc gd = {.allocator = allocator ? *allocator : (zf_allocator){NULL, NULL}};
        zf_graph *g = m->graphs[r] = zf_graph_new(&gd);
        const zf_comm *comm;
        const bool last = r == d->world - 1;
        zf_tensor x, y, lr, h, loss;
        if (!g) return fails_with(error, ZF_ERR_NOMEM, "out of memory");
        x = zf_cast(zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, in)), d->dtype);
        y = zf_cast(zf_input(g, "y", ZF_F32, ZF_SHAPE(ROWS, out)), d->dtype);
        lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
        h = zf_matmul(x, zf_param(g, "in.weight", ZF_SHAPE(in, hidden), &normal));
        h = zf_dropout(zf_tanh(zf_add(h, zf_param(g, "in.bias", ZF_SHAPE(hidden), &zeros))), 0.3);
        h = zf_matmul(h, zf_param(g, "out.weight", ZF_SHAPE(hidden, out), &normal));
        h = zf_sub(zf_mul(h, zf_param(g, "out.scale", ZF_SCALAR, &normal)), y);
        loss = zf_scale(zf_mean(zf_cast(zf_mul(h, h), ZF_F32)), 1.0 / SLOTS);
        zf_output(loss, "error");
        zf_training training = {.loss = d->forward ? (zf_tensor){0} : loss,
                                .lr = lr,
                                .fuse.without = "all",
                                .clip = 0.1,
                                .optimizer = d->lamb ? ZF_LAMB : ZF_ADAMW,
                                .zero = {.stage = d->stage,
                                         .world = d->world,
                                         .nodes = d->nodes,
                                         .hpz = d->hpz,
                                         .mics = d->mics,
                                         .quantized_weights = d->weights,
                                         .quantized_gradients = d->gradients,
                                         .loco = d->loco,
                                         .micro_batches = d->forward ? 1 : SLOTS / d->world,
                                         .bucket_bytes = d->bucket},
                                .offload.optimizer = d->offload};
        test_set(&training, "weight-decay", 0.01);
        zf_passes(g, &training);
        m->comms[r] = (zf_comm){.rank = r, .world = d->world};
        comm = d->group ? zf_local_comm(d->group, r) : d->world > 1 ? &m->comms[r] : NULL;
        if (last && d->last) comm = d->last;
        m->programs[r] = zf_compile(
            g,
            &(zf_compile_desc){.seed = d->seed, .backend = last ? d->backend : NULL, .comm = comm});
        if (!m->programs[r]) return fails_with(error, zf_graph_status(g), zf_graph_error(g));
    }
    return ZF_OK;
}

/* What slot `slot` of step `step` is trained on. */
static zf_status feed(model *m, int32_t r, int64_t slot, int64_t step)
{
    zf_graph *g = m->graphs[r];
    zf_program *p = m->programs[r];
    zf_tensor x = zf_graph_find(g, "x"), y = zf_graph_find(g, "y");
    float values[ROWS * IN], lr = 0.01f * (float)(step + 1);
    size_t bytes = zf_tensor_bytes(x);
    zf_status status;
    for (size_t i = 0; i < bytes / 4; i++)
        values[i] = (float)((int64_t)(i * 7) + step * 3 + slot * 5 - 20) / 211;
    if ((status = zf_write(p, x, values, bytes))) return status;
    bytes = zf_tensor_bytes(y);
    for (size_t i = 0; i < bytes / 4; i++) values[i] = (float)((int64_t)i + step - slot) / 13;
    if ((status = zf_write(p, y, values, bytes))) return status;
    return zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr);
}

/* Trains until `steps` are done; losses[step] is that of each. */
static zf_status train(model *m, int64_t steps, float *losses, zf_error *error)
{
    for (int64_t step; (step = zf_program_step(m->programs[0])) < steps;) {
        zf_status status = ZF_OK;
        for (int64_t slot = 0; slot < SLOTS && !status; slot++) {
            int32_t r = (int32_t)(slot % m->world);
            if (feed(m, r, slot, step)) return fails_with(error, ZF_ERR_NOMEM, "not fed");
            if (r < m->world - 1) continue;
            if (m->world > 1)
                status = slot == SLOTS - 1 ? zf_lockstep_step(&m->lockstep, error)
                                           : zf_lockstep_micro(&m->lockstep, error);
            else if ((status =
                          slot == SLOTS - 1 ? zf_step(m->programs[0]) : zf_micro(m->programs[0])))
                fails_with(error, status, zf_program_error(m->programs[0]));
        }
        if (!status)
            status = zf_read(m->programs[0], zf_graph_find(m->graphs[0], "error"), &losses[step],
                             sizeof *losses);
        if (status) return status;
    }
    return ZF_OK;
}

static const char *const leaves[] = {"in.weight", "in.bias", "out.weight", "out.scale"};
static const char *const kinds[] = {
    "", "adamw.step", "adamw.m/", "adamw.v/", "adamw.master/", "lamb.step", "lamb.m/", "lamb.v/"};

enum { IMAGE = 1 << 17 };

/* Every parameter and state, one after the other; returns their bytes, 0 on failure. */
static size_t image_of(model *m, unsigned char image[IMAGE])
{
    size_t at = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++) {
            bool step = strstr(kinds[k], ".step") != NULL;
            char name[64];
            zf_error error = {ZF_OK, ""};
            zf_tensor tensor;
            size_t bytes;
            snprintf(name, sizeof name, "%s%s", kinds[k], step ? "" : leaves[i]);
            tensor = zf_graph_find(m->graphs[0], name);
            bytes = zf_tensor_bytes(tensor);
            if (!zf_valid(tensor) || (step && i)) continue;
            if (at + bytes > IMAGE ||
                zf_lockstep_read(&m->lockstep, name, image + at, bytes, &error))
                return 0;
            at += bytes;
        }
    return at;
}

static bool same_image(model *a, model *b)
{
    static unsigned char of_a[IMAGE], of_b[IMAGE];
    size_t bytes = image_of(a, of_a);
    return bytes && bytes == image_of(b, of_b) && !memcmp(of_a, of_b, bytes);
}

/* ---------------------------------------------------------------------------------------- files */

static bool exists(const char *path, const char *name)
{
    struct stat about;
    return stat(join(path, name), &about) == 0;
}

/* How many files a checkpoint has whose names begin with `start`. */
static int count_files(const char *path, const char *start)
{
    int count = 0;
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        count += entry->d_name[0] != '.' && !strncmp(entry->d_name, start, strlen(start));
    if (directory) closedir(directory);
    return count;
}

static void remove_all(const char *path)
{
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        unlink(join(path, entry->d_name[0] == '.' ? "none" : entry->d_name));
    if (directory) closedir(directory);
    rmdir(path);
}

static bool no_debris(const char *path)
{
    return !exists(path, ".zf-new") && !exists(path, ".zf-old");
}

static bool put_sum(char *digits, uint32_t crc)
{
    char sum[16];
    snprintf(sum, sizeof sum, "%08x", (unsigned)crc);
    memcpy(digits, sum, 8);
    return true;
}

/* Replaces the first `from` of a file of JSON (NULL: nothing) by `to`, and makes the checksums
 * around it right again. */
static bool edit(const char *path, const char *name, const char *from, const char *to)
{
    static char text[TEXT], edited[TEXT + 512];
    char key[80], *at, *sum = NULL;
    long bytes = get_file(path, name, text);
    int length;
    if (bytes < 0 || !(at = from ? strstr(text, from) : text)) return false;
    length = from ? snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to,
                             at + strlen(from))
                  : snprintf(edited, sizeof edited, "%s", text);
    if (strcmp(name, "manifest.json")) {
        if (!put_file(path, name, edited, length)) return false;
        bytes = get_file(path, "manifest.json", text);
        snprintf(key, sizeof key, "\"%s\": \"", name);
        if (bytes < 0 || !(at = strstr(text, key))) return false;
        put_sum(at + strlen(key), crc32c(edited, length));
        length = snprintf(edited, sizeof edited, "%s", text);
    }
    for (char *next = edited; (next = strstr(next, "\n  \"crc32c\": \"")); next++) sum = next + 14;
    if (!sum) return false;
    put_sum(sum, crc32c(edited, sum - 1 - edited));
    return put_file(path, "manifest.json", edited, length);
}

/* The text with PATH for the path. */
static const char *without(const char *text, const char *path)
{
    static char out[1024];
    size_t at = 0, length = strlen(path);
    while (*text && at < sizeof out - 8) {
        bool here = !strncmp(text, path, length);
        at +=
            (size_t)snprintf(out + at, sizeof out - at, "%.*s", here ? 4 : 1, here ? "PATH" : text);
        text += here ? length : 1;
    }
    out[at] = '\0';
    return out;
}

/* ------------------------------------------------------------------------------------- going on */

/* The files at which a checkpoint of (stage, world) is recognised. */
static void has_files(test *t, const char *path, int32_t stage, int32_t world)
{
    bool cut = stage && world > 1;
    CHECK(t, count_files(path, "rank-") == (cut ? world : 0));
    CHECK(t, exists(path, "params.safetensors") == (stage < 3 || world == 1));
    CHECK(t, exists(path, "state.safetensors")); /* the count of steps is never cut */
    CHECK(t, (count_files(path, "state.rank-") > 1) == cut);
    CHECK(t, (count_files(path, "params.rank-") > 1) == (cut && stage == 3));
}

/* From every stage and world to every stage and world, with buckets of other sizes, and with the
 * optimizer on the device or on the host. */
static void goes_on(test *t, bool lamb)
{
    enum { SAVED = 2, DONE = 4 };
    static const size_t buckets[] = {0, 3000, 300000, 12000};
    static model straight, saved, loaded[4][RANKS];
    char path[300];
    float losses[DONE], others[DONE];
    zf_error error = {ZF_OK, ""};
    model_desc d = {.world = 1, .lamb = lamb, .seed = 5};
    test_defer(t, model_free, &straight);
    test_defer(t, model_free, &saved);
    OK(t, model_new(t, &straight, &d, &error), error.text);
    OK(t, train(&straight, DONE, losses, &error), error.text);
    for (int k = 0; k < 4 * RANKS; k++) {
        model *m = &loaded[k / RANKS][k % RANKS];
        d = (model_desc){.stage = k / RANKS, .world = k % RANKS + 1, .lamb = lamb, .seed = 77};
        d.bucket = buckets[(k + 1) % 4];
        d.offload = k % 2 ? ZF_HOST : ZF_DEVICE;
        test_defer(t, model_free, m);
        OK(t, model_new(t, m, &d, &error), error.text);
    }
    for (int k = 0; k < 4 * RANKS; k++) {
        d = (model_desc){.stage = k / RANKS, .world = k % RANKS + 1, .lamb = lamb, .seed = 5};
        d.bucket = buckets[k * 3 % 4];
        d.offload = k / 2 % 2 ? ZF_HOST : ZF_DEVICE;
        OK(t, model_new(t, &saved, &d, &error), error.text);
        OK(t, train(&saved, SAVED, others, &error), error.text);
        CHECK(t, !memcmp(losses, others, SAVED * sizeof *losses));
        snprintf(path, sizeof path, "%s", test_path("going-on"));
        OK(t, zf_lockstep_save(&saved.lockstep, path, NULL, &error), error.text);
        has_files(t, path, d.stage, d.world);
        for (int n = 0; n < 4 * RANKS; n++) {
            model *m = &loaded[n / RANKS][n % RANKS];
            if (!TEST_TAKES(k + n)) continue;
            for (int32_t r = 0; r < m->world; r++) /* a step that is not ended leaves nothing */
                OK(t, feed(m, r, 7, 7), zf_program_error(m->programs[r]));
            OK(t, zf_lockstep_micro(&m->lockstep, &error), error.text);
            OK(t, zf_lockstep_load(&m->lockstep, path, NULL, &error), error.text);
            for (int32_t r = 0; r < m->world; r++)
                CHECK(t, zf_program_step(m->programs[r]) == SAVED);
            CHECK(t, same_image(&saved, m));
            OK(t, train(m, DONE, others, &error), error.text);
            CHECK(t, !memcmp(losses, others, sizeof losses) && same_image(&straight, m));
        }
    }
}

TEST_ONCE(shards_go_on_adamw) { goes_on(t, false); }
TEST_ONCE(shards_go_on_lamb) { goes_on(t, true); }

/* Two ranks in each node, in f32 and in 16 bits: every stage, number of nodes and micro-batches, hpz,
 * mics and bucket has the bits of two nodes at stage 0, and goes on from what the others saved. What
 * nodes have of one another is saved once. One node goes on from it as well. */
TEST_ONCE(shards_of_nodes)
{
    enum { SAVED = 2, DONE = 3, CASES = 13 };
    static const model_desc cases[CASES] = {
        {.stage = 0, .world = 4, .nodes = 2},
        {.stage = 1, .world = 4, .nodes = 2, .bucket = 3000},
        {.stage = 2, .world = 6, .nodes = 3},
        {.stage = 3, .world = 6, .nodes = 3, .bucket = 3000},
        {.stage = 3, .world = 4, .nodes = 2, .bucket = 12000, .offload = ZF_HOST},
        {.stage = 3, .world = 4, .nodes = 2, .hpz = true},
        {.stage = 3, .world = 6, .nodes = 3, .hpz = true, .bucket = 3000},
        {.stage = 1, .world = 6, .nodes = 3, .mics = true},
        {.stage = 2, .world = 4, .nodes = 2, .mics = true, .bucket = 3000},
        {.stage = 3, .world = 4, .nodes = 2, .mics = true},
        {.stage = 3, .world = 6, .nodes = 3, .mics = true, .bucket = 3000, .offload = ZF_HOST},
        {.stage = 0, .world = 12, .nodes = 6},
        {.stage = 3, .world = 12, .nodes = 6, .mics = true},
    };
    static model first, saved, loaded, flat;
    char path[300];
    float losses[DONE], others[DONE];
    zf_error error = {ZF_OK, ""};
    model_desc d;
    test_defer(t, model_free, &first);
    test_defer(t, model_free, &saved);
    test_defer(t, model_free, &loaded);
    test_defer(t, model_free, &flat);
    for (int way = 0; way < 4; way++) {
        const bool lamb = way & 1;
        const zf_dtype dtype = way < 2 ? ZF_F32 : ZF_BF16;
        d = cases[0], d.seed = 5, d.lamb = lamb, d.dtype = dtype;
        OK(t, model_new(t, &first, &d, &error), error.text);
        OK(t, train(&first, DONE, losses, &error), error.text);
        d = (model_desc){.stage = 2, .world = 3, .lamb = lamb, .dtype = dtype};
        OK(t, model_new(t, &flat, &d, &error), error.text);
        for (int k = way; k < CASES; k += 1 + lamb) {
            if (!TEST_TAKES(k + way)) continue;
            d = cases[k], d.seed = 5, d.lamb = lamb, d.dtype = dtype;
            OK(t, model_new(t, &saved, &d, &error), error.text);
            OK(t, train(&saved, SAVED, others, &error), error.text);
            CHECK(t, !memcmp(losses, others, SAVED * sizeof *losses));
            snprintf(path, sizeof path, "%s", test_path("nodes"));
            OK(t, zf_lockstep_save(&saved.lockstep, path, NULL, &error), error.text);
            has_files(t, path, d.stage, d.world);
            OK(t, zf_lockstep_load(&flat.lockstep, path, NULL, &error), error.text);
            CHECK(t, same_image(&saved, &flat));
            d = cases[(k + 4 + lamb) % CASES], d.seed = 7, d.lamb = lamb, d.dtype = dtype;
            OK(t, model_new(t, &loaded, &d, &error), error.text);
            OK(t, zf_lockstep_load(&loaded.lockstep, path, NULL, &error), error.text);
            CHECK(t, same_image(&saved, &loaded));
            OK(t, train(&loaded, DONE, others, &error), error.text);
            CHECK(t, !memcmp(losses + SAVED, others + SAVED, (DONE - SAVED) * sizeof *losses));
            CHECK(t, same_image(&first, &loaded));
        }
    }
}

/* Quantised gradients, with error feedback too: stages 1 to 3, with states on the host too, have the
 * same bits, and go on from what the others saved. Quantised weights: a run that was interrupted has the bits of one
 * that was not; what is saved is not rounded. */
TEST_ONCE(shards_of_quantized)
{
    enum { SAVED = 2, DONE = 3, ALIKE = 4, CASES = 10 };
    static const model_desc cases[CASES] = {
        {.stage = 2, .world = 4, .nodes = 2, .gradients = true},
        {.stage = 1, .world = 4, .nodes = 2, .gradients = true, .bucket = 3000},
        {.stage = 3, .world = 4, .nodes = 2, .gradients = true, .hpz = true},
        {.stage = 3, .world = 4, .nodes = 2, .gradients = true, .offload = ZF_HOST},
        {.stage = 3, .world = 4, .nodes = 2, .gradients = true, .weights = true, .hpz = true},
        {.stage = 3, .world = 4, .nodes = 2, .gradients = true, .weights = true, .loco = true},
        {.stage = 2, .world = 6, .nodes = 3, .gradients = true, .loco = true, .offload = ZF_HOST},
        {.stage = 1, .world = 3, .gradients = true, .loco = true, .bucket = 3000},
        {.stage = 3, .world = 6, .nodes = 2, .gradients = true, .loco = true, .mics = true},
        {.stage = 3, .world = 3, .weights = true, .bucket = 3000, .offload = ZF_HOST},
    };
    static model first, saved, loaded;
    const char *path = test_path("quantized");
    float losses[DONE], others[DONE];
    zf_error error = {ZF_OK, ""};
    test_defer(t, model_free, &first);
    test_defer(t, model_free, &saved);
    test_defer(t, model_free, &loaded);
    for (int k = 0; k < CASES; k++) {
        model_desc d = cases[k];
        d.seed = 5;
        if (!k || k >= ALIKE) {
            OK(t, model_new(t, &first, &d, &error), error.text);
            OK(t, train(&first, DONE, losses, &error), error.text);
        }
        OK(t, model_new(t, &saved, &d, &error), error.text);
        OK(t, train(&saved, SAVED, others, &error), error.text);
        CHECK(t, !memcmp(losses, others, SAVED * sizeof *losses));
        OK(t, zf_lockstep_save(&saved.lockstep, path, NULL, &error), error.text);
        d = cases[k < ALIKE ? (k + 1) % ALIKE : k], d.seed = 7;
        OK(t, model_new(t, &loaded, &d, &error), error.text);
        OK(t, zf_lockstep_load(&loaded.lockstep, path, NULL, &error), error.text);
        CHECK(t, same_image(&saved, &loaded));
        OK(t, train(&loaded, DONE, others, &error), error.text);
        CHECK(t, !memcmp(losses + SAVED, others + SAVED, (DONE - SAVED) * sizeof *losses));
        CHECK(t, same_image(&first, &loaded));
    }
}

/* Small, for the run in which every allocation is refused in turn. */
TEST(shards_save_and_load)
{
    static model a, b;
    const char *path = test_path("small");
    zf_error error = {ZF_OK, ""};
    float losses[1];
    test_defer(t, model_free, &a);
    test_defer(t, model_free, &b);
    OK(t,
       model_new(t, &a,
                 &(model_desc){
                     .stage = 3, .world = 2, .tiny = true, .seed = 1, .offload = ZF_HOST},
                 &error),
       error.text);
    OK(t, model_new(t, &b, &(model_desc){.stage = 1, .world = 3, .tiny = true, .seed = 2}, &error),
       error.text);
    OK(t, train(&a, 1, losses, &error), error.text);
    OK(t, zf_lockstep_save(&a.lockstep, path, NULL, &error), error.text);
    OK(t, zf_lockstep_load(&b.lockstep, path, NULL, &error), error.text);
    CHECK(t, same_image(&a, &b) && zf_program_step(b.programs[2]) == 1);
}

enum { LARGE = 5000003 }; /* floats: 20 MB, three pieces for each of two ranks */

/* One parameter, at stage 3, and one without elements, of which no rank has a part. */
static zf_status large_new(test *t, model *m, int32_t world, zf_error *error)
{
    m->world = world;
    m->lockstep = (zf_lockstep_desc){m->programs, world, 0};
    for (int32_t r = 0; r < world; r++) {
        zf_graph *g = m->graphs[r] = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        if (!g) return fails_with(error, ZF_ERR_NOMEM, "out of memory");
        zf_output(zf_sum(zf_param(g, "w", ZF_SHAPE(LARGE), NULL)), "sum");
        zf_output(zf_sum(zf_param(g, "none", ZF_SHAPE(3, 0), NULL)), "nothing");
        zf_zero(g, &(zf_zero_desc){.stage = 3, .world = world});
        m->comms[r] = (zf_comm){.rank = r, .world = world};
        m->programs[r] = zf_compile(g, &(zf_compile_desc){.comm = world > 1 ? &m->comms[r] : NULL});
        if (!m->programs[r]) return fails_with(error, zf_graph_status(g), zf_graph_error(g));
    }
    return ZF_OK;
}

/* Puts the lists of checksums of a checkpoint of one rank into the words of format 1: one checksum
 * for each tensor. */
static bool to_format_1(const char *path, const float *values)
{
    static char text[TEXT];
    char list[200], sum[64];
    char *at = get_file(path, "manifest.json", text) > 0 ? strstr(text, "\"crc32c\": [") : NULL;
    while (at && at[strlen("\"crc32c\": [")] == ']') at = strstr(at + 1, "\"crc32c\": [");
    if (!at) return false; /* the list of the one that is not empty */
    snprintf(list, sizeof list, "%.*s", (int)(strchr(at, ']') + 1 - at), at);
    snprintf(sum, sizeof sum, "\"crc32c\": \"%08x\"",
             (unsigned)crc32c((const char *)values, LARGE * 4L));
    return edit(path, "manifest.json", list, sum) &&
           edit(path, "manifest.json", "\"crc32c\": []", "\"crc32c\": \"00000000\"") &&
           edit(path, "manifest.json", "\"format\": 2", "\"format\": 1");
}

/* Saving and loading take a piece of memory for each rank, however large the tensors are, and parts
 * of several pieces end up where they belong, also those of one whole tensor under one checksum. */
TEST_ONCE(shards_take_little_memory)
{
    enum { PIECE = 4 << 20, MORE = 1 << 20 };
    const char *path = test_path("large"), *old = test_path("old");
    static model m[3];
    static float values[LARGE], back[LARGE];
    zf_error error = {ZF_OK, ""};
    FILE *file;
    long before;
    for (int k = 0; k < 3; k++) {
        test_defer(t, model_free, &m[k]);
        OK(t, large_new(t, &m[k], k + 1, &error), error.text);
    }
    for (int32_t i = 0; i < LARGE; i++) values[i] = (float)(i % 16777213);
    for (int32_t r = 0; r < 2; r++)
        OK(t, zf_write(m[1].programs[r], zf_graph_find(m[1].graphs[r], "w"), values, sizeof values),
           zf_program_error(m[1].programs[r]));
    before = t->peak_bytes = t->live_bytes;
    OK(t, zf_lockstep_save(&m[1].lockstep, path, NULL, &error), error.text);
    CHECK(t, t->peak_bytes - before < 2 * PIECE + MORE);
    before = t->peak_bytes = t->live_bytes;
    OK(t, zf_lockstep_load(&m[2].lockstep, path, NULL, &error), error.text);
    CHECK(t, t->peak_bytes - before < 3 * PIECE + MORE);
    OK(t, zf_lockstep_read(&m[2].lockstep, "w", back, sizeof back, &error), error.text);
    CHECK(t, !memcmp(values, back, sizeof values));
    OK(t, zf_load(STORE(m[0].programs[0]), path, NULL), STORE_ERROR(m[0].programs[0]));
    /* The last piece is read by the rank that has it, and no other. */
    file = fopen(join(path, "params.rank-00001-of-00002.safetensors"), "r+b");
    CHECK(t, file && !fseek(file, -1, SEEK_END) && fputc(1, file) == 1 && !fclose(file));
    CHECK(t, zf_lockstep_load(&m[2].lockstep, path, NULL, &error) == ZF_ERR_FORMAT);
    CHECK(t, !strncmp(error.text, "rank 2: ", 8) && strstr(error.text, ": w[2500608:5000003]: "));
    error = (zf_error){ZF_OK, ""};
    remove_all(path);

    OK(t, zf_save(STORE(m[0].programs[0]), old, NULL), STORE_ERROR(m[0].programs[0]));
    CHECK(t, to_format_1(old, values));
    memset(back, 0, sizeof back);
    for (int32_t r = 0; r < 3; r++)
        OK(t, zf_write(m[2].programs[r], zf_graph_find(m[2].graphs[r], "w"), back, sizeof back),
           zf_program_error(m[2].programs[r]));
    before = t->peak_bytes = t->live_bytes;
    OK(t, zf_lockstep_load(&m[2].lockstep, old, NULL, &error), error.text);
    CHECK(t, t->peak_bytes - before < 3 * PIECE + MORE);
    OK(t, zf_lockstep_read(&m[2].lockstep, "w", back, sizeof back, &error), error.text);
    CHECK(t, !memcmp(values, back, sizeof values));
    file = fopen(join(old, "params.safetensors"), "r+b");
    CHECK(t, file && !fseek(file, -1, SEEK_END) && fputc(1, file) == 1 && !fclose(file));
    CHECK(t, zf_lockstep_load(&m[2].lockstep, old, NULL, &error) == ZF_ERR_FORMAT);
    CHECK(t, strstr(error.text, "/params.safetensors: w: checksum "));
    remove_all(old);
}

/* ------------------------------------------------------------------------------- other programs */

/* Files of ranks 1 to 3 have their only tensor at one place, under one length of names: each is read.
 */
TEST(shards_of_one_parameter)
{
    static const char text[] =
        "zero stage=3 world=4 micro_batches=1\n%1 = param \"w\" {init=uniform a=-1 b=1} : f32[4096]\n"
        "%2 = bucket %1 {at=[0] size=4096 world=4} : f32[1024]\n"
        "%3 = all_gather %2 {world=4} : f32[4096]\noutput %3 \"y\"\n";
    static float saved[4096], loaded[4096];
    const char *path = test_path("one parameter");
    zf_comm comms[4];
    zf_program *programs[4];
    zf_error error = {ZF_OK, ""};
    const zf_lockstep_desc all = {programs, 4, 0};
    zf_store *whole;
    for (int r = 0; r < 4; r++) {
        zf_graph *g =
            zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        comms[r] = (zf_comm){.rank = r, .world = 4};
        programs[r] = zf_compile(g, &(zf_compile_desc){.comm = &comms[r], .seed = 3});
        OK(t, zf_graph_status(g), zf_graph_error(g));
        test_defer(t, (test_cleanup *)zf_program_free, programs[r]);
    }
    OK(t, zf_lockstep_read(&all, "w", saved, sizeof saved, &error), error.text);
    OK(t, zf_lockstep_save(&all, path, NULL, &error), error.text);
    NEED(t, whole = zf_store_new(&(zf_store_desc){.allocator = t->allocator}, &error), &error);
    test_defer(t, (test_cleanup *)zf_store_free, whole);
    OK(t, zf_load(whole, path, NULL), zf_store_error(whole));
    OK(t, zf_store_read(whole, "w", loaded, sizeof loaded), zf_store_error(whole));
    CHECK(t, saved[1] != 0 && !memcmp(saved, loaded, sizeof saved));
}

/* A graph without ranks and without an optimizer, as for evaluation and export. */
TEST_ONCE(shards_params_only)
{
    static model a, b;
    const char *path = test_path("params-only"), *whole = test_path("whole");
    const zf_load_desc only = {.params_only = true};
    static unsigned char image[IMAGE], other[IMAGE];
    zf_error error = {ZF_OK, ""};
    float losses[2];
    size_t bytes;
    test_defer(t, model_free, &a);
    test_defer(t, model_free, &b);
    OK(t, model_new(t, &a, &(model_desc){.stage = 3, .world = 3, .seed = 1}, &error), error.text);
    OK(t, train(&a, 2, losses, &error), error.text);
    OK(t, zf_lockstep_save(&a.lockstep, path, NULL, &error), error.text);
    OK(t, model_new(t, &b, &(model_desc){.world = 1, .forward = true}, &error), error.text);
    CHECK(t, zf_load(STORE(b.programs[0]), path, NULL) == ZF_ERR_MISMATCH);
    CHECK_TEXT(t, without(STORE_ERROR(b.programs[0]), path),
               "PATH/state.safetensors: the store has no state \"adamw.step\": "
               "the checkpoint is "
               "of another model or optimizer");
    OK(t, zf_load(STORE(b.programs[0]), path, &only), STORE_ERROR(b.programs[0]));
    bytes = image_of(&b, image);
    CHECK(t, image_of(&a, other) > bytes && !memcmp(image, other, bytes));
    CHECK(t, zf_program_step(b.programs[0]) == 0);
    /* The files of the states are not even looked at. */
    for (int r = 0; r < 3; r++) {
        char name[64];
        snprintf(name, sizeof name, "state.rank-%05d-of-00003.safetensors", r);
        CHECK(t, remove(join(path, name)) == 0);
    }
    OK(t, zf_load(STORE(b.programs[0]), path, &only), STORE_ERROR(b.programs[0]));
    OK(t, zf_save(STORE(b.programs[0]), whole, NULL), STORE_ERROR(b.programs[0]));
    CHECK(t, count_files(whole, "") == 2 && exists(whole, "params.safetensors"));
    /* Of another model */
    OK(t, model_new(t, &b, &(model_desc){.stage = 2, .world = 2, .tiny = true}, &error),
       error.text);
    CHECK(t, zf_lockstep_load(&b.lockstep, path, &only, &error) == ZF_ERR_MISMATCH);
    CHECK_TEXT(t, without(error.text, path),
               "rank 0: PATH/params.rank-00000-of-00003.safetensors: in.weight "
               "is f32[37,71], but "
               "f32[2,3] in the store");
    for (int r = 0; r < 2; r++) CHECK_TEXT(t, zf_program_error(b.programs[r]), error.text);
    error = (zf_error){ZF_OK, ""};
    OK(t, zf_lockstep_save(&b.lockstep, whole, NULL, &error), error.text);
    OK(t,
       model_new(t, &a, &(model_desc){.stage = 3, .world = 2, .tiny = true, .lamb = true}, &error),
       error.text);
    CHECK(t, zf_lockstep_load(&a.lockstep, whole, NULL, &error) == ZF_ERR_MISMATCH);
    CHECK_TEXT(t, without(error.text, whole),
               "rank 0: PATH/state.safetensors: the store has no state "
               "\"adamw.step\": the "
               "checkpoint is of another model or optimizer");
}

/* Master weights are states like others; parameters that are loaded alone make them anew, whatever
 * is cut. */
TEST_ONCE(shards_of_master_weights)
{
    static model a, b;
    const char *path = test_path("masters");
    zf_error error = {ZF_OK, ""};
    float losses[4], others[4];
    static unsigned char narrow[IMAGE];
    static float wide[IN * HIDDEN], want[IN * HIDDEN];
    const size_t bytes = (size_t)IN * HIDDEN * 2;
    test_defer(t, model_free, &a);
    test_defer(t, model_free, &b);
    for (int32_t k = 0; k < 16; k++) {
        model_desc d = {.stage = k / 4, .world = 2, .seed = 1, .dtype = ZF_BF16};
        OK(t, model_new(t, &a, &d, &error), error.text);
        OK(t, train(&a, 2, losses, &error), error.text);
        OK(t, zf_lockstep_save(&a.lockstep, path, NULL, &error), error.text);
        OK(t, train(&a, 4, losses, &error), error.text);
        d = (model_desc){.stage = k % 4, .world = 3, .seed = 9, .dtype = ZF_BF16, .bucket = 4000};
        OK(t, model_new(t, &b, &d, &error), error.text);
        OK(t, zf_lockstep_load(&b.lockstep, path, &(zf_load_desc){.params_only = true}, &error),
           error.text);
        OK(t, zf_lockstep_read(&b.lockstep, "in.weight", narrow, bytes, &error), error.text);
        OK(t, zf_lockstep_read(&b.lockstep, "adamw.master/in.weight", wide, sizeof wide, &error),
           error.text);
        zf_convert(want, ZF_F32, narrow, ZF_BF16, (size_t)IN * HIDDEN);
        CHECK(t, !memcmp(wide, want, sizeof wide));
        OK(t, zf_lockstep_load(&b.lockstep, path, NULL, &error), error.text);
        OK(t, zf_lockstep_read(&b.lockstep, "adamw.master/in.weight", wide, sizeof wide, &error),
           error.text);
        CHECK(t, memcmp(wide, want, sizeof wide));
        memcpy(others, losses, sizeof others);
        OK(t, train(&b, 4, others, &error), error.text);
        CHECK(t, same_image(&a, &b) && !memcmp(losses, others, sizeof losses));
    }
}

/* --------------------------------------------------------------------------------------- damage */

static const zf_note note = {"k", "v"};
static const zf_attachment attachment = {"a.txt", "hello", 5};
static const zf_save_desc noted = {
    .notes = &note, .note_count = 1, .attachments = &attachment, .attachment_count = 1};

/* A program of one rank, by zf_load, and one of two ranks in lockstep refuse, and nothing changes.
 * `text`: what the error says, or a part of it. */
static void refuses(test *t, model *one, model *two, const char *path, const char *file,
                    const char *text)
{
    static unsigned char before[2][IMAGE], after[IMAGE];
    size_t bytes = image_of(one, before[0]);
    zf_error error = {ZF_OK, ""};
    zf_status status = zf_load(STORE(one->programs[0]), path, NULL);
    const char *said = without(STORE_ERROR(one->programs[0]), path);
    CHECK(t, image_of(two, before[1]) == bytes && bytes);
    if (text) CHECK_TEXT(t, said, text);
    CHECK(t, status && strstr(said, file));
    CHECK(t, zf_program_step(one->programs[0]) == 0 && image_of(one, after) == bytes &&
                 !memcmp(before[0], after, bytes));
    CHECK(t, zf_lockstep_load(&two->lockstep, path, NULL, &error) && strstr(error.text, file));
    for (int r = 0; r < 2; r++) CHECK_TEXT(t, zf_program_error(two->programs[r]), error.text);
    CHECK(t, image_of(two, after) == bytes && !memcmp(before[1], after, bytes));
}

static const char *const of_two[] = {
    "manifest.json",
    "params.rank-00000-of-00002.safetensors",
    "params.rank-00001-of-00002.safetensors",
    "state.rank-00000-of-00002.safetensors",
    "state.rank-00001-of-00002.safetensors",
    "state.safetensors",
    "rank-00000-of-00002.json",
    "rank-00001-of-00002.json",
    "a.txt",
};

enum { OF_TWO = sizeof of_two / sizeof *of_two };

/* A bit of every byte turned over, files that end too early or too late, or are not there. */
TEST_ONCE(shards_any_damage_is_found)
{
    static model a, one, two;
    static char good[TEXT], bad[TEXT];
    const char *path = test_path("damaged");
    zf_error error = {ZF_OK, ""};
    float losses[1];
    char expected[600];
    test_defer(t, model_free, &a);
    test_defer(t, model_free, &one);
    test_defer(t, model_free, &two);
    OK(t, model_new(t, &a, &(model_desc){.stage = 3, .world = 2, .tiny = true}, &error),
       error.text);
    OK(t, model_new(t, &one, &(model_desc){.world = 1, .tiny = true, .seed = 2}, &error),
       error.text);
    OK(t,
       model_new(t, &two, &(model_desc){.stage = 2, .world = 2, .tiny = true, .seed = 3}, &error),
       error.text);
    OK(t, train(&a, 1, losses, &error), error.text);
    OK(t, zf_lockstep_save(&a.lockstep, path, &noted, &error), error.text);
    CHECK(t, count_files(path, "") == OF_TWO);
    for (int i = 0; i < OF_TWO && !t->failed; i++) {
        long bytes = get_file(path, of_two[i], good);
        FILE *file = fopen(join(path, of_two[i]), "r+b");
        CHECK(t, bytes > 0 && file);
        setbuf(file, NULL);
        for (long at = TEST_TURN; at < bytes && !t->failed; at += TEST_ONE_IN) {
            memcpy(bad, good, (size_t)bytes);
            bad[at] = (char)(bad[at] ^ 1 << at % 8);
            fseek(file, at, SEEK_SET), fputc(bad[at], file);
            if (at % 64 == 0) refuses(t, &one, &two, path, of_two[i], NULL);
            else if (!zf_load(STORE(one.programs[0]), path, NULL) ||
                     !strstr(STORE_ERROR(one.programs[0]), of_two[i]))
                test_fail(t, __FILE__, __LINE__, "damage is found",
                          STORE_ERROR(one.programs[0]));
            fseek(file, at, SEEK_SET), fputc(good[at], file);
        }
        fclose(file);
        for (long length = bytes - 1; length >= 0 && !t->failed; length -= length > 40 ? 31 : 1) {
            CHECK(t, truncate(join(path, of_two[i]), length) == 0);
            refuses(t, &one, &two, path, of_two[i], NULL);
            CHECK(t, put_file(path, of_two[i], good, bytes));
        }
        good[bytes] = ' ';
        CHECK(t, put_file(path, of_two[i], good, bytes + 1));
        refuses(t, &one, &two, path, of_two[i], NULL);
        CHECK(t, remove(join(path, of_two[i])) == 0);
        snprintf(expected, sizeof expected,
                 i ? "cannot open PATH/%s: No such file or directory"
                   : "PATH is no checkpoint: it has no %s",
                 of_two[i]);
        refuses(t, &one, &two, path, of_two[i], expected);
        CHECK(t, put_file(path, of_two[i], good, bytes));
    }
    OK(t, zf_load(STORE(one.programs[0]), path, NULL), STORE_ERROR(one.programs[0]));
    OK(t, zf_lockstep_load(&two.lockstep, path, NULL, &error), error.text);
    CHECK(t, same_image(&a, &one) && same_image(&a, &two));
}

/* What lists of ranks say that contradict themselves, though all checksums are right. */
TEST_ONCE(shards_lists_are_checked)
{
#define MANIFEST "manifest.json"
#define LIST(r)  "rank-0000" #r "-of-00003.json"
#define DATA(r)  "params.rank-0000" #r "-of-00003.safetensors"
    static const struct {
        const char *file, *from, *to, *text;
    } edits[] = {
        {LIST(0), "\"count\": 2048", "\"count\": 1024",
         "PATH/" DATA(0) ": in.weight[0:1024] is in " LIST(0) ", but not in the file"},
        {LIST(1), "\"first\": 2048", "\"first\": 2047",
         "PATH/" LIST(1) ":12:16: tensors[0].first is 2047, but the parts before "
                         "end at element "
                         "2048 of \"in.weight\": they overlap"},
        {LIST(1), "\"first\": 2048", "\"first\": 2049",
         "PATH/" LIST(1) ":13:16: tensors[0].count must be an integer from 1 to "
                         "578, not 579"},
        {LIST(1), "\"first\": 2048,\n      \"count\": 579",
         "\"first\": 2049,\n      \"count\": 578",
         "PATH/" LIST(1) ":12:16: tensors[0].first is 2049, but the parts before "
                         "end at element "
                         "2048 of \"in.weight\": what is between is missing"},
        {LIST(1), "\"count\": 579", "\"count\": 578",
         "PATH/" DATA(1) ": in.weight[2048:2626] is in " LIST(1) ", but not in the file"},
        {LIST(1), "\"count\": 579", "\"count\": 0",
         "PATH/" LIST(1) ":13:16: tensors[0].count must be an integer from 1 to "
                         "579, not 0"},
        {LIST(1), "\"first\": 2048", "\"first\": -1",
         "PATH/" LIST(1) ":12:16: tensors[0].first must be an integer from 0 to "
                         "2626, not -1"},
        {LIST(1), "\"first\": 2048", "\"first\": 2627",
         "PATH/" LIST(1) ":12:16: tensors[0].first must be an integer from 0 to "
                         "2626, not 2627"},
        {LIST(1), "\"first\": 2048", "\"first\": 18446744073709551616",
         "PATH/" LIST(1) ":12:16: tensors[0].first must be an integer from 0 to 2626, not "
                         "18446744073709551616"},
        {LIST(1), "\"first\": 2048,", "", "PATH/" LIST(1) ":7:5: tensors[0] lacks \"first\""},
        {LIST(1), "\"count\": 579,", "", "PATH/" LIST(1) ":7:5: tensors[0] lacks \"count\""},
        {LIST(1), "[37, 71]", "[37, 0]",
         "PATH/" LIST(1) ":7:5: tensors[0] is a part of no elements"},
        {LIST(1), "[37, 71]", "[71, 37]",
         "PATH/" DATA(1) ": in.weight is f32[71,37], but f32[37,71] in the store"},
        {LIST(1), "[37, 71],\n      \"first\": 2048,\n      \"count\": 579",
         "[4294967296, 2147483647], \"first\": 0, \"count\": 9223372032559808512",
         "PATH/" LIST(1) ":7:5: tensors[0] has more bytes than 64 bits count"},
        {LIST(1), "[37, 71]", "[4294967296, 2147483648]",
         "PATH/" LIST(1) ":11:16: tensors[0].shape has more elements than 64 bits count"},
        {LIST(1), "\"dtype\": \"f32\"", "\"dtype\": \"f64\"",
         "PATH/" DATA(1) ": in.weight is f64[37,71], but f32[37,71] in the store"},
        {LIST(1), "\"name\": \"in.weight\"", "\"name\": \"in.weighs\"",
         "PATH/" DATA(1) ": the store has no param \"in.weighs\": the "
                         "checkpoint is of another "
                         "model"},
        {LIST(1), "\"name\": \"in.bias\"", "\"name\": \"in.weight\"",
         "PATH/" DATA(1) ": in.weight is f32[71], but f32[37,71] in the store"},
        {LIST(2), "\"name\": \"out.weight\"", "\"name\": \"adamw.step\"",
         "PATH/" DATA(2) ": the store has no param \"adamw.step\": the "
                         "checkpoint is of another "
                         "model"},
        {LIST(1), "\"file\": \"" DATA(1), "\"file\": \"" DATA(0),
         "PATH/" LIST(1) ":14:15: tensors[0].file must be \"" DATA(1) "\", not \"" DATA(0) "\""},
        {LIST(1), "\"file\": \"", "\"file\": \"../",
         "PATH/" LIST(1) ":14:15: tensors[0].file must be \"" DATA(
             1) "\", not "
                "\"../params.rank-00001-of-00003.safetensor...\""},
        {LIST(1), "\"" DATA(1) "\": \"", "\"x\": \"",
         "PATH/" LIST(1) ":7:5: tensors[0] is in " DATA(1) ", which \"headers\" lacks"},
        {LIST(1), "\"headers\": {", "\"headers\": [], \"x\": {",
         "PATH/" LIST(1) ":2:14: headers must be an object, not an array"},
        {LIST(1), "\"tensors\": [", "\"tensors\": 1, \"x\": [",
         "PATH/" LIST(1) ":6:14: tensors must be an array, not 1"},
        {LIST(1), "\"tensors\"", "\"tensor\"",
         "PATH/" LIST(1) ":1:1: the top value lacks \"tensors\""},
        {LIST(1), "\"crc32c\": [", "\"crc32c\": [\"00000000\", ",
         "PATH/" LIST(1) ":15:17: tensors[0].crc32c has 2 checksums; 2316 bytes have 1"},
        {LIST(1), "{", "[",
         "PATH/" LIST(1) ":2:12: expected ',' or ']' in the array that began on "
                         "line 1, found ':'"},
        {LIST(1), "{", "[{}]", "PATH/" LIST(1) ":2:3: expected the end of the text, found '\"'"},
        /* A part twice */
        {LIST(2), "\"tensors\": [\n",
         "\"tensors\": [\n{\"name\": \"in.bias\", \"kind\": \"param\", "
         "\"dtype\": \"f32\", "
         "\"shape\": [71], \"first\": 0, \"count\": 71, \"file\": \"" DATA(
             2) "\", \"crc32c\": [\"00000000\"]},\n",
         "PATH/" LIST(2) ":7:78: tensors[0].first is 0, but the parts before end "
                         "at element 71 of "
                         "\"in.bias\": they overlap"},
        /* A part of what is whole */
        {LIST(0), "\"tensors\": [\n",
         "\"tensors\": [\n{\"name\": \"adamw.step\", \"kind\": \"state\", "
         "\"dtype\": \"i64\", "
         "\"shape\": [], \"first\": 0, \"count\": 1, \"file\": "
         "\"state.rank-00000-of-00003."
         "safetensors\", \"crc32c\": [\"00000000\"]},\n",
         "PATH/" LIST(0) ":7:79: tensors[0].first is 0, but the parts before end "
                         "at element 1 of "
                         "\"adamw.step\": they overlap"},
        /* The world */
        {MANIFEST, "\"" LIST(0) "\"", "\"rank-00000-of-00002.json\"",
         "PATH/" MANIFEST
         ":13:33: ranks.\"rank-00000-of-00002.json\" is not " LIST(0) ": rank 0 of 3"},
        {MANIFEST, "\"" LIST(1) "\"", "\"../" LIST(1) "\"",
         "PATH/" MANIFEST ":14:36: ranks.\"../" LIST(1) "\" is not " LIST(1) ": rank 1 of 3"},
        {MANIFEST, "\"" LIST(2) "\"", "\"rank-00003-of-00003.json\"",
         "PATH/" MANIFEST
         ":15:33: ranks.\"rank-00003-of-00003.json\" is not " LIST(2) ": rank 2 of 3"},
        {MANIFEST, "\"" LIST(2) "\": \"", "\"" LIST(2) "\": \"x", NULL},
        {MANIFEST, "\"ranks\": {", "\"ranks\": 3, \"x\": {",
         "PATH/" MANIFEST ":12:12: ranks must be an object, not 3"},
        {MANIFEST, "\"ranks\": {", "\"ranks\": {}, \"x\": {",
         "PATH/" MANIFEST ":17:14: headers lacks \"params.safetensors\""},
        {MANIFEST, "\"ranks\"", "\"rank\"",
         "PATH/" MANIFEST ":17:14: headers lacks \"params.safetensors\""},
        {MANIFEST, "\"format\": 2", "\"format\": 1",
         "PATH/" MANIFEST ":17:14: headers lacks \"params.safetensors\""},
    };
    static model a, one, two;
    static char manifest[TEXT], lists[3][TEXT];
    const char *path = test_path("edited");
    zf_error error = {ZF_OK, ""};
    float losses[1];
    long bytes[4];
    test_defer(t, model_free, &a);
    test_defer(t, model_free, &one);
    test_defer(t, model_free, &two);
    OK(t, model_new(t, &a, &(model_desc){.stage = 3, .world = 3, .bucket = 300000}, &error),
       error.text);
    OK(t, model_new(t, &one, &(model_desc){.world = 1, .seed = 2}, &error), error.text);
    OK(t, model_new(t, &two, &(model_desc){.stage = 1, .world = 2, .seed = 3}, &error), error.text);
    OK(t, train(&a, 1, losses, &error), error.text);
    OK(t, zf_lockstep_save(&a.lockstep, path, &noted, &error), error.text);
    bytes[3] = get_file(path, MANIFEST, manifest);
    bytes[0] = get_file(path, LIST(0), lists[0]);
    bytes[1] = get_file(path, LIST(1), lists[1]);
    bytes[2] = get_file(path, LIST(2), lists[2]);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        bool data = edits[i].text && !strncmp(edits[i].text, "PATH/params", 11);
        if (!edit(path, edits[i].file, edits[i].from, edits[i].to))
            test_fail(t, __FILE__, __LINE__, edits[i].from, edits[i].file);
        refuses(t, &one, &two, path, data ? "params.rank" : edits[i].file, edits[i].text);
        CHECK(t, put_file(path, MANIFEST, manifest, bytes[3]));
        CHECK(t, put_file(path, LIST(0), lists[0], bytes[0]));
        CHECK(t, put_file(path, LIST(1), lists[1], bytes[1]));
        CHECK(t, put_file(path, LIST(2), lists[2], bytes[2]));
    }
    /* Nothing of a tensor is listed, or not its end. */
    CHECK(t, put_file(path, LIST(2), "{\"headers\": {}, \"tensors\": []}", 30));
    CHECK(t, edit(path, LIST(2), "{", "{"));
    refuses(t, &one, &two, path, "",
            "PATH: the checkpoint lacks the param \"out.weight\": it is of "
            "another model");
    CHECK(t, put_file(path, LIST(1), "{\"headers\": {}, \"tensors\": []}", 30));
    CHECK(t, edit(path, LIST(1), "{", "{"));
    refuses(t, &one, &two, path, "",
            "PATH: the ranks' parts of \"in.weight\" end at element 2048 of 2627");
    CHECK(t, put_file(path, MANIFEST, manifest, bytes[3]));
    CHECK(t, put_file(path, LIST(1), lists[1], bytes[1]));
    CHECK(t, put_file(path, LIST(2), lists[2], bytes[2]));
    OK(t, zf_load(STORE(one.programs[0]), path, NULL), STORE_ERROR(one.programs[0]));
    CHECK(t, same_image(&a, &one));
}

/* ------------------------------------------------------------------------------ saves that fail */

/* Two models, an old checkpoint to be replaced by a new one, and a third that looks at it. */
typedef struct rivals {
    char path[300];
    model old, new, reader;
    unsigned char old_image[IMAGE], new_image[IMAGE];
    size_t bytes;
} rivals;

static void rivals_free(void *object)
{
    rivals *r = object;
    model_free(&r->old), model_free(&r->new), model_free(&r->reader);
}

/* The old one has done 1 step, the new one 2. */
static zf_status rivals_new(test *t, rivals *r, const char *path, zf_backend *backend,
                            zf_error *error)
{
    float losses[2];
    zf_status status;
    model_desc d = {.stage = 3, .world = 2, .tiny = true, .seed = 1};
    snprintf(r->path, sizeof r->path, "%s", path);
    if ((status = model_new(t, &r->old, &d, error))) return status;
    d.stage = 2, d.world = backend ? 2 : 3, d.backend = backend; /* the last of 3 has nothing */
    if ((status = model_new(t, &r->new, &d, error))) return status;
    d = (model_desc){.world = 1, .tiny = true, .seed = 9};
    if ((status = model_new(t, &r->reader, &d, error))) return status;
    if ((status = train(&r->old, 1, losses, error))) return status;
    if ((status = train(&r->new, 2, losses, error))) return status;
    if ((status = zf_lockstep_save(&r->old.lockstep, path, NULL, error))) return status;
    r->bytes = image_of(&r->old, r->old_image);
    image_of(&r->new, r->new_image);
    return ZF_OK;
}

/* Which checkpoint is there: 1 the old one, 2 the new one, whole; 0 neither. */
static int rivals_look(rivals *r)
{
    static unsigned char image[IMAGE];
    zf_error error = {ZF_OK, ""};
    int64_t step;
    if (zf_lockstep_load(&r->reader.lockstep, r->path, NULL, &error) ||
        image_of(&r->reader, image) != r->bytes || !r->bytes)
        return 0;
    step = zf_program_step(r->reader.programs[0]);
    if (step < 1 || step > 2) return 0;
    return memcmp(image, step == 1 ? r->old_image : r->new_image, r->bytes) ? 0 : (int)step;
}

/* The allocator refuses at every place in turn. */
TEST_ONCE(shards_survive_a_refusing_allocator)
{
    static rivals r;
    zf_error error = {ZF_OK, ""};
    zf_status status = ZF_ERR_NOMEM;
    long refusals = 0;
    test_defer(t, rivals_free, &r);
    OK(t, rivals_new(t, &r, test_path("refused"), NULL, &error), error.text);
    for (; status; refusals++) {
        error = (zf_error){ZF_OK, ""};
        t->refuse_at = t->allocations + refusals;
        status = zf_lockstep_save(&r.new.lockstep, r.path, &noted, &error);
        t->refuse_at = -1;
        t->refused = false;
        CHECK(t, !status || (status == ZF_ERR_NOMEM && strstr(error.text, "out of memory")));
        CHECK(t, rivals_look(&r) == (status ? 1 : 2) && no_debris(r.path));
    }
    CHECK(t, refusals > 60);
    for (refusals = 0, status = ZF_ERR_NOMEM; status; refusals++) {
        error = (zf_error){ZF_OK, ""};
        t->refuse_at = t->allocations + refusals;
        status = zf_lockstep_load(&r.old.lockstep, r.path, NULL, &error);
        t->refuse_at = -1;
        t->refused = false;
        CHECK(t, !status || (status == ZF_ERR_NOMEM && strstr(error.text, "out of memory")));
        CHECK(t, zf_program_step(r.old.programs[1]) == (status ? 1 : 2));
        CHECK(t, same_image(&r.old, status ? &r.old : &r.new));
    }
    CHECK(t, refusals > 60);
}

/* A device of the last rank that fails at a given copy. */
static struct {
    zf_backend backend;
    zf_copy kind;
    long calls, fail_at;
} device;

static zf_status device_copy(void *self, void *to, const void *from, size_t bytes, zf_copy kind,
                             zf_error *error)
{
    (void)self;
    if (kind == device.kind && device.calls++ == device.fail_at)
        return fails_with(error, ZF_ERR_BACKEND, "device lost");
    if (bytes) memmove(to, from, bytes);
    return ZF_OK;
}

static zf_backend *device_over(zf_backend *backend)
{
    device.backend = *backend; /* with its self: kernels know no other */
    device.backend.copy = device_copy;
    device.fail_at = -1;
    return &device.backend;
}

TEST_ONCE(shards_survive_a_failing_rank)
{
    static rivals r;
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.allocator = t->allocator}, &error);
    zf_status status = ZF_ERR_BACKEND;
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    test_defer(t, rivals_free, &r);
    OK(t, rivals_new(t, &r, test_path("lost"), device_over(cpu), &error), error.text);
    device.kind = ZF_DEVICE_TO_HOST;
    for (device.fail_at = 0; status; device.fail_at++) {
        device.calls = 0;
        error = (zf_error){ZF_OK, ""};
        status = zf_lockstep_save(&r.new.lockstep, r.path, NULL, &error);
        CHECK(t, !status || status == ZF_ERR_BACKEND);
        for (int k = 0; k < 2; k++)
            CHECK_TEXT(t, zf_program_error(r.new.programs[k]), status ? "rank 1: device lost" : "");
        CHECK(t, rivals_look(&r) == (status ? 1 : 2) && no_debris(r.path));
    }
    /* Four parameters and the step, which ranks compare; two moments of two parameters; and once
     * not */
    CHECK(t, device.fail_at == 5 + 2 * 2 + 1);
    device.kind = ZF_HOST_TO_DEVICE;
    device.calls = device.fail_at = 0;
    error = (zf_error){ZF_OK, ""};
    CHECK(t, zf_lockstep_load(&r.new.lockstep, r.path, NULL, &error) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, error.text, "rank 1: device lost; parameters and states are now undefined");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, zf_lockstep_save(&r.new.lockstep, "", NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "rank 0: an empty path");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, zf_lockstep_load(&r.new.lockstep, test_path("nowhere"), NULL, &error) == ZF_ERR_IO);
    CHECK(t, !strncmp(error.text, "rank 0: cannot open ", 20));
}

/* -------------------------------------------------------------------------------------- threads */

/* A rank of a group of threads. */
typedef struct thread {
    pthread_t id;
    zf_program *program;
    const char *path;
    zf_status save, load;
    char saved[512], loaded[512];
} thread;

static void *thread_main(void *object)
{
    thread *self = object;
    self->save = zf_save(STORE(self->program), self->path, &noted);
    snprintf(self->saved, sizeof self->saved, "%s", STORE_ERROR(self->program));
    self->load = self->save;
    if (self->save == ZF_ERR_COMM) return NULL; /* others may be saving still */
    self->load = zf_load(STORE(self->program), self->path, NULL);
    snprintf(self->loaded, sizeof self->loaded, "%s", STORE_ERROR(self->program));
    return NULL;
}

static void run_threads(model *m, thread threads[RANKS], const char *path)
{
    for (int32_t r = 0; r < m->world; r++) {
        threads[r] = (thread){.program = m->programs[r], .path = path};
        if (pthread_create(&threads[r].id, NULL, thread_main, &threads[r])) abort();
    }
    for (int32_t r = 0; r < m->world; r++) pthread_join(threads[r].id, NULL);
}

/* Ranks that are threads save and load together, by zf_save and zf_load, and when one of them
 * cannot, all say why and can go on. */
TEST_ONCE(shards_of_threads)
{
    static model m, lockstep;
    static thread threads[RANKS];
    char path[300];
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu = zf_cpu_backend(NULL, &error);
    zf_local *group = zf_local_new(&(zf_local_desc){.world = 3}, &error);
    float losses[2];
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    NEED(t, group, &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    test_defer(t, model_free, &m);
    test_defer(t, model_free, &lockstep);
    snprintf(path, sizeof path, "%s", test_path("threads"));
    OK(t, model_new(t, &lockstep, &(model_desc){.stage = 1, .world = 4, .seed = 3}, &error),
       error.text);
    OK(t, train(&lockstep, 2, losses, &error), error.text);
    OK(t, zf_lockstep_save(&lockstep.lockstep, path, NULL, &error), error.text);

    OK(t,
       model_new(
           t, &m,
           &(model_desc){
               .stage = 3, .world = 3, .group = group, .seed = 3, .backend = device_over(cpu)},
           &error),
       error.text);
    device.kind = ZF_DEVICE_TO_HOST;
    device.calls = 0, device.fail_at = 3;
    run_threads(&m, threads, path);
    for (int r = 0; r < 3; r++) { /* nothing was saved; what was there was loaded */
        CHECK(t, threads[r].save == ZF_ERR_BACKEND);
        CHECK_TEXT(t, threads[r].saved, "rank 2: device lost");
        OK(t, threads[r].load, threads[r].loaded);
        CHECK(t, zf_program_step(m.programs[r]) == 2);
    }
    CHECK(t, same_image(&m, &lockstep) && no_debris(path));
    device.fail_at = -1;
    run_threads(&m, threads, path);
    for (int r = 0; r < 3; r++) {
        OK(t, threads[r].save, threads[r].saved);
        OK(t, threads[r].load, threads[r].loaded);
    }
    has_files(t, path, 3, 3);
    CHECK(t, same_image(&m, &lockstep));
    OK(t, zf_lockstep_load(&lockstep.lockstep, path, NULL, &error), error.text);
    CHECK(t, same_image(&m, &lockstep));
    device.kind = ZF_HOST_TO_DEVICE;
    device.calls = 0, device.fail_at = 1;
    run_threads(&m, threads, path);
    for (int r = 0; r < 3; r++) {
        CHECK(t, threads[r].load == ZF_ERR_BACKEND);
        CHECK_TEXT(t, threads[r].loaded,
                   "rank 2: device lost; parameters and states are now undefined");
    }
}

/* Two checkpoints; the last rank loads the second one, then of the first one the parameters. */
static const char *pair_paths[2];

static void *pair_main(void *object)
{
    thread *self = object;
    zf_load_desc params = {.params_only = true};
    self->load = zf_load(STORE(self->program), self->path, NULL);
    snprintf(self->loaded, sizeof self->loaded, "%s", STORE_ERROR(self->program));
    if (self->load == ZF_ERR_COMM) return NULL;
    self->save = zf_load(STORE(self->program), pair_paths[0], self->path == pair_paths[1] ? &params : NULL);
    if (!self->save) self->save = zf_save(STORE(self->program), pair_paths[1], NULL);
    snprintf(self->saved, sizeof self->saved, "%s", STORE_ERROR(self->program));
    return NULL;
}

/* One rank loads another checkpoint than the others, or less of the same. */
TEST_ONCE(shards_of_two_checkpoints)
{
    static model m, lockstep;
    static thread threads[RANKS];
    zf_error error = {ZF_OK, ""};
    zf_local *group = zf_local_new(&(zf_local_desc){.world = 3}, &error);
    float losses[2];
    model_desc d = {.stage = 3, .world = 3, .seed = 1};
    NEED(t, group, &error);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    test_defer(t, model_free, &m);
    test_defer(t, model_free, &lockstep);
    OK(t, model_new(t, &lockstep, &d, &error), error.text);
    for (int k = 0; k < 2; k++) {
        pair_paths[k] = test_path(k ? "pair-2" : "pair-1");
        OK(t, train(&lockstep, k + 1, losses, &error), error.text);
        OK(t, zf_lockstep_save(&lockstep.lockstep, pair_paths[k], NULL, &error), error.text);
    }
    d.group = group;
    OK(t, model_new(t, &m, &d, &error), error.text);
    for (int32_t r = 0; r < 3; r++) {
        threads[r] = (thread){.program = m.programs[r], .path = pair_paths[r == 2]};
        if (pthread_create(&threads[r].id, NULL, pair_main, &threads[r])) abort();
    }
    for (int32_t r = 0; r < 3; r++) pthread_join(threads[r].id, NULL);
    for (int32_t r = 0; r < 3; r++) {
        static const char text[] =
            "zf_load: ranks 0 and 2 load different checkpoints (manifest.json with checksums ";
        CHECK(t, threads[r].load == ZF_ERR_MISMATCH);
        CHECK(t, !strncmp(threads[r].loaded, text, strlen(text)));
        CHECK(t, threads[r].save == ZF_ERR_MISMATCH);
        CHECK_TEXT(t, threads[r].saved,
                   "ranks 0 and 2 differ in the step that they are at: 1 and 0; it must be the "
                   "same on all ranks");
    }
}

/* A communicator whose rank is lost at a given call. */
static struct {
    zf_comm comm, *over;
    long calls, fail_at;
} line;

static zf_status line_run(void *self, const zf_collective *call, zf_error *error)
{
    (void)self;
    if (line.calls++ < line.fail_at) return line.over->run(line.over->self, call, error);
    line.over->abort(line.over->self, ZF_ERR_COMM, "unplugged");
    return fails_with(error, ZF_ERR_COMM, "unplugged");
}

/* Every rank hears of it, and what is there is the old checkpoint or the new one. */
TEST_ONCE(shards_survive_a_lost_rank)
{
    static model old, new, reader;
    static thread threads[RANKS];
    static unsigned char old_image[IMAGE], new_image[IMAGE], image[IMAGE];
    char path[300];
    zf_error error = {ZF_OK, ""};
    float losses[1];
    size_t bytes;
    bool done = false;
    model_desc d = {.stage = 3, .world = 2, .tiny = true, .seed = 1};
    snprintf(path, sizeof path, "%s", test_path("unplugged"));
    test_defer(t, model_free, &old);
    test_defer(t, model_free, &new);
    test_defer(t, model_free, &reader);
    OK(t, model_new(t, &old, &d, &error), error.text);
    OK(t, train(&old, 1, losses, &error), error.text);
    bytes = image_of(&old, old_image);
    d.seed = 2;
    OK(t, model_new(t, &new, &d, &error), error.text);
    CHECK(t, bytes && image_of(&new, new_image) == bytes);
    OK(t, model_new(t, &reader, &(model_desc){.world = 1, .tiny = true}, &error), error.text);
    for (line.fail_at = 0; !done; line.fail_at++) {
        zf_local *group = zf_local_new(&(zf_local_desc){.world = 2}, &error);
        bool saved;
        NEED(t, group, &error);
        test_defer(t, (test_cleanup *)zf_local_free, group);
        OK(t, zf_lockstep_save(&old.lockstep, path, NULL, &error), error.text);
        line.over = zf_local_comm(group, 1);
        line.comm = *line.over;
        line.comm.run = line_run;
        line.calls = 0;
        d.group = group, d.last = &line.comm;
        OK(t, model_new(t, &new, &d, &error), error.text);
        run_threads(&new, threads, path);
        model_free(&new);
        zf_local_free(group);
        t->deferred_count--;
        done = line.calls <= line.fail_at;
        OK(t, zf_load(STORE(reader.programs[0]), path, NULL), STORE_ERROR(reader.programs[0]));
        saved = zf_program_step(reader.programs[0]) == 0;
        CHECK(t, image_of(&reader, image) == bytes && no_debris(path));
        CHECK(t, !memcmp(image, saved ? new_image : old_image, bytes));
        CHECK(t, threads[1].save != ZF_OK || saved);
        for (int r = 0; r < 2; r++) {
            const char *text = threads[r].save ? threads[r].saved : threads[r].loaded;
            CHECK(t, threads[r].load == (done ? ZF_OK : ZF_ERR_COMM));
            CHECK(t, done || strstr(text, "unplugged"));
            CHECK(t, threads[r].save == threads[1 - r].save);
        }
    }
    /* Equal values; begun, written, committed; checked, one checkpoint, written; and once not
     * lost */
    CHECK(t, line.fail_at == 1 + 3 + 3 + 1);
}
