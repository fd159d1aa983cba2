/* The table of records, one for each row of ZF_OPS. There is no other list of operators. A row
 * without a record does not compile. */

static const zfi_record zfi_record_none = {.name = "none"};

static const zfi_record *const zfi_records[ZF_OP_COUNT] = {
    [ZF_OP_none] = &zfi_record_none,
#define ZFI_ROW(name, least, most, attributes) [ZF_OP_##name] = &zfi_record_##name,
#define ZFI_ATTRIBUTE(op, name, kind)
    ZF_OPS(ZFI_ROW, ZFI_ATTRIBUTE, ZFI_NOTHING, ZFI_NOTHING)
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

/* The launch is one of an operator. */
static bool zfi_is_launch(const zf_launch *l)
{
    return l && (l->own || ((unsigned)l->op < ZF_OP_COUNT && l->op != ZF_OP_none)) &&
           (!l->arg_count || l->args);
}

ZF_API const char *zf_launch_name(const zf_launch *l)
{
    return !l ? "?" : l->own ? l->own->name : zf_op_name(l->op);
}

ZF_API zf_status zf_launch_fail(const zf_launch *l, zf_status status, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format ? format : "it failed", args);
    va_end(args);
    return zfi_fail(l ? l->error : NULL, status ? status : ZF_ERR_ARGUMENT, "%s %%%d: %s",
                    zf_launch_name(l), l ? (int)l->node : 0, text);
}

ZF_API void zf_launch_split(const zf_launch *l, int64_t count, int64_t grain,
                            void (*task)(const zf_launch *, int64_t, int64_t))
{
    if (l && task && count > 0) zfi_split(l, count, grain < 1 ? 1 : grain, task);
}

ZF_API double zf_launch_flops(const zf_launch *l)
{
    const zfi_record *record = zfi_is_launch(l) ? zfi_record_for(l) : NULL;
    return record && record->flops ? record->flops(l) : 0;
}

ZF_API double zf_launch_functions(const zf_launch *l)
{
    const zfi_record *record = zfi_is_launch(l) ? zfi_record_for(l) : NULL;
    return record && record->functions ? record->functions(l) : 0;
}

ZF_API double zf_launch_bytes(const zf_launch *l)
{
    const zfi_record *record = zfi_is_launch(l) ? zfi_record_for(l) : NULL;
    double bytes;
    if (!record) return 0;
    bytes = record->bytes                     ? record->bytes(l)
            : record->traits & ZF_OP_EFFECT ? 0
                                            : (double)zfi_array_bytes(&l->out);
    for (int32_t k = 0; k < l->arg_count && !record->bytes; k++)
        bytes += (double)zfi_array_bytes(&l->args[k]);
    for (int k = 0; l->saved && k < ZF_MAX_SAVED; k++)
        if (l->saved[k].data || l->saved[k].shape.rank)
            bytes += (double)zfi_array_bytes(&l->saved[k]);
    return bytes;
}

static double zfi_halves_of(const zf_array *a)
{
    return zf_dtype_size(a->dtype) == 2 ? (double)zfi_count(a) : 0;
}

/* Values of 16 bits that a launch reads and writes, as operands, results, and between its products;
 * 0 for operators that count their bytes themselves: copies, updates and rows of tables. */
static double zfi_launch_halves(const zf_launch *l)
{
    const zfi_record *record = zfi_record_for(l);
    double halves = zfi_halves_of(&l->out);
    if (record->bytes) return 0;
    for (int32_t k = 0; k < l->arg_count; k++) halves += zfi_halves_of(&l->args[k]);
    for (int k = 0; l->saved && k < ZF_MAX_SAVED; k++)
        if (l->saved[k].data || l->saved[k].shape.rank) halves += zfi_halves_of(&l->saved[k]);
    if (record->between && zfi_halves_of(&l->args[0]) > 0) halves += record->between(l);
    return halves;
}

ZF_API zf_graph *zf_graph_new(const zf_graph_desc *desc)
{
    return zfi_graph_new(desc, zfi_records);
}
