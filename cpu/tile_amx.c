/* Tiles of the matrix product for bf16 on Intel's AMX (Intel 64 and IA-32 Architectures Software
 * Developer's Manual, TDPBF16PS).
 *
 * A register of AMX has 16 rows of 64 bytes: 16 x 16 sums, 16 rows of A with 32 neighbours of k
 * each, or 32 rows of B, in pairs, of 16 columns. Four registers of sums make a block of 32 x 32:
 *
 *                              | B 0: 16 words of k x 16 | B 1 |
 *      A 0: 16 rows x 16 words |         sums 0          |  1  |
 *      A 1                     |         sums 2          |  3  |
 *
 * B is packed as for the vectors of tile16.c. A is read where it lies if k runs along memory, and
 * is packed in that form otherwise. k is filled with zeros to whole registers, 16 words, where it
 * is packed.
 *
 * One instruction adds 32 products to each sum: the 16 of even k are added one after the other,
 * starting at 0, those of odd k likewise, and then
 *
 *     sum = sum + (even + odd)
 *
 * Each multiply-add and each addition rounds once, to nearest even, whatever the rounding mode;
 * subnormal numbers count as 0. Hence an element's value depends on k and the blocks of k alone.
 */
#if ZFI_AMX
#define ZFI_TARGET_AMX                                                                             \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,amx-tile,amx-bf16")))

enum {
    ZFI_AMX_ROWS = 16,  /* of a register */
    ZFI_AMX_WORDS = 16, /* of 4 bytes, of its rows */
    ZFI_AMX_K_BLOCK = 256,
    ZFI_AMX_GROUP = 256
};

/* What LDTILECFG reads. */
typedef struct zfi_amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} zfi_amx_config;

/* For blocks of `rows` <= 32: sums in registers 0 to 3, A in 4 and 5, B in 6 and 7. */
ZFI_TARGET_AMX ZFI_INLINE void zfi_amx_configure(int64_t rows)
{
    uint8_t low = (uint8_t)zfi_min(rows, ZFI_AMX_ROWS), high = (uint8_t)(rows - low);
    const uint8_t of[8] = {low, low, high, high, low, high, ZFI_AMX_ROWS, ZFI_AMX_ROWS};
    zfi_amx_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.rows[i] = of[i];
        config.row_bytes[i] = of[i] ? 4 * ZFI_AMX_WORDS : 0;
    }
    __asm__ volatile("" : : "m"(config)); /* gcc's intrinsic reads 8 bytes of it, as gcc sees it */
    _tile_loadconfig(&config);
}

/* c[0..rows) (+)= sums, one register each. */
ZFI_TARGET_AMX ZFI_INLINE void zfi_amx_add(float *c, int64_t c_row, const float *sums, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++) {
        float *at = c + i * c_row;
        _mm512_storeu_ps(
            at, _mm512_add_ps(_mm512_loadu_ps(at), _mm512_load_ps(sums + i * ZFI_AMX_WORDS)));
    }
}

/* The compiler knows nothing of what these instructions read and write. */
#define ZFI_AMX_MEMORY() __asm__ volatile("" ::: "memory")

#define ZFI_AMX_STORE(register, to, count)                                                         \
    do {                                                                                           \
        if (add) {                                                                                 \
            _tile_stored(register, sums, 4 * ZFI_AMX_WORDS);                                       \
            ZFI_AMX_MEMORY();                                                                      \
            zfi_amx_add((to), c_row, sums, (count));                                               \
        } else {                                                                                   \
            _tile_stored(register, (to), c_stride);                                                \
        }                                                                                          \
    } while (0)

/* One block over k words. tall: more than 16 rows; wide: more than 16 columns. Words p to p + 15 of
 * B begin at b + at[p], at b + p b_row where `at` is NULL, and are b_row from one another. */
ZFI_TARGET_AMX ZFI_INLINE void zfi_amx_block(const bool tall, const bool wide, int64_t rows,
                                             int64_t k, const char *a, int64_t a_row,
                                             const float *b, int64_t b_row, const int64_t *at,
                                             float *c, int64_t c_row, bool add)
{
    _Alignas(64) float sums[ZFI_AMX_ROWS * ZFI_AMX_WORDS];
    const int64_t low = zfi_min(rows, ZFI_AMX_ROWS);
    const char *a_high = a + low * a_row * 4;
    const size_t a_stride = (size_t)a_row * 4, b_stride = (size_t)b_row * 4;
    const size_t c_stride = (size_t)c_row * 4;
    /* rows of c for each step of k, of which there may be none */
    const int64_t ahead = zfi_div_up(rows * ZFI_AMX_WORDS, zfi_max(1, k));
    int64_t row = 0;
    ZFI_AMX_MEMORY();
    _tile_zero(0);
    if (wide) _tile_zero(1);
    if (tall) _tile_zero(2);
    if (tall && wide) _tile_zero(3);
    for (int64_t p = 0; p < k; p += ZFI_AMX_WORDS) {
        const float *from = b + (at ? at[p] : p * b_row);
        for (int64_t end = zfi_min(row + ahead, rows); add && row < end; row++) {
            ZFI_PREFETCH_WRITE(c + row * c_row);
            if (wide) ZFI_PREFETCH_WRITE(c + row * c_row + ZFI_AMX_WORDS);
        }
        _tile_loadd(6, from, b_stride);
        _tile_loadd(4, a + p * 4, a_stride);
        _tile_dpbf16ps(0, 4, 6);
        if (wide) {
            _tile_loadd(7, from + ZFI_AMX_WORDS, b_stride);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (tall) {
            _tile_loadd(5, a_high + p * 4, a_stride);
            _tile_dpbf16ps(2, 5, 6);
            if (wide) _tile_dpbf16ps(3, 5, 7);
        }
    }
    ZFI_AMX_STORE(0, c, low);
    if (wide) ZFI_AMX_STORE(1, c + ZFI_AMX_WORDS, low);
    if (tall) ZFI_AMX_STORE(2, c + low * c_row, rows - low);
    if (tall && wide) ZFI_AMX_STORE(3, c + low * c_row + ZFI_AMX_WORDS, rows - low);
    ZFI_AMX_MEMORY();
}

/* c[0..rows,0..ZFI_TILE_COLUMNS) of each of some columns of B, whose words lie anywhere. */
ZFI_TARGET_AMX static void zfi_amx_strip(int64_t rows, int64_t columns, int64_t k, const float *a,
                                         int64_t a_row, const float *b, int64_t b_row,
                                         const int64_t *at, float *c, int64_t c_row)
{
    for (int64_t i = 0, now = 0, some; i < rows; i += some, a += some * a_row, c += some * c_row) {
        some = zfi_min(2 * ZFI_AMX_ROWS, rows - i);
        if (some != now) zfi_amx_configure(now = some);
        for (int64_t x = 0; x < columns; x += ZFI_TILE_COLUMNS)
            if (some > ZFI_AMX_ROWS)
                zfi_amx_block(true, true, some, k, (const char *)a, a_row, b + x, b_row, at, c + x,
                              c_row, false);
            else
                zfi_amx_block(false, true, some, k, (const char *)a, a_row, b + x, b_row, at, c + x,
                              c_row, false);
    }
    _tile_release();
}

/* A column of blocks, `panel` rows each but the last, of columns 0..16 or 0..32 (`wide`). */
ZFI_TARGET_AMX static void zfi_amx_column(int64_t rows, int64_t panel, bool wide, int64_t k,
                                          const void *a, int64_t a_row, const float *b, float *c,
                                          int64_t c_row, bool add)
{
    const int64_t b_row = ZFI_TILE_COLUMNS;
    for (int64_t i = 0, now = 0, some; i < rows; i += some) {
        const char *from = (const char *)a + i * a_row * 4;
        float *to = c + i * c_row;
        some = zfi_min(panel, rows - i);
        if (some != now) zfi_amx_configure(now = some);
        if (some > ZFI_AMX_ROWS && wide)
            zfi_amx_block(true, true, some, k, from, a_row, b, b_row, NULL, to, c_row, add);
        else if (some > ZFI_AMX_ROWS)
            zfi_amx_block(true, false, some, k, from, a_row, b, b_row, NULL, to, c_row, add);
        else zfi_amx_block(false, wide, some, k, from, a_row, b, b_row, NULL, to, c_row, add);
    }
    _tile_release();
}

/* Panels of B: pairs of k, filled with zeros to whole registers. */
ZFI_TARGET_AVX512 static void zfi_pack_amx(float *dst, int64_t width, const void *from,
                                           int64_t lane_stride, int64_t k_stride, int64_t lanes,
                                           int64_t k)
{
    int64_t words = zfi_div_up(k, 2), whole = zfi_div_up(words, ZFI_AMX_WORDS) * ZFI_AMX_WORDS;
    if (words == whole) {
        zfi_pack_bf16(dst, width, from, lane_stride, k_stride, lanes, k);
        return;
    }
    for (int64_t l = 0; l < lanes; l += width, dst += width * whole) {
        zfi_pack_bf16(dst, width, (const uint16_t *)from + l * lane_stride, lane_stride, k_stride,
                      zfi_min(width, lanes - l), k);
        memset(dst + words * width, 0, (size_t)((whole - words) * width) * sizeof *dst);
    }
}

/* 16 lanes of 16 words from columns: out[l][p] = the pair (2 p, 2 p + 1) of lane l. */
ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_pack_amx_square(float *dst, int64_t words,
                                                               const uint16_t *src,
                                                               int64_t k_stride, int64_t lanes,
                                                               int64_t k)
{
    const __mmask16 low = (__mmask16)(lanes < 16 ? (1 << lanes) - 1 : 0xffff);
    __m512 r[16];
    ZFI_UNROLL
    for (int p = 0; p < 16; p++) {
        const uint16_t *even = src + 2 * p * k_stride;
        bool one = 2 * p < k, both = 2 * p + 1 < k;
        r[p] = _mm512_castsi512_ps(zfi_pair_words(one ? low : 0, one ? even : src, both ? low : 0,
                                                  both ? even + k_stride : src));
    }
    zfi_turn_sixteen(r);
    ZFI_UNROLL
    for (int l = 0; l < 16; l++)
        if (l < lanes) _mm512_storeu_ps(dst + l * words, r[l]);
}

/* Rows of A with k along memory: dst[l * words + p] = the pair (2 p, 2 p + 1) of lane l, filled
 * with zeros to whole registers. */
ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_pack_amx_rows(float *dst, int64_t width,
                                                             const void *from, int64_t lane_stride,
                                                             int64_t k_stride, int64_t lanes,
                                                             int64_t k)
{
    const uint16_t *src = from;
    int64_t words = zfi_div_up(k, 2 * ZFI_AMX_WORDS) * ZFI_AMX_WORDS;
    (void)width;
    if (lane_stride == 1) {
        for (int64_t p = 0; p < words; p += ZFI_AMX_WORDS)
            for (int64_t l = 0; l < lanes; l += 16)
                zfi_pack_amx_square(dst + l * words + p, words, src + 2 * p * k_stride + l,
                                    k_stride, zfi_min(16, lanes - l), k - 2 * p);
        return;
    }
    for (int64_t l = 0; l < lanes; l++, dst += words, src += lane_stride) {
        uint16_t *to = (uint16_t *)(void *)dst;
        if (k_stride == 1) memcpy(to, src, (size_t)k * sizeof *to);
        else
            for (int64_t i = 0; i < k; i++) to[i] = src[i * k_stride];
        memset(to + k, 0, (size_t)(2 * words - k) * sizeof *to);
    }
}

static const zfi_tile zfi_tile_amx = {
    .rows = 2 * ZFI_AMX_ROWS,
    .lanes = ZFI_AMX_WORDS,
    .per_word = 2,
    .k_unit = ZFI_AMX_WORDS,
    .k_block = ZFI_AMX_K_BLOCK,
    .group = ZFI_AMX_GROUP,
    .tasks = 2,
    .column = zfi_amx_column,
    .pack = zfi_pack_amx,
    .pack_a = zfi_pack_amx_rows,
};

/* Tiles in vectors, on a processor with AMX: its second-level cache, of 2 MiB, holds 512 rows of A
 * next to a span of B. */
static const zfi_tile zfi_tile_vectors_amx = {ZFI_AVX512_TILE, .keep = 512};
#endif

/* The tile of a product of this dtype: f32, bf16 or f16. */
static const zfi_tile *zfi_tile_of_product(zfi_isa isa, zf_dtype dtype)
{
#if ZFI_AMX
    if (isa == ZFI_ISA_AMX) return dtype == ZF_BF16 ? &zfi_tile_amx : &zfi_tile_vectors_amx;
#endif
    return zfi_tile_for(isa, dtype);
}
