/* The rules of queues and of releases, checked from the nodes alone.
 *
 *     %20 = all_gather %18 ... queue=gather     issued: until the wait, only nodes on its queue
 *           ...                                 may write %18, or read or write %20
 *           wait %20                            complete
 *     %4  = matmul %1, %20
 *           release %20                         no node below reads %20 or a view of it
 *
 *   - queues other than compute have only collectives of several ranks, or copies of one direction;
 *     each has one wait, below it, in the same section, which may run again
 *   - a released value was computed in the step, is complete, and is no output
 *
 * A value and its views count as one value, since reading a view reads the value's bytes. A piece
 * counts as a value of its own: a use of it is in the way of a use of the whole, but not of other
 * pieces. A queue runs in order. So of the collectives on a queue that read (or write) one value,
 * only the last needs to be remembered: when it is complete, all are. */

typedef struct zfi_lane {
    int32_t root;  /* the value of which it is a view; itself */
    int32_t whole; /* of a piece: the root of what it is a piece of; else 0 */
    int32_t read[ZFI_QUEUES], written[ZFI_QUEUES]; /* of a root: the last in flight; 0: none */
    int32_t piece_read[ZFI_QUEUES], piece_written[ZFI_QUEUES]; /* of pieces of it */
    int32_t queues;                                /* of [0]: queues in use */
    bool waited;                                   /* of a collective or copy */
    bool released, kept;                           /* of a root; kept: it is an output */
} zfi_lane;

/* The number of queues that the graph uses, compute among them. */
static int32_t zfi_queue_count(const zf_graph *g)
{
    int32_t count = 1;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].queue >= count) count = g->nodes[g->order[i]].queue + 1;
    return count;
}

/* The node in flight on queue q that is in the way of a use: it writes the value, or reads it where
 * the use writes it; 0: none. */
static int32_t zfi_in_flight(const int32_t *read, const int32_t *written, int q, bool writes)
{
    return written[q] ? written[q] : writes ? read[q] : 0;
}

/* Node `id` uses %arg: an error if a node in flight on another queue uses it. */
static void zfi_check_way(zf_graph *g, const zfi_lane *t, int32_t id, int32_t arg, const char *verb,
                          bool writes)
{
    const zfi_lane *root = &t[t[arg].root], *whole = &t[root->whole];
    for (int q = 1; q < t->queues; q++) {
        int32_t other = zfi_in_flight(root->read, root->written, q, writes);
        if (!other && root->whole) other = zfi_in_flight(whole->read, whole->written, q, writes);
        if (!other && !root->whole)
            other = zfi_in_flight(root->piece_read, root->piece_written, q, writes);
        if (!other || q == g->nodes[id].queue) continue;
        zfi_verify_fail(g, id,
                        "it %s %%%d while %s %%%d on queue %s %s it; wait %%%d must be above", verb,
                        (int)arg, zfi_record_of(g, other)->name, (int)other, zfi_queue_names[q],
                        root->written[q] == other || whole->written[q] == other ||
                                root->piece_written[q] == other
                            ? "writes"
                            : "reads",
                        (int)other);
        return;
    }
}

static void zfi_mark_last(int32_t *last, int32_t id, bool under_way)
{
    if (under_way) *last = id;
    else if (*last == id) *last = 0;
}

/* Marks a node as in flight (`under_way`), or as complete. */
static void zfi_mark_way(const zf_graph *g, zfi_lane *t, int32_t id, bool under_way)
{
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = -1; k < node->arg_count; k++) {
        zfi_lane *root = &t[t[k < 0 ? id : node->args[k]].root], *whole = &t[root->whole];
        zfi_mark_last(&(k < 0 ? root->written : root->read)[node->queue], id, under_way);
        if (root->whole)
            zfi_mark_last(&(k < 0 ? whole->piece_written : whole->piece_read)[node->queue], id,
                          under_way);
    }
}

static void zfi_check_wait(zf_graph *g, zfi_lane *t, int32_t id)
{
    int32_t made = g->nodes[id].args[0];
    if (!g->nodes[made].queue)
        zfi_verify_fail(g, id, "%%%d is on queue compute, where it is complete at once", (int)made);
    else if (t[made].waited) zfi_verify_fail(g, id, "%%%d has been waited for", (int)made);
    t[made].waited = true;
    zfi_mark_way(g, t, made, false);
}

static void zfi_check_release(zf_graph *g, zfi_lane *t, int32_t id)
{
    int32_t arg = g->nodes[id].args[0], root = t[arg].root;
    if (t[root].whole)
        zfi_verify_fail(g, id, "%%%d is a piece, which is released with %%%d", (int)arg,
                        (int)t[root].whole);
    else if (zfi_has(g, root, ZF_OP_LEAF))
        zfi_verify_fail(g, id, "%%%d is a %s, which stays", (int)root,
                        zfi_record_of(g, root)->name);
    else if (t[root].released) zfi_verify_fail(g, id, "%%%d has been released", (int)root);
    else if (t[root].kept)
        zfi_verify_fail(g, id, "%%%d is an output, which is read after the step", (int)root);
    else zfi_check_way(g, t, id, arg, "releases", true);
    t[root].released = true;
}

/* The queue for copies in this direction. */
static uint8_t zfi_queue_of_copy(const zf_graph *g, const zfi_node *copy)
{
    if (copy->space == ZF_DEVICE) return ZFI_QUEUE_UPLOAD;
    if (copy->space == ZF_DISK) return ZFI_QUEUE_WRITE;
    return g->nodes[copy->args[0]].space == ZF_DISK ? ZFI_QUEUE_READ : ZFI_QUEUE_DOWNLOAD;
}

/* Whether the node may run on this queue, other than compute. */
static bool zfi_may_run_on(const zf_graph *g, int32_t id, uint8_t queue)
{
    const zfi_node *node = &g->nodes[id];
    if (node->op == ZF_OP_copy) return queue == zfi_queue_of_copy(g, node);
    return zfi_has(g, id, ZF_OP_COLLECTIVE) && ZF_INT(node, all_gather, world) > 1 &&
           queue < ZFI_QUEUE_DOWNLOAD;
}

static void zfi_check_queue(zf_graph *g, zfi_lane *t, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    int64_t at;
    int32_t viewed = zfi_viewed(g, node, &at);
    t[id].root = viewed < 0 || node->op == ZF_OP_piece ? id : t[node->args[viewed]].root;
    if (node->op == ZF_OP_piece) {
        const int32_t of = t[node->args[0]].root;
        t[id].whole = t[of].whole ? t[of].whole : of;
    }
    if (node->queue && !zfi_may_run_on(g, id, node->queue))
        zfi_verify_fail(g, id, "on queue %s there are %s alone", zfi_queue_names[node->queue],
                        node->queue < ZFI_QUEUE_DOWNLOAD ? "collectives of several ranks"
                                                         : "copies of its direction");
    if (node->op == ZF_OP_wait) zfi_check_wait(g, t, id);
    if (node->op == ZF_OP_release) zfi_check_release(g, t, id);
    if (node->op == ZF_OP_wait || node->op == ZF_OP_release) return;
    /* these do not read their operands */
    if (node->op == ZF_OP_bucket || node->op == ZF_OP_gradient || node->op == ZF_OP_saved ||
        node->op == ZF_OP_piece)
        return;
    for (int32_t k = 0; k < node->arg_count; k++) {
        bool writes = k < 31 && zfi_written_args(g, node) >> k & 1;
        int32_t root = t[node->args[k]].root;
        if (t[root].released || (t[root].whole && t[t[root].whole].released))
            zfi_verify_fail(g, id, "it reads %%%d, whose bytes have been released",
                            (int)node->args[k]);
        if (node->op == ZF_OP_output) /* it is read after the step */
            t[t[root].whole ? t[root].whole : root].kept = true;
        else zfi_check_way(g, t, id, node->args[k], writes ? "writes" : "reads", writes);
    }
    if (node->queue) zfi_mark_way(g, t, id, true);
}

/* Checks a graph whose nodes have been verified. */
static zf_status zfi_verify_queues(zf_graph *g)
{
    size_t count = (size_t)zfi_len(g->nodes);
    zfi_lane *t = zfi_calloc(&g->memory, count, sizeof *t);
    int32_t end = zfi_len(g->order), start = 0; /* the end of the section */
    if (!t) return zfi_graph_nomem(g);
    t->queues = zfi_queue_count(g);
    for (int32_t i = 0; i <= end && !g->error.status; i++) {
        bool update = start < end && zfi_runs_once(&g->nodes[g->order[start]]);
        if (i == end || zfi_runs_once(&g->nodes[g->order[i]]) != update)
            for (; start < i; start++)
                if (g->nodes[g->order[start]].queue && !t[g->order[start]].waited)
                    zfi_verify_fail(g, g->order[start],
                                    "nothing waits for it before the end of the %s section",
                                    update ? "update" : "micro");
        if (i < end) zfi_check_queue(g, t, g->order[i]);
    }
    zfi_free(&g->memory, t, count * sizeof *t);
    return g->error.status;
}
