/* zf_all_gather: rows of all ranks against one rank that has them, the same bits at every stage,
 * and messages. */
#include "../support/test.h"

enum { RANKS = 4, ROWS = 3, IN = 5, OUT = 4, MICRO = 2, WEIGHTS = IN * OUT };

typedef struct session {
    int world, stage;
    int64_t micro, ranks; /* ranks: of zf_all_gather */
    size_t prefetch;
    zf_dtype precision;
    zf_comm comms[RANKS];
    zf_graph *graphs[RANKS];
    zf_program *programs[RANKS];
    float loss, gradient[WEIGHTS];
} session;

static void close_session(void *object)
{
    session *s = object;
    for (int k = RANKS; k-- > 0;) zf_program_free(s->programs[k]);
    for (int k = RANKS; k-- > 0;) zf_graph_free(s->graphs[k]);
    memset(s, 0, sizeof *s);
}

/* The mean over rows of -log of the share that a row's product with itself has among those with the
 * rows of all ranks; rows: of this rank. */
static zf_tensor contrast(zf_graph *g, int64_t rows, int64_t ranks)
{
    const zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(rows, IN)),
                    w = zf_param(g, "w", ZF_SHAPE(IN, OUT),
                                 &(zf_param_desc){.init = ZF_NORMAL, .std = 0.5}),
                    y = zf_matmul(x, w), all = zf_all_gather(y, ranks),
                    scores = zf_matmul_ex(y, all, &(zf_matmul_desc){.transpose_b = true}),
                    own = zf_sum_ex(zf_mul(y, y), &(zf_reduce_desc){.axis = -1});
    return zf_mean(zf_sub(zf_logsumexp(scores), own));
}

/* Writes the rows of a micro-batch of a rank; of all ranks where there is one. */
static zf_status feed(session *s, int rank, int64_t micro)
{
    float x[RANKS * ROWS * IN];
    const int64_t rows = ROWS * RANKS / s->world;
    for (int64_t i = 0; i < rows * IN; i++)
        x[i] = (float)(((micro * RANKS * ROWS + rank * rows) * IN + i) * 7 % 19 - 9) / 9;
    return zf_write(s->programs[rank], zf_graph_find(s->graphs[rank], "x"), x,
                    (size_t)(rows * IN) * sizeof *x);
}

static zf_status open_rank(session *s, int rank)
{
    zf_graph *g = s->graphs[rank] = zf_graph_new(NULL);
    const float lr = 0;
    const zf_tensor loss = contrast(g, ROWS * RANKS / s->world, s->ranks);
    s->comms[rank] = (zf_comm){.rank = rank, .world = s->world};
    zf_passes(
        g, &(zf_training){.loss = loss,
                          .keep_gradients = true,
                          .precision.dtype = s->precision,
                          .zero = {.stage = s->stage, .world = s->world, .micro_batches = s->micro},
                          .prefetch.bytes = s->prefetch});
    s->programs[rank] = zf_compile(
        g, &(zf_compile_desc){
               .comm = s->world > 1 ? &s->comms[rank] : NULL, .seed = 3, .verify = true});
    if (!s->programs[rank]) return zf_graph_status(g);
    return zf_write(s->programs[rank], zf_graph_find(g, "lr"), &lr, sizeof lr);
}

/* One step; the loss and the gradient of rank 0, of the precision's dtype. */
static void run(test *t, session *s)
{
    const zf_lockstep_desc d = {s->programs, s->world, 0};
    zf_tensor gradient;
    zf_error error = {ZF_OK, ""};
    test_defer(t, close_session, s);
    for (int r = 0; r < s->world; r++) OK(t, open_rank(s, r), zf_graph_error(s->graphs[r]));
    for (int64_t m = 0; m < s->micro && !t->failed; m++) {
        for (int r = 0; r < s->world; r++) OK(t, feed(s, r, m), zf_program_error(s->programs[r]));
        OK(t, m + 1 < s->micro ? zf_lockstep_micro(&d, &error) : zf_lockstep_step(&d, &error),
           error.text);
    }
    if (t->failed) return;
    OK(t, zf_read(s->programs[0], zf_graph_find(s->graphs[0], "loss"), &s->loss, sizeof s->loss),
       zf_program_error(s->programs[0]));
    gradient = zf_graph_find(s->graphs[0], "gradient/w");
    OK(t, zf_read(s->programs[0], gradient, s->gradient, zf_tensor_bytes(gradient)),
       zf_program_error(s->programs[0]));
}

/* One rank has the global batch, and its examples are those of all ranks. */
TEST_ONCE(examples_of_ranks_have_the_gradient_of_one)
{
    static session one, all;
    one = (session){.world = 1, .micro = MICRO, .ranks = 1};
    all = (session){.world = RANKS, .micro = MICRO, .ranks = RANKS, .stage = 3};
    run(t, &one);
    run(t, &all);
    if (t->failed) return;
    CHECK_NEAR(t, all.loss, one.loss, 1e-6 * one.loss);
    for (int k = 0; k < WEIGHTS; k++) CHECK_NEAR(t, all.gradient[k], one.gradient[k], 2e-6);
}

TEST_ONCE(examples_have_the_same_bits_at_every_stage)
{
    static session s[2];
    for (int half = 0; half < 2; half++)
        for (int stage = 0; stage < 4 && !t->failed; stage++)
            for (int ahead = 0; ahead < 2; ahead++) {
                session *now = &s[stage || ahead];
                close_session(now);
                *now = (session){.world = RANKS,
                                 .micro = MICRO,
                                 .ranks = RANKS,
                                 .stage = stage,
                                 .prefetch = ahead ? 1 << 20 : 0,
                                 .precision = half ? ZF_BF16 : ZF_F32};
                run(t, now);
                if (t->failed) return;
                CHECK(t, now->loss == s[0].loss &&
                             !memcmp(now->gradient, s[0].gradient, sizeof s[0].gradient));
                if (now != s) close_session(now);
            }
}

/* ------------------------------------------------------------------------------------- messages */

TEST(examples_need_their_ranks)
{
    static const struct {
        int64_t ranks;
        zf_zero_desc zero;
        zf_status status;
        const char *error;
    } rows[] = {
        {4, {.world = 2}, ZF_ERR_ARGUMENT, "it gathers the examples of 4 ranks, and world is 2"},
        {4,
         {.world = 4, .nodes = 2},
         ZF_ERR_ARGUMENT,
         "examples are gathered of ranks that are no mesh of nodes; nodes must be 1, not 2"},
        {4,
         {.world = 0},
         ZF_ERR_STAGE,
         "gathers the examples of 4 ranks: zf_zero with this world must have been run"},
        {0, {.world = 0}, ZF_ERR_ARGUMENT, "ranks is 0; it must be 1 or more"},
        {INT64_MAX / 8, {.world = 0}, ZF_ERR_ARGUMENT, "it must be 1 or more"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_program *p;
        NEED(t, g, NULL);
        zf_autograd(g, contrast(g, ROWS, rows[k].ranks));
        zf_sgd(g, zf_constant(g, ZF_F32, ZF_SCALAR, 0.1), NULL);
        if (rows[k].zero.world) zf_zero(g, &rows[k].zero);
        p = zf_compile(g, NULL);
        if (p || zf_graph_status(g) != rows[k].status || !strstr(zf_graph_error(g), rows[k].error))
            test_unwind(t, __FILE__, __LINE__, rows[k].error, zf_graph_status(g),
                        zf_graph_error(g));
        zf_program_free(p);
        zf_graph_free(g);
        if (t->failed) return;
    }
}

/* A step of two ranks that sends gradients of examples back. */
#define EXAMPLES_TEXT(micro, scatter, sum, gradient)                                               \
    "zero stage=0 world=2 micro_batches=" #micro "\n"                                              \
    "%1 = param \"w\" : f32[512]\n"                                                                \
    "%2 = bucket %1 {at=[0] size=1024} : f32[1024]\n"                                              \
    "%3 = input \"x\" : f32[1024]\n"                                                               \
    "%4 = input \"lr\" : f32[]\n" scatter "%6 = pack %5 {at=[0] size=1024} : f32[1024]\n" sum      \
    "update:\n"                                                                                    \
    "sgd %2, " gradient ", %4 {blocks=[0,1] decays=[0]}\n"                                         \
    "gradient %2, " gradient "\n"
#define EXAMPLES_BACK "%5 = reduce_scatter %3 {world=2 examples=true} : f32[512]\n"
#define EXAMPLES_SUM  "%7 = all_reduce %6 {world=2} : f32[1024]\n"

TEST(examples_are_no_sum_of_gradients)
{
    static const struct {
        const char *text, *error;
    } rows[] = {
        {EXAMPLES_TEXT(1, EXAMPLES_BACK, EXAMPLES_SUM, "%7"), NULL},
        {EXAMPLES_TEXT(2, EXAMPLES_BACK,
                       "%8 = accumulator : f32[1024]\n"
                       "%7 = all_reduce %6, %8 {world=2} : f32[1024]\n",
                       "%7"),
         NULL},
        {EXAMPLES_TEXT(1, EXAMPLES_BACK, "", "%6"), "%6"},
        {EXAMPLES_TEXT(2, "%5 = reduce_scatter %3 {world=2} : f32[512]\n", EXAMPLES_SUM, "%7"),
         "operand 1, an accumulator of the 2 micro-batches, is missing"},
        {EXAMPLES_TEXT(1,
                       "%9 = all_reduce %3 {world=2} : f32[1024]\n"
                       "%5 = reduce_scatter %9 {world=2 examples=true} : f32[512]\n",
                       EXAMPLES_SUM, "%7"),
         "%9 has been summed over the ranks already"},
        {EXAMPLES_TEXT(1,
                       "%9 = reduce_scatter %3 {world=2} : f32[512]\n"
                       "%10 = pad %9 {after=512} : f32[1024]\n"
                       "%5 = reduce_scatter %9 {world=2 examples=true} : f32[256]\n",
                       EXAMPLES_SUM, "%7"),
         "%9 is this rank's shard: ranks would add different elements"},
        {EXAMPLES_TEXT(1, EXAMPLES_BACK,
                       EXAMPLES_SUM "update:\n"
                                    "%9 = reduce_scatter %3 {world=2 examples=true} : f32[512]\n",
                       "%7"),
         "the update section has no examples"},
        {EXAMPLES_TEXT(1, "%5 = reduce_scatter %3 {world=2 over=tensor examples=true} : f32[512]\n",
                       EXAMPLES_SUM, "%7"),
         "examples are flat, along data, and nothing accumulates them"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(rows[k].text, strlen(rows[k].text),
                                     &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        if (!g == !rows[k].error || (rows[k].error && !strstr(error.text, rows[k].error)))
            test_fail(t, __FILE__, __LINE__, rows[k].error ? rows[k].error : "no error",
                      error.text);
    }
}
