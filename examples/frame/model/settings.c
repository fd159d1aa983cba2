#include "settings.h"
#include "../../../zeroflow_llm.h"
#include "../options/fail.h"
#include "../options/processors.h"
#include "../ranks/ranks.h"
#include "sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- the tables */

#define CHANGES ZF_OPTION_CHANGES
#define LOCAL   ZF_OPTION_LOCAL
#define PATH    ZF_OPTION_PATH
#define BASIC   ZF_OPTION_BASIC
#define READS   ZF_OPTION_READS
#define WRITES  ZF_OPTION_WRITES
#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(settings, kind, member, default_, range, __VA_ARGS__)

/* Kinds of --schedule. */
#define OF_OURS  "schedule=constant|linear|cosine|polynomial|exponential|one_cycle"
#define OF_EVERY "cycle_lr|range_test_lr|exponential"
#define WARMUPS  "schedule=warmup_lr|warmup_decay_lr|warmup_cosine_lr"

static const zf_option device_rows[] = {
    ZF_OPTION(device_desc, CHOICE, kind, 0, DEVICE_KINDS, .flag = "device", .traits = BASIC,
              .help = "device that computes"),
    ZF_OPTION(device_desc, TEXT, tuning, 0, NULL, .unit = "FILE", .with = "kind=cuda|hip",
              .traits = LOCAL | WRITES,
              .help = "measure the fastest algorithms for matrix products, and keep them in this "
                      "file"),
    ZF_OPTION(device_desc, COUNT, spare, 0, "[0,1024]", .flag = "spare-processors",
              .with = "kind=cuda|hip",
              .help = "multiprocessors that matrix products leave free for communication"),
    {.name = NULL}};

/* What is trained, on what. */
static const zf_option data_rows[] = {
    ROW(TEXT, corpus, 0, NULL, .unit = "FILE", .topic = "data", .traits = PATH | READS | BASIC,
        .with = "vocab, !batch_file, !data",
        .help = "one sentence a line, a blank line between documents"),
    ROW(FLAG, pack, 0, NULL, .with = "corpus", .traits = CHANGES,
        .help = "a token sees its own document of --corpus alone, and its place in it"),
    ROW(TEXT, vocab, 0, NULL, .unit = "FILE|DIR", .traits = PATH | READS | BASIC,
        .help =
            "a vocab.txt, as 'bert vocab' makes it, a tokenizer.json, or a folder with one; else "
            "that of --load, --init or --model"),
    ROW(DESC, words, 0, NULL, .rows = tokenizing_rows),
    ROW(COUNT, seq, 128, "[1,65536]", .unit = "T", .traits = CHANGES | BASIC,
        .help = "tokens of an example"),
    ROW(COUNT, batch, 16, "[1,1048576]", .unit = "B", .traits = CHANGES | BASIC,
        .help = "examples of a step"),
    ROW(TEXT, batch_file, 0, NULL, .unit = "FILE", .traits = PATH | READS, .with = "!data",
        .help = "train on these batches (safetensors) instead"),
    ROW(COUNT, seed, 1, "[0,9000000000000000]", .traits = CHANGES,
        .help = "seed of parameters, dropout and examples"),
    {.name = NULL}};

/* The same, of objectives with examples (--data). */
static const zf_option examples_rows[] = {
    ROW(TEXT, data, 0, NULL, .unit = "FILE", .topic = "data", .traits = PATH | READS | BASIC,
        .with = "tokenizer",
        .help = "train on examples instead, JSON Lines of prompt and response, or of messages; "
                "labels are what the assistant has written"),
    ROW(TEXT, tokenizer, 0, NULL, .unit = "DIR", .traits = PATH | READS, .with = "data",
        .help = "tokenizer of --data: a folder with tokenizer.json and tokenizer_config.json, or "
                "vocab.txt; without this option that of --load, --init or --model"),
    ROW(TEXT, chat, 0, NULL, .unit = "STYLE|FILE", .traits = READS, .with = "data",
        .help = "how messages are written: " ZF_CHAT_STYLES_1 " " ZF_CHAT_STYLES_2
                "; FILE.jinja: a template; none: prompts and responses as they are; else as the "
                "tokenizer's chat_template says"),
    ROW(TEXT, chat_vars, 0, NULL, .unit = "JSON", .with = "data",
        .help = "variables of the template, as {\"enable_thinking\": false}"),
    ROW(TEXT, date, 0, NULL, .unit = "DAY", .with = "data",
        .help = "the day that the template shows; else \"" ZF_CHAT_DATE "\""),
    ROW(FLAG, alone, 0, NULL, .with = "data", .traits = CHANGES,
        .help = "each example of --data has a row of its own"),
    ROW(TEXT, adapter, 0, NULL, .unit = "DIR", .traits = PATH | READS | BASIC, .topic = "model",
        .with = "data|batch_file",
        .help = "go on with this adapter, of its rank, scale and targets; in place of --lora"),
    ROW(CHOICE, weights, 0, ZF_CONFIG_WEIGHTS, .with = "lora", .traits = CHANGES, .topic = "model",
        .help = "int8, int4: with --lora, the frozen weights of products, rounded in blocks of 64 "
                "(QLoRA)"),
    {.name = NULL}};

/* How it is trained, where, and what is written. */
static const zf_option run_rows[] = {
    ROW(TEXT, model, 0, NULL, .unit = "NAME|DIR|FILE", .topic = "model",
        .traits = LOCAL | READS | BASIC, .help = "the configuration of the model"),
    ROW(TEXT, init, 0, NULL, .unit = "DIR|FILE", .traits = PATH | READS | BASIC,
        .help = "start from the weights of a checkpoint or a Hugging Face folder; with --load it "
                "is read "
                "only where it has the base of an adapter (--lora)"),
    ROW(NUMBER, dropout, -1, "[0,1)", .unit = "P", .traits = CHANGES,
        .help = "probability; without this option that of the model's configuration"),
    ROW(TEXTS, phase, 0, NULL, .unit = "seq=T,batch=B,steps=N,lr=X,warmup=STEPS,end_lr=X,every=N",
        .topic = "phases", .with = "corpus, !seconds, !curriculum",
        .help =
            "so many steps with this length, batch and schedule of the learning rate; several are "
            "made one after the other. What is not given, but for the steps, is as --seq, "
            "--batch, --lr, --warmup and --end-lr say"),
    ROW(DESC, curriculum, 0, NULL, .rows = curriculum_rows, .flag = "curriculum",
        .with = "corpus, !seconds", .help = "short examples first, which grow to --seq tokens"),
    ROW(COUNT, steps, 1000, "[0,1000000000000]", .topic = "optimizer", .traits = BASIC,
        .with = "!phase", .help = "steps in all; 0 evaluates the loss, and saves"),
    ROW(NUMBER, seconds, 0, "[0,1000000000]", .unit = "S", .with = "!batch_file, !data",
        .help = "measure a step and run as many as fit, at least 200; 0: all --steps"),
    ROW(NUMBER, lr, 1e-3, "[0,1000]", .traits = CHANGES | BASIC, .help = "highest learning rate"),
    ROW(NUMBER, end_lr, 0, "[0,1000]", .traits = CHANGES,
        .help = "learning rate at the end of the schedule"),
    ROW(CHOICE, schedule, 1,
        "constant|linear|cosine|polynomial|exponential|one_cycle|warmup_lr|warmup_decay_lr|"
        "warmup_cosine_lr|cycle_lr|range_test_lr",
        .traits = CHANGES,
        .help = "learning rate after the warm-up; those in _lr are DeepSpeed's, with its formulas"),
    ROW(COUNT, warmup, -1, "[-1,1000000000000]", .unit = "STEPS", .traits = CHANGES,
        .help = "steps of warm-up; -1: a tenth of all"),
    ROW(COUNT, first_rate, 1, "[0,1]", .unit = "STEP", .traits = CHANGES, .with = OF_OURS,
        .help =
            "step of the schedule for the first step: 1, or 0 as in transformers, where a warm-up "
            "begins with rate 0"),
    ROW(NUMBER, start_lr, 0, "[0,1000]", .traits = CHANGES, .with = WARMUPS "|cycle_lr",
        .help =
            "learning rate at the beginning; of warmup_cosine_lr it and --end-lr are factors of "
            "--lr"),
    ROW(CHOICE, warmup_form, 0, "linear|log", .traits = CHANGES,
        .with = WARMUPS "|constant|linear|cosine|polynomial|exponential",
        .help = "form of the warm-up of N steps; log: step t has the share ln(t + 1)/ln(N)"),
    ROW(COUNT, schedule_steps, 0, "[0,1000000000000]", .traits = CHANGES,
        .with = "schedule=warmup_decay_lr|warmup_cosine_lr, !phase",
        .help = "steps of the schedule; 0: --steps"),
    ROW(COUNT, lr_fall, 0, "[0,1000000000000]", .unit = "STEPS", .traits = CHANGES,
        .with = "schedule=cycle_lr",
        .help = "steps in which the rate falls again; 0: as many as --warmup"),
    ROW(NUMBER, lr_rate, 0, "[0,1000000]", .traits = CHANGES, .with = "schedule=" OF_EVERY,
        .help =
            "change of the rate in --lr-every steps: its growth, or its decay after a cycle; of "
            "exponential the factor, 0: 0.9"),
    ROW(COUNT, lr_every, 0, "[0,1000000000000]", .unit = "STEPS", .traits = CHANGES,
        .with = "schedule=" OF_EVERY,
        .help = "steps of a change by --lr-rate; 0: no decay, or growth in 2000 "
                "steps; of exponential 1"),
    ROW(FLAG, lr_stairs, 0, NULL, .traits = CHANGES, .with = "schedule=range_test_lr",
        .help = "the rate grows in stairs"),
    ROW(DESC, device, 0, NULL, .rows = device_rows, .topic = "ranks"),
    ROW(COUNT, threads, 0, "[0,1024]", .traits = BASIC,
        .help =
            "worker threads of the process; 0: one for each processor that it may use, less where "
            "several processes share the host"),
    ROW(COUNT, ranks, 0, "[0,1024]", .traits = LOCAL | BASIC,
        .help = "ranks, as threads; 0: the processes that a launcher started, else 1"),
    ROW(TEXT, rendezvous, 0, NULL, .unit = "HOST:PORT|FILE", .traits = LOCAL,
        .with = "device.kind=cuda|hip",
        .help = "where processes with GPUs find one another; without this option MASTER_ADDR and "
                "MASTER_PORT say it. HOST:PORT#RUN names the run, as the launcher does otherwise"),
    ROW(COUNT, nodes, 0, "[0,1024]", .unit = "M",
        .help = "nodes, each with the same number of ranks; sums are made inside nodes first. 0: "
                "by --ranks-per-node or the launcher, otherwise 1"),
    ROW(COUNT, ranks_per_node, 0, "[0,1024]", .unit = "Z",
        .help = "ranks of each node, in place of --nodes"),
    ROW(COUNT, mics, 0, "[0,1024]", .unit = "Z", .with = "zero.stage=1|2|3, !zero.hpz",
        .help = "shard over the Z ranks of a node alone; each node has all shards (MiCS)"),
    ROW(TEXT, cost, 0, NULL, .unit = "FILE|measure", .traits = READS,
        .with = "prefetch.bytes|memory|report_html|trace",
        .help = "rates by which --prefetch is planned, --memory chooses, and --report-html and "
                "--trace estimate; measure: those of this machine"),
    ROW(TEXT, save_cost, 0, NULL, .unit = "FILE", .traits = LOCAL | WRITES, .with = "cost=measure",
        .help = "write the rates of --cost measure"),
    ROW(NUMBER, deadline, 60, "[0.001,1000000]", .unit = "SECONDS", .traits = LOCAL,
        .help = "maximum time that ranks wait for one another"),
    ROW(BYTES, memory, 0, NULL, .topic = "memory", .traits = BASIC,
        .help =
            "fit a step into these: what is recomputed, and with --offload-dir what goes to the "
            "disk, is chosen by the estimated time (--cost); of --device cuda the device's: what "
            "leaves it goes to host memory as well"),
    ROW(TEXT, offload_dir, 0, NULL, .unit = "DIR", .traits = LOCAL | READS,
        .help = "an existing folder for the files of --offload"),
    ROW(TEXT, save, 0, NULL, .unit = "DIR", .topic = "files", .traits = PATH | WRITES | BASIC,
        .help = "write a checkpoint at the end, and when interrupted"),
    ROW(COUNT, save_every, 0, "[0,1000000000000]", .with = "save",
        .help = "write a checkpoint every N steps as well; 0: not"),
    ROW(COUNT, keep, 2, "[1,1000]", .traits = LOCAL, .with = "save",
        .help = "checkpoints that stay: DIR, DIR.previous-1, ..."),
    ROW(FLAG, overwrite, 0, NULL, .traits = LOCAL, .with = "save",
        .help = "--save may replace another run's checkpoint"),
    ROW(TEXT, load, 0, NULL, .unit = "DIR", .traits = PATH | READS | BASIC,
        .help = "resume from a checkpoint"),
    ROW(COUNT, compare_every, 1000, "[0,1000000000000]",
        .help = "ranks compare their parameters every N steps, and at saves; 0: at saves only"),
    ROW(COUNT, eval_batches, 16, "[0,1000000]",
        .help = "held-out batches that are evaluated at the end"),
    ROW(COUNT, eval_every, 0, "[0,1000000000000]", .with = "corpus|data",
        .help = "evaluate held-out batches every N steps as well; the checkpoint with the lowest "
                "loss stays in DIR.best (--save)"),
    ROW(TEXT, log, 0, NULL, .unit = "FILE", .traits = LOCAL | WRITES | BASIC,
        .help = "write the steps as CSV; held-out losses are in a file next to it, log.eval.csv of "
                "log.csv"),
    ROW(TEXT, report_html, 0, NULL, .unit = "FILE", .traits = LOCAL | WRITES | BASIC,
        .help = "write a page about the run: what ran, curves, memory, queues, operators, traffic"),
    ROW(TEXT, trace, 0, NULL, .unit = "FILE[:steps=A-B]", .traits = LOCAL | WRITES,
        .help = "write when each node of the steps A to B ran, for Perfetto; without A-B two of "
                "the first steps"),
    ROW(TEXT, tensorboard, 0, NULL, .unit = "DIR", .traits = LOCAL | WRITES,
        .help = "write event files of TensorBoard into this folder"),
    ROW(CHOICE, tensorboard_names, 0, "hf|deepspeed", .with = "tensorboard", .traits = LOCAL,
        .help = "names in --tensorboard: as Hugging Face's Trainer over steps, or as DeepSpeed "
                "over samples"),
    ROW(TEXT, svg, 0, NULL, .unit = "FILE", .traits = LOCAL | WRITES,
        .help = "draw the loss curve"),
    ROW(TEXT, report, 0, NULL, .unit = "FILE", .traits = LOCAL | WRITES,
        .help = "write memory, speed, losses and all options as JSON"),
    ROW(TEXT, dump, 0, NULL, .unit = "FILE", .traits = PATH | WRITES, .with = "!lora",
        .help = "write the parameters after the last step in Hugging Face's format"),
    ROW(TEXT, dump_grads, 0, NULL, .unit = "FILE", .traits = PATH | WRITES,
        .with = "!lora, precision.dtype=f32|bf16",
        .help = "write the gradients of the last step, before clipping"),
    ROW(TEXT, deepspeed_config, 0, NULL, .unit = "FILE", .topic = "files",
        .traits = PATH | READS | BASIC,
        .help =
            "options by a configuration of DeepSpeed's; \"auto\" in it is the option given here"),
    ROW(TEXT, deepspeed_version, 0, NULL, .unit = "X.Y.Z", .with = "deepspeed_config",
        .help = "DeepSpeed's version whose defaults the configuration means"),
    ROW(FLAG, deepspeed_loose, 0, NULL, .traits = LOCAL, .with = "deepspeed_config",
        .help = "an unknown key in it is a warning"),
    ROW(FLAG, explain, 0, NULL, .traits = LOCAL,
        .help = "print each option, its value and where it is from"),
    ROW(FLAG, quiet, 0, NULL, .traits = LOCAL, .help = "print no progress line"),
    ROW(FLAG, check, 0, NULL, .traits = LOCAL, .help = "only check the options"),
    {.name = NULL}};

settings_tables settings_tables_of(settings *o, const sample_model *sample,
                                   const settings_desc *desc)
{
    const zf_options of[] = {
        {.rows = data_rows, .desc = o},
        {.rows = sample->objective->open_data ? examples_rows : NULL, .desc = o},
        desc->own,
        {.rows = run_rows, .desc = o},
        {.rows = zf_block_mask_options(), .desc = &o->blocks},
        {.rows = zf_layer_drop_options(), .desc = &o->layer_drop},
        {.rows = zf_training_options(), .desc = &o->training}};
    settings_tables t = {.count = 0};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++)
        if (of[k].rows) t.all[t.count++] = of[k];
    return t;
}

/* ------------------------------------------------------------------------------------- defaults */

static const settings_default all_defaults[] = {
    {"weight-decay", "0.01"}, {"clip", "1"}, {"momentum", "0.9"}, {NULL, NULL}};

static bool set_defaults(settings *o, const settings_tables *t, const settings_default *list,
                         zf_error *error)
{
    for (; list && list->option; list++) {
        char *text = o->defaults[o->default_count++];
        snprintf(text, sizeof o->defaults[0], "%s", list->text);
        if (zf_options_default(t->all, t->count, list->option, text, error)) return false;
    }
    return true;
}

/* Fills in the model and the vocabulary from a folder that other options name, if they are not
 * given, and with `tunes` --init from the model. */
static void look_into_folders(settings *o, const char *otherwise)
{
    const bool adapts = settings_adapts(o);
    /* A checkpoint of an adapter does not have the weights of its model. */
    const char *const folders[] = {adapts ? o->init : o->load, adapts ? o->model : o->init,
                                   adapts ? o->load : o->model};
    for (int i = 0; i < 3; i++) {
        if (!folders[i] || !zf_folder_is(folders[i])) continue;
        if (!o->model) o->model = folders[i];
        if (!o->vocab && o->corpus && zf_folder_has_vocab(folders[i])) o->vocab = folders[i];
        if (!o->tokenizer && o->data && zf_folder_has_vocab(folders[i])) o->tokenizer = folders[i];
    }
    if (!o->model) o->model = otherwise;
    if (o->tunes && !o->init && (!o->load || adapts) && zf_folder_has_weights(o->model))
        o->init = o->model;
}

/* ---------------------------------------------------------------------------------------- rules */

int64_t settings_micro_batches(const settings *o)
{
    return o->training.zero.micro_batches ? o->training.zero.micro_batches : 1;
}

bool settings_measures(const settings *o) { return o->cost && !strcmp(o->cost, "measure"); }

const char *settings_first(const settings *o)
{
    return o->init ? o->init : zf_folder_has_weights(o->model) ? o->model : NULL;
}

bool settings_adapts(const settings *o)
{
    return zf_training_resolved(&o->training).lora.rank != 0;
}

bool settings_offloads(const zf_offload_desc *d, zf_space space)
{
    return d->optimizer == space || d->parameters == space || d->gradients == space ||
           d->activations == space;
}

/* The options of a 1-bit optimizer that a run must choose: the library's defaults are for long
 * runs. */
static const char *wrong_onebit(const settings *o)
{
    const zf_training *t = &o->training;
    if ((t->optimizer == ZF_ONEBIT_ADAM && !t->onebit_adam.freeze_step) ||
        (t->optimizer == ZF_ONEBIT_LAMB && !t->onebit_lamb.freeze_step))
        return "--optimizer onebit_adam and onebit_lamb need --freeze-step N, the last step of the "
               "warm-up: 15 to 25% of all";
    if (t->optimizer == ZF_ZERO_ONE_ADAM && !t->zero_one_adam.var_freeze_step)
        return "--optimizer zero_one_adam needs --freeze-step N, the last step that may refresh "
               "the "
               "variance";
    if (t->zero.stage == 3 && (t->optimizer == ZF_ONEBIT_ADAM || t->optimizer == ZF_ONEBIT_LAMB ||
                               t->optimizer == ZF_ZERO_ONE_ADAM))
        return "--optimizer onebit_adam, onebit_lamb and zero_one_adam are for --zero 0, 1 and 2: "
               "each "
               "rank compresses the whole gradient";
    if (t->optimizer == ZF_ZERO_ONE_ADAM && t->zero.stage &&
        t->zero_one_adam.local_step_clipper != 1)
        return "--optimizer zero_one_adam makes local steps with all of what --zero 1 and 2 shard: "
               "give "
               "--local-step-clipper 1, which makes none, or --zero 0";
    return NULL;
}

/* What ranks that share layers or have some of them cannot do. */
static const char *wrong_axes(const settings *o)
{
    const zf_training *t = &o->training;
    const bool pipe = t->stages.ranks > 1;
    if (t->tensor > 1 && t->sections.tensor && t->sections.tensor % t->tensor)
        return "--sections tensor=S: S must be a multiple of --tensor";
    if (pipe && settings_micro_batches(o) < t->stages.ranks)
        return "--pipe P keeps P stages busy with --micro-batches of P or more";
    return NULL;
}

/* What ranks that share sequences cannot do yet. */
static const char *wrong_context(const settings *o)
{
    const zf_training *t = &o->training;
    if (t->context < 2 && t->sections.context < 2)
        return t->context_kind ? "--context-kind is for ranks that share sequences: --context C, or "
                             "--sections context=S"
                           : NULL;
    if (t->context > 1 && t->sections.context && t->sections.context % t->context)
        return "--sections context=S: S must be a multiple of --context";
    if (t->context_kind == ZF_CONTEXT_ZIGZAG && t->sequence && !strcmp(t->sequence, "tensor"))
        return "--sequence tensor excludes --context-kind zigzag, which deals halves: leave it out";
    return NULL;
}

/* What ranks that share experts cannot do yet. */
static const char *wrong_experts(const settings *o)
{
    const zf_training *t = &o->training;
    if (t->expert < 2 && t->sections.expert < 2) return NULL;
    if (t->expert > 1 && t->sections.expert && t->sections.expert % t->expert)
        return "--sections expert=S: S must be a multiple of --expert";
    return NULL;
}

/* What the tables do not say: options that are needed, or that contradict one another. */
static const char *wrong(const settings *o)
{
    const zf_training *t = &o->training;
    const bool disk = settings_offloads(&t->offload, ZF_DISK);
    if (!o->corpus && !o->batch_file && !o->data)
        return "a text to train on is needed: --corpus FILE, or batches: --batch-file FILE";
    if (settings_adapts(o) && !o->init)
        return "--lora adapts the weights of a folder: --init DIR, or of finetune, --model DIR";
    if (o->eval_every && !o->eval_batches)
        return "--eval-every evaluates what --corpus or --data holds out, in --eval-batches";
    if (o->mics && o->ranks_per_node && o->mics != o->ranks_per_node)
        return "--mics Z shards over the ranks of a node: --ranks-per-node must be Z as well";
    if (t->zero.loco && t->tile.bytes) return "--zero-loco and --tile exclude each other";
    if (o->memory ? disk && !o->offload_dir : disk != (o->offload_dir != NULL))
        return "--offload to disk and --offload-dir DIR, for its files, go together";
    if (t->offload.parameters && (t->zero.stage == 1 || t->zero.stage == 2))
        return "--offload parameters is for --zero 3, where each rank has a shard, or --zero 0";
    if (o->dump_grads && !o->steps) return "--dump-grads needs a step, and --steps 0 makes none";
    if (o->corpus && !o->steps && !o->eval_batches && !o->save)
        return "--steps 0 only evaluates, and --eval-batches 0 leaves nothing to evaluate";
    if (wrong_onebit(o)) return wrong_onebit(o);
    if (wrong_axes(o)) return wrong_axes(o);
    return wrong_context(o) ? wrong_context(o) : wrong_experts(o);
}

/* Resolves all but the description of the passes. */
static void resolve(settings *o, settings_tables *t)
{
    const zf_training training = o->training;
    zf_options_resolve(t->all, t->count);
    o->training = training;
    for (int32_t k = 0; k < t->count; k++) t->all[k].resolved = t->all[k].desc != &o->training;
    o->training.zero.mics = o->mics != 0;
}

#define NOT_GIVEN ZF_BOOL /* a dtype that --precision does not have */

/* --precision where it is not given: that of --load, else bf16 where the device multiplies it. */
static void choose_precision(settings *o)
{
    zf_dtype *dtype = &o->training.precision.dtype;
    if (*dtype != NOT_GIVEN) return;
    *dtype = o->load ? zf_folder_precision(o->load)
             : o->device.kind != DEVICE_CPU || processors_multiply_bf16() ? ZF_BF16
                                                                           : ZF_F32;
}

static bool refuse(zf_error *error, const char *text)
{
    return text && !fail(error, ZF_ERR_ARGUMENT, "%s", text);
}

/* Takes the options out of copies of the arguments. */
static bool take(settings *o, const settings_tables *t, int argc, char **argv, zf_error *error)
{
    size_t bytes = 0;
    char **copies = calloc((size_t)argc + 1, sizeof *copies), *at;
    int left = argc;
    bool good = false;
    for (int k = 0; k < argc; k++) bytes += strlen(argv[k]) + 1;
    at = o->arguments = malloc(bytes + 1);
    for (int k = 0; copies && at && k < argc; k++) {
        copies[k] = strcpy(at, argv[k]);
        at += strlen(at) + 1;
    }
    if (!copies || !at) fail(error, ZF_ERR_NOMEM, "out of memory");
    else good = !zf_options_take(t->all, t->count, &left, copies, error);
    if (good && left > 1)
        good = fail(error, ZF_ERR_ARGUMENT, "'%.100s' is one argument too many", copies[1]);
    free(copies);
    return good;
}

void settings_free(settings *o)
{
    free(o->arguments);
    zf_adapter_close(o->adapts);
    zf_deepspeed_free(&o->deepspeed);
    o->arguments = NULL, o->adapts = NULL;
}

/* --adapter describes what is trained; dropout is left out where the objective allows none. */
static bool take_adapter(settings *o, const objective *of, zf_error *error)
{
    if (!o->adapter) return true;
    if (settings_adapts(o))
        return fail(error, ZF_ERR_ARGUMENT,
                    "--adapter and --lora exclude each other: an adapter has "
                    "its rank, scale and targets");
    if (!(o->adapts = zf_adapter_open(o->adapter, error))) return false;
    o->training.lora = *zf_adapter_desc(o->adapts);
    if (of->no_dropout) o->training.lora.dropout = 0;
    return true;
}

bool settings_show(settings *o, const settings_tables *t, const settings_desc *desc,
                   zf_error *error)
{
    return set_defaults(o, t, desc->defaults, error) && set_defaults(o, t, all_defaults, error);
}

/* ----------------------------------------------------------------------- DeepSpeed, and origins */

static bool take_deepspeed(settings *o, const settings_tables *t, zf_error *error)
{
    if (!o->deepspeed_config) return true;
    o->deepspeed = (zf_deepspeed){.world = o->ranks ? o->ranks : rank_launch_of().world,
                                  .version = o->deepspeed_version,
                                  .loose = o->deepspeed_loose,
                                  .options = t->all,
                                  .option_count = t->count};
    return !zf_deepspeed_load(o->deepspeed_config, &o->training, &o->deepspeed, error);
}

/* Which options were given, in the order of zf_options_each. */
enum { OPTIONS = 512 };
typedef struct origins {
    const settings *of;
    const settings_default *chosen; /* settings_desc.choose; NULL: none */
    bool given[OPTIONS];
    int count;
} origins;

static void note_given(void *user, const zf_option_value *v)
{
    origins *o = user;
    if (o->count < OPTIONS) o->given[o->count++] = v->given;
}

static bool is_chosen(const settings_default *list, const char *flag)
{
    if (list && !strcmp(flag, "phase")) return true;
    while (list && list->option && strcmp(list->option, flag)) list++;
    return list && list->option;
}

/* Prints an option that is not of DeepSpeed's file. */
static void print_origin(void *user, const zf_option_value *v)
{
    origins *o = user;
    const bool given = o->count < OPTIONS && o->given[o->count++];
    char left[160];
    if (!v->has_effect || !v->flag) return;
    for (int32_t k = 0; k < o->of->deepspeed.count; k++)
        if (!strcmp(o->of->deepspeed.settings[k].option, v->path)) return;
    snprintf(left, sizeof left, "%s = %s", v->path, v->text);
    printf("%-46s %s\n", left,
           given                            ? "option"
           : is_chosen(o->chosen, v->flag) ? "recipe"
                                            : "default");
}

static void explain(const settings *o, const settings_tables *t, origins *given)
{
    if (!o->explain || rank_launch_of().rank) return;
    zf_deepspeed_explain(&o->deepspeed, stdout);
    given->count = 0;
    zf_options_each(t->all, t->count, print_origin, given);
}

void settings_tell(const settings *o)
{
    for (int32_t k = 0; k < o->deepspeed.count; k++) {
        const zf_deepspeed_setting *s = &o->deepspeed.settings[k];
        if (!s->warns) continue;
        printf("%s:", o->deepspeed.file);
        if (s->line) printf("%lld:", (long long)s->line);
        printf(" %s = %s: %s\n", s->key, s->value, s->words);
    }
}

/* The text of --attention, in which a 0 that was given still is one. */
static bool take_layout(settings *o, zf_error *error)
{
    return zf_block_mask_text(&o->blocks, o->attention, sizeof o->attention) <
               sizeof o->attention ||
           fail(error, ZF_ERR_ARGUMENT, "--attention has more than %d characters",
                (int)sizeof o->attention - 1);
}

/* --curriculum, as it was given, says after which steps it ends. */
static bool grows_to_an_end(const curriculum *c, zf_error *error)
{
    const bool given = c->min || c->max || c->round || c->schedule || c->root != 0;
    if (!given || c->steps || c->schedule == CURRICULUM_DISCRETE) return true;
    return fail(error, ZF_ERR_ARGUMENT,
                "--curriculum needs steps=N, after which its length is max");
}

zf_schedule settings_schedule(const settings *o)
{
    return (zf_schedule){.kind = (zf_schedule_kind)o->schedule,
                         .peak = o->lr,
                         .start = o->start_lr,
                         .end = o->end_lr,
                         .warmup = o->warmup,
                         .steps = o->schedule_steps ? o->schedule_steps : o->steps,
                         .rate = o->lr_rate,
                         .every = o->lr_every,
                         .fall = o->lr_fall,
                         .logarithmic = o->warmup_form == 1,
                         .stairs = o->lr_stairs,
                         .from_zero = !o->first_rate};
}

bool settings_read(settings *o, settings_tables *t, const sample_model *sample,
                   const settings_desc *desc, int argc, char **argv, zf_error *error)
{
    origins given = {.of = o};
    o->training.precision.dtype = NOT_GIVEN;
    if (!take(o, t, argc, argv, error)) return false;
    zf_options_each(t->all, t->count, note_given, &given);
    if (!take_deepspeed(o, t, error) || !take_adapter(o, sample->objective, error)) return false;
    o->tunes = desc->tunes, o->own = desc->own.desc;
    look_into_folders(o, sample->otherwise);
    choose_precision(o);
    if (desc->choose && !desc->choose(desc->own.desc, o, &given.chosen, error))
        return false;
    if (!set_defaults(o, t, given.chosen, error) || !set_defaults(o, t, desc->defaults, error) ||
        !set_defaults(o, t, all_defaults, error) ||
        zf_options_check(t->all, t->count, true, error))
        return false;
    explain(o, t, &given);
    if (!take_layout(o, error) || !grows_to_an_end(&o->curriculum, error)) return false;
    resolve(o, t);
    if (desc->complete) desc->complete(desc->own.desc, o);
    if (o->seq < sample->objective->least_sequence)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--seq takes a whole number from %lld to 65536, not '%lld'",
                    (long long)sample->objective->least_sequence, (long long)o->seq);
    if ((o->training.expert > 1 || o->training.sections.expert > 1) &&
        !sample->objective->shares_layers)
        return fail(error, ZF_ERR_ARGUMENT, "--expert is for pretrain and finetune");
    if (sample_sharing(&o->training) > 1 && !sample->objective->shares_layers)
        return fail(error, ZF_ERR_ARGUMENT, "--%s is for pretrain and finetune",
                    o->training.tensor > 1    ? "tensor"
                    : o->training.context > 1 ? "context"
                                              : "pipe");
    return !(sample->wrong && refuse(error, sample->wrong(o))) && !refuse(error, wrong(o));
}
