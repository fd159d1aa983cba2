/* The pool: every task runs once, one task at a time for each worker, for any timing. */

typedef struct threads_job {
    _Atomic int *times;         /* of each index */
    _Atomic bool busy[8];       /* of each worker */
    _Atomic int64_t twice, sum; /* tasks that found their worker busy; of all indices */
    uint64_t *results;          /* written by tasks, read by the caller, without atomics */
    int64_t heavy;              /* every `heavy`th task takes long */
} threads_job;

static void threads_count(void *context, int64_t index, int worker)
{
    threads_job *job = context;
    uint64_t value = (uint64_t)index + 1;
    if (atomic_exchange(&job->busy[worker], true)) atomic_fetch_add(&job->twice, 1);
    for (int i = 0; i < (job->heavy && index % job->heavy == 0 ? 20000 : 5); i++)
        value = value * 6364136223846793005u + 1442695040888963407u;
    job->results[index] = value;
    atomic_fetch_add(&job->times[index], 1);
    atomic_fetch_add(&job->sum, index);
    atomic_store(&job->busy[worker], false);
}

/* `runs` runs of `tasks` tasks: each index once, the results those of one thread. */
static bool threads_check(zfi_pool *pool, int64_t tasks, int runs, int64_t heavy)
{
    enum { MOST = 1000 };
    static _Atomic int times[MOST];
    static uint64_t results[MOST], expected[MOST];
    threads_job job = {.times = times, .results = expected, .heavy = heavy};
    zfi_pool_run(NULL, tasks, threads_count, &job);
    job.results = results;
    for (int run = 0; run < runs; run++) {
        for (int64_t i = 0; i < tasks; i++) atomic_store(&times[i], 0), results[i] = 0;
        atomic_store(&job.sum, 0);
        zfi_pool_run(pool, tasks, threads_count, &job);
        for (int64_t i = 0; i < tasks; i++)
            if (atomic_load(&times[i]) != 1) return false;
        if (atomic_load(&job.sum) != tasks * (tasks - 1) / 2) return false;
        if (memcmp(results, expected, (size_t)tasks * sizeof *results)) return false;
    }
    return atomic_load(&job.twice) == 0;
}

TEST(threads_each_task_once)
{
    zfi_memory memory = zfi_memory_of(&t->allocator);
    for (int threads = 1; threads <= 6; threads++) {
        zf_error error = {0};
        zfi_pool *pool = zfi_pool_new(&memory, threads, &error);
        bool good = true;
        NEED(t, pool, &error);
        good &= zfi_pool_threads(pool) == threads;
        good &= threads_check(pool, 0, 3, 0) && threads_check(pool, 1, 3, 0);
        good &= threads_check(pool, 2, 500, 0) && threads_check(pool, threads, 300, 0);
        good &= threads_check(pool, 1000, 20, 0) && threads_check(pool, 97, 30, 13);
        zfi_pool_free(pool);
        CHECK(t, good);
    }
    CHECK(t, zfi_pool_threads(NULL) == 1);
    zfi_pool_free(NULL);
}

/* Workers that have gone to sleep are woken, and a pool is freed while they sleep. */
TEST_ONCE(threads_wake_up)
{
    zfi_memory memory = zfi_memory_of(&t->allocator);
    zf_error error = {0};
    zfi_pool *pool = zfi_pool_new(&memory, 3, &error);
    bool good = true, slept = false;
    NEED(t, pool, &error);
    for (int round = 0; round < 5; round++) {
        /* both workers sleep sooner or later, since nothing runs */
        for (slept = false; !slept; slept = atomic_load(&pool->sleeping) == 2) sched_yield();
        good &= threads_check(pool, 50, 3, 5);
    }
    while (atomic_load(&pool->sleeping) != 2) sched_yield();
    zfi_pool_free(pool);
    CHECK(t, good);
}

TEST_ONCE(threads_refused)
{
    zfi_memory memory = zfi_memory_of(&t->allocator);
    zf_error error = {0};
    CHECK(t, !zfi_pool_new(&memory, 0, &error));
    CHECK(t, error.status == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "a pool of 0 threads: want 1 to 1024");
    error = (zf_error){0};
    CHECK(t, !zfi_pool_new(&memory, 1025, &error));
    CHECK_TEXT(t, error.text, "a pool of 1025 threads: want 1 to 1024");
}
