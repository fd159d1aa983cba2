/* A small diffusion model (Ho et al. 2020): data is mixed with noise by the angle of a time, cos(a)
 * x + sin(a) noise (the cosine schedule of Nichol & Dhariwal 2021 without its offset). A perceptron
 * that gets the time as sines and cosines predicts the noise.
 *
 *     make build/models/diffusion && build/models/diffusion 400
 */
#include "model.h"

enum { DIFFUSION_IN = 8, DIFFUSION_TIMES = 50, DIFFUSION_WAVES = 6, DIFFUSION_WIDE = 32 };

/* [batch] times in 0..1 -> [batch, 2 waves]: sin and cos of times 1, 2, 4, ... */
static zf_tensor diffusion_time(zf_tensor t)
{
    const int64_t batch = zf_tensor_shape(t).dims[0];
    double speeds[DIFFUSION_WAVES];
    zf_tensor angle;
    for (int i = 0; i < DIFFUSION_WAVES; i++) speeds[i] = i ? 2 * speeds[i - 1] : 1;
    angle = zf_mul(zf_reshape(t, ZF_SHAPE(batch, 1)),
                   zf_values(t.graph, ZF_F32, ZF_SHAPE(DIFFUSION_WAVES), speeds));
    return zf_concat((zf_tensor[]){zf_sin(angle), zf_cos(angle)}, 2, 1);
}

static zf_tensor diffusion_loss(zf_graph *g, int64_t batch)
{
    const double half_pi = 1.57079632679489661923;
    const zf_nn_linear_desc wide = {.std = 0.25};
    const zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(batch, DIFFUSION_IN)),
                    noise = zf_input(g, "noise", ZF_F32, ZF_SHAPE(batch, DIFFUSION_IN)),
                    step = zf_input(g, "time", ZF_I32, ZF_SHAPE(batch));
    const zf_tensor t = zf_scale(zf_cast(step, ZF_F32), 1.0 / DIFFUSION_TIMES),
                    angle = zf_reshape(zf_scale(t, half_pi), ZF_SHAPE(batch, 1)),
                    mixed = zf_add(zf_mul(zf_cos(angle), x), zf_mul(zf_sin(angle), noise));
    zf_tensor h = zf_concat((zf_tensor[]){mixed, diffusion_time(t)}, 2, 1), miss;
    for (int i = 0; i < 2; i++) {
        char name[16];
        snprintf(name, sizeof name, "hidden.%d", i);
        h = zf_silu(zf_nn_linear(h, name, DIFFUSION_WIDE, &wide));
    }
    miss = zf_sub(zf_nn_linear(h, "noise_of", DIFFUSION_IN, &wide), noise);
    return zf_mean(zf_mul(miss, miss));
}

static const model diffusion = {"diffusion", diffusion_loss, 8, DIFFUSION_TIMES};

MODEL_MAIN(diffusion)
