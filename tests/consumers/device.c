/* A program for CUDA whose C is compiled by a C compiler: device NUMBER [ranks]. Trains a line's
 * slope there, and ends with status 0; or says why it cannot, and ends with 1. With `ranks` it is
 * the one rank of a communicator of NCCL's, where it was built with that. */
#define ZEROFLOW_IMPLEMENTATION
#include "zeroflow.h"

#include <stdlib.h>

static int fail(const char *number, const char *why)
{
    printf("device %s: %s\n", number, why);
    return 1;
}

static zf_comm *ranks(int32_t device, zf_error *error)
{
#ifdef WITH_NCCL
    return zf_nccl_comm(&(zf_nccl_desc){.device = device}, error);
#else
    (void)device;
    snprintf(error->text, sizeof error->text, "built without NCCL");
    return NULL;
#endif
}

int main(int argc, char **argv)
{
    const char *number = argc > 1 ? argv[1] : "0";
    const float x[4] = {1, 2, 3, 4}, y[4] = {2, 4, 6, 8};
    float slope = 0;
    zf_error error = {ZF_OK, ""};
    zf_comm *comm = argc > 2 ? ranks(atoi(number), &error) : NULL;
    zf_backend *cuda;
    zf_graph *g;
    zf_tensor in, want, w, off;
    zf_program *p;
    if (argc > 2 && !comm) return fail(number, error.text);
    cuda = zf_cuda_backend(&(zf_cuda_desc){.device = atoi(number)}, &error);
    if (!cuda) return fail(number, error.text);
    g = zf_graph_new(NULL);
    in = zf_input(g, "x", ZF_F32, ZF_SHAPE(4));
    want = zf_input(g, "y", ZF_F32, ZF_SHAPE(4));
    w = zf_param(g, "w", ZF_SCALAR, NULL);
    off = zf_sub(zf_mul(in, w), want);
    zf_autograd(g, zf_mean(zf_mul(off, off)));
    zf_sgd(g, zf_constant(g, ZF_F32, ZF_SCALAR, 0.05), NULL);
    p = zf_compile(g, &(zf_compile_desc){.backend = cuda, .comm = comm});
    if (!p) return fail(number, zf_graph_error(g));
    zf_write(p, in, x, sizeof x), zf_write(p, want, y, sizeof y);
    for (int step = 0; step < 50; step++)
        if (zf_step(p)) return fail(number, zf_program_error(p));
    if (zf_read(p, w, &slope, sizeof slope)) return fail(number, zf_program_error(p));
    zf_program_free(p), zf_backend_free(cuda), zf_graph_free(g), zf_comm_free(comm);
    if (!(fabsf(slope - 2) < 1e-3f)) return fail(number, "the slope is not 2");
    printf("device %s: cuda\n", number);
    return 0;
}
