/* divide: what zf_cut cannot cut as it is becomes what it can, in sections.
 *
 * requires: no gradients yet; after zf_fuse, so that gradients are those of the new nodes
 * ensures:  with `sections` of at least 2: the head of a loss whose classes these divide, or are
 *           those of a vocabulary, is in sections (ops/head_part.c); attention with fewer heads of
 *           keys than sections has copies of them (ops/repeat.c), the gradients of which are added
 *           in sections; a product that joins layers, as q, k and v, is one of each, with its rows
 *           of the weight (rewrite/tile.c), also with that of an adapter added (lora); a norm of
 *           all heads of queries or keys is what it computes
 * before:   %5 = head_loss %1, %2, %3, %4 {ignore=-100} : f32[]       %2 = param "words" : f32[V,H]
 * after:    %6 = head_part %1, %2, %3 {ignore=-100 temperature=1 sections=4} : f32[P,4,4]
 *           %7 = head_join %6, %3 {ignore=-100} : f32[P]
 *           %8 = sum %7 : f32[]   %9 = mul %8, %4 : f32[]   %5 = neg %9 : f32[]
 *
 *           %4 = linear %1, %2 : f32[4,32]          %2 = param "qkv" : f32[32,8]
 *           %5 = slice %4 {axis=1 stop=16}          %6 = slice %4 {axis=1 start=16 stop=24}  ...
 * after:    %5 = linear %1, %8 : f32[4,16]          %8 = param "qkv[0:16]" {rows=32} : f32[16,8]
 *           %6 = linear %1, %9 : f32[4,8]           %9 = param "qkv[16:24]" {row=16 rows=32}   ...
 *
 *           %3 = attention %0, %1, %2 {heads=8 kv_heads=2}
 * after:    %4 = repeat %1 {heads=2 copies=2}   %5 = repeat %2 {heads=2 copies=2}
 *           %3 = attention %0, %4, %5 {heads=8 kv_heads=4}
 *
 * A graph for one rank with as many sections is the same, so it has the bits of any number of ranks
 * that divides them. Of a row without a label, the class with the largest logit becomes -1. */

/* For a pass: sections, by default `each` of every rank; ranks must divide them. */
static zf_status zfi_settle_sections(zf_graph *g, const char *pass, int32_t ranks, int32_t each,
                                     int32_t *sections)
{
    if (!*sections) *sections = ranks * each;
    return *sections % ranks == 0
               ? ZF_OK
               : zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                          "%s: %d sections are not divided by %d ranks", pass, (int)*sections,
                          (int)ranks);
}

typedef struct zfi_dividing {
    zf_graph *graph;
    const zf_store *store; /* of whose parameters the program reads some; NULL: none */
    int32_t sections, heads; /* of classes; of heads: ranks along two axes may share these */
    int32_t count; /* of nodes */
    int64_t *wide; /* by node: of what becomes an operand of attention, its columns, or UNJOINED */
    int64_t *upto; /* by node: of a product, up to which column layers follow one another that it
                    * joins; of its weight and bias ZFI_DIVIDED: rows of them take their place */
} zfi_dividing;

enum { ZFI_UNJOINED = -1, ZFI_DIVIDED = -2 };

/* A parameter with more rows than others, of words. What has some rows, as positions do, is not
 * worth a sum over ranks. */
static bool zfi_is_table(const zfi_node *x)
{
    return x->op == ZF_OP_param && x->shape.rank == 2 && x->shape.dims[0] >= 2 * x->shape.dims[1];
}

/* The node is a head over a parameter whose classes are sections. */
static bool zfi_has_sections_of_head(const zfi_dividing *s, int32_t id)
{
    const zf_graph *g = s->graph;
    const zfi_node *node = &g->nodes[id], *w;
    if (node->op != ZF_OP_head_loss && node->op != ZF_OP_head_logp) return false;
    w = &g->nodes[node->args[1]];
    if (w->op != ZF_OP_param || ZF_INT(node, head_loss, bits)) return false;
    return w->shape.dims[0] % s->sections == 0 ||
           (zfi_is_table(w) && zfi_section_size(w->shape.dims[0], s->sections));
}

/* The log-probability of each row's label, and what the node has saved. */
static zf_tensor zfi_divide_logp(const zfi_dividing *s, int32_t id)
{
    zf_graph *g = s->graph;
    const zfi_node node = g->nodes[id]; /* appending moves the nodes */
    const bool loss = node.op == ZF_OP_head_loss;
    const int32_t bias = loss ? 4 : 3, best = loss ? ZFI_HEAD_BEST : ZFI_LOGP_BEST,
                  entropy = loss ? 0 : node.saved[ZFI_LOGP_ENTROPY];
    int32_t args[4] = {node.args[0], node.args[1], node.args[2], 0};
    zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {{0}};
    zf_tensor logp;
    if (node.arg_count > bias) args[3] = node.args[bias];
    attributes[ZF_AT_head_part_ignore] = node.attributes[ZF_AT_head_loss_ignore];
    attributes[ZF_AT_head_part_temperature].f = loss ? 1 : ZF_FLOAT(&node, head_logp, temperature);
    attributes[ZF_AT_head_part_sections].i = s->sections;
    attributes[ZF_AT_head_part_entropy].i = entropy != 0;
    logp.graph = g;
    logp.id = zfi_append_op(g, ZF_OP_head_part, args, node.arg_count > bias ? 4 : 3, attributes);
    logp.id = zfi_append_nodes(g, head_join, zfi_with(node.attributes[ZF_AT_head_loss_ignore]),
                               logp.id, node.args[2]);
    if (node.saved[best]) zfi_replace(g, node.saved[best], zfi_saved(logp, ZFI_LOGP_BEST).id);
    if (entropy) zfi_replace(g, entropy, zfi_saved(logp, ZFI_LOGP_ENTROPY).id);
    return logp;
}

/* The sum of the losses of rows, with their weights. */
static zf_tensor zfi_divide_loss(zf_graph *g, int32_t weight, zf_tensor logp)
{
    const zf_tensor by = {g, weight};
    const bool each = g->nodes[weight].shape.rank > 0;
    const zf_tensor sum = zf_sum(each ? zf_mul(logp, by) : logp);
    return zf_neg(each ? sum : zf_mul(sum, by));
}

static void zfi_divide_head(const zfi_dividing *s, int32_t id)
{
    zf_graph *g = s->graph;
    const bool loss = g->nodes[id].op == ZF_OP_head_loss;
    const int32_t weight = loss ? g->nodes[id].args[3] : 0;
    zf_tensor y = zfi_divide_logp(s, id);
    if (loss && y.id) y = zfi_divide_loss(g, weight, y);
    if (y.id) zfi_replace(g, id, y.id);
}

/* Copies of each head of keys that attention, which has fewer than sections, needs; 1: none. */
static int64_t zfi_copies_of_heads(const zfi_dividing *s, const zfi_node *node)
{
    const int64_t kv = node->op == ZF_OP_attention ? ZF_INT(node, attention, kv_heads) : 0;
    if (kv < 1 || s->heads % kv || !zfi_attention_is_apart(node->arg_count, node->attributes))
        return 1;
    return zfi_gcd(s->heads / kv, ZF_INT(node, attention, heads) / kv);
}

/* Gives attention the copies. */
static void zfi_divide_attention(const zfi_dividing *s, int32_t id, int64_t copies)
{
    zf_graph *g = s->graph;
    const int64_t kv = ZF_INT(&g->nodes[id], attention, kv_heads);
    for (int32_t k = 1; k < 3; k++) {
        const int32_t made = zfi_append_nodes(g, repeat, zfi_with({.i = kv}, {.i = copies}),
                                              g->nodes[id].args[k]);
        g->nodes[id].args[k] = made;
    }
    ZF_INT(&g->nodes[id], attention, kv_heads) = kv * copies;
    zfi_push(&g->memory, g->order, id);
}

/* ------------------------------------------------------------------------------ joined layers */

enum { ZFI_THIRDS = 3 };

/* The operand that is q, k and v; -1: the node is no packed attention. */
static int32_t zfi_packed_at(const zfi_node *node)
{
    const int32_t at = node->op == ZF_OP_attention_grad ? 3 : 0;
    if (node->op != ZF_OP_attention && node->op != ZF_OP_attention_grad) return -1;
    return zfi_attention_is_apart(node->arg_count - at, node->attributes) ? -1 : at;
}

/* The first column of q, k or v in a row; of 3: the end. */
static int64_t zfi_third_at(const zf_graph *g, const zfi_node *node, int32_t packed, int third)
{
    const int64_t heads = ZF_INT(node, attention, heads), kv = ZF_INT(node, attention, kv_heads),
                  keys = kv ? kv : heads, all = g->nodes[packed].shape.dims[2],
                  wide = all / (heads + 2 * keys);
    return third ? wide * (heads + (third - 1) * keys) : 0;
}

/* A plain product with a weight [n,k] and a bias that nothing else reads, and that the store has
 * not whole. */
static bool zfi_joins_layers(const zfi_dividing *s, const zfi_node *node, const int32_t *uses)
{
    const zf_graph *g = s->graph;
    const int32_t count = node->arg_count;
    if (zfi_weight_kind(node) != ZFI_WEIGHT_OUT_IN || count < 2 || count > 3 ||
        (node->op == ZF_OP_linear ? ZF_INT(node, linear, activation) != 0
                                  : node->op != ZF_OP_matmul))
        return false;
    for (int32_t k = 1; k < count; k++) {
        const zfi_node *x = &g->nodes[node->args[k]];
        if (x->op != ZF_OP_param || uses[node->args[k]] != 1 || x->shape.rank != 3 - k ||
            zfi_cut_rows_of(x).rows || ZF_INT(x, param, bits) ||
            zfi_store_placed(s->store, x->name) >= 0)
            return false;
    }
    return true;
}

/* The node may join layers: a product does, or two do which it adds, as one with an adapter. */
static bool zfi_may_join_layers(const zfi_dividing *s, const zfi_node *node, const int32_t *uses)
{
    const zf_graph *g = s->graph;
    if (node->op != ZF_OP_add) return zfi_joins_layers(s, node, uses);
    for (int32_t k = 0; k < 2; k++)
        if (uses[node->args[k]] != 1 || !zfi_joins_layers(s, &g->nodes[node->args[k]], uses) ||
            zfi_last(&g->nodes[node->args[k]].shape) != zfi_last(&node->shape))
            return false;
    return true;
}

/* The operands of what joins layers are made in pieces: the rows of weights, or both products. */
static void zfi_mark_joined(const zfi_dividing *s, int32_t id)
{
    const zfi_node *node = &s->graph->nodes[id];
    for (int32_t k = node->op == ZF_OP_add ? 0 : 1; k < node->arg_count; k++) {
        s->upto[node->args[k]] = ZFI_DIVIDED;
        if (node->op == ZF_OP_add) zfi_mark_joined(s, node->args[k]);
    }
}

/* The layers of a product that its reader takes apart, at column *at: how many there are, each of
 * so many columns, up to ZFI_THIRDS; 0: it does not. */
static int zfi_parts_read(const zf_graph *g, const zfi_node *reader, int32_t of, int64_t *at,
                          int64_t columns[ZFI_THIRDS])
{
    const int32_t last = g->nodes[of].shape.rank - 1;
    const int64_t all = zfi_last(&g->nodes[of].shape);
    *at = 0;
    if (last < 0) return 0;
    if (reader->op == ZF_OP_slice && ZF_INT(reader, slice, axis) == last) {
        *at = ZF_INT(reader, slice, start);
        columns[0] = ZF_INT(reader, slice, stop) - *at;
        return 1;
    }
    if (reader->op == ZF_OP_swiglu && reader->arg_count == 1) {
        columns[0] = columns[1] = all / 2;
        return 2;
    }
    if (reader->op != ZF_OP_attention || reader->args[0] != of || zfi_packed_at(reader) ||
        !ZF_INT(reader, attention, kv_heads))
        return 0;
    for (int k = 0; k < ZFI_THIRDS; k++)
        columns[k] = zfi_third_at(g, reader, of, k + 1) - zfi_third_at(g, reader, of, k);
    return ZFI_THIRDS;
}

/* A value becomes an operand of attention, `wide` columns; ZFI_UNJOINED: of one that is whole. */
static void zfi_note_operand(const zfi_dividing *s, int32_t id, int64_t wide)
{
    if (s->wide[id] != ZFI_UNJOINED) s->wide[id] = wide;
}

/* The reshape has heads apart that ranks share, or have copies of; or it has none apart. */
static bool zfi_keeps_heads(const zfi_dividing *s, const zfi_node *node)
{
    const zf_shape *from = &s->graph->nodes[node->args[0]].shape,
                   *shape = from->rank > node->shape.rank ? from : &node->shape;
    const int64_t heads = shape->rank > 3 ? shape->dims[2] : 0;
    return heads % s->sections == 0 || s->sections % heads == 0;
}

/* Finds what becomes operands of attention, and which of it is whole, since sections do not divide
 * the heads. */
static void zfi_find_operands(const zfi_dividing *s)
{
    const zf_graph *g = s->graph;
    for (int32_t i = zfi_len(g->order); zfi_down(i);) {
        const zfi_node *node = &g->nodes[g->order[i]];
        int64_t wide = s->wide[g->order[i]];
        if (node->op == ZF_OP_attention) {
            const bool apart = zfi_attention_is_apart(node->arg_count, node->attributes);
            const int64_t heads = ZF_INT(node, attention, heads),
                          kv = ZF_INT(node, attention, kv_heads);
            const bool fits = heads % s->sections == 0 &&
                              (!kv || kv % s->sections == 0 || s->sections % kv == 0);
            for (int32_t k = 0; k < (apart ? ZFI_THIRDS : 1); k++)
                zfi_note_operand(s, node->args[k],
                                 fits ? zfi_last(&g->nodes[node->args[k]].shape) : ZFI_UNJOINED);
            continue;
        }
        if (node->op == ZF_OP_reshape && wide > 0 && !zfi_keeps_heads(s, node)) wide = ZFI_UNJOINED;
        for (int32_t k = 0; k < node->arg_count && wide; k++)
            if (node->op == ZF_OP_concat ||
                (!k && (node->op == ZF_OP_rope || node->op == ZF_OP_reshape ||
                        node->op == ZF_OP_slice || node->op == ZF_OP_rms_norm)))
                zfi_note_operand(s, node->args[k], wide);
    }
}

/* The layers that a product joins may be cut: those of attention by heads, others by columns. */
static bool zfi_may_divide(const zfi_dividing *s, int32_t product, int32_t reader,
                           const int64_t *columns, int parts)
{
    const int64_t wide = s->wide[reader] ? s->wide[reader] : s->wide[product];
    bool fits = wide != ZFI_UNJOINED;
    for (int k = 0; k < parts && !wide; k++) fits = fits && columns[k] % s->sections == 0;
    return fits;
}

/* Finds the products that join layers: readers take these one after the other. */
static void zfi_find_joined(const zfi_dividing *s)
{
    const zf_graph *g = s->graph;
    const size_t count = (size_t)zfi_len(g->nodes);
    int32_t *uses = zfi_calloc(&s->graph->memory, count, sizeof *uses);
    int64_t columns[ZFI_THIRDS], at;
    if (!uses) return;
    zfi_count_uses(g, uses);
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (!zfi_may_join_layers(s, node, uses)) s->upto[g->order[i]] = ZFI_UNJOINED;
        for (int32_t k = 0; k < node->arg_count; k++) {
            int64_t *upto = &s->upto[node->args[k]];
            const int parts = zfi_parts_read(g, node, node->args[k], &at, columns);
            if (*upto != ZFI_UNJOINED && parts && at == *upto &&
                zfi_may_divide(s, node->args[k], g->order[i], columns, parts))
                for (int n = 0; n < parts; n++) *upto += columns[n];
            else *upto = ZFI_UNJOINED;
        }
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        int64_t *upto = &s->upto[g->order[i]];
        if (*upto > 0 && *upto != zfi_last(&node->shape)) *upto = ZFI_UNJOINED;
        if (*upto > 0) zfi_mark_joined(s, g->order[i]);
    }
    zfi_free(&s->graph->memory, uses, count * sizeof *uses);
}

/* A layer of a product, or of a sum of two: so many columns, from `at` on. */
static int32_t zfi_divide_layer(zf_graph *g, int32_t joined, int64_t at, int64_t columns)
{
    const zfi_node node = g->nodes[joined]; /* appending moves the nodes */
    const bool adds = node.op == ZF_OP_add;
    int32_t args[3] = {zfi_resolve(g, node.args[0])};
    for (int32_t k = adds ? 0 : 1; k < node.arg_count; k++)
        args[k] = adds ? zfi_divide_layer(g, node.args[k], at, columns)
                       : zfi_append_rows(g, node.args[k], at, columns);
    g->scope = node.scope, g->file = node.file, g->line = node.line;
    return zfi_append_op(g, node.op, args, node.arg_count, node.attributes);
}

/* The product that the node takes apart; 0: it takes none. */
static int32_t zfi_joined_product(const zfi_dividing *s, const zfi_node *node)
{
    const int32_t x = node->arg_count && s->upto ? node->args[0] : s->count;
    return x < s->count && s->upto[x] > 0 ? x : 0;
}

/* Gives a reader of layers these, or puts the layer in place of a slice. */
static void zfi_divide_reader(const zfi_dividing *s, int32_t id)
{
    zf_graph *g = s->graph;
    const zfi_node old = g->nodes[id];
    int64_t columns[ZFI_THIRDS], at;
    int32_t args[ZFI_CUT_RESULT] = {0}, joined = old.args[0],
            parts = zfi_parts_read(g, &old, joined, &at, columns);
    zfi_new n = {.op = old.op, .args = args, .arg_count = old.arg_count + parts - 1, .id = id};
    if (n.arg_count > ZFI_CUT_RESULT) return;
    for (int k = 0; k < parts && !g->error.status; at += columns[k++])
        args[k] = zfi_divide_layer(g, joined, at, columns[k]);
    if (g->error.status) return;
    if (old.op == ZF_OP_slice) {
        zfi_replace(g, id, args[0]);
        return;
    }
    for (int32_t k = 1; k < old.arg_count; k++) args[k + parts - 1] = old.args[k];
    memcpy(n.attributes, old.attributes, sizeof n.attributes);
    g->scope = old.scope, g->file = old.file, g->line = old.line;
    if (!zfi_append(g, &n) || (at = zfi_copies_of_heads(s, &g->nodes[id])) < 2) return;
    stbds_header(g->order)->length--; /* it follows the copies */
    zfi_divide_attention(s, id, at);
}

/* --------------------------------------------------------------------------- norms of all heads */

/* The node is a norm of all heads of queries or keys. */
static bool zfi_is_norm_of_heads(const zfi_dividing *s, int32_t id)
{
    const zfi_node *node = &s->graph->nodes[id];
    return s->wide && node->op == ZF_OP_rms_norm && s->wide[id] == zfi_last(&node->shape) &&
           s->graph->nodes[node->args[1]].op == ZF_OP_rms;
}

/* The norm in f32, of a sum that ranks may share. */
static void zfi_divide_norm(const zfi_dividing *s, int32_t id)
{
    zf_graph *g = s->graph;
    const zfi_node node = g->nodes[id]; /* appending moves the nodes */
    const zf_tensor gamma = {g, node.args[2]},
                    eps = zf_constant(g, node.dtype == ZF_F64 ? ZF_F64 : ZF_F32, ZF_SCALAR,
                                      ZF_FLOAT(&g->nodes[node.args[1]], rms, eps));
    zf_shape rows = node.shape;
    zf_tensor x, mean;
    const int32_t wide =
        zfi_append_nodes(g, cast, zfi_with({.i = zfi_wide(node.dtype)}), node.args[0]);
    x = (zf_tensor){g, wide};
    rows.dims[rows.rank - 1] = 1;
    mean = zf_scale(zf_sum_to(zf_mul(x, x), rows), 1.0 / (double)zfi_last(&node.shape));
    x = zf_mul(zf_mul(x, zf_rsqrt(zf_add(mean, eps))), gamma);
    if (x.id > 0) zfi_replace(g, id, x.id);
}

static void zfi_divide_nodes(const zfi_dividing *s)
{
    zf_graph *g = s->graph;
    int32_t *order = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status && !g->memory.failed; i++) {
        zfi_node *node = &g->nodes[order[i]];
        if (node->op == ZF_OP_none) continue; /* a saved value of a head */
        if (s->upto && (s->upto[order[i]] > 0 || s->upto[order[i]] == ZFI_DIVIDED)) continue;
        for (int32_t k = 0; k < node->arg_count; k++)
            node->args[k] = zfi_resolve(g, node->args[k]);
        g->scope = node->scope, g->file = node->file, g->line = node->line;
        const int64_t copies = zfi_copies_of_heads(s, node);
        if (zfi_is_norm_of_heads(s, order[i])) zfi_divide_norm(s, order[i]);
        else if (zfi_joined_product(s, node)) zfi_divide_reader(s, order[i]);
        else if (copies > 1) zfi_divide_attention(s, order[i], copies);
        else if (s->sections > 1 && zfi_has_sections_of_head(s, order[i])) zfi_divide_head(s, order[i]);
        else zfi_push(&g->memory, g->order, order[i]);
    }
    zfi_array_free(&g->memory, order);
}

/* zf_divide; `store`: parameters that it has whole stay so; NULL: none. */
static zf_status zfi_divide(zf_graph *g, int32_t sections, int32_t heads, const zf_store *store)
{
    zfi_dividing s = {.graph = g, .store = store, .sections = sections, .heads = heads,
                      .count = g ? (int32_t)zfi_len(g->nodes) : 0};
    const int32_t params = g ? zfi_len(g->params) : 0;
    const char *scope;
    zf_status status = zfi_enter(g, "zf_divide", 0,
                                 ZFI_STAGE_GRADIENTS | ZFI_STAGE_UPDATES | ZFI_STAGE_RANKS |
                                     ZFI_STAGE_PLACED);
    if (status) return status;
    if (sections < 0)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_divide: %d sections; 0 or more are needed",
                        (int)sections);
    if (heads < 2) return zfi_leave(g, 0);
    if (g->settled != zfi_len(g->params) && (status = zfi_settle(g))) return status;
    scope = g->scope;
    if (sections > 1 && (s.upto = zfi_calloc(&g->memory, 2 * (size_t)s.count, sizeof *s.upto))) {
        s.wide = s.upto + s.count;
        zfi_find_operands(&s);
        zfi_find_joined(&s);
    }
    if (!g->memory.failed) zfi_divide_nodes(&s);
    if (!g->memory.failed && zfi_len(g->params) > params) zfi_list_pieces(g, params);
    zfi_free(&g->memory, s.upto, 2 * (size_t)s.count * sizeof *s.upto);
    g->scope = scope;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return g->error.status ? g->error.status : zfi_leave(g, 0);
}

ZF_API zf_status zf_divide(zf_graph *g, int32_t sections)
{
    return zfi_divide(g, sections, sections, NULL);
}
