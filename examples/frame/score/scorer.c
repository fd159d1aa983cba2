#include "scorer.h"
#include "../options/fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXTS = 8 };

/* ----------------------------------------------------------------------------------- opening */

static bool read_scale(scorer_scale *scale, const char *folder, zf_error *error)
{
    char path[ZF_FOLDER_PATH];
    zf_json *json;
    FILE *file;
    snprintf(path, sizeof path, "%s/reward.json", folder);
    if (!(file = fopen(path, "rb"))) return true;
    fclose(file);
    if (!(json = zf_json_read(path, NULL, error))) return false;
    scale->known = true;
    zf_json_to_double(zf_json_require(json, "mean", error), -1e30, 1e30, &scale->mean, error);
    zf_json_to_double(zf_json_require(json, "deviation", error), 0, 1e30, &scale->deviation, error);
    zf_json_free(json);
    return !error->status;
}

/* The base of an adapter, as its adapter_config.json names it. */
static bool find_base(scorer *r, const char *adapter, zf_error *error)
{
    char path[ZF_FOLDER_PATH];
    zf_json *json;
    const char *base = NULL;
    snprintf(path, sizeof path, "%s/adapter_config.json", adapter);
    if (!(json = zf_json_read(path, NULL, error))) return false;
    base = zf_json_string(zf_json_member(json, "base_model_name_or_path"), NULL);
    if (base) snprintf(r->base_path, sizeof r->base_path, "%s", base);
    zf_json_free(json);
    return base || fail(error, ZF_ERR_FORMAT,
                        "%s names no base (base_model_name_or_path): give its folder, and this one "
                        "with --adapter",
                        path);
}

/* Whether the adapter keeps the head that scores. */
static bool adapter_scores(const char *folder, const char *score, zf_error *error)
{
    zf_adapter *a = zf_adapter_open(folder, error);
    const char *at = a ? zf_adapter_desc(a)->keep : NULL;
    bool has = false;
    for (size_t length; at && *at; at += length + (at[length] == ',')) {
        length = strcspn(at, ",");
        has |= strlen(score) == length && !memcmp(at, score, length);
    }
    zf_adapter_close(a);
    return has;
}

bool scorer_read(scorer *r, const scorer_desc *desc, zf_error *error)
{
    const bool adapts = !desc->adapter && zf_adapter_is_at(desc->folder);
    const zf_config_facts facts = zf_config_facts_of(desc->sample->config, &r->config);
    *r = (scorer){.session.sample = desc->sample,
                  .adapter = adapts ? desc->folder : desc->adapter};
    r->base = adapts ? r->base_path : desc->folder;
    if ((adapts && !find_base(r, desc->folder, error)) ||
        !session_config(desc->sample, r->base, r->adapter, &r->config, error) ||
        !zf_config_set_weights(desc->sample->config, &r->config, desc->weights, error) ||
        !read_scale(&r->scale, r->adapter ? r->adapter : r->base, error))
        return false;
    if (facts.scores && r->adapter && !*facts.scores)
        *facts.scores = adapter_scores(r->adapter, desc->sample->exchange.score, error);
    if (error->status) return false;
    return (facts.scores && *facts.scores) ||
           fail(error, ZF_ERR_MISMATCH,
                "%s is no reward model: it has no head that scores (score.weight)",
                r->adapter ? r->adapter : r->base);
}

static bool open_session(scorer *r, const scorer_desc *desc, zf_error *error)
{
    session_desc d = {.sample = desc->sample,
                      .purpose = SAMPLE_ANSWER,
                      .config = &r->config,
                      .adapter = r->adapter,
                      .average = desc->average,
                      .plan_only = desc->plan_only,
                      .threads = desc->threads};
    r->texts = desc->texts ? desc->texts : TEXTS;
    r->tokens = desc->tokens ? desc->tokens : zf_config_positions(desc->sample->config, &r->config);
    d.shape = (sample_shape){.batch = r->texts, .sequence = r->tokens};
    return session_open_folder(&r->session, r->base, &d, desc->dtype, error);
}

bool scorer_open(scorer *r, const scorer_desc *desc, zf_error *error)
{
    if (!scorer_read(r, desc, error) || !open_session(r, desc, error)) return false;
    r->ids = malloc((size_t)(r->texts * r->tokens) * sizeof *r->ids);
    r->last = malloc((size_t)r->texts * sizeof *r->last);
    r->scores = malloc((size_t)r->texts * sizeof *r->scores);
    if (r->ids && r->last && r->scores) return true;
    scorer_close(r);
    return fail(error, ZF_ERR_NOMEM, "out of memory");
}

void scorer_close(scorer *r)
{
    session_close(&r->session);
    free(r->ids), free(r->last), free(r->scores);
    *r = (scorer){.texts = 0};
}

/* ----------------------------------------------------------------------------------- scoring */

/* Row `row` becomes this text, or one token where there is none. */
static bool put(scorer *r, int64_t row, const int32_t *ids, int64_t count, int64_t number,
                zf_error *error)
{
    int32_t *to = r->ids + row * r->tokens;
    const int64_t vocab = *zf_config_facts_of(r->session.sample->config, &r->config).vocab;
    if (count < 1 || count > r->tokens)
        return fail(error, ZF_ERR_LIMIT, "text %lld has %lld tokens; there is room for 1 to %lld",
                    (long long)number, (long long)count, (long long)r->tokens);
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return fail(error, ZF_ERR_ARGUMENT, "text %lld: id %d is not one of the model's %lld",
                        (long long)number, (int)ids[i], (long long)vocab);
        to[i] = ids[i];
    }
    memset(to + count, 0, (size_t)(r->tokens - count) * sizeof *to);
    r->last[row] = (int32_t)(row * r->tokens + count - 1);
    return true;
}

static bool step(scorer *r, zf_error *error)
{
    session *s = &r->session;
    zf_status status =
        session_write(s, "input_ids", r->ids, (size_t)(r->texts * r->tokens) * sizeof *r->ids);
    if (!status) status = session_write(s, "last", r->last, (size_t)r->texts * sizeof *r->last);
    if (!status) status = zf_step(s->program);
    if (!status)
        status = zf_read(s->program, zf_graph_find(s->graph, "scores"), r->scores,
                         (size_t)r->texts * sizeof *r->scores);
    return !status || fail(error, status, "%s", zf_program_error(s->program));
}

bool scorer_run(scorer *r, const int32_t *const *ids, const int64_t *counts, int64_t n, double *scores,
                zf_error *error)
{
    static const int32_t none = 0;
    for (int64_t first = 0; first < n; first += r->texts) {
        const int64_t here = n - first < r->texts ? n - first : r->texts;
        for (int64_t k = 0; k < r->texts; k++)
            if (!put(r, k, k < here ? ids[first + k] : &none, k < here ? counts[first + k] : 1,
                     first + k, error))
                return false;
        if (!step(r, error)) return false;
        for (int64_t k = 0; k < here; k++) {
            if (!isfinite(r->scores[k]))
                return fail(error, ZF_ERR_NAN, "the score of text %lld is not a finite number",
                            (long long)(first + k));
            scores[first + k] = (double)r->scores[k];
        }
    }
    return true;
}

/* -------------------------------------------------------------------------------- vocabularies */

static bool is_token(const zf_tokenizer *a, const zf_tokenizer *b, int32_t id)
{
    size_t of_a = 0, of_b = 0;
    const char *x = zf_tokenizer_token(a, id, &of_a), *y = zf_tokenizer_token(b, id, &of_b);
    return !x || !y ? x == y : of_a == of_b && !memcmp(x, y, of_a);
}

bool scorer_fits(const scorer *r, int64_t vocab, const char *folder, zf_error *error)
{
    const int64_t own = *zf_config_facts_of(r->session.sample->config, (void *)(uintptr_t)&r->config).vocab;
    zf_tokenizer *a = NULL, *b = NULL;
    bool good = own == vocab || fail(error, ZF_ERR_MISMATCH,
                                     "%s is a reward model of another vocabulary: it has %lld ids, "
                                     "the other model %lld",
                                     r->base, (long long)own, (long long)vocab);
    if (!good || !zf_folder_has_bpe(r->base) || !zf_folder_has_bpe(folder)) return good;
    good = (a = zf_tokenizer_open(r->base, error)) && (b = zf_tokenizer_open(folder, error));
    for (int32_t id = 0; good && id < vocab; id++)
        good = is_token(a, b, id) ||
               fail(error, ZF_ERR_MISMATCH,
                    "%s is a reward model of another vocabulary: id %d is another token than in %s",
                    r->base, (int)id, folder);
    zf_tokenizer_free(a);
    zf_tokenizer_free(b);
    return good;
}
