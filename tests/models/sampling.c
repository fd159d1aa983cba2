/* The next token, against the logits processors of transformers (tests/golden/sampling/make.py). */
#include "../../zeroflow_llm.h"
#include "../support/test.h"

static void free_json(void *json) { zf_json_free(json); }

static void compare(test *t, const zf_json *v)
{
    double top_k = 0, number = 0;
    zf_sampling how = {.top_p = 1};
    zf_sampler s;
    float logits[24];
    int32_t seen[12], drawn;
    int64_t id = 0;
    int n = 0;
    zf_error error = {ZF_OK, ""};
    zf_json_to_double(zf_json_member(v, "temperature"), 0, 9, &how.temperature, &error);
    zf_json_to_double(zf_json_member(v, "top_k"), 0, 99, &top_k, &error);
    zf_json_to_double(zf_json_member(v, "top_p"), 0, 1, &how.top_p, &error);
    zf_json_to_double(zf_json_member(v, "repetition"), 0, 9, &how.repetition, &error);
    how.top_k = (int64_t)top_k;
    for (const zf_json *x = zf_json_first(zf_json_member(v, "logits")); x; x = zf_json_next(x)) {
        zf_json_to_double(x, -99, 99, &number, &error);
        logits[n++] = (float)number;
    }
    n = 0;
    for (const zf_json *x = zf_json_first(zf_json_member(v, "seen")); x; x = zf_json_next(x)) {
        zf_json_to_int(x, 0, 23, &id, &error);
        seen[n++] = (int32_t)id;
    }
    OK(t, error.status, error.text);
    if (!zf_sampler_open(&s, &how, 24)) OK(t, ZF_ERR_NOMEM, "out of memory");
    for (n = 0; n < 24; n++) s.p[n] = 0;
    drawn = zf_sampler_draw(&s, logits, seen, 12, UINT64_MAX / 2);
    n = 0;
    for (const zf_json *x = zf_json_first(zf_json_member(v, "p")); x; x = zf_json_next(x), n++) {
        zf_json_to_double(x, 0, 1, &number, &error);
        if (fabs(s.p[n] - number) > 1e-6) {
            char text[100];
            snprintf(text, sizeof text, "token %d of %g %g: %g, not %g", n, top_k, how.top_p,
                     s.p[n], number);
            zf_sampler_close(&s);
            test_fail(t, __FILE__, __LINE__, "a probability is that of transformers", text);
            return;
        }
    }
    number = s.p[drawn];
    zf_sampler_close(&s);
    CHECK(t, number > 0);
}

TEST_ONCE(sampling_as_transformers)
{
    zf_error error = {ZF_OK, ""};
    zf_json *cases = zf_json_read("tests/golden/sampling/cases.json", NULL, &error);
    NEED(t, cases, &error);
    test_defer(t, free_json, cases);
    for (const zf_json *v = zf_json_first(cases); v && !t->failed && !t->unwound;
         v = zf_json_next(v))
        compare(t, v);
}

static int32_t draw(double temperature, const float *from, int64_t count, uint64_t dice)
{
    float logits[5];
    zf_sampler s;
    int32_t id;
    if (!zf_sampler_open(&s, &(zf_sampling){temperature, 0, 1, 1}, count)) return -1;
    for (int64_t v = 0; v < count; v++) logits[v] = from[v];
    id = zf_sampler_draw(&s, logits, NULL, 0, dice);
    zf_sampler_close(&s);
    return id;
}

TEST_ONCE(sampling_by_probability)
{
    const float logits[] = {-1, 0, 0, -INFINITY, 0.5f};
    int drawn[5] = {0};
    if (draw(0, logits, 5, 99) < 0) OK(t, ZF_ERR_NOMEM, "out of memory");
    CHECK(t, draw(0, logits, 5, 99) == 4);
    CHECK(t, draw(0, logits, 4, 99) == 1); /* the first of equal ones */
    CHECK(t, draw(1, logits, 5, 0) == 0);
    CHECK(t, draw(1, logits, 5, UINT64_MAX) == 4);
    for (uint64_t i = 0; i < 1000; i++) {
        int32_t id = draw(0.5, logits, 5, i * (UINT64_MAX / 1000));
        if (id < 0) OK(t, ZF_ERR_NOMEM, "out of memory");
        drawn[id]++;
    }
    /* exp(2 x): 0.1353, 1, 1, 0, 2.7183 of 4.8536 */
    CHECK(t, abs(drawn[0] - 28) <= 1 && abs(drawn[1] - 206) <= 1 && abs(drawn[2] - 206) <= 1);
    CHECK(t, drawn[3] == 0 && abs(drawn[4] - 560) <= 1);
}

/* Also of a number of tokens that is no multiple of those that are computed together. */
TEST_ONCE(sampling_probabilities)
{
    float logits[131];
    for (int64_t count = 1; count <= 131; count += 5) {
        double sum = 0, worst = 0;
        zf_sampler s;
        if (!zf_sampler_open(&s, &(zf_sampling){0.7, 0, 1, 1}, count))
            OK(t, ZF_ERR_NOMEM, "out of memory");
        for (int64_t v = 0; v < count; v++) logits[v] = (float)(v * 37 % 101) * -0.37f;
        if (count > 9) logits[7] = -INFINITY, logits[9] = -600; /* e^-857 is no number above 0 */
        zf_sampler_draw(&s, logits, NULL, 0, 5);
        for (int64_t v = 0; v < count; v++) sum += exp(logits[v] / 0.7);
        for (int64_t v = 0; v < count; v++) {
            const double p = exp(logits[v] / 0.7) / sum, away = fabs(s.p[v] - p);
            if (away > 2e-14 * p) worst = away;
        }
        zf_sampler_close(&s);
        CHECK(t, worst == 0);
    }
}
