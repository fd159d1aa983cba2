/* The rules that every node keeps, checked from the nodes alone.
 *
 *   - operands are defined above their use; effects are never operands; each node runs once
 *   - dtype and shape are those that the operator infers, the type along axes is that of
 *     graph/spread.c; the name of a piece (zf_tile) has its
 *     rows
 *   - the micro section comes first, and uses no value of the update section; in a step of one
 *     micro-batch, what follows the losses may stand among the updates
 *   - operands that an operator writes are params, states or caches, or copies of these; a cache is
 *     read by the node that writes it alone, and by outputs
 *   - operands and result lie in one space, except for copy; collectives are on the device
 *   - a parameter has at most one gradient; it and each of its states has at most one update; a
 *     gradient is no param or state, since an update could change it before it is read
 *   - a role is that of an output, of a parameter, of its state or of a state of all; there is at
 *     most one loss, and a parameter has at most one state of each role; master weights begin with
 *     its values
 *   - the pieces of a value do not overlap and are all of it; if one has an update, all have
 */

ZFI_FAILS(3, 4)
static zf_status zfi_verify_fail(zf_graph *g, int32_t id, const char *format, ...)
{
    char line[256], message[240];
    zfi_writer w = zfi_writer_of(NULL, line, sizeof line);
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    zfi_print_node(&w, g, id, 0);
    zfi_print_end(&w);
    return zfi_fail(&g->error, ZF_ERR_VERIFY, "verify: %s: %s", line, message);
}

/* The leaf that is written through a node: the node itself, or the bucket of which it is a shard or
 * a piece. */
static int32_t zfi_written_leaf(const zf_graph *g, int32_t id)
{
    while (zfi_is_part(&g->nodes[id])) id = g->nodes[id].args[0];
    return id;
}

/* The leaf whose value in the end changes when the node is written: for a copy, the leaf of which
 * it is a copy. */
static int32_t zfi_updated_leaf(const zf_graph *g, int32_t id)
{
    while (zfi_is_part(&g->nodes[id]) || g->nodes[id].op == ZF_OP_copy) id = g->nodes[id].args[0];
    return id;
}

/* The piece that is written through a node, or through a copy of it; 0: none. */
static int32_t zfi_updated_piece(const zf_graph *g, int32_t id)
{
    while (g->nodes[id].op == ZF_OP_copy) id = g->nodes[id].args[0];
    return g->nodes[id].op == ZF_OP_piece ? id : 0;
}

/* Checks that the node runs in the space of its operands, and can run there. */
static zf_status zfi_verify_space(zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    const uint32_t traits = zfi_record_of(g, id)->traits;
    const zf_space space =
        zfi_space_of(g, zfi_record_of(g, id), node->args, node->arg_count, node->attributes,
                     (zf_space)node->space);
    if (space != (zf_space)node->space)
        return zfi_verify_fail(g, id, "its operands give a result in the space %s",
                               zf_space_name(space));
    for (int32_t k = 1; k < node->arg_count && !(traits & ZF_OP_ANYWHERE); k++)
        if ((zf_space)g->nodes[node->args[k]].space != space)
            return zfi_verify_fail(g, id, "%%%d lies in the space %s, and %%%d in %s",
                                   (int)node->args[0], zf_space_name(space), (int)node->args[k],
                                   zf_space_name((zf_space)g->nodes[node->args[k]].space));
    if (traits & ZF_OP_COLLECTIVE && space != ZF_DEVICE && ZF_INT(node, all_gather, world) > 1)
        return zfi_verify_fail(g, id,
                               "collectives take values on the device, and this one lies in %s",
                               zf_space_name(space));
    if (space == ZF_DISK && !(traits & (ZF_OP_LEAF | ZF_OP_ANYWHERE)))
        return zfi_verify_fail(g, id, "a value on the disk can only be copied");
    return ZF_OK;
}

/* "[16:24]", the rows that all ranks have of a piece, with which its name ends (graph/graph.c). */
static const char *zfi_rows_of_piece(char rows[ZFI_PIECE_NAME], const zf_graph *g,
                                     const zfi_node *leaf)
{
    const zf_shape shape = zfi_whole_of(zfi_mesh_of(g), leaf->shape, &leaf->spread);
    return zfi_piece_name(rows, "", zfi_cut_rows_of(leaf).row, shape.dims[0]);
}

/* Checks the node's role: it fits the operator, and a state has a parameter. */
static zf_status zfi_verify_role(zf_graph *g, int32_t id, const uint8_t *defined)
{
    const zfi_node *node = &g->nodes[id];
    const zfi_role role = (zfi_role)node->role;
    const zf_op op = zfi_op_of_role(role);
    if (!role)
        return node->of ? zfi_verify_fail(g, id, "it is of %%%d, and has no role", (int)node->of)
                        : ZF_OK;
    if (node->op != op)
        return zfi_verify_fail(g, id, "the role %s is that of %s", zfi_roles[role].text,
                               op == ZF_OP_output  ? "an output"
                               : op == ZF_OP_param ? "a parameter"
                                                   : "a state");
    if (zfi_roles[role].kind != ZFI_OF_STATE)
        return !node->of
                   ? ZF_OK
                   : zfi_verify_fail(g, id, "the role %s is of no parameter, but it is of %%%d",
                                     zfi_roles[role].text, (int)node->of);
    if (node->of <= 0 || node->of >= zfi_len(g->nodes) || !defined[node->of] ||
        g->nodes[node->of].op != ZF_OP_param)
        return zfi_verify_fail(g, id, "a state with the role %s is of a parameter above it",
                               zfi_roles[role].text);
    if (role == ZFI_ROLE_MASTER && (node->arg_count != 1 || node->args[0] != node->of))
        return zfi_verify_fail(g, id, "master weights begin with the values of their parameter");
    return ZF_OK;
}

static int zfi_by_role(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return a < b ? -1 : a > b;
}

/* One node of the graph or of a parameter has the role. But any number of gradients may be wanted,
 * an adapter has several parameters, and each optimizer of a training has its own count. */
static bool zfi_is_once(zfi_role role)
{
    return role && role != ZFI_ROLE_WANTED && role != ZFI_ROLE_ADAPTER &&
           zfi_roles[role].kind != ZFI_OF_TRAINING;
}

static void zfi_verify_roles(zf_graph *g)
{
    int64_t *keys = NULL; /* the parameter and the role */
    for (int32_t i = 0; i < zfi_len(g->order) && !g->memory.failed; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (zfi_is_once((zfi_role)node->role))
            zfi_push(&g->memory, keys, (int64_t)node->of * ZFI_ROLES_END + node->role);
    }
    if (keys && !g->memory.failed) qsort(keys, stbds_arrlenu(keys), sizeof *keys, zfi_by_role);
    for (int32_t k = 1; k < zfi_len(keys) && !g->memory.failed && !g->error.status; k++)
        if (keys[k] == keys[k - 1])
            zfi_fail(
                &g->error, ZF_ERR_VERIFY, "verify: there are two nodes with the role %s%s%.200s",
                zfi_roles[keys[k] % ZFI_ROLES_END].text, keys[k] >= ZFI_ROLES_END ? " of " : "",
                keys[k] >= ZFI_ROLES_END ? g->nodes[keys[k] / ZFI_ROLES_END].name : "");
    zfi_array_free(&g->memory, keys);
    if (g->memory.failed) zfi_graph_nomem(g);
}

static zf_status zfi_verify_node(zf_graph *g, int32_t id, const uint8_t *defined)
{
    const zfi_node *node = &g->nodes[id];
    const zfi_record *record = g->records[node->op];
    const zfi_node **args = zfi_calloc(&g->memory, (size_t)node->arg_count + 1, sizeof *args);
    zfi_infer infer = {g,           record,     args, node->arg_count, node->attributes,
                       node->dtype, node->shape};
    zf_status status = ZF_OK;
    char type[ZFI_TYPE_TEXT + ZFI_SPREAD_TEXT], why[ZFI_SPREAD_WHY], rows[ZFI_PIECE_NAME];
    zfi_spread spread;
    if (!args) return zfi_graph_nomem(g);
    for (int32_t k = 0; k < node->arg_count && !status; k++) {
        int32_t arg = node->args[k];
        if (arg <= 0 || arg >= zfi_len(g->nodes) || !defined[arg])
            status = zfi_verify_fail(g, id, "%%%d is not defined above it", (int)arg);
        else if (zfi_has(g, arg, ZF_OP_EFFECT))
            status = zfi_verify_fail(g, id, "%%%d has no value", (int)arg);
        else if ((zfi_written_args(g, node) >> (k < 31 ? k : 31) & 1) &&
                 !zfi_has(g, zfi_updated_leaf(g, arg), ZF_OP_WRITABLE))
            status = zfi_verify_fail(g, id, "it writes %%%d, which is no param, state or cache",
                                     (int)arg);
        else if (g->nodes[arg].op == ZF_OP_cache && !zfi_is_held(&g->nodes[arg]) &&
                 node->op != ZF_OP_output &&
                 !(zfi_written_args(g, node) >> (k < 31 ? k : 31) & 1))
            status = zfi_verify_fail(
                g, id, "%%%d is a cache, which only the node reads that writes it", (int)arg);
        else if (g->nodes[arg].held && node->op != ZF_OP_bucket && node->op != ZF_OP_state)
            status = zfi_verify_fail(g, id, "%%%d has no storage: it lies in the bucket %%%d",
                                     (int)arg, (int)g->nodes[arg].held);
        else args[k] = &g->nodes[arg];
    }
    if (!status && node->op == ZF_OP_saved && args[0]->saved[ZF_INT(node, saved, index)] != id)
        status =
            zfi_verify_fail(g, id, "%%%d does not list it as a saved node", (int)node->args[0]);
    if (!status && node->op == ZF_OP_saved && args[0]->update != node->update)
        status = zfi_verify_fail(g, id, "%%%d is in the other section", (int)node->args[0]);
    if (!status && zfi_cut_rows_of(node).rows &&
        strcmp(node->name + zfi_whole_name(node->name), zfi_rows_of_piece(rows, g, node)))
        status = zfi_verify_fail(g, id, "its name does not end with its rows, %s", rows);
    if (!status && node->op == ZF_OP_gradient && zfi_has(g, node->args[1], ZF_OP_WRITABLE))
        status = zfi_verify_fail(g, id, "%%%d is a %s, which updates change", (int)node->args[1],
                                 g->records[args[1]->op]->name);
    if (!status) status = zfi_verify_role(g, id, defined);
    if (!status) status = zfi_verify_space(g, id);
    if (!status) status = record->infer(&infer);
    if (!status && !zfi_spread_find(g, id, &spread, why))
        status = zfi_verify_fail(g, id, "%s", why);
    if (!status && !zfi_same_spread(&spread, &node->spread))
        status = zfi_verify_fail(g, id, "its operands give the type %s",
                                 zfi_spread_text(type, node->dtype, &node->shape, &spread));
    if (!status && !(record->traits & ZF_OP_EFFECT) &&
        (infer.dtype != node->dtype || !zfi_same_shape(&infer.shape, &node->shape))) {
        status = zfi_verify_fail(g, id, "its operands give %s",
                                 zfi_type_text(type, infer.dtype, &infer.shape));
    }
    zfi_free(&g->memory, args, ((size_t)node->arg_count + 1) * sizeof *args);
    return status;
}

enum { ZFI_DEFINED = 1, ZFI_MARKED = 2, ZFI_UPDATED = 4, ZFI_UPDATED_PIECES = 8, ZFI_CUT = 16 };

/* Notes what a gradient mark or an update does to its operand k: not for the second time. */
static void zfi_note_update(zf_graph *g, int32_t id, int32_t k, uint8_t *seen)
{
    const zfi_node *node = &g->nodes[id];
    const bool marks = node->op == ZF_OP_gradient;
    const int32_t leaf = zfi_updated_leaf(g, node->args[k]),
                  piece = marks ? 0 : zfi_updated_piece(g, node->args[k]),
                  cut = piece ? g->nodes[piece].args[0] : 0;
    const uint8_t mark = marks ? ZFI_MARKED : ZFI_UPDATED;
    if (seen[leaf] & mark || (piece && seen[piece] & mark) ||
        (!marks && seen[leaf] & ZFI_UPDATED_PIECES && !(seen[cut] & ZFI_CUT)))
        zfi_verify_fail(g, id, "%%%d has %s already", (int)(piece ? piece : leaf),
                        marks ? "a gradient" : "an update");
    seen[piece ? piece : leaf] |= mark;
    if (piece) seen[leaf] |= ZFI_UPDATED_PIECES, seen[cut] |= ZFI_CUT;
}

typedef struct zfi_piece_place {
    int32_t node, of; /* a piece, and the value of which it is one */
    int64_t at, size;
} zfi_piece_place;

static int zfi_by_cut(const void *left, const void *right)
{
    const zfi_piece_place *a = left, *b = right;
    if (a->of != b->of) return a->of < b->of ? -1 : 1;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    return a->node < b->node ? -1 : a->node > b->node;
}

/* Checks that the pieces of each value are all of it, and that all or none of them are updated. */
static void zfi_verify_pieces(zf_graph *g, const uint8_t *seen)
{
    zfi_piece_place *cuts = NULL;
    for (int32_t i = 0; i < zfi_len(g->order) && !g->memory.failed; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_piece)
            zfi_push(&g->memory, cuts,
                     ((zfi_piece_place){g->order[i], node->args[0], ZF_INT(node, piece, at),
                                ZF_INT(node, piece, size)}));
    }
    if (cuts && !g->memory.failed) qsort(cuts, stbds_arrlenu(cuts), sizeof *cuts, zfi_by_cut);
    for (int32_t k = 0; k < zfi_len(cuts) && !g->memory.failed && !g->error.status; k++) {
        const zfi_piece_place *cut = &cuts[k];
        const bool first = k == 0 || cuts[k - 1].of != cut->of,
                   last = k + 1 == zfi_len(cuts) || cuts[k + 1].of != cut->of;
        const int64_t end = first ? 0 : cuts[k - 1].at + cuts[k - 1].size;
        if (cut->at != end)
            zfi_verify_fail(g, cut->node, "the piece of %%%d before it ends at %lld", (int)cut->of,
                            (long long)end);
        else if (last && cut->at + cut->size != zfi_node_count(&g->nodes[cut->of]))
            zfi_verify_fail(g, cut->node, "the pieces of %%%d end here, and it has %lld elements",
                            (int)cut->of, (long long)zfi_node_count(&g->nodes[cut->of]));
        else if (seen[cut->of] & ZFI_CUT && !(seen[cut->node] & ZFI_UPDATED))
            zfi_verify_fail(g, cut->node, "it has no update, and other pieces of %%%d have one",
                            (int)cut->of);
    }
    zfi_array_free(&g->memory, cuts);
    if (g->memory.failed) zfi_graph_nomem(g);
}

/* Checks all nodes; the first broken rule becomes the graph's error. */
static zf_status zfi_verify_nodes(zf_graph *g)
{
    size_t count = (size_t)zfi_len(g->nodes);
    uint8_t *seen;
    bool once = false, pieces = false;
    seen = zfi_calloc(&g->memory, count, 1);
    if (!seen) return zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order) && !g->error.status; i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if (seen[id] & ZFI_DEFINED) zfi_verify_fail(g, id, "it is twice in the order");
        if (once && !zfi_runs_once(node))
            zfi_verify_fail(g, id, "it belongs to the micro section but is below 'update:'");
        if (node->below && g->micro_batches > 1)
            zfi_verify_fail(g, id, "it runs once, and the step has %lld micro-batches",
                            (long long)g->micro_batches);
        if (node->below && zfi_marks_number(g, node))
            zfi_verify_fail(g, id,
                            "a loss is looked at before updates; it must be above 'update:'");
        once |= zfi_runs_once(node);
        if (g->error.status || zfi_verify_node(g, id, seen)) break;
        seen[id] |= ZFI_DEFINED;
        pieces |= node->op == ZF_OP_piece;
        for (int32_t k = 0; k < node->arg_count && k < 31; k++) {
            if (node->op == ZF_OP_gradient ? k > 0 : !(zfi_written_args(g, node) >> k & 1))
                continue;
            if (node->op == ZF_OP_advance || zfi_writes_into(g, id, k)) continue;
            zfi_note_update(g, id, k, seen);
        }
    }
    if (pieces && !g->error.status) zfi_verify_pieces(g, seen);
    if (!g->error.status) zfi_verify_roles(g);
    zfi_free(&g->memory, seen, count);
    return g->error.status;
}
