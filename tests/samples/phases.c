/* Phases of a run: their lengths, rates and tokens by --phase and --curriculum, and mistakes. */
#include "../support/test.h"

#include "../../examples/frame/model/shape_phases.h"

#include <math.h>

static shape_phases p;
static shape_phases_desc o;
static curriculum grows;
static zf_option_texts given;
static zf_error error;

/* The beginning of what the phases are. */
static const char *text_of(void)
{
    static char text[200];
    memcpy(text, p.text, sizeof text - 1);
    return text;
}

/* The options of a run of so many steps, resolved. */
static void begin(int64_t steps)
{
    grows = (curriculum){.min = 0}, given = (zf_option_texts){.count = 0};
    o = (shape_phases_desc){
        .phase = &given,
        .curriculum = &grows,
        .seq = 100,
        .batch = 4,
        .steps = steps,
        .schedule = {.kind = ZF_LINEAR, .peak = 1e-3, .warmup = -1, .steps = steps}};
    error = (zf_error){ZF_OK, ""};
}

/* The tokens of step t by DeepSpeed's formula, at least min rounded up, and max from the last step on. */
static int64_t length_of(int64_t t)
{
    const curriculum *c = &grows;
    const double root = c->schedule == 1 ? c->root : 1;
    int64_t d;
    if (t >= c->steps) return c->max;
    d = (int64_t)floor(pow((double)t / (double)c->steps, 1.0 / root) * (double)(c->max - c->min) +
                       (double)c->min);
    d -= d % c->round;
    while (d < c->min) d += c->round;
    return d < c->max ? d : c->max;
}

TEST(phases_of_a_curriculum_have_its_lengths)
{
    static const curriculum of[] = {{8, 128, 100, 0, 8, 2, NULL, NULL, 0},
                                    {10, 100, 77, 0, 8, 2, NULL, NULL, 0}, /* neither is a multiple */
                                    {8, 64, 50, 1, 8, 2, NULL, NULL, 0},
                                    {9, 60, 300, 1, 3, 3.5, NULL, NULL, 0},
                                    {64, 64, 10, 0, 8, 2, NULL, NULL, 0}};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++)
        for (int64_t steps = 40; steps <= 400; steps += 180) {
            int64_t tokens = 0;
            begin(steps);
            grows = of[k];
            CHECK(t, shape_phases_make(&p, &o, &error));
            for (int64_t done = 0; done < steps; done++) {
                CHECK(t, shape_phases_at(&p, done)->sequence == length_of(done + 1));
                CHECK(t, shape_phases_tokens(&p, done) == tokens);
                tokens += 4 * length_of(done + 1);
            }
            CHECK(t, shape_phases_tokens(&p, steps) == tokens && p.shapes == p.count);
            CHECK(t, o.seq == length_of(steps));
            for (int32_t i = 1; i < p.count; i++) CHECK(t, p.at[i].before == 4 * p.at[i].first);
        }
}

TEST(phases_of_a_discrete_curriculum)
{
    begin(50);
    grows = (curriculum){.schedule = 2, .lengths = "16+64+100", .ends = "10+30"};
    CHECK(t, shape_phases_make(&p, &o, &error));
    CHECK_TEXT(t, text_of(), "10x4x16 20x4x64 20x4x100");
    CHECK(t, shape_phases_at(&p, 9)->sequence == 16 && shape_phases_at(&p, 10)->sequence == 64);
    CHECK(t, shape_phases_at(&p, 49)->sequence == 100 && shape_phases_at(&p, 500)->sequence == 100);
    /* the rate is that of the whole run */
    CHECK_NEAR(t, shape_phases_rate(&p, &o.schedule, 30),
               zf_schedule_at(
                   &(zf_schedule){.kind = ZF_LINEAR, .peak = 1e-3, .steps = 50, .warmup = -1}, 31),
               0);
}

/* 10 x 16, 20 x 64 and 20 x 100 tokens: 3440 tokens of a row, 68.8 a step of the schedule. */
TEST(phases_of_a_curriculum_have_rates_by_tokens)
{
    static const int64_t done[] = {0, 5, 10, 11, 30, 49}, by[] = {0, 1, 2, 3, 20, 48};
    begin(50);
    grows = (curriculum){
        .schedule = 2, .lengths = "16+64+100", .ends = "10+30", .rate = CURRICULUM_BY_TOKENS};
    CHECK(t, shape_phases_make(&p, &o, &error));
    CHECK_TEXT(t, text_of(), "10x4x16 20x4x64 20x4x100 by tokens");
    for (int k = 0; k < 6; k++)
        CHECK_NEAR(t, shape_phases_rate(&p, &o.schedule, done[k]),
                   zf_schedule_at(&o.schedule, by[k] + 1), 0);
    grows.lengths = "64+64", grows.ends = "10"; /* equal steps: those of the run */
    CHECK(t, shape_phases_make(&p, &o, &error));
    for (int64_t k = 0; k < 50; k++)
        CHECK_NEAR(t, shape_phases_rate(&p, &o.schedule, k), zf_schedule_at(&o.schedule, k + 1), 0);
}

/* What is not given is that of the run, and each phase has a warm-up of its own. */
TEST(phases_have_rates_of_their_own)
{
    begin(1000);
    given = (zf_option_texts){{"seq=16,steps=20,batch=8", "steps=10,lr=4e-4,warmup=4,end_lr=1e-4",
                               "steps=5,seq=16,batch=8,warmup=0,lr=0"},
                              3};
    CHECK(t, shape_phases_make(&p, &o, &error));
    CHECK_TEXT(t, text_of(), "20x8x16@0.001:0:2 10x4x100@0.0004:0.0001:4 5x8x16@0:0:0");
    CHECK(t, o.steps == 35 && o.seq == 16 && o.batch == 8 && p.shapes == 2);
    CHECK(t, p.at[2].shape == 0 && p.at[1].before == 160 && p.at[2].before == 200);
    CHECK_NEAR(t, shape_phases_rate(&p, &o.schedule, 0), 5e-4, 1e-12);
    CHECK_NEAR(t, shape_phases_rate(&p, &o.schedule, 1), 1e-3, 1e-12);
    CHECK_NEAR(t, shape_phases_rate(&p, &o.schedule, 20), 1e-4,
               1e-12); /* the first of four steps */
    CHECK_NEAR(t, shape_phases_rate(&p, &o.schedule, 26), 2.5e-4, 1e-12);
    CHECK_NEAR(t, shape_phases_rate(&p, &o.schedule, 29), 1e-4, 1e-12);
    CHECK_NEAR(t, shape_phases_rate(&p, &o.schedule, 31), 0, 0);
    o.schedule.logarithmic = true;
    given = (zf_option_texts){{"steps=10,warmup=4", "steps=10,warmup=4"}, 2};
    CHECK(t, shape_phases_make(&p, &o, &error));
    for (int64_t done = 0; done < 4; done++)
        for (int64_t from = 0; from <= 10; from += 10)
            CHECK_NEAR(t, shape_phases_rate(&p, &o.schedule, from + done),
                       1e-3 * log((double)done + 1) / log(4), 1e-12);
}

TEST(phases_explain_mistakes)
{
    static const struct {
        const char *phase;
        curriculum curriculum;
        const char *message;
    } wrong[] = {
        {"seq=16", {0}, "--phase number 1 needs its steps: steps=N"},
        {"steps=0",
         {0},
         "--phase number 1: steps takes a whole number from 1 to 1000000000000, not '0'"},
        {"steps=5,len=3",
         {0},
         "--phase number 1: there is no option 'len'; there are seq, batch, steps, "
         "lr, warmup, end_lr, every"},
        {NULL,
         {.min = 80, .round = 8, .max = 64, .steps = 5},
         "--curriculum goes from min=80 to max=64, which is less"},
        {NULL,
         {.min = 1, .round = 1, .max = 100, .steps = 900, .root = 1},
         "--curriculum has more than 64 lengths: give a larger round"},
        {NULL,
         {.schedule = 2, .lengths = "16+x"},
         "--curriculum schedule=discrete needs lengths=64+128+256 of 1 to 65536 tokens, and "
         "ends=1000+2000, the last step of each but the last, one more than the other"},
        {NULL,
         {.schedule = 2, .lengths = "16+32", .ends = "5+6"},
         "--curriculum schedule=discrete needs lengths=64+128+256 of 1 to 65536 tokens, and "
         "ends=1000+2000, the last step of each but the last, one more than the other"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        begin(1000);
        grows = wrong[k].curriculum;
        if (wrong[k].phase) given = (zf_option_texts){{wrong[k].phase}, 1};
        CHECK(t, !shape_phases_make(&p, &o, &error));
        CHECK_TEXT(t, error.text, wrong[k].message);
    }
    begin(1000);
    CHECK(t, shape_phases_make(&p, &o, &error) && !p.count && !*p.text && !shape_phases_at(&p, 0));
}
