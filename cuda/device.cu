/* A backend's device: what belongs to it, how long the host waits for it, and its errors.
 *
 * Where other ranks take part, no wait for the device is endless: while the host waits, it asks the
 * communicator whether the other ranks still take part. If they do not, what is in flight ends
 * without them, within a deadline. If it does not end, the device is lost: nothing more is asked of
 * it. Even its memory is not freed, since that would wait for the device. */

enum {
    /* Streams besides those of queues: of zf_backend.copy to the device, and of host functions */
    ZFD_COPIES = ZFD_QUEUES,
    ZFD_HOSTED,
    ZFD_STREAMS,
    ZFD_MARKS = 64, /* launches of a stream that can be waited for one by one */
    ZFD_STAGES = 4, /* pieces of pinned memory, and the size of each */
    ZFD_STAGE = 1 << 20
};

/* A stream besides that of queue 0: its last launches, number n from 1 on at n % ZFD_MARKS, and the
 * events after each. */
typedef struct zfd_lane {
    const void *work[ZFD_MARKS]; /* zf_launch, or zfd_hosted */
    cudaEvent_t done[ZFD_MARKS];
    int64_t count; /* launches since all streams were joined */
} zfd_lane;

/* Pinned memory through which data are copied, and the event after which it is free again. */
typedef struct zfd_stage {
    unsigned char *memory;
    cudaEvent_t left;
} zfd_stage;

typedef struct zfd_cuda {
    zfd_device device; /* first, since zf_backend.self points to it */
    zf_backend backend;
    zf_allocator allocator;
    bool no_graphs;
    double deadline;                  /* zf_cuda_desc.deadline_seconds */
    bool lost;                        /* work did not end within the deadline */
    cudaStream_t copies;              /* to the device */
    cudaStream_t hosted;              /* made with the first section that needs it */
    zfd_lane lanes[ZFD_STREAMS];      /* those of queue 0 and of `copies` are not used */
    cudaEvent_t reached[ZFD_STREAMS]; /* by stream: recorded and waited for at once */
    zfd_stage stages[ZFD_STAGES];
    int64_t staged;      /* pieces that were copied so far */
    zf_run run;          /* the values that device.run holds */
    bool knows_run;      /* device.run holds them */
    zfd_fault *fault;    /* device.fault, at its address on the host */
    const zf_comm *comm; /* of collectives in flight; NULL: there are none */
    char name[128];      /* the device's name */
    char *tuning;        /* zf_cuda_desc.tuning */
    char uncaptured[320]; /* of the last section that could not be captured; "": all can be */
    char remark[720];     /* zf_program_info.remark, where it is of that and of products */
    zfd_products products;
} zfd_cuda;

static zfd_cuda *zfd_cuda_of(void *self) { return reinterpret_cast<zfd_cuda *>(self); }

/* Allocates, resizes or frees host memory by the allocator; NULL where there is none. */
static void *zfd_host_memory(const zf_allocator *a, void *memory, size_t old_size, size_t new_size)
{
    if (a->fn) return a->fn(a->user, memory, old_size, new_size);
    if (new_size) return realloc(memory, new_size);
    free(memory);
    return NULL;
}

/* Makes the calling thread use this device; an error if it is lost. */
static zf_status zfd_enter(zfd_cuda *c, zf_error *error)
{
    if (c->lost)
        return zfd_cuda_fail(error, ZF_ERR_BACKEND,
                             "device %d has not come to its end since other ranks were lost: it "
                             "takes no more work, and its memory is not freed before the process "
                             "ends",
                             c->device.number);
    return zfd_cuda_failed(error, "cudaSetDevice", cudaSetDevice(c->device.number));
}

/* ------------------------------------------------------------------------------- waiting */

static double zfd_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static zf_status zfd_kernel_failed(zf_error *error, cudaError_t code)
{
    if (code == cudaSuccess) return ZF_OK;
    (void)cudaGetLastError();
    return zfd_cuda_fail(
        error, ZF_ERR_BACKEND,
        "the device has failed: %s (zf_cuda_desc.no_graphs " ZFD_FINDER " tells in which kernel)",
        cudaGetErrorString(code));
}

/* After other ranks have failed: waits at most the device's deadline for the event. */
static void zfd_until_end(zfd_cuda *c, cudaEvent_t event)
{
    const struct timespec nap = {0, 200000};
    const double until = zfd_seconds() + c->deadline;
    while (cudaEventQuery(event) == cudaErrorNotReady && !c->lost) {
        (void)cudaGetLastError(); /* it is no error */
        nanosleep(&nap, NULL);
        c->lost = zfd_seconds() > until;
    }
    if (!c->lost) c->comm = NULL;
}

/* Waits for the event, in the stream where it was recorded last. With other ranks in flight it
 * spins for a short time, then sleeps between queries, and asks the communicator for failures. */
static zf_status zfd_until(zfd_cuda *c, cudaEvent_t event, zf_error *error)
{
    const double spinning = 1e-3, between_checks = 1e-2;
    const struct timespec nap = {0, 20000};
    double start, next;
    if (c->lost) return zfd_enter(c, error);
    if (!c->comm || !c->comm->check) return zfd_kernel_failed(error, cudaEventSynchronize(event));
    start = zfd_seconds();
    next = start + between_checks;
    for (;;) {
        cudaError_t code = cudaEventQuery(event);
        double now;
        if (code != cudaErrorNotReady) return zfd_kernel_failed(error, code);
        (void)cudaGetLastError(); /* it is no error */
        now = zfd_seconds();
        if (now > next) {
            zf_error reason = {ZF_OK, ""};
            if (c->comm->check(c->comm->self, now - start, &reason)) {
                zfd_until_end(c, event);
                return zfd_cuda_fail(error, reason.status, "%s", reason.text);
            }
            next = now + between_checks;
        }
        if (now > start + spinning) nanosleep(&nap, NULL);
    }
}

/* ------------------------------------------------------------------------------- faults */

/* An error of experts (ops/route.c, experts.c, grouped_linear.c). */
static zf_status zfd_expert_fault(const zfd_fault &f, int rank, zf_error *error)
{
    const char *name = zf_op_name((zf_op)f.op);
    const long long first = f.of ? f.element / f.of * f.of : 0;
    switch (f.kind) {
    case ZFD_FAULT_BLOCK:
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                             "%s %%%d: %lld choices of experts %lld to %lld on rank %d, %lld of them "
                             "of expert %lld, and there are %lld rows; %.2f times the mean of %g "
                             "would do",
                             name, (int)f.node, f.value, first, first + f.of - 1, rank, f.ignored,
                             f.element, f.limit, ceil((double)f.value / f.least * 100) / 100,
                             f.least);
    case ZFD_FAULT_ROUTE:
        return zfd_cuda_fail(error, ZF_ERR_NAN,
                             "route %%%d: the router's logits of token %lld have a NaN",
                             (int)f.node, f.element);
    case ZFD_FAULT_EXPERT:
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                             "%s %%%d: choice %lld is expert %lld; it must be at least 0 and less "
                             "than %lld",
                             name, (int)f.node, f.element, f.value, f.limit);
    case ZFD_FAULT_ROWS:
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                             "%s %%%d: %lld choices need as many rows, and there are %lld; expert "
                             "%lld has %lld of them",
                             name, (int)f.node, f.value, f.limit, f.element, f.ignored);
    default:
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                             "%s %%%d: expert %lld has rows %lld to %lld of %lld; bounds must "
                             "ascend",
                             name, (int)f.node, f.element, f.value, f.ignored, f.limit);
    }
}

/* The first error that kernels have reported, in the words of the CPU's kernels. */
static zf_status zfd_take_fault(zfd_cuda *c, zf_error *error)
{
    const zfd_fault f = *c->fault;
    const char *name = zf_op_name((zf_op)f.op);
    const char *words = f.op == ZF_OP_embed_norm ? "words of " : "";
    if (f.kind == ZFD_NO_FAULT) return ZF_OK;
    memset(c->fault, 0, sizeof *c->fault);
    switch (f.kind) {
    case ZFD_FAULT_ROUTE:
    case ZFD_FAULT_EXPERT:
    case ZFD_FAULT_ROWS:
    case ZFD_FAULT_BLOCK:
    case ZFD_FAULT_BOUNDS: return zfd_expert_fault(f, (int)c->run.rank, error);
    case ZFD_FAULT_SCALE:
        return zfd_cuda_fail(error, ZF_ERR_NAN,
                             "step %lld: gradients are not finite at the least loss scale, %g; "
                             "parameters and states are as they were before the step",
                             (long long)c->run.step, f.least);
    case ZFD_FAULT_LABEL:
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                             "%s %%%d: the label of row %lld is %lld; it must be at least 0 and "
                             "less than %lld, the number of classes, or %lld to be ignored",
                             name, (int)f.node, f.element, f.value, f.limit, f.ignored);
    case ZFD_FAULT_COUNT:
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                             "%s: the step, operand %lld, is %lld; it counts updates from 1, so it "
                             "must be advanced before",
                             name, f.element, f.value);
    case ZFD_FAULT_CACHE:
        if (f.value < 0 || f.ignored < 0 || f.ignored > (long long)f.least)
            return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                                 "%s %%%d: example %lld has %lld tokens in the cache and %lld new "
                                 "ones of %lld: they must not be negative, nor more than that",
                                 name, (int)f.node, f.element, f.value, f.ignored,
                                 (long long)f.least);
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                             "%s %%%d: example %lld has %lld tokens in the cache and %lld new ones, "
                             "more than the %lld for which the cache has room",
                             name, (int)f.node, f.element, f.value, f.ignored, f.limit);
    default:
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                             "%s%s %%%d: element %lld of the index is %lld; it must be at least %d "
                             "and less than %lld, the number of rows",
                             f.kind == ZFD_FAULT_TYPES ? "types of " : words, name, (int)f.node,
                             f.element, f.value, f.op == ZF_OP_distinct_rows ? -1 : 0, f.limit);
    }
}
