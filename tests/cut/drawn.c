/* Layouts that are drawn: ranks along pipe, data, context and tensor train a model, and losses,
 * norms of gradients, parameters and states have the bits of one rank with as many sections. The
 * ranks save a checkpoint, which one rank loads to be compared, element for element.
 *
 * DRAWN_RUNS=N and DRAWN_SEED=N set how many layouts, and which. What is an error is not drawn
 * (`works`). */
#define _POSIX_C_SOURCE 200809L
#include "small_models.h"

#include <pthread.h>

#include "../../examples/bert/model.h"
#include "../../examples/gpt/model.h"
#include "../../examples/llm/model.h"

enum { RUNS = 4, SEED = 777, STEPS = 2, LAYERS = 4, HEADS = 4, MOST_RANKS = 16, MOST = 1 << 14 };

typedef enum kind { LLAMA, LLAMA_TIED, QWEN2, QWEN3, OLMO2, MIXTRAL, GPT, BERT, KINDS } kind;

/* How ranks share a run; `pipe` is the slowest axis, and tensor the fastest. */
typedef struct drawn {
    kind of;
    int pipe, data, context, tensor, stage, parts; /* parts: of a batch, on all ranks along data */
    int tensors, slices;                           /* sections of tensor and context */
    zf_context_kind how;
    int batch;                                     /* sequences of a micro-batch */
    bool sums;                                     /* ranks are summed once a step */
    zf_dtype dtype;
    bool clips, again, lamb, whole; /* whole: ranks along tensor have all tokens between layers */
    int64_t words;
    zf_pipe_kind schedule;
} drawn;

static int world_of(const drawn *d) { return d->pipe * d->data * d->context * d->tensor; }

static uint64_t state;

static int choose(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static int64_t setting(const char *name, int64_t fallback)
{
    const char *value = getenv(name);
    return value ? strtoll(value, NULL, 10) : fallback;
}

/* Which layouts are no error: sections are of two tokens or more; with `ulysses` they divide the
 * heads of a rank. Norms of heads (Qwen3) are of two heads or more of a rank. */
static bool works(const drawn *d)
{
    const bool chunks = d->schedule == ZF_PIPE_INTERLEAVED || d->schedule == ZF_PIPE_ZB_V,
               deals = d->how == ZF_CONTEXT_ZIGZAG;
    if (d->pipe > 1 && chunks && 2 * d->pipe > LAYERS) return false;
    if (d->of == QWEN3 && d->tensors > HEADS / 2) return false;
    if (d->slices < 2) return d->how == ZF_CONTEXT_ULYSSES;
    if (d->slices * 2 > 2 * TOKENS || (deals && d->slices % (2 * d->context))) return false;
    return d->how != ZF_CONTEXT_ULYSSES || HEADS % (d->tensors * d->slices) == 0;
}

static drawn draw_any(void)
{
    drawn d = {.of = (kind)choose(KINDS), .pipe = 1 << choose(3), .data = 1 << choose(3)};
    const int own =
        1 << choose(3); /* micro-batches of a rank: as many as ranks along pipe, or more */
    d.context = choose(3) ? 1 : 2 << choose(2), d.tensor = 1 << choose(3);
    d.stage = choose(4), d.parts = d.data * (own > d.pipe ? own : d.pipe);
    d.words = choose(2) ? VOCAB : 75;
    d.tensors = d.tensor << choose(2), d.slices = d.context;
    if (d.tensor == 1 && choose(2)) d.tensors = 1;
    if (d.context < 4) d.slices <<= choose(2);
    d.how = (zf_context_kind)choose(ZF_CONTEXT_RING + 1), d.batch = 1 + choose(2),
    d.sums = d.data == 1 && choose(2);
    d.dtype = choose(2) ? ZF_F32 : ZF_BF16;
    d.clips = choose(2), d.again = choose(4) == 0, d.lamb = choose(4) == 0;
    d.whole = choose(4) == 0, d.schedule = (zf_pipe_kind)choose(ZF_PIPE_ZB_V + 1);
    return d;
}

static drawn draw(void)
{
    drawn d = draw_any();
    while (!works(&d) || world_of(&d) < 2 || world_of(&d) > MOST_RANKS) d = draw_any();
    return d;
}

static void say(const drawn *d, char text[300])
{
    static const char *const names[KINDS] = {"Llama", "tied Llama", "Qwen2", "Qwen3", "OLMo 2",
                                             "Mixtral", "GPT", "BERT"},
                             *const kinds[] = {"ulysses", "gather", "zigzag", "ring"};
    snprintf(
        text, 300,
        "%s of %d words, pipe %d data %d context %d (%d sections, %s) tensor %d (%d), stage %d, %d "
        "parts of %d, %s%s%s%s%s%s%s",
        names[d->of], (int)d->words, d->pipe, d->data, d->context, d->slices, kinds[d->how],
        d->tensor, d->tensors, d->stage, d->parts, d->batch, zf_dtype_name(d->dtype),
        d->clips ? ", clipped" : "", d->again ? ", recomputed" : "", d->lamb ? ", LAMB" : "",
        d->sums ? ", summed once" : "",
        d->whole && d->tensors > 1 ? ", all tokens, " : ", ", zf_pipe_kind_name(d->schedule));
}

/* ------------------------------------------------------------------------------------- a model */

static zf_tensor build(zf_graph *g, const drawn *d)
{
    const sample_shape shape = {.batch = d->batch,
                                .sequence = d->slices < TOKENS / 2 ? TOKENS : 2 * TOKENS,
                                .predictions = 2};
    zf_error error = {ZF_OK, ""};
    zf_causal_config l;
    gpt_config p;
    bert_config b;
    if (d->of == GPT && gpt_config_load("small", &p, &error)) {
        p.vocab = d->words, p.hidden = 16, p.layers = LAYERS, p.heads = HEADS, p.intermediate = 32;
        p.positions = 16, p.embedding_dropout = p.attention_dropout = p.residual_dropout = 0;
        gpt_build(g, &p, &shape, SAMPLE_TRAIN);
    } else if (d->of == BERT && bert_config_load("tiny", &b, &error)) {
        b.vocab = d->words, b.hidden = 16, b.layers = LAYERS, b.heads = HEADS, b.intermediate = 32;
        b.positions = 16, b.dropout = b.attention_dropout = 0;
        bert_build(g, &b, &shape, SAMPLE_TRAIN);
    } else if (llm_config_load(d->of == MIXTRAL ? "moe-15m" : "15m", &l, &error)) {
        l.vocab = d->words, l.hidden = 16, l.layers = LAYERS, l.heads = HEADS, l.kv_heads = 2;
        l.width = 4, l.intermediate = 32, l.positions = 16, l.tied = d->of == LLAMA_TIED;
        if (d->of == QWEN2) l.family = ZF_CAUSAL_QWEN2;
        if (d->of == QWEN3) l.family = ZF_CAUSAL_QWEN3, l.kv_heads = HEADS;
        if (d->of == OLMO2) l.family = ZF_CAUSAL_OLMO2, l.kv_heads = HEADS;
        if (d->of == MIXTRAL) l.experts = 4, l.expert_width = 32;
        llm_build(g, &l, &shape, SAMPLE_TRAIN);
    }
    return zf_graph_find(g, "loss");
}

/* ----------------------------------------------------------------------------------- the ranks */

typedef struct rank_run {
    pthread_t thread;
    const drawn *d;
    int rank;
    zf_graph *graph;
    zf_program *program;
    const char *save;     /* where to, at the end; NULL: nowhere */
    float seen[STEPS][2]; /* losses and norms of gradients */
    char said[300];
} rank_run;

static zf_status one_step(rank_run *r, int step)
{
    const drawn *d = r->d;
    const int own = d->parts / d->data, data = r->rank / (d->context * d->tensor) % d->data;
    zf_status status = ZF_OK;
    for (int k = 0; k < own && !status; k++) {
        feed(r->graph, r->program, k * d->data + data, step);
        status = k + 1 < own ? zf_micro(r->program) : zf_step(r->program);
    }
    for (int k = 0; k < 1 + d->clips && !status; k++)
        status = zf_read(r->program, zf_graph_find(r->graph, k ? "grad_norm" : "loss"),
                         &r->seen[step][k], sizeof(float));
    return status;
}

static void *run_rank(void *object)
{
    rank_run *r = object;
    zf_store *store = zf_program_store(r->program);
    zf_status status = ZF_OK;
    for (int step = 0; step < STEPS && !status; step++) status = one_step(r, step);
    if (status) snprintf(r->said, sizeof r->said, "%.250s", zf_program_error(r->program));
    else if (r->save && zf_save(store, r->save, NULL))
        snprintf(r->said, sizeof r->said, "%.250s", zf_store_error(store));
    return NULL;
}

/* The rank's program; false: there is none. */
static bool start(test *t, rank_run *r, const drawn *d, int rank, zf_comm *comm)
{
    zf_training how = {.tensor = d->tensor, .context = d->context, .clip = d->clips ? 0.05 : 0};
    *r = (rank_run){.d = d, .rank = rank, .graph = zf_graph_new(NULL)};
    if (!r->graph) abort();
    how.loss = build(r->graph, d);
    how.sections.tensor = d->tensors, how.sections.context = d->slices;
    if (d->whole && d->tensors > 1) how.sequence = "none";
    if (d->pipe > 1)
        how.stages = (zf_stages_desc){.ranks = d->pipe, .schedule.kind = d->schedule};
    how.precision.dtype = d->dtype;
    if (d->lamb) how.optimizer = ZF_LAMB;
    if (d->again) how.recompute.mode = ZF_RECOMPUTE_LAYERS;
    how.context_kind = d->how;
    how.zero.sum = d->sums ? ZF_SUM_MICRO : ZF_SUM_PARTS;
    how.zero.world = d->data, how.zero.stage = d->stage,
    how.zero.micro_batches = d->parts / d->data;
    if (!zf_passes(r->graph, &how))
        r->program = zf_compile(r->graph, &(zf_compile_desc){.comm = comm, .seed = 3});
    if (!r->program)
        test_unwind(t, __FILE__, __LINE__, "a rank", zf_graph_status(r->graph),
                    zf_graph_error(r->graph));
    return r->program != NULL;
}

static rank_run one, again, ranks[MOST_RANKS];
static zf_local *local;

static void stop(void *unused)
{
    (void)unused;
    for (int r = 0; r < MOST_RANKS + 2; r++) {
        rank_run *x = r < MOST_RANKS ? &ranks[r] : r == MOST_RANKS ? &one : &again;
        zf_program_free(x->program), zf_graph_free(x->graph);
        *x = (rank_run){.rank = 0};
    }
    zf_local_free(local);
    local = NULL;
}

static void run_all(test *t, const drawn *d, const char *path)
{
    const int world = world_of(d);
    local = zf_local_new(&(zf_local_desc){.world = world}, NULL);
    if (!local) abort();
    for (int r = 0; r < world; r++)
        if (!start(t, &ranks[r], d, r, zf_local_comm(local, r))) return;
    for (int r = 0; r < world; r++) {
        ranks[r].save = path;
        if (pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r])) abort();
    }
    for (int r = 0; r < world; r++) pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < world && !t->failed; r++) CHECK_TEXT(t, ranks[r].said, "");
}

/* ----------------------------------------------------------------------------------- comparing */

static void compare_value(test *t, const char *name)
{
    static float want[MOST], got[MOST];
    const size_t bytes = zf_tensor_bytes(zf_graph_find(one.graph, name));
    CHECK(t, bytes <= sizeof want);
    OK(t, zf_read(one.program, zf_graph_find(one.graph, name), want, bytes),
       zf_program_error(one.program));
    OK(t, zf_read(again.program, zf_graph_find(again.graph, name), got, bytes),
       zf_program_error(again.program));
    if (memcmp(want, got, bytes)) test_fail(t, __FILE__, __LINE__, name, "other bits");
}

/* One rank runs; another loads what all have saved. */
static void compare(test *t, const drawn *d, const char *path)
{
    drawn alone = *d;
    zf_node node;
    int compared = 0;
    alone.pipe = alone.data = alone.context = alone.tensor = 1, alone.stage = 0;
    if (!start(t, &one, &alone, 0, NULL) || !start(t, &again, &alone, 0, NULL)) return;
    run_rank(&one);
    CHECK_TEXT(t, one.said, "");
    for (int r = 0; r < world_of(d); r++)
        CHECK(t, !memcmp(ranks[r].seen, one.seen, sizeof one.seen));
    OK(t, zf_load(zf_program_store(again.program), path, NULL),
       zf_store_error(zf_program_store(again.program)));
    for (int32_t k = 0; zf_graph_node(one.graph, k, &node) && !t->failed; k++)
        if ((node.op == ZF_OP_param || node.op == ZF_OP_state) &&
            zf_valid(zf_graph_find(one.graph, node.name)))
            compare_value(t, node.name), compared++;
    CHECK(t, compared > 20);
}

TEST_ONCE(drawn_layouts_have_the_bits_of_one_rank)
{
    static char path[200], text[300];
    const int64_t runs = setting("DRAWN_RUNS", RUNS);
    snprintf(path, sizeof path, "%s", test_path("drawn"));
    test_defer(t, stop, NULL);
    state = (uint64_t)setting("DRAWN_SEED", SEED);
    for (int64_t k = 0; k < runs && !t->failed; k++) {
        const drawn d = draw();
        say(&d, text);
        run_all(t, &d, path);
        if (!t->failed) compare(t, &d, path);
        if (t->failed) test_fail(t, __FILE__, __LINE__, "not the bits of one rank", text);
        stop(NULL);
    }
}
