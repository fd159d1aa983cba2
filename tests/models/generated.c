#include "generated.h"
#include "../support/golden.h"

#include "../../examples/frame/model/decoder.h"
#include "../../zeroflow_llm.h"

enum { PROMPTS = 3, LONGEST = 9, GENERATED = 200 };

static void close_decoder(void *d) { decoder_close(d); }

void check_generated(test *t, const generated_case *c)
{
    static decoder d; /* outlive what the test defers */
    static zf_sampler s;
    zf_config_any config = {{0}};
    session_desc desc = {.sample = c->sample, .config = &config, .threads = 1};
    decoder_desc room = {.texts = PROMPTS, .context = LONGEST + GENERATED - 1, .chunk = c->chunk};
    zf_safetensors *golden = open_file(t, c->file);
    zf_error error = {ZF_OK, ""};
    int32_t ids[PROMPTS][LONGEST + GENERATED];
    const int32_t *next[PROMPTS];
    int64_t count[PROMPTS] = {0}, length[PROMPTS] = {0}, size;
    double *prompts, *expected;
    CHECK(t, golden && session_config(c->sample, c->folder, NULL, &config, &error));
    if (zf_config_positions(c->sample->config(), &config) < room.context) /* rope goes on */
        *zf_config_facts_of(c->sample->config(), &config).positions = room.context;
    if (!decoder_open(&d, &room, &desc, c->folder, 0, &error)) {
        test_unwind(t, __FILE__, __LINE__, c->name, error.status, error.text);
        return;
    }
    test_defer(t, close_decoder, &d);
    if (!zf_sampler_open(&s, &(zf_sampling){.top_p = 1, .repetition = c->penalty}, d.steps.vocab)) {
        test_unwind(t, __FILE__, __LINE__, c->name, ZF_ERR_NOMEM, "no sampler");
        return;
    }
    test_defer(t, (test_cleanup *)zf_sampler_close, &s);
    prompts = values_of(golden, "prompts", &size);
    CHECK(t, prompts && size == PROMPTS * LONGEST);
    test_defer(t, free, prompts);
    expected = values_of(golden, c->name, &size);
    CHECK(t, expected && size == PROMPTS * GENERATED);
    test_defer(t, free, expected);
    for (int b = 0; b < PROMPTS; b++) {
        while (length[b] < LONGEST && prompts[b * LONGEST + length[b]] >= 0)
            ids[b][length[b]] = (int32_t)prompts[b * LONGEST + length[b]], length[b]++;
        next[b] = ids[b], count[b] = length[b];
    }
    for (int n = 0; n < GENERATED; n++) {
        if (!zf_decoder_add(&d.steps, next, count, &error)) {
            test_unwind(t, __FILE__, __LINE__, c->name, error.status, error.text);
            return;
        }
        for (int b = 0; b < PROMPTS; b++) {
            int32_t id =
                zf_sampler_draw(&s, d.steps.logits + b * d.steps.vocab, ids[b], length[b], 1);
            CHECK_NEAR(t, id, expected[b * GENERATED + n], 0);
            next[b] = &ids[b][length[b]], count[b] = 1;
            ids[b][length[b]++] = id;
        }
    }
    CHECK(t, !zf_decoder_add(&d.steps, next, (int64_t[PROMPTS]){0, 0, 2}, &error));
    CHECK_TEXT(t, error.text,
               "a text of 208 tokens and 2 more is too long for a context of 208");
    decoder_close(&d);
    zf_sampler_close(&s);
}
