/* The command grpo: what an iteration trains on, by its log. */
#include "../../examples/frame/experience/experience.h"
#include "../../examples/frame/options/command.h"
#include "../../examples/frame/policy/policy.h"
#include "../../examples/frame/ppo/ppo.h"
#include "../../examples/frame/rlhf/rlhf.h"
#include "../../examples/llm/model.h"
#include "../support/test.h"

static int grpo(int argc, char **argv) { return grpo_command(&llm_sample, argc, argv); }

static bool write_file(const char *name, const char *text)
{
    FILE *f = fopen(test_path(name), "wb");
    return f && fputs(text, f) >= 0 && !fclose(f);
}

/* A tokenizer of 37 characters, of which answers end with c. */
static bool write_inputs(void)
{
    char text[600];
    int n = snprintf(text, sizeof text,
                     "{\"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"merges\": [], "
                     "\"vocab\": {\"a\": 0");
    for (int k = 1; k < 37; k++)
        n += snprintf(text + n, sizeof text - (size_t)n, ", \"%c\": %d",
                      "abcdefghijklmnopqrstuvwxyz 0123456789#"[k], k);
    snprintf(text + n, sizeof text - (size_t)n, "}}}");
    return write_file("tokenizer.json", text) && write_file("tokenizer_config.json", "{}") &&
           write_file("grpo.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt\": \"xyz\"}\n");
}

/* Runs 20 steps with an adapter, and reads the columns of the last. */
enum {
    LOSS,
    REWARD,
    DEVIATION,
    NO_SIGNAL,
    KL1,
    KL3,
    ENTROPY,
    LOW,
    HIGH,
    CLIPPED,
    LENGTH,
    ENDED,
    MISMATCH,
    COLUMNS
};
static bool run(test *t, const char *reward, const char *tokens, double first[COLUMNS],
                double last[COLUMNS])
{
    static const command commands[] = {{"grpo", "", grpo}, {NULL, NULL, NULL}};
    static char data[300], log[300], folder[300];
    char line[1000];
    char *argv[] = {(char *)"llm",         (char *)"grpo",
                    (char *)"--model",     (char *)"tests/golden/llm/llama2",
                    (char *)"--tokenizer", folder,
                    (char *)"--data",      data,
                    (char *)"--log",       log,
                    (char *)"--reward",    (char *)(uintptr_t)reward,
                    (char *)"--tokens",    (char *)(uintptr_t)tokens,
                    (char *)"--seq",       (char *)"12",
                    (char *)"--batch",     (char *)"16",
                    (char *)"--lr",        (char *)"2e-2",
                    (char *)"--steps",     (char *)"20",
                    (char *)"--lora",      (char *)"r=4",
                    (char *)"--quiet",     (char *)"--threads",
                    (char *)"1",           (char *)"--precision",
                    (char *)"bf16",        NULL};
    FILE *f;
    int64_t rows = 0;
    snprintf(data, sizeof data, "%s", test_path("grpo.jsonl"));
    snprintf(log, sizeof log, "%s", test_path("grpo.csv"));
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(data, '/') - data), data);
    if (!write_inputs() || command_main(&(command_program){"llm", commands},
                                        sizeof argv / sizeof *argv - 1, argv) != EXIT_GOOD)
        return test_fail(t, __FILE__, __LINE__, "grpo", "it failed"), false;
    f = fopen(log, "rb");
    while (f && fgets(line, sizeof line, f)) {
        char *at = strchr(line, ',');
        for (int k = 0; k < COLUMNS && at && rows; k++) last[k] = strtod(at + 1, &at);
        if (rows++ == 1) memcpy(first, last, COLUMNS * sizeof *first);
    }
    if (f) fclose(f);
    return rows == 21;
}

/* Short answers are wanted, so they end: the token that ends them is trained. Ratios are 1 in the
 * first pass over answers, in bf16 with an adapter too, and the reference is the base. */
TEST_ONCE(grpo_learns_to_end)
{
    double first[COLUMNS] = {0}, last[COLUMNS] = {0};
    CHECK(t, run(t, "-1*length", "6", first, last));
    CHECK(t, first[ENDED] < 0.5 && last[ENDED] > 0.9);
    CHECK(t, last[LENGTH] < first[LENGTH] - 2 && last[REWARD] > first[REWARD] + 0.3);
    CHECK_NEAR(t, last[REWARD], -last[LENGTH] / 6, 1e-6);
    CHECK(t, first[LOW] == 1 && first[HIGH] == 1 && last[LOW] == 1 && last[HIGH] == 1);
    CHECK(t, first[KL1] == 0 && first[KL3] == 0 && last[KL3] > 0.01);
    CHECK(t, first[MISMATCH] < 0.02 && last[MISMATCH] < 0.05);
    CHECK(t, first[ENTROPY] > 3 && first[ENTROPY] < 3.62); /* of 37 tokens at most ln 37 = 3.611 */
}

/* Rewards that are all equal teach nothing: no group has a signal, and no parameter moves. */
TEST_ONCE(grpo_equal_rewards_teach_nothing)
{
    double first[COLUMNS] = {0}, last[COLUMNS] = {0};
    CHECK(t, run(t, "exact:prompt", "6", first, last));
    CHECK(t, last[NO_SIGNAL] == 1 && last[DEVIATION] == 0 && last[LOSS] == 0 && last[KL3] == 0);
}

/* The first token of an answer is trained, by the log p after the prompt. */
TEST_ONCE(grpo_trains_the_first_token)
{
    double first[COLUMNS] = {0}, last[COLUMNS] = {0};
    CHECK(t, run(t, "cmd:sed 's/.*\"completion\": \"[a-m]\".*/1/; t; s/.*/0/'", "1", first, last));
    CHECK(t, last[KL3] > 0.001 && last[ENTROPY] > 1 && last[LENGTH] == 1);
}

static void close_experience(void *e) { experience_close(e); }
static void free_text(void *text) { zf_text_free(text); }

/* What a checkpoint amid the steps on an iteration has is read back, and other bytes are refused. */
TEST_ONCE(grpo_answers_are_kept)
{
    enum { ANSWERS = 4, SEQUENCE = 5, HEAD = 8 + 4 * 8 };
    static const policy_kind kind = {.usage = ""};
    static const policy_options own = {.answers = ANSWERS, .group = 2, .kind = &kind};
    static const zf_answer_desc how = {.vocab = 9};
    static const experience_desc about = {.o = &own, .sequence = SEQUENCE, .how = &how};
    static experience e; /* outlive what the test defers */
    static zf_text text;
    zf_error error = {ZF_OK, ""};
    bool good;
    text = (zf_text){.at = NULL};
    good = experience_new(&e, &about, &error);
    test_defer(t, close_experience, &e);
    test_defer(t, free_text, &text);
    OK(t, error.status, error.text);
    for (int k = 0; k < ANSWERS * SEQUENCE; k++)
        e.ids[k] = k % 9, e.labels[k] = k % 2 ? 8 : -100, e.sampled[k] = (float)k;
    e.reward[3] = 7, e.log.mismatch = 0.5;
    good = good && experience_keep(&e, 6, &text, &error);
    OK(t, error.status, error.text);
    memset(e.ids, 1, ANSWERS * SEQUENCE * sizeof *e.ids);
    e.labels[1] = 3, e.sampled[19] = 0, e.reward[3] = 0, e.log.mismatch = 0;
    CHECK(t, good && experience_take(&e, 6, &text, &error));
    CHECK(t, e.ids[17] == 8 && e.labels[1] == 8 && e.labels[2] == -100 && e.sampled[19] == 19);
    CHECK(t, e.reward[3] == 7 && e.log.mismatch == 0.5);
    CHECK(t, !experience_take(&e, 5, &text, &error));
    CHECK_TEXT(t, error.text,
               "it does not have the 4 answers of iteration 5 in rows of 5 tokens");
    text.count--;
    CHECK(t, !experience_take(&e, 6, &text, &error));
    text.count++, text.at[0] = 'Z';
    CHECK(t, !experience_take(&e, 6, &text, &error));
    text.at[0] = 'z', text.at[HEAD] = 9; /* the first id */
    CHECK(t, !experience_take(&e, 6, &text, &error));
    CHECK_TEXT(t, error.text, "its answers have tokens that the model does not have");
    text.at[HEAD] = -1;
    CHECK(t, !experience_take(&e, 6, &text, &error));
}

/* The commands with few steps, for allocations that are refused: all that a run opens, keeps and saves. */
static int ppo(int argc, char **argv) { return ppo_command(&llm_sample, argc, argv); }
static int rlhf(int argc, char **argv) { return rlhf_command(&llm_sample, argc, argv); }

static const char *in_folder(const char *name)
{
    static char paths[4][300];
    static int next;
    char *to = paths[next++ % 4];
    return snprintf(to, sizeof paths[0], "%s", test_path(name)), to;
}

/* Words of `line`, of which "@NAME" is a file of the test, and '_' in "'...'" a space. */
static bool run_line(test *t, const char *line)
{
    static const command commands[] = {{"ppo", "", ppo}, {"rlhf", "", rlhf}, {NULL, NULL, NULL}};
    static char words[60][400];
    char *argv[62] = {(char *)"llm"};
    int argc = 1;
    for (; *line && argc < 61; line += strspn(line, " ")) {
        const size_t bytes = strcspn(line, " ");
        char *word = argv[argc] = words[argc - 1];
        snprintf(word, sizeof words[0], "%.*s", (int)bytes, line);
        if (*word == '@') snprintf(word, sizeof words[0], "%s", in_folder(word + 1));
        if (*word == '\'')
            for (char *at = word; *at; at++)
                if (*at == '_' || *at == '\'') *at = ' ';
        argc++, line += bytes;
    }
    argv[argc] = NULL;
    return command_main(&(command_program){"llm", commands}, argc, argv) == EXIT_GOOD ||
           (test_fail(t, __FILE__, __LINE__, "the command", "it failed"), false);
}

#define SMALL "--model tests/golden/llm/llama2 --tokenizer @. --threads 1 --quiet --precision f32 --overwrite "

TEST_ONCE(ppo_commands_open_and_keep_everything)
{
    static const char *const ways[] = {
        "--lora r=2 --ema 0.9 --kl-target 0.1", "--critic tests/golden/reward/llama --critic-warmup 1"};
    CHECK(t, write_inputs() && write_file("some.txt", "ab cd ef gh\n\nij kl mn op qr\n"));
    for (int k = 0; k < 2; k++) {
        char line[700];
        snprintf(line, sizeof line,
                 "ppo " SMALL "--data @grpo.jsonl --reward length --tokens 2 --seq 8 --batch 2 --answers 4 "
                 "--steps 3 --ptx @some.txt --ptx-rows 2 --held-out @grpo.jsonl --samples @samples "
                 "--save @ppo --save-every 1 %s",
                 ways[k]);
        if (!run_line(t, line)) return;
    }
}

TEST_ONCE(rlhf_command_opens_and_keeps_everything)
{
    static const char *const done[] = {"three/sft.done", "three/reward.done", "three/ppo.done"};
    char text[1200];
    int n = 0;
    for (int k = 0; k < 20; k++)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "{\"prompt\": \"a%c\", \"chosen\": \"b\", \"rejected\": \"d\"}\n", 'a' + k);
    CHECK(t, write_inputs() && write_file("pairs.jsonl", text));
    for (int k = 0; k < 3; k++) remove(in_folder(done[k])); /* of a run without memory */
    (void)run_line(t, "rlhf " SMALL "--data @pairs.jsonl --split 1,1,1 --save @three --seq 8 --batch 2 "
                      "--lora r=2 --sft '--steps_1' --reward '--steps_1' --ppo '--steps_1_--tokens_2'");
}
