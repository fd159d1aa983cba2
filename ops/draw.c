/* draw: random numbers by counters, of the dtype and shape of the operand, which is not read.
 *
 *     %2 = draw %1 {form=uniform stream=3} : f32[4,8]   in [0, 1), a multiple of 2^-24
 *     %2 = draw %1 {form=normal stream=3} : f32[4,8]    mean 0, standard deviation 1
 *
 * No gradient. Element e has word slot * count + e of `stream` (cpu/random.c), keyed by the low 32
 * bits of the step and the run's seed; slot numbers the parts of the global batch. Normal numbers
 * are quantiles of it (zfi_random_normal). An evaluation draws too. */

static zf_status zfi_infer_draw(zfi_infer *c)
{
    const int64_t form = ZF_INT(c, draw, form), stream = ZF_INT(c, draw, stream);
    if (form != 0 && form != 1)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "form %lld is neither uniform (0) nor normal (1)",
                              (long long)form);
    if (stream < 0 || stream > UINT32_MAX)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "stream %lld must be 0 to 2^32 - 1",
                              (long long)stream);
    return zfi_infer_alike(c);
}

static void zfi_draw_range(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const zf_shape *whole = l->share ? &l->share->whole : &l->out.shape;
    const uint64_t start = (uint64_t)l->run->slot * (uint64_t)zf_shape_count(*whole);
    const uint32_t stream = (uint32_t)ZF_INT(l, draw, stream), step = (uint32_t)l->run->step;
    float aside[ZFI_CONVERT_RUN];
    for (int64_t i = first, n; i < last; i += n) {
        float *y = zfi_place_floats(aside, &l->out, i);
        int64_t run = last - i;
        const uint64_t at =
            start +
            (uint64_t)(l->share ? zfi_whole_element(l->share, &l->out.shape, i, &run) : i);
        n = zfi_min(zfi_min(last - i, run), ZFI_CONVERT_RUN);
        if (l->out.dtype == ZF_F64) y = aside;
        if (ZF_INT(l, draw, form))
            zfi_random_normal(isa, y, at, n, 0, 1, false, stream, step, l->run->seed);
        else zfi_random_uniform(isa, y, at, n, stream, step, l->run->seed);
        if (l->out.dtype != ZF_F64) zfi_write_floats(isa, &l->out, i, y, n);
        else
            for (int64_t k = 0; k < n; k++) ((double *)l->out.data)[i + k] = y[k];
    }
}

static zf_status zfi_cpu_draw(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, zfi_draw_range);
    return ZF_OK;
}

ZFI_OPERATOR(draw, .infer = zfi_infer_draw, .grad = zfi_grad_none, .cpu = zfi_cpu_draw,
             .functions = zfi_functions_each, .cuts = "... -> ...",
             .draws = ZFI_DRAWS_AS_RESULT,
             .traits = ZF_OP_INPLACE | ZF_OP_RANDOM | ZF_OP_READS_HALF)
