/* Files of pairs of answers: prompts and answers as tokens, labels by lengths, what is wrong. */
#include "../../examples/frame/data/pairs.h"
#include "letters.h"
#include "../support/test.h"

/* A text of a batch: ids as letters (^ <s>, $ </s>), . padding; then the labels likewise. */
static const char *row_of(const pairs_batch *b, int64_t row)
{
    static const char names[] = "^$~abcdefghijklmnopqrstuvwxyz[]A";
    static char out[400];
    const int64_t from = row * b->sequence;
    size_t n = 0;
    for (int64_t i = 0; i < b->sequence; i++)
        out[n++] = i < b->lengths[row] ? names[b->ids[from + i]] : '.';
    out[n++] = ' ';
    for (int64_t i = 0; i < b->sequence; i++)
        out[n++] = b->labels[from + i] < 0 ? '-' : names[b->labels[from + i]];
    out[n] = 0;
    return out;
}

static void free_pairs(void *p) { pairs_free(p); }
static void free_batch(void *b) { pairs_batch_free(b); }

/* Loads two lines like this one with the style `name` or none. */
static bool load_twice(const zf_examples_desc *d, const char *style, const char *line, pairs *p,
                       zf_error *error)
{
    char lines[2000];
    const char *path = test_path("pairs.jsonl");
    zf_chat chat = {.style = -1};
    zf_examples_desc with = *d;
    bool good;
    *error = (zf_error){ZF_OK, ""};
    if (style && !zf_chat_open(&chat, "tests/golden/chat/chatml", style, error)) return false;
    if (style) with.chat = &chat;
    snprintf(lines, sizeof lines, "%s\n\n%s", line, line);
    good = write_lines(path, lines) && pairs_load(p, path, &with, error);
    zf_chat_close(&chat);
    return good;
}

TEST_ONCE(pairs_are_tokens_and_labels)
{
    static const struct {
        const char *style, *line, *chosen, *rejected;
    } cases[] = {
        {NULL, "{\"prompt\": \"cat\", \"chosen\": \"dog\", \"rejected\": \"e\"}",
         "^catdog$............ ---dog$-------------", "^cate$.............. ---e$---------------"},
        /* The common beginning is the prompt. */
        {NULL, "{\"chosen\": \"catx\", \"rejected\": \"caty\", \"score\": 3}",
         "^catx$.............. ---x$---------------", "^caty$.............. ---y$---------------"},
        /* A token of prompt and answer is predicted. */
        {NULL, "{\"prompt\": \"ca\", \"chosen\": \"bd\", \"rejected\": \"xd\"}",
         "^cAd$............... -Ad$----------------", "^caxd$.............. --xd$---------------"},
        /* End tokens of the prompt are not; that of an answer is not written twice. */
        {NULL, "{\"prompt\": \"a</s>b</s>\", \"chosen\": \"c</s>\", \"rejected\": \"c</s>d\"}",
         "^a$b$c$............. ----c$--------------", "^a$b$c$d$........... ----c$d$------------"},
        {"mistral",
         "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}], \"chosen\": [{\"role\": "
         "\"assistant\", \"content\": \"xy\"}], \"rejected\": [{\"role\": \"assistant\", "
         "\"content\": \"z\"}]}",
         "^[]q[]xy$........... -----xy$------------", "^[]q[]z$............ -----z$-------------"},
        /* What a template writes after the end of an answer is left out. */
        {"zephyr",
         "{\"chosen\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
         "\"content\": \"xy\"}], \"rejected\": [{\"role\": \"user\", \"content\": \"q\"}, "
         "{\"role\": \"assistant\", \"content\": \"x\"}]}",
         "user~q$~assistant~xy$.. -----------------xy$---",
         "user~q$~assistant~x$... -----------------x$----"},
        {"mistral", "{\"prompt\": \"q\", \"chosen\": \"x\", \"rejected\": \"y\"}",
         "^[]q[]x$............ -----x$-------------", "^[]q[]y$............ -----y$-------------"},
    };
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokenizer = letters(&error);
    zf_examples_desc d = {.tokens = tokenizer, .end = 1};
    pairs p;
    pairs_batch b;
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0] && !t->failed; k++) {
        const int64_t sequence = (int64_t)(strlen(cases[k].chosen) - 1) / 2;
        char chosen[400];
        d.sequence = sequence;
        if (!load_twice(&d, cases[k].style, cases[k].line, &p, &error))
            OK(t, error.status, error.text);
        if (!pairs_batch_new(&b, 1, sequence, &error)) {
            pairs_free(&p);
            OK(t, error.status, error.text);
        }
        pairs_read(&p, &b, false, 1, 0);
        snprintf(chosen, sizeof chosen, "%s", row_of(&b, 0));
        const char *rejected = row_of(&b, 1);
        pairs_batch_free(&b);
        pairs_free(&p);
        CHECK_TEXT(t, chosen, cases[k].chosen);
        CHECK_TEXT(t, rejected, cases[k].rejected);
    }
}

/* By the template of any style, the last token of a text is the last that is predicted: its score is
 * there, whatever ids the template writes before. */
TEST_ONCE(pairs_end_where_their_last_token_is)
{
    static const char line[] =
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}], \"chosen\": [{\"role\": \"assistant\", "
        "\"content\": \"xy\"}], \"rejected\": [{\"role\": \"assistant\", \"content\": \"z\"}]}";
    static const char styles[] = ZF_CHAT_STYLES;
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokenizer = letters(&error);
    const zf_examples_desc d = {.tokens = tokenizer, .end = 1, .sequence = 200};
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    for (const char *at = styles; *at && !t->failed; at += strspn(at, ", ")) {
        const size_t bytes = strcspn(at, ",");
        char style[40];
        pairs p;
        pairs_batch b;
        bool same = true;
        snprintf(style, sizeof style, "%.*s", (int)bytes, at), at += bytes;
        if (!load_twice(&d, style, line, &p, &error)) OK(t, error.status, error.text);
        if (!pairs_batch_new(&b, 1, 200, &error)) {
            pairs_free(&p);
            OK(t, error.status, error.text);
        }
        pairs_read(&p, &b, false, 1, 0);
        for (int row = 0; row < 2; row++) {
            const int32_t last = b.lengths[row] - 1;
            const int32_t *ids = b.ids + row * 200, *labels = b.labels + row * 200;
            same = same && last > 1 && labels[last - 1] == ids[last] && labels[last] == -100 && labels[0] == -100;
        }
        pairs_batch_free(&b);
        pairs_free(&p);
        if (!same) test_fail(t, __FILE__, __LINE__, "the last token is predicted", style);
    }
}

#define USER(text)      "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ASSISTANT(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"

TEST_ONCE(pairs_files_that_are_wrong)
{
    static const struct {
        const char *style, *line, *says;
    } cases[] = {
        {NULL, "[]", "line 1: 1:1: the top value must be an object, not an array"},
        {NULL, "{\"prompt\": \"a\", \"chosen\": \"b\"}",
         "line 1: 1:1: the top value lacks \"rejected\""},
        {NULL, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": 3}",
         "line 1: 1:44: rejected must be a string, as the others are, not 3"},
        {NULL, "{\"prompt\": \"a\", \"chosen\": [" ASSISTANT("b") "], \"rejected\": \"c\"}",
         "line 1: 1:27: chosen must be a string, as the others are, not an array"},
        {NULL, "{\"prompt\": 1, \"chosen\": \"b\", \"rejected\": \"c\"}",
         "line 1: 1:12: prompt must be a string or a list of messages, not 1"},
        {NULL, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}",
         "line 1: 1:44: rejected equals \"chosen\""},
        /* The same tokens. */
        {NULL, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b</s>\"}",
         "line 1: 1:44: rejected equals \"chosen\""},
        {NULL, "{\"chosen\": \"ab\", \"rejected\": \"ab\"}",
         "line 1: 1:30: rejected equals \"chosen\""},
        {NULL, "{\"chosen\": \"ab\", \"rejected\": \"ba\"}",
         "line 1: 1:1: the top value has no prompt, and \"chosen\" and \"rejected\" have no common "
         "beginning"},
        {NULL, "{\"chosen\": \"ac\", \"rejected\": \"acd\"}",
         "line 1: 1:12: chosen is an answer without a token but that of its end"},
        {NULL, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"\"}",
         "line 1: 1:44: rejected is an answer without a token but that of its end"},
        {NULL, "{\"prompt\": \"a\", \"chosen\": \"</s>\", \"rejected\": \"b\"}",
         "line 1: 1:27: chosen is an answer without a token but that of its end"},
        {NULL, "{\"prompt\": \"a\", \"chosen\": \"bcdefghijkl\", \"rejected\": \"b\"}",
         "line 1: 1:27: chosen has 13 tokens, with those of the prompt: more than the 12 of --seq"},
        {NULL,
         "{\"prompt\": [" USER("a") "], \"chosen\": [" ASSISTANT(
             "b") "], \"rejected\": [" ASSISTANT("c") "]}",
         "chosen needs the style of its chats: chatml, "},
        {"mistral",
         "{\"prompt\": [" USER("a") "], \"chosen\": [" ASSISTANT(
             "b") "], \"rejected\": [" ASSISTANT("b") "]}",
         "rejected equals \"chosen\""},
        {"mistral",
         "{\"chosen\": [" USER("a") ", " ASSISTANT("b") "], \"rejected\": [" USER(
             "b") ", " ASSISTANT("b") "]}",
         "1:1: the top value has no prompt, and \"chosen\" and \"rejected\" have no common "
         "beginning"},
        {"mistral",
         "{\"prompt\": [], \"chosen\": [" ASSISTANT("b") "], \"rejected\": [" ASSISTANT("c") "]}",
         "1:1: the top value has an empty prompt"},
        {"mistral",
         "{\"prompt\": [" USER("a") "], \"chosen\": [" USER("b") "], \"rejected\": [" ASSISTANT(
             "c") "]}",
         "chosen[0] is not a message of the assistant"},
        {"mistral",
         "{\"prompt\": [" USER("a") "], \"chosen\": [], \"rejected\": [" ASSISTANT("c") "]}",
         "chosen has no answer after the prompt"},
        {"mistral",
         "{\"prompt\": [" USER("a") "], \"chosen\": [" ASSISTANT("b") ", " USER(
             "c") "], \"rejected\": [" ASSISTANT("c") "]}",
         "chosen has 2 messages after the prompt: one is the answer"},
        {"mistral",
         "{\"prompt\": [" USER("a") "], \"chosen\": [" ASSISTANT(
             " ") "], \"rejected\": [" ASSISTANT("c") "]}",
         "chosen[0] is an answer without a token but that of its end"},
        {"mistral",
         "{\"prompt\": [" USER("a") "], \"chosen\": [" ASSISTANT(
             "c") "], \"rejected\": [" ASSISTANT("</s>") "]}",
         "rejected[0] is an answer without a token but that of its end"},
        {"mistral", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": [" ASSISTANT("c") "]}",
         "rejected must be a string, as the others are, not an array"},
    };
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokenizer = letters(&error);
    const zf_examples_desc d = {.tokens = tokenizer, .end = 1, .sequence = 12};
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        pairs p;
        CHECK(t, !load_twice(&d, cases[k].style, cases[k].line, &p, &error));
        if (!strstr(error.text, cases[k].says)) CHECK_TEXT(t, error.text, cases[k].says);
    }
}

/* Without a token that begins texts, an empty prompt leaves the first token unpredicted. */
TEST_ONCE(pairs_need_a_token_before_the_answer)
{
    static const char text[] = "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}";
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokenizer = zf_tokenizer_parse(text, sizeof text - 1, "two letters", &error);
    const zf_examples_desc d = {.tokens = tokenizer, .end = -1, .sequence = 12};
    pairs p;
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    CHECK(t, !load_twice(&d, NULL, "{\"prompt\": \"\", \"chosen\": \"a\", \"rejected\": \"b\"}", &p,
                         &error));
    CHECK_TEXT(t, error.text + strlen(test_path("pairs.jsonl")),
               ": line 1: 1:26: chosen has no token before its answer: the prompt is empty");
}

/* What is held out is never trained on, all others once in each epoch; after the held-out ones rows
 * are empty. */
TEST_ONCE(pairs_in_epochs)
{
    enum { PAIRS = 41, HELD_OUT = 2 };
    char lines[PAIRS * 60];
    int n = 0, seen[PAIRS] = {0};
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokenizer = letters(&error);
    const zf_examples_desc d = {.tokens = tokenizer, .end = 1, .sequence = 8};
    const char *path = test_path("pairs.jsonl");
    pairs p;
    pairs_batch b;
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    for (int k = 0; k < PAIRS; k++)
        n += snprintf(lines + n, sizeof lines - (size_t)n,
                      "{\"prompt\": \"%c\", \"chosen\": \"c\", \"rejected\": \"d\"}\n",
                      'a' + k % 26);
    CHECK(t, write_lines(path, lines));
    if (!pairs_load(&p, path, &d, &error)) OK(t, error.status, error.text);
    test_defer(t, free_pairs, &p);
    CHECK(t, p.count == PAIRS && p.held_out == HELD_OUT && p.longest == 4);
    if (!pairs_batch_new(&b, 3, 8, &error)) OK(t, error.status, error.text);
    test_defer(t, free_batch, &b);
    for (int64_t at = 0; at < 2 * (PAIRS - HELD_OUT); at += 3) {
        pairs_read(&p, &b, false, 5, at);
        CHECK(t, b.filled == 3);
        for (int k = 0; k < 3; k++) {
            CHECK(t, b.text[2 * k + 1] == b.text[2 * k] + 1);
            seen[b.text[2 * k] / 2]++;
        }
    }
    pairs_read(&p, &b, true, 5, 0);
    CHECK(t, b.filled == HELD_OUT && b.text[4] == -1 && !b.lengths[5] && b.labels[5 * 8] == -100);
    for (int k = 0; k < HELD_OUT; k++) CHECK(t, !seen[b.text[2 * k] / 2]);
    n = 0;
    for (int k = 0; k < PAIRS; k++) n += seen[k] == 2;
    CHECK(t, n == PAIRS - HELD_OUT);
}
