/* What a loss compares with: numbers of the first parameters, which are computed once for all
 * examples and kept in checkpoints, so that no second model is in memory. */
#include "../options/fail.h"
#include "../../../zeroflow_llm.h"
#include "run.h"

#include <stdlib.h>
#include <string.h>

const char run_reference_file[] = "reference.f32";

size_t run_reference_bytes(const run_job *job)
{
    const objective *of = job->sample->objective;
    return of->references ? (size_t)of->references(&job->data, &job->o) * sizeof(float) : 0;
}

/* Reads it from the checkpoint of --load. */
static bool read_reference(run *r, size_t bytes)
{
    const char *load = r->job->o.load;
    char path[1200];
    zf_text text = {.at = NULL};
    snprintf(path, sizeof path, "%s/%s", load, run_reference_file);
    if (zf_text_read(path, &text, &r->error) && text.count != bytes)
        fail(&r->error, ZF_ERR_MISMATCH,
             "%s has %zu bytes, not %zu: %s belongs to other examples of --data", path, text.count,
             bytes, load);
    if (!r->error.status) memcpy(r->reference, text.at, bytes);
    zf_text_free(&text);
    return run_agree(r);
}

/* The session evaluates one part on each rank, of the shape of a part of training: then a text has
 * the same bits. */
static bool compute_reference(run *r)
{
    const run_job *job = r->job;
    const session_desc d = {.sample = job->sample,
                            .purpose = SAMPLE_EVALUATE,
                            .config = &job->config,
                            .shape = job->shape,
                            .training = {.fuse = {.without = job->o.training.fuse.without,
                                                  .as_trained = true}},
                            .share = &r->session};
    session s;
    bool good;
    if (!session_open(&s, &d, &r->error)) return run_agree(r);
    if (!run_agree(r)) return session_close(&s), false;
    good = job->sample->objective->refer(&s, &job->data, r->reference, &r->error);
    session_close(&s);
    return good;
}

bool run_refer(run *r)
{
    const size_t bytes = run_reference_bytes(r->job);
    if (!bytes) return true;
    if (!(r->reference = malloc(bytes))) fail(&r->error, ZF_ERR_NOMEM, "out of memory");
    if (!run_agree(r)) return false;
    memset(r->reference, 0, bytes);
    if (!(r->job->o.load ? read_reference(r, bytes) : compute_reference(r))) return false;
    r->session.reference = r->reference;
    return true;
}
