/* Convolutions: conv, conv_grad_x, conv_grad_w. Nothing is stored between x and y: a thread adds
 * the terms of an element of y, or of dx, in f32 in the order of channels and taps; a warp those of
 * an element of dw, lane by lane and then as a tree. */

typedef struct zfd_conv {
    int64_t count, batch, groups, c, o; /* count: elements of the result; c and o: of a group */
    int64_t image[2], taps[2], places[2], stride[2], pad[2], dilation[2];
} zfd_conv;

static void zfd_conv_pair(int64_t to[2], const zf_attribute &a)
{
    for (int k = 0; k < 2; k++) to[k] = static_cast<const int64_t *>(a.list.data)[k];
}

static zfd_conv zfd_conv_of(const zf_launch *l)
{
    const zf_array *x = l->op == ZF_OP_conv_grad_x ? &l->out : &l->args[0],
                   *w = l->op == ZF_OP_conv_grad_w ? &l->out : &l->args[1];
    const zf_array *y = l->op == ZF_OP_conv          ? &l->out
                        : l->op == ZF_OP_conv_grad_x ? &l->args[0]
                                                     : &l->args[1];
    zfd_conv v;
    memset(&v, 0, sizeof v);
    v.count = zfd_count(&l->out), v.batch = x->shape.dims[0];
    v.groups = ZF_INT(l, conv, groups);
    v.c = w->shape.dims[1], v.o = w->shape.dims[0] / v.groups;
    for (int k = 0; k < 2; k++) {
        v.image[k] = x->shape.dims[2 + k], v.taps[k] = w->shape.dims[2 + k];
        v.places[k] = y->shape.dims[2 + k];
    }
    zfd_conv_pair(v.stride, ZF_ATTRIBUTE(l, conv, stride));
    zfd_conv_pair(v.pad, ZF_ATTRIBUTE(l, conv, pad));
    zfd_conv_pair(v.dilation, ZF_ATTRIBUTE(l, conv, dilation));
    return v;
}

/* As in conv.c: the element of x that a place of y reads for a tap, or the place. */
__device__ __forceinline__ int64_t zfd_conv_source(const zfd_conv &v, bool back, int axis,
                                                   int64_t at, int64_t tap)
{
    int64_t s;
    if (!back) {
        s = at * v.stride[axis] + tap * v.dilation[axis] - v.pad[axis];
        return s >= 0 && s < v.image[axis] ? s : -1;
    }
    s = at + v.pad[axis] - tap * v.dilation[axis];
    if (s < 0 || s % v.stride[axis]) return -1;
    s /= v.stride[axis];
    return s < v.places[axis] ? s : -1;
}

template <class T, bool BACK>
__global__ void zfd_conv_kernel(zfd_conv v, T *out, const T *from, const T *w)
{
    const int64_t *size = BACK ? v.image : v.places, *of = BACK ? v.places : v.image;
    const int64_t plane = size[0] * size[1], other = of[0] * of[1], taps = v.taps[0] * v.taps[1];
    const int64_t its = BACK ? v.c : v.o, others = BACK ? v.o : v.c;
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < v.count;
         n += (int64_t)gridDim.x * blockDim.x) {
        const int64_t at = n % plane, channel = n / plane % (its * v.groups),
                      b = n / plane / (its * v.groups), group = channel / its;
        float sum = 0;
        for (int64_t k = 0; k < others; k++) {
            const T *x = from + ((b * v.groups + group) * others + k) * other;
            const T *y = w + (BACK ? (group * v.o + k) * v.c + channel % its : channel * v.c + k) * taps;
            for (int64_t i = 0; i < v.taps[0]; i++) {
                const int64_t row = zfd_conv_source(v, BACK, 0, at / size[1], i);
                for (int64_t j = 0; j < v.taps[1] && row >= 0; j++) {
                    const int64_t column = zfd_conv_source(v, BACK, 1, at % size[1], j);
                    if (column >= 0)
                        sum = fmaf(zfd_to_f32(x[row * of[1] + column]),
                                   zfd_to_f32(y[i * v.taps[1] + j]), sum);
                }
            }
        }
        out[n] = zfd_narrowed<T>::of(sum);
    }
}

template <class T>
__global__ void zfd_conv_w_kernel(zfd_conv v, T *out, const T *x, const T *y)
{
    const int64_t taps = v.taps[0] * v.taps[1], image = v.image[0] * v.image[1],
                  places = v.places[0] * v.places[1];
    const int lane = (int)threadIdx.x % ZFD_WARP, warps = (int)blockDim.x / ZFD_WARP;
    for (int64_t n = (int64_t)blockIdx.x * warps + (int)threadIdx.x / ZFD_WARP; n < v.count;
         n += (int64_t)gridDim.x * warps) {
        const int64_t tap = n % taps, c = n / taps % v.c, o = n / taps / v.c, group = o / v.o;
        float sum = 0;
        for (int64_t t = lane; t < v.batch * places; t += ZFD_WARP) {
            const int64_t b = t / places, at = t % places;
            const int64_t row = zfd_conv_source(v, false, 0, at / v.places[1], tap / v.taps[1]),
                          column = zfd_conv_source(v, false, 1, at % v.places[1], tap % v.taps[1]);
            if (row < 0 || column < 0) continue;
            sum = fmaf(zfd_to_f32(y[(b * v.groups * v.o + o) * places + at]),
                       zfd_to_f32(x[((b * v.groups + group) * v.c + c) * image + row * v.image[1] +
                                    column]),
                       sum);
        }
        sum = zfd_warp_sum(sum);
        if (lane == 0) out[n] = zfd_narrowed<T>::of(sum);
    }
}

template <class T> static void zfd_conv_launch(const zf_launch *l)
{
    const zfd_conv v = zfd_conv_of(l);
    T *out = static_cast<T *>(l->out.data);
    const T *a = static_cast<const T *>(l->args[0].data),
            *b = static_cast<const T *>(l->args[1].data);
    const unsigned blocks = zfd_grid(l, zfd_div_up(v.count, ZFD_THREADS));
    if (l->op == ZF_OP_conv)
        ZFD_LAUNCH((zfd_conv_kernel<T, false>), blocks, ZFD_THREADS, 0, zfd_stream(l), v, out, a, b);
    else if (l->op == ZF_OP_conv_grad_x)
        ZFD_LAUNCH((zfd_conv_kernel<T, true>), blocks, ZFD_THREADS, 0, zfd_stream(l), v, out, a, b);
    else
        ZFD_LAUNCH(zfd_conv_w_kernel<T>, zfd_grid(l, zfd_div_up(v.count * ZFD_WARP, ZFD_THREADS)),
                   ZFD_THREADS, 0, zfd_stream(l), v, out, a, b);
}

static zf_status zfd_cuda_conv(const zf_launch *l)
{
    if (!zfd_count(&l->out)) return ZF_OK;
    ZFD_FLOATS(l, l->out.dtype, T, zfd_conv_launch<T>(l);)
    return zfd_launched(l);
}

ZFD_KERNEL(conv, zfd_cuda_conv, NULL)
ZFD_KERNEL(conv_grad_x, zfd_cuda_conv, NULL)
ZFD_KERNEL(conv_grad_w, zfd_cuda_conv, NULL)
