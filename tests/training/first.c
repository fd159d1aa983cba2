/* First values that are not drawn: sinusoids and the words' shares, in parameters and their master
 * weights. */
#include "../support/test.h"

#include "../../examples/bert/masked.h"
#include "../../examples/bert/model.h"
#include "../../examples/frame/model/settings.h"

enum { VOCAB = 40, HIDDEN = 16, POSITIONS = 24 };

static void close_session(void *s) { session_close(s); }
static void free_corpus(void *c) { bert_corpus_free(c); }

/* a, b, c, ... are 5, 6, 7, ... */
static int64_t encode(const void *user, const char *text, size_t bytes, int32_t *ids, int64_t cap)
{
    (void)user;
    for (size_t i = 0; i < bytes && (int64_t)i < cap; i++) ids[i] = text[i] - 'a' + 5;
    return (int64_t)bytes;
}

/* A session that has its drawn values in that dtype. */
static bool open_session(test *t, session *s, bert_config *config, zf_dtype dtype)
{
    session_desc d = {.sample = &bert_sample,
                      .config = config,
                      .shape = {.batch = 2, .sequence = POSITIONS, .predictions = 4},
                      .threads = 1,
                      .training.precision.dtype = dtype};
    zf_error error = {ZF_OK, ""};
    if (!bert_config_load("tiny", config, &error)) return false;
    config->vocab = VOCAB, config->hidden = HIDDEN, config->positions = POSITIONS;
    config->intermediate = HIDDEN;
    if (!session_open(s, &d, &error)) return false;
    test_defer(t, close_session, s);
    return true;
}

static zf_status read_f32(session *s, const char *name, float *values, size_t count)
{
    zf_tensor x = zf_graph_find(s->graph, name);
    uint8_t data[4 * VOCAB * HIDDEN];
    zf_status status = zf_read(s->program, x, data, zf_tensor_bytes(x));
    zf_convert(values, ZF_F32, data, zf_tensor_dtype(x), count);
    return status;
}

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int i = 0; i < HIDDEN; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* One rotation takes every row to the next: products of rows depend on their distance alone, and
 * fall with it at first. */
TEST_ONCE(first_positions_are_sinusoids)
{
    static float table[POSITIONS * HIDDEN];
    const double std = 0.02;
    bert_sinusoids(table, POSITIONS, HIDDEN, std);
    for (int apart = 0; apart < 8; apart++)
        for (int row = 0; row + apart < POSITIONS; row++)
            CHECK_NEAR(t, dot(table + row * HIDDEN, table + (row + apart) * HIDDEN),
                       dot(table, table + apart * HIDDEN), 1e-9);
    CHECK_NEAR(t, dot(table, table), HIDDEN * std * std, 1e-9);
    CHECK(t, dot(table, table + HIDDEN) < dot(table, table));
    CHECK(t, dot(table, table + 2 * HIDDEN) < dot(table, table + HIDDEN));
    CHECK(t, table[0] == 0);
    CHECK_NEAR(t, table[HIDDEN], std * sqrt(2) * sin(1), 1e-9);
    CHECK_NEAR(t, table[3 * HIDDEN + 5], std * sqrt(2) * cos(3 * pow(10000, -4. / HIDDEN)), 1e-9);
}

static const struct {
    zf_dtype dtype;
    double rounding;
    const char *master;
} precisions[] = {{ZF_F32, 0, ""}, {ZF_BF16, 1. / 256, "adamw.master/"}};

TEST_ONCE(first_values_go_into_parameters_and_master_weights)
{
    static const char positions[] = "bert.embeddings.position_embeddings.weight";
    static const char bias[] = "cls.predictions.bias";
    char err[256] = "", master[100];
    const bert_corpus_desc desc = {.encode = encode, .vocab_size = VOCAB - 1};
    const char text[] = "aab\nab\n\naab\nab\n\naab\nab\n\naab\nab\n\naab\nab\n";
    static float want[VOCAB * HIDDEN], have[VOCAB * HIDDEN], before[VOCAB * HIDDEN];
    double nats[VOCAB];
    bert_corpus *c = bert_corpus_parse(text, strlen(text), "text", &desc, err, sizeof err);
    CHECK_TEXT(t, err, "");
    CHECK(t, c);
    test_defer(t, free_corpus, c);
    bert_corpus_unigrams(c, nats);
    CHECK_NEAR(t, nats[5], -log(10. / (15 + VOCAB - 1)), 1e-12); /* 3 documents of a, a, b, a, b */
    CHECK_NEAR(t, nats[6], -log(7. / (15 + VOCAB - 1)), 1e-12);
    CHECK_NEAR(t, nats[7], -log(1. / (15 + VOCAB - 1)), 1e-12);
    for (size_t k = 0; k < sizeof precisions / sizeof *precisions; k++) {
        static session sessions[2]; /* outlive what the test defers */
        session *s = &sessions[k];
        masked_options own = {.sinusoids = 0};
        const settings o = {.own = &own};
        const dataset d = {.corpus = c};
        zf_error error = {ZF_OK, ""};
        bert_config config;
        CHECK(t, open_session(t, s, &config, precisions[k].dtype));
        OK(t, read_f32(s, positions, before, POSITIONS * HIDDEN), "positions");
        CHECK(t, bert_first_values(s, &o, &config, &d,
                                   &error)); /* as drawn, when nothing is asked for */
        OK(t, read_f32(s, positions, have, POSITIONS * HIDDEN), "positions");
        CHECK(t, !memcmp(have, before, sizeof(float) * POSITIONS * HIDDEN));

        own.sinusoids = own.unigrams = 1;
        CHECK(t, bert_first_values(s, &o, &config, &d, &error));
        bert_sinusoids(want, POSITIONS, HIDDEN, config.std);
        OK(t, read_f32(s, positions, have, POSITIONS * HIDDEN), "positions");
        for (int i = 0; i < POSITIONS * HIDDEN; i++)
            CHECK_NEAR(t, have[i], want[i], precisions[k].rounding * fabs(want[i]));
        snprintf(master, sizeof master, "%s%s", precisions[k].master, positions);
        OK(t, read_f32(s, master, have, POSITIONS * HIDDEN), "positions");
        CHECK(t, !memcmp(have, want, sizeof(float) * POSITIONS * HIDDEN));

        snprintf(master, sizeof master, "%s%s", precisions[k].master, bias);
        OK(t, read_f32(s, master, have, VOCAB), "bias");
        for (int id = 0; id < VOCAB; id++) /* one token of the model is not in the corpus' */
            CHECK_NEAR(t, have[id], -nats[id < VOCAB - 1 ? id : 0], 1e-6);
    }
}
