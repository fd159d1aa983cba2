/* Buckets: which parameters lie in one flat storage, and at which places.
 *
 * The parameters' names are a tree (bert.encoder.layer.0...). A subtree of at most `bucket_bytes`
 * bytes is an atom; so is a single tensor of any size. Neighbouring atoms are joined while they fit
 * into a bucket. Only names, shapes and dtypes count, in the settled order (ir/settle.c), so graphs
 * that read the same parameters in one order have the same buckets. Frozen and trained parameters
 * have separate buckets, each as if the others were not there; so have trained parameters of groups
 * with other rates or betas, of which an update has one, those of stages of a pipeline, and those
 * that are cut over experts, or whose gradients are sums of sections.
 *
 * Parameters that are in buckets of a store (zf_zero_desc.store) get the same buckets here.
 *
 *     embeddings.word | embeddings.position + .type + .LayerNorm | layer.0 | layer.1 | pooler + cls
 *
 * A piece of a parameter (zf_tile) is a bucket of its own, so that it is gathered alone; so is a
 * table of which only some rows are updated (zf_param_group.lazy_rows), and with
 * zf_zero_desc.experts_apart each weight of experts, so that those with rows are fetched alone.
 *
 * Within a bucket, siblings of one shape are side by side (query.weight, key.weight, value.weight),
 * so that a product with all of them is a product with one matrix. */

typedef struct zfi_member {
    int32_t param;
    int64_t at, count; /* elements */
} zfi_member;

/* members[first .. first + count) are in one bucket of `size` elements, padding included. */
typedef struct zfi_bucket {
    int32_t first, count;
    int64_t size;
    zf_dtype dtype;
    bool frozen;
} zfi_bucket;

typedef struct zfi_cutter {
    zf_graph *graph;
    int64_t bucket_bytes;
    int64_t unit; /* a parameter's place and a shard are multiples of so many elements */
    int32_t
        *sections; /* by node, for a parameter: of the sum of its gradient over data; 0, 1: none */
    bool *apart; /* by node: a weight of experts that has a bucket of its own; NULL: none has */
    zfi_member *members; /* growing arrays */
    zfi_bucket *buckets;
    int32_t *atoms; /* where each atom begins, an index into members */
} zfi_cutter;

static const zfi_node *zfi_member_node(const zfi_cutter *c, int32_t m)
{
    return &c->graph->nodes[c->members[m].param];
}

static int64_t zfi_members_bytes(const zfi_cutter *c, int32_t from, int32_t until)
{
    int64_t bytes = 0;
    for (int32_t m = from; m < until; m++) bytes += (int64_t)zfi_node_bytes(zfi_member_node(c, m));
    return bytes;
}

static bool zfi_is_piece(const zfi_node *leaf) { return zfi_cut_rows_of(leaf).rows != 0; }

/* It has a bucket and an update of its own: a piece, a table of which some rows are updated, or a
 * weight of experts that is to be apart. */
static bool zfi_lies_alone(const zfi_cutter *c, int32_t param)
{
    const zfi_node *node = &c->graph->nodes[param];
    return zfi_is_piece(node) || zfi_is_lazy_table(node) || (c->apart && c->apart[param]);
}

/* Marks the parameters of which nodes read experts that have rows (zfi_record.by_expert). */
static void zfi_find_apart(const zfi_cutter *c)
{
    const zf_graph *g = c->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const int32_t k = zfi_record_of(g, g->order[i])->by_expert;
        if (k && g->nodes[node->args[k]].op == ZF_OP_param) c->apart[node->args[k]] = true;
    }
}

/* Ranks have parts of it along expert. */
static bool zfi_is_of_expert(const zfi_node *leaf)
{
    return zfi_spread_cut(&leaf->spread) & zfi_axis_bit(ZF_OVER_EXPERT);
}

/* Parameters of one kind may be in one bucket, which has one update. */
static bool zfi_same_kind(const zfi_cutter *c, int32_t x, int32_t y)
{
    const zfi_node *a = &c->graph->nodes[x], *b = &c->graph->nodes[y];
    if (c->sections[x] != c->sections[y] || zfi_is_of_expert(a) != zfi_is_of_expert(b))
        return false;
    return a->dtype == b->dtype && a->stage == b->stage && zfi_is_frozen(a) == zfi_is_frozen(b) &&
           (zfi_is_frozen(a) || zfi_same_group(a, b));
}

/* Splits members [from, until), which share their first `depth` components, into atoms. */
static void zfi_cut_atoms(zfi_cutter *c, int32_t from, int32_t until, int depth)
{
    if (until - from == 1 || zfi_members_bytes(c, from, until) <= c->bucket_bytes) {
        zfi_push(&c->graph->memory, c->atoms, from);
        return;
    }
    for (int32_t end; from < until; from = end) {
        const char *name = zfi_member_node(c, from)->name;
        size_t length = zfi_prefix(name, depth + 1);
        for (end = from + 1; end < until; end++) {
            const char *other = zfi_member_node(c, end)->name;
            if (zfi_prefix(other, depth + 1) != length || memcmp(name, other, length)) break;
        }
        /* A name that ends here has no deeper level at which to split. */
        if (!name[length]) end = from + 1;
        zfi_cut_atoms(c, from, end, depth + 1);
    }
}

/* Joins neighbouring atoms, up to `until`, to buckets. */
static void zfi_join_atoms(zfi_cutter *c, int32_t until)
{
    int32_t atoms = zfi_len(c->atoms);
    for (int32_t a = 0, next; a < atoms; a = next) {
        const zfi_node *node = zfi_member_node(c, c->atoms[a]);
        zfi_bucket bucket = {
            .first = c->atoms[a], .dtype = node->dtype, .frozen = zfi_is_frozen(node)};
        int32_t end = until;
        for (next = a + 1; next < atoms; next++) {
            end = next + 1 < atoms ? c->atoms[next + 1] : until;
            if (zfi_members_bytes(c, bucket.first, end) > c->bucket_bytes) break;
        }
        bucket.count = (next < atoms ? c->atoms[next] : until) - bucket.first;
        zfi_push(&c->graph->memory, c->buckets, bucket);
    }
    if (c->atoms) stbds_header(c->atoms)->length = 0;
}

/* The names are A.x.weight and A.y.weight, and the shapes are equal. */
static bool zfi_siblings(const zfi_node *a, const zfi_node *b)
{
    const char *tail_a = strrchr(a->name, '.'), *tail_b = strrchr(b->name, '.');
    const char *mid_a = tail_a, *mid_b = tail_b;
    if (!tail_a || !tail_b || strcmp(tail_a, tail_b) || !zfi_same_shape(&a->shape, &b->shape))
        return false;
    while (mid_a > a->name && mid_a[-1] != '.') mid_a--;
    while (mid_b > b->name && mid_b[-1] != '.') mid_b--;
    return mid_a > a->name && mid_a - a->name == mid_b - b->name &&
           !memcmp(a->name, b->name, (size_t)(mid_a - a->name));
}

/* Puts siblings side by side and gives every member its place. */
static void zfi_lay_out(zfi_cutter *c, zfi_bucket *bucket, int32_t world)
{
    zfi_member *m = c->members + bucket->first;
    int64_t at = 0, shard = c->unit * world;
    for (int32_t i = 0; i + 1 < bucket->count; i++) {
        int32_t after = i + 1;
        for (int32_t k = i + 1; k < bucket->count; k++) {
            zfi_member sibling = m[k];
            if (!zfi_siblings(&c->graph->nodes[m[i].param], &c->graph->nodes[sibling.param]))
                continue;
            memmove(m + after + 1, m + after, (size_t)(k - after) * sizeof *m);
            m[after++] = sibling;
        }
        i = after - 1;
    }
    for (int32_t i = 0; i < bucket->count; i++) {
        m[i].at = at;
        m[i].count = zfi_node_count(&c->graph->nodes[m[i].param]);
        at += (m[i].count + c->unit - 1) / c->unit * c->unit;
    }
    bucket->size = (at + shard - 1) / shard * shard;
}

/* The length of a name up to its first component that is a number, such as "layer.7"; 0: it has
 * none. */
static size_t zfi_numbered(const char *name)
{
    for (const char *at = name; *at;) {
        size_t word = strcspn(at, ".");
        if (word && strspn(at, "0123456789") >= word) return (size_t)(at - name) + word;
        at += word + (at[word] == '.');
    }
    return 0;
}

/* The bytes of the largest run of members [from, until) under one number ("layer.7."), at least 1
 * MiB and at most 256 MiB. */
static int64_t zfi_default_bucket_bytes(const zfi_cutter *c, int32_t from, int32_t until)
{
    enum { LEAST = 1 << 20, MOST = 256 << 20 };
    int64_t largest = LEAST, run = 0;
    const char *last = NULL;
    size_t last_length = 0;
    for (int32_t m = from; m < until; m++) {
        const zfi_node *node = zfi_member_node(c, m);
        const char *name = node->name;
        size_t length = zfi_numbered(name);
        if (!length || length != last_length || memcmp(name, last, length)) run = 0;
        if (length) run += (int64_t)zfi_node_bytes(node);
        last = name, last_length = length;
        if (run > largest) largest = run;
    }
    return largest < MOST ? largest : MOST;
}

/* Of `world` ranks, those that share a parameter. */
static int32_t zfi_sharers(const zfi_cutter *c, const zfi_node *param, int32_t world)
{
    return zfi_is_of_expert(param) ? world / zfi_mesh_experts(zfi_mesh_of(c->graph)) : world;
}

/* The store's tensor of the parameter, in a bucket that `world` ranks can share; -1: there is
 * none. */
static int32_t zfi_taken(const zfi_cutter *c, const zfi_node *param, const zf_store *store,
                         int32_t world)
{
    int32_t k = zfi_store_placed(store, param->name);
    const zfi_stored *t = k < 0 ? NULL : &store->tensors[k];
    const zfi_stored_bucket *b = t ? &store->buckets[t->bucket] : NULL;
    if (!b || !b->flat || t->op != ZF_OP_param || t->dtype != param->dtype ||
        !zfi_same_shape(&t->shape, &param->shape))
        return -1;
    return b->size % (c->unit * zfi_sharers(c, param, world)) ? -1 : k;
}

/* Takes over the buckets of the store, with the places of their parameters. */
static void zfi_take_buckets(zfi_cutter *c, const zf_store *store, int32_t world)
{
    zf_graph *g = c->graph;
    const zfi_stored *before = NULL;
    for (int32_t i = 0; store && i < zfi_len(g->params) && !g->memory.failed; i++) {
        const zfi_node *node = &g->nodes[g->params[i]];
        int32_t k = zfi_taken(c, node, store, world), m = zfi_len(c->members);
        const zfi_stored *t = k < 0 ? NULL : &store->tensors[k];
        if (!t || !zfi_push(&g->memory, c->members,
                               ((zfi_member){g->params[i], t->at, zfi_node_count(node)})))
            continue;
        for (; m > 0; m--) { /* by bucket and place; they are nearly in this order */
            const zfi_member last = c->members[m - 1];
            int32_t other = zfi_taken(c, &g->nodes[last.param], store, world);
            const zfi_stored *its = &store->tensors[other]; /* stages know buckets in their own order */
            if (its->stage != t->stage ? its->stage < t->stage
                : its->bucket != t->bucket ? its->bucket < t->bucket
                                           : last.at < t->at)
                break;
            c->members[m - 1] = c->members[m], c->members[m] = last;
        }
    }
    for (int32_t m = 0; m < zfi_len(c->members) && !g->memory.failed; m++) {
        const zfi_stored *t =
            &store->tensors[zfi_taken(c, zfi_member_node(c, m), store, world)];
        const zfi_stored_bucket *b = &store->buckets[t->bucket];
        if (!before || t->bucket != before->bucket)
            zfi_push(&g->memory, c->buckets,
                     ((zfi_bucket){.first = m,
                                   .size = b->size,
                                   .dtype = b->dtype,
                                   .frozen = zfi_is_frozen(zfi_member_node(c, m))}));
        if (!g->memory.failed) stbds_arrlast(c->buckets).count++;
        before = t;
    }
}

/* Gives everything that lies alone a bucket of its own. */
static void zfi_cut_pieces(zfi_cutter *c, int32_t world, const zf_store *store)
{
    zf_graph *g = c->graph;
    for (int32_t i = 0; i < zfi_len(g->params) && !g->memory.failed; i++) {
        const zfi_node *node = &g->nodes[g->params[i]];
        const zfi_bucket bucket = {.first = zfi_len(c->members),
                                   .count = 1,
                                   .dtype = node->dtype,
                                   .frozen = zfi_is_frozen(node)};
        if (!zfi_lies_alone(c, g->params[i]) || zfi_taken(c, node, store, world) >= 0) continue;
        zfi_push(&g->memory, c->members, ((zfi_member){.param = g->params[i]}));
        if (!g->memory.failed) zfi_push(&g->memory, c->buckets, bucket);
    }
}

/* A parameter before the i-th, and whole, is of its kind. */
static bool zfi_has_earlier_of_kind(const zfi_cutter *c, int32_t i)
{
    const zf_graph *g = c->graph;
    for (int32_t k = 0; k < i; k++)
        if (!zfi_lies_alone(c, g->params[k]) &&
            zfi_same_kind(c, g->params[k], g->params[i]))
            return true;
    return false;
}

/* Assigns all parameters to buckets for `world` ranks; bucket_bytes 0: the default. The caller
 * frees the arrays. On failure the graph has the error. */
static void zfi_cut_buckets(zfi_cutter *c, int64_t bucket_bytes, int32_t world,
                            const zf_store *store)
{
    zf_graph *g = c->graph;
    int64_t all = 0;
    int32_t taken_buckets;
    zfi_take_buckets(c, store, world);
    taken_buckets = zfi_len(c->buckets);
    for (int32_t i = 0; i < zfi_len(g->params); i++) {
        all += zfi_node_count(&g->nodes[g->params[i]]); /* each below 2^60 */
        if (all >> 59) {
            zfi_fail(&g->error, ZF_ERR_LIMIT, "zf_zero: the parameters have 2^59 elements or more");
            return;
        }
    }
    for (int32_t i = 0; i < zfi_len(g->params) && !g->memory.failed; i++) {
        int32_t from = zfi_len(c->members), until;
        if (zfi_lies_alone(c, g->params[i]) || zfi_has_earlier_of_kind(c, i)) continue;
        for (int32_t k = i; k < zfi_len(g->params); k++)
            if (zfi_same_kind(c, g->params[k], g->params[i]) &&
                !zfi_lies_alone(c, g->params[k]) &&
                zfi_taken(c, &g->nodes[g->params[k]], store, world) < 0)
                zfi_push(&g->memory, c->members, ((zfi_member){.param = g->params[k]}));
        until = zfi_len(c->members);
        if (from == until || g->memory.failed) continue;
        c->bucket_bytes = bucket_bytes ? bucket_bytes : zfi_default_bucket_bytes(c, from, until);
        zfi_cut_atoms(c, from, until, 0);
        if (!g->memory.failed) zfi_join_atoms(c, until);
    }
    zfi_cut_pieces(c, world, store);
    for (int32_t f = taken_buckets; f < zfi_len(c->buckets) && !g->memory.failed; f++)
        zfi_lay_out(c, &c->buckets[f],
                    zfi_sharers(c, zfi_member_node(c, c->buckets[f].first), world));
    if (g->memory.failed) zfi_graph_nomem(g);
}
