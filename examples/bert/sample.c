/* What BERT gives to the samples' frame. */
#include "masked.h"
#include "model.h"
#include "../frame/model/settings.h"

#include <string.h>

/* If a folder has no next-sentence head, neither has the model. */
static void fit(void *config, const zf_weights *w)
{
    bert_config *c = config;
    c->nsp = c->family == BERT_BERT && zf_weights_find(w, "cls.seq_relationship.weight") >= 0;
}

static void build(zf_graph *g, const void *config, const sample_shape *shape,
                  sample_purpose purpose)
{
    bert_build(g, config, shape, purpose);
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
    if (o->init && own->pre_norm)
        return "--pre-norm is for a new model: that of --init has its layers already";
    if (o->init && own->experts)
        return "--experts is for a new model: that of --init has its layers already";
    if (own->chosen > own->experts && own->experts)
        return "--top-k K: a token has at most all of --experts E";
    if (own->unigrams && o->batch_file)
        return "--first-bias unigrams needs a text: --corpus FILE";
    return NULL;
}

static void configure(void *config, const settings *o)
{
    const masked_options *own = masked_options_of(o);
    bert_config *c = config;
    if (own->pre_norm) c->pre_norm = 1;
    if (own->experts) c->experts = own->experts, c->chosen = own->chosen;
    if (own->balance_bias > 0) c->router_bias = 1;
    c->aux_loss = own->aux_loss, c->balance_bias = own->balance_bias;
}

static const char *unlike(const void *config)
{
    if (((const bert_config *)config)->experts)
        return "zeroflow_experts in config.json: its layers have experts; programs that do not read "
               "that find no weights for their products";
    return ((const bert_config *)config)->pre_norm
               ? "zeroflow_pre_layer_norm in config.json: its layers begin with LayerNorm; programs "
                 "that do not read that compute another model"
               : NULL;
}

/* Nothing is dropped: a row for each choice. */
static int64_t rows(const void *config, const settings *o, int64_t tokens)
{
    (void)o;
    return tokens * ((const bert_config *)config)->chosen;
}

static const zf_exchange of_modernbert = {.prefix = "model.",
                                          .words = "model.embeddings.tok_embeddings.weight",
                                          .head = "decoder.weight",
                                          .inside = {"embeddings.", "layers.", "final_norm."},
                                          .heads = {"decoder.", "head.", "classifier."}},
                         of_distilbert = {.prefix = "distilbert.",
                                          .words = "distilbert.embeddings.word_embeddings.weight",
                                          .head = "vocab_projector.weight",
                                          .inside = {"embeddings.", "transformer."},
                                          .heads = {"vocab_", "pre_classifier.", "classifier."},
                                          .buffers = {"embeddings.position_ids"},
                                          .next = &of_modernbert},
                         of_roberta = {.prefix = "roberta.",
                                       .words = "roberta.embeddings.word_embeddings.weight",
                                       .head = "lm_head.decoder.weight",
                                       .bias = "lm_head.bias",
                                       .head_bias = "lm_head.decoder.bias",
                                       .inside = {"embeddings.", "encoder."},
                                       .heads = {"lm_head.", "classifier."},
                                       .buffers = {"embeddings.position_ids",
                                                   "embeddings.token_type_ids"},
                                       .next = &of_distilbert};

static const zf_config_table *config(void) { return &bert_config_table; }

static const zf_exchange *exchange(void)
{
    static const zf_exchange names = {
        .prefix = "bert.",
        .words = "bert.embeddings.word_embeddings.weight",
        .head = "cls.predictions.decoder.weight",
        .bias = "cls.predictions.bias",
        .head_bias = "cls.predictions.decoder.bias",
        .inside = {"embeddings.", "encoder."},
        .heads = {"cls.", "bert.pooler.", "classifier."},
        .buffers = {"embeddings.position_ids", "embeddings.token_type_ids"},
        .older = older,
        .next = &of_roberta};
    return &names;
}

const sample_model bert_sample = {
    .program = "bert",
    .title = "BERT",
    .models = "tiny mini small medium base large, or a config.json, perhaps of a folder; else that "
              "of\n"
              "                                    --load or --init, else mini",
    .otherwise = "mini",
    .config = config,
    .fit = fit,
    .build = build,
    .exchange = exchange,
    .objective = &masked_objective,
    .first = bert_first_values,
    .wrong = wrong,
    .configure = configure,
    .unlike = unlike,
    .adapt = bert_adapt,
    .rows = rows,
};
