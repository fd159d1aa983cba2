#include "decoder.h"
#include "../options/fail.h"

enum { CHUNK = 256 }; /* tokens of a step, by default */

static bool copy_parameters(session *copy, const session *from, zf_error *error)
{
    return !zf_store_copy(zf_program_store(copy->program), zf_program_store(from->program)) ||
           fail(error, ZF_ERR_BACKEND, "%s", zf_store_error(zf_program_store(copy->program)));
}

bool decoder_refresh(decoder *d, const session *from, zf_error *error)
{
    return copy_parameters(&d->prompt, from, error);
}

/* A session with a copy of the parameters of s->share, whole on each rank. */
static bool open_copy(session *copy, session_desc *s, zf_error *error)
{
    session *from = s->share;
    s->training = (zf_training){.lora = from->training.lora,
                                .precision = from->training.precision,
                                .tile = from->training.tile};
    s->comm = from->comm, s->share = NULL;
    if (!session_open(copy, s, error)) return false;
    if (copy_parameters(copy, from, error)) return true;
    session_close(copy);
    return false;
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
    if (!s->share     ? !session_open_folder(&d->prompt, load, s, dtype, error)
        : desc->whole ? !open_copy(&d->prompt, s, error)
                      : !session_open(&d->prompt, s, error))
        return false;
    s->shape.sequence = 1, s->share = &d->prompt;
    return session_open(&d->token, s, error);
}

bool decoder_open(decoder *d, const decoder_desc *desc, session_desc *s, const char *load,
                  int64_t dtype, zf_error *error)
{
    const int64_t positions = zf_config_positions(s->sample->config, s->config);
    const int64_t window = zf_config_window(s->sample->config, s->config);
    int64_t chunk = desc->chunk;
    *d = (decoder){.steps = {.texts = 0}};
    if (!chunk) chunk = CHUNK / desc->texts > 1 ? CHUNK / desc->texts : 2; /* 1: as later tokens */
    if (chunk > desc->context) chunk = desc->context;
    if (zf_config_scores(s->sample->config, s->config))
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
