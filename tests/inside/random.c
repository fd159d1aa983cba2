/* Random counters: published vectors, the same element from everywhere, distributions. */

/* The three vectors that Random123 publishes for philox4x32-10. */
TEST_ONCE(random_published_vectors)
{
    static const uint32_t vectors[][10] = {
        /* counter, key, result */
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < ZFI_COUNT(vectors); i++) {
        const uint32_t *v = vectors[i];
        uint32_t out[4], word[4];
        uint64_t element = 4 * ((uint64_t)(v[1] & 0x3fffffff) << 32 | v[0]);
        zfi_philox(out, v, v + 4);
        CHECK(t, !memcmp(out, v + 6, sizeof out));
        if (v[1] > 0x3fffffff) continue; /* its elements are beyond 2^64 */
        for (int isa = 0; isa < 3; isa++) {
            zfi_random_bits(matmul_isa(t, isa), word, element, 4, v[2], v[3],
                            (uint64_t)v[5] << 32 | v[4]);
            CHECK(t, !memcmp(word, v + 6, sizeof word));
        }
    }
}

/* Any piece of a stream, words or halves, holds the numbers of the definition, also where the block
 * number needs 33 bits. */
TEST_ONCE(random_any_cut_same_bits)
{
    enum { MOST = 700 };
    matmul_random random = {5};
    uint32_t word[MOST + 2];
    uint16_t half[MOST + 2];
    for (int round = 0; round < 600; round++) {
        zfi_isa isa = matmul_isa(t, round);
        int64_t n = matmul_below(&random, MOST);
        uint64_t first = (uint64_t)matmul_below(&random, 1000),
                 seed = matmul_next(&random) * (uint64_t)0x100000003;
        uint32_t stream = matmul_next(&random), step = matmul_next(&random);
        if (round % 3 == 1) first += ((uint64_t)1 << (34 + round % 2)) - 500;
        if (round % 3 == 2) first += (uint64_t)1 << 61;
        word[n] = 0x12345678, half[n] = 0x1234;
        zfi_random_bits(isa, word, first, n, stream, step, seed);
        zfi_random_halves(isa, half, first, n, stream, step, seed);
        CHECK(t, word[n] == 0x12345678 && half[n] == 0x1234);
        for (int64_t i = 0; i < n; i++) {
            uint64_t e = first + (uint64_t)i;
            CHECK(t, word[i] == zfi_random_word(e, stream, step, seed));
            CHECK(t, half[i] == zfi_random_half(e, stream, step, seed));
        }
    }
}

/* The halves of the first published block, and those of the next blocks, in the order of
 * cpu/random.c. */
TEST_ONCE(random_halves_are_those_of_the_block)
{
    static const uint16_t first[8] = {0xe8d5, 0x6627, 0xc58d, 0xe169,
                                      0xac4c, 0xbc57, 0xdbd8, 0x9b00};
    for (uint64_t e = 0; e < 8; e++) CHECK(t, zfi_random_half(e, 0, 0, 0) == first[e]);
    for (uint64_t block = 1; block < 40; block++) {
        uint32_t counter[4] = {(uint32_t)block, 0, 5, 6}, key[2] = {7, 8}, word[4];
        zfi_philox(word, counter, key);
        for (uint64_t k = 0; k < 8; k++)
            CHECK(t, zfi_random_half(8 * block + k, 5, 6, (uint64_t)8 << 32 | 7) ==
                         (k % 2 ? word[k / 2] >> 16 : word[k / 2] & 0xffff));
    }
}

TEST_ONCE(random_uniform)
{
    enum { N = 200000 };
    static float y[N];
    double sum = 0, squares = 0;
    float least = 1, most = 0;
    zfi_random_uniform(zfi_isa_best(), y, 0, N, 1, 0, 7);
    for (int i = 0; i < N; i++) {
        CHECK(t, y[i] >= 0 && y[i] < 1);
        CHECK(t, y[i] == (float)(zfi_random_word((uint64_t)i, 1, 0, 7) >> 8) / 16777216.0f);
        sum += y[i], squares += (double)y[i] * y[i];
        least = fminf(least, y[i]), most = fmaxf(most, y[i]);
    }
    CHECK_NEAR(t, sum / N, 0.5, 5 * 0.2887 / sqrt(N)); /* five deviations of the mean */
    CHECK_NEAR(t, squares / N, 1.0 / 3, 5 * 0.2982 / sqrt(N));
    CHECK(t, least < 1e-4f && most > 0.9999f);
}

/* The quantile is the inverse of the distribution function. */
TEST_ONCE(random_normal_quantile)
{
    for (int i = 1; i < 2000; i++) {
        double p = i / 2000.0, x = zfi_normal_quantile(p);
        CHECK_NEAR(t, 0.5 * erfc(-x * 0.70710678118654752440), p, 1e-15);
        CHECK_NEAR(t, zfi_normal_quantile(1 - p), -x, 1e-13);
    }
    for (double p = 0.05; p > 1e-11; p *= 0.7) {
        double x = zfi_normal_quantile(p);
        CHECK_NEAR(t, 0.5 * erfc(-x * 0.70710678118654752440) / p, 1, 1e-13);
    }
}

TEST_ONCE(random_normal)
{
    enum { N = 200000 };
    static float y[N], piece[100];
    for (int truncated = 0; truncated < 2; truncated++) {
        /* of the distribution cut at two deviations: 1 - 2 * 2 phi(2) / (1 - 2 Phi(-2)) */
        double variance = truncated ? 0.7737413035499235 : 1, sum = 0, squares = 0;
        int within = 0;
        zfi_random_normal(zfi_isa_best(), y, 40, N, 3.0f, 2.0f, truncated, 1, 0, 7);
        zfi_random_normal(ZFI_ISA_PORTABLE, piece, 1040, 100, 3.0f, 2.0f, truncated, 1, 0, 7);
        CHECK(t, !memcmp(piece, y + 1000, sizeof piece));
        for (int i = 0; i < N; i++) {
            double z = ((double)y[i] - 3) / 2;
            CHECK(t, fabs(z) <= (truncated ? 2.0000003 : 6.4));
            sum += z, squares += z * z;
            within += fabs(z) < 1;
        }
        CHECK_NEAR(t, sum / N, 0, 5 / sqrt(N));
        CHECK_NEAR(t, squares / N, variance, 5 * 1.415 / sqrt(N));
        CHECK_NEAR(t, (double)within / N, truncated ? 0.6826894921 / 0.9544997361 : 0.6826894921,
                   5 * 0.5 / sqrt(N));
    }
}

TEST_ONCE(random_dropout)
{
    enum { N = 100000 };
    static float x[N], y[N];
    const uint32_t threshold = 58982; /* 0.9 of all */
    for (int i = 0; i < N; i++) x[i] = 1.0f + (float)i;
    for (int i = 0; i < 3; i++) {
        zfi_isa isa = matmul_isa(t, i);
        int kept = 0;
        zfi_dropout(isa, y, x, 1000003, N, threshold, 0.75f, 2, 3, 4);
        for (int j = 0; j < N; j++) {
            bool keep = zfi_random_half(1000003 + (uint64_t)j, 2, 3, 4) < threshold;
            CHECK(t, y[j] == (keep ? x[j] * 0.75f : 0.0f));
            kept += keep;
        }
        CHECK_NEAR(t, (double)kept / N, 0.9, 5 * 0.3 / sqrt(N));
        memcpy(y, x, sizeof y);
        zfi_dropout(isa, y, y, 1000003, N / 3, threshold, 0.75f, 2, 3,
                    4); /* in place, in two pieces */
        zfi_dropout(isa, y + N / 3, y + N / 3, 1000003 + N / 3, N - N / 3, threshold, 0.75f, 2, 3,
                    4);
        for (int j = 0; j < N; j++)
            CHECK(t, y[j] == (zfi_random_half(1000003 + (uint64_t)j, 2, 3, 4) < threshold
                                  ? x[j] * 0.75f
                                  : 0.0f));
    }
}

/* How a probability is rounded: to a multiple of 2^-16, but never to 1, nor to 0 from above. */
TEST_ONCE(random_dropout_threshold)
{
    static const struct {
        double p;
        uint32_t threshold;
    } cases[] = {{0, 65536},       {0.1, 58982},    {0.5, 32768},       {0.25, 49152},
                 {0.75, 16384},    {1e-300, 65535}, {0x1p-17, 65535},   {0x1.8p-16, 65534},
                 {1 - 0x1p-16, 1}, {1 - 1e-9, 1},   {1 - 0x1.9p-16, 2}, {0.9, 6554}};
    for (int i = 0; i < ZFI_COUNT(cases); i++)
        CHECK(t, zfi_dropout_threshold(cases[i].p) == cases[i].threshold);
}

/* The covariance of which elements are kept: of neighbours at every distance up to 32, of two
 * steps, streams and seeds; and the share kept at each place in a block. A half that was used twice
 * would show as dependence. */
TEST_ONCE(random_dropout_is_independent)
{
    enum { N = 1 << 18, FAR = 32 };
    const uint32_t threshold = 45875; /* 0.7 of all */
    const double p = threshold / 65536.0, spread = p * (1 - p);
    static uint16_t half[4][N + FAR];
    zfi_isa isa = zfi_isa_best();
    double place[8] = {0}, squares = 0, sum = 0;
    zfi_random_halves(isa, half[0], 24, N + FAR, 2, 3, 4);
    zfi_random_halves(isa, half[1], 24, N + FAR, 2, 4, 4);
    zfi_random_halves(isa, half[2], 24, N + FAR, 3, 3, 4);
    zfi_random_halves(isa, half[3], 24, N + FAR, 2, 3, 5);
    for (int i = 0; i < N; i++) {
        place[i % 8] += half[0][i] < threshold;
        sum += half[0][i];
        squares += (double)half[0][i] * half[0][i];
    }
    CHECK_NEAR(t, sum / N, 32767.5, 5 * 18918.6 / sqrt(N));
    CHECK_NEAR(t, squares / N, 65535.0 * 131071 / 6, 5 * 1.281e9 / sqrt(N));
    for (int k = 0; k < 8; k++) CHECK_NEAR(t, place[k] / (N / 8), p, 5 * sqrt(spread / (N / 8)));
    for (int k = 1; k < FAR + 4; k++) { /* k after, or the same element of another sequence */
        const uint16_t *other = k <= FAR ? half[0] + k : half[k - FAR];
        double both = 0;
        for (int i = 0; i < N; i++)
            both += ((half[0][i] < threshold) - p) * ((other[i] < threshold) - p);
        CHECK_NEAR(t, both / N, 0, 5 * spread / sqrt(N));
    }
}

/* Leaves of several pieces, computed by several threads, have the values that one call gives. */
TEST_ONCE(first_values_are_one_for_any_threads)
{
    static const struct {
        zf_dtype dtype;
        zf_init init;
        int64_t count;
    } leaves[] = {{ZF_F32, ZF_NORMAL, ZFI_FILL_PIECE + 3 * ZFI_FILL_TASK + 5},
                  {ZF_BF16, ZF_TRUNCATED_NORMAL, 2 * ZFI_FILL_TASK + 1},
                  {ZF_F64, ZF_UNIFORM, ZFI_FILL_TASK + 7},
                  {ZF_F32, ZF_ONES, ZFI_FILL_TASK}};
    enum { LEAVES = sizeof leaves / sizeof *leaves, MOST = 2 * ZFI_FILL_PIECE };
    float *work = malloc(MOST * sizeof *work);
    double *expected = malloc(MOST * sizeof *expected), *got = malloc(MOST * sizeof *got);
    test_defer(t, free, work), test_defer(t, free, expected), test_defer(t, free, got);
    CHECK(t, work && expected && got);
    for (int32_t threads = 0; threads <= 3; threads++) {
        zf_error error = {ZF_OK, ""};
        zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = threads}, &error), alone;
        zf_graph *g = zf_graph_new(NULL);
        zf_program *p;
        bool same = true;
        CHECK(t, cpu && g);
        for (int k = 0; k < LEAVES; k++) {
            char name[8];
            snprintf(name, sizeof name, "w%d", k);
            zf_param(g, name, ZF_SHAPE(leaves[k].count),
                     &(zf_param_desc){.dtype = leaves[k].dtype,
                                      .init = leaves[k].init,
                                      .std = 0.5,
                                      .low = -2,
                                      .high = 3});
        }
        alone = *cpu;
        if (!threads) alone.share = NULL; /* a backend that has no threads to share */
        p = zf_compile(g, &(zf_compile_desc){.backend = &alone, .seed = 11});
        for (int k = 0; k < LEAVES && p; k++) {
            zf_tensor w = zf_param_at(g, k);
            zfi_first_values(g, &g->nodes[w.id], 11, 0, 0, leaves[k].count, work, expected);
            same = same && !zf_read(p, w, got, zf_tensor_bytes(w)) &&
                   !memcmp(got, expected, zf_tensor_bytes(w));
        }
        same = same && p;
        zf_program_free(p);
        zf_graph_free(g);
        zf_backend_free(cpu);
        CHECK(t, same);
    }
}
