/* Pictures and their captions (CLIP, Radford et al. 2021): two towers give each a vector of length
 * 1, and a loss pulls those of a pair together and all others of the batch apart. A rank has a part
 * of the PAIRS pairs of a batch; zf_all_gather brings it the vectors of the others, which are its
 * negatives. Gradients flow back to the ranks that made them.
 *
 *     make build/models/clip && build/models/clip 200
 */
#include "model.h"

enum { CLIP_PAIRS = 8, CLIP_WORDS = 19, CLIP_TOKENS = 6, CLIP_WIDE = 12, CLIP_VECTOR = 8 };

static zf_tensor clip_param(zf_graph *g, const char *name, zf_shape shape)
{
    return zf_param(g, name, shape, &(zf_param_desc){.init = ZF_TRUNCATED_NORMAL, .std = 0.3});
}

/* The rows of x, of length 1. */
static zf_tensor clip_unit(zf_tensor x)
{
    const zf_tensor square = zf_sum_ex(zf_mul(x, x), &(zf_reduce_desc){.axis = -1, .keep = true});
    return zf_mul(x, zf_rsqrt(zf_add(square, zf_constant(x.graph, ZF_F32, ZF_SCALAR, 1e-6))));
}

/* [batch, 3, 8, 8] to vectors: a convolution of patches, the mean over them, a projection. */
static zf_tensor clip_picture(zf_tensor picture)
{
    const int64_t batch = zf_tensor_shape(picture).dims[0];
    const zf_tensor weight =
                        clip_param(picture.graph, "pixels.weight", ZF_SHAPE(CLIP_WIDE, 3, 4, 4)),
                    bias = clip_param(picture.graph, "pixels.bias", ZF_SHAPE(CLIP_WIDE));
    zf_tensor x = zf_gelu(zf_conv2d(picture, weight, bias, &(zf_conv_desc){.stride = {4, 4}}));
    x = zf_mean_ex(zf_reshape(x, ZF_SHAPE(batch, CLIP_WIDE, -1)), &(zf_reduce_desc){.axis = -1});
    return clip_unit(zf_nn_linear(x, "picture", CLIP_VECTOR, NULL));
}

/* [batch, tokens] to vectors: words and places, the mean over them, a projection. */
static zf_tensor clip_caption(zf_tensor caption)
{
    zf_tensor x = zf_embedding(zf_nn_embedding_table(caption.graph, "words", CLIP_WORDS, CLIP_WIDE,
                                                     &(zf_nn_embedding_desc){.std = 0.5}),
                               caption);
    x = zf_add(x, clip_param(x.graph, "places", ZF_SHAPE(CLIP_TOKENS, CLIP_WIDE)));
    x = zf_mean_ex(zf_gelu(x), &(zf_reduce_desc){.axis = 1});
    return clip_unit(zf_nn_linear(x, "caption", CLIP_VECTOR, NULL));
}

/* The cross entropy of each of `mine`, whose pair is the same row of `others`, among the vectors of
 * all ranks. */
static zf_tensor clip_side(zf_tensor mine, zf_tensor others, zf_tensor scale, int64_t ranks)
{
    const zf_tensor all = zf_all_gather(others, ranks),
                    scores = zf_matmul_ex(mine, all, &(zf_matmul_desc){.transpose_b = true}),
                    right = zf_sum_ex(zf_mul(mine, others), &(zf_reduce_desc){.axis = -1});
    return zf_mean(zf_sub(zf_logsumexp(zf_mul(scores, scale)), zf_mul(right, scale)));
}

/* The mean over `batch` pairs of a rank: the mean of those of all ranks is that of the batch. */
static zf_tensor clip_loss(zf_graph *g, int64_t batch)
{
    const int64_t ranks = CLIP_PAIRS / batch;
    const zf_tensor picture =
                        clip_picture(zf_input(g, "picture", ZF_F32, ZF_SHAPE(batch, 3, 8, 8))),
                    caption =
                        clip_caption(zf_input(g, "caption", ZF_I32, ZF_SHAPE(batch, CLIP_TOKENS)));
    const zf_param_desc at = {.init = ZF_FILL, .value = 2.6592600369327783}; /* log(1 / 0.07) */
    const zf_tensor scale = zf_exp(zf_param(g, "logit_scale", ZF_SCALAR, &at));
    return zf_scale(zf_add(clip_side(picture, caption, scale, ranks),
                           clip_side(caption, picture, scale, ranks)),
                    0.5);
}

static const model clip = {"clip", clip_loss, CLIP_PAIRS, CLIP_WORDS};

MODEL_MAIN(clip)
