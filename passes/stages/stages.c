/* stages: each rank along pipe has some of the layers.
 *
 * requires: no zero yet; after autograd, the optimizer and cut
 * ensures:  an axis pipe of the mesh, the slowest; each node has the stage of its layer, or is of
 *           all stages
 * before:   %2 = param "h.0.w" : f32[8,8]           %3 = linear %1, %2 : f32[4,8]
 *           %4 = param "h.1.w" : f32[8,8]           %5 = linear %3, %4 : f32[4,8]
 *           output %5 "y"
 * after:    mesh pipe=2
 *           %2 = param "h.0.w" : f32[8,8] stage=0   %3 = linear %1, %2 : f32[4,8] stage=0
 *           %4 = param "h.1.w" : f32[8,8] stage=1   %6 = send %3 {world=2 over=pipe to=1} ...
 *           %5 = linear %6, %4 : f32[4,8] stage=1   %7 = bcast %5 {world=2 over=pipe root=1} ...
 *           output %7 "y"
 *
 * Nothing else changes, so the bits are those of one rank. A tied parameter is of its first
 * reader's stage; the other stage is sent its value, and sends its gradient. So are the sums of a
 * global norm. */

enum { ZFI_STAGES_MOST = INT16_MAX - 1 };

typedef struct zfi_stager {
    zf_graph *graph;
    zfi_layers layers;
    int32_t ranks, stages;
    int32_t *stage; /* of each layer */
    int32_t *sent;  /* by node and rank, of all before 0: where its value is; 0: not there yet */
    int32_t nodes;  /* of the graph before values are sent */
} zfi_stager;

/* ------------------------------------------------------------------------------ dealing layers */

/* The least FLOPs of the stage that has the most, if layers [0, n) are dealt to k stages, for each
 * n; first[k][n]: the first layer of the last of these stages. */
static void zfi_deal_to(const zfi_stager *s, int32_t k, const double *before, double *least,
                        int32_t *first)
{
    for (int32_t n = zfi_len(s->layers.list); n >= 0; n--) {
        double flops = 0;
        least[n] = INFINITY;
        for (int32_t at = n - 1; at >= k - 1; at--) {
            flops += s->layers.list[at].flops;
            if (fmax(before[at], flops) <= least[n])
                least[n] = fmax(before[at], flops), first[n] = at;
        }
    }
}

/* Contiguous layers, the stage with the most FLOPs as few as possible. */
static bool zfi_deal_by_flops(zfi_stager *s)
{
    zfi_memory *memory = &s->graph->memory;
    const int32_t layers = zfi_len(s->layers.list);
    const size_t row = (size_t)layers + 1, all = row * (size_t)(s->stages + 1);
    double *least = zfi_calloc(memory, 2 * row, sizeof *least);
    int32_t *first = zfi_calloc(memory, all, sizeof *first);
    if (least && first) {
        for (int32_t n = 1; n <= layers; n++) least[n] = INFINITY;
        for (int32_t k = 1; k <= s->stages; k++)
            zfi_deal_to(s, k, least + (size_t)(k % 2 ? 0 : 1) * row, least + (size_t)(k % 2) * row,
                        first + (size_t)k * row);
        for (int32_t k = s->stages, end = layers, from; k > 0; k--, end = from) {
            from = first[(size_t)k * row + (size_t)end];
            for (int32_t at = from; at < end; at++) s->stage[at] = k - 1;
        }
    }
    zfi_free(memory, least, 2 * row * sizeof *least);
    zfi_free(memory, first, all * sizeof *first);
    return !memory->failed;
}

/* By a text: "3,3,2". */
static zf_status zfi_deal_by_text(zfi_stager *s, const char *text)
{
    zf_graph *g = s->graph;
    const int32_t layers = zfi_len(s->layers.list);
    int64_t at = 0;
    int32_t stage = 0;
    char quoted[ZFI_QUOTE];
    zfi_quote(quoted, text, strlen(text));
    for (const char *c = text; *c || c == text; stage++) {
        int64_t count = 0;
        const char *const start = c;
        for (; *c >= '0' && *c <= '9' && count < INT32_MAX; c++) count = count * 10 + (*c - '0');
        if (c == start || !count || (*c && *c != ',') || (*c == ',' && !c[1]))
            return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                            "zf_stages: layers is %s; it must be numbers of layers, as 3,3,2",
                            quoted);
        for (int64_t k = at; k < at + count && k < layers; k++) s->stage[k] = stage;
        at += count;
        if (*c) c++;
    }
    if (stage != s->stages)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        s->stages == s->ranks
                            ? "zf_stages: layers is %s, of %d stages, and there are %d ranks along "
                              "pipe"
                            : "zf_stages: layers is %s, of %d stages, and the ranks along pipe "
                              "have %d",
                        quoted, (int)stage, (int)s->stages);
    if (at != layers)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_stages: layers is %s, %lld in all, and the graph has %d layers", quoted,
                        (long long)at, (int)layers);
    return ZF_OK;
}

/* As the parameters of layers are dealt in a store; a layer without any is with the one before.
 * False: it has none of them. */
static bool zfi_deal_by_store(zfi_stager *s, const zf_store *store)
{
    const zf_graph *g = s->graph;
    const int32_t layers = zfi_len(s->layers.list);
    bool some = false;
    for (int32_t k = 0; k < layers; k++) s->stage[k] = -1;
    for (int32_t k = 0; k < zfi_len(g->params); k++) {
        const int32_t of = s->layers.of[g->params[k]],
                      at = zfi_store_find(store, g->nodes[g->params[k]].name),
                      stage = of < 0 || at < 0 ? 0 : store->tensors[at].stage;
        if (stage) s->stage[of] = stage - 1, some = true;
    }
    for (int32_t k = 0; k < layers; k++)
        if (s->stage[k] < 0) s->stage[k] = k ? s->stage[k - 1] : 0;
    return some;
}

static zf_status zfi_deal_layers(zfi_stager *s, const char *text, const zf_store *store)
{
    zf_graph *g = s->graph;
    const int32_t layers = zfi_len(s->layers.list);
    if (!layers)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_stages: there are no layers: no scope and no parameter's name has a "
                        "number, as \"layer.7\" has");
    if (s->stages > layers)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        s->stages == s->ranks
                            ? "zf_stages: %d ranks along pipe, and the graph has %d layers; each "
                              "rank has one or more"
                            : "zf_stages: %d chunks of the ranks along pipe, and the graph has %d "
                              "layers; each chunk has one or more",
                        (int)s->stages, (int)layers);
    s->stage = zfi_calloc(&g->memory, (size_t)layers, sizeof *s->stage);
    if (!s->stage) return zfi_graph_nomem(g);
    if (text && *text) return zfi_deal_by_text(s, text);
    if (store && zfi_deal_by_store(s, store)) return ZF_OK;
    return zfi_deal_by_flops(s) ? ZF_OK : zfi_graph_nomem(g);
}

/* ------------------------------------------------------------------------------------ rewriting */

/* The stage, counted from 1, of the parameter whose gradient the node is; of others the node's. */
static int16_t zfi_gradient_home(const zfi_stager *s, int32_t id)
{
    const int32_t home = id < s->layers.nodes ? s->layers.home[id] : 0;
    return home ? (int16_t)(s->stage[home - 1] + 1) : s->graph->nodes[id].stage;
}

/* The value of a node for readers of another stage (counted from 1; 0: of all). All get a gradient
 * from where its parameter is. */
static int32_t zfi_bring(zfi_stager *s, int32_t id, int16_t stage)
{
    zf_graph *g = s->graph;
    const int32_t from = zfi_rank_at(g, g->nodes[id].stage), to = zfi_rank_at(g, stage),
                  grad = stage ? zfi_gradient_to_drop(g, id) : 0;
    int32_t *const there = &s->sent[(size_t)id * (size_t)(s->ranks + 1) + (size_t)to];
    zf_attribute a[ZF_MAX_ATTRIBUTES] = {{0}};
    if (from == to) return id;
    if (*there) return *there;
    if (grad) {
        const int32_t ds = zfi_bring(s, grad, stage);
        return *there = zfi_append_drop(g, grad, ds);
    }
    if (stage) {
        a[ZF_AT_send_world].i = s->ranks, a[ZF_AT_send_over].i = ZF_OVER_PIPE;
        a[ZF_AT_send_from].i = from - 1, a[ZF_AT_send_to].i = to - 1;
        a[ZF_AT_send_once].i = g->nodes[id].op == ZF_OP_param; /* no micro-batch changes it */
        *there = zfi_append_nodes(g, send, a, id);
        if (*there) g->nodes[*there].stage = stage;
        return *there;
    }
    a[ZF_AT_bcast_world].i = s->ranks, a[ZF_AT_bcast_over].i = ZF_OVER_PIPE;
    a[ZF_AT_bcast_root].i = zfi_rank_at(g, zfi_gradient_home(s, id)) - 1;
    id = zfi_bring(s, id, zfi_gradient_home(s, id));
    return *there = zfi_append_nodes(g, bcast, a, id);
}

/* A gradient that is saved elsewhere goes where its parameter is, before the update section. */
static void zfi_bring_home(zfi_stager *s, int32_t id)
{
    const int16_t home = zfi_gradient_home(s, id);
    if (home != s->graph->nodes[id].stage) zfi_bring(s, id, home);
}

/* The axis pipe, the slowest. */
static void zfi_add_pipe_axis(zf_graph *g, int32_t ranks)
{
    zfi_other_axes *axes = &g->axes;
    memmove(axes->axis + 1, axes->axis, (size_t)axes->count * sizeof *axes->axis);
    axes->axis[0] = (zfi_other_axis){ZF_OVER_PIPE, ranks};
    axes->count++, axes->slower++;
}

static void zfi_stage_nodes(zfi_stager *s)
{
    zf_graph *g = s->graph;
    int32_t *order;
    size_t sent;
    zfi_add_pipe_axis(g, s->ranks);
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const int32_t layer = s->layers.of[g->order[i]];
        g->nodes[g->order[i]].stage = (int16_t)(layer < 0 ? 0 : s->stage[layer] + 1);
    }
    zfi_share_at_boundaries(g);
    s->nodes = zfi_len(g->nodes), order = g->order;
    sent = (size_t)s->nodes * (size_t)(s->ranks + 1);
    s->sent = zfi_calloc(&g->memory, sent, sizeof *s->sent);
    if (!s->sent) return;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->memory.failed && !g->error.status; i++) {
        const int16_t stage = g->nodes[order[i]].stage;
        g->in_update = g->nodes[order[i]].update, g->scope = g->nodes[order[i]].scope;
        for (int32_t k = 0; k < g->nodes[order[i]].arg_count && !g->error.status; k++) {
            const int32_t arg = g->nodes[order[i]].args[k];
            if (!g->nodes[arg].stage || g->nodes[arg].stage == stage) continue;
            g->nodes[order[i]].args[k] = zfi_bring(s, arg, stage); /* which moves the nodes */
        }
        zfi_push(&g->memory, g->order, order[i]);
        if (order[i] < s->layers.nodes && s->layers.home[order[i]]) zfi_bring_home(s, order[i]);
    }
    zfi_array_free(&g->memory, order);
    zfi_free(&g->memory, s->sent, sent * sizeof *s->sent);
}

static const zf_option zfi_schedule_options[] = {
    ZF_OPTION(zf_pipe_schedule, CHOICE, kind, 0, "1f1b|gpipe|interleaved|zb-h1|zb-v",
              .flag = "pipe-schedule", .topic = "ranks",
              .help = "the order of the micro-batches in a step of --pipe"),
    ZF_OPTION(zf_pipe_schedule, COUNT, chunks, 0, "[0,20]", .flag = "pipe-chunks",
              .topic = "ranks", .unit = "V",
              .help = "stages of each rank; 0: 2 of zb-v and of interleaved, else 1"),
    {.name = NULL}};

static const zf_option zfi_stages_options[] = {
    ZF_OPTION(zf_stages_desc, COUNT, ranks, 1, "[1,32766]", .flag = "pipe", .topic = "ranks",
              .unit = "P", .traits = ZF_OPTION_BASIC,
              .help = "ranks of which each has some of the layers; the others share the batch"),
    ZF_OPTION(zf_stages_desc, TEXT, layers, 0, NULL, .flag = "pipe-layers", .unit = "N,N,...",
              .with = "ranks", .help = "the number of layers of each stage; without it by FLOPs and bytes"),
    ZF_OPTION(zf_stages_desc, DESC, schedule, 0, NULL, .with = "ranks",
              .rows = zfi_schedule_options),
    {.name = NULL}};

/* The schedule of the stages, where a step has one to run, or ranks have several stages. */
static zf_status zfi_take_schedule(zfi_stager *s, const zf_pipe_schedule *d)
{
    zf_graph *g = s->graph;
    const zf_pipe pipe = zfi_pipe_resolved(
        &(zf_pipe){.kind = d->kind, .ranks = 1, .micro_batches = 1, .chunks = d->chunks});
    zf_error why = {ZF_OK, ""};
    if (zfi_pipe_check_chunks(pipe, &why))
        return zfi_fail(&g->error, why.status, "zf_stages: %s", why.text);
    s->stages = s->ranks * pipe.chunks;
    if (s->stages > ZFI_STAGES_MOST)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_stages: %d ranks of %d chunks; there are "
                        "at most %d chunks of all ranks",
                        (int)s->ranks, (int)pipe.chunks, (int)ZFI_STAGES_MOST);
    if (s->ranks < 2 || (!(g->stages & ZFI_STAGE_GRADIENTS) && pipe.chunks == 1)) return ZF_OK;
    g->schedule = (int32_t)pipe.kind + 1, g->chunks = pipe.chunks;
    return ZF_OK;
}

/* How layers are dealt. */
typedef struct zfi_dealt {
    zfi_memory *memory; /* of: */
    int32_t *layers;    /* of each stage; growing */
    zf_pipe pipe;
} zfi_dealt;

static void zfi_note_dealt(const zfi_stager *s, zfi_dealt *dealt)
{
    dealt->pipe = zfi_pipe_of(s->graph);
    for (int32_t k = 0; k < s->stages; k++) zfi_push(dealt->memory, dealt->layers, 0);
    for (int32_t k = 0; k < zfi_len(s->layers.list) && zfi_len(dealt->layers) == s->stages; k++)
        dealt->layers[s->stage[k]]++;
}

/* Stages; `store`: layers whose parameters it has are dealt as there; NULL: none. */
static zf_status zfi_stages(zf_graph *g, const zf_stages_desc *desc, const zf_store *store,
                            zfi_dealt *dealt)
{
    zf_stages_desc d = desc ? *desc : (zf_stages_desc){.ranks = 0};
    zfi_stager s = {.graph = g};
    const char *scope;
    zf_status status = zfi_enter(g, "zf_stages", 0, ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    if (status) return status;
    if (zfi_settle_desc("zf_stages", zfi_stages_options, &d, &g->error)) return g->error.status;
    if (zfi_axis_at(&g->axes, ZF_OVER_PIPE) >= 0)
        return zfi_fail(&g->error, ZF_ERR_STAGE, "zf_stages: the ranks have an axis pipe already");
    if (d.ranks > 1 && zfi_check_dense(g, "zf_stages", "rows are gathered from all ranks alike"))
        return g->error.status;
    scope = g->scope;
    s.ranks = d.ranks;
    if (zfi_take_schedule(&s, &d.schedule)) return g->error.status;
    if (zfi_layers_begin(&s.layers, g)) zfi_find_numbered_layers(&s.layers);
    if (g->chunks > 1) store = NULL; /* it has ranks, and not their chunks */
    if (!g->memory.failed && !zfi_deal_layers(&s, d.layers, store) && s.ranks > 1) {
        zfi_stage_nodes(&s);
        if (dealt) zfi_note_dealt(&s, dealt);
        if (g->schedule && !g->memory.failed && !g->error.status) zfi_set_tasks(g, &s.layers);
    }
    zfi_free(&g->memory, s.stage, (size_t)zfi_len(s.layers.list) * sizeof *s.stage);
    zfi_layers_end(&s.layers);
    g->scope = scope;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return g->error.status ? g->error.status : zfi_leave(g, 0);
}

ZF_API zf_status zf_stages(zf_graph *g, const zf_stages_desc *desc)
{
    return zfi_stages(g, desc, NULL, NULL);
}
