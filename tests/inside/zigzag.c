/* Work of ranks that share a sequence: scores that the launches of each compute, forward and
 * backward, under a causal mask. */

/* Scores of all heads and examples of a launch of attention or its gradient; 0 of others. */
static int64_t scores_of_launch(const zf_launch *l)
{
    const bool back = l->op == ZF_OP_attention_backward;
    int64_t scores = 0;
    zfi_attention a;
    if (l->op != ZF_OP_attention && !back) return 0;
    a = zfi_attention_of(l, back ? 3 : 0);
    for (int64_t m = 0; m < a.m; m++)
        scores += zfi_attention_seen(&a, 0, m) - zfi_attention_first(&a, 0, m);
    return scores * a.batch * a.heads;
}

/* Those of rank `rank` of `ranks`; -1: it could not be compiled. */
static int64_t scores_of_rank(test *t, zf_context_kind kind, int32_t ranks, zf_comm *comm)
{
    static const char *const text =
        "%1 = param \"e\" {init=normal b=0.5} : f32[11,16]\n%2 = input \"tokens\" : i32[2,32]\n"
        "%3 = gather_rows %1, %2 : f32[2,32,16]\n"
        "%4 = attention %3, %3, %3 {heads=4 scale=0.5 causal=true} : f32[2,32,16]\n"
        "%5 = reshape %4 {shape=[64,16]} : f32[64,16]\n%6 = input \"labels\" : i32[2,32]\n"
        "%7 = reshape %6 {shape=[64]} : i32[64]\n%8 = input \"weight\" : f32[]\n"
        "%9 = head_loss %5, %1, %7, %8 {ignore=-100} : f32[]\n"
        "output %9 \"loss\" role=loss\n";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_parse(text, strlen(text), NULL, &error);
    zf_program *p = NULL;
    int64_t scores = 0;
    if (!g) abort();
    zf_autograd(g, zf_graph_find(g, "loss"));
    zf_context(g, &(zf_context_desc){.parts = ranks, .kind = kind});
    if (!zf_graph_status(g)) p = zf_compile(g, &(zf_compile_desc){.comm = comm});
    if (!p) test_fail(t, __FILE__, __LINE__, "no program", zf_graph_error(g)), scores = -1;
    for (int32_t k = 0; p && k < p->launch_count; k++) scores += scores_of_launch(&p->launches[k]);
    zf_program_free(p);
    zf_graph_free(g);
    return scores;
}

static void scores_of_ranks(test *t, zf_context_kind kind, int32_t ranks, int64_t *scores)
{
    zf_local *local = zf_local_new(&(zf_local_desc){.world = ranks}, NULL);
    if (!local) abort();
    for (int32_t r = 0; r < ranks; r++)
        scores[r] = scores_of_rank(t, kind, ranks, zf_local_comm(local, r));
    zf_local_free(local);
}

TEST_ONCE(zigzag_gives_ranks_equal_work)
{
    enum { S = 32, ALL = 2 * 4 * S * (S + 1) / 2 };
    for (int32_t ranks = 2; ranks <= 4; ranks *= 2) {
        int64_t scores[4], sum = 0;
        scores_of_ranks(t, ZF_CONTEXT_ZIGZAG, ranks, scores);
        for (int32_t r = 0; r < ranks; r++) CHECK(t, scores[r] == 2 * ALL / ranks);
        scores_of_ranks(t, ZF_CONTEXT_GATHER, ranks, scores);
        for (int32_t r = 0; r < ranks; r++) sum += scores[r];
        CHECK(t, sum == 2 * ALL && scores[0] < scores[ranks - 1]);
    }
}
