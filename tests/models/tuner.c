/* Fine-tuning of a folder by the library (zf_tuner), and what a generator and a conversation
 * (zf_talk) say by it. */
#include "../../examples/llm/model.h"
#include "../text/letters.h"
#include "../support/test.h"

#define LLAMA "tests/golden/llm/llama2"
#define PHI3 "tests/golden/llm/phi3"

enum { ROWS = 3, TOKENS = 24, STEPS = 40 };

static const char lines[] = "{\"prompt\": \"abc\", \"response\": \"xyz\"}\n"
                            "{\"prompt\": \"acd\", \"response\": \"xyz\"}\n"
                            "{\"prompt\": \"bcd\", \"response\": \"xyz\"}\n"
                            "{\"prompt\": \"bbd\", \"response\": \"xyz\"}\n";

static const char *model_folder = LLAMA;

static void close_tuner(void *t) { zf_tuner_close(t); }
static void close_session(void *s) { session_close(s); }
static void close_generator(void *g) { zf_generator_close(g); }

/* A tuner of `lines`. */
static bool open_tuner(test *t, zf_tuner *tuner, zf_tokenizer **tokens, const zf_training *training)
{
    const char *path = test_path("tuner.jsonl");
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 1}, &error);
    if (cpu) test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    if ((*tokens = letters(&error))) test_defer(t, free_tokens, *tokens);
    if (cpu && *tokens && write_lines(path, lines) &&
        zf_tuner_open(tuner,
                      &(zf_tuner_desc){.folder = model_folder,
                                       .data = path,
                                       .tokenizer = *tokens,
                                       .backend = cpu,
                                       .training = *training,
                                       .sequence = TOKENS,
                                       .batch = ROWS,
                                       .seed = 5},
                      &error)) {
        test_defer(t, close_tuner, tuner);
        return true;
    }
    test_unwind(t, __FILE__, __LINE__, "tuner", error.status, error.text);
    return false;
}

/* A session of build/llm over the same folder. */
static bool open_session(test *t, session *s, const zf_training *training)
{
    static zf_config_any config;
    session_desc d = {.sample = &llm_sample,
                      .purpose = SAMPLE_TRAIN,
                      .config = &config,
                      .training = *training,
                      .threads = 1,
                      .seed = 5,
                      .shape = {.batch = ROWS, .sequence = TOKENS, .rows = SAMPLE_PACKED}};
    zf_weights_report report;
    zf_error error = {ZF_OK, ""};
    if (!session_config(&llm_sample, model_folder, NULL, &config, &error) || !session_open(s, &d, &error))
        return test_unwind(t, __FILE__, __LINE__, "session", error.status, error.text), false;
    test_defer(t, close_session, s);
    return session_take(s, model_folder, &report, &error);
}

/* Steps have the bits of build/llm's, of all weights and of an adapter. */
static void check_steps(test *t, const zf_training *training)
{
    static zf_tuner tuner; /* outlive what the test defers */
    static session s;
    zf_tokenizer *tokens;
    zf_error error = {ZF_OK, ""};
    const float lr = 1e-2f;
    if (!open_tuner(t, &tuner, &tokens, training) || !open_session(t, &s, training)) return;
    CHECK(t, tuner.data.examples == 4 && tuner.data.held_out == 1);
    for (int k = 0; k < 3; k++) {
        double loss = 0;
        OK(t, !zf_tuner_step(&tuner, (double)lr, &loss, &error), error.text);
        OK(t, session_feed(&s, &tuner.batch, false), zf_program_error(s.program));
        OK(t, zf_write(s.program, s.lr, &lr, sizeof lr), zf_program_error(s.program));
        OK(t, zf_step(s.program), zf_program_error(s.program));
        CHECK(t, loss > 0.1 && (float)loss == (float)session_scalar(&s, "loss"));
    }
    session_close(&s);
    zf_tuner_close(&tuner);
}

TEST_ONCE(tuner_steps_are_those_of_a_session)
{
    check_steps(t, &(zf_training){.clip = 1});
    if (!t->failed && !t->unwound) check_steps(t, &(zf_training){.clip = 1, .lora.rank = 4});
}

static bool answers(zf_generator *g, const zf_tokenizer *tokens, const char *want)
{
    zf_text out = {.at = NULL};
    zf_error error = {ZF_OK, ""};
    const bool good =
        zf_generate(g, tokens, "acd", &(zf_generate_desc){.tokens = 3}, &out, &error) && out.at &&
        !strcmp(out.at, want);
    if (!good) printf("%s, not %s: %s\n", out.at ? out.at : "", want, error.text);
    zf_text_free(&out);
    return good;
}

/* A generator answers by what a tuner has learned so far, and what it saves answers alike. */
TEST_ONCE(tuner_saves_what_it_has_learned)
{
    static zf_tuner tuner; /* outlive what the test defers */
    static zf_generator g, saved;
    static const char *const folders[2] = {"tuner-adapter", "tuner-whole"};
    zf_error error = {ZF_OK, ""};
    for (int k = 0; k < 2 && !t->failed && !t->unwound; k++) {
        const char *folder = test_path(folders[k]);
        zf_tokenizer *tokens;
        zf_adapter *adapter;
        double first = 0, loss = 0;
        if (!open_tuner(t, &tuner, &tokens,
                        &(zf_training){.lora = {.rank = k ? 0 : 4, .alpha = k ? 0 : 16}}))
            return;
        OK(t, !zf_generator_open(&g, &(zf_generator_desc){.tuner = &tuner}, &error), error.text);
        test_defer(t, close_generator, &g);
        OK(t, !zf_tuner_step(&tuner, 1e-2, &first, &error), error.text);
        for (int step = 1; step < STEPS; step++)
            OK(t, !zf_tuner_step(&tuner, 1e-2, &loss, &error), error.text);
        CHECK(t, first > 3 && loss < (k ? 0.01 : 1) && tuner.steps == STEPS);
        CHECK(t, answers(&g, tokens, " x y z"));
        OK(t, !zf_tuner_save(&tuner, folder, &error), error.text);
        if (k) {
            const zf_generator_desc d = {.folder = folder, .backend = tuner.backend};
            OK(t, !zf_generator_open(&saved, &d, &error), error.text);
            test_defer(t, close_generator, &saved);
            CHECK(t, answers(&saved, tokens, " x y z"));
        } else {
            NEED(t, adapter = zf_adapter_open(folder, &error), &error);
            CHECK(t, zf_adapter_desc(adapter)->rank == 4);
            zf_adapter_close(adapter);
        }
        zf_generator_close(&g), zf_generator_close(&saved);
        zf_tuner_close(&tuner);
    }
}

/* A generator has a tuner's weights in pieces where it has. */
TEST_ONCE(tuner_generates_with_sections)
{
    static zf_tuner tuner; /* outlive what the test defers */
    static zf_generator g;
    zf_tokenizer *tokens;
    zf_error error = {ZF_OK, ""};
    double loss = 0;
    model_folder = PHI3;
    const bool good = open_tuner(t, &tuner, &tokens, &(zf_training){.sections.tensor = 2});
    model_folder = LLAMA;
    if (!good) return;
    CHECK(t, zf_valid(zf_graph_find(tuner.graph, "model.layers.0.mlp.gate_up_proj.weight[0:20]")));
    OK(t, !zf_generator_open(&g, &(zf_generator_desc){.tuner = &tuner}, &error), error.text);
    test_defer(t, close_generator, &g);
    for (int step = 0; step < STEPS / 2; step++)
        OK(t, !zf_tuner_step(&tuner, 1e-2, &loss, &error), error.text);
    CHECK(t, answers(&g, tokens, " x y z"));
    zf_generator_close(&g);
    zf_tuner_close(&tuner);
}

/* A conversation by turns, of which caches keep what they have, has the answers of one that is
 * computed from its beginning; a message that does not fit is forgotten. */
TEST_ONCE(tuner_talks_by_turns)
{
    static zf_tuner tuner; /* outlive what the test defers */
    static zf_generator g;
    static const char *const said[2] = {"ab", "cab"};
    const char *folder = test_path("turns"), *path = test_path("turns/of.jinja");
    zf_tokenizer *tokens;
    zf_chat chat;
    zf_talk talk = {.count = 0};
    zf_text out = {.at = NULL}, again = {.at = NULL};
    zf_error error = {ZF_OK, ""};
    zf_generate_desc d = {.tokens = 5, .chat = &chat, .talk = &talk};
    if (!open_tuner(t, &tuner, &tokens, &(zf_training){.lora.rank = 4})) return;
    CHECK(t, zf_folder_make(folder, &error) &&
                 write_lines(test_path("turns/tokenizer_config.json"), "{}"));
    CHECK(t,
          write_lines(path, "{% for m in messages %}{{ '[' + m['content'] + ']' }}{% endfor %}"));
    OK(t, !zf_chat_open(&chat, folder, path, &error), error.text);
    OK(t, !zf_generator_open(&g, &(zf_generator_desc){.tuner = &tuner, .context = 32}, &error),
       error.text);
    test_defer(t, close_generator, &g);
    for (int k = 0; k < 2; k++) {
        zf_text_clear(&out);
        OK(t, !zf_generate(&g, tokens, said[k], &d, &out, &error), error.text);
    }
    CHECK(t, talk.count == 4 && !strcmp(talk.messages[3].text, out.at));
    CHECK(t, talk.seen.count > 8 && g.decoder.past[0] == (int32_t)talk.seen.count);
    talk.seen.count = 0, zf_talk_forget(&talk, 2); /* the same, from its beginning */
    OK(t, !zf_generate(&g, tokens, said[1], &d, &again, &error), error.text);
    CHECK_TEXT(t, again.at, out.at);
    d.tokens = 30;
    CHECK(t, !zf_generate(&g, tokens, "a", &d, &again, &error) && error.status == ZF_ERR_LIMIT);
    CHECK(t, strstr(error.text, "this chat has ") &&
                 strstr(error.text, " for the answer there are more than the context of 32"));
    CHECK(t, talk.count == 4);
    zf_talk_free(&talk);
    zf_chat_close(&chat);
    zf_text_free(&out), zf_text_free(&again);
}

TEST_ONCE(tuner_refusals)
{
    const char *path = test_path("tuner.jsonl");
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokens = letters(&error);
    zf_backend *cpu = zf_cpu_backend(NULL, &error);
    const zf_tuner_desc good = {
        .folder = model_folder, .data = path, .tokenizer = tokens, .backend = cpu, .sequence = 8};
    struct {
        zf_tuner_desc d;
        const char *says;
    } cases[] = {{good, "a tuner has one rank, one micro-batch and one kind of step"},
                 {good, "a tuner's batch of 8 rows of 65 tokens must have at least 1 of each, and "
                        "rows at most the model's 64 positions"},
                 {good, "no-such-folder"},
                 {good, "zf_lora: the target \"nowhere\" is no module of the graph"}};
    zf_tuner tuner;
    zf_generator g;
    CHECK(t, tokens && cpu && write_lines(path, lines));
    cases[0].d.training.zero.micro_batches = 2;
    cases[1].d.sequence = 65;
    cases[2].d.folder = "no-such-folder";
    cases[3].d.training.lora.targets = "nowhere";
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        CHECK(t, !zf_tuner_open(&tuner, &cases[k].d, &error));
        if (!strstr(error.text, cases[k].says)) CHECK_TEXT(t, error.text, cases[k].says);
        CHECK(t, !tuner.program && !tuner.data.ids);
    }
    OK(t, !zf_tuner_open(&tuner, &good, &error), error.text);
    CHECK(t,
          !zf_generator_open(&g, &(zf_generator_desc){.tuner = &tuner, .folder = model_folder}, &error));
    CHECK_TEXT(t, error.text, "with a tuner, model, folder and backend are the tuner's");
    zf_tuner_close(&tuner);
    zf_tokenizer_free(tokens);
    zf_backend_free(cpu);
}
