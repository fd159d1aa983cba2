/* Rollouts: a text depends on its prompt, its number and the seed alone; how answers end; files of
 * prompts. The model is a Llama with 37 ids, and a tokenizer of characters. */
#include "../../examples/frame/model/decoder.h"
#include "../../examples/llm/model.h"
#include "../../zeroflow_llm.h"
#include "../support/test.h"

#include <pthread.h>

#define MODEL "tests/golden/llm/llama2"

enum { IDS = 37, TOKENS = 12, CONTEXT = 40, GROUP = 3 };

static void free_tokens(void *t) { zf_tokenizer_free(t); }
static void free_prompts(void *p) { zf_prompts_free(p); }
static void free_rollouts(void *r) { zf_rollouts_free(r); }
static void free_answer(void *a) { zf_answer_free(a); }
static void close_chat(void *c) { zf_chat_close(c); }

/* a to z are 0 to 25, then a space, digits, and #. */
static zf_tokenizer *characters(zf_error *error)
{
    char text[600];
    int n = snprintf(text, sizeof text,
                     "{\"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"vocab\": {\"a\": 0");
    for (int k = 1; k < IDS; k++)
        n += snprintf(text + n, sizeof text - (size_t)n, ", \"%c\": %d",
                      "abcdefghijklmnopqrstuvwxyz 0123456789#"[k], k);
    n += snprintf(text + n, sizeof text - (size_t)n, "}, \"merges\": []}}");
    return zf_tokenizer_parse(text, (size_t)n, "characters", error);
}

static const char *write_lines(const char *name, const char *lines)
{
    const char *path = test_path(name);
    FILE *f = fopen(path, "wb");
    if (!f || fputs(lines, f) < 0 || fclose(f)) return NULL;
    return path;
}

static const char five[] = "{\"prompt\": \"the owl\", \"answer\": 3}\n"
                           "{\"prompt\": \"a\"}\n\n"
                           "  {\"prompt\": \"one two three four five\"} \n"
                           "{\"prompt\": \"b\"}\n{\"prompt\": \"a\"}\n";

/* What answers have, in one text. */
static void describe(const zf_rollouts *r, char *out, size_t size)
{
    size_t n = 0;
    out[0] = 0;
    for (int64_t k = 0; k < r->count && n < size; k++) {
        const zf_answer *a = &r->answers[k];
        n += (size_t)snprintf(out + n, size - n, "%s %d:", a->text.at ? a->text.at : "",
                              (int)a->finish);
        for (size_t i = a->given; i < a->ids.count && n < size; i++)
            n += (size_t)snprintf(out + n, size - n, " %d/%.9g", (int)a->ids.at[i],
                                  (double)a->logp[i - a->given]);
        if (n < size) n += (size_t)snprintf(out + n, size - n, "\n");
    }
}

enum { SAID = 1 << 14 };

/* One rank of a case. */
typedef struct writer {
    int64_t texts, chunk, threads, iteration, dtype;
    const int64_t *numbers;
    int64_t count;
    zf_answer_desc how;
    const zf_prompts *data;
    const zf_comm *comm;
    char said[SAID];
    zf_error error;
} writer;

static void write_rollouts(writer *w)
{
    zf_causal_config config;
    decoder d;
    session_desc s = {.sample = &llm_sample, .config = &config, .threads = w->threads};
    const decoder_desc room = {.texts = w->texts, .context = CONTEXT, .chunk = w->chunk};
    zf_rollouts r;
    w->error = (zf_error){ZF_OK, ""};
    if (!llm_config_load(MODEL, &config, &w->error) ||
        !decoder_open(&d, &room, &s, MODEL, w->dtype, &w->error))
        return;
    if (zf_rollouts_write(&r, w->data, w->numbers, w->count,
                          &(zf_rollout_desc){.decoder = &d.steps,
                                             .how = &w->how,
                                             .sampling = {.temperature = 0.9},
                                             .seed = 5,
                                             .iteration = w->iteration,
                                             .group = GROUP,
                                             .tokens = TOKENS,
                                             .comm = w->comm},
                          &w->error)) {
        describe(&r, w->said, SAID);
        zf_rollouts_free(&r);
    }
    decoder_close(&d);
}

static void *write_rank(void *w)
{
    const zf_comm *comm = ((writer *)w)->comm;
    write_rollouts(w);
    if (((writer *)w)->error.status)
        comm->abort(comm->self, ((writer *)w)->error.status, ((writer *)w)->error.text);
    return NULL;
}

static const int32_t ends[] = {4, 9, -1};

/* The prompts of `five`, and how they are answered. */
static bool open_writer(test *t, writer *w, zf_prompts *data, const char *lines)
{
    static const int64_t all[] = {0, 1, 2, 3, 4};
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokens = characters(&error);
    const char *path = write_lines("rollouts.jsonl", lines);
    if (!tokens) return test_unwind(t, __FILE__, __LINE__, "tokens", error.status, error.text);
    test_defer(t, free_tokens, tokens);
    *w = (writer){.texts = 4, .threads = 1, .numbers = all, .count = 5, .data = data};
    w->how = (zf_answer_desc){.tokenizer = tokens, .ends = ends, .end_count = 3, .vocab = IDS};
    if (!path || !zf_prompts_read(data, path, &(zf_prompts_desc){.how = &w->how}, &error))
        return test_unwind(t, __FILE__, __LINE__, "prompts", error.status, error.text);
    test_defer(t, free_prompts, data);
    return true;
}

/* Whether the line of answer i in what was said is that of answer k in other things. */
static bool same_line(const char *said, int64_t i, const char *other, int64_t k)
{
    size_t bytes;
    for (; i; i--) said = strchr(said, '\n') + 1;
    for (; k; k--) other = strchr(other, '\n') + 1;
    bytes = strcspn(said, "\n") + 1;
    return !strncmp(said, other, bytes);
}

static void check_same(test *t, const char *said, const char *other)
{
    char text[500];
    size_t at = 0, from;
    if (!strcmp(said, other)) return;
    while (said[at] == other[at]) at++;
    from = at > 40 ? at - 40 : 0;
    snprintf(text, sizeof text, "at byte %zu: %.200s\n    and %.200s", at, said + from,
             other + from);
    test_fail(t, __FILE__, __LINE__, "texts are the same", text);
}

/* Texts, tokens and log-probabilities are the same for any number of rows (which are refilled),
 * steps of prompts, threads, order and choice of prompts; not for another iteration. */
static void check_alone(test *t, int64_t dtype)
{
    static const struct {
        int64_t texts, chunk, threads;
    } ways[] = {{2, 0, 1}, {3, 0, 1}, {15, 0, 2}, {64, 0, 1}, {5, 2, 1}, {7, 3, 2}};
    static const int64_t few[] = {3, 1, 3};
    static writer one, w;
    static zf_prompts data;
    if (!open_writer(t, &one, &data, five)) return;
    one.dtype = dtype;
    write_rollouts(&one);
    OK(t, one.error.status, one.error.text);
    CHECK(t, data.count == 5 && data.at[2].line == 4 && data.at[2].number == 2);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        w = one, w.texts = ways[k].texts, w.chunk = ways[k].chunk, w.threads = ways[k].threads;
        write_rollouts(&w);
        OK(t, w.error.status, w.error.text);
        check_same(t, w.said, one.said);
    }
    w = one, w.numbers = few, w.count = 3;
    write_rollouts(&w);
    OK(t, w.error.status, w.error.text);
    for (int k = 0; k < 2 * GROUP; k++)
        CHECK(t, same_line(w.said, k, one.said, few[k / GROUP] * GROUP + k % GROUP));
    for (int k = 0; k < GROUP * GROUP; k++) /* the same prompt again has other samples */
        CHECK(t, !same_line(w.said, 2 * GROUP + k / GROUP, w.said, k % GROUP));
    for (int k = 1; k < GROUP; k++) { /* other samples, and another line with the same prompt */
        CHECK(t, !same_line(one.said, GROUP + k, one.said, GROUP));
        CHECK(t, !same_line(one.said, GROUP + k, one.said, 4 * GROUP + k));
    }
    w = one, w.iteration = 1;
    write_rollouts(&w);
    OK(t, w.error.status, w.error.text);
    CHECK(t, !same_line(w.said, 0, one.said, 0));
}

TEST_ONCE(rollouts_depend_on_nothing_else) { check_alone(t, 0); }
TEST_ONCE(rollouts_depend_on_nothing_else_in_bf16) { check_alone(t, 1 + ZF_BF16); }

/* Ranks write parts, and all get all, for numbers of them that do not divide the answers too. */
TEST_ONCE(rollouts_are_the_same_on_every_world)
{
    enum { MOST = 4 };
    static writer one, ranks[MOST];
    static zf_prompts data;
    if (!open_writer(t, &one, &data, five)) return;
    one.how.stops = (const char *const[]){"s"}, one.how.stop_count = 1;
    write_rollouts(&one);
    OK(t, one.error.status, one.error.text);
    for (int32_t world = 2; world <= MOST; world += 2) {
        zf_local *group = zf_local_new(&(zf_local_desc){.world = world}, NULL);
        pthread_t threads[MOST];
        NEED(t, group, NULL);
        for (int32_t r = 0; r < world; r++) {
            ranks[r] = one, ranks[r].comm = zf_local_comm(group, r), ranks[r].texts = 2 + r;
            if (pthread_create(&threads[r], NULL, write_rank, &ranks[r])) abort();
        }
        for (int32_t r = 0; r < world; r++) pthread_join(threads[r], NULL);
        zf_local_free(group);
        for (int32_t r = 0; r < world; r++) OK(t, ranks[r].error.status, ranks[r].error.text);
        for (int32_t r = 0; r < world; r++) check_same(t, ranks[r].said, one.said);
    }
}

/* An answer ends with one of the end tokens, which is its last id and no part of its text, or has
 * all tokens that it may have and no end token; or its text ends before a stop. */
TEST_ONCE(rollouts_keep_what_ended_them)
{
    static zf_rollouts r;
    static writer w;
    static zf_prompts data;
    static decoder d;
    zf_causal_config config;
    session_desc s = {.sample = &llm_sample, .config = &config, .threads = 1};
    zf_error error = {ZF_OK, ""};
    zf_rollout_desc desc = {.decoder = &d.steps,
                            .how = &w.how,
                            .sampling = {.temperature = 1.5},
                            .seed = 3,
                            .group = 8,
                            .tokens = TOKENS};
    int64_t finished[3] = {0}, by_end[2] = {0};
    if (!open_writer(t, &w, &data, five)) return;
    w.how.stops = (const char *const[]){"no such text", "s"}, w.how.stop_count = 2;
    CHECK(t, llm_config_load(MODEL, &config, &error));
    if (!decoder_open(&d, &(decoder_desc){.texts = 4, .context = CONTEXT}, &s, MODEL, 0, &error))
        OK(t, error.status, error.text);
    if (!zf_rollouts_write(&r, &data, w.numbers, 5, &desc, &error)) {
        decoder_close(&d);
        OK(t, error.status, error.text);
    }
    decoder_close(&d);
    test_defer(t, free_rollouts, &r);
    CHECK(t, r.count == 40 && r.group == 8 && r.prompts[4] == &data.at[4]);
    for (int64_t k = 0; k < r.count; k++) {
        const zf_answer *a = &r.answers[k];
        const size_t count = a->ids.count - a->given;
        const int32_t last = a->ids.at[a->ids.count - 1];
        const char *text = a->text.at ? a->text.at : "";
        CHECK(t, a->done && count && count <= TOKENS && a->given == r.prompts[k / 8]->ids.count);
        for (size_t i = a->given; i + 1 < a->ids.count; i++)
            CHECK(t, a->ids.at[i] != 4 && a->ids.at[i] != 9);
        for (size_t i = 0; i < count; i++) CHECK(t, a->logp[i] < 0 && a->logp[i] > -20);
        if (a->finish == ZF_FINISH_END)
            CHECK(t, (last == 4 || last == 9) && strlen(text) == count - 1);
        else if (a->finish == ZF_FINISH_LENGTH) CHECK(t, count == TOKENS && strlen(text) == TOKENS);
        else CHECK(t, last == 's' - 'a' && strlen(text) == count - 1);
        CHECK(t, !strchr(text, 's'));
        finished[a->finish]++;
        if (a->finish == ZF_FINISH_END) by_end[last == 9]++;
    }
    CHECK(t, finished[0] && finished[1] && finished[2] && by_end[0] && by_end[1]);
}

/* Without keep_end an end token is no id of the answer, as in zf_generate. */
TEST(rollouts_answers_may_leave_the_end_token_out)
{
    zf_error error = {ZF_OK, ""};
    zf_answer_desc how = {.tokenizer = characters(&error), .ends = ends, .end_count = 3};
    static zf_answer a;
    NEED(t, how.tokenizer, &error);
    test_defer(t, free_tokens, (void *)(uintptr_t)how.tokenizer);
    for (int keep = 0; keep < 2; keep++) {
        a = (zf_answer){.given = 0};
        how.keep_end = keep;
        if (!keep) test_defer(t, free_answer, &a);
        zf_ids_add(&a.ids, 0);
        if (!zf_answer_begin(&a, &how, &error) || !zf_answer_put(&a, &how, 1, &error) ||
            !zf_answer_put(&a, &how, 9, &error))
            OK(t, error.status, error.text);
        CHECK(t, a.done && a.finish == ZF_FINISH_END && a.ids.count == (keep ? 3 : 2));
        CHECK_TEXT(t, a.text.at, "b");
        zf_answer_free(&a);
    }
}

TEST_ONCE(rollouts_that_cannot_be)
{
    static writer w;
    static zf_prompts data;
    if (!open_writer(t, &w, &data, five)) return;
    for (int k = 0; k < 2; k++) {
        w.texts = 1 + k, w.chunk = 1 + !k;
        write_rollouts(&w);
        CHECK_TEXT(t, w.error.text,
                   "a decoder of rollouts has at least 2 texts, and adds at least 2 tokens of a "
                   "prompt at once: products of one row round otherwise than those of several");
    }
    w.texts = w.chunk = 2;
    zf_prompts_free(&data);
    if (!open_writer(t, &w, &data, "{\"prompt\": \"one two three four five six seven\"}\n")) return;
    w.count = 1;
    write_rollouts(&w);
    CHECK_TEXT(t, w.error.text,
               "a prompt of 33 tokens and 12 more are too long for a context of 40");
}

/* ----------------------------------------------------------------------------- files of prompts */

TEST(rollouts_files_that_are_refused)
{
    static const struct {
        const char *lines, *problem;
        int64_t longest;
    } bad[] = {
        {"{\"prompt\": \"a\"}\n[1]\n", "line 2: 1:1: the top value must be an object, not an array",
         0},
        {"\n{\"text\": \"a\"}\n", "line 2: 1:1: the top value lacks \"prompt\"", 0},
        {"{\"prompt\": 3}\n", "line 1: 1:12: prompt must be a text or a list of messages, not 3",
         0},
        {"{\"prompt\": \"\"}\n", "line 1: the prompt is empty, and no token begins a text", 0},
        {"{\"prompt\": \"a\"}\n{\"prompt\": \"abcd\"}\n",
         "line 2: the prompt has 4 tokens, at most 3 fit", 3},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}]}\n",
         "line 1: 1:12: prompt is a list of messages, which needs the style of its chats", 0},
        {"{\"prompt\": \"a9\"}\n",
         "line 1: the token \"9\" of the text has the id 36, and the model has only 36 ids: it "
         "needs the tokenizer that it was trained with",
         0},
        {" \n", "has no prompt", 0},
    };
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokens = characters(&error);
    const zf_answer_desc how = {.tokenizer = tokens, .vocab = IDS - 1};
    NEED(t, tokens, &error);
    test_defer(t, free_tokens, tokens);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        const char *path = write_lines("bad-prompts.jsonl", bad[k].lines);
        char expected[600];
        zf_prompts p;
        CHECK(t, path);
        snprintf(expected, sizeof expected, "%s%s%s", path,
                 strstr(bad[k].problem, "line") ? ": " : " ", bad[k].problem);
        CHECK(t, !zf_prompts_read(&p, path, &(zf_prompts_desc){&how, bad[k].longest}, &error));
        CHECK_TEXT(t, error.text, expected);
    }
}

/* Messages are written by the template, and other members of the line stay. */
TEST(rollouts_prompts_of_messages)
{
    static zf_chat chat;
    static zf_prompts p;
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokens = characters(&error);
    zf_answer_desc how = {.tokenizer = tokens, .chat = &chat};
    const char *path =
                   write_lines("chats.jsonl",
                               "{\"x\": \"\xC3\xA4\xC3\xB6\", \"prompt\" : [{\"role\": \"user\", "
                               "\"content\": \"ab\"}], \"answer\": [\"prompt\"]}\n"
                               "{\"prompt\": \"cd\"}\n"),
               *style = test_path("style.jinja");
    char folder[300];
    FILE *f = fopen(style, "wb");
    NEED(t, tokens, &error);
    test_defer(t, free_tokens, tokens);
    CHECK(t, path && f &&
                 fputs("{% for m in messages %}u{{ m.content }}{% endfor %}"
                       "{% if add_generation_prompt %}x{% endif %}",
                       f) >= 0 &&
                 !fclose(f));
    CHECK(t, write_lines("tokenizer_config.json", "{}"));
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(style, '/') - style), style);
    if (!zf_chat_open(&chat, folder, style, &error)) OK(t, error.status, error.text);
    test_defer(t, close_chat, &chat);
    if (!zf_prompts_read(&p, path, &(zf_prompts_desc){.how = &how}, &error))
        OK(t, error.status, error.text);
    test_defer(t, free_prompts, &p);
    for (int k = 0; k < 2; k++) {
        const int32_t expected[2][4] = {{20, 0, 1, 23}, {20, 2, 3, 23}};
        CHECK(t, p.at[k].ids.count == 4 && !memcmp(p.at[k].ids.at, expected[k], 16));
    }
    CHECK(t, zf_json_length(zf_json_member(p.at[0].data, "answer")) == 1);
}
