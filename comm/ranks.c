/* What every communicator says about ranks, and checks of its desc. Communicators that are compiled
 * on their own include this file as well. */
#ifndef ZFI_RANKS
#define ZFI_RANKS

#include "../base/printable.c"
#include <math.h>
#include <string.h>

enum { ZFI_RANKS_LISTED = 16 };

/* "ranks 1, 2 of 4": ranks are listed in their order, and then the list is ended. */
typedef struct zfi_rank_list {
    char ranks[200], text[288];
    int32_t count;
} zfi_rank_list;

static void zfi_list_rank(zfi_rank_list *list, int32_t rank)
{
    size_t at = strlen(list->ranks);
    if (list->count++ < ZFI_RANKS_LISTED)
        snprintf(list->ranks + at, sizeof list->ranks - at, "%s%d", at ? ", " : "", (int)rank);
}

static const char *zfi_list_end(zfi_rank_list *list, int32_t world)
{
    char more[32] = "";
    if (list->count > ZFI_RANKS_LISTED)
        snprintf(more, sizeof more, " and %d more", (int)list->count - ZFI_RANKS_LISTED);
    snprintf(list->text, sizeof list->text, "rank%s %s%s of %d", list->count > 1 ? "s" : "",
             list->ranks, more, (int)world);
    return list->text;
}

static bool zfi_group_has(const zf_group *group, int32_t rank)
{
    const int64_t at = (int64_t)rank - group->first;
    return group->stride > 0 && at >= 0 && at % group->stride == 0 &&
           at / group->stride < group->count;
}

/* One rank of the group alone has the data of such a call. */
static bool zfi_is_from_root(zf_op op) { return op == ZF_OP_bcast || op == ZF_OP_send; }

/* The same, or gets what it makes. */
static bool zfi_has_root(zf_op op) { return zfi_is_from_root(op) || op == ZF_OP_reduce; }

/* Rank `to` of a group gets something from rank `from`. */
static inline bool zfi_is_neighbour(const zf_collective *c, int32_t to, int32_t from)
{
    return (!c->before && !c->after) || (from >= to - c->before && from <= to + c->after);
}

/* out = or += the sum of parts, in the order of the call. */
static inline void zfi_collective_add(const zf_collective *c, void *out, const void *const *parts,
                                      int32_t ranks, int64_t count)
{
    if (c->tree) zf_add_ranks_by_trees(out, parts, ranks, c->run, count, c->dtype, c->add);
    else zf_add_ranks(out, parts, ranks, count, c->dtype, c->add);
}

/* Marks of a rank: it has not come to the call; it is looked at now, or next, or was; it is
 * late. */
enum {
    ZFI_LATE_MISSING = 1,
    ZFI_LATE_NOW = 2,
    ZFI_LATE_NEXT = 4,
    ZFI_LATE_SEEN = 8,
    ZFI_LATE_NAMED = 16
};

/* Who is late where a rank has waited too long: of those that have not come to its call, the ones
 * that wait for nobody; where all of these wait, at calls of other groups perhaps, the ones for
 * which they wait, and so on. */
typedef struct zfi_late {
    const void *self; /* the communicator */
    int32_t world;
    double since;         /* the begin of the wait */
    unsigned char *marks; /* [world]; at first ZFI_LATE_MISSING, or 0 */
    /* Says whether a rank waits, at this channel or, with -1, at any, and calls zfi_late_next for
     * each rank that it waits for. */
    bool (*waits)(struct zfi_late *late, int32_t rank, int32_t channel);
} zfi_late;

static void zfi_late_next(zfi_late *l, int32_t rank)
{
    const unsigned char any = ZFI_LATE_NOW | ZFI_LATE_NEXT | ZFI_LATE_SEEN;
    if (rank >= 0 && rank < l->world && !(l->marks[rank] & any)) l->marks[rank] |= ZFI_LATE_NEXT;
}

static void zfi_late_name(zfi_late *l, int32_t rank, zfi_rank_list *list)
{
    l->marks[rank] |= ZFI_LATE_NAMED;
    zfi_list_rank(list, rank);
}

/* Lists the ranks that are late, by whether others wait at the channel or, with -1, at any. */
static void zfi_late_find(zfi_late *l, int32_t channel, zfi_rank_list *list)
{
    bool more = true;
    for (int32_t r = 0; r < l->world; r++)
        l->marks[r] = l->marks[r] & ZFI_LATE_MISSING ? ZFI_LATE_MISSING | ZFI_LATE_NOW : 0;
    while (more && !list->count) {
        more = false;
        for (int32_t r = 0; r < l->world; r++) {
            if (!(l->marks[r] & ZFI_LATE_NOW)) continue;
            l->marks[r] = (l->marks[r] & ZFI_LATE_MISSING) | ZFI_LATE_SEEN;
            if (!l->waits(l, r, channel)) zfi_late_name(l, r, list);
        }
        for (int32_t r = 0; r < l->world; r++) {
            if (!(l->marks[r] & ZFI_LATE_NEXT)) continue;
            l->marks[r] ^= ZFI_LATE_NEXT | ZFI_LATE_NOW;
            more = true;
        }
    }
}

/* Lists and marks them. A rank whose other channels wait may be stopped all the same: where all
 * ranks wait, those that do not at the channel of the call are late; else those that are
 * missing. */
static void zfi_list_late(zfi_late *l, int32_t channel, zfi_rank_list *list)
{
    zfi_late_find(l, -1, list);
    if (!list->count) zfi_late_find(l, channel, list);
    for (int32_t r = 0, none = !list->count; none && r < l->world; r++)
        if (l->marks[r] & ZFI_LATE_MISSING) zfi_late_name(l, r, list);
}

/* The error of all ranks after one has called abort with this status. The reason may have come from
 * another machine. */
static zf_status zfi_fail_by_rank(zf_error *error, int32_t rank, zf_status status,
                                  const char *reason)
{
    const zf_status here = status == ZF_ERR_IO ? ZF_ERR_IO : ZF_ERR_COMM;
    char text[sizeof error->text];
    zfi_printable(text, sizeof text, reason ? reason : "");
    return zfi_fail(error, here, "rank %d gave up%s%s", (int)rank, *text ? ": " : "", text);
}

/* A call on a channel where another is under way. */
static zf_status zfi_fail_busy(zf_error *error, const zf_collective *c, int32_t rank)
{
    char name[64];
    return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: another thread of rank %d is using channel %d",
                    zf_collective_name(name, c), (int)rank, (int)c->channel);
}

/* The deadline of a desc, whose default has been filled in. */
static zf_status zfi_check_deadline(const char *call, double seconds, zf_error *error)
{
    if (seconds > 0 && isfinite(seconds)) return ZF_OK;
    return zfi_fail(error, ZF_ERR_ARGUMENT,
                    "%s: deadline_seconds is %g; it must be positive and finite, or 0 for 60", call,
                    seconds);
}

#endif
