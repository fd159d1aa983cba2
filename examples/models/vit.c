/* A Vision Transformer (Dosovitskiy et al. 2021): an image is cut into patches, which are the
 * tokens of an encoder with pre-norm; the state of a learned token classifies it.
 *
 *     make build/models/vit && build/models/vit 200
 */
#include "model.h"

enum {
    VIT_SIDE = 8,
    VIT_COLORS = 3,
    VIT_PATCH = 4,
    VIT_WIDE = 12,
    VIT_CLASSES = 5,
    VIT_LAYERS = 2
};

/* [batch, colors, side, side] -> [batch, patches, colors patch patch]: no product reads pixels
 * twice, since patches do not overlap. */
static zf_tensor vit_patches(zf_tensor image)
{
    const int64_t batch = zf_tensor_shape(image).dims[0], n = VIT_SIDE / VIT_PATCH;
    image = zf_reshape(image, ZF_SHAPE(batch, VIT_COLORS, n, VIT_PATCH, n, VIT_PATCH));
    image = zf_permute(image, (int32_t[]){0, 2, 4, 1, 3, 5});
    return zf_reshape(image, ZF_SHAPE(batch, n * n, VIT_COLORS * VIT_PATCH * VIT_PATCH));
}

/* x + attention(norm(x)), then x + mlp(norm(x)). */
static zf_tensor vit_block(zf_tensor x)
{
    const zf_nn_linear_desc wide = {.std = 0.2};
    zf_tensor y = zf_nn_linear(zf_nn_layer_norm(x, "norm1", 1e-6), "qkv", 3 * VIT_WIDE, &wide);
    y = zf_attention(y, ZF_NONE, ZF_NONE, &(zf_attention_desc){.heads = 3});
    x = zf_add(x, zf_nn_linear(y, "proj", VIT_WIDE, &wide));
    y = zf_nn_linear(zf_nn_layer_norm(x, "norm2", 1e-6), "fc1", 4 * VIT_WIDE, &wide);
    return zf_add(x, zf_nn_linear(zf_gelu(y), "fc2", VIT_WIDE, &wide));
}

static zf_tensor vit_learned(zf_graph *g, const char *name, zf_shape shape)
{
    return zf_param(g, name, shape, &(zf_param_desc){.init = ZF_TRUNCATED_NORMAL, .std = 0.2});
}

static zf_tensor vit_loss(zf_graph *g, int64_t batch)
{
    const zf_tensor image = zf_input(g, "image", ZF_F32,
                                     ZF_SHAPE(batch, VIT_COLORS, VIT_SIDE, VIT_SIDE)),
                    labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(batch));
    zf_tensor x = zf_nn_linear(vit_patches(image), "embed", VIT_WIDE, NULL);
    const int64_t tokens = zf_tensor_shape(x).dims[1] + 1;
    zf_tensor token = vit_learned(g, "cls_token", ZF_SHAPE(1, 1, VIT_WIDE));
    token = zf_broadcast(token, ZF_SHAPE(batch, 1, VIT_WIDE));
    x = zf_concat((zf_tensor[]){token, x}, 2, 1);
    x = zf_add(x, vit_learned(g, "pos_embed", ZF_SHAPE(1, tokens, VIT_WIDE)));
    for (int i = 0; i < VIT_LAYERS; i++) {
        zf_push(g, "blocks.%d", i);
        x = vit_block(x);
        zf_pop(g);
    }
    x = zf_nn_layer_norm(x, "norm", 1e-6);
    x = zf_reshape(zf_slice(x, 1, 0, 1), ZF_SHAPE(batch, VIT_WIDE));
    x = zf_nn_linear(x, "head", VIT_CLASSES, &(zf_nn_linear_desc){.std = 0.2});
    return zf_cross_entropy(x, labels, ZF_NONE);
}

static const model vit = {"vit", vit_loss, 8, VIT_CLASSES};

MODEL_MAIN(vit)
