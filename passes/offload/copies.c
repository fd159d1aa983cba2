/* offload, shared code: homes of leaves, and copies in another space (offload.c).
 *
 *     home       the space in which a leaf lies from one step to the next
 *     copy       of a value in another space, made above its first reader there and used by
 *                all later readers
 *     version    how often the bytes of a value have been written: a copy of an older version is
 *                not used any more
 */

/* A value that is copied to the device for its uses: a bucket of parameters or an activation. */
typedef struct zfi_fetched {
    int32_t node;
    int32_t here;       /* its current copy on the device; 0: none */
    bool activation;    /* a value of the forward pass, read by the backward pass: */
    int32_t from;       /* its copy in host memory or on a disk, */
    int32_t leaves;     /* made after this position of the forward pass */
    int32_t last;       /* the position of its last reader */
} zfi_fetched;

/* Bounds of rows of experts, as those of all ranks that gather shards: on the device, and a copy in
 * host memory; 0: it is not there. */
typedef struct zfi_gathered_bounds {
    int32_t here, host;
} zfi_gathered_bounds;

typedef struct zfi_offloading {
    zf_graph *graph;
    zf_offload_desc d;
    int32_t *order;               /* the order before */
    size_t nodes;                 /* the number of nodes before; by node: */
    int32_t (*copy)[ZF_SPACES];   /* its copies in other spaces; 0: none */
    int32_t (*copied)[ZF_SPACES]; /* how often its bytes had been written when these were made; */
    int32_t *version;             /* and how often they have been written so far */
    bool *moved;                  /* a gradient that is read in host memory */
    bool *whole;                  /* the result of an update, read otherwise than by pieces */
    bool *taken;                  /* it has been put together with another node */
    int32_t *norms_of;            /* its block norms, of a gradient that is moved; 0: none */
    int32_t *cut_as;              /* its first piece, as an index in `pieces` + 1; 0: it has none */
    int32_t *pieces;              /* growing array */
    zfi_fetched *fetched; /* growing array */
    zfi_use *uses;        /* of whole buckets of parameters; growing array */
    int32_t *fetched_of;  /* by node: the index of the value, or of its view's root; -1 */
    int32_t *shown_as;    /* by node, for such a view: the same view of the copy on the device; 0 */
    int32_t *shown_in;    /* and of which copy it is a view */
    bool *late;           /* by node, for such a view: the update section reads it */
    zfi_gathered_bounds *bounds; /* by node */
    int32_t turn;         /* the last position of the forward pass */
    int32_t left;         /* the last activation that left the device, if it is to be copied to a
                           * disk, as an index in `fetched`; -1: none; */
    int32_t left_gradient; /* and the last gradient; 0: none */
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

/* The copy of a value on the device, or the same view of it. */
static int32_t zfi_shown(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    const zfi_fetched *f = &o->fetched[o->fetched_of[id]];
    const zfi_node node = g->nodes[id]; /* appending moves the nodes */
    int32_t x;
    if (id == f->node) return f->here;
    if (o->shown_in[id] == f->here) return o->shown_as[id];
    x = zfi_shown(o, node.args[0]);
    o->shown_in[id] = f->here;
    return o->shown_as[id] = zfi_append_op(g, node.op, &x, 1, node.attributes);
}

/* The node at `position` of the micro section is a view that is appended again, of the copy on the
 * device, where it is used. */
static bool zfi_is_shown_anew(const zfi_offloading *o, int32_t position)
{
    const int32_t id = o->order[position], k = o->fetched_of[id];
    const zfi_fetched *f = k < 0 ? NULL : &o->fetched[k];
    return f && f->node != id && (!f->activation || position > o->turn);
}
