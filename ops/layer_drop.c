/* The branch of a layer, which some steps leave out.
 *
 *     %2 = layer_drop %1 {coin=6 share=0.25 theta=0.5 gamma=0.001} : f32[4,8]
 *
 *     y = x / p in a step that keeps it, else 0         p = 1 - share (1 - theta(t))
 *     theta(t) = (1 - theta) exp(-gamma t) + theta      t: the steps before this one
 *
 * A coin of the seed, the step and the number `coin` decides, the same one in all nodes that have
 * this number, for all examples and on all ranks. p is rounded to a multiple of 2^-32, of which the
 * factor is the inverse, so that the mean of y is x. Evaluation gives x. dx = layer_drop of dy,
 * with the same attributes. What computes x, and what its gradient computes, is then left out of
 * the step (plan/regions.c).
 *
 * Sources: Huang et al. 2016 (stochastic depth); Zhang & He 2020 (theta(t), shares). */

static const uint32_t ZFI_COIN_STREAM = 0x636f696e;

/* The factor of a step: 0 where the coin leaves x out. */
static double zfi_layer_factor(const zf_attribute *attributes, const zf_run *run)
{
    const struct {
        const zf_attribute *attributes;
    } of = {attributes};
    const double theta = ZF_FLOAT(&of, layer_drop, theta), all = 4294967296.0;
    double now, kept;
    if (!run || run->evaluate) return 1;
    now = (1 - theta) * exp(-ZF_FLOAT(&of, layer_drop, gamma) * (double)(run->step - 1)) + theta;
    kept = fmax(1, nearbyint(all * (1 - ZF_FLOAT(&of, layer_drop, share) * (1 - now))));
    if (kept >= all) return 1;
    return zfi_random_word((uint64_t)ZF_INT(&of, layer_drop, coin), ZFI_COIN_STREAM,
                           (uint32_t)run->step, run->seed) < kept
               ? all / kept
               : 0;
}

ZF_API double zf_layer_drop_factor(const zf_launch *l)
{
    return l && l->op == ZF_OP_layer_drop ? zfi_layer_factor(l->attributes, l->run) : 1;
}

static zf_status zfi_infer_layer_drop(zfi_infer *c)
{
    const double share = ZF_FLOAT(c, layer_drop, share), theta = ZF_FLOAT(c, layer_drop, theta),
                 gamma = ZF_FLOAT(c, layer_drop, gamma);
    if (ZF_INT(c, layer_drop, coin) < 0)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "coin %lld must not be negative",
                              (long long)ZF_INT(c, layer_drop, coin));
    if (!(share >= 0 && share <= 1) || !(theta > 0 && theta <= 1) || !(gamma >= 0 && gamma <= 1e9))
        return zfi_infer_fail(
            c, ZF_ERR_ARGUMENT,
            "share = %g must be 0 to 1, theta = %g above 0 and at most 1, gamma = "
            "%g not negative",
            share, theta, gamma);
    return zfi_infer_alike(c);
}

static void zfi_grad_layer_drop(zf_grad *c) { c->dx[0] = zfi_op(layer_drop, c->attributes, c->dy); }

/* x is not read where it is left out: nothing has computed it. */
static void zfi_layer_drop_part(const zf_launch *l, int64_t first, int64_t last)
{
    enum { PIECE = 256 };
    const double factor = zfi_layer_factor(l->attributes, l->run);
    const zf_dtype dtype = l->out.dtype;
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const size_t size = zf_dtype_size(dtype);
    float piece[PIECE];
    if (factor == 0) {
        memset((char *)l->out.data + (size_t)first * size, 0, (size_t)(last - first) * size);
        return;
    }
    for (int64_t i = first; i < last && dtype == ZF_F64; i++)
        zfi_set(&l->out, i, factor * zfi_get(&l->args[0], i));
    for (int64_t i = first; i < last && dtype != ZF_F64; i += PIECE) {
        const int64_t n = zfi_min(PIECE, last - i);
        zfi_widen(isa, piece, dtype, zfi_element_of(l->args[0].data, dtype, i), n);
        for (int64_t k = 0; k < n; k++) piece[k] *= (float)factor;
        zfi_narrow(isa, zfi_element_of(l->out.data, dtype, i), dtype, piece, n);
    }
}

static zf_status zfi_cpu_layer_drop(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, zfi_layer_drop_part);
    return ZF_OK;
}

/* ----------------------------------------------------------------------------------- options */

#define ZFI_ROW(kind, member, default_, range, ...)                                                \
    ZF_OPTION(zf_layer_drop_desc, kind, member, default_, range, __VA_ARGS__)
static const zf_option zfi_layer_drop_rows[] = {
    ZFI_ROW(NUMBER, theta, 1, "(0,1]", .traits = ZF_OPTION_CHANGES,
            .help = "in the end the last layer is kept in this share of the steps; 1: always"),
    ZFI_ROW(NUMBER, gamma, 0.001, "[0,1e9]", .traits = ZF_OPTION_CHANGES,
            .help = "how fast it comes to that: the share is theta + (1 - theta) exp(-gamma "
                    "steps)"),
    ZFI_ROW(FLAG, halves, 0, NULL, .traits = ZF_OPTION_CHANGES,
            .help = "attention and feed-forward of a layer are left out each by itself"),
    ZFI_ROW(FLAG, first_kept, 0, NULL, .traits = ZF_OPTION_CHANGES,
            .help = "layer i = 0, 1, ... of L is left out i/L as often as theta says, not (i + "
                    "1)/L"),
    {.name = NULL}};
#undef ZFI_ROW

static const zf_option zfi_layer_drops[] = {
    {.name = "layer_drop",
     .kind = ZF_OPTION_DESC,
     .size = sizeof(zf_layer_drop_desc),
     .unit = "NAME=VALUE[,...]",
     .flag = "layer-drop",
     .topic = "layer-drop",
     .help = "steps leave out layers, the later ones more often (docs/layer-drop.md)",
     .rows = zfi_layer_drop_rows},
    {.name = NULL}};

ZF_API const zf_option *zf_layer_drop_options(void) { return zfi_layer_drops; }

/* ----------------------------------------------------------------------------------- record */

ZFI_OPERATOR(layer_drop, .infer = zfi_infer_layer_drop, .grad = zfi_grad_layer_drop,
             .cpu = zfi_cpu_layer_drop, .functions = zfi_functions_none, .parts = ZFI_PARTS_MOVED,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_READS_HALF)
