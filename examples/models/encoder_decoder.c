/* A transformer that translates (Vaswani et al. 2017): each layer of the decoder looks at the words
 * before, then at the encoder's states. Norms come before each part.
 *
 *     make build/models/encoder_decoder && build/models/encoder_decoder 200
 */
#include "model.h"

enum { MT_SOURCE = 7, MT_TARGET = 6, MT_WORDS = 19, MT_WIDE = 12, MT_HEADS = 2, MT_LAYERS = 2 };

static const zf_nn_linear_desc mt_std = {.std = 0.2};

/* x + attention of norm(x) to `memory`, or to itself (ZF_NONE). */
static zf_tensor mt_attend(zf_tensor x, const char *name, zf_tensor memory, bool causal)
{
    zf_tensor q, k, v;
    zf_push(x.graph, "%s", name);
    q = zf_nn_layer_norm(x, "norm", 1e-5);
    if (!memory.graph) memory = q;
    k = zf_nn_linear(memory, "k", MT_WIDE, &mt_std);
    v = zf_nn_linear(memory, "v", MT_WIDE, &mt_std);
    q = zf_attention(zf_nn_linear(q, "q", MT_WIDE, &mt_std), k, v,
                     &(zf_attention_desc){.heads = MT_HEADS, .causal = causal});
    x = zf_add(x, zf_nn_linear(q, "out", MT_WIDE, &mt_std));
    zf_pop(x.graph);
    return x;
}

static zf_tensor mt_feed(zf_tensor x)
{
    zf_tensor y = zf_nn_layer_norm(x, "norm", 1e-5);
    y = zf_relu(zf_nn_linear(y, "fc1", 4 * MT_WIDE, &mt_std));
    return zf_add(x, zf_nn_linear(y, "fc2", MT_WIDE, &mt_std));
}

/* Layers over words; with `memory`, the states of the encoder, those of the decoder. */
static zf_tensor mt_stack(zf_graph *g, const char *name, const char *words, int64_t batch,
                          int64_t tokens, zf_tensor memory)
{
    const zf_nn_embedding_desc std = {.std = 0.5};
    zf_tensor ids = zf_input(g, words, ZF_I32, ZF_SHAPE(batch, tokens)), x;
    zf_push(g, "%s", name);
    x = zf_add(zf_embedding(zf_nn_embedding_table(g, "words", MT_WORDS, MT_WIDE, &std), ids),
               zf_nn_embedding_table(g, "places", tokens, MT_WIDE, &std));
    for (int i = 0; i < MT_LAYERS; i++) {
        zf_push(g, "layers.%d", i);
        x = mt_attend(x, "self", ZF_NONE, memory.graph != NULL);
        if (memory.graph) x = mt_attend(x, "cross", memory, false);
        x = mt_feed(x);
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
