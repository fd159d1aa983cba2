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

/* The record of a launch's operator. */
static const zfi_record *zfi_record_for(const zf_launch *l)
{
    return l->own ? &((const zfi_own_operator *)l->own)->record : zfi_records[l->op];
}

ZF_API const char *zf_launch_name(const zf_launch *l)
{
    return l->own ? l->own->name : zf_op_name(l->op);
}

ZF_API zf_status zf_launch_fail(const zf_launch *l, zf_status status, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return zfi_fail(l->error, status ? status : ZF_ERR_ARGUMENT, "%s %%%d: %s",
                    zf_launch_name(l), (int)l->node, text);
}

ZF_API void zf_launch_split(const zf_launch *l, int64_t count, int64_t grain,
                            void (*task)(const zf_launch *, int64_t, int64_t))
{
    zfi_split(l, count, grain < 1 ? 1 : grain, task);
}

ZF_API double zf_launch_flops(const zf_launch *l)
{
    const zfi_record *record = zfi_record_for(l);
    return record->flops ? record->flops(l) : 0;
}

ZF_API double zf_launch_bytes(const zf_launch *l)
{
    const zfi_record *record = zfi_record_for(l);
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
    if (desc) zfi_own_operators(g, desc->operators, desc->operator_count);
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
    zfi_own_free(&memory, g);
    zfi_free(&memory, g, sizeof *g);
}
