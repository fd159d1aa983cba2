#include "lm_session.h"
#include "fail.h"

#include <math.h>
#include <string.h>

zf_training lm_training(const lm_model *m, const lm_session_desc *d)
{
    zf_training t = {
        .fuse.without = d->no_fuse,
        .precision.dtype = d->dtype,
        .keep_gradients = d->keep_gradients,
        .clip = d->clip > 0 ? d->clip : INFINITY,
        .adamw = {
            .beta1 = d->beta1, .beta2 = d->beta2, .eps = d->eps, .weight_decay = d->weight_decay}};
    if (d->purpose == LM_TRAIN) t.loss = m->loss, t.lr = m->lr;
    return t;
}

bool lm_session_open(lm_session *s, const lm_session_desc *d, zf_error *error)
{
    zf_compile_desc compile = {.seed = d->seed, .evaluate = d->purpose != LM_TRAIN};
    zf_training training;
    int64_t positions;
    lm_config config;
    *s = (lm_session){.kind = d->kind, .shape = d->shape};
    memcpy(&config, d->config, d->kind->config_bytes);
    positions = *d->kind->facts(&config).positions;
    if (d->shape.sequence > positions)
        return fail(error, ZF_ERR_ARGUMENT,
                    "sequences of %lld tokens are too long for the model's %lld positions",
                    (long long)d->shape.sequence, (long long)positions);
    if (!(s->graph = zf_graph_new(NULL))) return fail(error, ZF_ERR_NOMEM, "out of memory");
    if (!d->share && !(s->own = device_open(&d->device, d->threads, error))) {
        lm_session_close(s);
        return false;
    }
    s->backend = d->share ? d->share->backend : s->own;
    s->model = d->kind->build(s->graph, d->config, &d->shape, d->purpose == LM_GENERATE);
    training = lm_training(&s->model, d);
    if (!d->share && !d->no_fuse && (training.memory_limit = device_memory(&d->device))) {
        training.backend = s->backend;
        training.fuse.invert = ZF_INVERT_AS_NEEDED; /* a GPU is faster without it */
    }
    zf_passes(s->graph, &training);
    compile.backend = s->backend;
    if (d->share) {
        compile.store = zf_program_store(d->share->program);
        compile.seed = 0, compile.bound = true;
    }
    if ((s->program = zf_compile(s->graph, &compile))) return true;
    fail(error, zf_graph_status(s->graph), "%s", zf_graph_error(s->graph));
    lm_session_close(s);
    return false;
}

void lm_session_close(lm_session *s)
{
    zf_program_free(s->program);
    zf_backend_free(s->own);
    zf_graph_free(s->graph);
    *s = (lm_session){.graph = NULL};
}

zf_status lm_session_feed(lm_session *s, const lm_batch *b)
{
    const lm_model *m = &s->model;
    size_t bytes = (size_t)(b->examples * b->sequence) * sizeof *b->ids;
    float weight = 1 / (float)(b->labelled ? b->labelled : 1);
    zf_status status = zf_write(s->program, m->input_ids, b->ids, bytes);
    if (!status) status = zf_write(s->program, m->labels, b->labels, bytes);
    if (!status && zf_valid(m->attention_mask))
        status = zf_write(s->program, m->attention_mask, b->mask, bytes / sizeof *b->ids);
    if (!status) status = zf_write(s->program, m->loss_weight, &weight, sizeof weight);
    return status;
}

double lm_session_scalar(lm_session *s, const char *output)
{
    float value = NAN;
    (void)zf_read(s->program, zf_graph_find(s->graph, output), &value, sizeof value);
    return value;
}

int32_t lm_sample(const float *logits, int64_t count, double temperature, uint64_t dice)
{
    double sum = 0, at;
    int32_t best = 0;
    for (int64_t v = 1; v < count; v++)
        if (logits[v] > logits[best]) best = (int32_t)v;
    if (!(temperature > 0)) return best;
    for (int64_t v = 0; v < count; v++) sum += exp((logits[v] - logits[best]) / temperature);
    at = ldexp((double)(dice >> 11), -53) * sum;
    for (int64_t v = 0; v < count; v++) {
        at -= exp((logits[v] - logits[best]) / temperature);
        if (at < 0) return (int32_t)v;
    }
    return best;
}
