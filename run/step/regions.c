/* What a step leaves out (plan/regions.c). A backend's sections are always the same launches, so
 * each has what the same coins leave out, and is run or skipped as a whole. */

/* Before a micro-batch: which coins are off, the same in all of them. */
static void zfi_toss_coins(zf_program *p)
{
    for (int32_t k = 0; p->off && k < zfi_len(p->regions.coins); k++) {
        const zfi_node *node = &p->graph->nodes[p->regions.coins[k]];
        const uint64_t bit = (uint64_t)1 << k % 64;
        if (zfi_layer_factor(node->attributes, &p->run) == 0) p->off[k / 64] |= bit;
        else p->off[k / 64] &= ~bit;
    }
}

/* This step leaves out launch n: it does not run, or it waits for one that does not. */
static bool zfi_skips_launch(const zf_program *p, int32_t n)
{
    const zfi_regions *r = &p->regions;
    const int32_t id = zfi_region_of(p, n);
    const uint64_t *set;
    if (!p->off || r->how[id] == ZFI_RUNS) return false;
    set = r->sets + (size_t)id * r->words;
    for (size_t w = 0; w < r->words; w++)
        if (set[w] & ~p->off[w]) return false;
    return true;
}

/* The section that begins at launch n is left out, or is a layer_drop, whose factor is the step's:
 * its launches go one by one. */
static bool zfi_runs_by_coins(const zf_program *p, int32_t n)
{
    return p->off && (p->launches[n].op == ZF_OP_layer_drop || zfi_skips_launch(p, n));
}

/* Launches what stores zeros in `x`, by one of the node's coins. */
static zf_status zfi_leave_zeros(zf_program *p, const zf_launch *of, zf_array x)
{
    const zfi_regions *r = &p->regions;
    const uint64_t *set = r->sets + (size_t)of->node * r->words;
    zf_launch l = *of;
    int32_t coin = 0;
    while (!(set[coin / 64] >> coin % 64 & 1)) coin++;
    l.op = ZF_OP_layer_drop, l.own = NULL;
    l.attributes = p->graph->nodes[r->coins[coin]].attributes;
    l.args = &x, l.arg_count = 1, l.out = x, l.saved = NULL, l.scratch = NULL;
    l.queue = 0, l.comm = NULL, l.disk = NULL, l.span = NULL;
    return zfi_runner(p, &l)->launch(zfi_runner(p, &l)->self, &l);
}

/* Instead of launch n: zeros, where they will be read. Of a sum over micro-batches, which is 0
 * after the first one, nothing further. */
static zf_status zfi_skip_launch(zf_program *p, int32_t n)
{
    const zf_launch *l = &p->launches[n];
    const zfi_node *node = &p->graph->nodes[l->node];
    const bool sums = zfi_written_args(p->graph, node) != 0;
    zf_status status = ZF_OK;
    if (l->op == ZF_OP_wait || (sums && l->run->micro)) return ZF_OK;
    if (p->regions.how[l->node] == ZFI_LEFT_ZERO) status = zfi_leave_zeros(p, l, l->out);
    for (int k = 0; l->saved && k < ZF_MAX_SAVED && !status; k++)
        if (node->saved[k] && p->regions.how[node->saved[k]] == ZFI_LEFT_ZERO)
            status = zfi_leave_zeros(p, l, l->saved[k]);
    return status;
}
