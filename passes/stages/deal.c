/* stages, deal: layers so that the plan of each rank along pipe fits a limit of bytes.
 *
 *     by FLOPs      3,1     rank 0 has the embedding too: it takes 90 of the 80 that there are
 *     within 80     2,2     it gives a layer to the rank that has the most room
 *
 * Ranks between the two pass a layer on. Each choice is a plan of all ranks with the passes that
 * follow; where layers may be recomputed, of what is left then. Layers are dealt by FLOPs if that
 * fits, or if nothing else does. */

enum { ZFI_LAYERS_TEXT = 12 }; /* of one number, with the comma */

typedef struct zfi_rooms {
    zf_graph *graph;
    const zf_training *training;
    int64_t limit, over; /* over: bytes of all ranks that are more than the limit */
    zfi_dealt dealt;
    int64_t *peaks; /* by rank; growing */
    char *text;     /* "3,1" */
} zfi_rooms;

/* The limit of a rank's plan; 0: none. */
static int64_t zfi_limit_of_rank(const zf_training *t)
{
    const size_t bytes = zfi_recompute_resolved(t).bytes, limit = bytes ? bytes : t->memory_limit;
    return limit < INT64_MAX / 2 ? (int64_t)limit : INT64_MAX / 2;
}

/* The peak of a rank of a graph with stages and all passes that follow; -1 with the graph's error. */
static int64_t zfi_peak_of_rank(zf_graph *whole, const zf_training *t, int32_t rank)
{
    zf_graph *g = zf_graph_copy(whole);
    int64_t peak = -1;
    if (!g) return zfi_graph_nomem(whole), -1;
    g->trial = true;
    if (!zf_keep_stage(g, rank) && !zf_memory(g, &(zf_memory_desc){.backend = t->backend}))
        peak = g->peaks[ZF_DEVICE].bytes;
    else zfi_fail(&whole->error, g->error.status, "%s", g->error.text);
    zf_graph_free(g);
    return peak;
}

/* Plans all ranks with the layers of r->text, by FLOPs where it is NULL. */
static void zfi_try_layers(zfi_rooms *r)
{
    zf_training t = *r->training;
    zf_graph *g = r->graph, *trial = zf_graph_copy(g);
    if (!trial) {
        zfi_graph_nomem(g);
        return;
    }
    trial->trial = true;
    if (r->text) t.stages.layers = r->text;
    zfi_stages(trial, &t.stages, NULL, r->text ? NULL : &r->dealt);
    if (t.recompute.mode || t.recompute.bytes)
        t.recompute = (zf_recompute_desc){.mode = ZF_RECOMPUTE_LAYERS}, zf_recompute(trial, &t);
    zfi_run_rank_passes(trial, &t);
    if (r->peaks) stbds_header(r->peaks)->length = 0;
    r->over = 0;
    for (int32_t rank = 0; rank < t.stages.ranks && !trial->error.status; rank++) {
        const int64_t peak = zfi_peak_of_rank(trial, &t, rank);
        if (peak > r->limit) r->over += peak - r->limit;
        zfi_push(&g->memory, r->peaks, peak);
    }
    if (trial->error.status) zfi_fail(&g->error, trial->error.status, "%s", trial->error.text);
    zf_graph_free(trial);
}

/* The stage of the rank with the largest peak that has the most layers; -1: each has one alone. */
static int32_t zfi_stage_to_shorten(const zfi_rooms *r)
{
    int32_t most = 0, found = -1;
    for (int32_t rank = 1; rank < zfi_len(r->peaks); rank++)
        if (r->peaks[rank] > r->peaks[most]) most = rank;
    for (int32_t s = 0; s < zfi_len(r->dealt.layers); s++)
        if (zfi_pipe_rank(r->dealt.pipe, s) == most && r->dealt.layers[s] > 1 &&
            (found < 0 || r->dealt.layers[s] > r->dealt.layers[found]))
            found = s;
    return found;
}

/* Of the rank with the smallest peak the stage that is nearest to stage `from`. */
static int32_t zfi_stage_with_room(const zfi_rooms *r, int32_t from)
{
    int32_t least = 0, found = -1;
    for (int32_t rank = 1; rank < zfi_len(r->peaks); rank++)
        if (r->peaks[rank] < r->peaks[least]) least = rank;
    for (int32_t s = 0; s < zfi_len(r->dealt.layers); s++)
        if (zfi_pipe_rank(r->dealt.pipe, s) == least &&
            (found < 0 || abs(s - from) < abs(found - from)))
            found = s;
    return found;
}

/* Writes the layers of all stages; false: there is no memory for it. */
static bool zfi_write_layers(zfi_rooms *r)
{
    const size_t size = ZFI_LAYERS_TEXT * (size_t)zfi_len(r->dealt.layers);
    size_t at = 0;
    if (!r->text) r->text = zfi_calloc(&r->graph->memory, size, 1);
    for (int32_t s = 0; r->text && s < zfi_len(r->dealt.layers); s++)
        at += (size_t)snprintf(r->text + at, size - at, "%s%d", s ? "," : "",
                               (int)r->dealt.layers[s]);
    return r->text != NULL;
}

/* Moves layers until all ranks fit, each time to fewer bytes over the limit; false: they do not. */
static bool zfi_find_rooms(zfi_rooms *r)
{
    zf_graph *g = r->graph;
    zfi_try_layers(r);
    while (r->over && !g->error.status) {
        const int64_t before = r->over;
        const int32_t from = zfi_stage_to_shorten(r),
                      to = from < 0 ? -1 : zfi_stage_with_room(r, from);
        if (to < 0) return false;
        r->dealt.layers[from]--, r->dealt.layers[to]++;
        if (!zfi_write_layers(r)) return false;
        zfi_try_layers(r);
        if (r->over >= before) return false;
    }
    return !g->error.status;
}

/* Stages whose plans fit the limit of a description of a training step. */
static zf_status zfi_stages_within(zf_graph *g, const zf_training *t)
{
    zfi_rooms r = {.graph = g, .training = t, .limit = zfi_limit_of_rank(t),
                   .dealt.memory = &g->memory};
    zf_stages_desc d = t->stages;
    const bool chosen = d.layers && *d.layers;
    size_t size;
    if (r.limit && d.ranks > 1 && !chosen && !t->zero.store && !g->error.status &&
        zfi_find_rooms(&r) && r.text)
        d.layers = r.text;
    if (!g->error.status) zfi_stages(g, &d, t->zero.store, NULL);
    size = r.text ? ZFI_LAYERS_TEXT * (size_t)zfi_len(r.dealt.layers) : 0;
    zfi_free(&g->memory, r.text, size);
    zfi_array_free(&g->memory, r.dealt.layers);
    zfi_array_free(&g->memory, r.peaks);
    return g->error.status;
}
