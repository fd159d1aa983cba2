#include "alike.h"
#include "../../../zeroflow_llm.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void alike_add(alike *a, const char *name, const char *format, ...)
{
    va_list args;
    if (a->count == ALIKE_MOST) return;
    snprintf(a->item[a->count].name, ALIKE_NAME, "%s", name);
    va_start(args, format);
    vsnprintf(a->item[a->count].value, ALIKE_VALUE, format, args);
    va_end(args);
    a->count++;
}

bool alike_add_file(alike *a, const char *name, const char *path, zf_error *error)
{
    uint64_t digest = 0;
    if (path && !zf_digest_path(path, &digest, error)) return false;
    if (path) alike_add(a, name, "%016llx", (unsigned long long)digest);
    else alike_add(a, name, "none");
    return true;
}

static void add_option(void *user, const zf_option_value *v)
{
    char name[ALIKE_NAME];
    if (!v->flag || v->row->traits & ZF_OPTION_LOCAL || !v->has_effect) return;
    snprintf(name, sizeof name, "--%s", v->flag);
    if (v->row->traits & ZF_OPTION_PATH || v->row->kind == ZF_OPTION_FLAG)
        alike_add(user, name, "%s", v->given ? "given" : "not given");
    else alike_add(user, name, "%s", *v->text ? v->text : "not given");
}

void alike_add_options(alike *a, const zf_options *all, int32_t count)
{
    zf_options_each(all, count, add_option, a);
}

/* --------------------------------------------------------------------------------- collectives */

static zf_status tell(const zf_comm *comm, int32_t root, void *data, size_t bytes, zf_error *error)
{
    zf_collective c = {.op = ZF_OP_bcast,
                       .dtype = ZF_U8,
                       .count = (int64_t)bytes,
                       .in = data,
                       .out = data,
                       .root = root};
    return comm->run(comm->self, &c, error);
}

/* all: [world]; this rank's element is set. */
static zf_status collect(const zf_comm *comm, void *all, size_t bytes, zf_error *error)
{
    zf_collective c = {.op = ZF_OP_all_gather,
                       .dtype = ZF_U8,
                       .count = (int64_t)bytes,
                       .in = (char *)all + (size_t)comm->rank * bytes,
                       .out = all};
    return comm->run(comm->self, &c, error);
}

/* Waits until all ranks have come. Its failure is not reported, since the first rank that fails
 * ends the calls of the others. */
static void meet(const zf_comm *comm)
{
    zf_error ignored = {ZF_OK, ""};
    int64_t here = 1;
    zf_collective c = {
        .op = ZF_OP_all_reduce, .dtype = ZF_I64, .count = 1, .in = &here, .out = &here};
    (void)comm->run(comm->self, &c, &ignored);
}

/* A text of another rank, which is on another machine, without what commands a terminal. */
static const char *printable(char *text, size_t size)
{
    text[size - 1] = '\0';
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
    return text;
}

/* The first item in which two differ; ALIKE_MOST: none. */
static int32_t first_difference(const alike *a, const alike *b)
{
    for (int32_t i = 0; i < a->count || i < b->count; i++)
        if (i >= a->count || i >= b->count || memcmp(&a->item[i], &b->item[i], sizeof a->item[i]))
            return i;
    return ALIKE_MOST;
}

/* "--seed is 2 on ranks 1 and 3, and 1 on rank 0" */
static void describe(const alike *first, int32_t item, char (*values)[ALIKE_VALUE], int32_t world,
                     zf_error *error)
{
    const char *other = NULL;
    char ranks[160] = "";
    int32_t named = 0;
    for (int32_t r = 1; r < world; r++) {
        size_t at = strlen(ranks);
        if (!strcmp(printable(values[r], ALIKE_VALUE), printable(values[0], ALIKE_VALUE))) continue;
        if (!other) other = values[r];
        if (strcmp(values[r], other)) continue;
        if (named++ < 8) snprintf(ranks + at, sizeof ranks - at, "%s%d", at ? ", " : "", (int)r);
        else if (named == 10) snprintf(ranks + at, sizeof ranks - at, ", ...");
    }
    error->status = ZF_ERR_MISMATCH;
    snprintf(error->text, sizeof error->text,
             "%s is %.*s on rank%s %s and %.*s on rank 0: all ranks must have the same",
             first->item[item].name, ALIKE_VALUE, other ? other : "another", named > 1 ? "s" : "",
             ranks, ALIKE_VALUE, values[0]);
}

bool alike_compare(const alike *a, const zf_comm *comm, zf_error *error)
{
    alike *first;
    char(*values)[ALIKE_VALUE];
    int64_t *items;
    int32_t item = ALIKE_MOST;
    zf_status status;
    if (!comm || comm->world < 2) return true;
    first = malloc(sizeof *first);
    items = calloc((size_t)comm->world, sizeof *items);
    values = calloc((size_t)comm->world, sizeof *values);
    if (!first || !items || !values) {
        error->status = ZF_ERR_NOMEM;
        snprintf(error->text, sizeof error->text, "out of memory");
    }
    if (alike_good(comm, error)) {
        memcpy(first, a, sizeof *first);
        status = tell(comm, 0, first, sizeof *first, error);
        items[comm->rank] = first_difference(first, a);
        if (!status) status = collect(comm, items, sizeof *items, error);
        for (int32_t r = 0; r < comm->world; r++)
            if (items[r] < item) item = (int32_t)items[r];
        if (!status && item < ALIKE_MOST) {
            if (item < a->count) memcpy(values[comm->rank], a->item[item].value, ALIKE_VALUE);
            printable(first->item[item].name, sizeof first->item[item].name);
            if (!collect(comm, values, sizeof *values, error))
                describe(first, item, values, comm->world, error);
            meet(comm);
        }
    }
    free(first);
    free(items);
    free(values);
    return !error->status;
}

bool alike_good(const zf_comm *comm, zf_error *error)
{
    uint64_t mine[2] = {error->status != ZF_OK, 0}, *all;
    zf_error its = *error, lost = {ZF_OK, ""};
    int32_t who = -1;
    bool same = true;
    if (!comm || comm->world < 2) return !error->status;
    if (!(all = calloc((size_t)comm->world, sizeof mine))) {
        comm->abort(comm->self, ZF_ERR_NOMEM, "out of memory");
        if (!error->status) *error = (zf_error){ZF_ERR_NOMEM, "out of memory"};
        return false;
    }
    mine[1] = zf_digest_bytes(ZF_DIGEST_START, error->text, strlen(error->text));
    memcpy(all + 2 * comm->rank, mine, sizeof mine);
    if (!collect(comm, all, sizeof mine, &lost)) {
        for (int32_t r = comm->world - 1; r >= 0; r--)
            if (all[2 * r]) who = r;
        for (int32_t r = 0; r < comm->world; r++)
            same = same && all[2 * r] && all[2 * r + 1] == all[1];
        if (who >= 0 && !tell(comm, who, &its, sizeof its, &lost)) {
            error->status = its.status;
            printable(its.text, sizeof its.text);
            if (same) memcpy(error->text, its.text, sizeof its.text);
            else snprintf(error->text, sizeof error->text, "rank %d: %.480s", (int)who, its.text);
        }
    }
    free(all);
    if (who >= 0) meet(comm);
    if (lost.status && !error->status) *error = lost;
    return !error->status;
}
