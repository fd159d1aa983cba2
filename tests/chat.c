/* Chats as texts, against templates that jinja2 and transformers have run (make.py and published.py in
 * tests/golden/chat); templates that are not known. */
#include "../zeroflow_llm.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define GOLDEN "tests/golden/chat/"

static void free_json(void *json) { zf_json_free(json); }

/* The text of a chat of the goldens, or its error. */
static void write_chat(const zf_chat *style, const zf_json *chat, bool answer, zf_text *out,
                       zf_chat_span *spans)
{
    zf_chat_message m[8];
    zf_error error = {ZF_OK, ""};
    size_t count = 0;
    for (const zf_json *v = zf_json_first(chat); v; v = zf_json_next(v), count++) {
        const char *text = zf_json_string(v, &m[count].bytes);
        m[count].role = *text == 's'   ? ZF_CHAT_SYSTEM
                        : *text == 'u' ? ZF_CHAT_USER
                                       : ZF_CHAT_ASSISTANT;
        m[count].text = text + 2, m[count].bytes -= 2;
    }
    zf_text_clear(out);
    if (zf_chat_write(style, m, count, answer, out, spans, &error)) return;
    zf_text_clear(out);
    zf_text_add_string(out, error.status == ZF_ERR_NOMEM ? "out of memory" : "error");
}

static void compare(test *t, const zf_chat *style, const char *name, const zf_json *v, zf_text *out)
{
    for (int answer = 0; answer < 2; answer++) {
        const char *text = zf_json_string(zf_json_element(zf_json_member(v, "text"), answer), NULL);
        char got[500], want[500];
        write_chat(style, zf_json_member(v, "chat"), answer, out, NULL);
        snprintf(got, sizeof got, "%s: %s", name, out->at ? out->at : "out of memory");
        snprintf(want, sizeof want, "%s: %s", name, text ? text : "error");
        if (strcmp(got, want) && !strstr(got, "out of memory")) CHECK_TEXT(t, got, want);
        if (strcmp(got, want)) OK(t, ZF_ERR_NOMEM, "out of memory");
    }
}

TEST_ONCE(chat_templates_are_recognised)
{
    zf_error error = {ZF_OK, ""};
    zf_json *styles = zf_json_read(GOLDEN "chats.json", NULL, &error);
    NEED(t, styles, &error);
    test_defer(t, free_json, styles);
    for (const zf_json *v = zf_json_first(styles); v && !t->failed; v = zf_json_next(v)) {
        const char *name = zf_json_key(v, NULL);
        char folder[100];
        zf_chat named, style;
        zf_text out = {.at = NULL};
        snprintf(folder, sizeof folder, GOLDEN "%s", name);
        if (!zf_chat_open(&style, folder, NULL, &error) ||
            !zf_chat_open(&named, folder, name, &error))
            OK(t, error.status, error.text);
        CHECK(t, named.style == style.style);
        for (const zf_json *c = zf_json_first(v); c; c = zf_json_next(c))
            compare(t, &style, name, c, &out);
        zf_text_free(&out);
    }
}

/* Each style by name, and by the digests of published templates. */
TEST_ONCE(chat_templates_that_are_published)
{
    zf_error error = {ZF_OK, ""};
    zf_json *styles = zf_json_read(GOLDEN "published.json", NULL, &error);
    char names[sizeof ZF_CHAT_STYLES];
    NEED(t, styles, &error);
    test_defer(t, free_json, styles);
    strcpy(names, ZF_CHAT_STYLES);
    for (char *name = strtok(names, ", "); name && !t->failed; name = strtok(NULL, ", ")) {
        const zf_json *v = zf_json_member(styles, name), *digests = zf_json_member(v, "digests");
        zf_chat style;
        zf_text out = {.at = NULL};
        if (!zf_json_first(digests)) test_fail(t, __FILE__, __LINE__, "has no golden", name);
        if (!zf_chat_open(&style, GOLDEN "chatml", name, &error)) OK(t, error.status, error.text);
        for (const zf_json *d = zf_json_first(digests); d; d = zf_json_next(d))
            CHECK(t, zf_chat_style_published(strtoull(zf_json_string(d, NULL), NULL, 16)) ==
                         style.style);
        for (const zf_json *c = zf_json_first(zf_json_member(v, "chats")); c; c = zf_json_next(c))
            compare(t, &style, name, c, &out);
        zf_text_free(&out);
    }
    CHECK(t, !zf_chat_style_published(1));
    CHECK(t, zf_chat_digest("{{ '\303\251\\n' }}\n\n") == UINT64_C(0xcd269300d6d8573d));
}

/* Dates: always the same, of the day, or given. */
TEST_ONCE(chat_templates_with_dates)
{
    static const struct {
        const char *style, *date, *shown;
        bool answers;
    } cases[] = {{"llama3.1", NULL, ZF_CHAT_DATE, true},
                 {"llama3.2", NULL, ZF_CHAT_DATE, false},
                 {"llama3.2", NULL, NULL, true},
                 {"llama3.1", "1 May 2030", "1 May 2030", false}};
    const zf_chat_message m = {ZF_CHAT_USER, "a", 1};
    zf_error error = {ZF_OK, ""};
    zf_chat style;
    char day[32], want[64], again[32];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *shown = cases[k].shown ? cases[k].shown : day;
        zf_text out = {.at = NULL};
        bool good = zf_chat_open(&style, GOLDEN "chatml", cases[k].style, &error);
        time_t now = time(NULL);
        strftime(day, sizeof day, "%d %b %Y", localtime(&now));
        good = good && zf_chat_set_date(&style, cases[k].date, cases[k].answers, &error) &&
               zf_chat_write(&style, &m, 1, true, &out, NULL, &error);
        now = time(NULL);
        strftime(again, sizeof again, "%d %b %Y", localtime(&now));
        snprintf(want, sizeof want, "\nToday Date: %s\n\n<|eot_id|>", shown);
        if (good && !strstr(out.at, want) && !strcmp(day, again)) /* else it was midnight */
            CHECK_TEXT(t, out.at, want);
        zf_text_free(&out);
        OK(t, error.status, error.text);
    }
    CHECK(t, !zf_chat_set_date(&style, "a date that is longer than any date", true, &error));
    CHECK_TEXT(t, error.text, "--date is a text of at most 31 bytes, as \"26 Jul 2024\"");
    if (!zf_chat_open(&style, GOLDEN "chatml", "qwen3", &error)) OK(t, error.status, error.text);
    CHECK(t, !zf_chat_set_date(&style, "1 May 2030", true, &error));
    CHECK_TEXT(t, error.text,
               "--date is for chats in the styles llama3.1 and llama3.2, not for qwen3");
}

TEST_ONCE(chat_answers_without_thinking)
{
    const zf_chat_message m = {ZF_CHAT_USER, "a", 1};
    zf_error error = {ZF_OK, ""};
    zf_chat style;
    zf_text out = {.at = NULL};
    if (!zf_chat_open(&style, GOLDEN "chatml", "qwen3", &error) ||
        !zf_chat_set_silent(&style, &error) ||
        !zf_chat_write(&style, &m, 1, true, &out, NULL, &error) ||
        !zf_chat_write(&style, &m, 1, false, &out, NULL, &error))
        OK(t, error.status, error.text);
    zf_text_add(&out, "", 1);
    CHECK_TEXT(t, out.at,
               "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
               "<|im_start|>user\na<|im_end|>\n");
    zf_text_free(&out);
    if (!zf_chat_open(&style, GOLDEN "chatml", "qwen2.5", &error)) OK(t, error.status, error.text);
    CHECK(t, !zf_chat_set_silent(&style, &error));
    CHECK_TEXT(t, error.text, "--no-thinking is for chats in the style qwen3, not for qwen2.5");
}

TEST_ONCE(chat_templates_that_are_not_known)
{
    zf_error error = {ZF_OK, ""};
    zf_chat style, named;
    CHECK(t, !zf_chat_open(&style, GOLDEN "unknown", NULL, &error));
    CHECK_TEXT(t, error.text,
               GOLDEN
               "unknown/tokenizer_config.json: its chat_template is unknown, it has the text "
               "\"<|im_start|>system Be kind.<|im_end|> \": name the style that it is with --chat "
               "(" ZF_CHAT_STYLES ")");
    CHECK(t, !zf_chat_open(&style, GOLDEN "begins", NULL, &error));
    if (!strstr(error.text, "it has the text \"bos_token\"") && error.status != ZF_ERR_NOMEM)
        CHECK_TEXT(t, error.text, "a token that chatml does not have");
    CHECK(t, !zf_chat_open(&style, GOLDEN "trims", NULL, &error));
    if (!strstr(error.text, ": its chat_template is unknown: name the style") &&
        error.status != ZF_ERR_NOMEM)
        CHECK_TEXT(t, error.text, "messages are trimmed, which chatml does not do");
    if (!zf_chat_open(&style, GOLDEN "several", NULL, &error) ||
        !zf_chat_open(&named, GOLDEN "several", "chatml", &error))
        OK(t, error.status, error.text);
    CHECK(t, style.style && style.style == named.style);
    /* Without a chat the template does not matter. */
    if (!zf_chat_open(&style, GOLDEN "unknown", "none", &error)) OK(t, error.status, error.text);
    CHECK(t, !style.style && !strcmp(style.begin, "<s>"));
    CHECK(t, !zf_chat_open(&style, GOLDEN "unknown", "alpaca", &error));
    CHECK_TEXT(t, error.text, "there is no style of chats alpaca, only none, " ZF_CHAT_STYLES);
    CHECK(t, !zf_chat_open(&style, "tests/golden/tokens", NULL, &error));
    CHECK(t, strstr(error.text, "tests/golden/tokens/tokenizer_config.json") ||
                 error.status == ZF_ERR_NOMEM);
}

/* What an answer is trained on: its text and the token that ends it. */
TEST_ONCE(chat_answers_have_their_place)
{
    static const char *const names[] = {"chatml",  "llama2", "llama3", "mistral-v1", "mistral-v3",
                                        "mistral", "zephyr", "gemma3", "phi3.5",     "qwen3"};
    static const char *const ends[] = {"b<|im_end|>",      "b </s>", "b<|eot_id|>", "b</s>", "b</s>",
                                       "b</s>",            "b</s>",  "b<end_of_turn>",
                                       "b<|end|>", "<think>\n\n</think>\n\nb<|im_end|>"};
    const zf_chat_message m[] = {{ZF_CHAT_USER, "a", 1}, {ZF_CHAT_ASSISTANT, "b", 1}};
    zf_error error = {ZF_OK, ""};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char got[64] = "";
        zf_chat style;
        zf_chat_span spans[2];
        zf_text out = {.at = NULL};
        if (!zf_chat_open(&style, GOLDEN "chatml", names[k], &error))
            OK(t, error.status, error.text);
        if (zf_chat_write(&style, m, 2, false, &out, spans, &error))
            snprintf(got, sizeof got, "%.*s", (int)(spans[1].end - spans[1].begin),
                     out.at + spans[1].begin);
        zf_text_free(&out);
        OK(t, error.status, error.text);
        CHECK_TEXT(t, got, ends[k]);
    }
}
