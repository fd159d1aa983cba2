/* What every communicator says about ranks, and checks of its desc. Communicators that are compiled
 * on their own include this file as well. */
#ifndef ZFI_RANKS
#define ZFI_RANKS

#include "../graph/printable.c"
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
