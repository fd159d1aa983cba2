/* adamw: Adam with decoupled weight decay (Loshchilov & Hutter 2019).
 *
 *     adamw %p, %g, %m, %v, %lr, %t {beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.01}
 *         m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
 *         p -= lr wd p, p -= lr m^ / (sqrt(v^) + eps)
 *
 * m^ = m / (1 - beta1^t), v^ = v / (1 - beta2^t), or m and v with uncorrected=true; t is a state
 * i64[] that counts updates from 1; it is advanced before. m and v are f32, f64 for an f64
 * parameter. The master weights may follow as operand 6, and with scaled=true the scale comes last,
 * with lazy=true of adamw after it rows (update.c). */

/* Checks what adamw and lamb_update share: operands 0 to 3, operand `step` and the one after it,
 * and the attributes. */
static zf_status zfi_infer_adam(zfi_infer *c, int32_t step)
{
    zf_dtype wide = zfi_wide(c->args[0]->dtype);
    const bool lazy = ZF_INT(c, adamw, lazy) != 0;
    zf_status status = zfi_infer_some_rows(c, lazy, step + 1, &ZF_ATTRIBUTE(c, adamw, world));
    if (!status) status = zfi_infer_scaled(c, ZF_AT_adamw_scaled, step + 1);
    if (!status) status = zfi_infer_target(c, ZF_AT_adamw_world);
    if (!status && c->arg_count > step + 2)
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%d operands without scaled=true",
                                (int)c->arg_count);
    if (!status && !lazy)
        status = zfi_infer_paired(c, 1, "the gradient", c->args[0]->dtype, false);
    if (!status) status = zfi_infer_paired(c, 2, "the mean", wide, true);
    if (!status) status = zfi_infer_paired(c, 3, "the variance", wide, true);
    if (!status && c->args[2] == c->args[3])
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                "operands 2 and 3, mean and variance, must be two states");
    if (!status) status = zfi_infer_count(c, step, "the step");
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
    const bool corrected = !ZF_INT(l, adamw, uncorrected);
    double t = zfi_get(zfi_adam_step(l), 0);
    return (zfi_adam){a[0].f,
                      a[1].f,
                      a[2].f,
                      corrected ? 1 / (1 - pow(a[0].f, t)) : 1,
                      corrected ? 1 / sqrt(1 - pow(a[1].f, t)) : 1,
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
static zf_status zfi_cpu_adam(const zf_launch *l, const char *name, const zfi_update_tasks *tasks)
{
    const zf_launch own = zfi_plain_update(l, tasks);
    int64_t t = zfi_get_integer(zfi_adam_step(l), 0);
    if (zfi_gradient_scale(&own, tasks->scaled) < 0) {
        if (l->op == ZF_OP_lamb_update)
            zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, zfi_zero_update);
        return ZF_OK;
    }
    if (t < 1)
        return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                        "%s: the step, operand %d, is %lld; it counts updates from 1, so it "
                        "must be advanced before",
                        name, (int)(zfi_adam_step(l) - l->args), (long long)t);
    return zfi_run_update(l, tasks);
}

static void zfi_adamw_rows(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_update_rows(l, l->arg_count + (ZF_INT(l, adamw, scaled) != 0), ZF_AT_adamw_world, first,
                    last, zfi_fast_or_half(l) ? zfi_adam_fast : zfi_adamw_reference);
}

static zf_status zfi_cpu_adamw(const zf_launch *l)
{
    return zfi_cpu_adam(l, "adamw", &(zfi_update_tasks){.scaled = ZF_AT_adamw_scaled,
                                                        .lazy = ZF_AT_adamw_lazy,
                                                        .fast = zfi_adam_fast,
                                                        .reference = zfi_adamw_reference,
                                                        .rows = zfi_adamw_rows});
}

static int32_t zfi_master_adamw(const zfi_node *node)
{
    return zfi_master_at(node, 6, (ZF_INT(node, adamw, scaled) != 0) +
                                      (ZF_INT(node, adamw, lazy) != 0));
}

static uint32_t zfi_writes_adamw(const zfi_node *node)
{
    return 1 | 1 << 2 | 1 << 3 | (zfi_master_adamw(node) > 0 ? 1 << 6 : 0);
}

ZFI_OPERATOR(adamw, .infer = zfi_infer_adamw, .grad = zfi_grad_none, .cpu = zfi_cpu_adamw,
             .writes = zfi_writes_adamw, .master = zfi_master_adamw, .bytes = zfi_bytes_lazy,
             .rate = 4,
             .traits = ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_UPDATE)

/* ------------------------------------------------------------------------------- the optimizer */

static const zf_option zfi_adamw_options[] = {
    ZFI_ADAM_OPTIONS(zf_adamw_desc, 1e-8), ZFI_CORRECTION_OPTION(zf_adamw_desc),
    ZFI_DECAY_OPTIONS(zf_adamw_desc), {.name = NULL}};

static void zfi_update_adamw(zf_graph *g, zfi_optimizer *o, zf_tensor p, zf_tensor dp,
                             double decay)
{
    const zf_adamw_desc *d = o->desc;
    zf_tensor m = zfi_moment(g, "adamw.m", p), v = zfi_moment(g, "adamw.v", p);
    zf_tensor w = zfi_master(g, "adamw.master", p);
    (void)zfi_build_update(
        ZF_OP_adamw, 9, (zf_tensor[]){p, dp, m, v, o->lr, o->step, w, o->scale, o->rows},
        zfi_with({.f = d->beta1}, {.f = d->beta2}, {.f = d->eps},
                 {.f = decay}, [ZF_AT_adamw_scaled] = {.i = o->scale.graph != NULL},
                 [ZF_AT_adamw_uncorrected] = {.i = d->no_bias_correction},
                 [ZF_AT_adamw_lazy] = {.i = o->rows.graph != NULL}));
}
ZFI_OPTIMIZER(adamw, .counts = true, .lazy = true, .update = zfi_update_adamw)
