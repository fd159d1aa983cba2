/* The schedule of a pipeline (base/tasks.c) as a text, as a picture, and as idle times. */

ZF_API const char *zf_pipe_kind_name(zf_pipe_kind kind)
{
    return (unsigned)kind < (unsigned)ZFI_PIPE_KINDS ? zfi_pipe_names[kind] : NULL;
}

/* A pipeline with its defaults, its tasks, and when each of them ends. */
typedef struct zfi_pipe_step {
    zfi_memory memory;
    zfi_tasks tasks;
    zfi_task_times *times; /* of each chunk */
    int64_t *ends;         /* by zfi_task_index */
} zfi_pipe_step;

static zf_pipe zfi_pipe_resolved(const zf_pipe *pipe)
{
    zf_pipe p = pipe ? *pipe : (zf_pipe){.ranks = 0};
    if (!p.ranks) p.ranks = 1;
    if (!p.micro_batches) p.micro_batches = p.ranks;
    if (!p.chunks) p.chunks = p.kind == ZF_PIPE_ZB_V || p.kind == ZF_PIPE_INTERLEAVED ? 2 : 1;
    return p;
}

static void zfi_pipe_step_end(zfi_pipe_step *s)
{
    const zf_pipe p = s->tasks.pipe;
    if (s->ends) zfi_free(&s->memory, s->ends, zfi_tasks_indices(p) * sizeof *s->ends);
    if (s->times) zfi_free(&s->memory, s->times, (size_t)zfi_pipe_stages(p) * sizeof *s->times);
    zfi_tasks_free(&s->memory, &s->tasks);
}

/* Makes the schedule; zfi_pipe_step_end frees it, also after an error. */
static zf_status zfi_pipe_step_begin(zfi_pipe_step *s, const zf_pipe *pipe,
                                     const zf_pipe_times *times, zf_error *error)
{
    const zf_pipe p = zfi_pipe_resolved(pipe);
    zf_status status;
    *s = (zfi_pipe_step){.memory = zfi_memory_of(NULL)};
    if ((status = zfi_tasks_make(&s->memory, p, &s->tasks, error))) return status;
    s->times = zfi_calloc(&s->memory, (size_t)zfi_pipe_stages(p), sizeof *s->times);
    s->ends = zfi_calloc(&s->memory, zfi_tasks_indices(p), sizeof *s->ends);
    if (!s->times || !s->ends) return zfi_nomem(error);
    for (int32_t c = 0; c < zfi_pipe_stages(p); c++)
        s->times[c] = zfi_pipe_has_weights(p)
                          ? (zfi_task_times){{times->forward, times->backward, times->weights}}
                          : (zfi_task_times){{times->forward, times->backward + times->weights, 0}};
    status = zfi_tasks_check(&s->memory, &s->tasks, error);
    return status ? status : zfi_tasks_ends(&s->memory, &s->tasks, s->times, s->ends, error);
}

static bool zfi_is_no_time(int64_t time) { return time < 0 || time > INT32_MAX; }

ZF_API zf_status zf_pipe_idle(const zf_pipe *pipe, const zf_pipe_times *times, int64_t *idle,
                              zf_error *error)
{
    zfi_pipe_step s;
    zf_status status;
    if (!times || !idle)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_pipe_idle: %s is NULL",
                        times ? "idle" : "times");
    if (zfi_is_no_time(times->forward) || zfi_is_no_time(times->backward) ||
        zfi_is_no_time(times->weights))
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "zf_pipe_idle: a task takes %lld, %lld or %lld; each must be 0 to %d",
                        (long long)times->forward, (long long)times->backward,
                        (long long)times->weights, INT32_MAX);
    status = zfi_pipe_step_begin(&s, pipe, times, error);
    for (int32_t r = 0; r < s.tasks.pipe.ranks && !status; r++)
        idle[r] = zfi_tasks_idle(&s.tasks, s.times, s.ends, r);
    zfi_pipe_step_end(&s);
    return status;
}

/* ---------------------------------------------------------------------------- text and picture */

static void zfi_print_tasks(zfi_writer *w, const zfi_tasks *t)
{
    char text[ZFI_TASK_TEXT];
    for (int32_t r = 0; r < t->pipe.ranks; r++) {
        zfi_print(w, "rank %d:", (int)r);
        for (int32_t i = 0; i < t->each; i++)
            zfi_print(w, "%s %s", i ? "," : "", zfi_task_text(text, t->list[r * t->each + i]));
        zfi_print(w, "\n");
    }
}

/* A row of the picture: a cell for each unit of time, up to `end`. */
typedef struct zfi_pipe_row {
    zfi_writer *w;
    int width; /* of a cell */
    int64_t now, end;
} zfi_pipe_row;

/* The same cell up to a time. */
static void zfi_print_cells(zfi_pipe_row *row, const char *text, int64_t until)
{
    for (; row->now < until; row->now++)
        zfi_print(row->w, " %-*s", row->now + 1 < row->end ? row->width : 0, text);
}

static void zfi_print_row(zfi_pipe_row *row, const zfi_pipe_step *s, int32_t rank)
{
    const zf_pipe p = s->tasks.pipe;
    char text[ZFI_TASK_TEXT];
    zfi_print(row->w, "rank %-3d", (int)rank);
    for (int32_t i = 0; i < s->tasks.each; i++) {
        const zfi_pipe_task task = s->tasks.list[rank * s->tasks.each + i];
        const int64_t until = s->ends[zfi_task_index(p, task)],
                      from = until - s->times[task.chunk].takes[task.does];
        const bool later = task.chunk != zfi_pipe_chunk(p, rank, 0);
        zfi_print_cells(row, ".", from);
        snprintf(text, sizeof text, "%c%d", (later ? "fbw" : zfi_task_letters)[task.does],
                 (int)task.micro);
        zfi_print_cells(row, text, from + 1 < until ? from + 1 : until);
        zfi_print_cells(row, "==", until);
    }
    zfi_print_cells(row, ".", row->end);
    zfi_print(row->w, "\n");
}

static void zfi_print_picture(zfi_writer *w, const zfi_pipe_step *s)
{
    const zf_pipe p = s->tasks.pipe;
    zfi_pipe_row row = {.w = w, .width = 1 + snprintf(NULL, 0, "%d", (int)p.micro_batches - 1)};
    for (size_t i = 0; i < zfi_tasks_indices(p); i++)
        if (s->ends[i] > row.end) row.end = s->ends[i];
    for (int32_t r = 0; r < p.ranks; r++, row.now = 0) zfi_print_row(&row, s, r);
}

static size_t zfi_pipe_print(const zf_pipe *pipe, bool picture, char *text, size_t size,
                             zf_error *error)
{
    static const zf_pipe_times times = {1, 1, 1};
    zfi_writer w = zfi_writer_of(NULL, text, text ? size : 0);
    zfi_pipe_step s;
    if (w.size) *text = '\0';
    if (!zfi_pipe_step_begin(&s, pipe, &times, error)) {
        if (picture) zfi_print_picture(&w, &s);
        else zfi_print_tasks(&w, &s.tasks);
        zfi_print_end(&w);
    }
    zfi_pipe_step_end(&s);
    return w.length;
}

ZF_API size_t zf_pipe_text(const zf_pipe *pipe, char *text, size_t size, zf_error *error)
{
    return zfi_pipe_print(pipe, false, text, size, error);
}

ZF_API size_t zf_pipe_picture(const zf_pipe *pipe, char *text, size_t size, zf_error *error)
{
    return zfi_pipe_print(pipe, true, text, size, error);
}
