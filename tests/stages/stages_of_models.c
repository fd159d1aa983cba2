/* Whole models on ranks along pipe: parameters, gradients' norms and losses have the bits of one
 * rank. Layers are found by the scopes of the models. */
#include "../cut/small_models.h"

#include <pthread.h>

#include "../../examples/bert/model.h"
#include "../../examples/gpt/model.h"
#include "../../examples/llm/model.h"

enum { BATCH = 2, STEPS = 2, DEEP = 4, MOST = 1 << 15 };

typedef enum kind { LLAMA, LLAMA_TIED, GEMMA, GPT, BERT, KINDS } kind;

static zf_tensor build(zf_graph *g, kind of)
{
    const sample_shape shape = {.batch = BATCH, .sequence = TOKENS, .predictions = 2 * BATCH};
    zf_error error = {ZF_OK, ""};
    zf_causal_config l;
    gpt_config p;
    bert_config b;
    if (of == GPT && gpt_config_load("small", &p, &error)) {
        p.vocab = 64, p.hidden = 32, p.layers = DEEP, p.heads = 4, p.intermediate = 48;
        p.positions = 16;
        gpt_build(g, &p, &shape, SAMPLE_TRAIN);
    } else if (of == BERT && bert_config_load("tiny", &b, &error)) {
        b.vocab = VOCAB, b.hidden = 32, b.layers = DEEP, b.heads = 4, b.intermediate = 48;
        b.positions = 16;
        bert_build(g, &b, &shape, SAMPLE_TRAIN);
    } else if (llm_config_load(of == GEMMA ? "tests/golden/llm/gemma3" : "15m", &l, &error)) {
        l.vocab = VOCAB, l.hidden = 32, l.layers = DEEP, l.heads = 4, l.kv_heads = 2, l.width = 8;
        l.intermediate = 48, l.positions = 16, l.tied = of == LLAMA_TIED || of == GEMMA;
        llm_build(g, &l, &shape, SAMPLE_TRAIN);
    }
    return zf_graph_find(g, "loss");
}

typedef struct member {
    pthread_t thread;
    zf_graph *graph;
    zf_program *program;
} member;

/* How a step is made, on so many ranks along pipe. */
typedef struct made {
    kind of;
    int pipe, micro; /* ranks along pipe */
    zf_training t;
} made;

static int world_of(const made *how) { return how->pipe * (how->t.tensor ? how->t.tensor : 1); }

typedef struct rank_run {
    member m;
    zf_backend *cpu;
    const made *how;
    float losses[STEPS][2]; /* and the norm of the gradients */
    char said[300];
} rank_run;

static void *run_rank(void *object)
{
    rank_run *r = object;
    zf_status status = ZF_OK;
    for (int step = 0; step < STEPS && !status; step++) {
        for (int k = 0; k < r->how->micro && !status; k++) {
            feed(r->m.graph, r->m.program, k, step);
            status = k + 1 < r->how->micro ? zf_micro(r->m.program) : zf_step(r->m.program);
        }
        for (int k = 0; k < (r->how->t.tensor ? 1 : 2) && !status; k++)
            status = zf_read(r->m.program, zf_graph_find(r->m.graph, k ? "grad_norm" : "loss"),
                             &r->losses[step][k], sizeof(float));
    }
    if (status) snprintf(r->said, sizeof r->said, "%.250s", zf_program_error(r->m.program));
    return NULL;
}

/* The rank's program; false: there is none. */
static bool start(test *t, rank_run *r, const made *how, zf_comm *comm)
{
    zf_training training = how->t;
    zf_error error = {ZF_OK, ""};
    *r = (rank_run){.how = how, .cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 1}, NULL)};
    r->m.graph = zf_graph_new(NULL);
    if (!r->m.graph || !r->cpu) abort();
    training.loss = build(r->m.graph, how->of);
    training.stages.ranks = how->pipe, training.backend = r->cpu;
    if (!zf_passes(r->m.graph, &training))
        r->m.program = zf_compile(
            r->m.graph, &(zf_compile_desc){.comm = comm, .seed = 3, .backend = r->cpu});
    error.status = zf_graph_status(r->m.graph);
    if (!r->m.program)
        test_unwind(t, __FILE__, __LINE__, "a rank", error.status, zf_graph_error(r->m.graph));
    return r->m.program != NULL;
}

/* Activations and their gradients that ranks along pipe receive of a micro-batch. */
static int received(const rank_run *ranks, int count)
{
    int found = 0;
    zf_node node;
    for (int r = 0; r < count; r++)
        for (int32_t k = 0; zf_graph_node(ranks[r].m.graph, k, &node); k++)
            found += node.op == ZF_OP_send && node.shape.rank == 3 && node.shape.dims[0] == BATCH;
    return found;
}

/* In 16 bits a gradient before dropout is made before ds is rounded, and what a norm makes again
 * is rounded twice: a third value is sent. */
static bool rounds_twice(const made *how)
{
    return how->t.precision.dtype != ZF_F32 && (how->of == GPT || how->of == BERT);
}

/* Compares each parameter of the stages with that of one rank. */
static void compare(test *t, const rank_run *one, const rank_run *ranks, int count)
{
    static float want[MOST], got[MOST];
    int params = 0, compared = 0;
    zf_node node;
    for (int r = 0; r < count; r++)
        CHECK(t, !memcmp(ranks[r].losses, one->losses, sizeof one->losses));
    if (one->how->t.tensor) return; /* parameters are cut */
    for (int32_t k = 0; zf_graph_node(one->m.graph, k, &node); k++) {
        const size_t bytes = zf_tensor_bytes(zf_graph_find(one->m.graph, node.name));
        if (node.op != ZF_OP_param) continue;
        params++;
        CHECK(t, bytes <= sizeof want);
        OK(t, zf_read(one->m.program, zf_graph_find(one->m.graph, node.name), want, bytes),
           zf_program_error(one->m.program));
        for (int r = 0; r < count; r++) {
            const rank_run *x = &ranks[r];
            if (zf_read(x->m.program, zf_graph_find(x->m.graph, node.name), got, bytes)) continue;
            compared++;
            if (memcmp(want, got, bytes)) test_fail(t, __FILE__, __LINE__, node.name, "other bits");
        }
    }
    CHECK(t, params > 10 && compared == params);
    CHECK(t, received(ranks, count) == (count - 1) * (2 + rounds_twice(one->how)));
}

/* Runs that many ranks; those of `one`, where it is given, are compared. */
static void run(test *t, const made *how, rank_run *ranks, const rank_run *one, zf_local **local)
{
    const int world = world_of(how);
    *local = zf_local_new(&(zf_local_desc){.world = world}, NULL);
    if (!*local) abort();
    for (int r = 0; r < world; r++)
        if (!start(t, &ranks[r], how, zf_local_comm(*local, r))) return;
    for (int r = 0; r < world; r++)
        if (pthread_create(&ranks[r].m.thread, NULL, run_rank, &ranks[r])) abort();
    for (int r = 0; r < world; r++) pthread_join(ranks[r].m.thread, NULL);
    for (int r = 0; r < world; r++) CHECK_TEXT(t, ranks[r].said, "");
    if (one) compare(t, one, ranks, world);
}

static void stop(rank_run *ranks, int count, zf_local *local)
{
    for (int r = 0; r < count; r++) zf_program_free(ranks[r].m.program);
    for (int r = 0; r < count; r++) zf_graph_free(ranks[r].m.graph), zf_backend_free(ranks[r].cpu);
    memset(ranks, 0, (size_t)count * sizeof *ranks);
    zf_local_free(local);
}

static void models(test *t, const made *ways, int count)
{
    static rank_run one[DEEP], ranks[2 * DEEP];
    for (int k = 0; k < count && !t->failed; k++) {
        zf_local *local[2] = {NULL, NULL};
        made how = ways[k], alone = ways[k];
        how.pipe = alone.pipe = 1;
        run(t, &alone, one, NULL, &local[0]);
        for (int pipe = 2; pipe <= DEEP && !t->failed && !t->unwound; pipe += 2) {
            how.pipe = pipe;
            run(t, &how, ranks, one, &local[1]);
            stop(ranks, world_of(&how), local[1]);
        }
        stop(one, world_of(&alone), local[0]);
    }
}

TEST_ONCE(stages_of_models_have_the_bits_of_one_rank)
{
    const zf_training f32 = {.clip = 0.5, .zero = {.world = 1, .micro_batches = 4}};
    const zf_training bf16 = {.clip = 0.5, .precision.dtype = ZF_BF16};
    const made ways[] = {{LLAMA, 0, 4, f32},     {LLAMA_TIED, 0, 1, bf16}, {GPT, 0, 1, bf16},
                         {GPT, 0, 4, f32},       {BERT, 0, 1, bf16},       {BERT, 0, 4, f32},
                         {LLAMA_TIED, 0, 4, f32}};
    models(t, ways, (int)(sizeof ways / sizeof ways[0]));
}

TEST_ONCE(stages_of_models_with_other_passes)
{
    const zf_training again = {.clip = 0.5, .recompute.mode = ZF_RECOMPUTE_LAYERS};
    const zf_training f16 = {.clip = 0.5, .precision = {.dtype = ZF_F16, .scale = 1024}};
    const zf_training lamb = {.clip = 0.5, .optimizer = ZF_LAMB, .ema.decay = 0.9};
    /* What makes the results of norms is of the section of the gradients of weights. */
    zf_training zero_bubble = again;
    zero_bubble.stages.schedule.kind = ZF_PIPE_ZB_H1;
    zero_bubble.zero.world = 1, zero_bubble.zero.micro_batches = 4;
    /* Of the embedding's gradient one addend comes from the last stage, and of what is packed with
     * it another from the next one */
    const zf_training sections = {
        .clip = 0.5, .sections.tensor = 2, .zero = {.world = 1, .micro_batches = 4}};
    const made ways[] = {{GPT, 0, 1, again}, {LLAMA_TIED, 0, 1, f16}, {BERT, 0, 1, lamb},
                         {GPT, 0, 4, sections}, {GEMMA, 0, 4, zero_bubble}};
    models(t, ways, (int)(sizeof ways / sizeof ways[0]));
}

/* With ranks along tensor, which share each layer: losses of three axes are those of two. */
TEST_ONCE(stages_of_models_that_are_cut)
{
    const zf_training f32 = {
        .tensor = 2, .sections.tensor = 2, .zero = {.world = 1, .micro_batches = 4}};
    const zf_training bf16 = {.tensor = 2, .sections.tensor = 2, .precision.dtype = ZF_BF16};
    const made ways[] = {{LLAMA, 0, 4, f32}, {LLAMA_TIED, 0, 1, bf16}};
    models(t, ways, (int)(sizeof ways / sizeof ways[0]));
}

/* A limit that the first rank cannot keep to. */
static void check_limit(test *t, const made *how, size_t limit)
{
    zf_training training = how->t;
    zf_graph *g = zf_graph_new(NULL);
    if (!g) abort();
    training.loss = build(g, how->of);
    training.stages.ranks = how->pipe, training.recompute.bytes = limit;
    GIVES(t, zf_passes(g, &training), ZF_ERR_LIMIT, zf_graph_error(g));
    CHECK(t, strstr(zf_graph_error(g), "zf_recompute: rank 0 along pipe: parameters, gradients, "
                                       "states and inputs alone take "));
    zf_graph_free(g);
}

/* Recomputation by bytes: each rank keeps to the limit by its own plan, so the first, which has
 * most micro-batches in flight, recomputes, and the last does not; bits are those of before. */
TEST_ONCE(stages_recompute_what_their_own_plans_need)
{
    static rank_run one[1], ranks[DEEP];
    const zf_training keeps = {.clip = 0.5, .zero = {.world = 1, .micro_batches = 4}};
    made how = {GPT, 1, 4, keeps};
    zf_local *local[2] = {NULL, NULL};
    zf_program_info info[DEEP];
    size_t limit;
    run(t, &how, one, NULL, &local[0]);
    how.pipe = DEEP;
    run(t, &how, ranks, one, &local[1]);
    for (int r = 0; r < DEEP; r++) info[r] = zf_program_info_of(ranks[r].m.program);
    stop(ranks, DEEP, local[1]);
    limit = info[0].plan.peak_bytes - info[0].plan.peak_bytes / 20;
    how.t.recompute = (zf_recompute_desc){.mode = ZF_RECOMPUTE_AS_NEEDED, .bytes = limit};
    run(t, &how, ranks, one, &local[1]);
    for (int r = 0; r < DEEP && !t->failed; r++) {
        const zf_program_info got = zf_program_info_of(ranks[r].m.program);
        CHECK(t, got.plan.peak_bytes <= limit && got.allocated_bytes == got.plan.peak_bytes);
        CHECK(t, (got.plan.recomputed_flops > 0) == (r == 0));
    }
    stop(ranks, DEEP, local[1]);
    stop(one, 1, local[0]);
    check_limit(t, &how, info[0].plan.peak_bytes / 8);
}
