/* Products that sum over runs, as over q, k and v of packed attention: what ranks have of each run
 * adds up to the bits of the whole product. */
#include "../support/test.h"

enum { M = 5, N = 37, RUNS = 3 };

/* Part `part` of `parts` of each of the runs of dimension `axis`, one after the other. */
static zf_tensor part_of(zf_tensor x, int32_t axis, int part, int parts)
{
    const int64_t run = zf_tensor_shape(x).dims[axis] / RUNS, each = run / parts;
    zf_tensor its[RUNS];
    for (int r = 0; r < RUNS; r++)
        its[r] = zf_slice(x, axis, r * run + part * each, r * run + (part + 1) * each);
    return zf_concat(its, RUNS, axis);
}

/* The sum of what `parts` ranks with some of four sections compute. */
static zf_tensor shared(zf_tensor x, zf_tensor w, zf_matmul_desc d, int parts)
{
    zf_tensor sums[4];
    d.sections /= parts;
    for (int k = 0; k < parts; k++)
        sums[k] = zf_matmul_ex(part_of(x, d.transpose_a ? 0 : 1, k, parts),
                               part_of(w, d.transpose_b ? 1 : 0, k, parts), &d);
    for (int far = 1; far < parts; far *= 2)
        for (int k = 0; k < parts; k += 2 * far) sums[k] = zf_add(sums[k], sums[k + far]);
    return sums[0];
}

static void check(test *t, zf_dtype dtype, int64_t k, bool transpose_a, bool transpose_b)
{
    enum { MOST = 2400 };
    static double bytes[3][M * N];
    static float numbers[MOST * N];
    const zf_matmul_desc d = {
        .transpose_a = transpose_a, .transpose_b = transpose_b, .sections = 4, .wide = true,
        .runs = RUNS};
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x, w, y[3];
    zf_program *p;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    x = zf_input(g, "x", ZF_F32, transpose_a ? ZF_SHAPE(k, M) : ZF_SHAPE(M, k));
    w = zf_input(g, "w", ZF_F32, transpose_b ? ZF_SHAPE(N, k) : ZF_SHAPE(k, N));
    y[0] = zf_matmul_ex(zf_cast(x, dtype), zf_cast(w, dtype), &d);
    y[1] = shared(zf_cast(x, dtype), zf_cast(w, dtype), d, 2);
    y[2] = shared(zf_cast(x, dtype), zf_cast(w, dtype), d, 4);
    for (int i = 0; i < 3; i++) zf_output(y[i], (const char *[]){"whole", "two", "four"}[i]);
    p = zf_compile(g, NULL);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, (test_cleanup *)zf_program_free, p);
    for (int64_t i = 0; i < k * N; i++) numbers[i] = (float)(i % 97) / 31 - 1;
    zf_write(p, x, numbers, (size_t)(k * M) * sizeof *numbers);
    for (int64_t i = 0; i < k * N; i++) numbers[i] = (float)(i % 89) / 37 - 1;
    zf_write(p, w, numbers, (size_t)(k * N) * sizeof *numbers);
    zf_step(p);
    for (int i = 0; i < 3; i++) {
        const size_t size = M * N * zf_dtype_size(zf_tensor_dtype(y[i]));
        zf_read(p, y[i], bytes[i], size);
        CHECK_TEXT(t, zf_program_error(p), "");
        CHECK(t, !memcmp(bytes[0], bytes[i], size));
    }
}

/* Sections of one block of k, of several, and of no whole tile. */
TEST_ONCE(products_of_runs)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F64};
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes && !t->failed; k++) {
        check(t, dtypes[k], 60, false, false);
        check(t, dtypes[k], 96, true, true);
        check(t, dtypes[k], 192, false, true);
    }
    check(t, ZF_F32, 2400, true, false);
}
