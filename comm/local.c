/* Ranks within one process: each is a thread, and their data are in memory that all can read. In a
 * collective a rank publishes the addresses of its data, meets the others, and then copies or adds
 * its shard directly from their buffers.
 *
 *     rank 0   call --.            .-- reads in[1], in[2] --.           .-- returns
 *     rank 1   call ---- meeting ----- reads in[0], in[2] ---- meeting --- returns
 *     rank 2   call --'            '-- reads in[0], in[1] --'           '-- returns
 *
 * The second meeting keeps a rank from returning while another reads its memory. all_reduce has one
 * more: each rank adds its shard of the sum, then they gather the shards. Small operands are copied
 * to the meeting place first, and every rank reads these copies: then one meeting is enough.
 *
 * Each group has a meeting place of its own (zfi_circle), made at its first call. A failure in one
 * is a failure in all.
 *
 * A call fails at its first meeting or not at all. After that meeting there is only copying and
 * adding, which always ends. So later meetings have neither deadline nor failure, and no memory is
 * freed while another rank reads it. The mutex orders arrivals and failures: a meeting takes place
 * for all ranks or for none. */
enum {
    ZFI_LOCAL_WORLD = 4096,
    ZFI_LOCAL_SMALL = 1024, /* bytes of `in` that are copied to the meeting place */
    ZFI_LOCAL_TILE = 4096   /* bytes that two ranks exchange at a time */
};

/* A rank of a group at a channel. */
typedef struct zfi_seat {
    zf_collective call;
    int64_t came; /* number of meetings to which it has come */
    /* For small calls, used in turns: a rank that comes to a meeting has finished reading the
     * copies of the one before. */
    double copies[2][ZFI_LOCAL_SMALL / sizeof(double)];
} zfi_seat;

typedef struct zfi_channel {
    pthread_cond_t changed;
    _Atomic int64_t meetings; /* meetings that have taken place */
    int32_t here;             /* ranks that have come to the next one */
    int32_t first;            /* the first of these */
    zfi_seat *seats;          /* by their number in the group */
} zfi_channel;

/* The meeting place of all ranks, or of those of a group. */
typedef struct zfi_circle {
    struct zfi_circle *next;
    zf_group group;
    zfi_channel channels[ZFI_CHANNELS];
    zfi_seat *seats;
} zfi_circle;

typedef struct zfi_local_rank {
    zf_comm comm;
    zf_local *group;
    _Atomic bool busy[ZFI_CHANNELS]; /* a call is under way */
} zfi_local_rank;

struct zf_local {
    zfi_memory memory;
    int32_t world;
    double deadline;
    pthread_mutex_t mutex; /* guards all below except atomics; calls are read after a meeting */
    zfi_circle *circles;   /* that of all ranks first, then those of groups that were called */
    _Atomic bool failed;
    zf_error error; /* the first error; it does not change once `failed` is set */
    zfi_local_rank *ranks;
    unsigned char *marks; /* [world], of zfi_late */
};

/* -------------------------------------------------------------------------------------- failing */

/* Ends all waiting and later calls with this reason, or with an earlier one. The mutex is held. */
ZFI_FAILS(3, 4)
static void zfi_local_fail(zf_local *g, zf_status status, const char *format, ...)
{
    va_list args;
    if (g->error.status) return;
    va_start(args, format);
    g->error.status = status;
    vsnprintf(g->error.text, sizeof g->error.text, format, args);
    va_end(args);
    atomic_store(&g->failed, true);
    for (zfi_circle *circle = g->circles; circle; circle = circle->next)
        for (int k = 0; k < ZFI_CHANNELS; k++)
            pthread_cond_broadcast(&circle->channels[k].changed);
}

static void zfi_local_abort(void *self, zf_status status, const char *reason)
{
    const zfi_local_rank *rank = self;
    zf_local *g = rank->group;
    zf_error why = {ZF_OK, ""};
    pthread_mutex_lock(&g->mutex);
    zfi_fail_by_rank(&why, rank->comm.rank, status, reason);
    zfi_local_fail(g, why.status, "%s", why.text);
    pthread_mutex_unlock(&g->mutex);
}

/* The rank has come to the next meeting, and waits there. The mutex is held. */
static bool zfi_local_waits_at(zfi_late *l, const zfi_circle *circle, int32_t rank, int32_t channel)
{
    const zfi_channel *at = &circle->channels[channel];
    const zf_group *group = &circle->group;
    const int32_t number = (rank - group->first) / group->stride;
    const int64_t meetings = atomic_load(&at->meetings);
    if (at->seats[number].came <= meetings) return false;
    for (int32_t k = 0; k < group->count; k++)
        if (at->seats[k].came <= meetings) zfi_late_next(l, group->first + k * group->stride);
    return true;
}

static bool zfi_local_waits(zfi_late *l, int32_t rank, int32_t channel)
{
    const zf_local *g = l->self;
    bool waits = false;
    for (const zfi_circle *circle = g->circles; circle; circle = circle->next)
        for (int32_t k = 0; k < ZFI_CHANNELS; k++)
            if ((channel < 0 || channel == k) && zfi_group_has(&circle->group, rank))
                waits |= zfi_local_waits_at(l, circle, rank, k);
    return waits;
}

/* After the deadline: the error names the ranks that are late for the meeting after `meeting`. */
static void zfi_local_missing(zf_local *g, const zfi_channel *channel, const zf_group *group,
                              int64_t meeting, const zf_collective *c)
{
    zfi_late late = {.self = g, .world = g->world, .marks = g->marks, .waits = zfi_local_waits};
    zfi_rank_list list = {.count = 0};
    char name[64];
    memset(g->marks, 0, (size_t)g->world);
    for (int32_t k = 0; k < group->count; k++)
        if (channel->seats[k].came <= meeting)
            g->marks[group->first + k * group->stride] = ZFI_LATE_MISSING;
    zfi_list_late(&late, c->channel, &list);
    zfi_local_fail(g, ZF_ERR_COMM, "%s: %s did not come within %g s", zf_collective_name(name, c),
                   zfi_list_end(&list, g->world), g->deadline);
}

/* -------------------------------------------------------------------------------------- meeting */

static bool zfi_same_call(const zf_collective *a, const zf_collective *b)
{
    return a->op == b->op && a->node == b->node && a->dtype == b->dtype && a->count == b->count &&
           a->add == b->add && a->tree == b->tree && a->run == b->run &&
           (!zfi_has_root(a->op) || a->root == b->root);
}

/* Joins the next meeting as number `rank`: false if the ranks have failed, or fail here because
 * this call differs from that of the others. */
static bool zfi_local_come(zf_local *g, zfi_channel *channel, const zf_group *group, int32_t rank,
                           const zf_collective *c)
{
    if (g->error.status) return false;
    channel->seats[rank].call = *c;
    if (!channel->here) channel->first = rank;
    if (!zfi_same_call(c, &channel->seats[channel->first].call)) {
        int32_t low = rank < channel->first ? rank : channel->first,
                high = rank < channel->first ? channel->first : rank;
        char ours[128], theirs[128];
        zfi_local_fail(g, ZF_ERR_COMM, "rank %d is at %s, rank %d at %s",
                       (int)(group->first + low * group->stride),
                       zf_collective_text(ours, &channel->seats[low].call),
                       (int)(group->first + high * group->stride),
                       zf_collective_text(theirs, &channel->seats[high].call));
        return false;
    }
    return true;
}

/* Spins for at most about 30 microseconds, until the meeting after `meeting` has taken place; true
 * when it has. */
static bool zfi_local_spin(const zf_local *g, const zfi_channel *channel, int64_t meeting)
{
    for (int round = 0; round < 64 && !atomic_load(&g->failed); round++) {
        for (int i = 0; i < 8; i++) {
            if (atomic_load(&channel->meetings) != meeting) return true;
            zfi_pause();
        }
        sched_yield();
    }
    return false;
}

/* Waits for all ranks of the group to come to the channel. With `first`, the first meeting of the
 * call, this may fail; then the meeting takes place for no rank: false. */
static bool zfi_local_meet(zf_local *g, zfi_channel *channel, const zf_group *group, int32_t rank,
                           const zf_collective *first)
{
    /* No meeting can take place without this rank. */
    const int64_t meeting = atomic_load(&channel->meetings);
    struct timespec until;
    bool met;
    pthread_mutex_lock(&g->mutex);
    if (first && !zfi_local_come(g, channel, group, rank, first)) {
        pthread_mutex_unlock(&g->mutex);
        return false;
    }
    channel->seats[rank].came = meeting + 1;
    if (++channel->here == group->count) {
        channel->here = 0;
        atomic_store(&channel->meetings, meeting + 1);
        pthread_cond_broadcast(&channel->changed);
        pthread_mutex_unlock(&g->mutex);
        return true;
    }
    pthread_mutex_unlock(&g->mutex);
    if (zfi_local_spin(g, channel, meeting)) return true;
    if (first) until = zfi_time_in(g->deadline);
    pthread_mutex_lock(&g->mutex);
    while (!(met = atomic_load(&channel->meetings) != meeting) && !(first && g->error.status)) {
        if (!first) pthread_cond_wait(&channel->changed, &g->mutex);
        else if (pthread_cond_timedwait(&channel->changed, &g->mutex, &until) &&
                 atomic_load(&channel->meetings) == meeting)
            zfi_local_missing(g, channel, group, meeting, first);
    }
    pthread_mutex_unlock(&g->mutex);
    return met;
}

/* ---------------------------------------------------------------------------------- collectives */

/* One collective of one rank, after its first meeting. */
typedef struct zfi_local_work {
    zf_local *local;
    const zf_group *group;
    zfi_channel *channel;
    int32_t rank; /* its number in the group */
    int turn;     /* the copies to read; -1: the inputs themselves */
} zfi_local_work;

static const char *zfi_local_in(const zfi_local_work *w, int32_t rank)
{
    const zfi_seat *seat = &w->channel->seats[rank];
    return w->turn < 0 ? seat->call.in : (const char *)seat->copies[w->turn];
}

static void zfi_local_copy(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from) memcpy(to, from, bytes);
}

/* out[0..count) from elements [at, at + count) of all inputs. */
static void zfi_local_add(const zfi_local_work *w, const zf_collective *c, int64_t at,
                          int64_t count, void *out)
{
    const void *parts[ZFI_LOCAL_WORLD];
    size_t skip = (size_t)at * zf_dtype_size(c->dtype);
    if (!count) return;
    for (int32_t s = 0; s < w->group->count; s++)
        parts[s] = zfi_is_neighbour(c, w->rank, s) ? zfi_local_in(w, s) + skip : NULL;
    zfi_collective_add(c, out, parts, w->group->count, count);
}

/* Where shard r of count elements begins, with `world` ranks. */
static int64_t zfi_local_part(int64_t count, int32_t world, int32_t r)
{
    int64_t more = count % world;
    return count / world * r + (r < more ? r : more);
}

/* Each rank adds its shard of the sum, where no other reads; then all gather the shards. With `add`
 * it adds to `out`, whose contents are then equal on all ranks. */
static void zfi_local_all_reduce(const zfi_local_work *w, const zf_collective *c)
{
    const int32_t world = w->group->count;
    const size_t size = zf_dtype_size(c->dtype);
    int64_t from = zfi_local_part(c->count, world, w->rank),
            until = zfi_local_part(c->count, world, w->rank + 1);
    zfi_local_add(w, c, from, until - from, (char *)c->out + (size_t)from * size);
    (void)zfi_local_meet(w->local, w->channel, w->group, w->rank, NULL);
    for (int32_t k = 1; k < world; k++) {
        int32_t s = (w->rank + k) % world;
        from = zfi_local_part(c->count, world, s);
        until = zfi_local_part(c->count, world, s + 1);
        zfi_local_copy((char *)c->out + (size_t)from * size,
                       (char *)w->channel->seats[s].call.out + (size_t)from * size,
                       (size_t)(until - from) * size);
    }
}

/* Exchanges between two ranks, of which one or both may write over their input: to_a = from_b, to_b
 * = from_a, where to_a may be from_a and to_b from_b. */
static void zfi_local_exchange(char *to_a, const char *from_a, char *to_b, const char *from_b,
                               size_t bytes)
{
    char tile[ZFI_LOCAL_TILE];
    for (size_t at = 0; at < bytes; at += sizeof tile) {
        size_t n = bytes - at < sizeof tile ? bytes - at : sizeof tile;
        memcpy(tile, from_b + at, n);
        memcpy(to_b + at, from_a + at, n);
        memcpy(to_a + at, tile, n);
    }
}

/* Two ranks share their exchange: the lower one copies the first half, in both directions, the
 * other one the second. */
static void zfi_local_all_to_all(const zfi_local_work *w, const zf_collective *c)
{
    const size_t bytes = (size_t)c->count * zf_dtype_size(c->dtype), mine = bytes * (size_t)w->rank;
    char *out = c->out;
    const char *in = c->in;
    zfi_local_copy(out + mine, in + mine, bytes);
    for (int32_t k = 1; k < w->group->count; k++) {
        int32_t s = (w->rank + k) % w->group->count;
        const zf_collective *other = &w->channel->seats[s].call;
        size_t half = bytes / 2, here = bytes * (size_t)s, there = mine, n = half;
        if (w->rank > s) here += half, there += half, n = bytes - half;
        zfi_local_exchange(out + here, in + here, (char *)other->out + there,
                           (const char *)other->in + there, n);
    }
}

static void zfi_local_do(const zfi_local_work *w, const zf_collective *c)
{
    const int32_t world = w->group->count;
    const size_t bytes = (size_t)c->count * zf_dtype_size(c->dtype);
    const bool small = w->turn >= 0;
    char *out = c->out;
    switch (c->op) {
    case ZF_OP_all_gather:
        for (int32_t k = 0; k < world; k++) {
            int32_t s = (w->rank + k) % world; /* not all from one rank's memory */
            if (zfi_is_neighbour(c, w->rank, s))
                zfi_local_copy(out + bytes * (size_t)s, zfi_local_in(w, s), bytes);
        }
        break;
    case ZF_OP_reduce_scatter: zfi_local_add(w, c, c->count * w->rank, c->count, out); break;
    case ZF_OP_all_reduce:
        if (small) zfi_local_add(w, c, 0, c->count, out);
        else zfi_local_all_reduce(w, c);
        break;
    case ZF_OP_all_to_all:
        for (int32_t s = 0; small && s < world; s++)
            memcpy(out + bytes * (size_t)s, zfi_local_in(w, s) + bytes * (size_t)w->rank, bytes);
        if (!small) zfi_local_all_to_all(w, c);
        break;
    case ZF_OP_reduce:
        if (c->root == w->rank) zfi_local_add(w, c, 0, c->count, out);
        break;
    default: /* bcast, send */
        if (c->op == ZF_OP_bcast || c->root != w->rank)
            zfi_local_copy(out, zfi_local_in(w, c->root), bytes);
    }
}

/* Bytes of `in`. */
static size_t zfi_local_in_bytes(const zf_collective *c, int32_t world)
{
    bool parts = c->op == ZF_OP_reduce_scatter || c->op == ZF_OP_all_to_all;
    return (size_t)c->count * (parts ? (size_t)world : 1) * zf_dtype_size(c->dtype);
}

/* Checks that the call is possible. */
static zf_status zfi_local_check(const zfi_local_rank *rank, const zf_collective *c,
                                 zf_error *error)
{
    zf_status status = zf_collective_check(c, &rank->comm, ZFI_CHANNELS, error);
    char name[64];
    if (!status && c->stream)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "%s: ranks of one process have no streams; stream must be NULL",
                        zf_collective_name(name, c));
    return status;
}

/* The meeting place of the group, made here if it is new; NULL: out of memory. */
static zfi_circle *zfi_local_circle(zf_local *g, const zf_group *group)
{
    zfi_circle **at = &g->circles, *circle;
    pthread_mutex_lock(&g->mutex);
    while (*at && ((*at)->group.first != group->first || (*at)->group.stride != group->stride ||
                   (*at)->group.count != group->count))
        at = &(*at)->next;
    circle = *at;
    if (!circle && (circle = zfi_calloc(&g->memory, 1, sizeof *circle))) {
        const size_t count = (size_t)group->count;
        circle->group = *group;
        circle->seats = zfi_calloc(&g->memory, count * ZFI_CHANNELS, sizeof *circle->seats);
        for (size_t k = 0; k < ZFI_CHANNELS && circle->seats; k++) {
            zfi_condition_init(&circle->channels[k].changed);
            circle->channels[k].seats = circle->seats + k * count;
        }
        if (circle->seats) *at = circle;
        else zfi_free(&g->memory, circle, sizeof *circle), circle = NULL;
    }
    pthread_mutex_unlock(&g->mutex);
    return circle;
}

static zf_status zfi_local_collective(zf_local *g, zfi_circle *circle, int32_t rank,
                                      const zf_collective *c, zf_error *error)
{
    zfi_channel *channel = &circle->channels[c->channel];
    const zf_group *group = &circle->group;
    zfi_local_work work = {g, group, channel, rank, -1};
    size_t bytes = zfi_local_in_bytes(c, group->count);
    if (bytes <= ZFI_LOCAL_SMALL) {
        work.turn = (int)(atomic_load(&channel->meetings) & 1);
        if (bytes && (!zfi_is_from_root(c->op) || c->root == rank))
            memcpy(channel->seats[rank].copies[work.turn], c->in, bytes);
    }
    if (!zfi_local_meet(g, channel, group, rank, c))
        return zfi_fail(error, g->error.status, "%s", g->error.text);
    if (bytes) zfi_local_do(&work, c);
    if (work.turn < 0) (void)zfi_local_meet(g, channel, group, rank, NULL);
    return ZF_OK;
}

static zf_status zfi_local_run(void *self, const zf_collective *c, zf_error *error)
{
    zfi_local_rank *rank = self;
    zf_local *g = rank->group;
    zf_error wrong = {ZF_OK, ""};
    zf_status status;
    zfi_circle *circle = NULL;
    zf_group group;
    int cancel;
    if (atomic_load(&g->failed)) return zfi_fail(error, g->error.status, "%s", g->error.text);
    /* A thread that is cancelled as it waits would leave with the mutex locked. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    if (!zfi_local_check(rank, c, &wrong)) {
        group = zf_collective_group(c, &rank->comm);
        if (atomic_exchange(&rank->busy[c->channel], true))
            zfi_fail_busy(&wrong, c, rank->comm.rank);
        else if (!(circle = zfi_local_circle(g, &group))) zfi_nomem(&wrong);
    }
    if (wrong.status) {
        zfi_local_abort(self, wrong.status, wrong.text);
        status = zfi_fail(error, wrong.status, "%s", wrong.text);
    } else {
        const int32_t number = (rank->comm.rank - group.first) / group.stride;
        status = zfi_local_collective(g, circle, number, c, error);
        atomic_store(&rank->busy[c->channel], false);
    }
    pthread_setcancelstate(cancel, &cancel);
    return status;
}

/* ------------------------------------------------------------------------------------ the group */

static void zfi_local_destroy(zf_local *g)
{
    zfi_memory memory = g->memory;
    for (zfi_circle *circle; (circle = g->circles);) {
        const size_t seats = (size_t)circle->group.count * ZFI_CHANNELS;
        g->circles = circle->next;
        for (int k = 0; k < ZFI_CHANNELS; k++) pthread_cond_destroy(&circle->channels[k].changed);
        zfi_free(&memory, circle->seats, seats * sizeof *circle->seats);
        zfi_free(&memory, circle, sizeof *circle);
    }
    pthread_mutex_destroy(&g->mutex);
    zfi_free(&memory, g->ranks, (size_t)g->world * sizeof *g->ranks);
    zfi_free(&memory, g->marks, (size_t)g->world * sizeof *g->marks);
    zfi_free(&memory, g, sizeof *g);
}

/* A rank's communicator is the group's: when the group is freed, and no store uses one, all are. */
static void zfi_local_leave(void *self)
{
    zf_local *g = ((zfi_local_rank *)self)->group;
    for (int32_t r = 0; r < g->world; r++)
        if (g->ranks[r].comm.stores || !g->ranks[r].comm.freed) return;
    zfi_local_destroy(g);
}

ZF_API void zf_local_free(zf_local *g)
{
    if (!g) return;
    for (int32_t r = 0; r < g->world; r++) g->ranks[r].comm.freed = true;
    zfi_local_leave(&g->ranks[0]);
}

ZF_API zf_local *zf_local_new(const zf_local_desc *desc, zf_error *error)
{
    zf_local_desc d = desc ? *desc : (zf_local_desc){.world = 1};
    zfi_memory memory = zfi_memory_of(&d.allocator);
    zf_local *g;
    if (!d.world) d.world = 1;
    if (d.deadline_seconds == 0) d.deadline_seconds = 60;
    if (d.world < 1 || d.world > ZFI_LOCAL_WORLD) {
        zfi_fail(error, ZF_ERR_ARGUMENT, "zf_local_new: world is %d; it must be 1 to %d",
                 (int)d.world, ZFI_LOCAL_WORLD);
        return NULL;
    }
    if (zfi_check_deadline("zf_local_new", d.deadline_seconds, error)) return NULL;
    if (!(g = zfi_calloc(&memory, 1, sizeof *g))) return zfi_nomem(error), NULL;
    g->memory = memory;
    g->world = d.world;
    g->deadline = d.deadline_seconds;
    pthread_mutex_init(&g->mutex, NULL);
    g->ranks = zfi_calloc(&g->memory, (size_t)d.world, sizeof *g->ranks);
    g->marks = zfi_calloc(&g->memory, (size_t)d.world, sizeof *g->marks);
    if (!g->ranks || !g->marks || !zfi_local_circle(g, &(zf_group){0, 1, d.world})) {
        zfi_nomem(error);
        zfi_local_destroy(g);
        return NULL;
    }
    for (int32_t r = 0; r < d.world; r++) {
        g->ranks[r].comm = (zf_comm){.self = &g->ranks[r],
                                     .rank = r,
                                     .world = d.world,
                                     .run = zfi_local_run,
                                     .abort = zfi_local_abort,
                                     .destroy = zfi_local_leave,
                                     .groups = true};
        g->ranks[r].group = g;
    }
    return g;
}

ZF_API zf_comm *zf_local_comm(zf_local *g, int32_t rank)
{
    return g && rank >= 0 && rank < g->world ? &g->ranks[rank].comm : NULL;
}
