#define _POSIX_C_SOURCE 200809L
#include "chat_inside.h"
#include "../base/digest.h"
#include "../base/fail.h"
#include "../base/file.h"
#include "../folder/folder.h"

#include <limits.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ----------------------------------------------------------------------------------- styles */

#define IM(role)          "<|im_start|>" role "\n"
#define HEADER(role)      "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define TURN(role)        "<start_of_turn>" role "\n"
#define INST_LITERALS     "[INST] ", " [/INST]", "[INST]", "[/INST]", " "
#define CHATML                                                                                     \
    .first = "", .before = {IM("system"), IM("user"), IM("assistant")},                            \
    .behind = {"<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"}, .answer = IM("assistant"),         \
    .end = "<|im_end|>"
#define LLAMA3                                                                                     \
    .first = "\1", .before = {HEADER("system"), HEADER("user"), HEADER("assistant")},              \
    .behind = {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"}, .answer = HEADER("assistant"),           \
    .end = "<|eot_id|>", .trimmed = {true, true, true}
#define DATES                                                                                      \
    .system = "", .head = "Cutting Knowledge Date: December 2023\nToday Date: \3\n\n"
#define GEMMA                                                                                      \
    .first = "\1", .behind = {"\n\n", "<end_of_turn>\n", "<end_of_turn>\n"},                       \
    .answer = TURN("model"), .end = "<end_of_turn>", .trimmed = {false, true, true},               \
    .alternates = true
#define PHI3                                                                                       \
    .first = "", .before = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},                      \
    .behind = {"<|end|>\n", "<|end|>\n", "<|end|>\n"}, .answer = "<|assistant|>\n",                \
    .end = "<|end|>", .close = "\2"

static const chat_style styles[] = {
    {.name = "chatml",
     CHATML,
     .literals = {"<|im_start|>", "<|im_end|>\n", "<|im_end|>", "\n", IM("assistant"), IM("user"),
                  IM("system")}},
    {.name = "gemma", GEMMA, .before = {NULL, TURN("user"), TURN("model")}},
    {.name = "gemma3", GEMMA, .before = {"", TURN("user"), TURN("model")}, .joined = CHAT_TO_FIRST},
    {.name = "llama2",
     .first = "",
     .before = {"<<SYS>>\n", "\1[INST] ", " "},
     .behind = {"\n<</SYS>>\n\n", " [/INST]", " \2"},
     .answer = "",
     .end = " \2",
     .trimmed = {false, true, true},
     .whole_trimmed = true,
     .joined = CHAT_TO_FIRST,
     .alternates = true,
     .literals = {"<<SYS>>\n", "\1", "\2", "\n<</SYS>>\n\n", "\n<</SYS>>\n", INST_LITERALS}},
    {.name = "llama3",
     LLAMA3,
     .literals = {"<|start_header_id|>", "\1", "<|end_header_id|>\n\n", "<|eot_id|>",
                  HEADER("assistant")}},
    {.name = "llama3.1", LLAMA3, DATES},
    {.name = "llama3.2", LLAMA3, DATES, .today = true},
    {.name = "mistral-v1",
     .first = "\1",
     .before = {NULL, "[INST] ", ""},
     .behind = {NULL, " [/INST]", "\2 "},
     .answer = "",
     .end = "\2",
     .alternates = true,
     .part = "eos_token+' '",
     .literals = {INST_LITERALS, "\1", "\2"}},
    {.name = "mistral-v2",
     .first = "\1",
     .before = {"", " [INST] ", " "},
     .behind = {"\n\n", " [/INST]", "\2"},
     .answer = "",
     .end = "\2",
     .joined = CHAT_TO_FIRST,
     .alternates = true},
    {.name = "mistral-v3",
     .first = "\1",
     .before = {"", "[INST] ", " "},
     .behind = {"\n\n", "[/INST]", "\2"},
     .answer = "",
     .end = "\2",
     .trimmed = {false, false, true},
     .joined = CHAT_TO_LAST,
     .alternates = true,
     .part = "loop.last",
     .literals = {"[INST] ", "[/INST]", " ", "\n\n", "\1", "\2"}},
    {.name = "mistral-nemo",
     .first = "\1",
     .before = {"", "[INST]", ""},
     .behind = {"\n\n", "[/INST]", "\2"},
     .answer = "",
     .end = "\2",
     .joined = CHAT_TO_LAST,
     .alternates = true},
    {.name = "mistral",
     .first = "\1",
     .before = {NULL, "[INST] ", ""},
     .behind = {NULL, " [/INST]", "\2"},
     .answer = "",
     .end = "\2",
     .alternates = true,
     .literals = {"[INST] ", " [/INST]", "\1", "\2"}},
    {.name = "phi3", PHI3},
    {.name = "phi3.5", PHI3, .skips_empty = true},
    {.name = "qwen2", CHATML, .system = "You are a helpful assistant."},
    {.name = "qwen2.5",
     CHATML,
     .system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.name = "qwen3", CHATML, .thinks = true},
    {.name = "smollm2",
     CHATML,
     .system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {.name = "zephyr",
     .first = "",
     .before = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
     .behind = {"\2\n", "\2\n", "\2\n"},
     .answer = "<|assistant|>\n",
     .end = "\2",
     .literals = {"<|user|>\n", "\2", "<|system|>\n", "<|assistant|>\n", "<|assistant|>"}},
};
enum { STYLES = sizeof styles / sizeof styles[0] };

static const chat_style *style_of(const char *name)
{
    for (int k = 0; k < STYLES; k++)
        if (!strcmp(name, styles[k].name)) return &styles[k];
    return NULL;
}

/* ----------------------------------------------------------------------- published templates */

/* Digests of templates as their models' folders have them (tests/golden/chat/published.py). */
static const struct {
    uint64_t digest;
    const char *style;
} published[] = {
    {UINT64_C(0x88bf4138d5c826f0), "chatml"},       /* teknium/OpenHermes-2.5-Mistral-7B */
    {UINT64_C(0x773d13e188afc917), "chatml"},       /* dolphin-2.5-mixtral-8x7b */
    {UINT64_C(0x5c10ee65212d93b3), "gemma"},        /* google/gemma-2-2b-it */
    {UINT64_C(0xd19b6ff3a49deea5), "gemma3"},       /* google/gemma-3-270m-it */
    {UINT64_C(0x4d1512049817743d), "llama2"},       /* meta-llama/Llama-2-7b-chat-hf */
    {UINT64_C(0x0e60067a5537498e), "llama3"},       /* meta-llama/Meta-Llama-3-8B-Instruct */
    {UINT64_C(0x4fd30286bc0da17c), "llama3.1"},     /* meta-llama/Llama-3.1-8B-Instruct, and 3.3 */
    {UINT64_C(0x1a6da26e3aef1b34), "llama3.2"},     /* meta-llama/Llama-3.2-3B-Instruct */
    {UINT64_C(0xc730acc029ce6ee0), "mistral-v1"},   /* mistralai/Mistral-7B-Instruct-v0.1, first */
    {UINT64_C(0xd99e5b4469be13b3), "mistral-v2"},   /* mistralai/Mistral-7B-Instruct-v0.2 */
    {UINT64_C(0x09eb1999b1fcf65f), "mistral-v3"},   /* mistralai/Mistral-7B-Instruct-v0.3 */
    {UINT64_C(0xf1784176fabceb43), "mistral-nemo"}, /* mistralai/Mistral-Nemo-Instruct-2407 */
    {UINT64_C(0x8c734b90b4f8d84d), "mistral"},      /* mistralai/Mistral-7B-Instruct-v0.2, first */
    {UINT64_C(0xecebdb26677c663d), "phi3"},         /* microsoft/Phi-3-mini-4k-instruct */
    {UINT64_C(0xcf278cde387a54c8), "phi3.5"},       /* microsoft/Phi-3.5-mini-instruct */
    {UINT64_C(0x8a87094e0e1e24c5), "qwen2"},        /* Qwen/Qwen2-0.5B-Instruct */
    {UINT64_C(0x11d394755cef9355), "qwen2.5"},      /* Qwen/Qwen2.5-7B-Instruct */
    {UINT64_C(0xc25e8e972d35cca7), "qwen2.5"},      /* Qwen/Qwen2.5-0.5B-Instruct */
    {UINT64_C(0xabb815b933a4981a), "qwen3"},        /* Qwen/Qwen3-0.6B */
    {UINT64_C(0x45ec583d4d25bc3a), "smollm2"},      /* HuggingFaceTB/SmolLM2-135M-Instruct */
    {UINT64_C(0xcd8b49000db02c2c), "zephyr"},       /* TinyLlama/TinyLlama-1.1B-Chat-v1.0 */
};

uint64_t chat_digest(const char *jinja)
{
    uint64_t digest = DIGEST_START;
    size_t count = strlen(jinja);
    while (count && jinja[count - 1] == '\n') count--;
    for (size_t i = 0; i < count; i++) {
        bool line = jinja[i] == '\\' && i + 1 < count && jinja[i + 1] == 'n';
        digest = digest_bytes(digest, line ? "\n" : jinja + i, 1);
        i += line;
    }
    return digest;
}

const chat_style *chat_style_published(uint64_t digest)
{
    for (size_t k = 0; k < sizeof published / sizeof *published; k++)
        if (published[k].digest == digest) return style_of(published[k].style);
    return NULL;
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

static bool is_literal(const chat_style *s, const char *text)
{
    for (int k = 0; k < CHAT_LITERALS && s->literals[k]; k++)
        if (!strcmp(s->literals[k], text)) return true;
    return false;
}

/* Appends the text of a variable that is a token. */
static void find_token(const char *at, buffer *texts)
{
    if (!strncmp(at, "bos_token", 9)) buffer_add(texts, "\1", 2);
    if (!strncmp(at, "eos_token", 9)) buffer_add(texts, "\2", 2);
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
                find_token(at, texts);
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

/* How a template differs from a style. */
typedef struct difference {
    const char *first; /* text that is not the style's; NULL: all are */
    int count;         /* of such texts, and of what else marks the style and is not there */
} difference;

static difference differs(const chat_style *s, const buffer *texts, const buffer *dense)
{
    const bool trims = strstr(dense->at, "|trim") || strstr(dense->at, ".strip()");
    bool marked = false;
    difference d = {NULL, trims != s->trimmed[CHAT_ASSISTANT]};
    for (const char *p = texts->at; p < texts->at + texts->count; p += strlen(p) + 1) {
        if (is_word(p, strlen(p))) continue;
        marked = marked || !strcmp(p, s->literals[0]);
        if (is_literal(s, p)) continue;
        if (!d.first) d.first = p;
        d.count++;
    }
    d.count += !marked;
    d.count += s->part && !strstr(dense->at, s->part);
    return d;
}

static bool unknown(const char *path, const char *why, zf_error *error)
{
    const char *token = !why ? "" : *why == '\1' ? "bos_token" : *why == '\2' ? "eos_token" : why;
    char shown[64];
    size_t n = 0;
    for (; *token && n < 60; token++, n++) shown[n] = *token == '\n' ? ' ' : *token;
    shown[n] = 0;
    return fail(error, ZF_ERR_FORMAT,
                "%s: its chat_template is unknown%s%s%s: name the style that it is with --chat "
                "(%s)",
                path, n ? ", it has the text \"" : "", shown, n ? "\"" : "", CHAT_STYLES);
}

static bool recognise(chat_template *t, const char *jinja, const char *path, zf_error *error)
{
    buffer texts = {.at = NULL}, dense = {.at = NULL};
    difference least = {NULL, INT_MAX};
    bool good;
    if ((t->style = chat_style_published(chat_digest(jinja)))) return true;
    buffer_add(&texts, "", 0);
    buffer_add(&dense, "", 0);
    read_template(jinja, &texts, &dense);
    good = !texts.failed && !dense.failed;
    for (int k = 0; good && k < STYLES && !t->style; k++) {
        difference d;
        if (!styles[k].literals[0]) continue;
        d = differs(&styles[k], &texts, &dense);
        if (!d.count) t->style = &styles[k];
        else if (d.count < least.count) least = d; /* the most similar one was meant */
    }
    if (!good) fail(error, ZF_ERR_NOMEM, "out of memory");
    else if (!t->style) good = unknown(path, least.first, error);
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
    if (zf_json_type_of(v) == ZF_JSON_ARRAY) { /* several by name: that of plain chats */
        const zf_json *one = zf_json_first(v);
        const char *name;
        while (one && (!(name = zf_json_string(zf_json_member(one, "name"), NULL)) ||
                       strcmp(name, "default")))
            one = zf_json_next(one);
        if (one) v = zf_json_require(one, "template", error);
        if (!v) return NULL;
    }
    if (!zf_json_string(v, NULL))
        zf_json_expected(v, error, "one template; name the style that it is with --chat (%s)",
                         CHAT_STYLES);
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
    *t = (chat_template){.style = name ? style_of(name) : NULL, .date = CHAT_DATE};
    if (name && !t->style && strcmp(name, "none"))
        return fail(error, ZF_ERR_ARGUMENT, "there is no style of chats %.40s, only none, %s", name,
                    CHAT_STYLES);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    config = zf_json_read(path, NULL, &why);
    read_token(config, "bos_token", t->begin, &why);
    read_token(config, "eos_token", t->end, &why);
    if (!why.status && !name && (text = find_template(folder, config, &jinja, &why)))
        (void)recognise(t, text, path, &why);
    buffer_free(&jinja);
    zf_json_free(config);
    if (why.status) *error = why;
    return !why.status;
}

bool chat_template_date(chat_template *t, const char *date, bool answers, zf_error *error)
{
    time_t now = time(NULL);
    struct tm day;
    if (date && (!t->style || !t->style->head))
        return fail(error, ZF_ERR_ARGUMENT,
                    "--date is for chats in the styles llama3.1 and llama3.2, not for %s",
                    t->style ? t->style->name : "texts without a style");
    if (date && (!*date || strlen(date) >= sizeof t->date))
        return fail(error, ZF_ERR_ARGUMENT, "--date is a text of at most %d bytes, as \"%s\"",
                    (int)sizeof t->date - 1, CHAT_DATE);
    if (date) strcpy(t->date, date);
    else if (answers && t->style && t->style->today && localtime_r(&now, &day))
        strftime(t->date, sizeof t->date, "%d %b %Y", &day);
    return true;
}

bool chat_template_silent(chat_template *t, zf_error *error)
{
    t->silent = t->style && t->style->thinks;
    return t->silent || fail(error, ZF_ERR_ARGUMENT,
                             "--no-thinking is for chats in the style qwen3, not for %s",
                             t->style ? t->style->name : "texts without a style");
}
