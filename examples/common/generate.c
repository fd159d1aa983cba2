/* The command generate: continues a text. */
#include "../bert/corpus.h"
#include "causal.h"
#include "command.h"
#include "fail.h"
#include "folder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int32_t causal_draw(const float *logits, int64_t count, double temperature, uint64_t dice)
{
    double sum = 0, at;
    int32_t best = 0;
    for (int64_t v = 1; v < count; v++)
        if (logits[v] > logits[best]) best = (int32_t)v;
    if (!(temperature > 0)) return best;
    for (int64_t v = 0; v < count; v++) sum += exp((logits[v] - logits[best]) / temperature);
    at = ldexp((double)(dice >> 11), -53) * sum;
    for (int64_t v = 0; v < count; v++) {
        at -= exp((logits[v] - logits[best]) / temperature);
        if (at < 0) return (int32_t)v;
    }
    return best;
}

/* Prints a token after what has been printed: with a space before it, unless it continues a word or
 * ends a clause. */
static void print_token(const bert_vocab *vocab, int32_t id)
{
    const char *token = bert_vocab_token(vocab, id);
    if (!strncmp(token, "##", 2) && !bert_vocab_starts_word(vocab, id)) printf("%s", token + 2);
    else printf("%s%s", strlen(token) == 1 && strchr(".,;:!?)", *token) ? "" : " ", token);
}

typedef struct writer {
    session session;
    const bert_vocab *vocab;
    int64_t window; /* tokens that the model sees */
    int32_t end;    /* the token before and after a text */
    int32_t *ids;   /* of the text so far */
    float *logits;
} writer;

/* The token after the first `count` tokens, from the last `window` of them. These fill the
 * beginning of the window; a causal model does not see the rest. */
static bool next(writer *w, int64_t count, double temperature, uint64_t dice, int32_t *id,
                 zf_error *error)
{
    session *s = &w->session;
    int64_t first = count > w->window ? count - w->window : 0;
    int32_t last = (int32_t)(count - first - 1);
    size_t bytes = (size_t)w->window * sizeof *w->ids;
    zf_tensor logits = zf_graph_find(s->graph, "logits");
    zf_status status = session_write(s, "input_ids", w->ids + first, bytes);
    if (!status) status = session_write(s, "last", &last, sizeof last);
    if (!status) status = zf_step(s->program);
    if (!status) status = zf_read(s->program, logits, w->logits, zf_tensor_bytes(logits));
    if (status) return fail(error, status, "%s", zf_program_error(s->program));
    *id = causal_draw(w->logits, bert_vocab_size(w->vocab), temperature, dice);
    return true;
}

static bool write_on(writer *w, const char *prompt, int64_t tokens, double temperature,
                     uint64_t seed, zf_error *error)
{
    int64_t given = bert_encode(w->vocab, prompt, strlen(prompt), 0, NULL, 0), count;
    w->ids = calloc((size_t)(1 + given + tokens + w->window), sizeof *w->ids);
    w->logits = malloc(zf_tensor_bytes(zf_graph_find(w->session.graph, "logits")));
    if (!w->ids || !w->logits) return fail(error, ZF_ERR_NOMEM, "out of memory");
    w->ids[0] = w->end; /* a text begins after the end of another */
    bert_encode(w->vocab, prompt, strlen(prompt), 0, w->ids + 1, given);
    printf("%s", prompt);
    for (count = 1 + given; count < 1 + given + tokens; count++) {
        if (!next(w, count, temperature, bert_mix(seed + bert_mix((uint64_t)count)), &w->ids[count],
                  error))
            return false;
        if (w->ids[count] == w->end) break;
        print_token(w->vocab, w->ids[count]);
        fflush(stdout);
    }
    printf("\n");
    return true;
}

/* The number of tokens that the model is shown: positions beyond the length that a checkpoint was
 * trained with are untrained. */
static bool window_of(const char *load, int64_t positions, writer *w, zf_error *error)
{
    char sequence[40];
    w->window = positions;
    if (!folder_is_checkpoint(load)) return true;
    if (zf_checkpoint_note(load, "seq", sequence, sizeof sequence, error)) return false;
    w->window = strtoll(sequence, NULL, 10);
    return true;
}

int causal_generate(const sample_model *sample, int argc, char **argv)
{
    const char *load = NULL, *prompt;
    int64_t tokens = 64, seed = 1, threads = 1, dtype = 0;
    double temperature = 0.8;
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "a checkpoint, or a folder of Hugging Face"},
        {"tokens", OPTION_COUNT, "N", &tokens, 1, 1e6, "to write, at most"},
        {"temperature", OPTION_NUMBER, "X", &temperature, 0, 100, "0: always the likeliest token"},
        {"seed", OPTION_COUNT, "K", &seed, 0, 9e15, "another one, another text"},
        {"dtype", OPTION_CHOICE, SESSION_DTYPES, &dtype, 0, 0,
         "it computes in; auto: as the checkpoint was trained, else f32"},
        {"threads", OPTION_COUNT, "N", &threads, 1, 1024, "workers"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    config_any config = {{0}};
    const config_facts facts = config_facts_of(sample->config, &config);
    session_desc d = {.sample = sample, .purpose = SAMPLE_ANSWER, .config = &config};
    bert_vocab *vocab = NULL;
    writer w = {.ids = NULL};
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "generate --load DIR [OPTIONS] \"The bird\"", rows, &prompt,
                         &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    good = session_config(sample, load, &config, &error) &&
           window_of(load, *facts.positions, &w, &error) &&
           (vocab = folder_vocab(load, NULL, &error)) != NULL;
    if (good) {
        w.vocab = vocab;
        w.end = *facts.end >= 0 ? (int32_t)*facts.end : bert_vocab_id(vocab, "[SEP]");
        d.shape = (sample_shape){.batch = 1, .sequence = w.window}, d.threads = threads;
        good = session_open_folder(&w.session, load, &d, dtype, &error) &&
               write_on(&w, prompt ? prompt : "", tokens, temperature, (uint64_t)seed, &error);
        session_close(&w.session);
    }
    free(w.ids);
    free(w.logits);
    bert_vocab_free(vocab);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}
