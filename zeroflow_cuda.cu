/* zeroflow on CUDA and HIP: zf_cuda_backend (zeroflow.h), for the operators that training uses, in
 * f32, bf16 and f16.
 *
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -c zeroflow_cuda.cu
 *     cc ... zeroflow_cuda.o -lcublasLt -lcudart -lstdc++
 *
 *     hipcc -O3 -ffp-contract=off --offload-arch=gfx90a -x hip -c zeroflow_cuda.cu
 *     cc ... zeroflow_cuda.o -lamdhip64 -lstdc++
 *
 * This file uses only the public header. Kernels are with their operators, ops/NAME.cu next to
 * ops/NAME.c. Each states its order of additions, so that every run has the same bits. A launcher
 * zfd_cuda_OP has the signature of a CPU kernel, and puts its kernels on the stream of the launch's
 * queue. Private names begin with zfd_ or ZFD_, those of the library with zfi_ or ZFI_
 * (tests/house/names.sh). */
#include "zeroflow.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <type_traits>

#include "cuda/gpu.cu"
#include "cuda/launch.cu"
#include "cuda/element.cu"
#include "cuda/reduce.cu"
#include "cuda/random.cu"
#if ZFD_HAS_MMA
#include "cuda/cores/mma.cu"
#include "cuda/cores/wgmma.cu"
#endif
#if ZFD_HAS_PLAIN
#include "cuda/cores/waves.cu"
#endif
#include "cuda/ranks.cu"
#include "ops/binary.cu"
#include "ops/unary.cu"
#include "ops/softplus.cu"
#include "ops/swiglu.cu"
#include "ops/move.cu"
#include "ops/part.cu"
#include "ops/layer_drop.cu"
#include "ops/activation_grad.cu"
#include "ops/reduce.cu"
#include "ops/repeat.cu"
#include "ops/squares.cu"
#include "ops/rows.cu"
#include "ops/lazy_rows.cu"
#include "ops/conv.cu"
#include "ops/along.cu"
#include "cpu/normal.c"
#include "ops/draw.cu"
#include "ops/norm.cu"
#include "ops/rope.cu"
#include "ops/loss.cu"
#include "ops/bucket.cu"
#include "ops/collective.cu"
#include "ops/copy.cu"
#include "ops/quantize.cu"
#include "ops/scaler.cu"
#include "ops/update.cu"
#include "ops/lion.cu"
#include "ops/sign.cu"
#include "ops/variance.cu"
#include "cuda/products.cu"
#if defined(__HIP__)
#include "cuda/hip/blas.cu"
#else
#include "cuda/cublas.cu"
#endif
#include "ops/matmul.cu"
#include "ops/linear.cu"
#include "ops/quantized_linear.cu"
#include "ops/head.cu"
#include "ops/head_part.cu"
#include "ops/fused_norm.cu"
#include "ops/fused_softmax.cu"
#include "ops/documents.cu"
#include "ops/route.cu"
#include "ops/experts.cu"
#include "ops/grouped_linear.cu"
#include "ops/block_mask.cu"
#include "ops/attention.cu"
#include "ops/attention_plain.cu"
#if ZFD_HAS_PLAIN
#include "ops/attention_waves.cu"
#endif
#if ZFD_HAS_MMA
#include "ops/attention_mma.cu"
#include "ops/attention_sm90.cu"
#include "ops/attention_grad_sm90.cu"
#endif
#include "ops/attention_launch.cu"
#include "ops/attention_join.cu"
#include "ops/cache.cu"
#include "ops/chain.cu"
#include "ops/table.cu"
#include "cuda/device.cu"
#include "cuda/memory.cu"
#include "cuda/queue.cu"
#include "cuda/hosted.cu"
#include "cuda/section.cu"
#if defined(__HIP__)
#include "cuda/hip/driver.cu"
#else
#include "cuda/driver.cu"
#endif
#include "cuda/open.cu"

/* The operator counts in f64 what is added exactly, or moves numbers. */
static bool zfd_takes_f64(zf_op op)
{
    return op == ZF_OP_squares || op == ZF_OP_norm_of_squares || op == ZF_OP_pack ||
           op == ZF_OP_view || op == ZF_OP_copy || zf_op_traits_of(op) & ZF_OP_COLLECTIVE;
}

/* Checks that the node can run: it has a kernel, dtypes for which kernels exist, and, for a
 * collective, a communicator that works on streams. */
static zf_status zfd_cuda_check(void *self, const zf_launch *l)
{
    bool wide = l->out.dtype == ZF_F64;
    (void)self;
    if (l->op == ZF_OP_wait) return ZF_OK;
    if (!zfd_kernel_for(l)) return zfd_no_kernel(l);
    for (int32_t k = 0; k < l->arg_count; k++) wide |= l->args[k].dtype == ZF_F64;
    if (wide && !zfd_takes_f64(l->op))
        return zfd_cuda_fail(l->error, ZF_ERR_BACKEND,
                             "%s %%%d: there is no f64 on " ZFD_GPU ", but f32, bf16 and f16; the "
                             "CPU backend has it",
                             zf_launch_name(l), (int)l->node);
    if (zfd_is_among_ranks(l) && l->comm && !l->comm->check)
        return zfd_cuda_fail(l->error, ZF_ERR_BACKEND,
                             "%s %%%d: the communicator (zf_compile_desc.comm) works in host "
                             "memory; a " ZFD_GPU " backend needs one that works on streams",
                             zf_launch_name(l), (int)l->node);
    return ZF_OK;
}

static const char *zfd_cuda_remark(void *self)
{
    zfd_cuda *c = zfd_cuda_of(self);
    const char *products = c->products.remark;
    if (!c->uncaptured[0]) return products;
    snprintf(c->remark, sizeof c->remark, "%s%s%s", c->uncaptured, *products ? "; " : "", products);
    return c->remark;
}

static size_t zfd_cuda_scratch(void *self, const zf_launch *l)
{
    const zfd_kernel *kernel = zfd_kernel_for(l);
    if (!kernel || !kernel->scratch) return 0;
    (void)zfd_enter(zfd_cuda_of(self), NULL); /* products find their algorithms on it */
    return kernel->scratch(l);
}

ZF_API zf_backend *zf_cuda_backend(const zf_cuda_desc *desc, zf_error *error)
{
    zf_cuda_desc d = {0, false, false, NULL, 0, 0, {NULL, NULL}};
    zfd_cuda *c;
    if (desc) d = *desc;
    if (d.deadline_seconds == 0) d.deadline_seconds = 60;
    if (!(d.deadline_seconds > 0)) {
        zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                      "zf_cuda_backend: deadline_seconds is %g; it must be positive, or 0 for 60",
                      d.deadline_seconds);
        return NULL;
    }
    if (zfd_check_settings(&d, error) || zfd_find_device(d.device, error)) return NULL;
    c = static_cast<zfd_cuda *>(zfd_host_memory(&d.allocator, NULL, 0, sizeof *c));
    if (!c) {
        zfd_cuda_fail(error, ZF_ERR_NOMEM, "out of memory");
        return NULL;
    }
    memset(c, 0, sizeof *c);
    c->allocator = d.allocator;
    c->device.number = d.device;
    c->no_graphs = d.no_graphs;
    c->deadline = d.deadline_seconds;
    c->backend.name = ZFD_BACKEND, c->backend.self = c;
    c->backend.allocate = zfd_cuda_allocate, c->backend.release = zfd_cuda_release;
    c->backend.allocate_host = zfd_cuda_allocate_host;
    c->backend.release_host = zfd_cuda_release_host;
    c->backend.copy = zfd_cuda_copy;
    c->backend.scratch = zfd_cuda_scratch;
    c->backend.queues = zfd_cuda_queues;
    c->backend.launch = zfd_cuda_launch, c->backend.wait = zfd_cuda_wait;
    c->backend.synchronize = zfd_cuda_synchronize;
    c->backend.check = zfd_cuda_check;
    c->backend.run = zfd_cuda_run, c->backend.forget = zfd_cuda_forget;
    c->backend.remark = zfd_cuda_remark;
    c->backend.destroy = zfd_cuda_destroy;
    if (zfd_open(c, &d, error)) {
        zfd_cuda_destroy(c);
        return NULL;
    }
    return &c->backend;
}

ZF_API void *zf_cuda_stream(const zf_backend *cuda, int32_t queue)
{
    return queue >= 0 && queue < ZFD_QUEUES ? zfd_cuda_of(cuda->self)->device.streams[queue] : NULL;
}
