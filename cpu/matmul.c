/* The f32 matrix product: C[b,m,n] = sum over k of A[b,m,k] B[b,k,n]. */

/* Called once on every finished tile of C while it is in cache: c points to C[row,col], rows x cols elements. */
typedef void zfi_epilogue(void *context, float *c, int64_t c_row_stride, int64_t row, int64_t col,
                          int64_t rows, int64_t cols);

/* Strides are in elements and may be anything for A and B (0 repeats); columns of C are neighbours. */
typedef struct zfi_matmul_desc {
    int64_t m, n, k, batch;
    const float *a, *b;
    float *c;
    int64_t a_row, a_col, a_batch; /* A[b,m,k] is a[b * a_batch + m * a_row + k * a_col] */
    int64_t b_row, b_col, b_batch; /* B[b,k,n] is b[b * b_batch + k * b_row + n * b_col] */
    int64_t c_row, c_batch;        /* C[b,m,n] is c[b * c_batch + m * c_row + n] */
    bool accumulate;               /* C += A B rather than C = A B */
    zfi_epilogue *epilogue;        /* or NULL */
    void *epilogue_context;
} zfi_matmul_desc;

/* The product in double precision, and no faster than it is plain. */
ZFI_UNUSED static void zfi_matmul_reference(const zfi_matmul_desc *d)
{
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t m = 0; m < d->m; m++) {
            float *c = d->c + b * d->c_batch + m * d->c_row;
            for (int64_t n = 0; n < d->n; n++) {
                double sum = d->accumulate ? c[n] : 0.0;
                for (int64_t k = 0; k < d->k; k++)
                    sum += (double)d->a[b * d->a_batch + m * d->a_row + k * d->a_col] *
                           d->b[b * d->b_batch + k * d->b_row + n * d->b_col];
                c[n] = (float)sum;
            }
            if (d->epilogue) d->epilogue(d->epilogue_context, c, d->c_row, b * d->m + m, 0, 1, d->n);
        }
}

/* Bytes of scratch that zfi_matmul needs; depends on the shape alone. */
ZFI_UNUSED static size_t zfi_matmul_scratch(zfi_isa isa, int threads, const zfi_matmul_desc *d)
{
    (void)isa, (void)threads, (void)d;
    return 0;
}

static void zfi_matmul_row(void *context, int64_t index, int worker)
{
    const zfi_matmul_desc *d = context;
    int64_t b = index / d->m, m = index % d->m;
    float *restrict c = d->c + b * d->c_batch + m * d->c_row;
    (void)worker;
    if (!d->accumulate) memset(c, 0, (size_t)d->n * sizeof *c);
    for (int64_t k = 0; k < d->k; k++) {
        float a = d->a[b * d->a_batch + m * d->a_row + k * d->a_col];
        const float *row = d->b + b * d->b_batch + k * d->b_row;
        if (d->b_col == 1)
            for (int64_t n = 0; n < d->n; n++) c[n] += a * row[n];
        else
            for (int64_t n = 0; n < d->n; n++) c[n] += a * row[n * d->b_col];
    }
    if (d->epilogue) d->epilogue(d->epilogue_context, c, d->c_row, b * d->m + m, 0, 1, d->n);
}

/* C = A B, or C += A B, on the pool's threads. `scratch` has zfi_matmul_scratch(isa, threads of the pool, d) bytes
 * aligned to 64. The result does not depend on the number of threads. */
ZFI_UNUSED static void zfi_matmul(zfi_isa isa, zfi_pool *pool, const zfi_matmul_desc *d, void *scratch)
{
    zfi_matmul_desc copy = *d;
    (void)isa, (void)scratch;
    zfi_pool_run(pool, d->n ? d->batch * d->m : 0, zfi_matmul_row, &copy);
}
