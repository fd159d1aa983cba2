/* Optimizers: append one update per parameter that has a gradient, as the optimizer's record says
 * (ops/optimizer.c).
 *
 * requires: gradients of parameters that have no update yet
 * ensures:  the parameter and its states are written in the update section; states are named
 *           "adamw.m/PARAM"; bf16 and f16 parameters have master weights, "adamw.master/PARAM"
 * before:   gradient %2, %9
 * after:    update:
 *           advance %30
 *           adamw %2, %9, %31, %32, %7, %30 {beta1=0.9 beta2=0.999 eps=1e-08}
 *
 * A group's rate is `scale` of lr, or a constant, its betas and decay are attributes of the updates (groups.c).
 *
 * With a loss scale, updates multiply gradients by the number that removes the scale (from zf_clip,
 * or computed here). If it is negative, they change nothing:
 *
 *           advance %30, %29
 *           adamw %2, %9, %31, %32, %7, %30, %29 {beta1=0.9 beta2=0.999 eps=1e-08 scaled=true}
 */

/* The factor by which updates multiply the gradients of the marks; ZF_NONE: none. */
static zf_tensor zfi_gradients_scale(zf_graph *g, const int32_t *marks)
{
    int32_t *values = NULL, made;
    if (!zfi_scaler_node(g, ZF_OP_loss_scale)) return ZF_NONE;
    if (!zfi_scaler_node(g, ZF_OP_loss_scale_update)) {
        for (int32_t k = 0; k < zfi_len(marks); k++)
            zfi_push(&g->memory, values, g->nodes[marks[k]].args[1]);
        if (!g->memory.failed) zfi_unscale(g, values, zfi_len(values), 0, false);
        zfi_array_free(&g->memory, values);
        if (g->memory.failed) zfi_graph_nomem(g);
    }
    made = zfi_scaler_node(g, ZF_OP_loss_scale_update);
    return (zf_tensor){g, made ? g->nodes[made].args[ZFI_SCALER_STATES] : 0};
}

/* The state that counts updates, advanced by one. */
static zf_tensor zfi_count_updates(zf_graph *g, const zfi_optimizer *o)
{
    char name[32];
    zf_tensor step;
    snprintf(name, sizeof name, "%s.step", o->record->name);
    step = zfi_state(g, name, ZF_I64, ZF_SCALAR, 0);
    (void)zfi_build_update(ZF_OP_advance, 2, (zf_tensor[]){step, o->scale}, NULL);
    return step;
}

/* The flag or number of this name in a desc. */
static double zfi_desc_number(const zf_option *rows, const void *desc, const char *name)
{
    const zf_option *row = zfi_option_in(rows, name, strlen(name));
    return zfi_option_number(row, (const char *)desc + row->at, true);
}

/* A desc of any optimizer. */
typedef union zfi_optimizer_desc {
#define ZFI_MEMBER(NAME, name) zf_##name##_desc name;
    ZF_OPTIMIZERS(ZFI_MEMBER)
#undef ZFI_MEMBER
} zfi_optimizer_desc;

/* The node is the learning rate of a group: a constant, or a multiple of that of the graph. */
static bool zfi_is_rate(const zf_graph *g, int32_t id, double by, bool constant)
{
    const zfi_node *node = &g->nodes[id];
    if (constant != (node->op == ZF_OP_constant)) return false;
    return by == (constant ? *(const double *)ZF_LIST(node, constant, values).data
                           : ZF_FLOAT(node, scale, by));
}

/* The learning rate of a parameter: that of the graph, times the factor of its group; or that of
 * its group. */
static zf_tensor zfi_rate_of_group(zf_graph *g, zfi_optimizer *o, int32_t param, zf_tensor lr)
{
    const double by = ZF_FLOAT(&g->nodes[param], param, rate);
    const bool constant = ZF_INT(&g->nodes[param], param, constant) != 0;
    if (!constant && (by == 0 || by == 1)) return lr;
    for (int32_t k = 0; k < zfi_len(o->rates); k++)
        if (zfi_is_rate(g, o->rates[k], by, constant)) return (zf_tensor){g, o->rates[k]};
    lr = constant ? zf_constant(g, zf_tensor_dtype(lr), ZF_SCALAR, by) : zf_scale(lr, by);
    zfi_push(&g->memory, o->rates, lr.id);
    return lr;
}

/* The weight decay of a parameter: that of its group, or the optimizer's. */
static double zfi_decay_of_group(const zf_graph *g, int32_t param, double otherwise)
{
    const zfi_node *node = &g->nodes[param];
    const double own = ZF_FLOAT(node, param, decay);
    return ZF_INT(node, param, no_decay) ? 0 : own != 0 ? own : otherwise;
}

/* The desc of a parameter's update, with the betas of its group; NULL with the graph's error where
 * the optimizer has none. */
static const void *zfi_desc_of_group(zf_graph *g, const zfi_optimizer *o, int32_t param,
                                     const void *desc, void *room)
{
    const zfi_node *node = &g->nodes[param];
    const double betas[2] = {ZF_FLOAT(node, param, beta1), ZF_FLOAT(node, param, beta2)};
    if (betas[0] == 0 && betas[1] == 0) return desc;
    memcpy(room, desc, o->record->desc_size);
    for (int k = 0; k < 2; k++) {
        const zf_option *row = zfi_option_in(o->record->rows, k ? "beta2" : "beta1", 5);
        if (betas[k] == 0) continue;
        if (!row)
            return zfi_fail(
                       &g->error, ZF_ERR_ARGUMENT,
                       "zf_%s: the group of \"%.200s\" gives it a beta%d, which this optimizer "
                       "does not have",
                       o->record->name, node->name, k + 1),
                   NULL;
        *(double *)(void *)((char *)room + row->at) = betas[k];
    }
    return room;
}

/* Where an optimizer's steps are made of one rate and one pair of betas, groups cannot have
 * others. */
static zf_status zfi_check_group(zf_graph *g, const zfi_optimizer *o, int32_t param)
{
    const zfi_node *node = &g->nodes[param];
    const bool rate = ZF_FLOAT(node, param, rate) != 0 && ZF_FLOAT(node, param, rate) != 1,
               constant = ZF_INT(node, param, constant) != 0,
               beta = ZF_FLOAT(node, param, beta1) != 0 || ZF_FLOAT(node, param, beta2) != 0;
    if (constant && o->record->signs)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_%s: the group of \"%.200s\" gives it a constant rate, and those of this "
                        "optimizer follow the learning rate",
                        o->record->name, node->name);
    if (!o->record->one_rate || (!rate && !beta)) return ZF_OK;
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "zf_%s: the group of \"%.200s\" gives it a %s; this optimizer has one for all "
                    "parameters",
                    o->record->name, node->name, rate ? "rate" : "beta");
}

/* Some rows of a table are updated by optimizers whose other rows need no update. */
static zf_status zfi_check_lazy(zf_graph *g, const zfi_optimizer *o, const zfi_node *mark)
{
    if (o->record->lazy || mark->arg_count < 3) return ZF_OK;
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "zf_%s: of the table \"%.200s\" only the rows that are read are to be updated "
                    "(zf_param_group.lazy_rows), which adamw and sgd can: its group can have one "
                    "of these as its optimizer",
                    o->record->name, g->nodes[mark->args[0]].name);
}

/* The mark is of a parameter that this optimizer updates: its group has this optimizer, or none. */
static bool zfi_takes(const zf_graph *g, const zfi_optimizer *o, int32_t mark)
{
    const int32_t param = g->nodes[mark].args[0];
    if (zfi_had(g, param, ZFI_HAS_UPDATE)) return false;
    return !ZF_INT(&g->nodes[param], param, optimizer) || zfi_chooses(g, param, o->record->name);
}

static int32_t zfi_count_taken(const zf_graph *g, const zfi_optimizer *o, const int32_t *marks)
{
    int32_t taken = 0;
    for (int32_t k = 0; k < zfi_len(marks); k++) taken += zfi_takes(g, o, marks[k]);
    return taken;
}

/* Removes the marks of parameters that another optimizer updates. */
static void zfi_keep_taken(const zf_graph *g, const zfi_optimizer *o, int32_t *marks)
{
    int32_t taken = 0;
    for (int32_t k = 0; k < zfi_len(marks); k++)
        if (zfi_takes(g, o, marks[k])) marks[taken++] = marks[k];
    if (marks) stbds_header(marks)->length = (size_t)taken;
}

/* Optimizers that average momentum over the ranks have all parameters. */
static zf_status zfi_check_alone(zf_graph *g, const zfi_optimizer *o, const int32_t *all)
{
    int length;
    for (int32_t k = 0; k < zfi_len(all) && o->record->signs; k++) {
        const zfi_node *param = &g->nodes[g->nodes[all[k]].args[0]];
        const int64_t other = ZF_INT(param, param, optimizer);
        const char *name = zfi_group_optimizer(g, other, &length);
        if (other)
            return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                            "zf_%s: the group of \"%.200s\" has the optimizer %.*s; this optimizer "
                            "is that of all parameters",
                            o->record->name, param->name, length, name);
    }
    return ZF_OK;
}

static void zfi_append_updates(zf_graph *g, zfi_optimizer *o, const int32_t *marks)
{
    const zfi_optimizer_record *r = o->record;
    const bool all = zfi_desc_number(r->rows, o->desc, "decay_all") != 0;
    const double decay = zfi_desc_number(r->rows, o->desc, "weight_decay");
    const zf_tensor lr = o->lr;
    const void *desc = o->desc;
    zfi_optimizer_desc room;
    if (r->counts) o->step = zfi_count_updates(g, o);
    if (r->begin) r->begin(g, o);
    for (int32_t k = 0; k < zfi_len(marks) && !g->error.status; k++) {
        const zf_tensor param = {g, g->nodes[marks[k]].args[0]},
                        gradient = {g, g->nodes[marks[k]].args[1]};
        const double its = all || zf_tensor_shape(param).rank >= 2 ? decay : 0;
        const zfi_node *mark = &g->nodes[marks[k]];
        if (zfi_check_lazy(g, o, mark)) break;
        o->rows = mark->arg_count > 2 ? (zf_tensor){g, mark->args[2]} : ZF_NONE;
        o->lr = zfi_rate_of_group(g, o, param.id, lr);
        o->desc = zfi_desc_of_group(g, o, param.id, desc, &room);
        if (!o->desc || zfi_check_group(g, o, param.id)) break;
        r->update(g, o, param, gradient, zfi_decay_of_group(g, param.id, its));
    }
    o->lr = lr, o->desc = desc;
    if (r->finish && !g->error.status && !g->memory.failed) r->finish(g, o);
}

/* Checks that the optimizer can be that of the marks `taken`. */
static zf_status zfi_check_taken(zf_graph *g, const zfi_optimizer *o, const char *pass,
                                 const int32_t *marks, int32_t taken)
{
    if (zfi_check_alone(g, o, marks)) return g->error.status;
    if (taken || !zfi_len(marks)) return ZF_OK;
    if (g->stages & ZFI_STAGE_UPDATES)
        return zfi_enter_early(g, pass, ZFI_STAGE_GRADIENTS, ZFI_STAGE_UPDATES);
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "%s: the groups of all trained parameters have other optimizers", pass);
}

static zf_status zfi_optimize(zf_graph *g, zfi_optimizer *o, const char *pass)
{
    zf_status status =
        zfi_enter_early(g, pass, ZFI_STAGE_GRADIENTS, ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    const char *scope;
    char missed[256];
    int32_t *marks;
    if (status) return status;
    if (o->lr.graph != g || !zf_valid(o->lr) || zf_shape_count(zf_tensor_shape(o->lr)) != 1 ||
        !zfi_is_float(zf_tensor_dtype(o->lr)))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "%s: lr must be a float scalar of this graph, an input for example%s", pass,
                        zfi_missed(o->lr.graph == g ? o->lr : ZF_NONE, missed));
    marks = zfi_gradient_nodes(g);
    if (zfi_check_taken(g, o, pass, marks, zfi_count_taken(g, o, marks)))
        return zfi_array_free(&g->memory, marks), g->error.status;
    scope = g->scope;
    g->scope = "";
    g->in_update = true;
    o->scale = zfi_gradients_scale(g, marks);
    zfi_keep_taken(g, o, marks);
    zfi_append_updates(g, o, marks);
    g->scope = scope;
    zfi_array_free(&g->memory, marks);
    zfi_array_free(&g->memory, o->pieces);
    zfi_array_free(&g->memory, o->tensors);
    zfi_array_free(&g->memory, o->rates);
    return zfi_leave(g, ZFI_STAGE_UPDATES);
}

/* Runs the pass of an optimizer. desc NULL: defaults. */
static zf_status zfi_run_optimizer(zf_graph *g, const zfi_optimizer_record *record, zf_tensor lr,
                                   const void *desc)
{
    zfi_optimizer_desc d = {.adamw = {.beta1 = 0}};
    zfi_optimizer o = {.record = record, .lr = lr, .desc = &d};
    char pass[40];
    if (!g) return ZF_ERR_ARGUMENT;
    if (g->error.status) return g->error.status;
    snprintf(pass, sizeof pass, "zf_%s", record->name);
    memset(&d, 0, sizeof d);
    if (desc) memcpy(&d, desc, record->desc_size);
    if (zfi_settle_desc(pass, record->rows, &d, &g->error)) return g->error.status;
    if (record->prepare && record->prepare(g, &d)) return g->error.status;
    return zfi_optimize(g, &o, pass);
}

/* zf_adamw and the others. */
#define ZFI_PASS(NAME, name)                                                                       \
    ZF_API zf_status zf_##name(zf_graph *g, zf_tensor lr, const zf_##name##_desc *desc)            \
    {                                                                                              \
        return zfi_run_optimizer(g, &zfi_optimizer_##name, lr, desc);                              \
    }
ZF_OPTIMIZERS(ZFI_PASS)
#undef ZFI_PASS

/* All of them, by zf_optimizer, and where their descs are in a zf_training. */
static const struct zfi_optimizer_place {
    const zfi_optimizer_record *record;
    size_t at;
} zfi_optimizers[] = {
#define ZFI_PLACE(NAME, name) {&zfi_optimizer_##name, offsetof(zf_training, name)},
    ZF_OPTIMIZERS(ZFI_PLACE)
#undef ZFI_PLACE
};

ZF_API const char *zf_optimizer_name(zf_optimizer optimizer)
{
    return (unsigned)optimizer < (unsigned)ZFI_COUNT(zfi_optimizers)
               ? zfi_optimizers[optimizer].record->name
               : NULL;
}

/* The optimizer of a description, and its desc with the variant of the step. */
static const zfi_optimizer_record *zfi_optimizer_of(const zf_training *t, zfi_optimizer_desc *d)
{
    const struct zfi_optimizer_place *place = &zfi_optimizers[t->optimizer];
    const zf_option *variant = zfi_option_in(place->record->rows, "variant", 7);
    memcpy(d, (const char *)t + place->at, place->record->desc_size);
    if (variant && t->variant) *(int32_t *)(void *)((char *)d + variant->at) = t->variant;
    return place->record;
}

/* Another optimizer than that of the description, which the group of a gradient has. */
static bool zfi_is_of_group(const zf_graph *g, const zf_training *t, zf_optimizer optimizer)
{
    const char *const name = zf_optimizer_name(optimizer);
    for (int32_t i = 0; i < zfi_len(g->order) && optimizer != t->optimizer; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_gradient && zfi_chooses(g, node->args[0], name)) return true;
    }
    return false;
}

/* The pass of the optimizer of a description. */
static zf_status zfi_pass_optimizer(zf_graph *g, const zf_training *t)
{
    zfi_optimizer_desc d;
    const zfi_optimizer_record *record = zfi_optimizer_of(t, &d);
    return zfi_run_optimizer(g, record, t->lr, &d);
}

/* Runs the pass of the optimizer of a description, then those of groups. */
static zf_status zfi_each_optimizer(zf_graph *g, const zf_training *t,
                                    zf_status (*run)(zf_graph *, const zf_training *))
{
    zf_training with = *t;
    zf_status status = run(g, t);
    for (with.optimizer = 0; !status && zf_optimizer_name(with.optimizer); with.optimizer++)
        if (zfi_is_of_group(g, t, with.optimizer)) status = run(g, &with);
    return status;
}

ZF_API zf_status zf_optimize(zf_graph *g, const zf_training *t)
{
    if (!g) return ZF_ERR_ARGUMENT;
    if (!t || !zf_optimizer_name(t->optimizer))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_optimize: there is no optimizer %d",
                        t ? (int)t->optimizer : -1);
    return zfi_each_optimizer(g, t, zfi_pass_optimizer);
}
