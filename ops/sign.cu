/* What 1-bit optimizers need, on CUDA (ops/sign.c): sign_compress, sign_expand, momentum, local_sum,
 * assign, adam_apply, adam_drift.
 *
 * A warp has a block of 1024 elements: step w of 32 is elements 32 w to 32 w + 31, one for each
 * lane. So a vote of the warp is word w of the block's signs. */

enum {
    ZFI_SIGN_WORDS = ZFI_NORM_BLOCK / ZFI_WARP,
    ZFI_SIGN_ROW = (int)sizeof(float) + ZFI_NORM_BLOCK / 8, /* bytes of a compressed block */
    ZFI_SIGN_PARTS = 128                                    /* of one launch */
};

/* Neighbouring blocks: those of a tensor, or of a gap. */
typedef struct zfi_sign_part {
    int64_t blocks, end; /* up to the end of the part; the end of its elements */
} zfi_sign_part;

typedef struct zfi_sign_parts {
    int64_t first; /* block */
    int count;
    zfi_sign_part at[ZFI_SIGN_PARTS];
} zfi_sign_parts;

/* Goes through the parts of a value of `all` elements; `places` is the attribute at, which count and
 * world follow. */
typedef struct zfi_sign_walk {
    const zf_attribute *places;
    int64_t all, base, blocks, next; /* blocks: in parts so far; next: the next tensor */
} zfi_sign_walk;

static zfi_sign_walk zfi_sign_walk_over(const zf_launch *l, const zf_attribute *places, int64_t all)
{
    zfi_sign_walk w = {places, all, places[2].i > 1 ? l->run->shard * all : 0, 0, 0};
    return w;
}

/* The parts of the next launch; false after the last. */
static bool zfi_next_signs(zfi_sign_walk *w, zfi_sign_parts *parts)
{
    const int64_t *at = static_cast<const int64_t *>(w->places[0].list.data),
                  *count = static_cast<const int64_t *>(w->places[1].list.data);
    const int64_t tensors = w->places[0].list.count, all = zfi_div_up(w->all, ZFI_NORM_BLOCK);
    parts->first = w->blocks, parts->count = 0;
    while (w->blocks < all && parts->count + 2 <= ZFI_SIGN_PARTS) {
        zfi_sign_part own = {all, tensors ? w->blocks * ZFI_NORM_BLOCK : w->all};
        if (w->next < tensors) {
            const int64_t k = w->next++, first = at[k] - w->base, end = first + count[k],
                          last = end < w->all ? end : w->all;
            const zfi_sign_part gap = {first / ZFI_NORM_BLOCK, 0};
            if (end <= 0 || first >= w->all || !count[k]) continue;
            if (first > w->blocks * ZFI_NORM_BLOCK) parts->at[parts->count++] = gap;
            own.blocks = zfi_div_up(last, ZFI_NORM_BLOCK), own.end = last;
        }
        parts->at[parts->count++] = own;
        w->blocks = own.blocks;
    }
    return parts->count > 0;
}

/* The elements of tensors in block b, which is not before that of the last call with `part`. */
__device__ __forceinline__ int zfi_sign_elements(const zfi_sign_parts &parts, int64_t b, int *part)
{
    while (b >= parts.at[*part].blocks) ++*part;
    const int64_t n = parts.at[*part].end - b * ZFI_NORM_BLOCK;
    return n <= 0 ? 0 : n < ZFI_NORM_BLOCK ? (int)n : ZFI_NORM_BLOCK;
}

__global__ void __launch_bounds__(ZFI_THREADS)
    zfi_sign_compress_kernel(const zfi_sign_parts parts, unsigned char *out, const float *value,
                             float *errors)
{
    const int lane = (int)threadIdx.x % ZFI_WARP;
    int part = 0;
    for (int64_t b = parts.first + (int64_t)blockIdx.x * ZFI_SUM_WARPS + (int)threadIdx.x / ZFI_WARP;
         b < parts.at[parts.count - 1].blocks; b += (int64_t)gridDim.x * ZFI_SUM_WARPS) {
        const int n = zfi_sign_elements(parts, b, &part);
        const float *x = value + b * ZFI_NORM_BLOCK;
        unsigned char *row = out + b * ZFI_SIGN_ROW;
        uint32_t signs = 0;
        float c[ZFI_SIGN_WORDS], *e = errors + b * ZFI_NORM_BLOCK, s = 0;
#pragma unroll
        for (int w = 0; w < ZFI_SIGN_WORDS; w++) {
            const int i = w * ZFI_WARP + lane;
            c[w] = i < n ? x[i] + e[i] : 0;
            s = fmaf(c[w], c[w], s);
            const uint32_t word = __ballot_sync(0xffffffffu, c[w] < 0);
            if (lane == w) signs = word;
        }
        s = zfi_warp_sum(s);
        if (zfi_is_sum_of_squares(s)) {
            s = sqrtf(s);
        } else { /* each lane reads what it writes here */
            for (int w = 0; w < ZFI_SIGN_WORDS; w++)
                if (w * ZFI_WARP + lane < n) e[w * ZFI_WARP + lane] = c[w];
            s = zfi_scaled_norm(e, n);
        }
        if (n) s /= sqrtf((float)n);
#pragma unroll
        for (int w = 0; w < ZFI_SIGN_WORDS; w++) {
            const int i = w * ZFI_WARP + lane;
            if (i < n) e[i] = c[w] - (c[w] < 0 ? -s : s);
        }
        if (lane == 0) zfi_put_word(row, __float_as_uint(s));
        zfi_put_word(row + 4 + 4 * lane, signs);
    }
}

/* in: `count` values of a block for each block of the result, `apart` bytes apart. */
__global__ void __launch_bounds__(ZFI_THREADS)
    zfi_sign_expand_kernel(const zfi_sign_parts parts, float *out, int64_t all,
                           const unsigned char *in, int count, int64_t apart)
{
    const int lane = (int)threadIdx.x % ZFI_WARP;
    int part = 0;
    for (int64_t b = parts.first + (int64_t)blockIdx.x * ZFI_SUM_WARPS + (int)threadIdx.x / ZFI_WARP;
         b < parts.at[parts.count - 1].blocks; b += (int64_t)gridDim.x * ZFI_SUM_WARPS) {
        const int n = zfi_sign_elements(parts, b, &part);
        float y[ZFI_SIGN_WORDS] = {};
        for (int r = 0; r < count; r++) {
            const unsigned char *row = in + r * apart + b * ZFI_SIGN_ROW;
            const uint32_t s = zfi_get_word(row), signs = zfi_get_word(row + 4 + 4 * lane);
#pragma unroll
            for (int w = 0; w < ZFI_SIGN_WORDS; w++) {
                const uint32_t word = __shfl_sync(0xffffffffu, signs, w);
                y[w] += __uint_as_float(s ^ (word >> lane & 1) << 31);
            }
        }
#pragma unroll
        for (int w = 0; w < ZFI_SIGN_WORDS; w++) {
            const int64_t i = w * ZFI_WARP + lane, at = b * ZFI_NORM_BLOCK + i;
            if (count > 1) y[w] *= 1 / (float)count;
            if (at < all) out[at] = i < n ? y[w] : 0;
        }
    }
}

static unsigned zfi_sign_grid(const zf_launch *l, const zfi_sign_parts *parts)
{
    return zfi_grid(l,
                    zfi_div_up(parts->at[parts->count - 1].blocks - parts->first, ZFI_SUM_WARPS));
}

static zf_status zfi_cuda_sign_compress(const zf_launch *l)
{
    zfi_sign_walk walk =
        zfi_sign_walk_over(l, &ZF_ATTRIBUTE(l, sign_compress, at), zfi_count(&l->args[0]));
    zfi_sign_parts parts;
    while (zfi_next_signs(&walk, &parts))
        ZF_LAUNCH(zfi_sign_compress_kernel, zfi_sign_grid(l, &parts), ZFI_THREADS, 0,
                  zfi_stream(l), parts, static_cast<unsigned char *>(l->out.data),
                  static_cast<const float *>(l->args[0].data), zfi_floats(&l->args[1]));
    return zfi_launched(l);
}

static zf_status zfi_cuda_sign_expand(const zf_launch *l)
{
    const int64_t all = zfi_count(&l->out), apart = zfi_div_up(all, ZFI_NORM_BLOCK) * ZFI_SIGN_ROW;
    zfi_sign_walk walk = zfi_sign_walk_over(l, &ZF_ATTRIBUTE(l, sign_expand, at), all);
    zfi_sign_parts parts;
    while (zfi_next_signs(&walk, &parts))
        ZF_LAUNCH(zfi_sign_expand_kernel, zfi_sign_grid(l, &parts), ZFI_THREADS, 0, zfi_stream(l),
                  parts, zfi_floats(&l->out), all,
                  static_cast<const unsigned char *>(l->args[0].data),
                  (int)ZF_INT(l, sign_expand, parts), apart);
    return zfi_launched(l);
}

/* to = beta m + rest g and, where there is a sum u, u += lr to. */
template <class T>
__global__ void __launch_bounds__(ZFI_THREADS)
    zfi_momentum_kernel(float *to, const float *m, const T *g, float *u, const zfi_number rate,
                        const zfi_number factor, float beta, float rest, int64_t n)
{
    const float scale = factor.data ? (float)zfi_number_at(factor, 0) : 1,
                lr = u ? (float)zfi_number_at(rate, 0) : 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float made = fmaf(beta, m[i], rest * (scale * zfi_to_f32(g[i])));
        to[i] = made;
        if (u) u[i] = __fadd_rn(u[i], __fmul_rn(made, lr));
    }
}

/* scaled: the attribute for a factor of g, operand 1. u and rate: both or neither. */
static zf_status zfi_momentum_launch(const zf_launch *l, int scaled, double beta, float *to,
                                     const float *m, float *u, const zf_array *rate)
{
    const int64_t n = zfi_count(&l->out);
    const zfi_number none = {}, lr = rate ? zfi_number_of(rate) : none;
    int32_t end;
    const zfi_update_job j = zfi_update_job_of(l, scaled, &end);
    if (!n) return ZF_OK;
    ZFI_FLOATS(l, l->args[1].dtype, T,
               ZF_LAUNCH(zfi_momentum_kernel<T>, zfi_grid(l, zfi_div_up(n, ZFI_THREADS)),
                         ZFI_THREADS, 0, zfi_stream(l), to, m,
                         static_cast<const T *>(l->args[1].data), u, lr, j.scale, (float)beta,
                         (float)(1 - beta), n);)
    return zfi_launched(l);
}

static zf_status zfi_cuda_momentum(const zf_launch *l)
{
    return zfi_momentum_launch(l, ZF_AT_momentum_scaled, ZF_FLOAT(l, momentum, beta),
                               zfi_floats(&l->out), zfi_floats(&l->args[0]), NULL, NULL);
}

static zf_status zfi_cuda_local_sum(const zf_launch *l)
{
    float *u = zfi_floats(&l->args[0]), *m = zfi_floats(&l->args[2]);
    zf_status status = zfi_momentum_launch(l, ZF_AT_local_sum_scaled, ZF_FLOAT(l, local_sum, beta),
                                           m, m, u, &l->args[3]);
    return status ? status : zfi_move_bytes(l, l->out.data, u, (int64_t)zfi_bytes(&l->out));
}

static zf_status zfi_cuda_assign(const zf_launch *l)
{
    const int64_t bytes = (int64_t)zfi_bytes(&l->out);
    zf_status status = zfi_move_bytes(l, l->args[0].data, l->args[1].data, bytes);
    return status ? status : zfi_move_bytes(l, l->out.data, l->args[0].data, bytes);
}

/* --------------------------------------------------------------------------- adam_apply */

__device__ __forceinline__ bool zfi_has_counted(const zfi_update_job &j, const int64_t *count,
                                                int operand)
{
    zfi_fault fault = j.fault;
    if (*count >= 1) return true;
    fault.element = operand, fault.value = *count;
    zfi_report(j.report, fault);
    return false;
}

/* x within [-most, most]; NaN stays. */
__device__ __forceinline__ float zfi_limited(float x, float most)
{
    return x > most ? most : x < -most ? -most : x;
}

template <class T>
__global__ void __launch_bounds__(ZFI_THREADS)
    zfi_adam_apply_kernel(const zfi_update_job j, const zfi_update_ranges r)
{
    ZF_SHARED(zfi_adam, shared);
    if (threadIdx.x == 0) {
        shared->state = zfi_has_counted(j, j.step, 4) && zfi_has_counted(j, j.variance_step, 5);
        shared->lr = 1 / (1 - pow(j.beta1, (double)*j.step)); /* times a range's rate */
        shared->of_root = (float)(1 / sqrt(1 - pow(j.beta2, (double)*j.variance_step)));
    }
    __syncthreads();
    const zfi_adam a = *shared;
    const float most = (float)(j.most / a.lr);
    float keep = 1, rate = 0;
    int32_t of = -1; /* the range to which they belong */
    if (!a.state) return;
    zfi_each_update(r, j.wide, [&](const zfi_update_range &range, const zfi_update_pack &pack) {
        float p[ZFI_TILE_PACK], m[ZFI_TILE_PACK], v[ZFI_TILE_PACK];
        if (range.index < 0) return;
        if (range.index != of) {
            const double lr = zfi_number_at(j.lr, j.rates ? range.index : 0);
            keep = (float)(1 - lr * (double)range.decay), rate = (float)(lr * a.lr);
            of = range.index;
        }
        zfi_get_weights<T>(p, j, pack);
        zfi_update_get(m, j.m, pack);
        zfi_update_get(v, j.v, pack);
#pragma unroll
        for (int i = 0; i < ZFI_TILE_PACK; i++)
            p[i] = fmaf(keep, p[i],
                        v[i] == 0 ? 0
                                  : -rate * zfi_limited(m[i] / fmaf(sqrtf(v[i]), a.of_root, j.eps),
                                                        most));
        zfi_put_weights<T>(j, pack, p);
    });
}

static zf_status zfi_cuda_adam_apply(const zf_launch *l)
{
    int32_t end;
    zfi_update_job j = zfi_update_job_of(l, -1, &end);
    j.m = zfi_floats(&l->args[1]), j.v = zfi_floats(&l->args[2]);
    j.lr = zfi_number_of(&l->args[3]), j.rates = zfi_count(&l->args[3]) > 1;
    j.step = static_cast<const int64_t *>(l->args[4].data);
    j.variance_step = static_cast<const int64_t *>(l->args[5].data);
    if (end > 6) j.master = zfi_floats(&l->args[6]);
    j.beta1 = ZF_FLOAT(l, adam_apply, beta1), j.beta2 = ZF_FLOAT(l, adam_apply, beta2);
    j.eps = (float)ZF_FLOAT(l, adam_apply, eps);
    j.most = ZF_FLOAT(l, adam_apply, limit) > 0 ? (float)ZF_FLOAT(l, adam_apply, limit) : INFINITY;
    j.fault.kind = ZFI_FAULT_COUNT, j.fault.op = l->op, j.fault.node = l->node;
    ZFI_FLOATS(l, l->args[0].dtype, T,
               return zfi_update_launch(l, zfi_adam_apply_kernel<T>, ZF_AT_adam_apply_world,
                                        ZF_FLOAT(l, adam_apply, weight_decay), &j);)
}

/* --------------------------------------------------------------------------- adam_drift */

template <class T>
__global__ void __launch_bounds__(ZFI_THREADS)
    zfi_adam_drift_kernel(T *out, const T *p, const float *master, const float *u, const float *v,
                          float eps, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float x = master ? master[i] : zfi_to_f32(p[i]);
        out[i] = zfi_from_f32<T>(v[i] == 0 ? x : x - u[i] / (sqrtf(v[i]) + eps));
    }
}

static zf_status zfi_cuda_adam_drift(const zf_launch *l)
{
    const int64_t n = zfi_count(&l->out);
    if (!n) return ZF_OK;
    ZFI_FLOATS(l, l->out.dtype, T,
               ZF_LAUNCH(zfi_adam_drift_kernel<T>, zfi_grid(l, zfi_div_up(n, ZFI_THREADS)),
                         ZFI_THREADS, 0, zfi_stream(l), static_cast<T *>(l->out.data),
                         static_cast<const T *>(l->args[0].data),
                         l->arg_count > 3 ? zfi_floats(&l->args[3]) : NULL,
                         zfi_floats(&l->args[1]), zfi_floats(&l->args[2]),
                         (float)ZF_FLOAT(l, adam_drift, eps), n);)
    return zfi_launched(l);
}

ZFI_KERNEL(sign_compress, zfi_cuda_sign_compress, NULL)
ZFI_KERNEL(sign_expand, zfi_cuda_sign_expand, NULL)
ZFI_KERNEL(momentum, zfi_cuda_momentum, NULL)
ZFI_KERNEL(local_sum, zfi_cuda_local_sum, NULL)
ZFI_KERNEL(assign, zfi_cuda_assign, NULL)
ZFI_KERNEL(adam_apply, zfi_cuda_adam_apply, NULL)
ZFI_KERNEL(adam_drift, zfi_cuda_adam_drift, NULL)
