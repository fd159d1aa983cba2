/* What 1-bit LAMB needs that 1-bit Adam does not (passes/optimizers/onebit_lamb.c):
 * variance_ratio, maxima.
 *
 *     %9 = variance_ratio %f, %m, %x, %v, %t, %k {at=[0,2048] count=[1500,7] beta1=0.9 beta2=0.999
 *                                                 eps=1e-06} : f32[3]
 *         g = (x - beta1 m) / (1 - beta1), f = beta2 f + (1 - beta2) g^2; of each block of 1024
 *         elements the maximum of (sqrt(v^) + eps) / (sqrt(f^) + eps)
 *     %12 = maxima %9 {blocks=[0,2,2,3]} : f32[2]
 *         y[j] = the maximum of x[b], blocks[2j] <= b < blocks[2j+1]; NaN where one is NaN, -inf of
 *         none
 *
 * m is the momentum before this step and x that after it, so g is the gradient of which x was made.
 * v, the variance of the warm-up, does not change. f, that of all gradients, is a state; it begins
 * as v, at the first step after the warm-up. t and k are states i64[] that count updates of the
 * momentum and of v, from 1: t is k + 1 at that step; f^ = f / (1 - beta2^t), v^ = v / (1 -
 * beta2^k). Elements where v is 0 count as 0: no update moves them (sign.c). All are f32.
 *
 * at, count and world say where tensors lie in a bucket, as for sign_compress (sign.c): other
 * elements of f do not change, and a block without elements of a tensor gives 0. */

static zf_status zfi_infer_variance_ratio(zfi_infer *c)
{
    const int64_t count = zfi_node_count(c->args[0]);
    zf_status status = ZF_OK;
    for (int32_t k = 0; k < 4 && !status; k++) {
        const zf_op op = zfi_home_of(c->graph, c->args[k])->op;
        const bool state = op == ZF_OP_state || op == ZF_OP_bucket || op == ZF_OP_shard;
        if (c->args[k]->dtype != ZF_F32)
            status = zfi_infer_fail(c, ZF_ERR_DTYPE, "operand %d must be f32", (int)k);
        else if (zfi_node_count(c->args[k]) != count)
            status = zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d must have %lld elements", (int)k,
                                    (long long)count);
        else if (!state && k != 1 && k != 2)
            status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand %d, a variance, must be a state",
                                    (int)k);
    }
    if (!status && c->args[0] == c->args[3])
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                "operands 0 and 3, the variances, must be two states");
    if (!status) status = zfi_infer_count(c, 4, "a count");
    if (!status) status = zfi_infer_count(c, 5, "a count");
    if (!status) status = zfi_infer_sign_places(c, &ZF_ATTRIBUTE(c, variance_ratio, at), count);
    if (!status) status = zfi_infer_below(c, "beta1", ZF_FLOAT(c, variance_ratio, beta1), 1);
    if (!status) status = zfi_infer_below(c, "beta2", ZF_FLOAT(c, variance_ratio, beta2), 1);
    if (!status) status = zfi_infer_below(c, "eps", ZF_FLOAT(c, variance_ratio, eps), INFINITY);
    c->dtype = ZF_F32;
    c->shape = ZF_SHAPE(zfi_whole_blocks(count));
    return status;
}

/* The attributes, and: sqrt(f^) = sqrt(f) of_f, sqrt(v^) = sqrt(v) of_v. */
typedef struct zfi_variances {
    double beta1, beta2, eps, of_f, of_v;
    const float *from; /* f before this step: itself, or v */
} zfi_variances;

static zfi_variances zfi_variances_of(const zf_launch *l)
{
    const double beta2 = ZF_FLOAT(l, variance_ratio, beta2), t = zfi_get(&l->args[4], 0),
                 k = zfi_get(&l->args[5], 0);
    return (zfi_variances){ZF_FLOAT(l, variance_ratio, beta1), beta2,
                           ZF_FLOAT(l, variance_ratio, eps),   1 / sqrt(1 - pow(beta2, t)),
                           1 / sqrt(1 - pow(beta2, k)),        l->args[t == k + 1 ? 3 : 0].data};
}

/* Elements [at, at + n), by the definition; returns the maximum. */
static double zfi_variance_reference(const zf_launch *l, const zfi_variances *a, int64_t at,
                                     int64_t n)
{
    double most = -INFINITY;
    for (int64_t i = at; i < at + n; i++) {
        const double m = zfi_get(&l->args[1], i), v = zfi_get(&l->args[3], i),
                     g = (zfi_get(&l->args[2], i) - a->beta1 * m) / (1 - a->beta1),
                     f = a->beta2 * (double)a->from[i] + (1 - a->beta2) * g * g;
        const double ratio =
            v == 0 ? 0 : (sqrt(v) * a->of_v + a->eps) / (sqrt(f) * a->of_f + a->eps);
        zfi_set(&l->args[0], i, f);
        if (ratio > most || isnan(ratio)) most = isnan(most) ? most : ratio;
    }
    return most;
}

/* f = beta2 from + rest2 g^2, g = of_g (x - beta1 m) */
ZFI_BODY void zfi_variance_run_body(zfi_isa isa, float *ratio, float *f, const float *from,
                                    const float *m, const float *x, const float *v, float beta1,
                                    float of_g, float beta2, float rest2, float of_f, float of_v,
                                    float eps, int64_t n)
{
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) {
        const float g = of_g * zfi_fma(isa, -beta1, m[i], x[i]),
                    now = zfi_fma(isa, beta2, from[i], rest2 * g * g),
                    of = zfi_fma(isa, sqrtf(v[i]), of_v, eps) / zfi_fma(isa, sqrtf(now), of_f, eps);
        f[i] = now;
        ratio[i] = zfi_pick(isa, v[i] == 0, 0, of);
    }
}
ZFI_KERNEL(zfi_variance_run,
           (float *ratio, float *f, const float *from, const float *m, const float *x,
            const float *v, float beta1, float of_g, float beta2, float rest2, float of_f,
            float of_v, float eps, int64_t n),
           (ratio, f, from, m, x, v, beta1, of_g, beta2, rest2, of_f, of_v, eps, n))

/* Blocks [first, last). */
static void zfi_variance_blocks(const zf_launch *l, int64_t first, int64_t last)
{
    const int64_t all = zfi_count(&l->args[0]);
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const zfi_variances a = zfi_variances_of(l);
    float *f = l->args[0].data;
    const float *m = l->args[1].data, *x = l->args[2].data, *v = l->args[3].data;
    for (int64_t b = first; b < last; b++) {
        const int64_t n = zfi_sign_elements(l, &ZF_ATTRIBUTE(l, variance_ratio, at), all, b),
                      at = b * ZFI_NORM_BLOCK;
        float ratio[ZFI_NORM_BLOCK], most = 0;
        if (n && zfi_fast(l)) {
            zfi_variance_run(isa, ratio, f + at, a.from + at, m + at, x + at, v + at,
                             (float)a.beta1, (float)(1 / (1 - a.beta1)), (float)a.beta2,
                             (float)(1 - a.beta2), (float)a.of_f, (float)a.of_v, (float)a.eps, n);
            most = zfi_vmax(isa, ratio, n);
        } else if (n) {
            most = (float)zfi_variance_reference(l, &a, at, n);
        }
        ((float *)l->out.data)[b] = most;
    }
}

static zf_status zfi_cpu_variance_ratio(const zf_launch *l)
{
    zf_status status = zfi_check_count(l, "variance_ratio", 4);
    if (!status) status = zfi_check_count(l, "variance_ratio", 5);
    if (status) return status;
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN / ZFI_NORM_BLOCK, zfi_variance_blocks);
    return ZF_OK;
}

/* All operands are read once, and f is written. */
static double zfi_bytes_variance_ratio(const zf_launch *l)
{
    double bytes = 2 * (double)zfi_array_bytes(&l->args[0]) + (double)zfi_array_bytes(&l->out);
    for (int32_t k = 1; k < l->arg_count; k++) bytes += (double)zfi_array_bytes(&l->args[k]);
    return bytes;
}

/* ------------------------------------------------------------------------------- maxima */

static zf_status zfi_cpu_maxima(const zf_launch *l)
{
    const int64_t *at = ZF_LIST(l, maxima, blocks).data;
    for (int64_t k = 0; k < zfi_count(&l->out); k++) {
        double most = -INFINITY;
        for (int64_t b = at[2 * k]; b < at[2 * k + 1] && !isnan(most); b++) {
            const double x = zfi_get(&l->args[0], b);
            if (x > most || isnan(x)) most = x;
        }
        zfi_set(&l->out, k, most);
    }
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(variance_ratio, sign_compress, at)
ZFI_SAME_ATTRIBUTE(variance_ratio, sign_compress, count)
ZFI_SAME_ATTRIBUTE(variance_ratio, sign_compress, world)
ZFI_SAME_ATTRIBUTE(maxima, norms, blocks)
ZFI_OPERATOR(variance_ratio, .infer = zfi_infer_variance_ratio, .cpu = zfi_cpu_variance_ratio,
             .writes = zfi_writes_first, .bytes = zfi_bytes_variance_ratio,
             .ranks = ZFI_RANKS_BLOCKS, .traits = ZF_OP_MUTATES)
ZFI_OPERATOR(maxima, .infer = zfi_infer_norms, .cpu = zfi_cpu_maxima, .traits = ZF_OP_READS_HALF)
