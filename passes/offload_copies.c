/* offload, shared code: homes of leaves, and copies in another space (offload.c).
 *
 *     home       the space in which a leaf lies from one step to the next
 *     copy       of a value in another space, made above its first reader there and used by
 *                all later readers
 *     version    how often the bytes of a value have been written: a copy of an older version is
 *                not used any more
 */

typedef struct zfi_offloading {
    zf_graph *graph;
    zf_offload_desc d;
    int32_t *order;               /* the order before */
    size_t nodes;                 /* the number of nodes before; by node: */
    int32_t (*copy)[ZF_SPACES];   /* its copies in other spaces; 0: none */
    int32_t (*copied)[ZF_SPACES]; /* how often its bytes had been written when these were made; */
    int32_t *version;             /* and how often they have been written so far */
    bool *moved;                  /* a gradient that is read in host memory */
    /* For parameters; growing arrays, by the number of an offloaded bucket: */
    int32_t *buckets; /* nodes; */
    int32_t *brought; /* its current copy on the device; 0: none */
    zfi_use *uses;    /* uses of whole buckets */
    int32_t *bucket_of; /* by node: the number of the offloaded bucket of which it is a view; -1 */
    int32_t *shown_as;  /* by node, for such a view: the same view of the copy on the device; 0 */
    int32_t *shown_in;  /* and of which copy it is a view */
    bool *late;         /* by node, for such a view: the update section reads it */
} zfi_offloading;

/* Sets the home of the leaf; for a bucket, also of all leaves in it. */
static void zfi_set_home(zf_graph *g, int32_t id, zf_space space)
{
    zfi_node *node = &g->nodes[id];
    node->space = (uint8_t)space;
    for (int32_t k = 0; node->op == ZF_OP_bucket && k < node->arg_count; k++)
        g->nodes[node->args[k]].space = (uint8_t)space;
}

/* Puts a node of the order before into the new order. */
static void zfi_keep_node(zfi_offloading *o, int32_t id)
{
    if (!o->graph->memory.failed) zfi_push(&o->graph->memory, o->graph->order, id);
}

static bool zfi_has_copy(const zfi_offloading *o, int32_t id, zf_space space)
{
    return o->copy[id][space] && o->copied[id][space] == o->version[zfi_bytes_of(o->graph, id)];
}

/* Notes that the copy of `id` in the space has its current bytes. */
static void zfi_note_copy(zfi_offloading *o, int32_t id, zf_space space, int32_t copy)
{
    o->copy[id][space] = copy;
    o->copied[id][space] = o->version[zfi_bytes_of(o->graph, id)];
}

static int32_t zfi_append_copy(zf_graph *g, int32_t id, zf_space space)
{
    return zfi_append_nodes(g, copy, zfi_with({.i = space}), id);
}

/* The value in this space: itself or its copy, which is made unless a current one exists. Copies
 * between device and disk go by way of host memory. */
static int32_t zfi_value_in(zfi_offloading *o, int32_t id, zf_space space)
{
    const zf_space home = (zf_space)o->graph->nodes[id].space;
    int32_t from = id;
    if (home == space) return id;
    if (!zfi_has_copy(o, id, space)) {
        if (home != ZF_HOST && space != ZF_HOST) from = zfi_value_in(o, id, ZF_HOST);
        zfi_note_copy(o, id, space, zfi_append_copy(o->graph, from, space));
    }
    return o->copy[id][space];
}

/* After a write to the copy in this space: copies its bytes back to the value. */
static void zfi_bring_back(zfi_offloading *o, int32_t id, zf_space space)
{
    zf_graph *g = o->graph;
    const zf_space home = (zf_space)g->nodes[id].space;
    int32_t from = o->copy[id][space];
    zfi_note_copy(o, id, space, from);
    if (home != ZF_HOST && space != ZF_HOST) {
        int32_t between = o->copy[id][ZF_HOST];
        zfi_append_nodes(g, copy, zfi_with({.i = ZF_HOST}), from, between);
        zfi_note_copy(o, id, ZF_HOST, between);
        from = between;
    }
    zfi_append_nodes(g, copy, zfi_with({.i = home}), from, id);
}
