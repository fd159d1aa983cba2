/* The table: the record of every row of ZF_OPS. Nothing else lists operators, and a row without a
 * record does not compile. */

static const zfi_record zfi_record_none = {.name = "none"};

static const zfi_record *const zfi_records[ZF_OP_COUNT] = {
    [ZF_OP_none] = &zfi_record_none,
#define ZFI_ROW(name, least, most, attributes) [ZF_OP_##name] = &zfi_record_##name,
#define ZFI_ATTRIBUTE(op, name, kind)
    ZF_OPS(ZFI_ROW, ZFI_ATTRIBUTE)
#undef ZFI_ROW
#undef ZFI_ATTRIBUTE
};

ZF_API const char *zf_op_name(zf_op op)
{
    return (unsigned)op < ZF_OP_COUNT ? zfi_records[op]->name : "?";
}

ZF_API uint32_t zf_op_traits_of(zf_op op)
{
    return (unsigned)op < ZF_OP_COUNT ? zfi_records[op]->traits : 0;
}

ZF_API double zf_launch_flops(const zf_launch *l)
{
    const zfi_record *record = zfi_records[l->op];
    return record->flops ? record->flops(l) : 0;
}

ZF_API double zf_launch_bytes(const zf_launch *l)
{
    const zfi_record *record = zfi_records[l->op];
    double bytes = record->bytes                     ? record->bytes(l)
                   : record->traits & ZF_OP_EFFECT ? 0
                                                   : (double)zfi_array_bytes(&l->out);
    for (int32_t k = 0; k < l->arg_count && !record->bytes; k++)
        bytes += (double)zfi_array_bytes(&l->args[k]);
    for (int k = 0; l->saved && k < ZF_MAX_SAVED; k++)
        if (l->saved[k].data || l->saved[k].shape.rank)
            bytes += (double)zfi_array_bytes(&l->saved[k]);
    return bytes;
}

ZF_API zf_graph *zf_graph_new(const zf_graph_desc *desc)
{
    zfi_memory memory = zfi_memory_of(desc ? &desc->allocator : NULL);
    zf_graph *g = zfi_calloc(&memory, 1, sizeof *g);
    if (!g) return NULL;
    g->memory = memory;
    g->records = zfi_records;
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
    zfi_array_free(&memory, g->streams);
    zfi_array_free(&memory, g->scopes);
    zfi_map_free(&memory, g->names);
    zfi_text_free(&memory, &g->text);
    zfi_free(&memory, g->had, g->had_count);
    zfi_free(&memory, g, sizeof *g);
}
