/* Types along axes: a step that is cut by hand has the bits of one rank, each rule has an input
 * that breaks it, and texts have the types that operands give. */
#include "team.h"

#include "../../tools/pass.h"

enum { ROWS = 4, WIDTH = 8, HIDDEN = 16, SECTIONS = 4 };

/* A layer that is equal on all ranks, a column-parallel and a row-parallel one, and their
 * gradients; of one rank where `ranks` is 1. */
static void write_step(char text[3000], int ranks)
{
    const char *cut = ranks > 1 ? "@tensor" : "", *sum = ranks > 1 ? "+tensor" : "";
    const int h = HIDDEN / ranks, sections = SECTIONS / ranks;
    char mesh[40] = "", first[80] = "reshape %8 {shape=[4,8]}",
         last[80] = "reshape %24 {shape=[4,8]}";
    if (ranks > 1) {
        snprintf(mesh, sizeof mesh, "mesh tensor=%d\n", ranks);
        snprintf(first, sizeof first, "all_reduce %%8 {world=%d over=tensor order=tree}", ranks);
        snprintf(last, sizeof last, "all_reduce %%24 {world=%d over=tensor order=tree}", ranks);
    }
    snprintf(text, 3000,
             "%s"
             "%%1 = input \"x\" : f32[4,8]\n"
             "%%30 = input \"lr\" : f32[]\n"
             "%%2 = param \"e\" {init=normal b=0.5} : f32[8,8]\n"
             "%%3 = linear %%1, %%2 : f32[4,8]\n"
             "%%4 = param \"a\" {init=normal b=0.5} : f32[%d%s,8]\n"
             "%%5 = linear %%3, %%4 : f32[4,%d%s]\n"
             "%%6 = tanh %%5 : f32[4,%d%s]\n"
             "output %%6 \"h\"\n"
             "%%7 = param \"b\" {init=uniform a=-1 b=1} : f32[8,%d%s]\n"
             "%%8 = linear %%6, %%7 {sections=%d wide=true} : f32[4,8]%s\n"
             "%%9 = %s : f32[4,8]\n"
             "%%10 = param \"c\" {init=normal b=0.5} : f32[8]\n"
             "%%11 = add %%9, %%10 : f32[4,8]\n"
             "%%12 = mul %%11, %%11 : f32[4,8]\n"
             "%%13 = reshape %%12 {shape=[32]} : f32[32]\n"
             "%%14 = sum %%13 : f32[]\n"
             "output %%14 \"loss\"\n"
             "%%15 = scale %%11 {by=2} : f32[4,8]\n"
             "%%16 = sum_to %%15 {shape=[8]} : f32[8]\n"
             "%%17 = matmul %%15, %%6 {transpose_a=true} : f32[8,%d%s]\n"
             "%%18 = matmul %%15, %%7 : f32[4,%d%s]\n"
             "%%19 = mul %%6, %%6 : f32[4,%d%s]\n"
             "%%20 = mul %%18, %%19 : f32[4,%d%s]\n"
             "%%21 = sub %%18, %%20 : f32[4,%d%s]\n"
             "%%22 = matmul %%21, %%3 {transpose_a=true} : f32[%d%s,8]\n"
             "%%24 = matmul %%21, %%4 {sections=%d wide=true} : f32[4,8]%s\n"
             "%%25 = %s : f32[4,8]\n"
             "%%26 = matmul %%25, %%1 {transpose_a=true} : f32[8,8]\n"
             "gradient %%2, %%26\ngradient %%4, %%22\ngradient %%7, %%17\ngradient %%10, %%16\n",
             mesh, h, cut, h, cut, h, cut, h, cut, sections, sum, first, h, cut, h, cut, h, cut, h,
             cut, h, cut, h, cut, sections, sum, last);
}

static const char *passes; /* of team_change */

static zf_status team_change(zf_graph *g)
{
    char message[600] = "";
    if (pass_run(g, passes, NULL, message, sizeof message) == PASS_DONE) return ZF_OK;
    return zf_graph_status(g) ? zf_graph_status(g) : ZF_ERR_ARGUMENT;
}

static void step_all(test *t, team *m)
{
    for (int step = 0; step < 2 && !t->failed; step++) {
        for (int r = 0; r < m->world; r++) {
            float x[ROWS * WIDTH], lr = 0.01f;
            for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)((i * 7 + step) % 11 - 5) / 7;
            zf_write(m->programs[r], zf_graph_find(m->members[r].graph, "x"), x, sizeof x);
            zf_write(m->programs[r], zf_graph_find(m->members[r].graph, "lr"), &lr, sizeof lr);
        }
        team_step(t, m);
    }
}

/* What one rank has, and what ranks have of it: cut along a dimension of two; -1: equal. */
static const struct {
    const char *name;
    int rows, columns, dim;
} values[] = {{"e", WIDTH, WIDTH, -1},      {"a", HIDDEN, WIDTH, 0}, {"b", WIDTH, HIDDEN, 1},
              {"c", 1, WIDTH, -1},          {"h", ROWS, HIDDEN, 1},  {"loss", 1, 1, -1},
              {"sgd.momentum/a", HIDDEN, WIDTH, 0}};

enum { VALUES = sizeof values / sizeof *values, MOST = HIDDEN * WIDTH };

static void check_value(test *t, const team *one, const team *all, int v)
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
                if (memcmp(&part[i * columns + j], &whole[row * values[v].columns + column], 4)) {
                    test_fail(t, __FILE__, __LINE__, name, "other bits than one rank's");
                    return;
                }
            }
    }
}

/* Sums by a balanced tree over sections: a cut step has the bits of one rank, from the first values
 * of its parameters on. */
TEST_ONCE(spread_steps_have_the_bits_of_one_rank)
{
    static team one, all;
    char text[3000];
    passes = "sgd lr momentum=0.5";
    write_step(text, 1);
    test_defer(t, team_end, &one);
    test_defer(t, team_end, &all);
    if (!team_new(t, &one, text, 1, true, team_change)) return;
    step_all(t, &one);
    for (int ranks = 2; ranks <= 4 && !t->failed; ranks *= 2) {
        write_step(text, ranks);
        if (!team_new(t, &all, text, ranks, ranks == 2, team_change)) return;
        step_all(t, &all);
        for (int v = 0; v < VALUES && !t->failed; v++) check_value(t, &one, &all, v);
        team_end(&all);
    }
}

/* The same within buckets: over data as well, at stages 0 and 1. */
TEST_ONCE(spread_buckets_keep_the_types_of_parameters)
{
    static team m;
    static char printed[20000];
    char text[3000];
    zf_error error = {ZF_OK, ""};
    test_defer(t, team_end, &m);
    for (int stage = 0; stage < 4 && !t->failed; stage++) {
        char line[80];
        zf_graph *again;
        snprintf(line, sizeof line, "sgd lr momentum=0.5; zero stage=%d world=2", stage);
        passes = line;
        write_step(text, 2);
        if (!team_new(t, &m, text, 4, true, team_change)) return;
        step_all(t, &m);
        zf_graph_text(m.members[0].graph, printed, sizeof printed);
        again = team_parsed(t, printed, &error);
        NEED(t, again, &error);
        if (zf_graph_hash(again) != zf_graph_hash(m.members[0].graph))
            test_fail(t, __FILE__, __LINE__, "the text has the types", line);
        zf_graph_free(again);
        team_end(&m);
    }
}

/* ------------------------------------------------------------------------------ what is refused */

#define BASE                                                                                       \
    "mesh tensor=2\n%1 = input \"x\" : f32[4,8]\n%2 = input \"cut\" : f32[4,8@tensor]\n"           \
    "%3 = input \"sum\" : f32[4,8]+tensor\n%4 = input \"own\" : f32[4,8]~tensor\n"

static void check_wrong(test *t, const char *base, const char *lines, const char *text)
{
    char graph[2000];
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    snprintf(graph, sizeof graph, "%s%s", base, lines);
    g = team_parsed(t, graph, &error);
    if (g) zf_graph_free(g);
    if (error.status == ZF_ERR_NOMEM) NEED(t, g, &error);
    if (!*error.text || !strstr(error.text, text))
        test_fail(t, __FILE__, __LINE__, lines, error.text);
}

TEST(spread_rules_are_checked)
{
    static const char *const wrong[][2] = {
        {"%5 = tanh %3 : f32[4,8]\n",
         "%3 is a sum over tensor that is still to be made: an all_reduce or a reduce_scatter must "
         "be above"},
        {"%5 = add %3, %1 : f32[4,8]\n",
         "%3 is a sum over tensor that is still to be made, and %1 is not: each rank would add it"},
        {"%5 = mul %3, %3 : f32[4,8]\n", "both operands are sums over tensor"},
        {"%5 = mul %3, %4 : f32[4,8]\n",
         "%3 is a sum over tensor that is still to be made, and %4 is not equal"},
        {"%5 = div %1, %3 : f32[4,8]\n", "%3 is a sum over tensor that is still to be made"},
        {"%5 = softmax %2 : f32[4,8@tensor]\n",
         "%2 is cut over tensor at dimension 1, along which softmax is not to be cut"},
        {"%5 = input \"w\" : f32[6,8@tensor]\n%6 = linear %2, %5 : f32[4,6]\n",
         "along which linear is not to be cut"},
        {"%5 = add %2, %1 : f32[4,8@tensor]\n",
         "%2 is cut over tensor, and %1 is not cut alike at dimension 1"},
        {"%5 = input \"t\" : f32[4@tensor,8]\n%6 = input \"i\" : i32[3]\n"
         "%7 = gather_rows %5, %6 {of=6} : f32[3,8]+tensor\n",
         "its rows are cut over tensor: first must be 0, and of 8"},
        {"%5 = input \"t\" : f32[4@tensor,8]\n%6 = input \"i\" : i32[3]\n"
         "%7 = gather_rows %5, %6 {of=8} : f32[3,8]+tensor\n%8 = tanh %7 : f32[3,8]\n",
         "%7 is a sum over tensor that is still to be made"},
        {"%6 = input \"i\" : i32[4]\n"
         "%7 = scatter_rows %1, %6 {rows=4 of=8 over=context} : f32[4@context,8]\n",
         "the ranks have no axis context: the line mesh must name it"},
        {"%6 = input \"i\" : i32[4]\n"
         "%7 = scatter_rows %1, %6 {rows=4 of=9 over=tensor} : f32[4@tensor,8]\n",
         "its rows are cut over tensor: first must be 0, and of 8"},
        {"%5 = input \"g\" : f32[8]\n"
         "%6 = residual_norm %2, %2, %5, %5 {p=0.5 stream=1 eps=1e-05} : f32[4,8@tensor]\n",
         "%2 is cut over tensor at dimension 1, along which residual_norm is not to be cut"},
        {"%5 = block_norms %2 : f32[1]\n",
         "block_norms is not to be cut, and an operand is cut over tensor"},
        {"%5 = input \"w\" : f32[6@tensor,8]\n%6 = input \"y\" : f32[4@tensor,8]\n"
         "%7 = linear %6, %5 : f32[4@tensor,6@tensor]\n",
         "the type has the axis tensor twice"},
        {"%5 = input \"w\" : f32[6@tensor,8]\n%6 = input \"y\" : f32[4@tensor,8]\n"
         "%7 = linear %6, %5 : f32[4@tensor,6]\n",
         "it is cut over tensor along two dimensions, or a sum as well"},
        {"%5 = reduce %1 {world=2 over=tensor} : f32[4@tensor,8]\n",
         "%1 is no sum over tensor that is still to be made"},
        {"%5 = reduce %3 {world=2 over=tensor} : f32[4,8]\n", "give f32[4@tensor,8]"},
        {"%5 = all_gather %1 {world=2 over=tensor dim=1} : f32[4,16]\n",
         "%1 is equal on all ranks along tensor: there is nothing to gather"},
        {"%5 = all_gather %2 {world=2 over=tensor} : f32[64]\n",
         "at dimension 0 of %2 the innermost axis is not tensor"},
        {"%5 = all_gather %3 {world=2 over=tensor dim=1} : f32[4,16]\n",
         "%3 is a sum over tensor that is still to be made"},
        {"%5 = all_reduce %1 {world=2 over=tensor} : f32[4,8]\n",
         "%1 is no sum over tensor that is still to be made"},
        {"%5 = reduce_scatter %2 {world=2 over=tensor} : f32[16]\n",
         "%2 is no sum over tensor that is still to be made"},
        {"%5 = param \"w\" : f32[4]~tensor\n", "a param is equal or cut"},
        {"%5 = constant {values=[1]} : f32[4@tensor]\n", "a constant is equal on all ranks"},
        {"%5 = param \"w[0:2]\" {rows=4} : f32[2,1024@tensor]\n",
         "pieces of a param are cut at their rows alone, in equal parts"},
        {"%5 = param \"w\" {frozen=true bits=8 block=64 scale=f32} : u8[2@tensor,68]\n",
         "quantised parameters are not cut over tensor"},
        {"%5 = param \"w\" : bf16[4@tensor]\n%6 = state %5 \"m\" : f32[4]\n",
         "it begins with the values of %5, which has another type"},
        {"%5 = param \"w\" : f32[4,8]\ngradient %5, %3\n",
         "%3 is a sum over tensor that is still to be made"},
        {"%5 = param \"w\" : f32[4,8]\ngradient %5, %2\n",
         "%5 and %2 have two types along axes"},
        {"%5 = param \"w\" : f32[4,8@tensor]\ngradient %5, %1\n",
         "%5 and %1 have two types along axes"},
        {"%5 = param \"w\" : f32[4,8]\n%6 = input \"lr\" : f32[]~tensor\nupdate:\n"
         "sgd %5, %1, %6\n",
         "%6 is not equal along tensor, so ranks would update differently"},
        {"%5 = input \"n\" : f32[]~tensor\noutput %5 \"number\"\n",
         "%5, a number, is not equal on all ranks along tensor"},
        {"output %3 \"y\"\n", "%3 is a sum over tensor that is still to be made"},
        {"%5 = cast %3 {to=bf16} : bf16[4,8]+tensor\n",
         "addends over tensor are f32 or f64, and bf16 rounds each"},
        {"%5 = input \"y\" : f32[4,8@context]\n",
         "the ranks have no axis context: the line mesh must name it"},
        {"%5 = input \"y\" : f32[4,8@data]\n",
         "after @ comes one of the axes tensor, context, expert, pipe, group, copies"},
        {"%5 = tanh %2 : f32[4,8]\n", "the operands of tanh give f32[4,8@tensor]"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++)
        check_wrong(t, BASE, wrong[k][0], wrong[k][1]);
}

/* Runs of flattened dimensions, sections, and parts of what is equal. */
#define TOKENS                                                                                     \
    "mesh context=2\n%1 = input \"x\" : f32[2,8,4]\n%2 = input \"cut\" : f32[2,4@context,4]\n"      \
    "%3 = input \"rows\" : f32[8@context/4,4]\n%4 = input \"sum\" : f32[4]+context\n"              \
    "%5 = input \"first\" : f32[2,2@context:0/2,4]\n"                                             \
    "%6 = input \"second\" : f32[2,2@context:1/2,4]\n"

TEST(spread_runs_and_sections_are_checked)
{
    static const char *const wrong[][2] = {
        {"%7 = reshape %3 {shape=[8,4]} : f32[8@context,4]\n", "give f32[8@context/4,4]"},
        {"%7 = reshape %2 {shape=[4,8]} : f32[4@context,8]\n", "give f32[4@context/2,8]"},
        {"%7 = input \"y\" : f32[2,3@context]\n%8 = reshape %7 {shape=[3,2]} : f32[3@context,2]\n",
         "%7 is cut over context at dimension 1, along which reshape is not to be cut"},
        {"%7 = input \"y\" : f32[8@context,4]\n%8 = add %7, %3 : f32[8@context,4]\n",
         "%7 is cut over context, and %3 is not cut alike at dimension 0"},
        {"%7 = add %5, %6 : f32[2,2@context:0/2,4]\n",
         "%5 is cut over context, and %6 is not cut alike at dimension 1"},
        {"%7 = all_gather %3 {world=2 over=context} : f32[64]\n",
         "dimension 0 of %3 is cut in runs of 4: it is gathered in the form in which it was cut"},
        {"%7 = all_gather %5 {world=2 over=context dim=1} : f32[2,4,4]\n",
         "dimension 1 of %5 is a section of a rank's part"},
        {"%7 = slice %2 {axis=1 start=1 stop=3} : f32[2,2@context:0/2,4]\n",
         "a slice along it is one of equal sections of the part in one run"},
        {"%7 = slice %3 {stop=4} : f32[4@context:0/2,4]\n", "give f32[4@context,4]"},
        {"%7 = slice %3 {start=2 stop=6} : f32[4@context,4]\n",
         "a slice along it is one of equal sections of the part in one run"},
        {"%7 = concat %6, %5 {axis=1} : f32[2,4@context,4]\n",
         "%6 is not section 0 of a part that is cut over context"},
        {"%7 = concat %5 {axis=1} : f32[2,2@context,4]\n",
         "%5 is not section 0 of a part that is cut over context"},
        {"%7 = part %2 {world=2 over=context dim=1} : f32[2,2@context,4]\n",
         "%2 is not equal along context: a rank has a part of it already"},
        {"%7 = part %4 {world=2 over=context} : f32[2@context]\n",
         "%4 is a sum over context that is still to be made"},
        {"%7 = part %1 {world=2 over=tensor dim=1} : f32[2,4@tensor,4]\n",
         "the ranks have no axis tensor: the line mesh must name it"},
        {"%7 = part %1 {world=4 over=context dim=1} : f32[2,2@context,4]\n",
         "it is for 4 ranks, and a group has 2"},
        {"%7 = part %1 {world=2 over=data dim=1} : f32[2,4,4]\n",
         "a part is over tensor, context, expert or pipe, not over data"},
        {"%7 = part %1 {world=2 over=context dim=3} : f32[2,8,4]\n", "dim 3 of a tensor of rank 3"},
        {"%7 = part %1 {world=3 over=context dim=1} : f32[2,8,4]\n",
         "3 ranks do not divide the 8 of dimension 1"},
        {"%7 = param \"w\" : f32[8@context:1/4,4]\n",
         "a param is cut into whole runs for each rank, and not into sections"},
        {"%7 = input \"w\" : f32[8@context/4,5]\n"
         "%8 = matmul %3, %7 {transpose_a=true sections=2 wide=true} : f32[4,5]+context\n",
         "it sums over runs of %3, of which there are 2: runs must be that"},
        {"%7 = input \"w\" : f32[8@context,5]\n%8 = input \"y\" : f32[8@context,4]\n"
         "%9 = matmul %8, %7 {transpose_a=true sections=2 wide=true runs=2} : f32[4,5]+context\n",
         "it sums over runs of %8, of which there are 1: runs must be that"},
        {"%7 = input \"qkv\" : f32[2,8,6@context]\n"
         "%8 = attention %7 {heads=2} : f32[2,8,2@context]\n",
         "is not cut alike"},
        {"%7 = input \"y\" : f32[8@context/3]\n", "runs of 3 do not make 8 elements"},
        {"%7 = input \"y\" : f32[8@context:2/2]\n", "there is no section 2 of 2"},
        {"%7 = cast %3 {to=bf16} : bf16[8@context/4,4]\n%8 = sum_to %7 {shape=[4]} : "
         "bf16[4]+context\n%9 = add %8, %8 : bf16[4]+context\n",
         "addends over context are f32 or f64, and bf16 rounds each"},
        {"%7 = sum_to %3 {shape=[4]} : f32[4]+context\n%8 = param \"b\" : f32[4]\n"
         "gradient %8, %7\n",
         "%7 is a sum over context that is still to be made"},
        {"%7 = sum_to %3 {shape=[4]} : f32[4]\n", "give f32[4]+context"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++)
        check_wrong(t, TOKENS, wrong[k][0], wrong[k][1]);
}

/* Heads of which each rank has one: a reshape says that they are cut. */
#define HEADS                                                                                      \
    "mesh context=2 tensor=4\n%1 = input \"x\" : f32[2,3,8@tensor]\n%2 = input \"e\" : f32[2,3,8]\n"           \
    "%3 = reshape %1 {shape=[2,3,1,8] cut=3} : f32[2,3,1@tensor,8]\n"                              \
    "%4 = input \"mask\" : f32[2,1@tensor,3,3]\n"

TEST(spread_one_element_is_cut_where_a_reshape_says_so)
{
    static const char *const wrong[][2] = {
        {"%7 = reshape %1 {shape=[2,3,1,8]} : f32[2,3,1@tensor,8]\n", "give f32[2,3,1,8@tensor]"},
        {"%7 = reshape %1 {shape=[2,3,1,8] cut=3} : f32[2,3,1,8@tensor]\n",
         "give f32[2,3,1@tensor,8]"},
        {"%7 = reshape %3 {shape=[2,3,8]} : f32[2,3,8]\n", "give f32[2,3,8@tensor]"},
        {"%7 = reshape %1 {shape=[2,3,1,8] cut=4} : f32[2,3,1,8]\n",
         "cut is 4: 1 and more than the number of a dimension of one element, or 0"},
        {"%7 = reshape %1 {shape=[2,3,1,8] cut=5} : f32[2,3,1,8]\n", "cut is 5: 1 and more"},
        {"%7 = reshape %1 {shape=[2,3,1,8] cut=-1} : f32[2,3,1,8]\n", "cut is -1: 1 and more"},
        {"%7 = reshape %2 {shape=[2,3,1,8] cut=3} : f32[2,3,1,8]\n",
         "cut is 3, and along no axis does a part of %2 become dimension 2 of one element"},
        {"%7 = reshape %1 {shape=[2,1,3,8] cut=2} : f32[2,1@tensor,3,8]\n",
         "cut is 2, and along no axis does a part of %1 become dimension 1 of one element"},
        {"%7 = input \"y\" : f32[2,3,2,8]\n%8 = add %3, %7 : f32[2,3,2,8]\n",
         "%3 is cut over tensor at dimension 2, along which add is not to be cut"},
        {"%7 = input \"y\" : f32[2,3,1@context,8]\n%8 = add %3, %7 : f32[2,3,1@tensor,8]\n",
         "%3 is cut over tensor, and %7 is not cut alike at dimension 2"},
        {"%7 = input \"y\" : f32[2,3,1,8]\n%8 = softmax_grad %3, %7 : f32[2,3,1@tensor,8]\n",
         "%3 is cut over tensor, and %7 is not cut alike at dimension 2"},
        {"%7 = broadcast %3 {shape=[2,3,2,8]} : f32[2,3,2,8]\n",
         "%3 is cut over tensor at dimension 2, along which broadcast is not to be cut"},
        {"%7 = attention %1, %1, %1, %4 {heads=2 scale=1} : f32[2,3,8@tensor]\n",
         "%4 is cut over tensor at dimension 1, along which attention is not to be cut"},
        {"%7 = input \"m\" : f32[2,1,3,3]\n"
         "%8 = attention %2, %2, %2, %4 {heads=1 scale=1} : f32[2,3,8]\n",
         "%4 is cut over tensor, and %2 is not cut alike"},
    };
    static const char *const right =
        HEADS "%5 = input \"row\" : f32[1,8]\n%6 = add %3, %5 : f32[2,3,1@tensor,8]\n"
              "%7 = input \"one\" : f32[2,3,1,8]\n%8 = mul %7, %6 : f32[2,3,1@tensor,8]\n"
              "%9 = reshape %8 {shape=[2,3,8]} : f32[2,3,8@tensor]\n"
              "%10 = attention %9, %9, %9, %4 {heads=1 scale=1} : f32[2,3,8@tensor]\n"
              "%11 = broadcast %3 {shape=[2,3,1,8]} : f32[2,3,1@tensor,8]\n"
              "%12 = input \"any\" : f32[2,1,3,3]\n"
              "%13 = attention %9, %9, %9, %12 {heads=1 scale=1} : f32[2,3,8@tensor]\n"
              "%14 = sum_to %8 {shape=[1,8]} : f32[1,8]+tensor\noutput %10 \"y\"\n";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, right, &error);
    NEED(t, g, &error);
    zf_graph_free(g);
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++)
        check_wrong(t, HEADS, wrong[k][0], wrong[k][1]);
    check_wrong(t, "%1 = input \"x\" : f32[2,8]\n",
                "%2 = reshape %1 {shape=[2,1,8] cut=2} : f32[2,1,8]\n",
                "cut is 2, and along no axis does a part of %1 become dimension 1 of one element");
}

/* Two reshapes that give the shape of before, cut at another dimension, are not that value. */
TEST(spread_reshapes_back_may_be_another_value)
{
    static const char *const text =
        HEADS "%10 = tanh %3 : f32[2,3,1@tensor,8]\n"
              "%5 = reshape %10 {shape=[2,3,8]} : f32[2,3,8@tensor]\n"
              "%6 = reshape %5 {shape=[2,3,1,8]} : f32[2,3,1,8@tensor]\n"
              "%7 = reshape %5 {shape=[2,3,1,8] cut=3} : f32[2,3,1@tensor,8]\n"
              "%8 = tanh %6 : f32[2,3,1,8@tensor]\n%9 = tanh %7 : f32[2,3,1@tensor,8]\n"
              "output %8 \"other\"\noutput %9 \"same\"\n";
    char after[2000];
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_simplify(g), zf_graph_error(g));
    zf_graph_text(g, after, sizeof after);
    CHECK(t, strstr(after, "%6  = reshape %10 {shape=[2,3,1,8]} : f32[2,3,1,8@tensor]\n"));
    CHECK(t, strstr(after, "%9  = tanh %10 : f32[2,3,1@tensor,8]\n"));
}

/* Gradients of a cut and an equal parameter lie in each other's place. */
TEST(spread_gradients_have_the_types_of_parameters)
{
    static const char *const base =
        "mesh tensor=2\nzero stage=0 world=1 micro_batches=1\n"
        "%1 = input \"x\" : f32[4@tensor]\n%2 = input \"y\" : f32[4]\n"
        "%3 = param \"p\" : f32[4@tensor]\n%4 = param \"q\" : f32[4]\n"
        "%5 = bucket %3, %4 {at=[0,1024] size=2048} : f32[2048]~tensor\n";
    check_wrong(t, base,
                "%6 = pack %2, %1 {at=[0,1024] size=2048} : f32[2048]~tensor\ngradient %5, %6\n",
                "the gradient of %3 and the parameter have two types along axes");
    check_wrong(t, base,
                "%6 = pack %2, %2 {at=[0,1024] size=2048} : f32[2048]\ngradient %5, %6\n",
                "%5 and %6 have two types along axes");
}

/* Lines that are right, by the types that are written. */
TEST(spread_types_follow_from_operands)
{
    static const char *const right =
        "mesh context=2 tensor=2\n"
        "%1 = input \"x\" : f32[4,8@context@tensor]\n%2 = input \"s\" : f32[4,8]+tensor+context\n"
        "%3 = input \"o\" : f32[4,8]~tensor\n%4 = input \"e\" : f32[4,8]\n"
        "%5 = all_gather %1 {world=2 over=tensor dim=1} : f32[4,16@context]\n"
        "%6 = all_gather %5 {world=2 over=context dim=1} : f32[4,32]\n"
        "%7 = reduce_scatter %2 {world=2 over=tensor dim=1} : f32[4,4@tensor]+context\n"
        "%8 = all_reduce %7 {world=2 over=context} : f32[4,4@tensor]\n"
        "%9 = mul %2, %4 : f32[4,8]+tensor+context\n"
        "%10 = tanh %3 : f32[4,8]~tensor\n%11 = mul %10, %4 : f32[4,8]~tensor\n"
        "%12 = all_gather %3 {world=2 over=tensor dim=1} : f32[4,16]\n"
        "%13 = sum %1 {axis=1} : f32[4]+tensor+context\n"
        "%14 = constant {values=[2]} : f32[4,4]\n%15 = mul %8, %14 : f32[4,4@tensor]\n"
        "%16 = transpose %8 {order=[1,0]} : f32[4@tensor,4]\n"
        "%17 = reshape %16 {shape=[4,2,2]} : f32[4@tensor,2,2]\n"
        "%18 = bcast %3 {world=2 over=tensor} : f32[4,8]\n"
        "%19 = slice %2 {axis=1 stop=4} : f32[4,4]+tensor+context\n"
        "%20 = softmax %16 : f32[4@tensor,4]\n"
        "%21 = all_to_all %1 {world=2 over=tensor} : f32[4,8@context]~tensor\n"
        "%22 = input \"qkv\" : f32[4,6@tensor/2]\n"
        "%23 = slice %22 {axis=1 start=2 stop=4} : f32[4,2@tensor]\n"
        "%24 = slice %22 {axis=1 stop=4} : f32[4,4@tensor/2]\n"
        "%25 = concat %23, %23, %23 {axis=1} : f32[4,6@tensor/2]\n"
        "output %8 \"y\"\n";
    char again[4000];
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, right, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_graph_text(g, again, sizeof again);
    CHECK(t, strstr(again, "input \"x\" : f32[4,8@context@tensor]\n"));
    CHECK(t, strstr(again, "sum %1 {axis=1} : f32[4]+tensor+context\n"));
}

/* Groups of ranks have heads, of which each rank has copies. */
TEST(spread_types_of_copies)
{
    static const char *const right =
        "mesh tensor=2x2\n%1 = input \"k\" : f32[4,8@group]\n%2 = input \"one\" : f32[4,8]\n"
        "%3 = repeat %1 {heads=1 copies=2 over=copies} : f32[4,16@tensor]\n"
        "%4 = repeat_grad %3 {heads=1 copies=2 over=copies} : f32[4,8@group]+copies\n"
        "%5 = all_reduce %4 {world=2 over=copies order=tree} : f32[4,8@group]\n"
        "%6 = sum %5 {axis=1} : f32[4]+group\n%7 = all_reduce %6 {world=2 over=group} : f32[4]\n"
        "%8 = repeat %2 {heads=1 copies=1 over=tensor} : f32[4,8@tensor]\n"
        "%9 = repeat_grad %8 {heads=1 copies=1 over=tensor} : f32[4,8]+tensor\n"
        "%10 = all_gather %3 {world=4 over=tensor dim=1} : f32[4,64]\noutput %7 \"y\"\n";
    char again[2000];
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, right, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_graph_text(g, again, sizeof again);
    CHECK(t, strstr(again, "mesh tensor=2x2\n"));
    CHECK(t, strstr(again, "f32[4,8@group]+copies\n"));
}
