/* Training on pairs of answers (dpo): TRL's losses (tests/golden/dpo/make.py), what a run begins with, the
 * same bits on any ranks and after an interruption, what is refused. */
#define _POSIX_C_SOURCE 200809L
#include "../support/golden.h"
#include "../support/words.h"

#include "../../zeroflow_llm.h"
#include "../../examples/frame/preference/preference.h"
#include "../../examples/gpt/model.h"
#include "../../examples/llm/model.h"
#include "../../examples/opt/model.h"

#include <sys/stat.h>

#define MODEL   "tests/golden/llm/llama3"
#define ADAPTER "tests/golden/lora/qv"
#define GOLDEN  "tests/golden/dpo/"

enum { STEPS = 20, COLUMNS = 5 };

static const sample_model *sample = &llm_sample;
static const char *model = MODEL;

static int dpo(int argc, char **argv) { return preference_command(sample, argc, argv); }
static const command commands[] = {{"dpo", "", dpo}, {NULL, NULL, NULL}};

/* Runs dpo on a file of pairs, in f32, with words between spaces. */
static int run_on(const char *data, const char *options)
{
    char line[1200];
    snprintf(line, sizeof line,
             "dpo --model %s --tokenizer tests/golden/dpo --data %s --batch 8 --warmup 0 "
             "--schedule constant --quiet --seq 64 %s%s%s",
             model, data, options, strstr(options, "--precision") ? "" : " --precision f32",
             strstr(options, "--save") ? " --overwrite" : "");
    return run_words(commands, line);
}

static int run(const char *options) { return run_on(GOLDEN "pairs.jsonl", options); }

/* The loss, rewards, accuracy and margin of steps, from a log; how many there are. */
static int read_log(const char *path, double rows[][COLUMNS], int most)
{
    FILE *file = fopen(path, "r");
    char line[400];
    int n = 0;
    if (!file) return 0;
    while (n < most && fgets(line, sizeof line, file)) {
        double *r = rows[n];
        n += sscanf(line, "%*d,%lf,%lf,%lf,%lf,%lf", r, r + 1, r + 2, r + 3, r + 4) == COLUMNS;
    }
    fclose(file);
    return n;
}

/* ----------------------------------------------------------------------------------- by TRL */

/* The trained tensors of a file that the golden one has as CASE.NAME, within 1e-8 of normalised squared
 * error. */
static void check_tensors(test *t, const char *path, const char *name, zf_safetensors *golden)
{
    zf_safetensors *own = open_file(t, path);
    char full[400];
    CHECK(t, own && zf_safetensors_count(own) > 0);
    for (int32_t k = 0; k < zf_safetensors_count(own) && !t->failed; k++) {
        const char *tensor = zf_safetensors_at(own, k)->name;
        int64_t count, mine;
        double *x = values_of(own, tensor, &mine), *y, off = 0;
        snprintf(full, sizeof full, "%s.%s", name, tensor);
        y = values_of(golden, full, &count);
        for (int64_t i = 0; x && y && mine == count && i < count; i++)
            off += (x[i] - y[i]) * (x[i] - y[i]);
        if (!x || !y || mine != count || off > 1e-8 * square_sum(y, count))
            test_fail(t, __FILE__, __LINE__, "a trained tensor is that of TRL", full);
        free(x);
        free(y);
    }
}

/* Twenty steps: losses within 1e-5 of TRL's, rewards where `rewards` says so. */
static void check_case(test *t, const char *name, const char *options, bool rewards)
{
    char line[900], log[300], key[60];
    double rows[STEPS][COLUMNS], *losses, *shown;
    int64_t count, numbers;
    zf_safetensors *golden = open_file(t, GOLDEN "trained.safetensors");
    snprintf(log, sizeof log, "%s", test_path("preference.csv"));
    remove(log);
    snprintf(line, sizeof line, "%s --steps 20 --eval-batches 0 --log %s", options, log);
    CHECK(t, golden && run(line) == EXIT_GOOD);
    CHECK(t, read_log(log, rows, STEPS) == STEPS);
    snprintf(key, sizeof key, "%s.losses", name);
    losses = values_of(golden, key, &count);
    test_defer(t, free, losses);
    snprintf(key, sizeof key, "%s.rewards", name);
    shown = values_of(golden, key, &numbers);
    test_defer(t, free, shown);
    CHECK(t, losses && count == STEPS);
    CHECK(t, !rewards || (shown && numbers == STEPS * (COLUMNS - 1)));
    for (int k = 0; k < STEPS; k++) {
        CHECK_NEAR(t, rows[k][0], losses[k], 1e-5 * losses[k]);
        for (int i = 1; rewards && i < COLUMNS; i++)
            CHECK_NEAR(t, rows[k][i], shown[k * (COLUMNS - 1) + i - 1], 2e-5);
    }
}

#define ADAPT "--adapter " ADAPTER " --lr 1e-2 "

TEST_ONCE(preference_of_an_adapter_is_that_of_trl)
{
    char options[500], tensors[400];
    zf_safetensors *golden = open_file(t, GOLDEN "trained.safetensors");
    snprintf(options, sizeof options, ADAPT "--save %s", test_path("preference"));
    check_case(t, "sigmoid", options, true);
    if (t->failed) return;
    snprintf(tensors, sizeof tensors, "%s", test_path("preference/adapter_model.safetensors"));
    check_tensors(t, tensors, "sigmoid", golden);
}

/* TRL's rewards are sums for these as well. */
TEST_ONCE(preference_losses_without_a_reference_are_those_of_the_papers)
{
    check_case(t, "orpo", ADAPT "--loss orpo --beta 0.3", false);
    if (!t->failed) check_case(t, "simpo", ADAPT "--loss simpo --beta 2 --gamma 0.7", false);
}

TEST_ONCE(preference_losses_are_those_of_trl)
{
    check_case(t, "ipo", ADAPT "--loss ipo", false);
    if (!t->failed) check_case(t, "hinge", ADAPT "--loss hinge", true);
    if (!t->failed) check_case(t, "robust", ADAPT "--loss robust --label-smoothing 0.2", true);
    if (!t->failed) check_case(t, "norm", ADAPT "--loss norm", false);
}

TEST_ONCE(preference_of_all_parameters_is_that_of_trl)
{
    char options[500], tensors[300];
    zf_safetensors *golden = open_file(t, GOLDEN "trained.safetensors");
    snprintf(tensors, sizeof tensors, "%s", test_path("preference.safetensors"));
    snprintf(options, sizeof options, "--lr 1e-3 --dump %s", tensors);
    check_case(t, "full", options, true);
    if (!t->failed) check_tensors(t, tensors, "full", golden);
}

TEST_ONCE(preference_of_every_family_is_that_of_trl)
{
    static const struct {
        const sample_model *sample;
        const char *name, *folder;
    } families[] = {{&llm_sample, "qwen2", "tests/golden/llm/qwen2"},
                    {&gpt_sample, "gpt2", "tests/golden/hf/gpt"},
                    {&opt_sample, "opt", "tests/golden/opt/before"}};
    for (int k = 0; k < 3 && !t->failed; k++) {
        sample = families[k].sample, model = families[k].folder;
        check_case(t, families[k].name, "--lr 1e-3 --seq 16", true);
    }
    sample = &llm_sample, model = MODEL;
}

/* ------------------------------------------------------------------------------- the first step */

/* The reference is the model before the first step: all pairs are even, to the last bit. */
TEST_ONCE(preference_begins_with_ln_2)
{
    static const char *const ways[] = {"--lora r=2",
                                       "--adapter " ADAPTER,
                                       "",
                                       "--adapter " ADAPTER " --precision bf16",
                                       "--lora r=2 --loss norm --recompute layers",
                                       "--ranks 2 --zero 3 --lora r=2 --batch 4",
                                       "--precision f16",
                                       "--loss robust --label-smoothing 0.3 --batch 1",
                                       "--micro-batches 4 --adapter " ADAPTER};
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        char line[600], log[300];
        double row[1][COLUMNS];
        snprintf(log, sizeof log, "%s", test_path("first.csv"));
        remove(log);
        snprintf(line, sizeof line, "%s --steps 1 --eval-batches 0 --log %s", ways[k], log);
        CHECK(t, run(line) == EXIT_GOOD && read_log(log, row, 1) == 1);
        for (int i = 1; i < COLUMNS; i++)
            if (row[0][i] != 0) test_fail(t, __FILE__, __LINE__, "nothing is preferred", ways[k]);
        if ((float)row[0][0] != (float)0.6931471805599453)
            test_fail(t, __FILE__, __LINE__, "the first loss is ln 2", ways[k]);
    }
}

/* Writes pairs: a line for each number, and with `wide` one that is longer than all others. */
static bool write_pairs(const char *path, const char *numbers, bool wide)
{
    static const char *const lines[] = {
        "{\"prompt\": \"cat\", \"chosen\": \"dog\", \"rejected\": \"e\"}",
        "{\"prompt\": \"q</s>q\", \"chosen\": \"rs</s>\", \"rejected\": \"rqrqrq\"}",
        "{\"prompt\": \"mnop\", \"chosen\": \"r\", \"rejected\": \"stuvwxy\"}",
        "{\"chosen\": \"hello\", \"rejected\": \"hi\"}"};
    FILE *file = fopen(path, "wb");
    if (!file) return false;
    for (; *numbers; numbers++) fprintf(file, "%s\n", lines[*numbers - '0']);
    if (wide)
        fprintf(file, "{\"prompt\": \"a\", \"chosen\": \"abcdefghijklmnopqrstuvwxyzabcdefg\", "
                      "\"rejected\": \"b\"}\n");
    return !fclose(file);
}

/* What a run keeps as log p of its pairs' tokens, to be freed. */
static float *reference_of(const char *numbers, bool wide, const char *options, size_t *bytes)
{
    char line[600], data[300];
    zf_text text = {.at = NULL};
    zf_error error = {ZF_OK, ""};
    snprintf(data, sizeof data, "%s", test_path("even.jsonl"));
    snprintf(line, sizeof line, "%s --steps 1 --eval-batches 0 --save %s", options,
             test_path("even"));
    if (!write_pairs(data, numbers, wide) || run_on(data, line) ||
        !zf_text_read(test_path("even/reference.f32"), &text, &error))
        return NULL;
    *bytes = text.count;
    return (float *)(void *)text.at;
}

/* Log p of a text has the same bits whatever fills its row, in any row, batch, part and order. */
TEST_ONCE(preference_of_a_text_depends_on_nothing_else)
{
    enum { TOKENS = 8 + 6 + 7 + 11 + 7 + 13 }; /* of the first three pairs */
    static const struct {
        const char *numbers, *options;
        bool wide;
    } ways[] = {{"0123", "--batch 4 --lora r=2", false},
                {"0123", "--batch 8 --lora r=2", true},
                {"0123", "--batch 4 --micro-batches 4 --lora r=2", false},
                {"0123", "--batch 4 --ranks 4 --zero 3 --lora r=2", true},
                {"0123", "--batch 2 --threads 2 --lora r=2", true},
                {"0123", "--batch 4", false}};
    float *first = NULL, *other, *turned;
    size_t bytes = 0, more = 0;
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        other = reference_of(ways[k].numbers, ways[k].wide, ways[k].options, &more);
        if (!k) first = other, bytes = more, test_defer(t, free, first);
        CHECK(t, other && more >= bytes && bytes > sizeof(float) * TOKENS);
        if (memcmp(first, other, bytes))
            test_fail(t, __FILE__, __LINE__, "the same log p", ways[k].options);
        if (k) free(other);
    }
    turned = reference_of("3012", true, "--batch 4 --lora r=2", &more);
    test_defer(t, free, turned);
    CHECK(t, turned && first[3] < 0 && more > bytes);
    CHECK(t, !memcmp(first, turned + bytes / sizeof *first - TOKENS, sizeof(float) * TOKENS));
}

/* -------------------------------------------------------------------------------- the same bits */

/* Ranks, stages, threads, prefetch, offload, recomputing and an interruption leave the same bits of
 * losses, rewards and what is trained. */
static void check_bits(test *t, const char *of, const char *saved_file)
{
    static const char *const ways[] = {
        "--micro-batches 4 --threads 1", "--ranks 2 --micro-batches 2 --threads 2",
        "--ranks 4 --zero 1", "--ranks 2 --micro-batches 2 --zero 2 --prefetch 3000 --bucket 1000",
        "--ranks 4 --zero 3 --prefetch 3000",
        "--micro-batches 4 --recompute layers --offload optimizer=host,parameters=host",
        "--ranks 2 --micro-batches 2 --zero 3 --offload optimizer=disk,parameters=disk",
        "--ranks 2 --micro-batches 2 --steps 2", "--ranks 4 --zero 3"};
    enum { WAYS = sizeof ways / sizeof *ways, HALF = WAYS - 2 };
    char line[1000], log[2][300], saved[2][300], disk[300];
    double rows[2][4][COLUMNS];
    snprintf(disk, sizeof disk, "%s", test_path("bits-disk"));
    mkdir(disk, 0700);
    for (int k = 0; k < WAYS; k++) {
        const int at = k > 0;
        int n;
        snprintf(log[at], sizeof log[at], "%s", test_path(at ? "bits-1.csv" : "bits-0.csv"));
        snprintf(saved[at], sizeof saved[at], "%s", test_path(at ? "bits-1" : "bits-0"));
        if (k != HALF + 1) remove(log[at]);
        n = snprintf(line, sizeof line, "%s --lr 1e-2 --steps 4 --eval-batches 1 %s --log %s --save %s",
                     of, ways[k], log[at], saved[at]);
        if (strstr(ways[k], "disk"))
            n += snprintf(line + n, sizeof line - (size_t)n, " --offload-dir %s", disk);
        if (k == HALF + 1) snprintf(line + n, sizeof line - (size_t)n, " --load %s", saved[at]);
        CHECK(t, run(line) == EXIT_GOOD);
        if (k == HALF) continue;
        CHECK(t, read_log(log[at], rows[at], 4) == 4);
        snprintf(saved[at] + strlen(saved[at]), 100, "/%s", saved_file);
        if (k && (memcmp(rows[0], rows[1], sizeof rows[0]) || !same_files(saved[0], saved[1])))
            test_fail(t, __FILE__, __LINE__, "the same bits", ways[k]);
    }
    CHECK(t, rows[0][3][0] != rows[0][0][0]);
}

TEST_ONCE(preference_keeps_the_bits_of_an_adapter)
{
    check_bits(t, "--adapter " ADAPTER, "adapter_model.safetensors");
}

TEST_ONCE(preference_keeps_the_bits_of_all_parameters)
{
    check_bits(t, "--batch 8", "reference.f32");
}

/* ---------------------------------------------------------------------------------- what is wrong */

TEST_ONCE(preference_refuses_what_it_cannot_compare)
{
    static const char *const lines[] = {
        "--lora r=2,dropout=0.1 --steps 1", "--dropout 0.1 --steps 1", "--alone --steps 1",
        "--adapter " ADAPTER " --lora r=2 --steps 1", "--adapter tests/golden/llm/llama3 --steps 1",
        "--loss hinge --label-smoothing 0.1 --steps 1", "--beta 0 --steps 1", "--seq 8 --steps 1",
        "--micro-batches 3 --steps 1"};
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++)
        if (run(lines[k]) == EXIT_GOOD)
            test_fail(t, __FILE__, __LINE__, "it is refused", lines[k]);
}
