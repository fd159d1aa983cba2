/* What cuda/cores/mma.cu and cuda/cores/wgmma.cu have for tensor cores, for g++: the same
 * functions. Fragments are exchanged by shuffles, and descriptors are decoded as the device does. */

static inline uint32_t zfd_shared_at(const void *p)
{
    return (uint32_t)(static_cast<const char *>(p) -
                      static_cast<const char *>(emulation::shared_memory()));
}

template <int SIZE>
__device__ __forceinline__ void zfd_fetch(void *to, const void *from, bool there)
{
    if (there) memcpy(to, from, SIZE);
    else memset(to, 0, SIZE);
}

__device__ __forceinline__ void zfd_fetched() {}

template <bool ACROSS>
__device__ __forceinline__ void zfd_fragments(uint32_t (&x)[4], const void *row)
{
    int lane = (int)threadIdx.x % ZFD_WARP, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
        uint16_t two[2];
        const char *at = NULL;
        for (int e = 0; e < 2; e++) {
            int from = ACROSS ? 2 * t + e : g, column = ACROSS ? g : 2 * t + e;
            if (ACROSS || e == 0)
                at = zfd_shuffle(static_cast<const char *>(row), 8 * i + from);
            memcpy(&two[e], at + 2 * column, 2);
        }
        memcpy(&x[i], two, 4);
    }
}

template <class T> struct zfd_tensor_core {
    static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        int lane = (int)threadIdx.x % ZFD_WARP, g = lane / 4, t = lane % 4;
        uint64_t top = (uint64_t)a[2] << 32 | a[0], low = (uint64_t)a[3] << 32 | a[1];
        uint64_t b = (uint64_t)b1 << 32 | b0;
        for (int i = 0; i < 4; i++) { /* k = 2 i, 2 i + 1, 2 i + 8, 2 i + 9 */
            uint64_t from[4] = {
                zfd_shuffle(top, 4 * g + i), zfd_shuffle(low, 4 * g + i),
                zfd_shuffle(b, 8 * t + i), zfd_shuffle(b, 8 * t + 4 + i)};
            T x[4][4];
            memcpy(x, from, sizeof x);
            for (int k = 0; k < 4; k++)
                for (int j = 0; j < 4; j++)
                    c[j] += zfd_to_f32(x[j / 2][k]) * zfd_to_f32(x[2 + j % 2][k]);
        }
    }
    static uint32_t pair(float low, float high)
    {
        T two[2] = {zfd_from_f32<T>(low), zfd_from_f32<T>(high)};
        uint32_t x;
        memcpy(&x, two, sizeof x);
        return x;
    }
};

static inline int zfd_anew(int x) { return x; }

static inline uint32_t zfd_drops_two(uint32_t word, uint32_t less)
{
    return (uint32_t)((word & 0xffff) > (less & 0xffff)) | (uint32_t)((word >> 16) > (less >> 16))
                                                               << 16;
}

static inline void zfd_put_fragments(void *row, const uint32_t (&x)[4])
{
    const int lane = (int)threadIdx.x % ZFD_WARP;
    for (int i = 0; i < 4; i++) {
        char *at = zfd_shuffle(static_cast<char *>(row), 8 * i + lane / 4);
        memcpy(at + lane % 4 * 4, &x[i], 4);
    }
    zfd_sync_warp();
}

static inline void zfd_add_there(float *to, const float *x)
{
    for (int i = 0; i < 4; i++) to[i] += x[i];
}

template <class P> static inline void zfd_keep(P *&) {}

/* ------------------------------------------------------------------ products of a warpgroup */

static inline void zfd_shared_to_products() {}
static inline void zfd_wgmma_begin() {}
static inline void zfd_wgmma_commit() { emulation::products_commit(); }
template <int GROUPS> static inline void zfd_wgmma_wait() { emulation::products_wait(GROUPS); }
template <class V, int N> static inline void zfd_wgmma_settle(V (&)[N]) {}
template <int COUNT> static inline void zfd_more_registers() {}
template <int COUNT> static inline void zfd_fewer_registers() {}
static inline void zfd_barrier(int id, int threads, EMULATION_SITE)
{
    emulation::named_barrier(id, threads, true, file, line);
}
static inline void zfd_barrier_arrive(int id, int threads, EMULATION_SITE)
{
    emulation::named_barrier(id, threads, false, file, line);
}
static inline void zfd_fetch_commit() {}
template <int GROUPS> static inline void zfd_fetch_wait() {}

/* Element k of row i (for B: column i) of an operand. */
template <class T>
static inline float zfd_wgmma_element(uint64_t operand, bool across, int i, int k)
{
    const int start = (int)(operand & 0x3fff) << 4, next = (int)(operand >> 16 & 0x3fff) << 4;
    const int stride = (int)(operand >> 32 & 0x3fff) << 4;
    int at = across ? start + i / 64 * next + i % 64 * 2 + k / 8 * stride + k % 8 * 128
                    : start + i / 8 * stride + i % 8 * 128 + k * 2;
    T x;
    at ^= (at >> 7 & 7) << 4;
    memcpy(static_cast<void *>(&x), static_cast<const char *>(emulation::shared_memory()) + at, 2);
    return zfd_to_f32(x);
}

template <class T, int N> struct zfd_wgmma {
    static void multiply(float *c, const float (&a)[2][16], uint64_t b, bool across, bool add)
    {
        const int t = (int)threadIdx.x % 4;
        for (int j = 0; j < N / 8; j++)
            for (int i = 0; i < 2; i++) {
                float column[16];
                for (int k = 0; k < 16; k++)
                    column[k] = zfd_wgmma_element<T>(b, across, 8 * j + 2 * t + i, k);
                for (int r = 0; r < 2; r++) {
                    float sum = add ? c[4 * j + 2 * r + i] : 0;
                    for (int k = 0; k < 16; k++) sum += a[r][k] * column[k];
                    c[4 * j + 2 * r + i] = sum;
                }
            }
    }
    template <bool A_ACROSS, bool B_ACROSS>
    static void both(float (&c)[N / 2], uint64_t a, uint64_t b, bool add)
    {
        float *to = c;
        emulation::product([=]() {
            const int lane = (int)threadIdx.x % ZFD_WARP;
            const int row = (int)threadIdx.x / ZFD_WARP % 4 * 16 + lane / 4;
            float rows[2][16];
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < 16; k++)
                    rows[r][k] = zfd_wgmma_element<T>(a, A_ACROSS, row + 8 * r, k);
            multiply(to, rows, b, B_ACROSS, add);
        });
    }
    template <bool B_ACROSS>
    static void rows(float (&c)[N / 2], const uint32_t (&a)[4], uint64_t b, bool add)
    {
        struct {
            float at[2][16];
        } x;
        float *to = c;
        const int g = (int)threadIdx.x % ZFD_WARP / 4;
        for (int i = 0; i < 4; i++)
            for (int r = 0; r < 2; r++) {
                const uint64_t mine = (uint64_t)a[2 + r] << 32 | a[r];
                const uint64_t has = zfd_shuffle(mine, 4 * g + i);
                T two[4];
                memcpy(static_cast<void *>(two), &has, sizeof two);
                for (int e = 0; e < 4; e++)
                    x.at[r][e / 2 * 8 + 2 * i + e % 2] = zfd_to_f32(two[e]);
            }
        emulation::product([=]() { multiply(to, x.at, b, B_ACROSS, add); });
    }
};
