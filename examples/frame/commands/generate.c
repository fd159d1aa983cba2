/* The commands generate, which continues texts or answers, all texts at once, and chat. */
#define _POSIX_C_SOURCE 200809L
#include "../model/causal.h"
#include "../../../zeroflow_llm.h"
#include "../options/command.h"
#include "../model/decoder.h"
#include "../options/fail.h"
#include "../folder/folder.h"

#include <stdlib.h>
#include <string.h>

enum { ENDS = ZF_CONFIG_ENDS + 2, TOGETHER = 64 }; /* TOGETHER: prompts, at most */

typedef struct writer {
    decoder decoder;
    zf_wordpiece *words; /* one of these two */
    zf_tokenizer *tokens;
    zf_chat chat;
    zf_option_texts stops; /* texts that end the answer */
    int64_t context;       /* tokens of a text for which there is room */
    int32_t ends[ENDS];    /* tokens that end a text; -1: none */
    zf_answer_desc how;    /* of all answers */
    zf_answer *rows;
    int64_t count, room, shown; /* rows; allocated ones; those that have been printed */
    bool framed;                /* prompts are messages of a chat */
} writer;

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

/* ------------------------------------------------------------------------------------- texts */

static bool begin_row(writer *w, const char *prompt, zf_error *error)
{
    zf_answer *r;
    if (w->count == w->room) {
        const int64_t room = w->room ? 2 * w->room : 16;
        zf_answer *rows = realloc(w->rows, (size_t)room * sizeof *rows);
        if (!rows) return fail(error, ZF_ERR_NOMEM, "out of memory");
        w->rows = rows, w->room = room;
    }
    r = &w->rows[w->count++];
    *r = (zf_answer){.given = 0};
    if (!zf_answer_prompt(&w->how, prompt, strlen(prompt), &r->ids, error)) return false;
    if (!w->how.chat) zf_text_add_string(&r->text, prompt);
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

static int by_owner(const void *a, const void *b)
{
    const zf_answer *const *x = a, *const *y = b;
    if ((*x)->owner != (*y)->owner) return (*x)->owner < (*y)->owner ? -1 : 1;
    return (*x > *y) - (*x < *y);
}

/* Each row draws random numbers of its own, those with one prompt too. */
static bool set_owners(writer *w, zf_error *error)
{
    zf_answer **order = malloc((size_t)w->count * sizeof *order);
    uint64_t last = 0;
    int64_t sample = 0;
    if (!order) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t k = 0; k < w->count; k++) {
        order[k] = &w->rows[k];
        order[k]->owner = zf_sampler_owner(order[k]->ids.at, order[k]->given, 0);
    }
    qsort(order, (size_t)w->count, sizeof *order, by_owner);
    for (int64_t k = 0; k < w->count; k++) {
        sample = k && order[k]->owner == last ? sample + 1 : 0, last = order[k]->owner;
        order[k]->owner = zf_sampler_owner(order[k]->ids.at, order[k]->given, sample);
    }
    free(order);
    return true;
}

/* Prints what a single row has, or all rows, in their order, that are done. */
static void show_next(void *user, zf_answer *r)
{
    writer *w = user;
    if (w->count == 1) show(w, r);
    while (w->shown < w->count && w->rows[w->shown].done) {
        show(w, &w->rows[w->shown++]);
        printf("\n");
    }
}

static bool write_all(writer *w, const request *q, zf_error *error)
{
    const zf_answers_desc d = {.decoder = &w->decoder.steps,
                               .how = &w->how,
                               .sampling = q->how,
                               .seed = (uint64_t)q->seed,
                               .tokens = q->tokens,
                               .slides = w->words != NULL,
                               .show = show_next,
                               .user = w};
    if (w->count == 1) show(w, &w->rows[0]);
    return set_owners(w, error) && zf_answers_write(w->rows, w->count, &d, error);
}

/* --------------------------------------------------------------------------------- beginning */

/* The number of tokens for which there is to be room. Positions after the sequence length of a
 * checkpoint's run have not been trained. */
static bool context_of(const char *load, int64_t positions, int64_t most, writer *w,
                       zf_error *error)
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
        return true;
    }
    if ((q->no_thinking || q->chat_vars) && !w->framed)
        return fail(error, ZF_ERR_ARGUMENT, "--%s is for chats: --chat auto, or a style",
                    q->no_thinking ? "no-thinking" : "chat-vars");
    return (w->tokens = zf_tokenizer_open(folder, error)) && open_chat(w, q, folder, style, error);
}

/* The same, and how answers are written. */
static bool open_tokenizer(writer *w, const request *q, int64_t vocab, zf_error *error)
{
    if (!read_tokenizer(w, q, error)) return false;
    w->how = (zf_answer_desc){.tokenizer = w->tokens,
                              .words = w->words,
                              .chat = w->framed ? &w->chat : NULL,
                              .begin = w->ends[0],
                              .ends = w->ends,
                              .end_count = ENDS,
                              .stops = w->stops.at,
                              .stop_count = w->stops.count,
                              .vocab = vocab};
    return true;
}

/* Begins a row for each line of the text, which is cut into them. */
static bool begin_lines(writer *w, const zf_text *text, const char *path, zf_error *error)
{
    for (char *line = text->at, *next; line < text->at + text->count; line = next) {
        const size_t bytes = strcspn(line, "\n");
        next = line + bytes + 1;
        line[bytes] = 0;
        line[strcspn(line, "\r")] = 0;
        if (!begin_row(w, line, error)) return false;
    }
    return w->count || fail(error, ZF_ERR_FORMAT, "%s is empty", path);
}

/* Begins a row for the prompt, or one for each line of a file. */
static bool begin_rows(writer *w, const char *prompt, const char *path, zf_error *error)
{
    zf_text text = {.at = NULL};
    bool good;
    if (!path) return begin_row(w, prompt ? prompt : "", error);
    good = zf_text_read_plain(path, &text, error) && begin_lines(w, &text, path, error);
    zf_text_free(&text);
    return good;
}

static void close_writer(writer *w)
{
    for (int64_t k = 0; k < w->count; k++) zf_answer_free(&w->rows[k]);
    free(w->rows);
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
    ROW(TEXT, chat, 0, NULL, .unit = "STYLE|FILE|auto", .topic = "chat", .traits = ZF_OPTION_READS,
        .help = "the prompt is a user's message in this style; " CHAT_HELP),
    ROW(FLAG, no_thinking, 0, NULL, .with = "chat", .help = NO_THINKING_HELP),
    ROW(TEXT, chat_vars, 0, NULL, .unit = "JSON", .with = "chat", .help = VARS_HELP),
    {.name = NULL}};

static const zf_option chat_rows[] = {
    ROW(TEXT, chat, 0, NULL, .unit = "STYLE|FILE|auto", .topic = "chat", .traits = ZF_OPTION_READS,
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
        .help =
            "the answer ends before this text, or before the first of several: --stop A --stop B"),
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
    if (good && g.has_penalty) good = set_default(t, "repetition-penalty", g.how.repetition, error);
    zf_options_resolve(t->all, t->count);
    return good;
}

/* Opens the decoder for the writer's rows and context. */
static bool open_decoder(writer *w, const request *q, const sample_model *sample,
                         const zf_config_any *config, int64_t chunk, zf_error *error)
{
    session_desc d = {.sample = sample,
                      .config = config,
                      .threads = folder_threads(&q->from),
                      .adapter = q->from.adapter,
                      .average = q->from.average};
    decoder_desc room = {
        .texts = w->count < TOGETHER ? w->count : TOGETHER, .context = w->context, .chunk = chunk};
    if (!decoder_open(&w->decoder, &room, &d, q->from.load, q->from.dtype, error)) return false;
    session_tell_floats(&w->decoder.prompt);
    return true;
}

int causal_generate(const sample_model *sample, int argc, char **argv)
{
    request q = {.seed = 0};
    const command_tables tables = request_tables(&q, generate_rows);
    const char *prompt;
    zf_config_any config = {{0}};
    const zf_config_facts facts = zf_config_facts_of(sample->config(), &config);
    writer *w;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "generate --load DIR [OPTIONS] \"The bird\"", &tables, &prompt,
                         &status))
        return status;
    if (!q.from.load) return command_usage_error(argv, folder_is_missing);
    if (prompt && (q.prompt || q.prompts))
        return command_usage_error(argv, "a prompt, --prompt and --prompts exclude one another");
    if (q.prompt) prompt = q.prompt;
    if (!(w = calloc(1, sizeof *w))) return command_error("out of memory");
    w->stops = q.stop;
    good =
        session_config(sample, q.from.load, q.from.adapter, &config, &error) &&
        read_generation(w, &q, &tables, &facts, &error) &&
        zf_config_set_weights(sample->config(), &config, q.from.weights, &error) &&
        open_tokenizer(w, &q, *facts.vocab, &error) && begin_rows(w, prompt, q.prompts, &error) &&
        context_of(q.from.load, zf_config_positions(sample->config(), &config), q.tokens, w, &error);
    if (good) {
        good = open_decoder(w, &q, sample, &config, 0, &error) && write_all(w, &q, &error);
        decoder_close(&w->decoder);
    }
    close_writer(w);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}

/* ---------------------------------------------------------------------------------- chat */

enum { CHAT_CHUNK = 64 };

static void show_turn(void *user, zf_answer *a) { show(user, a); }

/* Answers the messages so far. */
static bool answer(writer *w, const request *q, zf_talk *talk, zf_error *error)
{
    const zf_answers_desc d = {.decoder = &w->decoder.steps,
                               .how = &w->how,
                               .sampling = q->how,
                               .seed = (uint64_t)q->seed,
                               .tokens = q->tokens,
                               .show = show_turn,
                               .user = w};
    zf_answer a = {.given = 0};
    const bool good = zf_talk_answer(talk, &d, &a, error);
    if (good) printf("\n");
    zf_answer_free(&a);
    return good;
}

/* Reads messages, a line each, and answers them, until there are no more. A chat that does not
 * go on is said, and its last message forgotten. */
static bool converse(writer *w, const request *q, zf_talk *talk, zf_error *error)
{
    const char *system = q->system;
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    if (system && !zf_talk_say(talk, "system", system, strlen(system), error)) return false;
    while (!error->status &&
           (printf("> "), fflush(stdout), bytes = getline(&line, &room, stdin)) >= 0) {
        const size_t n = strcspn(line, "\r\n"), before = talk->count;
        zf_error here = {ZF_OK, ""};
        if ((size_t)bytes > n && !line[n]) {
            fail(error, ZF_ERR_FORMAT, "a line has a NUL byte");
            break;
        }
        line[n] = 0;
        if (!strcmp(line, "/new")) zf_talk_forget(talk, system ? 1 : 0);
        if (!n || !strcmp(line, "/new")) continue;
        if (zf_talk_say(talk, "user", line, n, &here) && answer(w, q, talk, &here)) continue;
        zf_talk_forget(talk, before);
        if (here.status != ZF_ERR_LIMIT) *error = here;
        else fprintf(stderr, "%s: /new begins another one\n", here.text);
    }
    free(line);
    if (!error->status) printf("\n");
    return !error->status;
}

int causal_chat(const sample_model *sample, int argc, char **argv)
{
    request q = {.seed = 0};
    zf_talk talk = {.count = 0};
    const command_tables tables = request_tables(&q, chat_rows);
    zf_config_any config = {{0}};
    const zf_config_facts facts = zf_config_facts_of(sample->config(), &config);
    writer *w;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "chat --load DIR [OPTIONS]", &tables, NULL, &status))
        return status;
    if (!q.chat) q.chat = "auto";
    if (!q.from.load) return command_usage_error(argv, folder_is_missing);
    if (!strcmp(q.chat, "none"))
        return command_usage_error(argv, "messages need a style: --chat auto, or its name");
    if (!(w = calloc(1, sizeof *w))) return command_error("out of memory");
    w->stops = q.stop, w->count = 1;
    good = session_config(sample, q.from.load, q.from.adapter, &config, &error) &&
           read_generation(w, &q, &tables, &facts, &error) &&
           zf_config_set_weights(sample->config(), &config, q.from.weights, &error) &&
           open_tokenizer(w, &q, *facts.vocab, &error);
    w->context = zf_config_positions(sample->config(), &config);
    if (q.context < w->context) w->context = q.context;
    if (good) {
        good = open_decoder(w, &q, sample, &config, CHAT_CHUNK, &error) &&
               converse(w, &q, &talk, &error);
        decoder_close(&w->decoder);
    }
    zf_talk_free(&talk);
    w->count = 0;
    close_writer(w);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}
