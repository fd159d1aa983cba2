#include "scorer.h"
#include "../options/fail.h"
#include "../ranks/ranks.h"

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
    const zf_config_facts facts = zf_config_facts_of(desc->sample->config(), &r->config);
    *r = (scorer){.session.sample = desc->sample,
                  .adapter = adapts ? desc->folder : desc->adapter};
    r->base = adapts ? r->base_path : desc->folder;
    if ((adapts && !find_base(r, desc->folder, error)) ||
        !session_config(desc->sample, r->base, r->adapter, &r->config, error) ||
        !zf_config_set_weights(desc->sample->config(), &r->config, desc->weights, error) ||
        !read_scale(&r->scale, r->adapter ? r->adapter : r->base, error))
        return false;
    if (facts.scores && r->adapter && !*facts.scores)
        *facts.scores = adapter_scores(r->adapter, desc->sample->exchange()->score, error);
    if (error->status) return false;
    return (facts.scores && *facts.scores) ||
           fail(error, ZF_ERR_MISMATCH,
                "%s is no reward model: it has no head that scores (score.weight)",
                r->adapter ? r->adapter : r->base);
}

/* What of the desc a session needs; sets the shape. */
static session_desc describe(scorer *r, const scorer_desc *desc)
{
    r->texts = desc->texts ? desc->texts : TEXTS;
    r->tokens = desc->tokens ? desc->tokens : zf_config_positions(desc->sample->config(), &r->config);
    return (session_desc){.sample = desc->sample,
                          .purpose = SAMPLE_ANSWER,
                          .config = &r->config,
                          .shape = {.batch = r->texts, .sequence = r->tokens},
                          .plan_only = desc->plan_only,
                          .threads = desc->threads};
}

static bool open_session(scorer *r, const scorer_desc *desc, zf_error *error)
{
    session_desc d = describe(r, desc);
    d.adapter = r->adapter, d.average = desc->average;
    return session_open_folder(&r->session, r->base, &d, desc->dtype, error);
}

/* Room for the texts of a step, after a session was opened. */
static bool open_rows(scorer *r, zf_error *error)
{
    r->ids = malloc((size_t)(r->texts * r->tokens) * sizeof *r->ids);
    r->last = malloc((size_t)r->texts * sizeof *r->last);
    r->scores = malloc((size_t)r->texts * sizeof *r->scores);
    if (r->ids && r->last && r->scores) return true;
    scorer_close(r);
    return fail(error, ZF_ERR_NOMEM, "out of memory");
}

bool scorer_open(scorer *r, const scorer_desc *desc, zf_error *error)
{
    return scorer_read(r, desc, error) && open_session(r, desc, error) && open_rows(r, error);
}

void scorer_close(scorer *r)
{
    session_close(&r->session);
    free(r->ids), free(r->last), free(r->scores), free(r->keep);
    r->ids = r->last = NULL, r->scores = NULL, r->keep = NULL;
}

/* ----------------------------------------------------------------------- over another's base */

/* Whether two folders have the same weights. */
static bool are_same(const char *a, const char *b, bool *same, zf_error *error)
{
    uint64_t of_a, of_b;
    *same = a && b && !strcmp(a, b);
    if (*same || !a || !b) return true;
    if (!zf_digest_path(a, &of_a, error) || !zf_digest_path(b, &of_b, error)) return false;
    *same = of_a == of_b;
    return true;
}

bool scorer_shares(const scorer *r, const settings *o, const void *config, bool *shares,
                   zf_error *error)
{
    const zf_config_table *table = r->session.sample->config();
    *shares = false;
    if (!r->adapter || !settings_adapts(o)) return true;
    if (!are_same(r->base, o->init, shares, error)) return false;
    *shares = *shares &&
              !strcmp(zf_config_layout(table, &r->config), zf_config_layout(table, config));
    return true;
}

bool scorer_join(scorer *r, const scorer_desc *desc, session *with, const char *name,
                 zf_error *error)
{
    struct zf_adapter *a = zf_adapter_open(r->adapter, error);
    session_desc d = describe(r, desc);
    bool good = a != NULL;
    zf_config_set_dropout(desc->sample->config(), &r->config, 0);
    if (a) d.training.lora = *zf_adapter_desc(a);
    d.training.lora.name = name, d.training.lora.dropout = 0;
    good = good && (r->keep = session_keep("score", d.training.lora.keep, NULL, error)) != NULL;
    d.training.lora.keep = r->keep;
    d.share = with, d.with = SESSION_NEXT;
    if (good && (good = session_open(&r->session, &d, error))) {
        good = with->plans || zf_adapter_take(a, r->session.program, r->session.graph,
                                              desc->sample->exchange(), error);
    }
    zf_adapter_close(a);
    if (!good) scorer_close(r);
    return good && open_rows(r, error);
}

/* ----------------------------------------------------------------------------------- scoring */

/* Row `row` becomes this text, or one token where there is none. */
static bool put(scorer *r, int64_t row, const int32_t *ids, int64_t count, int64_t number,
                zf_error *error)
{
    int32_t *to = r->ids + row * r->tokens;
    const int64_t vocab = *zf_config_facts_of(r->session.sample->config(), &r->config).vocab;
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

/* Scores the texts of a step, from number `first` on; rows without one are filled. */
static bool score_step(scorer *r, const int32_t *const *ids, const int64_t *counts, int64_t first,
                       int64_t n, float *scores, zf_error *error)
{
    static const int32_t none = 0;
    const int64_t here = n <= first ? 0 : n - first < r->texts ? n - first : r->texts;
    for (int64_t k = 0; k < r->texts; k++)
        if (!put(r, k, k < here ? ids[first + k] : &none, k < here ? counts[first + k] : 1,
                 first + k, error))
            return false;
    if (!step(r, error)) return false;
    for (int64_t k = 0; k < here; k++) scores[first + k] = r->scores[k];
    return true;
}

/* Takes steps in turns with the other ranks. */
static bool score_all(scorer *r, const int32_t *const *ids, const int64_t *counts, int64_t n,
                      float *scores, zf_error *error)
{
    const session *s = &r->session;
    for (int64_t at = 0; at < n; at += s->world * r->texts)
        if (!score_step(r, ids, counts, at + s->rank * r->texts, n, scores, error)) return false;
    return !ranks_add(s->comm, scores, n, error);
}

bool scorer_run(scorer *r, const int32_t *const *ids, const int64_t *counts, int64_t n, double *scores,
                zf_error *error)
{
    float *all = calloc((size_t)n + 1, sizeof *all);
    bool good = all ? score_all(r, ids, counts, n, all, error)
                    : fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t k = 0; k < n && good; k++) {
        scores[k] = (double)all[k];
        if (!isfinite(scores[k]))
            good = fail(error, ZF_ERR_NAN, "the score of text %lld is not a finite number",
                        (long long)k);
    }
    free(all);
    return good;
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
    const int64_t own = *zf_config_facts_of(r->session.sample->config(), (void *)(uintptr_t)&r->config).vocab;
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
