/* What the values of a scalar for the parts of a global batch make: derived of sums, means and
 * ratios, said by zf_output_desc, or an error; losses and updates are those of one process. */
#include "../support/test.h"

enum { ROWS = 24, IN = 3, CLASSES = 5, PARTS = 4, STEPS = 3 };

/* A classifier whose loss or output is made by one of these. */
typedef zf_tensor made(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask);

static zf_tensor square(zf_tensor x) { return zf_mul(x, x); }

static zf_tensor ratio_of_labels(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)g, (void)mask;
    return zf_cross_entropy(logits, labels, ZF_NONE);
}

static zf_tensor scaled_ratio(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    return zf_scale(ratio_of_labels(g, logits, labels, mask), 0.5);
}

static zf_tensor mean(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)g, (void)labels, (void)mask;
    return zf_mean(square(logits));
}

static zf_tensor means_added(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    zf_tensor aux = zf_mean(zf_tanh(logits));
    return zf_add(zf_scale(mean(g, logits, labels, mask), 0.5), zf_scale(aux, 0.1));
}

static zf_tensor mean_of_mean(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)g, (void)labels, (void)mask;
    return zf_mean(zf_mean_ex(square(logits), &(zf_reduce_desc){.axis = -1}));
}

static zf_tensor mean_of_sum(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)g, (void)labels, (void)mask;
    return zf_mean(zf_sum_ex(square(logits), &(zf_reduce_desc){.axis = 1}));
}

static zf_tensor sum_of_mean(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)g, (void)labels, (void)mask; /* the examples are averaged first */
    return zf_sum(zf_mean_ex(square(logits), &(zf_reduce_desc){.axis = 0}));
}

/* Half of the mean of squares, in the way of textbooks. */
static zf_tensor half_mean_by_hand(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    const int64_t rows = zf_tensor_shape(logits).dims[0];
    (void)g, (void)labels, (void)mask;
    return zf_scale(zf_sum(square(logits)), 0.5 / (double)rows);
}

static zf_tensor mean_by_hand(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    const int64_t rows = zf_tensor_shape(logits).dims[0];
    (void)g, (void)labels, (void)mask;
    return zf_scale(zf_sum(square(logits)), 1.0 / (double)rows);
}

/* A sum over a dimension 1 is none, wherever examples are. */
static zf_tensor mean_of_column(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    const int64_t count = zf_shape_count(zf_tensor_shape(logits));
    zf_tensor row = zf_reshape(square(logits), ZF_SHAPE(1, count, 1));
    (void)g, (void)labels, (void)mask;
    return zf_mean(zf_sum_ex(row, &(zf_reduce_desc){.axis = 2}));
}

static zf_tensor decayed_mean(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    zf_tensor decay = zf_scale(zf_sum(square(zf_graph_find(g, "w"))), 0.01);
    return zf_add(mean(g, logits, labels, mask), decay);
}

static zf_tensor masked(zf_tensor logits, zf_tensor mask)
{
    return zf_mul(zf_mean_ex(square(logits), &(zf_reduce_desc){.axis = -1}), mask);
}

static zf_tensor masked_mean(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)g, (void)labels;
    return zf_div(zf_sum(masked(logits, mask)), zf_sum(mask));
}

static zf_tensor masked_mean_eps(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    zf_tensor eps = zf_constant(g, ZF_F32, ZF_SCALAR, 1e-3);
    (void)labels;
    return zf_div(zf_sum(masked(logits, mask)), zf_add(zf_sum(mask), eps));
}

static zf_tensor normalised_rows(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    zf_tensor one = zf_constant(g, ZF_F32, ZF_SCALAR, 1);
    (void)labels;
    return zf_sum(masked(logits, zf_mul(mask, zf_div(one, zf_maximum(zf_sum(mask), one)))));
}

static zf_tensor means_divided(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)g, (void)labels;
    return zf_div(zf_mean(masked(logits, mask)), zf_mean(mask));
}

static zf_tensor sum(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)g, (void)labels, (void)mask;
    return zf_neg(zf_neg(zf_add(zf_sum(square(logits)), zf_scale(zf_sum(zf_tanh(logits)), 2))));
}

static zf_tensor weighted(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)mask;
    return zf_cross_entropy(logits, labels, zf_input(g, "weight", ZF_F32, ZF_SCALAR));
}

static zf_tensor perplexity(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    return zf_exp(ratio_of_labels(g, logits, labels, mask));
}

static zf_tensor largest(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)g, (void)labels, (void)mask;
    return zf_max(square(logits));
}

static zf_tensor product(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    return zf_mul(mean(g, logits, labels, mask), sum(g, logits, labels, mask));
}

static zf_tensor two_ratios(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    return zf_add(ratio_of_labels(g, logits, labels, mask), masked_mean(g, logits, labels, mask));
}

static zf_tensor sum_and_decay(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    return zf_add(sum(g, logits, labels, mask), zf_sum(square(zf_graph_find(g, "w"))));
}

/* The first sum may be over examples; passes make a sum of the mean of one. */
static zf_tensor mean_of_a_sum(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    const int64_t count = zf_shape_count(zf_tensor_shape(logits));
    zf_tensor row = zf_reshape(square(logits), ZF_SHAPE(2, count / 2));
    (void)g, (void)labels, (void)mask;
    return zf_mean(zf_slice(zf_sum_ex(row, &(zf_reduce_desc){.axis = 1}), 0, 0, 1));
}

/* Over dimensions of which it is not known where the examples are: once a mean, once a sum. */
static zf_tensor sum_of_other_mean(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)g, (void)labels, (void)mask;
    return zf_sum(zf_mean_ex(zf_transpose(square(logits), 0, 1), &(zf_reduce_desc){.axis = 0}));
}

static zf_tensor learned_divisor(zf_graph *g, zf_tensor logits, zf_tensor labels, zf_tensor mask)
{
    (void)g, (void)labels;
    return zf_div(zf_sum(masked(logits, mask)), zf_sum(zf_sigmoid(logits)));
}

/* --------------------------------------------------------------------------------------- a run */

typedef struct run_desc {
    made *loss, *output;
    zf_output_desc say; /* of the output, or without one of the loss */
    int32_t stage, world, nodes;
    int64_t micro;
    zf_dtype dtype;
    double clip, scale;
    zf_space offload;
    size_t prefetch;
} run_desc;

typedef struct result {
    double loss[STEPS], output[STEPS], norm[STEPS];
    float w[CLASSES * IN];
    char error[512];
} result;

/* Labels of row r: of every part another number is left out. */
static int32_t label_of(int r)
{
    return r % 7 == 0 || r / 6 == 1 ? (r % 3 ? -100 : 2) : r % CLASSES;
}

static zf_graph *model(test *t, const run_desc *d, int64_t rows, result *out)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(rows, IN));
    zf_tensor labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(rows));
    zf_tensor mask = zf_input(g, "mask", ZF_F32, ZF_SHAPE(rows));
    zf_tensor w =
        zf_param(g, "w", ZF_SHAPE(CLASSES, IN), &(zf_param_desc){.init = ZF_NORMAL, .std = 0.5});
    zf_tensor logits = zf_matmul_ex(x, w, &(zf_matmul_desc){.transpose_b = true});
    zf_tensor loss = d->loss(g, logits, labels, mask);
    const zf_training training = {.loss = loss,
                                  .optimizer = ZF_SGD,
                                  .clip = d->clip,
                                  .precision = {.dtype = d->dtype, .scale = d->scale},
                                  .zero = {.stage = d->stage,
                                           .world = d->world,
                                           .micro_batches = d->micro,
                                           .nodes = d->nodes},
                                  .offload = {.optimizer = d->offload, .gradients = d->offload},
                                  .prefetch = {.bytes = d->prefetch}};
    if (d->output) zf_output_ex(d->output(g, logits, labels, mask), "output", &d->say);
    else if (d->say.reduction) zf_output_ex(loss, "loss", &d->say);
    zf_passes(g, &training);
    if (zf_graph_status(g)) snprintf(out->error, sizeof out->error, "%s", zf_graph_error(g));
    return g;
}

/* Writes rows [first, first + count) of the batch. */
static void feed(test *t, zf_program *p, zf_graph *g, int first, int count)
{
    float x[ROWS * IN], mask[ROWS], lr = 0.1f, weight = 1.0f / 17;
    int32_t labels[ROWS];
    for (int r = 0; r < count; r++) {
        for (int i = 0; i < IN; i++) x[r * IN + i] = (float)sin(3 * (first + r) + i);
        labels[r] = label_of(first + r);
        mask[r] = labels[r] >= 0 ? 1 : 0;
    }
    CHECK(t, !zf_write(p, zf_graph_find(g, "x"), x, (size_t)(count * IN) * sizeof *x));
    if (zf_valid(zf_graph_find(g, "labels")))
        CHECK(t, !zf_write(p, zf_graph_find(g, "labels"), labels, (size_t)count * sizeof *labels));
    if (zf_valid(zf_graph_find(g, "mask")))
        CHECK(t, !zf_write(p, zf_graph_find(g, "mask"), mask, (size_t)count * sizeof *mask));
    if (zf_valid(zf_graph_find(g, "weight")))
        CHECK(t, !zf_write(p, zf_graph_find(g, "weight"), &weight, sizeof weight));
    CHECK(t, !zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr));
}

static double read_number(test *t, zf_program *p, zf_graph *g, const char *name)
{
    float value = 0;
    zf_tensor x = zf_graph_find(g, name);
    if (!zf_valid(x)) return 0;
    if (zf_read(p, x, &value, sizeof value))
        test_fail(t, __FILE__, __LINE__, name, zf_program_error(p));
    return value;
}

static result run(test *t, const run_desc *d)
{
    const int part = ROWS / (int)(d->world * d->micro);
    result out = {.error = ""};
    zf_comm comms[PARTS];
    zf_graph *graphs[PARTS] = {NULL};
    zf_program *programs[PARTS] = {NULL};
    zf_error error = {ZF_OK, ""};
    zf_lockstep_desc all = {programs, d->world, 0};
    for (int32_t r = 0; r < d->world && !out.error[0]; r++) {
        comms[r] = (zf_comm){.rank = r, .world = d->world, .groups = true};
        graphs[r] = model(t, d, part, &out);
        programs[r] =
            zf_compile(graphs[r], &(zf_compile_desc){.comm = &comms[r], .seed = 1, .verify = true});
        if (!programs[r]) snprintf(out.error, sizeof out.error, "%s", zf_graph_error(graphs[r]));
    }
    for (int step = 0; step < STEPS && !out.error[0]; step++) {
        for (int64_t m = 0; m < d->micro && !error.status; m++) {
            for (int32_t r = 0; r < d->world; r++)
                feed(t, programs[r], graphs[r], (int)(m * d->world + r) * part, part);
            if (m + 1 < d->micro) zf_lockstep_micro(&all, &error);
            else zf_lockstep_step(&all, &error);
        }
        if (error.status) snprintf(out.error, sizeof out.error, "%s", error.text);
        out.loss[step] = read_number(t, programs[0], graphs[0], "loss");
        out.output[step] = read_number(t, programs[d->world - 1], graphs[d->world - 1], "output");
        out.norm[step] = read_number(t, programs[0], graphs[0], "grad_norm");
    }
    if (!out.error[0] && !d->dtype)
        if (zf_lockstep_read(&all, "w", out.w, sizeof out.w, &error))
            snprintf(out.error, sizeof out.error, "%s", error.text);
    for (int32_t r = 0; r < d->world; r++) zf_program_free(programs[r]);
    for (int32_t r = 0; r < d->world; r++) zf_graph_free(graphs[r]);
    return out;
}

static void same_numbers(test *t, const result *a, const result *b, double tolerance)
{
    for (int step = 0; step < STEPS; step++) {
        CHECK_NEAR(t, a->loss[step], b->loss[step], tolerance * (1 + fabs(b->loss[step])));
        CHECK_NEAR(t, a->output[step], b->output[step], tolerance * (1 + fabs(b->output[step])));
        CHECK_NEAR(t, a->norm[step], b->norm[step], tolerance * (1 + fabs(b->norm[step])));
    }
    for (int i = 0; i < CLASSES * IN; i++)
        CHECK_NEAR(t, a->w[i], b->w[i], tolerance * (1 + fabs(b->w[i])));
}

static const struct split {
    int32_t world;
    int64_t micro;
    int32_t nodes;
} splits[] = {{1, 4, 1}, {2, 2, 1}, {4, 1, 1}, {4, 1, 2}};

/* The numbers of every split are those of one process; and to the last bit those of other splits of
 * as many parts without nodes. */
static void check_splits(test *t, run_desc d, double tolerance)
{
    result one, first = {.error = ""}, now;
    d.world = 1, d.micro = 1;
    one = run(t, &d);
    CHECK_TEXT(t, one.error, "");
    for (size_t k = 0; k < sizeof splits / sizeof *splits && !t->failed; k++)
        for (d.stage = 0; d.stage < 4; d.stage++) {
            d.world = splits[k].world, d.micro = splits[k].micro, d.nodes = splits[k].nodes;
            now = run(t, &d);
            CHECK_TEXT(t, now.error, "");
            same_numbers(t, &now, &one, tolerance);
            if (!k && !d.stage) first = now;
            if (d.nodes == 1)
                CHECK(t, !memcmp(first.loss, now.loss, sizeof now.loss) &&
                             !memcmp(first.w, now.w, sizeof now.w));
        }
}

TEST_ONCE(reduction_of_losses_is_that_of_one_process)
{
    static made *const losses[] = {ratio_of_labels, scaled_ratio,   mean,        means_added,
                                   mean_of_mean,    mean_of_column, mean_of_sum, sum_of_mean,
                                   mean_by_hand,    decayed_mean,   masked_mean, masked_mean_eps,
                                   normalised_rows, means_divided,  sum,         weighted};
    for (size_t k = 0; k < sizeof losses / sizeof *losses; k++) {
        check_splits(t, (run_desc){.loss = losses[k]}, 2e-6);
        check_splits(t, (run_desc){.loss = losses[k], .clip = 0.1}, 2e-6);
        if (t->failed) printf("  of loss %d\n", (int)k);
    }
}

/* An output in addition to the loss: a metric. */
TEST_ONCE(reduction_of_outputs_is_that_of_one_process)
{
    static made *const outputs[] = {ratio_of_labels, mean, mean_of_sum, masked_mean_eps, sum};
    static made *const losses[] = {ratio_of_labels, mean};
    for (size_t k = 0; k < sizeof outputs / sizeof *outputs; k++)
        for (size_t l = 0; l < sizeof losses / sizeof *losses; l++)
            check_splits(t, (run_desc){.loss = losses[l], .output = outputs[k]}, 2e-5);
}

/* What no operator tells is an error that names the choices; on one rank it is none. */
TEST_ONCE(reduction_that_is_not_said_is_an_error)
{
    static made *const unsaid[] = {perplexity,      largest,       product,
                                   two_ratios,      sum_and_decay, sum_of_other_mean,
                                   learned_divisor, mean_of_a_sum};
    for (size_t k = 0; k < sizeof unsaid / sizeof *unsaid; k++) {
        run_desc d = {.loss = unsaid[k], .world = 2, .micro = 1};
        result out = run(t, &d);
        CHECK(t, strstr(out.error, "zf_zero: the output \"loss\"") &&
                     strstr(out.error, "ZF_REDUCTION_MEAN"));
        d = (run_desc){.loss = mean, .output = unsaid[k], .world = 1, .micro = 2};
        out = run(t, &d);
        CHECK(t,
              strstr(out.error, "the output \"output\"") && strstr(out.error, "ZF_REDUCTION_MEAN"));
        d.micro = 1;
        out = run(t, &d);
        CHECK_TEXT(t, out.error, "");
    }
}

/* An output of the loss's mean, whose divisor is known after all parts, even if its reduction is
 * said. */
TEST_ONCE(reduction_after_the_parts_is_an_error)
{
    const char *const says = "a sum over all 2 parts of the batch, which is known after them: give "
                             "zf_cross_entropy a weight, 1 / (labelled rows of the global batch), "
                             "or divide by an input";
    run_desc d = {.loss = ratio_of_labels, .output = perplexity, .world = 2, .micro = 1};
    result out;
    d.say.reduction = ZF_REDUCTION_MEAN;
    out = run(t, &d);
    CHECK(t, strstr(out.error, says) && strstr(out.error, "the output \"output\""));
}

/* Half of a mean by hand, or the mean of all parts: only the program knows. */
TEST_ONCE(reduction_of_a_scaled_sum_must_be_said)
{
    const char *const says = "a sum times a number below 1 may be part of a mean over one of 4 parts of "
                             "the batch, or over all: say ZF_REDUCTION_MEAN or ZF_REDUCTION_SUM "
                             "(zf_output_ex), or use zf_mean";
    run_desc d = {.loss = half_mean_by_hand, .world = 2, .micro = 2}, whole = d;
    result out = run(t, &d), one;
    CHECK(t, strstr(out.error, says));
    d.loss = mean, d.output = half_mean_by_hand;
    out = run(t, &d);
    CHECK(t, strstr(out.error, says) && strstr(out.error, "the output \"output\""));
    whole.world = whole.micro = 1, d = whole, d.world = d.micro = 2;
    d.say.reduction = ZF_REDUCTION_MEAN;
    out = run(t, &d), one = run(t, &whole);
    CHECK_TEXT(t, out.error, "");
    CHECK_TEXT(t, one.error, "");
    CHECK_NEAR(t, out.loss[0], one.loss[0], 1e-5);
}

/* What a program says is done. */
TEST_ONCE(reduction_that_is_said_is_done)
{
    run_desc d = {.loss = mean, .output = largest, .world = 2, .micro = 2, .stage = 2};
    double parts[3];
    result out;
    for (int how = 1; how <= 3; how++) {
        d.say.reduction = (zf_reduction)how;
        out = run(t, &d);
        CHECK_TEXT(t, out.error, "");
        parts[how - 1] = out.output[0];
    }
    CHECK_NEAR(t, parts[0], 4 * parts[1], 1e-5);
    CHECK(t, parts[2] > 0 && parts[2] <= parts[0]);
    d = (run_desc){.loss = product, .say = {ZF_REDUCTION_MEAN}, .world = 4, .micro = 1};
    out = run(t, &d);
    CHECK_TEXT(t, out.error, "");
    d.say.reduction = ZF_REDUCTION_NONE;
    out = run(t, &d);
    CHECK(t, strstr(out.error, "a loss has a sum or a mean"));
}

/* What is said of the loss by an output of another name holds for its gradients too. */
TEST(reduction_of_the_loss_by_another_output)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor loss;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    loss = zf_max(zf_mul(zf_input(g, "x", ZF_F32, ZF_SHAPE(4)), zf_param(g, "w", ZF_SCALAR, NULL)));
    zf_output_ex(loss, "error", &(zf_output_desc){ZF_REDUCTION_SUM});
    OK(t, zf_passes(g, &(zf_training){.loss = loss, .zero.micro_batches = 2}), zf_graph_error(g));
}

/* An output made of a constant that stands for the sum of all parts would be silently another. */
TEST_ONCE(reduction_does_not_change_other_outputs)
{
    const run_desc d = {.loss = ratio_of_labels,
                        .output = perplexity,
                        .say = {ZF_REDUCTION_MEAN},
                        .world = 2,
                        .micro = 1};
    const result out = run(t, &d);
    CHECK(t, strstr(out.error, "the output \"output\"") &&
                 strstr(out.error, "a sum over all 2 parts"));
}

/* With 16 bits, a loss scale, offload and overlap. */
TEST_ONCE(reduction_of_losses_in_every_pass)
{
    static made *const losses[] = {ratio_of_labels, mean};
    for (size_t k = 0; k < sizeof losses / sizeof *losses; k++) {
        check_splits(t, (run_desc){.loss = losses[k], .dtype = ZF_BF16, .clip = 1}, 0.02);
        check_splits(t, (run_desc){.loss = losses[k], .dtype = ZF_F16, .clip = 1}, 0.003);
        check_splits(t, (run_desc){.loss = losses[k], .scale = 1024, .clip = 1}, 2e-6);
        check_splits(
            t, (run_desc){.loss = losses[k], .offload = ZF_HOST, .prefetch = 1 << 20, .clip = 1},
            2e-6);
        check_splits(t, (run_desc){.loss = losses[k], .offload = ZF_HOST, .prefetch = 1 << 20},
                     2e-6);
    }
}

/* The tensor that a program holds of an output, or of the loss, is read after every pass. */
TEST(outputs_are_read_by_the_tensors_they_were_made_of)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_program *p;
    zf_tensor x, w, loss, twice, lr;
    float in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, rate = 0.5f, value[2] = {0, 0};
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(8));
    w = zf_param(g, "w", ZF_SCALAR, &(zf_param_desc){.init = ZF_ONES});
    loss = zf_mean(zf_mul(x, w));
    twice = zf_scale(loss, 2);
    zf_output(twice, "twice");
    lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    OK(t,
       zf_passes(g, &(zf_training){.loss = loss,
                                   .lr = lr,
                                   .optimizer = ZF_SGD,
                                   .precision.dtype = ZF_BF16,
                                   .zero = {.stage = 3, .micro_batches = 2}}),
       zf_graph_error(g));
    p = zf_compile(g, NULL);
    NEED(t, p, &(zf_error){.status = zf_graph_status(g)});
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_write(p, x, in, sizeof in), zf_program_error(p));
    OK(t, zf_write(p, lr, &rate, sizeof rate), zf_program_error(p));
    OK(t, zf_micro(p), zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, loss, &value[0], 4), zf_program_error(p));
    OK(t, zf_read(p, twice, &value[1], 4), zf_program_error(p));
    CHECK_NEAR(t, value[0], 4.5, 0);
    CHECK_NEAR(t, value[1], 9, 0);
}
