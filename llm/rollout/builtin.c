/* Rewards that are computed from the answer and the line of its prompt. */
#include <stdlib.h>
#include <string.h>

/* What a spec says of a reward. */
typedef struct zfl_reward_spec {
    const char *name, *argument; /* the spec; NULL: it has no argument */
    double deadline;
    zfl_regex *regex;
} zfl_reward_spec;

/* False: an error of the line of an answer's prompt. */
static bool zfl_reward_fail(const zf_reward_item *item, zf_error *error, const zf_error *why)
{
    return zfl_fail(error, why->status, "the prompt of line %lld: %.400s",
                    (long long)item->prompt->line, why->text);
}

/* The text of the member that a right answer has: a string, or a number as it is written. NULL with
 * *error. */
static const char *zfl_reward_member(const zfl_reward_spec *s, const zf_reward_item *item,
                                     size_t *bytes, zf_error *error)
{
    const char *key = s->argument ? s->argument : "answer";
    zf_error why = {ZF_OK, ""};
    const zf_json *v = zf_json_require(item->prompt->data, key, &why);
    const char *text = zf_json_string(v, bytes);
    if (!text) text = zf_json_number(v, bytes);
    if (v && !text) zf_json_expected(v, &why, "a string or a number");
    if (!text) zfl_reward_fail(item, error, &why);
    return text;
}

static bool zfl_reward_exact(void *user, const zf_reward_item *items, int64_t n, double *out,
                             zf_error *error)
{
    for (int64_t k = 0; k < n; k++) {
        size_t bytes, own = items[k].bytes;
        const char *right = zfl_reward_member(user, &items[k], &bytes, error), *text;
        if (!right) return false;
        right = zfl_trimmed(right, &bytes), text = zfl_trimmed(items[k].text, &own);
        out[k] = bytes == own && !memcmp(right, text, own);
    }
    return true;
}

static bool zfl_is_digit(const char *at, const char *end)
{
    return at < end && *at >= '0' && *at <= '9';
}

/* A comma before three digits, and no fourth. */
static bool zfl_groups_digits(const char *at, const char *end)
{
    return *at == ',' && zfl_is_digit(at + 1, end) && zfl_is_digit(at + 2, end) &&
           zfl_is_digit(at + 3, end) && !zfl_is_digit(at + 4, end);
}

/* The number at the beginning of a text: digits, perhaps with a sign, a point, and commas between
 * groups of three. Its length in bytes; 0: there is none. The same in every locale. */
static size_t zfl_decimal(const char *at, const char *end, double *number)
{
    char digits[80];
    size_t n = 0;
    const char *from = at;
    int places = 0;
    bool any = false, point = false;
    if (at < end && (*at == '-' || *at == '+')) digits[n++] = *at++;
    for (; at < end && n < 64; at++) {
        if (any && !point && zfl_groups_digits(at, end)) continue;
        if (*at == '.' && !point && zfl_is_digit(at + 1, end)) {
            point = true;
            continue;
        }
        if (!zfl_is_digit(at, end)) break;
        digits[n++] = *at, any = true, places += point;
    }
    snprintf(digits + n, sizeof digits - n, "e-%d", places);
    if (any) *number = strtod(digits, NULL);
    return any ? (size_t)(at - from) : 0;
}

/* The number after the last "####", or else the last one. */
static bool zfl_number_of(const char *text, size_t bytes, double *number)
{
    const char *end = text + bytes, *marked = NULL;
    bool found = false;
    for (const char *at = text; at + 4 <= end; at++)
        if (!memcmp(at, "####", 4)) marked = at + 4;
    for (const char *at = marked ? marked : text; at < end && !(found && marked);) {
        const bool minus = *at == '-' && at > text && zfl_is_digit(at - 1, end); /* of 3-4 */
        const size_t n = minus ? 0 : zfl_decimal(at, end, number);
        found = found || n;
        at += n ? n : 1;
    }
    return found;
}

static bool zfl_reward_number(void *user, const zf_reward_item *items, int64_t n, double *out,
                              zf_error *error)
{
    const zfl_reward_spec *s = user;
    for (int64_t k = 0; k < n; k++) {
        const zf_error none = {ZF_ERR_FORMAT, "its member has no number to compare with"};
        size_t bytes;
        double wanted, said;
        const char *right = zfl_reward_member(s, &items[k], &bytes, error);
        if (!right) return false;
        if (!zfl_number_of(right, bytes, &wanted)) return zfl_reward_fail(&items[k], error, &none);
        out[k] = zfl_number_of(items[k].text, items[k].bytes, &said) && said == wanted;
    }
    return true;
}

static void zfl_reward_found(void *user, size_t begin, size_t end)
{
    (void)begin, (void)end;
    *(double *)user = 1;
}

static bool zfl_reward_regex(void *user, const zf_reward_item *items, int64_t n, double *out,
                             zf_error *error)
{
    const zfl_reward_spec *s = user;
    for (int64_t k = 0; k < n; k++) {
        zf_error why = {ZF_OK, ""};
        out[k] = 0;
        if (!zfl_regex_each(s->regex, items[k].text, items[k].bytes, zfl_reward_found, &out[k],
                            &why))
            return zfl_reward_fail(&items[k], error, &why);
    }
    return true;
}

static bool zfl_reward_length(void *user, const zf_reward_item *items, int64_t n, double *out,
                              zf_error *error)
{
    (void)user, (void)error;
    for (int64_t k = 0; k < n; k++) out[k] = (double)items[k].count / (double)items[k].tokens;
    return true;
}

static bool zfl_reward_overlong(void *user, const zf_reward_item *items, int64_t n, double *out,
                                zf_error *error)
{
    const zfl_reward_spec *s = user;
    double buffer = 1;
    (void)error;
    zfl_decimal(s->argument, s->argument + strlen(s->argument), &buffer);
    for (int64_t k = 0; k < n; k++)
        out[k] = zf_overlong_penalty(items[k].count, items[k].tokens, (int64_t)buffer);
    return true;
}
