/* Chats as texts, against templates that jinja2 and transformers have run (make.py and published.py in
 * tests/golden/chat); what of them is trained on; what is refused. */
#include "../../zeroflow_llm.h"
#include "../support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define GOLDEN "tests/golden/chat/"

static void free_json(void *json) { zf_json_free(json); }

/* A conversation of the goldens: texts that begin with the letter of a role. */
static zf_json *chat_of(const zf_json *chat, zf_error *error)
{
    zf_chat_message m[8];
    size_t count = 0;
    for (const zf_json *v = zf_json_first(chat); v; v = zf_json_next(v), count++) {
        m[count].text = zf_json_string(v, &m[count].bytes) + 2, m[count].bytes -= 2;
        m[count].role = m[count].text[-2] == 's'   ? "system"
                        : m[count].text[-2] == 'u' ? "user"
                                                   : "assistant";
    }
    return zf_chat_of(m, count, error);
}

/* The text of a chat, or its error. */
static void write_chat(const zf_chat *chat, const zf_json *golden, bool answer, zf_text *out)
{
    zf_error error = {ZF_OK, ""};
    zf_json *conversation = chat_of(golden, &error);
    bool good = conversation && zf_chat_write(chat, conversation, answer, out, NULL, &error);
    zf_json_free(conversation);
    if (!good) zf_text_clear(out);
    if (!good) zf_text_add_string(out, error.status == ZF_ERR_NOMEM ? "out of memory" : "error");
}

static void compare(test *t, const zf_chat *chat, const char *name, const zf_json *v)
{
    for (int answer = 0; answer < 2; answer++) {
        const char *text = zf_json_string(zf_json_element(zf_json_member(v, "text"), answer), NULL);
        char got[700], want[700];
        zf_text out = {.at = NULL};
        write_chat(chat, zf_json_member(v, "chat"), answer, &out);
        snprintf(got, sizeof got, "%s: %s", name, out.at ? out.at : "out of memory");
        snprintf(want, sizeof want, "%s: %s", name, text ? text : "error");
        zf_text_free(&out);
        if (!strcmp(got, want)) continue;
        if (!strstr(got, "out of memory")) CHECK_TEXT(t, got, want);
        OK(t, ZF_ERR_NOMEM, "out of memory");
    }
}

TEST_ONCE(chat_templates_of_folders)
{
    zf_error error = {ZF_OK, ""};
    zf_json *folders = zf_json_read(GOLDEN "chats.json", NULL, &error);
    NEED(t, folders, &error);
    test_defer(t, free_json, folders);
    for (const zf_json *v = zf_json_first(folders); v && !t->failed; v = zf_json_next(v)) {
        char folder[100];
        zf_chat chat;
        snprintf(folder, sizeof folder, GOLDEN "%s", zf_json_key(v, NULL));
        if (!zf_chat_open(&chat, folder, NULL, &error)) OK(t, error.status, error.text);
        for (const zf_json *c = zf_json_first(v); c; c = zf_json_next(c))
            compare(t, &chat, zf_json_key(v, NULL), c);
        zf_chat_close(&chat);
    }
}

/* Each style writes what the templates write that models are published with. */
TEST_ONCE(chat_styles_write_as_published)
{
    zf_error error = {ZF_OK, ""};
    zf_json *styles = zf_json_read(GOLDEN "published.json", NULL, &error);
    char names[sizeof ZF_CHAT_STYLES];
    NEED(t, styles, &error);
    test_defer(t, free_json, styles);
    strcpy(names, ZF_CHAT_STYLES);
    for (char *name = strtok(names, ", "); name && !t->failed; name = strtok(NULL, ", ")) {
        const zf_json *chats = zf_json_member(zf_json_member(styles, name), "chats");
        zf_chat chat;
        if (!zf_json_first(chats)) test_fail(t, __FILE__, __LINE__, "has no golden", name);
        if (!zf_chat_open(&chat, GOLDEN "chatml", name, &error)) OK(t, error.status, error.text);
        for (const zf_json *c = zf_json_first(chats); c; c = zf_json_next(c))
            compare(t, &chat, name, c);
        zf_chat_close(&chat);
    }
}

/* The text of one question in a style, with the beginning of an answer. */
static bool ask(zf_chat *chat, const char *text, zf_text *out, zf_error *error)
{
    const zf_chat_message m = {"user", text, strlen(text)};
    zf_json *conversation = zf_chat_of(&m, 1, error);
    bool good = conversation && zf_chat_write(chat, conversation, true, out, NULL, error);
    zf_json_free(conversation);
    return good;
}

/* Days: always the same, today, or given. */
TEST_ONCE(chat_templates_with_days)
{
    static const struct {
        const char *style, *date, *shown;
        bool answers;
    } cases[] = {{"llama3.1", NULL, ZF_CHAT_DATE, true},
                 {"llama3.2", NULL, ZF_CHAT_DATE, false},
                 {"llama3.2", NULL, NULL, true},
                 {"llama3.2", "02 Feb 2031", "02 Feb 2031", true},
                 {"llama3.1", "1 May 2030", "1 May 2030", false}};
    zf_error error = {ZF_OK, ""};
    zf_chat chat;
    char day[32], want[64], again[32];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *shown = cases[k].shown ? cases[k].shown : day;
        zf_text out = {.at = NULL};
        bool good = zf_chat_open(&chat, GOLDEN "chatml", cases[k].style, &error);
        time_t now = time(NULL);
        strftime(day, sizeof day, "%d %b %Y", localtime(&now));
        good = good && zf_chat_set_date(&chat, cases[k].date, cases[k].answers, &error) &&
               ask(&chat, "a", &out, &error);
        now = time(NULL);
        strftime(again, sizeof again, "%d %b %Y", localtime(&now));
        snprintf(want, sizeof want, "\nToday Date: %s\n\n<|eot_id|>", shown);
        if (good && !strstr(out.at, want) && !strcmp(day, again)) /* else it was midnight */
            CHECK_TEXT(t, out.at, want);
        zf_text_free(&out);
        zf_chat_close(&chat);
        OK(t, error.status, error.text);
    }
}

/* A setting that is refused. */
static void refuses(test *t, const char *style, int setting, const char *value, const char *want)
{
    zf_error error = {ZF_OK, ""};
    zf_chat chat;
    bool good;
    if (!zf_chat_open(&chat, GOLDEN "chatml", style, &error)) OK(t, error.status, error.text);
    good = setting == 'd'   ? zf_chat_set_date(&chat, value, true, &error)
           : setting == 's' ? zf_chat_set_silent(&chat, &error)
                            : zf_chat_set_variables(&chat, value, &error);
    zf_chat_close(&chat);
    CHECK(t, !good);
    CHECK_TEXT(t, error.text, want);
}

TEST_ONCE(chat_settings_that_do_nothing)
{
    refuses(t, "llama3.1", 'd', "a day", "--date is a day, as \"26 Jul 2024\", not a day");
    refuses(t, "llama3.1", 'd', "31 Feb 2030", "--date is a day, as \"26 Jul 2024\", not 31 Feb 2030");
    refuses(t, "llama3.1", 'd', "1 Mai 2030", "--date is a day, as \"26 Jul 2024\", not 1 Mai 2030");
    refuses(t, "llama3.1", 'd', "", "--date is a day, as \"26 Jul 2024\", not ");
    refuses(t, "qwen3", 'd', "1 May 2030",
            "--date is for chats whose template shows a day, and this one shows none");
    refuses(t, "qwen2.5", 's', NULL,
            "--no-thinking is for chats whose template reads enable_thinking, and this one does not");
    refuses(t, "qwen2.5", 'v', "{\"enable_thinking\": false}",
            "1:21: enable_thinking is not read by the template of these chats");
    refuses(t, "qwen3", 'v', "[]", "1:1: the top value must be an object, not an array");
}

TEST_ONCE(chat_answers_without_thinking)
{
    for (int way = 0; way < 2; way++) {
        zf_error error = {ZF_OK, ""};
        zf_chat chat;
        zf_text out = {.at = NULL};
        if (!zf_chat_open(&chat, GOLDEN "chatml", "qwen3", &error)) OK(t, error.status, error.text);
        if (way ? zf_chat_set_silent(&chat, &error)
                : zf_chat_set_variables(&chat, "{\"enable_thinking\": false}", &error))
            (void)ask(&chat, "a", &out, &error);
        if (!error.status)
            CHECK_TEXT(t, out.at, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n"
                                  "</think>\n\n");
        zf_text_free(&out);
        zf_chat_close(&chat);
        OK(t, error.status, error.text);
    }
}

static void is_not_there(test *t, const char *folder, const char *name, const char *want)
{
    zf_error error = {ZF_OK, ""};
    zf_chat chat;
    CHECK(t, !zf_chat_open(&chat, folder, name, &error));
    if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
    if (!strstr(error.text, want)) CHECK_TEXT(t, error.text, want);
}

TEST_ONCE(chat_templates_that_are_not_there)
{
    zf_error error = {ZF_OK, ""};
    zf_chat chat;
    /* Without a chat the template does not matter. */
    if (!zf_chat_open(&chat, GOLDEN "unknown", "none", &error)) OK(t, error.status, error.text);
    CHECK(t, !chat.plain && !strcmp(chat.begin, "<s>"));
    zf_chat_close(&chat);
    is_not_there(t, GOLDEN "unknown", "alpaca",
                 "there is no style of chats alpaca, only none, " ZF_CHAT_STYLES
                 "; a file of a template has a / in its path, or ends in .jinja");
    is_not_there(t, GOLDEN "unknown", "tests/none.jinja",
                 "tests/none.jinja: No such file or directory");
    is_not_there(t, "tests/golden/tokens", NULL, "tests/golden/tokens/tokenizer_config.json");
}

/* A template of a file, as a style. */
TEST_ONCE(chat_templates_of_files)
{
    zf_error error = {ZF_OK, ""};
    zf_chat chat;
    zf_text out = {.at = NULL};
    if (!zf_chat_open(&chat, GOLDEN "chatml", GOLDEN "zephyr/chat_template.jinja", &error))
        OK(t, error.status, error.text);
    CHECK(t, chat.style == -1);
    (void)ask(&chat, "a", &out, &error);
    if (!error.status) CHECK_TEXT(t, out.at, "<|user|>\na</s>\n<|assistant|>\n");
    zf_text_free(&out);
    zf_chat_close(&chat);
    OK(t, error.status, error.text);
}

/* What is trained on, in brackets, in the text of a conversation. */
static void show_spans(const zf_chat *chat, const char *json, char *got, size_t room,
                       zf_error *error)
{
    zf_json *conversation = zf_json_parse(json, strlen(json), NULL, error);
    zf_chat_spans spans = {.at = NULL};
    zf_text out = {.at = NULL};
    size_t n = 0;
    *got = 0;
    if (conversation && zf_chat_write(chat, conversation, false, &out, &spans, error))
        for (size_t i = 0; i < spans.count; i++)
            n += (size_t)snprintf(got + n, n < room ? room - n : 0, "%lld[%.*s]",
                                  (long long)spans.at[i].message,
                                  (int)(spans.at[i].end - spans.at[i].begin),
                                  out.at + spans.at[i].begin);
    zf_json_free(conversation);
    zf_chat_spans_free(&spans);
    zf_text_free(&out);
}

#define TURNS                                                                                      \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "                                   \
    "{\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\"}, "    \
    "{\"role\": \"assistant\", \"content\": \"d \"}]}"

/* An answer is trained on with the token that ends it: by generation blocks in styles, by the
 * difference of texts in folders. */
TEST_ONCE(chat_answers_have_their_place)
{
    static const struct {
        const char *folder, *style, *want;
    } cases[] = {
        {"chatml", "chatml", "1[b<|im_end|>]3[d <|im_end|>]"},
        {"chatml", "qwen2.5", "1[b<|im_end|>]3[d <|im_end|>]"},
        {"chatml", "llama2", "1[b </s>]3[d </s>]"},
        {"chatml", "llama3", "1[b<|eot_id|>]3[d<|eot_id|>]"},
        {"chatml", "mistral-v1", "1[b</s>]3[d </s>]"},
        {"chatml", "mistral-v3", "1[b</s>]3[d</s>]"},
        {"chatml", "zephyr", "1[b</s>]3[d </s>]"},
        {"chatml", "gemma3", "1[b<end_of_turn>]3[d<end_of_turn>]"},
        {"chatml", "phi3.5", "1[b<|end|>]3[d <|end|>]"},
        {"chatml", "qwen3", "1[b<|im_end|>]3[<think>\n\n</think>\n\nd <|im_end|>]"},
        {"chatml", NULL, "1[b<|im_end|>]3[d <|im_end|>]"},
        {"llama2", NULL, "1[ b </s>]3[ d </s>]"},
        {"llama3", NULL, "1[b<|eot_id|>]3[d<|eot_id|>]"},
        {"mistral-v1", NULL, "1[b</s>]3[d </s>]"},
        {"zephyr", NULL, "1[b</s>]3[d </s>]"},
    };
    zf_error error = {ZF_OK, ""};
    for (size_t k = 0; k < sizeof cases / sizeof *cases && !t->failed; k++) {
        char got[200], folder[100];
        zf_chat chat;
        snprintf(folder, sizeof folder, GOLDEN "%s", cases[k].folder);
        if (!zf_chat_open(&chat, folder, cases[k].style, &error)) OK(t, error.status, error.text);
        show_spans(&chat, TURNS, got, sizeof got, &error);
        zf_chat_close(&chat);
        OK(t, error.status, error.text);
        CHECK_TEXT(t, got, cases[k].want);
    }
}

/* A template for a test. */
static bool open_text(zf_chat *chat, const char *jinja, zf_error *error)
{
    return zf_chat_open(chat, GOLDEN "chatml", "none", error) &&
           (chat->plain = zf_jinja_parse(jinja, strlen(jinja), "T", error));
}

#define LIST "{% for m in messages %}{{ m.role[0] ~ m.content }}{% endfor %}"

/* Parts of a content are one text, unless the template reads parts; developer is system in styles. */
TEST_ONCE(chat_contents_of_parts)
{
#define PARTS                                                                                      \
    "{\"messages\": [{\"role\": \"developer\", \"content\": []}, {\"role\": \"assistant\", "        \
    "\"content\": [{\"type\": \"text\", \"text\": \"a\\n\"}, {\"type\": \"text\", \"text\": \"b \"}]}]}"
    static const struct {
        const char *jinja, *want; /* a template, or a style */
    } cases[] = {
        {LIST, "daa\nb "},
        {"{% for m in messages %}{{ m.role[0] }}|{% for p in m.content %}{{ p.text|trim }},"
         "{% endfor %}{% endfor %}",
         "d|a|a,b,"},
        {"chatml", "<|im_start|>system\n<|im_end|>\n<|im_start|>assistant\na\nb <|im_end|>\n"},
    };
    zf_error error = {ZF_OK, ""};
    zf_json *v = zf_json_parse(PARTS, strlen(PARTS), NULL, &error);
    NEED(t, v, &error);
    test_defer(t, free_json, v);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        zf_text out = {.at = NULL};
        zf_chat chat;
        char got[200];
        if (k < 2 ? open_text(&chat, cases[k].jinja, &error)
                  : zf_chat_open(&chat, GOLDEN "chatml", cases[k].jinja, &error))
            (void)zf_chat_write(&chat, v, false, &out, NULL, &error);
        zf_chat_close(&chat);
        snprintf(got, sizeof got, "%s", out.at ? out.at : "");
        zf_text_free(&out);
        OK(t, error.status, error.text);
        CHECK_TEXT(t, got, cases[k].want);
    }
    /* An answer that ends with its content has the blank at its end. */
    char got[200];
    zf_chat chat;
    if (open_text(&chat, LIST, &error)) show_spans(&chat, PARTS, got, sizeof got, &error);
    zf_chat_close(&chat);
    OK(t, error.status, error.text);
    CHECK_TEXT(t, got, "1[aa\nb ]");
}

/* Conversations that a template refuses, or would not write whole. */
TEST_ONCE(chat_conversations_that_are_refused)
{
    static const struct {
        const char *jinja, *json, *want;
    } cases[] = {
        {LIST, "{\"messages\": [{\"content\": \"a\"}]}", "1:15: messages[0] lacks \"role\""},
        {LIST, "{\"messages\": [{\"role\": \"a\", \"content\": [\"b\"]}]}",
         "1:41: messages[0].content[0] must be an object, not \"b\""},
        {LIST, "{\"messages\": [{\"role\": \"a\", \"content\": [{\"text\": \"b\"}]}]}",
         "1:41: messages[0].content[0] lacks \"type\""},
        {LIST, "{\"messages\": [{\"role\": \"a\", \"content\": [{\"type\": \"image\"}]}]}",
         "1:50: messages[0].content[0].type must be \"text\": the template of these chats reads no "
         "other parts, not \"image\""},
        {LIST, "{\"messages\": [{\"role\": \"a\", \"content\": [{\"type\": \"text\", \"text\": 1}]}]}",
         "1:66: messages[0].content[0].text must be a string, not 1"},
        {LIST, "{\"messages\": [1]}", "1:15: messages[0] must be an object, not 1"},
        {LIST, "{\"messages\": []}",
         "1:14: messages has no message"},
        {LIST, "{\"messages\": [{\"role\": \"user\"}], \"tools\": [{}]}",
         "1:43: tools is not written by the template of these chats"},
        {LIST, "{\"messages\": [{\"role\": \"user\"}], \"documents\": [{}]}",
         "1:47: documents is not written by the template of these chats"},
        {LIST, "{\"messages\": [{\"role\": \"user\"}], \"functions\": [{}]}",
         "1:47: functions is not written by the template of these chats"},
        {LIST, "{\"messages\": [{\"role\": \"a\", \"tool_calls\": [{}]}]}",
         "1:43: messages[0].tool_calls is not written by the template of these chats"},
        {LIST, "{\"messages\": [{\"role\": \"a\", \"function_call\": {\"a\": 1}}]}",
         "1:46: messages[0].function_call is not written by the template of these chats"},
        {LIST, "{\"messages\": [{\"role\": \"a\", \"reasoning\": \"x\"}]}",
         "1:42: messages[0].reasoning is not written by the template of these chats"},
        {LIST, "{\"messages\": [{\"role\": \"a\"}], \"chat_template_kwargs\": {\"deep\": 1}}",
         "1:64: chat_template_kwargs.deep is not read by the template of these chats"},
        {"a\n{{ messages[0].text.x }}", "{\"messages\": [{\"role\": \"user\"}]}",
         "T: line 2: an element 'text' of a value of the kind dict is undefined"},
        {"{{ raise_exception('not now') }}", "{\"messages\": [{\"role\": \"user\"}]}",
         "T: line 1: the template refuses these messages: not now"},
        {"{% for m in messages %}{{ m.content if loop.last else 'x' }};{% endfor %}", TURNS,
         "message 2: the template has no generation block, and changes this text when messages "
         "follow, so what is trained on is not known: name a style or file that has them (--chat), "
         "or make an example of each answer"},
        {"{% macro a() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ a() }}", TURNS,
         "T: line 1: a generation block within a macro or a set block has no place in the text"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases && !t->failed; k++) {
        zf_error error = {ZF_OK, ""};
        zf_chat chat;
        char got[100];
        if (open_text(&chat, cases[k].jinja, &error))
            show_spans(&chat, cases[k].json, got, sizeof got, &error);
        zf_chat_close(&chat);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        CHECK_TEXT(t, error.text, cases[k].want);
    }
}

/* A conversation that a style cannot write is refused, a message of a system alone among them. */
TEST_ONCE(chat_styles_refuse)
{
    static const char system[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}]}",
                      tool[] = "{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}",
                      twice[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                                "{\"role\": \"user\", \"content\": \"b\"}]}";
    static const struct {
        const char *styles, *json, *want;
    } cases[] = {
        {"llama2", system, "the template refuses these messages: there is no message of the user"},
        {"mistral-v1 mistral-v3 gemma", system, "the template refuses these messages: "},
        {"llama2 mistral-v1 mistral-v3 gemma", twice, "users and assistants take turns"},
        {"chatml llama3 zephyr phi3", tool, "has no message of the role tool"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (const char *at = cases[k].styles; *at && !t->failed; at += *at == ' ') {
            zf_error error = {ZF_OK, ""};
            zf_chat chat;
            char got[100], style[20];
            const size_t n = strcspn(at, " ");
            snprintf(style, sizeof style, "%.*s", (int)n, at), at += n;
            if (zf_chat_open(&chat, GOLDEN "chatml", style, &error))
                show_spans(&chat, cases[k].json, got, sizeof got, &error);
            zf_chat_close(&chat);
            if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
            if (!strstr(error.text, cases[k].want)) CHECK_TEXT(t, error.text, cases[k].want);
        }
}

/* What a template is given. */
TEST_ONCE(chat_templates_are_given_all)
{
    static const char jinja[] =
        "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|{{ tools is none }}|"
        "{{ documents is none }}|{{ add_generation_prompt }}|{{ messages[0].content is defined }}|"
        "{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}|{{ color }}|"
        "{% for tool in tools or [] %}{{ tool.name }}{% endfor %}";
    static const char json[] =
        "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"thinking\": \"hm\"}], "
        "\"tools\": \"[{\\\"name\\\": \\\"f\\\"}]\", \"chat_template_kwargs\": {\"color\": \"red\"}}";
    zf_error error = {ZF_OK, ""};
    zf_chat chat;
    zf_text out = {.at = NULL};
    zf_json *v = zf_json_parse(json, strlen(json), NULL, &error);
    if (v && open_text(&chat, jinja, &error)) {
        (void)zf_chat_write(&chat, v, true, &out, NULL, &error);
        zf_chat_close(&chat);
    }
    zf_json_free(v);
    if (!error.status)
        CHECK_TEXT(t, out.at, "<s>|</s>|False|False|True|True|False|hm|hm|red|f");
    zf_text_free(&out);
    OK(t, error.status, error.text);
}

/* The token that ends an answer. */
TEST_ONCE(chat_ends_are_found)
{
    static const char *const cases[][2] = {{"chatml", "<|im_end|>"}, {"llama2", "</s>"},
                                           {"phi3", "<|end|>"},      {"gemma", "<end_of_turn>"},
                                           {"llama3.1", "<|eot_id|>"}};
    zf_error error = {ZF_OK, ""};
    for (size_t k = 0; k < sizeof cases / sizeof *cases && !t->failed; k++) {
        char end[ZF_CHAT_TOKEN] = "";
        zf_chat chat;
        if (zf_chat_open(&chat, GOLDEN "chatml", cases[k][0], &error))
            (void)zf_chat_end(&chat, end, &error);
        zf_chat_close(&chat);
        OK(t, error.status, error.text);
        CHECK_TEXT(t, end, cases[k][1]);
    }
}

/* A tokenizer with two added tokens. */
static zf_tokenizer *few_tokens(zf_error *error)
{
    static const char text[] =
        "{\"added_tokens\": [{\"id\": 1, \"content\": \"<|im_start|>\", \"special\": true}, "
        "{\"id\": 2, \"content\": \"<|im_end|>\", \"special\": true}], "
        "\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}}";
    return zf_tokenizer_parse(text, strlen(text), "few", error);
}

/* A style whose tokens the tokenizer lacks would be split into letters. */
TEST_ONCE(chat_styles_need_their_tokens)
{
    static const char *const cases[][2] = {
        {"qwen2.5", ""},
        {"gemma", "chats of the style gemma need the token <start_of_turn>, which the tokenizer lacks"},
        {"llama3", "chats of the style llama3 need the token <|start_header_id|>, which the tokenizer "
                   "lacks"},
        {"zephyr", ""}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases && !t->failed; k++) {
        zf_error error = {ZF_OK, ""};
        zf_chat chat;
        zf_tokenizer *tokens = few_tokens(&error);
        if (tokens && zf_chat_open(&chat, GOLDEN "chatml", cases[k][0], &error)) {
            (void)zf_chat_fits(&chat, tokens, &error);
            zf_chat_close(&chat);
        }
        zf_tokenizer_free(tokens);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        CHECK_TEXT(t, error.text, cases[k][1]);
    }
}

/* A value is copied with its digits and all bytes of its strings. */
TEST_ONCE(chat_values_of_json_are_copied)
{
    static const char json[] = "{\"a\\u0000\\n\\\"\": [1.0, 12345678901234567890123, -2e-400, true, "
                               "false, null, {}, [], \"x\\u0000y\\u001f\\\\\\u00e9\"]}",
                      want[] = "{\"a\\u0000\\u000a\\u0022\": [1.0, 12345678901234567890123, -2e-400, "
                               "true, false, null, {}, [], \"x\\u0000y\\u001f\\u005c\xc3\xa9\"]}";
    zf_error error = {ZF_OK, ""};
    zf_json *v = zf_json_parse(json, sizeof json - 1, NULL, &error);
    zf_text out = {.at = NULL};
    bool good;
    NEED(t, v, &error);
    zf_text_add_json(&out, v);
    zf_json_free(v);
    good = out.at && !strcmp(out.at, want);
    if (!good && !out.failed) CHECK_TEXT(t, out.at, want);
    zf_text_free(&out);
    if (!good) OK(t, ZF_ERR_NOMEM, "out of memory");
}
