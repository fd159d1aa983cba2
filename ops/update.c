/* Updates: what the operators of optimizers share (sgd.c, adamw.c, lamb.c, lion.c). They write
 * parameters and states in place, have no gradient, and run in the update section.
 *
 * The operand `master` of an update is the master weights of a bf16 or f16 parameter, an f32 state.
 * They are read and updated instead of p; then p = master, rounded.
 *
 * With scaled=true one more operand comes last, a float by which the gradient is multiplied first:
 * it clips the gradient, or removes the loss scale (scaler.c). A negative scale skips the step:
 * parameter and states do not change, and u is 0.
 *
 *     adamw %p, %g, %m, %v, %lr, %t, %c {beta1=0.9 beta2=0.999 eps=1e-08 scaled=true}
 *
 * For a bucket (bucket.c) or a shard of one, blocks lists the parameters to update, as ranges of
 * blocks of 1024 elements of the whole bucket. Each has its own weight decay (decays) and, in
 * lamb_apply, its own element of np and nu. With world=n the operands are this rank's shard, one of
 * n. Elements outside the ranges do not change; u is 0 there.
 *
 * With piece=[at,size] the operands are pieces of a bucket or shard of `size` elements, from
 * element `at` on. The list of ranges is that of the whole bucket.
 *
 * With lazy=true one more operand comes last of all: numbers of rows of a table, i32 or i64 [n], -1
 * for none. The gradient has n rows, and only these rows of the parameter and the states are read
 * and written. A bucket has that table alone.
 *
 *     adamw %p, %g, %m, %v, %lr, %t, %c, %r {beta1=0.9 beta2=0.999 eps=1e-08 scaled=true lazy=true}
 *
 * Numbers that all elements share (corrections, rates) are computed in double and rounded once.
 * Otherwise no element depends on another, so a tensor can be split anywhere. */

/* ------------------------------------------------------------------------------- infer */

/* Element 0 of the operands is element *at of *size: by the attribute piece, which is before
 * `world`. */
static void zfi_piece_at(const zf_attribute *world, int64_t count, int64_t *at, int64_t *size)
{
    const zf_attribute *piece = world - 1;
    const int64_t *list = piece->list.data;
    *at = piece->list.count ? list[0] : 0;
    *size = piece->list.count ? list[1] : count;
}

/* Checks that operand 0 is a parameter, or a bucket or a shard of one, or a piece of these. `first`
 * is the number of the attribute world; piece is before it; blocks and, where there are any,
 * decays follow it. */
static zf_status zfi_infer_target(zfi_infer *c, int first)
{
    const zf_attribute *world = c->attributes + first, *blocks = world + 1, *decays = blocks + 1;
    zf_op op = zfi_home_of(c->graph, c->args[0])->op;
    int64_t count = zfi_node_count(c->args[0]), shards = world->i > 0 ? world->i : 1, at, size;
    zf_status status;
    if ((world - 1)->list.count != 0 && (world - 1)->list.count != 2)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "piece must be two numbers, its place and the "
                                                  "size of what it is a piece of");
    zfi_piece_at(world, count, &at, &size);
    if (at < 0 || at % ZFI_NORM_BLOCK || count > size || at > size - count)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "%lld elements from %lld on are no piece of %lld; pieces begin at "
                              "multiples of %d",
                              (long long)count, (long long)at, (long long)size, ZFI_NORM_BLOCK);
    count = size;
    if (op != ZF_OP_param && op != ZF_OP_bucket && op != ZF_OP_shard)
        return zfi_infer_fail(
            c, ZF_ERR_ARGUMENT,
            "operand 0 must be a param, a bucket or a shard of one, not the result "
            "of %s",
            c->graph->records[op]->name);
    if (op != ZF_OP_param && !blocks->list.count)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "blocks must list the parameters of the bucket that it updates");
    if (world->i < 0 || count > INT64_MAX / shards)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "world %lld is none", (long long)world->i);
    status = zfi_infer_blocks(c, blocks, zfi_whole_blocks(count * shards));
    if (!status && strstr(c->record->attributes, "decays:") &&
        decays->list.count != blocks->list.count / 2)
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%lld decays for %lld ranges of blocks",
                                (long long)decays->list.count, (long long)blocks->list.count / 2);
    return status ? status : zfi_infer_like(c, 0);
}

/* Checks that operand k, called `what` in messages, has the shape of the parameter and the given
 * dtype; with `state`, that it is a state or a bucket of states. */
static zf_status zfi_infer_paired(const zfi_infer *c, int32_t k, const char *what, zf_dtype dtype,
                                  bool state)
{
    char type[ZFI_TYPE_TEXT];
    const zfi_node *x = c->args[k];
    const zf_op op = zfi_home_of(c->graph, x)->op;
    bool stateless = state && op != ZF_OP_state && op != ZF_OP_bucket && op != ZF_OP_shard;
    zf_status status = stateless           ? ZF_ERR_ARGUMENT
                       : x->dtype != dtype ? ZF_ERR_DTYPE
                                           : ZF_ERR_SHAPE;
    if (!stateless && x->dtype == dtype && zfi_same_shape(&x->shape, &c->args[0]->shape))
        return ZF_OK;
    return zfi_infer_fail(c, status, "operand %d, %s, must be %s%s", (int)k, what,
                          stateless ? "a state " : "",
                          zfi_type_text(type, dtype, &c->args[0]->shape));
}

/* Checks that operand k is a float tensor of `count` elements. */
static zf_status zfi_infer_numbers(const zfi_infer *c, int32_t k, const char *what, int64_t count)
{
    if (zfi_is_float(c->args[k]->dtype) && zfi_node_count(c->args[k]) == count) return ZF_OK;
    if (count == 1)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d, %s, must be one float", (int)k, what);
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d, %s, must be %lld floats", (int)k, what,
                          (long long)count);
}

static zf_status zfi_infer_number(const zfi_infer *c, int32_t k, const char *what)
{
    return zfi_infer_numbers(c, k, what, 1);
}

/* Checks that operand k is a state that counts, or a copy of one in another space. */
static zf_status zfi_infer_count(const zfi_infer *c, int32_t k, const char *what)
{
    const zfi_node *count = zfi_copied(c->graph, c->args[k]);
    if (count->op == ZF_OP_state && count->dtype == ZF_I64 && !count->shape.rank) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand %d, %s, must be a state i64[]", (int)k,
                          what);
}

/* Checks that an attribute called `what` is at least 0, finite, and below `most`. */
static zf_status zfi_infer_below(const zfi_infer *c, const char *what, double value, double most)
{
    if (value >= 0 && value < most) return ZF_OK;
    if (isinf(most))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%s = %g must be finite and not negative", what,
                              value);
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%s = %g must be at least 0 and below %g", what,
                          value, most);
}

/* With attribute `at`, scaled: checks the last operand and removes it from *c for the checks that
 * follow. `least`: the number of operands before it, at least. */
static zf_status zfi_infer_scaled(zfi_infer *c, int at, int32_t least)
{
    zf_status status = ZF_OK;
    if (!(c->attributes + at)->i) return ZF_OK;
    if (c->arg_count <= least)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "scaled=true needs one more operand, the scale");
    status = zfi_infer_number(c, c->arg_count - 1, "the scale");
    c->arg_count--;
    return status;
}

/* With `lazy`: checks the gradient and the last operand, its rows, and removes that from *c for the
 * checks that follow. `least`: the number of operands before it, at least. */
static zf_status zfi_infer_some_rows(zfi_infer *c, bool lazy, int32_t least,
                                     const zf_attribute *world)
{
    if (!lazy) return ZF_OK;
    if (c->arg_count <= least)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "lazy=true needs one more operand, the rows");
    if ((world - 1)->list.count || (world + 1)->list.count > 2)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "lazy=true is for one table, and no piece of a bucket");
    c->arg_count--;
    return zfi_infer_lazy(c, c->arg_count);
}

/* Checks operand k, if it is there: the master weights of operand 0. */
static zf_status zfi_infer_master(const zfi_infer *c, int32_t k)
{
    zf_dtype dtype = c->args[0]->dtype;
    if (c->arg_count <= k) return ZF_OK;
    if (dtype != ZF_BF16 && dtype != ZF_F16)
        return zfi_infer_fail(c, ZF_ERR_DTYPE,
                              "operand %d: a parameter with master weights is bf16 or f16, not %s",
                              (int)k, zf_dtype_name(dtype));
    for (int32_t other = 1; other < k; other++)
        if (c->args[other] == c->args[k])
            return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                  "operands %d and %d, the master weights, must be two states",
                                  (int)other, (int)k);
    return zfi_infer_paired(c, k, "the master weights", ZF_F32, true);
}

/* --------------------------------------------------------------------------- stretches */

/* A range of elements in [from, until) that is updated as one: elements of one parameter. */
typedef struct zfi_stretch {
    int64_t first, last; /* these elements */
    int64_t index;       /* number of the parameter in the list of ranges; 0 without a list */
    double decay;
    int64_t from, until, next; /* next: the range at which to continue */
} zfi_stretch;

static zfi_stretch zfi_stretch_over(int64_t from, int64_t until)
{
    return (zfi_stretch){.from = from, .until = until};
}

/* Goes to the next stretch; false after the last. at: the number of the attribute world, which
 * blocks and decays follow; decay: the weight decay of a whole tensor. */
static bool zfi_next_stretch(const zf_launch *l, int at, double decay, zfi_stretch *s)
{
    const zf_attribute *world = l->attributes + at, *blocks = world + 1, *decays = blocks + 1;
    const int64_t *ends = blocks->list.data;
    int64_t base, size, count = blocks->list.count / 2;
    zfi_piece_at(world, zfi_count(&l->args[0]), &base, &size);
    if (world->i > 1) base += zfi_shard_here(l->run, world->i) * size;
    if (!count) {
        s->first = s->from, s->last = s->until, s->decay = decay;
        return s->next++ == 0 && s->from < s->until;
    }
    if (s->next == 0) { /* find the first range that ends after `from` */
        int64_t low = 0, high = count;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (ends[2 * middle + 1] * ZFI_NORM_BLOCK > base + s->from) high = middle;
            else low = middle + 1;
        }
        s->next = low;
    }
    while (s->next < count) { /* ranges may be empty */
        s->index = s->next++;
        s->first = ends[2 * s->index] * ZFI_NORM_BLOCK - base;
        s->last = ends[2 * s->index + 1] * ZFI_NORM_BLOCK - base;
        if (s->first < s->from) s->first = s->from;
        if (s->last > s->until) s->last = s->until;
        s->decay = l->op == ZF_OP_lamb_apply ? 0 : ((const double *)decays->list.data)[s->index];
        if (s->first < s->last) return true;
        if (s->first >= s->until) return false;
    }
    return false;
}

/* ------------------------------------------------------------------------------- scale */

/* The launch without the operand that belongs to attribute `at`, scaled. */
static zf_launch zfi_without_scale(const zf_launch *l, int at)
{
    zf_launch own = *l;
    own.arg_count -= (l->attributes + at)->i != 0;
    return own;
}

/* The factor for the gradients in a launch with or without that operand. */
static double zfi_gradient_scale(const zf_launch *own, int at)
{
    return (own->attributes + at)->i ? zfi_get(&own->args[own->arg_count], 0) : 1;
}

/* --------------------------------------------------------------------- runs of elements */

/* The fast kernels compute in f32. Tensors of 16 bits are converted in runs that stay in the
 * first-level cache, so that each number passes through memory once. */

/* The number of elements of the next run, of `rest` that are left. */
static int64_t zfi_update_run(const zf_launch *l, int64_t rest)
{
    return l->args[0].dtype == ZF_F32 || rest < ZFI_CONVERT_RUN ? rest : ZFI_CONVERT_RUN;
}

/* Elements [at, at + n) of operand k as f32: in place, or converted into `aside`. */
static float *zfi_update_floats(const zf_launch *l, int32_t k, int64_t at, int64_t n, float *aside)
{
    const zf_array *x = &l->args[k];
    if (x->dtype == ZF_F32) return (float *)x->data + at;
    zfi_widen(zfi_cpu_of(l)->isa, aside, x->dtype, zfi_element(x->data, x->dtype, at), n);
    return aside;
}

/* Writes `weights`, rounded, to elements [at, at + n) of a parameter of 16 bits. */
static void zfi_update_parameter(const zf_launch *l, int64_t at, int64_t n, const float *weights)
{
    const zf_array *p = &l->args[0];
    if (p->dtype != ZF_F32)
        zfi_narrow(zfi_cpu_of(l)->isa, zfi_element_of(p->data, p->dtype, at), p->dtype, weights, n);
}

/* ------------------------------------------------------------------------------ weights */

/* The weights to update: the parameter, or its master weights, operand k. */
static const zf_array *zfi_weights(const zf_launch *l, int32_t k)
{
    return &l->args[l->arg_count > k ? k : 0];
}

/* Sets element i of the weights to update, and the parameter to the rounded master weight. */
static void zfi_set_weight(const zf_launch *l, const zf_array *weights, int64_t i, double value)
{
    zfi_set(weights, i, value);
    if (weights != &l->args[0]) zfi_set(&l->args[0], i, zfi_get(weights, i));
}

/* ---------------------------------------------------------------------------- lazy updates */

/* The launch of a lazy update, without its rows. */
static zf_launch zfi_without_rows(const zf_launch *l)
{
    zf_launch own = *l;
    own.arg_count--;
    return own;
}

/* A launch for elements [first, first + count) of the operands, with the gradient from element `of`
 * on: as an update of a whole tensor. args and with: room for its operands and attributes. */
static zf_launch zfi_row_launch(const zf_launch *l, int at, int64_t first, int64_t of,
                                int64_t count, zf_array args[ZFI_OPERANDS],
                                zf_attribute with[ZF_MAX_ATTRIBUTES])
{
    zf_launch own = *l;
    const int32_t all = l->arg_count + 1; /* the scale, if there is one, is after the others */
    memcpy(args, l->args, (size_t)all * sizeof *args);
    memcpy(with, l->attributes, ZF_MAX_ATTRIBUTES * sizeof *with);
    if (with[at + 2].list.count) /* the weight decay comes before `piece` */
        with[at - 2].f = ((const double *)with[at + 2].list.data)[0];
    memset(with + at, 0, 3 * sizeof *with); /* world, blocks, decays */
    for (int32_t k = 0; k < l->arg_count; k++) {
        if (k != 1 && !zfi_same_shape(&l->args[k].shape, &l->args[0].shape)) continue;
        args[k].data = (char *)args[k].data +
                       (k == 1 ? of : first) * (int64_t)zf_dtype_size(args[k].dtype);
        args[k].shape = ZF_SHAPE(count);
    }
    own.args = args, own.attributes = with;
    return own;
}

/* Rows [first, last) of a lazy update, which are operand `of`, by `task`. at: the number of its
 * attribute world. */
static void zfi_update_rows(const zf_launch *l, int32_t of, int at, int64_t first, int64_t last,
                            zfi_range_task *task)
{
    const zf_attribute *world = l->attributes + at, *blocks = world + 1;
    const zf_array *rows = &l->args[of];
    const int64_t count = zfi_count(&l->args[0]),
                  width = zfi_row_width(&l->args[1]),
                  place = blocks->list.count
                              ? ((const int64_t *)blocks->list.data)[0] * ZFI_NORM_BLOCK
                              : 0,
                  base = world->i > 1 ? zfi_shard_here(l->run, world->i) * count : 0;
    for (int64_t k = first; k < last; k++) {
        const int64_t row = zfi_get_integer(rows, k), from = place + row * width - base,
                      begin = zfi_max(from, 0), end = zfi_min(from + width, count);
        zf_array args[ZFI_OPERANDS];
        zf_attribute with[ZF_MAX_ATTRIBUTES];
        if (row < 0 || begin >= end) continue;
        const zf_launch own =
            zfi_row_launch(l, at, begin, k * width + begin - from, end - begin, args, with);
        task(&own, 0, end - begin);
    }
}

/* ---------------------------------------------------------------------------------- running */

/* The tasks of an update: over elements, or with the attribute `lazy` over rows. scaled, lazy: the
 * numbers of these attributes. */
typedef struct zfi_update_tasks {
    int scaled, lazy;
    zfi_range_task *fast, *reference, *rows;
} zfi_update_tasks;

static bool zfi_updates_rows(const zf_launch *l, const zfi_update_tasks *tasks)
{
    return tasks->rows && l->attributes[tasks->lazy].i;
}

/* The launch of an update, without its rows and its scale. */
static zf_launch zfi_plain_update(const zf_launch *l, const zfi_update_tasks *tasks)
{
    const zf_launch all = zfi_updates_rows(l, tasks) ? zfi_without_rows(l) : *l;
    return zfi_without_scale(&all, tasks->scaled);
}

/* Runs an update over its elements, unless the loss scale says that the step is skipped. */
static zf_status zfi_run_update(const zf_launch *l, const zfi_update_tasks *tasks)
{
    const zf_launch own = zfi_plain_update(l, tasks);
    if (zfi_gradient_scale(&own, tasks->scaled) < 0) return ZF_OK;
    if (zfi_updates_rows(l, tasks))
        zfi_split(&own, zfi_count(&l->args[l->arg_count - 1]),
                  zfi_row_grain(zfi_row_width(&l->args[1])), tasks->rows);
    else
        zfi_split(&own, zfi_count(&l->args[0]), ZFI_GRAIN,
                  zfi_fast_or_half(l) ? tasks->fast : tasks->reference);
    return ZF_OK;
}

/* ----------------------------------------------------------------------- what is written */

/* Operand k is the master weights if it is there and is not one of the `last` operands, those of
 * `scaled` and `lazy`. */
static int32_t zfi_master_at(const zfi_node *node, int32_t k, int32_t last)
{
    return node->arg_count - last > k ? k : -1;
}

/* All operands are read. Those of the parameter's size are written too, except the second, the
 * gradient. `most`: elements of these that are. */
static double zfi_bytes_of_update(const zf_launch *l, int64_t most)
{
    double bytes = 0;
    for (int32_t k = 0; k < l->arg_count; k++) {
        const bool written = k != 1 && zfi_same_shape(&l->args[k].shape, &l->args[0].shape);
        const int64_t count = zfi_count(&l->args[k]);
        bytes += (double)((written ? 2 * zfi_min(count, most) : count) *
                          (int64_t)zf_dtype_size(l->args[k].dtype));
    }
    return bytes;
}

static double zfi_bytes_update(const zf_launch *l) { return zfi_bytes_of_update(l, INT64_MAX); }

/* The same of an update that may be lazy. */
static double zfi_bytes_lazy(const zf_launch *l)
{
    const bool lazy = l->op == ZF_OP_sgd ? ZF_INT(l, sgd, lazy) != 0 : ZF_INT(l, adamw, lazy) != 0;
    return zfi_bytes_of_update(l, lazy ? zfi_count(&l->args[1]) : INT64_MAX);
}

/* ------------------------------------------------------------------------------- its operands */

/* The update is of rows, which are its last operand. */
static bool zfi_is_lazy(const zf_graph *g, const zfi_node *node)
{
    const zf_attribute *lazy = zfi_attribute_of(g, node, "lazy");
    return node->op != ZF_OP_param && lazy && lazy->i;
}

/* Operand `scaled` of an update: its number; -1: it has none, 0: it cannot have one. */
static int32_t zfi_scale_arg(const zf_graph *g, const zfi_node *node)
{
    const zf_attribute *scaled = zfi_attribute_of(g, node, "scaled");
    return !scaled ? 0 : scaled->i ? node->arg_count - 1 - zfi_is_lazy(g, node) : -1;
}

/* Lets an update that has the attribute scaled read `gradient` and multiply it by `scale`, in place
 * of the gradient and the scale that it has. */
static zf_status zfi_scale_update(zf_graph *g, int32_t id, int32_t gradient, int32_t scale)
{
    zfi_node *node = &g->nodes[id];
    const zfi_record *record = g->records[node->op];
    const int32_t k = zfi_scale_arg(g, node), count = node->arg_count + (k < 0);
    int32_t args[ZFI_OPERANDS], *list;
    if (count > record->most)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "%s: there is no room for a scale, since it takes %d operands",
                        record->name, (int)record->most);
    memcpy(args, node->args, (size_t)node->arg_count * sizeof *args);
    if (zfi_is_lazy(g, node)) args[count - 1] = args[node->arg_count - 1];
    args[1] = gradient, args[count - 1 - zfi_is_lazy(g, node)] = scale;
    list = zfi_bytes_copy(&g->memory, &g->text, args, (size_t)count * sizeof *args);
    if (!list) return zfi_graph_nomem(g);
    node->args = list, node->arg_count = count;
    zfi_attribute_in(record, node->attributes, "scaled")->i = 1;
    return ZF_OK;
}
