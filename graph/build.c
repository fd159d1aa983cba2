/* Builders: the public functions that append nodes. A builder packs its arguments into operands and
 * attributes of one operator; the operator's infer checks them. Composites (mean, log_softmax, ...)
 * are built from several operators. */

ZF_API zf_status zf_graph_status(const zf_graph *g)
{
    return g ? g->error.status : ZF_ERR_ARGUMENT;
}
ZF_API const char *zf_graph_error(const zf_graph *g)
{
    return g ? g->error.text : "there is no graph";
}

/* The node of a valid tensor, NULL for any other. */
static const zfi_node *zfi_node_of(zf_tensor x)
{
    int32_t id = x.graph ? zfi_resolve(x.graph, x.id) : 0;
    return id ? &x.graph->nodes[id] : NULL;
}

ZF_API bool zf_valid(zf_tensor x) { return zfi_node_of(x) != NULL; }

ZF_API zf_dtype zf_tensor_dtype(zf_tensor x)
{
    return zf_valid(x) ? zfi_node_of(x)->dtype : ZF_F32;
}

ZF_API zf_shape zf_tensor_shape(zf_tensor x)
{
    return zf_valid(x) ? zfi_node_of(x)->shape : (zf_shape){-1, {0}};
}

ZF_API size_t zf_tensor_bytes(zf_tensor x)
{
    return zf_valid(x) ? zfi_node_bytes(zfi_node_of(x)) : 0;
}

ZF_API const char *zf_tensor_name(zf_tensor x)
{
    const char *name = zf_valid(x) ? zfi_node_of(x)->name : NULL;
    return name ? name : "";
}

ZF_API zf_tensor zf_graph_find(zf_graph *g, const char *name)
{
    int32_t id = g && name ? zfi_map_get(g->names, name, 0) : 0;
    if (id && g->nodes[id].op == ZF_OP_output) id = g->nodes[id].args[0];
    if (g && name && !id) {
        char *missed = g->missed[g->misses % ZFI_MISSES];
        snprintf(missed, sizeof g->missed[0], "%s", name);
        id = INT32_MIN + g->misses;
        g->misses = (g->misses + 1) % (1 << 30);
    }
    return (zf_tensor){g, id};
}

/* Of an invalid tensor that zf_graph_find has returned, and not long ago: which name the graph does
 * not have, and which are near. Else "". */
static const char *zfi_missed(zf_tensor x, char text[256])
{
    const int32_t miss = x.id < 0 ? x.id - INT32_MIN : INT32_MAX;
    const zf_graph *g = x.graph;
    char near_names[160];
    zfi_near near = {.name = {NULL}};
    *text = '\0';
    if (!g || miss >= g->misses || g->misses - miss > ZFI_MISSES) return text;
    near.word = g->missed[miss % ZFI_MISSES];
    near.most = ((int)strlen(near.word) + 1) / 4;
    for (int32_t k = 0; k < zfi_map_count(g->names); k++) zfi_near_add(&near, g->names[k].key);
    snprintf(text, 256, ": the graph has no \"%s\"%s", near.word,
             zfi_near_text(&near, near_names, sizeof near_names));
    return text;
}

/* The parameters without the pieces of zf_tile. */
static const int32_t *zfi_whole_params(const zf_graph *g)
{
    return g->declared ? g->declared : g->params;
}

ZF_API int32_t zf_param_count(const zf_graph *g) { return g ? zfi_len(zfi_whole_params(g)) : 0; }

ZF_API zf_tensor zf_param_at(zf_graph *g, int32_t index)
{
    return (zf_tensor){g, index >= 0 && index < zf_param_count(g) ? zfi_whole_params(g)[index] : 0};
}

/* The result of a builder that had no graph to record its error in. It is invalid, but not ZF_NONE,
 * so that it is not taken for an optional operand that is left out. */
#define ZFI_LOST ((zf_tensor){NULL, -1})

/* The optional operand is given. */
static bool zfi_is_operand(zf_tensor x) { return x.graph || x.id; }

/* Returns the invalid tensor. If the graph has no error yet, passing x is the caller's mistake, and
 * the error. */
static zf_tensor zfi_invalid(zf_tensor x, const char *what)
{
    char missed[256];
    if (!x.graph) return ZFI_LOST;
    zfi_graph_fail(x.graph, ZF_ERR_ARGUMENT, what, "operand 0 is no tensor of this graph%s",
                   zfi_missed(x, missed));
    return (zf_tensor){x.graph, 0};
}

/* Notes the source line of the user's call. Macros at the end of the header wrap every builder in
 * it. */
ZF_API zf_tensor zf_at(zf_tensor x, const char *file, int line)
{
    if (x.graph) x.graph->file = file, x.graph->line = line;
    return x;
}

ZF_API zf_graph *zf_graph_at(zf_graph *g, const char *file, int line)
{
    if (g) g->file = file, g->line = line;
    return g;
}

ZF_API zf_tensor zf_fail(zf_tensor x, const char *format, ...)
{
    char text[400], missed[256];
    va_list args;
    if (!x.graph) return ZFI_LOST;
    va_start(args, format);
    vsnprintf(text, sizeof text, format ? format : "zf_fail: the format is NULL", args);
    va_end(args);
    zfi_graph_fail(x.graph, ZF_ERR_ARGUMENT, "build", "%s%s", text, zfi_missed(x, missed));
    return (zf_tensor){x.graph, 0};
}

/* ----------------------------------------------------------------------------- scopes */

/* The text "SCOPE.NAME"; NULL with the graph's error. */
static const char *zfi_scope_name(zf_graph *g, const char *what, const char *scope,
                                  const char *name)
{
    char text[512];
    const int length = snprintf(text, sizeof text, "%s%s%s", scope, *scope ? "." : "", name);
    if (!*name || length > 200 || !zfi_valid_name(text)) {
        zfi_graph_fail(g, ZF_ERR_ARGUMENT, what,
                       "a scope's whole name has 1 to 200 characters, none of them \", \\ or a "
                       "control character");
        return NULL;
    }
    return zfi_text_copy(&g->memory, &g->text, text, (size_t)length);
}

/* Opens a scope, in which parameters are found by the names of the scope `shared` (NULL: they are
 * declared). */
static void zfi_open_scope(zf_graph *g, const char *what, const char *name, const char *shared)
{
    const char *scope = zfi_scope_name(g, what, g->scope, name);
    if (scope && zfi_push(&g->memory, g->scopes,
                          ((zfi_scope){g->scope, g->shared, g->file, g->line})))
        g->scope = scope, g->shared = shared;
    if (g->memory.failed) zfi_graph_nomem(g);
}

/* The name that the format gives; "" where it gives none, or a long one. */
static const char *zfi_formatted(char text[256], const char *format, va_list args)
{
    const int length = vsnprintf(text, 256, format, args);
    return length > 0 && length < 256 ? text : "";
}

/* The graph can take a scope. */
static bool zfi_takes_scope(zf_graph *g, const char *what, const char *format)
{
    if (!g || g->error.status) return false;
    if (!format) zfi_graph_fail(g, ZF_ERR_ARGUMENT, what, "the format is NULL");
    return format != NULL;
}

ZF_API void zf_push(zf_graph *g, const char *format, ...)
{
    char name[256];
    const char *shared = NULL;
    va_list args;
    if (!zfi_takes_scope(g, "zf_push", format)) return;
    va_start(args, format);
    zfi_formatted(name, format, args);
    va_end(args);
    if (g->shared) shared = zfi_scope_name(g, "zf_push", g->shared, name);
    if (!g->error.status) zfi_open_scope(g, "zf_push", name, shared);
}

ZF_API void zf_push_shared(zf_graph *g, const char *format, ...)
{
    char name[256];
    va_list args;
    if (!zfi_takes_scope(g, "zf_push_shared", format)) return;
    va_start(args, format);
    zfi_formatted(name, format, args);
    va_end(args);
    zfi_open_scope(g, "zf_push_shared", name, g->shared ? g->shared : g->scope);
}

ZF_API void zf_pop(zf_graph *g)
{
    if (!g || g->error.status) return;
    if (!zfi_len(g->scopes)) {
        zfi_graph_fail(g, ZF_ERR_ARGUMENT, "zf_pop", "no scope is open");
        return;
    }
    g->shared = stbds_arrlast(g->scopes).around_params;
    g->scope = stbds_arrpop(g->scopes).around;
}

/* ----------------------------------------------------------------------------- leaves */

static zf_tensor zfi_leaf(zf_graph *g, zfi_new leaf, const char *name)
{
    char full[512];
    if (!g) return ZFI_LOST;
    if (name) {
        snprintf(full, sizeof full, "%s%s%.300s", g->scope, *g->scope ? "." : "", name);
        leaf.name = *name ? full : "";
    }
    return (zf_tensor){g, zfi_append(g, &leaf)};
}

ZF_API zf_tensor zf_input(zf_graph *g, const char *name, zf_dtype dtype, zf_shape shape)
{
    return zfi_leaf(g, (zfi_new){.op = ZF_OP_input, .dtype = dtype, .shape = shape},
                    name ? name : "");
}

/* Makes the leaf one of records. What is wrong with them is found by its infer: a last dimension
 * that is no multiple of the block gives one that is no multiple of the record. */
static void zfi_quantize_leaf(zfi_new *leaf, const zf_quantize_desc *desc)
{
    const zf_quantize_desc d = zfi_quantize_resolved(desc);
    const bool has_last = leaf->shape.rank > 0 && leaf->shape.rank <= ZF_MAX_RANK;
    int64_t *last = &leaf->shape.dims[has_last ? leaf->shape.rank - 1 : 0];
    ZF_INT(leaf, param, frozen) = true;
    ZF_INT(leaf, param, bits) = d.bits;
    ZF_INT(leaf, param, block) = d.block;
    ZF_INT(leaf, param, scale) = d.scale;
    leaf->dtype = ZF_U8;
    if (has_last && zfi_are_blocks(d.bits, d.block, d.scale) && *last < INT64_MAX / 8) {
        const zfi_blocks b = zfi_blocks_by(d.bits, d.block, d.scale);
        *last = *last % b.block ? 1 : *last / b.block * b.record;
    }
}

/* What of a parameter differs from what `leaf` says; NULL: nothing. */
static const char *zfi_param_differs(const zfi_node *param, const zfi_new *leaf)
{
    if (leaf->dtype != param->dtype || !zfi_same_shape(&leaf->shape, &param->shape))
        return "its type";
    if (ZF_INT(leaf, param, bits) != ZF_INT(param, param, bits) ||
        ZF_INT(leaf, param, block) != ZF_INT(param, param, block) ||
        ZF_INT(leaf, param, scale) != ZF_INT(param, param, scale))
        return "its quantisation";
    if (ZF_INT(leaf, param, frozen) != ZF_INT(param, param, frozen)) return "whether it is frozen";
    return ZF_INT(leaf, param, init) != ZF_INT(param, param, init) ||
                   ZF_FLOAT(leaf, param, a) != ZF_FLOAT(param, param, a) ||
                   ZF_FLOAT(leaf, param, b) != ZF_FLOAT(param, param, b)
               ? "its first values"
               : NULL;
}

/* The parameter that a scope of zf_push_shared finds, which must be as `leaf` says. */
static zf_tensor zfi_shared_param(zf_graph *g, const zfi_new *leaf, const char *name)
{
    char full[512], near_names[160], type[ZFI_TYPE_TEXT], wanted[ZFI_TYPE_TEXT];
    const char *differs;
    int32_t id;
    if (g->error.status) return (zf_tensor){g, 0};
    snprintf(full, sizeof full, "%s%s%.300s", g->shared, *g->shared ? "." : "", name);
    id = zfi_map_get(g->names, full, 0);
    if (!id || g->nodes[id].op != ZF_OP_param) {
        zfi_near near = {.word = full, .most = ((int)strlen(full) + 1) / 4};
        for (int32_t k = 0; k < zfi_len(g->params); k++)
            zfi_near_add(&near, g->nodes[g->params[k]].name);
        zfi_graph_fail(g, ZF_ERR_ARGUMENT, "param",
                       "the graph has no parameter \"%.200s\" that zf_push_shared could take%s",
                       full, zfi_near_text(&near, near_names, sizeof near_names));
        return (zf_tensor){g, 0};
    }
    differs = zfi_param_differs(&g->nodes[id], leaf);
    if (!differs) return (zf_tensor){g, id};
    zfi_graph_fail(g, ZF_ERR_MISMATCH, "param",
                   "\"%.100s\" is shared (zf_push_shared), but %s differs: %%%d = %s, here %s",
                   full, differs, (int)id,
                   zfi_type_text(type, g->nodes[id].dtype, &g->nodes[id].shape),
                   zfi_type_text(wanted, leaf->dtype, &leaf->shape));
    return (zf_tensor){g, 0};
}

ZF_API zf_tensor zf_param(zf_graph *g, const char *name, zf_shape shape, const zf_param_desc *desc)
{
    zf_param_desc d = desc ? *desc : (zf_param_desc){.dtype = ZF_F32};
    zfi_new leaf = {.op = ZF_OP_param, .dtype = d.dtype, .shape = shape};
    ZF_INT(&leaf, param, init) = d.init;
    ZF_FLOAT(&leaf, param, a) = d.init == ZF_UNIFORM ? d.low : d.init == ZF_FILL ? d.value : d.mean;
    ZF_FLOAT(&leaf, param, b) = d.init == ZF_UNIFORM ? d.high : d.std;
    ZF_INT(&leaf, param, frozen) = d.frozen;
    if (d.quantized.bits) zfi_quantize_leaf(&leaf, &d.quantized);
    if (g && g->shared) return zfi_shared_param(g, &leaf, name ? name : "");
    return zfi_leaf(g, leaf, name ? name : "");
}

ZF_API zf_quantize_desc zf_param_blocks(zf_tensor param)
{
    const zfi_node *node = zf_valid(param) ? &param.graph->nodes[param.id] : NULL;
    if (!node || node->op != ZF_OP_param || !ZF_INT(node, param, bits))
        return (zf_quantize_desc){.bits = 0};
    return (zf_quantize_desc){.bits = (int32_t)ZF_INT(node, param, bits),
                              .block = ZF_INT(node, param, block),
                              .scale = (zf_dtype)ZF_INT(node, param, scale)};
}

ZF_API const char *zf_param_adapter(zf_tensor param)
{
    return zf_valid(param) && param.graph->nodes[param.id].role == ZFI_ROLE_ADAPTER
               ? param.graph->adapter
               : NULL;
}

ZF_API const char *zf_param_plain_name(zf_tensor param, char *text, size_t size)
{
    char plain[ZFI_ADAPTER_NAME];
    const char *adapter = zf_param_adapter(param);
    if (!text || !size) return "";
    snprintf(text, size, "%s",
             zfi_plain_name(plain, adapter ? adapter : "", zf_tensor_name(param)));
    return text;
}

ZF_API zf_shape zf_whole_shape(zf_tensor x)
{
    if (!zf_valid(x)) return zf_tensor_shape(x);
    return zfi_whole_of(zfi_mesh_of(x.graph), zfi_node_of(x)->shape, &zfi_node_of(x)->spread);
}

ZF_API size_t zf_whole_bytes(zf_tensor x)
{
    if (!zf_valid(x)) return 0;
    return (size_t)zf_shape_count(zf_whole_shape(x)) * zf_dtype_size(zf_tensor_dtype(x));
}

ZF_API zf_shape zf_param_shape(zf_tensor param)
{
    zf_shape shape = zf_whole_shape(param);
    const zf_quantize_desc d = zf_param_blocks(param);
    if (d.bits)
        shape.dims[shape.rank - 1] = shape.dims[shape.rank - 1] /
                                     zfi_blocks_by(d.bits, d.block, d.scale).record * d.block;
    return shape;
}

ZF_API zf_tensor zf_state(zf_graph *g, const char *name, zf_dtype dtype, zf_shape shape,
                          double value)
{
    zfi_new leaf = {
        .op = ZF_OP_state, .dtype = dtype, .shape = shape, .attributes = {{.f = value}}};
    return zfi_leaf(g, leaf, name ? name : "");
}

enum { ZFI_STATE_NAME = 512 }; /* bytes of a text */

/* The name of a state of the graph's training: "adamw.m/w", or "critic:adamw.m/w". */
static const char *zfi_name_of_training(const zf_graph *g, const char *name,
                                        char text[ZFI_STATE_NAME])
{
    snprintf(text, ZFI_STATE_NAME, "%s%s%s", g->training, *g->training ? ":" : "", name);
    return text;
}

/* A state that a pass makes, which belongs to the graph's training. Called OPTIMIZER.PART, it has
 * the role of its PART. */
static zf_tensor zfi_state(zf_graph *g, const char *name, zf_dtype dtype, zf_shape shape,
                           double value)
{
    const zfi_role role = zfi_role_of_part(name);
    zfi_new leaf = {.op = ZF_OP_state, .dtype = dtype, .shape = shape};
    char text[ZFI_STATE_NAME];
    if (zfi_roles[role].kind == ZFI_OF_TRAINING) leaf.role = role;
    ZF_FLOAT(&leaf, state, value) = value;
    return zfi_leaf(g, leaf, zfi_name_of_training(g, name, text));
}

ZF_API zf_tensor zf_cache(zf_graph *g, const char *name, zf_dtype dtype, zf_shape shape)
{
    return zfi_leaf(g, (zfi_new){.op = ZF_OP_cache, .dtype = dtype, .shape = shape},
                    name ? name : "");
}

ZF_API zf_tensor zf_constant(zf_graph *g, zf_dtype dtype, zf_shape shape, double value)
{
    zfi_new leaf = {.op = ZF_OP_constant, .dtype = dtype, .shape = shape};
    ZF_LIST(&leaf, constant, values).data = &value;
    ZF_LIST(&leaf, constant, values).count = 1;
    return zfi_leaf(g, leaf, NULL);
}

ZF_API zf_tensor zf_values(zf_graph *g, zf_dtype dtype, zf_shape shape, const double *values)
{
    zfi_new leaf = {.op = ZF_OP_constant, .dtype = dtype, .shape = shape};
    ZF_LIST(&leaf, constant, values).data = values;
    ZF_LIST(&leaf, constant, values).count =
        values && zf_shape_count(shape) >= 0 ? zf_shape_count(shape) : 0;
    return zfi_leaf(g, leaf, NULL);
}

/* ------------------------------------------------------------------ operators in general */

/* Appends `op` over x[0..count). An invalid operand gives an invalid result; a missing operand, or
 * one of another graph, is an error. */
static zf_tensor zfi_build(zf_op op, int32_t count, const zf_tensor *x,
                           const zf_attribute *attributes)
{
    zf_graph *g = NULL;
    int32_t few[ZFI_OPERANDS], *args = few;
    zfi_new n = {.op = op, .arg_count = count};
    zf_tensor out = ZFI_LOST;
    for (int32_t k = 0; k < count && !g; k++) g = x[k].graph;
    if (!g) return out;
    out.id = 0;
    out.graph = g;
    if (g->error.status) return out;
    if (!x[0].graph) g->file = NULL; /* zf_at could not note the caller's line */
    for (int32_t k = 0; k < count; k++)
        if (x[k].graph != g || !zf_valid(x[k])) {
            char missed[256];
            zfi_graph_fail(g, ZF_ERR_ARGUMENT, g->records[op]->name, "operand %d is %s%s", (int)k,
                           !zfi_is_operand(x[k]) ? "missing (ZF_NONE)"
                           : !x[k].graph     ? "of a builder that had no graph or no operands"
                           : x[k].graph != g ? "a tensor of another graph"
                                             : "no tensor of this graph",
                           zfi_missed(x[k].graph == g ? x[k] : ZF_NONE, missed));
            return out;
        }
    if (count > ZFI_COUNT(few) && !(args = zfi_calloc(&g->memory, (size_t)count, sizeof *args))) {
        zfi_graph_nomem(g);
        return out;
    }
    for (int32_t k = 0; k < count; k++) args[k] = zfi_resolve(g, x[k].id);
    if (attributes) memcpy(n.attributes, attributes, sizeof n.attributes);
    n.args = args;
    out.id = zfi_append(g, &n);
    if (args != few) zfi_free(&g->memory, args, (size_t)count * sizeof *args);
    return out;
}

/* zfi_op(add, NULL, a, b) */
#define zfi_op(name, attributes, ...)                                                              \
    zfi_build(ZF_OP_##name, (int32_t)ZFI_COUNT(((zf_tensor[]){__VA_ARGS__})),                      \
              (zf_tensor[]){__VA_ARGS__}, (attributes))

/* The attributes of one builder: zfi_with({.i = 1}, {.f = 2}) */
#define zfi_with(...) ((const zf_attribute[ZF_MAX_ATTRIBUTES]){__VA_ARGS__})

/* A list attribute over an array that must live until the builder returns. */
#define zfi_listed(array, n)                                                                       \
    {                                                                                              \
        .list = {(array), (n) }                                                                    \
    }

/* Records a mistake that a builder finds before it appends a node. */
#define zfi_misuse(x, status, what, ...)                                                           \
    (zfi_graph_fail((x).graph, (status), (what), __VA_ARGS__), (zf_tensor){(x).graph, 0})

/* Makes an axis in 0..rank-1 or -rank..-1 non-negative; -1 when it is outside. */
static int32_t zfi_axis(zf_tensor x, int32_t axis)
{
    int32_t rank = zf_tensor_shape(x).rank;
    if (axis < 0 && axis >= -rank) axis += rank;
    return axis >= 0 && axis < rank ? axis : -1;
}

/* Saved value `index` of x: its saved node, or a new one. */
ZFI_UNUSED static zf_tensor zfi_saved(zf_tensor x, int64_t index)
{
    int32_t id = zf_valid(x) ? zfi_resolve(x.graph, x.id) : 0;
    int32_t there = id ? x.graph->nodes[id].saved[index] : 0;
    return there ? (zf_tensor){x.graph, there} : zfi_op(saved, zfi_with({.i = index}), x);
}

/* The builders of rows with B. One that api/ does not declare is an error of the first line. */
#define ZFI_DECLARED(name) enum { ZFI_DECLARED_##name = sizeof(&zf_##name) };
#define ZFI_UNARY(name)                                                                            \
    ZFI_DECLARED(name)                                                                             \
    ZF_API zf_tensor zf_##name(zf_tensor x) { return zfi_op(name, NULL, x); }
#define ZFI_BINARY(name)                                                                           \
    ZFI_DECLARED(name)                                                                             \
    ZF_API zf_tensor zf_##name(zf_tensor a, zf_tensor b) { return zfi_op(name, NULL, a, b); }
#define ZFI_ROW(name, least, most, attributes) attributes
#define ZFI_BUILDER(name, kind)                ZFI_##kind(name)
ZF_OPS(ZFI_ROW, ZFI_NOTHING, ZFI_BUILDER, ZFI_NOTHING)
#undef ZFI_ROW
#undef ZFI_BUILDER
#undef ZFI_DECLARED
#undef ZFI_UNARY
#undef ZFI_BINARY

ZF_API zf_tensor zf_not_equal(zf_tensor a, zf_tensor b)
{
    return zfi_op(equal, zfi_with({.i = true}), a, b);
}

ZF_API zf_tensor zf_less_equal(zf_tensor a, zf_tensor b)
{
    return zfi_op(less, zfi_with({.i = true}), a, b);
}

ZF_API zf_tensor zf_greater(zf_tensor a, zf_tensor b) { return zf_less(b, a); }
ZF_API zf_tensor zf_greater_equal(zf_tensor a, zf_tensor b) { return zf_less_equal(b, a); }

ZF_API zf_tensor zf_not(zf_tensor x)
{
    if (!zf_valid(x)) return zfi_invalid(x, "equal");
    return zf_equal(x, zf_constant(x.graph, zf_tensor_dtype(x), ZF_SCALAR, 0));
}

ZF_API zf_tensor zf_where(zf_tensor condition, zf_tensor a, zf_tensor b)
{
    return zfi_op(where, NULL, condition, a, b);
}

ZF_API zf_tensor zf_scale(zf_tensor x, double by) { return zfi_op(scale, zfi_with({.f = by}), x); }

ZF_API zf_tensor zf_gelu_tanh(zf_tensor x) { return zfi_op(gelu, zfi_with({.i = 1}), x); }

ZF_API zf_tensor zf_cast(zf_tensor x, zf_dtype to)
{
    if (zf_valid(x) && zf_tensor_dtype(x) == to) return x;
    return zfi_op(cast, zfi_with({.i = to}), x);
}

ZF_API zf_tensor zf_quantize(zf_tensor x, const zf_quantize_desc *desc)
{
    const zf_quantize_desc d = zfi_quantize_resolved(desc);
    return zfi_op(quantize, zfi_with({.i = d.bits}, {.i = d.block}, {.i = d.scale}), x);
}

ZF_API zf_tensor zf_dequantize(zf_tensor x, zf_dtype to, const zf_quantize_desc *desc)
{
    const zf_quantize_desc d = zfi_quantize_resolved(desc);
    return zfi_op(dequantize, zfi_with({.i = d.bits}, {.i = d.block}, {.i = d.scale}, {.i = to}),
                  x);
}

/* The stream of a new dropout: the first of its scope that no node uses. */
static int64_t zfi_new_stream(zf_graph *g)
{
    int64_t nth = 0;
    while (zfi_has_stream(g, zfi_stream_of_scope(g->scope, nth))) nth++;
    if (nth) g->repeats = true;
    return zfi_stream_of_scope(g->scope, nth);
}

ZF_API zf_tensor zf_dropout(zf_tensor x, double p)
{
    if (!zf_valid(x)) return zfi_invalid(x, "dropout");
    if (p == 0.0) return x;
    return zfi_op(dropout, zfi_with({.f = p}, {.i = zfi_new_stream(x.graph)}), x);
}

/* by * a draw + from. */
static zf_tensor zfi_draw(zf_tensor like, int64_t form, double by, double from)
{
    zf_tensor y;
    if (!zf_valid(like)) return zfi_invalid(like, "draw");
    y = zfi_op(draw, zfi_with({.i = form}, {.i = zfi_new_stream(like.graph)}), like);
    if (by != 1) y = zf_scale(y, by);
    if (from == 0) return y;
    return zf_add(y, zf_constant(like.graph, zf_tensor_dtype(like), ZF_SCALAR, from));
}

ZF_API zf_tensor zf_random_uniform(zf_tensor like, double low, double high)
{
    if (zf_valid(like) && !(low <= high && isfinite(high - low)))
        return zfi_misuse(like, ZF_ERR_ARGUMENT, "draw",
                          "from %g to %g; the numbers must be finite, and low not above high", low,
                          high);
    return zfi_draw(like, 0, high - low, low);
}

ZF_API zf_tensor zf_random_normal(zf_tensor like, double mean, double deviation)
{
    if (zf_valid(like) && !(deviation >= 0 && isfinite(deviation) && isfinite(mean)))
        return zfi_misuse(like, ZF_ERR_ARGUMENT, "draw",
                          "mean %g and deviation %g must be finite, and the deviation 0 or above",
                          mean, deviation);
    return zfi_draw(like, 1, deviation, mean);
}

ZF_API zf_tensor zf_layer_drop(zf_tensor x, const zf_layer_drop_desc *desc)
{
    const zf_layer_drop_desc d = desc ? *desc : (zf_layer_drop_desc){.theta = 1};
    const double theta = zfi_or(d.theta, 1);
    if (!zf_valid(x)) return zfi_invalid(x, "layer_drop");
    if (theta == 1) return x;
    if (d.layer < 0 || d.layer >= d.layers || d.half < 0 || d.half > 1)
        return zf_fail(x, "zf_layer_drop: layer %lld, half %lld: there are %lld layers of 2 halves",
                       (long long)d.layer, (long long)d.half, (long long)d.layers);
    return zfi_op(layer_drop,
                  zfi_with({.i = d.halves ? 2 * d.layer + d.half : 2 * d.layer},
                           {.f = (double)(d.layer + !d.first_kept) / (double)d.layers},
                           {.f = theta}, {.f = zfi_or(d.gamma, 0.001)}),
                  x);
}

/* ------------------------------------------------------------------------------ shapes */

ZF_API zf_tensor zf_reshape(zf_tensor x, zf_shape shape)
{
    zf_shape from = zf_tensor_shape(x);
    int32_t open = -1;
    if (!zf_valid(x)) return zfi_invalid(x, "reshape");
    for (int32_t axis = 0; axis < shape.rank && axis < ZF_MAX_RANK; axis++)
        if (shape.dims[axis] == -1) {
            if (open >= 0) return zfi_misuse(x, ZF_ERR_SHAPE, "reshape", "two dimensions are -1");
            open = axis;
        }
    if (open >= 0) {
        int64_t rest, count = zf_shape_count(from);
        shape.dims[open] = 1;
        rest = zf_shape_count(shape);
        if (rest == 0 || (rest > 0 && count % rest))
            return zfi_misuse(
                x, ZF_ERR_SHAPE, "reshape",
                "%lld elements, but the dimensions that are not -1 take a multiple of %lld",
                (long long)count, (long long)rest);
        if (rest > 0) shape.dims[open] = count / rest;
    }
    if (zfi_same_shape(&from, &shape)) return x;
    return zfi_op(reshape, zfi_with(zfi_listed(shape.dims, shape.rank)), x);
}

/* x in another form, of which dimension `one` - 1 has one element and is cut; 0: none is. */
static int32_t zfi_append_form(zf_graph *g, int32_t x, zf_shape shape, int32_t one)
{
    if (!x || zfi_same_shape(&g->nodes[x].shape, &shape)) return x;
    return zfi_append_nodes(g, reshape, zfi_with(zfi_listed(shape.dims, shape.rank), {.i = one}),
                            x);
}

/* x in the form of node `of`, cut as that is. */
static int32_t zfi_append_as(zf_graph *g, int32_t x, int32_t of)
{
    const zfi_node *node = &g->nodes[of];
    return zfi_append_form(g, x, node->shape, zfi_cut_to_one(&node->shape, &node->spread));
}

ZF_API zf_tensor zf_permute(zf_tensor x, const int32_t *order)
{
    int64_t list[ZF_MAX_RANK] = {0};
    int32_t rank = zf_tensor_shape(x).rank;
    if (!zf_valid(x)) return zfi_invalid(x, "transpose");
    if (!order) return zfi_misuse(x, ZF_ERR_ARGUMENT, "transpose", "the order is NULL");
    for (int32_t axis = 0; axis < rank; axis++) list[axis] = order[axis];
    return zfi_op(transpose, zfi_with(zfi_listed(list, rank)), x);
}

ZF_API zf_tensor zf_transpose(zf_tensor x, int32_t axis_a, int32_t axis_b)
{
    int32_t order[ZF_MAX_RANK], a = zfi_axis(x, axis_a), b = zfi_axis(x, axis_b);
    if (!zf_valid(x)) return zfi_invalid(x, "transpose");
    if (a < 0 || b < 0)
        return zfi_misuse(x, ZF_ERR_ARGUMENT, "transpose", "axes %d and %d of a tensor of rank %d",
                          (int)axis_a, (int)axis_b, (int)zf_tensor_shape(x).rank);
    for (int32_t axis = 0; axis < ZF_MAX_RANK; axis++)
        order[axis] = axis == a ? b : axis == b ? a : axis;
    return zf_permute(x, order);
}

#define zfi_bad_axis(x, what, axis)                                                                \
    zfi_misuse(x, ZF_ERR_ARGUMENT, what, "axis %d of a tensor of rank %d", (int)(axis),            \
               (int)zf_tensor_shape(x).rank)

ZF_API zf_tensor zf_slice(zf_tensor x, int32_t axis, int64_t start, int64_t stop)
{
    int32_t a = zfi_axis(x, axis);
    if (!zf_valid(x)) return zfi_invalid(x, "slice");
    if (a < 0) return zfi_bad_axis(x, "slice", axis);
    if (start == 0 && stop == zf_tensor_shape(x).dims[a]) return x;
    return zfi_op(slice, zfi_with({.i = a}, {.i = start}, {.i = stop}), x);
}

ZF_API zf_tensor zf_pad(zf_tensor x, int32_t axis, int64_t before, int64_t after)
{
    int32_t a = zfi_axis(x, axis);
    if (!zf_valid(x)) return zfi_invalid(x, "pad");
    if (a < 0) return zfi_bad_axis(x, "pad", axis);
    if (before == 0 && after == 0) return x;
    return zfi_op(pad, zfi_with({.i = a}, {.i = before}, {.i = after}), x);
}

ZF_API zf_tensor zf_concat(const zf_tensor *tensors, int32_t count, int32_t axis)
{
    int32_t a;
    if (!tensors || count < 1) return ZFI_LOST;
    for (int32_t k = 0; k < count; k++)
        if (tensors[k].graph) tensors[k].graph->file = NULL; /* the caller's line is not known */
    a = zfi_axis(tensors[0], axis);
    if (zf_valid(tensors[0]) && a < 0) return zfi_bad_axis(tensors[0], "concat", axis);
    return zfi_build(ZF_OP_concat, count, tensors, zfi_with({.i = a}));
}

ZF_API zf_tensor zf_stack(const zf_tensor *tensors, int32_t count, int32_t axis)
{
    const zf_tensor first = tensors && count > 0 ? tensors[0] : ZFI_LOST;
    zf_shape shape = zf_tensor_shape(first);
    const int32_t rank = shape.rank + 1, a = axis < 0 ? axis + rank : axis;
    zf_graph *g = first.graph;
    zf_tensor *rows, y;
    if (!zf_valid(first)) return zfi_invalid(first, "stack");
    if (a < 0 || a >= rank || rank > ZF_MAX_RANK)
        return zfi_misuse(first, ZF_ERR_ARGUMENT, "stack",
                          "axis %d of a result of rank %d, which is at most %d", (int)axis,
                          (int)rank, ZF_MAX_RANK);
    rows = zfi_calloc(&g->memory, (size_t)count, sizeof *rows);
    if (!rows) return zfi_graph_nomem(g), (zf_tensor){g, 0};
    for (int32_t k = rank - 1; k > a; k--) shape.dims[k] = shape.dims[k - 1];
    shape.dims[a] = 1, shape.rank = rank;
    for (int32_t k = 0; k < count; k++) {
        const zf_shape its = zf_tensor_shape(tensors[k]), same = zf_tensor_shape(first);
        const bool fits = !zf_valid(tensors[k]) || zfi_same_shape(&its, &same);
        rows[k] = fits ? zf_reshape(tensors[k], shape)
                       : zfi_misuse(tensors[k], ZF_ERR_SHAPE, "stack",
                                    "tensor %d must have the shape of tensor 0", (int)k);
    }
    y = zf_concat(rows, count, a);
    zfi_free(&g->memory, rows, (size_t)count * sizeof *rows);
    return y;
}

/* parts[0..count) = slices of equal size of x along an axis, or invalid tensors. `all`: each must
 * be one element. */
static void zfi_cut_into(zf_tensor x, int32_t axis, int32_t count, zf_tensor *parts, bool all)
{
    const char *what = all ? "unstack" : "split";
    const int32_t a = zfi_axis(x, axis);
    const int64_t n = a < 0 ? 0 : zf_tensor_shape(x).dims[a];
    zf_tensor bad = ZF_NONE;
    if (!zf_valid(x)) bad = zfi_invalid(x, what);
    else if (a < 0) bad = zfi_bad_axis(x, what, axis);
    else if (!parts || count < 1 || n % count || (all && n != count))
        bad = zfi_misuse(x, ZF_ERR_ARGUMENT, what, "%lld elements cannot be %d %s%s", (long long)n,
                         (int)count, all ? "parts of one" : "equal parts",
                         parts ? "" : "; parts is NULL");
    for (int32_t k = 0; k < count && parts; k++)
        parts[k] = zfi_is_operand(bad) ? bad : zf_slice(x, a, n / count * k, n / count * (k + 1));
}

ZF_API void zf_split(zf_tensor x, int32_t axis, int32_t count, zf_tensor *parts)
{
    zfi_cut_into(x, axis, count, parts, false);
}

ZF_API void zf_unstack(zf_tensor x, int32_t axis, int32_t count, zf_tensor *parts)
{
    zf_shape shape = zf_tensor_shape(x);
    zfi_cut_into(x, axis, count, parts, true);
    shape.rank--;
    for (int32_t k = zfi_axis(x, axis); k >= 0 && k < shape.rank; k++)
        shape.dims[k] = shape.dims[k + 1];
    for (int32_t k = 0; k < count && parts; k++)
        if (zf_valid(parts[k])) parts[k] = zf_reshape(parts[k], shape);
}

ZF_API zf_tensor zf_broadcast(zf_tensor x, zf_shape shape)
{
    zf_shape from = zf_tensor_shape(x);
    if (!zf_valid(x)) return zfi_invalid(x, "broadcast");
    if (zfi_same_shape(&from, &shape)) return x;
    return zfi_op(broadcast, zfi_with(zfi_listed(shape.dims, shape.rank)), x);
}

ZF_API zf_tensor zf_sum_to(zf_tensor x, zf_shape shape)
{
    zf_shape from = zf_tensor_shape(x);
    if (!zf_valid(x)) return zfi_invalid(x, "sum_to");
    if (zfi_same_shape(&from, &shape)) return x;
    return zfi_op(sum_to, zfi_with(zfi_listed(shape.dims, shape.rank)), x);
}

/* -------------------------------------------------------------- products and reductions */

ZF_API zf_tensor zf_all_gather(zf_tensor x, int64_t ranks)
{
    if (!zf_valid(x)) return zfi_invalid(x, "gather_examples");
    if (ranks == 1 && zf_tensor_shape(x).rank) return x;
    return zfi_op(gather_examples, zfi_with({.i = ranks}), x);
}

ZF_API zf_tensor zf_matmul_ex(zf_tensor a, zf_tensor b, const zf_matmul_desc *desc)
{
    zf_matmul_desc d = {.sections = 0};
    if (desc) d = *desc;
    return zfi_op(
        matmul,
        zfi_with({.i = d.transpose_a}, {.i = d.transpose_b}, {.i = d.sections}, {.i = d.wide},
                 {.i = d.runs}),
        a, b);
}

ZF_API zf_tensor zf_matmul(zf_tensor a, zf_tensor b) { return zf_matmul_ex(a, b, NULL); }

ZF_API zf_tensor zf_conv2d(zf_tensor x, zf_tensor weight, zf_tensor bias, const zf_conv_desc *desc)
{
    zf_conv_desc d = desc ? *desc : (zf_conv_desc){.groups = 1};
    zf_shape of;
    zf_tensor y;
    for (int k = 0; k < 2; k++) {
        if (!d.stride[k]) d.stride[k] = 1;
        if (!d.dilation[k]) d.dilation[k] = 1;
    }
    y = zfi_op(conv,
               zfi_with(zfi_listed(d.stride, 2), zfi_listed(d.padding, 2), zfi_listed(d.dilation, 2),
                        {.i = d.groups ? d.groups : 1}),
               x, weight);
    if (!zfi_is_operand(bias)) return y;
    of = zf_tensor_shape(bias);
    if (zf_valid(y) && zf_valid(bias) && (of.rank != 1 || of.dims[0] != zf_tensor_shape(y).dims[1]))
        return zfi_misuse(y, ZF_ERR_SHAPE, "conv",
                          "the bias must be [%lld], a number for each channel",
                          (long long)zf_tensor_shape(y).dims[1]);
    return zf_add(y, zf_reshape(bias, ZF_SHAPE(-1, 1, 1)));
}

/* x [a, b, n] as [a, b, 1, n]. */
static zf_tensor zfi_with_height(zf_tensor x)
{
    const zf_shape s = zf_tensor_shape(x);
    if (!zf_valid(x) || s.rank == 3)
        return zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], 1, s.dims[2]));
    return zfi_misuse(x, ZF_ERR_SHAPE, "conv",
                      "it takes x [batch, channels, length] and w [channels of the result, "
                      "channels of a group, taps]");
}

ZF_API zf_tensor zf_conv1d(zf_tensor x, zf_tensor weight, zf_tensor bias, const zf_conv_desc *desc)
{
    const zf_conv_desc d = desc ? *desc : (zf_conv_desc){.groups = 1};
    zf_shape s;
    x = zf_conv2d(zfi_with_height(x), zfi_with_height(weight), bias,
                  &(zf_conv_desc){.stride = {1, d.stride[0]},
                                  .padding = {0, d.padding[0]},
                                  .dilation = {1, d.dilation[0]},
                                  .groups = d.groups});
    s = zf_tensor_shape(x);
    return zf_valid(x) ? zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], s.dims[3])) : x;
}

static zf_tensor zfi_flat(zf_tensor x) { return zf_reshape(x, (zf_shape){1, {-1}}); }

static zf_tensor zfi_reduce(zf_op op, zf_tensor x, const zf_reduce_desc *desc)
{
    zf_reduce_desc d = desc ? *desc : (zf_reduce_desc){0, false};
    int32_t axis = zfi_axis(x, d.axis);
    if (!zf_valid(x)) return x.graph ? zfi_invalid(x, x.graph->records[op]->name) : ZFI_LOST;
    if (axis < 0) return zfi_bad_axis(x, x.graph->records[op]->name, d.axis);
    return zfi_build(op, 1, &x, zfi_with({.i = axis}, {.i = d.keep}));
}

ZF_API zf_tensor zf_sum_ex(zf_tensor x, const zf_reduce_desc *d)
{
    return zfi_reduce(ZF_OP_sum, x, d);
}
ZF_API zf_tensor zf_max_ex(zf_tensor x, const zf_reduce_desc *d)
{
    return zfi_reduce(ZF_OP_max, x, d);
}
ZF_API zf_tensor zf_argmax_ex(zf_tensor x, const zf_reduce_desc *d)
{
    return zfi_reduce(ZF_OP_argmax, x, d);
}

ZF_API zf_tensor zf_sum(zf_tensor x) { return zf_sum_ex(zfi_flat(x), NULL); }
ZF_API zf_tensor zf_max(zf_tensor x) { return zf_max_ex(zfi_flat(x), NULL); }

ZF_API zf_tensor zf_min_ex(zf_tensor x, const zf_reduce_desc *d)
{
    return zf_neg(zfi_reduce(ZF_OP_max, zf_neg(x), d));
}
ZF_API zf_tensor zf_argmin_ex(zf_tensor x, const zf_reduce_desc *d)
{
    return zfi_reduce(ZF_OP_argmax, zf_neg(x), d);
}
ZF_API zf_tensor zf_min(zf_tensor x) { return zf_min_ex(zfi_flat(x), NULL); }

ZF_API zf_tensor zf_cumsum(zf_tensor x, int32_t axis)
{
    const int32_t a = zfi_axis(x, axis);
    if (!zf_valid(x)) return zfi_invalid(x, "cumsum");
    return a < 0 ? zfi_bad_axis(x, "cumsum", axis) : zfi_op(cumsum, zfi_with({.i = a}), x);
}

ZF_API zf_tensor zf_gather(zf_tensor x, zf_tensor index, int32_t axis)
{
    const int32_t a = zfi_axis(x, axis);
    if (!zf_valid(x)) return zfi_invalid(x, "gather");
    return a < 0 ? zfi_bad_axis(x, "gather", axis) : zfi_op(gather, zfi_with({.i = a}), x, index);
}

ZF_API zf_tensor zf_scatter_add(zf_tensor x, zf_tensor index, int32_t axis, int64_t size)
{
    const int32_t a = zfi_axis(x, axis);
    if (!zf_valid(x)) return zfi_invalid(x, "scatter_add");
    if (a < 0) return zfi_bad_axis(x, "scatter_add", axis);
    return zfi_op(scatter_add, zfi_with({.i = a}, {.i = size}), x, index);
}

ZF_API zf_tensor zf_top_k(zf_tensor x, int64_t k, zf_tensor *places)
{
    const zf_tensor at = zfi_op(top_k, zfi_with({.i = k}), x);
    if (places) *places = at;
    return zf_valid(at) ? zf_gather(x, at, -1) : at;
}

/* Sets *to, if it is wanted, to saved value `index` of x. */
static void zfi_give_saved(zf_tensor *to, zf_tensor x, int64_t index)
{
    if (to) *to = zf_valid(x) ? zfi_saved(x, index) : x;
}

ZF_API zf_tensor zf_route(zf_tensor logits, const zf_route_desc *desc)
{
    const zf_route_desc d = desc ? *desc : (zf_route_desc){.k = 0};
    const zf_tensor y =
        zfi_build(ZF_OP_route, zfi_is_operand(d.bias) ? 2 : 1, (zf_tensor[]){logits, d.bias},
                  zfi_with({.i = d.sigmoid}, {.i = d.k ? d.k : 2}, {.i = d.normalize},
                           {.i = d.groups}, {.i = d.kept}, {.f = d.scale}, {.i = d.balance}));
    zfi_give_saved(d.experts, y, 0);
    zfi_give_saved(d.scores, y, 1);
    return y;
}

ZF_API zf_tensor zf_expert_rows(zf_tensor experts, const zf_expert_rows_desc *desc)
{
    zf_expert_rows_desc d = desc ? *desc : (zf_expert_rows_desc){.experts = 0};
    zf_tensor y;
    if (!d.rows && !d.capacity && zf_valid(experts)) d.rows = zf_shape_count(zf_tensor_shape(experts));
    else if (!d.rows && d.experts > 0 && d.capacity <= INT32_MAX / d.experts && d.capacity > 0)
        d.rows = d.capacity * d.experts;
    y = zfi_build(ZF_OP_expert_rows, zfi_is_operand(d.priority) ? 2 : 1,
                  (zf_tensor[]){experts, d.priority},
                  zfi_with({.i = d.experts}, {.i = d.rows}, {.i = d.capacity}));
    zfi_give_saved(d.bounds, y, 0);
    zfi_give_saved(d.slots, y, 1);
    zfi_give_saved(d.counts, y, 2);
    return y;
}

ZF_API zf_tensor zf_dispatch(zf_tensor x, zf_tensor rows, zf_tensor slots)
{
    return zfi_op(dispatch, NULL, x, rows, slots);
}

ZF_API zf_tensor zf_combine(zf_tensor x, zf_tensor rows, zf_tensor slots, zf_tensor weights)
{
    return zfi_build(ZF_OP_combine, zfi_is_operand(weights) ? 4 : 3,
                     (zf_tensor[]){x, rows, slots, weights}, NULL);
}

ZF_API zf_tensor zf_grouped_linear(zf_tensor x, zf_tensor w, zf_tensor bounds)
{
    return zf_grouped_linear_ex(x, w, bounds, NULL);
}

ZF_API zf_tensor zf_grouped_linear_ex(zf_tensor x, zf_tensor w, zf_tensor bounds,
                                      const zf_grouped_linear_desc *desc)
{
    zf_quantize_desc b = desc ? desc->quantized : (zf_quantize_desc){.bits = 0};
    if (!b.bits) b = zf_param_blocks(w);
    if (b.bits) b = zfi_quantize_resolved(&b);
    return zfi_op(grouped_linear,
                  zfi_with({.i = 0}, {.i = 0}, {.i = 0}, {.i = 0}, {.i = b.bits}, {.i = b.block},
                           {.i = b.scale}, {.i = desc && desc->alone}),
                  x, w, bounds);
}

ZF_API zf_tensor zf_one_hot(zf_tensor index, int64_t classes, zf_dtype to)
{
    return zfi_op(one_hot, zfi_with({.i = classes}, {.i = to}), index);
}

ZF_API zf_tensor zf_mean_ex(zf_tensor x, const zf_reduce_desc *desc)
{
    zf_tensor sum;
    int64_t n;
    if (zf_valid(x) && !zfi_is_float(zf_tensor_dtype(x)))
        return zfi_misuse(x, ZF_ERR_DTYPE, "mean", "the operand must be float (zf_cast converts)");
    sum = zf_sum_ex(x, desc);
    n = zf_valid(sum) ? zf_tensor_shape(x).dims[zfi_axis(x, desc ? desc->axis : 0)] : 1;
    return zf_scale(sum, 1.0 / (double)n);
}

ZF_API zf_tensor zf_mean(zf_tensor x) { return zf_mean_ex(zfi_flat(x), NULL); }

/* -------------------------------------------------------------------------------- rows */

/* x with a new last dimension of size 1. */
static zf_tensor zfi_column(zf_tensor x)
{
    zf_shape shape = zf_tensor_shape(x);
    if (!zf_valid(x) || shape.rank == ZF_MAX_RANK) return x;
    shape.dims[shape.rank++] = 1;
    return zf_reshape(x, shape);
}

ZF_API zf_tensor zf_log_softmax(zf_tensor x) { return zf_sub(x, zfi_column(zf_logsumexp(x))); }

ZF_API zf_tensor zf_layer_norm(zf_tensor x, zf_tensor gamma, zf_tensor beta, double eps)
{
    return zfi_op(layer_norm, NULL, x, zfi_op(moments, zfi_with({.f = eps}), x), gamma, beta);
}

ZF_API zf_tensor zf_rms_norm(zf_tensor x, zf_tensor gamma, double eps)
{
    return zfi_op(rms_norm, NULL, x, zfi_op(rms, zfi_with({.f = eps}), x), gamma);
}

ZF_API zf_tensor zf_distinct_rows(zf_tensor index, int64_t rows)
{
    return zfi_op(distinct_rows, zfi_with({.i = rows}), index);
}

ZF_API zf_tensor zf_sum_rows(zf_tensor x, zf_tensor index, zf_tensor rows)
{
    return zfi_op(sum_rows, NULL, x, index, rows);
}

ZF_API zf_tensor zf_embedding(zf_tensor table, zf_tensor ids) { return zf_gather_rows(table, ids); }

ZF_API zf_tensor zf_embedding_ex(zf_tensor table, zf_tensor ids, const zf_embedding_desc *desc)
{
    zf_embedding_desc d = desc ? *desc : (zf_embedding_desc){.padded = false};
    return zfi_op(gather_rows, zfi_with({.i = d.padded}, {.i = d.padded ? d.padding : 0}), table,
                  ids);
}

enum { ZFI_IGNORED_LABEL = -100 };

ZF_API zf_tensor zf_cross_entropy(zf_tensor logits, zf_tensor labels, zf_tensor weight)
{
    zf_tensor rows = zfi_op(cross_entropy, zfi_with({.i = ZFI_IGNORED_LABEL}), logits,
                            zf_logsumexp(logits), labels);
    if (!zf_valid(rows)) return rows;
    if (zf_valid(weight) && zf_tensor_shape(weight).rank)
        return zfi_misuse(rows, ZF_ERR_SHAPE, "zf_cross_entropy",
                          "the weight must be a scalar; it has %d dimensions",
                          (int)zf_tensor_shape(weight).rank);
    if (!zfi_is_operand(weight)) {
        zf_graph *g = rows.graph;
        zf_dtype dtype = zf_tensor_dtype(logits);
        zf_tensor ignored =
            zf_equal(labels, zf_constant(g, zf_tensor_dtype(labels), ZF_SCALAR, ZFI_IGNORED_LABEL));
        zf_tensor one = zf_constant(g, dtype, ZF_SCALAR, 1);
        zf_tensor labelled = zf_sum(zf_where(ignored, zf_constant(g, dtype, ZF_SCALAR, 0), one));
        weight = zf_div(one, zf_maximum(labelled, one));
    }
    return zf_mul(zf_sum(rows), weight);
}

ZF_API zf_tensor zf_head_logp(zf_tensor x, zf_tensor weight, zf_tensor bias, zf_tensor labels,
                              const zf_head_desc *desc)
{
    const zf_head_desc d = desc ? *desc : (zf_head_desc){.temperature = 1};
    const zf_quantize_desc b = d.blocks.bits ? zfi_quantize_resolved(&d.blocks) : d.blocks;
    return zfi_build(ZF_OP_head_logp, zfi_is_operand(bias) ? 4 : 3,
                     (zf_tensor[]){x, weight, labels, bias},
                     zfi_with({.i = ZFI_IGNORED_LABEL}, {.i = b.bits}, {.i = b.block},
                              {.i = b.scale}, {.f = zfi_or(d.temperature, 1)}));
}

/* A saved value of a head_logp. */
static zf_tensor zfi_of_head(zf_tensor logp, const char *builder, int64_t index)
{
    const zfi_node *node = zfi_node_of(logp);
    if (node && node->op != ZF_OP_head_logp)
        return zfi_misuse(logp, ZF_ERR_ARGUMENT, builder,
                          "it is the result of %s; it must be that of zf_head_logp",
                          zf_op_name((zf_op)node->op));
    return zfi_saved(logp, index);
}

ZF_API zf_tensor zf_head_entropy(zf_tensor logp) { return zfi_of_head(logp, "zf_head_entropy", 0); }
ZF_API zf_tensor zf_head_argmax(zf_tensor logp) { return zfi_of_head(logp, "zf_head_argmax", 1); }

/* -------------------------------------------------------------------------------- layers */

ZF_API zf_tensor zf_swiglu(zf_tensor gate, zf_tensor up)
{
    return zfi_build(ZF_OP_swiglu, zfi_is_operand(up) ? 2 : 1, (zf_tensor[]){gate, up}, NULL);
}

ZF_API zf_tensor zf_linear(zf_tensor x, zf_tensor weight, zf_tensor bias)
{
    return zfi_build(ZF_OP_linear, zfi_is_operand(bias) ? 3 : 2, (zf_tensor[]){x, weight, bias},
                     NULL);
}

ZF_API zf_tensor zf_quantized_linear(zf_tensor x, zf_tensor weight, zf_tensor bias,
                                     const zf_quantize_desc *desc)
{
    const zf_quantize_desc d = zfi_quantize_resolved(desc);
    return zfi_build(ZF_OP_quantized_linear, zfi_is_operand(bias) ? 3 : 2,
                     (zf_tensor[]){x, weight, bias},
                     zfi_with({.i = d.bits}, {.i = d.block}, {.i = d.scale}));
}

/* 0 where a key is seen, else -inf. */
static zf_tensor zfi_added_mask(zf_tensor mask, zf_dtype dtype)
{
    if (!zf_valid(mask) || zfi_is_float(zf_tensor_dtype(mask))) return mask;
    if (zfi_is_integer(zf_tensor_dtype(mask)))
        return zfi_misuse(mask, ZF_ERR_DTYPE, "attention", "the mask is %s; it must be bool, u8 or %s",
                          zf_dtype_name(zf_tensor_dtype(mask)), zf_dtype_name(dtype));
    return zf_where(mask, zf_constant(mask.graph, dtype, ZF_SCALAR, 0),
                    zf_constant(mask.graph, dtype, ZF_SCALAR, -INFINITY));
}

/* What the lists of a block mask say of themselves; false: they are none. */
static bool zfi_mask_blocks(zf_tensor lists, int64_t *block, int64_t *layouts)
{
    const zfi_node *node = zfi_node_of(lists);
    const double *values;
    if (!node || node->op != ZF_OP_constant || ZF_LIST(node, constant, values).count < 2) return false;
    values = ZF_LIST(node, constant, values).data;
    *block = values[0] >= 16 && values[0] <= 128 ? (int64_t)values[0] : 0;
    *layouts = values[1] >= 1 && values[1] <= INT32_MAX ? (int64_t)values[1] : 0;
    return *block && *layouts;
}

ZF_API zf_tensor zf_attention(zf_tensor q, zf_tensor k, zf_tensor v, const zf_attention_desc *desc)
{
    zf_attention_desc d = desc ? *desc : (zf_attention_desc){.heads = 0};
    int64_t heads = d.heads ? d.heads : 1, kv_heads = d.kv_heads ? d.kv_heads : heads, hidden;
    bool packed = !zfi_is_operand(k) && !zfi_is_operand(v);
    zf_shape s = zf_tensor_shape(q);
    zf_tensor x[6] = {q, k, v};
    int64_t block = 0, layouts = 0;
    int32_t count;
    if (!zf_valid(q)) return zfi_invalid(q, "attention");
    if (heads < 1 || kv_heads < 1 || heads % kv_heads)
        return zfi_misuse(q, ZF_ERR_ARGUMENT, "attention",
                          "%lld heads of q must be a multiple of the %lld kv_heads", (long long)heads,
                          (long long)kv_heads);
    if (packed && s.rank == 3 && s.dims[2] % (heads + 2 * kv_heads))
        return zfi_misuse(q, ZF_ERR_SHAPE, "attention",
                          "q holds q, k and v: its last dimension, %lld, must be a multiple of their "
                          "%lld heads",
                          (long long)s.dims[2], (long long)(heads + 2 * kv_heads));
    hidden = s.rank != 3 ? 0 : packed ? s.dims[2] / (heads + 2 * kv_heads) * heads : s.dims[2];
    count = packed ? 1 : 3;
    if (zfi_is_operand(d.mask)) x[count++] = zfi_added_mask(d.mask, zf_tensor_dtype(q));
    if (d.scale == 0 && hidden) d.scale = 1 / sqrt((double)hidden / (double)heads);
    if (zfi_is_operand(d.blocks) && zf_valid(d.blocks) &&
        !zfi_mask_blocks(d.blocks, &block, &layouts))
        return zfi_misuse(d.blocks, ZF_ERR_ARGUMENT, "attention",
                          "the blocks must be the result of zf_block_mask_lists");
    if (zfi_is_operand(d.k_cache) || zfi_is_operand(d.v_cache) || zfi_is_operand(d.past) ||
        zfi_is_operand(d.count)) {
        const bool lists = zfi_is_operand(d.blocks), biased = count > 3;
        zf_tensor of[9] = {q, k, v, d.past, d.count, d.k_cache, d.v_cache, d.blocks};
        if (packed || d.dropout > 0 || !d.causal || zfi_is_operand(d.documents))
            return zfi_misuse(
                q, ZF_ERR_ARGUMENT, "attention",
                "with caches it takes q, k and v, is causal, and has no documents or dropout");
        if (!zfi_is_operand(d.k_cache) || !zfi_is_operand(d.v_cache) || !zfi_is_operand(d.past) ||
            !zfi_is_operand(d.count))
            return zfi_misuse(q, ZF_ERR_ARGUMENT, "attention",
                              "k_cache, v_cache, past and count must be given together");
        of[lists ? 8 : 7] = biased ? x[3] : of[lists ? 8 : 7];
        return zfi_build(ZF_OP_cached_attention, 7 + lists + biased, of,
                         zfi_with({.i = heads}, {.f = d.scale},
                                  {.i = kv_heads < heads ? kv_heads : 0}, {.i = d.window},
                                  {.i = d.ring}, {.i = block}, {.i = layouts}, {.f = d.cap},
                                  {.i = biased}));
    }
    if (d.ring)
        return zfi_misuse(q, ZF_ERR_ARGUMENT, "attention", "only caches can be a ring");
    if (zfi_is_operand(d.documents)) x[count++] = d.documents;
    if (zfi_is_operand(d.blocks)) x[count++] = d.blocks;
    return zfi_build(ZF_OP_attention, count, x,
                     zfi_with({.f = d.dropout}, {.i = d.dropout > 0 ? zfi_new_stream(q.graph) : 0},
                              {.i = heads}, {.f = d.scale}, {.i = d.causal},
                              {.i = kv_heads < heads ? kv_heads : 0}, {.i = d.window},
                              {.i = zfi_is_operand(d.documents)}, {.i = block}, {.i = layouts},
                              {.f = d.cap}));
}

/* x holds the last `count` operands of residual_norm; the bias is the last of all. */
static zf_tensor zfi_residual(zf_tensor x[5], int32_t count, int64_t form,
                              const zf_residual_desc *desc)
{
    zf_residual_desc d = desc ? *desc : (zf_residual_desc){.dropout = 0};
    zf_graph *g = x[0].graph;
    int64_t stream;
    zf_tensor y;
    if (!zf_valid(x[0])) {
        if (d.sum) *d.sum = (zf_tensor){g, g ? 0 : -1};
        return zfi_invalid(x[0], "residual_norm");
    }
    stream = d.dropout > 0 ? zfi_new_stream(g) : 0;
    if (zfi_is_operand(d.bias)) x[count++] = d.bias;
    y = zfi_build(ZF_OP_residual_norm, count, x,
                  zfi_with({.f = d.dropout}, {.i = stream}, {.f = zfi_or(d.eps, 1e-5)}, {.i = form},
                           {.i = d.sum != NULL}));
    if (d.sum) *d.sum = zf_valid(y) ? zfi_op(saved, zfi_with({.i = 2}), y) : (zf_tensor){g, 0};
    return y;
}

ZF_API zf_tensor zf_residual_layer_norm(zf_tensor x, zf_tensor residual, zf_tensor gamma,
                                        zf_tensor beta, const zf_residual_desc *desc)
{
    return zfi_residual((zf_tensor[5]){x, residual, gamma, beta}, 4, 0, desc);
}

ZF_API zf_tensor zf_residual_rms_norm(zf_tensor x, zf_tensor residual, zf_tensor gamma,
                                      const zf_residual_desc *desc)
{
    return zfi_residual((zf_tensor[5]){x, residual, gamma}, 3, 1, desc);
}

/* The desc with its defaults filled in. */
static zf_rope_desc zfi_rope_resolved(const zf_rope_desc *desc)
{
    zf_rope_desc d = desc ? *desc : (zf_rope_desc){.heads = 0};
    if (!d.heads) d.heads = 1;
    if (d.theta == 0) d.theta = 10000;
    if (d.factor == 0) d.factor = 8;
    if (d.low_factor == 0) d.low_factor = 1;
    if (d.high_factor == 0) d.high_factor = d.scaling == ZF_ROPE_YARN ? 32 : 4;
    if (!d.original) d.original = 8192;
    if (d.scaling != ZF_ROPE_YARN) d.attention = 1, d.unrounded = false;
    else if (d.attention == 0) d.attention = d.factor > 1 ? 0.1 * log(d.factor) + 1 : 1;
    return d;
}

ZF_API zf_tensor zf_rope(zf_tensor x, const zf_rope_desc *desc)
{
    zf_rope_desc d = zfi_rope_resolved(desc);
    const bool bounds = d.scaling >= ZF_ROPE_LLAMA3;
    return zfi_build(ZF_OP_rope, zfi_is_operand(d.positions) ? 2 : 1,
                     (zf_tensor[]){x, d.positions},
                     zfi_with({.i = d.heads}, {.f = d.theta}, {.i = d.scaling},
                              {.f = d.scaling ? d.factor : 0}, {.f = bounds ? d.low_factor : 0},
                              {.f = bounds ? d.high_factor : 0}, {.i = bounds ? d.original : 0},
                              {.i = false}, {.i = d.unrounded},
                              {.f = d.scaling == ZF_ROPE_YARN ? d.attention : 0}));
}

/* zf_output_ex, with a role. */
static zf_tensor zfi_output_as(zf_tensor x, const char *name, zfi_role role,
                               const zf_output_desc *desc)
{
    const zf_output_desc d = desc ? *desc : (zf_output_desc){ZF_REDUCTION_DERIVED};
    int32_t id = x.graph ? zfi_resolve(x.graph, x.id) : 0;
    zfi_new n = {.op = ZF_OP_output, .args = &id, .arg_count = 1, .name = name, .role = role};
    if (!id) return zfi_invalid(x, "output");
    if ((unsigned)d.reduction > ZF_REDUCTION_NONE)
        return zfi_misuse(x, ZF_ERR_ARGUMENT, "output", "%d is no zf_reduction", (int)d.reduction);
    if (d.reduction && !zfi_is_number(&x.graph->nodes[id]) &&
        !(d.reduction == ZF_REDUCTION_SUM && zfi_is_summed(&x.graph->nodes[id])))
        return zfi_misuse(x, ZF_ERR_ARGUMENT, "output",
                          "a reduction is that of one float, a sum also that of f32 and f64; the "
                          "value is %s with %lld elements",
                          zf_dtype_name(x.graph->nodes[id].dtype),
                          (long long)zfi_node_count(&x.graph->nodes[id]));
    ZF_INT(&n, output, reduction) = d.reduction;
    zfi_append_output(x.graph, &n);
    return x.graph->error.status ? (zf_tensor){x.graph, 0} : x;
}

ZF_API zf_tensor zf_assign_ex(zf_tensor state, zf_tensor value, const zf_assign_desc *desc)
{
    const zf_assign_desc d = desc ? *desc : (zf_assign_desc){.parts = ZF_PARTS_ONE};
    zf_graph *g = state.graph;
    for (int32_t i = 0; zf_valid(state) && i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_set && node->args[0] == zfi_resolve(g, state.id))
            return zfi_misuse(state, ZF_ERR_ARGUMENT, "assign", "the state \"%.200s\" is assigned "
                              "already, by %%%d", zf_tensor_name(state), (int)g->order[i]);
    }
    if (g && !g->error.status && (g->stages & ZFI_STAGE_UPDATES))
        return zfi_misuse(state, ZF_ERR_STAGE, "assign", "it must come before the optimizer");
    (void)zfi_op(set, zfi_with({.i = d.parts}), state, value);
    return g && g->error.status ? (zf_tensor){g, 0} : value;
}

ZF_API zf_tensor zf_assign(zf_tensor state, zf_tensor value)
{
    return zf_assign_ex(state, value, NULL);
}

static zf_tensor zfi_output(zf_tensor x, const char *name, zfi_role role)
{
    return zfi_output_as(x, name, role, NULL);
}

ZF_API zf_tensor zf_output_ex(zf_tensor x, const char *name, const zf_output_desc *desc)
{
    return zfi_output_as(x, name, ZFI_ROLE_NONE, desc);
}

ZF_API zf_tensor zf_output(zf_tensor x, const char *name) { return zf_output_ex(x, name, NULL); }

ZF_API zf_tensor zf_output_gradient(zf_tensor x, const char *name)
{
    zf_graph *g = x.graph;
    const int32_t id = g ? zfi_resolve(g, x.id) : 0;
    zfi_new n = {.op = ZF_OP_output,
                 .args = &id,
                 .arg_count = 1,
                 .name = name,
                 .role = ZFI_ROLE_WANTED};
    if (!id) return zfi_invalid(x, "output_gradient");
    if (!zfi_is_float(g->nodes[id].dtype))
        return zfi_misuse(x, ZF_ERR_DTYPE, "output_gradient",
                          "the value is %s; only that of floats has a gradient",
                          zf_dtype_name(g->nodes[id].dtype));
    if (!g->error.status && (g->stages & ZFI_STAGE_GRADIENTS))
        return zfi_misuse(x, ZF_ERR_STAGE, "output_gradient", "it must come before zf_autograd");
    zfi_append(g, &n);
    return g->error.status ? (zf_tensor){g, 0} : x;
}

ZF_API bool zf_ratio_of(zf_tensor x, zf_tensor *divisor, zf_tensor *sum)
{
    zf_graph *g = x.graph;
    const int32_t id = g ? zfi_resolve(g, x.id) : 0;
    size_t count = 0;
    zfi_parted *parts = id && !g->error.status ? zfi_find_parts(g, &count) : NULL;
    const zfi_parted found = parts ? zfi_parted_in(parts, id) : (zfi_parted){.kind = 0};
    const bool ratio = found.kind == ZFI_PART_RATIO;
    if (parts) zfi_free(&g->memory, parts, count * sizeof *parts);
    if (divisor) *divisor = ratio ? (zf_tensor){g, found.divisor} : ZF_NONE;
    if (sum) *sum = ratio ? (zf_tensor){g, found.sum} : ZF_NONE;
    return ratio;
}
