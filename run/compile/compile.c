/* Compiling a graph: its store, its memory, its launches, and the values with which it begins. */

/* The node is an input that an update reads: a learning rate. */
static bool zfi_is_for_updates(const zf_graph *g, int32_t id)
{
    if (g->nodes[id].op != ZF_OP_input) return false;
    for (int32_t i = zfi_len(g->order); zfi_down(i) && zfi_runs_once(&g->nodes[g->order[i]]);)
        for (int32_t k = 0; k < g->nodes[g->order[i]].arg_count; k++)
            if (g->nodes[g->order[i]].update && g->nodes[g->order[i]].args[k] == id) return true;
    return false;
}

/* The rate of which a group's is a multiple, seen through copies. */
static int32_t zfi_rate_after(const zf_graph *g, int32_t id)
{
    while (g->nodes[id].op == ZF_OP_copy || (g->nodes[id].op == ZF_OP_scale && g->nodes[id].update))
        id = g->nodes[id].args[0];
    return id;
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
            id = zfi_rate_after(g, id);
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
    const int32_t world = comm ? comm->world : 1, ranks = zfi_mesh_ranks(zfi_mesh_of(g));
    char mesh[ZFI_MESH_TEXT];
    if (comm && (comm->rank < 0 || comm->rank >= world))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_compile: rank %d of a world of %d",
                        (int)comm->rank, (int)world);
    zfi_mesh_text(mesh, zfi_mesh_of(g));
    if (world == ranks && comm && comm->run && g->axes.count && !comm->groups)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_compile: the ranks are a mesh (%s), and the communicator cannot do "
                        "calls of groups of ranks (zf_comm.groups)",
                        mesh);
    if (world == ranks && comm && comm->run && g->mesh_nodes > 1 && !comm->groups)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_compile: the graph is for %d nodes (zf_zero_desc.nodes), and the "
                        "communicator cannot do calls of groups of ranks (zf_comm.groups)",
                        (int)g->mesh_nodes);
    if (world == ranks) return ZF_OK;
    if (g->axes.count)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_compile: the graph is for a mesh of %d ranks (%s), the communicator "
                        "(zf_compile_desc.comm) has %d",
                        (int)ranks, mesh, (int)world);
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "zf_compile: the graph is for %d ranks (zf_zero_desc.world), the communicator "
                    "(zf_compile_desc.comm) has %d",
                    (int)g->world, (int)world);
}

/* Ranks of a store are one mesh, that of its first program. */
static zf_status zfi_check_store_axes(zf_graph *g, zf_store *s)
{
    char its[ZFI_MESH_TEXT], ours[ZFI_MESH_TEXT];
    if (!zfi_len(s->buckets)) s->axes = g->axes;
    if (!memcmp(&s->axes, &g->axes, sizeof s->axes)) return ZF_OK;
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "zf_compile: the ranks are a mesh of %s, and those of the store one of %s",
                    zfi_mesh_text(ours, zfi_mesh_of(g)),
                    zfi_mesh_text(its, zfi_store_mesh(s, 1)));
}

/* Opens the store of the program: that of the desc, or a new one. */
static zf_status zfi_open_store(zf_program *p, const zf_compile_desc *d)
{
    zf_error *error = &p->graph->error;
    zf_store *s = d->store;
    zf_status status = zfi_check_comm(p->graph, s ? s->comm : d->comm);
    if (!status && s) status = zfi_check_store_axes(p->graph, s);
    if (status) return status;
    if (!s) {
        p->store = zf_store_new(&(zf_store_desc){.backend = d->backend,
                                                 .host = d->host,
                                                 .offload_dir = d->offload_dir,
                                                 .comm = d->comm,
                                                 .seed = d->seed,
                                                 .allocator = p->memory.allocator},
                                error);
        if (p->store) p->store->made = false; /* it is the program's */
        if (p->store) p->store->axes = p->graph->axes;
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
static zf_status zfi_check_store_limit(const zf_program *p, const zf_program *other)
{
    const zf_store *s = p->store;
    const bool shares = zfi_work_shared(p, other, ZF_DEVICE) != NULL;
    const int64_t peak = p->graph->peaks[ZF_DEVICE].bytes +
                         (shares ? -(int64_t)zfi_work_bytes(p, ZF_DEVICE) : (int64_t)p->reserved);
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

/* What messages call a value on the disk. One of a step has the name of its scope. */
static const char *zfi_disk_name(const zf_graph *g, const zfi_node *node)
{
    const zfi_node *leaf = node->op == ZF_OP_bucket ? &g->nodes[node->args[0]] : node;
    if (leaf->name) return leaf->name;
    return node->scope && *node->scope ? node->scope : "a value of the step";
}

/* Makes a file of the store for all values on the disk: for those that are added to the store, and
 * after them those of a step. */
static zf_status zfi_allocate_disk(zf_program *p)
{
    zf_graph *g = p->graph;
    zfi_arena *a = &p->arenas[ZF_DISK];
    const size_t room = (size_t)zfi_len(g->order);
    zfi_disk_value *values = zfi_calloc(&p->memory, room, sizeof *values);
    int32_t count = 0;
    if (!values) return zfi_graph_nomem(g);
    p->overhead[ZF_DISK] = (size_t)zfi_overhead_of(g, ZF_DISK);
    p->overhead[ZF_HOST] = (size_t)zfi_overhead_of(g, ZF_HOST);
    a->stored_at = 0;
    a->stored_end = g->peaks[ZF_DISK].bytes - (int64_t)p->overhead[ZF_DISK];
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (zfi_is_on_disk(g, g->order[i]))
            values[count++] = (zfi_disk_value){zfi_disk_name(g, node), node->offset, node->bytes};
    }
    qsort(values, (size_t)count, sizeof *values, zfi_by_place);
    a->stored = zfi_store_add_disk(p->store, values, count, (size_t)a->stored_end,
                                   p->overhead[ZF_HOST], &g->error);
    zfi_free(&p->memory, values, room * sizeof *values);
    return g->error.status;
}

/* Memory for the values of a step, or that of another program. */
static zf_status zfi_allocate_work(zf_program *p, zf_space space, const zf_program *other)
{
    zf_store *s = p->store;
    zfi_arena *a = &p->arenas[space];
    const size_t bytes = zfi_work_bytes(p, space) + (space == ZF_DEVICE ? p->reserved : 0);
    if (!bytes) return ZF_OK;
    if ((a->work = zfi_work_shared(p, other, space))) {
        a->work->owners++, a->shared = zfi_work_bytes(p, space);
        return ZF_OK;
    }
    if (!(a->work = zfi_calloc(&s->memory, 1, sizeof *a->work))) return zfi_graph_nomem(p->graph);
    a->work->owners = 1, a->work->store = s, s->owners++;
    a->work->memory = zfi_allocate_in(s, space, bytes, &p->graph->error);
    if (!a->work->memory) return p->graph->error.status;
    a->work->bytes = bytes;
    a->bytes += bytes;
    s->program_bytes[space] += bytes;
    return ZF_OK;
}

static void zfi_release_work(zf_program *p, zf_space space)
{
    zfi_work *work = p->arenas[space].work;
    zf_store *s = work ? work->store : NULL; /* perhaps another program's */
    if (!work) return;
    if (work->last == p) work->last = work;
    if (work->caches == p) work->caches = NULL;
    if (work->held == p) work->held = NULL;
    if (--work->owners) return;
    if (work->memory) zfi_release_in(s, space, work->memory, work->bytes);
    s->program_bytes[space] -= work->bytes;
    zfi_free(&s->memory, work, sizeof *work);
    zfi_store_give_up(s);
}

/* Allocates memory for what is added to the store, for what else outlives a step, and for all
 * else. */
static zf_status zfi_allocate(zf_program *p, zf_space space, const zf_program *other)
{
    zf_graph *g = p->graph;
    zfi_arena *a = &p->arenas[space];
    size_t stored = (size_t)(a->stored_end - a->stored_at), kept;
    if (space == ZF_DISK) return zfi_allocate_disk(p);
    if (stored && !(a->stored = zfi_store_add_piece(p->store, space, stored, &g->error)))
        return g->error.status;
    kept = (size_t)a->work_at - stored;
    if (kept && !(a->memory = zfi_allocate_in(p->store, space, kept, &g->error)))
        return g->error.status;
    a->bytes = kept;
    p->store->program_bytes[space] += kept;
    return zfi_allocate_work(p, space, other);
}

/* Binds every node to its memory. */
static zf_status zfi_bind_all(zf_program *p, bool must_exist, const zf_program *caches)
{
    zf_graph *g = p->graph;
    int32_t *bucket_of = zfi_calloc(&p->memory, p->nodes, sizeof *bucket_of);
    zf_status status;
    p->data = zfi_calloc(&p->memory, p->nodes, sizeof *p->data);
    p->tensor_of = zfi_calloc(&p->memory, p->nodes, sizeof *p->tensor_of);
    if (p->memory.failed) status = zfi_graph_nomem(g);
    else {
        for (size_t n = 0; n < p->nodes; n++) bucket_of[n] = p->tensor_of[n] = -1;
        if (!(status = zfi_bind_store(p, must_exist, bucket_of))) status = zfi_bind(p, caches);
    }
    zfi_free(&p->memory, bucket_of, p->nodes * sizeof *bucket_of);
    return status;
}

/* A step writes to parameters or states. *updates: it updates or counts, and does not assign
 * alone. */
static bool zfi_writes_store(const zf_program *p, bool *updates)
{
    const zf_graph *g = p->graph;
    bool writes = false;
    *updates = false;
    for (int32_t i = zfi_len(g->order); zfi_down(i);) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count && k < 31; k++)
            if (zfi_written_args(g, node) >> k & 1 && !zfi_leaves_state(p, node) &&
                zfi_is_stored(g, &g->nodes[zfi_written_leaf(g, node->args[k])]))
                writes = true, *updates |= node->op != ZF_OP_assign;
    }
    return writes;
}

/* Notes what caches and held parameters the program has. */
static void zfi_note_caches(zf_program *p)
{
    const zf_graph *g = p->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const uint32_t written = zfi_written_args(g, node);
        if (zfi_is_held(node)) p->held = g->order[i];
        else p->has_caches |= node->op == ZF_OP_cache;
        for (int32_t k = 0; k < node->arg_count && k < 31; k++)
            p->gathers |= (written >> k & 1) && zfi_is_held(&g->nodes[node->args[k]]);
    }
}

/* Checks that held parameters lie in one program's memory, and are those of its store. */
static zf_status zfi_check_one_holder(const zf_program *p)
{
    zf_graph *g = p->graph;
    for (int32_t i = 0; i < zfi_len(g->order) && p->held; i++) {
        const zfi_node *node = &g->nodes[g->order[i]], *one = &g->nodes[p->held];
        if (zfi_is_held(node) && node->placed != one->placed)
            return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                            "zf_compile: the program in caches holds \"%s\" and not \"%s\": a "
                            "program reads all parameters from the memory of one",
                            node->placed ? one->name : node->name,
                            node->placed ? node->name : one->name);
    }
    if (!p->held || g->nodes[p->held].placed || p->caches->store == p->store) return ZF_OK;
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "zf_compile: the program in caches holds parameters of another store");
}

/* Checks that the caches of the program that lends them are like those of this graph, and that a
 * plan that was made for them leaves them their place. */
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
    if (g->stages & ZFI_STAGE_PLACED && g->above != (caches ? caches->graph->temporary : 0))
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: zf_memory left %lld bytes for temporary caches "
                        "(zf_memory_desc.caches), and zf_compile_desc.caches has %lld",
                        (long long)g->above, (long long)(caches ? caches->graph->temporary : 0));
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

/* Finds the regions of a program that trains. */
static zf_status zfi_open_regions(zf_program *p)
{
    zf_status status = zfi_find_regions(p->graph, &p->regions);
    if (status || !p->regions.words) return status;
    p->off = zfi_calloc(&p->memory, p->regions.words, sizeof *p->off);
    return p->off ? ZF_OK : zfi_graph_nomem(p->graph);
}

static zf_status zfi_compile(zf_program *p, const zf_compile_desc *d)
{
    zf_graph *g = p->graph;
    zf_status status = zfi_check_caches(p, d->caches);
    int32_t *launch_of;
    if (status) return status;
    if (d->caches) {
        p->caches = (zf_program *)d->caches; /* counted, as a graph and a store are */
        p->caches->owners++;
    }
    p->temporary = d->temporary_caches;
    p->backend = p->store->backend;
    p->comm = p->store->comm;
    p->run.rank = p->store->rank;
    p->run.shard = zfi_mesh_shard(zfi_mesh_of(g), g->shards, p->run.rank);
    p->run.shards = g->shards;
    p->first_added = zfi_len(p->store->tensors);
    if (zfi_uses_host(g) && !zfi_store_host(p->store, &g->error)) return g->error.status;
    if ((status = zfi_project(p))) return status;
    if (!(g->stages & ZFI_STAGE_PLACED)) {
        if (!g->whole) zfi_leave_out(g);
        status = zf_memory(g, &(zf_memory_desc){.backend = p->backend,
                                                .host = p->store->host,
                                                .no_reuse = d->no_reuse,
                                                .store = p->store,
                                                .caches = d->caches ? d->caches->graph : NULL});
    }
    if (!status && d->verify && !g->whole && !(status = zfi_verify(g))) status = zfi_verify_plan(g);
    if (status || (status = zfi_check_limit(g, "zf_compile", d->memory_limit))) return status;
    if (d->shares_memory_with && d->shares_memory_with->backend != p->backend)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_compile: shares_memory_with is a program on another backend");
    for (int space = 0; space < ZF_SPACES && !status; space++)
        if (g->peaks[space].bytes && !(status = zfi_find_stored(p, (zf_space)space)))
            zfi_find_work(p, (zf_space)space);
    if (!status) status = zfi_find_temporary(p);
    if (!status) status = zfi_find_reserve(p, d);
    if (status || (status = zfi_check_store_limit(p, d->shares_memory_with))) return status;
    status = zfi_plan_of_rank(g, p->run.rank, &p->plan);
    for (int space = 0; space < ZF_SPACES && !status; space++)
        if (g->peaks[space].bytes) status = zfi_allocate(p, (zf_space)space, d->shares_memory_with);
    if (!status && (g->stages & ZFI_STAGE_OVERLAP || zfi_runs_schedule(g)) && !p->store->plans)
        status = zfi_open_queues(p);
    if (status) return status;
    p->nodes = (size_t)zfi_len(g->nodes);
    if ((status = zfi_bind_all(p, d->must_exist, d->caches))) return status;
    launch_of = zfi_calloc(&p->memory, p->nodes, sizeof *launch_of);
    if (!launch_of) return zfi_graph_nomem(g);
    if (!p->run.evaluate) status = zfi_open_regions(p);
    if (!status) status = zfi_make_launches(p, launch_of);
    zfi_free(&p->memory, launch_of, p->nodes * sizeof *launch_of);
    if (status) return status;
    if (p->comm) {
        p->hashes = zfi_calloc(&p->memory, (size_t)p->run.world, sizeof *p->hashes);
        if (!p->hashes) return zfi_graph_nomem(g);
        p->hashes[p->run.rank] = g->whole ? g->whole : zf_graph_hash(g);
    }
    if ((status = zfi_list_inputs(p))) return status;
    if (p->comm && p->run.world > 1 && (status = zfi_list_same(p))) return status;
    zfi_note_caches(p);
    if ((status = zfi_check_one_holder(p))) return status;
    p->poison = d->poison;
    p->writes = zfi_writes_store(p, &p->trains);
    p->training = zfi_training_added(p->store, g->training);
    if (*g->training && p->training < 0) return zfi_graph_nomem(g);
    if (*g->training)
        p->salt = zfi_hash_bytes(ZFI_HASH_START, g->training, strlen(g->training));
    p->loads = p->store->loads;
    p->same = (zfi_same){p->store, p->same.inputs, 0, p->run.evaluate, p->allow_nan};
    return p->store->plans ? ZF_OK : zfi_fill(p);
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
    p->owners = 1, g->owners++;
    p->run.evaluate = d.evaluate;
    p->run.world = zfi_mesh_ranks(zfi_mesh_of(g)), p->run.nodes = g->mesh_nodes;
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
    if (!p || --p->owners > 0) return;
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
    zfi_free(&memory, p->spans, (size_t)p->span_room * sizeof *p->spans);
    zfi_free(&memory, p->off, p->regions.words * sizeof *p->off);
    if (p->graph) zfi_regions_free(&p->graph->memory, &p->regions);
    zfi_free_tasks(p);
    zfi_free(&memory, p->begins, p->begins ? ((size_t)p->launch_room + 1) * sizeof *p->begins : 0);
    zfi_free(&memory, p->waits_for, (size_t)p->launch_room * sizeof *p->waits_for);
    zfi_free(&memory, p->sums_outputs, (size_t)p->launch_room * sizeof *p->sums_outputs);
    if (p->hashes) zfi_free(&memory, p->hashes, (size_t)p->run.world * sizeof *p->hashes);
    zfi_array_free(&memory, p->unwritten);
    zfi_array_free(&memory, p->rates);
    zfi_array_free(&memory, p->same.inputs);
    zfi_free(&memory, p->own, (size_t)p->own_count * sizeof *p->own);
    zfi_free(&memory, p->args, (size_t)p->arg_count * sizeof *p->args);
    zfi_store_give_up(p->store);
    zf_program_free(p->caches);
    zfi_graph_give_up(p->graph);
    zfi_free(&memory, p, sizeof *p);
}
