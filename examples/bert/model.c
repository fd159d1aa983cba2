#include "model.h"
#include "../common/config.h"
#include "masked.h"

#include <string.h>

/* ------------------------------------------------------------------------------ configuration */

static const struct {
    const char *name;
    int64_t layers, hidden, heads;
} sizes[] = {
    {"tiny", 2, 128, 2},   {"mini", 4, 256, 4},   {"small", 4, 512, 8},
    {"medium", 8, 512, 8}, {"base", 12, 768, 12}, {"large", 24, 1024, 16},
};

/* Refuses what this model computes in another way. */
static void expect_bert(const zf_json *json, zf_error *error)
{
    config_expect_plain(json, "bert", error);
    config_expect(json, "position_embedding_type", "absolute", error);
    config_expect_bool(json, "is_decoder", false, error);
    config_expect_bool(json, "add_cross_attention", false, error);
}

/* The id of [PAD], whose row of the word embedding has no gradient; null: there is none. */
static void load_pad(const zf_json *json, bert_config *c, zf_error *error)
{
    const zf_json *v = zf_json_member(json, "pad_token_id");
    if (zf_json_type_of(v) == ZF_JSON_NULL && v) c->pad = -1;
    else if (!error->status) zf_json_to_int(v, 0, c->vocab - 1, &c->pad, error);
}

/* The model that the file was made of, where it says that it has no next-sentence head. */
static void load_architecture(const zf_json *json, bert_config *c, zf_error *error)
{
    const zf_json *v = zf_json_element(config_member(json, "architectures"), 0);
    const char *name = "";
    zf_json_to_string(v, &name, error);
    c->nsp = strcmp(name, "BertForMaskedLM") != 0;
}

bool bert_config_load(const char *name, bert_config *c, zf_error *error)
{
    const zf_json *v;
    zf_json *json;
    bool tied = true;
    *c = (bert_config){.vocab = 30522,
                       .positions = 512,
                       .types = 2,
                       .eps = 1e-12,
                       .dropout = 0.1,
                       .attention_dropout = 0.1,
                       .std = 0.02,
                       .tied = 1,
                       .nsp = 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && !config_is_path(name); i++)
        if (!strcmp(name, sizes[i].name)) {
            c->layers = sizes[i].layers, c->hidden = sizes[i].hidden, c->heads = sizes[i].heads;
            c->intermediate = 4 * c->hidden;
            return true;
        }
    if (!config_is_path(name)) {
        error->status = ZF_ERR_ARGUMENT;
        snprintf(error->text, sizeof error->text,
                 "model \"%.100s\" is none of tiny, mini, small, medium, base, large, and no "
                 "config.json",
                 name);
        return false;
    }
    json = config_read(name, error);
    if (!json) return false;
    zf_json_to_int(zf_json_require(json, "vocab_size", error), 8, INT32_MAX, &c->vocab, error);
    zf_json_to_int(zf_json_require(json, "hidden_size", error), 1, 1 << 20, &c->hidden, error);
    zf_json_to_int(zf_json_require(json, "num_hidden_layers", error), 1, 1 << 16, &c->layers,
                   error);
    v = zf_json_require(json, "num_attention_heads", error);
    zf_json_to_int(v, 1, 1 << 16, &c->heads, error);
    if (!error->status && c->hidden % c->heads)
        zf_json_expected(v, error, "a divisor of hidden_size (%lld)", (long long)c->hidden);
    zf_json_to_int(zf_json_require(json, "intermediate_size", error), 1, 1 << 22, &c->intermediate,
                   error);
    zf_json_to_int(config_member(json, "max_position_embeddings"), 8, 1 << 24, &c->positions,
                   error);
    zf_json_to_int(config_member(json, "type_vocab_size"), 1, 1 << 16, &c->types, error);
    zf_json_to_double(config_member(json, "layer_norm_eps"), 0, 1, &c->eps, error);
    zf_json_to_double(config_member(json, "hidden_dropout_prob"), 0, 0.999, &c->dropout, error);
    zf_json_to_double(config_member(json, "attention_probs_dropout_prob"), 0, 0.999,
                      &c->attention_dropout, error);
    zf_json_to_double(config_member(json, "initializer_range"), 0, 10, &c->std, error);
    config_activation(json, "hidden_act", &c->activation, error);
    zf_json_to_bool(config_member(json, "tie_word_embeddings"), &tied, error);
    c->tied = tied;
    load_pad(json, c, error);
    load_architecture(json, c, error);
    expect_bert(json, error);
    zf_json_free(json);
    return !error->status;
}

zf_json_writer *bert_config_json(const bert_config *c)
{
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    zf_json_put_key(w, "architectures");
    zf_json_begin_array(w);
    zf_json_put_string(w, c->nsp ? "BertForPreTraining" : "BertForMaskedLM");
    zf_json_end(w);
    zf_json_put_key(w, "model_type"), zf_json_put_string(w, "bert");
    zf_json_put_key(w, "vocab_size"), zf_json_put_int(w, c->vocab);
    zf_json_put_key(w, "hidden_size"), zf_json_put_int(w, c->hidden);
    zf_json_put_key(w, "num_hidden_layers"), zf_json_put_int(w, c->layers);
    zf_json_put_key(w, "num_attention_heads"), zf_json_put_int(w, c->heads);
    zf_json_put_key(w, "intermediate_size"), zf_json_put_int(w, c->intermediate);
    zf_json_put_key(w, "max_position_embeddings"), zf_json_put_int(w, c->positions);
    zf_json_put_key(w, "type_vocab_size"), zf_json_put_int(w, c->types);
    zf_json_put_key(w, "layer_norm_eps"), zf_json_put_double(w, c->eps);
    zf_json_put_key(w, "hidden_act");
    zf_json_put_string(w, config_activation_name(c->activation));
    zf_json_put_key(w, "hidden_dropout_prob"), zf_json_put_double(w, c->dropout);
    zf_json_put_key(w, "attention_probs_dropout_prob"), zf_json_put_double(w, c->attention_dropout);
    zf_json_put_key(w, "initializer_range"), zf_json_put_double(w, c->std);
    zf_json_put_key(w, "pad_token_id");
    if (c->pad < 0) zf_json_put_null(w);
    else zf_json_put_int(w, c->pad);
    zf_json_put_key(w, "tie_word_embeddings"), zf_json_put_bool(w, c->tied);
    zf_json_end(w);
    return w;
}

/* -------------------------------------------------------------------------------------- graph */

/* Word, position and type embeddings, normalised: [B, T, H]. */
static zf_tensor embed(zf_graph *g, const bert_config *c, const sample_shape *s, const bert_model *m,
                       zf_tensor words)
{
    zf_nn_embedding_desc table = {.std = c->std};
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

/* Added to the scores: 0 where there is a token, so far below where there is none that its softmax
 * is 0: [B, 1, 1, T]. */
static zf_tensor mask_bias(zf_graph *g, const sample_shape *s, const bert_model *m)
{
    zf_tensor mask = zf_reshape(m->attention_mask, ZF_SHAPE(s->batch, 1, 1, s->sequence));
    return zf_where(mask, zf_constant(g, ZF_F32, ZF_SCALAR, 0),
                    zf_constant(g, ZF_F32, ZF_SCALAR, -1e9));
}

/* The masked-language head over the labelled positions: logits [P, vocab] by the word embedding, or
 * where that is not tied by a weight of the head's own. */
static zf_tensor predict(zf_graph *g, const bert_config *c, const sample_shape *s,
                         const bert_model *m, zf_tensor words, zf_tensor x)
{
    zf_nn_linear_desc linear = {.std = c->std};
    zf_push(g, "cls.predictions");
    x = zf_gather_rows(zf_reshape(x, ZF_SHAPE(s->batch * s->sequence, c->hidden)), m->positions);
    x = zf_nn_linear(x, "transform.dense", c->hidden, &linear);
    x = zf_nn_activation(x, (zf_activation)c->activation);
    x = zf_nn_layer_norm(x, "transform.LayerNorm", c->eps);
    if (!c->tied)
        words = zf_nn_embedding_table(g, "decoder", c->vocab, c->hidden,
                                      &(zf_nn_embedding_desc){.std = c->std});
    x = zf_matmul_ex(x, words, &(zf_matmul_desc){.transpose_b = true});
    x = zf_add(x, zf_param(g, "bias", ZF_SHAPE(c->vocab), NULL));
    zf_pop(g);
    return x;
}

/* Labelled positions whose best guess is the label. Ignored ones have the label -100, which no
 * guess is. */
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
        zf_nn_linear(first, "pooler.dense", c->hidden, &(zf_nn_linear_desc){.std = c->std}));
}

/* The inputs, for what the configuration has. */
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
                                .eps = c->eps,
                                .std = c->std};
    bert_model m = inputs(g, c, s);
    zf_nn_linear_desc linear = {.std = c->std};
    zf_tensor words, x, bias, pooled = {g, 0};

    zf_push(g, "bert");
    zf_push(g, "embeddings");
    words = zf_nn_embedding_table(g, "word_embeddings", c->vocab, c->hidden,
                                  &(zf_nn_embedding_desc){.std = c->std});
    zf_pop(g);
    x = embed(g, c, s, &m, words);
    bias = mask_bias(g, s, &m);
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "encoder.layer.%lld", (long long)i);
        x = zf_nn_encoder_block(x, bias, &block);
        zf_pop(g);
    }
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

/* ------------------------------------------------------------------------------ to the frame */

static bool load(const char *name, void *config, zf_error *error)
{
    return bert_config_load(name, config, error);
}

static zf_json_writer *json_of(const void *config) { return bert_config_json(config); }

static sample_facts facts(void *config)
{
    bert_config *c = config;
    return (sample_facts){.vocab = &c->vocab,
                          .positions = &c->positions,
                          .tied = &c->tied,
                          .pad = &c->pad,
                          .dropouts = {&c->dropout, &c->attention_dropout}};
}

/* A folder without next-sentence head is a model without. */
static void fit(void *config, const weights *w)
{
    ((bert_config *)config)->nsp = weights_find(w, "cls.seq_relationship.weight") >= 0;
}

static void build(zf_graph *g, const void *config, const sample_shape *shape,
                  sample_purpose purpose)
{
    bert_build(g, config, shape, purpose == SAMPLE_ANSWER);
}

/* x.LayerNorm.weight -> x.LayerNorm.gamma */
static bool older(const char *name, char *older, size_t size)
{
    const char *norm = strstr(name, "LayerNorm.");
    if (!norm) return false;
    snprintf(older, size, "%.*s%s", (int)(norm - name) + 10, name,
             strcmp(norm + 10, "weight") ? "beta" : "gamma");
    return true;
}

static const char *wrong(const settings *o)
{
    const masked_options *own = masked_options_of(o);
    if (o->init && (own->sinusoids || own->unigrams))
        return "--init has the first values: without --first-positions and --first-bias";
    if (own->unigrams && o->batch_file)
        return "--first-bias unigrams needs a text: --corpus FILE";
    return NULL;
}

const sample_model bert_sample = {
    .program = "bert",
    .title = "BERT",
    .models = "tiny mini small medium base large, or a config.json, perhaps of a folder; else that "
              "of\n"
              "                                    --load or --init, else mini",
    .otherwise = "mini",
    .config_bytes = sizeof(bert_config),
    .load = load,
    .json = json_of,
    .facts = facts,
    .fit = fit,
    .build = build,
    .exchange = {.prefix = "bert.",
                 .words = "bert.embeddings.word_embeddings.weight",
                 .head = "cls.predictions.decoder.weight",
                 .bias = "cls.predictions.bias",
                 .head_bias = "cls.predictions.decoder.bias",
                 .inside = {"embeddings.", "encoder."},
                 .heads = {"cls.", "bert.pooler."},
                 .buffers = {"embeddings.position_ids", "embeddings.token_type_ids"},
                 .older = older},
    .objective = &masked_objective,
    .first = bert_first_values,
    .wrong = wrong,
};
