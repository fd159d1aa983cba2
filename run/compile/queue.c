/* A queue of the CPU backend: launches that run in order on a thread of their own, with
 * queue 0 at the same time.
 * They are collectives, which mostly wait for other ranks, and copies.
 *
 *     queue 0    launch A ------ matmul ---- matmul ---- wait A ---- reads A
 *     queue 1             A on its thread ........ done
 */
enum { ZFI_QUEUE_ROOM = 256 };

typedef struct zfi_queue {
    zfi_memory *memory;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    const zf_launch *ring[ZFI_QUEUE_ROOM]; /* number n is at n % ZFI_QUEUE_ROOM */
    int64_t launched, done;
    bool stop;
    zf_error error; /* the first error; later launches do not run */
} zfi_queue;

static void zfi_note_begin(const zf_launch *l)
{
    if (l->span) l->span->from = zfi_now();
}

static void zfi_note_end(const zf_launch *l)
{
    if (l->span) l->span->to = zfi_now();
}

static void *zfi_queue_main(void *argument)
{
    zfi_queue *q = argument;
    pthread_mutex_lock(&q->mutex);
    while (!q->stop) {
        zf_launch l;
        zf_error error = {ZF_OK, ""};
        if (q->done == q->launched) {
            pthread_cond_wait(&q->changed, &q->mutex);
            continue;
        }
        l = *q->ring[q->done % ZFI_QUEUE_ROOM];
        l.error = &error;
        if (!q->error.status) {
            pthread_mutex_unlock(&q->mutex);
            zfi_note_begin(&l);
            (void)zfi_record_for(&l)->cpu(&l);
            zfi_note_end(&l);
            pthread_mutex_lock(&q->mutex);
            if (error.status && !q->error.status) q->error = error;
        }
        q->done++;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->mutex);
    return NULL;
}

static void zfi_queue_free(zfi_queue *q)
{
    zfi_memory *memory;
    if (!q) return;
    memory = q->memory;
    pthread_mutex_lock(&q->mutex);
    q->stop = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->mutex);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->mutex);
    zfi_free(memory, q, sizeof *q);
}

static zfi_queue *zfi_queue_new(zfi_memory *memory, zf_error *error)
{
    zfi_queue *q = zfi_calloc(memory, 1, sizeof *q);
    if (!q) return zfi_nomem(error), NULL;
    q->memory = memory;
    pthread_mutex_init(&q->mutex, NULL);
    pthread_cond_init(&q->changed, NULL);
    if (pthread_create(&q->thread, NULL, zfi_queue_main, q)) {
        pthread_cond_destroy(&q->changed);
        pthread_mutex_destroy(&q->mutex);
        zfi_free(memory, q, sizeof *q);
        zfi_fail(error, ZF_ERR_BACKEND, "zf_cpu_backend: the system refused a thread for a queue");
        return NULL;
    }
    return q;
}

static void zfi_queue_launch(zfi_queue *q, const zf_launch *l)
{
    pthread_mutex_lock(&q->mutex);
    while (q->launched - q->done == ZFI_QUEUE_ROOM) pthread_cond_wait(&q->changed, &q->mutex);
    q->ring[q->launched++ % ZFI_QUEUE_ROOM] = l;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->mutex);
}

/* Waits until `l`, or with NULL everything, is done. */
static zf_status zfi_queue_wait(zfi_queue *q, const zf_launch *l, zf_error *error)
{
    int64_t until;
    zf_status status;
    pthread_mutex_lock(&q->mutex);
    until = q->launched;
    while (l && until > q->done && q->ring[(until - 1) % ZFI_QUEUE_ROOM] != l) until--;
    while (q->done < until) pthread_cond_wait(&q->changed, &q->mutex);
    status = q->error.status;
    if (status) zfi_fail(error, status, "%s", q->error.text);
    if (!l && q->done == q->launched) q->error = (zf_error){ZF_OK, ""};
    pthread_mutex_unlock(&q->mutex);
    return status;
}
