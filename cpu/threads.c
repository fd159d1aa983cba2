/* Worker threads that share the tasks of one call at a time.
 *
 * A run publishes its job by opening the gate, takes part in it, and closes the gate when no task
 * is left to hand out. Each worker has an equal share of neighbouring tasks. The shares are the
 * same from run to run, so a worker finds its rows in its cache. A worker that has finished its
 * share takes tasks from the others'. A worker counts itself in at an open gate, and out when it
 * finds no more tasks; the run ends when the count is 0. A worker that comes late (its core was
 * busy with something else) finds the gate closed; the run does not wait for it.
 *
 *     gate   | job number (32) | ... | open (bit 16) | workers inside (16) |
 *
 * A thread that waits spins for a short time, and then sleeps on a condition variable.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

typedef void zfi_task(void *context, int64_t index, int worker);

typedef struct zfi_pool zfi_pool;

/* One for each thread, the caller of a run being the first. */
typedef struct zfi_worker {
    _Atomic int64_t next; /* the next task of its share */
    int64_t end;
    zfi_pool *pool;
    pthread_t thread;
    int index;
    char apart[128]; /* fields that several threads write are two cache lines away from the rest */
} zfi_worker;

struct zfi_pool {
    zfi_memory *memory;
    int threads, started;
    zfi_worker *workers;

    /* The job: with the workers' shares written while the gate is closed and nobody is inside. */
    zfi_task *task;
    void *context;

    char apart_from_job[128];
    _Atomic uint64_t gate;
    char apart_from_gate[128];
    _Atomic int sleeping; /* workers (and perhaps the caller) on a condition variable */
    _Atomic bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t opened, left;
};

static const uint64_t zfi_gate_open = 1u << 16, zfi_gate_inside = 0xffff,
                      zfi_gate_job = (uint64_t)1 << 32;

ZFI_INLINE void zfi_pause(void)
{
#if ZFI_X86
    _mm_pause();
#elif ZFI_NEON
    __asm__ __volatile__("yield");
#endif
}

/* Spins until `ready` accepts the gate, for about 100 microseconds at most; true when it does. It
 * does not yield: another process would then get the rest of the time slice, milliseconds for a
 * wait of microseconds. A sleeping thread is woken at once. */
static bool zfi_pool_spin(zfi_pool *pool, bool (*ready)(zfi_pool *, uint64_t), uint64_t seen)
{
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 20; i++) {
            if (ready(pool, seen)) return true;
            zfi_pause();
        }
    }
    return false;
}

/* A new job is open, or the pool ends. */
static bool zfi_pool_opened(zfi_pool *pool, uint64_t seen)
{
    uint64_t gate = atomic_load(&pool->gate);
    return ((gate & zfi_gate_open) && gate / zfi_gate_job != seen) || atomic_load(&pool->stop);
}

static bool zfi_pool_empty(zfi_pool *pool, uint64_t seen)
{
    (void)seen;
    return !(atomic_load(&pool->gate) & zfi_gate_inside);
}

static void zfi_pool_sleep(zfi_pool *pool, bool (*ready)(zfi_pool *, uint64_t), uint64_t seen,
                           pthread_cond_t *condition)
{
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleeping, 1);
    while (!ready(pool, seen)) pthread_cond_wait(condition, &pool->mutex);
    atomic_fetch_sub(&pool->sleeping, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void zfi_pool_wake(zfi_pool *pool, pthread_cond_t *condition)
{
    if (!atomic_load(&pool->sleeping)) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(condition);
    pthread_mutex_unlock(&pool->mutex);
}

/* Runs the tasks of this worker's share, then remaining tasks of others. */
static void zfi_pool_work(zfi_pool *pool, int worker)
{
    for (int i = 0; i < pool->threads; i++) {
        zfi_worker *from = &pool->workers[(worker + i) % pool->threads];
        int64_t end = from->end, index;
        while (atomic_load(&from->next) < end && (index = atomic_fetch_add(&from->next, 1)) < end)
            pool->task(pool->context, index, worker);
    }
}

static void *zfi_worker_main(void *argument)
{
    zfi_worker *self = argument;
    zfi_pool *pool = self->pool;
    uint64_t seen = 0, gate;
    for (;;) {
        if (!zfi_pool_spin(pool, zfi_pool_opened, seen))
            zfi_pool_sleep(pool, zfi_pool_opened, seen, &pool->opened);
        if (atomic_load(&pool->stop)) return NULL;
        gate = atomic_load(&pool->gate);
        do {
            if (!(gate & zfi_gate_open)) break;
        } while (!atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1));
        if (!(gate & zfi_gate_open)) continue;
        seen = gate / zfi_gate_job;
        zfi_pool_work(pool, self->index);
        gate = atomic_fetch_sub(&pool->gate, 1);
        if (!(gate & zfi_gate_open) && (gate & zfi_gate_inside) == 1)
            zfi_pool_wake(pool, &pool->left);
    }
}

/* Frees the pool; NULL may be freed. No run may be in progress. */
static void zfi_pool_free(zfi_pool *pool)
{
    zfi_memory *memory;
    if (!pool) return;
    memory = pool->memory;
    atomic_store(&pool->stop, true);
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 1; i <= pool->started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->opened);
    pthread_cond_destroy(&pool->left);
    pthread_mutex_destroy(&pool->mutex);
    zfi_free(memory, pool->workers, (size_t)pool->threads * sizeof *pool->workers);
    zfi_free(memory, pool, sizeof *pool);
}

enum { ZFI_MAX_THREADS = 1024 };

/* A pool of `threads` threads, the caller of zfi_pool_run being one. On failure NULL, and `error`
 * says why. */
static zfi_pool *zfi_pool_new(zfi_memory *memory, int threads, zf_error *error)
{
    zfi_pool *pool;
    if (threads < 1 || threads > ZFI_MAX_THREADS) {
        zfi_fail(error, ZF_ERR_ARGUMENT, "a pool of %d threads: want 1 to %d", threads,
                 ZFI_MAX_THREADS);
        return NULL;
    }
    pool = zfi_calloc(memory, 1, sizeof *pool);
    if (!pool) {
        zfi_nomem(error);
        return NULL;
    }
    pool->memory = memory;
    pool->threads = threads;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->opened, NULL);
    pthread_cond_init(&pool->left, NULL);
    pool->workers = zfi_calloc(memory, (size_t)threads, sizeof *pool->workers);
    if (!pool->workers) zfi_nomem(error);
    for (int i = 1; pool->workers && i < threads; i++) {
        zfi_worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i;
        if (pthread_create(&worker->thread, NULL, zfi_worker_main, worker)) {
            zfi_fail(error, ZF_ERR_IO, "the system refused thread %d of %d", i + 1, threads);
            break;
        }
        pool->started++;
    }
    if (pool->workers && pool->started == threads - 1) return pool;
    zfi_pool_free(pool);
    return NULL;
}

/* How many threads a run uses; a NULL pool has one. */
ZFI_UNUSED static int zfi_pool_threads(const zfi_pool *pool) { return pool ? pool->threads : 1; }

/* Calls task(context, index, worker) once for every index in 0..tasks-1, on the caller (worker 0)
 * and the workers, in any order, and returns when all have returned. No two calls at a time have
 * the same `worker`. A task must not call this function on the same pool. */
static void zfi_pool_run(zfi_pool *pool, int64_t tasks, zfi_task *task, void *context)
{
    if (!pool || pool->threads == 1 || tasks <= 1) {
        for (int64_t index = 0; index < tasks; index++) task(context, index, 0);
        return;
    }
    pool->task = task;
    pool->context = context;
    for (int i = 0; i < pool->threads; i++) {
        atomic_store(&pool->workers[i].next, tasks * i / pool->threads);
        pool->workers[i].end = tasks * (i + 1) / pool->threads;
    }
    atomic_store(&pool->gate,
                 (atomic_load(&pool->gate) & ~(zfi_gate_job - 1)) + zfi_gate_job + zfi_gate_open);
    zfi_pool_wake(pool, &pool->opened);
    zfi_pool_work(pool, 0);
    atomic_fetch_and(&pool->gate, ~zfi_gate_open);
    if (!zfi_pool_spin(pool, zfi_pool_empty, 0))
        zfi_pool_sleep(pool, zfi_pool_empty, 0, &pool->left);
}
