/* What ranks along pipe, context and tensor send in a step of a GPT: counted as the plan says, and
 * by the formulas (tests/cli/zfplan.sh has those of zf-plan). */
#include "small_models.h"

#include <pthread.h>

#include "../../examples/gpt/model.h"

enum { MICRO = 3, BATCH = 2, WIDTH = 32, HEADS = 8, WORDS = 128, MOST_RANKS = 24 };

/* Ranks along the axes, of which pipe is the slowest, and layers. */
typedef struct layout {
    int pipe, context, tensor, layers;
} layout;

typedef struct rank_run {
    pthread_t thread;
    zf_graph *graph;
    zf_program *program;
    char said[300];
} rank_run;

static zf_tensor build(zf_graph *g, int layers)
{
    const sample_shape shape = {.batch = BATCH, .sequence = TOKENS};
    zf_error error = {ZF_OK, ""};
    gpt_config c;
    if (!gpt_config_load("small", &c, &error)) abort();
    c.vocab = WORDS, c.hidden = WIDTH, c.layers = layers, c.heads = HEADS;
    c.intermediate = 4 * WIDTH, c.positions = TOKENS;
    c.attention_dropout = c.residual_dropout = c.embedding_dropout = 0;
    gpt_build(g, &c, &shape, SAMPLE_TRAIN);
    return zf_graph_find(g, "loss");
}

static void *run_rank(void *object)
{
    rank_run *r = object;
    zf_status status = ZF_OK;
    for (int k = 0; k < MICRO && !status; k++) {
        feed(r->graph, r->program, k, 0);
        status = k + 1 < MICRO ? zf_micro(r->program) : zf_step(r->program);
    }
    if (status) snprintf(r->said, sizeof r->said, "%.250s", zf_program_error(r->program));
    return NULL;
}

/* The text of the step, after its passes; the caller frees it. NULL with a failed check. */
static char *text_of_step(test *t, const layout *l)
{
    zf_graph *g = zf_graph_new(NULL);
    zf_training training = {.tensor = l->tensor,
                            .context = l->context,
                            .zero = {.world = 1, .micro_batches = MICRO}};
    char *text = NULL;
    size_t size;
    if (!g) abort();
    if (l->pipe > 1) training.stages.ranks = l->pipe;
    if (l->pipe > 1) training.stages.layers = l->layers == 12 ? "4,4,4" : "1,1,1";
    training.loss = build(g, l->layers);
    if (zf_passes(g, &training))
        test_unwind(t, __FILE__, __LINE__, "passes", zf_graph_status(g), zf_graph_error(g));
    else {
        size = zf_graph_text(g, NULL, 0) + 1;
        if (!(text = malloc(size))) abort();
        zf_graph_text(g, text, size);
    }
    zf_graph_free(g);
    return text;
}

static bool start(test *t, rank_run *r, const char *text, zf_comm *comm)
{
    zf_error error = {ZF_OK, ""};
    *r = (rank_run){.graph = zf_graph_parse(text, strlen(text), NULL, &error)};
    if (r->graph) r->program = zf_compile(r->graph, &(zf_compile_desc){.comm = comm, .seed = 3});
    if (!r->program)
        test_unwind(t, __FILE__, __LINE__, "a rank",
                    r->graph ? zf_graph_status(r->graph) : error.status,
                    r->graph ? zf_graph_error(r->graph) : error.text);
    return r->program != NULL;
}

/* Bytes that a rank sends along an axis of so many kinds of groups. */
static size_t sent(const zf_program_info *info, const zf_over *overs, int count)
{
    size_t bytes = 0;
    for (int k = 0; k < count; k++) {
        const zf_traffic *t = &info->counted_over[overs[k]];
        bytes += t->all_gather.bytes + t->reduce_scatter.bytes + t->all_reduce.bytes +
                 t->all_to_all.bytes + t->bcast.bytes + t->send.bytes;
    }
    return bytes;
}

/* A sum over n ranks of a value of so many bytes sends 2 (n-1)/n of them, what gathers or scatters
 * it half as much. */
static size_t part(size_t bytes, int n) { return bytes * (size_t)(n - 1) / (size_t)n; }

/* x, the value between layers, of a rank's tokens. */
static size_t between(const layout *l) { return 4u * BATCH * TOKENS / (size_t)l->context * WIDTH; }

/* Ranks along tensor have parts of the tokens between layers: of two or more. */
static bool deals(const layout *l)
{
    return l->tensor > 1 && TOKENS / l->context > l->tensor;
}

/* Where ranks along tensor have all tokens between layers: a layer sums its two results, and the
 * gradients of its two inputs; the first stage rows of words, and the last one the gradient of its
 * input and four numbers of each row and section of the vocabulary. */
static size_t along_tensor_whole(const layout *l, int stage)
{
    const int t = l->tensor;
    const size_t x = between(l), rows = BATCH * TOKENS / (size_t)l->context,
                 sums = 4 * (size_t)(l->layers / l->pipe) + (stage == 0) + (stage == l->pipe - 1);
    return 2 * sums * part(x, t) +
           (stage == l->pipe - 1 ? 2 * part(4 * rows * (size_t)t * 4, t) : 0);
}

/* A layer gathers its two inputs and scatters its two sums; backward it gathers the gradients of
 * both results, and both inputs again, and scatters two sums; gradients of two norms and two biases
 * are summed. Rows of words are scattered and their gradients gathered, as are those of positions.
 * The head gathers its input twice and scatters its gradient; four numbers of each row and section
 * of the vocabulary are scattered, and gathered twice; gradients of the last norm, and the loss,
 * are summed. */
static size_t along_tensor(const layout *l, int stage)
{
    const int t = l->tensor;
    const size_t x = between(l), rows = BATCH * TOKENS / (size_t)l->context, h = WIDTH;
    size_t bytes = (size_t)(l->layers / l->pipe) * (10 * part(x, t) + 2 * part(4 * 6 * h, t));
    if (t > 1 && !deals(l)) return MICRO * along_tensor_whole(l, stage);
    if (stage == 0) bytes += 2 * part(x, t) + part(4 * TOKENS / (size_t)l->context * h, t);
    if (stage == l->pipe - 1)
        bytes += 3 * part(x, t) + 3 * part(4 * rows * (size_t)t * 4, t) + 2 * part(4 * 2 * h, t) +
                 2 * (size_t)(t - 1) * 4;
    return t > 1 ? MICRO * bytes : 0;
}

/* To the next stage x, of a rank's tokens, and from it the gradient, and where ranks have all tokens
 * that of the bias before the sum that is sent; the embedding, which is the head, once, and its
 * gradient; from the last stage to each other one the loss. */
static size_t along_pipe(const layout *l, int stage)
{
    const size_t x = between(l) / (size_t)(deals(l) ? l->tensor : 1),
                 words = 4u * WORDS * WIDTH / (size_t)l->tensor;
    const bool first = stage == 0, last = stage == l->pipe - 1;
    if (l->pipe == 1) return 0;
    return MICRO * ((size_t)(!first + !last) * x + (last ? words + 4 * (size_t)(l->pipe - 1) : 0) +
                    (first || l->tensor > 1 ? 0 : 4 * WIDTH)) +
           (first ? words : 0);
}

/* q, k, v and what attention makes of them, forward and backward: of a rank's heads. Gradients are
 * summed: of a layer's weights a rank along tensor has its part, and of its biases before a sum.
 * Those of the words are summed for each use, the lookup and the head, since these may be of two
 * stages, whose sums are then added: one stage does the same. Gradients of the positions of a rank's
 * tokens are gathered. The loss is one number, of which no rank has a half. */
static size_t along_context(const layout *l, int stage)
{
    const int c = l->context;
    const bool first = stage == 0, last = stage == l->pipe - 1;
    const size_t h = WIDTH, t = (size_t)l->tensor, layers = (size_t)(l->layers / l->pipe),
                 layer = 12 * h * h / t + 7 * h / t + 6 * h, uses = (size_t)first + last,
                 summed = layers * layer + uses * WORDS * h / t + (last ? 2 * h : 0);
    return c > 1 ? MICRO * (layers * 8 * part(between(l) / t, c) + 2 * part(4 * summed, c) +
                            (first ? part(4 * TOKENS * h, c) : 0) + (last ? 2 * 4 : 0))
                 : 0;
}

/* What is counted of a rank is what its plan says, of each axis, and the formulas. */
static void check(test *t, const rank_run *r, const layout *l, int rank)
{
    static const zf_over tensor[] = {ZF_OVER_TENSOR, ZF_OVER_GROUP, ZF_OVER_COPIES},
                         pipe[] = {ZF_OVER_PIPE}, context[] = {ZF_OVER_CONTEXT};
    const zf_program_info info = zf_program_info_of(r->program);
    const int stage = rank / (l->context * l->tensor);
    CHECK_TEXT(t, r->said, "");
    CHECK(t, !memcmp(info.counted_over, info.plan.traffic_over, sizeof info.counted_over));
    CHECK(t, sent(&info, tensor, 3) == along_tensor(l, stage));
    CHECK(t, sent(&info, pipe, 1) == along_pipe(l, stage));
    CHECK(t, sent(&info, context, 1) == along_context(l, stage));
}

static void run_layout(test *t, const layout *l)
{
    static rank_run ranks[MOST_RANKS];
    const int world = l->pipe * l->context * l->tensor;
    zf_local *local = zf_local_new(&(zf_local_desc){.world = world}, NULL);
    char *text = text_of_step(t, l);
    int made = 0;
    if (!local) abort();
    while (text && made < world && start(t, &ranks[made], text, zf_local_comm(local, made))) made++;
    free(text);
    for (int r = 0; r < made && made == world; r++)
        if (pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r])) abort();
    for (int r = 0; r < made && made == world; r++) {
        pthread_join(ranks[r].thread, NULL);
        check(t, &ranks[r], l, r);
    }
    for (int r = 0; r < made; r++) zf_program_free(ranks[r].program);
    for (int r = 0; r < world; r++) zf_graph_free(ranks[r].graph);
    memset(ranks, 0, sizeof ranks);
    zf_local_free(local);
}

TEST_ONCE(axes_of_a_model_send_what_is_planned)
{
    static const layout layouts[] = {{3, 1, 4, 3}, {1, 1, 4, 2}, {3, 1, 1, 3}, {1, 2, 1, 2},
                                     {1, 2, 2, 2}, {3, 2, 4, 12}};
    for (size_t k = 0; k < sizeof layouts / sizeof layouts[0] && !t->failed; k++)
        run_layout(t, &layouts[k]);
}
