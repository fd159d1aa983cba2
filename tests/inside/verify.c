/* Rules of the verifier that no text can break, because reading it checks them first: a pass that
 * edits nodes wrongly breaks them. Each is broken once, by an edit of the nodes of a good graph. */

static const char verify_text[] = "%1 = input \"x\" : f32[4,8]\n"
                                  "%2 = param \"w\" : f32[8,8]\n"
                                  "%3 = param \"b\" : f32[8]\n"
                                  "%4 = input \"lr\" : f32[]\n"
                                  "%5 = linear %1, %2, %3 {activation=gelu} : f32[4,8]\n"
                                  "%6 = saved %5 {index=0} : f32[4,8]\n"
                                  "%7 = gelu %6 : f32[4,8]\n"
                                  "%8 = matmul %7, %5 {transpose_a=true} : f32[8,8]\n"
                                  "output %7 \"y\"\n"
                                  "update:\n"
                                  "%9 = neg %8 : f32[8,8]\n"
                                  "sgd %2, %9, %4\n";

enum { VERIFY_OUTPUT = 10 }; /* the first id after those of the text */

static void verify_use_before_definition(zf_graph *g)
{
    int32_t fifth = g->order[4]; /* of the linear */
    g->order[4] = g->order[5], g->order[5] = fifth;
}

static void verify_no_operand(zf_graph *g) { g->nodes[7].args[0] = 0; }

static void verify_effect_as_operand(zf_graph *g)
{
    int32_t last = zfi_len(g->order) - 2;
    g->nodes[g->order[last]].args[0] = VERIFY_OUTPUT;
}

static void verify_other_shape(zf_graph *g) { g->nodes[7].shape = ZF_SHAPE(8, 4); }

static void verify_other_dtype(zf_graph *g) { g->nodes[9].dtype = ZF_BF16; }

static void verify_twice(zf_graph *g) { g->order[7] = g->order[6]; }

static void verify_micro_below_update(zf_graph *g) { g->nodes[VERIFY_OUTPUT + 1].update = false; }

static void verify_unlinked_saved(zf_graph *g) { g->nodes[5].saved[0] = 0; }

static void verify_of_without_a_role(zf_graph *g) { g->nodes[7].of = 2; }

static void verify_other_space(zf_graph *g) { g->nodes[7].space = ZF_HOST; }

static void verify_writes_a_value(zf_graph *g) { g->nodes[2].op = ZF_OP_input; }

static void verify_other_spread(zf_graph *g)
{
    g->axes = (zfi_other_axes){.axis = {{ZF_OVER_TENSOR, 2}}, .count = 1};
    g->nodes[7].spread.sum = zfi_axis_bit(ZF_OVER_TENSOR);
}

TEST(verify_finds_what_passes_could_break)
{
    static const struct {
        void (*edit)(zf_graph *);
        const char *error;
    } mistakes[] = {
        {verify_use_before_definition,
         "verify: %6 = saved %5 : f32[4,8]: %5 is not defined above it"},
        {verify_no_operand, "verify: %7 = gelu %0 : f32[4,8]: %0 is not defined above it"},
        {verify_effect_as_operand, "verify: %9 = neg %10 : f32[8,8]: %10 has no value"},
        {verify_other_shape, "verify: %7 = gelu %6 : f32[8,4]: its operands give f32[4,8]"},
        {verify_other_dtype, "verify: %9 = neg %8 : bf16[8,8]: its operands give f32[8,8]"},
        {verify_other_spread,
         "verify: %7 = gelu %6 : f32[4,8]+tensor: its operands give the type f32[4,8]"},
        {verify_of_without_a_role,
         "verify: %7 = gelu %6 : f32[4,8] of=%2: it is of %2, and has no role"},
        {verify_other_space,
         "verify: %7 = gelu %6 : f32[4,8] host: its operands give a result in the space device"},
        {verify_twice, "verify: %7 = gelu %6 : f32[4,8]: it is twice in the order"},
        {verify_micro_below_update, "verify: sgd %2, %9, %4: it belongs to the micro section but "
                                    "is below 'update:'"},
        {verify_unlinked_saved,
         "verify: %6 = saved %5 : f32[4,8]: %5 does not list it as a saved node"},
        {verify_writes_a_value,
         "verify: sgd %2, %9, %4: it writes %2, which is no param, state or cache"},
    };
    for (size_t k = 0; k < sizeof mistakes / sizeof *mistakes; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(verify_text, strlen(verify_text),
                                     &(zf_graph_desc){.allocator = t->allocator}, &error);
        char text[sizeof error.text];
        zf_status status;
        NEED(t, g, &error);
        mistakes[k].edit(g);
        status = zfi_verify(g);
        snprintf(text, sizeof text, "%s", zf_graph_error(g));
        zf_graph_free(g);
        if (status == ZF_ERR_NOMEM) OK(t, status, text);
        CHECK_TEXT(t, text, mistakes[k].error);
        CHECK(t, status == ZF_ERR_VERIFY);
    }
}
