/* How kernels are launched, and what a launch knows of its device.
 *
 * ZFD_SHARED is the only shared memory of a kernel; it is aligned to 1024 bytes. To run kernels on
 * the CPU, tests/emulation/kernel.h replaces the macros here and in cuda/gpu.cu. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "zeroflow_cuda.cu is for compute capability 8.0 or newer: nvcc -arch=sm_80, for one"
#endif

#ifndef ZFD_LAUNCH
#define ZFD_LAUNCH(kernel, grid, block, shared, stream, ...)                                       \
    kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define ZFD_SHARED(type, name)                                                                     \
    extern __shared__ __align__(1024) unsigned char zfd_shared[];                                  \
    type *name = reinterpret_cast<type *>(zfd_shared)
#define ZFD_SMALL_TILES 0 /* tiles in global memory are small, so that tests have several */
#endif

enum {
    /* Queues of plans: 0 computes, 1 to 3 communicate, 4 and 5 copy to and from host memory. Those
     * of disks follow them, and the host's (cuda/hosted.cu) */
    ZFD_QUEUES = 6,
    ZFD_THREADS = 256, /* threads of a block, unless a kernel says otherwise */
    ZFD_WARP = 32
};

/* The first error on the device. It is in memory that the host can read. */
typedef enum zfd_fault_kind {
    ZFD_NO_FAULT,
    ZFD_FAULT_INDEX, /* `element` of the index is `value`, which is outside [0, limit) */
    ZFD_FAULT_TYPES, /* the same for embed_norm's second index */
    ZFD_FAULT_LABEL, /* label `value` of row `element`: outside [0, limit), not `ignored` */
    ZFD_FAULT_COUNT, /* the count of updates, operand `element`, is `value` */
    /* Example `element` has `value` tokens in caches of `limit`, and `ignored` new ones of
     * `least` */
    ZFD_FAULT_CACHE,
    ZFD_FAULT_ROUTE,  /* the weights of token `element` are NaN */
    ZFD_FAULT_EXPERT, /* choice `element` is expert `value`, outside [0, limit) */
    ZFD_FAULT_ROWS,   /* `value` choices for `limit` rows; expert `element` has `ignored` of them */
    ZFD_FAULT_BLOCK,  /* the same in a block of `of` experts; `least`: the mean of blocks */
    ZFD_FAULT_BOUNDS, /* expert `element` has rows `value` to `ignored` of `limit` */
    ZFD_FAULT_SCALE  /* gradients are non-finite at the loss scale `least` */
} zfd_fault_kind;

typedef struct zfd_fault {
    int kind;
    int32_t op, node;
    long long element, value, limit;
    double least;
    long long ignored, of;
} zfd_fault;

/* A device, as launches see it. */
typedef struct zfd_device {
    int number, processors;
    int shared;     /* maximum bytes of shared memory of a block */
    zfd_cores cores; /* which kernels multiply matrices, */
    bool wgmma;      /* and whether those of cuda/cores/wgmma.cu do */
    int64_t memory; /* bytes of the device's memory */
    cudaStream_t streams[ZFD_QUEUES];
    zf_run *run;      /* the zf_run of launches, in device memory */
    zfd_fault *fault; /* in host memory, at its address on the device */
    void *blas; /* of the library of products (cuda/products.cu) */
    struct zfd_products *products; /* ops/matmul.cu: plans of products */
} zfd_device;

static const zfd_device *zfd_device_of(const zf_launch *l)
{
    return static_cast<const zfd_device *>(l->backend);
}

/* Called by kernels: records `what` as the step's error, unless there is one already. */
__device__ __forceinline__ void zfd_report(zfd_fault *fault, const zfd_fault &what)
{
    if (atomicCAS(&fault->kind, (int)ZFD_NO_FAULT, what.kind) != ZFD_NO_FAULT) return;
    fault->op = what.op, fault->node = what.node;
    fault->element = what.element, fault->value = what.value, fault->limit = what.limit;
    fault->least = what.least, fault->ignored = what.ignored, fault->of = what.of;
}

static cudaStream_t zfd_stream(const zf_launch *l)
{
    const zfd_device *d = zfd_device_of(l);
    return d->streams[l->queue > 0 && l->queue < ZFD_QUEUES ? l->queue : 0];
}

/* Records the error, unless there is one; returns the status. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static zf_status zfd_cuda_fail(zf_error *error, zf_status status, const char *format, ...)
{
    va_list args;
    if (!error || error->status) return error ? error->status : status;
    error->status = status;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return status;
}

/* Makes the error of a call to the toolkit the error of the launch. */
static zf_status zfd_cuda_failed(zf_error *error, const char *what, cudaError_t code)
{
    if (code == cudaSuccess) return ZF_OK;
    (void)cudaGetLastError(); /* so that no later call reports it again */
    ZFD_NAME_CALL(what);
    return zfd_cuda_fail(error, code == cudaErrorMemoryAllocation ? ZF_ERR_NOMEM : ZF_ERR_BACKEND,
                         "%s: %s", what, cudaGetErrorString(code));
}

/* Returned by every launcher: whether its kernels could be launched. */
static zf_status zfd_launched(const zf_launch *l)
{
    char what[40];
    cudaError_t code = cudaGetLastError();
    if (code == cudaSuccess) return ZF_OK;
    snprintf(what, sizeof what, "%s %%%d", zf_launch_name(l), (int)l->node);
    return zfd_cuda_failed(l->error, what, code);
}

/* The kernel of an operator. The operator's file ends with ZFD_KERNEL(sum, run, scratch). */
typedef struct zfd_kernel {
    zf_status (*run)(const zf_launch *l);
    size_t (*scratch)(const zf_launch *l); /* bytes; NULL: none */
    /* Runs the first launches of `count` launches of the operator that follow each other, in one go
     * and to the same bits. *taken: how many; 0: the first must run alone. NULL: each runs alone */
    zf_status (*together)(const zf_launch *l, int count, int *taken);
} zfd_kernel;

template <int op> struct zfd_kernel_of {
    static constexpr zfd_kernel get() { return {NULL, NULL, NULL}; } /* there is none */
};

#define ZFD_KERNEL_TOGETHER(op, run, scratch, together)                                            \
    template <> struct zfd_kernel_of<ZF_OP_##op> {                                                 \
        static constexpr zfd_kernel get() { return {run, scratch, together}; }                     \
    };
#define ZFD_KERNEL(op, run, scratch) ZFD_KERNEL_TOGETHER(op, run, scratch, NULL)

static int64_t zfd_count(const zf_array *a) { return zf_shape_count(a->shape); }
static size_t zfd_bytes(const zf_array *a) { return (size_t)zfd_count(a) * zf_dtype_size(a->dtype); }
static int64_t zfd_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Where to write saved value `index`; NULL: it has no saved node. */
static const zf_array *zfd_saved_out(const zf_launch *l, int index)
{
    return l->saved && l->saved[index].data ? &l->saved[index] : NULL;
}

/* The number of blocks for `work` pieces: one each, but at most as many as the device runs at once;
 * then blocks loop. */
static unsigned zfd_grid(const zf_launch *l, int64_t work)
{
    int64_t most = (int64_t)zfd_device_of(l)->processors * 16;
    return (unsigned)(work < 1 ? 1 : work < most ? work : most);
}
