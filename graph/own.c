/* A program's own operators (zf_operator). They are checked once, when the graph is made. The graph
 * owns their records, which follow those of ZF_OPS.
 *
 *     records   none | input | ... | lamb_apply | own[0] | own[1] | ...
 *     zf_op     0      1             COUNT - 1    ZF_OP_OWN
 */
enum {
    ZFI_OWN_TRAITS = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_BY_ROWS | ZF_OP_PRODUCT |
                     ZF_OP_WANTS_F32 | ZF_OP_COMPARES | ZF_OP_READS_HALF,
    ZFI_OWN_NAME = 63,
    ZFI_OWN_TEXT = 255 /* longest text of attributes */
};

/* ------------------------------------------------------------------------------------ infer */

ZF_API zf_status zf_infer_fail(zf_infer *infer, zf_status status, const char *format, ...)
{
    char text[256];
    va_list args;
    if (!infer || !infer->node) return ZF_ERR_ARGUMENT;
    va_start(args, format);
    vsnprintf(text, sizeof text, format ? format : "it failed", args);
    va_end(args);
    return zfi_infer_fail(infer->node, status ? status : ZF_ERR_ARGUMENT, "%s", text);
}

static zf_status zfi_own_alike(zf_infer *c)
{
    if (c->dtype != ZF_F32 && c->dtype != ZF_BF16 && c->dtype != ZF_F16)
        return zf_infer_fail(c, ZF_ERR_DTYPE, "the operand must be f32, bf16 or f16; for others the "
                                              "operator needs an infer function");
    for (int32_t k = 1; k < c->arg_count; k++)
        if (c->args[k].dtype != c->dtype)
            return zf_infer_fail(c, ZF_ERR_DTYPE,
                                 "the operands must have one dtype (zf_cast converts)");
        else if (!zfi_same_shape(&c->args[k].shape, &c->shape))
            return zf_infer_fail(c, ZF_ERR_SHAPE, "the operands must have one shape");
    return ZF_OK;
}

/* The array has the rows of `over`: all its dimensions but the last. */
static bool zfi_has_rows(const zf_shape *x, const zf_shape *over)
{
    int32_t rows = over->rank - 1;
    return x->rank >= rows && !memcmp(x->dims, over->dims, (size_t)rows * sizeof *x->dims);
}

/* Checks that the shapes are as the traits promise, since kernels are run in pieces on that
 * promise. */
static zf_status zfi_own_fits(zf_infer *c)
{
    const zf_operator *own = c->own;
    const zf_shape *over = &c->args[own->rows < c->arg_count ? own->rows : 0].shape;
    char type[ZFI_TYPE_TEXT];
    zfi_type_text(type, c->dtype, &c->shape);
    for (int32_t k = 0; k < c->arg_count && own->traits & ZF_OP_ELEMENTWISE; k++)
        if (!zfi_broadcasts_to(&c->args[k].shape, &c->shape))
            return zf_infer_fail(c, ZF_ERR_SHAPE,
                                 "the operator is ELEMENTWISE, and operand %d does not broadcast to "
                                 "the result, %s",
                                 (int)k, type);
    if (!(own->traits & ZF_OP_BY_ROWS)) return ZF_OK;
    if (own->rows >= c->arg_count || over->rank < 1)
        return zf_infer_fail(c, ZF_ERR_SHAPE, "the operator is BY_ROWS, and operand %d has no rows",
                             (int)own->rows);
    for (int32_t k = 0; k < c->arg_count; k++)
        if (!(own->whole >> k & 1) && !zfi_has_rows(&c->args[k].shape, over))
            return zf_infer_fail(c, ZF_ERR_SHAPE,
                                 "the operator is BY_ROWS, and operand %d lacks the rows of "
                                 "operand %d",
                                 (int)k, (int)own->rows);
    if (!zfi_has_rows(&c->shape, over))
        return zf_infer_fail(c, ZF_ERR_SHAPE,
                             "the operator is BY_ROWS, and the result, %s, lacks the rows of "
                             "operand %d",
                             type, (int)own->rows);
    return ZF_OK;
}

/* The function infer of all own operators. */
static zf_status zfi_infer_own(zfi_infer *c)
{
    const zf_operator *own = c->record->own;
    zf_array args[ZF_OWN_OPERANDS];
    zf_infer of = {own, c->arg_count, args, c->attributes, ZF_F32, ZF_SCALAR, c};
    zf_status status;
    for (int32_t k = 0; k < c->arg_count; k++)
        args[k] = (zf_array){NULL, c->args[k]->dtype, c->args[k]->shape};
    of.dtype = args[0].dtype, of.shape = args[0].shape;
    status = own->infer ? own->infer(&of) : zfi_own_alike(&of);
    if (!status) status = c->graph->error.status;
    if (status)
        return zfi_infer_fail(c, status, "its infer function returned \"%s\"",
                              zf_status_name(status));
    if (!zf_dtype_size(of.dtype) || of.shape.rank < 0 || of.shape.rank > ZF_MAX_RANK)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "its infer function made dtype %d of rank %d; there are dtypes to %d "
                              "and ranks from 0 to %d",
                              (int)of.dtype, (int)of.shape.rank, (int)ZF_BOOL, ZF_MAX_RANK);
    if ((status = zfi_own_fits(&of))) return status;
    c->dtype = of.dtype;
    c->shape = of.shape;
    return ZF_OK;
}

/* The function cpu of all own operators. */
static zf_status zfi_cpu_own(const zf_launch *l)
{
    zf_status status = l->own->cpu(l);
    if (!status) return l->error ? l->error->status : ZF_OK;
    return zf_launch_fail(l, status, "its kernel returned \"%s\"", zf_status_name(status));
}

/* ---------------------------------------------------------------------------------- records */

static bool zfi_is_letter(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }

/* The length of a name at `text`: letters and _, after the first also digits. */
static size_t zfi_name_length(const char *text)
{
    size_t length = 0;
    while (zfi_is_letter(text[length]) || (length && text[length] >= '0' && text[length] <= '9'))
        length++;
    return length;
}

/* The text after the kind at `text`, which is one of i f b d l v or e(NAME|NAME); NULL where it is
 * none. */
static const char *zfi_after_kind(const char *text)
{
    size_t length;
    if (!*text || !strchr("ifbdlve", *text)) return NULL;
    if (*text != 'e') return text + 1;
    if (*++text != '(') return NULL;
    do {
        if (!(length = zfi_name_length(text + 1))) return NULL;
        text += 1 + length;
    } while (*text == '|');
    return *text == ')' ? text + 1 : NULL;
}

/* The text is "name:kind name:kind ...". */
static bool zfi_is_attributes(const char *text)
{
    int count = 0;
    for (const char *at = text; *at;) {
        size_t length = zfi_name_length(at);
        if (!length || at[length] != ':' || ++count > ZF_MAX_ATTRIBUTES) return false;
        for (const char *other = text; other < at; other = strchr(other, ' ') + 1)
            if (!memcmp(other, at, length + 1)) return false; /* given twice */
        if (!(at = zfi_after_kind(at + length + 1)) || (*at && (*at != ' ' || !at[1])))
            return false;
        at += *at == ' ';
    }
    return strlen(text) <= ZFI_OWN_TEXT;
}

/* The operator of this name; ZF_OP_none: there is none. */
static zf_op zfi_op_called(const zf_graph *g, const char *name, size_t length)
{
    for (int op = ZF_OP_none + 1; op < ZF_OP_COUNT + g->own_count; op++)
        if (strlen(g->records[op]->name) == length && !memcmp(g->records[op]->name, name, length))
            return (zf_op)op;
    return ZF_OP_none;
}

/* Describes a mistake in own operator k, in text[0..size); "" where there is none. */
static void zfi_check_own(const zf_graph *g, int32_t k, char *text, size_t size)
{
    const zf_operator *o = &g->own[k].op;
    uint32_t other = o->traits & ~(uint32_t)ZFI_OWN_TRAITS;
    if (!*o->name || o->name[zfi_name_length(o->name)] || strlen(o->name) > ZFI_OWN_NAME)
        snprintf(text, size, "a name has 1 to %d letters a to z, digits and _, no digit first",
                 ZFI_OWN_NAME);
    else if (zfi_op_called(g, o->name, strlen(o->name)) != (zf_op)(ZF_OP_OWN + k) ||
             !strcmp(o->name, "none"))
        snprintf(text, size, "there is one of that name already");
    else if (o->least < 1 || o->most < o->least || o->most > ZF_OWN_OPERANDS)
        snprintf(text, size, "it takes %d to %d operands; it must be 1 to %d", (int)o->least,
                 (int)o->most, ZF_OWN_OPERANDS);
    else if (!zfi_is_attributes(o->attributes))
        snprintf(text, size,
                 "attributes is \"%.80s\"; it must be such as \"p:f axis:i form:e(erf|tanh)\", with "
                 "at most %d names, each once, of kinds i f b d l v and e",
                 o->attributes, ZF_MAX_ATTRIBUTES);
    else if (other)
        snprintf(text, size,
                 "traits has the bits %#x; INPLACE, ELEMENTWISE, BY_ROWS, PRODUCT, WANTS_F32, "
                 "COMPARES and READS_HALF are for operators of one's own",
                 (unsigned)other);
    else if (o->traits & ZF_OP_ELEMENTWISE && o->traits & ZF_OP_BY_ROWS)
        snprintf(text, size, "it is ELEMENTWISE or BY_ROWS, not both");
    else if (!(o->traits & ZF_OP_BY_ROWS) && (o->whole || o->rows))
        snprintf(text, size, "whole and rows go with the trait BY_ROWS");
    else if (!(o->traits & ZF_OP_INPLACE) && o->over)
        snprintf(text, size, "over goes with the trait INPLACE");
    else if (o->rows < 0 || o->rows >= o->least || o->whole >> o->rows & 1 ||
             (o->whole | o->over) >> o->most)
        snprintf(text, size,
                 "rows is %d, whole %#x and over %#x; rows must be an operand that is always there "
                 "and not in whole, and the masks have bits of operands",
                 (int)o->rows, (unsigned)o->whole, (unsigned)o->over);
    else if (*o->cuts && zfi_cuts_wrong(&g->own[k].record, o->cuts))
        snprintf(text, size, "cuts is \"%.80s\": %s", o->cuts,
                 zfi_cuts_wrong(&g->own[k].record, o->cuts));
    else if (!o->cpu) snprintf(text, size, "cpu is NULL; it must be the kernel");
    else if (o->cuda_scratch && !o->cuda)
        snprintf(text, size, "cuda_scratch goes with a kernel, cuda");
}

/* Makes the records of a graph's own operators, whose text the graph has. */
static void zfi_make_records(zf_graph *g, const zfi_record *const *records)
{
    for (int32_t k = 0; k < ZF_OP_COUNT; k++) g->all_records[k] = records[k];
    for (int32_t k = 0; k < g->own_count; k++) {
        const zf_operator *o = &g->own[k].op;
        g->own[k].record = (zfi_record){.name = o->name,
                                        .least = o->least,
                                        .most = o->most,
                                        .attributes = o->attributes,
                                        .traits = o->traits,
                                        .infer = zfi_infer_own,
                                        .grad = o->grad,
                                        .cpu = o->cpu ? zfi_cpu_own : NULL,
                                        .scratch = o->scratch,
                                        .flops = o->flops,
                                        .functions = o->functions,
                                        .over = o->over,
                                        .whole = o->whole,
                                        .rows = o->rows,
                                        .cuts = *o->cuts ? o->cuts : NULL,
                                        .own = o};
        g->all_records[ZF_OP_OWN + k] = &g->own[k].record;
    }
    g->records = g->all_records;
}

static size_t zfi_records_count(const zf_graph *g) { return ZF_OP_COUNT + (size_t)g->own_count; }

/* Makes room for `count` own operators; false where there is no memory. */
static bool zfi_own_room(zf_graph *g, int32_t count)
{
    g->own_count = count;
    g->own = zfi_calloc(&g->memory, (size_t)count, sizeof *g->own);
    g->all_records = zfi_calloc(&g->memory, zfi_records_count(g), sizeof *g->all_records);
    return g->own && g->all_records;
}

static void zfi_own_free(zfi_memory *memory, zf_graph *g)
{
    zfi_free(memory, g->all_records, zfi_records_count(g) * sizeof *g->all_records);
    zfi_free(memory, g->own, (size_t)g->own_count * sizeof *g->own);
}

/* Adds the operators to a new graph, whose records are those of ZF_OPS. A mistake in one of them is
 * the graph's error. */
static void zfi_own_operators(zf_graph *g, const zf_operator *operators, int32_t count)
{
    if (count < 0 || count > ZF_MAX_OPERATORS || (count && !operators)) {
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_graph_new: operator_count is %d and operators is %s; there can be 0 to %d, in an "
                 "array",
                 (int)count, operators ? "not NULL" : "NULL", (int)ZF_MAX_OPERATORS);
        return;
    }
    if (!count || !zfi_own_room(g, count)) return;
    for (int32_t k = 0; k < count; k++) {
        zf_operator *o = &g->own[k].op;
        const char *name = operators[k].name ? operators[k].name : "",
                   *attributes = operators[k].attributes ? operators[k].attributes : "",
                   *cuts = operators[k].cuts ? operators[k].cuts : "";
        *o = operators[k];
        if (!o->least) o->least = 1;
        if (!o->most) o->most = o->least;
        o->name = zfi_text_copy(&g->memory, &g->text, name, strlen(name));
        o->attributes = zfi_text_copy(&g->memory, &g->text, attributes, strlen(attributes));
        o->cuts = zfi_text_copy(&g->memory, &g->text, cuts, strlen(cuts));
    }
    if (g->memory.failed) return;
    zfi_make_records(g, g->records);
    for (int32_t k = 0; k < count && !g->error.status; k++) {
        char wrong[320] = "";
        zfi_check_own(g, k, wrong, sizeof wrong);
        if (*wrong)
            zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_graph_new: operator %d, \"%.80s\": %s", (int)k,
                     g->own[k].op.name, wrong);
    }
}

/* ---------------------------------------------------------------------------------- builder */

/* Checks that the attributes' values are of their kinds. */
static bool zfi_own_values(zf_graph *g, const zfi_record *record, const zf_attribute *values)
{
    const char *fields = record->attributes;
    zfi_field field;
    for (int k = 0, length; zfi_next_field(&fields, &field); k++) {
        const zf_attribute *a = &values[k];
        bool listed = field.kind == 'l' || field.kind == 'v';
        if (listed && a->list.count >= 0 && (a->list.data || !a->list.count)) continue;
        if (field.kind == 'i' || field.kind == 'f') continue;
        if (field.kind == 'b' && (a->i == 0 || a->i == 1)) continue;
        if (field.kind == 'd' && a->i >= 0 && a->i <= ZF_BOOL) continue;
        if (field.kind == 'e' && a->i >= 0 && zfi_choice(field.choices, a->i, &length)) continue;
        zfi_graph_fail(g, ZF_ERR_ARGUMENT, record->name, "%.*s, attribute %d, is %s", field.name_length,
                       field.name, k,
                       listed              ? "a list without elements, or of less than none"
                       : field.kind == 'b' ? "neither 0 nor 1"
                       : field.kind == 'd' ? "no dtype"
                                           : "the index of no choice");
        return false;
    }
    return true;
}

ZF_API zf_tensor zf_apply(zf_graph *g, const char *name, int32_t count, const zf_tensor *x,
                          const zf_attribute *values)
{
    zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {{0}};
    zf_tensor none = {g, 0};
    const char *fields;
    zfi_field field;
    zf_op op;
    if (!g) return ZFI_LOST;
    if (g->error.status) return none;
    op = name ? zfi_op_called(g, name, strlen(name)) : ZF_OP_none;
    if (op < ZF_OP_OWN) {
        zfi_graph_fail(g, ZF_ERR_ARGUMENT, "zf_apply",
                       "\"%.80s\" is no operator of the program's own; zf_graph_desc.operators lists "
                       "%d of them",
                       name ? name : "NULL", (int)g->own_count);
        return none;
    }
    if (count < 1 || !x || x[0].graph != g) {
        zfi_graph_fail(g, ZF_ERR_ARGUMENT, name, "operand 0 is no tensor of this graph");
        return none;
    }
    fields = g->records[op]->attributes;
    for (int k = 0; zfi_next_field(&fields, &field) && values; k++) attributes[k] = values[k];
    if (!zfi_own_values(g, g->records[op], attributes)) return none;
    return zfi_build(op, count, x, attributes);
}
