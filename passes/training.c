/* One description of a training step, and the list of the passes that make it.
 *
 *     name_training  lora  param_groups  fuse  divide  precision  tile  autograd  simplify  clip
 *     OPTIMIZER  ema  delay  cut  context  experts  fuse  stages  order  recompute  zero  offload
 *     prefetch
 *
 * recompute.c has the list of the last three, which run in trials too.
 *
 * A pass that the description does not ask for is not run. Without a loss, no pass for gradients is
 * run. */

enum { ZFI_FUSE_NAMES = 1024 }; /* characters of zf_fuse_desc.without */

static bool zfi_wants_always(const zf_training *t)
{
    (void)t;
    return true;
}

static bool zfi_wants_gradients(const zf_training *t)
{
    return zfi_wants_training(t) && t->keep_gradients;
}

static bool zfi_wants_name(const zf_training *t) { return t->name && *t->name; }

static zf_status zfi_pass_name(zf_graph *g, const zf_training *t)
{
    return zf_name_training(g, t->name);
}

static bool zfi_wants_clip(const zf_training *t) { return zfi_wants_training(t) && t->clip != 0; }

/* Sections of sums over what ranks along tensor share; 1: zf_cut is not run. */
static int32_t zfi_tensor_sections(const zf_training *t)
{
    const int32_t ranks = t->tensor > 0 ? t->tensor : 1;
    return t->sections.tensor > 0 ? t->sections.tensor : ranks;
}

static bool zfi_wants_cut(const zf_training *t)
{
    return zfi_tensor_sections(t) > 1 || t->tensor > 1;
}

static bool zfi_wants_context(const zf_training *t);

/* What ranks along tensor have between the layers that they share. */
static zf_cut_tokens zfi_tensor_tokens(const zf_training *t)
{
    if (!t->sequence) return ZF_TOKENS_FIT;
    return strcmp(t->sequence, "none") ? ZF_TOKENS_CUT : ZF_TOKENS_WHOLE;
}

static zf_status zfi_pass_cut(zf_graph *g, const zf_training *t)
{
    const zf_cut_desc d = {
        .parts = t->tensor, .sections = zfi_tensor_sections(t), .tokens = zfi_tensor_tokens(t),
        .later = zfi_wants_context(t)};
    return zfi_cut_layers(g, &d, t->zero.store);
}

/* The same of what ranks along context share. */
static int32_t zfi_context_sections(const zf_training *t)
{
    const int32_t ranks = t->context > 0 ? t->context : 1;
    const bool twice = t->context_kind == ZF_CONTEXT_ZIGZAG && ranks > 1 && ranks < INT32_MAX / 2;
    return t->sections.context > 0 ? t->sections.context : twice ? 2 * ranks : ranks;
}

static bool zfi_wants_context(const zf_training *t)
{
    return zfi_context_sections(t) > 1 || t->context > 1;
}

static zf_status zfi_pass_context(zf_graph *g, const zf_training *t)
{
    return zf_context(
        g, &(zf_context_desc){.parts = t->context,
                              .sections = zfi_context_sections(t),
                              .kind = t->context_kind});
}

/* The same of neighbours along data that share experts. */
static int32_t zfi_expert_sections(const zf_training *t)
{
    const int32_t ranks = t->expert > 0 ? t->expert : 1;
    return t->sections.expert > 0 ? t->sections.expert : ranks;
}

static bool zfi_wants_experts(const zf_training *t)
{
    return zfi_expert_sections(t) > 1 || t->expert > 1 || t->expert_dispatch;
}

static zf_status zfi_pass_experts(zf_graph *g, const zf_training *t)
{
    return zf_experts(g, &(zf_experts_desc){.parts = t->expert,
                                            .sections = zfi_expert_sections(t),
                                            .rows = t->expert_rows,
                                            .dispatch = t->expert_dispatch});
}

/* Sections of heads: ranks along tensor share them, and of `ulysses` those along context too. */
static int32_t zfi_head_sections(const zf_training *t)
{
    const int64_t all = (int64_t)zfi_tensor_sections(t) *
                        (t->context_kind == ZF_CONTEXT_ULYSSES ? zfi_context_sections(t) : 1);
    return all < INT32_MAX ? (int32_t)all : INT32_MAX;
}

static bool zfi_wants_divide(const zf_training *t) { return zfi_head_sections(t) > 1; }

static zf_status zfi_pass_divide(zf_graph *g, const zf_training *t)
{
    return zfi_divide(g, zfi_tensor_sections(t), zfi_head_sections(t), t->zero.store);
}

static bool zfi_wants_stages(const zf_training *t)
{
    return t->stages.ranks != 0 || (t->stages.layers && *t->stages.layers);
}

static zf_status zfi_pass_stages(zf_graph *g, const zf_training *t)
{
    return zfi_stages_within(g, t);
}

static bool zfi_wants_order(const zf_training *t) { return t->order && *t->order; }

static zf_status zfi_pass_order(zf_graph *g, const zf_training *t) { return zf_order(g, t->order); }

static bool zfi_wants_precision(const zf_training *t)
{
    return t->precision.dtype != ZF_F32 || t->precision.scale != 0;
}

static bool zfi_wants_lora(const zf_training *t)
{
    const zf_lora_desc *d = &t->lora;
    return d->name || d->rank || d->alpha != 0 || d->rslora || d->dropout != 0 || d->targets ||
           d->keep || d->ranks || d->alphas;
}

static zf_status zfi_pass_lora(zf_graph *g, const zf_training *t) { return zf_lora(g, &t->lora); }

static bool zfi_wants_groups(const zf_training *t) { return t->param_groups && *t->param_groups; }

static zf_status zfi_pass_groups(zf_graph *g, const zf_training *t)
{
    return zfi_read_groups(g, t->param_groups);
}

static zf_status zfi_pass_fuse(zf_graph *g, const zf_training *t)
{
    zf_fuse_desc d = t->fuse;
    d.as_trained = false; /* of the second one */
    if (!d.tile_bytes) d.tile_bytes = t->tile.bytes;
    return zf_fuse(g, &d);
}

/* The step computes in 16 bits. */
static bool zfi_has_halves(const zf_graph *g, const zf_training *t)
{
    bool half = zfi_is_half(t->precision.dtype);
    for (int32_t k = 0; k < zfi_len(g->params); k++)
        half |= zfi_is_half((zf_dtype)g->nodes[g->params[k]].dtype);
    return half;
}

/* The rewrites that are left out, with those that ranks which share layers or sequences leave out:
 * the weights that qkv joins are cut one by one, the table that embedding reads by rows, and sums
 * are made over sections of tokens, each alike. So is chain in 16 bits, which rounds once for all
 * neighbours: exchanges of tokens make these others. */
static zf_status zfi_leave_out_fusions(zf_graph *g, zf_training *t, char without[ZFI_FUSE_NAMES])
{
    const char *names = t->fuse.without ? t->fuse.without : "";
    const bool tokens = zfi_wants_context(t) ||
                        (zfi_wants_cut(t) && zfi_tensor_tokens(t) != ZF_TOKENS_WHOLE);
    if ((!zfi_wants_cut(t) && !zfi_wants_context(t)) || !strcmp(names, "all")) return ZF_OK;
    if (snprintf(without, ZFI_FUSE_NAMES, "%s%sqkv%s%s%s", names, *names ? "," : "",
                 zfi_wants_cut(t) ? ",embedding" : "", tokens ? ",sums" : "",
                 tokens && zfi_has_halves(g, t) ? ",chain" : "") >= ZFI_FUSE_NAMES)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_fuse: without is too long");
    t->fuse.without = without;
    return ZF_OK;
}

static zf_status zfi_pass_precision(zf_graph *g, const zf_training *t)
{
    return zf_precision(g, &t->precision);
}

static bool zfi_wants_tile(const zf_training *t) { return t->tile.bytes != 0; }

static zf_status zfi_pass_tile(zf_graph *g, const zf_training *t) { return zf_tile(g, &t->tile); }

static zf_status zfi_pass_autograd(zf_graph *g, const zf_training *t)
{
    return zf_autograd(g, t->loss);
}

static zf_status zfi_pass_simplify(zf_graph *g, const zf_training *t)
{
    (void)t;
    return zf_simplify(g);
}

/* Of a parameter in pieces, the gradients of its pieces are joined. */
static zf_status zfi_pass_gradients(zf_graph *g, const zf_training *t)
{
    zf_tensor *pieces = NULL;
    (void)t;
    if (zfi_check_dense(g, "zf_passes: keep_gradients", "their gradient has no value of its size"))
        return g->error.status;
    for (int32_t k = 0; k < zfi_len(g->params) && !g->error.status && !g->memory.failed; k++) {
        const zfi_node *param = &g->nodes[g->params[k]];
        const zfi_cut_rows cut = zfi_cut_rows_of(param);
        const int whole = (int)(cut.rows ? zfi_whole_name(param->name) : strlen(param->name));
        zf_tensor gradient = zf_gradient(g, (zf_tensor){g, g->params[k]});
        char name[300];
        if (!zf_valid(gradient)) continue;
        zfi_push(&g->memory, pieces, gradient);
        if (g->memory.failed || cut.row + (cut.rows ? param->shape.dims[0] : 0) < cut.rows)
            continue;
        snprintf(name, sizeof name, "gradient/%.*s", whole, param->name);
        if (zfi_len(pieces) > 1) gradient = zf_concat(pieces, zfi_len(pieces), 0);
        zf_output(gradient, name);
        stbds_header(pieces)->length = 0;
    }
    zfi_array_free(&g->memory, pieces);
    return g->memory.failed ? zfi_graph_nomem(g) : zf_graph_status(g);
}

static zf_status zfi_pass_clip(zf_graph *g, const zf_training *t) { return zf_clip(g, t->clip); }

/* Updates are delayed, from the step after this one on. */
static bool zfi_delays(const zf_training *t) { return t->delay || t->delay_from; }

static int64_t zfi_delays_from(const zf_training *t)
{
    return t->delay_from == INT64_MIN ? 0 : t->delay_from; /* a 0 that was given */
}

static bool zfi_wants_delay(const zf_training *t)
{
    return zfi_wants_training(t) && zfi_delays(t) && (zfi_delays_from(t) == 0 || t->variant > 0);
}

static zf_status zfi_pass_delay(zf_graph *g, const zf_training *t)
{
    (void)t;
    return zf_delay(g);
}

/* ------------------------------------------------------------------------------------ variants */

/* The optimizer of a description, and its desc with the defaults. */
static const zfi_optimizer_record *zfi_resolved_optimizer(const zf_training *t,
                                                          zfi_optimizer_desc *d)
{
    const zfi_optimizer_record *r = zfi_optimizer_of(t, d);
    zf_options_resolve(&(zf_options){.rows = r->rows, .desc = d}, 1);
    return r;
}

/* The names of the variants of a description's step, with NULL at the end; NULL: there is one. */
static const char *const *zfi_variants(const zf_training *t)
{
    static const char *const delaying[] = {"direct", "delayed", NULL};
    zfi_optimizer_desc d;
    const zfi_optimizer_record *r;
    if (!t || !zfi_wants_training(t) || !zf_optimizer_name(t->optimizer)) return NULL;
    r = zfi_resolved_optimizer(t, &d);
    if (r->variants) return r->variants(&d);
    return zfi_delays(t) && zfi_delays_from(t) > 0 ? delaying : NULL;
}

ZF_API int32_t zf_variant_count(const zf_training *t)
{
    const char *const *names = zfi_variants(t);
    int32_t count = names == NULL;
    while (names && names[count]) count++;
    return count;
}

ZF_API const char *zf_variant_name(const zf_training *t, int32_t variant)
{
    const char *const *names = zfi_variants(t);
    if (variant < 0 || variant >= zf_variant_count(t)) return NULL;
    return names ? names[variant] : "step";
}

ZF_API int32_t zf_variant_at(const zf_training *t, int64_t step)
{
    zfi_optimizer_desc d;
    const zfi_optimizer_record *r;
    if (!zfi_variants(t) || step < 1) return 0;
    r = zfi_resolved_optimizer(t, &d);
    return r->variant_at ? r->variant_at(&d, step) : step > zfi_delays_from(t);
}

/* ------------------------------------------------------------------------------------ the list */

static const zfi_pass zfi_optimizer_passes[] = {
#define ZFI_PASS(NAME, name) {#name, zfi_wants_training, zfi_pass_optimizer},
    ZF_OPTIMIZERS(ZFI_PASS)
#undef ZFI_PASS
};

static bool zfi_wants_ema(const zf_training *t)
{
    return zfi_wants_training(t) && t->ema.decay != 0;
}

static zf_status zfi_pass_ema(zf_graph *g, const zf_training *t) { return zf_ema(g, &t->ema); }

static const zfi_pass zfi_ema_pass = {"ema", zfi_wants_ema, zfi_pass_ema};

static const zfi_pass zfi_delay_pass = {"delay", zfi_wants_delay, zfi_pass_delay};

static const zfi_pass zfi_cut_passes[] = {{"cut", zfi_wants_cut, zfi_pass_cut},
                                          {"context", zfi_wants_context, zfi_pass_context},
                                          {"experts", zfi_wants_experts, zfi_pass_experts}};

static const zfi_pass zfi_forward_passes[] = {
    {"name_training", zfi_wants_name, zfi_pass_name},
    {"lora", zfi_wants_lora, zfi_pass_lora},
    {"param_groups", zfi_wants_groups, zfi_pass_groups},
    {"fuse", zfi_wants_fuse, zfi_pass_fuse},
    {"divide", zfi_wants_divide, zfi_pass_divide},
    {"precision", zfi_wants_precision, zfi_pass_precision},
    {"tile", zfi_wants_tile, zfi_pass_tile},
    {"autograd", zfi_wants_training, zfi_pass_autograd},
    {"simplify", zfi_wants_always, zfi_pass_simplify},
    {"gradients", zfi_wants_gradients, zfi_pass_gradients},
    {"clip", zfi_wants_clip, zfi_pass_clip}};

static const zfi_pass zfi_update_passes[] = {{"fuse", zfi_wants_fuse_again, zfi_pass_fuse_again},
                                             {"stages", zfi_wants_stages, zfi_pass_stages},
                                             {"order", zfi_wants_order, zfi_pass_order},
                                             {"recompute", zfi_wants_recompute, zf_recompute}};

/* Prints the graph after a pass, if the pass has changed it. */
static void zfi_show(zf_graph *g, const zf_training *t, const char *pass, uint64_t before)
{
    bool same = zf_graph_hash(g) == before;
    fprintf(t->print, "# after %s%s\n", pass, same ? ": the same" : "");
    if ((!same && zf_graph_print(g, t->print)) || ferror(t->print))
        zfi_fail(&g->error, ZF_ERR_IO, "zf_passes: the graph after %s could not be printed", pass);
}

static void zfi_run_passes(zf_graph *g, const zf_training *t, const zfi_pass *passes, int count)
{
    for (int k = 0; k < count && !g->error.status; k++) {
        uint64_t before = t->print ? zf_graph_hash(g) : 0;
        if (!passes[k].wanted(t) || passes[k].run(g, t)) continue;
        if (t->print) zfi_show(g, t, passes[k].name, before);
        if (t->after && !g->error.status) t->after(t->user, g, passes[k].name);
    }
}

static zf_status zfi_show_optimizer(zf_graph *g, const zf_training *t)
{
    zfi_run_passes(g, t, &zfi_optimizer_passes[t->optimizer], 1);
    return g->error.status;
}

/* The learning rate that was given, or the input "lr", which is made if there is none. *fixed: it
 * is a constant, which zf_simplify removes as long as nothing reads it. */
static zf_tensor zfi_rate(zf_graph *g, zf_tensor lr, bool *fixed, double *value)
{
    bool given = lr.graph || lr.id;
    if (!given) lr = zf_graph_find(g, "lr");
    if (!given && !zf_valid(lr)) lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    *fixed = lr.graph == g && zf_valid(lr) && g->nodes[lr.id].op == ZF_OP_constant;
    *value = *fixed ? *(const double *)ZF_LIST(&g->nodes[lr.id], constant, values).data : 0;
    return lr;
}

/* "adamw|lamb|..." */
#define ZFI_NAME_BEHIND(NAME, name) "|" #name
#define ZFI_OPTIMIZER_NAMES         (&("" ZF_OPTIMIZERS(ZFI_NAME_BEHIND))[1])
/* Of optimizers whose steps are all alike. */
#define ZFI_SAME_STEPS "!optimizer=onebit_adam|zero_one_adam|onebit_lamb"

/* The tables of the descs that a description consists of. */
static const zf_option zfi_training_options[] = {
    ZF_OPTION(zf_training, TEXT, name, 0, NULL, .flag = "", .traits = ZF_OPTION_CHANGES),
    ZF_OPTION_CODED(zf_training, loss),
    ZF_OPTION_CODED(zf_training, lr),
    ZF_OPTION(zf_training, CHOICE, optimizer, 0, ZFI_OPTIMIZER_NAMES, .topic = "optimizer",
              .traits = ZF_OPTION_CHANGES | ZF_OPTION_BASIC, .help = "the update"),
#define ZFI_OPTIONS_OF(NAME, name)                                                                 \
    ZF_OPTION(zf_training, DESC, name, 0, NULL, .rows = zfi_##name##_options,                      \
              .with = "optimizer|param_groups=" #name),
    ZF_OPTIMIZERS(ZFI_OPTIONS_OF)
#undef ZFI_OPTIONS_OF
        ZF_OPTION(zf_training, TEXT, param_groups, 0, NULL, .topic = "optimizer",
                  .unit = "PATTERN:rate=X,...;...", .traits = ZF_OPTION_CHANGES,
                  .help = "rate (a factor), constant, weight_decay, no_decay, beta1, beta2, optimizer "
                          "or frozen, for parameters whose names match"),
    ZF_OPTION(zf_training, COUNT, variant, 0, "[0,inf)", .flag = ""),
    ZF_OPTION(zf_training, NUMBER, clip, 0, "[0,inf]",
              .traits = ZF_OPTION_CHANGES | ZF_OPTION_BASIC,
              .help = "maximum norm of the gradients; inf: the norm is only computed; 0: neither"),
    ZF_OPTION(zf_training, FLAG, keep_gradients, 0, NULL, .flag = ""),
    ZF_OPTION(zf_training, DESC, ema, 0, NULL, .rows = zfi_ema_options,
              .help = "append a moving average of each parameter"),
    ZF_OPTION(zf_training, COUNT, tensor, 1, "[1,1048576]", .topic = "ranks", .unit = "T",
              .traits = ZF_OPTION_BASIC,
              .help = "ranks that share each layer; the others share the batch"),
    ZF_OPTION(zf_training, COUNT, context, 1, "[1,1048576]", .topic = "ranks", .unit = "C",
              .traits = ZF_OPTION_BASIC,
              .help = "ranks that share each sequence: a piece of its tokens each"),
    ZF_OPTION(zf_training, CHOICE, context_kind, 0, ZFI_CONTEXT_KINDS, .topic = "ranks",
              .traits = ZF_OPTION_CHANGES,
              .help = "attention where ranks share sequences: exchange tokens for heads; gather keys "
                      "and values; the same with equal work under a causal mask; keys and values of "
                      "one rank after the other"),
    ZF_OPTION(zf_training, TEXT, sequence, 0, NULL, .topic = "ranks", .unit = "tensor|none",
              .traits = ZF_OPTION_CHANGES | ZF_OPTION_BASIC,
              .help =
                  "what ranks along tensor have of sequences between the layers that they share: "
                  "a part of the tokens each, or all; without it a part, where sections divide "
                  "the tokens"),
    ZF_OPTION(zf_training, COUNT, expert, 1, "[1,1048576]", .topic = "ranks", .unit = "P",
              .traits = ZF_OPTION_BASIC,
              .help = "neighbours along data that share the experts of each layer: some each"),
    ZF_OPTION(zf_training, NUMBER, expert_rows, 0, "[0,1e4]", .topic = "ranks", .unit = "F",
              .with = "expert",
              .help =
                  "rows for which there is room on the rank of an expert, from each of these: F "
                  "times the mean; more are an error; 0: as many as there can be"),
    ZF_OPTION(zf_training, CHOICE, expert_dispatch, 0, ZFI_DISPATCHES, .topic = "ranks",
              .traits = ZF_OPTION_CHANGES,
              .help = "in which form rows of tokens go to the ranks of experts, and back: their own "
                      "dtype; 8 bits"),
    ZF_OPTION(
        zf_training, DESC, sections, 0, NULL, .topic = "ranks", .flag = "sections",
        .rows = zfi_sections_options, .traits = ZF_OPTION_CHANGES,
        .help =
            "sections of sums over what ranks share; runs with as many have the same bits "
            "on any number of ranks that divides it; without it --tensor, --context and --expert"),
    ZF_OPTION(zf_training, DESC, stages, 0, NULL, .rows = zfi_stages_options),
    ZF_OPTION(zf_training, TEXT, order, 0, NULL, .topic = "ranks", .unit = "AXIS,AXIS,...",
              .help = "axes of the ranks, the slowest first; without it pipe,data,context,tensor: "
                      "neighbours share layers"),
    ZF_OPTION(zf_training, FLAG, delay, 0, NULL, .flag = "", .traits = ZF_OPTION_CHANGES,
              .with = ZFI_SAME_STEPS),
    ZF_OPTION(zf_training, COUNT, delay_from, 0, "[0,inf)", .flag = "delay-update", .unit = "STEP",
              .with = ZFI_SAME_STEPS, .traits = ZF_OPTION_CHANGES | ZF_OPTION_GIVEN_0,
              .help = "after this step, update by the gradients of the step before, which lets "
                      "updates overlap with the backward pass and changes what is learned"),
    ZF_OPTION(zf_training, DESC, precision, 0, NULL, .topic = "precision",
              .rows = zfi_precision_options),
    ZF_OPTION(zf_training, DESC, fuse, 0, NULL, .rows = zfi_fuse_options),
    ZF_OPTION(zf_training, DESC, lora, 0, NULL, .topic = "model", .flag = "lora",
              .traits = ZF_OPTION_BASIC, .rows = zfi_lora_options,
              .help = "freeze the weights, and train products of low rank that are added"),
    ZF_OPTION(zf_training, DESC, zero, 0, NULL, .topic = "ranks", .rows = zfi_zero_options,
              .help = "the step of each of `world` ranks, in so many nodes, at a ZeRO stage"),
    ZF_OPTION(zf_training, DESC, prefetch, 0, NULL, .rows = zfi_prefetch_options),
    ZF_OPTION(zf_training, DESC, recompute, 0, NULL, .topic = "memory", .flag = "recompute",
              .rows = zfi_recompute_options, .traits = ZF_OPTION_BASIC, .unit = "off|layers|BYTES",
              .help = "recompute values in the backward pass: all of each layer but its input, or "
                      "as much as a peak of BYTES requires"),
    ZF_OPTION(zf_training, DESC, tile, 0, NULL, .rows = zfi_tile_options, .with = ZFI_SAME_STEPS),
    ZF_OPTION(zf_training, DESC, offload, 0, NULL, .flag = "offload", .rows = zfi_offload_options,
              .unit = "KIND=SPACE,...", .help = "what lies in host memory or on a disk"),
    ZF_OPTION(zf_training, DESC, fit, 0, NULL, .flag = "", .rows = zfi_fit_options),
    ZF_OPTION(zf_training, BYTES, memory_limit, 0, NULL, .flag = "",
              .help = "limit of a plan, for passes that choose between plans; 0: none"),
    ZF_OPTION_CODED(zf_training, backend),
    ZF_OPTION_CODED(zf_training, cost),
    ZF_OPTION_CODED(zf_training, print),
    ZF_OPTION_CODED(zf_training, after),
    ZF_OPTION_CODED(zf_training, user),
    {.name = NULL}};

ZF_API const zf_option *zf_training_options(void) { return zfi_training_options; }

/* Checks the words of `sequence`, which are of ranks along tensor. */
static zf_status zfi_check_sequence(zf_graph *g, const zf_training *t)
{
    const char *word = t->sequence;
    if (!word) return ZF_OK;
    if (strcmp(word, "tensor") && strcmp(word, "none"))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_passes: sequence is \"%.100s\"; it must be \"tensor\" or \"none\"", word);
    if (!zfi_wants_cut(t))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_passes: sequence says what ranks along tensor have: it must be left out "
                        "without tensor and sections.tensor");
    return ZF_OK;
}

/* Checks what the table of options does not. */
static zf_status zfi_check_training(zf_graph *g, zf_training *t)
{
    const zf_options one = {.rows = zfi_training_options, .desc = t};
    if (zfi_options_check(&one, 1, false, "zf_passes: ", &g->error)) return g->error.status;
    if (zfi_check_sequence(g, t)) return g->error.status;
    if (t->variant >= zf_variant_count(t))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_passes: there is no variant %d; a step of this description has %d "
                        "(zf_variant_count)",
                        (int)t->variant, (int)zf_variant_count(t));
    if (t->context_kind && !zfi_wants_context(t))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_passes: context_kind is of ranks that share sequences: it must be left "
                        "out without context and sections.context");
    t->clip = zfi_or(t->clip, 0);
    t->delay = zfi_delays(t);
    t->delay_from = zfi_delays_from(t);
    t->recompute.mode = zfi_recompute_mode(t);
    return ZF_OK;
}

static void zfi_pass_later(zf_graph *g, const zf_training *t)
{
    zfi_run_passes(g, t, zfi_cut_passes, ZFI_COUNT(zfi_cut_passes));
    zfi_run_passes(g, t, zfi_update_passes, ZFI_COUNT(zfi_update_passes));
}

ZF_API zf_status zf_passes(zf_graph *g, const zf_training *training)
{
    zf_training t = training ? *training : (zf_training){.loss = ZF_NONE};
    bool fixed = false;
    double rate = 0;
    char without[ZFI_FUSE_NAMES];
    if (!g) return ZF_ERR_ARGUMENT;
    if (g->error.status || zfi_check_training(g, &t) || zfi_leave_out_fusions(g, &t, without))
        return g->error.status;
    if (t.print && !t.fuse.miss) t.fuse.miss = zf_fuse_miss_print, t.fuse.user = t.print;
    if (zfi_wants_training(&t)) t.lr = zfi_rate(g, t.lr, &fixed, &rate);
    zfi_run_passes(g, &t, zfi_forward_passes, ZFI_COUNT(zfi_forward_passes));
    if (fixed) t.lr = zf_constant(g, ZF_F32, ZF_SCALAR, rate);
    if (!g->error.status) zfi_each_optimizer(g, &t, zfi_show_optimizer);
    zfi_run_passes(g, &t, &zfi_ema_pass, 1);
    if (zfi_wants_fit(&t) && !g->error.status && zfi_fit_training(g, &t, zfi_pass_later))
        return g->error.status;
    zfi_run_passes(g, &t, &zfi_delay_pass, 1);
    zfi_pass_later(g, &t);
    zfi_run_passes(g, &t, zfi_rank_passes, ZFI_COUNT(zfi_rank_passes));
    return g->error.status;
}

static zf_status zfi_pass_fuse_alone(zf_graph *g, const zf_training *t)
{
    return zf_fuse(g, &t->fuse);
}

static const zfi_pass zfi_fuse_alone = {"fuse", zfi_wants_fuse, zfi_pass_fuse_alone};

/* The pass of this name that has a desc of its own; NULL: there is none. */
static const zfi_pass *zfi_pass_called(const char *name)
{
    const struct {
        const zfi_pass *at;
        int count;
    } lists[] = {{&zfi_fuse_alone, 1},
                 {zfi_forward_passes, ZFI_COUNT(zfi_forward_passes)},
                 {&zfi_ema_pass, 1},
                 {zfi_update_passes, ZFI_COUNT(zfi_update_passes)},
                 {zfi_rank_passes, ZFI_COUNT(zfi_rank_passes)}};
    const zf_option *row = zfi_option_in(zfi_training_options, name, strlen(name));
    for (int l = 0; l < ZFI_COUNT(lists) && row && row->kind == ZF_OPTION_DESC; l++)
        for (int k = 0; k < lists[l].count; k++)
            if (!strcmp(lists[l].at[k].name, name)) return &lists[l].at[k];
    return NULL;
}

ZF_API zf_status zf_pass(zf_graph *g, const char *name, const zf_training *training)
{
    const zf_training t = training ? *training : (zf_training){.loss = ZF_NONE};
    const zfi_pass *pass = name ? zfi_pass_called(name) : NULL;
    if (!g) return ZF_ERR_ARGUMENT;
    if (g->error.status) return g->error.status;
    if (!pass)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_pass: there is no pass \"%.100s\"",
                        name ? name : "");
    return pass->run(g, &t);
}

ZF_API zf_training zf_training_resolved(const zf_training *training)
{
    zf_training t = training ? *training : (zf_training){.loss = ZF_NONE};
    const zf_options one = {.rows = zfi_training_options, .desc = &t};
    const double scale = t.precision.scale, alpha = t.lora.alpha;
    const bool adapts = zfi_wants_lora(&t);
    zf_options_resolve(&one, 1);
    t.precision.scale = scale, t.lora.alpha = alpha;
    t.precision = zfi_precision_resolved(&t.precision);
    t.lora = adapts ? zfi_lora_resolved(&t.lora) : (zf_lora_desc){.rank = 0};
    t.recompute = zfi_recompute_resolved(&t);
    t.zero.sum = zfi_sum_of(t.stages.ranks > 1, t.zero.sum);
    t.sections.tensor = zfi_tensor_sections(&t);
    t.sections.context = zfi_context_sections(&t);
    t.sections.expert = zfi_expert_sections(&t);
    return t;
}
