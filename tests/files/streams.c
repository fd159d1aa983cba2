/* Checkpoints of any layout are read tensor by tensor, and exported so. */
#include "../support/golden.h"
#include "layouts.h"

enum { LAYERS = 4, PARTS = 8, ROWS = 35 /* of words, odd: they are cut */ };

static void close_checkpoint(void *c) { zf_checkpoint_close(c); }
static void free_graph(void *g) { zf_graph_free(g); }

/* A small model of a family, of tied or other heads. */
static zf_causal_config small(zf_causal_family family, bool tied)
{
    zf_causal_config c;
    zf_error error = {ZF_OK, ""};
    if (!llm_config_load("15m", &c, &error)) abort();
    c.family = family;
    c.vocab = ROWS, c.hidden = 16, c.layers = LAYERS, c.heads = 4, c.kv_heads = 2, c.width = 4;
    c.intermediate = 24, c.positions = 16, c.tied = tied;
    return c;
}

/* Each parameter, and the state of each where the checkpoint was opened for a role, is that of a store
 * of one rank. */
static void compare_all(test *t, zf_checkpoint *c, zf_store *one, bool states)
{
    static char want[8 * MOST];
    zf_error error = {ZF_OK, ""};
    int32_t count = 0;
    for (int32_t k = 0; k < zf_checkpoint_count(c); k++) count += !zf_checkpoint_at(c, k).state;
    CHECK(t, count >= 20 && zf_checkpoint_count(c) == count * (states ? 2 : 1));
    for (int32_t k = zf_checkpoint_count(c); k-- > 0;) {
        const zf_stored s = zf_checkpoint_at(c, k);
        const size_t bytes = (size_t)zf_shape_count(s.shape) * zf_dtype_size(s.dtype);
        const void *values = zf_checkpoint_read(c, k, &error);
        NEED(t, values, &error);
        OK(t, zf_store_read(one, s.name, want, bytes), zf_store_error(one));
        if (memcmp(values, want, bytes)) test_fail(t, __FILE__, __LINE__, s.name, "other bits");
    }
}

/* What ranks in a layout have saved after a step, at `path`, is read with the bits of one rank, whose
 * team remains. */
static void check_layout(test *t, const zf_causal_config *config, const layout *l, const char *path,
                         const char *role, team *one)
{
    static const layout alone = {1, 1, 1, 0, 0, 0};
    static team some;
    char *text = text_of(config);
    zf_error error = {ZF_OK, ""};
    zf_checkpoint *c;
    test_defer(t, free, text);
    test_defer(t, team_end, one);
    parts_of_step = PARTS;
    task.load = NULL, task.save = path, task.first = 0, task.count = 1;
    run(t, &some, text, l);
    team_end(&some);
    task.save = NULL;
    if (!t->failed) run(t, one, text, &alone);
    if (t->failed) return;
    c = zf_checkpoint_open(path, role, NULL, &error);
    NEED(t, c, &error);
    test_defer(t, close_checkpoint, c);
    CHECK(t, (zf_checkpoint_find(c, "model.norm.weight", true) >= 0) == (role != NULL));
    compare_all(t, c, zf_program_store(one->programs[0]), role != NULL);
}

/* The same, and that the file of an export has the bytes of that of one rank. */
static void check_export(test *t, const zf_causal_config *config, const layout *l, const char *role,
                         zf_dtype dtype)
{
    static char path[300], file[300], want[300];
    static team one;
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_new(NULL);
    zf_checkpoint *c;
    if (!g) abort();
    test_defer(t, free_graph, g);
    snprintf(path, sizeof path, "%s", test_path("streams"));
    snprintf(file, sizeof file, "%s", test_path("streams.safetensors"));
    snprintf(want, sizeof want, "%s", test_path("streams-want.safetensors"));
    check_layout(t, config, l, path, role, &one);
    if (t->failed) return;
    llm_build(g, config, &(sample_shape){.batch = 1, .sequence = 1}, SAMPLE_EVALUATE);
    c = role ? zf_checkpoint_open(path, role, NULL, &error)
             : zf_exchange_open(path, false, g, NULL, &error);
    NEED(t, c, &error);
    test_defer(t, close_checkpoint, c);
    CHECK(t, zf_exchange_export_from(llm_sample.exchange(), c, g, file, dtype, &error));
    CHECK(t, zf_exchange_export(llm_sample.exchange(), one.programs[0], one.members[0].graph, want,
                                false, dtype, &error));
    CHECK(t, same_files(file, want));
    team_end(&one);
}

TEST_ONCE(streams_of_stages_shards_and_boxes)
{
    static const layout l = {2, 2, 2, 3, 0, 0};
    const zf_causal_config c = small(ZF_CAUSAL_LLAMA, true);
    how = (zf_training){.clip = 0.5, .sections.tensor = 2};
    check_export(t, &c, &l, NULL, ZF_F32);
}

/* Boxes in pieces of a weight that joins products, rounded. */
TEST_ONCE(streams_of_joined_weights)
{
    static const layout l = {2, 1, 2, 1, 0, 0};
    const zf_causal_config c = small(ZF_CAUSAL_PHI3, false);
    how = (zf_training){.clip = 0.5, .sections.tensor = 2};
    check_export(t, &c, &l, NULL, ZF_BF16);
}

TEST_ONCE(streams_of_master_weights)
{
    static const layout l = {1, 2, 2, 3, 0, 0};
    const zf_causal_config c = small(ZF_CAUSAL_LLAMA, false);
    how = (zf_training){.precision = {.dtype = ZF_F16, .scale = 1024}, .sections.tensor = 2};
    check_export(t, &c, &l, "master", ZF_F32);
}

static void check_refused(test *t, const char *path, const char *role, const char *wanted)
{
    zf_error error = {ZF_OK, ""};
    zf_checkpoint *c = zf_checkpoint_open(path, role, NULL, &error);
    zf_checkpoint_close(c);
    if (c || !strstr(error.text, wanted)) test_fail(t, __FILE__, __LINE__, wanted, error.text);
}

/* Of states those with the role are read, and all parts must have it. */
TEST_ONCE(streams_of_averages)
{
    static const layout l = {1, 2, 2, 3, 0, 0};
    static char path[300];
    static team one;
    const zf_causal_config c = small(ZF_CAUSAL_LLAMA, false);
    snprintf(path, sizeof path, "%s", test_path("streams"));
    how = (zf_training){.ema.decay = 0.9, .sections.tensor = 2};
    check_layout(t, &c, &l, path, "average", &one);
    team_end(&one);
    if (t->failed) return;
    CHECK(t, edit_list(path, "rank-00003-of-00004.json", "\"role\": \"average\"",
                       "\"role\": \"moment\""));
    check_refused(t, path, "average", "has the role moment, but average in the store");
}

/* ------------------------------------------------------------------------------------- memory */

/* Saves `count` parameters [rows, rows] of a graph, which the caller frees. */
static zf_graph *save_some(const char *path, int count, int64_t rows, zf_dtype dtype,
                           zf_error *error)
{
    const zf_note note = {"precision", zf_dtype_name(dtype)};
    zf_graph *g = zf_graph_new(NULL);
    zf_program *p;
    for (int k = 0; g && k < count; k++) {
        char name[40];
        snprintf(name, sizeof name, "layers.%d.weight", k);
        (void)zf_param(g, name, ZF_SHAPE(rows, rows),
                       &(zf_param_desc){.init = ZF_ONES, .dtype = dtype});
    }
    p = g ? zf_compile(g, NULL) : NULL;
    if (!p || zf_save(zf_program_store(p), path, &(zf_save_desc){.notes = &note, .note_count = 1}))
        snprintf(error->text, sizeof error->text, "%s",
                 p ? zf_store_error(zf_program_store(p)) : zf_graph_error(g));
    zf_program_free(p);
    return g;
}

/* In memory are one of 20 MiB of parameters, a piece of a file, and the lists. */
TEST_ONCE(streams_take_the_memory_of_a_parameter)
{
    enum { COUNT = 20, SIDE = 512, PIECE = 4 << 20, LISTS = 1 << 19 };
    const char *path = test_path("streams-large"), *file = test_path("streams-large.safetensors");
    zf_error error = {ZF_OK, ""};
    zf_graph *g = save_some(path, COUNT, SIDE, ZF_F32, &error);
    zf_safetensors *written;
    int64_t ones = 0;
    double *values;
    zf_checkpoint *c;
    const long before = t->peak_bytes = t->live_bytes;
    NEED(t, g, &error);
    test_defer(t, free_graph, g);
    CHECK_TEXT(t, error.text, "");
    c = zf_exchange_open(path, false, g, &t->allocator, &error);
    NEED(t, c, &error);
    test_defer(t, close_checkpoint, c);
    CHECK(t, zf_exchange_export_from(llm_sample.exchange(), c, g, file, ZF_BF16, &error));
    CHECK(t, t->peak_bytes - before >= SIDE * SIDE * 4);
    CHECK(t, t->peak_bytes - before < SIDE * SIDE * 4 + PIECE + LISTS);
    written = open_file(t, file);
    CHECK(t, written && (values = values_of(written, "layers.7.weight", &ones)));
    while (ones > 0 && values[ones - 1] == 1) ones--;
    free(values);
    CHECK(t, zf_safetensors_count(written) == COUNT && !ones);
}

/* -------------------------------------------------------------------------------- what is refused */

TEST(streams_of_a_small_checkpoint)
{
    static char path[300];
    zf_error error = {ZF_OK, ""};
    zf_checkpoint *c;
    const float *values;
    if (!*path) {
        zf_graph *g;
        snprintf(path, sizeof path, "%s", test_path("streams-small"));
        g = save_some(path, 3, 4, ZF_F32, &error);
        zf_graph_free(g);
        CHECK_TEXT(t, error.text, "");
    }
    c = zf_checkpoint_open(path, NULL, &t->allocator, &error);
    NEED(t, c, &error);
    test_defer(t, close_checkpoint, c);
    CHECK(t, zf_checkpoint_count(c) == 3);
    for (int k = 0; k < 6; k++) {
        values = zf_checkpoint_read(c, k % 3, &error);
        NEED(t, values, &error);
        for (int i = 0; i < 16; i++) CHECK(t, values[i] == 1);
    }
    CHECK(t, zf_checkpoint_find(c, "layers.2.weight", false) == 2);
    CHECK(t, zf_checkpoint_find(c, "layers.2.weight", true) < 0);
    CHECK(t, zf_checkpoint_find(c, "layers.3.weight", false) < 0);
    CHECK(t, !zf_checkpoint_at(c, 3).name && !zf_checkpoint_read(c, 3, &error));
    CHECK_TEXT(t, error.text, "zf_checkpoint_read: there is no tensor 3");
}

static void *save(void *object)
{
    const member *m = object;
    zf_save(zf_program_store(m->program), task.save, NULL);
    return NULL;
}

/* Both ranks save to `path`. */
static void save_both(test *t, team *m, const char *path)
{
    task.save = path;
    for (int r = 0; r < 2; r++)
        if (pthread_create(&m->members[r].thread, NULL, save, &m->members[r])) abort();
    for (int r = 0; r < 2; r++) {
        pthread_join(m->members[r].thread, NULL);
        CHECK_TEXT(t, zf_store_error(zf_program_store(m->programs[r])), "");
    }
}

/* Damaged and missing boxes are found before anything is read, and a parameter that is not there, or
 * has another shape, before anything is written. */
TEST_ONCE(streams_refuse_damage)
{
    static const char text[] =
        "mesh tensor=2\n%1 = param \"w\" {init=normal b=1} : f32[2,2@tensor]\n"
        "%2 = all_gather %1 {world=2 over=tensor dim=1} : f32[2,4]\noutput %2 \"y\"\n";
    static const char list[] = "rank-00001-of-00002.json",
                      file[] = "params.rank-00001-of-00002.safetensors";
    static char path[300];
    static team m;
    zf_error error = {ZF_OK, ""};
    zf_graph *other = zf_graph_new(NULL);
    FILE *damaged;
    if (!other) abort();
    test_defer(t, free_graph, other);
    snprintf(path, sizeof path, "%s", test_path("streams-damage"));
    test_defer(t, team_end, &m);
    gather(t, &m, text, 2, NULL);
    if (!t->failed) save_both(t, &m, path);
    if (t->failed) return;
    check_refused(t, path, "nonsense", "zf_checkpoint_open: no state has this role");
    check_refused(t, path, "adapter", "zf_checkpoint_open: no state has this role");
    (void)zf_param(other, "w", ZF_SHAPE(2, 2), NULL);
    CHECK(t, !zf_exchange_open(path, false, other, NULL, &error));
    CHECK(t, strstr(error.text, ": w is [2,4], the model's is [2,2]"));
    CHECK(t, edit_list(path, list, "\"tensors\": [", "\"tensors\": [], \"x\": ["));
    check_refused(t, path, NULL, "the boxes of \"w\" leave a gap of 4 of its elements");
    save_both(t, &m, path);
    damaged = fopen(join(path, file), "r+b");
    CHECK(t,
          damaged && !fseek(damaged, -1, SEEK_END) && fputc(1, damaged) == 1 && !fclose(damaged));
    check_refused(t, path, NULL, "params.rank-00001-of-00002.safetensors: w[0:4]: checksum ");
    CHECK(t, !remove(join(path, file)));
    check_refused(t, path, NULL, "params.rank-00001-of-00002.safetensors");
}

/* The checkpoint is of another model, or has no averages, or 16 bits alone. */
TEST_ONCE(streams_refuse_another_model)
{
    const char *path = test_path("streams-other");
    zf_error error = {ZF_OK, ""};
    zf_graph *g = save_some(path, 2, 4, ZF_BF16, &error);
    NEED(t, g, &error);
    test_defer(t, free_graph, g);
    CHECK_TEXT(t, error.text, "");
    CHECK(t, !zf_exchange_open(path, true, g, NULL, &error));
    CHECK(t, strstr(error.text, " has no averages: it was trained without --ema"));
    CHECK(t, !zf_exchange_open(path, false, g, NULL, &error));
    CHECK(t, strstr(error.text, ": the checkpoint lacks master weights of \"layers.0.weight\""));
    g = zf_graph_new(NULL);
    if (!g) abort();
    test_defer(t, free_graph, g);
    (void)zf_param(g, "v", ZF_SHAPE(2, 2), NULL);
    CHECK(t, !zf_exchange_open(path, false, g, NULL, &error));
    CHECK(t, strstr(error.text, ": the checkpoint lacks the param \"v\": it is of another model"));
}
