/* A recurrent network of gated units (Cho et al. 2014) that predicts the next token. zf_unstack
 * gives the steps of a sequence, and zf_stack joins the results. The gradient of the slices of all
 * steps is one concatenation, so a step costs the same in a sequence of 1000.
 *
 *     make build/models/gru && build/models/gru 200
 */
#include "model.h"

enum { GRU_TOKENS = 12, GRU_WORDS = 17, GRU_WIDE = 10 };

/* The weights of PyTorch's nn.GRU: gates r, z, n one after the other in the rows. */
static zf_tensor gru_weight(zf_graph *g, const char *name, zf_shape shape)
{
    return zf_param(g, name, shape, &(zf_param_desc){.init = ZF_UNIFORM, .low = -0.3, .high = 0.3});
}

/* r = s(a_r + b_r), z = s(a_z + b_z), n = tanh(a_n + r b_n), h = n + z (h - n), with a of the input
 * and b of the state before. */
static zf_tensor gru_cell(zf_tensor a, zf_tensor b, zf_tensor h)
{
    zf_tensor of_x[3], of_h[3], r, z, n;
    zf_split(a, -1, 3, of_x);
    zf_split(b, -1, 3, of_h);
    r = zf_sigmoid(zf_add(of_x[0], of_h[0]));
    z = zf_sigmoid(zf_add(of_x[1], of_h[1]));
    n = zf_tanh(zf_add(of_x[2], zf_mul(r, of_h[2])));
    return zf_add(n, zf_mul(z, zf_sub(h, n)));
}

/* x [batch, tokens, in] -> [batch, tokens, wide] */
static zf_tensor gru_layer(zf_tensor x, int64_t wide)
{
    zf_graph *g = x.graph;
    const zf_shape s = zf_tensor_shape(x);
    zf_tensor steps[GRU_TOKENS], h = zf_constant(g, ZF_F32, ZF_SHAPE(s.dims[0], wide), 0);
    const zf_tensor w = gru_weight(g, "weight_ih_l0", ZF_SHAPE(3 * wide, s.dims[2])),
                    u = gru_weight(g, "weight_hh_l0", ZF_SHAPE(3 * wide, wide)),
                    w0 = gru_weight(g, "bias_ih_l0", ZF_SHAPE(3 * wide)),
                    u0 = gru_weight(g, "bias_hh_l0", ZF_SHAPE(3 * wide));
    zf_unstack(zf_linear(x, w, w0), 1, GRU_TOKENS, steps); /* one product for all steps */
    for (int k = 0; k < GRU_TOKENS; k++) steps[k] = h = gru_cell(steps[k], zf_linear(h, u, u0), h);
    return zf_stack(steps, GRU_TOKENS, 1);
}

static zf_tensor gru_loss(zf_graph *g, int64_t batch)
{
    const zf_tensor ids = zf_input(g, "ids", ZF_I32, ZF_SHAPE(batch, GRU_TOKENS)),
                    labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(batch, GRU_TOKENS));
    const zf_tensor table =
        zf_nn_embedding_table(g, "embed", GRU_WORDS, 8, &(zf_nn_embedding_desc){.std = 1});
    zf_tensor x = zf_embedding(table, ids);
    zf_push(g, "gru");
    x = gru_layer(x, GRU_WIDE);
    zf_pop(g);
    x = zf_nn_linear(x, "head", GRU_WORDS, &(zf_nn_linear_desc){.std = 0.3});
    return zf_cross_entropy(zf_reshape(x, ZF_SHAPE(-1, GRU_WORDS)),
                            zf_reshape(labels, ZF_SHAPE(-1)), ZF_NONE);
}

static const model gru = {"gru", gru_loss, 8, GRU_WORDS};

MODEL_MAIN(gru)
