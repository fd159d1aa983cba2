#include "iteration_plan.h"
#include "../experience/rehearsal.h"
#include "../options/fail.h"

#include <string.h>

enum { SAMPLING, SCORING, REFERENCE, REWARD, VALUES, CRITIC, TRAINING };
static const char *const names[ITERATION_PHASES] = {
    "sampling", "scoring", "reference", "reward model", "values", "critic", "training"};

/* What the command line of a run would say, and all that is open while a plan is made. */
typedef struct plan_maker {
    const iteration_desc *d;
    zf_comm comm; /* of so many ranks; it is never called */
    settings run;
    policy_options own;
    policy_graph graph;
    experience_desc about;
    rehearsal r;
    size_t training; /* bytes of the step that trains, without room for larger phases */
    zf_reward reward; /* of a model; no fn: there is none */
    model_rewards models;
} plan_maker;

/* ------------------------------------------------------------------------------------- counting */

/* Adds a program to a phase. */
static void add(iteration_plan *out, int which, const zf_program *program)
{
    iteration_phase *p = &out->phases[which];
    const zf_program_info i = zf_program_info_of(program);
    size_t values = experience_turn_bytes(program);
    p->name = names[which];
    p->held += i.held_bytes, p->caches += i.cache_bytes;
    p->kept += i.input_bytes + i.constant_bytes;
    p->apart |= values && !i.shared[ZF_DEVICE];
    values -= values < p->held + p->caches ? values : p->held + p->caches;
    if (values > p->values) p->values = values;
}

/* All programs of a session. */
static void add_session(iteration_plan *out, int which, const session *s)
{
    for (int32_t k = 0; k < s->variants; k++) add(out, which, s->programs[k]);
    if (s->gather) add(out, which, s->gather);
}

static void add_part(iteration_plan *out, const experience_part *part)
{
    int which = 0;
    while (strcmp(names[which], part->name) != 0) which++;
    add_session(out, which, part->session);
}

/* Bytes of a store and its programs in a space. */
static size_t allocated(const zf_program *p, zf_space space)
{
    const zf_store_info i = zf_store_info_of(zf_program_store(p));
    if (space == ZF_DEVICE) return i.bytes + i.program_bytes;
    return space == ZF_HOST ? i.offloaded_bytes + i.host_program_bytes : i.disk_bytes;
}

/* A session with a store of its own. */
static void add_whole(iteration_plan *out, int which, const session *s)
{
    out->phases[which].kept += zf_program_info_of(s->program).store_bytes;
    out->total += allocated(s->program, ZF_DEVICE);
}

/* What a model has besides the base that it shares. */
static void add_shared(iteration_plan *out, const session *s)
{
    const zf_program_info i = zf_program_info_of(s->program);
    out->parameters += i.param_bytes, out->states += i.state_bytes;
}

static void count_all(iteration_plan *out, const plan_maker *m)
{
    const experience *e = &m->r.e;
    const session *train = &m->r.train;
    const zf_program_info info = zf_program_info_of(train->program);
    const zf_store_info store = zf_store_info_of(zf_program_store(train->program));
    const zf_program *gather = e->decoder.prompt.gather;
    const session *reward = m->reward.fn ? model_reward_session(m->reward.user) : NULL;
    experience_part parts[EXPERIENCE_PARTS];
    const int count = experience_parts(e, parts);
    out->parameters = info.param_bytes, out->states = info.state_bytes;
    out->total = store.bytes + store.program_bytes;
    for (int k = 0; k < count; k++) {
        add_part(out, &parts[k]);
        if (parts[k].whole) add_whole(out, REFERENCE, parts[k].session);
        if (!strcmp(parts[k].name, names[CRITIC]) || !strcmp(parts[k].name, names[REWARD]))
            add_shared(out, parts[k].session);
    }
    add_session(out, TRAINING, train);
    out->phases[TRAINING].values = m->training;
    out->phases[TRAINING].apart = false;
    out->shared = store.program_bytes;
    for (int k = 0; k < ITERATION_PHASES; k++)
        if (!(k == REFERENCE && m->about.copy)) out->shared -= out->phases[k].kept;
    if (reward) add_session(out, REWARD, reward), add_whole(out, REWARD, reward);
    if (gather) {
        const zf_traffic t = zf_program_info_of(gather).plan.traffic;
        out->moved = t.all_gather.bytes + t.upload.bytes + t.read.bytes;
    }
    out->host = allocated(train->program, ZF_HOST), out->disk = allocated(train->program, ZF_DISK);
    out->parameter_count = info.param_count, out->answers = m->d->batch;
}

/* -------------------------------------------------------------------------------------- opening */

static int64_t micro_batches(const iteration_desc *d)
{
    return d->training.zero.micro_batches ? d->training.zero.micro_batches : 1;
}

static bool fits_parts(const iteration_desc *d, zf_error *error)
{
    const int64_t parts = d->world * micro_batches(d);
    if (d->batch % parts || d->batch % d->group)
        return fail(error, ZF_ERR_ARGUMENT,
                    "a batch of %lld answers is no multiple of the %lld parts of a step, or of the "
                    "group of %lld",
                    (long long)d->batch, (long long)parts, (long long)d->group);
    return d->texts % parts == 0 ||
           fail(error, ZF_ERR_ARGUMENT,
                "%lld rows of a text cannot be split into %lld parts of a step",
                (long long)d->texts, (long long)parts);
}

/* What the command line of a run would say. */
static void describe(plan_maker *m)
{
    const iteration_desc *d = m->d;
    const bool adapts = zf_training_resolved(&d->training).lora.rank != 0,
               reference = d->reference || d->ppo;
    static const policy_kind grpo = {.usage = ""};
    m->comm = (zf_comm){.world = d->world};
    m->run = (settings){.init = d->folder,
                        .tokenizer = d->folder,
                        .device = d->device,
                        .threads = d->threads * d->world,
                        .training = d->training};
    m->own = (policy_options){.group = d->group,
                              .tokens = d->answer,
                              .answers = d->batch,
                              .ppo = {.critic = d->critic, .value.clip = 0.2},
                              .kind = d->ppo ? d->ppo : &grpo};
    m->graph = (policy_graph){.temperature = 1,
                              .texts = d->texts / (d->world * micro_batches(d)),
                              .text_coefficient = d->texts ? 1 : 0};
    m->about = (experience_desc){.o = &m->own,
                                 .run = &m->run,
                                 .batch = d->batch,
                                 .sequence = d->prompt + d->answer,
                                 .models = &m->models,
                                 .config = d->config,
                                 .no_fuse = d->training.fuse.without,
                                 .reference = reference || adapts,
                                 .copy = reference && !adapts};
}

/* Twice: then the memory of a step has room for the largest phase, as a run makes it. */
static bool rehearse_twice(plan_maker *m, zf_error *error)
{
    const iteration_desc *d = m->d;
    session_desc s = {.sample = d->sample,
                      .purpose = SAMPLE_TRAIN,
                      .config = d->config,
                      .shape = {.batch = d->batch / (d->world * micro_batches(d)),
                                .sequence = m->about.sequence,
                                .policy = &m->graph},
                      .training = d->training,
                      .comm = d->world > 1 ? &m->comm : NULL,
                      .device = d->device,
                      .threads = d->threads};
    s.training.zero.nodes = d->nodes;
    if (!rehearsal_open(&m->r, &m->about, &s, error)) return false;
    m->training = experience_turn_bytes(m->r.train.program), s.reserve = rehearsal_reserve(&m->r);
    rehearsal_close(&m->r);
    return rehearsal_open(&m->r, &m->about, &s, error);
}

static bool open_reward(plan_maker *m, zf_error *error)
{
    const iteration_desc *d = m->d;
    model_reward_desc model = {.sample = d->sample,
                               .run = &m->run,
                               .config = d->config,
                               .over = &m->models,
                               .tokens = m->about.sequence,
                               .threads = d->threads,
                               .plan_only = true};
    return !d->reward || model_reward_open(&model, d->reward, &m->reward, error);
}

bool iteration_plan_of(iteration_plan *out, const iteration_desc *d, zf_error *error)
{
    plan_maker m = {.d = d};
    bool good;
    *out = (iteration_plan){.total = 0};
    if (!fits_parts(d, error)) return false;
    describe(&m);
    if ((good = open_reward(&m, error) && rehearse_twice(&m, error))) {
        count_all(out, &m);
        rehearsal_close(&m.r);
    }
    if (m.reward.close) m.reward.close(m.reward.user);
    return good;
}
