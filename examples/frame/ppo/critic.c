#include "critic.h"
#include "../options/fail.h"
#include "../score/scorer.h"

#include <stdlib.h>
#include <string.h>

static const char name[] = "critic"; /* of the training, the adapter, the scope of own parameters */

/* ---------------------------------------------------------------------------------------- steps */

typedef struct critic_batch {
    const experience *e;
    int64_t first; /* answer */
    const float *old, *returns;
} critic_batch;

static zf_status feed(session *s, const void *batch, int64_t part, int64_t parts, bool sums)
{
    const critic_batch *b = batch;
    const experience *e = b->e;
    const int64_t rows = e->desc->batch / parts, first = b->first + part * rows,
                  at = first * e->desc->sequence;
    const size_t cells = (size_t)(rows * e->desc->sequence) * 4;
    zf_status status = session_write(s, "input_ids", e->ids + at, cells);
    (void)sums;
    if (!status) status = session_write(s, "labels", e->labels + at, cells);
    if (!status) status = session_write(s, "old_values", b->old + at, cells);
    if (!status) status = session_write(s, "returns", b->returns + at, cells);
    return status ? status : session_write(s, "weight", e->weight + first, (size_t)rows * 4);
}

bool critic_step(critic *c, const experience *e, int64_t batch, const float *old,
                 const float *returns, double lr, zf_error *error)
{
    const critic_batch b = {e, batch * e->desc->batch, old, returns};
    session *s = &c->train;
    const float rate = (float)lr;
    zf_status status = zf_write(s->program, s->lr, &rate, sizeof rate);
    if (!status) status = session_feed(s, &b, false);
    if (!status) status = zf_step(s->program);
    if (status) return fail(error, status, "the critic: %s", zf_program_error(s->program));
    c->loss = session_scalar(s, "loss"), c->clipped = session_scalar(s, "value_clipped");
    session_turn(s, zf_program_step(s->program));
    return true;
}

/* -------------------------------------------------------------------------------------- opening */

/* Where the critic comes from. */
typedef struct origin {
    const char *base, *adapter; /* folders; NULL: none */
    zf_config_any config;       /* of the base with the adapter */
    bool shares;                /* the base is that of the policy, which is an adapter too */
    char path[ZF_FOLDER_PATH];
} origin;

static bool has_scope(const char *param)
{
    return !strncmp(param, name, sizeof name - 1) && param[sizeof name - 1] == '.';
}

/* Whether what is trained was among the first `count` tensors of the store: a checkpoint brought
 * it. */
static bool was_stored(const critic *c, int32_t count)
{
    const zf_store *store = zf_program_store(c->train.program);
    for (int32_t k = 0; k < zf_param_count(c->train.graph); k++) {
        const zf_tensor param = zf_param_at(c->train.graph, k);
        if (zf_param_adapter(param) || has_scope(zf_tensor_name(param)))
            return zf_store_find(store, zf_tensor_name(param)) < count;
    }
    return false;
}

/* A reward model, which may be an adapter. */
static bool read_model(origin *from, const critic *c, const experience *e, const char *folder,
                       zf_error *error)
{
    const settings *o = e->desc->run;
    const int64_t vocab = *zf_config_facts_of(c->sample.config(), &from->config).vocab;
    scorer r;
    if (!scorer_read(&r, &(scorer_desc){.sample = &c->sample, .folder = folder}, error) ||
        !scorer_fits(&r, vocab, o->tokenizer, error))
        return false;
    snprintf(from->path, sizeof from->path, "%s", r.base);
    from->base = from->path, from->adapter = r.adapter;
    if (!scorer_shares(&r, o, &from->config, &from->shares, error)) return false;
    if (!from->shares) from->config = r.config;
    return true;
}

/* The model is one whose configuration has a form that gives values to tokens. */
static bool read_origin(origin *from, const critic *c, const experience *e, const char *folder,
                        zf_error *error)
{
    const settings *o = e->desc->run;
    *from = (origin){.base = settings_first(o)};
    memcpy(&from->config, e->desc->config, c->sample.config()->bytes);
    if (folder) return read_model(from, c, e, folder, error);
    from->shares = settings_adapts(o);
    return true;
}

/* The model, and what of it is trained: an adapter and its head, or all. */
static bool describe(critic *c, const origin *from, const settings *o, zf_error *error)
{
    c->config = from->config;
    *zf_config_facts_of(c->sample.config(), &c->config).scores = 1;
    zf_config_set_dropout(c->sample.config(), &c->config, 0);
    if (from->adapter && !(c->adapter = zf_adapter_open(from->adapter, error))) return false;
    if (c->adapter) c->lora = *zf_adapter_desc(c->adapter);
    else if (settings_adapts(o)) c->lora = zf_training_resolved(&o->training).lora;
    if (!c->lora.rank) return true;
    c->lora.name = name, c->lora.dropout = 0;
    c->keep = session_keep("score", c->lora.keep, c->adapter && !from->shares ? name : NULL, error);
    c->lora.keep = c->keep;
    return c->keep != NULL;
}

static bool open_session(critic *c, session *s, const experience *e, session *policy,
                         sample_purpose purpose, bool shares, zf_error *error)
{
    const settings *o = e->desc->run;
    session_desc d = {.sample = &c->sample,
                      .purpose = purpose,
                      .config = &c->config,
                      .shape = {.batch = policy->shape.batch,
                                .sequence = policy->shape.sequence,
                                .value = &e->desc->o->ppo.value,
                                .scope = shares ? NULL : name},
                      .seed = (uint64_t)o->seed,
                      .share = policy,
                      .with = SESSION_NEXT};
    if (purpose == SAMPLE_TRAIN) d.training = o->training;
    d.training.name = name, d.training.lora = c->lora;
    d.training.fuse.without = e->desc->no_fuse;
    d.training.param_groups = NULL, d.training.ema = (zf_ema_desc){.decay = 0};
    d.training.keep_gradients = false;
    return session_open(s, &d, error);
}

/* Copies the values of a model in a program of its own, by the names without scope and adapter. */
static bool copy(critic *c, session *from, zf_error *error)
{
    zf_status status = ZF_OK;
    for (int32_t k = 0; k < zf_param_count(c->train.graph) && !status; k++) {
        const zf_tensor param = zf_param_at(c->train.graph, k);
        char text[ZF_FOLDER_PATH];
        const char *plain = zf_param_plain_name(param, text, sizeof text);
        const zf_tensor source =
            zf_exchange_find(from->graph, has_scope(plain) ? plain + sizeof name : plain);
        float *values;
        if (!zf_valid(source)) continue; /* it is new */
        values = malloc((size_t)zf_shape_count(zf_param_shape(param)) * sizeof *values + 1);
        if (!values) return fail(error, ZF_ERR_NOMEM, "out of memory");
        status = zf_weights_get(from->program, source, values, error);
        if (!status) status = zf_weights_put(c->train.program, param, values, error);
        free(values);
    }
    return !status;
}

/* First values: those of an adapter, or of a whole model, which is there for that time. */
static bool take(critic *c, origin *from, zf_error *error)
{
    enum { F32 = 1 }; /* in FOLDER_DTYPES */
    session_desc d = {.sample = &c->sample,
                      .purpose = SAMPLE_ANSWER,
                      .config = &from->config,
                      .shape = {.batch = 1, .sequence = 1, .predictions = 1},
                      .adapter = from->adapter,
                      .threads = 1};
    session whole;
    bool good;
    if (from->shares && c->adapter)
        return zf_adapter_take(c->adapter, c->train.program, c->train.graph, c->sample.exchange(),
                               error);
    if (from->shares)
        return !zf_lora_magnitudes(c->train.program) ||
               fail(error, ZF_ERR_BACKEND, "%s", zf_program_error(c->train.program));
    if (!from->base) return true;
    if (!session_open_folder(&whole, from->base, &d, F32, error)) return false;
    good = copy(c, &whole, error);
    session_close(&whole);
    return good;
}

bool critic_open(critic *c, const experience *e, session *policy, const char *folder,
                 zf_error *error)
{
    static const objective values = {.feed = feed};
    const int32_t before = zf_store_count(zf_program_store(policy->program));
    origin from;
    bool good;
    *c = (critic){.sample = *policy->sample};
    c->sample.objective = &values;
    good = read_origin(&from, c, e, folder, error) && describe(c, &from, e->desc->run, error) &&
           open_session(c, &c->train, e, policy, SAMPLE_TRAIN, from.shares, error) &&
           (policy->plans || was_stored(c, before) || take(c, &from, error)) &&
           open_session(c, &c->evaluate, e, policy, SAMPLE_EVALUATE, from.shares, error);
    if (!good) critic_close(c);
    return good;
}

void critic_close(critic *c)
{
    session_close(&c->evaluate);
    session_close(&c->train);
    zf_adapter_close(c->adapter);
    free(c->keep);
    *c = (critic){.adapter = NULL};
}
