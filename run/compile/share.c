/* What a launch has of its own on this rank, where ranks share a value: its share of random numbers,
 * and the number of the first row of its part of a table. The text of the graph is that of all
 * ranks. */

/* This rank's share of a value that is cut. */
static zf_share zfi_share_here(const zf_program *p, int32_t id)
{
    const zfi_node *node = &p->graph->nodes[id];
    return zfi_share_of(zfi_mesh_of(p->graph), &node->shape, &node->spread, p->run.rank);
}

/* What a launch has of its own. */
typedef struct zfi_own_of_launch {
    zf_share share;
    zf_attribute attributes[ZF_MAX_ATTRIBUTES];
} zfi_own_of_launch;

/* The value of the node by which its random numbers are counted; 0: it is not cut, or draws none. */
static int32_t zfi_drawn_by(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    const zfi_drawing draws = g->records[node->op]->draws;
    const int32_t value = draws == ZFI_DRAWS_AS_FIRST ? node->args[0] : id;
    if (!draws || zfi_node_stream(g, node) < 0 || !zfi_spread_cut(&g->nodes[value].spread)) return 0;
    return value;
}

/* The letter by which rows of the node's table are counted, where the table is cut; *of: a value
 * that has it, at dimension *d. -1: there is none. */
static int32_t zfi_cut_table(const zf_graph *g, int32_t id, zfi_cuts *cuts, int32_t *of, int32_t *d)
{
    const zfi_node *node = &g->nodes[id];
    bool cut = zfi_rows_over(g, node) != 0;
    for (int32_t k = 0; k < node->arg_count; k++)
        cut |= zfi_spread_cut(&g->nodes[node->args[k]].spread) != 0;
    if (!cut || !g->records[node->op]->cuts || !strchr(g->records[node->op]->cuts, '+') ||
        !zfi_cut_of(g, node, cuts))
        return -1;
    for (int32_t v = 0; v <= ZFI_CUT_RESULT; v++) {
        *of = v < node->arg_count ? node->args[v] : id;
        if (v >= node->arg_count && v < ZFI_CUT_RESULT) continue;
        for (*d = 0; cuts->given[v] && *d < g->nodes[*of].shape.rank; ++*d) {
            const int32_t l = cuts->at[v][*d];
            if (l >= 0 && cuts->letter[l].first >= 0 && g->nodes[*of].spread.at[*d]) return l;
        }
    }
    return -1;
}

/* Sets what the launch of a node has of its own; false: it has nothing. */
static bool zfi_set_own(const zf_program *p, int32_t id, zf_launch *l, zfi_own_of_launch *own)
{
    const zf_graph *g = p->graph;
    const int32_t drawn = zfi_drawn_by(g, id);
    zfi_cuts cuts;
    int32_t of, d, letter = zfi_cut_table(g, id, &cuts, &of, &d);
    if (drawn) own->share = zfi_share_here(p, drawn), l->share = &own->share;
    if (letter < 0) return drawn != 0;
    memcpy(own->attributes, l->attributes, sizeof own->attributes);
    own->attributes[cuts.letter[letter].first].i += zfi_share_here(p, of).at[d];
    l->attributes = own->attributes;
    return true;
}

/* Room for what launches have of their own; those of the micro section are there `copies` times. */
static zf_status zfi_make_own(zf_program *p, int32_t copies)
{
    const zf_graph *g = p->graph;
    if (!g->axes.count) return ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        zf_launch l = {.attributes = g->nodes[g->order[i]].attributes};
        zfi_own_of_launch own;
        if (zfi_set_own(p, g->order[i], &l, &own))
            p->own_count += zfi_runs_once(&g->nodes[g->order[i]]) ? 1 : copies;
    }
    if (!p->own_count) return ZF_OK;
    p->own = zfi_calloc(&p->memory, (size_t)p->own_count, sizeof *p->own);
    return p->own ? ZF_OK : zfi_graph_nomem(p->graph);
}
