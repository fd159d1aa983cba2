/* A sparse autoencoder: it reconstructs what it reads from a wide code, of which few numbers are
 * not 0. The loss is the squared error of the reconstruction and a price of the code's magnitudes.
 *
 *     make build/models/autoencoder && build/models/autoencoder 200
 */
#include "model.h"

enum { AUTO_IN = 16, AUTO_CODE = 24 };

static zf_tensor autoencoder_loss(zf_graph *g, int64_t batch)
{
    const zf_nn_linear_desc wide = {.std = 0.25};
    const zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(batch, AUTO_IN));
    const zf_tensor code = zf_relu(zf_nn_linear(x, "encoder", AUTO_CODE, &wide)),
                    miss = zf_sub(zf_nn_linear(code, "decoder", AUTO_IN, &wide), x);
    return zf_add(zf_mean(zf_mul(miss, miss)), zf_scale(zf_mean(zf_abs(code)), 0.01));
}

static const model autoencoder = {"autoencoder", autoencoder_loss, 8, 2};

MODEL_MAIN(autoencoder)
