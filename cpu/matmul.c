/* The matrix product in f32: C[b,m,n] = sum over k of A[b,m,k] B[b,k,n]; A and B are f32, bf16 or
 * f16, and so is C, rounded once.
 *
 * Tiled (Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication, 2008). A tile of C
 * stays in registers while a block of k runs over a panel of A and a panel of B:
 *
 *                 +-----+-----+-----+   k is cut into equal blocks, which depend on its length
 *              k  |  0  |  1  |  2  |   alone. A tile sums a block from zero and adds it to C,
 *                 +-----+-----+-----+   block after block. So the bits are the same for any number
 *          k                            of threads, which share m and n only, and for every way
 *       +-----+   +-----+-----+-----+   of reading.
 *     0 |     |   |     | C   |     |
 *       +-----+   +-----+-----+-----+   A packed panel of B is [k][columns of a tile], one of A
 *     1 |     |   |     |     |     |   [k][rows of a tile]. Some operands are read in place: A
 *       +-----+   +-----+-----+-----+   with k along memory, and A or B with short rows.
 *
 * A task has some panels of A and some columns. It packs the panels that it needs for itself, one
 * block of k at a time, into its own core's cache: another core's cache would cost more to read.
 * Neighbouring tasks, which go to one thread, share rows. Where the second-level cache holds many
 * rows of A, a thread keeps those that it packed for its next tasks, and all tasks do one block of
 * k before the next.
 *
 * One row of A times rows of B that lie along k (a token times a weight) is bound by reading B,
 * which is then not packed (row.c). Its sums have the same order.
 *
 * Blocks of k are counted in words (tile.c). A C of 16 bits is summed in f32 aside, all of a task's
 * rows where there are several blocks of k, and rounded when its last block is done.
 *
 * With `sections`, k is cut into so many equal sections first. Each is a product of its own, from
 * zero, with the blocks of its length; C is their sum, made by a balanced tree (base/tree.c). So a
 * product of some neighbouring sections, a power of two of them, has the bits of their subtree.
 * A task keeps the open sums of the tree aside, in f32. Those of sections 0 to 7 as they are added:
 *
 *     depth 0   0   01   01   01   0..3   0..3   0..3   0..3   0..7
 *     depth 1            2    23          4      45     45  67
 */

/* y += x */
ZFI_BODY void zfi_add_run_body(zfi_isa isa, float *y, const float *x, int64_t n)
{
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}
ZFI_KERNEL(zfi_add_run, (float *y, const float *x, int64_t n), (y, x, n))

/* Called once on every finished block of C, in f32, while it is in cache: c points to its first
 * element, its extent is rows x cols, and `row` counts through the batch: (matrix of it) * m + row
 * of the matrix. */
typedef void zfi_epilogue(void *context, float *c, int64_t c_row_stride, int64_t row, int64_t col,
                          int64_t rows, int64_t cols);

/* Strides are in elements and may be anything for A and B (0 repeats); columns of C are neighbours.
 * The batch may be two nested ones: b < batch, o < outer.
 *
 *     A[o,b,m,k] is a[o * a_outer + b * a_batch + m * a_row + k * a_col]
 *     B[o,b,k,n] is b[o * b_outer + b * b_batch + k * b_row + n * b_col]
 *     C[o,b,m,n] is c[o * c_outer + b * c_batch + m * c_row + n]
 */
typedef struct zfi_matmul_desc {
    int64_t m, n, k, batch;
    const void *a, *b;
    void *c;
    int64_t a_row, a_col, a_batch;
    int64_t b_row, b_col, b_batch;
    int64_t c_row, c_batch;
    bool accumulate;        /* C += A B rather than C = A B */
    zfi_epilogue *epilogue; /* or NULL */
    void *epilogue_context;
    int64_t outer, a_outer, b_outer, c_outer; /* outer 0 means 1 */
    zf_dtype dtype, c_dtype;                  /* of A and B, and of C: f32, bf16 or f16 */
    /* 0, or b is a matrix of so many columns that zfi_matmul_pack_b has packed, B are those from
     * packed_from on, a multiple of ZFI_TILE_COLUMNS, and there is no batch */
    int64_t packed, packed_from;
    int64_t sections; /* of k, which is a multiple; 0 means 1. More: B is not packed */
    int64_t runs;     /* of k, of each of which a section has a part; 0 means 1. More: the same */
} zfi_matmul_desc;

/* Element `at` of an array of f32, bf16 or f16. */
ZFI_INLINE const void *zfi_element(const void *x, zf_dtype dtype, int64_t at)
{
    return (const char *)x + at * (dtype == ZF_F32 ? 4 : 2);
}

ZFI_INLINE void *zfi_element_of(void *x, zf_dtype dtype, int64_t at)
{
    return (char *)x + at * (dtype == ZF_F32 ? 4 : 2);
}

/* Matrix i of the batch of each. */
static void zfi_matmul_at(const zfi_matmul_desc *d, int64_t i, const void **a, const void **b,
                          void **c)
{
    int64_t outer = i / d->batch, inner = i % d->batch;
    *a = zfi_element(d->a, d->dtype, outer * d->a_outer + inner * d->a_batch);
    *b = zfi_element(d->b, d->dtype, outer * d->b_outer + inner * d->b_batch);
    *c = zfi_element_of(d->c, d->c_dtype, outer * d->c_outer + inner * d->c_batch);
}

static int64_t zfi_matmul_count(const zfi_matmul_desc *d)
{
    return d->batch * (d->outer ? d->outer : 1);
}

static bool zfi_matmul_is_cut(const zfi_matmul_desc *d) { return d->sections > 1 || d->runs > 1; }

/* Elements of k in a section. */
static int64_t zfi_matmul_section(const zfi_matmul_desc *d)
{
    return d->sections > 1 ? d->k / d->sections : d->k;
}

/* Elements of a section that lie together in k. */
static int64_t zfi_matmul_together(const zfi_matmul_desc *d)
{
    return zfi_matmul_section(d) / (d->runs > 1 ? d->runs : 1);
}

/* The place in k of what sections, one after the other, have at `at`. */
static int64_t zfi_matmul_k(const zfi_matmul_desc *d, int64_t at)
{
    const int64_t length = zfi_matmul_section(d), together = zfi_matmul_together(d);
    if (d->runs < 2) return at;
    return at % length / together * (d->k / d->runs) + at / length * together + at % together;
}

/* -------------------------------------------------------------------------------------- blocks */

enum {
    ZFI_IN_PLACE = 1 << 17, /* elements of B, 512 KiB, that all tasks read before the next */
    ZFI_SPAN = 256,         /* columns of a finished block */
    ZFI_ROWS_TO_PACK = 192, /* rows that are worth to pack B for once more */
    ZFI_ROWS_A_TASK = 128,  /* rows of a task at least where A is packed for each span */
    ZFI_ROWS_ASIDE = 1008,  /* rows of a task that are summed aside: 1 MiB */
    ZFI_SPAN_KEEPING = 128, /* columns of a task with an A that is kept */
    ZFI_WORTH_KEEPING = 240 /* products that each packed element takes part in, at least */
};

/* How a product is tiled: by its shape and strides, the instruction set and the number of threads.
 * Of all fields only k_block affects the bits of the result. */
typedef struct zfi_matmul_plan {
    const zfi_tile *tile;
    zfi_isa isa;
    bool converts;           /* A and B to f32 while they are packed */
    int64_t columns;         /* of a tile */
    int64_t rows, panels;    /* rows of a panel of A (but the last), and how many there are */
    int64_t k_block;         /* of each but the last of a section */
    int depths;              /* sums of a tree over sections that are open at once; 1: no tree */
    int64_t group;           /* panels of A that go together, and are packed together */
    bool direct_a, direct_b; /* read where it lies */
    int64_t chunk;           /* k that all tasks do before the next: a multiple of k_block */
    int64_t task, span;      /* panels and columns of a task */
    bool keep;               /* a thread packs A once for neighbouring tasks with the same rows */
    /* scratch: words of A, of B and of C for a thread; all of it, with what each thread keeps */
    size_t a_size, b_size, c_size, bytes;
} zfi_matmul_plan;

/* Which block of A a thread keeps; the first row is -1 where it keeps none. */
typedef struct zfi_matmul_kept {
    int64_t row, k;
} zfi_matmul_kept;

/* Sums of 16 bits, and those over sections, stay aside from one block of k to the next. */
static bool zfi_matmul_has_blocks(const zfi_matmul_plan *plan, const zfi_matmul_desc *d)
{
    return plan->k_block < d->k || zfi_matmul_is_cut(d);
}

/* Whether rows of a tile's width at this distance may be read in place: they do not share a few
 * sets of the cache (a way of the first level has 4 KiB), or are not read repeatedly, and several
 * of them are on one page. */
static bool zfi_short_rows(int64_t stride, int64_t uses)
{
    return stride > 0 && stride < 1024 && (stride % 512 || uses <= 4);
}

static int64_t zfi_round_up(int64_t n, int64_t unit) { return zfi_div_up(n, unit) * unit; }

/* Words of k where it is packed. */
static int64_t zfi_tile_words(const zfi_tile *tile, int64_t k)
{
    return zfi_round_up(zfi_div_up(k, tile->per_word), tile->k_unit);
}

/* Where and how A may be read in place, and B. */
static void zfi_matmul_read(zfi_matmul_plan *plan, const zfi_matmul_desc *d)
{
    int64_t per = plan->tile->per_word, tiles = zfi_div_up(d->n, plan->columns);
    /* many rows along k at a distance of 4 KiB share one set of the cache, which is too small */
    bool apart = d->a_row / per % 1024 || plan->rows <= 6;
    if (plan->converts) return;
    plan->direct_a = d->a_col == 1 && (apart || plan->tile->column) && d->a_row % per == 0 &&
                     zfi_matmul_together(d) % (per * plan->tile->k_unit) == 0;
    if (per != 1) return;
    plan->direct_a |= d->a_row == 1 && zfi_short_rows(d->a_col, tiles);
    plan->direct_b = !d->packed && d->b_col == 1 && d->n % plan->tile->lanes == 0 &&
                     (plan->panels == 1 || zfi_short_rows(d->b_row, plan->panels));
}

/* Groups of rows where A is kept: as many as fit, and as have a thread pack the fewest rows of A
 * and columns of B. 0: reading operands where they lie is faster, or they are not kept. */
static int64_t zfi_matmul_groups_to_keep(const zfi_matmul_plan *plan, const zfi_matmul_desc *d,
                                         int threads)
{
    int64_t least, best = INT64_MAX, groups = 0, rows, cols;
    if (!plan->tile->keep || plan->panels <= plan->group || zfi_matmul_count(d) > 1) return 0;
    if (d->packed) return 0; /* A is packed once for all columns, or not at all */
    if ((d->c_dtype != ZF_F32 && plan->k_block < d->k) || zfi_matmul_is_cut(d))
        return 0; /* a task sums all blocks aside */
    least = zfi_div_up(d->m, plan->tile->keep);
    for (int64_t g = least; g <= zfi_max(least, threads); g++) {
        int64_t packed = d->m / g + d->n * g / threads;
        if (packed < best) best = packed, groups = g;
    }
    rows = d->m / groups, cols = d->n * zfi_min(groups, threads) / threads;
    return plan->direct_a && rows * cols < ZFI_WORTH_KEEPING * (rows + cols) ? 0 : groups;
}

/* Elements of a block of k, of each but the last. */
static int64_t zfi_matmul_k_block(const zfi_tile *tile, int64_t k)
{
    const int64_t words = zfi_div_up(k, tile->per_word);
    return tile->per_word *
           zfi_round_up(zfi_div_up(words, zfi_div_up(words, tile->k_block)), tile->k_unit);
}

static zfi_matmul_plan zfi_matmul_plan_of(zfi_isa isa, int threads, const zfi_matmul_desc *d)
{
    zfi_matmul_plan plan = {.tile = zfi_tile_of_product(isa, d->dtype), .isa = isa};
    int64_t columns = 2 * plan.tile->lanes, n = zfi_round_up(d->n, columns), spans, groups;
    int64_t wanted; /* tasks of a matrix */
    int64_t per = plan.tile->per_word, block, kept;
    bool aside = d->c_dtype != ZF_F32 || zfi_matmul_is_cut(d);
    wanted = zfi_div_up(plan.tile->tasks * (int64_t)threads, zfi_matmul_count(d));
    plan.converts = d->dtype != ZF_F32 && per == 1;
    plan.columns = columns;
    plan.rows = zfi_div_up(d->m, zfi_div_up(d->m, plan.tile->rows));
    plan.panels = zfi_div_up(d->m, plan.rows);
    plan.k_block = zfi_matmul_k_block(plan.tile, zfi_matmul_together(d));
    plan.depths = zfi_tree_depths(zfi_max(d->sections, 1));
    block = plan.k_block / per;
    plan.group = zfi_min(plan.tile->group / plan.tile->rows, plan.panels);
    zfi_matmul_read(&plan, d);
    kept = zfi_matmul_groups_to_keep(&plan, d, threads);
    plan.keep = kept > 0;
    if (plan.keep) plan.direct_a = plan.direct_b = false;
    plan.chunk = zfi_round_up(d->k, plan.k_block);
    if (plan.keep) {
        plan.chunk = plan.k_block;
        groups = kept;
        spans = zfi_max(zfi_div_up(n, ZFI_SPAN_KEEPING), zfi_div_up(wanted, groups));
    } else if (plan.panels <= plan.group) {
        groups = 1;
        spans = zfi_max(zfi_div_up(n, ZFI_SPAN), wanted);
    } else if (plan.direct_b) {
        if (!aside) plan.chunk = zfi_max(1, ZFI_IN_PLACE / n / plan.k_block) * plan.k_block;
        groups = zfi_max(zfi_min(plan.panels, wanted), zfi_div_up(plan.panels, plan.group));
        spans = zfi_div_up(wanted, groups);
    } else {
        groups = zfi_max(1, zfi_min(d->m / ZFI_ROWS_TO_PACK, zfi_div_up(wanted, 8)));
        spans = zfi_max(zfi_div_up(n, ZFI_SPAN), zfi_div_up(wanted, groups));
    }
    if (!plan.direct_a && !plan.keep && plan.panels > plan.group) {
        /* A is packed for each span. Tasks have fewer rows only where threads would have none. */
        int64_t each = zfi_div_up(threads, zfi_matmul_count(d));
        spans = zfi_min(spans, zfi_div_up(n, ZFI_SPAN));
        each = zfi_min(zfi_div_up(each, spans), zfi_div_up(plan.panels, plan.group));
        groups = zfi_max(groups,
                         zfi_min(zfi_div_up(wanted, spans), zfi_max(d->m / ZFI_ROWS_A_TASK, each)));
    }
    if (aside && zfi_matmul_has_blocks(&plan, d))
        groups = zfi_max(groups,
                         zfi_div_up(plan.panels * plan.rows * plan.depths, ZFI_ROWS_ASIDE));
    plan.task = plan.direct_b ? zfi_max(1, plan.panels / groups) : zfi_div_up(plan.panels, groups);
    plan.span = zfi_round_up(zfi_div_up(n, spans), columns);
    if (!plan.direct_a) {
        int64_t panels = plan.keep ? plan.task : plan.group;
        plan.a_size = (size_t)zfi_round_up(panels * plan.rows * block, 16);
    }
    if (!plan.direct_b && !d->packed) plan.b_size = (size_t)zfi_round_up(block * plan.span, 16);
    if (aside) {
        int64_t panels =
            zfi_matmul_has_blocks(&plan, d) ? plan.task : zfi_min(plan.group, plan.task);
        plan.c_size = (size_t)zfi_round_up(plan.depths * panels * plan.rows * plan.span, 16);
    }
    plan.bytes = (size_t)threads * (plan.a_size + plan.b_size + plan.c_size) * sizeof(float);
    if (plan.keep) plan.bytes += (size_t)threads * sizeof(zfi_matmul_kept);
    return plan;
}

typedef struct zfi_matmul_run {
    zfi_matmul_plan plan;
    const zfi_matmul_desc *d;
    float *scratch;
    zfi_matmul_kept *kept; /* of each thread */
    int64_t chunk;         /* of k: where it begins */
    const float *row;      /* a row alone, as zfi_one_row_sums reads it */
} zfi_matmul_run;

/* c[0..rows,0..columns) (+)= one block of k words: tiles below one another. The tile at row i reads
 * from a + i * a_step on. Columns that are not whole vectors are computed as whole ones in a
 * buffer. */
static void zfi_matmul_column(const zfi_matmul_plan *plan, int64_t rows, int64_t columns, int64_t k,
                              const char *a, int64_t a_step, int64_t a_row, int64_t a_col,
                              const float *b, int64_t b_row, float *c, int64_t c_row, bool add)
{
    const zfi_tile *tile = plan->tile;
    int64_t vectors = columns > tile->lanes ? 2 : 1, step = rows, some;
    float aside[ZFI_BLOCK_ROWS * ZFI_TILE_COLUMNS], *to = aside;
    bool whole = columns == vectors * tile->lanes;
    if (!whole || !tile->column) step = plan->rows;
    for (int64_t i = 0; i < rows; i += some, a += 4 * some * a_step, c += some * c_row) {
        int64_t to_row = whole ? c_row : ZFI_TILE_COLUMNS;
        some = zfi_min(step, rows - i);
        if (whole) to = c;
        if (tile->column)
            tile->column(some, plan->rows, vectors > 1, k, a, a_row, b, to, to_row, add && whole);
        else
            tile->micro[some - 1][vectors - 1](k, a, a_row, a_col, b, b_row, to, to_row,
                                               add && whole);
        for (int64_t r = 0; !whole && r < some; r++)
            for (int64_t j = 0; j < columns; j++) {
                float value = aside[r * ZFI_TILE_COLUMNS + j];
                c[r * c_row + j] = add ? c[r * c_row + j] + value : value;
            }
    }
}

static void zfi_matmul_pack(const zfi_matmul_plan *plan, zf_dtype dtype, bool of_a, float *dst,
                            int64_t width, const void *src, int64_t lane_stride, int64_t k_stride,
                            int64_t lanes, int64_t k)
{
    zfi_pack *pack = of_a && plan->tile->pack_a ? plan->tile->pack_a : plan->tile->pack;
    if (plan->converts)
        zfi_pack_widened(plan->isa, dtype, dst, width, src, lane_stride, k_stride, lanes, k);
    else pack(dst, width, src, lane_stride, k_stride, lanes, k);
}

/* Where the block of k at k0 begins in a packed B of n columns, in words. All panels of a block lie
 * one after the other. */
static int64_t zfi_matmul_packed_at(const zfi_matmul_plan *plan, int64_t n, int64_t k0)
{
    return k0 / plan->tile->per_word * zfi_round_up(n, plan->columns);
}

typedef struct zfi_matmul_packing {
    zfi_matmul_plan plan;
    const zfi_matmul_desc *d;
    float *to;
    int64_t spans;
} zfi_matmul_packing;

/* Packs some columns of a block of k. */
static void zfi_matmul_pack_task(void *context, int64_t index, int worker)
{
    const zfi_matmul_packing *p = context;
    const zfi_matmul_desc *d = p->d;
    const int64_t k0 = index / p->spans * p->plan.k_block, n0 = index % p->spans * ZFI_SPAN,
                  k = zfi_min(p->plan.k_block, d->k - k0), words = zfi_tile_words(p->plan.tile, k);
    (void)worker;
    zfi_matmul_pack(&p->plan, d->dtype, false,
                    p->to + zfi_matmul_packed_at(&p->plan, d->n, k0) + n0 * words, p->plan.columns,
                    zfi_element(d->b, d->dtype, k0 * d->b_row + n0 * d->b_col), d->b_col, d->b_row,
                    zfi_min(ZFI_SPAN, d->n - n0), k);
}

/* Bytes of a packed B: a function of n, k and the dtype of A and B. */
ZFI_UNUSED static size_t zfi_matmul_packed_bytes(zfi_isa isa, const zfi_matmul_desc *d)
{
    const zfi_tile *tile = zfi_tile_of_product(isa, d->dtype);
    return (size_t)zfi_tile_words(tile, d->k) * (size_t)zfi_round_up(d->n, 2 * tile->lanes) *
           sizeof(float);
}

/* Packs all of B for other products of the same dtype and k; `to` is aligned to 64. */
ZFI_UNUSED static void zfi_matmul_pack_b(zfi_isa isa, zfi_pool *pool, const zfi_matmul_desc *d,
                                         void *to)
{
    zfi_matmul_packing p = {.d = d, .to = to, .spans = zfi_div_up(d->n, ZFI_SPAN)};
    if (!d->n || !d->k) return;
    p.plan = zfi_matmul_plan_of(isa, 1, d);
    zfi_pool_run(pool, zfi_div_up(d->k, p.plan.k_block) * p.spans, zfi_matmul_pack_task, &p);
}

/* to[0..rows,0..cols) = from, between f32 and a narrow C, or back. */
static void zfi_matmul_round(zfi_isa isa, void *to, zf_dtype dtype, int64_t to_row,
                             const float *from, int64_t from_row, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        zfi_narrow(isa, zfi_element_of(to, dtype, i * to_row), dtype, from + i * from_row, cols);
}

static void zfi_matmul_fetch(zfi_isa isa, float *to, int64_t to_row, const void *from,
                             zf_dtype dtype, int64_t from_row, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        zfi_widen(isa, to + i * to_row, dtype, zfi_element(from, dtype, i * from_row), cols);
}

/* Which of the sums aside a block of k goes to, and what is added when it is there. */
typedef struct zfi_matmul_step {
    int64_t k;  /* elements of the block */
    int depth;  /* the sum */
    bool add;   /* to what is there already */
    int merges; /* sums that are then added to the one before each, from `depth` on */
} zfi_matmul_step;

/* The block at k0 < end. A section of one block is added at once to the sum that it completes. */
static zfi_matmul_step zfi_matmul_step_of(const zfi_matmul_desc *d, int64_t k_block, int64_t k0,
                                          int64_t end)
{
    const int64_t length = zfi_matmul_section(d), at = k0 % length, index = k0 / length,
                  together = zfi_matmul_together(d);
    zfi_matmul_step s = {.k = zfi_min(k_block, together - at % together), .add = at > 0};
    if (!zfi_matmul_is_cut(d)) {
        s.k = zfi_min(k_block, end - k0);
        return s;
    }
    s.depth = zfi_tree_depth(index);
    if (at + s.k == length) s.merges = zfi_tree_merges(index, zfi_max(d->sections, 1));
    if (s.k < length || !(index & 1)) return s;
    s.depth--, s.merges--, s.add = true;
    return s;
}

/* to[0..rows,0..cols) += from */
static void zfi_matmul_merge(zfi_isa isa, float *to, const float *from, int64_t row, int64_t rows,
                             int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) zfi_add_run(isa, to + i * row, from + i * row, cols);
}

/* sums = what C was, plus sums. At most ZFI_SPAN columns. */
static void zfi_matmul_add_old(zfi_isa isa, float *sums, int64_t row, const void *c, zf_dtype dtype,
                               int64_t c_row, int64_t rows, int64_t cols)
{
    float old[ZFI_SPAN];
    for (int64_t i = 0; i < rows; i++) {
        zfi_widen(isa, old, dtype, zfi_element(c, dtype, i * c_row), cols);
        zfi_add_run(isa, sums + i * row, old, cols);
    }
}

/* The work of one task: panels, columns n0..n0+n-1, k of the chunk. */
static void zfi_matmul_task(void *context, int64_t index, int worker)
{
    const zfi_matmul_run *run = context;
    const zfi_matmul_desc *d = run->d;
    const zfi_matmul_plan *plan = &run->plan;
    size_t sizes = plan->a_size + plan->b_size + plan->c_size; /* 0 where there is no scratch */
    float *packed_a = sizes ? run->scratch + (size_t)worker * sizes : NULL;
    float *packed_b = sizes ? packed_a + plan->a_size : NULL;
    float *aside = plan->c_size ? packed_b + plan->b_size : NULL;
    int64_t spans = zfi_div_up(d->n, plan->span), groups = zfi_div_up(plan->panels, plan->task);
    int64_t matrix = index / spans / groups, group = plan->group * plan->rows;
    int64_t m0 = index / spans % groups * plan->task * plan->rows, n0 = index % spans * plan->span;
    int64_t m_end = zfi_min(m0 + plan->task * plan->rows, d->m), n = zfi_min(plan->span, d->n - n0);
    int64_t k_end = zfi_min(run->chunk + plan->chunk, d->k), k, per = plan->tile->per_word;
    const int64_t deep = (m_end - m0) * plan->span; /* from one sum of the tree to the next */
    const bool cut = zfi_matmul_is_cut(d);
    bool pack_a = !plan->direct_a;
    const void *a, *b;
    void *c;
    zfi_matmul_at(d, matrix, &a, &b, &c);
    if (plan->keep) {
        zfi_matmul_kept *kept = &run->kept[worker];
        pack_a = kept->row != m0 || kept->k != run->chunk;
        *kept = (zfi_matmul_kept){m0, run->chunk};
    }
    for (int64_t k0 = run->chunk; k0 < k_end; k0 += k) {
        const void *b_at;
        const float *from_b;
        int64_t b_row = d->b_row, b_step = 1, words;
        const zfi_matmul_step to = zfi_matmul_step_of(d, plan->k_block, k0, k_end);
        const int64_t k_at = zfi_matmul_k(d, k0);
        bool add = cut ? to.add : d->accumulate || k0 > 0;
        k = to.k, words = zfi_tile_words(plan->tile, k);
        b_at = zfi_element(b, d->dtype, k_at * d->b_row + n0 * d->b_col);
        if (plan->direct_b) {
            from_b = b_at;
        } else if (d->packed) {
            from_b = (const float *)b + zfi_matmul_packed_at(plan, d->packed, k0) +
                     (d->packed_from + n0) * words;
            b_row = plan->columns, b_step = words;
        } else {
            zfi_matmul_pack(plan, d->dtype, false, packed_b, plan->columns, b_at, d->b_col,
                            d->b_row, n, k);
            from_b = packed_b, b_row = plan->columns, b_step = words;
        }
        for (int64_t m = m0; m < m_end; m += group) {
            int64_t rows = zfi_min(group, m_end - m), c_row = d->c_row;
            const void *from_a = zfi_element(a, d->dtype, m * d->a_row + k_at * d->a_col);
            int64_t a_row = d->a_row / per, a_col = d->a_col, a_step = a_row;
            void *c_at = zfi_element_of(c, d->c_dtype, m * d->c_row + n0);
            float *sums = c_at;
            if (!plan->direct_a) {
                float *at = plan->keep ? packed_a + (m - m0) * words : packed_a;
                if (pack_a)
                    zfi_matmul_pack(plan, d->dtype, true, at, plan->rows, from_a, d->a_row,
                                    d->a_col, rows, k);
                from_a = at, a_step = words;
                if (plan->tile->pack_a) a_row = words, a_col = 1;
                else a_row = 1, a_col = plan->rows;
            }
            if (aside) {
                c_row = plan->span;
                sums = aside + (zfi_matmul_has_blocks(plan, d) ? (m - m0) * c_row : 0);
                if (d->accumulate && k0 == 0 && !cut)
                    zfi_matmul_fetch(plan->isa, sums, c_row, c_at, d->c_dtype, d->c_row, rows, n);
            }
            for (int64_t span = 0; span < n; span += ZFI_SPAN) {
                int64_t span_end = zfi_min(span + ZFI_SPAN, n);
                for (int64_t j = span; j < span_end; j += plan->columns) {
                    float *sum = sums + j + to.depth * deep;
                    const int64_t columns = zfi_min(plan->columns, n - j);
                    zfi_matmul_column(plan, rows, columns, words, from_a, a_step, a_row, a_col,
                                      from_b + j * b_step, b_row, sum, c_row, add);
                    for (int i = 0; i < to.merges; i++, sum -= deep)
                        zfi_matmul_merge(plan->isa, sum - deep, sum, c_row, rows, columns);
                }
                if (k0 + k < d->k) continue;
                if (cut && d->accumulate)
                    zfi_matmul_add_old(plan->isa, sums + span, c_row,
                                       zfi_element(c_at, d->c_dtype, span), d->c_dtype, d->c_row,
                                       rows, span_end - span);
                if (d->epilogue)
                    d->epilogue(d->epilogue_context, sums + span, c_row, matrix * d->m + m,
                                n0 + span, rows, span_end - span);
                if (aside)
                    zfi_matmul_round(plan->isa, zfi_element_of(c_at, d->c_dtype, span), d->c_dtype,
                                     d->c_row, sums + span, c_row, rows, span_end - span);
            }
        }
    }
}

/* ----------------------------------------------------------------------------------- one row */

/* The product is one row of neighbours times rows of B along k. */
static bool zfi_matmul_is_row(zfi_isa isa, const zfi_matmul_desc *d)
{
    const zfi_one_row row = zfi_one_row_of(isa, d->dtype);
    return d->m == 1 && zfi_matmul_count(d) == 1 && d->b_row == 1 && !d->packed &&
           !zfi_matmul_is_cut(d) &&
           (d->a_col == 1 || d->k == 1) && row.sums && d->n >= ZFI_ONE_ROW_COLUMNS;
}

/* Elements of C of a task: about 64 KiB of B. */
static int64_t zfi_matmul_row_grain(const zfi_matmul_desc *d)
{
    return zfi_min(ZFI_SPAN, zfi_round_up((1 << 15) / zfi_max(d->k, 1) + 1, ZFI_ONE_ROW_COLUMNS));
}

/* Elements of a task: sums of the row, as zfi_one_row_sums reads it, with rows of B. */
static void zfi_matmul_row_task(void *context, int64_t index, int worker)
{
    const zfi_matmul_run *run = context;
    const zfi_matmul_desc *d = run->d;
    const zfi_isa isa = run->plan.isa;
    const zfi_one_row row = zfi_one_row_of(isa, d->dtype);
    const int64_t each = d->dtype == ZF_F32 ? 4 : 2, apart = d->b_col * each;
    int64_t grain = zfi_matmul_row_grain(d), n0 = index * grain, n = zfi_min(grain, d->n - n0);
    void *c = zfi_element_of(d->c, d->c_dtype, n0);
    float aside[ZFI_SPAN], *sums = d->c_dtype == ZF_F32 ? c : aside;
    (void)worker;
    if (d->accumulate && sums == aside) zfi_widen(isa, sums, d->c_dtype, c, n);
    for (int64_t i = 0; i < n; i += ZFI_ONE_ROW_COLUMNS) {
        /* the last ones of C are summed with some of those before them */
        const int64_t first = zfi_min(n0 + i, d->n - ZFI_ONE_ROW_COLUMNS), known = n0 + i - first;
        float some[ZFI_ONE_ROW_COLUMNS];
        for (int64_t k0 = 0, k; k0 < d->k; k0 += k) {
            const char *b = (const char *)d->b + first * apart + k0 * each;
            k = zfi_min(run->plan.k_block, d->k - k0);
            row.sums(k * each, run->row + k0 / row.per_word, b, apart,
                     k0 + k < d->k ? b + k * each : b + ZFI_ONE_ROW_COLUMNS * apart - k0 * each,
                     some);
            for (int64_t j = i; j < zfi_min(i + ZFI_ONE_ROW_COLUMNS, n); j++) {
                float sum = some[j - i + known];
                sums[j] = d->accumulate || k0 ? sums[j] + sum : sum;
            }
        }
    }
    if (d->epilogue) d->epilogue(d->epilogue_context, sums, d->c_row, 0, n0, 1, n);
    if (sums == aside) zfi_narrow(isa, c, d->c_dtype, sums, n);
}

/* The row as zfi_one_row_sums reads it. */
static const float *zfi_matmul_row_of(zfi_isa isa, const zfi_matmul_desc *d, float *scratch)
{
    const int64_t words = zfi_div_up(d->k, 2);
    if (d->dtype == ZF_F32) return d->a;
    if (zfi_one_row_of(isa, d->dtype).per_word == 1) {
        zfi_widen(isa, scratch, d->dtype, d->a, d->k);
    } else {
        memset(scratch + words - 1, 0, sizeof *scratch); /* the other half of an odd k */
        memcpy(scratch, d->a, (size_t)d->k * 2);
    }
    return scratch;
}

/* k is 0: each sum is empty; a row and a span at a time. */
static void zfi_matmul_nothing_task(void *context, int64_t index, int worker)
{
    const zfi_matmul_run *run = context;
    const zfi_matmul_desc *d = run->d;
    const void *a, *b;
    void *c;
    float sums[ZFI_SPAN];
    (void)worker;
    zfi_matmul_at(d, index, &a, &b, &c);
    for (int64_t m = 0; m < d->m; m++)
        for (int64_t n0 = 0, n; n0 < d->n; n0 += n) {
            void *at = zfi_element_of(c, d->c_dtype, m * d->c_row + n0);
            n = zfi_min(ZFI_SPAN, d->n - n0);
            memset(sums, 0, sizeof sums);
            if (d->accumulate) zfi_widen(run->plan.isa, sums, d->c_dtype, at, n);
            if (d->epilogue) d->epilogue(d->epilogue_context, sums, n, index * d->m + m, n0, 1, n);
            zfi_narrow(run->plan.isa, at, d->c_dtype, sums, n);
        }
}

/* A product with one column is computed as one with one row, C^T = B^T A^T: a row of C is written
 * by whole vectors. */
static zfi_matmul_desc zfi_matmul_turned(const zfi_matmul_desc *d)
{
    zfi_matmul_desc t = *d;
    if (d->n != 1 || d->m == 1 || d->c_row != 1 || d->epilogue || d->packed) return t;
    t.m = 1, t.n = d->m;
    t.a = d->b, t.a_row = d->b_col, t.a_col = d->b_row, t.a_batch = d->b_batch,
    t.a_outer = d->b_outer;
    t.b = d->a, t.b_row = d->a_col, t.b_col = d->a_row, t.b_batch = d->a_batch,
    t.b_outer = d->a_outer;
    t.c_row = t.n;
    return t;
}

/* Bytes of scratch that zfi_matmul_tiled needs on a pool of `threads`: a function of all of *d but
 * the pointers. */
ZFI_UNUSED static size_t zfi_matmul_tiled_scratch(zfi_isa isa, int threads,
                                                  const zfi_matmul_desc *d)
{
    zfi_matmul_desc turned = zfi_matmul_turned(d);
    if (!d->m || !d->n || !d->k || !zfi_matmul_count(d)) return 0;
    if (zfi_matmul_is_row(isa, &turned))
        return d->dtype == ZF_F32 ? 0 : (size_t)d->k * sizeof(float);
    return zfi_matmul_plan_of(isa, threads, &turned).bytes;
}

/* C = A B, or C += A B, on the pool's threads. `scratch` has zfi_matmul_tiled_scratch(isa, threads
 * of the pool, d) bytes aligned to 64. The result does not depend on the number of threads. */
ZFI_UNUSED static void zfi_matmul_tiled(zfi_isa isa, zfi_pool *pool, const zfi_matmul_desc *d,
                                        void *scratch)
{
    const zfi_matmul_desc turned = zfi_matmul_turned(d);
    int64_t matrices = zfi_matmul_count(d), tasks;
    int threads = zfi_pool_threads(pool);
    zfi_matmul_run run = {.plan = {.isa = isa}, .d = &turned, .scratch = scratch};
    if (!d->m || !d->n || !matrices) return;
    if (!d->k) {
        zfi_pool_run(pool, matrices, zfi_matmul_nothing_task, &run);
        return;
    }
    if ((double)matrices * (double)d->m * (double)d->n * (double)d->k < 0x1p17)
        pool = NULL; /* less work than it takes to wake a thread */
    if (zfi_matmul_is_row(isa, &turned)) {
        run.plan.k_block = zfi_matmul_k_block(zfi_tile_of_product(isa, d->dtype), d->k);
        run.row = zfi_matmul_row_of(isa, &turned, scratch);
        zfi_pool_run(pool, zfi_div_up(turned.n, zfi_matmul_row_grain(&turned)), zfi_matmul_row_task,
                     &run);
        return;
    }
    run.plan = zfi_matmul_plan_of(isa, threads, &turned);
    tasks =
        matrices * zfi_div_up(turned.n, run.plan.span) * zfi_div_up(run.plan.panels, run.plan.task);
    if (run.plan.keep) {
        run.kept = (void *)((char *)scratch + run.plan.bytes);
        run.kept -= threads;
        for (int i = 0; i < threads; i++) run.kept[i].row = -1;
    }
    for (run.chunk = 0; run.chunk < d->k; run.chunk += run.plan.chunk)
        zfi_pool_run(pool, tasks, zfi_matmul_task, &run);
}

/* ------------------------------------------------------------------------------------- a BLAS */

#if defined(ZEROFLOW_CBLAS)
#include <cblas.h>

/* How BLAS takes an operand with these strides: transposed or not, and its leading dimension in
 * *ld; 0 when it cannot. */
static CBLAS_TRANSPOSE zfi_matmul_blas_form(int64_t rows, int64_t columns, int64_t row,
                                            int64_t column, int *ld)
{
    bool plain = (column == 1 || columns == 1) && (row >= columns || rows == 1);
    bool turned = (row == 1 || rows == 1) && (column >= rows || columns == 1);
    int64_t lead =
        plain ? zfi_max(rows == 1 ? 1 : row, columns) : zfi_max(columns == 1 ? 1 : column, rows);
    *ld = (int)lead;
    if (lead > INT32_MAX || rows > INT32_MAX || columns > INT32_MAX) return (CBLAS_TRANSPOSE)0;
    return plain ? CblasNoTrans : turned ? CblasTrans : (CBLAS_TRANSPOSE)0;
}

typedef struct zfi_matmul_blas {
    CBLAS_TRANSPOSE a, b;
    int a_ld, b_ld, c_ld;
} zfi_matmul_blas;

static bool zfi_matmul_blas_of(const zfi_matmul_desc *d, zfi_matmul_blas *blas)
{
    if (!d->m || !d->n || !d->k || !zfi_matmul_count(d) || d->dtype != ZF_F32 ||
        d->c_dtype != ZF_F32 || d->packed || zfi_matmul_is_cut(d))
        return false;
    blas->a = zfi_matmul_blas_form(d->m, d->k, d->a_row, d->a_col, &blas->a_ld);
    blas->b = zfi_matmul_blas_form(d->k, d->n, d->b_row, d->b_col, &blas->b_ld);
    return blas->a && blas->b &&
           zfi_matmul_blas_form(d->m, d->n, d->c_row, 1, &blas->c_ld) == CblasNoTrans;
}

enum { ZFI_BLAS_ROWS = 64 };

static void zfi_matmul_blas_epilogue(void *context, int64_t index, int worker)
{
    const zfi_matmul_desc *d = context;
    int64_t groups = zfi_div_up(d->m, ZFI_BLAS_ROWS), m = index % groups * ZFI_BLAS_ROWS;
    const void *a, *b;
    void *c;
    (void)worker;
    zfi_matmul_at(d, index / groups, &a, &b, &c);
    d->epilogue(d->epilogue_context, (float *)c + m * d->c_row, d->c_row, index / groups * d->m + m,
                0, zfi_min(ZFI_BLAS_ROWS, d->m - m), d->n);
}
#endif

/* Bytes of scratch that zfi_matmul needs on a pool of `threads`: a function of all of *d but the
 * pointers. */
ZFI_UNUSED static size_t zfi_matmul_scratch(zfi_isa isa, int threads, const zfi_matmul_desc *d)
{
#if defined(ZEROFLOW_CBLAS)
    zfi_matmul_blas blas;
    if (zfi_matmul_blas_of(d, &blas)) return 0;
#endif
    return zfi_matmul_tiled_scratch(isa, threads, d);
}

/* zfi_matmul_tiled; with ZEROFLOW_CBLAS the linked BLAS where it can, on its own threads and with
 * its own bits. */
ZFI_UNUSED static void zfi_matmul(zfi_isa isa, zfi_pool *pool, const zfi_matmul_desc *d,
                                  void *scratch)
{
#if defined(ZEROFLOW_CBLAS)
    zfi_matmul_blas blas;
    if (zfi_matmul_blas_of(d, &blas)) {
        zfi_matmul_desc copy = *d;
        for (int64_t i = 0; i < zfi_matmul_count(d); i++) {
            const void *a, *b;
            void *c;
            zfi_matmul_at(d, i, &a, &b, &c);
            cblas_sgemm(CblasRowMajor, blas.a, blas.b, (int)d->m, (int)d->n, (int)d->k, 1.0f, a,
                        blas.a_ld, b, blas.b_ld, d->accumulate ? 1.0f : 0.0f, c, blas.c_ld);
        }
        if (d->epilogue)
            zfi_pool_run(pool, zfi_matmul_count(d) * zfi_div_up(d->m, ZFI_BLAS_ROWS),
                         zfi_matmul_blas_epilogue, &copy);
        return;
    }
#endif
    zfi_matmul_tiled(isa, pool, d, scratch);
}
