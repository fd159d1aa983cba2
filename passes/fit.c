/* fit: what leaves the device so that a step stays within given bytes (zf_training.fit).
 *
 *     optimizer     device   host   disk
 *     parameters    device   host   disk
 *     gradients     device   host   disk
 *     activations   device   host   disk
 *     recompute     nothing         as much as is needed
 *
 * Each combination is planned on a copy of the graph, with the passes that follow, and its time is
 * estimated. From the one that was asked for the search goes on to those that move one thing
 * further, the one with the least time first; the first that fits is taken. So it is the fastest
 * that fits, as long as moving a thing further never makes a step faster.
 *
 * Ranks along pipe have plans of their own, of which each is to fit; the time is that of the
 * slowest.
 *
 * Where updates are delayed from some step on, there are two kinds of steps over one store, whose
 * values share the memory of the one that takes more of the device
 * (zf_compile_desc.shares_memory_with). Both are planned, and the time is that of delayed steps.
 */

/* What can leave the device, and how far. */
static const struct {
    const char *name;
    size_t at; /* in zf_offload_desc */
    zf_space last;
} zfi_fit_kinds[] = {{"optimizer", offsetof(zf_offload_desc, optimizer), ZF_DISK},
                     {"parameters", offsetof(zf_offload_desc, parameters), ZF_DISK},
                     {"gradients", offsetof(zf_offload_desc, gradients), ZF_DISK},
                     {"activations", offsetof(zf_offload_desc, activations), ZF_DISK}};

enum { ZFI_FIT_KINDS = ZFI_COUNT(zfi_fit_kinds), ZFI_FIT_STATES = 3 * 3 * 3 * 3 * 2 };

static zf_space *zfi_space_of_kind(zf_offload_desc *d, int kind)
{
    return (zf_space *)(void *)((char *)d + zfi_fit_kinds[kind].at);
}

/* A combination that was planned. */
typedef struct zfi_fit_state {
    bool planned; /* there is a plan, with */
    bool open;    /* what lies further has not been tried */
    zf_choice choice;
    size_t both; /* bytes of the device that two kinds of steps take more than the first; */
    size_t miss; /* bytes over the limits, of the rank along pipe that misses most; 0: it fits */
    int32_t rank, ranks;      /* that one, of so many */
    size_t bytes[ZF_SPACES]; /* that it takes */
} zfi_fit_state;

/* Bytes that a plan takes of a space: all; those of its leaves, and of these those of a store;
 * those of values of a step. */
typedef struct zfi_fit_bytes {
    int64_t all, leaves, stored, step;
} zfi_fit_bytes;

/* Runs the passes that follow the updates, up to those that zfi_plan_trial runs. */
typedef void zfi_later_passes(zf_graph *g, const zf_training *t);

typedef struct zfi_fitting {
    zf_graph *graph;
    const zf_training *training;
    zfi_later_passes *later;
    zfi_fit_state states[ZFI_FIT_STATES];
    bool tried[ZFI_FIT_STATES];
    int32_t count; /* of those tried */
} zfi_fitting;

static const zf_option zfi_fit_options[] = {
    ZF_OPTION(zf_fit_desc, BYTES, memory, 0, NULL,
              .help = "bytes of device and host memory together"),
    ZF_OPTION(zf_fit_desc, BYTES, device, 0, NULL, .help = "bytes of the device"),
    ZF_OPTION(zf_fit_desc, BYTES, host, 0, NULL, .help = "bytes of host memory",
              .with = "memory|device"),
    ZF_OPTION(zf_fit_desc, BYTES, disk, 0, NULL, .help = "bytes of a disk",
              .with = "memory|device"),
    ZF_OPTION_CODED(zf_fit_desc, choice),
    {.name = NULL}};

static bool zfi_wants_fit(const zf_training *t) { return t->fit.device || t->fit.memory; }

static int zfi_fit_index(const zf_choice *c)
{
    zf_offload_desc d = c->offload;
    int index = c->recompute.mode != ZF_RECOMPUTE_OFF;
    for (int k = 0; k < ZFI_FIT_KINDS; k++)
        index = index * ((int)zfi_fit_kinds[k].last + 1) + (int)*zfi_space_of_kind(&d, k);
    return index;
}

static size_t zfi_over(size_t bytes, size_t limit) { return bytes > limit ? bytes - limit : 0; }

/* Bytes over the limits, all together. */
static size_t zfi_miss_of(const zf_fit_desc *d, const size_t bytes[ZF_SPACES])
{
    size_t miss = zfi_over(bytes[ZF_DISK], d->disk);
    if (d->device) miss += zfi_over(bytes[ZF_DEVICE], d->device);
    if (d->host) miss += zfi_over(bytes[ZF_HOST], d->host);
    if (d->memory) miss += zfi_over(bytes[ZF_DEVICE] + bytes[ZF_HOST], d->memory);
    return miss;
}

/* The limit of the device where so many bytes of host memory are taken; 0: nothing is left. */
static size_t zfi_device_limit(const zf_fit_desc *d, size_t host)
{
    size_t limit = d->device ? d->device : SIZE_MAX;
    if (!d->memory) return limit;
    if (host >= d->memory) return 0;
    return limit < d->memory - host ? limit : d->memory - host;
}

static zfi_fit_bytes zfi_fit_bytes_of(const zf_graph *g, int space)
{
    zfi_fit_bytes taken = {.all = g->peaks[space].bytes};
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const int64_t bytes = node->placed ? zfi_room_of(node->space, node->bytes) : 0;
        if (node->space != space || !zfi_is_persistent(g, node)) continue;
        taken.leaves += bytes;
        if (zfi_is_written(g, node->op)) taken.stored += bytes;
    }
    taken.step = taken.all - taken.leaves - zfi_overhead_of(g, (zf_space)space);
    return taken;
}

/* *step: a copy, as a delayed step or not, with the passes that follow but those of
 * zfi_plan_trial. The graph has an error only if memory is out. */
static zf_status zfi_try_step(zfi_fitting *f, const zf_training *t, bool delayed, zf_graph **step)
{
    zf_graph *g = *step = zf_graph_copy(f->graph);
    if (!g) return zfi_graph_nomem(f->graph);
    g->trial = true;
    if (delayed) zf_delay(g);
    f->later(g, t);
    f->count++;
    if (!g->memory.failed) return g->error.status;
    return zfi_graph_nomem(f->graph);
}

/* Plans a step of a rank along pipe, or of all (-1): its bytes; the most seconds. */
static zf_status zfi_try_rank(zfi_fitting *f, const zf_graph *step, const zf_training *t,
                              int32_t rank, zfi_fit_bytes *taken, double *seconds)
{
    zf_graph *trial = zf_graph_copy(step);
    zf_cost cost = zfi_cost_resolved(t->cost);
    zf_estimate estimate = {0};
    zf_status status;
    if (!trial) return zfi_graph_nomem(f->graph);
    trial->trial = true;
    if (t->backend && !t->backend->host_memory) cost.host.apart = 1;
    if (!zfi_plan_trial(trial, t, rank)) zfi_estimate(trial, &cost, &estimate);
    status = trial->memory.failed ? zfi_graph_nomem(f->graph) : trial->error.status;
    for (int k = 0; k < ZF_SPACES; k++) taken[k] = zfi_fit_bytes_of(trial, k);
    if (estimate.seconds > *seconds) *seconds = estimate.seconds;
    zf_graph_free(trial);
    return status;
}

/* Bytes of all kinds of steps of a rank. Returns those of the device that both take more than the
 * first; late NULL: there is one kind. */
static size_t zfi_bytes_of_kinds(const zfi_fit_bytes *taken, const zfi_fit_bytes *late,
                                 size_t bytes[ZF_SPACES])
{
    for (int k = 0; k < ZF_SPACES; k++) {
        const zfi_fit_bytes *a = &taken[k], *b = late ? &late[k] : a;
        const bool second = late && late[ZF_DEVICE].step > taken[ZF_DEVICE].step;
        const int64_t large = second ? b->step : a->step, small = second ? a->step : b->step,
                      apart = small > large ? small : 0; /* it has no room there */
        bytes[k] = (size_t)a->all;
        if (late) bytes[k] += (size_t)(b->leaves - a->stored + large + apart - a->step);
    }
    return bytes[ZF_DEVICE] - (size_t)taken[ZF_DEVICE].all;
}

/* Plans the steps of each rank along pipe. The time is that of the last kind. */
static zf_status zfi_try_ranks(zfi_fitting *f, zf_graph *const steps[2], const zf_training *t,
                               zf_choice *c, zfi_fit_state *s)
{
    const int32_t pipe = zfi_mesh_size(zfi_mesh_of(steps[0]), ZF_OVER_PIPE);
    s->ranks = pipe > 1 ? pipe : 1;
    for (int32_t rank = 0; rank < s->ranks; rank++) {
        const int32_t of = s->ranks > 1 ? rank : -1;
        zfi_fit_bytes taken[2][ZF_SPACES];
        size_t bytes[ZF_SPACES], both, miss;
        double first = 0, *const seconds = steps[1] ? &first : &c->seconds;
        zf_status status = zfi_try_rank(f, steps[0], t, of, taken[0], seconds);
        if (!status && steps[1]) status = zfi_try_rank(f, steps[1], t, of, taken[1], &c->seconds);
        if (status) return status;
        both = zfi_bytes_of_kinds(taken[0], steps[1] ? taken[1] : NULL, bytes);
        miss = zfi_miss_of(&t->fit, bytes);
        if (!rank || miss > s->miss)
            s->rank = rank, s->miss = miss, memcpy(s->bytes, bytes, sizeof bytes);
        if (both > s->both) s->both = both;
        for (int k = 0; k < ZF_SPACES; k++)
            if (bytes[k] > c->bytes[k]) c->bytes[k] = bytes[k];
    }
    return ZF_OK;
}

/* Plans all kinds of steps by the choice. */
static zf_status zfi_try_choice(zfi_fitting *f, zf_choice *c, zfi_fit_state *s)
{
    zf_training t = *f->training;
    const bool both = t.delay && t.delay_from > 0;
    zf_graph *steps[2] = {NULL, NULL};
    zf_status status;
    *s = (zfi_fit_state){.planned = false};
    *c = (zf_choice){.offload = c->offload, .recompute = c->recompute};
    t.offload = c->offload, t.recompute = c->recompute;
    t.print = NULL, t.after = NULL, t.fuse.miss = NULL;
    status = zfi_try_step(f, &t, t.delay && !both, &steps[0]);
    if (both && !status) status = zfi_try_step(f, &t, true, &steps[1]);
    if (!status) status = zfi_try_ranks(f, steps, &t, c, s);
    zf_graph_free(steps[0]), zf_graph_free(steps[1]);
    return status;
}

/* Adds a combination, unless it was tried. */
static void zfi_add_choice(zfi_fitting *f, zf_choice c)
{
    const int index = zfi_fit_index(&c);
    zfi_fit_state *s = &f->states[index];
    zf_status status;
    if (f->tried[index]) return;
    f->tried[index] = true;
    status = zfi_try_choice(f, &c, s);
    if (status == ZF_ERR_LIMIT && c.recompute.mode == ZF_RECOMPUTE_AS_NEEDED) {
        /* It does not fit, but by how much is to be known. */
        c.recompute = (zf_recompute_desc){.mode = ZF_RECOMPUTE_LAYERS};
        status = zfi_try_choice(f, &c, s);
    }
    if (status) return;
    s->choice = c;
    s->planned = s->open = true;
}

/* The kind goes on to the spaces after its own that may hold it. */
static void zfi_move_on(zfi_fitting *f, const zf_choice *from, int kind)
{
    const zf_fit_desc *d = &f->training->fit;
    zf_choice c = *from;
    const int at = (int)*zfi_space_of_kind(&c.offload, kind);
    for (int space = at + 1; space <= (int)zfi_fit_kinds[kind].last; space++) {
        if (space == ZF_HOST ? !d->host : !d->disk) continue;
        *zfi_space_of_kind(&c.offload, kind) = (zf_space)space;
        /* How much is to be recomputed is another question then. */
        c.recompute = f->training->recompute;
        zfi_add_choice(f, c);
    }
}

/* Tries what lies one move further. */
static void zfi_expand(zfi_fitting *f, zfi_fit_state *s)
{
    zf_choice c = s->choice;
    size_t limit = zfi_device_limit(&f->training->fit, c.bytes[ZF_HOST]);
    if (limit != SIZE_MAX) limit = zfi_over(limit, s->both);
    s->open = false;
    for (int k = 0; k < ZFI_FIT_KINDS; k++) zfi_move_on(f, &s->choice, k);
    if (c.recompute.mode != ZF_RECOMPUTE_OFF || !limit || limit == SIZE_MAX) return;
    c.recompute = (zf_recompute_desc){ZF_RECOMPUTE_AS_NEEDED, limit};
    zfi_add_choice(f, c);
}

ZF_API size_t zf_choice_text(const zf_choice *c, char *text, size_t size)
{
    zf_offload_desc d = {.optimizer = ZF_DEVICE};
    char all[160] = "";
    size_t at = 0;
    if (!c) return 0;
    d = c->offload;
    for (int k = 0; k < ZFI_FIT_KINDS; k++)
        if (*zfi_space_of_kind(&d, k))
            at += (size_t)snprintf(all + at, sizeof all - at, "%s%s=%s", at ? "," : "",
                                   zfi_fit_kinds[k].name, zf_space_name(*zfi_space_of_kind(&d, k)));
    if (c->recompute.mode != ZF_RECOMPUTE_OFF)
        at += (size_t)snprintf(all + at, sizeof all - at, "%srecompute", at ? ", " : "");
    if (!at) at = (size_t)snprintf(all, sizeof all, "all on the device, nothing recomputed");
    if (size && text) snprintf(text, size, "%s", all);
    return at;
}

static zf_status zfi_nothing_fits(zf_graph *g, const zf_fit_desc *d, const zfi_fit_state *best)
{
    static const char *const names[] = {"of the device", "of host memory", "of the disk",
                                        "of memory"};
    const size_t *bytes = best->bytes;
    const size_t takes[] = {bytes[ZF_DEVICE], bytes[ZF_HOST], bytes[ZF_DISK],
                            bytes[ZF_DEVICE] + bytes[ZF_HOST]},
                 limits[] = {d->device ? d->device : SIZE_MAX, d->host ? d->host : SIZE_MAX,
                             d->disk, d->memory ? d->memory : SIZE_MAX};
    char choice[160], over[300] = "", of[40] = "";
    size_t at = 0;
    zf_choice_text(&best->choice, choice, sizeof choice);
    for (int k = 0; k < 4; k++)
        if (takes[k] > limits[k])
            at += (size_t)snprintf(over + at, sizeof over - at, "%s%zu bytes %s, %zu more than %zu",
                                   at ? ", and " : "", takes[k], names[k], takes[k] - limits[k],
                                   limits[k]);
    if (best->ranks > 1) snprintf(of, sizeof of, " rank %d along pipe", (int)best->rank);
    return zfi_fail(&g->error, ZF_ERR_LIMIT,
                    "zf_passes: nothing fits%s; what comes nearest (%s) takes %s", of, choice,
                    over);
}

/* Chooses t->offload and t->recompute, by the graph as it is in front of zf_delay. */
static zf_status zfi_fit_training(zf_graph *g, zf_training *t, zfi_later_passes *later)
{
    zfi_fitting f = {.graph = g, .training = t, .later = later};
    zf_choice first = {.recompute = t->recompute, .offload = t->offload};
    zfi_fit_state *best = NULL, *nearest = NULL;
    if (t->cost && zfi_check_cost(g, "zf_passes", t->cost)) return g->error.status;
    zfi_add_choice(&f, first);
    /* What is wrong with the description itself is said by the passes. */
    if (!f.states[zfi_fit_index(&first)].planned) return g->error.status;
    first = f.states[zfi_fit_index(&first)].choice;
    for (;;) {
        best = NULL;
        for (int k = 0; k < ZFI_FIT_STATES; k++)
            if (f.states[k].open && (!best || f.states[k].choice.seconds < best->choice.seconds))
                best = &f.states[k];
        if (!best || !best->miss) break;
        zfi_expand(&f, best);
        if (g->error.status) return g->error.status;
    }
    for (int k = 0; k < ZFI_FIT_STATES && !best; k++)
        if (f.states[k].planned && (!nearest || f.states[k].miss < nearest->miss))
            nearest = &f.states[k];
    if (!best) return zfi_nothing_fits(g, &t->fit, nearest);
    best->choice.free_seconds = first.seconds;
    best->choice.tried = f.count;
    t->offload = best->choice.offload, t->recompute = best->choice.recompute;
    if (t->fit.choice) *t->fit.choice = best->choice;
    return ZF_OK;
}
