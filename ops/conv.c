/* Convolutions: conv, and its gradients conv_grad_x and conv_grad_w.
 *
 *     %3 = conv %1, %2 {stride=[2,2] pad=[1,1] dilation=[1,1] groups=2} : f32[8,6,4,4]
 *
 *          y[b,o,p,q] = sum over c, i, j of x[b,g c' + c,s p + d i - pad,...] w[o,c,i,j]
 *
 *     of x f32[8,4,8,8] and w f32[6,2,3,3]; g is the group of channel o, c' its channels. Elements
 *     outside x are 0.
 *
 *     dx = conv_grad_x %dy, %2 {... size=[8,8]} : f32[8,4,8,8]
 *     dw = conv_grad_w %1, %dy {... taps=[3,3]} : f32[6,2,3,3]
 *
 * Saved: x and w. What a tap sees of neighbouring places are neighbours too, where planes lie with
 * zeros around them, and with a stride sorted by the remainder. So the kernels copy a strip of each
 * channel, some rows of it, into the scratch of a worker, and read it once for each tap: columns of a
 * product (im2col; Chellapilla et al. 2006) are never made.
 *
 *     y     a product of w with the strip: tiles of cpu/tile_strip.c
 *     dx    the same of dy, whose elements are a stride apart, with the taps turned
 *     dw    for each tap, a product of the strip with dy, summed over all places in their order: the
 *           tiles of matrices (cpu/tile.c); of few channels of dy by dots of dy with the strip
 *
 * Strips are f32; for products of bf16, where the processor has them, they are bf16, and for y and dx
 * pairs of channels. Sums are in f32, and have the blocks of the product of matrices (matmul.c), for
 * dw those of strips; bits depend on the shapes alone. A zero next to a plane may meet an infinite
 * weight, or a place between rows an infinite x: then more elements are NaN than by the formula. */

/* --------------------------------------------------------------- the reference kernels */

/* Along an axis: the element of x that place `at` of y reads for a tap; with `back`, the place of y
 * that reads element `at` for it. -1: there is none. */
ZFI_INLINE int64_t zfi_conv_source(const zfi_conv *v, bool back, int axis, int64_t at, int64_t tap)
{
    int64_t s;
    if (!back) {
        s = at * v->stride[axis] + tap * v->dilation[axis] - v->pad[axis];
        return s >= 0 && s < v->image[axis] ? s : -1;
    }
    s = at + v->pad[axis] - tap * v->dilation[axis];
    if (s < 0 || s % v->stride[axis]) return -1;
    s /= v->stride[axis];
    return s < v->places[axis] ? s : -1;
}

/* The same of both axes: the element of a plane. */
static int64_t zfi_conv_source_in(const zfi_conv *v, bool back, int64_t at, int64_t tap)
{
    const int64_t wide = back ? v->image[1] : v->places[1], of = back ? v->places[1] : v->image[1];
    const int64_t row = zfi_conv_source(v, back, 0, at / wide, tap / v->taps[1]),
                  column = zfi_conv_source(v, back, 1, at % wide, tap % v->taps[1]);
    return row < 0 || column < 0 ? -1 : row * of + column;
}

/* An element of y (or with `back` of dx): channel `channel` of image b, at place `at`. */
static double zfi_conv_sum(const zfi_conv *v, const zf_array *const of[3], bool back, int64_t b,
                           int64_t channel, int64_t at)
{
    const zf_array *from = of[back ? ZFI_CONV_Y : ZFI_CONV_X], *w = of[ZFI_CONV_W];
    const int64_t plane = zfi_conv_area(back ? v->places : v->image), taps = zfi_conv_area(v->taps),
                  its = back ? v->c : v->o, others = back ? v->o : v->c, group = channel / its;
    double sum = 0;
    for (int64_t k = 0; k < others; k++)
        for (int64_t tap = 0; tap < taps; tap++) {
            const int64_t s = zfi_conv_source_in(v, back, at, tap);
            const int64_t o = back ? group * v->o + k : channel, c = back ? channel % its : k;
            if (s < 0) continue;
            sum += zfi_get(from, ((b * v->groups + group) * others + k) * plane + s) *
                   zfi_get(w, (o * v->c + c) * taps + tap);
        }
    return sum;
}

/* An element of dw. */
static double zfi_conv_sum_w(const zfi_conv *v, const zf_array *const of[3], int64_t o, int64_t c,
                             int64_t tap)
{
    const int64_t image = zfi_conv_area(v->image), places = zfi_conv_area(v->places),
                  group = o / v->o;
    double sum = 0;
    for (int64_t b = 0; b < v->batch; b++)
        for (int64_t at = 0; at < places; at++) {
            const int64_t s = zfi_conv_source_in(v, false, at, tap);
            if (s < 0) continue;
            sum += zfi_get(of[ZFI_CONV_Y], (b * v->groups * v->o + o) * places + at) *
                   zfi_get(of[ZFI_CONV_X], ((b * v->groups + group) * v->c + c) * image + s);
        }
    return sum;
}

static void zfi_conv_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *of[3];
    const zfi_conv v = zfi_conv_of(l, of);
    const bool back = l->op == ZF_OP_conv_grad_x;
    for (int64_t i = first; i < last; i++) {
        const int64_t inner = l->out.shape.dims[2] * l->out.shape.dims[3],
                      channel = i / inner % l->out.shape.dims[1];
        const int64_t b = i / inner / l->out.shape.dims[1];
        zfi_set(&l->out, i,
                l->op == ZF_OP_conv_grad_w ? zfi_conv_sum_w(&v, of, b, channel, i % inner)
                                           : zfi_conv_sum(&v, of, back, b, channel, i % inner));
    }
}

static zfi_conv_job zfi_conv_job_for(const zf_launch *l)
{
    return l->op == ZF_OP_conv_grad_w ? zfi_conv_job_w_of(l) : zfi_conv_job_of(l);
}

static size_t zfi_scratch_conv(const zf_launch *l)
{
    zfi_conv_job j;
    zf_launch asked = *l;
    if (!zfi_fast_or_half(l) || !zfi_count(&l->out)) return 0;
    asked.scratch = NULL;
    j = zfi_conv_job_for(&asked);
    return j.shared + (size_t)zfi_pool_threads(zfi_cpu_of(l)->pool) * j.room;
}

static zf_status zfi_cpu_conv(const zf_launch *l)
{
    zfi_pool *pool = zfi_cpu_of(l)->pool;
    const int64_t count = zfi_count(&l->out);
    zfi_conv_job j;
    if (!count) return ZF_OK;
    if (!zfi_fast_or_half(l)) {
        zfi_split(l, count, 16, zfi_conv_reference);
        return ZF_OK;
    }
    j = zfi_conv_job_for(l);
    zfi_conv_set_at(&j);
    if (l->op == ZF_OP_conv_grad_w) {
        zfi_pool_run(pool, j.v.groups * zfi_div_up(j.v.c, j.inputs) * zfi_div_up(j.v.o, j.outputs),
                     zfi_conv_task_w, &j);
        return ZF_OK;
    }
    zfi_pool_run(pool, j.v.groups * zfi_conv_rows_tiles(&j), zfi_conv_pack, &j);
    zfi_pool_run(pool, j.v.batch * j.v.groups * zfi_strips_count(&j.strips), zfi_conv_task, &j);
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- records */

/* A multiplication and an addition for each element of y and of w that meet. */
static double zfi_flops_conv(const zf_launch *l)
{
    const zf_array *of[3];
    const zfi_conv v = zfi_conv_of(l, of);
    return 2 * (double)zfi_count(of[ZFI_CONV_Y]) * (double)v.c * (double)zfi_conv_area(v.taps);
}

ZFI_OPERATOR(conv, .infer = zfi_infer_conv, .grad = zfi_grad_conv, .cpu = zfi_cpu_conv,
             .scratch = zfi_scratch_conv, .flops = zfi_flops_conv,
             .cuts = "b c! h! w!, o! i! j! k! -> b o! p! q!", .linear = ZFI_LINEAR_EACH,
             .traits = ZF_OP_PRODUCT | ZF_OP_READS_HALF)
ZFI_OPERATOR(conv_grad_x, .infer = zfi_infer_conv_grad_x, .cpu = zfi_cpu_conv,
             .scratch = zfi_scratch_conv, .flops = zfi_flops_conv,
             .cuts = "b o! p! q!, o! i! j! k! -> b c! h! w!", .linear = ZFI_LINEAR_EACH,
             .traits = ZF_OP_PRODUCT | ZF_OP_READS_HALF)
ZFI_OPERATOR(conv_grad_w, .infer = zfi_infer_conv_grad_w, .cpu = zfi_cpu_conv,
             .scratch = zfi_scratch_conv, .flops = zfi_flops_conv,
             .cuts = "b c! h! w!, b o! p! q! -> o! i! j! k!", .linear = ZFI_LINEAR_EACH,
             .traits = ZF_OP_PRODUCT | ZF_OP_READS_HALF)
