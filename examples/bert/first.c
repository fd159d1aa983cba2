/* First values of parameters that are better than random ones.
 *
 *     position embedding   random rows have nothing in common, so attention must learn for each
 *                          position which one is next to it; with sinusoids, the step from one
 *                          position to the next is the same rotation everywhere
 *     bias of the words    ln of each word's share of the text, so that the first steps need not
 *                          learn it
 */
#include "../frame/options/fail.h"
#include "masked.h"
#include "model.h"

#include <math.h>
#include <stdlib.h>

static bool put(session *s, const char *name, const float *values, zf_error *error)
{
    const zf_tensor param = zf_graph_find(s->graph, name);
    if (!zf_valid(param))
        return fail(error, ZF_ERR_ARGUMENT,
                    "--first-positions and --first-bias are for BERT: this family has no %s", name);
    return !zf_weights_put(s->program, param, values, error);
}

void bert_sinusoids(float *table, int64_t rows, int64_t width, double std)
{
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; i < width; i++) {
            double turn = (double)t * pow(10000, -(double)(i / 2 * 2) / (double)width);
            table[t * width + i] = (float)(std * sqrt(2) * (i % 2 ? cos(turn) : sin(turn)));
        }
}

static bool put_positions(session *s, const bert_config *c, zf_error *error)
{
    float *table = malloc((size_t)(c->positions * c->hidden) * sizeof *table);
    bool good;
    if (!table) return fail(error, ZF_ERR_NOMEM, "out of memory");
    bert_sinusoids(table, c->positions, c->hidden, c->std);
    good = put(s, "bert.embeddings.position_embeddings.weight", table, error);
    free(table);
    return good;
}

static bool put_bias(session *s, const bert_config *c, const bert_corpus *corpus, zf_error *error)
{
    size_t vocab = (size_t)c->vocab;
    double *nats = malloc(vocab * sizeof *nats);
    float *bias = calloc(vocab, sizeof *bias);
    bool good = nats && bias;
    if (!good) fail(error, ZF_ERR_NOMEM, "out of memory");
    if (good) {
        bert_corpus_unigrams(corpus, nats);
        for (size_t id = 0; id < vocab; id++) /* the model's vocabulary may be larger */
            bias[id] = (float)-nats[id < (size_t)corpus->vocab_size ? id : 0];
        good = put(s, "cls.predictions.bias", bias, error);
    }
    free(nats);
    free(bias);
    return good;
}

bool bert_first_values(session *s, const settings *o, const void *config, const dataset *d,
                       zf_error *error)
{
    const masked_options *own = masked_options_of(o);
    return (!own->sinusoids || put_positions(s, config, error)) &&
           (!own->unigrams || put_bias(s, config, d->corpus, error));
}
