/* The passes by name: a table that runs "NAME ARGUMENTS; NAME ARGUMENTS", and from which --help is
 * printed. */
#include "pass.h"

#include "../examples/frame/run/training.h"

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

/* The same for a value that may be 0: then ZF_ZERO. */
static double take_default(call *c, const char *key)
{
    const char *text = take_value(c, key);
    double value = number_of(c, key, text);
    return text && value == 0 ? ZF_ZERO : value;
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

static zf_lora_desc take_lora(call *c)
{
    return (zf_lora_desc){.rank = (int64_t)take_number(c, "rank"),
                          .alpha = take_number(c, "alpha"),
                          .rslora = take_flag(c, "rslora"),
                          .dropout = take_number(c, "dropout"),
                          .targets = take_value(c, "targets")};
}

static void run_lora(call *c)
{
    zf_lora_desc d = take_lora(c);
    if (ready(c)) ran(c, zf_lora(c->graph, &d));
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

static void run_clip(call *c)
{
    double most = number_of(c, "the norm", take_word(c, "the norm"));
    if (ready(c)) ran(c, zf_clip(c->graph, most));
}

static void run_sgd(call *c)
{
    zf_tensor lr = take_tensor(c, "the learning rate");
    zf_sgd_desc d = {.momentum = take_number(c, "momentum"),
                     .weight_decay = take_number(c, "weight_decay")};
    d.nesterov = take_flag(c, "nesterov");
    d.decay_all = take_flag(c, "decay_all");
    if (ready(c)) ran(c, zf_sgd(c->graph, lr, &d));
}

static void run_onebit_adam(call *c)
{
    zf_tensor lr = take_tensor(c, "the learning rate");
    zf_onebit_adam_desc d = {.beta1 = take_default(c, "beta1"),
                             .beta2 = take_default(c, "beta2"),
                             .eps = take_default(c, "eps"),
                             .weight_decay = take_number(c, "weight_decay"),
                             .variant = (int32_t)take_number(c, "variant")};
    d.decay_all = take_flag(c, "decay_all");
    if (ready(c)) ran(c, zf_onebit_adam(c->graph, lr, &d));
}

static void run_onebit_lamb(call *c)
{
    zf_tensor lr = take_tensor(c, "the learning rate");
    zf_onebit_lamb_desc d = {.beta1 = take_default(c, "beta1"),
                             .beta2 = take_default(c, "beta2"),
                             .eps = take_default(c, "eps"),
                             .weight_decay = take_number(c, "weight_decay"),
                             .min_coeff = take_default(c, "min_coeff"),
                             .max_coeff = take_default(c, "max_coeff"),
                             .variant = (int32_t)take_number(c, "variant")};
    d.decay_all = take_flag(c, "decay_all");
    if (ready(c)) ran(c, zf_onebit_lamb(c->graph, lr, &d));
}

static void run_zero_one_adam(call *c)
{
    zf_tensor lr = take_tensor(c, "the learning rate");
    zf_zero_one_adam_desc d = {.beta1 = take_default(c, "beta1"),
                               .beta2 = take_default(c, "beta2"),
                               .eps = take_default(c, "eps"),
                               .weight_decay = take_number(c, "weight_decay"),
                               .local_step_clipper = (int64_t)take_number(c, "local_step_clipper"),
                               .variant = (int32_t)take_number(c, "variant")};
    d.decay_all = take_flag(c, "decay_all");
    if (ready(c)) ran(c, zf_zero_one_adam(c->graph, lr, &d));
}

static void run_adamw(call *c)
{
    zf_tensor lr = take_tensor(c, "the learning rate");
    zf_adamw_desc d = {.beta1 = take_default(c, "beta1"),
                       .beta2 = take_default(c, "beta2"),
                       .eps = take_default(c, "eps"),
                       .weight_decay = take_number(c, "weight_decay")};
    d.decay_all = take_flag(c, "decay_all");
    if (ready(c)) ran(c, zf_adamw(c->graph, lr, &d));
}

static void run_lamb(call *c)
{
    zf_tensor lr = take_tensor(c, "the learning rate");
    zf_lamb_desc d = {.beta1 = take_default(c, "beta1"),
                      .beta2 = take_default(c, "beta2"),
                      .eps = take_default(c, "eps"),
                      .weight_decay = take_number(c, "weight_decay"),
                      .min_coeff = take_default(c, "min_coeff"),
                      .max_coeff = take_default(c, "max_coeff")};
    d.decay_all = take_flag(c, "decay_all");
    if (ready(c)) ran(c, zf_lamb(c->graph, lr, &d));
}

static void run_delay(call *c)
{
    if (ready(c)) ran(c, zf_delay(c->graph));
}

static void run_lion(call *c)
{
    zf_tensor lr = take_tensor(c, "the learning rate");
    zf_lion_desc d = {.beta1 = take_default(c, "beta1"),
                      .beta2 = take_default(c, "beta2"),
                      .weight_decay = take_number(c, "weight_decay")};
    d.decay_all = take_flag(c, "decay_all");
    if (ready(c)) ran(c, zf_lion(c->graph, lr, &d));
}

/* The dtype of this name. */
static zf_dtype take_dtype(call *c)
{
    const char *word = take_word(c, "the dtype");
    for (int dtype = ZF_F32; word && dtype <= ZF_BOOL; dtype++)
        if (!strcmp(word, zf_dtype_name((zf_dtype)dtype))) return (zf_dtype)dtype;
    complain(c, PASS_MISUSED, "%s: '%s' is no dtype", c->name, word ? word : "");
    return ZF_F32;
}

static void run_precision(call *c)
{
    zf_precision_desc d = {.dtype = take_dtype(c),
                           .scale = take_default(c, "scale"),
                           .factor = take_number(c, "factor"),
                           .window = (int64_t)take_number(c, "window"),
                           .hysteresis = (int32_t)take_number(c, "hysteresis"),
                           .min_scale = take_number(c, "min_scale")};
    d.consecutive_hysteresis = take_flag(c, "consecutive_hysteresis");
    if (ready(c)) ran(c, zf_precision(c->graph, &d));
}

static void run_tile(call *c)
{
    zf_tile_desc d = {.bytes = (size_t)number_of(c, "the bytes", take_word(c, "the bytes"))};
    if (ready(c)) ran(c, zf_tile(c->graph, &d));
}

static void run_fuse(call *c)
{
    zf_fuse_desc d = {.without = take_value(c, "without"),
                      .tile_bytes = (size_t)take_number(c, "tile"),
                      .miss = zf_fuse_miss_print,
                      .user = c->out};
    if (ready(c)) ran(c, zf_fuse(c->graph, &d));
}

static void run_recompute(call *c)
{
    zf_training t = {.recompute.bytes = (size_t)take_number(c, "memory")};
    if (take_flag(c, "layers")) t.recompute.mode = ZF_RECOMPUTE_LAYERS;
    else if (t.recompute.bytes) t.recompute.mode = ZF_RECOMPUTE_AS_NEEDED;
    if (ready(c)) ran(c, zf_recompute(c->graph, &t));
}

static zf_zero_desc take_zero(call *c)
{
    return (zf_zero_desc){.stage = (int32_t)take_number(c, "stage"),
                          .world = (int32_t)take_number(c, "world"),
                          .micro_batches = (int64_t)take_number(c, "micro_batches"),
                          .nodes = (int32_t)take_number(c, "nodes"),
                          .hpz = take_flag(c, "hpz"),
                          .mics = take_flag(c, "mics"),
                          .quantized_weights = take_flag(c, "quantized_weights"),
                          .quantized_gradients = take_flag(c, "quantized_gradients"),
                          .loco = take_flag(c, "loco"),
                          .loco_beta = take_default(c, "loco_beta"),
                          .loco_reset = (int64_t)take_number(c, "loco_reset"),
                          .loco_bits = (int32_t)take_number(c, "loco_bits"),
                          .quantized_block = (int32_t)take_number(c, "block"),
                          .quantized_scale = take_flag(c, "bf16_scales") ? ZF_BF16 : ZF_F32,
                          .bucket_bytes = (size_t)take_number(c, "bucket")};
}

static void run_zero(call *c)
{
    zf_zero_desc d = take_zero(c);
    if (ready(c)) ran(c, zf_zero(c->graph, &d));
}

/* key=device or key=host */
static zf_space take_space(call *c, const char *key)
{
    const char *name = take_value(c, key);
    int space = ZF_DEVICE;
    while (name && space < ZF_SPACES && strcmp(name, zf_space_name((zf_space)space))) space++;
    if (space == ZF_SPACES)
        complain(c, PASS_MISUSED, "%s: %s must be device, host or disk, not '%s'", c->name, key,
                 name);
    return (zf_space)space;
}

static zf_offload_desc take_offload(call *c)
{
    return (zf_offload_desc){.optimizer = take_space(c, "optimizer"),
                             .parameters = take_space(c, "parameters"),
                             .gradients = take_space(c, "gradients"),
                             .activations = take_space(c, "activations"),
                             .keep_bytes = (size_t)take_number(c, "keep"),
                             .piece_bytes = (size_t)take_number(c, "piece")};
}

static void run_offload(call *c)
{
    zf_offload_desc d = take_offload(c);
    if (ready(c)) ran(c, zf_offload(c->graph, &d));
}

/* cost=FLOPS,BYTES,LINK,LATENCY: the members of zf_cost; functions and 16-bit values take no time of
 * their own. NULL when it is not given. */
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
    *cost = (zf_cost){.flops_per_s = rates[0],
                      .bytes_per_s = rates[1],
                      .half_values_per_s = 1e24,
                      .functions_per_s = 1e24,
                      .link_bytes_per_s = rates[2],
                      .link_latency_s = rates[3]};
    return cost;
}

static void run_prefetch(call *c)
{
    zf_cost cost;
    zf_training t = {.prefetch = {.bytes = (size_t)take_number(c, "bytes"),
                                  .host_bytes = (size_t)take_number(c, "host"),
                                  .keep_gathered = true},
                     .memory_limit = (size_t)take_number(c, "memory"),
                     .cost = take_cost(c, &cost)};
    if (ready(c)) ran(c, zf_prefetch(c->graph, &t));
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

/* An optimizer by its name; the first one when it is not given */
static zf_optimizer take_optimizer(call *c)
{
    const char *name = take_value(c, "optimizer");
    int k = 0;
    while (name && zf_optimizer_name((zf_optimizer)k) &&
           strcmp(name, zf_optimizer_name((zf_optimizer)k)))
        k++;
    if (!zf_optimizer_name((zf_optimizer)k))
        complain(c, PASS_MISUSED, "%s: optimizer is one of %s, not '%s'", c->name,
                 training_optimizers(), name);
    return (zf_optimizer)k;
}

/* off, layers or bytes */
static zf_recompute_desc take_recompute(call *c)
{
    const char *text = take_value(c, "recompute");
    if (!text || !strcmp(text, "off")) return (zf_recompute_desc){ZF_RECOMPUTE_OFF, 0};
    if (!strcmp(text, "layers")) return (zf_recompute_desc){ZF_RECOMPUTE_LAYERS, 0};
    return (zf_recompute_desc){ZF_RECOMPUTE_AS_NEEDED, (size_t)number_of(c, "recompute", text)};
}

/* A dtype by its name; f32 when it is not given */
static zf_dtype take_precision(call *c)
{
    const char *name = take_value(c, "precision");
    zf_dtype dtype = ZF_F32;
    while (name && dtype <= ZF_F16 && strcmp(name, zf_dtype_name(dtype))) dtype++;
    if (dtype > ZF_F16)
        complain(c, PASS_MISUSED, "%s: precision must be f32, bf16 or f16, not '%s'", c->name,
                 name);
    return dtype;
}

/* All passes of a training step, or without a loss of an evaluation. */
static void run_passes(call *c)
{
    zf_cost cost;
    zf_training t = {.lora = take_lora(c),
                     .fuse = {.without = take_value(c, "without"),
                              .miss = zf_fuse_miss_print,
                              .user = c->out},
                     .precision.dtype = take_precision(c),
                     .tile.bytes = (size_t)take_number(c, "tile"),
                     .clip = take_number(c, "clip"),
                     .optimizer = take_optimizer(c),
                     .recompute = take_recompute(c),
                     .zero = take_zero(c),
                     .prefetch = {(size_t)take_number(c, "prefetch"), .keep_gathered = true},
                     .memory_limit = (size_t)take_number(c, "memory"),
                     .cost = take_cost(c, &cost)};
    if (take_flag(c, "print")) t.print = c->out;
    if (!take_flag(c, "evaluate")) t.loss = take_tensor(c, "the loss");
    if (ready(c)) ran(c, zf_passes(c->graph, &t));
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

static const pass passes[] = {
    {"lora", "[rank=N] [alpha=X] [rslora] [dropout=P] [targets=NAME,...]",
     "freeze the parameters, and put trained products of low rank beside those of the targets",
     run_lora},
    {"autograd", "LOSS", "append the gradient of LOSS for every trained parameter", run_autograd},
    {"simplify", "", "remove unneeded nodes, merge equal nodes, fold constants", run_simplify},
    {"clip", "NORM", "scale all gradients so that their global norm is at most NORM", run_clip},
    {"sgd", "LR [momentum=X] [nesterov] [weight_decay=X] [decay_all]",
     "append one update per parameter", run_sgd},
    {"adamw", "LR [beta1=X] [beta2=X] [eps=X] [weight_decay=X] [decay_all]", "the same, AdamW",
     run_adamw},
    {"lamb",
     "LR [beta1=X] [beta2=X] [eps=X] [weight_decay=X] [min_coeff=X] [max_coeff=X] [decay_all]",
     "the same, LAMB", run_lamb},
    {"lion", "LR [beta1=X] [beta2=X] [weight_decay=X] [decay_all]", "the same, Lion", run_lion},
    {"delay", "", "updates use the gradients of the step before", run_delay},
    {"onebit_adam", "LR [variant=N] [beta1=X] [beta2=X] [eps=X] [weight_decay=X] [decay_all]",
     "the same, 1-bit Adam: a step of the warm-up (variant 0) or a compressed one (1)",
     run_onebit_adam},
    {"onebit_lamb",
     "LR [variant=N] [beta1=X] [beta2=X] [eps=X] [weight_decay=X] [decay_all] [min_coeff=X] "
     "[max_coeff=X]",
     "the same, 1-bit LAMB: a step of the warm-up (variant 0) or a compressed one (1)",
     run_onebit_lamb},
    {"zero_one_adam",
     "LR [variant=N] [beta1=X] [beta2=X] [eps=X] [weight_decay=X] [decay_all] "
     "[local_step_clipper=N]",
     "the same, 0/1 Adam: a step that refreshes the variance (variant 0), averages (1) or is local (2)",
     run_zero_one_adam},
    {"precision",
     "DTYPE [scale=X] [factor=X] [window=N] [hysteresis=N] [min_scale=X] [consecutive_hysteresis]",
     "compute in bf16 or f16, over f32 master weights; a loss scale", run_precision},
    {"fuse", "[without=NAME,...] [tile=BYTES]",
     "merge nodes into fused ones; near misses are printed as comments", run_fuse},
    {"tile", "BYTES",
     "linear layers whose weight takes more bytes become several, over ranges of its rows",
     run_tile},
    {"recompute", "[layers] [memory=N]",
     "recompute values in the backward pass: in every layer, or to stay within a memory limit",
     run_recompute},
    {"zero",
     "[stage=N] [world=N] [micro_batches=N] [nodes=N] [hpz] [mics] [bucket=BYTES]\n"
     "        [quantized_weights] [quantized_gradients] [loco] [loco_beta=X] [loco_reset=N]\n"
     "        [loco_bits=N] [block=N] [bf16_scales]",
     "the step of each of `world` ranks, in so many nodes, at a ZeRO stage; quantised gathers and\n"
     "        sums, in blocks with one scale",
     run_zero},
    {"offload",
     "[optimizer=host|disk] [parameters=host|disk] [gradients=host|disk]\n"
     "        [activations=host|disk] [keep=BYTES] [piece=BYTES]",
     "states of the optimizer, with their updates, and parameters, summed gradients and values of\n"
     "        the forward pass that the backward pass reads lie in host memory or on a disk;\n"
     "        buckets and values of at most `keep` bytes stay on the device",
     run_offload},
    {"prefetch", "[bytes=N] [host=N] [memory=N] [cost=FLOPS,BYTES,LINK,LATENCY]",
     "collectives and copies at the same time as computation, gathers no earlier than rates and\n"
     "        latency require; buckets kept on the device within a memory limit",
     run_prefetch},
    {"passes",
     "LOSS|evaluate [print] [rank=N] [alpha=X] [rslora] [dropout=P] [targets=NAME,...]\n"
     "        [optimizer=NAME] [clip=NORM] [without=NAME,...] [precision=DTYPE] [tile=BYTES]\n"
     "        [recompute=layers|BYTES] [stage=N] [world=N] [micro_batches=N] [nodes=N]\n"
     "        [hpz] [mics] [quantized_weights] [quantized_gradients] [loco] [loco_beta=X]\n"
     "        [loco_reset=N] [loco_bits=N] [block=N] [bf16_scales] [bucket=BYTES]\n"
     "        [prefetch=BYTES] [memory=BYTES] [cost=FLOPS,BYTES,LINK,LATENCY]",
     "all passes of a training step of LOSS, in order, with an input \"lr\"; print: the graph\n"
     "        after each",
     run_passes},
    {"memory", "[no_reuse] [store] [isa=NAME] [threads=N]",
     "give every value its place; isa or threads: with the scratch of that CPU backend; store: "
     "parameters and states are in a store already",
     run_memory},
    {"verify", "", "check every rule of the graph, and that its text reads back", run_verify},
    {"hash", "", "print the graph's hash, as a comment", run_hash},
};

enum { PASSES = sizeof passes / sizeof passes[0] };

void pass_list(FILE *out)
{
    for (int k = 0; k < PASSES; k++)
        fprintf(out, "  %s%s%s\n        %s\n", passes[k].name, *passes[k].arguments ? " " : "",
                passes[k].arguments, passes[k].text);
}

/* Runs one "NAME ARGUMENTS"; splits `text` into words. */
static void run_one(call *c, char *text)
{
    const pass *found = NULL;
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
    for (int k = 0; k < PASSES; k++)
        if (!strcmp(c->name, passes[k].name)) found = &passes[k];
    if (found) found->run(c);
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
