/* Tasks of a pipeline: what each of its ranks does with which micro-batch, and in which order.
 *
 * The layers are cut into chunks, one after the other; each rank has one or more of them.
 *
 *     F c m     chunk c computes micro-batch m forward
 *     B c m     and backward: the gradient of its input, and of its weights where there is no W
 *     W c m     the gradients of its weights
 *
 *     1f1b, 2 ranks, 3 micro-batches              zb-h1
 *     rank 0   F00 F01 B00 F02 B01 B02            F00 F01 B00 W00 F02 B01 W01 B02 W02
 *     rank 1   F10 B10 F11 B11 F12 B12            F10 B10 F11 B11 W10 F12 B12 W11 W12
 *
 * Idle times of a step, of p ranks that take F, B and W for a micro-batch in all of their chunks,
 * and what a rank r of them keeps, in micro-batches of one chunk:
 *
 *     gpipe         (p-1)(F+B+W)     m
 *     1f1b          (p-1)(F+B+W)     p-r
 *     interleaved   (p-1)(F+B+W)/v   2(p-1-r) + (v-1)p + 1    v chunks, m a multiple of p
 *     zb-h1         (p-1)(F+B-W)     p
 *     zb-v          (p-1)F/2         2p                       2 chunks, m >= 2p-1 and F = B = W
 *
 * Huang et al. 2019; Narayanan et al. 2021; Qi et al. 2023. At zb-v the chunks of rank r are r and
 * 2p-1-r: the last is on the rank of the first. Its idle time is at the ends of the step alone. */

static const char *const zfi_pipe_names[] = {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"};

enum { ZFI_PIPE_KINDS = ZFI_COUNT(zfi_pipe_names) };

enum { ZFI_TASK_F, ZFI_TASK_B, ZFI_TASK_W, ZFI_TASK_KINDS };

static const char zfi_task_letters[] = "FBW";

typedef struct zfi_pipe_task {
    int32_t does, chunk, micro;
} zfi_pipe_task;

/* Those of all ranks, `each` of a rank, the first rank's first. */
typedef struct zfi_tasks {
    zf_pipe pipe;
    int32_t each;
    zfi_pipe_task *list;
} zfi_tasks;

enum { ZFI_TASKS_MOST = 1 << 26, ZFI_TASK_TEXT = 40 };

static const char *zfi_task_text(char text[ZFI_TASK_TEXT], zfi_pipe_task task)
{
    snprintf(text, ZFI_TASK_TEXT, "%c %d %d", zfi_task_letters[task.does], (int)task.chunk,
             (int)task.micro);
    return text;
}

/* Gradients of weights are tasks of their own. */
static bool zfi_pipe_has_weights(zf_pipe p)
{
    return p.kind == ZF_PIPE_ZB_H1 || p.kind == ZF_PIPE_ZB_V;
}

/* The chunks of all ranks. */
static int32_t zfi_pipe_stages(zf_pipe p) { return p.ranks * p.chunks; }

/* Chunk number k of a rank, the first 0. */
static int32_t zfi_pipe_chunk(zf_pipe p, int32_t rank, int32_t k)
{
    return p.kind == ZF_PIPE_ZB_V && k ? 2 * p.ranks - 1 - rank : k * p.ranks + rank;
}

static int32_t zfi_pipe_rank(zf_pipe p, int32_t chunk)
{
    return p.kind == ZF_PIPE_ZB_V && chunk >= p.ranks ? 2 * p.ranks - 1 - chunk : chunk % p.ranks;
}

/* The micro-batches of one chunk that a rank keeps at most: those that went forward, and whose last
 * task is still to be done. */
static int64_t zfi_pipe_slots(zf_pipe p, int32_t rank)
{
    const int64_t later = p.ranks - 1 - rank, all = (int64_t)p.micro_batches * p.chunks;
    const int64_t kept = p.kind == ZF_PIPE_GPIPE   ? all
                         : p.kind == ZF_PIPE_1F1B  ? later + 1
                         : p.kind == ZF_PIPE_ZB_H1 ? p.ranks
                         : p.kind == ZF_PIPE_ZB_V
                             ? 2 * (int64_t)p.ranks
                             : 2 * later + (int64_t)(p.chunks - 1) * p.ranks + 1;
    return kept < all ? kept : all;
}

static zf_status zfi_pipe_check_chunks(zf_pipe p, zf_error *error)
{
    const char *const name = zfi_pipe_names[p.kind];
    const int chunks = (int)p.chunks, should = p.kind == ZF_PIPE_ZB_V ? 2 : 1;
    if (p.kind != ZF_PIPE_INTERLEAVED && chunks != should)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "schedule %s: %d chunks of a rank; it has %d", name,
                        chunks, should);
    if (p.kind != ZF_PIPE_INTERLEAVED) return ZF_OK;
    if (chunks < 2)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "schedule %s: %d chunks of a rank; 2 or more are interleaved", name,
                        chunks);
    if (p.micro_batches % p.ranks)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "schedule %s: %d micro-batches are no multiple of the %d ranks along pipe",
                        name, (int)p.micro_batches, (int)p.ranks);
    return ZF_OK;
}

static zf_status zfi_pipe_check(zf_pipe p, zf_error *error)
{
    const char *const name =
        (unsigned)p.kind < (unsigned)ZFI_PIPE_KINDS ? zfi_pipe_names[p.kind] : NULL;
    if (!name)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "schedule: %d is none of 1f1b, gpipe, interleaved, zb-h1, zb-v",
                        (int)p.kind);
    if (p.ranks < 1 || p.chunks < 1)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "schedule %s: %d ranks of %d chunks; there must be 1 or more", name,
                        (int)p.ranks, (int)p.chunks);
    if (p.micro_batches < p.ranks)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "schedule %s: %d micro-batches are fewer than the %d ranks along pipe; %d "
                        "or more keep each of them busy",
                        name, (int)p.micro_batches, (int)p.ranks, (int)p.ranks);
    if (p.micro_batches > ZFI_TASKS_MOST / ZFI_TASK_KINDS / p.ranks / p.chunks)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "schedule %s: more than %d tasks", name,
                        (int)ZFI_TASKS_MOST);
    return zfi_pipe_check_chunks(p, error);
}

/* ---------------------------------------------------------------------------- the order of a rank
 *
 * A rank repeats patterns. Letters are a task of its first chunk, small ones of its second; a
 * micro-batch that does not exist, or did not go forward, is left out. Interleaved, a rank has p
 * micro-batches of one chunk, then p of the next; a letter is a task of that chunk. */

typedef struct zfi_tasks_run {
    int32_t times;
    const char *pattern;
} zfi_tasks_run;

enum { ZFI_TASKS_RUNS = 8, ZFI_CHUNKS_APART = 2 };

/* The tasks of a rank so far. */
typedef struct zfi_tasks_rank {
    zfi_tasks *tasks;
    int32_t rank, count;
    int32_t done[ZFI_TASK_KINDS][ZFI_CHUNKS_APART];
} zfi_tasks_rank;

/* Task number n of its kind, of chunks that take turns. */
static zfi_pipe_task zfi_task_of_turn(zf_pipe p, int32_t rank, int32_t does, int32_t n)
{
    const int32_t k = n / p.ranks % p.chunks,
                  micro = n / (p.ranks * p.chunks) * p.ranks + n % p.ranks;
    return (zfi_pipe_task){does, zfi_pipe_chunk(p, rank, does ? p.chunks - 1 - k : k), micro};
}

static void zfi_tasks_add(zfi_tasks_rank *r, int32_t does, int32_t k)
{
    const zf_pipe p = r->tasks->pipe;
    const bool turns = p.kind == ZF_PIPE_INTERLEAVED;
    int32_t *const done = &r->done[does][k];
    const int32_t most = does ? r->done[does - 1][k] : p.micro_batches * (turns ? p.chunks : 1);
    zfi_pipe_task *const task = &r->tasks->list[r->rank * r->tasks->each + r->count];
    if (*done >= most) return;
    *task = turns ? zfi_task_of_turn(p, r->rank, does, *done)
                  : (zfi_pipe_task){does, zfi_pipe_chunk(p, r->rank, k), *done};
    *done += 1, r->count++;
}

static void zfi_tasks_runs(zfi_tasks_run run[ZFI_TASKS_RUNS], zf_pipe p, int32_t rank)
{
    const int32_t later = p.ranks - 1 - rank, all = p.micro_batches * p.chunks,
                  ahead =
                      p.kind == ZF_PIPE_INTERLEAVED ? 2 * later + (p.chunks - 1) * p.ranks : later;
    const zfi_tasks_run kinds[ZFI_PIPE_KINDS][ZFI_TASKS_RUNS] = {
        [ZF_PIPE_1F1B] = {{ahead, "F"}, {all, "FB"}},
        [ZF_PIPE_GPIPE] = {{all, "F"}, {all, "B"}},
        [ZF_PIPE_INTERLEAVED] = {{ahead, "F"}, {all, "FB"}},
        [ZF_PIPE_ZB_H1] = {{ahead, "F"}, {rank, "FB"}, {all, "FBW"}},
        [ZF_PIPE_ZB_V] = {{2 * later + 1, "F"},
                          {rank, "fF"},
                          {later + 1, "fbw"},
                          {p.micro_batches - p.ranks, "FBWfbw"},
                          {rank, "Bb"},
                          {later + 1, "BW"},
                          {all, "w"},
                          {all, "W"}}};
    memcpy(run, kinds[p.kind], sizeof kinds[0]);
}

static void zfi_tasks_fill(zfi_tasks *t, int32_t rank)
{
    zfi_tasks_rank r = {.tasks = t, .rank = rank};
    zfi_tasks_run run[ZFI_TASKS_RUNS];
    zfi_tasks_runs(run, t->pipe, rank);
    for (int k = 0; k < ZFI_TASKS_RUNS && run[k].pattern; k++)
        for (int32_t i = 0; i < run[k].times; i++)
            for (const char *at = run[k].pattern; *at; at++) {
                const bool second = *at >= 'a';
                const char letter = (char)(second ? *at - 'a' + 'A' : *at);
                zfi_tasks_add(&r, (int32_t)(strchr(zfi_task_letters, letter) - zfi_task_letters),
                              second);
            }
}

static size_t zfi_tasks_count(const zfi_tasks *t)
{
    return (size_t)t->pipe.ranks * (size_t)t->each;
}

static void zfi_tasks_free(zfi_memory *memory, zfi_tasks *t)
{
    zfi_free(memory, t->list, zfi_tasks_count(t) * sizeof *t->list);
    t->list = NULL;
}

/* The tasks of a pipeline. */
static zf_status zfi_tasks_make(zfi_memory *memory, zf_pipe p, zfi_tasks *t, zf_error *error)
{
    zf_status status = zfi_pipe_check(p, error);
    *t = (zfi_tasks){.pipe = p};
    if (status) return status;
    t->each = p.micro_batches * p.chunks * (zfi_pipe_has_weights(p) ? 3 : 2);
    t->list = zfi_calloc(memory, zfi_tasks_count(t), sizeof *t->list);
    if (!t->list) return zfi_nomem(error);
    for (int32_t r = 0; r < p.ranks; r++) zfi_tasks_fill(t, r);
    return ZF_OK;
}

/* --------------------------------------------------------------------------------- a step in time
 *
 * A task begins when the one before it on its rank has ended, and what it needs is there: for F the
 * F of the chunk before, for B its F and the B of the next chunk, for W its B. */

/* The place of a task in an array of all. */
static size_t zfi_task_index(zf_pipe p, zfi_pipe_task task)
{
    return ((size_t)task.does * (size_t)zfi_pipe_stages(p) + (size_t)task.chunk) *
               (size_t)p.micro_batches +
           (size_t)task.micro;
}

/* The length of such an array. */
static size_t zfi_tasks_indices(zf_pipe p)
{
    return ZFI_TASK_KINDS * (size_t)zfi_pipe_stages(p) * (size_t)p.micro_batches;
}

/* What a task needs; returns the number of tasks. */
static int zfi_task_needs(zf_pipe p, zfi_pipe_task task, zfi_pipe_task needs[2])
{
    int count = 0;
    if (task.does) needs[count++] = (zfi_pipe_task){task.does - 1, task.chunk, task.micro};
    if (task.does == ZFI_TASK_F && task.chunk)
        needs[count++] = (zfi_pipe_task){ZFI_TASK_F, task.chunk - 1, task.micro};
    if (task.does == ZFI_TASK_B && task.chunk + 1 < zfi_pipe_stages(p))
        needs[count++] = (zfi_pipe_task){ZFI_TASK_B, task.chunk + 1, task.micro};
    return count;
}

/* How long the tasks of one chunk take. */
typedef struct zfi_task_times {
    int64_t takes[ZFI_TASK_KINDS];
} zfi_task_times;

/* A step as it goes. */
typedef struct zfi_pipe_clock {
    const zfi_tasks *tasks;
    const zfi_task_times *times; /* of each chunk */
    int64_t *ends;               /* of each task, by zfi_task_index; -1: it has not begun */
    int64_t *now;                /* of each rank */
    int32_t *next;               /* task of each rank */
} zfi_pipe_clock;

/* When the next task of a rank can begin; -1: what it needs has not begun. */
static int64_t zfi_pipe_begins(const zfi_pipe_clock *c, int32_t rank)
{
    const zf_pipe p = c->tasks->pipe;
    int64_t begins = c->now[rank];
    zfi_pipe_task needs[2];
    const int count =
        zfi_task_needs(p, c->tasks->list[rank * c->tasks->each + c->next[rank]], needs);
    for (int k = 0; k < count; k++) {
        const int64_t end = c->ends[zfi_task_index(p, needs[k])];
        if (end < 0) return -1;
        if (end > begins) begins = end;
    }
    return begins;
}

/* Each rank does its tasks up to one that must wait; false: there is none that can be done. */
static bool zfi_pipe_advance(zfi_pipe_clock *c)
{
    bool any = false;
    for (int32_t r = 0; r < c->tasks->pipe.ranks; r++)
        while (c->next[r] < c->tasks->each) {
            const zfi_pipe_task task = c->tasks->list[r * c->tasks->each + c->next[r]];
            const int64_t begins = zfi_pipe_begins(c, r);
            if (begins < 0) break;
            c->now[r] = begins + c->times[task.chunk].takes[task.does];
            c->ends[zfi_task_index(c->tasks->pipe, task)] = c->now[r];
            c->next[r]++, any = true;
        }
    return any;
}

/* The first rank that waits for ever; its task waits for one that another rank has further down. */
static zf_status zfi_pipe_blocked(const zfi_pipe_clock *c, zf_error *error)
{
    const zfi_tasks *const t = c->tasks;
    char task[ZFI_TASK_TEXT], need[ZFI_TASK_TEXT];
    for (int32_t r = 0; r < t->pipe.ranks; r++) {
        zfi_pipe_task needs[2];
        int count;
        if (c->next[r] == t->each) continue;
        count = zfi_task_needs(t->pipe, t->list[r * t->each + c->next[r]], needs);
        while (count > 1 && c->ends[zfi_task_index(t->pipe, needs[count - 1])] >= 0) count--;
        return zfi_fail(error, ZF_ERR_VERIFY,
                        "schedule: rank %d waits for ever: its %s needs %s of rank %d", (int)r,
                        zfi_task_text(task, t->list[r * t->each + c->next[r]]),
                        zfi_task_text(need, needs[count - 1]),
                        (int)zfi_pipe_rank(t->pipe, needs[count - 1].chunk));
    }
    return ZF_OK;
}

/* When each task ends, by zfi_task_index: `ends` has room for one of each kind, chunk and
 * micro-batch. ZF_ERR_VERIFY where ranks wait for one another. */
static zf_status zfi_tasks_ends(zfi_memory *memory, const zfi_tasks *t, const zfi_task_times *times,
                                int64_t *ends, zf_error *error)
{
    const size_t ranks = (size_t)t->pipe.ranks;
    zfi_pipe_clock c = {.tasks = t, .times = times, .ends = ends};
    zf_status status = ZF_OK;
    c.now = zfi_calloc(memory, ranks, sizeof *c.now);
    c.next = zfi_calloc(memory, ranks, sizeof *c.next);
    for (size_t i = 0; i < zfi_tasks_indices(t->pipe); i++) ends[i] = -1;
    if (!c.now || !c.next) status = zfi_nomem(error);
    else {
        while (zfi_pipe_advance(&c)) {
        }
        status = zfi_pipe_blocked(&c, error);
    }
    zfi_free(memory, c.now, ranks * sizeof *c.now);
    zfi_free(memory, c.next, ranks * sizeof *c.next);
    return status;
}

/* How long a rank is idle in a step that ends when the last rank has ended. */
static int64_t zfi_tasks_idle(const zfi_tasks *t, const zfi_task_times *times, const int64_t *ends,
                              int32_t rank)
{
    int64_t end = 0, work = 0;
    for (size_t i = 0; i < zfi_tasks_count(t); i++) {
        const zfi_pipe_task task = t->list[i];
        const int64_t this_end = ends[zfi_task_index(t->pipe, task)];
        if (this_end > end) end = this_end;
        if ((int32_t)i / t->each == rank) work += times[task.chunk].takes[task.does];
    }
    return end - work;
}

/* ------------------------------------------------------------------------------------ verification
 *
 * What a list that was read, or made, must keep: each task once, on the rank of its chunk; what a
 * task needs of its own rank before it; micro-batches of a chunk in ascending order, so that sums
 * are; no more of them kept than there are slots; and ranks that do not wait for one another. Then
 * there is an order of all tasks of which each rank's is a part. A value is sent in it right after
 * the task that makes it, so both ends come to it. */

typedef struct zfi_tasks_checker {
    const zfi_tasks *tasks;
    bool *done;
    int32_t *last; /* micro-batch of each kind and chunk */
    zf_error *error;
} zfi_tasks_checker;

static zf_status zfi_task_fail(const zfi_tasks_checker *c, int32_t rank, zfi_pipe_task task,
                               const char *what)
{
    char text[ZFI_TASK_TEXT];
    return zfi_fail(c->error, ZF_ERR_VERIFY, "schedule: rank %d, %s: %s", (int)rank,
                    zfi_task_text(text, task), what);
}

/* It is a task of the pipeline, and of this rank. */
static zf_status zfi_task_check_place(const zfi_tasks_checker *c, int32_t rank, zfi_pipe_task task)
{
    const zf_pipe p = c->tasks->pipe;
    if (task.does < 0 || task.does >= ZFI_TASK_KINDS ||
        (task.does == ZFI_TASK_W && !zfi_pipe_has_weights(p)))
        return zfi_fail(c->error, ZF_ERR_VERIFY, "schedule: rank %d has a task that %s has not",
                        (int)rank, zfi_pipe_names[p.kind]);
    if (task.chunk < 0 || task.chunk >= zfi_pipe_stages(p))
        return zfi_task_fail(c, rank, task, "there is no such chunk");
    if (task.micro < 0 || task.micro >= p.micro_batches)
        return zfi_task_fail(c, rank, task, "there is no such micro-batch");
    if (zfi_pipe_rank(p, task.chunk) != rank)
        return zfi_task_fail(c, rank, task, "another rank has this chunk");
    return ZF_OK;
}

/* What is wrong with a task that comes before one that it needs. */
static const char *zfi_task_early(zfi_pipe_task task, zfi_pipe_task need)
{
    if (task.does == ZFI_TASK_F) return "it comes before the F of the chunk before";
    if (task.does == ZFI_TASK_W) return "it comes before its B";
    return need.does == ZFI_TASK_F ? "it comes before its F"
                                   : "it comes before the B of the next chunk";
}

static zf_status zfi_task_check(const zfi_tasks_checker *c, int32_t rank, zfi_pipe_task task)
{
    const zf_pipe p = c->tasks->pipe;
    zf_status status = zfi_task_check_place(c, rank, task);
    zfi_pipe_task needs[2];
    int32_t *last;
    if (status) return status;
    if (c->done[zfi_task_index(p, task)]) return zfi_task_fail(c, rank, task, "it is there twice");
    for (int k = zfi_task_needs(p, task, needs) - 1; k >= 0; k--)
        if (zfi_pipe_rank(p, needs[k].chunk) == rank && !c->done[zfi_task_index(p, needs[k])])
            return zfi_task_fail(c, rank, task, zfi_task_early(task, needs[k]));
    last = &c->last[task.does * zfi_pipe_stages(p) + task.chunk];
    if (task.micro != *last)
        return zfi_task_fail(c, rank, task, "micro-batches of a chunk are not in ascending order");
    *last += 1;
    c->done[zfi_task_index(p, task)] = true;
    return ZF_OK;
}

static zf_status zfi_tasks_check_rank(const zfi_tasks_checker *c, int32_t rank)
{
    const zfi_tasks *const t = c->tasks;
    const int32_t ends = zfi_pipe_has_weights(t->pipe) ? ZFI_TASK_W : ZFI_TASK_B;
    const int64_t slots = zfi_pipe_slots(t->pipe, rank);
    int64_t kept = 0;
    for (int32_t i = 0; i < t->each; i++) {
        const zfi_pipe_task task = t->list[rank * t->each + i];
        const zf_status status = zfi_task_check(c, rank, task);
        char text[ZFI_TASK_TEXT];
        if (status) return status;
        kept += (task.does == ZFI_TASK_F) - (task.does == ends);
        if (kept > slots)
            return zfi_fail(c->error, ZF_ERR_VERIFY,
                            "schedule: rank %d keeps %lld micro-batches of a chunk at %s; %s has "
                            "%lld slots",
                            (int)rank, (long long)kept, zfi_task_text(text, task),
                            zfi_pipe_names[t->pipe.kind], (long long)slots);
    }
    return ZF_OK;
}

/* No ranks wait for one another. */
static zf_status zfi_tasks_check_waits(zfi_memory *memory, const zfi_tasks *t, zf_error *error)
{
    const size_t stages = (size_t)zfi_pipe_stages(t->pipe), all = zfi_tasks_indices(t->pipe);
    int64_t *const ends = zfi_calloc(memory, all, sizeof *ends);
    zfi_task_times *const times = zfi_calloc(memory, stages, sizeof *times);
    const zf_status status =
        ends && times ? zfi_tasks_ends(memory, t, times, ends, error) : zfi_nomem(error);
    zfi_free(memory, ends, all * sizeof *ends);
    zfi_free(memory, times, stages * sizeof *times);
    return status;
}

static zf_status zfi_tasks_check(zfi_memory *memory, const zfi_tasks *t, zf_error *error)
{
    const size_t stages = (size_t)zfi_pipe_stages(t->pipe), all = zfi_tasks_indices(t->pipe);
    zfi_tasks_checker c = {.tasks = t, .error = error};
    zf_status status = ZF_OK;
    c.done = zfi_calloc(memory, all, sizeof *c.done);
    c.last = zfi_calloc(memory, ZFI_TASK_KINDS * stages, sizeof *c.last);
    if (!c.done || !c.last) status = zfi_nomem(error);
    for (int32_t r = 0; r < t->pipe.ranks && !status; r++) status = zfi_tasks_check_rank(&c, r);
    zfi_free(memory, c.done, all * sizeof *c.done);
    zfi_free(memory, c.last, ZFI_TASK_KINDS * stages * sizeof *c.last);
    return status ? status : zfi_tasks_check_waits(memory, t, error);
}
