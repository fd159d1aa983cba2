/* zf_experts: ranks share the experts of a small language model, and steps have the bits of ranks
 * with all experts whose sums have as many sections; what is sent is what formulas say; and what
 * cannot be shared says why. */
#include "expert_model.h"
#include "../ranks/team_passes.h"

#include <math.h>

enum {
    ROWS = 40, /* of the second layer: with its capacity */
    STEPS = 2,
    MICRO = 2,
    WIDE = 64, /* of rows that are sent in 8 bits */
    MOST = EXPERTS * 32 * WIDE
};

static const char *const params[] = {"e",        "h.0.gate", "h.0.up",  "h.0.down",
                                     "h.1.gate", "h.1.up",   "h.1.down"};
enum { PARAMS = sizeof params / sizeof *params };

/* What a rank has after its steps, and how it came to it. */
typedef struct finished {
    pthread_t thread;
    member *of;
    int one; /* all tokens of this rank are this word; -1: they are of all */
    int steps;
    char said[400];
    bool counts_as_planned; /* bytes over each axis */
    double loss, norm;
    int64_t counts[PARAMS];
    char values[PARAMS][MOST * 8];
} finished;

static zf_status write_number(zf_graph *g, zf_program *p, const char *name, double x)
{
    const float f = (float)x;
    const zf_tensor to = zf_graph_find(g, name);
    return zf_write(p, to, zf_tensor_dtype(to) == ZF_F64 ? (const void *)&x : &f,
                    zf_tensor_bytes(to));
}

static double read_number(zf_graph *g, zf_program *p, const char *name)
{
    const zf_tensor of = zf_graph_find(g, name);
    double x = 0;
    float f = 0;
    if (!of.id) return 0;
    zf_read(p, of, zf_tensor_dtype(of) == ZF_F64 ? (void *)&x : &f, zf_tensor_bytes(of));
    return zf_tensor_dtype(of) == ZF_F64 ? x : f;
}

/* Inputs of micro-batch `micro` of a step of this rank. */
static zf_status feed(const finished *f, int step, int micro)
{
    int32_t tokens[TOKENS], labels[TOKENS];
    zf_graph *g = f->of->graph;
    zf_program *p = f->of->program;
    const int part = f->of->rank + 4 * micro;
    zf_status status;
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = f->one >= 0 ? f->one : (i * 7 + step + 3 * part + i * i) % WORDS;
        labels[i] = i % 5 ? (i * 3 + part) % WORDS : -100;
    }
    status = zf_write(p, zf_graph_find(g, "tokens"), tokens, sizeof tokens);
    if (!status) status = zf_write(p, zf_graph_find(g, "labels"), labels, sizeof labels);
    if (!status) status = write_number(g, p, "weight", 1.0 / 96);
    return status ? status : write_number(g, p, "lr", 0.01);
}

static void *run_rank(void *object)
{
    finished *f = object;
    zf_program *p = f->of->program;
    zf_status status = ZF_OK;
    for (int step = 0; step < f->steps && !status; step++)
        for (int k = 0; k < MICRO && !status; k++) {
            status = feed(f, step, k);
            if (!status) status = k + 1 < MICRO ? zf_micro(p) : zf_step(p);
        }
    for (int k = 0; k < PARAMS && !status; k++) {
        const zf_tensor param = zf_graph_find(f->of->graph, params[k]);
        f->counts[k] = (int64_t)zf_tensor_bytes(param);
        status = zf_read(p, param, f->values[k], zf_tensor_bytes(param));
    }
    const zf_program_info info = zf_program_info_of(p);
    f->counts_as_planned =
        !memcmp(info.counted_over, info.plan.traffic_over, sizeof info.counted_over);
    snprintf(f->said, sizeof f->said, "%.390s", status ? zf_program_error(p) : "");
    f->loss = read_number(f->of->graph, p, "loss"),
    f->norm = read_number(f->of->graph, p, "grad_norm");
    return NULL;
}

/* Steps of four ranks. `one`: of each, as in `finished`; NULL: -1. */
static bool run(test *t, finished all[4], const char *dtype, const char *line, const int *one)
{
    static team m;
    char text[TEXT];
    bool made;
    write_model(text, dtype);
    passes = line;
    test_defer(t, team_end, &m);
    made = team_new(t, &m, text, 4, false, team_change);
    for (int r = 0; r < 4 && made; r++) {
        all[r].of = &m.members[r], all[r].one = one ? one[r] : -1, all[r].steps = STEPS;
        if (pthread_create(&all[r].thread, NULL, run_rank, &all[r])) abort();
    }
    for (int r = 0; r < 4 && made; r++) pthread_join(all[r].thread, NULL);
    team_end(&m);
    return made;
}

#define TRAINS "autograd loss; simplify; clip 0.5; adamw lr; "

static finished whole[4], shared[4];

/* The ranks of the second run have the values of the first, whose ranks have all experts. */
static void check_bits(test *t, int parts)
{
    for (int r = 0; r < 4 && !t->failed; r++) {
        CHECK_TEXT(t, whole[r].said, "");
        CHECK_TEXT(t, shared[r].said, "");
        CHECK(t, whole[r].counts_as_planned && shared[r].counts_as_planned);
        CHECK(t, whole[r].loss > 0 && !memcmp(&whole[0].loss, &shared[r].loss, sizeof(double)));
        CHECK(t, whole[r].norm > 0 && !memcmp(&whole[0].norm, &shared[r].norm, sizeof(double)));
        for (int k = 0; k < PARAMS && !t->failed; k++) {
            const bool cut = shared[r].counts[k] != whole[0].counts[k];
            const int64_t at = cut ? r % parts * shared[r].counts[k] : 0;
            CHECK(t, !cut || shared[r].counts[k] * parts == whole[0].counts[k]);
            if (memcmp(whole[0].values[k] + at, shared[r].values[k], (size_t)shared[r].counts[k]))
                test_fail(t, __FILE__, __LINE__, params[k], "has other bits");
        }
    }
}

static void check_shared(test *t, const char *dtype, int parts, int sections, int stage,
                         const int *one)
{
    char line[200];
    snprintf(line, sizeof line,
             TRAINS "experts parts=%d sections=%d; zero stage=%d world=4 micro_batches=2", parts,
             sections, stage);
    if (run(t, shared, dtype, line, one)) check_bits(t, parts);
}

#define WHOLE TRAINS "experts sections=4; zero world=4 micro_batches=2"

TEST_ONCE(experts_of_ranks_have_the_bits_of_each_stage)
{
    if (!run(t, whole, "f32", WHOLE, NULL)) return;
    for (int parts = 1; parts <= 4; parts *= 2)
        for (int stage = 0; stage < 4 && !t->failed; stage++)
            check_shared(t, "f32", parts, 4, stage, NULL);
}

/* Trees of two ranks, which are added in order. */
TEST_ONCE(experts_of_ranks_have_the_bits_of_sections)
{
    static const char *const line = TRAINS "experts sections=2; zero world=4 micro_batches=2";
    if (!run(t, whole, "f32", line, NULL)) return;
    check_shared(t, "f32", 2, 2, 3, NULL);
    check_shared(t, "f32", 1, 2, 2, NULL);
}

TEST_ONCE(experts_of_ranks_have_the_bits_in_16)
{
    if (!run(t, whole, "bf16", WHOLE, NULL)) return;
    check_shared(t, "bf16", 2, 4, 1, NULL);
    check_shared(t, "bf16", 4, 4, 3, NULL);
    check_shared(t, "bf16", 1, 4, 2, NULL);
}

/* All tokens go to two experts, and those of one rank to others: the other experts have no rows. */
TEST_ONCE(experts_of_ranks_may_have_no_rows)
{
    static const int same[4] = {3, 3, 3, 3}, other[4] = {-1, 5, 5, 5};
    for (int k = 0; k < 2 && !t->failed; k++) {
        if (!run(t, whole, "f32", WHOLE, k ? other : same)) return;
        check_shared(t, "f32", 4, 4, 2 + k, k ? other : same);
        check_shared(t, "f32", 2, 4, 0, k ? other : same);
    }
}

/* Sums over micro-batches lie elsewhere. */
TEST_ONCE(experts_of_ranks_leave_sums_in_host_memory)
{
    static const char *const lines[] = {
        TRAINS "experts parts=2 sections=4; zero stage=0 world=4 micro_batches=2; "
               "offload gradients=host",
        TRAINS "experts parts=2 sections=4; zero stage=3 gather=step world=4 micro_batches=2; "
               "offload gradients=host optimizer=host; prefetch"};
    if (!run(t, whole, "f32", WHOLE, NULL)) return;
    for (int k = 0; k < 2 && !t->failed; k++)
        if (run(t, shared, "f32", lines[k], NULL)) check_bits(t, 2);
}

/* Each rank chooses other experts, and fetches those that have rows on it, or on any rank that
 * gathers them. */
TEST_ONCE(experts_of_ranks_are_fetched)
{
    static const int other[4] = {-1, 5, 5, 2};
    static const char *const lines[] = {
        "parts=1 sections=4; zero stage=3 world=4", "parts=2 sections=4; zero stage=3 world=4",
        "parts=4 sections=4; zero stage=0 world=4"};
    if (!run(t, whole, "f32", WHOLE, other)) return;
    for (int k = 0; k < 3 && !t->failed; k++) {
        char line[300];
        snprintf(line, sizeof line,
                 TRAINS "experts %s micro_batches=2 experts_apart; offload parameters=host "
                        "optimizer=host; prefetch bytes=30000",
                 lines[k]);
        if (run(t, shared, "f32", line, other)) check_bits(t, 1 << k);
    }
}

/* Against ranks with all experts and no sections, in f64. */
static void check_close(test *t, const char *optimizer, int of)
{
    char plain[200], parts[200];
    snprintf(plain, sizeof plain,
             "autograd loss; simplify; clip 0.5; %s lr; zero world=4 micro_batches=2", optimizer);
    snprintf(parts, sizeof parts,
             "autograd loss; simplify; clip 0.5; %s lr; experts parts=%d; zero stage=2 world=4 "
             "micro_batches=2",
             optimizer, of);
    if (!run(t, whole, "f64", plain, NULL) || !run(t, shared, "f64", parts, NULL)) return;
    CHECK_TEXT(t, shared[1].said, "");
    CHECK(t, fabs(whole[0].loss - shared[1].loss) <= 1e-13 * fabs(whole[0].loss));
    CHECK(t, fabs(whole[0].norm - shared[1].norm) <= 1e-13 * fabs(whole[0].norm));
    for (int k = 0; k < PARAMS && !t->failed; k++) {
        const double *x = (const double *)(const void *)whole[0].values[k],
                     *y = (const double *)(const void *)shared[1].values[k];
        const int64_t n = shared[1].counts[k] / 8, at = n * 8 == whole[0].counts[k] ? 0 : n;
        CHECK(t, whole[0].counts[k] == n * 8 * (at ? of : 1));
        for (int64_t i = 0; i < n && !t->failed; i++) CHECK(t, fabs(x[at + i] - y[i]) <= 1e-11);
    }
}

/* Norms of LAMB are those of the matrices of all experts, and clipped ones, too. What SGD adds is the
 * gradient. */
TEST_ONCE(experts_of_ranks_compute_what_all_do)
{
    check_close(t, "adamw", 2);
    check_close(t, "lamb", 2);
    check_close(t, "sgd", 2);
    check_close(t, "sgd", 4);
}

/* A rank has more choices than rows for an expert's rank: all ranks end with an error. */
TEST_ONCE(experts_of_ranks_say_that_there_are_too_many_rows)
{
    static const int one[4] = {3, 3, 3, 3};
    static const char line[] = TRAINS "experts parts=4 rows=1; zero world=4 micro_batches=2";
    int named = 0;
    if (!run(t, shared, "f32", line, one)) return;
    for (int r = 0; r < 4; r++) {
        CHECK(t, shared[r].said[0]);
        named +=
            strstr(shared[r].said, "expert_rows %9: ") &&
            strstr(shared[r].said, " choices of experts ") &&
            strstr(shared[r].said, " on rank 2, 16 of them of expert ") &&
            strstr(shared[r].said, ", and there are 8 rows; 2.00 times the mean of 8 would do");
    }
    CHECK(t, named >= 1);
    if (run(t, shared, "f32", TRAINS "experts parts=4 rows=4; zero world=4 micro_batches=2", one))
        CHECK_TEXT(t, shared[2].said, "");
}

/* Sent in 8 bits they are other numbers, and those of any number of ranks. */
TEST_ONCE(experts_of_ranks_have_the_bits_in_8)
{
    double plain;
    width = WIDE;
    if (!run(t, whole, "f32", WHOLE, NULL)) return;
    plain = whole[0].loss;
    if (!run(t, whole, "f32", TRAINS "experts sections=4 int8=1; zero world=4 micro_batches=2", NULL))
        return;
    CHECK(t, whole[0].loss != plain && fabs(whole[0].loss - plain) < 0.02 * plain);
    for (int parts = 2; parts <= 4 && !t->failed; parts *= 2) {
        char line[200];
        snprintf(line, sizeof line,
                 TRAINS "experts parts=%d sections=4 int8=1; zero stage=%d world=4 micro_batches=2",
                 parts, parts - 1);
        if (run(t, shared, "f32", line, NULL)) check_bits(t, parts);
    }
    width = WIDTH;
}

/* First weights of experts of 8 and 4 bits, which are frozen. */
TEST_ONCE(experts_of_ranks_have_the_bits_in_few_bits)
{
    width = WIDE;
    for (bits = 8; bits >= 4 && !t->failed; bits -= 4) {
        const char *const dtype = bits == 8 ? "f32" : "bf16";
        if (run(t, whole, dtype, WHOLE, NULL))
            check_shared(t, dtype, bits / 2, 4, bits == 8 ? 3 : 0, NULL);
    }
    width = WIDTH, bits = 0;
}

/* What a rank sends over expert: rows both ways, forward and backward, and where those of each expert
 * are. */
TEST(experts_of_ranks_send_what_formulas_say)
{
    enum { P = 4, FREE = P * TOKENS * 2, SENT = 4 * (FREE + ROWS) * WIDTH * 4 + 2 * EXPERTS * 8,
           SENT8 = 4 * (FREE + ROWS) * (WIDE + 4) + 2 * EXPERTS * 8 };
    char text[TEXT];
    zf_plan plan;
    write_model(text, "f32");
    if (!plan_after(t, text, TRAINS "experts parts=4; zero world=8 stage=2; memory", &plan)) return;
    CHECK(t, plan.traffic_over[ZF_OVER_EXPERT].all_to_all.calls == 10);
    CHECK(t, plan.traffic_over[ZF_OVER_EXPERT].all_to_all.bytes == SENT * (P - 1) / P);
    CHECK(t, plan.traffic_over[ZF_OVER_OWNERS].reduce_scatter.bytes ==
                 EXPERTS * 32 * WIDTH * 4 / P * 4 / 2);
    /* A token has one expert at most on each of eight ranks. */
    if (!plan_after(t, text, TRAINS "experts parts=8; zero world=8 stage=2; memory", &plan)) return;
    CHECK(t, plan.traffic_over[ZF_OVER_EXPERT].all_to_all.bytes ==
                 (4 * (8 * TOKENS + ROWS) * WIDTH * 4 + 2 * EXPERTS * 8) * 7 / 8);
    width = WIDE, write_model(text, "f32"), width = WIDTH;
    if (!plan_after(t, text, TRAINS "experts parts=4 int8=1; zero world=8 stage=2; memory", &plan))
        return;
    CHECK(t, plan.traffic_over[ZF_OVER_EXPERT].all_to_all.calls == 10);
    CHECK(t, plan.traffic_over[ZF_OVER_EXPERT].all_to_all.bytes == SENT8 * (P - 1) / P);
}

/* Experts that change nothing, their rows sent in 8 bits both ways: the error of a number is at most
 * that of two roundings. */
static const char identity[] =
    "%1 = input \"x\" : f32[4,64]\n%2 = input \"of\" : i32[4,1]\n"
    "%3 = expert_rows %2 {experts=4 rows=4} : i32[4]\n%4 = saved %3 : i32[4,2]\n"
    "%5 = saved %3 {index=1} : i32[4,1]\n%6 = dispatch %1, %3, %5 : f32[4,64]\n"
    "%7 = param \"w\" : f32[4,64,64]\n%8 = grouped_linear %6, %7, %4 : f32[4,64]\n"
    "%9 = combine %8, %3, %5 : f32[4,64]\noutput %9 \"y\"\n";

/* The inputs and the result of a rank. */
typedef struct sent {
    pthread_t thread;
    member *of;
    float x[4][64], y[4][64];
    zf_status status;
} sent;

static void *send_rows(void *object)
{
    sent *s = object;
    zf_graph *g = s->of->graph;
    zf_program *p = s->of->program;
    int32_t to[4];
    float w[64][64] = {{0}};
    for (int i = 0; i < 4; i++) {
        to[i] = (s->of->rank + i * i) % 4;
        for (int k = 0; k < 64; k++) w[k][k] = 1;
        for (int k = 0; k < 64; k++)
            s->x[i][k] = i == 2 ? 0 : (float)((k * 37 + i * 11 + s->of->rank * 5) % 23 - 11) / 7;
    }
    s->status = zf_write(p, zf_graph_find(g, "x"), s->x, sizeof s->x);
    if (!s->status) s->status = zf_write(p, zf_graph_find(g, "of"), to, sizeof to);
    if (!s->status) s->status = zf_write(p, zf_graph_find(g, "w"), w, sizeof w);
    if (!s->status) s->status = zf_step(p);
    if (!s->status) s->status = zf_read(p, zf_graph_find(g, "y"), s->y, sizeof s->y);
    return NULL;
}

TEST_ONCE(experts_of_ranks_round_rows_once_each_way)
{
    static team m;
    static sent all[4];
    passes = "experts parts=4 int8=1; zero world=4";
    test_defer(t, team_end, &m);
    if (!team_new(t, &m, identity, 4, false, team_change)) return;
    for (int r = 0; r < 4; r++) {
        all[r].of = &m.members[r];
        if (pthread_create(&all[r].thread, NULL, send_rows, &all[r])) abort();
    }
    for (int r = 0; r < 4; r++) pthread_join(all[r].thread, NULL);
    for (int r = 0; r < 4 && !t->failed; r++) {
        int moved = 0;
        OK(t, all[r].status, zf_program_error(m.members[r].program));
        for (int i = 0; i < 4; i++) {
            double most = 0;
            for (int k = 0; k < 64; k++) most = fmax(most, fabs((double)all[r].x[i][k]));
            for (int k = 0; k < 64 && !t->failed; k++) {
                const double off = fabs((double)all[r].y[i][k] - (double)all[r].x[i][k]);
                CHECK(t, off <= 2 * most / 127 * (0.5 + 0x1p-14));
                moved += off > 0;
            }
        }
        CHECK(t, moved > 80 && moved <= 192);
    }
    team_end(&m);
}

/* Each rank along tensor has a part of the hidden numbers of its experts. */
TEST(experts_of_ranks_share_hidden_numbers)
{
    static const char line[] = "autograd loss; simplify; adamw lr; cut parts=2; experts parts=2";
    char text[TEXT], message[600] = "";
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    write_model(text, "f32");
    g = team_parsed(t, text, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    if (pass_run(g, line, NULL, message, sizeof message) != PASS_DONE)
        OK(t, zf_graph_status(g), message);
    for (int k = 0; k < 2; k++) {
        const zf_shape s = zf_tensor_shape(zf_graph_find(g, k ? "h.1.up" : "h.0.down"));
        CHECK(t, s.dims[0] == EXPERTS / 2 && s.dims[1] == 16 && s.dims[2] == 16);
    }
}

TEST(experts_of_ranks_are_checked)
{
    static const struct {
        const char *passes, *error;
    } wrong[] = {
        {TRAINS "experts parts=3", "zf_experts: 3 ranks do not divide the 8 experts of \"h.0.up\""},
        {TRAINS "experts parts=2 sections=3", "zf_experts: 3 sections are not divided by 2 ranks"},
        {TRAINS "experts parts=2; experts parts=2", "zf_experts: ranks share experts already"},
        {TRAINS "experts parts=2; zero world=3", "zf_zero: 2 ranks share experts: that must divide "
                                                 "world, which is 3, and goes without nodes, "
                                                 "hold and what is sent quantised"},
        {TRAINS "experts parts=2; zero world=4 nodes=2", "and goes without nodes, hold"},
        {"tile 4096; " TRAINS "experts parts=2",
         "zf_experts: \"h.0.up[0:2]\" is a piece of a weight of experts (zf_tile), and ranks share "
         "weights of all experts: bytes of zf_tile must be 0, or larger"},
        {TRAINS "experts parts=2 sections=4; zero world=6",
         "zf_zero: sums over 2 ranks that share experts are made in sections of 4: world, of ranks "
         "along data, is 6, and must be a multiple of that"},
    };
    char text[TEXT];
    write_model(text, "f32");
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong && !t->failed; k++)
        check_refused(t, text, wrong[k].passes, wrong[k].error);
    check_refused(t, text, TRAINS "experts int8=1",
                  "zf_experts: dispatch int8 is of rows that go to other ranks, and there is one part "
                  "and one section");
    check_refused(t, "%1 = input \"x\" : f32[4,4]\noutput %1 \"y\"\n", "experts parts=2",
                  "zf_experts: there are no experts that ranks can share");
}

/* Graphs of one layer, and what is wrong with them; `experts parts=2` runs on those without a mesh. */
TEST(experts_of_ranks_are_parameters_by_rows)
{
#define ROUTED                                                                                     \
    "%1 = input \"x\" : f32[4,4]\n%2 = input \"of\" : i32[4,2]\n"                                  \
    "%3 = expert_rows %2 {experts=2 rows=8} : i32[8]\n%4 = saved %3 : i32[2,2]\n"                  \
    "%5 = saved %3 {index=1} : i32[4,2]\n%6 = dispatch %1, %3, %5 : f32[8,4]\n"
    static const struct {
        const char *text, *error;
    } wrong[] = {
        {ROUTED "%7 = input \"w\" : f32[2,4,4]\n%8 = grouped_linear %6, %7, %4 : f32[8,4]\n",
         "zf_experts: grouped_linear %8 has matrices of experts in %7, which is made by input: "
         "ranks "
         "share parameters"},
        {ROUTED "%7 = param \"w\" : f32[2,4,4]\n%8 = grouped_linear %6, %7, %4 : f32[8,4]\n"
                "%9 = sum %8 {axis=0} : f32[4]\noutput %9 \"y\"\n",
         "zf_experts: sum %9 is not by rows, and other ranks have rows of these experts too"},
        {ROUTED "%7 = param \"w\" : f32[2,4,4]\n%8 = grouped_linear %6, %7, %4 : f32[8,4]\n"
                "%9 = sum %7 {axis=0} : f32[4,4]\noutput %9 \"y\"\n",
         "zf_experts: sum %9 reads the matrices of all experts, and each rank has those of its "
         "own"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong && !t->failed; k++)
        check_refused(t, wrong[k].text, "experts parts=2", wrong[k].error);
    check_refused(t,
                  ROUTED "%7 = param \"w\" : f32[2,4,4]\n%8 = grouped_linear %6, %7, %4 : f32[8,4]\n"
                         "%9 = combine %8, %3, %5 : f32[4,4]\noutput %9 \"y\"\n",
                  "experts parts=2 int8=1",
                  "zf_experts: rows of 4 numbers are no blocks of 64 to 256: dispatch int8 is for a "
                  "multiple of 64");
}

/* A step of two ranks; `line`: that of the gradient. */
#define MESH "mesh data=2 expert=2\nzero stage=0 world=2 micro_batches=1\n"
#define GRADIENT(rows, sum, mark)                                                                  \
    MESH "%1 = param \"w\" : f32[1@expert,4,4]\n"                                                  \
         "%2 = bucket %1 {at=[0] size=1024} : f32[1024]~expert\n%3 = input \"x\" : f32[8,4]\n"     \
         "%4 = input \"b\" : i32[2,2]\n%5 = all_to_all %3 {world=2 over=expert} : f32[8,4]\n"      \
         "%6 = all_to_all %4 {world=2 over=expert} : i32[2,2]\n"                                   \
         "%7 = grouped_outer " rows ", " rows ", " sum                                             \
         " : f32[1@expert,4,4]\n%8 = pack %7 {at=[0] size=1024} : f32[1024]~expert\n" mark

/* The verifier: sums over the rows of all ranks are sums over these, others are not. */
TEST(experts_of_ranks_are_verified)
{
    static const struct {
        const char *text, *error; /* NULL: nothing is wrong */
    } graphs[] = {
        {GRADIENT("%5", "%6 {sources=2 sections=2}", "gradient %2, %8\n"), NULL},
        {GRADIENT("%3", "%6 {sources=2 sections=2}", "gradient %2, %8\n"),
         "%8 is a gradient that was not summed over the 2 ranks"},
        {GRADIENT("%5", "%4 {sources=2 sections=2}", "gradient %2, %8\n"),
         "%8 is a gradient that was not summed over the 2 ranks"},
        {MESH "%1 = param \"w\" : f32[2,4,4]\n%2 = bucket %1 {at=[0] size=1024} : f32[1024]\n"
              "%3 = view %2 {shape=[2,4,4]} : f32[2,4,4]\n%4 = input \"x\" : f32[8,4]\n"
              "%5 = input \"b\" : i32[4,2]\n"
              "%6 = grouped_linear %4, %3, %5 {sources=2} : f32[8,4]\n",
         "%3 must be cut over expert at dimension 0: its rows are those of all ranks along that"},
        {"%1 = input \"x\" : f32[8,4]\n%2 = input \"w\" : f32[2,4,4]\n%3 = input \"b\" : i32[4,2]\n"
         "%4 = grouped_linear %1, %2, %3 {sources=2} : f32[8,4]\n",
         "its rows are those of sources=2 ranks, and 1 share experts"},
        {"mesh data=3 expert=2\n", "expert=2 does not divide data=3, of which it is a part"},
        {"%1 = input \"x\" : f32[8]\n%2 = all_to_all %1 {world=2 over=expert} : f32[8]\n",
         "the ranks have no axis expert: the line mesh must name it"},
    };
    for (size_t k = 0; k < sizeof graphs / sizeof *graphs && !t->failed; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = team_parsed(t, graphs[k].text, &error);
        zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM || !graphs[k].error) OK(t, error.status, error.text);
        else if (!strstr(error.text, graphs[k].error))
            test_fail(t, __FILE__, __LINE__, graphs[k].error, error.text);
    }
}

/* What is cut over experts has a gradient that is a sum of their rows. */
TEST(experts_of_ranks_have_gradients_of_rows)
{
    check_refused(
        t,
        "mesh expert=2\n%1 = param \"w\" : f32[1@expert,4,4]\n%2 = scale %1 {by=2} : "
        "f32[1@expert,4,4]\ngradient %1, %2\n%3 = input \"lr\" : f32[]\nupdate:\n"
        "sgd %1, %2, %3\n",
        "zero world=2",
        "it is cut over experts, and its gradient is no sum over the rows of all ranks along "
        "that axis");
}
