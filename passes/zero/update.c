/* zero, the update section: values with one element for each element of a parameter are lifted to
 * its bucket, so that elementwise operators and updates run once for a bucket, from stage 1 on only
 * on this rank's shard (zero.c).
 *
 *     block_norms %9, block_norms %21     block_norms %31, all_gather; a view for each
 *     mul %9, %27 / mul %21, %27          mul %31, %27
 *     adamw %2, ... / adamw %4, ...       adamw %20, ... {blocks=[0,1,1,3]}, by ranges of blocks
 */

/* The node that an update of bucket f writes. */
static int32_t zfi_target(zfi_zero *z, int32_t f)
{
    zfi_bucket_state *u = &z->buckets[f];
    if (!u->shard)
        u->shard = zfi_is_sharded(z, f) && z->d.stage < 3
                       ? zfi_append_nodes(z->graph, shard, zfi_with({.i = zfi_shards_of(z, f)}),
                                          u->bucket)
                       : u->bucket;
    return u->shard;
}

/* The node is in the micro section and is a view of parameters, but no parameter. */
static bool zfi_shows_params(const zfi_zero *z, int32_t id)
{
    return (size_t)id < z->nodes && z->bucket_of[id] >= 0 && z->member_of[id] < 0;
}

/* The operand in the new graph for a node that is not elements of a parameter: itself, or a view of
 * its bucket's value. */
static int32_t zfi_plain_arg(zfi_zero *z, int32_t id)
{
    zf_graph *g = z->graph;
    zfi_lift *lift = &z->lift[id];
    const zfi_member *m = &z->cut.members[lift->member];
    int32_t real = 0, index = 0;
    if (lift->kind == ZFI_LIFT_ROWS) return lift->value;
    if (lift->kind == ZFI_LIFT_NONE)
        return zfi_shows_params(z, id) ? z->seen_as[id] : zfi_resolve(g, id);
    if (lift->kind == ZFI_LIFT_BLOCKS)
        real = zfi_view_node(g, lift->value, m->at / ZFI_NORM_BLOCK,
                             ZF_SHAPE(zfi_whole_blocks(m->count)));
    if (lift->kind == ZFI_LIFT_NORM) {
        for (int32_t k = z->cut.buckets[zfi_bucket_of_member(z, lift->member)].first;
             k < lift->member; k++)
            index += z->updated[k];
        real = zfi_view_node(g, lift->value, index, ZF_SCALAR);
    }
    return real;
}

/* Element i of a bucket's value depends only on elements i of its operands. */
static bool zfi_can_lift(const zf_graph *g, const zfi_node *node)
{
    uint32_t traits = g->records[node->op]->traits;
    return (traits & ZF_OP_ELEMENTWISE) && !(traits & ZF_OP_RANDOM) && zfi_is_float(node->dtype);
}

/* The node of bucket f over these operands: an existing one, or a new one. */
static int32_t zfi_lifted_node(zfi_zero *z, int32_t f, zf_op op, const int32_t *args, int32_t count,
                               const zf_attribute *attributes)
{
    zf_graph *g = z->graph;
    zfi_lifted made = {0, z->buckets[f].lifted};
    for (int32_t i = made.before; i; i = z->lifted[i - 1].before) {
        const zfi_node *node = &g->nodes[z->lifted[i - 1].node];
        if (node->op == op && node->arg_count == count &&
            !memcmp(node->args, args, (size_t)count * sizeof *args) &&
            (op == ZF_OP_norms || op == ZF_OP_maxima || op == ZF_OP_sign_expand ||
             zfi_alike_but_piece(g->records[op], node->attributes, attributes)))
            return z->lifted[i - 1].node;
    }
    made.node = zfi_append_op(g, op, args, count, attributes);
    if (made.node && zfi_push(&g->memory, z->lifted, made))
        z->buckets[f].lifted = zfi_len(z->lifted);
    return made.node;
}

static int32_t zfi_lifted_gather(zfi_zero *z, int32_t f, int64_t over, int32_t x)
{
    const int32_t ranks = zfi_mesh_size(zfi_zero_mesh(z), over);
    if (!x) return 0;
    return zfi_lifted_node(z, f, ZF_OP_all_gather, &x, 1, zfi_with({.i = ranks}, {.i = over}));
}

/* The member whose state this is; -1: none. */
static int32_t zfi_member_of_state(const zfi_zero *z, int32_t id)
{
    const zf_graph *g = z->graph;
    const int32_t param = g->nodes[id].of;
    return param && z->member_of[param] >= 0 &&
                   zfi_same_shape(&g->nodes[param].shape, &g->nodes[id].shape)
               ? z->member_of[param]
               : -1;
}

/* This rank's shard of a value that is whole on each rank, where `like` is a shard. */
static int32_t zfi_cut_like(zfi_zero *z, int32_t f, int32_t x, int32_t like)
{
    const zf_graph *g = z->graph;
    if (!x || zfi_node_count(&g->nodes[x]) == zfi_node_count(&g->nodes[like])) return x;
    return zfi_lifted_node(z, f, ZF_OP_shard, &x, 1, zfi_with({.i = zfi_shards_of(z, f)}));
}

/* Where one of the operands that are elements is a shard, makes shards of all. */
static void zfi_cut_alike(zfi_zero *z, int32_t f, const zfi_node *node, int32_t *args)
{
    int32_t shard = 0;
    for (int32_t k = 0; k < node->arg_count; k++)
        if (z->lift[node->args[k]].kind == ZFI_LIFT_ELEMENTS &&
            zfi_node_count(&z->graph->nodes[args[k]]) != z->cut.buckets[f].size)
            shard = args[k];
    for (int32_t k = 0; k < node->arg_count && shard; k++)
        if (z->lift[node->args[k]].kind == ZFI_LIFT_ELEMENTS)
            args[k] = zfi_cut_like(z, f, args[k], shard);
}

/* The bucket's value for `id`, elements of the parameter `member`, for the node `reader`. */
static int32_t zfi_pull(zfi_zero *z, int32_t reader, int32_t member, int32_t id)
{
    zf_graph *g = z->graph;
    const zfi_lift *lift = &z->lift[id];
    int32_t f = zfi_bucket_of_member(z, member), args[4] = {0};
    const zfi_node node = g->nodes[id];
    if (z->cut.members[member].param == id) return zfi_target(z, f);
    if (z->gradient[member] == id) return z->buckets[f].reduced;
    if (lift->value && lift->member == member) return lift->value;
    if (node.op == ZF_OP_state) return zfi_bucket_of_states(z, member, id);
    if (!node.update || !zfi_can_lift(g, &node) || node.arg_count > ZFI_COUNT(args))
        return zfi_zero_fail(z, reader,
                             "it mixes elements of two parameters, which may lie on two ranks");
    for (int32_t k = 0; k < node.arg_count; k++) {
        int32_t arg = node.args[k];
        if (z->lift[arg].kind == ZFI_LIFT_ELEMENTS) args[k] = zfi_pull(z, id, member, arg);
        else if (zfi_node_count(&g->nodes[arg]) == 1) args[k] = zfi_plain_arg(z, arg);
        else zfi_zero_fail(z, id, "it mixes elements of a parameter with another tensor");
        if (!args[k]) return 0;
    }
    zfi_cut_alike(z, f, &node, args);
    return zfi_lifted_node(z, f, node.op, args, node.arg_count, node.attributes);
}

/* Numbers of the bucket: `made`, or those of all ranks, where each has made those of its shard. */
static int32_t zfi_gathered_numbers(zfi_zero *z, int32_t member, int32_t made, bool cut)
{
    const int32_t f = zfi_bucket_of_member(z, member);
    if (cut && zfi_spans_nodes(z)) made = zfi_lifted_gather(z, f, ZF_OVER_NODE, made);
    return cut ? zfi_lifted_gather(z, f, zfi_sum_axis(z, f), made) : made;
}

/* A number for each block of the bucket. */
static void zfi_lift_numbers(zfi_zero *z, int32_t id, int32_t member, int32_t made, bool cut)
{
    made = zfi_gathered_numbers(z, member, made, cut);
    z->lift[id] = (zfi_lift){ZFI_LIFT_BLOCKS, member, made};
}

static void zfi_lift_blocks(zfi_zero *z, int32_t id, int32_t member)
{
    int32_t value = zfi_pull(z, id, member, z->graph->nodes[id].args[0]), norms,
            f = zfi_bucket_of_member(z, member);
    bool cut; /* this rank has a shard of the value */
    if (!value) return;
    cut = z->local ? zfi_node_count(&z->graph->nodes[value]) != z->cut.buckets[f].size
                   : zfi_is_sharded(z, f);
    norms = zfi_lifted_node(z, f, ZF_OP_block_norms, &value, 1, z->graph->nodes[id].attributes);
    zfi_lift_numbers(z, id, member, norms, cut);
}

static void zfi_free_blocks(zfi_zero *z, int64_t *blocks, int32_t f)
{
    zfi_free(&z->graph->memory, blocks, 2 * (size_t)z->cut.buckets[f].count * sizeof *blocks);
}

/* Squares of one kind are in runs of one unit, of what is cut over the same axes. */
static int64_t zfi_kind_of_squares(const zf_graph *g, const zfi_node *node)
{
    return ZF_INT(node, squares, unit) << 8 | zfi_spread_cut(&g->nodes[node->args[0]].spread);
}

/* The squares of bucket f of that kind; 0: there are none yet. */
static int32_t zfi_lifted_squares(const zfi_zero *z, int32_t f, int64_t kind)
{
    for (int32_t i = z->buckets[f].lifted; i; i = z->lifted[i - 1].before) {
        const zfi_node *node = &z->graph->nodes[z->lifted[i - 1].node];
        if (node->op == ZF_OP_squares &&
            (ZF_INT(node, squares, unit) << 8 | node->spread.sum) == kind)
            return z->lifted[i - 1].node;
    }
    return 0;
}

/* Notes of which members' gradients there are squares, and of which kind. */
static void zfi_find_squares(zfi_zero *z)
{
    for (int32_t i = 0; i < zfi_len(z->order) && !z->squares; i++) {
        const zfi_node *node = &z->graph->nodes[z->order[i]];
        const zfi_lift *of = node->op == ZF_OP_squares ? &z->lift[node->args[0]] : NULL;
        if (of && of->kind == ZFI_LIFT_ELEMENTS && node->args[0] == z->gradient[of->member])
            z->squared[of->member] = (int32_t)zfi_kind_of_squares(z->graph, node);
    }
    z->squares = true;
}

/* Sets the ranges of blocks of the members of bucket f whose squares are of that kind; returns how
 * many numbers these are. */
static int64_t zfi_squared_blocks(zfi_zero *z, int32_t f, int64_t kind, int64_t *blocks)
{
    const zfi_bucket *bucket = &z->cut.buckets[f];
    int64_t count = 0;
    zfi_find_squares(z);
    for (int32_t m = bucket->first; m < bucket->first + bucket->count; m++) {
        const zfi_member *its = &z->cut.members[m];
        if (z->squared[m] != kind) continue;
        blocks[count++] = its->at / ZFI_NORM_BLOCK;
        blocks[count++] = its->at / ZFI_NORM_BLOCK + zfi_whole_blocks(its->count);
    }
    return count;
}

/* Sets the range of blocks of a member; returns how many numbers these are. */
static int64_t zfi_own_blocks(const zfi_zero *z, int32_t m, int64_t *blocks)
{
    const zfi_member *its = &z->cut.members[m];
    blocks[0] = its->at / ZFI_NORM_BLOCK;
    blocks[1] = blocks[0] + zfi_whole_blocks(its->count);
    return 2;
}

/* The squares of a member's gradient: those of all members of its bucket of the same kind. Of
 * another value, as of the parameter, the member's alone. */
static void zfi_lift_squares(zfi_zero *z, int32_t id, int32_t member)
{
    zf_graph *g = z->graph;
    const int32_t f = zfi_bucket_of_member(z, member),
                  value = zfi_pull(z, id, member, g->nodes[id].args[0]);
    const zf_attribute unit = ZF_ATTRIBUTE(&g->nodes[id], squares, unit);
    const int64_t kind = zfi_kind_of_squares(g, &g->nodes[id]);
    const bool all = g->nodes[id].args[0] == z->gradient[member];
    int32_t made = all ? zfi_lifted_squares(z, f, kind) : 0;
    int64_t *blocks = zfi_calloc(&g->memory, 2 * (size_t)z->cut.buckets[f].count, sizeof *blocks);
    if (!blocks) zfi_graph_nomem(g);
    if (value && blocks && !made)
        made =
            zfi_lifted_node(z, f, ZF_OP_squares, &value, 1,
                            zfi_with(unit, {.i = zfi_world_of(z, f)},
                                     zfi_listed(blocks, all ? zfi_squared_blocks(z, f, kind, blocks)
                                                            : zfi_own_blocks(z, member, blocks))));
    z->lift[id] = (zfi_lift){ZFI_LIFT_SQUARES, member, made};
    zfi_free_blocks(z, blocks, f);
}

/* Their sum over the ranks along another axis; or what another stage is sent, those of all
 * ranks. */
static void zfi_lift_squares_over(zfi_zero *z, int32_t id)
{
    const zfi_node node = z->graph->nodes[id];
    zfi_lift from = z->lift[node.args[0]];
    if (node.op == ZF_OP_send)
        from.value =
            zfi_gathered_numbers(z, from.member, from.value,
                                 zfi_is_sharded(z, zfi_bucket_of_member(z, from.member)));
    from.value = zfi_lifted_node(z, zfi_bucket_of_member(z, from.member), node.op, &from.value, 1,
                                 node.attributes);
    z->lift[id] = from;
}

/* The norm of squares: those of a bucket count once, and of shards those of all ranks. */
static void zfi_update_norm_of_squares(zfi_zero *z, int32_t id)
{
    zf_graph *g = z->graph;
    int32_t count = 0, *args = g->nodes[id].args;
    for (int32_t k = 0; k < g->nodes[id].arg_count; k++) {
        const zfi_lift *lift = &z->lift[args[k]];
        int32_t x = zfi_plain_arg(z, args[k]), same = 0;
        if (lift->kind == ZFI_LIFT_SQUARES)
            x = zfi_gathered_numbers(z, lift->member, lift->value,
                                     zfi_is_sharded(z, zfi_bucket_of_member(z, lift->member)) &&
                                         g->nodes[lift->value].op != ZF_OP_send);
        while (same < count && args[same] != x) same++;
        if (same == count) args[count++] = x;
    }
    g->nodes[id].arg_count = count;
    zfi_keep(z, id);
}

/* The ranges of blocks of the updated members of bucket f, which the caller frees; *count: the
 * number of numbers. */
static int64_t *zfi_updated_blocks(zfi_zero *z, int32_t f, int64_t *count)
{
    const zfi_bucket *bucket = &z->cut.buckets[f];
    int64_t *blocks = zfi_calloc(&z->graph->memory, 2 * (size_t)bucket->count, sizeof *blocks);
    *count = 0;
    for (int32_t m = bucket->first; blocks && m < bucket->first + bucket->count; m++) {
        const zfi_member *member = &z->cut.members[m];
        if (!z->updated[m]) continue;
        blocks[(*count)++] = member->at / ZFI_NORM_BLOCK;
        blocks[(*count)++] = member->at / ZFI_NORM_BLOCK + zfi_whole_blocks(member->count);
    }
    if (!blocks) zfi_graph_nomem(z->graph);
    return blocks;
}

/* The norm or the maximum of one parameter's blocks: an element of its bucket's. */
static void zfi_lift_norm(zfi_zero *z, int32_t id)
{
    zfi_lift from = z->lift[z->graph->nodes[id].args[0]];
    int32_t f = zfi_bucket_of_member(z, from.member);
    int64_t count, *blocks = zfi_updated_blocks(z, f, &count);
    const zf_op op = z->graph->nodes[id].op == ZF_OP_norm ? ZF_OP_norms : ZF_OP_maxima;
    if (blocks)
        from.value = zfi_lifted_node(z, f, op, &from.value, 1,
                                     zfi_with(zfi_listed(blocks, count)));
    z->lift[id] = (zfi_lift){ZFI_LIFT_NORM, from.member, from.value};
    zfi_free_blocks(z, blocks, f);
}

/* The updates of the members of bucket f by this operator, from a position of the update section
 * before the pass on. */
static void zfi_find_updates(const zfi_zero *z, int32_t f, zf_op op, int32_t from, int32_t *updates)
{
    const zf_graph *g = z->graph;
    int32_t left = z->buckets[f].updated;
    for (int32_t i = from; i < zfi_len(z->order) && left; i++) {
        const zfi_node *node = &g->nodes[z->order[i]];
        const int32_t m = node->op == op ? z->member_of[node->args[0]] : -1;
        if (m < 0 || !z->updated[m] || zfi_bucket_of_member(z, m) != f) continue;
        updates[m - z->cut.buckets[f].first] = z->order[i];
        left--;
    }
}

/* The bucket of the states that are operand k of the updates of bucket f, by its members. */
static int32_t zfi_states_bucket(zfi_zero *z, int32_t f, const int32_t *updates, int32_t k)
{
    zf_graph *g = z->graph;
    const zfi_bucket *bucket = &z->cut.buckets[f];
    int32_t *leaves = zfi_calloc(&g->memory, (size_t)bucket->count, sizeof *leaves), id = 0;
    if (!leaves) return zfi_graph_nomem(g), 0;
    for (int32_t m = 0; m < bucket->count; m++)
        leaves[m] = updates[m] ? g->nodes[updates[m]].args[k] : 0;
    id =
        zfi_append_bucket(z, bucket, leaves, zfi_world_of(z, f), false);
    for (int32_t m = 0; m < bucket->count; m++)
        if (leaves[m]) z->lift[leaves[m]] = (zfi_lift){ZFI_LIFT_ELEMENTS, bucket->first + m, id};
    zfi_free(&g->memory, leaves, (size_t)bucket->count * sizeof *leaves);
    return id;
}

/* Operand k of the updates of bucket f, a number: if they have one each, these in a tensor. */
static int32_t zfi_update_numbers(zfi_zero *z, int32_t f, const int32_t *updates, int32_t k,
                                  int32_t own)
{
    zf_graph *g = z->graph;
    const int64_t one = 1;
    int32_t *numbers = NULL, all;
    bool differ = false;
    for (int32_t m = 0; m < z->cut.buckets[f].count; m++)
        differ |= updates[m] && g->nodes[updates[m]].args[k] != own;
    all = differ ? 0 : zfi_plain_arg(z, own);
    for (int32_t m = 0; m < z->cut.buckets[f].count && differ && !g->memory.failed; m++) {
        int32_t number = updates[m] ? zfi_plain_arg(z, g->nodes[updates[m]].args[k]) : 0;
        if (!number) continue;
        number = zfi_append_nodes(g, reshape, zfi_with(zfi_listed(&one, 1)), number);
        zfi_push(&g->memory, numbers, number);
    }
    if (numbers && !g->memory.failed)
        all = zfi_append_op(g, ZF_OP_concat, numbers, zfi_len(numbers), zfi_with({.i = 0}));
    zfi_array_free(&g->memory, numbers);
    return all;
}

/* The updates differ in more than weight decay, or in the rate where they take one: they are no
 * update of a bucket. */
static bool zfi_updates_differ(const zf_graph *g, int32_t a, int32_t b)
{
    const zfi_node *x = &g->nodes[a], *y = &g->nodes[b];
    const zfi_record *record = g->records[x->op];
    const char *fields = record->attributes;
    zfi_field field;
    for (int k = 0; zfi_next_field(&fields, &field); k++)
        if (field.kind != 'l' && field.kind != 'v' &&
            strncmp(field.name, "weight_decay", (size_t)field.name_length) &&
            x->attributes[k].i != y->attributes[k].i)
            return true;
    return record->rate && x->op != ZF_OP_adam_apply &&
           x->args[record->rate] != y->args[record->rate];
}

/* Checks that all updates of bucket f can be one. */
static void zfi_check_alike(zfi_zero *z, int32_t f, const int32_t *updates, int32_t id)
{
    const zfi_bucket *bucket = &z->cut.buckets[f];
    for (int32_t m = 0; m < bucket->count && !z->graph->error.status; m++)
        if (updates[m] ? zfi_updates_differ(z->graph, updates[m], id)
                       : z->updated[bucket->first + m])
            zfi_zero_fail(z, updates[m] ? updates[m] : id,
                          "parameters of one bucket of the store (zf_zero_desc.store) have other "
                          "rates, betas or optimizers here: compile the program that trains them "
                          "first, or give "
                          "its groups (zf_param_groups) to the program that was");
}

/* At the first update of a bucket's parameters by this operator: appends one update for all of
 * them. */
static void zfi_lift_update(zfi_zero *z, int32_t position, int32_t member)
{
    zf_graph *g = z->graph;
    int32_t id = z->order[position], f = zfi_bucket_of_member(z, member), args[ZFI_OPERANDS] = {0},
            made;
    const zfi_bucket *bucket = &z->cut.buckets[f];
    const zfi_node node = g->nodes[id];
    const zfi_record *record = g->records[node.op];
    bool decaying = zfi_attribute_index(record, "weight_decay") >= 0;
    zf_attribute attributes[ZF_MAX_ATTRIBUTES];
    int64_t count = 0, *blocks = zfi_updated_blocks(z, f, &count);
    double *decays = zfi_calloc(&g->memory, (size_t)bucket->count, sizeof *decays);
    int32_t *updates = zfi_calloc(&g->memory, (size_t)bucket->count, sizeof *updates);
    if (updates) zfi_find_updates(z, f, node.op, position, updates);
    if (updates) zfi_check_alike(z, f, updates, id);
    for (int32_t k = 0; blocks && decays && updates && k < node.arg_count && !g->error.status;
         k++) {
        int32_t arg = node.args[k];
        const zfi_lift *lift = &z->lift[arg];
        if (lift->kind == ZFI_LIFT_NORM) args[k] = lift->value;
        else if (lift->kind == ZFI_LIFT_ELEMENTS)
            args[k] = zfi_cut_like(z, f, zfi_pull(z, id, member, arg), zfi_target(z, f));
        else if (g->nodes[arg].op == ZF_OP_state &&
                 ((zfi_written_args(g, &node) >> k & 1) || k == 1 || record->elementwise >> k & 1 ||
                  k == zfi_master_arg(g, &node)))
            args[k] = zfi_states_bucket(z, f, updates, k);
        else args[k] = zfi_update_numbers(z, f, updates, k, arg);
    }
    if (blocks && decays && updates && !g->error.status) {
        for (int32_t m = 0, n = 0; decaying && m < bucket->count; m++)
            if (updates[m])
                decays[n++] = zfi_attribute_of(g, &g->nodes[updates[m]], "weight_decay")->f;
        memcpy(attributes, node.attributes, sizeof attributes);
        zfi_attribute_in(record, attributes, "world")->i =
            zfi_world_of(z, f);
        *zfi_attribute_in(record, attributes, "blocks") = (zf_attribute)zfi_listed(blocks, count);
        if (decaying) {
            zfi_attribute_in(record, attributes, "weight_decay")->f = 0;
            *zfi_attribute_in(record, attributes, "decays") =
                (zf_attribute)zfi_listed(decays, count / 2);
        }
        made = zfi_append_op(g, node.op, args, node.arg_count, attributes);
        for (int32_t m = 0; made && m < bucket->count; m++)
            if (updates[m])
                z->lift[updates[m]] = (zfi_lift){ZFI_LIFT_ELEMENTS, bucket->first + m, made};
        if (made && zfi_updates_param(g, &node) && zfi_is_sharded(z, f) && z->d.stage < 3)
            zfi_gather_rest(z, f, zfi_gather_nodes(z, zfi_target(z, f)), z->buckets[f].bucket);
        for (int32_t k = 1; made && k < node.arg_count;
             k++) /* states that are whole on each rank */
            if ((zfi_written_args(g, &node) >> k & 1) && g->nodes[args[k]].op == ZF_OP_shard)
                zfi_gather_rest(z, f, zfi_gather_nodes(z, args[k]), g->nodes[args[k]].args[0]);
    }
    zfi_free_blocks(z, blocks, f);
    zfi_free(&g->memory, decays, (size_t)bucket->count * sizeof *decays);
    zfi_free(&g->memory, updates, (size_t)bucket->count * sizeof *updates);
}

/* At the first of a bucket: appends one `delay` for all its states. */
static void zfi_lift_delay(zfi_zero *z, int32_t id, int32_t member)
{
    const zf_graph *g = z->graph;
    const int32_t f = zfi_bucket_of_member(z, member);
    int32_t args[2] = {zfi_pull(z, id, member, g->nodes[id].args[0])};
    for (int32_t i = z->buckets[f].lifted; i; i = z->lifted[i - 1].before) {
        const zfi_node *node = &g->nodes[z->lifted[i - 1].node];
        if (node->op == ZF_OP_delay && node->args[0] == args[0]) return;
    }
    args[1] = zfi_pull(z, id, member, g->nodes[id].args[1]);
    if (args[0] && args[1])
        zfi_lifted_node(z, f, ZF_OP_delay, args, 2, g->nodes[id].attributes);
}

/* Where the updated tensors of a bucket lie: places and counts in two lists, which the caller
 * frees. */
static int64_t *zfi_updated_places(zfi_zero *z, int32_t f, int64_t *count)
{
    const zfi_bucket *bucket = &z->cut.buckets[f];
    int64_t *places = zfi_calloc(&z->graph->memory, 2 * (size_t)bucket->count, sizeof *places);
    *count = 0;
    for (int32_t m = 0; places && m < bucket->count; m++) {
        const zfi_member *member = &z->cut.members[bucket->first + m];
        if (!z->updated[bucket->first + m]) continue;
        places[*count] = member->at;
        places[bucket->count + (*count)++] = member->count;
    }
    if (!places) zfi_graph_nomem(z->graph);
    return places;
}

/* The node of bucket f that writes the leaf, its operand k; 0: there is none yet. */
static int32_t zfi_lifted_onto(const zfi_zero *z, int32_t f, zf_op op, int32_t k, int32_t leaf)
{
    for (int32_t i = z->buckets[f].lifted; i; i = z->lifted[i - 1].before) {
        const zfi_node *node = &z->graph->nodes[z->lifted[i - 1].node];
        if (node->op == op && node->args[k] == leaf) return z->lifted[i - 1].node;
    }
    return 0;
}

/* Compression of a parameter's elements: at its first parameter, that of the bucket. What each rank
 * compresses of the whole bucket goes to the ranks whose shards it is; what they compress of their
 * average goes to all. */
static void zfi_lift_signs(zfi_zero *z, int32_t id, int32_t member)
{
    zf_graph *g = z->graph;
    const zfi_node node = g->nodes[id];
    const bool server = ZF_INT(&node, sign_compress, server) != 0;
    const int32_t f = zfi_bucket_of_member(z, member);
    const size_t room = (size_t)z->cut.buckets[f].count;
    const int64_t shards = server && z->d.world > 1 ? z->d.world : 0;
    int32_t args[2], made;
    int64_t count, *places;
    args[1] = zfi_pull(z, id, member, node.args[1]);
    made = zfi_lifted_onto(z, f, ZF_OP_sign_compress, 1, args[1]);
    args[0] = made ? g->nodes[made].args[0] : zfi_pull(z, id, member, node.args[0]);
    if (!args[0] || !args[1] || !(places = zfi_updated_places(z, f, &count))) return;
    if (!made)
        made = zfi_lifted_node(z, f, ZF_OP_sign_compress, args, 2,
                               zfi_with(zfi_listed(places, count), zfi_listed(places + room, count),
                                        {.i = shards}, {.i = server}));
    if (made && z->d.world > 1)
        made = zfi_lifted_node(z, f, server ? ZF_OP_all_gather : ZF_OP_all_to_all, &made, 1,
                               zfi_with({.i = z->d.world}));
    z->lift[id] = (zfi_lift){ZFI_LIFT_SIGNS, member, made};
    zfi_free(&g->memory, places, 2 * room * sizeof *places);
}

/* What compressed elements stand for: the average of all ranks' for this rank's shard, or what all
 * have of the servers. */
static void zfi_lift_expansion(zfi_zero *z, int32_t id)
{
    zf_graph *g = z->graph;
    const int32_t signs = g->nodes[id].args[0], member = z->lift[signs].member,
                  f = zfi_bucket_of_member(z, member);
    const bool server = ZF_INT(&g->nodes[signs], sign_compress, server) != 0;
    const int64_t world = z->d.world, parts = server ? 1 : world,
                  size = z->cut.buckets[f].size / parts;
    const size_t room = (size_t)z->cut.buckets[f].count;
    int32_t from = z->lift[signs].value, made;
    int64_t count, *places;
    if (!from || !(places = zfi_updated_places(z, f, &count))) return;
    made = zfi_lifted_node(z, f, ZF_OP_sign_expand, &from, 1,
                           zfi_with(zfi_listed(places, count), zfi_listed(places + room, count),
                                    {.i = parts > 1 ? world : 0}, {.i = parts},
                                    zfi_listed(&size, 1)));
    z->lift[id] = (zfi_lift){ZFI_LIFT_ELEMENTS, member, made};
    zfi_free(&g->memory, places, 2 * room * sizeof *places);
}

/* The ratio of two variances: at the first parameter of a bucket, that of the bucket, of which each
 * rank updates its shard. */
static void zfi_lift_ratio(zfi_zero *z, int32_t id, int32_t member)
{
    enum { VALUES = 4, ALL = 6 };
    zf_graph *g = z->graph;
    const zfi_node node = g->nodes[id];
    const int32_t f = zfi_bucket_of_member(z, member);
    const size_t room = (size_t)z->cut.buckets[f].count;
    int32_t args[ALL], made;
    int64_t count, *places;
    args[0] = zfi_pull(z, id, member, node.args[0]);
    made = zfi_lifted_onto(z, f, node.op, 0, args[0]);
    for (int32_t k = 1; k < ALL && !made && args[0]; k++)
        args[k] = k < VALUES
                      ? zfi_cut_like(z, f, zfi_pull(z, id, member, node.args[k]), args[0])
                      : zfi_plain_arg(z, node.args[k]);
    if (!args[0] || g->error.status || !(places = zfi_updated_places(z, f, &count))) return;
    if (!made)
        made = zfi_lifted_node(z, f, node.op, args, ALL,
                               zfi_with(zfi_listed(places, count), zfi_listed(places + room, count),
                                        {.i = zfi_world_of(z, f)},
                                        {.f = ZF_FLOAT(&node, variance_ratio, beta1)},
                                        {.f = ZF_FLOAT(&node, variance_ratio, beta2)},
                                        {.f = ZF_FLOAT(&node, variance_ratio, eps)}));
    zfi_free(&g->memory, places, 2 * room * sizeof *places);
    if (made) zfi_lift_numbers(z, id, member, made, zfi_is_sharded(z, f));
}

/* A state takes a value. Where it is whole on each rank and the value this rank's shard, it takes
 * those of all ranks, and what reads the result reads the value. */
static void zfi_lift_assign(zfi_zero *z, int32_t id, int32_t member)
{
    zf_graph *g = z->graph;
    const int32_t f = zfi_bucket_of_member(z, member), value = g->nodes[id].args[1],
                  state = zfi_pull(z, id, member, g->nodes[id].args[0]);
    int32_t args[2] = {state, 0}, made = zfi_lifted_onto(z, f, ZF_OP_assign, 0, state);
    if (!made && state) args[1] = zfi_pull(z, id, member, value);
    if (args[1] && zfi_node_count(&g->nodes[args[1]]) < zfi_node_count(&g->nodes[state])) {
        args[0] = zfi_cut_like(z, f, state, args[1]);
        made = zfi_lifted_onto(z, f, ZF_OP_assign, 0, args[0]);
    } else if (args[1]) {
        args[1] = zfi_cut_like(z, f, args[1], state);
    }
    if (args[1] && !made) {
        made = zfi_lifted_node(z, f, ZF_OP_assign, args, 2, zfi_with({.i = 0}));
        if (made && args[0] != state) zfi_gather_rest(z, f, zfi_gather_nodes(z, args[0]), state);
    }
    if (args[0] != state) made = args[1];
    z->lift[id] = (zfi_lift){ZFI_LIFT_ELEMENTS, member, made};
}

/* The sum of a rank's own updates: at the first parameter of a bucket, that of the bucket. */
static void zfi_lift_local_sum(zfi_zero *z, int32_t id, int32_t member)
{
    enum { VALUES = 3, ALL = 5 };
    const zfi_node node = z->graph->nodes[id];
    const int32_t f = zfi_bucket_of_member(z, member);
    int32_t args[ALL] = {zfi_pull(z, id, member, node.args[0])};
    int32_t made = zfi_lifted_onto(z, f, node.op, 0, args[0]);
    for (int32_t k = 1; k < node.arg_count && !made && args[0]; k++)
        args[k] = k < VALUES ? zfi_pull(z, id, member, node.args[k])
                             : zfi_plain_arg(z, node.args[k]);
    if (!made && args[0] && !z->graph->error.status)
        made = zfi_lifted_node(z, f, node.op, args, node.arg_count, node.attributes);
    z->lift[id] = (zfi_lift){ZFI_LIFT_ELEMENTS, member, made};
}

/* The member of whose elements one of the operands consists; -1: none. */
static int32_t zfi_lifted_member(const zfi_zero *z, const zfi_node *node)
{
    for (int32_t k = 0; k < node->arg_count; k++)
        if (z->lift[node->args[k]].kind == ZFI_LIFT_ELEMENTS) return z->lift[node->args[k]].member;
    return -1;
}

static void zfi_mark_gradient(zfi_zero *z, int32_t member, int32_t value)
{
    zfi_bucket_state *u = &z->buckets[zfi_bucket_of_member(z, member)];
    if (u->marked || !value) return;
    u->marked = true;
    zfi_append_nodes(z->graph, gradient, NULL, u->bucket, value);
}

/* The whole elements of a parameter, from a value of its bucket, of which each rank may have a
 * shard. */
static int32_t zfi_whole_value(zfi_zero *z, int32_t member, int32_t value)
{
    const zfi_member *m = &z->cut.members[member];
    const int32_t f = zfi_bucket_of_member(z, member);
    if (zfi_is_sharded(z, f)) value = zfi_gather_parts(z, f, value);
    return value ? zfi_view_node(z->graph, value, m->at, z->graph->nodes[m->param].shape) : 0;
}

/* The node is the norm of gradients that are this rank's alone. */
static bool zfi_is_norm_of_rank(const zfi_zero *z, const zfi_node *node)
{
    if (!z->local || node->op != ZF_OP_norm) return false;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_lift *lift = &z->lift[node->args[k]];
        if (lift->kind != ZFI_LIFT_BLOCKS || z->graph->nodes[lift->value].args[0] !=
            z->buckets[zfi_bucket_of_member(z, lift->member)].reduced)
            return false;
    }
    return true;
}

/* The norm of the ranks' mean gradient is not known, since it is not made. Were their gradients
 * orthogonal, as noise of independent examples is, it would be this rank's norm / sqrt(world). */
static void zfi_scale_norm_of_rank(zfi_zero *z, int32_t id)
{
    const zfi_node node = z->graph->nodes[id];
    const zfi_new copy = {.op = ZF_OP_norm, .args = node.args, .arg_count = node.arg_count};
    const int32_t norm = zfi_append(z->graph, &copy);
    if (norm)
        zfi_replace(z->graph, id,
                    zfi_append_nodes(z->graph, scale,
                                     zfi_with({.f = 1 / sqrt((double)z->d.world)}), norm));
}

/* The gradient of rows of all parts of the batch: rows that several parts have read are added in
 * the order of the parts. */
static void zfi_merge_parts(zfi_zero *z)
{
    zf_graph *g = z->graph;
    for (int32_t k = 0; k < zfi_len(z->lazy) && !g->error.status; k++) {
        const zfi_lazy lazy = z->lazy[k];
        const zfi_node *param = &g->nodes[z->cut.members[lazy.member].param];
        zf_shape shape = param->shape;
        int32_t rows, sums;
        if (!lazy.all_rows || !lazy.all_sums) continue;
        rows = zfi_append_nodes(g, distinct_rows, zfi_with({.i = shape.dims[0]}), lazy.all_rows);
        shape.dims[0] = zfi_node_count(&g->nodes[lazy.all_rows]);
        sums = zfi_view_node(g, lazy.all_sums, 0, shape);
        if (rows && sums) sums = zfi_append_nodes(g, sum_rows, NULL, sums, lazy.all_rows, rows);
        z->lift[lazy.rows] = (zfi_lift){ZFI_LIFT_ROWS, lazy.member, rows};
        z->lift[lazy.sums] = (zfi_lift){ZFI_LIFT_ROWS, lazy.member,
                                        zfi_reduced_gradient(&z->reductions, sums)};
    }
}

/* The node has a result for each of the rows of a table that all parts have read. */
static bool zfi_reads_rows(const zfi_zero *z, const zfi_node *node)
{
    bool some = false;
    for (int32_t k = 0; k < node->arg_count; k++)
        some |= z->lift[node->args[k]].kind == ZFI_LIFT_ROWS;
    return some && node->shape.rank && !(z->graph->records[node->op]->traits & ZF_OP_EFFECT);
}

/* The node again, over the rows of all parts. */
static void zfi_lift_rows(zfi_zero *z, int32_t id)
{
    const zfi_node node = z->graph->nodes[id];
    int32_t args[ZFI_OPERANDS] = {0};
    for (int32_t k = 0; k < node.arg_count && k < ZFI_OPERANDS; k++)
        args[k] = zfi_plain_arg(z, node.args[k]);
    z->lift[id] = (zfi_lift){ZFI_LIFT_ROWS, 0,
                             zfi_append_op(z->graph, node.op, args, node.arg_count,
                                           node.attributes)};
}

/* Marks the gradient of rows of a table, or what clipping has made of it. */
static void zfi_mark_rows(zfi_zero *z, int32_t member, int32_t sums, int32_t rows)
{
    zfi_bucket_state *u = &z->buckets[zfi_bucket_of_member(z, member)];
    if (u->marked) return;
    u->marked = true;
    zfi_append_nodes(z->graph, gradient, NULL, u->bucket, zfi_plain_arg(z, sums),
                     zfi_plain_arg(z, rows));
}

static void zfi_update_node(zfi_zero *z, int32_t position)
{
    zf_graph *g = z->graph;
    int32_t id = z->order[position];
    const zfi_node node = g->nodes[id];
    int32_t member = zfi_lifted_member(z, &node);
    if (node.op == ZF_OP_gradient) {
        member = z->member_of[node.args[0]];
        if (member >= 0 && node.arg_count > 2)
            zfi_mark_rows(z, member, node.args[1], node.args[2]);
        else if (member >= 0) zfi_mark_gradient(z, member, zfi_pull(z, id, member, node.args[1]));
    } else if (node.op == ZF_OP_sign_compress && member >= 0) {
        zfi_lift_signs(z, id, member);
    } else if (node.op == ZF_OP_sign_expand && z->lift[node.args[0]].kind == ZFI_LIFT_SIGNS) {
        zfi_lift_expansion(z, id);
    } else if (node.op == ZF_OP_variance_ratio && member >= 0) {
        zfi_lift_ratio(z, id, member);
    } else if (node.op == ZF_OP_local_sum && member >= 0) {
        zfi_lift_local_sum(z, id, member);
    } else if (node.op == ZF_OP_assign && member >= 0) {
        zfi_lift_assign(z, id, member);
    } else if (member >= 0 && zfi_has(g, id, ZF_OP_UPDATE)) {
        if (z->lift[id].kind == ZFI_LIFT_NONE) zfi_lift_update(z, position, member);
    } else if (member >= 0 && node.op == ZF_OP_delay) {
        zfi_lift_delay(z, id, member);
    } else if (member >= 0 && zfi_can_lift(g, &node)) {
        z->lift[id] = (zfi_lift){ZFI_LIFT_ELEMENTS, member, 0};
    } else if (member >= 0 && node.op == ZF_OP_block_norms) {
        zfi_lift_blocks(z, id, member);
    } else if (member >= 0 && node.op == ZF_OP_squares) {
        zfi_lift_squares(z, id, member);
    } else if ((node.op == ZF_OP_all_reduce || node.op == ZF_OP_send) &&
               z->lift[node.args[0]].kind == ZFI_LIFT_SQUARES) {
        zfi_lift_squares_over(z, id);
    } else if (node.op == ZF_OP_norm_of_squares) {
        zfi_update_norm_of_squares(z, id);
    } else if (member >= 0 && node.op == ZF_OP_output) {
        g->nodes[id].args[0] = zfi_whole_value(z, member, zfi_pull(z, id, member, node.args[0]));
        zfi_keep(z, id);
    } else if (member >= 0) {
        zfi_zero_fail(z, id,
                      "it reads the elements of a parameter or gradient in a way that "
                      "cannot be cut over ranks");
    } else if ((node.op == ZF_OP_norm || node.op == ZF_OP_max) && node.arg_count == 1 &&
               z->lift[node.args[0]].kind == ZFI_LIFT_BLOCKS &&
               z->updated[z->lift[node.args[0]].member]) {
        zfi_lift_norm(z, id);
    } else if (zfi_reads_rows(z, &node)) {
        zfi_lift_rows(z, id);
    } else {
        const bool of_rank = z->d.world > 1 && zfi_is_norm_of_rank(z, &node);
        for (int32_t k = 0; k < node.arg_count && !g->error.status; k++) {
            int32_t arg = zfi_plain_arg(z, node.args[k]);
            g->nodes[id].args[k] = arg;
        }
        if (of_rank) zfi_scale_norm_of_rank(z, id);
        else zfi_keep(z, id);
    }
}

/* The whole value of a member's gradient before clipping, or of the parameter itself. */
static int32_t zfi_kept_value(zfi_zero *z, int32_t member, bool param)
{
    const int32_t f = zfi_bucket_of_member(z, member);
    zfi_bucket_state *u = &z->buckets[f];
    const zfi_member *m = &z->cut.members[member];
    const int32_t value = param ? u->bucket : u->reduced;
    if (u->whole_of != value) {
        bool cut = zfi_is_sharded(z, f) && (!param || z->d.stage == 3);
        u->whole_of = value;
        u->whole = cut ? zfi_gather_parts(z, f, value) : value;
    }
    return u->whole ? zfi_view_node(z->graph, u->whole, m->at, z->graph->nodes[m->param].shape) : 0;
}

/* The concat of the whole gradients that are joined by node x. */
static int32_t zfi_kept_pieces(zfi_zero *z, int32_t x)
{
    zf_graph *g = z->graph;
    const zfi_node node = g->nodes[x];
    int32_t *pieces = NULL, joined = 0;
    for (int32_t k = 0; k < node.arg_count && !g->memory.failed; k++) {
        const int32_t piece = zfi_kept_value(z, z->first_same[node.args[k]], false);
        zfi_push(&g->memory, pieces, piece);
    }
    if (!g->memory.failed)
        joined = zfi_append_op(g, node.op, pieces, zfi_len(pieces), node.attributes);
    zfi_array_free(&g->memory, pieces);
    return joined;
}

/* Outputs that the program reads, as whole values: gradients before clipping and views of
 * parameters, or, at the end, the parameters themselves. */
static void zfi_keep_outputs(zfi_zero *z, bool params)
{
    zf_graph *g = z->graph;
    for (int32_t i = 0; i < zfi_len(z->kept) && !g->error.status; i++) {
        const int32_t mark = z->kept[i], shown = g->nodes[mark].args[0];
        int32_t x = shown, m, f;
        if ((size_t)x >= z->nodes) continue; /* already done */
        x = zfi_shown_gradient(z, shown);
        m = z->member_of[x], f = z->bucket_of[x];
        if ((m >= 0) != params) continue;
        if (m < 0 && f >= 0) {
            if (z->sharded && z->d.stage == 3 && !z->buckets[f].gathered) zfi_open_run(z, f);
            x = zfi_seen(z, x);
        } else if (m < 0 && z->first_same[x] < 0) {
            x = zfi_kept_pieces(z, x);
        } else {
            x = zfi_kept_value(z, m < 0 ? z->first_same[x] : m, params);
        }
        if (zfi_shown_gradient(z, shown) != shown)
            x = zfi_append_op(g, ZF_OP_bcast, &x, 1, g->nodes[shown].attributes);
        g->nodes[mark].args[0] = x;
        g->nodes[mark].update = true;
        zfi_keep(z, mark);
    }
}

/* Views of parameters that the update section reads, with the values of the micro section. */
static void zfi_keep_views(zfi_zero *z, int32_t first)
{
    zf_graph *g = z->graph;
    for (int32_t i = first; i < zfi_len(z->order) && !g->error.status; i++) {
        const zfi_node node = g->nodes[z->order[i]];
        for (int32_t k = 0; k < node.arg_count && !g->error.status; k++) {
            int32_t x = node.args[k];
            if (!zfi_shows_params(z, x) || z->lift[x].kind != ZFI_LIFT_NONE) continue;
            if (z->sharded && z->d.stage == 3 && !z->buckets[z->bucket_of[x]].gathered)
                zfi_open_run(z, z->bucket_of[x]);
            (void)zfi_seen(z, x);
            /* A sharded update writes the gathered bucket while other nodes run. */
            if (z->sharded && z->d.stage < 3 && node.op != ZF_OP_output && z->seen_as[x] &&
                g->nodes[z->seen_as[x]].op != ZF_OP_scale) {
                int32_t copy = zfi_append_nodes(g, scale, zfi_with({.f = 1}), z->seen_as[x]);
                z->seen_as[x] = copy;
            }
        }
    }
}

/* States of members that nodes other than updates read, or that are laid out in a way of their own,
 * are elements of their parameters. */
static void zfi_lift_states(zfi_zero *z, int32_t first)
{
    const zf_graph *g = z->graph;
    for (int32_t i = first; i < zfi_len(z->order); i++) {
        const zfi_node *node = &g->nodes[z->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++) {
            const zfi_node *state = &g->nodes[node->args[k]];
            int32_t member;
            const bool update = zfi_has(g, z->order[i], ZF_OP_UPDATE) || node->op == ZF_OP_delay;
            if (state->op != ZF_OP_state || (update && !ZF_INT(state, state, ranks))) continue;
            member = zfi_member_of_state(z, node->args[k]);
            if (member >= 0 && !z->lift[node->args[k]].value)
                z->lift[node->args[k]] = (zfi_lift){ZFI_LIFT_ELEMENTS, member, 0};
        }
    }
}

static void zfi_update_section(zfi_zero *z)
{
    zf_graph *g = z->graph;
    int32_t first = 0, end = zfi_len(z->order);
    while (first < end && !g->nodes[z->order[first]].update) first++;
    g->in_update = first < end || zfi_len(z->kept) > 0 || zfi_len(z->sets) > 0;
    for (int32_t m = 0; m < zfi_len(z->cut.members); m++) {
        z->lift[z->cut.members[m].param] = (zfi_lift){ZFI_LIFT_ELEMENTS, m, 0};
        if (z->gradient[m]) z->lift[z->gradient[m]] = (zfi_lift){ZFI_LIFT_ELEMENTS, m, 0};
    }
    zfi_lift_states(z, first);
    for (int32_t i = first; i < end; i++)
        if (zfi_has(g, z->order[i], ZF_OP_LEAF)) zfi_keep(z, z->order[i]);
    if (z->once && !z->local) zfi_sum_once(z);
    for (int32_t f = 0; f < zfi_len(z->cut.buckets) && z->d.mics && z->d.quantized_gradients; f++)
        z->buckets[f].reduced = zfi_share_sums(z, f);
    for (int32_t f = 0; f < zfi_len(z->cut.buckets) && !g->error.status; f++)
        z->buckets[f].reduced = zfi_reduced_gradient(&z->reductions, z->buckets[f].reduced);
    zfi_merge_parts(z);
    zfi_keep_outputs(z, false);
    zfi_keep_views(z, first);
    for (int32_t i = first; i < end && !g->error.status && !g->memory.failed; i++) {
        g->scope = g->nodes[z->order[i]].scope;
        if (!zfi_has(g, z->order[i], ZF_OP_LEAF)) zfi_update_node(z, i); /* leaves come first */
    }
    g->scope = "";
    /* Marks of the micro section: the sum is complete there, or before the updates. */
    for (int32_t m = 0; m < zfi_len(z->cut.members) && !g->error.status; m++)
        if (z->gradient[m]) zfi_mark_gradient(z, m, z->buckets[zfi_bucket_of_member(z, m)].reduced);
    for (int32_t k = 0; k < zfi_len(z->lazy) && !g->error.status; k++)
        zfi_mark_rows(z, z->lazy[k].member, z->lazy[k].sums, z->lazy[k].rows);
    zfi_keep_outputs(z, true);
    zfi_assign_sets(z);
}
