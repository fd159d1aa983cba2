/* Products: matmul.
 *
 *     %3 = matmul %1, %2 {transpose_b=true} : f32[4,8,32]
 *     %5 = matmul %1, %2, %4 {transpose_b=true} : f32[4,8,32]
 *
 *     out[...,m,n] = (c[...,m,n] or 0) + sum over k of a[...,m,k] b[...,k,n]
 *     da = dy b^T, db = a^T dy, summed over the dimensions along which an operand was repeated
 *     dc = dy
 *
 * where transpose_a or transpose_b first transposes the last two dimensions of that operand. c has
 * the shape of the result; the result may be placed over c.
 *
 *     %3 = matmul %1, %2 {sections=4} : f32[8,32]
 *
 * cuts k into four equal sections. Each is summed from zero, and their sums are added by a balanced
 * tree (base/tree.c), and then to c. So ranks that have a quarter of k each, whose results are
 * added by a collective with order=tree, get the same bits. `wide`: the result has the dtype of
 * sums (f32; f64 of f64) and there is no c: what such ranks send.
 *
 * Leading dimensions broadcast. Saved: both operands. f32, bf16 and f16 are summed in f32, in an
 * order that depends on the shape alone (cpu/matmul.c), and rounded once. The reference sums in
 * double, k ascending. The sum starts from c; blocks of k are added to it. */

/* Checks the sections of k, and gives the result the dtype of sums if it is `wide`, which it may be
 * if it is `bare`: nothing is added to the product. */
static zf_status zfi_infer_sections(zfi_infer *c, int64_t k, int64_t sections, bool wide, bool bare)
{
    if (sections < 0 || sections > INT32_MAX || (sections && k % sections))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "%lld sections of sums of %lld terms: they must divide these",
                              (long long)sections, (long long)k);
    if (wide && !bare)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "to a wide product nothing can be added");
    if (wide && c->dtype != ZF_F64) c->dtype = ZF_F32;
    return ZF_OK;
}

/* The node is a product in one section, of the dtype of its operands. Others are left as they are
 * by passes that put products into other nodes or cut them. */
static bool zfi_is_plain_product(const zfi_node *node)
{
    if (node->op == ZF_OP_linear)
        return ZF_INT(node, linear, sections) <= 1 && !ZF_INT(node, linear, wide);
    if (node->op == ZF_OP_grouped_linear)
        return ZF_INT(node, grouped_linear, sections) <= 1 && !ZF_INT(node, grouped_linear, wide);
    return node->op == ZF_OP_matmul && ZF_INT(node, matmul, sections) <= 1 &&
           !ZF_INT(node, matmul, wide) && ZF_INT(node, matmul, runs) <= 1;
}

/* Checks that k is whole runs, of which each section has a part. */
static zf_status zfi_infer_runs(const zfi_infer *c, int64_t k)
{
    const int64_t sections = ZF_INT(c, matmul, sections), runs = ZF_INT(c, matmul, runs);
    if (runs >= 0 && runs <= INT32_MAX && (runs < 2 || k % (runs * (sections > 1 ? sections : 1)) == 0))
        return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE,
                          "%lld runs of %lld sections each, in sums of %lld terms: they must divide "
                          "these",
                          (long long)runs, (long long)sections, (long long)k);
}

static zf_status zfi_infer_matmul(zfi_infer *c)
{
    zf_status status = zfi_infer_dtypes(c, true);
    zf_shape a, b, lead_a, lead_b;
    int64_t m, n, ka, kb;
    char type[ZFI_TYPE_TEXT];
    if (status) return status;
    a = c->args[0]->shape, b = c->args[1]->shape;
    if (a.rank < 2 || b.rank < 2)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "both operands need two dimensions or more");
    m = a.dims[a.rank - 2], ka = a.dims[a.rank - 1], kb = b.dims[b.rank - 2],
    n = b.dims[b.rank - 1];
    if (ZF_INT(c, matmul, transpose_a)) ka = a.dims[a.rank - 2], m = a.dims[a.rank - 1];
    if (ZF_INT(c, matmul, transpose_b)) kb = b.dims[b.rank - 1], n = b.dims[b.rank - 2];
    if (ka != kb)
        return zfi_infer_fail(
            c, ZF_ERR_SHAPE,
            "the inner dimensions differ: %lld of a%s, %lld of b%s; they must be equal",
            (long long)ka, ZF_INT(c, matmul, transpose_a) ? " transposed" : "", (long long)kb,
            ZF_INT(c, matmul, transpose_b) ? " transposed" : "");
    lead_a = a, lead_b = b;
    lead_a.rank -= 2, lead_b.rank -= 2;
    if (!zfi_broadcast_shape(&lead_a, &lead_b, &c->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the leading dimensions do not broadcast: equal or 1 is needed");
    c->shape.dims[c->shape.rank++] = m;
    c->shape.dims[c->shape.rank++] = n;
    c->dtype = c->args[0]->dtype;
    if (c->arg_count > 2 && !zfi_same_shape(&c->args[2]->shape, &c->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "what the product is added to must be %s",
                              zfi_type_text(type, c->dtype, &c->shape));
    if ((status = zfi_infer_runs(c, ka))) return status;
    return zfi_infer_sections(c, ka, ZF_INT(c, matmul, sections), ZF_INT(c, matmul, wide) != 0,
                              c->arg_count == 2);
}

static zf_tensor zfi_matmul_of(zf_tensor a, bool transpose_a, zf_tensor b, bool transpose_b)
{
    return zf_matmul_ex(
        a, b, &(zf_matmul_desc){.transpose_a = transpose_a, .transpose_b = transpose_b});
}

/* x as a matrix: leading dimensions become rows. A view. */
static zf_tensor zfi_matrix(zf_tensor x)
{
    zf_shape shape = zf_tensor_shape(x);
    return shape.rank <= 2 ? x : zf_reshape(x, ZF_SHAPE(zfi_row_count(&shape), zfi_last(&shape)));
}

static void zfi_grad_matmul(zf_grad *c)
{
    bool ta = ZF_INT(c, matmul, transpose_a) != 0, tb = ZF_INT(c, matmul, transpose_b) != 0;
    zf_tensor a = c->x[0], b = c->x[1], dy = c->dy, dx;
    if (c->count > 2 && c->need[2]) c->dx[2] = dy;
    if (ZF_INT(c, matmul, wide)) dy = zf_cast(dy, zf_tensor_dtype(a));
    /* b is one matrix for the whole batch (a weight): a becomes one tall matrix, and db needs no
     * sum over the batch. */
    if (!ta && zf_tensor_shape(b).rank == 2) {
        a = zfi_matrix(a);
        dy = zfi_matrix(dy);
    }
    if (c->need[0]) {
        dx = ta ? zfi_matmul_of(b, tb, dy, true) : zfi_matmul_of(dy, false, b, !tb);
        c->dx[0] = zf_reshape(zfi_sum_like(dx, a), zf_tensor_shape(c->x[0]));
    }
    if (c->need[1]) {
        dx = tb ? zfi_matmul_of(dy, true, a, ta) : zfi_matmul_of(a, !ta, dy, false);
        c->dx[1] = zfi_sum_like(dx, b);
    }
}

/* ------------------------------------------------------------------------------ kernels */

/* The product as a loop over matrices: for every leading dimension, the distance between matrices
 * in a, b and out. */
typedef struct zfi_product {
    zfi_matmul_desc matrix;
    zf_shape lead; /* leading dimensions that are not in matrix.batch */
    int64_t step_a[ZF_MAX_RANK], step_b[ZF_MAX_RANK], step_c[ZF_MAX_RANK];
} zfi_product;

/* The tiled product applies: fast kernels are not switched off, and the dtype is not f64. */
static bool zfi_by_tiles(const zf_launch *l)
{
    return !zfi_cpu_of(l)->reference && l->out.dtype != ZF_F64;
}

static zfi_product zfi_product_of(const zf_launch *l)
{
    const zf_shape *a = &l->args[0].shape, *b = &l->args[1].shape, *out = &l->out.shape;
    bool ta = ZF_INT(l, matmul, transpose_a) != 0, tb = ZF_INT(l, matmul, transpose_b) != 0;
    int64_t rows_a = a->dims[a->rank - 2], cols_a = a->dims[a->rank - 1];
    int64_t rows_b = b->dims[b->rank - 2], cols_b = b->dims[b->rank - 1];
    zfi_product p = {.lead = *out};
    zf_shape lead_a = *a, lead_b = *b;
    zfi_matmul_desc *d = &p.matrix;

    d->m = out->dims[out->rank - 2], d->n = out->dims[out->rank - 1], d->k = ta ? rows_a : cols_a;
    d->a_row = ta ? 1 : cols_a, d->a_col = ta ? cols_a : 1;
    d->b_row = tb ? 1 : cols_b, d->b_col = tb ? cols_b : 1;
    d->c_row = d->n;
    d->batch = 1;
    d->dtype = l->args[0].dtype, d->c_dtype = l->out.dtype;
    d->accumulate = l->arg_count > 2;
    d->sections = ZF_INT(l, matmul, sections), d->runs = ZF_INT(l, matmul, runs);
    p.lead.rank -= 2, lead_a.rank -= 2, lead_b.rank -= 2;
    zfi_broadcast_strides(&lead_a, &p.lead, p.step_a);
    zfi_broadcast_strides(&lead_b, &p.lead, p.step_b);
    zfi_broadcast_strides(&p.lead, &p.lead, p.step_c);
    for (int axis = 0; axis < p.lead.rank; axis++) {
        p.step_a[axis] *= rows_a * cols_a;
        p.step_b[axis] *= rows_b * cols_b;
        p.step_c[axis] *= d->m * d->n;
    }
    /* One b for every a: the batch becomes rows. */
    if (!ta && zfi_span(b, 0, b->rank - 2) == 1) {
        d->m *= zfi_span(&p.lead, 0, p.lead.rank);
        p.lead.rank = 0;
    }
    /* The innermost leading dimensions become the batch of one call, where they are evenly spaced
     * in all three. */
    while (p.lead.rank) {
        int axis = p.lead.rank - 1;
        if (d->batch > 1 &&
            (p.step_a[axis] != d->a_batch * d->batch || p.step_b[axis] != d->b_batch * d->batch ||
             p.step_c[axis] != d->c_batch * d->batch))
            break;
        if (d->batch == 1)
            d->a_batch = p.step_a[axis], d->b_batch = p.step_b[axis], d->c_batch = p.step_c[axis];
        d->batch *= p.lead.dims[axis];
        p.lead.rank--;
    }
    return p;
}

static size_t zfi_scratch_matmul(const zf_launch *l)
{
    zfi_product p = zfi_product_of(l);
    if (!zfi_by_tiles(l)) return 0;
    return zfi_matmul_scratch(zfi_cpu_of(l)->isa, zfi_pool_threads(zfi_cpu_of(l)->pool), &p.matrix);
}

/* sum + the products of elements [k, end) of a row and a column. */
static double zfi_matmul_terms(const zf_launch *l, const zfi_matmul_desc *d, int64_t at_a,
                               int64_t at_b, int64_t k, int64_t end, double sum)
{
    for (; k < end; k++)
        sum += zfi_get(&l->args[0], at_a + k * d->a_col) *
               zfi_get(&l->args[1], at_b + k * d->b_row);
    return sum;
}

/* The sum of all sections of the products of a row and a column. */
static double zfi_matmul_sections(const zf_launch *l, const zfi_matmul_desc *d, int64_t at_a,
                                  int64_t at_b)
{
    const int64_t length = zfi_matmul_section(d), together = zfi_matmul_together(d);
    zfi_tree tree = {.sections = zfi_max(d->sections, 1)};
    for (int64_t s = 0; s < d->k; s += length) {
        double sum = 0;
        for (int64_t k = s; k < s + length; k += together) {
            const int64_t from = zfi_matmul_k(d, k);
            sum = zfi_matmul_terms(l, d, at_a, at_b, from, from + together, sum);
        }
        zfi_tree_put(&tree, sum);
    }
    return tree.sums[0];
}

/* Rows [first, last) of all matrices of out. */
static void zfi_matmul_plain(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_product p = zfi_product_of(l);
    const zfi_matmul_desc *d = &p.matrix;
    for (int64_t row = first; row < last; row++) {
        int64_t m = row % d->m, batch = row / d->m % d->batch, outer = row / d->m / d->batch;
        int64_t at_a = zfi_offset(outer, &p.lead, p.step_a) + batch * d->a_batch + m * d->a_row;
        int64_t at_b = zfi_offset(outer, &p.lead, p.step_b) + batch * d->b_batch;
        for (int64_t n = 0; n < d->n; n++) {
            double sum = d->accumulate ? zfi_get(&l->args[2], row * d->n + n) : 0;
            if (zfi_matmul_is_cut(d)) sum += zfi_matmul_sections(l, d, at_a, at_b + n * d->b_col);
            else sum = zfi_matmul_terms(l, d, at_a, at_b + n * d->b_col, 0, d->k, sum);
            zfi_set(&l->out, row * d->n + n, sum);
        }
    }
}

/* Elements [first, last) of c are copied to the result. */
static void zfi_matmul_begin(const zf_launch *l, int64_t first, int64_t last)
{
    size_t size = zf_dtype_size(l->out.dtype);
    memcpy((char *)l->out.data + (size_t)first * size,
           (const char *)l->args[2].data + (size_t)first * size, (size_t)(last - first) * size);
}

static zf_status zfi_cpu_matmul(const zf_launch *l)
{
    zfi_product p = zfi_product_of(l);
    if (!zfi_count(&l->out)) return ZF_OK;
    if (p.matrix.accumulate && l->args[2].data != l->out.data)
        zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, zfi_matmul_begin);
    if (!zfi_by_tiles(l)) {
        zfi_split(l, zfi_count(&l->out) / p.matrix.n, 1, zfi_matmul_plain);
        return ZF_OK;
    }
    for (int64_t outer = 0, count = zfi_span(&p.lead, 0, p.lead.rank); outer < count; outer++) {
        zfi_matmul_desc d = p.matrix;
        d.a = zfi_element(l->args[0].data, d.dtype, zfi_offset(outer, &p.lead, p.step_a));
        d.b = zfi_element(l->args[1].data, d.dtype, zfi_offset(outer, &p.lead, p.step_b));
        d.c = zfi_element_of(l->out.data, d.c_dtype, zfi_offset(outer, &p.lead, p.step_c));
        zfi_matmul(zfi_cpu_of(l)->isa, zfi_cpu_of(l)->pool, &d, l->scratch);
    }
    return ZF_OK;
}

static double zfi_flops_matmul(const zf_launch *l)
{
    const zf_shape *a = &l->args[0].shape;
    return 2.0 * (double)zfi_count(&l->out) *
           (double)a->dims[a->rank - (ZF_INT(l, matmul, transpose_a) ? 2 : 1)];
}

static zfi_weight zfi_weight_matmul(const zfi_node *node)
{
    if (node->arg_count != 2 || ZF_INT(node, matmul, transpose_a) || !zfi_is_plain_product(node))
        return ZFI_NO_WEIGHT;
    return ZF_INT(node, matmul, transpose_b) ? ZFI_WEIGHT_OUT_IN : ZFI_WEIGHT_IN_OUT;
}

static int32_t zfi_addend_matmul(const zfi_node *node)
{
    return zfi_is_plain_product(node) ? 2 : 0;
}

/* ------------------------------------------------------------------------------- records */

/* Rows are cut, and columns; of a product that is wide and has sections, k as well. */
#define ZFI_CUTS_OF_MATMUL(form, a, b)                                                             \
    form " sections wide: ... " a ", ... " b " -> ... m n {sections/k} | "
#define ZFI_CUTS_OF_WHOLE_K(form, a, b) form ": ... " a ", ... " b ", ?... m n -> ... m n"

ZFI_OPERATOR(matmul, .infer = zfi_infer_matmul, .grad = zfi_grad_matmul, .cpu = zfi_cpu_matmul,
             .scratch = zfi_scratch_matmul, .flops = zfi_flops_matmul,
             .over = 1 << 2, .weight = zfi_weight_matmul, .addend = zfi_addend_matmul,
             .linear = ZFI_LINEAR_EACH,
             .cuts = ZFI_CUTS_OF_MATMUL("transpose_a transpose_b", "k m", "n k")
                     ZFI_CUTS_OF_MATMUL("transpose_a !transpose_b", "k m", "k n")
                     ZFI_CUTS_OF_MATMUL("!transpose_a transpose_b", "m k", "n k")
                     ZFI_CUTS_OF_MATMUL("!transpose_a !transpose_b", "m k", "k n")
                     ZFI_CUTS_OF_WHOLE_K("transpose_a transpose_b", "k! m", "n k!") " | "
                     ZFI_CUTS_OF_WHOLE_K("transpose_a", "k! m", "k! n") " | "
                     ZFI_CUTS_OF_WHOLE_K("transpose_b", "m k!", "n k!") " | "
                     ZFI_CUTS_OF_WHOLE_K("!transpose_b", "m k!", "k! n"),
             .traits = ZF_OP_INPLACE | ZF_OP_PRODUCT | ZF_OP_READS_HALF)
