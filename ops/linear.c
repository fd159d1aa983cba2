/* linear: a product, and its bias and activation while a tile of it is in cache.
 *
 *     %4 = linear %1, %2, %3 {activation=gelu} : f32[4,8,32]
 *
 *     u = x w^T + b + c     x [...,k], w [n,k], b [n] or none; c like u, only without activation
 *     y = activation(u)     and after b, or none
 *     du = dy activation'   dx = du w   dw = du^T x   db = sum over rows of du   dc = du
 *
 * sections, wide: as those of matmul. b, c and activation follow the sum of all sections; a wide
 * product has none of them.
 *
 * saved 0: u, for gelu and silu, whose derivative is not a function of y (grad_reads_x). The other
 * activations save y alone.
 *
 * f32: the bits are those of the nodes matmul, add and the activation. bf16 and f16: u and y are
 * computed in f32 and rounded once each; on CUDA y is computed from the rounded u. */

/* The activation as a launch of its operator, over elements in place. */
typedef struct zfi_activating {
    const zfi_record *record; /* NULL: there is no activation */
    zf_launch launch;
    zf_attribute attributes[1];
    zf_array args[1];
} zfi_activating;

static void zfi_activating_of(zfi_activating *a, const zf_launch *l, zf_dtype dtype)
{
    const zfi_instruction *of = zfi_activation(ZF_INT(l, linear, activation));
    *a = (zfi_activating){.record = of ? zfi_records[of->op] : NULL};
    if (!of) return;
    a->attributes[0].i = of->form;
    a->args[0].dtype = dtype;
    a->launch = (zf_launch){.op = of->op,
                            .arg_count = 1,
                            .args = a->args,
                            .out = {.dtype = dtype, .shape = l->out.shape},
                            .attributes = a->attributes,
                            .run = l->run,
                            .backend = l->backend};
}

static zf_status zfi_infer_linear(zfi_infer *c)
{
    zf_status status = zfi_infer_dtypes(c, true);
    const zf_shape *x = &c->args[0]->shape, *w = &c->args[1]->shape;
    char type[ZFI_TYPE_TEXT];
    if (status) return status;
    if (x->rank < 1 || w->rank != 2 || zfi_last(x) != w->dims[1])
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "x [..., k] and w [n, k] are needed");
    if (c->arg_count > 2 &&
        (c->args[2]->shape.rank != 1 || c->args[2]->shape.dims[0] != w->dims[0]))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the bias must be [%lld]", (long long)w->dims[0]);
    if (ZF_INT(c, linear, activation) && !zfi_activation(ZF_INT(c, linear, activation)))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "there is no activation %lld",
                              (long long)ZF_INT(c, linear, activation));
    c->dtype = c->args[0]->dtype;
    c->shape = *x;
    c->shape.dims[x->rank - 1] = w->dims[0];
    status = zfi_infer_sections(c, zfi_last(x), ZF_INT(c, linear, sections),
                                ZF_INT(c, linear, wide) != 0,
                                c->arg_count == 2 && !ZF_INT(c, linear, activation));
    if (status) return status;
    if (c->arg_count > 3 && ZF_INT(c, linear, activation))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "there is no activation of a sum (operand 3)");
    if (c->arg_count > 3 && !zfi_same_shape(&c->args[3]->shape, &c->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "what is added must be %s",
                              zfi_type_text(type, c->dtype, &c->shape));
    return ZF_OK;
}

static bool zfi_saved_linear(const zf_graph *g, const zfi_node *node, int64_t index,
                             zf_dtype *dtype, zf_shape *shape)
{
    const zfi_instruction *of = zfi_activation(ZF_INT(node, linear, activation));
    (void)g;
    *dtype = node->dtype, *shape = node->shape;
    return index == 0 && of && zfi_records[of->op]->grad_reads_x;
}

/* The gradient of u, as the operator of the activation appends it. */
static zf_tensor zfi_grad_before(zf_grad *c)
{
    const zfi_instruction *of = zfi_activation(ZF_INT(c, linear, activation));
    const zf_attribute form[ZF_MAX_ATTRIBUTES] = {{.i = of ? of->form : 0}};
    zf_tensor u = ZF_NONE, du = ZF_NONE;
    if (!of) return c->dy;
    if (zfi_records[of->op]->grad_reads_x) u = zfi_saved(c->y, 0);
    zfi_records[of->op]->grad(&(zf_grad){.graph = c->graph,
                                         .attributes = form,
                                         .y = c->y,
                                         .dy = c->dy,
                                         .count = 1,
                                         .x = &u,
                                         .need = &(const bool){true},
                                         .dx = &du});
    return du;
}

static void zfi_grad_linear(zf_grad *c)
{
    zf_shape w = zf_tensor_shape(c->x[1]), y = zf_tensor_shape(c->y);
    int64_t rows = y.rank == 1 ? 1 : zfi_row_count(&y);
    zf_tensor du = zfi_grad_before(c);
    if (ZF_INT(c, linear, wide)) du = zf_cast(du, zf_tensor_dtype(c->x[0]));
    du = zf_reshape(du, ZF_SHAPE(rows, w.dims[0]));
    if (c->need[0])
        c->dx[0] = zf_reshape(zfi_matmul_of(du, false, c->x[1], false), zf_tensor_shape(c->x[0]));
    if (c->need[1]) /* after dx: zf_fuse takes x from a node that reads dx */
        c->dx[1] = zfi_matmul_of(du, true, zf_reshape(c->x[0], ZF_SHAPE(rows, w.dims[1])), false);
    if (c->count > 2 && c->need[2]) c->dx[2] = zfi_sum_like(du, c->x[2]);
    if (c->count > 3 && c->need[3]) c->dx[3] = c->dy;
}

/* ------------------------------------------------------------------------------ kernels */

static zfi_matmul_desc zfi_linear_product(const zf_launch *l)
{
    int64_t n = l->args[1].shape.dims[0], k = l->args[1].shape.dims[1];
    return (zfi_matmul_desc){.m = n ? zfi_count(&l->out) / n : 0,
                             .n = n,
                             .k = k,
                             .batch = 1,
                             .a = l->args[0].data,
                             .b = l->args[1].data,
                             .c = l->out.data,
                             .a_row = k,
                             .a_col = 1,
                             .b_row = 1,
                             .b_col = k,
                             .c_row = n,
                             .dtype = l->args[0].dtype,
                             .c_dtype = l->out.dtype,
                             .sections = ZF_INT(l, linear, sections)};
}

static void zfi_linear_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_matmul_desc d = zfi_linear_product(l);
    const zf_array *u = zfi_saved_out(l, 0);
    const int64_t k = d.k, n = d.n;
    zfi_activating a;
    zfi_activating_of(&a, l, l->out.dtype);
    for (int64_t i = first; i < last; i++) { /* out[row,col] */
        int64_t row = i / n, col = i % n;
        double sum = zfi_matmul_is_cut(&d)
                         ? zfi_matmul_sections(l, &d, row * k, col * k)
                         : zfi_matmul_terms(l, &d, row * k, col * k, 0, k, 0);
        if (l->arg_count > 2) sum += zfi_get(&l->args[2], col);
        if (l->arg_count > 3) sum += zfi_get(&l->args[3], i);
        if (u) zfi_set(u, i, sum);
        zfi_set(&l->out, i, a.record ? a.record->value(&a.launch, sum, sum) : sum);
    }
}

/* Applies bias, what is added, and activation to a block of the product, and writes u if it is
 * saved. A block of 16 bits has at most ZFI_SPAN columns. */
static void zfi_linear_epilogue(void *context, float *c, int64_t c_row_stride, int64_t row,
                                int64_t col, int64_t rows, int64_t cols)
{
    const zf_launch *l = context;
    const zf_array *u = zfi_saved_out(l, 0);
    zfi_isa isa = zfi_cpu_of(l)->isa;
    int64_t n = zfi_last(&l->out.shape);
    const float *bias = NULL;
    float room[2][ZFI_SPAN];
    zfi_activating a;
    zfi_activating_of(&a, l, ZF_F32);
    if (l->arg_count > 2) bias = zfi_read_floats(isa, room[0], &l->args[2], col, cols);
    for (int64_t i = 0; i < rows; i++) {
        float *y = c + i * c_row_stride;
        if (bias) zfi_add_run(isa, y, bias, cols);
        if (l->arg_count > 3)
            zfi_add_run(isa, y,
                        zfi_read_floats(isa, room[1], &l->args[3], (row + i) * n + col, cols),
                        cols);
        if (u)
            zfi_narrow(isa, zfi_element_of(u->data, u->dtype, (row + i) * n + col), u->dtype, y,
                       cols);
        if (!a.record) continue;
        a.args[0].data = a.launch.out.data = y;
        a.record->piece(&a.launch, 0, cols);
    }
}

static size_t zfi_scratch_linear(const zf_launch *l)
{
    zfi_matmul_desc d = zfi_linear_product(l);
    d.epilogue = zfi_linear_epilogue;
    if (!zfi_by_tiles(l)) return 0;
    return zfi_matmul_scratch(zfi_cpu_of(l)->isa, zfi_pool_threads(zfi_cpu_of(l)->pool), &d);
}

static zf_status zfi_cpu_linear(const zf_launch *l)
{
    zfi_matmul_desc d = zfi_linear_product(l);
    zf_launch context = *l;
    if (!zfi_count(&l->out)) return ZF_OK;
    if (!zfi_by_tiles(l)) {
        zfi_split(l, zfi_count(&l->out), 1, zfi_linear_reference);
        return ZF_OK;
    }
    d.epilogue = zfi_linear_epilogue;
    d.epilogue_context = &context;
    zfi_matmul(zfi_cpu_of(l)->isa, zfi_cpu_of(l)->pool, &d, l->scratch);
    return ZF_OK;
}

static double zfi_flops_linear(const zf_launch *l)
{
    return 2.0 * (double)zfi_count(&l->out) * (double)zfi_last(&l->args[0].shape);
}

static double zfi_functions_linear(const zf_launch *l)
{
    zfi_activating a;
    zfi_activating_of(&a, l, l->out.dtype);
    return a.record ? a.record->functions(&a.launch) : 0;
}

static int32_t zfi_remake_linear(zf_graph *g, int32_t id, int32_t left)
{
    const zfi_instruction *of = zfi_activation(ZF_INT(&g->nodes[id], linear, activation));
    return zfi_build(of->op, 1, &(zf_tensor){g, left}, zfi_with({.i = of->form})).id;
}

static bool zfi_remade_linear(const zf_graph *g, const zfi_node *of, const zfi_node *node,
                              bool alike)
{
    (void)g, (void)alike;
    return zfi_activation_like(node) == ZF_INT(of, linear, activation);
}

static zfi_weight zfi_weight_linear(const zfi_node *node)
{
    return zfi_is_plain_product(node) ? ZFI_WEIGHT_OUT_IN : ZFI_NO_WEIGHT;
}

static int32_t zfi_addend_linear(const zfi_node *node)
{
    return ZF_INT(node, linear, activation) || !zfi_is_plain_product(node) ? 0 : 3;
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(linear, .infer = zfi_infer_linear, .grad = zfi_grad_linear, .cpu = zfi_cpu_linear,
             .scratch = zfi_scratch_linear, .saved = zfi_saved_linear, .remake = zfi_remake_linear,
             .remade = zfi_remade_linear, .flops = zfi_flops_linear,
             .functions = zfi_functions_linear, .weight = zfi_weight_linear,
             .addend = zfi_addend_linear, .linear = ZFI_LINEAR_EACH,
             .cuts = "sections wide: ... k, n k -> ... n {sections/k} | "
                     "... k!, n k!, ?n, ... n -> ... n; ... n",
             .traits = ZF_OP_PRODUCT | ZF_OP_READS_HALF)
