/* The course of a rank of a pipeline: what it does in a step of several micro-batches, in which
 * order, and how many of them each of its values must have room for.
 *
 *     boundary  0        1        2        3        4        5        6
 *     rank 0    |  F 0 0 |  F 0 1 |  B 0 0 |  F 0 2 |  B 0 1 |  B 0 2 |  outputs 0 1 2
 *                        send     send     receive  send     receive
 *
 * Tasks are those of the schedule (base/tasks.c), at the times when they would begin if F, B and W
 * took one unit each. A transfer is a send of one micro-batch; its time is the end of the task that
 * makes the value. All ranks post transfers to queue `pipe` in one order, that of these times:
 * before a task, those that are due when it begins. A receive is posted then, too, and not where
 * its value is read, which may be much later.
 *
 * So no ranks wait for one another: whether a rank comes to a boundary depends on tasks alone that
 * begin before the time of each transfer for which it waits, on this rank and on others.
 *
 * A value of one task alone has one place. One of several has a slot for each micro-batch that is
 * between its first task, or the boundary at which it is received, and its last one at some time;
 * the task after that which sends it is one of these, so that the send need not be complete
 * before. Values that outputs are made of have a slot for each micro-batch; what is made or sent
 * once a step has one. */

enum {
    ZFI_COURSE_CHUNKS = 20, /* of a rank, at most */
    ZFI_COURSE_OUTPUTS = ZFI_TASK_KINDS * ZFI_COURSE_CHUNKS /* the place of `outputs:` */
};

/* A send of one micro-batch, as one of its ends sees it. */
typedef struct zfi_transfer {
    int64_t due;
    int32_t task; /* that makes the value, by zfi_task_index; orders those of one time, */
    int32_t at;   /* and then the place of the node in the graph */
    int32_t node, micro;
    int32_t before; /* the boundary at which it is posted */
    bool sends;
} zfi_transfer;

typedef struct zfi_course {
    zfi_memory *memory;
    zfi_tasks tasks;
    int32_t rank;
    int32_t *turn;           /* by task, as zfi_task_index: its place in the list of this rank */
    int64_t *begins;         /* of its tasks; */
    int64_t *ends;           /* of those of all, by zfi_task_index */
    zfi_transfer *transfers; /* in their order; growing */
} zfi_course;

/* The graph is the part of a rank that runs a schedule. */
static bool zfi_runs_schedule(const zf_graph *g)
{
    return g->whole && g->schedule && g->micro_batches > 1 && g->stages & ZFI_STAGE_GRADIENTS;
}

static void zfi_course_free(zfi_course *c)
{
    const zf_pipe p = c->tasks.pipe;
    const size_t all = c->ends ? zfi_tasks_indices(p) : 0;
    if (!c->memory) return;
    zfi_array_free(c->memory, c->transfers);
    zfi_free(c->memory, c->ends, all * sizeof *c->ends);
    zfi_free(c->memory, c->turn, all * sizeof *c->turn);
    zfi_free(c->memory, c->begins, (size_t)c->tasks.each * sizeof *c->begins);
    zfi_tasks_free(c->memory, &c->tasks);
    *c = (zfi_course){.rank = 0};
}

static zfi_pipe_task zfi_course_task(const zfi_course *c, int32_t turn)
{
    return c->tasks.list[c->rank * c->tasks.each + turn];
}

/* ------------------------------------------------------------------------------- places of nodes */

/* The number of a chunk among those of its rank. */
static int32_t zfi_chunk_number(zf_pipe p, int32_t chunk)
{
    return chunk / p.ranks; /* of all kinds */
}

/* Which of its rank's tasks run a node of the micro section: ZFI_TASK_KINDS for each of its chunks,
 * then outputs. What is of all stages is computed in the first of them. */
static int32_t zfi_course_place(const zf_graph *g, int32_t id)
{
    const zf_pipe p = zfi_pipe_of(g);
    const zfi_node *node = &g->nodes[id];
    const int32_t stage = node->op == ZF_OP_send ? g->nodes[node->args[0]].stage : node->stage,
                  all = node->task == ZFI_TASK_F ? 0 : p.chunks - 1;
    if (node->task == ZFI_TASK_OUTPUTS) return ZFI_COURSE_OUTPUTS;
    return node->task * ZFI_COURSE_CHUNKS + (stage ? zfi_chunk_number(p, stage - 1) : all);
}

/* The turn of a micro-batch at a place; outputs come after all tasks. */
static int32_t zfi_course_turn(const zfi_course *c, int32_t place, int32_t micro)
{
    const zf_pipe p = c->tasks.pipe;
    const int32_t chunk = zfi_pipe_chunk(p, c->rank, place % ZFI_COURSE_CHUNKS);
    if (place == ZFI_COURSE_OUTPUTS) return c->tasks.each + micro;
    return c->turn[zfi_task_index(p, (zfi_pipe_task){place / ZFI_COURSE_CHUNKS, chunk, micro})];
}

/* It is a send of a task, which this rank receives or makes; those of `update:` are not. */
static bool zfi_is_transfer(const zf_graph *g, int32_t id)
{
    return g->nodes[id].op == ZF_OP_send && !zfi_runs_once(&g->nodes[id]);
}

/* ------------------------------------------------------------------------------------- transfers */

static int zfi_by_due(const void *left, const void *right)
{
    const zfi_transfer *a = left, *b = right;
    if (a->due != b->due) return a->due < b->due ? -1 : 1;
    if (a->task != b->task) return a->task < b->task ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* The stage that makes what is sent; of parameters of all stages the first. */
static int32_t zfi_stage_sent(const zf_graph *g, const zfi_node *send)
{
    const int32_t stage = g->nodes[send->args[0]].stage;
    return stage ? stage - 1 : 0;
}

/* The boundary before the first task that begins when it is due, or later. */
static int32_t zfi_course_boundary(const zfi_course *c, int64_t due)
{
    int32_t low = 0, high = c->tasks.each;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (c->begins[middle] >= due) high = middle;
        else low = middle + 1;
    }
    return low;
}

static void zfi_add_transfers(zfi_course *c, const zf_graph *g, int32_t at)
{
    const int32_t id = g->order[at];
    const zfi_node *node = &g->nodes[id];
    const zf_pipe p = c->tasks.pipe;
    const int32_t made = zfi_stage_sent(g, node);
    for (int32_t micro = 0; micro < (zfi_runs_first(node) ? 1 : p.micro_batches) && !c->memory->failed;
         micro++) {
        const size_t task = zfi_task_index(p, (zfi_pipe_task){node->task, made, micro});
        const zfi_transfer t = {.due = c->ends[task],
                                .task = (int32_t)task,
                                .at = at,
                                .node = id,
                                .micro = micro,
                                .before = zfi_course_boundary(c, c->ends[task]),
                                .sends = node->arg_count > 0};
        zfi_push(c->memory, c->transfers, t);
    }
}

/* The boundary at which a micro-batch of a send is posted. */
static int32_t zfi_posted(const zfi_course *c, const zf_graph *g, int32_t id, int32_t micro)
{
    const zf_pipe p = c->tasks.pipe;
    const zfi_node *node = &g->nodes[id];
    const int32_t made = zfi_stage_sent(g, node);
    const zfi_pipe_task task = {node->task, made, zfi_runs_first(node) ? 0 : micro};
    return zfi_course_boundary(c, c->ends[zfi_task_index(p, task)]);
}

/* ------------------------------------------------------------------------------------- the course */

static zf_status zfi_course_times(zfi_course *c, zf_error *error)
{
    const zf_pipe p = c->tasks.pipe;
    const size_t stages = (size_t)zfi_pipe_stages(p);
    const zfi_task_times one = {{1, zfi_pipe_has_weights(p) ? 1 : 2, 1}};
    zfi_task_times *times = zfi_calloc(c->memory, stages, sizeof *times);
    zf_status status = times ? ZF_OK : zfi_nomem(error);
    for (size_t k = 0; k < stages && !status; k++) times[k] = one;
    if (!status) status = zfi_tasks_ends(c->memory, &c->tasks, times, c->ends, error);
    for (int32_t i = 0; i < c->tasks.each && !status; i++) {
        const zfi_pipe_task task = zfi_course_task(c, i);
        const size_t index = zfi_task_index(p, task);
        c->turn[index] = i;
        c->begins[i] = c->ends[index] - one.takes[task.does];
    }
    zfi_free(c->memory, times, stages * sizeof *times);
    return status;
}

/* Makes the course of the rank of which the graph is the part; zfi_course_free frees it, also after
 * an error. */
static zf_status zfi_course_make(zf_graph *g, zfi_course *c)
{
    const zf_pipe p = zfi_pipe_of(g);
    zf_status status;
    *c = (zfi_course){.memory = &g->memory, .rank = g->kept};
    if ((status = zfi_tasks_make(c->memory, p, &c->tasks, &g->error))) return status;
    c->ends = zfi_calloc(c->memory, zfi_tasks_indices(p), sizeof *c->ends);
    c->turn = zfi_calloc(c->memory, zfi_tasks_indices(p), sizeof *c->turn);
    c->begins = zfi_calloc(c->memory, (size_t)c->tasks.each, sizeof *c->begins);
    if (!c->ends || !c->turn || !c->begins) return zfi_graph_nomem(g);
    status = zfi_tasks_check(c->memory, &c->tasks, &g->error);
    if (!status) status = zfi_course_times(c, &g->error);
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++)
        if (zfi_is_transfer(g, g->order[i])) zfi_add_transfers(c, g, i);
    if (c->transfers)
        qsort(c->transfers, stbds_arrlenu(c->transfers), sizeof *c->transfers, zfi_by_due);
    if (c->memory->failed) return zfi_graph_nomem(g);
    return status;
}

/* ----------------------------------------------------------------------------------------- slots */

/* What uses a value, or values that share a place. */
typedef struct zfi_value_uses {
    uint64_t places; /* of tasks that make or read it: bits by zfi_course_place */
    int32_t received; /* the last of the sends by which it comes; 0: it is made here */
    uint64_t sent;    /* places of tasks that send it */
    bool later;       /* `update:` reads it, or a program after the step */
    bool once;        /* the first micro-batch makes it for all */
} zfi_value_uses;

/* It is of one task alone. */
static bool zfi_is_of_one_task(const zfi_value_uses *u)
{
    return !(u->places & (u->places - 1)) && !u->received && !u->sent && !u->later && !u->once;
}

/* From when until when it has micro-batch `micro`: task number i is 2i+1, the boundary before it
 * 2i. before: by node, the send before this one by which the same value comes; a pack of several
 * has them in its place, each of which may come from another stage. */
static void zfi_value_life(const zfi_course *c, const zf_graph *g, const zfi_value_uses *u,
                           const int32_t *before, int32_t micro, int64_t life[2])
{
    life[0] = INT64_MAX, life[1] = 0;
    for (int32_t place = 0; place <= ZFI_COURSE_OUTPUTS; place++) {
        int64_t turn;
        if (!(u->places >> place & 1)) continue;
        turn = zfi_course_turn(c, place, micro);
        life[0] = zfi_min(life[0], 2 * turn + 1), life[1] = zfi_max(life[1], 2 * turn + 1);
        if (u->sent >> place & 1) life[1] = zfi_max(life[1], 2 * turn + 3);
    }
    for (int32_t id = u->received; id; id = before[id])
        life[0] = zfi_min(life[0], 2 * (int64_t)zfi_posted(c, g, id, micro));
}

/* The micro-batches for which it needs room at a time. */
static int32_t zfi_value_slots(const zfi_course *c, const zf_graph *g, const zfi_value_uses *u,
                               const int32_t *before)
{
    const int32_t all = c->tasks.pipe.micro_batches;
    int32_t slots = 1;
    for (int32_t micro = 0; micro < all && u->places && !u->once; micro++)
        for (int64_t life[2], other[2]; micro + slots < all; slots++) {
            zfi_value_life(c, g, u, before, micro, life);
            zfi_value_life(c, g, u, before, micro + slots, other);
            if (other[0] > life[1]) break;
        }
    return slots;
}
