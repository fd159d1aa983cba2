#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The row called name[0..length): exactly, or the only one that begins with it. *second: another
 * one that begins with it, or NULL. */
static const option_row *find(const option_row *rows, const char *name, size_t length,
                              const option_row **second)
{
    const option_row *found = NULL;
    *second = NULL;
    for (; rows->name && length; rows++) {
        if (strncmp(rows->name, name, length)) continue;
        if (!rows->name[length]) {
            *second = NULL;
            return rows;
        }
        if (!found) found = rows;
        else if (!*second) *second = rows;
    }
    return found;
}

/* The index of `text` among "a|b|c", -1 when it is none of them. */
static int64_t choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (int64_t index = 0; *choices; index++) {
        size_t n = strcspn(choices, "|");
        if (n == length && !strncmp(choices, text, n)) return index;
        choices += n + (choices[n] == '|');
    }
    return -1;
}

static bool set(const option_row *row, const char *text, char *error, int size)
{
    char *end;
    double number;
    if (option_kind_of(row) == OPTION_TEXT) {
        *(const char **)row->to = text;
        return true;
    }
    if (option_kind_of(row) == OPTION_TEXTS) {
        option_texts *all = row->to;
        if (all->count < OPTION_TIMES) return all->at[all->count++] = text, true;
        snprintf(error, (size_t)size, "--%s is given more than %d times", row->name, OPTION_TIMES);
        return false;
    }
    if (option_kind_of(row) == OPTION_CHOICE) {
        int64_t index = choice(row->value, text);
        if (index >= 0) *(int64_t *)row->to = index;
        else
            snprintf(error, (size_t)size, "--%s is one of %s, not '%.100s'", row->name, row->value,
                     text);
        return index >= 0;
    }
    errno = 0;
    number = strtod(text, &end);
    if (end == text || *end || !isfinite(number) || number < row->least || number > row->most ||
        (option_kind_of(row) == OPTION_COUNT && number != floor(number))) {
        if (isfinite(row->most))
            snprintf(error, (size_t)size, "--%s takes %s from %.10g to %.10g, not '%.100s'",
                     row->name, option_kind_of(row) == OPTION_COUNT ? "a whole number" : "a number",
                     row->least, row->most, text);
        else
            snprintf(error, (size_t)size, "--%s takes %s of %.10g or more, not '%.100s'", row->name,
                     option_kind_of(row) == OPTION_COUNT ? "a whole number" : "a number",
                     row->least, text);
        return false;
    }
    if (option_kind_of(row) == OPTION_COUNT) *(int64_t *)row->to = (int64_t)number;
    else *(double *)row->to = number;
    return true;
}

options_result options_parse(int argc, char **argv, const option_row *rows, const char **rest,
                             int room, int *rest_count, char *error, int size)
{
    bool only_rest = false;
    *rest_count = 0;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i] + 2, *equals, *value;
        const option_row *row, *second = NULL;
        if (!only_rest && !strcmp(argv[i], "--")) {
            only_rest = true;
            continue;
        }
        if (!only_rest && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")))
            return OPTIONS_HELP;
        if (only_rest || argv[i][0] != '-' || !argv[i][1]) {
            if (*rest_count == room) {
                snprintf(error, (size_t)size, "'%.100s' is one argument too many", argv[i]);
                return OPTIONS_BAD;
            }
            rest[(*rest_count)++] = argv[i];
            continue;
        }
        equals = strchr(argv[i], '=');
        row = argv[i][1] == '-'
                  ? find(rows, name, equals ? (size_t)(equals - name) : strlen(name), &second)
                  : NULL;
        if (!row) {
            snprintf(error, (size_t)size, "there is no option '%.100s'", argv[i]);
            return OPTIONS_BAD;
        }
        if (second) {
            snprintf(error, (size_t)size, "'%.100s' is ambiguous: --%s or --%s", argv[i], row->name,
                     second->name);
            return OPTIONS_BAD;
        }
        if (option_kind_of(row) == OPTION_FLAG) {
            if (equals) {
                snprintf(error, (size_t)size, "--%s takes no value", row->name);
                return OPTIONS_BAD;
            }
            *(bool *)row->to = true;
            continue;
        }
        value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value) {
            snprintf(error, (size_t)size, "--%s needs a value: --%s %s", row->name, row->name,
                     row->value);
            return OPTIONS_BAD;
        }
        if (!set(row, value, error, size)) return OPTIONS_BAD;
    }
    return OPTIONS_GOOD;
}

const char *option_text(char text[OPTION_VALUE], const option_row *row)
{
    const char *said, *at = row->value;
    int digits = 6;
    switch (option_kind_of(row)) {
    case OPTION_TEXT:
        said = *(const char **)row->to;
        snprintf(text, OPTION_VALUE, "%s", said ? said : "not given");
        break;
    case OPTION_TEXTS:
        snprintf(text, OPTION_VALUE, "%d", (int)((const option_texts *)row->to)->count);
        break;
    case OPTION_FLAG:
        snprintf(text, OPTION_VALUE, "%s", *(bool *)row->to ? "given" : "not given");
        break;
    case OPTION_NUMBER:
        do snprintf(text, OPTION_VALUE, "%.*g", digits, *(double *)row->to);
        while (strtod(text, NULL) != *(double *)row->to && ++digits <= 17);
        break;
    case OPTION_CHOICE:
        for (int64_t n = *(int64_t *)row->to; n > 0; n--) at += strcspn(at, "|") + 1;
        snprintf(text, OPTION_VALUE, "%.*s", (int)strcspn(at, "|"), at);
        break;
    default: snprintf(text, OPTION_VALUE, "%lld", (long long)*(int64_t *)row->to);
    }
    return text;
}

void options_print(FILE *out, const option_row *rows)
{
    for (; rows->name; rows++) {
        char left[80], value[OPTION_VALUE];
        snprintf(left, sizeof left, "--%s%s%s", rows->name,
                 option_kind_of(rows) == OPTION_FLAG ? "" : " ",
                 option_kind_of(rows) == OPTION_FLAG ? "" : rows->value);
        fprintf(out, "  %-34s%s%s", left,
                strlen(left) > 33 ? "\n                                    " : "", rows->help);
        if (option_kind_of(rows) == OPTION_TEXT && *(const char **)rows->to)
            fprintf(out, " [%s]", *(const char **)rows->to);
        if (option_kind_of(rows) != OPTION_TEXT && option_kind_of(rows) != OPTION_FLAG &&
            option_kind_of(rows) != OPTION_TEXTS)
            fprintf(out, " [%s]", option_text(value, rows));
        fprintf(out, "\n");
    }
}
