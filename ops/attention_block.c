/* What attention computes of a block of scores: rows of exponentials, products of parts, rows that
 * are scaled, loaded and stored. */

#if defined(__GNUC__)
#define ZFI_PREFETCH_NEAR(p) __builtin_prefetch((p), 0, 2) /* into the second-level cache */
#else
#define ZFI_PREFETCH_NEAR(p) (void)0
#endif

enum {
    ZFI_SCORE_LANES = 32, /* rows of scores are a multiple of this: whole vectors */
    ZFI_SCORE_ROWS = 8    /* rows computed together */
};

/* e^x for x <= 1; 0 below e^-87, which is too small to change the sum of a row. */
ZFI_BODY float zfi_exp_falling(zfi_isa isa, float x)
{
    int32_t n;
    float r = zfi_exp_reduce(isa, zfi_pick(isa, x < -87.0f, -87.0f, x), &n);
    float y = (1.0f + zfi_expm1_small(isa, r)) * zfi_exp2_of(n);
    return zfi_pick(isa, x < -87.0f, 0.0f, y);
}

ZFI_BODY float zfi_fold_scores_max(zfi_isa isa, float lane[ZFI_SCORE_LANES])
{
    for (int l = 0; l < 16; l++)
        lane[l] = zfi_pick(isa, lane[l] < lane[l + 16], lane[l + 16], lane[l]);
    for (int l = 0; l < 8; l++)
        lane[l] = zfi_pick(isa, lane[l] < lane[l + 8], lane[l + 8], lane[l]);
    for (int l = 0; l < 4; l++)
        lane[l] = zfi_pick(isa, lane[l] < lane[l + 4], lane[l + 4], lane[l]);
    for (int l = 0; l < 2; l++)
        lane[l] = zfi_pick(isa, lane[l] < lane[l + 2], lane[l + 2], lane[l]);
    return zfi_pick(isa, lane[0] < lane[1], lane[1], lane[0]);
}

/* At most ZFI_SCORE_ROWS rows of a block of scores, and their values of the softmax. */
typedef struct zfi_score_rows {
    float *s, *ds; /* n columns of each row; rows begin `line` elements apart */
    int64_t rows, n, line;
    const float *bias;    /* added to the scaled scores */
    int64_t bias_row;     /* elements from one row to the next */
    const uint16_t *draw; /* an element is kept where its draw is below the threshold */
    int64_t draw_row;
    uint32_t threshold;
    float scale, keep;
    float *most, *sum, *fix;  /* forward: one number for each row */
    const float *lse, *delta; /* backward: one number for each row */
} zfi_score_rows;

/* Turns the products of a row into scores. Returns the maximum of these and `most`. */
ZFI_BODY float zfi_score_row_body(zfi_isa isa, float *restrict s, int64_t n, float scale,
                                  const float *restrict bias, float most)
{
    float lane[ZFI_SCORE_LANES];
    for (int l = 0; l < ZFI_SCORE_LANES; l++) lane[l] = most;
    for (int64_t i = 0; i < n; i += ZFI_SCORE_LANES)
        for (int l = 0; l < ZFI_SCORE_LANES; l++) {
            float score = zfi_fma(isa, s[i + l], scale, bias[i + l]);
            s[i + l] = score;
            lane[l] = zfi_pick(isa, lane[l] < score, score, lane[l]);
        }
    return zfi_fold_scores_max(isa, lane);
}

ZFI_KERNEL_OF(float, zfi_score_row,
              (float *s, int64_t n, float scale, const float *bias, float most),
              (s, n, scale, bias, most))

/* Turns the scores of a row into e^(score - least), 0 where dropout drops. Returns the sum before
 * dropout. */
ZFI_BODY float zfi_exp_row_body(zfi_isa isa, float *restrict s, int64_t n, float least,
                                const uint16_t *restrict draw, uint32_t threshold)
{
    float lane[ZFI_SCORE_LANES] = {0};
    for (int64_t i = 0; i < n; i += ZFI_SCORE_LANES)
        for (int l = 0; l < ZFI_SCORE_LANES; l++) {
            float p = zfi_exp_falling(isa, s[i + l] - least);
            lane[l] += p;
            s[i + l] = zfi_pick(isa, draw[i + l] < threshold, p, 0.0f);
        }
    return zfi_fold_half_sum(lane);
}

ZFI_KERNEL_OF(float, zfi_exp_row,
              (float *s, int64_t n, float least, const uint16_t *draw, uint32_t threshold),
              (s, n, least, draw, threshold))

/* fix[r] = e^(before[r] - least[r]). Before the first key that a row sees, before[r] is -inf and
 * fix[r] is 0. */
ZFI_BODY void zfi_exp_fixes_body(zfi_isa isa, float *fix, const float *before, const float *least,
                                 int64_t rows)
{
    ZFI_VECTOR
    for (int64_t r = 0; r < rows; r++) fix[r] = zfi_exp_falling(isa, before[r] - least[r]);
}
ZFI_KERNEL(zfi_exp_fixes, (float *fix, const float *before, const float *least, int64_t rows),
           (fix, before, least, rows))

/* Turns products into probabilities times e^maximum, 0 where dropout drops. most and sum: the
 * maximum and the sum over the blocks of a row so far. fix: the factor for the results of earlier
 * blocks. A NaN need not be found by the maximum: it is in the sum. */
static void zfi_attend_rows(zfi_isa isa, const zfi_score_rows *x)
{
    float most[ZFI_SCORE_ROWS], least[ZFI_SCORE_ROWS];
    for (int64_t r = 0; r < x->rows; r++) {
        most[r] = zfi_score_row(isa, x->s + r * x->line, x->n, x->scale, x->bias + r * x->bias_row,
                                x->most[r]);
        least[r] = most[r] == -INFINITY ? 0 : most[r];
    }
    zfi_exp_fixes(isa, x->fix, x->most, least, x->rows);
    for (int64_t r = 0; r < x->rows; r++) {
        float sum = zfi_exp_row(isa, x->s + r * x->line, x->n, least[r], x->draw + r * x->draw_row,
                                x->threshold);
        x->sum[r] = zfi_fma(isa, x->sum[r], x->fix[r], sum);
        x->most[r] = most[r];
    }
}

/* Turns q k^T into probabilities after dropout, and dy v^T into dS times the scale. */
ZFI_BODY void zfi_attend_grad_rows_body(zfi_isa isa, const zfi_score_rows *x)
{
    float scale = x->scale, keep = x->keep;
    uint32_t threshold = x->threshold;
    int64_t n = x->n;
    for (int64_t r = 0; r < x->rows; r++) {
        float *s = x->s + r * x->line, *ds = x->ds + r * x->line;
        const float *bias = x->bias + r * x->bias_row;
        const uint16_t *draw = x->draw + r * x->draw_row;
        float lse = x->lse[r], delta = x->delta[r];
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) {
            float p = zfi_exp_falling(isa, zfi_fma(isa, s[i], scale, bias[i]) - lse);
            float kept = zfi_pick(isa, draw[i] < threshold, keep, 0.0f);
            ds[i] = p * scale * zfi_fma(isa, ds[i], kept, -delta);
            s[i] = p * kept;
        }
    }
}
ZFI_KERNEL(zfi_attend_grad_rows, (const zfi_score_rows *x), (x))

/* Rows that will be needed soon. A few of them are prefetched with each tile. */
typedef struct zfi_soon {
    struct {
        const char *at;
        size_t row;
        int64_t rows;
    } part[8];
    int parts, part_now;
    int64_t row_now;
    size_t bytes; /* bytes of a row */
} zfi_soon;

/* Adds rows of x to the list, from element `at` on, `row` elements apart. */
static void zfi_soon_add(zfi_soon *soon, const zf_array *x, int64_t at, int64_t row, int64_t rows)
{
    size_t size = zf_dtype_size(x->dtype);
    soon->part[soon->parts].at = (const char *)x->data + (size_t)at * size;
    soon->part[soon->parts].row = (size_t)row * size;
    soon->part[soon->parts++].rows = rows;
}

enum { ZFI_SOON_ROWS = 8 };

static void zfi_soon_fetch(zfi_soon *soon)
{
    for (int k = 0; k < ZFI_SOON_ROWS && soon->part_now < soon->parts; k++) {
        const char *row =
            soon->part[soon->part_now].at + (size_t)soon->row_now * soon->part[soon->part_now].row;
        for (size_t i = 0; i < soon->bytes; i += 64) ZFI_PREFETCH_NEAR(row + i);
        if (++soon->row_now < soon->part[soon->part_now].rows) continue;
        soon->row_now = 0;
        soon->part_now++;
    }
}

/* The left operand of a product of blocks. Row i begins i * step words after `at`. Within a tile,
 * `row` words lie between rows, `col` words between neighbours in k. */
typedef struct zfi_left {
    const void *at;
    int64_t step, row, col;
} zfi_left;

/* The right operand: word p of k, of the columns of a tile, begins p * row words after their
 * panel. */
typedef struct zfi_right {
    const float *at;
    int64_t row, panel;
} zfi_right;

/* One product of blocks, k in elements. With causal masking, row i of the queries sees `seen` + i
 * keys of the block. Elements of keys that it does not see are not computed where the result is
 * scores, and not added where k runs over keys. */
typedef struct zfi_part_product {
    enum { ZFI_SCORES, ZFI_OVER_KEYS, ZFI_OVER_QUERIES } form;
    int64_t m, n, k, rows; /* rows of a tile */
    zfi_left a;
    zfi_right b;
    float *c;
    int64_t c_row;
    bool add;
    int64_t seen;
} zfi_part_product;

static void zfi_multiply_part(const zfi_tile *tile, const zfi_part_product *x, zfi_soon *soon)
{
    const int64_t columns = 2 * tile->lanes, per = tile->per_word, unit = tile->k_unit;
    const int64_t words = zfi_tile_words(tile, x->k);
    const int64_t step =
        words > ZFI_K_BLOCK ? zfi_div_up(words, zfi_div_up(words, ZFI_K_BLOCK)) : words;
    const int64_t keys = x->form == ZFI_SCORES ? x->n : x->form == ZFI_OVER_KEYS ? x->k : x->m;
    for (int64_t j = 0; j < x->n; j += columns) {
        int vectors = x->n - j > tile->lanes ? 2 : 1;
        const float *b = x->b.at + j / columns * x->b.panel;
        if (tile->column && x->seen >= keys) { /* every row sees all of them */
            tile->column(x->m, x->rows, vectors > 1, words, x->a.at, x->a.row, b, x->c + j,
                         x->c_row, x->add);
            for (int64_t i = 0; i < x->m; i += x->rows) zfi_soon_fetch(soon);
            continue;
        }
        for (int64_t i = 0; i < x->m; i += x->rows) {
            int64_t rows = zfi_min(x->rows, x->m - i), most = x->seen + i + rows - 1;
            int64_t from = 0, k = words;
            const float *a = (const float *)x->a.at + i * x->a.step; /* words of any type */
            float *c = x->c + i * x->c_row + j;
            if (x->form == ZFI_SCORES && j >= most) continue;
            if (x->form == ZFI_OVER_KEYS && most < x->k) k = zfi_tile_words(tile, zfi_max(0, most));
            if (x->form == ZFI_OVER_QUERIES)
                from = zfi_max(0, zfi_min(x->k, i + 1 - x->seen)) / (per * unit) * unit;
            if (tile->column)
                tile->column(rows, rows, vectors > 1, k - from, a + from, x->a.row,
                             b + from * x->b.row, c, x->c_row, x->add);
            for (int64_t p = from; !tile->column && (p < k || p == from); p += step)
                tile->micro[rows - 1][vectors - 1](zfi_min(step, k - p), a + p * x->a.col, x->a.row,
                                                   x->a.col, b + p * x->b.row, x->b.row, c,
                                                   x->c_row, x->add || p > from);
            zfi_soon_fetch(soon);
        }
    }
}

/* y[r,0..n) = by[r * step] x[r,0..n), with the given distances between rows; y may be x. Prefetches
 * the rows ahead. */
ZFI_BODY void zfi_scale_rows_body(zfi_isa isa, float *y, int64_t y_row, const float *x,
                                  int64_t x_row, int64_t rows, int64_t n, const float *by,
                                  int64_t step)
{
    (void)isa;
    for (int64_t r = 0; r < rows; r++, y += y_row, x += x_row) {
        float factor = by[r * step];
        for (int64_t i = 0; i < n; i += 16) {
            ZFI_PREFETCH(x + 8 * x_row + i);
            ZFI_PREFETCH_WRITE(y + 8 * y_row + i);
        }
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
    }
}
ZFI_KERNEL(zfi_scale_rows,
           (float *y, int64_t y_row, const float *x, int64_t x_row, int64_t rows, int64_t n,
            const float *by, int64_t step),
           (y, y_row, x, x_row, rows, n, by, step))

/* The address of element `at` of an array. */
static void *zfi_array_at(const zf_array *x, int64_t at)
{
    return (char *)x->data + at * (int64_t)zf_dtype_size(x->dtype);
}

enum {
    ZFI_ROWS_TO_FETCH = 8
}; /* ahead: of a head they are too far apart for the processor to do it */

/* y[0..d) = a row of x from element `at` on; y is filled with 0 up to `width`. */
static void zfi_load_row(zfi_isa isa, float *y, int64_t width, const zf_array *x, int64_t at,
                         int64_t d)
{
    zfi_widen(isa, y, x->dtype, zfi_array_at(x, at), d);
    if (d < width) memset(y + d, 0, (size_t)(width - d) * sizeof *y);
}

/* y[0..rows)[0..d) = rows of x from element `at` on, `row` apart. Rows of y are `width` apart, and
 * filled with 0 after d. */
static void zfi_load_rows(zfi_isa isa, float *y, int64_t width, const zf_array *x, int64_t at,
                          int64_t row, int64_t rows, int64_t d)
{
    const int64_t line = 64 / (int64_t)zf_dtype_size(x->dtype), ahead = ZFI_ROWS_TO_FETCH * row;
    for (int64_t r = 0; r < rows; r++, y += width, at += row) {
        for (int64_t i = 0; i < d; i += line)
            ZFI_PREFETCH(zfi_element(x->data, x->dtype, at + ahead + i));
        zfi_load_row(isa, y, width, x, at, d);
    }
}

/* The inverse of zfi_load_rows, without the filling. */
static void zfi_store_rows(zfi_isa isa, const zf_array *y, int64_t at, int64_t row, const float *x,
                           int64_t width, int64_t rows, int64_t d)
{
    for (int64_t r = 0; r < rows; r++, x += width, at += row)
        zfi_narrow(isa, zfi_array_at(y, at), y->dtype, x, d);
}
