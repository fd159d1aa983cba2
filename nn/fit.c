/* A fit to examples in arrays: batches in a new order in each epoch, and after each epoch the loss
 * of the held-out examples. Copy it when you need more.
 *
 *     examples     0 1 2 3 4 5 6 7 8 9 | 10 11 12        the last ones are held out
 *     epoch 1      [7 2 9 0] [4 4' ...]                  batches; the last has the remainder
 *
 * A graph has a fixed number of examples, so there are up to four programs over the store: training
 * and evaluation, for whole batches and for the remainder. */

enum { ZFI_FIT_WHOLE, ZFI_FIT_REST, ZFI_FIT_SIZES };

/* An output, and where it is a mean over labelled rows what it was divided by, and their number;
 * else these are ZF_NONE. */
typedef struct zfi_fit_value {
    zf_tensor value, divisor, rows;
} zfi_fit_value;

typedef struct zfi_fit_program {
    zf_graph *graph;
    zf_program *program;
    int64_t batch;
    zf_tensor lr, inputs[ZF_NN_FIELDS];
    zfi_fit_value of_loss, metrics[ZF_NN_METRICS];
} zfi_fit_program;

typedef struct zfi_fitter {
    const zf_nn_fit_desc *d;
    zf_store *store;
    zf_allocator allocator;
    zf_error *error;
    int64_t trained; /* examples that are not held out */
    zf_schedule schedule;
    zfi_fit_best best;
    zfi_fit_program programs[2][ZFI_FIT_SIZES]; /* programs[1]: evaluation */
    char *buffer;                               /* one input of a batch */
    size_t buffer_bytes;
} zfi_fitter;

ZFI_FAILS(3, 4)
static zf_status zfi_fit_fail(zfi_fitter *f, zf_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    f->error->status = status;
    vsnprintf(f->error->text, sizeof f->error->text, format, args);
    va_end(args);
    return status;
}

/* ------------------------------------------------------------------------------------ the order */

static uint64_t zfi_fit_mix(uint64_t x) /* the mixing function of splitmix64 (Steele et al. 2014) */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The place of `at` in a permutation of [0, count) that depends on `key`: a Feistel network over a
 * power of 4, at least count, repeated until the result is below count (Black & Rogaway 2002). */
static int64_t zfi_fit_shuffled(int64_t at, int64_t count, uint64_t key)
{
    int half = 1;
    uint64_t x = (uint64_t)at, mask;
    while (half < 31 && (uint64_t)1 << 2 * half < (uint64_t)count) half++;
    mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = left ^ (zfi_fit_mix(key ^ zfi_fit_mix(right << 3 | round)) & mask);
            left = right, right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)count);
    return (int64_t)x;
}

/* Example number `at` of an epoch. */
static int64_t zfi_fit_example(const zfi_fitter *f, int64_t epoch, int64_t at)
{
    if (f->d->in_order) return at;
    return zfi_fit_shuffled(at, f->trained, zfi_fit_mix(f->d->seed ^ zfi_fit_mix((uint64_t)epoch)));
}

/* -------------------------------------------------------------------------------- the programs */

/* Finds the inputs that the fields name. The first dimension of each counts the examples. */
static zf_status zfi_fit_inputs(zfi_fitter *f, zfi_fit_program *p)
{
    for (int k = 0; k < ZF_NN_FIELDS && f->d->fields[k].input; k++) {
        const char *name = f->d->fields[k].input;
        zf_tensor x = p->inputs[k] = zf_graph_find(p->graph, name);
        zf_shape shape = zf_tensor_shape(x);
        size_t bytes = zf_tensor_bytes(x);
        char *more;
        if (!zf_valid(x))
            return zfi_fit_fail(f, ZF_ERR_ARGUMENT, "zf_nn_fit: the model has no input \"%.100s\"",
                                name);
        if (shape.rank < 1 || shape.dims[0] != p->batch)
            return zfi_fit_fail(
                f, ZF_ERR_SHAPE,
                "zf_nn_fit: the first dimension of the input \"%.100s\" must be the "
                "%lld examples that it was built for",
                name, (long long)p->batch);
        if (bytes <= f->buffer_bytes) continue;
        more = f->allocator.fn(f->allocator.user, f->buffer, f->buffer_bytes, bytes);
        if (!more) return zfi_fit_fail(f, ZF_ERR_NOMEM, "out of memory");
        f->buffer = more, f->buffer_bytes = bytes;
    }
    return ZF_OK;
}

/* Makes readable what the value is divided by. */
static void zfi_fit_keep(zfi_fit_value *of, zf_tensor value, int number)
{
    char name[64];
    of->value = value;
    if (!zf_ratio_of(value, &of->divisor, &of->rows)) return;
    snprintf(name, sizeof name, "zf_nn_fit.divisor.%d", number);
    zf_output(of->divisor, name);
    snprintf(name, sizeof name, "zf_nn_fit.rows.%d", number);
    zf_output(of->rows, name);
}

/* Finds the outputs that are metrics, of the model whose loss is this. */
static zf_status zfi_fit_find_metrics(zfi_fitter *f, zfi_fit_program *p, zf_tensor loss)
{
    zfi_fit_keep(&p->of_loss, loss, 0);
    for (int k = 0; k < ZF_NN_METRICS && f->d->metrics[k].name; k++) {
        const char *name = zfi_fit_output(&f->d->metrics[k]);
        const zf_tensor x = strcmp(name, "loss") ? zf_graph_find(p->graph, name) : loss;
        if (zf_graph_status(p->graph)) return ZF_OK; /* zf_compile says it */
        if (!zf_valid(x) || zf_tensor_dtype(x) != ZF_F32 || zf_tensor_shape(x).rank)
            return zfi_fit_fail(f, ZF_ERR_ARGUMENT,
                                "zf_nn_fit: the metric \"%.100s\" must be an output of the model, "
                                "a scalar f32",
                                name);
        zfi_fit_keep(&p->metrics[k], x, k + 1);
    }
    return ZF_OK;
}

/* Makes the program for a number of examples. */
static zf_status zfi_fit_open(zfi_fitter *f, bool evaluate, int size, int64_t batch)
{
    zfi_fit_program *p = &f->programs[evaluate][size];
    zf_training t = f->d->training;
    zf_graph *g;
    if (p->program || !batch) return ZF_OK;
    p->batch = batch;
    p->graph = g = zf_graph_new(&(zf_graph_desc){.allocator = f->d->allocator,
                                                 .operators = f->d->operators,
                                                 .operator_count = f->d->operator_count});
    if (!g) return zfi_fit_fail(f, ZF_ERR_NOMEM, "out of memory");
    t.loss = f->d->build(f->d->user, g, batch);
    if (!zf_graph_status(g) && (t.loss.graph != g || !zf_valid(t.loss)))
        return zfi_fit_fail(f, ZF_ERR_ARGUMENT, "zf_nn_fit: build must return the loss, a scalar");
    if (zfi_fit_find_metrics(f, p, t.loss)) return f->error->status;
    if (evaluate) {
        zf_output(t.loss, "loss");
        t.loss = ZF_NONE;
    }
    t.lr = ZF_NONE;
    zf_passes(g, &t);
    p->program = zf_compile(
        g, &(zf_compile_desc){.store = f->store, .must_exist = evaluate, .evaluate = evaluate});
    if (!p->program) return zfi_fit_fail(f, zf_graph_status(g), "%s", zf_graph_error(g));
    p->lr = zf_graph_find(g, "lr");
    return zfi_fit_inputs(f, p);
}

static void zfi_fit_close(zfi_fitter *f)
{
    for (int k = 0; k < 2 * ZFI_FIT_SIZES; k++) {
        zfi_fit_program *p = &f->programs[k / ZFI_FIT_SIZES][k % ZFI_FIT_SIZES];
        zf_program_free(p->program);
        zf_graph_free(p->graph);
    }
    if (f->buffer) f->allocator.fn(f->allocator.user, f->buffer, f->buffer_bytes, 0);
}

/* ----------------------------------------------------------------------------------- the steps */

/* Adds a value of the last step to a mean, by its labelled rows or else by its examples. */
static zf_status zfi_fit_read(zfi_fit_program *p, const zfi_fit_value *of, zfi_fit_mean *mean,
                              double *last)
{
    float value = 0, divisor = (float)p->batch, rows = (float)p->batch;
    zf_status status = zf_read(p->program, of->value, &value, sizeof value);
    if (!status && zf_valid(of->divisor))
        status = zf_read(p->program, of->divisor, &divisor, sizeof divisor);
    if (!status && zf_valid(of->rows)) status = zf_read(p->program, of->rows, &rows, sizeof rows);
    if (status) return status;
    if (last) *last = value;
    mean->sum += (double)value * divisor, mean->rows += rows;
    return ZF_OK;
}

/* One step over examples [first, first + batch) of an epoch; epoch 0: of the held-out examples. */
static zf_status zfi_fit_step(zfi_fitter *f, zfi_fit_program *p, int64_t epoch, int64_t first,
                              zfi_fit_means *means, double *loss)
{
    zf_status status = ZF_OK;
    for (int k = 0; k < ZF_NN_FIELDS && f->d->fields[k].input && !status; k++) {
        const char *data = f->d->fields[k].data;
        size_t bytes = zf_tensor_bytes(p->inputs[k]), one = bytes / (size_t)p->batch;
        for (int64_t row = 0; row < p->batch; row++) {
            int64_t at = epoch ? zfi_fit_example(f, epoch, first + row) : first + row;
            memcpy(f->buffer + (size_t)row * one, data + (size_t)at * one, one);
        }
        status = zf_write(p->program, p->inputs[k], f->buffer, bytes);
    }
    if (!status) status = zf_step(p->program);
    if (!status) status = zfi_fit_read(p, &p->of_loss, &means->loss, loss);
    for (int k = 0; k < ZF_NN_METRICS && f->d->metrics[k].name && !status; k++)
        status = zfi_fit_read(p, &p->metrics[k], &means->metrics[k], NULL);
    return status ? zfi_fit_fail(f, status, "%s", zf_program_error(p->program)) : ZF_OK;
}

/* The mean loss and metrics of the held-out examples. */
static zf_status zfi_fit_evaluate(zfi_fitter *f, zf_nn_progress *at)
{
    int64_t count = f->d->held_out, batch = f->d->batch;
    zfi_fit_means all = {.loss = {0, 0}};
    double loss = 0;
    zf_status status = zfi_fit_open(f, true, ZFI_FIT_WHOLE, count < batch ? 0 : batch);
    if (!status) status = zfi_fit_open(f, true, ZFI_FIT_REST, count % batch);
    for (int64_t done = 0; done < count && !status; done += batch) {
        zfi_fit_program *p = &f->programs[1][count - done < batch ? ZFI_FIT_REST : ZFI_FIT_WHOLE];
        status = zfi_fit_step(f, p, 0, f->trained + done, &all, &loss);
    }
    at->held_out = zfi_fit_mean_of(&all.loss);
    zfi_fit_metrics_of(f->d, &all, at->held_out_metrics);
    return status;
}

/* After an epoch: evaluates, and keeps the epoch if it is the best. */
static zf_status zfi_fit_end_epoch(zfi_fitter *f, zf_nn_progress *at)
{
    zf_status status = f->d->held_out ? zfi_fit_evaluate(f, at) : ZF_OK;
    if (status) return status;
    at->improved = zfi_fit_improves(f->d, &f->best, at);
    at->best_epoch = f->best.epoch;
    if (!at->improved || !f->d->best) return ZF_OK;
    status = zfi_fit_save(f->d, f->store, &f->best);
    return status ? zfi_fit_fail(f, status, "%s", zf_store_error(f->store)) : ZF_OK;
}

/* Shows a step; false: the fit ends. */
static bool zfi_fit_show(zfi_fitter *f, const zf_nn_progress *at)
{
    const zf_nn_fit_desc *d = f->d;
    char text[512];
    if (d->line && (at->epoch_done || (d->line_every && at->step % d->line_every == 0)))
        d->line(d->user, zf_nn_progress_line(d, at, text, sizeof text));
    if (d->report && !d->report(d->user, f->store, at)) return false;
    return !at->epoch_done || !d->patience || at->epoch - at->best_epoch < d->patience;
}

/* The rate of a step; at: the progress of the last step of this call, of step 0 before it. */
static zf_status zfi_fit_rate(zfi_fitter *f, zfi_fit_program *p, int64_t step,
                              const zf_nn_progress *at, double *rate)
{
    float lr = (float)zf_schedule_at(&f->schedule, step + !f->schedule.from_zero);
    zf_status status;
    if (f->d->rate) lr = (float)f->d->rate(f->d->user, at, lr);
    if (!isfinite(lr) || lr < 0)
        return zfi_fit_fail(f, ZF_ERR_ARGUMENT,
                            "zf_nn_fit: the rate of step %lld is %g; it must be finite and not "
                            "negative",
                            (long long)step + 1, lr);
    *rate = lr;
    status = zf_write(p->program, p->lr, &lr, sizeof lr);
    return status ? zfi_fit_fail(f, status, "%s", zf_program_error(p->program)) : ZF_OK;
}

static zf_status zfi_fit_train(zfi_fitter *f)
{
    const zf_nn_fit_desc *d = f->d;
    int64_t batches = (f->trained + d->batch - 1) / d->batch,
            step = zf_store_step_of(f->store, d->training.name);
    zfi_fit_means seen = {.loss = {0, 0}};
    zf_nn_progress at = {.held_out = NAN};
    bool more = true;
    zf_status status = zfi_fit_open(f, false, ZFI_FIT_WHOLE, f->trained < d->batch ? 0 : d->batch);
    if (!status) status = zfi_fit_open(f, false, ZFI_FIT_REST, f->trained % d->batch);
    if (!f->schedule.steps) f->schedule.steps = d->epochs * batches;
    if (!status && step >= batches && d->patience && !d->best)
        return zfi_fit_fail(f, ZF_ERR_ARGUMENT,
                            "zf_nn_fit: the store has %lld steps, and patience counts from their "
                            "best epoch, which best keeps: give best, or leave out patience",
                            (long long)step);
    if (step) zfi_fit_remember(d, &f->best);
    for (; step < d->epochs * batches && more && !status; step++) {
        const int64_t first = step % batches * d->batch;
        zfi_fit_program *p =
            &f->programs[0][f->trained - first < d->batch ? ZFI_FIT_REST : ZFI_FIT_WHOLE];
        double lr = 0;
        if ((status = zfi_fit_rate(f, p, step, &at, &lr))) break;
        at = (zf_nn_progress){.epoch = step / batches + 1,
                              .step = step + 1,
                              .lr = lr,
                              .held_out = NAN,
                              .best_epoch = f->best.epoch};
        for (int k = 0; k < ZF_NN_METRICS; k++) at.held_out_metrics[k] = NAN;
        if ((status = zfi_fit_step(f, p, at.epoch, first, &seen, &at.loss))) break;
        at.epoch_loss = zfi_fit_mean_of(&seen.loss);
        zfi_fit_metrics_of(d, &seen, at.metrics);
        at.epoch_done = (step + 1) % batches == 0;
        if (at.epoch_done) seen = (zfi_fit_means){.loss = {0, 0}};
        if (at.epoch_done) status = zfi_fit_end_epoch(f, &at);
        if (!status) more = zfi_fit_show(f, &at);
    }
    return status;
}

/* ------------------------------------------------------------------------------------- the call */

static zf_status zfi_fit_check(zfi_fitter *f)
{
    const zf_nn_fit_desc *d = f->d;
    zf_training t = d->training;
    if (!f->store) return zfi_fit_fail(f, ZF_ERR_ARGUMENT, "zf_nn_fit: a store is needed");
    if (!d->build)
        return zfi_fit_fail(f, ZF_ERR_ARGUMENT, "zf_nn_fit: build, which makes the model, is NULL");
    if (d->batch < 1 || d->epochs < 0)
        return zfi_fit_fail(f, ZF_ERR_ARGUMENT,
                            "zf_nn_fit: batch is %lld and epochs %lld; they must not be negative",
                            (long long)d->batch, (long long)d->epochs);
    if (d->held_out < 0 || d->examples <= d->held_out)
        return zfi_fit_fail(f, ZF_ERR_ARGUMENT,
                            "zf_nn_fit: %lld of %lld examples are held out; one must remain to "
                            "learn from",
                            (long long)d->held_out, (long long)d->examples);
    if (d->patience < 0 || d->line_every < 0 || !(d->least >= 0))
        return zfi_fit_fail(f, ZF_ERR_ARGUMENT,
                            "zf_nn_fit: patience is %lld, line_every %lld and least %g; they must "
                            "not be negative",
                            (long long)d->patience, (long long)d->line_every, d->least);
    if (d->watch && zfi_fit_metric(d, d->watch) < 0)
        return zfi_fit_fail(f, ZF_ERR_ARGUMENT,
                            "zf_nn_fit: watch is \"%.100s\", which is none of the metrics",
                            d->watch);
    if (d->training.zero.world > 1 || d->training.zero.micro_batches > 1)
        return zfi_fit_fail(
            f, ZF_ERR_ARGUMENT,
            "zf_nn_fit: training.zero is for several parts of a batch; it feeds one");
    t.loss = (zf_tensor){NULL, 1};
    if (zf_variant_count(&t) > 1)
        return zfi_fit_fail(f, ZF_ERR_ARGUMENT,
                            "zf_nn_fit: %s is for several ranks: a step of it has several variants",
                            zf_optimizer_name(t.optimizer));
    for (int k = 0; k < ZF_NN_FIELDS && d->fields[k].input; k++)
        if (!d->fields[k].data)
            return zfi_fit_fail(f, ZF_ERR_ARGUMENT, "zf_nn_fit: the data of \"%.100s\" are NULL",
                                d->fields[k].input);
    return ZF_OK;
}

static void *zfi_fit_allocate(void *user, void *ptr, size_t old_size, size_t new_size)
{
    (void)user, (void)old_size;
    if (new_size) return realloc(ptr, new_size);
    free(ptr);
    return NULL;
}

ZF_API zf_nn_fit_desc zf_nn_fit_resolved(const zf_nn_fit_desc *desc)
{
    zf_nn_fit_desc d = desc ? *desc : (zf_nn_fit_desc){.examples = 0};
    if (!d.batch) d.batch = 32;
    if (!d.epochs) d.epochs = 1;
    d.schedule.peak = zfi_or(d.schedule.peak, 1e-3);
    d.training = zf_training_resolved(&d.training);
    return d;
}

ZF_API zf_status zf_nn_fit(zf_store *store, const zf_nn_fit_desc *desc, zf_error *error)
{
    zf_error none = {ZF_OK, ""};
    zf_nn_fit_desc d = zf_nn_fit_resolved(desc);
    zfi_fitter f = {
        .d = &d, .store = store, .allocator = d.allocator, .error = error ? error : &none};
    zf_status status;
    f.error = error ? error : &none;
    if (desc) d.training = desc->training;
    if (!f.allocator.fn) f.allocator.fn = zfi_fit_allocate;
    f.schedule = d.schedule;
    status = zfi_fit_check(&f);
    f.trained = status ? 0 : d.examples - d.held_out;
    if (!status) status = zfi_fit_train(&f);
    zfi_fit_close(&f);
    return status;
}
