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
 *     %9 = cache "held/w" {held=true} : f32[4096]            a bucket, gathered by zf_hold
 *     %9 = cache "held/w" {held=true bits=8 block=256} ...   the same, quantised on its way
 *
 * Such a cache is written by one program and read by others (passes/hold.c).
 *
 * cached_attention takes q [B,M,H], k and v [B,M,K], past and count (i32 or i64 [B]), and two
 * caches [B,C,K]. Of example b, the first count[b] of M tokens are new, the others padding, and the
 * caches have past[b] tokens:
 *
 *     rows of a cache    0 ............ past[b] ......... past[b] + count[b] ...... C
 *                        | as they were | new rows of k, v | as they were            |
 *
 * Then query m < count[b] sees the rows 0 to past[b] + m, or the last `window` of these, and y is
 * softmax(scale q k^T) v of each head, as in attention (attention.c, also for kv_heads and cap). y
 * is 0 for padding. past[b] + count[b] above C is an error of the step. No gradient. Saved:
 * nothing.
 *
 * With `ring`, token t is in row t mod C, over the token t - C, which no query of the step sees:
 * C >= window - 1 + M. C is a multiple of 64, so that blocks of keys do not cross its end.
 *
 *     rows of a ring     past[b] mod C .... C - 1     0 ....
 *                        | new rows of k, v      |    | more of them | older tokens |
 *
 * With `block`, an operand follows: the lists of a block mask over the C tokens of caches, of 1 or
 * `heads` layouts (block_mask.c). Query m then sees the keys alone that the row of token past[b] +
 * m lists. Not of a ring.
 *
 * With `biased`, the last operand is a bias [1, heads or 1, 1, C] of q's dtype, which is added to
 * the scaled scores of the keys in these rows. Not of a ring.
 *
 * Several tokens at once (a prompt) use attention's kernel of blocks. One token is bound by reading
 * the caches, from end to end: a task has a piece of the keys, and goes once along it, 64 keys at a
 * time, for all heads. With m, l and o the maximum, the sum and the values of a piece, and M the
 * maximum of all pieces, y is the sum of e^(m - M) o over the pieces, by that of e^(m - M) l. */

enum { ZFI_CACHED_PAST = 3, ZFI_CACHED_COUNT, ZFI_CACHED_K, ZFI_CACHED_V, ZFI_CACHED_LISTS };

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
                       .cap = ZF_FLOAT(l, cached_attention, cap),
                       .keep = 1,
                       .causal = true};
    if (!a.kv_heads) a.kv_heads = a.heads;
    a.group = a.heads / a.kv_heads;
    a.batch = q->dims[0], a.m = q->dims[1], a.kept = k->dims[1];
    a.n = a.all = ZF_INT(l, cached_attention, ring) ? zfi_cached_longest : a.kept;
    a.row = q->dims[2], a.kv_row = k->dims[2];
    a.d = a.row / a.heads;
    a.window = window ? zfi_min(window, a.n) : a.n;
    a.scores = (zf_shape){4, {a.batch, a.heads, a.m, a.kept}};
    a.block = ZF_INT(l, cached_attention, block);
    a.by_element = a.block != 0;
    if (ZF_INT(l, cached_attention, biased)) {
        a.bias = &l->args[l->arg_count - 1];
        zfi_broadcast_strides(&a.bias->shape, &a.scores, a.bias_step);
    }
    if (!a.block) return a;
    a.layouts = ZF_INT(l, cached_attention, layouts), a.blocks = zfi_div_up(a.n, a.block);
    a.lists = l->args[ZFI_CACHED_LISTS].data;
    return a;
}

/* How a held bucket is quantised on its way. */
static zf_status zfi_infer_held(const zfi_infer *c, int64_t bits)
{
    const int64_t block = ZF_INT(c, cache, block), scale = ZF_INT(c, cache, scale);
    if (!zfi_is_float(c->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "only floats are quantised on their way, not %s",
                              zf_dtype_name(c->dtype));
    return zfi_are_blocks(bits, block, scale)
               ? ZF_OK
               : zfi_infer_fail(c, ZF_ERR_ARGUMENT, "bits, block and scale are not those of zf_quantize");
}

static zf_status zfi_infer_cache(zfi_infer *c)
{
    zf_status status = zfi_infer_leaf(c);
    const int64_t bits = ZF_INT(c, cache, bits);
    if (!status && ZF_INT(c, cache, held)) return bits ? zfi_infer_held(c, bits) : ZF_OK;
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

/* Checks the lists of a block mask, if there is one. */
static zf_status zfi_infer_cached_mask(const zfi_infer *c, int64_t heads)
{
    const int64_t block = ZF_INT(c, cached_attention, block);
    const int32_t lists = c->arg_count - (ZF_INT(c, cached_attention, biased) != 0);
    if ((block != 0) != (lists > ZFI_CACHED_LISTS))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "block = %lld, and the lists of a block mask are %sthere",
                              (long long)block, block ? "not " : "");
    if (block && ZF_INT(c, cached_attention, ring))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "a ring has no block mask");
    return block ? zfi_infer_lists(c, block, ZF_INT(c, cached_attention, layouts), heads,
                                   c->args[ZFI_CACHED_K]->shape.dims[1])
                 : ZF_OK;
}

/* Checks the bias, if there is one. */
static zf_status zfi_infer_cached_bias(const zfi_infer *c, int64_t heads)
{
    const zfi_node *bias = c->args[c->arg_count - 1];
    const int64_t rows = c->args[ZFI_CACHED_K]->shape.dims[1];
    const zf_shape all = ZF_SHAPE(1, heads, 1, rows), one = ZF_SHAPE(1, 1, 1, rows);
    char type[ZFI_TYPE_TEXT];
    if (!ZF_INT(c, cached_attention, biased)) return ZF_OK;
    if (ZF_INT(c, cached_attention, ring))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "a ring has no bias");
    if (bias->dtype == c->args[0]->dtype &&
        (zfi_same_shape(&bias->shape, &all) || zfi_same_shape(&bias->shape, &one)))
        return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "the bias, the last operand, must be %s, or of one head",
                          zfi_type_text(type, c->args[0]->dtype, &all));
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
    for (int32_t i = 1; i <= ZFI_CACHED_V; i++)
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
    if ((status = zfi_infer_cap(c, ZF_FLOAT(c, cached_attention, cap)))) return status;
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
    if (!status) status = zfi_infer_cached_mask(c, heads);
    if (!status) status = zfi_infer_cached_bias(c, heads);
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

/* Element i of x, f32 or bf16. */
ZFI_BODY float zfi_cached_get(const void *x, bool half, int64_t i)
{
    return half ? zfi_bf16_to_f32(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

/* s[r,n] = scale q[r,:] k[n,:] of `keys` keys. Rows of s, q and k begin ZFI_LANES, width and k_row
 * elements apart. */
ZFI_BODY void zfi_cached_scores_of(zfi_isa isa, float *s, const float *q, int64_t rows,
                                   int64_t width, const void *k, bool half, int64_t k_row,
                                   int64_t keys, int64_t d, float scale)
{
    for (int64_t r = 0; r < rows; r++, s += ZFI_LANES, q += width)
        for (int64_t n = 0; n < keys; n++) {
            const int64_t at = n * k_row;
            float lane[ZFI_SCORE_LANES] = {0};
            int64_t i = 0;
            for (; i + ZFI_SCORE_LANES <= d; i += ZFI_SCORE_LANES)
                for (int l = 0; l < ZFI_SCORE_LANES; l++)
                    lane[l] = zfi_fma(isa, q[i + l], zfi_cached_get(k, half, at + i + l), lane[l]);
            for (int l = 0; d % ZFI_SCORE_LANES && i + l < d; l++)
                lane[l] = zfi_fma(isa, q[i + l], zfi_cached_get(k, half, at + i + l), lane[l]);
            s[n] = scale * zfi_fold_half_sum(lane);
        }
}

/* Heads of 64 and 128, the most common ones, have loops of known length. */
ZFI_BODY void zfi_cached_scores_body(zfi_isa isa, float *s, const float *q, int64_t rows,
                                     int64_t width, const void *k, bool half, int64_t k_row,
                                     int64_t keys, int64_t d, float scale)
{
    if (d == 64 && half)
        zfi_cached_scores_of(isa, s, q, rows, width, k, true, k_row, keys, 64, scale);
    else if (d == 64)
        zfi_cached_scores_of(isa, s, q, rows, width, k, false, k_row, keys, 64, scale);
    else if (d == 128 && half)
        zfi_cached_scores_of(isa, s, q, rows, width, k, true, k_row, keys, 128, scale);
    else if (d == 128)
        zfi_cached_scores_of(isa, s, q, rows, width, k, false, k_row, keys, 128, scale);
    else if (half)
        zfi_cached_scores_of(isa, s, q, rows, width, k, true, k_row, keys, d, scale);
    else
        zfi_cached_scores_of(isa, s, q, rows, width, k, false, k_row, keys, d, scale);
}
ZFI_KERNEL(zfi_cached_scores,
           (float *s, const float *q, int64_t rows, int64_t width, const void *k, bool half,
            int64_t k_row, int64_t keys, int64_t d, float scale),
           (s, q, rows, width, k, half, k_row, keys, d, scale))

/* Caps the scores of `keys` keys; cap 0: none. */
static void zfi_cached_cap(zfi_isa isa, float *s, int64_t rows, int64_t keys, float cap)
{
    for (int64_t r = 0; r < rows && cap > 0; r++, s += ZFI_LANES) {
        for (int64_t n = 0; n < keys; n++) s[n] /= cap;
        zfi_vtanh(isa, s, s, keys);
        for (int64_t n = 0; n < keys; n++) s[n] *= cap;
    }
}

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
ZFI_BODY void zfi_cached_values_of(zfi_isa isa, float *y, const float *s, int64_t rows,
                                   int64_t width, const void *v, bool half, int64_t v_row,
                                   int64_t keys, int64_t d)
{
    for (int64_t r = 0; r < rows; r++, s += ZFI_LANES, y += width) {
        int64_t i = 0;
        for (; i + ZFI_LANES <= d; i += ZFI_LANES) {
            float lane[ZFI_LANES];
            memcpy(lane, y + i, sizeof lane);
            for (int64_t n = 0; n < keys; n++)
                for (int l = 0; l < ZFI_LANES; l++)
                    lane[l] = zfi_fma(isa, s[n], zfi_cached_get(v, half, n * v_row + i + l), lane[l]);
            memcpy(y + i, lane, sizeof lane);
        }
        for (int64_t n = 0; n < keys && i < d; n++) {
            ZFI_VECTOR
            for (int64_t j = i; j < d; j++)
                y[j] = zfi_fma(isa, s[n], zfi_cached_get(v, half, n * v_row + j), y[j]);
        }
    }
}

ZFI_BODY void zfi_cached_values_body(zfi_isa isa, float *y, const float *s, int64_t rows,
                                     int64_t width, const void *v, bool half, int64_t v_row,
                                     int64_t keys, int64_t d)
{
    if (half)
        zfi_cached_values_of(isa, y, s, rows, width, v, true, v_row, keys, d);
    else
        zfi_cached_values_of(isa, y, s, rows, width, v, false, v_row, keys, d);
}
ZFI_KERNEL(zfi_cached_values,
           (float *y, const float *s, int64_t rows, int64_t width, const void *v, bool half,
            int64_t v_row, int64_t keys, int64_t d),
           (y, s, rows, width, v, half, v_row, keys, d))

/* y[0..width) = what the softmax gives over the keys of all pieces, from the maxima, the sums and
 * the values of each, which are `step` elements apart. */
ZFI_BODY void zfi_cached_join_body(zfi_isa isa, float *y, const float *most, const float *sum,
                                   const float *of, int64_t step, int64_t pieces, int64_t width)
{
    float least = most[0], all = 0, by;
    for (int64_t p = 1; p < pieces; p++)
        least = zfi_pick(isa, least < most[p * step], most[p * step], least);
    if (least == -INFINITY) least = 0;
    memset(y, 0, (size_t)width * sizeof *y);
    for (int64_t p = 0; p < pieces; p++) {
        const float fix = zfi_exp_falling(isa, most[p * step] - least);
        all = zfi_fma(isa, sum[p * step], fix, all);
        ZFI_VECTOR
        for (int64_t i = 0; i < width; i++) y[i] = zfi_fma(isa, of[p * step + i], fix, y[i]);
    }
    by = all == 0 ? 0 : 1 / all;
    ZFI_VECTOR
    for (int64_t i = 0; i < width; i++) y[i] *= by;
}
ZFI_KERNEL(zfi_cached_join,
           (float *y, const float *most, const float *sum, const float *of, int64_t step,
            int64_t pieces, int64_t width),
           (y, most, sum, of, step, pieces, width))

/* One token of each example, by the kernels above. */
static bool zfi_cached_is_one(const zf_launch *l, const zfi_attention *a)
{
    return a->m == 1 && zfi_attention_fast(l, a);
}

enum {
    ZFI_CACHED_PIECES = 16, /* of an example's keys, at most */
    ZFI_CACHED_LEAST = 32,  /* keys of a piece, unless it is the only one */
    ZFI_CACHED_ROWS = 8     /* keys that are used together, in the nearest cache */
};

/* Pieces of so many keys: a power of two, so that threads get equal parts. It depends on the keys
 * alone, and so do bits. */
static int64_t zfi_cached_cut(int64_t keys)
{
    int64_t pieces = 1;
    while (pieces < ZFI_CACHED_PIECES && keys >= 2 * pieces * ZFI_CACHED_LEAST) pieces *= 2;
    return pieces;
}

/* The same of an example; 0 where it has no query. */
static int64_t zfi_cached_pieces(const zfi_attention *a, int64_t b)
{
    const int64_t seen = zfi_attention_seen(a, b, 0);
    return seen ? zfi_cached_cut(seen - zfi_attention_first(a, b, 0)) : 0;
}

typedef struct zfi_cached_run {
    zfi_attention a;
    const zf_launch *launch;
    zfi_isa isa;
    int64_t width;               /* of a row of q and y in scratch */
    int64_t most, pieces;        /* pieces of an example: that there is room for; in this launch */
    size_t sum, y, piece;        /* of a piece: maxima, sums, values; all of it, in elements */
    size_t workers, rows, count; /* after the pieces: a worker's q and scores, rows in f32; all */
} zfi_cached_run;

/* Rows are widened before they are used: those of f16, and where several heads use them. */
static bool zfi_cached_widens(const zfi_attention *a)
{
    return a->k->dtype == ZF_F16 || (a->k->dtype == ZF_BF16 && a->group > 1);
}

static zfi_cached_run zfi_cached_run_of(const zf_launch *l, const zfi_attention *a)
{
    zfi_cached_run r = {.a = *a, .launch = l, .isa = zfi_cpu_of(l)->isa};
    const size_t heads = (size_t)a->heads;
    r.width = zfi_round_up(a->d, 16);
    r.sum = (size_t)zfi_round_up(a->heads, 16);
    r.y = 2 * r.sum;
    r.piece = r.y + heads * (size_t)r.width;
    r.most = zfi_cached_cut(zfi_min(a->window, a->kept));
    r.workers = (size_t)(a->batch * r.most) * r.piece;
    r.rows = heads * (size_t)(r.width + ZFI_LANES);
    r.count = r.rows + (zfi_cached_widens(a) ? ZFI_CACHED_ROWS * (size_t)a->kv_row : 0);
    r.count = (size_t)zfi_round_up((int64_t)r.count, 16);
    return r;
}

/* Rows of keys or values, from element `at` on. */
typedef struct zfi_cached_rows {
    const zf_array *x;
    int64_t at, rows;
} zfi_cached_rows;

/* Fetches part `part` of `parts` of some rows into the second-level cache (always inline:
 * zfi_prefetch_bytes). */
ZFI_INLINE void zfi_cached_fetch(const zfi_cached_rows *of, int64_t row, int64_t part, int64_t parts)
{
    const int64_t size = (int64_t)zf_dtype_size(of->x->dtype), bytes = of->rows * row * size;
    const int64_t end = bytes * (part + 1) / parts;
    for (int64_t i = bytes * part / parts; i < end; i += 64)
        ZFI_PREFETCH_NEAR((const char *)of->x->data + of->at * size + i);
}

/* Of a block of keys, the scores s of all heads, whose q is `with`; or of values, their sums by s,
 * added to those in `with`. Some rows at a time, while the next ones, in the end those of `next`,
 * are fetched. */
static void zfi_cached_block(const zfi_cached_run *r, const zfi_cached_rows *block, bool values,
                             float *s, float *with, float *aside, const zfi_cached_rows *next)
{
    const zfi_attention *a = &r->a;
    const zf_array *x = block->x;
    const bool widens = zfi_cached_widens(a), half = x->dtype == ZF_BF16 && !widens;
    const int64_t head = a->d * (half ? 2 : 4), group = a->group;
    for (int64_t i = 0, rows; i < block->rows; i += rows, s += rows) {
        zfi_cached_rows soon = *next;
        const char *of = zfi_array_at(x, block->at + i * a->kv_row);
        rows = zfi_min(ZFI_CACHED_ROWS, block->rows - i);
        if (i + rows < block->rows) {
            soon.x = x, soon.at = block->at + (i + rows) * a->kv_row;
            soon.rows = block->rows - i - rows;
        }
        soon.rows = zfi_min(ZFI_CACHED_ROWS, soon.rows);
        if (widens) {
            zfi_widen(r->isa, aside, x->dtype, of, rows * a->kv_row);
            of = (const char *)aside;
        }
        for (int64_t h = 0; h < a->kv_heads; h++, of += head) {
            float *scores = s + h * group * ZFI_LANES, *to = with + h * group * r->width;
            zfi_cached_fetch(&soon, a->kv_row, h, a->kv_heads);
            if (values)
                zfi_cached_values(r->isa, to, scores, group, r->width, of, half, a->kv_row, rows,
                                  a->d);
            else {
                zfi_cached_scores(r->isa, scores, to, group, r->width, of, half, a->kv_row, rows,
                                  a->d, (float)a->scale);
                zfi_cached_cap(r->isa, scores, group, rows, (float)a->cap);
            }
        }
    }
}

/* Sets to -inf the scores, s of each head, of keys n..n+some-1 that the query at place m does not
 * see for the block mask. False: no head sees any of them, and s is not set. */
static bool zfi_cached_hide(const zfi_attention *a, int64_t m, int64_t n, int64_t some, float *s)
{
    bool any = !a->block;
    for (int64_t h = 0; h < a->heads && a->block; h++)
        for (int64_t k = 0, until; k < some; k = until) {
            until = zfi_min(some, ((n + k) / a->block + 1) * a->block - n);
            if (zfi_attention_lists(a, h, m, n + k)) any = true;
            else
                for (int64_t i = k; s && i < until; i++) s[h * ZFI_LANES + i] = -INFINITY;
        }
    return any;
}

/* Adds the bias of keys n..n+some-1 to the scores s of each head. */
static void zfi_cached_add_bias(const zfi_cached_run *r, int64_t n, int64_t some, float *s)
{
    const zfi_attention *a = &r->a;
    float row[ZFI_LANES];
    for (int64_t h = 0; h < a->heads && a->bias; h++, s += ZFI_LANES) {
        zfi_widen(r->isa, row, a->bias->dtype,
                  zfi_array_at(a->bias, h * a->bias_step[1] + n * a->bias_step[3]), some);
        ZFI_VECTOR
        for (int64_t i = 0; i < some; i++) s[i] += row[i];
    }
}

/* A task: a piece of the keys of one example, for all heads. */
static void zfi_cached_task(void *context, int64_t index, int worker)
{
    const zfi_cached_run *r = context;
    const zfi_attention *a = &r->a;
    const int64_t b = index / r->pieces, piece = index % r->pieces, pieces = zfi_cached_pieces(a, b);
    const int64_t first = zfi_attention_first(a, b, 0), keys = zfi_attention_seen(a, b, 0) - first;
    const int64_t begin = first + keys * piece / zfi_max(1, pieces);
    const int64_t end = first + keys * (piece + 1) / zfi_max(1, pieces);
    const int64_t own = zfi_attention_past(a, b); /* the place of the query */
    float *most = (float *)r->launch->scratch + (size_t)(b * r->most + piece) * r->piece;
    float *sum = most + r->sum, *y = most + r->y;
    float *q = (float *)r->launch->scratch + r->workers + (size_t)worker * r->count;
    float *s = q + a->heads * r->width, *aside = q + r->rows;
    if (piece >= pieces) return;
    zfi_cached_fetch(&(zfi_cached_rows){a->k, zfi_attention_kv(a, 0, b * a->heads, begin),
                                        zfi_min(ZFI_CACHED_ROWS, end - begin)},
                     a->kv_row, 0, 1);
    zfi_load_rows(r->isa, q, r->width, a->q, b * a->row, a->d, a->heads, a->d);
    memset(y, 0, (size_t)(a->heads * r->width) * sizeof *y);
    for (int64_t h = 0; h < a->heads; h++) most[h] = -INFINITY, sum[h] = 0;
    for (int64_t n = begin, some; n < end; n += some) {
        const int64_t at = zfi_attention_kv(a, 0, b * a->heads, n);
        zfi_cached_rows k = {a->k, at, 0}, v = {a->v, at, 0}, next = {a->k, 0, 0};
        some = k.rows = v.rows = zfi_min(zfi_min(ZFI_LANES, end - n), a->kept - n % a->kept);
        if (!zfi_cached_hide(a, own, n, some, NULL)) continue;
        next.rows = end - n - some;
        if (next.rows) next.at = zfi_attention_kv(a, 0, b * a->heads, n + some);
        for (int64_t i = 0; i < a->heads * ZFI_LANES; i++) s[i] = -INFINITY;
        zfi_cached_block(r, &k, false, s, q, aside, &v);
        zfi_cached_add_bias(r, n, some, s);
        zfi_cached_hide(a, own, n, some, s);
        zfi_cached_softmax(r->isa, s, y, a->heads, r->width, most, sum);
        zfi_cached_block(r, &v, true, s, y, aside, &next);
    }
}

/* A task: the result of one example, from its pieces. */
static void zfi_cached_join_task(void *context, int64_t b, int worker)
{
    const zfi_cached_run *r = context;
    const zfi_attention *a = &r->a;
    const int64_t pieces = zfi_cached_pieces(a, b);
    const float *piece = (float *)r->launch->scratch + (size_t)(b * r->most) * r->piece;
    float *y = (float *)r->launch->scratch + r->workers + (size_t)worker * r->count;
    if (!pieces) return;
    for (int64_t h = 0; h < a->heads; h++)
        zfi_cached_join(r->isa, y + h * r->width, piece + h, piece + r->sum + h,
                        piece + r->y + h * r->width, (int64_t)r->piece, pieces, r->width);
    zfi_store_rows(r->isa, &r->launch->out, b * a->row, a->d, y, r->width, a->heads, a->d);
}

/* --------------------------------------------------------------------------------- launch */

static size_t zfi_scratch_cached_attention(const zf_launch *l)
{
    zfi_attention a = zfi_cached_of(l);
    zfi_cached_run run;
    if (!a.batch || !zfi_cached_is_one(l, &a)) return zfi_attention_scratch(l, a, false);
    run = zfi_cached_run_of(l, &a);
    return (run.workers + (size_t)zfi_pool_threads(zfi_cpu_of(l)->pool) * run.count) * sizeof(float);
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
        for (int64_t b = 0; b < a.batch; b++)
            run.pieces = zfi_max(run.pieces, zfi_cached_pieces(&a, b));
        zfi_pool_run(pool, a.batch * run.pieces, zfi_cached_task, &run);
        zfi_pool_run(pool, a.batch, zfi_cached_join_task, &run);
    } else if (zfi_attention_fast(l, &a)) {
        zfi_attention_cut cut = zfi_attention_cut_of(l, a, false);
        zfi_pool_run(pool, a.batch * a.heads * cut.query_blocks, zfi_attention_task, &cut);
    } else {
        zfi_attention_run run = {.a = a, .launch = l};
        zfi_pool_run(pool, a.batch * a.heads * a.m, zfi_attention_reference, &run);
    }
    return ZF_OK;
}

static uint32_t zfi_writes_caches(const zfi_node *node)
{
    (void)node;
    return 1 << ZFI_CACHED_K | 1 << ZFI_CACHED_V;
}

static double zfi_cached_reach(const zf_launch *l, const zfi_attention *a)
{
    return zfi_listed_reach(l, a->n, a->window, a->block, a->layouts);
}

/* Of two products over the keys. */
static double zfi_flops_cached_attention(const zf_launch *l)
{
    zfi_attention a = zfi_cached_of(l);
    return 4.0 * (double)zfi_count(&l->out) * zfi_cached_reach(l, &a);
}

/* An exponential for each score, and a tanh where they are capped. */
static double zfi_functions_cached_attention(const zf_launch *l)
{
    zfi_attention a = zfi_cached_of(l);
    return (double)a.batch * (double)a.heads * (double)a.m * zfi_cached_reach(l, &a) *
           (a.cap > 0 ? 2 : 1);
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(cache, .infer = zfi_infer_cache, .grad = zfi_grad_none, .holds = ZF_CACHES,
             .place = ZFI_PLACE_OF_CACHES, .ranks = ZFI_RANKS_BATCH,
             .traits = ZF_OP_LEAF | ZF_OP_NAMED | ZF_OP_WRITABLE)
ZFI_OPERATOR(cached_attention, .infer = zfi_infer_cached_attention, .cpu = zfi_cpu_cached_attention,
             .scratch = zfi_scratch_cached_attention, .writes = zfi_writes_caches,
             .flops = zfi_flops_cached_attention, .functions = zfi_functions_cached_attention,
             .cuts = "b m! h, b m! h, b m! h, b, b, b c! h, b c! h -> b m! h {heads/h kv_heads/h}",
             .traits = ZF_OP_MUTATES | ZF_OP_PRODUCT | ZF_OP_READS_HALF)
