/* autograd: appends the gradient of the loss, as nodes.
 *
 * requires: no gradients yet; the loss is a scalar float
 * ensures:  one `gradient param, value` for each parameter that is not frozen and on which the loss
 *           depends, in the order of zf_param_at; an output of the loss with this role, "loss" if
 *           the name is free. With a loss scale
 *           (precision.c), gradients are those of the loss times the scale
 * before:   %2 = param "w" : f32[8,1]     %3 = matmul %1, %2 : f32[4,1]     ... %5 = sum %4 : f32[]
 * after:    ...  %9 = matmul %1, %8 {transpose_a=true} : f32[8,1]
 *           gradient %2, %9
 *
 * Reverse accumulation: nodes are visited from the loss upwards. Each adds gradients for its
 * operands (grad of its record). Gradients of a node with several uses are added in the order of
 * these visits, so the order of sums follows from the graph. Only nodes between a trained parameter
 * and the loss are visited.
 *
 * Gradients of parts of a value (zf_grad.part), as slices give them, are put off until the visit of
 * the value. Those that do not overlap become one concat, with zeros between them:
 *
 *     %2 = slice %1 {stop=4} : f32[4,8]   %3 = slice %1 {start=4 stop=8} : f32[4,8]
 *     the gradient of %1 is  concat %dy2, %dy3 : f32[8,8]
 *
 * so that the work of n slices grows with n, not with n times the size of the value.
 *
 * Of a param {lazy=true} the gradient is one of rows (zf_grad.rows): `gradient %2, %8, %7` with the
 * numbers of the rows in %7 (ops/lazy_rows.c). Those of several readers, side by side in the order
 * of the visits, become one list:
 *
 *     %20 = concat %9, %12 : i32[14]       %21 = concat %10, %13 : f32[14,8]
 *     %7  = distinct_rows %20 {rows=100}   %8  = sum_rows %21, %20, %7 : f32[14,8]
 *
 * Where several nodes read a piece of a param (tile.c), all its gradients are computed at the visit
 * of the first reader, the last visit, in the same order: until then none of them is in memory. */

/* needs[id]: node id is, or depends on, a trained parameter or a value whose gradient is wanted,
 * and not through stop_gradient alone. */
static void zfi_mark_trained(const zf_graph *g, bool *needs)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].role == ZFI_ROLE_WANTED)
            needs[g->nodes[g->order[i]].args[0]] = true;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if (node->op == ZF_OP_param && !ZF_INT(node, param, frozen)) needs[id] = true;
        if (node->op == ZF_OP_stop_gradient) continue;
        for (int32_t k = 0; k < node->arg_count && !zfi_has(g, id, ZF_OP_EFFECT); k++)
            if (needs[node->args[k]] && zfi_is_float(node->dtype)) needs[id] = true;
    }
}

/* The node has the type of elements of x from c->start on along c->axis. */
static bool zfi_is_grad_part(const zf_graph *g, int32_t x, int32_t id, const zf_grad *c)
{
    const zfi_node *whole = &g->nodes[x], *part = &g->nodes[id];
    zf_shape shape = part->shape;
    if (c->axis < 0 || c->axis >= whole->shape.rank || shape.rank != whole->shape.rank ||
        part->dtype != whole->dtype || c->start < 0 ||
        c->start > whole->shape.dims[c->axis] - shape.dims[c->axis])
        return false;
    shape.dims[c->axis] = whole->shape.dims[c->axis];
    return zfi_same_shape(&shape, &whole->shape);
}

/* The node has rows of table x, as many as `rows` has numbers. */
static bool zfi_is_grad_rows(const zf_graph *g, int32_t x, int32_t id, int32_t rows)
{
    const zfi_node *table = &g->nodes[x], *some = &g->nodes[id], *numbers = &g->nodes[rows];
    zf_shape shape = table->shape;
    if (!zfi_is_lazy_table(table) || some->dtype != table->dtype || !shape.rank ||
        numbers->shape.rank != 1 || !zfi_is_integer(numbers->dtype))
        return false;
    shape.dims[0] = numbers->shape.dims[0];
    return zfi_same_shape(&shape, &some->shape);
}

/* Checks that dx has dtype and shape of operand k of node id, or of a part of it. */
static bool zfi_is_gradient(zf_graph *g, int32_t id, int32_t k, zf_tensor dx, const zf_grad *c)
{
    int32_t x = g->nodes[id].args[k], made = dx.graph == g ? zfi_resolve(g, dx.id) : 0;
    const bool part = c->part && k == 0;
    const int32_t rows = c->rows.graph == g && k == 0 ? zfi_resolve(g, c->rows.id) : 0;
    char type[2][ZFI_TYPE_TEXT];
    if (made && rows && zfi_is_grad_rows(g, x, made, rows)) return true;
    if (made && !rows && (part ? zfi_is_grad_part(g, x, made, c) : zfi_same_type(g, x, made)))
        return true;
    if (made && part) {
        zfi_graph_fail(g, ZF_ERR_SHAPE, "autograd",
                       "%%%d = %s: its gradient of a part of operand 0 is %s; it must be elements "
                       "%lld and up along axis %d of %s",
                       (int)id, zfi_record_of(g, id)->name,
                       zfi_type_text(type[0], g->nodes[made].dtype, &g->nodes[made].shape),
                       (long long)c->start, (int)c->axis,
                       zfi_type_text(type[1], g->nodes[x].dtype, &g->nodes[x].shape));
        return false;
    }
    zfi_graph_fail(g, made ? ZF_ERR_SHAPE : ZF_ERR_ARGUMENT, "autograd",
                   "%%%d = %s: its gradient of operand %d is %s; it must be %s, as the operand",
                   (int)id, zfi_record_of(g, id)->name, (int)k,
                   made ? zfi_type_text(type[0], g->nodes[made].dtype, &g->nodes[made].shape)
                        : "no tensor of this graph",
                   zfi_type_text(type[1], g->nodes[x].dtype, &g->nodes[x].shape));
    return false;
}

/* The gradient of saved value `index` of node id, which other nodes read; 0: it is zero. */
static int32_t zfi_gradient_of_saved(const zf_graph *g, int32_t id, int index,
                                     const int32_t *gradients)
{
    int32_t saved = g->nodes[id].saved[index];
    return saved && zfi_record_of(g, id)->saved_grads >> index & 1 ? gradients[saved] : 0;
}

/* The node is a saved value whose gradient its operand takes. */
static bool zfi_is_read_saved(const zf_graph *g, const zfi_node *node)
{
    return node->op == ZF_OP_saved &&
           zfi_record_of(g, node->args[0])->saved_grads >> ZF_INT(node, saved, index) & 1;
}

/* Where only a saved value of a node is read, the gradient of its result is 0. */
static void zfi_start_gradient(zf_graph *g, int32_t id, int32_t *gradients)
{
    for (int k = 0; k < ZF_MAX_SAVED && !gradients[id]; k++)
        if (zfi_gradient_of_saved(g, id, k, gradients))
            gradients[id] = zf_constant(g, g->nodes[id].dtype, g->nodes[id].shape, 0).id;
}

/* The gradient of a part of a node. */
typedef struct zfi_grad_part {
    int32_t dx, axis, next; /* next: 1 + the part of the same node before; 0: none */
    int64_t start;
} zfi_grad_part;

/* The gradient of some rows of a table, and their numbers. */
typedef struct zfi_grad_rows {
    int32_t table, dx, rows;
} zfi_grad_rows;

typedef struct zfi_backward {
    zf_graph *graph;
    bool *needs;        /* by node: it depends on a trained parameter; */
    int32_t *gradients; /* its gradient; 0: none so far; */
    int32_t *first;     /* of a piece of a param: its first reader */
    int32_t *late;      /* growing array: a node and an operand that were put off, ... */
    int32_t *last_part; /* by node: 1 + the last of its parts; 0: none */
    zfi_grad_part *parts;    /* growing array */
    zfi_grad_rows *lists;    /* growing array, in the order of the visits */
} zfi_backward;

/* Nodes that are appended next belong to the gradient of `node`. */
static void zfi_begin_gradient(zf_graph *g, const zfi_node *node)
{
    g->scope = node->scope, g->file = node->file, g->line = node->line;
    g->pass = "zf_autograd";
}

static void zfi_add_gradient(zfi_backward *b, int32_t x, zf_tensor dx)
{
    int32_t *sum = &b->gradients[x];
    *sum = *sum ? zf_add((zf_tensor){b->graph, *sum}, dx).id : dx.id;
}

static void zfi_put_part(zfi_backward *b, int32_t x, const zf_grad *c)
{
    const zfi_grad_part part = {c->dx[0].id, c->axis, b->last_part[x], c->start};
    zfi_push(&b->graph->memory, b->parts, part);
    if (!b->graph->memory.failed) b->last_part[x] = zfi_len(b->parts);
}

/* By axis and start; of equal ones the first reader first. */
static int zfi_compare_parts(const void *a, const void *b)
{
    const zfi_grad_part *p = a, *q = b;
    if (p->axis != q->axis) return p->axis < q->axis ? -1 : 1;
    if (p->start != q->start) return p->start < q->start ? -1 : 1;
    return p->dx > q->dx ? -1 : p->dx < q->dx;
}

/* Adds to the gradient of x that of as many of parts[0..count), which are in order, as do not
 * overlap, from the first on. The others are left in parts[0..); returns their number. */
static int32_t zfi_join_some(zfi_backward *b, int32_t x, zfi_grad_part *parts, int32_t count,
                             zf_tensor *line)
{
    zf_graph *g = b->graph;
    const int32_t axis = parts[0].axis;
    zf_tensor last = {g, parts[0].dx};
    int64_t before = parts[0].start, end = before + zf_tensor_shape(last).dims[axis];
    int32_t taken = 0, left = 0;
    for (int32_t k = 1; k < count; k++) {
        const zfi_grad_part part = parts[k];
        if (part.axis != axis || part.start < end || taken + 1 == ZF_MAX_OPERANDS) {
            parts[left++] = part;
            continue;
        }
        line[taken++] = zf_pad(last, axis, before, 0);
        last.id = part.dx, before = part.start - end;
        end = part.start + zf_tensor_shape(last).dims[axis];
    }
    line[taken++] = zf_pad(last, axis, before, g->nodes[x].shape.dims[axis] - end);
    zfi_add_gradient(b, x, taken > 1 ? zf_concat(line, taken, axis) : line[0]);
    return left;
}

/* Adds the gradients of parts of node x, at its visit. */
static void zfi_join_parts(zfi_backward *b, int32_t x)
{
    zf_graph *g = b->graph;
    int32_t count = 0;
    zfi_grad_part *parts;
    zf_tensor *line;
    for (int32_t at = b->last_part[x]; at; at = b->parts[at - 1].next) count++;
    if (!count) return;
    parts = zfi_calloc(&g->memory, (size_t)count, sizeof *parts);
    line = zfi_calloc(&g->memory, (size_t)count, sizeof *line);
    if (parts && line) {
        int32_t at = b->last_part[x], left = count;
        for (int32_t k = 0; k < count; k++, at = b->parts[at - 1].next) parts[k] = b->parts[at - 1];
        qsort(parts, (size_t)count, sizeof *parts, zfi_compare_parts);
        zfi_begin_gradient(g, &g->nodes[x]);
        while (left && !g->error.status) left = zfi_join_some(b, x, parts, left, line);
        g->pass = NULL;
    } else {
        zfi_graph_nomem(g);
    }
    zfi_free(&g->memory, parts, (size_t)count * sizeof *parts);
    zfi_free(&g->memory, line, (size_t)count * sizeof *line);
}

/* Notes the gradient of rows of operand k of node id. */
static void zfi_put_rows(zfi_backward *b, int32_t id, int32_t k, const zf_grad *c)
{
    zf_graph *g = b->graph;
    const int32_t table = g->nodes[id].args[k];
    const zfi_grad_rows list = {table, c->dx[k].id, c->rows.id};
    if (k || !zfi_is_operand(c->rows))
        zfi_graph_fail(g, ZF_ERR_ARGUMENT, "autograd",
                       "%%%d = %s reads the table \"%.200s\", of which only the rows that are "
                       "read are to be updated (zf_param_group.lazy_rows): here its gradient is "
                       "one of all rows",
                       (int)id, zfi_record_of(g, id)->name, g->nodes[table].name);
    else zfi_push(&g->memory, b->lists, list);
}

/* The gradient of rows of a table as one list: sets what is its operand 1, and 2, of the mark. */
static void zfi_join_lists(zfi_backward *b, int32_t table, int32_t mark[3])
{
    zf_graph *g = b->graph;
    zf_tensor *dx = NULL, *rows = NULL, all, sums;
    for (int32_t k = 0; k < zfi_len(b->lists) && !g->memory.failed; k++) {
        if (b->lists[k].table != table) continue;
        zfi_push(&g->memory, dx, ((zf_tensor){g, b->lists[k].dx}));
        zfi_push(&g->memory, rows, ((zf_tensor){g, b->lists[k].rows}));
    }
    if (dx && rows && !g->memory.failed) {
        sums = dx[0], all = rows[0];
        if (zfi_len(rows) > 1) {
            zfi_begin_gradient(g, &g->nodes[table]);
            sums = zf_concat(dx, zfi_len(dx), 0);
            all = zf_concat(rows, zfi_len(rows), 0);
            rows[0] = zf_distinct_rows(all, g->nodes[table].shape.dims[0]);
            sums = zf_sum_rows(sums, all, rows[0]);
            g->pass = NULL;
        }
        mark[1] = sums.id, mark[2] = rows[0].id;
    }
    zfi_array_free(&g->memory, dx);
    zfi_array_free(&g->memory, rows);
}

/* Adds the gradients for the operands of node id, whose gradient is dy: that of operand `only`, or
 * of all (-1) that are not put off. */
static void zfi_differentiate(zfi_backward *b, int32_t id, int32_t only)
{
    zf_graph *g = b->graph;
    const bool *needs = b->needs;
    int32_t *gradients = b->gradients;
    const zfi_node node = g->nodes[id]; /* a copy: appending moves the nodes */
    size_t n = (size_t)node.arg_count;
    zf_tensor *x = zfi_calloc(&g->memory, n, sizeof *x),
              *dx = zfi_calloc(&g->memory, n, sizeof *dx);
    bool *need = zfi_calloc(&g->memory, n, sizeof *need);
    zf_grad c = {.graph = g, .attributes = node.attributes, .y = {g, id}, .dy = {g, gradients[id]}};
    c.count = node.arg_count, c.x = x, c.need = need, c.dx = dx;
    if (x && dx && need) {
        for (size_t k = 0; k < n; k++) {
            x[k] = (zf_tensor){g, node.args[k]};
            need[k] = needs[node.args[k]] && (only < 0 || (int32_t)k == only);
            if (!need[k] || only >= 0 || !b->first[node.args[k]] || b->first[node.args[k]] == id)
                continue;
            need[k] = false;
            zfi_push(&g->memory, b->late, id);
            zfi_push(&g->memory, b->late, (int32_t)k);
        }
        for (int k = 0; k < ZF_MAX_SAVED; k++) {
            int32_t dsaved = zfi_gradient_of_saved(g, id, k, gradients);
            if (dsaved) c.dsaved[k] = (zf_tensor){g, dsaved};
        }
        zfi_begin_gradient(g, &node);
        if (g->records[node.op]->grad) g->records[node.op]->grad(&c);
        else if (!zfi_is_read_saved(g, &node)) /* leaving the gradient out would be wrong */
            zfi_graph_fail(g, ZF_ERR_ARGUMENT, "autograd", "%%%d = %s has no gradient of its own",
                           (int)id, g->records[node.op]->name);
        g->pass = NULL;
        for (size_t k = 0; k < n && !g->error.status; k++) {
            if (!need[k] || !zfi_is_operand(dx[k])) continue;
            if (!zfi_is_gradient(g, id, (int32_t)k, dx[k], &c)) break;
            if (zfi_is_lazy_table(&g->nodes[node.args[k]])) zfi_put_rows(b, id, (int32_t)k, &c);
            else if (c.part && k == 0) zfi_put_part(b, node.args[k], &c);
            else zfi_add_gradient(b, node.args[k], dx[k]);
        }
    } else {
        zfi_graph_nomem(g);
    }
    zfi_free(&g->memory, x, n * sizeof *x);
    zfi_free(&g->memory, dx, n * sizeof *dx);
    zfi_free(&g->memory, need, n * sizeof *need);
}

/* Finds the first readers of pieces of params. */
static void zfi_find_first_readers(zfi_backward *b)
{
    const zf_graph *g = b->graph;
    for (int32_t i = zfi_len(g->order); zfi_down(i);) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++)
            if (zfi_cut_rows_of(&g->nodes[node->args[k]]).rows)
                b->first[node->args[k]] = g->order[i];
    }
}

/* At the visit of node id: adds gradients that were put off until then. */
static void zfi_differentiate_late(zfi_backward *b, int32_t id)
{
    zf_graph *g = b->graph;
    int32_t kept = 0;
    const int32_t count = zfi_len(b->late);
    for (int32_t i = 0; i + 1 < count && !g->memory.failed; i += 2) {
        const int32_t reader = b->late[i], k = b->late[i + 1];
        if (b->first[g->nodes[reader].args[k]] == id) zfi_differentiate(b, reader, k);
        else b->late[kept++] = reader, b->late[kept++] = k;
    }
    if (b->late && !g->memory.failed) stbds_header(b->late)->length = (size_t)kept;
}

/* The gradient with which the backward pass begins: 1, or the current loss scale. */
static zf_tensor zfi_loss_gradient(zf_graph *g, zf_tensor loss)
{
    int32_t scaler = zfi_scaler_node(g, ZF_OP_loss_scale);
    zf_dtype dtype = zf_tensor_dtype(loss);
    if (!scaler) return zf_constant(g, dtype, zf_tensor_shape(loss), 1);
    if (dtype != ZF_F32 && dtype != ZF_F64)
        zfi_fail(&g->error, ZF_ERR_DTYPE,
                 "zf_autograd: the loss %%%d is %s; one that is scaled must be f32 (zf_cast)",
                 (int)loss.id, zf_dtype_name(dtype));
    return zf_reshape(zf_cast(zf_scale((zf_tensor){g, g->nodes[scaler].args[0]}, 1), dtype),
                      zf_tensor_shape(loss));
}

/* What the program has said of the loss, by an output of it. */
static zf_output_desc zfi_said_of(const zf_graph *g, int32_t loss)
{
    zf_output_desc d = {ZF_REDUCTION_DERIVED};
    for (int32_t i = 0; i < zfi_len(g->order) && !d.reduction; i++) {
        const zfi_node *mark = &g->nodes[g->order[i]];
        if (mark->op == ZF_OP_output && mark->args[0] == loss)
            d.reduction = (zf_reduction)ZF_INT(mark, output, reduction);
    }
    return d;
}

/* Gives an output of the loss its role: that called "loss", which is made where the name is free;
 * or else any other, or a new one. */
static void zfi_mark_loss(zf_graph *g, zf_tensor loss)
{
    const zf_output_desc said = zfi_said_of(g, loss.id);
    int32_t mark = zfi_map_get(g->names, "loss", 0);
    if (mark && (g->nodes[mark].op != ZF_OP_output || g->nodes[mark].args[0] != loss.id)) {
        mark = 0;
        for (int32_t i = 0; i < zfi_len(g->order) && !mark; i++)
            if (g->nodes[g->order[i]].op == ZF_OP_output &&
                g->nodes[g->order[i]].args[0] == loss.id)
                mark = g->order[i];
        if (!mark) zfi_output_as(loss, "autograd.loss", ZFI_ROLE_LOSS, &said);
    } else if (!mark) {
        zfi_output_as(loss, "loss", ZFI_ROLE_LOSS, &said);
    }
    if (mark) g->nodes[mark].role = ZFI_ROLE_LOSS;
}

/* Makes outputs of the gradients that are wanted, at the end of the order. */
static void zfi_put_wanted(zf_graph *g, const int32_t *gradients)
{
    for (int32_t i = 0, end = zfi_len(g->order); i < end && !g->error.status;) {
        const int32_t id = g->order[i];
        zfi_node *mark = &g->nodes[id];
        const int32_t dx = mark->role == ZFI_ROLE_WANTED ? gradients[mark->args[0]] : 0;
        if (mark->role != ZFI_ROLE_WANTED) {
            i++;
        } else if (!dx && zfi_is_lazy_table(&g->nodes[mark->args[0]])) {
            zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                     "zf_autograd: the output \"%.200s\" is to have the gradient of the table "
                     "\"%.200s\", which is one of the rows that are read "
                     "(zf_param_group.lazy_rows)",
                     mark->name, g->nodes[mark->args[0]].name);
        } else if (!dx) {
            zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                     "zf_autograd: the loss does not depend on %%%d, whose gradient the output "
                     "\"%.200s\" is to have",
                     (int)mark->args[0], mark->name);
        } else {
            memmove(&g->order[i], &g->order[i + 1],
                    (size_t)(zfi_len(g->order) - i - 1) * sizeof *g->order);
            g->order[zfi_len(g->order) - 1] = id;
            mark->args[0] = mark->shown = dx, mark->role = ZFI_ROLE_NONE, end--;
            if (zfi_is_number(&g->nodes[dx])) ZF_INT(mark, output, reduction) = ZF_REDUCTION_NONE;
        }
    }
}

/* Enters the pass. Gradients of gradients are refused by what they are. */
static zf_status zfi_enter_autograd(zf_graph *g)
{
    if (g && !g->error.status && (g->stages & ZFI_STAGE_GRADIENTS))
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "zf_autograd: zf_autograd has been run already; there are no second "
                        "derivatives");
    return zfi_enter(g, "zf_autograd", 0, ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
}

ZF_API zf_status zf_autograd(zf_graph *g, zf_tensor loss)
{
    zf_status status = zfi_enter_autograd(g);
    zfi_backward b = {.graph = g};
    const char *scope;
    char missed[256];
    int32_t count;
    if (status || (status = zfi_settle(g))) return status;
    if (loss.graph == g && loss.id > 0 && loss.id < zfi_len(g->nodes) && !zf_valid(loss))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_autograd: the loss %%%d was removed, since nothing needed it: "
                        "zf_simplify comes after "
                        "zf_autograd, or zf_output keeps the value",
                        (int)loss.id);
    if (loss.graph != g || !zf_valid(loss))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_autograd: the loss is no tensor of this graph%s",
                        zfi_missed(loss.graph == g ? loss : ZF_NONE, missed));
    loss.id = zfi_resolve(g, loss.id);
    count = zfi_len(g->nodes);
    if (!zfi_is_float(zf_tensor_dtype(loss)) || zf_shape_count(zf_tensor_shape(loss)) != 1) {
        char type[ZFI_TYPE_TEXT];
        zfi_type_text(type, g->nodes[loss.id].dtype, &g->nodes[loss.id].shape);
        return zfi_fail(
            &g->error, ZF_ERR_SHAPE,
            "zf_autograd: the loss %%%d is %s; it must be one float (zf_sum or zf_mean give one)",
            (int)loss.id, type);
    }
    scope = g->scope;
    b.gradients = zfi_calloc(&g->memory, 3 * (size_t)count, sizeof *b.gradients);
    b.needs = zfi_calloc(&g->memory, (size_t)count, sizeof *b.needs);
    if (b.gradients && b.needs) {
        int32_t last = zfi_len(g->order);
        b.first = b.gradients + count, b.last_part = b.first + count;
        zfi_mark_trained(g, b.needs);
        zfi_find_first_readers(&b);
        if (!b.needs[loss.id])
            zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                     "zf_autograd: the loss %%%d depends on no trained parameter", (int)loss.id);
        b.gradients[loss.id] = zfi_loss_gradient(g, loss).id;
        for (int32_t i = last - 1; i >= 0 && !g->error.status; i--) {
            const int32_t id = g->order[i];
            zfi_differentiate_late(&b, id);
            zfi_join_parts(&b, id);
            if (!b.needs[id] || !g->nodes[id].arg_count) continue;
            zfi_start_gradient(g, id, b.gradients);
            if (b.gradients[id]) zfi_differentiate(&b, id, -1);
        }
        g->scope = scope, g->file = NULL;
        for (int32_t i = 0; i < zfi_len(g->params) && !g->error.status; i++) {
            int32_t mark[3] = {g->params[i], 0, 0};
            if (mark[0] < count) mark[1] = b.gradients[mark[0]]; /* else a gradient has made it */
            if (zfi_is_lazy_table(&g->nodes[mark[0]])) zfi_join_lists(&b, mark[0], mark);
            if (mark[1] && b.needs[mark[0]] && !ZF_INT(&g->nodes[mark[0]], param, frozen))
                zfi_append(g, &(zfi_new){.op = ZF_OP_gradient,
                                         .args = mark,
                                         .arg_count = mark[2] ? 3 : 2});
        }
        zfi_put_wanted(g, b.gradients);
        if (!g->error.status) zfi_mark_loss(g, loss);
    } else {
        zfi_graph_nomem(g);
    }
    g->scope = scope;
    zfi_free(&g->memory, b.gradients, 3 * (size_t)count * sizeof *b.gradients);
    zfi_free(&g->memory, b.needs, (size_t)count * sizeof *b.needs);
    zfi_array_free(&g->memory, b.late);
    zfi_array_free(&g->memory, b.parts);
    zfi_array_free(&g->memory, b.lists);
    return zfi_leave(g, ZFI_STAGE_GRADIENTS);
}

/* The `gradient` node of a parameter; 0: it has none. */
static int32_t zfi_gradient_node(const zf_graph *g, int32_t param)
{
    for (int32_t i = zfi_len(g->order); zfi_down(i);)
        if (g->nodes[g->order[i]].op == ZF_OP_gradient && g->nodes[g->order[i]].args[0] == param)
            return g->order[i];
    return 0;
}

ZF_API zf_tensor zf_gradient(zf_graph *g, zf_tensor param)
{
    int32_t node = g && zf_valid(param) && param.graph == g ? zfi_gradient_node(g, param.id) : 0;
    return (zf_tensor){g, node ? g->nodes[node].args[1] : 0};
}
