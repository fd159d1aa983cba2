/* The f32 matrix product: C[b,m,n] = sum over k of A[b,m,k] B[b,k,n].
 *
 * Tiled (Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication, 2008). A tile of C
 * stays in registers while a block of k runs over a panel of A and a panel of B:
 *
 *                 +-----+-----+-----+   k is cut into equal blocks, which depend on its length alone.
 *            k    |  0  |  1  |  2  |   A tile sums a block from zero and adds it to C, block after
 *                 +-----+-----+-----+   block. So the bits are the same for any number of threads,
 *          k                            which share m and n only, and for every way of reading.
 *       +-----+   +-----+-----+-----+
 *     0 |     |   |     | C   |     |   Packed, a panel of B is [k][columns of a tile], and one of A
 *       +-----+   +-----+-----+-----+   [k][rows of a tile]. What lies well is read in place: A with
 *     1 |     |   |     |     |     |   k along memory, either one with short rows.
 *       +-----+   +-----+-----+-----+
 *
 * A task has some panels of A and some columns. What it needs packed it packs for itself, a block
 * of k at a time, into the cache next to it: another core's would cost more to fetch. Neighbouring
 * tasks, which go to one thread, share rows.
 */

/* Called once on every finished block of C while it is in cache: c points to its first element, its
 * extent is rows x cols, and `row` counts through the batch: (matrix of it) * m + row of the matrix. */
typedef void zfi_epilogue(void *context, float *c, int64_t c_row_stride, int64_t row, int64_t col,
                          int64_t rows, int64_t cols);

/* Strides are in elements and may be anything for A and B (0 repeats); columns of C are neighbours.
 * The batch may be two nested ones: b < batch, o < outer.
 *
 *     A[o,b,m,k] is a[o * a_outer + b * a_batch + m * a_row + k * a_col]
 *     B[o,b,k,n] is b[o * b_outer + b * b_batch + k * b_row + n * b_col]
 *     C[o,b,m,n] is c[o * c_outer + b * c_batch + m * c_row + n]
 */
typedef struct zfi_matmul_desc {
    int64_t m, n, k, batch;
    const float *a, *b;
    float *c;
    int64_t a_row, a_col, a_batch;
    int64_t b_row, b_col, b_batch;
    int64_t c_row, c_batch;
    bool accumulate;        /* C += A B rather than C = A B */
    zfi_epilogue *epilogue; /* or NULL */
    void *epilogue_context;
    int64_t outer, a_outer, b_outer, c_outer; /* outer 0 means 1 */
} zfi_matmul_desc;

/* Matrix i of the batch of each. */
static void zfi_matmul_at(const zfi_matmul_desc *d, int64_t i, const float **a, const float **b,
                          float **c)
{
    int64_t outer = i / d->batch, inner = i % d->batch;
    *a = d->a + outer * d->a_outer + inner * d->a_batch;
    *b = d->b + outer * d->b_outer + inner * d->b_batch;
    *c = d->c + outer * d->c_outer + inner * d->c_batch;
}

static int64_t zfi_matmul_count(const zfi_matmul_desc *d)
{
    return d->batch * (d->outer ? d->outer : 1);
}

/* The product in double precision, and no faster than it is plain. */
ZFI_UNUSED static void zfi_matmul_reference(const zfi_matmul_desc *d)
{
    for (int64_t i = 0; i < zfi_matmul_count(d); i++)
        for (int64_t m = 0; m < d->m; m++) {
            const float *a, *b;
            float *c;
            zfi_matmul_at(d, i, &a, &b, &c);
            c += m * d->c_row;
            for (int64_t n = 0; n < d->n; n++) {
                double sum = d->accumulate ? c[n] : 0.0;
                for (int64_t k = 0; k < d->k; k++)
                    sum += (double)a[m * d->a_row + k * d->a_col] * b[k * d->b_row + n * d->b_col];
                c[n] = (float)sum;
            }
            if (d->epilogue && d->n)
                d->epilogue(d->epilogue_context, c, d->c_row, i * d->m + m, 0, 1, d->n);
        }
}

/* ----------------------------------------------------------------------------- register tiles */

ZFI_INLINE int64_t zfi_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

ZFI_INLINE int64_t zfi_min(int64_t a, int64_t b) { return a < b ? a : b; }

ZFI_INLINE int64_t zfi_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* One tile over one block of k: c[i,:] (+)= sum over p of a[i * a_row + p * a_col] * b[p * b_row +
 * :]; whole vectors of columns only. */
typedef void zfi_micro(int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                       int64_t b_row, float *c, int64_t c_row, bool add);

/* Packs lanes into panels of `width`, one behind the other: dst[(i * k + p) * width + l] = element
 * p of lane i * width + l. In a last panel that is not full the rest gets some number. */
typedef void zfi_pack(float *dst, int64_t width, const float *src, int64_t lane_stride,
                      int64_t k_stride, int64_t lanes, int64_t k);

enum { ZFI_TILE_ROWS = 14, ZFI_TILE_COLUMNS = 32 }; /* of the largest tile */

typedef struct zfi_tile {
    int rows, lanes;                    /* tiles are at most rows x (2 * lanes) */
    zfi_micro *micro[ZFI_TILE_ROWS][2]; /* [rows - 1][vectors - 1] */
    zfi_pack *pack;
} zfi_tile;

#if defined(__GNUC__)
#define ZFI_PREFETCH(p)       __builtin_prefetch((p), 0)
#define ZFI_PREFETCH_WRITE(p) __builtin_prefetch((p), 1)
#else
#define ZFI_PREFETCH(p)       (void)0
#define ZFI_PREFETCH_WRITE(p) (void)0
#endif

/* The tile in terms of one instruction set's vector: rows and vectors are constants where it is
 * called, so that `sum` becomes registers. */
#define ZFI_MICRO_BODY(name, attributes, vector, lanes, set1, load, store, fma, plus)              \
    attributes ZFI_BODY void name(const int rows, const int vectors, int64_t k, const float *a,    \
                                  int64_t a_row, int64_t a_col, const float *b, int64_t b_row,     \
                                  float *c, int64_t c_row, bool add)                               \
    {                                                                                              \
        vector sum[ZFI_TILE_ROWS][2], row[2];                                                      \
        ZFI_UNROLL                                                                                 \
        for (int i = 0; i < rows; i++) {                                                           \
            ZFI_UNROLL                                                                             \
            for (int j = 0; j < vectors; j++) {                                                    \
                ZFI_PREFETCH_WRITE(c + i * c_row + j * lanes);                                     \
                sum[i][j] = set1(0.0f);                                                            \
            }                                                                                      \
        }                                                                                          \
        for (int64_t p = 0; p < k; p++, a += a_col, b += b_row) {                                  \
            ZFI_UNROLL                                                                             \
            for (int j = 0; j < vectors; j++) row[j] = load(b + j * lanes);                        \
            ZFI_UNROLL                                                                             \
            for (int i = 0; i < rows; i++) {                                                       \
                vector of_a = set1(a[i * a_row]);                                                  \
                ZFI_UNROLL                                                                         \
                for (int j = 0; j < vectors; j++) sum[i][j] = fma(of_a, row[j], sum[i][j]);        \
            }                                                                                      \
        }                                                                                          \
        ZFI_UNROLL                                                                                 \
        for (int i = 0; i < rows; i++) {                                                           \
            ZFI_UNROLL                                                                             \
            for (int j = 0; j < vectors; j++) {                                                    \
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
#define ZFI_MICRO_ROW(name, rows)                                                                  \
    {                                                                                              \
        name##_##rows##x1, name##_##rows##x2                                                       \
    }
#define ZFI_MICROS(name, attributes, rows)                                                         \
    ZFI_MICRO(name, attributes, rows, 1) ZFI_MICRO(name, attributes, rows, 2)

/* Any strides, an element at a time. */
ZFI_BODY void zfi_pack_plain(float *restrict dst, int64_t width, const float *restrict src,
                             int64_t lane_stride, int64_t k_stride, int64_t lanes, int64_t k)
{
    for (int64_t l = 0; l < lanes; l += width, dst += width * k)
        for (int64_t p = 0; p < k; p++)
            for (int64_t i = 0; i < width; i++)
                dst[p * width + i] =
                    l + i < lanes ? src[(l + i) * lane_stride + p * k_stride] : 0.0f;
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
ZFI_MICRO_BODY(zfi_micro_portable_body, , zfi_f4, ZFI_PORTABLE_LANES, zfi_f4_set1, zfi_f4_load,
               zfi_f4_store, ZFI_F4_FMA, ZFI_F4_ADD)
ZFI_MICROS(zfi_micro_portable, , 1)
ZFI_MICROS(zfi_micro_portable, , 2)
ZFI_MICROS(zfi_micro_portable, , 3)
ZFI_MICROS(zfi_micro_portable, , 4)
ZFI_MICROS(zfi_micro_portable, , 5)
ZFI_MICROS(zfi_micro_portable, , 6)

ZFI_OPTIMIZE static void zfi_pack_portable(float *dst, int64_t width, const float *src,
                                           int64_t lane_stride, int64_t k_stride, int64_t lanes,
                                           int64_t k)
{
    zfi_pack_plain(dst, width, src, lane_stride, k_stride, lanes, k);
}

static const zfi_tile zfi_tile_portable = {
    6,
    ZFI_PORTABLE_LANES,
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

/* Lanes that are neighbours are copied, one k after the other. Where k runs along memory, blocks of
 * 8 lanes x 8 k are transposed in registers. Either way what comes next is far from what came last:
 * it is fetched ahead. */
ZFI_TARGET_AVX2 ZFI_OPTIMIZE static void zfi_pack_avx2(float *dst, int64_t width, const float *src,
                                                       int64_t lane_stride, int64_t k_stride,
                                                       int64_t lanes, int64_t k)
{
    if (lane_stride == 1 && width >= 4) {
        for (int64_t p = 0; p < k; p++) {
            const float *row = src + p * k_stride;
            float *to = dst + p * width;
            int64_t l = 0;
            for (; l + width <= lanes; l += width, to += width * k) {
                ZFI_PREFETCH(row + 8 * k_stride + l);
                if (width == 16) {
                    _mm256_storeu_ps(to, _mm256_loadu_ps(row + l));
                    _mm256_storeu_ps(to + 8, _mm256_loadu_ps(row + l + 8));
                } else { /* 4 to 8 of them */
                    __m128 head = _mm_loadu_ps(row + l), tail = _mm_loadu_ps(row + l + width - 4);
                    _mm_storeu_ps(to, head);
                    _mm_storeu_ps(to + width - 4, tail);
                }
            }
            for (int64_t i = 0; l < lanes && i < width; i++)
                to[i] = l + i < lanes ? row[l + i] : 0.0f;
        }
        return;
    }
    if (k_stride != 1) {
        zfi_pack_plain(dst, width, src, lane_stride, k_stride, lanes, k);
        return;
    }
    for (int64_t panel = 0; panel < lanes; panel += width, dst += width * k)
        for (int64_t l = 0; l < width; l += 8) {
            const float *row[8];
            int64_t p = 0;
            for (int64_t i = 0; i < 8; i++)
                row[i] = src + zfi_min(panel + l + i, lanes - 1) * lane_stride;
            for (; p + 8 <= k; p += 8) {
                __m256 r[8], t[8];
                ZFI_UNROLL
                for (int i = 0; i < 8; i++) {
                    r[i] = _mm256_loadu_ps(row[i] + p);
                    ZFI_PREFETCH(row[i] + 8 * lane_stride + p);
                }
                ZFI_UNROLL
                for (int i = 0; i < 8; i += 2) {
                    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
                    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
                }
                ZFI_UNROLL
                for (int i = 0; i < 8; i += 4) {
                    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
                    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
                    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
                    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
                }
                ZFI_UNROLL
                for (int i = 0; i < 4; i++)
                    _mm256_storeu_ps(dst + (p + i) * width + l,
                                     _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
                ZFI_UNROLL
                for (int i = 0; i < 4; i++)
                    _mm256_storeu_ps(dst + (p + 4 + i) * width + l,
                                     _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
            }
            for (; p < k; p++)
                for (int64_t i = 0; i < 8 && l + i < width; i++) dst[p * width + l + i] = row[i][p];
        }
}

static const zfi_tile zfi_tile_avx2 = {
    6,
    8,
    {ZFI_MICRO_ROW(zfi_micro_avx2, 1), ZFI_MICRO_ROW(zfi_micro_avx2, 2),
     ZFI_MICRO_ROW(zfi_micro_avx2, 3), ZFI_MICRO_ROW(zfi_micro_avx2, 4),
     ZFI_MICRO_ROW(zfi_micro_avx2, 5), ZFI_MICRO_ROW(zfi_micro_avx2, 6)},
    zfi_pack_avx2};

ZFI_MICRO_BODY(zfi_micro_avx512_body, ZFI_TARGET_AVX512, __m512, 16, _mm512_set1_ps,
               _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_add_ps)
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

/* The same with 16 lanes and 16 k. */
ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_pack_avx512(float *dst, int64_t width,
                                                           const float *src, int64_t lane_stride,
                                                           int64_t k_stride, int64_t lanes,
                                                           int64_t k)
{
    if (lane_stride == 1 && (width == 32 || width < 16)) {
        __mmask16 low = (__mmask16)(width == 32 ? 0xffff : (1 << width) - 1);
        for (int64_t p = 0; p < k; p++) {
            const float *row = src + p * k_stride;
            float *to = dst + p * width;
            int64_t l = 0;
            for (; l + width <= lanes; l += width, to += width * k) {
                ZFI_PREFETCH(row + 8 * k_stride + l);
                ZFI_PREFETCH(row + 8 * k_stride + l + width / 2);
                _mm512_mask_storeu_ps(to, low, _mm512_maskz_loadu_ps(low, row + l));
                if (width == 32) _mm512_storeu_ps(to + 16, _mm512_loadu_ps(row + l + 16));
            }
            for (int64_t i = 0; l < lanes && i < width; i += 16) {
                int64_t more = zfi_max(0, zfi_min(16, lanes - l - i));
                __m512 v = _mm512_maskz_loadu_ps((__mmask16)((1 << more) - 1), row + l + i);
                _mm512_mask_storeu_ps(to + i, low, v);
            }
        }
        return;
    }
    if (k_stride != 1) {
        zfi_pack_plain(dst, width, src, lane_stride, k_stride, lanes, k);
        return;
    }
    for (int64_t panel = 0; panel < lanes; panel += width, dst += width * k)
        for (int64_t l = 0; l < width; l += 16) {
            const float *row[16];
            for (int64_t i = 0; i < 16; i++)
                row[i] = src + zfi_min(panel + l + i, lanes - 1) * lane_stride;
            __mmask16 store = (__mmask16)(width - l >= 16 ? 0xffff : (1 << (width - l)) - 1);
            for (int64_t p = 0; p < k; p += 16) {
                __mmask16 mask = (__mmask16)(k - p >= 16 ? 0xffff : (1 << (k - p)) - 1);
                __m512 r[16], t[16];
                ZFI_UNROLL
                for (int i = 0; i < 16; i++) {
                    r[i] = _mm512_maskz_loadu_ps(mask, row[i] + p);
                    ZFI_PREFETCH(row[i] + 16 * lane_stride + p);
                }
                ZFI_UNROLL
                for (int i = 0; i < 16; i += 2) {
                    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
                    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
                }
                ZFI_UNROLL
                for (int i = 0; i < 16; i += 4) {
                    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
                    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
                    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
                    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
                }
                ZFI_UNROLL
                for (int i = 0; i < 4; i++) {
                    __m512 even01 = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
                    __m512 odd01 = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
                    __m512 even23 = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
                    __m512 odd23 = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
                    t[i] = _mm512_shuffle_f32x4(even01, even23, 0x88);
                    t[i + 4] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
                    t[i + 8] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
                    t[i + 12] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
                }
                ZFI_UNROLL
                for (int i = 0; i < 16; i++)
                    if (i < k - p) _mm512_mask_storeu_ps(dst + (p + i) * width + l, store, t[i]);
            }
        }
}

static const zfi_tile zfi_tile_avx512 = {
    14,
    16,
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
ZFI_MICRO_BODY(zfi_micro_neon_body, , float32x4_t, 4, vdupq_n_f32, vld1q_f32, vst1q_f32,
               ZFI_NEON_FMA, vaddq_f32)
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
    12,
    4,
    {ZFI_MICRO_ROW(zfi_micro_neon, 1), ZFI_MICRO_ROW(zfi_micro_neon, 2),
     ZFI_MICRO_ROW(zfi_micro_neon, 3), ZFI_MICRO_ROW(zfi_micro_neon, 4),
     ZFI_MICRO_ROW(zfi_micro_neon, 5), ZFI_MICRO_ROW(zfi_micro_neon, 6),
     ZFI_MICRO_ROW(zfi_micro_neon, 7), ZFI_MICRO_ROW(zfi_micro_neon, 8),
     ZFI_MICRO_ROW(zfi_micro_neon, 9), ZFI_MICRO_ROW(zfi_micro_neon, 10),
     ZFI_MICRO_ROW(zfi_micro_neon, 11), ZFI_MICRO_ROW(zfi_micro_neon, 12)},
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
    ZFI_K_BLOCK = 512, /* k of a block at most */
    ZFI_IN_PLACE =
        1 << 17,           /* elements of B that all tasks read in place before the next: 512 KiB */
    ZFI_SPAN = 256,        /* columns of a finished block */
    ZFI_GROUP = 84,        /* rows that go over a panel of B before the next panel */
    ZFI_ROWS_TO_PACK = 192 /* rows that are worth to pack B for once more */
};

/* How a product is cut: by its shape and strides, the instruction set and the number of threads. Of
 * all this only k_block has a say in the result. */
typedef struct zfi_matmul_plan {
    const zfi_tile *tile;
    int64_t columns;              /* of a tile */
    int64_t rows, panels;         /* rows of a panel of A (but the last), and how many there are */
    int64_t k_block;              /* of each but the last */
    int64_t group;                /* panels of A that go together, and are packed together */
    bool direct_a, direct_b;      /* read where it lies */
    int64_t chunk;                /* k that all tasks do before the next: a multiple of k_block */
    int64_t task, span;           /* panels and columns of a task */
    size_t a_size, b_size, bytes; /* scratch: elements of A and of B for a thread; all of it */
} zfi_matmul_plan;

/* Whether rows of a tile's width at this distance may stay where they lie: they do not crowd into
 * few sets of a cache (a way of the first level has 4 KiB) or are not needed again and again, and
 * there are several on a page. */
static bool zfi_short_rows(int64_t stride, int64_t uses)
{
    return stride > 0 && stride < 1024 && (stride % 512 || uses <= 4);
}

static int64_t zfi_round_up(int64_t n, int64_t unit) { return zfi_div_up(n, unit) * unit; }

static zfi_matmul_plan zfi_matmul_plan_of(zfi_isa isa, int threads, const zfi_matmul_desc *d)
{
    zfi_matmul_plan plan = {.tile = zfi_tile_of(isa)};
    int64_t columns = 2 * plan.tile->lanes, n = zfi_round_up(d->n, columns), spans, groups;
    int64_t wanted = zfi_div_up(8 * (int64_t)threads, zfi_matmul_count(d)); /* tasks of a matrix */
    plan.columns = columns;
    plan.rows = zfi_div_up(d->m, zfi_div_up(d->m, plan.tile->rows));
    plan.panels = zfi_div_up(d->m, plan.rows);
    plan.k_block = zfi_div_up(d->k, zfi_div_up(d->k, ZFI_K_BLOCK));
    plan.group = zfi_min(ZFI_GROUP / plan.tile->rows, plan.panels);
    /* many rows along k at a distance of 4 KiB are all in one set, and too much for it */
    plan.direct_a = (d->a_col == 1 && (d->a_row % 1024 || plan.rows <= 6)) ||
                    (d->a_row == 1 && zfi_short_rows(d->a_col, n / columns));
    plan.direct_b = d->b_col == 1 && d->n % plan.tile->lanes == 0 &&
                    (plan.panels == 1 || zfi_short_rows(d->b_row, plan.panels));
    plan.chunk = zfi_round_up(d->k, plan.k_block);
    if (plan.panels <= plan.group) {
        groups = 1;
        spans = zfi_max(zfi_div_up(n, ZFI_SPAN), wanted);
    } else if (plan.direct_b) {
        plan.chunk = zfi_max(1, ZFI_IN_PLACE / n / plan.k_block) * plan.k_block;
        groups = zfi_max(zfi_min(plan.panels, wanted), zfi_div_up(plan.panels, plan.group));
        spans = zfi_div_up(wanted, groups);
    } else {
        groups = zfi_max(1, zfi_min(d->m / ZFI_ROWS_TO_PACK, zfi_div_up(wanted, 8)));
        spans = zfi_max(zfi_div_up(n, ZFI_SPAN), zfi_div_up(wanted, groups));
    }
    if (!plan.direct_a && plan.panels > plan.group) { /* it is packed for each span */
        spans = zfi_min(spans, zfi_div_up(n, ZFI_SPAN));
        groups = zfi_max(groups,
                         zfi_min(zfi_div_up(wanted, spans), zfi_div_up(plan.panels, plan.group)));
    }
    plan.task = plan.direct_b ? zfi_max(1, plan.panels / groups) : zfi_div_up(plan.panels, groups);
    plan.span = zfi_round_up(zfi_div_up(n, spans), columns);
    if (!plan.direct_a)
        plan.a_size = (size_t)zfi_round_up(plan.group * plan.rows * plan.k_block, 16);
    if (!plan.direct_b) plan.b_size = (size_t)zfi_round_up(plan.k_block * plan.span, 16);
    plan.bytes = (size_t)threads * (plan.a_size + plan.b_size) * sizeof(float);
    return plan;
}

typedef struct zfi_matmul_run {
    zfi_matmul_plan plan;
    const zfi_matmul_desc *d;
    float *scratch;
    int64_t chunk; /* of k: where it begins */
} zfi_matmul_run;

/* c[0..rows,0..columns) (+)= one block of k; a tile that is not whole goes by a whole one aside. */
static void zfi_matmul_tile(const zfi_matmul_plan *plan, int64_t rows, int64_t columns, int64_t k,
                            const float *a, int64_t a_row, int64_t a_col, const float *b,
                            int64_t b_row, float *c, int64_t c_row, bool add)
{
    int vectors = columns > plan->tile->lanes ? 2 : 1;
    zfi_micro *micro = plan->tile->micro[rows - 1][vectors - 1];
    float aside[ZFI_TILE_ROWS * ZFI_TILE_COLUMNS];
    if (columns == vectors * plan->tile->lanes) {
        micro(k, a, a_row, a_col, b, b_row, c, c_row, add);
        return;
    }
    micro(k, a, a_row, a_col, b, b_row, aside, plan->columns, false);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            float value = aside[i * plan->columns + j];
            c[i * c_row + j] = add ? c[i * c_row + j] + value : value;
        }
}

/* The work of one task: panels, columns n0..n0+n-1, k of the chunk. */
static void zfi_matmul_task(void *context, int64_t index, int worker)
{
    const zfi_matmul_run *run = context;
    const zfi_matmul_desc *d = run->d;
    const zfi_matmul_plan *plan = &run->plan;
    size_t sizes = plan->a_size + plan->b_size; /* 0 where nothing is packed */
    float *packed_a = sizes ? run->scratch + (size_t)worker * sizes : NULL, *c;
    float *packed_b = sizes ? packed_a + plan->a_size : NULL;
    int64_t spans = zfi_div_up(d->n, plan->span), groups = zfi_div_up(plan->panels, plan->task);
    int64_t matrix = index / spans / groups, group = plan->group * plan->rows;
    int64_t m0 = index / spans % groups * plan->task * plan->rows, n0 = index % spans * plan->span;
    int64_t m_end = zfi_min(m0 + plan->task * plan->rows, d->m), n = zfi_min(plan->span, d->n - n0);
    int64_t k_end = zfi_min(run->chunk + plan->chunk, d->k), k;
    const float *a, *b;
    zfi_matmul_at(d, matrix, &a, &b, &c);
    for (int64_t k0 = run->chunk; k0 < k_end; k0 += k) {
        const float *from_b = b + k0 * d->b_row + n0 * d->b_col;
        int64_t b_row = d->b_row, b_step = 1;
        bool add = d->accumulate || k0 > 0;
        k = zfi_min(plan->k_block, k_end - k0);
        if (!plan->direct_b) {
            plan->tile->pack(packed_b, plan->columns, from_b, d->b_col, d->b_row, n, k);
            from_b = packed_b, b_row = plan->columns, b_step = k;
        }
        for (int64_t m = m0; m < m_end; m += group) {
            int64_t rows = zfi_min(group, m_end - m);
            const float *from_a = a + m * d->a_row + k0 * d->a_col;
            int64_t a_row = d->a_row, a_col = d->a_col, a_step = d->a_row;
            if (!plan->direct_a) {
                plan->tile->pack(packed_a, plan->rows, from_a, d->a_row, d->a_col, rows, k);
                from_a = packed_a, a_row = 1, a_col = plan->rows, a_step = k;
            }
            for (int64_t span = 0; span < n; span += ZFI_SPAN) {
                int64_t span_end = zfi_min(span + ZFI_SPAN, n);
                float *at = c + m * d->c_row + n0;
                for (int64_t j = span; j < span_end; j += plan->columns)
                    for (int64_t i = 0; i < rows; i += plan->rows)
                        zfi_matmul_tile(plan, zfi_min(plan->rows, rows - i),
                                        zfi_min(plan->columns, n - j), k, from_a + i * a_step,
                                        a_row, a_col, from_b + j * b_step, b_row,
                                        at + i * d->c_row + j, d->c_row, add);
                if (k0 + k == d->k && d->epilogue)
                    d->epilogue(d->epilogue_context, at + span, d->c_row, matrix * d->m + m,
                                n0 + span, rows, span_end - span);
            }
        }
    }
}

/* k is 0: a sum of nothing. */
static void zfi_matmul_nothing_task(void *context, int64_t index, int worker)
{
    const zfi_matmul_desc *d = ((const zfi_matmul_run *)context)->d;
    const float *a, *b;
    float *c;
    (void)worker;
    zfi_matmul_at(d, index, &a, &b, &c);
    for (int64_t m = 0; m < d->m && !d->accumulate; m++)
        memset(c + m * d->c_row, 0, (size_t)d->n * sizeof *c);
    if (d->epilogue) d->epilogue(d->epilogue_context, c, d->c_row, index * d->m, 0, d->m, d->n);
}

/* A column is as good as a row, and a row of C goes by whole vectors: C^T = B^T A^T. */
static zfi_matmul_desc zfi_matmul_turned(const zfi_matmul_desc *d)
{
    zfi_matmul_desc t = *d;
    if (d->n != 1 || d->m == 1 || d->c_row != 1 || d->epilogue) return t;
    t.m = 1, t.n = d->m;
    t.a = d->b, t.a_row = d->b_col, t.a_col = d->b_row, t.a_batch = d->b_batch,
    t.a_outer = d->b_outer;
    t.b = d->a, t.b_row = d->a_col, t.b_col = d->a_row, t.b_batch = d->a_batch,
    t.b_outer = d->a_outer;
    t.c_row = t.n;
    return t;
}

/* Bytes of scratch that zfi_matmul_tiled needs on a pool of `threads`: a function of all of *d but
 * the pointers. */
ZFI_UNUSED static size_t zfi_matmul_tiled_scratch(zfi_isa isa, int threads,
                                                  const zfi_matmul_desc *d)
{
    zfi_matmul_desc turned = zfi_matmul_turned(d);
    if (!d->m || !d->n || !d->k || !zfi_matmul_count(d)) return 0;
    return zfi_matmul_plan_of(isa, threads, &turned).bytes;
}

/* C = A B, or C += A B, on the pool's threads. `scratch` has zfi_matmul_tiled_scratch(isa, threads
 * of the pool, d) bytes aligned to 64. The result does not depend on the number of threads. */
ZFI_UNUSED static void zfi_matmul_tiled(zfi_isa isa, zfi_pool *pool, const zfi_matmul_desc *d,
                                        void *scratch)
{
    const zfi_matmul_desc turned = zfi_matmul_turned(d);
    int64_t matrices = zfi_matmul_count(d), tasks;
    zfi_matmul_run run = {.d = &turned, .scratch = scratch};
    if (!d->m || !d->n || !matrices) return;
    if (!d->k) {
        zfi_pool_run(pool, matrices, zfi_matmul_nothing_task, &run);
        return;
    }
    run.plan = zfi_matmul_plan_of(isa, zfi_pool_threads(pool), &turned);
    tasks =
        matrices * zfi_div_up(turned.n, run.plan.span) * zfi_div_up(run.plan.panels, run.plan.task);
    if ((double)matrices * (double)d->m * (double)d->n * (double)d->k < 0x1p17)
        pool = NULL; /* less work than it takes to wake a thread */
    for (run.chunk = 0; run.chunk < d->k; run.chunk += run.plan.chunk)
        zfi_pool_run(pool, tasks, zfi_matmul_task, &run);
}

/* ------------------------------------------------------------------------------------- a BLAS */

#if defined(ZEROFLOW_CBLAS)
#include <cblas.h>

/* How BLAS takes an operand with these strides: transposed or not, and its leading dimension in
 * *ld; 0 when it cannot. */
static CBLAS_TRANSPOSE zfi_matmul_blas_form(int64_t rows, int64_t columns, int64_t row,
                                            int64_t column, int *ld)
{
    bool plain = (column == 1 || columns == 1) && (row >= columns || rows == 1);
    bool turned = (row == 1 || rows == 1) && (column >= rows || columns == 1);
    int64_t lead =
        plain ? zfi_max(rows == 1 ? 1 : row, columns) : zfi_max(columns == 1 ? 1 : column, rows);
    *ld = (int)lead;
    if (lead > INT32_MAX || rows > INT32_MAX || columns > INT32_MAX) return (CBLAS_TRANSPOSE)0;
    return plain ? CblasNoTrans : turned ? CblasTrans : (CBLAS_TRANSPOSE)0;
}

typedef struct zfi_matmul_blas {
    CBLAS_TRANSPOSE a, b;
    int a_ld, b_ld, c_ld;
} zfi_matmul_blas;

static bool zfi_matmul_blas_of(const zfi_matmul_desc *d, zfi_matmul_blas *blas)
{
    if (!d->m || !d->n || !d->k || !zfi_matmul_count(d)) return false;
    blas->a = zfi_matmul_blas_form(d->m, d->k, d->a_row, d->a_col, &blas->a_ld);
    blas->b = zfi_matmul_blas_form(d->k, d->n, d->b_row, d->b_col, &blas->b_ld);
    return blas->a && blas->b &&
           zfi_matmul_blas_form(d->m, d->n, d->c_row, 1, &blas->c_ld) == CblasNoTrans;
}

enum { ZFI_BLAS_ROWS = 64 };

static void zfi_matmul_blas_epilogue(void *context, int64_t index, int worker)
{
    const zfi_matmul_desc *d = context;
    int64_t groups = zfi_div_up(d->m, ZFI_BLAS_ROWS), m = index % groups * ZFI_BLAS_ROWS;
    const float *a, *b;
    float *c;
    (void)worker;
    zfi_matmul_at(d, index / groups, &a, &b, &c);
    d->epilogue(d->epilogue_context, c + m * d->c_row, d->c_row, index / groups * d->m + m, 0,
                zfi_min(ZFI_BLAS_ROWS, d->m - m), d->n);
}
#endif

/* Bytes of scratch that zfi_matmul needs on a pool of `threads`: a function of all of *d but the
 * pointers. */
ZFI_UNUSED static size_t zfi_matmul_scratch(zfi_isa isa, int threads, const zfi_matmul_desc *d)
{
#if defined(ZEROFLOW_CBLAS)
    zfi_matmul_blas blas;
    if (zfi_matmul_blas_of(d, &blas)) return 0;
#endif
    return zfi_matmul_tiled_scratch(isa, threads, d);
}

/* zfi_matmul_tiled; with ZEROFLOW_CBLAS the linked BLAS where it can, on its own threads and with
 * its own bits. */
ZFI_UNUSED static void zfi_matmul(zfi_isa isa, zfi_pool *pool, const zfi_matmul_desc *d,
                                  void *scratch)
{
#if defined(ZEROFLOW_CBLAS)
    zfi_matmul_blas blas;
    if (zfi_matmul_blas_of(d, &blas)) {
        zfi_matmul_desc copy = *d;
        for (int64_t i = 0; i < zfi_matmul_count(d); i++) {
            const float *a, *b;
            float *c;
            zfi_matmul_at(d, i, &a, &b, &c);
            cblas_sgemm(CblasRowMajor, blas.a, blas.b, (int)d->m, (int)d->n, (int)d->k, 1.0f, a,
                        blas.a_ld, b, blas.b_ld, d->accumulate ? 1.0f : 0.0f, c, blas.c_ld);
        }
        if (d->epilogue)
            zfi_pool_run(pool, zfi_matmul_count(d) * zfi_div_up(d->m, ZFI_BLAS_ROWS),
                         zfi_matmul_blas_epilogue, &copy);
        return;
    }
#endif
    zfi_matmul_tiled(isa, pool, d, scratch);
}
