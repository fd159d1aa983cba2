/* The answers of an iteration as a file of a checkpoint, for a run that goes on amid its steps:
 *
 *     8 bytes                 "zfanswer"
 *     i64 [HEAD]              iteration, answers, tokens of a row, bytes of all that follows
 *     regions                 those of `regions_of`, and of the kind, one after the other
 *
 * Numbers are little-endian, as those of params.safetensors. */
#include "experience.h"
#include "../options/fail.h"

#include <string.h>

static const char magic[8] = {'z', 'f', 'a', 'n', 's', 'w', 'e', 'r'};

enum { MAGIC = sizeof magic, HEAD = 4, REGIONS = 16 };

/* What is written and read; returns the number of regions. */
static int regions_of(experience *e, experience_region out[REGIONS])
{
    const size_t answers = (size_t)e->answers, cells = answers * (size_t)e->desc->sequence;
    const policy_kind *kind = e->desc->o->kind;
    const experience_region all[] = {{e->ids, cells * sizeof *e->ids},
                                     {e->labels, cells * sizeof *e->labels},
                                     {e->weight, answers * sizeof *e->weight},
                                     {e->advantage, cells * sizeof *e->advantage},
                                     {e->old, cells * sizeof *e->old},
                                     {e->entropy, cells * sizeof *e->entropy},
                                     {e->reference, cells * sizeof *e->reference},
                                     {e->correction, cells * sizeof *e->correction},
                                     {e->sampled, cells * sizeof *e->sampled},
                                     {e->reward, answers * sizeof *e->reward},
                                     {&e->log, sizeof e->log}};
    const int count = sizeof all / sizeof *all;
    memcpy(out, all, sizeof all);
    return count + (kind->keeps ? kind->keeps(e, out + count) : 0);
}

static void head_of(const experience *e, int64_t iteration, const experience_region *regions,
                    int count, int64_t head[HEAD])
{
    head[0] = iteration, head[1] = e->answers, head[2] = e->desc->sequence, head[3] = 0;
    for (int k = 0; k < count; k++) head[3] += (int64_t)regions[k].bytes;
}

bool experience_keep(experience *e, int64_t iteration, zf_text *out, zf_error *error)
{
    experience_region regions[REGIONS];
    const int count = regions_of(e, regions);
    int64_t head[HEAD];
    head_of(e, iteration, regions, count, head);
    zf_text_clear(out);
    zf_text_add(out, magic, sizeof magic);
    zf_text_add(out, (const char *)head, sizeof head);
    for (int k = 0; k < count; k++) zf_text_add(out, regions[k].at, regions[k].bytes);
    return !out->failed || fail(error, ZF_ERR_NOMEM, "out of memory");
}

static bool is_token(int32_t id, int64_t vocab) { return id >= 0 && (!vocab || id < vocab); }

/* Whether tokens and labels are those of the model. */
static bool has_tokens(const experience *e)
{
    const int64_t vocab = e->desc->how->vocab;
    for (int64_t k = 0; k < e->answers * e->desc->sequence; k++)
        if (!is_token(e->ids[k], vocab) || (e->labels[k] != -100 && !is_token(e->labels[k], vocab)))
            return false;
    return true;
}

bool experience_take(experience *e, int64_t iteration, const zf_text *from, zf_error *error)
{
    experience_region regions[REGIONS];
    const int count = regions_of(e, regions);
    int64_t head[HEAD];
    size_t at = MAGIC + sizeof head;
    head_of(e, iteration, regions, count, head);
    if (from->count != at + (size_t)head[3] || memcmp(from->at, magic, sizeof magic) ||
        memcmp(from->at + MAGIC, head, sizeof head))
        return fail(error, ZF_ERR_FORMAT,
                    "it does not have the %lld answers of iteration %lld in rows of %lld tokens",
                    (long long)head[1], (long long)iteration, (long long)head[2]);
    for (int k = 0; k < count; at += regions[k++].bytes)
        memcpy(regions[k].at, from->at + at, regions[k].bytes);
    return has_tokens(e) ||
           fail(error, ZF_ERR_FORMAT, "its answers have tokens that the model does not have");
}
