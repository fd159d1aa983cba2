/* The last zf_fuse of a training step: whether the rewrite `invert` is left out, by need, and what
 * of a description says that passes are run.
 */

static bool zfi_wants_training(const zf_training *t) { return t->loss.graph || t->loss.id; }

static bool zfi_wants_fuse(const zf_training *t)
{
    return !t->fuse.without || strcmp(t->fuse.without, "all") != 0;
}

static bool zfi_wants_fuse_again(const zf_training *t)
{
    return (zfi_wants_training(t) || t->fuse.as_trained) && zfi_wants_fuse(t);
}

static bool zfi_wants_recompute(const zf_training *t)
{
    return zfi_wants_training(t) && t->recompute.mode != ZF_RECOMPUTE_OFF;
}

/* Whether the plan stays within the limit without the rewrites of the list and without recomputing;
 * tried on a copy. */
static bool zfi_fits_without(zf_graph *g, const zf_training *t, const char *without)
{
    size_t limit = t->memory_limit;
    zf_graph *trial;
    bool fits;
    if (t->recompute.mode == ZF_RECOMPUTE_LAYERS) return false; /* it is to save memory */
    if (t->recompute.bytes && (!limit || t->recompute.bytes < limit)) limit = t->recompute.bytes;
    if (!limit) return true;
    if (!(trial = zf_graph_copy(g))) {
        zfi_graph_nomem(g);
        return false;
    }
    trial->trial = true;
    fits = !zf_fuse(trial, &(zf_fuse_desc){.without = without}) && !zfi_plan_trial(trial, t, -1) &&
           (size_t)trial->peaks[ZF_DEVICE].bytes <= limit;
    if (trial->error.status == ZF_ERR_NOMEM) zfi_graph_nomem(g);
    zf_graph_free(trial);
    return fits;
}

/* After the optimizer. */
static zf_status zfi_pass_fuse_again(zf_graph *g, const zf_training *t)
{
    const char *names = t->fuse.without ? t->fuse.without : "";
    size_t size = strlen(names) + sizeof "invert,";
    zf_fuse_desc d = t->fuse;
    char *without;
    if (d.invert != ZF_INVERT_AS_NEEDED || zfi_names(names, "invert")) return zf_fuse(g, &d);
    if (!(without = zfi_calloc(&g->memory, size, 1))) return zfi_graph_nomem(g);
    snprintf(without, size, "invert%s%s", *names ? "," : "", names);
    if (zfi_fits_without(g, t, without)) d.without = without;
    if (!g->error.status) zf_fuse(g, &d);
    zfi_free(&g->memory, without, size);
    return g->error.status;
}

