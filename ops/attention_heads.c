/* The operands of attention and attention_grad (ops/attention.c): their shapes, what is saved, the
 * gradient, and where heads and tokens lie in memory. */

/* A launch or a node taken apart. Head h of token t of example b begins at element at + (b * tokens
 * + t) * row + h * d of its array. */
typedef struct zfi_attention {
    int64_t batch, heads, m, n, d;    /* m queries, n keys */
    int64_t all, key;                 /* keys of the whole, of which it has n from `key` on */
    int64_t kept;                     /* keys in memory, key i in row i mod kept; n: all of them */
    int64_t kv_heads, group;          /* group = heads / kv_heads */
    int64_t row, kv_row;              /* elements from one token to the next: q; k and v */
    int64_t window;                   /* the keys that a query sees, at most; n: no window */
    int64_t ahead; /* keys after its own that a query sees, with `causal`: of a window both ways */
    const zf_array *q, *k, *v, *bias; /* bias may be NULL */
    /* Of attention to a cache (cache.c): [batch], keys before the first query, and the queries of
     * an example; NULL otherwise */
    const zf_array *past, *count;
    int64_t before; /* the place of the first query among the keys, where `past` is NULL */
    int64_t of, first; /* it has queries from `first` on of so many (ops/attention.c); of 0: all */
    int64_t q_at, k_at, v_at;
    zf_shape scores; /* [batch, heads, m, n] */
    int64_t bias_step[ZF_MAX_RANK];
    const int32_t *documents; /* [batch, m, 2] (documents.c), or NULL */
    const int32_t *lists;     /* of a block mask (block_mask.c) */
    int64_t block, layouts, blocks; /* block 0: no block mask */
    bool by_element;    /* of a cache: the mask is applied to scores of dense tiles, not to tiles */
    double scale, keep; /* keep: 1 / (1 - p) with dropout, else 1 */
    double cap;         /* of scaled scores; 0: none */
    bool causal, drops;
    zfi_drop drop;
} zfi_attention;

/* The element of dropout's mask for key 0 of a query. `head` counts over the batch. */
static int64_t zfi_attention_drop_at(const zfi_attention *a, int64_t head, int64_t m)
{
    int64_t run;
    return zfi_drop_at(&a->drop, (head * a->m + m) * a->n, &run);
}

/* The shapes of q and k, from the shape of operand 0 and, in the separate form, of operand 1. */
static void zfi_attention_shapes(const zf_shape *x, const zf_shape *of_k, int64_t heads,
                                 int64_t kv_heads, zf_shape *q, zf_shape *k)
{
    *q = *k = *x;
    if (of_k) {
        *k = *of_k;
    } else {
        q->dims[2] = x->dims[2] / (heads + 2 * kv_heads) * heads;
        k->dims[2] = x->dims[2] / (heads + 2 * kv_heads) * kv_heads;
    }
}

/* Operands in front of documents and lists: q, k, v and the bias. */
static int32_t zfi_attention_floats(int32_t count, int64_t documents, int64_t block)
{
    return count - (documents != 0) - (block != 0);
}

/* A list of a block mask: numbers of blocks, ascending. */
typedef struct zfi_block_list {
    const int32_t *at;
    int64_t count;
} zfi_block_list;

/* The columns that a row of blocks sees, or turned, the rows by which a column is seen. */
static zfi_block_list zfi_block_list_of(const int32_t *lists, int64_t layouts, int64_t blocks,
                                        int64_t layout, int64_t row, bool turned)
{
    const int64_t begins = layouts * (blocks + 1);
    const int32_t *begin = lists + 2 + (turned ? begins : 0) + layout * (blocks + 1) + row;
    const int32_t *entries = lists + 2 + 2 * begins + (turned ? lists[2 + begins - 1] : 0);
    return (zfi_block_list){entries + begin[0], begin[1] - begin[0]};
}

/* The number of blocks that are seen, of lists of `count` elements. */
static int64_t zfi_listed_blocks(int64_t count, int64_t layouts, int64_t blocks)
{
    return count / 2 - 1 - layouts * (blocks + 1);
}

/* The lists of one side are what block_mask.c says. begin, entries: of that side. */
static bool zfi_are_lists(const double *begin, const double *entries, int64_t seen, int64_t layouts,
                          int64_t blocks)
{
    for (int64_t i = 0; i < layouts * (blocks + 1); i++) {
        const double last = i ? begin[i - 1] : 0, next = begin[i];
        const bool whole = i % (blocks + 1) == 0; /* begins where the one before ends */
        if (!(next >= last && next <= (double)seen) || (whole && next != last)) return false;
        for (int64_t k = (int64_t)last; k < (int64_t)next; k++)
            if (!(entries[k] >= 0 && entries[k] < (double)blocks) ||
                entries[k] != floor(entries[k]) || (k > (int64_t)last && entries[k] <= entries[k - 1]))
                return false;
        if (next != floor(next)) return false;
    }
    return begin[layouts * (blocks + 1) - 1] == (double)seen;
}

/* Checks the lists of a block mask, the last operand, over so many keys. */
static zf_status zfi_infer_lists(const zfi_infer *c, int64_t block, int64_t layouts, int64_t heads,
                                 int64_t keys)
{
    const int64_t blocks = block > 0 ? zfi_div_up(keys, block) : 0;
    const zfi_node *x = c->args[c->arg_count - 1];
    const double *values;
    int64_t count, begins, seen;
    if ((block != 16 && block != 32 && block != 64 && block != 128) ||
        (layouts != 1 && layouts != heads))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "block = %lld must be 16, 32, 64 or 128, and layouts = %lld 1 or the "
                              "%lld heads",
                              (long long)block, (long long)layouts, (long long)heads);
    if (x->op != ZF_OP_constant || x->dtype != ZF_I32 || x->shape.rank != 1)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the blocks, operand %d, must be a constant i32 (zf_block_mask_lists)",
                              (int)c->arg_count - 1);
    count = x->shape.dims[0], begins = layouts * (blocks + 1);
    seen = zfi_listed_blocks(count, layouts, blocks);
    values = ZF_LIST(x, constant, values).data;
    if (ZF_LIST(x, constant, values).count != count || count % 2 || seen < 0 ||
        values[0] != (double)block || values[1] != (double)layouts ||
        !zfi_are_lists(values + 2, values + 2 + 2 * begins, seen, layouts, blocks) ||
        !zfi_are_lists(values + 2 + begins, values + 2 + 2 * begins + seen, seen, layouts, blocks))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "the blocks, operand %d, are no lists of %lld layouts of %lld blocks",
                              (int)c->arg_count - 1, (long long)layouts, (long long)blocks);
    return ZF_OK;
}

/* Checks documents and lists; `from` is the number of the first of them. */
static zf_status zfi_infer_masks(const zfi_infer *c, int32_t from, const zf_shape *q,
                                 const zf_shape *k)
{
    const int64_t documents = ZF_INT(c, attention, documents), block = ZF_INT(c, attention, block),
                  of = ZF_INT(c, attention, of), queries = of ? of : q->dims[1];
    const zf_shape pairs = ZF_SHAPE(q->dims[0], q->dims[1], 2);
    const zfi_node *x = c->args[from];
    const int64_t of_keys = ZF_INT(c, attention, keys), keys = of_keys ? of_keys : k->dims[1];
    if ((documents || block) && queries != keys)
        return zfi_infer_fail(
            c, ZF_ERR_SHAPE, "documents and blocks need as many queries as keys, not %lld and %lld",
            (long long)queries, (long long)keys);
    if (documents && (x->dtype != ZF_I32 || !zfi_same_shape(&x->shape, &pairs)))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the documents, operand %d, must be i32[%lld,%lld,2] (zf_documents)",
                              (int)from, (long long)pairs.dims[0], (long long)pairs.dims[1]);
    return block ? zfi_infer_lists(c, block, ZF_INT(c, attention, layouts),
                                   ZF_INT(c, attention, heads), k->dims[1])
                 : ZF_OK;
}

/* Checks `key` and `keys`: it has some of so many keys, and some of so many queries. */
static zf_status zfi_infer_keys(const zfi_infer *c, bool packed, int64_t n)
{
    const int64_t key = ZF_INT(c, attention, key), keys = ZF_INT(c, attention, keys);
    if (!key && !keys) return ZF_OK;
    if (keys < 0 || key < 0 || n > keys || key > keys - n)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%lld keys from key %lld on are not in %lld",
                              (long long)n, (long long)key, (long long)keys);
    if (packed || ZF_INT(c, attention, block) || !ZF_INT(c, attention, of))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "of some of the keys, q, k and v are operands of their own, of says "
                              "how many queries there are, and there is no block mask");
    return ZF_OK;
}

static zf_status zfi_infer_cap(const zfi_infer *c, double cap)
{
    return cap >= 0 && isfinite(cap)
               ? ZF_OK
               : zfi_infer_fail(c, ZF_ERR_ARGUMENT, "cap = %g must be 0 or above, and finite", cap);
}

/* Checks the operands of an attention, from number `first` on. Sets the shapes of q, k and the
 * scores. */
static zf_status zfi_infer_heads(const zfi_infer *c, int32_t first, zf_shape *q, zf_shape *k,
                                 zf_shape *scores)
{
    int32_t count = zfi_attention_floats(c->arg_count - first, ZF_INT(c, attention, documents),
                                         ZF_INT(c, attention, block));
    const zfi_node *const *x = c->args + first;
    int64_t heads = ZF_INT(c, attention, heads), stream = ZF_INT(c, attention, stream);
    int64_t kv_heads = ZF_INT(c, attention, kv_heads), window = ZF_INT(c, attention, window);
    double p = ZF_FLOAT(c, attention, p), scale = ZF_FLOAT(c, attention, scale);
    bool packed = count <= 2;
    char type[ZFI_TYPE_TEXT];
    if (count < 1 || count > 4)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "takes 1 to 4 floats before documents and blocks");
    if (!zfi_is_float(x[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "operand %d must be float: f32, bf16, f16 or f64",
                              (int)first);
    for (int32_t i = 1; i < count; i++)
        if (x[i]->dtype != x[0]->dtype)
            return zfi_infer_fail(c, ZF_ERR_DTYPE,
                                  "operand %d must be %s, as operand %d (zf_cast converts)",
                                  (int)(first + i), zf_dtype_name(x[0]->dtype), (int)first);
    if (heads < 1)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "heads = %lld must be 1 or more",
                              (long long)heads);
    if (kv_heads < 0 || (kv_heads && heads % kv_heads))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "kv_heads = %lld must be a divisor of the %lld heads",
                              (long long)kv_heads, (long long)heads);
    if (!kv_heads) kv_heads = heads;
    if (window < 0)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "window = %lld must not be negative",
                              (long long)window);
    if (!isfinite(scale))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "scale = %g must be finite", scale);
    if (zfi_infer_cap(c, ZF_FLOAT(c, attention, cap))) return ZF_ERR_ARGUMENT;
    if (!(p >= 0 && p < 1))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "p = %g must be at least 0 and below 1", p);
    if (stream < 0 || stream > UINT32_MAX)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "stream %lld must be 0 to 2^32 - 1",
                              (long long)stream);
    if (packed && (x[0]->shape.rank != 3 || x[0]->shape.dims[2] % (heads + 2 * kv_heads)))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "operand %d must be [batch, tokens, q, k and v], the last a multiple "
                              "of their %lld heads",
                              (int)first, (long long)(heads + 2 * kv_heads));
    if (!packed && (x[0]->shape.rank != 3 || x[0]->shape.dims[2] % heads))
        return zfi_infer_fail(
            c, ZF_ERR_SHAPE,
            "operand %d must be [batch, tokens, hidden], hidden a multiple of the %lld heads",
            (int)first, (long long)heads);
    if (!packed && (x[1]->shape.rank != 3 || x[1]->shape.dims[0] != x[0]->shape.dims[0] ||
                    x[1]->shape.dims[2] != x[0]->shape.dims[2] / heads * kv_heads ||
                    !zfi_same_shape(&x[1]->shape, &x[2]->shape)))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "operands %d and %d must be [batch, tokens, %lld] of one shape: %lld "
                              "heads as wide as those of operand %d, and its batch",
                              (int)first + 1, (int)first + 2,
                              (long long)(x[0]->shape.dims[2] / heads * kv_heads),
                              (long long)kv_heads, (int)first);
    zfi_attention_shapes(&x[0]->shape, packed ? NULL : &x[1]->shape, heads, kv_heads, q, k);
    *scores = (zf_shape){4, {q->dims[0], heads, q->dims[1], k->dims[1]}};
    if (!zfi_addressable(scores))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "there would be 2^60 scores or more");
    if (count % 2 == 0 && !zfi_broadcasts_to(&x[count - 1]->shape, scores))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the bias, operand %d, must broadcast to the scores, %s",
                              (int)(first + count - 1), zfi_type_text(type, x[0]->dtype, scores));
    if (zfi_infer_part(c, ZF_AT_attention_first, q->dims[1])) return ZF_ERR_ARGUMENT;
    if (zfi_infer_keys(c, packed, k->dims[1])) return ZF_ERR_ARGUMENT;
    return zfi_infer_masks(c, first + count, q, k);
}

/* Whether q, k and v are operands of their own. */
static bool zfi_attention_is_apart(int32_t count, const zf_attribute *attributes)
{
    const struct {
        const zf_attribute *attributes;
    } of = {attributes};
    return zfi_attention_floats(count, ZF_INT(&of, attention, documents),
                                ZF_INT(&of, attention, block)) > 2;
}

/* The dtype of the result for a query of dtype x: what is still to be joined is wide. */
static zf_dtype zfi_attention_dtype(const zfi_infer *c, const zfi_node *x)
{
    return ZF_INT(c, attention, keys) ? zfi_wide(x->dtype) : x->dtype;
}

static zf_status zfi_infer_attention(zfi_infer *c)
{
    zf_shape k, scores;
    const zf_status status = zfi_infer_heads(c, 0, &c->shape, &k, &scores);
    if (!status) c->dtype = zfi_attention_dtype(c, c->args[0]);
    return status;
}

/* The shape of lse. */
static zf_shape zfi_attention_lse(const zf_shape *scores)
{
    return (zf_shape){3, {scores->dims[0], scores->dims[1], scores->dims[2]}};
}

enum { ZFI_QKV_SUMS }; /* the saved value of attention_grad */
enum { ZFI_DK, ZFI_DV }; /* those of attention_backward */

static bool zfi_saved_attention(const zf_graph *g, const zfi_node *node, int64_t index,
                                zf_dtype *dtype, zf_shape *shape)
{
    (void)g;
    *dtype = zfi_wide(node->dtype);
    *shape =
        (zf_shape){3, {node->shape.dims[0], ZF_INT(node, attention, heads), node->shape.dims[1]}};
    return index == 0;
}

/* Checks the operands of a gradient. Sets the shapes of q and k. */
static zf_status zfi_infer_grad_heads(zfi_infer *c, zf_shape *of_q, zf_shape *of_k)
{
    zf_shape q, k, scores, lse;
    char type[ZFI_TYPE_TEXT];
    zf_status status = zfi_infer_heads(c, 3, &q, &k, &scores);
    if (status) return status;
    *of_q = q, *of_k = k;
    for (int32_t i = 0; i < 2; i++)
        if (c->args[i]->dtype != c->args[3]->dtype || !zfi_same_shape(&c->args[i]->shape, &q))
            return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d, %s, must be %s", (int)i,
                                  i ? "y" : "dy", zfi_type_text(type, c->args[3]->dtype, &q));
    lse = zfi_attention_lse(&scores);
    if (c->args[2]->dtype != zfi_wide(c->args[3]->dtype) ||
        !zfi_same_shape(&c->args[2]->shape, &lse))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand 2, the rows' log-sum-exp, must be %s",
                              zfi_type_text(type, zfi_wide(c->args[3]->dtype), &lse));
    c->dtype = zfi_attention_dtype(c, c->args[3]);
    c->shape = c->args[3]->shape;
    return ZF_OK;
}

static zf_status zfi_infer_attention_grad(zfi_infer *c)
{
    zf_shape q, k;
    zf_status status = zfi_infer_grad_heads(c, &q, &k);
    if (!status && zfi_attention_is_apart(c->arg_count - 3, c->attributes))
        c->shape = (zf_shape){1, {zf_shape_count(q) + 2 * zf_shape_count(k)}};
    return status;
}

static zf_status zfi_infer_attention_backward(zfi_infer *c)
{
    zf_shape q, k;
    if (!zfi_attention_is_apart(c->arg_count - 3, c->attributes))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operands 3 to 5 must be q, k and v");
    return zfi_infer_grad_heads(c, &q, &k);
}

static bool zfi_saved_attention_backward(const zf_graph *g, const zfi_node *node, int64_t index,
                                         zf_dtype *dtype, zf_shape *shape)
{
    const zfi_node *k = &g->nodes[node->args[4]];
    *dtype = zfi_wide(node->dtype), *shape = k->shape;
    return index <= ZFI_DV;
}

/* The packed form alone has rows whose sums are gradients of biases. */
static bool zfi_saved_attention_grad(const zf_graph *g, const zfi_node *node, int64_t index,
                                     zf_dtype *dtype, zf_shape *shape)
{
    (void)g;
    *dtype = node->dtype;
    *shape = ZF_SHAPE(zfi_last(&node->shape));
    return index == ZFI_QKV_SUMS && !zfi_attention_is_apart(node->arg_count - 3, node->attributes);
}

static void zfi_grad_attention(zf_grad *c)
{
    zf_tensor x[9] = {c->dy, c->y}, dx;
    const int32_t floats = zfi_attention_floats(c->count, ZF_INT(c, attention, documents),
                                                ZF_INT(c, attention, block));
    int64_t at = 0;
    if (floats % 2 == 0 && c->need[floats - 1]) {
        zfi_graph_fail(c->graph, ZF_ERR_ARGUMENT, "autograd",
                       "%%%d = attention gives its bias no gradient, and %%%d is trained: "
                       "matmul, add and softmax do",
                       (int)c->y.id, (int)c->x[floats - 1].id);
        return;
    }
    x[2] = zfi_saved(c->y, 0);
    for (int32_t k = 0; k < c->count; k++) x[3 + k] = c->x[k];
    dx = zfi_build(ZF_OP_attention_grad, 3 + c->count, x, c->attributes);
    if (floats <= 2) {
        c->dx[0] = dx;
        return;
    }
    for (int32_t k = 0; k < 3; k++) {
        zf_shape shape = zf_tensor_shape(c->x[k]);
        int64_t count = zf_shape_count(shape);
        if (c->need[k]) c->dx[k] = zf_reshape(zf_slice(dx, 0, at, at + count), shape);
        at += count;
    }
}

/* The share of scores, of that of y; NULL: of one that is whole. */
static zf_share zfi_attention_share(const zf_share *y, const zfi_attention *a)
{
    zf_share share = {.whole = a->scores};
    if (y)
        share = (zf_share){
            .whole = {4, {y->whole.dims[0], y->whole.dims[2] / a->d, y->whole.dims[1], a->all}},
            .at = {y->at[0], y->at[2] / a->d, y->at[1], 0},
            .run = {y->run[0], y->run[2] / a->d, y->run[1], 0},
            .fold = {y->fold[0], y->fold[2] / a->d, y->fold[1], 0}};
    share.whole.dims[3] = a->all, share.at[3] = a->key;
    if (!a->of) return share;
    share.whole.dims[2] = a->of, share.at[2] = a->first, share.run[2] = share.fold[2] = 0;
    return share;
}

/* The window of an operator: without `causal` one of both ways, as a causal one that is moved. */
static void zfi_attention_narrow(zfi_attention *a, int64_t window)
{
    const int64_t queries = a->of ? a->of : a->m;
    const int64_t all = a->causal ? a->all : zfi_max(queries, a->all); /* this window hides no key */
    a->window = a->all;
    if (!window || window >= all) return;
    a->window = window;
    if (a->causal) return;
    a->causal = true, a->ahead = window - 1, a->window = 2 * window - 1;
}

/* The operands of a launch from number `first` on. */
static zfi_attention zfi_attention_of(const zf_launch *l, int32_t first)
{
    const bool documents = ZF_INT(l, attention, documents) != 0;
    int32_t count = zfi_attention_floats(l->arg_count - first, documents, ZF_INT(l, attention, block));
    const zf_array *x = l->args + first;
    bool packed = count <= 2;
    zf_launch as_dropout = *l;
    zf_share of_scores;
    zfi_attention o = {.q = x, .k = packed ? x : x + 1, .v = packed ? x : x + 2};
    zf_shape q, k;
    o.heads = ZF_INT(l, attention, heads), o.kv_heads = ZF_INT(l, attention, kv_heads);
    if (!o.kv_heads) o.kv_heads = o.heads;
    o.group = o.heads / o.kv_heads;
    zfi_attention_shapes(&x->shape, packed ? NULL : &x[1].shape, o.heads, o.kv_heads, &q, &k);
    o.batch = q.dims[0], o.m = q.dims[1], o.n = o.kept = k.dims[1];
    o.all = ZF_INT(l, attention, keys), o.key = ZF_INT(l, attention, key);
    if (!o.all) o.all = o.n;
    o.d = q.dims[2] / o.heads;
    o.row = x->shape.dims[2], o.kv_row = packed ? o.row : k.dims[2];
    if (packed) o.k_at = q.dims[2], o.v_at = q.dims[2] + k.dims[2];
    o.scores = (zf_shape){4, {o.batch, o.heads, o.m, o.n}};
    if (count % 2 == 0) {
        o.bias = x + count - 1;
        zfi_broadcast_strides(&o.bias->shape, &o.scores, o.bias_step);
    }
    o.scale = ZF_FLOAT(l, attention, scale), o.cap = ZF_FLOAT(l, attention, cap);
    o.causal = ZF_INT(l, attention, causal) != 0;
    if (documents) o.documents = x[count].data;
    o.block = ZF_INT(l, attention, block), o.layouts = ZF_INT(l, attention, layouts);
    if (o.block) o.lists = l->args[l->arg_count - 1].data;
    if (o.block) o.blocks = zfi_div_up(o.n, o.block);
    o.of = ZF_INT(l, attention, of), o.first = ZF_INT(l, attention, first);
    o.before = (o.of ? o.first + o.all - o.of : o.all - o.m) - o.key;
    o.by_element = o.block && o.of;
    zfi_attention_narrow(&o, ZF_INT(l, attention, window));
    o.keep = 1;
    if (l->run && !l->run->evaluate && ZF_FLOAT(l, attention, p) > 0) {
        as_dropout.out.shape = o.scores;
        if (l->share || o.of)
            of_scores = zfi_attention_share(l->share, &o), as_dropout.share = &of_scores;
        o.drop = zfi_drop_of(&as_dropout);
        o.keep = o.drop.scale;
        o.drops = true;
    }
    return o;
}

/* The queries of example b. */
static int64_t zfi_attention_queries(const zfi_attention *a, int64_t b)
{
    return a->count ? zfi_get_integer(a->count, b) : a->m;
}

/* The place among the keys of example b's first query. */
static int64_t zfi_attention_past(const zfi_attention *a, int64_t b)
{
    return a->past ? zfi_get_integer(a->past, b) : a->before;
}

/* The keys up to the last that query `m` of example b sees, if there were as many; with
 * `causal`. */
static int64_t zfi_attention_reaches(const zfi_attention *a, int64_t b, int64_t m)
{
    return m + 1 + zfi_attention_past(a, b) + a->ahead;
}

/* The keys that query `m` of example b sees, without documents: the last of these is the end. */
static int64_t zfi_attention_until(const zfi_attention *a, int64_t b, int64_t m)
{
    if (m >= zfi_attention_queries(a, b)) return 0;
    return a->causal ? zfi_max(0, zfi_min(a->n, zfi_attention_reaches(a, b, m))) : a->n;
}

/* Query `m` of example b sees keys zfi_attention_first to zfi_attention_seen - 1; of a block mask,
 * those of blocks that are listed. */
static int64_t zfi_attention_seen(const zfi_attention *a, int64_t b, int64_t m)
{
    const int64_t until = zfi_attention_until(a, b, m);
    return a->documents ? zfi_min(until, a->documents[2 * (b * a->m + m) + 1] - a->key) : until;
}

static int64_t zfi_attention_first(const zfi_attention *a, int64_t b, int64_t m)
{
    const bool on = a->ahead || a->n < a->all; /* the window may end after the last key */
    const int64_t end = on ? zfi_attention_reaches(a, b, m) : zfi_attention_until(a, b, m),
                  first = zfi_max(0, end - a->window);
    return a->documents ? zfi_max(first, a->documents[2 * (b * a->m + m)] - a->key) : first;
}

/* The list of row (or turned: column) `row` of blocks, of a head. `head` counts over the batch. */
static zfi_block_list zfi_attention_list(const zfi_attention *a, int64_t head, int64_t row,
                                         bool turned)
{
    return zfi_block_list_of(a->lists, a->layouts, a->blocks, head % a->heads % a->layouts, row,
                             turned);
}

/* The query at place m of a text may see key n, as far as blocks are concerned. */
static bool zfi_attention_lists(const zfi_attention *a, int64_t head, int64_t m, int64_t n)
{
    zfi_block_list list;
    if (!a->block) return true;
    list = zfi_attention_list(a, head, m / a->block, false);
    for (int64_t k = 0; k < list.count; k++)
        if (list.at[k] == n / a->block) return true;
    return false;
}

/* The element of k or v (`at`) of key n that head `head` of q reads; `head` counts over the
 * batch. */
static int64_t zfi_attention_kv(const zfi_attention *a, int64_t at, int64_t head, int64_t n)
{
    if (a->kept < a->n) n %= a->kept;
    return at + (head / a->heads * a->kept + n) * a->kv_row + head % a->heads / a->group * a->d;
}

/* Where gradients are. Head h of token t of example b begins at element at + (b * tokens + t) * row
 * + h * d of its array, of k and v with kv_row. */
typedef struct zfi_attention_out {
    int64_t row, kv_row, q_at, k_at, v_at;
    zf_array q, k, v; /* data NULL: that of k or v is not asked for */
} zfi_attention_out;

/* The value that the launch leaves; data NULL: it is not asked for. */
static zf_array zfi_left_of_launch(const zf_launch *l, int32_t index)
{
    const zf_array *saved = zfi_saved_out(l, index);
    return saved ? *saved : (zf_array){.data = NULL};
}

static zfi_attention_out zfi_attention_out_of(const zfi_attention *a, const zf_launch *l)
{
    const int64_t q = a->batch * a->m * a->row, k = a->batch * a->n * a->kv_row;
    zfi_attention_out to = {a->row, a->kv_row, 0, q, q + k, l->out, l->out, l->out};
    if (a->q == a->k) to.kv_row = a->row, to.q_at = a->q_at, to.k_at = a->k_at, to.v_at = a->v_at;
    if (l->op != ZF_OP_attention_backward) return to;
    to.k_at = to.v_at = 0;
    to.k = zfi_left_of_launch(l, ZFI_DK), to.v = zfi_left_of_launch(l, ZFI_DV);
    return to;
}
