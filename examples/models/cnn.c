/* A convolutional network of separable blocks (Howard et al. 2017): each block looks at its
 * neighbourhood channel by channel, in as many groups, and then mixes channels at each place.
 * Strides make images smaller; there is no pooling but the mean at the end.
 *
 *     make build/models/cnn && build/models/cnn 200
 */
#include "model.h"

enum { CNN_SIDE = 9, CNN_COLORS = 3, CNN_WIDE = 8, CNN_CLASSES = 5 };

static zf_tensor cnn_param(zf_graph *g, const char *name, zf_shape shape)
{
    return zf_param(g, name, shape, &(zf_param_desc){.init = ZF_TRUNCATED_NORMAL, .std = 0.3});
}

/* NAME.weight [out, channels / groups, side, side] and NAME.bias [out]. */
static zf_tensor cnn_conv(zf_tensor x, const char *name, int64_t out, int64_t side,
                          const zf_conv_desc *desc)
{
    const int64_t channels = zf_tensor_shape(x).dims[1] / (desc->groups ? desc->groups : 1);
    zf_tensor weight, bias;
    zf_push(x.graph, "%s", name);
    weight = cnn_param(x.graph, "weight", ZF_SHAPE(out, channels, side, side));
    bias = cnn_param(x.graph, "bias", ZF_SHAPE(out));
    zf_pop(x.graph);
    return zf_conv2d(x, weight, bias, desc);
}

static zf_tensor cnn_block(zf_tensor x, const char *name, int64_t out, int64_t dilation)
{
    const int64_t channels = zf_tensor_shape(x).dims[1];
    const zf_conv_desc deep = {
        .padding = {dilation, dilation}, .dilation = {dilation, dilation}, .groups = channels};
    zf_push(x.graph, "%s", name);
    x = zf_relu(cnn_conv(x, "deep", channels, 3, &deep));
    x = zf_relu(cnn_conv(x, "mix", out, 1, &(zf_conv_desc){.groups = 1}));
    zf_pop(x.graph);
    return x;
}

static zf_tensor cnn_loss(zf_graph *g, int64_t batch)
{
    const zf_tensor image = zf_input(g, "image", ZF_F32,
                                     ZF_SHAPE(batch, CNN_COLORS, CNN_SIDE, CNN_SIDE)),
                    labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(batch));
    const zf_conv_desc half = {.stride = {2, 2}, .padding = {1, 1}};
    zf_tensor x = zf_relu(cnn_conv(image, "stem", CNN_WIDE, 3, &half));
    x = cnn_block(x, "block0", 2 * CNN_WIDE, 1);
    x = cnn_block(x, "block1", 2 * CNN_WIDE, 2);
    x = zf_mean_ex(zf_reshape(x, ZF_SHAPE(batch, 2 * CNN_WIDE, -1)), &(zf_reduce_desc){.axis = 2});
    x = zf_nn_linear(x, "head", CNN_CLASSES, &(zf_nn_linear_desc){.std = 0.3});
    return zf_cross_entropy(x, labels, ZF_NONE);
}

static const model cnn = {"cnn", cnn_loss, 8, CNN_CLASSES};

MODEL_MAIN(cnn)
