#include "model.h"

/* -------------------------------------------------------------------------------------- graph */

zf_tensor bert_linear(zf_tensor x, const char *name, int64_t out, const bert_config *c)
{
    return zf_nn_linear(x, name, out, &(zf_nn_linear_desc){.std = ZF_GIVEN(c->std)});
}

zf_tensor bert_words(zf_graph *g, const char *name, const bert_config *c)
{
    return zf_nn_embedding_table(g, name, c->vocab, c->hidden,
                                 &(zf_nn_embedding_desc){.std = ZF_GIVEN(c->std)});
}

zf_tensor bert_seen(const bert_model *m)
{
    const zf_shape s = zf_tensor_shape(m->attention_mask);
    return zf_reshape(m->attention_mask, ZF_SHAPE(s.dims[0], 1, 1, s.dims[1]));
}

zf_tensor bert_first(zf_tensor x)
{
    const zf_shape s = zf_tensor_shape(x);
    return zf_reshape(zf_slice(x, 1, 0, 1), ZF_SHAPE(s.dims[0], s.dims[2]));
}

/* Word, position and type embeddings, normalised: [B, T, H]. */
static zf_tensor embed(zf_graph *g, const bert_config *c, const sample_shape *s, const bert_model *m,
                       zf_tensor words, int64_t first)
{
    zf_nn_embedding_desc table = {.std = ZF_GIVEN(c->std)};
    zf_embedding_desc padding = {.padded = c->pad >= 0, .padding = c->pad};
    zf_tensor positions, types, x;
    zf_push(g, "embeddings");
    positions =
        zf_nn_embedding_table(g, "position_embeddings", first + c->positions, c->hidden, &table);
    types = zf_nn_embedding_table(g, "token_type_embeddings", c->types, c->hidden, &table);
    x = zf_embedding_ex(words, m->input_ids, &padding);
    x = zf_add(x, c->types > 1 ? zf_embedding(types, m->token_type_ids) : types);
    if (s->rows == SAMPLE_PACKED)
        x = zf_add(x, zf_embedding(first ? zf_slice(positions, 0, first, first + c->positions)
                                         : positions,
                                   m->places));
    else x = zf_add(x, zf_slice(positions, 0, first, first + s->sequence));
    x = zf_dropout(zf_nn_layer_norm(x, "LayerNorm", c->eps), c->dropout);
    zf_pop(g);
    return x;
}

/* Added to the scores, [B, 1, 1, T]: 0 for a token; for padding so low that its softmax is 0. */
static zf_tensor mask_bias(zf_graph *g, const bert_model *m)
{
    return zf_where(bert_seen(m), zf_constant(g, ZF_F32, ZF_SCALAR, 0),
                    zf_constant(g, ZF_F32, ZF_SCALAR, -1e9));
}

/* ------------------------------------------------------------------------------------ experts */

/* A layer of experts that costs a token what two products of `intermediate` cost. */
static zf_moe_desc experts_of(const bert_config *c)
{
    return (zf_moe_desc){.experts = c->experts,
                         .k = c->chosen,
                         .intermediate = c->experts ? c->intermediate / c->chosen : 0,
                         .activation = (zf_activation)c->activation,
                         .normalize = true,
                         .biased = c->router_bias != 0,
                         .balance = c->balance_bias > 0,
                         .std = ZF_GIVEN(c->std)};
}

/* 1 for each token, and 0 for padding; ZF_NONE: all are tokens. */
static zf_tensor tokens_of(const bert_model *m)
{
    if (!zf_valid(m->attention_mask)) return ZF_NONE;
    return zf_cast(zf_reshape(m->attention_mask, ZF_SHAPE(-1)), ZF_F32);
}

/* Outputs of how often experts are chosen, and a group for the bias of routers, which its sign
 * moves. */
static void watch_experts(zf_graph *g, const bert_config *c, const bert_model *m)
{
    const zf_param_group bias = {.params = "*.gate.e_score_correction_bias",
                                 .rate = c->balance_bias,
                                 .constant = true,
                                 .no_decay = true,
                                 .beta1 = 1e-45,
                                 .optimizer = "lion"};
    for (int64_t i = 0; i < c->layers; i++) {
        char name[40];
        snprintf(name, sizeof name, SAMPLE_EXPERTS, (long long)i);
        zf_output_ex(zf_moe_load(&m->routers[i], tokens_of(m)), name,
                     &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
    }
    if (c->balance_bias > 0) zf_param_groups(g, &bias, 1);
}

/* What routers add to the loss, which counts in a part of the batch by its share of labels. */
static zf_tensor penalty(zf_graph *g, const bert_config *c, const bert_model *m)
{
    const zf_tensor none = zf_constant(g, ZF_I32, ZF_SCALAR, -100),
                    one = zf_constant(g, ZF_F32, ZF_SCALAR, 1),
                    zero = zf_constant(g, ZF_F32, ZF_SCALAR, 0),
                    labels = zf_sum(zf_where(zf_equal(m->labels, none), zero, one)),
                    loss = zf_moe_balance_loss(m->routers, c->layers, tokens_of(m),
                                               ZF_BALANCE_LAYERS);
    return zf_mul(zf_scale(loss, c->aux_loss), zf_mul(labels, m->mlm_weight));
}

/* -------------------------------------------------------------------------------------- bodies */

zf_tensor bert_encode(zf_graph *g, const bert_config *c, const sample_shape *s, const bert_model *m,
                      zf_tensor *words, const char *scope, int64_t first)
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
    zf_moe_desc experts = experts_of(c);
    zf_tensor x, bias = ZF_NONE;
    if (c->experts) block.experts = &experts;
    zf_push(g, "%s", scope);
    zf_push(g, "embeddings");
    *words = bert_words(g, "word_embeddings", c);
    zf_pop(g);
    x = embed(g, c, s, m, *words, first);
    if (s->rows == SAMPLE_PACKED) block.documents = zf_documents(m->segments);
    else bias = mask_bias(g, m);
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "encoder.layer.%lld", (long long)i);
        block.layer_drop.layer = i, block.layer_drop.layers = c->layers;
        experts.parts = m->routers ? &m->routers[i] : NULL;
        x = zf_nn_encoder_block(x, bias, &block);
        zf_pop(g);
    }
    if (c->pre_norm) x = zf_nn_layer_norm(x, "encoder.FinalLayerNorm", c->eps);
    zf_pop(g);
    return x;
}

static zf_tensor transform(zf_tensor x, const bert_config *c)
{
    const bert_family_desc *family = bert_family_of(c);
    if (family->transform) return family->transform(x, c);
    x = bert_linear(x, family->head.dense, c->hidden, c);
    x = zf_nn_activation(x, (zf_activation)c->activation);
    return zf_nn_layer_norm(x, family->head.norm, c->eps);
}

/* The masked-language head over the labelled positions: logits [P, vocab] by the word embedding, or
 * if it is not tied, by the head's own weight. */
static zf_tensor predict(zf_graph *g, const bert_config *c, const sample_shape *s,
                         const bert_model *m, zf_tensor words, zf_tensor x)
{
    const bert_head_names *names = &bert_family_of(c)->head;
    if (names->scope) zf_push(g, "%s", names->scope);
    x = zf_gather_rows(zf_reshape(x, ZF_SHAPE(s->batch * s->sequence, c->hidden)), m->positions);
    x = transform(x, c);
    if (!c->tied) words = bert_words(g, names->decoder, c);
    x = zf_matmul_ex(x, words, &(zf_matmul_desc){.transpose_b = true});
    if (c->family != BERT_MODERNBERT || c->decoder_bias)
        x = zf_add(x, zf_param(g, names->bias, ZF_SHAPE(c->vocab), NULL));
    if (names->scope) zf_pop(g);
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
    if (s->rows == SAMPLE_PACKED) {
        m.segments = zf_input(g, "segments", ZF_I32, ZF_SHAPE(s->batch, s->sequence));
        m.places = zf_input(g, "places", ZF_I32, ZF_SHAPE(s->batch, s->sequence));
    } else
        m.attention_mask = zf_input(g, "attention_mask", ZF_U8, ZF_SHAPE(s->batch, s->sequence));
    m.lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    if (c->task) return m;
    m.positions = zf_input(g, "positions", ZF_I32, ZF_SHAPE(s->predictions));
    m.labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(s->predictions));
    if (c->nsp)
        m.next_sentence_label = zf_input(g, "next_sentence_label", ZF_I32, ZF_SHAPE(s->batch));
    m.mlm_weight = zf_input(g, "mlm_weight", ZF_F32, ZF_SCALAR);
    if (c->nsp) m.nsp_weight = zf_input(g, "nsp_weight", ZF_F32, ZF_SCALAR);
    return m;
}

static void put_sum(zf_tensor x, const char *name)
{
    zf_output_ex(zf_sum(x), name, &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
}

/* The mean of losses over texts, and sums of what was right, or of distances. */
static zf_tensor judge(zf_graph *g, const bert_config *c, const sample_shape *s, bert_model *m)
{
    const bool regresses = c->task == BERT_REGRESSES;
    zf_tensor best, miss;
    m->text_labels = zf_input(g, "text_labels", regresses ? ZF_F32 : ZF_I32, ZF_SHAPE(s->batch));
    m->text_weight = zf_input(g, "text_weight", ZF_F32, ZF_SCALAR);
    if (!regresses) {
        best = zf_argmax_ex(m->scores, &(zf_reduce_desc){.axis = -1});
        put_sum(zf_cast(zf_equal(best, m->text_labels), ZF_F32), "accurate");
        return zf_cross_entropy(m->scores, m->text_labels, m->text_weight);
    }
    m->text_there = zf_input(g, "text_there", ZF_F32, ZF_SHAPE(s->batch));
    miss = zf_sub(zf_reshape(m->scores, ZF_SHAPE(s->batch)), m->text_labels);
    miss = zf_mul(miss, m->text_there);
    put_sum(zf_abs(miss), "distance");
    return zf_mul(m->text_weight, zf_sum(zf_mul(miss, miss)));
}

/* The model with labels, of which `states` are those of all tokens. */
static bert_model build_labels(zf_graph *g, const bert_config *c, const sample_shape *s,
                               bert_model m, zf_tensor states, bool keep_scores)
{
    m.scores = bert_family_of(c)->classify(states, c, &m);
    if (keep_scores) zf_output(m.scores, "scores");
    else
        m.loss = zf_output_ex(judge(g, c, s, &m), "loss",
                              &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
    return m;
}

bert_model bert_build(zf_graph *g, const bert_config *c, const sample_shape *s,
                      sample_purpose purpose)
{
    const bool keep_logits = purpose == SAMPLE_ANSWER;
    bert_model m = inputs(g, c, s);
    zf_moe_parts routers[BERT_LAYERS];
    zf_tensor words, x, pooled = {g, 0};
    m.routers = c->experts ? routers : NULL;
    x = bert_family_of(c)->body(g, c, s, &m, &words);
    if (c->task) return build_labels(g, c, s, m, x, keep_logits);
    if (c->nsp) {
        zf_push(g, "bert");
        pooled = zf_tanh(bert_linear(bert_first(x), "pooler.dense", c->hidden, c));
        zf_pop(g);
    }
    m.mlm_logits = predict(g, c, s, &m, words, x);
    if (c->nsp) pooled = bert_linear(pooled, "cls.seq_relationship", 2, c);
    m.mlm_loss = zf_output(zf_cross_entropy(m.mlm_logits, m.labels, m.mlm_weight), "mlm_loss");
    m.loss = m.mlm_loss;
    if (c->nsp) {
        m.nsp_loss =
            zf_output(zf_cross_entropy(pooled, m.next_sentence_label, m.nsp_weight), "nsp_loss");
        m.loss = zf_add(m.nsp_loss, m.mlm_loss);
    }
    if (m.routers && c->aux_loss > 0) m.loss = zf_add(m.loss, penalty(g, c, &m));
    if (m.routers && purpose == SAMPLE_TRAIN) watch_experts(g, c, &m);
    m.routers = NULL;
    zf_output(m.loss, "loss");
    m.mlm_correct = zf_output(count_correct(g, m.mlm_logits, m.labels), "mlm_correct");
    if (keep_logits) zf_output(m.mlm_logits, "mlm_logits");
    return m;
}
