/* Gradients against differences, for operators and layers of a program's own. */

typedef struct zfi_check {
    zf_check_gradient_desc d;
    zf_graph *graph; /* a copy, with gradients */
    zf_program *program;
    zf_tensor loss;
    zf_tensor *gradients; /* of each parameter, in memory of `bytes`, as are */
    double *room;         /* values and bytes of a parameter, and of its gradient */
    size_t bytes;
    zf_error *error;
} zfi_check;

ZFI_FAILS(3, 4)
static zf_status zfi_check_fail(zfi_check *c, zf_status status, const char *format, ...)
{
    int at = snprintf(c->error->text, sizeof c->error->text, "zf_check_gradient: ");
    va_list args;
    va_start(args, format);
    vsnprintf(c->error->text + at, sizeof c->error->text - (size_t)at, format, args);
    va_end(args);
    return c->error->status = status;
}

/* A tensor in the dtype of the graph, and its values. */
typedef struct zfi_checked {
    zf_tensor tensor;
    int64_t count;
    double *values;
    void *raw;
} zfi_checked;

static zf_status zfi_check_failed(zfi_check *c, zf_status status)
{
    const char *text = c->program ? zf_program_error(c->program) : zf_graph_error(c->graph);
    return zfi_check_fail(c, status, "%.400s", text);
}

/* The loss with the values that the program has. */
static zf_status zfi_check_loss(zfi_check *c, double *loss)
{
    double raw;
    zf_status status = zf_step(c->program);
    if (!status) status = zf_read(c->program, c->loss, &raw, zf_tensor_bytes(c->loss));
    if (status) return zfi_check_failed(c, status);
    zf_convert(loss, ZF_F64, &raw, zf_tensor_dtype(c->loss), 1);
    return ZF_OK;
}

static zf_status zfi_check_read(zfi_check *c, zfi_checked *x)
{
    zf_status status = zf_read(c->program, x->tensor, x->raw, zf_tensor_bytes(x->tensor));
    if (status) return zfi_check_failed(c, status);
    zf_convert(x->values, ZF_F64, x->raw, zf_tensor_dtype(x->tensor), (size_t)x->count);
    return ZF_OK;
}

/* The loss where element i of a parameter is `value`; *value becomes what its dtype makes of it. */
static zf_status zfi_check_at(zfi_check *c, zfi_checked *x, int64_t i, double *value, double *loss)
{
    const double kept = x->values[i];
    const zf_dtype dtype = zf_tensor_dtype(x->tensor);
    zf_status status;
    x->values[i] = *value;
    zf_convert(x->raw, dtype, x->values, ZF_F64, (size_t)x->count);
    zf_convert(value, ZF_F64, (char *)x->raw + (size_t)i * zf_dtype_size(dtype), dtype, 1);
    x->values[i] = kept;
    status = zf_write(c->program, x->tensor, x->raw, zf_tensor_bytes(x->tensor));
    return status ? zfi_check_failed(c, status) : zfi_check_loss(c, loss);
}

static double zfi_largest_of(const double *x, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++) most = fabs(x[i]) > most ? fabs(x[i]) : most;
    return most;
}

/* All elements of a gradient are finite, also those that are not compared. */
static zf_status zfi_check_finite(zfi_check *c, const zfi_checked *x, const zfi_checked *dx)
{
    for (int64_t i = 0; i < dx->count; i++)
        if (!isfinite(dx->values[i]))
            return zfi_check_fail(c, ZF_ERR_MISMATCH,
                                  "element %lld of \"%.200s\": the gradient is %.9g", (long long)i,
                                  zf_tensor_name(x->tensor), dx->values[i]);
    return ZF_OK;
}

/* Compares some elements of a parameter's gradient, spread evenly. */
static zf_status zfi_check_param(zfi_check *c, zfi_checked *x, zfi_checked *dx)
{
    const bool wide = zf_tensor_dtype(c->loss) == ZF_F64 && zf_tensor_dtype(x->tensor) == ZF_F64;
    const double step = zfi_or(c->d.step, wide ? 0x1p-17 : 0x1p-7),
                 tolerance = zfi_or(c->d.tolerance, wide ? 1e-7 : 2e-3),
                 rounding = wide ? 0x1p-50 : 0x1p-21;
    const int64_t most = c->d.most ? c->d.most : 64;
    const int64_t checked = x->count < most ? x->count : most;
    double loss = 0;
    zf_status status = zfi_check_loss(c, &loss);
    if (!status) status = zfi_check_read(c, x);
    if (!status) status = zfi_check_read(c, dx);
    if (!status) status = zfi_check_finite(c, x, dx);
    for (int64_t k = 0; k < checked && !status; k++) {
        const int64_t i = k * (x->count / checked);
        double high = x->values[i] + step, low = x->values[i] - step, above = 0, below = 0, slope;
        status = zfi_check_at(c, x, i, &high, &above);
        if (!status) status = zfi_check_at(c, x, i, &low, &below);
        if (status) break;
        slope = (above - below) / (high - low);
        if (!(fabs(slope - dx->values[i]) <=
              tolerance * zfi_largest_of(dx->values, dx->count) + rounding * fabs(loss) / step))
            status = zfi_check_fail(c, ZF_ERR_MISMATCH,
                                    "element %lld of \"%.200s\": the gradient is %.9g, differences "
                                    "give %.9g",
                                    (long long)i, zf_tensor_name(x->tensor), dx->values[i], slope);
    }
    if (status) return status;
    zf_convert(x->raw, zf_tensor_dtype(x->tensor), x->values, ZF_F64, (size_t)x->count);
    status = zf_write(c->program, x->tensor, x->raw, zf_tensor_bytes(x->tensor));
    return status ? zfi_check_failed(c, status) : ZF_OK;
}

/* The same of a parameter by its place. */
static zf_status zfi_check_place(zfi_check *c, int32_t place)
{
    zfi_checked x = {.tensor = zf_param_at(c->graph, place)}, dx = {.tensor = c->gradients[place]};
    x.count = dx.count = zf_shape_count(zf_tensor_shape(x.tensor));
    x.values = c->room, x.raw = x.values + x.count;
    dx.values = x.values + 2 * x.count, dx.raw = x.values + 3 * x.count;
    return zfi_check_param(c, &x, &dx);
}

/* Compiles the loss with its gradients, which become outputs. */
static zf_status zfi_check_open(zfi_check *c)
{
    zf_graph *g = c->graph;
    const int32_t count = zf_param_count(g);
    zf_status status = zf_autograd(g, c->loss);
    for (int32_t k = 0; k < count && !status; k++) {
        char name[60];
        snprintf(name, sizeof name, "zf_check_gradient.%d", (int)k);
        c->gradients[k] = zf_gradient(g, zf_param_at(g, k));
        if (zf_valid(c->gradients[k])) zf_output(c->gradients[k], name);
    }
    if (!status) zf_output(c->loss, "zf_check_gradient.loss");
    c->program = zf_graph_status(g)
                     ? NULL
                     : zf_compile(g, &(zf_compile_desc){.seed = c->d.seed, .evaluate = true});
    if (!c->program) return zfi_check_failed(c, zf_graph_status(g));
    status = c->d.write ? c->d.write(c->d.user, c->program, g) : ZF_OK;
    return status ? zfi_check_failed(c, status) : ZF_OK;
}

static zf_status zfi_check_all(zfi_check *c)
{
    double loss[2] = {0, 0};
    zf_status status = zfi_check_open(c);
    if (!status) status = zfi_check_loss(c, &loss[0]);
    if (!status) status = zfi_check_loss(c, &loss[1]);
    if (!status && memcmp(&loss[0], &loss[1], sizeof loss[0]))
        status =
            zfi_check_fail(c, ZF_ERR_ARGUMENT,
                           "the loss is %.9g in one step and %.9g in the next; it must not draw "
                           "random numbers",
                           loss[0], loss[1]);
    for (int32_t k = 0; k < zf_param_count(c->graph) && !status; k++)
        if (zf_valid(c->gradients[k])) status = zfi_check_place(c, k);
    return status;
}

/* Allocates (`size` > 0), or frees. */
static void *zfi_check_memory(const zf_allocator *a, void *memory, size_t old, size_t size)
{
    if (a->fn) return a->fn(a->user, memory, old, size);
    if (size) return realloc(memory, size);
    free(memory);
    return NULL;
}

/* Memory for the gradients' tensors and for the largest parameter. */
static bool zfi_check_allocate(zfi_check *c)
{
    const int32_t count = zf_param_count(c->graph);
    const size_t tensors = ((size_t)count + 1) * sizeof *c->gradients;
    int64_t most = 1;
    for (int32_t k = 0; k < count; k++) {
        const int64_t its = zf_shape_count(zf_tensor_shape(zf_param_at(c->graph, k)));
        if (its > most) most = its;
    }
    c->bytes = tensors + 4 * (size_t)most * sizeof *c->room;
    c->room = zfi_check_memory(&c->d.allocator, NULL, 0, c->bytes);
    if (!c->room) return false;
    memset(c->room, 0, c->bytes);
    c->gradients = (zf_tensor *)(void *)(c->room + 4 * most);
    return true;
}

ZF_API zf_status zf_check_gradient(zf_tensor loss, const zf_check_gradient_desc *desc,
                                   zf_error *error)
{
    zf_error ignored;
    zfi_check c = {.d = desc ? *desc : (zf_check_gradient_desc){.step = 0},
                   .error = error ? error : &ignored};
    zf_status status;
    *c.error = (zf_error){ZF_OK, ""};
    if (!zf_valid(loss))
        return zfi_check_fail(&c, ZF_ERR_ARGUMENT, "%.400s",
                              loss.graph && zf_graph_status(loss.graph) ? zf_graph_error(loss.graph)
                                                                        : "the loss is no tensor");
    if (!(c.d.step >= 0 && c.d.tolerance >= 0 && c.d.most >= 0))
        return zfi_check_fail(&c, ZF_ERR_ARGUMENT,
                              "step %g, tolerance %g and most %lld must be 0 or "
                              "above",
                              c.d.step, c.d.tolerance, (long long)c.d.most);
    c.graph = zf_graph_copy(loss.graph);
    c.loss = (zf_tensor){c.graph, loss.id};
    if (c.graph && zfi_check_allocate(&c)) status = zfi_check_all(&c);
    else status = zfi_check_fail(&c, ZF_ERR_NOMEM, "out of memory");
    zf_program_free(c.program);
    zf_graph_free(c.graph);
    if (c.room) zfi_check_memory(&c.d.allocator, c.room, c.bytes, 0);
    return status;
}
