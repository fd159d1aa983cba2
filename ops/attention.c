/* Attention of several heads in one node. No [T,T] matrix is ever in memory.
 *
 *     %3 = attention %1, %2 {p=0.1 stream=7 heads=4 scale=0.125} : f32[16,128,256]
 *
 *          y = dropout(softmax(scale q k^T + bias)) v, for each head: [B,M,H], H = heads d
 *
 *     %4 = saved %3 {index=0} : f32[16,4,128]
 *
 *          lse[b,h,m] = log sum over n of exp(score); -inf of an empty row
 *
 *     %9 = attention_grad %8, %3, %4, %1, %2 {...} : f32[16,128,768]
 *
 *          of dy, y, lse, and the operands of attention:
 *          P  = exp(score - lse)           D  = sum of dy y over the d of a row
 *          dV = dropout(P)^T dy            dS = P (dropout(dy v^T) - D) scale
 *          dQ = dS k                       dK = dS^T q
 *
 * One or two operands are the packed form: qkv [B,T,H + 2 K] and an optional bias. A token's row of
 * qkv holds q of all heads, then k, then v. Three or four are the separate form: q [B,M,H], k and v
 * [B,N,K], and an optional bias. kv_heads is a divisor of heads, 0 for heads itself, and K =
 * kv_heads d. Head j of q reads head j / (heads / kv_heads) of k and v (Ainslie et al. 2023); dK and
 * dV are sums over these heads of q, in their order. The bias broadcasts to [B,heads,M,N]. causal:
 * query m sees key n where n <= m + N - M. With a window W, n > m + N - M - W is necessary too.
 * Other keys have probability 0. Dropout has the mask of the operator dropout {p stream} on a tensor
 * [B,heads,M,N]. A row of scores is empty when its query sees no key, or all its scores are -inf: y
 * is 0 there. A row with NaN or +inf among its scores gives NaN.
 *
 * The result of attention_grad is the gradient of qkv; in the separate form, the gradients of q, k
 * and v in one flat tensor, in this order. The bias gets no gradient. Saved: y and lse. lse is f64
 * for f64, else f32.
 *
 *     %10 = saved %9 {index=0} : f32[768]       of the packed form: the sums of the result's rows, the
 *                                               gradient of biases that were added to q, k and v
 *
 * They have the bits that sum_to makes of the result, which is read again for them. On CUDA, where
 * products of warpgroups compute it, blocks of 16 rows are summed as they are stored, and these sums
 * are then added (attention_grad_sm90.cu).
 *
 * Sources: Milakov & Gimelshein 2018 (online softmax); Dao et al. 2022 and Dao 2023
 * (FlashAttention: the backward pass).
 *
 * The fast kernels split the scores of a head into blocks. A worker computes one at a time:
 *
 *                 keys
 *              +---+---+    Forward: along the keys for a block of queries, with the maximum and
 *      queries | S |   |    the sum of each row so far; y is scaled when the maximum grows.
 *              +---+---+    Backward: along the queries for a block of keys, whose dK and dV it
 *              |   |   |    adds up, while all of dQ is there. Where heads are too few for the
 *              +---+---+    threads, dK and dV of a block of keys are one task, and dQ of a block
 *                           of queries another. Every sum has one order, whichever it is.
 */

/* ------------------------------------------------------------------------------- operands */

/* A launch or a node taken apart. Head h of token t of example b begins at element at + (b * tokens
 * + t) * row + h * d of its array. */
typedef struct zfi_attention {
    int64_t batch, heads, m, n, d;    /* m queries, n keys */
    int64_t kept;                     /* keys in memory, key i in row i mod kept; n: all of them */
    int64_t kv_heads, group;          /* group = heads / kv_heads */
    int64_t row, kv_row;              /* elements from one token to the next: q; k and v */
    int64_t window;                   /* the keys that a query sees, at most; n: no window */
    const zf_array *q, *k, *v, *bias; /* bias may be NULL */
    /* Of attention to a cache (cache.c): [batch], keys before the first query, and the queries of an
     * example; NULL otherwise */
    const zf_array *past, *count;
    int64_t q_at, k_at, v_at;
    zf_shape scores; /* [batch, heads, m, n] */
    int64_t bias_step[ZF_MAX_RANK];
    double scale, keep; /* keep: 1 / (1 - p) with dropout, else 1 */
    bool causal, drops;
    zfi_drop drop;
} zfi_attention;

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

/* Checks the operands of an attention, from number `first` on. Sets the shapes of q, k and the
 * scores. */
static zf_status zfi_infer_heads(const zfi_infer *c, int32_t first, zf_shape *q, zf_shape *k,
                                 zf_shape *scores)
{
    int32_t count = c->arg_count - first;
    const zfi_node *const *x = c->args + first;
    int64_t heads = ZF_INT(c, attention, heads), stream = ZF_INT(c, attention, stream);
    int64_t kv_heads = ZF_INT(c, attention, kv_heads), window = ZF_INT(c, attention, window);
    double p = ZF_FLOAT(c, attention, p), scale = ZF_FLOAT(c, attention, scale);
    bool packed = count <= 2;
    char type[ZFI_TYPE_TEXT];
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
    if (window && !ZF_INT(c, attention, causal))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "a window of %lld keys needs causal attention",
                              (long long)window);
    if (!isfinite(scale))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "scale = %g must be finite", scale);
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
    return ZF_OK;
}

static zf_status zfi_infer_attention(zfi_infer *c)
{
    zf_shape k, scores;
    c->dtype = c->args[0]->dtype;
    return zfi_infer_heads(c, 0, &c->shape, &k, &scores);
}

/* The shape of lse. */
static zf_shape zfi_attention_lse(const zf_shape *scores)
{
    return (zf_shape){3, {scores->dims[0], scores->dims[1], scores->dims[2]}};
}

enum { ZFI_QKV_SUMS }; /* the saved value of attention_grad */

static bool zfi_saved_attention(const zf_graph *g, const zfi_node *node, int64_t index,
                                zf_dtype *dtype, zf_shape *shape)
{
    (void)g;
    *dtype = zfi_wide(node->dtype);
    *shape =
        (zf_shape){3, {node->shape.dims[0], ZF_INT(node, attention, heads), node->shape.dims[1]}};
    return index == 0;
}

static zf_status zfi_infer_attention_grad(zfi_infer *c)
{
    zf_shape q, k, scores, lse;
    char type[ZFI_TYPE_TEXT];
    zf_status status = zfi_infer_heads(c, 3, &q, &k, &scores);
    if (status) return status;
    for (int32_t i = 0; i < 2; i++)
        if (c->args[i]->dtype != c->args[3]->dtype || !zfi_same_shape(&c->args[i]->shape, &q))
            return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d, %s, must be %s", (int)i,
                                  i ? "y" : "dy", zfi_type_text(type, c->args[3]->dtype, &q));
    lse = zfi_attention_lse(&scores);
    if (c->args[2]->dtype != zfi_wide(c->args[3]->dtype) ||
        !zfi_same_shape(&c->args[2]->shape, &lse))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand 2, the rows' log-sum-exp, must be %s",
                              zfi_type_text(type, zfi_wide(c->args[3]->dtype), &lse));
    c->dtype = c->args[3]->dtype;
    c->shape = c->args[3]->shape;
    if (c->arg_count > 5) {
        int64_t of_q = zf_shape_count(q), of_k = zf_shape_count(k);
        if (of_k > (INT64_MAX - of_q) / 2)
            return zfi_infer_fail(c, ZF_ERR_SHAPE, "the result would have 2^63 elements or more");
        c->shape = (zf_shape){1, {of_q + 2 * of_k}};
    }
    return ZF_OK;
}

/* The packed form alone has rows whose sums are gradients of biases. */
static bool zfi_saved_attention_grad(const zf_graph *g, const zfi_node *node, int64_t index,
                                     zf_dtype *dtype, zf_shape *shape)
{
    (void)g;
    *dtype = node->dtype;
    *shape = ZF_SHAPE(zfi_last(&node->shape));
    return index == ZFI_QKV_SUMS && node->arg_count <= 5;
}

static void zfi_grad_attention(zf_grad *c)
{
    zf_tensor x[7] = {c->dy, c->y}, dx;
    int64_t at = 0;
    if (c->count % 2 == 0 && c->need[c->count - 1]) {
        zfi_graph_fail(c->graph, ZF_ERR_ARGUMENT, "autograd",
                       "%%%d = attention gives its bias no gradient, and %%%d is trained: "
                       "matmul, add and softmax do",
                       (int)c->y.id, (int)c->x[c->count - 1].id);
        return;
    }
    x[2] = zfi_saved(c->y, 0);
    for (int32_t k = 0; k < c->count; k++) x[3 + k] = c->x[k];
    dx = zfi_build(ZF_OP_attention_grad, 3 + c->count, x, c->attributes);
    if (c->count <= 2) {
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

/* The operands of a launch from number `first` on. */
static zfi_attention zfi_attention_of(const zf_launch *l, int32_t first)
{
    int32_t count = l->arg_count - first;
    const zf_array *x = l->args + first;
    bool packed = count <= 2;
    zf_launch as_dropout = *l;
    zfi_attention o = {.q = x, .k = packed ? x : x + 1, .v = packed ? x : x + 2};
    zf_shape q, k;
    o.heads = ZF_INT(l, attention, heads), o.kv_heads = ZF_INT(l, attention, kv_heads);
    if (!o.kv_heads) o.kv_heads = o.heads;
    o.group = o.heads / o.kv_heads;
    zfi_attention_shapes(&x->shape, packed ? NULL : &x[1].shape, o.heads, o.kv_heads, &q, &k);
    o.batch = q.dims[0], o.m = q.dims[1], o.n = o.kept = k.dims[1];
    o.d = q.dims[2] / o.heads;
    o.row = x->shape.dims[2], o.kv_row = packed ? o.row : k.dims[2];
    if (packed) o.k_at = q.dims[2], o.v_at = q.dims[2] + k.dims[2];
    o.scores = (zf_shape){4, {o.batch, o.heads, o.m, o.n}};
    if (count % 2 == 0) {
        o.bias = x + count - 1;
        zfi_broadcast_strides(&o.bias->shape, &o.scores, o.bias_step);
    }
    o.scale = ZF_FLOAT(l, attention, scale);
    o.causal = ZF_INT(l, attention, causal) != 0;
    o.window = ZF_INT(l, attention, window) ? zfi_min(ZF_INT(l, attention, window), o.n) : o.n;
    o.keep = 1;
    if (l->run && !l->run->evaluate && ZF_FLOAT(l, attention, p) > 0) {
        as_dropout.out.shape = o.scores;
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

/* Of causal attention: the place among the keys of example b's first query. */
static int64_t zfi_attention_past(const zfi_attention *a, int64_t b)
{
    return a->past ? zfi_get_integer(a->past, b) : a->n - a->m;
}

/* Query `m` of example b sees keys zfi_attention_first to zfi_attention_seen - 1. */
static int64_t zfi_attention_seen(const zfi_attention *a, int64_t b, int64_t m)
{
    if (m >= zfi_attention_queries(a, b)) return 0;
    return a->causal ? zfi_max(0, zfi_min(a->n, m + 1 + zfi_attention_past(a, b))) : a->n;
}

static int64_t zfi_attention_first(const zfi_attention *a, int64_t b, int64_t m)
{
    return zfi_max(0, zfi_attention_seen(a, b, m) - a->window);
}

/* The element of k or v (`at`) of key n that head `head` of q reads; `head` counts over the batch. */
static int64_t zfi_attention_kv(const zfi_attention *a, int64_t at, int64_t head, int64_t n)
{
    if (a->kept < a->n) n %= a->kept;
    return at + (head / a->heads * a->kept + n) * a->kv_row + head % a->heads / a->group * a->d;
}

/* ------------------------------------------------------------------------------ reference */

/* The score of a query and a key. `head` counts over the whole batch: b * heads + h. */
static double zfi_attention_score(const zfi_attention *a, int64_t head, int64_t m, int64_t n)
{
    int64_t b = head / a->heads, h = head % a->heads;
    int64_t q = a->q_at + (b * a->m + m) * a->row + h * a->d;
    int64_t k = zfi_attention_kv(a, a->k_at, head, n);
    double sum = 0;
    for (int64_t i = 0; i < a->d; i++) sum += zfi_get(a->q, q + i) * zfi_get(a->k, k + i);
    sum *= a->scale;
    if (a->bias)
        sum += zfi_get(a->bias, b * a->bias_step[0] + h * a->bias_step[1] + m * a->bias_step[2] +
                                    n * a->bias_step[3]);
    return sum;
}

/* The factor of dropout for one probability: 0 or 1 / (1 - p). */
static double zfi_attention_kept(const zfi_attention *a, int64_t head, int64_t m, int64_t n)
{
    return a->drops ? zfi_drop_value(&a->drop, (head * a->m + m) * a->n + n, 1) : 1;
}

typedef struct zfi_attention_run {
    zfi_attention a;
    const zf_launch *launch;
} zfi_attention_run;

/* One row of y. Scratch: `kept` doubles, from the first key that is seen on. */
static void zfi_attention_reference(void *context, int64_t row, int worker)
{
    const zfi_attention_run *run = context;
    const zfi_attention *a = &run->a;
    const zf_array *out = &run->launch->out, *lse = zfi_saved_out(run->launch, 0);
    double *p = (double *)run->launch->scratch + worker * a->kept, most = -INFINITY, sum = 0;
    int64_t head = row / a->m, m = row % a->m, b = head / a->heads, h = head % a->heads;
    int64_t seen = zfi_attention_seen(a, b, m), first = zfi_attention_first(a, b, m);
    for (int64_t n = first; n < seen; n++) {
        p[n - first] = zfi_attention_score(a, head, m, n);
        if (p[n - first] > most) most = p[n - first];
    }
    for (int64_t n = first; n < seen; n++) {
        p[n - first] = exp(p[n - first] - (most == -INFINITY ? 0 : most));
        sum += p[n - first];
        p[n - first] *= zfi_attention_kept(a, head, m, n);
    }
    if (lse) zfi_set(lse, row, most + log(sum));
    for (int64_t i = 0; i < a->d; i++) { /* y[b,m,h,i] */
        double y = 0;
        for (int64_t n = first; n < seen; n++)
            y += p[n - first] * zfi_get(a->v, zfi_attention_kv(a, a->v_at, head, n) + i);
        zfi_set(out, ((b * a->m + m) * a->heads + h) * a->d + i, sum == 0 ? 0 : y / sum);
    }
}

/* The gradients in the result. Head h of token t of example b begins at element at + (b * tokens +
 * t) * row + h * d, of k and v with kv_row. */
typedef struct zfi_attention_out {
    int64_t row, kv_row, q_at, k_at, v_at;
} zfi_attention_out;

static zfi_attention_out zfi_attention_out_of(const zfi_attention *a)
{
    int64_t q = a->batch * a->m * a->row, k = a->batch * a->n * a->kv_row;
    if (a->q == a->k) return (zfi_attention_out){a->row, a->row, a->q_at, a->k_at, a->v_at};
    return (zfi_attention_out){a->row, a->kv_row, 0, q, q + k};
}

/* dQ of one head, and what it adds to dK and dV. Scratch: p and ds, n of each. */
static void zfi_attention_grad_head(const zfi_attention_run *run, int64_t head, double *p,
                                    double *dk, double *dv)
{
    const zfi_attention *a = &run->a;
    const zf_array *dy = &run->launch->args[0], *y = &run->launch->args[1];
    zfi_attention_out to = zfi_attention_out_of(a);
    int64_t d = a->d, b = head / a->heads, h = head % a->heads;
    int64_t k_from = zfi_attention_kv(a, a->k_at, head, 0);
    int64_t v_from = zfi_attention_kv(a, a->v_at, head, 0);
    double *ds = p + a->n;
    for (int64_t m = 0; m < a->m; m++) {
        int64_t seen = zfi_attention_seen(a, b, m), row = ((b * a->m + m) * a->heads + h) * d;
        int64_t q = a->q_at + (b * a->m + m) * a->row + h * d, first = zfi_attention_first(a, b, m);
        double lse = zfi_get(&run->launch->args[2], head * a->m + m), delta = 0;
        for (int64_t i = 0; i < d; i++) delta += zfi_get(dy, row + i) * zfi_get(y, row + i);
        for (int64_t n = first; n < seen; n++) {
            double kept = zfi_attention_kept(a, head, m, n), dp = 0;
            p[n] = lse == -INFINITY ? 0 : exp(zfi_attention_score(a, head, m, n) - lse);
            for (int64_t i = 0; i < d; i++)
                dp += zfi_get(dy, row + i) * zfi_get(a->v, v_from + n * a->kv_row + i);
            ds[n] = p[n] * (dp * kept - delta) * a->scale;
            p[n] *= kept;
        }
        for (int64_t i = 0; i < d; i++) {
            double dq = 0;
            for (int64_t n = first; n < seen; n++) {
                dq += ds[n] * zfi_get(a->k, k_from + n * a->kv_row + i);
                dk[n * d + i] += ds[n] * zfi_get(a->q, q + i);
                dv[n * d + i] += p[n] * zfi_get(dy, row + i);
            }
            zfi_set(&run->launch->out, to.q_at + (b * a->m + m) * to.row + h * d + i, dq);
        }
    }
}

/* The gradients of one head of k and v, and of its heads of q. Scratch: 2 n + 2 n d doubles. */
static void zfi_attention_grad_reference(void *context, int64_t kv_head, int worker)
{
    const zfi_attention_run *run = context;
    const zfi_attention *a = &run->a;
    zfi_attention_out to = zfi_attention_out_of(a);
    int64_t d = a->d, count = a->n * d, b = kv_head / a->kv_heads, h = kv_head % a->kv_heads;
    double *p = (double *)run->launch->scratch + worker * (2 * a->n + 2 * count);
    double *dk = p + 2 * a->n, *dv = dk + count;
    for (int64_t i = 0; i < count; i++) dk[i] = dv[i] = 0;
    for (int64_t k = 0; k < a->group; k++)
        zfi_attention_grad_head(run, kv_head * a->group + k, p, dk, dv);
    for (int64_t n = 0; n < a->n; n++)
        for (int64_t i = 0; i < d; i++) {
            int64_t at = (b * a->n + n) * to.kv_row + h * d + i;
            zfi_set(&run->launch->out, to.k_at + at, dk[n * d + i]);
            zfi_set(&run->launch->out, to.v_at + at, dv[n * d + i]);
        }
}

/* ---------------------------------------------------------------------------- block kernels */

#if defined(__GNUC__)
#define ZFI_PREFETCH_NEAR(p) __builtin_prefetch((p), 0, 2) /* into the second-level cache */
#else
#define ZFI_PREFETCH_NEAR(p) (void)0
#endif

enum {
    ZFI_SCORE_LANES = 32, /* rows of scores are a multiple of this: whole vectors */
    ZFI_SCORE_ROWS = 8    /* rows computed together */
};

/* e^x for x <= 1; 0 below e^-87, which is too small to change the sum of a row. */
ZFI_BODY float zfi_exp_falling(zfi_isa isa, float x)
{
    int32_t n;
    float r = zfi_exp_reduce(isa, zfi_pick(isa, x < -87.0f, -87.0f, x), &n);
    float y = (1.0f + zfi_expm1_small(isa, r)) * zfi_exp2_of(n);
    return zfi_pick(isa, x < -87.0f, 0.0f, y);
}

ZFI_BODY float zfi_fold_scores_max(zfi_isa isa, float lane[ZFI_SCORE_LANES])
{
    for (int l = 0; l < 16; l++)
        lane[l] = zfi_pick(isa, lane[l] < lane[l + 16], lane[l + 16], lane[l]);
    for (int l = 0; l < 8; l++)
        lane[l] = zfi_pick(isa, lane[l] < lane[l + 8], lane[l + 8], lane[l]);
    for (int l = 0; l < 4; l++)
        lane[l] = zfi_pick(isa, lane[l] < lane[l + 4], lane[l + 4], lane[l]);
    for (int l = 0; l < 2; l++)
        lane[l] = zfi_pick(isa, lane[l] < lane[l + 2], lane[l + 2], lane[l]);
    return zfi_pick(isa, lane[0] < lane[1], lane[1], lane[0]);
}

/* At most ZFI_SCORE_ROWS rows of a block of scores, and their values of the softmax. */
typedef struct zfi_score_rows {
    float *s, *ds; /* n columns of each row; rows begin `line` elements apart */
    int64_t rows, n, line;
    const float *bias;    /* added to the scaled scores */
    int64_t bias_row;     /* elements from one row to the next */
    const uint16_t *draw; /* an element is kept where its draw is below the threshold */
    int64_t draw_row;
    uint32_t threshold;
    float scale, keep;
    float *most, *sum, *fix;  /* forward: one number for each row */
    const float *lse, *delta; /* backward: one number for each row */
} zfi_score_rows;

/* Turns the products of a row into scores. Returns the maximum of these and `most`. */
ZFI_BODY float zfi_score_row_body(zfi_isa isa, float *restrict s, int64_t n, float scale,
                                  const float *restrict bias, float most)
{
    float lane[ZFI_SCORE_LANES];
    for (int l = 0; l < ZFI_SCORE_LANES; l++) lane[l] = most;
    for (int64_t i = 0; i < n; i += ZFI_SCORE_LANES)
        for (int l = 0; l < ZFI_SCORE_LANES; l++) {
            float score = zfi_fma(isa, s[i + l], scale, bias[i + l]);
            s[i + l] = score;
            lane[l] = zfi_pick(isa, lane[l] < score, score, lane[l]);
        }
    return zfi_fold_scores_max(isa, lane);
}

ZFI_KERNEL_OF(float, zfi_score_row,
              (float *s, int64_t n, float scale, const float *bias, float most),
              (s, n, scale, bias, most))

/* Turns the scores of a row into e^(score - least), 0 where dropout drops. Returns the sum before
 * dropout. */
ZFI_BODY float zfi_exp_row_body(zfi_isa isa, float *restrict s, int64_t n, float least,
                                const uint16_t *restrict draw, uint32_t threshold)
{
    float lane[ZFI_SCORE_LANES] = {0};
    for (int64_t i = 0; i < n; i += ZFI_SCORE_LANES)
        for (int l = 0; l < ZFI_SCORE_LANES; l++) {
            float p = zfi_exp_falling(isa, s[i + l] - least);
            lane[l] += p;
            s[i + l] = zfi_pick(isa, draw[i + l] < threshold, p, 0.0f);
        }
    return zfi_fold_half_sum(lane);
}

ZFI_KERNEL_OF(float, zfi_exp_row,
              (float *s, int64_t n, float least, const uint16_t *draw, uint32_t threshold),
              (s, n, least, draw, threshold))

/* fix[r] = e^(before[r] - least[r]). Before the first key that a row sees, before[r] is -inf and
 * fix[r] is 0. */
ZFI_BODY void zfi_exp_fixes_body(zfi_isa isa, float *fix, const float *before, const float *least,
                                 int64_t rows)
{
    ZFI_VECTOR
    for (int64_t r = 0; r < rows; r++) fix[r] = zfi_exp_falling(isa, before[r] - least[r]);
}
ZFI_KERNEL(zfi_exp_fixes, (float *fix, const float *before, const float *least, int64_t rows),
           (fix, before, least, rows))

/* Turns products into probabilities times e^maximum, 0 where dropout drops. most and sum: the
 * maximum and the sum over the blocks of a row so far. fix: the factor for the results of earlier
 * blocks. A NaN need not be found by the maximum: it is in the sum. */
static void zfi_attend_rows(zfi_isa isa, const zfi_score_rows *x)
{
    float most[ZFI_SCORE_ROWS], least[ZFI_SCORE_ROWS];
    for (int64_t r = 0; r < x->rows; r++) {
        most[r] = zfi_score_row(isa, x->s + r * x->line, x->n, x->scale, x->bias + r * x->bias_row,
                                x->most[r]);
        least[r] = most[r] == -INFINITY ? 0 : most[r];
    }
    zfi_exp_fixes(isa, x->fix, x->most, least, x->rows);
    for (int64_t r = 0; r < x->rows; r++) {
        float sum = zfi_exp_row(isa, x->s + r * x->line, x->n, least[r], x->draw + r * x->draw_row,
                                x->threshold);
        x->sum[r] = zfi_fma(isa, x->sum[r], x->fix[r], sum);
        x->most[r] = most[r];
    }
}

/* Turns q k^T into probabilities after dropout, and dy v^T into dS times the scale. */
ZFI_BODY void zfi_attend_grad_rows_body(zfi_isa isa, const zfi_score_rows *x)
{
    float scale = x->scale, keep = x->keep;
    uint32_t threshold = x->threshold;
    int64_t n = x->n;
    for (int64_t r = 0; r < x->rows; r++) {
        float *s = x->s + r * x->line, *ds = x->ds + r * x->line;
        const float *bias = x->bias + r * x->bias_row;
        const uint16_t *draw = x->draw + r * x->draw_row;
        float lse = x->lse[r], delta = x->delta[r];
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) {
            float p = zfi_exp_falling(isa, zfi_fma(isa, s[i], scale, bias[i]) - lse);
            float kept = zfi_pick(isa, draw[i] < threshold, keep, 0.0f);
            ds[i] = p * scale * zfi_fma(isa, ds[i], kept, -delta);
            s[i] = p * kept;
        }
    }
}
ZFI_KERNEL(zfi_attend_grad_rows, (const zfi_score_rows *x), (x))

/* Rows that will be needed soon. A few of them are prefetched with each tile. */
typedef struct zfi_soon {
    struct {
        const char *at;
        size_t row;
        int64_t rows;
    } part[8];
    int parts, part_now;
    int64_t row_now;
    size_t bytes; /* bytes of a row */
} zfi_soon;

/* Adds rows of x to the list, from element `at` on, `row` elements apart. */
static void zfi_soon_add(zfi_soon *soon, const zf_array *x, int64_t at, int64_t row, int64_t rows)
{
    size_t size = zf_dtype_size(x->dtype);
    soon->part[soon->parts].at = (const char *)x->data + (size_t)at * size;
    soon->part[soon->parts].row = (size_t)row * size;
    soon->part[soon->parts++].rows = rows;
}

enum { ZFI_SOON_ROWS = 8 };

static void zfi_soon_fetch(zfi_soon *soon)
{
    for (int k = 0; k < ZFI_SOON_ROWS && soon->part_now < soon->parts; k++) {
        const char *row =
            soon->part[soon->part_now].at + (size_t)soon->row_now * soon->part[soon->part_now].row;
        for (size_t i = 0; i < soon->bytes; i += 64) ZFI_PREFETCH_NEAR(row + i);
        if (++soon->row_now < soon->part[soon->part_now].rows) continue;
        soon->row_now = 0;
        soon->part_now++;
    }
}

/* The left operand of a product of blocks. Row i begins i * step words behind `at`. Within a tile,
 * `row` words lie between rows, `col` words between neighbours in k. */
typedef struct zfi_left {
    const void *at;
    int64_t step, row, col;
} zfi_left;

/* The right operand: word p of k, of the columns of a tile, begins p * row words behind their
 * panel. */
typedef struct zfi_right {
    const float *at;
    int64_t row, panel;
} zfi_right;

/* One product of blocks, k in elements. With causal masking, row i of the queries sees `seen` + i
 * keys of the block. Elements of keys that it does not see are not computed where the result is
 * scores, and not added where k runs over keys. */
typedef struct zfi_part_product {
    enum { ZFI_SCORES, ZFI_OVER_KEYS, ZFI_OVER_QUERIES } form;
    int64_t m, n, k, rows; /* rows of a tile */
    zfi_left a;
    zfi_right b;
    float *c;
    int64_t c_row;
    bool add;
    int64_t seen;
} zfi_part_product;

static void zfi_multiply_part(const zfi_tile *tile, const zfi_part_product *x, zfi_soon *soon)
{
    const int64_t columns = 2 * tile->lanes, per = tile->per_word, unit = tile->k_unit;
    const int64_t words = zfi_tile_words(tile, x->k);
    const int64_t step =
        words > ZFI_K_BLOCK ? zfi_div_up(words, zfi_div_up(words, ZFI_K_BLOCK)) : words;
    const int64_t keys = x->form == ZFI_SCORES ? x->n : x->form == ZFI_OVER_KEYS ? x->k : x->m;
    for (int64_t j = 0; j < x->n; j += columns) {
        int vectors = x->n - j > tile->lanes ? 2 : 1;
        const float *b = x->b.at + j / columns * x->b.panel;
        if (tile->column && x->seen >= keys) { /* every row sees all of them */
            tile->column(x->m, x->rows, vectors > 1, words, x->a.at, x->a.row, b, x->c + j,
                         x->c_row, x->add);
            for (int64_t i = 0; i < x->m; i += x->rows) zfi_soon_fetch(soon);
            continue;
        }
        for (int64_t i = 0; i < x->m; i += x->rows) {
            int64_t rows = zfi_min(x->rows, x->m - i), most = x->seen + i + rows - 1;
            int64_t from = 0, k = words;
            const float *a = (const float *)x->a.at + i * x->a.step; /* words of any type */
            float *c = x->c + i * x->c_row + j;
            if (x->form == ZFI_SCORES && j >= most) continue;
            if (x->form == ZFI_OVER_KEYS && most < x->k) k = zfi_tile_words(tile, zfi_max(0, most));
            if (x->form == ZFI_OVER_QUERIES)
                from = zfi_max(0, zfi_min(x->k, i + 1 - x->seen)) / (per * unit) * unit;
            if (tile->column)
                tile->column(rows, rows, vectors > 1, k - from, a + from, x->a.row,
                             b + from * x->b.row, c, x->c_row, x->add);
            for (int64_t p = from; !tile->column && (p < k || p == from); p += step)
                tile->micro[rows - 1][vectors - 1](zfi_min(step, k - p), a + p * x->a.col, x->a.row,
                                                   x->a.col, b + p * x->b.row, x->b.row, c,
                                                   x->c_row, x->add || p > from);
            zfi_soon_fetch(soon);
        }
    }
}

/* y[r,0..n) = by[r * step] x[r,0..n), with the given distances between rows; y may be x. Prefetches
 * the rows ahead. */
ZFI_BODY void zfi_scale_rows_body(zfi_isa isa, float *y, int64_t y_row, const float *x,
                                  int64_t x_row, int64_t rows, int64_t n, const float *by,
                                  int64_t step)
{
    (void)isa;
    for (int64_t r = 0; r < rows; r++, y += y_row, x += x_row) {
        float factor = by[r * step];
        for (int64_t i = 0; i < n; i += 16) {
            ZFI_PREFETCH(x + 8 * x_row + i);
            ZFI_PREFETCH_WRITE(y + 8 * y_row + i);
        }
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
    }
}
ZFI_KERNEL(zfi_scale_rows,
           (float *y, int64_t y_row, const float *x, int64_t x_row, int64_t rows, int64_t n,
            const float *by, int64_t step),
           (y, y_row, x, x_row, rows, n, by, step))

/* The address of element `at` of an array. */
static void *zfi_array_at(const zf_array *x, int64_t at)
{
    return (char *)x->data + at * (int64_t)zf_dtype_size(x->dtype);
}

enum {
    ZFI_ROWS_TO_FETCH = 8
}; /* ahead: of a head they are too far apart for the processor to do it */

/* y[0..d) = a row of x from element `at` on; y is filled with 0 up to `width`. */
static void zfi_load_row(zfi_isa isa, float *y, int64_t width, const zf_array *x, int64_t at,
                         int64_t d)
{
    zfi_widen(isa, y, x->dtype, zfi_array_at(x, at), d);
    if (d < width) memset(y + d, 0, (size_t)(width - d) * sizeof *y);
}

/* y[0..rows)[0..d) = rows of x from element `at` on, `row` apart. Rows of y are `width` apart, and
 * filled with 0 behind d. */
static void zfi_load_rows(zfi_isa isa, float *y, int64_t width, const zf_array *x, int64_t at,
                          int64_t row, int64_t rows, int64_t d)
{
    const int64_t line = 64 / (int64_t)zf_dtype_size(x->dtype), ahead = ZFI_ROWS_TO_FETCH * row;
    for (int64_t r = 0; r < rows; r++, y += width, at += row) {
        for (int64_t i = 0; i < d; i += line)
            ZFI_PREFETCH(zfi_element(x->data, x->dtype, at + ahead + i));
        zfi_load_row(isa, y, width, x, at, d);
    }
}

/* The inverse of zfi_load_rows, without the filling. */
static void zfi_store_rows(zfi_isa isa, const zf_array *y, int64_t at, int64_t row, const float *x,
                           int64_t width, int64_t rows, int64_t d)
{
    for (int64_t r = 0; r < rows; r++, x += width, at += row)
        zfi_narrow(isa, zfi_array_at(y, at), y->dtype, x, d);
}

/* ------------------------------------------------------------------------------- fast kernels */

enum {
    ZFI_SCORE_BLOCK = 128,            /* elements of a block of q, k or v, about */
    ZFI_HEAD_BLOCK = 128 * 128,       /* from so many queries on, keys are packed */
    ZFI_RING_BLOCK = 64,              /* keys of a block where they are in a ring, at most */
    ZFI_QUERIES_APART = 32,           /* elements of a head's dQ in scratch, at most */
    ZFI_GRADIENT_IN_SCRATCH = 1 << 22 /* maximum number of elements of a head's dQ that stay in
                                       * scratch */
};

/* Parts of a worker's scratch. Tokens are stored in three forms: as the left operand of a product;
 * as the right operand with k along the tokens; and transposed (T) as the right operand with the
 * tokens along the columns. */
enum {
    ZFI_AT_Q,
    ZFI_AT_Q_RIGHT,
    ZFI_AT_DY,
    ZFI_AT_DY_RIGHT,
    ZFI_AT_K_RIGHT, /* or v */
    ZFI_AT_KT,
    ZFI_AT_VT,
    ZFI_AT_S,
    ZFI_AT_DS,
    ZFI_AT_P_HALF, /* s and ds in 16 bits, and packed as the left operand of a sum over queries */
    ZFI_AT_DS_HALF,
    ZFI_AT_TURNED,
    ZFI_AT_Y, /* or dQ */
    ZFI_AT_DK,
    ZFI_AT_DV,
    ZFI_AT_MOST, /* or lse */
    ZFI_AT_SUM,  /* or D */
    ZFI_AT_FIX,
    ZFI_AT_DRAW, /* dropout's draws for ZFI_SCORE_ROWS rows of scores */
    ZFI_AT_BIAS, /* the bias of the same rows */
    ZFI_AT_ZERO, /* zeros: no bias, no dropout */
    ZFI_AT_ROWS, /* two rows of tokens */
    ZFI_AT_END
};

/* How a launch is split into blocks. The bits depend on tiles and key blocks, in the backward pass
 * on query blocks too. None of these depends on the number of threads. Sizes are in elements. */
typedef struct zfi_attention_cut {
    zfi_attention a;
    const zf_launch *launch;
    zfi_isa isa;
    const zfi_tile *tile;
    zf_dtype dtype;
    bool half;              /* tiles read bf16 */
    int64_t rows, key_rows; /* rows of a tile of queries, and of a tile of keys */
    int64_t queries, keys;  /* of a block */
    int64_t query_blocks, key_blocks;
    int64_t columns, words, width; /* columns of a tile; words of d; width of a row of f32 in
                                    * scratch */
    bool direct;                   /* d is whole vectors of f32: gradients are computed in place */
    bool apart;                    /* backward: dK and dV in one task, dQ in another */
    size_t part[ZFI_AT_END + 1];
} zfi_attention_cut;

/* The size of equal blocks of n, at most `most` before it is rounded up to a multiple of `unit`. */
static int64_t zfi_attention_block(int64_t n, int64_t most, int64_t unit)
{
    return zfi_round_up(zfi_div_up(n, zfi_div_up(n, most)), unit);
}

static void zfi_attention_parts(zfi_attention_cut *c, bool backward)
{
    size_t m = (size_t)c->a.m, keys = (size_t)c->keys, queries = (size_t)c->queries;
    size_t width = (size_t)c->width, s = queries * keys, size[ZFI_AT_END] = {0};
    size_t tall = (size_t)zfi_round_up(c->a.d, c->columns); /* rows of a right operand along
                                                             * tokens */
    size_t group = (size_t)c->a.group;
    size[ZFI_AT_Q] = queries * width;
    size[ZFI_AT_K_RIGHT] = keys * tall;
    size[ZFI_AT_KT] = (size_t)zfi_round_up(c->keys, c->columns) * (size_t)c->words;
    size[ZFI_AT_S] = s;
    size[ZFI_AT_P_HALF] = c->half ? s / 2 : 0;
    size[ZFI_AT_BIAS] = ZFI_SCORE_ROWS * keys;
    size[ZFI_AT_DRAW] = size[ZFI_AT_BIAS] / 2;
    size[ZFI_AT_ZERO] = keys;
    size[ZFI_AT_ROWS] = 2 * width;
    size[ZFI_AT_MOST] = size[ZFI_AT_SUM] = backward ? m * group : queries;
    if (backward) {
        size[ZFI_AT_DY] = size[ZFI_AT_Q];
        size[ZFI_AT_Q_RIGHT] = size[ZFI_AT_DY_RIGHT] =
            (size_t)(c->tile->per_word * zfi_tile_words(c->tile, c->queries)) * tall;
        size[ZFI_AT_VT] = size[ZFI_AT_KT];
        size[ZFI_AT_DS] = s;
        size[ZFI_AT_DS_HALF] = size[ZFI_AT_P_HALF];
        size[ZFI_AT_TURNED] =
            c->half ? (keys + ZFI_TILE_ROWS) * (size_t)zfi_tile_words(c->tile, c->queries) : 0;
        if (!c->direct) {
            size[ZFI_AT_Y] = (c->apart ? queries : m * group) * width;
            size[ZFI_AT_DK] = size[ZFI_AT_DV] = keys * width;
        }
    } else {
        size[ZFI_AT_Y] = queries * width;
        size[ZFI_AT_FIX] = queries;
    }
    for (int part = 0; part < ZFI_AT_END; part++)
        c->part[part + 1] = c->part[part] + (size[part] + 15) / 16 * 16;
}

static zfi_attention_cut zfi_attention_cut_of(const zf_launch *l, zfi_attention a, bool backward)
{
    zfi_attention_cut c = {.a = a, .launch = l};
    int64_t threads = zfi_pool_threads(zfi_cpu_of(l)->pool);
    int64_t heads = c.a.batch * (backward ? c.a.kv_heads : c.a.heads);
    int64_t m = c.a.m, n = c.a.kept, most, wanted;
    c.isa = zfi_cpu_of(l)->isa;
    c.dtype = c.a.q->dtype;
    c.tile = zfi_tile_of_product(c.isa, c.dtype);
    c.half = c.tile->per_word > 1;
    c.columns = 2 * c.tile->lanes;
    c.words = zfi_tile_words(c.tile, c.a.d);
    c.rows = zfi_div_up(m, zfi_div_up(m, c.tile->rows));
    most = zfi_max(32, zfi_min(ZFI_SCORE_BLOCK, ZFI_HEAD_BLOCK / c.a.d));
    c.keys = zfi_attention_block(n, most, ZFI_SCORE_LANES);
    if (n < c.a.n) c.keys = zfi_min(most, ZFI_RING_BLOCK) / 32 * 32; /* no block crosses the end */
    c.key_rows = zfi_div_up(c.keys, zfi_div_up(c.keys, c.tile->rows));
    c.queries = zfi_attention_block(m, most, c.rows);
    if (!backward && threads > 1) { /* a row has the same bits in every block of queries */
        wanted = zfi_min(zfi_div_up(4 * threads, heads), zfi_div_up(m, ZFI_QUERIES_APART));
        c.queries = zfi_min(c.queries, zfi_round_up(zfi_div_up(m, wanted), c.rows));
    }
    c.query_blocks = zfi_div_up(m, c.queries);
    c.key_blocks = zfi_div_up(n, c.keys);
    c.width = zfi_round_up(c.a.d, c.tile->lanes);
    c.direct = c.a.d == c.width && c.dtype == ZF_F32;
    /* Two separate tasks compute seven products, one task for all computes five. */
    c.apart = 5 * zfi_round_up(heads, threads) > 7 * heads + 4 * threads / c.key_blocks ||
              (!c.direct && m > ZFI_GRADIENT_IN_SCRATCH / (c.width * c.a.group));
    zfi_attention_parts(&c, backward);
    return c;
}

/* The block kernels take f32, bf16 and f16, and no empty tensors. */
static bool zfi_attention_fast(const zf_launch *l, const zfi_attention *a)
{
    return zfi_fast_or_half(l) && a->d > 0 && a->m > 0 && a->n > 0;
}

static size_t zfi_attention_scratch(const zf_launch *l, zfi_attention a, bool backward)
{
    size_t threads = (size_t)zfi_pool_threads(zfi_cpu_of(l)->pool), n = (size_t)a.kept;
    if (!a.batch) return 0;
    if (zfi_attention_fast(l, &a))
        return threads * zfi_attention_cut_of(l, a, backward).part[ZFI_AT_END] * sizeof(float);
    return threads * (backward ? 2 * n + 2 * n * (size_t)a.d : n) * sizeof(double);
}

static size_t zfi_scratch_attention(const zf_launch *l)
{
    return zfi_attention_scratch(l, zfi_attention_of(l, 0), false);
}

static size_t zfi_scratch_attention_grad(const zf_launch *l)
{
    return zfi_attention_scratch(l, zfi_attention_of(l, 3), true);
}

/* What a task knows: the blocks, its worker's scratch, and the rows to prefetch. */
typedef struct zfi_attention_worker {
    const zfi_attention_cut *c;
    float *scratch;
    zfi_soon soon;
} zfi_attention_worker;

static zfi_attention_worker zfi_attention_worker_of(const zfi_attention_cut *c, int worker)
{
    zfi_attention_worker w = {
        .c = c, .scratch = (float *)c->launch->scratch + (size_t)worker * c->part[ZFI_AT_END]};
    memset(w.scratch + c->part[ZFI_AT_ZERO], 0, (size_t)c->keys * sizeof(float));
    return w;
}

static float *zfi_part_of(const zfi_attention_worker *w, int part)
{
    return w->scratch + w->c->part[part];
}

/* The element of q or y at which token t of head `head` begins. */
static int64_t zfi_attention_at(const zfi_attention *a, int64_t head, int64_t tokens, int64_t t,
                                int64_t row)
{
    return (head / a->heads * tokens + t) * row + head % a->heads * a->d;
}

/* Tokens as the left operand: in place where their layout is good, else copied. */
static zfi_left zfi_left_of(const zfi_attention_worker *w, int part, const zf_array *x, int64_t at,
                            int64_t row, int64_t rows)
{
    const zfi_attention_cut *c = w->c;
    float *aside = zfi_part_of(w, part);
    /* rows that are 4 KiB apart share one set of the cache */
    bool apart = row % 1024 || rows <= 6 || c->tile->column;
    if (c->half && c->a.d % (2 * c->tile->k_unit) == 0 && row % 2 == 0 && apart)
        return (zfi_left){zfi_array_at(x, at), row / 2, row / 2, 1};
    if (c->half) {
        uint16_t *to = (uint16_t *)(void *)aside;
        for (int64_t r = 0; r < rows; r++, to += 2 * c->words) {
            memcpy(to, zfi_array_at(x, at + r * row), (size_t)c->a.d * sizeof *to);
            for (int64_t i = c->a.d; i < 2 * c->words; i++) to[i] = 0;
        }
        return (zfi_left){aside, c->words, c->words, 1};
    }
    if (x->dtype == ZF_F32 && apart) return (zfi_left){zfi_array_at(x, at), row, row, 1};
    zfi_load_rows(c->isa, aside, c->width, x, at, row, rows, c->a.d);
    return (zfi_left){aside, c->width, c->width, 1};
}

/* Tokens as the right operand with k along the tokens. */
static zfi_right zfi_right_of(const zfi_attention_worker *w, int part, const zf_array *x,
                              int64_t at, int64_t row, int64_t rows)
{
    const zfi_attention_cut *c = w->c;
    float *aside = zfi_part_of(w, part);
    if (c->half) {
        c->tile->pack(aside, c->columns, zfi_array_at(x, at), 1, row, c->a.d, rows);
        return (zfi_right){aside, c->columns, c->columns * zfi_tile_words(c->tile, rows)};
    }
    if (c->direct && zfi_short_rows(row, rows))
        return (zfi_right){zfi_array_at(x, at), row, c->columns};
    zfi_load_rows(c->isa, aside, c->width, x, at, row, rows, c->a.d);
    return (zfi_right){aside, c->width, c->columns};
}

/* Tokens transposed, as the right operand: scores are the queries times this. */
static zfi_right zfi_turned_of(const zfi_attention_worker *w, int part, const zf_array *x,
                               int64_t at, int64_t row, int64_t rows)
{
    const zfi_attention_cut *c = w->c;
    float *to = zfi_part_of(w, part);
    const void *from = zfi_array_at(x, at);
    if (c->half || x->dtype == ZF_F32) c->tile->pack(to, c->columns, from, row, 1, rows, c->a.d);
    else zfi_pack_widened(c->isa, x->dtype, to, c->columns, from, row, 1, rows, c->a.d);
    return (zfi_right){to, c->columns, c->columns * c->words};
}

/* A block of scores: queries m..m+rows-1 and keys n..n+keys-1 of a head of q. With causal masking,
 * row i sees the first `seen` + i of these keys, at most all; without the first `seen` + i - window
 * of them, if there is a window. */
typedef struct zfi_scores {
    int64_t head, m, rows, n, keys, seen, window;
} zfi_scores;

static zfi_scores zfi_scores_of(const zfi_attention_cut *c, int64_t head, int64_t m, int64_t n)
{
    const zfi_attention *a = &c->a;
    int64_t b = head / a->heads;
    return (zfi_scores){head,
                        m,
                        zfi_min(c->queries, zfi_attention_queries(a, b) - m),
                        n,
                        zfi_min(c->keys, a->n - n),
                        a->causal ? m + 1 + zfi_attention_past(a, b) - n : INT64_MAX / 4,
                        a->window < a->n ? a->window : INT64_MAX / 2};
}

/* Whether any row sees any key of the block: the last row has the last key, the first the first. */
static bool zfi_block_is_seen(const zfi_scores *b)
{
    return b->seen + b->rows > 1 && b->seen - b->window < b->keys;
}

/* The first key of a block that its row r sees. */
static int64_t zfi_row_first(const zfi_scores *b, int64_t r)
{
    return zfi_max(0, zfi_min(b->keys, b->seen + r - b->window));
}

/* The number of keys of a block up to the last that its row r sees. */
static int64_t zfi_row_sees(const zfi_scores *b, int64_t r)
{
    return zfi_max(0, zfi_min(b->keys, b->seen + r));
}

/* The bias of the rows from `first` on, x->n elements each; 0 where there is no key, or where the
 * row does not see it. */
static void zfi_bias_of(const zfi_attention_worker *w, const zfi_scores *b, int64_t first,
                        zfi_score_rows *x)
{
    const zfi_attention_cut *c = w->c;
    const int64_t *step = c->a.bias_step;
    int64_t rows = x->rows, at = b->head / c->a.heads * step[0] + b->head % c->a.heads * step[1] +
                                 (b->m + first) * step[2] + b->n * step[3];
    bool all = zfi_row_sees(b, first) == b->keys;
    float *to = zfi_part_of(w, ZFI_AT_BIAS);
    x->bias = zfi_part_of(w, ZFI_AT_ZERO);
    if (!c->a.bias) return;
    x->bias_row = step[2];
    x->bias = zfi_array_at(c->a.bias, at);
    if (all && step[3] && b->keys == x->n && c->dtype == ZF_F32) return;
    if (all && !step[2]) rows = 1;
    x->bias = to;
    x->bias_row = rows == 1 ? 0 : c->keys;
    for (int64_t r = 0; r < rows; r++, at += step[2], to += c->keys) {
        int64_t has = zfi_row_sees(b, first + r), there = step[3] ? has : zfi_min(has, 1);
        zfi_load_rows(c->isa, to, x->n, c->a.bias, at, 0, 1, there);
        for (int64_t i = 1; i < has && !step[3]; i++) to[i] = to[0];
    }
}

/* Dropout's draws for the same rows. */
static void zfi_draws_of(const zfi_attention_worker *w, const zfi_scores *b, int64_t first,
                         zfi_score_rows *x)
{
    const zfi_attention *a = &w->c->a;
    const zfi_drop *d = &a->drop;
    uint16_t *draw = (uint16_t *)(void *)zfi_part_of(w, ZFI_AT_DRAW);
    uint64_t at = d->element + (uint64_t)((b->head * a->m + b->m + first) * a->n + b->n);
    int64_t rows = x->rows, n = x->n;
    x->draw = (const uint16_t *)(const void *)zfi_part_of(w, ZFI_AT_ZERO);
    x->threshold = 1;
    if (!a->drops) return;
    x->draw = draw;
    x->draw_row = n;
    x->threshold = d->threshold;
    if (n == a->n)
        n *= rows, rows = 1; /* the rows are neighbours in the tensor: draw them as
                                         * one */
    for (int64_t r = 0; r < rows; r++, at += (uint64_t)a->n, draw += n)
        zfi_random_halves(w->c->isa, draw, at, n, d->stream, d->step, d->seed);
}

/* Rows of a block, converted to bf16 where tiles read bf16. */
static void zfi_halve_rows(const zfi_attention_worker *w, int part, int64_t first, int64_t rows,
                           const float *s)
{
    int64_t line = w->c->keys;
    if (w->c->half)
        zfi_narrow_bf16(w->c->isa, (uint16_t *)(void *)zfi_part_of(w, part) + first * line, s,
                        rows * line);
}

/* Sets elements from..end-1 of row i of the scores to `score`, and those of ds to 0. */
static void zfi_hide(const zfi_score_rows *x, int64_t i, int64_t from, int64_t end, float score)
{
    for (int64_t k = from; k < end; k++) x->s[i * x->line + k] = score;
    if (x->ds && from < end)
        memset(x->ds + i * x->line + from, 0, (size_t)(end - from) * sizeof *x->ds);
}

/* Turns a block of products into what the next product reads. ds is NULL in the forward pass. */
static void zfi_attend_block(const zfi_attention_worker *w, const zfi_scores *b, float *s,
                             float *ds, float *most, float *sum, float *fix)
{
    const zfi_attention_cut *c = w->c;
    for (int64_t r = 0; r < b->rows; r += ZFI_SCORE_ROWS) {
        int64_t rows = zfi_min(ZFI_SCORE_ROWS, b->rows - r);
        int64_t has = zfi_row_sees(b, r + rows - 1);
        zfi_score_rows x = {.s = s + r * c->keys,
                            .ds = ds ? ds + r * c->keys : NULL,
                            .rows = rows,
                            .n = zfi_round_up(has, ZFI_SCORE_LANES),
                            .line = c->keys,
                            .scale = (float)c->a.scale,
                            .keep = (float)c->a.keep,
                            .most = most + r,
                            .sum = sum + r,
                            .fix = ds ? NULL : fix + r,
                            .lse = most + r,
                            .delta = sum + r};
        zfi_bias_of(w, b, r, &x);
        zfi_draws_of(w, b, r, &x);
        for (int64_t i = 0; i < rows; i++) {
            zfi_hide(&x, i, 0, zfi_row_first(b, r + i), -INFINITY);
            zfi_hide(&x, i, zfi_row_sees(b, r + i), x.n, -INFINITY);
        }
        if (ds) zfi_attend_grad_rows(c->isa, &x);
        else zfi_attend_rows(c->isa, &x);
        for (int64_t i = 0; i < rows; i++) {
            zfi_hide(&x, i, 0, zfi_row_first(b, r + i), 0);
            zfi_hide(&x, i, zfi_row_sees(b, r + i), c->keys, 0);
        }
        zfi_halve_rows(w, ZFI_AT_P_HALF, r, rows, x.s);
        if (ds) zfi_halve_rows(w, ZFI_AT_DS_HALF, r, rows, x.ds);
    }
}

/* s = a k^T for a block; a: its queries, turned: its keys transposed. */
static void zfi_score_product(zfi_attention_worker *w, const zfi_scores *b, float *s, zfi_left a,
                              zfi_right turned)
{
    const zfi_attention_cut *c = w->c;
    zfi_multiply_part(c->tile,
                      &(zfi_part_product){.form = ZFI_SCORES,
                                          .m = b->rows,
                                          .n = b->keys,
                                          .k = c->a.d,
                                          .rows = c->rows,
                                          .a = a,
                                          .b = turned,
                                          .c = s,
                                          .c_row = c->keys,
                                          .seen = b->seen},
                      &w->soon);
}

/* y (+)= s x, summed over the keys of a block; x: the keys' rows; half: s in bf16. */
static void zfi_keys_product(zfi_attention_worker *w, const zfi_scores *b, float *y, int64_t y_row,
                             const float *s, int half, zfi_right x, bool add)
{
    const zfi_attention_cut *c = w->c;
    int64_t line = c->keys / c->tile->per_word;
    zfi_multiply_part(c->tile,
                      &(zfi_part_product){.form = ZFI_OVER_KEYS,
                                          .m = b->rows,
                                          .n = c->a.d,
                                          .k = b->keys,
                                          .rows = c->rows,
                                          .a = {c->half ? zfi_part_of(w, half) : s, line, line, 1},
                                          .b = x,
                                          .c = y,
                                          .c_row = y_row,
                                          .add = add,
                                          .seen = b->seen},
                      &w->soon);
}

/* y (+)= s^T x, summed over the queries of a block. */
static void zfi_queries_product(zfi_attention_worker *w, const zfi_scores *b, float *y,
                                int64_t y_row, const float *s, int half, zfi_right x, bool add)
{
    const zfi_attention_cut *c = w->c;
    zfi_left a = {s, 1, 1, c->keys};
    if (c->half) {
        float *turned = zfi_part_of(w, ZFI_AT_TURNED);
        const int64_t words = zfi_tile_words(c->tile, b->rows);
        zfi_pack *pack = c->tile->pack_a ? c->tile->pack_a : c->tile->pack;
        pack(turned, c->key_rows, zfi_part_of(w, half), 1, c->keys, b->keys, b->rows);
        a = (zfi_left){turned, words, 1, c->key_rows};
        if (c->tile->pack_a) a.row = words, a.col = 1;
    }
    zfi_multiply_part(c->tile,
                      &(zfi_part_product){.form = ZFI_OVER_QUERIES,
                                          .m = b->keys,
                                          .n = c->a.d,
                                          .k = b->rows,
                                          .rows = c->key_rows,
                                          .a = a,
                                          .b = x,
                                          .c = y,
                                          .c_row = y_row,
                                          .add = add,
                                          .seen = b->seen},
                      &w->soon);
}

/* Prefetches what follows block b of a task: the next keys, or the first of the next task. */
static void zfi_attention_soon(zfi_attention_worker *w, int64_t index, const zfi_scores *b,
                               int64_t end)
{
    const zfi_attention_cut *c = w->c;
    zfi_soon *soon = &w->soon;
    const zfi_attention *a = &c->a;
    int64_t head = b->head, n = b->n + c->keys, m, rows, keys;
    *soon = (zfi_soon){.bytes = (size_t)a->d * zf_dtype_size(a->q->dtype)};
    if (n >= end) {
        zfi_soon_add(soon, &c->launch->out, zfi_attention_at(a, head, a->m, b->m, a->heads * a->d),
                     a->heads * a->d, b->rows);
        head = (index + 1) / c->query_blocks, n = 0;
        if (head >= a->batch * a->heads) return;
        m = (index + 1) % c->query_blocks * c->queries;
        rows = zfi_min(c->queries, a->m - m);
        zfi_soon_add(soon, a->q, a->q_at + zfi_attention_at(a, head, a->m, m, a->row), a->row,
                     rows);
        if (head == b->head) return;
    } else if (b->m > 0) {
        return; /* already prefetched with earlier queries */
    }
    keys = zfi_min(c->keys, a->n - n);
    zfi_soon_add(soon, a->k, zfi_attention_kv(a, a->k_at, head, n), a->kv_row, keys);
    zfi_soon_add(soon, a->v, zfi_attention_kv(a, a->v_at, head, n), a->kv_row, keys);
}

/* A task: one block of queries of one head, over all keys. */
static void zfi_attention_task(void *context, int64_t index, int worker)
{
    const zfi_attention_cut *c = context;
    const zfi_attention *a = &c->a;
    const zf_array *lse = zfi_saved_out(c->launch, 0), *out = &c->launch->out;
    zfi_attention_worker w = zfi_attention_worker_of(c, worker);
    int64_t head = index / c->query_blocks, m = index % c->query_blocks * c->queries;
    int64_t b = head / a->heads, hidden = a->heads * a->d;
    int64_t rows = zfi_min(c->queries, zfi_attention_queries(a, b) - m);
    int64_t first = zfi_attention_first(a, b, m) / c->keys * c->keys;
    int64_t end = zfi_attention_seen(a, b, m + rows - 1);
    int64_t out_at = zfi_attention_at(a, head, a->m, m, hidden);
    float *s = zfi_part_of(&w, ZFI_AT_S), *y = zfi_part_of(&w, ZFI_AT_Y);
    float *most = zfi_part_of(&w, ZFI_AT_MOST), *sum = zfi_part_of(&w, ZFI_AT_SUM);
    float *fix = zfi_part_of(&w, ZFI_AT_FIX);
    zfi_left q = zfi_left_of(&w, ZFI_AT_Q, a->q,
                             a->q_at + zfi_attention_at(a, head, a->m, m, a->row), a->row, rows);
    if (rows <= 0) return;
    for (int64_t i = 0; i < rows; i++) most[i] = -INFINITY, sum[i] = 0;
    for (int64_t n = first; n < end; n += c->keys) {
        zfi_scores block = zfi_scores_of(c, head, m, n);
        zfi_right kt = zfi_turned_of(&w, ZFI_AT_KT, a->k, zfi_attention_kv(a, a->k_at, head, n),
                                     a->kv_row, block.keys);
        zfi_right v = zfi_right_of(&w, ZFI_AT_K_RIGHT, a->v, zfi_attention_kv(a, a->v_at, head, n),
                                   a->kv_row, block.keys);
        zfi_attention_soon(&w, index, &block, end);
        zfi_score_product(&w, &block, s, q, kt);
        zfi_attend_block(&w, &block, s, NULL, most, sum, fix);
        if (n > first) zfi_scale_rows(c->isa, y, c->width, y, c->width, rows, c->width, fix, 1);
        zfi_keys_product(&w, &block, y, c->width, s, ZFI_AT_P_HALF, v, n > first);
    }
    for (int64_t i = 0; i < rows; i++) {
        if (sum[i] == 0) memset(y + i * c->width, 0, (size_t)c->width * sizeof *y);
        fix[i] = sum[i] == 0 ? 0 : (float)a->keep / sum[i];
    }
    if (c->direct) {
        zfi_scale_rows(c->isa, zfi_array_at(out, out_at), hidden, y, c->width, rows, a->d, fix, 1);
    } else {
        zfi_scale_rows(c->isa, y, c->width, y, c->width, rows, c->width, fix, 1);
        zfi_store_rows(c->isa, out, out_at, hidden, y, c->width, rows, a->d);
    }
    if (!lse) return;
    zfi_vlog(c->isa, sum, sum, rows);
    for (int64_t i = 0; i < rows; i++) ((float *)lse->data)[head * a->m + m + i] = most[i] + sum[i];
}

static zf_status zfi_cpu_attention(const zf_launch *l)
{
    zfi_attention_run plain = {zfi_attention_of(l, 0), l};
    zfi_attention_cut cut;
    int64_t heads = plain.a.batch * plain.a.heads;
    if (!plain.a.batch || !plain.a.m) return ZF_OK;
    if (!zfi_attention_fast(l, &plain.a)) {
        zfi_pool_run(zfi_cpu_of(l)->pool, heads * plain.a.m, zfi_attention_reference, &plain);
        return ZF_OK;
    }
    cut = zfi_attention_cut_of(l, plain.a, false);
    zfi_pool_run(zfi_cpu_of(l)->pool, heads * cut.query_blocks, zfi_attention_task, &cut);
    return ZF_OK;
}

/* Blocks of scores in the backward pass: key blocks j0..j1-1 by query blocks i0..i1-1 of heads
 * h0..h1-1 of q, which read one head of k and v. */
typedef struct zfi_attention_range {
    int64_t h0, h1, i0, i1, j0, j1;
    bool dq, dkv; /* which gradients to compute */
} zfi_attention_range;

/* Rows of a gradient: the address where they are computed, and the distance between rows. */
typedef struct zfi_gradient_rows {
    float *at;
    int64_t row;
} zfi_gradient_rows;

static zfi_gradient_rows zfi_gradient_rows_of(const zfi_attention_worker *w, int part, int64_t at,
                                              int64_t row)
{
    if (!w->c->direct) return (zfi_gradient_rows){zfi_part_of(w, part), w->c->width};
    return (zfi_gradient_rows){zfi_array_at(&w->c->launch->out, at), row};
}

/* The element of the result at which the gradient of key n begins, in k or v of head `head` of q. */
static int64_t zfi_gradient_at(const zfi_attention *a, const zfi_attention_out *to, int64_t at,
                               int64_t head, int64_t n)
{
    return at + (head / a->heads * a->n + n) * to->kv_row + head % a->heads / a->group * a->d;
}

/* The number of tasks for each head of k and v. */
static int64_t zfi_attention_grad_parts(const zfi_attention_cut *c)
{
    return c->apart ? c->key_blocks + c->a.group * c->query_blocks : 1;
}

/* Stores the rows in the result, unless they were computed there. */
static void zfi_gradient_done(const zfi_attention_worker *w, const zfi_gradient_rows *x, int64_t at,
                              int64_t row, int64_t rows)
{
    if (!w->c->direct)
        zfi_store_rows(w->c->isa, &w->c->launch->out, at, row, x->at, x->row, rows, w->c->a.d);
}

/* lse, with 0 for an empty row, and D, for the queries from m on of a head. */
static void zfi_row_sums(const zfi_attention_worker *w, int64_t head, int64_t m, int64_t rows,
                         float *lse, float *delta)
{
    const zfi_attention_cut *c = w->c;
    const zf_array *x = c->launch->args; /* dy, y, lse */
    int64_t hidden = c->a.heads * c->a.d;
    float *dy = zfi_part_of(w, ZFI_AT_ROWS), *y = dy + c->width;
    for (int64_t r = 0; r < rows; r++) {
        float of_row = ((const float *)x[2].data)[head * c->a.m + m + r];
        int64_t at = zfi_attention_at(&c->a, head, c->a.m, m + r, hidden);
        lse[r] = of_row == -INFINITY ? 0 : of_row;
        if (c->dtype == ZF_F32) {
            delta[r] = zfi_vdot(c->isa, zfi_array_at(&x[0], at), zfi_array_at(&x[1], at), c->a.d);
            continue;
        }
        zfi_widen(c->isa, dy, c->dtype, zfi_array_at(&x[0], at), c->a.d);
        zfi_widen(c->isa, y, c->dtype, zfi_array_at(&x[1], at), c->a.d);
        delta[r] = zfi_vdot(c->isa, dy, y, c->a.d);
    }
}

/* Prefetches what follows block i of head h and block j of a range: the next queries, the next head,
 * or the next keys, and the rows of their gradients. */
static void zfi_attention_grad_soon(zfi_attention_worker *w, const zfi_attention_range *x,
                                    int64_t h, int64_t i, int64_t j)
{
    zfi_soon *soon = &w->soon;
    const zfi_attention_cut *c = w->c;
    const zfi_attention *a = &c->a;
    const zf_array *dy = &c->launch->args[0], *y = &c->launch->args[1], *out = &c->launch->out;
    zfi_attention_out to = zfi_attention_out_of(a);
    int64_t hidden = a->heads * a->d, m, n, rows, keys, before = j;
    *soon = (zfi_soon){.bytes = (size_t)a->d * zf_dtype_size(a->q->dtype)};
    n = j * c->keys, keys = zfi_min(c->keys, a->n - n);
    m = i * c->queries, rows = zfi_min(c->queries, a->m - m);
    if (x->dkv && i == x->i0 && h == x->h0) {
        zfi_soon_add(soon, out, zfi_gradient_at(a, &to, to.k_at, h, n), to.kv_row, keys);
        zfi_soon_add(soon, out, zfi_gradient_at(a, &to, to.v_at, h, n), to.kv_row, keys);
    }
    if (x->dq && j == x->j0)
        zfi_soon_add(soon, out, to.q_at + zfi_attention_at(a, h, a->m, m, to.row), to.row, rows);
    if (++i == x->i1) i = x->i0, h++;
    if (h == x->h1) h = x->h0, j++;
    if (j == x->j1) j = x->j0, h = x->h1;
    if (h >= a->batch * a->heads || (h == x->h1 && c->apart)) return;
    n = j * c->keys, keys = zfi_min(c->keys, a->n - n);
    m = i * c->queries, rows = zfi_min(c->queries, a->m - m);
    if (j != before || h == x->h1) {
        zfi_soon_add(soon, a->k, zfi_attention_kv(a, a->k_at, h, n), a->kv_row, keys);
        zfi_soon_add(soon, a->v, zfi_attention_kv(a, a->v_at, h, n), a->kv_row, keys);
    }
    if (h == x->h1) zfi_soon_add(soon, y, zfi_attention_at(a, h, a->m, m, hidden), hidden, rows);
    if (h < x->h1 && j > x->j0) return; /* already prefetched with earlier keys */
    zfi_soon_add(soon, a->q, a->q_at + zfi_attention_at(a, h, a->m, m, a->row), a->row, rows);
    zfi_soon_add(soon, dy, zfi_attention_at(a, h, a->m, m, hidden), hidden, rows);
}

/* The keys of one block, transposed and not, and the rows of their gradients. */
typedef struct zfi_attention_keys {
    int64_t n, keys;
    zfi_right kt, vt, k;
    zfi_gradient_rows dk, dv;
    bool add; /* dk and dv have the sums of earlier blocks of queries */
} zfi_attention_keys;

/* The gradients of one block of scores: of its keys, its queries, or both. lse, delta and dq are
 * those of its queries. */
static void zfi_attention_grad_block(zfi_attention_worker *w, const zfi_attention_range *x,
                                     const zfi_scores *b, zfi_attention_keys *of, float *lse,
                                     float *delta, zfi_gradient_rows dq)
{
    const zfi_attention_cut *c = w->c;
    const zfi_attention *a = &c->a;
    const zf_array *dy = &c->launch->args[0];
    int64_t hidden = a->heads * a->d, dy_at = zfi_attention_at(a, b->head, a->m, b->m, hidden);
    int64_t q_at = a->q_at + zfi_attention_at(a, b->head, a->m, b->m, a->row);
    float *s = zfi_part_of(w, ZFI_AT_S), *ds = zfi_part_of(w, ZFI_AT_DS);
    zfi_score_product(w, b, s, zfi_left_of(w, ZFI_AT_Q, a->q, q_at, a->row, b->rows), of->kt);
    zfi_score_product(w, b, ds, zfi_left_of(w, ZFI_AT_DY, dy, dy_at, hidden, b->rows), of->vt);
    zfi_attend_block(w, b, s, ds, lse, delta, NULL);
    if (x->dkv) {
        zfi_queries_product(w, b, of->dv.at, of->dv.row, s, ZFI_AT_P_HALF,
                            zfi_right_of(w, ZFI_AT_DY_RIGHT, dy, dy_at, hidden, b->rows), of->add);
        zfi_queries_product(w, b, of->dk.at, of->dk.row, ds, ZFI_AT_DS_HALF,
                            zfi_right_of(w, ZFI_AT_Q_RIGHT, a->q, q_at, a->row, b->rows), of->add);
        of->add = true;
    }
    if (x->dq) {
        int64_t first = zfi_attention_first(a, b->head / a->heads, b->m);
        bool add = b->n > first / c->keys * c->keys;
        zfi_keys_product(w, b, dq.at, dq.row, ds, ZFI_AT_DS_HALF, of->k, add);
    }
}

/* The rows of dQ of queries m.. of head h. A range has `count` queries, from `first` on. */
static zfi_gradient_rows zfi_dq_of(const zfi_attention_worker *w, const zfi_attention_range *x,
                                   int64_t h, int64_t m, int64_t first, int64_t count)
{
    const zfi_attention *a = &w->c->a;
    zfi_attention_out to = zfi_attention_out_of(a);
    zfi_gradient_rows dq = zfi_gradient_rows_of(
        w, ZFI_AT_Y, to.q_at + zfi_attention_at(a, h, a->m, m, to.row), to.row);
    if (!w->c->direct) dq.at += ((h - x->h0) * count + m - first) * dq.row;
    return dq;
}

static void zfi_attention_grad_range(zfi_attention_worker *w, const zfi_attention_range *x)
{
    const zfi_attention_cut *c = w->c;
    const zfi_attention *a = &c->a;
    zfi_attention_out to = zfi_attention_out_of(a);
    int64_t first = x->i0 * c->queries, last = zfi_min(x->i1 * c->queries, a->m);
    int64_t count = last - first;
    float *lse = zfi_part_of(w, ZFI_AT_MOST), *delta = zfi_part_of(w, ZFI_AT_SUM);
    for (int64_t h = x->h0; h < x->h1; h++) {
        zfi_gradient_rows dq = zfi_dq_of(w, x, h, first, first, count);
        int64_t at = (h - x->h0) * count;
        zfi_row_sums(w, h, first, count, lse + at, delta + at);
        for (int64_t m = first; m < last && x->dq && !zfi_attention_seen(a, h / a->heads, m); m++)
            memset(dq.at + (m - first) * dq.row, 0, (size_t)a->d * sizeof *dq.at); /* no keys */
    }
    for (int64_t j = x->j0; j < x->j1; j++) {
        zfi_attention_keys of = {.n = j * c->keys, .keys = zfi_min(c->keys, a->n - j * c->keys)};
        int64_t k_at = zfi_attention_kv(a, a->k_at, x->h0, of.n),
                v_at = zfi_attention_kv(a, a->v_at, x->h0, of.n),
                dk_at = zfi_gradient_at(a, &to, to.k_at, x->h0, of.n),
                dv_at = zfi_gradient_at(a, &to, to.v_at, x->h0, of.n);
        of.vt = zfi_turned_of(w, ZFI_AT_VT, a->v, v_at, a->kv_row, of.keys);
        of.kt = zfi_turned_of(w, ZFI_AT_KT, a->k, k_at, a->kv_row, of.keys);
        if (x->dq) of.k = zfi_right_of(w, ZFI_AT_K_RIGHT, a->k, k_at, a->kv_row, of.keys);
        of.dk = zfi_gradient_rows_of(w, ZFI_AT_DK, dk_at, to.kv_row);
        of.dv = zfi_gradient_rows_of(w, ZFI_AT_DV, dv_at, to.kv_row);
        for (int64_t h = x->h0; h < x->h1; h++)
            for (int64_t i = x->i0; i < x->i1; i++) {
                zfi_scores b = zfi_scores_of(c, h, i * c->queries, of.n);
                int64_t at = (h - x->h0) * count + b.m - first;
                if (!zfi_block_is_seen(&b)) continue;
                zfi_attention_grad_soon(w, x, h, i, j);
                zfi_attention_grad_block(w, x, &b, &of, lse + at, delta + at,
                                         zfi_dq_of(w, x, h, b.m, first, count));
            }
        if (!x->dkv) continue;
        for (int64_t n = 0; n < of.keys && !of.add; n++) { /* no query sees them */
            memset(of.dk.at + n * of.dk.row, 0, (size_t)a->d * sizeof *of.dk.at);
            memset(of.dv.at + n * of.dv.row, 0, (size_t)a->d * sizeof *of.dv.at);
        }
        zfi_gradient_done(w, &of.dk, dk_at, to.kv_row, of.keys);
        zfi_gradient_done(w, &of.dv, dv_at, to.kv_row, of.keys);
    }
    for (int64_t h = x->h0; h < x->h1 && x->dq; h++) {
        zfi_gradient_rows dq = zfi_dq_of(w, x, h, first, first, count);
        zfi_gradient_done(w, &dq, to.q_at + zfi_attention_at(a, h, a->m, first, to.row), to.row,
                          count);
    }
}

/* A task: all blocks of the heads of q that read one head of k and v. Apart, it is one block of keys
 * for all these heads, or one block of queries of one of them. */
static void zfi_attention_grad_task(void *context, int64_t index, int worker)
{
    const zfi_attention_cut *c = context;
    zfi_attention_worker w = zfi_attention_worker_of(c, worker);
    int64_t parts = zfi_attention_grad_parts(c), part = index % parts, group = c->a.group;
    int64_t h = index / parts * group, query = part - c->key_blocks;
    zfi_attention_range x = {h, h + group, 0, c->query_blocks, 0, c->key_blocks, true, true};
    if (c->apart && query < 0) {
        x.j0 = part, x.j1 = part + 1, x.dq = false;
    } else if (c->apart) {
        x.h0 = h + query / c->query_blocks, x.h1 = x.h0 + 1;
        x.i0 = query % c->query_blocks, x.i1 = x.i0 + 1, x.dkv = false;
    }
    zfi_attention_grad_range(&w, &x);
}

static zf_status zfi_cpu_attention_grad(const zf_launch *l)
{
    zfi_attention_run plain = {zfi_attention_of(l, 3), l};
    zfi_attention_cut cut;
    int64_t heads = plain.a.batch * plain.a.kv_heads;
    if (zfi_count(&l->out) && !zfi_attention_fast(l, &plain.a)) {
        zfi_pool_run(zfi_cpu_of(l)->pool, heads, zfi_attention_grad_reference, &plain);
    } else if (zfi_count(&l->out)) {
        cut = zfi_attention_cut_of(l, plain.a, true);
        zfi_pool_run(zfi_cpu_of(l)->pool, heads * zfi_attention_grad_parts(&cut),
                     zfi_attention_grad_task, &cut);
    }
    if (zfi_saved_out(l, ZFI_QKV_SUMS))
        return zfi_cpu_sum_rows(l, &l->out, zfi_saved_out(l, ZFI_QKV_SUMS));
    return ZF_OK;
}

/* Keys that a query sees at most, of n. */
static double zfi_attention_reach(const zf_launch *l, int64_t n)
{
    int64_t window = ZF_INT(l, attention, window);
    return (double)(window && window < n ? window : n);
}

/* Of two products over the keys; of the gradient four. */
static double zfi_flops_attention(const zf_launch *l)
{
    return 4.0 * (double)zfi_count(&l->out) *
           zfi_attention_reach(l, l->args[l->arg_count > 2 ? 1 : 0].shape.dims[1]);
}

static double zfi_flops_attention_grad(const zf_launch *l)
{
    return 8.0 * (double)zfi_count(&l->args[0]) *
           zfi_attention_reach(l, l->args[l->arg_count > 5 ? 4 : 3].shape.dims[1]);
}

/* Scores, which are FLOPs of the two products divided by those of one score. */
static double zfi_attention_scores(const zf_launch *l)
{
    const double heads = (double)ZF_INT(l, attention, heads);
    const bool back = l->op == ZF_OP_attention_grad;
    const int64_t width = zfi_last(back ? &l->args[0].shape : &l->out.shape);
    const double flops = back ? zfi_flops_attention_grad(l) / 2 : zfi_flops_attention(l);
    return width ? flops / 4 / ((double)width / heads) : 0;
}

/* Of each score an exponential, and a random number where dropout draws. */
static double zfi_functions_attention(const zf_launch *l)
{
    return zfi_attention_scores(l) * (ZF_FLOAT(l, attention, p) > 0 ? 2 : 1);
}

/* Scores are the result of q k^T, and an operand of the product with v. */
static double zfi_between_attention(const zf_launch *l) { return 2 * zfi_attention_scores(l); }

/* They are results of q k^T and dy v^T, and operands of three products: for dV, dQ and dK. */
static double zfi_between_attention_grad(const zf_launch *l) { return 5 * zfi_attention_scores(l); }

static int32_t zfi_row_sums_attention_grad(const zfi_node *node, int64_t of)
{
    return of < 0 && node->shape.rank == 3 ? ZFI_QKV_SUMS : -1;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(attention_grad, attention, p)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, stream)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, heads)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, scale)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, causal)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, kv_heads)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, window)
ZFI_SAME_ATTRIBUTE(attention, dropout, p)
ZFI_SAME_ATTRIBUTE(attention, dropout, stream)
ZFI_OPERATOR(attention, .infer = zfi_infer_attention, .grad = zfi_grad_attention,
             .cpu = zfi_cpu_attention, .scratch = zfi_scratch_attention,
             .saved = zfi_saved_attention, .flops = zfi_flops_attention,
             .functions = zfi_functions_attention, .between = zfi_between_attention,
             .traits = ZF_OP_RANDOM | ZF_OP_PRODUCT | ZF_OP_READS_HALF)
ZFI_OPERATOR(attention_grad, .infer = zfi_infer_attention_grad, .cpu = zfi_cpu_attention_grad,
             .saved = zfi_saved_attention_grad, .scratch = zfi_scratch_attention_grad,
             .flops = zfi_flops_attention_grad, .functions = zfi_functions_attention,
             .between = zfi_between_attention_grad, .row_sums = zfi_row_sums_attention_grad,
             .traits = ZF_OP_RANDOM | ZF_OP_READS_HALF)
