/* DistilBERT (Sanh et al. 2019): BERT without token types and pooler. */
#include "../config.h"

static const char *const keys[] = {"qa_dropout", /* of another task */
                                   "tie_weights_", "output_past", NULL};

/* What files of BERT call otherwise, or do not have. */
static const char *const elsewhere[] = {"hidden_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "intermediate_size",
                                        "hidden_act",
                                        "hidden_dropout_prob",
                                        "attention_probs_dropout_prob",
                                        "type_vocab_size",
                                        "layer_norm_eps",
                                        "classifier_dropout",
                                        NULL};

#define AT(member) offsetof(bert_config, member)
static const zf_config_row rows[] = {
    {"dim", ZF_CONFIG_COUNT, .at = AT(hidden), .least = 1, .most = 1 << 20,
     .use = ZF_CONFIG_NEEDED},
    {"n_layers", ZF_CONFIG_COUNT, .at = AT(layers), .least = 1, .most = 1 << 16,
     .use = ZF_CONFIG_NEEDED},
    {"n_heads", ZF_CONFIG_COUNT, .at = AT(heads), .least = 1, .most = 1 << 16,
     .use = ZF_CONFIG_NEEDED},
    {"hidden_dim", ZF_CONFIG_COUNT, .at = AT(intermediate), .least = 1, .most = 1 << 22,
     .use = ZF_CONFIG_NEEDED},
    {"activation", ZF_CONFIG_ACTIVATION, .at = AT(activation)},
    {"dropout", ZF_CONFIG_NUMBER, .at = AT(dropout), .most = 0.999},
    {"attention_dropout", ZF_CONFIG_NUMBER, .at = AT(attention_dropout), .most = 0.999},
    {"sinusoidal_pos_embds", ZF_CONFIG_TRUTH, .at = AT(sinusoids)},
    {.key = NULL}};

static const zf_nn_block_names names = {.norm = "sa_layer_norm",
                                        .q = "attention.q_lin",
                                        .k = "attention.k_lin",
                                        .v = "attention.v_lin",
                                        .out = "attention.out_lin",
                                        .feed_norm = "output_layer_norm",
                                        .up = "ffn.lin1",
                                        .down = "ffn.lin2"};

static zf_tensor embed(zf_graph *g, const bert_config *c, const sample_shape *s, const bert_model *m,
                       zf_tensor *words)
{
    const zf_embedding_desc padding = {.padded = c->pad >= 0, .padding = c->pad};
    zf_tensor positions, x;
    zf_push(g, "embeddings");
    *words = bert_words(g, "word_embeddings", c);
    positions = zf_nn_embedding_table(g, "position_embeddings", c->positions, c->hidden,
                                      &(zf_nn_embedding_desc){.std = ZF_GIVEN(c->std)});
    if (c->sinusoids) positions = zf_stop_gradient(positions);
    x = zf_add(zf_embedding_ex(*words, m->input_ids, &padding),
               zf_slice(positions, 0, 0, s->sequence));
    x = zf_dropout(zf_nn_layer_norm(x, "LayerNorm", c->eps), c->dropout);
    zf_pop(g);
    return x;
}

static zf_tensor body(zf_graph *g, const bert_config *c, const sample_shape *s, const bert_model *m,
                      zf_tensor *words)
{
    zf_nn_block_desc d = {.attention = {.heads = c->heads,
                                        .dropout = c->attention_dropout,
                                        .mask = bert_seen(m),
                                        .blocks = zf_nn_blocks(g, c->layout, s->sequence, c->heads,
                                                               false)},
                          .intermediate = c->intermediate,
                          .activation = (zf_activation)c->activation,
                          .post_norm = true,
                          .dropout = c->dropout,
                          .eps = ZF_GIVEN(c->eps),
                          .std = ZF_GIVEN(c->std),
                          .layer_drop = s->layer_drop,
                          .names = &names};
    zf_tensor x;
    zf_push(g, "distilbert");
    x = embed(g, c, s, m, words);
    d.layer_drop.layers = c->layers;
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "transformer.layer.%lld", (long long)i);
        d.layer_drop.layer = i;
        x = zf_nn_block(x, &d);
        zf_pop(g);
    }
    zf_pop(g);
    return x;
}

static zf_tensor classify(zf_tensor x, const bert_config *c, const bert_model *m)
{
    (void)m;
    x = zf_relu(bert_linear(bert_first(x), "pre_classifier", c->hidden, c));
    return bert_linear(zf_dropout(x, c->classifier_dropout), "classifier", c->labels, c);
}

const bert_family_desc bert_distilbert = {
    .class = "DistilBert",
    .masked = "DistilBertForMaskedLM",
    .classifier = "DistilBertForSequenceClassification",
    .config = {.rows = rows,
               .keys = keys,
               .optional = elsewhere,
               .unwritten = elsewhere,
               .defaults = &(const bert_config){BERT_DEFAULTS(1, 0.2), .vocab = 30522}},
    .dropout = "seq_classif_dropout",
    .body = body,
    .head = {.dense = "vocab_transform",
             .norm = "vocab_layer_norm",
             .decoder = "vocab_projector",
             .bias = "vocab_projector.bias"},
    .classify = classify,
    .labels = "pre_classifier,classifier",
};
