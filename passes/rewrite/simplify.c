/* simplify: removes nodes that nothing needs, merges equal nodes, folds constants.
 *
 * requires: no placement yet
 * ensures:  numbers are unchanged to the last bit; a tensor whose node was merged into another
 *           names that one
 *
 *     fold      add sub mul div maximum minimum neg scale sqrt of one-valued constants; the result
 *               is a constant
 *     identity  x * 1, x / 1, x - 0 (the constant may be reshaped or broadcast), scale by 1, neg of
 *               neg, reshape of reshape, transpose undone, cast to its own dtype; not where x is a
 *               parameter or state, which may change before the result is read
 *     merge     equal operator, operands and attributes: one node (not leaves, not recomputed
 *               nodes, not nodes that read a parameter or state below a node that writes)
 *     dead      no effect depends on it; inputs, parameters and states stay
 *
 * before:   %4 = constant {values=[1]} : f32[]    %5 = mul %3, %4 : f32[8]    %6 = exp %5 : f32[8]
 * after:    %6 = exp %3 : f32[8]
 */

/* Turns a node over one-valued constants into a constant, by running its reference kernel on one
 * element. In f32 and f64 these operators round once, so this is the number that a step would
 * compute. (It skips attributes that f32 cannot hold, since a fast kernel rounds them first.) */
static void zfi_fold(zf_graph *g, int32_t id)
{
    zfi_node *node = &g->nodes[id];
    zfi_cpu cpu = {.reference = true};
    double in[2] = {0, 0}, out = 0;
    const char *fields = zfi_record_of(g, id)->attributes;
    zfi_field field;
    const double *value;
    zf_array args[2];
    zf_launch launch = {.op = node->op,
                        .node = id,
                        .arg_count = node->arg_count,
                        .args = args,
                        .attributes = node->attributes,
                        .backend = &cpu};
    if (!zfi_has(g, id, ZF_OP_FOLDABLE) || node->arg_count > ZFI_COUNT(args) ||
        (node->dtype != ZF_F32 && node->dtype != ZF_F64))
        return;
    for (int k = 0; zfi_next_field(&fields, &field); k++)
        if (field.kind == 'f' && node->dtype == ZF_F32 &&
            (node->attributes + k)->f != (float)(node->attributes + k)->f)
            return;
    for (int32_t k = 0; k < node->arg_count; k++) {
        double splat;
        if (!zfi_splat(&g->nodes[node->args[k]], &splat)) return;
        args[k] = (zf_array){&in[k], node->dtype, ZF_SCALAR};
        zfi_set(&args[k], 0, splat);
    }
    launch.out = (zf_array){&out, node->dtype, ZF_SCALAR};
    if (g->records[node->op]->cpu(&launch)) return;
    in[0] = zfi_get(&launch.out, 0);
    value = zfi_bytes_copy(&g->memory, &g->text, in, sizeof in[0]);
    if (!value) return;
    memset(node->attributes, 0, sizeof node->attributes);
    ZF_LIST(node, constant, values).data = value;
    ZF_LIST(node, constant, values).count = 1;
    node->op = ZF_OP_constant;
    node->arg_count = 0;
}

/* A node that already has the value of `id`, or `id`. Operands are resolved. `written`: a node
 * above writes params or states, so that they may have changed since another node read them. The
 * result is never a param or state, since a step may write it before the value is read. */
static int32_t zfi_identity(zf_graph *g, int32_t id, bool written)
{
    const zfi_record *record = zfi_record_of(g, id);
    int32_t same = record->same ? record->same(g, id, written) : id;
    return zfi_has(g, same, ZF_OP_WRITABLE) ? id : same;
}

/* The node may be replaced by an equal one above it. */
static bool zfi_mergeable(const zf_graph *g, int32_t id, bool written)
{
    const zfi_node *node = &g->nodes[id];
    if (node->op != ZF_OP_constant && zfi_has(g, id, ZF_OP_LEAF)) return false;
    if (node->recompute || zfi_has(g, id, ZF_OP_EFFECT | ZF_OP_MUTATES)) return false;
    for (int32_t k = 0; k < node->arg_count && written; k++)
        if (zfi_has(g, node->args[k], ZF_OP_WRITABLE)) return false;
    return true;
}

/* The node's text without its id, as the key by which an equal node is found; NULL where it is too
 * long. */
static const char *zfi_node_key(zf_graph *g, int32_t id, zfi_text *keys)
{
    char text[512];
    zfi_writer w = zfi_writer_of(NULL, text, sizeof text);
    const char *key;
    zfi_print_node(&w, g, id, 0);
    if (w.length >= sizeof text) return NULL;
    zfi_print_end(&w);
    key = strchr(text, '=');
    return key ? zfi_text_copy(&g->memory, keys, key, strlen(key)) : NULL;
}

ZF_API zf_status zf_simplify(zf_graph *g)
{
    zf_status status = zfi_enter(g, "zf_simplify", 0, ZFI_STAGE_PLACED);
    zfi_name *seen = NULL;
    zfi_text keys = {NULL};
    bool written = false;
    if (status) return status;
    for (int32_t i = 0; i < zfi_len(g->order) && !g->memory.failed; i++) {
        int32_t id = g->order[i], same;
        const char *key;
        for (int32_t k = 0; k < g->nodes[id].arg_count; k++)
            g->nodes[id].args[k] = zfi_resolve(g, g->nodes[id].args[k]);
        written |= zfi_has(g, id, ZF_OP_MUTATES);
        if (!zfi_mergeable(g, id, written)) continue;
        zfi_fold(g, id);
        same = zfi_identity(g, id, written);
        if (same == id && (key = zfi_node_key(g, id, &keys))) {
            same = zfi_map_get(seen, key, id);
            if (same == id) seen = zfi_map_put(&g->memory, seen, key, id);
        }
        if (same != id) zfi_replace(g, id, same);
    }
    zfi_map_free(&g->memory, seen);
    zfi_text_free(&g->memory, &keys);
    if (!g->memory.failed) zfi_remove_dead(g);
    if (g->memory.failed) return zfi_graph_nomem(g);
    return zfi_leave(g, 0);
}
