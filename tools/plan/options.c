/* The command line of zf-plan: its tables, --help, defaults and rules. */
#include "plan.h"
#include "../../examples/frame/options/files.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { GOOD, MISUSED = 2 }; /* exit status */

#define MODELS                 "bert|gpt"
#define ROW(kind, member, ...) ZF_OPTION(options, kind, member, __VA_ARGS__)
#define BASIC                  .traits = ZF_OPTION_BASIC
#define MANY                   "[1,1048576]"

static const zf_option plan_rows[] = {
    ROW(TEXT, config, 0, NULL, .unit = "FILE", .topic = "model", .with = "!fit",
        .traits = ZF_OPTION_BASIC | ZF_OPTION_READS,
        .help = "config.json of a model that bert, gpt, opt or llm reads, or a folder with one"),
    ROW(CHOICE, gpt, 0, MODELS, .flag = "model", BASIC, .with = "!config",
        .help = "the architecture, where there is no --config"),
    ROW(COUNT, layers, 12, "[1,65536]", BASIC, .with = "!config", .help = "number of blocks"),
    ROW(COUNT, hidden, 768, MANY, BASIC, .with = "!config", .help = "width of the model"),
    ROW(COUNT, heads, 12, "[1,65536]", BASIC, .with = "!config", .help = "attention heads"),
    ROW(NUMBER, dropout, -1, "[0,1)", .unit = "P",
        .help = "dropout; without it that of --config, else 0.1"),
    ROW(COUNT, vocab, 0, "[2,1073741824]", BASIC, .with = "!config",
        .help = "rows of the word embedding (30522 of BERT, 50257 of GPT)"),
    ROW(COUNT, seq, 0, MANY, BASIC, .help = "tokens of a sequence (128 of BERT, else 1024)"),
    ROW(COUNT, batch, 0, MANY, BASIC, .help = "sequences of a micro-batch on one rank (8)"),
    ROW(FLAG, layout, 0, NULL, .with = "attention",
        .help = "print the layout of --attention, # where a block is seen, and no plan"),
    ROW(TEXTS, phase, 0, NULL, .unit = "seq=T,batch=B,steps=N", .topic = "phases",
        .with = "!fit, !search, !curriculum",
        .help =
            "so many steps with this length and batch of all ranks, as in a run; several follow "
            "one another"),
    ROW(DESC, curriculum, 0, NULL, .rows = curriculum_rows, .flag = "curriculum",
        .with = "!fit, !search", .help = "short sequences first, which grow to --seq tokens"),
    ROW(CHOICE, recipe, 0, "off|bert44", .with = "!fit, !search, !config",
        .help = "the phases and the optimizer of BERT in 44 minutes"),
    ROW(COUNT, steps, 1000, "[1,1000000000000]", .with = "curriculum|recipe",
        .help = "steps in all"),
    ROW(COUNT, world, 1, MANY, .topic = "ranks", BASIC, .help = "ranks"),
    ROW(TEXT, schedule_name, 0, NULL, .unit = "1f1b|gpipe|interleaved=V|zb-h1|zb-v",
        .flag = "schedule", BASIC,
        .help = "the order of micro-batches on the stages of --pipe; 1f1b"),
    ROW(FLAG, picture, 0, NULL, .help = "draw the schedule also where it is wider than a screen"),
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
    ROW(FLAG, search, 0, NULL, BASIC, .with = "device, !fit",
        .help = "print the ten layouts of --world ranks that train the model in the least time, of "
                "those that fit --device: ranks along tensor and pipe, stage, micro-batches, "
                "recomputation, unless these are given. By default in bf16"),
    ROW(COUNT, examples, 0, MANY, .unit = "N", .flag = "global-batch",
        .with = "search|phase|curriculum|recipe", BASIC,
        .help = "sequences of a step over all ranks; without it two of each rank, or of --phase as "
                "many as --batch says"),
    ROW(BYTES, link, 0, NULL,
        .help = "bytes a second between ranks of a node, in place of --cost's"),
    ROW(BYTES, between, 0, NULL,
        .help = "bytes a second between nodes for each rank, in place of --cost's"),
    ROW(BYTES, device, 0, NULL, BASIC, .with = "fit|search", .help = "memory of a rank's device"),
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
    zf_error error = {ZF_OK, ""};
    fputs("Usage: zf-plan [OPTION]...\n"
          "Print what a training step takes on each of N ranks: bytes by kind, bytes sent, and "
          "FLOPs.\n"
          "The model is that of --config FILE, or a BERT or GPT of given sizes, by default "
          "BERT-base\n"
          "or GPT-2 small. 'zf-plan rlhf --help' is about training on rewards of a model's own "
          "answers.\n\n",
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
    const bool large = o->fit || o->search;
    if (!o->batch) o->batch = large ? 1 : 8;
    o->given_precision = o->t.precision.dtype != NOT_GIVEN;
    if (!o->given_precision) o->t.precision.dtype = large ? ZF_BF16 : ZF_F32;
    if (!o->examples && o->search) o->examples = 2 * (o->world ? o->world : 1);
    o->given_pipe = o->t.stages.ranks, o->given_micro_batches = o->t.zero.micro_batches;
    if (o->fit && !o->t.recompute.mode && !o->t.recompute.bytes)
        o->t.recompute.mode = ZF_RECOMPUTE_LAYERS;
    if (o->fit || o->config) return;
    if (!o->vocab) o->vocab = o->gpt ? 50257 : 30522;
    if (!o->seq) o->seq = o->gpt ? 1024 : 128;
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

/* The schedule by its name; "interleaved=4" has four chunks on each rank. */
static bool settle_schedule(options *o)
{
    const char *const text = o->schedule_name ? o->schedule_name : "1f1b", *name;
    const size_t length = strcspn(text, "=");
    char *end = NULL;
    o->schedule =
        (zf_pipe){.ranks = (int32_t)o->pipe, .micro_batches = (int32_t)o->t.zero.micro_batches};
    for (int k = 0; (name = zf_pipe_kind_name((zf_pipe_kind)k)); k++)
        if (strlen(name) == length && !memcmp(name, text, length)) break;
        else o->schedule.kind = (zf_pipe_kind)(k + 1);
    if (name && text[length]) {
        const long chunks = strtol(text + length + 1, &end, 10);
        if (o->schedule.kind != ZF_PIPE_INTERLEAVED || *end || chunks < 2 || chunks > 32766)
            return false;
        o->schedule.chunks = (int32_t)chunks;
    }
    if (!o->schedule.chunks)
        o->schedule.chunks =
            o->schedule.kind == ZF_PIPE_INTERLEAVED || o->schedule.kind == ZF_PIPE_ZB_V ? 2 : 1;
    return name != NULL;
}

/* Neighbours along data that share experts; a status + 1 where they cannot. */
static int settle_experts(const options *o)
{
    const int32_t ranks = o->t.expert > 1 ? o->t.expert : 1,
                  sections = o->t.sections.expert > ranks ? o->t.sections.expert : ranks;
    if (sections > 1 && o->fit)
        return misuse("--expert is of a layout that is given: without --fit") + 1;
    if (sections % ranks)
        return misuse("--sections expert=%d is no multiple of --expert %d", (int)sections,
                      (int)ranks) +
               1;
    if (!o->search && o->data % sections)
        return misuse("--expert and its sections, %d, must divide the %lld ranks along data",
                      (int)sections, (long long)o->data) +
               1;
    return 0;
}

/* The ranks along each axis; a status + 1 where the world is not their product. */
static int settle_axes(options *o)
{
    const int64_t pipe = o->t.stages.ranks > 1 ? o->t.stages.ranks : 1,
                  tensor = o->t.tensor > 1 ? o->t.tensor : 1,
                  context = o->t.context > 1 ? o->t.context : 1, sharing = tensor * context * pipe;
    zf_error error = {ZF_OK, ""};
    o->pipe = pipe, o->tensor = tensor, o->context = context, o->data = o->world / sharing;
    if (!o->t.stages.ranks && ((o->schedule_name && !o->search) || o->picture))
        return misuse("--schedule and --picture are of the stages of --pipe P") + 1;
    if (o->t.order)
        return misuse("--order is for runs: plans take pipe for the slowest axis and tensor for the "
                      "fastest") +
               1;
    if (!settle_schedule(o))
        return misuse("--schedule takes 1f1b, gpipe, interleaved=V, zb-h1 or zb-v, with V of 2 or "
                      "more, not '%s'",
                      o->schedule_name) +
               1;
    if (o->fit && sharing > 1)
        return misuse("--fit plans ranks that have all layers whole: without --tensor, --context "
                      "and --pipe") +
               1;
    if ((o->pipe > 1 || o->search) && (o->svg || o->html))
        return misuse("--svg and --html are of a rank that has all layers: without --pipe and "
                      "--search") +
               1;
    if (o->search && settle_experts(o)) return settle_experts(o);
    if (o->search && context > 1)
        return misuse("--search finds ranks along tensor and pipe: without --context") + 1;
    if (o->search) return 0; /* which finds them */
    if (o->data * sharing != o->world)
        return misuse("--world %lld is no multiple of --tensor %lld times --context %lld times "
                      "--pipe %lld: what is left of it are the ranks along data",
                      (long long)o->world, (long long)tensor, (long long)context,
                      (long long)o->pipe) +
               1;
    if (o->heads % tensor)
        return misuse("--tensor %lld does not divide the model's %lld heads", (long long)tensor,
                      (long long)o->heads) +
               1;
    if (o->t.sections.tensor % (int32_t)tensor)
        return misuse("--sections tensor=%d is no multiple of --tensor %lld",
                      (int)o->t.sections.tensor, (long long)tensor) +
               1;
    if (settle_experts(o)) return settle_experts(o);
    if (o->pipe > 1 && !zf_pipe_text(&o->schedule, NULL, 0, &error))
        return misuse("%s", error.text) + 1;
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
    zf_deepspeed d = {
        .world = o->world, .version = o->deepspeed_version, .loose = o->deepspeed_loose};
    zf_error error = {ZF_OK, ""};
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

int plan_read_options(int argc, char **argv, options *o)
{
    const zf_options all[TABLES] = {{.rows = plan_rows, .desc = o},
                                    {.rows = zf_block_mask_options(), .desc = &o->blocks},
                                    {.rows = zf_training_options(), .desc = &o->t}};
    named_files files = {.count = 0};
    zf_training t;
    zf_error error = {ZF_OK, ""};
    int ends;
    *o = (options){.t.precision.dtype = NOT_GIVEN, .cost = zf_cost_default()};
    for (int k = 1; k < argc; k++)
        if (!strcmp(argv[k], "--help")) return help(all, k + 1 < argc ? argv[k + 1] : NULL) + 1;
    if (zf_options_take(all, TABLES, &argc, argv, &error)) return misuse("%s", error.text) + 1;
    if (argc > 1) return misuse("'%s' is no option", argv[1]) + 1;
    if (o->deepspeed_keys) return zf_deepspeed_keys(stdout), GOOD + 1;
    if ((ends = read_deepspeed(o))) return ends;
    if (!plan_curriculum_ends(o))
        return misuse("--curriculum needs steps=N, after which its length is max") + 1;
    if (!plan_recipe(o, all, TABLES, &error)) return misuse("%s", error.text) + 1;
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
    if (!plan_config(o, &error)) return misuse("%s", error.text) + 1;
    if (!o->config && o->hidden % o->heads)
        return misuse("--heads must divide --hidden, %lld, not be %lld", (long long)o->hidden,
                      (long long)o->heads) +
               1;
    return (ends = settle_nodes(o)) ? ends : settle_axes(o);
}

zf_training plan_varying(const options *o)
{
    zf_training t = o->t;
    t.loss = (zf_tensor){NULL, 1};
    return t;
}
