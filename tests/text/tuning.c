/* Files of examples to fine-tune on: labels, rows of several, what is held out, messages. */
#include "../../examples/frame/data/causal_batch.h"
#include "../../examples/gpt/model.h"
#include "../../examples/llm/model.h"
#include "letters.h"
#include "../support/test.h"

#include <stdio.h>

static void free_json(void *json) { zf_json_free(json); }

/* A row as text: ids as letters (^ <s>, $ </s>), | before another segment, . where padding begins;
 * then the labels likewise. */
static const char *row_of(const zf_causal_batch *b, int64_t row)
{
    static const char names[] = "^$~abcdefghijklmnopqrstuvwxyz[]A";
    static char out[200];
    size_t n = 0;
    for (int part = 0; part < 2; part++) {
        for (int64_t i = row * b->sequence, end = i + b->sequence; i < end; i++) {
            int32_t id = part ? b->labels[i] : b->ids[i];
            bool begins = i > row * b->sequence && b->segments[i] != b->segments[i - 1];
            if (begins || (b->segments[i] && !b->positions[i] && i > row * b->sequence && !begins))
                out[n++] = b->segments[i] ? '|' : '.';
            if (b->segments[i]) out[n++] = id < 0 ? '-' : names[id];
        }
        out[n++] = part ? 0 : ' ';
    }
    return out;
}

/* Loads the lines, with the style `name` or none, and checks the first row of training: of two
 * alike, since one is held out. */
static void check_row(test *t, const zf_tokenizer *tokenizer, const char *style, const char *line,
                      int64_t sequence, const char *want)
{
    char lines[1000];
    const char *path = test_path("tuning.jsonl");
    zf_error error = {ZF_OK, ""};
    zf_chat chat = {.style = -1};
    zf_examples_desc d = {.tokens = tokenizer, .end = 1, .sequence = sequence};
    zf_tuning all;
    zf_causal_batch b;
    snprintf(lines, sizeof lines, "%s\n\n%s", line, line);
    CHECK(t, write_lines(path, lines));
    if (style && !zf_chat_open(&chat, "tests/golden/chat/chatml", style, &error))
        OK(t, error.status, error.text);
    if (style) d.chat = &chat;
    bool good = zf_tuning_load(&all, path, &d, &error);
    zf_chat_close(&chat);
    if (!good) {
        CHECK_TEXT(t, error.text, want);
        return;
    }
    if (zf_causal_batch_new(&b, 1, sequence, true, &error)) {
        char got[200];
        zf_tuning_read(&all, &b, false, 1, 0);
        snprintf(got, sizeof got, "%s", row_of(&b, 0));
        zf_causal_batch_free(&b);
        zf_tuning_free(&all);
        CHECK_TEXT(t, got, want);
    } else {
        zf_tuning_free(&all);
        OK(t, error.status, error.text);
    }
}

TEST_ONCE(tuning_labels_responses)
{
    static const struct {
        const char *style, *line, *want;
        int64_t sequence;
    } cases[] = {
        {NULL, "{\"prompt\": \"cat\", \"response\": \"dog\"}", "^catdog$. ---dog$-.", 10},
        {NULL, "{\"prompt\": \"cat\", \"completion\": \"dog\", \"source\": 3}", "^catdog$ ---dog$-",
         8},
        /* A token of both is predicted. */
        {NULL, "{\"prompt\": \"ca\", \"response\": \"bd\"}", "^cAd$. -Ad$-.", 10},
        /* What does not fit is cut. */
        {NULL, "{\"prompt\": \"cat\", \"response\": \"dog\"}", "^catd ---d-", 5},
        {"zephyr",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
         "\"assistant\", \"content\": \"x\"}, {\"role\": \"user\", \"content\": \"r\"}, "
         "{\"role\": \"assistant\", \"content\": \"yz\"}]}",
         "user~q$~assistant~x$~user~r$~assistant~yz$~. "
         "-----------------x$-------------------yz$--.",
         60},
        {"mistral", "{\"prompt\": \"q\", \"response\": \"x\"}", "^[]q[]x$. -----x$-.", 30},
        /* Messages that say so are read and not predicted. */
        {"zephyr",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"q\", \"train\": false}, {\"role\": "
         "\"assistant\", \"content\": \"x\", \"weight\": 0}, {\"role\": \"user\", \"content\": \"r\"}, "
         "{\"role\": \"assistant\", \"content\": \"yz\", \"weight\": 1, \"train\": true}]}",
         "user~q$~assistant~x$~user~r$~assistant~yz$~. "
         "--------------------------------------yz$--.",
         60},
        /* ShareGPT, with a weight and a system's text; messages named conversations. */
        {"zephyr",
         "{\"system\": \"s\", \"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": "
         "\"gpt\", \"value\": \"x\", \"weight\": 0}, {\"from\": \"user\", \"value\": \"r\"}, "
         "{\"from\": \"assistant\", \"value\": \"yz\"}]}",
         "system~s$~user~q$~assistant~x$~user~r$~assistant~yz$~. "
         "------------------------------------------------yz$--.",
         60},
        {"zephyr",
         "{\"conversations\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
         "\"content\": \"x\"}], \"system\": null}",
         "user~q$~assistant~x$~. -----------------x$--.", 30},
        /* Alpaca. */
        {"zephyr", "{\"instruction\": \"q\", \"input\": \"\", \"output\": \"x\"}",
         "user~q$~assistant~x$~. -----------------x$--.", 30},
        {"zephyr",
         "{\"instruction\": \"q\", \"input\": \"r\", \"output\": \"x\", \"system\": \"s\", "
         "\"history\": [[\"t\", \"y\"]]}",
         "system~s$~user~t$~assistant~y$~user~q~r$~assistant~x$~. "
         "---------------------------y$---------------------x$--.",
         60},
        /* TRL: answers of the prompt are read and not predicted. */
        {"zephyr",
         "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "
         "\"x\", \"train\": true}, {\"content\": \"r\", \"role\": \"user\"}], \"completion\": [{\"role\": "
         "\"assistant\", \"content\": \"yz\"}]}",
         "user~q$~assistant~x$~user~r$~assistant~yz$~. "
         "--------------------------------------yz$--.",
         60},
        {"mistral",
         "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}], \"response\": [{\"role\": "
         "\"assistant\", \"content\": \"x\"}]}",
         "^[]q[]x$. -----x$-.", 30},
    };
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokenizer = letters(&error);
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0] && !t->failed; k++)
        check_row(t, tokenizer, cases[k].style, cases[k].line, cases[k].sequence, cases[k].want);
}

TEST_ONCE(tuning_files_that_are_wrong)
{
    static const struct {
        const char *line, *says, *style;
    } cases[] = {
        {"{\"prompt\": \"a\"}", "line 1: 1:1: the top value lacks \"response\"", NULL},
        {"{\"prompt\": \"a\", \"response\": 3}", "line 1: 1:29: response must be a string, not 3", NULL},
        {"{\"text\": \"a\"}", "line 1: 1:1: the top value has neither messages nor a prompt", NULL},
        {"[]", "line 1: 1:1: the top value must be an object, not an array", NULL},
        {"{\"prompt\": \"a\"", "line 1: 1:15: ", NULL},
        {"{\"messages\": []}", "line 1: 1:14: messages has no message", "qwen3"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
         "line 1: 1:14: messages needs the style of its chats: chatml, ", NULL},
        {"{\"prompt\": \"abcdefghij\", \"response\": \"a\"}",
         "0 examples, besides 2 without a response within 8 tokens", NULL},
        {"{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}",
         "the style qwen3: line 1: the template refuses these messages: this style has no message of "
         "the role tool", "qwen3"},
        {"{\"tools\": [{\"name\": \"f\"}], \"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
         "line 1: 1:11: tools is not written by the template of these chats", "qwen3"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"chat_template_kwargs\": "
         "{\"date_string\": \"\"}}",
         "chat_template_kwargs.date_string is not read by the template of these chats", "qwen3"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0.5}]}",
         "messages[0].weight must be 0, which leaves it out of the loss, or 1, not 0.5", "qwen3"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"train\": 0}]}",
         "messages[0].train must be true or false, not 0", "qwen3"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"weight\": 1}]}",
         "messages[0] must be no weight and no train: the assistant's messages alone are trained on",
         "qwen3"},
        {"{\"conversations\": [{\"from\": \"bing\", \"value\": \"a\"}]}",
         "line 1: 1:29: conversations[0].from must be human, user, gpt, assistant, system, developer or "
         "tool, not \"bing\"", "zephyr"},
        {"{\"conversations\": [{\"from\": \"gpt\"}]}",
         "line 1: 1:20: conversations[0] lacks \"value\"", "zephyr"},
        {"{\"conversations\": [{\"value\": \"a\"}]}",
         "line 1: 1:20: conversations[0] lacks \"role\"", "zephyr"},
        {"{\"conversations\": [3]}", "line 1: 1:20: conversations[0] must be an object, not 3",
         "zephyr"},
        {"{\"conversations\": {}}",
         "line 1: 1:19: conversations must be an array of messages, not an object", "zephyr"},
        {"{\"conversations\": [], \"system\": 3}", "line 1: 1:33: system must be a string, not 3",
         "zephyr"},
        {"{\"conversations\": []}", "messages has no message", "zephyr"},
        {"{\"conversations\": [{\"from\": \"gpt\", \"value\": \"a\"}]}",
         "messages needs the style of its chats: chatml, ", NULL},
        {"{\"instruction\": 3, \"output\": \"a\"}",
         "line 1: 1:17: instruction must be a string, not 3", "zephyr"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"input\": [3]}",
         "line 1: 1:46: input must be a string, not an array", "zephyr"},
        {"{\"instruction\": \"a\", \"output\": null}",
         "line 1: 1:32: output must be a string, not null", "zephyr"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"c\"]]}",
         "line 1: 1:49: history[0] must be a question and an answer, not an array", "zephyr"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"history\": \"c\"}",
         "line 1: 1:48: history must be a list of pairs, not \"c\"", "zephyr"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": \"b\"}",
         "line 1: 1:62: completion must be a list of messages, as the prompt is, not \"b\"", "zephyr"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": []}",
         "line 1: 1:62: completion has no message", "zephyr"},
        {"{\"prompt\": [], \"completion\": [3]}",
         "line 1: 1:31: completion[0] must be an object, not 3", "zephyr"},
        {"{\"prompt\": [{\"role\": 3}], \"completion\": [3]}",
         "line 1: 1:22: prompt[0].role must be a string, not 3", "zephyr"},
        /* Nothing is in these. */
        {"{\"prompt\": \"a\", \"response\": \"b\", \"weight\": 0}",
         "0 examples, besides 2 without a response within 8 tokens", NULL},
        {"{\"train\": false, \"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}",
         "0 examples, besides 2 without a response within 8 tokens", "zephyr"},
        {"{\"tools\": [], \"messages\": [{\"role\": \"user\", \"content\": \"a\", \"tool_calls\": null}]}",
         "0 examples, besides 2 without a response within 8 tokens", "qwen3"},
    };
    const char *path = test_path("tuning.jsonl");
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokenizer = letters(&error);
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        zf_examples_desc d = {.tokens = tokenizer, .end = 1, .sequence = 8};
        zf_chat chat = {.style = -1};
        char lines[400];
        zf_tuning all;
        if (cases[k].style &&
            !zf_chat_open(&chat, "tests/golden/chat/chatml", cases[k].style, &error))
            OK(t, error.status, error.text);
        if (cases[k].style) d.chat = &chat;
        snprintf(lines, sizeof lines, "%s\n%s\n", cases[k].line, cases[k].line);
        CHECK(t, write_lines(path, lines));
        CHECK(t, !zf_tuning_load(&all, path, &d, &error));
        zf_chat_close(&chat);
        if (!strstr(error.text, cases[k].says)) CHECK_TEXT(t, error.text, cases[k].says);
    }
}

/* A folder may have more tokens than its model has ids: an example that has one is an error. */
TEST_ONCE(tuning_refuses_tokens_beyond_the_model)
{
    const char *path = test_path("tuning.jsonl");
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokenizer = letters(&error);
    zf_examples_desc d = {.tokens = tokenizer, .end = 1, .sequence = 16, .vocab = 20};
    zf_tuning all;
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    CHECK(t, write_lines(path, "{\"prompt\": \"c\", \"response\": \"e\"}\n"
                               "{\"prompt\": \"e\", \"response\": \"cq\"}\n"));
    CHECK(t, zf_tokenizer_size(tokenizer) > 20 && zf_tokenizer_id(tokenizer, "q") == 19);
    if (!zf_tuning_load(&all, path, &d, &error)) OK(t, error.status, error.text);
    zf_tuning_free(&all);
    d.vocab = 19;
    CHECK(t, !zf_tuning_load(&all, path, &d, &error));
    CHECK_TEXT(t, error.text + strlen(path),
               ": line 2: the token \"q\" of the text has the id 19, and the model has only 19 "
               "ids: it needs the tokenizer that it was trained with");
}

/* Loads the lines without a style, in rows of `sequence` tokens. */
static bool load_lines(const zf_tokenizer *tokenizer, const char *lines, int64_t sequence,
                       zf_tuning *all, zf_error *error)
{
    const char *path = test_path("tuning.jsonl");
    const zf_examples_desc d = {.tokens = tokenizer, .end = -1, .sequence = sequence};
    *error = (zf_error){ZF_OK, ""};
    return write_lines(path, lines) && zf_tuning_load(all, path, &d, error);
}

/* The digests tell texts apart that have the same tokens and labels in other examples. */
TEST_ONCE(tuning_counts_and_digests)
{
    static const char one[] = "{\"prompt\": \"\", \"response\": \"ab\"}\n"
                              "{\"prompt\": \"\", \"response\": \"c<s>d\"}\n",
                      other[] = "{\"prompt\": \"\", \"response\": \"ab<s>c\"}\n"
                                "{\"prompt\": \"\", \"response\": \"d\"}\n",
                      long_[] = "{\"prompt\": \"abcdefghij\", \"response\": \"x\"}\n"
                                "{\"prompt\": \"a\", \"response\": \"bcdefghijkl\"}\n"
                                "{\"prompt\": \"a\", \"response\": \"c\"}\n";
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokenizer = letters(&error);
    zf_tuning a, b;
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    CHECK(t, load_lines(tokenizer, one, 8, &a, &error) && !a.cut && !a.left_out);
    CHECK(t, load_lines(tokenizer, one, 8, &b, &error) && a.begins == b.begins);
    zf_tuning_free(&b);
    CHECK(t, load_lines(tokenizer, other, 8, &b, &error));
    CHECK(t, a.tokens == b.tokens && a.digest != b.digest && a.begins != b.begins);
    zf_tuning_free(&a), zf_tuning_free(&b);
    CHECK(t, load_lines(tokenizer, long_, 8, &a, &error));
    CHECK(t, a.examples == 2 && a.cut == 1 && a.left_out == 1);
    zf_tuning_free(&a);
}

/* What is no text is an error of its line, and a byte order mark is no part of it. */
TEST_ONCE(tuning_files_that_are_no_text)
{
    static const struct {
        const char *bytes;
        size_t count;
        const char *says;
    } cases[] = {
        {"a\nb\n\0c\n", 7, ": line 3: a NUL byte, so this is no text"},
        {"\0", 1, ": line 1: a NUL byte, so this is no text"},
        {"\xFF\xFE" "a\0", 4, ": line 1: this is UTF-16 or UTF-32, by its byte order mark; "},
        {"\xFE\xFF\0a", 4, ": line 1: this is UTF-16 or UTF-32, by its byte order mark; "},
        {"\xEF\xBB\xBF" "ab\n", 6, NULL},
        {"", 0, NULL},
    };
    const char *path = test_path("plain.txt");
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        zf_text text = {.at = NULL};
        zf_error error = {ZF_OK, ""};
        FILE *f = fopen(path, "wb");
        bool good = f && fwrite(cases[k].bytes, 1, cases[k].count, f) == cases[k].count;
        CHECK(t, f && !fclose(f) && good);
        CHECK(t, zf_text_read_plain(path, &text, &error) == !cases[k].says);
        if (cases[k].says) CHECK(t, error.status == ZF_ERR_FORMAT && strstr(error.text, cases[k].says));
        else CHECK_TEXT(t, text.at, k == 4 ? "ab\n" : "");
        zf_text_free(&text);
    }
}

/* Marks the examples that rows have, which begin with letters: how often each. */
static void count_examples(const zf_tuning *all, zf_causal_batch *b, bool held_out, int64_t first,
                           int64_t rows, int seen[100])
{
    for (int64_t at = first; at < first + rows; at++) {
        zf_tuning_read(all, b, held_out, 7, at);
        for (int64_t i = 0; i < b->sequence; i++)
            if (b->segments[i] && !b->positions[i])
                seen[(b->ids[i + 1] - 5) * 10 + (b->ids[i + 2] - 5)]++;
    }
}

/* Rows hold every example once in an epoch, each whole, and another order in the next one. */
TEST_ONCE(tuning_packs_all_examples)
{
    static char lines[8000];
    const char *path = test_path("tuning.jsonl");
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokenizer = letters(&error);
    zf_examples_desc d = {.tokens = tokenizer, .end = 1, .sequence = 16};
    size_t n = 0;
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    for (int e = 0; e < 100; e++)
        n += (size_t)snprintf(lines + n, sizeof lines - n,
                              "{\"prompt\": \"%c%c\", \"response\": \"%.*s\"}\n", 'c' + e / 10,
                              'c' + e % 10, 1 + e * 7 % 11, "zzzzzzzzzzzzzzzz");
    CHECK(t, write_lines(path, lines));
    for (int alone = 0; alone < 2; alone++) {
        zf_tuning all;
        zf_causal_batch b = {.ids = NULL};
        int seen[2][100] = {{0}}, held[100] = {0}, once = 0;
        int32_t orders[2] = {0};
        bool good, whole = true;
        int64_t rows, of_rows, count;
        d.alone = alone;
        good = zf_tuning_load(&all, path, &d, &error) && zf_causal_batch_new(&b, 1, 16, true, &error);
        if (!good) {
            OK(t, error.status, error.text);
            return;
        }
        rows = all.train.count, count = all.tokens, of_rows = all.held_out;
        for (int epoch = 0; epoch < 2; epoch++) {
            count_examples(&all, &b, false, epoch * rows, rows, seen[epoch]);
            zf_tuning_read(&all, &b, false, 7, epoch * rows);
            orders[epoch] = b.ids[1] * 100 + b.ids[2];
        }
        count_examples(&all, &b, true, 0, all.test.count, held);
        for (int e = 0; e < 100; e++) {
            whole = whole && seen[0][e] + held[e] == 1 && seen[1][e] == seen[0][e];
            once += held[e];
        }
        zf_causal_batch_free(&b);
        zf_tuning_free(&all);
        CHECK(t, whole && once == of_rows && of_rows == 5);
        CHECK(t, orders[0] != orders[1]);
        /* Of 5 to 15 tokens each: those above 11 are alone, of the others two fill a row. */
        CHECK(t, count > 900 && (alone ? rows == 95 : rows <= 68));
    }
}

/* The first rows that are held out are a sample of all, not those with the longest examples. */
TEST_ONCE(tuning_held_out_rows_are_mixed)
{
    static char lines[4000];
    const char *path = test_path("tuning.jsonl");
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokenizer = letters(&error);
    zf_examples_desc d = {
        .tokens = tokenizer, .end = 1, .sequence = 16, .alone = true, .evaluates = true};
    zf_tuning all;
    zf_causal_batch b = {.ids = NULL};
    int64_t least = 16;
    size_t n = 0;
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    for (int e = 0; e < 40; e++)
        n += (size_t)snprintf(lines + n, sizeof lines - n,
                              "{\"prompt\": \"q\", \"response\": \"%.*s\"}\n", e < 20 ? 12 : 2,
                              "zzzzzzzzzzzzzzzz");
    CHECK(t, write_lines(path, lines));
    if (!zf_tuning_load(&all, path, &d, &error)) OK(t, error.status, error.text);
    if (zf_causal_batch_new(&b, 1, 16, true, &error)) {
        for (int64_t at = 0; at < 20; at++) {
            int64_t length = 0;
            zf_tuning_read(&all, &b, true, 1, at);
            while (length < 16 && b.segments[length]) length++;
            if (length < least) least = length;
        }
        zf_causal_batch_free(&b);
    }
    zf_tuning_free(&all);
    OK(t, error.status, error.text);
    CHECK(t, least < 10);
}

/* ------------------------------------------------------------------------------------ steps */

/* Three texts, in a row each, or all in the first. */
static bool fill_batch(zf_causal_batch *b, int64_t rows, zf_error *error)
{
    static const int32_t lengths[] = {5, 4, 3};
    int64_t at = 0;
    if (!zf_causal_batch_new(b, rows, 12, true, error)) return false;
    for (int64_t i = 0; i < rows * 12; i++)
        b->ids[i] = b->segments[i] = b->positions[i] = 0, b->labels[i] = -100;
    for (int32_t text = 0; text<3; text++, at += rows> 1 ? 12 - at % 12 : 0)
        for (int32_t k = 0; k < lengths[text]; k++, at++) {
            b->ids[at] = 3 + (text * 7 + k * 5) % 20;
            b->segments[at] = rows > 1 ? 1 : text + 1;
            b->positions[at] = k;
            if (k + 1 < lengths[text]) b->labels[at] = 3 + (text * 7 + (k + 1) * 5) % 20;
            b->labelled += k + 1 < lengths[text];
        }
    return true;
}

/* The losses of some steps. */
static bool train(session_desc d, int64_t rows, double loss[3], zf_error *error)
{
    const float lr = 0.5f;
    session s;
    zf_causal_batch b = {.ids = NULL};
    zf_status status = ZF_OK;
    d.shape = (sample_shape){.batch = rows, .sequence = 12, .rows = SAMPLE_PACKED};
    if (!fill_batch(&b, rows, error)) return false;
    if (!session_open(&s, &d, error)) return zf_causal_batch_free(&b), false;
    for (int k = 0; k < 3 && !status; k++) {
        status = session_feed(&s, &b, false);
        if (!status) status = zf_write(s.program, s.lr, &lr, sizeof lr);
        if (!status) status = zf_step(s.program);
        loss[k] = session_scalar(&s, "loss");
    }
    if (status)
        error->status = status, snprintf(error->text, 200, "%.150s", zf_program_error(s.program));
    session_close(&s);
    zf_causal_batch_free(&b);
    return !status;
}

/* Texts in one row do not see one another: it is as if each had a row of its own. */
static void compare_rows(test *t, const sample_model *sample, const void *config)
{
    session_desc d = {.sample = sample,
                      .purpose = SAMPLE_TRAIN,
                      .config = config,
                      .threads = 1,
                      .seed = 3,
                      .training.optimizer = ZF_SGD};
    zf_error error = {ZF_OK, ""};
    double together[3], alone[3];
    if (!train(d, 1, together, &error) || !train(d, 3, alone, &error)) {
        OK(t, error.status, error.text);
        return;
    }
    for (int k = 0; k < 3; k++) CHECK_NEAR(t, together[k], alone[k], 2e-6 * alone[k]);
    CHECK(t, alone[2] < alone[0]);
}

TEST_ONCE(tuning_texts_in_a_row_are_apart)
{
    gpt_config gpt;
    zf_causal_config llm;
    zf_error error = {ZF_OK, ""};
    if (!gpt_config_load("small", &gpt, &error) || !llm_config_load("15m", &llm, &error))
        OK(t, error.status, error.text);
    gpt.vocab = llm.vocab = 24, gpt.layers = llm.layers = 2, gpt.hidden = llm.hidden = 16;
    gpt.heads = llm.heads = llm.kv_heads = 2, llm.width = 8, gpt.positions = 12;
    gpt.intermediate = llm.intermediate = 32;
    gpt.residual_dropout = gpt.embedding_dropout = gpt.attention_dropout = 0;
    compare_rows(t, &gpt_sample, &gpt);
    if (!t->failed && !t->unwound) compare_rows(t, &llm_sample, &llm);
}

/* Rows of a text with --pack: after an end (2) comes the next text, and no label. */
TEST(tuning_rows_of_a_text_keep_documents_apart)
{
    static int32_t id[] = {5, 6, 2, 2, 7, 8, 9, 2, 4, 5, 6};
    static const int32_t labels[] = {6, 2, -100, -100, 8, 9, 2, -100, 5, 6};
    static const int32_t segments[] = {1, 1, 1, 2, 3, 1, 1, 1, 2, 2};
    static const int32_t positions[] = {0, 1, 2, 0, 0, 0, 1, 2, 0, 1};
    const causal_tokens text = {id, sizeof id / sizeof *id, 2};
    zf_causal_batch b;
    zf_error error = {ZF_OK, ""};
    OK(t, !zf_causal_batch_new(&b, 2, 5, true, &error), error.text);
    for (int again = 0; again < 2; again++) {
        causal_batch_read(&b, &text, 0);
        CHECK(t, !memcmp(b.labels, labels, sizeof labels) && b.labelled == 7);
        CHECK(t, !memcmp(b.segments, segments, sizeof segments));
        CHECK(t, !memcmp(b.positions, positions, sizeof positions));
    }
    causal_batch_draw(&b, &text, 3, 0);
    for (int k = 0; k < 10; k++) {
        const bool ends = b.ids[k] == 2, first = k % 5 == 0;
        CHECK(t, (b.labels[k] == -100) == ends);
        CHECK(t, (b.positions[k] == 0) == (first || b.ids[k - 1] == 2));
    }
    zf_causal_batch_free(&b);
    OK(t, !zf_causal_batch_new(&b, 2, 5, false, &error), error.text);
    causal_batch_read(&b, &text, 0);
    CHECK(t, b.labels[2] == 2 && b.labelled == 10 && !b.segments);
    zf_causal_batch_free(&b);
}

/* ------------------------------------------------------------------------------------ labels */

#define LABELS "tests/golden/labels/"

static void write_example(FILE *f, const zf_json *messages)
{
    fprintf(f, "{\"messages\": [");
    for (const zf_json *v = zf_json_first(messages); v; v = zf_json_next(v)) {
        const char *text = zf_json_string(zf_json_member(v, "content"), NULL);
        fprintf(f, "%s{\"role\": \"%s\", \"content\": \"", v == zf_json_first(messages) ? "" : ", ",
                zf_json_string(zf_json_member(v, "role"), NULL));
        for (; *text; text++)
            if (*text == '\n') fprintf(f, "\\n");
            else fputc(*text, f);
        fprintf(f, "\"}");
    }
    fprintf(f, "]}\n");
}

/* The tokens of an example and their labels, as text: [] around those that have one. */
static void show_labels(const int32_t *ids, const bool *labelled, size_t count, char *out, size_t room)
{
    size_t n = 0;
    *out = 0;
    for (size_t i = 0; i < count && n < room; i++)
        n += (size_t)snprintf(out + n, room - n, labelled[i] ? "[%d]" : " %d ", (int)ids[i]);
}

/* One conversation with its labels by TRL. */
static void check_labels(test *t, const zf_examples_desc *d, const char *name, const zf_json *golden)
{
    enum { MOST = 200 };
    const char *path = test_path("labels.jsonl");
    int32_t ids[MOST];
    bool labelled[MOST], any = false;
    char got[2000], want[2000];
    size_t count = 0;
    zf_error error = {ZF_OK, ""};
    zf_tuning all;
    FILE *f = fopen(path, "wb");
    const zf_json *mark = zf_json_first(zf_json_member(golden, "labelled"));
    for (const zf_json *v = zf_json_first(zf_json_member(golden, "ids")); v && count < MOST;
         v = zf_json_next(v), mark = zf_json_next(mark), count++) {
        int64_t id = 0, one = 0;
        zf_json_to_int(v, 0, INT32_MAX, &id, NULL);
        zf_json_to_int(mark, 0, 1, &one, NULL);
        ids[count] = (int32_t)id, labelled[count] = one, any |= one;
    }
    NEED(t, f, &error);
    for (int k = 0; k < 2; k++) write_example(f, zf_json_member(golden, "messages"));
    CHECK(t, !fclose(f));
    if (!zf_tuning_load(&all, path, d, &error)) {
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        CHECK(t, !any && strstr(error.text, "0 examples"));
        return;
    }
    show_labels(ids, labelled, count, want, sizeof want);
    show_labels(all.ids, all.labelled, (size_t)all.at[1], got, sizeof got);
    zf_tuning_free(&all);
    if (strcmp(got, want)) test_fail(t, __FILE__, __LINE__, "differs", name);
    CHECK_TEXT(t, got, want);
}

/* Which tokens of conversations are trained on, token by token, as TRL's assistant-only loss has
 * them: blocks with and without the token that ends an answer, and tokens across their borders. */
TEST_ONCE(tuning_labels_are_those_of_trl)
{
    zf_error error = {ZF_OK, ""};
    zf_json *golden = zf_json_read(LABELS "labels.json", NULL, &error);
    NEED(t, golden, &error);
    test_defer(t, free_json, golden);
    for (const zf_json *v = zf_json_first(golden); v && !t->failed; v = zf_json_next(v)) {
        char path[100];
        snprintf(path, sizeof path, LABELS "%s.json", zf_json_key(v, NULL));
        zf_tokenizer *tokenizer = zf_tokenizer_open(path, &error);
        if (!tokenizer) OK(t, error.status, error.text);
        for (const zf_json *k = zf_json_first(v); k && !t->failed; k = zf_json_next(k)) {
            zf_chat chat;
            const zf_examples_desc d = {.tokens = tokenizer, .end = -1, .sequence = 256, .chat = &chat};
            snprintf(path, sizeof path, LABELS "%s", zf_json_key(k, NULL));
            bool good = zf_chat_open(&chat, "tests/golden/chat/chatml", path, &error);
            for (const zf_json *c = zf_json_first(k); c && good && !t->failed; c = zf_json_next(c))
                check_labels(t, &d, path, c);
            zf_chat_close(&chat);
        }
        zf_tokenizer_free(tokenizer);
    }
    OK(t, error.status, error.text);
}
