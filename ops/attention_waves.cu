/* Products of attention's tiles by the matrix cores of waves (cuda/cores/waves.cu), for the kernels
 * of ops/attention_plain.cu. Tiles have 16 bits. Scores go through shared memory to the threads
 * that zfd_by_threads gives them to, and probabilities back, in 16 bits:
 *
 *     s [TILE,TILE] f32   -->   p [TILE,TILE], in the same memory         by [TILE] f32
 */
template <class CORE, class T, int D, int TILE> struct zfd_by_waves {
    typedef T held;
    static const bool there = CORE::there;
    static const int tile = TILE, each = tile / 16, width = D, waves = ZFD_THREADS / CORE::lanes;
    static const int line = D + 8, s_line = tile + 4, p_line = tile + 8;
    static size_t bytes(int tiles)
    {
        return sizeof(T) * (size_t)(tiles * tile * line) +
               sizeof(float) * (size_t)(tile * s_line + tile);
    }
    static __device__ __forceinline__ int place(int k) { return k; }

    float *s, *by;
    T *p;
    __device__ __forceinline__ zfd_by_waves(held *after)
        : s(reinterpret_cast<float *>(after)), by(s + tile * s_line), p(after)
    {
    }

    __device__ __forceinline__ void scores(float (&x)[each][each], const held *rows,
                                           const held *keys) const
    {
        const int squares = each * each, lane = (int)threadIdx.x % CORE::lanes;
        const int first = (int)threadIdx.x / 16 * each, own = (int)threadIdx.x % 16 * each;
        for (int k = (int)threadIdx.x / CORE::lanes; k < squares; k += waves) {
            const int row = k % each * 16, key = k / each * 16;
            float c[CORE::sums] = {};
#pragma unroll
            for (int i = 0; i < D; i += 16) {
                T a[CORE::deep], b[CORE::deep];
                zfd_operand<CORE, false>(a, rows + row * line + i, line);
                zfd_operand<CORE, false>(b, keys + key * line + i, line);
                CORE::add(c, a, b);
            }
#pragma unroll
            for (int i = 0; i < CORE::sums; i++)
                s[(row + CORE::row(lane, i)) * s_line + key + lane % 16] = c[i];
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < each; r++) zfd_load<float, each>(x[r], s + (first + r) * s_line + own);
        __syncthreads(); /* all have theirs: the memory has another use */
    }

    __device__ __forceinline__ void put(const float (&x)[each][each]) const
    {
        T *to = p + (int)threadIdx.x / 16 * each * p_line + (int)threadIdx.x % 16 * each;
#pragma unroll
        for (int r = 0; r < each; r++) zfd_store<T, each>(to + r * p_line, x[r]);
    }
    __device__ __forceinline__ void put_rows(const float (&x)[each][each]) const
    {
        put(x);
        __syncthreads();
    }

    struct sums {
        typedef zfd_wave_sums<CORE, T, TILE, D, waves> share;
        share y;

        __device__ __forceinline__ void clear() { y.clear(); }
        __device__ __forceinline__ void scale(const float (&with)[each], const zfd_by_waves &way)
        {
            if (threadIdx.x % 16) return;
#pragma unroll
            for (int r = 0; r < each; r++) way.by[(int)threadIdx.x / 16 * each + r] = with[r];
        }
        __device__ __forceinline__ void scaled(const zfd_by_waves &way)
        {
#pragma unroll
            for (int i = 0; i < CORE::sums; i++) {
                const float with = way.by[share::row(i)];
#pragma unroll
                for (int k = 0; k < share::most; k++) y.at[k][i] *= with;
            }
        }
        template <bool ACROSS, bool SPREAD>
        __device__ __forceinline__ void add(const zfd_by_waves &way, const held *x)
        {
            y.template add<TILE, ACROSS, true>(way.p, p_line, x, line);
        }
        /* Of these D floats a row, the thread's are in the order of its registers. */
        static __device__ __forceinline__ int place_of(int k, int i)
        {
            return ((int)threadIdx.x * share::most + k) * CORE::sums + i;
        }
        __device__ __forceinline__ void load(const float *from)
        {
#pragma unroll
            for (int k = 0; k < share::most; k++)
#pragma unroll
                for (int i = 0; i < CORE::sums; i++) y.at[k][i] = from[place_of(k, i)];
        }
        __device__ __forceinline__ void store(float *to) const
        {
#pragma unroll
            for (int k = 0; k < share::most; k++)
#pragma unroll
                for (int i = 0; i < CORE::sums; i++) to[place_of(k, i)] = y.at[k][i];
        }
        template <class U>
        __device__ __forceinline__ void out(U *to, int64_t row, int has, int d, float with,
                                            bool) const
        {
#pragma unroll
            for (int k = 0; k < share::most; k++)
#pragma unroll
                for (int i = 0; i < CORE::sums; i++)
                    if (share::row(i) < has && share::column(k) < d)
                        to[share::row(i) * row + share::column(k)] =
                            zfd_from_f32<U>(y.at[k][i] * with);
        }
    };
    static __device__ __forceinline__ void meet() { __syncthreads(); }
};
