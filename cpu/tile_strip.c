/* Register tiles of convolutions (ops/conv.c), which read strips: planes with zeros around them, one
 * row after the other. What a tap sees of a strip are its elements from some place on, so that taps
 * share memory.
 *
 *     a product    c[i][x] (+)= sum over p of a[p][i] b[at[p] + x], of 4 or 2 rows i and three
 *                  vectors of x, or of one row and eight
 *     dots         sums[i][j] += a[i][x] b[at[j] + x], for each lane, of 4 rows i or one, and 3 taps
 */

enum {
    ZFI_STRIP_ROWS = 4, /* of a product, and vectors of its columns: some rows, or one */
    ZFI_STRIP_WIDE = 3,
    ZFI_STRIP_VECTORS = 8,
    ZFI_STRIP_DOTS = 4, /* rows of dots, and taps */
    ZFI_STRIP_TAPS = 3
};

typedef void zfi_strip_product(int64_t k, const float *a, const float *b, const int64_t *at,
                               float *c, int64_t c_row, bool add);
typedef void zfi_strip_dots(int64_t n, const float *a, int64_t a_row, const float *b,
                            const int64_t *at, float *sums);

typedef struct zfi_strip_tile {
    int lanes;
    zfi_strip_product *one, *two, *four; /* by rows */
    zfi_strip_dots *dots[2];             /* of one row, and of ZFI_STRIP_DOTS */
} zfi_strip_tile;

#define ZFI_STRIP_BODIES(name, attributes, vector, lanes, set1, load, store, fma, plus)            \
    attributes ZFI_BODY void name##_product_body(                                                  \
        const int rows, const int vectors, int64_t k, const float *a, const float *b,              \
        const int64_t *at, float *c, int64_t c_row, bool add)                                      \
    {                                                                                              \
        vector sum[ZFI_STRIP_ROWS][ZFI_STRIP_VECTORS], row[ZFI_STRIP_VECTORS];                     \
        ZFI_UNROLL                                                                                 \
        for (int i = 0; i < rows; i++) {                                                           \
            ZFI_UNROLL                                                                             \
            for (int j = 0; j < vectors; j++) sum[i][j] = set1(0.0f);                              \
        }                                                                                          \
        for (int64_t p = 0; p < k; p++, a += rows) {                                               \
            const float *from = b + at[p];                                                         \
            ZFI_UNROLL                                                                             \
            for (int j = 0; j < vectors; j++) row[j] = load(from + j * lanes);                     \
            ZFI_UNROLL                                                                             \
            for (int i = 0; i < rows; i++) {                                                       \
                const vector of_a = set1(a[i]);                                                    \
                ZFI_UNROLL                                                                         \
                for (int j = 0; j < vectors; j++) sum[i][j] = fma(of_a, row[j], sum[i][j]);        \
            }                                                                                      \
        }                                                                                          \
        ZFI_TILE_STORE(rows, vectors, lanes, sum, c, c_row, add, load, store, plus)                \
    }                                                                                              \
    attributes ZFI_BODY void name##_dots_body(const int rows, int64_t n, const float *a,           \
                                              int64_t a_row, const float *b, const int64_t *at,    \
                                              float *sums)                                         \
    {                                                                                              \
        vector sum[ZFI_STRIP_DOTS][ZFI_STRIP_TAPS], tap[ZFI_STRIP_TAPS];                           \
        const float *from[ZFI_STRIP_TAPS] = {b + at[0], b + at[1], b + at[2]};                     \
        ZFI_UNROLL                                                                                 \
        for (int i = 0; i < rows; i++) {                                                           \
            ZFI_UNROLL                                                                             \
            for (int j = 0; j < ZFI_STRIP_TAPS; j++)                                               \
                sum[i][j] = load(sums + (i * ZFI_STRIP_TAPS + j) * lanes);                         \
        }                                                                                          \
        for (int64_t x = 0; x < n; x += lanes) {                                                   \
            ZFI_UNROLL                                                                             \
            for (int j = 0; j < ZFI_STRIP_TAPS; j++) tap[j] = load(from[j] + x);                   \
            ZFI_UNROLL                                                                             \
            for (int i = 0; i < rows; i++) {                                                       \
                const vector of_a = load(a + i * a_row + x);                                       \
                ZFI_UNROLL                                                                         \
                for (int j = 0; j < ZFI_STRIP_TAPS; j++) sum[i][j] = fma(of_a, tap[j], sum[i][j]); \
            }                                                                                      \
        }                                                                                          \
        ZFI_UNROLL                                                                                 \
        for (int i = 0; i < rows; i++) {                                                           \
            ZFI_UNROLL                                                                             \
            for (int j = 0; j < ZFI_STRIP_TAPS; j++)                                               \
                store(sums + (i * ZFI_STRIP_TAPS + j) * lanes, sum[i][j]);                         \
        }                                                                                          \
    }

#define ZFI_STRIP_PRODUCT(name, attributes, rows, vectors)                                         \
    attributes ZFI_OPTIMIZE static void name##_product_##rows(int64_t k, const float *a,           \
                                                              const float *b, const int64_t *at,   \
                                                              float *c, int64_t c_row, bool add)   \
    {                                                                                              \
        name##_product_body(rows, vectors, k, a, b, at, c, c_row, add);                            \
    }
#define ZFI_STRIP_DOTS_OF(name, attributes, rows)                                                  \
    attributes ZFI_OPTIMIZE static void name##_dots_##rows(                                        \
        int64_t n, const float *a, int64_t a_row, const float *b, const int64_t *at, float *sums)  \
    {                                                                                              \
        name##_dots_body(rows, n, a, a_row, b, at, sums);                                          \
    }

/* NAME, the tile of an instruction set. */
#define ZFI_STRIP_TILE(name, attributes, vector, width, set1, load, store, fma, plus)              \
    ZFI_STRIP_BODIES(name, attributes, vector, width, set1, load, store, fma, plus)                \
    ZFI_STRIP_PRODUCT(name, attributes, 1, 8)                                                      \
    ZFI_STRIP_PRODUCT(name, attributes, 2, 3)                                                      \
    ZFI_STRIP_PRODUCT(name, attributes, 4, 3)                                                      \
    ZFI_STRIP_DOTS_OF(name, attributes, 1)                                                         \
    ZFI_STRIP_DOTS_OF(name, attributes, 4)                                                         \
    static const zfi_strip_tile name = {width,                                                     \
                                        name##_product_1,                                          \
                                        name##_product_2,                                          \
                                        name##_product_4,                                          \
                                        {name##_dots_1, name##_dots_4}};

ZFI_STRIP_TILE(zfi_strip_portable, , zfi_f4, ZFI_PORTABLE_LANES, zfi_f4_set1, zfi_f4_load,
               zfi_f4_store, ZFI_F4_FMA, ZFI_F4_ADD)
#if ZFI_X86
ZFI_STRIP_TILE(zfi_strip_avx2, ZFI_TARGET_AVX2, __m256, 8, _mm256_set1_ps, _mm256_loadu_ps,
               _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_add_ps)
ZFI_STRIP_TILE(zfi_strip_avx512, ZFI_TARGET_AVX512, __m512, 16, _mm512_set1_ps, _mm512_loadu_ps,
               _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_add_ps)
#endif
#if ZFI_NEON
ZFI_STRIP_TILE(zfi_strip_neon, , float32x4_t, 4, vdupq_n_f32, vld1q_f32, vst1q_f32, ZFI_NEON_FMA,
               vaddq_f32)
#endif

static const zfi_strip_tile *zfi_strip_tile_of(zfi_isa isa)
{
#if ZFI_X86
    if (isa >= ZFI_ISA_AVX512) return &zfi_strip_avx512;
    if (isa == ZFI_ISA_AVX2) return &zfi_strip_avx2;
#elif ZFI_NEON
    if (isa == ZFI_ISA_NEON) return &zfi_strip_neon;
#endif
    (void)isa;
    return &zfi_strip_portable;
}
