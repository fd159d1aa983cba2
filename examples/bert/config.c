/* config.json of BERT and its relatives. */
#include "config.h"
#include "../frame/options/fail.h"

#include <string.h>

/* ----------------------------------------------------------------------------------- families */

/* Of poolers of the first files. */
static const char *const other_keys[] = {
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type", NULL};

static const char *const unwritten[] = {"classifier_dropout", NULL};

static zf_tensor body(zf_graph *g, const bert_config *c, const sample_shape *s, const bert_model *m,
                      zf_tensor *words)
{
    return bert_encode(g, c, s, m, words, "bert", 0);
}

static zf_tensor classify(zf_tensor x, const bert_config *c, const bert_model *m)
{
    (void)m;
    zf_push(x.graph, "bert");
    x = zf_tanh(bert_linear(bert_first(x), "pooler.dense", c->hidden, c));
    zf_pop(x.graph);
    return bert_linear(zf_dropout(x, c->classifier_dropout), "classifier", c->labels, c);
}

static const bert_family_desc bert = {.class = "Bert",
                                      .masked = "BertForMaskedLM",
                                      .classifier = "BertForSequenceClassification",
                                      .config = {.unwritten = unwritten},
                                      .dropout = "classifier_dropout",
                                      .body = body,
                                      .head = {.scope = "cls.predictions",
                                               .dense = "transform.dense",
                                               .norm = "transform.LayerNorm",
                                               .decoder = "decoder",
                                               .bias = "bias"},
                                      .classify = classify,
                                      .labels = "bert.pooler.dense,classifier"};

static const bert_family_desc *const families[BERT_FAMILIES] = {
    [BERT_BERT] = &bert,
    [BERT_ROBERTA] = &bert_roberta,
    [BERT_XLM_ROBERTA] = &bert_xlm_roberta,
    [BERT_CAMEMBERT] = &bert_camembert,
    [BERT_DISTILBERT] = &bert_distilbert,
    [BERT_MODERNBERT] = &bert_modernbert};

const bert_family_desc *bert_family_of(const bert_config *c) { return families[c->family]; }

static const zf_config_family *config_family_of(const void *config)
{
    return &bert_family_of(config)->config;
}

static const char *architecture_of(const void *config)
{
    const bert_config *c = config;
    if (c->task) return bert_family_of(c)->classifier;
    return c->nsp ? "BertForPreTraining" : bert_family_of(c)->masked;
}

static void read_architecture(void *config, const char *name)
{
    bert_config *c = config;
    c->task = strcmp(name, bert_family_of(c)->classifier) ? BERT_PREDICTS : BERT_CLASSIFIES;
    c->nsp = c->family == BERT_BERT && !c->task && strcmp(name, bert_family_of(c)->masked) != 0;
}

/* ------------------------------------------------------------------------------------- labels */

/* Adds the name of label number `at`: that of id2label, else LABEL_n. */
static bool read_name(bert_config *c, const zf_json *names, int64_t at, zf_error *error)
{
    const size_t used = strlen(c->names), room = sizeof c->names - used;
    char number[24], usual[32];
    const char *name = usual;
    size_t bytes;
    snprintf(number, sizeof number, "%lld", (long long)at);
    snprintf(usual, sizeof usual, "LABEL_%s", number);
    if (names && zf_json_to_string(zf_json_require(names, number, error), &name, error)) return false;
    bytes = strlen(name);
    if (strchr(name, '\n'))
        return zf_json_expected(zf_json_member(names, number), error, "a name without a line break"),
               false;
    if (bytes + 2 > room)
        return zf_json_fail(names, error, "has names of more than %d bytes", BERT_NAMES - 1), false;
    memcpy(c->names + used, name, bytes), memcpy(c->names + used + bytes, "\n", 2);
    return true;
}

static void read_labels(bert_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *names = zf_config_member(json, "id2label"),
                  *problem = zf_config_member(json, "problem_type");
    const char *kind = "";
    int64_t count = 2; /* of transformers, where the file says nothing */
    if (zf_json_to_int(zf_config_member(json, "num_labels"), 1, 1 << 16, &count, error) ||
        zf_json_to_string(problem, &kind, error))
        return;
    if (names) count = zf_json_length(names);
    if (!strcmp(kind, "multi_label_classification"))
        zf_json_expected(problem, error,
                         "single_label_classification or regression; several labels of a text are "
                         "not read");
    if (count < 1 && !error->status) zf_json_expected(names, error, "one label or more");
    if (count > 1 && !strcmp(kind, "regression") && !error->status)
        zf_json_fail(problem, error, "is regression with %lld labels; a text has one number",
                     (long long)count);
    if (count == 1 && !strcmp(kind, "single_label_classification") && !error->status)
        zf_json_fail(problem, error,
                     "is single_label_classification with one label, which every text would have; "
                     "regression is with one");
    c->labels = count, c->task = count == 1 ? BERT_REGRESSES : BERT_CLASSIFIES;
    for (int64_t k = 0; k < count && !error->status; k++) (void)read_name(c, names, k, error);
}

static void write_labels(const bert_config *c, zf_json_writer *w)
{
    char number[24], name[BERT_NAMES];
    const char *at = c->names;
    zf_json_put_key(w, "id2label"), zf_json_begin_object(w);
    for (int64_t k = 0; k < c->labels; k++, at += strcspn(at, "\n") + 1) {
        snprintf(number, sizeof number, "%lld", (long long)k);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "\n"), at);
        zf_json_put_text_member(w, number, name);
    }
    zf_json_end(w);
    zf_json_put_key(w, "label2id"), zf_json_begin_object(w), at = c->names;
    for (int64_t k = 0; k < c->labels; k++, at += strcspn(at, "\n") + 1) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "\n"), at);
        zf_json_put_int_member(w, name, k);
    }
    zf_json_end(w);
    zf_json_put_text_member(w, "problem_type",
                            c->task == BERT_REGRESSES ? "regression" : "single_label_classification");
}

/* ------------------------------------------------------------------------------------ the rest */

bool bert_experts_fit(const bert_config *c)
{
    return !c->experts || (c->family == BERT_BERT && c->layers <= BERT_LAYERS && c->chosen > 0 &&
                           c->chosen <= c->experts && c->intermediate % c->chosen == 0);
}

static bool read_more(void *config, const zf_json *json, zf_error *error)
{
    bert_config *c = config;
    if (c->classifier_dropout < 0) c->classifier_dropout = c->dropout;
    if (!json) return true;
    if (c->task) read_labels(c, json, error);
    if (!error->status && bert_family_of(c)->read) bert_family_of(c)->read(c, json, error);
    if (c->pre_norm && c->family != BERT_BERT && !error->status)
        zf_json_expected(zf_json_member(json, "zeroflow_pre_layer_norm"), error,
                         "false in this family");
    if (!bert_experts_fit(c) && !error->status)
        zf_json_fail(zf_json_member(json, "zeroflow_experts"), error, "is for " BERT_WITH_EXPERTS);
    return !error->status;
}

static void write_more(const void *config, zf_json_writer *w)
{
    const bert_config *c = config;
    if (c->task || c->family == BERT_DISTILBERT)
        zf_json_put_double_member(w, bert_family_of(c)->dropout, c->classifier_dropout);
    if (c->task) write_labels(c, w);
    if (bert_family_of(c)->write) bert_family_of(c)->write(c, w);
}

/* -------------------------------------------------------------------------------------- table */

#define AT(member) offsetof(bert_config, member)
const zf_config_table bert_config_table = {
    .types = {"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "modernbert"},
    .type = AT(family),
    .bytes = sizeof(bert_config),
    .defaults = &(const bert_config){BERT_DEFAULTS(2, -1), .vocab = 30522, .nsp = 1},
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
             {"classifier_dropout", ZF_CONFIG_NUMBER, .at = AT(classifier_dropout), .most = 0.999,
              .other = {"seq_classif_dropout"}},
             {"initializer_range", ZF_CONFIG_NUMBER, .at = AT(std), .most = 10},
             {"pad_token_id", ZF_CONFIG_TOKEN, .at = AT(pad)},
             {"tie_word_embeddings", ZF_CONFIG_TRUTH, .at = AT(tied)},
             {"position_embedding_type", ZF_CONFIG_TEXT, .text = "absolute"},
             {.key = "is_decoder", .kind = ZF_CONFIG_FALSE},
             {"zeroflow_pre_layer_norm", ZF_CONFIG_TRUTH, .at = AT(pre_norm),
              .use = ZF_CONFIG_RARE},
             {"zeroflow_experts", ZF_CONFIG_COUNT, .at = AT(experts), .most = 1 << 14,
              .use = ZF_CONFIG_RARE},
             {"zeroflow_experts_per_token", ZF_CONFIG_COUNT, .at = AT(chosen), .most = 64,
              .use = ZF_CONFIG_RARE},
             {"zeroflow_router_bias", ZF_CONFIG_TRUTH, .at = AT(router_bias), .use = ZF_CONFIG_RARE},
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
    .dropouts = {AT(dropout), AT(attention_dropout), AT(embedding_dropout), AT(classifier_dropout)},
    .layout = AT(layout),
    .architecture_of = architecture_of,
    .read_architecture = read_architecture,
    .family_of = config_family_of,
    .read_more = read_more,
    .write_more = write_more,
};

bool bert_config_load(const char *name, bert_config *c, zf_error *error)
{
    return zf_config_load(&bert_config_table, name, c, error);
}
