/* What ranks along pipe and tensor send in a step of a GPT: each axis as the plan says, which
 * zf-plan prints (tests/zfplan.sh has its formulas). */
#include "small_models.h"

#include <pthread.h>

#include "../examples/gpt/model.h"

enum { DEEP = 12, CUT = 4, STAGES = 3, MICRO = 6, RANKS = CUT * STAGES, BATCH = 2 };

typedef struct rank_run {
    pthread_t thread;
    zf_graph *graph;
    zf_program *program;
    char said[300];
} rank_run;

static zf_tensor build(zf_graph *g)
{
    const sample_shape shape = {.batch = BATCH, .sequence = TOKENS};
    zf_error error = {ZF_OK, ""};
    gpt_config c;
    if (!gpt_config_load("small", &c, &error)) abort();
    c.vocab = VOCAB, c.hidden = 32, c.layers = DEEP, c.heads = 4, c.intermediate = 64;
    c.positions = 16, c.attention_dropout = c.residual_dropout = c.embedding_dropout = 0;
    gpt_build(g, &c, &shape, SAMPLE_TRAIN);
    return zf_graph_find(g, "loss");
}

static void *run_rank(void *object)
{
    rank_run *r = object;
    zf_status status = ZF_OK;
    for (int k = 0; k < MICRO && !status; k++) {
        feed(r->graph, r->program, k, 0);
        status = k + 1 < MICRO ? zf_micro(r->program) : zf_step(r->program);
    }
    if (status) snprintf(r->said, sizeof r->said, "%.250s", zf_program_error(r->program));
    return NULL;
}

static bool start(test *t, rank_run *r, zf_comm *comm)
{
    zf_training training = {
        .tensor = CUT, .stages.ranks = STAGES, .zero = {.world = 1, .micro_batches = MICRO}};
    *r = (rank_run){.graph = zf_graph_new(NULL)};
    if (!r->graph) abort();
    training.loss = build(r->graph);
    if (!zf_passes(r->graph, &training))
        r->program = zf_compile(r->graph, &(zf_compile_desc){.comm = comm, .seed = 3});
    if (!r->program)
        test_unwind(t, __FILE__, __LINE__, "a rank", zf_graph_status(r->graph),
                    zf_graph_error(r->graph));
    return r->program != NULL;
}

/* What is counted of a rank is what its plan says, of each axis and in all. */
static void check(test *t, const rank_run *r)
{
    const zf_program_info info = zf_program_info_of(r->program);
    CHECK_TEXT(t, r->said, "");
    CHECK(t, !memcmp(info.counted_over, info.plan.traffic_over, sizeof info.counted_over));
    CHECK(t, info.plan.traffic_over[ZF_OVER_TENSOR].all_reduce.bytes > 0);
    CHECK(t, info.plan.traffic_over[ZF_OVER_PIPE].send.bytes > 0);
}

TEST_ONCE(axes_of_a_model_send_what_is_planned)
{
    static rank_run ranks[RANKS];
    zf_local *local = zf_local_new(&(zf_local_desc){.world = RANKS}, NULL);
    int made = 0;
    if (!local) abort();
    while (made < RANKS && start(t, &ranks[made], zf_local_comm(local, made))) made++;
    for (int r = 0; r < made && made == RANKS; r++)
        if (pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r])) abort();
    for (int r = 0; r < made && made == RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        check(t, &ranks[r]);
    }
    for (int r = 0; r < made; r++) zf_program_free(ranks[r].program);
    for (int r = 0; r < RANKS; r++) zf_graph_free(ranks[r].graph);
    zf_local_free(local);
}
