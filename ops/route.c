/* The experts of each token (mixture of experts).
 *
 *     %2 = route %1 {k=2 normalize=true} : f32[6,2]           of logits [6,8]
 *     %3 = saved %2 : i32[6,2]                                the experts, the largest first
 *     %4 = saved %2 {index=1} : f32[6,8]                      the scores
 *     %6 = route %1, %5 {k=2 form=sigmoid groups=4 kept=2} : f32[6,2]     %5: a bias f32[8]
 *
 *     s = softmax(logits) or sigmoid(logits), of each row       in f32, of f64 in f64
 *     the k experts with the largest s + bias, of equal ones the lowest
 *     weight = scale s, with `normalize` scale s / (sum of the k s + 1e-20)
 *
 * With groups, experts form groups of neighbours; only the `kept` groups whose two largest s + bias
 * have the largest sum are chosen from. The bias is not in the weights, and has no gradient; with
 * `balance` that of experts is 2^-40 (choices - their mean), by whose sign an optimizer evens out
 * how often they are chosen. It is that small because norms of gradients contain it.
 *
 *     ds = scatter_add(dweight scale, experts) + that of the scores, where others read them
 *     normalized: scatter_add((scale dweight - sum(dweight weight)) / sum, experts)
 *     dlogits = softmax_grad or sigmoid_grad of ds
 *
 * A NaN among the weights is an error of the step. Sources: Shazeer et al. 2017; DeepSeek-AI 2024
 * (sigmoid, groups, bias). */

enum { ZFI_ROUTE_EXPERTS, ZFI_ROUTE_SCORES, ZFI_ROUTE_GROUPS = 64, ZFI_ROUTE_MOST = 64 };

static zf_status zfi_infer_route_groups(const zfi_infer *c, int64_t n)
{
    const int64_t groups = ZF_INT(c, route, groups), kept = ZF_INT(c, route, kept),
                  k = ZF_INT(c, route, k);
    if (!groups && !kept) return ZF_OK;
    if (groups < 1 || groups > ZFI_ROUTE_GROUPS || n % groups || n / groups < 2)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "groups = %lld of %lld experts: 1 to %d groups of 2 experts or more "
                              "are possible",
                              (long long)groups, (long long)n, ZFI_ROUTE_GROUPS);
    if (kept < 1 || kept > groups || kept * (n / groups) < k)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "kept = %lld of %lld groups of %lld experts; k = %lld experts must "
                              "be among them",
                              (long long)kept, (long long)groups, (long long)(n / groups),
                              (long long)k);
    return ZF_OK;
}

static zf_status zfi_infer_route(zfi_infer *c)
{
    const zf_shape *x = &c->args[0]->shape;
    const int64_t k = ZF_INT(c, route, k), n = x->rank == 2 ? x->dims[1] : 0;
    zf_status status;
    if (!zfi_is_float(c->args[0]->dtype) || x->rank != 2)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "logits, float [tokens, experts], are needed");
    if (k < 1 || k > zfi_min(n, ZFI_ROUTE_MOST) || n > INT32_MAX)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "k = %lld of %lld experts; 1 to %lld of them are possible",
                              (long long)k, (long long)n, (long long)zfi_min(n, ZFI_ROUTE_MOST));
    if (c->arg_count > 1 && (c->args[1]->dtype != zfi_wide(c->args[0]->dtype) ||
                             c->args[1]->shape.rank != 1 || c->args[1]->shape.dims[0] != n))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the bias must be %s[%lld]",
                              zf_dtype_name(zfi_wide(c->args[0]->dtype)), (long long)n);
    if (c->arg_count < 2 && ZF_INT(c, route, balance))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "balance is for a bias, and there is none");
    if (!isfinite(ZF_FLOAT(c, route, scale)) || ZF_FLOAT(c, route, scale) < 0)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "scale = %g must be finite and not negative; 0 means 1",
                              ZF_FLOAT(c, route, scale));
    status = zfi_infer_route_groups(c, n);
    if (status) return status;
    c->dtype = zfi_wide(c->args[0]->dtype);
    c->shape = ZF_SHAPE(x->dims[0], k);
    return ZF_OK;
}

static bool zfi_saved_route(const zf_graph *g, const zfi_node *node, int64_t index, zf_dtype *dtype,
                            zf_shape *shape)
{
    *dtype = index == ZFI_ROUTE_EXPERTS ? ZF_I32 : node->dtype;
    *shape = index == ZFI_ROUTE_EXPERTS ? node->shape : g->nodes[node->args[0]].shape;
    return index == ZFI_ROUTE_EXPERTS || index == ZFI_ROUTE_SCORES;
}

/* scale, of which 0 means 1. */
static double zfi_route_scale(const zf_attribute *attributes)
{
    const struct {
        const zf_attribute *attributes;
    } of = {attributes};
    return ZF_FLOAT(&of, route, scale) > 0 ? ZF_FLOAT(&of, route, scale) : 1;
}

/* The gradient of the k scores that the weights are made of. */
static zf_tensor zfi_grad_route_weights(zf_grad *c, zf_tensor scores, zf_tensor experts)
{
    zf_tensor ds = zf_scale(c->dy, zfi_route_scale(c->attributes)), sum;
    if (!ZF_INT(c, route, normalize)) return ds;
    sum = zf_sum_ex(zf_gather(scores, experts, -1), &(zf_reduce_desc){.axis = 1, .keep = true});
    ds = zf_sub(ds, zf_sum_ex(zf_mul(c->dy, c->y), &(zf_reduce_desc){.axis = 1, .keep = true}));
    return zf_div(ds, zf_add(sum, zf_constant(c->graph, zf_tensor_dtype(sum), ZF_SCALAR, 1e-20)));
}

/* How much more often than the mean each expert is chosen, times 2^-40. */
static zf_tensor zfi_grad_route_bias(const zf_grad *c, zf_tensor experts, int64_t n)
{
    const zf_dtype dtype = zf_tensor_dtype(c->x[1]);
    const double mean = (double)zf_shape_count(zf_tensor_shape(experts)) / (double)n;
    zf_tensor counts = zf_reshape(zf_one_hot(experts, n, dtype), ZF_SHAPE(-1, n));
    counts = zf_sum_ex(counts, &(zf_reduce_desc){.axis = 0});
    return zf_scale(zf_sub(counts, zf_constant(c->graph, dtype, ZF_SCALAR, mean)), 0x1p-40);
}

static void zfi_grad_route(zf_grad *c)
{
    const int64_t n = zf_tensor_shape(c->x[0]).dims[1];
    const zf_tensor experts = zfi_saved(c->y, ZFI_ROUTE_EXPERTS);
    zf_tensor scores, ds;
    if (c->count > 1 && c->need[1] && ZF_INT(c, route, balance))
        c->dx[1] = zfi_grad_route_bias(c, experts, n);
    if (!c->need[0]) return;
    scores = zfi_saved(c->y, ZFI_ROUTE_SCORES);
    ds = zf_scatter_add(zfi_grad_route_weights(c, scores, experts), experts, -1, n);
    if (zf_valid(c->dsaved[ZFI_ROUTE_SCORES])) ds = zf_add(ds, c->dsaved[ZFI_ROUTE_SCORES]);
    ds = ZF_INT(c, route, form) ? zfi_op(sigmoid_grad, NULL, ds, scores)
                                : zfi_op(softmax_grad, NULL, ds, scores);
    c->dx[0] = zf_cast(ds, zf_tensor_dtype(c->x[0]));
}

/* ------------------------------------------------------------------------------ kernels */

/* Where the scores are: saved, or in scratch; those of the reference are not rounded. */
static zf_array zfi_route_scores(const zf_launch *l)
{
    const zf_array *saved = zfi_saved_out(l, ZFI_ROUTE_SCORES);
    const zf_dtype dtype = zfi_fast_or_half(l) ? ZF_F32 : ZF_F64;
    if (saved && saved->dtype == dtype) return *saved;
    return (zf_array){l->scratch, dtype, l->args[0].shape};
}

static size_t zfi_scratch_route(const zf_launch *l)
{
    size_t bytes;
    const bool fits = zfi_mul_size((size_t)zfi_count(&l->args[0]), sizeof(double), &bytes);
    return fits ? bytes : SIZE_MAX;
}

/* The scores of rows [first, last), in double and rounded once, or in f32. */
static void zfi_route_score(const zf_launch *l, const zf_array *s, int64_t first, int64_t last)
{
    const int64_t n = zfi_last(&s->shape);
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const zf_array *saved = zfi_saved_out(l, ZFI_ROUTE_SCORES);
    if (zfi_fast_or_half(l)) {
        float *to = (float *)s->data + first * n;
        zfi_widen(isa, to, l->args[0].dtype,
                  zfi_element(l->args[0].data, l->args[0].dtype, first * n), (last - first) * n);
        if (ZF_INT(l, route, form)) zfi_vsigmoid(isa, to, to, (last - first) * n);
        else zfi_softmax_rows(isa, to, to, last - first, n);
        return;
    }
    for (int64_t i = first * n; i < last * n && ZF_INT(l, route, form); i++)
        zfi_set(s, i, 1 / (1 + exp(-zfi_get(&l->args[0], i))));
    if (!ZF_INT(l, route, form)) {
        zf_launch softmax = *l;
        softmax.out = *s;
        zfi_softmax_reference(&softmax, first, last);
    }
    for (int64_t i = first * n; i < last * n && saved; i++) zfi_set(saved, i, zfi_get(s, i));
}

/* By what experts are chosen: a score and its bias, in the dtype of scores. */
static double zfi_route_value(const zf_launch *l, const zf_array *s, int64_t row, int64_t e)
{
    const double score = zfi_get(s, row * zfi_last(&s->shape) + e);
    double sum;
    if (l->arg_count < 2) return score;
    sum = score + zfi_get(&l->args[1], e);
    return s->dtype == ZF_F64 ? sum : (float)sum;
}

/* The groups of a row that are chosen from, as a mask. */
static uint64_t zfi_route_groups(const zf_launch *l, const zf_array *s, int64_t row)
{
    const int64_t groups = ZF_INT(l, route, groups), n = zfi_last(&s->shape) / zfi_max(groups, 1);
    double sums[ZFI_ROUTE_GROUPS];
    uint64_t kept = groups ? 0 : ~(uint64_t)0;
    for (int64_t g = 0; g < groups; g++) {
        double best[2] = {-INFINITY, -INFINITY};
        for (int64_t e = g * n; e < (g + 1) * n; e++) {
            const double v = zfi_route_value(l, s, row, e);
            if (zfi_is_larger(v, best[0])) best[1] = best[0], best[0] = v;
            else if (zfi_is_larger(v, best[1])) best[1] = v;
        }
        sums[g] = best[0] + best[1];
        if (s->dtype != ZF_F64) sums[g] = (float)sums[g];
    }
    for (int64_t i = 0; i < ZF_INT(l, route, kept); i++) {
        int64_t most = -1;
        for (int64_t g = 0; g < groups; g++)
            if (!(kept >> g & 1) && (most < 0 || zfi_is_larger(sums[g], sums[most]))) most = g;
        kept |= (uint64_t)1 << most;
    }
    return kept;
}

/* The expert of a row that comes after `before`, the one chosen last; before -1: the first. */
static int64_t zfi_route_next(const zf_launch *l, const zf_array *s, int64_t row, uint64_t groups,
                              int64_t before)
{
    const int64_t n = zfi_last(&s->shape), of = ZF_INT(l, route, groups);
    const double limit = before < 0 ? 0 : zfi_route_value(l, s, row, before);
    double most = 0;
    int64_t best = -1;
    for (int64_t e = 0; e < n; e++) {
        const double v = zfi_route_value(l, s, row, e);
        if (of && !(groups >> e / (n / of) & 1)) continue;
        if (before >= 0 && (zfi_is_larger(v, limit) || (!zfi_is_larger(limit, v) && e <= before)))
            continue;
        if (best < 0 || zfi_is_larger(v, most)) best = e, most = v;
    }
    return best;
}

static void zfi_route_range(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array s = zfi_route_scores(l), *experts = zfi_saved_out(l, ZFI_ROUTE_EXPERTS);
    const int64_t n = zfi_last(&s.shape), k = ZF_INT(l, route, k);
    const double scale = zfi_route_scale(l->attributes);
    zfi_route_score(l, &s, first, last);
    for (int64_t row = first; row < last; row++) {
        const uint64_t groups = zfi_route_groups(l, &s, row);
        double sum = 0, chosen[ZFI_ROUTE_MOST];
        for (int64_t j = 0, e = -1; j < k; j++) {
            e = zfi_route_next(l, &s, row, groups, e);
            sum += chosen[j] = zfi_get(&s, row * n + e);
            if (experts) ((int32_t *)experts->data)[row * k + j] = (int32_t)e;
        }
        sum = ZF_INT(l, route, normalize) ? scale / (sum + 1e-20) : scale;
        for (int64_t j = 0; j < k; j++) zfi_set(&l->out, row * k + j, chosen[j] * sum);
    }
}

static zf_status zfi_check_route(const zf_launch *l)
{
    const int64_t k = ZF_INT(l, route, k);
    for (int64_t i = 0, count = zfi_count(&l->out); i < count; i++)
        if (isnan(zfi_get(&l->out, i)))
            return zfi_fail(l->error, ZF_ERR_NAN,
                            "route %%%d: the router's logits of token %lld have a NaN", (int)l->node,
                            (long long)(i / k));
    return ZF_OK;
}

static zf_status zfi_cpu_route(const zf_launch *l)
{
    zfi_split(l, l->out.shape.dims[0], zfi_row_grain(4 * zfi_last(&l->args[0].shape)),
              zfi_route_range);
    return zfi_check_route(l);
}

static double zfi_functions_route(const zf_launch *l) { return (double)zfi_count(&l->args[0]); }

ZFI_OPERATOR(route, .infer = zfi_infer_route, .grad = zfi_grad_route, .cpu = zfi_cpu_route,
             .scratch = zfi_scratch_route, .saved = zfi_saved_route,
             .saved_grads = 1 << ZFI_ROUTE_SCORES, .functions = zfi_functions_route,
             .cuts = "t n!, ?n! -> t k!; t k!; t n!", .traits = ZF_OP_WANTS_F32)
