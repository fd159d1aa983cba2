/* The shapes of convolutions, and their gradients; the formula is in conv.c. */

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
