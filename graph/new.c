/* Making and freeing a graph. */

/* A program, or whoever made the graph, needs it no more. */
static void zfi_graph_give_up(zf_graph *g)
{
    zfi_memory memory;
    if (--g->owners) return;
    memory = g->memory;
    zfi_array_free(&memory, g->nodes);
    zfi_array_free(&memory, g->order);
    zfi_array_free(&memory, g->params);
    zfi_array_free(&memory, g->declared);
    zfi_array_free(&memory, g->away);
    zfi_array_free(&memory, g->streams);
    zfi_array_free(&memory, g->scopes);
    zfi_map_free(&memory, g->names);
    zfi_text_free(&memory, &g->text);
    zfi_free(&memory, g->had, g->had_count);
    zfi_own_free(&memory, g);
    zfi_free(&memory, g, sizeof *g);
}

ZF_API void zf_graph_free(zf_graph *g)
{
    if (g && g->pass)
        zfi_fail(&g->error, ZF_ERR_STAGE, "zf_graph_free: called while %s rewrites the graph",
                 g->pass);
    else if (g && !g->freed) g->freed = true, zfi_graph_give_up(g);
}

/* An empty graph with the library's operators, as zf_graph_new makes it. */
static zf_graph *zfi_graph_new(const zf_graph_desc *desc, const zfi_record *const *records)
{
    zfi_memory memory = zfi_memory_of(desc ? &desc->allocator : NULL);
    zf_graph *g = zfi_calloc(&memory, 1, sizeof *g);
    if (!g) return NULL;
    g->memory = memory;
    g->owners = 1;
    g->records = records;
    g->scope = g->training = g->adapter = "";
    g->world = g->mesh_nodes = g->shards = 1;
    g->micro_batches = 1;
    g->chunks = 1;
    zfi_push(&g->memory, g->nodes, ((zfi_node){.op = ZF_OP_none})); /* id 0 is invalid */
    if (desc) zfi_own_operators(g, desc->operators, desc->operator_count);
    if (g->memory.failed) {
        zf_graph_free(g);
        return NULL;
    }
    return g;
}
