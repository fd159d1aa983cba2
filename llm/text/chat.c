#include "chat_inside.h"
#include "wordpiece.h"
#include "../base/fail.h"

#include <string.h>

static const char *const roles[CHAT_ROLES] = {"system", "user", "assistant"};

int chat_role_of(const char *word)
{
    for (int k = 0; k < CHAT_ROLES; k++)
        if (!strcmp(word, roles[k])) return k;
    return -1;
}

static void put(const chat_template *t, const char *text, buffer *out)
{
    for (; *text; text++) {
        if (*text == '\1') buffer_add_text(out, t->begin);
        else if (*text == '\2') buffer_add_text(out, t->end);
        else if (*text == '\3') buffer_add_text(out, t->date);
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

/* ---------------------------------------------------------------------------------- thoughts */

/* The first (or last) place of `mark` in m; NULL: there is none. */
static const char *find(chat_message m, const char *mark, bool last)
{
    const size_t n = strlen(mark);
    const char *found = NULL;
    for (size_t at = 0; at + n <= m.bytes && (last || !found); at++)
        if (!memcmp(m.text + at, mark, n)) found = m.text + at;
    return found;
}

/* A message without line feeds at its ends. */
static chat_message stripped(chat_message m, bool begin, bool end)
{
    while (begin && m.bytes && *m.text == '\n') m.text++, m.bytes--;
    while (end && m.bytes && m.text[m.bytes - 1] == '\n') m.bytes--;
    return m;
}

/* Takes the thoughts out of a message: what is between <think> and </think>. */
static chat_message take_thoughts(chat_message *m)
{
    static const char opens[] = "<think>", closes[] = "</think>";
    const char *first = find(*m, closes, false), *last = find(*m, closes, true), *open,
               *end = m->text + m->bytes;
    chat_message thoughts = {m->role, m->text, first ? (size_t)(first - m->text) : 0};
    if (!first) return thoughts;
    if ((open = find(thoughts, opens, true)))
        thoughts.text = open + strlen(opens), thoughts.bytes = (size_t)(first - thoughts.text);
    last += strlen(closes);
    *m = stripped((chat_message){m->role, last, (size_t)(end - last)}, true, false);
    return stripped(thoughts, true, true);
}

/* The place of the last question, whose answer has its thoughts: of the last user's message that is
 * not the result of a tool; of the last message if there is none. */
static size_t last_question(const chat_message *m, size_t count)
{
    static const char opens[] = "<tool_response>", closes[] = "</tool_response>";
    const size_t a = strlen(opens), b = strlen(closes);
    for (size_t i = count; i-- > 0;) {
        bool result = m[i].bytes >= b && !memcmp(m[i].text, opens, a) &&
                      !memcmp(m[i].text + m[i].bytes - b, closes, b);
        if (m[i].role == CHAT_USER && !result) return i;
    }
    return count ? count - 1 : 0;
}

/* Writes an assistant's message of a style that thinks: `asked`, after the last question. */
static void put_thinking(chat_message m, bool asked, bool last, buffer *out)
{
    chat_message thoughts = take_thoughts(&m);
    if (asked && (last || thoughts.bytes)) {
        buffer_add_text(out, "<think>\n");
        buffer_add(out, thoughts.text, thoughts.bytes);
        buffer_add_text(out, "\n</think>\n\n");
        m = stripped(m, true, false);
    }
    buffer_add(out, m.text, m.bytes);
}

/* --------------------------------------------------------------------------------- writing */

/* Writes the user's message with that of the system before it. */
static void put_joined(const chat_template *t, const chat_message *system, chat_message m,
                       buffer *out)
{
    const chat_style *s = t->style;
    buffer all = {.at = NULL};
    put(t, s->before[CHAT_SYSTEM], &all);
    buffer_add(&all, system->text, system->bytes);
    put(t, s->behind[CHAT_SYSTEM], &all);
    buffer_add(&all, m.text, m.bytes);
    m.text = all.at ? all.at : "", m.bytes = all.count;
    if (s->whole_trimmed) m = trimmed(m);
    buffer_add(out, m.text, m.bytes);
    out->failed |= all.failed;
    buffer_free(&all);
}

/* Writes message i of a chat, and sets its span. */
static void put_message(const chat_template *t, const chat_message *all, size_t count, size_t i,
                        size_t asked, chat_span *span, buffer *out)
{
    const chat_style *s = t->style;
    const bool with = s->joined && all[0].role == CHAT_SYSTEM,
               takes = with && all[i].role == CHAT_USER &&
                       i == (s->joined == CHAT_TO_FIRST ? 1 : count - 1);
    chat_message m = all[i];
    if (s->trimmed[m.role] && !(takes && s->whole_trimmed)) m = trimmed(m);
    *span = (chat_span){out->count, out->count};
    if ((with && !i) || (m.role == CHAT_SYSTEM && s->skips_empty && !m.bytes)) return;
    put(t, s->before[m.role], out);
    span->begin = out->count;
    if (s->head && !i && m.role == CHAT_SYSTEM) put(t, s->head, out);
    if (takes) put_joined(t, &all[0], m, out);
    else if (s->thinks && m.role == CHAT_ASSISTANT)
        put_thinking(m, i > asked, i + 1 == count, out);
    else buffer_add(out, m.text, m.bytes);
    span->end = out->count;
    put(t, s->behind[m.role], out);
}

bool chat_text(const chat_template *t, const chat_message *messages, size_t count, bool answer,
               buffer *out, chat_span *spans, zf_error *error)
{
    const chat_style *s = t->style;
    const size_t asked = last_question(messages, count);
    const chat_message system = {CHAT_SYSTEM, s->system, s->system ? strlen(s->system) : 0};
    chat_span span;
    if (!check(s, messages, count, error)) return false;
    put(t, s->first, out);
    if (s->system && !(count && messages[0].role == CHAT_SYSTEM))
        put_message(t, &system, 1, 0, 0, &span, out);
    for (size_t i = 0; i < count; i++) {
        put_message(t, messages, count, i, asked, &span, out);
        if (messages[i].role == CHAT_ASSISTANT) { /* with the token that ends it */
            buffer end = {.at = NULL};
            put(t, s->end, &end);
            span.end += end.count;
            out->failed |= end.failed;
            buffer_free(&end);
        }
        if (spans) spans[i] = span;
    }
    if (answer) {
        put(t, s->answer, out);
        if (t->silent) buffer_add_text(out, "<think>\n\n</think>\n\n");
    } else if (s->close) {
        put(t, s->close, out);
    }
    return !out->failed || fail(error, ZF_ERR_NOMEM, "out of memory");
}

const char *chat_end(const chat_template *t)
{
    const char *mark = strchr(t->style->end, '\2');
    return mark ? t->end : t->style->end;
}
