/* Settles the order of a forward graph, so that it does not depend on the order in which builders
 * were called. A value is directly above its first reader. Nodes that nothing reads are ordered
 * by name, outputs first. A graph in this order does not change. Passes go along the order, so they
 * make the same sums; parameters have one order, in buckets and in the global norm; and every
 * dropout has its stream. The order of parameters is settled only once, since fusion changes which
 * node reads a parameter first, and a program that trains and one that evaluates must have the same
 * buckets.
 *
 * before: %1 = input "x" %2 = param "b" %3 = param "a" %4 = mul %1, %2 %5 = mul %1, %3
 *          %6 = add %5, %4
 * after: %1 = input "x" %3 = param "a" %5 = mul %1, %3 %2 = param "b" %4 = mul %1, %2
 *          %6 = add %5, %4
 */

static uint64_t zfi_hash_text(uint64_t hash, const char *text)
{
    return zfi_hash_bytes(hash, text, strlen(text) + 1);
}

/* The identity of a node: a hash of its operator, scope, name, attributes except the random stream,
 * and of its operands' identities. */
static uint64_t zfi_identity_of(const zf_graph *g, const zfi_node *node, const uint64_t *identities)
{
    const zfi_record *record = g->records[node->op];
    const char *fields = record->attributes;
    uint64_t hash = zfi_hash_text(zfi_hash_text(ZFI_HASH_START, record->name), node->scope);
    zfi_field field;
    hash = zfi_hash_text(hash, node->name ? node->name : "");
    for (int k = 0; zfi_next_field(&fields, &field); k++) {
        const zf_attribute *a = &node->attributes[k];
        uint64_t bits = (uint64_t)a->i;
        if (field.kind == 'l' || field.kind == 'v') {
            hash = zfi_hash_number(hash, (uint64_t)a->list.count);
            for (int64_t i = 0; i < a->list.count; i++) {
                memcpy(&bits, (const char *)a->list.data + i * 8, sizeof bits);
                hash = zfi_hash_number(hash, bits);
            }
        } else if (field.name_length != 6 || memcmp(field.name, "stream", 6)) {
            if (field.kind == 'f') memcpy(&bits, &a->f, sizeof bits);
            hash = zfi_hash_number(hash, bits);
        }
    }
    for (int32_t k = 0; k < node->arg_count; k++)
        hash = zfi_hash_number(hash, identities[node->args[k]]);
    return hash;
}

/* A node that no other node reads. */
typedef struct zfi_sink {
    bool shown;       /* it is an output */
    const char *name; /* may be NULL */
    uint64_t identity;
    int32_t at; /* its place in the order before */
} zfi_sink;

static int zfi_by_name(const void *a, const void *b)
{
    const zfi_sink *x = a, *y = b;
    if (x->shown != y->shown) return x->shown ? -1 : 1;
    if (!x->name != !y->name) return x->name ? -1 : 1;
    if (x->name) return strcmp(x->name, y->name);
    if (x->identity != y->identity) return x->identity < y->identity ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

/* A growing array of the nodes that no other reads, sorted. */
static zfi_sink *zfi_sinks(zf_graph *g)
{
    size_t nodes = (size_t)zfi_len(g->nodes);
    bool *read = zfi_calloc(&g->memory, nodes, sizeof *read);
    uint64_t *identities = zfi_calloc(&g->memory, nodes, sizeof *identities);
    zfi_sink *sinks = NULL;
    for (int32_t i = 0; read && i < zfi_len(g->order); i++)
        for (int32_t k = 0; k < g->nodes[g->order[i]].arg_count; k++)
            read[g->nodes[g->order[i]].args[k]] = true;
    for (int32_t i = 0; read && identities && i < zfi_len(g->order); i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        identities[id] = zfi_identity_of(g, node, identities);
        if (!read[id])
            zfi_push(&g->memory, sinks,
                     ((zfi_sink){node->op == ZF_OP_output, node->name, identities[id], i}));
    }
    if (sinks) qsort(sinks, (size_t)zfi_len(sinks), sizeof *sinks, zfi_by_name);
    zfi_free(&g->memory, read, nodes * sizeof *read);
    zfi_free(&g->memory, identities, nodes * sizeof *identities);
    return sinks;
}

/* Appends to *order the nodes from which node `id` is computed, unless they are there, and then the
 * node. next, by node: the operand to visit next; larger than the number of operands once the node
 * is in the order. */
static void zfi_place_after_operands(zf_graph *g, int32_t id, int32_t *next, int32_t **order,
                                     int32_t **under_way)
{
    zfi_push(&g->memory, *under_way, id);
    while (zfi_len(*under_way) && !g->memory.failed) {
        int32_t now = stbds_arrlast(*under_way);
        const zfi_node *node = &g->nodes[now];
        if (next[now] < node->arg_count) {
            int32_t x = node->args[next[now]++];
            if (next[x] <= g->nodes[x].arg_count) zfi_push(&g->memory, *under_way, x);
        } else {
            if (next[now]++ == node->arg_count) zfi_push(&g->memory, *order, now);
            (void)stbds_arrpop(*under_way);
        }
    }
}

/* The stream attribute of a node that has its own dropout, else NULL. */
static int64_t *zfi_own_stream(const zf_graph *g, int32_t id)
{
    zfi_node *node = &g->nodes[id];
    const zfi_record *record = zfi_record_of(g, id);
    if (!(record->traits & ZF_OP_RANDOM) || record->stream ||
        zfi_attribute_in(record, node->attributes, "p")->f == 0)
        return NULL;
    return &zfi_attribute_in(record, node->attributes, "stream")->i;
}

/* A dropout, by its place in the order and its scope. */
typedef struct zfi_drawer {
    const char *scope;
    int32_t at;
} zfi_drawer;

static int zfi_by_scope(const void *a, const void *b)
{
    const zfi_drawer *x = a, *y = b;
    int order = strcmp(x->scope, y->scope);
    return order ? order : x->at < y->at ? -1 : 1;
}

/* Distributes the streams of the dropouts d[0..count) of one scope among them, in the order of the
 * nodes. Streams that a text has set otherwise do not change. */
static void zfi_settle_scope(zf_graph *g, const zfi_drawer *d, int32_t count)
{
    int64_t *streams = NULL;
    for (int64_t nth = 0; nth <= zfi_len(g->streams) && zfi_len(streams) < count; nth++) {
        const int64_t stream = zfi_stream_of_scope(d->scope, nth);
        for (int32_t k = 0; k < count && !g->memory.failed; k++)
            if (*zfi_own_stream(g, g->order[d[k].at]) == stream)
                zfi_push(&g->memory, streams, stream);
    }
    for (int32_t k = 0; k < count && zfi_len(streams) == count; k++)
        *zfi_own_stream(g, g->order[d[k].at]) = streams[k];
    zfi_array_free(&g->memory, streams);
}

static void zfi_settle_streams(zf_graph *g)
{
    zfi_drawer *all = NULL;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (zfi_own_stream(g, g->order[i]))
            zfi_push(&g->memory, all, ((zfi_drawer){g->nodes[g->order[i]].scope, i}));
    if (all && !g->memory.failed) {
        qsort(all, (size_t)zfi_len(all), sizeof *all, zfi_by_scope);
        for (int32_t i = 0, end; i < zfi_len(all); i = end) {
            for (end = i + 1; end < zfi_len(all); end++)
                if (strcmp(all[i].scope, all[end].scope)) break;
            zfi_settle_scope(g, all + i, end - i);
        }
    }
    zfi_array_free(&g->memory, all);
}

/* The length of the name's first `depth` components; all of it where it has no more. */
static size_t zfi_prefix(const char *name, int depth)
{
    size_t at = 0;
    for (int k = 0; k < depth && name[at]; k++) at += (k > 0) + strcspn(name + at + (k > 0), ".");
    return at;
}

/* A parameter and when it is first read. */
typedef struct zfi_reading {
    int32_t id, first;
    const char *name;
    size_t from, until; /* its name's component at the current depth */
    int32_t at, group;  /* its place before, and the first place of its group */
} zfi_reading;

static int zfi_by_reading(const void *a, const void *b)
{
    const zfi_reading *x = a, *y = b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : strcmp(x->name, y->name);
}

static int zfi_compare_components(const zfi_reading *x, const zfi_reading *y)
{
    if (x->until != y->until) return x->until < y->until ? -1 : 1;
    return memcmp(x->name + x->from, y->name + y->from, x->until - x->from);
}

static int zfi_by_component(const void *a, const void *b)
{
    const zfi_reading *x = a, *y = b;
    int order = zfi_compare_components(x, y);
    return order ? order : x->at < y->at ? -1 : 1;
}

static int zfi_by_group(const void *a, const void *b)
{
    const zfi_reading *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

/* Puts parameters r[0..count) with the same component side by side; otherwise they keep their
 * order. All have the same text before the component. */
static void zfi_gather_components(zfi_reading *r, int32_t count)
{
    for (int32_t i = 0; i < count; i++) r[i].at = i;
    qsort(r, (size_t)count, sizeof *r, zfi_by_component);
    for (int32_t i = 0, head = 0; i < count; i++) {
        /* a name that ends here opens no scope */
        bool opened = head < i && r[head].name[r[head].until];
        if (!opened || zfi_compare_components(&r[head], &r[i])) head = i;
        r[i].group = r[head].at;
    }
    qsort(r, (size_t)count, sizeof *r, zfi_by_group);
}

/* Puts parameters r[0..count) of one scope side by side where they share more components. The first
 * `depth` components are equal. */
static void zfi_gather_scopes(zfi_reading *r, int32_t count, int depth)
{
    for (bool whole = count > 1; whole; depth++) {
        for (int32_t i = 0; i < count; i++) {
            r[i].from = r[i].until + (depth > 0 && r[i].name[r[i].until]);
            r[i].until = r[i].from + strcspn(r[i].name + r[i].from, ".");
        }
        zfi_gather_components(r, count);
        whole = false;
        for (int32_t i = 0, end; i < count; i = end) {
            for (end = i + 1; end < count && r[end].group == r[i].group;) end++;
            if (end - i == count) whole = true;
            else if (end - i > 1) zfi_gather_scopes(r + i, end - i, depth + 1);
        }
    }
}

/* Orders parameters by their first reader, those of one scope side by side; last come, by name,
 * those that nothing reads. */
static void zfi_settle_params(zf_graph *g)
{
    int32_t count = zfi_len(g->params), reads = 0;
    size_t nodes = (size_t)zfi_len(g->nodes);
    int32_t *first = zfi_calloc(&g->memory, nodes, sizeof *first);
    zfi_reading *all = zfi_calloc(&g->memory, (size_t)count, sizeof *all);
    if (first && all) {
        for (int32_t i = 0; i < zfi_len(g->order); i++) {
            const zfi_node *node = &g->nodes[g->order[i]];
            for (int32_t k = 0; k < node->arg_count && !zfi_has(g, g->order[i], ZF_OP_EFFECT); k++)
                if (!first[node->args[k]]) first[node->args[k]] = ++reads;
        }
        for (int32_t i = 0; i < count; i++) {
            int32_t id = g->params[i];
            all[i] = (zfi_reading){.id = id,
                                   .first = first[id] ? first[id] : INT32_MAX,
                                   .name = g->nodes[id].name};
        }
        qsort(all, (size_t)count, sizeof *all, zfi_by_reading);
        zfi_gather_scopes(all, count, 0);
        for (int32_t i = 0; i < count; i++) g->params[i] = all[i].id;
    }
    zfi_free(&g->memory, first, nodes * sizeof *first);
    zfi_free(&g->memory, all, (size_t)count * sizeof *all);
}

/* Apart from leaves and effects, the nodes are already in the order `order`. */
static bool zfi_computes_in_order(const zf_graph *g, const int32_t *order)
{
    const uint32_t idle = ZF_OP_LEAF | ZF_OP_EFFECT;
    for (int32_t i = 0, k = 0; i < zfi_len(order); i++) {
        if (zfi_has(g, order[i], idle)) continue;
        while (zfi_has(g, g->order[k], idle)) k++; /* both orders have equally many of them */
        if (g->order[k++] != order[i]) return false;
    }
    return true;
}

/* Settles the order, unless the graph has gradients or writes to leaves other than caches. */
static zf_status zfi_settle(zf_graph *g)
{
    zfi_sink *sinks;
    int32_t *order = NULL, *under_way = NULL, *next;
    if (g->stages & ZFI_STAGE_GRADIENTS) return ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].update ||
            (zfi_has(g, g->order[i], ZF_OP_MUTATES) &&
             !zfi_writes_only_caches(g, &g->nodes[g->order[i]])))
            return ZF_OK;
    sinks = zfi_sinks(g);
    next = zfi_calloc(&g->memory, (size_t)zfi_len(g->nodes), sizeof *next);
    for (int32_t k = 0; next && k < zfi_len(sinks) && !g->memory.failed; k++)
        zfi_place_after_operands(g, g->order[sinks[k].at], next, &order, &under_way);
    zfi_free(&g->memory, next, (size_t)zfi_len(g->nodes) * sizeof *next);
    zfi_array_free(&g->memory, sinks);
    zfi_array_free(&g->memory, under_way);
    if (g->memory.failed) {
        zfi_array_free(&g->memory, order);
        return zfi_graph_nomem(g);
    }
    if (zfi_computes_in_order(g, order)) {
        zfi_array_free(&g->memory, order);
    } else {
        zfi_array_free(&g->memory, g->order);
        g->order = order;
    }
    if (g->settled != zfi_len(g->params)) zfi_settle_params(g);
    g->settled = zfi_len(g->params);
    if (g->repeats) zfi_settle_streams(g);
    g->repeats = false;
    return g->memory.failed ? zfi_graph_nomem(g) : ZF_OK;
}
