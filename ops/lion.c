/* lion: an optimizer that moves each element up or down by the learning rate (Chen et al. 2023,
 * "Symbolic Discovery of Optimization Algorithms", Algorithm 2).
 *
 *     lion %p, %g, %m, %lr {beta1=0.9 beta2=0.99 weight_decay=0.1}
 *         c = beta1 m + (1 - beta1) g, p -= lr wd p, p -= lr sign(c), m = beta2 m + (1 - beta2) g
 *
 * sign(0) is 0, sign(NaN) is NaN. m is f32, f64 for an f64 parameter. The master weights may follow
 * lr, and with scaled=true the scale comes last. These, piece, world, blocks and decays:
 * update.c. */

enum { ZFI_LION_MASTER = 4 }; /* the master weights, where there are any */

static zf_status zfi_infer_lion(zfi_infer *c)
{
    zf_status status = zfi_infer_scaled(c, ZF_AT_lion_scaled, ZFI_LION_MASTER);
    if (!status) status = zfi_infer_target(c, ZF_AT_lion_world);
    if (!status && c->arg_count > ZFI_LION_MASTER + 1)
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%d operands without scaled=true",
                                (int)c->arg_count);
    if (!status) status = zfi_infer_paired(c, 1, "the gradient", c->args[0]->dtype, false);
    if (!status) status = zfi_infer_paired(c, 2, "the mean", zfi_wide(c->args[0]->dtype), true);
    if (!status) status = zfi_infer_number(c, 3, "the learning rate");
    if (!status) status = zfi_infer_master(c, ZFI_LION_MASTER);
    if (!status) status = zfi_infer_below(c, "beta1", ZF_FLOAT(c, lion, beta1), 1);
    if (!status) status = zfi_infer_below(c, "beta2", ZF_FLOAT(c, lion, beta2), 1);
    if (!status)
        status = zfi_infer_below(c, "weight_decay", ZF_FLOAT(c, lion, weight_decay), INFINITY);
    return status;
}

static void zfi_lion_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *p = zfi_weights(l, ZFI_LION_MASTER), *m = &l->args[2];
    double beta1 = ZF_FLOAT(l, lion, beta1), beta2 = ZF_FLOAT(l, lion, beta2),
           lr = zfi_get(&l->args[3], 0), scale = zfi_gradient_scale(l, ZF_AT_lion_scaled);
    zfi_stretch s = zfi_stretch_over(first, last);
    while (zfi_next_stretch(l, ZF_AT_lion_world, ZF_FLOAT(l, lion, weight_decay), &s))
        for (int64_t i = s.first; i < s.last; i++) {
            double g = scale * zfi_get(&l->args[1], i), mean = zfi_get(m, i), old = zfi_get(p, i);
            double c = beta1 * mean + (1 - beta1) * g, sign = c > 0 ? 1 : c < 0 ? -1 : c;
            zfi_set(m, i, beta2 * mean + (1 - beta2) * g);
            zfi_set_weight(l, p, i, old - lr * s.decay * old - lr * sign);
        }
}

ZFI_BODY void zfi_lion_run_body(zfi_isa isa, float *p, const float *g, float *m, float scale,
                                float beta1, float rest1, float beta2, float rest2, float keep,
                                float lr, int64_t n)
{
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) {
        float d = scale * g[i], c = zfi_fma(isa, beta1, m[i], rest1 * d);
        float by = zfi_pick(isa, c > 0, lr, zfi_pick(isa, c < 0, -lr, c));
        m[i] = zfi_fma(isa, beta2, m[i], rest2 * d);
        p[i] = zfi_fma(isa, keep, p[i], -by);
    }
}
ZFI_KERNEL(zfi_lion_run,
           (float *p, const float *g, float *m, float scale, float beta1, float rest1, float beta2,
            float rest2, float keep, float lr, int64_t n),
           (p, g, m, scale, beta1, rest1, beta2, rest2, keep, lr, n))

static void zfi_lion_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int32_t weights = (int32_t)(zfi_weights(l, ZFI_LION_MASTER) - l->args);
    double beta1 = ZF_FLOAT(l, lion, beta1), beta2 = ZF_FLOAT(l, lion, beta2),
           lr = zfi_get(&l->args[3], 0);
    float *m = l->args[2].data, scale = (float)zfi_gradient_scale(l, ZF_AT_lion_scaled);
    zfi_stretch s = zfi_stretch_over(first, last);
    while (zfi_next_stretch(l, ZF_AT_lion_world, ZF_FLOAT(l, lion, weight_decay), &s))
        for (int64_t at = s.first, n; at < s.last; at += n) {
            float of_p[ZFI_CONVERT_RUN], of_g[ZFI_CONVERT_RUN], *p;
            n = zfi_update_run(l, s.last - at);
            p = zfi_update_floats(l, weights, at, n, of_p);
            zfi_lion_run(zfi_cpu_of(l)->isa, p, zfi_update_floats(l, 1, at, n, of_g), m + at, scale,
                         (float)beta1, (float)(1 - beta1), (float)beta2, (float)(1 - beta2),
                         (float)(1 - lr * s.decay), (float)lr, n);
            zfi_update_parameter(l, at, n, p);
        }
}

static zf_status zfi_cpu_lion(const zf_launch *l)
{
    return zfi_run_update(l, &(zfi_update_tasks){.scaled = ZF_AT_lion_scaled,
                                                 .fast = zfi_lion_fast,
                                                 .reference = zfi_lion_reference});
}

static int32_t zfi_master_lion(const zfi_node *node)
{
    return zfi_master_at(node, ZFI_LION_MASTER, ZF_INT(node, lion, scaled));
}

static uint32_t zfi_writes_lion(const zfi_node *node)
{
    return 1 | 1 << 2 | (zfi_master_lion(node) > 0 ? 1 << ZFI_LION_MASTER : 0);
}

ZFI_OPERATOR(lion, .infer = zfi_infer_lion, .grad = zfi_grad_none, .cpu = zfi_cpu_lion,
             .writes = zfi_writes_lion, .master = zfi_master_lion, .bytes = zfi_bytes_update,
             .rate = 3, .traits = ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_UPDATE)

/* ------------------------------------------------------------------------------- the optimizer */

static const zf_option zfi_lion_options[] = {
    ZF_OPTION(zf_lion_desc, NUMBER, beta1, 0.9, "[0,1)", .traits = ZF_OPTION_CHANGES,
              .help = "share of the mean in the sign"),
    ZF_OPTION(zf_lion_desc, NUMBER, beta2, 0.99, "[0,1)", .traits = ZF_OPTION_CHANGES,
              .help = "decay of the mean"),
    ZFI_DECAY_OPTIONS(zf_lion_desc),
    {.name = NULL}};

static void zfi_update_lion(zf_graph *g, zfi_optimizer *o, zf_tensor p, zf_tensor dp,
                            double decay)
{
    const zf_lion_desc *d = o->desc;
    zf_tensor m = zfi_moment(g, "lion.m", p), w = zfi_master(g, "lion.master", p);
    (void)zfi_build_update(
        ZF_OP_lion, 6, (zf_tensor[]){p, dp, m, o->lr, w, o->scale},
        zfi_with({.f = d->beta1}, {.f = d->beta2},
                 {.f = decay}, [ZF_AT_lion_scaled] = {.i = o->scale.graph != NULL}));
}
ZFI_OPTIMIZER(lion, .update = zfi_update_lion)
