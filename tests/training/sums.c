/* The two orders in which the gradients of a step's parts are added (zf_sum_order). */
static const char of_another[] = "of the pipeline, and this rank is of stage",
                  of_others[] = "of the pipeline, and rank";
#include "../stages/staged.h"

static const char step[] = "autograd %94; simplify; clip 0.5; adamw lr",
                  half_step[] = "precision bf16; autograd %94; simplify; clip 0.5; adamw lr";

/* Each stage of ZeRO, gathered for each use or once a step, in f32 and bf16, on ranks along pipe by
 * each kind of schedule, with and without prefetch, and recomputed: all have the bits of stage 0
 * without any of these, which are not those of the order of parts. */
TEST_ONCE(sums_of_micro_batches_are_of_one_order)
{
    static const char *const zeros[] = {"stage=0 sum=micro", "stage=1 sum=micro",
                                        "stage=2 sum=micro", "stage=3 sum=micro",
                                        "stage=3 bucket=300 sum=micro",
                                        "stage=3 sum=micro gather=step"};
    static const char *const kinds[] = {NULL, "gpipe", "zb-v", "zb-h1", "interleaved"};
    static after one[2], some;
    size_t peaks[TEAM_RANKS];
    for (int half = 0; half < 2; half++) {
        made m = {.passes = half ? half_step : step, .zero = zeros[0], .pipe = 1, .data = 2,
                  .micro = 4};
        if (!run_ranks(t, &m, &one[half], peaks)) return;
        m.zero = "stage=0 sum=parts";
        if (!run_ranks(t, &m, &some, peaks)) return;
        CHECK(t, one[half].losses[0] == some.losses[0]);
        CHECK(t, half || memcmp(one[half].values, some.values, sizeof some.values));
    }
    for (int k = 0; k < 12 && !t->failed; k++) {
        made m = {.passes = k & 1 ? half_step : step,
                  .zero = zeros[k / 2],
                  .schedule = kinds[k % 5],
                  .then = k % 3 ? NULL : "; prefetch bytes=100000",
                  .pipe = k % 4 ? 2 : 1,
                  .data = 2,
                  .micro = 4};
        if (m.pipe == 1) m.schedule = NULL;
        if (!run_ranks(t, &m, &some, peaks)) {
            test_fail(t, __FILE__, __LINE__, m.zero, m.schedule ? m.schedule : "1f1b");
            return;
        }
        CHECK(t, !memcmp(&one[k & 1], &some, sizeof some));
    }
}

/* With one rank along data, or one micro-batch, the order is that of parts; so these worlds have
 * equal bits. Two by two have not. */
TEST_ONCE(sums_of_micro_batches_in_other_worlds)
{
    static const struct {
        int data, micro;
        const char *zero;
        bool equal;
    } cases[] = {{1, 4, "stage=2 sum=micro", true},
                 {4, 1, "stage=2 sum=micro", true},
                 {2, 2, "stage=2 sum=parts", true},
                 {2, 2, "stage=2 sum=micro", false}};
    static after one, some;
    size_t peaks[TEAM_RANKS];
    for (int k = 0; k < 4 && !t->failed; k++) {
        made m = {.passes = step, .zero = cases[k].zero, .pipe = 1, .data = cases[k].data,
                  .micro = cases[k].micro, .by_parts = true};
        if (!run_ranks(t, &m, k ? &some : &one, peaks)) return;
        if (k) CHECK(t, cases[k].equal == !memcmp(&one, &some, sizeof one));
    }
}

/* A step of a rank: writes its micro-batches, and runs them. */
static void (*write_micro)(const member *m, int micro);

static void *one_step(void *object)
{
    const member *m = object;
    for (int k = 0; k < making->micro; k++) {
        write_micro(m, k);
        if (k + 1 < making->micro ? zf_micro(m->program) : zf_step(m->program)) break;
    }
    return NULL;
}

static void step_all(test *t, team *m)
{
    for (int r = 0; r < m->world; r++)
        if (pthread_create(&m->members[r].thread, NULL, one_step, &m->members[r])) abort();
    for (int r = 0; r < m->world; r++) pthread_join(m->members[r].thread, NULL);
    for (int r = 0; r < m->world; r++) CHECK_TEXT(t, zf_program_error(m->programs[r]), "");
}

static void write_first(const member *m, int micro) { fill(m, 0, micro); }

/* What ranks along data have sent in a step: bytes of gradients, or of parameters. */
static size_t sent_by(test *t, const char *zero, int pipe, bool params)
{
    const made way = {.passes = "autograd %94; simplify; sgd lr", .zero = zero, .pipe = pipe,
                      .data = 2, .micro = 4};
    char text[TEXT];
    size_t bytes = 0;
    team m;
    write_model(text);
    making = &way, write_micro = write_first;
    if (team_new(t, &m, text, pipe * way.data, false, to_stages)) {
        step_all(t, &m);
        for (int r = 0; r < m.world; r++) {
            const zf_traffic sent = zf_program_info_of(m.programs[r]).counted;
            bytes += params ? sent.all_gather.bytes : sent.reduce_scatter.bytes;
        }
    }
    team_end(&m);
    return bytes;
}

TEST_ONCE(sums_of_micro_batches_are_sent_once)
{
    const size_t once = sent_by(t, "stage=2 sum=micro", 1, false);
    CHECK(t, t->unwound || once > 0);
    CHECK(t, t->unwound || sent_by(t, "stage=2 sum=parts", 1, false) == 4 * once);
    CHECK(t, t->unwound || sent_by(t, "stage=1 sum=micro", 1, false) == once);
    /* where ranks along pipe have stages it is the default */
    CHECK(t, t->unwound || sent_by(t, "stage=2", 2, false) == sent_by(t, "stage=2 sum=micro", 2, false));
    CHECK(t, t->unwound || sent_by(t, "stage=2 sum=parts", 2, false) == 4 * sent_by(t, "stage=2", 2, false));
    CHECK(t, t->unwound || sent_by(t, "stage=2", 1, false) == 4 * once);
}

static const float added[2][2] = {{1, 0x1p25f}, {-0x1p25f, 1}}; /* by rank and micro-batch */

static void write_added(const member *m, int micro)
{
    const float x[2] = {added[m->rank][micro], 0}, lr = 1;
    zf_write(m->program, zf_graph_find(m->graph, "x"), x, sizeof x);
    zf_write(m->program, zf_graph_find(m->graph, "lr"), &lr, sizeof lr);
}

/* At stage 3 each run of uses gathers, of which tasks of a schedule have one each. */
TEST_ONCE(sums_of_micro_batches_with_parameters_gathered_once)
{
    for (int pipe = 1; pipe <= 2 && !t->failed && !t->unwound; pipe++) {
        const size_t once = sent_by(t, "stage=3 gather=step", pipe, true),
                     each = sent_by(t, "stage=3 gather=use", pipe, true);
        CHECK(t, t->unwound || (once > 0 && each >= 4 * (size_t)pipe * once));
        /* as many as stage 1 gathers of the updated parameters */
        CHECK(t, t->unwound || sent_by(t, "stage=1", pipe, true) == once);
    }
}

/* Parameters that are sent in 8 bits are quantised and gathered once, with the bits of each use. */
TEST_ONCE(sums_of_micro_batches_with_parameters_quantised_once)
{
    static after each, once;
    size_t peaks[TEAM_RANKS];
    for (int pipe = 1; pipe <= 2 && !t->failed; pipe++) {
        made m = {.passes = step, .pipe = pipe, .data = 2, .micro = 4};
        m.zero = "stage=3 sum=micro quantized_weights=true";
        if (!run_ranks(t, &m, &each, peaks)) return;
        m.zero = "stage=3 sum=micro quantized_weights=true gather=step";
        if (!run_ranks(t, &m, &once, peaks)) return;
        CHECK(t, !memcmp(&each, &once, sizeof once));
    }
}

/* The gradient of w is x, of which two ranks add 1 and 2^25, and -2^25 and 1: in f32 the order
 * decides what is left. */
TEST_ONCE(sums_of_micro_batches_are_those_of_ranks)
{
    static const char text[] = "%1 = input \"x\" : f32[2,1]\n%2 = input \"lr\" : f32[]\n"
                               "%3 = param \"h.0.w\" : f32[1,1]\n"
                               "%4 = matmul %1, %3 : f32[2,1]\n%5 = reshape %4 {shape=[2]} : f32[2]\n"
                               "%6 = sum %5 : f32[]\noutput %6 \"loss\"\n";
    static const char *const zeros[] = {"stage=2 sum=parts", "stage=2 sum=micro"};
    /* ((1 - 2^25) + 2^25) + 1 and (1 + 2^25) + (-2^25 + 1), in f32 */
    const float parts = ((added[0][0] + added[1][0]) + added[0][1]) + added[1][1],
                micro = (added[0][0] + added[0][1]) + (added[1][0] + added[1][1]);
    CHECK(t, parts != micro);
    for (int k = 0; k < 2 && !t->failed; k++) {
        const made way = {.passes = "autograd %6; simplify; sgd lr", .zero = zeros[k], .pipe = 1,
                          .data = 2, .micro = 2};
        team m;
        float w = 0;
        making = &way, write_micro = write_added;
        if (team_new(t, &m, text, 2, false, to_stages)) {
            step_all(t, &m);
            zf_read(m.programs[0], zf_graph_find(m.members[0].graph, "h.0.w"), &w, sizeof w);
            CHECK(t, t->unwound || w == -(k ? micro : parts));
        }
        team_end(&m);
    }
}

TEST(sums_of_micro_batches_are_not_for_loco)
{
    char text[TEXT], message[600] = "";
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    write_model(text);
    g = team_parsed(t, text, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    if (pass_run(g, "autograd %94; simplify; sgd lr; zero stage=2 world=2 micro_batches=2 sum=micro "
                    "quantized_gradients=true loco=true",
                 NULL, message, sizeof message) == PASS_DONE)
        test_fail(t, __FILE__, __LINE__, "loco", "is refused");
    if (zf_graph_status(g) == ZF_ERR_NOMEM) OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_zero: loco adds what it has rounded off to the next micro-batch's gradient: sum "
               "must be parts, not micro");
}
