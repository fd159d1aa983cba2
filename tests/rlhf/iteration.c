/* An iteration of grpo or ppo takes the bytes that its plan says (zf-plan rlhf): programs of all phases are
 * opened, answers sampled, and a step is made. On CUDA: ppo by one rank, with four models over one base. */
#include "../../examples/frame/options/command.h"
#include "../../examples/frame/plan/iteration_plan.h"
#include "../../examples/frame/experience/rehearsal.h"
#include "../../examples/frame/ppo/ppo.h"
#include "../../examples/llm/model.h"
#include "../support/test.h"

#include <pthread.h>

#define MODEL "tests/golden/llm/llama2"
#define JUDGE "tests/golden/reward/adapter" /* over MODEL */

#ifdef WITH_CUDA
static const device_desc device = {.kind = DEVICE_CUDA};
enum { GROUP = 2, BATCH = 4, ANSWER = 2 }; /* few kernels, for their emulation */
#else
static const device_desc device = {.kind = DEVICE_CPU};
enum { GROUP = 4, BATCH = 16, ANSWER = 10 };
#endif
enum { IDS = 37, PROMPT = 6, MOST = 4 };

/* 0 to 9 and others are ids 27 to 36. */
static zf_tokenizer *characters(zf_error *error)
{
    char text[600];
    int n = snprintf(text, sizeof text, "{\"model\": {\"merges\": [], \"vocab\": {\"a\": 0");
    for (int k = 1; k < IDS; k++)
        n += snprintf(text + n, sizeof text - (size_t)n, ", \"%c\": %d",
                      "abcdefghijklmnopqrstuvwxyz 0123456789#"[k], k);
    n += snprintf(text + n, sizeof text - (size_t)n, "}}}");
    return zf_tokenizer_parse(text, (size_t)n, "characters", error);
}

static bool no_advantages(experience *e, session *s, zf_error *error)
{
    (void)s, (void)error;
    memset(e->advantage, 0, (size_t)(BATCH * (PROMPT + ANSWER)) * sizeof *e->advantage);
    return true;
}

/* One rank. */
typedef struct rank {
    const iteration_desc *d;
    const zf_comm *comm;
    const char *prompts;
    pthread_t thread;
    size_t device, host, held, moved;
    zf_error error;
} rank;

static zf_status write_step(session *s, const experience *e)
{
    const size_t cells = (size_t)(s->shape.batch * s->shape.sequence) * 4;
    const float lr = 1e-3f;
    zf_status status = session_write(s, "input_ids", e->ids, cells);
    if (!status) status = session_write(s, "labels", e->labels, cells);
    if (!status) status = session_write(s, "old", e->old, cells);
    if (!status) status = session_write(s, "correction", e->correction, cells);
    if (!status) status = session_write(s, "reference", e->old, cells);
    if (!status) status = session_write(s, "advantage", e->advantage, cells);
    if (!status) status = session_write(s, "weight", e->weight, (size_t)s->shape.batch * 4);
    return status ? status : zf_write(s->program, s->lr, &lr, sizeof lr);
}

/* Two iterations of a step each. */
static bool iterate(rank *r, session *s, experience *e)
{
    for (int64_t k = 0; k < 2; k++) {
        zf_status status;
        if (!experience_make(e, s, k, &r->error)) return false;
        if (r->d->ppo && !ppo_kind.step(e, s, 0, k, &r->error)) return false;
        status = write_step(s, e);
        if (!status) status = zf_step(s->program);
        if (!status) continue;
        snprintf(r->error.text, sizeof r->error.text, "%s", zf_program_error(s->program));
        return r->error.status = status, false;
    }
    return true;
}

static void count_bytes(rank *r, const session *s, const experience *e)
{
    const zf_store_info all = zf_store_info_of(zf_program_store(s->program));
    const zf_program *gather = e->decoder.prompt.gather;
    r->device = all.bytes + all.program_bytes, r->host = all.offloaded_bytes + all.host_program_bytes;
    r->held = zf_program_info_of(e->decoder.prompt.program).held_bytes;
    if (gather) {
        const zf_traffic t = zf_program_info_of(gather).counted;
        r->moved = t.all_gather.bytes + t.upload.bytes;
    }
    if (!e->desc->copy) return;
    const zf_store_info own = zf_store_info_of(zf_program_store(e->base.program));
    r->device += own.bytes + own.program_bytes;
}

static void run_with(rank *r, zf_tokenizer *tokens, zf_rewards *rewards,
                     const model_rewards *models, settings run)
{
    static const policy_kind kind = {.advantages = no_advantages};
    const iteration_desc *d = r->d;
    const zf_answer_desc how = {.tokenizer = tokens, .vocab = IDS};
    const bool adapts = d->training.lora.rank != 0;
    policy_options own = {.group = GROUP, .tokens = ANSWER, .answers = BATCH,
                          .kind = d->ppo ? d->ppo : &kind,
                          .ppo = {.critic = d->critic, .critic_every = 1, .kl_horizon = 100, .value.clip = 0.2, .critic_lr = 1e-3},
                          .how.temperature = 1};
    policy_graph graph = {.temperature = 1};
    zf_prompts prompts = {.count = 0};
    experience_desc about = {.o = &own,
                             .run = &run,
                             .data = &prompts,
                             .how = &how,
                             .rewards = rewards,
                             .models = models,
                             .batch = BATCH,
                             .sequence = PROMPT + ANSWER,
                             .config = d->config,
                             .reference = d->reference || d->ppo || adapts,
                             .copy = (d->reference || d->ppo) && !adapts};
    session_desc s = {.sample = &llm_sample,
                      .purpose = SAMPLE_TRAIN,
                      .config = d->config,
                      .shape = {.batch = BATCH / d->world,
                                .sequence = PROMPT + ANSWER,
                                .policy = &graph},
                      .training = d->training,
                      .comm = r->comm,
                      .device = device,
                      .threads = 1};
    session train;
    experience e;
    if (!zf_prompts_read(&prompts, r->prompts, &(zf_prompts_desc){.how = &how}, &r->error)) return;
    if (rehearse(&about, &s, &s.reserve, &r->error) && session_open(&train, &s, &r->error)) {
        if (experience_new(&e, &about, &r->error) && iterate(r, &train, &e)) count_bytes(r, &train, &e);
        experience_close(&e);
        session_close(&train);
    }
    zf_prompts_free(&prompts);
}

/* What the ranks share: the rewards. */
typedef struct shared {
    zf_rewards *rewards;
    model_rewards models;
    settings run;
} shared;
static shared all;

static bool open_shared(const iteration_desc *d, zf_error *error)
{
    const char *const specs[] = {"length", "model:" JUDGE};
    model_reward_desc model = {.sample = &llm_sample,
                               .run = &all.run,
                               .config = d->config,
                               .over = &all.models,
                               .vocab = IDS,
                               .tokens = PROMPT + ANSWER};
    const zf_reward_kind kind = {"model", model_reward_open, &model};
    all = (shared){.run = {.init = MODEL,
                           .device = device,
                           .threads = d->world,
                           .steps = 2,
                           .training = d->training,
                           .quiet = true}};
    all.rewards = zf_rewards_open(&(zf_rewards_desc){.specs = specs,
                                                     .spec_count = d->reward ? 2 : 1,
                                                     .kinds = &kind,
                                                     .kind_count = 1,
                                                     .tokens = ANSWER},
                                  error);
    return all.rewards != NULL;
}

static void close_shared(void *object)
{
    zf_rewards_close(((shared *)object)->rewards);
}

static void *run_rank(void *self)
{
    rank *r = self;
    zf_tokenizer *tokens = characters(&r->error);
    if (tokens) run_with(r, tokens, all.rewards, &all.models, all.run);
    if (r->error.status && r->comm) r->comm->abort(r->comm->self, r->error.status, r->error.text);
    zf_tokenizer_free(tokens);
    return NULL;
}

/* Four models over one base: it, three adapters, two heads, states, and the largest phase. Of this
 * small model inputs are not small. */
static void check_sum(test *t, const iteration_plan *p)
{
    size_t most = 0, kept = 0;
    for (int k = 0; k < ITERATION_PHASES; k++) {
        const iteration_phase *f = &p->phases[k];
        const size_t bytes = f->held + f->caches + f->values;
        if (bytes > most) most = bytes;
        kept += f->kept;
    }
    CHECK(t, (double)(p->total - kept) <= 1.05 * (double)(p->parameters + p->states + most));
}

static void check_plan(test *t, const iteration_desc *d)
{
    static const char lines[] = "{\"prompt\": \"owl\"}\n{\"prompt\": \"a fox\"}\n{\"prompt\": \"cat a\"}\n"
                                "{\"prompt\": \"dog\"}\n";
    static rank ranks[MOST];
    const char *path = test_path("iteration.jsonl");
    FILE *f = fopen(path, "wb");
    zf_local *group = zf_local_new(&(zf_local_desc){.world = d->world, .deadline_seconds = 200}, NULL);
    iteration_plan plan;
    zf_error error = {ZF_OK, ""};
    CHECK(t, group && f && fputs(lines, f) >= 0 && !fclose(f));
    if (!iteration_plan_of(&plan, d, &error)) OK(t, error.status, error.text);
    if (!open_shared(d, &error)) OK(t, error.status, error.text);
    test_defer(t, close_shared, &all);
    for (int32_t k = 0; k < d->world; k++) {
        ranks[k] = (rank){.d = d, .comm = d->world > 1 ? zf_local_comm(group, k) : NULL, .prompts = path};
        if (pthread_create(&ranks[k].thread, NULL, run_rank, &ranks[k])) abort();
    }
    for (int32_t k = 0; k < d->world; k++) pthread_join(ranks[k].thread, NULL);
    zf_local_free(group);
    for (int k = 0; k < ITERATION_PHASES; k++) CHECK(t, !plan.phases[k].apart);
    CHECK(t, !d->ppo == !plan.phases[5].name && !d->reward == !plan.phases[3].name);
    CHECK(t, all.models.count == (d->reward != NULL));
    if (d->reward && d->world == 1) check_sum(t, &plan);
    for (int32_t k = 0; k < d->world; k++) {
        OK(t, ranks[k].error.status, ranks[k].error.text);
        CHECK(t, ranks[k].device == plan.total && ranks[k].host == plan.host);
        CHECK(t, ranks[k].held == plan.phases[0].held && ranks[k].moved == plan.moved);
    }
    zf_rewards_close(all.rewards), all.rewards = NULL;
}

/* To the byte, for ranks, stages, offload, adapters, a reward model over their base, and copies. */
TEST_ONCE(iteration_takes_what_is_planned)
{
    zf_causal_config config;
    zf_error error = {ZF_OK, ""};
    const zf_training bf16 = {.precision.dtype = ZF_BF16};
    zf_training t3 = {.zero.stage = 3}, away = t3, adapts = bf16;
    away.offload = (zf_offload_desc){.parameters = ZF_HOST, .optimizer = ZF_HOST};
    adapts.lora.rank = 4, adapts.zero.stage = 3;
    if (!llm_config_load(MODEL, &config, &error)) OK(t, error.status, error.text);
    const struct {
        int32_t world;
        const zf_training *training;
        bool reference, ppo;
        const char *reward;
    } cases[] = {{1, &bf16, true, false, NULL},    {1, &away, false, false, NULL},
                 {2, &t3, false, false, NULL},     {2, &away, false, false, NULL},
                 {4, &adapts, true, false, JUDGE}, {1, &adapts, false, true, JUDGE},
                 {2, &t3, false, true, NULL},      {1, &away, false, true, NULL}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases && !t->failed; k++) {
        if (device.kind != DEVICE_CPU && (cases[k].world > 1 || !cases[k].reward)) continue;
        check_plan(t, &(iteration_desc){.sample = &llm_sample,
                                        .config = &config,
                                        .training = *cases[k].training,
                                        .group = GROUP,
                                        .prompt = PROMPT,
                                        .answer = ANSWER,
                                        .batch = BATCH,
                                        .world = cases[k].world,
                                        .nodes = 1,
                                        .threads = 1,
                                        .folder = MODEL,
                                        .ppo = cases[k].ppo ? &ppo_kind : NULL,
                                        .reward = cases[k].reward,
                                        .critic = cases[k].ppo ? cases[k].reward : NULL,
                                        .device = device,
                                        .reference = cases[k].reference});
    }
}
