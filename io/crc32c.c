/* CRC-32C (Castagnoli: polynomial 0x1edc6f41, reflected 0x82f63b78), the checksum of stored
 * tensors.
 *
 * There are five algorithms with one result: the processor's instruction; the same for three
 * streams at a time, since it can begin three times as often as it ends; 256 bytes at a time by
 * products without carries, as fast as memory is read; eight bytes at a time by tables, for long
 * data; and four bits at a time, for short data and for computing these tables, which are on the
 * stack. */
#if defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

static uint32_t zfi_crc32c_short(uint32_t state, const uint8_t *data, size_t bytes)
{
    static const uint32_t step[16] = {
        0x00000000u, 0x105ec76fu, 0x20bd8edeu, 0x30e349b1u, 0x417b1dbcu, 0x5125dad3u,
        0x61c69362u, 0x7198540du, 0x82f63b78u, 0x92a8fc17u, 0xa24bb5a6u, 0xb21572c9u,
        0xc38d26c4u, 0xd3d3e1abu, 0xe330a81au, 0xf36e6f75u,
    };
    for (size_t i = 0; i < bytes; i++) {
        state ^= data[i];
        state = state >> 4 ^ step[state & 15];
        state = state >> 4 ^ step[state & 15];
    }
    return state;
}

static uint32_t zfi_crc32c_long(uint32_t state, const uint8_t *data, size_t bytes)
{
    uint32_t table[8][256]; /* [k][byte]: the byte followed by k zero bytes */
    for (int byte = 0; byte < 256; byte++) {
        uint8_t one = (uint8_t)byte;
        table[0][byte] = zfi_crc32c_short(0, &one, 1);
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++)
            table[k][byte] = table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 255];
    for (; bytes >= 8; bytes -= 8, data += 8) {
        state ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                 (uint32_t)data[3] << 24;
        state = table[7][state & 255] ^ table[6][state >> 8 & 255] ^ table[5][state >> 16 & 255] ^
                table[4][state >> 24] ^ table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^
                table[0][data[7]];
    }
    return zfi_crc32c_short(state, data, bytes);
}

#if ZFI_X86
__attribute__((target("sse4.2"))) static uint32_t zfi_crc32c_sse(uint32_t state,
                                                                 const uint8_t *data, size_t bytes)
{
    uint64_t wide = state, word;
    for (; bytes >= 8; bytes -= 8, data += 8) {
        memcpy(&word, data, sizeof word);
        wide = _mm_crc32_u64(wide, word);
    }
    for (; bytes; bytes--) wide = _mm_crc32_u8((uint32_t)wide, *data++);
    return (uint32_t)wide;
}

enum { ZFI_CRC_STREAM = 4096 }; /* bytes of each of three streams */

/* The state after so many zero bytes more that their number is in `by`: x^(8 bytes - 33) mod the
 * polynomial, reflected. */
__attribute__((target("sse4.2,pclmul"))) static uint32_t zfi_crc32c_skip(uint32_t state,
                                                                         uint32_t by)
{
    const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)state),
                                                 _mm_cvtsi32_si128((int)by), 0);
    return (uint32_t)_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* The checksum is linear: that of a stream is continued by zeros for those after it, and all are
 * added. */
__attribute__((target("sse4.2,pclmul"))) static uint32_t
zfi_crc32c_streams(uint32_t state, const uint8_t *data, size_t bytes)
{
    const uint32_t one = 0x82f89c77u, two = 0x54a86326u; /* one stream, two streams */
    for (; bytes >= 3 * ZFI_CRC_STREAM; bytes -= 3 * ZFI_CRC_STREAM, data += 3 * ZFI_CRC_STREAM) {
        uint64_t a = state, b = 0, c = 0, word;
        for (int i = 0; i < ZFI_CRC_STREAM; i += 8) {
            memcpy(&word, data + i, sizeof word);
            a = _mm_crc32_u64(a, word);
            memcpy(&word, data + ZFI_CRC_STREAM + i, sizeof word);
            b = _mm_crc32_u64(b, word);
            memcpy(&word, data + 2 * ZFI_CRC_STREAM + i, sizeof word);
            c = _mm_crc32_u64(c, word);
        }
        state = zfi_crc32c_skip((uint32_t)a, two) ^ zfi_crc32c_skip((uint32_t)b, one) ^ (uint32_t)c;
    }
    return zfi_crc32c_sse(state, data, bytes);
}

#if defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10
#define ZFI_CRC_FOLDS 1
#define ZFI_TARGET_FOLD __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2")))

/* Adds to `next` each 128 bits of x, moved on to its place: their first eight bytes times the first
 * word of `by`, the others times the second. These are as in zfi_crc32c_skip, of the distance with
 * eight bytes more and of the distance. */
ZFI_TARGET_FOLD static inline __m512i zfi_crc32c_fold(__m512i x, __m512i by, __m512i next)
{
    return _mm512_xor_si512(next, _mm512_xor_si512(_mm512_clmulepi64_epi128(x, by, 0x00),
                                                   _mm512_clmulepi64_epi128(x, by, 0x11)));
}

/* Adds the data into four running parts of 64 bytes, and these into the last one, which then has
 * the checksum of all. */
ZFI_TARGET_FOLD static uint32_t zfi_crc32c_folded(uint32_t state, const uint8_t *data, size_t bytes)
{
    const __m512i near = _mm512_set4_epi64(0x9e4addf8, 0x740eef02, 0x9e4addf8, 0x740eef02),
                  far = _mm512_set4_epi64(0xb9e02b86, 0xdcb17aa4, 0xb9e02b86, 0xdcb17aa4);
    enum { PART = 64, PARTS = 4 };
    uint8_t last[PART];
    __m512i x[PARTS];
    if (bytes < PARTS * PART) return zfi_crc32c_sse(state, data, bytes);
    for (int k = 0; k < PARTS; k++, data += PART) x[k] = _mm512_loadu_si512((const void *)data);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    for (bytes -= PARTS * PART; bytes >= PARTS * PART; bytes -= PARTS * PART)
        for (int k = 0; k < PARTS; k++, data += PART)
            x[k] = zfi_crc32c_fold(x[k], far, _mm512_loadu_si512((const void *)data));
    for (int k = 1; k < PARTS; k++) x[k] = zfi_crc32c_fold(x[k - 1], near, x[k]);
    _mm512_storeu_si512((void *)last, x[PARTS - 1]);
    return zfi_crc32c_sse(zfi_crc32c_sse(0, last, PART), data, bytes);
}
#else
#define ZFI_CRC_FOLDS 0
#endif
#endif

#if defined(__ARM_FEATURE_CRC32)
static uint32_t zfi_crc32c_arm(uint32_t state, const uint8_t *data, size_t bytes)
{
    uint64_t word;
    for (; bytes >= 8; bytes -= 8, data += 8) {
        memcpy(&word, data, sizeof word);
        state = __crc32cd(state, word);
    }
    for (; bytes; bytes--) state = __crc32cb(state, *data++);
    return state;
}
#endif

/* The checksum of data[0..bytes) after the data of which `crc` is the checksum (0: none). Data may
 * come in pieces of any size. */
static uint32_t zfi_crc32c(uint32_t crc, const void *data, size_t bytes)
{
#if defined(__ARM_FEATURE_CRC32)
    return ~zfi_crc32c_arm(~crc, data, bytes);
#endif
#if ZFI_X86
    __builtin_cpu_init();
#if ZFI_CRC_FOLDS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
        return ~zfi_crc32c_folded(~crc, data, bytes);
#endif
    if (__builtin_cpu_supports("sse4.2"))
        return ~(__builtin_cpu_supports("pclmul") ? zfi_crc32c_streams
                                                  : zfi_crc32c_sse)(~crc, data, bytes);
#endif
    return ~(bytes < 16384 ? zfi_crc32c_short : zfi_crc32c_long)(~crc, data, bytes);
}
