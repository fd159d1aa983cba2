/* The nodes of a graph by their ids, for spans, which have no more. */

typedef struct zfi_nodes_by_id {
    zf_node *all; /* NULL: there was no memory */
    int32_t count;
} zfi_nodes_by_id;

static size_t zfi_nodes_by_id_bytes(const zfi_nodes_by_id *n)
{
    return ((size_t)n->count + 1) * sizeof *n->all;
}

static zfi_nodes_by_id zfi_nodes_by_id_of(const zf_allocator *a, const zf_graph *g)
{
    zfi_nodes_by_id n = {.count = 0};
    zf_node node;
    for (int32_t k = 0; zf_graph_node(g, k, &node); k++)
        if (node.id >= n.count) n.count = node.id + 1;
    n.all = a->fn(a->user, NULL, 0, zfi_nodes_by_id_bytes(&n));
    if (!n.all) return n;
    memset(n.all, 0, zfi_nodes_by_id_bytes(&n));
    for (int32_t k = 0; zf_graph_node(g, k, &node); k++)
        if (node.id >= 0) n.all[node.id] = node;
    return n;
}

static void zfi_nodes_by_id_free(zfi_nodes_by_id *n, const zf_allocator *a)
{
    if (n->all) a->fn(a->user, n->all, zfi_nodes_by_id_bytes(n), 0);
    n->all = NULL;
}
