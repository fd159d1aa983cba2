/* The passes by name: a table that runs "NAME ARGUMENTS; NAME ARGUMENTS", and from which --help is
 * printed. */
#include "pass.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* One pass of the argument, and its state. */
typedef struct call {
    zf_graph *graph;
    const char *name;
    char *words[16]; /* after the name */
    int count;
    FILE *out;
    char *message;
    size_t size;
    pass_result result;
} call;

typedef struct pass {
    const char *name, *arguments, *text;
    void (*run)(call *);
} pass;

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static void
complain(call *c, pass_result result, const char *format, ...)
{
    va_list args;
    if (c->result) return;
    c->result = result;
    va_start(args, format);
    vsnprintf(c->message, c->size, format, args);
    va_end(args);
}

/* Takes the status of a pass; the graph has the message. */
static void ran(call *c, zf_status status)
{
    if (status) complain(c, PASS_FAILED, "%s", zf_graph_error(c->graph));
}

/* --------------------------------------------------------------------------------- arguments */

/* The next word that is not key=value; NULL after a complaint that `what` is missing. */
static const char *take_word(call *c, const char *what)
{
    for (int k = 0; k < c->count; k++) {
        char *word = c->words[k];
        if (!word || strchr(word, '=')) continue;
        c->words[k] = NULL;
        return word;
    }
    complain(c, PASS_MISUSED, "%s: %s is missing", c->name, what);
    return NULL;
}

/* The text after "key="; NULL when it is not given. */
static const char *take_value(call *c, const char *key)
{
    size_t length = strlen(key);
    for (int k = 0; k < c->count; k++) {
        char *word = c->words[k];
        if (!word || strncmp(word, key, length) || word[length] != '=') continue;
        c->words[k] = NULL;
        return word + length + 1;
    }
    return NULL;
}

/* True when the word `name` is given. */
static bool take_flag(call *c, const char *name)
{
    for (int k = 0; k < c->count; k++) {
        if (!c->words[k] || strcmp(c->words[k], name)) continue;
        c->words[k] = NULL;
        return true;
    }
    return false;
}

static double number_of(call *c, const char *what, const char *text)
{
    char *end = NULL;
    double value = text ? strtod(text, &end) : 0;
    if (text && (end == text || *end))
        complain(c, PASS_MISUSED, "%s: %s must be a number, not '%s'", c->name, what, text);
    return value;
}

/* key=NUMBER; 0, the default, when it is not given. */
static double take_number(call *c, const char *key)
{
    return number_of(c, key, take_value(c, key));
}

/* A value: %id, or the name of an input, param, state or output. The pass checks whether the id
 * exists. */
static zf_tensor take_tensor(call *c, const char *what)
{
    const char *word = take_word(c, what);
    zf_tensor x = {c->graph, 0};
    if (!word) return x;
    if (*word == '%') {
        char *end;
        long id = strtol(word + 1, &end, 10);
        if (!word[1] || *end || id < 1 || id > INT32_MAX)
            complain(c, PASS_MISUSED, "%s: '%s' is no id", c->name, word);
        else x.id = (int32_t)id;
    } else {
        x = zf_graph_find(c->graph, word);
        if (!zf_valid(x)) complain(c, PASS_FAILED, "%s: nothing is called '%s'", c->name, word);
    }
    return x;
}

/* Checks that all words have been taken, so that the pass may run. */
static bool ready(call *c)
{
    for (int k = 0; k < c->count; k++)
        if (c->words[k])
            complain(c, PASS_MISUSED, "%s: '%s' is none of its arguments", c->name, c->words[k]);
    return c->result == PASS_DONE;
}

/* ------------------------------------------------------------------------------------ passes */

/* The row of zf_training's table for a pass or an optimizer. */
static const zf_option *row_of(const char *name)
{
    const zf_option *row = zf_training_options();
    while (row->name && strcmp(row->name, name)) row++;
    return row->name && row->kind == ZF_OPTION_DESC ? row : NULL;
}

/* Reads the words that are left as options of a desc. True when the pass may run. */
static bool take_options(call *c, const zf_option *rows, void *desc)
{
    zf_error error;
    for (int k = 0; k < c->count && !c->result; k++) {
        char *word = c->words[k];
        c->words[k] = NULL;
        if (word && zf_options_words(&(zf_options){.rows = rows, .desc = desc}, word, &error))
            complain(c, PASS_MISUSED, "%s: %s", c->name, error.text);
    }
    return c->result == PASS_DONE;
}

/* The same, for the desc of the pass in a description. */
static bool take_desc(call *c, zf_training *t)
{
    const zf_option *row = row_of(c->name);
    return take_options(c, row->rows, (char *)t + row->at);
}

static void run_autograd(call *c)
{
    zf_tensor loss = take_tensor(c, "the loss");
    if (ready(c)) ran(c, zf_autograd(c->graph, loss));
}

static void run_simplify(call *c)
{
    if (ready(c)) ran(c, zf_simplify(c->graph));
}

static void run_context(call *c)
{
    zf_context_desc d = {.parts = (int32_t)take_number(c, "parts"),
                         .sections = (int32_t)take_number(c, "sections")};
    const char *kind = take_value(c, "kind");
    zf_training t = {.context_kind = d.kind};
    char word[80];
    zf_error error;
    snprintf(word, sizeof word, "context_kind=%.60s", kind ? kind : "");
    if (kind &&
        zf_options_words(&(zf_options){.rows = zf_training_options(), .desc = &t}, word, &error))
        complain(c, PASS_MISUSED, "%s: %s", c->name, error.text);
    d.kind = t.context_kind;
    if (ready(c)) ran(c, zf_context(c->graph, &d));
}

static void run_order(call *c)
{
    const char *axes = take_word(c, "the axes");
    if (ready(c)) ran(c, zf_order(c->graph, axes));
}

static void run_experts(call *c)
{
    const zf_experts_desc d = {.parts = (int32_t)take_number(c, "parts"),
                               .sections = (int32_t)take_number(c, "sections"),
                               .rows = (double)take_number(c, "rows"),
                               .dispatch = (zf_expert_dispatch)take_number(c, "int8")};
    if (ready(c)) ran(c, zf_experts(c->graph, &d));
}

static void run_divide(call *c)
{
    const int32_t sections = (int32_t)take_number(c, "sections");
    if (ready(c)) ran(c, zf_divide(c->graph, sections));
}

static void run_cut(call *c)
{
    static const char *const tokens[] = {"fit", "cut", "whole"};
    zf_cut_desc d = {.parts = (int32_t)take_number(c, "parts"),
                     .sections = (int32_t)take_number(c, "sections"),
                     .later = take_flag(c, "later")};
    const char *const given = take_value(c, "tokens");
    for (int k = 0; given && k < 3; k++)
        if (!strcmp(given, tokens[k])) d.tokens = (zf_cut_tokens)k;
    if (ready(c)) ran(c, zf_cut(c->graph, &d));
}

static void run_stages(call *c)
{
    zf_stages_desc d = {.ranks = (int32_t)take_number(c, "ranks"),
                        .layers = take_value(c, "layers"),
                        .schedule.chunks = (int32_t)take_number(c, "chunks")};
    const char *const kind = take_value(c, "schedule");
    int k = 0;
    while (kind && zf_pipe_kind_name((zf_pipe_kind)k) &&
           strcmp(zf_pipe_kind_name((zf_pipe_kind)k), kind))
        k++;
    d.schedule.kind = (zf_pipe_kind)k;
    if (ready(c)) ran(c, zf_stages(c->graph, &d));
}

static void run_stage(call *c)
{
    const int32_t stage = (int32_t)number_of(c, "the stage", take_word(c, "the stage"));
    if (ready(c)) ran(c, zf_keep_stage(c->graph, stage));
}

static void run_clip(call *c)
{
    double most = number_of(c, "the norm", take_word(c, "the norm"));
    if (ready(c)) ran(c, zf_clip(c->graph, most));
}

/* A pass that needs its desc alone. */
static void run_described(call *c)
{
    zf_training t = {.clip = 0};
    if (take_desc(c, &t)) ran(c, zf_pass(c->graph, c->name, &t));
}

/* Any optimizer; those of groups are passes of their own. */
static void run_optimizer(call *c)
{
    zf_training t = {.lr = take_tensor(c, "the learning rate")};
    if (!take_desc(c, &t)) return;
#define RUN(NAME, optimizer) \
    if (!strcmp(c->name, #optimizer)) ran(c, zf_##optimizer(c->graph, t.lr, &t.optimizer));
    ZF_OPTIMIZERS(RUN)
#undef RUN
}

static void run_delay(call *c)
{
    if (ready(c)) ran(c, zf_delay(c->graph));
}

static void run_precision(call *c)
{
    if (!c->count) complain(c, PASS_MISUSED, "%s: the dtype is missing", c->name);
    zf_training t = {.clip = 0};
    if (take_desc(c, &t)) ran(c, zf_precision(c->graph, &t.precision));
}

static void run_tile(call *c)
{
    if (!c->count) complain(c, PASS_MISUSED, "%s: the bytes are missing", c->name);
    zf_training t = {.clip = 0};
    if (take_desc(c, &t)) ran(c, zf_tile(c->graph, &t.tile));
}

static void run_fuse(call *c)
{
    zf_training t = {.fuse = {.miss = zf_fuse_miss_print, .user = c->out}};
    if (take_desc(c, &t)) ran(c, zf_fuse(c->graph, &t.fuse));
}

/* cost=FLOPS,BYTES,LINK,LATENCY: the members of zf_cost; functions and 16-bit values take no time
 * of their own. NULL when it is not given. */
static const zf_cost *take_cost(call *c, zf_cost *cost)
{
    const char *at = take_value(c, "cost");
    double rates[4] = {0};
    if (!at) return NULL;
    for (int k = 0; k < 4; k++) {
        char *end;
        rates[k] = strtod(at, &end);
        if (end == at || *end != (k < 3 ? ',' : '\0')) {
            complain(c, PASS_MISUSED,
                     "%s: cost must be four numbers, FLOPs/s, bytes/s, bytes/s of the link and its "
                     "latency in seconds, with commas between",
                     c->name);
            return NULL;
        }
        at = end + 1;
    }
    *cost = (zf_cost){.device = {.flops_per_s = rates[0],
                                 .bytes_per_s = rates[1],
                                 .half_values_per_s = 1e24,
                                 .functions_per_s = 1e24},
                      .link = {.bytes_per_s = rates[2], .latency_s = rates[3]}};
    return cost;
}

static void run_prefetch(call *c)
{
    zf_cost cost;
    zf_training t = {.prefetch.keep_gathered = true,
                     .memory_limit = (size_t)take_number(c, "memory"),
                     .cost = take_cost(c, &cost)};
    if (take_desc(c, &t)) ran(c, zf_prefetch(c->graph, &t));
}

/* The graph's text, which the caller frees; NULL after a complaint. */
static char *text_of(call *c)
{
    size_t length = zf_graph_text(c->graph, NULL, 0);
    char *text = malloc(length + 1);
    if (text) zf_graph_text(c->graph, text, length + 1);
    else complain(c, PASS_FAILED, "%s: out of memory", c->name);
    return text;
}

/* A program of the same graph, whose store then has the graph's parameters and states; NULL after a
 * complaint. *graph is its graph. */
static zf_program *program_of(call *c, zf_graph **graph)
{
    zf_error error = {ZF_OK, ""};
    zf_program *program = NULL;
    char *text = text_of(c);
    *graph = text ? zf_graph_parse(text, strlen(text), NULL, &error) : NULL;
    if (*graph && !(program = zf_compile(*graph, NULL)))
        complain(c, PASS_FAILED, "%s: store: %s", c->name, zf_graph_error(*graph));
    if (!*graph) complain(c, PASS_FAILED, "%s: store: %s", c->name, error.text);
    free(text);
    return program;
}

/* All passes of a training step, or without a loss of an evaluation. */
static void run_passes(call *c)
{
    zf_cost cost;
    zf_training t = {.fuse = {.miss = zf_fuse_miss_print, .user = c->out},
                     .cost = take_cost(c, &cost)};
    if (take_flag(c, "print")) t.print = c->out;
    if (!take_flag(c, "evaluate")) t.loss = take_tensor(c, "the loss");
    if (!take_options(c, zf_training_options(), &t)) return;
    t.prefetch.keep_gathered = t.prefetch.bytes > 0;
    ran(c, zf_passes(c->graph, &t));
}

/* With isa= or threads=, the plan includes the scratch of that CPU backend. */
static void run_memory(call *c)
{
    zf_error error = {ZF_OK, ""};
    zf_memory_desc d = {.no_reuse = take_flag(c, "no_reuse")};
    bool stored = take_flag(c, "store");
    zf_graph *graph = NULL;
    zf_program *program = NULL;
    const char *isa = take_value(c, "isa");
    double threads = take_number(c, "threads");
    if (!(threads >= 0 && threads <= 1024))
        complain(c, PASS_MISUSED, "%s: threads must be 1 to 1024", c->name);
    if (!ready(c)) return;
    if (isa || threads > 0) {
        d.backend = zf_cpu_backend(&(zf_cpu_desc){.isa = isa, .threads = (int32_t)threads}, &error);
        if (!d.backend) complain(c, PASS_FAILED, "%s", error.text);
    }
    if (stored && !c->result) program = program_of(c, &graph);
    d.store = zf_program_store(program);
    if (!c->result) ran(c, zf_memory(c->graph, &d));
    zf_program_free(program);
    zf_graph_free(graph);
    zf_backend_free(d.backend);
}

/* Reading text checks every rule. This also checks that the graph's text reads back as the same
 * graph. */
static void run_verify(call *c)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *again;
    char *text = ready(c) ? text_of(c) : NULL;
    if (!text) return;
    again = zf_graph_parse(text, strlen(text), NULL, &error);
    if (!again) complain(c, PASS_FAILED, "verify: %s", error.text);
    else if (zf_graph_hash(again) != zf_graph_hash(c->graph))
        complain(c, PASS_FAILED, "verify: the text does not read back as the same graph");
    zf_graph_free(again);
    free(text);
}

static void run_hash(call *c)
{
    if (ready(c) && c->out) fprintf(c->out, "# hash %016" PRIx64 "\n", zf_graph_hash(c->graph));
}

/* Those that need more than their desc. The options of zf_training are not repeated here. */
static const pass passes[] = {
    {"autograd", "LOSS", "append the gradient of LOSS for every trained parameter", run_autograd},
    {"simplify", "", "remove unneeded nodes, merge equal nodes, fold constants", run_simplify},
    {"clip", "NORM", "scale all gradients so that their global norm is at most NORM", run_clip},
    {"delay", "", "updates use the gradients of the step before", run_delay},
    {"precision", "DTYPE", "compute in bf16 or f16, over f32 master weights; a loss scale",
     run_precision},
    {"fuse", "", "merge nodes into fused ones; near misses are printed as comments", run_fuse},
    {"divide", "[sections=N]", "the head of a loss is in sections, which cut shares", run_divide},
    {"cut", "[parts=N] [sections=N] [tokens=fit|cut|whole] [later]",
     "ranks along tensor share layers: heads, and pairs of products",
     run_cut},
    {"context", "[parts=N] [sections=N] [kind=ulysses|gather|zigzag|ring]",
     "ranks along context share sequences, each a piece of all",
     run_context},
    {"experts", "[parts=N] [sections=N] [rows=N] [int8=1]", "neighbours along data share experts, some each",
     run_experts},
    {"order", "AXIS,AXIS,...", "the axes of the ranks, the slowest first: data,pipe,tensor", run_order},
    {"stages", "[ranks=N] [layers=N,N,...] [schedule=1f1b|gpipe|interleaved|zb-h1|zb-v] [chunks=N]",
     "each rank along pipe has some of the layers, which values are sent to and from",
     run_stages},
    {"stage", "K", "leave out what other stages have; the text does not read back", run_stage},
    {"tile", "BYTES",
     "linear layers whose weight takes more bytes become several, over ranges of "
     "its rows",
     run_tile},
    {"prefetch", "[memory=BYTES] [cost=FLOPS,BYTES,LINK,LATENCY]",
     "collectives and copies at the same time as computation, gathers no earlier than rates and "
     "latency require; buckets kept on the device within a memory limit",
     run_prefetch},
    {"passes", "LOSS|evaluate [print] [cost=FLOPS,BYTES,LINK,LATENCY]",
     "all passes of a training step of LOSS, in order, with an input \"lr\"; options by their "
     "paths, zero.stage=3; print: the graph after each",
     run_passes},
    {"memory", "[no_reuse] [store] [isa=NAME] [threads=N]",
     "give every value its place; isa or threads: with the scratch of that CPU backend; store: "
     "parameters and states are in a store already",
     run_memory},
    {"verify", "", "check every rule of the graph, and that its text reads back", run_verify},
    {"hash", "", "print the graph's hash, as a comment", run_hash},
};

enum { PASSES = sizeof passes / sizeof passes[0] };

static void list_one(FILE *out, const char *name, const char *arguments, const char *text)
{
    const zf_option *row = row_of(name);
    fprintf(out, "  %s%s%s", name, *arguments ? " " : "", arguments);
    for (const zf_option *in = row ? row->rows : NULL; in && in->name; in++)
        if (in->kind == ZF_OPTION_FLAG) fprintf(out, " [%s]", in->name);
        else if (in->kind != ZF_OPTION_CODE)
            fprintf(out, " [%s=%s]", in->name,
                    in->unit                       ? in->unit
                    : in->kind == ZF_OPTION_CHOICE ? in->range
                    : in->kind == ZF_OPTION_BYTES  ? "BYTES"
                    : in->kind == ZF_OPTION_COUNT  ? "N"
                                                   : "X");
    fprintf(out, "\n        %s\n", text);
}

static const pass *find(const char *name)
{
    for (int k = 0; k < PASSES; k++)
        if (!strcmp(name, passes[k].name)) return &passes[k];
    return NULL;
}

/* A pass whose row in the table of zf_training says all of it. */
static bool is_described(const char *name)
{
    const zf_option *row = row_of(name);
    return row && row->help && !find(name);
}

void pass_list(FILE *out)
{
    for (int k = 0; k < PASSES; k++)
        list_one(out, passes[k].name, passes[k].arguments, passes[k].text);
    for (const zf_option *row = zf_training_options(); row->name; row++) {
        char short_form[64] = ""; /* such as a limit instead of its name and the limit */
        if (row->kind != ZF_OPTION_DESC || !is_described(row->name)) continue;
        if (row->unit) snprintf(short_form, sizeof short_form, "[%s]", row->unit);
        list_one(out, row->name, short_form, row->help);
    }
    for (int k = 0; k < ZF_OPTIMIZER_COUNT; k++)
        list_one(out, zf_optimizer_name((zf_optimizer)k), "LR",
                 "an optimizer: append one update per parameter");
}

static bool is_optimizer(const char *name)
{
    for (int k = 0; k < ZF_OPTIMIZER_COUNT; k++)
        if (!strcmp(name, zf_optimizer_name((zf_optimizer)k))) return true;
    return false;
}

/* Runs one "NAME ARGUMENTS"; splits `text` into words. */
static void run_one(call *c, char *text)
{
    const pass *found;
    c->name = NULL;
    c->count = 0;
    for (char *at = text; *at;) {
        size_t length;
        at += strspn(at, " \t\r\n");
        if (!*at) break;
        length = strcspn(at, " \t\r\n");
        if (!c->name) c->name = at;
        else if (c->count < (int)(sizeof c->words / sizeof c->words[0])) c->words[c->count++] = at;
        else complain(c, PASS_MISUSED, "%s: too many arguments", c->name);
        at += length;
        if (*at) *at++ = '\0';
    }
    if (!c->name || c->result) return;
    if ((found = find(c->name))) found->run(c);
    else if (is_described(c->name)) run_described(c);
    else if (is_optimizer(c->name)) run_optimizer(c);
    else complain(c, PASS_MISUSED, "'%s' is no pass", c->name);
}

pass_result pass_run(zf_graph *graph, const char *line, FILE *out, char *message, size_t size)
{
    call c = {.graph = graph, .out = out, .message = message, .size = size};
    size_t length = strlen(line);
    char *copy = malloc(length + 1);
    if (!copy) {
        complain(&c, PASS_FAILED, "out of memory");
        return c.result;
    }
    memcpy(copy, line, length + 1);
    for (char *at = copy, *end; at && c.result == PASS_DONE; at = end) {
        end = strchr(at, ';');
        if (end) *end++ = '\0';
        run_one(&c, at);
    }
    free(copy);
    return c.result;
}
