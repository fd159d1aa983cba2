#define _POSIX_C_SOURCE 200809L
/* Offload: numbers are those without it, to the last bit; each space has its own plan, which equals
 * what is allocated; the verifier finds copies that are missing, wrong or not waited for. */
#include "../../tools/pass.h"
#include "../support/disk.h"
#include "../support/mistake.h"
#include "../support/numbers.h"

#include <sys/stat.h>
#include <unistd.h>

/* Two layers with a dropout, a norm and a parameter that two products use. Parameters of several
 * blocks of 1024 elements, and of less than one. */
static const char model[] = "%1 = input \"x\" : f32[8,40]\n"
                            "%2 = param \"layer.0.w\" {init=normal b=0.3} : f32[40,60]\n"
                            "%3 = param \"layer.0.b\" : f32[60]\n"
                            "%4 = param \"layer.1.w\" {init=normal b=0.3} : f32[60,40]\n"
                            "%5 = param \"layer.1.g\" {init=ones} : f32[40]\n"
                            "%6 = param \"frozen\" {init=normal b=0.3 frozen=true} : f32[40]\n"
                            "%7 = input \"lr\" : f32[]\n"
                            "%8 = matmul %1, %2 : f32[8,60]\n"
                            "%9 = add %8, %3 : f32[8,60]\n"
                            "%10 = tanh %9 : f32[8,60]\n"
                            "%11 = dropout %10 {p=0.25 stream=3} : f32[8,60]\n"
                            "%12 = matmul %11, %4 : f32[8,40]\n"
                            "%13 = mul %12, %5 : f32[8,40]\n"
                            "%14 = add %13, %6 : f32[8,40]\n"
                            "%15 = matmul %14, %2 : f32[8,60]\n"
                            "%16 = tanh %15 : f32[8,60]\n"
                            "%17 = mul %16, %16 : f32[8,60]\n"
                            "%18 = reshape %17 {shape=[480]} : f32[480]\n"
                            "%19 = sum %18 : f32[]\n"
                            "      output %19 \"loss\"\n";

/* Four layers over some rows; a few, or so many that they take longer to compute than a layer's
 * states to read, by the default costs. */
#define LAYERS(rows, all)                                                                          \
    "%1 = input \"x\" : f32[" rows ",64]\n"                                                        \
    "%2 = param \"layer.0.w\" {init=normal b=0.1} : f32[64,64]\n"                                 \
    "%3 = param \"layer.1.w\" {init=normal b=0.1} : f32[64,64]\n"                                 \
    "%4 = param \"layer.2.w\" {init=normal b=0.1} : f32[64,64]\n"                                 \
    "%5 = param \"layer.3.w\" {init=normal b=0.1} : f32[64,64]\n"                                 \
    "%6 = input \"lr\" : f32[]\n"                                                                 \
    "%7 = matmul %1, %2 : f32[" rows ",64]\n"                                                      \
    "%8 = matmul %7, %3 : f32[" rows ",64]\n"                                                      \
    "%9 = matmul %8, %4 : f32[" rows ",64]\n"                                                      \
    "%10 = matmul %9, %5 : f32[" rows ",64]\n"                                                     \
    "%11 = mul %10, %10 : f32[" rows ",64]\n"                                                      \
    "%12 = reshape %11 {shape=[" all "]} : f32[" all "]\n"                                         \
    "%13 = sum %12 : f32[]\n"                                                                      \
    "      output %13 \"loss\"\n"
static const char layers[] = LAYERS("4", "256"), tall_layers[] = LAYERS("4096", "262144");

/* The text of eight layers and a loss. */
static void write_eight_layers(char text[2000], int rows, int width)
{
    int at = snprintf(text, 2000, "%%1 = input \"x\" : f32[%d,%d]\n%%2 = input \"lr\" : f32[]\n", rows,
                      width);
    for (int k = 0; k < 8; k++)
        at += snprintf(text + at, 2000 - (size_t)at,
                       "%%%d = param \"layer.%d.w\" : f32[%d,%d]\n"
                       "%%%d = matmul %%%d, %%%d : f32[%d,%d]\n",
                       10 + k, k, width, width, 20 + k, k ? 19 + k : 1, 10 + k, rows, width);
    snprintf(text + at, 2000 - (size_t)at,
             "%%30 = reshape %%27 {shape=[%d]} : f32[%d]\n%%31 = sum %%30 : f32[]\n"
             "      output %%31 \"loss\"\n",
             rows * width, rows * width);
}

/* With kinds offloaded and without, by the passes `before` and `after`. */
static bool same_bits(test *t, const char *text, const char *kinds, const char *before,
                      const char *after)
{
    char line[800], why[600] = "";
    numbers with = {0}, without = {0};
    zf_error error = {ZF_OK, ""};
    const char *folder = test_path("offload");
    const numbers_desc d = {
        .steps = 5, .fast = true, .no_gradients = true, .seed = 7, .offload_dir = folder};
    char *plain, *other;
    bool good;
    mkdir(folder, 0700);
    snprintf(line, sizeof line, "%s; %s", before, after);
    plain = text_after(t, text, line);
    snprintf(line, sizeof line, "%s; offload %s; %s", before, kinds, after);
    other = plain ? text_after(t, text, line) : NULL;
    good = other && strstr(other, " host @") &&
           (!strstr(kinds, "disk") || strstr(other, " disk @") || strstr(before, "sgd lr;") ||
            strstr(after, "host_bytes=1048576")) &&
           numbers_of(&without, plain, &d, &error) && numbers_of(&with, other, &d, &error) &&
           numbers_compare(&without, &with, "", why, sizeof why) > 8;
    if (!good)
        test_fail(t, __FILE__, __LINE__, line, *why ? why : *error.text ? error.text : "no host");
    numbers_free(&with);
    numbers_free(&without);
    free(plain);
    free(other);
    rmdir(folder); /* there are no files left in it */
    return good && access(folder, F_OK) != 0;
}

/* Every stage, on 1, 2 and 4 ranks, every optimizer and dtype, f16 with skipped steps, one
 * micro-batch and four, recomputed, with every kind of budget; each with one or several kinds
 * offloaded. */
TEST_ONCE(offload_keeps_the_bits)
{
    static const char *const optimizers[] = {"adamw lr weight_decay=0.1",
                                             "lamb lr weight_decay=0.1 decay_all",
                                             "sgd lr momentum=0.9", "lion lr weight_decay=0.1"};
    static const char *const precisions[] = {"", "precision bf16; ",
                                             "precision f16 scale=200000 hysteresis=1; "};
    static const char *const clips[] = {"", "clip 0.5; ", "clip 0.5; "};
    static const int prefetches[] = {0, 3000, 1 << 20};
    static const char *const all[] = {"optimizer=host", "parameters=host optimizer=disk",
                                      "parameters=disk", "optimizer=disk parameters=disk",
                                      "parameters=host keep=4096", "gradients=host",
                                      "activations=host optimizer=host gradients=host",
                                      "activations=disk parameters=disk gradients=host"},
                             *const states[] = {"optimizer=host gradients=host",
                                                "optimizer=disk activations=disk"},
                             *const pieces[] = {"", " piece=4096", " piece=12288"};
    int n = 0;
    for (int world = 1; world <= 4; world *= 2)
        for (int stage = 0; stage < 4; stage++)
            for (int o = 0; o < 4; o++, n++) {
                char before[300], after[100], kinds[100];
                const char *precision = precisions[n % 3];
                const bool whole = world > 1 && (stage == 1 || stage == 2);
                snprintf(before, sizeof before,
                         "%sautograd loss; %s%s; %s%s%szero stage=%d world=%d micro_batches=%d "
                         "bucket=%d",
                         precision, clips[(n / 3 + o) % 3], optimizers[o],
                         n % 7 == 3 ? "delay; " : "", n % 2 ? "fuse; " : "",
                         n % 5 == 1 ? "recompute layers; " : "", stage, world, n % 4 == 3 ? 4 : 1,
                         n % 7 ? 20000 : 1);
                snprintf(after, sizeof after, "prefetch bytes=%d host_bytes=%d memory=%d; memory "
                         "threads=1; verify",
                         prefetches[n / 2 % 3], prefetches[n / 4 % 3], n % 4 == 2 ? 1 << 17 : 0);
                snprintf(kinds, sizeof kinds, "%s%s", whole ? states[n % 2] : all[(n + o) % 8],
                         pieces[(n / 4 + o) % 3]);
                CHECK(t, same_bits(t, model, kinds, before, after));
            }
}

/* The step of four ranks, with nodes of the update section that read the count of updates; to be
 * freed. NULL: there is none. */
static char *with_readers_of_the_count(test *t, const char *passes)
{
    char *plain = text_after(t, model, passes), *at = plain ? strstr(plain, ".step\" : i64") : NULL;
    char *text = at ? malloc(strlen(plain) + 200) : NULL;
    int id = 0;
    while (at && at > plain && at[-1] != '\n') at--;
    if (text && sscanf(at, "%%%d", &id) == 1)
        sprintf(text,
                "%s      output %%%d \"count\"\n%%900 = cast %%%d {to=f32} : f32[]\n"
                "      output %%900 \"as_float\"\n",
                plain, id, id);
    free(plain);
    return text;
}

/* The count of updates lies where others than updates read it; updates read a copy. */
TEST_ONCE(offload_leaves_a_count_that_is_read)
{
    static const char *const passes[] = {
        "autograd loss; clip 0.5; adamw lr; zero stage=3 world=4",
        "precision bf16; autograd loss; lamb lr; zero stage=1 world=2 micro_batches=2"};
    static const char *const kinds[] = {"optimizer=host", "optimizer=disk", "optimizer=disk piece=4096"};
    for (int k = 0; k < 6; k++) {
        char *text = with_readers_of_the_count(t, passes[k % 2]);
        const bool good = text && same_bits(t, text, kinds[k / 2], "verify",
                                            "prefetch bytes=3000; memory threads=1; verify");
        free(text);
        CHECK(t, good);
    }
}

/* Updates in pieces of 1024 elements, as a text has them. */
typedef struct spreading {
    int apart; /* pieces that have a product of the backward pass between them and the one before */
    bool late; /* one is put when the gradients of three buckets after its own are complete */
} spreading;

/* phases: updates of each piece. Changes the text. */
static spreading spreading_of(char *text, int phases)
{
    spreading s = {0, false};
    char *line = strstr(text, "\nupdate:\n");
    bool product = false;
    int packs = 0, updates = 0;
    long at, count = 0;
    for (line = line ? strtok(line, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        const char *piece = strstr(line, " piece=[");
        product |= strstr(line, " = matmul ") != NULL;
        if (strstr(line, " = pack ") && strstr(line, " micro"))
            s.late |= ++packs > 3 && updates * 1024 < (packs - 3) * phases * count;
        if (!piece || sscanf(piece, " piece=[%ld,%ld]", &at, &count) != 2) continue;
        s.apart += at > 0 && product;
        product = false, updates++;
    }
    return s;
}

/* Pieces of a bucket on the disk are updated one by one while the backward pass goes on, as the
 * disk gives them, by the cost table; they wait for it until two more gradients are complete, and
 * only where host memory has room for a gradient that is kept for them. Bits are the same. */
TEST_ONCE(offload_spreads_updates)
{
    /* A piece's states take 0.2 ms to read. A layer's backward pass takes 0.8 ms, half of that on
     * two ranks, next to nothing, or 60 ms. */
    static const char even[] = "cost=82000000,1e12,1e9,0", ranks[] = "cost=164000000,1e12,1e9,0",
                      slow[] = "cost=1e12,1e12,1e9,0", fast[] = "cost=1000000,1e12,1e9,0";
    static const struct {
        const char *before, *optimizer, *zero, *kinds;
        const char *prefetch, *cost;
        int apart; /* pieces, at least; 0: none */
    } list[] = {
        {"", "adamw lr", "", "optimizer=disk", "host_bytes=16384", even, 6},
        {"precision bf16; ", "adamw lr", "", "optimizer=disk", "host_bytes=8192", even, 3},
        {"", "adamw lr", "", "optimizer=disk", "host_bytes=16383", even, 0},
        {"precision bf16; ", "lion lr", "", "optimizer=disk", "host_bytes=32768", slow, 0},
        {"", "adamw lr", "", "optimizer=disk", "host_bytes=16384", fast, 0},
        {"", "adamw lr", "", "optimizer=disk parameters=disk", "host_bytes=20000", even, 6},
        {"", "adamw lr", "micro_batches=2", "optimizer=disk", "host_bytes=16384", even, 0},
        {"", "clip 1; adamw lr", "", "optimizer=disk", "host_bytes=16384", even, 0},
        {"", "lamb lr", "", "optimizer=disk gradients=host", "host_bytes=16384", even, 6},
        {"", "adamw lr", "stage=2 world=2", "optimizer=disk", "host_bytes=8192", ranks, 4},
        {"", "adamw lr", "stage=3 world=2", "optimizer=disk parameters=disk", "host_bytes=8192", even, 2},
        {"", "adamw lr", "stage=1 world=2", "optimizer=disk", "host_bytes=16384", ranks, 0},
    };
    char text[2000];
    write_eight_layers(text, 4, 64);
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        char before[300], after[200], kinds[100], line[700], why[100], *plan;
        spreading s;
        snprintf(before, sizeof before, "%sautograd loss; %s; zero bucket=1 %s", list[k].before,
                 list[k].optimizer, list[k].zero);
        snprintf(kinds, sizeof kinds, "%s piece=4096", list[k].kinds);
        snprintf(after, sizeof after, "prefetch bytes=1000000 %s %s; memory threads=1; verify",
                 list[k].prefetch, list[k].cost);
        CHECK(t, same_bits(t, text, kinds, before, after));
        snprintf(line, sizeof line, "%s; offload %s; %s", before, kinds, after);
        CHECK(t, plan = text_after(t, text, line));
        s = spreading_of(plan, strncmp(list[k].optimizer, "lamb", 4) ? 1 : 2);
        free(plan);
        snprintf(why, sizeof why, "%d pieces apart%s", s.apart, s.late ? ", late" : "");
        if ((s.late && !strstr(list[k].zero, "world")) || s.apart < list[k].apart ||
            (s.apart && !list[k].apart))
            test_fail(t, __FILE__, __LINE__, line, why);
    }
}

/* Sums over ranks and micro-batches that lie in host memory: whole, in shards, in a mesh, of
 * quantised gradients; with updates there and on the device. */
TEST_ONCE(offload_sums_gradients_of_ranks)
{
    static const struct {
        const char *before, *zero, *kinds, *prefetch;
    } list[] = {
        {"autograd loss; adamw lr", "stage=0 world=2 micro_batches=2", "gradients=host", "0"},
        {"autograd loss; clip 0.5; lamb lr", "stage=1 world=2 micro_batches=3",
         "gradients=host optimizer=disk piece=4096", "5000"},
        {"precision bf16; autograd loss; clip 0.5; adamw lr; fuse",
         "stage=2 world=4 micro_batches=2 bucket=1", "gradients=host", "100000"},
        {"precision f16 scale=200000 hysteresis=1; autograd loss; lion lr",
         "stage=3 world=2 micro_batches=4", "gradients=host optimizer=host parameters=disk",
         "20000"},
        {"autograd loss; clip 0.5; adamw lr; delay", "stage=2 world=2 micro_batches=2 bucket=1",
         "gradients=host optimizer=host", "20000"},
        {"precision bf16; autograd loss; clip 0.5; adamw lr; fuse",
         "stage=0 world=4 nodes=2 micro_batches=2", "gradients=host optimizer=host", "100000"},
        {"autograd loss; clip 0.5; adamw lr", "stage=2 world=4 nodes=2 micro_batches=2",
         "gradients=host optimizer=host", "0"},
        {"autograd loss; lamb lr", "stage=3 world=4 nodes=2 mics micro_batches=2",
         "gradients=host", "9000"},
        {"autograd loss; clip 0.5; adamw lr",
         "stage=2 world=2 quantized_gradients micro_batches=2", "gradients=host", "9000"},
        {"precision bf16; autograd loss; clip 0.5; adamw lr; fuse",
         "stage=2 world=2 quantized_gradients bucket=1", "optimizer=host", "9000"},
        {"autograd loss; clip 0.5; adamw lr; fuse", "stage=2 world=2 bucket=1",
         "gradients=host optimizer=host", "20000"},
        {"autograd loss; adamw lr", "stage=3 world=2 quantized_weights bucket=1",
         "activations=host", "5000"},
        {"precision bf16; autograd loss; lamb lr; recompute layers",
         "stage=3 world=4 nodes=2 hpz quantized_weights quantized_gradients",
         "activations=disk parameters=host", "100000"},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        char before[300], after[100];
        snprintf(before, sizeof before, "%s; zero %s", list[k].before, list[k].zero);
        snprintf(after, sizeof after, "prefetch bytes=%s; memory threads=1; verify",
                 list[k].prefetch);
        CHECK(t, same_bits(t, model, list[k].kinds, before, after));
    }
}

/* Gradients on a disk: every stage, on 1, 2 and 4 ranks, AdamW and LAMB, one micro-batch and four,
 * f32, bf16 and f16 with skipped steps, clipped or not; with other kinds, on the device or
 * elsewhere; with every kind of budget. */
TEST_ONCE(offload_keeps_the_bits_with_gradients_on_a_disk)
{
    static const char *const optimizers[] = {"adamw lr weight_decay=0.1",
                                             "lamb lr weight_decay=0.1 decay_all"},
                            *const precisions[] = {"", "precision bf16; ",
                                                   "precision f16 scale=200000 hysteresis=1; "},
                            *const kinds[] = {"", " optimizer=disk", " optimizer=host piece=4096",
                                              " activations=disk piece=8192",
                                              " optimizer=disk parameters=disk activations=disk",
                                              " optimizer=disk activations=host"},
                            *const prefetches[] = {"bytes=0", "bytes=3000 host_bytes=3000",
                                                   "bytes=1048576 host_bytes=4095",
                                                   "bytes=20000 host_bytes=1048576"};
    int n = 0;
    for (int world = 1; world <= 4; world *= 2)
        for (int stage = 0; stage < 4; stage++)
            for (int k = 0; k < 4; k++, n++) {
                char before[300], after[200], offload[100];
                const char *kind = kinds[(n + n / 6) % 6];
                const bool several = k / 2;
                if (strstr(kind, "parameters") && world > 1 && (stage == 1 || stage == 2))
                    kind = kinds[1];
                snprintf(before, sizeof before,
                         "%sautograd loss; %s%s; %s%s%szero stage=%d world=%d micro_batches=%d "
                         "bucket=%d%s",
                         precisions[(n + n / 4) % 3], (n + n / 8) % 2 ? "" : "clip 0.5; ",
                         optimizers[k % 2], n % 11 == 3 ? "delay; " : "", n % 3 ? "fuse; " : "",
                         n % 5 == 1 ? "recompute layers; " : "", stage, world, several ? 4 : 1,
                         n % 2 ? 20000 : 1, world == 4 && n % 2 ? " nodes=2" : "");
                snprintf(after, sizeof after, "prefetch %s; memory threads=1; verify",
                         prefetches[(n + n / 16) % 4]);
                snprintf(offload, sizeof offload, "gradients=disk%s", kind);
                CHECK(t, same_bits(t, model, offload, before, after));
            }
}

/* How many updates of the text stand above its last pack of gradients; -1: it has none below
 * `update:`. */
static int updates_early(const char *text)
{
    const char *last = NULL, *at = strstr(text, "\nupdate:\n");
    int count = 0;
    for (const char *to = at; to && (to = strstr(to, " = pack ")); to++) last = to;
    while (last && at && (at = strstr(at, " adamw ")) && at < last) at++, count++;
    return last ? count : -1;
}

/* Updates during the backward pass, and states read ahead of them; where the norm of all gradients
 * must be known first, reads alone. With several micro-batches nothing is. */
TEST_ONCE(offload_during_the_backward_pass)
{
    static const struct {
        const char *before, *prefetch;
        int updates; /* early ones; 1: some */
        bool reads;  /* all states are read above the first update */
    } list[] = {
        {"autograd loss; adamw lr; zero bucket=1", "100000", 1, true},
        {"precision bf16; autograd loss; adamw lr; zero bucket=1", "100000", 1, true},
        {"autograd loss; adamw lr; zero bucket=1 stage=2 world=2", "100000", 1, true},
        {"autograd loss; adamw lr; zero bucket=1 stage=3 world=2", "100000", 1, true},
        {"autograd loss; adamw lr; zero bucket=1", "25000", 1, false},
        {"autograd loss; clip 1; adamw lr; zero bucket=1", "100000", 0, true},
        {"precision f16; autograd loss; adamw lr; zero bucket=1", "100000", 0, true},
        {"autograd loss; adamw lr; zero bucket=1 micro_batches=2", "100000", -1, true},
        {"autograd loss; adamw lr; zero bucket=1", "0", -1, false},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        const char *read, *update;
        char line[300], *text;
        int reads = 0, updates;
        snprintf(line, sizeof line, "%s; offload optimizer=disk; prefetch bytes=%s", list[k].before,
                 list[k].prefetch);
        CHECK(t, text = text_after(t, tall_layers, line));
        update = strstr(text, " adamw %");
        for (read = text; (read = strstr(read, "queue=read")) && read < update; read++) reads++;
        updates = updates_early(text);
        if ((updates > 1 ? 1 : updates) != list[k].updates || (reads >= 8) != list[k].reads)
            test_fail(t, __FILE__, __LINE__, line, updates_early(text) < 0 ? "none" : "some");
        free(text);
    }
}

static int occurrences(const char *text, const char *word)
{
    int count = 0;
    for (; (text = strstr(text, word)); text += strlen(word)) count++;
    return count;
}

/* A bucket is read once for each run of its uses, ahead of it as far as the budgets let it; once
 * for two runs where memory allows to keep it. */
TEST_ONCE(offload_brings_once_for_a_run)
{
    static const char text[] = "%1 = input \"x\" : f32[8,8]\n"
                               "%2 = param \"w\" {init=normal b=0.3} : f32[8,8]\n"
                               "%3 = param \"v\" {init=normal b=0.3} : f32[8,8]\n"
                               "%4 = matmul %1, %2 : f32[8,8]\n"
                               "%5 = tanh %4 : f32[8,8]\n"
                               "%6 = matmul %5, %2 : f32[8,8]\n"
                               "%7 = matmul %6, %3 : f32[8,8]\n"
                               "%8 = matmul %7, %2 : f32[8,8]\n"
                               "      output %8 \"y\"\n";
    static const struct {
        const char *prefetch;
        int reads, ahead; /* in front of the first product */
    } list[] = {
        {"bytes=0", 3, 1},
        {"bytes=4096", 3, 2},
        {"bytes=8192", 3, 3},
        {"bytes=8192 host_bytes=4096", 3, 2},
        {"bytes=8192 memory=100000", 2, 2},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        char line[200], *out;
        int reads, ahead = 0;
        snprintf(line, sizeof line, "zero bucket=1; offload parameters=disk; prefetch %s",
                 list[k].prefetch);
        NEED(t, out = text_after(t, text, line), NULL);
        reads = occurrences(out, "{to=host}");
        *strstr(out, " = matmul ") = '\0';
        ahead = occurrences(out, "{to=host}");
        free(out);
        if (reads != list[k].reads || ahead != list[k].ahead) {
            snprintf(line, sizeof line, "%s: %d reads, %d ahead", list[k].prefetch, reads, ahead);
            test_fail(t, __FILE__, __LINE__, "reads", line);
        }
    }
}

/* A step of eight layers by a cost table, after a prefetch that knows it or not. */
typedef struct timed {
    zf_estimate estimate;
    long host, device; /* bytes of the plan */
} timed;

static bool plan_timed(const zf_cost *cost, bool knows, const char *kinds, timed *result)
{
    char text[2000], message[600] = "", line[200];
    const zf_training t = {.prefetch.bytes = 1 << 20, .cost = knows ? cost : NULL};
    zf_graph *g;
    zf_plan plan;
    bool good = false;
    write_eight_layers(text, 4, 64);
    snprintf(line, sizeof line, "autograd loss; adamw lr; zero bucket=1; offload %s", kinds);
    g = zf_graph_parse(text, strlen(text), NULL, NULL);
    if (g && !pass_run(g, line, NULL, message, sizeof message) && !zf_prefetch(g, &t) &&
        !zf_memory(g, NULL))
        good = !zf_graph_plan(g, &plan) && !zf_graph_estimate(g, cost, &result->estimate);
    if (!good) printf("    %s\n", *message || !g ? message : zf_graph_error(g));
    result->host = good ? (long)plan.spaces[ZF_HOST].most[ZF_PARAMETERS] : 0;
    result->device = good ? (long)plan.peak_bytes : 0;
    zf_graph_free(g);
    return good;
}

/* Links that are faster than computing are used as late as they hide in it: less memory, and
 * not a second more than as early as possible. Where links are slower, that is as early as
 * possible. */
TEST_ONCE(offload_fetches_in_time)
{
    /* a layer takes 0.05 s to compute, 0.1 s in the backward pass; 16 KiB take */
    static const struct {
        const char *kinds;
        double read, upload; /* seconds */
        double host, device; /* of the bytes without a table, at most */
    } list[] = {
        {"parameters=disk optimizer=disk", 0.005, 0.002, 0.6, 1},
        {"parameters=disk optimizer=disk", 0.1, 0.002, 1, 1},
        {"parameters=host optimizer=host", 1, 0.005, 1, 0.6},
        {"parameters=disk", 0.005, 0.005, 0.6, 1},
        {"parameters=host", 1, 0.2, 1, 1},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        const zf_cost cost = {.device = {.flops_per_s = 1e6, .bytes_per_s = 1e6},
                              .link.bytes_per_s = 1,
                              .host.bytes_per_s = 1e9,
                              .download.bytes_per_s = 1e12,
                              .upload.bytes_per_s = 16384 / list[k].upload,
                              .read.bytes_per_s = 16384 / list[k].read,
                              .write.bytes_per_s = 1e9};
        timed early = {.host = 0}, in_time = {.host = 0};
        char why[200];
        CHECK(t, plan_timed(&cost, false, list[k].kinds, &early));
        CHECK(t, plan_timed(&cost, true, list[k].kinds, &in_time));
        snprintf(why, sizeof why, "%g s, early %g; host %ld of %ld, device %ld of %ld",
                 in_time.estimate.seconds, early.estimate.seconds, in_time.host, early.host,
                 in_time.device, early.device);
        if (in_time.estimate.seconds > 1.000001 * early.estimate.seconds ||
            (double)in_time.host > list[k].host * (double)early.host ||
            (double)in_time.device > list[k].device * (double)early.device)
            test_fail(t, __FILE__, __LINE__, list[k].kinds, why);
    }
}

/* A disk that has nothing but reads and writes to wait for: both at a time take as long as the longer,
 * or where they share its rate as long as one after the other, or half of each. */
TEST_ONCE(offload_on_a_disk_that_is_shared)
{
    zf_cost cost = {.device = {.flops_per_s = 1e15, .bytes_per_s = 1e15},
                    .link.bytes_per_s = 1,
                    .host.bytes_per_s = 1e15,
                    .download.bytes_per_s = 1e15,
                    .upload.bytes_per_s = 1e15,
                    .read.bytes_per_s = 1e6,
                    .write.bytes_per_s = 1e6};
    double alone, both = 0, seconds[3];
    timed result = {.host = 0};
    for (int k = 0; k < 3; k++) {
        cost.disk.shared = k / 2.0;
        CHECK(t, plan_timed(&cost, false, "optimizer=disk", &result));
        seconds[k] = result.estimate.seconds;
        both = result.estimate.busy[ZF_RESOURCE_READ] + result.estimate.busy[ZF_RESOURCE_WRITE];
    }
    alone = seconds[0];
    CHECK(t, alone < 0.8 * both && seconds[1] > 1.1 * alone && seconds[1] < 0.95 * both);
    CHECK_NEAR(t, seconds[2], both, 0.02 * both);
}

/* Reads of the text that are in flight, or not used, when the last gradient is complete. */
static int reads_over_the_end(const char *text)
{
    const char *end = text, *at = text;
    int count = 0;
    for (const char *next = text; (next = strstr(next, " = pack ")); next++) end = next;
    for (; (at = strstr(at, " queue=read")) && at < end; at++) {
        char wait[40];
        const char *line = at;
        while (line > text && line[-1] != '\n') line--;
        snprintf(wait, sizeof wait, "wait %%%d\n", atoi(line + 1));
        count += strstr(end, wait) != NULL;
    }
    return count;
}

/* Reads for updates have a budget of their own next to that of fetches, and after the last fetch
 * also its part. */
TEST_ONCE(offload_reads_ahead_of_the_last_updates)
{
    enum { READ = 64 * 64 * 4 };
    for (int own = 1; own <= 2; own++) {
        char line[200], *text;
        int reads;
        snprintf(line, sizeof line, "autograd loss; adamw lr; zero bucket=1; offload "
                 "parameters=disk optimizer=disk; prefetch bytes=1000000 host_bytes=%d", own * READ);
        CHECK(t, text = text_after(t, tall_layers, line));
        reads = reads_over_the_end(text);
        free(text);
        CHECK(t, reads > own && reads <= 2 * own);
    }
}

/* Bytes that a step of four layers reads from the disk, after the passes; -1: they fail. */
static int64_t bytes_read(test *t, const char *line)
{
    zf_graph *g = zf_graph_parse(layers, strlen(layers), NULL, NULL);
    char message[600] = "";
    zf_plan plan;
    int64_t bytes = -1;
    if (g && !pass_run(g, line, NULL, message, sizeof message) && !zf_graph_plan(g, &plan))
        bytes = (int64_t)plan.traffic.read.bytes;
    if (bytes < 0) test_fail(t, __FILE__, __LINE__, line, message);
    zf_graph_free(g);
    return bytes;
}

/* Each layer's parameters are read for the forward pass and for the backward pass, but those of the
 * first, which the backward pass does not need, and of the last, which stay until then. Updates
 * read those two and their states; those between only their states, if they come during the
 * backward pass, and the budget of host memory has room for what stays. */
TEST_ONCE(offload_reads_parameters_once_for_the_update)
{
    enum { LAYER = 64 * 64 * 4 };
    static const struct {
        const char *before, *after;
        int reads; /* of a layer's bytes */
    } list[] = {
        {"zero bucket=1", "prefetch bytes=1000000", 6 + 2},
        {"zero bucket=1", "prefetch bytes=1000000 host_bytes=16384", 6 + 2},
        {"zero bucket=1", "prefetch bytes=1000000 host_bytes=16383", 6 + 4},
        {"zero bucket=1", "prefetch bytes=0", 6 + 4},
        {"zero bucket=1", "", 6 + 4},
        {"zero bucket=1 micro_batches=2", "prefetch bytes=1000000", 2 * 6 + 4},
        {"clip 1; zero bucket=1", "prefetch bytes=1000000", 6 + 2},
        {"clip 1; zero bucket=1", "prefetch bytes=1000000 host_bytes=20000", 6 + 3},
        {"zero bucket=1 stage=3 world=2", "prefetch bytes=1000000", (6 + 2) / 2},
    };
    static const char *const optimizers[] = {"sgd lr", "sgd lr", "adamw lr", "lamb lr"},
                            *const kinds[] = {"optimizer=host", "optimizer=host piece=4096",
                                              "optimizer=disk piece=8192", "optimizer=disk"};
    for (size_t n = 0; n < 4 * sizeof list / sizeof *list; n++) {
        const size_t k = n / 4;
        const bool clips = !strncmp(list[k].before, "clip", 4);
        const int shards = strstr(list[k].before, "world") ? 2 : 1,
                  states = n % 4 < 2 ? 0 : 2 * 4 / shards;
        char line[300];
        int64_t bytes;
        snprintf(line, sizeof line, "autograd loss; %s%s; %s; offload parameters=disk %s; %s",
                 clips ? "clip 1; " : "", optimizers[n % 4], list[k].before + (clips ? 8 : 0),
                 kinds[n % 4], list[k].after);
        bytes = bytes_read(t, line);
        if (bytes != (int64_t)(list[k].reads + states) * LAYER) {
            char why[100];
            snprintf(why, sizeof why, "%g layers, not %d", (double)bytes / LAYER,
                     list[k].reads + states);
            test_fail(t, __FILE__, __LINE__, line, why);
        }
    }
}

/* In host memory all values of a page or more lie at pages, seen from where values of a step begin:
 * a disk reads and writes them without staging. */
TEST_ONCE(offload_places_by_pages)
{
    static const char *const optimizers[] = {"adamw lr", "lamb lr"};
    for (int k = 0; k < 2; k++) {
        char line[200], *text;
        long offset, bytes, first = -1;
        int pages = 0, small = 0;
        snprintf(line, sizeof line, "autograd loss; clip 1; %s; zero bucket=1; offload "
                 "parameters=disk optimizer=disk piece=4096; prefetch bytes=100000; memory no_reuse",
                 optimizers[k]);
        CHECK(t, text = text_after(t, model, line));
        for (const char *at = text; (at = strstr(at, " host ")); at++) {
            const char *const place = strchr(at, '@');
            if (!place || place > at + strcspn(at, "\n")) continue;
            offset = strtol(place + 1, NULL, 10);
            bytes = strtol(strchr(place, '+') + 1, NULL, 10);
            if (bytes < 4096) {
                small++;
                continue;
            }
            if (first < 0) first = offset % 4096;
            pages += offset % 4096 == first;
            if (offset % 4096 != first) test_fail(t, __FILE__, __LINE__, line, at);
        }
        free(text);
        CHECK(t, pages > 10 && small > 2);
    }
}

/* Bytes of the plan of a space, after "peak " or "peak host " of the text that the passes make. */
static long peak_of(test *t, const char *text, const char *line, const char *peak)
{
    char *out = text_after(t, text, line), *at = out ? strstr(out, peak) : NULL;
    const long bytes = at ? strtol(at + strlen(peak), NULL, 10) : 0;
    free(out);
    return bytes;
}

/* Activations and sums of gradients take as much less of the device as they take of the host, but
 * for what comes back; an update on the device takes a gradient from the host. */
TEST_ONCE(offload_leaves_room_on_the_device)
{
    static const char tall[] = "%1 = input \"x\" : f32[1024,16]\n"
                               "%2 = param \"layer.0.w\" {init=normal b=0.3} : f32[16,16]\n"
                               "%3 = param \"layer.1.w\" {init=normal b=0.3} : f32[16,16]\n"
                               "%4 = param \"layer.2.w\" {init=normal b=0.3} : f32[16,16]\n"
                               "%5 = input \"lr\" : f32[]\n"
                               "%6 = matmul %1, %2 : f32[1024,16]\n"
                               "%7 = tanh %6 : f32[1024,16]\n"
                               "%8 = tanh %7 : f32[1024,16]\n"
                               "%9 = matmul %8, %3 : f32[1024,16]\n"
                               "%10 = tanh %9 : f32[1024,16]\n"
                               "%11 = tanh %10 : f32[1024,16]\n"
                               "%12 = matmul %11, %4 : f32[1024,16]\n"
                               "%13 = tanh %12 : f32[1024,16]\n"
                               "%14 = reshape %13 {shape=[16384]} : f32[16384]\n"
                               "%15 = sum %14 : f32[]\n"
                               "      output %15 \"loss\"\n";
    static const struct {
        const char *text, *before, *kinds;
        long freed; /* bytes of the device, at least */
    } list[] = {
        {tall, "autograd loss; adamw lr; zero bucket=1", "activations=host", 2 * 65536},
        {tall, "autograd loss; adamw lr; recompute layers; zero bucket=1", "activations=host",
         60000},
        {model, "autograd loss; adamw lr; zero bucket=1 micro_batches=2", "gradients=host", 32768},
        {model, "autograd loss; adamw lr; zero bucket=1 stage=0 world=2 micro_batches=2",
         "gradients=host", 24576},
        {model, "autograd loss; adamw lr; zero bucket=1 stage=2 world=2 micro_batches=2",
         "gradients=host", 12288},
        {model, "autograd loss; adamw lr; zero bucket=1 stage=3 world=2 micro_batches=2",
         "gradients=host", 12288},
        {model, "autograd loss; adamw lr; zero bucket=1 stage=0 world=4 nodes=2 micro_batches=2",
         "gradients=host", 24576},
        {model, "autograd loss; clip 1; adamw lr; zero bucket=1", "gradients=host", 12288},
        {model, "autograd loss; adamw lr; zero bucket=1", "gradients=host optimizer=host", 65536},
        {model, "autograd loss; adamw lr; zero bucket=1", "parameters=host optimizer=host", 98304},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        char line[200], why[100];
        long plain, device, host;
        snprintf(line, sizeof line, "%s; memory", list[k].before);
        plain = peak_of(t, list[k].text, line, "\npeak ");
        snprintf(line, sizeof line, "%s; offload %s; memory", list[k].before, list[k].kinds);
        device = peak_of(t, list[k].text, line, "\npeak ");
        host = peak_of(t, list[k].text, line, "\npeak host ");
        snprintf(why, sizeof why, "device %ld, then %ld; host %ld", plain, device, host);
        if (plain - device < list[k].freed || !host)
            test_fail(t, __FILE__, __LINE__, line, why);
    }
}

/* Activations on a disk: there lie all of a step, and each is written and read once. In host memory
 * are those on their way: one where nothing overlaps, else as many as the budget has room for. */
TEST_ONCE(offload_puts_activations_on_a_disk)
{
    enum { ALL = 7, BYTES = 256 * 64 * 4 }; /* the products of eight layers but the last */
    static const struct {
        const char *prefetch;
        size_t host; /* at most so many of them */
    } list[] = {{"bytes=0", 1}, {"bytes=66000", 2}, {"bytes=1000000", ALL}};
    static char text[2000];
    write_eight_layers(text, 256, 64);
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        char line[200], message[600] = "";
        zf_graph *g = zf_graph_parse(text, strlen(text), NULL, NULL);
        zf_plan plan = {.nodes = 0};
        snprintf(line, sizeof line, "autograd loss; sgd lr; zero bucket=1; offload activations=disk; "
                 "prefetch %s; memory; verify", list[k].prefetch);
        if (!g || pass_run(g, line, NULL, message, sizeof message) || zf_graph_plan(g, &plan))
            test_fail(t, __FILE__, __LINE__, line, message);
        zf_graph_free(g);
        CHECK(t, plan.spaces[ZF_DISK].most[ZF_ACTIVATIONS] == ALL * BYTES);
        CHECK(t, plan.spaces[ZF_DISK].peak_bytes == ALL * BYTES + 4096); /* the file's first page */
        CHECK(t, plan.traffic.write.bytes == ALL * BYTES && plan.traffic.read.bytes == ALL * BYTES);
        CHECK(t, plan.spaces[ZF_HOST].most[ZF_ACTIVATIONS] <= list[k].host * BYTES);
        CHECK(t, plan.spaces[ZF_DEVICE].most[ZF_ACTIVATIONS] < 4 * BYTES);
    }
}

/* Gradients on a disk. With one micro-batch each is written and read once, but for those for which
 * host memory has room until they are updated: where updates run during the backward pass that is
 * all of them. Sums over micro-batches are written by each, and read by each but the first, and by
 * the update. The norms of clip read nothing. */
TEST_ONCE(offload_puts_gradients_on_a_disk)
{
    enum { LAYER = 64 * 64 * 4, ALL = 8 };
    static const struct {
        const char *before, *zero, *kinds, *prefetch;
        double disk;          /* gradients, or halves of one, that lie there; */
        double writes, reads; /* of f32 */
        double host;          /* at most so many in host memory; 0: it does not matter */
    } list[] = {
        {"", "", "", "bytes=0", ALL, ALL, ALL, 2},
        {"", "", " optimizer=host", "bytes=0", ALL, ALL, ALL, 2},
        {"clip 1; ", "", "", "bytes=0", ALL, ALL, ALL, 2},
        /* the last one comes when the norm is known, and so the first two can be updated */
        {"clip 1; ", "", " optimizer=host", "bytes=40000", ALL - 3, ALL - 3, ALL - 3, 6},
        {"clip 1; ", "", " optimizer=host", "bytes=40000 host_bytes=16383", ALL, ALL, ALL, 4},
        {"", "", "", "bytes=1000000 host_bytes=16384", ALL - 1, ALL - 1, ALL - 1, 0},
        {"", "", " optimizer=host", "bytes=1000000", 0, 0, 0, 0},
        {"", "", " optimizer=host", "bytes=1000000 host_bytes=40000", 0, 0, 0, 4},
        {"", "micro_batches=3", "", "bytes=0", ALL, 3 * ALL, 3 * ALL, 2},
        {"clip 1; ", "micro_batches=3", " optimizer=host", "bytes=0", ALL, 3 * ALL, 3 * ALL, 2},
        {"clip 1; ", "micro_batches=3", " optimizer=host", "bytes=40000", ALL, 3 * ALL, 3 * ALL, 6},
        {"", "micro_batches=3 stage=2 world=2", "", "bytes=0", ALL / 2., 3 * ALL / 2., 3 * ALL / 2.,
         1},
        /* an update reads the sum in 16 bits, which each micro-batch writes too */
        {"precision", "micro_batches=2", "", "bytes=0", 1.5 * ALL, 3 * ALL, 1.5 * ALL, 2.5},
        {"", "stage=2 world=2", "", "bytes=0", ALL / 2., ALL / 2., ALL / 2., 1},
        {"", "micro_batches=3 stage=0 world=2", "", "bytes=20000", ALL, 3 * ALL, 3 * ALL, 4},
    };
    static char text[2000];
    write_eight_layers(text, 4, 64);
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        char line[300], message[600] = "", why[200];
        zf_graph *g = zf_graph_parse(text, strlen(text), NULL, NULL);
        zf_plan plan = {.nodes = 0};
        double disk, writes, reads, host;
        const bool half = !strcmp(list[k].before, "precision");
        snprintf(line, sizeof line, "%sautograd loss; %sadamw lr; zero bucket=1 %s; offload "
                 "gradients=disk%s; prefetch %s; memory; verify", half ? "precision bf16; " : "",
                 half ? "" : list[k].before, list[k].zero, list[k].kinds, list[k].prefetch);
        if (!g || pass_run(g, line, NULL, message, sizeof message) || zf_graph_plan(g, &plan))
            test_fail(t, __FILE__, __LINE__, line, message);
        zf_graph_free(g);
        disk = (double)plan.spaces[ZF_DISK].most[ZF_GRADIENTS] / LAYER;
        writes = (double)plan.traffic.write.bytes / LAYER;
        reads = (double)plan.traffic.read.bytes / LAYER;
        host = (double)plan.spaces[ZF_HOST].most[ZF_GRADIENTS] / LAYER;
        snprintf(why, sizeof why, "disk %g, writes %g, reads %g, host %g", disk, writes, reads,
                 host);
        if (disk != list[k].disk || writes != list[k].writes || reads != list[k].reads ||
            (list[k].host > 0 && host > list[k].host))
            test_fail(t, __FILE__, __LINE__, line, why);
        CHECK(t, plan.spaces[ZF_DISK].peak_bytes ==
                     plan.spaces[ZF_DISK].most[ZF_GRADIENTS] + (list[k].disk > 0 ? 4096 : 0));
    }
}

/* Of the parameters and states of a bucket only a piece is in host memory; a bucket that is no
 * larger than a piece is updated at once. */
TEST_ONCE(offload_updates_in_pieces)
{
    static const char wide[] = "%1 = input \"x\" : f32[2,64]\n"
                               "%2 = param \"w\" {init=normal b=0.3} : f32[64,256]\n"
                               "%3 = input \"lr\" : f32[]\n"
                               "%4 = matmul %1, %2 : f32[2,256]\n"
                               "%5 = reshape %4 {shape=[512]} : f32[512]\n"
                               "%6 = sum %5 : f32[]\n"
                               "      output %6 \"loss\"\n";
    static const struct {
        const char *before, *piece;
        int updates;
        long saved; /* bytes of host memory */
    } list[] = {
        {"autograd loss; adamw lr; zero", "", 1, 0},
        {"autograd loss; adamw lr; zero", " piece=65536", 1, 0},
        {"autograd loss; adamw lr; zero", " piece=65535", 2, 3 * 32768},
        {"autograd loss; adamw lr; zero", " piece=1", 16, 3 * (65536 - 4096)},
        {"autograd loss; adamw lr; zero", " piece=25000", 3, 3 * (65536 - 24576)},
        {"precision bf16; autograd loss; adamw lr; zero", " piece=8192", 8, 7 * (65536 - 8192) / 2},
        {"autograd loss; lion lr; zero", " piece=8192", 8, 2 * (65536 - 8192)},
        {"autograd loss; sgd lr momentum=0.9; zero", " piece=8192", 8, 2 * (65536 - 8192)},
        {"autograd loss; lamb lr; zero", " piece=8192", 16, 3 * (65536 - 8192) - 1024},
        {"autograd loss; adamw lr; zero stage=1 world=2", " piece=8192", 4, 3 * (32768 - 8192)},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        char line[200], why[100], *out;
        long whole, host;
        int updates;
        snprintf(line, sizeof line, "%s; offload optimizer=disk; memory", list[k].before);
        whole = peak_of(t, wide, line, "\npeak host ");
        snprintf(strstr(line, "; memory"), 100, "%s; memory", list[k].piece);
        NEED(t, out = text_after(t, wide, line), NULL);
        updates = occurrences(out, " decays=[0]}") + occurrences(out, " most=10 ");
        host = strtol(strstr(out, "\npeak host ") + 11, NULL, 10);
        free(out);
        snprintf(why, sizeof why, "%d updates; host %ld, then %ld", updates, whole, host);
        if (updates != list[k].updates || whole - host < list[k].saved)
            test_fail(t, __FILE__, __LINE__, line, why);
    }
}

/* The update section copies no parameters but those that updates write. */
TEST_ONCE(offload_copies_no_views_for_updates)
{
    char *out = text_after(t, model, "autograd loss; clip 1; adamw lr; zero bucket=1; "
                               "offload parameters=disk optimizer=disk; memory");
    CHECK(t, out);
    CHECK(t, strstr(out, "f32[40,60] disk") && !strstr(out, "f32[40,60] host"));
    free(out);
}

/* Bytes of host memory that were asked for: by a backend's allocations. */
static size_t asked;
static zf_backend *counted;

static void *count_allocation(void *self, size_t bytes, zf_error *error)
{
    asked += bytes;
    return counted->allocate(self, bytes, error);
}

/* A program of the model with its states on a disk, or NULL. host: NULL, or what allocates host
 * memory. */
static zf_program *placed_by(test *t, const char *offload, const char *folder, zf_backend *host)
{
    zf_error error = {ZF_OK, ""};
    char message[600] = "", line[200];
    zf_graph *g = zf_graph_parse(model, strlen(model), NULL, &error);
    zf_program *p;
    if (!g) return NULL;
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    snprintf(line, sizeof line, "autograd loss; adamw lr; zero%s", offload);
    pass_run(g, line, NULL, message, sizeof message);
    p = zf_compile(g,
                   &(zf_compile_desc){.offload_dir = folder, .host = host, .verify = true});
    if (!p) printf("    %s\n", zf_graph_error(g));
    if (!p || write_seeded(p, zf_graph_find(g, "x")) || write_seeded(p, zf_graph_find(g, "lr")))
        return NULL;
    return p;
}

/* One with its states on a disk. */
static zf_program *on_a_disk(test *t, const char *folder, zf_backend *host)
{
    return placed_by(t, "; offload optimizer=disk", folder, host);
}

/* Makes a step; what a moment is then. */
static bool moment_of_step(zf_program *p, float moment[2400])
{
    return !zf_step(p) &&
           !zf_store_read(STORE(p), "adamw.m/layer.0.w", moment, 2400 * sizeof *moment);
}

/* States on a disk: the file is as large as the plan says. After a change of the file, the next
 * step is an error that names the state, and another program resumes from the last checkpoint with
 * the same bits. */
TEST_ONCE(offload_to_a_disk)
{
    static float expected[2400], moment[2400];
    char folder[512], saved[512], path[800];
    zf_program *p;
    zf_program_info info;
    zf_backend host;
    struct stat about;
    snprintf(folder, sizeof folder, "%s", test_path("offload"));
    snprintf(saved, sizeof saved, "%s", test_path("saved"));
    mkdir(folder, 0700);
    NEED(t, counted = zf_cpu_backend(NULL, NULL), NULL);
    test_defer(t, (test_cleanup *)zf_backend_free, counted);
    host = *counted;
    host.allocate = count_allocation;
    asked = 0;
    CHECK(t, p = on_a_disk(t, folder, &host));
    info = zf_program_info_of(p);
    CHECK(t, info.allocated[ZF_DISK] == info.plan.spaces[ZF_DISK].peak_bytes);
    CHECK(t, info.allocated[ZF_DISK] == zf_store_info_of(STORE(p)).disk_bytes);
    CHECK(t, info.plan.spaces[ZF_DISK].most[ZF_OPTIMIZER] + 4096 == info.allocated[ZF_DISK]);
    CHECK(t, info.allocated[ZF_HOST] == info.plan.spaces[ZF_HOST].peak_bytes);
    CHECK(t, info.allocated[ZF_HOST] == asked); /* of the allocator, the engine's memory included */
    for (int n = 0; n < 3; n++) CHECK(t, moment_of_step(p, expected));
    OK(t, zf_save(STORE(p), saved, NULL), STORE_ERROR(p));
    CHECK(t, moment_of_step(p, expected));
    for (int k = 0; k < 2; k++) {
        const int file = only_file(folder, path);
        unsigned char byte;
        CHECK(t, file >= 0 && fstat(file, &about) == 0 && pread(file, &byte, 1, 4096 + 100) == 1);
        CHECK(t, (size_t)about.st_size == info.allocated[ZF_DISK]);
        byte ^= 1;
        if (k) CHECK(t, ftruncate(file, 8192) == 0);
        else CHECK(t, pwrite(file, &byte, 1, 4096 + 100) == 1 && fsync(file) == 0);
        if (!k) {
            info = zf_program_info_of(p);
            CHECK(t, !memcmp(&info.counted, &info.plan.traffic, sizeof info.counted));
            CHECK(t, info.counted.read.bytes > 0 && info.counted.upload.bytes > 0);
        }
        GIVES(t, zf_step(p), ZF_ERR_FORMAT, zf_program_error(p));
        CHECK(t, strstr(zf_program_error(p), "adamw.m/layer.") &&
                     strstr(zf_program_error(p), k ? "the file ends: it has 8192 bytes"
                                                   : "the disk gives back other bytes"));
        zf_program_free(p);
        close(file);
        CHECK(t, p = on_a_disk(t, folder, NULL));
        OK(t, zf_load(STORE(p), saved, NULL), STORE_ERROR(p));
        CHECK(t, moment_of_step(p, moment) && !memcmp(moment, expected, sizeof moment));
    }
    zf_program_free(p);
    CHECK(t, rmdir(folder) == 0);
    disk_remove(saved);
}

/* Sums of gradients on a disk: the file is as large as the plan says, and a step moves as much as
 * planned. A bit that flips between two micro-batches, or a file that is cut, is an error that names
 * the place; nothing has been updated then, and the next step has the same bits. */
TEST_ONCE(offload_of_sums_to_a_disk)
{
    static float expected[2400], moment[2400];
    char folder[512], path[800];
    zf_program *p;
    snprintf(folder, sizeof folder, "%s", test_path("offload"));
    mkdir(folder, 0700);
    CHECK(t, p = placed_by(t, " micro_batches=2", folder, NULL));
    OK(t, zf_micro(p), zf_program_error(p));
    CHECK(t, moment_of_step(p, expected));
    zf_program_free(p);
    for (int k = 0; k < 3; k++) {
        zf_program_info info;
        struct stat about;
        unsigned char byte;
        int file;
        CHECK(t, p = placed_by(t, " micro_batches=2; offload gradients=disk; prefetch bytes=20000",
                               folder, NULL));
        info = zf_program_info_of(p);
        file = only_file(folder, path);
        CHECK(t, file >= 0 && fstat(file, &about) == 0);
        CHECK(t, (size_t)about.st_size == info.allocated[ZF_DISK]);
        for (int space = 0; space < ZF_SPACES; space++)
            CHECK(t, info.allocated[space] == info.plan.spaces[space].peak_bytes);
        CHECK(t, info.plan.spaces[ZF_DISK].most[ZF_GRADIENTS] + 4096 == info.allocated[ZF_DISK]);
        OK(t, zf_micro(p), zf_program_error(p));
        if (k) {
            CHECK(t, pread(file, &byte, 1, 4096 + 100) == 1);
            byte ^= 1;
            if (k == 1) CHECK(t, pwrite(file, &byte, 1, 4096 + 100) == 1 && fsync(file) == 0);
            else CHECK(t, ftruncate(file, 8192) == 0);
            GIVES(t, zf_step(p), ZF_ERR_FORMAT, zf_program_error(p));
            CHECK(t, strstr(zf_program_error(p), "a value of the step, byte 0 of 32768 (") &&
                         strstr(zf_program_error(p), k == 1 ? "the disk gives back other bytes"
                                                            : "the file ends: it has 8192 bytes"));
            CHECK(t, ftruncate(file, about.st_size) == 0);
            OK(t, zf_micro(p), zf_program_error(p));
        }
        CHECK(t, moment_of_step(p, moment) && !memcmp(moment, expected, sizeof moment));
        info = zf_program_info_of(p);
        CHECK(t, !memcmp(&info.counted, &info.plan.traffic, sizeof info.counted));
        CHECK(t, info.counted.read.bytes > 0 && info.counted.read.bytes == info.counted.write.bytes);
        close(file);
        zf_program_free(p);
    }
    CHECK(t, rmdir(folder) == 0);
}

/* A checkpoint goes on at another placement with the same bits. */
TEST_ONCE(offload_goes_on_elsewhere)
{
    static const char *const places[] = {"; offload optimizer=disk parameters=disk", "",
                                         "; offload parameters=host",
                                         "; offload optimizer=host parameters=disk", ""};
    static float expected[2400], found[2400];
    char folder[512], saved[512];
    snprintf(folder, sizeof folder, "%s", test_path("offload"));
    snprintf(saved, sizeof saved, "%s", test_path("saved"));
    mkdir(folder, 0700);
    for (int k = 0; k < 5; k++) {
        zf_program *p;
        CHECK(t, p = placed_by(t, places[k], folder, NULL));
        if (k) OK(t, zf_load(STORE(p), saved, NULL), STORE_ERROR(p));
        OK(t, zf_step(p), zf_program_error(p));
        if (!k) OK(t, zf_save(STORE(p), saved, NULL), STORE_ERROR(p));
        if (!k) OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_store_read(STORE(p), "layer.0.w", found, sizeof found), STORE_ERROR(p));
        if (!k) memcpy(expected, found, sizeof expected);
        CHECK(t, !memcmp(expected, found, sizeof expected));
        zf_program_free(p);
    }
    CHECK(t, rmdir(folder) == 0);
    disk_remove(saved);
}

/* Making first values, saving and loading take a few MiB in addition to the plan, less than the parameters,
 * also where these lie on the disk. */
TEST_ONCE(offload_streams)
{
    enum { PARAMETERS = 8 * 512 * 512 * 4 };
    static const char line[] = "autograd loss; adamw lr; zero bucket=1; offload parameters=disk "
                               "optimizer=disk piece=65536";
    char text[2000], message[600] = "", folder[512], saved[512];
    zf_error error = {ZF_OK, ""};
    zf_program_info info;
    zf_program *p;
    zf_graph *g;
    long before, planned;
    snprintf(folder, sizeof folder, "%s", test_path("offload"));
    snprintf(saved, sizeof saved, "%s", test_path("saved"));
    mkdir(folder, 0700);
    write_eight_layers(text, 1, 512);
    g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    if (pass_run(g, line, NULL, message, sizeof message))
        test_fail(t, __FILE__, __LINE__, line, message);
    before = t->peak_bytes = t->live_bytes;
    NEED(t, p = zf_compile(g, &(zf_compile_desc){.offload_dir = folder, .seed = 3}), NULL);
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_save(STORE(p), saved, NULL), STORE_ERROR(p));
    OK(t, zf_load(STORE(p), saved, NULL), STORE_ERROR(p));
    disk_remove(saved);
    info = zf_program_info_of(p);
    CHECK(t, info.plan.spaces[ZF_DISK].peak_bytes > 3 * PARAMETERS);
    planned = (long)(info.allocated[ZF_HOST] + info.allocated[ZF_DEVICE]);
    CHECK(t, t->peak_bytes - before > planned);
    CHECK(t, t->peak_bytes - before < planned + PARAMETERS * 3 / 4);
}

/* No folder, and one that does not exist. */
TEST_ONCE(offload_without_a_folder)
{
    static const char *const errors[] = {"zf_compile: the plan takes ",
                                         "cannot open /nowhere/to/be/found: "};
    for (int k = 0; k < 2; k++) {
        zf_error error = {ZF_OK, ""};
        char message[600] = "";
        zf_graph *g = zf_graph_parse(model, strlen(model), NULL, &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        CHECK(t, !pass_run(g, "autograd loss; adamw lr; zero; offload optimizer=disk", NULL,
                           message, sizeof message));
        CHECK(t,
              !zf_compile(g, &(zf_compile_desc){.offload_dir = k ? "/nowhere/to/be/found" : NULL}));
        CHECK(t, strstr(zf_graph_error(g), errors[k]));
        CHECK(t, k || strstr(zf_graph_error(g), "(zf_store_desc.offload_dir)"));
    }
}

/* A step with its states in host memory allocates in each space what the plan says, and on the
 * device less by the size of the states. */
TEST_ONCE(offload_has_a_plan_of_each_space)
{
    zf_plan plans[2];
    for (int k = 0; k < 2; k++) {
        zf_error error = {ZF_OK, ""};
        char message[600] = "";
        zf_graph *g = zf_graph_parse(model, strlen(model), NULL, &error);
        zf_program *p;
        zf_program_info info;
        zf_store_info store;
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        CHECK(t, !pass_run(g,
                           k ? "autograd loss; adamw lr; zero; offload optimizer=host"
                             : "autograd loss; adamw lr; zero",
                           NULL, message, sizeof message));
        NEED(t, p = zf_compile(g, &(zf_compile_desc){.verify = true}), NULL);
        test_defer(t, (test_cleanup *)zf_program_free, p);
        info = zf_program_info_of(p);
        store = zf_store_info_of(zf_program_store(p));
        plans[k] = info.plan;
        for (int space = 0; space < ZF_SPACES; space++)
            CHECK(t, info.allocated[space] == info.plan.spaces[space].peak_bytes);
        CHECK(t, info.allocated_bytes == info.allocated[ZF_DEVICE]);
        CHECK(t, store.bytes + store.program_bytes == info.allocated[ZF_DEVICE]);
        CHECK(t, store.offloaded_bytes + store.host_program_bytes == info.allocated[ZF_HOST]);
    }
    CHECK(t, !plans[0].spaces[ZF_HOST].peak_bytes && !plans[1].most[ZF_OPTIMIZER]);
    CHECK(t, plans[1].spaces[ZF_HOST].most[ZF_OPTIMIZER] == plans[0].most[ZF_OPTIMIZER]);
    CHECK(t, plans[1].spaces[ZF_HOST].live_bytes <= plans[1].spaces[ZF_HOST].peak_bytes);
    CHECK(t, plans[1].peak_bytes + plans[0].most[ZF_OPTIMIZER] <= plans[0].peak_bytes + 64);
}

/* One rank, one bucket, placed; with queues. */
static const char placed[] = "zero stage=0 world=1 micro_batches=1\n"
                             "%2  = param \"w\" {init=normal b=0.3} : f32[8,8]\n"
                             "%42 = bucket %2 {at=[0] size=1024} : f32[1024] @320+4096\n"
                             "%1  = input \"x\" : f32[8,8] @0+256\n"
                             "%4  = input \"lr\" : f32[] @256+4\n"
                             "%46 = pack %1 {at=[0] size=1024} : f32[1024] @4416+4096\n"
                             "%47 = copy %46 {to=host} : f32[1024] host @4096+4096 queue=download\n"
                             "      wait %47\n"
                             "update:\n"
                             "%5  = state \"sgd.momentum/w\" : f32[8,8] host\n"
                             "%43 = bucket %5 {at=[0] size=1024} : f32[1024] host @0+4096\n"
                             "%48 = copy %42 {to=host} : f32[1024] host @8192+4096 queue=download\n"
                             "%49 = copy %4 {to=host} : f32[] host @12288+4\n"
                             "      wait %48\n"
                             "      sgd %48, %47, %49, %43 {momentum=0.9 blocks=[0,1] decays=[0]}\n"
                             "%50 = copy %48, %42 : f32[1024] @320+4096 queue=upload\n"
                             "      wait %50\n"
                             "peak 8512 %46\n"
                             "peak host 12352 %49\n";

TEST(offload_text_is_good)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g =
        zf_graph_parse(placed, strlen(placed), &(zf_graph_desc){.allocator = t->allocator}, &error);
    char text[4000];
    NEED(t, g, &error);
    zf_graph_text(g, text, sizeof text);
    zf_graph_free(g);
    CHECK(t, strstr(text, "%43 = bucket %5 {at=[0] size=1024} : f32[1024] host @0+4096\n"));
    CHECK(t, strstr(text, "\npeak 8512 %46\npeak host 12352 %49\n"));
}

/* A parameter that is brought for each of two runs of uses; with a queue. */
static const char brought[] = "zero stage=0 world=1 micro_batches=1\n"
                              "%2  = param \"w\" : f32[8,8] host\n"
                              "%3  = param \"v\" : f32[8,8] host\n"
                              "%8  = bucket %2 {at=[0] size=1024} : f32[1024] host @0+4096\n"
                              "%9  = bucket %3 {at=[0] size=1024} : f32[1024] host @4096+4096\n"
                              "%1  = input \"x\" : f32[8,8] @0+256\n"
                              "%12 = copy %8 : f32[1024] @256+4096 queue=upload\n"
                              "%15 = copy %9 : f32[1024] @4864+4096 queue=upload\n"
                              "      wait %12\n"
                              "%13 = view %12 {shape=[8,8]} : f32[8,8] @256+256\n"
                              "%4  = matmul %1, %13 : f32[8,8] @4352+256\n"
                              "      release %12\n"
                              "      wait %15\n"
                              "%16 = view %15 {shape=[8,8]} : f32[8,8] @4864+256\n"
                              "%5  = matmul %4, %16 : f32[8,8] @4608+256\n"
                              "      release %15\n"
                              "%18 = copy %8 : f32[1024] @256+4096\n"
                              "%19 = view %18 {shape=[8,8]} : f32[8,8] @256+256\n"
                              "%6  = matmul %5, %19 : f32[8,8] @4352+256\n"
                              "      release %18\n"
                              "      output %6 \"y\"\n"
                              "peak 8960 %15\n"
                              "peak host 8192 %0\n";

TEST_ONCE(offload_mistakes_are_found)
{
    static const struct {
        const char *from, *to, *error;
    } list[] = {
        {"", "", NULL}, /* `brought` is good */
        {"%6  = matmul %5, %19", "%6  = matmul %5, %13",
         "it reads %13, whose bytes have been released"},
        {"      wait %15\n", "", "it reads %15 while copy %15 on queue upload writes it"},
        {"      wait %12\n", "      release %12\n",
         "it releases %12 while copy %12 on queue upload writes it"},
        {"@4864+4096 queue=upload", "@256+4096 queue=upload", "the bytes of %12 belong to %15"},
        {"%4  = matmul %1, %13", "%4  = matmul %1, %2", "it lies in the bucket %8"},
        {"      wait %48\n", "", "it writes %48 while copy %48 on queue download writes it"},
        {"      wait %47\n", "", "nothing waits for it before the end of the micro section"},
        {"      wait %50\n", "", "nothing waits for it before the end of the update section"},
        {"%50 = copy %48, %42 : f32[1024] @320+4096 queue=upload\n      wait %50\n", "",
         "it updates a copy of %42, and nothing copies it back"},
        {"sgd %48, %47, %49, %43", "sgd %48, %47, %4, %43",
         "%48 lies in the space host, and %4 in device"},
        {"sgd %48, %47, %49, %43", "sgd %48, %46, %49, %43",
         "%48 lies in the space host, and %46 in device"},
        {"sgd %48, %47", "sgd %47, %48",
         "operand 0 must be a param, a bucket or a shard of one, not the result of pack"},
        {"@4096+4096 queue=download", "@2048+4096 queue=download",
         "the bytes of %43 belong to %47"},
        {"@8192+4096 queue=download", "@4096+4096 queue=download",
         "the bytes of %47 belong to %48"},
        {"@8192+4096 queue=download", "@8192+4096 queue=upload",
         "on queue upload there are copies of its direction alone"},
        {"@8192+4096 queue=download", "@8192+4096 queue=gather",
         "on queue gather there are collectives of several ranks alone"},
        {"peak host 12352 %49", "peak host 12288 %49", "do not fit its type or the arena of 12288"},
        {"peak host 12352 %49\n", "", "do not fit its type or the arena of 0"},
        {"%50 = copy %48, %42", "%50 = copy %47, %42",
         "operand 0 must be a copy of %42, which it brings back"},
        {"update:\n", "update:\n      output %4 \"loss\" micro\n",
         "a loss is looked at before updates; it must be above 'update:'"},
        {"      wait %50\n", "      wait %50\n%51 = copy %43 {to=disk} : f32[1024] disk\n",
         "it has no place"},
        {"%48 = copy %42 {to=host} : f32[1024] host", "%48 = copy %42 {to=host} : f32[1024]",
         "the result of copy lies in the space host"},
        {"%48 = copy %42 {to=host} : f32[1024] host", "%48 = copy %42 {to=disk} : f32[1024] disk",
         "values go between device and disk by way of host memory"},
        {"%48 = copy %42 {to=host} : f32[1024] host", "%48 = copy %42 : f32[1024]",
         "operand 0 lies in the space device already"},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        const bool in_placed = list[k].error && strstr(placed, list[k].from);
        check_mistake(t, in_placed ? placed : brought, list[k].from, list[k].to, list[k].error);
    }
}

/* An update in pieces, with queues. */
static const char cut[] = "zero stage=0 world=1 micro_batches=1\n"
                          "%2  = param \"w\" : f32[8,256] host\n"
                          "%42 = bucket %2 {at=[0] size=2048} : f32[2048] host\n"
                          "%1  = input \"x\" : f32[8,256]\n"
                          "%4  = input \"lr\" : f32[]\n"
                          "%46 = pack %1 {at=[0] size=2048} : f32[2048]\n"
                          "%47 = copy %46 {to=host} : f32[2048] host queue=download\n"
                          "      wait %47\n"
                          "update:\n"
                          "%5  = state \"sgd.momentum/w\" : f32[8,256] disk\n"
                          "%43 = bucket %5 {at=[0] size=2048} : f32[2048] disk\n"
                          "%49 = copy %4 {to=host} : f32[] host\n"
                          "%50 = constant {values=[0.5]} : f32[] host\n"
                          "%10 = piece %42 {size=1024} : f32[1024] host\n"
                          "%11 = piece %42 {at=1024 size=1024} : f32[1024] host\n"
                          "%12 = piece %47 {size=1024} : f32[1024] host\n"
                          "%13 = piece %47 {at=1024 size=1024} : f32[1024] host\n"
                          "%14 = piece %43 {size=1024} : f32[1024] disk\n"
                          "%15 = piece %43 {at=1024 size=1024} : f32[1024] disk\n"
                          "%16 = copy %14 {to=host} : f32[1024] host queue=read\n"
                          "%17 = copy %15 {to=host} : f32[1024] host queue=read\n"
                          "      wait %16\n"
                          "      sgd %10, %12, %49, %16 {momentum=0.9 piece=[0,2048] blocks=[0,2] "
                          "decays=[0]}\n"
                          "%18 = copy %16, %14 {to=disk} : f32[1024] disk queue=write\n"
                          "      wait %17\n"
                          "      sgd %11, %13, %49, %17 {momentum=0.9 piece=[1024,2048] "
                          "blocks=[0,2] decays=[0]}\n"
                          "      wait %18\n"
                          "%19 = copy %17, %15 {to=disk} : f32[1024] disk\n";

TEST_ONCE(offload_mistakes_in_pieces_are_found)
{
    static const struct {
        const char *from, *to, *error; /* error NULL: it is none */
    } list[] = {
        {"", "", NULL},
        {"%15 = piece %43 {at=1024 size=1024}", "%15 = piece %43 {size=1024}",
         "the piece of %43 before it ends at 1024"},
        {"      wait %16\n", "%20 = piece %46 {size=1024} : f32[1024]\n      wait %16\n",
         "the pieces of %46 end here, and it has 2048 elements"},
        {"%11 = piece %42 {at=1024", "%11 = piece %42 {at=1000", "pieces begin at multiples of 1024"},
        {"sgd %11, %13, %49, %17 {momentum=0.9 piece=[1024,2048]",
         "sgd %11, %12, %49, %17 {momentum=0.9 piece=[1024,2048]",
         "%12 is no piece of 1024 elements from element 1024 of 2048 on"},
        {"sgd %11, %13, %49, %17 {momentum=0.9 piece=[1024,2048]",
         "sgd %11, %13, %49, %16 {momentum=0.9 piece=[1024,2048]", "%14 has an update already"},
        {"piece=[1024,2048]", "piece=[0,2048]", "%11 is a piece: piece must be [1024,2048]"},
        {" piece=[1024,2048]", "", "ascending, within the 1 blocks"},
        {"momentum=0.9 piece=[1024,2048]", "momentum=0.8 piece=[1024,2048]",
         "pieces of %42 are updated in two ways, here and by sgd %10"},
        {"sgd %11, %13, %49, %17", "sgd %11, %13, %50, %17",
         "%50 and %49, for another piece, are not of one value"},
        {"      sgd %11, %13, %49, %17 {momentum=0.9 piece=[1024,2048] blocks=[0,2] decays=[0]}\n",
         "", "it has no update, and other pieces of %42 have one"},
        {"      wait %18\n", "", "nothing waits for it before the end of the update section"},
        {"%19 = copy %17, %15", "%19 = copy %17, %14", "operand 0 must be a copy of %14"},
        {"      wait %18\n", "%20 = copy %14 {to=host} : f32[1024] host\n      wait %18\n",
         "it reads %14 while copy %18 on queue write writes it"},
        {"      wait %18\n", "%20 = copy %43 {to=host} : f32[2048] host\n      wait %18\n",
         "it reads %43 while copy %18 on queue write writes it"},
        {"      wait %18\n", "      wait %18\n%20 = copy %43 {to=host} : f32[2048] host\n",
         "pieces of %43 are updated: all of them must be in their place above"},
        {"%19 = copy %17, %15 {to=disk} : f32[1024] disk\n", "", "nothing copies it back"},
        {"      wait %18\n", "      wait %18\n      release %12\n",
         "%12 is a piece, which is released with %47"},
        {"      wait %16\n", "%20 = add %42, %42 : f32[2048] host\n      wait %16\n", NULL},
        {"      wait %17\n", "%20 = add %42, %42 : f32[2048] host\n      wait %17\n",
         "pieces of %42 are updated: all of them must be in their place above"},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        check_mistake(t, cut, list[k].from, list[k].to, list[k].error);
    }
}

/* A sum over ranks onto an accumulator in host memory, with queues. */
static const char summed[] = "zero stage=2 world=2 micro_batches=2\n"
                             "%2  = param \"w\" : f32[8,8]\n"
                             "%42 = bucket %2 {at=[0] size=2048} : f32[2048]\n"
                             "%1  = input \"x\" : f32[8,8]\n"
                             "%4  = input \"lr\" : f32[]\n"
                             "%46 = pack %1 {at=[0] size=2048} : f32[2048]\n"
                             "%47 = accumulator : f32[1024] host\n"
                             "%48 = copy %47 : f32[1024] queue=upload\n"
                             "      wait %48\n"
                             "%49 = reduce_scatter %46, %48 {world=2} : f32[1024]\n"
                             "%50 = copy %49, %47 {to=host} : f32[1024] host queue=download\n"
                             "      wait %50\n"
                             "update:\n"
                             "%43 = shard %42 {world=2} : f32[1024]\n"
                             "%51 = copy %50 : f32[1024]\n"
                             "      sgd %43, %51, %4 {world=2 blocks=[0,1] decays=[0]}\n"
                             "%52 = all_gather %43, %42 {world=2} : f32[2048]\n";

TEST_ONCE(offload_mistakes_of_sums_are_found)
{
    static const struct {
        const char *from, *to, *error; /* error NULL: it is none */
    } list[] = {
        {"", "", NULL},
        {"reduce_scatter %46, %48", "reduce_scatter %46, %47",
         "%46 lies in the space device, and %47 in host"},
        {"      wait %48\n", "", "%48 while copy %48 on queue upload writes it"},
        {"      wait %50\n", "", "nothing waits for it before the end of the micro section"},
        {"%50 = copy %49, %47 {to=host} : f32[1024] host queue=download\n      wait %50\n",
         "%50 = copy %49 {to=host} : f32[1024] host\n",
         "it updates a copy of %47, and nothing copies it back"},
        {"copy %49, %47", "copy %48, %47",
         "%48 is an accumulator: its value is that of the sum onto it"},
        {"copy %50 : f32", "copy %47 : f32",
         "%51 is an accumulator: its value is that of the sum onto it"},
        {"sgd %43, %51", "sgd %43, %48",
         "%48 is an accumulator: its value is that of the sum onto it"},
        {"%50 = copy %49, %47", "%55 = accumulator : f32[1024] host\n%50 = copy %49, %55",
         "operand 0 must be a sum onto a copy of %55, which it brings back"},
        {"update:\n",
         "%55 = copy %47 : f32[1024]\n%56 = reduce_scatter %46, %55 {world=2} : f32[1024]\n"
         "%57 = copy %56, %47 {to=host} : f32[1024] host\nupdate:\n",
         "%55 accumulates %49 already"},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++)
        check_mistake(t, summed, list[k].from, list[k].to, list[k].error);
}

/* The same on a disk. */
static const char stored[] = "zero stage=2 world=2 micro_batches=2\n"
                             "%2  = param \"w\" : f32[8,8]\n"
                             "%42 = bucket %2 {at=[0] size=2048} : f32[2048]\n"
                             "%1  = input \"x\" : f32[8,8]\n"
                             "%4  = input \"lr\" : f32[]\n"
                             "%47 = accumulator : f32[1024] disk\n"
                             "%44 = copy %47 {to=host} : f32[1024] host queue=read\n"
                             "%46 = pack %1 {at=[0] size=2048} : f32[2048]\n"
                             "      wait %44\n"
                             "%48 = copy %44 : f32[1024] queue=upload\n"
                             "      wait %48\n"
                             "%49 = reduce_scatter %46, %48 {world=2} : f32[1024]\n"
                             "%45 = copy %49, %44 {to=host} : f32[1024] host queue=download\n"
                             "      wait %45\n"
                             "%50 = copy %45, %47 {to=disk} : f32[1024] disk queue=write\n"
                             "      wait %50\n"
                             "update:\n"
                             "%43 = shard %42 {world=2} : f32[1024]\n"
                             "%53 = copy %50 {to=host} : f32[1024] host\n"
                             "%51 = copy %53 : f32[1024]\n"
                             "      sgd %43, %51, %4 {world=2 blocks=[0,1] decays=[0]}\n"
                             "%52 = all_gather %43, %42 {world=2} : f32[2048]\n";

TEST_ONCE(offload_mistakes_of_sums_on_a_disk_are_found)
{
    static const struct {
        const char *from, *to, *error; /* error NULL: it is none */
    } list[] = {
        {"", "", NULL},
        {"      wait %44\n", "", "it reads %44 while copy %44 on queue read writes it"},
        {"      wait %45\n", "", "it reads %45 while copy %45 on queue download writes it"},
        {"      wait %50\n", "", "nothing waits for it before the end of the micro section"},
        {"copy %45, %47", "copy %44, %47",
         "%44 is an accumulator: its value is that of the sum onto it"},
        {"copy %49, %44", "copy %48, %44",
         "%48 is an accumulator: its value is that of the sum onto it"},
        {"%46 = pack", "%54 = copy %47 {to=host} : f32[1024] host\n%46 = pack", NULL},
        {"%45 = copy %49, %44", "%54 = copy %4 {to=host} : f32[] host\n%45 = copy %49, %54",
         "operand 1 must be of type f32[1024]"},
        {"%48 = copy %44 : f32[1024] queue=upload\n",
         "%54 = copy %47 {to=host} : f32[1024] host\n%48 = copy %54 : f32[1024] queue=upload\n",
         "operand 0 must be a sum onto a copy of %44, which it brings back"},
        {"%50 = copy %45, %47", "%55 = accumulator : f32[1024] disk\n%50 = copy %45, %55",
         "operand 0 must be a sum onto a copy of %55, which it brings back"},
        {"%50 = copy %45, %47 {to=disk} : f32[1024] disk queue=write\n      wait %50\n",
         "%50 = copy %45 {to=disk} : f32[1024] disk\n",
         "it updates a copy of %47, and nothing copies it back"},
        {"copy %50 {to=host}", "copy %47 {to=host}",
         "%51 is an accumulator: its value is that of the sum onto it"},
        {"sgd %43, %51", "sgd %43, %50", "%43 lies in the space device, and %50 in disk"},
        {"update:\n",
         "%54 = copy %42 {to=host} : f32[2048] host\n%55 = copy %54, %42 : f32[2048]\nupdate:\n",
         "it writes %42 in the micro section, which may run again"},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++)
        check_mistake(t, stored, list[k].from, list[k].to, list[k].error);
}

/* Pieces of a fetch for the backward pass are updated, and copied back to those of the bucket. */
static const char stays[] = "zero stage=0 world=1 micro_batches=1\n"
                            "%2  = param \"w\" : f32[8,256] disk\n"
                            "%42 = bucket %2 {at=[0] size=2048} : f32[2048] disk\n"
                            "%1  = input \"x\" : f32[8,256]\n"
                            "%4  = input \"lr\" : f32[]\n"
                            "%46 = pack %1 {at=[0] size=2048} : f32[2048]\n"
                            "%47 = copy %46 {to=host} : f32[2048] host\n"
                            "update:\n"
                            "%30 = copy %42 {to=host} : f32[2048] host micro\n"
                            "%31 = copy %30 : f32[2048] queue=upload micro\n"
                            "%49 = copy %4 {to=host} : f32[] host\n"
                            "%10 = piece %42 {size=1024} : f32[1024] disk\n"
                            "%11 = piece %42 {at=1024 size=1024} : f32[1024] disk\n"
                            "%12 = piece %47 {size=1024} : f32[1024] host\n"
                            "%13 = piece %47 {at=1024 size=1024} : f32[1024] host\n"
                            "%16 = piece %30 {size=1024} : f32[1024] host\n"
                            "%17 = piece %30 {at=1024 size=1024} : f32[1024] host\n"
                            "      wait %31 micro\n"
                            "      sgd %16, %12, %49 {piece=[0,2048] blocks=[0,2] decays=[0]}\n"
                            "%18 = copy %16, %10 {to=disk} : f32[1024] disk\n"
                            "      sgd %17, %13, %49 {piece=[1024,2048] blocks=[0,2] decays=[0]}\n"
                            "%19 = copy %17, %11 {to=disk} : f32[1024] disk\n";

TEST_ONCE(offload_mistakes_in_fetches_that_stay_are_found)
{
    static const struct {
        const char *from, *to, *error; /* error NULL: it is none */
    } list[] = {
        {"", "", NULL},
        {"%19 = copy %17, %11", "%19 = copy %16, %11", "operand 0 must be a copy of %11"},
        {"%19 = copy %17, %11 {to=disk} : f32[1024] disk\n", "", "nothing copies it back"},
        {"      sgd %17, %13", "%32 = copy %30 : f32[2048] micro\n      sgd %17, %13",
         "%30 has been updated above; it must read what that was before"},
        {"      sgd %17, %13", "%32 = copy %42 {to=host} : f32[2048] host\n      sgd %17, %13",
         "pieces of %42 are updated: all of them must be in their place above"},
        {"      sgd %17,", "%33 = copy %11 {to=host} : f32[1024] host\n      sgd %33,",
         "%11 has an update already"},
        {"      sgd %17, %13, %49 {piece=[1024,2048] blocks=[0,2] decays=[0]}\n", "",
         "it has no update, and other pieces of %30 have one"},
        {"      wait %31 micro\n      sgd %16, %12, %49 {piece=[0,2048] blocks=[0,2] decays=[0]}\n",
         "      sgd %16, %12, %49 {piece=[0,2048] blocks=[0,2] decays=[0]}\n      wait %31 micro\n",
         "it writes %16 while copy %31 on queue upload reads it"},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++)
        check_mistake(t, stays, list[k].from, list[k].to, list[k].error);
}

/* Passes out of order, and invalid descriptions. */
TEST_ONCE(offload_errors)
{
    static const struct {
        const char *line, *error;
    } list[] = {
        {"autograd loss; adamw lr; offload optimizer=host", "zf_offload: needs zf_zero before it"},
        {"autograd loss; adamw lr; zero; prefetch bytes=100; offload optimizer=host",
         "zf_offload: must come before zf_prefetch, which has been run"},
        {"autograd loss; adamw lr; zero stage=2 world=2; offload parameters=host",
         "zf_offload: at stage 2 each rank gathers all updated parameters on the device; they can "
         "leave it at stage 3, where each rank brings its shard, or at stage 0"},
        {"autograd loss; adamw lr; zero; offload optimizer=host; offload optimizer=host",
         "zf_offload: zf_offload has been run already"},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(model, strlen(model), NULL, &error);
        char message[600] = "";
        NEED(t, g, &error);
        pass_run(g, list[k].line, NULL, message, sizeof message);
        zf_graph_free(g);
        CHECK_TEXT(t, message, list[k].error);
    }
}

/* Norms of all pieces of a shard are a shard of norms in the order of the pieces alone. */
TEST_ONCE(offload_packs_of_pieces_have_an_order)
{
    static const char norms[] = "zero stage=1 world=2 micro_batches=1\n"
                                "%2  = param \"w\" : f32[64,64]\n"
                                "%30 = bucket %2 {at=[0] size=4096} : f32[4096]\n"
                                "update:\n"
                                "%37 = shard %30 {world=2} : f32[2048]\n"
                                "%54 = piece %37 {size=1024} : f32[1024]\n"
                                "%55 = piece %37 {at=1024 size=1024} : f32[1024]\n"
                                "%64 = block_norms %54 : f32[1]\n"
                                "%68 = block_norms %55 : f32[1]\n"
                                "%41 = pack %64, %68 {at=[0,1] size=2} : f32[2]\n"
                                "%42 = all_reduce %41 {world=2} : f32[2]\n";
    check_mistake(t, norms, "", "", "%41 is this rank's shard: ranks would add different elements");
    if (!t->failed) check_mistake(t, norms, "%64, %68 {at", "%68, %64 {at", NULL);
    if (!t->failed) check_mistake(t, norms, "%64, %68 {at", "%64, %64 {at", NULL);
    if (!t->failed) check_mistake(t, norms, "%42 = all_reduce", "%42 = all_gather", "f32[4]");
}
