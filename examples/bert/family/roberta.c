/* RoBERTa (Liu et al. 2019), XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020): BERT
 * without next sentences, whose position embedding begins after the row of [PAD]. */
#include "../config.h"

static const char *const unwritten[] = {"max_position_embeddings", "classifier_dropout", NULL};

/* config.json counts rows of the position embedding; a text has fewer tokens. */
static void read(bert_config *c, const zf_json *json, zf_error *error)
{
    const int64_t first = c->pad + 1;
    if (c->pad < 0)
        zf_json_fail(zf_json_member(json, "pad_token_id"), error,
                     "is null; the positions of this family begin after it");
    else if (c->positions <= first)
        zf_json_expected(zf_json_member(json, "max_position_embeddings"), error,
                         "more than pad_token_id + 1 (%lld)", (long long)first);
    c->positions -= first;
}

static void write(const bert_config *c, zf_json_writer *w)
{
    zf_json_put_int_member(w, "max_position_embeddings", c->positions + c->pad + 1);
}

static zf_tensor body(zf_graph *g, const bert_config *c, const sample_shape *s, const bert_model *m,
                      zf_tensor *words)
{
    return bert_encode(g, c, s, m, words, "roberta", c->pad + 1);
}

static zf_tensor transform(zf_tensor x, const bert_config *c)
{
    x = zf_gelu(bert_linear(x, "dense", c->hidden, c));
    return zf_nn_layer_norm(x, "layer_norm", c->eps);
}

static zf_tensor classify(zf_tensor x, const bert_config *c, const bert_model *m)
{
    (void)m;
    x = zf_dropout(bert_first(x), c->classifier_dropout);
    x = zf_tanh(bert_linear(x, "classifier.dense", c->hidden, c));
    x = zf_dropout(x, c->classifier_dropout);
    return bert_linear(x, "classifier.out_proj", c->labels, c);
}

static const bert_config defaults = {BERT_DEFAULTS(2, -1), .vocab = 50265, .pad = 1};

#define ROBERTA(name)                                                                              \
    {                                                                                              \
        .class = name, .masked = name "ForMaskedLM",                                               \
        .classifier = name "ForSequenceClassification",                                            \
        .config = {.unwritten = unwritten, .defaults = &defaults}, .read = read, .write = write,   \
        .dropout = "classifier_dropout", .body = body,                                             \
        .head = {.scope = "lm_head", .decoder = "decoder", .bias = "bias"},                        \
        .transform = transform, .classify = classify, .labels = "classifier",                      \
        .two_separators = true,                                                                    \
    }

const bert_family_desc bert_roberta = ROBERTA("Roberta"),
                       bert_xlm_roberta = ROBERTA("XLMRoberta"),
                       bert_camembert = ROBERTA("Camembert");
