/* The text of a chat in a style. */
#include <string.h>

/* The parts of a chat's style: chat_styles.c knows the styles, chat.c writes them. */
enum { ZFL_CHAT_LITERALS = 10 };

/* In texts, \1 is the token that begins a text, \2 the one that ends it, and \3 a date. */
struct zf_chat_style {
    const char *name;
    const char *first;                 /* before the whole text */
    const char *before[ZF_CHAT_ROLES]; /* NULL: no message of this role */
    const char *behind[ZF_CHAT_ROLES];
    const char *answer;
    const char *end;   /* after the assistant's message: the beginning of `behind` */
    const char *close; /* behind the whole text if it does not end with `answer`; NULL: nothing */
    /* The system message of a chat that does not begin with one; NULL: there is none. */
    const char *system;
    /* Between `before` and the text of a system message that begins a chat; NULL: nothing. With \3,
     * the date is today's, or always 26 Jul 2024. */
    const char *head;
    bool today;
    bool trimmed[ZF_CHAT_ROLES]; /* white space around messages is removed */
    bool whole_trimmed;          /* and around a user's message together with the system's */
    /* Where the text of a system message that begins a chat goes: to the first message, or to the
     * last one if it is the user's. */
    enum { ZFL_CHAT_APART, ZFL_CHAT_TO_FIRST, ZFL_CHAT_TO_LAST } joined;
    bool alternates;  /* users and assistants must alternate */
    bool thinks;      /* the assistant's thoughts are in <think> and </think> */
    bool skips_empty; /* an empty system message is left out */
    /* How other templates are recognised than those with a known digest: they contain `part`,
     * without spaces, if that is not NULL; and all of their texts are among these, including the
     * first of them. */
    const char *part;
    const char *literals[ZFL_CHAT_LITERALS];
};

static const char *const zfl_roles[ZF_CHAT_ROLES] = {"system", "user", "assistant"};

int zf_chat_role_of(const char *word)
{
    for (int k = 0; k < ZF_CHAT_ROLES; k++)
        if (!strcmp(word, zfl_roles[k])) return k;
    return -1;
}

static void zfl_chat_put(const zf_chat *t, const char *text, zf_text *out)
{
    for (; *text; text++) {
        if (*text == '\1') zf_text_add_string(out, t->begin);
        else if (*text == '\2') zf_text_add_string(out, t->end);
        else if (*text == '\3') zf_text_add_string(out, t->date);
        else zf_text_add(out, text, 1);
    }
}

/* A message without white space at its ends. */
static zf_chat_message zfl_trimmed(zf_chat_message m)
{
    const unsigned char *p = (const unsigned char *)m.text;
    size_t begin = m.bytes, end = 0;
    uint32_t c;
    for (size_t at = 0; at < m.bytes;) {
        int n = zfl_utf8_decode(p + at, m.bytes - at, &c);
        if (!n || !zfl_is_space(c)) {
            if (at < begin) begin = at;
            end = at + (n ? (size_t)n : 1);
        }
        at += n ? (size_t)n : 1;
    }
    if (begin > end) begin = end;
    return (zf_chat_message){m.role, m.text + begin, end - begin};
}

static bool zfl_check(const zf_chat_style *s, const zf_chat_message *m, size_t count,
                      zf_error *error)
{
    zf_chat_role turn = ZF_CHAT_USER;
    for (size_t i = 0; i < count; i++) {
        if (!s->before[m[i].role])
            return zfl_fail(error, ZF_ERR_FORMAT, "message %zu: the style %s has no %s message",
                            i + 1, s->name, zfl_roles[m[i].role]);
        if (!s->alternates) continue;
        if (m[i].role == ZF_CHAT_SYSTEM && !i && count > 1) continue;
        if (m[i].role != turn)
            return zfl_fail(
                error, ZF_ERR_FORMAT,
                "message %zu is the %s's: in the style %s users and assistants take turns", i + 1,
                zfl_roles[m[i].role], s->name);
        turn = turn == ZF_CHAT_USER ? ZF_CHAT_ASSISTANT : ZF_CHAT_USER;
    }
    return true;
}

/* ---------------------------------------------------------------------------------- thoughts */

/* The first (or last) place of `mark` in m; NULL: there is none. */
static const char *zfl_chat_find(zf_chat_message m, const char *mark, bool last)
{
    const size_t n = strlen(mark);
    const char *found = NULL;
    for (size_t at = 0; at + n <= m.bytes && (last || !found); at++)
        if (!memcmp(m.text + at, mark, n)) found = m.text + at;
    return found;
}

/* A message without line feeds at its ends. */
static zf_chat_message zfl_stripped(zf_chat_message m, bool begin, bool end)
{
    while (begin && m.bytes && *m.text == '\n') m.text++, m.bytes--;
    while (end && m.bytes && m.text[m.bytes - 1] == '\n') m.bytes--;
    return m;
}

/* Takes the thoughts out of a message: what is between <think> and </think>. */
static zf_chat_message zfl_take_thoughts(zf_chat_message *m)
{
    static const char opens[] = "<think>", closes[] = "</think>";
    const char *first = zfl_chat_find(*m, closes, false), *last = zfl_chat_find(*m, closes, true),
               *open, *end = m->text + m->bytes;
    zf_chat_message thoughts = {m->role, m->text, first ? (size_t)(first - m->text) : 0};
    if (!first) return thoughts;
    if ((open = zfl_chat_find(thoughts, opens, true)))
        thoughts.text = open + strlen(opens), thoughts.bytes = (size_t)(first - thoughts.text);
    last += strlen(closes);
    *m = zfl_stripped((zf_chat_message){m->role, last, (size_t)(end - last)}, true, false);
    return zfl_stripped(thoughts, true, true);
}

/* The place of the last question, whose answer has its thoughts: of the last user's message that is
 * not the result of a tool; of the last message if there is none. */
static size_t zfl_last_question(const zf_chat_message *m, size_t count)
{
    static const char opens[] = "<tool_response>", closes[] = "</tool_response>";
    const size_t a = strlen(opens), b = strlen(closes);
    for (size_t i = count; i-- > 0;) {
        bool result = m[i].bytes >= b && !memcmp(m[i].text, opens, a) &&
                      !memcmp(m[i].text + m[i].bytes - b, closes, b);
        if (m[i].role == ZF_CHAT_USER && !result) return i;
    }
    return count ? count - 1 : 0;
}

/* Writes an assistant's message of a style that thinks: `asked`, after the last question. */
static void zfl_put_thinking(zf_chat_message m, bool asked, bool last, zf_text *out)
{
    zf_chat_message thoughts = zfl_take_thoughts(&m);
    if (asked && (last || thoughts.bytes)) {
        zf_text_add_string(out, "<think>\n");
        zf_text_add(out, thoughts.text, thoughts.bytes);
        zf_text_add_string(out, "\n</think>\n\n");
        m = zfl_stripped(m, true, false);
    }
    zf_text_add(out, m.text, m.bytes);
}

/* --------------------------------------------------------------------------------- writing */

/* Writes the user's message with that of the system before it. */
static void zfl_put_joined(const zf_chat *t, const zf_chat_message *system, zf_chat_message m,
                           zf_text *out)
{
    const zf_chat_style *s = t->style;
    zf_text all = {.at = NULL};
    zfl_chat_put(t, s->before[ZF_CHAT_SYSTEM], &all);
    zf_text_add(&all, system->text, system->bytes);
    zfl_chat_put(t, s->behind[ZF_CHAT_SYSTEM], &all);
    zf_text_add(&all, m.text, m.bytes);
    m.text = all.at ? all.at : "", m.bytes = all.count;
    if (s->whole_trimmed) m = zfl_trimmed(m);
    zf_text_add(out, m.text, m.bytes);
    out->failed |= all.failed;
    zf_text_free(&all);
}

/* Writes message i of a chat, and sets its span. */
static void zfl_put_message(const zf_chat *t, const zf_chat_message *all, size_t count, size_t i,
                            size_t asked, zf_chat_span *span, zf_text *out)
{
    const zf_chat_style *s = t->style;
    const bool with = s->joined && all[0].role == ZF_CHAT_SYSTEM,
               takes = with && all[i].role == ZF_CHAT_USER &&
                       i == (s->joined == ZFL_CHAT_TO_FIRST ? 1 : count - 1);
    zf_chat_message m = all[i];
    if (s->trimmed[m.role] && !(takes && s->whole_trimmed)) m = zfl_trimmed(m);
    *span = (zf_chat_span){out->count, out->count};
    if ((with && !i) || (m.role == ZF_CHAT_SYSTEM && s->skips_empty && !m.bytes)) return;
    zfl_chat_put(t, s->before[m.role], out);
    span->begin = out->count;
    if (s->head && !i && m.role == ZF_CHAT_SYSTEM) zfl_chat_put(t, s->head, out);
    if (takes) zfl_put_joined(t, &all[0], m, out);
    else if (s->thinks && m.role == ZF_CHAT_ASSISTANT)
        zfl_put_thinking(m, i > asked, i + 1 == count, out);
    else zf_text_add(out, m.text, m.bytes);
    span->end = out->count;
    zfl_chat_put(t, s->behind[m.role], out);
}

bool zf_chat_write(const zf_chat *t, const zf_chat_message *messages, size_t count, bool answer,
                   zf_text *out, zf_chat_span *spans, zf_error *error)
{
    const zf_chat_style *s = t->style;
    const size_t asked = zfl_last_question(messages, count);
    const zf_chat_message system = {ZF_CHAT_SYSTEM, s->system, s->system ? strlen(s->system) : 0};
    zf_chat_span span;
    if (!zfl_check(s, messages, count, error)) return false;
    zfl_chat_put(t, s->first, out);
    if (s->system && !(count && messages[0].role == ZF_CHAT_SYSTEM))
        zfl_put_message(t, &system, 1, 0, 0, &span, out);
    for (size_t i = 0; i < count; i++) {
        zfl_put_message(t, messages, count, i, asked, &span, out);
        if (messages[i].role == ZF_CHAT_ASSISTANT) { /* with the token that ends it */
            zf_text end = {.at = NULL};
            zfl_chat_put(t, s->end, &end);
            span.end += end.count;
            out->failed |= end.failed;
            zf_text_free(&end);
        }
        if (spans) spans[i] = span;
    }
    if (answer) {
        zfl_chat_put(t, s->answer, out);
        if (t->silent) zf_text_add_string(out, "<think>\n\n</think>\n\n");
    } else if (s->close) {
        zfl_chat_put(t, s->close, out);
    }
    return !out->failed || zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
}

const char *zf_chat_end(const zf_chat *t)
{
    const char *mark = strchr(t->style->end, '\2');
    return mark ? t->end : t->style->end;
}
