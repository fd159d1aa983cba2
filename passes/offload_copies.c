/* offload, what its kinds share: homes, and copies in the other space. See offload.c.
 *
 *     home       the space in which a leaf lies from one step to the next
 *     copy       of a value in another space, made in front of its first reader there and read by
 *                all that follow
 *     version    how often the bytes of a value have been written: a copy of an older version is
 *                made again
 */

typedef struct zfi_offloading {
    zf_graph *graph;
    zf_offload_desc d;
    int32_t *order;   /* as it was */
    size_t nodes;     /* there were; by node: */
    int32_t *copy;    /* its copy in the other space; 0: none */
    int32_t *version; /* how often its bytes have been written; */
    int32_t *copied;  /* and had been when the copy was made */
    bool *moved;      /* a gradient: read in host memory */
} zfi_offloading;

/* The leaf lies in the space from now on; of a bucket all that lie in it. */
static void zfi_set_home(zf_graph *g, int32_t id, zf_space space)
{
    zfi_node *node = &g->nodes[id];
    node->space = (uint8_t)space;
    for (int32_t k = 0; node->op == ZF_OP_bucket && k < node->arg_count; k++)
        g->nodes[node->args[k]].space = (uint8_t)space;
}

/* Puts a node of before into the new order. */
static void zfi_keep_node(zfi_offloading *o, int32_t id)
{
    if (!o->graph->memory.failed) zfi_push(&o->graph->memory, o->graph->order, id);
}

static bool zfi_has_copy(const zfi_offloading *o, int32_t id)
{
    return o->copy[id] && o->copied[id] == o->version[zfi_bytes_of(o->graph, id)];
}

/* The value in that space: itself, or its copy, which is made unless it is there. */
static int32_t zfi_value_in(zfi_offloading *o, int32_t id, zf_space space)
{
    zf_graph *g = o->graph;
    if ((zf_space)g->nodes[id].space == space) return id;
    if (!zfi_has_copy(o, id)) {
        int32_t made = zfi_append_nodes(g, copy, zfi_with({.i = space}), id);
        o->copy[id] = made;
        o->copied[id] = o->version[zfi_bytes_of(g, id)];
    }
    return o->copy[id];
}
