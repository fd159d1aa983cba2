/* Where the leaves of a program lie: in the store's memory, in a cache of another program, or in
 * memory of its own.
 *
 * Parameters and states are looked up in the store by name. Those that it does not have are added,
 * side by side, as the plan lays them out. */

/* The node's storage belongs to the store: a bucket, or a parameter or state outside buckets. */
static bool zfi_is_stored(const zf_graph *g, const zfi_node *node)
{
    return zfi_is_persistent(g, node) && zfi_is_written(g, node->op) && node->op != ZF_OP_cache;
}

/* The stage of a leaf in a store: 1 + the rank along pipe that has it, 0: all have. */
static int16_t zfi_stored_stage(const zf_graph *g, const zfi_node *leaf)
{
    return (int16_t)(leaf->stage ? zfi_rank_of_stage(g, leaf->stage - 1) + 1 : 0);
}

/* The address of a place of the plan. An empty value may have any address. */
static void *zfi_address(const zf_program *p, uint8_t space, int64_t offset)
{
    const zfi_arena *a = &p->arenas[space];
    if (offset >= a->stored_at && offset < a->stored_end)
        return a->stored + (offset - a->stored_at);
    if (a->work && offset >= a->work_at) return (char *)a->work->memory + (offset - a->work_at);
    if (!a->memory) return (void *)p;
    return (char *)a->memory +
           (offset < a->stored_at ? offset : offset - (a->stored_end - a->stored_at));
}

/* Finds where the values of a step begin in the plan of a space: after all that outlives it. In a
 * plan with another order, that has been parsed, at its end. */
static void zfi_find_work(zf_program *p, zf_space space)
{
    const zf_graph *g = p->graph;
    const int64_t end = g->peaks[space].bytes - zfi_overhead_of(g, space);
    zfi_arena *a = &p->arenas[space];
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const int64_t until = zfi_min(node->offset + zfi_slots_room(node), end);
        if ((zf_space)node->space == space && node->placed && zfi_is_persistent(g, node) &&
            until > a->work_at && !(p->temporary && node->op == ZF_OP_cache))
            a->work_at = until;
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if ((zf_space)node->space != space) continue;
        if ((node->placed && node->bytes && node->offset < a->work_at && !zfi_is_joined(g, node) &&
             !zfi_is_persistent(g, &g->nodes[zfi_bytes_of(g, id)])) ||
            (node->scratch_bytes && node->scratch_offset < a->work_at))
            a->work_at = end;
    }
}

/* Notes the bytes of temporary caches, which lie before all other values of a step. */
static zf_status zfi_find_temporary(const zf_program *p)
{
    zf_graph *g = p->graph;
    int64_t until = p->arenas[ZF_DEVICE].work_at;
    for (int32_t i = 0; i < zfi_len(g->order) && p->temporary; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op != ZF_OP_cache) continue;
        if (!node->placed || node->offset != until)
            return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                            node->placed
                                ? "zf_compile: temporary_caches: the plan has the cache \"%s\" at "
                                  "another place than zf_memory gives it"
                                : "zf_compile: temporary_caches is for the program that lends them, "
                                  "and the cache \"%s\" is another one's",
                            node->name);
        until += zfi_room_of(node->space, node->bytes);
    }
    g->temporary = until - p->arenas[ZF_DEVICE].work_at;
    return ZF_OK;
}

/* Bytes of the values of a step. */
static size_t zfi_work_bytes(const zf_program *p, zf_space space)
{
    const zf_graph *g = p->graph;
    return (size_t)(g->peaks[space].bytes - zfi_overhead_of(g, space) - p->arenas[space].work_at);
}

/* The memory of another program in which the values of a step have room; NULL: none. */
static zfi_work *zfi_work_shared(const zf_program *p, const zf_program *other, zf_space space)
{
    zfi_work *work = other ? other->arenas[space].work : NULL;
    return work && zfi_work_bytes(p, space) <= work->bytes ? work : NULL;
}

/* Bytes that the memory of a step has besides its values; 0 where these lie in another
 * program's. */
static zf_status zfi_find_reserve(zf_program *p, const zf_compile_desc *d)
{
    const size_t bytes = zfi_work_bytes(p, ZF_DEVICE),
                 peak = (size_t)p->graph->peaks[ZF_DEVICE].bytes;
    if (d->reserve <= bytes || zfi_work_shared(p, d->shares_memory_with, ZF_DEVICE)) return ZF_OK;
    p->reserved = d->reserve - bytes;
    if (!d->memory_limit || peak + p->reserved <= d->memory_limit) return ZF_OK;
    return zfi_fail(&p->graph->error, ZF_ERR_LIMIT,
                    "zf_compile: the plan takes %zu bytes, of which %zu are added by reserve, %zu "
                    "more than the limit of %zu",
                    peak + p->reserved, p->reserved, peak + p->reserved - d->memory_limit,
                    d->memory_limit);
}

/* Finds where parameters and states, which are contiguous, lie in the plan of a space. */
static zf_status zfi_find_stored(zf_program *p, zf_space space)
{
    zf_graph *g = p->graph;
    zfi_arena *a = &p->arenas[space];
    bool some = false;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        int64_t end = node->offset + zfi_room_of(node->space, node->bytes);
        if ((zf_space)node->space != space || !zfi_is_stored(g, node) || !node->placed) continue;
        if (!some || node->offset < a->stored_at) a->stored_at = node->offset;
        if (!some || end > a->stored_end) a->stored_end = zfi_min(end, g->peaks[space].bytes);
        some = true;
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if ((zf_space)node->space == space && zfi_is_persistent(g, node) &&
            !zfi_is_stored(g, node) && node->bytes && node->offset >= a->stored_at &&
            node->offset < a->stored_end)
            return zfi_fail(&g->error, ZF_ERR_VERIFY,
                            "zf_compile: the plan has %%%d %s among parameters and states, which "
                            "are one piece of memory",
                            (int)g->order[i], g->records[node->op]->name);
    }
    return ZF_OK;
}

/* "whole" or "element 1024 of a bucket of 4096, sharded over 4 ranks" */
static const char *zfi_layout_text(char text[128], bool flat, int64_t at, int64_t size,
                                   int64_t world, int32_t nodes)
{
    char cut[72] = ", whole on each rank", mesh[24] = "";
    if (nodes > 1) snprintf(mesh, sizeof mesh, " of %d nodes", (int)nodes);
    if (world > 1) snprintf(cut, sizeof cut, ", sharded over %lld ranks%s", (long long)world, mesh);
    if (flat)
        snprintf(text, 128, "element %lld of a bucket of %lld%s", (long long)at, (long long)size,
                 cut);
    else snprintf(text, 128, "apart%s", cut);
    return text;
}

/* The store's tensor of which the leaf is a piece; -1: none, or it is no piece. */
static int32_t zfi_whole_stored(const zf_store *s, const zfi_node *leaf)
{
    char name[ZFI_PIECE_NAME];
    if (!zfi_cut_rows_of(leaf).rows) return -1;
    snprintf(name, sizeof name, "%.*s", (int)zfi_whole_name(leaf->name), leaf->name);
    return zfi_store_find(s, name);
}

/* Notes the role of a leaf at its tensor. A parameter of an adapter remains one where programs read
 * it as another. */
static zf_status zfi_note_role(zf_program *p, int32_t index, const zfi_node *leaf)
{
    zf_store *s = p->store;
    zfi_stored *t = &s->tensors[index];
    const char *adapter = p->graph->adapter;
    if (leaf->op == ZF_OP_state || leaf->role) t->role = (zfi_role)leaf->role;
    if (leaf->of && !t->param) {
        const zfi_node *of = &p->graph->nodes[leaf->of];
        const bool piece = zfi_cut_rows_of(of).rows != 0;
        t->param = zfi_text_copy(&s->memory, &s->text, of->name,
                                 piece ? zfi_whole_name(of->name) : strlen(of->name));
        if (!t->param) return zfi_graph_nomem(p->graph);
    }
    if (leaf->role != ZFI_ROLE_ADAPTER || t->adapter) return ZF_OK;
    t->adapter = zfi_text_copy(&s->memory, &s->text, adapter, strlen(adapter));
    return t->adapter ? ZF_OK : zfi_graph_nomem(p->graph);
}

/* Makes the tensor of the leaf a piece of its whole, which is added if the store lacks it. */
static zf_status zfi_link_piece(zf_program *p, const zfi_node *leaf, int32_t index)
{
    zf_graph *g = p->graph;
    zf_store *s = p->store;
    const zfi_cut_rows cut = zfi_cut_rows_of(leaf);
    int32_t whole = zfi_whole_stored(s, leaf);
    char name[ZFI_PIECE_NAME], here[ZFI_TYPE_TEXT], there[ZFI_TYPE_TEXT];
    zf_shape shape = leaf->shape;
    shape.dims[0] = cut.rows;
    snprintf(name, sizeof name, "%.*s", (int)zfi_whole_name(leaf->name), leaf->name);
    if (whole < 0)
        whole = zfi_store_add(s, (zfi_stored){.name = name,
                                              .op = leaf->op,
                                              .dtype = leaf->dtype,
                                              .shape = shape,
                                              .of = -1,
                                              .bucket = -1});
    if (whole < 0 || zfi_note_role(p, whole, leaf)) return zfi_graph_nomem(g);
    if (s->tensors[whole].op != leaf->op || s->tensors[whole].dtype != leaf->dtype ||
        !zfi_same_shape(&s->tensors[whole].shape, &shape))
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: \"%s\" is a piece of a %s %s, and the store has a %s %s",
                        leaf->name, g->records[leaf->op]->name,
                        zfi_type_text(here, leaf->dtype, &shape),
                        zfi_stored_kind(&s->tensors[whole]),
                        zfi_type_text(there, s->tensors[whole].dtype, &s->tensors[whole].shape));
    s->tensors[whole].stage = zfi_stored_stage(g, leaf);
    zfi_store_link(s, whole, index, zfi_elements_before(leaf));
    if (s->tensors[whole].host) s->tensors[index].fresh = false;
    return ZF_OK;
}

/* The pieces of all tensors that were added are there. */
static zf_status zfi_check_tiled(const zf_program *p)
{
    const zf_store *s = p->store;
    for (int32_t k = 0; k < zfi_len(s->tensors); k++) {
        const zfi_stored *t = &s->tensors[k];
        int64_t upto = 0;
        if (!zfi_is_tiled(t)) continue;
        for (int32_t n = t->next; n >= 0 && s->tensors[n].from == upto; n = s->tensors[n].next)
            upto += zf_shape_count(
                zfi_whole_of(zfi_store_mesh(s, 1), s->tensors[n].shape, &s->tensors[n].spread));
        if (upto != zfi_stored_count(t))
            return zfi_fail(&p->graph->error, ZF_ERR_MISMATCH,
                            "zf_compile: of \"%s\" there is no piece that begins at element %lld",
                            t->name, (long long)upto);
    }
    return ZF_OK;
}

/* How many copies of a state have values of their own; 0: it is one for all ranks. */
static int32_t zfi_copies_of(const zf_program *p, const zfi_node *node)
{
    const int64_t ranks = node->op == ZF_OP_state ? ZF_INT(node, state, ranks) : ZFI_STATE_STAGE;
    if (ranks == ZFI_STATE_NODE) return p->graph->mesh_nodes;
    return ranks == ZFI_STATE_EACH ? p->store->world : 0;
}

/* Each rank, or each node, has a state or a bucket of states of its own. */
static bool zfi_is_each(const zf_program *p, const zfi_node *node)
{
    return node->op == ZF_OP_bucket ? ZF_INT(node, bucket, each) != 0 : zfi_copies_of(p, node) > 0;
}

/* A tensor of the store is the leaf: what is loose is cut when it gets its place. */
static bool zfi_is_stored_leaf(const zf_program *p, const zfi_stored *t, const zfi_node *node)
{
    const zf_shape shape = zfi_stored_shape(node->shape, zfi_copies_of(p, node));
    const zf_shape whole = zfi_box_of(zfi_mesh_of(p->graph), &shape, &node->spread, 0).share.whole;
    if (t->op != node->op || t->dtype != node->dtype) return false;
    if (t->host) return zfi_same_shape(&t->shape, &whole);
    return zfi_same_shape(&t->shape, &shape) && zfi_same_spread(&t->spread, &node->spread);
}

/* Checks a leaf that the store holds for kind, dtype and shape. *index is its tensor; -1: the store
 * does not hold it, which is an error if it must exist. */
static zf_status zfi_bind_leaf(const zf_program *p, int32_t id, bool must_exist, int32_t *index)
{
    zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    const zf_shape shape = zfi_stored_shape(node->shape, zfi_copies_of(p, node));
    const zfi_stored *t;
    char here[ZFI_TYPE_TEXT + ZFI_SPREAD_TEXT], there[ZFI_TYPE_TEXT + ZFI_SPREAD_TEXT];
    if ((*index = zfi_store_find(p->store, node->name)) < 0) {
        const int32_t whole = zfi_whole_stored(p->store, node);
        t = whole < 0 ? NULL : &p->store->tensors[whole];
        if (t && (t->bucket >= 0 || zfi_is_tiled(t)))
            return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                            "zf_compile: the store has \"%s\" %s, and here is \"%s\": give zf_tile "
                            "the same bytes, and zf_divide the same sections, for all programs over "
                            "one store",
                            t->name, zfi_is_tiled(t) ? "in other pieces" : "whole", node->name);
        if (!must_exist) return ZF_OK;
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: the store has no %s \"%s\" (zf_compile_desc.must_exist)",
                        g->records[node->op]->name, node->name);
    }
    t = &p->store->tensors[*index];
    if (zfi_is_tiled(t))
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: the store has \"%s\" in pieces, and here it is whole: give "
                        "zf_tile the same bytes, and zf_divide the same sections, for all programs "
                        "over one store",
                        node->name);
    if (zfi_is_stored_leaf(p, t, node)) return ZF_OK;
    return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                    "zf_compile: \"%s\" is a %s %s here and a %s %s in the store", node->name,
                    g->records[node->op]->name,
                    zfi_spread_text(here, node->dtype, &shape, &node->spread), zfi_stored_kind(t),
                    zfi_spread_text(there, t->dtype, &t->shape, &t->spread));
}

/* No tensor has elements [at, at + count) of a bucket. */
static bool zfi_is_free(const zf_store *s, int32_t bucket, int64_t at, int64_t count)
{
    for (int32_t k = 0; k < zfi_len(s->tensors); k++) {
        const zfi_stored *t = &s->tensors[k];
        if (t->bucket == bucket && t->at < at + count && at < t->at + zfi_stored_room(s, t))
            return false;
    }
    return true;
}

/* For a bucket, or a leaf outside buckets, without a place in the plan: it must be in the store,
 * all leaves at the same places of one bucket. Leaves of the bucket that the store lacks will be
 * added there, if their places are free. */
static zf_status zfi_bind_stored(zf_program *p, int32_t id, int32_t *bucket_of)
{
    zf_graph *g = p->graph;
    const zf_store *s = p->store;
    const zfi_node *node = &g->nodes[id];
    const bool flat = node->op == ZF_OP_bucket;
    const int64_t *at = ZF_LIST(node, bucket, at).data;
    const int64_t world = flat && ZF_INT(node, bucket, world) > 1 ? ZF_INT(node, bucket, world) : 1,
                  size = flat ? ZF_INT(node, bucket, size) : zfi_node_count(node);
    const int32_t *leaves = flat ? node->args : &id, count = flat ? node->arg_count : 1;
    int32_t bucket = -1;
    for (int32_t k = 0; k < count && bucket < 0; k++)
        if (p->tensor_of[leaves[k]] >= 0) bucket = s->tensors[p->tensor_of[leaves[k]]].bucket;
    if (bucket < 0)
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: the store has no \"%s\"; zf_memory found it in another "
                        "(zf_memory_desc.store)",
                        g->nodes[*leaves].name);
    if (s->buckets[bucket].space != (zf_space)node->space)
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: \"%s\" is to lie in the space %s, and the store has it in %s: "
                        "give zf_offload the same placement, or zf_store_copy the values to a store "
                        "of another one",
                        g->nodes[*leaves].name, zf_space_name((zf_space)node->space),
                        zf_space_name(s->buckets[bucket].space));
    for (int32_t k = 0; k < count; k++) {
        const zfi_node *leaf = &g->nodes[leaves[k]];
        const int32_t index = p->tensor_of[leaves[k]];
        const bool has = index >= 0 && s->tensors[index].bucket >= 0;
        const int32_t its_bucket = has ? s->tensors[index].bucket : bucket;
        const zfi_stored_bucket *b = &s->buckets[its_bucket];
        char mine[128], its[128];
        bool good = its_bucket == bucket && b->world == world && (!flat || b->size == size) &&
                    b->each == zfi_is_each(p, node) &&
                    (world == 1 || b->nodes == g->mesh_nodes);
        if (has) good = good && (!flat || s->tensors[index].at == at[k]);
        else good = good && b->flat && zfi_is_free(s, bucket, at[k], zfi_node_count(leaf));
        if (good) {
            if (!has) bucket_of[id] = bucket;
            else
                p->bound_bytes +=
                    (size_t)zfi_portion_of(s, index).count * zf_dtype_size(leaf->dtype);
            continue;
        }
        zfi_layout_text(mine, flat, flat ? at[k] : 0, size, world, g->mesh_nodes);
        if (has) zfi_layout_text(its, b->flat, s->tensors[index].at, b->size, b->world, b->nodes);
        else snprintf(its, sizeof its, "not there");
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: \"%s\" is to be %s, and in the store it is %s%s: give zf_zero "
                        "the same stage, world and nodes, and the store (zf_zero_desc.store), or "
                        "zf_store_copy the values to a store of another layout",
                        leaf->name, mine, its,
                        its_bucket == bucket ? "" : ", apart from others of its bucket");
    }
    p->data[id] =
        flat ? s->buckets[bucket].data : zfi_stored_data(s, &s->tensors[p->tensor_of[id]]);
    return ZF_OK;
}

/* For a bucket, or a leaf outside buckets, with a place in the plan: it becomes a bucket of the
 * store. Leaves of it that the store holds outside buckets will move there. */
static zf_status zfi_bind_added(zf_program *p, int32_t id, int32_t *bucket_of)
{
    zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    const bool flat = node->op == ZF_OP_bucket;
    const zfi_arena *a = &p->arenas[node->space];
    zfi_stored_bucket b = {
        .data = a->stored ? a->stored + (node->offset - a->stored_at) : (char *)p->store,
        .space = (zf_space)node->space,
        .dtype = node->dtype,
        .size = flat ? ZF_INT(node, bucket, size) : zfi_node_count(node),
        .world = flat && ZF_INT(node, bucket, world) > 1 ? (int32_t)ZF_INT(node, bucket, world) : 1,
        .nodes = g->mesh_nodes,
        .flat = flat,
        .each = zfi_is_each(p, node)};
    for (int32_t k = 0; k < zfi_len(p->store->buckets) && b.world > 1; k++)
        if (p->store->buckets[k].world > 1 && p->store->buckets[k].nodes != b.nodes)
            return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                            "zf_compile: shards in the store are those of ranks in %d nodes; give "
                            "zf_zero as many, and not %d (zf_zero_desc.nodes)",
                            (int)p->store->buckets[k].nodes, (int)b.nodes);
    for (int32_t k = 0; k < (flat ? node->arg_count : 1); k++) {
        int32_t leaf = flat ? node->args[k] : id, index = p->tensor_of[leaf];
        if (index >= 0 && p->store->tensors[index].bucket >= 0)
            return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                            "zf_compile: zf_memory gave %%%d \"%s\" a place of its own, but the "
                            "store has it (zf_memory_desc.store)",
                            (int)id, g->nodes[leaf].name);
    }
    bucket_of[id] = zfi_len(p->store->buckets);
    p->data[id] = b.data;
    return zfi_push(&p->store->memory, p->store->buckets, b) ? ZF_OK : zfi_graph_nomem(g);
}

/* Makes the leaf a tensor of the bucket. */
static zf_status zfi_add_leaf(zf_program *p, int32_t id, const int32_t *bucket_of)
{
    zf_graph *g = p->graph;
    zf_store *s = p->store;
    const zfi_node *node = &g->nodes[id], *home = node->held ? &g->nodes[node->held] : NULL;
    int32_t index = p->tensor_of[id], bucket = bucket_of[node->held ? node->held : id], k = 0;
    while (home && home->args[k] != id) k++;
    if (index < 0)
        index = zfi_store_add(s, (zfi_stored){.name = node->name,
                                              .op = node->op,
                                              .dtype = node->dtype,
                                              .shape = zfi_stored_shape(node->shape,
                                                                        zfi_copies_of(p, node)),
                                              .spread = node->spread,
                                              .of = -1,
                                              .bucket = -1,
                                              .fresh = true});
    if (index < 0) return zfi_graph_nomem(g);
    p->tensor_of[id] = index;
    if (s->tensors[index].bucket >= 0) return ZF_OK; /* others are added next to it */
    if (zfi_cut_rows_of(node).rows && zfi_link_piece(p, node, index)) return g->error.status;
    s->tensors[index].shape = zfi_stored_shape(node->shape, zfi_copies_of(p, node));
    s->tensors[index].spread = node->spread, s->tensors[index].stage = zfi_stored_stage(g, node);
    s->tensors[index].bucket = bucket;
    s->tensors[index].at = home ? ((const int64_t *)ZF_LIST(home, bucket, at).data)[k] : 0;
    return ZF_OK;
}

/* A parameter has one state of master weights: of two, either would be rounded to it. */
static zf_status zfi_check_masters(const zf_program *p)
{
    zf_graph *g = p->graph;
    const zf_store *s = p->store;
    const int32_t count = zfi_len(s->tensors);
    /* by tensor: the index of its master weights + 1 */
    int32_t *found = count ? zfi_calloc(&g->memory, (size_t)count, sizeof *found) : NULL;
    for (int32_t k = 0; found && k < count && !g->error.status; k++) {
        const zfi_stored *t = &s->tensors[k];
        if (t->role != ZFI_ROLE_MASTER || t->bucket < 0 || t->of < 0) continue;
        if (found[t->of])
            zfi_fail(&g->error, ZF_ERR_MISMATCH,
                     "zf_compile: the master weights of \"%.200s\" are \"%.200s\" here and "
                     "\"%.200s\" in the store: trainings of one parameter in 16 bits need the "
                     "same optimizer",
                     s->tensors[t->of].name, t->name, s->tensors[found[t->of] - 1].name);
        found[t->of] = k + 1;
    }
    zfi_free(&g->memory, found, (size_t)count * sizeof *found);
    return found || !count ? g->error.status : zfi_graph_nomem(g);
}

/* A tensor is of the stage here of which it is in the store. */
static zf_status zfi_check_dealt(const zf_program *p, const zfi_node *leaf)
{
    const zf_store *s = p->store;
    const int32_t index = zfi_store_find(s, leaf->name);
    const zfi_stored *t = index < 0 ? NULL : &s->tensors[index];
    const int16_t stage = zfi_stored_stage(p->graph, leaf);
    char its[40] = "all stages", ours[40] = "all stages";
    if (!t || t->host || t->stage == stage) return ZF_OK;
    if (t->stage) snprintf(its, sizeof its, "stage %d", (int)t->stage - 1);
    if (stage) snprintf(ours, sizeof ours, "stage %d", stage - 1);
    return zfi_fail(&p->graph->error, ZF_ERR_ARGUMENT,
                    "zf_compile: the store has \"%.200s\" at %s, and it is of %s here; programs of "
                    "one store give each stage the same layers (zf_stages_desc.layers)",
                    leaf->name, its, ours);
}

/* The store has no tensor for the leaf of another stage. */
static bool zfi_is_unknown(const zf_program *p, int32_t id)
{
    const int32_t index = zfi_store_find(p->store, p->graph->nodes[id].name);
    return index < 0 || p->store->tensors[index].host;
}

/* Notes a bucket of parameters of another stage, which the store lacks. zf_zero takes buckets of a
 * store in their order: that of the plan, which is the order in the stores of all ranks. */
static zf_status zfi_note_away_bucket(zf_program *p, int32_t id, int32_t *bucket_of)
{
    const zfi_node *home = &p->graph->nodes[id];
    const zfi_stored_bucket b = {.dtype = home->dtype,
                                 .size = ZF_INT(home, bucket, size),
                                 .world = (int32_t)zfi_max(1, ZF_INT(home, bucket, world)),
                                 .nodes = p->graph->mesh_nodes,
                                 .flat = true,
                                 .space = (zf_space)home->space};
    zf_store *s = p->store;
    if (p->graph->nodes[home->args[0]].op != ZF_OP_param || !zfi_is_unknown(p, home->args[0]))
        return ZF_OK;
    bucket_of[id] = zfi_len(s->buckets);
    return zfi_push(&s->memory, s->buckets, b) ? ZF_OK : zfi_graph_nomem(p->graph);
}

/* The parameter of another stage is in its bucket, so that zf_zero cuts all programs of the store
 * alike on all ranks. */
static void zfi_note_away_place(zf_program *p, int32_t id, int32_t index, const int32_t *bucket_of)
{
    const zfi_node *leaf = &p->graph->nodes[id], *home = &p->graph->nodes[leaf->held];
    int32_t k = 0;
    if (leaf->op != ZF_OP_param || home->op != ZF_OP_bucket || bucket_of[leaf->held] < 0) return;
    while (home->args[k] != id) k++;
    p->store->tensors[index].bucket = bucket_of[leaf->held];
    p->store->tensors[index].at = ((const int64_t *)ZF_LIST(home, bucket, at).data)[k];
}

/* Notes the parameters and states of other stages, of which the store has names and types. */
static zf_status zfi_bind_away(zf_program *p, int32_t *bucket_of)
{
    zf_graph *g = p->graph;
    zf_store *s = p->store;
    zf_status status = ZF_OK;
    for (int32_t i = 0, found; i < zfi_len(g->away) && !status; i++) {
        const int32_t id = g->away[i];
        if (g->nodes[id].op == ZF_OP_bucket) status = zfi_note_away_bucket(p, id, bucket_of);
        else if (!(status = zfi_check_dealt(p, &g->nodes[id])))
            status = zfi_bind_leaf(p, id, false, &found);
    }
    for (int32_t i = 0; i < zfi_len(g->away) && !status; i++) {
        const zfi_node *leaf = &g->nodes[g->away[i]];
        bool known;
        int32_t index;
        if (leaf->op == ZF_OP_bucket) continue;
        known = !zfi_is_unknown(p, g->away[i]), index = zfi_store_find(s, leaf->name);
        if (index < 0)
            index = zfi_store_add(s, (zfi_stored){.name = leaf->name,
                                                  .op = leaf->op,
                                                  .dtype = leaf->dtype,
                                                  .shape = leaf->shape,
                                                  .of = -1,
                                                  .bucket = -1});
        if (index < 0) return zfi_graph_nomem(g);
        if (zfi_cut_rows_of(leaf).rows && s->tensors[index].whole < 0 &&
            (status = zfi_link_piece(p, leaf, index)))
            continue;
        s->tensors[index].shape = leaf->shape, s->tensors[index].spread = leaf->spread;
        s->tensors[index].stage = zfi_stored_stage(g, leaf);
        status = zfi_note_role(p, index, leaf);
        if (!status && !known) zfi_note_away_place(p, g->away[i], index, bucket_of);
    }
    return status;
}

/* Finds in the store what the graph names, or adds it there. */
static zf_status zfi_bind_store(zf_program *p, bool must_exist, int32_t *bucket_of)
{
    zf_graph *g = p->graph;
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op != ZF_OP_param && node->op != ZF_OP_state) continue;
        status = zfi_check_dealt(p, node);
        if (!status) status = zfi_bind_leaf(p, g->order[i], must_exist, &p->tensor_of[g->order[i]]);
    }
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (zfi_is_stored(g, node))
            status = node->placed ? zfi_bind_added(p, g->order[i], bucket_of)
                                  : zfi_bind_stored(p, g->order[i], bucket_of);
    }
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if (node->op != ZF_OP_param && node->op != ZF_OP_state) continue;
        if (bucket_of[node->held ? node->held : id] >= 0) status = zfi_add_leaf(p, id, bucket_of);
        if (!status) status = zfi_note_role(p, p->tensor_of[id], node);
        if (status || node->op != ZF_OP_state || !node->arg_count) continue;
        zfi_store_follow(p->store, p->tensor_of[id], p->tensor_of[node->args[0]]);
    }
    for (int32_t i = 0; i < zfi_len(g->declared) && !status; i++) /* those that are in pieces */
        p->tensor_of[g->declared[i]] = zfi_store_find(p->store, g->nodes[g->declared[i]].name);
    if (!status) status = zfi_check_masters(p);
    if (!status) status = zfi_check_tiled(p);
    return status ? status : zfi_bind_away(p, bucket_of);
}

/* Sets the address of each node's value: its place; the store; inside its operand, for a view;
 * inside its bucket, if that is not sharded; of a cache perhaps that of the program `caches`. A
 * leaf of a sharded bucket has no address. */
static zf_status zfi_bind(zf_program *p, const zf_program *caches)
{
    zf_graph *g = p->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i], k;
        const zfi_node *node = &g->nodes[id];
        int64_t at;
        if (zfi_is_stored(g, node)) {
            for (k = 0; node->op == ZF_OP_bucket && k < node->arg_count; k++)
                p->data[node->args[k]] =
                    zfi_stored_data(p->store, &p->store->tensors[p->tensor_of[node->args[k]]]);
        } else if (node->placed) {
            if (node->op == ZF_OP_cache && caches && zfi_cache_in(caches->graph, node->name))
                return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                                "zf_compile: zf_memory gave the cache \"%s\" a place of its own "
                                "(zf_memory_desc.caches), and zf_compile_desc.caches has it",
                                node->name);
            p->data[id] = zfi_address(p, node->space, node->offset);
        } else if (zfi_is_joined(g, node)) {
            p->data[id] = p->data[node->args[0]];
            for (k = 0; k + 1 < node->arg_count; k++)
                if ((char *)p->data[node->args[k]] + zfi_node_bytes(&g->nodes[node->args[k]]) !=
                    p->data[node->args[k + 1]])
                    return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                                    "zf_compile: zf_memory found operands of %%%d concat side by "
                                    "side in the store (zf_memory_desc.store), which they are not",
                                    (int)id);
        } else if (node->op == ZF_OP_cache) {
            if (!caches || !(k = zfi_cache_in(caches->graph, node->name)))
                return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                                "zf_compile: zf_memory found the cache \"%s\" in another graph "
                                "(zf_memory_desc.caches), and zf_compile_desc.caches lacks it",
                                node->name);
            p->data[id] = caches->data[k];
        } else if ((k = zfi_viewed(g, node, &at)) >= 0) {
            p->data[id] = (char *)p->data[node->args[k]] +
                          (at < 0 ? (int64_t)zfi_node_bytes(node) *
                                        zfi_shard_here(&p->run, ZF_INT(node, shard, world))
                                  : at);
        }
    }
    return ZF_OK;
}

/* Frees the host memory of tensors that have moved into a bucket, or are of another stage. */
static void zfi_drop_loose(zf_store *s)
{
    for (int32_t k = 0; k < zfi_len(s->tensors); k++) {
        zfi_stored *t = &s->tensors[k];
        if (t->bucket < 0 && !zfi_is_tiled(t) && !zfi_is_away(s, t)) continue;
        zfi_free(&s->memory, t->host, zfi_whole_bytes(s, t));
        t->host = NULL;
    }
}
