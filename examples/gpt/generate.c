/* gpt generate and gpt export: what a checkpoint is good for. */
#include "../bert/corpus.h"
#include "../common/folder.h"
#include "commands.h"

#include <stdlib.h>
#include <string.h>

typedef struct writer {
    gpt_session session;
    const bert_vocab *vocab;
    int64_t window; /* tokens that the model sees */
    int32_t *ids;   /* of the text so far */
    float *logits;
} writer;

/* What follows the last `window` of the first `count` tokens, which stand at the window's
 * beginning: what is behind them, a causal model does not see. */
static bool next(writer *w, int64_t count, double temperature, uint64_t dice, int32_t *id,
                 zf_error *error)
{
    gpt_session *s = &w->session;
    int64_t first = count > w->window ? count - w->window : 0;
    int32_t last = (int32_t)(count - first - 1);
    size_t bytes = (size_t)w->window * sizeof *w->ids;
    zf_status status = zf_write(s->program, s->model.input_ids, w->ids + first, bytes);
    if (!status) status = zf_write(s->program, s->model.last, &last, sizeof last);
    if (!status) status = zf_step(s->program);
    if (!status)
        status = zf_read(s->program, s->model.logits, w->logits, zf_tensor_bytes(s->model.logits));
    if (status) return gpt_fail(error, status, "%s", zf_program_error(s->program));
    *id = gpt_sample(w->logits, bert_vocab_size(w->vocab), temperature, dice);
    return true;
}

static bool write_on(writer *w, const char *prompt, int64_t tokens, double temperature,
                     uint64_t seed, zf_error *error)
{
    int32_t end = bert_vocab_id(w->vocab, "[SEP]");
    int64_t given = bert_encode(w->vocab, prompt, strlen(prompt), 0, NULL, 0), count;
    w->ids = calloc((size_t)(1 + given + tokens + w->window), sizeof *w->ids);
    w->logits = malloc(zf_tensor_bytes(w->session.model.logits));
    if (!w->ids || !w->logits) return gpt_fail(error, ZF_ERR_NOMEM, "out of memory");
    w->ids[0] = end; /* a text begins where another one ends */
    bert_encode(w->vocab, prompt, strlen(prompt), 0, w->ids + 1, given);
    printf("%s", prompt);
    for (count = 1 + given; count < 1 + given + tokens; count++) {
        if (!next(w, count, temperature, bert_mix(seed + bert_mix((uint64_t)count)), &w->ids[count],
                  error))
            return false;
        if (w->ids[count] == end) break;
        gpt_print_token(w->vocab, w->ids[count]);
        fflush(stdout);
    }
    printf("\n");
    return true;
}

int gpt_command_generate(int argc, char **argv)
{
    const char *load = NULL, *prompt;
    int64_t tokens = 64, seed = 1, threads = 1;
    double temperature = 0.8;
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "the checkpoint"},
        {"tokens", OPTION_COUNT, "N", &tokens, 1, 1e6, "to write, at most"},
        {"temperature", OPTION_NUMBER, "X", &temperature, 0, 100, "0: always the likeliest token"},
        {"seed", OPTION_COUNT, "K", &seed, 0, 9e15, "another one, another text"},
        {"threads", OPTION_COUNT, "N", &threads, 1, 1024, "workers"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    gpt_session_desc d = {.purpose = GPT_GENERATE};
    bert_vocab *vocab = NULL;
    writer w = {.ids = NULL};
    zf_error error = {ZF_OK, ""};
    char sequence[40];
    int status;
    bool good;
    if (!command_options(argc, argv, "generate --load DIR [OPTIONS] \"The bird\"", rows, &prompt,
                         &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    good = !zf_checkpoint_note(load, "seq", sequence, sizeof sequence, &error) &&
           (vocab = folder_vocab(load, NULL, &error));
    if (good) {
        w.window = strtoll(sequence, NULL, 10); /* positions behind these have not been trained */
        w.vocab = vocab;
        d.shape = (gpt_shape){1, w.window, false}, d.threads = threads;
        good = gpt_session_restore(&w.session, load, &d, &error) &&
               write_on(&w, prompt ? prompt : "", tokens, temperature, (uint64_t)seed, &error);
        gpt_session_close(&w.session);
    }
    free(w.ids);
    free(w.logits);
    bert_vocab_free(vocab);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}

int gpt_command_export(int argc, char **argv)
{
    const char *load = NULL, *out;
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "the checkpoint"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    gpt_session_desc d = {.purpose = GPT_GENERATE, .shape = {1, 1}, .threads = 1};
    gpt_session s;
    zf_error error = {ZF_OK, ""};
    int status;
    if (!command_options(argc, argv, "export --load DIR FILE.safetensors", rows, &out, &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!out) return command_usage_error(argv, "a file to write is needed");
    if (!gpt_session_restore(&s, load, &d, &error)) return command_error("%s", error.text);
    if (!gpt_export(s.program, s.graph, out, false, ZF_F32, &error))
        command_error("%s", error.text);
    gpt_session_close(&s);
    return error.status ? EXIT_FAILED : EXIT_GOOD;
}
