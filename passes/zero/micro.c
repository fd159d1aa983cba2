/* zero, the micro section: buckets, gathers and views of them, sums of gradients (zero.c).
 *
 * The uses of a parameter: a run of uses of a sharded bucket lies between its all_gather and its
 * release. Views of parameters (view, reshape, leading rows, concat of neighbours) are appended
 * anew in each run. */

/* What a node is in the update section: no value of a bucket; elements of a parameter; the norms of
 * their blocks; the global norm of these; elements that are compressed to signs; their squares; or
 * numbers or gradients of some rows. */
enum {
    ZFI_LIFT_NONE,
    ZFI_LIFT_ELEMENTS,
    ZFI_LIFT_BLOCKS,
    ZFI_LIFT_NORM,
    ZFI_LIFT_SIGNS,
    ZFI_LIFT_SQUARES,
    ZFI_LIFT_ROWS /* of some rows of a table: `value` is that of all parts of the batch */
};

typedef struct zfi_lift {
    int32_t kind;
    int32_t member; /* a member: the parameter (one of those that share the value) */
    int32_t value;  /* all block norms, all norms, or an update's result; else 0 */
} zfi_lift;

/* The state of a bucket during the pass. */
typedef struct zfi_bucket_state {
    int32_t bucket;  /* nodes: the storage; */
    int32_t shard;   /* what an update writes: the bucket, or its shard; 0: not yet */
    int32_t pending; /* gradients that are still to come */
    int32_t gradients; /* members that have a gradient */
    int32_t reduced;   /* its gradient after reduction */
    zf_dtype dtype;    /* of its gradient, where ranks are summed once a step */
    int32_t gathered;  /* stage 3: the gathered bucket; 0 after its release */
    int32_t secondary; /* hpz: the gathered piece of this place of all nodes; 0: not yet */
    int32_t quantized; /* what is gathered instead of the bucket; 0: the bucket itself */
    int32_t kept; /* what is gathered once a step, before it is dequantised; 0: not yet */
    int32_t left[2]; /* loco: buckets of what the first and second exchange have left to send */
    int32_t updated;   /* members that have an update */
    int32_t lifted;    /* its last lifted node, an index into `lifted` + 1 */
    int32_t whole;     /* the whole value that the program reads, gathered from */
    int32_t whole_of;  /* this value */
    bool marked;       /* `gradient` has been put */
} zfi_bucket_state;

/* A node of the update section that operates on a whole bucket. */
typedef struct zfi_lifted {
    int32_t node, before; /* before: the bucket's lifted node before this one, an index + 1 */
} zfi_lifted;

/* The gradient of some rows of a table (zero.c). */
typedef struct zfi_lazy {
    int32_t member;
    int32_t sums, rows;         /* nodes of the micro section, of this part of the batch; */
    int32_t all_sums, all_rows; /* those of all parts, side by side */
} zfi_lazy;

typedef struct zfi_zero {
    zf_graph *graph;
    zf_zero_desc d;
    bool sharded;   /* stage 1 or more, and several ranks: optimizer states are sharded, */
    int64_t shards; /* into so many shards */
    bool mesh;
    bool once;  /* a rank adds its micro-batches, and ranks are summed in the update section */
    bool local; /* gradients are not summed over ranks: momentum is, in compressed form */
    int32_t scaler; /* the mark of the loss scale; 0: there is none */
    zfi_cutter cut;
    zfi_bucket_state *buckets; /* by bucket; growing arrays: */
    zfi_use *uses;
    zfi_lifted *lifted;
    int32_t *outputs;    /* marks: values of the micro section to be summed over ranks */
    int32_t *kept;       /* marks: outputs of gradients */
    int32_t *sets; /* of each state that a step sets: the mark, the state, the value; the mark 0:
                    * the value is that of all parts of the batch */
    int32_t *order;      /* the order before */
    size_t nodes;        /* the number of nodes before */
    zfi_lift *lift;      /* by node */
    int32_t *bucket_of;  /* by node: the bucket of a parameter and of its views; -1 */
    int32_t *member_of;  /* by node: the member of a parameter; -1 */
    int32_t *seen_as;    /* by node, for a parameter or a view of one: its current view; 0 */
    int32_t *seen_in;    /* by node: the bucket, or the gather of it, of that view */
    int32_t *gradient;   /* by member: the gradient that autograd appended; 0 */
    int32_t *packed;     /* by member: that gradient, or a copy if it is a view of a parameter */
    int32_t *next_same;  /* by member: another member with the same gradient; -1 */
    int32_t *first_same; /* by node: the first member with this gradient; -1 */
    int32_t *state_of;   /* by member: its first state in the order; 0: none */
    int32_t *next_state; /* by node, for a state of a member: the next one of this member; 0 */
    int32_t *squared;    /* by member: the kind of the squares of its gradient; 0: none */
    bool squares;        /* squared has been set */
    bool *updated;       /* by member */
    zfi_lazy *lazy;      /* growing array */
    zfi_reductions reductions;
} zfi_zero;

/* How many ranks share the experts of bucket f; 1: all have the same parameters. */
static int32_t zfi_experts_of(const zfi_zero *z, int32_t f)
{
    const zfi_node *first = &z->graph->nodes[z->cut.members[z->cut.buckets[f].first].param];
    return zfi_is_of_expert(first) ? zfi_mesh_experts(zfi_mesh_of(z->graph)) : 1;
}

/* The shards of bucket f, if it has several. */
static int64_t zfi_shards_of(const zfi_zero *z, int32_t f)
{
    return z->shards / zfi_experts_of(z, f);
}

/* Ranks have shards of bucket f: of its states, and of it at stage 3. */
static bool zfi_is_sharded(const zfi_zero *z, int32_t f)
{
    return z->sharded && zfi_shards_of(z, f) > 1;
}

/* The attribute `world` of nodes on bucket f: its shards; 0: it is whole. */
static int64_t zfi_world_of(const zfi_zero *z, int32_t f)
{
    return zfi_is_sharded(z, f) ? zfi_shards_of(z, f) : 0;
}

static bool zfi_gathers(const zfi_zero *z, int32_t f)
{
    return zfi_is_sharded(z, f) && z->d.stage == 3;
}

/* The ranks of each tree of the sum of gradients of bucket f; 0: they are added in order. */
static int64_t zfi_tree_of(const zfi_zero *z, int32_t f)
{
    const int32_t m = z->cut.buckets[f].first, sections = z->cut.sections[z->cut.members[m].param];
    const int64_t run = sections / zfi_experts_of(z, f);
    return run > 1 ? run : 0;
}

static int32_t zfi_zero_fail(zfi_zero *z, int32_t id, const char *why)
{
    char line[256];
    zfi_writer w = zfi_writer_of(NULL, line, sizeof line);
    zfi_print_node(&w, z->graph, id, 0);
    zfi_print_end(&w);
    zfi_fail(&z->graph->error, ZF_ERR_ARGUMENT, "zf_zero: %s: %s", line, why);
    return 0;
}

/* Puts a node of the order before into the new order. */
static void zfi_keep(zfi_zero *z, int32_t id)
{
    if (!z->graph->memory.failed) zfi_push(&z->graph->memory, z->graph->order, id);
}

/* An accumulator of sums of x, at its stage. */
static int32_t zfi_accumulate(zfi_zero *z, int32_t x, zf_dtype dtype, int64_t count)
{
    zf_graph *g = z->graph;
    zfi_new n = {.op = ZF_OP_accumulator, .dtype = dtype, .shape = ZF_SHAPE(count)};
    const int32_t made = zfi_append(g, &n);
    if (made) g->nodes[made].stage = g->nodes[x].stage;
    return made;
}

static int32_t zfi_cast_node(zf_graph *g, int32_t x, zf_dtype to)
{
    if (!x || g->nodes[x].dtype == to) return x;
    return zfi_append_nodes(g, cast, zfi_with({.i = to}), x);
}

/* Several nodes share the shards. */
static bool zfi_spans_nodes(const zfi_zero *z) { return z->mesh && z->shards == z->d.world; }

static zfi_mesh zfi_zero_mesh(const zfi_zero *z)
{
    return (zfi_mesh){z->d.world, z->d.nodes, z->graph->axes};
}

/* Parameters are gathered in the first micro-batch, and stay for all. */
static bool zfi_gathers_once(const zfi_zero *z)
{
    return z->d.gather == ZF_GATHER_STEP && z->d.micro_batches > 1;
}

/* The same of trees of `run` ranks each; 0: in order. */
static int32_t zfi_together_by(zfi_zero *z, zf_op op, int64_t over, int32_t x, int32_t leaf,
                               int64_t run)
{
    const int64_t ranks = zfi_mesh_size(zfi_zero_mesh(z), over);
    const int at = op == ZF_OP_all_reduce ? ZF_AT_all_reduce_run : ZF_AT_reduce_scatter_run;
    zf_attribute with[ZF_MAX_ATTRIBUTES] = {{.i = ranks}, {.i = over}};
    if (!x) return 0;
    if (run) with[ZF_AT_all_reduce_order].i = true, with[at].i = run < ranks ? run : 0;
    return zfi_append_op(z->graph, op, (int32_t[]){x, leaf}, leaf ? 2 : 1, with);
}

/* A collective over an axis of the mesh or all ranks; with a leaf, if it is not 0, as the bucket or
 * accumulator. */
static int32_t zfi_together(zfi_zero *z, zf_op op, int64_t over, int32_t x, int32_t leaf)
{
    return zfi_together_by(z, op, over, x, leaf, 0);
}

/* Sums that are made now are made again for each micro-batch, onto accumulators. */
static bool zfi_accumulates(const zfi_zero *z)
{
    return z->d.micro_batches > 1 && !z->graph->in_update;
}

/* The last sum of a gradient over ranks: over all, or over those at one place of all nodes. */
static int32_t zfi_sum_last(zfi_zero *z, zf_op op, int64_t over, int32_t x, int64_t run)
{
    const int64_t parts = op == ZF_OP_reduce_scatter
                              ? zfi_mesh_size(zfi_zero_mesh(z), over)
                              : 1;
    const zf_dtype dtype = x ? z->graph->nodes[x].dtype : ZF_F32;
    if (!x || !zfi_accumulates(z)) return zfi_together_by(z, op, over, x, 0, run);
    return zfi_together_by(
        z, op, over, x,
        zfi_accumulate(z, x, dtype, zfi_node_count(&z->graph->nodes[x]) / parts), run);
}

/* The integers and scales of a float value; with error feedback if there are errors. */
static int32_t zfi_quantize_node(zfi_zero *z, int32_t x, int32_t errors, int bits)
{
    const int64_t block = z->d.quantized_block, scale = z->d.quantized_scale;
    int32_t args[ZFI_FEEDBACK_ALL] = {x, errors};
    if (!x) return 0;
    if (!errors)
        return zfi_append_nodes(z->graph, quantize,
                                zfi_with({.i = bits}, {.i = block}, {.i = scale}), x);
    if (z->scaler) {
        const int32_t *states = z->graph->nodes[z->scaler].args;
        args[ZFI_FEEDBACK_SCALE] = states[0];
        args[ZFI_FEEDBACK_ITERATION] = states[2], args[ZFI_FEEDBACK_OVERFLOW] = states[3];
    }
    return zfi_append_op(z->graph, ZF_OP_quantize_feedback, args,
                         z->scaler ? ZFI_FEEDBACK_ALL : ZFI_FEEDBACK_SCALE,
                         zfi_with({.i = bits}, {.i = block}, {.i = scale},
                                  {.f = z->d.loco_beta}, {.i = zfi_max(z->d.loco_reset, 0)}));
}

/* The floats of integers of 8 bits. */
static int32_t zfi_dequantize_node(zfi_zero *z, int32_t x, zf_dtype to)
{
    if (!x) return 0;
    return zfi_append_nodes(z->graph, dequantize,
                            zfi_with({.i = 8}, {.i = z->d.quantized_block},
                                     {.i = z->d.quantized_scale}, {.i = to}),
                            x);
}

/* The sum over an axis of the mesh or all ranks of what they have quantised, as shards: as a
 * reduce_scatter, onto an accumulator if there is one. */
static int32_t zfi_exchange(zfi_zero *z, int64_t over, int32_t x, int32_t errors, int32_t onto,
                            zf_dtype to)
{
    const int32_t ranks = zfi_mesh_size(zfi_zero_mesh(z), over);
    x = zfi_together(z, ZF_OP_all_to_all, over, zfi_quantize_node(z, x, errors, 4), 0);
    if (!x) return 0;
    return zfi_append_op(z->graph, ZF_OP_dequantize_sum, (int32_t[]){x, onto}, onto ? 2 : 1,
                         zfi_with({.i = 4}, {.i = z->d.quantized_block},
                                  {.i = z->d.quantized_scale}, {.i = to}, {.i = ranks}));
}

/* The sum of bucket f's gradient over ranks and micro-batches, sent in 4 bits: first inside nodes,
 * each sum in f32 at least. With mics the nodes have added a part of each shard each. */
static int32_t zfi_reduce_quantized(zfi_zero *z, int32_t f, int32_t x)
{
    const int32_t *left = z->buckets[f].left;
    zf_graph *g = z->graph;
    const zf_dtype dtype = g->nodes[x].dtype, wide = zfi_wide(dtype);
    const int64_t count = zfi_node_count(&g->nodes[x]);
    int32_t onto = 0;
    if (z->mesh) x = zfi_exchange(z, ZF_OVER_LOCAL, x, left[0], 0, wide);
    if (zfi_accumulates(z)) onto = zfi_accumulate(z, x, wide, count / z->d.world);
    x = zfi_exchange(z, z->mesh ? ZF_OVER_NODE : zfi_mesh_data(zfi_zero_mesh(z)), x,
                     left[z->mesh], onto, wide);
    return zfi_cast_node(g, x, dtype);
}

/* mics: once in a step, the sums of a shard, of which the nodes have made a part each. */
static int32_t zfi_share_sums(zfi_zero *z, int32_t f)
{
    return zfi_together(z, ZF_OP_all_gather, ZF_OVER_NODE, z->buckets[f].reduced, 0);
}

/* The sum over ranks, and with several micro-batches over these too, in f32 at least. In a mesh
 * first inside nodes, in shards if there are as many elements: a node's sum is rounded to the dtype
 * of the gradient, whatever the number of micro-batches. What they all leave is rounded once. */
static int32_t zfi_reduce_ranks(zfi_zero *z, int32_t x, bool scatter)
{
    zf_graph *g = z->graph;
    const zf_op op = scatter ? ZF_OP_reduce_scatter : ZF_OP_all_reduce;
    const zf_dtype dtype = g->nodes[x].dtype;
    const int64_t count = zfi_node_count(&g->nodes[x]);
    const bool cut = z->mesh && count % (z->d.world / z->d.nodes) == 0;
    if (z->d.micro_batches == 1 && z->d.world == 1) return x;
    if (z->mesh)
        x = zfi_together(z, cut ? ZF_OP_reduce_scatter : ZF_OP_all_reduce, ZF_OVER_LOCAL, x, 0);
    if (zfi_accumulates(z)) x = zfi_cast_node(g, x, zfi_wide(dtype));
    if (z->mesh) {
        x = zfi_sum_last(z, scatter && zfi_spans_nodes(z) ? op : ZF_OP_all_reduce,
                         ZF_OVER_NODE, x, 0);
        if (cut && !scatter) x = zfi_together(z, ZF_OP_all_gather, ZF_OVER_LOCAL, x, 0);
    } else {
        x = zfi_sum_last(z, op, zfi_mesh_data(zfi_zero_mesh(z)), x, 0);
    }
    return zfi_cast_node(g, x, dtype);
}

/* The axis of data over which gradients of bucket f are summed, and its shards gathered at last. */
static int64_t zfi_sum_axis(const zfi_zero *z, int32_t f)
{
    if (zfi_experts_of(z, f) > 1) return ZF_OVER_OWNERS;
    return z->mesh ? ZF_OVER_LOCAL : zfi_mesh_data(zfi_zero_mesh(z));
}

/* The sum of gradients that are sums of sections: f32 at least, and rounded at last. */
static int32_t zfi_reduce_sections(zfi_zero *z, int32_t f, int32_t x)
{
    const int64_t over = zfi_sum_axis(z, f), ranks = zfi_mesh_size(zfi_zero_mesh(z), over);
    if (z->d.micro_batches > 1 || ranks > 1)
        x = zfi_sum_last(z, zfi_is_sharded(z, f) ? ZF_OP_reduce_scatter : ZF_OP_all_reduce, over, x,
                         zfi_tree_of(z, f));
    return zfi_cast_node(z->graph, x, z->cut.buckets[f].dtype);
}

/* The piece of a sharded value that belongs to this place of all nodes. */
static int32_t zfi_gather_nodes(zfi_zero *z, int32_t x)
{
    return zfi_spans_nodes(z) ? zfi_together(z, ZF_OP_all_gather, ZF_OVER_NODE, x, 0) : x;
}

/* The whole of a value of bucket f of which zfi_gather_nodes gave a piece; into a leaf, if it is
 * not 0. */
static int32_t zfi_gather_rest(zfi_zero *z, int32_t f, int32_t x, int32_t bucket)
{
    return zfi_together(z, ZF_OP_all_gather, zfi_sum_axis(z, f), x, bucket);
}

/* The whole of a sharded value of bucket f. */
static int32_t zfi_gather_parts(zfi_zero *z, int32_t f, int32_t x)
{
    return zfi_gather_rest(z, f, zfi_gather_nodes(z, x), 0);
}

static int32_t zfi_view_node(zf_graph *g, int32_t of, int64_t at, zf_shape shape)
{
    const zfi_node *x = &g->nodes[of];
    if (!at && zfi_same_shape(&x->shape, &shape)) return of;
    return zfi_append_nodes(g, view, zfi_with({.i = at}, zfi_listed(shape.dims, shape.rank)), of);
}

/* ------------------------------------------------------------------------------- buckets */

/* A bucket for members, in so many shards, or whole if that is 0: their leaves, by node; leaves
 * that are 0 are left out. each: every rank has its own, or every node. */
static int32_t zfi_append_bucket(zfi_zero *z, const zfi_bucket *bucket, const int32_t *leaves,
                                 int64_t shards, bool each)
{
    zf_graph *g = z->graph;
    const int64_t block = z->d.quantized_block;
    zf_dtype dtype = ZF_F32; /* of errors, whose records are no elements of the bucket */
    size_t room = (size_t)bucket->count;
    int32_t *args = zfi_calloc(&g->memory, room, sizeof *args), count = 0, id = 0;
    int64_t *at = zfi_calloc(&g->memory, room, sizeof *at);
    if (args && at) {
        for (int32_t k = 0; k < bucket->count; k++)
            if (leaves[k])
                args[count] = leaves[k], at[count++] = z->cut.members[bucket->first + k].at;
        if (count && each) dtype = g->nodes[args[0]].dtype;
        for (int32_t k = 0; k < count; k++) at[k] = zfi_errors_count(dtype, at[k], block);
        id = zfi_append_op(g, ZF_OP_bucket, args, count,
                           zfi_with(zfi_listed(at, count),
                                    {.i = zfi_errors_count(dtype, bucket->size, block)},
                                    {.i = shards}, {.i = each}));
    }
    zfi_free(&g->memory, args, room * sizeof *args);
    zfi_free(&g->memory, at, room * sizeof *at);
    if (g->memory.failed) zfi_graph_nomem(g);
    return id;
}

static int32_t zfi_bucket_of_member(const zfi_zero *z, int32_t m)
{
    return z->bucket_of[z->cut.members[m].param];
}

/* The states of the bucket's members that have the role of `state`; 0 where a member has none, or
 * one of another shape. */
static void zfi_states_like(const zfi_zero *z, const zfi_bucket *bucket, int32_t state,
                            int32_t *leaves)
{
    const zf_graph *g = z->graph;
    for (int32_t m = 0; m < bucket->count; m++) {
        int32_t id = z->state_of[bucket->first + m];
        while (id && g->nodes[id].role != g->nodes[state].role) id = z->next_state[id];
        if (id && zfi_same_shape(&g->nodes[id].shape, &g->nodes[g->nodes[id].of].shape))
            leaves[m] = id;
    }
}

/* The bucket of a member's state and of those like it. */
static int32_t zfi_bucket_of_states(zfi_zero *z, int32_t member, int32_t state)
{
    zf_graph *g = z->graph;
    const int32_t f = zfi_bucket_of_member(z, member);
    const zfi_bucket *bucket = &z->cut.buckets[f];
    const int64_t ranks = ZF_INT(&g->nodes[state], state, ranks);
    const bool cut = ranks == ZFI_STATE_CUT || (ranks == ZFI_STATE_STAGE && zfi_is_sharded(z, f));
    int32_t *leaves = zfi_calloc(&g->memory, (size_t)bucket->count, sizeof *leaves), id;
    if (!leaves) return zfi_graph_nomem(g), 0;
    zfi_states_like(z, bucket, state, leaves);
    for (int32_t m = 0; m < bucket->count; m++)
        if (leaves[m] && !g->nodes[leaves[m]].update) zfi_keep(z, leaves[m]);
    id = zfi_append_bucket(z, bucket, leaves, cut ? zfi_shards_of(z, f) : 0,
                           ranks == ZFI_STATE_EACH);
    for (int32_t m = 0; m < bucket->count; m++)
        if (leaves[m]) z->lift[leaves[m]] = (zfi_lift){ZFI_LIFT_ELEMENTS, bucket->first + m, id};
    zfi_free(&g->memory, leaves, (size_t)bucket->count * sizeof *leaves);
    return id;
}

static void zfi_make_buckets(zfi_zero *z)
{
    zf_graph *g = z->graph;
    for (int32_t i = 0; i < zfi_len(g->params); i++) zfi_keep(z, g->params[i]);
    for (int32_t f = 0; f < zfi_len(z->cut.buckets) && !g->error.status; f++) {
        const zfi_bucket *bucket = &z->cut.buckets[f];
        int32_t *leaves = zfi_calloc(&g->memory, (size_t)bucket->count, sizeof *leaves);
        for (int32_t k = 0; leaves && k < bucket->count; k++)
            leaves[k] = z->cut.members[bucket->first + k].param;
        if (leaves)
            z->buckets[f].bucket =
                zfi_append_bucket(z, bucket, leaves,
                                  zfi_gathers(z, f) ? zfi_shards_of(z, f) : 0, false);
        zfi_free(&g->memory, leaves, (size_t)bucket->count * sizeof *leaves);
    }
}

/* A new state for what an exchange has left to send of a parameter's gradient. */
static int32_t zfi_append_errors(zfi_zero *z, int32_t param, bool second)
{
    const char *kind = second ? "loco.between" : "loco.error";
    const int64_t ranks = second ? ZFI_STATE_NODE : ZFI_STATE_EACH, block = z->d.quantized_block;
    const zfi_node *p = &z->graph->nodes[param];
    const zf_dtype dtype = z->d.loco_bits == 8 ? ZF_U8 : ZF_F32;
    const int64_t blocks = (zfi_node_count(p) + block - 1) / block;
    const zf_shape shape = dtype == ZF_F32
                               ? p->shape
                               : ZF_SHAPE(zfi_errors_count(dtype, blocks * block, block));
    return zfi_state_for(z->graph, kind, (zf_tensor){z->graph, param}, dtype, shape, 0, ranks).id;
}

/* A bucket of new states for the gradients of bucket f: what an exchange has left to send. */
static int32_t zfi_append_left(zfi_zero *z, int32_t f, bool second)
{
    zf_graph *g = z->graph;
    const zfi_bucket *bucket = &z->cut.buckets[f];
    int32_t *leaves = zfi_calloc(&g->memory, (size_t)bucket->count, sizeof *leaves), id = 0;
    if (!leaves) return zfi_graph_nomem(g), 0;
    for (int32_t k = 0; k < bucket->count && !g->error.status; k++) {
        const int32_t m = bucket->first + k;
        if (z->gradient[m]) leaves[k] = zfi_append_errors(z, z->cut.members[m].param, second);
    }
    if (!g->error.status)
        id = zfi_append_bucket(z, bucket, leaves, second ? z->d.world / z->d.nodes : 0, true);
    zfi_free(&g->memory, leaves, (size_t)bucket->count * sizeof *leaves);
    return id;
}

static void zfi_make_left(zfi_zero *z)
{
    for (int32_t f = 0; f < zfi_len(z->cut.buckets) && !z->graph->error.status; f++)
        for (int second = 0; second <= z->mesh && z->buckets[f].gradients; second++)
            z->buckets[f].left[second] = zfi_append_left(z, f, second);
}

/* The node is a concat of parameters that are neighbours in a bucket. */
static bool zfi_joins_members(const zfi_zero *z, const zfi_node *node)
{
    if (node->op != ZF_OP_concat || ZF_INT(node, concat, axis) != 0) return false;
    for (int32_t k = 0; k < node->arg_count; k++) {
        int32_t x = node->args[k], before = k ? z->member_of[node->args[k - 1]] : -1;
        if (z->member_of[x] < 0 || z->bucket_of[x] != z->bucket_of[node->args[0]]) return false;
        if (k && z->cut.members[z->member_of[x]].at !=
                     z->cut.members[before].at + z->cut.members[before].count)
            return false;
    }
    return true;
}

/* The current view of a parameter, or of a view of parameters, for the node that now reads it. */
static int32_t zfi_seen(zfi_zero *z, int32_t id)
{
    zf_graph *g = z->graph;
    const zfi_bucket_state *bucket = &z->buckets[z->bucket_of[id]];
    int32_t in = bucket->gathered ? bucket->gathered : bucket->bucket, m = z->member_of[id], x;
    const zfi_node node = g->nodes[id];
    if (z->seen_in[id] == in) return z->seen_as[id];
    if (node.op == ZF_OP_concat) m = z->member_of[node.args[0]];
    if (m >= 0) {
        x = zfi_view_node(g, in, z->cut.members[m].at, node.shape);
    } else {
        x = zfi_seen(z, node.args[0]);
        x = zfi_append_op(g, node.op, &x, 1, node.attributes);
    }
    z->seen_in[id] = in;
    return z->seen_as[id] = x;
}

/* What is gathered of bucket f. */
static int32_t zfi_sent_of(zfi_zero *z, int32_t f)
{
    zfi_bucket_state *u = &z->buckets[f];
    if (!z->d.quantized_weights || !zfi_is_float(z->cut.buckets[f].dtype)) return u->bucket;
    if (!u->quantized) {
        u->quantized = zfi_quantize_node(z, u->bucket, 0, 8);
        if (u->quantized)
            ZF_INT(&z->graph->nodes[u->quantized], quantize, once) = zfi_gathers_once(z);
    }
    return u->quantized;
}

/* Gathers over an axis, once a step where that is asked for. */
static int32_t zfi_gather_params(zfi_zero *z, int64_t over, int32_t x)
{
    x = zfi_together(z, ZF_OP_all_gather, over, x, 0);
    if (x) ZF_INT(&z->graph->nodes[x], all_gather, once) = zfi_gathers_once(z);
    return x;
}

static void zfi_open_run(zfi_zero *z, int32_t f)
{
    zfi_bucket_state *u = &z->buckets[f];
    const int32_t x = zfi_sent_of(z, f);
    if (u->gathered || !zfi_gathers(z, f)) return;
    if (!u->kept) {
        if (!z->d.hpz || !u->secondary)
            u->secondary =
                zfi_spans_nodes(z) ? zfi_gather_params(z, ZF_OVER_NODE, x) : x;
        u->kept = zfi_gather_params(z, zfi_sum_axis(z, f), u->secondary);
    }
    u->gathered = u->quantized ? zfi_dequantize_node(z, u->kept, z->cut.buckets[f].dtype) : u->kept;
    if (!zfi_gathers_once(z)) u->kept = 0;
}

static void zfi_close_run(zfi_zero *z, int32_t f)
{
    if (!z->buckets[f].gathered) return;
    if (zfi_gathers_once(z) && z->buckets[f].gathered == z->buckets[f].kept) return;
    zfi_append_nodes(z->graph, release, NULL, z->buckets[f].gathered);
    z->buckets[f].gathered = 0;
}

/* Memory for all of bucket f, named after its first parameter. */
static int32_t zfi_held_bucket(zfi_zero *z, int32_t f)
{
    zf_graph *g = z->graph;
    const zfi_bucket *bucket = &z->cut.buckets[f];
    const bool quantized = z->d.quantized_weights && zfi_is_float(bucket->dtype);
    char name[ZFI_HELD_NAME];
    zfi_new n = {.op = ZF_OP_cache, .dtype = bucket->dtype, .shape = ZF_SHAPE(bucket->size)};
    const zf_attribute *with =
        quantized ? zfi_with({.i = true}, {.i = 8}, {.i = z->d.quantized_block},
                             {.i = z->d.quantized_scale})
                  : zfi_with({.i = true});
    memcpy(n.attributes, with, sizeof n.attributes);
    n.name = zfi_held_name(name, g->nodes[z->cut.members[bucket->first].param].name);
    return zfi_append(g, &n);
}

/* How many parameters from member m on, neighbours in a bucket, have gradients that are consecutive
 * slices of one value, beginning with its first rows. */
static int32_t zfi_pieces(const zfi_zero *z, int32_t m)
{
    const zf_graph *g = z->graph;
    const zfi_bucket *bucket = &z->cut.buckets[z->bucket_of[z->cut.members[m].param]];
    int32_t count = 0;
    int64_t row = 0;
    for (int32_t n = m; n < bucket->first + bucket->count && z->gradient[n]; n++, count++) {
        const zfi_node *piece = &g->nodes[z->packed[n]];
        if (piece->op != ZF_OP_slice || ZF_INT(piece, slice, axis) != 0 ||
            ZF_INT(piece, slice, start) != row || piece->args[0] != g->nodes[z->packed[m]].args[0])
            break;
        if (n > m && z->cut.members[n].at != z->cut.members[n - 1].at + z->cut.members[n - 1].count)
            break;
        row = ZF_INT(piece, slice, stop);
    }
    return count;
}

/* The value of which the gradients from member m on are all the slices; 0: there is none. */
static int32_t zfi_sliced(const zfi_zero *z, int32_t m)
{
    const zf_graph *g = z->graph;
    int32_t count = zfi_pieces(z, m);
    const zfi_node *last = count ? &g->nodes[z->packed[m + count - 1]] : NULL;
    return last && g->nodes[last->args[0]].shape.dims[0] == ZF_INT(last, slice, stop)
               ? last->args[0]
               : 0;
}

/* Gradients of bucket f are sums of sections. */
static bool zfi_sums_sections(const zfi_zero *z, int32_t f)
{
    return z->cut.sections[z->cut.members[z->cut.buckets[f].first].param] > 1;
}

/* A sum of sections, before it was rounded to the dtype of the parameter. */
static int32_t zfi_unrounded(const zfi_zero *z, int32_t f, int32_t x)
{
    const zfi_node *node = &z->graph->nodes[x];
    if (!zfi_sums_sections(z, f)) return x;
    return node->op == ZF_OP_cast ? node->args[0] : x;
}

/* The pack of all gradients of a bucket, at their places. */
static int32_t zfi_pack_gradients(zfi_zero *z, int32_t f)
{
    zf_graph *g = z->graph;
    const zfi_bucket *bucket = &z->cut.buckets[f];
    size_t room = (size_t)bucket->count;
    int32_t *args = zfi_calloc(&g->memory, room, sizeof *args), count = 0, id = 0;
    int64_t *at = zfi_calloc(&g->memory, room, sizeof *at);
    if (args && at) {
        for (int32_t m = bucket->first; m < bucket->first + bucket->count; m++)
            if (z->gradient[m]) {
                int32_t whole = zfi_sliced(z, m);
                args[count] = zfi_unrounded(z, f, whole ? whole : z->packed[m]),
                at[count++] = z->cut.members[m].at;
                if (whole) m += zfi_pieces(z, m) - 1;
            }
        id = zfi_append_op(g, ZF_OP_pack, args, count,
                           zfi_with(zfi_listed(at, count), {.i = bucket->size}));
    }
    zfi_free(&g->memory, args, room * sizeof *args);
    zfi_free(&g->memory, at, room * sizeof *at);
    if (g->memory.failed) zfi_graph_nomem(g);
    return id;
}

/* The sum over this rank's micro-batches, in f32 at least. */
static int32_t zfi_add_micro(zfi_zero *z, int32_t x)
{
    zf_graph *g = z->graph;
    const int64_t count = zfi_node_count(&g->nodes[x]), data = zfi_mesh_data(zfi_zero_mesh(z));
    int32_t onto;
    if (z->d.micro_batches == 1) return x;
    x = zfi_cast_node(g, x, zfi_wide(g->nodes[x].dtype));
    onto = x ? zfi_accumulate(z, x, g->nodes[x].dtype, count) : 0;
    return onto ? zfi_append_op(g, ZF_OP_all_reduce, (int32_t[]){x, onto}, 2,
                                zfi_with({.i = 1}, {.i = data}))
                : 0;
}

/* The sum over this rank's micro-batches, times the number of ranks: what the gradient of the
 * global batch would be if all ranks had this one's. */
static int32_t zfi_reduce_alone(zfi_zero *z, int32_t x)
{
    zf_graph *g = z->graph;
    const zf_dtype dtype = g->nodes[x].dtype;
    x = zfi_add_micro(z, x);
    if (x && z->d.world > 1) x = zfi_append_nodes(g, scale, zfi_with({.f = z->d.world}), x);
    return zfi_cast_node(g, x, dtype);
}

/* The sum over ranks of bucket f's gradient, of a micro-batch or of all. */
static int32_t zfi_sum_ranks(zfi_zero *z, int32_t f, int32_t x)
{
    return z->d.quantized_gradients ? zfi_reduce_quantized(z, f, x)
                                    : zfi_reduce_ranks(z, x, z->sharded);
}

/* Reduces bucket f's gradient, which is complete on this rank. */
static void zfi_reduce_bucket(zfi_zero *z, int32_t f)
{
    zfi_bucket_state *u = &z->buckets[f];
    const int32_t x = u->reduced;
    if (!x) return;
    u->dtype = z->graph->nodes[x].dtype;
    u->reduced = z->local                    ? zfi_reduce_alone(z, x)
                 : zfi_sums_sections(z, f) ? zfi_reduce_sections(z, f, x)
                 : z->once ? zfi_add_micro(z, x)
                           : zfi_sum_ranks(z, f, x);
}

/* In the update section: the sums over ranks of what each has added, rounded once. */
static void zfi_sum_once(zfi_zero *z)
{
    for (int32_t f = 0; f < zfi_len(z->cut.buckets) && !z->graph->error.status; f++) {
        zfi_bucket_state *u = &z->buckets[f];
        if (u->reduced && !zfi_sums_sections(z, f))
            u->reduced = zfi_cast_node(z->graph, zfi_sum_ranks(z, f, u->reduced), u->dtype);
    }
}

/* Node id is a gradient of one or more members. After the last gradient of a bucket, packs them,
 * and reduces the pack unless that waits for all buckets. */
static void zfi_gradient_made(zfi_zero *z, int32_t id)
{
    if ((size_t)id >= z->nodes) return;
    for (int32_t m = z->first_same[id]; m >= 0 && !z->graph->error.status; m = z->next_same[m]) {
        int32_t f = z->bucket_of[z->cut.members[m].param];
        if (--z->buckets[f].pending) continue;
        z->buckets[f].reduced = zfi_pack_gradients(z, f);
        if (!z->sharded || z->d.stage > 1 || z->once) zfi_reduce_bucket(z, f);
    }
}

/* Outputs alone read the node, or what brings it to outputs of all stages. */
static bool zfi_is_for_outputs(const zfi_zero *z, int32_t id)
{
    const zf_graph *g = z->graph;
    for (int32_t i = 0; i < zfi_len(z->order); i++) {
        const zfi_node *reader = &g->nodes[z->order[i]];
        const bool brings = reader->op == ZF_OP_bcast && zfi_is_over_pipe(g, z->order[i]);
        for (int32_t k = 0; k < reader->arg_count; k++)
            if (reader->args[k] == id && reader->op != ZF_OP_output && !brings) return false;
    }
    return true;
}

/* The node is a concat of gradients for outputs: that of a parameter in pieces. */
static bool zfi_joins_gradients(const zfi_zero *z, int32_t id)
{
    const zf_graph *g = z->graph;
    const zfi_node *node = &g->nodes[id];
    if (node->op != ZF_OP_concat || ZF_INT(node, concat, axis) != 0) return false;
    for (int32_t k = 0; k < node->arg_count; k++)
        if ((size_t)node->args[k] >= z->nodes || z->first_same[node->args[k]] < 0) return false;
    return zfi_is_for_outputs(z, id);
}

/* Of a gradient of a parameter, or a concat of some, that is brought to all stages for an output:
 * that gradient; else x. zfi_keep_outputs brings what is summed. */
static int32_t zfi_shown_gradient(const zfi_zero *z, int32_t x)
{
    const zfi_node *node = &z->graph->nodes[x];
    int32_t from;
    if (node->op != ZF_OP_bcast || !zfi_is_over_pipe(z->graph, x)) return x;
    from = node->args[0];
    if ((size_t)from >= z->nodes) return x;
    return (z->first_same[from] >= 0 || zfi_joins_gradients(z, from)) && zfi_is_for_outputs(z, x)
               ? from
               : x;
}

/* At a mark: the value that the state takes, in the micro section (sets.c). */
static void zfi_set_at(zfi_zero *z, int32_t id)
{
    zf_graph *g = z->graph;
    const int32_t state = g->nodes[id].args[0], value = g->nodes[id].args[1];
    int32_t x = z->bucket_of[value] < 0 ? zfi_set_value(g, value) : zfi_seen(z, value);
    if (z->bucket_of[value] >= 0 && x) x = zfi_append_nodes(g, scale, zfi_with({.f = 1}), x);
    zfi_push(&g->memory, z->sets, id);
    zfi_push(&g->memory, z->sets, state);
    zfi_push(&g->memory, z->sets, x);
}

/* The value is the gradient of rows of a table, one of several parts of the batch. */
static bool zfi_is_of_rows(const zfi_zero *z, int32_t x)
{
    for (int32_t k = 0; k < zfi_len(z->lazy) && z->reductions.parts > 1; k++)
        if (z->lazy[k].sums == x || z->lazy[k].rows == x) return true;
    return false;
}

static void zfi_micro_node(zfi_zero *z, int32_t id)
{
    zf_graph *g = z->graph;
    bool output = g->nodes[id].op == ZF_OP_output;
    if (g->nodes[id].op == ZF_OP_param || g->nodes[id].op == ZF_OP_gradient) return;
    if (g->nodes[id].op == ZF_OP_set) {
        zfi_set_at(z, id);
        return;
    }
    if (g->nodes[id].op == ZF_OP_state && z->lift[id].value) return; /* in a bucket already */
    if (zfi_joins_gradients(z, id)) return; /* zfi_keep_outputs joins what is summed */
    if (zfi_shown_gradient(z, id) != id) return;
    if (z->bucket_of[id] >= 0) { /* a view of a parameter is appended where it is used */
        int32_t copy = z->first_same[id] < 0 ? 0 : zfi_seen(z, id);
        if (copy) copy = zfi_append_nodes(g, scale, zfi_with({.f = 1}), copy);
        for (int32_t m = z->first_same[id]; m >= 0; m = z->next_same[m]) z->packed[m] = copy;
        if (copy) zfi_gradient_made(z, id);
        return;
    }
    if (output) {
        const int32_t x = zfi_shown_gradient(z, g->nodes[id].args[0]);
        const zfi_node *value = &g->nodes[x];
        if (zfi_is_of_rows(z, x)) {
            zfi_zero_fail(z, id, "it is the gradient of the rows that this rank and micro-batch "
                                 "have read (zf_param_group.lazy_rows), not of all parts");
            return;
        }
        if (z->bucket_of[x] >= 0 || z->first_same[x] >= 0 || zfi_joins_gradients(z, x)) {
            zfi_push(&g->memory, z->kept, id);
            return;
        }
        /* a leaf is no sum or mean unless that is said */
        const bool may = z->reductions.parts > 1 && (!zfi_has(g, x, ZF_OP_LEAF) ||
                                                     ZF_INT(&g->nodes[id], output, reduction));
        if (may) zfi_check_mixed(&z->reductions, id);
        const bool summed = ZF_INT(&g->nodes[id], output, reduction) == ZF_REDUCTION_SUM;
        if (may && (zfi_is_number(value) || (summed && zfi_is_summed(value))) && !g->error.status) {
            const zf_reduction how = zfi_reduction_of(&z->reductions, id);
            ZF_INT(&g->nodes[id], output, reduction) = how;
            if (how != ZF_REDUCTION_NONE) {
                zfi_push(&g->memory, z->outputs, id);
                return;
            }
        }
    }
    for (int32_t k = 0; k < g->nodes[id].arg_count && !g->error.status; k++) {
        int32_t arg = g->nodes[id].args[k];
        arg = z->bucket_of[arg] < 0 ? zfi_stands_for(&z->reductions, arg) : zfi_seen(z, arg);
        g->nodes[id].args[k] = arg;
    }
    zfi_seed_mean(&z->reductions, id, z->scaler);
    zfi_keep(z, id);
    zfi_make_constant(&z->reductions, id);
    zfi_gradient_made(z, id);
}

/* An output of the sum of its values, which lies in `sum` from number n on. */
static void zfi_reduce_output(zfi_zero *z, int32_t mark, int32_t sum, int64_t n)
{
    zf_graph *g = z->graph;
    const zfi_node node = g->nodes[mark];
    int32_t x = zfi_view_node(g, sum, n, g->nodes[node.args[0]].shape);
    x = zfi_times_factor(&z->reductions, (zf_reduction)ZF_INT(&node, output, reduction),
                         zfi_ratio_marked(&z->reductions, &node), x);
    g->nodes[mark].args[0] = x;
    g->nodes[mark].arg_count = 1;
    ZF_INT(&g->nodes[mark], output, reduction) = ZF_REDUCTION_DERIVED;
    zfi_keep(z, mark);
}

/* Sums the outputs of one dtype in one collective, and the sums that ratios divide by. */
static void zfi_sum_outputs(zfi_zero *z, zf_dtype dtype)
{
    zf_graph *g = z->graph;
    int32_t *values = NULL, packed, sum;
    int64_t *at = NULL, count = 0, outputs;
    const zfi_quotient *ratios = z->reductions.ratios;
    for (int32_t i = 0; i < zfi_len(z->outputs); i++) {
        int32_t x = g->nodes[z->outputs[i]].args[0];
        if (g->nodes[x].dtype != dtype) continue;
        zfi_push(&g->memory, values, x);
        zfi_push(&g->memory, at, count);
        count += zfi_node_count(&g->nodes[x]);
    }
    outputs = count;
    for (int32_t k = 0; k < zfi_len(ratios); k++) {
        if (g->nodes[ratios[k].sum].dtype != dtype) continue;
        zfi_push(&g->memory, values, ratios[k].sum);
        zfi_push(&g->memory, at, count);
        count++;
    }
    if (values && at && !g->memory.failed) {
        packed = zfi_append_op(g, ZF_OP_pack, values, zfi_len(values),
                               zfi_with(zfi_listed(at, zfi_len(at)), {.i = count}));
        sum = packed ? zfi_reduce_ranks(z, packed, false) : 0;
        for (int32_t k = 0; k < zfi_len(ratios) && sum && !g->error.status; k++)
            if (g->nodes[ratios[k].sum].dtype == dtype)
                zfi_make_factor(&z->reductions, k,
                                zfi_view_node(g, sum, outputs++, g->nodes[ratios[k].sum].shape));
        for (int64_t i = 0, n = 0; i < zfi_len(z->outputs) && sum && !g->error.status; i++) {
            const zfi_node value = g->nodes[g->nodes[z->outputs[i]].args[0]];
            if (value.dtype != dtype) continue;
            zfi_reduce_output(z, z->outputs[i], sum, n);
            n += zfi_node_count(&value);
        }
    }
    zfi_array_free(&g->memory, values);
    zfi_array_free(&g->memory, at);
}

/* Finds where buckets are gathered and released. */
static void zfi_find_gathers(zfi_zero *z)
{
    zf_graph *g = z->graph;
    const size_t count = (size_t)zfi_len(z->cut.buckets);
    bool *frozen = zfi_calloc(&g->memory, count, sizeof *frozen);
    if (!frozen) return;
    for (size_t f = 0; f < count; f++) frozen[f] = z->cut.buckets[f].frozen;
    z->uses =
        zfi_find_runs(g, z->order, z->bucket_of, z->first_same, frozen, zfi_len(z->cut.buckets));
    zfi_free(&g->memory, frozen, count * sizeof *frozen);
}

/* The buckets that are used are read from memory that zf_hold fills (passes/hold.c). */
static void zfi_hold_buckets(zfi_zero *z)
{
    for (int32_t u = 0; u < zfi_len(z->uses) && !z->graph->error.status; u++) {
        const int32_t f = z->uses[u].bucket;
        if (!z->buckets[f].gathered) z->buckets[f].gathered = zfi_held_bucket(z, f);
    }
    zfi_array_free(&z->graph->memory, z->uses);
    z->uses = NULL;
}

/* Where parameters have drifted on this rank, a value of each bucket takes its place in the micro
 * section. */
static void zfi_drift_buckets(zfi_zero *z)
{
    zf_graph *g = z->graph;
    for (int32_t i = 0; i < zfi_len(z->order) && !g->error.status; i++) {
        const int32_t id = z->order[i], member = z->member_of[id];
        const zfi_node node = g->nodes[id];
        zfi_bucket_state *u = z->bucket_of[id] < 0 ? NULL : &z->buckets[z->bucket_of[id]];
        int32_t args[4];
        if (node.op != ZF_OP_adam_drift || u->gathered) continue;
        args[0] = u->bucket;
        for (int32_t k = 1; k < node.arg_count; k++)
            args[k] = zfi_bucket_of_states(z, member, node.args[k]);
        u->gathered = zfi_append_op(g, ZF_OP_adam_drift, args, node.arg_count, node.attributes);
    }
}

/* A value of each rank and micro-batch, side by side in the order of the parts of the batch. */
static int32_t zfi_all_parts(zfi_zero *z, int32_t x)
{
    zf_graph *g = z->graph;
    const int64_t micros = z->d.micro_batches;
    if (z->d.world > 1)
        x = zfi_together(z, ZF_OP_all_gather, zfi_mesh_data(zfi_zero_mesh(z)), x, 0);
    if (x && micros > 1) {
        const zfi_node *node = &g->nodes[x];
        const int32_t all = zfi_accumulate(z, x, node->dtype, micros * zfi_node_count(node));
        x = all ? zfi_append_nodes(g, collect, zfi_with({.i = micros}), x, all) : 0;
    }
    return x;
}

/* At the end of the micro section: rows and their gradients go to all ranks, in place of a sum of
 * the whole table. */
static void zfi_collect_rows(zfi_zero *z)
{
    for (int32_t k = 0; k < zfi_len(z->lazy) && !z->graph->error.status; k++) {
        zfi_lazy *lazy = &z->lazy[k];
        if (z->reductions.parts == 1) continue;
        lazy->all_rows = zfi_all_parts(z, zfi_resolve(z->graph, lazy->rows));
        lazy->all_sums = zfi_all_parts(z, zfi_resolve(z->graph, lazy->sums));
    }
}

static void zfi_micro_section(zfi_zero *z)
{
    zf_graph *g = z->graph;
    bool gathers = (z->sharded && z->d.stage == 3) || z->d.hold;
    int32_t use = 0;
    zfi_make_buckets(z);
    if (z->d.loco) zfi_make_left(z);
    zfi_drift_buckets(z);
    if (gathers) zfi_find_gathers(z);
    if (z->d.hold) zfi_hold_buckets(z);
    for (int32_t u = 0; u < zfi_len(z->uses); u++) (void)zfi_sent_of(z, z->uses[u].bucket);
    for (int32_t i = 0; i < zfi_len(z->order) && !g->error.status && !g->memory.failed; i++) {
        int32_t id = z->order[i];
        if (g->nodes[id].update) break;
        g->scope = g->nodes[id].scope;
        zfi_append_for(g, id);
        for (int32_t u = use; u < zfi_len(z->uses) && z->uses[u].position == i; u++)
            if (z->uses[u].opens) zfi_open_run(z, z->uses[u].bucket);
        zfi_micro_node(z, id);
        for (; use < zfi_len(z->uses) && z->uses[use].position == i && !g->error.status; use++)
            if (z->uses[use].closes) zfi_close_run(z, z->uses[use].bucket);
    }
    g->scope = "", g->in_task = ZFI_TASK_F, g->in_stage = 0;
    for (int32_t f = 0; f < zfi_len(z->cut.buckets) && !g->error.status; f++)
        if (z->sharded && z->d.stage == 1 && !z->once && z->buckets[f].gradients)
            zfi_reduce_bucket(z, f);
    zfi_collect_rows(z);
    for (int d = ZF_F32; d <= ZF_F64 && !g->error.status; d++) zfi_sum_outputs(z, (zf_dtype)d);
}
