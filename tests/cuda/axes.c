/* Whole models on ranks along tensor, context and pipe, each with a device of its own: after steps
 * that are launched, captured and replayed, losses have the bits of one such device, and are near the
 * CPU's. */
#define _POSIX_C_SOURCE 200809L
#include "../small_models.h"
#include "ranks.h"

#include "../../examples/bert/model.h"
#include "../../examples/llm/model.h"

enum { BATCH = 2, STEPS = 4, WORDS = 32 };

typedef struct course {
    bool bert;
    int micro; /* parts of a batch */
    double dropout;
    zf_training t;
    bool cpu;
    float losses[MOST][STEPS];
} course;

static zf_tensor build(zf_graph *g, const course *c)
{
    zf_error error = {ZF_OK, ""};
    llm_config l;
    bert_config b;
    const sample_shape shape = {.batch = BATCH, .sequence = TOKENS, .predictions = 2 * BATCH};
    if (c->bert && bert_config_load("tiny", &b, &error)) {
        b.vocab = WORDS, b.hidden = 32, b.layers = 2, b.heads = 4, b.intermediate = 48;
        b.positions = 16, b.dropout = b.attention_dropout = c->dropout;
        bert_build(g, &b, &shape, false);
    } else if (!c->bert && llm_config_load("15m", &l, &error)) {
        l.vocab = WORDS, l.hidden = 32, l.layers = 2, l.heads = 4, l.kv_heads = 2, l.width = 8;
        l.intermediate = 48, l.positions = 16;
        llm_build(g, &l, &shape, SAMPLE_TRAIN);
    }
    return zf_graph_find(g, "loss");
}

static zf_status steps(zf_graph *g, zf_program *p, const course *c, float *losses)
{
    zf_status status = ZF_OK;
    for (int step = 0; step < STEPS && !status; step++) {
        for (int k = 0; k < c->micro && !status; k++) {
            feed(g, p, k, step);
            status = k + 1 < c->micro ? zf_micro(p) : zf_step(p);
        }
        if (!status) status = zf_read(p, zf_graph_find(g, "loss"), &losses[step], sizeof(float));
    }
    return status;
}

static void course_body(member *m)
{
    course *c = m->context;
    zf_training t = c->t;
    zf_graph *g = zf_graph_new(NULL);
    zf_backend *backend = c->cpu ? zf_cpu_backend(NULL, &m->error)
                                 : zf_cuda_backend(&(zf_cuda_desc){.device = m->rank}, &m->error);
    zf_program *p = NULL;
    t.loss = build(g, c), t.lr = zf_graph_find(g, "lr");
    if (backend && !zf_passes(g, &t))
        p = zf_compile(g, &(zf_compile_desc){.backend = backend,
                                             .comm = m->world > 1 ? m->comm : NULL,
                                             .seed = 3,
                                             .verify = true});
    if (p) {
        if (steps(g, p, c, c->losses[m->rank]))
            snprintf(m->said, sizeof m->said, "%.500s", zf_program_error(p));
    } else {
        snprintf(m->said, sizeof m->said, "%.500s", zf_graph_error(g));
    }
    zf_program_free(p);
    zf_graph_free(g);
    zf_backend_free(backend);
}

/* So many ranks; false where it went wrong. */
static bool run_course(test *t, course *c, int world)
{
    member members[MOST];
    const zf_nccl_desc d = {.id = fresh_id(t), .staging_bytes = 4096};
    set_members(members, world, &d, course_body, c);
    run_well(t, members);
    return !t->failed;
}

/* `how` on one rank, with the same sections, and on several. */
static void check_axes(test *t, const course *how)
{
    static course one, several, cpu;
    const int tensor = how->t.tensor ? how->t.tensor : 1,
              context = how->t.context ? how->t.context : 1,
              world = tensor * context * (how->t.stages.ranks ? how->t.stages.ranks : 1);
    if (ranks(t, world) < world) return;
    one = several = *how;
    one.t.tensor = one.t.tensor ? 1 : 0, one.t.context = one.t.stages.ranks = 0;
    cpu = one, cpu.cpu = true;
    if (!run_course(t, &one, 1)) return;
    emulation_seed(2);
    if (!run_course(t, &several, world) || !run_course(t, &cpu, 1)) return;
    for (int r = 0; r < world; r++)
        CHECK(t, !memcmp(several.losses[r], one.losses[0], sizeof one.losses[0]));
    CHECK(t, one.losses[0][0] != one.losses[0][STEPS - 1]);
    for (int step = 0; step < STEPS; step++)
        CHECK_NEAR(t, one.losses[0][step], cpu.losses[0][step],
                   (how->t.precision.dtype ? 2e-2 : 1e-4) * cpu.losses[0][step]);
}

TEST_ONCE(cuda_tensor_llama_has_the_bits_of_one_rank)
{
    check_axes(t, &(course){.micro = 1, .t = {.tensor = 2, .sections.tensor = 4, .clip = 0.5}});
}

/* Masks of attention, of layers and of the embedding; two parts of a batch. */
TEST_ONCE(cuda_tensor_bert_draws_as_one_rank)
{
    check_axes(t, &(course){.bert = true,
                            .micro = 1,
                            .dropout = 0.2,
                            .t = {.tensor = 2, .sections.tensor = 2, .precision.dtype = ZF_BF16}});
}

/* Attention exchanges tokens for heads, along dimensions. */
TEST_ONCE(cuda_context_llama_has_the_bits_of_one_rank)
{
    check_axes(t, &(course){.micro = 1, .t = {.context = 2, .sections.context = 2}});
}

TEST_ONCE(cuda_stages_have_the_bits_of_one_rank)
{
    check_axes(
        t,
        &(course){.micro = 2,
                  .t = {.stages.ranks = 2, .clip = 0.5, .zero = {.world = 1, .micro_batches = 2}}});
}
