#include "model.h"

#include <string.h>

/* ------------------------------------------------------------------------------ configuration */

static const char *architecture_of(const void *config)
{
    return ((const bert_config *)config)->nsp ? "BertForPreTraining" : "BertForMaskedLM";
}

static void read_architecture(void *config, const char *name)
{
    ((bert_config *)config)->nsp = strcmp(name, "BertForMaskedLM") != 0;
}

/* Of poolers of the first files. */
static const char *const other_keys[] = {
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type", NULL};

#define AT(member) offsetof(bert_config, member)
const zf_config_table bert_config_table = {
    .types = {"bert"},
    .bytes = sizeof(bert_config),
    .defaults = &(const bert_config){.vocab = 30522,
                                     .positions = 512,
                                     .types = 2,
                                     .eps = 1e-12,
                                     .dropout = 0.1,
                                     .attention_dropout = 0.1,
                                     .std = 0.02,
                                     .tied = 1,
                                     .nsp = 1},
    .sizes = {{"tiny", 2, 128, 2, 0, 0},
              {"mini", 4, 256, 4, 0, 0},
              {"small", 4, 512, 8, 0, 0},
              {"medium", 8, 512, 8, 0, 0},
              {"base", 12, 768, 12, 0, 0},
              {"large", 24, 1024, 16, 0, 0}},
    .rows = {{"vocab_size", ZF_CONFIG_COUNT, .at = AT(vocab), .least = 8, .most = INT32_MAX,
              .use = ZF_CONFIG_NEEDED},
             {"hidden_size", ZF_CONFIG_COUNT, .at = AT(hidden), .least = 1, .most = 1 << 20,
              .use = ZF_CONFIG_NEEDED},
             {"num_hidden_layers", ZF_CONFIG_COUNT, .at = AT(layers), .least = 1, .most = 1 << 16,
              .use = ZF_CONFIG_NEEDED},
             {"num_attention_heads", ZF_CONFIG_COUNT, .at = AT(heads), .least = 1, .most = 1 << 16,
              .use = ZF_CONFIG_NEEDED},
             {"intermediate_size", ZF_CONFIG_COUNT, .at = AT(intermediate), .least = 1,
              .most = 1 << 22, .use = ZF_CONFIG_NEEDED},
             {"max_position_embeddings", ZF_CONFIG_COUNT, .at = AT(positions), .least = 8,
              .most = 1 << 24},
             {"type_vocab_size", ZF_CONFIG_COUNT, .at = AT(types), .least = 1, .most = 1 << 16},
             {"layer_norm_eps", ZF_CONFIG_NUMBER, .at = AT(eps), .most = 1},
             {"hidden_act", ZF_CONFIG_ACTIVATION, .at = AT(activation)},
             {"hidden_dropout_prob", ZF_CONFIG_NUMBER, .at = AT(dropout), .most = 0.999},
             {"attention_probs_dropout_prob", ZF_CONFIG_NUMBER, .at = AT(attention_dropout),
              .most = 0.999},
             {"initializer_range", ZF_CONFIG_NUMBER, .at = AT(std), .most = 10},
             {"pad_token_id", ZF_CONFIG_TOKEN, .at = AT(pad)},
             {"tie_word_embeddings", ZF_CONFIG_TRUTH, .at = AT(tied)},
             {"position_embedding_type", ZF_CONFIG_TEXT, .text = "absolute"},
             {.key = "is_decoder", .kind = ZF_CONFIG_FALSE},
             {"zeroflow_pre_layer_norm", ZF_CONFIG_TRUTH, .at = AT(pre_norm),
              .use = ZF_CONFIG_RARE},
             {"zeroflow_attention", ZF_CONFIG_BLOCKS, .at = AT(layout)}},
    .keys = other_keys,
    .vocab = AT(vocab),
    .positions = AT(positions),
    .layers = AT(layers),
    .hidden = AT(hidden),
    .heads = AT(heads),
    .intermediate = AT(intermediate),
    .tied = AT(tied),
    .pad = AT(pad),
    .dropouts = {AT(dropout), AT(attention_dropout)},
    .layout = AT(layout),
    .architecture_of = architecture_of,
    .read_architecture = read_architecture,
};

bool bert_config_load(const char *name, bert_config *c, zf_error *error)
{
    return zf_config_load(&bert_config_table, name, c, error);
}

/* -------------------------------------------------------------------------------------- graph */

/* Word, position and type embeddings, normalised: [B, T, H]. */
static zf_tensor embed(zf_graph *g, const bert_config *c, const sample_shape *s, const bert_model *m,
                       zf_tensor words)
{
    zf_nn_embedding_desc table = {.std = ZF_GIVEN(c->std)};
    zf_embedding_desc padding = {.padded = c->pad >= 0, .padding = c->pad};
    zf_tensor positions, types, x;
    zf_push(g, "embeddings");
    positions = zf_nn_embedding_table(g, "position_embeddings", c->positions, c->hidden, &table);
    types = zf_nn_embedding_table(g, "token_type_embeddings", c->types, c->hidden, &table);
    x = zf_embedding_ex(words, m->input_ids, &padding);
    x = zf_add(x, c->types > 1 ? zf_embedding(types, m->token_type_ids) : types);
    x = zf_add(x, zf_slice(positions, 0, 0, s->sequence));
    x = zf_dropout(zf_nn_layer_norm(x, "LayerNorm", c->eps), c->dropout);
    zf_pop(g);
    return x;
}

/* Added to the scores, [B, 1, 1, T]: 0 for a token; for padding so low that its softmax is 0. */
static zf_tensor mask_bias(zf_graph *g, const sample_shape *s, const bert_model *m)
{
    zf_tensor mask = zf_reshape(m->attention_mask, ZF_SHAPE(s->batch, 1, 1, s->sequence));
    return zf_where(mask, zf_constant(g, ZF_F32, ZF_SCALAR, 0),
                    zf_constant(g, ZF_F32, ZF_SCALAR, -1e9));
}

/* The masked-language head over the labelled positions: logits [P, vocab] by the word embedding, or
 * if it is not tied, by the head's own weight. */
static zf_tensor predict(zf_graph *g, const bert_config *c, const sample_shape *s,
                         const bert_model *m, zf_tensor words, zf_tensor x)
{
    zf_nn_linear_desc linear = {.std = ZF_GIVEN(c->std)};
    zf_push(g, "cls.predictions");
    x = zf_gather_rows(zf_reshape(x, ZF_SHAPE(s->batch * s->sequence, c->hidden)), m->positions);
    x = zf_nn_linear(x, "transform.dense", c->hidden, &linear);
    x = zf_nn_activation(x, (zf_activation)c->activation);
    x = zf_nn_layer_norm(x, "transform.LayerNorm", c->eps);
    if (!c->tied)
        words = zf_nn_embedding_table(g, "decoder", c->vocab, c->hidden,
                                      &(zf_nn_embedding_desc){.std = ZF_GIVEN(c->std)});
    x = zf_matmul_ex(x, words, &(zf_matmul_desc){.transpose_b = true});
    x = zf_add(x, zf_param(g, "bias", ZF_SHAPE(c->vocab), NULL));
    zf_pop(g);
    return x;
}

/* The number of labelled positions where the argmax is the label. Ignored positions have the label
 * -100, which is never the argmax. */
static zf_tensor count_correct(zf_graph *g, zf_tensor logits, zf_tensor labels)
{
    zf_tensor hit = zf_equal(zf_argmax_ex(logits, &(zf_reduce_desc){.axis = -1}), labels);
    return zf_sum(
        zf_where(hit, zf_constant(g, ZF_F32, ZF_SCALAR, 1), zf_constant(g, ZF_F32, ZF_SCALAR, 0)));
}

/* The first token of x [B, T, H] through the pooler: [B, H]. */
static zf_tensor pool(const bert_config *c, const sample_shape *s, zf_tensor x)
{
    zf_tensor first = zf_reshape(zf_slice(x, 1, 0, 1), ZF_SHAPE(s->batch, c->hidden));
    return zf_tanh(
        zf_nn_linear(first, "pooler.dense", c->hidden,
                     &(zf_nn_linear_desc){.std = ZF_GIVEN(c->std)}));
}

/* The inputs that the configuration needs. */
static bert_model inputs(zf_graph *g, const bert_config *c, const sample_shape *s)
{
    bert_model m = {.token_type_ids = {g, 0},
                    .next_sentence_label = {g, 0},
                    .nsp_weight = {g, 0},
                    .nsp_loss = {g, 0}};
    m.input_ids = zf_input(g, "input_ids", ZF_I32, ZF_SHAPE(s->batch, s->sequence));
    if (c->types > 1)
        m.token_type_ids = zf_input(g, "token_type_ids", ZF_I32, ZF_SHAPE(s->batch, s->sequence));
    m.attention_mask = zf_input(g, "attention_mask", ZF_U8, ZF_SHAPE(s->batch, s->sequence));
    m.positions = zf_input(g, "positions", ZF_I32, ZF_SHAPE(s->predictions));
    m.labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(s->predictions));
    if (c->nsp)
        m.next_sentence_label = zf_input(g, "next_sentence_label", ZF_I32, ZF_SHAPE(s->batch));
    m.mlm_weight = zf_input(g, "mlm_weight", ZF_F32, ZF_SCALAR);
    if (c->nsp) m.nsp_weight = zf_input(g, "nsp_weight", ZF_F32, ZF_SCALAR);
    m.lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    return m;
}

bert_model bert_build(zf_graph *g, const bert_config *c, const sample_shape *s, bool keep_logits)
{
    zf_nn_encoder_desc block = {.heads = c->heads,
                                .intermediate = c->intermediate,
                                .activation = (zf_activation)c->activation,
                                .dropout = c->dropout,
                                .attention_dropout = c->attention_dropout,
                                .eps = ZF_GIVEN(c->eps),
                                .std = ZF_GIVEN(c->std),
                                .pre_norm = c->pre_norm,
                                .layer_drop = s->layer_drop,
                                .blocks =
                                    zf_nn_blocks(g, c->layout, s->sequence, c->heads, false)};
    bert_model m = inputs(g, c, s);
    zf_nn_linear_desc linear = {.std = ZF_GIVEN(c->std)};
    zf_tensor words, x, bias, pooled = {g, 0};

    zf_push(g, "bert");
    zf_push(g, "embeddings");
    words = zf_nn_embedding_table(g, "word_embeddings", c->vocab, c->hidden,
                                  &(zf_nn_embedding_desc){.std = ZF_GIVEN(c->std)});
    zf_pop(g);
    x = embed(g, c, s, &m, words);
    bias = mask_bias(g, s, &m);
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "encoder.layer.%lld", (long long)i);
        block.layer_drop.layer = i, block.layer_drop.layers = c->layers;
        x = zf_nn_encoder_block(x, bias, &block);
        zf_pop(g);
    }
    if (c->pre_norm) x = zf_nn_layer_norm(x, "encoder.FinalLayerNorm", c->eps);
    if (c->nsp) pooled = pool(c, s, x);
    zf_pop(g);

    m.mlm_logits = predict(g, c, s, &m, words, x);
    if (c->nsp) pooled = zf_nn_linear(pooled, "cls.seq_relationship", 2, &linear);
    m.mlm_loss = zf_output(zf_cross_entropy(m.mlm_logits, m.labels, m.mlm_weight), "mlm_loss");
    m.loss = m.mlm_loss;
    if (c->nsp) {
        m.nsp_loss =
            zf_output(zf_cross_entropy(pooled, m.next_sentence_label, m.nsp_weight), "nsp_loss");
        m.loss = zf_add(m.nsp_loss, m.mlm_loss);
    }
    zf_output(m.loss, "loss");
    m.mlm_correct = zf_output(count_correct(g, m.mlm_logits, m.labels), "mlm_correct");
    if (keep_logits) zf_output(m.mlm_logits, "mlm_logits");
    return m;
}
