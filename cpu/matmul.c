/* The f32 matrix product: C[b,m,n] = sum over k of A[b,m,k] B[b,k,n].
 *
 * Packed and tiled (Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication, 2008). A tile of C, `rows` x
 * `columns` elements, stays in registers while a block of k runs over a panel of A and a panel of B:
 *
 *            B, packed: panel j is [k][columns]                   |  k is cut into equal blocks, which depend on its
 *                 +-----+-----+-----+                             |  length alone. A tile sums a block from zero and adds
 *              k  |  0  |  1  |  2  |                             |  it to C; blocks are added in their order. So the
 *                 +-----+-----+-----+                             |  bits are the same for any number of threads, which
 *          k                                                      |  share m and n only.
 *       +-----+   +-----+-----+-----+                             |
 *     0 |     |   |     | C   |     |   A, packed: panel i is     |
 *       +-----+   +-----+-----+-----+   [k][rows of the panel]    |
 *     1 |     |   |     |     |     |                             |
 *       +-----+   +-----+-----+-----+                             |
 *
 * A large product goes by chunks of B: all threads pack a chunk, then take groups of panels of A, which each packs for
 * itself. Of a small one (few rows, or a batch of little matrices) each task packs the part of B that it alone uses.
 */

/* Called once on every finished block of C while it is in cache: c points to its first element, `rows` x `cols` are its
 * extent, and `row` counts through the batch: row = b * m + (row within C[b]). */
typedef void zfi_epilogue(void *context, float *c, int64_t c_row_stride, int64_t row, int64_t col,
                          int64_t rows, int64_t cols);

/* Strides are in elements and may be anything for A and B (0 repeats); columns of C are neighbours. */
typedef struct zfi_matmul_desc {
    int64_t m, n, k, batch;
    const float *a, *b;
    float *c;
    int64_t a_row, a_col, a_batch; /* A[b,m,k] is a[b * a_batch + m * a_row + k * a_col] */
    int64_t b_row, b_col, b_batch; /* B[b,k,n] is b[b * b_batch + k * b_row + n * b_col] */
    int64_t c_row, c_batch;        /* C[b,m,n] is c[b * c_batch + m * c_row + n] */
    bool accumulate;               /* C += A B rather than C = A B */
    zfi_epilogue *epilogue;        /* or NULL */
    void *epilogue_context;
} zfi_matmul_desc;

/* The product in double precision, and no faster than it is plain. */
ZFI_UNUSED static void zfi_matmul_reference(const zfi_matmul_desc *d)
{
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t m = 0; m < d->m; m++) {
            float *c = d->c + b * d->c_batch + m * d->c_row;
            for (int64_t n = 0; n < d->n; n++) {
                double sum = d->accumulate ? c[n] : 0.0;
                for (int64_t k = 0; k < d->k; k++)
                    sum += (double)d->a[b * d->a_batch + m * d->a_row + k * d->a_col] *
                           d->b[b * d->b_batch + k * d->b_row + n * d->b_col];
                c[n] = (float)sum;
            }
            if (d->epilogue && d->n)
                d->epilogue(d->epilogue_context, c, d->c_row, b * d->m + m, 0, 1, d->n);
        }
}

/* ----------------------------------------------------------------------------- register tiles */

/* One tile over one block of k: c[i,:] (+)= sum over p of a[i * a_row + p * a_col] * b[p * b_row + :]; whole vectors of
 * columns only. */
typedef void zfi_micro(int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                       int64_t b_row, float *c, int64_t c_row, bool add);

/* dst[p * width + l] = src[l * lane_stride + p * k_stride] for l < lanes, p < k. Lanes between `lanes` and `width` get
 * any finite or infinite number; up to 16 elements behind the last may be overwritten. */
typedef void zfi_pack(float *dst, int64_t width, const float *src, int64_t lane_stride,
                      int64_t k_stride, int64_t lanes, int64_t k);

enum { ZFI_TILE_ROWS = 14, ZFI_TILE_COLUMNS = 32 }; /* of the largest tile */

typedef struct zfi_tile {
    int rows, lanes; /* tiles are at most rows x (2 * lanes) */
    zfi_micro *micro[ZFI_TILE_ROWS][2]; /* [rows - 1][vectors - 1] */
    zfi_pack *pack;
} zfi_tile;

#if defined(__clang__)
#define ZFI_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define ZFI_UNROLL _Pragma("GCC unroll 16")
#else
#define ZFI_UNROLL
#endif

#if defined(__GNUC__)
#define ZFI_PREFETCH_WRITE(p) __builtin_prefetch((p), 1)
#else
#define ZFI_PREFETCH_WRITE(p) (void)0
#endif

/* The tile in terms of one instruction set's vector: rows and vectors are constants where it is called, so that `sum`
 * becomes registers. */
#define ZFI_MICRO_BODY(name, attributes, vector, lanes, set1, load, store, fma, plus)              \
    attributes ZFI_BODY void name(const int rows, const int vectors, int64_t k, const float *a,    \
                                  int64_t a_row, int64_t a_col, const float *b, int64_t b_row,     \
                                  float *c, int64_t c_row, bool add)                               \
    {                                                                                              \
        vector sum[ZFI_TILE_ROWS][2], row[2];                                                      \
        ZFI_UNROLL for (int i = 0; i < rows; i++)                                                  \
        {                                                                                          \
            ZFI_UNROLL for (int j = 0; j < vectors; j++)                                           \
            {                                                                                      \
                ZFI_PREFETCH_WRITE(c + i * c_row + j * lanes);                                     \
                sum[i][j] = set1(0.0f);                                                            \
            }                                                                                      \
        }                                                                                          \
        for (int64_t p = 0; p < k; p++, a += a_col, b += b_row) {                                  \
            ZFI_UNROLL for (int j = 0; j < vectors; j++) row[j] = load(b + j * lanes);             \
            ZFI_UNROLL for (int i = 0; i < rows; i++)                                              \
            {                                                                                      \
                vector of_a = set1(a[i * a_row]);                                                  \
                ZFI_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = fma(of_a, row[j], sum[i][j]); \
            }                                                                                      \
        }                                                                                          \
        ZFI_UNROLL for (int i = 0; i < rows; i++)                                                  \
        {                                                                                          \
            ZFI_UNROLL for (int j = 0; j < vectors; j++)                                           \
            {                                                                                      \
                float *at = c + i * c_row + j * lanes;                                             \
                store(at, add ? plus(load(at), sum[i][j]) : sum[i][j]);                            \
            }                                                                                      \
        }                                                                                          \
    }

#define ZFI_MICRO(name, attributes, rows, vectors)                                                 \
    attributes ZFI_OPTIMIZE static void name##_##rows##x##vectors(                                 \
        int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b, int64_t b_row,    \
        float *c, int64_t c_row, bool add)                                                         \
    {                                                                                              \
        name##_body(rows, vectors, k, a, a_row, a_col, b, b_row, c, c_row, add);                   \
    }
#define ZFI_MICRO_ROW(name, rows) {name##_##rows##x1, name##_##rows##x2}
#define ZFI_MICROS(name, attributes, rows)                                                         \
    ZFI_MICRO(name, attributes, rows, 1) ZFI_MICRO(name, attributes, rows, 2)

/* Any strides, an element at a time. */
ZFI_BODY void zfi_pack_plain(float *restrict dst, int64_t width, const float *restrict src,
                             int64_t lane_stride, int64_t k_stride, int64_t lanes, int64_t k)
{
    for (int64_t p = 0; p < k; p++, dst += width, src += k_stride) {
        if (lane_stride == 1)
            for (int64_t l = 0; l < lanes; l++) dst[l] = src[l];
        else
            for (int64_t l = 0; l < lanes; l++) dst[l] = src[l * lane_stride];
        for (int64_t l = lanes; l < width; l++) dst[l] = 0.0f;
    }
}

#if defined(__GNUC__)
typedef float zfi_f4 __attribute__((vector_size(16)));
ZFI_INLINE zfi_f4 zfi_f4_set1(float x) { return (zfi_f4){x, x, x, x}; }
ZFI_INLINE zfi_f4 zfi_f4_load(const float *p)
{
    zfi_f4 v;
    memcpy(&v, p, sizeof v);
    return v;
}
ZFI_INLINE void zfi_f4_store(float *p, zfi_f4 v) { memcpy(p, &v, sizeof v); }
enum { ZFI_PORTABLE_LANES = 4 };
#else
typedef float zfi_f4;
#define zfi_f4_set1(x)     (x)
#define zfi_f4_load(p)     (*(p))
#define zfi_f4_store(p, v) ((void)(*(p) = (v)))
enum { ZFI_PORTABLE_LANES = 1 };
#endif
#define ZFI_F4_FMA(a, b, c) ((a) * (b) + (c))
#define ZFI_F4_ADD(a, b)    ((a) + (b))
ZFI_MICRO_BODY(zfi_micro_portable_body, , zfi_f4, ZFI_PORTABLE_LANES, zfi_f4_set1, zfi_f4_load, zfi_f4_store,
               ZFI_F4_FMA, ZFI_F4_ADD)
ZFI_MICROS(zfi_micro_portable, , 1)
ZFI_MICROS(zfi_micro_portable, , 2)
ZFI_MICROS(zfi_micro_portable, , 3)
ZFI_MICROS(zfi_micro_portable, , 4)
ZFI_MICROS(zfi_micro_portable, , 5)
ZFI_MICROS(zfi_micro_portable, , 6)

ZFI_OPTIMIZE static void zfi_pack_portable(float *dst, int64_t width, const float *src, int64_t lane_stride,
                              int64_t k_stride, int64_t lanes, int64_t k)
{
    zfi_pack_plain(dst, width, src, lane_stride, k_stride, lanes, k);
}

static const zfi_tile zfi_tile_portable = {
    6, ZFI_PORTABLE_LANES,
    {ZFI_MICRO_ROW(zfi_micro_portable, 1), ZFI_MICRO_ROW(zfi_micro_portable, 2),
     ZFI_MICRO_ROW(zfi_micro_portable, 3), ZFI_MICRO_ROW(zfi_micro_portable, 4),
     ZFI_MICRO_ROW(zfi_micro_portable, 5), ZFI_MICRO_ROW(zfi_micro_portable, 6)},
    zfi_pack_portable};

#if ZFI_X86
ZFI_MICRO_BODY(zfi_micro_avx2_body, ZFI_TARGET_AVX2, __m256, 8, _mm256_set1_ps, _mm256_loadu_ps,
               _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_add_ps)
ZFI_MICROS(zfi_micro_avx2, ZFI_TARGET_AVX2, 1)
ZFI_MICROS(zfi_micro_avx2, ZFI_TARGET_AVX2, 2)
ZFI_MICROS(zfi_micro_avx2, ZFI_TARGET_AVX2, 3)
ZFI_MICROS(zfi_micro_avx2, ZFI_TARGET_AVX2, 4)
ZFI_MICROS(zfi_micro_avx2, ZFI_TARGET_AVX2, 5)
ZFI_MICROS(zfi_micro_avx2, ZFI_TARGET_AVX2, 6)

/* Blocks of 8 lanes x 8 k are transposed in registers where k runs along memory. */
ZFI_TARGET_AVX2 ZFI_OPTIMIZE static void zfi_pack_avx2(float *dst, int64_t width, const float *src,
                                                       int64_t lane_stride, int64_t k_stride,
                                                       int64_t lanes, int64_t k)
{
    if (k_stride != 1 || lane_stride == 1) {
        zfi_pack_plain(dst, width, src, lane_stride, k_stride, lanes, k);
        return;
    }
    for (int64_t l = 0; l < width; l += 8) {
        int64_t p = 0, more = lanes - l;
        for (; p + 8 <= k; p += 8) {
            __m256 r[8], t[8];
            ZFI_UNROLL for (int i = 0; i < 8; i++)
                r[i] = _mm256_loadu_ps(src + (i < more ? l + i : 0) * lane_stride + p);
            ZFI_UNROLL for (int i = 0; i < 8; i += 2)
            {
                t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
                t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
            }
            ZFI_UNROLL for (int i = 0; i < 8; i += 4)
            {
                r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
                r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
                r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
                r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
            }
            ZFI_UNROLL for (int i = 0; i < 4; i++)
                _mm256_storeu_ps(dst + (p + i) * width + l, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
            ZFI_UNROLL for (int i = 0; i < 4; i++)
                _mm256_storeu_ps(dst + (p + 4 + i) * width + l, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
        }
        for (; p < k; p++)
            for (int64_t i = 0; i < 8 && l + i < width; i++)
                dst[p * width + l + i] = src[(i < more ? l + i : 0) * lane_stride + p];
    }
}

static const zfi_tile zfi_tile_avx2 = {
    6, 8,
    {ZFI_MICRO_ROW(zfi_micro_avx2, 1), ZFI_MICRO_ROW(zfi_micro_avx2, 2), ZFI_MICRO_ROW(zfi_micro_avx2, 3),
     ZFI_MICRO_ROW(zfi_micro_avx2, 4), ZFI_MICRO_ROW(zfi_micro_avx2, 5), ZFI_MICRO_ROW(zfi_micro_avx2, 6)},
    zfi_pack_avx2};

ZFI_MICRO_BODY(zfi_micro_avx512_body, ZFI_TARGET_AVX512, __m512, 16, _mm512_set1_ps, _mm512_loadu_ps,
               _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_add_ps)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 1)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 2)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 3)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 4)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 5)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 6)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 7)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 8)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 9)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 10)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 11)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 12)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 13)
ZFI_MICROS(zfi_micro_avx512, ZFI_TARGET_AVX512, 14)

/* Blocks of 16 lanes x 16 k, transposed in registers: pairs, quadruples, then quarters of vectors. Vectors that are
 * wider than the panel run into the next row of it, which is written after. */
ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_pack_avx512(float *dst, int64_t width, const float *src,
                                                           int64_t lane_stride, int64_t k_stride,
                                                           int64_t lanes, int64_t k)
{
    for (int64_t l = 0; l < width; l += 16) {
        int64_t more = lanes - l;
        if (lane_stride == 1) {
            __mmask16 mask = (__mmask16)(more >= 16 ? 0xffff : more > 0 ? (1 << more) - 1 : 0);
            for (int64_t p = 0; p < k; p++)
                _mm512_storeu_ps(dst + p * width + l, _mm512_maskz_loadu_ps(mask, src + p * k_stride + l));
        } else if (k_stride == 1) {
            for (int64_t p = 0; p < k; p += 16) {
                __mmask16 mask = (__mmask16)(k - p >= 16 ? 0xffff : (1 << (k - p)) - 1);
                __m512 r[16], t[16];
                ZFI_UNROLL for (int i = 0; i < 16; i++)
                    r[i] = _mm512_maskz_loadu_ps(mask, src + (i < more ? l + i : 0) * lane_stride + p);
                ZFI_UNROLL for (int i = 0; i < 16; i += 2)
                {
                    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
                    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
                }
                ZFI_UNROLL for (int i = 0; i < 16; i += 4)
                {
                    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
                    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
                    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
                    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
                }
                ZFI_UNROLL for (int i = 0; i < 4; i++)
                {
                    __m512 even01 = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
                    __m512 odd01 = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
                    __m512 even23 = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
                    __m512 odd23 = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
                    t[i] = _mm512_shuffle_f32x4(even01, even23, 0x88);
                    t[i + 4] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
                    t[i + 8] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
                    t[i + 12] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
                }
                ZFI_UNROLL for (int i = 0; i < 16; i++)
                    if (i < k - p) _mm512_storeu_ps(dst + (p + i) * width + l, t[i]);
            }
        } else {
            zfi_pack_plain(dst, width, src, lane_stride, k_stride, lanes, k);
            return;
        }
    }
}

static const zfi_tile zfi_tile_avx512 = {
    14, 16,
    {ZFI_MICRO_ROW(zfi_micro_avx512, 1), ZFI_MICRO_ROW(zfi_micro_avx512, 2),
     ZFI_MICRO_ROW(zfi_micro_avx512, 3), ZFI_MICRO_ROW(zfi_micro_avx512, 4),
     ZFI_MICRO_ROW(zfi_micro_avx512, 5), ZFI_MICRO_ROW(zfi_micro_avx512, 6),
     ZFI_MICRO_ROW(zfi_micro_avx512, 7), ZFI_MICRO_ROW(zfi_micro_avx512, 8),
     ZFI_MICRO_ROW(zfi_micro_avx512, 9), ZFI_MICRO_ROW(zfi_micro_avx512, 10),
     ZFI_MICRO_ROW(zfi_micro_avx512, 11), ZFI_MICRO_ROW(zfi_micro_avx512, 12),
     ZFI_MICRO_ROW(zfi_micro_avx512, 13), ZFI_MICRO_ROW(zfi_micro_avx512, 14)},
    zfi_pack_avx512};
#endif

#if ZFI_NEON
#define ZFI_NEON_FMA(a, b, c) vfmaq_f32((c), (a), (b))
ZFI_MICRO_BODY(zfi_micro_neon_body, , float32x4_t, 4, vdupq_n_f32, vld1q_f32, vst1q_f32, ZFI_NEON_FMA, vaddq_f32)
ZFI_MICROS(zfi_micro_neon, , 1)
ZFI_MICROS(zfi_micro_neon, , 2)
ZFI_MICROS(zfi_micro_neon, , 3)
ZFI_MICROS(zfi_micro_neon, , 4)
ZFI_MICROS(zfi_micro_neon, , 5)
ZFI_MICROS(zfi_micro_neon, , 6)
ZFI_MICROS(zfi_micro_neon, , 7)
ZFI_MICROS(zfi_micro_neon, , 8)
ZFI_MICROS(zfi_micro_neon, , 9)
ZFI_MICROS(zfi_micro_neon, , 10)
ZFI_MICROS(zfi_micro_neon, , 11)
ZFI_MICROS(zfi_micro_neon, , 12)

static const zfi_tile zfi_tile_neon = {
    12, 4,
    {ZFI_MICRO_ROW(zfi_micro_neon, 1), ZFI_MICRO_ROW(zfi_micro_neon, 2), ZFI_MICRO_ROW(zfi_micro_neon, 3),
     ZFI_MICRO_ROW(zfi_micro_neon, 4), ZFI_MICRO_ROW(zfi_micro_neon, 5), ZFI_MICRO_ROW(zfi_micro_neon, 6),
     ZFI_MICRO_ROW(zfi_micro_neon, 7), ZFI_MICRO_ROW(zfi_micro_neon, 8), ZFI_MICRO_ROW(zfi_micro_neon, 9),
     ZFI_MICRO_ROW(zfi_micro_neon, 10), ZFI_MICRO_ROW(zfi_micro_neon, 11),
     ZFI_MICRO_ROW(zfi_micro_neon, 12)},
    zfi_pack_portable};
#endif

static const zfi_tile *zfi_tile_of(zfi_isa isa)
{
#if ZFI_X86
    if (isa == ZFI_ISA_AVX512) return &zfi_tile_avx512;
    if (isa == ZFI_ISA_AVX2) return &zfi_tile_avx2;
#elif ZFI_NEON
    if (isa == ZFI_ISA_NEON) return &zfi_tile_neon;
#endif
    (void)isa;
    return &zfi_tile_portable;
}

/* -------------------------------------------------------------------------------------- blocks */

enum {
    ZFI_K_BLOCK = 256,         /* k of a block at most: a panel of B is 32 KiB */
    ZFI_CHUNK = 1 << 20,       /* elements of B that are packed at a time for all threads: 4 MiB */
    ZFI_SPAN = 256,            /* columns of a block that is finished at once */
};

/* How a product is cut: a function of its shape, the instruction set and the number of threads. Only k_block has a say
 * in the result. */
typedef struct zfi_matmul_plan {
    const zfi_tile *tile;
    int64_t columns;          /* of a tile */
    int64_t panels;           /* of A: rows / panels each, one more in the first rows % panels */
    int64_t k_block;
    int64_t group;            /* panels of A that are packed together */
    bool shared;              /* all threads pack B, by chunks of chunk_k x chunk_n */
    int64_t chunk_k, chunk_n; /* where it is not shared, chunk_n are the columns of a task */
    size_t a_size, b_size;    /* elements of scratch: of A for each worker, of B for all or for each worker */
} zfi_matmul_plan;

static int64_t zfi_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t zfi_min(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t zfi_max(int64_t a, int64_t b) { return a > b ? a : b; }

static zfi_matmul_plan zfi_matmul_plan_of(zfi_isa isa, int threads, const zfi_matmul_desc *d)
{
    zfi_matmul_plan plan = {.tile = zfi_tile_of(isa)};
    int64_t rows = plan.tile->rows, columns = 2 * plan.tile->lanes, n = zfi_div_up(d->n, columns) * columns;
    plan.columns = columns;
    plan.panels = zfi_div_up(d->m, rows);
    plan.k_block = zfi_max(1, zfi_div_up(d->k, zfi_max(1, zfi_div_up(d->k, ZFI_K_BLOCK))));
    plan.shared = plan.panels > 4 && (d->batch < 2 * threads || d->k * d->n > 128 * 1024);
    plan.group = zfi_min(3, plan.panels);
    if (plan.shared) {
        /* a whole row of B if it leaves room for a thousand k, otherwise all k if it leaves ... */
        int64_t n_of_all_k = ZFI_CHUNK / d->k / columns * columns;
        plan.chunk_n = zfi_min(n, zfi_max(n_of_all_k, 1024));
        plan.chunk_n = zfi_div_up(zfi_div_up(n, zfi_div_up(n, plan.chunk_n)), columns) * columns;
        plan.chunk_k = zfi_max(1, ZFI_CHUNK / plan.chunk_n / plan.k_block) * plan.k_block;
        plan.chunk_k = zfi_min(plan.chunk_k, zfi_div_up(d->k, plan.k_block) * plan.k_block);
        plan.b_size = (size_t)(plan.chunk_k * plan.chunk_n) + 16;
    } else {
        plan.chunk_n = zfi_min(n, ZFI_SPAN);
        plan.chunk_k = plan.k_block;
        plan.b_size = (size_t)(plan.k_block * plan.chunk_n) + 16;
    }
    plan.a_size = (size_t)(plan.group * rows * plan.k_block) + 16;
    plan.a_size = (plan.a_size + 15) / 16 * 16;
    plan.b_size = (plan.b_size + 15) / 16 * 16;
    return plan;
}

typedef struct zfi_matmul_run {
    zfi_matmul_plan plan;
    const zfi_matmul_desc *d;
    float *scratch_a, *scratch_b;
    int64_t batch, k0, n0; /* of the chunk */
} zfi_matmul_run;

/* Packs columns n0..n0+n-1 (n0 a multiple of a tile's) of k0..k0+k-1: panel after panel. */
static void zfi_matmul_pack_b(const zfi_matmul_run *run, float *dst, int64_t batch, int64_t k0,
                              int64_t k, int64_t n0, int64_t n)
{
    const zfi_matmul_desc *d = run->d;
    int64_t columns = run->plan.columns;
    const float *b = d->b + batch * d->b_batch + k0 * d->b_row + n0 * d->b_col;
    for (int64_t j = 0; j < n; j += columns)
        run->plan.tile->pack(dst + j * k, columns, b + j * d->b_col, d->b_col, d->b_row,
                             zfi_min(columns, d->n - n0 - j), k);
}

static int64_t zfi_panel_row(const zfi_matmul_run *run, int64_t panel)
{
    int64_t rows = run->d->m / run->plan.panels, more = run->d->m % run->plan.panels;
    return panel * rows + zfi_min(panel, more);
}

/* C of panels [panel, panel_end) and columns n0..n0+n-1, for one block of k, from a packed block of B. */
static void zfi_matmul_group(const zfi_matmul_run *run, int worker, int64_t batch, int64_t panel, int64_t panel_end,
                             const float *b, int64_t k0, int64_t k, int64_t n0, int64_t n)
{
    const zfi_matmul_desc *d = run->d;
    const zfi_matmul_plan *plan = &run->plan;
    const zfi_tile *tile = plan->tile;
    float *packed = run->scratch_a + (size_t)worker * plan->a_size;
    const float *a = d->a + batch * d->a_batch + k0 * d->a_col;
    bool add = d->accumulate || k0 > 0, last = k0 + k >= d->k;
    int64_t row0 = zfi_panel_row(run, panel), row_end = zfi_panel_row(run, panel_end);
    for (int64_t i = panel; i < panel_end; i++) {
        int64_t row = zfi_panel_row(run, i), rows = zfi_panel_row(run, i + 1) - row;
        tile->pack(packed + (row - row0) * k, rows, a + row * d->a_row, d->a_row, d->a_col, rows, k);
    }
    for (int64_t span = 0; span < n; span += ZFI_SPAN) {
        int64_t span_end = zfi_min(span + ZFI_SPAN, n);
        for (int64_t j = span; j < span_end; j += plan->columns)
            for (int64_t i = panel; i < panel_end; i++) {
                int64_t row = zfi_panel_row(run, i), rows = zfi_panel_row(run, i + 1) - row;
                int64_t columns = zfi_min(plan->columns, n - j);
                int vectors = columns > tile->lanes ? 2 : 1;
                float *c = d->c + batch * d->c_batch + row * d->c_row + n0 + j;
                if (columns == vectors * tile->lanes) {
                    tile->micro[rows - 1][vectors - 1](k, packed + (row - row0) * k, 1, rows, b + j * k,
                                                       plan->columns, c, d->c_row, add);
                } else {
                    float edge[ZFI_TILE_ROWS * ZFI_TILE_COLUMNS];
                    tile->micro[rows - 1][vectors - 1](k, packed + (row - row0) * k, 1, rows, b + j * k,
                                                       plan->columns, edge, plan->columns, false);
                    for (int64_t r = 0; r < rows; r++)
                        for (int64_t l = 0; l < columns; l++) {
                            float *at = &c[r * d->c_row + l], value = edge[r * plan->columns + l];
                            *at = add ? *at + value : value;
                        }
                }
            }
        if (last && d->epilogue)
            d->epilogue(d->epilogue_context, d->c + batch * d->c_batch + row0 * d->c_row + n0 + span, d->c_row,
                        batch * d->m + row0, n0 + span, row_end - row0, span_end - span);
    }
}

/* Shared: packs one panel of the chunk, all its k. */
static void zfi_matmul_pack_task(void *context, int64_t index, int worker)
{
    const zfi_matmul_run *run = context;
    const zfi_matmul_plan *plan = &run->plan;
    int64_t k_end = zfi_min(run->k0 + plan->chunk_k, run->d->k), n = run->n0 + index * plan->columns;
    (void)worker;
    for (int64_t k0 = run->k0; k0 < k_end; k0 += plan->k_block) {
        int64_t k = zfi_min(plan->k_block, k_end - k0);
        float *block = run->scratch_b + (k0 - run->k0) * plan->chunk_n;
        zfi_matmul_pack_b(run, block + index * plan->columns * k, run->batch, k0, k, n, plan->columns);
    }
}

/* Shared: one group of panels against the chunk. */
static void zfi_matmul_chunk_task(void *context, int64_t index, int worker)
{
    const zfi_matmul_run *run = context;
    const zfi_matmul_plan *plan = &run->plan;
    int64_t k_end = zfi_min(run->k0 + plan->chunk_k, run->d->k), n = zfi_min(plan->chunk_n, run->d->n - run->n0);
    for (int64_t k0 = run->k0; k0 < k_end; k0 += plan->k_block)
        zfi_matmul_group(run, worker, run->batch, index * plan->group,
                         zfi_min((index + 1) * plan->group, plan->panels),
                         run->scratch_b + (k0 - run->k0) * plan->chunk_n, k0, zfi_min(plan->k_block, k_end - k0),
                         run->n0, n);
}

/* Not shared: all rows of some columns of a matrix of the batch. */
static void zfi_matmul_columns_task(void *context, int64_t index, int worker)
{
    const zfi_matmul_run *run = context;
    const zfi_matmul_plan *plan = &run->plan;
    int64_t spans = zfi_div_up(run->d->n, plan->chunk_n), batch = index / spans;
    int64_t n0 = index % spans * plan->chunk_n, n = zfi_min(plan->chunk_n, run->d->n - n0);
    float *b = run->scratch_b + (size_t)worker * plan->b_size;
    for (int64_t k0 = 0; k0 < run->d->k; k0 += plan->k_block) {
        int64_t k = zfi_min(plan->k_block, run->d->k - k0);
        zfi_matmul_pack_b(run, b, batch, k0, k, n0, n);
        for (int64_t panel = 0; panel < plan->panels; panel += plan->group)
            zfi_matmul_group(run, worker, batch, panel, zfi_min(panel + plan->group, plan->panels), b, k0, k, n0, n);
    }
}

/* k is 0: a sum of nothing. */
static void zfi_matmul_nothing_task(void *context, int64_t index, int worker)
{
    const zfi_matmul_desc *d = ((const zfi_matmul_run *)context)->d;
    int64_t b = index / d->m, m = index % d->m;
    float *c = d->c + b * d->c_batch + m * d->c_row;
    (void)worker;
    if (!d->accumulate) memset(c, 0, (size_t)d->n * sizeof *c);
    if (d->epilogue) d->epilogue(d->epilogue_context, c, d->c_row, b * d->m + m, 0, 1, d->n);
}

/* Bytes of scratch that zfi_matmul needs on a pool of `threads`; pointers and strides do not matter. */
ZFI_UNUSED static size_t zfi_matmul_scratch(zfi_isa isa, int threads, const zfi_matmul_desc *d)
{
    zfi_matmul_plan plan;
    if (!d->m || !d->n || !d->k || !d->batch) return 0;
    plan = zfi_matmul_plan_of(isa, threads, d);
    return ((size_t)threads * plan.a_size + (plan.shared ? 1 : (size_t)threads) * plan.b_size) * sizeof(float);
}

/* C = A B, or C += A B, on the pool's threads. `scratch` has zfi_matmul_scratch(isa, threads of the pool, d) bytes
 * aligned to 64. The result does not depend on the number of threads. */
ZFI_UNUSED static void zfi_matmul(zfi_isa isa, zfi_pool *pool, const zfi_matmul_desc *d, void *scratch)
{
    int threads = zfi_pool_threads(pool);
    zfi_matmul_run run = {.d = d};
    if (!d->m || !d->n || !d->batch) return;
    if (!d->k) {
        zfi_pool_run(pool, d->batch * d->m, zfi_matmul_nothing_task, &run);
        return;
    }
    run.plan = zfi_matmul_plan_of(isa, threads, d);
    run.scratch_a = scratch;
    run.scratch_b = run.scratch_a + (size_t)threads * run.plan.a_size;
    if (!run.plan.shared) {
        zfi_pool_run(pool, d->batch * zfi_div_up(d->n, run.plan.chunk_n), zfi_matmul_columns_task, &run);
        return;
    }
    for (run.batch = 0; run.batch < d->batch; run.batch++)
        for (run.n0 = 0; run.n0 < d->n; run.n0 += run.plan.chunk_n)
            for (run.k0 = 0; run.k0 < d->k; run.k0 += run.plan.chunk_k) {
                int64_t n = zfi_min(run.plan.chunk_n, d->n - run.n0);
                zfi_pool_run(pool, zfi_div_up(n, run.plan.columns), zfi_matmul_pack_task, &run);
                zfi_pool_run(pool, zfi_div_up(run.plan.panels, run.plan.group), zfi_matmul_chunk_task, &run);
            }
}
