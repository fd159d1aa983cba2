/* Attention and its gradient (ops/attention.cu): which kernels take a launch, and their scratch. */

#if ZFD_HAS_MMA
/* Launches the kernels for heads of type T, at most D wide. */
template <class T, int D> struct zfd_attention_of {
    typedef zfd_back<T, D> back;
    static const int keys = back::keys, queries = back::queries, width = D;

    /* Tiles are halved where whole ones would not occupy all processors; the bits of rows do not
     * change. */
    static cudaError_t forward(const zf_launch *l, const zfd_heads &a, void *y, float *lse, bool well)
    {
        int warps = (int)zfd_div_up(min(a.m, 128), 16), processors = zfd_device_of(l)->processors;
        size_t most = zfd_front<D>::bytes(128), bytes;
        if (warps > 4 && (a.count * zfd_div_up(a.m, 128) < processors ||
                          most > (size_t)zfd_device_of(l)->shared))
            warps = 4;
        bytes = zfd_front<D>::bytes(16 * warps);
        auto kernel = a.steady ? zfd_attention_forward<T, D, true>
                               : zfd_attention_forward<T, D, false>;
        cudaError_t code = zfd_allow_shared(l, kernel, bytes, most);
        if (code != cudaSuccess) return code;
        ZFD_LAUNCH(kernel, (unsigned)(a.count * zfd_div_up(a.m, 16 * warps)), 32 * warps, bytes,
                   zfd_stream(l), a, y, lse, well);
        return cudaSuccess;
    }
    static cudaError_t backward(const zf_launch *l, const zfd_heads &a, const zfd_heads_back &b,
                                unsigned grid)
    {
        size_t bytes = back::bytes;
        auto kernel = a.steady ? zfd_attention_backward<T, D, true>
                               : zfd_attention_backward<T, D, false>;
        cudaError_t code = zfd_allow_shared(l, kernel, bytes, bytes);
        if (code == cudaSuccess)
            ZFD_LAUNCH(kernel, grid, back::threads, bytes, zfd_stream(l), a, b);
        return code;
    }
};

#endif

/* The same by ops/attention_plain.cu: FRONT and BACK multiply the tiles of the forward pass and of
 * the gradient. */
template <class T, class FRONT, class BACK> struct zfd_attention_of_tiles {
    static const int keys = BACK::tile, queries = BACK::tile, width = BACK::width;

    static cudaError_t forward(const zf_launch *l, const zfd_heads &a, void *y, float *lse, bool well)
    {
        size_t bytes = FRONT::bytes(3);
        auto kernel = zfd_attention_forward_plain<T, FRONT>;
        cudaError_t code = zfd_allow_shared(l, kernel, bytes, bytes);
        if (code == cudaSuccess)
            ZFD_LAUNCH(kernel, (unsigned)(a.count * zfd_div_up(a.m, FRONT::tile)), ZFD_THREADS,
                       bytes, zfd_stream(l), a, y, lse, well);
        return code;
    }
    static cudaError_t backward(const zf_launch *l, const zfd_heads &a, const zfd_heads_back &b,
                                unsigned grid)
    {
        size_t bytes = BACK::bytes(4);
        auto kernel = zfd_attention_backward_plain<T, BACK>;
        cudaError_t code = zfd_allow_shared(l, kernel, bytes, bytes);
        if (code == cudaSuccess)
            ZFD_LAUNCH(kernel, grid, ZFD_THREADS, bytes, zfd_stream(l), a, b);
        return code;
    }
};

/* The same for wider heads. */
template <class T> struct zfd_attention_of_wide {
    static const int keys = 1 << 30, queries = 1, width = 1;

    static cudaError_t launch(const zf_launch *l, const zfd_heads &a, const zfd_heads_back &b, void *y,
                              float *lse, int what)
    {
        int64_t rows = a.count * (what == ZFD_ROW_OF_DKV ? a.n : a.m);
        size_t bytes = sizeof(float) * (2 * ZFD_MEETS + 2 * ZFD_THREADS / ZFD_WARP);
        if (rows)
            ZFD_LAUNCH(zfd_attention_wide<T>, zfd_grid(l, rows), ZFD_THREADS, bytes, zfd_stream(l),
                       a, b, y, lse, what);
        return cudaSuccess;
    }
    static cudaError_t forward(const zf_launch *l, const zfd_heads &a, void *y, float *lse, bool)
    {
        zfd_heads_back none;
        memset(&none, 0, sizeof none);
        return launch(l, a, none, y, lse, ZFD_ROW_OF_Y);
    }
    static cudaError_t backward(const zf_launch *l, const zfd_heads &a, const zfd_heads_back &b,
                                unsigned)
    {
        (void)launch(l, a, b, NULL, NULL, ZFD_ROW_OF_DQ);
        return launch(l, a, b, NULL, NULL, ZFD_ROW_OF_DKV);
    }
};

template <class T, int D, int TILE>
using zfd_attention_by_threads = zfd_attention_of_tiles<T, zfd_by_threads<T, D, TILE>,
                                                        zfd_by_threads<T, D, TILE>>;
#if ZFD_HAS_MMA
template <int W>
struct zfd_attention_of<float, W>
    : zfd_attention_by_threads<float, W < 64 ? 64 : W, W <= 128 ? 64 : 32> {};
#endif

/* Runs the code with `of` the class that launches heads `d` wide. Without mma tiles are so small
 * that a block has at most 64 KiB of shared memory. */
#if ZFD_HAS_PLAIN
/* By CORE in 16 bits, else by threads. */
template <class CORE, class T, int D>
using zfd_attention_by_waves = typename std::conditional<
    sizeof(T) == 2,
    zfd_attention_of_tiles<T, zfd_by_waves<CORE, T, D, D == 64 ? 64 : 32>,
                           zfd_by_waves<CORE, T, D, 32>>,
    zfd_attention_by_threads<T, D, D == 64 ? 32 : 16>>::type;

template <class T, int D>
using zfd_attention_without_cores = zfd_attention_by_threads<T, D, D == 64 ? 32 : 16>;
template <class T, int D> using zfd_attention_by_mfma = zfd_attention_by_waves<zfd_mfma, T, D>;
template <class T, int D> using zfd_attention_by_wmma = zfd_attention_by_waves<zfd_wmma, T, D>;

#define ZFD_TILE_WIDTHS(l, CORES, BY, T, d, of, ...)                                               \
    if (zfd_device_of(l)->cores == CORES && (d) <= 64) {                                           \
        typedef BY<T, 64> of;                                                                      \
        __VA_ARGS__                                                                                \
    } else if (zfd_device_of(l)->cores == CORES) {                                                 \
        typedef BY<T, 128> of;                                                                     \
        __VA_ARGS__                                                                                \
    } else
#define ZFD_PLAIN_WIDTHS(l, T, d, of, ...)                                                         \
    if (zfd_device_of(l)->cores != ZFD_MMA && (d) > 128) {                                         \
        typedef zfd_attention_of_wide<T> of;                                                       \
        __VA_ARGS__                                                                                \
    } else                                                                                         \
        ZFD_TILE_WIDTHS(l, ZFD_NO_CORES, zfd_attention_without_cores, T, d, of, __VA_ARGS__)       \
        ZFD_TILE_WIDTHS(l, ZFD_MFMA, zfd_attention_by_mfma, T, d, of, __VA_ARGS__)                 \
        ZFD_TILE_WIDTHS(l, ZFD_WMMA, zfd_attention_by_wmma, T, d, of, __VA_ARGS__)
#else
#define ZFD_PLAIN_WIDTHS(...)
#endif
#if ZFD_HAS_MMA
#define ZFD_MMA_WIDTHS(T, d, of, ...)                                                              \
    if ((d) <= 32) {                                                                               \
        typedef zfd_attention_of<T, 32> of;                                                        \
        __VA_ARGS__                                                                                \
    } else if ((d) <= 64) {                                                                        \
        typedef zfd_attention_of<T, 64> of;                                                        \
        __VA_ARGS__                                                                                \
    } else if ((d) <= 128) {                                                                       \
        typedef zfd_attention_of<T, 128> of;                                                       \
        __VA_ARGS__                                                                                \
    } else if ((d) <= ZFD_HEAD_WIDTH) {                                                            \
        typedef zfd_attention_of<T, ZFD_HEAD_WIDTH> of;                                            \
        __VA_ARGS__                                                                                \
    } else {                                                                                       \
        typedef zfd_attention_of_wide<T> of;                                                       \
        __VA_ARGS__                                                                                \
    }
#else
#define ZFD_MMA_WIDTHS(...) {}
#endif
#define ZFD_HEAD_WIDTHS(l, T, d, of, ...)                                                          \
    ZFD_PLAIN_WIDTHS(l, T, d, of, __VA_ARGS__) ZFD_MMA_WIDTHS(T, d, of, __VA_ARGS__)

#if !ZFD_HAS_MMA
/* There are no kernels of compute capability 9.0. */
static bool zfd_sm90_takes(const zf_launch *, const zfd_heads &, bool) { return false; }
static zf_status zfd_sm90_attention(const zf_launch *, const zfd_heads &, float *) { return ZF_OK; }
static bool zfd_grad90_takes(const zf_launch *, const zfd_heads &, const zfd_heads_back &)
{
    return false;
}
static bool zfd_grad90_may(const zf_launch *, const zfd_heads &) { return false; }
static size_t zfd_grad90_scratch(const zf_launch *, const zfd_heads &) { return 0; }
static zf_status zfd_grad90_attention(const zf_launch *, const zfd_heads &, const zfd_heads_back &)
{
    return ZF_OK;
}
#endif

/* The forward pass by the kernels above. `well`: y and its heads are aligned to 16 bytes. */
static zf_status zfd_general_attention(const zf_launch *l, const zfd_heads &a, float *lse, bool well)
{
    cudaError_t code = cudaSuccess;
    ZFD_FLOATS(l, l->args[0].dtype, T, {ZFD_HEAD_WIDTHS(l, T, a.d, of, {
                   code = of::forward(l, a, l->out.data, lse, well);
               })})
    return zfd_cuda_failed(l->error, "attention", code);
}

/* The scratch of a gradient by the kernels above, in floats. */
static size_t zfd_scratch_of_gradient(const zf_launch *l, const zfd_heads *a)
{
    zfd_heads_back b;
    unsigned grid = 0;
    memset(&b, 0, sizeof b);
    ZFD_FLOATS(l, l->args[0].dtype, T, {ZFD_HEAD_WIDTHS(l, T, a->d, of, {
        grid = zfd_cut_gradient(l, a, of::keys, of::queries, of::width, &b);
    })})
    return 2 * zfd_delta_size(a) + zfd_parts_size(l, a) + grid * (size_t)b.sums_size;
}

static zf_status zfd_general_attention_grad(const zf_launch *l, const zfd_heads &a)
{
    zfd_heads_back b = zfd_heads_back_of(l, &a);
    unsigned grid;
    cudaError_t code = cudaSuccess;
    ZFD_FLOATS(l, l->args[0].dtype, T, {
        if (a.m) zfd_make_delta<T>(l, a, b, false);
        ZFD_HEAD_WIDTHS(l, T, a.d, of, {
            grid = zfd_cut_gradient(l, &a, of::keys, of::queries, of::width, &b);
            code = of::backward(l, a, b, grid);
        })
    })
    return zfd_cuda_failed(l->error, "attention_grad", code);
}

/* Forward, scratch has the bits of a block mask. */
static size_t zfd_cuda_scratch_attention(const zf_launch *l)
{
    zfd_heads a;
    zf_launch quiet = *l;
    quiet.error = NULL;
    if (zfd_heads_of(&quiet, 0, &a)) return 0;
    return sizeof(uint32_t) * (size_t)zfd_block_words(a.blocks);
}

static zf_status zfd_cuda_attention(const zf_launch *l)
{
    zfd_heads a;
    const zf_array *saved = zfd_saved_out(l, 0);
    float *lse = saved ? static_cast<float *>(saved->data) : NULL;
    zf_status status = zfd_heads_of(l, 0, &a);
    if (status || !a.count || !a.m) return status;
    const bool well = zfd_lies_well(a.d, zf_dtype_size(l->out.dtype), l->out.data);
    if (a.blocks.layouts)
        a.blocks.rows = zfd_make_bits(l, a.blocks, false, static_cast<uint32_t *>(l->scratch));
    status = zfd_sm90_takes(l, a, well) ? zfd_sm90_attention(l, a, lse)
                                        : zfd_general_attention(l, a, lse, well);
    return status ? status : zfd_launched(l);
}

ZFD_KERNEL(attention, zfd_cuda_attention, zfd_cuda_scratch_attention)

enum { ZFD_QKV_SUMS = 0 }; /* the saved value of attention_grad: sums over rows of the packed form */

static bool zfd_sums_qkv(const zf_launch *l)
{
    return l->op == ZF_OP_attention_grad && l->saved && l->saved[ZFD_QKV_SUMS].shape.rank;
}

/* Rows of the result, and blocks of 16 of them that the kernel of compute capability 9.0 sums. */
static int64_t zfd_grad_rows(const zfd_heads &a) { return a.count / a.heads * a.n; }
static int64_t zfd_grad_blocks(const zfd_heads &a)
{
    return a.count / a.heads * zfd_div_up(a.n, 16);
}

/* The floats of scratch of the kernels: the larger of both's needs, since the choice depends on the
 * alignment of operands, which is not yet known. Afterwards sums of chunks of rows lie there. */
static size_t zfd_grad_scratch(const zf_launch *l, const zfd_heads &a)
{
    size_t most = zfd_scratch_of_gradient(l, &a);
    if (zfd_grad90_may(l, a)) most = max(most, zfd_grad90_scratch(l, a));
    if (zfd_sums_qkv(l)) {
        const zfd_sums rows = zfd_sums_over_rows(zfd_grad_rows(a), a.row, l->out.dtype),
                       blocks = zfd_sums_over_rows(zfd_grad_blocks(a), a.row, ZF_F32);
        most = max(most, max(zfd_sums_bytes(&rows), zfd_sums_bytes(&blocks)) / sizeof(float));
    }
    return (most + 15) / 16 * 16;
}

/* The sums of blocks of rows, or the bits of a block mask, of rows, then of columns, follow what
 * zfd_grad_scratch counts. */
static size_t zfd_cuda_scratch_attention_grad(const zf_launch *l)
{
    zfd_heads a;
    zf_launch quiet = *l;
    quiet.error = NULL;
    if (zfd_heads_of(&quiet, 3, &a)) return 0;
    const bool blocks = zfd_sums_qkv(l) && a.group == 1 && zfd_grad90_may(l, a);
    return sizeof(float) * (zfd_grad_scratch(&quiet, a) + 2 * (size_t)zfd_block_words(a.blocks) +
                            (blocks ? (size_t)(zfd_grad_blocks(a) * a.row) : 0));
}

/* attention_grad, and attention_backward. */
static zf_status zfd_cuda_attention_grad(const zf_launch *l)
{
    const zf_array *sums = zfd_sums_qkv(l) ? zfd_saved_out(l, ZFD_QKV_SUMS) : NULL;
    zfd_heads a;
    zf_status status = zfd_heads_of(l, 3, &a);
    if (status) return status;
    if (!a.count || !a.d || !(a.m + a.n))
        return sums ? zfd_move_bytes(l, sums->data, NULL, (int64_t)zfd_bytes(sums)) : ZF_OK;
    if (a.blocks.layouts) {
        uint32_t *bits = static_cast<uint32_t *>(l->scratch) + zfd_grad_scratch(l, a);
        a.blocks.rows = zfd_make_bits(l, a.blocks, false, bits);
        a.blocks.columns = zfd_make_bits(l, a.blocks, true, bits + zfd_block_words(a.blocks));
    }
    zfd_heads_back b = zfd_heads_back_of(l, &a);
    const bool of_sm90 = zfd_grad90_takes(l, a, b);
    if (sums && of_sm90 && a.group == 1)
        b.columns = static_cast<float *>(l->scratch) + zfd_grad_scratch(l, a);
    status = of_sm90 ? zfd_grad90_attention(l, a, b) : zfd_general_attention_grad(l, a);
    if (status) return status;
    ZFD_FLOATS(l, l->out.dtype, T, {
        const T *rows = static_cast<const T *>(l->out.data);
        if (a.group > 1 && b.wide) zfd_add_groups<float>(l, a, b);
        else if (a.group > 1) zfd_add_groups<T>(l, a, b);
        if (b.columns)
            zfd_sum_rows<float>(l, sums, b.columns, ZF_F32, zfd_grad_blocks(a));
        else if (sums) zfd_sum_rows<T>(l, sums, rows, l->out.dtype, zfd_grad_rows(a));
    })
    return zfd_launched(l);
}

ZFD_KERNEL(attention_grad, zfd_cuda_attention_grad, zfd_cuda_scratch_attention_grad)
ZFD_KERNEL(attention_backward, zfd_cuda_attention_grad, zfd_cuda_scratch_attention_grad)
