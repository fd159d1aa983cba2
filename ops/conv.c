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
 * Saved: x and w. A convolution is a product of w with columns, the elements of x that each
 * position sees (im2col; Chellapilla et al. 2006). Columns are made for a tile of positions at a
 * time, in the scratch of a worker, and never lie in memory whole. dx is a product with columns of
 * dy, for the positions of x; dw one with columns of x, for a block of its rows over all positions
 * in their order. So bits depend on the shapes alone. */

enum { ZFI_CONV_X, ZFI_CONV_W, ZFI_CONV_Y, ZFI_CONV_MOST = 1 << 30 };

/* One of the three, taken apart. Pairs are of height and width; c and o: channels of a group. */
typedef struct zfi_conv {
    int64_t batch, groups, c, o;
    int64_t image[2], taps[2], places[2]; /* sizes of x, w and y */
    int64_t stride[2], pad[2], dilation[2];
} zfi_conv;

ZFI_SAME_ATTRIBUTE(conv_grad_x, conv, stride)
ZFI_SAME_ATTRIBUTE(conv_grad_x, conv, pad)
ZFI_SAME_ATTRIBUTE(conv_grad_x, conv, dilation)
ZFI_SAME_ATTRIBUTE(conv_grad_x, conv, groups)
ZFI_SAME_ATTRIBUTE(conv_grad_w, conv, stride)
ZFI_SAME_ATTRIBUTE(conv_grad_w, conv, pad)
ZFI_SAME_ATTRIBUTE(conv_grad_w, conv, dilation)
ZFI_SAME_ATTRIBUTE(conv_grad_w, conv, groups)

/* Reads a list of two numbers of at least `least`; false where it is none. */
static bool zfi_conv_pair(const zf_attribute *a, int64_t least, int64_t pair[2])
{
    const int64_t *from = a->list.data;
    if (a->list.count != 2) return false;
    for (int k = 0; k < 2; k++)
        if ((pair[k] = from[k]) < least || from[k] > ZFI_CONV_MOST) return false;
    return true;
}

/* The attributes that all three have; false where one is out of range. */
static bool zfi_conv_read(const zf_attribute *attributes, zfi_conv *v)
{
    v->groups = attributes[ZF_AT_conv_groups].i;
    return zfi_conv_pair(attributes + ZF_AT_conv_stride, 1, v->stride) &&
           zfi_conv_pair(attributes + ZF_AT_conv_pad, 0, v->pad) &&
           zfi_conv_pair(attributes + ZF_AT_conv_dilation, 1, v->dilation) && v->groups >= 1;
}

/* The places of x along an axis; below 1: the taps do not fit. */
static int64_t zfi_conv_places(const zfi_conv *v, int axis)
{
    const int64_t room =
        v->image[axis] + 2 * v->pad[axis] - v->dilation[axis] * (v->taps[axis] - 1) - 1;
    return room < 0 ? 0 : room / v->stride[axis] + 1;
}

static zf_status zfi_infer_conv_of(zfi_infer *c, const zf_shape *x, const zf_shape *w, zfi_conv *v)
{
    if (!zfi_conv_read(c->attributes, v))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "stride, pad and dilation are two numbers each, up to 2^30, of at "
                              "least 1, 0 and 1; groups is 1 or more");
    if (x->rank != 4 || w->rank != 4)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "it takes x [batch, channels, height, width] and w [channels of the "
                              "result, channels of a group, height, width]");
    if (x->dims[1] % v->groups || x->dims[1] / v->groups != w->dims[1] || w->dims[0] % v->groups)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "x has %lld channels, w %lld of %lld groups, and %lld of the result, "
                              "which must be a multiple of the groups",
                              (long long)x->dims[1], (long long)w->dims[1], (long long)v->groups,
                              (long long)w->dims[0]);
    v->batch = x->dims[0], v->c = w->dims[1], v->o = w->dims[0] / v->groups;
    for (int k = 0; k < 2; k++) {
        v->image[k] = x->dims[2 + k], v->taps[k] = w->dims[2 + k];
        if (v->taps[k] < 1 || v->taps[k] > ZFI_CONV_MOST || v->image[k] > ZFI_CONV_MOST ||
            zfi_conv_places(v, k) < 1)
            return zfi_infer_fail(
                c, ZF_ERR_SHAPE,
                "%lld taps %lld apart do not fit into %s %lld with %lld before and after",
                (long long)v->taps[k], (long long)v->dilation[k], k ? "width" : "height",
                (long long)v->image[k], (long long)v->pad[k]);
        v->places[k] = zfi_conv_places(v, k);
    }
    return ZF_OK;
}

/* Checks y, an operand, of gradients. */
static zf_status zfi_infer_conv_y(const zfi_infer *c, const zfi_conv *v, const zf_shape *y)
{
    const zf_shape must = {4, {v->batch, v->o * v->groups, v->places[0], v->places[1]}};
    char type[ZFI_TYPE_TEXT];
    if (zfi_same_shape(y, &must)) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "the gradient of the result must be %s",
                          zfi_type_text(type, c->args[0]->dtype, &must));
}

static zf_status zfi_infer_conv(zfi_infer *c)
{
    zfi_conv v;
    zf_status status = zfi_infer_dtypes(c, true);
    if (!status) status = zfi_infer_conv_of(c, &c->args[0]->shape, &c->args[1]->shape, &v);
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    c->shape = ZF_SHAPE(v.batch, v.o * v.groups, v.places[0], v.places[1]);
    return ZF_OK;
}

static zf_status zfi_infer_conv_grad_x(zfi_infer *c)
{
    const zf_shape *y = &c->args[0]->shape, *w = &c->args[1]->shape;
    const int64_t groups = ZF_INT(c, conv_grad_x, groups);
    int64_t size[2], channels = 0;
    zfi_conv v;
    zf_status status = zfi_infer_dtypes(c, true);
    if (!status && !zfi_conv_pair(&ZF_ATTRIBUTE(c, conv_grad_x, size), 0, size))
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "size is a height and a width");
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    if (w->rank > 1 && groups > 0 && w->dims[1] <= INT64_MAX / groups)
        channels = w->dims[1] * groups;
    c->shape = ZF_SHAPE(y->rank ? y->dims[0] : 0, channels, size[0], size[1]);
    status = zfi_infer_conv_of(c, &c->shape, w, &v);
    return status ? status : zfi_infer_conv_y(c, &v, y);
}

static zf_status zfi_infer_conv_grad_w(zfi_infer *c)
{
    const zf_shape *x = &c->args[0]->shape, *y = &c->args[1]->shape;
    const int64_t groups = ZF_INT(c, conv_grad_w, groups);
    int64_t taps[2];
    zfi_conv v;
    zf_status status = zfi_infer_dtypes(c, true);
    if (!status && !zfi_conv_pair(&ZF_ATTRIBUTE(c, conv_grad_w, taps), 1, taps))
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "taps is a height and a width");
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    c->shape = ZF_SHAPE(y->rank > 1 ? y->dims[1] : 0,
                        x->rank > 1 && groups > 0 ? x->dims[1] / groups : 0, taps[0], taps[1]);
    status = zfi_infer_conv_of(c, x, &c->shape, &v);
    return status ? status : zfi_infer_conv_y(c, &v, y);
}

static void zfi_grad_conv(zf_grad *c)
{
    const zf_shape x = zf_tensor_shape(c->x[0]), w = zf_tensor_shape(c->x[1]);
    zf_attribute a[ZF_MAX_ATTRIBUTES];
    memcpy(a, c->attributes, sizeof a);
    a[ZF_AT_conv_grad_x_size] = (zf_attribute)zfi_listed(x.dims + 2, 2);
    if (c->need[0]) c->dx[0] = zfi_op(conv_grad_x, a, c->dy, c->x[1]);
    a[ZF_AT_conv_grad_w_taps] = (zf_attribute)zfi_listed(w.dims + 2, 2);
    if (c->need[1]) c->dx[1] = zfi_op(conv_grad_w, a, c->x[0], c->dy);
}

/* --------------------------------------------------------------- the reference kernels */

/* x, w and y of a launch. */
static zfi_conv zfi_conv_of(const zf_launch *l, const zf_array *of[3])
{
    zfi_conv v = {.groups = 1};
    of[ZFI_CONV_X] = l->op == ZF_OP_conv_grad_x ? &l->out : &l->args[0];
    of[ZFI_CONV_W] = l->op == ZF_OP_conv_grad_w ? &l->out : &l->args[1];
    of[ZFI_CONV_Y] = l->op == ZF_OP_conv          ? &l->out
                     : l->op == ZF_OP_conv_grad_x ? &l->args[0]
                                                  : &l->args[1];
    zfi_conv_read(l->attributes, &v);
    v.batch = of[ZFI_CONV_X]->shape.dims[0], v.c = of[ZFI_CONV_W]->shape.dims[1];
    v.o = of[ZFI_CONV_W]->shape.dims[0] / v.groups;
    for (int k = 0; k < 2; k++) {
        v.image[k] = of[ZFI_CONV_X]->shape.dims[2 + k];
        v.taps[k] = of[ZFI_CONV_W]->shape.dims[2 + k];
        v.places[k] = of[ZFI_CONV_Y]->shape.dims[2 + k];
    }
    return v;
}

static int64_t zfi_conv_area(const int64_t size[2]) { return size[0] * size[1]; }

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
    const int64_t wide = back ? v->image[1] : v->places[1],
                  of = back ? v->places[1] : v->image[1];
    const int64_t row = zfi_conv_source(v, back, 0, at / wide, tap / v->taps[1]),
                  column = zfi_conv_source(v, back, 1, at % wide, tap % v->taps[1]);
    return row < 0 || column < 0 ? -1 : row * of + column;
}

/* An element of y (or with `back` of dx): channel `channel` of image b, at place `at`. */
static double zfi_conv_sum(const zfi_conv *v, const zf_array *const of[3], bool back, int64_t b,
                           int64_t channel, int64_t at)
{
    const zf_array *from = of[back ? ZFI_CONV_Y : ZFI_CONV_X], *w = of[ZFI_CONV_W];
    const int64_t plane = zfi_conv_area(back ? v->places : v->image),
                  taps = zfi_conv_area(v->taps), its = back ? v->c : v->o,
                  others = back ? v->o : v->c, group = channel / its;
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

/* -------------------------------------------------------------------- the fast kernels */

enum { ZFI_CONV_TILE = 512, ZFI_CONV_LEAST = 32, ZFI_CONV_COLUMNS = 1 << 17, ZFI_CONV_ROWS = 64 };

/* A launch in tiles. */
typedef struct zfi_conv_job {
    zfi_conv v;
    const zf_array *of[3];
    zfi_isa isa;
    bool back;
    int64_t k, tile; /* rows of columns, and their places at a time */
    const float *w;  /* [groups][channels of the result][k] */
    char *scratch;   /* of workers, `room` bytes each: columns, then that of the product */
    size_t columns, room, weights;
} zfi_conv_job;

/* Row `row` of columns for places [first, first + n), n below a tile, of a group's planes. */
static void zfi_conv_row(const zfi_conv *v, bool back, float *to, const float *planes, int64_t row,
                         int64_t first, int64_t n)
{
    const int64_t *size = back ? v->image : v->places, *from = back ? v->places : v->image;
    const int64_t taps = zfi_conv_area(v->taps), i = row % taps / v->taps[1],
                  j = row % taps % v->taps[1];
    const float *plane = planes + row / taps * zfi_conv_area(from);
    for (int64_t at = first, m; at < first + n; at += m, to += m) {
        const int64_t y = at / size[1], x = at % size[1],
                      s = zfi_conv_source(v, back, 0, y, i);
        const float *line = plane + s * from[1];
        m = zfi_min(size[1] - x, first + n - at);
        if (s < 0) {
            memset(to, 0, (size_t)m * sizeof *to);
        } else if (v->stride[1] == 1) {
            const int64_t shift = back ? v->pad[1] - j * v->dilation[1]
                                       : j * v->dilation[1] - v->pad[1];
            const int64_t low = zfi_min(m, zfi_max(0, -shift - x)),
                          high = zfi_max(low, zfi_min(m, from[1] - shift - x));
            memset(to, 0, (size_t)low * sizeof *to);
            if (high > low)
                memcpy(to + low, line + (x + low + shift), (size_t)(high - low) * sizeof *to);
            memset(to + high, 0, (size_t)(m - high) * sizeof *to);
        } else {
            for (int64_t t = 0; t < m; t++) {
                const int64_t column = zfi_conv_source(v, back, 1, x + t, j);
                to[t] = column < 0 ? 0 : line[column];
            }
        }
    }
}

/* The product of a tile: columns [k][n] with the weights of a group. */
static zfi_matmul_desc zfi_conv_product(const zfi_conv_job *j, int64_t n)
{
    const int64_t plane = zfi_conv_area(j->back ? j->v.image : j->v.places);
    return (zfi_matmul_desc){.m = j->back ? j->v.c : j->v.o,
                             .n = n,
                             .k = j->k,
                             .batch = 1,
                             .a_row = j->k,
                             .a_col = 1,
                             .b_row = n,
                             .b_col = 1,
                             .c_row = plane};
}

/* That of `rows` rows of columns with dy, over n places. */
static zfi_matmul_desc zfi_conv_product_w(const zfi_conv_job *j, int64_t rows, int64_t n)
{
    return (zfi_matmul_desc){.m = j->v.o,
                             .n = rows,
                             .k = n,
                             .batch = 1,
                             .a_row = zfi_conv_area(j->v.places),
                             .a_col = 1,
                             .b_row = 1,
                             .b_col = n,
                             .c_row = j->k,
                             .accumulate = true};
}

static size_t zfi_conv_more(zfi_isa isa, zfi_matmul_desc d, size_t most)
{
    const size_t bytes = zfi_matmul_tiled_scratch(isa, 1, &d);
    return bytes > most ? bytes : most;
}

static zfi_conv_job zfi_conv_job_of(const zf_launch *l)
{
    zfi_conv_job j = {.isa = zfi_cpu_of(l)->isa, .back = l->op == ZF_OP_conv_grad_x};
    const bool weights = l->op == ZF_OP_conv_grad_w;
    int64_t plane, last, rows;
    size_t product = 0;
    j.v = zfi_conv_of(l, j.of);
    j.k = (j.back ? j.v.o : j.v.c) * zfi_conv_area(j.v.taps);
    plane = zfi_conv_area(j.back ? j.v.image : j.v.places);
    rows = weights ? ZFI_CONV_ROWS : j.k;
    j.tile = ZFI_CONV_COLUMNS / (rows ? rows : 1) / ZFI_CONV_LEAST * ZFI_CONV_LEAST;
    j.tile = zfi_max(ZFI_CONV_LEAST, zfi_min(j.tile, ZFI_CONV_TILE));
    last = plane % j.tile;
    if (weights) {
        for (int64_t r = 0; r < 2; r++) {
            const int64_t some = r ? j.k % ZFI_CONV_ROWS : zfi_min(j.k, ZFI_CONV_ROWS);
            product = zfi_conv_more(j.isa, zfi_conv_product_w(&j, some, j.tile), product);
            product = zfi_conv_more(j.isa, zfi_conv_product_w(&j, some, last), product);
        }
    } else {
        product = zfi_conv_more(j.isa, zfi_conv_product(&j, j.tile), product);
        product = zfi_conv_more(j.isa, zfi_conv_product(&j, last), product);
    }
    j.columns = zfi_round_bytes((size_t)(rows * j.tile) * sizeof(float));
    j.room = j.columns + zfi_round_bytes(product);
    if (j.back)
        j.weights = zfi_round_bytes((size_t)zfi_count(j.of[ZFI_CONV_W]) * sizeof(float));
    j.w = j.back ? l->scratch : j.of[ZFI_CONV_W]->data;
    j.scratch = (char *)l->scratch + j.weights;
    return j;
}

/* The weights of dx: [groups][c][o taps]. */
static void zfi_conv_turn(const zfi_conv_job *j, float *to)
{
    const float *w = j->of[ZFI_CONV_W]->data;
    const int64_t taps = zfi_conv_area(j->v.taps);
    for (int64_t g = 0; g < j->v.groups; g++)
        for (int64_t c = 0; c < j->v.c; c++)
            for (int64_t o = 0; o < j->v.o; o++, to += taps)
                memcpy(to, w + ((g * j->v.o + o) * j->v.c + c) * taps,
                       (size_t)taps * sizeof *to);
}

/* y[i] = y[i] + w x[i] */
ZFI_BODY void zfi_conv_add_body(zfi_isa isa, float *y, const float *x, float w, int64_t n)
{
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) y[i] = zfi_fma(isa, w, x[i], y[i]);
}
ZFI_KERNEL(zfi_conv_add, (float *y, const float *x, float w, int64_t n), (y, x, w, n))

/* The product where a group has one channel of the result, as in a depthwise convolution: of one
 * row of columns after the other, which stays in the first-level cache. The order is that of
 * zfi_matmul_tiled. */
static void zfi_conv_one(const zfi_conv_job *j, const zfi_matmul_desc *d, const float *from,
                         int64_t first, float *row)
{
    const float *w = d->a;
    memset(d->c, 0, (size_t)d->n * sizeof(float));
    for (int64_t k = 0; k < d->k; k++) {
        zfi_conv_row(&j->v, j->back, row, from, k, first, d->n);
        zfi_conv_add(j->isa, d->c, row, w[k], d->n);
    }
}

/* A tile of places of a group of an image. */
static void zfi_conv_task(void *context, int64_t index, int worker)
{
    const zfi_conv_job *j = context;
    const zfi_conv *v = &j->v;
    const int64_t plane = zfi_conv_area(j->back ? v->image : v->places),
                  other = zfi_conv_area(j->back ? v->places : v->image);
    const int64_t tiles = zfi_div_up(plane, j->tile), first = index % tiles * j->tile,
                  its = index / tiles, n = zfi_min(j->tile, plane - first);
    const float *from = (const float *)j->of[j->back ? ZFI_CONV_Y : ZFI_CONV_X]->data +
                        its * (j->back ? v->o : v->c) * other;
    char *own = j->scratch + (size_t)worker * j->room;
    zfi_matmul_desc d = zfi_conv_product(j, n);
    d.a = j->w + its % v->groups * d.m * j->k;
    d.b = own;
    d.c = (float *)j->of[j->back ? ZFI_CONV_X : ZFI_CONV_Y]->data + its * d.m * plane + first;
    if (d.m == 1 && j->k <= ZFI_CONV_ROWS) {
        zfi_conv_one(j, &d, from, first, (float *)(void *)own);
        return;
    }
    for (int64_t row = 0; row < j->k; row++)
        zfi_conv_row(v, j->back, (float *)(void *)own + row * n, from, row, first, n);
    zfi_matmul_tiled(j->isa, NULL, &d, own + j->columns);
}

/* Some rows of columns of a group, over all places of all images in their order. */
static void zfi_conv_task_w(void *context, int64_t index, int worker)
{
    const zfi_conv_job *j = context;
    const zfi_conv *v = &j->v;
    const int64_t blocks = zfi_div_up(j->k, ZFI_CONV_ROWS), g = index / blocks,
                  row = index % blocks * ZFI_CONV_ROWS, rows = zfi_min(ZFI_CONV_ROWS, j->k - row);
    const int64_t image = zfi_conv_area(v->image), places = zfi_conv_area(v->places);
    char *own = j->scratch + (size_t)worker * j->room;
    float *to = (float *)j->of[ZFI_CONV_W]->data + g * v->o * j->k + row;
    for (int64_t o = 0; o < v->o; o++) memset(to + o * j->k, 0, (size_t)rows * sizeof *to);
    for (int64_t b = 0; b < v->batch; b++)
        for (int64_t first = 0; first < places; first += j->tile) {
            const int64_t n = zfi_min(j->tile, places - first), its = b * v->groups + g;
            const float *x = (const float *)j->of[ZFI_CONV_X]->data + its * v->c * image;
            zfi_matmul_desc d = zfi_conv_product_w(j, rows, n);
            for (int64_t r = 0; r < rows; r++)
                zfi_conv_row(v, false, (float *)(void *)own + r * n, x, row + r, first, n);
            d.a = (const float *)j->of[ZFI_CONV_Y]->data + its * v->o * places + first;
            d.b = own, d.c = to;
            zfi_matmul_tiled(j->isa, NULL, &d, own + j->columns);
        }
}

static size_t zfi_scratch_conv(const zf_launch *l)
{
    zfi_conv_job j;
    if (!zfi_fast(l) || !zfi_count(&l->out)) return 0;
    j = zfi_conv_job_of(l);
    return j.weights + (size_t)zfi_pool_threads(zfi_cpu_of(l)->pool) * j.room;
}

static zf_status zfi_cpu_conv(const zf_launch *l)
{
    zfi_pool *pool = zfi_cpu_of(l)->pool;
    const int64_t count = zfi_count(&l->out);
    zfi_conv_job j;
    if (!count) return ZF_OK;
    if (!zfi_fast(l)) {
        zfi_split(l, count, 16, zfi_conv_reference);
        return ZF_OK;
    }
    j = zfi_conv_job_of(l);
    if (j.back) zfi_conv_turn(&j, l->scratch);
    if (l->op == ZF_OP_conv_grad_w)
        zfi_pool_run(pool, j.v.groups * zfi_div_up(j.k, ZFI_CONV_ROWS), zfi_conv_task_w, &j);
    else
        zfi_pool_run(pool,
                     j.v.batch * j.v.groups *
                         zfi_div_up(zfi_conv_area(j.back ? j.v.image : j.v.places), j.tile),
                     zfi_conv_task, &j);
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
             .traits = ZF_OP_PRODUCT)
ZFI_OPERATOR(conv_grad_x, .infer = zfi_infer_conv_grad_x, .cpu = zfi_cpu_conv,
             .scratch = zfi_scratch_conv, .flops = zfi_flops_conv,
             .cuts = "b o! p! q!, o! i! j! k! -> b c! h! w!", .linear = ZFI_LINEAR_EACH,
             .traits = ZF_OP_PRODUCT)
ZFI_OPERATOR(conv_grad_w, .infer = zfi_infer_conv_grad_w, .cpu = zfi_cpu_conv,
             .scratch = zfi_scratch_conv, .flops = zfi_flops_conv,
             .cuts = "b c! h! w!, b o! p! q! -> o! i! j! k!", .linear = ZFI_LINEAR_EACH,
             .traits = ZF_OP_PRODUCT)
