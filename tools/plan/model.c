/* The models of zf-plan: those of the samples, by a config.json or by sizes. */
#include "plan.h"
#include "../../examples/bert/model.h"
#include "../../examples/frame/options/fail.h"
#include "../../examples/gpt/model.h"
#include "../../examples/llm/model.h"
#include "../../examples/opt/model.h"

#include <string.h>

static const sample_model *const samples[] = {&bert_sample, &gpt_sample, &opt_sample, &llm_sample};

enum { SAMPLES = sizeof samples / sizeof samples[0] };

/* ------------------------------------------------------------------------------------ by sizes */

static gpt_config gpt_of(const options *o)
{
    return (gpt_config){.vocab = o->vocab,
                        .positions = o->positions ? o->positions : o->seq,
                        .hidden = o->hidden,
                        .layers = o->layers,
                        .heads = o->heads,
                        .intermediate = 4 * o->hidden,
                        .activation = ZF_ACTIVATION_GELU_TANH,
                        .eps = 1e-5,
                        .embedding_dropout = 0.1,
                        .attention_dropout = 0.1,
                        .residual_dropout = 0.1,
                        .std = 0.02,
                        .tied = 1};
}

static bert_config bert_of(const options *o)
{
    const int64_t longest = o->positions ? o->positions : o->seq;
    return (bert_config){.vocab = o->vocab,
                         .hidden = o->hidden,
                         .layers = o->layers,
                         .heads = o->heads,
                         .intermediate = 4 * o->hidden,
                         .positions = longest > 512 ? longest : 512,
                         .types = 2,
                         .eps = 1e-12,
                         .dropout = 0.1,
                         .attention_dropout = 0.1,
                         .std = 0.02,
                         .pad = -1,
                         .tied = 1,
                         .nsp = 1,
                         .pre_norm = o->recipe};
}

static void set_sizes(options *o)
{
    const gpt_config gpt = gpt_of(o);
    const bert_config bert = bert_of(o);
    char *layout;
    o->sample = o->gpt ? &gpt_sample : &bert_sample;
    if (o->gpt) memcpy(&o->model, &gpt, sizeof gpt);
    else memcpy(&o->model, &bert, sizeof bert);
    layout = zf_config_facts_of(o->sample->config(), &o->model).layout;
    snprintf(layout, ZF_CONFIG_LAYOUT, "%s", o->attention);
}

/* ------------------------------------------------------------------------------ by config.json */

static bool knows(const sample_model *sample, const char *type)
{
    for (int k = 0; k < ZF_CONFIG_TYPES && sample->config()->types[k]; k++)
        if (!strcmp(sample->config()->types[k], type)) return true;
    return false;
}

/* Sets the sample whose models have such a model_type. */
static bool find_sample(options *o, const zf_json *json, zf_error *error)
{
    const zf_json *v = zf_config_member(json, "model_type");
    const char *type = NULL;
    char names[400] = "";
    if (!v)
        return fail(error, ZF_ERR_FORMAT, "%s has no model_type, by which a kind of model is known",
                    o->config);
    if (zf_json_to_string(v, &type, error)) return false;
    for (int s = 0; s < SAMPLES; s++)
        for (int k = 0; k < ZF_CONFIG_TYPES && samples[s]->config()->types[k]; k++) {
            const size_t at = strlen(names);
            snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "",
                     samples[s]->config()->types[k]);
        }
    o->sample = NULL;
    for (int s = 0; s < SAMPLES; s++)
        if (knows(samples[s], type)) o->sample = samples[s];
    return o->sample || (zf_json_expected(v, error, "one of %s", names), false);
}

static bool read_config(options *o, zf_error *error)
{
    char path[1024];
    zf_json *json;
    bool good;
    snprintf(path, sizeof path, "%s%s", o->config, zf_folder_is(o->config) ? "/config.json" : "");
    if (!(json = zf_json_read(path, NULL, error))) return false;
    good = find_sample(o, json, error);
    zf_json_free(json);
    return good && zf_config_load(o->sample->config(), o->config, &o->model, error);
}

static int64_t member(const options *o, size_t at)
{
    int64_t value;
    memcpy(&value, (const char *)&o->model + at, sizeof value);
    return value;
}

bool plan_fits_positions(const options *o, char error[512])
{
    const int64_t positions =
        o->config ? zf_config_positions(o->sample->config(), &o->model) : INT64_MAX;
    if (o->seq > positions)
        snprintf(error, 512, "sequences of %lld tokens are too long for the model's %lld positions",
                 (long long)o->seq, (long long)positions);
    return o->seq <= positions;
}

/* What else the options say of the model of a file. */
static bool fit_config(options *o, zf_error *error)
{
    const zf_config_table *t = o->sample->config();
    const int64_t positions = zf_config_positions(t, &o->model),
                  usual = o->sample == &bert_sample ? 128 : 1024;
    o->gpt = o->sample != &bert_sample;
    o->layers = member(o, t->layers), o->hidden = member(o, t->hidden);
    o->heads = member(o, t->heads), o->vocab = member(o, t->vocab);
    if (!o->seq) o->seq = positions < usual ? positions : usual;
    if (!plan_fits_positions(o, error->text)) return false;
    return !*o->attention || zf_config_set_layout(t, &o->model, o->attention, o->seq, error);
}

bool plan_config(options *o, zf_error *error)
{
    if (!o->config) return true;
    return read_config(o, error) && fit_config(o, error);
}

/* -------------------------------------------------------------------------------------- graphs */

const char *plan_model_name(const options *o)
{
    const zf_config_table *t;
    if (!o->config) return o->gpt ? "GPT" : "BERT";
    t = o->sample->config();
    return t->types[t->type ? member(o, t->type) : 0];
}

zf_tensor plan_model(zf_graph *g, const options *o)
{
    const sample_shape shape = {.batch = o->batch,
                                .sequence = o->seq,
                                .predictions = o->gpt ? 0 : o->batch * ((o->seq * 20 + 127) / 128)};
    options of = *o;
    if (!o->config) set_sizes(&of);
    if (o->dropout >= 0) zf_config_set_dropout(of.sample->config(), &of.model, o->dropout);
    of.sample->build(g, &of.model, &shape, SAMPLE_TRAIN);
    return zf_graph_find(g, "loss");
}
