/* Conversations as texts, by the template of a folder or of a style. */
#include <unistd.h>

/* ----------------------------------------------------------------------------------- opening */

/* The text of a special token: a string, or an object with one. NULL: it is not there. */
static const char *zfl_special_token(const zf_chat *t, const char *key, size_t *bytes)
{
    const zf_json *v = zf_json_member(t->config, key);
    if (zf_json_type_of(v) <= ZF_JSON_NULL) v = zf_json_member(t->special, key);
    if (zf_json_type_of(v) == ZF_JSON_OBJECT) v = zf_json_member(v, "content");
    return zf_json_string(v, bytes);
}

static void zfl_copy_token(const zf_chat *t, const char *key, char out[ZF_CHAT_TOKEN],
                           zf_error *error)
{
    size_t bytes = 0;
    const char *text = zfl_special_token(t, key, &bytes);
    out[0] = 0;
    if (bytes >= ZF_CHAT_TOKEN)
        zfl_fail(error, ZF_ERR_FORMAT, "%s has %zu bytes, and may have %d", key, bytes,
                 ZF_CHAT_TOKEN - 1);
    else if (text) strcpy(out, text);
}

static bool zfl_parse_json(zf_jinja **out, const zf_json *v, const char *path, zf_error *error)
{
    size_t bytes;
    const char *text = zf_json_string(v, &bytes);
    if (!text) return zf_json_expected(v, error, "a template"), false;
    return (*out = zf_jinja_parse(text, bytes, path, error)) != NULL;
}

/* The templates of a list: that of plain chats, and one for tools. */
static bool zfl_parse_named(zf_chat *t, const zf_json *list, const char *path, zf_error *error)
{
    for (const zf_json *one = zf_json_first(list); one; one = zf_json_next(one)) {
        const char *name = zf_json_string(zf_json_member(one, "name"), NULL);
        zf_jinja **to = name && !strcmp(name, "default")    ? &t->plain
                        : name && !strcmp(name, "tool_use") ? &t->tools
                                                            : NULL;
        if (to && *to) return zf_json_fail(one, error, "is given twice"), false;
        if (to && !zfl_parse_json(to, zf_json_require(one, "template", error), path, error))
            return false;
    }
    if (t->plain) return true;
    return zf_json_fail(list, error,
                        "has no template of the name default: name another with "
                        "--chat (%s)",
                        ZF_CHAT_STYLES),
           false;
}

static bool zfl_parse_file(zf_chat *t, const char *path, zf_error *error)
{
    zf_text text = {.at = NULL};
    if (zf_text_read_plain(path, &text, error))
        t->plain = zf_jinja_parse(text.at, text.count, path, error);
    zf_text_free(&text);
    return t->plain != NULL;
}

static bool zfl_parse_folder(zf_chat *t, const char *folder, const char *config, zf_error *error)
{
    const zf_json *v = zf_json_member(t->config, "chat_template");
    char path[ZF_FOLDER_PATH + 20];
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    if (!access(path, F_OK)) return zfl_parse_file(t, path, error);
    snprintf(path, sizeof path, "%s: chat_template", config);
    if (zf_json_type_of(v) <= ZF_JSON_NULL) return true;
    if (zf_json_type_of(v) == ZF_JSON_ARRAY) return zfl_parse_named(t, v, path, error);
    return zfl_parse_json(&t->plain, v, path, error);
}

static bool zfl_is_file(const char *name)
{
    return strchr(name, '/') || zfl_ends_with(name, ".jinja");
}

static bool zfl_parse_template(zf_chat *t, const char *folder, const char *name, const char *config,
                               zf_error *error)
{
    char path[80];
    if (!name) return zfl_parse_folder(t, folder, config, error);
    if (!strcmp(name, "none")) return true;
    if (zfl_is_file(name)) return zfl_parse_file(t, name, error);
    snprintf(path, sizeof path, "the style %s", name);
    t->style = zfl_style_of(name);
    t->plain =
        zf_jinja_parse(zfl_styles[t->style].jinja, strlen(zfl_styles[t->style].jinja), path, error);
    return t->plain != NULL;
}

static bool zfl_open_parts(zf_chat *t, const char *folder, const char *name, zf_error *error)
{
    char config[ZF_FOLDER_PATH], special[ZF_FOLDER_PATH];
    snprintf(config, sizeof config, "%s/tokenizer_config.json", folder);
    snprintf(special, sizeof special, "%s/special_tokens_map.json", folder);
    if (!(t->config = zf_json_read(config, NULL, error))) return false;
    if (!access(special, F_OK) && !(t->special = zf_json_read(special, NULL, error))) return false;
    zfl_copy_token(t, "bos_token", t->begin, error);
    zfl_copy_token(t, "eos_token", t->end, error);
    return !error->status && zfl_parse_template(t, folder, name, config, error) &&
           zf_chat_set_date(t, NULL, false, error);
}

bool zf_chat_open(zf_chat *t, const char *folder, const char *name, zf_error *error)
{
    zf_error why = {ZF_OK, ""};
    *t = (zf_chat){.style = -1};
    if (name && strcmp(name, "none") && !zfl_is_file(name) && zfl_style_of(name) < 0)
        zfl_fail(&why, ZF_ERR_ARGUMENT,
                 "there is no style of chats %.40s, only none, %s; a file of a template has a / in "
                 "its path, or ends in .jinja",
                 name, ZF_CHAT_STYLES);
    else if (zfl_open_parts(t, folder, name, &why)) return true;
    zf_chat_close(t);
    *error = why;
    return false;
}

void zf_chat_close(zf_chat *t)
{
    zf_jinja_free(t->plain);
    zf_jinja_free(t->tools);
    zf_json_free(t->config);
    zf_json_free(t->special);
    zf_json_free(t->variables);
    *t = (zf_chat){.style = -1};
}

/* ---------------------------------------------------------------------------------- settings */

static bool zfl_reads(const zf_chat *t, const char *name)
{
    return (t->plain && zf_jinja_mentions(t->plain, name)) ||
           (t->tools && zf_jinja_mentions(t->tools, name));
}

bool zf_chat_fits(const zf_chat *t, const zf_tokenizer *tokenizer, zf_error *error)
{
    const char *name = t->style < 0 ? "" : zfl_styles[t->style].name;
    char token[ZF_CHAT_TOKEN];
    for (const char *at = t->style < 0 ? "" : zfl_styles[t->style].tokens; *at; at += *at == ' ') {
        const size_t bytes = strcspn(at, " ");
        memcpy(token, at, bytes), token[bytes] = 0;
        at += bytes;
        if (!strcmp(token, "bos_token") || !strcmp(token, "eos_token")) {
            if (*(token[0] == 'b' ? t->begin : t->end)) continue;
            return zfl_fail(error, ZF_ERR_ARGUMENT,
                            "chats of the style %s need a %s, and tokenizer_config.json has none",
                            name, token);
        }
        if (zf_tokenizer_id(tokenizer, token) < 0)
            return zfl_fail(error, ZF_ERR_ARGUMENT,
                            "chats of the style %s need the token %s, which the tokenizer lacks",
                            name, token);
    }
    return true;
}

/* The noon of a day that is written as 26 Jul 2024; -1: it is none. */
static int64_t zfl_noon_of(const char *date)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    struct tm day = {.tm_hour = 12, .tm_isdst = -1};
    char month[4] = "", rest;
    const char *found;
    time_t noon;
    if (sscanf(date, "%2d %3[A-Za-z] %4d%c", &day.tm_mday, month, &day.tm_year, &rest) != 3)
        return -1;
    found = strlen(month) == 3 ? strstr(months, month) : NULL;
    if (!found || (found - months) % 3 || day.tm_year < 1970) return -1;
    day.tm_mon = (int)(found - months) / 3, day.tm_year -= 1900;
    const int number = day.tm_mday;
    noon = mktime(&day);
    return noon == (time_t)-1 || day.tm_mday != number ? -1 : (int64_t)noon;
}

bool zf_chat_set_date(zf_chat *t, const char *date, bool answers, zf_error *error)
{
    t->now = date || !answers ? zfl_noon_of(date ? date : ZF_CHAT_DATE) : (int64_t)time(NULL);
    if (!date) return true;
    if (!zfl_reads(t, "date_string") && !zfl_reads(t, "strftime_now"))
        return zfl_fail(error, ZF_ERR_ARGUMENT,
                        "--date is for chats whose template shows a day, and this one shows none");
    if (t->now < 0 || strlen(date) >= sizeof t->date)
        return zfl_fail(error, ZF_ERR_ARGUMENT, "--date is a day, as \"%s\", not %.40s",
                        ZF_CHAT_DATE, date);
    strcpy(t->date, date);
    return true;
}

bool zf_chat_set_silent(zf_chat *t, zf_error *error)
{
    t->silent = zfl_reads(t, "enable_thinking");
    return t->silent || zfl_fail(error, ZF_ERR_ARGUMENT,
                                 "--no-thinking is for chats whose template reads "
                                 "enable_thinking, and this one does not");
}

/* All members of an object are variables of the template. */
static bool zfl_are_read(const zf_chat *t, const zf_json *object, zf_error *error)
{
    if (object && zf_json_type_of(object) != ZF_JSON_OBJECT)
        return zf_json_expected(object, error, "an object"), false;
    for (const zf_json *v = zf_json_first(object); v; v = zf_json_next(v))
        if (!zfl_reads(t, zf_json_key(v, NULL)))
            return zf_json_fail(v, error, "is not read by the template of these chats"), false;
    return true;
}

bool zf_chat_set_variables(zf_chat *t, const char *json, zf_error *error)
{
    zf_json_free(t->variables);
    t->variables = zf_json_parse(json, strlen(json), NULL, error);
    return t->variables && zfl_are_read(t, t->variables, error);
}

/* ----------------------------------------------------------------------------- conversations */

zf_json *zf_chat_of(const zf_chat_message *m, size_t count, zf_error *error)
{
    zf_text text = {.at = NULL};
    zf_json *conversation = NULL;
    size_t good = 0;
    zf_text_add_string(&text, "{\"messages\": [");
    for (; good < count && zfl_utf8_valid(m[good].text, m[good].bytes) == m[good].bytes; good++) {
        zf_text_add_string(&text, good ? ", {\"role\": " : "{\"role\": ");
        zfl_add_json_string(&text, m[good].role, strlen(m[good].role));
        zf_text_add_string(&text, ", \"content\": ");
        zfl_add_json_string(&text, m[good].text, m[good].bytes);
        zf_text_add_string(&text, "}");
    }
    zf_text_add_string(&text, "]}");
    if (text.failed) zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    else if (good < count) zfl_fail(error, ZF_ERR_FORMAT, "message %zu is not UTF-8", good + 1);
    else conversation = zf_json_parse(text.at, text.count, NULL, error);
    zf_text_free(&text);
    return conversation;
}

/* ------------------------------------------------------------------------------- the template */

/* What a template is given. */
typedef struct zfl_chat_job {
    const zf_chat *chat;
    const zf_json *conversation, *tools;
    size_t count; /* of messages: the first ones */
    bool answer;
} zfl_chat_job;

static bool zfl_has_role(const zf_json *message, const char *name)
{
    const char *role = zf_json_string(zf_json_member(message, "role"), NULL);
    return role && !strcmp(role, name);
}

static void zfl_set(zfj_run *r, const char *name, zfj_value v)
{
    zfj_set_variable(r, r->globals, zfj_string_of(name), v);
}

static const zf_jinja *zfl_template_of(const zfl_chat_job *job)
{
    return job->tools && job->chat->tools ? job->chat->tools : job->chat->plain;
}

/* Parts of a content are one text for a template that does not read them. */
static bool zfl_joins_parts(const zfl_chat_job *job)
{
    return !zf_jinja_mentions(zfl_template_of(job), "text");
}

static void zfl_join_parts(zfj_run *r, const zf_json *content, zfj_dict *message)
{
    zfj_out text = {.at = NULL};
    zfj_string part;
    for (const zf_json *v = zf_json_first(content); v; v = zf_json_next(v)) {
        part.at = zf_json_string(zf_json_member(v, "text"), &part.bytes);
        zfj_put_string(&r->m, &text, part);
    }
    zfj_dict_put(&r->m, message, "content", zfj_text_of(&text));
}

/* A message as transformers gives it: without null, and thoughts under two names. */
static zfj_value zfl_message_of(zfj_run *r, const zfl_chat_job *job, const zf_json *message)
{
    const zf_json *content = zf_json_member(message, "content");
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    zfj_value all = zfj_from_json(&r->m, message), v = zfj_dict_new(&r->m, ZFJ_DICT),
              thoughts = zfj_none;
    const zfj_value *found;
    if (all.kind != ZFJ_DICT) zfj_stop_kind(&r->m, all, "a message");
    for (size_t k = 3; k-- > 0;)
        if ((found = zfj_dict_get(&r->m, all.as.dict, zfj_string_of(names[k]))) &&
            found->kind != ZFJ_NONE)
            thoughts = *found;
    if (thoughts.kind != ZFJ_NONE) zfj_dict_put(&r->m, v.as.dict, "thinking", thoughts);
    for (size_t i = 0; i < all.as.dict->count; i++)
        if (all.as.dict->at[i].value.kind != ZFJ_NONE)
            zfj_dict_set(&r->m, v.as.dict, all.as.dict->at[i].key, all.as.dict->at[i].value);
    if (thoughts.kind != ZFJ_NONE) zfj_dict_put(&r->m, v.as.dict, "reasoning_content", thoughts);
    if (zf_json_type_of(content) == ZF_JSON_ARRAY && zfl_joins_parts(job))
        zfl_join_parts(r, content, v.as.dict);
    if (job->chat->style >= 0 && zfl_has_role(message, "developer"))
        zfj_dict_put(&r->m, v.as.dict, "role", zfj_literal("system"));
    return v;
}

static void zfl_set_tokens(zfj_run *r, const zf_chat *t)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    zfj_string text;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if ((text.at = zfl_special_token(t, names[k], &text.bytes)))
            zfl_set(r, names[k], zfj_text(text));
}

static void zfl_set_chat(zfj_run *r, const void *user)
{
    const zfl_chat_job *job = user;
    const zf_json *v = zf_json_first(zf_json_member(job->conversation, "messages"));
    zfj_value messages = zfj_list_new(&r->m, ZFJ_LIST);
    for (size_t i = 0; i < job->count && v; i++, v = zf_json_next(v))
        zfj_push(&r->m, messages.as.list, zfl_message_of(r, job, v));
    zfl_set_tokens(r, job->chat);
    zfj_set_members(r, job->chat->variables);
    if (job->chat->silent) zfl_set(r, "enable_thinking", zfj_bool(false));
    if (*job->chat->date) zfl_set(r, "date_string", zfj_literal(job->chat->date));
    zfj_set_members(r, zf_json_member(job->conversation, "chat_template_kwargs"));
    zfl_set(r, "messages", messages);
    zfl_set(r, "tools", zfj_from_json(&r->m, job->tools));
    zfl_set(r, "documents", zfj_from_json(&r->m, zf_json_member(job->conversation, "documents")));
    zfl_set(r, "add_generation_prompt", zfj_bool(job->answer));
}

static bool zfl_run_job(const zfl_chat_job *job, zf_text *out, zf_jinja_spans *marks,
                        zf_error *error)
{
    return zfj_render(zfl_template_of(job), &(zf_jinja_desc){.now = job->chat->now}, zfl_set_chat,
                      job, out, marks, error);
}

/* ------------------------------------------------------------------------- what is not written */

static bool zfl_is_empty(const zf_json *v)
{
    return zf_json_type_of(v) <= ZF_JSON_NULL ||
           (zf_json_type_of(v) >= ZF_JSON_STRING && !zf_json_length(v));
}

/* A member that the template does not have in any of these names is an error. */
static bool zfl_is_written(const zf_jinja *t, const zf_json *object, const char *key,
                           const char *const names[3], zf_error *error)
{
    const zf_json *v = zf_json_member(object, key);
    if (zfl_is_empty(v)) return true;
    for (size_t k = 0; k < 3 && names[k]; k++)
        if (zf_jinja_mentions(t, names[k])) return true;
    return zf_json_fail(v, error, "is not written by the template of these chats"), false;
}

static bool zfl_all_written(const zfl_chat_job *job, zf_error *error)
{
    static const struct {
        const char *key, *names[3];
    } members[] =
        {
            {"tool_calls", {"tool_calls"}},
            {"function_call", {"function_call"}},
            {"reasoning_content", {"reasoning_content", "thinking", "reasoning"}},
            {"thinking", {"reasoning_content", "thinking", "reasoning"}},
            {"reasoning", {"reasoning_content", "thinking", "reasoning"}},
        },
      whole[] = {{"tools", {"tools"}}, {"documents", {"documents"}}, {"functions", {"functions"}}};
    const zf_jinja *t = zfl_template_of(job);
    const zf_json *messages = zf_json_member(job->conversation, "messages");
    for (size_t k = 0; k < sizeof whole / sizeof *whole; k++)
        if (!zfl_is_written(t, job->conversation, whole[k].key, whole[k].names, error))
            return false;
    for (const zf_json *v = zf_json_first(messages); v; v = zf_json_next(v))
        for (size_t k = 0; k < sizeof members / sizeof *members; k++)
            if (!zfl_is_written(t, v, members[k].key, members[k].names, error)) return false;
    return zfl_are_read(job->chat, zf_json_member(job->conversation, "chat_template_kwargs"),
                        error);
}

/* ------------------------------------------------------------------------------------- spans */

static bool zfl_add_span(zf_chat_spans *spans, zf_chat_span span, zf_error *error)
{
    zf_chat_span *at = zfl_list_grow(spans->at, spans->count, &spans->room, sizeof *at);
    if (!at) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    spans->at = at;
    at[spans->count++] = span;
    return true;
}

static bool zfl_is_assistant(const zf_json *message) { return zfl_has_role(message, "assistant"); }

/* The generation blocks of a text. Where there are as many as answers, each belongs to one. */
static bool zfl_spans_of_marks(const zfl_chat_job *job, const zf_jinja_spans *marks,
                               zf_chat_spans *spans, zf_error *error)
{
    const zf_json *v = zf_json_first(zf_json_member(job->conversation, "messages")), *first = v;
    size_t answers = 0;
    int64_t number = -1;
    bool good = true;
    for (; v; v = zf_json_next(v)) answers += zfl_is_assistant(v);
    v = NULL;
    for (size_t i = 0; good && i < marks->count; i++) {
        do v = v ? zf_json_next(v) : first, number++;
        while (v && !zfl_is_assistant(v));
        good = zfl_add_span(spans,
                            (zf_chat_span){marks->at[i].begin, marks->at[i].end,
                                           answers == marks->count ? number : -1},
                            error);
    }
    return good;
}

/* The end of an answer in a text, without the white space after what ends it; all of it, if it ends
 * with its content. */
static size_t zfl_answer_end(const zf_json *message, const char *text, size_t begin, size_t end)
{
    size_t bytes = 0, last = end;
    const zf_json *said = zf_json_member(message, "content");
    const int64_t parts = zf_json_type_of(said) == ZF_JSON_ARRAY ? zf_json_length(said) : 0;
    if (parts) said = zf_json_member(zf_json_element(said, parts - 1), "text");
    const char *content = zf_json_string(said, &bytes);
    while (last > begin && strchr(" \t\r\n", text[last - 1])) last--;
    while (bytes && strchr(" \t\r\n", content[bytes - 1])) bytes--;
    if (bytes && last - begin >= bytes && !memcmp(text + last - bytes, content, bytes)) return end;
    return last;
}

static bool zfl_is_prefix(const zf_text *part, const char *text, size_t bytes)
{
    return part->count <= bytes && !memcmp(part->at, text, part->count);
}

/* The span of message `number`: what it adds to the text. */
static bool zfl_span_by_difference(zfl_chat_job job, const zf_json *message, size_t number,
                                   const char *text, size_t bytes, zf_chat_span *span,
                                   zf_error *error)
{
    zf_text before = {.at = NULL}, after = {.at = NULL};
    bool good;
    job.count = number, job.answer = true;
    good = zfl_run_job(&job, &before, NULL, error);
    job.count = number + 1, job.answer = false;
    good = good && zfl_run_job(&job, &after, NULL, error);
    if (good &&
        (!zfl_is_prefix(&after, text, bytes) || !zfl_is_prefix(&before, after.at, after.count)))
        good = zfl_fail(error, ZF_ERR_FORMAT,
                        "message %zu: the template has no generation block, and changes this text "
                        "when messages follow, so what is trained on is not known: name a style or "
                        "file that has them (--chat), or make an example of each answer",
                        number + 1);
    *span = (zf_chat_span){before.count, after.count, (int64_t)number};
    if (good) span->end = zfl_answer_end(message, text, before.count, after.count);
    zf_text_free(&before);
    zf_text_free(&after);
    return good;
}

static bool zfl_spans_by_difference(const zfl_chat_job *job, const char *text, size_t bytes,
                                    size_t at, zf_chat_spans *spans, zf_error *error)
{
    const zf_json *v = zf_json_first(zf_json_member(job->conversation, "messages"));
    zf_chat_span span;
    for (size_t i = 0; v; i++, v = zf_json_next(v)) {
        if (!zfl_is_assistant(v)) continue;
        if (!zfl_span_by_difference(*job, v, i, text, bytes, &span, error)) return false;
        span.begin += at, span.end += at;
        if (!zfl_add_span(spans, span, error)) return false;
    }
    return true;
}

void zf_chat_spans_free(zf_chat_spans *spans)
{
    free(spans->at);
    *spans = (zf_chat_spans){.at = NULL};
}

/* ------------------------------------------------------------------------------------ writing */

/* Tools that stand in a string are read from it; *read is to be freed. */
static bool zfl_tools_of(const zf_json *conversation, const zf_json **tools, zf_json **read,
                         zf_error *error)
{
    size_t bytes;
    const zf_json *v = zf_json_member(conversation, "tools");
    const char *text = zf_json_string(v, &bytes);
    *read = NULL;
    if (text && !(*read = zf_json_parse(text, bytes, NULL, error))) return false;
    if (text) v = *read;
    *tools = zf_json_type_of(v) <= ZF_JSON_NULL ? NULL : v;
    return true;
}

static void zfl_expect_part(const zf_json *type, zf_error *error)
{
    const char *text = zf_json_string(type, NULL);
    if (!text || strcmp(text, "text"))
        zf_json_expected(type, error, "\"text\": the template of these chats reads no other parts");
}

/* A template that does not read the parts of a content gets their texts. */
static bool zfl_check_parts(const zf_json *content, zf_error *error)
{
    if (zf_json_type_of(content) != ZF_JSON_ARRAY) return true;
    for (const zf_json *v = zf_json_first(content); v; v = zf_json_next(v)) {
        const zf_json *type, *text = NULL;
        if (zf_json_type_of(v) != ZF_JSON_OBJECT)
            return zf_json_expected(v, error, "an object"), false;
        if ((type = zf_json_require(v, "type", error))) zfl_expect_part(type, error);
        if (!error->status) text = zf_json_require(v, "text", error);
        if (text && !zf_json_string(text, NULL)) zf_json_expected(text, error, "a string");
        if (error->status) return false;
    }
    return true;
}

static bool zfl_check_messages(const zfl_chat_job *job, zf_error *error)
{
    const zf_json *messages = zf_json_member(job->conversation, "messages");
    if (zf_json_type_of(messages) != ZF_JSON_ARRAY)
        return zf_json_expected(messages, error, "an array of messages"), false;
    if (!zf_json_length(messages)) return zf_json_fail(messages, error, "has no message"), false;
    for (const zf_json *v = zf_json_first(messages); v; v = zf_json_next(v)) {
        const zf_json *role;
        if (zf_json_type_of(v) != ZF_JSON_OBJECT)
            return zf_json_expected(v, error, "an object"), false;
        if (!(role = zf_json_require(v, "role", error))) return false;
        if (!zf_json_string(role, NULL)) return zf_json_expected(role, error, "a string"), false;
        if (zfl_joins_parts(job) && !zfl_check_parts(zf_json_member(v, "content"), error))
            return false;
    }
    return true;
}

bool zf_chat_write(const zf_chat *t, const zf_json *conversation, bool answer, zf_text *out,
                   zf_chat_spans *spans, zf_error *error)
{
    const zf_json *messages = zf_json_member(conversation, "messages");
    zfl_chat_job job = {t, conversation, NULL, (size_t)zf_json_length(messages), answer};
    zf_jinja_spans marks = {.at = NULL};
    const size_t at = out->count;
    zf_json *read = NULL;
    bool marked, good = zfl_tools_of(conversation, &job.tools, &read, error) &&
                        zfl_check_messages(&job, error) && zfl_all_written(&job, error);
    marked = good && spans && zfl_template_of(&job)->marked;
    good = good && zfl_run_job(&job, out, marked ? &marks : NULL, error);
    if (good && marked) good = zfl_spans_of_marks(&job, &marks, spans, error);
    else if (good && spans)
        good = zfl_spans_by_difference(&job, out->at + at, out->count - at, at, spans, error);
    zf_jinja_spans_free(&marks);
    zf_json_free(read);
    return good;
}

bool zf_chat_end(const zf_chat *t, char end[ZF_CHAT_TOKEN], zf_error *error)
{
    static const char said[] = "zeroflow";
    const zf_chat_message m[] = {{"user", "a", 1}, {"assistant", said, sizeof said - 1}};
    zf_error refused = {ZF_OK, ""};
    zf_json *chat = zf_chat_of(m, 2, error);
    zf_text text = {.at = NULL};
    const char *from;
    size_t bytes;
    end[0] = 0;
    if (chat && zf_chat_write(t, chat, false, &text, NULL, &refused) &&
        (from = strstr(text.at, said))) {
        from += sizeof said - 1, from += strspn(from, " \t\n");
        bytes = strcspn(from, " \t\n");
        if (bytes < ZF_CHAT_TOKEN) memcpy(end, from, bytes), end[bytes] = 0;
    }
    zf_text_free(&text);
    zf_json_free(chat);
    if (refused.status == ZF_ERR_NOMEM) *error = refused;
    return !error->status;
}
