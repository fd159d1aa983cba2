/* Answers to prompts, a part of them on each rank. */
#include <stdlib.h>
#include <string.h>

/* How answer k of `r` begins. */
static bool zfl_rollout_begin(const zf_rollouts *r, int64_t k, const zf_rollout_desc *d,
                              const zf_answer_desc *how, zf_answer *a, zf_error *error)
{
    const zf_prompt *p = r->prompts[k / r->group];
    *a = (zf_answer){.given = 0};
    for (size_t i = 0; i < p->ids.count; i++) zf_ids_add(&a->ids, p->ids.at[i]);
    a->owner = zf_sampler_owner_of(d->iteration, p->number,
                                   r->samples[k / r->group] + k % r->group);
    return zf_answer_begin(a, how, error);
}

/* The numbers of samples: those of a prompt that is there again follow the ones before. */
static bool zfl_rollouts_number(zf_rollouts *r, const zf_prompts *data, const int64_t *numbers,
                                int64_t count, zf_error *error)
{
    int64_t *next = calloc((size_t)data->count + 1, sizeof *next);
    if (!next) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t i = 0; i < count; i++) {
        r->prompts[i] = &data->at[numbers[i]];
        r->samples[i] = next[numbers[i]];
        next[numbers[i]] += r->group;
    }
    free(next);
    return true;
}

/* Writes answers first, first + step, ..., which are to be freed in any case. */
static bool zfl_rollouts_part(zf_rollouts *r, int64_t first, int64_t step, const zf_rollout_desc *d,
                              const zf_answer_desc *how, zf_error *error)
{
    const int64_t count = r->count > first ? (r->count - first - 1) / step + 1 : 0;
    zf_answer *part = calloc((size_t)count + 1, sizeof *part);
    const zf_answers_desc all = {.decoder = d->decoder,
                                 .how = how,
                                 .sampling = d->sampling,
                                 .seed = d->seed,
                                 .tokens = d->tokens,
                                 .logp = true};
    bool good = part || zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t i = 0; i < count && good; i++)
        good = zfl_rollout_begin(r, first + i * step, d, how, &part[i], error);
    good = good && zf_answers_write(part, count, &all, error);
    for (int64_t i = 0; i < count && part; i++) r->answers[first + i * step] = part[i];
    free(part);
    return good;
}

/* An answer as numbers, for other ranks: how many tokens, the tokens, the bits of their logp. */
static size_t zfl_record_size(const zf_rollout_desc *d) { return 1 + 2 * (size_t)d->tokens; }

static void zfl_record_put(int32_t *record, const zf_answer *a, int64_t tokens)
{
    const size_t count = a->ids.count - a->given;
    record[0] = (int32_t)count;
    memcpy(record + 1, a->ids.at + a->given, count * sizeof *record);
    memcpy(record + 1 + tokens, a->logp, count * sizeof *record);
}

/* Answer k of another rank: its tokens give the same text and the same end. */
static bool zfl_record_take(zf_rollouts *r, int64_t k, const int32_t *record,
                            const zf_rollout_desc *d, const zf_answer_desc *how, zf_error *error)
{
    zf_answer *a = &r->answers[k];
    if (!zfl_rollout_begin(r, k, d, how, a, error)) return false;
    if (!(a->logp = calloc((size_t)d->tokens, sizeof *a->logp)))
        return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    memcpy(a->logp, record + 1 + d->tokens, (size_t)record[0] * sizeof *record);
    for (int32_t i = 0; i < record[0]; i++)
        if (!zf_answer_put(a, how, record[1 + i], error)) return false;
    return a->done || zf_answer_put(a, how, -1, error);
}

/* Answer k is the (k / world)-th of rank k % world. */
static bool zfl_rollouts_gather(zf_rollouts *r, const zf_rollout_desc *d, const zf_answer_desc *how,
                                zf_error *error)
{
    const int64_t world = d->comm->world, rank = d->comm->rank, each = (r->count - 1) / world + 1;
    const size_t size = zfl_record_size(d), part = (size_t)each * size;
    int32_t *all = calloc((size_t)world * part, sizeof *all);
    const zf_collective gather = {.op = ZF_OP_all_gather,
                                  .dtype = ZF_I32,
                                  .count = (int64_t)part,
                                  .in = all ? all + (size_t)rank * part : NULL,
                                  .out = all};
    bool good = all || zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t k = rank; k < r->count && good; k += world)
        zfl_record_put(all + (size_t)rank * part + (size_t)(k / world) * size, &r->answers[k],
                       d->tokens);
    good = good && !d->comm->run(d->comm->self, &gather, error);
    for (int64_t k = 0; k < r->count && good; k++)
        if (k % world != rank)
            good = zfl_record_take(
                r, k, all + (size_t)(k % world) * part + (size_t)(k / world) * size, d, how, error);
    free(all);
    return good;
}

static bool zfl_rollouts_open(zf_rollouts *r, const zf_prompts *data, const int64_t *numbers,
                              int64_t count, const zf_rollout_desc *d, zf_error *error)
{
    if (d->decoder->texts < 2 || d->decoder->prompt.tokens < 2)
        return zfl_fail(error, ZF_ERR_ARGUMENT,
                        "a decoder of rollouts has at least 2 texts, and adds at least 2 tokens of "
                        "a prompt at once: products of one row round otherwise than those of "
                        "several");
    r->group = d->group, r->count = count * d->group;
    r->answers = calloc((size_t)r->count + 1, sizeof *r->answers);
    r->prompts = calloc((size_t)count + 1, sizeof *r->prompts);
    r->samples = calloc((size_t)count + 1, sizeof *r->samples);
    if (!r->answers || !r->prompts || !r->samples) {
        r->count = 0;
        return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    }
    return zfl_rollouts_number(r, data, numbers, count, error);
}

bool zf_rollouts_write(zf_rollouts *r, const zf_prompts *data, const int64_t *numbers,
                       int64_t count, const zf_rollout_desc *d, zf_error *error)
{
    zf_answer_desc how = *d->how;
    const int64_t first = d->comm ? d->comm->rank : 0, step = d->comm ? d->comm->world : 1;
    bool good;
    how.keep_end = true;
    *r = (zf_rollouts){.answers = NULL};
    *error = (zf_error){ZF_OK, ""};
    good = zfl_rollouts_open(r, data, numbers, count, d, error) &&
           zfl_rollouts_part(r, first, step, d, &how, error) &&
           (step == 1 || !r->count || zfl_rollouts_gather(r, d, &how, error));
    if (!good) zf_rollouts_free(r);
    return good;
}

void zf_rollouts_free(zf_rollouts *r)
{
    for (int64_t k = 0; k < r->count; k++) zf_answer_free(&r->answers[k]);
    free(r->answers);
    free(r->prompts);
    free(r->samples);
    *r = (zf_rollouts){.answers = NULL};
}
