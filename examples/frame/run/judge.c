/* Evaluation of a run, during it and at its end, and the checkpoint that was best. */
#include "../options/fail.h"
#include "run.h"

#include <math.h>
#include <stdlib.h>

/* Opens the session that evaluates, over the run's parameters and in the same parts. */
static bool open_judge(run *r)
{
    const run_job *job = r->job;
    const session_desc d = {.sample = job->sample,
                            .purpose = SAMPLE_EVALUATE,
                            .config = &job->config,
                            .shape = job->shape,
                            .training = {.fuse.without = job->o.training.fuse.without,
                                         .zero.micro_batches = job->o.training.zero.micro_batches},
                            .share = &r->session};
    if (!r->judge.graph && !session_open(&r->judge, &d, &r->error)) return false;
    r->judge.reference = r->reference;
    return true;
}

static bool evaluate(run *r)
{
    const run_job *job = r->job;
    const int64_t step = zf_program_step(r->session.program);
    if (!open_judge(r)) return false;
    if (!job->o.batch_file)
        return session_score(&r->judge, &job->data, job->o.eval_batches, &r->score, &r->error);
    if (!session_score_step(&r->judge, &job->data, step, &r->score, &r->error)) return false;
    for (int k = 0; r->leads && k < SAMPLE_LOSSES && job->sample->objective->losses[k]; k++) {
        const char *name = job->sample->objective->losses[k];
        printf("%s%s %.9g", k ? "  " : "", name, session_scalar(&r->judge, name));
    }
    if (r->leads) printf("\n");
    return true;
}

bool run_evaluate(run *r)
{
    if (!evaluate(r)) return false;
    r->judged = zf_program_step(r->session.program);
    return !r->leads || run_put_score(r);
}

bool run_judge_begin(run *r)
{
    const settings *o = &r->job->o;
    char text[40];
    zf_error none = {ZF_OK, ""};
    r->best = INFINITY;
    if (r->job->resumes &&
        !zf_checkpoint_note(r->job->best.path, "held-out", text, sizeof text, &none))
        r->best = strtod(text, NULL);
    /* What cannot be cut as what trains is an error before the first step. */
    return !settings_adapts(o) || o->training.tensor < 2 || !o->eval_batches || o->batch_file ||
           open_judge(r);
}

bool run_judge(run *r)
{
    const run_job *job = r->job;
    char held_out[40];
    if (!run_evaluate(r)) return false;
    if (r->leads) {
        printf("%sheld out after step %lld: ", r->terminal ? "\r\033[K" : "",
               (long long)r->judged);
        job->sample->objective->print(&r->score, &job->config, job->data.unigram_nats, false);
    }
    if (!(r->score.loss < r->best)) return true;
    r->best = r->score.loss, r->best_step = r->judged;
    snprintf(held_out, sizeof held_out, "%.17g", r->best);
    return !job->o.save || run_save_to(r, &job->best, held_out);
}
