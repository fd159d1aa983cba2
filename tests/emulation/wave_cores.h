/* The instructions of cuda/cores/waves.cu, for g++, by AMD's description of them: which lane has
 * which elements is said here once more, and not taken from there. */

namespace emulation
{

/* c += a b for a lane with `sums` elements of c, of which element i is in row row(i) and column
 * lane % 16; a_at(m, k) says where a lane has element [m,k] of a (and of b's transpose): 16-bit
 * word number. */
template <class T, int DEEP, int SUMS, class A, class R>
void multiply(float (&c)[SUMS], const T (&a)[DEEP], const T (&b)[DEEP], A at, R row,
              const char *file, int line)
{
    T mine[2 * DEEP], x, y;
    std::vector<unsigned char> all;
    memcpy(static_cast<void *>(mine), a, sizeof a);
    memcpy(static_cast<void *>(mine + DEEP), b, sizeof b);
    all = wave_all(mine, sizeof mine, file, line);
    for (int i = 0; i < SUMS; i++)
        for (int k = 0; k < 16; k++) {
            const int from[2] = {at(row(i), k), at(wave_lane() % 16, k)};
            memcpy(static_cast<void *>(&x),
                   all.data() + (from[0] / DEEP * 2 * DEEP + from[0] % DEEP) * sizeof(T), sizeof x);
            memcpy(static_cast<void *>(&y),
                   all.data() + (from[1] / DEEP * 2 * DEEP + DEEP + from[1] % DEEP) * sizeof(T),
                   sizeof y);
            c[i] += zfd_to_f32(x) * zfd_to_f32(y);
        }
}

} /* namespace emulation */

/* v_mfma_f32_16x16x16: lane m + 16 (k / 4), word k % 4. */
template <class T>
static void zfd_mfma_add(float (&c)[4], const T (&a)[4], const T (&b)[4], EMULATION_SITE)
{
    const int lane = emulation::wave_lane();
    emulation::multiply(c, a, b, [](int m, int k) { return (m + k / 4 * 16) * 4 + k % 4; },
                        [lane](int i) { return lane / 16 * 4 + i; }, file, line);
}

/* v_wmma_f32_16x16x16: lane m, or m + 16, which has the same (here one of them in turn), word k. */
template <class T>
static void zfd_wmma_add(float (&c)[8], const T (&a)[16], const T (&b)[16], EMULATION_SITE)
{
    const int lane = emulation::wave_lane();
    emulation::multiply(c, a, b, [](int m, int k) { return (m + k % 2 * 16) * 16 + k; },
                        [lane](int i) { return 2 * i + lane / 16; }, file, line);
}
