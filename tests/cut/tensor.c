/* Ranks along tensor that train whole models: parameters, states and losses have the bits of one
 * rank with as many sections. */
#include "small_models.h"
#include "../ranks/team.h"

#include "../../examples/bert/model.h"
#include "../../examples/gpt/model.h"
#include "../../examples/llm/model.h"

enum { BATCH = 4, STEPS = 3, MOST = 1 << 15, TABLE = 64 /* words that are cut, at least */ };

/* ------------------------------------------------------------------------------------- models */

typedef enum kind { LLAMA, LLAMA_TIED, QWEN, GPT, BERT, FOLDER, KINDS } kind;

static double dropout; /* of models, */
static int64_t words = VOCAB, tokens = TOKENS;
static int64_t heads = 4, heads_of_keys = 2, width = 8; /* keys and widths are of Llama */
static int64_t layers = 2, hidden_of_mlp = 48;
static const char *folder; /* whose family models of kind FOLDER are of */

static void build_llama(zf_graph *g, kind of, int64_t batch)
{
    zf_causal_config c;
    zf_error error = {ZF_OK, ""};
    if (!llm_config_load(of == FOLDER ? folder : "15m", &c, &error)) abort();
    c.vocab = words, c.hidden = 32, c.layers = layers, c.heads = heads, c.kv_heads = heads_of_keys;
    c.width = width, c.intermediate = hidden_of_mlp, c.positions = 16;
    if (of != FOLDER) c.tied = of == LLAMA_TIED;
    if (of == QWEN) c.family = ZF_CAUSAL_QWEN3; /* whose q and k have norms */
    llm_build(g, &c, &(sample_shape){.batch = batch, .sequence = tokens}, SAMPLE_TRAIN);
}

static void build_gpt(zf_graph *g, int64_t batch)
{
    gpt_config c;
    zf_error error = {ZF_OK, ""};
    if (!gpt_config_load("small", &c, &error)) return;
    c.vocab = words, c.hidden = 32, c.layers = layers, c.heads = heads;
    c.intermediate = hidden_of_mlp, c.positions = 16, c.embedding_dropout = c.attention_dropout = c.residual_dropout = dropout;
    gpt_build(g, &c, &(sample_shape){.batch = batch, .sequence = tokens}, SAMPLE_TRAIN);
}

static void build_bert(zf_graph *g, int64_t batch)
{
    bert_config c;
    zf_error error = {ZF_OK, ""};
    if (!bert_config_load("tiny", &c, &error)) return;
    c.vocab = words, c.hidden = 32, c.layers = layers, c.heads = heads;
    c.intermediate = hidden_of_mlp, c.positions = 16, c.dropout = c.attention_dropout = dropout;
    bert_build(g, &c, &(sample_shape){.batch = batch, .sequence = tokens, .predictions = 2 * batch},
               false);
}

/* The text of a model's forward pass, which the caller frees; NULL: there is none. */
static char *model_text(kind of, int64_t batch)
{
    zf_graph *g = zf_graph_new(NULL);
    char *text;
    size_t size;
    if (!g) abort();
    if (of == GPT) build_gpt(g, batch);
    else if (of == BERT) build_bert(g, batch);
    else build_llama(g, of, batch);
    size = zf_graph_text(g, NULL, 0) + 1;
    text = malloc(size);
    if (!text) abort();
    zf_graph_text(g, text, size);
    zf_graph_free(g);
    return text;
}

/* --------------------------------------------------------------------------------------- runs */

static zf_training how; /* of change */
static team single, several;

static zf_status change(zf_graph *g)
{
    zf_training t = how;
    t.loss = zf_graph_find(g, "loss"), t.lr = zf_graph_find(g, "lr");
    if (t.optimizer == ZF_LAMB) t.lamb.weight_decay = 0.1;
    else t.adamw.weight_decay = 0.1;
    return zf_passes(g, &t);
}

static bool is_word(const char *input)
{
    return !strcmp(input, "input_ids") || !strcmp(input, "labels");
}

static void feed_rank(test *t, member *m, int64_t part, int step)
{
    static unsigned char bytes[8 * 4096];
    zf_node node;
    for (int32_t k = 0; zf_graph_node(m->graph, k, &node); k++) {
        const int64_t count = zf_shape_count(node.shape);
        if (node.op != ZF_OP_input) continue;
        for (int64_t i = 0; i < count; i++) {
            double x = element(node.name, i, part, step);
            if (is_word(node.name)) x = (double)words - 1 - x; /* the last one among them */
            if (node.dtype == ZF_U8) bytes[i] = (unsigned char)x;
            else if (node.dtype == ZF_I32) ((int32_t *)(void *)bytes)[i] = (int32_t)x;
            else if (node.dtype == ZF_F64) ((double *)(void *)bytes)[i] = x;
            else ((float *)(void *)bytes)[i] = (float)x;
        }
        OK(t,
           zf_write(m->program, zf_graph_find(m->graph, node.name), bytes,
                    (size_t)count * zf_dtype_size(node.dtype)),
           zf_program_error(m->program));
    }
}

static bool micro; /* of one_part */

static void *one_part(void *object)
{
    member *m = object;
    if (micro) zf_micro(m->program);
    else zf_step(m->program);
    return NULL;
}

/* All ranks run their part of a batch; the last one ends the step. */
static void run_part(test *t, team *m, bool last)
{
    micro = !last;
    for (int r = 0; r < m->world; r++)
        if (pthread_create(&m->members[r].thread, NULL, one_part, &m->members[r])) abort();
    for (int r = 0; r < m->world; r++) pthread_join(m->members[r].thread, NULL);
    for (int r = 0; r < m->world; r++) CHECK_TEXT(t, zf_program_error(m->programs[r]), "");
}

/* How ranks share a run. */
typedef struct layout {
    int32_t tensor, sections, data;
    int stage;
    int32_t context, slices; /* ranks along context and sections of tokens; 0: 1 */
} layout;

/* Ranks with one part of the batch. */
static int32_t sharing(const layout *l) { return l->tensor * (l->context ? l->context : 1); }

/* Parts of a batch that a rank runs. */
static int32_t parts_of(const layout *l)
{
    return (how.zero.micro_batches ? how.zero.micro_batches : 1) / l->data;
}

static void take_steps(test *t, team *m, const layout *l, int first, int count)
{
    const int32_t parts = parts_of(l);
    for (int n = 0; n < count * parts && !t->failed; n++) {
        for (int r = 0; r < m->world && !t->failed; r++)
            feed_rank(t, &m->members[r], n % parts * l->data + r / sharing(l), first + n / parts);
        run_part(t, m, n % parts == parts - 1);
    }
}

static bool make(test *t, team *m, const char *text, const layout *l)
{
    const zf_training before = how;
    const zf_allocator counts = t->allocator; /* which one thread may call */
    bool made;
    how.tensor = l->tensor, how.sections.tensor = l->sections;
    how.context = l->context, how.sections.context = l->slices;
    if (how.zero.micro_batches)
        how.zero.micro_batches = parts_of(l), how.zero.world = l->data, how.zero.stage = l->stage;
    t->allocator = (zf_allocator){.user = NULL};
    made = team_new(t, m, text, sharing(l) * l->data, false, change);
    t->allocator = counts;
    how = before;
    return made;
}

static void run(test *t, team *m, const char *text, const layout *l)
{
    if (make(t, m, text, l)) take_steps(t, m, l, 0, STEPS);
}

/* The number of equal groups of rows of a parameter, each of which is cut. */
static int64_t groups_of(const char *name)
{
    return (strstr(name, "attn.c_attn") || strstr(name, "attn.Wqkv")) && !strstr(name, "lora_A") ? 3
                                                                                                 : 1;
}

static const unsigned char zeros[8];

/* Whether what rank `rank` of `ranks` has is its part of the whole value: neighbours may have the
 * same one, and the last one has padding after it, of zeros. */
static bool is_part(const unsigned char *whole, zf_shape all, const unsigned char *part,
                    zf_shape its, size_t size, int64_t rank, int64_t ranks, int64_t groups)
{
    for (int64_t i = 0; i < zf_shape_count(its); i++) {
        int64_t rest = i, step = 1, offset = 0;
        bool padding = false;
        for (int d = its.rank - 1; d >= 0; d--) {
            int64_t at = rest % its.dims[d];
            if (its.dims[d] != all.dims[d]) {
                const int64_t each = its.dims[d] / groups;
                const int64_t parts = (all.dims[d] + its.dims[d] - 1) / its.dims[d];
                const int64_t place = rank * parts / ranks;
                at = at / each * (all.dims[d] / groups) + place * each + at % each;
                padding |= at >= all.dims[d];
            }
            offset += at * step, rest /= its.dims[d], step *= all.dims[d];
        }
        if (padding ? memcmp(part + (size_t)i * size, zeros, size) : memcmp(whole + (size_t)offset * size, part + (size_t)i * size, size)) return false;
    }
    return true;
}

static bool is_compared(const zf_node *node)
{
    return node->op == ZF_OP_param || node->op == ZF_OP_state || !strcmp(node->op_name, "output");
}

/* A value as a rank has it. Sharded ones are read by all ranks together. */
typedef struct reading {
    member *of;
    const char *name;
    zf_shape shape;
    pthread_t thread;
    unsigned char bytes[8 * MOST];
} reading;

static void *read_value(void *object)
{
    reading *r = object;
    const zf_tensor x = zf_graph_find(r->of->graph, r->name);
    r->shape = zf_tensor_shape(x);
    if (zf_shape_count(r->shape) > MOST) abort();
    zf_read(r->of->program, x, r->bytes,
            zf_dtype_size(zf_tensor_dtype(x)) * (size_t)zf_shape_count(r->shape));
    return NULL;
}

/* Compares a value of one rank with that of several; returns on how many it is cut. */
static int compare_value(test *t, const zf_node *node, int32_t tensor)
{
    static reading whole, part[TEAM_RANKS];
    int cut = 0;
    whole.of = &single.members[0], whole.name = node->name;
    read_value(&whole);
    if (*zf_program_error(single.programs[0]))
        test_fail(t, __FILE__, __LINE__, node->name, zf_program_error(single.programs[0]));
    for (int r = 0; r < several.world; r++) {
        part[r].of = &several.members[r], part[r].name = node->name;
        if (pthread_create(&part[r].thread, NULL, read_value, &part[r])) abort();
    }
    for (int r = 0; r < several.world; r++) pthread_join(part[r].thread, NULL);
    for (int r = 0; r < several.world && !t->failed; r++) {
        char message[300];
        if (*zf_program_error(several.programs[r]))
            test_fail(t, __FILE__, __LINE__, node->name, zf_program_error(several.programs[r]));
        cut += zf_shape_count(part[r].shape) != zf_shape_count(whole.shape);
        if (whole.shape.rank == 2 && whole.shape.dims[0] == words && words >= TABLE &&
            part[r].shape.dims[0] == words && tensor > 1)
            test_fail(t, __FILE__, __LINE__, node->name, "the vocabulary is not cut");
        if (groups_of(node->name) > 1 && tensor > 1 &&
            part[r].shape.dims[0] * tensor != whole.shape.dims[0])
            test_fail(t, __FILE__, __LINE__, node->name, "q, k and v are not cut");
        if (is_part(whole.bytes, whole.shape, part[r].bytes, part[r].shape,
                    zf_dtype_size(node->dtype), r % tensor, tensor, groups_of(node->name)))
            continue;
        snprintf(message, sizeof message, "%s of rank %d", node->name, r);
        test_fail(t, __FILE__, __LINE__, "not the bits of one rank", message);
    }
    return cut;
}

/* Compares all that a step leaves; returns how many values are cut, times ranks. */
static int compare(test *t, int32_t tensor)
{
    zf_node node;
    int cut = 0;
    for (int32_t k = 0; zf_graph_node(single.members[0].graph, k, &node) && !t->failed; k++)
        if (is_compared(&node) && zf_valid(zf_graph_find(single.members[0].graph, node.name)))
            cut += compare_value(t, &node, tensor);
    return cut;
}

/* Runs the text on one rank and on several, and compares; at least so many values are cut. */
static void check_layout(test *t, const char *text, const layout *l, int least)
{
    const layout whole = {.tensor = 1, .sections = l->sections, .data = 1, .slices = l->slices};
    test_defer(t, team_end, &single);
    test_defer(t, team_end, &several);
    run(t, &single, text, &whole);
    if (!t->failed) run(t, &several, text, l);
    if (t->failed) return;
    CHECK(t, compare(t, l->tensor) >= least);
    team_end(&several);
    team_end(&single);
}

static void check_text(test *t, const char *text, int32_t tensor, int32_t sections, int least)
{
    check_layout(t, text, &(layout){.tensor = tensor, .sections = sections, .data = 1}, least);
}

static void check_model(test *t, kind of, int32_t tensor, int32_t sections)
{
    char *text = model_text(of, BATCH);
    test_defer(t, free, text);
    check_text(t, text, tensor, sections, 20);
}

/* Sequences are cut, and all values of parameters and states are those of one rank. */
static void check_context(test *t, kind of, int32_t context, int32_t slices)
{
    char *text = model_text(of, BATCH);
    test_defer(t, free, text);
    check_layout(t, text,
                 &(layout){.tensor = 1, .data = 1, .context = context, .slices = slices}, 0);
}

TEST_ONCE(context_llama)
{
    how = (zf_training){.clip = 1};
    check_context(t, LLAMA_TIED, 2, 2);
    how.precision.dtype = ZF_BF16;
    check_context(t, LLAMA, 2, 2);
}

TEST_ONCE(context_bert)
{
    how = (zf_training){.clip = 1};
    check_context(t, BERT, 2, 4);
    how.precision.dtype = ZF_BF16;
    check_context(t, BERT, 4, 4);
}

TEST_ONCE(context_gpt)
{
    how = (zf_training){.clip = 1};
    check_context(t, GPT, 2, 4);
    how.precision.dtype = ZF_BF16;
    check_context(t, GPT, 4, 4);
}

/* The same, where keys and values are gathered, of which there are fewer heads than ranks. */
TEST_ONCE(gather_models)
{
    static const kind models[] = {LLAMA, BERT, GPT};
    for (int k = 0; k < 3; k++) {
        how = (zf_training){.clip = 1, .context_kind = ZF_CONTEXT_GATHER};
        check_context(t, models[k], 2, 4);
        how.precision.dtype = ZF_BF16;
        check_context(t, models[k], 4, 4);
    }
}

/* Ranks along context and tensor each have a part of the tokens between layers. */
static void check_both(test *t, kind of, int32_t context, int32_t slices, int32_t tensor)
{
    char *text = model_text(of, BATCH);
    const layout l = {.tensor = tensor, .sections = 2, .data = 1, .context = context, .slices = slices};
    test_defer(t, free, text);
    how.sequence = "tensor";
    check_layout(t, text, &l, 20 * (tensor - 1));
}

TEST_ONCE(tokens_over_context_and_tensor)
{
    how = (zf_training){.clip = 1};
    check_both(t, LLAMA, 2, 2, 2);
    how.precision.dtype = ZF_BF16;
    check_both(t, LLAMA_TIED, 1, 2, 2);
}

TEST_ONCE(tokens_over_context_and_tensor_of_gathers)
{
    how = (zf_training){.context_kind = ZF_CONTEXT_GATHER};
    check_both(t, BERT, 2, 2, 2);
    how = (zf_training){.context_kind = ZF_CONTEXT_RING, .precision.dtype = ZF_BF16};
    check_both(t, GPT, 2, 2, 1);
}

/* Gradients of norms of heads are sums over tokens and heads. */
TEST_ONCE(tokens_over_context_and_tensor_of_norms)
{
    how = (zf_training){.optimizer = ZF_LAMB};
    heads_of_keys = 4;
    check_both(t, QWEN, 1, 2, 2);
    heads_of_keys = 2;
}

/* Masks are those of the element in the whole sequence. */
TEST_ONCE(tokens_over_context_and_tensor_drop)
{
    dropout = 0.2;
    how = (zf_training){.loss = ZF_NONE};
    check_both(t, BERT, 2, 2, 2);
    dropout = 0;
}

/* Dropout of embeddings, norms, attention and residuals is one rank's, element for element. */
TEST_ONCE(context_drops_in_models)
{
    dropout = 0.2;
    for (int way = ZF_CONTEXT_ULYSSES; way <= ZF_CONTEXT_RING; way++) {
        how = (zf_training){.context_kind = way};
        check_context(t, BERT, 2, 4);
        check_context(t, GPT, 2, 4);
    }
    dropout = 0;
}

/* Bias, activation and what is added follow the sum over ranks, also where the activation's
 * argument is saved. */
TEST_ONCE(tensor_after_a_sum)
{
    static const char *const text =
        "%1 = input \"tokens\" : f32[4,8]\n%2 = input \"lr\" : f32[]\n"
        "%3 = param \"up\" {init=normal b=0.5} : f32[16,8]\n"
        "%4 = param \"upb\" {init=normal b=0.5} : f32[16]\n"
        "%5 = linear %1, %3, %4 {activation=gelu} : f32[4,16]\n"
        "%6 = param \"down\" {init=normal b=0.5} : f32[8,16]\n"
        "%7 = param \"downb\" {init=normal b=0.5} : f32[8]\n"
        "%8 = linear %5, %6, %7 {activation=gelu} : f32[4,8]\n"
        "%9 = param \"up2\" {init=normal b=0.5} : f32[16,8]\n"
        "%10 = linear %8, %9 {activation=tanh} : f32[4,16]\n"
        "%11 = param \"down2\" {init=normal b=0.5} : f32[8,16]\n"
        "%12 = linear %10, %11, %7, %8 : f32[4,8]\n"
        "%13 = matmul %10, %11, %12 {transpose_b=true} : f32[4,8]\n"
        "%14 = softmax %13 : f32[4,8]\n%15 = mul %14, %13 : f32[4,8]\n"
        "%16 = reshape %15 {shape=[32]} : f32[32]\n%17 = sum %16 : f32[]\n"
        "output %17 \"loss\"\n";
    how = (zf_training){.fuse.without = "all"};
    check_text(t, text, 2, 4, 2 * 5 * 3);
    how.precision.dtype = ZF_BF16;
    check_text(t, text, 4, 4, 4 * 5 * 3);
}

TEST_ONCE(tensor_llama)
{
    how = (zf_training){.loss = ZF_NONE};
    check_model(t, LLAMA, 2, 4);
}

TEST_ONCE(tensor_llama_tied)
{
    how = (zf_training){.loss = ZF_NONE};
    check_model(t, LLAMA_TIED, 2, 2);
}

TEST_ONCE(tensor_bert)
{
    how = (zf_training){.loss = ZF_NONE};
    check_model(t, BERT, 2, 8);
    check_model(t, BERT, 4, 8);
}

/* Masks in attention, after layers and of the embedding are one rank's, element for element. */
TEST_ONCE(tensor_dropout)
{
    how = (zf_training){.loss = ZF_NONE};
    dropout = 0.2;
    check_model(t, BERT, 4, 4);
    how.precision.dtype = ZF_BF16, how.recompute.mode = ZF_RECOMPUTE_LAYERS;
    check_model(t, BERT, 2, 4);
    how = (zf_training){.fuse.without = "all"};
    check_model(t, BERT, 2, 2);
    dropout = 0;
}

/* The vocabulary is cut: lookups, the head and its loss, tied and not. */
TEST_ONCE(tensor_vocabulary)
{
    words = 64;
    how = (zf_training){.loss = ZF_NONE};
    check_model(t, LLAMA, 2, 4);
    check_model(t, LLAMA_TIED, 2, 2);
    check_model(t, BERT, 4, 8);
    how.precision.dtype = ZF_BF16, how.clip = 0.05;
    check_model(t, LLAMA_TIED, 2, 8);
    check_model(t, BERT, 2, 4);
    check_model(t, GPT, 2, 4);
    words = VOCAB;
}

TEST_ONCE(tensor_bf16)
{
    how = (zf_training){.precision.dtype = ZF_BF16};
    check_model(t, LLAMA, 2, 4);
    check_model(t, BERT, 2, 4);
}

/* One norm, of which each element counts once: tied and untied, cut and equal. */
TEST_ONCE(tensor_clipping)
{
    how = (zf_training){.clip = 0.05};
    check_model(t, LLAMA_TIED, 2, 4);
    how.precision.dtype = ZF_F16, how.precision.scale = 1024;
    check_model(t, BERT, 4, 4);
}

/* Sections do not divide the words: the last one has fewer, and its rank padding. */
TEST_ONCE(tensor_padded_vocabulary)
{
    words = 75;
    how = (zf_training){.clip = 0.05};
    check_model(t, LLAMA, 2, 4);
    check_model(t, LLAMA_TIED, 4, 4);
    check_model(t, BERT, 4, 8);
    heads = 8, width = 4;
    check_model(t, LLAMA_TIED, 8, 8);
    heads = 4, width = 8;
    how = (zf_training){.precision.dtype = ZF_BF16, .ema.decay = 0.9};
    check_model(t, LLAMA, 2, 2);
    check_model(t, GPT, 2, 4);
    words = VOCAB;
}

/* Rows of -0.0 stay that in a lookup that is a sum over ranks. */
TEST_ONCE(tensor_keeps_negative_zeros)
{
    static const char text[] =
        "mesh tensor=2\n%1 = input \"ids\" : i32[4]\n"
        "%2 = param \"words\" : f32[4@tensor<7,2]\n"
        "%3 = gather_rows %2, %1 {of=7} : f32[4,2]+tensor\n"
        "%4 = all_reduce %3 {world=2 over=tensor order=tree} : f32[4,2]\noutput %4 \"y\"\n";
    const int32_t ids[4] = {0, 6, 3, 4};
    const float rows[2][8] = {{-0.0f, 1, 2, 3, 4, 5, -0.0f, -0.0f}, {-0.0f, 7, 8, 9, -0.0f, 10, 0, 0}},
                right[8] = {-0.0f, 1, -0.0f, 10, -0.0f, -0.0f, -0.0f, 7};
    test_defer(t, team_end, &several);
    if (!team_new(t, &several, text, 2, false, NULL)) return;
    for (int r = 0; r < 2; r++) {
        zf_graph *g = several.members[r].graph;
        OK(t, zf_write(several.programs[r], zf_graph_find(g, "ids"), ids, sizeof ids),
           zf_program_error(several.programs[r]));
        OK(t, zf_write(several.programs[r], zf_graph_find(g, "words"), rows[r], sizeof rows[r]),
           zf_program_error(several.programs[r]));
    }
    team_step(t, &several);
    for (int r = 0; r < 2 && !t->failed; r++) {
        float y[8];
        OK(t,
           zf_read(several.programs[r], zf_graph_find(several.members[r].graph, "y"), y, sizeof y),
           zf_program_error(several.programs[r]));
        CHECK(t, !memcmp(y, right, sizeof y));
    }
}

/* More ranks than heads of keys: these have copies, and gradients are sums over them. */
TEST_ONCE(tensor_copies_of_heads)
{
    how = (zf_training){.clip = 0.05};
    check_model(t, LLAMA, 2, 4);
    check_model(t, LLAMA, 4, 4);
    heads = 8, width = 4;
    how = (zf_training){.precision.dtype = ZF_BF16};
    check_model(t, LLAMA_TIED, 4, 8);
    check_model(t, LLAMA, 8, 8);
    heads_of_keys = 1;
    check_model(t, LLAMA, 2, 8);
    check_model(t, LLAMA, 4, 4);
    heads = 4, heads_of_keys = 2, width = 8;
}

/* The same with ranks along data, at each stage; and values that others of the group have. */
TEST_ONCE(tensor_copies_with_zero)
{
    char *text = model_text(LLAMA, BATCH / 2);
    test_defer(t, free, text);
    how = (zf_training){.zero.micro_batches = 2, .clip = 0.05, .ema.decay = 0.9};
    for (int stage = 0; stage <= 3 && !t->failed; stage++)
        check_layout(t, text, &(layout){.tensor = 4, .sections = 4, .data = 2, .stage = stage}, 20);
}

/* Sums over micro-batches lie in host memory, whole and in shards. */
TEST_ONCE(tensor_sums_in_host_memory)
{
    char *text = model_text(LLAMA, BATCH / 2);
    test_defer(t, free, text);
    how = (zf_training){.zero.micro_batches = 4, .offload.gradients = ZF_HOST};
    for (int stage = 0; stage <= 3 && !t->failed; stage += 3)
        check_layout(t, text, &(layout){.tensor = 2, .sections = 4, .data = 2, .stage = stage}, 20);
}

/* Norms of LAMB are those of whole tensors, cut, equal and of copied heads, at each stage of ZeRO. */
TEST_ONCE(tensor_lamb)
{
    char *text = model_text(LLAMA, BATCH / 2);
    test_defer(t, free, text);
    how = (zf_training){.optimizer = ZF_LAMB, .clip = 0.05};
    check_model(t, LLAMA_TIED, 4, 4);
    how.precision.dtype = ZF_BF16, how.ema.decay = 0.9;
    check_model(t, BERT, 2, 8);
    how = (zf_training){.optimizer = ZF_LAMB, .zero.micro_batches = 2};
    for (int stage = 0; stage <= 3 && !t->failed; stage++)
        check_layout(t, text, &(layout){.tensor = 2, .sections = 4, .data = 2, .stage = stage}, 20);
}

/* Frozen layers are in no norm. */
TEST_ONCE(tensor_clipping_of_what_is_trained)
{
    how = (zf_training){.clip = 0.05, .param_groups = "*.layers.0.*:frozen"};
    check_model(t, LLAMA_TIED, 4, 4);
    words = 75;
    check_model(t, LLAMA_TIED, 2, 4);
    words = VOCAB;
}

/* ------------------------------------------------------------------------- values of all nodes */

enum { IDS = 4000, LINE = 4000 };

/* What a text says of the values of its nodes, by number. */
typedef struct values {
    char *text;
    int shown[IDS]; /* the node that has the value on each rank, or its part; 0: none */
    char op[IDS][24];
} values;

static int until_cut; /* the first number that zf_cut gives */

static bool is_cut_now;

static void note_before_cut(void *user, zf_graph *g, const char *pass)
{
    zf_node node;
    (void)user;
    is_cut_now |= !strcmp(pass, "cut");
    for (int32_t k = 0; !is_cut_now && zf_graph_node(g, k, &node); k++)
        if (node.id >= until_cut) until_cut = node.id + 1;
}

/* The text that all passes make of a text, which the caller frees. */
static void pass_text(test *t, values *v, const char *text, int32_t tensor, int32_t sections)
{
    const zf_training before = how;
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &error);
    size_t size;
    if (!g) abort();
    how.tensor = tensor, how.sections.tensor = sections;
    how.after = note_before_cut, until_cut = 0, is_cut_now = false;
    if (change(g)) test_fail(t, __FILE__, __LINE__, "zf_passes", zf_graph_error(g));
    how = before;
    size = zf_graph_text(g, NULL, 0) + 1;
    v->text = malloc(size);
    if (!v->text) abort();
    zf_graph_text(g, v->text, size);
    zf_graph_free(g);
}

/* The next line into `line`; what follows it. */
static const char *next_line(const char *at, char line[LINE])
{
    const size_t length = strcspn(at, "\n");
    snprintf(line, LINE, "%.*s", (int)(length < LINE ? length : LINE - 1), at);
    return at + length + (at[length] == '\n');
}

/* Notes which values a text shows: those that a rank has, or has a part of that lies together; where
 * ranks have addends, their sum. */
static void note_values(values *v)
{
    static const char *const leaves = "param state input constant";
    char line[LINE] = "", op[24];
    int id, of;
    for (const char *at = v->text; *at && strcmp(line, "update:"); ) {
        const char *type;
        at = next_line(at, line), type = strrchr(line, ':');
        if (sscanf(line, " %%%d = %23s", &id, op) != 2 || id >= IDS || !type) continue;
        snprintf(v->op[id], sizeof v->op[id], "%s", op);
        if (!strcmp(op, "all_reduce") && sscanf(strstr(line, op), "all_reduce %%%d", &of) == 1)
            v->shown[of] = id;
        else if (!strpbrk(type + 1, "+~/:") && strstr(type, "[") && !strstr(type, "[]") &&
                   !strstr(leaves, op))
            v->shown[id] = id;
    }
}

/* The text with an output of each value that both show, before its updates; the caller frees it. */
static char *shown_text(const values *v, const values *other, int until)
{
    const size_t room = strlen(v->text) + 64 * IDS;
    const char *rest = strstr(v->text, "\nupdate:");
    char *made = malloc(room);
    size_t at;
    if (!made || !rest) abort();
    at = (size_t)snprintf(made, room, "%.*s\n", (int)(rest - v->text), v->text);
    for (int id = 1; id < until; id++)
        if (v->shown[id] && other->shown[id] && !strcmp(v->op[id], other->op[id]))
            at += (size_t)snprintf(made + at, room - at, "output %%%d \"v%d\"\n", v->shown[id], id);
    snprintf(made + at, room - at, "%s", rest + 1);
    return made;
}

/* After each node, what ranks have together is what one rank has. */
static void check_values(test *t, const char *text, int32_t tensor, int32_t sections)
{
    const layout l = {.tensor = tensor, .sections = sections, .data = 1},
                 whole = {.tensor = 1, .sections = sections, .data = 1};
    values *v = calloc(2, sizeof *v);
    char *texts[2];
    bool made;
    int shown = 0;
    if (!v) abort();
    pass_text(t, &v[0], text, 1, sections), pass_text(t, &v[1], text, tensor, sections);
    note_values(&v[0]), note_values(&v[1]);
    for (int k = 0; k < 2; k++) texts[k] = shown_text(&v[k], &v[!k], until_cut);
    for (const char *at = texts[0]; (at = strstr(at, "\noutput %")); at++) shown++;
    made = team_new(t, &single, texts[0], 1, false, NULL) &&
           team_new(t, &several, texts[1], tensor, false, NULL);
    for (int k = 0; k < 2; k++) free(v[k].text), free(texts[k]);
    free(v);
    if (!made) return;
    CHECK(t, shown > 40);
    take_steps(t, &single, &whole, 0, 1);
    take_steps(t, &several, &l, 0, 1);
    if (!t->failed) CHECK(t, compare(t, tensor) > 60);
    team_end(&several);
    team_end(&single);
}

/* Models of drawn sizes. */
TEST_ONCE(tensor_values_of_nodes)
{
    enum { GRAPHS = 20 };
    uint64_t state = 1;
    test_defer(t, team_end, &single);
    test_defer(t, team_end, &several);
    for (int n = 0; n < GRAPHS && !t->failed; n++) {
        char *text;
        int drawn[6];
        int32_t tensor;
        for (int k = 0; k < 6; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            drawn[k] = (int)(state >> 40);
        }
        tensor = 2 << drawn[0] % 2;
        heads = 4 << drawn[1] % 2, heads_of_keys = 1 << drawn[2] % 3, width = 2 << drawn[3] % 2;
        words = drawn[4] % 2 ? VOCAB : 75, layers = 1;
        how = (zf_training){.precision.dtype = drawn[5] % 2 ? ZF_BF16 : ZF_F32};
        text = model_text(drawn[5] / 2 % 3 == 2 ? BERT : drawn[5] / 2 % 3 ? LLAMA : LLAMA_TIED, BATCH);
        heads = 4, heads_of_keys = 2, width = 8, layers = 2;
        check_values(t, text, tensor, tensor << drawn[0] / 2 % 2);
        free(text);
        words = VOCAB;
    }
}

/* ------------------------------------------------------------------------- products and their rows */

enum { ROWS = 3, COLUMNS = 5, DEEPEST = 3072 };

static float product[ROWS * COLUMNS]; /* of one rank */

/* Element [row, k] of an operand: the same on any number of ranks. */
static double element_at(int64_t operand, int64_t row, int64_t k)
{
    return (double)((k * 37 + row * 11 + operand * 5) % 97) / 31 - 1.5;
}

static void write_operand(test *t, member *m, int64_t operand, int64_t rows, int64_t k, int64_t all)
{
    static float x[COLUMNS * DEEPEST];
    for (int64_t i = 0; i < rows * k; i++)
        x[i] = (float)element_at(operand, i / k, m->rank * k + i % k);
    CHECK(t, rows * k <= COLUMNS * DEEPEST && (m->rank + 1) * k <= all);
    OK(t,
       zf_write(m->program, zf_graph_find(m->graph, operand ? "w" : "x"), x,
                (size_t)(rows * k) * sizeof *x),
       zf_program_error(m->program));
}

/* A product that sums over k, of which each of so many ranks has a part. */
static void check_product(test *t, int ranks, int sections, int64_t k, bool half)
{
    char text[900];
    const char *dtype = half ? "bf16" : "f32";
    const long long part = k / ranks;
    snprintf(text, sizeof text,
             "mesh tensor=%d\n%%1 = input \"x\" : f32[3,%lld@tensor]\n"
             "%%2 = input \"w\" : f32[5,%lld@tensor]\n"
             "%%3 = cast %%1 {to=%s} : %s[3,%lld@tensor]\n"
             "%%4 = cast %%2 {to=%s} : %s[5,%lld@tensor]\n"
             "%%5 = linear %%3, %%4 {sections=%d wide=true} : f32[3,5]+tensor\n"
             "%%6 = all_reduce %%5 {world=%d over=tensor order=tree} : f32[3,5]\n"
             "output %%6 \"y\"\n",
             ranks, part, part, dtype, dtype, part, dtype, dtype, part, sections / ranks, ranks);
    if (ranks == 1)
        snprintf(text, sizeof text,
                 "%%1 = input \"x\" : f32[3,%lld]\n%%2 = input \"w\" : f32[5,%lld]\n"
                 "%%3 = cast %%1 {to=%s} : %s[3,%lld]\n%%4 = cast %%2 {to=%s} : %s[5,%lld]\n"
                 "%%5 = linear %%3, %%4 {sections=%d wide=true} : f32[3,5]\noutput %%5 \"y\"\n",
                 part, part, dtype, dtype, part, dtype, dtype, part, sections);
    if (!team_new(t, &several, text, ranks, false, NULL)) return;
    for (int r = 0; r < ranks; r++) {
        write_operand(t, &several.members[r], 0, ROWS, part, k);
        write_operand(t, &several.members[r], 1, COLUMNS, part, k);
    }
    team_step(t, &several);
    for (int r = 0; r < ranks && !t->failed; r++) {
        float y[ROWS * COLUMNS];
        OK(t,
           zf_read(several.programs[r], zf_graph_find(several.members[r].graph, "y"), y, sizeof y),
           zf_program_error(several.programs[r]));
        if (ranks == 1) memcpy(product, y, sizeof y);
        else CHECK(t, !memcmp(product, y, sizeof y));
    }
    team_end(&several);
}

/* Sections of 3072, 384, 256 and odd numbers of elements, on each number of ranks that has a power of
 * two of them. */
TEST_ONCE(tensor_rows_of_products)
{
    static const struct {
        int64_t k;
        int sections, ranks[5];
    } cases[] = {{3072, 8, {1, 2, 4, 8}}, {1000, 8, {1, 2, 4, 8}}, {3072, 12, {1, 3, 6}},
                 {3072, 3, {1, 3}},       {1000, 5, {1, 5}},       {1000, 20, {1, 5}},
                 {1008, 7, {1, 7}}};
    test_defer(t, team_end, &several);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (int half = 0; half < 2; half++)
            for (int n = 0; n < 5 && cases[c].ranks[n] && !t->failed; n++)
                check_product(t, cases[c].ranks[n], cases[c].sections, cases[c].k, half);
}

/* What reads or writes elements of parameters besides updates. */
TEST_ONCE(tensor_states)
{
    how = (zf_training){.ema.decay = 0.9, .delay = true, .clip = INFINITY};
    check_model(t, LLAMA, 2, 2);
    how = (zf_training){.recompute.mode = ZF_RECOMPUTE_LAYERS};
    check_model(t, LLAMA, 2, 2);
    how = (zf_training){.offload = {.optimizer = ZF_HOST, .activations = ZF_HOST}};
    check_model(t, LLAMA, 2, 2);
}

/* q, k and v of GPT-2 are one product: ranks have some heads of each. */
TEST_ONCE(tensor_packed_attention)
{
    heads = 8, dropout = 0.2;
    how = (zf_training){.sequence = "none", .clip = 0.05};
    for (int32_t tensor = 2; tensor <= 8; tensor *= 2) check_model(t, GPT, tensor, 8);
    dropout = 0;
    how.precision.dtype = ZF_BF16;
    check_model(t, GPT, 4, 8);
    how = (zf_training){.fuse.without = "all"};
    check_model(t, GPT, 2, 4);
    heads = 4;
}

/* The ranks of `several` have parts of the tokens between layers. */
static void check_parts_of_tokens(test *t, const char *text, const layout *l)
{
    const size_t size = 1 << 20;
    char *its = malloc(size);
    CHECK(t, its);
    test_defer(t, free, its);
    test_defer(t, team_end, &several);
    if (!make(t, &several, text, l)) return;
    zf_graph_text(several.members[0].graph, its, size);
    CHECK(t, strstr(its, "over=tensor order=tree dim=1}") && strstr(its, "residual_norm"));
    team_end(&several);
}

/* Between layers ranks have parts of the tokens: at each number of ranks. */
static void check_tokens(test *t, kind of, int32_t tensor, int32_t sections, int stage)
{
    const layout l = {.tensor = tensor, .sections = sections, .data = stage < 0 ? 1 : 2,
                      .stage = stage};
    char *text = model_text(of, stage < 0 ? BATCH : BATCH / 2);
    test_defer(t, free, text);
    check_parts_of_tokens(t, text, &l);
    if (!t->failed) check_layout(t, text, &l, 20);
}

TEST_ONCE(tensor_parts_of_tokens)
{
    tokens = 16, heads = 8, heads_of_keys = width = 4;
    how = (zf_training){.clip = 0.05};
    check_tokens(t, BERT, 2, 8, -1);
    check_tokens(t, GPT, 8, 8, -1);
    words = 64;
    check_tokens(t, GPT, 4, 8, -1);
    check_tokens(t, LLAMA_TIED, 2, 4, -1);
    how.precision.dtype = ZF_BF16;
    check_tokens(t, LLAMA, 4, 4, -1);
    tokens = TOKENS, heads = 4, heads_of_keys = 2, width = 8, words = VOCAB;
}

/* Of words that stay whole, with a head in sections of them: it runs on parts of the tokens of two
 * sequences, which lie in as many runs. */
TEST_ONCE(tensor_parts_of_tokens_of_whole_words)
{
    how = (zf_training){.zero.micro_batches = 2, .clip = 0.05};
    words = 30, tokens = 16;
    check_tokens(t, GPT, 2, 2, 1);
    words = VOCAB, tokens = TOKENS;
}

/* Where two ranks, or four, have each head of keys. */
TEST_ONCE(tensor_parts_of_tokens_copies)
{
    tokens = 16, heads = 8, width = 4;
    how = (zf_training){.clip = 0.05};
    check_tokens(t, LLAMA, 4, 4, -1);
    heads_of_keys = 1;
    check_tokens(t, LLAMA, 4, 4, -1);
    tokens = TOKENS, heads = 4, heads_of_keys = 2, width = 8;
}

/* Their dropout has one rank's masks, element for element; also in norms. */
TEST_ONCE(tensor_parts_of_tokens_dropout)
{
    dropout = 0.2, tokens = 16;
    how = (zf_training){.recompute.mode = ZF_RECOMPUTE_LAYERS};
    check_tokens(t, BERT, 4, 4, -1);
    how = (zf_training){.precision.dtype = ZF_BF16};
    check_tokens(t, GPT, 2, 4, -1);
    dropout = 0, tokens = TOKENS;
}

/* With ranks along data, micro-batches, and each stage of ZeRO. */
TEST_ONCE(tensor_parts_of_tokens_with_zero)
{
    how = (zf_training){.zero.micro_batches = 4, .clip = 0.05};
    for (int stage = 0; stage <= 3 && !t->failed; stage++)
        check_tokens(t, stage % 2 ? GPT : LLAMA, 2, 2, stage);
}

/* Gradients of norms of q and k are sums over heads, of which ranks have parts. */
TEST_ONCE(tensor_norms_of_heads)
{
    heads = 8, heads_of_keys = width = 4;
    how = (zf_training){.clip = 0.05};
    check_tokens(t, QWEN, 2, 4, -1);
    check_model(t, QWEN, 2, 8); /* in more sections than heads of keys */
    how = (zf_training){.sequence = "none", .precision.dtype = ZF_BF16};
    check_model(t, QWEN, 2, 2);
    heads = 4, heads_of_keys = 2, width = 8;
}

/* Families of which each rank has one head of queries, and of keys where there are as many. */
static const struct {
    const char *folder;
    int64_t heads_of_keys;
} of_one_head[] = {{"qwen3", 4},  {"qwen3", 2}, {"gemma3", 4},      {"gemma3", 1}, {"phi3", 4}, {"phi3", 2},
                   {"pythia", 4}, {"neox", 4},  {"falconalibi", 4}, {"bloom4", 4}, {"mpt4", 4}, {"llama2", 4},
                   {"falcon40b", 4}, {"falcon40b", 2}};

enum { OF_ONE_HEAD = sizeof of_one_head / sizeof *of_one_head };

/* Takes one of them for kind FOLDER, in f32 or bf16. */
static void take_one_head(int k)
{
    static char path[80];
    snprintf(path, sizeof path, "tests/golden/llm/%s", of_one_head[k].folder);
    folder = path, heads_of_keys = of_one_head[k].heads_of_keys;
    how = (zf_training){.clip = k % 2 ? 0.05 : 0, .precision.dtype = k % 2 ? ZF_BF16 : ZF_F32};
}

/* A dimension of one element says nothing by its size of whether it is cut. */
TEST_ONCE(tensor_one_head_of_each_rank)
{
    for (int k = 0; k < OF_ONE_HEAD && !t->failed; k++) {
        take_one_head(k);
        if (k < 2) check_tokens(t, FOLDER, 4, 4, -1);
        check_model(t, FOLDER, 4, 4);
        if (!t->failed && of_one_head[k].heads_of_keys == 2) check_model(t, FOLDER, 2, 4);
    }
    heads_of_keys = 2;
}

/* The same of ranks that exchange tokens for heads, and share layers too. */
TEST_ONCE(context_one_head_of_each_rank)
{
    for (int k = 0; k < OF_ONE_HEAD && !t->failed; k++) {
        take_one_head(k);
        check_context(t, FOLDER, 4, 4);
        if (!t->failed && k % 2) check_both(t, FOLDER, 2, 2, 2);
    }
    heads_of_keys = 2;
}

/* The gradient of a norm of heads sums over tokens of several sequences, which are one dimension. That
 * of its result is added to a product in another form. */
TEST_ONCE(context_one_head_of_flat_tokens)
{
    static const char *const text =
        "%1 = input \"x\" : f32[2,8,8]\n%2 = input \"lr\" : f32[]\n"
        "%3 = param \"in\" {init=normal b=0.5} : f32[8,8]\n"
        "%4 = param \"up\" {init=normal b=0.5} : f32[32,8]\n"
        "%5 = param \"g\" {init=normal a=1 b=0.5} : f32[8]\n"
        "%6 = param \"down\" {init=normal b=0.5} : f32[8,32]\n"
        "%7 = linear %1, %3 : f32[2,8,8]\n%8 = linear %7, %4 : f32[2,8,32]\n"
        "%9 = reshape %8 {shape=[16,4,8]} : f32[16,4,8]\n"
        "%10 = rms %9 {eps=1e-05} : f32[16,4,2]\n%11 = rms_norm %9, %10, %5 : f32[16,4,8]\n"
        "%12 = tanh %11 : f32[16,4,8]\n%13 = reshape %12 {shape=[2,8,32]} : f32[2,8,32]\n"
        "%18 = exp %12 : f32[16,4,8]\n%19 = reshape %18 {shape=[2,8,32]} : f32[2,8,32]\n"
        "%20 = param \"more\" {init=normal b=0.5} : f32[8,32]\n%21 = linear %19, %20 : f32[2,8,8]\n"
        "%14 = linear %13, %6 : f32[2,8,8]\n%22 = add %14, %21 : f32[2,8,8]\n"
        "%15 = mul %22, %7 : f32[2,8,8]\n"
        "%16 = reshape %15 {shape=[128]} : f32[128]\n%17 = sum %16 : f32[]\n"
        "output %17 \"loss\"\n";
    layout l = {.tensor = 4, .sections = 4, .data = 1, .context = 2, .slices = 2};
    how = (zf_training){.sequence = "none"};
    check_layout(t, text, &l, 20);
    l.context = 1, l.slices = 4;
    if (!t->failed) check_layout(t, text, &l, 10);
}

/* A prime of columns for each rank, of which no dimension of one remains. */
TEST_ONCE(tensor_parts_of_a_prime)
{
    hidden_of_mlp = 14;
    how = (zf_training){.clip = 0.05};
    check_model(t, LLAMA, 2, 2);
    how = (zf_training){.precision.dtype = ZF_BF16};
    if (!t->failed) check_model(t, GPT, 2, 2);
    hidden_of_mlp = 48;
}

/* Factors of adapters are on tokens, or of layers. */
TEST_ONCE(tensor_parts_of_tokens_lora)
{
    how = (zf_training){.lora = {.rank = 4}};
    check_tokens(t, LLAMA, 2, 4, -1);
}

/* Factors of an adapter are cut where their weight is, or equal on all ranks. */
TEST_ONCE(tensor_lora)
{
    how = (zf_training){.lora = {.rank = 4}};
    check_model(t, LLAMA, 2, 4);
    how.lora.targets = "q_proj,down_proj", how.clip = 0.05;
    check_model(t, LLAMA_TIED, 2, 2);
}

/* Lengths of rows that ranks share are sums over sections, of weights, factors and both. */
TEST_ONCE(tensor_dora)
{
    how = (zf_training){.lora = {.rank = 4, .dora = true}, .clip = 0.05};
    check_model(t, LLAMA, 2, 4);
    how.sequence = "none", how.precision.dtype = ZF_BF16;
    check_model(t, GPT, 2, 4);
}

/* Squares are added in runs that no number of ranks cuts: of 8, of o_proj, and 12, of down_proj. */
TEST_ONCE(tensor_runs_of_squares)
{
    char *text = model_text(LLAMA, BATCH), *cut;
    test_defer(t, free, text);
    for (int32_t tensor = 1; tensor <= 2; tensor++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = team_parsed(t, text, &error);
        size_t size;
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        how = (zf_training){.clip = 1, .tensor = tensor, .sections.tensor = 4};
        OK(t, change(g), zf_graph_error(g));
        size = zf_graph_text(g, NULL, 0) + 1;
        cut = malloc(size);
        CHECK(t, cut);
        test_defer(t, free, cut);
        zf_graph_text(g, cut, size);
        CHECK(t, strstr(cut, "{unit=4}") && !strstr(cut, "{unit=1024}"));
    }
}

/* The text of a model in f64, but for the learning rate. */
static char *model_text_in_f64(kind of)
{
    char *text = model_text(of, BATCH);
    for (char *at = text; (at = strstr(at, "f32")); at++)
        if (strncmp(at - strlen("\"lr\" : "), "\"lr\" : ", strlen("\"lr\" : "))) memcpy(at, "f64", 3);
    return text;
}

/* In f64 the norm has all bits of the exact sum. */
TEST_ONCE(tensor_clipping_in_f64)
{
    char *text = model_text_in_f64(LLAMA);
    test_defer(t, free, text);
    how = (zf_training){.clip = 0.05};
    check_text(t, text, 2, 4, 20);
}

/* ------------------------------------------------------------------------------ whole values */

static reading one_rank, all_ranks[TEAM_RANKS];

static void *read_whole(void *object)
{
    reading *r = object;
    const zf_tensor x = zf_graph_find(r->of->graph, r->name);
    if (zf_whole_bytes(x) > sizeof r->bytes) abort();
    r->shape = zf_whole_shape(x);
    zf_read_whole(r->of->program, x, r->bytes, zf_whole_bytes(x));
    return NULL;
}

/* Reads a value of one rank, and as one rank would have it on each of several; its elements. */
static int64_t read_everywhere(test *t, const char *name)
{
    one_rank.of = &single.members[0], one_rank.name = name;
    read_value(&one_rank);
    for (int r = 0; r < several.world; r++) {
        all_ranks[r].of = &several.members[r], all_ranks[r].name = name;
        if (pthread_create(&all_ranks[r].thread, NULL, read_whole, &all_ranks[r])) abort();
    }
    for (int r = 0; r < several.world; r++) pthread_join(all_ranks[r].thread, NULL);
    if (*zf_program_error(single.programs[0]))
        test_fail(t, __FILE__, __LINE__, name, zf_program_error(single.programs[0]));
    for (int r = 0; r < several.world; r++)
        if (*zf_program_error(several.programs[r]))
            test_fail(t, __FILE__, __LINE__, name, zf_program_error(several.programs[r]));
    for (int r = 0; r < several.world && !t->failed; r++)
        if (memcmp(&all_ranks[r].shape, &one_rank.shape, sizeof one_rank.shape))
            test_fail(t, __FILE__, __LINE__, name, "not the shape of one rank's");
    return zf_shape_count(one_rank.shape);
}

/* What outputs keep of gradients is read as one rank has it, of parts in several ways. */
static void check_gradients(test *t, kind of, const layout *l)
{
    const layout whole = {.tensor = 1, .sections = l->sections, .data = 1, .slices = l->slices};
    char *text = model_text(of, BATCH / 2), name[300];
    int cut = 0;
    test_defer(t, free, text);
    test_defer(t, team_end, &single);
    test_defer(t, team_end, &several);
    if (make(t, &single, text, &whole)) take_steps(t, &single, &whole, 0, 1);
    if (!t->failed && make(t, &several, text, l)) take_steps(t, &several, l, 0, 1);
    for (int k = 0; k < zf_param_count(single.members[0].graph) && !t->failed; k++) {
        const zf_tensor param = zf_param_at(single.members[0].graph, k);
        size_t size;
        snprintf(name, sizeof name, "gradient/%.250s", zf_tensor_name(param));
        size = (size_t)read_everywhere(t, name) * sizeof(float);
        cut += zf_tensor_bytes(zf_graph_find(several.members[0].graph, name)) != size;
        for (int r = 0; r < several.world && !t->failed; r++)
            if (memcmp(one_rank.bytes, all_ranks[r].bytes, size))
                test_fail(t, __FILE__, __LINE__, "not the bits of one rank", name);
    }
    CHECK(t, cut >= (l->tensor > 1 ? 10 : 0));
    team_end(&several);
    team_end(&single);
}

TEST_ONCE(tensor_gradients_are_whole)
{
    words = 75;
    how = (zf_training){.keep_gradients = true, .zero.micro_batches = 2};
    check_gradients(t, LLAMA_TIED, &(layout){.tensor = 4, .sections = 4, .data = 1});
    check_gradients(t, GPT, &(layout){.tensor = 2, .sections = 2, .data = 2, .stage = 2});
    check_gradients(t, LLAMA, &(layout){.tensor = 2, .sections = 2, .data = 2, .stage = 3});
    check_gradients(t, LLAMA,
                    &(layout){.tensor = 1, .data = 1, .context = 2, .slices = 2, .stage = 1});
    words = VOCAB;
}

/* ----------------------------------------------------------------- against sums without sections */

/* Two ranks, and one whose sums have no sections, after 5 steps: each value within 1e-12 of the
 * largest one of its tensor. */
TEST_ONCE(tensor_in_f64_without_sections)
{
    const layout whole = {.tensor = 1, .data = 1}, pair = {.tensor = 2, .data = 1};
    char *text = model_text_in_f64(LLAMA_TIED);
    test_defer(t, free, text);
    test_defer(t, team_end, &single);
    test_defer(t, team_end, &several);
    how = (zf_training){.clip = 0.05};
    if (make(t, &single, text, &whole)) take_steps(t, &single, &whole, 0, 5);
    if (!t->failed && make(t, &several, text, &pair)) take_steps(t, &several, &pair, 0, 5);
    for (int k = 0; k < zf_param_count(single.members[0].graph) && !t->failed; k++) {
        const char *name = zf_tensor_name(zf_param_at(single.members[0].graph, k));
        const int64_t count = read_everywhere(t, name);
        const double *x = (const double *)(const void *)one_rank.bytes,
                     *y = (const double *)(const void *)all_ranks[0].bytes;
        double most = 0, off = 0;
        for (int64_t i = 0; i < count; i++) {
            most = fmax(most, fabs(x[i]));
            off = fmax(off, fabs(x[i] - y[i]));
        }
        if (!(most > 0 && off < 1e-12 * most))
            test_fail(t, __FILE__, __LINE__, "relative error of 1e-12 or more", name);
    }
    team_end(&several);
    team_end(&single);
}

/* Losses of 20 steps in f32, within 1e-6. */
TEST_ONCE(tensor_losses_without_sections)
{
    const layout whole = {.tensor = 1, .data = 1}, pair = {.tensor = 2, .data = 1};
    char *text = model_text(LLAMA, BATCH);
    float x, y;
    test_defer(t, free, text);
    test_defer(t, team_end, &single);
    test_defer(t, team_end, &several);
    how = (zf_training){.clip = 0.05};
    if (!make(t, &single, text, &whole) || !make(t, &several, text, &pair)) return;
    for (int step = 0; step < 20 && !t->failed; step++) {
        take_steps(t, &single, &whole, step, 1);
        take_steps(t, &several, &pair, step, 1);
        zf_read(single.programs[0], zf_graph_find(single.members[0].graph, "loss"), &x, sizeof x);
        zf_read(several.programs[0], zf_graph_find(several.members[0].graph, "loss"), &y, sizeof y);
        CHECK_NEAR(t, y, x, 1e-6 * x);
    }
    team_end(&several);
    team_end(&single);
}

/* Two ranks along data and two along tensor, at each stage. */
TEST_ONCE(tensor_with_zero)
{
    char *text = model_text(LLAMA, BATCH / 2);
    test_defer(t, free, text);
    how = (zf_training){.zero.micro_batches = 4, .clip = 0.05};
    for (int stage = 0; stage <= 3 && !t->failed; stage++)
        check_layout(t, text, &(layout){.tensor = 2, .sections = 2, .data = 2, .stage = stage}, 20);
}

/* -------------------------------------------------------------------------------- checkpoints */

static const char *saved_at; /* of save_one, load_one */

static void *save_one(void *object)
{
    member *m = object;
    zf_save(zf_program_store(m->program), saved_at, NULL);
    return NULL;
}

static void *load_one(void *object)
{
    member *m = object;
    zf_load(zf_program_store(m->program), saved_at, NULL);
    return NULL;
}

static void on_each(test *t, team *m, void *(*call)(void *))
{
    for (int r = 0; r < m->world; r++)
        if (pthread_create(&m->members[r].thread, NULL, call, &m->members[r])) abort();
    for (int r = 0; r < m->world; r++) pthread_join(m->members[r].thread, NULL);
    for (int r = 0; r < m->world; r++)
        CHECK_TEXT(t, zf_store_error(zf_program_store(m->programs[r])), "");
}

/* One rank, and several in this layout, go on from what several have saved; several in another
 * layout from what one has. */
static void check_saved(test *t, const char *text, const layout *from, const layout *to)
{
    static char own[200], other[200];
    const layout whole = {.tensor = 1, .sections = from->sections, .data = 1};
    snprintf(own, sizeof own, "%s", test_path("tensor-one"));
    snprintf(other, sizeof other, "%s", test_path("tensor-several"));
    test_defer(t, team_end, &single);
    test_defer(t, team_end, &several);
    run(t, &single, text, &whole);
    if (!t->failed) run(t, &several, text, from);
    if (t->failed) return;
    saved_at = own, on_each(t, &single, save_one);
    saved_at = other, on_each(t, &several, save_one);
    team_end(&several);
    team_end(&single);
    if (!make(t, &single, text, &whole) || !make(t, &several, text, to)) return;
    on_each(t, &single, load_one);
    saved_at = own, on_each(t, &several, load_one);
    take_steps(t, &single, &whole, STEPS, 1);
    take_steps(t, &several, to, STEPS, 1);
    CHECK(t, compare(t, to->tensor) >= 20);
    team_end(&several);
    if (!make(t, &several, text, from)) return;
    saved_at = other, on_each(t, &several, load_one);
    take_steps(t, &several, from, STEPS, 1);
    CHECK(t, compare(t, from->tensor) >= 20);
    team_end(&several);
    team_end(&single);
}

TEST_ONCE(tensor_checkpoints)
{
    char *text = model_text(BERT, BATCH / 2);
    test_defer(t, free, text);
    how = (zf_training){.zero.micro_batches = 2, .precision.dtype = ZF_BF16};
    check_saved(t, text, &(layout){.tensor = 2, .sections = 4, .data = 2, .stage = 1},
                &(layout){.tensor = 4, .sections = 4, .data = 2, .stage = 3});
}

/* Each head of keys is there once, and goes to ranks of which several have it, or to one. */
TEST_ONCE(tensor_checkpoints_of_copies)
{
    char *text = model_text(LLAMA, BATCH / 2);
    test_defer(t, free, text);
    how = (zf_training){.zero.micro_batches = 2};
    check_saved(t, text, &(layout){.tensor = 4, .sections = 4, .data = 2, .stage = 2},
                &(layout){.tensor = 2, .sections = 4, .data = 2, .stage = 1});
    check_saved(t, text, &(layout){.tensor = 2, .sections = 4, .data = 1, .stage = 3},
                &(layout){.tensor = 4, .sections = 4, .data = 2, .stage = 3});
}

/* Padding is in no file: ranks in other layouts, and one, go on. */
TEST_ONCE(tensor_checkpoints_of_padded_words)
{
    char *text;
    words = 75;
    text = model_text(LLAMA_TIED, BATCH / 2);
    test_defer(t, free, text);
    how = (zf_training){.zero.micro_batches = 2};
    check_saved(t, text, &(layout){.tensor = 4, .sections = 4, .data = 2, .stage = 1},
                &(layout){.tensor = 2, .sections = 4, .data = 2, .stage = 3});
    how.precision.dtype = ZF_BF16;
    check_saved(t, text, &(layout){.tensor = 2, .sections = 4, .data = 1, .stage = 3},
                &(layout){.tensor = 4, .sections = 4, .data = 1, .stage = 0});
    words = VOCAB;
}

static int left; /* values that can still be read */

static zf_status reads_some(void *self, void *to, const void *from, size_t bytes, zf_copy way,
                            zf_error *error)
{
    (void)self;
    if (way != ZF_DEVICE_TO_HOST || left-- > 0) return memcpy(to, from, bytes), ZF_OK;
    snprintf(error->text, sizeof error->text, "the device is gone");
    return error->status = ZF_ERR_BACKEND;
}

/* Two ranks save, of which the last one can read `reads` values, 0 or 1; its error is that of both. */
static void check_unread(test *t, int reads)
{
    static const char text[] =
        "mesh tensor=2\n%1 = param \"w\" : f32[4@tensor]\n"
        "%2 = all_gather %1 {world=2 over=tensor} : f32[8]\noutput %2 \"y\"\n";
    zf_error error = {ZF_OK, ""};
    static zf_backend some[2];
    zf_backend *cpu = zf_cpu_backend(NULL, &error), *broken = &some[reads];
    zf_local *local;
    member members[2];
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    NEED(t, local = zf_local_new(&(zf_local_desc){.world = 2}, &error), &error);
    test_defer(t, (test_cleanup *)zf_local_free, local);
    *broken = *cpu, broken->copy = reads_some;
    for (int r = 0; r < 2; r++) {
        zf_compile_desc d = {.backend = r ? broken : cpu, .comm = zf_local_comm(local, r)};
        members[r] = (member){.rank = r, .graph = team_parsed(t, text, &error)};
        NEED(t, members[r].graph, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, members[r].graph);
        members[r].program = zf_compile(members[r].graph, &d);
        OK(t, zf_graph_status(members[r].graph), zf_graph_error(members[r].graph));
        test_defer(t, (test_cleanup *)zf_program_free, members[r].program);
    }
    left = reads;
    for (int r = 0; r < 2; r++)
        if (pthread_create(&members[r].thread, NULL, save_one, &members[r])) abort();
    for (int r = 0; r < 2; r++) pthread_join(members[r].thread, NULL);
    for (int r = 0; r < 2; r++) {
        const char *said = zf_store_error(zf_program_store(members[r].program));
        if (!strstr(said, "the device is gone"))
            test_fail(t, __FILE__, __LINE__, "the device is gone", said);
    }
}

/* Before anything is written, and where it is written. */
TEST_ONCE(tensor_checkpoints_that_a_rank_cannot_read)
{
    static char path[200];
    snprintf(path, sizeof path, "%s", test_path("tensor-unread"));
    saved_at = path;
    for (int reads = 0; reads < 2 && !t->failed; reads++) check_unread(t, reads);
}

/* ------------------------------------------------------------------------------------- errors */

static void check_refused(test *t, const char *text, const char *error)
{
    zf_error parsing = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &parsing);
    zf_status status;
    NEED(t, g, &parsing);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    status = change(g);
    GIVES(t, status, ZF_ERR_ARGUMENT, zf_graph_error(g));
    if (!strstr(zf_graph_error(g), error))
        test_fail(t, __FILE__, __LINE__, error, zf_graph_error(g));
}

/* The bytes of the device that a step takes by `how`. */
static size_t bytes_of_step(test *t, const char *text)
{
    zf_error parsing = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &parsing);
    zf_plan plan = {.nodes = 0};
    if (!g || change(g) || zf_memory(g, NULL) || zf_graph_plan(g, &plan))
        test_fail(t, __FILE__, __LINE__, "a plan", g ? zf_graph_error(g) : parsing.text);
    zf_graph_free(g);
    return plan.peak_bytes;
}

/* Twelve heads of queries and four of keys could be cut into six, but not with the keys. */
TEST_ONCE(tensor_refuses_copies_that_ranks_do_not_share)
{
    char *text;
    heads = 12, heads_of_keys = 4, width = 6;
    text = model_text(LLAMA, BATCH);
    heads = 4, heads_of_keys = 2, width = 8;
    test_defer(t, free, text);
    how = (zf_training){.tensor = 6, .sections.tensor = 12};
    check_refused(t, text,
                  "has 4 key-value heads, and there are 6 ranks: one of these must divide the "
                  "other, for all attention alike");
}

/* Of layers in pieces none is cut; a table of words in pieces is whole, and the others are cut. */
TEST_ONCE(tensor_cuts_no_pieces)
{
    char *text;
    words = 200;
    text = model_text(GPT, BATCH);
    words = VOCAB;
    test_defer(t, free, text);
    how = (zf_training){.tensor = 2, .tile.bytes = 4096};
    check_refused(t, text, "zf_cut: no layer can be cut: \"transformer.wte.weight\" is in pieces, which "
                           "each rank has whole; zf_tile must leave layers in one");
    how.tile.bytes = 20000;
    CHECK(t, bytes_of_step(t, text) > 0);
}

/* Of 66 words in 64 sections of two, 31 would have none. */
TEST_ONCE(tensor_refuses_sections_without_words)
{
    char *text;
    words = 66;
    text = model_text(LLAMA, BATCH);
    words = VOCAB;
    test_defer(t, free, text);
    how = (zf_training){.tensor = 2, .sections.tensor = 64};
    check_refused(t, text,
                  "zf_cut: 64 sections of the 66 rows of \"model.embed_tokens.weight\" would not "
                  "have a row each");
}

/* What a rank takes with its part of layers, sequences or both is what fits a limit. */
TEST_ONCE(tensor_and_context_fit_a_limit)
{
    static const zf_training layouts[] = {
        {.tensor = 2}, {.sections.tensor = 2}, {.context = 2}, {.tensor = 2, .context = 2}};
    char *text = model_text(LLAMA, BATCH);
    test_defer(t, free, text);
    for (size_t k = 0; k < sizeof layouts / sizeof layouts[0] && !t->failed; k++) {
        zf_choice choice = {.tried = 0};
        size_t plain, fitted;
        how = layouts[k], how.zero.bucket_bytes = 1 << 16;
        plain = bytes_of_step(t, text);
        how.fit = (zf_fit_desc){.device = plain, .host = 1 << 30, .choice = &choice};
        fitted = bytes_of_step(t, text);
        CHECK(t, choice.tried == 1 && fitted == plain && choice.bytes[ZF_DEVICE] == plain);
        how.fit.device = plain - 1;
        fitted = bytes_of_step(t, text);
        CHECK(t, choice.tried > 1 && fitted < plain && choice.bytes[ZF_DEVICE] == fitted);
    }
}

TEST_ONCE(tensor_refusals)
{
    char *text = model_text(LLAMA, BATCH), without[2000] = "";
    test_defer(t, free, text);
    how = (zf_training){.tensor = 8};
    check_refused(t, text,
                  "zf_cut: dimension 0 of \"model.layers.0.self_attn.q_proj.weight\" may be "
                  "cut into divisors of 4, and there are 8 ranks");
    how = (zf_training){.tensor = 2, .sections.tensor = 3};
    check_refused(t, text, "zf_cut: 3 sections are not divided by 2 ranks");
    how = (zf_training){.tensor = 2, .sections.tensor = 64};
    check_refused(t, text, "is kept by");
    check_parsed(t,
                 "%1 = input \"x\" : f32[8]\n%2 = squares %1 {unit=3} : f64[34]\n"
                 "output %2 \"y\"\n",
                 "unit is 3: a power of two up to 1024 is needed");
    check_parsed(t,
                 "%1 = input \"x\" : f64[8]\n%2 = norm_of_squares %1 : f32[]\n"
                 "output %2 \"y\"\n",
                 "operand 0 is no result of squares");
    check_parsed(t,
                 "mesh tensor=2\nzero stage=0 world=1 micro_batches=1\n"
                 "%1 = param \"a\" : f32[4@tensor]\n%2 = param \"b\" : f32[4]\n"
                 "%3 = bucket %1, %2 {at=[0,1024] size=2048} : f32[2048]~tensor\n"
                 "%4 = squares %3 {unit=4 blocks=[0,1,1,2]} : f64[34]\noutput %4 \"y\"\n",
                 "blocks are of what is cut over tensor and of what is equal");
    how = (zf_training){.tensor = 2, .sequence = "ring"};
    check_refused(t, text,
                  "zf_passes: sequence is \"ring\"; it must be \"tensor\" or \"none\"");
    how = (zf_training){.sequence = "tensor"};
    check_refused(t, text,
                  "zf_passes: sequence says what ranks along tensor have: it must be left out "
                  "without tensor and sections.tensor");
    how = (zf_training){.tensor = 2, .sections.tensor = 8, .sequence = "tensor"};
    check_refused(t, text,
                  "zf_cut: sequences of 8 tokens, dimension 1 of the first input that has one, are "
                  "not cut into 8 sections of 2 tokens or more: tokens=whole leaves them whole");
    how = (zf_training){.tensor = 2, .context = 4, .sequence = "tensor"};
    check_refused(t, text,
                  "zf_cut: sequences of 8 tokens, dimension 1 of the first input that has one, each "
                  "of 4 sections along context, are not cut into 2 sections of 2 tokens or more: "
                  "tokens=whole leaves them whole");
    how = (zf_training){.tensor = 2, .context = 2, .sequence = "tensor",
                        .context_kind = ZF_CONTEXT_ZIGZAG};
    check_refused(t, text,
                  "zf_context: kind=zigzag gives a rank two halves of its tokens, which ranks along "
                  "tensor do not share: zf_cut with tokens=whole leaves them whole");
    while (strlen(without) < 1100) strcat(without, "chain,");
    how = (zf_training){.tensor = 2, .fuse.without = without};
    check_refused(t, text, "zf_fuse: without is too long");
}
