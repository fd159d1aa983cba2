/* zf_nn_fit: batches, epochs, held-out examples, and messages. */
#include "../support/test.h"

enum { EXAMPLES = 13 };

static const float xs[EXAMPLES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

/* What a fit has reported. */
typedef struct heard {
    zf_nn_progress at[64];
    int count, stop; /* stop: the step after which the fit ends; 0: none */
    int64_t built[8];
    int build_count;
    char line[200]; /* the last one */
    int lines;
} heard;

static bool hear(void *user, zf_store *store, const zf_nn_progress *at)
{
    heard *h = user;
    if (h->count < 64) h->at[h->count++] = *at;
    return at->step != h->stop && at->step == zf_store_step(store);
}

static void note(void *user, int64_t n)
{
    heard *h = user;
    if (h && h->build_count < 8) h->built[h->build_count++] = n;
}

/* mean (w x - 3 x)^2 over the examples, with dropout on w x - 3 x. */
static zf_tensor line(zf_graph *g, int64_t n, double dropout)
{
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(n)), w = zf_param(g, "w", ZF_SCALAR, NULL);
    zf_tensor miss = zf_dropout(zf_sub(zf_mul(w, x), zf_scale(x, 3)), dropout);
    return zf_mean(zf_mul(miss, miss));
}

static zf_tensor build_line(void *user, zf_graph *g, int64_t n)
{
    note(user, n);
    return line(g, n, 0);
}

static zf_tensor build_dropping(void *user, zf_graph *g, int64_t n)
{
    note(user, n);
    return line(g, n, 0.5);
}

/* The example itself as the loss, where there is one. */
static zf_tensor build_itself(void *user, zf_graph *g, int64_t n)
{
    zf_tensor w = zf_param(g, "w", ZF_SCALAR, NULL);
    note(user, n);
    return zf_add(zf_mean(zf_input(g, "x", ZF_F32, ZF_SHAPE(n))), zf_sub(w, w));
}

static zf_store *new_store(test *t)
{
    zf_error error = {ZF_OK, ""};
    zf_store *store = zf_store_new(&(zf_store_desc){.seed = 5, .allocator = t->allocator}, &error);
    if (store) test_defer(t, (test_cleanup *)zf_store_free, store);
    else test_unwind(t, __FILE__, __LINE__, "zf_store_new", error.status, error.text);
    return store;
}

#define FIT(t, ...)                                                                                \
    do {                                                                                           \
        zf_error fit_error = {ZF_OK, ""};                                                          \
        OK(t,                                                                                      \
           zf_nn_fit(store, &(zf_nn_fit_desc){.allocator = t->allocator, __VA_ARGS__},             \
                     &fit_error),                                                                  \
           fit_error.text);                                                                        \
    } while (0)

/* ------------------------------------------------------------------------------------- batches */

/* By hand: the mean over [first, last) of (w - 3)^2 x^2, and its gradient. */
static double by_hand(double w, int first, int last, double *gradient)
{
    double squares = 0;
    for (int k = first; k < last; k++) squares += xs[k] * xs[k];
    squares /= last - first;
    if (gradient) *gradient = 2 * (w - 3) * squares;
    return (w - 3) * (w - 3) * squares;
}

/* Seven examples in batches of four, and held-out examples, with every batch size. */
TEST(fit_takes_what_is_left_as_a_batch)
{
    for (int held_out = 0; held_out <= 6; held_out += 3) {
        const int trained = 7, all = trained + held_out;
        const double lr = 0.01;
        heard h = {.count = 0};
        double w = 0, sum = 0;
        zf_store *store = new_store(t);
        if (!store) return;
        FIT(t, .build = build_line, .user = &h, .fields = {{"x", xs}}, .examples = all,
            .held_out = held_out, .batch = 4, .epochs = 3, .in_order = true, .schedule.peak = lr,
            .training.optimizer = ZF_SGD, .report = hear);
        CHECK(t, h.count == 6 && zf_store_step(store) == 6);
        for (int step = 0; step < 6; step++) {
            const zf_nn_progress *at = &h.at[step];
            int first = step % 2 * 4, last = step % 2 ? trained : 4;
            double gradient, loss = by_hand(w, first, last, &gradient);
            w -= (float)lr * gradient;
            sum = (step % 2 ? sum : 0) + loss * (last - first);
            CHECK(t, at->step == step + 1 && at->epoch == step / 2 + 1);
            CHECK(t, at->epoch_done == (step % 2 == 1) && at->lr == (float)lr);
            CHECK_NEAR(t, at->loss, loss, 1e-4 * (1 + loss));
            CHECK_NEAR(t, at->epoch_loss, sum / last, 1e-4 * (1 + loss));
            CHECK(t, isnan(at->held_out) == !(at->epoch_done && held_out));
            if (held_out && at->epoch_done)
                CHECK_NEAR(t, at->held_out, by_hand(w, trained, all, NULL), 1e-4 * (1 + loss));
        }
        CHECK(t, h.built[0] == 4 && h.built[1] == 3);
        CHECK(t, h.build_count == 2 + (held_out == 3) + 2 * (held_out == 6));
        CHECK(t, held_out != 3 || h.built[2] == 3);
        CHECK(t, held_out != 6 || (h.built[2] == 4 && h.built[3] == 2));
    }
}

/* Batches that divide the examples, and one that is larger than all of them. */
TEST(fit_builds_what_it_needs)
{
    heard h = {.count = 0};
    zf_store *store = new_store(t);
    if (!store) return;
    FIT(t, .build = build_line, .user = &h, .fields = {{"x", xs}}, .examples = 12, .batch = 4,
        .report = hear);
    CHECK(t, h.count == 3 && h.build_count == 1 && h.built[0] == 4);
    h = (heard){.count = 0};
    store = new_store(t);
    if (!store) return;
    FIT(t, .build = build_line, .user = &h, .fields = {{"x", xs}}, .examples = 12, .report = hear);
    CHECK(t, h.count == 1 && h.build_count == 1 && h.built[0] == 12 && h.at[0].lr == 1e-3f);
}

/* -------------------------------------------------------------------------------------- orders */

/* The order in which the examples of some epochs came. */
static bool orders(test *t, uint64_t seed, bool in_order, int examples, int epochs, float *order)
{
    heard h = {.count = 0};
    zf_error error = {ZF_OK, ""};
    zf_store *store = new_store(t);
    const zf_nn_fit_desc d = {.build = build_itself,
                              .user = &h,
                              .fields = {{"x", xs}},
                              .examples = examples,
                              .batch = 1,
                              .epochs = epochs,
                              .in_order = in_order,
                              .seed = seed,
                              .report = hear,
                              .allocator = t->allocator};
    zf_status status = store ? zf_nn_fit(store, &d, &error) : ZF_OK;
    if (store) t->deferred_count--, zf_store_free(store);
    if (status) test_unwind(t, __FILE__, __LINE__, "zf_nn_fit", status, error.text);
    if (status || !store) return false;
    for (int k = 0; k < examples * epochs; k++) order[k] = (float)h.at[k].loss;
    return h.count == examples * epochs;
}

TEST(fit_shuffles_each_epoch)
{
    float one[3 * EXAMPLES], same[3 * EXAMPLES], other[3 * EXAMPLES], plain[2 * EXAMPLES];
    if (!orders(t, 1, false, EXAMPLES, 3, one) || !orders(t, 1, false, EXAMPLES, 3, same) ||
        !orders(t, 2, false, EXAMPLES, 3, other) || !orders(t, 1, true, EXAMPLES, 2, plain))
        return;
    CHECK(t, !memcmp(one, same, sizeof one));
    CHECK(t, memcmp(one, other, sizeof one) && memcmp(one, one + EXAMPLES, sizeof one / 3));
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen = 0;
        for (int k = 0; k < EXAMPLES; k++) seen |= 1 << (int)one[epoch * EXAMPLES + k];
        CHECK(t, seen == (1 << EXAMPLES) - 1);
    }
    for (int k = 0; k < 2 * EXAMPLES; k++) CHECK(t, plain[k] == (float)(k % EXAMPLES));
    for (int examples = 1; examples < 5; examples++) {
        int seen = 0;
        if (!orders(t, 3, false, examples, 1, one)) return;
        for (int k = 0; k < examples; k++) seen |= 1 << (int)one[k];
        CHECK(t, seen == (1 << examples) - 1);
    }
}

/* Each example is as likely in each place: of 4000 epochs of four, each place has each 1000 times,
 * with a standard deviation of 27. */
TEST_ONCE(fit_orders_are_even)
{
    int times[4][4] = {{0}};
    for (uint64_t seed = 0; seed < 250; seed++) {
        float order[64];
        if (!orders(t, seed, false, 4, 16, order)) return;
        for (int k = 0; k < 64; k++) times[k % 4][(int)order[k]]++;
    }
    for (int k = 0; k < 16; k++) CHECK_NEAR(t, times[k / 4][k % 4], 1000, 135);
}

/* ------------------------------------------------------------------------------- stop and go on */

/* A fit that its callback ends inside an epoch can be continued with the same bits. */
TEST(fit_stops_and_goes_on)
{
    float w[2];
    for (int stop = 0; stop < 2; stop++) {
        heard h = {.stop = stop ? 3 : 0};
        zf_store *store = new_store(t);
        if (!store) return;
        for (int k = 0; k <= stop; k++) {
            FIT(t, .build = build_dropping, .user = &h, .fields = {{"x", xs}}, .examples = EXAMPLES,
                .held_out = 3, .batch = 4, .epochs = 2, .seed = 9, .report = hear,
                .schedule = {ZF_LINEAR, .peak = 0.1});
            CHECK(t, zf_store_step(store) == (stop && !k ? 3 : 6));
        }
        CHECK(t, h.count == 6 && h.at[5].epoch_done && h.at[5].epoch == 2);
        OK(t, zf_store_read(store, "w", &w[stop], sizeof w[stop]), zf_store_error(store));
        /* Held-out examples are evaluated without dropout. */
        CHECK_NEAR(t, h.at[5].held_out, by_hand(w[stop], 10, 13, NULL), 1e-2);
    }
    CHECK(t, w[0] != 0 && w[0] == w[1]);
}

/* -------------------------------------------------------------------------------------- errors */

static zf_tensor build_nothing(void *user, zf_graph *g, int64_t n)
{
    (void)user, (void)g, (void)n;
    return ZF_NONE;
}

static zf_tensor build_wrong(void *user, zf_graph *g, int64_t n)
{
    (void)user, (void)n;
    return line(g, 3, 0);
}

static zf_tensor build_bad(void *user, zf_graph *g, int64_t n)
{
    (void)user;
    return zf_sum_ex(zf_input(g, "x", ZF_F32, ZF_SHAPE(n)), &(zf_reduce_desc){.axis = 7});
}

static double no_rate(void *user, const zf_nn_progress *last, double rate)
{
    (void)user, (void)last, (void)rate;
    return NAN;
}

TEST(fit_says_what_is_wrong)
{
    static const float infinite[4] = {1, INFINITY, 1, 1};
    const struct {
        zf_nn_fit_desc d;
        zf_status status;
        const char *text;
    } rows[] = {
        {{.examples = 4}, ZF_ERR_ARGUMENT, "zf_nn_fit: build, which makes the model, is NULL"},
        {{.build = build_line, .examples = 4, .batch = -1},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: batch is -1 and epochs 1; they must not be negative"},
        {{.build = build_line, .examples = 4, .held_out = 4},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: 4 of 4 examples are held out; one must remain to learn from"},
        {{.build = build_line, .examples = 4, .patience = -1},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: patience is -1, line_every 0 and least 0; they must not be negative"},
        {{.build = build_line, .examples = 4, .watch = "accuracy", .metrics = {{.name = "loss"}}},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: watch is \"accuracy\", which is none of the metrics"},
        {{.build = build_line, .examples = 4, .metrics = {{.name = "accuracy"}}, .fields = {{"x", xs}}},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: the metric \"accuracy\" must be an output of the model, a scalar f32"},
        {{.build = build_line, .examples = 4, .metrics = {{.name = "input", .output = "x"}}, .fields = {{"x", xs}}},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: the metric \"x\" must be an output of the model, a scalar f32"},
        {{.build = build_line, .examples = 4, .rate = no_rate, .fields = {{"x", xs}}},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: the rate of step 1 is nan; it must be finite and not negative"},
        {{.build = build_line, .examples = 4, .training.zero = {.world = 2}},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: training.zero is for several parts of a batch; it feeds one"},
        {{.build = build_line, .examples = 4, .training.optimizer = ZF_ONEBIT_ADAM},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: onebit_adam is for several ranks: a step of it has several variants"},
        {{.build = build_line, .examples = 4, .fields = {{"x", NULL}}},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: the data of \"x\" are NULL"},
        {{.build = build_line, .examples = 4, .fields = {{"x", xs}, {"y", xs}}},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: the model has no input \"y\""},
        {{.build = build_wrong, .examples = 4, .fields = {{"x", xs}}},
         ZF_ERR_SHAPE,
         "zf_nn_fit: the first dimension of the input \"x\" must be the 4 examples that it was "
         "built "
         "for"},
        {{.build = build_nothing, .examples = 4},
         ZF_ERR_ARGUMENT,
         "zf_nn_fit: build must return the loss, a scalar"},
        {{.build = build_bad, .examples = 4}, ZF_ERR_ARGUMENT, "axis 7 of a tensor of rank 1"},
        {{.build = build_line, .examples = 4}, ZF_ERR_STAGE, "zf_step: the input \"x\""},
        {{.build = build_line, .examples = 4, .fields = {{"x", infinite}}},
         ZF_ERR_NAN,
         "step 1: the output \"loss\" is not a finite number"},
    };
    zf_error error = {ZF_OK, ""};
    CHECK(t, zf_nn_fit(NULL, NULL, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_nn_fit(NULL, &rows[0].d, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_nn_fit: a store is needed");
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        zf_store *store = new_store(t);
        zf_nn_fit_desc d = rows[k].d;
        zf_status status;
        if (!store) return;
        d.allocator = t->allocator;
        error = (zf_error){ZF_OK, ""};
        status = zf_nn_fit(store, &d, &error);
        if (status != rows[k].status || error.status != status ||
            !strstr(error.text, rows[k].text)) {
            test_unwind(t, __FILE__, __LINE__, rows[k].text, status, error.text);
            return;
        }
        CHECK(t, zf_store_step(store) == 0);
    }
}

/* ------------------------------------------------------------------------------- labelled rows */

static zf_tensor build_labelled(void *user, zf_graph *g, int64_t n)
{
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(n));
    zf_tensor labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(n));
    zf_tensor w = zf_param(g, "w", ZF_SHAPE(1, 3),
                           &(zf_param_desc){.init = ZF_NORMAL, .std = 0.3});
    note(user, n);
    return zf_cross_entropy(zf_mul(zf_reshape(x, ZF_SHAPE(n, 1)), w), labels, ZF_NONE);
}

/* The losses of an epoch and of the held-out examples are means over the labelled rows: they do not
 * depend on how these are spread over batches. */
TEST(fit_weighs_batches_by_labelled_rows)
{
    static const int32_t labels[EXAMPLES] = {0,    -100, 2,    -100, -100, -100, 1,
                                             -100, 2,    -100, -100, 0,    -100};
    static const int64_t sizes[] = {1, 2, 3, 5, 13};
    double first[2] = {0, 0};
    for (int k = 0; k < 5; k++) {
        heard h = {.count = 0};
        zf_store *store = new_store(t);
        const zf_nn_progress *last;
        if (!store) return;
        FIT(t, .build = build_labelled, .user = &h, .report = hear, .examples = EXAMPLES,
            .held_out = 5, .batch = sizes[k], .fields = {{"x", xs}, {"labels", labels}},
            .in_order = true, .schedule.peak = ZF_ZERO);
        last = &h.at[h.count - 1];
        CHECK(t, last->epoch_done);
        if (!k) first[0] = last->epoch_loss, first[1] = last->held_out;
        CHECK_NEAR(t, last->epoch_loss, first[0], 1e-6);
        CHECK_NEAR(t, last->held_out, first[1], 1e-6);
        CHECK(t, first[0] > 0.5 && first[1] > 0.5);
    }
}

/* -------------------------------------------------------------------------------- what is watched */

static zf_tensor build_scored(void *user, zf_graph *g, int64_t n)
{
    const zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(n, 1)),
                    labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(n)),
                    w = zf_param(g, "w", ZF_SHAPE(1, 3),
                                 &(zf_param_desc){.init = ZF_NORMAL, .std = 0.3}),
                    logits = zf_mul(x, w);
    (void)user;
    zf_output(zf_nn_accuracy(logits, labels), "accuracy");
    zf_output(zf_mean(x), "mean");
    return zf_cross_entropy(logits, labels, ZF_NONE);
}

/* Of examples 0 to 7, and of 8 to 12, by hand: all but the first have the class of the largest
 * weight, and the first, all of whose logits are 0, has class 0. */
TEST(fit_reports_metrics)
{
    static const int32_t labels[EXAMPLES] = {0, -100, 2, 1, -100, 2, 1, 0, 2, -100, 1, 0, -100};
    static const int64_t sizes[] = {3, 8};
    for (int k = 0; k < 2; k++) {
        heard h = {.count = 0};
        zf_store *store = new_store(t);
        float w[3] = {0};
        int best = 0, right[2] = {1, 0};
        const zf_nn_progress *last;
        if (!store) return;
        FIT(t, .build = build_scored, .user = &h, .report = hear, .examples = EXAMPLES,
            .held_out = 5, .batch = sizes[k], .fields = {{"x", xs}, {"labels", labels}},
            .metrics = {{.name = "accuracy"},
                        {"perplexity", "loss", ZF_NN_EXP},
                        {.name = "mean"}},
            .schedule.peak = ZF_ZERO);
        OK(t, zf_store_read(store, "w", w, sizeof w), zf_store_error(store));
        for (int c = 1; c < 3; c++) best = w[c] > w[best] ? c : best;
        for (int i = 1; i < EXAMPLES; i++) right[i >= 8] += labels[i] == best;
        last = &h.at[h.count - 1];
        CHECK_NEAR(t, last->metrics[0], right[0] / 6.0, 1e-6);
        CHECK_NEAR(t, last->held_out_metrics[0], right[1] / 3.0, 1e-6);
        CHECK_NEAR(t, last->metrics[1], exp(last->epoch_loss), 1e-9);
        CHECK_NEAR(t, last->held_out_metrics[1], exp(last->held_out), 1e-9);
        CHECK_NEAR(t, last->metrics[2], 3.5, 1e-6);
        CHECK_NEAR(t, last->held_out_metrics[2], 10, 1e-6);
        CHECK(t, last->epoch_done && (k == 1 || isnan(h.at[0].held_out_metrics[0])));
    }
}

/* Without a better epoch it ends after `patience` more; a gain of `least` is none. A fit that goes on
 * would not know the best epoch. */
TEST(fit_ends_when_nothing_is_gained)
{
    for (int least = 0; least < 2; least++) {
        zf_error error = {ZF_OK, ""};
        zf_status status;
        heard h = {.count = 0};
        zf_store *store = new_store(t);
        if (!store) return;
        FIT(t, .build = build_line, .user = &h, .fields = {{"x", xs}}, .examples = 8, .batch = 8,
            .epochs = 20, .patience = 3, .least = least ? 1e6 : 0, .report = hear,
            .schedule.peak = least ? 1e-3 : ZF_ZERO, .training.optimizer = ZF_SGD);
        CHECK(t, h.count == 4 && h.at[0].improved && h.at[3].best_epoch == 1);
        CHECK(t, !h.at[1].improved && (h.at[1].epoch_loss < h.at[0].epoch_loss) == (least == 1));
        status = zf_nn_fit(store,
                           &(zf_nn_fit_desc){.build = build_line, .fields = {{"x", xs}},
                                             .examples = 8, .batch = 8, .epochs = 20, .patience = 3},
                           &error);
        GIVES(t, status, ZF_ERR_ARGUMENT, error.text);
        CHECK_TEXT(t, error.text,
                   "zf_nn_fit: the store has 4 steps, and patience counts from their best epoch, "
                   "which best keeps: give best, or leave out patience");
    }
}

/* A rate that is good for two epochs, and then far too large. */
static double spoil(void *user, const zf_nn_progress *last, double rate)
{
    (void)user;
    return last->step < 2 ? rate : 10 * rate;
}

static void write_line(void *user, const char *text)
{
    heard *h = user;
    snprintf(h->line, sizeof h->line, "%s", text);
    h->lines++;
}

/* The best epoch stays in a checkpoint, and a fit that goes on knows it. */
TEST_ONCE(fit_keeps_the_best_epoch)
{
    heard h = {.count = 0};
    float w = 0;
    zf_store *store = new_store(t), *best = new_store(t);
    const char *path = test_path("fit-best");
    if (!store || !best) return;
    for (int64_t epochs = 4; epochs < 7; epochs += 2)
        FIT(t, .build = build_line, .user = &h, .fields = {{"x", xs}}, .examples = 4,
            .held_out = 1, .batch = 4, .epochs = epochs, .schedule.peak = 0.1, .rate = spoil,
            .training.optimizer = ZF_SGD, .report = hear, .best = path, .line = write_line);
    CHECK(t, h.count == 6 && h.at[1].improved && !h.at[2].improved && !h.at[4].improved);
    CHECK(t, h.at[5].best_epoch == 2 && h.at[2].held_out > h.at[1].held_out);
    CHECK(t, h.at[1].lr == 0.1f && h.at[2].lr == 1.0f && h.at[4].lr == 0.1f);
    OK(t, zf_load(best, path, NULL), zf_store_error(best));
    OK(t, zf_store_read(best, "w", &w, sizeof w), zf_store_error(best));
    CHECK(t, zf_store_step(best) == 2);
    CHECK_NEAR(t, by_hand(w, 3, 4, NULL), h.at[1].held_out, 1e-4);
    CHECK(t, h.lines == 6);
}

enum { LOOKUPS = 10, TABLE = 40 * 4 };

/* The mean of the squares of rows of a table. */
static zf_tensor build_table(void *user, zf_graph *g, int64_t examples)
{
    zf_tensor ids = zf_input(g, "ids", ZF_I32, ZF_SHAPE(examples)), x;
    (void)user;
    x = zf_embedding(zf_param(g, "w", ZF_SHAPE(40, 4), &(zf_param_desc){.init = ZF_ONES}), ids);
    return zf_mean(zf_mul(x, x));
}

static bool stop_at_4(void *user, zf_store *store, const zf_nn_progress *progress)
{
    (void)user, (void)store;
    return progress->step < 4;
}

/* A fit updates rows of a table alone: without momentum these are the bits of the dense update, with
 * AdamW others, which a fit that goes on from a checkpoint has as well. */
TEST_ONCE(fit_updates_rows_that_are_read)
{
    static const int32_t ids[LOOKUPS] = {3, 3, 9, 0, 21, 9, 38, 3, 20, 5};
    const char *path = test_path("fit-rows");
    float w[6][TABLE];
    for (int k = 0; k < 6; k++) {
        zf_store *store = new_store(t);
        if (!store) return;
        if (k == 4) OK(t, zf_load(store, path, NULL), zf_store_error(store));
        FIT(t, .build = build_table, .fields = {{"ids", ids}}, .examples = LOOKUPS, .batch = 4,
            .epochs = 2, .schedule.peak = 0.1, .report = k == 3 ? stop_at_4 : NULL,
            .training.optimizer = k < 2 ? ZF_SGD : ZF_ADAMW,
            .training.param_groups = k % 5 ? "w:lazy_rows" : NULL);
        CHECK(t, zf_store_step(store) == (k == 3 ? 4 : 6));
        if (k == 3) OK(t, zf_save(store, path, NULL), zf_store_error(store));
        else OK(t, zf_store_read(store, "w", w[k], sizeof w[k]), zf_store_error(store));
    }
    CHECK(t, !memcmp(w[0], w[1], sizeof w[0]) && memcmp(w[5], w[2], sizeof w[2]));
    CHECK(t, !memcmp(w[2], w[4], sizeof w[2]));
    for (int i = 0; i < TABLE; i++)
        CHECK(t, (w[2][i] != 1) == (i / 4 == 3 || i / 4 == 9 || i / 4 == 0 || i / 4 == 21 ||
                                    i / 4 == 38 || i / 4 == 20 || i / 4 == 5));
}

TEST_ONCE(fit_writes_lines)
{
    const zf_nn_fit_desc d = {.metrics = {{.name = "accuracy"}}, .held_out = 3};
    const zf_nn_progress at = {.epoch = 2,
                               .step = 64,
                               .lr = 1e-3,
                               .epoch_loss = 0.1234,
                               .metrics = {0.95},
                               .held_out = 0.13,
                               .held_out_metrics = {0.94},
                               .epoch_done = true,
                               .improved = true};
    char text[200], small[12];
    CHECK_TEXT(t, zf_nn_progress_line(&d, &at, text, sizeof text),
               "epoch 2  step 64  rate 0.001  loss 0.1234  accuracy 0.9500  held out:  loss 0.1300  "
               "accuracy 0.9400  the best");
    CHECK_TEXT(t, zf_nn_progress_line(&d, &at, small, sizeof small), "epoch 2  st");
}
