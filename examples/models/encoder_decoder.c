/* A transformer that translates (Vaswani et al. 2017): each layer of the decoder looks at the words
 * before, then at the encoder's states. Norms come before each part.
 *
 *     make build/models/encoder_decoder && build/models/encoder_decoder 200
 */
#include "model.h"

enum { MT_SOURCE = 7, MT_TARGET = 6, MT_WORDS = 19, MT_WIDE = 12, MT_HEADS = 2, MT_LAYERS = 2 };

static const zf_nn_linear_desc mt_std = {.std = 0.2};

/* Layers over words; with `memory`, the states of the encoder, those of the decoder. */
static zf_tensor mt_stack(zf_graph *g, const char *name, const char *words, int64_t batch,
                          int64_t tokens, zf_tensor memory)
{
    const zf_nn_embedding_desc std = {.std = 0.5};
    const zf_nn_block_desc block = {
        .attention = {.heads = MT_HEADS, .causal = memory.graph != NULL},
        .memory = memory,
        .activation = ZF_ACTIVATION_RELU,
        .std = 0.2};
    zf_tensor ids = zf_input(g, words, ZF_I32, ZF_SHAPE(batch, tokens)), x;
    zf_push(g, "%s", name);
    x = zf_add(zf_embedding(zf_nn_embedding_table(g, "words", MT_WORDS, MT_WIDE, &std), ids),
               zf_nn_embedding_table(g, "places", tokens, MT_WIDE, &std));
    for (int i = 0; i < MT_LAYERS; i++) {
        zf_push(g, "layers.%d", i);
        x = zf_nn_block(x, &block);
        zf_pop(g);
    }
    x = zf_nn_layer_norm(x, "norm", 1e-5);
    zf_pop(g);
    return x;
}

static zf_tensor encoder_decoder_loss(zf_graph *g, int64_t batch)
{
    const zf_tensor memory = mt_stack(g, "encoder", "source", batch, MT_SOURCE, ZF_NONE);
    zf_tensor x = mt_stack(g, "decoder", "target", batch, MT_TARGET, memory);
    const zf_tensor labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(batch, MT_TARGET));
    x = zf_nn_linear(x, "head", MT_WORDS, &mt_std);
    return zf_cross_entropy(zf_reshape(x, ZF_SHAPE(-1, MT_WORDS)), zf_reshape(labels, ZF_SHAPE(-1)),
                            ZF_NONE);
}

static const model encoder_decoder = {"encoder_decoder", encoder_decoder_loss, 8, MT_WORDS};

MODEL_MAIN(encoder_decoder)
