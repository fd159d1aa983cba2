/* Mistakes that are planted into a step of a model on ranks along pipe, data and tensor: a sum that
 * is left out, one over other ranks, a collective along another dimension, a send above what it
 * sends, another divisor. The verifier finds each of them. */
#include "small_models.h"

#include "../../examples/llm/model.h"

enum { STEP_TEXT = 1 << 16, LINE = 400 };

/* The text of a Llama's step on 8 ranks. */
static const char *step_text(test *t)
{
    static char text[STEP_TEXT];
    const sample_shape shape = {.batch = 2, .sequence = TOKENS};
    const zf_training how = {.tensor = 2,
                             .stages.ranks = 2,
                             .clip = 0.5,
                             .zero = {.stage = 1, .world = 2, .micro_batches = 2}};
    zf_training training = how;
    zf_graph *g = zf_graph_new(NULL);
    zf_error error = {ZF_OK, ""};
    zf_causal_config c;
    if (!g || !llm_config_load("15m", &c, &error)) abort();
    c.vocab = VOCAB, c.hidden = 16, c.layers = 2, c.heads = 4, c.kv_heads = 2, c.width = 4;
    c.intermediate = 32, c.positions = 16;
    llm_build(g, &c, &shape, SAMPLE_TRAIN);
    training.loss = zf_graph_find(g, "loss");
    if (zf_passes(g, &training))
        test_unwind(t, __FILE__, __LINE__, "passes", zf_graph_status(g), zf_graph_error(g));
    else if (zf_graph_text(g, text, sizeof text) >= sizeof text) abort();
    zf_graph_free(g);
    return text;
}

/* What is planted into the line of text, which ends at `end`. */
typedef struct mistake {
    const char *kind, *in, *from, *to; /* in a line with `in`, from becomes to */
    /* A part of each message, which may be that a sum is still to be made as well; NULL: any */
    const char *error;
} mistake;

/* Writes text with the change of one line; false: the line has not what is changed. */
static bool plant(char *out, const char *text, const char *line, const mistake *m)
{
    const size_t length = strcspn(line, "\n") + 1;
    char copy[LINE], *in;
    if (length >= LINE) return false;
    memcpy(copy, line, length), copy[length] = '\0';
    if (!strstr(copy, m->in) || !(in = strstr(copy, m->from))) return false;
    *in = '\0';
    snprintf(out, STEP_TEXT, "%.*s%s%s%s%s", (int)(line - text), text, copy, m->to,
             in + strlen(m->from), line + length);
    return true;
}

/* The same without a line "%5 = all_reduce %4 ...": readers of %5 read %4. */
static bool leave_out(char *out, const char *text, const char *line, const mistake *m)
{
    const size_t length = strcspn(line, "\n") + 1;
    const char *in = strstr(line, m->in), *at = text;
    char *to = out;
    int from = 0, by = 0;
    const char *has = strstr(line, m->from);
    if (!in || in >= line + length || !has || has >= line + length ||
        sscanf(line, "%%%d", &from) != 1 ||
        sscanf(in + strlen(m->in), "%%%d", &by) != 1)
        return false;
    while (*at && to < out + STEP_TEXT - 20) {
        if (at == line) at += length;
        if (*at == '%' && atoi(at + 1) == from) {
            to += sprintf(to, "%%%d", by);
            for (at++; *at >= '0' && *at <= '9';) at++;
        } else *to++ = *at++;
    }
    *to = '\0';
    return true;
}

/* The same with a line "%5 = send %4 ..." above that of %4. */
static bool move_up(char *out, const char *text, const char *line, const mistake *m)
{
    const size_t length = strcspn(line, "\n") + 1;
    const char *in = strstr(line, m->in);
    char made[20];
    int by = 0;
    const char *at;
    if (!in || in >= line + length || sscanf(in + strlen(m->in), "%%%d", &by) != 1) return false;
    snprintf(made, sizeof made, "\n%%%d ", by);
    if (!(at = strstr(text, made)) || at > line) return false;
    snprintf(out, STEP_TEXT, "%.*s%.*s%.*s%s", (int)(at + 1 - text), text, (int)length, line,
             (int)(line - at - 1), at + 1, line + length);
    return true;
}

typedef bool change(char *out, const char *text, const char *line, const mistake *m);

/* Plants a mistake at each place of the text where it can be, one at a time; returns their
 * number. */
static int plant_each(test *t, const char *text, change *how, const mistake *m)
{
    static char planted[STEP_TEXT];
    int count = 0;
    for (const char *line = text; *line && !t->failed; line += strcspn(line, "\n") + 1) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        if (!how(planted, text, line, m)) continue;
        g = zf_graph_parse(planted, strlen(planted), NULL, &error);
        count++;
        if (error.status == ZF_ERR_NOMEM)
            return test_unwind(t, __FILE__, __LINE__, m->kind, error.status, error.text), count;
        if (g) test_fail(t, __FILE__, __LINE__, m->kind, planted);
        if (m->error && !strstr(error.text, m->error) && !strstr(error.text, "still to be made"))
            test_fail(t, __FILE__, __LINE__, m->error, error.text);
        zf_graph_free(g);
    }
    return count;
}

TEST_ONCE(planted_mistakes_of_axes_are_found)
{
    static const mistake left_out[] = {
        {"no sum over tensor", "= all_reduce ", "over=tensor", "", "+tensor"},
        {"no scattered sum over tensor", "= reduce_scatter ", "over=tensor", "", NULL},
        {"no gather over tensor", "= all_gather ", "over=tensor", "", NULL},
        {"no sum over data", "= all_reduce ", "over=data", "", NULL},
        {"no scattered sum over data", "= reduce_scatter ", "over=data", "", NULL},
        {"no gather over data", "= all_gather ", "over=data", "", NULL},
        {"no send", "= send ", "over=pipe", "", "which must be sent"},
        {"no bcast", "= bcast ", "over=pipe", "", "which a bcast over pipe must bring"}};
    static const mistake sends = {"a send above its operand", "= send ", "", "",
                                  "is not defined above"};
    static const mistake changed[] = {
        {"tensor for pipe", "", "over=tensor", "over=pipe", NULL},
        {"tensor for data", "", "over=tensor", "over=data", NULL},
        {"data for tensor", "", "over=data", "over=tensor", NULL},
        {"data for pipe", "", "over=data", "over=pipe", NULL},
        {"pipe for tensor", "", "over=pipe", "over=tensor", NULL},
        {"another dimension", "over=tensor", "dim=1", "dim=0", NULL},
        {"another receiver", "= send ", "to=1", "from=1", "it sends from=1 to=0"}};
    const char *text = step_text(t);
    if (t->unwound) return;
    for (size_t k = 0; k < sizeof left_out / sizeof left_out[0]; k++)
        CHECK(t, plant_each(t, text, leave_out, &left_out[k]) > 0);
    CHECK(t, plant_each(t, text, move_up, &sends) > 3);
    for (size_t k = 0; k < sizeof changed / sizeof changed[0]; k++)
        CHECK(t, plant_each(t, text, plant, &changed[k]) > 0);
}

/* The loss of a step is a mean: it and gradients are divided by the parts of the global batch. */
TEST_ONCE(planted_divisors_are_found)
{
    static const char text[] =
        "zero stage=1 world=2 micro_batches=2\n"
        "%1 = param \"w\" : f32[8,8]\n%2 = bucket %1 {at=[0] size=2048} : f32[2048]\n"
        "%3 = input \"x\" : f32[4,8]\n%4 = input \"lr\" : f32[]\n"
        "%5 = view %2 {shape=[8,8]} : f32[8,8]\n%6 = linear %3, %5 : f32[4,8]\n"
        "%7 = reshape %6 {shape=[32]} : f32[32]\n%8 = sum %7 : f32[]\n"
        "%9 = matmul %6, %3 {transpose_a=true} : f32[8,8]\n"
        "%10 = pack %9 {at=[0] size=2048} : f32[2048]\n%11 = accumulator : f32[1024]\n"
        "%12 = reduce_scatter %10, %11 {world=2} : f32[1024]\n"
        "%13 = pack %8 {at=[0] size=1} : f32[1]\n%14 = accumulator : f32[1]\n"
        "%15 = all_reduce %13, %14 {world=2} : f32[1]\n%16 = view %15 : f32[]\n"
        "%17 = scale %16 {by=0.25} : f32[]\noutput %17 \"loss\" role=loss\nupdate:\n"
        "%18 = scale %12 {by=0.25} : f32[1024]\ngradient %2, %18\n"
        "%19 = shard %2 {world=2} : f32[1024]\n"
        "sgd %19, %18, %4 {world=2 blocks=[0,1] decays=[0]}\n"
        "%20 = all_gather %19, %2 {world=2} : f32[2048]\n";
    static const mistake divisors[] = {
        {"loss", "", "%16 {by=0.25}", "%16 {by=0.5}",
         "%17 is the sum over the global batch times 0.5, and its parts are 4"},
        {"gradient", "", "%12 {by=0.25}", "%12 {by=0.5}",
         "%18 is not divided by the 4 parts of the global batch, by which the loss is"},
        {"none", "", "sgd %19, %18", "sgd %19, %12", "%12 is not divided by the 4 parts"}};
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_parse(text, strlen(text), NULL, &error);
    NEED(t, g, &error);
    zf_graph_free(g);
    for (size_t k = 0; k < sizeof divisors / sizeof divisors[0]; k++)
        CHECK(t, plant_each(t, text, plant, &divisors[k]) == 1);
}
