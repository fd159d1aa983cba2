/* zf-plan: the memory, traffic and time of training a BERT or GPT on each of N ranks, without
 * running it.
 *
 *     build/zf-plan --model gpt --layers 36 --hidden 4096 --heads 32 --world 64 --zero 2 \
 *                   --precision bf16 --memory 32G
 *
 * Builds the graph of one training step, runs the passes of a rank over it, and prints the plan. It
 * allocates only the graph. */
#define _GNU_SOURCE /* getopt_long, clock_gettime */
#include "../examples/bert/model.h"
#include "../examples/frame/model/settings.h"
#include "../examples/frame/run/training.h"
#include "../examples/gpt/model.h"
#include "picture.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GOOD, BAD, MISUSED }; /* exit status */

typedef struct options {
    bool gpt, json, prefetches;
    zf_optimizer optimizer;
    int32_t variant, variants; /* of the step */
    int64_t layers, hidden, heads, vocab, seq, batch, world, nodes, mics, zero, micro_batches;
    int64_t ranks_per_node; /* the same as nodes; 0: not given */
    bool hpz, quantized_weights, quantized_gradients, loco;
    int64_t quantized_block, loco_bits, local_step_clipper;
    int64_t prefetch, memory, bucket, recompute, tile;
    zf_recompute_mode recomputes; /* limited by `recompute` bytes */
    double clip;
    zf_dtype dtype;
    const char *no_fuse;   /* zf_fuse_desc.without, or all; NULL: nothing */
    const char *cost_file; /* may be NULL */
    const char *svg;       /* a picture of the plan; NULL: none */
    zf_cost cost;          /* its contents, or the default */
    zf_offload_desc offload;
    bool fit; /* finds the largest models within these bytes of each space; 0: none */
    int64_t within[ZF_SPACES];
} options;

static void usage(FILE *out)
{
    fputs(
        "Usage: zf-plan [OPTION]...\n"
        "Print what a training step of a BERT or GPT takes on each of N ranks: bytes by kind,\n"
        "bytes sent, and FLOPs. Sizes that are not given are those of BERT-base or GPT-2\n"
        "small.\n"
        "\n"
        "  --model=bert|gpt       the architecture (bert)\n"
        "  --layers=N             blocks (12)\n"
        "  --hidden=N             width (768)\n"
        "  --heads=N              attention heads (12)\n"
        "  --vocab=N              rows of the word embedding (30522, 50257)\n"
        "  --seq=N                tokens of a sequence (128, 1024)\n"
        "  --batch=N              sequences of a micro-batch on one rank (8)\n"
        "  --micro-batches=N      of a step on each rank (1)\n"
        "  --world=N              ranks (1)\n"
        "  --nodes=M              in which the ranks are, as many in each (1)\n"
        "  --ranks-per-node=Z     the same, by the ranks in each\n"
        "  --zero=0|1|2|3         ZeRO stage (0)\n"
        "  --zero-hpz             stage 3: nodes keep parameters for the backward pass\n"
        "  --zero-quantized-weights    stage 3: ranks send parameters as integers of 8 bits\n"
        "  --zero-quantized-gradients  stages 1 to 3: and gradients as integers of 4 bits\n"
        "  --zero-loco            and what this rounds off is kept for the next gradient\n"
        "  --loco-bits=8|32       of what is kept (32)\n"
        "  --quantized-block=N    of these integers that share a scale (256)\n"
        "  --mics=Z               shard over the Z ranks of a node alone\n"
        "  --precision=f32|bf16|f16\n"
        "                         of parameters, activations and gradients (f32)\n"
        "  --optimizer=NAME       adamw, lamb, sgd, lion, onebit_adam, zero_one_adam or onebit_lamb\n"
        "                         (adamw); where a step has several variants, each has a plan\n"
        "  --local-step-clipper=N of zero_one_adam: the longest interval of local steps (16); 1:\n"
        "                         there are none, as stages 1 and 2 need\n"
        "  --clip=NORM            clip gradients by their global norm\n"
        "  --no-fuse=NAME,...     rewrites of zf_fuse that are left out, or all\n"
        "  --recompute=off|layers|BYTES  recompute values in the backward pass: those inside\n"
        "                         each layer, or as needed for a peak of BYTES (off)\n"
        "  --bucket=BYTES         size of the buckets in which parameters move (that of a block)\n"
        "  --tile=BYTES           linear layers whose weights take more run in pieces (off)\n"
        "  --offload=KIND=SPACE,...  where values lie: optimizer, parameters, gradients or\n"
        "                         activations, =host or =disk; and piece=BYTES of a copy of\n"
        "                         states while they are updated (off, piece=16M of a disk)\n"
        "  --prefetch=BYTES       in flight: of parameters gathered ahead, of gradients being\n"
        "                         reduced, and of copies between spaces\n"
        "  --cost=FILE            rates of a machine, its link and its disk (zf_cost_read), by\n"
        "                         which the time of a step is estimated and --prefetch planned\n"
        "  --memory=BYTES         of a rank: the status is 1 when the plan does not fit\n"
        "  --fit                  print the largest models that train on each rank within\n"
        "  --device=BYTES         bytes of its device,\n"
        "  --host=BYTES           of host memory and\n"
        "  --disk=BYTES           of a disk (each: none), in plain memory, at each stage and with\n"
        "                         each kind of offload. Sizes grow by these rules: GPT of N "
        "layers\n"
        "                         is 128 N wide, with N heads (GPT-3: 96), BERT 64 N wide with N\n"
        "                         heads (BERT-base: 12); then layers are added as far as they\n"
        "                         fit. By default in bf16, with a batch of 1 and --recompute\n"
        "                         layers. Each row is a plan\n"
        "  --json                 print JSON\n"
        "  --svg=FILE             draw bytes over the step, and what its queues do over time; further\n"
        "                         variants in FILE.2, FILE.3, ...\n"
        "  --help                 print this and exit\n"
        "\n"
        "BYTES may end in K, M, G or T: 2^10, 2^20, 2^30 or 2^40. The scratch of kernels, which\n"
        "depends on the machine, is not in the plan.\n"
        "The exit status is 0 if there is a plan, 1 if there is none, 2 for bad usage.\n",
        out);
}

/* ---------------------------------------------------------------------------------- options */

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

/* An integer in [least, most]; with `units` it may end in K, M, G or T. */
static bool number(const char *name, const char *text, bool units, int64_t least, int64_t most,
                   int64_t *out)
{
    static const char suffixes[] = "KMGT";
    const char *suffix;
    char *end;
    long long value;
    int shift = 0;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (units && *end && (suffix = strchr(suffixes, *end))) {
        shift = 10 * (int)(suffix - suffixes + 1);
        end++;
    }
    if (end == text || *end || errno || value < 0 || value > most >> shift ||
        value << shift < least) {
        misuse("--%s must be a whole number from %lld to %lld%s, not '%s'", name, (long long)least,
               (long long)most, units ? ", in bytes" : "", text);
        return false;
    }
    *out = value << shift;
    return true;
}

/* The index of `text` in the two names. */
static bool choice(const char *name, const char *text, const char *first, const char *second,
                   bool *is_second)
{
    *is_second = !strcmp(text, second);
    if (*is_second || !strcmp(text, first)) return true;
    misuse("--%s must be %s or %s, not '%s'", name, first, second, text);
    return false;
}

static bool norm(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (end != text && !*end && *out > 0 && *out < 1e30) return true;
    misuse("--clip must be a number above 0, not '%s'", text);
    return false;
}

static bool precision_of(const char *text, zf_dtype *out)
{
    for (int dtype = ZF_F32; dtype <= ZF_F16; dtype++)
        if (!strcmp(text, zf_dtype_name((zf_dtype)dtype))) return *out = (zf_dtype)dtype, true;
    misuse("--precision must be f32, bf16 or f16, not '%s'", text);
    return false;
}

static bool optimizer_of(const char *text, zf_optimizer *out)
{
    const char *name;
    for (int k = 0; (name = zf_optimizer_name((zf_optimizer)k)); k++)
        if (!strcmp(text, name)) return *out = (zf_optimizer)k, true;
    misuse("--optimizer is one of %s, not '%s'", training_optimizers(), text);
    return false;
}

/* off, layers or bytes */
static bool recomputation(const char *text, options *o)
{
    o->recomputes = !strcmp(text, "layers") ? ZF_RECOMPUTE_LAYERS : ZF_RECOMPUTE_OFF;
    if (o->recomputes || !strcmp(text, "off")) return true;
    o->recomputes = ZF_RECOMPUTE_AS_NEEDED;
    if (*text >= '0' && *text <= '9')
        return number("recompute", text, true, 1, INT64_MAX / 2, &o->recompute);
    misuse("--recompute must be off, layers or a number of bytes, not '%s'", text);
    return false;
}

/* Sets defaults that depend on --fit and the model. */
static void settle_defaults(options *o)
{
    if (!o->batch) o->batch = o->fit ? 1 : 8;
    if ((int)o->dtype < 0) o->dtype = o->fit ? ZF_BF16 : ZF_F32;
    if ((int)o->recomputes < 0) o->recomputes = o->fit ? ZF_RECOMPUTE_LAYERS : ZF_RECOMPUTE_OFF;
    if (!o->fit && !o->vocab) o->vocab = o->gpt ? 50257 : 30522;
    if (!o->fit && !o->seq) o->seq = o->gpt ? 1024 : 128;
}

/* Returns 0 if the options are good; a status + 1 where the program ends. */
static int read_options(int argc, char **argv, options *o)
{
    static const struct option names[] = {
        {"model", required_argument, NULL, 'm'},
        {"layers", required_argument, NULL, 'l'},
        {"hidden", required_argument, NULL, 'h'},
        {"heads", required_argument, NULL, 'a'},
        {"vocab", required_argument, NULL, 'v'},
        {"seq", required_argument, NULL, 's'},
        {"batch", required_argument, NULL, 'b'},
        {"micro-batches", required_argument, NULL, 'k'},
        {"nodes", required_argument, NULL, 'N'},
        {"mics", required_argument, NULL, 'M'},
        {"ranks-per-node", required_argument, NULL, 'R'},
        {"zero-hpz", no_argument, NULL, 'H'},
        {"zero-quantized-weights", no_argument, NULL, 'W'},
        {"zero-quantized-gradients", no_argument, NULL, 'G'},
        {"zero-loco", no_argument, NULL, 'L'},
        {"loco-bits", required_argument, NULL, 'B'},
        {"quantized-block", required_argument, NULL, 'Q'},
        {"world", required_argument, NULL, 'n'},
        {"zero", required_argument, NULL, 'z'},
        {"precision", required_argument, NULL, 'p'},
        {"optimizer", required_argument, NULL, 'o'},
        {"local-step-clipper", required_argument, NULL, 'C'},
        {"clip", required_argument, NULL, 'c'},
        {"no-fuse", required_argument, NULL, 'F'},
        {"recompute", required_argument, NULL, 'r'},
        {"bucket", required_argument, NULL, 'u'},
        {"tile", required_argument, NULL, 'x'},
        {"offload", required_argument, NULL, 'w'},
        {"prefetch", required_argument, NULL, 'f'},
        {"memory", required_argument, NULL, 'y'},
        {"cost", required_argument, NULL, 't'},
        {"fit", no_argument, NULL, 'i'},
        {"device", required_argument, NULL, 'd'},
        {"host", required_argument, NULL, 'e'},
        {"disk", required_argument, NULL, 'g'},
        {"json", no_argument, NULL, 'j'},
        {"svg", required_argument, NULL, 'S'},
        {"help", no_argument, NULL, '?' + 1},
        {NULL, 0, NULL, 0},
    };
    enum { MANY = 1 << 20 };
    bool good = true;
    int option, index = 0;
    *o = (options){.layers = 12,
                   .hidden = 768,
                   .heads = 12,
                   .world = 1,
                   .micro_batches = 1,
                   .dtype = (zf_dtype)-1,
                   .recomputes = (zf_recompute_mode)-1,
                   .cost = zf_cost_default()};
    while (good && (option = getopt_long(argc, argv, "", names, &index)) != -1) {
        const char *name = names[index].name, *text = optarg;
        switch (option) {
        case 'm': good = choice(name, text, "bert", "gpt", &o->gpt); break;
        case 'l': good = number(name, text, false, 1, 1 << 16, &o->layers); break;
        case 'h': good = number(name, text, false, 1, MANY, &o->hidden); break;
        case 'a': good = number(name, text, false, 1, 1 << 16, &o->heads); break;
        case 'v': good = number(name, text, false, 2, 1 << 30, &o->vocab); break;
        case 's': good = number(name, text, false, 1, MANY, &o->seq); break;
        case 'b': good = number(name, text, false, 1, MANY, &o->batch); break;
        case 'k': good = number(name, text, false, 1, MANY, &o->micro_batches); break;
        case 'n': good = number(name, text, false, 1, MANY, &o->world); break;
        case 'N': good = number(name, text, false, 1, MANY, &o->nodes); break;
        case 'M': good = number(name, text, false, 1, MANY, &o->mics); break;
        case 'R': good = number(name, text, false, 1, MANY, &o->ranks_per_node); break;
        case 'H': o->hpz = true; break;
        case 'W': o->quantized_weights = true; break;
        case 'G': o->quantized_gradients = true; break;
        case 'L': o->loco = true; break;
        case 'B': good = number(name, text, false, 8, 32, &o->loco_bits); break;
        case 'Q': good = number(name, text, false, 64, 2048, &o->quantized_block); break;
        case 'z': good = number(name, text, false, 0, 3, &o->zero); break;
        case 'p': good = precision_of(text, &o->dtype); break;
        case 'o': good = optimizer_of(text, &o->optimizer); break;
        case 'C': good = number(name, text, false, 1, MANY, &o->local_step_clipper); break;
        case 'c': good = norm(text, &o->clip); break;
        case 'x': good = number(name, text, true, 1, INT64_MAX / 2, &o->tile); break;
        case 'u': good = number(name, text, true, 1, INT64_MAX / 2, &o->bucket); break;
        case 'f':
            good = o->prefetches = number(name, text, true, 0, INT64_MAX / 2, &o->prefetch);
            break;
        case 'y': good = number(name, text, true, 1, INT64_MAX / 2, &o->memory); break;
        case 'w':
            if (!(good = settings_offload(text, &o->offload))) misuse("%s", SETTINGS_OFFLOAD);
            break;
        case 't': o->cost_file = text; break;
        case 'F': o->no_fuse = text; break;
        case 'r': good = recomputation(text, o); break;
        case 'i': o->fit = true; break;
        case 'd': good = number(name, text, true, 1, INT64_MAX / 2, &o->within[ZF_DEVICE]); break;
        case 'e': good = number(name, text, true, 1, INT64_MAX / 2, &o->within[ZF_HOST]); break;
        case 'g': good = number(name, text, true, 1, INT64_MAX / 2, &o->within[ZF_DISK]); break;
        case 'S': o->svg = text; break;
        case 'j': o->json = true; break;
        case '?' + 1: usage(stdout); return GOOD + 1;
        default: fputs("Try 'zf-plan --help'.\n", stderr); return MISUSED + 1;
        }
    }
    if (!good) return MISUSED + 1;
    if (optind < argc) return misuse("'%s' is no option", argv[optind]) + 1;
    if (o->fit != (o->within[ZF_DEVICE] > 0))
        return misuse("--fit needs the bytes of a device, --device, which is for --fit alone") + 1;
    if (o->local_step_clipper && o->optimizer != ZF_ZERO_ONE_ADAM)
        return misuse("--local-step-clipper is for --optimizer zero_one_adam") + 1;
    settle_defaults(o);
    if (o->hidden % o->heads)
        return misuse("--heads must divide --hidden, %lld, not be %lld", (long long)o->hidden,
                      (long long)o->heads) +
               1;
    if (o->nodes && o->ranks_per_node)
        return misuse("--nodes and --ranks-per-node exclude each other") + 1;
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
    sample_shape s = {o->batch, o->seq, o->batch * ((o->seq * 20 + 127) / 128), false, 0};
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
    zf_passes(g, &(zf_training){.loss = loss,
                                .variant = o->variant,
                                .fuse.without = o->no_fuse,
                                .precision.dtype = o->dtype,
                                .tile.bytes = (size_t)o->tile,
                                .clip = o->clip,
                                .optimizer = o->optimizer,
                                .zero_one_adam.local_step_clipper = o->local_step_clipper,
                                .recompute = {o->recomputes, (size_t)o->recompute},
                                .zero = {.stage = (int32_t)o->zero,
                                         .world = (int32_t)o->world,
                                         .nodes = (int32_t)o->nodes,
                                         .hpz = o->hpz,
                                         .mics = o->mics != 0,
                                         .quantized_weights = o->quantized_weights,
                                         .quantized_gradients = o->quantized_gradients,
                                         .loco = o->loco,
                                         .loco_bits = (int32_t)o->loco_bits,
                                         .quantized_block = (int32_t)o->quantized_block,
                                         .micro_batches = o->micro_batches,
                                         .bucket_bytes = (size_t)o->bucket},
                                .offload = o->offload,
                                .prefetch = {(size_t)o->prefetch, .keep_gathered = o->prefetches},
                                .memory_limit = (size_t)o->memory,
                                .cost = o->cost_file ? &o->cost : NULL});
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
    *plain = *o;
    plain->mics = 0, plain->hpz = plain->quantized_weights = plain->quantized_gradients = false;
    plain->loco = false;
    return o->mics || o->hpz || o->quantized_weights || o->quantized_gradients;
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

static const char *precision(const options *o) { return zf_dtype_name(o->dtype); }

/* Maximum of NCCL's memory on a rank's device, beside the plan: zeroflow.h, zf_nccl_desc.ctas, with
 * its defaults: 16 blocks, 32 MiB of staging, three channels. */
static double nccl_bytes(const options *o)
{
    const double mib = 1 << 20;
    return o->world < 2 ? 0 : 3 * (32 + 2) * mib + 3.0 * 16 * (double)o->world * 12 * mib;
}

/* "12.34 GB" */
static const char *human(char text[32], double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    int unit = 0;
    for (; bytes >= 999.5 && unit < 6; unit++) bytes /= 1000;
    snprintf(text, 32, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return text;
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
        printf("%-16s%14s                 NCCL's own buffers, where ranks are GPUs\n", "beside it",
               human(most, nccl_bytes(o)));
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
           zf_optimizer_name(o->optimizer));
    printf("%lld parameters, %lld with padding; stage %lld, %lld ranks",
           (long long)plan->parameter_count, (long long)plan->padded_count, (long long)o->zero,
           (long long)o->world);
    if (o->nodes > 1) printf(" in %lld nodes", (long long)o->nodes);
    printf(", %lld micro-batches\n\n", (long long)o->micro_batches);
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
    if (o->recomputes)
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
    return (zf_training){.loss = {NULL, 1},
                         .optimizer = o->optimizer,
                         .zero_one_adam.local_step_clipper = o->local_step_clipper};
}

static void put_options(zf_json_writer *w, const options *o)
{
    const struct {
        const char *key;
        int64_t value;
    } rows[] = {{"layers", o->layers}, {"hidden", o->hidden}, {"heads", o->heads},
                {"vocab", o->vocab},   {"seq", o->seq},       {"batch", o->batch},
                {"world", o->world},   {"zero", o->zero},     {"micro_batches", o->micro_batches}};
    zf_json_put_key(w, "model"), zf_json_put_string(w, o->gpt ? "gpt" : "bert");
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
        zf_json_put_key(w, rows[k].key), zf_json_put_int(w, rows[k].value);
    zf_json_put_key(w, "precision"), zf_json_put_string(w, precision(o));
    zf_json_put_key(w, "optimizer"), zf_json_put_string(w, zf_optimizer_name(o->optimizer));
    if (o->variants > 1) {
        const zf_training t = varying(o);
        zf_json_put_key(w, "variant"), zf_json_put_string(w, zf_variant_name(&t, o->variant));
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

/* The largest share of a space that the plan takes: at most 1 where the plan fits. */
static double share_of(const options *o, const zf_plan *plan)
{
    double most = 0;
    for (int k = 0; k < ZF_SPACES; k++) {
        const double bytes = (double)plan->spaces[k].peak_bytes;
        const double share = bytes > 0 ? bytes / (double)o->within[k] : 0;
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
    f.o.gpt = gpt, f.o.zero = w->stage, f.o.offload = w->offload, f.o.layers = 0;
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
            if (!o->within[ZF_HOST] || (space == ZF_DISK && !o->within[ZF_DISK])) continue;
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

/* Draws the plan where --svg asks for it. */
static int draw_variant(const options *o, zf_graph *g)
{
    char name[1024], title[160];
    FILE *file;
    zf_status status = ZF_ERR_IO;
    if (!o->svg) return GOOD;
    snprintf(name, sizeof name, o->variant ? "%s.%d" : "%s", o->svg, (int)o->variant + 1);
    snprintf(title, sizeof title, "%s of %lld layers, %lld wide, batch %lld, rank 0 of %lld",
             o->gpt ? "GPT" : "BERT", (long long)o->layers, (long long)o->hidden,
             (long long)o->batch, (long long)o->world);
    if ((file = fopen(name, "w"))) status = picture_plan_svg(g, &o->cost, title, file);
    if (file && fclose(file) && !status) status = ZF_ERR_IO;
    if (!status) return GOOD;
    fprintf(stderr, "zf-plan: %s: %s\n", name,
            status == ZF_ERR_IO ? strerror(errno) : zf_status_name(status));
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

int main(int argc, char **argv)
{
    options o;
    zf_training t;
    zf_error error = {ZF_OK, ""};
    int end = read_options(argc, argv, &o);
    if (end) return end - 1;
    t = varying(&o);
    o.variant = 0, o.variants = zf_variant_count(&t);
    if (o.cost_file && zf_cost_read(o.cost_file, &o.cost, NULL, &error)) {
        fprintf(stderr, "zf-plan: %s\n", error.text);
        return BAD;
    }
    if (o.fit) return print_fit(&o);
    for (; o.variant < o.variants && !end; o.variant++) {
        if (o.json && o.variants > 1) puts(o.variant ? "," : "[");
        else if (o.variants > 1)
            printf("%svariant %d of %d: %s\n", o.variant ? "\n" : "", (int)o.variant + 1,
                   (int)o.variants, zf_variant_name(&t, o.variant));
        end = print_variant(&o);
    }
    if (o.json && o.variants > 1 && !end) puts("]");
    if (fclose(stdout) && !end) {
        fprintf(stderr, "zf-plan: cannot write: %s\n", strerror(errno));
        end = BAD;
    }
    return end;
}
