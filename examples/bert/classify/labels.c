/* Labels of texts in numbers. */
#include "texts.h"
#include "../../frame/options/fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *texts_name(const bert_config *c, int64_t label, int *bytes)
{
    const char *at = c->names;
    while (label-- > 0) at += strcspn(at, "\n") + 1;
    *bytes = (int)strcspn(at, "\n");
    return at;
}

/* The number of a label, -1: it is none of the model's. Where a model has no names of its own, its
 * labels are 0, 1, ... */
static int32_t number_of(const bert_config *c, const char *said)
{
    char usual[64], *end;
    const long number = strtol(said, &end, 10);
    for (int pass = 0; pass < 2; pass++) {
        const size_t length = strlen(said);
        const char *name = c->names;
        for (int64_t k = 0; k < c->labels; k++, name += strcspn(name, "\n") + 1)
            if (strcspn(name, "\n") == length && !memcmp(name, said, length)) return (int32_t)k;
        if (*end || end == said || number < 0) return -1;
        snprintf(usual, sizeof usual, "LABEL_%ld", number), said = usual;
    }
    return -1;
}

static bool is_whole(const char *text)
{
    char *end;
    const long number = strtol(text, &end, 10);
    return *text && !*end && number > -1000000000 && number < 1000000000;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Of one number, as 1 and 01 are, by their text. */
static int by_number(const void *a, const void *b)
{
    const long x = strtol(*(char *const *)a, NULL, 10), y = strtol(*(char *const *)b, NULL, 10);
    return x == y ? by_text(a, b) : (x > y) - (x < y);
}

/* The labels of a new head: all that are said, integers in their order, else texts in theirs. */
static bool name_labels(const texts *t, bert_config *c, const char *path, zf_error *error)
{
    char **sorted = malloc((size_t)t->count * sizeof *sorted + 1);
    bool whole = true;
    size_t used = 0;
    if (!sorted) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t k = 0; k < t->count; k++) sorted[k] = t->said[k], whole = whole && is_whole(t->said[k]);
    qsort(sorted, (size_t)t->count, sizeof *sorted, whole ? by_number : by_text);
    memset(c->names, 0, sizeof c->names), c->labels = 0;
    for (int64_t k = 0; k < t->count && !error->status; k++) {
        const size_t bytes = strlen(sorted[k]);
        if (k && !strcmp(sorted[k], sorted[k - 1])) continue;
        if (strchr(sorted[k], '\n') || used + bytes + 2 > sizeof c->names) {
            fail(error, ZF_ERR_FORMAT,
                 "%.300s: labels have at most %d bytes in all, and no line breaks; is it a column of "
                 "labels?",
                 path, BERT_NAMES - 1);
            break;
        }
        memcpy(c->names + used, sorted[k], bytes), c->names[used + bytes] = '\n';
        used += bytes + 1, c->labels++;
    }
    free(sorted);
    return !error->status;
}

static bool take_number(texts *t, int64_t k, const char *path, zf_error *error)
{
    char *end;
    const double value = strtod(t->said[k], &end);
    t->number[k] = (float)value;
    return (*t->said[k] && !*end && isfinite(t->number[k])) ||
           fail(error, ZF_ERR_FORMAT, "%.300s: text %lld has the label \"%.60s\", which is no number",
                path, (long long)k + 1, t->said[k]);
}

static bool take_label(texts *t, const bert_config *c, int64_t k, const char *path, zf_error *error)
{
    char known[120] = "";
    size_t n = 0;
    if ((t->label[k] = number_of(c, t->said[k])) >= 0) return true;
    for (int64_t i = 0; i < c->labels && n < sizeof known - 1; i++) {
        int bytes;
        const char *name = texts_name(c, i, &bytes);
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%.*s", i ? ", " : "", bytes, name);
    }
    return fail(error, ZF_ERR_FORMAT,
                "%.200s: text %lld has the label \"%.60s\", which is none of the model's: %s", path,
                (long long)k + 1, t->said[k], known);
}

bool texts_take_labels(texts *t, bert_config *c, bool regresses, const char *path, zf_error *error)
{
    const size_t n = (size_t)t->count;
    t->label = calloc(n, sizeof *t->label), t->number = calloc(n, sizeof *t->number);
    if (!t->label || !t->number) return fail(error, ZF_ERR_NOMEM, "out of memory");
    if (c->task && (c->task == BERT_REGRESSES) != regresses)
        return fail(error, ZF_ERR_MISMATCH, "the model %s already: --task %s",
                    regresses ? "has labels" : "gives a number", regresses ? "classify" : "regress");
    if (!c->task && regresses) snprintf(c->names, sizeof c->names, "LABEL_0\n"), c->labels = 1;
    if (!c->task && !regresses) {
        if (!name_labels(t, c, path, error)) return false;
        if (c->labels < 2)
            return fail(error, ZF_ERR_FORMAT,
                        "%.300s: all texts have the label \"%.60s\"; two labels at least are needed",
                        path, t->said[0]);
    }
    c->task = regresses ? BERT_REGRESSES : BERT_CLASSIFIES, c->nsp = 0;
    for (int64_t k = 0; k < t->count; k++)
        if (!(regresses ? take_number(t, k, path, error) : take_label(t, c, k, path, error)))
            return false;
    return true;
}
