/* The rule of completeness (ir/complete.c): everything that a pass could lose is lost once, by an
 * edit of the nodes. */

static const char complete_text[] = "%1 = input \"x\" : f32[8]\n"
                                    "%2 = input \"lr\" : f32[]\n"
                                    "%3 = param \"p\" : f32[8]\n"
                                    "%4 = param \"q\" : f32[8]\n"
                                    "%5 = add %3, %4 : f32[8]\n"
                                    "%6 = mul %5, %1 : f32[8]\n"
                                    "%7 = sum %6 : f32[]\n";

/* The last node of that operator leaves the order. */
static void complete_drop(zf_graph *g, zf_op op)
{
    int32_t i = zfi_len(g->order) - 1;
    while (i > 0 && g->nodes[g->order[i]].op != op) i--;
    memmove(g->order + i, g->order + i + 1, (size_t)(zfi_len(g->order) - i - 1) * sizeof *g->order);
    stbds_header(g->order)->length--;
}

/* The last update of a bucket leaves out one parameter. */
static void complete_drop_block(zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].op == ZF_OP_sgd) {
            ZF_LIST(&g->nodes[g->order[i]], sgd, blocks).count -= 2;
            ZF_LIST(&g->nodes[g->order[i]], sgd, decays).count -= 1;
        }
}

/* The last pack has one gradient less, and so has the last update. */
static void complete_drop_packed(zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].op == ZF_OP_pack && g->nodes[g->order[i]].arg_count == 2)
            g->nodes[g->order[i]].arg_count = 1,
            ZF_LIST(&g->nodes[g->order[i]], pack, at).count = 1;
    complete_drop_block(g);
}

TEST(verify_finds_what_passes_could_lose)
{
    static const char *const errors[] = {
        "verify: the pass has lost the gradient of \"q\", which was there before it",
        "verify: the pass has lost the update of \"q\", which was there before it",
        "verify: the pass has lost the output \"loss\", which was there before it",
        "verify: the pass has lost the update of \"q\", which was there before it",
        "verify: the pass has lost the gradient of \"q\", which was there before it"};
    for (int k = 0; k < 5; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(complete_text, sizeof complete_text - 1,
                                     &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_status status;
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        zf_autograd(g, (zf_tensor){g, 7});
        zf_sgd(g, zf_graph_find(g, "lr"), NULL);
        OK(t, k < 3 ? zfi_enter(g, "test", 0, 0) : zf_zero(g, &(zf_zero_desc){.world = 2}),
           zf_graph_error(g));
        OK(t, zfi_verify(g), zf_graph_error(g));
        if (k == 0) complete_drop(g, ZF_OP_gradient);
        if (k == 1) complete_drop(g, ZF_OP_sgd);
        if (k == 2) complete_drop(g, ZF_OP_output);
        if (k == 3) complete_drop_block(g);
        if (k == 4) complete_drop_packed(g);
        status = zfi_verify(g);
        if (t->refused && status == ZF_ERR_NOMEM) return;
        CHECK(t, status == ZF_ERR_VERIFY);
        CHECK_TEXT(t, zf_graph_error(g), errors[k]);
    }
}

/* What a pass has found when it ended is noted for the next one; what is appended in between is noted
 * as well, and a pass notes again what another has left without a check. */
TEST(verify_notes_what_is_new)
{
    for (int k = 0; k < 3; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(complete_text, sizeof complete_text - 1,
                                     &(zf_graph_desc){.allocator = t->allocator}, &error);
        const zf_tensor product = {g, 6}, sum = {g, 7};
        zf_status status;
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        OK(t, zf_autograd(g, sum), zf_graph_error(g));
        CHECK(t, g->noted);
        if (k == 1) zf_output(product, "product");
        OK(t, zf_graph_status(g), zf_graph_error(g));
        CHECK(t, g->noted == (k != 1));
        OK(t, zfi_enter(g, "test", 0, 0), zf_graph_error(g));
        CHECK(t, !g->noted);
        complete_drop(g, ZF_OP_output); /* the last one */
        if (k == 2) OK(t, zfi_enter(g, "test", 0, 0), zf_graph_error(g));
        status = zfi_leave(g, 0);
        if (t->refused && status == ZF_ERR_NOMEM) return;
        CHECK_TEXT(t, zf_graph_error(g),
                   k == 2 ? ""
                   : k    ? "verify: the pass has lost the output \"product\", which was there before "
                            "it"
                          : "verify: the pass has lost the output \"loss\", which was there before "
                            "it");
    }
}
