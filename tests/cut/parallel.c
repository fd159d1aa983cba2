/* zf_cut: layers and heads of a small transformer are cut over ranks, and the steps have the bits
 * of one rank with as many sections; what cannot be cut says why. */
#include "../ranks/team_passes.h"

enum { B = 2, S = 3, W = 8, HEADS = 4, MLP = 16, MOST = 512 };

/* One block: attention of four heads, then two layers; norms before each, and residuals. */
static const char *const block =
    "%1 = input \"x\" : f32[2,3,8]\n%2 = input \"lr\" : f32[]\n"
    "%3 = param \"q\" {init=normal b=0.5} : f32[8,8]\n"
    "%4 = param \"k\" {init=normal b=0.5} : f32[8,8]\n"
    "%5 = param \"v\" {init=normal b=0.5} : f32[8,8]\n"
    "%6 = param \"qb\" {init=normal b=0.5} : f32[8]\n"
    "%7 = param \"in\" {init=normal b=0.5} : f32[8,8]\n"
    "%8 = matmul %1, %7 {transpose_b=true} : f32[2,3,8]\n"
    "%9 = matmul %8, %3 {transpose_b=true} : f32[2,3,8]\n%10 = add %9, %6 : f32[2,3,8]\n"
    "%11 = matmul %8, %4 {transpose_b=true} : f32[2,3,8]\n"
    "%12 = matmul %8, %5 {transpose_b=true} : f32[2,3,8]\n"
    "%13 = reshape %10 {shape=[2,3,4,2]} : f32[2,3,4,2]\n"
    "%14 = transpose %13 {order=[0,2,1,3]} : f32[2,4,3,2]\n"
    "%15 = reshape %11 {shape=[2,3,4,2]} : f32[2,3,4,2]\n"
    "%16 = transpose %15 {order=[0,2,1,3]} : f32[2,4,3,2]\n"
    "%17 = reshape %12 {shape=[2,3,4,2]} : f32[2,3,4,2]\n"
    "%18 = transpose %17 {order=[0,2,1,3]} : f32[2,4,3,2]\n"
    "%19 = matmul %14, %16 {transpose_b=true} : f32[2,4,3,3]\n"
    "%20 = scale %19 {by=0.7} : f32[2,4,3,3]\n%21 = softmax %20 : f32[2,4,3,3]\n"
    "%22 = matmul %21, %18 : f32[2,4,3,2]\n"
    "%23 = transpose %22 {order=[0,2,1,3]} : f32[2,3,4,2]\n"
    "%24 = reshape %23 {shape=[2,3,8]} : f32[2,3,8]\n"
    "%25 = param \"o\" {init=normal b=0.5} : f32[8,8]\n"
    "%26 = matmul %24, %25 {transpose_b=true} : f32[2,3,8]\n"
    "%27 = param \"ob\" {init=normal b=0.5} : f32[8]\n%28 = add %26, %27 : f32[2,3,8]\n"
    "%29 = add %28, %8 : f32[2,3,8]\n"
    "%30 = param \"up\" {init=normal b=0.5} : f32[16,8]\n"
    "%31 = matmul %29, %30 {transpose_b=true} : f32[2,3,16]\n"
    "%32 = param \"upb\" {init=normal b=0.5} : f32[16]\n%33 = add %31, %32 : f32[2,3,16]\n"
    "%34 = gelu %33 : f32[2,3,16]\n"
    "%35 = param \"down\" {init=normal b=0.5} : f32[8,16]\n"
    "%36 = matmul %34, %35 {transpose_b=true} : f32[2,3,8]\n%37 = add %36, %29 : f32[2,3,8]\n"
    "%38 = mul %37, %37 : f32[2,3,8]\n%39 = reshape %38 {shape=[48]} : f32[48]\n"
    "%40 = sum %39 : f32[]\noutput %40 \"loss\"\n";

/* Of one rank, and how ranks have it: cut along a dimension of two; -1: equal. */
static const struct {
    const char *name;
    int rows, columns, dim;
} values[] = {{"q", W, W, 0},      {"k", W, W, 0},    {"v", W, W, 0},     {"qb", 1, W, 1},
              {"o", W, W, 1},      {"ob", 1, W, -1},  {"in", W, W, -1},   {"up", MLP, W, 0},
              {"upb", 1, MLP, 1},  {"down", W, MLP, 1}, {"loss", 1, 1, -1},
              {"adamw.m/down", W, MLP, 1}};

enum { VALUES = sizeof values / sizeof *values };

static void step_all(test *t, team *m)
{
    for (int step = 0; step < 3 && !t->failed; step++) {
        for (int r = 0; r < m->world; r++) {
            float x[B * S * W], lr = 0.01f;
            for (int i = 0; i < B * S * W; i++) x[i] = (float)((i * 7 + step) % 11 - 5) / 7;
            zf_write(m->programs[r], zf_graph_find(m->members[r].graph, "x"), x, sizeof x);
            zf_write(m->programs[r], zf_graph_find(m->members[r].graph, "lr"), &lr, sizeof lr);
        }
        team_step(t, m);
    }
}

static void check_value(test *t, const team *one, const team *all, int v, double most)
{
    const int ranks = all->world, dim = values[v].dim,
              rows = values[v].rows / (dim == 0 ? ranks : 1),
              columns = values[v].columns / (dim == 1 ? ranks : 1);
    float whole[MOST], part[MOST];
    const char *name = values[v].name;
    OK(t,
       zf_read(one->programs[0], zf_graph_find(one->members[0].graph, name), whole,
               (size_t)values[v].rows * (size_t)values[v].columns * sizeof(float)),
       zf_program_error(one->programs[0]));
    for (int r = 0; r < ranks; r++) {
        OK(t,
           zf_read(all->programs[r], zf_graph_find(all->members[r].graph, name), part,
                   (size_t)rows * (size_t)columns * sizeof(float)),
           zf_program_error(all->programs[r]));
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++) {
                const int row = i + (dim == 0 ? r * rows : 0),
                          column = j + (dim == 1 ? r * columns : 0);
                const float mine = part[i * columns + j],
                            its = whole[row * values[v].columns + column];
                const double far = fabs((double)mine - (double)its);
                if (most == 0 ? memcmp(&mine, &its, 4) != 0
                              : !(far <= most * (1 + fabs((double)its)))) {
                    test_fail(t, __FILE__, __LINE__, name, "not that of one rank");
                    return;
                }
            }
    }
}

static bool make(test *t, team *m, int ranks, const char *line, bool lockstep)
{
    passes = line;
    if (!team_new(t, m, block, ranks, lockstep, team_change)) return false;
    step_all(t, m);
    return !t->failed;
}

TEST_ONCE(parallel_ranks_have_the_bits_of_one)
{
    static const char *const lines[] = {
        "autograd loss; simplify; adamw lr; cut sections=4",
        "autograd loss; simplify; adamw lr; cut parts=2 sections=4",
        "autograd loss; simplify; adamw lr; cut parts=4 sections=4", /* of a head each */
    };
    static team one, all;
    test_defer(t, team_end, &one);
    test_defer(t, team_end, &all);
    if (!make(t, &one, 1, lines[0], true)) return;
    for (int k = 1; k < 3 && !t->failed; k++) {
        if (!make(t, &all, 2 * k, lines[k], false)) return;
        for (int v = 0; v < VALUES && !t->failed; v++) check_value(t, &one, &all, v, 0);
        team_end(&all);
    }
    team_end(&one);
    if (!make(t, &one, 1, "autograd loss; simplify; adamw lr", true)) return;
    if (!make(t, &all, 2, "autograd loss; simplify; adamw lr; cut parts=2", true)) return;
    for (int v = 0; v < VALUES && !t->failed; v++) check_value(t, &one, &all, v, 1e-4);
}

TEST(parallel_cuts_are_checked)
{
    static const struct {
        const char *passes, *error;
    } wrong[] = {
        {"autograd loss; simplify; adamw lr; cut parts=8",
         "zf_cut: dimension 0 of \"q\" may be cut into divisors of 4, and there are 8 ranks"},
        {"cut parts=2 sections=3", "zf_cut: 3 sections are not divided by 2 ranks"},
        {"cut parts=2; cut parts=2", "zf_cut: the ranks have other axes already"},
        {"autograd loss; simplify; adamw lr; cut parts=2 sections=64",
         "zf_cut: no layer can be cut: dimension "},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong && !t->failed; k++)
        check_refused(t, block, wrong[k].passes, wrong[k].error);
}

TEST(parallel_cuts_need_two_layers)
{
    static const char *const text =
        "%1 = input \"x\" : f32[4,8]\n%2 = param \"w\" : f32[4,8]\n"
        "%3 = mul %1, %2 : f32[4,8]\noutput %3 \"y\"\n";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &error);
    zf_status status;
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    status = zf_cut(g, &(zf_cut_desc){.parts = 2});
    GIVES(t, status, ZF_ERR_ARGUMENT, zf_graph_error(g));
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_cut: no layer can be cut: no product with a parameter follows another");
}

/* ----------------------------------------------------------------------- programs of one store */

/* Two pairs of layers; %9 reads the hidden values of the first. */
static const char pairs[] =
    "%1 = input \"x\" : f32[4,8]\n"
    "%2 = param \"up\" {init=normal b=0.5} : f32[16,8]\n%3 = linear %1, %2 : f32[4,16]\n"
    "%4 = param \"down\" {init=normal b=0.5} : f32[8,16]\n%5 = linear %3, %4 : f32[4,8]\n"
    "%6 = param \"up2\" {init=normal b=0.5} : f32[16,8]\n%7 = linear %5, %6 : f32[4,16]\n"
    "%8 = param \"down2\" {init=normal b=0.5} : f32[8,16]\n%9 = linear %7, %8 : f32[4,8]\n"
    "output %9 \"y\"\n";
static const char reads[] = "%10 = softmax %3 : f32[4,16]\noutput %10 \"read\"\n";

/* The program of the pairs over the store, of rank 0 of two; of an error NULL. */
static zf_program *over_store(test *t, zf_comm *comm, zf_store *store, bool reading, zf_graph **g)
{
    char text[1200];
    zf_error error = {ZF_OK, ""};
    snprintf(text, sizeof text, "%s%s", pairs, reading ? reads : "");
    *g = team_parsed(t, text, &error);
    if (!*g) return NULL;
    test_defer(t, (test_cleanup *)zf_graph_free, *g);
    zf_passes(*g, &(zf_training){.tensor = 2, .zero = {.world = 1, .store = store}});
    return zf_compile(*g, &(zf_compile_desc){.comm = comm, .store = store, .evaluate = true});
}

/* Parameters are cut in a second program as in the first one, whatever that reads besides. */
TEST_ONCE(parallel_programs_of_a_store_are_cut_alike)
{
    for (int reading = 0; reading < 2 && !t->failed; reading++) {
        zf_graph *g[2];
        zf_program *p[2];
        zf_local *local = zf_local_new(&(zf_local_desc){.world = 2}, NULL);
        if (!local) abort();
        test_defer(t, (test_cleanup *)zf_local_free, local);
        p[0] = over_store(t, zf_local_comm(local, 0), NULL, reading, &g[0]);
        OK(t, zf_graph_status(g[0]), zf_graph_error(g[0]));
        test_defer(t, (test_cleanup *)zf_program_free, p[0]);
        p[1] = over_store(t, zf_local_comm(local, 0), zf_program_store(p[0]), !reading, &g[1]);
        test_defer(t, (test_cleanup *)zf_program_free, p[1]);
        CHECK(t, zf_tensor_shape(zf_graph_find(g[0], "up")).dims[0] == (reading ? 16 : 8));
        if (!reading) {
            GIVES(t, zf_graph_status(g[1]), ZF_ERR_ARGUMENT, zf_graph_error(g[1]));
            CHECK_TEXT(t, zf_graph_error(g[1]),
                       "zf_cut: dimension 0 of \"up\" is cut in the store, and softmax of this "
                       "graph keeps it whole here");
            continue;
        }
        OK(t, zf_graph_status(g[1]), zf_graph_error(g[1]));
        for (int k = 0; k < zf_param_count(g[0]); k++) {
            const zf_tensor its = zf_param_at(g[0], k);
            CHECK(t, zf_tensor_bytes(zf_graph_find(g[1], zf_tensor_name(its))) ==
                         zf_tensor_bytes(its));
        }
    }
}
