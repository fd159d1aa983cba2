/* Work in host memory, concurrent with the device: updates, and copies from and to a disk. The CPU
 * backend does it, called by host functions on a stream of their own. So the device's own work goes
 * on meanwhile, and a CUDA graph contains it.
 *
 *     queue 0     --- backward -- backward -- backward ------------------ wait %9 --
 *     download         \-- %7, a gradient --.                            /
 *     hosted                                 \-- update %8 --.-- update --
 *     upload                                                  \-- %9, parameters --/
 *
 * The host functions of a section are in the order of its list. Against copies between device and
 * host memory they are ordered like this:
 *
 *   - a copy waits for the last host function above it that uses the same host memory
 *   - a host function waits for copies on queue 0 that stand above it, and for those on other
 *     queues whose wait stands above it
 *
 * They touch no device memory, so nothing else orders them. A host function waits for nothing but
 * the disk; CUDA may run the host functions of all streams on one thread. */

/* A launch that the host does, or a wait for one. */
typedef struct zfd_hosted {
    zf_backend *host;
    const zf_launch *launch;
    size_t scratch; /* bytes */
    int32_t more;   /* how many after it one host function does with it */
    bool wait;
    bool off; /* the device is lost, and `launch` may be gone */
} zfd_hosted;

/* Number n of the section is done by the host. */
static bool zfd_is_hosted(const zf_section *s, int32_t n)
{
    const int32_t of = s->waits_for[n] >= 0 ? s->waits_for[n] : n;
    return s->host && s->launches[of].backend == s->host->self;
}

static int32_t zfd_count_hosted(const zf_section *s)
{
    int32_t count = 0;
    for (int32_t n = s->first; n < s->last; n++) count += zfd_is_hosted(s, n);
    return count;
}

/* Lists what the host does of the section. One host function does launches that follow each other,
 * up to one that computes. */
static void zfd_list_hosted(const zf_section *s, zfd_hosted *list, int32_t count)
{
    for (int32_t n = s->last; n-- > s->first;) {
        const bool wait = s->waits_for[n] >= 0;
        const zf_launch *l = &s->launches[wait ? s->waits_for[n] : n];
        const bool computes = !wait && l->op != ZF_OP_copy;
        const bool joined = !computes && n + 1 < s->last && zfd_is_hosted(s, n + 1);
        if (!zfd_is_hosted(s, n)) continue;
        const size_t scratch = s->host->scratch(s->host->self, l);
        const int32_t more = joined ? list[count].more + 1 : 0;
        list[--count] = {s->host, l, scratch, more, wait, false};
    }
}

/* The host function. It calls nothing of CUDA. */
static void CUDART_CB zfd_run_hosted(void *first)
{
    const zfd_hosted *h = static_cast<const zfd_hosted *>(first);
    for (int32_t n = h->more; n >= 0; n--, h++) {
        const zf_launch *l = h->launch;
        zf_status status;
        if (__atomic_load_n(&h->off, __ATOMIC_RELAXED) || l->error->status) return;
        status = h->wait ? h->host->wait(h->host->self, l) : h->host->launch(h->host->self, l);
        if (status)
            zfd_cuda_fail(l->error, status, "%s %%%d failed in host memory", zf_launch_name(l),
                          (int)l->node);
    }
}

/* Puts a host function on its stream. */
static zf_status zfd_put_hosted(zfd_cuda *c, zfd_hosted *h, zf_error *error)
{
    zf_status status = zfd_cuda_failed(error, "cudaLaunchHostFunc",
                                       cudaLaunchHostFunc(c->hosted, zfd_run_hosted, h));
    return status ? status : zfd_pass(c, ZFD_HOSTED, h, error);
}

static bool zfd_shares_bytes(const zf_array *a, const void *with, size_t bytes)
{
    const char *x = static_cast<const char *>(a->data), *y = static_cast<const char *>(with);
    return x && y && x < y + bytes && y < x + zfd_bytes(a);
}

/* The host function uses bytes of x. */
static bool zfd_uses(const zfd_hosted *h, const zf_array *x)
{
    for (int32_t n = h->more; n >= 0; n--, h++) {
        const zf_launch *l = h->launch;
        bool uses = zfd_shares_bytes(x, l->out.data, zfd_bytes(&l->out)) ||
                    zfd_shares_bytes(x, l->scratch, h->scratch);
        for (int32_t k = 0; k < l->arg_count && !uses; k++)
            uses = zfd_shares_bytes(x, l->args[k].data, zfd_bytes(&l->args[k]));
        for (int k = 0; l->saved && k < ZF_MAX_SAVED && !uses; k++)
            uses = zfd_shares_bytes(x, l->saved[k].data, zfd_bytes(&l->saved[k]));
        if (uses) return true;
    }
    return false;
}

/* Before a copy between device and host memory: makes its queue wait for the last host function
 * that uses its host memory. Of host functions too old to have an event of their own, waits for the
 * oldest one that has. */
static zf_status zfd_follow_hosted(zfd_cuda *c, const zf_launch *copy)
{
    const zf_array *x = copy->space == ZF_DEVICE ? &copy->args[0] : &copy->out;
    const zfd_lane *lane = &c->lanes[ZFD_HOSTED];
    const int64_t first = lane->count > ZFD_MARKS ? lane->count - ZFD_MARKS + 1 : 1;
    int64_t n = lane->count;
    while (n >= first && !zfd_uses(static_cast<const zfd_hosted *>(zfd_at(lane, n)), x)) n--;
    if (n < first) n = first > 1 ? first : 0;
    return n ? zfd_wait_for(c, copy->queue, ZFD_HOSTED, n, copy->error) : ZF_OK;
}
