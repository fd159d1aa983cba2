/* Register tiles of the matrix product (matmul.c), and the packing of what they read.
 *
 * A tile reads words of 4 bytes: a word is an f32, or (tile16.c) two neighbours of k in bf16. It
 * keeps some rows times one or two vectors of columns of C in registers while k runs:
 *
 *                            b    | 16 words | 16 words |
 *              a  | word |        +----------+----------+
 *                 | word |        |  sums    |  sums    |
 *                 | ...  |        |  ...     |  ...     |
 */

ZFI_INLINE int64_t zfi_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

ZFI_INLINE int64_t zfi_min(int64_t a, int64_t b) { return a < b ? a : b; }

ZFI_INLINE int64_t zfi_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* One tile over one block of k words: c[i,:] (+)= sum over p of a[i * a_row + p * a_col] *
 * b[p * b_row + :]; whole vectors of columns only. Strides are in words; a need not be aligned. */
typedef void zfi_micro(int64_t k, const void *a, int64_t a_row, int64_t a_col, const float *b,
                       int64_t b_row, float *c, int64_t c_row, bool add);

/* Packs lanes into panels of `width`, one after the other: dst[(i * words + p) * width + l] = word
 * p of lane i * width + l. In a partial last panel the rest is unspecified. k and the
 * strides are in elements of src. */
typedef void zfi_pack(float *dst, int64_t width, const void *src, int64_t lane_stride,
                      int64_t k_stride, int64_t lanes, int64_t k);

enum {
    ZFI_TILE_ROWS = 14,    /* of the largest tile in vectors */
    ZFI_TILE_COLUMNS = 32, /* of the largest tile */
    ZFI_BLOCK_ROWS = 32,   /* of the largest tile of all */
    ZFI_K_BLOCK = 512,
    ZFI_GROUP = 84,
    ZFI_TASKS = 8
};

/* A column of tiles: c[0..rows,:] (+)= a b, `panel` rows a tile but the last. a has k along memory,
 * b is packed, and k is a multiple of k_unit; one vector of columns, or two (`wide`). */
typedef void zfi_tile_column(int64_t rows, int64_t panel, bool wide, int64_t k, const void *a,
                             int64_t a_row, const float *b, float *c, int64_t c_row, bool add);

typedef struct zfi_tile {
    int rows, lanes;                    /* tiles are at most rows x (2 * lanes) */
    int per_word;                       /* elements of k in a word */
    int k_unit;                         /* words: packed k is filled with zeros to a multiple */
    int k_block;                        /* words of a block of k at most, a multiple of k_unit */
    int group;                          /* rows that go over a panel of B before the next panel */
    int keep;                           /* rows of A that a thread packs once; 0: none */
    int tasks;                          /* of a thread: more share the work evenly, but pack more */
    zfi_micro *micro[ZFI_TILE_ROWS][2]; /* [rows - 1][vectors - 1] */
    zfi_tile_column *column;            /* instead of micro, or NULL */
    zfi_pack *pack;
    zfi_pack *pack_a; /* where A's panels have k along memory: [rows][words]; NULL: as B's */
} zfi_tile;

/* The word at p, which may lie anywhere. */
ZFI_INLINE float zfi_word_at(const void *p)
{
    float word;
    memcpy(&word, p, sizeof word);
    return word;
}

#if defined(__GNUC__)
#define ZFI_PREFETCH(p)       __builtin_prefetch((p), 0)
#define ZFI_PREFETCH_FAR(p)   __builtin_prefetch((p), 0, 2) /* to the second-level cache */
#define ZFI_PREFETCH_WRITE(p) __builtin_prefetch((p), 1)
/* Has the compiler forget how x was computed, and hence not compute it in another way. */
#define ZFI_OPAQUE(x) __asm__("" : "+r"(x))
#else
#define ZFI_PREFETCH(p)       (void)0
#define ZFI_PREFETCH_FAR(p)   (void)0
#define ZFI_PREFETCH_WRITE(p) (void)0
#define ZFI_OPAQUE(x)         (void)0
#endif

/* Brings bytes to the nearest cache while others are computed with. Always inline, as all that only
 * prefetches must be: gcc drops calls of functions that have no effect. */
ZFI_INLINE void zfi_prefetch_bytes(const void *at, int64_t bytes)
{
    for (int64_t k = 0; k < bytes; k += 64) ZFI_PREFETCH((const char *)at + k);
}

/* c (+)= sum[rows][vectors], of the tile's and of that of strips (tile_strip.c). */
#define ZFI_TILE_STORE(rows, vectors, lanes, sum, c, c_row, add, load, store, plus)                \
    ZFI_UNROLL                                                                                     \
    for (int i = 0; i < rows; i++) {                                                               \
        ZFI_UNROLL                                                                                 \
        for (int j = 0; j < vectors; j++) {                                                        \
            float *to = c + i * c_row + j * lanes;                                                 \
            store(to, add ? plus(load(to), sum[i][j]) : sum[i][j]);                                \
        }                                                                                          \
    }

/* The tile in terms of one instruction set's vector: rows and vectors are constants where it is
 * called, so that `sum` becomes registers. Addresses of more than six rows of A are pointers to
 * every fifth and multiples of one stride: one register for each row is more than there are. What
 * is read eight words of k later is fetched, a cache line of B at a time: rows of B in place, and
 * of an A in place whose rows are neighbours, are far from each other. */
#define ZFI_MICRO_BODY(name, attributes, vector, lanes, set1, load, store, fma, plus)              \
    attributes ZFI_BODY void name(const int rows, const int vectors, int64_t k, const char *a,     \
                                  int64_t a_row, int64_t a_col, const float *b, int64_t b_row,     \
                                  float *c, int64_t c_row, bool add)                               \
    {                                                                                              \
        vector sum[ZFI_TILE_ROWS][2], row[2];                                                      \
        int64_t one = 4 * a_row, three = 3 * one, step = 4 * a_col, ahead = 8 * b_row;             \
        const char *a5 = rows > 6 ? a + 5 * one : a, *a10 = rows > 10 ? a5 + 5 * one : a;          \
        ZFI_UNROLL                                                                                 \
        for (int i = 0; i < rows; i++) {                                                           \
            ZFI_UNROLL                                                                             \
            for (int j = 0; j < vectors; j++) {                                                    \
                ZFI_PREFETCH_WRITE(c + i * c_row + j * lanes);                                     \
                sum[i][j] = set1(0.0f);                                                            \
            }                                                                                      \
        }                                                                                          \
        for (int64_t p = 0; p < k; p++, a += step, a5 += step, a10 += step, b += b_row) {          \
            if (rows > 6) {                                                                        \
                ZFI_OPAQUE(a);                                                                     \
                ZFI_OPAQUE(a5);                                                                    \
                ZFI_OPAQUE(a10);                                                                   \
                ZFI_OPAQUE(one);                                                                   \
                ZFI_OPAQUE(three);                                                                 \
            }                                                                                      \
            ZFI_UNROLL                                                                             \
            for (int j = 0; j < vectors; j++) {                                                    \
                row[j] = load(b + j * lanes);                                                      \
                if (j * lanes % 16 == 0) ZFI_PREFETCH(b + ahead + j * lanes);                      \
            }                                                                                      \
            ZFI_PREFETCH(a + 8 * step);                                                            \
            if (rows > 6) ZFI_PREFETCH(a + 8 * step + (rows - 1) * one);                           \
            ZFI_UNROLL                                                                             \
            for (int i = 0; i < rows; i++) {                                                       \
                const char *at = rows <= 6 || i < 5 ? a : i < 10 ? a5 : a10;                       \
                vector of_a;                                                                       \
                at += rows <= 6 ? i * one : i % 5 == 3 ? three : i % 5 * one;                      \
                of_a = set1(zfi_word_at(at));                                                      \
                ZFI_UNROLL                                                                         \
                for (int j = 0; j < vectors; j++) sum[i][j] = fma(of_a, row[j], sum[i][j]);        \
            }                                                                                      \
        }                                                                                          \
        ZFI_TILE_STORE(rows, vectors, lanes, sum, c, c_row, add, load, store, plus)                \
    }

#define ZFI_MICRO(name, attributes, rows, vectors)                                                 \
    attributes ZFI_OPTIMIZE static void name##_##rows##x##vectors(                                 \
        int64_t k, const void *a, int64_t a_row, int64_t a_col, const float *b, int64_t b_row,     \
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

/* All of up to so many rows, and the table of them. */
#define ZFI_MICROS_6(name, attributes)                                                             \
    ZFI_MICROS(name, attributes, 1)                                                                \
    ZFI_MICROS(name, attributes, 2)                                                                \
    ZFI_MICROS(name, attributes, 3)                                                                \
    ZFI_MICROS(name, attributes, 4)                                                                \
    ZFI_MICROS(name, attributes, 5)                                                                \
    ZFI_MICROS(name, attributes, 6)
#define ZFI_MICROS_12(name, attributes)                                                            \
    ZFI_MICROS_6(name, attributes)                                                                 \
    ZFI_MICROS(name, attributes, 7)                                                                \
    ZFI_MICROS(name, attributes, 8)                                                                \
    ZFI_MICROS(name, attributes, 9)                                                                \
    ZFI_MICROS(name, attributes, 10)                                                               \
    ZFI_MICROS(name, attributes, 11)                                                               \
    ZFI_MICROS(name, attributes, 12)
#define ZFI_MICROS_14(name, attributes)                                                            \
    ZFI_MICROS_12(name, attributes)                                                                \
    ZFI_MICROS(name, attributes, 13)                                                               \
    ZFI_MICROS(name, attributes, 14)
#define ZFI_MICRO_ROWS_6(name)                                                                     \
    ZFI_MICRO_ROW(name, 1), ZFI_MICRO_ROW(name, 2), ZFI_MICRO_ROW(name, 3),                        \
        ZFI_MICRO_ROW(name, 4), ZFI_MICRO_ROW(name, 5), ZFI_MICRO_ROW(name, 6)
#define ZFI_MICRO_ROWS_12(name)                                                                    \
    ZFI_MICRO_ROWS_6(name), ZFI_MICRO_ROW(name, 7), ZFI_MICRO_ROW(name, 8),                        \
        ZFI_MICRO_ROW(name, 9), ZFI_MICRO_ROW(name, 10), ZFI_MICRO_ROW(name, 11),                  \
        ZFI_MICRO_ROW(name, 12)
#define ZFI_MICRO_ROWS_14(name)                                                                    \
    ZFI_MICRO_ROWS_12(name), ZFI_MICRO_ROW(name, 13), ZFI_MICRO_ROW(name, 14)

/* How products are cut for tiles in vectors. */
#define ZFI_VECTOR_TILE                                                                            \
    .k_unit = 1, .k_block = ZFI_K_BLOCK, .group = ZFI_GROUP, .tasks = ZFI_TASKS

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
ZFI_MICROS_6(zfi_micro_portable, )

ZFI_OPTIMIZE static void zfi_pack_portable(float *dst, int64_t width, const void *src,
                                           int64_t lane_stride, int64_t k_stride, int64_t lanes,
                                           int64_t k)
{
    zfi_pack_plain(dst, width, src, lane_stride, k_stride, lanes, k);
}

static const zfi_tile zfi_tile_portable = {
    .rows = 6,
    .lanes = ZFI_PORTABLE_LANES,
    .per_word = 1,
    ZFI_VECTOR_TILE,
    .micro = {ZFI_MICRO_ROWS_6(zfi_micro_portable)},
    .pack = zfi_pack_portable,
};

#if ZFI_X86
ZFI_MICRO_BODY(zfi_micro_avx2_body, ZFI_TARGET_AVX2, __m256, 8, _mm256_set1_ps, _mm256_loadu_ps,
               _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_add_ps)
ZFI_MICROS_6(zfi_micro_avx2, ZFI_TARGET_AVX2)

/* r[i][j] and r[j][i] change places. */
ZFI_TARGET_AVX2 ZFI_INLINE void zfi_turn_eight(__m256 r[8])
{
    __m256 t[8];
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
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    ZFI_UNROLL
    for (int i = 0; i < 8; i++) r[i] = t[i];
}

/* Neighbouring lanes are copied, one k after the other. Where k runs along memory, blocks of 8
 * lanes x 8 k are transposed in registers. In both cases the next reads are far from the last
 * ones, so they are prefetched. */
ZFI_TARGET_AVX2 ZFI_OPTIMIZE static void zfi_pack_avx2(float *dst, int64_t width, const void *from,
                                                       int64_t lane_stride, int64_t k_stride,
                                                       int64_t lanes, int64_t k)
{
    const float *src = from;
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
            /* elements beyond the width are overwritten by the next row, but for the last row's */
            bool beyond = l + 8 > width && panel + width >= lanes;
            for (; p + 8 <= k - beyond; p += 8) {
                __m256 r[8];
                ZFI_UNROLL
                for (int i = 0; i < 8; i++) {
                    r[i] = _mm256_loadu_ps(row[i] + p);
                    ZFI_PREFETCH(row[i] + 8 * lane_stride + p);
                }
                zfi_turn_eight(r);
                ZFI_UNROLL
                for (int i = 0; i < 8; i++) _mm256_storeu_ps(dst + (p + i) * width + l, r[i]);
            }
            for (; p < k; p++)
                for (int64_t i = 0; i < 8 && l + i < width; i++) dst[p * width + l + i] = row[i][p];
        }
}

static const zfi_tile zfi_tile_avx2 = {
    .rows = 6,
    .lanes = 8,
    .per_word = 1,
    ZFI_VECTOR_TILE,
    .micro = {ZFI_MICRO_ROWS_6(zfi_micro_avx2)},
    .pack = zfi_pack_avx2,
};

ZFI_MICRO_BODY(zfi_micro_avx512_body, ZFI_TARGET_AVX512, __m512, 16, _mm512_set1_ps,
               _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_add_ps)
ZFI_MICROS_14(zfi_micro_avx512, ZFI_TARGET_AVX512)

/* r[i][j] and r[j][i] change places. */
ZFI_TARGET_AVX512 ZFI_INLINE void zfi_turn_sixteen(__m512 r[16])
{
    __m512 t[16];
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
    for (int i = 0; i < 16; i++) r[i] = t[i];
}

/* Packs words where k runs along memory, in blocks of 16 lanes x 16 words: lanes are `apart` bytes
 * from each other and have `halves` half words. A last half alone is followed by 0. */
ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_pack_turned(float *dst, int64_t width,
                                                           const void *src, int64_t apart,
                                                           int64_t lanes, int64_t halves)
{
    int64_t words = zfi_div_up(halves, 2);
    for (int64_t panel = 0; panel < lanes; panel += width, dst += width * words)
        for (int64_t l = 0; l < width; l += 16) {
            const char *row[16];
            for (int64_t i = 0; i < 16; i++)
                row[i] = (const char *)src + zfi_min(panel + l + i, lanes - 1) * apart;
            __mmask16 store = (__mmask16)(width - l >= 16 ? 0xffff : (1 << (width - l)) - 1);
            for (int64_t p = 0; p < words; p += 16) {
                int64_t rest = halves - 2 * p;
                __mmask32 mask = rest >= 32 ? UINT32_MAX : ((__mmask32)1 << rest) - 1;
                __m512 r[16];
                ZFI_UNROLL
                for (int i = 0; i < 16; i++) {
                    r[i] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, row[i] + 4 * p));
                    ZFI_PREFETCH(row[i] + 16 * apart + 4 * p);
                }
                zfi_turn_sixteen(r);
                ZFI_UNROLL
                for (int i = 0; i < 16; i++)
                    if (i < words - p)
                        _mm512_mask_storeu_ps(dst + (p + i) * width + l, store, r[i]);
            }
        }
}

/* The same with 16 lanes and 16 k. */
ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_pack_avx512(float *dst, int64_t width,
                                                           const void *from, int64_t lane_stride,
                                                           int64_t k_stride, int64_t lanes,
                                                           int64_t k)
{
    const float *src = from;
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
    if (k_stride == 1) zfi_pack_turned(dst, width, src, 4 * lane_stride, lanes, 2 * k);
    else zfi_pack_plain(dst, width, src, lane_stride, k_stride, lanes, k);
}

#define ZFI_AVX512_TILE                                                                            \
    .rows = 14, .lanes = 16, .per_word = 1, ZFI_VECTOR_TILE,                                       \
    .micro = {ZFI_MICRO_ROWS_14(zfi_micro_avx512)}, .pack = zfi_pack_avx512
static const zfi_tile zfi_tile_avx512 = {ZFI_AVX512_TILE};
#endif

#if ZFI_NEON
#define ZFI_NEON_FMA(a, b, c) vfmaq_f32((c), (a), (b))
ZFI_MICRO_BODY(zfi_micro_neon_body, , float32x4_t, 4, vdupq_n_f32, vld1q_f32, vst1q_f32,
               ZFI_NEON_FMA, vaddq_f32)
ZFI_MICROS_12(zfi_micro_neon, )

static const zfi_tile zfi_tile_neon = {
    .rows = 12,
    .lanes = 4,
    .per_word = 1,
    ZFI_VECTOR_TILE,
    .micro = {ZFI_MICRO_ROWS_12(zfi_micro_neon)},
    .pack = zfi_pack_portable,
};
#endif

static const zfi_tile *zfi_tile_of(zfi_isa isa)
{
#if ZFI_X86
    if (isa >= ZFI_ISA_AVX512) return &zfi_tile_avx512;
    if (isa == ZFI_ISA_AVX2) return &zfi_tile_avx2;
#elif ZFI_NEON
    if (isa == ZFI_ISA_NEON) return &zfi_tile_neon;
#endif
    (void)isa;
    return &zfi_tile_portable;
}
