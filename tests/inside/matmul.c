/* The matrix product against a sum in double precision: shapes, strides, dtypes, instruction sets,
 * threads. */

typedef struct matmul_random {
    uint64_t state;
} matmul_random;

static uint32_t matmul_next(matmul_random *random)
{
    random->state = random->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random->state >> 33);
}

static int64_t matmul_below(matmul_random *random, int64_t n)
{
    return (int64_t)(matmul_next(random) % (uint64_t)n);
}

static float matmul_value(matmul_random *random)
{
    return (float)matmul_next(random) * 0x1p-30f - 1.0f;
}

enum { MATMUL_POOLS = 4 };

typedef struct matmul_bench {
    zfi_memory memory;
    zfi_pool *pools[MATMUL_POOLS];    /* of 1, 2, 3 and 4 threads */
    void *a, *b, *c, *before, *first; /* of the dtypes under test */
    float *scratch;
    double *wide_a, *wide_b; /* a row of A, and all columns of B, as doubles */
    int32_t *seen;           /* of each element of C, how often the epilogue saw it */
    size_t a_size, b_size, c_size, scratch_size;
    const zfi_matmul_desc *d;
} matmul_bench;

static void matmul_close(void *object)
{
    matmul_bench *bench = object;
    for (int i = 0; i < MATMUL_POOLS; i++) zfi_pool_free(bench->pools[i]);
    free(bench->a), free(bench->b), free(bench->c), free(bench->before), free(bench->first);
    free(bench->scratch), free(bench->seen), free(bench->wide_a), free(bench->wide_b);
}

static bool matmul_open(test *t, matmul_bench *bench, size_t elements, size_t scratch)
{
    zf_error error = {0};
    *bench = (matmul_bench){.memory = zfi_memory_of(&t->allocator)};
    test_defer(t, matmul_close, bench);
    bench->a = malloc(elements * sizeof(float));
    bench->b = malloc(elements * sizeof(float));
    bench->c = malloc(elements * sizeof(float));
    bench->before = malloc(elements * sizeof(float));
    bench->first = malloc(elements * sizeof(float));
    bench->seen = malloc(elements * sizeof *bench->seen);
    bench->wide_a = malloc(elements * sizeof *bench->wide_a);
    bench->wide_b = malloc(elements * sizeof *bench->wide_b);
    bench->scratch = aligned_alloc(64, scratch);
    bench->a_size = bench->b_size = bench->c_size = elements;
    bench->scratch_size = scratch;
    for (int i = 0; i < MATMUL_POOLS; i++) {
        bench->pools[i] = zfi_pool_new(&bench->memory, i + 1, &error);
        if (!bench->pools[i])
            return test_unwind(t, __FILE__, __LINE__, "pool", error.status, error.text) && false;
    }
    return bench->a && bench->b && bench->c && bench->before && bench->first && bench->seen &&
           bench->scratch && bench->wide_a && bench->wide_b;
}

static double matmul_get(const void *x, zf_dtype dtype, int64_t at)
{
    if (dtype == ZF_BF16) return zfi_bf16_to_f32(((const uint16_t *)x)[at]);
    if (dtype == ZF_F16) return zfi_f16_to_f32(((const uint16_t *)x)[at]);
    return ((const float *)x)[at];
}

/* Numbers between -1 and 1 in all operands, as the dtypes hold them. */
static void matmul_fill(matmul_bench *bench, matmul_random *random, zf_dtype dtype,
                        zf_dtype c_dtype)
{
    for (int64_t i = 0; i < (int64_t)bench->a_size; i++) {
        float x[3];
        for (int k = 0; k < 3; k++) x[k] = matmul_value(random);
        zfi_narrow(ZFI_ISA_PORTABLE, zfi_element_of(bench->a, dtype, i), dtype, &x[0], 1);
        zfi_narrow(ZFI_ISA_PORTABLE, zfi_element_of(bench->b, dtype, i), dtype, &x[1], 1);
        zfi_narrow(ZFI_ISA_PORTABLE, zfi_element_of(bench->before, c_dtype, i), c_dtype, &x[2], 1);
    }
}

/* Where matrix `i` of the batch begins. */
static int64_t matmul_at(const zfi_matmul_desc *d, int64_t i, int64_t outer, int64_t batch)
{
    return i / d->batch * outer + i % d->batch * batch;
}

/* Counts every element, and changes it so that a second or an early visit is noticed. */
static void matmul_epilogue(void *context, float *c, int64_t c_row, int64_t row, int64_t col,
                            int64_t rows, int64_t cols)
{
    matmul_bench *bench = context;
    const zfi_matmul_desc *d = bench->d;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t l = 0; l < cols; l++) {
            int64_t at = matmul_at(d, (row + r) / d->m, d->c_outer, d->c_batch) +
                         (row + r) % d->m * d->c_row + col + l;
            bool here = c_row == d->c_row && c + r * c_row + l == (float *)d->c + at;
            /* sums that are rounded, or of nothing, lie aside */
            if (here || d->c_dtype != ZF_F32 || !d->k) bench->seen[at]++;
            c[r * c_row + l] = 0.5f * c[r * c_row + l] + 3.0f;
        }
}

/* Half a unit of a result of this size. */
static double matmul_half_unit(zf_dtype dtype, double size)
{
    return dtype == ZF_BF16  ? 0x1p-8 * size + 0x1p-134
           : dtype == ZF_F16 ? 0x1p-11 * size + 0x1p-25
                             : 0;
}

static void matmul_widen(double *wide, const void *x, zf_dtype dtype, int64_t at, int64_t step,
                         int64_t count)
{
    for (int64_t k = 0; k < count; k++) wide[k] = matmul_get(x, dtype, at + k * step);
}

/* The exact value of an element, a sum over a row of A and a column of B, and the bound for its
 * error. An addition costs 2^-24 of the sum of the terms' magnitudes; products are exact except for
 * f32's. The epilogue's rounding is of up to |c| / 2 + 3, and a result of 16 bits is rounded then;
 * both count twice in the operands. No number here is subnormal. */
static double matmul_exact(const zfi_matmul_desc *d, const double *a, const double *b, double old,
                           double *bound)
{
    double sums[4] = {d->accumulate ? old : 0}, sizes[4] = {fabs(sums[0])}, sum, size;
    int64_t k = 0;
    for (; k + 4 <= d->k; k += 4) /* four sums at a time: one addition does not wait for another */
        for (int i = 0; i < 4; i++) {
            double term = a[k + i] * b[k + i];
            sums[i] += term;
            sizes[i] += fabs(term);
        }
    for (; k < d->k; k++) sums[k % 4] += a[k] * b[k], sizes[k % 4] += fabs(a[k] * b[k]);
    sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    size = (sizes[0] + sizes[1]) + (sizes[2] + sizes[3]);
    *bound = (double)(2 * d->k + 2) * 0x1p-24 * size;
    if (d->epilogue)
        *bound +=
            (size + 6) * 0x1p-22 + 2 * matmul_half_unit(d->c_dtype, fabs(sum) / 2 + 3 + *bound);
    else *bound += matmul_half_unit(d->c_dtype, fabs(sum) + *bound);
    return sum;
}

/* One product on all pools with one instruction set; false (and a report) when something is wrong.
 */
static bool matmul_check(matmul_bench *bench, zfi_isa isa, zfi_matmul_desc *d, const char **what)
{
    size_t size = d->c_dtype == ZF_F32 ? 4 : 2;
    char *c = d->c;
    const char *before = (const char *)bench->before + (c - (char *)bench->c);
    bench->d = d;
    for (int pool = 0; pool < MATMUL_POOLS; pool++) {
        size_t scratch = zfi_matmul_tiled_scratch(isa, pool + 1, d),
               words = scratch / sizeof(float);
        *what = "scratch too large for the test";
        if (scratch + 64 > bench->scratch_size) return false;
        memcpy(bench->c, bench->before, bench->c_size * size);
        memset(bench->seen, 0, bench->c_size * sizeof *bench->seen);
        for (int i = 0; i < 16; i++) bench->scratch[words + (size_t)i] = 12345.0f + (float)i;
        zfi_matmul_tiled(isa, bench->pools[pool], d, bench->scratch);
        *what = "wrote after the scratch";
        for (int i = 0; i < 16; i++)
            if (bench->scratch[words + (size_t)i] != 12345.0f + (float)i) return false;
        *what = "bits differ between numbers of threads";
        if (pool && memcmp(bench->c, bench->first, bench->c_size * size)) return false;
        memcpy(bench->first, bench->c, bench->c_size * size);
    }
    for (int64_t i = 0; i < d->batch * (d->outer ? d->outer : 1); i++) {
        int64_t a_at = matmul_at(d, i, d->a_outer, d->a_batch),
                b_at = matmul_at(d, i, d->b_outer, d->b_batch);
        for (int64_t n = 0; n < d->n; n++)
            matmul_widen(bench->wide_b + n * d->k, d->b, d->dtype, b_at + n * d->b_col, d->b_row,
                         d->k);
        for (int64_t m = 0; m < d->m; m++) {
            matmul_widen(bench->wide_a, d->a, d->dtype, a_at + m * d->a_row, d->a_col, d->k);
            for (int64_t n = 0; n < d->n; n++) {
                int64_t at = matmul_at(d, i, d->c_outer, d->c_batch) + m * d->c_row + n;
                double got = matmul_get(c, d->c_dtype, at), bound;
                double sum = matmul_exact(d, bench->wide_a, bench->wide_b + n * d->k,
                                          matmul_get(before, d->c_dtype, at), &bound);
                if (d->epilogue) got = (got - 3.0) * 2.0;
                *what = "the sum is wrong";
                if (!(fabs(got - sum) <= bound)) return false;
                *what = "the epilogue did not see an element once";
                if (bench->seen[at] != (d->epilogue ? 1 : 0)) return false;
                /* so that what is left differs only outside of C */
                memcpy(c + (size_t)at * size, before + (size_t)at * size, size);
            }
        }
    }
    *what = "wrote outside of C";
    return !memcmp(bench->c, bench->before, bench->c_size * size);
}

/* Of A and B, and of C. */
static const zf_dtype matmul_dtypes[][2] = {
    {ZF_F32, ZF_F32}, {ZF_BF16, ZF_BF16}, {ZF_BF16, ZF_F32}, {ZF_F16, ZF_F16}, {ZF_F32, ZF_BF16}};

/* The instruction sets that the machine has, in turn. */
static zfi_isa matmul_isa(test *t, int i)
{
    zfi_isa best = zfi_isa_best_of_all();
    test_has_isa(t, "avx512");
    if (best == ZFI_ISA_NEON) return i % 2 ? ZFI_ISA_NEON : ZFI_ISA_PORTABLE;
    return (zfi_isa)(i % ((int)best + 1));
}

/* Notes that the machine has no instruction for tiles of bf16, where it has none. */
static void matmul_wants_bf16(test *t)
{
#if ZFI_BF16
    if (!__builtin_cpu_supports("avx512bf16")) test_skip(t, "avx512_bf16");
#else
    (void)t;
#endif
}

/* "what: isa m ... " into text[256]. */
static const char *matmul_text(char *text, const char *what, zfi_isa isa, const zfi_matmul_desc *d)
{
    snprintf(text, 256,
             "%s: %s %s to %s, m %lld n %lld k %lld batch %lld of %lld, a %lld %lld, b %lld %lld, "
             "c %lld%s",
             what, zfi_isa_name(isa), zf_dtype_name(d->dtype), zf_dtype_name(d->c_dtype),
             (long long)d->m, (long long)d->n, (long long)d->k, (long long)d->batch,
             (long long)d->outer, (long long)d->a_row, (long long)d->a_col, (long long)d->b_row,
             (long long)d->b_col, (long long)d->c_row, d->accumulate ? " accumulate" : "");
    return text;
}

#define MATMUL_CHECK(t, bench, isa, d)                                                             \
    do {                                                                                           \
        const char *what_;                                                                         \
        char text_[256];                                                                           \
        if (!matmul_check((bench), (isa), (d), &what_)) {                                          \
            matmul_text(text_, what_, (isa), (d));                                                 \
            test_fail((t), __FILE__, __LINE__, "matmul", text_);                                   \
            return;                                                                                \
        }                                                                                          \
    } while (0)

TEST_ONCE(matmul_random_shapes)
{
    static const int64_t sizes[] = {0,  1,  2,  3,  5,  6,  7,  8,  13,  14,  15,  16,  17,
                                    28, 31, 32, 33, 47, 57, 64, 65, 100, 128, 129, 200, 257};
    matmul_random random = {1};
    static matmul_bench bench;
    matmul_wants_bf16(t);
    if (!matmul_open(t, &bench, 1 << 20, 16 << 20)) return;
    for (int round = 0; round < 1250; round++) {
        if (round % 250 && !TEST_TAKES(round)) continue;
        const zf_dtype *dtypes = matmul_dtypes[round / 250];
        zfi_matmul_desc d = {.accumulate = round % 3 == 0,
                             .epilogue = round % 4 ? NULL : matmul_epilogue,
                             .dtype = dtypes[0],
                             .c_dtype = dtypes[1]};
        int64_t gap = matmul_below(&random, 3) * matmul_below(&random, 20),
                step = matmul_below(&random, 8) ? 1 : 3;
        if (round % 250 == 0) matmul_fill(&bench, &random, d.dtype, d.c_dtype);
        d.epilogue_context = &bench;
        d.m = sizes[matmul_below(&random, ZFI_COUNT(sizes))];
        d.n = sizes[matmul_below(&random, ZFI_COUNT(sizes))];
        d.k = matmul_below(&random, 4) ? sizes[matmul_below(&random, ZFI_COUNT(sizes))]
                                       : matmul_below(&random, 600);
        d.batch = matmul_below(&random, 3) ? 1 : matmul_below(&random, 9);
        d.outer = matmul_below(&random, 6) ? 0 : 1 + matmul_below(&random, 3);
        if (d.m * d.n * d.k * d.batch > 3000000) d.batch = 1, d.outer = 0;
        /* rows, columns, or neither are neighbours; sometimes one operand for the whole batch, or
         * one row repeated */
        if (matmul_below(&random, 2))
            d.a_col = step, d.a_row = d.k * step + gap, d.a_batch = d.m * d.a_row;
        else d.a_row = step, d.a_col = d.m * step + gap, d.a_batch = d.k * d.a_col;
        if (matmul_below(&random, 2))
            d.b_col = step, d.b_row = d.n * step + gap, d.b_batch = d.k * d.b_row;
        else d.b_row = step, d.b_col = d.k * step + gap, d.b_batch = d.n * d.b_col;
        if (!matmul_below(&random, 8)) d.a_batch = 0;
        if (!matmul_below(&random, 8)) d.b_batch = 0;
        if (!matmul_below(&random, 16)) d.a_row = 0;
        if (!matmul_below(&random, 16)) d.b_col = 0;
        d.c_row = d.n + gap;
        if (d.n == 1 && round % 2) d.c_row = 1;
        d.c_batch = d.m * d.c_row + gap;
        d.a_outer = d.batch * d.a_batch, d.b_outer = d.batch * d.b_batch,
        d.c_outer = d.batch * d.c_batch;
        if (!matmul_below(&random, 4)) d.a_outer = 0;
        if (zfi_max(d.a_batch, d.b_batch) * d.batch * zfi_max(d.outer, 1) + 200000 >
            (int64_t)bench.a_size)
            continue;
        d.a = zfi_element(bench.a, d.dtype, 7), d.b = zfi_element(bench.b, d.dtype, 5);
        d.c = zfi_element_of(bench.c, d.c_dtype, 11);
        bench.c_size = (size_t)(zfi_max(d.outer, 1) * d.batch * d.c_batch + 64);
        if (bench.c_size > bench.a_size) continue;
        MATMUL_CHECK(t, &bench, matmul_isa(t, round), &d);
    }
}

/* Large enough for several chunks of B and several blocks of k, in each direction. */
TEST_ONCE(matmul_chunks)
{
    static const int64_t shapes[][3] = {{25, 1100, 1000}, {31, 70, 9000}, {20, 5000, 300},
                                        {5, 3000, 700},   {700, 3, 900},  {1, 1500, 1500}};
    matmul_random random = {2};
    static matmul_bench bench;
    matmul_wants_bf16(t);
    if (!matmul_open(t, &bench, 3 << 20, 32 << 20)) return;
    for (int shape = 0; shape < 2 * ZFI_COUNT(shapes); shape++)
        for (int form = 0; form < 4; form++) {
            const int64_t *size = shapes[shape % ZFI_COUNT(shapes)];
            zf_dtype dtype = shape < ZFI_COUNT(shapes) ? ZF_F32 : ZF_BF16;
            if (shape % ZFI_COUNT(shapes) && !TEST_TAKES(shape + form)) continue;
            zfi_matmul_desc d = {size[0],          size[1],        size[2],         1,
                                 .c_row = size[1], .dtype = dtype, .c_dtype = dtype};
            if (shape % ZFI_COUNT(shapes) == 0 && form == 0)
                matmul_fill(&bench, &random, dtype, dtype);
            d.a = bench.a, d.b = bench.b, d.c = bench.c;
            d.a_row = form & 1 ? 1 : d.k, d.a_col = form & 1 ? d.m : 1;
            d.b_row = form & 2 ? 1 : d.n, d.b_col = form & 2 ? d.k : 1;
            d.accumulate = form == 1;
            d.epilogue = form == 2 ? matmul_epilogue : NULL;
            d.epilogue_context = &bench;
            bench.c_size = (size_t)(d.m * d.n + 16);
            MATMUL_CHECK(t, &bench, matmul_isa(t, shape + 2 * form), &d);
        }
}

#if ZFI_AMX
/* Where a thread keeps the rows of A that it packed, the bits are those of other plans, for any
 * number of threads, and the epilogue sees each element once. f32 and f16 take tiles in vectors, for
 * which AVX-512 is enough. */
TEST_ONCE(matmul_keeps_rows)
{
    static const int64_t shapes[][3] = {
        {700, 1000, 1100}, {1000, 1200, 300}, {500, 1225, 513}, {200, 300, 1024}};
    matmul_random random = {7};
    static matmul_bench bench;
    int kept = 0;
    if (zfi_isa_best() != ZFI_ISA_AVX512) {
        test_skip(t, "avx512");
        return;
    }
    if (!matmul_open(t, &bench, 5 << 18, 16 << 20)) return;
    for (int shape = 0; shape < ZFI_COUNT(shapes); shape++)
        for (int form = 0; form < 16; form++) {
            const int64_t *size = shapes[shape], gap = form & 4 ? 5 : 0;
            const zf_dtype *dtypes = matmul_dtypes[form < 8 ? 0 : shape == 1 ? 4 : 3];
            zfi_matmul_desc d = {size[0],
                                 size[1],
                                 size[2],
                                 1,
                                 .c_row = size[1] + gap,
                                 .dtype = dtypes[0],
                                 .c_dtype = dtypes[0] == ZF_F16 ? ZF_F32 : dtypes[1]};
            int left = form & 1 ? 0 : 0xff; /* what the scratch held before: 0, or NaN */
            size_t bytes, expected;
            if (form % 8 == 0) matmul_fill(&bench, &random, d.dtype, d.c_dtype);
            d.a = bench.a, d.b = bench.b, d.c = bench.c;
            d.a_row = form & 1 ? 1 : d.k + gap, d.a_col = form & 1 ? d.m + gap : 1;
            d.b_row = form & 2 ? 1 : d.n + gap, d.b_col = form & 2 ? d.k + gap : 1;
            d.accumulate = form % 3 == 0;
            d.epilogue = form % 2 ? matmul_epilogue : NULL, d.epilogue_context = &bench;
            bench.d = &d;
            for (int pool = 0; pool < MATMUL_POOLS; pool++)
                kept += zfi_matmul_plan_of(ZFI_ISA_AMX, pool + 1, &d).keep;
            if (!TEST_TAKES(shape + form)) continue;
            bytes = (size_t)(d.m * d.c_row) * (d.c_dtype == ZF_F32 ? 4 : 2);
            memcpy(bench.c, bench.before, bytes);
            zfi_matmul_tiled(ZFI_ISA_AVX512, bench.pools[0], &d, bench.scratch);
            memcpy(bench.first, bench.c, bytes);
            /* AddressSanitizer sees the fewest threads and the most. */
            for (int pool = 0; pool < MATMUL_POOLS; pool += TEST_SANITIZED ? MATMUL_POOLS - 1 : 1) {
                expected = zfi_matmul_tiled_scratch(ZFI_ISA_AMX, pool + 1, &d);
                CHECK(t, expected + 64 <= bench.scratch_size);
                memset(bench.scratch, left, expected + 64);
                memset(bench.seen, 0, bench.c_size * sizeof *bench.seen);
                memcpy(bench.c, bench.before, bytes);
                zfi_matmul_tiled(ZFI_ISA_AMX, bench.pools[pool], &d, bench.scratch);
                for (size_t i = expected; i < expected + 64; i++)
                    CHECK(t, ((unsigned char *)bench.scratch)[i] == left);
                for (int64_t i = 0; d.epilogue && i < d.m * d.c_row; i++)
                    CHECK(t, bench.seen[i] == (i % d.c_row < d.n));
                if (!memcmp(bench.c, bench.first, bytes)) continue;
                test_fail(t, __FILE__, __LINE__, "product",
                          matmul_text((char[256]){0}, "bits", ZFI_ISA_AMX, &d));
                return;
            }
        }
    /* Threads x forms of f32: the last shape is too small to be packed where it can be read in
     * place, which it cannot where rows of A are 4 KiB apart. All of 16 bits is packed. */
    CHECK(t, kept == 2 * 8 + 4 * 8 + 2 * 8 + 4 * 2 + 4 * 4 * 8);
}

/* Where A is packed for each span, tasks have 128 rows at least, for which B is packed again, unless
 * threads would have none. */
TEST_ONCE(matmul_splits_rows_for_threads)
{
    static const struct {
        int threads, groups;
    } cases[] = {{1, 2}, {2, 2}, {6, 2}, {7, 3}, {10, 4}, {64, 4}};
    const zfi_matmul_desc d = {256,
                               768,
                               3072,
                               1,
                               .a_row = 3072,
                               .a_col = 1,
                               .b_row = 1,
                               .b_col = 3072,
                               .c_row = 768,
                               .dtype = ZF_F32,
                               .c_dtype = ZF_F32};
    for (int i = 0; i < ZFI_COUNT(cases); i++) {
        const zfi_matmul_plan plan = zfi_matmul_plan_of(ZFI_ISA_AVX512, cases[i].threads, &d);
        CHECK(t, !plan.direct_a && !plan.keep);
        CHECK(t, zfi_div_up(plan.panels, plan.task) == cases[i].groups);
    }
}

/* An element as tile_amx.c defines it. */
static float matmul_by_definition(const zfi_matmul_desc *d, int64_t k_block, int64_t m, int64_t n,
                                  float old)
{
    float sum = old;
    for (int64_t k0 = 0; k0 < d->k; k0 += k_block) {
        float block = 0;
        for (int64_t p = k0; p < zfi_min(k0 + k_block, d->k); p += 32) {
            float of[2] = {0, 0}; /* even and odd k */
            for (int64_t k = p; k < zfi_min(p + 32, d->k); k++)
                of[k % 2] =
                    fmaf((float)matmul_get(d->a, d->dtype, m * d->a_row + k * d->a_col),
                         (float)matmul_get(d->b, d->dtype, k * d->b_row + n * d->b_col), of[k % 2]);
            block += of[0] + of[1];
        }
        sum = k0 || d->accumulate ? sum + block : block;
    }
    return sum;
}

/* The last bit of each element is as defined, whatever the operands' strides, the rest of a tile,
 * and what is left in the scratch. */
TEST_ONCE(matmul_by_amx)
{
    static const int64_t shapes[][3] = {{2, 1, 1},    {16, 16, 32},  {33, 17, 31},   {15, 48, 65},
                                        {70, 31, 96}, {40, 33, 513}, {300, 20, 100}, {9, 40, 1400}};
    matmul_random random = {3};
    static matmul_bench bench;
    if (!test_has_isa(t, "amx")) return;
    if (!matmul_open(t, &bench, 1 << 20, 16 << 20)) return;
    matmul_fill(&bench, &random, ZF_BF16, ZF_F32);
    for (int shape = 0; shape < ZFI_COUNT(shapes); shape++)
        for (int form = 0; form < 16; form++) {
            const int64_t *size = shapes[shape], gap = form & 8 ? 5 : 0;
            zfi_matmul_desc d = {
                size[0],          size[1],          size[2], 1, .c_row = size[1] + gap,
                .dtype = ZF_BF16, .c_dtype = ZF_F32};
            int64_t k_block;
            d.a = bench.a, d.b = bench.b, d.c = bench.c;
            d.a_row = form & 1 ? 1 : d.k + gap, d.a_col = form & 1 ? d.m + gap : 1;
            d.b_row = form & 2 ? 1 : d.n + gap, d.b_col = form & 2 ? d.k + gap : 1;
            d.accumulate = form & 4;
            k_block = zfi_matmul_plan_of(ZFI_ISA_AMX, 1, &d).k_block;
            memset(bench.scratch, 0xff, bench.scratch_size); /* NaN */
            memcpy(bench.c, bench.before, (size_t)((d.m + 32) * d.c_row) * sizeof(float));
            zfi_matmul_tiled(ZFI_ISA_AMX, bench.pools[form % 2], &d, bench.scratch);
            for (int64_t m = 0; m < d.m + 32; m++) /* also what lies after C */
                for (int64_t n = 0; n < d.c_row; n++) {
                    float old = ((float *)bench.before)[m * d.c_row + n];
                    float got = ((float *)bench.c)[m * d.c_row + n];
                    if (m < d.m && n < d.n) old = matmul_by_definition(&d, k_block, m, n, old);
                    if (!memcmp(&got, &old, sizeof got)) continue;
                    test_fail(t, __FILE__, __LINE__, "element",
                              matmul_text((char[256]){0}, "bits", ZFI_ISA_AMX, &d));
                    return;
                }
        }
}
#endif

/* A product with a B that was packed before has the bits of one that packs or reads it for itself: all
 * of its columns and some, with several blocks of k, panels that are not full, one row and one
 * column. */
TEST_ONCE(matmul_of_packed_b)
{
    static const int64_t shapes[][3] = {{1, 1, 1},      {1, 40, 33},    {40, 1, 70},
                                        {70, 33, 1025}, {300, 257, 64}, {9, 300, 2100},
                                        {130, 65, 513}, {3, 5, 0}};
    matmul_random random = {8};
    static matmul_bench bench;
    static _Alignas(64) float packed[320 * 2112];
    matmul_wants_bf16(t);
    if (!matmul_open(t, &bench, 1 << 20, 16 << 20)) return;
    for (int round = 0; round < 5 * 4 * ZFI_COUNT(shapes); round++) {
        const int64_t *size = shapes[round % ZFI_COUNT(shapes)];
        const zf_dtype *dtypes = matmul_dtypes[round / ZFI_COUNT(shapes) % 5];
        const int form = round / ZFI_COUNT(shapes) / 5;
        const zfi_isa isa = matmul_isa(t, (int)matmul_below(&random, 8));
        zfi_matmul_desc d = {size[0],
                             size[1],
                             size[2],
                             1,
                             .c_row = size[1],
                             .dtype = dtypes[0],
                             .c_dtype = dtypes[1]};
        const size_t bytes = (size_t)(d.m * d.n) * zf_dtype_size(d.c_dtype);
        size_t room;
        if (round % ZFI_COUNT(shapes) == 0) matmul_fill(&bench, &random, d.dtype, d.c_dtype);
        if (round / ZFI_COUNT(shapes) && !TEST_TAKES(round + form)) continue;
        d.a = bench.a, d.b = bench.b, d.c = bench.c;
        d.a_row = form & 1 ? 1 : d.k, d.a_col = form & 1 ? d.m : 1;
        d.b_row = form & 2 ? 1 : d.n, d.b_col = form & 2 ? d.k : 1;
        d.accumulate = form == 2;
        memcpy(bench.c, bench.before, bytes);
        zfi_matmul_tiled(isa, bench.pools[1], &d, bench.scratch);
        memcpy(bench.first, bench.c, bytes);
        room = zfi_matmul_packed_bytes(isa, &d);
        CHECK(t, room + 64 <= sizeof packed);
        memset(packed, 0xff, room + 64);
        zfi_matmul_pack_b(isa, bench.pools[round % MATMUL_POOLS], &d, packed);
        for (size_t i = room; i < room + 64; i++) CHECK(t, ((unsigned char *)packed)[i] == 0xff);
        d.packed = size[1], d.b = packed;
        memcpy(bench.c, bench.before, bytes);
        for (int64_t step = form & 1 ? 64 : size[1]; d.packed_from < size[1];
             d.packed_from += step) {
            d.n = zfi_min(step, size[1] - d.packed_from);
            d.c = zfi_element_of(bench.c, d.c_dtype, d.packed_from);
            CHECK(t, zfi_matmul_tiled_scratch(isa, 2, &d) <= bench.scratch_size);
            zfi_matmul_tiled(isa, bench.pools[1], &d, bench.scratch);
        }
        if (!memcmp(bench.c, bench.first, bytes)) continue;
        test_fail(t, __FILE__, __LINE__, "product", matmul_text((char[256]){0}, "bits", isa, &d));
        return;
    }
}

/* to[0..rows,0..n) = sections first.. of the product, `count` of them, each a product of its own, as
 * halves of a tree of whole levels and what is left. */
static void matmul_by_sections(matmul_bench *bench, zfi_isa isa, const zfi_matmul_desc *of,
                               int64_t first, int64_t count, float *to, float *room)
{
    const int64_t length = of->k / of->sections, size = of->m * of->n;
    int64_t left = 1;
    zfi_matmul_desc d = *of;
    if (count == 1) {
        d.k = length, d.sections = 0, d.accumulate = false, d.epilogue = NULL;
        d.a = zfi_element(of->a, of->dtype, first * length * of->a_col);
        d.b = zfi_element(of->b, of->dtype, first * length * of->b_row);
        d.c = to, d.c_dtype = ZF_F32, d.c_row = of->n;
        zfi_matmul_tiled(isa, bench->pools[0], &d, bench->scratch);
        return;
    }
    while (left * 2 < count) left *= 2;
    matmul_by_sections(bench, isa, of, first, left, to, room);
    matmul_by_sections(bench, isa, of, first + left, count - left, room, room + size);
    for (int64_t i = 0; i < size; i++) to[i] += room[i];
}

/* Sections of k are products of their own, added by a balanced tree: whole, and as ranks have some of
 * them each. */
TEST_ONCE(matmul_sections)
{
    static const struct {
        int64_t m, n, length, sections;
    } shapes[] = {{5, 7, 1, 8},    {33, 70, 12, 2},   {300, 130, 31, 3}, {1, 40, 33, 4},
                  {40, 1, 64, 5},  {90, 33, 520, 4},  {64, 48, 32, 16},  {17, 300, 9, 7},
                  {400, 64, 6, 8}, {130, 65, 1030, 3}};
    static const int64_t ranks_of[] = {2, 3, 4, 8};
    matmul_random random = {12};
    static matmul_bench bench;
    static float want[1 << 18], room[1 << 18], part[1 << 18];
    matmul_wants_bf16(t);
    if (!matmul_open(t, &bench, 1 << 19, 32 << 20)) return;
    for (int round = 0; round < 5 * 4 * ZFI_COUNT(shapes); round++) {
        const int shape = round % ZFI_COUNT(shapes), form = round / ZFI_COUNT(shapes) / 5;
        const zf_dtype *dtypes = matmul_dtypes[round / ZFI_COUNT(shapes) % 5];
        const zfi_isa isa = matmul_isa(t, (int)matmul_below(&random, 8));
        zfi_pool *pool = bench.pools[round % MATMUL_POOLS];
        zfi_matmul_desc d = {.m = shapes[shape].m, .n = shapes[shape].n, .batch = 1,
                             .k = shapes[shape].length * shapes[shape].sections,
                             .sections = shapes[shape].sections,
                             .dtype = dtypes[0], .c_dtype = dtypes[1]};
        const int64_t size = d.m * d.n;
        size_t bytes;
        if (round % ZFI_COUNT(shapes) == 0) matmul_fill(&bench, &random, d.dtype, d.c_dtype);
        if (round / ZFI_COUNT(shapes) && !TEST_TAKES(round + form)) continue;
        d.a = bench.a, d.b = bench.b, d.c = bench.c, d.c_row = d.n;
        d.a_row = form & 1 ? 1 : d.k, d.a_col = form & 1 ? d.m : 1;
        d.b_row = form & 2 ? 1 : d.n, d.b_col = form & 2 ? d.k : 1;
        d.accumulate = form == 2;
        memcpy(bench.c, bench.before, (size_t)size * zf_dtype_size(d.c_dtype));
        matmul_by_sections(&bench, isa, &d, 0, d.sections, want, room);
        for (int64_t i = 0; i < size; i++)
            if (d.accumulate) want[i] += (float)matmul_get(bench.before, d.c_dtype, i);
        zfi_narrow(isa, bench.first, d.c_dtype, want, size);
        bytes = zfi_matmul_tiled_scratch(isa, round % MATMUL_POOLS + 1, &d);
        CHECK(t, bytes <= bench.scratch_size);
        memset(bench.scratch, 0xff, bytes); /* NaN */
        zfi_matmul_tiled(isa, pool, &d, bench.scratch);
        if (memcmp(bench.c, bench.first, (size_t)size * zf_dtype_size(d.c_dtype))) {
            test_fail(t, __FILE__, __LINE__, "product",
                      matmul_text((char[256]){0}, "sections", isa, &d));
            return;
        }
        if (d.c_dtype != ZF_F32 || d.accumulate) continue;
        for (int i = 0; i < ZFI_COUNT(ranks_of); i++) {
            const int64_t ranks = ranks_of[i], each = d.sections / ranks;
            const void *parts[8];
            zfi_matmul_desc mine = d;
            if (d.sections % ranks || each & (each - 1) || ranks * size > ZFI_COUNT(part)) continue;
            mine.k = d.k / ranks, mine.sections = each;
            for (int64_t r = 0; r < ranks; r++) {
                mine.a = zfi_element(d.a, d.dtype, r * mine.k * d.a_col);
                mine.b = zfi_element(d.b, d.dtype, r * mine.k * d.b_row);
                mine.c = part + r * size, parts[r] = mine.c;
                zfi_matmul_tiled(isa, pool, &mine, bench.scratch);
            }
            zf_add_ranks_by_tree(bench.first, parts, (int32_t)ranks, size, ZF_F32, false);
            CHECK(t, !memcmp(bench.first, bench.c, (size_t)size * sizeof(float)));
        }
    }
}

/* A row has the same bits alone as among others, and so has a column: of B with k along memory, which a
 * row alone is not packed for, and without. */
TEST_ONCE(matmul_of_one_row)
{
    static const int64_t shapes[][3] = {{2, 17, 1},    {64, 16, 67},   {5, 15, 130}, {3, 300, 63},
                                        {9, 48, 2},    {17, 33, 1030}, {2, 90, 257}, {15, 31, 3},
                                        {33, 16, 513}, {7, 16, 2100}};
    matmul_random random = {9};
    static matmul_bench bench;
    matmul_wants_bf16(t);
    if (!matmul_open(t, &bench, 1 << 18, 16 << 20)) return;
    for (int round = 0; round < 5 * 4 * ZFI_COUNT(shapes); round++) {
        const int64_t *size = shapes[round % ZFI_COUNT(shapes)];
        const zf_dtype *dtypes = matmul_dtypes[round / ZFI_COUNT(shapes) % 5];
        const int form = round / ZFI_COUNT(shapes) / 5;
        const zfi_isa isa = matmul_isa(t, (int)matmul_below(&random, 8));
        const bool column = form & 1;
        zfi_matmul_desc d = {size[0], size[1], size[2], 1, .dtype = dtypes[0], .c_dtype = dtypes[1]};
        size_t bytes;
        if (column) d.m = size[1], d.n = size[0];
        d.c_row = d.n, bytes = (size_t)(d.m * d.n) * zf_dtype_size(d.c_dtype);
        if (round % ZFI_COUNT(shapes) == 0) matmul_fill(&bench, &random, d.dtype, d.c_dtype);
        d.a = bench.a, d.b = bench.b, d.c = bench.c;
        d.a_row = d.k, d.a_col = 1, d.b_row = 1, d.b_col = d.k, d.accumulate = form & 2;
        memcpy(bench.c, bench.before, bytes);
        zfi_matmul_tiled(isa, bench.pools[1], &d, bench.scratch);
        memcpy(bench.first, bench.c, bytes);
        memcpy(bench.c, bench.before, bytes);
        for (int64_t i = 0; i < size[0]; i++) {
            zfi_matmul_desc one = d;
            if (column) {
                char line[512 * 4]; /* a column alone is one without gaps */
                const size_t each = zf_dtype_size(d.c_dtype);
                one.n = one.c_row = 1, one.c = line;
                one.b = zfi_element(d.b, d.dtype, i * d.k);
                for (int64_t j = 0; j < d.m; j++)
                    memcpy(line + j * each, (char *)bench.c + (j * d.n + i) * each, each);
                zfi_matmul_tiled(isa, bench.pools[round % MATMUL_POOLS], &one, bench.scratch);
                for (int64_t j = 0; j < d.m; j++)
                    memcpy((char *)bench.c + (j * d.n + i) * each, line + j * each, each);
                continue;
            }
            one.m = 1, one.a = zfi_element(d.a, d.dtype, i * d.k);
            one.c = zfi_element_of(d.c, d.c_dtype, i * d.n);
            CHECK(t, zfi_matmul_tiled_scratch(isa, 2, &one) <= bench.scratch_size);
            zfi_matmul_tiled(isa, bench.pools[round % MATMUL_POOLS], &one, bench.scratch);
        }
        if (!memcmp(bench.c, bench.first, bytes)) continue;
        test_fail(t, __FILE__, __LINE__, "product", matmul_text((char[256]){0}, "bits", isa, &d));
        return;
    }
}

/* Infinities and NaN reach exactly the elements whose sums hold them. */
TEST_ONCE(matmul_not_finite)
{
    enum { M = 40, N = 70, K = 300 };
    static float a[M * K], b[K * N], c[M * N];
    float *scratch = malloc(64 + (8 << 20));
    NEED(t, scratch, NULL);
    test_defer(t, free, scratch);
    for (int i = 0; i < M * K; i++) a[i] = 1.0f;
    for (int i = 0; i < K * N; i++) b[i] = 1.0f;
    a[3 * K + 299] = INFINITY;
    b[150 * N + 69] = NAN;
    for (int i = 0; i < 3; i++) {
        zfi_matmul_desc d = {M, N, K, 1, a, b, c, .a_row = K, .a_col = 1, .b_row = N, .b_col = 1};
        d.c_row = N;
        CHECK(t, zfi_matmul_tiled_scratch(matmul_isa(t, i), 1, &d) <= 8 << 20);
        zfi_matmul_tiled(matmul_isa(t, i), NULL, &d, (void *)(((uintptr_t)scratch + 63) / 64 * 64));
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++) {
                if (n == 69) CHECK(t, isnan(c[m * N + n]));
                else if (m == 3) CHECK(t, c[m * N + n] == INFINITY);
                else CHECK(t, c[m * N + n] == K);
            }
    }
}

/* zfi_matmul, which may use a BLAS, gives the results of the tiles within rounding, also with an
 * epilogue and with gaps between rows of C. */
TEST_ONCE(matmul_blas_and_tiles_agree)
{
    static const int64_t shapes[][3] = {{1, 1, 1},    {5, 40, 33},  {64, 64, 64},
                                        {130, 1, 70}, {1, 200, 90}, {100, 96, 300}};
    matmul_random random = {6};
    static matmul_bench bench;
    if (!matmul_open(t, &bench, 1 << 18, 16 << 20)) return;
    matmul_fill(&bench, &random, ZF_F32, ZF_F32);
    for (int shape = 0; shape < ZFI_COUNT(shapes); shape++)
        for (int form = 0; form < 16; form++) {
            zfi_matmul_desc d = {shapes[shape][0], shapes[shape][1], shapes[shape][2],
                                 .batch = 1 + form % 3};
            size_t count;
            bench.d = &d;
            d.a = bench.a, d.b = bench.b, d.c = bench.c;
            /* as they lie, transposed, and (form 12 and on) with a step in A that no BLAS takes */
            d.a_row = form & 1 ? 1 : d.k, d.a_col = form & 1 ? d.m : 1;
            d.b_row = form & 2 ? 1 : d.n, d.b_col = form & 2 ? d.k : 1;
            if (form >= 12) d.a_row *= 2, d.a_col *= 2;
            d.a_batch = form & 4 ? 17 : d.m * d.k, d.b_batch = d.k * d.n;
            d.c_row = d.n + 3, d.c_batch = d.m * d.c_row;
            d.accumulate = form & 8;
            d.epilogue = form & 4 ? matmul_epilogue : NULL, d.epilogue_context = &bench;
            count = (size_t)(d.batch * d.c_batch);
            CHECK(t, zfi_matmul_scratch(zfi_isa_best_of_all(), 2, &d) <= bench.scratch_size);
            memset(bench.seen, 0, count * sizeof *bench.seen);
            memcpy(bench.c, bench.before, count * sizeof(float));
            zfi_matmul_tiled(zfi_isa_best_of_all(), bench.pools[1], &d, bench.scratch);
            memcpy(bench.first, bench.c, count * sizeof(float));
            memcpy(bench.c, bench.before, count * sizeof(float));
            zfi_matmul(zfi_isa_best_of_all(), bench.pools[1], &d, bench.scratch);
            for (size_t i = 0; i < count; i++) {
                bool inside = (int64_t)i % d.c_row < d.n;
                /* sums of k products of numbers up to 1 */
                CHECK_NEAR(t, ((float *)bench.c)[i], ((float *)bench.first)[i],
                           inside ? (double)(2 * d.k + 4) * 0x1p-23 * (double)(d.k + 4) : 0);
                CHECK(t, bench.seen[i] == (inside && d.epilogue ? 2 : 0));
            }
        }
}
