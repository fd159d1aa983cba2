/* What records say, for tests/ops/records.c; and what of it must fit together. */
#include "../ops/cuts.h"
#include "../ops/records.h"

claims claims_of(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    const zfi_record *record = g->records[node->op];
    claims c = {.writes = zfi_written_args(g, node),
                .rate = record->rate,
                .whole = record->whole,
                .rows = record->rows};
    c.views = zfi_viewed(g, node, &c.at);
    return c;
}

bool launch_at(const zf_graph *g, int32_t index, zf_launch *launch, zf_array *args)
{
    if (index >= zfi_len(g->order)) return false;
    *launch = zfi_launch_of(g, g->order[index], args);
    return true;
}

/* A trait and the fields that go with it are given together. */
TEST_ONCE(records_are_complete)
{
    for (int op = ZF_OP_none + 1; op < ZF_OP_COUNT; op++) {
        const zfi_record *r = zfi_records[op];
        uint32_t traits = r->traits;
        const char *wrong = NULL;
        bool streams = zfi_attribute_index(r, "stream") >= 0 || r->stream;
        if (!r->infer) wrong = "has no infer";
        if (!(traits & ZF_OP_RANDOM) != !streams) wrong = "RANDOM goes with a stream";
        if (!(traits & ZF_OP_MUTATES) != !r->writes) wrong = "MUTATES goes with writes";
        if ((traits & ZF_OP_VIEW) && !r->views) wrong = "VIEW goes with views";
        if (r->views && !(traits & ZF_OP_VIEW) && !r->writes) wrong = "views is no VIEW";
        if ((traits & ZF_OP_LEAF) && r->cpu) wrong = "a LEAF has no kernel";
        if ((traits & ZF_OP_LEAF) && !r->holds && op != ZF_OP_bucket && op != ZF_OP_param)
            wrong = "a LEAF holds something";
        if ((traits & ZF_OP_UPDATE) && (!r->master || zfi_attribute_index(r, "world") < 0 ||
                                        zfi_attribute_index(r, "blocks") < 0))
            wrong = "an UPDATE has master, world and blocks";
        if (zfi_attribute_index(r, "piece") >= 0 &&
            zfi_attribute_index(r, "world") != zfi_attribute_index(r, "piece") + 1)
            wrong = "piece is directly before world";
        if ((traits & ZF_OP_PRODUCT) && !r->flops) wrong = "a PRODUCT has flops";
        if ((traits & ZF_OP_ELEMENTWISE) && (traits & ZF_OP_BY_ROWS))
            wrong = "it is ELEMENTWISE or BY_ROWS";
        if ((traits & (ZF_OP_FOLDABLE | ZF_OP_COMPARES)) && !(traits & ZF_OP_ELEMENTWISE))
            wrong = "what is folded or compares is ELEMENTWISE";
        if (r->remake && !r->saved) wrong = "remake goes with saved";
        if (r->activates && (!r->saved || r->activates >= r->least))
            wrong = "activates goes with saved and is an operand";
        if (!r->place != !((traits & ZF_OP_LEAF) && op != ZF_OP_accumulator))
            wrong = "a LEAF but accumulator has a place";
        if (wrong) test_fail(t, __FILE__, __LINE__, r->name, wrong);
    }
}

/* What neither text nor a builder can say, as names of values are checked before. */
TEST(records_refuse_values_without_a_name)
{
    static const struct {
        zf_op op;
        int attribute;
        const char *error;
    } nameless[] = {
        {ZF_OP_gelu, ZF_AT_gelu_form, "form 7 is neither erf (0) nor tanh (1)"},
        {ZF_OP_draw, ZF_AT_draw_form, "form 7 is neither uniform (0) nor normal (1)"},
        {ZF_OP_residual_norm, ZF_AT_residual_norm_form, "there is no form 7"},
        {ZF_OP_residual_norm, ZF_AT_residual_norm_sum, "there is no sum 7"},
    };
    for (size_t k = 0; k < sizeof nameless / sizeof *nameless; k++) {
        zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {{.i = 0}};
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_tensor x, v;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        x = zf_input(g, "x", ZF_F32, ZF_SHAPE(4, 8)), v = zf_input(g, "v", ZF_F32, ZF_SHAPE(8));
        attributes[nameless[k].attribute].i = 7;
        zfi_build(nameless[k].op, nameless[k].op == ZF_OP_residual_norm ? 4 : 1, (zf_tensor[]){x, x, v, v},
                  attributes);
        if (zf_graph_status(g) != ZF_ERR_ARGUMENT || !strstr(zf_graph_error(g), nameless[k].error))
            CHECK_TEXT(t, zf_graph_error(g), nameless[k].error);
    }
}

/* A mask with more rows than lists of a graph may have elements is refused before it is counted. */
TEST(records_of_masks_have_a_limit)
{
    const zf_block_mask mask = {.layouts = INT32_MAX, .blocks = 8};
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_block_mask_lists(g, &mask);
    CHECK(t, strstr(zf_graph_error(g), "zf_block_mask_lists: 2^31 or more blocks are seen"));
}

/* A collective of several ranks that is launched without any says so. */
TEST(records_of_collectives_need_ranks)
{
    const zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {[ZF_AT_all_reduce_world] = {.i = 2}};
    zf_error error = {ZF_OK, ""};
    const zf_launch l = {.op = ZF_OP_all_reduce, .attributes = attributes, .error = &error};
    CHECK(t, zfi_cpu_collective(&l) == ZF_ERR_COMM);
    CHECK_TEXT(t, error.text,
               "%0: a plan for 2 ranks needs a communicator (zf_compile_desc.comm)");
}

/* ------------------------------------------------------------------------------------ cuts */

bool cuts_of(const zf_graph *g, int32_t id, cuts *c)
{
    zfi_cuts of;
    _Static_assert((int)CUT_LETTERS == (int)ZFI_CUT_LETTERS && (int)CUT_RESULT == (int)ZFI_CUT_RESULT,
                   "cuts.h has the sizes of graph/cuts.c");
    if (!zfi_cut_of(g, &g->nodes[id], &of)) return false;
    *c = (cuts){.letters = of.letters, .form = of.form};
    for (int k = 0; k < of.letters; k++) {
        const int sections = zfi_attribute_index(g->records[g->nodes[id].op], "sections");
        c->name[k] = of.letter[k].name, c->most[k] = of.letter[k].most;
        c->upto[k] = of.letter[k].upto;
        c->sections[k] = sections >= 0 && of.letter[k].divided >> sections & 1;
    }
    memcpy(c->given, of.given, sizeof c->given);
    memcpy(c->at, of.at, sizeof c->at);
    memcpy(c->runs, of.runs, sizeof c->runs);
    memcpy(c->flat, of.flat, sizeof c->flat);
    return true;
}

bool cut_sums(const zf_graph *g, int32_t id, int letter, int value)
{
    zfi_cuts of;
    return zfi_cut_of(g, &g->nodes[id], &of) && zfi_cut_sums(&of, letter, value);
}

void cut_attributes(const zf_graph *g, int32_t id, int letter, int64_t parts, int64_t part,
                    const zf_shape *result, zf_attribute *attributes, int64_t *list)
{
    zfi_cuts of;
    const zfi_cut_letter *l = &of.letter[letter];
    if (!zfi_cut_of(g, &g->nodes[id], &of)) return;
    for (int k = 0; k < ZF_MAX_ATTRIBUTES; k++)
        if (l->divided >> k & 1) attributes[k].i /= parts;
    if (l->first >= 0) attributes[l->first].i += l->size / parts * part;
    if (l->of >= 0 && !attributes[l->of].i) attributes[l->of].i = l->size;
    if (of.shape < 0) return;
    memcpy(list, result->dims, sizeof result->dims);
    attributes[of.shape].list.data = list;
}

int draws_by(int op) { return (int)zfi_records[op]->draws; }

const char *cuts_text(int op) { return zfi_records[op]->cuts; }

const char *cuts_wrong(int op, const char *text) { return zfi_cuts_wrong(zfi_records[op], text); }

bool cuts_derived(int op)
{
    const zfi_record *r = zfi_records[op];
    return !r->cuts && (r->cut || r->traits & (ZF_OP_ELEMENTWISE | ZF_OP_UPDATE | ZF_OP_BY_ROWS));
}

bool can_save(const zf_graph *g, int32_t id, int index, zf_dtype *dtype, zf_shape *shape)
{
    const zfi_record *r = g->records[g->nodes[id].op];
    return r->saved && r->saved(g, &g->nodes[id], index, dtype, shape);
}
