/* Products of the rows of each expert with its own matrix: grouped_linear, and grouped_outer, the
 * gradient of the matrices.
 *
 *     %4 = grouped_linear %1, %2, %3 : f32[12,32]     of x [12,16], w [4,32,16], bounds i32[4,2]
 *          y[r,n] = sum over k of x[r,k] w[e,n,k]     bounds[e,0] <= r < bounds[e,1]
 *     %4 = grouped_linear %1, %2, %3 {transpose=true} : f32[12,32]          w [4,16,32]
 *          y[r,n] = sum over k of x[r,k] w[e,k,n]
 *     %4 = grouped_outer %1, %2, %3 : f32[4,32,16]    of a [12,32], b [12,16]
 *          y[e,n,k] = sum over the rows r of e, ascending, of a[r,n] b[r,k]
 *
 *     %4 = grouped_linear %1, %2, %3 {sources=2} : f32[12,32]      x [12,16], w [2,32,16], i32[4,2]
 *          the rows of two ranks, one half each: bounds count from the first row of a half, first
 *          those of experts 0 and 1 in the first half, then in the second
 *     %4 = grouped_outer %1, %2, %3 {sources=2 sections=4} : f32[2,32,16]
 *          the sum over the ranks, by a balanced tree (base/tree.c), in f32, f64 of f64: a part of
 *          that over four neighbours along data, the rest of which zf_zero makes
 *
 *     %4 = grouped_linear %1, %2, %3 {parts=2} : f32[12,32]        x [12,16], w [4,32,16], i32[8,2]
 *          the rows of two parts of the tokens, one half each, with bounds as those of sources;
 *          with sources, each has so many parts
 *     %4 = grouped_outer %1, %2, %3 {parts=2} : f32[4,32,16]
 *          the sum over the parts, by a balanced tree, in f32, f64 of f64; over the sources it is
 *          one of these sums
 *     %4 = grouped_outer %1, %2, %3 {sources=2 sections=2 apart=true} : f32[2,2,32,16]
 *          the sum of each source
 *
 *     %4 = grouped_linear %1, %2, %3 {sections=4 wide=true} : f32[12,32]
 *          k is cut into four sections, as that of matmul; wide: the sum stays in f32, f64 of f64
 *
 *     %4 = grouped_linear %1, %2, %3 {bits=8 block=64} : f32[12,32]
 *          w u8 [4,32, records of a row], as those of quantized_linear.c, which has the products;
 *          alone: those of a few rows, each of which is integers then
 *
 *     dx = grouped_linear(dy, w), transposed the other way      dw = grouped_outer(dy, x)
 *
 * Bounds are data, ascending, as expert_rows (experts.c) saves them. Rows of no expert give 0, and
 * an expert without rows has the product 0. Sums are those of matmul: in f32 and rounded once, of a
 * row alone, whatever other rows its expert has. The reference sums in double, and rounds the sum
 * of each rank. */

/* From how many ranks the rows of a node of these operators are, and of how many parts of each. */
typedef struct zfi_grouped_runs {
    int64_t sources, parts;
} zfi_grouped_runs;

static zfi_grouped_runs zfi_grouped_runs_of(zf_op op, const zf_attribute *attributes)
{
    const bool outer = op == ZF_OP_grouped_outer;
    const int at = outer ? ZF_AT_grouped_outer_sources : ZF_AT_grouped_linear_sources,
              parts = outer ? ZF_AT_grouped_outer_parts : ZF_AT_grouped_linear_parts;
    return (zfi_grouped_runs){zfi_max(attributes[at].i, 1), zfi_max(attributes[parts].i, 1)};
}

/* The records of the matrices; bits 0: they are floats. */
static zfi_blocks zfi_grouped_blocks(const zf_attribute *attributes)
{
    const struct {
        const zf_attribute *attributes;
    } of = {attributes};
    if (!ZF_INT(&of, grouped_linear, bits)) return (zfi_blocks){.bits = 0};
    return zfi_blocks_by(ZF_INT(&of, grouped_linear, bits), ZF_INT(&of, grouped_linear, block),
                         ZF_INT(&of, grouped_linear, scale));
}

/* Checks matrices of records; the last dimension of *w becomes that of numbers. */
static zf_status zfi_infer_grouped_records(const zfi_infer *c, zf_shape *w)
{
    zf_status status =
        zfi_infer_quantized(c, ZF_INT(c, grouped_linear, bits), ZF_INT(c, grouped_linear, block),
                            ZF_INT(c, grouped_linear, scale));
    const zfi_blocks b = status ? (zfi_blocks){.bits = 0} : zfi_grouped_blocks(c->attributes);
    if (!status) status = zfi_infer_weight_of(c, &b, 3);
    if (status) return status;
    if (ZF_INT(c, grouped_linear, sections) > 1 || ZF_INT(c, grouped_linear, wide))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "a product with matrices of %d bits has one section", (int)b.bits);
    w->dims[2] = w->dims[2] / b.record * b.block;
    return ZF_OK;
}

static zf_status zfi_infer_grouped(zfi_infer *c, const zfi_node *y, int64_t experts,
                                   int64_t sources, int64_t parts)
{
    const zfi_node *x = c->args[0], *bounds = c->args[2];
    if (sources < 0 || (sources && c->args[0]->shape.dims[0] % sources))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "%lld rows are not those of sources = %lld ranks",
                              (long long)c->args[0]->shape.dims[0], (long long)sources);
    sources = zfi_max(sources, 1);
    if (parts < 0 || (parts && c->args[0]->shape.dims[0] / sources % parts))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "%lld rows of a rank are not those of %lld parts",
                              (long long)(c->args[0]->shape.dims[0] / sources), (long long)parts);
    sources *= zfi_max(parts, 1);
    if (!zfi_is_float(x->dtype) || x->dtype != y->dtype)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "operands 0 and 1 must be float, of one dtype");
    if (bounds->dtype != ZF_I32 || bounds->shape.rank != 2 || bounds->shape.dims[1] != 2 ||
        (experts >= 0 && bounds->shape.dims[0] != experts * sources) ||
        bounds->shape.dims[0] % sources)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the bounds must be i32 [%sexperts, 2]",
                              parts > 1     ? "sources parts "
                              : sources > 1 ? "sources "
                                            : "");
    c->dtype = x->dtype;
    return ZF_OK;
}

static zf_status zfi_infer_grouped_linear(zfi_infer *c)
{
    const zf_shape *x = &c->args[0]->shape;
    const int turned = ZF_INT(c, grouped_linear, transpose) ? 1 : 0;
    const bool records = ZF_INT(c, grouped_linear, bits) != 0;
    zf_shape w = c->args[1]->shape;
    zf_status status = records ? zfi_infer_grouped_records(c, &w) : ZF_OK;
    if (status) return status;
    if (x->rank != 2 || w.rank != 3 || x->dims[1] != w.dims[2 - turned])
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "x [rows, k] and w %s are needed",
                              turned ? "[experts, k, n]" : "[experts, n, k]");
    if (ZF_INT(c, grouped_linear, alone) && (turned || !records))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "alone is for matrices of records that are not transposed");
    c->shape = ZF_SHAPE(x->dims[0], w.dims[1 + turned]);
    status = zfi_infer_grouped(c, c->args[!records], w.dims[0], ZF_INT(c, grouped_linear, sources),
                               ZF_INT(c, grouped_linear, parts));
    return status ? status
                  : zfi_infer_sections(c, x->dims[1], ZF_INT(c, grouped_linear, sections),
                                       ZF_INT(c, grouped_linear, wide) != 0, true);
}

static zf_status zfi_infer_grouped_outer(zfi_infer *c)
{
    const zf_shape *a = &c->args[0]->shape, *b = &c->args[1]->shape;
    const int64_t sources = ZF_INT(c, grouped_outer, sources),
                  parts = ZF_INT(c, grouped_outer, parts),
                  groups = zfi_max(sources, 1) * zfi_max(parts, 1),
                  sections = ZF_INT(c, grouped_outer, sections);
    int64_t experts;
    zf_status status;
    if (a->rank != 2 || b->rank != 2 || a->dims[0] != b->dims[0])
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "a [rows, n] and b [rows, k] are needed");
    experts = c->args[2]->shape.rank ? c->args[2]->shape.dims[0] / groups : 0;
    c->shape = ZF_INT(c, grouped_outer, apart)
                   ? ZF_SHAPE(zfi_max(sources, 1), experts, a->dims[1], b->dims[1])
                   : ZF_SHAPE(experts, a->dims[1], b->dims[1]);
    if (sections < 0 || sections % zfi_max(sources, 1) || (sources > 1 && !sections))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "sections = %lld must be a multiple of sources = %lld",
                              (long long)sections, (long long)sources);
    status = zfi_infer_grouped(c, c->args[1], -1, sources, parts);
    if (!status && (sections || parts)) c->dtype = zfi_wide(c->dtype);
    return status;
}

static zf_tensor zfi_grouped_of(zf_tensor x, zf_tensor w, zf_tensor bounds, bool transpose)
{
    return zfi_op(grouped_linear, zfi_with({.i = transpose}), x, w, bounds);
}

static void zfi_grad_grouped_linear(zf_grad *c)
{
    const bool turned = ZF_INT(c, grouped_linear, transpose) != 0;
    zf_attribute other[ZF_MAX_ATTRIBUTES];
    memcpy(other, c->attributes, sizeof other);
    other[ZF_AT_grouped_linear_transpose].i = !turned;
    other[ZF_AT_grouped_linear_alone].i = false;
    if (c->need[0]) c->dx[0] = zfi_op(grouped_linear, other, c->dy, c->x[1], c->x[2]);
    if (c->need[1] && !ZF_INT(c, grouped_linear, bits))
        c->dx[1] = turned ? zfi_op(grouped_outer, NULL, c->x[0], c->dy, c->x[2])
                          : zfi_op(grouped_outer, NULL, c->dy, c->x[0], c->x[2]);
}

static void zfi_grad_grouped_outer(zf_grad *c)
{
    if (c->need[0]) c->dx[0] = zfi_grouped_of(c->x[1], c->dy, c->x[2], false);
    if (c->need[1]) c->dx[1] = zfi_grouped_of(c->x[0], c->dy, c->x[2], true);
}

/* ------------------------------------------------------------------------------ kernels */

enum { ZFI_GROUPED_ROWS = 512 }; /* of a product: the rows of an expert are cut into so many */

/* The groups of rows of one source: one for each expert. */
static int64_t zfi_experts_here(const zf_launch *l)
{
    const zfi_grouped_runs runs = zfi_grouped_runs_of(l->op, l->attributes);
    return l->args[2].shape.dims[0] / (runs.sources * runs.parts);
}

/* The first row of a group of rows, or its end. */
static int64_t zfi_bound(const zf_launch *l, int64_t group, int end)
{
    const zfi_grouped_runs runs = zfi_grouped_runs_of(l->op, l->attributes);
    const int64_t run = l->args[0].shape.dims[0] / (runs.sources * runs.parts);
    return group / zfi_max(zfi_experts_here(l), 1) * run +
           ((const int32_t *)l->args[2].data)[2 * group + end];
}

static zf_status zfi_check_expert_bounds(const zf_launch *l)
{
    const int64_t rows = l->args[0].shape.dims[0];
    int64_t before = 0;
    for (int64_t e = 0; e < l->args[2].shape.dims[0]; e++) {
        const int64_t first = zfi_bound(l, e, 0), end = zfi_bound(l, e, 1);
        if (first < before || end < first || end > rows)
            return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                            "%s %%%d: expert %lld has rows %lld to %lld of %lld; bounds must ascend",
                            zf_launch_name(l), (int)l->node, (long long)e, (long long)first,
                            (long long)end, (long long)rows);
        before = end;
    }
    return ZF_OK;
}

/* The product of rows [first, end) of an expert. */
static zfi_matmul_desc zfi_grouped_product(const zf_launch *l, int64_t expert, int64_t first,
                                           int64_t end)
{
    const bool turned = ZF_INT(l, grouped_linear, transpose) != 0;
    const int64_t k = l->args[0].shape.dims[1], n = l->out.shape.dims[1];
    const zf_dtype dtype = l->args[0].dtype;
    return (zfi_matmul_desc){.m = end - first,
                             .n = n,
                             .k = k,
                             .batch = 1,
                             .a = zfi_element(l->args[0].data, dtype, first * k),
                             .b = zfi_element(l->args[1].data, dtype,
                                              expert % zfi_experts_here(l) * n * k),
                             .c = zfi_element_of(l->out.data, l->out.dtype, first * n),
                             .a_row = k,
                             .a_col = 1,
                             .b_row = turned ? n : 1,
                             .b_col = turned ? 1 : k,
                             .c_row = n,
                             .dtype = dtype,
                             .c_dtype = l->out.dtype,
                             .sections = ZF_INT(l, grouped_linear, sections)};
}

/* The same with matrices of records, not yet planned. */
static zfi_quantized zfi_grouped_records(const zf_launch *l, int64_t expert, int64_t first,
                                         int64_t end)
{
    const zfi_blocks b = zfi_grouped_blocks(l->attributes);
    zfi_quantized q = zfi_quantized_begin(l, &b, end - first,
                                          ZF_INT(l, grouped_linear, transpose) != 0);
    q.w += expert % zfi_experts_here(l) * q.n * q.bytes;
    q.x = zfi_element(q.x, q.out, first * l->args[0].shape.dims[1]);
    q.y = zfi_element_of(q.y, q.out, first * l->out.shape.dims[1]);
    q.few = ZF_INT(l, grouped_linear, alone) != 0;
    return q;
}

/* The matrix of grouped_outer of rows [first, end). */
static zfi_matmul_desc zfi_outer_product(const zf_launch *l, void *to, int64_t first, int64_t end)
{
    const int64_t m = l->args[0].shape.dims[1], n = l->args[1].shape.dims[1];
    const zf_dtype dtype = l->args[0].dtype;
    return (zfi_matmul_desc){.m = m,
                             .n = n,
                             .k = end - first,
                             .batch = 1,
                             .a = zfi_element(l->args[0].data, dtype, first * m),
                             .b = zfi_element(l->args[1].data, dtype, first * n),
                             .c = to,
                             .a_row = 1,
                             .a_col = m,
                             .b_row = n,
                             .b_col = 1,
                             .c_row = n,
                             .dtype = dtype,
                             .c_dtype = l->out.dtype};
}

static size_t zfi_grouped_bytes(const zf_launch *l, const zfi_matmul_desc *d)
{
    return zfi_matmul_scratch(zfi_cpu_of(l)->isa, zfi_pool_threads(zfi_cpu_of(l)->pool), d);
}

/* The most scratch of a product of up to ZFI_GROUPED_ROWS rows. */
static size_t zfi_scratch_grouped_linear(const zf_launch *l)
{
    const int64_t most = zfi_min(l->out.shape.dims[0], ZFI_GROUPED_ROWS);
    size_t bytes = 0;
    if (!zfi_by_tiles(l)) return 0;
    for (int64_t m = 1; m <= most; m++) {
        size_t needs;
        if (ZF_INT(l, grouped_linear, bits)) {
            zfi_quantized q = zfi_grouped_records(l, 0, 0, m);
            zfi_quantized_plan(&q);
            needs = q.all;
        } else {
            const zfi_matmul_desc d = zfi_grouped_product(l, 0, 0, m);
            needs = zfi_grouped_bytes(l, &d);
        }
        if (needs > bytes) bytes = needs;
    }
    return bytes;
}

/* Scratch of grouped_outer depends on k by the length of a block of k, at most k_block words, by
 * whether there are several, and by whether A is read in place; and of one row it is that row. */
static size_t zfi_scratch_outer_product(const zf_launch *l)
{
    const zfi_tile *tile;
    int64_t rows = l->args[0].shape.dims[0], block;
    size_t bytes = (size_t)rows * sizeof(float);
    if (!zfi_by_tiles(l) || !rows) return 0;
    tile = zfi_tile_of_product(zfi_cpu_of(l)->isa, l->args[0].dtype);
    block = (int64_t)tile->k_block * tile->per_word;
    for (int i = 0; i < 6; i++) {
        const int64_t k = i == 4 ? 1 : i == 5 ? rows : (i / 2 + 1) * block - i % 2;
        const zfi_matmul_desc d = zfi_outer_product(l, l->out.data, 0, k);
        const size_t needs = zfi_grouped_bytes(l, &d);
        if (needs > bytes) bytes = needs;
    }
    return (bytes + 63) / 64 * 64;
}

/* The elements of a matrix of the result. */
static int64_t zfi_outer_each(const zf_launch *l)
{
    return l->args[0].shape.dims[1] * l->args[1].shape.dims[1];
}

/* The sums of a matrix of grouped_outer: of sources, those of parts. With `apart` a source's
 * experts are experts of their own. */
static zfi_grouped_runs zfi_outer_tree(const zf_launch *l)
{
    zfi_grouped_runs runs = zfi_grouped_runs_of(l->op, l->attributes);
    if (ZF_INT(l, grouped_outer, apart)) runs.sources = 1;
    return runs;
}

/* The rows of matrix `at` of the result in part `part` of source s, as a group. */
static int64_t zfi_outer_group(const zf_launch *l, int64_t at, int64_t s, int64_t part)
{
    const int64_t experts = zfi_experts_here(l), parts = zfi_outer_tree(l).parts;
    return ((s + at / experts) * parts + part) * experts + at % experts;
}

/* The open sums before that part, and after it how many of these it completes. */
static int zfi_outer_depth(int64_t s, int64_t part)
{
    return zfi_tree_depth(s) + zfi_tree_depth(part);
}

static int zfi_outer_merges(const zfi_grouped_runs *tree, int64_t s, int64_t part)
{
    return zfi_tree_merges(part, tree->parts) +
           (part + 1 == tree->parts ? zfi_tree_merges(s, tree->sources) : 0);
}

/* The bytes of a matrix of the result. */
static size_t zfi_outer_bytes(const zf_launch *l)
{
    return (size_t)zfi_outer_each(l) * zf_dtype_size(l->out.dtype);
}

/* After the scratch of a product, sums that are open, but the first, which is in the result. */
static size_t zfi_scratch_grouped_outer(const zf_launch *l)
{
    const zfi_grouped_runs runs = zfi_outer_tree(l);
    const int depths = zfi_tree_depths(runs.sources) + zfi_tree_depths(runs.parts) - 2;
    const size_t open = zfi_by_tiles(l) ? (size_t)depths : 0;
    return zfi_scratch_outer_product(l) + open * zfi_outer_bytes(l);
}

/* Rows [first, last) of the result are 0. */
static void zfi_grouped_zero(const zf_launch *l, int64_t first, int64_t last)
{
    const size_t bytes = (size_t)l->out.shape.dims[1] * zf_dtype_size(l->out.dtype);
    memset((char *)l->out.data + (size_t)first * bytes, 0, (size_t)(last - first) * bytes);
}

/* Elements [first, last) of grouped_linear. */
static void zfi_grouped_plain(const zf_launch *l, int64_t first, int64_t last)
{
    const int64_t n = l->out.shape.dims[1], k = l->args[0].shape.dims[1];
    for (int64_t i = first; i < last; i++) {
        const int64_t row = i / n, col = i % n;
        int64_t e = 0;
        double sum = 0;
        while (e < l->args[2].shape.dims[0] && zfi_bound(l, e, 1) <= row) e++;
        if (e == l->args[2].shape.dims[0] || zfi_bound(l, e, 0) > row) {
            sum = 0;
        } else if (ZF_INT(l, grouped_linear, bits)) {
            const zfi_quantized q = zfi_grouped_records(l, e, row, row + 1);
            sum = zfi_quantized_sum(&q, &l->args[0], row, col);
        } else {
            const zfi_matmul_desc d = zfi_grouped_product(l, e, row, row + 1);
            sum = zfi_matmul_sections(l, &d, row * k,
                                      e % zfi_experts_here(l) * n * k + col * d.b_col);
        }
        zfi_set(&l->out, i, sum);
    }
}

/* Element i of the result, of the rows of one group. */
static double zfi_outer_of_group(const zf_launch *l, int64_t group, int64_t i)
{
    const int64_t m = l->args[0].shape.dims[1], n = l->args[1].shape.dims[1];
    double sum = 0;
    for (int64_t r = zfi_bound(l, group, 0); r < zfi_bound(l, group, 1); r++)
        sum += zfi_get(&l->args[0], r * m + i / n % m) * zfi_get(&l->args[1], r * n + i % n);
    return sum;
}

/* Elements [first, last) of grouped_outer: sums of a tree are rounded where those of ranks are. */
static void zfi_outer_plain(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_grouped_runs tree = zfi_outer_tree(l);
    double sums[64];
    for (int64_t i = first; i < last; i++) {
        for (int64_t n = 0; n < tree.sources * tree.parts; n++) {
            const int64_t s = n / tree.parts, part = n % tree.parts;
            int depth = zfi_outer_depth(s, part);
            zfi_set(&l->out, i,
                    zfi_outer_of_group(l, zfi_outer_group(l, i / zfi_outer_each(l), s, part), i));
            sums[depth] = zfi_get(&l->out, i);
            for (int k = zfi_outer_merges(&tree, s, part); k > 0; k--, depth--) {
                zfi_set(&l->out, i, sums[depth - 1] + sums[depth]);
                sums[depth - 1] = zfi_get(&l->out, i);
            }
        }
        zfi_set(&l->out, i, sums[0]);
    }
}

/* sums of a tree: `to` += `from`, of all elements of a matrix */
typedef struct zfi_outer_sum {
    zfi_isa isa;
    float *to;
    const float *from;
    int64_t count;
} zfi_outer_sum;

enum { ZFI_OUTER_GRAIN = 1 << 14 };

static void zfi_outer_add(void *context, int64_t index, int worker)
{
    const zfi_outer_sum *s = context;
    const int64_t at = index * ZFI_OUTER_GRAIN;
    (void)worker;
    zfi_add_run(s->isa, s->to + at, s->from + at, zfi_min(ZFI_OUTER_GRAIN, s->count - at));
}

/* Matrix `at` of the result: the sum over sources and parts, each of which is put after the open
 * sums. */
static void zfi_outer_of_expert(const zf_launch *l, int64_t at)
{
    const zfi_grouped_runs tree = zfi_outer_tree(l);
    const int64_t each = zfi_outer_each(l);
    char *out = (char *)l->out.data + (size_t)at * zfi_outer_bytes(l),
         *open = (char *)l->scratch + zfi_scratch_outer_product(l) - zfi_outer_bytes(l);
    for (int64_t n = 0; n < tree.sources * tree.parts; n++) {
        const int64_t s = n / tree.parts, part = n % tree.parts,
                      group = zfi_outer_group(l, at, s, part);
        int depth = zfi_outer_depth(s, part);
        const zfi_matmul_desc d =
            zfi_outer_product(l, depth ? open + (size_t)depth * zfi_outer_bytes(l) : out,
                              zfi_bound(l, group, 0), zfi_bound(l, group, 1));
        zfi_matmul(zfi_cpu_of(l)->isa, zfi_cpu_of(l)->pool, &d, l->scratch);
        for (int k = zfi_outer_merges(&tree, s, part); k > 0; k--, depth--) {
            char *to = depth > 1 ? open + (size_t)(depth - 1) * zfi_outer_bytes(l) : out,
                 *from = open + (size_t)depth * zfi_outer_bytes(l);
            zfi_outer_sum add = {zfi_cpu_of(l)->isa, (float *)(void *)to, (float *)(void *)from,
                                 each};
            zfi_pool_run(zfi_cpu_of(l)->pool, (each + ZFI_OUTER_GRAIN - 1) / ZFI_OUTER_GRAIN,
                         zfi_outer_add, &add);
        }
    }
}

static zf_status zfi_cpu_grouped_linear(const zf_launch *l)
{
    zf_status status = zfi_check_expert_bounds(l);
    int64_t before = 0;
    if (status || !zfi_count(&l->out)) return status;
    if (!zfi_by_tiles(l)) {
        zfi_split(l, zfi_count(&l->out), 1, zfi_grouped_plain);
        return ZF_OK;
    }
    for (int64_t e = 0, end; e < l->args[2].shape.dims[0]; e++, before = end) {
        end = zfi_bound(l, e, 1);
        zfi_grouped_zero(l, before, zfi_bound(l, e, 0));
        for (int64_t r = zfi_bound(l, e, 0), last; r < end; r = last) {
            last = zfi_min(r + ZFI_GROUPED_ROWS, end);
            if (ZF_INT(l, grouped_linear, bits)) {
                zfi_quantized q = zfi_grouped_records(l, e, r, last);
                zfi_quantized_plan(&q);
                zfi_quantized_run(&q);
            } else {
                const zfi_matmul_desc d = zfi_grouped_product(l, e, r, last);
                zfi_matmul(zfi_cpu_of(l)->isa, zfi_cpu_of(l)->pool, &d, l->scratch);
            }
        }
    }
    zfi_grouped_zero(l, before, l->out.shape.dims[0]);
    return ZF_OK;
}

static zf_status zfi_cpu_grouped_outer(const zf_launch *l)
{
    zf_status status = zfi_check_expert_bounds(l);
    if (status || !zfi_count(&l->out)) return status;
    if (!zfi_by_tiles(l)) {
        zfi_split(l, zfi_count(&l->out), 1, zfi_outer_plain);
        return ZF_OK;
    }
    for (int64_t at = 0; at < zfi_count(&l->out) / zfi_outer_each(l); at++)
        zfi_outer_of_expert(l, at);
    return ZF_OK;
}

static double zfi_flops_grouped_linear(const zf_launch *l)
{
    return 2.0 * (double)zfi_count(&l->out) * (double)l->args[0].shape.dims[1];
}

static double zfi_flops_grouped_outer(const zf_launch *l)
{
    return 2.0 * (double)zfi_count(&l->args[0]) * (double)l->args[1].shape.dims[1];
}

ZFI_OPERATOR(grouped_linear, .infer = zfi_infer_grouped_linear, .grad = zfi_grad_grouped_linear,
             .cpu = zfi_cpu_grouped_linear, .scratch = zfi_scratch_grouped_linear,
             .flops = zfi_flops_grouped_linear, .linear = ZFI_LINEAR_FIRST, .by_expert = 1,
             .cuts = "bits transpose: r n!, e! n! m!, r b! -> r k! {parts^r} | "
                     "bits: r k!, e! n! m!, r b! -> r n! {parts^r} | "
                     "transpose sections wide: r k, e! k n, r b! -> r n {parts^r sections/k} | "
                     "!transpose sections wide: r k, e! n k, r b! -> r n {parts^r sections/k} | "
                     "transpose: r k!, e! k! n, r b! -> r n {parts^r} | "
                     "r k!, e! n k!, r b! -> r n {parts^r}",
             .traits = ZF_OP_PRODUCT | ZF_OP_READS_HALF)
ZFI_OPERATOR(grouped_outer, .infer = zfi_infer_grouped_outer, .grad = zfi_grad_grouped_outer,
             .cpu = zfi_cpu_grouped_outer, .scratch = zfi_scratch_grouped_outer,
             .flops = zfi_flops_grouped_outer, .linear = ZFI_LINEAR_FIRST,
             .cuts = "apart: r n, r k, r b! -> s! e! n k {parts^r} | "
                     "r n, r k, r b! -> e! n k {parts^r}",
             .traits = ZF_OP_PRODUCT | ZF_OP_READS_HALF)
