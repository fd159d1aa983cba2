/* One checkpoint for all layouts: what ranks along pipe, data and tensor have saved, at any stage
 * of ZeRO, is loaded by ranks in any other layout, and the bits are those of a run that was never
 * interrupted. */
#include "layouts.h"

enum { LAYERS = 4, PARTS = 24, ROWS = 35 /* of words, odd: they are cut */ };

/* The text of a Llama whose embedding is its head, too; the caller frees it. */
static char *model_text(void)
{
    zf_causal_config c;
    zf_error error = {ZF_OK, ""};
    if (!llm_config_load("15m", &c, &error)) abort();
    c.vocab = ROWS, c.hidden = 16, c.layers = LAYERS, c.heads = 4, c.kv_heads = 2, c.width = 4;
    c.intermediate = 24, c.positions = 16, c.tied = true;
    return text_of(&c);
}

static void check_layouts(test *t, const layout *chain, int count)
{
    static const layout one = {1, 1, 1, 0, 0, 0};
    char *text = model_text();
    test_defer(t, free, text);
    check_chain(t, text, chain, count, &one);
}

TEST_ONCE(layouts_share_a_checkpoint)
{
    static const layout chain[] = {{2, 2, 2, 3, 0, 0}, {1, 1, 1, 0, 0, 0}, {2, 2, 2, 3, 0, 0},
                                   {1, 8, 1, 2, 0, 0}, {2, 2, 2, 3, 0, 0}, {1, 4, 2, 0, 0, 0},
                                   {2, 2, 2, 3, 0, 0}, {1, 3, 1, 1, 0, 0},
                                   {4, 1, 2, 1, 0, 0}, {2, 3, 1, 3, 0, 0}, {2, 1, 2, 0, 0, 0}};
    parts_of_step = PARTS;
    how = (zf_training){.clip = 0.5, .ema.decay = 0.9, .sections.tensor = 2};
    check_layouts(t, chain, (int)(sizeof chain / sizeof *chain));
}

TEST_ONCE(layouts_share_a_checkpoint_of_16_bits)
{
    static const layout chain[] = {{2, 2, 2, 1, 0, 0}, {4, 2, 1, 3, 0, 0}, {1, 2, 2, 2, 0, 0}};
    parts_of_step = PARTS;
    how = (zf_training){.precision = {.dtype = ZF_F16, .scale = 1024},
                        .clip = 0.5,
                        .sections.tensor = 2};
    check_layouts(t, chain, (int)(sizeof chain / sizeof *chain));
}

/* Attention whose queries and keys have one norm for all heads is whole on each rank where sections
 * do not divide the heads: products before and after it are exchanged, and are rounded as on one
 * rank. */
TEST_ONCE(layouts_of_whole_attention_in_16_bits)
{
    static const layout chain[] = {{1, 1, 2, 0, 0, 0}, {1, 1, 1, 0, 0, 0}, {1, 2, 2, 3, 0, 0}},
                        one = {1, 1, 1, 0, 0, 0};
    zf_causal_config c;
    zf_error error = {ZF_OK, ""};
    char *text;
    if (!llm_config_load("15m", &c, &error)) abort();
    c.vocab = VOCAB, c.hidden = 16, c.layers = 2, c.heads = c.kv_heads = 3, c.width = 4;
    c.intermediate = 24, c.positions = 16, c.family = ZF_CAUSAL_OLMO2;
    text = text_of(&c);
    test_defer(t, free, text);
    parts_of_step = 2;
    how = (zf_training){
        .precision.dtype = ZF_BF16, .sections.tensor = 2, .optimizer = ZF_SGD, .clip = 0.5};
    check_chain(t, text, chain, (int)(sizeof chain / sizeof *chain), &one);
}

/* Nodes of a text have no scopes: what the backward pass makes of an activation, another shape or
 * a gathered value, is where it is read, also where the stage before has made the activation, which
 * layers of OLMo 2 read without a norm. */
TEST_ONCE(layouts_of_stages_without_scopes)
{
    static const layout staged = {2, 1, 2, 0, 0, 0}, one = {1, 1, 1, 0, 0, 0};
    zf_causal_config c;
    zf_error error = {ZF_OK, ""};
    char *text;
    if (!llm_config_load("15m", &c, &error)) abort();
    c.vocab = VOCAB, c.hidden = 16, c.layers = 2, c.heads = 4, c.kv_heads = 2, c.width = 4;
    c.intermediate = 24, c.positions = 16, c.family = ZF_CAUSAL_OLMO2;
    text = text_of(&c);
    test_defer(t, free, text);
    parts_of_step = 2;
    for (int half = 0; half < 2 && !t->failed; half++) {
        how = (zf_training){.clip = 0.5, .sections.tensor = 2};
        if (half) how.precision.dtype = ZF_BF16;
        check_chain(t, text, &staged, 1, &one);
    }
}

/* ------------------------------------------------------------------------------- whole values */

enum { PARAMS = 64, VALUES = 1024 };

/* A parameter of one rank, or, where they are kept, its gradient. */
static struct {
    char name[80];
    float values[VALUES];
} want[PARAMS];
static int want_count;
static char saw[TEAM_RANKS][300]; /* by rank; "": all is well */

static void read_one(test *t, const member *one)
{
    want_count = zf_param_count(one->graph);
    CHECK(t, want_count > 10 && want_count <= PARAMS);
    for (int k = 0; k < want_count; k++) {
        const zf_tensor param = zf_param_at(one->graph, k);
        CHECK(t, zf_tensor_bytes(param) <= sizeof want->values);
        snprintf(want[k].name, sizeof want->name, "%s%s", how.keep_gradients ? "gradient/" : "",
                 zf_tensor_name(param));
        OK(t, zf_read(one->program, zf_graph_find(one->graph, want[k].name), want[k].values,
                      zf_tensor_bytes(param)),
           zf_program_error(one->program));
    }
}

/* Reads all parameters; then writes twice their values, in two ranges, and reads these. Gradients are
 * read. */
static void *share_values(void *object)
{
    const member *m = object;
    float values[VALUES];
    for (int k = 0; k < 2 * want_count; k += how.keep_gradients ? 2 : 1) {
        const zf_tensor param = zf_graph_find(m->graph, want[k / 2].name);
        const size_t bytes = zf_whole_bytes(param), half = bytes / 12 * 4;
        for (size_t i = 0; i < bytes / 4; i++) values[i] = 2 * want[k / 2].values[i];
        if (k % 2 && (zf_write_whole(m->program, param, 0, values, half) ||
                      zf_write_whole(m->program, param, half, values + half / 4, bytes - half)))
            break;
        memset(values, 0, sizeof values);
        if (zf_read_whole(m->program, param, values, bytes)) break;
        for (size_t i = 0; i < bytes / 4; i++)
            if (values[i] != (float)(1 + k % 2) * want[k / 2].values[i])
                snprintf(saw[m->rank], sizeof saw[0], "%s: element %d", want[k / 2].name, (int)i);
    }
    if (*zf_program_error(m->program))
        snprintf(saw[m->rank], sizeof saw[0], "%.250s", zf_program_error(m->program));
    return NULL;
}

/* Of parameters of which ranks have parts, shards or nothing, all read what one rank has: the last
 * layout is of one. */
static void check_whole_values(test *t, const char *text, const layout *layouts, int count)
{
    static team some;
    task.load = task.save = NULL, task.first = 0, task.count = 1;
    for (int k = count - 1; k >= 0 && !t->failed; k--) {
        run(t, &some, text, &layouts[k]);
        if (k == count - 1 && !t->failed) read_one(t, &some.members[0]);
        for (int r = 0; r < some.world && !t->failed; r++) {
            *saw[r] = '\0';
            if (pthread_create(&some.members[r].thread, NULL, share_values, &some.members[r]))
                abort();
        }
        for (int r = 0; r < some.world && !t->failed; r++)
            pthread_join(some.members[r].thread, NULL);
        for (int r = 0; r < some.world && !t->failed; r++) CHECK_TEXT(t, saw[r], "");
        team_end(&some);
    }
}

TEST_ONCE(layouts_read_and_write_whole_values)
{
    static const layout layouts[] = {
        {2, 2, 2, 3, 0, 0}, {4, 1, 1, 0, 0, 0}, {1, 2, 2, 0, 0, 0}, {1, 1, 1, 0, 0, 0}};
    char *text = model_text();
    test_defer(t, free, text);
    parts_of_step = PARTS;
    how = (zf_training){.clip = 0.5, .sections.tensor = 2};
    check_whole_values(t, text, layouts, (int)(sizeof layouts / sizeof *layouts));
}

/* Stages have the sums of gradients of all micro-batches. */
TEST_ONCE(layouts_read_gradients_of_stages)
{
    static const layout layouts[] = {{2, 2, 2, 3, 0, 0}, {4, 1, 1, 0, 0, 0}, {2, 2, 1, 1, 0, 0},
                                     {2, 1, 2, 0, 0, 0}, {1, 1, 1, 0, 0, 0}};
    char *text = model_text();
    test_defer(t, free, text);
    parts_of_step = PARTS;
    how = (zf_training){.clip = 0.5, .sections.tensor = 2, .keep_gradients = true};
    check_whole_values(t, text, layouts, (int)(sizeof layouts / sizeof *layouts));
}

/* The text of a Phi-3, whose products join q, k and v, and the two of its MLP; the caller frees it. With
 * one head, of the width of two, attention is whole on each of two ranks. */
static char *joined_text(int64_t heads)
{
    zf_causal_config c;
    zf_error error = {ZF_OK, ""};
    if (!llm_config_load("15m", &c, &error)) abort();
    c.vocab = VOCAB, c.hidden = 16, c.layers = 2, c.heads = heads;
    c.kv_heads = heads > 1 ? 2 : 1, c.width = heads > 1 ? 4 : 8;
    c.intermediate = 24, c.positions = 16, c.family = ZF_CAUSAL_PHI3;
    return text_of(&c);
}

/* Weights that are in pieces of which ranks have parts or shards, also of another stage. */
TEST_ONCE(layouts_read_and_write_whole_pieces)
{
    static const layout layouts[] = {
        {2, 2, 2, 3, 0, 0}, {2, 1, 2, 0, 0, 0}, {1, 2, 2, 0, 0, 0}, {2, 2, 1, 2, 0, 0},
        {1, 1, 1, 0, 0, 0}};
    char *text = joined_text(4);
    test_defer(t, free, text);
    parts_of_step = 4;
    how = (zf_training){.clip = 0.5, .sections.tensor = 2};
    check_whole_values(t, text, layouts, (int)(sizeof layouts / sizeof *layouts));
}

/* The same of the factors of adapters of such weights, which ranks have parts of. */
TEST_ONCE(layouts_read_and_write_joined_adapters)
{
    static const layout layouts[] = {
        {2, 2, 2, 3, 0, 0}, {1, 2, 2, 0, 0, 0}, {2, 1, 2, 1, 0, 0}, {1, 1, 1, 0, 0, 0}};
    char *text = joined_text(4);
    test_defer(t, free, text);
    parts_of_step = 4;
    how = (zf_training){.clip = 0.5, .sections.tensor = 2, .lora = {.rank = 4, .dropout = 0.25}};
    check_whole_values(t, text, layouts, (int)(sizeof layouts / sizeof *layouts));
    if (t->failed) return;
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &error);
    static char cut[1 << 17];
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    how.loss = zf_graph_find(g, "loss"), how.tensor = 2;
    OK(t, zf_passes(g, &how), zf_graph_error(g));
    CHECK(t, zf_graph_text(g, cut, sizeof cut) < sizeof cut);
    CHECK(t, strstr(cut, ".qkv_proj.weight[0:16]\" {init=truncated b=0.02 frozen=true rows=32} : f32[8@tensor,16]"));
    CHECK(t, strstr(cut, ".qkv_proj.lora_B.weight[16:24]\" {row=16 rows=32} : f32[4@tensor,4] role=adapter"));
    CHECK(t, strstr(cut, ".gate_up_proj.lora_B.weight[0:24]\" {rows=48} : f32[12@tensor,4] role=adapter"));
}

/* What has no whole value, or not as much. */
TEST_ONCE(layouts_refuse_what_is_not_whole)
{
    static const layout pair = {2, 1, 1, 0, 0, 0};
    static team m;
    char *text = model_text();
    float values[VALUES];
    test_defer(t, free, text);
    test_defer(t, team_end, &m);
    parts_of_step = PARTS;
    how = (zf_training){.clip = 0.5, .sections.tensor = 2};
    task.load = task.save = NULL, task.count = 0;
    run(t, &m, text, &pair);
    if (t->failed) return;
    zf_program *p = m.programs[0];
    const zf_tensor w = zf_param_at(m.members[0].graph, 0);
    CHECK(t,
          zf_read_whole(p, zf_graph_find(m.members[0].graph, "lr"), values, 4) == ZF_ERR_ARGUMENT);
    CHECK(t, strstr(zf_program_error(p), "lr is no param or state") != NULL);
    CHECK(t, zf_read_whole(p, w, values, 4) == ZF_ERR_ARGUMENT);
    CHECK(t, strstr(zf_program_error(p), "zf_read_whole: 4 bytes are not all of \"") != NULL);
    CHECK(t, zf_read_whole(p, zf_graph_find(m.members[0].graph, "loss"), values, 8) ==
                 ZF_ERR_ARGUMENT);
    CHECK(t, strstr(zf_program_error(p), "zf_read_whole: 8 bytes are not all of the output %"));
    CHECK(t, zf_write_whole(p, w, zf_whole_bytes(w), values, 4) == ZF_ERR_ARGUMENT);
    CHECK(t, strstr(zf_program_error(p), "they must be whole elements within it") != NULL);
    CHECK(t, zf_write_whole(p, w, 0, NULL, 4) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_program_error(p), "zf_write_whole: data is NULL");
    CHECK(t, zf_read_whole(p, ZF_NONE, values, 4) == ZF_ERR_ARGUMENT);
    CHECK(t, strstr(zf_program_error(p), "is not one of the program's graph") != NULL);
}

/* Of a weight in pieces a rank along tensor has rows of each, which are no rows that follow one
 * another. */
TEST_ONCE(layouts_refuse_parts_of_pieces)
{
    static const layout pair = {1, 1, 2, 0, 0, 0};
    static const char name[] = "model.layers.0.self_attn.qkv_proj.weight";
    static team m;
    char *text = joined_text(4), expected[200];
    float values[VALUES] = {0};
    zf_error error = {ZF_OK, ""};
    test_defer(t, free, text);
    test_defer(t, team_end, &m);
    parts_of_step = 4;
    how = (zf_training){.clip = 0.5, .sections.tensor = 2};
    task.load = task.save = NULL, task.count = 0;
    run(t, &m, text, &pair);
    if (t->failed) return;
    zf_program *p = m.programs[1];
    zf_store *s = zf_program_store(p);
    const zf_tensor w = zf_graph_find(m.members[1].graph, name);
    const size_t all = zf_whole_bytes(w);
    CHECK(t, all == 32 * 16 * 4 && all <= sizeof values);
#define IN_PIECES "%s: \"%s\" is in pieces of which ranks have parts: zf_%s_whole %ss all of it"
#define REFUSED(call, does, got, text)                                                   \
    snprintf(expected, sizeof expected, IN_PIECES, call, name, does, does);              \
    CHECK(t, (got) == ZF_ERR_ARGUMENT);                                                  \
    CHECK_TEXT(t, text, expected)
    REFUSED("zf_read", "read", zf_read(p, w, values, all), zf_program_error(p));
    REFUSED("zf_write", "write", zf_write(p, w, values, all), zf_program_error(p));
    REFUSED("zf_write_range", "write", zf_write_range(p, w, 64, values, 64), zf_program_error(p));
    REFUSED("zf_store_read", "read", zf_store_read(s, name, values, all), zf_store_error(s));
    REFUSED("zf_store_write", "write", zf_store_write(s, name, values, all), zf_store_error(s));
    const zf_lockstep_desc ranks = {m.programs, 2, 0};
    REFUSED("zf_lockstep_read", "read", zf_lockstep_read(&ranks, name, values, all, &error),
            error.text);
    const char *piece = "model.layers.0.self_attn.qkv_proj.weight[16:24]";
    OK(t, zf_store_read(s, piece, values, 4 * 16 * 4), zf_store_error(s)); /* its part of it */
}

/* Of tensors that a rank has, those whose values differ in the other store, and all; of a tensor in
 * pieces, these. average: the first store's averages of parameters are compared with parameters. */
static void count_differences(zf_store *a, zf_store *b, bool average, int *differ, int *all)
{
    static char x[8 * MOST], y[8 * MOST];
    *differ = *all = 0;
    for (int32_t k = 0; k < zf_store_count(a); k++) {
        const zf_stored s = zf_store_at(a, k);
        const size_t bytes = (size_t)zf_shape_count(s.shape) * zf_dtype_size(s.dtype);
        const bool is = !strncmp(s.name, "ema.average/", 12);
        if (bytes > sizeof x || zf_store_read(a, s.name, x, bytes) || (average && !is)) continue;
        *all += !zf_store_read(b, s.name + (average ? 12 : 0), y, bytes);
        *differ += memcmp(x, y, bytes) != 0;
    }
}

/* Copies between stores have each piece; stores with the tensor whole, or in other pieces, cannot
 * copy. */
TEST_ONCE(layouts_copy_pieces)
{
    static const layout pair = {1, 1, 2, 0, 0, 0};
    static team m, other, whole;
    char *text = joined_text(2), *kept = joined_text(1);
    int differ, all;
    test_defer(t, free, text);
    test_defer(t, free, kept);
    test_defer(t, team_end, &m);
    test_defer(t, team_end, &other);
    test_defer(t, team_end, &whole);
    parts_of_step = 2;
    how = (zf_training){.ema.decay = 0.9, .sections.tensor = 2};
    task.load = task.save = NULL, task.first = 0, task.count = 1;
    run(t, &m, text, &pair);
    task.count = 0;
    if (!t->failed) run(t, &other, text, &pair);
    if (!t->failed) run(t, &whole, kept, &pair);
    if (t->failed) return;
    zf_store *from = zf_program_store(m.programs[1]), *to = zf_program_store(other.programs[1]),
             *apart = zf_program_store(whole.programs[1]);
    count_differences(from, to, false, &differ, &all);
    CHECK(t, all > 40 && differ > 40);
    OK(t, zf_store_copy(to, from), zf_store_error(to));
    count_differences(from, to, false, &differ, &all);
    CHECK(t, all > 40 && !differ);
    OK(t, zf_ema_copy(to, from, NULL), zf_store_error(to));
    count_differences(from, to, true, &differ, &all);
    CHECK(t, all > 10 && !differ);
    CHECK(t, zf_store_copy(to, apart) == ZF_ERR_MISMATCH);
    CHECK_TEXT(t, zf_store_error(to),
               "zf_store_copy: \"model.layers.0.self_attn.qkv_proj.weight[0:8]\" is in pieces in one "
               "store, and whole or in other pieces in the other: give zf_divide the same sections "
               "for both");
    CHECK(t, zf_ema_copy(to, apart, NULL) == ZF_ERR_MISMATCH);
    CHECK(t, strstr(zf_store_error(to), "zf_ema_copy: \"model.layers.0.self_attn.qkv") != NULL);
    CHECK(t, zf_store_copy(apart, from) == ZF_ERR_MISMATCH);
    CHECK(t, strstr(zf_store_error(apart), "qkv_proj.weight\" is in pieces in one store") != NULL);
}

/* Two ranks, each with values of its own. */
TEST_ONCE(layouts_refuse_what_has_no_parts)
{
    static const char text[] =
        "mesh tensor=2\n%1 = param \"w\" : f32[4@tensor]\n"
        "%2 = bucket %1 {at=[0] size=1024} : f32[1024]~tensor\n"
        "%3 = view %2 {shape=[2,2]} : f32[2,2]~tensor\noutput %3 \"y\"\n";
    static team m;
    float values[4];
    zf_status status;
    test_defer(t, team_end, &m);
    gather(t, &m, text, 2, NULL);
    if (t->failed) return;
    status = zf_read_whole(m.programs[0], zf_graph_find(m.members[0].graph, "y"), values,
                           sizeof values);
    GIVES(t, status, ZF_ERR_ARGUMENT, zf_program_error(m.programs[0]));
    CHECK_TEXT(t, zf_program_error(m.programs[0]),
               "zf_read_whole: %3 differs on ranks along tensor, which have no parts of one value "
               "of it");
}

/* ------------------------------------------------------------------------------------- damage */

static const char shared[] =
    "mesh tensor=2\n%1 = param \"w\" {init=normal b=1} : f32[2,2@tensor]\n"
    "%2 = all_gather %1 {world=2 over=tensor dim=1} : f32[2,4]\noutput %2 \"y\"\n";

static void *save_or_load(void *object)
{
    const member *m = object;
    zf_store *store = zf_program_store(m->program);
    if (task.load) zf_load(store, task.load, NULL);
    else zf_save(store, task.save, NULL);
    return NULL;
}

/* Both ranks save, or load; `error`: what each says. */
static void both(test *t, team *m, const char *error)
{
    for (int r = 0; r < m->world; r++)
        if (pthread_create(&m->members[r].thread, NULL, save_or_load, &m->members[r])) abort();
    for (int r = 0; r < m->world; r++) pthread_join(m->members[r].thread, NULL);
    for (int r = 0; r < m->world; r++) {
        const char *said = zf_store_error(zf_program_store(m->programs[r]));
        if (*error ? !strstr(said, error) : *said)
            test_fail(t, __FILE__, __LINE__, error, said);
    }
}

/* Both ranks have two rows of each piece. */
static const char in_pieces[] =
    "mesh tensor=2\n%1 = param \"w[0:4]\" {init=normal b=1 rows=8} : f32[2@tensor,2]\n"
    "%2 = param \"w[4:8]\" {init=normal b=1 row=4 rows=8} : f32[2@tensor,2]\n"
    "%3 = add %1, %2 : f32[2@tensor,2]\noutput %3 \"y\"\n";

/* A list that says what it must not; `error`: what each rank says of it. */
typedef struct damage {
    const char *from, *to, *error;
} damage;

/* Two ranks with this text refuse what they have saved, with each of these in the list of one. */
static void check_damage(test *t, const char *text, const char *folder, const damage *edits,
                         int count)
{
    static char path[300];
    static team m;
    snprintf(path, sizeof path, "%s", test_path(folder));
    test_defer(t, team_end, &m);
    gather(t, &m, text, 2, NULL);
    for (int k = 0; k < count && !t->failed; k++) {
        task.load = NULL, task.save = path;
        both(t, &m, "");
        if (!edit_list(path, "rank-00001-of-00002.json", edits[k].from, edits[k].to))
            test_fail(t, __FILE__, __LINE__, "no such text", edits[k].from);
        task.load = path;
        both(t, &m, edits[k].error);
    }
    team_end(&m);
}

/* Boxes have each element once. */
TEST_ONCE(layouts_boxes_are_checked)
{
    static const damage edits[] = {
        {"        [2, 4]", "        [1, 3]",
         "has elements of \"w\" that another box has: they overlap"},
        {"[0, 2]", "[1, 0]", "must be an integer from 1 to 2"},
        {"\"count\": 4", "\"count\": 3", "the ranks' parts of \"w\" end at element 3 of 4"},
        {"\"first\": 0", "\"first\": 1", "must be an integer from 1 to 3"},
        {"\"box\": [", "\"box\": [[0, 2], ",
         "must be an array of 2 ranges, one for each dimension"},
        {"[0, 2]", "7", "must be [from, until]"},
        {"[0, 2]", "[0]", "must be [from, until] or [from, until, run, stride]"},
        {"[0, 2]", "[0, 2, 1, 2]", "must be equal runs, one in each 2 of 2"},
        {"\"tensors\": [", "\"tensors\": [], \"x\": [",
         "the boxes of \"w\" leave a gap of 4 of its elements"},
        {"\"box\"", "\"no box\"", "has elements of \"w\" that another box has: they overlap"}};
    check_damage(t, shared, "layouts-boxes", edits, (int)(sizeof edits / sizeof *edits));
}

/* The name of a piece says which rows it has, and these have the box. */
TEST_ONCE(layouts_pieces_are_checked)
{
    static const char rows[] = "must be \"w[FROM:UNTIL]\", FROM from 0 to 2, UNTIL from 4 to 8, not ";
    static const damage edits[] = {
        {"w[0:4]\"", "w[0:4]\"", ""},
        {"\"w[0:4]\"", "4", "tensors[0].piece must be a string, not 4"},
        {"w[0:4]", "w", rows},
        {"w[0:4]", "v[0:4]", rows},
        {"w[0:4]", "w[0:4", rows},
        {"w[0:4]", "w[0-4]", rows},
        {"w[0:4]", "w[+0:4]", rows},
        {"w[0:4]", "w[0:4]4]", rows},
        {"w[0:4]", "w[-1:4]", rows},
        {"w[0:4]", "w[3:4]", rows},
        {"w[0:4]", "w[0:3]", rows},
        {"w[0:4]", "w[0:9]", rows},
        {"w[0:4]", "w[0:99999999999999999999]", rows},
        {"w[0:4]", "w[1:4]", "w[1:4][0:4] is in rank-00001-of-00002.json, but not in the file"},
        {"\"piece\": \"w[0:4]\"", "\"no piece\": 0",
         ": w[0:4] is in rank-00001-of-00002.json, but not in the file"},
        {"[2, 4]", "[0, 2]", "is 0, but the parts before end at element 4 of \"w\": they overlap"},
        {"[2, 4]", "[1, 3]", "has elements of \"w\" that another box has: they overlap"},
        {"[6, 8]", "[4, 6]", "overlap"},
        {"[6, 8]", "[3, 5]", "must be \"w[FROM:UNTIL]\", FROM from 0 to 3, UNTIL from 5 to 8, not "},
        {"\"box\"", "\"no box\"",
         "must be \"w[FROM:UNTIL]\", FROM from 0 to 0, UNTIL from 8 to 8, not "},
        {"\"name\": \"w\"", "\"name\": \"v\"", "must be \"v[FROM:UNTIL]\""},
        {"\"shape\": [8, 2]", "\"shape\": []", "must be an array of 0 ranges"},
        {"\"kind\": \"param\"", "\"kind\": \"state\"", "must be \"state.rank-00001-of-00002"},
    };
    check_damage(t, in_pieces, "layouts-pieces", edits, (int)(sizeof edits / sizeof *edits));
}
