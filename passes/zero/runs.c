/* Runs of uses: consecutive uses of a bucket in the micro section, with no other bucket between
 * them. Frozen buckets and trained ones, an adapter's for example, have runs apart from each other.
 *
 *     uses   A A A   B B   C C   B B   A A        runs of A: 2, of B: 2, of C: 1
 *     uses   A a A a A   B a B                    runs of A: 1, of B: 1, of a, which is trained: 1
 *
 * A run ends with its task, where a step has a schedule (ir/sections.c).
 *
 * A pass that gathers a bucket or copies it to the device does so once for each run. */

/* A use of a bucket by the node at `position` of the micro section. */
typedef struct zfi_use {
    int32_t position, bucket;
    bool opens, closes; /* it is the first of a run, the last of a run */
} zfi_use;

/* Tasks of a pipeline run one node and the other, so what one has gathered the other has not. */
static bool zfi_are_apart(const zf_graph *g, int32_t a, int32_t b)
{
    return g->nodes[a].task != g->nodes[b].task ||
           (g->schedule && g->nodes[a].stage != g->nodes[b].stage);
}

/* Finds which nodes of the micro section of `order` use which buckets, and where runs of uses begin
 * and end: a run ends where another bucket is used before the next use. bucket_of: by node, the
 * number of the bucket of which it is a view; -1. A view of a bucket does not use it, unless the
 * view is a gradient: gradient_of, by node, is -1 for nodes that are no gradients; NULL: there are
 * none. frozen: by bucket. Returns a growing array. */
static zfi_use *zfi_find_runs(zf_graph *g, const int32_t *order, const int32_t *bucket_of,
                              const int32_t *gradient_of, const bool *frozen, int32_t buckets)
{
    zfi_use *uses = NULL;
    const int32_t end = zfi_len(order);
    int32_t *last =
        zfi_calloc(&g->memory, (size_t)buckets, sizeof *last); /* use of a bucket, + 1 */
    struct {
        int32_t at[2], bucket[2]; /* the last positions of two buckets */
    } recent[2] = {{{-1, -1}, {-1, -1}}, {{-1, -1}, {-1, -1}}}; /* trained, frozen */
    if (!last) return NULL;
    for (int32_t i = 0; i < end && !g->nodes[order[i]].update; i++) {
        const zfi_node *node = &g->nodes[order[i]];
        int32_t before = zfi_len(uses);
        if (node->op == ZF_OP_gradient ||
            (bucket_of[order[i]] >= 0 && (!gradient_of || gradient_of[order[i]] < 0)))
            continue;
        for (int32_t k = 0; k < node->arg_count; k++) {
            int32_t f = bucket_of[node->args[k]], between;
            bool known = false;
            if (f < 0) continue;
            for (int32_t u = before; u < zfi_len(uses); u++) known |= uses[u].bucket == f;
            if (known) continue;
            /* where another bucket was used last */
            between = recent[frozen[f]].at[recent[frozen[f]].bucket[0] == f];
            if (!zfi_push(&g->memory, uses, ((zfi_use){i, f, false, false}))) break;
            if (!last[f] || uses[last[f] - 1].position < between ||
                zfi_are_apart(g, order[uses[last[f] - 1].position], order[i])) {
                stbds_arrlast(uses).opens = true;
                if (last[f]) uses[last[f] - 1].closes = true;
            }
            last[f] = zfi_len(uses);
        }
        for (int32_t u = before; u < zfi_len(uses); u++) {
            int32_t f = uses[u].bucket, *at = recent[frozen[f]].at, *of = recent[frozen[f]].bucket;
            if (of[0] != f) at[1] = at[0], of[1] = of[0], of[0] = f;
            at[0] = i;
        }
    }
    for (int32_t f = 0; f < buckets; f++)
        if (last[f]) uses[last[f] - 1].closes = true;
    zfi_free(&g->memory, last, (size_t)buckets * sizeof *last);
    return uses;
}
