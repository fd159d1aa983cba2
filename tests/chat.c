/* Chats as texts, against templates that jinja2 has run (tests/golden/chat/make.py); templates that
 * are not known. */
#include "../examples/common/chat.h"
#include "test.h"

#include <stdio.h>

#define GOLDEN "tests/golden/chat/"

static void free_json(void *json) { zf_json_free(json); }

/* The text of a chat of the goldens, or its error. */
static void write_chat(const chat_template *style, const zf_json *chat, bool answer, buffer *out,
                       chat_span *spans)
{
    chat_message m[8];
    zf_error error = {ZF_OK, ""};
    size_t count = 0;
    for (const zf_json *v = zf_json_first(chat); v; v = zf_json_next(v), count++) {
        const char *text = zf_json_string(v, &m[count].bytes);
        m[count].role = *text == 's' ? CHAT_SYSTEM : *text == 'u' ? CHAT_USER : CHAT_ASSISTANT;
        m[count].text = text + 2, m[count].bytes -= 2;
    }
    buffer_clear(out);
    if (chat_text(style, m, count, answer, out, spans, &error)) return;
    buffer_clear(out);
    buffer_add_text(out, error.status == ZF_ERR_NOMEM ? "out of memory" : "error");
}

static void compare(test *t, const chat_template *style, const char *name, const zf_json *v,
                    buffer *out)
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
        chat_template named, style;
        buffer out = {.at = NULL};
        snprintf(folder, sizeof folder, GOLDEN "%s", name);
        if (!chat_template_load(&style, folder, NULL, &error) ||
            !chat_template_load(&named, folder, name, &error))
            OK(t, error.status, error.text);
        CHECK(t, named.style == style.style);
        for (const zf_json *c = zf_json_first(v); c; c = zf_json_next(c))
            compare(t, &style, name, c, &out);
        buffer_free(&out);
    }
}

TEST_ONCE(chat_templates_that_are_not_known)
{
    zf_error error = {ZF_OK, ""};
    chat_template style;
    CHECK(t, !chat_template_load(&style, GOLDEN "unknown", NULL, &error));
    CHECK_TEXT(t, error.text,
               GOLDEN
               "unknown/tokenizer_config.json: its chat_template is unknown, it has the text "
               "\"<|im_start|>system Be kind.<|im_end|> \": name the style that it is "
               "(chatml, llama2, llama3, mistral-v1, mistral-v3, mistral, zephyr)");
    CHECK(t, !chat_template_load(&style, GOLDEN "unknown", "alpaca", &error));
    CHECK_TEXT(t, error.text,
               "there is no style of chats alpaca, only chatml, llama2, llama3, mistral-v1, "
               "mistral-v3, mistral, zephyr");
    CHECK(t, !chat_template_load(&style, "tests/golden/tokens", NULL, &error));
    CHECK(t, strstr(error.text, "tests/golden/tokens/tokenizer_config.json") ||
                 error.status == ZF_ERR_NOMEM);
}

/* What an answer is trained on: its text and the token that ends it. */
TEST_ONCE(chat_answers_have_their_place)
{
    static const char *const names[] = {"chatml",     "llama2",  "llama3", "mistral-v1",
                                        "mistral-v3", "mistral", "zephyr"};
    static const char *const ends[] = {"b<|im_end|>", "b </s>", "b<|eot_id|>", "b</s>",
                                       "b</s>",       "b</s>",  "b</s>"};
    const chat_message m[] = {{CHAT_USER, "a", 1}, {CHAT_ASSISTANT, "b", 1}};
    zf_error error = {ZF_OK, ""};
    for (int k = 0; k < 7; k++) {
        char got[64] = "";
        chat_template style;
        chat_span spans[2];
        buffer out = {.at = NULL};
        if (!chat_template_load(&style, GOLDEN "chatml", names[k], &error))
            OK(t, error.status, error.text);
        if (chat_text(&style, m, 2, false, &out, spans, &error))
            snprintf(got, sizeof got, "%.*s", (int)(spans[1].end - spans[1].begin),
                     out.at + spans[1].begin);
        buffer_free(&out);
        OK(t, error.status, error.text);
        CHECK_TEXT(t, got, ends[k]);
    }
}
