/* The commands generate, which continues texts or answers, all texts at once, and chat. */
#include "../model/causal.h"
#include "../../../zeroflow_llm.h"
#include "../options/command.h"
#include "../model/decoder.h"
#include "../options/fail.h"
#include "../options/folder.h"

#include <stdlib.h>
#include <string.h>

enum { ENDS = ZF_CONFIG_ENDS + 2, PROMPTS = 256 };

typedef struct writer {
    decoder decoder;
    zf_wordpiece *words; /* one of these two */
    zf_tokenizer *tokens;
    zf_chat chat;
    zf_option_texts stops; /* texts that end the answer */
    int64_t context;    /* tokens of a text for which there is room */
    int32_t ends[ENDS]; /* tokens that end a text; -1: none */
    int32_t begin;      /* of words: the token before a text */
    zf_answer_desc how; /* of all answers */
    zf_answer rows[PROMPTS];
    int64_t count; /* rows */
    zf_sampler sampler;
    bool framed; /* prompts are messages of a chat */
} writer;

/* ------------------------------------------------------------------------------------- texts */

static bool is_end(const writer *w, int32_t id)
{
    for (int k = 0; k < ENDS; k++)
        if (w->ends[k] == id) return true;
    return false;
}

static bool encode_words(writer *w, zf_answer *r, const char *prompt)
{
    int64_t count = zf_wordpiece_encode(w->words, prompt, strlen(prompt), 0, NULL, 0);
    int32_t *ids = malloc((size_t)(count + 1) * sizeof *ids);
    r->ids.failed = !ids;
    if (ids) zf_wordpiece_encode(w->words, prompt, strlen(prompt), 0, ids, count);
    zf_ids_add(&r->ids, w->begin); /* a text begins after the end of another */
    for (int64_t i = 0; ids && i < count; i++) zf_ids_add(&r->ids, ids[i]);
    free(ids);
    return !r->ids.failed;
}

/* Messages, and the beginning of an answer. */
static bool encode_chat(const writer *w, const zf_chat_message *m, size_t count, zf_ids *ids,
                        zf_error *error)
{
    zf_text text = {.at = NULL};
    zf_json *chat = zf_chat_of(m, count, error);
    bool good = chat && zf_chat_write(&w->chat, chat, true, &text, NULL, error) &&
                zf_tokenizer_encode(w->tokens, text.at, text.count, 0, ids, error);
    zf_json_free(chat);
    zf_text_free(&text);
    return good;
}

static bool encode_tokens(writer *w, zf_answer *r, const char *prompt, zf_error *error)
{
    const zf_chat_message m = {"user", prompt, strlen(prompt)};
    bool good = w->framed ? encode_chat(w, &m, 1, &r->ids, error)
                          : zf_tokenizer_encode(w->tokens, m.text, m.bytes, ZF_TOKENIZER_FRAME,
                                                &r->ids, error);
    /* If a post_processor adds an end token to the prompt, it is removed. */
    while (good && !w->framed && r->ids.count > 1 && is_end(w, r->ids.at[r->ids.count - 1]))
        r->ids.count--;
    return good;
}

static bool begin_row(writer *w, zf_answer *r, const char *prompt, zf_error *error)
{
    *r = (zf_answer){.given = 0};
    if (w->tokens ? !encode_tokens(w, r, prompt, error) : !encode_words(w, r, prompt))
        return error->status ? false : fail(error, ZF_ERR_NOMEM, "out of memory");
    if (!w->framed) zf_text_add_string(&r->text, prompt);
    return zf_answer_begin(r, &w->how, error);
}

/* Prints new text. */
static void show(const writer *w, zf_answer *r)
{
    size_t bytes;
    const char *text = zf_answer_shown(r, &w->how, &bytes);
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

/* ------------------------------------------------------------------------------------- steps */

/* Adds the last `count[k]` tokens of each row. Where there is no room for them, which happens to
 * texts of words alone, goes on with the last half of the context. */
static bool add(writer *w, int64_t *count, zf_error *error)
{
    const int32_t *ids[PROMPTS];
    for (int64_t k = 0; k < w->count; k++) {
        const zf_ids *l = &w->rows[k].ids;
        if (w->decoder.steps.past[k] + count[k] > w->context) {
            zf_decoder_rewind(&w->decoder.steps, k, 0);
            count[k] = (w->context + 1) / 2;
        }
        ids[k] = l->at + l->count - count[k];
    }
    return zf_decoder_add(&w->decoder.steps, ids, count, error);
}

/* How many rows before row k have its prompt. */
static int64_t sample_of(const writer *w, int64_t k)
{
    const zf_answer *r = &w->rows[k];
    int64_t sample = 0;
    for (int64_t i = 0; i < k; i++)
        sample += w->rows[i].given == r->given &&
                  !memcmp(w->rows[i].ids.at, r->ids.at, r->given * sizeof *r->ids.at);
    return sample;
}

/* Draws the next token of all rows, and sets how many tokens the model is to see next. False where
 * no row goes on, or with *error. */
static bool step(writer *w, uint64_t seed, int64_t *count, zf_error *error)
{
    bool going = false;
    for (int64_t k = 0; k < w->count; k++) {
        zf_answer *r = &w->rows[k];
        int32_t id;
        count[k] = 0;
        if (r->done) continue;
        id = zf_sampler_draw(&w->sampler, w->decoder.steps.logits + k * w->decoder.steps.vocab,
                             r->ids.at, (int64_t)r->ids.count,
                             zf_sampler_dice(seed, r->ids.at, r->given, sample_of(w, k),
                                             (int64_t)r->ids.count));
        if (!zf_answer_put(r, &w->how, id, error)) return false;
        if (w->count == 1) show(w, r);
        count[k] = !r->done;
        going = going || !r->done;
    }
    return going;
}

static bool write_all(writer *w, int64_t most, uint64_t seed, const zf_sampling *how,
                      zf_error *error)
{
    int64_t count[PROMPTS];
    for (int64_t k = 0; k < w->count; k++) count[k] = (int64_t)w->rows[k].ids.count;
    if (!zf_sampler_open(&w->sampler, how, w->decoder.steps.vocab))
        return fail(error, ZF_ERR_NOMEM, "out of memory");
    if (w->count == 1) show(w, &w->rows[0]);
    for (int64_t n = 0; n < most && !error->status; n++)
        if (!add(w, count, error) || !step(w, seed, count, error)) break;
    for (int64_t k = 0; k < w->count && !error->status; k++) {
        zf_answer *r = &w->rows[k];
        if (!r->done && !zf_answer_put(r, &w->how, -1, error)) break;
        r->done = true;
        show(w, r);
        printf("\n");
    }
    return !error->status;
}

/* --------------------------------------------------------------------------------- beginning */

/* The number of tokens for which there is to be room. Positions after the sequence length of a
 * checkpoint's run have not been trained. */
static bool context_of(const char *load, int64_t positions, int64_t most, writer *w, zf_error *error)
{
    char sequence[40];
    int64_t longest = 0;
    for (int64_t k = 0; k < w->count; k++)
        if ((int64_t)w->rows[k].given > longest) longest = (int64_t)w->rows[k].given;
    w->context = positions;
    if (zf_folder_is_checkpoint(load)) {
        if (zf_checkpoint_note(load, "seq", sequence, sizeof sequence, error)) return false;
        w->context = strtoll(sequence, NULL, 10);
    }
    if (w->tokens && longest + most > w->context)
        return fail(error, ZF_ERR_ARGUMENT,
                    "a prompt of %lld tokens and %lld more are too long for a context of %lld: "
                    "shorten it, or give fewer --tokens",
                    (long long)longest, (long long)most, (long long)w->context);
    if (longest + most < w->context) w->context = longest + most;
    return true;
}

/* The options of generate and chat. */
typedef struct request {
    folder_options from;
    const char *chat, *chat_vars, *date;
    zf_option_texts stop;
    int64_t tokens, seed;
    zf_sampling how;
    bool no_thinking;
    const char *prompt, *prompts; /* of generate */
    const char *system;           /* of chat */
    int64_t context;
} request;

/* The template of chats, and the tokens by which it ends an answer. */
static bool open_chat(writer *w, const request *q, const char *folder, const char *style,
                      zf_error *error)
{
    char end[ZF_CHAT_TOKEN] = "";
    if (!zf_chat_open(&w->chat, folder, strcmp(style, "auto") ? style : NULL, error) ||
        !zf_chat_set_date(&w->chat, q->date, true, error))
        return false;
    if (*w->chat.end) w->ends[ENDS - 1] = zf_tokenizer_id(w->tokens, w->chat.end);
    if (!w->framed) return true;
    if (!w->chat.plain)
        return fail(error, ZF_ERR_ARGUMENT, "%s has no chat_template: name a style, --chat %s",
                    folder, ZF_CHAT_STYLES);
    if (!zf_chat_fits(&w->chat, w->tokens, error) ||
        (q->no_thinking && !zf_chat_set_silent(&w->chat, error)) ||
        (q->chat_vars && !zf_chat_set_variables(&w->chat, q->chat_vars, error)) ||
        !zf_chat_end(&w->chat, end, error))
        return false;
    if (*end) w->ends[ENDS - 2] = zf_tokenizer_id(w->tokens, end);
    return true;
}

/* The tokenizer of a folder, and the tokens by which it ends a text. */
static bool read_tokenizer(writer *w, const request *q, zf_error *error)
{
    const char *folder = q->from.tokenizer ? q->from.tokenizer : q->from.load,
               *style = q->chat ? q->chat : "none";
    w->framed = strcmp(style, "none");
    if (!zf_folder_has_bpe(folder)) {
        if (w->framed)
            return fail(error, ZF_ERR_ARGUMENT,
                        "--chat needs a tokenizer with a BPE model; %s has none", folder);
        if (!(w->words = zf_folder_vocab(folder, NULL, error))) return false;
        if (w->ends[0] < 0) w->ends[0] = zf_wordpiece_id(w->words, "[SEP]");
        w->begin = w->ends[0];
        return true;
    }
    if ((q->no_thinking || q->chat_vars) && !w->framed)
        return fail(error, ZF_ERR_ARGUMENT, "--%s is for chats: --chat auto, or a style",
                    q->no_thinking ? "no-thinking" : "chat-vars");
    return (w->tokens = zf_tokenizer_open(folder, error)) &&
           open_chat(w, q, folder, style, error);
}

/* The same, and how answers are written. */
static bool open_tokenizer(writer *w, const request *q, int64_t vocab, zf_error *error)
{
    if (!read_tokenizer(w, q, error)) return false;
    w->how = (zf_answer_desc){.tokenizer = w->tokens,
                              .words = w->words,
                              .ends = w->ends,
                              .end_count = ENDS,
                              .stops = w->stops.at,
                              .stop_count = w->stops.count,
                              .vocab = vocab};
    return true;
}

/* Begins a row for each line of the text, which is cut into them. */
static bool begin_lines(writer *w, zf_text *text, const char *path, zf_error *error)
{
    for (char *line = text->at, *next; line < text->at + text->count; line = next) {
        const size_t bytes = strcspn(line, "\n");
        next = line + bytes + 1;
        line[bytes] = 0;
        line[strcspn(line, "\r")] = 0;
        if (w->count == PROMPTS)
            return fail(error, ZF_ERR_FORMAT, "%s has more than %d lines", path, PROMPTS);
        if (!begin_row(w, &w->rows[w->count++], line, error)) return false;
    }
    return w->count || fail(error, ZF_ERR_FORMAT, "%s is empty", path);
}

/* Begins a row for the prompt, or one for each line of a file. */
static bool begin_rows(writer *w, const char *prompt, const char *path, zf_error *error)
{
    zf_text text = {.at = NULL};
    bool good;
    if (!path) {
        w->count = 1;
        return begin_row(w, &w->rows[0], prompt ? prompt : "", error);
    }
    good = zf_text_read_plain(path, &text, error) && begin_lines(w, &text, path, error);
    zf_text_free(&text);
    return good;
}

static void close_writer(writer *w)
{
    for (int64_t k = 0; k < w->count; k++) zf_answer_free(&w->rows[k]);
    zf_sampler_close(&w->sampler);
    zf_wordpiece_free(w->words);
    zf_tokenizer_free(w->tokens);
    zf_chat_close(&w->chat);
    free(w);
}

/* ------------------------------------------------------------------------------ commands */

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(request, kind, member, default_, range, __VA_ARGS__)
#define TOKENS_HELP "maximum number of tokens to write"
#define CHAT_HELP                                                                                  \
    "auto: as the tokenizer's chat_template says; or the path of a template, FILE.jinja"
#define NO_THINKING_HELP "enable_thinking is false in the template"
#define VARS_HELP        "variables of the template, as {\"enable_thinking\": false}"

static const zf_option generate_rows[] = {
    ROW(TEXT, prompt, 0, NULL, .topic = "text", .with = "!prompts",
        .help = "the text to continue, as without --prompt"),
    ROW(TEXT, prompts, 0, NULL, .unit = "FILE", .traits = ZF_OPTION_READS,
        .help = "prompts, one a line, that are continued together"),
    ROW(COUNT, tokens, 64, "[1,1000000]", .help = TOKENS_HELP),
    ROW(TEXT, chat, 0, NULL, .unit = "STYLE|auto", .topic = "chat",
        .help = "the prompt is a user's message in this style; " CHAT_HELP),
    ROW(FLAG, no_thinking, 0, NULL, .with = "chat", .help = NO_THINKING_HELP),
    ROW(TEXT, chat_vars, 0, NULL, .unit = "JSON", .with = "chat", .help = VARS_HELP),
    {.name = NULL}};

static const zf_option chat_rows[] = {
    ROW(TEXT, chat, 0, NULL, .unit = "STYLE|auto", .topic = "chat",
        .help = "how messages are written; " CHAT_HELP),
    ROW(TEXT, system, 0, NULL, .help = "a message of the system before all others"),
    ROW(COUNT, context, 2048, "[2,100000000]",
        .help = "maximum number of tokens of a chat, which the model's positions limit too"),
    ROW(FLAG, no_thinking, 0, NULL, .help = NO_THINKING_HELP),
    ROW(TEXT, chat_vars, 0, NULL, .unit = "JSON", .help = VARS_HELP),
    ROW(COUNT, tokens, 256, "[1,1000000]", .topic = "text", .help = TOKENS_HELP),
    {.name = NULL}};

static const zf_option answer_rows[] = {
    ROW(TEXT, date, 0, NULL, .topic = "chat",
        .help = "the day that the template shows, as \"" ZF_CHAT_DATE "\"; else today"),
    ROW(TEXTS, stop, 0, NULL, .topic = "text",
        .help = "ends before this text, or the first of several: --stop A --stop B"),
    ROW(COUNT, seed, 1, "[0,9000000000000000]", .topic = "sampling",
        .help = "another seed gives another text"),
    {.name = NULL}};

static command_tables request_tables(request *q, const zf_option *own)
{
    command_tables t = {.open = true};
    command_add(&t, folder_load_rows, &q->from);
    command_add(&t, folder_adapter_rows, &q->from);
    command_add(&t, folder_tokenizer_rows, &q->from);
    command_add(&t, own, q);
    command_add(&t, answer_rows, q);
    command_add(&t, zf_sampling_options(), &q->how);
    command_add(&t, folder_compute_rows, &q->from);
    command_add(&t, folder_weights_rows, &q->from);
    return t;
}

/* A number as the default of an option that was not given. */
static bool set_default(const command_tables *t, const char *option, double value, zf_error *error)
{
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    return !zf_options_default(t->all, t->count, option, text, error);
}

/* What the files of the model say about answers: the tokens that end them, and how tokens are
 * chosen where the command line does not say it. */
static bool read_generation(writer *w, request *q, const command_tables *t,
                            const zf_config_facts *facts, zf_error *error)
{
    zf_folder_generation g;
    bool good = zf_folder_generation_read(&g, q->from.load, error);
    w->ends[ENDS - 1] = w->ends[ENDS - 2] = -1;
    zf_folder_generation_ends(&g, facts, w->ends);
    if (good && g.has_sampling)
        good = set_default(t, "temperature", g.how.temperature, error) &&
               set_default(t, "top-k", (double)g.how.top_k, error) &&
               set_default(t, "top-p", g.how.top_p, error);
    if (good && g.has_penalty)
        good = set_default(t, "repetition-penalty", g.how.repetition, error);
    zf_options_resolve(t->all, t->count);
    return good;
}

/* Opens the decoder for the writer's rows and context. */
static bool open_decoder(writer *w, const request *q, const sample_model *sample,
                         const zf_config_any *config, int64_t chunk, zf_error *error)
{
    session_desc d = {
        .sample = sample,
                      .config = config,
                      .threads = folder_threads(&q->from),
                      .adapter = q->from.adapter,
                      .average = q->from.average};
    decoder_desc room = {.texts = w->count, .context = w->context, .chunk = chunk};
    return decoder_open(&w->decoder, &room, &d, q->from.load, q->from.dtype, error);
}

int causal_generate(const sample_model *sample, int argc, char **argv)
{
    request q = {.seed = 0};
    const command_tables tables = request_tables(&q, generate_rows);
    const char *prompt;
    zf_config_any config = {{0}};
    const zf_config_facts facts = zf_config_facts_of(sample->config, &config);
    writer *w;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "generate --load DIR [OPTIONS] \"The bird\"", &tables,
                         &prompt, &status))
        return status;
    if (!q.from.load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (prompt && (q.prompt || q.prompts))
        return command_usage_error(argv, "a prompt, --prompt and --prompts exclude one another");
    if (q.prompt) prompt = q.prompt;
    if (!(w = calloc(1, sizeof *w))) return command_error("out of memory");
    w->stops = q.stop;
    good = session_config(sample, q.from.load, &config, &error) &&
           read_generation(w, &q, &tables, &facts, &error) &&
           zf_config_set_weights(sample->config, &config, q.from.weights, &error) &&
           open_tokenizer(w, &q, *facts.vocab, &error) &&
           begin_rows(w, prompt, q.prompts, &error) &&
           context_of(q.from.load, *facts.positions, q.tokens, w, &error);
    if (good) {
        good = open_decoder(w, &q, sample, &config, 0, &error) &&
               write_all(w, q.tokens, (uint64_t)q.seed, &q.how, &error);
        if (error.status == ZF_ERR_NAN) zf_decoder_blame(&w->decoder.steps, &error);
        decoder_close(&w->decoder);
    }
    close_writer(w);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}

/* ---------------------------------------------------------------------------------- chat */

enum { MESSAGES = 256, CHAT_CHUNK = 64 };

typedef struct talk {
    writer *w;
    request q;
    zf_chat_message messages[MESSAGES]; /* texts of their own */
    size_t count;
    zf_ids seen; /* the tokens in the caches */
} talk;

static void forget(talk *c, size_t from)
{
    while (c->count > from) free((void *)(uintptr_t)c->messages[--c->count].text);
}

static bool say(talk *c, const char *role, const char *text, size_t bytes, zf_error *error)
{
    char *copy = malloc(bytes + 1);
    if (!copy) return fail(error, ZF_ERR_NOMEM, "out of memory");
    memcpy(copy, text, bytes), copy[bytes] = 0;
    c->messages[c->count++] = (zf_chat_message){role, copy, bytes};
    return true;
}

/* Begins the answer's row: the chat as tokens. */
static bool begin_answer(talk *c, zf_answer *r, zf_error *error)
{
    writer *w = c->w;
    bool good = encode_chat(w, c->messages, c->count, &r->ids, error);
    r->given = r->ids.count;
    if (good && (int64_t)r->ids.count + c->q.tokens > w->context)
        good = fail(error, ZF_ERR_LIMIT,
                    "this chat has %lld tokens, and with %lld for the answer there are more than "
                    "the context of %lld: /new begins another one",
                    (long long)r->ids.count, (long long)c->q.tokens, (long long)w->context);
    return good && zf_answer_begin(r, &w->how, error);
}

/* Writes the answer to the messages so far. What the caches have of them is not computed again. */
static bool answer(talk *c, zf_answer *r, zf_error *error)
{
    writer *w = c->w;
    size_t same = 0;
    int32_t id;
    if (!begin_answer(c, r, error)) return false;
    while (same < c->seen.count && same + 1 < r->ids.count && c->seen.at[same] == r->ids.at[same])
        same++;
    c->seen.count = (size_t)zf_decoder_rewind(&w->decoder.steps, 0, (int64_t)same);
    for (int64_t n = 0; n < c->q.tokens && !r->done; n++) {
        const int32_t *next = r->ids.at + c->seen.count;
        const int64_t count = (int64_t)(r->ids.count - c->seen.count);
        if (!zf_decoder_add(&w->decoder.steps, &next, &count, error)) return false;
        while (c->seen.count < r->ids.count) zf_ids_add(&c->seen, r->ids.at[c->seen.count]);
        if (c->seen.failed) return fail(error, ZF_ERR_NOMEM, "out of memory");
        id = zf_sampler_draw(&w->sampler, w->decoder.steps.logits, r->ids.at, (int64_t)r->ids.count,
                             zf_sampler_dice((uint64_t)c->q.seed, r->ids.at, r->given, 0,
                                             (int64_t)r->ids.count));
        if (!zf_answer_put(r, &w->how, id, error)) return false;
        show(w, r);
    }
    if (!r->done && !zf_answer_put(r, &w->how, -1, error)) return false;
    r->done = true;
    show(w, r);
    printf("\n");
    return say(c, "assistant", r->text.at ? r->text.at : "", r->text.count, error);
}

/* Reads messages, a line each, and answers them, until there are no more. A chat that does not
 * go on is told, and its last message forgotten. */
static bool converse(talk *c, const char *system, zf_error *error)
{
    char line[1 << 14];
    if (system && !say(c, "system", system, strlen(system), error)) return false;
    while (printf("> "), fflush(stdout), fgets(line, sizeof line, stdin)) {
        size_t n = strcspn(line, "\r\n"), before = c->count;
        zf_answer r = {.given = 0};
        zf_error here = {ZF_OK, ""};
        bool good;
        if (!line[n] && !feof(stdin))
            return fail(error, ZF_ERR_FORMAT, "a line has a NUL byte, or %zu bytes or more",
                        sizeof line - 1);
        line[n] = 0;
        if (!strcmp(line, "/new")) forget(c, system ? 1 : 0);
        if (!n || !strcmp(line, "/new")) continue;
        if (c->count + 2 > MESSAGES) good = fail(&here, ZF_ERR_LIMIT, "a chat has at most %d messages: "
                                                 "/new begins another one", MESSAGES);
        else good = say(c, "user", line, n, &here) && answer(c, &r, &here);
        zf_answer_free(&r);
        if (good) continue;
        forget(c, before);
        if (here.status != ZF_ERR_LIMIT) {
            *error = here;
            return false;
        }
        fprintf(stderr, "%s\n", here.text);
    }
    printf("\n");
    return true;
}

int causal_chat(const sample_model *sample, int argc, char **argv)
{
    talk c = {.count = 0};
    const command_tables tables = request_tables(&c.q, chat_rows);
    zf_config_any config = {{0}};
    const zf_config_facts facts = zf_config_facts_of(sample->config, &config);
    writer *w;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "chat --load DIR [OPTIONS]", &tables, NULL, &status))
        return status;
    if (!c.q.chat) c.q.chat = "auto";
    if (!c.q.from.load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!strcmp(c.q.chat, "none"))
        return command_usage_error(argv, "messages need a style: --chat auto, or its name");
    if (!(w = c.w = calloc(1, sizeof *w))) return command_error("out of memory");
    w->stops = c.q.stop, w->count = 1;
    good = session_config(sample, c.q.from.load, &config, &error) &&
           read_generation(w, &c.q, &tables, &facts, &error) &&
           zf_config_set_weights(sample->config, &config, c.q.from.weights, &error) &&
           open_tokenizer(w, &c.q, *facts.vocab, &error);
    w->context = c.q.context < *facts.positions ? c.q.context : *facts.positions;
    if (good) {
        good = open_decoder(w, &c.q, sample, &config, CHAT_CHUNK, &error) &&
               (zf_sampler_open(&w->sampler, &c.q.how, w->decoder.steps.vocab) ||
                fail(&error, ZF_ERR_NOMEM, "out of memory")) &&
               converse(&c, c.q.system, &error);
        if (error.status == ZF_ERR_NAN) zf_decoder_blame(&w->decoder.steps, &error);
        decoder_close(&w->decoder);
    }
    forget(&c, 0);
    zf_ids_free(&c.seen);
    w->count = 0;
    close_writer(w);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}
