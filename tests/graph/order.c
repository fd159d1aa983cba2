/* zf_order: axes of ranks in another order, in the text and of each rank; and what is refused. */
#include "../support/test.h"

#include "../../tools/pass.h"

static const char layers[] = "%1 = input \"x\" : f32[4,8]\n%2 = param \"h.0.w\" : f32[8,8]\n"
                             "%3 = linear %1, %2 : f32[4,8]\n%4 = param \"h.1.w\" : f32[8,8]\n"
                             "%5 = linear %3, %4 : f32[4,8]\noutput %5 \"y\"\n";

/* The graph after passes; NULL: one has failed, with the text in message. The status is that of
 * lacking memory. */
static zf_status after(test *t, const char *passes, char message[600], zf_graph **out)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g =
        zf_graph_parse(layers, strlen(layers), &(zf_graph_desc){.allocator = t->allocator}, &error);
    zf_status status = g ? ZF_OK : error.status;
    *out = NULL;
    if (g && pass_run(g, passes, NULL, message, 600) == PASS_DONE) return *out = g, ZF_OK;
    if (g && zf_graph_status(g) == ZF_ERR_NOMEM) status = ZF_ERR_NOMEM;
    zf_graph_free(g);
    return status;
}

TEST(order_is_that_of_the_mesh)
{
    static const struct {
        const char *order, *mesh;
        int pipe, data, tensor; /* of rank 3 */
    } cases[] = {{"pipe,data,tensor", "mesh pipe=2 data=2 tensor=2\n", 0, 1, 1},
                 {"data,tensor,pipe", "mesh data=2 tensor=2 pipe=2\n", 1, 0, 1},
                 {"tensor,context,pipe,data", "mesh tensor=2 pipe=2 data=2\n", 1, 1, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char passes[200], message[600] = "", text[4000];
        zf_graph *g;
        snprintf(passes, sizeof passes,
                 "cut parts=2; stages ranks=2; order %s; zero stage=0 world=2 micro_batches=1",
                 cases[k].order);
        OK(t, after(t, passes, message, &g), message);
        if (!g) {
            CHECK_TEXT(t, message, "");
            return;
        }
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        zf_graph_text(g, text, sizeof text);
        if (!strstr(text, cases[k].mesh)) test_fail(t, __FILE__, __LINE__, cases[k].mesh, text);
        CHECK(t, zf_rank_along(g, ZF_OVER_PIPE, 3) == cases[k].pipe);
        CHECK(t, zf_rank_along(g, ZF_OVER_DATA, 3) == cases[k].data);
        CHECK(t, zf_rank_along(g, ZF_OVER_TENSOR, 3) == cases[k].tensor);
        CHECK(t, zf_rank_along(g, ZF_OVER_CONTEXT, 3) == 0);
    }
}

TEST(order_names_each_axis_once)
{
    static const char *const wrong[][2] = {
        {"data,pipes",
         "zf_order: \"data,pipes\": 'pipes' is none of data, tensor, context, expert and "
         "pipe"},
        {"data,pipe,data", "zf_order: \"data,pipe,data\" names data twice"},
        {"data,tensor",
         "zf_order: \"data,tensor\" lacks pipe: it must name each axis of the ranks, the "
         "slowest first"},
        {"pipe",
         "zf_order: \"pipe\" lacks data: it must name each axis of the ranks, the slowest first"}};
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        char passes[200], message[600] = "";
        snprintf(passes, sizeof passes, "stages ranks=2; order %s", wrong[k][0]);
        OK(t, after(t, passes, message, &g), message);
        CHECK(t, !g);
        if (!strstr(message, wrong[k][1])) test_fail(t, __FILE__, __LINE__, wrong[k][1], message);
    }
    g = zf_graph_parse(layers, strlen(layers), &(zf_graph_desc){.allocator = t->allocator}, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    GIVES(t, zf_order(g, NULL), ZF_ERR_ARGUMENT, zf_graph_error(g));
    CHECK_TEXT(t, zf_graph_error(g), "zf_order: axes is NULL");
}
