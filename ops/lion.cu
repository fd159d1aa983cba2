/* lion on CUDA (ops/lion.c), with the packs of ops/update.cu. */

template <class T>
__global__ void __launch_bounds__(ZFI_THREADS)
    zfi_lion_kernel(const zfi_update_job j, const zfi_update_ranges r)
{
    const double c = j.scale.data ? zfi_number_at(j.scale, 0) : 1, lr = zfi_number_at(j.lr, 0);
    const float scale = (float)c, rate = (float)lr, beta1 = (float)j.beta1,
                rest1 = (float)(1 - j.beta1), beta2 = (float)j.beta2, rest2 = (float)(1 - j.beta2);
    if (c < 0) return;
    zfi_each_update(r, j.wide, [&](const zfi_update_range &range, const zfi_update_pack &pack) {
        const float keep = (float)(1 - lr * (double)range.decay);
        float p[ZFI_TILE_PACK], g[ZFI_TILE_PACK], m[ZFI_TILE_PACK];
        if (range.index < 0) return;
        zfi_get_weights<T>(p, j, pack);
        zfi_update_get(g, static_cast<const T *>(j.g), pack);
        zfi_update_get(m, j.m, pack);
#pragma unroll
        for (int i = 0; i < ZFI_TILE_PACK; i++) {
            float d = scale * g[i], along = fmaf(beta1, m[i], rest1 * d);
            float by = along > 0 ? rate : along < 0 ? -rate : along; /* NaN stays NaN */
            m[i] = fmaf(beta2, m[i], rest2 * d);
            p[i] = fmaf(keep, p[i], -by);
        }
        zfi_update_put(j.m, pack, m);
        zfi_put_weights<T>(j, pack, p);
    });
}

static zf_status zfi_cuda_lion(const zf_launch *l)
{
    int32_t end;
    zfi_update_job j = zfi_update_job_of(l, ZF_AT_lion_scaled, &end);
    j.m = zfi_floats(&l->args[2]);
    j.lr = zfi_number_of(&l->args[3]);
    if (end > 4) j.master = zfi_floats(&l->args[4]);
    j.beta1 = ZF_FLOAT(l, lion, beta1), j.beta2 = ZF_FLOAT(l, lion, beta2);
    ZFI_FLOATS(l, l->args[0].dtype, T,
               return zfi_update_launch(l, zfi_lion_kernel<T>, ZF_AT_lion_world,
                                        ZF_FLOAT(l, lion, weight_decay), &j);)
}

ZFI_KERNEL(lion, zfi_cuda_lion, NULL)
