/* Products of 16 x 16 x 16 by the matrix cores of AMD's waves: mfma (gfx90a, gfx942, gfx950: 64
 * lanes) and wmma (gfx11: 32 lanes). The instruction defines which lane has which elements:
 *
 *                                          mfma                    wmma
 *     a, b    row of a, column of b        lane % 16               lane % 16
 *             depth of element i           lane / 16 * 4 + i       i: lanes 16 apart have the same
 *     c       column                       lane % 16               lane % 16
 *             row of element i             lane / 16 * 4 + i       2 i + lane / 16
 *
 * All lanes of a wave must take part. Kernels that call these for an instruction that the
 * architecture lacks are empty there (`there`). To run kernels on the CPU, ZFD_WAVE_INSTRUCTIONS
 * names a file with zfd_mfma_add and zfd_wmma_add (tests/emulation). */

#ifdef ZFD_WAVE_INSTRUCTIONS
#define ZFD_HAS_MFMA 1
#define ZFD_HAS_WMMA 1
#include ZFD_WAVE_INSTRUCTIONS
#else
#if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
#define ZFD_HAS_MFMA 1
#else
#define ZFD_HAS_MFMA 0
#endif
#if defined(__GFX11__)
#define ZFD_HAS_WMMA 1
#else
#define ZFD_HAS_WMMA 0
#endif

/* What instructions take: vectors of COUNT floats, and of as many operands of 16 bits. */
template <int COUNT> struct zfd_vectors {
    typedef __attribute__((ext_vector_type(COUNT))) float sums;
    typedef __attribute__((ext_vector_type(COUNT))) short words; /* bf16 */
    typedef __attribute__((ext_vector_type(COUNT))) _Float16 halves;
};

/* The same bytes as another type. */
template <class TO, class FROM> __device__ __forceinline__ TO zfd_bytes_as(const FROM &from)
{
    static_assert(sizeof(TO) == sizeof(FROM), "as many bytes");
    TO to;
    memcpy(&to, &from, sizeof to);
    return to;
}

/* c += a b, for what this lane has of each. */
template <class T>
__device__ __forceinline__ void zfd_mfma_add(float (&c)[4], const T (&a)[4], const T (&b)[4])
{
#if ZFD_HAS_MFMA
    typedef zfd_vectors<4> v;
    v::sums z = zfd_bytes_as<v::sums>(c);
    if constexpr (std::is_same<T, zfd_bf16>::value)
        z = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(zfd_bytes_as<v::words>(a),
                                                      zfd_bytes_as<v::words>(b), z, 0, 0, 0);
    else
        z = __builtin_amdgcn_mfma_f32_16x16x16f16(zfd_bytes_as<v::halves>(a),
                                                  zfd_bytes_as<v::halves>(b), z, 0, 0, 0);
    memcpy(c, &z, sizeof z);
#else
    (void)c, (void)a, (void)b;
#endif
}

template <class T>
__device__ __forceinline__ void zfd_wmma_add(float (&c)[8], const T (&a)[16], const T (&b)[16])
{
#if ZFD_HAS_WMMA
    typedef zfd_vectors<16> v;
    typedef zfd_vectors<8>::sums sums;
    sums z = zfd_bytes_as<sums>(c);
    if constexpr (std::is_same<T, zfd_bf16>::value)
        z = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(zfd_bytes_as<v::words>(a),
                                                        zfd_bytes_as<v::words>(b), z);
    else
        z = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(zfd_bytes_as<v::halves>(a),
                                                       zfd_bytes_as<v::halves>(b), z);
    memcpy(c, &z, sizeof z);
#else
    (void)c, (void)a, (void)b;
#endif
}
#endif

struct zfd_mfma {
    static const bool there = ZFD_HAS_MFMA;
    static const int lanes = 64, deep = 4, sums = 4; /* of a wave; elements that a lane has */
    static __device__ __forceinline__ int depth(int lane) { return lane / 16 * 4; }
    static __device__ __forceinline__ int row(int lane, int i) { return lane / 16 * 4 + i; }
    template <class T>
    static __device__ __forceinline__ void add(float (&c)[4], const T (&a)[4], const T (&b)[4])
    {
        zfd_mfma_add(c, a, b);
    }
};

struct zfd_wmma {
    static const bool there = ZFD_HAS_WMMA;
    static const int lanes = 32, deep = 16, sums = 8;
    static __device__ __forceinline__ int depth(int) { return 0; }
    static __device__ __forceinline__ int row(int lane, int i) { return 2 * i + lane / 16; }
    template <class T>
    static __device__ __forceinline__ void add(float (&c)[8], const T (&a)[16], const T (&b)[16])
    {
        zfd_wmma_add(c, a, b);
    }
};

/* What a lane has of 16 rows of a (columns of b), 16 deep, in shared memory with lines of `line`
 * elements: a row in each line or, ACROSS, one step of the depth. */
template <class CORE, bool ACROSS, class T>
__device__ __forceinline__ void zfd_operand(T (&x)[CORE::deep], const T *tile, int line)
{
    const int lane = (int)threadIdx.x % CORE::lanes, own = lane % 16, depth = CORE::depth(lane);
#pragma unroll
    for (int i = 0; i < CORE::deep; i += 4) {
        if (ACROSS) {
#pragma unroll
            for (int e = 0; e < 4; e++) x[i + e] = tile[(depth + i + e) * line + own];
        } else {
            memcpy(static_cast<void *>(x + i), tile + own * line + depth + i, 4 * sizeof(T));
        }
    }
}

/* The share of a wave in a matrix of ROWS x COLUMNS sums: every WAVES-th of its squares of 16 x 16,
 * which go down first. All of them have the same rows. */
template <class CORE, class T, int ROWS, int COLUMNS, int WAVES> struct zfd_wave_sums {
    static const int down = ROWS / 16, squares = down * (COLUMNS / 16), most = squares / WAVES;
    static_assert(most > 0 && squares % WAVES == 0 && WAVES % down == 0, "a share for each");
    float at[most][CORE::sums];

    static __device__ __forceinline__ int wave() { return (int)threadIdx.x / CORE::lanes; }
    static __device__ __forceinline__ int lane() { return (int)threadIdx.x % CORE::lanes; }
    static __device__ __forceinline__ int row(int i)
    {
        return wave() % down * 16 + CORE::row(lane(), i);
    }
    static __device__ __forceinline__ int column(int k)
    {
        return (wave() + k * WAVES) / down * 16 + lane() % 16;
    }
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int k = 0; k < most; k++)
#pragma unroll
            for (int i = 0; i < CORE::sums; i++) at[k][i] = 0;
    }
    /* += a b, with DEPTH of either in tiles (zfd_operand). */
    template <int DEPTH, bool A_ACROSS, bool B_ACROSS>
    __device__ __forceinline__ void add(const T *a, int a_line, const T *b, int b_line)
    {
        a += wave() % down * 16 * (A_ACROSS ? 1 : a_line);
#pragma unroll
        for (int from = 0; from < DEPTH; from += 16) {
            T x[CORE::deep], y[CORE::deep];
            zfd_operand<CORE, A_ACROSS>(x, a + from * (A_ACROSS ? a_line : 1), a_line);
#pragma unroll
            for (int k = 0; k < most; k++) {
                const int right = (wave() + k * WAVES) / down * 16;
                zfd_operand<CORE, B_ACROSS>(y, b + right * (B_ACROSS ? 1 : b_line) +
                                                   from * (B_ACROSS ? b_line : 1),
                                            b_line);
                CORE::add(at[k], x, y);
            }
        }
    }
};

/* The instruction that an architecture has, by HIP's name for it ("gfx90a:sramecc+:xnack-"). */
static zfd_cores zfd_cores_of_architecture(const char *name)
{
    static const char *const mfma[] = {"gfx90a", "gfx942", "gfx950"};
    for (int i = 0; i < 3; i++)
        if (!strncmp(name, mfma[i], 6)) return ZFD_MFMA;
    return strncmp(name, "gfx11", 5) ? ZFD_NO_CORES : ZFD_WMMA;
}
