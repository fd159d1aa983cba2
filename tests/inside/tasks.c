/* Schedules of pipelines (base/tasks.c): those of all kinds keep the rules and the slots of the
 * table; each rule has a list that breaks it. */

static zf_pipe tasks_pipe(zf_pipe_kind kind, int32_t ranks, int32_t micro_batches, int32_t chunks)
{
    return (zf_pipe){kind, ranks, micro_batches, chunks};
}

/* The micro-batches of one chunk that a rank keeps at most, counted. */
static int64_t tasks_kept(const zfi_tasks *t, int32_t rank)
{
    const int32_t last = zfi_pipe_has_weights(t->pipe) ? ZFI_TASK_W : ZFI_TASK_B;
    int64_t kept = 0, most = 0;
    for (int32_t i = 0; i < t->each; i++) {
        const zfi_pipe_task task = t->list[rank * t->each + i];
        kept += (task.does == ZFI_TASK_F) - (task.does == last);
        if (kept > most) most = kept;
    }
    return most;
}

/* Each schedule is complete, keeps the rules, and fills its slots. */
static void tasks_check(test *t, zf_pipe p)
{
    zfi_memory memory = zfi_memory_of(&t->allocator);
    zf_error error = {ZF_OK, ""};
    zfi_tasks tasks;
    zf_status status = zfi_tasks_make(&memory, p, &tasks, &error);
    if (!status) status = zfi_tasks_check(&memory, &tasks, &error);
    for (int32_t r = 0; r < p.ranks && !status; r++)
        if (tasks_kept(&tasks, r) != zfi_pipe_slots(p, r))
            status = zfi_fail(&error, ZF_ERR_VERIFY, "rank %d keeps %lld of %lld", (int)r,
                              (long long)tasks_kept(&tasks, r), (long long)zfi_pipe_slots(p, r));
    zfi_tasks_free(&memory, &tasks);
    OK(t, status, error.text);
}

TEST(tasks_of_all_kinds_keep_the_rules)
{
    for (int32_t ranks = 1; ranks <= 8 && !t->failed; ranks++)
        for (int32_t m = 2 * ranks - 1; m <= 3 * ranks && !t->failed; m++)
            for (int kind = 0; kind < ZFI_PIPE_KINDS && !t->failed; kind++)
                for (int32_t chunks = 1; chunks <= 3 && !t->failed; chunks++) {
                    const zf_pipe p = tasks_pipe((zf_pipe_kind)kind, ranks, m, chunks);
                    if (!zfi_pipe_check(p, NULL)) tasks_check(t, p);
                }
}

/* With fewer micro-batches, too. */
TEST(tasks_of_few_micro_batches_keep_the_rules)
{
    zfi_memory memory = zfi_memory_of(&t->allocator);
    zf_error error = {ZF_OK, ""};
    for (int32_t ranks = 1; ranks <= 6; ranks++)
        for (int32_t m = ranks; m < 2 * ranks; m++)
            for (int kind = 0; kind < ZFI_PIPE_KINDS; kind++) {
                zfi_tasks tasks;
                const bool two = kind == ZF_PIPE_ZB_V || kind == ZF_PIPE_INTERLEAVED;
                const zf_pipe p = tasks_pipe((zf_pipe_kind)kind, ranks, m, two ? 2 : 1);
                zf_status status;
                if (zfi_pipe_check(p, NULL)) continue;
                status = zfi_tasks_make(&memory, p, &tasks, &error);
                if (!status) status = zfi_tasks_check(&memory, &tasks, &error);
                zfi_tasks_free(&memory, &tasks);
                OK(t, status, error.text);
            }
}

/* ------------------------------------------------------------------------------ broken lists */

/* Task number 1 of 1f1b with 2 ranks and 3 micro-batches becomes another one:
 *
 *     rank 0: F 0 0, F 0 1, B 0 0, F 0 2, B 0 1, B 0 2
 *     rank 1: F 1 0, B 1 0, F 1 1, B 1 1, F 1 2, B 1 2 */
static const struct {
    zfi_pipe_task by;
    const char *error;
} tasks_replaced[] = {{{ZFI_TASK_F, 0, 0}, "schedule: rank 0, F 0 0: it is there twice"},
                      {{ZFI_TASK_F, 1, 1}, "schedule: rank 0, F 1 1: another rank has this chunk"},
                      {{ZFI_TASK_F, 2, 1}, "schedule: rank 0, F 2 1: there is no such chunk"},
                      {{ZFI_TASK_F, 0, 3}, "schedule: rank 0, F 0 3: there is no such micro-batch"},
                      {{ZFI_TASK_W, 0, 0}, "schedule: rank 0 has a task that 1f1b has not"}};

#define TASKS_1F1B                                                                                 \
    {                                                                                              \
        ZF_PIPE_1F1B, 2, 3, 1                                                                      \
    }
#define TASKS_TURNS                                                                                \
    {                                                                                              \
        ZF_PIPE_INTERLEAVED, 2, 2, 2                                                               \
    }
#define TASKS_ZB_H1                                                                                \
    {                                                                                              \
        ZF_PIPE_ZB_H1, 2, 3, 1                                                                     \
    }
#define TASKS_ZB_V                                                                                 \
    {                                                                                              \
        ZF_PIPE_ZB_V, 1, 2, 2                                                                      \
    }

/* Tasks are swapped, in pairs. */
static const struct {
    zf_pipe pipe;
    int32_t places[4];
    const char *error;
} tasks_swapped[] = {
    {TASKS_1F1B, {6, 7}, "schedule: rank 1, B 1 0: it comes before its F"},
    {TASKS_1F1B,
     {0, 1},
     "schedule: rank 0, F 0 1: micro-batches of a chunk are not in ascending order"},
    {TASKS_1F1B,
     {7, 8},
     "schedule: rank 1 keeps 2 micro-batches of a chunk at F 1 1; 1f1b has 1 slots"},
    /* rank 0: F 0 0, F 0 1, B 0 0, W 0 0, F 0 2, B 0 1, W 0 1, B 0 2, W 0 2
     * rank 1: F 1 0, B 1 0, F 1 1, B 1 1, W 1 0, F 1 2, B 1 2, W 1 1, W 1 2 */
    {TASKS_ZB_H1, {2, 3}, "schedule: rank 0, W 0 0: it comes before its B"},
    {TASKS_ZB_H1,
     {16, 17},
     "schedule: rank 1, W 1 2: micro-batches of a chunk are not in ascending order"},
    {TASKS_ZB_H1,
     {13, 14},
     "schedule: rank 1 keeps 3 micro-batches of a chunk at F 1 2; zb-h1 has 2 slots"},
    /* rank 0: F 0 0, F 1 0, B 1 0, W 1 0, F 0 1, B 0 0, W 0 0, F 1 1, ... */
    {TASKS_ZB_V, {0, 1}, "schedule: rank 0, F 1 0: it comes before the F of the chunk before"},
    {TASKS_ZB_V, {2, 5, 3, 6}, "schedule: rank 0, B 0 0: it comes before the B of the next chunk"},
    /* rank 0: F 0 0, F 0 1, F 2 0, F 2 1, B 2 0, ...
     * rank 1: F 1 0, F 1 1, F 3 0, B 3 0, ... */
    {TASKS_TURNS,
     {9, 10, 8, 9},
     "schedule: rank 0 waits for ever: its F 2 0 needs F 1 0 of rank 1"}};

static void tasks_swap(zfi_tasks *t, const int32_t places[2])
{
    const zfi_pipe_task one = t->list[places[0]];
    t->list[places[0]] = t->list[places[1]], t->list[places[1]] = one;
}

/* The list is refused with that error. */
static void tasks_refused(test *t, zfi_memory *memory, const zfi_tasks *tasks, const char *wanted)
{
    zf_error error = {ZF_OK, ""};
    GIVES(t, zfi_tasks_check(memory, tasks, &error), ZF_ERR_VERIFY, error.text);
    if (strcmp(error.text, wanted)) test_fail(t, __FILE__, __LINE__, wanted, error.text);
}

TEST(tasks_have_an_error_for_each_rule)
{
    zfi_memory memory = zfi_memory_of(&t->allocator);
    const int replaced = ZFI_COUNT(tasks_replaced), swapped = ZFI_COUNT(tasks_swapped);
    for (int k = 0; k < replaced + swapped && !t->failed; k++) {
        const bool swaps = k >= replaced;
        zf_error error = {ZF_OK, ""};
        zfi_tasks tasks;
        OK(t,
           zfi_tasks_make(&memory, swaps ? tasks_swapped[k - replaced].pipe : (zf_pipe)TASKS_1F1B,
                          &tasks, &error),
           error.text);
        if (swaps) {
            tasks_swap(&tasks, tasks_swapped[k - replaced].places);
            tasks_swap(&tasks, tasks_swapped[k - replaced].places + 2);
        } else tasks.list[1] = tasks_replaced[k].by;
        tasks_refused(t, &memory, &tasks,
                      swaps ? tasks_swapped[k - replaced].error : tasks_replaced[k].error);
        zfi_tasks_free(&memory, &tasks);
    }
}
