/* softplus: log(1 + e^x) (Dugas et al. 2000).
 *
 *     %2 = softplus %1 : f32[8]     y = max(x, 0) + log(1 + e^-|x|); dx = dy sigmoid(x); saved: x
 *
 * log(1 + t) is computed as t log(u) / (u - 1) with u = 1 + t rounded, which is exact for small t
 * too. */

static void zfi_grad_softplus(zf_grad *c) { c->dx[0] = zf_mul(c->dy, zf_sigmoid(c->x[0])); }

static double zfi_softplus_value(const zf_launch *l, double x, double unused)
{
    (void)l, (void)unused;
    return (x <= 0 ? 0 : x) + log1p(exp(-fabs(x)));
}

ZFI_BODY float zfi_softplus1(zfi_isa isa, float x)
{
    float t = zfi_exp1(isa, -fabsf(x)), u = 1.0f + t;
    float small = zfi_pick(isa, u == 1.0f, t, t * zfi_log1(isa, u) / (u - 1.0f));
    return (x <= 0 ? 0 : x) + small;
}

ZFI_UNARY_RUN(softplus, zfi_softplus1(isa, x[i]))

static void zfi_softplus_fast(const zf_launch *l, int64_t first, int64_t last)
{
    const float *x = l->args[0].data;
    float *y = l->out.data;
    zfi_softplus_run(zfi_cpu_of(l)->isa, y + first, x + first, NULL, 0, last - first);
}

/* An exponential and a logarithm. */
static double zfi_functions_softplus(const zf_launch *l) { return 2 * zfi_functions_each(l); }

ZFI_OPERATOR(softplus, .infer = zfi_infer_alike, .grad = zfi_grad_softplus, .cpu = zfi_cpu_elements,
             .value = zfi_softplus_value, .piece = zfi_softplus_fast,
             .functions = zfi_functions_softplus, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE)
