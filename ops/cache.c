/* Keys and values of earlier tokens: cache, cached_attention.
 *
 *     %5 = cache "layers.0.k_cache" : f32[2,512,64]
 *     %6 = cache "layers.0.v_cache" : f32[2,512,64]
 *     %7 = cached_attention %1, %2, %3, %4, %8, %5, %6 {heads=4 scale=0.25 kv_heads=1}
 *              : f32[2,16,256]
 *
 * A cache is memory of a program that steps write: 0 at first, and what the last step left
 * afterwards. It is in no store and no checkpoint. Only the node that writes a cache reads it.
 *
 * cached_attention takes q [B,M,H], k and v [B,M,K], past and count (i32 or i64 [B]), and two caches
 * [B,C,K]. Of example b, the first count[b] of M tokens are new, the others padding, and the caches
 * have past[b] tokens:
 *
 *     rows of a cache    0 ............ past[b] ......... past[b] + count[b] ...... C
 *                        | as they were | new rows of k, v | as they were            |
 *
 * Then query m < count[b] sees the rows 0 to past[b] + m, or the last `window` of these, and y is
 * softmax(scale q k^T) v of each head, as in attention (attention.c, also for kv_heads). y is 0 for
 * padding. past[b] + count[b] above C is an error of the step. No gradient. Saved: nothing.
 *
 * With `ring`, token t is in row t mod C, over the token t - C, which no query of the step sees:
 * C >= window - 1 + M. C is a multiple of 64, so that blocks of keys do not cross its end.
 *
 *     rows of a ring     past[b] mod C .... C - 1     0 ....
 *                        | new rows of k, v      |    | more of them | older tokens |
 *
 * Several tokens at once (a prompt) use attention's kernel of blocks. One token is bound by reading
 * the caches: a task has one head of k and v, and goes once along its rows, 64 at a time, for all
 * heads of q that read it. */

enum { ZFI_CACHED_PAST = 3, ZFI_CACHED_COUNT, ZFI_CACHED_K, ZFI_CACHED_V, ZFI_CACHED_OPERANDS };

static const int64_t zfi_cached_longest = (int64_t)1 << 40; /* tokens of a text in a ring */

/* A launch as attention of q to the caches. */
static zfi_attention zfi_cached_of(const zf_launch *l)
{
    const zf_shape *q = &l->args[0].shape, *k = &l->args[ZFI_CACHED_K].shape;
    int64_t window = ZF_INT(l, cached_attention, window);
    zfi_attention a = {.q = &l->args[0],
                       .k = &l->args[ZFI_CACHED_K],
                       .v = &l->args[ZFI_CACHED_V],
                       .past = &l->args[ZFI_CACHED_PAST],
                       .count = &l->args[ZFI_CACHED_COUNT],
                       .heads = ZF_INT(l, cached_attention, heads),
                       .kv_heads = ZF_INT(l, cached_attention, kv_heads),
                       .scale = ZF_FLOAT(l, cached_attention, scale),
                       .keep = 1,
                       .causal = true};
    if (!a.kv_heads) a.kv_heads = a.heads;
    a.group = a.heads / a.kv_heads;
    a.batch = q->dims[0], a.m = q->dims[1], a.kept = k->dims[1];
    a.n = ZF_INT(l, cached_attention, ring) ? zfi_cached_longest : a.kept;
    a.row = q->dims[2], a.kv_row = k->dims[2];
    a.d = a.row / a.heads;
    a.window = window ? zfi_min(window, a.n) : a.n;
    a.scores = (zf_shape){4, {a.batch, a.heads, a.m, a.kept}};
    return a;
}

static zf_status zfi_infer_cache(zfi_infer *c)
{
    zf_status status = zfi_infer_leaf(c);
    if (!status && !zfi_is_float(c->dtype))
        status = zfi_infer_fail(c, ZF_ERR_DTYPE, "a cache is f32, bf16, f16 or f64, not %s",
                                zf_dtype_name(c->dtype));
    return status;
}

/* Checks that operand k is an integer for each example. */
static zf_status zfi_infer_per_example(const zfi_infer *c, int32_t k, const char *what,
                                       int64_t batch)
{
    const zfi_node *x = c->args[k];
    if (zfi_is_integer(x->dtype) && x->shape.rank == 1 && x->shape.dims[0] == batch) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d, %s, must be i32 or i64 [%lld]", (int)k,
                          what, (long long)batch);
}

/* Checks that operand k is a cache of the shape of k but for the number of rows. */
static zf_status zfi_infer_is_cache(const zfi_infer *c, int32_t k)
{
    const zf_shape *rows = &c->args[1]->shape, *x = &c->args[k]->shape;
    if (c->args[k]->op != ZF_OP_cache)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand %d must be a cache", (int)k);
    if (x->rank == 3 && x->dims[0] == rows->dims[0] && x->dims[2] == rows->dims[2] &&
        x->dims[1] == c->args[ZFI_CACHED_K]->shape.dims[1])
        return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE,
                          "operand %d must be a cache [%lld, tokens, %lld], and both of one shape",
                          (int)k, (long long)rows->dims[0], (long long)rows->dims[2]);
}

/* Checks that what a query sees is in a ring when its step has written the new rows. */
static zf_status zfi_infer_ring(const zfi_infer *c)
{
    int64_t window = ZF_INT(c, cached_attention, window), tokens = c->args[1]->shape.dims[1];
    int64_t rows = c->args[ZFI_CACHED_K]->shape.dims[1];
    if (!window)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "a ring needs a window, which is what it keeps");
    if (rows % ZFI_RING_BLOCK || rows < tokens || window > rows - tokens + 1)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "a ring of %lld tokens must be a multiple of %d, and have room for "
                              "the window of %lld and for the %lld new tokens less 1",
                              (long long)rows, (int)ZFI_RING_BLOCK, (long long)window,
                              (long long)tokens);
    return ZF_OK;
}

static zf_status zfi_infer_cached_attention(zfi_infer *c)
{
    const zfi_node *const *x = c->args;
    const zf_shape *q = &x[0]->shape, *k = &x[1]->shape;
    int64_t heads = ZF_INT(c, cached_attention, heads);
    int64_t kv_heads = ZF_INT(c, cached_attention, kv_heads);
    int64_t window = ZF_INT(c, cached_attention, window);
    double scale = ZF_FLOAT(c, cached_attention, scale);
    zf_status status = ZF_OK;
    if (!zfi_is_float(x[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 0 must be float: f32, bf16, f16 or f64");
    for (int32_t i = 1; i < c->arg_count; i++)
        if (x[i]->dtype != x[0]->dtype && i != ZFI_CACHED_PAST && i != ZFI_CACHED_COUNT)
            return zfi_infer_fail(c, ZF_ERR_DTYPE, "operand %d must be %s, as operand 0", (int)i,
                                  zf_dtype_name(x[0]->dtype));
    if (heads < 1 || kv_heads < 0 || (kv_heads && heads % kv_heads))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "heads = %lld must be 1 or more, and a multiple of kv_heads = %lld",
                              (long long)heads, (long long)kv_heads);
    if (!kv_heads) kv_heads = heads;
    if (window < 0 || !isfinite(scale))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "window = %lld must not be negative, and scale = %g be finite",
                              (long long)window, scale);
    if (q->rank != 3 || q->dims[2] % heads)
        return zfi_infer_fail(
            c, ZF_ERR_SHAPE,
            "operand 0 must be [batch, tokens, hidden], hidden a multiple of the %lld heads",
            (long long)heads);
    if (k->rank != 3 || k->dims[0] != q->dims[0] || k->dims[1] != q->dims[1] ||
        k->dims[2] != q->dims[2] / heads * kv_heads || !zfi_same_shape(k, &x[2]->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "operands 1 and 2 must be [%lld, %lld, %lld]: %lld heads as wide as "
                              "those of operand 0, of its tokens",
                              (long long)q->dims[0], (long long)q->dims[1],
                              (long long)(q->dims[2] / heads * kv_heads), (long long)kv_heads);
    status = zfi_infer_per_example(c, ZFI_CACHED_PAST, "tokens in the caches", q->dims[0]);
    if (!status)
        status = zfi_infer_per_example(c, ZFI_CACHED_COUNT, "new tokens", q->dims[0]);
    for (int32_t i = ZFI_CACHED_K; i <= ZFI_CACHED_V && !status; i++)
        status = zfi_infer_is_cache(c, i);
    if (!status && x[ZFI_CACHED_K] == x[ZFI_CACHED_V])
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operands 5 and 6 must be two caches");
    if (!status && ZF_INT(c, cached_attention, ring)) status = zfi_infer_ring(c);
    return status ? status : zfi_infer_like(c, 0);
}

/* Checks that each example's new tokens have rows in the caches. */
static zf_status zfi_check_cached(const zf_launch *l, const zfi_attention *a)
{
    for (int64_t b = 0; b < a->batch; b++) {
        int64_t past = zfi_get_integer(a->past, b), count = zfi_get_integer(a->count, b);
        if (past < 0 || count < 0 || count > a->m)
            return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                            "cached_attention %%%d: example %lld has %lld tokens in the cache and "
                            "%lld new ones of %lld: they must not be negative, nor more than that",
                            (int)l->node, (long long)b, (long long)past, (long long)count,
                            (long long)a->m);
        if (past > a->n || count > a->n - past)
            return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                            "cached_attention %%%d: example %lld has %lld tokens in the cache and "
                            "%lld new ones, more than the %lld for which the cache has room",
                            (int)l->node, (long long)b, (long long)past, (long long)count,
                            (long long)a->n);
    }
    return ZF_OK;
}

/* Writes the new rows into the caches, and 0 into the result of padding. */
static void zfi_cached_store(const zf_launch *l, const zfi_attention *a)
{
    const size_t size = zf_dtype_size(l->out.dtype), row = (size_t)a->kv_row * size;
    for (int64_t b = 0; b < a->batch; b++) {
        int64_t past = zfi_get_integer(a->past, b), count = zfi_get_integer(a->count, b);
        for (int32_t k = 0; k < 2; k++) {
            char *to = (char *)l->args[ZFI_CACHED_K + k].data + (size_t)(b * a->kept) * row;
            const char *from = (const char *)l->args[1 + k].data + (size_t)(b * a->m) * row;
            for (int64_t i = 0, n; i < count; i += n) { /* up to the end of a ring, and from 0 on */
                int64_t at = (past + i) % a->kept;
                n = zfi_min(count - i, a->kept - at);
                memcpy(to + (size_t)at * row, from + (size_t)i * row, (size_t)n * row);
            }
        }
        memset((char *)l->out.data + (size_t)((b * a->m + count) * a->row) * size, 0,
               (size_t)((a->m - count) * a->row) * size);
    }
}

/* ----------------------------------------------------------------------- one token, fast */

/* s[r,0..ZFI_LANES) = scale q[r,:] k[n,:] of `keys` keys, -inf behind them. Rows of q and k begin
 * `width` and k_row elements apart. */
ZFI_BODY void zfi_cached_scores_body(zfi_isa isa, float *s, const float *q, int64_t rows,
                                     int64_t width, const float *k, int64_t k_row, int64_t keys,
                                     int64_t d, float scale)
{
    for (int64_t r = 0; r < rows; r++, s += ZFI_LANES, q += width)
        for (int64_t n = 0; n < ZFI_LANES; n++) {
            const float *key = k + n * k_row;
            float lane[ZFI_SCORE_LANES] = {0};
            int64_t i = 0;
            if (n >= keys) {
                s[n] = -INFINITY;
                continue;
            }
            for (; i + ZFI_SCORE_LANES <= d; i += ZFI_SCORE_LANES)
                for (int l = 0; l < ZFI_SCORE_LANES; l++)
                    lane[l] = zfi_fma(isa, q[i + l], key[i + l], lane[l]);
            for (int l = 0; i + l < d; l++) lane[l] = zfi_fma(isa, q[i + l], key[i + l], lane[l]);
            s[n] = scale * zfi_fold_scores_sum(lane);
        }
}
ZFI_KERNEL(zfi_cached_scores,
           (float *s, const float *q, int64_t rows, int64_t width, const float *k, int64_t k_row,
            int64_t keys, int64_t d, float scale),
           (s, q, rows, width, k, k_row, keys, d, scale))

/* Turns scores into e^(score - most), with the maximum `most` and the sum of each row so far, and
 * multiplies y by what the maximum has grown. */
ZFI_BODY void zfi_cached_softmax_body(zfi_isa isa, float *s, float *y, int64_t rows, int64_t width,
                                      float *most, float *sum)
{
    for (int64_t r = 0; r < rows; r++, s += ZFI_LANES, y += width) {
        float lane[ZFI_LANES], least, fix, before = most[r];
        memcpy(lane, s, sizeof lane);
        most[r] = zfi_fold_max(isa, lane);
        most[r] = zfi_pick(isa, most[r] < before, before, most[r]);
        least = most[r] == -INFINITY ? 0 : most[r];
        fix = zfi_exp_falling(isa, before - least);
        ZFI_VECTOR
        for (int l = 0; l < ZFI_LANES; l++) s[l] = zfi_exp_falling(isa, s[l] - least);
        sum[r] = zfi_fma(isa, sum[r], fix, zfi_fold_sum(s));
        ZFI_VECTOR
        for (int64_t i = 0; i < width; i++) y[i] *= fix;
    }
}
ZFI_KERNEL(zfi_cached_softmax,
           (float *s, float *y, int64_t rows, int64_t width, float *most, float *sum),
           (s, y, rows, width, most, sum))

/* y[r,:] += s[r,n] v[n,:], over `keys` keys in their order. */
ZFI_BODY void zfi_cached_values_body(zfi_isa isa, float *y, const float *s, int64_t rows,
                                     int64_t width, const float *v, int64_t v_row, int64_t keys,
                                     int64_t d)
{
    for (int64_t r = 0; r < rows; r++, s += ZFI_LANES, y += width) {
        int64_t i = 0;
        for (; i + ZFI_LANES <= d; i += ZFI_LANES) {
            float lane[ZFI_LANES];
            memcpy(lane, y + i, sizeof lane);
            for (int64_t n = 0; n < keys; n++)
                for (int l = 0; l < ZFI_LANES; l++)
                    lane[l] = zfi_fma(isa, s[n], v[n * v_row + i + l], lane[l]);
            memcpy(y + i, lane, sizeof lane);
        }
        for (int64_t n = 0; n < keys && i < d; n++) {
            ZFI_VECTOR
            for (int64_t j = i; j < d; j++) y[j] = zfi_fma(isa, s[n], v[n * v_row + j], y[j]);
        }
    }
}
ZFI_KERNEL(zfi_cached_values,
           (float *y, const float *s, int64_t rows, int64_t width, const float *v, int64_t v_row,
            int64_t keys, int64_t d),
           (y, s, rows, width, v, v_row, keys, d))

/* One token of each example, by the kernels above. */
static bool zfi_cached_is_one(const zf_launch *l, const zfi_attention *a)
{
    return a->m == 1 && zfi_attention_fast(l, a);
}

typedef struct zfi_cached_run {
    zfi_attention a;
    const zf_launch *launch;
    zfi_isa isa;
    int64_t width;                          /* of a row of q and y in scratch */
    size_t q, y, s, most, sum, rows, count; /* a worker's scratch, in elements */
} zfi_cached_run;

static zfi_cached_run zfi_cached_run_of(const zf_launch *l, const zfi_attention *a)
{
    zfi_cached_run r = {.a = *a, .launch = l, .isa = zfi_cpu_of(l)->isa};
    size_t group = (size_t)a->group, room = (size_t)zfi_round_up(a->group, 16);
    r.width = zfi_round_up(a->d, 16);
    r.y = group * (size_t)r.width;
    r.s = 2 * r.y;
    r.most = r.s + group * ZFI_LANES;
    r.sum = r.most + room;
    r.rows = r.sum + room;
    r.count = r.rows + (a->k->dtype == ZF_F32 ? 0 : ZFI_LANES * (size_t)r.width);
    return r;
}

/* Fetches one row of a head, which the processor does not do by itself: rows are too far apart. Into
 * the second-level cache: rows of a block may share few sets of the first. */
static void zfi_cached_fetch(const zfi_cached_run *r, const zf_array *x, int64_t at)
{
    const int64_t line = 64 / (int64_t)zf_dtype_size(x->dtype);
    for (int64_t i = 0; i < r->a.d; i += line)
        ZFI_PREFETCH_NEAR(zfi_element(x->data, x->dtype, at + i));
}

/* `keys` rows of x, the keys or values, from element `at` on, as f32: in place, or converted into
 * `aside`. Meanwhile fetches as many of `next` from element `next_at` on; NULL: nothing. */
static const float *zfi_cached_rows(const zfi_cached_run *r, float *aside, const zf_array *x,
                                    int64_t at, int64_t keys, int64_t *row, const zf_array *next,
                                    int64_t next_at)
{
    const bool wide = x->dtype == ZF_F32;
    *row = wide ? r->a.kv_row : r->width;
    for (int64_t n = 0; n < keys; n++) {
        if (next) zfi_cached_fetch(r, next, next_at + n * r->a.kv_row);
        if (!wide)
            zfi_load_row(r->isa, aside + n * r->width, r->width, x, at + n * r->a.kv_row, r->a.d);
    }
    return wide ? zfi_array_at(x, at) : aside;
}

/* A task: one head of k and v of one example, for all heads of q that read it. */
static void zfi_cached_task(void *context, int64_t index, int worker)
{
    const zfi_cached_run *r = context;
    const zfi_attention *a = &r->a;
    float *scratch = (float *)r->launch->scratch + (size_t)worker * r->count;
    float *q = scratch + r->q, *y = scratch + r->y, *s = scratch + r->s;
    float *most = scratch + r->most, *sum = scratch + r->sum, *aside = scratch + r->rows;
    int64_t b = index / a->kv_heads, head = index * a->group, row;
    int64_t seen = zfi_attention_seen(a, b, 0), first = zfi_attention_first(a, b, 0);
    int64_t at = b * a->row + head % a->heads * a->d;
    if (!seen) return;
    for (int64_t n = first; n < zfi_min(seen, first + ZFI_LANES); n++)
        zfi_cached_fetch(r, a->k, zfi_attention_kv(a, 0, head, n));
    zfi_load_rows(r->isa, q, r->width, a->q, at, a->d, a->group, a->d);
    memset(y, 0, (size_t)(a->group * r->width) * sizeof *y);
    for (int64_t g = 0; g < a->group; g++) most[g] = -INFINITY, sum[g] = 0;
    for (int64_t n = first, keys; n < seen; n += keys) {
        const int64_t from = zfi_attention_kv(a, 0, head, n);
        const float *x;
        bool last;
        keys = zfi_min(zfi_min(ZFI_LANES, seen - n), a->kept - n % a->kept);
        last = n + keys >= seen;
        x = zfi_cached_rows(r, aside, a->k, from, keys, &row, a->v, from);
        zfi_cached_scores(r->isa, s, q, a->group, r->width, x, row, keys, a->d, (float)a->scale);
        zfi_cached_softmax(r->isa, s, y, a->group, r->width, most, sum);
        x = zfi_cached_rows(r, aside, a->v, from, keys, &row, last ? NULL : a->k,
                            last ? 0 : zfi_attention_kv(a, 0, head, n + keys));
        zfi_cached_values(r->isa, y, s, a->group, r->width, x, row, keys, a->d);
    }
    for (int64_t g = 0; g < a->group; g++) most[g] = sum[g] == 0 ? 0 : 1 / sum[g];
    zfi_scale_rows(r->isa, y, r->width, y, r->width, a->group, r->width, most, 1);
    zfi_store_rows(r->isa, &r->launch->out, at, a->d, y, r->width, a->group, a->d);
}

/* --------------------------------------------------------------------------------- launch */

static size_t zfi_scratch_cached_attention(const zf_launch *l)
{
    zfi_attention a = zfi_cached_of(l);
    if (!a.batch || !zfi_cached_is_one(l, &a)) return zfi_attention_scratch(l, a, false);
    return (size_t)zfi_pool_threads(zfi_cpu_of(l)->pool) * zfi_cached_run_of(l, &a).count *
           sizeof(float);
}

static zf_status zfi_cpu_cached_attention(const zf_launch *l)
{
    zfi_attention a = zfi_cached_of(l);
    zfi_pool *pool = zfi_cpu_of(l)->pool;
    zf_status status = zfi_check_cached(l, &a);
    if (status || !zfi_count(&l->out)) return status;
    zfi_cached_store(l, &a);
    if (zfi_cached_is_one(l, &a)) {
        zfi_cached_run run = zfi_cached_run_of(l, &a);
        zfi_pool_run(pool, a.batch * a.kv_heads, zfi_cached_task, &run);
    } else if (zfi_attention_fast(l, &a)) {
        zfi_attention_cut cut = zfi_attention_cut_of(l, a, false);
        zfi_pool_run(pool, a.batch * a.heads * cut.query_blocks, zfi_attention_task, &cut);
    } else {
        zfi_attention_run run = {a, l};
        zfi_pool_run(pool, a.batch * a.heads * a.m, zfi_attention_reference, &run);
    }
    return ZF_OK;
}

static uint32_t zfi_writes_caches(const zfi_node *node)
{
    (void)node;
    return 1 << ZFI_CACHED_K | 1 << ZFI_CACHED_V;
}

/* Of two products over the keys. */
static double zfi_flops_cached_attention(const zf_launch *l)
{
    zfi_attention a = zfi_cached_of(l);
    return 4.0 * (double)zfi_count(&l->out) * (double)a.window;
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(cache, .infer = zfi_infer_cache, .grad = zfi_grad_none, .holds = ZF_CACHES,
             .place = ZFI_PLACE_OF_CACHES, .ranks = ZFI_RANKS_BATCH,
             .traits = ZF_OP_LEAF | ZF_OP_NAMED | ZF_OP_WRITABLE)
ZFI_OPERATOR(cached_attention, .infer = zfi_infer_cached_attention,
             .cpu = zfi_cpu_cached_attention, .scratch = zfi_scratch_cached_attention,
             .writes = zfi_writes_caches, .flops = zfi_flops_cached_attention,
             .traits = ZF_OP_MUTATES | ZF_OP_PRODUCT | ZF_OP_READS_HALF)
