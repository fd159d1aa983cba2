/* LayerNorm with what stands around it (ops/fused_norm.c) on CUDA: rows as in ops/norm.cu, s in
 * registers from its making to y.
 *
 * residual_norm_grad keeps columns in registers. The rows of a block are a part; its teams take two
 * rows at a time, each thread the same columns of all of them, and with them
 *
 *     dy, xhat [rows,n] -> ds, dx [rows,n]
 *                     \--> parts [parts,ZFI_SUMS,n] f32 -> dgamma, dbeta, dbias [n]
 *
 * so that dy and xhat are read once. Rows too long for that are summed before and after.
 */

static bool zfi_embeds(const zf_launch *l) { return l->op == ZF_OP_embed_norm; }

/* s = residual + dropout(x + bias), or with `words` words[ids] + types[type_ids] + positions. */
typedef struct zfi_fused_norm_job {
    zfi_row_set set;
    const void *x, *residual, *bias; /* bias: or NULL */
    const void *words, *types, *positions;
    zfi_integers ids, type_ids;
    int64_t word_count, type_count, tokens;
    const void *gamma, *beta;
    void *y, *xhat; /* xhat, rstds: or NULL */
    float *rstds, eps;
    zfi_dropout drop;
    zfi_fault fault; /* to report, but for the index */
    zfi_fault *report;
} zfi_fused_norm_job;

/* The row of a table that an index names; NULL, and a fault, if it has none. */
template <class T>
__device__ __forceinline__ const T *zfi_named_row(const zfi_fused_norm_job &j, const void *table,
                                                  const zfi_integers &ids, int64_t rows,
                                                  int64_t row, int kind)
{
    int64_t id = zfi_integer_at(ids, row);
    if (id >= 0 && id < rows) return static_cast<const T *>(table) + id * j.set.n;
    if (threadIdx.x == 0) {
        zfi_fault fault = j.fault;
        fault.kind = kind, fault.element = row, fault.value = id, fault.limit = rows;
        zfi_report(j.report, fault);
    }
    return NULL;
}

template <class T, int K>
__global__ void __launch_bounds__(ZFI_TEAM_MOST) zfi_fused_norm_kernel(const zfi_fused_norm_job j)
{
    ZF_SHARED(float, shared);
    const zfi_team<T, K> t(j.set);
    typedef typename zfi_team<T, K>::index index;
    const int V = zfi_team<T, K>::V;
    const zfi_dropper drop = zfi_dropper_of(j.drop);
    const T *word = NULL, *type = NULL, *position = NULL;
    float s[K ? K : 1][V], residual[K ? K : 1][V], mean = 0, squares = 0, rstd;
    if (j.words && t.row < j.set.rows) {
        int64_t token = t.row >> 32 ? t.row % j.tokens : (uint32_t)t.row % (uint32_t)j.tokens;
        word = zfi_named_row<T>(j, j.words, j.ids, j.word_count, t.row, ZFI_FAULT_INDEX);
        type = zfi_named_row<T>(j, j.types, j.type_ids, j.type_count, t.row, ZFI_FAULT_TYPES);
        position = static_cast<const T *>(j.positions) + token * j.set.n;
    }
    /* s of x, with the residual that is added. */
    auto finish = [&](float(&x)[V], const float(&more)[V], index i) {
        float bias[V];
        if (j.bias) {
            t.get_vector(bias, static_cast<const T *>(j.bias), i);
#pragma unroll
            for (int v = 0; v < V; v++) x[v] += bias[v];
        }
        t.drop(drop, x, i);
#pragma unroll
        for (int v = 0; v < V; v++) x[v] += more[v];
    };
    auto look = [&](float(&x)[V], index i) {
        float more[V];
        if (j.words) {
            float last[V] = {};
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
        t.get(more, static_cast<const T *>(j.residual), i);
        finish(x, more, i);
    };
    if (K && !j.words) /* all of the row under way before words of dropout are made */
        t.each([&](int k, index i) {
            t.get(s[k], static_cast<const T *>(j.x), i);
            t.get(residual[k], static_cast<const T *>(j.residual), i);
        });
    t.each([&](int k, index i) { /* s of what is not the row's is 0 */
        if (K && !j.words) finish(s[k], residual[k], i);
        else look(s[k], i);
#pragma unroll
        for (int v = 0; v < V; v++) mean += s[k][v];
    });
    mean = zfi_team_sum(mean, shared) / (float)j.set.n;
    t.each([&](int k, index i) {
        if (!K) look(s[k], i);
#pragma unroll
        for (int v = 0; v < V; v++)
            if (t.has(i + v)) squares += (s[k][v] - mean) * (s[k][v] - mean);
    });
    rstd = zfi_rstd(zfi_team_sum(squares, zfi_sum_room(shared, 1)), j.set.n, j.eps);
    if (j.rstds && threadIdx.x == 0 && t.row < j.set.rows) j.rstds[t.row] = rstd;
    t.each([&](int k, index i) {
        float gamma[V], beta[V];
        if (!K) look(s[k], i);
        t.get_vector(gamma, static_cast<const T *>(j.gamma), i);
        t.get_vector(beta, static_cast<const T *>(j.beta), i);
#pragma unroll
        for (int v = 0; v < V; v++) s[k][v] = (s[k][v] - mean) * rstd;
        if (j.xhat) t.put(static_cast<T *>(j.xhat), i, s[k]);
#pragma unroll
        for (int v = 0; v < V; v++) s[k][v] = fmaf(s[k][v], gamma[v], beta[v]);
        if (j.words) t.drop(drop, s[k], i);
        t.put(static_cast<T *>(j.y), i, s[k]);
    });
}

static zf_status zfi_cuda_residual_norm(const zf_launch *l)
{
    const zf_array *x = l->args, *vectors = x + (zfi_embeds(l) ? 5 : 2),
                   *xhat = zfi_saved_out(l, 0), *rstds = zfi_saved_out(l, 1);
    zfi_fused_norm_job j = {};
    if (!zfi_row_count(&l->out)) return ZF_OK;
    if (zfi_embeds(l)) {
        j.words = x[0].data, j.word_count = x[0].shape.dims[0], j.ids = zfi_integers_of(&x[1]);
        j.types = x[2].data, j.type_count = x[2].shape.dims[0], j.type_ids = zfi_integers_of(&x[3]);
        j.positions = x[4].data, j.tokens = x[4].shape.dims[0];
        j.fault.op = l->op, j.fault.node = l->node, j.report = zfi_device_of(l)->fault;
    } else {
        j.x = x[0].data, j.residual = x[1].data;
        if (l->arg_count > 4) j.bias = x[4].data;
    }
    j.gamma = vectors[0].data, j.beta = vectors[1].data;
    j.y = l->out.data, j.eps = (float)ZF_FLOAT(l, residual_norm, eps);
    if (xhat) j.xhat = xhat->data;
    if (rstds) j.rstds = static_cast<float *>(rstds->data);
    j.drop = zfi_dropout_attributes(l);
    bool wide = zfi_lies_well(0, 1, j.x, j.residual, j.bias, j.words) &&
                zfi_lies_well(0, 1, j.types, j.positions, j.gamma, j.beta) &&
                zfi_lies_well(0, 1, j.y, j.xhat);
    zfi_teams t = zfi_teams_of(&l->out, wide, 2);
    j.set = t.set;
    ZFI_FLOATS(l, l->out.dtype, T, ZFI_LAUNCH_ROWS(zfi_fused_norm_kernel, T, t, l, j);)
    return zfi_launched(l);
}

#define zfi_cuda_embed_norm zfi_cuda_residual_norm

static zf_status zfi_cuda_affine(const zf_launch *l)
{
    return zfi_norm_launch(l, NULL, l->args[1].data, l->args[2].data);
}

/* --------------------------------------------------------------------------- the gradient */

enum {
    ZFI_DX = 0, /* what residual_norm_grad leaves beside ds: dx, and the sums from 1 on */
    ZFI_DGAMMA,
    ZFI_GRAD_ROWS = 2,      /* that a team has at a time */
    ZFI_GRAD_THREADS = 256, /* of a block, or one team if that is more, */
    ZFI_GRAD_MOST = 512     /* at most this */
};

typedef struct zfi_residual_grad_job {
    int64_t rows, chunk; /* chunk: rows of a part */
    int n;
    const void *dy, *xhat, *gamma;
    const float *rstds;
    void *ds, *dx; /* dx: or NULL */
    float *parts;
    bool wide;
    zfi_dropout drop;
} zfi_residual_grad_job;

template <class T>
__global__ void __launch_bounds__(ZFI_GRAD_MOST)
    zfi_residual_grad_kernel(const zfi_residual_grad_job j)
{
    const int V = zfi_wide<T>::count, K = zfi_held<T>::packs, R = ZFI_GRAD_ROWS;
    ZF_SHARED(float, shared); /* of sums, twice; then [teams][ZFI_SUMS][team * ZFI_HELD] */
    const zfi_dropper drop = zfi_dropper_of(j.drop);
    const T *dy = static_cast<const T *>(j.dy), *xhat = static_cast<const T *>(j.xhat);
    T *ds = static_cast<T *>(j.ds), *dx = static_cast<T *>(j.dx);
    int width = (int)blockDim.x * ZFI_HELD, turn = 0;
    int64_t begin = (int64_t)blockIdx.x * j.chunk,
            end = begin + j.chunk < j.rows ? begin + j.chunk : j.rows;
    float gamma[K][V], sums[ZFI_SUMS][K][V] = {};
    zfi_row_set one = {1, j.n, j.wide}; /* columns are elements of this */
    zfi_team<T, K> t(one);
    t.n = j.n, t.first = 0;
    t.each([&](int k, int i) { t.get_vector(gamma[k], static_cast<const T *>(j.gamma), i); });
    for (int64_t at = begin; at < end; at += (int64_t)blockDim.y * R, turn ^= 1) {
        int64_t first = at + threadIdx.y * R;
        float d[R][K][V], h[R][K][V], mean[2 * R] = {};
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (first + r >= end) continue;
            t.base = (first + r) * j.n;
            t.each([&](int k, int i) {
                t.get(d[r][k], dy, i);
                t.get(h[r][k], xhat, i);
            });
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (first + r >= end) continue;
            t.each([&](int k, int) {
#pragma unroll
                for (int v = 0; v < V; v++) {
                    float g = d[r][k][v] * gamma[k][v];
                    mean[2 * r] += g;
                    mean[2 * r + 1] = fmaf(g, h[r][k][v], mean[2 * r + 1]);
                }
            });
        }
        zfi_team_sums(mean, shared + turn * 2 * R * ZFI_WARP * (int)blockDim.y);
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (first + r >= end) continue;
            float rstd = j.rstds[first + r], mean_g = mean[2 * r] / (float)j.n,
                  mean_gx = mean[2 * r + 1] / (float)j.n;
            t.base = (first + r) * j.n;
            t.each([&](int k, int i) {
                float x[V];
#pragma unroll
                for (int v = 0; v < V; v++) {
                    sums[0][k][v] = fmaf(d[r][k][v], h[r][k][v], sums[0][k][v]);
                    sums[1][k][v] += d[r][k][v];
                    x[v] = rstd * (d[r][k][v] * gamma[k][v] - fmaf(h[r][k][v], mean_gx, mean_g));
                }
                t.put(ds, i, x);
                t.drop(drop, x, i);
                if (dx) t.put(dx, i, x);
#pragma unroll
                for (int v = 0; v < V; v++) sums[2][k][v] += x[v];
            });
        }
    }
    __syncthreads();
    t.each([&](int k, int i) {
#pragma unroll
        for (int s = 0; s < ZFI_SUMS; s++)
#pragma unroll
            for (int v = 0; v < V; v++)
                shared[((int)threadIdx.y * ZFI_SUMS + s) * width + i + v] = sums[s][k][v];
    });
    __syncthreads();
    for (int c = (int)(threadIdx.y * blockDim.x + threadIdx.x); c < ZFI_SUMS * j.n;
         c += (int)(blockDim.x * blockDim.y)) {
        int s = c / j.n, i = c - s * j.n;
        float sum = 0;
        for (int team = 0; team < (int)blockDim.y; team++)
            sum += shared[(team * ZFI_SUMS + s) * width + i];
        j.parts[((int64_t)blockIdx.x * ZFI_SUMS + s) * j.n + i] = sum;
    }
}

/* Threads of a team and teams of a block; false: the rows are too long. */
static bool zfi_grad_teams(int64_t n, dim3 *block)
{
    int64_t threads = zfi_div_up(n > 0 ? n : 1, ZFI_HELD * ZFI_WARP) * ZFI_WARP;
    if (threads > ZFI_GRAD_MOST) return false;
    *block = dim3((unsigned)threads,
                  (unsigned)(threads < ZFI_GRAD_THREADS ? ZFI_GRAD_THREADS / threads : 1));
    return true;
}

static int64_t zfi_grad_parts(const zf_launch *l, const dim3 &block)
{
    return zfi_parts(l, zfi_row_count(&l->out), (int64_t)block.y * ZFI_GRAD_ROWS, 2);
}

static size_t zfi_cuda_scratch_residual_norm_grad(const zf_launch *l)
{
    dim3 block;
    int64_t parts = zfi_grad_teams(zfi_row_length(&l->out), &block)
                        ? zfi_grad_parts(l, block)
                        : zfi_column_parts(l, &l->out);
    return zfi_parts_bytes(parts, zfi_row_length(&l->out));
}

/* Rows that are too long for the kernel above. ds may lie over dy or xhat: what is summed of these
 * comes first. */
static zf_status zfi_long_residual_grad(const zf_launch *l, void *const out[ZFI_SUMS], void *dx,
                                        const zfi_dropout &drop)
{
    void *before[ZFI_SUMS] = {out[0], out[1], NULL}, *after[ZFI_SUMS] = {NULL, NULL, out[2]};
    zfi_norm_grad_job j = {};
    zf_status status = ZF_OK;
    if (out[0] || out[1])
        status = zfi_columns(l, &l->args[0], l->args[1].data, NULL, drop, before);
    j.dy = l->args[0].data, j.x = l->args[1].data, j.gamma = l->args[3].data;
    j.rstds = static_cast<const float *>(l->args[2].data);
    j.dx = l->out.data, j.dropped = dx;
    j.centred = true, j.drop = drop;
    if (!status) status = zfi_norm_grad_launch(l, &j);
    if (!status && out[2]) status = zfi_columns(l, &l->out, NULL, NULL, drop, after);
    return status;
}

static zf_status zfi_cuda_residual_norm_grad(const zf_launch *l)
{
    const zf_array *dx = zfi_saved_out(l, ZFI_DX);
    zfi_residual_grad_job j = {};
    zfi_columns_out o = {};
    dim3 block;
    j.drop = zfi_dropout_attributes(l);
    j.dx = dx ? dx->data : NULL;
    for (int k = 0; k < ZFI_SUMS; k++)
        if (zfi_saved_out(l, ZFI_DGAMMA + k)) o.out[k] = l->saved[ZFI_DGAMMA + k].data;
    o.n = zfi_row_length(&l->out);
    if (!o.n) return ZF_OK;
    if (!zfi_grad_teams(o.n, &block)) return zfi_long_residual_grad(l, o.out, j.dx, j.drop);
    j.rows = zfi_row_count(&l->out), j.n = (int)o.n;
    o.count = zfi_grad_parts(l, block);
    j.chunk = zfi_div_up(j.rows, o.count * block.y * ZFI_GRAD_ROWS) * block.y * ZFI_GRAD_ROWS;
    j.dy = l->args[0].data, j.xhat = l->args[1].data, j.gamma = l->args[3].data;
    j.rstds = static_cast<const float *>(l->args[2].data);
    j.ds = l->out.data;
    o.parts = j.parts = static_cast<float *>(l->scratch);
    j.wide = zfi_lies_well(j.n, zf_dtype_size(l->out.dtype), j.dy, j.xhat, j.gamma, j.ds) &&
             zfi_lies_well(0, 1, j.dx);
    size_t rooms = 2 * 2 * ZFI_GRAD_ROWS * ZFI_WARP * block.y,
           sums = ZFI_SUMS * ZFI_HELD * (size_t)block.x * block.y;
    ZFI_FLOATS(l, l->out.dtype, T,
               ZF_LAUNCH(zfi_residual_grad_kernel<T>, dim3((unsigned)o.count), block,
                         (rooms > sums ? rooms : sums) * sizeof(float), zfi_stream(l), j);)
    return zfi_columns_end(l, l->out.dtype, o);
}
