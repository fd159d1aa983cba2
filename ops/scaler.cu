/* Counters and the loss scale, in device memory: advance, loss_scale_update. One thread, with the
 * arithmetic of scaler.c. */

/* A float operand. Below 0: the step is skipped. */
__device__ __forceinline__ float zfd_one_float(const void *x, zf_dtype dtype)
{
    if (dtype == ZF_F32) return *static_cast<const float *>(x);
    return dtype == ZF_BF16 ? zfd_to_f32(*static_cast<const zfd_bf16 *>(x))
                            : zfd_to_f32(*static_cast<const zfd_f16 *>(x));
}

/* good NULL: always advances. */
static __global__ void zfd_advance_kernel(void *count, zf_dtype dtype, const void *good,
                                          zf_dtype good_dtype)
{
    if (good && zfd_one_float(good, good_dtype) < 0) return;
    if (dtype == ZF_I64) *static_cast<int64_t *>(count) += 1;
    else if (*static_cast<int32_t *>(count) < INT32_MAX) *static_cast<int32_t *>(count) += 1;
}

static zf_status zfd_cuda_advance(const zf_launch *l)
{
    const zf_array *good = l->arg_count > 1 ? &l->args[1] : NULL;
    if (good && good->dtype == ZF_F64) return zfd_no_dtype(l, ZF_F64);
    ZFD_LAUNCH(zfd_advance_kernel, 1, 1, 0, zfd_stream(l), l->args[0].data, l->args[0].dtype,
               good ? good->data : NULL, good ? good->dtype : ZF_F32);
    return zfd_launched(l);
}

typedef struct zfd_scaler {
    float *scale;
    int64_t *left, *iteration, *last, *skipped;
    const void *good; /* below 0: gradients are non-finite */
    zf_dtype good_dtype;
    double factor, least;
    int64_t window, hysteresis;
    bool consecutive;
    int32_t op, node;
} zfd_scaler;

/* a + b, with wrapping: a program can write any number to a counter. */
__device__ __forceinline__ int64_t zfd_wrapped_sum(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static __global__ void zfd_scaler_kernel(zfd_scaler s, zfd_fault *fault)
{
    double scale = *s.scale;
    int64_t left = *s.left, iteration = *s.iteration, last = *s.last;
    if (!(zfd_one_float(s.good, s.good_dtype) < 0)) {
        int64_t good = zfd_wrapped_sum(iteration, ~last);
        bool due = good > 0 && good % s.window == 0;
        if (due || s.consecutive) left = s.hysteresis;
        if (due && isfinite((float)(scale * s.factor))) scale *= s.factor;
    } else {
        if (left <= 1 && s.factor > 1 && scale <= s.least) {
            zfd_fault what = {ZFD_FAULT_SCALE, s.op, s.node, 0, 0, 0, s.least, 0, 0};
            zfd_report(fault, what);
            return;
        }
        if (left > 1) left--;
        else scale = scale / s.factor > s.least || s.factor == 1 ? scale / s.factor : s.least;
        last = iteration;
        *s.skipped = zfd_wrapped_sum(*s.skipped, 1);
    }
    *s.scale = (float)scale;
    *s.left = left;
    *s.iteration = zfd_wrapped_sum(iteration, 1);
    *s.last = last;
}

static zf_status zfd_cuda_loss_scale_update(const zf_launch *l)
{
    zfd_scaler s = {static_cast<float *>(l->args[0].data),
                    static_cast<int64_t *>(l->args[1].data),
                    static_cast<int64_t *>(l->args[2].data),
                    static_cast<int64_t *>(l->args[3].data),
                    static_cast<int64_t *>(l->args[4].data),
                    l->args[5].data,
                    l->args[5].dtype,
                    ZF_FLOAT(l, loss_scale_update, factor),
                    ZF_FLOAT(l, loss_scale_update, least),
                    ZF_INT(l, loss_scale_update, window),
                    ZF_INT(l, loss_scale_update, hysteresis),
                    ZF_INT(l, loss_scale_update, consecutive) != 0,
                    l->op,
                    l->node};
    if (s.good_dtype == ZF_F64) return zfd_no_dtype(l, ZF_F64);
    ZFD_LAUNCH(zfd_scaler_kernel, 1, 1, 0, zfd_stream(l), s, zfd_device_of(l)->fault);
    return zfd_launched(l);
}

ZFD_KERNEL(advance, zfd_cuda_advance, NULL)
ZFD_KERNEL(loss_scale_update, zfd_cuda_loss_scale_update, NULL)
