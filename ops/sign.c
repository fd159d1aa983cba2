/* Compression to signs, with error feedback: sign_compress, sign_expand; and what 1-bit optimizers
 * need besides: momentum, local_sum, assign, adam_apply, adam_drift.
 *
 *     %3 = sign_compress %1, %2 {at=[0,2048] count=[1500,7]} : u8[3,132]
 *         of each block of 1024 elements: c = x + e, s = |c| / sqrt(n), q = sign(c), sign(0) = +1;
 *         e = c - s q. x and e are f32, e a state. c and e are rounded once each: what is kept and
 *         sent is c up to half a unit in the last place of the larger of |c| and s
 *     %5 = sign_expand %4 {shape=[3072] parts=2 at=[0,2048] count=[1500,7]} : f32[3072]
 *         y = (s q of part 0 + s q of part 1 + ...) / parts, added in this order
 *     %2 = momentum %m, %g {beta=0.9} : f32[3072]      %2 = beta m + (1 - beta) g; m and %2 are f32
 *     %6 = local_sum %u, %g, %m, %lr {beta=0.9} : f32[3072]
 *         m = beta m + (1 - beta) g, u += lr m, states of f32; the result is the new u
 *     %7 = assign %6, %5 : f32[3072]           the state %6, or a shard of it, = %5; the result is its
 *                                              new value
 *     adam_apply %p, %m, %v, %lr, %t, %k {beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.01 limit=1}
 *         p -= lr wd p, p -= lr a, a = m^ / (sqrt(v^) + eps), within [-limit, limit] where there is
 *         one; m^ = m / (1 - beta1^t), v^ = v / (1 - beta2^k)
 *
 *     %9 = adam_drift %p, %u, %v {eps=1e-08} : f32[8]     %9 = p - u / (sqrt(v) + eps)
 *
 *     a row of sign_compress:   | s, f32 | 1024 bits, the first element in the lowest; 1: negative |
 *
 * `at` and `count` say where the tensors of a bucket lie, which begin with whole blocks (bucket.c):
 * n counts their elements alone, what lies between them is 0, and its errors do not change. Without
 * them the tensor is contiguous, and its last block may have fewer elements. With world=n, x or y
 * is this rank's shard of a bucket, one of n. A block without elements has s = 0.
 *
 * server=true marks the second compression, of an average over the ranks (passes/zero/update.c).
 *
 * adam_apply is the second half of adamw (update.c): m and v are given. m is f32, a value of any
 * kind; v is a state, which does not change. The last operand may be master weights. world, blocks
 * and decays are as for adamw; lr is one float, or one for each of the ranges that blocks lists. t
 * and k are states i64[] that count updates of m and of v, from 1.
 *
 * Where v is 0, an element has had no gradient, and only the step's weight decay changes it: m
 * there is a sign and a scale all the same, which eps alone would divide.
 *
 * adam_drift is where this rank's parameters are between two averages (optimizers/zero_one.c): u
 * and v are f32 states; the last operand may be master weights of a bf16 or f16 parameter, which
 * are read instead of p, and the result is rounded. */

enum {
    ZFI_SIGN_BYTES = ZFI_NORM_BLOCK / 8,
    ZFI_SIGN_ROW = (int)sizeof(float) + ZFI_SIGN_BYTES /* bytes of a compressed block */
};

/* ------------------------------------------------------------------------------- blocks */

/* The elements of tensors in a block of the bucket, which are its first ones. attribute `first` is
 * at, count and world follow it; all: elements of the value, where they are not given. */
static int64_t zfi_sign_elements(const zf_launch *l, const zf_attribute *first, int64_t all,
                                 int64_t block)
{
    const int64_t *at = first->list.data, *count = first[1].list.data;
    const int64_t tensors = first->list.count,
                  shards = zfi_max(first[2].i, 1),
                  begin = (shards > 1 ? l->run->shard * all : 0) + block * ZFI_NORM_BLOCK;
    int64_t low = 0, high = tensors;
    if (!tensors) return zfi_min(all - block * ZFI_NORM_BLOCK, ZFI_NORM_BLOCK);
    while (low < high) { /* the first tensor that begins after it */
        int64_t middle = (low + high) / 2;
        if (at[middle] > begin) high = middle;
        else low = middle + 1;
    }
    if (!low || at[low - 1] + count[low - 1] <= begin) return 0;
    return zfi_min(at[low - 1] + count[low - 1] - begin, ZFI_NORM_BLOCK);
}

/* Checks at, count and world, of which `first` is the first, for a value of `all` elements. */
static zf_status zfi_infer_sign_places(const zfi_infer *c, const zf_attribute *first, int64_t all)
{
    const int64_t *at = first->list.data, *count = first[1].list.data,
                  tensors = first->list.count, world = first[2].i;
    int64_t end = 0;
    if (world < 0 || (world > 1 && (!tensors || all > INT64_MAX / world)))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "world %lld is none", (long long)world);
    if (first[1].list.count != tensors)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%lld places and %lld counts",
                              (long long)tensors, (long long)first[1].list.count);
    if (tensors && all % ZFI_NORM_BLOCK)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the %lld elements of a bucket must be a multiple of %d",
                              (long long)all, ZFI_NORM_BLOCK);
    if (world > 1) all *= world;
    for (int64_t k = 0; k < tensors; k++) {
        if (at[k] < end || at[k] % ZFI_NORM_BLOCK || count[k] < 0 || at[k] > all - count[k])
            return zfi_infer_fail(
                c, ZF_ERR_ARGUMENT,
                "tensor %lld lies at %lld; it must be a multiple of %d from %lld on, and its %lld "
                "elements must fit the %lld",
                (long long)k, (long long)at[k], ZFI_NORM_BLOCK, (long long)end,
                (long long)count[k], (long long)all);
        end = at[k] + zfi_whole_blocks(count[k]) * ZFI_NORM_BLOCK;
    }
    return ZF_OK;
}

/* ------------------------------------------------------------------------ sign_compress */

static zf_status zfi_infer_sign_compress(zfi_infer *c)
{
    const zf_op op = zfi_copied(c->graph, c->args[1])->op;
    const int64_t count = zfi_node_count(c->args[0]);
    zf_status status;
    if (c->args[0]->dtype != ZF_F32 || c->args[1]->dtype != ZF_F32)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the value and its errors must be f32");
    if ((op != ZF_OP_state && op != ZF_OP_bucket) || zfi_node_count(c->args[1]) != count)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "operand 1, the errors, must be a state of %lld elements",
                              (long long)count);
    status = zfi_infer_sign_places(c, &ZF_ATTRIBUTE(c, sign_compress, at), count);
    c->dtype = ZF_U8;
    c->shape = ZF_SHAPE(zfi_whole_blocks(count), ZFI_SIGN_ROW);
    return status;
}

/* c = x + e; signs: a bit for each of the first n elements, 0 for the others up to the block's
 * end. */
ZFI_BODY void zfi_sign_sum_body(zfi_isa isa, float *c, unsigned char *signs, const float *x,
                                const float *e, int64_t n)
{
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) c[i] = x[i] + e[i];
    for (int64_t i = n; i < ZFI_NORM_BLOCK; i++) c[i] = 0;
    for (int64_t k = 0; k < ZFI_SIGN_BYTES; k++) {
        unsigned bits = 0;
        for (unsigned j = 0; j < 8; j++) bits |= (unsigned)(c[8 * k + j] < 0) << j;
        signs[k] = (unsigned char)bits;
    }
}
ZFI_KERNEL(zfi_sign_sum,
           (float *c, unsigned char *signs, const float *x, const float *e, int64_t n),
           (c, signs, x, e, n))

/* e = c - s q */
ZFI_BODY void zfi_sign_error_body(zfi_isa isa, float *e, const float *c, float s, int64_t n)
{
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) e[i] = c[i] - zfi_pick(isa, c[i] < 0, -s, s);
}
ZFI_KERNEL(zfi_sign_error, (float *e, const float *c, float s, int64_t n), (e, c, s, n))

/* Blocks [first, last). Both kernels, the reference too, add and subtract in f32: what is kept of
 * the error is exactly what was not sent. */
static void zfi_sign_compress_blocks(const zf_launch *l, int64_t first, int64_t last)
{
    const int64_t all = zfi_count(&l->args[0]);
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    for (int64_t b = first; b < last; b++) {
        const int64_t n = zfi_sign_elements(l, &ZF_ATTRIBUTE(l, sign_compress, at), all, b);
        unsigned char *row = (unsigned char *)l->out.data + b * ZFI_SIGN_ROW;
        float *e = (float *)l->args[1].data + b * ZFI_NORM_BLOCK, c[ZFI_NORM_BLOCK], s = 0;
        zfi_sign_sum(isa, c, row + sizeof s, (const float *)l->args[0].data + b * ZFI_NORM_BLOCK, e,
                     n);
        if (n && zfi_fast(l)) {
            s = zfi_block_norm(isa, c, n) / sqrtf((float)n);
        } else if (n) {
            const zf_array block = {c, ZF_F32, ZF_SHAPE(n)};
            s = (float)(zfi_norm_of(&block, 1, 0, n) / sqrt((double)n));
        }
        zfi_sign_error(isa, e, c, s, n);
        memcpy(row, &s, sizeof s);
    }
}

static zf_status zfi_cpu_sign_compress(const zf_launch *l)
{
    zfi_split(l, l->out.shape.dims[0], ZFI_GRAIN / ZFI_NORM_BLOCK, zfi_sign_compress_blocks);
    return ZF_OK;
}

/* -------------------------------------------------------------------------- sign_expand */

static zf_status zfi_infer_sign_expand(zfi_infer *c)
{
    const int64_t parts = ZF_INT(c, sign_expand, parts), bytes = zfi_node_count(c->args[0]);
    int64_t count;
    c->dtype = ZF_F32;
    if (!zfi_listed_shape(&ZF_ATTRIBUTE(c, sign_expand, shape), &c->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "a shape has 0 to %d dimensions, none negative",
                              ZF_MAX_RANK);
    count = zf_shape_count(c->shape);
    if (c->args[0]->dtype != ZF_U8)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "what is expanded is u8, not %s",
                              zf_dtype_name(c->args[0]->dtype));
    if (parts < 1 || parts > INT32_MAX || bytes % parts ||
        bytes / parts != zfi_whole_blocks(count) * ZFI_SIGN_ROW)
        return zfi_infer_fail(
            c, ZF_ERR_SHAPE,
            "%lld bytes are not %lld parts of %lld blocks of %d bytes each", (long long)bytes,
            (long long)parts, (long long)zfi_whole_blocks(count), ZFI_SIGN_ROW);
    return zfi_infer_sign_places(c, &ZF_ATTRIBUTE(c, sign_expand, at), count);
}

/* y = s q, or with add y += s q */
ZFI_BODY void zfi_sign_add_body(zfi_isa isa, float *y, const unsigned char *signs, float s,
                                bool add, int64_t n)
{
    const uint32_t plus = (uint32_t)zfi_bits_of(s);
    (void)isa;
    for (int64_t k = 0; k < ZFI_SIGN_BYTES && 8 * k < n; k++) {
        const uint32_t bits = signs[k];
        float q[8];
        for (unsigned j = 0; j < 8; j++)
            q[j] = zfi_float_of((int32_t)(plus ^ (bits >> j & 1) << 31));
        if (8 * k + 8 <= n)
            for (int64_t j = 0; j < 8; j++) y[8 * k + j] = (add ? y[8 * k + j] : 0) + q[j];
        else
            for (int64_t j = 0; 8 * k + j < n; j++) y[8 * k + j] = (add ? y[8 * k + j] : 0) + q[j];
    }
}
ZFI_KERNEL(zfi_sign_add, (float *y, const unsigned char *signs, float s, bool add, int64_t n),
           (y, signs, s, add, n))

ZFI_BODY void zfi_sign_scale_body(zfi_isa isa, float *y, float by, int64_t n)
{
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) y[i] *= by;
}
ZFI_KERNEL(zfi_sign_scale, (float *y, float by, int64_t n), (y, by, n))

static void zfi_sign_expand_blocks(const zf_launch *l, int64_t first, int64_t last)
{
    const int64_t all = zfi_count(&l->out), parts = ZF_INT(l, sign_expand, parts),
                  part = zfi_whole_blocks(all) * ZFI_SIGN_ROW;
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    for (int64_t b = first; b < last; b++) {
        const int64_t n = zfi_sign_elements(l, &ZF_ATTRIBUTE(l, sign_expand, at), all, b),
                      room = zfi_min(all - b * ZFI_NORM_BLOCK, ZFI_NORM_BLOCK);
        float *y = (float *)l->out.data + b * ZFI_NORM_BLOCK, s;
        for (int64_t r = 0; r < parts; r++) {
            const unsigned char *row =
                (const unsigned char *)l->args[0].data + r * part + b * ZFI_SIGN_ROW;
            memcpy(&s, row, sizeof s);
            zfi_sign_add(isa, y, row + sizeof s, s, r > 0, n);
        }
        if (parts > 1) zfi_sign_scale(isa, y, 1 / (float)parts, n);
        memset(y + n, 0, (size_t)(room - n) * sizeof *y);
    }
}

static zf_status zfi_cpu_sign_expand(const zf_launch *l)
{
    zfi_split(l, zfi_whole_blocks(zfi_count(&l->out)), ZFI_GRAIN / ZFI_NORM_BLOCK,
              zfi_sign_expand_blocks);
    return ZF_OK;
}

/* ----------------------------------------------------------------------------- momentum */

/* Operand 1 is a gradient. With attribute `at`, scaled: one operand more than `operands`, as for
 * adamw (update.c) a factor of the gradient, here of any sign. */
static zf_status zfi_infer_scaled_gradient(zfi_infer *c, int at, int32_t operands)
{
    zf_status status = zfi_infer_scaled(c, at, operands);
    if (!status && c->arg_count > operands)
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%d operands without scaled=true",
                                (int)c->arg_count);
    if (!status && !zfi_is_float(c->args[1]->dtype))
        status = zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 1, the gradient, must be float");
    return status;
}

static zf_status zfi_infer_momentum(zfi_infer *c)
{
    zf_status status = zfi_infer_scaled_gradient(c, ZF_AT_momentum_scaled, 2);
    if (!status && c->args[0]->dtype != zfi_wide(c->args[1]->dtype))
        status = zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 0, the momentum, must be %s",
                                zf_dtype_name(zfi_wide(c->args[1]->dtype)));
    if (!status && !zfi_same_shape(&c->args[0]->shape, &c->args[1]->shape))
        status = zfi_infer_fail(c, ZF_ERR_SHAPE, "momentum and gradient must have one shape");
    if (!status) status = zfi_infer_below(c, "beta", ZF_FLOAT(c, momentum, beta), 1);
    return status ? status : zfi_infer_like(c, 0);
}

static void zfi_momentum_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const double beta = ZF_FLOAT(l, momentum, beta),
                 scale = zfi_gradient_scale(l, ZF_AT_momentum_scaled);
    for (int64_t i = first; i < last; i++)
        zfi_set(&l->out, i,
                beta * zfi_get(&l->args[0], i) + (1 - beta) * scale * zfi_get(&l->args[1], i));
}

/* y = beta m + rest g */
ZFI_BODY void zfi_momentum_run_body(zfi_isa isa, float *y, const float *m, const float *g,
                                    float beta, float scale, float rest, int64_t n)
{
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) y[i] = zfi_fma(isa, beta, m[i], rest * (scale * g[i]));
}
ZFI_KERNEL(zfi_momentum_run,
           (float *y, const float *m, const float *g, float beta, float scale, float rest,
            int64_t n),
           (y, m, g, beta, scale, rest, n))

static void zfi_momentum_fast(const zf_launch *l, int64_t first, int64_t last)
{
    const double beta = ZF_FLOAT(l, momentum, beta);
    const float scale = (float)zfi_gradient_scale(l, ZF_AT_momentum_scaled);
    const int64_t most = l->args[1].dtype == ZF_F32 ? last - first : ZFI_CONVERT_RUN;
    for (int64_t at = first, n; at < last; at += n) {
        float of_g[ZFI_CONVERT_RUN];
        n = zfi_min(most, last - at);
        zfi_momentum_run(zfi_cpu_of(l)->isa, (float *)l->out.data + at,
                         (const float *)l->args[0].data + at, zfi_update_floats(l, 1, at, n, of_g),
                         (float)beta, scale, (float)(1 - beta), n);
    }
}

static zf_status zfi_cpu_momentum(const zf_launch *l)
{
    const zf_launch own = zfi_without_scale(l, ZF_AT_momentum_scaled);
    zfi_split(&own, zfi_count(&l->out), ZFI_GRAIN,
              zfi_fast_or_half(l) ? zfi_momentum_fast : zfi_momentum_reference);
    return ZF_OK;
}

/* ---------------------------------------------------------------------------- local_sum */

static zf_status zfi_infer_local_sum(zfi_infer *c)
{
    const zf_dtype wide = zfi_wide(c->args[1]->dtype);
    char type[ZFI_TYPE_TEXT];
    zf_status status = zfi_infer_scaled_gradient(c, ZF_AT_local_sum_scaled, 4);
    for (int32_t k = 0; k < 3 && !status; k += 2)
        if ((c->args[k]->op != ZF_OP_state && c->args[k]->op != ZF_OP_bucket) ||
            c->args[k]->dtype != wide ||
            !zfi_same_shape(&c->args[k]->shape, &c->args[1]->shape) ||
            (k && c->args[k] == c->args[0]))
            status = zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                    "operand %d, %s, must be a state %s of its own", (int)k,
                                    k ? "the momentum" : "the sum",
                                    zfi_type_text(type, wide, &c->args[1]->shape));
    if (!status) status = zfi_infer_number(c, 3, "the learning rate");
    if (!status) status = zfi_infer_below(c, "beta", ZF_FLOAT(c, local_sum, beta), 1);
    return status ? status : zfi_infer_like(c, 0);
}

/* m = beta m + rest g, u += lr m; each as the operators momentum, mul and add do it. */
ZFI_BODY void zfi_local_sum_run_body(zfi_isa isa, float *u, float *m, const float *g,
                                     const float by[4], int64_t n)
{
    const float beta = by[0], scale = by[1], rest = by[2], lr = by[3];
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) {
        const float mean = zfi_fma(isa, beta, m[i], rest * (scale * g[i])), more = mean * lr;
        m[i] = mean;
        u[i] += more;
    }
}
ZFI_KERNEL(zfi_local_sum_run, (float *u, float *m, const float *g, const float by[4], int64_t n),
           (u, m, g, by, n))

static void zfi_local_sum_elements(const zf_launch *l, int64_t first, int64_t last)
{
    const double beta = ZF_FLOAT(l, local_sum, beta);
    const float by[4] = {(float)beta, (float)zfi_gradient_scale(l, ZF_AT_local_sum_scaled),
                         (float)(1 - beta), (float)zfi_get(&l->args[3], 0)};
    for (int64_t at = first, n; at < last; at += n) {
        float of_g[ZFI_CONVERT_RUN];
        n = zfi_min(last - at, ZFI_CONVERT_RUN);
        zfi_local_sum_run(zfi_cpu_of(l)->isa, (float *)l->args[0].data + at,
                          (float *)l->args[2].data + at, zfi_update_floats(l, 1, at, n, of_g), by,
                          n);
    }
}

static void zfi_local_sum_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const double beta = ZF_FLOAT(l, local_sum, beta), lr = zfi_get(&l->args[3], 0),
                 scale = zfi_gradient_scale(l, ZF_AT_local_sum_scaled);
    for (int64_t i = first; i < last; i++) {
        zfi_set(&l->args[2], i,
                beta * zfi_get(&l->args[2], i) + (1 - beta) * scale * zfi_get(&l->args[1], i));
        zfi_set(&l->args[0], i, zfi_get(&l->args[0], i) + lr * zfi_get(&l->args[2], i));
    }
}

static zf_status zfi_cpu_local_sum(const zf_launch *l)
{
    const zf_launch own = zfi_without_scale(l, ZF_AT_local_sum_scaled);
    zfi_split(&own, zfi_count(&l->out), ZFI_GRAIN,
              zfi_fast_or_half(l) ? zfi_local_sum_elements : zfi_local_sum_reference);
    zfi_move_bytes(l, l->out.data, l->args[0].data, zfi_array_bytes(&l->out));
    return ZF_OK;
}

static uint32_t zfi_writes_local_sum(const zfi_node *node)
{
    (void)node;
    return 1 | 4;
}

/* Of the gradient, and of two states that are read and written. */
static double zfi_bytes_local_sum(const zf_launch *l)
{
    return (double)zfi_array_bytes(&l->args[1]) + 4 * (double)zfi_array_bytes(&l->args[0]);
}

/* ------------------------------------------------------------------------------- assign */

static zf_status zfi_infer_assign(zfi_infer *c)
{
    const zf_op op = zfi_home_of(c->graph, c->args[0])->op;
    char type[ZFI_TYPE_TEXT];
    if (op != ZF_OP_state && op != ZF_OP_bucket && op != ZF_OP_shard && !zfi_is_held(c->args[0]))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 0 must be a state, not the result of %s",
                              c->graph->records[op]->name);
    if (c->args[1]->dtype != c->args[0]->dtype ||
        !zfi_same_shape(&c->args[1]->shape, &c->args[0]->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand 1 must be %s as the state is",
                              zfi_type_text(type, c->args[0]->dtype, &c->args[0]->shape));
    return zfi_infer_like(c, 0);
}

static zf_status zfi_cpu_assign(const zf_launch *l)
{
    zfi_move_bytes(l, l->args[0].data, l->args[1].data, zfi_array_bytes(&l->out));
    zfi_move_bytes(l, l->out.data, l->args[0].data, zfi_array_bytes(&l->out));
    return ZF_OK;
}

/* Of the value that is read, and of the state that is written. */
static double zfi_bytes_assign(const zf_launch *l)
{
    return 2 * (double)zfi_array_bytes(&l->args[1]);
}

static int32_t zfi_views_first(const zf_graph *g, const zfi_node *node, int64_t *at)
{
    (void)g, (void)node, (void)at;
    return 0;
}

/* --------------------------------------------------------------------------- adam_apply */

enum { ZFI_APPLY_MASTER = 6 };

static zf_status zfi_infer_adam_apply(zfi_infer *c)
{
    zf_dtype wide = zfi_wide(c->args[0]->dtype);
    zf_status status = zfi_infer_target(c, ZF_AT_adam_apply_world);
    if (!status) status = zfi_infer_paired(c, 1, "the mean", wide, false);
    if (!status) status = zfi_infer_paired(c, 2, "the variance", wide, true);
    if (!status && zfi_node_count(c->args[3]) == 1)
        status = zfi_infer_number(c, 3, "the learning rate");
    else if (!status)
        status = zfi_infer_numbers(c, 3, "the rates of the ranges of blocks",
                                   ZF_LIST(c, adam_apply, blocks).count / 2);
    if (!status) status = zfi_infer_count(c, 4, "a count");
    if (!status) status = zfi_infer_count(c, 5, "a count");
    if (!status) status = zfi_infer_master(c, ZFI_APPLY_MASTER);
    if (!status) status = zfi_infer_below(c, "beta1", ZF_FLOAT(c, adam_apply, beta1), 1);
    if (!status) status = zfi_infer_below(c, "beta2", ZF_FLOAT(c, adam_apply, beta2), 1);
    if (!status) status = zfi_infer_below(c, "eps", ZF_FLOAT(c, adam_apply, eps), INFINITY);
    if (!status)
        status =
            zfi_infer_below(c, "weight_decay", ZF_FLOAT(c, adam_apply, weight_decay), INFINITY);
    if (!status) status = zfi_infer_below(c, "limit", ZF_FLOAT(c, adam_apply, limit), INFINITY);
    return status;
}

/* The learning rate of a range of blocks. */
static double zfi_apply_rate(const zf_launch *l, int64_t index)
{
    return zfi_get(&l->args[3], zfi_count(&l->args[3]) > 1 ? index : 0);
}

/* m^ = m of_m, sqrt(v^) = sqrt(v) of_root */
static void zfi_apply_corrections(const zf_launch *l, double *of_m, double *of_root)
{
    *of_m = 1 / (1 - pow(ZF_FLOAT(l, adam_apply, beta1), zfi_get(&l->args[4], 0)));
    *of_root = 1 / sqrt(1 - pow(ZF_FLOAT(l, adam_apply, beta2), zfi_get(&l->args[5], 0)));
}

/* The most by which an element moves, in multiples of the rate. */
static double zfi_apply_limit(const zf_launch *l)
{
    return ZF_FLOAT(l, adam_apply, limit) > 0 ? ZF_FLOAT(l, adam_apply, limit) : INFINITY;
}

static void zfi_adam_apply_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *p = zfi_weights(l, ZFI_APPLY_MASTER), *m = &l->args[1], *v = &l->args[2];
    const double eps = ZF_FLOAT(l, adam_apply, eps), limit = zfi_apply_limit(l);
    double of_m, of_root;
    zfi_stretch s = zfi_stretch_over(first, last);
    zfi_apply_corrections(l, &of_m, &of_root);
    while (zfi_next_stretch(l, ZF_AT_adam_apply_world, ZF_FLOAT(l, adam_apply, weight_decay), &s)) {
        const double lr = zfi_apply_rate(l, s.index);
        for (int64_t i = s.first; i < s.last; i++) {
            const double old = zfi_get(p, i), root = sqrt(zfi_get(v, i)) * of_root;
            const double by = root == 0 ? 0 : zfi_get(m, i) * of_m / (root + eps);
            zfi_set_weight(l, p, i,
                           old - lr * s.decay * old - lr * fmin(fmax(by, -limit), limit));
        }
    }
}

/* p = keep p - rate m / (sqrt(v) of_root + eps), this within [-limit, limit], or keep p where v is
 * 0 */
ZFI_BODY void zfi_apply_run_body(zfi_isa isa, float *p, const float *m, const float *v,
                                 float of_root, float eps, float limit, float keep, float rate,
                                 int64_t n)
{
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) {
        float by = m[i] / zfi_fma(isa, sqrtf(v[i]), of_root, eps);
        by = zfi_clamp(isa, by, -limit, limit);
        p[i] = zfi_fma(isa, keep, p[i], -rate * zfi_pick(isa, v[i] == 0, 0, by));
    }
}
ZFI_KERNEL(zfi_apply_run,
           (float *p, const float *m, const float *v, float of_root, float eps, float limit,
            float keep, float rate, int64_t n),
           (p, m, v, of_root, eps, limit, keep, rate, n))

static void zfi_adam_apply_fast(const zf_launch *l, int64_t first, int64_t last)
{
    const int32_t weights = (int32_t)(zfi_weights(l, ZFI_APPLY_MASTER) - l->args);
    const float *m = l->args[1].data, *v = l->args[2].data;
    double of_m, of_root;
    zfi_stretch s = zfi_stretch_over(first, last);
    zfi_apply_corrections(l, &of_m, &of_root);
    while (zfi_next_stretch(l, ZF_AT_adam_apply_world, ZF_FLOAT(l, adam_apply, weight_decay), &s)) {
        const double lr = zfi_apply_rate(l, s.index);
        for (int64_t at = s.first, n; at < s.last; at += n) {
            float of_p[ZFI_CONVERT_RUN], *p;
            n = zfi_update_run(l, s.last - at);
            p = zfi_update_floats(l, weights, at, n, of_p);
            zfi_apply_run(zfi_cpu_of(l)->isa, p, m + at, v + at, (float)of_root,
                          (float)ZF_FLOAT(l, adam_apply, eps), (float)(zfi_apply_limit(l) / of_m),
                          (float)(1 - lr * s.decay), (float)(lr * of_m), n);
            zfi_update_parameter(l, at, n, p);
        }
    }
}

/* An error unless the operand has counted an update. */
static zf_status zfi_check_count(const zf_launch *l, const char *name, int32_t k)
{
    const int64_t count = zfi_get_integer(&l->args[k], 0);
    if (count >= 1) return ZF_OK;
    return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                    "%s: operand %d is %lld; it counts updates from 1, so compressed steps come "
                    "after steps that update the variance",
                    name, (int)k, (long long)count);
}

static zf_status zfi_cpu_adam_apply(const zf_launch *l)
{
    zf_status status = zfi_check_count(l, "adam_apply", 4);
    if (!status) status = zfi_check_count(l, "adam_apply", 5);
    if (status) return status;
    zfi_split(l, zfi_count(&l->args[0]), ZFI_GRAIN,
              zfi_fast_or_half(l) ? zfi_adam_apply_fast : zfi_adam_apply_reference);
    return ZF_OK;
}

static int32_t zfi_master_adam_apply(const zfi_node *node)
{
    return zfi_master_at(node, ZFI_APPLY_MASTER, false);
}

static uint32_t zfi_writes_adam_apply(const zfi_node *node)
{
    return 1 | (zfi_master_adam_apply(node) > 0 ? 1 << ZFI_APPLY_MASTER : 0);
}

/* --------------------------------------------------------------------------- adam_drift */

static zf_status zfi_infer_adam_drift(zfi_infer *c)
{
    const zf_op op = c->args[0]->op;
    zf_status status = ZF_OK;
    if (op != ZF_OP_param && op != ZF_OP_bucket)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "operand 0 must be a param or a bucket, not the result of %s",
                              c->graph->records[op]->name);
    if (c->args[0]->dtype == ZF_F64)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 0 must be f32, bf16 or f16");
    status = zfi_infer_paired(c, 1, "the sum of updates", ZF_F32, true);
    if (!status) status = zfi_infer_paired(c, 2, "the variance", ZF_F32, true);
    if (!status) status = zfi_infer_master(c, 3);
    if (!status) status = zfi_infer_below(c, "eps", ZF_FLOAT(c, adam_drift, eps), INFINITY);
    return status ? status : zfi_infer_like(c, 0);
}

/* y = p - u / (sqrt(v) + eps), or p where v is 0 */
ZFI_BODY void zfi_drift_run_body(zfi_isa isa, float *y, const float *p, const float *u,
                                 const float *v, float eps, int64_t n)
{
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++)
        y[i] = p[i] - zfi_pick(isa, v[i] == 0, 0, u[i] / (sqrtf(v[i]) + eps));
}
ZFI_KERNEL(zfi_drift_run,
           (float *y, const float *p, const float *u, const float *v, float eps, int64_t n),
           (y, p, u, v, eps, n))

/* Elements [first, last), in f32 by both kernels. */
static void zfi_drift_elements(const zf_launch *l, int64_t first, int64_t last)
{
    const int32_t weights = (int32_t)(zfi_weights(l, 3) - l->args);
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    for (int64_t at = first, n; at < last; at += n) {
        const bool direct = l->out.dtype == ZF_F32;
        float of_p[ZFI_CONVERT_RUN], of_y[ZFI_CONVERT_RUN],
            *y = direct ? (float *)l->out.data + at : of_y;
        n = zfi_min(last - at, ZFI_CONVERT_RUN);
        zfi_drift_run(isa, y, zfi_update_floats(l, weights, at, n, of_p),
                      (const float *)l->args[1].data + at, (const float *)l->args[2].data + at,
                      (float)ZF_FLOAT(l, adam_drift, eps), n);
        if (!direct)
            zfi_narrow(isa, zfi_element_of(l->out.data, l->out.dtype, at), l->out.dtype, y, n);
    }
}

static zf_status zfi_cpu_adam_drift(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, zfi_drift_elements);
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(sign_expand, sign_compress, at)
ZFI_SAME_ATTRIBUTE(sign_expand, sign_compress, count)
ZFI_SAME_ATTRIBUTE(sign_expand, sign_compress, world)
ZFI_OPERATOR(sign_compress, .infer = zfi_infer_sign_compress, .cpu = zfi_cpu_sign_compress,
             .writes = zfi_writes_errors, .bytes = zfi_bytes_with_errors,
             .ranks = ZFI_RANKS_SIGNS, .traits = ZF_OP_MUTATES)
ZFI_OPERATOR(sign_expand, .infer = zfi_infer_sign_expand, .cpu = zfi_cpu_sign_expand,
             .ranks = ZFI_RANKS_SIGNS)
ZFI_OPERATOR(momentum, .infer = zfi_infer_momentum, .cpu = zfi_cpu_momentum,
             .functions = zfi_functions_none, .traits = ZF_OP_ELEMENTWISE | ZF_OP_READS_HALF)
ZFI_OPERATOR(local_sum, .infer = zfi_infer_local_sum, .cpu = zfi_cpu_local_sum,
             .views = zfi_views_first, .writes = zfi_writes_local_sum,
             .bytes = zfi_bytes_local_sum, .ranks = ZFI_RANKS_GRADIENT, .traits = ZF_OP_MUTATES)
ZFI_OPERATOR(assign, .infer = zfi_infer_assign, .cpu = zfi_cpu_assign, .views = zfi_views_first,
             .writes = zfi_writes_first, .bytes = zfi_bytes_assign, .ranks = ZFI_RANKS_GRADIENT,
             .cuts = "..., ... -> ...", .traits = ZF_OP_MUTATES)
ZFI_OPERATOR(adam_apply, .infer = zfi_infer_adam_apply, .grad = zfi_grad_none,
             .cpu = zfi_cpu_adam_apply, .writes = zfi_writes_adam_apply,
             .master = zfi_master_adam_apply, .bytes = zfi_bytes_update, .rate = 3,
             .elementwise = 4, .traits = ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_UPDATE)
ZFI_OPERATOR(adam_drift, .infer = zfi_infer_adam_drift, .grad = zfi_grad_none,
             .cpu = zfi_cpu_adam_drift, .traits = ZF_OP_READS_HALF)
