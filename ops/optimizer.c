/* Optimizers: the record of one, and what its updates are made of.
 *
 * An optimizer is a record ZFI_OPTIMIZER(name, ...) in the file of its operator, and a line of
 * ZF_OPTIMIZERS. From the record come zf_NAME (passes/optimizers/optimizer.c), its options by name
 * everywhere (zf_training_options), the variants of its step, and the states of its parameters. */

typedef struct zfi_optimizer zfi_optimizer;

/* What is known of an optimizer. */
typedef struct zfi_optimizer_record {
    const char *name;
    const zf_option *rows; /* of zf_NAME_desc, */
    size_t desc_size;      /* and its bytes */
    bool counts;           /* it has a state that counts updates */
    bool one_rate;         /* its states are made of one rate and one pair of betas */
    bool lazy;             /* it can update some rows of a table */
    bool signs;            /* ranks average its momentum as signs, from their own gradients */
    /* Checks what ranges do not, and may rewrite the graph before the updates; NULL: nothing */
    zf_status (*prepare)(zf_graph *, const void *desc);
    void (*begin)(zf_graph *, zfi_optimizer *); /* before all updates; NULL: nothing */
    void (*update)(zf_graph *, zfi_optimizer *, zf_tensor param, zf_tensor gradient,
                   double decay);
    void (*finish)(zf_graph *, zfi_optimizer *); /* after all updates; NULL: nothing */
    /* The names of the variants of a step; NULL: there is one. desc is resolved */
    const char *const *(*variants)(const void *desc);
    int32_t (*variant_at)(const void *desc, int64_t step);
} zfi_optimizer_record;

#define ZFI_OPTIMIZER(of, ...)                                                                     \
    static const zfi_optimizer_record zfi_optimizer_##of = {                                       \
        .name = #of, .rows = zfi_##of##_options, .desc_size = sizeof(zf_##of##_desc), __VA_ARGS__};

/* The optimizer of a graph while its updates are appended. */
struct zfi_optimizer {
    const zfi_optimizer_record *record;
    const void *desc; /* resolved */
    /* step: counts updates; ZF_NONE where the optimizer does not count. scale: the factor for
     * gradients; ZF_NONE: 1 */
    zf_tensor lr, step, scale;
    zf_tensor rows; /* of the current parameter, which its gradient is of; ZF_NONE: all */
    /* Counts updates of the variance, where these are fewer: made by `begin` */
    zf_tensor variance_step;
    /* 0/1 Adam: the sum of the rates, whether it is above 0, a constant, and the share of the
     * newest gradient in the variance */
    zf_tensor total, moved, eps, share;
    int32_t *rates;                  /* those of groups, an array */
    struct zfi_lamb_piece *pieces;   /* LAMB: those of the current parameter; an array */
    struct zfi_lamb_tensor *tensors; /* 1-bit LAMB: all; an array */
};

/* What the rows of most optimizers have. */
#define ZFI_DECAY_OPTIONS(desc)                                                                    \
    ZF_OPTION(desc, NUMBER, weight_decay, 0, "[0,inf)", .traits = ZF_OPTION_CHANGES | ZF_OPTION_BASIC, \
              .help = "weight decay, of parameters of two dimensions and more"),                   \
        ZF_OPTION(desc, FLAG, decay_all, 0, NULL, .traits = ZF_OPTION_CHANGES,                     \
                  .help = "weight decay of biases and norms too")
#define ZFI_ADAM_OPTIONS(desc, eps_)                                                               \
    ZF_OPTION(desc, NUMBER, beta1, 0.9, "[0,1)", .traits = ZF_OPTION_CHANGES,                      \
              .help = "decay of the first moment"),                                                \
        ZF_OPTION(desc, NUMBER, beta2, 0.999, "[0,1)", .traits = ZF_OPTION_CHANGES,                \
                  .help = "decay of the second moment"),                                           \
        ZF_OPTION(desc, NUMBER, eps, eps_, "[0,inf)", .traits = ZF_OPTION_CHANGES,                 \
                  .help = "added to the root of the second moment")
#define ZFI_CORRECTION_OPTION(desc)                                                                \
    ZF_OPTION(desc, FLAG, no_bias_correction, 0, NULL, .traits = ZF_OPTION_CHANGES,                \
              .help = "moments are not corrected for their beginning as 0")

#define ZFI_RATIO_OPTIONS(desc)                                                                    \
    ZF_OPTION(desc, NUMBER, min_coeff, 0.01, "[0,inf)", .flag = "min-ratio",                       \
              .traits = ZF_OPTION_CHANGES, .help = "minimum of the trust ratio"),                  \
        ZF_OPTION(desc, NUMBER, max_coeff, 10, "[0,inf)", .flag = "max-ratio",                     \
                  .traits = ZF_OPTION_CHANGES, .help = "maximum of the trust ratio")

/* An error where two bounds are in the wrong order. */
static zf_status zfi_check_bounds(zf_graph *g, const char *pass, const char *least_name,
                                  double least, const char *most_name, double most)
{
    if (least <= most) return ZF_OK;
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "%s: %s is %g, above %s, %g", pass, least_name,
                    least, most_name, most);
}

/* The name of a state of a parameter. Master weights are the parameter's, whoever trains it; other
 * states are the training's. */
static const char *zfi_state_name(const zf_graph *g, const char *kind, zf_tensor param,
                                  char text[ZFI_STATE_NAME])
{
    char name[ZFI_STATE_NAME - ZFI_SHORT_NAME - 1];
    snprintf(name, sizeof name, "%s/%s", kind, zf_tensor_name(param));
    if (zfi_role_of_part(kind) != ZFI_ROLE_MASTER) return zfi_name_of_training(g, name, text);
    return memcpy(text, name, sizeof name);
}

/* A new state for a parameter, laid out over the ranks as `ranks` says (base/mesh.c): of zeros, or
 * as `from` if that is not 0. */
static zf_tensor zfi_state_for(zf_graph *g, const char *kind, zf_tensor param, zf_dtype dtype,
                               zf_shape shape, int32_t from, int64_t ranks)
{
    const zfi_cut_rows cut = zfi_cut_rows_of(&g->nodes[param.id]);
    zfi_new state = {.op = ZF_OP_state,
                     .args = &from,
                     .arg_count = from != 0,
                     .dtype = dtype,
                     .shape = shape,
                     .role = zfi_role_of_part(kind),
                     .of = param.id};
    char name[ZFI_STATE_NAME];
    ZF_INT(&state, state, row) = cut.row, ZF_INT(&state, state, rows) = cut.rows;
    ZF_INT(&state, state, ranks) = ranks;
    return zfi_leaf(g, state, zfi_state_name(g, kind, param, name));
}

/* A new state of zeros for a parameter: f32, or f64 for an f64 parameter. */
static zf_tensor zfi_moment(zf_graph *g, const char *kind, zf_tensor param)
{
    return zfi_state_for(g, kind, param, zf_tensor_dtype(param) == ZF_F64 ? ZF_F64 : ZF_F32,
                         zf_tensor_shape(param), 0, ZFI_STATE_STAGE);
}

/* A new f32 state of zeros for a parameter, laid out as `ranks` says. */
static zf_tensor zfi_moment_over(zf_graph *g, const char *kind, zf_tensor param, int64_t ranks)
{
    return zfi_state_for(g, kind, param, ZF_F32, zf_tensor_shape(param), 0, ranks);
}

/* New master weights for a bf16 or f16 parameter, which start with its values; ZF_NONE for
 * others. */
static zf_tensor zfi_master(zf_graph *g, const char *kind, zf_tensor param)
{
    const zf_dtype dtype = zf_tensor_dtype(param);
    if (dtype != ZF_BF16 && dtype != ZF_F16) return ZF_NONE;
    return zfi_state_for(g, kind, param, ZF_F32, zf_tensor_shape(param), param.id,
                         ZFI_STATE_STAGE);
}

/* Appends `op` over those of x[0..count) that are not ZF_NONE. */
static zf_tensor zfi_build_update(zf_op op, int32_t count, const zf_tensor *x,
                                  const zf_attribute *attributes)
{
    zf_tensor args[ZFI_OPERANDS];
    int32_t n = 0;
    for (int32_t k = 0; k < count; k++)
        if (x[k].graph) args[n++] = x[k];
    return zfi_build(op, n, args, attributes);
}
