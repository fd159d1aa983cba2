/* Attention of several heads in one node. No [T,T] matrix is ever in memory.
 *
 *     %3 = attention %1, %2 {p=0.1 stream=7 heads=4 scale=0.125} : f32[16,128,256]
 *
 *          y = dropout(softmax(scale q k^T + bias)) v, for each head: [B,M,H], H = heads d
 *
 * With cap=c the scores are c tanh(scale q k^T / c) + bias (Gemma Team 2024); dS then has the factor
 * 1 - tanh^2.
 *
 *     %4 = saved %3 {index=0} : f32[16,4,128]
 *
 *          lse[b,h,m] = log sum over n of exp(score); -inf of an empty row
 *
 *     %9 = attention_grad %8, %3, %4, %1, %2 {...} : f32[16,128,768]
 *
 *          of dy, y, lse, and the operands of attention:
 *          P  = exp(score - lse)           D  = sum of dy y over the d of a row
 *          dV = dropout(P)^T dy            dS = P (dropout(dy v^T) - D) scale
 *          dQ = dS k                       dK = dS^T q
 *
 * One or two operands are the packed form: qkv [B,T,H + 2 K] and an optional bias. A token's row of
 * qkv holds q of all heads, then k, then v. Three or four are the separate form: q [B,M,H], k and v
 * [B,N,K], and an optional bias. kv_heads is a divisor of heads, 0 for heads itself, and K =
 * kv_heads d. Head j of q reads head j / (heads / kv_heads) of k and v (Ainslie et al. 2023); dK
 * and dV are sums over these heads of q, in their order. The bias broadcasts to [B,heads,M,N].
 * causal: query m sees key n where n <= m + N - M. With a window W, n > m + N - M - W is necessary
 * too; without causal also n < m + N - M + W. Other keys have probability 0. Dropout has the mask of the operator dropout {p stream} on a
 * tensor [B,heads,M,N]. A row of scores is empty when its query sees no key, or all its scores are
 * -inf: y is 0 there. A row with NaN or +inf among its scores gives NaN.
 *
 * The result of attention_grad is the gradient of qkv; in the separate form, the gradients of q, k
 * and v in one flat tensor, in this order. The bias gets no gradient. Saved: y and lse. lse is f64
 * for f64, else f32.
 *
 *     %10 = saved %9 {index=0} : f32[768]       of the packed form: the sums of the result's rows, the
 *                                               gradient of biases that were added to q, k and v
 *
 * They have the bits that sum_to makes of the result, which is read again for them. On CUDA, where
 * products of warpgroups compute it, blocks of 16 rows are summed as they are stored, and these
 * sums are then added (attention_grad_sm90.cu).
 *
 * documents: an operand i32 [B,M,2] follows, of the operator documents. block: the last operand is
 * the lists of a block mask, of 1 or `heads` layouts (block_mask.c). Both need M = N.
 *
 *     %6 = attention %1, %4, %5 {heads=4 causal=true documents=true block=16 layouts=1} : ...
 *
 * of=M: the queries are those from `first` on of M, whose places among the keys, masks and random
 * numbers they have. A block mask is then applied to scores of dense tiles.
 *
 *     %6 = attention %1, %4, %5 {heads=4 causal=true first=8 of=32} : f32[2,8,64]    of 32 keys
 *
 * keys=N: the keys are those from `key` on of N, with `of`. The result is then f32 (f64 of f64), as
 * that of attention_backward; results of all keys are joined by attention_join. A row that sees none
 * of them is 0, and its lse -inf.
 *
 *     %6 = attention %1, %4, %5 {heads=4 causal=true of=32 key=8 keys=32} : f32[2,32,64]   of 8 keys
 *
 *     %9 = attention_backward %8, %3, %4, %1, %2, %3 {...} : f32[16,128,256]
 *
 *          dQ; saved 0: dK, saved 1: dV, in f32 (f64 of f64) whatever the operands are. So ranks and
 *          sections of the queries have addends of dK and dV (passes/cut/apart.c)
 *
 * Sources: Milakov & Gimelshein 2018 (online softmax); Dao et al. 2022 and Dao 2023
 * (FlashAttention: the backward pass). */

/* ------------------------------------------------------------------------------ reference */

/* A scaled score with the cap, if there is one; *slope: its derivative by the scaled score. */
static double zfi_attention_capped(const zfi_attention *a, double score, double *slope)
{
    const double t = a->cap > 0 ? tanh(score / a->cap) : 0;
    *slope = 1 - t * t;
    return a->cap > 0 ? a->cap * t : score;
}

/* The score of a query and a key, and its slope. `head` counts over the whole batch: b * heads +
 * h. */
static double zfi_attention_score(const zfi_attention *a, int64_t head, int64_t m, int64_t n,
                                  double *slope)
{
    int64_t b = head / a->heads, h = head % a->heads;
    int64_t q = a->q_at + (b * a->m + m) * a->row + h * a->d;
    int64_t k = zfi_attention_kv(a, a->k_at, head, n);
    double sum = 0;
    for (int64_t i = 0; i < a->d; i++) sum += zfi_get(a->q, q + i) * zfi_get(a->k, k + i);
    sum = zfi_attention_capped(a, sum * a->scale, slope);
    if (a->bias)
        sum += zfi_get(a->bias, b * a->bias_step[0] + h * a->bias_step[1] + m * a->bias_step[2] +
                                    n * a->bias_step[3]);
    return sum;
}

/* The factor of dropout for one probability: 0 or 1 / (1 - p). */
static double zfi_attention_kept(const zfi_attention *a, int64_t head, int64_t m, int64_t n)
{
    return a->drops ? zfi_drop_value(&a->drop, (head * a->m + m) * a->n + n, 1) : 1;
}

typedef struct zfi_attention_run {
    zfi_attention a;
    const zf_launch *launch;
    zfi_attention_out to; /* of a gradient */
} zfi_attention_run;

/* One row of y. Scratch: `kept` doubles, from the first key that is seen on. */
static void zfi_attention_reference(void *context, int64_t row, int worker)
{
    const zfi_attention_run *run = context;
    const zfi_attention *a = &run->a;
    const zf_array *out = &run->launch->out, *lse = zfi_saved_out(run->launch, 0);
    double *p = (double *)run->launch->scratch + worker * a->kept, most = -INFINITY, sum = 0, slope;
    int64_t head = row / a->m, m = row % a->m, b = head / a->heads, h = head % a->heads;
    int64_t seen = zfi_attention_seen(a, b, m), first = zfi_attention_first(a, b, m);
    for (int64_t n = first; n < seen; n++) {
        p[n - first] = zfi_attention_lists(a, head, zfi_attention_past(a, b) + m, n)
                           ? zfi_attention_score(a, head, m, n, &slope)
                           : -INFINITY;
        if (p[n - first] > most) most = p[n - first];
    }
    for (int64_t n = first; n < seen; n++) {
        p[n - first] = exp(p[n - first] - (most == -INFINITY ? 0 : most));
        sum += p[n - first];
        p[n - first] *= zfi_attention_kept(a, head, m, n);
    }
    if (lse) zfi_set(lse, row, most + log(sum));
    for (int64_t i = 0; i < a->d; i++) { /* y[b,m,h,i] */
        double y = 0;
        for (int64_t n = first; n < seen; n++)
            y += p[n - first] * zfi_get(a->v, zfi_attention_kv(a, a->v_at, head, n) + i);
        zfi_set(out, ((b * a->m + m) * a->heads + h) * a->d + i, sum == 0 ? 0 : y / sum);
    }
}

/* dQ of one head, and what it adds to dK and dV. Scratch: p and ds, n of each. */
static void zfi_attention_grad_head(const zfi_attention_run *run, int64_t head, double *p,
                                    double *dk, double *dv)
{
    const zfi_attention *a = &run->a;
    const zf_array *dy = &run->launch->args[0], *y = &run->launch->args[1];
    const zfi_attention_out to = run->to;
    int64_t d = a->d, b = head / a->heads, h = head % a->heads;
    int64_t k_from = zfi_attention_kv(a, a->k_at, head, 0);
    int64_t v_from = zfi_attention_kv(a, a->v_at, head, 0);
    double *ds = p + a->n;
    for (int64_t m = 0; m < a->m; m++) {
        int64_t seen = zfi_attention_seen(a, b, m), row = ((b * a->m + m) * a->heads + h) * d;
        int64_t q = a->q_at + (b * a->m + m) * a->row + h * d, first = zfi_attention_first(a, b, m);
        double lse = zfi_get(&run->launch->args[2], head * a->m + m), delta = 0;
        for (int64_t i = 0; i < d; i++) delta += zfi_get(dy, row + i) * zfi_get(y, row + i);
        for (int64_t n = first; n < seen; n++) {
            double kept = zfi_attention_kept(a, head, m, n), dp = 0, slope = 1;
            p[n] = lse == -INFINITY ||
                           !zfi_attention_lists(a, head, zfi_attention_past(a, b) + m, n)
                       ? 0
                       : exp(zfi_attention_score(a, head, m, n, &slope) - lse);
            for (int64_t i = 0; i < d; i++)
                dp += zfi_get(dy, row + i) * zfi_get(a->v, v_from + n * a->kv_row + i);
            ds[n] = p[n] * (dp * kept - delta) * a->scale * slope;
            p[n] *= kept;
        }
        for (int64_t i = 0; i < d; i++) {
            double dq = 0;
            for (int64_t n = first; n < seen; n++) {
                dq += ds[n] * zfi_get(a->k, k_from + n * a->kv_row + i);
                dk[n * d + i] += ds[n] * zfi_get(a->q, q + i);
                dv[n * d + i] += p[n] * zfi_get(dy, row + i);
            }
            zfi_set(&to.q, to.q_at + (b * a->m + m) * to.row + h * d + i, dq);
        }
    }
}

/* The gradients of one head of k and v, and of its heads of q. Scratch: 2 n + 2 n d doubles. */
static void zfi_attention_grad_reference(void *context, int64_t kv_head, int worker)
{
    const zfi_attention_run *run = context;
    const zfi_attention *a = &run->a;
    const zfi_attention_out to = run->to;
    int64_t d = a->d, count = a->n * d, b = kv_head / a->kv_heads, h = kv_head % a->kv_heads;
    double *p = (double *)run->launch->scratch + worker * (2 * a->n + 2 * count);
    double *dk = p + 2 * a->n, *dv = dk + count;
    for (int64_t i = 0; i < count; i++) dk[i] = dv[i] = 0;
    for (int64_t k = 0; k < a->group; k++)
        zfi_attention_grad_head(run, kv_head * a->group + k, p, dk, dv);
    for (int64_t n = 0; n < a->n; n++)
        for (int64_t i = 0; i < d; i++) {
            int64_t at = (b * a->n + n) * to.kv_row + h * d + i;
            if (to.k.data) zfi_set(&to.k, to.k_at + at, dk[n * d + i]);
            if (to.v.data) zfi_set(&to.v, to.v_at + at, dv[n * d + i]);
        }
}

/* ------------------------------------------------------------------------------ kernels */

static zf_status zfi_cpu_attention(const zf_launch *l)
{
    zfi_attention_run plain = {.a = zfi_attention_of(l, 0), .launch = l};
    zfi_attention_cut cut;
    int64_t heads = plain.a.batch * plain.a.heads;
    if (!plain.a.batch || !plain.a.m) return ZF_OK;
    if (!zfi_attention_fast(l, &plain.a)) {
        zfi_pool_run(zfi_cpu_of(l)->pool, heads * plain.a.m, zfi_attention_reference, &plain);
        return ZF_OK;
    }
    cut = zfi_attention_cut_of(l, plain.a, false);
    zfi_pool_run(zfi_cpu_of(l)->pool, heads * cut.query_blocks,
                 zfi_goes_by_blocks(&plain.a) ? zfi_blocks_task : zfi_attention_task, &cut);
    return ZF_OK;
}

static zf_status zfi_cpu_attention_backward(const zf_launch *l)
{
    zfi_attention_run plain = {.a = zfi_attention_of(l, 3), .launch = l};
    zfi_attention_cut cut;
    int64_t heads = plain.a.batch * plain.a.kv_heads;
    if (!zfi_attention_fast(l, &plain.a)) {
        plain.to = zfi_attention_out_of(&plain.a, l);
        zfi_pool_run(zfi_cpu_of(l)->pool, heads, zfi_attention_grad_reference, &plain);
        return ZF_OK;
    }
    cut = zfi_attention_cut_of(l, plain.a, true);
    zfi_pool_run(zfi_cpu_of(l)->pool, heads * zfi_attention_grad_parts(&cut),
                 zfi_goes_by_blocks(&plain.a) ? zfi_blocks_grad_task : zfi_attention_grad_task,
                 &cut);
    return ZF_OK;
}

static zf_status zfi_cpu_attention_grad(const zf_launch *l)
{
    zf_status status = zfi_count(&l->out) ? zfi_cpu_attention_backward(l) : ZF_OK;
    if (status) return status;
    if (zfi_saved_out(l, ZFI_QKV_SUMS))
        return zfi_cpu_sum_rows(l, &l->out, zfi_saved_out(l, ZFI_QKV_SUMS));
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- work */

/* Keys that a query sees at most, of n; of a block mask, those of blocks on average. */
static double zfi_listed_reach(const zf_launch *l, int64_t n, int64_t window, int64_t block,
                               int64_t layouts)
{
    const double reach = (double)(window && window < n ? window : n);
    double listed;
    if (!block || !n) return reach;
    listed = (double)zfi_listed_blocks(zfi_count(&l->args[l->arg_count - 1]), layouts,
                                       zfi_div_up(n, block));
    return fmin(reach, listed * (double)block * (double)block / (double)(layouts * n));
}

static double zfi_attention_reach(const zf_launch *l, int64_t n)
{
    const int64_t keys = ZF_INT(l, attention, keys), all = keys ? keys : n;
    int64_t window = ZF_INT(l, attention, window);
    double reach;
    if (window && window < all && !ZF_INT(l, attention, causal)) window = 2 * window - 1;
    reach = zfi_listed_reach(l, all, window, ZF_INT(l, attention, block),
                             ZF_INT(l, attention, layouts));
    return keys ? reach * (double)n / (double)all : reach;
}

/* Of two products over the keys; of the gradient four. */
static double zfi_flops_attention(const zf_launch *l)
{
    return 4.0 * (double)zfi_count(&l->out) *
           zfi_attention_reach(
               l, l->args[zfi_attention_is_apart(l->arg_count, l->attributes)].shape.dims[1]);
}

static double zfi_flops_attention_grad(const zf_launch *l)
{
    return 8.0 * (double)zfi_count(&l->args[0]) *
           zfi_attention_reach(
               l, l->args[3 + zfi_attention_is_apart(l->arg_count - 3, l->attributes)].shape.dims[1]);
}

/* Scores, which are FLOPs of the two products divided by those of one score. */
static double zfi_attention_scores(const zf_launch *l)
{
    const double heads = (double)ZF_INT(l, attention, heads);
    const bool back = l->op != ZF_OP_attention;
    const int64_t width = zfi_last(back ? &l->args[0].shape : &l->out.shape);
    const double flops = back ? zfi_flops_attention_grad(l) / 2 : zfi_flops_attention(l);
    return width ? flops / 4 / ((double)width / heads) : 0;
}

/* Of each score an exponential, a random number where dropout draws, and a tanh where it is
 * capped. */
static double zfi_functions_attention(const zf_launch *l)
{
    return zfi_attention_scores(l) *
           (1 + (ZF_FLOAT(l, attention, p) > 0) + (ZF_FLOAT(l, attention, cap) > 0));
}

/* Scores are the result of q k^T, and an operand of the product with v. */
static double zfi_between_attention(const zf_launch *l) { return 2 * zfi_attention_scores(l); }

/* They are results of q k^T and dy v^T, and operands of three products: for dV, dQ and dK. */
static double zfi_between_attention_grad(const zf_launch *l) { return 5 * zfi_attention_scores(l); }

static int32_t zfi_row_sums_attention_grad(const zfi_node *node, int64_t of)
{
    return of < 0 && node->shape.rank == 3 ? ZFI_QKV_SUMS : -1;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(attention_grad, attention, p)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, stream)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, heads)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, scale)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, causal)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, kv_heads)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, window)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, documents)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, block)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, layouts)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, cap)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, first)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, of)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, key)
ZFI_SAME_ATTRIBUTE(attention_grad, attention, keys)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, p)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, stream)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, heads)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, scale)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, causal)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, kv_heads)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, window)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, documents)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, block)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, layouts)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, cap)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, first)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, of)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, key)
ZFI_SAME_ATTRIBUTE(attention_backward, attention_grad, keys)
ZFI_SAME_ATTRIBUTE(attention, dropout, p)
ZFI_SAME_ATTRIBUTE(attention, dropout, stream)
/* Examples are cut, and heads: of the packed form those of q, k and v where these have as many, of
 * the separate form all, and queries. */
#define ZFI_CUTS_OF_HEADS(more)                                                                    \
    "b q h, b k! h, b k! h, " more                                                                 \
    " -> b q h; b h q {heads/h kv_heads/h first+q of=q} | "
#define ZFI_CUTS_OF_THIRDS(more) "b t! h*3, " more " -> b t! h; b h t! {heads/h} | "
#define ZFI_CUTS_OF_PACKED(more) "b t! c!, " more " -> b t! w!; b a! t! | "
#define ZFI_CUTS_OF_HEADS_GRAD(more)                                                               \
    "b q! h, b q! h, b h q!, b q! h, b k! h, b k! h, " more " -> [3 4 5] {heads/h kv_heads/h} | "
#define ZFI_CUTS_OF_THIRDS_GRAD(more)                                                              \
    "b t! h, b t! h, b h t!, b t! h*3, " more " -> b t! h*3; h*3 {heads/h} | "
#define ZFI_CUTS_OF_PACKED_GRAD(more)                                                              \
    "b t! w!, b t! w!, b a! t!, b t! c!, " more " -> b t! c!; c! | "

ZFI_OPERATOR(attention, .infer = zfi_infer_attention, .grad = zfi_grad_attention,
             .cpu = zfi_cpu_attention, .scratch = zfi_scratch_attention,
             .saved = zfi_saved_attention, .flops = zfi_flops_attention,
             .functions = zfi_functions_attention, .between = zfi_between_attention,
             .cuts = "!kv_heads !documents !block: " ZFI_CUTS_OF_THIRDS("?~b h t! u!")
                     "!kv_heads documents !block: " ZFI_CUTS_OF_THIRDS("b t! d!")
                     "!documents !block: " ZFI_CUTS_OF_PACKED("?~b a! t! u!")
                     "documents !block: " ZFI_CUTS_OF_PACKED("b t! d!")
                     "!documents block: " ZFI_CUTS_OF_PACKED("!")
                     "!documents !block: " ZFI_CUTS_OF_HEADS("?~b h q k!")
                     "documents !block: " ZFI_CUTS_OF_HEADS("b q d!")
                     "!documents block of: b q c!, b k! d!, b k! d!, ! -> b q c!; b a! q "
                     "{first+q of=q} | "
                     "!documents block: b q! c!, b q! d!, b q! d!, ! -> b q! c!; b a! q!",
             .draws = ZFI_DRAWS_AS_RESULT,
             .traits = ZF_OP_RANDOM | ZF_OP_PRODUCT | ZF_OP_READS_HALF)
ZFI_OPERATOR(attention_grad, .infer = zfi_infer_attention_grad, .cpu = zfi_cpu_attention_grad,
             .saved = zfi_saved_attention_grad, .scratch = zfi_scratch_attention_grad,
             .flops = zfi_flops_attention_grad, .functions = zfi_functions_attention,
             .between = zfi_between_attention_grad, .row_sums = zfi_row_sums_attention_grad,
             .cuts = "!kv_heads !documents !block: " ZFI_CUTS_OF_THIRDS_GRAD("?~b h t! u!")
                     "!kv_heads documents !block: " ZFI_CUTS_OF_THIRDS_GRAD("b t! d!")
                     "!documents !block: " ZFI_CUTS_OF_PACKED_GRAD("?~b a! t! u!")
                     "documents !block: " ZFI_CUTS_OF_PACKED_GRAD("b t! d!")
                     "!documents block: " ZFI_CUTS_OF_PACKED_GRAD("!")
                     "!documents !block: " ZFI_CUTS_OF_HEADS_GRAD("?~b h q! k!")
                     "documents !block: " ZFI_CUTS_OF_HEADS_GRAD("b q! d!")
                     "!documents block: b q! c!, b q! c!, b a! q!, b q! c!, b q! d!, b q! d!, ! "
                     "-> [3 4 5]",
             .linear_in = 1, .linear_saved = 1 << ZFI_QKV_SUMS,
             .draws = ZFI_DRAWS_AS_FIRST,
             .traits = ZF_OP_RANDOM | ZF_OP_READS_HALF)
ZFI_OPERATOR(attention_backward, .infer = zfi_infer_attention_backward,
             .cpu = zfi_cpu_attention_backward, .saved = zfi_saved_attention_backward,
             .scratch = zfi_scratch_attention_grad, .flops = zfi_flops_attention_grad,
             .functions = zfi_functions_attention, .between = zfi_between_attention_grad,
             .cuts = "!documents !block: "
                     "b q h, b q h, b h q, b q h, b k! h, b k! h, ?~b h q k! -> b q h; b k! h; "
                     "b k! h {heads/h kv_heads/h first+q of=q} | "
                     "documents !block: "
                     "b q h, b q h, b h q, b q h, b k! h, b k! h, b q d! -> b q h; b k! h; "
                     "b k! h {heads/h kv_heads/h first+q of=q} | "
                     "!documents block of: "
                     "b q c!, b q c!, b a! q, b q c!, b k! d!, b k! d!, ! -> b q c!; b k! d!; "
                     "b k! d! {first+q of=q}",
             .draws = ZFI_DRAWS_AS_FIRST,
             .traits = ZF_OP_RANDOM | ZF_OP_READS_HALF)
