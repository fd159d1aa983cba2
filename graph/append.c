/* Appending nodes: each is checked, and has the type that its operands give. */

/* Every stride in bytes fits int64, even if a dimension is 0. */
static bool zfi_addressable(const zf_shape *shape)
{
    zf_shape ones = *shape;
    for (int axis = 0; axis < shape->rank && axis < ZF_MAX_RANK; axis++)
        if (!ones.dims[axis]) ones.dims[axis] = 1;
    return zf_shape_count(ones) >= 0 && zf_shape_count(ones) <= INT64_MAX / 8;
}

static bool zfi_valid_name(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > 255) return false;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f || name[i] == '"' || name[i] == '\\')
            return false;
    return true;
}

typedef struct zfi_new {
    zf_op op;
    const int32_t *args;
    int32_t arg_count;
    zf_attribute attributes[ZF_MAX_ATTRIBUTES];
    const char *name;
    zf_dtype dtype; /* of a leaf */
    zf_shape shape;
    zf_space space; /* of a leaf without operands, or with a name */
    zfi_role role;
    int32_t of; /* the parameter of a state with a role */
    int32_t id;     /* 0: the next one */
    zfi_spread spread; /* of a leaf; a state that has the shape of its parameter has its type too */
} zfi_new;

/* The space of a node's value; `own`: that of a leaf, or of any node whose operands do not decide
 * it. */
static zf_space zfi_space_of(const zf_graph *g, const zfi_record *record, const int32_t *args,
                             int32_t arg_count, const zf_attribute *attributes, zf_space own)
{
    if (record->space) return record->space(attributes);
    if (!arg_count || (record->traits & ZF_OP_LEAF && record->traits & ZF_OP_NAMED)) return own;
    return (zf_space)g->nodes[args[0]].space;
}

/* Sets the node's type along the axes. */
static bool zfi_settle_spread(zf_graph *g, int32_t id)
{
    zfi_node *node = &g->nodes[id];
    const zfi_node *of = &g->nodes[node->of];
    char why[ZFI_SPREAD_WHY];
    zfi_spread found;
    if (node->op == ZF_OP_state && node->of && zfi_same_shape(&of->shape, &node->shape) &&
        !zfi_is_spread(&node->spread))
        node->spread = of->spread;
    if (!zfi_spread_find(g, id, &found, why))
        return zfi_graph_fail(g, ZF_ERR_ARGUMENT, g->records[node->op]->name, "%s", why), false;
    g->nodes[id].spread = found;
    return true;
}

/* The stage of a node: that to which it sends; or that of its operands, where these have one; of
 * several on one rank that for which it is appended, or the first. */
static int16_t zfi_stage_of_new(const zf_graph *g, const zfi_new *n)
{
    int16_t stage = 0;
    for (int32_t k = 0; k < n->arg_count; k++) {
        const int16_t its = g->nodes[n->args[k]].stage;
        if (its && stage && zfi_rank_of_stage(g, its - 1) != zfi_rank_of_stage(g, stage - 1))
            return 0;
        if (!stage) stage = its;
    }
    if (n->op == ZF_OP_bcast && ZF_INT(n, bcast, over) == ZF_OVER_PIPE) return 0;
    if (n->op == ZF_OP_send && stage) return (int16_t)(ZF_INT(n, send, to) + 1);
    return stage && g->in_stage && !(g->records[n->op]->traits & ZF_OP_LEAF) &&
                   zfi_rank_of_stage(g, stage - 1) == zfi_rank_of_stage(g, g->in_stage - 1)
               ? g->in_stage
               : stage;
}

/* Nodes that are appended belong to the task of node `id` of the micro section. */
static void zfi_append_for(zf_graph *g, int32_t id)
{
    if (!g->schedule || g->nodes[id].update) return;
    g->in_task = g->nodes[id].task, g->in_stage = g->nodes[id].stage;
}

/* The section of a node of the micro section: that in which it is appended, or where its operands
 * are made if that is later. Leaves stand above all. */
static uint8_t zfi_task_of_new(const zf_graph *g, const zfi_new *n)
{
    uint8_t task = g->in_task;
    if (!g->schedule || g->records[n->op]->traits & ZF_OP_LEAF) return ZFI_TASK_F;
    for (int32_t k = 0; k < n->arg_count; k++)
        if (!g->nodes[n->args[k]].update && g->nodes[n->args[k]].task > task)
            task = g->nodes[n->args[k]].task;
    return task;
}

/* Appends a node after checking operands, attributes, name and shapes. Returns its id, or 0 with
 * the graph's error. */
static int32_t zfi_append(zf_graph *g, const zfi_new *n)
{
    const zfi_record *record = g->records[n->op];
    zfi_node node = {.op = n->op, .dtype = n->dtype, .shape = n->shape, .arg_count = n->arg_count};
    const zfi_node *few[ZFI_OPERANDS], **args = few;
    zfi_infer infer = {g, record, NULL, n->arg_count, n->attributes, n->dtype, n->shape};
    int32_t id = n->id ? n->id : zfi_len(g->nodes);
    const char *fields = record->attributes;
    zfi_field field;
    zf_status status;

    if (g->error.status) return 0;
    g->noted = false;
    if (g->stages & ZFI_STAGE_PLACED) {
        zfi_graph_fail(g, ZF_ERR_STAGE, record->name,
                       "every value has its place in memory already: nothing can be added");
        return 0;
    }
    if (n->arg_count < record->least || n->arg_count > record->most) {
        char range[32] = "";
        if (record->most > record->least)
            snprintf(range, sizeof range, " to %d", (int)record->most);
        zfi_graph_fail(g, ZF_ERR_ARGUMENT, record->name, "%d operands, but it takes %d%s",
                       (int)n->arg_count, (int)record->least, range);
        return 0;
    }
    if (record->traits & ZF_OP_NAMED) {
        if (!n->name || !zfi_valid_name(n->name)) {
            zfi_graph_fail(
                g, ZF_ERR_ARGUMENT, record->name,
                "a name has 1 to 255 characters, none of them \", \\ or a control character");
            return 0;
        }
        if (zfi_map_get(g->names, n->name, 0)) {
            const int32_t other = zfi_map_get(g->names, n->name, 0);
            zfi_graph_fail(g, ZF_ERR_ARGUMENT, record->name, "the name \"%s\" is taken by %%%d%s",
                           n->name, other,
                           n->op == ZF_OP_param && g->nodes[other].op == ZF_OP_param
                               ? "; within zf_push_shared a model is built over parameters that "
                                 "are there"
                               : "");
            return 0;
        }
    }
    if (n->arg_count > ZFI_COUNT(few) &&
        !(args = zfi_calloc(&g->memory, (size_t)n->arg_count, sizeof *args)))
        return zfi_graph_nomem(g), 0;
    for (int32_t k = 0; k < n->arg_count; k++) args[k] = &g->nodes[n->args[k]];
    infer.args = args;
    for (int32_t k = 0; k < n->arg_count && !g->error.status; k++)
        if (g->records[args[k]->op]->traits & ZF_OP_EFFECT)
            zfi_graph_fail(g, ZF_ERR_ARGUMENT, record->name, "operand %d, %s, has no value", k,
                           g->records[args[k]->op]->name);
    status = g->error.status ? g->error.status : record->infer(&infer);
    if (args != few) zfi_free(&g->memory, args, (size_t)n->arg_count * sizeof *args);
    if (status) return 0;
    for (int32_t k = 0; n->op == ZF_OP_bucket && k < n->arg_count; k++) {
        if (g->nodes[n->args[k]].held) {
            zfi_graph_fail(g, ZF_ERR_ARGUMENT, record->name,
                           "operand %d, \"%s\", lies in %%%d already", (int)k,
                           g->nodes[n->args[k]].name, (int)g->nodes[n->args[k]].held);
            return 0;
        }
        g->nodes[n->args[k]].held = id;
    }
    node.dtype = infer.dtype;
    node.shape = infer.shape;
    if (!(record->traits & ZF_OP_EFFECT) && !zfi_addressable(&node.shape)) {
        zfi_graph_fail(g, ZF_ERR_SHAPE, record->name,
                       "the result has a negative dimension, or 2^60 elements or more");
        return 0;
    }

    if (n->op == ZF_OP_saved && g->nodes[n->args[0]].saved[ZF_INT(n, saved, index)]) {
        zfi_graph_fail(g, ZF_ERR_ARGUMENT, record->name, "%%%d is that of %%%d already",
                       (int)g->nodes[n->args[0]].saved[ZF_INT(n, saved, index)], (int)n->args[0]);
        return 0;
    }

    node.update = g->in_update || (zfi_len(g->order) && g->nodes[stbds_arrlast(g->order)].update);
    node.space = (uint8_t)zfi_space_of(g, record, n->args, n->arg_count, n->attributes, n->space);
    node.role = (uint8_t)n->role, node.of = n->of;
    if (record->traits & ZF_OP_LEAF) node.spread = n->spread;
    node.stage = zfi_stage_of_new(g, n), node.layer = g->in_layer;
    if (!node.update) node.task = zfi_task_of_new(g, n);
    node.shown = n->op == ZF_OP_output ? n->args[0] : 0;
    node.scope = g->scope;
    node.file = g->file;
    node.line = g->line;
    memcpy(node.attributes, n->attributes, sizeof node.attributes);
    node.args =
        zfi_bytes_copy(&g->memory, &g->text, n->args, (size_t)n->arg_count * sizeof *n->args);
    if (record->traits & ZF_OP_NAMED)
        node.name = zfi_text_copy(&g->memory, &g->text, n->name, strlen(n->name));
    for (int k = 0; zfi_next_field(&fields, &field); k++)
        if (field.kind == 'l' || field.kind == 'v')
            node.attributes[k].list.data =
                zfi_bytes_copy(&g->memory, &g->text, n->attributes[k].list.data,
                               (size_t)n->attributes[k].list.count * 8);
    if (g->memory.failed) return zfi_graph_nomem(g), 0;

    if (id == zfi_len(g->nodes)) zfi_push(&g->memory, g->nodes, node);
    else g->nodes[id] = node;
    if (!g->memory.failed) zfi_push(&g->memory, g->order, id);
    if (!g->memory.failed) g->nodes[id].number = (int32_t)zfi_len(g->order);
    if (n->op == ZF_OP_param && !g->memory.failed) zfi_push(&g->memory, g->params, id);
    if (n->op == ZF_OP_saved && !g->memory.failed)
        g->nodes[n->args[0]].saved[ZF_INT(n, saved, index)] = id;
    if (node.name && !g->memory.failed) g->names = zfi_map_put(&g->memory, g->names, node.name, id);
    if (!g->memory.failed) zfi_note_stream(g, id);
    if (g->memory.failed) return zfi_graph_nomem(g), 0;
    return zfi_settle_spread(g, id) ? id : 0;
}

/* The same for an operator without a name; 0 where an operand is 0. attributes NULL: none. */
static int32_t zfi_append_op(zf_graph *g, zf_op op, const int32_t *args, int32_t count,
                             const zf_attribute *attributes)
{
    zfi_new n = {.op = op, .args = args, .arg_count = count};
    if (attributes) memcpy(n.attributes, attributes, sizeof n.attributes);
    for (int32_t k = 0; k < count; k++)
        if (!args[k]) return 0;
    return zfi_append(g, &n);
}

/* Appends op over the node ids that follow. */
#define zfi_append_nodes(g, op, attributes, ...)                                                   \
    zfi_append_op(g, ZF_OP_##op, (int32_t[]){__VA_ARGS__},                                         \
                  (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), attributes)
