/* A model of a folder that answers prompts. */
#include <stdlib.h>
#include <string.h>

enum { ZFL_CHUNK = 256 }; /* tokens of a step, by default */

/* What a folder says about answers. */
static bool zfl_read_generation(zf_generator *g, const zf_generator_desc *d, zf_error *error)
{
    const zf_config_facts facts = zf_config_facts_of(d->model->config, &g->config);
    if (!zf_folder_generation_read(&g->says, d->folder, error)) return false;
    zf_folder_generation_ends(&g->says, &facts, g->ends);
    return true;
}

/* The configuration of a folder, by its config.json and its weights, or that of a tuner. */
static bool zfl_read_model_folder(zf_generator *g, const zf_generator_desc *d, zf_error *error)
{
    const zf_config_facts facts = zf_config_facts_of(d->model->config, &g->config);
    zf_error why = {ZF_OK, ""};
    zf_weights *w;
    if (d->tuner) {
        memcpy(&g->config, &d->tuner->config, sizeof d->tuner->config);
        return zfl_read_generation(g, d, error);
    }
    if (!zf_config_load(d->model->config, d->folder, &g->config, error)) return false;
    if (!(w = zf_weights_open(d->folder, error))) return false;
    if (!zf_exchange_is_tied(&d->model->exchange, w, &why)) *facts.tied = 0;
    zf_weights_close(w);
    if (why.status) return *error = why, false;
    return zfl_read_generation(g, d, error);
}

/* The passes of a step that reads the parameters of a tuner. */
static void zfl_adapt_as(zf_graph *graph, const zf_tuner *tuner)
{
    const zf_training *from = &tuner->training;
    const zf_training t = {.lora = from->lora,
                           .precision = from->precision,
                           .tile = from->tile,
                           .sections = from->sections,
                           .zero.store = zf_program_store(tuner->program)};
    zf_passes(graph, &t);
}

/* Compiles step k; `first`: the program whose parameters and caches it uses, or NULL. */
static bool zfl_compile_step(zf_generator *g, const zf_generator_desc *d, int k,
                             const zf_decode_shape *shape, zf_program *first, zf_error *error)
{
    zf_graph *graph = g->graphs[k] = zf_graph_new(NULL);
    const zf_program *with = first ? first : d->tuner ? d->tuner->program : NULL;
    zf_store *store = with ? zf_program_store(with) : NULL;
    if (!graph) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    d->model->build(graph, &g->config, shape);
    if (d->tuner) zfl_adapt_as(graph, d->tuner);
    else zf_fuse(graph, NULL);
    g->programs[k] =
        zf_compile(graph, &(zf_compile_desc){.backend = d->backend,
                                             .store = store,
                                             .must_exist = store != NULL,
                                             .shares_memory_with = first,
                                             .caches = first,
                                             .evaluate = true});
    return g->programs[k] || zfl_fail(error, zf_graph_status(graph), "%s", zf_graph_error(graph));
}

/* The shape of the larger step. False with *error: the context is too long. */
static bool zfl_fit_shape(const zf_generator *g, const zf_generator_desc *d, zf_decode_shape *s,
                          zf_error *error)
{
    const int64_t positions = zf_config_positions(d->model->config, &g->config);
    s->texts = 1;
    s->context = d->context ? d->context : positions;
    s->chunk = d->chunk ? d->chunk : ZFL_CHUNK;
    if (s->chunk > s->context) s->chunk = s->context;
    s->tokens = s->chunk;
    return s->context <= positions ||
           zfl_fail(error, ZF_ERR_ARGUMENT,
                    "a context of %lld tokens is too long for the model's %lld positions",
                    (long long)s->context, (long long)positions);
}

static bool zfl_read_weights(zf_generator *g, const zf_generator_desc *d, zf_error *error)
{
    zf_weights_report report;
    return zf_exchange_import(&d->model->exchange, g->programs[0], g->graphs[0], d->folder, &report,
                              error) &&
           zf_weights_whole(&report, d->folder, error);
}

static bool zfl_open_generator(zf_generator *g, const zf_generator_desc *d, zf_error *error)
{
    zf_decode_shape large = {.texts = 0}, small;
    if (!zfl_read_model_folder(g, d, error) || !zfl_fit_shape(g, d, &large, error)) return false;
    small = large, small.tokens = 1;
    return zfl_compile_step(g, d, 0, &large, NULL, error) &&
           zfl_compile_step(g, d, 1, &small, g->programs[0], error) &&
           (d->tuner || zfl_read_weights(g, d, error)) &&
           zf_decoder_open(
               &g->decoder,
               &(zf_decoder_desc){.prompt = {g->graphs[0], g->programs[0], large.tokens},
                                  .token = {g->graphs[1], g->programs[1], 1},
                                  .texts = large.texts,
                                  .context = large.context,
                                  .rings =
                                      zf_decode_ring(zf_config_window(d->model->config, &g->config),
                                                     large.context, large.chunk) > 0},
               error);
}

bool zf_generator_open(zf_generator *g, const zf_generator_desc *desc, zf_error *error)
{
    zf_generator_desc d = *desc;
    *g = (zf_generator){.graphs = {NULL}};
    *error = (zf_error){ZF_OK, ""};
    if (d.tuner && (d.model || d.folder || d.backend))
        return zfl_fail(error, ZF_ERR_ARGUMENT,
                        "with a tuner, model, folder and backend are the tuner's");
    if (d.tuner) d.folder = d.tuner->folder, d.backend = d.tuner->backend;
    if (!d.model) d.model = zf_causal_model();
    if (zfl_open_generator(g, &d, error)) return true;
    zf_generator_close(g);
    return false;
}

void zf_generator_close(zf_generator *g)
{
    zf_decoder_close(&g->decoder);
    for (int k = 1; k >= 0; k--) {
        zf_program_free(g->programs[k]);
        zf_graph_free(g->graphs[k]);
    }
    *g = (zf_generator){.graphs = {NULL}};
}

/* --------------------------------------------------------------------------------- an answer */

typedef struct zfl_shown {
    const zf_answer_desc *how;
    const zf_generate_desc *desc;
} zfl_shown;

static void zfl_show(void *user, zf_answer *a)
{
    const zfl_shown *s = user;
    size_t bytes;
    const char *text = zf_answer_shown(a, s->how, &bytes);
    if (s->desc->show && bytes) s->desc->show(s->desc->user, text, bytes);
}

/* Answers a text, or a message with which a conversation begins. */
static bool zfl_answer_prompt(const zf_answers_desc *all, const char *prompt, zf_answer *a,
                              zf_error *error)
{
    if (!zf_answer_prompt(all->how, prompt, strlen(prompt), &a->ids, error) ||
        !zf_answer_begin(a, all->how, error))
        return false;
    a->owner = zf_sampler_owner(a->ids.at, a->given, 0);
    return zf_answers_write(a, 1, all, error);
}

/* Answers a message of a conversation. */
static bool zfl_answer_message(const zf_answers_desc *all, const char *message, zf_talk *talk,
                               zf_answer *a, zf_error *error)
{
    const size_t before = talk->count;
    const bool good = zf_talk_say(talk, "user", message, strlen(message), error) &&
                      zf_talk_answer(talk, all, a, error);
    if (!good) zf_talk_forget(talk, before);
    return good;
}

bool zf_generate(zf_generator *g, const zf_tokenizer *tokenizer, const char *prompt,
                 const zf_generate_desc *desc, zf_text *out, zf_error *error)
{
    const zf_answer_desc how = {.tokenizer = tokenizer,
                                .chat = desc->chat,
                                .ends = g->ends,
                                .end_count = ZF_GENERATOR_ENDS,
                                .stops = desc->stops,
                                .stop_count = desc->stop_count,
                                .vocab = g->decoder.vocab};
    zfl_shown shown = {&how, desc};
    const int64_t usual = g->decoder.context < 128 ? g->decoder.context / 2 : 64;
    const zf_answers_desc all = {.decoder = &g->decoder,
                                 .how = &how,
                                 .sampling = desc->how,
                                 .seed = desc->seed,
                                 .tokens = desc->tokens ? desc->tokens : usual,
                                 .show = zfl_show,
                                 .user = &shown};
    zf_answer a = {.given = 0};
    bool good;
    *error = (zf_error){ZF_OK, ""};
    good = desc->talk ? zfl_answer_message(&all, prompt, desc->talk, &a, error)
                      : zfl_answer_prompt(&all, prompt, &a, error);
    if (good && a.text.count) zf_text_add(out, a.text.at, a.text.count);
    if (good && out->failed) good = zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    zf_answer_free(&a);
    return good;
}
