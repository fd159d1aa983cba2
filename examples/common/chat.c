#define _POSIX_C_SOURCE 200809L
#include "chat.h"
#include "../bert/tokenizer.h"
#include "fail.h"
#include "file.h"
#include "folder.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LITERALS = 10 };

/* In texts, \1 is the token that begins a text, and \2 the one that ends it. */
struct chat_style {
    const char *name;
    const char *first;              /* before the whole text */
    const char *before[CHAT_ROLES]; /* NULL: no message of this role */
    const char *behind[CHAT_ROLES];
    const char *answer;
    const char *end; /* after the assistant's message: the beginning of `behind` */
    bool trimmed;    /* white space around messages is removed */
    bool joined;     /* the system message becomes the beginning of the user's first one */
    bool alternates; /* users and assistants must alternate */
    /* How a template is recognised: it contains `part`, without spaces, if that is not NULL; and
     * all of its texts are among these, including the first of them. */
    const char *part;
    const char *literals[LITERALS];
};

#define HEADER(role)  "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define INST_LITERALS "[INST] ", " [/INST]", "[INST]", "[/INST]", " "

static const chat_style styles[] = {
    {.name = "chatml",
     .first = "",
     .before = {"<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"},
     .behind = {"<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"},
     .answer = "<|im_start|>assistant\n",
     .end = "<|im_end|>",
     .literals = {"<|im_start|>", "<|im_end|>\n", "<|im_end|>", "\n", "<|im_start|>assistant\n",
                  "<|im_start|>user\n", "<|im_start|>system\n"}},
    {.name = "llama2",
     .first = "",
     .before = {"<<SYS>>\n", "\1[INST] ", " "},
     .behind = {"\n<</SYS>>\n\n", " [/INST]", " \2"},
     .answer = "",
     .end = " \2",
     .trimmed = true,
     .joined = true,
     .alternates = true,
     .literals = {"<<SYS>>\n", "\n<</SYS>>\n\n", INST_LITERALS, "\n<</SYS>>\n"}},
    {.name = "llama3",
     .first = "\1",
     .before = {HEADER("system"), HEADER("user"), HEADER("assistant")},
     .behind = {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"},
     .answer = HEADER("assistant"),
     .end = "<|eot_id|>",
     .trimmed = true,
     .literals = {"<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>",
                  HEADER("assistant")}},
    {.name = "mistral-v1",
     .first = "\1",
     .before = {NULL, "[INST] ", ""},
     .behind = {NULL, " [/INST]", "\2 "},
     .answer = "",
     .end = "\2",
     .alternates = true,
     .part = "eos_token+' '",
     .literals = {INST_LITERALS}},
    {.name = "mistral-v3",
     .first = "\1",
     .before = {NULL, "[INST] ", " "},
     .behind = {NULL, " [/INST]", "\2"},
     .answer = "",
     .end = "\2",
     .alternates = true,
     .part = "' '+message",
     .literals = {INST_LITERALS}},
    {.name = "mistral",
     .first = "\1",
     .before = {NULL, "[INST] ", ""},
     .behind = {NULL, " [/INST]", "\2"},
     .answer = "",
     .end = "\2",
     .alternates = true,
     .literals = {"[INST] ", " [/INST]"}},
    {.name = "zephyr",
     .first = "",
     .before = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
     .behind = {"\2\n", "\2\n", "\2\n"},
     .answer = "<|assistant|>\n",
     .end = "\2",
     .literals = {"<|user|>\n", "<|system|>\n", "<|assistant|>\n", "<|assistant|>"}},
};
enum { STYLES = sizeof styles / sizeof styles[0] };

static const char *const roles[CHAT_ROLES] = {"system", "user", "assistant"};

int chat_role_of(const char *word)
{
    for (int k = 0; k < CHAT_ROLES; k++)
        if (!strcmp(word, roles[k])) return k;
    return -1;
}

/* ----------------------------------------------------------------------------- recognising */

/* Texts in a template that are not output: roles, names of members and of filters. */
static bool is_word(const char *text, size_t bytes)
{
    static const char *const words[] = {"system",  "user",     "assistant", "role",
                                        "content", "messages", ""};
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
        if (strlen(words[k]) == bytes && !memcmp(words[k], text, bytes)) return true;
    return false;
}

static bool is_literal(const chat_style *s, const char *text, size_t bytes)
{
    for (int k = 0; k < LITERALS && s->literals[k]; k++)
        if (strlen(s->literals[k]) == bytes && !memcmp(s->literals[k], text, bytes)) return true;
    return false;
}

/* Finds the texts of a template, each followed by a 0 byte: those in quotation marks, except in
 * raise_exception, and those outside tags that are not only white space; and the template without
 * spaces outside quotation marks. */
static void read_template(const char *at, buffer *texts, buffer *dense)
{
    while (*at) {
        const char *tag = strchr(at, '{'), *end;
        while (tag && tag[1] != '{' && tag[1] != '%' && tag[1] != '#') tag = strchr(tag + 1, '{');
        end = tag ? tag : at + strlen(at);
        if (strspn(at, " \t\r\n-") < (size_t)(end - at)) {
            buffer_add(texts, at, (size_t)(end - at));
            buffer_add(texts, "", 1);
        }
        if (!tag) return;
        if (tag[1] == '#') {
            end = strstr(tag + 2, "#}");
            at = end ? end + 2 : tag + strlen(tag);
            continue;
        }
        for (at = tag + 2; *at && !((*at == '}' || *at == '%') && at[1] == '}'); at++) {
            bool raised = dense->count >= 16 &&
                          !memcmp(dense->at + dense->count - 16, "raise_exception(", 16);
            char quote = *at;
            const char *from = at;
            if (quote != '\'' && quote != '"') {
                if (!strchr(" \t\r\n", quote)) buffer_add(dense, at, 1);
                continue;
            }
            for (at++; *at && *at != quote; at++) {
                bool line = *at == '\\' && at[1] == 'n';
                if (*at == '\\' && at[1]) at++;
                if (!raised) buffer_add(texts, line ? "\n" : at, 1);
            }
            if (!raised) buffer_add(texts, "", 1);
            buffer_add(dense, "'", 1);
            buffer_add(dense, from + 1, (size_t)(at - from) - 1);
            buffer_add(dense, "'", 1);
            if (!*at) break;
        }
        at += *at ? 2 : 0;
    }
}

/* The first text of a template that does not belong to the style; NULL: all do, and `part` is
 * there. */
static const char *what_is_other(const chat_style *s, const buffer *texts, const buffer *dense)
{
    bool marked = false;
    for (const char *p = texts->at; p < texts->at + texts->count; p += strlen(p) + 1) {
        if (is_word(p, strlen(p))) continue;
        if (!is_literal(s, p, strlen(p))) return p;
        marked = marked || !strcmp(p, s->literals[0]);
    }
    return marked && (!s->part || strstr(dense->at, s->part)) ? NULL : "";
}

static bool unknown(const char *path, const char *why, zf_error *error)
{
    char shown[64];
    size_t n = 0;
    for (; *why && n < 60; why++, n++) shown[n] = *why == '\n' ? ' ' : *why;
    shown[n] = 0;
    return fail(error, ZF_ERR_FORMAT,
                "%s: its chat_template is unknown%s%s%s: name the style that it is (%s)", path,
                n ? ", it has the text \"" : "", shown, n ? "\"" : "", CHAT_STYLES);
}

static bool recognise(chat_template *t, const char *jinja, const char *path, zf_error *error)
{
    buffer texts = {.at = NULL}, dense = {.at = NULL};
    const char *other, *why = "";
    bool good;
    buffer_add(&texts, "", 0);
    buffer_add(&dense, "", 0);
    read_template(jinja, &texts, &dense);
    good = !texts.failed && !dense.failed;
    for (int k = 0; good && k < STYLES && !t->style; k++) {
        other = what_is_other(&styles[k], &texts, &dense);
        if (!other) t->style = &styles[k];
        /* The most similar style is the one that was meant. */
        else if (*other && (!*why || other > why)) why = other;
    }
    if (!good) fail(error, ZF_ERR_NOMEM, "out of memory");
    else if (!t->style) good = unknown(path, why, error);
    buffer_free(&texts);
    buffer_free(&dense);
    return good;
}

/* The text of bos_token or eos_token: a string, or an object with one. */
static void read_token(const zf_json *config, const char *key, char out[CHAT_TOKEN],
                       zf_error *error)
{
    const zf_json *v = zf_json_member(config, key);
    const char *text = "";
    out[0] = 0;
    if (zf_json_type_of(v) == ZF_JSON_NULL) return;
    if (zf_json_type_of(v) == ZF_JSON_OBJECT) v = zf_json_require(v, "content", error);
    zf_json_to_string(v, &text, error);
    if (strlen(text) >= CHAT_TOKEN)
        zf_json_expected(v, error, "a token of at most %d bytes", CHAT_TOKEN - 1);
    else strcpy(out, text);
}

/* The template of a folder: in *jinja or in the config; NULL: there is none, or *error. */
static const char *find_template(const char *folder, const zf_json *config, buffer *jinja,
                                 zf_error *error)
{
    char file[FOLDER_PATH];
    const zf_json *v = zf_json_member(config, "chat_template");
    const char *text = NULL;
    snprintf(file, sizeof file, "%s/chat_template.jinja", folder);
    if (!access(file, F_OK)) return file_read(file, jinja, error) ? jinja->at : NULL;
    if (zf_json_type_of(v) <= ZF_JSON_NULL) return NULL;
    if (!zf_json_string(v, NULL))
        zf_json_expected(v, error, "one template; name the style that it is (%s)", CHAT_STYLES);
    else zf_json_to_string(v, &text, error);
    return text;
}

bool chat_template_load(chat_template *t, const char *folder, const char *name, zf_error *error)
{
    char path[FOLDER_PATH];
    buffer jinja = {.at = NULL};
    const char *text;
    zf_error why = {ZF_OK, ""};
    zf_json *config;
    *t = (chat_template){.style = NULL};
    for (int k = 0; k < STYLES && name; k++)
        if (!strcmp(name, styles[k].name)) t->style = &styles[k];
    if (name && !t->style)
        return fail(error, ZF_ERR_ARGUMENT, "there is no style of chats %.40s, only %s", name,
                    CHAT_STYLES);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    config = zf_json_read(path, NULL, &why);
    read_token(config, "bos_token", t->begin, &why);
    read_token(config, "eos_token", t->end, &why);
    if (!why.status && !t->style && (text = find_template(folder, config, &jinja, &why)))
        (void)recognise(t, text, path, &why);
    buffer_free(&jinja);
    zf_json_free(config);
    if (why.status) *error = why;
    return !why.status;
}

/* --------------------------------------------------------------------------------- writing */

static void put(const chat_template *t, const char *text, buffer *out)
{
    for (; *text; text++) {
        if (*text == '\1') buffer_add_text(out, t->begin);
        else if (*text == '\2') buffer_add_text(out, t->end);
        else buffer_add(out, text, 1);
    }
}

/* A message without white space at its ends. */
static chat_message trimmed(chat_message m)
{
    const unsigned char *p = (const unsigned char *)m.text;
    size_t begin = m.bytes, end = 0;
    uint32_t c;
    for (size_t at = 0; at < m.bytes;) {
        int n = bert_decode(p + at, m.bytes - at, &c);
        if (!n || !bert_is_space(c)) {
            if (at < begin) begin = at;
            end = at + (n ? (size_t)n : 1);
        }
        at += n ? (size_t)n : 1;
    }
    if (begin > end) begin = end;
    return (chat_message){m.role, m.text + begin, end - begin};
}

static bool check(const chat_style *s, const chat_message *m, size_t count, zf_error *error)
{
    chat_role turn = CHAT_USER;
    for (size_t i = 0; i < count; i++) {
        if (!s->before[m[i].role])
            return fail(error, ZF_ERR_FORMAT, "message %zu: the style %s has no %s message", i + 1,
                        s->name, roles[m[i].role]);
        if (!s->alternates) continue;
        if (m[i].role == CHAT_SYSTEM && !i && count > 1) continue;
        if (m[i].role != turn)
            return fail(error, ZF_ERR_FORMAT,
                        "message %zu is the %s's: in the style %s users and assistants take turns",
                        i + 1, roles[m[i].role], s->name);
        turn = turn == CHAT_USER ? CHAT_ASSISTANT : CHAT_USER;
    }
    return true;
}

bool chat_text(const chat_template *t, const chat_message *messages, size_t count, bool answer,
               buffer *out, chat_span *spans, zf_error *error)
{
    const chat_style *s = t->style;
    if (!check(s, messages, count, error)) return false;
    put(t, s->first, out);
    for (size_t i = 0; i < count; i++) {
        bool first = s->joined && messages[i].role == CHAT_SYSTEM,
             joins = s->joined && i == 1 && messages[0].role == CHAT_SYSTEM;
        chat_message m = s->trimmed && !first ? trimmed(messages[i]) : messages[i];
        size_t begin;
        if (first) put(t, s->before[CHAT_USER], out);
        if (joins) { /* trimmed as a whole: white space between both parts stays */
            m.bytes += (size_t)(m.text - messages[i].text);
            m.text = messages[i].text;
        } else {
            put(t, s->before[m.role], out);
        }
        begin = out->count;
        buffer_add(out, m.text, m.bytes);
        if (spans) spans[i] = (chat_span){begin, out->count};
        put(t, s->behind[m.role], out);
        if (spans && m.role == CHAT_ASSISTANT) {
            buffer end = {.at = NULL};
            put(t, s->end, &end);
            spans[i].end += end.count;
            out->failed |= end.failed;
            buffer_free(&end);
        }
    }
    if (answer) put(t, s->answer, out);
    return !out->failed || fail(error, ZF_ERR_NOMEM, "out of memory");
}

const char *chat_end(const chat_template *t)
{
    const char *mark = strchr(t->style->end, '\2');
    return mark ? t->end : t->style->end;
}
