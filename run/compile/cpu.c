/* The CPU backend: memory from its allocator, copies by memcpy, each node by its operator's kernel
 * on the backend's own workers. */

#if defined(__linux__)
#include <sys/mman.h>
int madvise(void *, size_t, int); /* hidden by strict C11 */
#endif

/* Asks for 2 MiB pages for [memory, memory + bytes), with which memory-bound kernels take a third
 * less time. If the system refuses, nothing else changes. */
static void zfi_want_huge_pages(char *memory, size_t bytes)
{
#if defined(__linux__)
    enum { HUGE_PAGE = 2 << 20, WANT_HUGE_PAGES = 14 /* MADV_HUGEPAGE */ };
    size_t skip = (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
    if (bytes >= skip + HUGE_PAGE)
        (void)madvise(memory + skip, (bytes - skip) / HUGE_PAGE * HUGE_PAGE, WANT_HUGE_PAGES);
#else
    (void)memory, (void)bytes;
#endif
}

/* Memory of a page or more begins at a page, so that a disk can read and write it (io/disk.c). */
static size_t zfi_cpu_align(size_t bytes)
{
    return bytes >= ZFI_DISK_ALIGN ? ZFI_DISK_ALIGN : ZFI_ALIGN;
}

static void *zfi_cpu_allocate(void *self, size_t bytes, zf_error *error)
{
    zfi_cpu *cpu = self;
    const size_t align = zfi_cpu_align(bytes);
    size_t total;
    char *block, *aligned;
    if (!zfi_add_size(bytes, align + sizeof block, &total) ||
        !(block = zfi_realloc(&cpu->memory, NULL, 0, total))) {
        zfi_fail(error, ZF_ERR_NOMEM, "out of memory: the arena takes %zu bytes", bytes);
        return NULL;
    }
    aligned = block + sizeof block;
    aligned += (align - (uintptr_t)aligned % align) % align;
    zfi_want_huge_pages(aligned, bytes);
    /* The block's start is stored before the address that is returned */
    memcpy(aligned - sizeof block, &block, sizeof block);
    return aligned;
}

static void zfi_cpu_give_back(void *self, void *memory, size_t bytes)
{
    char *block;
    if (!memory) return;
    memcpy(&block, (char *)memory - sizeof block, sizeof block);
    zfi_free(&((zfi_cpu *)self)->memory, block, bytes + zfi_cpu_align(bytes) + sizeof block);
}

static zf_status zfi_cpu_copy(void *self, void *to, const void *from, size_t bytes, zf_copy kind,
                              zf_error *error)
{
    (void)self, (void)kind, (void)error;
    if (bytes) memmove(to, from, bytes);
    return ZF_OK;
}

static size_t zfi_cpu_scratch(void *self, const zf_launch *l)
{
    (void)self;
    return zfi_launch_scratch(l);
}

static zf_status zfi_cpu_queues(void *self, int32_t count, zf_error *error)
{
    zfi_cpu *cpu = self;
    for (int32_t k = 1; k < count && k < ZFI_QUEUES; k++)
        if (!cpu->queues[k] && !(cpu->queues[k] = zfi_queue_new(&cpu->memory, error)))
            return error->status;
    return ZF_OK;
}

static zf_status zfi_cpu_launch(void *self, const zf_launch *l)
{
    zfi_cpu *cpu = self;
    if (l->queue <= 0 || l->queue >= ZFI_QUEUES || !cpu->queues[l->queue]) {
        zf_status status;
        zfi_note_begin(l);
        status = zfi_run_launch(l);
        zfi_note_end(l);
        return status;
    }
    zfi_queue_launch(cpu->queues[l->queue], l);
    return ZF_OK;
}

static zf_status zfi_cpu_wait_for(void *self, const zf_launch *l)
{
    zfi_cpu *cpu = self;
    zfi_queue *queue = l->queue > 0 && l->queue < ZFI_QUEUES ? cpu->queues[l->queue] : NULL;
    return queue ? zfi_queue_wait(queue, l, l->error) : ZF_OK;
}

static zf_status zfi_cpu_synchronize(void *self, zf_error *error)
{
    zfi_cpu *cpu = self;
    zf_status status = ZF_OK;
    for (int k = 1; k < ZFI_QUEUES; k++)
        if (cpu->queues[k]) {
            zf_status of = zfi_queue_wait(cpu->queues[k], NULL, error);
            if (!status) status = of;
        }
    return status;
}

/* A task that does not need to know which worker runs it. */
typedef struct zfi_shared {
    void (*task)(void *context, int64_t index);
    void *context;
} zfi_shared;

static void zfi_run_shared(void *context, int64_t index, int worker)
{
    const zfi_shared *shared = context;
    (void)worker;
    shared->task(shared->context, index);
}

static void zfi_cpu_share(void *self, int64_t count, void (*task)(void *, int64_t), void *context)
{
    zfi_shared shared = {task, context};
    zfi_pool_run(((zfi_cpu *)self)->pool, count, zfi_run_shared, &shared);
}

static void zfi_cpu_destroy(void *self)
{
    zfi_cpu *cpu = self;
    zfi_memory memory;
    for (int k = 1; k < ZFI_QUEUES; k++) zfi_queue_free(cpu->queues[k]);
    zfi_pool_free(cpu->pool);
    memory = cpu->memory;
    zfi_free(&memory, cpu, sizeof *cpu);
}

/* The instruction set called `name`; false with *error if this machine does not have it. */
static bool zfi_isa_named(const char *name, zfi_isa *isa, zf_error *error)
{
    zfi_isa best = !name || !strcmp(name, "amx") ? zfi_isa_best_of_all() : zfi_isa_best();
    *isa = best;
    if (!name) return true;
    for (int i = ZFI_ISA_PORTABLE; i <= ZFI_ISA_NEON; i++) {
        if (strcmp(name, zfi_isa_name((zfi_isa)i))) continue;
        *isa = (zfi_isa)i;
        if (i == ZFI_ISA_PORTABLE || (best == ZFI_ISA_NEON ? i == ZFI_ISA_NEON : i <= (int)best))
            return true;
        zfi_fail(error, ZF_ERR_BACKEND, "zf_cpu_backend: this machine has no %s; its best is %s",
                 name, zfi_isa_name(best));
        return false;
    }
    zfi_fail(error, ZF_ERR_ARGUMENT,
             "zf_cpu_backend: isa \"%.40s\" is none of portable, avx2, avx512, amx, neon", name);
    return false;
}

ZF_API zf_backend *zf_cpu_backend(const zf_cpu_desc *desc, zf_error *error)
{
    zf_cpu_desc d = desc ? *desc : (zf_cpu_desc){.threads = 0};
    zfi_memory memory = zfi_memory_of(&d.allocator);
    zfi_cpu *cpu;
    zfi_isa isa;
    if (d.threads == 0) d.threads = 1;
    if (d.threads < 1 || d.threads > 1024) {
        zfi_fail(error, ZF_ERR_ARGUMENT, "zf_cpu_backend: threads is %d; it must be 1 to 1024",
                 (int)d.threads);
        return NULL;
    }
    if (!zfi_isa_named(d.isa, &isa, error)) return NULL;
    cpu = zfi_calloc(&memory, 1, sizeof *cpu);
    if (!cpu) return zfi_nomem(error), NULL;
    cpu->memory = memory;
    cpu->isa = isa;
    cpu->reference = d.reference;
    cpu->backend = (zf_backend){.name = "cpu",
                                .self = cpu,
                                .allocate = zfi_cpu_allocate,
                                .release = zfi_cpu_give_back,
                                .copy = zfi_cpu_copy,
                                .scratch = zfi_cpu_scratch,
                                .queues = zfi_cpu_queues,
                                .launch = zfi_cpu_launch,
                                .wait = zfi_cpu_wait_for,
                                .synchronize = zfi_cpu_synchronize,
                                .destroy = zfi_cpu_destroy,
                                .share = zfi_cpu_share,
                                .host_memory = true,
                                .measures = true};
    if (d.threads > 1 && !(cpu->pool = zfi_pool_new(&cpu->memory, d.threads, error))) {
        zfi_cpu_destroy(cpu);
        return NULL;
    }
    return &cpu->backend;
}

ZF_API void zf_backend_free(zf_backend *backend)
{
    if (backend && backend->stores) backend->freed = true;
    else if (backend) backend->destroy(backend->self);
}
