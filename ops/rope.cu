/* rope on CUDA (ops/rope.c). A thread computes the cosine and sine of one angle, and rotates the
 * pairs of all heads with this angle. */

enum { ZFD_ROPE_FREQUENCIES = 512 };

typedef struct zfd_rope {
    int64_t count, tables; /* count: pairs of one head in all rows */
    zfd_divisor half;
    int64_t heads;
    int64_t first; /* position, where `positions` is NULL */
    const void *x, *positions;
    void *y;
    bool wide, inverse; /* wide: positions are i64 */
    float by;
    float frequencies[ZFD_ROPE_FREQUENCIES];
} zfd_rope;

template <class T> __global__ void zfd_rope_kernel(const zfd_rope r)
{
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < r.count;
         n += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = zfd_divide(n, r.half), i = n - row * r.half.by, half = r.half.by,
                      table = row % r.tables;
        const int64_t position = r.positions ? zfd_index_at(r.positions, r.wide, table)
                                             : r.first + table;
        const float angle = (float)position * r.frequencies[i], c = r.by * cosf(angle),
                    s = r.by * (r.inverse ? -sinf(angle) : sinf(angle));
        const T *x = static_cast<const T *>(r.x) + row * r.heads * 2 * half + i;
        T *y = static_cast<T *>(r.y) + row * r.heads * 2 * half + i;
        for (int64_t h = 0; h < r.heads; h++, x += 2 * half, y += 2 * half) {
            float a = zfd_to_f32(x[0]), b = zfd_to_f32(x[half]);
            y[0] = zfd_from_f32<T>(fmaf(a, c, -(b * s)));
            y[half] = zfd_from_f32<T>(fmaf(b, c, a * s));
        }
    }
}

static zf_status zfd_cuda_rope(const zf_launch *l)
{
    const zf_array *x = &l->args[0], *positions = l->arg_count > 1 ? &l->args[1] : NULL;
    zf_rope_desc d = {};
    zfd_rope r = {};
    if (!zfd_count(&l->out)) return ZF_OK;
    d.heads = ZF_INT(l, rope, heads), d.theta = ZF_FLOAT(l, rope, theta);
    d.scaling = (zf_rope_scaling)ZF_INT(l, rope, scaling), d.factor = ZF_FLOAT(l, rope, factor);
    d.low_factor = ZF_FLOAT(l, rope, low), d.high_factor = ZF_FLOAT(l, rope, high);
    d.original = ZF_INT(l, rope, original);
    d.unrounded = ZF_INT(l, rope, unrounded) != 0, d.attention = ZF_FLOAT(l, rope, by);
    const int64_t half = zfd_row_length(x) / d.heads / 2;
    for (int64_t i = 0; i < half; i++)
        r.frequencies[i] = (float)zf_rope_frequency(&d, 2 * half, i);
    r.count = zfd_row_count(x) * half;
    r.half = zfd_divisor_of(half, r.count);
    r.heads = d.heads, r.first = ZF_INT(l, rope, first);
    r.tables = positions ? zfd_count(positions) : x->shape.dims[x->shape.rank - 2];
    r.x = x->data, r.y = l->out.data;
    r.positions = positions ? positions->data : NULL;
    r.wide = positions && positions->dtype == ZF_I64;
    r.inverse = ZF_INT(l, rope, inverse) != 0;
    r.by = d.scaling == ZF_ROPE_YARN ? (float)d.attention : 1;
    ZFD_FLOATS(l, l->out.dtype, T, {
        ZFD_LAUNCH(zfd_rope_kernel<T>, zfd_grid(l, zfd_div_up(r.count, ZFD_THREADS)), ZFD_THREADS,
                   0, zfd_stream(l), r);
    })
    return zfd_launched(l);
}

ZFD_KERNEL(rope, zfd_cuda_rope, NULL)
