/* The styles of chats, and how the template of a folder is recognised as one of them. */
#include <limits.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ----------------------------------------------------------------------------------- styles */

#define ZFL_IM(role)      "<|im_start|>" role "\n"
#define ZFL_HEADER(role)  "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define ZFL_TURN(role)    "<start_of_turn>" role "\n"
#define ZFL_INST_LITERALS "[INST] ", " [/INST]", "[INST]", "[/INST]", " "
#define ZFL_CHATML                                                                                 \
    .first = "", .before = {ZFL_IM("system"), ZFL_IM("user"), ZFL_IM("assistant")},                \
    .behind = {"<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"}, .answer = ZFL_IM("assistant"),     \
    .end = "<|im_end|>"
#define ZFL_LLAMA3                                                                                 \
    .first = "\1", .before = {ZFL_HEADER("system"), ZFL_HEADER("user"), ZFL_HEADER("assistant")},  \
    .behind = {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"}, .answer = ZFL_HEADER("assistant"),       \
    .end = "<|eot_id|>", .trimmed = {true, true, true}
#define ZFL_DATES .system = "", .head = "Cutting Knowledge Date: December 2023\nToday Date: \3\n\n"
#define ZFL_GEMMA                                                                                  \
    .first = "\1", .behind = {"\n\n", "<end_of_turn>\n", "<end_of_turn>\n"},                       \
    .answer = ZFL_TURN("model"), .end = "<end_of_turn>", .trimmed = {false, true, true},           \
    .alternates = true
#define ZFL_PHI3                                                                                   \
    .first = "", .before = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},                      \
    .behind = {"<|end|>\n", "<|end|>\n", "<|end|>\n"}, .answer = "<|assistant|>\n",                \
    .end = "<|end|>", .close = "\2"

static const zf_chat_style zfl_styles[] = {
    {.name = "chatml",
     ZFL_CHATML,
     .literals = {"<|im_start|>", "<|im_end|>\n", "<|im_end|>", "\n", ZFL_IM("assistant"),
                  ZFL_IM("user"), ZFL_IM("system")}},
    {.name = "gemma", ZFL_GEMMA, .before = {NULL, ZFL_TURN("user"), ZFL_TURN("model")}},
    {.name = "gemma3",
     ZFL_GEMMA,
     .before = {"", ZFL_TURN("user"), ZFL_TURN("model")},
     .joined = ZFL_CHAT_TO_FIRST},
    {.name = "llama2",
     .first = "",
     .before = {"<<SYS>>\n", "\1[INST] ", " "},
     .behind = {"\n<</SYS>>\n\n", " [/INST]", " \2"},
     .answer = "",
     .end = " \2",
     .trimmed = {false, true, true},
     .whole_trimmed = true,
     .joined = ZFL_CHAT_TO_FIRST,
     .alternates = true,
     .literals = {"<<SYS>>\n", "\1", "\2", "\n<</SYS>>\n\n", "\n<</SYS>>\n", ZFL_INST_LITERALS}},
    {.name = "llama3",
     ZFL_LLAMA3,
     .literals = {"<|start_header_id|>", "\1", "<|end_header_id|>\n\n", "<|eot_id|>",
                  ZFL_HEADER("assistant")}},
    {.name = "llama3.1", ZFL_LLAMA3, ZFL_DATES},
    {.name = "llama3.2", ZFL_LLAMA3, ZFL_DATES, .today = true},
    {.name = "mistral-v1",
     .first = "\1",
     .before = {NULL, "[INST] ", ""},
     .behind = {NULL, " [/INST]", "\2 "},
     .answer = "",
     .end = "\2",
     .alternates = true,
     .part = "eos_token+' '",
     .literals = {ZFL_INST_LITERALS, "\1", "\2"}},
    {.name = "mistral-v2",
     .first = "\1",
     .before = {"", " [INST] ", " "},
     .behind = {"\n\n", " [/INST]", "\2"},
     .answer = "",
     .end = "\2",
     .joined = ZFL_CHAT_TO_FIRST,
     .alternates = true},
    {.name = "mistral-v3",
     .first = "\1",
     .before = {"", "[INST] ", " "},
     .behind = {"\n\n", "[/INST]", "\2"},
     .answer = "",
     .end = "\2",
     .trimmed = {false, false, true},
     .joined = ZFL_CHAT_TO_LAST,
     .alternates = true,
     .part = "loop.last",
     .literals = {"[INST] ", "[/INST]", " ", "\n\n", "\1", "\2"}},
    {.name = "mistral-nemo",
     .first = "\1",
     .before = {"", "[INST]", ""},
     .behind = {"\n\n", "[/INST]", "\2"},
     .answer = "",
     .end = "\2",
     .joined = ZFL_CHAT_TO_LAST,
     .alternates = true},
    {.name = "mistral",
     .first = "\1",
     .before = {NULL, "[INST] ", ""},
     .behind = {NULL, " [/INST]", "\2"},
     .answer = "",
     .end = "\2",
     .alternates = true,
     .literals = {"[INST] ", " [/INST]", "\1", "\2"}},
    {.name = "phi3", ZFL_PHI3},
    {.name = "phi3.5", ZFL_PHI3, .skips_empty = true},
    {.name = "qwen2", ZFL_CHATML, .system = "You are a helpful assistant."},
    {.name = "qwen2.5",
     ZFL_CHATML,
     .system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.name = "qwen3", ZFL_CHATML, .thinks = true},
    {.name = "smollm2",
     ZFL_CHATML,
     .system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {.name = "zephyr",
     .first = "",
     .before = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
     .behind = {"\2\n", "\2\n", "\2\n"},
     .answer = "<|assistant|>\n",
     .end = "\2",
     .literals = {"<|user|>\n", "\2", "<|system|>\n", "<|assistant|>\n", "<|assistant|>"}},
};
enum { ZFL_STYLES = sizeof zfl_styles / sizeof zfl_styles[0] };

static const zf_chat_style *zfl_style_of(const char *name)
{
    for (int k = 0; k < ZFL_STYLES; k++)
        if (!strcmp(name, zfl_styles[k].name)) return &zfl_styles[k];
    return NULL;
}

/* ----------------------------------------------------------------------- published templates */

/* Digests of templates as their models' folders have them (tests/golden/chat/published.py). */
static const struct {
    uint64_t digest;
    const char *style;
} zfl_published[] = {
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

uint64_t zf_chat_digest(const char *jinja)
{
    uint64_t digest = ZF_DIGEST_START;
    size_t count = strlen(jinja);
    while (count && jinja[count - 1] == '\n') count--;
    for (size_t i = 0; i < count; i++) {
        bool line = jinja[i] == '\\' && i + 1 < count && jinja[i + 1] == 'n';
        digest = zf_digest_bytes(digest, line ? "\n" : jinja + i, 1);
        i += line;
    }
    return digest;
}

const zf_chat_style *zf_chat_style_published(uint64_t digest)
{
    for (size_t k = 0; k < sizeof zfl_published / sizeof *zfl_published; k++)
        if (zfl_published[k].digest == digest) return zfl_style_of(zfl_published[k].style);
    return NULL;
}

/* ----------------------------------------------------------------------------- recognising */

/* Texts in a template that are not output: roles, names of members and of filters. */
static bool zfl_chat_styles_is_word(const char *text, size_t bytes)
{
    static const char *const words[] = {"system",  "user",     "assistant", "role",
                                        "content", "messages", ""};
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
        if (strlen(words[k]) == bytes && !memcmp(words[k], text, bytes)) return true;
    return false;
}

static bool zfl_is_literal(const zf_chat_style *s, const char *text)
{
    for (int k = 0; k < ZFL_CHAT_LITERALS && s->literals[k]; k++)
        if (!strcmp(s->literals[k], text)) return true;
    return false;
}

/* Appends the text of a variable that is a token. */
static void zfl_chat_styles_find_token(const char *at, zf_text *texts)
{
    if (!strncmp(at, "bos_token", 9)) zf_text_add(texts, "\1", 2);
    if (!strncmp(at, "eos_token", 9)) zf_text_add(texts, "\2", 2);
}

/* Finds the texts of a template, each followed by a 0 byte: those in quotation marks, except in
 * raise_exception, and those outside tags that are not only white space; and the template without
 * spaces outside quotation marks. */
static void zfl_chat_styles_read_template(const char *at, zf_text *texts, zf_text *dense)
{
    while (*at) {
        const char *tag = strchr(at, '{'), *end;
        while (tag && tag[1] != '{' && tag[1] != '%' && tag[1] != '#') tag = strchr(tag + 1, '{');
        end = tag ? tag : at + strlen(at);
        if (strspn(at, " \t\r\n-") < (size_t)(end - at)) {
            zf_text_add(texts, at, (size_t)(end - at));
            zf_text_add(texts, "", 1);
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
                zfl_chat_styles_find_token(at, texts);
                if (!strchr(" \t\r\n", quote)) zf_text_add(dense, at, 1);
                continue;
            }
            for (at++; *at && *at != quote; at++) {
                bool line = *at == '\\' && at[1] == 'n';
                if (*at == '\\' && at[1]) at++;
                if (!raised) zf_text_add(texts, line ? "\n" : at, 1);
            }
            if (!raised) zf_text_add(texts, "", 1);
            zf_text_add(dense, "'", 1);
            zf_text_add(dense, from + 1, (size_t)(at - from) - 1);
            zf_text_add(dense, "'", 1);
            if (!*at) break;
        }
        at += *at ? 2 : 0;
    }
}

/* How a template differs from a style. */
typedef struct zfl_difference {
    const char *first; /* text that is not the style's; NULL: all are */
    int count;         /* of such texts, and of what else marks the style and is not there */
} zfl_difference;

static zfl_difference zfl_differs(const zf_chat_style *s, const zf_text *texts,
                                  const zf_text *dense)
{
    const bool trims = strstr(dense->at, "|trim") || strstr(dense->at, ".strip()");
    bool marked = false;
    zfl_difference d = {NULL, trims != s->trimmed[ZF_CHAT_ASSISTANT]};
    for (const char *p = texts->at; p < texts->at + texts->count; p += strlen(p) + 1) {
        if (zfl_chat_styles_is_word(p, strlen(p))) continue;
        marked = marked || !strcmp(p, s->literals[0]);
        if (zfl_is_literal(s, p)) continue;
        if (!d.first) d.first = p;
        d.count++;
    }
    d.count += !marked;
    d.count += s->part && !strstr(dense->at, s->part);
    return d;
}

static bool zfl_unknown(const char *path, const char *why, zf_error *error)
{
    const char *token = !why ? "" : *why == '\1' ? "bos_token" : *why == '\2' ? "eos_token" : why;
    char shown[64];
    size_t n = 0;
    for (; *token && n < 60; token++, n++) shown[n] = *token == '\n' ? ' ' : *token;
    shown[n] = 0;
    return zfl_fail(error, ZF_ERR_FORMAT,
                    "%s: its chat_template is unknown%s%s%s: name the style that it is with --chat "
                    "(%s)",
                    path, n ? ", it has the text \"" : "", shown, n ? "\"" : "", ZF_CHAT_STYLES);
}

static bool zfl_recognise(zf_chat *t, const char *jinja, const char *path, zf_error *error)
{
    zf_text texts = {.at = NULL}, dense = {.at = NULL};
    zfl_difference least = {NULL, INT_MAX};
    bool good;
    if ((t->style = zf_chat_style_published(zf_chat_digest(jinja)))) return true;
    zf_text_add(&texts, "", 0);
    zf_text_add(&dense, "", 0);
    zfl_chat_styles_read_template(jinja, &texts, &dense);
    good = !texts.failed && !dense.failed;
    for (int k = 0; good && k < ZFL_STYLES && !t->style; k++) {
        zfl_difference d;
        if (!zfl_styles[k].literals[0]) continue;
        d = zfl_differs(&zfl_styles[k], &texts, &dense);
        if (!d.count) t->style = &zfl_styles[k];
        else if (d.count < least.count) least = d; /* the most similar one was meant */
    }
    if (!good) zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    else if (!t->style) good = zfl_unknown(path, least.first, error);
    zf_text_free(&texts);
    zf_text_free(&dense);
    return good;
}

/* The text of bos_token or eos_token: a string, or an object with one. */
static void zfl_read_token(const zf_json *config, const char *key, char out[ZF_CHAT_TOKEN],
                           zf_error *error)
{
    const zf_json *v = zf_json_member(config, key);
    const char *text = "";
    out[0] = 0;
    if (zf_json_type_of(v) == ZF_JSON_NULL) return;
    if (zf_json_type_of(v) == ZF_JSON_OBJECT) v = zf_json_require(v, "content", error);
    zf_json_to_string(v, &text, error);
    if (strlen(text) >= ZF_CHAT_TOKEN)
        zf_json_expected(v, error, "a token of at most %d bytes", ZF_CHAT_TOKEN - 1);
    else strcpy(out, text);
}

/* The template of a folder: in *jinja or in the config; NULL: there is none, or *error. */
static const char *zfl_find_template(const char *folder, const zf_json *config, zf_text *jinja,
                                     zf_error *error)
{
    char file[ZF_FOLDER_PATH];
    const zf_json *v = zf_json_member(config, "chat_template");
    const char *text = NULL;
    snprintf(file, sizeof file, "%s/chat_template.jinja", folder);
    if (!access(file, F_OK)) return zf_text_read_plain(file, jinja, error) ? jinja->at : NULL;
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
                         ZF_CHAT_STYLES);
    else zf_json_to_string(v, &text, error);
    return text;
}

bool zf_chat_open(zf_chat *t, const char *folder, const char *name, zf_error *error)
{
    char path[ZF_FOLDER_PATH];
    zf_text jinja = {.at = NULL};
    const char *text;
    zf_error why = {ZF_OK, ""};
    zf_json *config;
    *t = (zf_chat){.style = name ? zfl_style_of(name) : NULL, .date = ZF_CHAT_DATE};
    if (name && !t->style && strcmp(name, "none"))
        return zfl_fail(error, ZF_ERR_ARGUMENT, "there is no style of chats %.40s, only none, %s",
                        name, ZF_CHAT_STYLES);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    config = zf_json_read(path, NULL, &why);
    zfl_read_token(config, "bos_token", t->begin, &why);
    zfl_read_token(config, "eos_token", t->end, &why);
    if (!why.status && !name && (text = zfl_find_template(folder, config, &jinja, &why)))
        (void)zfl_recognise(t, text, path, &why);
    zf_text_free(&jinja);
    zf_json_free(config);
    if (why.status) *error = why;
    return !why.status;
}

bool zf_chat_set_date(zf_chat *t, const char *date, bool answers, zf_error *error)
{
    time_t now = time(NULL);
    struct tm day;
    if (date && (!t->style || !t->style->head))
        return zfl_fail(error, ZF_ERR_ARGUMENT,
                        "--date is for chats in the styles llama3.1 and llama3.2, not for %s",
                        t->style ? t->style->name : "texts without a style");
    if (date && (!*date || strlen(date) >= sizeof t->date))
        return zfl_fail(error, ZF_ERR_ARGUMENT, "--date is a text of at most %d bytes, as \"%s\"",
                        (int)sizeof t->date - 1, ZF_CHAT_DATE);
    if (date) strcpy(t->date, date);
    else if (answers && t->style && t->style->today && localtime_r(&now, &day))
        strftime(t->date, sizeof t->date, "%d %b %Y", &day);
    return true;
}

bool zf_chat_set_silent(zf_chat *t, zf_error *error)
{
    t->silent = t->style && t->style->thinks;
    return t->silent || zfl_fail(error, ZF_ERR_ARGUMENT,
                                 "--no-thinking is for chats in the style qwen3, not for %s",
                                 t->style ? t->style->name : "texts without a style");
}
