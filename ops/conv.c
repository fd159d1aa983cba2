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
 * channel, some rows of it, into the scratch of a worker, in f32, and read it once for each tap:
 * columns of a product (im2col; Chellapilla et al. 2006) are never made. y is a product of w with
 * rows of the strip; dx is the same of dy, whose elements are a stride apart, with the taps turned;
 * dw is made of dots of dy with rows of the strip, over all places in their order. Sums have the
 * blocks of the product of matrices (matmul.c), or the lanes of a vector; bits depend on the shapes
 * alone. A zero next to a plane may meet an infinite weight, or a place between rows an infinite x: then
 * more elements are NaN than by the formula. */

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

/* -------------------------------------------------------------------- the fast kernels */

enum {
    ZFI_CONV_ROOM = 1 << 16,    /* floats of a strip, 256 KiB, where the least strip has fewer */
    ZFI_CONV_PLACES = 1024,     /* places of a strip, at most */
    ZFI_CONV_PLACES_ONE = 2048, /* the same where the result has one channel */
    ZFI_CONV_ROWS = 72,         /* channels of the result that go over a tile before the next */
    ZFI_CONV_LEAST = 64,        /* columns that are not cut further */
    ZFI_CONV_BEYOND = 128,      /* floats that tiles read beyond a strip */
    ZFI_CONV_BLOCK = 64,        /* channels of dy that a task of dw has at most */
    ZFI_CONV_BLOCK_TAPS = 72    /* taps of all its channels of x, about */
};

enum { ZFI_CONV_RUN = 256 };

/* to[0..n) = from; one of the two is f32. Rows of pictures are short: runs of 8 are copied without a
 * call. */
static void zfi_strips_copy(zfi_isa isa, zf_dtype from_dtype, void *to, zf_dtype to_dtype,
                            const void *from, int64_t n)
{
    float *y = to;
    const float *x = from;
    int64_t i = 0;
    if (n < 1) return;
    if (to_dtype != ZF_F32 || from_dtype != ZF_F32) {
        if (to_dtype == ZF_F32) zfi_widen(isa, to, from_dtype, from, n);
        else zfi_narrow(isa, to, to_dtype, from, n);
        return;
    }
    for (; i + 8 <= n; i += 8) memcpy(y + i, x + i, 8 * sizeof *y);
    if (i < n && n >= 8) memcpy(y + n - 8, x + n - 8, 8 * sizeof *y);
    else
        for (; i < n; i++) y[i] = x[i];
}

/* How strips are cut from planes. A plane is read as if its elements were `gap` apart, with `pad`
 * zeros before them; tap i of place p reads element stride p + dilation i of that. Elements that
 * have one remainder by the stride lie together: a strip of a channel is
 *
 *     [phases of rows][phases of columns][deep][pitch], then `tail` zeros
 *
 * so that what a tap sees of neighbouring places are neighbours. Places of a strip are counted with
 * the same pitch. */
typedef struct zfi_strips {
    int64_t source[2], gap[2], pad[2], stride[2], dilation[2], taps[2], all[2];
    int64_t phases[2], size[2]; /* rows and columns of places of a strip */
    int64_t deep, pitch, tail, channel;
    bool turned; /* the first tap is the last element that a place sees */
} zfi_strips;

/* Elements between the first one and the last one that a place sees. */
static int64_t zfi_strips_reach(const zfi_strips *s, int axis)
{
    return (s->taps[axis] - 1) * s->dilation[axis];
}

/* Sets what follows from the size. Rows of the whole width share the zeros between them. */
static void zfi_strips_lay(zfi_strips *s)
{
    const int64_t seen = (s->size[1] - 1) * s->stride[1] + zfi_strips_reach(s, 1) + 1;
    s->tail = 0;
    s->pitch = zfi_div_up(seen, s->stride[1]);
    if (s->stride[1] == 1 && s->size[1] == s->all[1]) {
        const int64_t zeros = zfi_max(s->pad[1], 0),
                      filled = s->pad[1] + (s->source[1] - 1) * s->gap[1] + 1;
        s->pitch = zfi_max(zfi_max(s->size[1], seen - zeros), zfi_min(seen, filled));
        s->tail = seen - s->pitch;
    }
    s->deep = s->size[0] + zfi_strips_reach(s, 0) / s->stride[0];
    s->channel = s->phases[0] * s->phases[1] * s->deep * s->pitch + s->tail;
}

/* Those of `channels` planes at a time: of x, or with `back` of dy for dx. */
static zfi_strips zfi_strips_of(const zfi_conv *v, bool back, int64_t channels, int64_t places)
{
    zfi_strips s = {.turned = back};
    for (int k = 0; k < 2; k++) {
        const int64_t reach = (v->taps[k] - 1) * v->dilation[k];
        s.source[k] = back ? v->places[k] : v->image[k];
        s.all[k] = s.size[k] = back ? v->image[k] : v->places[k];
        s.gap[k] = back ? v->stride[k] : 1, s.stride[k] = back ? 1 : v->stride[k];
        s.pad[k] = back ? reach - v->pad[k] : v->pad[k];
        s.taps[k] = v->taps[k], s.dilation[k] = v->dilation[k];
        s.phases[k] = zfi_min(s.stride[k], reach + 1);
    }
    for (zfi_strips_lay(&s); s.channel * channels > ZFI_CONV_ROOM || s.size[0] * s.pitch > places;
         zfi_strips_lay(&s)) {
        if (s.size[0] > 1) s.size[0] = zfi_div_up(s.size[0], 2);
        else if (s.size[1] > ZFI_CONV_LEAST) s.size[1] = zfi_div_up(s.size[1], 2);
        else break;
    }
    return s;
}

/* Strips of a plane. */
static int64_t zfi_strips_count(const zfi_strips *s)
{
    return zfi_div_up(s->all[0], s->size[0]) * zfi_div_up(s->all[1], s->size[1]);
}

/* The first place of strip `index`, and how many rows and columns it has. */
static void zfi_strips_at(const zfi_strips *s, int64_t index, int64_t first[2], int64_t size[2])
{
    const int64_t wide = zfi_div_up(s->all[1], s->size[1]);
    first[0] = index / wide * s->size[0], first[1] = index % wide * s->size[1];
    for (int k = 0; k < 2; k++) size[k] = zfi_min(s->size[k], s->all[k] - first[k]);
}

/* Places of a strip, with those between its rows. */
static int64_t zfi_strips_places(const zfi_strips *s, const int64_t size[2])
{
    return (size[0] - 1) * s->pitch + size[1];
}

/* at[k]: where tap k % taps of channel k / taps is in a strip, from place 0 on. */
static void zfi_strips_taps(const zfi_strips *s, int64_t k, int64_t *at)
{
    const int64_t taps = zfi_conv_area(s->taps);
    for (int64_t n = 0; n < k; n++) {
        int64_t far[2] = {n % taps / s->taps[1], n % s->taps[1]};
        for (int a = 0; a < 2; a++)
            far[a] = (s->turned ? s->taps[a] - 1 - far[a] : far[a]) * s->dilation[a];
        at[n] = n / taps * s->channel + far[1] / s->stride[1] +
                ((far[0] % s->stride[0] * s->phases[1] + far[1] % s->stride[1]) * s->deep +
                 far[0] / s->stride[0]) *
                    s->pitch;
    }
}

/* A row of a strip: element i is element first + i step of the line, or with a gap, element
 * (first + i) / gap; what is not there is 0. The line is of the plane's dtype at `line`; `aside` has
 * room for it. */
static void zfi_strips_row(const zfi_strips *s, zfi_isa isa, zf_dtype dtype, float *to,
                           const void *line, int64_t first, float *aside)
{
    const int64_t width = s->source[1], step = s->stride[1], gap = s->gap[1], n = s->pitch;
    const int64_t low = zfi_min(n, first < 0 ? zfi_div_up(-first, step) : 0);
    const int64_t last = (width - 1) * gap - first; /* the last one is at last / step */
    const int64_t high = last < 0 ? low : zfi_max(low, zfi_min(n, last / step + 1));
    const float *from = line;
    if (step == 1 && gap == 1) {
        for (int64_t i = 0; i < low; i++) to[i] = 0;
        zfi_strips_copy(isa, dtype, to + low, ZF_F32, zfi_element(line, dtype, first + low),
                        high - low);
        for (int64_t i = high; i < n; i++) to[i] = 0;
        return;
    }
    if (dtype != ZF_F32) zfi_widen(isa, aside, dtype, line, width), from = aside;
    memset(to, 0, (size_t)n * sizeof *to);
    if (gap > 1)
        for (int64_t i = zfi_div_up(first + low, gap); i * gap - first < high; i++)
            to[i * gap - first] = from[i];
    else
        for (int64_t i = low; i < high; i++) to[i] = from[first + i * step];
}

/* The strip of a channel whose plane begins with element `plane` of x. */
static void zfi_strips_fill(const zfi_strips *s, zfi_isa isa, const zf_array *x, int64_t plane,
                            const int64_t first[2], float *to, float *aside)
{
    for (int64_t i = 0; i < s->phases[0]; i++)
        for (int64_t j = 0; j < s->phases[1]; j++)
            for (int64_t r = 0; r < s->deep; r++, to += s->pitch) {
                const int64_t y = (first[0] + r) * s->stride[0] + i - s->pad[0];
                if (y < 0 || y % s->gap[0] || y / s->gap[0] >= s->source[0])
                    memset(to, 0, (size_t)s->pitch * sizeof *to);
                else
                    zfi_strips_row(
                        s, isa, x->dtype, to,
                        zfi_element(x->data, x->dtype, plane + y / s->gap[0] * s->source[1]),
                        first[1] * s->stride[1] + j - s->pad[1], aside);
            }
    for (int64_t i = 0; i < s->tail; i++) to[i] = 0;
}

/* A launch in strips. */
typedef struct zfi_conv_job {
    zfi_conv v;
    const zf_array *of[3];
    zfi_strips strips;
    const zfi_strip_tile *tile;
    zfi_isa isa;
    bool back;
    int64_t m, k, padded;    /* rows of the product, its sums' terms; rows as packed */
    int64_t inputs, outputs; /* of dw: channels of x and of dy of a task */
    int64_t places;          /* of a strip, in whole tiles */
    int64_t *at;             /* of k taps */
    float *w;                /* packed, of each group; of dw there are none */
    char *scratch;           /* of workers, `room` bytes each */
    size_t line, strip, out, sums, room, shared; /* floats of its parts; bytes before it */
} zfi_conv_job;

/* Rows of a tile that begins at row m. */
static int64_t zfi_conv_tile_rows(const zfi_conv_job *j, int64_t m)
{
    const int64_t rest = j->m - m;
    return j->m == 1 ? 1 : rest > 2 ? ZFI_STRIP_ROWS : 2;
}

static int64_t zfi_conv_rows_tiles(const zfi_conv_job *j)
{
    return zfi_div_up(j->m, ZFI_STRIP_ROWS);
}

/* Places of a tile. */
static int64_t zfi_conv_columns(const zfi_conv_job *j)
{
    return j->tile->lanes * (j->m == 1 ? ZFI_STRIP_VECTORS : ZFI_STRIP_WIDE);
}

/* Channels of a task of dw: as few as keep threads busy. */
static void zfi_conv_cut_w(zfi_conv_job *j, int threads)
{
    const int64_t taps = zfi_conv_area(j->v.taps);
    j->inputs = zfi_min(j->v.c, zfi_max(1, ZFI_CONV_BLOCK_TAPS / taps));
    j->outputs = zfi_min(j->v.o, ZFI_CONV_BLOCK);
    while (j->v.groups * zfi_div_up(j->v.c, j->inputs) * zfi_div_up(j->v.o, j->outputs) <
           4 * (int64_t)threads) {
        if (j->inputs > 1) j->inputs = zfi_div_up(j->inputs, 2);
        else if (j->outputs > ZFI_STRIP_DOTS)
            j->outputs = zfi_round_up(j->outputs / 2, ZFI_STRIP_DOTS);
        else break;
    }
}

static size_t zfi_conv_floats(int64_t count) { return (size_t)zfi_round_up(count, 16); }

static zfi_conv_job zfi_conv_job_of(const zf_launch *l)
{
    zfi_conv_job j = {.isa = zfi_cpu_of(l)->isa, .back = l->op == ZF_OP_conv_grad_x};
    const bool weights = l->op == ZF_OP_conv_grad_w;
    const int threads = zfi_pool_threads(zfi_cpu_of(l)->pool);
    int64_t channels, columns;
    size_t taps;
    j.v = zfi_conv_of(l, j.of);
    j.tile = zfi_strip_tile_of(j.isa);
    channels = j.back ? j.v.o : j.v.c;
    j.m = j.back ? j.v.c : j.v.o;
    j.k = channels * zfi_conv_area(j.v.taps);
    if (weights) zfi_conv_cut_w(&j, threads);
    j.strips = zfi_strips_of(&j.v, j.back, weights ? 1 : channels,
                             !weights && j.m == 1 ? ZFI_CONV_PLACES_ONE : ZFI_CONV_PLACES);
    columns = weights ? j.tile->lanes : zfi_conv_columns(&j);
    j.places = zfi_round_up(zfi_strips_places(&j.strips, j.strips.size), columns);
    j.padded = j.m == 1 ? 1 : (zfi_conv_rows_tiles(&j) - 1) * ZFI_STRIP_ROWS;
    if (j.m > 1) j.padded += zfi_conv_tile_rows(&j, j.padded);
    j.line = zfi_conv_floats(j.strips.source[1]);
    j.strip = zfi_conv_floats((weights ? j.inputs : channels) * j.strips.channel) + ZFI_CONV_BEYOND;
    j.out = zfi_conv_floats(weights ? zfi_round_up(j.outputs, ZFI_STRIP_DOTS) * j.places
                                    : zfi_min(j.padded, ZFI_CONV_ROWS) * j.places);
    if (weights)
        j.sums = zfi_conv_floats(zfi_round_up(j.outputs, ZFI_STRIP_DOTS) *
                                 zfi_round_up(j.inputs * zfi_conv_area(j.v.taps), ZFI_STRIP_TAPS) *
                                 (j.tile->lanes + 1));
    j.room = (j.line + j.strip + j.out + j.sums) * sizeof(float);
    taps = zfi_round_bytes((size_t)j.k * sizeof *j.at);
    j.shared = taps;
    if (!weights)
        j.shared += zfi_round_bytes((size_t)(j.v.groups * j.padded * j.k) * sizeof(float));
    if (!l->scratch) return j;
    j.at = l->scratch;
    j.w = (float *)(void *)((char *)l->scratch + taps);
    j.scratch = (char *)l->scratch + j.shared;
    return j;
}

/* Packs the weights of a tile of rows: [k][rows], beyond the last row 0. */
static void zfi_conv_pack(void *context, int64_t index, int worker)
{
    const zfi_conv_job *j = context;
    const zf_array *w = j->of[ZFI_CONV_W];
    const int64_t tiles = zfi_conv_rows_tiles(j), g = index / tiles,
                  first = index % tiles * ZFI_STRIP_ROWS, rows = zfi_conv_tile_rows(j, first),
                  taps = zfi_conv_area(j->v.taps);
    float *to = j->w + (g * j->padded + first) * j->k, run[ZFI_CONV_RUN];
    (void)worker;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0, n; k < j->k; k += n) {
            const int64_t m = first + r, other = k / taps, tap = k % taps;
            /* those of a row lie together, but for dx only those of a channel of dy */
            const int64_t from = j->back ? ((g * j->v.o + other) * j->v.c + m) * taps + tap
                                         : (g * j->v.o + m) * j->k + k;
            n = zfi_min(ZFI_CONV_RUN, j->back ? taps - tap : j->k - k);
            if (m < j->m) {
                const float *of = zfi_read_floats(j->isa, run, w, from, n);
                for (int64_t i = 0; i < n; i++) to[(k + i) * rows + r] = of[i];
            } else {
                for (int64_t i = 0; i < n; i++) to[(k + i) * rows + r] = 0;
            }
        }
}

/* Rows m0 to m1 of the product of a group's weights with a strip: out[m - m0][place]. What a tile of
 * places reads of the strip stays in the nearest cache for all rows. */
static void zfi_conv_rows(const zfi_conv_job *j, int64_t g, int64_t m0, int64_t m1, int64_t places,
                          const float *strip, float *out)
{
    const int64_t columns = zfi_conv_columns(j);
    const int64_t block = zfi_max(1, zfi_matmul_k_block(zfi_tile_of(j->isa), zfi_max(1, j->k)));
    int64_t k0 = 0;
    do {
        const int64_t k = zfi_min(block, j->k - k0);
        for (int64_t x = 0; x < places; x += columns)
            for (int64_t m = m0, rows; m < m1; m += ZFI_STRIP_ROWS) {
                const float *w = j->w + (g * j->padded + m) * j->k;
                zfi_strip_product *product;
                rows = zfi_conv_tile_rows(j, m);
                product = rows == 1 ? j->tile->one : rows == 2 ? j->tile->two : j->tile->four;
                product(k, w + k0 * rows, strip + x, j->at + k0, out + (m - m0) * j->places + x,
                        j->places, k0 > 0);
            }
        k0 += k;
    } while (k0 < j->k);
}

/* A strip of places of a group of an image. */
static void zfi_conv_task(void *context, int64_t index, int worker)
{
    const zfi_conv_job *j = context;
    const zfi_strips *s = &j->strips;
    const zf_array *from = j->of[j->back ? ZFI_CONV_Y : ZFI_CONV_X],
                   *to = j->of[j->back ? ZFI_CONV_X : ZFI_CONV_Y];
    const int64_t strips = zfi_strips_count(s), its = index / strips,
                  channels = j->back ? j->v.o : j->v.c, plane = zfi_conv_area(s->source);
    float *line = (float *)(void *)(j->scratch + (size_t)worker * j->room), *strip = line + j->line,
          *out = strip + j->strip;
    int64_t first[2], size[2], places;
    zfi_strips_at(s, index % strips, first, size);
    places = zfi_strips_places(s, size);
    for (int64_t c = 0; c < channels; c++)
        zfi_strips_fill(s, j->isa, from, (its * channels + c) * plane, first,
                        strip + c * s->channel, line);
    memset(strip + channels * s->channel, 0, ZFI_CONV_BEYOND * sizeof *strip);
    for (int64_t m = 0; m < j->m; m += ZFI_CONV_ROWS) {
        const int64_t end = zfi_min(m + ZFI_CONV_ROWS, j->m);
        zfi_conv_rows(j, its % j->v.groups, m, end, places, strip, out);
        for (int64_t r = m; r < end; r++)
            for (int64_t y = 0; y < size[0]; y++)
                zfi_strips_copy(
                    j->isa, ZF_F32,
                    zfi_element_of(to->data, to->dtype,
                                   ((its * j->m + r) * s->all[0] + first[0] + y) * s->all[1] +
                                       first[1]),
                    to->dtype, out + (r - m) * j->places + y * s->pitch, size[1]);
    }
}

/* dw of some channels of x and some of dy of a group: over all strips of all images in their order,
 * in the lanes of a vector, which are added at the end. */
static void zfi_conv_task_w(void *context, int64_t index, int worker)
{
    const zfi_conv_job *j = context;
    const zfi_conv *v = &j->v;
    const zfi_strips *s = &j->strips;
    const zf_array *x = j->of[ZFI_CONV_X], *dy = j->of[ZFI_CONV_Y], *dw = j->of[ZFI_CONV_W];
    const int64_t inputs = zfi_div_up(v->c, j->inputs), outputs = zfi_div_up(v->o, j->outputs),
                  g = index / outputs / inputs, c0 = index / outputs % inputs * j->inputs,
                  o0 = index % outputs * j->outputs, c = zfi_min(j->inputs, v->c - c0),
                  o = zfi_min(j->outputs, v->o - o0), dots = v->o == 1 ? 1 : ZFI_STRIP_DOTS;
    const int64_t k = c * zfi_conv_area(v->taps), tiles = zfi_div_up(k, ZFI_STRIP_TAPS),
                  lanes = j->tile->lanes, each = dots * ZFI_STRIP_TAPS * lanes;
    float *line = (float *)(void *)(j->scratch + (size_t)worker * j->room), *strip = line + j->line,
          *out = strip + j->strip, *sums = out + j->out,
          *row = sums + zfi_div_up(o, dots) * tiles * each;
    memset(sums, 0, (size_t)(zfi_div_up(o, dots) * tiles * each) * sizeof *sums);
    memset(strip + c * s->channel, 0, ZFI_CONV_BEYOND * sizeof *strip);
    for (int64_t n = 0; n < v->batch * zfi_strips_count(s); n++) {
        const int64_t its = n / zfi_strips_count(s) * v->groups + g;
        int64_t first[2], size[2], places;
        zfi_strips_at(s, n % zfi_strips_count(s), first, size);
        places = zfi_round_up(zfi_strips_places(s, size), lanes);
        for (int64_t i = 0; i < c; i++)
            zfi_strips_fill(s, j->isa, x, (its * v->c + c0 + i) * zfi_conv_area(s->source), first,
                            strip + i * s->channel, line);
        for (int64_t i = 0; i < zfi_round_up(o, dots); i++) {
            float *to = out + i * j->places;
            for (int64_t y = 0, at = 0; y < size[0] && i < o; y++, at += s->pitch) {
                const int64_t next = y + 1 < size[0] ? at + s->pitch : places;
                zfi_strips_copy(
                    j->isa, dy->dtype, to + at, ZF_F32,
                    zfi_element(dy->data, dy->dtype,
                                ((its * v->o + o0 + i) * s->all[0] + first[0] + y) * s->all[1] +
                                    first[1]),
                    size[1]);
                for (int64_t q = at + size[1]; q < next; q++) to[q] = 0;
            }
            if (i >= o) memset(to, 0, (size_t)places * sizeof *to);
        }
        for (int64_t i = 0; i < o; i += dots)
            for (int64_t t = 0; t < tiles; t++) {
                int64_t at[ZFI_STRIP_TAPS];
                for (int64_t q = 0; q < ZFI_STRIP_TAPS; q++)
                    at[q] = j->at[zfi_min(t * ZFI_STRIP_TAPS + q, k - 1)];
                j->tile->dots[dots > 1](places, out + i * j->places, j->places, strip, at,
                                        sums + (i / dots * tiles + t) * each);
            }
    }
    for (int64_t i = 0; i < o; i++) {
        for (int64_t n = 0; n < k; n++) {
            const float *lane = sums + (i / dots * tiles + n / ZFI_STRIP_TAPS) * each +
                                (i % dots * ZFI_STRIP_TAPS + n % ZFI_STRIP_TAPS) * lanes;
            float sum = lane[0];
            for (int64_t a = 1; a < lanes; a++) sum += lane[a];
            row[n] = sum;
        }
        zfi_strips_copy(j->isa, ZF_F32,
                        zfi_element_of(dw->data, dw->dtype,
                                       (g * v->o + o0 + i) * j->k + c0 * zfi_conv_area(v->taps)),
                        dw->dtype, row, k);
    }
}

static size_t zfi_scratch_conv(const zf_launch *l)
{
    zfi_conv_job j;
    zf_launch asked = *l;
    if (!zfi_fast_or_half(l) || !zfi_count(&l->out)) return 0;
    asked.scratch = NULL;
    j = zfi_conv_job_of(&asked);
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
    j = zfi_conv_job_of(l);
    zfi_strips_taps(&j.strips, j.k, j.at);
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
