/* The table: every row of ZF_OPS with its three functions. Printer, parser, verifier and dispatch
 * read nothing else of an operator, and a row without its functions does not compile. */

static const zfi_row zfi_rows[ZF_OP_COUNT] = {
#define X(name, least, most, attributes, flags)                                                    \
    [ZF_OP_##name] = {#name,           least,         most, attributes, flags, zfi_infer_##name,   \
                      zfi_grad_##name, zfi_cpu_##name},
    ZF_OPS(X)
#undef X
};

ZF_API zf_graph *zf_graph_new(const zf_graph_desc *desc)
{
    zfi_memory memory = zfi_memory_of(desc ? &desc->allocator : NULL);
    zf_graph *g = zfi_calloc(&memory, 1, sizeof *g);
    if (!g) return NULL;
    g->memory = memory;
    g->rows = zfi_rows;
    g->scope = "";
    g->world = 1;
    g->micro_batches = 1;
    zfi_push(&g->memory, g->nodes, ((zfi_node){.op = ZF_OP_none})); /* id 0 is invalid */
    if (g->memory.failed) {
        zf_graph_free(g);
        return NULL;
    }
    return g;
}

ZF_API void zf_graph_free(zf_graph *g)
{
    zfi_memory memory;
    if (!g) return;
    memory = g->memory;
    zfi_array_free(&memory, g->nodes);
    zfi_array_free(&memory, g->order);
    zfi_array_free(&memory, g->params);
    zfi_array_free(&memory, g->scopes);
    zfi_map_free(&memory, g->names);
    zfi_text_free(&memory, &g->text);
    zfi_free(&memory, g->had, g->had_count);
    zfi_free(&memory, g, sizeof *g);
}
