/* Reward models against transformers (tests/golden/reward/make.py), and what is refused of their
 * folders. */
#include "../support/golden.h"
#include "../support/words.h"

#include "../../zeroflow_llm.h"
#include "../../examples/frame/commands/frame.h"
#include "../../examples/frame/model/decoder.h"
#include "../../examples/frame/score/reward.h"
#include "../../examples/frame/score/score_batch.h"
#include "../../examples/frame/score/scorer.h"
#include "../../examples/gpt/model.h"
#include "../../examples/llm/model.h"
#include "../../examples/opt/model.h"

#define GOLDEN "tests/golden/reward/"

enum { PAIRS = 3, TOKENS = 9, STEPS = 20 };
static const float center = 0.02f;

typedef struct scored {
    const char *name;
    const sample_model *sample;
} scored;
static const scored cases[] = {{"llama", &llm_sample},
                               {"qwen2", &llm_sample},
                               {"qwen3", &llm_sample},
                               {"gpt2", &gpt_sample},
                               {"opt", &opt_sample}};
enum { CASES = sizeof cases / sizeof *cases };

static const char *folder_of(const scored *of)
{
    static _Thread_local char path[100];
    snprintf(path, sizeof path, GOLDEN "%s", of->name);
    return path;
}

static void free_batch(void *b) { score_batch_free(b); }
static void close_session(void *s) { session_close(s); }
static void close_scorer(void *r) { scorer_close(r); }

/* ------------------------------------------------------------------------------------- texts */

typedef struct texts {
    int32_t ids[2 * PAIRS][TOKENS];
    int64_t counts[2 * PAIRS];
    double margin[PAIRS];
} texts;

static bool read_texts(test *t, texts *out)
{
    zf_safetensors *file = open_file(t, GOLDEN "pairs.safetensors");
    int64_t count = 0, also = 0;
    double *ids = file ? values_of(file, "ids", &count) : NULL,
           *margin = file ? values_of(file, "margin", &also) : NULL;
    const bool good = ids && margin && count == 2 * PAIRS * TOKENS && also == PAIRS;
    for (int row = 0; good && row < 2 * PAIRS; row++)
        for (int64_t i = out->counts[row] = 0; i < TOKENS && ids[row * TOKENS + i] >= 0; i++)
            out->ids[row][out->counts[row]++] = (int32_t)ids[row * TOKENS + i];
    for (int p = 0; good && p < PAIRS; p++) out->margin[p] = margin[p];
    free(ids), free(margin);
    return good;
}

/* The pairs of the file, and so many that are not there. */
static bool make_batch(test *t, score_batch *b, int64_t count, bool positions, int32_t padding)
{
    texts of;
    zf_error error = {ZF_OK, ""};
    if (!read_texts(t, &of)) return false;
    if (!score_batch_new(b, count, TOKENS, positions, &error))
        return test_unwind(t, __FILE__, __LINE__, "batch", error.status, error.text), false;
    test_defer(t, free_batch, b);
    b->padding = padding, b->center = positions ? 0 : center, b->pairs.filled = PAIRS;
    for (int64_t row = 0; row < 2 * count; row++) {
        const bool there = row < 2 * PAIRS;
        b->pairs.lengths[row] = there ? (int32_t)of.counts[row] : 0;
        for (int64_t i = 0; there && i < of.counts[row]; i++)
            b->pairs.ids[row * TOKENS + i] = of.ids[row][i];
        if (there) b->margin[row / 2] = (float)of.margin[row / 2];
    }
    score_batch_finish(b);
    return true;
}

/* ------------------------------------------------------------------------------------- goldens */

/* The model of a case, with the objective of reward models. */
static sample_model model_of(const scored *of)
{
    sample_model m = *of->sample;
    m.objective = &reward_objective;
    return m;
}

static bool open_case(test *t, const scored *of, session *s, session_desc *d)
{
    static zf_config_any config; /* outlive what the test defers */
    static sample_model model;
    zf_error error = {ZF_OK, ""};
    zf_weights_report report = {.fresh = 0};
    bool good = session_config(of->sample, folder_of(of), NULL, &config, &error) &&
                zf_config_scores(of->sample->config(), &config);
    model = model_of(of);
    d->sample = &model, d->config = &config, d->threads = 1;
    good = good && session_open(s, d, &error);
    if (good) {
        test_defer(t, close_session, s);
        good = session_take(s, folder_of(of), &report, &error) && !report.fresh && !report.unused;
    }
    if (!good) test_unwind(t, __FILE__, __LINE__, of->name, error.status, error.text);
    return good;
}

static zf_safetensors *open_expected(test *t, const scored *of)
{
    char path[140];
    snprintf(path, sizeof path, "%s/expected.safetensors", folder_of(of));
    return open_file(t, path);
}

static double number_of(zf_safetensors *file, const char *name)
{
    int64_t count = 0;
    double *value = file ? values_of(file, name, &count) : NULL, number = value ? *value : NAN;
    free(value);
    return number;
}

static sample_shape shape_of(int64_t count, bool positions)
{
    return (sample_shape){.batch = count,
                          .sequence = TOKENS,
                          .predictions = count,
                          .rows = positions ? SAMPLE_PADDED : SAMPLE_FULL};
}

/* The normalised squared error of a gradient. The two sides of a pair cancel in that of a bias after the
 * last norm, so an error of 1e-7 is none. */
static double error_between(zf_safetensors *own, const char *name, zf_safetensors *golden,
                            const char *golden_name)
{
    int64_t count = 0, of_golden = 0;
    double *x = values_of(own, name, &count), *y = values_of(golden, golden_name, &of_golden), off = 0,
           result = INFINITY;
    for (int64_t i = 0; x && y && count == of_golden && i < count; i++)
        off += (x[i] - y[i]) * (x[i] - y[i]);
    if (x && y && count == of_golden) result = fmax(0, off - 1e-14 * (double)count) / (square_sum(y, count) + 1e-30);
    free(x), free(y);
    return result;
}

/* The loss, and the gradient of every parameter. */
static void check_gradients(test *t, const scored *of, bool positions, const char *no_fuse)
{
    static session s; /* outlive what the test defers */
    static score_batch b;
    const char *path = test_path("scores-gradients.safetensors");
    const float lr = 0;
    session_desc d = {.purpose = SAMPLE_TRAIN,
                      .shape = shape_of(PAIRS, positions),
                      .training = {.keep_gradients = true, .fuse.without = no_fuse}};
    zf_error error = {ZF_OK, ""};
    zf_safetensors *golden = open_expected(t, of), *own;
    const double loss = number_of(golden, positions ? "positions" : "loss");
    if (!golden || !make_batch(t, &b, PAIRS, positions, 0) || !open_case(t, of, &s, &d)) return;
    OK(t, session_feed(&s, &b, false), zf_program_error(s.program));
    OK(t, zf_write(s.program, s.lr, &lr, sizeof lr), zf_program_error(s.program));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    CHECK_NEAR(t, session_scalar(&s, "loss"), loss, 1e-6 * loss);
    CHECK(t, zf_exchange_export(of->sample->exchange(), s.program, s.graph, path, true, ZF_F32, &error));
    CHECK(t, (own = open_file(t, path)) != NULL);
    for (int32_t i = 0; i < zf_param_count(s.graph); i++) {
        const char *name = zf_tensor_name(zf_param_at(s.graph, i));
        char golden_name[200], text[300];
        double off;
        snprintf(golden_name, sizeof golden_name, "%s%s", positions ? "positions/" : "", name);
        off = error_between(own, name, golden, golden_name);
        if (off <= 1e-8) continue;
        snprintf(text, sizeof text, "%s: %s is off by %g", of->name, golden_name, off);
        test_fail(t, __FILE__, __LINE__, "a gradient is that of torch", text);
    }
    session_close(&s); /* the next one may have these places */
    score_batch_free(&b);
}

TEST_ONCE(scores_pair_loss_is_that_of_torch)
{
    for (int k = 0; k < CASES && !t->failed; k++) check_gradients(t, &cases[k], false, NULL);
}

TEST_ONCE(scores_pair_loss_without_fusion) { check_gradients(t, &cases[0], false, "all"); }

TEST_ONCE(scores_loss_of_positions_is_that_of_deepspeed_chat)
{
    for (int k = 0; k < CASES && !t->failed; k++) check_gradients(t, &cases[k], true, NULL);
}

/* Twenty steps of AdamW, in parts, some of which have pairs that are not there. */
static void check_steps(test *t, const scored *of, int64_t rows, int64_t micro_batches)
{
    static session s; /* outlive what the test defers */
    static score_batch b;
    const float lr = 1e-3f;
    session_desc d = {.purpose = SAMPLE_TRAIN,
                      .shape = shape_of(rows / micro_batches, false),
                      .training = {.adamw = {.weight_decay = 0.1},
                                   .clip = 1,
                                   .zero = {.micro_batches = micro_batches}}};
    zf_safetensors *golden = open_expected(t, of);
    int64_t count = 0;
    double *losses = golden ? values_of(golden, "losses", &count) : NULL;
    if (losses) test_defer(t, free, losses);
    if (!losses || !make_batch(t, &b, rows, false, 0) || !open_case(t, of, &s, &d)) return;
    CHECK(t, count == STEPS + 1);
    OK(t, zf_write(s.program, s.lr, &lr, sizeof lr), zf_program_error(s.program));
    for (int k = 0; k < STEPS; k++) {
        OK(t, session_feed(&s, &b, false), zf_program_error(s.program));
        OK(t, zf_step(s.program), zf_program_error(s.program));
        CHECK_NEAR(t, session_scalar(&s, "loss"), losses[k], 1e-5 * losses[k]);
    }
    CHECK_NEAR(t, session_scalar(&s, "accurate"), 3, 0);
    session_close(&s); /* the next one may have these places */
    score_batch_free(&b);
}

TEST_ONCE(scores_steps_are_those_of_torch)
{
    for (int k = 0; k < CASES && !t->failed; k++) check_steps(t, &cases[k], PAIRS, 1);
}

TEST_ONCE(scores_steps_in_parts_are_those_of_torch) { check_steps(t, &cases[0], 6, 3); }

/* Scores, at the last token of each text: one is the end token, which pads as well, and one text has
 * it inside. Texts of a step, and what is after their ends, change no bit. */
static void check_scores(test *t, const scored *of)
{
    static scorer r; /* outlives what the test defers */
    static texts all;
    double first[2 * PAIRS], again[2 * PAIRS], *wanted, most = 0;
    const int32_t *ids[2 * PAIRS];
    int64_t count = 0;
    zf_error error = {ZF_OK, ""};
    zf_safetensors *golden = open_expected(t, of);
    scorer_desc d = {
        .sample = of->sample, .folder = folder_of(of), .texts = 4, .tokens = TOKENS, .threads = 1};
    wanted = golden ? values_of(golden, "scores", &count) : NULL;
    if (wanted) test_defer(t, free, wanted);
    if (!wanted || !read_texts(t, &all)) return;
    for (int i = 0; i < 2 * PAIRS; i++) ids[i] = all.ids[i], most = fmax(most, fabs(wanted[i]));
    NEED(t, scorer_open(&r, &d, &error), &error);
    test_defer(t, close_scorer, &r);
    NEED(t, scorer_run(&r, ids, all.counts, 2 * PAIRS, first, &error), &error);
    for (int i = 0; i < 2 * PAIRS; i++) CHECK_NEAR(t, first[i], wanted[i], 1e-5 * most);
    for (int i = 0; i < 2 * PAIRS; i++)
        NEED(t, scorer_run(&r, &ids[i], &all.counts[i], 1, &again[i], &error), &error);
    CHECK(t, !memcmp(first, again, sizeof first));
    scorer_close(&r);
}

TEST_ONCE(scores_are_those_of_transformers)
{
    for (int k = 0; k < CASES && !t->failed; k++) check_scores(t, &cases[k]);
}

/* An adapter that PEFT has saved for a task of this kind names its base, and has the head; it lists
 * another module to save, "classifier", which no model of this family has. */
TEST_ONCE(scores_of_an_adapter_are_those_of_peft)
{
    static const scored adapter = {"adapter", &llm_sample};
    check_scores(t, &adapter);
}

/* The ids after a text's end change no bit of loss and gradients. */
TEST_ONCE(scores_padding_does_not_matter)
{
    static session s[2]; /* outlive what the test defers */
    static score_batch b[2];
    static float row[2][64 * 37];
    const float lr = 0;
    for (int k = 0; k < 2; k++) {
        session_desc d = {.purpose = SAMPLE_TRAIN,
                          .shape = shape_of(PAIRS, false),
                          .training = {.keep_gradients = true}};
        if (!make_batch(t, &b[k], PAIRS, false, k ? 36 : 2) || !open_case(t, &cases[0], &s[k], &d)) return;
        OK(t, session_feed(&s[k], &b[k], false), zf_program_error(s[k].program));
        OK(t, zf_write(s[k].program, s[k].lr, &lr, sizeof lr), zf_program_error(s[k].program));
        OK(t, zf_step(s[k].program), zf_program_error(s[k].program));
    }
    CHECK(t, session_scalar(&s[0], "loss") == session_scalar(&s[1], "loss"));
    for (int32_t i = 0; i < zf_param_count(s[0].graph); i++) {
        char name[200];
        for (int k = 0; k < 2; k++) {
            zf_tensor gradient;
            snprintf(name, sizeof name, "gradient/%s", zf_tensor_name(zf_param_at(s[k].graph, i)));
            gradient = zf_graph_find(s[k].graph, name);
            CHECK(t, zf_valid(gradient) && zf_tensor_bytes(gradient) <= sizeof row[k]);
            OK(t, zf_read(s[k].program, gradient, row[k], zf_tensor_bytes(gradient)),
               zf_program_error(s[k].program));
            if (k) CHECK(t, !memcmp(row[0], row[1], zf_tensor_bytes(gradient)));
        }
    }
}

/* ------------------------------------------------------------------------------------ refusals */

#define SIZES                                                                                      \
    "{\"vocab_size\": 37, \"hidden_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": " \
    "4,\n \"num_key_value_heads\": 2, \"intermediate_size\": 20, \"max_position_embeddings\": 64, "

static bool load_config(const char *text, zf_causal_config *c, zf_error *error)
{
    const char *path = test_path("scores-config.json");
    FILE *file = fopen(path, "wb");
    bool good = file && fputs(text, file) >= 0;
    if (file) good = !fclose(file) && good;
    *error = (zf_error){ZF_OK, ""};
    return good && llm_config_load(path, c, error);
}

/* A score is one label; transformers has two where the file says nothing. */
TEST_ONCE(scores_configurations)
{
    static const struct {
        const char *rest, *problem; /* NULL: none */
    } all[] = {
        {"\"architectures\": [\"LlamaForSequenceClassification\"], \"num_labels\": 1}", NULL},
        {"\"architectures\": [\"LlamaForSequenceClassification\"], \"id2label\": {\"0\": \"r\"}}", NULL},
        {"\"architectures\": [\"LlamaForSequenceClassification\"]}", "has 2 labels"},
        {"\"architectures\": [\"LlamaForSequenceClassification\"], \"num_labels\": 3}", "has 3 labels"},
        {"\"architectures\": [\"LlamaForSequenceClassification\"], \"num_labels\": 1, \"id2label\": "
         "{\"0\": \"a\", \"1\": \"b\"}}",
         "has 2 labels"},
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        char text[700];
        zf_causal_config c;
        zf_error error;
        snprintf(text, sizeof text, SIZES "%s", all[k].rest);
        if (load_config(text, &c, &error)) CHECK(t, !all[k].problem && c.scores == 1);
        else if (!all[k].problem || !strstr(error.text, all[k].problem))
            test_unwind(t, __FILE__, __LINE__, all[k].rest, error.status, error.text);
        if (t->failed) return;
    }
}

/* The configuration is written as transformers reads it, and read back. */
TEST_ONCE(scores_configurations_are_written)
{
    static const char *const architectures[] = {
        "\"LlamaForSequenceClassification\"", "\"Qwen2ForSequenceClassification\"",
        "\"Qwen3ForSequenceClassification\"", "\"GPT2ForSequenceClassification\"",
        "\"OPTForSequenceClassification\""};
    for (int k = 0; k < CASES; k++) {
        const zf_config_table *table = cases[k].sample->config();
        zf_config_any c, again;
        zf_error error = {ZF_OK, ""};
        zf_json_writer *w;
        const char *text;
        NEED(t, zf_config_load(table, folder_of(&cases[k]), &c, &error), &error);
        w = zf_config_json(table, &c);
        test_defer(t, (test_cleanup *)zf_json_writer_free, w);
        NEED(t, (text = zf_json_text(w, NULL, &error)), &error);
        CHECK(t, strstr(text, architectures[k]) && strstr(text, "\"LABEL_0\""));
        if (k >= 3) continue;
        (void)load_config(text, (zf_causal_config *)(void *)&again, &error);
        CHECK_TEXT(t, error.text, "");
        CHECK(t, !memcmp(&c, &again, table->bytes));
    }
}

static bool refused(const zf_error *error, zf_status status, const char *part)
{
    return error->status == ZF_ERR_NOMEM || (error->status == status && strstr(error->text, part));
}

/* What is no reward model, or one of other ids, and texts that cannot be scored. */
TEST_ONCE(scores_scorer_refuses)
{
    static scorer r; /* outlives what the test defers */
    static const int32_t text[10] = {1, 36, 37}, *const whole = text, *const wrong = text + 2;
    scorer_desc d = {.sample = &llm_sample, .folder = "tests/golden/llm/llama2", .tokens = 9, .threads = 1};
    zf_error error = {ZF_OK, ""};
    int64_t count = 10;
    double score;
    CHECK(t, !scorer_open(&r, &d, &error) &&
                 refused(&error, ZF_ERR_MISMATCH, "llama2 is no reward model: it has no head that scores"));
    d.folder = GOLDEN "llama", error = (zf_error){ZF_OK, ""};
    NEED(t, scorer_open(&r, &d, &error), &error);
    test_defer(t, close_scorer, &r);
    CHECK(t, !scorer_run(&r, &whole, &count, 1, &score, &error) &&
                 refused(&error, ZF_ERR_LIMIT, "text 0 has 10 tokens; there is room for 1 to 9"));
    count = 0;
    CHECK(t, !scorer_run(&r, &whole, &count, 1, &score, &error) && refused(&error, ZF_ERR_LIMIT, "0 tokens"));
    count = 1;
    CHECK(t, !scorer_run(&r, &wrong, &count, 1, &score, &error) &&
                 refused(&error, ZF_ERR_ARGUMENT, "text 0: id 37 is not one of the model's 37"));
    CHECK(t, !scorer_fits(&r, 36, GOLDEN "llama", &error) &&
                 refused(&error, ZF_ERR_MISMATCH, "of another vocabulary: it has 37 ids, the other model 36"));
    error = (zf_error){ZF_OK, ""};
    CHECK(t, scorer_fits(&r, 37, GOLDEN "llama", &error));
    scorer_close(&r);
}

/* It predicts no token. */
TEST_ONCE(scores_models_do_not_generate)
{
    decoder d;
    zf_causal_config config;
    zf_error error = {ZF_OK, ""};
    session_desc desc = {.sample = &llm_sample, .config = &config, .threads = 1};
    NEED(t, session_config(&llm_sample, GOLDEN "llama", NULL, &config, &error), &error);
    CHECK(t, !decoder_open(&d, &(decoder_desc){.texts = 1, .context = 8}, &desc, GOLDEN "llama", 0, &error) &&
                 refused(&error, ZF_ERR_MISMATCH, "llama is a reward model: it scores texts"));
}

/* -------------------------------------------------------------------------------- the commands */

static int reward(int argc, char **argv) { return reward_command(&llm_sample, argc, argv); }
static int score(int argc, char **argv) { return score_command(&llm_sample, argc, argv); }
static int export(int argc, char **argv) { return export_command(&llm_sample, argc, argv); }

static const command commands[] = {
    {"reward", "", reward}, {"score", "", score}, {"export", "", export}, {NULL, NULL, NULL}};

static int run_line(const char *line) { return run_words(commands, line); }

#define TRAIN                                                                                      \
    "reward --model docs/data/llama.json --tokenizer docs/data --data docs/data/pairs.jsonl --seq " \
    "20 --batch 4 --lr 0.01 --schedule constant --precision f32 --center 0.01 --quiet "

/* Ranks, stages, prefetch, offload, recomputing and an interruption leave the same bits. */
static void check_bits(test *t, const char *loss)
{
    static const char *const ways[] = {
        "--micro-batches 2", "--ranks 2 --zero 3 --prefetch 3000 --bucket 1000",
        "--micro-batches 2 --recompute layers --offload optimizer=host,parameters=host",
        "--ranks 2 --zero 2 --steps 2", "--ranks 2 --zero 1 --prefetch 3000"};
    char line[1000], first[300], dump[300], saved[300];
    snprintf(first, sizeof first, "%s", test_path("scores-first.safetensors"));
    snprintf(dump, sizeof dump, "%s", test_path("scores.safetensors"));
    snprintf(saved, sizeof saved, "%s", test_path("scores-saved"));
    for (int k = 0; k < 5; k++) {
        const bool half = k == 3, resumes = k == 4;
        int n = snprintf(line, sizeof line, TRAIN "%s --steps 4 %s ", loss, ways[k]);
        if (half || resumes)
            n += snprintf(line + n, sizeof line - (size_t)n, "--save %s --overwrite ", saved);
        if (resumes) n += snprintf(line + n, sizeof line - (size_t)n, "--load %s ", saved);
        if (!half) snprintf(line + n, sizeof line - (size_t)n, "--dump %s", k ? dump : first);
        CHECK(t, run_line(line) == EXIT_GOOD);
        if (k && !half && !same_files(first, dump))
            test_fail(t, __FILE__, __LINE__, "the same parameters", ways[k]);
    }
}

TEST_ONCE(scores_training_keeps_the_bits) { check_bits(t, ""); }
TEST_ONCE(scores_training_of_positions_keeps_the_bits) { check_bits(t, "--positions"); }

static bool read_number(const char *path, const char *key, double *out)
{
    zf_error error = {ZF_OK, ""};
    zf_json *json = zf_json_read(path, NULL, &error);
    const bool good = json && !zf_json_to_double(zf_json_require(json, key, &error), -1e9, 1e9, out, &error);
    zf_json_free(json);
    return good;
}

/* The mean score of chosen held-out answers, by the model of a folder. */
static double mean_of(test *t, const char *folder)
{
    static scorer r; /* outlives what the test defers */
    pairs p;
    zf_error error = {ZF_OK, ""};
    zf_wordpiece *words = zf_wordpiece_open("docs/data/vocab.txt", NULL, &error);
    const zf_examples_desc d = {.words = words, .end = words ? zf_wordpiece_id(words, "[SEP]") : 0, .sequence = 20};
    const scorer_desc of = {.sample = &llm_sample, .folder = folder, .tokens = 20, .threads = 1};
    double sum = 0;
    bool good = words && pairs_load(&p, "docs/data/pairs.jsonl", &d, &error);
    zf_wordpiece_free(words);
    if (!good || !scorer_open(&r, &of, &error)) {
        test_fail(t, __FILE__, __LINE__, folder, error.text);
        return NAN;
    }
    for (int64_t k = 0; k < p.held_out; k++) {
        const int64_t text = pairs_text(&p, k), count = p.at[text + 1] - p.at[text];
        const int32_t *ids = p.ids + p.at[text];
        double score_of = NAN;
        if (!scorer_run(&r, &ids, &count, 1, &score_of, &error))
            test_fail(t, __FILE__, __LINE__, folder, error.text);
        sum += score_of / (double)p.held_out;
    }
    pairs_free(&p);
    scorer_close(&r);
    return sum;
}

/* A checkpoint, and what is exported of it, score as the run did at its end. */
TEST_ONCE(scores_are_those_of_the_run_that_saved)
{
    char line[1000], saved[300], exported[300], about[400];
    double mean = 0, deviation = 0;
    snprintf(saved, sizeof saved, "%s", test_path("scores-run"));
    snprintf(exported, sizeof exported, "%s", test_path("scores-exported"));
    snprintf(line, sizeof line, TRAIN "--steps 4 --save %s --overwrite", saved);
    CHECK(t, run_line(line) == EXIT_GOOD);
    snprintf(line, sizeof line, "export --load %s %s", saved, exported);
    CHECK(t, run_line(line) == EXIT_GOOD);
    for (int k = 0; k < 2; k++) {
        snprintf(about, sizeof about, "%s/reward.json", k ? exported : saved);
        CHECK(t, read_number(about, "mean", &mean) && read_number(about, "deviation", &deviation));
        CHECK_NEAR(t, mean_of(t, k ? exported : saved), mean, 1e-5 * fabs(mean));
        CHECK(t, deviation > 0);
    }
}

/* First values of the head: a deviation of 1 / (H + 1). */
TEST(scores_head_begins_small)
{
    enum { WIDTH = 4000 };
    static float w[WIDTH];
    const sample_shape rows = {.batch = 1, .sequence = 1};
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_program *p;
    double sum = 0, squares = 0;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    score_end(zf_input(g, "x", ZF_F32, ZF_SHAPE(1, WIDTH)), &rows, SAMPLE_ANSWER);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    p = zf_compile(g, &(zf_compile_desc){.seed = 7, .evaluate = true});
    OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_read(p, zf_graph_find(g, "score.weight"), w, sizeof w), zf_program_error(p));
    for (int i = 0; i < WIDTH; i++) sum += (double)w[i], squares += (double)w[i] * (double)w[i];
    CHECK_NEAR(t, sum / WIDTH, 0, 0.1 / (WIDTH + 1));
    CHECK_NEAR(t, sqrt(squares / WIDTH) * (WIDTH + 1), 1, 0.05);
}

/* The value of a token is the score of the text up to the token before it, no other slice of it. */
TEST_ONCE(scores_are_values_of_the_next_token)
{
    enum { COUNT = 6, GIVEN = 3 };
    static const zf_value_desc loss = {.clip = 0.2};
    static const int32_t ids[TOKENS] = {5, 9, 30, 2, 17, 8};
    static session s; /* outlive what the test defers */
    static scorer r;
    session_desc d = {.purpose = SAMPLE_EVALUATE, .shape = {.batch = 2, .sequence = TOKENS, .value = &loss}};
    zf_error error = {ZF_OK, ""};
    int32_t rows[2][TOKENS] = {{0}}, labels[2][TOKENS];
    float values[2][TOKENS];
    if (!open_case(t, &cases[0], &s, &d)) return;
    if (!scorer_open(&r, &(scorer_desc){.sample = &llm_sample, .folder = GOLDEN "llama", .tokens = TOKENS}, &error))
        OK(t, error.status, error.text);
    test_defer(t, close_scorer, &r);
    for (int k = 0; k < TOKENS; k++) {
        rows[1][k] = k < COUNT ? ids[k] : 36;
        labels[0][k] = labels[1][k] = -100;
        if (k >= GIVEN - 1 && k + 1 < COUNT) labels[1][k] = ids[k + 1];
    }
    OK(t, session_write(&s, "input_ids", rows, sizeof rows), zf_program_error(s.program));
    OK(t, session_write(&s, "labels", labels, sizeof labels), zf_program_error(s.program));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    OK(t, zf_read(s.program, zf_graph_find(s.graph, "values"), values, sizeof values), zf_program_error(s.program));
    for (int k = 0; k < TOKENS; k++) {
        const int32_t *const text = ids;
        const int64_t count = k + 1;
        double score = 0;
        if (labels[1][k] == -100) continue;
        if (!scorer_run(&r, &text, &count, 1, &score, &error)) OK(t, error.status, error.text);
        CHECK_NEAR(t, (double)values[1][k], score, 1e-6);
        CHECK(t, fabs((double)values[1][k] - (double)values[1][k + 1]) > 1e-3);
    }
}
