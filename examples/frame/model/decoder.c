#include "decoder.h"
#include "../options/fail.h"

enum { CHUNK = 256 }; /* tokens of a step, by default */

bool decoder_hold(decoder *d, zf_error *error) { return session_hold(&d->prompt, error); }

/* Ranks compare what they have before the first step, so that later ones need no other rank. */
static bool compare(const session *s, zf_error *error)
{
    return !s->comm || s->plans || !zf_compare_ranks(s->program) ||
           fail(error, ZF_ERR_MISMATCH, "%s", zf_program_error(s->program));
}

static bool open_sessions(decoder *d, const decoder_desc *desc, session_desc *s, int64_t chunk,
                          const char *load, int64_t dtype, zf_error *error)
{
    s->purpose = SAMPLE_GENERATE;
    s->shape = (sample_shape){.batch = desc->texts,
                              .sequence = chunk,
                              .predictions = desc->context,
                              .rows = SAMPLE_FULL,
                              .chunk = chunk};
    s->hold = desc->hold && s->share;
    if (!s->share ? !session_open_folder(&d->prompt, load, s, dtype, error)
                  : !session_open(&d->prompt, s, error))
        return false;
    s->shape.sequence = 1, s->share = &d->prompt, s->hold = false;
    return session_open(&d->token, s, error) &&
           (!desc->hold || (compare(&d->prompt, error) && compare(&d->token, error)));
}

bool decoder_open(decoder *d, const decoder_desc *desc, session_desc *s, const char *load,
                  int64_t dtype, zf_error *error)
{
    const int64_t positions = zf_config_positions(s->sample->config(), s->config);
    const int64_t window = zf_config_window(s->sample->config(), s->config);
    int64_t chunk = desc->chunk;
    *d = (decoder){.steps = {.texts = 0}};
    if (!chunk) chunk = CHUNK / desc->texts > 1 ? CHUNK / desc->texts : 2; /* 1: as later tokens */
    if (chunk > desc->context) chunk = desc->context;
    if (zf_config_scores(s->sample->config(), s->config))
        return fail(error, ZF_ERR_MISMATCH,
                    "%s is a reward model: it scores texts (score), and continues none",
                    load ? load : "the model");
    if (desc->context > positions)
        return fail(error, ZF_ERR_ARGUMENT,
                    "a context of %lld tokens is too long for the model's %lld positions",
                    (long long)desc->context, (long long)positions);
    if (open_sessions(d, desc, s, chunk, load, dtype, error) &&
        zf_decoder_open(
            &d->steps,
            &(zf_decoder_desc){.prompt = {d->prompt.graph, d->prompt.program, chunk},
                               .token = {d->token.graph, d->token.program, 1},
                               .texts = desc->texts,
                               .context = desc->context,
                               .rings = zf_decode_ring(window, desc->context, chunk) > 0},
            error))
        return true;
    decoder_close(d);
    return false;
}

void decoder_close(decoder *d)
{
    zf_decoder_close(&d->steps);
    session_close(&d->token);
    session_close(&d->prompt);
}
