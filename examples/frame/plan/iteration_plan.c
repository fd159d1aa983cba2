#include "iteration_plan.h"
#include "../options/fail.h"
#include "../experience/experience.h"
#include "../score/scorer.h"

#include <string.h>

enum { SAMPLING, SCORING, REFERENCE, REWARD, TRAINING };

/* All that is open while a plan is made. */
typedef struct rehearsal {
    const iteration_desc *d;
    zf_comm comm;
    settings run;
    policy_options own;
    policy_graph graph;
    experience_desc about;
    session train;
    experience e;
    scorer reward;
} rehearsal;

static zf_status refuse(void *self, const zf_collective *call, zf_error *error)
{
    (void)self, (void)call;
    return fail_with(error, ZF_ERR_STAGE, "a plan exchanges nothing");
}

static bool opens(void *self) { return self != NULL; }

/* ------------------------------------------------------------------------------------- counting */

static size_t persistent_of(const zf_program_info *i) { return i->input_bytes + i->constant_bytes; }

/* Of the device: what lies in the memory that phases share. */
static size_t in_turns(const zf_program_info *i)
{
    return i->peak_bytes - i->store_bytes - persistent_of(i);
}

/* Adds a program to a phase. */
static void add(iteration_phase *p, const char *name, const zf_program *program)
{
    const zf_program_info i = zf_program_info_of(program);
    size_t values = in_turns(&i);
    p->name = name;
    p->held += i.held_bytes, p->caches += i.cache_bytes;
    p->kept += persistent_of(&i);
    p->apart |= values && !i.shared[ZF_DEVICE];
    values -= values < p->held + p->caches ? values : p->held + p->caches;
    if (values > p->values) p->values = values;
}

/* Bytes of a store and its programs in a space. */
static size_t allocated(const zf_program *p, zf_space space)
{
    const zf_store_info i = zf_store_info_of(zf_program_store(p));
    if (space == ZF_DEVICE) return i.bytes + i.program_bytes;
    return space == ZF_HOST ? i.offloaded_bytes + i.host_program_bytes : i.disk_bytes;
}

static void count_all(iteration_plan *out, const rehearsal *r)
{
    const experience *e = &r->e;
    const zf_program_info train = zf_program_info_of(r->train.program);
    const zf_store_info store = zf_store_info_of(zf_program_store(r->train.program));
    const bool copy = r->about.copy;
    add(&out->phases[SAMPLING], "sampling", e->decoder.prompt.program);
    add(&out->phases[SAMPLING], "sampling", e->decoder.token.program);
    if (e->decoder.prompt.gather) {
        const zf_traffic t = zf_program_info_of(e->decoder.prompt.gather).plan.traffic;
        add(&out->phases[SAMPLING], "sampling", e->decoder.prompt.gather);
        out->moved = t.all_gather.bytes + t.upload.bytes + t.read.bytes;
    }
    add(&out->phases[SCORING], "scoring", e->score.program);
    if (r->about.reference) add(&out->phases[REFERENCE], "reference", e->base.program);
    if (r->d->reward) add(&out->phases[REWARD], "reward model", r->reward.session.program);
    add(&out->phases[TRAINING], "training", r->train.program);
    out->phases[TRAINING].apart = false;
    out->parameters = train.param_bytes, out->states = train.state_bytes;
    out->total = store.bytes + store.program_bytes;
    out->shared = store.program_bytes;
    for (int k = 0; k < ITERATION_PHASES; k++)
        if (!(k == REWARD || (k == REFERENCE && copy))) out->shared -= out->phases[k].kept;
    out->host = allocated(r->train.program, ZF_HOST), out->disk = allocated(r->train.program, ZF_DISK);
    if (copy) {
        out->phases[REFERENCE].kept += zf_program_info_of(e->base.program).store_bytes;
        out->total += allocated(e->base.program, ZF_DEVICE);
    }
    if (r->d->reward) {
        out->phases[REWARD].kept += zf_program_info_of(r->reward.session.program).store_bytes;
        out->total += allocated(r->reward.session.program, ZF_DEVICE);
    }
    out->parameter_count = train.param_count, out->answers = r->d->batch;
}

/* -------------------------------------------------------------------------------------- opening */

/* What the command line of a run would say. */
static bool describe(rehearsal *r, zf_error *error)
{
    const iteration_desc *d = r->d;
    const bool adapts = zf_training_resolved(&d->training).lora.rank != 0;
    static const policy_kind kind = {.usage = ""};
    const int64_t parts = d->world * (d->training.zero.micro_batches ? d->training.zero.micro_batches : 1);
    if (d->batch % parts || d->batch % d->group)
        return fail(error, ZF_ERR_ARGUMENT,
                    "a batch of %lld answers is no multiple of the %lld parts of a step, or of the "
                    "group of %lld",
                    (long long)d->batch, (long long)parts, (long long)d->group);
    r->comm = (zf_comm){.world = d->world, .run = refuse, .groups = opens(r)};
    r->run = (settings){.device = d->device, .threads = d->threads * d->world, .training = d->training};
    r->own = (policy_options){.group = d->group, .tokens = d->answer, .answers = d->batch, .kind = &kind};
    r->graph = (policy_graph){.temperature = 1};
    r->about = (experience_desc){.o = &r->own,
                                 .run = &r->run,
                                 .batch = d->batch,
                                 .sequence = d->prompt + d->answer,
                                 .config = d->config,
                                 .no_fuse = d->training.fuse.without,
                                 .reference = d->reference || adapts,
                                 .copy = d->reference && !adapts};
    return true;
}

static bool open_training(rehearsal *r, zf_error *error)
{
    const iteration_desc *d = r->d;
    const int64_t micro = d->training.zero.micro_batches ? d->training.zero.micro_batches : 1;
    session_desc s = {.sample = d->sample,
                      .purpose = SAMPLE_TRAIN,
                      .config = d->config,
                      .shape = {.batch = d->batch / (d->world * micro),
                                .sequence = r->about.sequence,
                                .policy = &r->graph},
                      .training = d->training,
                      .comm = d->world > 1 ? &r->comm : NULL,
                      .device = d->device,
                      .threads = d->threads,
                      .plan_only = true};
    s.training.zero.nodes = d->nodes;
    return session_open(&r->train, &s, error);
}

static bool open_reward(rehearsal *r, zf_error *error)
{
    const iteration_desc *d = r->d;
    return !d->reward || scorer_open(&r->reward,
                                     &(scorer_desc){.sample = d->sample,
                                                    .folder = d->reward,
                                                    .tokens = r->about.sequence,
                                                    .threads = d->threads,
                                                    .plan_only = true},
                                     error);
}

bool iteration_plan_of(iteration_plan *out, const iteration_desc *d, zf_error *error)
{
    rehearsal r = {.d = d};
    bool trains, knows, good;
    *out = (iteration_plan){.total = 0};
    if (!describe(&r, error)) return false;
    trains = open_training(&r, error);
    knows = trains && experience_new(&r.e, &r.about, error);
    good = knows && experience_open(&r.e, &r.train, error);
    if (good && (good = open_reward(&r, error))) count_all(out, &r);
    if (good) scorer_close(&r.reward);
    if (trains) experience_close(&r.e), session_close(&r.train);
    return good;
}
