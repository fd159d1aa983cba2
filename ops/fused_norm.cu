/* Fused LayerNorm and RMSNorm (ops/fused_norm.c) on CUDA. Rows as in ops/norm.cu; s stays in
 * registers until y is computed.
 *
 * residual_norm_grad keeps sums of columns in registers. The rows of a block are a part. Its teams
 * take one row after the other, each thread the same columns of all rows, and fetch the next row
 * during the current one:
 *
 *     dy, xhat [rows,n] -> ds, dx [rows,n]
 *                     \--> parts [parts,ZFD_SUMS,n] f32 -> dgamma, dbeta, dbias [n]
 *
 * So dy and xhat are read once. Rows too long for this kernel are summed by kernels before and
 * after. */

static bool zfd_embeds(const zf_launch *l) { return l->op == ZF_OP_embed_norm; }

/* Of residual_norm: its form RMS, the saved value s, and the values of the attribute `sum`. */
enum { ZFD_FORM_RMS = 1, ZFD_SUM = 2, ZFD_SUM_SAVED = 1, ZFD_SUM_GIVEN = 2 };

/* s = residual + dropout(x + bias), or with `words`: words[ids] + types[type_ids] + positions. */
typedef struct zfd_fused_norm_job {
    zfd_row_set set;
    const void *x, *residual, *bias; /* bias may be NULL; residual NULL: s is x */
    const void *words, *types, *positions;
    zfd_integers ids, type_ids;
    int64_t word_count, type_count, tokens;
    const void *gamma, *beta; /* beta NULL: RMSNorm */
    void *y, *xhat, *sum;     /* xhat, sum and rstds may be NULL */
    float *rstds, eps;
    bool rounds; /* s has the rounding of T */
    zfd_dropout drop;
    zfd_share share;
    zfd_fault fault; /* the error to report, without the index */
    zfd_fault *report;
} zfd_fused_norm_job;

/* The row of a table at an index; NULL, and an error, where the index is outside. */
template <class T>
__device__ __forceinline__ const T *zfd_named_row(const zfd_fused_norm_job &j, const void *table,
                                                  const zfd_integers &ids, int64_t rows,
                                                  int64_t row, int kind)
{
    int64_t id = zfd_integer_at(ids, row);
    if (id >= 0 && id < rows) return static_cast<const T *>(table) + id * j.set.n;
    if (threadIdx.x == 0) {
        zfd_fault fault = j.fault;
        fault.kind = kind, fault.element = row, fault.value = id, fault.limit = rows;
        zfd_report(j.report, fault);
    }
    return NULL;
}

enum { ZFD_NORM_THREADS = 512 }; /* threads on a multiprocessor, for whole rows */

/* Threads of a block, and how many such blocks a multiprocessor holds. */
template <bool WHOLE> struct zfd_norm_bound {
    static const int threads = WHOLE ? ZFD_TEAM_LONG : ZFD_TEAM_MOST,
                     blocks = WHOLE ? ZFD_NORM_THREADS / ZFD_TEAM_LONG : 1;
};

/* A team has rows row, row + step, ... and fetches the next during the current one. */
template <class T, int K, bool WHOLE>
__global__ void __launch_bounds__(zfd_norm_bound<WHOLE>::threads, zfd_norm_bound<WHOLE>::blocks)
    zfd_fused_norm_kernel(const zfd_fused_norm_job j)
{
    ZFD_SHARED(float, shared);
    typedef zfd_team<T, K, WHOLE> team;
    typedef typename team::index index;
    const int V = team::V, held = K ? K : 1;
    const zfd_dropper drop = zfd_dropper_of(j.drop);
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    const T *word = NULL, *type = NULL, *position = NULL;
    uint4 next_x[held] = {}, next_residual[held] = {};
    int64_t drawn = 0;
    team t(j.set);
    /* s from x: first without the residual, which is then added. */
    auto begin = [&](float(&x)[V], index i) {
        float bias[V];
        if (j.bias) {
            t.get_vector(bias, static_cast<const T *>(j.bias), i);
#pragma unroll
            for (int v = 0; v < V; v++) x[v] += bias[v];
        }
        t.drop(drop, x, i, drawn);
    };
    auto add = [&](float(&x)[V], const float(&more)[V]) {
#pragma unroll
        for (int v = 0; v < V; v++) x[v] += more[v];
    };
    auto round = [&](float(&x)[V]) {
        if (j.rounds)
#pragma unroll
            for (int v = 0; v < V; v++) x[v] = zfd_to_f32(zfd_from_f32<T>(x[v]));
    };
    auto look = [&](float(&x)[V], index i) {
        if (j.words) {
            float more[V], last[V] = {};
#pragma unroll
            for (int v = 0; v < V; v++) x[v] = more[v] = 0;
            if (word) t.get_vector(x, word, i);
            if (type) t.get_vector(more, type, i);
            t.get_vector(last, position, i);
#pragma unroll
            for (int v = 0; v < V; v++) x[v] = x[v] + more[v] + last[v];
            return;
        }
        t.get(x, static_cast<const T *>(j.x), i);
        begin(x, i);
        if (j.residual) {
            float residual[V];
            t.get(residual, static_cast<const T *>(j.residual), i);
            add(x, residual);
        }
        round(x);
    };
    auto fetch = [&](int64_t row) {
        if (!K || j.words || row >= j.set.rows) return;
        t.go(j.set, row);
        t.each([&](int k, index i) {
            t.fetch(next_x[k], static_cast<const T *>(j.x), i);
            if (j.residual) t.fetch(next_residual[k], static_cast<const T *>(j.residual), i);
        });
    };
    fetch(t.row);
    for (int64_t at = (int64_t)blockIdx.x * blockDim.y; at < j.set.rows; at += step) {
        const int64_t row = at + threadIdx.y;
        float s[held][V], mean = 0, squares = 0, rstd;
        uint4 residual[held];
#pragma unroll
        for (int k = 0; k < K; k++) {
            zfd_unpack<T>(s[k], next_x[k]);
            residual[k] = next_residual[k];
        }
        fetch(row + step);
        t.go(j.set, row);
        drawn = zfd_number_of(j.share, t.base);
        if (j.words && row < j.set.rows) {
            int64_t token = row >> 32 ? row % j.tokens : (uint32_t)row % (uint32_t)j.tokens;
            word = zfd_named_row<T>(j, j.words, j.ids, j.word_count, row, ZFD_FAULT_INDEX);
            type = zfd_named_row<T>(j, j.types, j.type_ids, j.type_count, row, ZFD_FAULT_TYPES);
            position = static_cast<const T *>(j.positions) + token * j.set.n;
        }
        /* s is 0 outside the row. */
        t.each([&](int k, index i) {
            if (K && !j.words) {
                float more[V];
                zfd_unpack<T>(more, residual[k]);
                begin(s[k], i);
                if (j.residual) add(s[k], more);
                round(s[k]);
            } else {
                look(s[k], i);
            }
#pragma unroll
            for (int v = 0; v < V; v++) mean += s[k][v];
            if (K && j.sum) t.put(static_cast<T *>(j.sum), i, s[k]);
        });
        mean = j.beta ? zfd_team_sum(mean, shared) / (float)j.set.n : 0;
        t.each([&](int k, index i) {
            if (!K) look(s[k], i);
#pragma unroll
            for (int v = 0; v < V; v++)
                if (t.has(i + v)) squares += (s[k][v] - mean) * (s[k][v] - mean);
        });
        rstd = zfd_rstd(zfd_team_sum(squares, zfd_sum_room(shared, 1)), j.set.n, j.eps);
        if (j.rstds && threadIdx.x == 0 && row < j.set.rows) j.rstds[row] = rstd;
        t.each([&](int k, index i) {
            float gamma[V], beta[V] = {};
            if (!K) {
                look(s[k], i);
                if (j.sum) t.put(static_cast<T *>(j.sum), i, s[k]);
            }
            t.get_vector(gamma, static_cast<const T *>(j.gamma), i);
            if (j.beta) t.get_vector(beta, static_cast<const T *>(j.beta), i);
#pragma unroll
            for (int v = 0; v < V; v++) s[k][v] = (s[k][v] - mean) * rstd;
            if (j.xhat) t.put(static_cast<T *>(j.xhat), i, s[k]);
#pragma unroll
            for (int v = 0; v < V; v++) s[k][v] = fmaf(s[k][v], gamma[v], beta[v]);
            if (j.words) t.drop(drop, s[k], i, drawn);
            t.put(static_cast<T *>(j.y), i, s[k]);
        });
    }
}

/* Rows of 16 bits that are whole packs use few threads each and are distributed over as many blocks
 * as the device holds. Every other row has a team. */
template <class T>
static void zfd_fused_norm_launch(const zf_launch *l, zfd_fused_norm_job *j, bool wide)
{
    const int many = zfd_held<T>::many;
    zfd_teams t = zfd_long_teams_of(&l->out, wide, 2);
    j->set = t.set;
    if constexpr (sizeof(T) == 2) {
        if (t.many && wide && t.set.n % zfd_wide<T>::count == 0) {
            const unsigned places = ZFD_NORM_THREADS / (t.block.x * t.block.y),
                           most = (unsigned)zfd_device_of(l)->processors * places;
            if (t.grid.x > most) t.grid.x = most;
            ZFD_LAUNCH((zfd_fused_norm_kernel<T, many, true>), t.grid, t.block, t.shared,
                       zfd_stream(l), *j);
            return;
        }
    }
    t = zfd_teams_of(&l->out, wide, 2);
    if (t.held)
        ZFD_LAUNCH((zfd_fused_norm_kernel<T, zfd_held<T>::packs, false>), t.grid, t.block, t.shared,
                   zfd_stream(l), *j);
    else
        ZFD_LAUNCH((zfd_fused_norm_kernel<T, 0, false>), t.grid, t.block, t.shared, zfd_stream(l),
                   *j);
}

static zf_status zfd_cuda_residual_norm(const zf_launch *l)
{
    const zf_array *x = l->args, *vectors = x + (zfd_embeds(l) ? 5 : 2),
                   *xhat = zfd_saved_out(l, 0), *rstds = zfd_saved_out(l, 1),
                   *sum = zfd_saved_out(l, ZFD_SUM);
    const bool rms = !zfd_embeds(l) && ZF_INT(l, residual_norm, form) == ZFD_FORM_RMS;
    zfd_fused_norm_job j = {};
    if (!zfd_row_count(&l->out)) return ZF_OK;
    if (zfd_embeds(l)) {
        j.words = x[0].data, j.word_count = x[0].shape.dims[0], j.ids = zfd_integers_of(&x[1]);
        j.types = x[2].data, j.type_count = x[2].shape.dims[0], j.type_ids = zfd_integers_of(&x[3]);
        j.positions = x[4].data, j.tokens = x[4].shape.dims[0];
        j.fault.op = l->op, j.fault.node = l->node, j.report = zfd_device_of(l)->fault;
    } else {
        const int64_t kept = ZF_INT(l, residual_norm, sum);
        j.x = x[0].data, j.residual = kept == ZFD_SUM_GIVEN ? NULL : x[1].data;
        j.rounds = kept == ZFD_SUM_SAVED;
        if (l->arg_count > (rms ? 3 : 4)) j.bias = x[rms ? 3 : 4].data;
    }
    j.gamma = vectors[0].data;
    if (!rms) j.beta = vectors[1].data;
    j.y = l->out.data, j.eps = (float)ZF_FLOAT(l, residual_norm, eps);
    if (xhat) j.xhat = xhat->data;
    if (sum) j.sum = sum->data;
    if (rstds) j.rstds = static_cast<float *>(rstds->data);
    j.drop = zfd_dropout_attributes(l), j.share = zfd_share_of(l, &l->out.shape);
    bool wide = zfd_lies_well(0, 1, j.x, j.residual, j.bias, j.words) &&
                zfd_lies_well(0, 1, j.types, j.positions, j.gamma, j.beta) &&
                zfd_lies_well(0, 1, j.y, j.xhat, j.sum);
    ZFD_FLOATS(l, l->out.dtype, T, zfd_fused_norm_launch<T>(l, &j, wide);)
    return zfd_launched(l);
}

static zf_status zfd_cuda_affine(const zf_launch *l)
{
    return zfd_norm_launch(l, NULL, l->args[1].data, l->arg_count > 2 ? l->args[2].data : NULL);
}

/* --------------------------------------------------------------------------- the gradient */

enum {
    ZFD_DX = 0, /* saved values of residual_norm_grad: dx, then the sums */
    ZFD_DGAMMA,
    ZFD_GRAD_HELD = 2 * ZFD_HELD, /* elements of a row that a thread has */
    ZFD_GRAD_THREADS = 256,       /* of a block; its sums fit into 48 KiB */
    ZFD_GRAD_BLOCKS = 2           /* blocks on a multiprocessor */
};

typedef struct zfd_residual_grad_job {
    int64_t rows, chunk; /* chunk: rows of a part */
    int n;
    const void *dy, *xhat, *gamma, *dsum; /* dsum may be NULL */
    const float *rstds;
    void *ds, *dx; /* dx may be NULL */
    float *parts;
    bool wide, rms;
    zfd_dropout drop;
    zfd_share share;
} zfd_residual_grad_job;

template <class T, bool WHOLE>
__global__ void __launch_bounds__(ZFD_GRAD_THREADS, ZFD_GRAD_BLOCKS)
    zfd_residual_grad_kernel(const zfd_residual_grad_job j)
{
    const int V = zfd_wide<T>::count, K = ZFD_GRAD_HELD / V;
    const bool EARLY = WHOLE && sizeof(T) == 2; /* fetches dsum before the sums: registers suffice */
    ZFD_SHARED(float, shared); /* 2 rooms of team sums; [ZFD_SUMS][team * ZFD_GRAD_HELD] */
    const zfd_dropper drop = zfd_dropper_of(j.drop);
    const T *dy = static_cast<const T *>(j.dy), *xhat = static_cast<const T *>(j.xhat),
            *dsum = static_cast<const T *>(j.dsum);
    T *ds = static_cast<T *>(j.ds), *dx = static_cast<T *>(j.dx);
    const int width = (int)blockDim.x * ZFD_GRAD_HELD;
    const int64_t begin = (int64_t)blockIdx.x * j.chunk,
                  end = begin + j.chunk < j.rows ? begin + j.chunk : j.rows;
    int turn = 0;
    float sums[ZFD_SUMS][K][V] = {};
    uint4 gamma[K], next_d[K], next_h[K];
    zfd_row_set one = {1, j.n, j.wide}; /* the columns as elements of one row */
    zfd_team<T, K, WHOLE> t(one);
    t.n = j.n, t.first = 0, t.base = 0;
    t.each([&](int k, int i) { t.fetch(gamma[k], static_cast<const T *>(j.gamma), i); });
    auto fetch = [&](int64_t row) {
        if (row >= end) return;
        t.base = row * j.n;
        t.each([&](int k, int i) {
            t.fetch(next_d[k], dy, i);
            t.fetch(next_h[k], xhat, i);
        });
    };
    fetch(begin + threadIdx.y);
    for (int64_t at = begin; at < end; at += blockDim.y, turn ^= 1) {
        const int64_t row = at + threadIdx.y;
        uint4 packed_d[K], packed_h[K], packed_s[K];
        float mean[2] = {}, rstd = row < end ? j.rstds[row] : 0;
#pragma unroll
        for (int k = 0; k < K; k++) packed_d[k] = next_d[k], packed_h[k] = next_h[k];
        if (EARLY && dsum && row < end) {
            t.base = row * j.n;
            t.each([&](int k, int i) { t.fetch(packed_s[k], dsum, i); });
        }
        fetch(row + blockDim.y);
        if (row < end)
            t.each([&](int k, int) {
                float d[V], h[V], c[V];
                zfd_unpack<T>(d, packed_d[k]), zfd_unpack<T>(h, packed_h[k]);
                zfd_unpack<T>(c, gamma[k]);
#pragma unroll
                for (int v = 0; v < V; v++) {
                    float g = d[v] * c[v];
                    mean[0] += g;
                    mean[1] = fmaf(g, h[v], mean[1]);
                }
            });
        zfd_team_sums(mean, shared + turn * 2 * ZFD_WARP * (int)blockDim.y);
        if (row >= end) continue;
        mean[0] = j.rms ? 0 : mean[0] / (float)j.n, mean[1] /= (float)j.n;
        t.base = row * j.n;
        const int64_t drawn = zfd_number_of(j.share, t.base);
        t.each([&](int k, int i) {
            float x[V], d[V], h[V], c[V];
            zfd_unpack<T>(d, packed_d[k]), zfd_unpack<T>(h, packed_h[k]);
            zfd_unpack<T>(c, gamma[k]);
#pragma unroll
            for (int v = 0; v < V; v++) {
                sums[0][k][v] = fmaf(d[v], h[v], sums[0][k][v]);
                sums[1][k][v] += d[v];
                x[v] = rstd * (d[v] * c[v] - fmaf(h[v], mean[1], mean[0]));
            }
            if (dsum) {
                if (EARLY) zfd_unpack<T>(d, packed_s[k]);
                else t.get(d, dsum, i);
#pragma unroll
                for (int v = 0; v < V; v++) x[v] += d[v];
            }
            t.put(ds, i, x);
            t.drop(drop, x, i, drawn);
            if (dx) t.put(dx, i, x);
#pragma unroll
            for (int v = 0; v < V; v++) sums[2][k][v] += x[v];
        });
    }
    for (int team = 0; team < (int)blockDim.y; team++) { /* teams are added in their order */
        __syncthreads();
        if ((int)threadIdx.y != team) continue;
        t.each([&](int k, int i) {
#pragma unroll
            for (int s = 0; s < ZFD_SUMS; s++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    float *to = shared + s * width + i + v;
                    *to = team ? *to + sums[s][k][v] : sums[s][k][v];
                }
        });
    }
    __syncthreads();
    for (int c = (int)(threadIdx.y * blockDim.x + threadIdx.x); c < ZFD_SUMS * j.n;
         c += (int)(blockDim.x * blockDim.y)) {
        int s = c / j.n, i = c - s * j.n;
        j.parts[((int64_t)blockIdx.x * ZFD_SUMS + s) * j.n + i] = shared[s * width + i];
    }
}

/* Sets the threads of a team and the teams of a block; false: the rows are too long. */
static bool zfd_grad_teams(int64_t n, dim3 *block)
{
    int64_t threads = zfd_div_up(n > 0 ? n : 1, ZFD_GRAD_HELD * ZFD_WARP) * ZFD_WARP;
    if (threads > ZFD_GRAD_THREADS) return false;
    *block = dim3((unsigned)threads, (unsigned)(ZFD_GRAD_THREADS / threads));
    return true;
}

static int64_t zfd_grad_parts(const zf_launch *l, const dim3 &block)
{
    return zfd_parts(l, zfd_row_count(&l->out), (int64_t)block.y, 4 / ZFD_GRAD_BLOCKS);
}

static size_t zfd_cuda_scratch_residual_norm_grad(const zf_launch *l)
{
    dim3 block;
    int64_t parts = zfd_grad_teams(zfd_row_length(&l->out), &block)
                        ? zfd_grad_parts(l, block)
                        : zfd_column_parts(l, &l->out);
    return zfd_parts_bytes(parts, zfd_row_length(&l->out));
}

/* Rows that are too long for the kernel above. ds may lie over dy or xhat, so sums of these come
 * first. */
static zf_status zfd_long_residual_grad(const zf_launch *l, void *const out[ZFD_SUMS], void *dx,
                                        const zfd_dropout &drop)
{
    void *before[ZFD_SUMS] = {out[0], out[1], NULL}, *after[ZFD_SUMS] = {NULL, NULL, out[2]};
    zfd_norm_grad_job j = {};
    zf_status status = ZF_OK;
    if (out[0] || out[1])
        status = zfd_columns(l, &l->args[0], l->args[1].data, NULL, drop, before);
    j.dy = l->args[0].data, j.x = l->args[1].data, j.gamma = l->args[3].data;
    j.rstds = static_cast<const float *>(l->args[2].data);
    j.dx = l->out.data, j.dropped = dx;
    j.centred = ZF_INT(l, residual_norm_grad, form) != ZFD_FORM_RMS, j.drop = drop;
    j.share = zfd_share_of(l, &l->out.shape);
    if (l->arg_count > 4) j.more = l->args[4].data;
    if (!status) status = zfd_norm_grad_launch(l, &j);
    if (!status && out[2]) status = zfd_columns(l, &l->out, NULL, NULL, drop, after);
    return status;
}

static zf_status zfd_cuda_residual_norm_grad(const zf_launch *l)
{
    const zf_array *dx = zfd_saved_out(l, ZFD_DX);
    zfd_residual_grad_job j = {};
    zfd_columns_out o = {};
    dim3 block;
    j.drop = zfd_dropout_attributes(l), j.share = zfd_share_of(l, &l->out.shape);
    j.dx = dx ? dx->data : NULL;
    for (int k = 0; k < ZFD_SUMS; k++)
        if (zfd_saved_out(l, ZFD_DGAMMA + k)) o.out[k] = l->saved[ZFD_DGAMMA + k].data;
    o.n = zfd_row_length(&l->out);
    if (!o.n) return ZF_OK;
    if (!zfd_grad_teams(o.n, &block)) return zfd_long_residual_grad(l, o.out, j.dx, j.drop);
    j.rows = zfd_row_count(&l->out), j.n = (int)o.n;
    o.count = zfd_grad_parts(l, block);
    j.chunk = zfd_div_up(j.rows, o.count * block.y) * block.y;
    j.dy = l->args[0].data, j.xhat = l->args[1].data, j.gamma = l->args[3].data;
    j.rstds = static_cast<const float *>(l->args[2].data);
    j.ds = l->out.data;
    j.rms = ZF_INT(l, residual_norm_grad, form) == ZFD_FORM_RMS;
    if (l->arg_count > 4) j.dsum = l->args[4].data;
    o.parts = j.parts = static_cast<float *>(l->scratch);
    j.wide = zfd_lies_well(j.n, zf_dtype_size(l->out.dtype), j.dy, j.xhat, j.gamma, j.ds) &&
             zfd_lies_well(0, 1, j.dx, j.dsum);
    size_t rooms = 2 * 2 * ZFD_WARP * block.y, sums = ZFD_SUMS * ZFD_GRAD_HELD * (size_t)block.x;
    const size_t shared = (rooms > sums ? rooms : sums) * sizeof(float);
    const dim3 grid((unsigned)o.count);
    ZFD_FLOATS(l, l->out.dtype, T, {
        if (j.wide)
            ZFD_LAUNCH((zfd_residual_grad_kernel<T, true>), grid, block, shared, zfd_stream(l), j);
        else
            ZFD_LAUNCH((zfd_residual_grad_kernel<T, false>), grid, block, shared, zfd_stream(l), j);
    })
    return zfd_columns_end(l, l->out.dtype, o);
}

ZFD_KERNEL(residual_norm, zfd_cuda_residual_norm, NULL)
ZFD_KERNEL(embed_norm, zfd_cuda_residual_norm, NULL)
ZFD_KERNEL(residual_norm_grad, zfd_cuda_residual_norm_grad, zfd_cuda_scratch_residual_norm_grad)
ZFD_KERNEL(affine, zfd_cuda_affine, NULL)
