/* First values of parameters that are better known than drawn.
 *
 *     position embedding   rows of random numbers have nothing in common, so attention must learn for
 *                          each position by itself which one is next to it; with sinusoids the step
 *                          from a position to the next is one rotation for all of them
 *     bias of the words    ln of each word's share of the text, so that the first steps need not
 *                          learn it
 */
#include "../common/weights.h"
#include "run.h"

#include <math.h>
#include <stdlib.h>

static bool put(bert_run *r, const char *name, const float *values)
{
    zf_tensor param = zf_graph_find(r->session.graph, name);
    return !weights_put(r->session.program, param, values, &r->error);
}

void bert_sinusoids(float *table, int64_t rows, int64_t width, double std)
{
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; i < width; i++) {
            double turn = (double)t * pow(10000, -(double)(i / 2 * 2) / (double)width);
            table[t * width + i] = (float)(std * sqrt(2) * (i % 2 ? cos(turn) : sin(turn)));
        }
}

static bool put_positions(bert_run *r)
{
    const bert_config *c = &r->job->config;
    float *table = malloc((size_t)(c->positions * c->hidden) * sizeof *table);
    bool good;
    if (!table) return bert_run_fail(r, ZF_ERR_NOMEM, "out of memory");
    bert_sinusoids(table, c->positions, c->hidden, c->std);
    good = put(r, "bert.embeddings.position_embeddings.weight", table);
    free(table);
    return good;
}

static bool put_bias(bert_run *r)
{
    const bert_corpus *corpus = r->job->text.corpus;
    size_t vocab = (size_t)r->job->config.vocab;
    double *nats = malloc(vocab * sizeof *nats);
    float *bias = calloc(vocab, sizeof *bias);
    bool good = nats && bias;
    if (!good) bert_run_fail(r, ZF_ERR_NOMEM, "out of memory");
    if (good) {
        bert_corpus_unigrams(corpus, nats);
        for (size_t id = 0; id < vocab; id++) /* the model's vocabulary may be larger */
            bias[id] = (float)-nats[id < (size_t)corpus->vocab_size ? id : 0];
        good = put(r, "cls.predictions.bias", bias);
    }
    free(nats);
    free(bias);
    return good;
}

bool bert_run_first_values(bert_run *r)
{
    const bert_settings *o = &r->job->o;
    return (!o->sinusoids || put_positions(r)) && (!o->unigrams || put_bias(r));
}
