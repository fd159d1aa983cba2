/* Programs: a placed graph bound to memory, and the step that runs it.
 *
 * Compiling turns every node into a zf_launch with final pointers, so that a step is a loop over
 * launches and allocates nothing. Each space has three allocations: one for the parameters and states
 * that the store did not have, which the store then owns; one for what else outlives a step; one for
 * the values of a step, which programs that run in turns share (zf_compile_desc.beside).
 *
 *     plan      | inputs | buckets, parameters, states | constants | values of a step |
 *                        stored_at                   stored_end
 *     store              |===========================|
 *     arena     |========|                           |===========|
 *     work                                                       |==================|
 *                                                                work_at
 *
 *     launches | micro section, once per micro-batch | update section, once per step |
 *              0                                 micro_end                    launch_count
 */

/* Memory for the values of a step. */
typedef struct zfi_work {
    void *memory;
    size_t bytes;
    int32_t owners;         /* programs */
    const void *last; /* the program whose values are there; NULL: none has run; this: it is freed */
} zfi_work;

typedef struct zfi_arena {
    void *memory;
    size_t bytes; /* that the program asked for, those of `work` included, */
    zfi_work *work;
    size_t shared;   /* and those of its values that lie in the work of another */
    int64_t work_at; /* where the values of a step begin in the plan */
    char *stored;                  /* memory of tensors that the program has added to the store */
    int64_t stored_at, stored_end; /* their place in the plan */
} zfi_arena;

struct zf_program {
    zfi_memory memory;
    zf_graph *graph;
    zf_store *store;
    zf_backend *backend; /* the store's */
    zfi_arena arenas[ZF_SPACES];
    size_t overhead[ZF_SPACES]; /* bytes added to the store beside tensors, for those on the disk */
    size_t bound_bytes;  /* bytes of tensors that the store had before */
    int32_t first_added; /* tensors of the store from this one on were added */
    int32_t *tensor_of;  /* by node: the store's tensor of a parameter or state; -1: none */
    void **data; /* by node */
    size_t nodes;
    zf_launch *launches;
    int32_t *waits_for;   /* by launch: the launch for which a `wait` waits; else -1 */
    bool *sums_outputs;   /* by launch: it sums outputs over the ranks, for zfi_check_outputs */
    zf_section *sections; /* launches run at once: up to such a sum, or a section's end */
    int32_t section_count, section_room;
    int32_t launch_count, launch_room, micro_end, arg_count;
    zf_array *args;      /* the operands of all launches */
    const zf_comm *comm; /* NULL: one rank */
    uint64_t *hashes;    /* of the ranks' plans; this rank's first */
    bool agreed;         /* all ranks have the same plan */
    int32_t *unwritten;  /* inputs that are read and not yet written; growing arrays: */
    int32_t *rates;      /* inputs that are learning rates, known before the update section */
    zfi_same same;       /* the values that ranks compare */
    bool compared;       /* the ranks have compared the values with which they begin */
    bool changed;        /* it has run steps, so what it writes no longer has its first values */
    zf_run run;
    zf_plan plan;
    zf_traffic counted, counted_over[ZF_OVERS]; /* of the current step */
    bool trains;        /* it writes to the store, and counts the store's steps; */
    int64_t runs;       /* else: the steps it has run */
    int64_t micro;      /* micro-batches run in the current step, */
    int64_t micro_step; /* which began at this step of the store */
    int64_t loads;      /* the store's count of zf_load when last seen */
    bool poison, allow_nan;
    bool nonfinite; /* this rank's terms of these sums in this step were not all finite */
    zf_error error;
    zf_error host_error; /* of launches in host memory beside a device, until the next wait for it */
};

ZF_API const char *zf_program_error(const zf_program *p)
{
    return p ? p->error.text : "there is no program";
}
ZF_API zf_store *zf_program_store(const zf_program *p) { return p ? p->store : NULL; }

ZF_API int64_t zf_program_step(const zf_program *p)
{
    return !p ? 0 : p->trains ? p->store->step : p->runs;
}

static void zfi_clear_error(zf_program *p)
{
    p->error = p->host_error = (zf_error){ZF_OK, ""};
}

/* First values are computed in pieces: at most ZFI_FILL_PIECE elements at a time, ZFI_FILL_TASK of
 * them per task. */
enum { ZFI_FILL_PIECE = 1 << 19, ZFI_FILL_TASK = 1 << 14 };

typedef struct zfi_fill_room {
    float *work;
    double *piece;
    int64_t count; /* elements of each array */
} zfi_fill_room;

/* --------------------------------------------------------------------------- compiling */

/* The node's storage belongs to the store: a bucket, or a parameter or state outside buckets. */
static bool zfi_is_stored(const zf_graph *g, const zfi_node *node)
{
    return zfi_is_persistent(g, node) && zfi_is_written(g, node->op) && node->op != ZF_OP_cache;
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

/* Finds where the values of a step begin in the plan of a space: behind all that outlives it. In a
 * plan with another order, that has been parsed, at its end. */
static void zfi_find_work(zf_program *p, zf_space space)
{
    const zf_graph *g = p->graph;
    const int64_t end = g->peaks[space].bytes - zfi_overhead_of(g, space);
    zfi_arena *a = &p->arenas[space];
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const int64_t until = zfi_min(node->offset + zfi_room_of(node->space, node->bytes), end);
        if ((zf_space)node->space == space && node->placed && zfi_is_persistent(g, node) &&
            until > a->work_at)
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

/* Bytes of the values of a step. */
static size_t zfi_work_bytes(const zf_program *p, zf_space space)
{
    const zf_graph *g = p->graph;
    return (size_t)(g->peaks[space].bytes - zfi_overhead_of(g, space) - p->arenas[space].work_at);
}

/* The memory of another program in which the values of a step have room; NULL: none. */
static zfi_work *zfi_work_beside(const zf_program *p, const zf_program *beside, zf_space space)
{
    zfi_work *work = beside ? beside->arenas[space].work : NULL;
    return work && zfi_work_bytes(p, space) <= work->bytes ? work : NULL;
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
    if (whole < 0) return zfi_graph_nomem(g);
    if (s->tensors[whole].op != leaf->op || s->tensors[whole].dtype != leaf->dtype ||
        !zfi_same_shape(&s->tensors[whole].shape, &shape))
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: \"%s\" is a piece of a %s %s, and the store has a %s %s",
                        leaf->name, g->records[leaf->op]->name,
                        zfi_type_text(here, leaf->dtype, &shape),
                        zfi_stored_kind(&s->tensors[whole]),
                        zfi_type_text(there, s->tensors[whole].dtype, &s->tensors[whole].shape));
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
            upto += zfi_stored_count(&s->tensors[n]);
        if (upto != zfi_stored_count(t))
            return zfi_fail(&p->graph->error, ZF_ERR_MISMATCH,
                            "zf_compile: of \"%s\" there is no piece that begins at element %lld",
                            t->name, (long long)upto);
    }
    return ZF_OK;
}

/* Each rank has a state, or a bucket of states, of its own. */
static bool zfi_is_each(const zfi_node *node)
{
    enum { EACH = 2 };
    return node->op == ZF_OP_bucket ? ZF_INT(node, bucket, each) != 0
                                    : node->op == ZF_OP_state &&
                                          ZF_INT(node, state, ranks) == EACH;
}

/* Checks a leaf that the store holds for kind, dtype and shape. *index is its tensor; -1: the store
 * does not hold it, which is an error if it must be `bound`. */
static zf_status zfi_bind_leaf(const zf_program *p, int32_t id, bool bound, int32_t *index)
{
    zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    const zf_shape shape = zfi_stored_shape(p->store, node->shape, zfi_is_each(node));
    const zfi_stored *t;
    char here[ZFI_TYPE_TEXT], there[ZFI_TYPE_TEXT];
    if ((*index = zfi_store_find(p->store, node->name)) < 0) {
        const int32_t whole = zfi_whole_stored(p->store, node);
        t = whole < 0 ? NULL : &p->store->tensors[whole];
        if (t && (t->bucket >= 0 || zfi_is_tiled(t)))
            return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                            "zf_compile: the store has \"%s\" %s, and here is \"%s\": give zf_tile "
                            "the same bytes for all programs over one store",
                            t->name, zfi_is_tiled(t) ? "in other pieces" : "whole", node->name);
        if (!bound) return ZF_OK;
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: the store has no %s \"%s\" (zf_compile_desc.bound)",
                        g->records[node->op]->name, node->name);
    }
    t = &p->store->tensors[*index];
    if (zfi_is_tiled(t))
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: the store has \"%s\" in pieces, and here it is whole: give "
                        "zf_tile the same bytes for all programs over one store",
                        node->name);
    if (t->op == node->op && t->dtype == node->dtype && zfi_same_shape(&t->shape, &shape))
        return ZF_OK;
    return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                    "zf_compile: \"%s\" is a %s %s here and a %s %s in the store", node->name,
                    g->records[node->op]->name, zfi_type_text(here, node->dtype, &shape),
                    zfi_stored_kind(t), zfi_type_text(there, t->dtype, &t->shape));
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
                    b->each == zfi_is_each(node) &&
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
        .each = zfi_is_each(node)};
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
                                              .shape = zfi_stored_shape(s, node->shape,
                                                                        zfi_is_each(node)),
                                              .of = -1,
                                              .bucket = -1,
                                              .fresh = true});
    if (index < 0) return zfi_graph_nomem(g);
    p->tensor_of[id] = index;
    if (s->tensors[index].bucket >= 0) return ZF_OK; /* others are added beside it */
    if (zfi_cut_rows_of(node).rows && zfi_link_piece(p, node, index)) return g->error.status;
    s->tensors[index].bucket = bucket;
    s->tensors[index].at = home ? ((const int64_t *)ZF_LIST(home, bucket, at).data)[k] : 0;
    return ZF_OK;
}

/* Finds in the store what the graph names, or adds it there. */
static zf_status zfi_bind_store(zf_program *p, bool bound, int32_t *bucket_of)
{
    zf_graph *g = p->graph;
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_param || node->op == ZF_OP_state)
            status = zfi_bind_leaf(p, g->order[i], bound, &p->tensor_of[g->order[i]]);
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
        if (!status && node->op == ZF_OP_state && node->arg_count)
            p->store->tensors[p->tensor_of[id]].of = p->tensor_of[node->args[0]];
    }
    for (int32_t i = 0; i < zfi_len(g->declared) && !status; i++) /* those that are in pieces */
        p->tensor_of[g->declared[i]] = zfi_store_find(p->store, g->nodes[g->declared[i]].name);
    return status ? status : zfi_check_tiled(p);
}

/* Sets the address of each node's value: its place; the store; inside its operand, for a view;
 * inside its bucket, if that is not sharded; of a cache perhaps that of the program `caches`. A leaf
 * of a sharded bucket has no address. */
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
                          (at < 0 ? (int64_t)zfi_node_bytes(node) * p->run.shard : at);
        }
    }
    return ZF_OK;
}

/* The node has a launch of its own. */
static bool zfi_runs(const zf_graph *g, const zf_program *p, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    int64_t at;
    int32_t k;
    if (!zfi_record_of(g, id)->cpu || zfi_is_joined(g, node)) return false;
    k = zfi_viewed(g, node, &at);
    if (k < 0 || zfi_has(g, id, ZF_OP_COLLECTIVE) || zfi_writes_into(g, id, k)) return true;
    if (at < 0) at = (int64_t)zfi_node_bytes(node) * p->run.shard;
    return (char *)p->data[node->args[k]] + at != (char *)p->data[id];
}

/* Finds the launches that sum losses over the ranks. */
static void zfi_mark_sums(zf_program *p, const int32_t *launch_of)
{
    const zf_graph *g = p->graph;
    if (p->allow_nan || !(g->stages & ZFI_STAGE_UPDATES) || g->world < 2) return;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *mark = &g->nodes[g->order[i]];
        int32_t sum = zfi_marks_loss(g, mark) ? zfi_sum_behind(g, mark->args[0]) : 0;
        if (sum) p->sums_outputs[launch_of[sum]] = true;
    }
}

/* The backend that runs a launch: the one that computes in the space of its operands; for copies
 * the device, or beside a device with memory of its own the host, if they are from or to a disk. */
static zf_backend *zfi_runner(const zf_program *p, const zf_launch *l)
{
    const bool host = l->op == ZF_OP_copy ? l->disk && !p->backend->host_memory
                                          : l->space == ZF_HOST;
    return host ? p->store->host : p->backend;
}

/* The device runs sections with launches in host memory. */
static bool zfi_runs_mixed(const zf_program *p)
{
    return p->backend->run && p->backend->allocate_host;
}

/* The launch ends a section, which a backend runs at once. */
static bool zfi_ends_section(const zf_program *p, int32_t n)
{
    return n == p->micro_end || p->sums_outputs[n] ||
           (!zfi_runs_mixed(p) &&
            zfi_runner(p, &p->launches[n]) != zfi_runner(p, &p->launches[n - 1]));
}

/* Splits the launches into sections. */
static zf_status zfi_make_sections(zf_program *p)
{
    p->section_room = 1;
    for (int32_t n = 1; n < p->launch_count; n++) p->section_room += zfi_ends_section(p, n);
    p->sections = zfi_calloc(&p->memory, (size_t)p->section_room, sizeof *p->sections);
    if (!p->sections) return zfi_graph_nomem(p->graph);
    for (int32_t n = 0; n < p->launch_count; n++) {
        if (!n || zfi_ends_section(p, n))
            p->sections[p->section_count++] =
                (zf_section){.launches = p->launches,
                             .waits_for = p->waits_for,
                             .first = n,
                             .host = zfi_runs_mixed(p) ? p->store->host : NULL};
        p->sections[p->section_count - 1].last = n + 1;
    }
    return ZF_OK;
}

static zf_status zfi_make_launches(zf_program *p, int32_t *launch_of)
{
    zf_graph *g = p->graph;
    zf_array *args;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        p->arg_count += g->nodes[g->order[i]].arg_count +
                        (zfi_saves(&g->nodes[g->order[i]]) ? ZF_MAX_SAVED : 0);
    p->launch_room = zfi_len(g->order);
    p->launches = zfi_calloc(&p->memory, (size_t)p->launch_room, sizeof *p->launches);
    p->waits_for = zfi_calloc(&p->memory, (size_t)p->launch_room, sizeof *p->waits_for);
    p->sums_outputs = zfi_calloc(&p->memory, (size_t)p->launch_room, sizeof *p->sums_outputs);
    args = p->args = zfi_calloc(&p->memory, (size_t)p->arg_count, sizeof *p->args);
    if (!p->launches || !args || !p->waits_for || !p->sums_outputs) return zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i];
        const zf_backend *runs;
        zf_launch l;
        size_t scratch;
        if (!zfi_runs(g, p, id)) continue;
        l = zfi_launch_of(g, id, args);
        l.space = (zf_space)g->nodes[id].space;
        if (l.op == ZF_OP_copy && !(l.disk = zfi_store_disk(p->store, p->data[id])))
            l.disk = zfi_store_disk(p->store, p->data[g->nodes[id].args[0]]);
        runs = zfi_runner(p, &l);
        l.backend = runs->self;
        l.error = &g->error;
        l.comm = p->comm;
        if (runs->check && runs->check(runs->self, &l)) return g->error.status;
        scratch = runs->scratch(runs->self, &l);
        if (scratch > (size_t)g->nodes[id].scratch_bytes)
            return zfi_fail(&g->error, ZF_ERR_STAGE,
                            "zf_compile: %%%d %s needs %zu bytes of scratch on this backend, and "
                            "zf_memory gave it %lld "
                            "(zf_memory_desc.backend)",
                            (int)id, g->records[l.op]->name, scratch,
                            (long long)g->nodes[id].scratch_bytes);
        for (int32_t k = 0; k < l.arg_count; k++) args[k].data = p->data[g->nodes[id].args[k]];
        args += l.arg_count;
        l.out.data = p->data[id];
        for (int k = 0; l.saved && k < ZF_MAX_SAVED; k++, args++)
            if (g->nodes[id].saved[k]) args->data = p->data[g->nodes[id].saved[k]];
        l.scratch =
            g->nodes[id].scratch_bytes
                ? zfi_address(p, g->nodes[id].space, g->nodes[id].scratch_offset)
                : NULL;
        l.run = &p->run;
        l.error = runs == p->backend ? &p->error : &p->host_error;
        l.queue = g->nodes[id].queue;
        p->waits_for[p->launch_count] = l.op == ZF_OP_wait ? launch_of[g->nodes[id].args[0]] : -1;
        launch_of[id] = p->launch_count;
        if (!zfi_runs_once(&g->nodes[id])) p->micro_end = p->launch_count + 1;
        p->launches[p->launch_count++] = l;
    }
    zfi_mark_sums(p, launch_of);
    return zfi_make_sections(p);
}

/* Elements [first, first + count) of a leaf. A task computes ZFI_FILL_TASK of them. */
typedef struct zfi_filling {
    const zf_program *program;
    const zfi_node *node;
    const zfi_fill_room *room;
    int64_t first, count;
} zfi_filling;

static void zfi_fill_task(void *context, int64_t index)
{
    const zfi_filling *f = context;
    int64_t at = index * ZFI_FILL_TASK, n = zfi_min(f->count - at, ZFI_FILL_TASK);
    char *to = (char *)f->room->piece + at * (int64_t)zf_dtype_size(f->node->dtype);
    zfi_first_values(f->program->graph, f->node, f->program->store->seed, f->first + at, n,
                     f->room->work + at, to);
}

/* Computes elements [first, first + count) of a leaf into the room, on the backend's threads. */
static void zfi_make_piece(const zf_program *p, const zfi_node *node, int64_t first, int64_t count,
                           const zfi_fill_room *room)
{
    zfi_filling f = {p, node, room, first, count};
    int64_t tasks = (count + ZFI_FILL_TASK - 1) / ZFI_FILL_TASK;
    const zf_backend *shares = p->backend->share ? p->backend : p->store->host;
    if (tasks > 1 && shares && shares->share) {
        shares->share(shares->self, tasks, zfi_fill_task, &f);
        return;
    }
    for (int64_t k = 0; k < tasks; k++) zfi_fill_task(&f, k);
}

/* The parameter from which the leaf takes its first values, if they have changed since they were
 * drawn; -1: none. */
static int32_t zfi_source_of(const zf_program *p, int32_t id)
{
    const zf_store *s = p->store;
    int32_t of = p->tensor_of[id] < 0 ? -1 : s->tensors[p->tensor_of[id]].of;
    return of >= 0 && (!s->tensors[of].fresh || zfi_loose_values(s, of)) ? of : -1;
}

/* Copies elements [first, first + count) of master weights into the room, from this rank's part of
 * the parameter. */
static zf_status zfi_make_master(const zf_program *p, int32_t of, zf_dtype dtype, int64_t first,
                                 int64_t count, const zfi_fill_room *room)
{
    const zf_store *s = p->store;
    const zfi_stored *t = &s->tensors[of];
    const zfi_portion have = zfi_portion_of(s, of);
    const size_t size = zf_dtype_size(t->dtype);
    const char *loose = zfi_loose_values(s, of);
    zf_status status;
    if (first < have.first || first + count > have.first + have.count)
        return zfi_fail(&p->graph->error, ZF_ERR_MISMATCH,
                        "zf_compile: master weights of \"%s\" are cut otherwise than the parameter "
                        "in the store",
                        t->name);
    if (loose) memcpy(room->work, loose + (size_t)first * size, (size_t)count * size);
    else if ((status = zfi_get_bytes(s, zfi_stored_space(s, t), room->work,
                                     have.data + (size_t)(first - have.first) * size,
                                     (size_t)count * size, &p->graph->error)))
        return status;
    zf_convert(room->piece, dtype, room->work, t->dtype, (size_t)count);
    return ZF_OK;
}

/* Writes the leaf's elements [first, first + count) to memory at `to`, a piece at a time: from host
 * memory, from its parameter, or its first values. */
static zf_status zfi_fill_leaf(zf_program *p, int32_t id, int64_t first, int64_t count, char *to,
                               zfi_fill_room *r)
{
    const zfi_node *node = &p->graph->nodes[id];
    const char *host = zfi_loose_values(p->store, p->tensor_of[id]);
    int64_t size = (int64_t)zf_dtype_size(node->dtype);
    int32_t source = zfi_source_of(p, id);
    zf_status status = ZF_OK;
    for (int64_t at = 0; at < count && !status; at += r->count) {
        int64_t n = count - at < r->count ? count - at : r->count;
        const void *from = host ? host + (first + at) * size : (const char *)r->piece;
        if (!host && source >= 0)
            status = zfi_make_master(p, source, node->dtype, first + at, n, r);
        else if (!host) zfi_make_piece(p, node, first + at, n, r);
        if (!status)
            status = zfi_put_bytes(p->store, (zf_space)node->space, to + at * size, from,
                                   (size_t)(n * size), &p->graph->error);
    }
    return status;
}

/* Fills this rank's shard of a bucket: zeros, then the values of the leaves at their places. */
static zf_status zfi_fill_bucket(zf_program *p, int32_t id, zfi_fill_room *room)
{
    const zfi_node *node = &p->graph->nodes[id];
    size_t bytes = zfi_node_bytes(node), n;
    const size_t most = (size_t)room->count * sizeof *room->piece;
    char *to = p->data[id];
    zf_status status = ZF_OK;
    memset(room->piece, 0, most);
    for (size_t at = 0; at < bytes && !status; at += n) {
        n = bytes - at < most ? bytes - at : most;
        status = zfi_put_bytes(p->store, (zf_space)node->space, to + at, room->piece, n,
                               &p->graph->error);
    }
    for (int32_t k = 0; k < node->arg_count && !status; k++) {
        zfi_portion has = zfi_portion_of(p->store, p->tensor_of[node->args[k]]);
        if (has.count > 0)
            status = zfi_fill_leaf(p, node->args[k], has.first, has.count, has.data, room);
    }
    return status;
}

/* The node has new memory that outlives a step. */
static bool zfi_has_first_values(const zf_graph *g, const zfi_node *node)
{
    return node->placed && zfi_is_persistent(g, node);
}

/* Fills leaves that were added to a bucket of the store. */
static zf_status zfi_fill_added(zf_program *p, int32_t id, zfi_fill_room *room)
{
    const zfi_node *node = &p->graph->nodes[id];
    zf_status status = ZF_OK;
    for (int32_t k = 0; k < node->arg_count && !status; k++) {
        int32_t index = p->tensor_of[node->args[k]];
        zfi_portion has = zfi_portion_of(p->store, index);
        if (has.count > 0 && (index >= p->first_added || zfi_loose_values(p->store, index)))
            status = zfi_fill_leaf(p, node->args[k], has.first, has.count, has.data, room);
    }
    return status;
}

/* Fills all persistent memory that was not in the store. */
static zf_status zfi_fill(zf_program *p)
{
    zf_graph *g = p->graph;
    zfi_fill_room room = {.count = 1};
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (zfi_has_first_values(g, node) || node->op == ZF_OP_bucket)
            room.count = zfi_max(room.count, zfi_node_count(node));
    }
    room.count = zfi_min(room.count, ZFI_FILL_PIECE);
    room.work = zfi_calloc(&p->memory, (size_t)room.count, sizeof *room.work);
    room.piece = zfi_calloc(&p->memory, (size_t)room.count, sizeof *room.piece);
    if (!room.work || !room.piece) status = zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if (node->op == ZF_OP_bucket && !node->placed) status = zfi_fill_added(p, id, &room);
        if (!zfi_has_first_values(g, node)) continue;
        if (node->op == ZF_OP_bucket) status = zfi_fill_bucket(p, id, &room);
        else status = zfi_fill_leaf(p, id, 0, zfi_node_count(node), p->data[id], &room);
    }
    zfi_free(&p->memory, room.work, (size_t)room.count * sizeof *room.work);
    zfi_free(&p->memory, room.piece, (size_t)room.count * sizeof *room.piece);
    return status;
}

/* Frees the host memory of tensors that have moved into a bucket. */
static void zfi_drop_loose(zf_store *s)
{
    for (int32_t k = 0; k < zfi_len(s->tensors); k++) {
        zfi_stored *t = &s->tensors[k];
        if (t->bucket < 0 && !zfi_is_tiled(t)) continue;
        zfi_free(&s->memory, t->host, zfi_stored_bytes(t));
        t->host = NULL;
    }
}

/* The node is an input that an update reads: a learning rate. */
static bool zfi_is_for_updates(const zf_graph *g, int32_t id)
{
    if (g->nodes[id].op != ZF_OP_input) return false;
    for (int32_t i = zfi_len(g->order); i-- > 0 && zfi_runs_once(&g->nodes[g->order[i]]);)
        for (int32_t k = 0; k < g->nodes[g->order[i]].arg_count; k++)
            if (g->nodes[g->order[i]].update && g->nodes[g->order[i]].args[k] == id) return true;
    return false;
}

/* Lists the inputs that nodes read, and the learning rates. */
static zf_status zfi_list_inputs(zf_program *p)
{
    enum { READ = 1, RATE = 2 };
    zf_graph *g = p->graph;
    uint8_t *seen = zfi_calloc(&p->memory, p->nodes, sizeof *seen);
    if (!seen) return zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order) && !p->memory.failed; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count && !p->memory.failed; k++) {
            int32_t id = node->args[k];
            seen[id] |= READ;
            id = (int32_t)(zfi_copied(g, &g->nodes[id]) - g->nodes);
            if (!k || k != g->records[node->op]->rate || g->nodes[id].update || seen[id] & RATE)
                continue;
            zfi_push(&p->memory, p->rates, id);
            seen[id] |= RATE;
        }
    }
    for (int32_t i = 0; i < zfi_len(g->order) && !p->memory.failed; i++)
        if (seen[g->order[i]] && g->nodes[g->order[i]].op == ZF_OP_input &&
            zfi_node_bytes(&g->nodes[g->order[i]]))
            zfi_push(&p->memory, p->unwritten, g->order[i]);
    zfi_free(&p->memory, seen, p->nodes * sizeof *seen);
    return p->memory.failed ? zfi_graph_nomem(g) : ZF_OK;
}

/* Lists the inputs that ranks compare. */
static zf_status zfi_list_same(zf_program *p)
{
    const zf_graph *g = p->graph;
    for (int32_t i = 0; i < zfi_len(g->order) && !p->memory.failed; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (zfi_is_for_updates(g, g->order[i]))
            zfi_push(&p->memory, p->same.inputs,
                     ((zfi_same_input){node->name, p->data[g->order[i]], zfi_node_bytes(node),
                                       g->order[i], 0}));
    }
    return p->memory.failed ? zfi_graph_nomem(p->graph) : ZF_OK;
}

/* Checks that the communicator has as many ranks as the graph is for. */
static zf_status zfi_check_comm(zf_graph *g, const zf_comm *comm)
{
    int32_t world = comm ? comm->world : 1;
    if (comm && (comm->rank < 0 || comm->rank >= world))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_compile: rank %d of a world of %d",
                        (int)comm->rank, (int)world);
    if (world == g->world && comm && comm->run && g->mesh_nodes > 1 && !comm->groups)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_compile: the graph is for %d nodes (zf_zero_desc.nodes), and the "
                        "communicator cannot do calls of groups of ranks (zf_comm.groups)",
                        (int)g->mesh_nodes);
    if (world == g->world) return ZF_OK;
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "zf_compile: the graph is for %d ranks (zf_zero_desc.world), the communicator "
                    "(zf_compile_desc.comm) has %d",
                    (int)g->world, (int)world);
}

/* Opens the store of the program: that of the desc, or a new one. */
static zf_status zfi_open_store(zf_program *p, const zf_compile_desc *d)
{
    zf_error *error = &p->graph->error;
    zf_store *s = d->store;
    zf_status status = zfi_check_comm(p->graph, s ? s->comm : d->comm);
    if (status) return status;
    if (!s) {
        p->store = zf_store_new(&(zf_store_desc){.backend = d->backend,
                                                 .host = d->host,
                                                 .offload_dir = d->offload_dir,
                                                 .comm = d->comm,
                                                 .seed = d->seed,
                                                 .allocator = p->memory.allocator},
                                error);
        return p->store ? ZF_OK : error->status;
    }
    if ((d->backend && d->backend != s->backend) || (d->comm && d->comm != s->comm) ||
        (d->host && d->host != s->host))
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "zf_compile: %s is not the store's (zf_store_desc); leave it out",
                        d->backend && d->backend != s->backend ? "the backend"
                        : d->comm && d->comm != s->comm        ? "the communicator"
                                                               : "the host's backend");
    if (d->seed && d->seed != s->seed)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "zf_compile: the seed %llu is not the store's, %llu (zf_store_desc.seed); "
                        "leave it out",
                        (unsigned long long)d->seed, (unsigned long long)s->seed);
    s->owners++;
    p->store = s;
    return ZF_OK;
}

/* Checks the bytes of the store and all its programs against the store's limit. */
static zf_status zfi_check_store_limit(const zf_program *p, const zf_program *beside)
{
    const zf_store *s = p->store;
    const bool shares = zfi_work_beside(p, beside, ZF_DEVICE) != NULL;
    const int64_t peak = p->graph->peaks[ZF_DEVICE].bytes -
                         (shares ? (int64_t)zfi_work_bytes(p, ZF_DEVICE) : 0);
    const size_t bytes = s->bytes[ZF_DEVICE], programs = s->program_bytes[ZF_DEVICE],
                 all = bytes + programs + (size_t)peak;
    if (!s->memory_limit || all <= s->memory_limit) return ZF_OK;
    return zfi_fail(&p->graph->error, ZF_ERR_LIMIT,
                    "zf_compile: the plan takes %lld bytes, the store has %zu and its other "
                    "programs %zu: %zu more than the store's limit of %zu "
                    "(zf_store_desc.memory_limit)",
                    (long long)peak, bytes, programs, all - s->memory_limit, s->memory_limit);
}

static int zfi_by_place(const void *a, const void *b)
{
    const int64_t x = ((const zfi_disk_value *)a)->offset, y = ((const zfi_disk_value *)b)->offset;
    return (x > y) - (x < y);
}

/* Makes a file for what is added to the store on the disk. */
static zf_status zfi_allocate_disk(zf_program *p, size_t stored)
{
    zf_graph *g = p->graph;
    zfi_arena *a = &p->arenas[ZF_DISK];
    const size_t room = (size_t)zfi_len(g->order);
    zfi_disk_value *values;
    int32_t count = 0;
    if (stored + (size_t)zfi_overhead_of(g, ZF_DISK) < (size_t)g->peaks[ZF_DISK].bytes)
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "zf_compile: only parameters and states can lie on the disk, and %%%d is "
                        "none",
                        (int)g->peaks[ZF_DISK].node);
    values = zfi_calloc(&p->memory, room, sizeof *values);
    if (!values) return zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const zfi_node *leaf = node->op == ZF_OP_bucket ? &g->nodes[node->args[0]] : node;
        if (node->space == ZF_DISK && zfi_is_stored(g, node) && node->placed && node->bytes)
            values[count++] =
                (zfi_disk_value){leaf->name, node->offset - a->stored_at, node->bytes};
    }
    qsort(values, (size_t)count, sizeof *values, zfi_by_place);
    p->overhead[ZF_DISK] = (size_t)zfi_overhead_of(g, ZF_DISK);
    p->overhead[ZF_HOST] = (size_t)zfi_overhead_of(g, ZF_HOST);
    a->stored =
        zfi_store_add_disk(p->store, values, count, stored, p->overhead[ZF_HOST], &g->error);
    zfi_free(&p->memory, values, room * sizeof *values);
    return g->error.status;
}

/* Memory for the values of a step, or that of another program. */
static zf_status zfi_allocate_work(zf_program *p, zf_space space, const zf_program *beside)
{
    zf_store *s = p->store;
    zfi_arena *a = &p->arenas[space];
    const size_t bytes = zfi_work_bytes(p, space);
    if (!bytes) return ZF_OK;
    if ((a->work = zfi_work_beside(p, beside, space))) {
        a->work->owners++, a->shared = bytes;
        return ZF_OK;
    }
    if (!(a->work = zfi_calloc(&s->memory, 1, sizeof *a->work))) return zfi_graph_nomem(p->graph);
    a->work->owners = 1;
    a->work->memory = zfi_allocate_in(s, space, bytes, &p->graph->error);
    if (!a->work->memory) return p->graph->error.status;
    a->work->bytes = bytes;
    a->bytes += bytes;
    s->program_bytes[space] += bytes;
    return ZF_OK;
}

static void zfi_release_work(zf_program *p, zf_space space)
{
    zf_store *s = p->store;
    zfi_work *work = p->arenas[space].work;
    if (!work) return;
    if (work->last == p) work->last = work;
    if (--work->owners) return;
    if (work->memory) zfi_release_in(s, space, work->memory, work->bytes);
    s->program_bytes[space] -= work->bytes;
    zfi_free(&s->memory, work, sizeof *work);
}

/* Allocates memory for what is added to the store, for what else outlives a step, and for all
 * else. */
static zf_status zfi_allocate(zf_program *p, zf_space space, const zf_program *beside)
{
    zf_graph *g = p->graph;
    zfi_arena *a = &p->arenas[space];
    size_t stored = (size_t)(a->stored_end - a->stored_at), kept;
    if (space == ZF_DISK) return zfi_allocate_disk(p, stored);
    if (stored && !(a->stored = zfi_store_add_piece(p->store, space, stored, &g->error)))
        return g->error.status;
    kept = (size_t)a->work_at - stored;
    if (kept && !(a->memory = zfi_allocate_in(p->store, space, kept, &g->error)))
        return g->error.status;
    a->bytes = kept;
    p->store->program_bytes[space] += kept;
    return zfi_allocate_work(p, space, beside);
}

/* Binds every node to its memory. */
static zf_status zfi_bind_all(zf_program *p, bool bound, const zf_program *caches)
{
    zf_graph *g = p->graph;
    int32_t *bucket_of = zfi_calloc(&p->memory, p->nodes, sizeof *bucket_of);
    zf_status status;
    p->data = zfi_calloc(&p->memory, p->nodes, sizeof *p->data);
    p->tensor_of = zfi_calloc(&p->memory, p->nodes, sizeof *p->tensor_of);
    if (p->memory.failed) status = zfi_graph_nomem(g);
    else {
        for (size_t n = 0; n < p->nodes; n++) bucket_of[n] = p->tensor_of[n] = -1;
        if (!(status = zfi_bind_store(p, bound, bucket_of))) status = zfi_bind(p, caches);
    }
    zfi_free(&p->memory, bucket_of, p->nodes * sizeof *bucket_of);
    return status;
}

/* The graph writes to parameters or states. */
static bool zfi_trains(const zf_graph *g)
{
    for (int32_t i = zfi_len(g->order); i-- > 0;) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count && k < 31; k++)
            if (zfi_written_args(g, node) >> k & 1 &&
                zfi_is_stored(g, &g->nodes[zfi_written_leaf(g, node->args[k])]))
                return true;
    }
    return false;
}

/* Checks that the caches of the program that lends them are like those of this graph. */
static zf_status zfi_check_caches(const zf_program *p, const zf_program *caches)
{
    zf_graph *g = p->graph;
    char here[ZFI_TYPE_TEXT], there[ZFI_TYPE_TEXT];
    if (caches && caches->store->backend != p->store->backend)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_compile: caches is a program on another backend; it must be one of the "
                        "same store");
    for (int32_t i = 0; i < zfi_len(g->order) && caches; i++) {
        const zfi_node *node = &g->nodes[g->order[i]], *other;
        if (node->op != ZF_OP_cache) continue;
        other = &caches->graph->nodes[zfi_cache_in(caches->graph, node->name)];
        if (other->op == ZF_OP_none ||
            (other->dtype == node->dtype && zfi_same_shape(&other->shape, &node->shape)))
            continue;
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: the cache \"%s\" is %s here and %s in the program that lends "
                        "it (zf_compile_desc.caches)",
                        node->name, zfi_type_text(here, node->dtype, &node->shape),
                        zfi_type_text(there, other->dtype, &other->shape));
    }
    return ZF_OK;
}

/* Some value lies in host memory or on a disk. */
static bool zfi_uses_host(const zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].space != ZF_DEVICE) return true;
    return false;
}

/* Makes the queues of the plan ready, on the device and in host memory. */
static zf_status zfi_open_queues(const zf_program *p)
{
    zf_graph *g = p->graph;
    zf_backend *host = p->store->host;
    const int32_t count = (int32_t)zfi_max(ZFI_CHANNELS, zfi_queue_count(g));
    zf_status status = p->backend->queues(p->backend->self, count, &g->error);
    if (!status && host && host != p->backend)
        status = host->queues(host->self, count, &g->error);
    return status;
}

static zf_status zfi_compile(zf_program *p, const zf_compile_desc *d)
{
    zf_graph *g = p->graph;
    zf_status status = zfi_check_caches(p, d->caches);
    int32_t *launch_of;
    if (status) return status;
    p->backend = p->store->backend;
    p->comm = p->store->comm;
    p->run.rank = p->store->rank;
    p->run.shard = zfi_mesh_shard(zfi_mesh_of(g), g->shards, p->run.rank);
    p->first_added = zfi_len(p->store->tensors);
    if (zfi_uses_host(g) && !zfi_store_host(p->store, &g->error)) return g->error.status;
    if (!(g->stages & ZFI_STAGE_PLACED))
        status = zf_memory(g, &(zf_memory_desc){.backend = p->backend,
                                                .host = p->store->host,
                                                .no_reuse = d->no_reuse,
                                                .store = p->store,
                                                .caches = d->caches ? d->caches->graph : NULL});
    if (!status && d->verify && !(status = zfi_verify(g))) status = zfi_verify_plan(g);
    if (status || (status = zfi_check_limit(g, "zf_compile", d->memory_limit))) return status;
    if (d->beside && d->beside->store != p->store)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_compile: beside is a program over another store");
    for (int space = 0; space < ZF_SPACES && !status; space++)
        if (g->peaks[space].bytes && !(status = zfi_find_stored(p, (zf_space)space)))
            zfi_find_work(p, (zf_space)space);
    if (status || (status = zfi_check_store_limit(p, d->beside))) return status;
    status = zf_graph_plan(g, &p->plan);
    for (int space = 0; space < ZF_SPACES && !status; space++)
        if (g->peaks[space].bytes) status = zfi_allocate(p, (zf_space)space, d->beside);
    if (!status && g->stages & ZFI_STAGE_OVERLAP) status = zfi_open_queues(p);
    if (status) return status;
    p->nodes = (size_t)zfi_len(g->nodes);
    if ((status = zfi_bind_all(p, d->bound, d->caches))) return status;
    launch_of = zfi_calloc(&p->memory, p->nodes, sizeof *launch_of);
    if (!launch_of) return zfi_graph_nomem(g);
    status = zfi_make_launches(p, launch_of);
    zfi_free(&p->memory, launch_of, p->nodes * sizeof *launch_of);
    if (status) return status;
    if (p->comm) {
        p->hashes = zfi_calloc(&p->memory, (size_t)g->world, sizeof *p->hashes);
        if (!p->hashes) return zfi_graph_nomem(g);
        p->hashes[p->run.rank] = zf_graph_hash(g);
    }
    if ((status = zfi_list_inputs(p))) return status;
    if (p->comm && g->world > 1 && (status = zfi_list_same(p))) return status;
    p->poison = d->poison;
    p->trains = zfi_trains(g);
    p->loads = p->store->loads;
    p->same = (zfi_same){p->store, p->same.inputs, 0, p->run.evaluate, p->allow_nan};
    return zfi_fill(p);
}

ZF_API zf_program *zf_compile(zf_graph *g, const zf_compile_desc *desc)
{
    zf_compile_desc d = desc ? *desc : (zf_compile_desc){.seed = 0};
    zfi_store_mark mark;
    zf_program *p;
    if (!g || g->error.status) return NULL;
    p = zfi_calloc(&g->memory, 1, sizeof *p);
    if (!p) return zfi_graph_nomem(g), NULL;
    p->memory = zfi_memory_of(&g->memory.allocator);
    p->graph = g;
    p->run.evaluate = d.evaluate;
    p->run.world = g->world, p->run.nodes = g->mesh_nodes;
    p->allow_nan = d.allow_nan;
    if (!zfi_open_store(p, &d)) {
        mark = zfi_store_mark_of(p->store);
        if (!zfi_compile(p, &d)) {
            zfi_drop_loose(p->store);
            return p;
        }
        zfi_store_go_back(p->store, mark);
    }
    zf_program_free(p);
    return NULL;
}

ZF_API void zf_program_free(zf_program *p)
{
    zfi_memory memory;
    if (!p) return;
    memory = p->memory;
    for (int32_t k = 0; k < p->section_count; k++)
        if (p->sections[k].kept) p->backend->forget(p->backend->self, &p->sections[k]);
    for (int k = 0; k < ZF_SPACES; k++) {
        const size_t kept = (size_t)p->arenas[k].work_at -
                            (size_t)(p->arenas[k].stored_end - p->arenas[k].stored_at);
        if (p->store) zfi_release_work(p, (zf_space)k);
        if (!p->arenas[k].memory) continue;
        zfi_release_in(p->store, (zf_space)k, p->arenas[k].memory, kept);
        p->store->program_bytes[k] -= kept;
    }
    zfi_free(&memory, p->sections, (size_t)p->section_room * sizeof *p->sections);
    zfi_free(&memory, p->data, p->nodes * sizeof *p->data);
    zfi_free(&memory, p->tensor_of, p->nodes * sizeof *p->tensor_of);
    zfi_free(&memory, p->launches, (size_t)p->launch_room * sizeof *p->launches);
    zfi_free(&memory, p->waits_for, (size_t)p->launch_room * sizeof *p->waits_for);
    zfi_free(&memory, p->sums_outputs, (size_t)p->launch_room * sizeof *p->sums_outputs);
    if (p->hashes) zfi_free(&memory, p->hashes, (size_t)p->run.world * sizeof *p->hashes);
    zfi_array_free(&memory, p->unwritten);
    zfi_array_free(&memory, p->rates);
    zfi_array_free(&memory, p->same.inputs);
    zfi_free(&memory, p->args, (size_t)p->arg_count * sizeof *p->args);
    zf_store_free(p->store);
    zfi_free(&memory, p, sizeof *p);
}

/* Another program has run in the memory of this one's values since this one did. */
static bool zfi_was_overrun(const zf_program *p, zf_space space)
{
    const zfi_work *work = p->arenas[space].work;
    return work && work->last && work->last != p;
}

/* --------------------------------------------------------------------- reading, writing */

/* The node of `x`, after checking that a program may read or write its bytes. */
static int32_t zfi_accessible(zf_program *p, zf_tensor x, size_t bytes, const char *call,
                              bool writing)
{
    zf_graph *g = p->graph;
    int32_t id = x.graph == g ? zfi_resolve(g, x.id) : 0;
    const zfi_node *node = &g->nodes[id];
    char type[ZFI_TYPE_TEXT];
    zf_shape shape;
    size_t all;
    bool known;
    zfi_clear_error(p);
    if (!id)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "%s: the tensor is not one of the program's graph", call),
               0;
    known = (zfi_is_persistent(g, node) || node->held) && node->op != ZF_OP_bucket &&
            !(writing && node->op == ZF_OP_constant);
    for (int32_t i = 0; i < zfi_len(g->order) && !known && !writing; i++)
        known = g->nodes[g->order[i]].op == ZF_OP_output && g->nodes[g->order[i]].args[0] == id;
    if (!known)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        writing ? "%s: %%%d %s is no input, param, state or cache"
                                : "%s: %%%d %s is not kept; zf_output keeps a value",
                        call, (int)id, g->records[node->op]->name),
               0;
    shape = zfi_stored_shape(p->store, node->shape, zfi_is_each(node));
    all = (size_t)zf_shape_count(shape) * zf_dtype_size(node->dtype);
    if (bytes != all)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "%s: %%%d %s is %s, %zu bytes, not %zu", call,
                        (int)id, node->name ? node->name : g->records[node->op]->name,
                        zfi_type_text(type, node->dtype, &shape), all, bytes),
               0;
    return id;
}

ZF_API zf_status zf_write(zf_program *p, zf_tensor x, const void *data, size_t bytes)
{
    int32_t id;
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_accessible(p, x, bytes, "zf_write", true);
    if (!id) return p->error.status;
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_write: data is NULL");
    if (p->tensor_of[id] >= 0) return zfi_store_put(p->store, p->tensor_of[id], data, &p->error);
    status = zfi_put_bytes(p->store, (zf_space)p->graph->nodes[id].space, p->data[id], data, bytes,
                           &p->error);
    for (int32_t k = 0; k < zfi_len(p->unwritten) && !status; k++)
        if (p->unwritten[k] == id) {
            p->unwritten[k] = stbds_arrlast(p->unwritten);
            stbds_header(p->unwritten)->length--;
        }
    return status;
}

ZF_API zf_status zf_read(zf_program *p, zf_tensor x, void *data, size_t bytes)
{
    int32_t id;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_accessible(p, x, bytes, "zf_read", false);
    if (!id) return p->error.status;
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_read: data is NULL");
    if (p->backend->synchronize(p->backend->self, &p->error)) return p->error.status;
    if (p->tensor_of[id] >= 0)
        return zfi_store_get(p->store, p->tensor_of[id], data, id, "zf_read", &p->error);
    if (!zfi_is_persistent(p->graph, &p->graph->nodes[id]) &&
        zfi_was_overrun(p, (zf_space)p->graph->nodes[id].space))
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        "zf_read: %%%d was overwritten by another program, which has run in the "
                        "same memory since (zf_compile_desc.beside)",
                        (int)id);
    return zfi_get_bytes(p->store, (zf_space)p->graph->nodes[id].space, data, p->data[id], bytes,
                         &p->error);
}

/* ------------------------------------------------------------------------------ running */

static bool zfi_share_bytes(const zf_array *a, const zf_array *b)
{
    const char *x = a->data, *y = b->data;
    size_t x_bytes = (size_t)zfi_count(a) * zf_dtype_size(a->dtype);
    size_t y_bytes = (size_t)zfi_count(b) * zf_dtype_size(b->dtype);
    return x && y && x < y + y_bytes && y < x + x_bytes;
}

/* The launch writes some of the bytes of `x`. */
static bool zfi_makes(const zf_launch *l, const zf_array *x)
{
    bool makes = zfi_share_bytes(x, &l->out);
    for (int k = 0; l->saved && k < ZF_MAX_SAVED; k++) makes |= zfi_share_bytes(x, &l->saved[k]);
    return makes;
}

/* The bytes of `x` are needed after launch n: by a later launch, before they are written again, or
 * by an output. */
static bool zfi_wanted(const zf_program *p, const zf_array *x, int32_t n)
{
    const zf_graph *g = p->graph;
    if (zfi_makes(&p->launches[n], x)) return true;
    for (int32_t m = 0; m < p->launch_count; m++) /* launches in flight on another queue */
        if (p->waits_for[m] >= 0 && p->waits_for[m] < n && m > n) {
            const zf_launch *l = &p->launches[p->waits_for[m]];
            if (zfi_share_bytes(x, &l->out)) return true;
            for (int32_t k = 0; k < l->arg_count; k++)
                if (zfi_share_bytes(x, &l->args[k])) return true;
        }
    for (int32_t i = 0; n < p->micro_end && i < zfi_len(g->order); i++) { /* the next micro-batch */
        const zfi_node *node = &g->nodes[g->order[i]];
        zf_array sum = {p->data[g->order[i]], node->dtype, node->shape};
        if (node->op == ZF_OP_accumulator && zfi_share_bytes(x, &sum)) return true;
    }
    for (int32_t m = n + 1; m < p->launch_count; m++) {
        for (int32_t k = 0; k < p->launches[m].arg_count; k++)
            if (zfi_share_bytes(x, &p->launches[m].args[k])) return true;
        if (zfi_makes(&p->launches[m], x)) return false;
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        zf_array value;
        if (node->op != ZF_OP_output && !zfi_is_persistent(g, node)) continue;
        if (node->op == ZF_OP_output) node = &g->nodes[node->args[0]];
        value = (zf_array){p->data[node - g->nodes], node->dtype, node->shape};
        if (zfi_share_bytes(x, &value)) return true;
    }
    return false;
}

/* Fills operands of launch n that are no longer needed with NaN, so that a wrong read changes the
 * numbers. Looks at bytes alone, not at the lifetimes by which they were placed. Takes quadratic
 * time; for tests. */
static void zfi_poison(zf_program *p, int32_t n)
{
    unsigned char nan[4096];
    memset(nan, 0xff, sizeof nan);
    /* A copy on the device may still read host memory. */
    if (!p->backend->host_memory) p->backend->synchronize(p->backend->self, &p->error);
    for (int32_t k = 0; k < p->launches[n].arg_count; k++) {
        const zf_array *x = &p->launches[n].args[k];
        const zfi_node *node = &p->graph->nodes[p->launches[n].node];
        const zf_space space = (zf_space)p->graph->nodes[node->args[k]].space;
        size_t bytes = (size_t)zfi_count(x) * zf_dtype_size(x->dtype);
        if (zfi_wanted(p, x, n)) continue;
        for (size_t at = 0; at < bytes; at += sizeof nan)
            zfi_put_bytes(p->store, space, (char *)x->data + at, nan,
                          bytes - at < sizeof nan ? bytes - at : sizeof nan, NULL);
    }
}

/* Counts a call of `world` ranks, as the communicator is asked for it. */
static void zfi_count_call(zf_program *p, const zf_collective *c, int64_t world)
{
    const int32_t local = p->run.world / p->run.nodes, stride = c->group.stride;
    const zf_over over = !c->group.count ? ZF_OVER_ALL
                         : stride == 1   ? ZF_OVER_LOCAL
                                         : ZF_OVER_NODE;
    int64_t far = 0;
    for (int64_t k = 0; k < world && world > 1; k++)
        far += (c->group.first + k * (stride ? stride : 1)) / local != p->run.rank / local;
    zfi_count_calls(&p->counted, c->op, c->dtype, c->count, world, far, 1);
    zfi_count_calls(&p->counted_over[over], c->op, c->dtype, c->count, world, far, 1);
}

/* Before launch n: counts its traffic; and if it sums losses over the ranks, notes whether this
 * rank's are finite. */
static zf_status zfi_note_launch(zf_program *p, int32_t n)
{
    enum { PIECE = 64 };
    const zf_launch *l = &p->launches[n];
    const zf_array *x = l->args;
    double room[PIECE];
    zf_array piece = {.data = room};
    zf_collective c;
    if (l->op == ZF_OP_copy)
        zfi_count_copies(&p->counted, p->graph, &p->graph->nodes[l->node], 1);
    if (!(p->graph->records[l->op]->traits & ZF_OP_COLLECTIVE)) return ZF_OK;
    c = zf_collective_of(l);
    zfi_count_call(p, &c, ZF_INT(l, all_gather, world));
    if (!p->sums_outputs[n]) return ZF_OK;
    piece.dtype = x->dtype;
    for (int64_t at = 0; at < c.count && !p->nonfinite; at += PIECE) {
        int64_t size = (int64_t)zf_dtype_size(x->dtype),
                m = c.count - at < PIECE ? c.count - at : PIECE;
        zf_status status = p->backend->copy(p->backend->self, room, (char *)x->data + at * size,
                                            (size_t)(m * size), ZF_DEVICE_TO_HOST, &p->error);
        if (status) return status;
        for (int64_t i = 0; i < m; i++) p->nonfinite |= !isfinite(zfi_get(&piece, i));
    }
    return ZF_OK;
}

/* Makes the first error of launches in host memory the program's. */
static zf_status zfi_take_host_error(zf_program *p)
{
    if (p->host_error.status) zfi_fail(&p->error, p->host_error.status, "%s", p->host_error.text);
    return p->error.status;
}

/* Waits for everything in flight, on the device and in host memory. */
static zf_status zfi_synchronize(zf_program *p)
{
    zf_backend *host = p->store->host;
    zf_error device = {ZF_OK, ""};
    p->backend->synchronize(p->backend->self, &device);
    if (host && host != p->backend) host->synchronize(host->self, &p->host_error);
    /* An error in host memory may be the cause of one on the device. */
    zfi_take_host_error(p);
    if (device.status) zfi_fail(&p->error, device.status, "%s", device.text);
    return p->error.status;
}

/* Launches on the backend that runs it, or waits there for a launch. Before a launch in host memory
 * beside a device, waits for the device. */
static zf_status zfi_launch_there(zf_program *p, const zf_launch *l, bool wait)
{
    zf_backend *runs = zfi_runner(p, l);
    zf_status status = ZF_OK;
    if (runs != p->backend && !p->backend->host_memory && !wait)
        status = p->backend->synchronize(p->backend->self, &p->error);
    if (!status) status = wait ? runs->wait(runs->self, l) : runs->launch(runs->self, l);
    return status ? (zfi_take_host_error(p), status) : ZF_OK;
}

/* Launches n, or waits for the launch of a `wait`. */
static zf_status zfi_launch(zf_program *p, int32_t n)
{
    const zf_launch *l = &p->launches[n];
    zf_status status;
    if (l->op == ZF_OP_wait) {
        n = p->waits_for[n];
        status = zfi_launch_there(p, &p->launches[n], true);
    } else {
        if ((status = zfi_note_launch(p, n))) return status;
        status = zfi_launch_there(p, l, false);
        if (l->queue) return status; /* its operands are needed until its wait */
    }
    if (!status && p->poison) zfi_poison(p, n);
    return status;
}

/* Runs launches [first, last): the micro section, or the update section. */
static zf_status zfi_run_launches(zf_program *p, int32_t first, int32_t last)
{
    zf_status status = ZF_OK;
    if (!p->backend->run || p->poison) {
        for (int32_t n = first; n < last && !status; n++) status = zfi_launch(p, n);
        return status;
    }
    for (int32_t k = 0; k < p->section_count && !status; k++) {
        zf_section *s = &p->sections[k];
        if (s->first < first || s->last > last) continue;
        if (!s->host && zfi_runner(p, &s->launches[s->first]) != p->backend) {
            for (int32_t n = s->first; n < s->last && !status; n++) status = zfi_launch(p, n);
            continue;
        }
        for (int32_t n = s->first; n < s->last && !status; n++) status = zfi_note_launch(p, n);
        if (!status) status = p->backend->run(p->backend->self, s, &p->error);
    }
    return status;
}

static void zfi_begin_micro(zf_program *p)
{
    p->run.seed = p->store->seed;
    p->run.step = zf_program_step(p) + 1;
    p->run.micro = p->micro;
    p->run.slot = p->micro * p->run.world + p->run.rank;
    if (p->micro) return;
    p->micro_step = p->store->step;
    memset(&p->counted, 0, sizeof p->counted);
    p->nonfinite = false;
    memset(p->counted_over, 0, sizeof p->counted_over);
}

/* The first scalar output of the micro section that is non-finite; NULL: none. */
static const zfi_node *zfi_bad_output(zf_program *p)
{
    const zf_graph *g = p->graph;
    for (int32_t i = 0; i < zfi_len(g->order) && !g->nodes[g->order[i]].update; i++) {
        const zfi_node *mark = &g->nodes[g->order[i]], *node;
        double number[1] = {0};
        zf_array value = {number, ZF_F64, ZF_SCALAR};
        if (!zfi_marks_loss(g, mark)) continue;
        node = &g->nodes[mark->args[0]];
        value.dtype = node->dtype;
        if (zfi_get_bytes(p->store, (zf_space)node->space, number, p->data[mark->args[0]],
                          zf_dtype_size(node->dtype), &p->error) ||
            !isfinite(zfi_get(&value, 0)))
            return mark;
    }
    return NULL;
}

/* Before the update section: checks that the learning rates are finite. */
static zf_status zfi_check_rates(zf_program *p)
{
    for (int32_t k = 0; k < zfi_len(p->rates); k++) {
        const zfi_node *node = &p->graph->nodes[p->rates[k]];
        double number[1] = {0};
        zf_array value = {number, node->dtype, ZF_SCALAR};
        zf_status status =
            zfi_get_bytes(p->store, (zf_space)node->space, number, p->data[p->rates[k]],
                          zf_dtype_size(node->dtype), &p->error);
        if (status) return status;
        if (!isfinite(zfi_get(&value, 0)))
            return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                            "step %lld: the learning rate %%%d %.200s is %g; it must be finite; "
                            "parameters and states are as they were before the step",
                            (long long)p->run.step, (int)p->rates[k],
                            node->name ? node->name : p->graph->records[node->op]->name,
                            zfi_get(&value, 0));
    }
    return ZF_OK;
}

/* Between the sections: checks that the losses are finite. All ranks see the same losses. */
static zf_status zfi_check_outputs(zf_program *p)
{
    const zfi_node *bad;
    zf_status status;
    if (!(p->graph->stages & ZFI_STAGE_UPDATES)) return ZF_OK;
    if ((status = zfi_synchronize(p)) || (status = zfi_check_rates(p))) return status;
    if (p->allow_nan) return ZF_OK;
    bad = zfi_bad_output(p);
    if (!bad || p->error.status) return p->error.status;
    return zfi_fail(&p->error, ZF_ERR_NAN,
                    "step %lld: the output \"%s\" is not a finite number; parameters and states "
                    "are as they were before the step (zf_compile_desc.allow_nan)",
                    (long long)p->run.step, bad->name);
}

/* After a non-finite sum on all ranks: names the first rank whose own loss was non-finite. If there
 * is none, the sum has overflowed. */
static zf_status zfi_name_nonfinite_rank(zf_program *p)
{
    zf_error mine = p->nonfinite ? p->error : (zf_error){ZF_OK, ""};
    if (zfi_comm_agree(p->comm, &mine)) p->error = mine;
    return p->error.status;
}

/* Tells the other ranks that the step failed on this one, unless they know, so that it fails on
 * all. */
static zf_status zfi_step_failed(zf_program *p, zf_status status)
{
    p->micro = 0;
    zfi_fail(&p->error, status, "the step failed");
    if (p->comm && p->comm->abort && status != ZF_ERR_NAN && status != ZF_ERR_COMM &&
        status != ZF_ERR_MISMATCH)
        p->comm->abort(p->comm->self, p->error.text);
    /* Ends what is in flight on other queues, so that its memory can be freed. */
    zfi_synchronize(p);
    return p->error.status;
}

/* Collective: p->hashes become the numbers of all ranks, this rank's being `mine`. *other is the
 * first rank with another one; world: there is none. */
static zf_status zfi_gather_numbers(zf_program *p, uint64_t mine, int32_t *other)
{
    const zf_collective c = {.op = ZF_OP_all_gather,
                             .dtype = ZF_I64,
                             .count = 1,
                             .in = &p->hashes[p->run.rank],
                             .out = p->hashes};
    p->hashes[p->run.rank] = mine;
    if (p->comm->run(p->comm->self, &c, &p->error)) return p->error.status;
    for (*other = 0; *other < p->run.world && p->hashes[*other] == mine;) ++*other;
    return ZF_OK;
}

/* Checks that all ranks have the same plan. A difference is an error on each of them, and not a
 * hang. */
static zf_status zfi_agree(zf_program *p)
{
    const int rank = (int)p->run.rank;
    uint64_t mine;
    int32_t r;
    if (!p->comm || p->agreed) return ZF_OK;
    if (!p->comm->run)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "the communicator cannot run anything (zf_comm.run is NULL); programs of "
                        "such ranks run by zf_lockstep_step");
    mine = p->hashes[rank];
    if (zfi_gather_numbers(p, (uint64_t)p->run.nodes, &r)) return p->error.status;
    if (r < p->run.world)
        zfi_fail(&p->error, ZF_ERR_MISMATCH,
                 "rank %d is one of %d in %d nodes, rank %d of as many in %d (zf_zero_desc.nodes)",
                 rank, (int)p->run.world, (int)p->run.nodes, (int)r, (int)p->hashes[r]);
    p->hashes[rank] = mine;
    if (p->error.status || zfi_gather_numbers(p, mine, &r)) return p->error.status;
    if (r < p->run.world)
        return zfi_fail(&p->error, ZF_ERR_MISMATCH,
                        "the plans of ranks %d and %d differ (%016llx and %016llx): their "
                        "graphs, or the options of the passes, are not the same",
                        rank, (int)r, (unsigned long long)mine, (unsigned long long)p->hashes[r]);
    p->agreed = true;
    return ZF_OK;
}

/* Compares what must be equal on all ranks. A difference is an error on all. */
static zf_status zfi_compare(zf_program *p)
{
    zf_status status;
    p->compared = false;
    p->same.runs = p->runs;
    status = zfi_same_compare(&p->same, &p->error);
    p->compared = !status;
    return status;
}

ZF_API zf_status zf_compare_ranks(zf_program *p)
{
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    zfi_clear_error(p);
    status = zfi_agree(p);
    return status ? status : zfi_compare(p);
}

/* Runs the micro section. */
static zf_status zfi_run_micro(zf_program *p)
{
    zf_status status = zfi_agree(p);
    for (int space = 0; space < ZF_SPACES; space++)
        if (p->arenas[space].work) p->arenas[space].work->last = p;
    if (!status && !p->compared) status = zfi_compare(p);
    zfi_begin_micro(p);
    return status ? status : zfi_run_launches(p, 0, p->micro_end);
}

/* After zf_load: a step begins anew, and ranks will compare the values with which they begin. */
static void zfi_see_load(zf_program *p)
{
    if (p->loads == p->store->loads) return;
    p->loads = p->store->loads;
    p->micro = 0;
    p->compared = false;
}

/* Counts a finished step. */
static void zfi_count_step(zf_program *p)
{
    zf_store *s = p->store;
    p->micro = 0;
    *(p->trains ? &s->step : &p->runs) += 1;
}

/* Notes that the update section will change what the program writes. */
static void zfi_mark_changed(zf_program *p)
{
    const zf_graph *g = p->graph;
    for (int32_t i = zfi_len(g->order); i-- > 0 && !p->changed;) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count && k < 31; k++) {
            const zfi_node *leaf;
            int32_t id;
            if (!(zfi_written_args(g, node) >> k & 1)) continue;
            id = zfi_written_leaf(g, node->args[k]);
            leaf = &g->nodes[id];
            for (int32_t n = 0; leaf->op == ZF_OP_bucket && n < leaf->arg_count; n++)
                p->store->tensors[p->tensor_of[leaf->args[n]]].fresh = false;
            if (p->tensor_of[id] >= 0) p->store->tensors[p->tensor_of[id]].fresh = false;
        }
    }
    p->changed = true;
}

static zf_status zfi_check_micro(zf_program *p, const char *call, bool last)
{
    int64_t all = p->graph->micro_batches;
    zfi_clear_error(p);
    zfi_see_load(p);
    if (p->micro && p->micro_step != p->store->step) {
        p->micro = 0;
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        "%s: another program has trained the store since the step's first "
                        "micro-batch; the step starts anew",
                        call);
    }
    for (int space = 0; space < ZF_SPACES && p->micro; space++)
        if (zfi_was_overrun(p, (zf_space)space)) {
            p->micro = 0;
            return zfi_fail(&p->error, ZF_ERR_STAGE,
                            "%s: another program has run in the same memory "
                            "(zf_compile_desc.beside) since the step's first micro-batch; the step "
                            "starts anew",
                            call);
        }
    if (zfi_len(p->unwritten))
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        "%s: the input \"%.200s\" has not been written (zf_write)%s", call,
                        p->graph->nodes[p->unwritten[0]].name,
                        zfi_len(p->unwritten) > 1 ? ", nor have others" : "");
    if (last == (p->micro == all - 1)) return ZF_OK;
    return zfi_fail(&p->error, ZF_ERR_STAGE,
                    last ? "%s: %lld of the step's %lld micro-batches have been run; zf_micro runs "
                           "each but the last"
                         : "%s: %lld of the step's %lld micro-batches have been run; zf_step runs "
                           "the last one and the update",
                    call, (long long)p->micro, (long long)all);
}

ZF_API zf_status zf_micro(zf_program *p)
{
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    if ((status = zfi_check_micro(p, "zf_micro", false))) return status;
    status = zfi_run_micro(p);
    if (!status) status = zfi_synchronize(p);
    if (status) return zfi_step_failed(p, status);
    p->micro++;
    return ZF_OK;
}

ZF_API zf_status zf_step(zf_program *p)
{
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    if ((status = zfi_check_micro(p, "zf_step", true))) return status;
    status = zfi_run_micro(p);
    if (!status && (status = zfi_check_outputs(p)) == ZF_ERR_NAN)
        status = zfi_name_nonfinite_rank(p);
    if (!status) zfi_mark_changed(p);
    if (!status) status = zfi_run_launches(p, p->micro_end, p->launch_count);
    if (!status) status = zfi_synchronize(p);
    if (status) return zfi_step_failed(p, status);
    zfi_count_step(p);
    return ZF_OK;
}

ZF_API zf_program_info zf_program_info_of(const zf_program *p)
{
    zf_program_info info = {.remark = ""};
    const zf_graph *g;
    int64_t persistent = 0, all = 0;
    if (!p) return info;
    g = p->graph;
    if (p->backend->remark) info.remark = p->backend->remark(p->backend->self);
    info.peak_bytes = (size_t)g->peaks[ZF_DEVICE].bytes;
    for (int k = 0; k < ZF_SPACES; k++) {
        const size_t stored = (size_t)(p->arenas[k].stored_end - p->arenas[k].stored_at);
        info.allocated[k] = p->arenas[k].bytes + stored + p->overhead[k];
        info.shared[k] = p->arenas[k].shared;
        all += g->peaks[k].bytes;
        if (k == ZF_DEVICE) info.store_bytes = stored;
    }
    info.bound_bytes = p->bound_bytes;
    info.allocated_bytes = info.allocated[ZF_DEVICE];
    if (p->comm) info.comm_bytes = p->comm->memory;
    info.plan = p->plan;
    info.counted = p->counted;
    memcpy(info.counted_over, p->counted_over, sizeof info.counted_over);
    info.live_bytes = (size_t)g->peaks[ZF_DEVICE].live;
    info.peak_node = g->peaks[ZF_DEVICE].node;
    info.nodes = p->plan.nodes;
    info.flops = p->plan.flops;
    info.param_count = p->plan.parameter_count;
    for (int32_t i = 0; i < info.nodes; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        size_t bytes = node->placed ? (size_t)zfi_room_of(node->space, node->bytes) : 0;
        const zfi_node *leaf = node->op == ZF_OP_bucket ? &g->nodes[node->args[0]] : node;
        if (leaf->op == ZF_OP_param) info.param_bytes += bytes;
        if (leaf->op == ZF_OP_state) info.state_bytes += bytes;
        if (node->op == ZF_OP_input) info.input_bytes += bytes;
        if (node->op == ZF_OP_cache) info.cache_bytes += bytes;
        if (node->op == ZF_OP_constant) info.constant_bytes += bytes;
        if (zfi_is_persistent(g, node)) persistent += (int64_t)bytes;
    }
    info.work_bytes = (size_t)(all - persistent);
    return info;
}
