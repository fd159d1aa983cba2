/* Optimizers: sgd, adamw (Loshchilov & Hutter 2019), lamb_update and lamb_apply (You et al. 2020).
 * They write parameters and states in place, have no gradient, and run in the update section.
 * lion.c is one more.
 *
 *     sgd %p, %g, %lr {weight_decay=0.1}
 *         p -= lr d, d = g + wd p
 *     sgd %p, %g, %lr, %buf {momentum=0.9 nesterov=true}
 *         buf = momentum buf + d, p -= lr buf, or with nesterov p -= lr (d + momentum buf)
 *     adamw %p, %g, %m, %v, %lr, %t {beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.01}
 *         m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
 *         p -= lr wd p, p -= lr m^ / (sqrt(v^) + eps)
 *     %u = lamb_update %p, %g, %m, %v, %t {beta1=0.9 ...} : f32[8]
 *         m, v as above; u = m^ / (sqrt(v^) + eps) + wd p
 *     lamb_apply %p, %u, %lr, %np, %nu {least=0.01 most=10}
 *         p -= lr r u, r = |p| / |u| in [least, most]
 *
 * m^ = m / (1 - beta1^t), v^ = v / (1 - beta2^t); t is a state i64[] that counts updates from 1; it
 * is advanced before. np and nu are the norms |p| and |u|; r is 1 where one of them is 0. m, v, buf
 * and u are f32, f64 for an f64 parameter. lr, np and nu are floats of one element.
 *
 * The last operand of sgd (3, or 4 after the buffer), adamw (6), lamb_update and lamb_apply (5) may
 * be the master weights of a bf16 or f16 parameter, an f32 state. They are read and updated instead
 * of p; then p = master, rounded.
 *
 * With scaled=true one more operand comes last, a float by which the gradient is multiplied first:
 * it clips the gradient, or removes the loss scale (scaler.c). A negative scale skips the step:
 * parameter and states do not change, and u is 0.
 *
 *     adamw %p, %g, %m, %v, %lr, %t, %c {beta1=0.9 beta2=0.999 eps=1e-08 scaled=true}
 *
 * For a bucket (bucket.c) or a shard of one, blocks lists the parameters to update, as ranges of
 * blocks of 1024 elements of the whole bucket. Each has its own weight decay (decays) and, in
 * lamb_apply, its own element of np and nu. With world=n the operands are this rank's shard, one of
 * n. Elements outside the ranges do not change; u is 0 there.
 *
 * With piece=[at,size] the operands are pieces of a bucket or shard of `size` elements, from
 * element `at` on. The list of ranges is that of the whole bucket.
 *
 * Numbers that all elements share (corrections, rates) are computed in double and rounded once.
 * Otherwise no element depends on another, so a tensor can be split anywhere. */

/* ------------------------------------------------------------------------------- infer */

/* Element 0 of the operands is element *at of *size: by the attribute piece, which stands before
 * `world`. */
static void zfi_piece_at(const zf_attribute *world, int64_t count, int64_t *at, int64_t *size)
{
    const zf_attribute *piece = world - 1;
    const int64_t *list = piece->list.data;
    *at = piece->list.count ? list[0] : 0;
    *size = piece->list.count ? list[1] : count;
}

/* Checks that operand 0 is a parameter, or a bucket or a shard of one, or a piece of these. `first`
 * is the number of the attribute world; piece stands before it; blocks and, where there are any,
 * decays follow it. */
static zf_status zfi_infer_target(zfi_infer *c, int first)
{
    const zf_attribute *world = c->attributes + first, *blocks = world + 1, *decays = blocks + 1;
    zf_op op = zfi_home_of(c->graph, c->args[0])->op;
    int64_t count = zfi_node_count(c->args[0]), shards = world->i > 0 ? world->i : 1, at, size;
    zf_status status;
    if ((world - 1)->list.count != 0 && (world - 1)->list.count != 2)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "piece must be two numbers, its place and the "
                                                  "size of what it is a piece of");
    zfi_piece_at(world, count, &at, &size);
    if (at < 0 || at % ZFI_NORM_BLOCK || count > size || at > size - count)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "%lld elements from %lld on are no piece of %lld; pieces begin at "
                              "multiples of %d",
                              (long long)count, (long long)at, (long long)size, ZFI_NORM_BLOCK);
    count = size;
    if (op != ZF_OP_param && op != ZF_OP_bucket && op != ZF_OP_shard)
        return zfi_infer_fail(
            c, ZF_ERR_ARGUMENT,
            "operand 0 must be a param, a bucket or a shard of one, not the result "
            "of %s",
            c->graph->records[op]->name);
    if (op != ZF_OP_param && !blocks->list.count)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "blocks must list the parameters of the bucket that it updates");
    if (world->i < 0 || count > INT64_MAX / shards)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "world %lld is none", (long long)world->i);
    status = zfi_infer_blocks(c, blocks, zfi_whole_blocks(count * shards));
    if (!status && strstr(c->record->attributes, "decays:") &&
        decays->list.count != blocks->list.count / 2)
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%lld decays for %lld ranges of blocks",
                                (long long)decays->list.count, (long long)blocks->list.count / 2);
    return status ? status : zfi_infer_like(c, 0);
}

/* Checks that operand k, called `what` in messages, has the shape of the parameter and the given
 * dtype; with `state`, that it is a state or a bucket of states. */
static zf_status zfi_infer_beside(const zfi_infer *c, int32_t k, const char *what, zf_dtype dtype,
                                  bool state)
{
    char type[ZFI_TYPE_TEXT];
    const zfi_node *x = c->args[k];
    const zf_op op = zfi_home_of(c->graph, x)->op;
    bool stateless = state && op != ZF_OP_state && op != ZF_OP_bucket && op != ZF_OP_shard;
    zf_status status = stateless           ? ZF_ERR_ARGUMENT
                       : x->dtype != dtype ? ZF_ERR_DTYPE
                                           : ZF_ERR_SHAPE;
    if (!stateless && x->dtype == dtype && zfi_same_shape(&x->shape, &c->args[0]->shape))
        return ZF_OK;
    return zfi_infer_fail(c, status, "operand %d, %s, must be %s%s", (int)k, what,
                          stateless ? "a state " : "",
                          zfi_type_text(type, dtype, &c->args[0]->shape));
}

/* Checks that operand k is a float tensor of `count` elements. */
static zf_status zfi_infer_numbers(const zfi_infer *c, int32_t k, const char *what, int64_t count)
{
    if (zfi_is_float(c->args[k]->dtype) && zfi_node_count(c->args[k]) == count) return ZF_OK;
    if (count == 1)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d, %s, must be one float", (int)k, what);
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d, %s, must be %lld floats", (int)k, what,
                          (long long)count);
}

static zf_status zfi_infer_number(const zfi_infer *c, int32_t k, const char *what)
{
    return zfi_infer_numbers(c, k, what, 1);
}

/* Checks that an attribute called `what` is at least 0, finite, and below `most`. */
static zf_status zfi_infer_below(const zfi_infer *c, const char *what, double value, double most)
{
    if (value >= 0 && value < most) return ZF_OK;
    if (isinf(most))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%s = %g must be finite and not negative", what,
                              value);
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%s = %g must be at least 0 and below %g", what,
                          value, most);
}

/* With attribute `at`, scaled: checks the last operand and removes it from *c for the checks that
 * follow. `least`: the number of operands before it, at least. */
static zf_status zfi_infer_scaled(zfi_infer *c, int at, int32_t least)
{
    zf_status status = ZF_OK;
    if (!(c->attributes + at)->i) return ZF_OK;
    if (c->arg_count <= least)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "scaled=true needs one more operand, the scale");
    status = zfi_infer_number(c, c->arg_count - 1, "the scale");
    c->arg_count--;
    return status;
}

/* Checks operand k, if it is there: the master weights of operand 0. */
static zf_status zfi_infer_master(const zfi_infer *c, int32_t k)
{
    zf_dtype dtype = c->args[0]->dtype;
    if (c->arg_count <= k) return ZF_OK;
    if (dtype != ZF_BF16 && dtype != ZF_F16)
        return zfi_infer_fail(c, ZF_ERR_DTYPE,
                              "operand %d: a parameter with master weights is bf16 or f16, not %s",
                              (int)k, zf_dtype_name(dtype));
    for (int32_t other = 1; other < k; other++)
        if (c->args[other] == c->args[k])
            return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                  "operands %d and %d, the master weights, must be two states",
                                  (int)other, (int)k);
    return zfi_infer_beside(c, k, "the master weights", ZF_F32, true);
}

/* The number of the operand of sgd that is its optional master weights: after the buffer, which
 * momentum needs. */
static int32_t zfi_sgd_master(double momentum) { return momentum != 0 ? 4 : 3; }

static zf_status zfi_infer_sgd(zfi_infer *c)
{
    double momentum = ZF_FLOAT(c, sgd, momentum);
    int32_t master = zfi_sgd_master(momentum);
    zf_status status = zfi_infer_scaled(c, ZF_AT_sgd_scaled, 3);
    if (!status) status = zfi_infer_target(c, ZF_AT_sgd_world);
    if (!status && c->arg_count > master + 1)
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%d operands without scaled=true",
                                (int)c->arg_count);
    if (!status) status = zfi_infer_beside(c, 1, "the gradient", c->args[0]->dtype, false);
    if (!status) status = zfi_infer_number(c, 2, "the learning rate");
    if (!status) status = zfi_infer_below(c, "momentum", momentum, INFINITY);
    if (!status)
        status = zfi_infer_below(c, "weight_decay", ZF_FLOAT(c, sgd, weight_decay), INFINITY);
    if (!status && c->arg_count < master)
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                "momentum = %g needs a buffer, a state, as operand 3", momentum);
    if (!status && master > 3)
        status = zfi_infer_beside(c, 3, "the momentum buffer", zfi_wide(c->args[0]->dtype), true);
    if (!status) status = zfi_infer_master(c, master);
    if (!status && momentum == 0 && ZF_INT(c, sgd, nesterov))
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "nesterov needs a momentum above 0");
    return status;
}

/* Checks what adamw and lamb_update share: operands 0 to 3, operand `step` and the one after it,
 * and the attributes. */
static zf_status zfi_infer_adam(zfi_infer *c, int32_t step)
{
    zf_dtype wide = zfi_wide(c->args[0]->dtype);
    zf_status status = zfi_infer_scaled(c, ZF_AT_adamw_scaled, step + 1);
    if (!status) status = zfi_infer_target(c, ZF_AT_adamw_world);
    if (!status && c->arg_count > step + 2)
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%d operands without scaled=true",
                                (int)c->arg_count);
    if (!status) status = zfi_infer_beside(c, 1, "the gradient", c->args[0]->dtype, false);
    if (!status) status = zfi_infer_beside(c, 2, "the mean", wide, true);
    if (!status) status = zfi_infer_beside(c, 3, "the variance", wide, true);
    if (!status && c->args[2] == c->args[3])
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                "operands 2 and 3, mean and variance, must be two states");
    if (!status && (c->args[step]->op != ZF_OP_state || c->args[step]->dtype != ZF_I64 ||
                    c->args[step]->shape.rank))
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand %d, the step, must be a state i64[]",
                                (int)step);
    if (!status) status = zfi_infer_master(c, step + 1);
    if (!status) status = zfi_infer_below(c, "beta1", ZF_FLOAT(c, adamw, beta1), 1);
    if (!status) status = zfi_infer_below(c, "beta2", ZF_FLOAT(c, adamw, beta2), 1);
    if (!status) status = zfi_infer_below(c, "eps", ZF_FLOAT(c, adamw, eps), INFINITY);
    if (!status)
        status = zfi_infer_below(c, "weight_decay", ZF_FLOAT(c, adamw, weight_decay), INFINITY);
    return status;
}

static zf_status zfi_infer_adamw(zfi_infer *c)
{
    zf_status status = zfi_infer_adam(c, 5);
    return status ? status : zfi_infer_number(c, 4, "the learning rate");
}

static zf_status zfi_infer_lamb_update(zfi_infer *c)
{
    zf_status status = zfi_infer_adam(c, 4);
    c->dtype = zfi_wide(c->args[0]->dtype);
    return status;
}

static zf_status zfi_infer_lamb_apply(zfi_infer *c)
{
    double least = ZF_FLOAT(c, lamb_apply, least), most = ZF_FLOAT(c, lamb_apply, most);
    int64_t norms =
        ZF_LIST(c, lamb_apply, blocks).count ? ZF_LIST(c, lamb_apply, blocks).count / 2 : 1;
    zf_status status = zfi_infer_target(c, ZF_AT_lamb_apply_world);
    if (!status) status = zfi_infer_beside(c, 1, "the update", zfi_wide(c->args[0]->dtype), false);
    if (!status) status = zfi_infer_number(c, 2, "the learning rate");
    if (!status) status = zfi_infer_numbers(c, 3, "the parameter's norm", norms);
    if (!status) status = zfi_infer_numbers(c, 4, "the update's norm", norms);
    if (!status) status = zfi_infer_master(c, 5);
    if (!status && !(least >= 0 && least <= most))
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                "the ratio's bounds, %g and %g, must be 0 <= least <= most", least,
                                most);
    return status;
}

/* --------------------------------------------------------------------------- stretches */

/* A range of elements in [from, until) that is updated as one: elements of one parameter. */
typedef struct zfi_stretch {
    int64_t first, last; /* these elements */
    int64_t index;       /* number of the parameter in the list of ranges; 0 without a list */
    double decay;
    int64_t from, until, next; /* next: the range at which to continue */
} zfi_stretch;

static zfi_stretch zfi_stretch_over(int64_t from, int64_t until)
{
    return (zfi_stretch){.from = from, .until = until};
}

/* Goes to the next stretch; false after the last. at: the number of the attribute world, which
 * blocks and decays follow; decay: the weight decay of a whole tensor. */
static bool zfi_next_stretch(const zf_launch *l, int at, double decay, zfi_stretch *s)
{
    const zf_attribute *world = l->attributes + at, *blocks = world + 1, *decays = blocks + 1;
    const int64_t *ends = blocks->list.data;
    int64_t base, size, count = blocks->list.count / 2;
    zfi_piece_at(world, zfi_count(&l->args[0]), &base, &size);
    if (world->i > 1) base += l->run->shard * size;
    if (!count) {
        s->first = s->from, s->last = s->until, s->decay = decay;
        return s->next++ == 0 && s->from < s->until;
    }
    if (s->next == 0) { /* find the first range that ends after `from` */
        int64_t low = 0, high = count;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (ends[2 * middle + 1] * ZFI_NORM_BLOCK > base + s->from) high = middle;
            else low = middle + 1;
        }
        s->next = low;
    }
    while (s->next < count) { /* ranges may be empty */
        s->index = s->next++;
        s->first = ends[2 * s->index] * ZFI_NORM_BLOCK - base;
        s->last = ends[2 * s->index + 1] * ZFI_NORM_BLOCK - base;
        if (s->first < s->from) s->first = s->from;
        if (s->last > s->until) s->last = s->until;
        s->decay = l->op == ZF_OP_lamb_apply ? 0 : ((const double *)decays->list.data)[s->index];
        if (s->first < s->last) return true;
        if (s->first >= s->until) return false;
    }
    return false;
}

/* ------------------------------------------------------------------------------- scale */

/* The launch without the operand that belongs to attribute `at`, scaled. */
static zf_launch zfi_without_scale(const zf_launch *l, int at)
{
    zf_launch own = *l;
    own.arg_count -= (l->attributes + at)->i != 0;
    return own;
}

/* The factor for the gradients in a launch with or without that operand. */
static double zfi_gradient_scale(const zf_launch *own, int at)
{
    return (own->attributes + at)->i ? zfi_get(&own->args[own->arg_count], 0) : 1;
}

/* --------------------------------------------------------------------- runs of elements */

/* The fast kernels compute in f32. Tensors of 16 bits are converted in runs that stay in the
 * first-level cache, so that each number passes through memory once. */

/* The number of elements of the next run, of `rest` that are left. */
static int64_t zfi_update_run(const zf_launch *l, int64_t rest)
{
    return l->args[0].dtype == ZF_F32 || rest < ZFI_CONVERT_RUN ? rest : ZFI_CONVERT_RUN;
}

/* Elements [at, at + n) of operand k as f32: in place, or converted into `aside`. */
static float *zfi_update_floats(const zf_launch *l, int32_t k, int64_t at, int64_t n, float *aside)
{
    const zf_array *x = &l->args[k];
    if (x->dtype == ZF_F32) return (float *)x->data + at;
    zfi_widen(zfi_cpu_of(l)->isa, aside, x->dtype, zfi_element(x->data, x->dtype, at), n);
    return aside;
}

/* Writes `weights`, rounded, to elements [at, at + n) of a parameter of 16 bits. */
static void zfi_update_parameter(const zf_launch *l, int64_t at, int64_t n, const float *weights)
{
    const zf_array *p = &l->args[0];
    if (p->dtype != ZF_F32)
        zfi_narrow(zfi_cpu_of(l)->isa, zfi_element_of(p->data, p->dtype, at), p->dtype, weights, n);
}

/* ------------------------------------------------------------------------------ weights */

/* The weights to update: the parameter, or its master weights, operand k. */
static const zf_array *zfi_weights(const zf_launch *l, int32_t k)
{
    return &l->args[l->arg_count > k ? k : 0];
}

/* Sets element i of the weights to update, and the parameter to the rounded master weight. */
static void zfi_set_weight(const zf_launch *l, const zf_array *weights, int64_t i, double value)
{
    zfi_set(weights, i, value);
    if (weights != &l->args[0]) zfi_set(&l->args[0], i, zfi_get(weights, i));
}

/* Runs an update over its elements, unless the loss scale says that the step is skipped. at: the
 * number of its attribute `scaled`. */
static zf_status zfi_run_update(const zf_launch *l, int at, zfi_range_task *fast,
                                zfi_range_task *reference)
{
    zf_launch own = zfi_without_scale(l, at);
    if (zfi_gradient_scale(&own, at) < 0) return ZF_OK;
    zfi_split(&own, zfi_count(&l->args[0]), ZFI_GRAIN, zfi_fast_or_half(l) ? fast : reference);
    return ZF_OK;
}

/* --------------------------------------------------------------------------------- sgd */

static void zfi_sgd_reference(const zf_launch *l, int64_t first, int64_t last)
{
    double lr = zfi_get(&l->args[2], 0), momentum = ZF_FLOAT(l, sgd, momentum),
           scale = zfi_gradient_scale(l, ZF_AT_sgd_scaled);
    const zf_array *p = zfi_weights(l, zfi_sgd_master(momentum)), *g = &l->args[1],
                   *buf = momentum != 0 ? &l->args[3] : NULL;
    zfi_stretch s = zfi_stretch_over(first, last);
    while (zfi_next_stretch(l, ZF_AT_sgd_world, ZF_FLOAT(l, sgd, weight_decay), &s))
        for (int64_t i = s.first; i < s.last; i++) {
            double d = scale * zfi_get(g, i) + s.decay * zfi_get(p, i);
            if (buf) {
                double b = momentum * zfi_get(buf, i) + d;
                zfi_set(buf, i, b);
                d = ZF_INT(l, sgd, nesterov) ? d + momentum * b : b;
            }
            zfi_set_weight(l, p, i, zfi_get(p, i) - lr * d);
        }
}

ZFI_BODY void zfi_sgd_run_body(zfi_isa isa, float *p, const float *g, float *buf, float scale,
                               float lr, float momentum, bool nesterov, float decay, int64_t n)
{
    if (!buf) {
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++)
            p[i] = zfi_fma(isa, -lr, zfi_fma(isa, decay, p[i], scale * g[i]), p[i]);
    } else {
        float of_buf = nesterov ? momentum : 1, of_d = nesterov ? 1 : 0;
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) {
            float d = zfi_fma(isa, decay, p[i], scale * g[i]),
                  b = zfi_fma(isa, momentum, buf[i], d);
            buf[i] = b;
            p[i] = zfi_fma(isa, -lr, zfi_fma(isa, of_buf, b, of_d * d), p[i]);
        }
    }
}
ZFI_KERNEL(zfi_sgd_run,
           (float *p, const float *g, float *buf, float scale, float lr, float momentum,
            bool nesterov, float decay, int64_t n),
           (p, g, buf, scale, lr, momentum, nesterov, decay, n))

static void zfi_sgd_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int32_t master = zfi_sgd_master(ZF_FLOAT(l, sgd, momentum)),
            weights = l->arg_count > master ? master : 0;
    float *buf = ZF_FLOAT(l, sgd, momentum) != 0 ? l->args[3].data : NULL;
    zfi_stretch s = zfi_stretch_over(first, last);
    while (zfi_next_stretch(l, ZF_AT_sgd_world, ZF_FLOAT(l, sgd, weight_decay), &s))
        for (int64_t at = s.first, n; at < s.last; at += n) {
            float of_p[ZFI_CONVERT_RUN], of_g[ZFI_CONVERT_RUN], *p;
            n = zfi_update_run(l, s.last - at);
            p = zfi_update_floats(l, weights, at, n, of_p);
            zfi_sgd_run(zfi_cpu_of(l)->isa, p, zfi_update_floats(l, 1, at, n, of_g),
                        buf ? buf + at : NULL, (float)zfi_gradient_scale(l, ZF_AT_sgd_scaled),
                        (float)zfi_get(&l->args[2], 0), (float)ZF_FLOAT(l, sgd, momentum),
                        ZF_INT(l, sgd, nesterov), (float)s.decay, n);
            zfi_update_parameter(l, at, n, p);
        }
}

static zf_status zfi_cpu_sgd(const zf_launch *l)
{
    return zfi_run_update(l, ZF_AT_sgd_scaled, zfi_sgd_fast, zfi_sgd_reference);
}

/* -------------------------------------------------------------------- adamw, lamb_update */

/* The attributes, and: scale, the factor of gradients; m^ = m * of_m; sqrt(v^) = sqrt(v) *
 * of_root. */
typedef struct zfi_adam {
    double beta1, beta2, eps, of_m, of_root, scale;
} zfi_adam;

/* The operand that is the step's number. The master weights, if any, follow it. */
static const zf_array *zfi_adam_step(const zf_launch *l)
{
    return &l->args[l->op == ZF_OP_adamw ? 5 : 4];
}

static zfi_adam zfi_adam_of(const zf_launch *l)
{
    const zf_attribute *a = l->attributes;
    double t = zfi_get(zfi_adam_step(l), 0);
    return (zfi_adam){a[0].f,
                      a[1].f,
                      a[2].f,
                      1 / (1 - pow(a[0].f, t)),
                      1 / sqrt(1 - pow(a[1].f, t)),
                      zfi_gradient_scale(l, ZF_AT_adamw_scaled)};
}

/* Updates element i of m and v, and returns m^ / (sqrt(v^) + eps). */
static double zfi_adam_reference(const zf_launch *l, const zfi_adam *a, int64_t i)
{
    const zf_array *m = &l->args[2], *v = &l->args[3];
    double g = a->scale * zfi_get(&l->args[1], i);
    double mean = a->beta1 * zfi_get(m, i) + (1 - a->beta1) * g;
    double variance = a->beta2 * zfi_get(v, i) + (1 - a->beta2) * g * g;
    zfi_set(m, i, mean);
    zfi_set(v, i, variance);
    return mean * a->of_m / (sqrt(variance) * a->of_root + a->eps);
}

static void zfi_adamw_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *p = zfi_weights(l, 6);
    zfi_adam a = zfi_adam_of(l);
    double lr = zfi_get(&l->args[4], 0);
    zfi_stretch s = zfi_stretch_over(first, last);
    while (zfi_next_stretch(l, ZF_AT_adamw_world, ZF_FLOAT(l, adamw, weight_decay), &s))
        for (int64_t i = s.first; i < s.last; i++) {
            double old = zfi_get(p, i);
            zfi_set_weight(l, p, i, old - lr * s.decay * old - lr * zfi_adam_reference(l, &a, i));
        }
}

static void zfi_zero_update(const zf_launch *l, int64_t first, int64_t last)
{
    size_t size = zf_dtype_size(l->out.dtype);
    memset((char *)l->out.data + (size_t)first * size, 0, (size_t)(last - first) * size);
}

/* Sets u to 0 for elements that belong to no parameter. */
static void zfi_clear_update(const zf_launch *l, int64_t first, int64_t last)
{
    if (l->op == ZF_OP_lamb_update && ZF_LIST(l, lamb_update, blocks).count)
        zfi_zero_update(l, first, last);
}

static void zfi_lamb_update_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *p = zfi_weights(l, 5);
    zfi_adam a = zfi_adam_of(l);
    zfi_stretch s = zfi_stretch_over(first, last);
    zfi_clear_update(l, first, last);
    while (zfi_next_stretch(l, ZF_AT_adamw_world, ZF_FLOAT(l, lamb_update, weight_decay), &s))
        for (int64_t i = s.first; i < s.last; i++)
            zfi_set(&l->out, i, zfi_adam_reference(l, &a, i) + s.decay * zfi_get(p, i));
}

/* u NULL: p = keep p - rate m / (sqrt(v) of_root + eps). Else u = keep p + rate m / (sqrt(v)
 * of_root + eps). */
ZFI_BODY void zfi_adam_run_body(zfi_isa isa, float *u, float *p, const float *g, float *m, float *v,
                                float scale, float beta1, float rest1, float beta2, float rest2,
                                float of_root, float eps, float keep, float rate, int64_t n)
{
#define ZFI_ADAM(to, sign)                                                                         \
    ZFI_VECTOR                                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                              \
        float d = scale * g[i];                                                                    \
        float mean = zfi_fma(isa, beta1, m[i], rest1 * d);                                         \
        float variance = zfi_fma(isa, beta2, v[i], rest2 * d * d);                                 \
        m[i] = mean;                                                                               \
        v[i] = variance;                                                                           \
        to[i] = zfi_fma(isa, keep, p[i],                                                           \
                        sign rate * (mean / zfi_fma(isa, sqrtf(variance), of_root, eps)));         \
    }
    if (u) {
        ZFI_ADAM(u, +)
    } else {
        ZFI_ADAM(p, -)
    }
#undef ZFI_ADAM
}
ZFI_KERNEL(zfi_adam_run,
           (float *u, float *p, const float *g, float *m, float *v, float scale, float beta1,
            float rest1, float beta2, float rest2, float of_root, float eps, float keep, float rate,
            int64_t n),
           (u, p, g, m, v, scale, beta1, rest1, beta2, rest2, of_root, eps, keep, rate, n))

static void zfi_adam_fast(const zf_launch *l, int64_t first, int64_t last)
{
    bool adamw = l->op == ZF_OP_adamw;
    int32_t weights = (int32_t)(zfi_weights(l, adamw ? 6 : 5) - l->args);
    float *m = l->args[2].data, *v = l->args[3].data, *u = l->out.data;
    zfi_adam a = zfi_adam_of(l);
    double lr = adamw ? zfi_get(&l->args[4], 0) : 1;
    zfi_stretch s = zfi_stretch_over(first, last);
    zfi_clear_update(l, first, last);
    while (zfi_next_stretch(l, ZF_AT_adamw_world, ZF_FLOAT(l, adamw, weight_decay), &s)) {
        double keep = adamw ? 1 - lr * s.decay : s.decay;
        for (int64_t at = s.first, n; at < s.last; at += n) {
            float of_p[ZFI_CONVERT_RUN], of_g[ZFI_CONVERT_RUN], *p;
            n = zfi_update_run(l, s.last - at);
            p = zfi_update_floats(l, weights, at, n, of_p);
            zfi_adam_run(zfi_cpu_of(l)->isa, adamw ? NULL : u + at, p,
                         zfi_update_floats(l, 1, at, n, of_g), m + at, v + at, (float)a.scale,
                         (float)a.beta1, (float)(1 - a.beta1), (float)a.beta2, (float)(1 - a.beta2),
                         (float)a.of_root, (float)a.eps, (float)keep, (float)(lr * a.of_m), n);
            if (adamw) zfi_update_parameter(l, at, n, p);
        }
    }
}

/* An error unless the step was advanced before. */
static zf_status zfi_cpu_adam(const zf_launch *l, const char *name, zfi_range_task *reference)
{
    zf_launch own = zfi_without_scale(l, ZF_AT_adamw_scaled);
    int64_t t = zfi_get_integer(zfi_adam_step(l), 0);
    if (zfi_gradient_scale(&own, ZF_AT_adamw_scaled) < 0) {
        if (l->op == ZF_OP_lamb_update)
            zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, zfi_zero_update);
        return ZF_OK;
    }
    if (t < 1)
        return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                        "%s: the step, operand %d, is %lld; it counts updates from 1, so it "
                        "must be advanced before",
                        name, (int)(zfi_adam_step(l) - l->args), (long long)t);
    zfi_split(&own, zfi_count(&l->args[0]), ZFI_GRAIN,
              zfi_fast_or_half(l) ? zfi_adam_fast : reference);
    return ZF_OK;
}

static zf_status zfi_cpu_adamw(const zf_launch *l)
{
    return zfi_cpu_adam(l, "adamw", zfi_adamw_reference);
}

static zf_status zfi_cpu_lamb_update(const zf_launch *l)
{
    return zfi_cpu_adam(l, "lamb_update", zfi_lamb_update_reference);
}

/* -------------------------------------------------------------------------- lamb_apply */

/* lr r for parameter `index`; NaN if a norm is NaN. */
static double zfi_lamb_rate(const zf_launch *l, int64_t index)
{
    double p = zfi_get(&l->args[3], index), u = zfi_get(&l->args[4], index), ratio = p / u;
    if (ratio < ZF_FLOAT(l, lamb_apply, least)) ratio = ZF_FLOAT(l, lamb_apply, least);
    if (ratio > ZF_FLOAT(l, lamb_apply, most)) ratio = ZF_FLOAT(l, lamb_apply, most);
    if (p == 0 || u == 0) ratio = 1;
    return zfi_get(&l->args[2], 0) * ratio;
}

static void zfi_lamb_apply_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *p = zfi_weights(l, 5), *u = &l->args[1];
    zfi_stretch s = zfi_stretch_over(first, last);
    while (zfi_next_stretch(l, ZF_AT_lamb_apply_world, 0, &s)) {
        double rate = zfi_lamb_rate(l, s.index);
        for (int64_t i = s.first; i < s.last; i++)
            zfi_set_weight(l, p, i, zfi_get(p, i) - rate * zfi_get(u, i));
    }
}

/* p -= rate u: the same loop as the step of sgd. */
static void zfi_lamb_apply_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int32_t weights = (int32_t)(zfi_weights(l, 5) - l->args);
    const float *u = l->args[1].data;
    zfi_stretch s = zfi_stretch_over(first, last);
    while (zfi_next_stretch(l, ZF_AT_lamb_apply_world, 0, &s))
        for (int64_t at = s.first, n; at < s.last; at += n) {
            float of_p[ZFI_CONVERT_RUN], *p;
            n = zfi_update_run(l, s.last - at);
            p = zfi_update_floats(l, weights, at, n, of_p);
            zfi_sgd_run(zfi_cpu_of(l)->isa, p, u + at, NULL, 1, (float)zfi_lamb_rate(l, s.index), 0,
                        false, 0, n);
            zfi_update_parameter(l, at, n, p);
        }
}

static zf_status zfi_cpu_lamb_apply(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->args[0]), ZFI_GRAIN,
              zfi_fast_or_half(l) ? zfi_lamb_apply_fast : zfi_lamb_apply_reference);
    return ZF_OK;
}

/* ----------------------------------------------------------------------- what is written */

/* Operand k is the master weights if it is there and is not the operand of `scaled`. */
static int32_t zfi_master_at(const zfi_node *node, int32_t k, bool scaled)
{
    return node->arg_count - scaled > k ? k : -1;
}

static int32_t zfi_master_sgd(const zfi_node *node)
{
    return zfi_master_at(node, zfi_sgd_master(ZF_FLOAT(node, sgd, momentum)),
                         ZF_INT(node, sgd, scaled));
}

static int32_t zfi_master_adamw(const zfi_node *node)
{
    return zfi_master_at(node, 6, ZF_INT(node, adamw, scaled));
}

static int32_t zfi_master_lamb_update(const zfi_node *node)
{
    return zfi_master_at(node, 5, ZF_INT(node, lamb_update, scaled));
}

static int32_t zfi_master_lamb_apply(const zfi_node *node) { return zfi_master_at(node, 5, false); }

static uint32_t zfi_writes_sgd(const zfi_node *node)
{
    int32_t args = node->arg_count - (int32_t)ZF_INT(node, sgd, scaled);
    return 1 | (args > 3 ? 1 << 3 : 0) | (args > 4 ? 1 << 4 : 0);
}

static uint32_t zfi_writes_adamw(const zfi_node *node)
{
    return 1 | 1 << 2 | 1 << 3 | (zfi_master_adamw(node) > 0 ? 1 << 6 : 0);
}

/* lamb_update does not write the master weights; lamb_apply does. */
static uint32_t zfi_writes_lamb_update(const zfi_node *node)
{
    (void)node;
    return 1 << 2 | 1 << 3;
}

static uint32_t zfi_writes_lamb_apply(const zfi_node *node)
{
    return 1 | (zfi_master_lamb_apply(node) > 0 ? 1 << 5 : 0);
}

/* All operands are read. Those of the parameter's size are written too, except the second, the
 * gradient. */
static double zfi_bytes_update(const zf_launch *l)
{
    double bytes = 0;
    for (int32_t k = 0; k < l->arg_count; k++) {
        bool written = k != 1 && zfi_same_shape(&l->args[k].shape, &l->args[0].shape);
        bytes += (double)zfi_array_bytes(&l->args[k]) * (written ? 2 : 1);
    }
    return bytes;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(lamb_update, adamw, beta1)
ZFI_SAME_ATTRIBUTE(lamb_update, adamw, beta2)
ZFI_SAME_ATTRIBUTE(lamb_update, adamw, eps)
ZFI_SAME_ATTRIBUTE(lamb_update, adamw, weight_decay)
ZFI_SAME_ATTRIBUTE(lamb_update, adamw, world)
ZFI_SAME_ATTRIBUTE(lamb_update, adamw, scaled)
ZFI_OPERATOR(sgd, .infer = zfi_infer_sgd, .grad = zfi_grad_none, .cpu = zfi_cpu_sgd,
             .writes = zfi_writes_sgd, .master = zfi_master_sgd, .bytes = zfi_bytes_update,
             .rate = 2,
             .traits = ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_UPDATE)
ZFI_OPERATOR(adamw, .infer = zfi_infer_adamw, .grad = zfi_grad_none, .cpu = zfi_cpu_adamw,
             .writes = zfi_writes_adamw, .master = zfi_master_adamw, .bytes = zfi_bytes_update,
             .rate = 4,
             .traits = ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_UPDATE)
ZFI_OPERATOR(lamb_update, .infer = zfi_infer_lamb_update, .cpu = zfi_cpu_lamb_update,
             .writes = zfi_writes_lamb_update, .master = zfi_master_lamb_update,
             .ranks = ZFI_RANKS_GRADIENT, .traits = ZF_OP_MUTATES | ZF_OP_UPDATE)
ZFI_OPERATOR(lamb_apply, .infer = zfi_infer_lamb_apply, .grad = zfi_grad_none,
             .cpu = zfi_cpu_lamb_apply, .writes = zfi_writes_lamb_apply,
             .master = zfi_master_lamb_apply, .bytes = zfi_bytes_update, .rate = 2,
             .traits = ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_UPDATE)
