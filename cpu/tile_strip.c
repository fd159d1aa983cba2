/* Register tiles of convolutions (ops/conv.c), which read strips: planes with zeros around them, one
 * row after the other. What a tap sees of a strip are its elements from some place on, so that taps
 * share memory. A strip has words of 4 bytes, as in tile.c: an f32, or bf16 of two channels.
 *
 *     a product    c[i][x] (+)= sum over p of a[p][i] b[at[p] + x], of 2, 4 or 8 rows i and three
 *                  vectors of x, or of one row and eight
 *     blocks       c[i][x] = sum over p of a[i][p] b[at[p] + x], of any rows, by AMX: each 16 words p
 *                  have one tap and neighbouring channels
 *     dots         sums[i][j] += a[i][x] b[at[j] + x], for each lane, of 4 rows i or one, and 3 taps;
 *                  of f32 alone
 */

enum {
    ZFI_STRIP_ROWS = 8, /* of a product at most, and vectors of its columns: some rows, or one */
    ZFI_STRIP_WIDE = 3,
    ZFI_STRIP_VECTORS = 8,
    ZFI_STRIP_DOTS = 4, /* rows of dots, and taps */
    ZFI_STRIP_TAPS = 3
};

typedef void zfi_strip_product(int64_t k, const float *a, const float *b, const int64_t *at,
                               float *c, int64_t c_row, bool add);
typedef void zfi_strip_dots(int64_t n, const float *a, int64_t a_row, const float *b,
                            const int64_t *at, float *sums);

typedef void zfi_strip_blocks(int64_t rows, int64_t columns, int64_t k, const float *a,
                              int64_t a_row, const float *b, int64_t b_row, const int64_t *at,
                              float *c, int64_t c_row);

typedef struct zfi_strip_tile {
    int lanes, rows, per_word;     /* rows of a product: 4, or 8 where sums find registers */
    zfi_strip_product *product[4]; /* of 1, 2, 4, 8 rows */
    zfi_strip_dots *dots[2];       /* of one row, and of ZFI_STRIP_DOTS; NULL: there are none */
    zfi_strip_blocks *blocks;      /* instead of products, or NULL */
} zfi_strip_tile;

#define ZFI_STRIP_PRODUCT_BODY(name, attributes, vector, lanes, set1, load, store, fma, plus)      \
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
    }
#define ZFI_STRIP_DOTS_BODY(name, attributes, vector, lanes, set1, load, store, fma, plus)         \
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

/* NAME's products of up to 4 rows, and its dots; and the table of them. */
#define ZFI_STRIP_PRODUCTS(name, attributes, ...)                                                  \
    ZFI_STRIP_PRODUCT_BODY(name, attributes, __VA_ARGS__)                                          \
    ZFI_STRIP_PRODUCT(name, attributes, 1, 8)                                                      \
    ZFI_STRIP_PRODUCT(name, attributes, 2, 3)                                                      \
    ZFI_STRIP_PRODUCT(name, attributes, 4, 3)
#define ZFI_STRIP_TILE(name, attributes, ...)                                                      \
    ZFI_STRIP_PRODUCTS(name, attributes, __VA_ARGS__)                                              \
    ZFI_STRIP_DOTS_BODY(name, attributes, __VA_ARGS__)                                             \
    ZFI_STRIP_DOTS_OF(name, attributes, 1)                                                         \
    ZFI_STRIP_DOTS_OF(name, attributes, 4)
#define ZFI_STRIP_ROWS_4(name)   name##_product_1, name##_product_2, name##_product_4
#define ZFI_STRIP_DOTS_1_4(name) .dots = {name##_dots_1, name##_dots_4}
#define ZFI_STRIP_TABLE_4(name, size)                                                              \
    {.lanes = size, .rows = 4, .per_word = 1, .product = {ZFI_STRIP_ROWS_4(name)},                 \
     ZFI_STRIP_DOTS_1_4(name)}

ZFI_STRIP_TILE(zfi_strip_f4, , zfi_f4, ZFI_PORTABLE_LANES, zfi_f4_set1, zfi_f4_load, zfi_f4_store,
               ZFI_F4_FMA, ZFI_F4_ADD)
static const zfi_strip_tile zfi_strip_portable = ZFI_STRIP_TABLE_4(zfi_strip_f4, ZFI_PORTABLE_LANES);
#if ZFI_X86
ZFI_STRIP_TILE(zfi_strip_m256, ZFI_TARGET_AVX2, __m256, 8, _mm256_set1_ps, _mm256_loadu_ps,
               _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_add_ps)
static const zfi_strip_tile zfi_strip_avx2 = ZFI_STRIP_TABLE_4(zfi_strip_m256, 8);

ZFI_STRIP_TILE(zfi_strip_m512, ZFI_TARGET_AVX512, __m512, 16, _mm512_set1_ps, _mm512_loadu_ps,
               _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_add_ps)
ZFI_STRIP_PRODUCT(zfi_strip_m512, ZFI_TARGET_AVX512, 8, 3)
static const zfi_strip_tile zfi_strip_avx512 = {
    .lanes = 16,
    .rows = 8,
    .per_word = 1,
    .product = {ZFI_STRIP_ROWS_4(zfi_strip_m512), zfi_strip_m512_product_8},
    ZFI_STRIP_DOTS_1_4(zfi_strip_m512)};
#endif
#if ZFI_BF16
ZFI_STRIP_PRODUCTS(zfi_strip_bf16, ZFI_TARGET_BF16, __m512, 16, _mm512_set1_ps, _mm512_loadu_ps,
                   _mm512_storeu_ps, ZFI_BF16_FMA, _mm512_add_ps)
ZFI_STRIP_PRODUCT(zfi_strip_bf16, ZFI_TARGET_BF16, 8, 3)
static const zfi_strip_tile zfi_strip_pairs = {
    .lanes = 16,
    .rows = 8,
    .per_word = 2,
    .product = {ZFI_STRIP_ROWS_4(zfi_strip_bf16), zfi_strip_bf16_product_8}};
#endif
#if ZFI_AMX
static const zfi_strip_tile zfi_strip_amx = {
    .lanes = ZFI_AMX_WORDS, .rows = 2 * ZFI_AMX_ROWS, .per_word = 2, .blocks = zfi_amx_strip};
#endif
#if ZFI_NEON
ZFI_STRIP_TILE(zfi_strip_f32x4, , float32x4_t, 4, vdupq_n_f32, vld1q_f32, vst1q_f32, ZFI_NEON_FMA,
               vaddq_f32)
static const zfi_strip_tile zfi_strip_neon = ZFI_STRIP_TABLE_4(zfi_strip_f32x4, 4);
#endif

/* The tile for strips of f32. */
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

/* The tile of a product of some rows with strips of so many channels of a dtype. Where a register
 * of AMX would be zeros but for few words, vectors are faster. */
static const zfi_strip_tile *zfi_strip_tile_for(zfi_isa isa, zf_dtype dtype, int64_t rows,
                                                int64_t channels)
{
    const zfi_tile *tile = zfi_tile_of_product(isa, dtype);
#if ZFI_AMX
    if (tile->column && rows > 2 && channels > 6) return &zfi_strip_amx;
#endif
#if ZFI_BF16
    if (tile->per_word == 2 && channels > 1) return &zfi_strip_pairs;
#endif
    (void)tile, (void)rows, (void)channels;
    return zfi_strip_tile_of(isa);
}
