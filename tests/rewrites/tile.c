/* Tiling: the bits that passes/rewrite/tile.c says stay equal do; a tiled graph has one result at every
 * stage, with every offload; pieces bound what is on the device; names and checkpoints stay whole. */
#include "../support/numbers.h"

#include <sys/stat.h>

/* Two layers, the second above the first, with weights of 8 and 18 pieces at 4096 bytes, biases, a
 * weight that two products read in two ways and that stays whole, a frozen weight. */
static const char model[] = "%1 = input \"x\" : f32[6,32]\n"
                            "%2 = param \"layer.0.w\" {init=normal b=0.3} : f32[256,32]\n"
                            "%3 = param \"layer.0.b\" : f32[256]\n"
                            "%4 = param \"layer.1.w\" {init=uniform a=-0.2 b=0.2} : f32[72,256]\n"
                            "%5 = param \"layer.1.b\" {init=ones} : f32[72]\n"
                            "%6 = param \"tied\" {init=normal b=0.3} : f32[8,72]\n"
                            "%7 = param \"frozen\" {init=normal b=0.3 frozen=true} : f32[64,72]\n"
                            "%8 = input \"lr\" : f32[]\n"
                            "%9 = linear %1, %2, %3 {activation=gelu} : f32[6,256]\n"
                            "%10 = dropout %9 {p=0.25 stream=3} : f32[6,256]\n"
                            "%11 = linear %10, %4, %5 {activation=tanh} : f32[6,72]\n"
                            "%12 = matmul %11, %6 {transpose_b=true} : f32[6,8]\n"
                            "%13 = matmul %12, %6 : f32[6,72]\n"
                            "%14 = matmul %13, %7 {transpose_b=true} : f32[6,64]\n"
                            "%15 = mul %14, %14 : f32[6,64]\n"
                            "%16 = total %15 : f32[]\n"
                            "      output %11 \"y\"\n"
                            "      output %16 \"loss\"\n";

/* An embedding with padding, and an output layer of the same width. */
#define WORDS(more, head)                                                                          \
    "%1 = constant {values=[0,17,999,1,64,17,63,640,3,511]} : i32[2,5]\n"                          \
    "%2 = param \"words\" {init=normal b=0.3} : f32[1000,64]\n" more                               \
    "%3 = param \"layer.0.w\" {init=normal b=0.1} : f32[64,64]\n"                                  \
    "%4 = input \"labels\" : i32[10]\n"                                                            \
    "%5 = input \"lr\" : f32[]\n"                                                                  \
    "%6 = gather_rows %2, %1 {padded=true padding=640} : f32[2,5,64]\n"                            \
    "%7 = reshape %6 {shape=[10,64]} : f32[10,64]\n"                                               \
    "%8 = matmul %7, %3 : f32[10,64]\n"                                                            \
    "%9 = tanh %8 : f32[10,64]\n"                                                                  \
    "%10 = matmul %9, " head " {transpose_b=true} : f32[10,1000]\n"                                \
    "%11 = logsumexp %10 : f32[10]\n"                                                              \
    "%12 = cross_entropy %10, %11, %4 {ignore=-100} : f32[10]\n"                                   \
    "%13 = sum %12 : f32[]\n"                                                                      \
    "%14 = constant {values=[0.1]} : f32[]\n"                                                      \
    "%15 = mul %13, %14 : f32[]\n"                                                                 \
    "      output %15 \"loss\"\n"

/* The table is the weight of the output layer as well; or that is another one. */
static const char tied[] = WORDS("", "%2"),
                  apart[] = WORDS("%16 = param \"head\" {init=normal b=0.3} : f32[1000,64]\n", "%16");

static bool numbers_of_text(test *t, numbers *out, const char *of, const char *line,
                            const numbers_desc *d)
{
    zf_error error = {ZF_OK, ""};
    char *text = text_after(t, of, line);
    const bool good = text && numbers_of(out, text, d, &error);
    if (text && !good) test_fail(t, __FILE__, __LINE__, line, error.text);
    free(text);
    return good;
}

static bool numbers_after(test *t, numbers *out, const char *line, const numbers_desc *d)
{
    return numbers_of_text(t, out, model, line, d);
}

/* Forward, and the gradients of the last tiled layer, to the last bit, in each dtype; of what is
 * below it, whose gradient passes through sums over pieces, within rounding. */
TEST_ONCE(tile_changes_only_the_order_of_dx)
{
    static const struct {
        const char *precision;
        double within;
    } list[] = {{"", 1e-6}, {"precision bf16; ", 0x1p-5}, {"precision f16 scale=1; ", 0x1p-8}};
    static const char *const same[] = {"output y", "output loss", "gradient layer.1.w",
                                       "gradient layer.1.b", "gradient tied"};
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        const numbers_desc d = {.fast = true};
        numbers with = {0}, without = {0};
        char line[200], why[300] = "";
        bool good;
        snprintf(line, sizeof line, "%sautograd loss", list[k].precision);
        good = numbers_after(t, &without, line, &d);
        snprintf(line, sizeof line, "%stile 4096; autograd loss", list[k].precision);
        good = good && numbers_after(t, &with, line, &d);
        for (size_t n = 0; n < sizeof same / sizeof *same && good; n++)
            if (numbers_compare(&without, &with, same[n], why, sizeof why) != 1) good = false;
        if (good && numbers_compare(&without, &with, "gradient layer.0", why, sizeof why) == 2)
            test_fail(t, __FILE__, __LINE__, line, "dx has the bits of an untiled layer");
        if (!good || numbers_compare_within(&without, &with, "gradient layer.0", list[k].within, why,
                                            sizeof why) != 2)
            test_fail(t, __FILE__, __LINE__, line, why);
        numbers_free(&with);
        numbers_free(&without);
    }
}

/* LAMB's ratio is that of the whole weight: where the gradient is the same, so is the update. */
TEST_ONCE(tile_has_one_trust_ratio)
{
    static const char *const same[] = {"param layer.1.w", "state lamb.v/layer.1.w"};
    static const char *const precisions[] = {"", "precision bf16; "};
    for (size_t k = 0; k < sizeof precisions / sizeof *precisions; k++) {
        const numbers_desc d = {.fast = true, .no_gradients = true};
        numbers with = {0}, without = {0};
        char line[200], why[300] = "";
        bool good;
        snprintf(line, sizeof line, "%sautograd loss; lamb lr weight_decay=0.1", precisions[k]);
        good = numbers_after(t, &without, line, &d);
        snprintf(line, sizeof line, "%stile 4096; autograd loss; lamb lr weight_decay=0.1",
                 precisions[k]);
        good = good && numbers_after(t, &with, line, &d);
        for (size_t n = 0; n < sizeof same / sizeof *same && good; n++)
            if (numbers_compare(&without, &with, same[n], why, sizeof why) != 1)
                test_fail(t, __FILE__, __LINE__, line, why);
        numbers_free(&with);
        numbers_free(&without);
    }
}

/* Every optimizer, dtype, stage and number of ranks and micro-batches, offloaded or not, recomputed
 * or not, fused or not: the bits of the tiled graph on one rank. */
TEST_ONCE(tile_has_one_result)
{
    static const char *const precisions[] = {"", "precision bf16; ",
                                             "precision f16 scale=200000 hysteresis=1; "},
                             *const optimizers[] = {"adamw lr weight_decay=0.1",
                                                    "lamb lr weight_decay=0.1 decay_all",
                                                    "sgd lr momentum=0.9", "lion lr"},
                             *const offloads[] = {"", "parameters=disk optimizer=disk",
                                                  "parameters=host activations=host", "",
                                                  "optimizer=host gradients=host"};
    int n = 0;
    for (int world = 1; world <= 4; world *= 2)
        for (int stage = 0; stage < 4; stage++, n++) {
            const char *folder = test_path("tile"), *offload = offloads[n % 5];
            const int micro = n % 3 == 1 ? 2 : 1;
            const bool whole = world > 1 && (stage == 1 || stage == 2);
            numbers_desc d = {.steps = 3,
                              .fast = true,
                              .no_gradients = true,
                              .slots = world * micro,
                              .seed = 3,
                              .offload_dir = folder};
            numbers one = {0}, all = {0};
            char before[300], line[600], why[300] = "";
            if (whole && strstr(offload, "parameters")) offload = "optimizer=disk";
            mkdir(folder, 0700);
            snprintf(before, sizeof before, "fuse; %stile 4096; autograd loss; %s%s; %s%s",
                     precisions[n / 2 % 3], n % 2 ? "clip 0.5; " : "", optimizers[(n + n / 4) % 4],
                     n % 4 ? "fuse; " : "", n % 3 ? "" : "recompute layers; ");
            snprintf(line, sizeof line,
                     "%szero stage=%d world=%d micro_batches=%d; %s%s%sprefetch bytes=%d; memory "
                     "threads=1; verify",
                     before, stage, world, micro, *offload ? "offload " : "", offload,
                     *offload ? "; " : "", n % 4 == 3 ? 0 : 6000);
            if (numbers_after(t, &one, before, &d) && numbers_after(t, &all, line, &d) &&
                (numbers_compare(&one, &all, "output loss", why, sizeof why) < 2 ||
                 numbers_compare(&one, &all, "param", why, sizeof why) != 12 ||
                 numbers_compare(&one, &all, "state", why, sizeof why) < 10))
                test_fail(t, __FILE__, __LINE__, line, why);
            numbers_free(&one);
            numbers_free(&all);
        }
}

/* A table in pieces, also where it is the output layer's weight: the loss and the gradient of the
 * weights above it to the last bit, of the others within rounding. */
TEST_ONCE(tile_cuts_tables)
{
    static const struct {
        const char *precision;
        double within;
    } list[] = {{"", 1e-6}, {"precision bf16; ", 0x1p-5}, {"precision f16 scale=1; ", 0x1p-8}};
    for (size_t k = 0; k < 2 * sizeof list / sizeof *list; k++) {
        const char *text = k % 2 ? apart : tied, *precision = list[k / 2].precision;
        const numbers_desc d = {.fast = true};
        numbers with = {0}, without = {0};
        char line[200], why[300] = "";
        snprintf(line, sizeof line, "%sautograd loss", precision);
        if (numbers_of_text(t, &without, text, line, &d)) {
            snprintf(line, sizeof line, "%stile 16384; autograd loss", precision);
            if (!numbers_of_text(t, &with, text, line, &d) ||
                numbers_compare(&without, &with, "output loss", why, sizeof why) != 1 ||
                (k % 2 &&
                 numbers_compare(&without, &with, "gradient head", why, sizeof why) != 1) ||
                numbers_compare_within(&without, &with, "gradient", list[k / 2].within, why,
                                       sizeof why) != 2 + (int)(k % 2))
                test_fail(t, __FILE__, __LINE__, line, why);
        }
        numbers_free(&with);
        numbers_free(&without);
    }
}

/* The bits of a tied table in pieces are the same on ranks, and with everything offloaded; and so
 * are those of a step that zf_fuse has left unfused for it. */
TEST_ONCE(tile_of_a_table_has_one_result)
{
    static const char on_host[] = "recompute layers; zero micro_batches=4; offload parameters=host "
                                  "gradients=host optimizer=host activations=host";
    static const char *const lines[] = {
        "zero stage=3 world=2 micro_batches=2; prefetch bytes=50000",
        "zero stage=2 world=4; offload optimizer=disk gradients=host",
        on_host,
        "zero micro_batches=4; offload parameters=disk optimizer=disk; prefetch bytes=50000"};
    static const char before[] = "fuse tile_bytes=16384; %stile 16384; autograd loss; clip 0.5; adamw lr; "
                                 "fuse";
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++) {
        const char *folder = test_path("tile");
        const numbers_desc d = {.steps = 3,
                                .fast = true,
                                .no_gradients = true,
                                .slots = 4,
                                .seed = 3,
                                .offload_dir = folder};
        numbers one = {0}, all = {0};
        char line[400], start[200], why[300] = "";
        mkdir(folder, 0700);
        snprintf(start, sizeof start, before, k % 2 ? "precision bf16; " : "");
        snprintf(line, sizeof line, "%s; %s; memory threads=1; verify", start, lines[k]);
        if (numbers_of_text(t, &one, tied, start, &d) &&
            numbers_of_text(t, &all, tied, line, &d) &&
            (numbers_compare(&one, &all, "output loss", why, sizeof why) < 2 ||
             numbers_compare(&one, &all, "param", why, sizeof why) < 2 ||
             numbers_compare(&one, &all, "state", why, sizeof why) < 4))
            test_fail(t, __FILE__, __LINE__, line, why);
        numbers_free(&one);
        numbers_free(&all);
    }
}

/* Bytes after "peak " of the plan. */
static long peak_of(test *t, const char *text, const char *line)
{
    char *out = text_after(t, text, line), *at = out ? strstr(out, "\npeak ") : NULL;
    const long bytes = at ? strtol(at + 6, NULL, 10) : 0;
    free(out);
    return bytes;
}

/* What stage 3 gathers at once, and what offload brings, is a piece, and no more of its gradient is
 * there: that saves more than half of the larger weight (73,728 bytes). */
TEST(tile_brings_a_piece_at_a_time)
{
    static const char *const lines[] = {
        "autograd loss; sgd lr; zero stage=3 world=2 bucket=1; memory",
        "autograd loss; sgd lr; zero bucket=1; offload parameters=host optimizer=host "
        "gradients=host; memory"};
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++) {
        char line[300], why[100];
        long whole = peak_of(t, model, lines[k]), tiled;
        snprintf(line, sizeof line, "tile 8192; %s", lines[k]);
        tiled = peak_of(t, model, line);
        snprintf(why, sizeof why, "%ld, tiled %ld", whole, tiled);
        if (tiled > whole - 73728 / 2) test_fail(t, __FILE__, __LINE__, line, why);
        /* A table and its gradient, or the table where the shards' sums stay; the logits' gradient
         * (40000 bytes) stays a while. */
        whole = peak_of(t, tied, lines[k]);
        snprintf(line, sizeof line, "tile 16384; %s", lines[k]);
        tiled = peak_of(t, tied, line);
        snprintf(why, sizeof why, "%ld, tiled %ld", whole, tiled);
        if (tiled > whole - 256000 * 5 / 4) test_fail(t, __FILE__, __LINE__, line, why);
    }
}

/* ------------------------------------------------------------------------------------- names */

/* A program of the model on `world` ranks in lockstep, trained for some steps. */
typedef struct run {
    int32_t world, micro;
    zf_comm comms[4];
    zf_graph *graphs[4];
    zf_program *programs[4];
    zf_lockstep_desc ranks;
} run;

static void run_end(void *self)
{
    run *r = self;
    for (int k = 0; k < 4; k++) zf_program_free(r->programs[k]);
    for (int k = 0; k < 4; k++) zf_graph_free(r->graphs[k]);
}

/* `store`: NULL, or that of one rank. keep: gradients are outputs. */
static bool run_open(test *t, run *r, int32_t world, size_t tile, zf_store *store, uint64_t seed,
                     int stage, int micro, bool keep)
{
    *r = (run){.world = world, .micro = micro, .ranks = {.programs = r->programs, .count = world}};
    for (int32_t k = 0; k < world; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(model, strlen(model),
                                     &(zf_graph_desc){.allocator = t->allocator}, &error);
        if (!(r->graphs[k] = g))
            return !test_unwind(t, __FILE__, __LINE__, "parse", error.status, error.text) && false;
        r->comms[k] = (zf_comm){.rank = k, .world = world};
        zf_passes(g, &(zf_training){.loss = zf_graph_find(g, "loss"),
                                    .precision.dtype = ZF_BF16,
                                    .tile.bytes = tile,
                                    .keep_gradients = keep,
                                    .zero = {.stage = stage,
                                             .world = world,
                                             .micro_batches = micro}});
        r->programs[k] = zf_compile(g, &(zf_compile_desc){.store = store,
                                                          .comm = world > 1 ? &r->comms[k] : NULL,
                                                          .seed = store ? 0 : seed});
        if (r->programs[k]) continue;
        test_unwind(t, __FILE__, __LINE__, "compile", zf_graph_status(g), zf_graph_error(g));
        return false;
    }
    return true;
}

/* Two parts: two ranks at stage 3, or one rank. */
static bool run_begin(test *t, run *r, int32_t world, size_t tile, zf_store *store, uint64_t seed)
{
    return run_open(t, r, world, tile, store, seed, world > 1 ? 3 : 0, 2 / world, false);
}

static bool run_step(test *t, run *r)
{
    zf_error error = {ZF_OK, ""};
    zf_status status = ZF_OK;
    const float lr = 0.01f;
    for (int32_t m = 0; m < r->micro && !status; m++) {
        for (int32_t k = 0; k < r->world; k++) {
            float x[6 * 32];
            for (int i = 0; i < 6 * 32; i++)
                x[i] = (float)seeded("x", (m * r->world + k) * 6 * 32 + i);
            zf_write(r->programs[k], zf_graph_find(r->graphs[k], "x"), x, sizeof x);
            zf_write(r->programs[k], zf_graph_find(r->graphs[k], "lr"), &lr, sizeof lr);
        }
        const bool last = m == r->micro - 1;
        if (r->world > 1)
            status = last ? zf_lockstep_step(&r->ranks, &error)
                          : zf_lockstep_micro(&r->ranks, &error);
        else status = last ? zf_step(r->programs[0]) : zf_micro(r->programs[0]);
    }
    if (status)
        test_unwind(t, __FILE__, __LINE__, "step", status,
                    r->world > 1 ? error.text : zf_program_error(r->programs[0]));
    return !status;
}

static bool run_files(test *t, run *r, const char *path, bool load)
{
    zf_store *store = zf_program_store(r->programs[0]);
    zf_error error = {ZF_OK, ""};
    zf_status status = r->world > 1 ? load ? zf_lockstep_load(&r->ranks, path, NULL, &error)
                                           : zf_lockstep_save(&r->ranks, path, NULL, &error)
                       : load ? zf_load(store, path, NULL)
                              : zf_save(store, path, NULL);
    if (status)
        test_unwind(t, __FILE__, __LINE__, path, status,
                    r->world > 1 ? error.text : zf_store_error(store));
    return !status;
}

/* The bytes of a whole tensor, to be freed. */
static unsigned char *run_read(test *t, run *r, const char *name, size_t bytes)
{
    unsigned char *data = calloc(bytes, 1);
    zf_error error = {ZF_OK, ""};
    zf_store *store = zf_program_store(r->programs[0]);
    zf_status status = r->world > 1 ? zf_lockstep_read(&r->ranks, name, data, bytes, &error)
                                    : zf_store_read(store, name, data, bytes);
    if (!status) return data;
    test_unwind(t, __FILE__, __LINE__, name, status,
                r->world > 1 ? error.text : zf_store_error(store));
    free(data);
    return NULL;
}

/* All parameters of two runs, and their states if they have them by these names, are equal. */
static bool same_values(test *t, run *a, run *b)
{
    static const struct {
        const char *name;
        size_t bytes;
    } list[] = {{"layer.0.w", 256 * 32 * 2},      {"layer.1.w", 72 * 256 * 2},
                {"layer.0.b", 256 * 2},           {"tied", 8 * 72 * 2},
                {"frozen", 64 * 72 * 2},          {"adamw.m/layer.0.w", 256 * 32 * 4},
                {"adamw.v/layer.1.w", 72 * 1024},  {"adamw.master/layer.1.w", 72 * 1024},
                {"adamw.master/tied", 8 * 72 * 4}};
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        const bool state = strchr(list[k].name, '/') != NULL;
        unsigned char *x, *y;
        bool same;
        if (state && (a->world > 1 || b->world > 1)) continue; /* lockstep reads what a graph names */
        x = run_read(t, a, list[k].name, list[k].bytes);
        y = x ? run_read(t, b, list[k].name, list[k].bytes) : NULL;
        same = x && y && !memcmp(x, y, list[k].bytes);
        if (x && y && !same) test_fail(t, __FILE__, __LINE__, list[k].name, "differs");
        free(x);
        free(y);
        if (!same) return false;
    }
    return true;
}

/* Gradients that zf_passes keeps are whole, and summed over ranks and micro-batches. */
TEST_ONCE(tile_keeps_whole_gradients)
{
    static const struct {
        int world, stage, micro;
    } list[] = {{1, 0, 4}, {2, 1, 2}, {4, 2, 1}, {2, 3, 2}};
    unsigned char *first = NULL, *data = malloc(256 * 32 * 2);
    for (size_t k = 0; k < sizeof list / sizeof *list && data; k++) {
        run r = {0};
        if (run_open(t, &r, list[k].world, 4096, NULL, 5, list[k].stage, list[k].micro, true) &&
            run_step(t, &r)) {
            zf_tensor x = zf_graph_find(r.graphs[0], "gradient/layer.0.w");
            if (zf_read(r.programs[0], x, data, 256 * 32 * 2))
                test_fail(t, __FILE__, __LINE__, "zf_read", zf_program_error(r.programs[0]));
            else if (!first) memcpy(first = malloc(256 * 32 * 2), data, 256 * 32 * 2);
            else if (memcmp(first, data, 256 * 32 * 2))
                test_fail(t, __FILE__, __LINE__, "gradient/layer.0.w", "differs");
        }
        run_end(&r);
    }
    free(first);
    free(data);
}

/* A checkpoint of a tiled run, sharded or not, loads into one that is whole, or cut otherwise, on
 * another number of ranks, and back; training then goes on with the same bits. */
TEST_ONCE(tile_checkpoints_are_whole)
{
    static const struct {
        int32_t from, to;
        size_t from_tile, to_tile;
    } list[] = {{1, 1, 4096, 0}, {1, 1, 0, 4096}, {2, 1, 2048, 4096}, {2, 2, 0, 4096},
                {1, 2, 4096, 2048}};
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        const char *path = test_path("tile_checkpoint"), *again = test_path("tile_again");
        run a = {0}, b = {0}, c = {0};
        bool good = run_begin(t, &a, list[k].from, list[k].from_tile, NULL, 5) && run_step(t, &a) &&
                    run_files(t, &a, path, false) &&
                    run_begin(t, &b, list[k].to, list[k].to_tile, NULL, 6) &&
                    run_files(t, &b, path, true) && same_values(t, &a, &b) &&
                    run_files(t, &b, again, false) &&
                    run_begin(t, &c, list[k].from, list[k].from_tile, NULL, 7) &&
                    run_files(t, &c, again, true) && run_step(t, &a) && run_step(t, &c) &&
                    same_values(t, &a, &c);
        run_end(&a), run_end(&b), run_end(&c);
        if (!good) return;
    }
}

/* First values are those of the whole tensor; a program sees it by its name and handle, whole. */
TEST(tile_keeps_names)
{
    run whole = {0}, tiled = {0};
    zf_graph *g;
    zf_store *store;
    zf_tensor w;
    unsigned char *x = NULL, *y = NULL;
    int32_t index;
    zf_stored about;
    if (!run_begin(t, &whole, 1, 0, NULL, 5)) goto end;
    if (!run_begin(t, &tiled, 1, 4096, NULL, 5)) goto end;
    if (!same_values(t, &whole, &tiled)) goto end;
    g = tiled.graphs[0];
    store = zf_program_store(tiled.programs[0]);
    if (zf_param_count(g) != 6 || zf_param_count(whole.graphs[0]) != 6)
        test_fail(t, __FILE__, __LINE__, "zf_param_count", "");
    for (int32_t k = 0; k < 6; k++)
        if (strcmp(zf_tensor_name(zf_param_at(g, k)),
                   zf_tensor_name(zf_param_at(whole.graphs[0], k))))
            test_fail(t, __FILE__, __LINE__, "zf_param_at", zf_tensor_name(zf_param_at(g, k)));
    w = zf_graph_find(g, "layer.1.w");
    if (zf_tensor_shape(w).dims[0] != 72 || zf_tensor_bytes(w) != 72 * 512)
        test_fail(t, __FILE__, __LINE__, "zf_graph_find", "");
    x = calloc(1, 72 * 512), y = calloc(1, 72 * 512);
    for (int k = 0; k < 72 * 512; k++) x[k] = (unsigned char)(k % 63);
    if (zf_write(tiled.programs[0], w, x, 72 * 512) || zf_read(tiled.programs[0], w, y, 72 * 512) ||
        memcmp(x, y, 72 * 512))
        test_fail(t, __FILE__, __LINE__, "zf_write, zf_read", zf_program_error(tiled.programs[0]));
    index = zf_store_find(store, "layer.1.w[0:8]");
    about = zf_store_at(store, index);
    if (!about.piece_of || strcmp(about.piece_of, "layer.1.w") || about.from)
        test_fail(t, __FILE__, __LINE__, "piece_of", about.name ? about.name : "no piece");
    if (zf_store_copy(zf_program_store(whole.programs[0]), store))
        test_fail(t, __FILE__, __LINE__, "copy",
                  zf_store_error(zf_program_store(whole.programs[0])));
    if (zf_store_info_of(store).param_count !=
        zf_store_info_of(zf_program_store(whole.programs[0])).param_count)
        test_fail(t, __FILE__, __LINE__, "param_count", "");
    same_values(t, &whole, &tiled);
end:
    free(x);
    free(y);
    run_end(&whole), run_end(&tiled);
}

/* A store that was loaded first gives its whole tensors to pieces, and master weights with them. */
TEST(tile_takes_loose_tensors)
{
    const char *path = test_path("tile_loose");
    zf_error error = {ZF_OK, ""};
    run a = {0}, b = {0};
    zf_store *store = NULL;
    if (run_begin(t, &a, 1, 0, NULL, 5) && run_step(t, &a) && run_files(t, &a, path, false)) {
        store = zf_store_new(&(zf_store_desc){.seed = 9, .allocator = t->allocator}, &error);
        if (!store) test_unwind(t, __FILE__, __LINE__, "store", error.status, error.text);
        else if (zf_load(store, path, NULL))
            test_unwind(t, __FILE__, __LINE__, "load", ZF_ERR_NOMEM, zf_store_error(store));
        else if (run_begin(t, &b, 1, 4096, store, 0) && same_values(t, &a, &b) &&
                 zf_store_info_of(store).host_bytes)
            test_fail(t, __FILE__, __LINE__, "host_bytes", "are left");
    }
    run_end(&a), run_end(&b);
    zf_store_free(store);
}

/* Programs over one store that are cut otherwise, and texts that are no pieces. */
TEST(tile_errors)
{
    static const struct {
        size_t first, second;
        const char *text;
    } list[] = {
        {4096, 0,
         "the store has \"layer.0.w\" in pieces, and here it is whole: give zf_tile the same bytes, "
         "and zf_divide the same sections, for all programs over one store"},
        {0, 4096, "the store has \"layer.0.w\" whole, and here is \"layer.0.w["},
        {4096, 2048, "in other pieces, and here is \"layer."},
    };
    static const struct {
        const char *line, *text;
    } leaves[] = {
        {"%1 = param \"w[32:96]\" {row=32 rows=64} : f32[64,32]",
         "64 rows from 32 on do not lie within 64 rows"},
        {"%1 = param \"w[0:32]\" {row=32 rows=64} : f32[32,32]",
         "its name does not end with its rows, [32:64]"},
        {"%1 = state \"s\" {rows=64} : f32[32,32]", "its name does not end with its rows"},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        run a = {0}, b = {0};
        if (run_begin(t, &a, 1, list[k].first, NULL, 5)) {
            zf_error error = {ZF_OK, ""};
            zf_graph *g = zf_graph_parse(model, strlen(model), NULL, &error);
            zf_program *p;
            zf_passes(g, &(zf_training){.precision.dtype = ZF_BF16,
                                        .tile.bytes = list[k].second,
                                        .zero = {.store = zf_program_store(a.programs[0])}});
            p = zf_compile(g, &(zf_compile_desc){.store = zf_program_store(a.programs[0])});
            if (p || !strstr(zf_graph_error(g), list[k].text))
                test_unwind(t, __FILE__, __LINE__, list[k].text, zf_graph_status(g),
                            zf_graph_error(g));
            zf_program_free(p);
            zf_graph_free(g);
        }
        run_end(&a), run_end(&b);
    }
    for (size_t k = 0; k < sizeof leaves / sizeof *leaves; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(leaves[k].line, strlen(leaves[k].line), NULL, &error);
        if (g || !strstr(error.text, leaves[k].text))
            test_fail(t, __FILE__, __LINE__, leaves[k].text, error.text);
        zf_graph_free(g);
    }
    {
        static const char one[] = "%1 = param \"w[0:32]\" {rows=64} : f32[32,32]\n"
                                  "%2 = total %1 : f32[]\n      output %2 \"y\"\n";
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(one, sizeof one - 1, NULL, &error);
        zf_program *p = zf_compile(g, NULL);
        if (p || !strstr(zf_graph_error(g), "there is no piece that begins at element 1024"))
            test_fail(t, __FILE__, __LINE__, "a missing piece", zf_graph_error(g));
        zf_program_free(p);
        zf_graph_free(g);
    }
}
