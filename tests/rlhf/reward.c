/* Rewards of answers: what is built in, functions of the program, and commands with what can go
 * wrong in them. */
#define _POSIX_C_SOURCE 200809L
#include "../../zeroflow_llm.h"
#include "../support/test.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MOST = 6 };

/* Answers that were not sampled: texts to a prompt each, whose lines are given. A token is a byte. */
typedef struct batch {
    zf_prompt lines[MOST];
    const zf_prompt *prompts[MOST];
    zf_answer answers[MOST];
    zf_rollouts r;
    zf_rewards *rewards;
} batch;

static void close_batch(void *object)
{
    batch *b = object;
    for (int64_t k = 0; k < b->r.count; k++) {
        zf_answer_free(&b->answers[k]);
        zf_text_free(&b->lines[k].text);
        zf_json_free(b->lines[k].data);
    }
    zf_rewards_close(b->rewards);
    *b = (batch){.rewards = NULL};
}

static bool add(test *t, batch *b, const char *line, const char *text, zf_finish finish)
{
    const int64_t k = b->r.count++;
    zf_prompt *p = &b->lines[k];
    zf_error error = {ZF_OK, ""};
    b->r.group = 1, b->r.answers = b->answers, b->r.prompts = b->prompts;
    b->prompts[k] = p, p->number = k, p->line = 10 + k;
    zf_text_add_string(&p->text, line);
    p->data = zf_json_parse(line, strlen(line), NULL, &error);
    zf_ids_add(&b->answers[k].ids, 7);
    b->answers[k].given = 1, b->answers[k].finish = finish, b->answers[k].done = true;
    for (const char *c = text; *c; c++) zf_ids_add(&b->answers[k].ids, *c);
    if (*text) zf_text_add_string(&b->answers[k].text, text);
    if (p->data && !p->text.failed && !b->answers[k].ids.failed && !b->answers[k].text.failed)
        return true;
    return test_unwind(t, __FILE__, __LINE__, line, ZF_ERR_NOMEM, error.text);
}

static zf_rewards *open_specs(const char *const *specs, int32_t count, zf_error *error)
{
    return zf_rewards_open(&(zf_rewards_desc){.specs = specs, .spec_count = count, .tokens = 10},
                           error);
}

#define ANSWER(value) "{\"prompt\": \"x\", \"answer\": " value "}"

TEST_ONCE(rewards_that_are_built_in)
{
    static const struct {
        const char *spec, *line, *text;
        double reward;
    } cases[] = {
        {"exact", ANSWER("\"a wren\""), " a wren\n", 1},
        {"exact", ANSWER("\"a wren\""), "a wren.", 0},
        {"exact", ANSWER("\"\""), "", 1},
        {"exact", ANSWER("7"), "7", 1},
        {"exact", ANSWER("7"), "7.0", 0},
        {"exact:target", "{\"target\": \"b\", \"answer\": \"a\"}", "b", 1},
        {"number", ANSWER("7"), "3+4=7.", 1},
        {"number", ANSWER("7"), "7 is 3+4", 0},
        {"number", ANSWER("7"), "so\n#### 7\nas 5 is not", 1},
        {"number", ANSWER("7"), "#### 6 #### 7 8", 1},
        {"number", ANSWER("7"), "7 ####", 0},
        {"number", ANSWER("7"), "none", 0},
        {"number", ANSWER("\"3 and 4\\n#### 1,234.50\""), "$1234.5", 1},
        {"number", ANSWER("\"1234\""), "1,234", 1},
        {"number", ANSWER("34"), "12,34", 1},
        {"number", ANSWER("-4"), "it is -4", 1},
        {"number", ANSWER("4"), "3-4", 1},
        {"number", ANSWER("0.25"), ".25", 1},
        {"number", ANSWER("25"), "25.", 1},
        {"length", ANSWER("1"), "abc", 0.3},
        {"0.5*length", ANSWER("1"), "abcd", 0.2},
        {"-2*length", ANSWER("1"), "abcdefghij", -2},
        {"overlong:4", ANSWER("1"), "abcdef", 0},
        {"overlong:4", ANSWER("1"), "abcdefg", -0.25},
        {"overlong:4", ANSWER("1"), "abcdefghij", -1},
        {"regex:^<a>[0-9]+</a>$", ANSWER("1"), "<a>12</a>", 1},
        {"regex:^<a>[0-9]+</a>$", ANSWER("1"), "<a></a>", 0},
    };
    static batch b;
    test_defer(t, close_batch, &b);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        double reward = 9;
        zf_error error = {ZF_OK, ""};
        zf_rewards *r;
        if (strstr(cases[k].spec, "regex") && !zf_regex_there()) continue;
        if (!(r = open_specs(&cases[k].spec, 1, &error))) OK(t, error.status, error.text);
        b.rewards = r;
        if (!add(t, &b, cases[k].line, cases[k].text, ZF_FINISH_END)) return;
        if (!zf_rewards_score(r, &b.r, &reward, NULL, &error)) OK(t, error.status, error.text);
        if (fabs(reward - cases[k].reward) > 1e-15) {
            char text[200];
            snprintf(text, sizeof text, "%s of \"%s\" is %g", cases[k].spec, cases[k].text, reward);
            test_fail(t, __FILE__, __LINE__, "the reward", text);
        }
        close_batch(&b);
    }
}

/* The length of an answer; that of "b" cannot be said, that of "i" is infinite, and "f" fails. */
static bool own(void *user, const zf_reward_item *items, int64_t n, double *out, zf_error *error)
{
    ++*(int *)user;
    (void)error;
    for (int64_t k = 0; k < n; k++) {
        out[k] = (double)items[k].bytes;
        if (items[k].ids[items[k].count - 1] != items[k].text[items[k].bytes - 1]) return false;
        if (!strcmp(items[k].text, "b")) out[k] = NAN;
        if (!strcmp(items[k].text, "i")) out[k] = -INFINITY;
        if (!strcmp(items[k].text, "f")) return false;
    }
    return true;
}

TEST(rewards_of_functions_and_sums)
{
    static const char *const specs[] = {"exact", "0.2*length"};
    static batch b;
    int calls = 0;
    const zf_reward mine = {.name = "mine", .fn = own, .user = &calls, .weight = 10};
    double sum[3], each[3][3];
    zf_error error = {ZF_OK, ""};
    zf_rewards *r = zf_rewards_open(
        &(zf_rewards_desc){
            .specs = specs, .spec_count = 2, .own = &mine, .own_count = 1, .tokens = 4},
        &error);
    test_defer(t, close_batch, &b);
    NEED(t, r, &error);
    b.rewards = r;
    CHECK(t, zf_rewards_count(r) == 3);
    CHECK_TEXT(t, zf_rewards_name(r, 1), "0.2*length");
    CHECK_TEXT(t, zf_rewards_name(r, 2), "mine");
    if (!add(t, &b, ANSWER("\"ab\""), "ab", ZF_FINISH_END) ||
        !add(t, &b, ANSWER("\"b\""), "b", ZF_FINISH_END) ||
        !add(t, &b, ANSWER("\"x\""), "abcd", ZF_FINISH_END))
        return;
    if (!zf_rewards_score(r, &b.r, sum, each[0], &error)) OK(t, error.status, error.text);
    CHECK(t, calls == 1 && each[0][0] == 1 && each[0][1] == 1 && each[0][2] == 0);
    CHECK(t, each[1][0] == 0.5 && each[1][1] == 0.25 && each[1][2] == 1);
    CHECK(t, each[2][0] == 2 && isnan(each[2][1]) && each[2][2] == 4);
    CHECK_NEAR(t, sum[0], 1 + 0.2 * 0.5 + 20, 1e-12);
    CHECK_NEAR(t, sum[2], 0.2 + 40, 1e-12);
    CHECK(t, isnan(sum[1]));
}

TEST(rewards_of_functions_that_fail)
{
    static const char *const texts[][2] = {
        {"i", "the reward mine of an answer to the prompt of line 11 is infinite"},
        {"f", "the reward mine failed"}};
    static batch b;
    test_defer(t, close_batch, &b);
    for (int k = 0; k < 2; k++) {
        int calls = 0;
        const zf_reward mine = {.name = "mine", .fn = own, .user = &calls};
        double sum[2];
        zf_error error = {ZF_OK, ""};
        zf_rewards *r = zf_rewards_open(&(zf_rewards_desc){.own = &mine, .own_count = 1}, &error);
        NEED(t, r, &error);
        b.rewards = r;
        if (!add(t, &b, ANSWER("1"), "a", ZF_FINISH_END) ||
            !add(t, &b, ANSWER("1"), texts[k][0], ZF_FINISH_END))
            return;
        CHECK(t, !zf_rewards_score(r, &b.r, sum, NULL, &error));
        CHECK_TEXT(t, error.text, texts[k][1]);
        close_batch(&b);
    }
}

/* Lines that do not have what a reward compares with. */
TEST(rewards_of_lines_that_lack_the_answer)
{
    static const char *const cases[][3] = {
        {"exact", "{\"prompt\": 1}", "the prompt of line 10: the top value lacks \"answer\""},
        {"number:n", "{\"n\": [1]}",
         "the prompt of line 10: 1:7: n must be a string or a number, not an array"},
        {"number", ANSWER("\"seven\""),
         "the prompt of line 10: its member has no number to compare with"},
    };
    static batch b;
    test_defer(t, close_batch, &b);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        double sum;
        zf_error error = {ZF_OK, ""};
        zf_rewards *r = open_specs(&cases[k][0], 1, &error);
        NEED(t, r, &error);
        b.rewards = r;
        if (!add(t, &b, cases[k][1], "a", ZF_FINISH_END)) return;
        CHECK(t, !zf_rewards_score(r, &b.r, &sum, NULL, &error));
        if (!strstr(error.text, strrchr(cases[k][2], ':'))) CHECK_TEXT(t, error.text, cases[k][2]);
        close_batch(&b);
    }
}

static bool open_kind(void *user, const char *argument, zf_reward *out, zf_error *error)
{
    if (argument) return out->fn = own, out->user = user, true;
    *error = (zf_error){ZF_ERR_ARGUMENT, "a folder is needed: model:DIR"};
    return false;
}

TEST(rewards_specs)
{
    static const char *const bad[][2] = {
        {"", "there is no reward \"\": "},
        {"exakt",
         "there is no reward \"exakt\": exact, number, regex:PATTERN, length, overlong:TOKENS or "
         "cmd:COMMAND, perhaps with a weight, as 0.2*length"},
        {"0*exact", "the weight of the reward \"0*exact\" must not be 0"},
        {"length:4",
         "the reward \"length:4\" is not as exact[:MEMBER], number[:MEMBER], regex:PATTERN, "
         "length, overlong:TOKENS (at most those of an answer) or cmd:COMMAND"},
        {"exact:", "the reward \"exact:\" is not as "},
        {"2*cmd:", "the reward \"2*cmd:\" is not as "},
        {"regex", "the reward \"regex\" is not as "},
        {"overlong:0", "the reward \"overlong:0\" is not as "},
        {"overlong:11", "the reward \"overlong:11\" is not as "},
        {"overlong:3x", "the reward \"overlong:3x\" is not as "},
        {"model", "a folder is needed: model:DIR"},
        {"regex:(", "the regular expression "},
    };
    int calls = 0;
    const zf_reward_kind kind = {"model", open_kind, &calls};
    zf_error error = {ZF_OK, ""};
    zf_rewards_desc d = {.spec_count = 1, .kinds = &kind, .kind_count = 1, .tokens = 10};
    zf_rewards *r;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        if (strstr(bad[k][0], "regex:") && !zf_regex_there()) continue;
        d.specs = &bad[k][0];
        CHECK(t, !zf_rewards_open(&d, &error));
        if (strncmp(error.text, bad[k][1], strlen(bad[k][1]))) CHECK_TEXT(t, error.text, bad[k][1]);
    }
    d.spec_count = 0;
    CHECK(t, !zf_rewards_open(&d, &error));
    CHECK_TEXT(t, error.text, "a reward is needed");
    d.specs = &(const char *){"3*model:DIR"}, d.spec_count = 1;
    r = zf_rewards_open(&d, &error);
    NEED(t, r, &error);
    zf_rewards_close(r);
}

/* --------------------------------------------------------------------------------- commands */

/* Scores three answers by a command; the deadline is for those that hang. */
static bool run(test *t, batch *b, const char *spec, double deadline, double sum[3],
                zf_error *error)
{
    zf_rewards *r = zf_rewards_open(
        &(zf_rewards_desc){.specs = &spec, .spec_count = 1, .tokens = 10, .deadline = deadline},
        error);
    bool good = r && add(t, b, ANSWER("1"), "a", ZF_FINISH_END) &&
                add(t, b, "{\"prompt\": \"\\\"\"}", "b\"\n\\", ZF_FINISH_LENGTH) &&
                add(t, b, ANSWER("3"), "", ZF_FINISH_STOP) &&
                zf_rewards_score(r, &b->r, sum, NULL, error);
    close_batch(b);
    zf_rewards_close(r);
    return good;
}

TEST_ONCE(rewards_of_a_command)
{
    static batch b;
    double sum[3];
    zf_error error = {ZF_OK, ""};
    const char *path = test_path("seen.jsonl");
    char spec[400], text[600];
    zf_text seen = {.at = NULL};
    test_defer(t, close_batch, &b);
    snprintf(spec, sizeof spec, "2*cmd:cat > '%s'; echo 1.5; echo null; printf -- -3e1", path);
    if (!run(t, &b, spec, 0, sum, &error)) OK(t, error.status, error.text);
    CHECK(t, sum[0] == 3 && isnan(sum[1]) && sum[2] == -60);
    CHECK(t, zf_text_read(path, &seen, &error) || seen.failed);
    snprintf(text, sizeof text, "%s", seen.at ? seen.at : "");
    zf_text_free(&seen);
    CHECK_TEXT(t, text,
               "{\"completion\": \"a\", \"finish\": \"end\", \"tokens\": 1, \"data\": "
               "{\"prompt\": \"x\", \"answer\": 1}}\n"
               "{\"completion\": \"b\\u0022\\u000a\\u005c\", \"finish\": \"length\", \"tokens\": "
               "4, \"data\": "
               "{\"prompt\": \"\\\"\"}}\n"
               "{\"completion\": \"\", \"finish\": \"stop\", \"tokens\": 0, \"data\": "
               "{\"prompt\": \"x\", \"answer\": 3}}\n");
}

/* Far more in both directions than pipes hold: the command prints while it reads, or does not read,
 * which raises no signal here. */
TEST_ONCE(rewards_of_commands_for_many_answers)
{
    enum { MANY = 20000 };
    static const char *const specs[] = {"cmd:sed 's/.*\"tokens\": \\([0-9]*\\).*/\\1.0000/'",
                                        "cmd:exec <&-; yes 4 | head -n 20000"};
    static batch b;
    static double sum[MANY];
    zf_answer *answers = malloc(MANY * sizeof *answers);
    zf_error error = {ZF_OK, ""};
    NEED(t, answers, NULL);
    test_defer(t, free, answers);
    test_defer(t, close_batch, &b);
    for (int which = 0; which < 2; which++) {
        bool good;
        b.rewards = open_specs(&specs[which], 1, &error);
        NEED(t, b.rewards, &error);
        if (!add(t, &b, ANSWER("1"), "abcdefghi", ZF_FINISH_END)) return;
        for (int k = 0; k < MANY; k++)
            answers[k] = b.answers[0], answers[k].ids.count = 1 + (size_t)(k % 10);
        b.r.answers = answers, b.r.count = b.r.group = MANY;
        good = zf_rewards_score(b.rewards, &b.r, sum, NULL, &error);
        b.r.count = 1;
        if (!good) OK(t, error.status, error.text);
        for (int k = 0; k < MANY; k++) CHECK(t, sum[k] == (which ? 4 : k % 10));
        close_batch(&b);
    }
}

/* Without room for its pipes. */
TEST_ONCE(rewards_of_a_command_that_cannot_be_started)
{
    struct rlimit usual, none;
    static batch b;
    double sum[3];
    zf_error error = {ZF_OK, ""};
    test_defer(t, close_batch, &b);
    CHECK(t, !getrlimit(RLIMIT_NOFILE, &usual));
    none = usual, none.rlim_cur = 0;
    CHECK(t, !setrlimit(RLIMIT_NOFILE, &none));
    (void)run(t, &b, "cmd:cat", 0, sum, &error);
    CHECK(t, !setrlimit(RLIMIT_NOFILE, &usual));
    if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
    CHECK(t, strstr(error.text, "cmd:cat: cannot be started: "));
}

/* Each is an error that says what and where; nothing is left of the command, and no signal has
 * reached this program. */
TEST_ONCE(rewards_of_commands_that_fail)
{
#define LINES ", at answers to the prompts of lines 10 to 12"
    static const struct {
        const char *command, *problem;
        bool hangs;
    } cases[] = {
        {"exit 3", "failed with status 3" LINES, false},
        {"echo 1; echo 2; echo 3; exit 1", "failed with status 1" LINES, false},
        {"kill -9 $$", "was ended by signal 9" LINES, false},
        {"./no-such-command 2> /dev/null", "failed with status 127" LINES, false},
        {"cat > /dev/null; echo 1; echo 2",
         "for an answer to the prompt of line 12: printed nothing: a line for each answer is "
         "needed",
         false},
        {"cat > /dev/null",
         "for an answer to the prompt of line 10: printed nothing: a line for "
         "each answer is needed",
         false},
        {"echo 1; echo nan; echo 3",
         "for an answer to the prompt of line 11: printed \"nan\", which "
         "is no number and not null",
         false},
        {"echo 1; echo 2; echo good",
         "for an answer to the prompt of line 12: printed \"good\", "
         "which is no number and not null",
         false},
        {"echo 1; echo; echo 3",
         "for an answer to the prompt of line 11: printed \"\", which is no "
         "number and not null",
         false},
        {"echo 1; echo '\"2\"'; echo 3",
         "for an answer to the prompt of line 11: printed \"\"2\"\", "
         "which is no number and not null",
         false},
        {"echo 1; echo 2; echo 3; echo 4", "printed more than 3 lines, one for each answer", false},
        {"sleep 60", "did not end within 0.1 s" LINES, true},
        {"echo 1; echo 2; echo 3; exec >&-; sleep 60", "did not end within 0.1 s" LINES, true},
        {"sleep 60 & echo 1; echo 2; echo 3", "did not end within 0.1 s" LINES, true},
    };
    static batch b;
    test_defer(t, close_batch, &b);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char spec[200], expected[600];
        double sum[3];
        zf_error error = {ZF_OK, ""};
        snprintf(spec, sizeof spec, "cmd:%s", cases[k].command);
        snprintf(expected, sizeof expected, "%s: %s", spec, cases[k].problem);
        CHECK(t, !run(t, &b, spec, cases[k].hangs ? 0.1 : 0, sum, &error));
        CHECK_TEXT(t, error.text, expected);
        CHECK(t, waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
    }
}
