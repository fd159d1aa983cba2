/* The models of zf-plan: those of the samples. */
#include "plan.h"
#include "../../examples/bert/model.h"
#include "../../examples/gpt/model.h"

#include <string.h>

static zf_tensor build_gpt(zf_graph *g, const options *o)
{
    gpt_config c = {.vocab = o->vocab,
                    .positions = o->seq,
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
    memcpy(c.layout, o->attention, sizeof c.layout);
    return gpt_build(g, &c, &(sample_shape){.batch = o->batch, .sequence = o->seq}, SAMPLE_TRAIN);
}

static zf_tensor build_bert(zf_graph *g, const options *o)
{
    bert_config c = {.vocab = o->vocab,
                     .hidden = o->hidden,
                     .layers = o->layers,
                     .heads = o->heads,
                     .intermediate = 4 * o->hidden,
                     .positions = o->seq > 512 ? o->seq : 512,
                     .types = 2,
                     .eps = 1e-12,
                     .dropout = 0.1,
                     .attention_dropout = 0.1,
                     .std = 0.02,
                     .pad = -1,
                     .tied = 1,
                     .nsp = 1};
    sample_shape s = {.batch = o->batch,
                      .sequence = o->seq,
                      .predictions = o->batch * ((o->seq * 20 + 127) / 128)};
    memcpy(c.layout, o->attention, sizeof c.layout);
    return bert_build(g, &c, &s, false).loss;
}

zf_tensor plan_model(zf_graph *g, const options *o)
{
    return o->gpt ? build_gpt(g, o) : build_bert(g, o);
}
