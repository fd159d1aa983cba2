#include "session.h"

#include <math.h>
#include <string.h>

zf_training gpt_training(const gpt_model *m, const gpt_session_desc *d)
{
    zf_training t = {.fuse.without = d->no_fuse,
                     .precision.dtype = d->dtype,
                     .keep_gradients = d->keep_gradients,
                     .clip = d->clip > 0 ? d->clip : INFINITY,
                     .adamw = {.beta1 = d->beta1,
                               .beta2 = d->beta2,
                               .eps = d->eps,
                               .weight_decay = d->weight_decay}};
    if (d->purpose == GPT_TRAIN) t.loss = m->loss, t.lr = m->lr;
    return t;
}

bool gpt_session_open(gpt_session *s, const gpt_session_desc *d, zf_error *error)
{
    zf_compile_desc compile = {.seed = d->seed, .evaluate = d->purpose != GPT_TRAIN};
    zf_training training;
    *s = (gpt_session){.shape = d->shape};
    if (d->shape.sequence > d->config.positions)
        return gpt_fail(error, ZF_ERR_ARGUMENT,
                        "sequences of %lld tokens are too long for the model's %lld positions",
                        (long long)d->shape.sequence, (long long)d->config.positions);
    if (!(s->graph = zf_graph_new(NULL))) return gpt_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (!d->share && !(s->own = device_open(&d->device, d->threads, error))) {
        gpt_session_close(s);
        return false;
    }
    s->backend = d->share ? d->share->backend : s->own;
    if (d->purpose == GPT_GENERATE) s->model = gpt_build_next(s->graph, &d->config, &d->shape);
    else s->model = gpt_build(s->graph, &d->config, &d->shape);
    training = gpt_training(&s->model, d);
    zf_passes(s->graph, &training);
    compile.backend = s->backend;
    if (d->share) {
        compile.store = zf_program_store(d->share->program);
        compile.seed = 0, compile.bound = true;
    }
    if ((s->program = zf_compile(s->graph, &compile))) return true;
    gpt_fail(error, zf_graph_status(s->graph), "%s", zf_graph_error(s->graph));
    gpt_session_close(s);
    return false;
}

void gpt_session_close(gpt_session *s)
{
    zf_program_free(s->program);
    zf_backend_free(s->own);
    zf_graph_free(s->graph);
    *s = (gpt_session){.graph = NULL};
}

zf_status gpt_session_feed(gpt_session *s, const gpt_batch *b)
{
    const gpt_model *m = &s->model;
    size_t bytes = (size_t)(b->examples * b->sequence) * sizeof *b->ids;
    float weight = 1 / (float)(b->labelled ? b->labelled : 1);
    zf_status status = zf_write(s->program, m->input_ids, b->ids, bytes);
    if (!status) status = zf_write(s->program, m->labels, b->labels, bytes);
    if (!status && zf_valid(m->attention_mask))
        status = zf_write(s->program, m->attention_mask, b->mask, bytes / sizeof *b->ids);
    if (!status) status = zf_write(s->program, m->loss_weight, &weight, sizeof weight);
    return status;
}

double gpt_session_scalar(gpt_session *s, const char *output)
{
    float value = NAN;
    (void)zf_read(s->program, zf_graph_find(s->graph, output), &value, sizeof value);
    return value;
}

int32_t gpt_sample(const float *logits, int64_t count, double temperature, uint64_t dice)
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
