/* Held parameters: all of a store's shards, gathered into memory that programs read until it is
 * given back or another program runs there (passes/hold.c has the graph that gathers).
 *
 *     work of the training    | activations, gathered buckets ...                         |
 *     of a generation         | held parameters | caches | values of a step |
 *                               by zf_hold        by zf_clear_caches
 */

/* What the store holds has changed so many times. */
static int64_t zfi_changes_of(const zf_store *s) { return s->steps + s->loads + s->puts; }

/* The program in whose memory the held parameters of `p` lie; NULL: it has none. */
static zf_program *zfi_holder(zf_program *p)
{
    if (!p->held) return NULL;
    while (!p->graph->nodes[p->held].placed) p = p->caches;
    return p;
}

/* The memory of the holder that others use too; NULL: its own. */
static zfi_work *zfi_held_work(const zf_program *holder)
{
    return holder->temporary ? holder->arenas[ZF_DEVICE].work : NULL;
}

/* The program whose caches this one uses, perhaps itself. */
static zf_program *zfi_lender(zf_program *p)
{
    while (p->caches && !p->temporary) p = p->caches;
    return p;
}

/* A call of `p`, or of a program whose caches are those of `p`, takes the memory over: of what was
 * in there, only the caches and held parameters of `p` remain. */
static void zfi_take_work(zfi_work *work, const zf_program *p)
{
    work->last = work;
    if (work->caches != p) work->caches = NULL;
    if (work->held != p) work->held = NULL;
}

/* What is in the memory that programs share is this one's. */
static void zfi_take_memory(zf_program *p)
{
    for (int space = 0; space < ZF_SPACES; space++) {
        zfi_work *work = p->arenas[space].work;
        if (!work) continue;
        zfi_take_work(work, zfi_lender(p));
        work->last = p;
    }
}

/* The held parameters are there, and those that the store has. */
static zf_status zfi_check_held(zf_program *p, const char *call)
{
    const zf_program *holder = zfi_holder(p);
    const zfi_work *work = zfi_held_work(holder);
    if (!holder->holds || (work && work->held != holder))
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        holder->holds
                            ? "%s: another program has run in the memory of the held parameters; "
                              "zf_hold gathers them again"
                            : "%s: no parameters are held; zf_hold gathers them",
                        call);
    if (holder->held_at == zfi_changes_of(p->store)) return ZF_OK;
    return zfi_fail(&p->error, ZF_ERR_STAGE,
                    "%s: parameters or states have changed since zf_hold, which gathers them again",
                    call);
}

/* The held parameters are there no more. */
static void zfi_let_go(zf_program *holder)
{
    zfi_work *work = zfi_held_work(holder);
    holder->holds = false;
    if (work && work->held == holder) work->held = NULL;
}

ZF_API zf_status zf_release(zf_program *p)
{
    if (!p) return ZF_ERR_ARGUMENT;
    zfi_clear_error(p);
    if (!p->held)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "zf_release: the program has no held parameters (zf_zero_desc.hold)");
    zfi_let_go(zfi_holder(p));
    return ZF_OK;
}
