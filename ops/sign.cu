/* What 1-bit optimizers need, on CUDA (ops/sign.c): sign_compress, sign_expand, momentum,
 * local_sum, assign, adam_apply, adam_drift.
 *
 * A warp has a block of 1024 elements: step w of 32 is elements 32 w to 32 w + 31, one for each
 * lane. So a vote of the warp is word w of the block's signs. */

enum {
    ZFD_SIGN_WORDS = ZFD_NORM_BLOCK / ZFD_WARP,
    ZFD_SIGN_ROW = (int)sizeof(float) + ZFD_NORM_BLOCK / 8, /* bytes of a compressed block */
    ZFD_SIGN_PARTS = 128                                    /* of one launch */
};

/* Neighbouring blocks: those of a tensor, or of a gap. */
typedef struct zfd_sign_part {
    int64_t blocks, end; /* up to the end of the part; the end of its elements */
} zfd_sign_part;

typedef struct zfd_sign_parts {
    int64_t first; /* block */
    int count;
    zfd_sign_part at[ZFD_SIGN_PARTS];
} zfd_sign_parts;

/* Goes through the parts of a value of `all` elements; `places` is the attribute at, which count
 * and world follow. */
typedef struct zfd_sign_walk {
    const zf_attribute *places;
    int64_t all, base, blocks, next; /* blocks: in parts so far; next: the next tensor */
} zfd_sign_walk;

static zfd_sign_walk zfd_sign_walk_over(const zf_launch *l, const zf_attribute *places, int64_t all)
{
    zfd_sign_walk w = {places, all, places[2].i > 1 ? l->run->shard * all : 0, 0, 0};
    return w;
}

/* The parts of the next launch; false after the last. */
static bool zfd_next_signs(zfd_sign_walk *w, zfd_sign_parts *parts)
{
    const int64_t *at = static_cast<const int64_t *>(w->places[0].list.data),
                  *count = static_cast<const int64_t *>(w->places[1].list.data);
    const int64_t tensors = w->places[0].list.count, all = zfd_div_up(w->all, ZFD_NORM_BLOCK);
    parts->first = w->blocks, parts->count = 0;
    while (w->blocks < all && parts->count + 2 <= ZFD_SIGN_PARTS) {
        zfd_sign_part own = {all, tensors ? w->blocks * ZFD_NORM_BLOCK : w->all};
        if (w->next < tensors) {
            const int64_t k = w->next++, first = at[k] - w->base, end = first + count[k],
                          last = end < w->all ? end : w->all;
            const zfd_sign_part gap = {first / ZFD_NORM_BLOCK, 0};
            if (end <= 0 || first >= w->all || !count[k]) continue;
            if (first > w->blocks * ZFD_NORM_BLOCK) parts->at[parts->count++] = gap;
            own.blocks = zfd_div_up(last, ZFD_NORM_BLOCK), own.end = last;
        }
        parts->at[parts->count++] = own;
        w->blocks = own.blocks;
    }
    return parts->count > 0;
}

/* The elements of tensors in block b, which is not before that of the last call with `part`. */
__device__ __forceinline__ int zfd_sign_elements(const zfd_sign_parts &parts, int64_t b, int *part)
{
    while (b >= parts.at[*part].blocks) ++*part;
    const int64_t n = parts.at[*part].end - b * ZFD_NORM_BLOCK;
    return n <= 0 ? 0 : n < ZFD_NORM_BLOCK ? (int)n : ZFD_NORM_BLOCK;
}

__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_sign_compress_kernel(const zfd_sign_parts parts, unsigned char *out, const float *value,
                             float *errors)
{
    const int lane = (int)threadIdx.x % ZFD_WARP;
    int part = 0;
    for (int64_t b = parts.first + (int64_t)blockIdx.x * ZFD_SUM_WARPS + (int)threadIdx.x / ZFD_WARP;
         b < parts.at[parts.count - 1].blocks; b += (int64_t)gridDim.x * ZFD_SUM_WARPS) {
        const int n = zfd_sign_elements(parts, b, &part);
        const float *x = value + b * ZFD_NORM_BLOCK;
        unsigned char *row = out + b * ZFD_SIGN_ROW;
        uint32_t signs = 0;
        float c[ZFD_SIGN_WORDS], *e = errors + b * ZFD_NORM_BLOCK, s = 0;
#pragma unroll
        for (int w = 0; w < ZFD_SIGN_WORDS; w++) {
            const int i = w * ZFD_WARP + lane;
            c[w] = i < n ? x[i] + e[i] : 0;
            s = fmaf(c[w], c[w], s);
            const uint32_t word = zfd_ballot(c[w] < 0);
            if (lane == w) signs = word;
        }
        s = zfd_warp_sum(s);
        if (zfd_is_sum_of_squares(s)) {
            s = sqrtf(s);
        } else { /* each lane reads what it writes here */
            for (int w = 0; w < ZFD_SIGN_WORDS; w++)
                if (w * ZFD_WARP + lane < n) e[w * ZFD_WARP + lane] = c[w];
            s = zfd_scaled_norm(e, n);
        }
        if (n) s /= sqrtf((float)n);
#pragma unroll
        for (int w = 0; w < ZFD_SIGN_WORDS; w++) {
            const int i = w * ZFD_WARP + lane;
            if (i < n) e[i] = c[w] - (c[w] < 0 ? -s : s);
        }
        if (lane == 0) zfd_put_word(row, __float_as_uint(s));
        zfd_put_word(row + 4 + 4 * lane, signs);
    }
}

/* in: `count` values of a block for each block of the result, `apart` bytes apart. */
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_sign_expand_kernel(const zfd_sign_parts parts, float *out, int64_t all,
                           const unsigned char *in, int count, int64_t apart)
{
    const int lane = (int)threadIdx.x % ZFD_WARP;
    int part = 0;
    for (int64_t b = parts.first + (int64_t)blockIdx.x * ZFD_SUM_WARPS + (int)threadIdx.x / ZFD_WARP;
         b < parts.at[parts.count - 1].blocks; b += (int64_t)gridDim.x * ZFD_SUM_WARPS) {
        const int n = zfd_sign_elements(parts, b, &part);
        float y[ZFD_SIGN_WORDS] = {};
        for (int r = 0; r < count; r++) {
            const unsigned char *row = in + r * apart + b * ZFD_SIGN_ROW;
            const uint32_t s = zfd_get_word(row), signs = zfd_get_word(row + 4 + 4 * lane);
#pragma unroll
            for (int w = 0; w < ZFD_SIGN_WORDS; w++) {
                const uint32_t word = zfd_shuffle(signs, w);
                y[w] += __uint_as_float(s ^ (word >> lane & 1) << 31);
            }
        }
#pragma unroll
        for (int w = 0; w < ZFD_SIGN_WORDS; w++) {
            const int64_t i = w * ZFD_WARP + lane, at = b * ZFD_NORM_BLOCK + i;
            if (count > 1) y[w] *= 1 / (float)count;
            if (at < all) out[at] = i < n ? y[w] : 0;
        }
    }
}

static unsigned zfd_sign_grid(const zf_launch *l, const zfd_sign_parts *parts)
{
    return zfd_grid(l,
                    zfd_div_up(parts->at[parts->count - 1].blocks - parts->first, ZFD_SUM_WARPS));
}

static zf_status zfd_cuda_sign_compress(const zf_launch *l)
{
    zfd_sign_walk walk =
        zfd_sign_walk_over(l, &ZF_ATTRIBUTE(l, sign_compress, at), zfd_count(&l->args[0]));
    zfd_sign_parts parts;
    while (zfd_next_signs(&walk, &parts))
        ZFD_LAUNCH(zfd_sign_compress_kernel, zfd_sign_grid(l, &parts), ZFD_THREADS, 0,
                   zfd_stream(l), parts, static_cast<unsigned char *>(l->out.data),
                   static_cast<const float *>(l->args[0].data), zfd_floats(&l->args[1]));
    return zfd_launched(l);
}

static zf_status zfd_cuda_sign_expand(const zf_launch *l)
{
    const int64_t all = zfd_count(&l->out), apart = zfd_div_up(all, ZFD_NORM_BLOCK) * ZFD_SIGN_ROW;
    zfd_sign_walk walk = zfd_sign_walk_over(l, &ZF_ATTRIBUTE(l, sign_expand, at), all);
    zfd_sign_parts parts;
    while (zfd_next_signs(&walk, &parts))
        ZFD_LAUNCH(zfd_sign_expand_kernel, zfd_sign_grid(l, &parts), ZFD_THREADS, 0, zfd_stream(l),
                   parts, zfd_floats(&l->out), all,
                   static_cast<const unsigned char *>(l->args[0].data),
                   (int)ZF_INT(l, sign_expand, parts), apart);
    return zfd_launched(l);
}

/* to = beta m + rest g and, where there is a sum u, u += lr to. */
template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_momentum_kernel(float *to, const float *m, const T *g, float *u, const zfd_number rate,
                        const zfd_number factor, float beta, float rest, int64_t n)
{
    const float scale = factor.data ? (float)zfd_number_at(factor, 0) : 1,
                lr = u ? (float)zfd_number_at(rate, 0) : 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float made = fmaf(beta, m[i], rest * (scale * zfd_to_f32(g[i])));
        to[i] = made;
        if (u) u[i] = __fadd_rn(u[i], __fmul_rn(made, lr));
    }
}

/* scaled: the attribute for a factor of g, operand 1. u and rate: both or neither. */
static zf_status zfd_momentum_launch(const zf_launch *l, int scaled, double beta, float *to,
                                     const float *m, float *u, const zf_array *rate)
{
    const int64_t n = zfd_count(&l->out);
    const zfd_number none = {}, lr = rate ? zfd_number_of(rate) : none;
    int32_t end;
    const zfd_update_job j = zfd_update_job_of(l, scaled, &end);
    if (!n) return ZF_OK;
    ZFD_FLOATS(l, l->args[1].dtype, T,
               ZFD_LAUNCH(zfd_momentum_kernel<T>, zfd_grid(l, zfd_div_up(n, ZFD_THREADS)),
                          ZFD_THREADS, 0, zfd_stream(l), to, m,
                          static_cast<const T *>(l->args[1].data), u, lr, j.scale, (float)beta,
                          (float)(1 - beta), n);)
    return zfd_launched(l);
}

static zf_status zfd_cuda_momentum(const zf_launch *l)
{
    return zfd_momentum_launch(l, ZF_AT_momentum_scaled, ZF_FLOAT(l, momentum, beta),
                               zfd_floats(&l->out), zfd_floats(&l->args[0]), NULL, NULL);
}

static zf_status zfd_cuda_local_sum(const zf_launch *l)
{
    float *u = zfd_floats(&l->args[0]), *m = zfd_floats(&l->args[2]);
    zf_status status = zfd_momentum_launch(l, ZF_AT_local_sum_scaled, ZF_FLOAT(l, local_sum, beta),
                                           m, m, u, &l->args[3]);
    return status ? status : zfd_move_bytes(l, l->out.data, u, (int64_t)zfd_bytes(&l->out));
}

static zf_status zfd_cuda_assign(const zf_launch *l)
{
    const int64_t bytes = (int64_t)zfd_bytes(&l->out);
    zf_status status = zfd_move_bytes(l, l->args[0].data, l->args[1].data, bytes);
    return status ? status : zfd_move_bytes(l, l->out.data, l->args[0].data, bytes);
}

/* --------------------------------------------------------------------------- adam_apply */

__device__ __forceinline__ bool zfd_has_counted(const zfd_update_job &j, const int64_t *count,
                                                int operand)
{
    zfd_fault fault = j.fault;
    if (*count >= 1) return true;
    fault.element = operand, fault.value = *count;
    zfd_report(j.report, fault);
    return false;
}

/* x within [-most, most]; NaN stays. */
__device__ __forceinline__ float zfd_limited(float x, float most)
{
    return x > most ? most : x < -most ? -most : x;
}

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_adam_apply_kernel(const zfd_update_job j, const zfd_update_ranges r)
{
    ZFD_SHARED(zfd_adam, shared);
    if (threadIdx.x == 0) {
        shared->state = zfd_has_counted(j, j.step, 4) && zfd_has_counted(j, j.variance_step, 5);
        shared->lr = 1 / (1 - pow(j.beta1, (double)*j.step)); /* times a range's rate */
        shared->of_root = (float)(1 / sqrt(1 - pow(j.beta2, (double)*j.variance_step)));
    }
    __syncthreads();
    const zfd_adam a = *shared;
    const float most = (float)(j.most / a.lr);
    float keep = 1, rate = 0;
    int32_t of = -1; /* the range to which they belong */
    if (!a.state) return;
    zfd_each_update(r, j.wide, [&](const zfd_update_range &range, const zfd_update_pack &pack) {
        float p[ZFD_TILE_PACK], m[ZFD_TILE_PACK], v[ZFD_TILE_PACK];
        if (range.index < 0) return;
        if (range.index != of) {
            const double lr = zfd_number_at(j.lr, j.rates ? range.index : 0);
            keep = (float)(1 - lr * (double)range.decay), rate = (float)(lr * a.lr);
            of = range.index;
        }
        zfd_get_weights<T>(p, j, pack);
        zfd_update_get(m, j.m, pack);
        zfd_update_get(v, j.v, pack);
#pragma unroll
        for (int i = 0; i < ZFD_TILE_PACK; i++)
            p[i] = fmaf(keep, p[i],
                        v[i] == 0 ? 0
                                  : -rate * zfd_limited(m[i] / fmaf(sqrtf(v[i]), a.of_root, j.eps),
                                                        most));
        zfd_put_weights<T>(j, pack, p);
    });
}

static zf_status zfd_cuda_adam_apply(const zf_launch *l)
{
    int32_t end;
    zfd_update_job j = zfd_update_job_of(l, -1, &end);
    j.m = zfd_floats(&l->args[1]), j.v = zfd_floats(&l->args[2]);
    j.lr = zfd_number_of(&l->args[3]), j.rates = zfd_count(&l->args[3]) > 1;
    j.step = static_cast<const int64_t *>(l->args[4].data);
    j.variance_step = static_cast<const int64_t *>(l->args[5].data);
    if (end > 6) j.master = zfd_floats(&l->args[6]);
    j.beta1 = ZF_FLOAT(l, adam_apply, beta1), j.beta2 = ZF_FLOAT(l, adam_apply, beta2);
    j.eps = (float)ZF_FLOAT(l, adam_apply, eps);
    j.most = ZF_FLOAT(l, adam_apply, limit) > 0 ? (float)ZF_FLOAT(l, adam_apply, limit) : INFINITY;
    j.fault.kind = ZFD_FAULT_COUNT, j.fault.op = l->op, j.fault.node = l->node;
    ZFD_FLOATS(l, l->args[0].dtype, T,
               return zfd_update_launch(l, zfd_adam_apply_kernel<T>, ZF_AT_adam_apply_world,
                                        ZF_FLOAT(l, adam_apply, weight_decay), &j);)
}

/* --------------------------------------------------------------------------- adam_drift */

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_adam_drift_kernel(T *out, const T *p, const float *master, const float *u, const float *v,
                          float eps, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float x = master ? master[i] : zfd_to_f32(p[i]);
        out[i] = zfd_from_f32<T>(v[i] == 0 ? x : x - u[i] / (sqrtf(v[i]) + eps));
    }
}

static zf_status zfd_cuda_adam_drift(const zf_launch *l)
{
    const int64_t n = zfd_count(&l->out);
    if (!n) return ZF_OK;
    ZFD_FLOATS(l, l->out.dtype, T,
               ZFD_LAUNCH(zfd_adam_drift_kernel<T>, zfd_grid(l, zfd_div_up(n, ZFD_THREADS)),
                          ZFD_THREADS, 0, zfd_stream(l), static_cast<T *>(l->out.data),
                          static_cast<const T *>(l->args[0].data),
                          l->arg_count > 3 ? zfd_floats(&l->args[3]) : NULL,
                          zfd_floats(&l->args[1]), zfd_floats(&l->args[2]),
                          (float)ZF_FLOAT(l, adam_drift, eps), n);)
    return zfd_launched(l);
}

ZFD_KERNEL(sign_compress, zfd_cuda_sign_compress, NULL)
ZFD_KERNEL(sign_expand, zfd_cuda_sign_expand, NULL)
ZFD_KERNEL(momentum, zfd_cuda_momentum, NULL)
ZFD_KERNEL(local_sum, zfd_cuda_local_sum, NULL)
ZFD_KERNEL(assign, zfd_cuda_assign, NULL)
ZFD_KERNEL(adam_apply, zfd_cuda_adam_apply, NULL)
ZFD_KERNEL(adam_drift, zfd_cuda_adam_drift, NULL)
