/* Whole models on ranks along tensor, context and pipe, each with a device of its own: after steps
 * that are launched, captured and replayed, losses and parameters have the bits of one such device,
 * and losses are near the CPU's. Ranks that share experts have those of ranks with all of them. */
#define _POSIX_C_SOURCE 200809L
#include "../cut/small_models.h"
#include "ranks.h"

#include "../../examples/bert/model.h"
#include "../../examples/llm/model.h"

enum { BATCH = 2, STEPS = 4, WORDS = 64, ROOM = 1 << 17 };

/* What a rank has after all steps. */
typedef struct seen {
    float losses[STEPS];
    unsigned char values[ROOM]; /* of all parameters, as one rank has them */
    size_t bytes;
    int cut; /* vocabularies of which a rank has a part */
} seen;

typedef struct course {
    bool bert;
    int words; /* of the vocabulary; 0: WORDS */
    int window; /* keys that a token sees; 0: all before it */
    int micro; /* parts of a batch, of each rank along data */
    int experts; /* of a layer; 0: there are none */
    double dropout;
    zf_training t;
    bool cpu;
    seen *of; /* of each rank */
} course;

static int words_of(const course *c) { return c->words ? c->words : WORDS; }

static zf_tensor build(zf_graph *g, const course *c)
{
    zf_error error = {ZF_OK, ""};
    zf_causal_config l;
    bert_config b;
    const sample_shape shape = {.batch = BATCH, .sequence = TOKENS, .predictions = 2 * BATCH};
    if (c->bert && bert_config_load("tiny", &b, &error)) {
        b.vocab = words_of(c), b.hidden = 32, b.layers = 2, b.heads = 4, b.intermediate = 48;
        b.positions = 16, b.dropout = b.attention_dropout = c->dropout;
        bert_build(g, &b, &shape, false);
    } else if (!c->bert && llm_config_load(c->experts ? "moe-15m" : "15m", &l, &error)) {
        l.vocab = words_of(c), l.hidden = 32, l.layers = 2, l.heads = 4, l.kv_heads = 2;
        l.width = 8, l.intermediate = 48, l.positions = 16, l.window = c->window;
        if (c->experts) l.experts = c->experts, l.chosen = 2, l.expert_width = 24;
        llm_build(g, &l, &shape, SAMPLE_TRAIN);
    }
    return zf_graph_find(g, "loss");
}

/* Ranks along data. */
static int data_of(const course *c) { return c->t.zero.world > 1 ? c->t.zero.world : 1; }

static zf_status steps(zf_graph *g, zf_program *p, const course *c, int rank, float *losses)
{
    const int data = data_of(c);
    zf_status status = ZF_OK;
    for (int step = 0; step < STEPS && !status; step++) {
        for (int k = 0; k < c->micro && !status; k++) {
            feed(g, p, k * data + rank % data, step);
            status = k + 1 < c->micro ? zf_micro(p) : zf_step(p);
        }
        if (!status) status = zf_read(p, zf_graph_find(g, "loss"), &losses[step], sizeof(float));
    }
    return status;
}

/* All parameters, of which ranks have parts, shards or nothing; `bytes` counts those as well for which
 * there is no room. */
static zf_status parameters(zf_graph *g, zf_program *p, seen *to)
{
    zf_status status = ZF_OK;
    to->bytes = 0;
    for (int32_t k = 0; k < zf_param_count(g) && !status; k++) {
        const zf_tensor w = zf_param_at(g, k);
        const size_t bytes = zf_whole_bytes(w);
        if (to->bytes + bytes <= ROOM) status = zf_read_whole(p, w, to->values + to->bytes, bytes);
        to->bytes += bytes;
    }
    return status;
}

static int cut_vocabularies(zf_graph *g, const course *c)
{
    const int words = words_of(c);
    int count = 0;
    for (int32_t k = 0; k < zf_param_count(g); k++) {
        const zf_tensor w = zf_param_at(g, k);
        count += zf_whole_shape(w).dims[0] == words && zf_tensor_shape(w).dims[0] < words;
    }
    return count;
}

static void course_body(member *m)
{
    const course *c = m->context;
    seen *to = &c->of[m->rank];
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
    to->cut = cut_vocabularies(g, c);
    if (p) {
        if (steps(g, p, c, m->rank, to->losses) || parameters(g, p, to))
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
    static seen alone[MOST], near[MOST], shared[MOST];
    course one, several, cpu;
    const int tensor = how->t.tensor ? how->t.tensor : 1,
              context = how->t.context ? how->t.context : 1,
              data = data_of(how),
              world = data * tensor * context * (how->t.stages.ranks ? how->t.stages.ranks : 1);
    if (ranks(t, world) < world) return;
    one = several = *how;
    one.t.tensor = one.t.tensor ? 1 : 0, one.t.context = context > 1, one.t.stages.ranks = 0;
    one.t.expert = 0, one.of = alone, several.of = shared;
    cpu = one, cpu.cpu = true, cpu.of = near;
    if (!run_course(t, &one, data)) return;
    emulation_seed(2);
    if (!run_course(t, &several, world) || !run_course(t, &cpu, data)) return;
    for (int r = 0; r < world; r++) {
        const seen *a = &alone[r % data];
        CHECK(t, !memcmp(shared[r].losses, a->losses, sizeof a->losses));
        CHECK(t, shared[r].bytes == a->bytes && a->bytes > 20000 && a->bytes <= ROOM);
        CHECK(t, !memcmp(shared[r].values, a->values, a->bytes));
        CHECK(t, !shared[r].cut == !how->t.tensor);
    }
    CHECK(t, alone->losses[0] != alone->losses[STEPS - 1]);
    for (int step = 0; step < STEPS; step++)
        CHECK_NEAR(t, alone->losses[step], near->losses[step],
                   (how->t.precision.dtype ? 2e-2 : 1e-4) * near->losses[step]);
}

TEST_ONCE(cuda_tensor_llama_has_the_bits_of_one_rank)
{
    check_axes(t, &(course){.micro = 1, .t = {.tensor = 2, .sections.tensor = 4, .clip = 0.5}});
}

/* The last of four sections has 18 words of 75, and its rank one row of padding. */
TEST_ONCE(cuda_tensor_llama_of_words_that_sections_do_not_divide)
{
    check_axes(
        t,
        &(course){.words = 75, .micro = 1, .t = {.tensor = 2, .sections.tensor = 4, .clip = 0.5}});
}

/* Masks of attention, of layers and of the embedding. The second of two sections has 37 words of 75,
 * and padding of the bias as well. */
TEST_ONCE(cuda_tensor_bert_draws_as_one_rank)
{
    check_axes(t, &(course){.bert = true,
                            .words = 75,
                            .micro = 1,
                            .dropout = 0.2,
                            .t = {.tensor = 2, .sections.tensor = 2, .precision.dtype = ZF_BF16}});
}

/* Attention exchanges tokens for heads, along dimensions. */
TEST_ONCE(cuda_context_llama_has_the_bits_of_one_rank)
{
    check_axes(t, &(course){.micro = 1, .t = {.context = 2, .sections.context = 2}});
}

/* Attention gathers keys and values: all of them, of pieces that are dealt zig-zag, and of those
 * ranks alone that queries see. */
TEST_ONCE(cuda_gathered_keys_have_the_bits_of_one_rank)
{
    check_axes(t, &(course){.micro = 1,
                            .t = {.context = 2,
                                  .context_kind = ZF_CONTEXT_GATHER,
                                  .sections.context = 4}});
}

TEST_ONCE(cuda_zigzag_has_the_bits_of_one_rank)
{
    check_axes(t, &(course){.bert = true,
                            .micro = 1,
                            .dropout = 0.2,
                            .t = {.context = 2,
                                  .context_kind = ZF_CONTEXT_ZIGZAG,
                                  .sections.context = 4,
                                  .precision.dtype = ZF_BF16}});
}

TEST_ONCE(cuda_windows_have_the_bits_of_one_rank)
{
    check_axes(t, &(course){.window = 2,
                            .micro = 1,
                            .t = {.context = 4,
                                  .context_kind = ZF_CONTEXT_GATHER,
                                  .sections.context = 4}});
}

/* Keys and values come rank by rank, and what is made of them is joined. */
TEST_ONCE(cuda_ring_has_the_bits_of_one_rank)
{
    check_axes(t, &(course){.micro = 1,
                            .t = {.context = 2,
                                  .context_kind = ZF_CONTEXT_RING,
                                  .sections.context = 4,
                                  .precision.dtype = ZF_BF16}});
}

TEST_ONCE(cuda_stages_have_the_bits_of_one_rank)
{
    check_axes(
        t,
        &(course){.micro = 2,
                  .t = {.stages.ranks = 2, .clip = 0.5, .zero = {.world = 1, .micro_batches = 2}}});
}

/* Rows go to the ranks of their experts and back; gradients are sums of two sections. */
TEST_ONCE(cuda_shared_experts_have_the_bits_of_all_experts)
{
    check_axes(t, &(course){.experts = 4,
                            .micro = 2,
                            .t = {.expert = 2,
                                  .sections.expert = 2,
                                  .zero = {.world = 2, .stage = 2, .micro_batches = 2}}});
}
