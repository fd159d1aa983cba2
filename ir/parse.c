/* Reads the text that print.c writes, generically over the table. Blank lines and comments (# to
 * the end of the line) are skipped. Every node is appended by zfi_append, so text is checked as
 * calls are. */

typedef struct zfi_parser {
    zf_graph *graph;
    const char *line_start, *at, *end; /* of the current line */
    int32_t line, place_line;          /* place_line: the last with a place; 0: none */
    int64_t data; /* ranks along data, as the line mesh says; 0: there is none */
    int32_t *args;                     /* growing array */
    union {
        int64_t *integers;
        double *doubles;
    } lists[ZF_MAX_ATTRIBUTES]; /* growing arrays */
    char *name;                 /* growing array */
} zfi_parser;

ZFI_FAILS(2, 3)
static bool zfi_parse_fail(zfi_parser *p, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    zfi_fail(&p->graph->error, ZF_ERR_PARSE, "%d:%d: %s", (int)p->line,
             (int)(p->at - p->line_start + 1), text);
    return false;
}

static void zfi_skip_space(zfi_parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r')) p->at++;
}

/* Takes `text`, after white space, if it comes next. */
static bool zfi_take(zfi_parser *p, const char *text)
{
    size_t length = strlen(text);
    zfi_skip_space(p);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, text, length)) return false;
    p->at += length;
    return true;
}

static bool zfi_need(zfi_parser *p, const char *text)
{
    return zfi_take(p, text) || zfi_parse_fail(p, "expected '%s'", text);
}

/* The next word after white space; its length is 0 where there is none. */
static const char *zfi_word(zfi_parser *p, int *length)
{
    const char *start;
    zfi_skip_space(p);
    start = p->at;
    while (p->at < p->end && zfi_is_word(*p->at)) p->at++;
    *length = (int)(p->at - start);
    return start;
}

static bool zfi_integer(zfi_parser *p, int64_t *value)
{
    bool negative, any = false;
    uint64_t magnitude = 0;
    zfi_skip_space(p);
    negative = p->at < p->end && *p->at == '-';
    if (negative) p->at++;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++, any = true) {
        uint64_t digit = (uint64_t)(*p->at - '0');
        if (magnitude > ((uint64_t)INT64_MAX - digit) / 10)
            return zfi_parse_fail(p, "the integer is too large");
        magnitude = magnitude * 10 + digit;
    }
    if (!any) return zfi_parse_fail(p, "expected an integer");
    *value = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return true;
}

static bool zfi_double(zfi_parser *p, double *value)
{
    const char *next;
    zfi_skip_space(p);
    next = zfi_double_read(p->at, p->end, value);
    if (!next) return zfi_parse_fail(p, "expected a number");
    p->at = next;
    return true;
}

static bool zfi_parse_id(zfi_parser *p, int64_t *id)
{
    return zfi_need(p, "%") && zfi_integer(p, id);
}

static bool zfi_parse_dtype(zfi_parser *p, zf_dtype *dtype)
{
    int length;
    const char *word = zfi_word(p, &length);
    for (int d = 0; d < ZFI_COUNT(zfi_dtypes); d++)
        if ((int)strlen(zfi_dtypes[d].name) == length &&
            !memcmp(zfi_dtypes[d].name, word, (size_t)length)) {
            *dtype = (zf_dtype)d;
            return true;
        }
    return zfi_parse_fail(p, "expected a dtype: f32, bf16, f16, f64, i32, i64, u8 or bool");
}

/* The next word as one of the axes from `first` on; ZF_OVERS: it is none. */
static int32_t zfi_parse_axis_name(zfi_parser *p, int32_t first, const char **word, int *length)
{
    int32_t over = first;
    *word = zfi_word(p, length);
    while (over < ZF_OVERS && ((int)strlen(zfi_axis_names[over]) != *length ||
                               memcmp(zfi_axis_names[over], *word, (size_t)*length)))
        over++;
    return over;
}

/* The axis of a type that follows `mark`; 0: the mark does not come next, or the axis is wrong. */
static int32_t zfi_parse_axis_after(zfi_parser *p, char mark, uint8_t *seen)
{
    int length;
    const char *word;
    int32_t over;
    if (p->at == p->end || *p->at != mark) return 0;
    p->at++;
    over = zfi_parse_axis_name(p, ZF_OVER_TENSOR, &word, &length);
    if (over == ZF_OVERS)
        zfi_parse_fail(p, "after %c comes one of the axes tensor, context, expert, pipe, group, "
                          "copies", mark);
    else if (zfi_axes_met(*seen) & zfi_axis_bit(over))
        zfi_parse_fail(p, "the type has the axis %s twice", zfi_axis_names[over]);
    else {
        *seen |= zfi_axis_bit(over);
        return over;
    }
    return 0;
}

/* The run after "4096@context/", of the last dimension. */
static bool zfi_parse_run(zfi_parser *p, const zf_shape *shape, zfi_spread *spread)
{
    const int64_t size = shape->dims[shape->rank - 1];
    int64_t *run = &spread->run[shape->rank - 1];
    if (!zfi_integer(p, run)) return false;
    return (*run > 1 && *run < size && size % *run == 0) ||
           zfi_parse_fail(p, "runs of %lld do not make %lld elements", (long long)*run,
                          (long long)size);
}

/* All elements after "13@tensor<", of the last dimension, of which the last part has fewer. */
static bool zfi_parse_whole(zfi_parser *p, const zf_shape *shape, zfi_spread *spread)
{
    const int64_t size = shape->dims[shape->rank - 1];
    int64_t *whole = &spread->whole[shape->rank - 1], ranks = 1;
    if (!zfi_integer(p, whole)) return false;
    for (uint16_t list = spread->at[shape->rank - 1]; list; list >>= ZFI_AXIS_BITS)
        ranks *= zfi_mesh_size(zfi_mesh_of(p->graph), list & 15);
    return (*whole < size * ranks && *whole > size * (ranks - 1)) ||
           zfi_parse_fail(p, "%lld ranks with %lld elements each do not have %lld in all",
                          (long long)ranks, (long long)size, (long long)*whole);
}

/* The section after "64@context:", of the last dimension: "1/4". */
static bool zfi_parse_section(zfi_parser *p, const zf_shape *shape, zfi_spread *spread)
{
    int64_t at, of;
    if (!zfi_integer(p, &at) || !zfi_need(p, "/") || !zfi_integer(p, &of)) return false;
    if (at < 0 || at >= of || of < 2 || of > 1 << 20)
        return zfi_parse_fail(p, "there is no section %lld of %lld", (long long)at, (long long)of);
    spread->section[shape->rank - 1].at = (int32_t)at;
    spread->section[shape->rank - 1].of = (int32_t)of;
    return true;
}

/* "f32[8,512@context@tensor]+pipe" */
static bool zfi_parse_type(zfi_parser *p, zf_dtype *dtype, zf_shape *shape, zfi_spread *spread)
{
    uint8_t seen = 0;
    int32_t over;
    shape->rank = 0;
    if (!zfi_parse_dtype(p, dtype) || !zfi_need(p, "[")) return false;
    while (shape->rank || !zfi_take(p, "]")) {
        uint16_t *axes = &spread->at[shape->rank];
        if (shape->rank == ZF_MAX_RANK)
            return zfi_parse_fail(p, "more than %d dimensions", ZF_MAX_RANK);
        if (!zfi_integer(p, &shape->dims[shape->rank++])) return false;
        while ((over = zfi_parse_axis_after(p, '@', &seen))) *axes = zfi_axes_add(*axes, over);
        if (*axes && zfi_take(p, "/") && !zfi_parse_run(p, shape, spread)) return false;
        if (*axes && zfi_take(p, "<") && !zfi_parse_whole(p, shape, spread)) return false;
        if (*axes && zfi_take(p, ":") && !zfi_parse_section(p, shape, spread)) return false;
        if (p->graph->error.status) return false;
        if (zfi_take(p, ",")) continue;
        if (!zfi_need(p, "]")) return false;
        break;
    }
    while ((over = zfi_parse_axis_after(p, '+', &seen))) spread->sum |= zfi_axis_bit(over);
    while ((over = zfi_parse_axis_after(p, '~', &seen))) spread->differs |= zfi_axis_bit(over);
    return !p->graph->error.status;
}

/* The value after "name=" of attribute k. */
static bool zfi_parse_value(zfi_parser *p, int k, const zfi_field *field, zf_attribute *a)
{
    zf_dtype dtype;
    const char *word, *choice;
    int length, chosen;
    switch (field->kind) {
    case 'i': return zfi_integer(p, &a->i);
    case 'f': return zfi_double(p, &a->f);
    case 'b':
        a->i = zfi_take(p, "true");
        return a->i || zfi_take(p, "false") || zfi_parse_fail(p, "expected true or false");
    case 'd':
        if (!zfi_parse_dtype(p, &dtype)) return false;
        a->i = dtype;
        return true;
    case 'e':
        word = zfi_word(p, &length);
        for (a->i = 0; (choice = zfi_choice(field->choices, a->i, &chosen)); a->i++)
            if (chosen == length && !memcmp(choice, word, (size_t)length)) return true;
        return zfi_parse_fail(p, "expected one of (%.*s)", (int)strcspn(field->choices, ")"),
                              field->choices);
    default: break;
    }
    if (!zfi_need(p, "[")) return false;
    if (zfi_take(p, "]")) return true;
    do {
        int64_t integer;
        double number;
        if (field->kind == 'l') {
            if (!zfi_integer(p, &integer)) return false;
            if (!zfi_push(&p->graph->memory, p->lists[k].integers, integer)) return false;
            a->list.data = p->lists[k].integers;
        } else {
            if (!zfi_double(p, &number)) return false;
            if (!zfi_push(&p->graph->memory, p->lists[k].doubles, number)) return false;
            a->list.data = p->lists[k].doubles;
        }
        a->list.count++;
    } while (zfi_take(p, ","));
    return zfi_need(p, "]");
}

static bool zfi_parse_attributes(zfi_parser *p, const zfi_record *record, zf_attribute *attributes)
{
    uint32_t given = 0;
    for (int k = 0; k < ZF_MAX_ATTRIBUTES; k++)
        if (p->lists[k].integers) stbds_header(p->lists[k].integers)->length = 0;
    while (!zfi_take(p, "}")) {
        const char *fields = record->attributes, *word;
        zfi_field field;
        int k = 0, length;
        bool known = false;
        if (zfi_take(p, ",")) continue;
        word = zfi_word(p, &length);
        if (!length) return zfi_parse_fail(p, "expected an attribute or '}'");
        for (; zfi_next_field(&fields, &field); k++)
            if (field.name_length == length && !memcmp(field.name, word, (size_t)length)) {
                known = true;
                break;
            }
        if (!known)
            return *record->attributes ? zfi_parse_fail(p, "%s has these attributes: %s",
                                                        record->name, record->attributes)
                                       : zfi_parse_fail(p, "%s has no attributes", record->name);
        if (given >> k & 1) return zfi_parse_fail(p, "%.*s is given twice", length, word);
        given |= 1u << k;
        if (!zfi_need(p, "=") || !zfi_parse_value(p, k, &field, &attributes[k])) return false;
    }
    return true;
}

static bool zfi_parse_name(zfi_parser *p)
{
    const char *start = p->at;
    if (p->name) stbds_header(p->name)->length = 0;
    while (p->at < p->end && *p->at != '"') p->at++;
    if (p->at == p->end) return zfi_parse_fail(p, "the name has no closing quote");
    for (; start < p->at; start++)
        if (!*start) return zfi_parse_fail(p, "a NUL in a name");
        else if (!zfi_push(&p->graph->memory, p->name, *start)) return false;
    p->at++;
    return zfi_push(&p->graph->memory, p->name, '\0');
}

/* offset+bytes */
static bool zfi_parse_place(zfi_parser *p, int64_t place[2])
{
    if (!zfi_integer(p, &place[0]) || !zfi_need(p, "+") || !zfi_integer(p, &place[1])) return false;
    if (place[0] < 0 || place[1] < 0) return zfi_parse_fail(p, "a place is not negative");
    return true;
}

/* "3 apart=512": copies for several micro-batches. */
static bool zfi_parse_slots(zfi_parser *p, int64_t slots[2])
{
    if (!zfi_integer(p, &slots[0]) || !zfi_need(p, "apart=") || !zfi_integer(p, &slots[1]))
        return false;
    if (slots[0] < 1 || slots[0] > INT32_MAX || slots[1] < 0 || slots[1] > INT64_MAX / slots[0])
        return zfi_parse_fail(p, "a value has a slot or more, within 2^63 bytes");
    return true;
}

/* "host" or "disk", if one of them comes next; else the device. */
static zf_space zfi_parse_space(zfi_parser *p)
{
    const char *start = p->at;
    int length;
    const char *word = zfi_word(p, &length);
    for (int space = ZF_DEVICE + 1; space < ZF_SPACES; space++)
        if ((int)strlen(zf_space_name((zf_space)space)) == length &&
            !memcmp(zf_space_name((zf_space)space), word, (size_t)length))
            return (zf_space)space;
    p->at = start;
    return ZF_DEVICE;
}

static bool zfi_parse_queue(zfi_parser *p, uint8_t *queue)
{
    int length;
    const char *word = zfi_word(p, &length);
    for (*queue = 0; *queue < ZFI_QUEUES; ++*queue)
        if ((int)strlen(zfi_queue_names[*queue]) == length &&
            !memcmp(zfi_queue_names[*queue], word, (size_t)length))
            return true;
    return zfi_parse_fail(p,
                          "'%.*s' is none of the queues compute, gather, reduce, pipe, "
                          "download, upload, read, write",
                          length < 40 ? length : 40, word);
}

/* "role=moment of=%2" */
static bool zfi_parse_role(zfi_parser *p, zfi_new *n)
{
    const zf_graph *g = p->graph;
    int64_t of = 0;
    int length;
    const char *word;
    if (!zfi_take(p, "role=")) return true;
    word = zfi_word(p, &length);
    if (!(n->role = zfi_role_called(word, (size_t)length)))
        return zfi_parse_fail(p, "'%.*s' is no role", length < 40 ? length : 40, word);
    if (!zfi_take(p, "of=")) return true;
    if (!zfi_parse_id(p, &of)) return false;
    if (of <= 0 || of >= zfi_len(g->nodes) || g->nodes[of].op == ZF_OP_none)
        return zfi_parse_fail(p, "%%%lld is not defined above", (long long)of);
    n->of = (int32_t)of;
    return true;
}

/* "2" of "tensor=4x2": the ranks of each of so many groups. */
static bool zfi_parse_copies(zfi_parser *p, int64_t *ranks, int64_t all)
{
    int64_t copies;
    if (!zfi_integer(p, &copies)) return false;
    if (copies < 2 || copies > INT32_MAX / all / *ranks)
        return zfi_parse_fail(p, "a group has 2 ranks or more, and a mesh at most %d",
                              (int)INT32_MAX);
    p->graph->axes.groups = (int32_t)*ranks;
    *ranks *= copies;
    return true;
}

/* "data=4", "tensor=2", "tensor=2x2": the axis, which is given once. */
static bool zfi_parse_axis(zfi_parser *p, int64_t *all)
{
    zfi_other_axes *axes = &p->graph->axes;
    int64_t ranks;
    int length;
    const char *word;
    const int32_t over = zfi_parse_axis_name(p, ZF_OVER_DATA, &word, &length);
    if (over == ZF_OVERS || zfi_is_part_of_tensor(over) || over == ZF_OVER_OWNERS)
        return zfi_parse_fail(p, "'%.*s' is none of the axes data, tensor, context, expert, pipe",
                              length < 40 ? length : 40, word);
    if (over == ZF_OVER_DATA ? p->data : zfi_axis_at(axes, over) >= 0)
        return zfi_parse_fail(p, "the axis %s is given twice", zfi_axis_names[over]);
    if (!zfi_need(p, "=") || !zfi_integer(p, &ranks)) return false;
    if (ranks < 2 || ranks > INT32_MAX / *all)
        return zfi_parse_fail(p, "an axis has 2 ranks or more, and a mesh at most %d",
                              (int)INT32_MAX);
    if (over == ZF_OVER_TENSOR && zfi_take(p, "x") && !zfi_parse_copies(p, &ranks, *all))
        return false;
    if (over != ZF_OVER_EXPERT) *all *= ranks;
    if (over == ZF_OVER_DATA) p->data = ranks, axes->slower = axes->count;
    else axes->axis[axes->count++] = (zfi_other_axis){over, (int32_t)ranks};
    if (zfi_take(p, ":zigzag")) {
        if (over != ZF_OVER_CONTEXT)
            return zfi_parse_fail(p, "only context is dealt zig-zag, not %s", zfi_axis_names[over]);
        axes->zigzag = true;
    }
    return true;
}

/* "pipe=2 data=4 tensor=2", the slowest first. Without data, that is faster than pipe alone. */
static bool zfi_parse_mesh(zfi_parser *p)
{
    zf_graph *g = p->graph;
    int64_t all = 1;
    if (zfi_len(g->order) || g->axes.count || g->stages & ZFI_STAGE_RANKS)
        return zfi_parse_fail(p, "the first line may be: mesh data=2.. tensor=2..");
    do
        if (!zfi_parse_axis(p, &all)) return false;
    while (zfi_skip_space(p), p->at < p->end);
    if (!g->axes.count)
        return zfi_parse_fail(p, "ranks along data alone have no line mesh");
    if (p->data && p->data % zfi_mesh_experts((zfi_mesh){.axes = g->axes}))
        return zfi_parse_fail(p, "expert=%d does not divide data=%lld, of which it is a part",
                              (int)zfi_mesh_experts((zfi_mesh){.axes = g->axes}),
                              (long long)p->data);
    if (!p->data) p->data = 1, g->axes.slower = g->axes.axis[0].over == ZF_OVER_PIPE;
    return true;
}

/* "stage=3 world=4 micro_batches=2", perhaps " nodes=2", perhaps " shards=2" */
static bool zfi_parse_zero(zfi_parser *p)
{
    zf_graph *g = p->graph;
    int64_t stage, world, micro, nodes = 1, shards;
    if (!zfi_need(p, "stage=") || !zfi_integer(p, &stage) || !zfi_need(p, "world=") ||
        !zfi_integer(p, &world) || !zfi_need(p, "micro_batches=") || !zfi_integer(p, &micro) ||
        (zfi_take(p, "nodes=") && !zfi_integer(p, &nodes)))
        return false;
    shards = world;
    if (zfi_take(p, "shards=") && !zfi_integer(p, &shards)) return false;
    if (zfi_len(g->order) || stage < 0 || stage > 3 || world < 1 || world > INT32_MAX || micro < 1)
        return zfi_parse_fail(
            p, "the first line may be: zero stage=0..3 world=1.. micro_batches=1..");
    if (nodes < 1 || nodes > world || world % nodes || (nodes > 1 && nodes == world))
        return zfi_parse_fail(p, "nodes must divide the world, with several ranks in each");
    if (p->data && world != p->data)
        return zfi_parse_fail(p, "world is that of the axis data of the mesh, %lld",
                              (long long)p->data);
    if (shards != world && shards != world / nodes)
        return zfi_parse_fail(p, "shards must be those of all ranks, or of a node's");
    g->zero = (int32_t)stage, g->world = (int32_t)world, g->micro_batches = micro;
    g->mesh_nodes = (int32_t)nodes, g->shards = (int32_t)shards;
    g->stages |= ZFI_STAGE_RANKS;
    return true;
}

/* The name of a training or of an adapter, which the graph does not have yet. */
static bool zfi_parse_name_of(zfi_parser *p, const char *what, const char **name)
{
    zf_graph *g = p->graph;
    int length;
    const char *word = zfi_word(p, &length);
    if (zfi_len(g->order) || **name || !length || length > ZFI_SHORT_NAME)
        return zfi_parse_fail(p, "the first line may be: %s NAME", what);
    *name = zfi_text_copy(&g->memory, &g->text, word, (size_t)length);
    if (!*name) return *name = "", false;
    return true;
}

/* "stage=1": 1 + the stage; 0: at all. */
static bool zfi_parse_stage(zfi_parser *p, int16_t *stage)
{
    int64_t number;
    *stage = 0;
    if (!zfi_take(p, "stage=")) return true;
    if (!zfi_integer(p, &number)) return false;
    if (number < 0 || number >= INT16_MAX)
        return zfi_parse_fail(p, "a stage is 0 to %d", INT16_MAX - 1);
    *stage = (int16_t)(number + 1);
    return true;
}

/* The node after "%id = id 0: an effect, which gets the id `fresh`. */
static bool zfi_parse_node(zfi_parser *p, int32_t id, int32_t fresh)
{
    zf_graph *g = p->graph;
    zfi_new n = {.id = id ? id : fresh};
    const zfi_record *record = NULL;
    zf_dtype dtype = ZF_F32;
    zf_shape shape = ZF_SCALAR;
    int64_t value, place[2] = {0, 0}, slots[2] = {0, 0}, scratch[2] = {0, 0};
    const char *start, *word;
    bool placed = false, recompute, below;
    uint8_t queue = ZFI_QUEUE_COMPUTE;
    int16_t stage;
    int length;

    word = zfi_word(p, &length);
    start = word;
    n.op = zfi_op_called(g, word, (size_t)length);
    record = g->records[n.op];
    if (!length) return zfi_parse_fail(p, "expected an operator");
    if (!n.op)
        return p->at = start,
               zfi_parse_fail(p, "'%.*s' is no operator", length < 40 ? length : 40, word);
    if ((id == 0) != ((record->traits & ZF_OP_EFFECT) != 0))
        return p->at = start,
               zfi_parse_fail(p, id ? "%s has no value, so no id" : "%s needs an id: %%n = %s ...",
                              record->name, record->name);
    if (p->args) stbds_header(p->args)->length = 0;
    zfi_skip_space(p);
    if (p->at < p->end && *p->at == '%') {
        do {
            if (!zfi_parse_id(p, &value)) return false;
            if (value <= 0 || value >= zfi_len(g->nodes) || g->nodes[value].op == ZF_OP_none)
                return zfi_parse_fail(p, "%%%lld is not defined above", (long long)value);
            if (!zfi_push(&g->memory, p->args, (int32_t)value)) return false;
        } while (zfi_take(p, ","));
    }
    n.args = p->args;
    n.arg_count = zfi_len(p->args);
    if (zfi_take(p, "\"")) {
        if (!(record->traits & ZF_OP_NAMED))
            return zfi_parse_fail(p, "%s takes no name", record->name);
        if (!zfi_parse_name(p)) return false;
        n.name = p->name;
    }
    if (zfi_take(p, "{") && !zfi_parse_attributes(p, record, n.attributes)) return false;
    if (!(record->traits & ZF_OP_EFFECT)) {
        if (!zfi_need(p, ":") || !zfi_parse_type(p, &dtype, &shape, &n.spread))
            return false;
        n.dtype = dtype, n.shape = shape;
        n.space = zfi_parse_space(p);
    }
    if (!zfi_parse_role(p, &n) || !zfi_parse_stage(p, &stage)) return false;
    if (!(record->traits & ZF_OP_EFFECT) && zfi_take(p, "@")) {
        placed = true;
        if (!zfi_parse_place(p, place)) return false;
    }
    if (placed && zfi_take(p, "slots=") && !zfi_parse_slots(p, slots)) return false;
    if (zfi_take(p, "scratch=") && !zfi_parse_place(p, scratch)) return false;
    if (zfi_take(p, "queue=") && !zfi_parse_queue(p, &queue)) return false;
    recompute = zfi_take(p, "recompute");
    if (recompute &&
        (record->traits & (ZF_OP_LEAF | ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_COLLECTIVE)))
        return zfi_parse_fail(p, "%s cannot be a recomputed node", record->name);
    below = zfi_take(p, "micro");
    if (below && !g->in_update)
        return zfi_parse_fail(p, "'micro' marks what is below 'update:'");
    zfi_skip_space(p);
    if (p->at < p->end) return zfi_parse_fail(p, "expected the end of the line");

    id = n.op == ZF_OP_output ? zfi_append_output(g, &n) : zfi_append(g, &n);
    if (!id) return false;
    if (!(record->traits & ZF_OP_EFFECT) &&
        (g->nodes[id].dtype != dtype || !zfi_same_shape(&g->nodes[id].shape, &shape) ||
         !zfi_same_spread(&g->nodes[id].spread, &n.spread))) {
        char text[ZFI_TYPE_TEXT + ZFI_SPREAD_TEXT];
        return p->at = start,
               zfi_parse_fail(p, "the operands of %s give %s", record->name,
                              zfi_spread_text(text, g->nodes[id].dtype, &g->nodes[id].shape,
                                              &g->nodes[id].spread));
    }
    if (!(record->traits & ZF_OP_EFFECT) && g->nodes[id].space != n.space)
        return p->at = start,
               zfi_parse_fail(p, "the result of %s lies in the space %s", record->name,
                              zf_space_name((zf_space)g->nodes[id].space));
    if (placed || scratch[1]) p->place_line = p->line;
    g->nodes[id].placed = placed;
    g->nodes[id].offset = place[0], g->nodes[id].bytes = place[1];
    g->nodes[id].slots = (int32_t)slots[0], g->nodes[id].apart = slots[1];
    g->nodes[id].scratch_offset = scratch[0], g->nodes[id].scratch_bytes = scratch[1];
    g->nodes[id].queue = queue;
    g->nodes[id].stage = stage;
    g->nodes[id].recompute = recompute;
    g->nodes[id].below = below;
    if (below) g->nodes[id].update = false;
    if (queue) g->stages |= ZFI_STAGE_OVERLAP;
    if (n.space) g->stages |= ZFI_STAGE_OFFLOAD;
    if (recompute) g->stages |= ZFI_STAGE_RECOMPUTE;
    return true;
}

/* "zb-v chunks=2": the schedule of stages. */
static bool zfi_parse_schedule(zfi_parser *p)
{
    zf_graph *g = p->graph;
    int length;
    const char *word;
    int64_t chunks = 1;
    zf_error why = {ZF_OK, ""};
    zfi_skip_space(p);
    for (word = p->at, length = 0; p->at < p->end && *p->at != ' '; p->at++) length++;
    if (zfi_len(g->order) || g->schedule || g->stages & ZFI_STAGE_RANKS)
        return zfi_parse_fail(p, "a line before all nodes may be: schedule: 1f1b");
    for (int k = 0; k < ZFI_PIPE_KINDS; k++)
        if ((int)strlen(zfi_pipe_names[k]) == length && !memcmp(zfi_pipe_names[k], word, (size_t)length))
            g->schedule = k + 1;
    if (!g->schedule)
        return zfi_parse_fail(p, "'%.*s' is none of 1f1b, gpipe, interleaved, zb-h1, zb-v",
                              length < 40 ? length : 40, word);
    if (zfi_take(p, "chunks=") && !zfi_integer(p, &chunks)) return false;
    g->chunks = (int32_t)zfi_min(zfi_max(chunks, 0), INT16_MAX);
    if (zfi_pipe_check_chunks((zf_pipe){(zf_pipe_kind)(g->schedule - 1), 1, 1, g->chunks}, &why))
        return zfi_parse_fail(p, "%.200s", why.text);
    return true;
}

/* "backward:", a section of the micro section; false: it is no such line. */
static bool zfi_takes_section(zfi_parser *p)
{
    const char *const start = p->at;
    zf_graph *g = p->graph;
    int length;
    const char *const word = zfi_word(p, &length);
    for (uint8_t k = g->in_task; k < ZFI_SECTIONS && g->schedule && !g->in_update; k++)
        if ((int)strlen(zfi_section_names[k]) == length &&
            !memcmp(word, zfi_section_names[k], (size_t)length) && zfi_take(p, ":"))
            return g->in_task = k, true;
    return p->at = start, false;
}

static bool zfi_parse_line(zfi_parser *p, int32_t *fresh)
{
    zf_graph *g = p->graph;
    int64_t id = 0;
    zfi_skip_space(p);
    if (p->at == p->end) return true;
    if (zfi_take(p, "update:")) {
        g->in_update = true;
    } else if (zfi_take(p, "schedule:")) {
        if (!zfi_parse_schedule(p)) return false;
    } else if (zfi_takes_section(p)) {
    } else if (zfi_take(p, "zero ")) {
        if (!zfi_parse_zero(p)) return false;
    } else if (zfi_take(p, "mesh ")) {
        if (!zfi_parse_mesh(p)) return false;
    } else if (zfi_take(p, "training ")) {
        if (!zfi_parse_name_of(p, "training", &p->graph->training)) return false;
    } else if (zfi_take(p, "adapter ")) {
        if (!zfi_parse_name_of(p, "adapter", &p->graph->adapter)) return false;
    } else if (zfi_take(p, "peak ")) {
        zfi_peak *peak = &g->peaks[zfi_parse_space(p)];
        if (!zfi_integer(p, &peak->bytes) || !zfi_parse_id(p, &id)) return false;
        peak->live = peak->bytes;
        if (id < 0 || id >= zfi_len(g->nodes) ||
            (id && (g->nodes[id].op == ZF_OP_none || zfi_has(g, (int32_t)id, ZF_OP_EFFECT))))
            return zfi_parse_fail(p, "%%%lld is not defined above", (long long)id);
        if (zfi_take(p, "live=") && !zfi_integer(p, &peak->live)) return false;
        if (peak->live < 0 || peak->bytes < peak->live)
            return zfi_parse_fail(p, "expected 0 <= live <= peak");
        peak->node = (int32_t)id;
        g->stages |= ZFI_STAGE_PLACED; /* no node can follow it */
    } else {
        if (*p->at == '%') {
            if (!zfi_parse_id(p, &id)) return false;
            if (id <= 0 || id >= zfi_len(g->nodes))
                return zfi_parse_fail(p, "%%%lld is no id", (long long)id);
            if (g->nodes[id].op != ZF_OP_none)
                return zfi_parse_fail(p, "%%%lld is defined already", (long long)id);
            if (!zfi_need(p, "=")) return false;
        }
        return zfi_parse_node(p, (int32_t)id, *fresh) && (id || ++*fresh);
    }
    zfi_skip_space(p);
    return p->at == p->end || zfi_parse_fail(p, "expected the end of the line");
}

/* The end of the line that begins at `at`, without its comment. *next is the beginning of the next
 * line. */
static const char *zfi_line_end(const char *at, const char *end, const char **next)
{
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    bool quoted = false;
    *next = newline ? newline + 1 : end;
    if (newline) end = newline;
    for (const char *c = at; c < end; c++) {
        if (*c == '"') quoted = !quoted;
        if (*c == '#' && !quoted) return c;
    }
    return end;
}

/* Reserves every id that the text defines, so that effects, which have no id in the text, get ids
 * after these. Ids are limited by the length of the text, so that a short text cannot ask for much
 * memory. */
static bool zfi_parse_ids(zfi_parser *p, const char *text, const char *end)
{
    int64_t lines = 0, most = 0;
    const char *where = text;
    for (const char *at = text, *next; at < end; at = next, lines++) {
        int64_t id = 0;
        zfi_line_end(at, end, &next);
        while (at < next && (*at == ' ' || *at == '\t')) at++;
        if (at == next || *at != '%') continue;
        for (const char *digit = at + 1;
             digit < next && *digit >= '0' && *digit <= '9' && id < 1 << 26; digit++)
            id = id * 10 + (*digit - '0');
        if (id > most) most = id, where = at, p->line = (int32_t)lines + 1;
    }
    if (most > 65536 + (end - text)) {
        p->line_start = p->at = where;
        return zfi_parse_fail(p, "%%%lld is too large an id for a text of %lld bytes",
                              (long long)most, (long long)(end - text));
    }
    for (int64_t id = 1; id <= most; id++)
        if (!zfi_push(&p->graph->memory, p->graph->nodes, ((zfi_node){.op = ZF_OP_none})))
            return false;
    return true;
}

/* The stages that the nodes show. */
static uint32_t zfi_stages_of(const zf_graph *g)
{
    uint32_t stages = g->stages;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_gradient) stages |= ZFI_STAGE_GRADIENTS;
        if (zfi_updates_param(g, node)) stages |= ZFI_STAGE_UPDATES;
        if (node->role == ZFI_ROLE_NORM)
            stages |= ZFI_STAGE_CLIPPED;
    }
    return stages;
}

ZF_API zf_graph *zf_graph_parse(const char *text, size_t bytes, const zf_graph_desc *desc,
                                zf_error *error)
{
    zfi_parser p = {.graph = zf_graph_new(desc)};
    zf_graph *g = p.graph;
    zf_error ignored = {ZF_OK, ""};
    const char *end, *next;
    int32_t fresh;
    if (!error) error = &ignored;
    if (!g) return zfi_nomem(error), NULL;
    if (!text) text = "", bytes = 0;
    end = text + bytes;
    if (!g->error.status && zfi_parse_ids(&p, text, end)) {
        fresh = zfi_len(g->nodes);
        p.line = 1;
        for (const char *line = text; line < end; line = next, p.line++) {
            p.line_start = p.at = line;
            p.end = zfi_line_end(line, end, &next);
            if (!zfi_parse_line(&p, &fresh)) break;
        }
    }
    zfi_array_free(&g->memory, p.args);
    zfi_array_free(&g->memory, p.name);
    for (int k = 0; k < ZF_MAX_ATTRIBUTES; k++) zfi_array_free(&g->memory, p.lists[k].integers);
    if (g->memory.failed) zfi_graph_nomem(g);
    if (p.data > 1 && !(g->stages & ZFI_STAGE_RANKS))
        zfi_fail(&g->error, ZF_ERR_PARSE,
                 "the mesh has %lld ranks along data, and the line zero is missing",
                 (long long)p.data);
    if (p.place_line && !(g->stages & ZFI_STAGE_PLACED))
        zfi_fail(&g->error, ZF_ERR_PARSE,
                 "%d: values have places, but the last line, 'peak', is missing",
                 (int)p.place_line);
    if (!g->error.status) {
        g->stages = zfi_stages_of(g);
        g->in_update = false, g->in_task = ZFI_TASK_F;
        if (!zfi_verify(g) && (g->stages & ZFI_STAGE_PLACED)) zfi_verify_plan(g);
    }
    if (!g->error.status) return g;
    if (g->error.status == ZF_ERR_PARSE || g->error.status == ZF_ERR_NOMEM ||
        g->error.status == ZF_ERR_VERIFY)
        zfi_fail(error, g->error.status, "%s", g->error.text);
    else zfi_fail(error, ZF_ERR_PARSE, "%d: %.480s", (int)p.line, g->error.text);
    zf_graph_free(g);
    return NULL;
}
