/* Rewards by a command. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void zfl_put_item(zf_text *out, const zf_reward_item *item)
{
    static const char *const names[] = {"length", "end", "stop"};
    char tokens[40];
    zf_text_add_string(out, "{\"completion\": ");
    zfl_add_json_string(out, item->text, item->bytes);
    zf_text_add_string(out, ", \"finish\": \"");
    zf_text_add_string(out, names[item->finish]);
    snprintf(tokens, sizeof tokens, "\", \"tokens\": %lld, \"data\": ", (long long)item->count);
    zf_text_add_string(out, tokens);
    zf_text_add(out, item->prompt->text.at, item->prompt->text.count);
    zf_text_add_string(out, "}\n");
}

/* One line of the output: a number, or null. False with *error. */
static bool zfl_take_reward(const char *line, size_t bytes, double *out, zf_error *error)
{
    zf_error why = {ZF_OK, ""};
    zf_json *v = zf_json_parse(line, bytes, NULL, &why);
    const bool null = v && zf_json_type_of(v) == ZF_JSON_NULL;
    bool good = null || (v && !zf_json_to_double(v, -HUGE_VAL, HUGE_VAL, out, &why));
    if (null) *out = NAN;
    zf_json_free(v);
    if (why.status == ZF_ERR_NOMEM) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    return good ||
           zfl_fail(error, ZF_ERR_FORMAT, "printed \"%.*s\", which is no number and not null",
                    bytes < 60 ? (int)bytes : 60, line);
}

/* Where the output has no line for an answer, or a wrong one. */
static bool zfl_blame_item(const zfl_reward_spec *s, const zf_reward_item *item,
                           const zf_error *why, zf_error *error)
{
    return zfl_fail(error, why->status, "%.150s: for an answer to the prompt of line %lld: %.250s",
                    s->name, (long long)item->prompt->line, why->text);
}

/* Where the command itself failed. */
static bool zfl_blame_all(const zfl_reward_spec *s, const zf_reward_item *items, int64_t n,
                          const zf_error *why, zf_error *error)
{
    int64_t first = items[0].prompt->line, last = first;
    for (int64_t k = 1; k < n; k++) {
        const int64_t line = items[k].prompt->line;
        if (line < first) first = line;
        if (line > last) last = line;
    }
    return zfl_fail(error, why->status,
                    "%.150s: %.200s, at answers to the prompts of lines %lld to %lld", s->name,
                    why->text, (long long)first, (long long)last);
}

static bool zfl_take_rewards(const zfl_reward_spec *s, const zf_text *said,
                             const zf_reward_item *items, int64_t n, double *out, zf_error *error)
{
    const zf_error few = {ZF_ERR_FORMAT, "printed nothing: a line for each answer is needed"};
    const char *at = said->at, *end = at + said->count;
    zf_error why = {ZF_OK, ""};
    for (int64_t k = 0; k < n; k++) {
        const char *next = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        const size_t bytes = (size_t)((next ? next : end) - at);
        if (at >= end) return zfl_blame_item(s, &items[k], &few, error);
        if (!zfl_take_reward(at, bytes, &out[k], &why))
            return zfl_blame_item(s, &items[k], &why, error);
        at = next ? next + 1 : end;
    }
    return at >= end || zfl_fail(error, ZF_ERR_FORMAT,
                                 "%.150s: printed more than %lld lines, one for "
                                 "each answer",
                                 s->name, (long long)n);
}

static bool zfl_reward_command(void *user, const zf_reward_item *items, int64_t n, double *out,
                               zf_error *error)
{
    const zfl_reward_spec *s = user;
    zf_text text = {.at = NULL}, said = {.at = NULL};
    zf_error why = {ZF_OK, ""};
    bool good;
    zf_text_add(&text, "", 0), zf_text_add(&said, "", 0);
    for (int64_t k = 0; k < n; k++) zfl_put_item(&text, &items[k]);
    good = !text.failed || zfl_fail(&why, ZF_ERR_NOMEM, "out of memory");
    good = good && zfl_process_run(s->argument, s->deadline, &text, &said, &why);
    if (!good && why.status == ZF_ERR_NOMEM) *error = why;
    else if (!good) zfl_blame_all(s, items, n, &why, error);
    good = good && zfl_take_rewards(s, &said, items, n, out, error);
    zf_text_free(&text);
    zf_text_free(&said);
    return good;
}
