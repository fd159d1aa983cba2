/* The tasks of a step that runs a schedule: each in its turn, transfers between them.
 *
 *     at boundary i   post what is due there, in the order of all ranks; wait for what was sent by
 *                     task i-2 or before
 *     task i          wait for what it reads; run its launches
 *     at the end      post and wait for the rest; `outputs:` of each micro-batch */

typedef struct zfi_pipe_run {
    zf_program *program;
    int32_t posted; /* transfers, so many first ones; */
    int32_t done;   /* and sends among so many first ones are complete */
} zfi_pipe_run;

/* Notes of which micro-batch and task a copy's launches are. */
static void zfi_set_task(const zf_program *p, zfi_micro_run *r, int64_t micro, const char *task)
{
    r->run = p->run;
    zfi_set_micro(p, &r->run, micro);
    snprintf(r->task, sizeof r->task, "%s", task);
    r->run.task = r->task;
}

static const char *zfi_name_task(char text[ZFI_TASK_TEXT + 24], zfi_pipe_task task)
{
    char name[ZFI_TASK_TEXT];
    snprintf(text, ZFI_TASK_TEXT + 24, "%s of stage %d", zfi_task_text(name, task),
             (int)task.chunk);
    return text;
}

static zf_launch *zfi_transfer_launch(const zfi_program_tasks *t, const zfi_transfer *x)
{
    return &t->senders[t->sender_of[x->node] - 1].launch[x->micro % t->copies];
}

/* Posts a transfer. */
static zf_status zfi_post_transfer(zf_program *p, const zfi_transfer *x)
{
    const zfi_program_tasks *t = p->tasks;
    const zf_pipe pipe = t->course.tasks.pipe;
    const int64_t place = x->task / pipe.micro_batches;
    const zfi_pipe_task task = {.does = (int32_t)(place / zfi_pipe_stages(pipe)),
                                .chunk = (int32_t)(place % zfi_pipe_stages(pipe)),
                                .micro = x->micro};
    zfi_sender *s = &t->senders[t->sender_of[x->node] - 1];
    zf_launch *l = &s->launch[x->micro % t->copies];
    char text[ZFI_TASK_TEXT + 24];
    zfi_set_task(p, &s->run[x->micro % t->copies], x->micro, zfi_name_task(text, task));
    zfi_count_launch(p, l);
    zfi_want_span(p, l);
    return zfi_launch_there(p, l, false);
}

/* What happens at a boundary. */
static zf_status zfi_pass_boundary(zfi_pipe_run *r, int32_t at)
{
    zf_program *p = r->program;
    const zfi_transfer *list = p->tasks->course.transfers;
    const int32_t count = zfi_len(list);
    zf_status status = ZF_OK;
    for (; r->posted < count && list[r->posted].before <= at && !status; r->posted++)
        status = zfi_post_transfer(p, &list[r->posted]);
    for (; r->done < r->posted && list[r->done].before < at && !status; r->done++)
        if (list[r->done].sends)
            status = zfi_launch_there(p, zfi_transfer_launch(p->tasks, &list[r->done]), true);
    return status;
}

/* Waits for what a task reads of other ranks. */
static zf_status zfi_await_received(zf_program *p, int32_t place, int64_t micro)
{
    const zfi_program_tasks *t = p->tasks;
    zf_status status = ZF_OK;
    for (int32_t k = 0; k < t->sender_count && !status; k++) {
        const zfi_sender *s = &t->senders[k];
        const int64_t copy = zfi_runs_first(&p->graph->nodes[s->node]) ? 0 : micro % t->copies;
        if (!s->sends && s->places >> place & 1)
            status = zfi_launch_there(p, &s->launch[copy], true);
    }
    return status;
}

/* Runs what is at a place for a micro-batch. */
static zf_status zfi_run_place(zf_program *p, int32_t place, int64_t micro, const char *task)
{
    const zfi_program_tasks *t = p->tasks;
    const int64_t copy = micro % t->copies;
    const int32_t *part = t->parts[copy * ZFI_PLACES_OF_TASKS + place];
    zf_status status = zfi_await_received(p, place, micro);
    zfi_set_task(p, &t->runs[copy], micro, task);
    return status ? status : zfi_run_launches(p, part[0], part[1]);
}

/* Runs all micro-batches of a step. */
static zf_status zfi_run_tasks(zf_program *p)
{
    const zfi_course *c = &p->tasks->course;
    const zf_pipe pipe = c->tasks.pipe;
    zfi_pipe_run r = {.program = p};
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < c->tasks.each && !status; i++) {
        const zfi_pipe_task task = zfi_course_task(c, i);
        char text[ZFI_TASK_TEXT + 24];
        status = zfi_pass_boundary(&r, i);
        if (!status)
            status = zfi_run_place(p,
                                   task.does * ZFI_COURSE_CHUNKS + zfi_chunk_number(pipe, task.chunk),
                                   task.micro, zfi_name_task(text, task));
    }
    if (!status) status = zfi_pass_boundary(&r, c->tasks.each);
    if (!status) status = zfi_pass_boundary(&r, c->tasks.each + 1);
    for (int64_t micro = 0; micro < pipe.micro_batches && !status; micro++)
        status = zfi_run_place(p, ZFI_COURSE_OUTPUTS, micro, "outputs");
    return status;
}
