/* lion on CUDA (ops/lion.c), with the packs of ops/update.cu. */

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_lion_kernel(const zfd_update_job j, const zfd_update_ranges r)
{
    const double c = j.scale.data ? zfd_number_at(j.scale, 0) : 1, lr = zfd_number_at(j.lr, 0);
    const float scale = (float)c, rate = (float)lr, beta1 = (float)j.beta1,
                rest1 = (float)(1 - j.beta1), beta2 = (float)j.beta2, rest2 = (float)(1 - j.beta2);
    if (c < 0) return;
    zfd_each_update(r, j.wide, [&](const zfd_update_range &range, const zfd_update_pack &pack) {
        const float keep = (float)(1 - lr * (double)range.decay);
        float p[ZFD_TILE_PACK], g[ZFD_TILE_PACK], m[ZFD_TILE_PACK];
        if (range.index < 0) return;
        zfd_get_weights<T>(p, j, pack);
        zfd_update_get(g, static_cast<const T *>(j.g), pack);
        zfd_update_get(m, j.m, pack);
#pragma unroll
        for (int i = 0; i < ZFD_TILE_PACK; i++) {
            float d = scale * g[i], along = fmaf(beta1, m[i], rest1 * d);
            float by = along > 0 ? rate : along < 0 ? -rate : along; /* NaN stays NaN */
            m[i] = fmaf(beta2, m[i], rest2 * d);
            p[i] = fmaf(keep, p[i], -by);
        }
        zfd_update_put(j.m, pack, m);
        zfd_put_weights<T>(j, pack, p);
    });
}

static zf_status zfd_cuda_lion(const zf_launch *l)
{
    int32_t end;
    zfd_update_job j = zfd_update_job_of(l, ZF_AT_lion_scaled, &end);
    j.m = zfd_floats(&l->args[2]);
    j.lr = zfd_number_of(&l->args[3]);
    if (end > 4) j.master = zfd_floats(&l->args[4]);
    j.beta1 = ZF_FLOAT(l, lion, beta1), j.beta2 = ZF_FLOAT(l, lion, beta2);
    ZFD_FLOATS(l, l->args[0].dtype, T,
               return zfd_update_launch(l, zfd_lion_kernel<T>, ZF_AT_lion_world,
                                        ZF_FLOAT(l, lion, weight_decay), &j);)
}

ZFD_KERNEL(lion, zfd_cuda_lion, NULL)
