/* zf-plan: the memory, traffic and time of training a BERT or GPT on each of N ranks, without
 * running it.
 *
 *     build/zf-plan --model gpt --layers 36 --hidden 4096 --heads 32 --world 64 --zero 2 \
 *                   --precision bf16 --memory 32G
 *
 * Builds the graph of one training step, runs the passes of a rank over it, and prints the plan. It
 * allocates only the graph. */
#define _GNU_SOURCE /* clock_gettime */
#include "../examples/bert/model.h"
#include "../examples/frame/plan/human.h"
#include "../examples/frame/plan/rlhf_plan.h"
#include "../examples/gpt/model.h"
#include "../examples/llm/model.h"
#include "picture.h"
#include "written.h"
#include "../examples/frame/options/files.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GOOD, BAD, MISUSED }; /* exit status */

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

/* ---------------------------------------------------------------------------------- options */

#define MODELS                   "bert|gpt"
#define ROW(kind, member, ...)   ZF_OPTION(options, kind, member, __VA_ARGS__)
#define BASIC                    .traits = ZF_OPTION_BASIC
#define MANY                     "[1,1048576]"

static const zf_option plan_rows[] = {
    ROW(CHOICE, gpt, 0, MODELS, .flag = "model", .topic = "model", BASIC,
        .help = "the architecture"),
    ROW(COUNT, layers, 12, "[1,65536]", BASIC, .help = "number of blocks"),
    ROW(COUNT, hidden, 768, MANY, BASIC, .help = "width of the model"),
    ROW(COUNT, heads, 12, "[1,65536]", BASIC, .help = "attention heads"),
    ROW(COUNT, vocab, 0, "[2,1073741824]", BASIC,
        .help = "rows of the word embedding (30522 of BERT, 50257 of GPT)"),
    ROW(COUNT, seq, 0, MANY, BASIC, .help = "tokens of a sequence (128 of BERT, 1024 of GPT)"),
    ROW(COUNT, batch, 0, MANY, BASIC, .help = "sequences of a micro-batch on one rank (8)"),
    ROW(FLAG, layout, 0, NULL, .with = "attention",
        .help = "print the layout of --attention, # where a block is seen, and no plan"),
    ROW(COUNT, world, 1, MANY, .topic = "ranks", BASIC, .help = "ranks"),
    ROW(COUNT, nodes, 0, MANY, .unit = "M", .with = "!ranks_per_node",
        .help = "nodes, each with the same number of ranks"),
    ROW(COUNT, ranks_per_node, 0, MANY, .unit = "Z",
        .help = "ranks of each node, in place of --nodes"),
    ROW(COUNT, mics, 0, MANY, .unit = "Z", .help = "shard over the Z ranks of a node alone"),
    ROW(TEXT, cost_file, 0, NULL, .unit = "FILE", .flag = "cost", .traits = ZF_OPTION_READS,
        .help =
            "rates of a machine, its link and its disk (zf_cost_read), by which the time of a step "
            "is estimated and --prefetch planned"),
    ROW(BYTES, memory, 0, NULL, .topic = "memory", BASIC, .with = "!fit",
        .help = "memory of a rank; the status is 1 when the plan does not fit"),
    ROW(FLAG, fit, 0, NULL, .topic = "fit", BASIC, .with = "device",
        .help =
            "print the largest models that train on each rank within bytes of its device, of host "
            "memory and of a disk, in plain memory, at each stage and with each kind of offload. "
            "Sizes grow by these rules: GPT of N layers is 128 N wide, with N heads (GPT-3: 96), "
            "BERT 64 N wide with N heads (BERT-base: 12); then layers are added as far as they "
            "fit. By default in bf16, with a batch of 1 and --recompute layers. Each row is a "
            "plan"),
    ROW(BYTES, device, 0, NULL, BASIC, .with = "fit", .help = "memory of a rank's device"),
    ROW(BYTES, host, 0, NULL, BASIC, .with = "fit",
        .help = "bytes of host memory; without this option none"),
    ROW(BYTES, disk, 0, NULL, BASIC, .with = "fit",
        .help = "bytes of a disk; without this option none"),
    ROW(FLAG, json, 0, NULL, .topic = "files", BASIC, .help = "print JSON"),
    ROW(TEXT, deepspeed_config, 0, NULL, .unit = "FILE", BASIC, .with = "!fit",
        .help = "options by a configuration of DeepSpeed's"),
    ROW(TEXT, deepspeed_version, 0, NULL, .unit = "X.Y.Z", .with = "deepspeed_config",
        .help = "DeepSpeed's version whose defaults the configuration means"),
    ROW(FLAG, deepspeed_loose, 0, NULL, .with = "deepspeed_config",
        .help = "an unknown key in it is a warning"),
    ROW(FLAG, explain, 0, NULL, .with = "deepspeed_config",
        .help = "print what each of its keys becomes"),
    ROW(FLAG, deepspeed_keys, 0, NULL, BASIC,
        .help = "print the table of DeepSpeed's keys, and nothing else"),
    ROW(TEXT, svg, 0, NULL, .unit = "FILE", .with = "!fit",
        .traits = ZF_OPTION_BASIC | ZF_OPTION_WRITES,
        .help = "draw bytes over the step, and what its queues do over time; further variants in "
                "FILE.2, FILE.3, ..."),
    ROW(TEXT, html, 0, NULL, .unit = "FILE", .with = "!fit",
        .traits = ZF_OPTION_BASIC | ZF_OPTION_WRITES,
        .help =
            "write a page about the plan: memory, queues, operators, traffic; further variants in "
            "FILE.2, FILE.3, ..."),
    {.name = NULL}};

__attribute__((format(printf, 1, 2))) static int misuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("zf-plan: ", stderr);
    vfprintf(stderr, format, args);
    fputs("\nTry 'zf-plan --help'.\n", stderr);
    va_end(args);
    return MISUSED;
}

enum { TABLES = 3 };

static int help(const zf_options all[TABLES], const char *topic)
{
    zf_error error;
    fputs("Usage: zf-plan [OPTION]...\n"
          "Print what a training step of a BERT or GPT takes on each of N ranks: bytes by kind,\n"
          "bytes sent, and FLOPs. Sizes that are not given are those of BERT-base or GPT-2\n"
          "small. 'zf-plan rlhf --help' is about training on rewards of a model's own answers.\n\n",
          stdout);
    if (zf_options_help(all, TABLES, topic, stdout, &error)) return misuse("%s", error.text);
    fputs(
        "\nBYTES may end in K, M, G or T: 2^10, 2^20, 2^30 or 2^40. The scratch of kernels, which\n"
        "depends on the machine, is not in the plan. Where a step has several variants, each has "
        "a\n"
        "plan. The exit status is 0 if there is a plan, 1 if there is none, 2 for bad usage.\n",
        stdout);
    return GOOD;
}

/* Sets defaults that depend on --fit and the model. NOT_GIVEN: a dtype that --precision does not
 * have. */
#define NOT_GIVEN ZF_BOOL
static void settle_defaults(options *o)
{
    if (!o->batch) o->batch = o->fit ? 1 : 8;
    if (o->t.precision.dtype == NOT_GIVEN) o->t.precision.dtype = o->fit ? ZF_BF16 : ZF_F32;
    if (o->fit && !o->t.recompute.mode && !o->t.recompute.bytes)
        o->t.recompute.mode = ZF_RECOMPUTE_LAYERS;
    if (!o->fit && !o->vocab) o->vocab = o->gpt ? 50257 : 30522;
    if (!o->fit && !o->seq) o->seq = o->gpt ? 1024 : 128;
}

/* The nodes of the ranks; a status + 1 where these do not divide. */
static int settle_nodes(options *o)
{
    if (o->mics && o->ranks_per_node && o->mics != o->ranks_per_node)
        return misuse("--mics Z shards over the ranks of a node: --ranks-per-node must be Z as "
                      "well") +
               1;
    if (!o->ranks_per_node) o->ranks_per_node = o->mics;
    if (!o->nodes) o->nodes = o->ranks_per_node ? o->world / o->ranks_per_node : 1;
    if (o->nodes < 1 || o->world % o->nodes ||
        (o->ranks_per_node && o->ranks_per_node * o->nodes != o->world))
        return misuse("--%s does not divide the %lld ranks into nodes of as many",
                      o->mics             ? "mics"
                      : o->ranks_per_node ? "ranks-per-node"
                                          : "nodes",
                      (long long)o->world) +
               1;
    return 0;
}

/* Sets a number that was not given, or compares it. */
static bool settle_number(int64_t *number, int64_t other)
{
    if (!*number) *number = other;
    return !other || *number == other;
}

/* Options of --deepspeed-config; a status + 1 where they are wrong. */
static int read_deepspeed(options *o)
{
    zf_deepspeed d = {.world = o->world,
                      .version = o->deepspeed_version,
                      .loose = o->deepspeed_loose};
    zf_error error;
    bool same;
    if (!o->deepspeed_config) return 0;
    if (zf_deepspeed_load(o->deepspeed_config, &o->t, &d, &error))
        return misuse("%s", error.text) + 1;
    same = settle_number(&o->batch, d.run.micro_batch) && settle_number(&o->mics, d.run.mics) &&
           settle_number(&o->ranks_per_node, d.run.ranks_per_node);
    if (o->explain) zf_deepspeed_explain(&d, o->json ? stderr : stdout);
    zf_deepspeed_free(&d);
    return same ? 0
                : misuse("--batch, --mics or --ranks-per-node is not that of %s",
                         o->deepspeed_config) +
                      1;
}

/* Returns 0 if the options are good; a status + 1 where the program ends. */
static int read_options(int argc, char **argv, options *o)
{
    const zf_options all[TABLES] = {{.rows = plan_rows, .desc = o},
                                    {.rows = zf_block_mask_options(), .desc = &o->blocks},
                                    {.rows = zf_training_options(), .desc = &o->t}};
    named_files files = {.count = 0};
    zf_training t;
    zf_error error;
    int ends;
    *o = (options){.t.precision.dtype = NOT_GIVEN, .cost = zf_cost_default()};
    for (int k = 1; k < argc; k++)
        if (!strcmp(argv[k], "--help")) return help(all, k + 1 < argc ? argv[k + 1] : NULL) + 1;
    if (zf_options_take(all, TABLES, &argc, argv, &error)) return misuse("%s", error.text) + 1;
    if (argc > 1) return misuse("'%s' is no option", argv[1]) + 1;
    if (o->deepspeed_keys) return zf_deepspeed_keys(stdout), GOOD + 1;
    if ((ends = read_deepspeed(o))) return ends;
    settle_defaults(o);
    if (zf_options_check(all, TABLES, true, &error)) return misuse("%s", error.text) + 1;
    files_add_options(&files, all, TABLES);
    if (!files_apart(&files, &error)) return misuse("%s", error.text) + 1;
    if (zf_block_mask_text(&o->blocks, o->attention, sizeof o->attention) >= sizeof o->attention)
        return misuse("--attention has more than %d characters", ZF_CONFIG_LAYOUT - 1) + 1;
    if (o->fit && *o->attention) return misuse("--attention and --fit exclude each other") + 1;
    t = o->t;
    zf_options_resolve(all, TABLES);
    o->t = t;
    if (!o->t.zero.micro_batches) o->t.zero.micro_batches = 1;
    if (o->hidden % o->heads)
        return misuse("--heads must divide --hidden, %lld, not be %lld", (long long)o->hidden,
                      (long long)o->heads) +
               1;
    return settle_nodes(o);
}

/* ---------------------------------------------------------------------------------- layouts */

static void print_layout_of(const zf_block_mask *mask, int64_t head)
{
    const zf_block_mask_info info = zf_block_mask_info_of(mask);
    if (info.layouts > 1) printf("head %lld\n", (long long)head);
    for (int64_t row = 0; row < info.blocks; row++) {
        for (int64_t column = 0; column < info.blocks; column++)
            putchar(zf_block_mask_sees(mask, head, row, column) ? '#' : '.');
        putchar('\n');
    }
}

/* Prints the layout of --attention, of each head if they differ. */
static int print_layout(const options *o)
{
    zf_block_mask_desc d = {.tokens = o->seq, .heads = o->heads, .causal = o->gpt != 0};
    char text[ZF_CONFIG_LAYOUT];
    zf_error error;
    zf_block_mask *mask = NULL;
    zf_block_mask_info info;
    memcpy(text, o->attention, sizeof text);
    if (!zf_block_mask_parse(text, &d, &error)) mask = zf_block_mask_new(&d, &error);
    if (!mask) {
        fprintf(stderr, "zf-plan: %s\n", error.text);
        return BAD;
    }
    info = zf_block_mask_info_of(mask);
    for (int64_t head = 0; head < info.layouts; head++) print_layout_of(mask, head);
    printf("%lld of %lld blocks of %lld tokens, %.1f%%\n", (long long)info.seen,
           (long long)(info.layouts * info.blocks * info.blocks), (long long)info.block,
           100 * (double)info.seen / (double)(info.layouts * info.blocks * info.blocks));
    zf_block_mask_free(mask);
    return GOOD;
}

/* ---------------------------------------------------------------- models: those of the samples */

static zf_tensor build_gpt(zf_graph *g, const options *o)
{
    gpt_config c = {.vocab = o->vocab,
                    .positions = o->seq,
                    .hidden = o->hidden,
                    .layers = o->layers,
                    .heads = o->heads,
                    .intermediate = 4 * o->hidden,
                    .activation = ZF_ACTIVATION_GELU_TANH,
                    .eps = 1e-5,
                    .embedding_dropout = 0.1,
                    .attention_dropout = 0.1,
                    .residual_dropout = 0.1,
                    .std = 0.02,
                    .tied = 1};
    memcpy(c.layout, o->attention, sizeof c.layout);
    return gpt_build(g, &c, &(sample_shape){.batch = o->batch, .sequence = o->seq}, SAMPLE_TRAIN);
}

static zf_tensor build_bert(zf_graph *g, const options *o)
{
    bert_config c = {.vocab = o->vocab,
                     .hidden = o->hidden,
                     .layers = o->layers,
                     .heads = o->heads,
                     .intermediate = 4 * o->hidden,
                     .positions = o->seq > 512 ? o->seq : 512,
                     .types = 2,
                     .eps = 1e-12,
                     .dropout = 0.1,
                     .attention_dropout = 0.1,
                     .std = 0.02,
                     .pad = -1,
                     .tied = 1,
                     .nsp = 1};
    sample_shape s = {.batch = o->batch,
                      .sequence = o->seq,
                      .predictions = o->batch * ((o->seq * 20 + 127) / 128)};
    memcpy(c.layout, o->attention, sizeof c.layout);
    return bert_build(g, &c, &s, false).loss;
}

/* ----------------------------------------------------------------------------------- the plan */

typedef struct meter {
    size_t bytes, peak; /* bytes of the graph now, and at most */
} meter;

static void *metered(void *user, void *ptr, size_t old_size, size_t new_size)
{
    meter *m = user;
    void *block = NULL;
    if (!new_size) free(ptr);
    else if (!(block = realloc(ptr, new_size))) return NULL;
    m->bytes += new_size - old_size;
    if (m->bytes > m->peak) m->peak = m->bytes;
    return block;
}

typedef struct result {
    zf_plan plan;
    zf_work work; /* sum over all operators */
    zf_estimate estimate;
    double plain_seconds; /* of a step of plain_of, estimated; 0: it is the same */
    meter meter;
    double plan_ms;
} result;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* Runs the passes, from the loss to a verified plan. */
static zf_status run_passes(zf_graph *g, zf_tensor loss, const options *o, result *r)
{
    double start = now_ms();
    zf_training t = o->t;
    t.loss = loss;
    t.zero.world = (int32_t)o->world, t.zero.nodes = (int32_t)o->nodes, t.zero.mics = o->mics != 0;
    t.prefetch.keep_gathered = t.prefetch.bytes > 0;
    t.memory_limit = (size_t)o->memory;
    t.cost = o->cost_file ? &o->cost : NULL;
    zf_passes(g, &t);
    zf_memory(g, NULL);
    r->plan_ms = now_ms() - start;
    if (zf_graph_work(g, ZF_OP_none, &r->work) || zf_graph_estimate(g, &o->cost, &r->estimate))
        return zf_graph_status(g);
    return zf_graph_plan(g, &r->plan);
}

/* Plans the graph of the options; false with the graph's error. */
static bool plan_of(const options *o, result *r, char error[512])
{
    zf_graph *g;
    bool good;
    *r = (result){.plan_ms = 0};
    g = zf_graph_new(&(zf_graph_desc){.allocator = {metered, &r->meter}});
    good = g && !run_passes(g, o->gpt ? build_gpt(g, o) : build_bert(g, o), o, r);
    snprintf(error, 512, "%s", g ? zf_graph_error(g) : "out of memory");
    zf_graph_free(g);
    /* Names of a graph that is freed */
    for (int k = 0; k < ZF_SPACES; k++)
        r->plan.spaces[k].peak_op = r->plan.spaces[k].peak_scope = "";
    return good;
}

/* The options with all that makes ranks send less left out; false: they have none of it. */
static bool plain_of(const options *o, options *plain)
{
    const zf_zero_desc *zero = &o->t.zero;
    *plain = *o;
    plain->mics = 0;
    plain->t.zero = (zf_zero_desc){.stage = zero->stage,
                                   .micro_batches = zero->micro_batches,
                                   .bucket_bytes = zero->bucket_bytes};
    return o->mics || zero->hpz || zero->quantized_weights || zero->quantized_gradients;
}

/* ----------------------------------------------------------------------------------- printing */

static const struct {
    const char *name;
    size_t at; /* in zf_traffic */
} movements[] = {
    {"all_gather", offsetof(zf_traffic, all_gather)},
    {"reduce_scatter", offsetof(zf_traffic, reduce_scatter)},
    {"all_reduce", offsetof(zf_traffic, all_reduce)},
    {"all_to_all", offsetof(zf_traffic, all_to_all)},
    {"broadcast", offsetof(zf_traffic, bcast)},
    {"send", offsetof(zf_traffic, send)},
    {"download", offsetof(zf_traffic, download)},
    {"upload", offsetof(zf_traffic, upload)},
    {"read", offsetof(zf_traffic, read)},
    {"write", offsetof(zf_traffic, write)},
};

enum { MOVEMENTS = sizeof movements / sizeof movements[0] };

static zf_moved moved(const zf_plan *plan, int k)
{
    return *(const zf_moved *)(const void *)((const char *)&plan->traffic + movements[k].at);
}

static const char *precision(const options *o) { return zf_dtype_name(o->t.precision.dtype); }

/* Maximum of NCCL's memory on a rank's device, in addition to the plan: zeroflow.h,
 * zf_nccl_desc.ctas, with its defaults: 16 blocks, 32 MiB of staging, three channels. */
static double nccl_bytes(const options *o)
{
    const double mib = 1 << 20;
    return o->world < 2 ? 0 : 3 * (32 + 2) * mib + 3.0 * 16 * (double)o->world * 12 * mib;
}

/* Prints the bytes of a rank in a space. */
static void print_space(const options *o, zf_space space, const zf_space_plan *plan)
{
    char title[32], most[32], then[32];
    if (space != ZF_DEVICE && !plan->peak_bytes) return;
    snprintf(title, sizeof title, "%sbytes of %s", space == ZF_DEVICE ? "" : "\n",
             space == ZF_DEVICE ? "a rank" : zf_space_name(space));
    printf("%-*s%14s%14s\n", space == ZF_DEVICE ? 16 : 17, title, "at most", "at the peak");
    for (int k = 0; k < ZF_KINDS; k++)
        if (space == ZF_DEVICE || plan->most[k])
            printf("%-16s%14s%14s\n", zf_kind_name((zf_kind)k), human(most, (double)plan->most[k]),
                   human(then, (double)plan->at_peak[k]));
    printf("%-16s%14s%14s", "peak", human(most, (double)plan->peak_bytes),
           human(then, (double)plan->live_bytes));
    if (*plan->peak_op) printf("   at %%%d %s", (int)plan->peak_node, plan->peak_op);
    printf("%s%s\n", *plan->peak_scope ? " in " : "", plan->peak_scope);
    if (o->world > 1 && space == ZF_DEVICE)
        printf("%-16s%14s                 NCCL's own buffers, where ranks are GPUs\n",
               "not in the plan", human(most, nccl_bytes(o)));
}

static void print_estimate(const options *o, const result *r)
{
    const zf_estimate *e = &r->estimate;
    printf("\n%-16s%14s%14s   by %s%s\n", "seconds", "busy", "exposed",
           o->cost_file ? o->cost_file : "the default cost table",
           o->cost_file ? "" : " (--cost FILE)");
    for (int k = 0; k < ZF_RESOURCES; k++)
        if (e->busy[k] > 0)
            printf("%-16s%14.4g%14.4g\n", zf_resource_name((zf_resource)k), e->busy[k],
                   e->exposed[k]);
    printf("%-16s%14s%14.4g\n", "a step", "", e->seconds);
    if (r->plain_seconds > 0)
        printf("%-16s%14s%14.4g   without hpz, mics and quantisation; %.4g s (%.1f%%) are saved\n",
               "plain ZeRO", "", r->plain_seconds, r->plain_seconds - e->seconds,
               100 * (1 - e->seconds / r->plain_seconds));
}

/* Prints what of the bytes to other ranks is no number of a parameter or gradient. */
static void print_overhead(const options *o, const char *name, const zf_moved *of)
{
    char text[32];
    if (!of->bytes) return;
    printf("%-16s%14s%14s", name, "", human(text, (double)of->bytes));
    if (o->nodes > 1) {
        printf("%14s", human(text, (double)(of->bytes - of->between)));
        printf("%14s", human(text, (double)of->between));
    }
    printf("\n");
}

static void print_table(const options *o, const result *r)
{
    const zf_plan *plan = &r->plan;
    char most[32];
    printf("%s: %lld layers of %lld, %lld heads, vocabulary %lld, %lld x %lld tokens, %s, %s\n",
           o->gpt ? "GPT" : "BERT", (long long)o->layers, (long long)o->hidden, (long long)o->heads,
           (long long)o->vocab, (long long)o->batch, (long long)o->seq, precision(o),
           zf_optimizer_name(o->t.optimizer));
    printf("%lld parameters, %lld with padding; stage %lld, %lld ranks",
           (long long)plan->parameter_count, (long long)plan->padded_count,
           (long long)o->t.zero.stage, (long long)o->world);
    if (o->nodes > 1) printf(" in %lld nodes", (long long)o->nodes);
    printf(", %lld micro-batches\n\n", (long long)o->t.zero.micro_batches);
    for (int space = 0; space < ZF_SPACES; space++)
        print_space(o, (zf_space)space, &plan->spaces[space]);
    if (plan->loco_bytes)
        printf("%-16s%14s                 of optimizer: errors of quantised gradients\n", "loco",
               human(most, (double)plan->loco_bytes));
    printf("\n%-16s%14s%14s%s\n", "moved in a step", "calls", "bytes",
           o->nodes > 1 ? "  inside nodes between nodes" : "");
    for (int k = 0; k < MOVEMENTS; k++) {
        zf_moved m = moved(plan, k);
        if (!m.calls) continue;
        printf("%-16s%14lld%14s", movements[k].name, (long long)m.calls,
               human(most, (double)m.bytes));
        if (o->nodes > 1) {
            printf("%14s", human(most, (double)(m.bytes - m.between)));
            printf("%14s", human(most, (double)m.between));
        }
        printf("\n");
    }
    print_overhead(o, "of it scales", &plan->scales);
    print_overhead(o, "of it padding", &plan->padding);
    print_estimate(o, r);
    printf("\n%s read and written in a step, by %lld launches; %.4g FLOPs",
           human(most, r->work.bytes), (long long)r->work.launches, plan->flops);
    if (o->t.recompute.mode || o->t.recompute.bytes)
        printf(" and %.4g more (%.1f%%) recomputed", plan->recomputed_flops,
               100 * plan->recomputed_flops / plan->flops);
    printf(", %d nodes, planned in %.1f ms and %s\n", (int)plan->nodes, r->plan_ms,
           human(most, (double)r->meter.peak));
}

static void put_bytes(zf_json_writer *w, const char *key, size_t bytes)
{
    zf_json_put_key(w, key);
    zf_json_put_int(w, (int64_t)bytes);
}

/* Writes the work of each operator that has any; their sum is under "work". */
static void put_work(zf_json_writer *w, zf_graph *g, const zf_work *all)
{
    for (int op = -1; op < (int)ZF_OP_COUNT; op++) {
        zf_work of = *all;
        if (op == 0) zf_json_put_key(w, "operators"), zf_json_begin_object(w);
        if (op >= 0 && (op == ZF_OP_none || zf_graph_work(g, (zf_op)op, &of) || !of.launches))
            continue;
        zf_json_put_key(w, op < 0 ? "work" : zf_op_name((zf_op)op));
        zf_json_begin_object(w);
        zf_json_put_key(w, "launches"), zf_json_put_int(w, of.launches);
        zf_json_put_key(w, "bytes"), zf_json_put_double(w, of.bytes);
        zf_json_put_key(w, "flops"), zf_json_put_double(w, of.flops);
        zf_json_end(w);
    }
    zf_json_end(w);
}

/* The description by which a step has variants. */
static zf_training varying(const options *o)
{
    zf_training t = o->t;
    t.loss = (zf_tensor){NULL, 1};
    return t;
}

static void put_options(zf_json_writer *w, const options *o)
{
    const struct {
        const char *key;
        int64_t value;
    } rows[] = {{"layers", o->layers}, {"hidden", o->hidden}, {"heads", o->heads},
                {"vocab", o->vocab},   {"seq", o->seq},       {"batch", o->batch},
                {"world", o->world},   {"zero", o->t.zero.stage},
                {"micro_batches", o->t.zero.micro_batches}};
    zf_json_put_key(w, "model"), zf_json_put_string(w, o->gpt ? "gpt" : "bert");
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
        zf_json_put_key(w, rows[k].key), zf_json_put_int(w, rows[k].value);
    zf_json_put_key(w, "precision"), zf_json_put_string(w, precision(o));
    zf_json_put_key(w, "optimizer"), zf_json_put_string(w, zf_optimizer_name(o->t.optimizer));
    if (o->variants > 1) {
        const zf_training t = varying(o);
        zf_json_put_key(w, "variant"), zf_json_put_string(w, zf_variant_name(&t, o->t.variant));
    }
}

/* The bytes at the peak of a space, and where it is. */
static void put_peak(zf_json_writer *w, const zf_space_plan *plan)
{
    zf_json_put_key(w, "at_peak");
    zf_json_begin_object(w);
    for (int k = 0; k < ZF_KINDS; k++) put_bytes(w, zf_kind_name((zf_kind)k), plan->at_peak[k]);
    zf_json_put_key(w, "node"), zf_json_put_int(w, plan->peak_node);
    zf_json_put_key(w, "operator"), zf_json_put_string(w, plan->peak_op);
    zf_json_put_key(w, "scope"), zf_json_put_string(w, plan->peak_scope);
    zf_json_end(w);
}

static void put_spaces(zf_json_writer *w, const zf_plan *plan)
{
    zf_json_put_key(w, "spaces");
    zf_json_begin_object(w);
    for (int space = 0; space < ZF_SPACES; space++) {
        const zf_space_plan *s = &plan->spaces[space];
        zf_json_put_key(w, zf_space_name((zf_space)space));
        zf_json_begin_object(w);
        for (int k = 0; k < ZF_KINDS; k++) put_bytes(w, zf_kind_name((zf_kind)k), s->most[k]);
        put_bytes(w, "peak", s->peak_bytes);
        put_bytes(w, "live", s->live_bytes);
        put_peak(w, s);
        zf_json_end(w);
    }
    zf_json_end(w);
}

static void put_estimate(zf_json_writer *w, const zf_estimate *e)
{
    zf_json_put_key(w, "estimate");
    zf_json_begin_object(w);
    zf_json_put_key(w, "seconds"), zf_json_put_double(w, e->seconds);
    for (int exposed = 0; exposed < 2; exposed++) {
        zf_json_put_key(w, exposed ? "exposed" : "busy");
        zf_json_begin_object(w);
        for (int k = 0; k < ZF_RESOURCES; k++) {
            zf_json_put_key(w, zf_resource_name((zf_resource)k));
            zf_json_put_double(w, exposed ? e->exposed[k] : e->busy[k]);
        }
        zf_json_end(w);
    }
    zf_json_end(w);
}

static int print_json(const options *o, zf_graph *g, const result *r)
{
    const zf_plan *plan = &r->plan;
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_error error = {ZF_OK, ""};
    const char *text;
    zf_json_begin_object(w);
    put_options(w, o);
    for (int k = 0; k < ZF_KINDS; k++) put_bytes(w, zf_kind_name((zf_kind)k), plan->most[k]);
    put_bytes(w, "peak", plan->peak_bytes);
    put_bytes(w, "live", plan->live_bytes);
    put_bytes(w, "nccl_at_most", (size_t)nccl_bytes(o));
    put_peak(w, &plan->spaces[ZF_DEVICE]);
    put_spaces(w, plan);
    for (int calls = 0; calls < 2; calls++) {
        zf_json_put_key(w, calls ? "calls" : "traffic");
        zf_json_begin_object(w);
        for (int k = 0; k < MOVEMENTS; k++)
            put_bytes(w, movements[k].name,
                      calls ? (size_t)moved(plan, k).calls : moved(plan, k).bytes);
        zf_json_end(w);
    }
    if (o->nodes > 1) {
        zf_json_put_key(w, "between_nodes");
        zf_json_begin_object(w);
        for (int k = 0; k < MOVEMENTS; k++)
            put_bytes(w, movements[k].name, moved(plan, k).between);
        zf_json_end(w);
    }
    put_bytes(w, "scales", plan->scales.bytes);
    put_bytes(w, "padding", plan->padding.bytes);
    put_bytes(w, "scales_between_nodes", plan->scales.between);
    put_bytes(w, "padding_between_nodes", plan->padding.between);
    put_bytes(w, "loco", plan->loco_bytes);
    put_work(w, g, &r->work);
    zf_json_put_key(w, "flops"), zf_json_put_double(w, plan->flops);
    zf_json_put_key(w, "recomputed_flops"), zf_json_put_double(w, plan->recomputed_flops);
    put_estimate(w, &r->estimate);
    if (r->plain_seconds > 0)
        zf_json_put_key(w, "plain_seconds"), zf_json_put_double(w, r->plain_seconds);
    zf_json_put_key(w, "parameter_count"), zf_json_put_int(w, plan->parameter_count);
    zf_json_put_key(w, "padded_count"), zf_json_put_int(w, plan->padded_count);
    zf_json_put_key(w, "nodes"), zf_json_put_int(w, plan->nodes);
    zf_json_put_key(w, "plan_ms"), zf_json_put_double(w, r->plan_ms);
    put_bytes(w, "plan_peak_bytes", r->meter.peak);
    zf_json_end(w);
    if ((text = zf_json_text(w, NULL, &error))) puts(text);
    else fprintf(stderr, "zf-plan: %s\n", error.text);
    zf_json_writer_free(w);
    return text ? GOOD : BAD;
}

/* --------------------------------------------------------------------------- the largest models */

enum { MOST_WAYS = 4 * 7 };

/* A way to train: stage and offload of a row of the table. */
typedef struct way {
    int64_t stage;
    zf_offload_desc offload;
} way;

/* A row: the largest model for a way, and its plan; layers 0: none fits. */
typedef struct fitted {
    options o;
    result r;
    char error[512]; /* the error of the smallest model, if none fits */
} fitted;

static int64_t within(const options *o, int space)
{
    return space == ZF_DEVICE ? o->device : space == ZF_HOST ? o->host : o->disk;
}

/* The largest share of a space that the plan takes: at most 1 where the plan fits. */
static double share_of(const options *o, const zf_plan *plan)
{
    double most = 0;
    for (int k = 0; k < ZF_SPACES; k++) {
        const double bytes = (double)plan->spaces[k].peak_bytes;
        const double share = bytes > 0 ? bytes / (double)within(o, k) : 0;
        if (share > most) most = share;
    }
    return most;
}

/* Plans the model with so many layers and heads; returns the share, INFINITY where there is no
 * plan. */
static double try_size(fitted *f, int64_t layers, int64_t heads)
{
    fitted t = *f;
    double share;
    t.o.layers = layers, t.o.heads = heads;
    t.o.hidden = heads * (t.o.gpt ? 128 : 64);
    share = plan_of(&t.o, &t.r, t.error) ? share_of(&t.o, &t.r.plan) : INFINITY;
    if (share <= 1) *f = t;
    else if (!f->o.layers) memcpy(f->error, t.error, sizeof f->error);
    return share;
}

/* The largest n in [from, end) with try(n) <= 1, if try(from - 1) <= 1 or is unknown: bisection,
 * guided by bytes that grow with the `power` of n. */
static void search(fitted *f, int64_t heads, int64_t from, int64_t end, double power)
{
    int64_t at = heads ? from : from + (end < 16 ? 0 : 15);
    while (from < end) {
        const double share = try_size(f, at, heads ? heads : at);
        double next = (double)at * pow(1 / share, 1 / power);
        if (share <= 1) from = at + 1;
        else end = at;
        at = next < (double)end ? (int64_t)next : end - 1;
        if (at < from) at = from;
    }
}

/* The largest model of the family. */
static fitted largest(const options *o, bool gpt, const way *w)
{
    enum { MOST = 4096 };
    fitted f = {.o = *o};
    f.o.gpt = gpt, f.o.t.zero.stage = (int32_t)w->stage, f.o.t.offload = w->offload, f.o.layers = 0;
    if (!f.o.vocab) f.o.vocab = gpt ? 50257 : 30522;
    if (!f.o.seq) f.o.seq = gpt ? 1024 : 512;
    search(&f, 0, 1, MOST, 3);
    if (f.o.layers) search(&f, f.o.heads, f.o.layers + 1, 2 * f.o.layers + 2, 1);
    return f;
}

/* "stage 3, optimizer=disk,parameters=disk" */
static const char *way_name(const options *o, const way *w, char text[128])
{
    const zf_choice placed = {.offload = w->offload};
    const bool plain = !w->offload.optimizer && !w->offload.parameters;
    int at = o->world > 1 ? snprintf(text, 128, "stage %lld", (long long)w->stage)
                          : snprintf(text, 128, plain ? "plain memory" : "one rank");
    if (!plain) {
        at += snprintf(text + at, 128 - (size_t)at, ", ");
        zf_choice_text(&placed, text + at, 128 - (size_t)at);
    }
    return text;
}

/* The ways that the spaces allow; of one rank all stages are the same. */
static int list_ways(const options *o, way ways[MOST_WAYS])
{
    int count = 0;
    for (int64_t stage = 0; stage < (o->world > 1 ? 4 : 1); stage++) {
        const bool whole = stage != 1 && stage != 2; /* else parameters stay on the device */
        ways[count++] = (way){stage, {.optimizer = ZF_DEVICE}};
        for (zf_space space = ZF_HOST; space <= ZF_DISK; space++) {
            zf_offload_desc d = {.optimizer = space};
            if (!o->host || (space == ZF_DISK && !o->disk)) continue;
            ways[count++] = (way){stage, d};
            if (whole) d.parameters = space, ways[count++] = (way){stage, d};
            d.gradients = d.activations = space;
            ways[count++] = (way){stage, d};
        }
    }
    return count;
}

static void put_fitted(zf_json_writer *w, const fitted *f, const char *name)
{
    zf_json_begin_object(w);
    zf_json_put_key(w, "way"), zf_json_put_string(w, name);
    put_options(w, &f->o);
    put_bytes(w, "parameters", (size_t)f->r.plan.parameter_count);
    for (int k = 0; k < ZF_SPACES; k++)
        put_bytes(w, zf_space_name((zf_space)k), f->r.plan.spaces[k].peak_bytes);
    zf_json_put_key(w, "seconds"), zf_json_put_double(w, f->r.estimate.seconds);
    zf_json_end(w);
}

static void print_fitted(const fitted *f, const char *name)
{
    char bytes[ZF_SPACES][32];
    printf("%-4s  %-74s", f->o.gpt ? "GPT" : "BERT", name);
    if (!f->o.layers) {
        printf("none: %s\n", *f->error ? f->error : "the smallest does not fit");
        return;
    }
    for (int k = 0; k < ZF_SPACES; k++) human(bytes[k], (double)f->r.plan.spaces[k].peak_bytes);
    printf("%10.4gB%8lld%8lld%12s%12s%12s%11.4g\n", (double)f->r.plan.parameter_count / 1e9,
           (long long)f->o.layers, (long long)f->o.hidden, bytes[0], bytes[1], bytes[2],
           f->r.estimate.seconds);
}

/* Prints a row for each model and way, each as soon as it is found. */
static int print_fit(const options *o)
{
    zf_json_writer *w = o->json ? zf_json_writer_new(2, NULL) : NULL;
    zf_error error = {ZF_OK, ""};
    const char *text = "";
    way ways[MOST_WAYS];
    const int count = list_ways(o, ways);
    if (w) zf_json_begin_object(w), zf_json_put_key(w, "fit"), zf_json_begin_array(w);
    else
        printf("%-4s  %-74s%11s%8s%8s%12s%12s%12s%11s\n", "", "", "parameters", "layers", "width",
               "device", "host", "disk", "seconds");
    for (int n = 0; n < 2 * count; n++) {
        const way *v = &ways[n % count];
        const fitted f = largest(o, n < count, v);
        char name[128];
        way_name(o, v, name);
        if (w) put_fitted(w, &f, name);
        else print_fitted(&f, name);
        fflush(stdout);
    }
    if (w) {
        zf_json_end(w), zf_json_end(w);
        if ((text = zf_json_text(w, NULL, &error))) puts(text);
        else fprintf(stderr, "zf-plan: %s\n", error.text);
        zf_json_writer_free(w);
    }
    return text ? GOOD : BAD;
}

/* The name of the file of a variant. */
static const char *variant_file(char name[1024], const options *o, const char *file)
{
    snprintf(name, 1024, o->t.variant ? "%s.%d" : "%s", file, (int)o->t.variant + 1);
    return name;
}

static zf_status write_page(const options *o, zf_graph *g, const char *title, zf_error *error)
{
    char name[1024], text[2000] = "";
    zf_report *r = zf_report_new(title, NULL);
    zf_status status = r ? zf_report_plan(r, g, &o->cost, NULL) : ZF_ERR_NOMEM;
    if (status) snprintf(error->text, sizeof error->text, "%s", zf_status_name(status));
    zf_options_text(&(zf_options){.rows = zf_training_options(), .desc = (void *)&o->t}, 1, text,
                    sizeof text);
    zf_report_fact(r, "model", title, NULL), zf_report_fact(r, "passes", text, NULL);
    if (!status) status = zf_report_save(r, variant_file(name, o, o->html), error);
    zf_report_free(r);
    return status;
}

/* Draws the plan where --svg asks for it, and writes the page of --html. */
static int draw_variant(const options *o, zf_graph *g)
{
    char name[1024], title[160];
    written w;
    zf_error error = {ZF_OK, ""};
    zf_status status = ZF_ERR_NOMEM;
    snprintf(title, sizeof title, "%s of %lld layers, %lld wide, batch %lld, rank 0 of %lld",
             o->gpt ? "GPT" : "BERT", (long long)o->layers, (long long)o->hidden,
             (long long)o->batch, (long long)o->world);
    if (o->html && write_page(o, g, title, &error)) {
        fprintf(stderr, "zf-plan: --html: %s\n", error.text);
        return BAD;
    }
    if (!o->svg) return GOOD;
    written_open(&w, variant_file(name, o, o->svg));
    if (w.file) status = picture_plan_svg(g, &o->cost, title, w.file);
    if (written_close(&w, !status, &error)) return GOOD;
    fprintf(stderr, "zf-plan: %s\n", *error.text ? error.text : zf_status_name(status));
    return BAD;
}

/* The plan of one variant of the step. */
static int print_variant(const options *o)
{
    result r = {.plan_ms = 0};
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = {metered, &r.meter}});
    zf_tensor loss = o->gpt ? build_gpt(g, o) : build_bert(g, o);
    int end = GOOD;
    if (!g || run_passes(g, loss, o, &r)) {
        fprintf(stderr, "zf-plan: %s\n", g ? zf_graph_error(g) : "out of memory");
        end = BAD;
    } else {
        options plain;
        result other;
        char why[512];
        if (plain_of(o, &plain) && plan_of(&plain, &other, why))
            r.plain_seconds = other.estimate.seconds;
        if (o->json) end = print_json(o, g, &r);
        else print_table(o, &r);
        if (draw_variant(o, g)) end = BAD;
        if (zf_plan_fits(g, (size_t)o->memory)) {
            fflush(stdout);
            fprintf(stderr, "zf-plan: %s\n", zf_graph_error(g));
            end = BAD;
        }
    }
    zf_graph_free(g);
    return end;
}

static int plan_step(int argc, char **argv)
{
    options o;
    zf_training t;
    zf_error error = {ZF_OK, ""};
    int end = read_options(argc, argv, &o);
    if (end) return end - 1;
    if (o.layout) return print_layout(&o);
    t = varying(&o);
    o.t.variant = 0, o.variants = zf_variant_count(&t);
    if (o.cost_file && zf_cost_read(o.cost_file, &o.cost, NULL, &error)) {
        fprintf(stderr, "zf-plan: %s\n", error.text);
        return BAD;
    }
    if (o.fit) return print_fit(&o);
    for (; o.t.variant < o.variants && !end; o.t.variant++) {
        if (o.json && o.variants > 1) puts(o.t.variant ? "," : "[");
        else if (o.variants > 1)
            printf("%svariant %d of %d: %s\n", o.t.variant ? "\n" : "", (int)o.t.variant + 1,
                   (int)o.variants, zf_variant_name(&t, o.t.variant));
        end = print_variant(&o);
    }
    if (o.json && o.variants > 1 && !end) puts("]");
    return end;
}

static int close_output(int end)
{
    const bool failed = ferror(stdout);
    if ((!fclose(stdout) && !failed) || end) return end;
    fprintf(stderr, "zf-plan: cannot write: %s\n", strerror(errno));
    return BAD;
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file that becomes too large is an error of the write */
    if (argc > 1 && !strcmp(argv[1], "rlhf"))
        return close_output(rlhf_plan_command(&llm_sample, argc - 1, argv + 1));
    return close_output(plan_step(argc, argv));
}
