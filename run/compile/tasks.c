/* The tasks of a program's rank, where it runs a schedule (plan/course.c).
 *
 *     launches   | slots 0: F 0, F 3, B 3, B 0, outputs | slots 1: ... | ... | update section |
 *     sends      | of each node that sends or receives, in slots 0, 1, ... |
 *
 * Values have different numbers of slots, so the micro section is there as often as these repeat
 * together, at most once for each micro-batch. Sends are no launches of a task: they are posted to
 * queue `pipe` between tasks. */

/* What the launches of a task see of its micro-batch. */
typedef struct zfi_micro_run {
    zf_run run;
    char task[ZFI_TASK_TEXT + 24]; /* "F 1 3 of stage 1" */
} zfi_micro_run;

/* A node that sends or receives. */
typedef struct zfi_sender {
    int32_t node;
    bool sends;
    uint64_t places;   /* that read what is received */
    zf_launch *launch; /* of each copy */
    zfi_micro_run *run;
} zfi_sender;

typedef struct zfi_program_tasks {
    zfi_course course;
    int32_t copies;
    int32_t (*parts)[2];     /* by copy and place: its launches */
    zfi_micro_run *runs;     /* by copy */
    zfi_sender *senders;     /* of `sender_count` nodes */
    int32_t *sender_of;      /* by node: its index + 1 */
    zf_launch *sends;        /* all launches of senders, their arrays and runs */
    zf_array *args;
    zfi_micro_run *send_runs;
    int32_t sender_count;
    int32_t input_count;
    bool *wrote; /* by micro-batch and input: zf_write_micro has written it in this step */
} zfi_program_tasks;

enum { ZFI_PLACES_OF_TASKS = ZFI_COURSE_OUTPUTS + 1 };

/* After so many micro-batches the slots of all values repeat. */
static int32_t zfi_slots_period(const zf_graph *g)
{
    int64_t period = 1;
    for (int32_t i = 0; i < zfi_len(g->order) && period < g->micro_batches; i++) {
        const int64_t slots = zfi_max(g->nodes[g->order[i]].slots, 1);
        period = period / zfi_gcd(period, slots) * slots;
    }
    return (int32_t)zfi_min(period, g->micro_batches);
}

static size_t zfi_wrote_bytes(const zf_program *p)
{
    return (size_t)p->graph->micro_batches * (size_t)p->tasks->input_count;
}

static void zfi_free_tasks(zf_program *p)
{
    zfi_program_tasks *t = p->tasks;
    zfi_memory *memory = &p->memory;
    size_t copies, senders;
    if (!t) return;
    copies = (size_t)t->copies, senders = (size_t)t->sender_count;
    zfi_free(memory, t->parts, copies * ZFI_PLACES_OF_TASKS * sizeof *t->parts);
    zfi_free(memory, t->runs, copies * sizeof *t->runs);
    zfi_free(memory, t->senders, senders * sizeof *t->senders);
    zfi_free(memory, t->sender_of, p->nodes * sizeof *t->sender_of);
    zfi_free(memory, t->sends, senders * copies * sizeof *t->sends);
    zfi_free(memory, t->args, senders * copies * sizeof *t->args);
    zfi_free(memory, t->send_runs, senders * copies * sizeof *t->send_runs);
    zfi_free(memory, t->wrote, zfi_wrote_bytes(p));
    zfi_course_free(&t->course);
    zfi_free(memory, t, sizeof *t);
    p->tasks = NULL;
}

/* Notes who reads what is received. A rank must have posted it before. */
static zf_status zfi_note_readers(const zf_program *p, int32_t id)
{
    zfi_program_tasks *t = p->tasks;
    zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = 0; k < node->arg_count && !zfi_runs_once(node); k++) {
        const int32_t of = t->sender_of[zfi_bytes_of(g, node->args[k])];
        const int32_t place = of ? zfi_course_place(g, id) : 0;
        if (!of || t->senders[of - 1].sends) continue;
        t->senders[of - 1].places |= (uint64_t)1 << place;
        for (int32_t micro = 0; micro < g->micro_batches; micro++)
            if (zfi_posted(&t->course, g, t->senders[of - 1].node, micro) >
                zfi_course_turn(&t->course, place, micro))
                return zfi_fail(&g->error, ZF_ERR_VERIFY,
                                "zf_compile: schedule: %%%d reads %%%d of micro-batch %d before it "
                                "is sent",
                                (int)id, (int)t->senders[of - 1].node, (int)micro);
    }
    return ZF_OK;
}

static zf_status zfi_make_senders(zf_program *p)
{
    zfi_program_tasks *t = p->tasks;
    zf_graph *g = p->graph;
    zf_array *args = t->args;
    zf_status status = ZF_OK;
    for (int32_t i = 0, n = 0; i < zfi_len(g->order) && !status; i++) {
        const int32_t id = g->order[i];
        zfi_sender *s = &t->senders[n];
        if (!zfi_is_transfer(g, id)) continue;
        *s = (zfi_sender){.node = id, .sends = g->nodes[id].arg_count > 0};
        s->launch = t->sends + (ptrdiff_t)n * t->copies;
        s->run = t->send_runs + (ptrdiff_t)n * t->copies;
        t->sender_of[id] = ++n;
        for (int32_t copy = 0; copy < t->copies && !status; copy++) {
            status = zfi_make_launch(p, id, copy, &args, &s->launch[copy]);
            s->launch[copy].run = &s->run[copy].run;
            s->launch[copy].queue = ZFI_QUEUE_PIPE;
        }
    }
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++)
        status = zfi_note_readers(p, g->order[i]);
    return status;
}

static zf_status zfi_open_tasks(zf_program *p)
{
    zf_graph *g = p->graph;
    zfi_program_tasks *t = p->tasks = zfi_calloc(&p->memory, 1, sizeof *t);
    size_t copies, senders;
    if (!t) return zfi_graph_nomem(g);
    if (zfi_course_make(g, &t->course)) return g->error.status;
    t->copies = zfi_slots_period(g);
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        t->sender_count += zfi_is_transfer(g, g->order[i]);
        t->input_count += g->nodes[g->order[i]].op == ZF_OP_input;
    }
    copies = (size_t)t->copies, senders = (size_t)t->sender_count;
    t->parts = zfi_calloc(&p->memory, copies * ZFI_PLACES_OF_TASKS, sizeof *t->parts);
    t->runs = zfi_calloc(&p->memory, copies, sizeof *t->runs);
    t->senders = zfi_calloc(&p->memory, senders, sizeof *t->senders);
    t->sender_of = zfi_calloc(&p->memory, p->nodes, sizeof *t->sender_of);
    t->sends = zfi_calloc(&p->memory, senders * copies, sizeof *t->sends);
    t->args = zfi_calloc(&p->memory, senders * copies, sizeof *t->args);
    t->send_runs = zfi_calloc(&p->memory, senders * copies, sizeof *t->send_runs);
    t->wrote = zfi_calloc(&p->memory, zfi_wrote_bytes(p), 1);
    if (p->memory.failed) return zfi_graph_nomem(g);
    return zfi_make_senders(p);
}

/* One copy of the micro section, or the update section. */
static zf_status zfi_make_part(zf_program *p, int64_t micro, bool once, zf_array **args,
                               int32_t *launch_of)
{
    zf_graph *g = p->graph;
    zfi_program_tasks *t = p->tasks;
    zf_status status = ZF_OK;
    int32_t last = -1;
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        const int32_t id = g->order[i], before = p->launch_count;
        const bool tasks = t && !once;
        int32_t place;
        if (zfi_runs_once(&g->nodes[id]) != once || (tasks && zfi_is_transfer(g, id))) continue;
        status = zfi_add_launch(p, id, micro, args, launch_of);
        if (!tasks || p->launch_count == before) continue;
        place = zfi_course_place(g, id);
        p->launches[before].run = &t->runs[micro].run;
        if (place != last) {
            p->begins[before] = true;
            t->parts[micro * ZFI_PLACES_OF_TASKS + place][0] = before;
        }
        t->parts[micro * ZFI_PLACES_OF_TASKS + place][1] = before + 1;
        last = place;
    }
    zfi_mark_sums(p, launch_of);
    return status;
}

static zf_status zfi_make_launches(zf_program *p, int32_t *launch_of)
{
    const bool scheduled = zfi_runs_schedule(p->graph);
    zf_status status = scheduled ? zfi_open_tasks(p) : ZF_OK;
    const int32_t copies = scheduled && !status ? p->tasks->copies : 1;
    zf_array *args;
    if (!status) status = zfi_open_launches(p, copies);
    args = p->args;
    for (int32_t copy = 0; copy < copies && !status; copy++)
        status = zfi_make_part(p, copy, false, &args, launch_of);
    if (!status)
        status = zfi_make_part(p, scheduled ? p->graph->micro_batches - 1 : 0, true, &args, launch_of);
    return status ? status : zfi_make_sections(p);
}
