/* sgd: stochastic gradient descent, with momentum and Nesterov's step (Sutskever et al. 2013).
 *
 *     sgd %p, %g, %lr {weight_decay=0.1}
 *         p -= lr d, d = g + wd p
 *     sgd %p, %g, %lr, %buf {momentum=0.9 nesterov=true}
 *         buf = momentum buf + d, p -= lr buf, or with nesterov p -= lr (d + momentum buf)
 *
 * buf is f32, f64 for an f64 parameter. The master weights may follow as operand 3, or 4 after the
 * buffer, and with scaled=true the scale comes last, with lazy=true after it rows (update.c). */

/* The number of the operand of sgd that is its optional master weights: after the buffer, which
 * momentum needs. */
static int32_t zfi_sgd_master(double momentum) { return momentum != 0 ? 4 : 3; }

static zf_status zfi_infer_sgd(zfi_infer *c)
{
    double momentum = ZF_FLOAT(c, sgd, momentum);
    int32_t master = zfi_sgd_master(momentum);
    const bool lazy = ZF_INT(c, sgd, lazy) != 0;
    zf_status status = zfi_infer_some_rows(c, lazy, 3, &ZF_ATTRIBUTE(c, sgd, world));
    if (!status) status = zfi_infer_scaled(c, ZF_AT_sgd_scaled, 3);
    if (!status) status = zfi_infer_target(c, ZF_AT_sgd_world);
    if (!status && c->arg_count > master + 1)
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%d operands without scaled=true",
                                (int)c->arg_count);
    if (!status && !lazy)
        status = zfi_infer_paired(c, 1, "the gradient", c->args[0]->dtype, false);
    if (!status) status = zfi_infer_number(c, 2, "the learning rate");
    if (!status) status = zfi_infer_below(c, "momentum", momentum, INFINITY);
    if (!status)
        status = zfi_infer_below(c, "weight_decay", ZF_FLOAT(c, sgd, weight_decay), INFINITY);
    if (!status && c->arg_count < master)
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                "momentum = %g needs a buffer, a state, as operand 3", momentum);
    if (!status && master > 3)
        status = zfi_infer_paired(c, 3, "the momentum buffer", zfi_wide(c->args[0]->dtype), true);
    if (!status) status = zfi_infer_master(c, master);
    if (!status && momentum == 0 && ZF_INT(c, sgd, nesterov))
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "nesterov needs a momentum above 0");
    return status;
}

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

static void zfi_sgd_rows(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_update_rows(l, l->arg_count + (ZF_INT(l, sgd, scaled) != 0), ZF_AT_sgd_world, first, last,
                    zfi_fast_or_half(l) ? zfi_sgd_fast : zfi_sgd_reference);
}

static zf_status zfi_cpu_sgd(const zf_launch *l)
{
    return zfi_run_update(l, &(zfi_update_tasks){.scaled = ZF_AT_sgd_scaled,
                                                 .lazy = ZF_AT_sgd_lazy,
                                                 .fast = zfi_sgd_fast,
                                                 .reference = zfi_sgd_reference,
                                                 .rows = zfi_sgd_rows});
}

static int32_t zfi_master_sgd(const zfi_node *node)
{
    return zfi_master_at(node, zfi_sgd_master(ZF_FLOAT(node, sgd, momentum)),
                         (ZF_INT(node, sgd, scaled) != 0) + (ZF_INT(node, sgd, lazy) != 0));
}

static uint32_t zfi_writes_sgd(const zfi_node *node)
{
    int32_t args = node->arg_count - (int32_t)ZF_INT(node, sgd, scaled) -
                   (int32_t)ZF_INT(node, sgd, lazy);
    return 1 | (args > 3 ? 1 << 3 : 0) | (args > 4 ? 1 << 4 : 0);
}

ZFI_OPERATOR(sgd, .infer = zfi_infer_sgd, .grad = zfi_grad_none, .cpu = zfi_cpu_sgd,
             .writes = zfi_writes_sgd, .master = zfi_master_sgd, .bytes = zfi_bytes_lazy,
             .rate = 2,
             .traits = ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_UPDATE)

/* ------------------------------------------------------------------------------- the optimizer */

static const zf_option zfi_sgd_options[] = {
    ZF_OPTION(zf_sgd_desc, NUMBER, momentum, 0, "[0,1)", .traits = ZF_OPTION_CHANGES,
              .help = "share of the old steps in a step"),
    ZF_OPTION(zf_sgd_desc, FLAG, nesterov, 0, NULL, .with = "momentum", .traits = ZF_OPTION_CHANGES,
              .help = "Nesterov's step: the gradient is that of where the momentum leads"),
    ZFI_DECAY_OPTIONS(zf_sgd_desc),
    {.name = NULL}};

static void zfi_update_sgd(zf_graph *g, zfi_optimizer *o, zf_tensor p, zf_tensor dp,
                           double decay)
{
    const zf_sgd_desc *d = o->desc;
    zf_tensor buffer = d->momentum == 0 ? ZF_NONE : zfi_moment(g, "sgd.momentum", p);
    zf_tensor w = zfi_master(g, "sgd.master", p);
    (void)zfi_build_update(
        ZF_OP_sgd, 7, (zf_tensor[]){p, dp, o->lr, buffer, w, o->scale, o->rows},
        zfi_with({.f = d->momentum}, {.i = d->nesterov},
                 {.f = decay}, [ZF_AT_sgd_scaled] = {.i = o->scale.graph != NULL},
                 [ZF_AT_sgd_lazy] = {.i = o->rows.graph != NULL}));
}
ZFI_OPTIMIZER(sgd, .lazy = true, .update = zfi_update_sgd)
