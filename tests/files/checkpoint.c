/* Checkpoints: resumed training has the same bits, damage is found and named, nothing is replaced
 * halfway. */
#if defined(__linux__)
#define _GNU_SOURCE
#else
#define _DARWIN_C_SOURCE
#endif
#include "checkpoint_files.h"
#include "../support/disk.h"
#include "../support/kill.h"
#include "../support/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* ------------------------------------------------------------------------------------ a model */

enum { ROWS = 6, IN = 5, HIDDEN = 7, OUT = 3 };

typedef enum optimizer { ADAMW, LAMB, SGD, NONE } optimizer;

typedef struct model_desc {
    optimizer rule;
    uint64_t seed;
    int64_t hidden; /* 0: HIDDEN */
    zf_dtype dtype; /* it computes in */
    zf_backend *backend;
    zf_store *store;
} model_desc;

typedef struct model {
    zf_graph *graph;
    zf_program *program;
    zf_tensor x, y, lr, loss;
} model;

static void model_free(void *object)
{
    model *m = object;
    zf_program_free(m->program);
    zf_graph_free(m->graph);
}

/* A perceptron with dropout, clipping and an optimizer. Returns the program, or NULL with the
 * graph's error. */
static zf_program *model_new(test *t, model *m, const model_desc *d)
{
    int64_t hidden = d->hidden ? d->hidden : HIDDEN;
    zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3};
    zf_tensor h, error;
    zf_graph *g = m->graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    m->program = NULL;
    if (!g) return NULL;
    m->x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, IN));
    m->y = zf_input(g, "y", ZF_F32, ZF_SHAPE(ROWS, OUT));
    m->lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    h = zf_matmul(m->x, zf_param(g, "in.weight", ZF_SHAPE(IN, hidden), &normal));
    h = zf_dropout(zf_tanh(zf_add(h, zf_param(g, "in.bias", ZF_SHAPE(hidden), NULL))), 0.3);
    h = zf_matmul(h, zf_param(g, "out.weight", ZF_SHAPE(hidden, OUT), &normal));
    error = zf_sub(h, m->y);
    m->loss = zf_output(zf_mean(zf_mul(error, error)), "error");
    zf_precision(g, &(zf_precision_desc){.dtype = d->dtype});
    if (d->rule != NONE) {
        zf_autograd(g, m->loss);
        zf_clip(g, 0.1);
    }
    if (d->rule == ADAMW) zf_adamw(g, m->lr, &(zf_adamw_desc){.weight_decay = 0.01});
    if (d->rule == LAMB) zf_lamb(g, m->lr, &(zf_lamb_desc){.weight_decay = 0.01});
    if (d->rule == SGD) zf_sgd(g, m->lr, NULL);
    m->program = zf_compile(
        g, &(zf_compile_desc){.backend = d->backend, .seed = d->seed, .store = d->store});
    return m->program;
}

/* Trains until `steps` are done; losses[step] is that of each. */
static zf_status train(model *m, int64_t steps, float *losses)
{
    zf_status status = ZF_OK;
    while (zf_program_step(m->program) < steps && !status) {
        int64_t step = zf_program_step(m->program);
        float x[ROWS * IN], y[ROWS * OUT], lr = 0.01f * (float)(step + 1);
        for (int i = 0; i < ROWS * IN; i++) x[i] = (float)((i * 7 + step * 3) % 11) / 11 - 0.4f;
        for (int i = 0; i < ROWS * OUT; i++) y[i] = (float)((i * 5 + step) % 7) / 7;
        status = zf_write(m->program, m->x, x, sizeof x);
        if (!status) status = zf_write(m->program, m->y, y, sizeof y);
        if (!status) status = zf_write(m->program, m->lr, &lr, sizeof lr);
        if (!status) status = zf_step(m->program);
        if (!status) status = zf_read(m->program, m->loss, &losses[step], sizeof *losses);
    }
    return status;
}

static const char *const names[] = {
    "in.weight",          "in.bias",           "out.weight",
    "adamw.step",         "adamw.m/in.weight", "adamw.v/in.weight",
    "adamw.m/in.bias",    "adamw.v/in.bias",   "adamw.m/out.weight",
    "adamw.v/out.weight", "lamb.step",         "lamb.m/in.weight",
    "lamb.v/in.weight",   "lamb.m/in.bias",    "lamb.v/in.bias",
    "lamb.m/out.weight",  "lamb.v/out.weight",
};

enum { IMAGE = 1 << 16 };

/* The bytes of every parameter and state of the program, in order; returns their number. */
static size_t image_of(model *m, unsigned char image[IMAGE])
{
    size_t at = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        zf_tensor tensor = zf_graph_find(m->graph, names[i]);
        size_t bytes = zf_tensor_bytes(tensor);
        if (!zf_valid(tensor)) continue;
        if (at + bytes > IMAGE || zf_read(m->program, tensor, image + at, bytes)) return 0;
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

/* ------------------------------------------------------------------------------- going on */

static void goes_on(test *t, optimizer rule)
{
    const char *path = test_path("going-on");
    float straight[10], first[10], second[10];
    static model a, b, c; /* deferred functions run after the body has returned */
    test_defer(t, model_free, &a);
    NEED(t, model_new(t, &a, &(model_desc){.rule = rule, .seed = UINT64_MAX - 3}), NULL);
    OK(t, train(&a, 10, straight), zf_program_error(a.program));
    test_defer(t, model_free, &b);
    NEED(t, model_new(t, &b, &(model_desc){.rule = rule, .seed = UINT64_MAX - 3}), NULL);
    OK(t, train(&b, 5, first), zf_program_error(b.program));
    OK(t, zf_save(STORE(b.program), path, NULL), STORE_ERROR(b.program));
    test_defer(t, model_free, &c);
    NEED(t, model_new(t, &c, &(model_desc){.rule = rule, .seed = 99}), NULL);
    CHECK(t, !same_image(&b, &c));
    OK(t, zf_load(STORE(c.program), path, NULL), STORE_ERROR(c.program));
    CHECK(t, zf_program_step(c.program) == 5 && same_image(&b, &c));
    memcpy(second, first, sizeof second);
    OK(t, train(&c, 10, second), zf_program_error(c.program));
    CHECK(t, same_image(&a, &c) && !memcmp(straight, second, sizeof straight));
    /* Saving does not change the program that is saved. */
    OK(t, train(&b, 10, first), zf_program_error(b.program));
    CHECK(t, same_image(&a, &b) && !memcmp(straight, first, sizeof straight));
}

TEST_ONCE(checkpoint_goes_on_adamw) { goes_on(t, ADAMW); }
TEST_ONCE(checkpoint_goes_on_lamb) { goes_on(t, LAMB); }
TEST_ONCE(checkpoint_goes_on_sgd) { goes_on(t, SGD); }

/* --------------------------------------------------------------------------------- files */

static bool exists(const char *path, const char *name)
{
    struct stat about;
    return stat(join(path, name), &about) == 0;
}

/* Removes a directory of files, and files left next to it. */
static void remove_all(const char *path)
{
    static const char *const ends[] = {"", ".zf-new", ".zf-old"};
    for (int i = 0; i < 3; i++) {
        char place[512];
        DIR *directory;
        snprintf(place, sizeof place, "%s%s", path, ends[i]);
        directory = opendir(place);
        for (struct dirent *entry; directory && (entry = readdir(directory));) {
            char file[800];
            snprintf(file, sizeof file, "%s/%s", place, entry->d_name);
            unlink(file);
        }
        if (directory) closedir(directory);
        rmdir(place);
        unlink(place);
    }
}

/* Replaces the first `from` of the manifest (NULL: nothing) by `to`, and corrects its checksum. */
static bool edit(const char *path, const char *from, const char *to)
{
    return edit_file(path, "manifest.json", from, to);
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

/* Checks that zf_load fails with this status and text, and changes nothing. */
static void refuses(test *t, model *m, const char *path, const zf_load_desc *desc, zf_status status,
                    const char *text)
{
    static unsigned char before[IMAGE], after[IMAGE];
    size_t bytes = image_of(m, before);
    int64_t step = zf_program_step(m->program);
    zf_status got = zf_load(STORE(m->program), path, desc);
    if (got != ZF_ERR_NOMEM || !t->refused) {
        CHECK_TEXT(t, without(STORE_ERROR(m->program), path), text);
        CHECK(t, got == status);
    }
    CHECK(t, zf_program_step(m->program) == step);
    CHECK(t, bytes && image_of(m, after) == bytes && !memcmp(before, after, bytes));
}

/* --------------------------------------------------------------------------------- memory */

/* Saving and loading use one block of memory, however large the values are. */
TEST_ONCE(checkpoint_takes_little_memory)
{
    enum { LARGE = 700001 }; /* x IN x 4 bytes: four pieces, the last an odd one */
    const char *path = test_path("large");
    static model a, b;
    static float weight[IN * LARGE], back[IN * LARGE];
    long before;
    test_defer(t, model_free, &a);
    NEED(t, model_new(t, &a, &(model_desc){.rule = NONE, .seed = 1, .hidden = LARGE}), NULL);
    test_defer(t, model_free, &b);
    NEED(t, model_new(t, &b, &(model_desc){.rule = NONE, .seed = 2, .hidden = LARGE}), NULL);
    before = t->peak_bytes = t->live_bytes;
    OK(t, zf_save(STORE(a.program), path, NULL), STORE_ERROR(a.program));
    OK(t, zf_load(STORE(b.program), path, NULL), STORE_ERROR(b.program));
    remove_all(path);
    CHECK(t, t->peak_bytes - before < 5 << 20);
    OK(t, zf_read(a.program, zf_graph_find(a.graph, "in.weight"), weight, sizeof weight), NULL);
    OK(t, zf_read(b.program, zf_graph_find(b.graph, "in.weight"), back, sizeof back), NULL);
    CHECK(t, !memcmp(weight, back, sizeof weight) && weight[IN * LARGE - 1] != 0);
}

/* ------------------------------------------------------------------- notes, attachments */

TEST(checkpoint_notes_and_attachments)
{
    static const zf_note notes[] = {{"position", "1280"},
                                    {"empty", ""},
                                    {"Gr\xc3\xb6\xc3\x9f"
                                     "e \"x\"\n",
                                     "a\tb\\c\x01"}};
    static const char data[] = "[PAD]\n[UNK]\n";
    const zf_attachment files[] = {{"vocab.txt", data, sizeof data - 1}, {"empty-1_2", NULL, 0}};
    const char *path = test_path("notes");
    static char text[TEXT];
    static model m;
    char value[16] = "?";
    zf_error error = {ZF_OK, ""};
    test_defer(t, model_free, &m);
    NEED(t, model_new(t, &m, &(model_desc){.rule = SGD, .seed = 1}), NULL);
    OK(t,
       zf_save(STORE(m.program), path,
               &(zf_save_desc){
                   .notes = notes, .note_count = 3, .attachments = files, .attachment_count = 2}),
       STORE_ERROR(m.program));
    OK(t, zf_checkpoint_note(path, "position", value, sizeof value, &error), error.text);
    CHECK_TEXT(t, value, "1280");
    OK(t, zf_checkpoint_note(path, "empty", value, 1, &error), error.text);
    CHECK_TEXT(t, value, "");
    OK(t, zf_checkpoint_note(path, notes[2].key, value, 7, &error), error.text);
    CHECK_TEXT(t, value, notes[2].value);
    CHECK(t, get_file(path, "vocab.txt", text) == sizeof data - 1 && !strcmp(text, data));
    CHECK(t, get_file(path, "empty-1_2", text) == 0);
    CHECK(t, !exists(path, "state.safetensors")); /* plain SGD has no states */
    OK(t, zf_load(STORE(m.program), path, NULL), STORE_ERROR(m.program));

    strcpy(value, "?");
    CHECK(t, zf_checkpoint_note(path, "position", value, 4, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, without(error.text, path),
               "PATH/manifest.json: the note \"position\" takes 5 "
               "bytes, but there is room for 4");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, zf_checkpoint_note(path, "lr", value, sizeof value, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, without(error.text, path), "PATH/manifest.json has no note \"lr\"");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, zf_checkpoint_note(path, NULL, value, sizeof value, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_checkpoint_note: no key");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, zf_checkpoint_note(path, "lr", NULL, 9, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_checkpoint_note: no value");
    CHECK(t, zf_checkpoint_note(NULL, "lr", value, sizeof value, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t,
          zf_checkpoint_note(test_path("nowhere"), "lr", value, sizeof value, NULL) == ZF_ERR_IO);
    CHECK_TEXT(t, value, "?");
    OK(t, zf_save(STORE(m.program), path, NULL), STORE_ERROR(m.program));
    CHECK(t, !exists(path, "vocab.txt")); /* a new checkpoint, with no file of the old one */
}

/* Checks that zf_save fails with this text, writes nothing, and leaves the old checkpoint. */
static void declines(test *t, model *m, const char *path, const zf_save_desc *desc,
                     zf_status status, const char *text)
{
    zf_status got = zf_save(STORE(m->program), path, desc);
    CHECK_TEXT(t, without(STORE_ERROR(m->program), path), text);
    CHECK(t, got == status);
    CHECK(t, !exists(path, ".zf-new") && !exists(path, ".zf-old"));
    if (exists(path, "manifest.json"))
        OK(t, zf_load(STORE(m->program), path, NULL), STORE_ERROR(m->program));
}

TEST_ONCE(checkpoint_declines_to_save)
{
    static const char *const bad_names[] = {"",
                                            ".",
                                            "..",
                                            ".hidden",
                                            "../up",
                                            "a/b",
                                            "a b",
                                            "caf\xc3\xa9",
                                            "manifest.json",
                                            "params.safetensors",
                                            "state.safetensors",
                                            "rank-00000-of-00002.json",
                                            "params.rank-1",
                                            "state.rank-00000-of-00002.safetensors",
                                            "x.zf-new"};
    const char *path = test_path("declined");
    static char expected[512], name[202];
    static model m;
    zf_note notes[] = {{"a", "1"}, {"b", "2"}, {"a", "3"}};
    zf_attachment files[] = {{"a", "1", 1}, {"b", "2", 1}, {"a", "3", 1}};
    test_defer(t, model_free, &m);
    NEED(t, model_new(t, &m, &(model_desc){.rule = ADAMW, .seed = 1}), NULL);
    OK(t, zf_save(STORE(m.program), path, NULL), STORE_ERROR(m.program));
    CHECK(t, zf_save(NULL, path, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_load(NULL, path, NULL) == ZF_ERR_ARGUMENT);
    declines(t, &m, path, &(zf_save_desc){.notes = notes, .note_count = 3}, ZF_ERR_ARGUMENT,
             "zf_save: notes 0 and 2 have one key, \"a\"");
    declines(t, &m, path, &(zf_save_desc){.note_count = 3}, ZF_ERR_ARGUMENT,
             "zf_save: 3 notes and 0 attachments, but not where they are");
    declines(t, &m, path, &(zf_save_desc){.attachment_count = 1}, ZF_ERR_ARGUMENT,
             "zf_save: 0 notes and 1 attachments, but not where they are");
    declines(t, &m, path, &(zf_save_desc){.attachments = files, .attachment_count = -1},
             ZF_ERR_ARGUMENT, "zf_save: 0 notes and -1 attachments, but not where they are");
    notes[1].key = NULL;
    declines(t, &m, path, &(zf_save_desc){.notes = notes, .note_count = 2}, ZF_ERR_ARGUMENT,
             "zf_save: note 1 has no key");
    notes[0].value = NULL;
    declines(t, &m, path, &(zf_save_desc){.notes = notes, .note_count = 2}, ZF_ERR_ARGUMENT,
             "zf_save: note 0 has no value");
    notes[0].value = "\xff";
    declines(t, &m, path, &(zf_save_desc){.notes = notes, .note_count = 1}, ZF_ERR_ARGUMENT,
             "zf_save: note 0, \"a\", is not UTF-8");
    declines(t, &m, path, &(zf_save_desc){.attachments = files, .attachment_count = 3},
             ZF_ERR_ARGUMENT, "zf_save: attachments 0 and 2 have one name, \"a\"");
    files[1].data = NULL;
    declines(t, &m, path, &(zf_save_desc){.attachments = files, .attachment_count = 2},
             ZF_ERR_ARGUMENT, "zf_save: attachment 1 has no data");
    files[0].name = NULL;
    declines(t, &m, path, &(zf_save_desc){.attachments = files, .attachment_count = 2},
             ZF_ERR_ARGUMENT, "zf_save: attachment 0 has no name");
    for (size_t i = 0; i < sizeof bad_names / sizeof *bad_names; i++) {
        files[0].name = bad_names[i];
        snprintf(expected, sizeof expected,
                 "zf_save: no attachment can be named \"%s\": a name has 1 to 200 letters, digits, "
                 "'.', '-' and '_', does not begin with '.', and is not manifest.json, "
                 "params.safetensors, state.safetensors, rank-*, params.rank-*, state.rank-* or "
                 "*.zf-new",
                 bad_names[i]);
        declines(t, &m, path, &(zf_save_desc){.attachments = files, .attachment_count = 1},
                 ZF_ERR_ARGUMENT, expected);
    }
    memset(name, 'n', 201);
    files[0].name = name;
    CHECK(t,
          zf_save(STORE(m.program), path, &(zf_save_desc){.attachments = files, .attachment_count = 1}) ==
              ZF_ERR_ARGUMENT);
    name[200] = '\0';
    OK(t, zf_save(STORE(m.program), path, &(zf_save_desc){.attachments = files, .attachment_count = 1}),
       STORE_ERROR(m.program));
    OK(t, zf_load(STORE(m.program), path, NULL), STORE_ERROR(m.program));
}

/* One non-finite number, the last of the last tensor. */
TEST_ONCE(checkpoint_of_what_is_not_finite)
{
    static const struct {
        zf_dtype dtype;
        uint64_t largest, infinite, nan;
    } kinds[] = {{ZF_F32, 0xff7fffff, 0xff800000, 0x7f800001},
                 {ZF_BF16, 0xff7f, 0xff80, 0x7f81},
                 {ZF_F16, 0x7bff, 0x7c00, 0x7c01},
                 {ZF_F64, 0x7fefffffffffffff, 0x7ff0000000000000, 0xfff0000000000001},
                 {ZF_I32, 0x7f800000, 0x7f800000, 0x7f800000}};
    const char *path = test_path("finite");
    static model m;
    m = (model){.graph = NULL};
    test_defer(t, model_free, &m);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        zf_save_desc finite = {.finite = true};
        unsigned char data[24] = {0};
        bool is_float = kinds[i].dtype != ZF_I32;
        size_t size = zf_dtype_size(kinds[i].dtype);
        zf_graph *g = m.graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_tensor x;
        NEED(t, g, NULL);
        x = zf_state(g, "x", kinds[i].dtype, ZF_SHAPE(3), 1);
        zf_output(zf_sum(zf_cast(x, ZF_F32)), "sum");
        m.program = zf_compile(g, &(zf_compile_desc){.seed = 1});
        OK(t, zf_graph_status(g), zf_graph_error(g));
        memcpy(data + 2 * size, &kinds[i].largest, size); /* the low bytes are in front */
        OK(t, zf_write(m.program, x, data, 3 * size), zf_program_error(m.program));
        OK(t, zf_save(STORE(m.program), path, &finite), STORE_ERROR(m.program));
        for (int nan = 0; nan < 2 && is_float; nan++) {
            memcpy(data + 2 * size, nan ? &kinds[i].nan : &kinds[i].infinite, size);
            OK(t, zf_write(m.program, x, data, 3 * size), zf_program_error(m.program));
            CHECK(t, zf_save(STORE(m.program), path, &finite) == ZF_ERR_NAN);
            CHECK_TEXT(t, without(STORE_ERROR(m.program), path),
                       "zf_save: step 0: x is not finite, so nothing is saved: PATH stays as it "
                       "was");
            CHECK(t, exists(path, "manifest.json") && !exists(path, ".zf-new"));
        }
        OK(t, zf_load(STORE(m.program), path, NULL), STORE_ERROR(m.program));
        OK(t, zf_read(m.program, x, data, 3 * size), zf_program_error(m.program));
        CHECK(t, !memcmp(data + 2 * size, &kinds[i].largest, size));
        OK(t, zf_save(STORE(m.program), path, NULL), STORE_ERROR(m.program));
        model_free(&m);
        m = (model){.graph = NULL};
    }
}

/* Another writer's: it is neither used nor removed. */
TEST_ONCE(checkpoint_has_one_writer)
{
    const char *path = test_path("one");
    static model m;
    char aside[512];
    int other;
    test_defer(t, model_free, &m);
    NEED(t, model_new(t, &m, &(model_desc){.rule = SGD, .seed = 1}), NULL);
    OK(t, zf_save(STORE(m.program), path, NULL), STORE_ERROR(m.program));
    snprintf(aside, sizeof aside, "%s.zf-new", path);
    CHECK(t, mkdir(aside, 0700) == 0 && (other = open(aside, O_RDONLY)) >= 0 &&
                 flock(other, LOCK_EX) == 0);
    CHECK(t, zf_save(STORE(m.program), path, NULL) == ZF_ERR_IO);
    CHECK_TEXT(t, without(STORE_ERROR(m.program), path),
               "cannot write PATH.zf-new: somebody else is writing it too");
    CHECK(t, exists(path, ".zf-new"));
    OK(t, zf_load(STORE(m.program), path, NULL), STORE_ERROR(m.program));
    close(other); /* it has ended, or was killed */
    OK(t, zf_save(STORE(m.program), path, NULL), STORE_ERROR(m.program));
    CHECK(t, !exists(path, ".zf-new"));
    OK(t, zf_load(STORE(m.program), path, NULL), STORE_ERROR(m.program));
}

/* Another writer, which makes the directory of this path anew. */
static const char *contended;
static void make_anew(const char *opened)
{
    char aside[512], away[512];
    if (!strstr(opened, "manifest.json.")) return;
    disk_opens = NULL;
    snprintf(aside, sizeof aside, "%s.zf-new", contended);
    snprintf(away, sizeof away, "%s.away", contended);
    if (!rename(aside, away)) (void)mkdir(aside, 0700);
}

/* What lies in a directory that somebody else has made since is not committed, nor removed. */
TEST_ONCE(checkpoint_commits_its_own_directory)
{
    static model m;
    const char *path = test_path("two writers");
    zf_status status;
    test_defer(t, model_free, &m);
    NEED(t, model_new(t, &m, &(model_desc){.rule = SGD, .seed = 1}), NULL);
    OK(t, zf_save(STORE(m.program), path, NULL), STORE_ERROR(m.program));
    disk_opens = make_anew, contended = path;
    status = zf_save(STORE(m.program), path, NULL);
    disk_opens = NULL;
    GIVES(t, status, ZF_ERR_IO, STORE_ERROR(m.program));
    CHECK_TEXT(t, without(STORE_ERROR(m.program), path),
               "cannot write PATH.zf-new: somebody else is writing it too");
    CHECK(t, exists(path, ".zf-new"));
    OK(t, zf_load(STORE(m.program), path, NULL), STORE_ERROR(m.program));
}

/* A manifest that zf_load would refuse is not written. */
TEST_ONCE(checkpoint_declines_endless_notes)
{
    enum { ENDLESS = 64 << 20 };
    const char *path = test_path("endless");
    static model m;
    char *value = malloc(ENDLESS + 1), expected[128];
    zf_note note = {"k", value};
    NEED(t, value, NULL);
    test_defer(t, free, value);
    memset(value, 'v', ENDLESS);
    value[ENDLESS] = '\0';
    test_defer(t, model_free, &m);
    NEED(t, model_new(t, &m, &(model_desc){.rule = SGD, .seed = 1}), NULL);
    CHECK(t, zf_save(STORE(m.program), path, &(zf_save_desc){.notes = &note, .note_count = 1}) ==
                 ZF_ERR_LIMIT);
    snprintf(expected, sizeof expected, "; it must be under %d", ENDLESS);
    CHECK(t, strstr(STORE_ERROR(m.program), "zf_save: notes and names make a manifest of 671") &&
                 strstr(STORE_ERROR(m.program), expected));
    CHECK(t, !exists(path, "") && !exists(path, ".zf-new"));
}

/* ----------------------------------------------------------------------- other programs */

/* Programs over one store have one checkpoint. */
TEST(checkpoint_of_one_store)
{
    const char *path = test_path("one-store");
    static model a, b, c;
    test_defer(t, model_free, &a);
    NEED(t, model_new(t, &a, &(model_desc){.rule = NONE, .seed = 1}), NULL);
    test_defer(t, model_free, &b);
    NEED(t, model_new(t, &b, &(model_desc){.rule = NONE, .store = STORE(a.program)}), NULL);
    CHECK(t, STORE(a.program) == STORE(b.program));
    OK(t, zf_save(STORE(b.program), path, NULL), STORE_ERROR(b.program));
    test_defer(t, model_free, &c);
    NEED(t, model_new(t, &c, &(model_desc){.rule = NONE, .seed = 2}), NULL);
    OK(t, zf_load(STORE(c.program), path, NULL), STORE_ERROR(c.program));
    CHECK(t, same_image(&a, &c) && same_image(&b, &c));
}

TEST_ONCE(checkpoint_params_only)
{
    const char *path = test_path("params-only");
    const zf_load_desc only = {.params_only = true};
    static model a, b, c;
    static unsigned char image[IMAGE], before[IMAGE];
    float losses[3];
    size_t params = (IN * HIDDEN + HIDDEN + HIDDEN * OUT) * 4;
    test_defer(t, model_free, &a);
    NEED(t, model_new(t, &a, &(model_desc){.rule = ADAMW, .seed = 1}), NULL);
    OK(t, train(&a, 3, losses), zf_program_error(a.program));
    OK(t, zf_save(STORE(a.program), path, NULL), STORE_ERROR(a.program));
    CHECK(t, image_of(&a, image) > params);
    test_defer(t, model_free, &b); /* for evaluation: no states */
    NEED(t, model_new(t, &b, &(model_desc){.rule = NONE, .seed = 2}), NULL);
    refuses(t, &b, path, NULL, ZF_ERR_MISMATCH,
            "PATH/state.safetensors: the store has no state \"adamw.step\": the checkpoint is of "
            "another model or optimizer");
    OK(t, zf_load(STORE(b.program), path, &only), STORE_ERROR(b.program));
    CHECK(t, image_of(&b, before) == params && !memcmp(image, before, params));
    test_defer(t, model_free, &c); /* another optimizer: its states stay, and step and seed */
    NEED(t, model_new(t, &c, &(model_desc){.rule = LAMB, .seed = 1}), NULL);
    OK(t, train(&c, 2, losses), zf_program_error(c.program));
    CHECK(t, image_of(&c, before));
    /* The file of the states is not opened. */
    CHECK(t, remove(join(path, "state.safetensors")) == 0);
    OK(t, zf_load(STORE(c.program), path, &only), STORE_ERROR(c.program));
    memcpy(before, image, params);
    CHECK(t,
          zf_program_step(c.program) == 2 && image_of(&c, image) && !memcmp(image, before, IMAGE));
    refuses(t, &a, path, NULL, ZF_ERR_IO,
            "cannot open PATH/state.safetensors: No such file or directory");
}

/* A program in f32 takes the master weights of a run in bf16, or else its parameters. */
TEST_ONCE(checkpoint_master_weights)
{
    static const char *const params[] = {"in.weight", "in.bias", "out.weight"};
    const char *path = test_path("masters");
    const zf_load_desc masters = {.params_only = true, .masters = true};
    static model a, b, c;
    float losses[3];
    test_defer(t, model_free, &a);
    NEED(t, model_new(t, &a, &(model_desc){.rule = LAMB, .seed = 1, .dtype = ZF_BF16}), NULL);
    OK(t, train(&a, 3, losses), zf_program_error(a.program));
    OK(t, zf_save(STORE(a.program), path, NULL), STORE_ERROR(a.program));
    test_defer(t, model_free, &b);
    NEED(t, model_new(t, &b, &(model_desc){.rule = NONE, .seed = 2}), NULL);
    refuses(t, &b, path, &(zf_load_desc){.params_only = true}, ZF_ERR_MISMATCH,
            "PATH/params.safetensors: in.weight is bf16[5,7], but f32[5,7] in the store");
    OK(t, zf_load(STORE(b.program), path, &masters), STORE_ERROR(b.program));
    for (int i = 0; i < 3; i++) {
        float own[IN * HIDDEN], master[IN * HIDDEN];
        uint16_t param[IN * HIDDEN], rounded[IN * HIDDEN];
        zf_tensor of_b = zf_graph_find(b.graph, params[i]), of_a;
        size_t bytes = zf_tensor_bytes(of_b);
        char name[64];
        snprintf(name, sizeof name, "lamb.master/%s", params[i]);
        of_a = zf_graph_find(a.graph, name);
        CHECK(t, zf_valid(of_a) && !zf_read(a.program, of_a, master, bytes));
        OK(t, zf_read(b.program, of_b, own, bytes), zf_program_error(b.program));
        CHECK(t, !memcmp(own, master, bytes));
        of_a = zf_graph_find(a.graph, params[i]);
        OK(t, zf_read(a.program, of_a, param, bytes / 2), zf_program_error(a.program));
        zf_convert(rounded, ZF_BF16, own, ZF_F32, bytes / 4);
        CHECK(t, !memcmp(rounded, param, bytes / 2));
        zf_convert(master, ZF_F32, rounded, ZF_BF16, bytes / 4);
        CHECK(t, i == 1 || memcmp(own, master, bytes)); /* not what is rounded */
    }
    /* Without params_only all comes back, and masters says nothing. */
    {
        static model whole;
        uint16_t mine[IN * HIDDEN], its[IN * HIDDEN];
        test_defer(t, model_free, &whole);
        NEED(t, model_new(t, &whole, &(model_desc){.rule = LAMB, .seed = 9, .dtype = ZF_BF16}), NULL);
        OK(t, zf_load(STORE(whole.program), path, &(zf_load_desc){.masters = true}),
           STORE_ERROR(whole.program));
        CHECK(t, !zf_read(a.program, zf_graph_find(a.graph, params[0]), its, sizeof its));
        CHECK(t, !zf_read(whole.program, zf_graph_find(whole.graph, params[0]), mine, sizeof mine));
        CHECK(t, !memcmp(mine, its, sizeof its) && zf_program_step(whole.program) == 3);
    }
    /* Of a run in f32 there are none. */
    test_defer(t, model_free, &c);
    NEED(t, model_new(t, &c, &(model_desc){.rule = ADAMW, .seed = 5}), NULL);
    OK(t, zf_save(STORE(c.program), path, NULL), STORE_ERROR(c.program));
    OK(t, zf_load(STORE(b.program), path, &masters), STORE_ERROR(b.program));
    CHECK(t, zf_valid(zf_graph_find(c.graph, "in.weight")));
    {
        float own[IN * HIDDEN], other[IN * HIDDEN];
        CHECK(t, !zf_read(b.program, zf_graph_find(b.graph, params[0]), own, sizeof own));
        CHECK(t, !zf_read(c.program, zf_graph_find(c.graph, params[0]), other, sizeof other));
        CHECK(t, !memcmp(own, other, sizeof own));
    }
}

/* A state of the program's own is no master weight, whatever it is called. Files of older versions
 * have no roles. */
TEST_ONCE(checkpoint_roles_not_names)
{
    const char *path = test_path("roles");
    const zf_load_desc masters = {.params_only = true, .masters = true};
    static model a, b;
    zf_tensor w;
    test_defer(t, model_free, &a);
    a.graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}), a.program = NULL;
    w = zf_param(a.graph, "w", ZF_SHAPE(3), NULL);
    zf_output(zf_add(w, zf_state(a.graph, "own.master/w", ZF_F32, ZF_SHAPE(3), 0.5)), "sum");
    zf_precision(a.graph, &(zf_precision_desc){.dtype = ZF_BF16});
    NEED(t, a.program = zf_compile(a.graph, NULL), NULL);
    OK(t, zf_save(STORE(a.program), path, NULL), STORE_ERROR(a.program));
    test_defer(t, model_free, &b);
    b.graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}), b.program = NULL;
    zf_output(zf_param(b.graph, "w", ZF_SHAPE(3), NULL), "w out");
    NEED(t, b.program = zf_compile(b.graph, NULL), NULL);
    if (zf_load(STORE(b.program), path, &masters) != ZF_ERR_NOMEM)
        CHECK_TEXT(t, without(STORE_ERROR(b.program), path),
                   "PATH: the checkpoint lacks the param \"w\": it is of another model");
    CHECK(t, edit(path, "\"role\": null", "\"rule\": null"));
    OK(t, zf_load(STORE(b.program), path, &masters), STORE_ERROR(b.program));
}

/* A program can load a part of the parameters if it asks for this; a checkpoint must not lack
 * any. */
TEST(checkpoint_of_more_or_less)
{
    const char *path = test_path("more"), *other = test_path("less");
    const zf_load_desc only = {.params_only = true};
    static model a, b;
    test_defer(t, model_free, &a);
    NEED(t, model_new(t, &a, &(model_desc){.rule = NONE, .seed = 1}), NULL);
    OK(t, zf_save(STORE(a.program), path, NULL), STORE_ERROR(a.program));
    test_defer(t, model_free, &b);
    b.graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    b.program = NULL;
    NEED(t, b.graph, NULL);
    zf_output(zf_sum(zf_param(b.graph, "in.bias", ZF_SHAPE(HIDDEN), NULL)), "sum");
    b.program = zf_compile(b.graph, NULL);
    OK(t, zf_graph_status(b.graph), zf_graph_error(b.graph));
    OK(t, zf_load(STORE(b.program), path, &only), STORE_ERROR(b.program));
    refuses(t, &b, path, NULL, ZF_ERR_MISMATCH,
            "PATH/params.safetensors: the store has no param \"in.weight\": the checkpoint is of "
            "another model");
    OK(t, zf_save(STORE(b.program), other, NULL), STORE_ERROR(b.program));
    refuses(t, &a, other, &only, ZF_ERR_MISMATCH,
            "PATH: the checkpoint lacks the param \"in.weight\": it is of another model");
}

TEST_ONCE(checkpoint_of_another_model)
{
    const char *path = test_path("another");
    static model a, b;
    test_defer(t, model_free, &a);
    NEED(t, model_new(t, &a, &(model_desc){.rule = ADAMW, .seed = 1}), NULL);
    OK(t, zf_save(STORE(a.program), path, NULL), STORE_ERROR(a.program));
    test_defer(t, model_free, &b);
    NEED(t, model_new(t, &b, &(model_desc){.rule = ADAMW, .seed = 1, .hidden = HIDDEN + 1}), NULL);
    refuses(t, &b, path, NULL, ZF_ERR_MISMATCH,
            "PATH/params.safetensors: in.weight is f32[5,7], but f32[5,8] in the store");
    model_free(&b);
    NEED(t, model_new(t, &b, &(model_desc){.rule = LAMB, .seed = 1}), NULL);
    refuses(t, &b, path, NULL, ZF_ERR_MISMATCH,
            "PATH/state.safetensors: the store has no state \"adamw.step\": the checkpoint is of "
            "another model or optimizer");
    model_free(&b);
    NEED(t, model_new(t, &b, &(model_desc){.rule = NONE, .seed = 1}), NULL);
    OK(t, zf_save(STORE(b.program), path, NULL), STORE_ERROR(b.program));
    refuses(
        t, &a, path, NULL, ZF_ERR_MISMATCH,
        "PATH: the checkpoint lacks the state \"adamw.step\": it is of another model or optimizer");
}

/* Every dtype, every rank, and names that need escapes. */
TEST(checkpoint_of_every_dtype)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16, ZF_F64,
                                      ZF_I32, ZF_I64,  ZF_U8,  ZF_BOOL};
    const char *path = test_path("dtypes");
    static char long_name[256];
    const char *special[] = {"", "a b/c.d", "\xe6\xbc\xa2\xe5\xad\x97", "../../up", "{}[],:'", "."};
    static model m[2];
    unsigned char data[720], back[720];
    char name[64];
    memset(long_name, 'n', 255);
    special[0] = long_name;
    for (int k = 0; k < 2; k++) {
        zf_graph *g = m[k].graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_tensor sum;
        m[k].program = NULL;
        test_defer(t, model_free, &m[k]);
        NEED(t, g, NULL);
        sum = zf_constant(g, ZF_F32, ZF_SCALAR, 0);
        for (int i = 0; i < 8; i++)
            for (int rank = 0; rank <= ZF_MAX_RANK; rank++) {
                zf_shape shape = zf_shape_of(rank, (int64_t[]){1, 2, 3, rank == 4 ? 0 : 5, 1, 3});
                zf_tensor x;
                snprintf(name, sizeof name, "%s.%d", zf_dtype_name(dtypes[i]), rank);
                x = zf_state(g, name, dtypes[i], shape, 1);
                sum = zf_add(sum, zf_sum(zf_cast(x, ZF_F32)));
            }
        for (int i = 0; i < 6; i++)
            sum = zf_add(sum, zf_param(g, special[i], ZF_SCALAR,
                                       &(zf_param_desc){.init = ZF_FILL, .value = i + 1 + 10 * k}));
        zf_output(sum, "sum");
        m[k].program = zf_compile(g, &(zf_compile_desc){.seed = 1});
        OK(t, zf_graph_status(g), zf_graph_error(g));
    }
    for (int i = 0; i < 8; i++)
        for (int rank = 0; rank <= ZF_MAX_RANK; rank++) {
            zf_tensor x;
            snprintf(name, sizeof name, "%s.%d", zf_dtype_name(dtypes[i]), rank);
            x = zf_graph_find(m[0].graph, name);
            CHECK(t, zf_tensor_bytes(x) <= sizeof data);
            for (size_t at = 0; at < sizeof data; at++)
                data[at] = dtypes[i] == ZF_BOOL ? (at * 7 / 3) & 1
                                                : (unsigned char)(at * 31 + (size_t)i * 5);
            OK(t, zf_write(m[0].program, x, data, zf_tensor_bytes(x)),
               zf_program_error(m[0].program));
        }
    OK(t, zf_save(STORE(m[0].program), path, NULL), STORE_ERROR(m[0].program));
    OK(t, zf_load(STORE(m[1].program), path, NULL), STORE_ERROR(m[1].program));
    for (int i = 0; i < 8 * (ZF_MAX_RANK + 1) + 6; i++) {
        zf_tensor x, y;
        snprintf(name, sizeof name, "%s.%d", zf_dtype_name(dtypes[i % 8]), i / 8);
        x = zf_graph_find(m[0].graph, i < 56 ? name : special[i - 56]);
        y = zf_graph_find(m[1].graph, i < 56 ? name : special[i - 56]);
        CHECK(t, zf_valid(x) && zf_valid(y));
        OK(t, zf_read(m[0].program, x, data, zf_tensor_bytes(x)), zf_program_error(m[0].program));
        OK(t, zf_read(m[1].program, y, back, zf_tensor_bytes(y)), zf_program_error(m[1].program));
        CHECK(t, !memcmp(data, back, zf_tensor_bytes(x)));
    }
}

/* -------------------------------------------------------------------------------- damage */

/* The smallest checkpoint that has one of everything. */
static bool small(test *t, model *m, const char *path)
{
    static const zf_note note = {"k", "v"};
    static const zf_attachment file = {"a.txt", "hello", 5};
    float losses[2];
    return model_new(t, m, &(model_desc){.rule = ADAMW, .seed = 1, .hidden = 1}) &&
           !train(m, 2, losses) &&
           !zf_save(STORE(
               m->program), path,
               &(zf_save_desc){
                   .notes = &note, .note_count = 1, .attachments = &file, .attachment_count = 1});
}

/* Wrong contents of a manifest with a right checksum. */
TEST_ONCE(checkpoint_manifest_is_checked)
{
    static const struct {
        const char *from, *to;
        zf_status status;
        const char *text;
    } edits[] = {
#define AT(place) "PATH/manifest.json:" place ": "
        {"\"library\": \"zeroflow\"", "\"library\": \"other\"", ZF_ERR_FORMAT,
         "PATH/manifest.json is not the manifest of a zeroflow checkpoint"},
        {"\"library\": \"zeroflow\"", "\"name\": \"app\"", ZF_ERR_FORMAT,
         "PATH/manifest.json is not the manifest of a zeroflow checkpoint"},
        {"\"format\": 2", "\"format\": 4", ZF_ERR_FORMAT,
         AT("3:13") "format must be 1 to 3, the formats that this version of zeroflow reads, "
                    "not 4"},
        {"\"format\": 2", "\"format\": 1", ZF_ERR_FORMAT,
         AT("23:17") "tensors[0].crc32c must be a checksum: eight of the digits 0-9 and a-f, not "
                     "an array"},
        {"\"format\": 2", "\"format\": \"1\"", ZF_ERR_FORMAT,
         AT("3:13") "format must be a positive integer, not \"1\""},
        {"\"format\"", "\"Format\"", ZF_ERR_FORMAT, AT("1:1") "the top value lacks \"format\""},
        {"\"step\": 2", "\"step\": \"2\"", ZF_ERR_FORMAT,
         AT("4:11") "step must be an integer from 0 to 4611686018427387903, not \"2\""},
        {"\"step\": 2", "\"step\": -1", ZF_ERR_FORMAT,
         AT("4:11") "step must be an integer from 0 to 4611686018427387903, not -1"},
        {"\"step\": 2", "\"step\": 2.5", ZF_ERR_FORMAT,
         AT("4:11") "step must be an integer from 0 to 4611686018427387903, not 2.5"},
        {"\"step\": 2", "\"step\": null", ZF_ERR_FORMAT,
         AT("4:11") "step must be an integer from 0 to 4611686018427387903, not null"},
        {"\"step\": 2", "\"step\": 9223372036854775807", ZF_ERR_FORMAT,
         AT("4:11") "step must be an integer from 0 to 4611686018427387903, not "
                    "9223372036854775807"},
        {"\"step\": 2", "\"step\": [2]", ZF_ERR_FORMAT,
         AT("4:11") "step must be an integer from 0 to 4611686018427387903, not an array"},
        {"\"step\": 2", "\"step\": 2, \"steps\": {\"a b\": 1}", ZF_ERR_FORMAT,
         AT("4:31") "steps.\"a b\" is not the name of a training"},
        {"\"step\"", "\"steps\"", ZF_ERR_FORMAT, AT("1:1") "the top value lacks \"step\""},
        {"\"seed\": \"1\"", "\"seed\": 1", ZF_ERR_FORMAT,
         AT("5:11") "seed must be a string, not 1"},
        {"\"seed\": \"1\"", "\"seed\": \"\"", ZF_ERR_FORMAT,
         AT("5:11") "seed must be an integer from 0 to 2^64 - 1 in quotes, not \"\""},
        {"\"seed\": \"1\"", "\"seed\": \"-1\"", ZF_ERR_FORMAT,
         AT("5:11") "seed must be an integer from 0 to 2^64 - 1 in quotes, not \"-1\""},
        {"\"seed\": \"1\"", "\"seed\": \"18446744073709551616\"", ZF_ERR_FORMAT,
         AT("5:11") "seed must be an integer from 0 to 2^64 - 1 in quotes, not "
                    "\"18446744073709551616\""},
        {"\"a.txt\": ", "\"../a.txt\": ", ZF_ERR_FORMAT,
         AT("10:17") "attachments.\"../a.txt\" is not the name of a file in a checkpoint"},
        {"\"a.txt\": ", "\"/etc/passwd\": ", ZF_ERR_FORMAT,
         AT("10:20") "attachments.\"/etc/passwd\" is not the name of a file in a checkpoint"},
        {"\"a.txt\": ", "\"..\": ", ZF_ERR_FORMAT,
         AT("10:11") "attachments.\"..\" is not the name of a file in a checkpoint"},
        {"\"a.txt\": ", "\"a.txt\\u0000\": ", ZF_ERR_FORMAT,
         AT("10:20") "attachments.\"a.txt\\u0000\" is not the name of a file in a checkpoint"},
        {"\"a.txt\": ", "\"b.txt\": ", ZF_ERR_IO,
         "cannot open PATH/b.txt: No such file or directory"},
        {"\"a.txt\": \"", "\"a.txt\": \"0", ZF_ERR_FORMAT,
         AT("10:14") "attachments.\"a.txt\" must be a checksum: eight of the digits 0-9 and a-f, "
                     "not \"09a71bb4c\""},
        {"\"a.txt\": \"9", "\"a.txt\": \"A", ZF_ERR_FORMAT,
         AT("10:14") "attachments.\"a.txt\" must be a checksum: eight of the digits 0-9 and a-f, "
                     "not \"Aa71bb4c\""},
        {"\"a.txt\": ", "\"a.txt\": null, \"b\": ", ZF_ERR_FORMAT,
         AT("10:14") "attachments.\"a.txt\" must be a checksum: eight of the digits 0-9 and a-f, "
                     "not null"},
        {"\"attachments\": {", "\"attachments\": [], \"x\": {", ZF_ERR_FORMAT,
         AT("9:18") "attachments must be an object, not an array"},
        {"\"attachments\"", "\"attach\"", ZF_ERR_FORMAT,
         AT("1:1") "the top value lacks \"attachments\""},
        {"\"headers\": {", "\"headers\": 7, \"x\": {", ZF_ERR_FORMAT,
         AT("12:14") "headers must be an object, not 7"},
        {"\"headers\"", "\"header\"", ZF_ERR_FORMAT, AT("1:1") "the top value lacks \"headers\""},
        {"\"params.safetensors\": ", "\"../p.safetensors\": ", ZF_ERR_FORMAT,
         AT("12:14") "headers lacks \"params.safetensors\""},
        {"\"state.safetensors\": ", "\"s.safetensors\": ", ZF_ERR_FORMAT,
         AT("41:5") "tensors[3] is in state.safetensors, which \"headers\" lacks"},
        {"\"state.safetensors\": \"", "\"state.safetensors\": \"bad\", \"x\": \"", ZF_ERR_FORMAT,
         AT("14:26") "headers.\"state.safetensors\" must be a checksum: eight of the digits 0-9 "
                     "and a-f, not \"bad\""},
        {"\"tensors\": [", "\"tensors\": {}, \"x\": [", ZF_ERR_FORMAT,
         AT("16:14") "tensors must be an array, not an object"},
        {"\"tensors\": [", "\"tensors\": [], \"x\": [", ZF_ERR_FORMAT,
         "PATH/params.safetensors: 3 tensors, the manifest says 0"},
        {"\"tensors\"", "\"Tensors\"", ZF_ERR_FORMAT, AT("1:1") "the top value lacks \"tensors\""},
        {"\"tensors\": [", "\"tensors\": [7, ", ZF_ERR_FORMAT,
         AT("16:15") "tensors[0] must be an object, not 7"},
        {"\"name\": \"in.bias\"", "\"name\": \"in.weight\"", ZF_ERR_FORMAT,
         "PATH/params.safetensors: in.weight is f32[5,1], the manifest says f32[1]"},
        {"\"adamw.m/in.bias\",\n      \"kind\": \"state\",\n      \"role\": \"moment\"",
         "\"adamw.v/in.bias\",\n      \"kind\": \"state\",\n      \"role\": \"variance\"",
         ZF_ERR_FORMAT, AT("80:5") "tensors[7] lists \"adamw.v/in.bias\" again"},
        {"\"name\": \"in.bias\"", "\"name\": \"in.hias\"", ZF_ERR_FORMAT,
         "PATH/params.safetensors: in.hias is in the manifest, but not in the file"},
        {"\"name\": \"in.bias\"", "\"name\": \"in\\nbias\"", ZF_ERR_FORMAT,
         AT("26:15") "tensors[1].name must be 1 to 255 characters, none of them \", \\ or a "
                     "control character, not \"in\\nbias\""},
        {"\"name\": \"in.bias\"", "\"name\": \"\"", ZF_ERR_FORMAT,
         AT("26:15") "tensors[1].name must be 1 to 255 characters, none of them \", \\ or a "
                     "control character, not \"\""},
        {"\"name\": \"in.bias\"", "\"name\": 1", ZF_ERR_FORMAT,
         AT("26:15") "tensors[1].name must be a string, not 1"},
        {"\"name\": \"in.bias\"", "\"nome\": \"in.bias\"", ZF_ERR_FORMAT,
         AT("25:5") "tensors[1] lacks \"name\""},
        {"\"kind\": \"param\"", "\"kind\": \"output\"", ZF_ERR_FORMAT,
         AT("19:15") "tensors[0].kind must be \"param\" or \"state\", not \"output\""},
        {"\"kind\": \"param\"", "\"kind\": \"state\"", ZF_ERR_FORMAT,
         AT("22:15") "tensors[0].file must be \"state.safetensors\", not \"params.safetensors\""},
        {"\"role\": \"count\"", "\"role\": \"clock\"", ZF_ERR_FORMAT,
         AT("44:15") "tensors[3].role must be the role of a state, such as \"moment\", not "
                     "\"clock\""},
        {"\"role\": \"count\"", "\"role\": \"loss\"", ZF_ERR_FORMAT,
         AT("44:15") "tensors[3].role must be the role of a state, such as \"moment\", not "
                     "\"loss\""},
        {"\"role\": \"count\"", "\"role\": 7", ZF_ERR_FORMAT,
         AT("44:15") "tensors[3].role must be a string, not 7"},
        {"\"role\": \"moment\"", "\"role\": \"variance\"", ZF_ERR_MISMATCH,
         "PATH/state.safetensors: adamw.m/in.weight has the role variance, but moment in the "
         "store"},
        {"\"role\": \"count\"", "\"role\": null", ZF_OK, ""},
        {"\"role\": \"moment\"", "\"rule\": \"moment\"", ZF_OK, ""}, /* of an older version */
        {"\"of\": \"in.weight\"", "\"off\": \"in.weight\"", ZF_ERR_FORMAT,
         AT("50:5") "tensors[4] lacks \"of\""},
        {"\"of\": \"in.weight\"", "\"of\": \"\"", ZF_ERR_FORMAT,
         AT("54:13") "tensors[4].of must be the name of a parameter, not \"\""},
        {"\"kind\": \"param\"", "\"kind\": \"param\", \"role\": \"moment\"", ZF_ERR_FORMAT,
         AT("19:32") "tensors[0].role must be the role of a param, such as \"adapter\", not "
                     "\"moment\""},
        {"\"kind\": \"param\"", "\"kind\": \"param\", \"role\": \"adapter\"", ZF_ERR_FORMAT,
         AT("17:5") "tensors[0] lacks \"adapter\""},
        {"\"dtype\": \"f32\"", "\"dtype\": \"f31\"", ZF_ERR_FORMAT,
         AT("20:16") "tensors[0].dtype must be a dtype such as \"f32\", not \"f31\""},
        {"\"dtype\": \"f32\"", "\"dtype\": \"i32\"", ZF_ERR_FORMAT,
         "PATH/params.safetensors: in.weight is f32[5,1], the manifest says i32[5,1]"},
        {"\"shape\": [5, 1]", "\"shape\": [1, 5]", ZF_ERR_FORMAT,
         "PATH/params.safetensors: in.weight is f32[5,1], the manifest says f32[1,5]"},
        {"\"shape\": [5, 1]", "\"shape\": [5, 1, 1, 1, 1, 1, 1]", ZF_ERR_FORMAT,
         AT("21:16") "tensors[0].shape has 7 dimensions: at most 6 are possible"},
        {"\"shape\": [5, 1]", "\"shape\": [4294967296, 4294967296]", ZF_ERR_FORMAT,
         AT("21:16") "tensors[0].shape has more elements than 64 bits count"},
        {"\"shape\": [5, 1]", "\"shape\": [-5, 1]", ZF_ERR_FORMAT,
         AT("21:17") "tensors[0].shape[0] must be an integer of at least 0, not -5"},
        {"\"shape\": [5, 1]", "\"shape\": 5", ZF_ERR_FORMAT,
         AT("21:16") "tensors[0].shape must be an array of dimensions, not 5"},
        {"\"file\": \"params.safetensors\"", "\"file\": \"../params.safetensors\"", ZF_ERR_FORMAT,
         AT("22:15") "tensors[0].file must be \"params.safetensors\", not "
                     "\"../params.safetensors\""},
        {"\"file\": \"params.safetensors\"", "\"file\": \"/dev/zero\"", ZF_ERR_FORMAT,
         AT("22:15") "tensors[0].file must be \"params.safetensors\", not \"/dev/zero\""},
        {"\"file\": \"params.safetensors\"", "\"file\": \"state.safetensors\"", ZF_ERR_FORMAT,
         AT("22:15") "tensors[0].file must be \"params.safetensors\", not \"state.safetensors\""},
        {"\"file\": \"params.safetensors\"", "\"file\": null", ZF_ERR_FORMAT,
         AT("22:15") "tensors[0].file must be a string, not null"},
        {"\"crc32c\": [", "\"crc32c\": 0, \"x\": [", ZF_ERR_FORMAT,
         AT("23:17") "tensors[0].crc32c must be an array of checksums, not 0"},
        {"\"crc32c\": [", "\"crc32c\": [0, ", ZF_ERR_FORMAT,
         AT("23:17") "tensors[0].crc32c has 2 checksums; 20 bytes have 1"},
        {"\"crc32c\": [", "\"crc32c\": [], \"x\": [", ZF_ERR_FORMAT,
         AT("23:17") "tensors[0].crc32c has 0 checksums; 20 bytes have 1"},
        {"\"crc32c\": [", "\"crc32c\": [0], \"x\": [", ZF_ERR_FORMAT,
         AT("23:18") "tensors[0].crc32c[0] must be a checksum: eight of the digits 0-9 and a-f, "
                     "not 0"},
        {"\"crc32c\": [", "\"crc32c\": [\"bad\"], \"x\": [", ZF_ERR_FORMAT,
         AT("23:18") "tensors[0].crc32c[0] must be a checksum: eight of the digits 0-9 and a-f, "
                     "not \"bad\""},
        {"\n  ],\n  \"crc32c\"", ",\n  {}],\n  \"crc32c\"", ZF_ERR_FORMAT,
         AT("110:3") "tensors[10] lacks \"name\""},
        {"\n  ],\n  \"crc32c\": \"", "],\n  \"sum\": \"", ZF_ERR_FORMAT,
         AT("1:1") "the top value lacks \"crc32c\""},
        {"\n  ],\n  \"crc32c\": ", "],\n  \"crc32c\": 1, \"x\": ", ZF_ERR_FORMAT,
         AT("110:13") "crc32c must be a checksum: eight of the digits 0-9 and a-f, not 1"},
        {"\n}\n", ",\n\"x\": 1}\n", ZF_ERR_FORMAT,
         AT("111:13") "crc32c is not the end of the manifest; the file is damaged"},
        {"\n}\n", "}\n", ZF_ERR_FORMAT,
         AT("111:13") "crc32c is not the end of the manifest; the file is damaged"},
        {"\n}\n", "\n}", ZF_ERR_FORMAT,
         AT("111:13") "crc32c is not the end of the manifest; the file is damaged"},
        {"\n}\n", "\n}\n\n", ZF_ERR_FORMAT,
         AT("111:13") "crc32c is not the end of the manifest; the file is damaged"},
        {"{", "[", ZF_ERR_FORMAT,
         AT("2:12") "expected ',' or ']' in the array that began on line 1, found ':'"},
        {"{\n", "{\r\n", ZF_OK, ""},
#undef AT
    };
    const char *path = test_path("edited");
    static char good[TEXT];
    static model m;
    long bytes;
    test_defer(t, model_free, &m);
    CHECK(t, small(t, &m, path));
    bytes = get_file(path, "manifest.json", good);
    CHECK(t, bytes > 0 && edit(path, NULL, NULL)); /* the checksum that this file should have */
    OK(t, zf_load(STORE(m.program), path, NULL), STORE_ERROR(m.program));
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        CHECK(t, put_file(path, "manifest.json", good, bytes));
        if (!edit(path, edits[i].from, edits[i].to))
            test_fail(t, __FILE__, __LINE__, edits[i].from, "");
        if (edits[i].status) refuses(t, &m, path, NULL, edits[i].status, edits[i].text);
        else OK(t, zf_load(STORE(m.program), path, NULL), STORE_ERROR(m.program));
    }
}

/* What damage of each file says. */
TEST_ONCE(checkpoint_damage_is_named)
{
    const char *path = test_path("named");
    static char good[TEXT], bad[TEXT];
    static model m;
    char expected[256];
    long bytes;
    uint32_t right, wrong;
    test_defer(t, model_free, &m);
    CHECK(t, small(t, &m, path));

    /* The last tensor is out.weight, 3 floats; its last byte is the last of the file. */
    bytes = get_file(path, "params.safetensors", good);
    memcpy(bad, good, TEXT);
    bad[bytes - 1] ^= 1;
    CHECK(t, bytes > 12 && put_file(path, "params.safetensors", bad, bytes));
    right = crc32c(good + bytes - 12, 12), wrong = crc32c(bad + bytes - 12, 12);
    snprintf(expected, sizeof expected,
             "PATH/params.safetensors: out.weight: checksum %08x, the manifest says %08x; the file "
             "is damaged",
             (unsigned)wrong, (unsigned)right);
    refuses(t, &m, path, NULL, ZF_ERR_FORMAT, expected);

    memcpy(bad, good, TEXT);
    memcpy(strstr(bad + 8, "\"pt\""), "\"qt\"", 4); /* what no other check would find */
    CHECK(t, put_file(path, "params.safetensors", bad, bytes));
    right = crc32c(good, bytes - 36), wrong = crc32c(bad, bytes - 36);
    snprintf(expected, sizeof expected,
             "PATH/params.safetensors: header: checksum %08x, the manifest says %08x; the file is "
             "damaged",
             (unsigned)wrong, (unsigned)right);
    refuses(t, &m, path, NULL, ZF_ERR_FORMAT, expected);
    CHECK(t, put_file(path, "params.safetensors", good, bytes - 1));
    refuses(t, &m, path, NULL, ZF_ERR_FORMAT,
            "PATH/params.safetensors: the tensors have 36 bytes, but only 35 are there: it is cut "
            "short");
    CHECK(t, put_file(path, "params.safetensors", good, bytes));

    CHECK(t, put_file(path, "a.txt", "hallo", 5));
    snprintf(expected, sizeof expected,
             "PATH/a.txt: checksum %08x, the manifest says 9a71bb4c; the file is damaged",
             (unsigned)crc32c("hallo", 5));
    refuses(t, &m, path, NULL, ZF_ERR_FORMAT, expected);
    CHECK(t, put_file(path, "a.txt", "hello", 5));

    bytes = get_file(path, "manifest.json", good);
    right = crc32c(good, bytes - 13);
    memcpy(bad, good, TEXT);
    memcpy(strstr(bad, "\"step\": 2"), "\"step\": 3", 9);
    wrong = crc32c(bad, bytes - 13);
    CHECK(t, put_file(path, "manifest.json", bad, bytes));
    snprintf(expected, sizeof expected,
             "PATH/manifest.json: checksum %08x, the manifest says %08x; the file is damaged",
             (unsigned)wrong, (unsigned)right);
    refuses(t, &m, path, NULL, ZF_ERR_FORMAT, expected);
    CHECK(t, put_file(path, "manifest.json", good, 0));
    refuses(t, &m, path, NULL, ZF_ERR_FORMAT,
            "PATH/manifest.json:1:1: expected a value, found the end of the text");
    CHECK(t, put_file(path, "manifest.json", good, bytes));
    OK(t, zf_load(STORE(m.program), path, NULL), STORE_ERROR(m.program));
}

static void put_byte(FILE *file, long at, int byte)
{
    if (fseek(file, at, SEEK_SET) || fputc(byte & 255, file) == EOF) abort();
}

/* Any flipped bit, and a file that is too short or too long by any number of bytes, is found and
 * changes nothing. */
TEST_ONCE(checkpoint_any_damage_is_found)
{
    static const char *const files[] = {"manifest.json", "params.safetensors", "state.safetensors",
                                        "a.txt"};
    const char *path = test_path("damaged");
    static unsigned char before[IMAGE], after[IMAGE];
    static char good[TEXT];
    static model m;
    FILE *file;
    size_t image;
    test_defer(t, model_free, &m);
    CHECK(t, small(t, &m, path));
    image = image_of(&m, before);
    for (int i = 0; i < 4; i++) {
        long bytes = get_file(path, files[i], good);
        CHECK(t, bytes > 0);
        file = fopen(join(path, files[i]), "r+b");
        CHECK(t, file != NULL);
        setbuf(file, NULL);
        for (long at = TEST_TURN; at < bytes; at += TEST_ONE_IN) {
            zf_status status;
            put_byte(file, at, good[at] ^ 1 << at % 8);
            status = zf_load(STORE(m.program), path, NULL);
            put_byte(file, at, good[at]);
            if (status != ZF_ERR_FORMAT) fclose(file);
            CHECK(t, status == ZF_ERR_FORMAT && *STORE_ERROR(m.program));
        }
        fclose(file);
        for (long length = bytes - 1; length >= 0; length--) {
            CHECK(t, truncate(join(path, files[i]), length) == 0);
            CHECK(t, zf_load(STORE(m.program), path, NULL) == ZF_ERR_FORMAT);
        }
        good[bytes] = ' ';
        CHECK(t, put_file(path, files[i], good, bytes + 1));
        CHECK(t, zf_load(STORE(m.program), path, NULL) == ZF_ERR_FORMAT);
        CHECK(t, put_file(path, files[i], good, bytes));
        CHECK(t, zf_program_step(m.program) == 2 && image_of(&m, after) == image);
        CHECK(t, !memcmp(before, after, image));
        OK(t, zf_load(STORE(m.program), path, NULL), STORE_ERROR(m.program));
    }
}

TEST_ONCE(checkpoint_files_that_are_missing)
{
    static const struct {
        const char *name, *missing, *folder;
    } files[] = {
        {"manifest.json", "PATH is no checkpoint: it has no manifest.json",
         "cannot read PATH/manifest.json: it is not a regular file"},
        {"params.safetensors", "cannot open PATH/params.safetensors: No such file or directory",
         "cannot read PATH/params.safetensors: it is not a regular file"},
        {"state.safetensors", "cannot open PATH/state.safetensors: No such file or directory",
         "cannot read PATH/state.safetensors: it is not a regular file"},
        {"a.txt", "cannot open PATH/a.txt: No such file or directory",
         "cannot read PATH/a.txt: it is not a regular file"},
    };
    const char *path = test_path("missing");
    static model m;
    test_defer(t, model_free, &m);
    for (int i = 0; i < 4; i++) {
        if (i) model_free(&m);
        CHECK(t, small(t, &m, path) && remove(join(path, files[i].name)) == 0);
        refuses(t, &m, path, NULL, i ? ZF_ERR_IO : ZF_ERR_FORMAT, files[i].missing);
        CHECK(t, mkdir(join(path, files[i].name), 0700) == 0);
        refuses(t, &m, path, NULL, ZF_ERR_IO, files[i].folder);
        CHECK(t, rmdir(join(path, files[i].name)) == 0);
        remove_all(path);
    }
}

TEST_ONCE(checkpoint_places_that_are_none)
{
    const char *path = test_path("foreign"), *inside;
    static char longest[5000];
    static model m;
    char value[8], loop[128];
    zf_error error = {ZF_OK, ""};
    test_defer(t, model_free, &m);
    NEED(t, model_new(t, &m, &(model_desc){.rule = ADAMW, .seed = 1}), NULL);
    refuses(t, &m, path, NULL, ZF_ERR_IO, "cannot open PATH: No such file or directory");
    CHECK(t, zf_load(STORE(m.program), "", NULL) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, STORE_ERROR(m.program), "an empty path");
    CHECK(t, zf_load(STORE(m.program), NULL, NULL) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, STORE_ERROR(m.program), "an empty path");
    CHECK(t, zf_save(STORE(m.program), NULL, NULL) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, STORE_ERROR(m.program), "zf_save: no path");
    CHECK(t, zf_save(STORE(m.program), "", NULL) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, STORE_ERROR(m.program), "an empty path");
    memset(longest, 'p', sizeof longest - 1);
    CHECK(t, zf_load(STORE(m.program), longest, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, strstr(STORE_ERROR(m.program), "ppp: too long a path"));
    CHECK(t, zf_save(STORE(m.program), longest, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, strstr(STORE_ERROR(m.program), ": a path of 4999 bytes, at most 4095 are"));

    CHECK(t, put_file(path, "", "x", 1)); /* a file */
    refuses(t, &m, path, NULL, ZF_ERR_FORMAT, "PATH is no checkpoint: it is not a directory");
    declines(t, &m, path, NULL, ZF_ERR_IO, "PATH exists and is not a directory");
    inside = join(path, "in");
    CHECK(t, zf_save(STORE(m.program), inside, NULL) == ZF_ERR_IO);
    CHECK(t, remove(path) == 0);

    CHECK(t,
          mkdir(path, 0700) == 0 && put_file(path, "letter.txt", "x", 1)); /* a folder of files */
    refuses(t, &m, path, NULL, ZF_ERR_FORMAT, "PATH is no checkpoint: it has no manifest.json");
    CHECK(t, zf_checkpoint_note(path, "k", value, sizeof value, &error) == ZF_ERR_FORMAT);
    CHECK_TEXT(t, without(error.text, path), "PATH is no checkpoint: it has no manifest.json");
    declines(t, &m, path, NULL, ZF_ERR_IO,
             "PATH is not replaced: it holds files (letter.txt) but no manifest.json; name another "
             "place");
    CHECK(t,
          put_file(path, "manifest.json", "{\"short_name\": \"app\"}", 21)); /* of another kind */
    refuses(t, &m, path, NULL, ZF_ERR_FORMAT,
            "PATH/manifest.json is not the manifest of a zeroflow checkpoint");
    CHECK(t, exists(path, "letter.txt") && remove(join(path, "manifest.json")) == 0);
    CHECK(t, symlink("manifest.json", join(path, "manifest.json")) == 0); /* to itself */
    snprintf(loop, sizeof loop, "cannot open PATH/manifest.json: %s", strerror(ELOOP));
    refuses(t, &m, path, NULL, ZF_ERR_IO, loop);
    remove_all(path);

    inside = join(path, "in"); /* no parent */
    CHECK(t, zf_save(STORE(m.program), inside, NULL) == ZF_ERR_IO);
    CHECK_TEXT(t, without(STORE_ERROR(m.program), path),
               "cannot create PATH/in.zf-new: No such file or directory");
    CHECK(t, mkdir(path, 0700) == 0); /* an empty folder counts as none */
    OK(t, zf_save(STORE(m.program), path, NULL), STORE_ERROR(m.program));
    OK(t, zf_load(STORE(m.program), path, NULL), STORE_ERROR(m.program));
}

/* --------------------------------------------------------------------- saves that fail */

/* Two programs, an old checkpoint that is replaced by a new one, and a third program that loads
 * it. */
typedef struct rivals {
    const char *path;
    model old, new, reader;
    unsigned char old_image[IMAGE], new_image[IMAGE];
    size_t bytes;
} rivals;

static void rivals_free(void *object)
{
    rivals *r = object;
    model_free(&r->old), model_free(&r->new), model_free(&r->reader);
}

/* The old one has done 1 step, the new one 2. False when something failed. */
static bool rivals_new(test *t, rivals *r, const char *path, zf_backend *backend)
{
    float losses[2];
    *r = (rivals){.path = path};
    if (!model_new(t, &r->old, &(model_desc){.rule = ADAMW, .seed = 1, .hidden = 300}) ||
        !model_new(t, &r->new,
                   &(model_desc){.rule = ADAMW, .seed = 1, .hidden = 300, .backend = backend}) ||
        !model_new(t, &r->reader, &(model_desc){.rule = ADAMW, .seed = 9, .hidden = 300}) ||
        train(&r->old, 1, losses) || train(&r->new, 2, losses) ||
        zf_save(STORE(r->old.program), path, NULL))
        return false;
    r->bytes = image_of(&r->old, r->old_image);
    return r->bytes && image_of(&r->new, r->new_image) == r->bytes;
}

/* Which checkpoint is there: 1 the old one, 2 the new one, complete; 0 neither. */
static int rivals_look(rivals *r)
{
    static unsigned char image[IMAGE];
    int64_t step;
    if (zf_load(STORE(r->reader.program), r->path, NULL) || image_of(&r->reader, image) != r->bytes)
        return 0;
    step = zf_program_step(r->reader.program);
    if (step < 1 || step > 2) return 0;
    return memcmp(image, step == 1 ? r->old_image : r->new_image, r->bytes) ? 0 : (int)step;
}

static bool no_debris(const char *path)
{
    return !exists(path, ".zf-new") && !exists(path, ".zf-old");
}

/* The allocator refuses at every place in turn. */
TEST_ONCE(checkpoint_survives_a_refusing_allocator)
{
    static rivals r;
    zf_status status = ZF_ERR_NOMEM;
    long refusals = 0;
    test_defer(t, rivals_free, &r);
    CHECK(t, rivals_new(t, &r, test_path("refused"), NULL));
    while (status) {
        t->refuse_at = t->allocations + refusals++;
        status = zf_save(STORE(r.new.program), r.path, NULL);
        t->refuse_at = -1;
        t->refused = false;
        CHECK(t, !status || status == ZF_ERR_NOMEM);
        CHECK_TEXT(t, STORE_ERROR(r.new.program), status ? "out of memory" : "");
        CHECK(t, rivals_look(&r) == (status ? 1 : 2) && no_debris(r.path));
    }
    CHECK(t, refusals > 20);
    for (refusals = 0, status = ZF_ERR_NOMEM; status; refusals++) {
        t->refuse_at = t->allocations + refusals;
        status = zf_load(STORE(r.old.program), r.path, NULL);
        t->refuse_at = -1;
        t->refused = false;
        CHECK(t, !status || status == ZF_ERR_NOMEM);
        CHECK_TEXT(t, STORE_ERROR(r.old.program), status ? "out of memory" : "");
        CHECK(t, zf_program_step(r.old.program) == (status ? 1 : 2));
    }
    CHECK(t, refusals > 20 && same_image(&r.old, &r.new));
}

/* A device that fails at a given copy, or runs something then. */
static struct {
    zf_backend backend;
    zf_copy kind;
    long calls, fail_at;
    zf_status (*then)(zf_error *error);
} device;

static zf_status device_lost(zf_error *error)
{
    error->status = ZF_ERR_BACKEND;
    strcpy(error->text, "device lost");
    return ZF_ERR_BACKEND;
}

static zf_status device_mute(zf_error *error)
{
    (void)error;
    return ZF_ERR_BACKEND;
}

static zf_status device_copy(void *self, void *to, const void *from, size_t bytes, zf_copy kind,
                             zf_error *error)
{
    (void)self;
    if (kind == device.kind && device.calls++ == device.fail_at) {
        zf_status status = device.then(error);
        if (status) return status;
    }
    memmove(to, from, bytes);
    return ZF_OK;
}

/* Fails without a word. */
static zf_status mute_synchronize(void *self, zf_error *error)
{
    (void)self, (void)error;
    return ZF_ERR_BACKEND;
}

static zf_backend *device_over(zf_backend *backend)
{
    device.backend = *backend; /* with its self, which kernels expect */
    device.backend.copy = device_copy;
    device.fail_at = -1;
    device.then = device_lost;
    return &device.backend;
}

TEST_ONCE(checkpoint_survives_a_failing_device)
{
    static rivals r;
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.allocator = t->allocator}, &error);
    zf_status status = ZF_ERR_BACKEND;
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    test_defer(t, rivals_free, &r);
    CHECK(t, rivals_new(t, &r, test_path("lost"), device_over(cpu)));
    device.kind = ZF_DEVICE_TO_HOST;
    for (device.fail_at = 0; status; device.fail_at++) {
        device.calls = 0;
        status = zf_save(STORE(r.new.program), r.path, NULL);
        CHECK(t, !status || status == ZF_ERR_BACKEND);
        CHECK_TEXT(t, STORE_ERROR(r.new.program), status ? "device lost" : "");
        CHECK(t, rivals_look(&r) == (status ? 1 : 2) && no_debris(r.path));
    }
    CHECK(t, device.fail_at == 10 + 1); /* as many copies as tensors; one try more shows that */
    device.calls = 0, device.fail_at = 1, device.then = device_mute;
    CHECK(t, zf_save(STORE(r.new.program), r.path, NULL) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, STORE_ERROR(r.new.program), "zf_save: in.bias cannot be read");
    device.kind = ZF_HOST_TO_DEVICE;
    device.calls = 0;
    CHECK(t, zf_load(STORE(r.new.program), r.path, NULL) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, STORE_ERROR(r.new.program),
               "zf_load: in.bias cannot be written; parameters and states are now undefined");
    device.calls = 0, device.then = device_lost;
    CHECK(t, zf_load(STORE(r.new.program), r.path, NULL) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, STORE_ERROR(r.new.program),
               "device lost; parameters and states are now undefined");
    CHECK(t, zf_save(STORE(r.new.program), r.path, NULL) == ZF_ERR_STAGE);
    CHECK_TEXT(
        t, STORE_ERROR(r.new.program),
        "zf_save: parameters and states are undefined, since an update or zf_load has failed "
        "half way; zf_load restores them from a checkpoint");
    device.calls = 10;
    OK(t, zf_load(STORE(r.new.program), r.path, NULL), STORE_ERROR(r.new.program));
    CHECK(t, same_image(&r.new, &r.reader));
    device.backend.synchronize = mute_synchronize;
    CHECK(t, zf_save(STORE(r.new.program), r.path, NULL) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, STORE_ERROR(r.new.program), "zf_save: the backend failed");
    CHECK(t, zf_load(STORE(r.new.program), r.path, NULL) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, STORE_ERROR(r.new.program), "zf_load: the backend failed");
    device.backend.synchronize = cpu->synchronize;
}

static zf_status change_file(zf_error *error)
{
    static char bytes[TEXT];
    const char *path = test_path("changing");
    long length = get_file(path, "params.safetensors", bytes);
    (void)error;
    bytes[length - 1] ^= 1;
    put_file(path, "params.safetensors", bytes, length);
    return ZF_OK;
}

/* A file that changes after the check. */
TEST_ONCE(checkpoint_that_changes_while_it_is_loaded)
{
    const char *path = test_path("changing");
    static model m;
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.allocator = t->allocator}, &error);
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    test_defer(t, model_free, &m);
    NEED(t, model_new(t, &m, &(model_desc){.rule = SGD, .seed = 1, .backend = device_over(cpu)}),
         NULL);
    OK(t, zf_save(STORE(m.program), path, NULL), STORE_ERROR(m.program));
    device.kind = ZF_HOST_TO_DEVICE;
    device.calls = device.fail_at = 0;
    device.then = change_file;
    CHECK(t, zf_load(STORE(m.program), path, NULL) == ZF_ERR_FORMAT);
    CHECK_TEXT(t, without(STORE_ERROR(m.program), path),
               "PATH/params.safetensors: out.weight changed while it was loaded; parameters and "
               "states are now undefined");
    CHECK(t, zf_program_step(m.program) == 0);
}

/* Files may not grow beyond a limit, which runs through all sizes. The signal that the system sends
 * then, and that ends a process, does not reach the program. */
TEST_ONCE(checkpoint_survives_a_full_disk)
{
    static rivals r;
    struct rlimit before, limit;
    zf_status status = ZF_ERR_IO;
    test_defer(t, rivals_free, &r);
    CHECK(t, rivals_new(t, &r, test_path("full"), NULL));
    CHECK(t, getrlimit(RLIMIT_FSIZE, &before) == 0);
    for (rlim_t most = 0; status; most += most < 4096 ? 509 : 4001) {
        char text[512];
        limit = before;
        limit.rlim_cur = most;
        setrlimit(RLIMIT_FSIZE, &limit);
        status = zf_save(STORE(r.new.program), r.path, NULL);
        setrlimit(RLIMIT_FSIZE, &before);
        snprintf(text, sizeof text, "%s", without(STORE_ERROR(r.new.program), r.path));
        CHECK(t, !status || status == ZF_ERR_IO);
        if (status) {
            CHECK(t, !strncmp(text, "cannot write PATH.zf-new/", 25));
            CHECK(t, strstr(text, ".zf-new: File too large"));
        }
        CHECK(t, rivals_look(&r) == (status ? 1 : 2) && no_debris(r.path));
    }
}

/* Writing is forbidden. The superuser may write anyway, so the test becomes another user for a
 * while. */
TEST_ONCE(checkpoint_survives_an_unwritable_parent)
{
    const char *parent = test_path("parent");
    char path[300], text[512];
    static rivals r;
    zf_status status;
    uid_t user = geteuid();
    snprintf(path, sizeof path, "%s/checkpoint", parent);
    CHECK(t, mkdir(parent, 0755) == 0);
    test_defer(t, rivals_free, &r);
    CHECK(t, rivals_new(t, &r, path, NULL));
    CHECK(t, chmod(parent, 0555) == 0 && chmod(test_path(""), 0711) == 0);
    if (user == 0 && seteuid(65534)) test_fail(t, __FILE__, __LINE__, "seteuid", "");
    status = zf_save(STORE(r.new.program), r.path, NULL);
    snprintf(text, sizeof text, "%s", without(STORE_ERROR(r.new.program), r.path));
    if (user == 0 && seteuid(0)) abort();
    CHECK(t, chmod(parent, 0755) == 0 && chmod(test_path(""), 0700) == 0);
    CHECK(t, status == ZF_ERR_IO);
    CHECK_TEXT(t, text, "cannot create PATH.zf-new: Permission denied");
    CHECK(t, rivals_look(&r) == 1 && no_debris(r.path));
    OK(t, zf_save(STORE(r.new.program), r.path, NULL), STORE_ERROR(r.new.program));
    CHECK(t, rivals_look(&r) == 2);
}

/* A commit that was stopped between its two renames: loading restores the old checkpoint. */
TEST_ONCE(checkpoint_comes_back)
{
    static rivals r;
    char aside[300], value[8];
    zf_note note = {"k", "v"};
    zf_error error = {ZF_OK, ""};
    test_defer(t, rivals_free, &r);
    CHECK(t, rivals_new(t, &r, test_path("back"), NULL));
    OK(t, zf_save(STORE(r.new.program), r.path, &(zf_save_desc){.notes = &note, .note_count = 1}), NULL);
    snprintf(aside, sizeof aside, "%s.zf-old", r.path);
    CHECK(t, rename(r.path, aside) == 0);
    CHECK(t, rivals_look(&r) == 2 && !exists(aside, ""));
    CHECK(t, rename(r.path, aside) == 0);
    OK(t, zf_checkpoint_note(r.path, "k", value, sizeof value, &error), error.text);
    CHECK_TEXT(t, value, "v");
    CHECK(t, rename(r.path, aside) == 0);
    OK(t, zf_save(STORE(r.old.program), r.path, NULL), STORE_ERROR(r.old.program));
    CHECK(t, rivals_look(&r) == 1 && no_debris(r.path));
}

static bool save_new(void *user)
{
    rivals *r = user;
    return !zf_save(STORE(r->new.program), r->path, NULL);
}

/* kill -9 at every system call of a save, of which builds take turns. */
TEST_ONCE(checkpoint_survives_kill)
{
    static rivals r;
    int killed = 1, seen[3] = {0, 0, 0};
    test_defer(t, rivals_free, &r);
    CHECK(t, rivals_new(t, &r, test_path("killed"), NULL));
    for (long stop = 1 + 2 * TEST_TURN; killed; stop += 2 * TEST_ONE_IN) { /* return equals the next entry */
        int there;
        killed = kill_at(stop, save_new, &r);
        CHECK(t, killed >= 0);
        there = rivals_look(&r);
        CHECK(t, there != 0);
        seen[there] += killed;
        /* The next save removes what is left; to save time, only in some turns. */
        if (there == 2 || stop % 16 == 1 || !killed)
            OK(t, zf_save(STORE(r.old.program), r.path, NULL), STORE_ERROR(r.old.program));
        else remove_all(join(r.path, ".zf-new"));
        CHECK(t, rivals_look(&r) == 1 && no_debris(r.path));
    }
    CHECK(t, seen[1] > 0 && seen[2] > 0);
}

/* The machine stops at any call of a save, and loses what was not synced. */
TEST_ONCE(checkpoint_survives_power_loss)
{
    static rivals r;
    const char *folder = test_path("disk"), *left = test_path("left");
    char path[512], copy[512];
    int calls, seen[3] = {0, 0, 0};
    snprintf(path, sizeof path, "%s/x", folder), snprintf(copy, sizeof copy, "%s/x", left);
    test_defer(t, rivals_free, &r);
    disk_remove(folder);
    CHECK(t, mkdir(folder, 0700) == 0 && rivals_new(t, &r, path, NULL) && disk_record(folder));
    OK(t, zf_save(STORE(r.new.program), path, NULL), STORE_ERROR(r.new.program));
    calls = disk_stop();
    r.path = copy;
    for (int k = 0; k <= calls; k++)
        for (disk_kept kept = DISK_NONE; disk_differs(k) && kept <= DISK_INNER; kept++) {
            int there = disk_after(k, kept, left) ? rivals_look(&r) : 0;
            if (!there || (k == calls && there != 2))
                printf("    after call %d of %d, names %d\n", k, calls, (int)kept);
            CHECK(t, there == 2 || (there == 1 && k < calls));
            seen[there]++;
        }
    CHECK(t, seen[1] > 3 && seen[2] > 3);
    disk_remove(folder), disk_remove(left);
}
