/* Two towers that find items for users (Yi et al. 2019): one embeds a user's last items, the other
 * an item; their product is its score. Of all items the loss sees the right one and a sample. The
 * logarithm of how often an item is sampled is subtracted from its score, which removes the bias.
 *
 *     make build/models/two_towers && build/models/two_towers 200
 */
#include "model.h"

enum { TWO_ITEMS = 23, TWO_WIDE = 8, TWO_HISTORY = 5, TWO_SAMPLED = 6 };

/* The rows of items, of length 1: their products with a user are cosines. */
static zf_tensor two_unit(zf_tensor x)
{
    const zf_tensor square = zf_sum_ex(zf_mul(x, x), &(zf_reduce_desc){.axis = -1, .keep = true});
    return zf_mul(x, zf_rsqrt(zf_add(square, zf_constant(x.graph, ZF_F32, ZF_SCALAR, 1e-6))));
}

/* The score of each item, of shape [batch, n, wide], for its user, [batch, wide]. */
static zf_tensor two_scores(zf_tensor items, zf_tensor user)
{
    const zf_shape s = zf_tensor_shape(items);
    user = zf_reshape(user, ZF_SHAPE(s.dims[0], s.dims[2], 1));
    return zf_scale(zf_reshape(zf_matmul(items, user), ZF_SHAPE(s.dims[0], s.dims[1])), 5);
}

static zf_tensor two_towers_loss(zf_graph *g, int64_t batch)
{
    const zf_nn_linear_desc wide = {.std = 0.3};
    const zf_tensor history = zf_input(g, "history", ZF_I32, ZF_SHAPE(batch, TWO_HISTORY)),
                    right = zf_input(g, "right", ZF_I32, ZF_SHAPE(batch, 1)),
                    sampled = zf_input(g, "sampled", ZF_I32, ZF_SHAPE(batch, TWO_SAMPLED));
    const zf_param_desc uniform = {.init = ZF_FILL, .value = -3, .frozen = true};
    const zf_tensor often = zf_param(g, "often", ZF_SHAPE(TWO_ITEMS), &uniform); /* logarithms */
    const zf_tensor table =
        zf_nn_embedding_table(g, "items", TWO_ITEMS, TWO_WIDE, &(zf_nn_embedding_desc){.std = 0.5});
    zf_tensor user = zf_mean_ex(zf_embedding(table, history), &(zf_reduce_desc){.axis = 1}), ids,
              items, scores, same;
    user = zf_relu(zf_nn_linear(user, "user.0", 16, &wide));
    user = zf_nn_linear(user, "user.1", TWO_WIDE, &wide);
    ids = zf_concat((zf_tensor[]){right, sampled}, 2, 1); /* the right one is class 0 */
    items = two_unit(zf_nn_linear(zf_embedding(table, ids), "item", TWO_WIDE, &wide));
    scores = zf_sub(two_scores(items, two_unit(user)), zf_gather_rows(often, ids));
    /* No negative is the right one */
    same = zf_pad(zf_cast(zf_equal(sampled, right), ZF_F32), 1, 1, 0);
    scores = zf_sub(scores, zf_scale(same, 1e4));
    return zf_scale(zf_mean(zf_slice(zf_log_softmax(scores), 1, 0, 1)), -1);
}

static const model two_towers = {"two_towers", two_towers_loss, 8, TWO_ITEMS};

MODEL_MAIN(two_towers)
