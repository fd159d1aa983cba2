/* The commands generate and export: what a checkpoint is good for. */
#include "../bert/corpus.h"
#include "command.h"
#include "fail.h"
#include "folder.h"
#include "lm_session.h"
#include "lm_text.h"

#include <stdlib.h>
#include <string.h>

typedef struct writer {
    lm_session session;
    const bert_vocab *vocab;
    int64_t window; /* tokens that the model sees */
    int32_t end;    /* the token in front of a text and behind it */
    int32_t *ids;   /* of the text so far */
    float *logits;
} writer;

/* What follows the last `window` of the first `count` tokens, which stand at the window's
 * beginning: what is behind them, a causal model does not see. */
static bool next(writer *w, int64_t count, double temperature, uint64_t dice, int32_t *id,
                 zf_error *error)
{
    lm_session *s = &w->session;
    int64_t first = count > w->window ? count - w->window : 0;
    int32_t last = (int32_t)(count - first - 1);
    size_t bytes = (size_t)w->window * sizeof *w->ids;
    zf_status status = zf_write(s->program, s->model.input_ids, w->ids + first, bytes);
    if (!status) status = zf_write(s->program, s->model.last, &last, sizeof last);
    if (!status) status = zf_step(s->program);
    if (!status)
        status = zf_read(s->program, s->model.logits, w->logits, zf_tensor_bytes(s->model.logits));
    if (status) return fail(error, status, "%s", zf_program_error(s->program));
    *id = lm_sample(w->logits, bert_vocab_size(w->vocab), temperature, dice);
    return true;
}

static bool write_on(writer *w, const char *prompt, int64_t tokens, double temperature,
                     uint64_t seed, zf_error *error)
{
    int64_t given = bert_encode(w->vocab, prompt, strlen(prompt), 0, NULL, 0), count;
    w->ids = calloc((size_t)(1 + given + tokens + w->window), sizeof *w->ids);
    w->logits = malloc(zf_tensor_bytes(w->session.model.logits));
    if (!w->ids || !w->logits) return fail(error, ZF_ERR_NOMEM, "out of memory");
    w->ids[0] = w->end; /* a text begins where another one ends */
    bert_encode(w->vocab, prompt, strlen(prompt), 0, w->ids + 1, given);
    printf("%s", prompt);
    for (count = 1 + given; count < 1 + given + tokens; count++) {
        if (!next(w, count, temperature, bert_mix(seed + bert_mix((uint64_t)count)), &w->ids[count],
                  error))
            return false;
        if (w->ids[count] == w->end) break;
        lm_print_token(w->vocab, w->ids[count]);
        fflush(stdout);
    }
    printf("\n");
    return true;
}

/* The tokens that the model is shown: positions behind those of a checkpoint's run have not been
 * trained. */
static bool window_of(const char *load, int64_t positions, writer *w, zf_error *error)
{
    char sequence[40];
    w->window = positions;
    if (!folder_is_checkpoint(load)) return true;
    if (zf_checkpoint_note(load, "seq", sequence, sizeof sequence, error)) return false;
    w->window = strtoll(sequence, NULL, 10);
    return true;
}

int lm_generate(const lm_kind *kind, int argc, char **argv)
{
    const char *load = NULL, *prompt;
    int64_t tokens = 64, seed = 1, threads = 1, dtype = 0;
    double temperature = 0.8;
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "a checkpoint, or a folder of Hugging Face"},
        {"tokens", OPTION_COUNT, "N", &tokens, 1, 1e6, "to write, at most"},
        {"temperature", OPTION_NUMBER, "X", &temperature, 0, 100, "0: always the likeliest token"},
        {"seed", OPTION_COUNT, "K", &seed, 0, 9e15, "another one, another text"},
        {"dtype", OPTION_CHOICE, LM_DTYPES, &dtype, 0, 0,
         "it computes in; auto: as the checkpoint was trained, else f32"},
        {"threads", OPTION_COUNT, "N", &threads, 1, 1024, "workers"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    lm_config config = {{0}};
    const lm_facts facts = kind->facts(&config);
    lm_session_desc d = {.kind = kind, .purpose = LM_GENERATE, .config = &config};
    bert_vocab *vocab = NULL;
    writer w = {.ids = NULL};
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "generate --load DIR [OPTIONS] \"The bird\"", rows, &prompt,
                         &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    good = lm_folder_config(kind, load, &config, &error) &&
           window_of(load, *facts.positions, &w, &error) &&
           (vocab = folder_vocab(load, NULL, &error)) != NULL;
    if (good) {
        w.vocab = vocab;
        w.end = *facts.end >= 0 ? (int32_t)*facts.end : bert_vocab_id(vocab, "[SEP]");
        d.shape = (lm_shape){1, w.window, false}, d.threads = threads;
        good = lm_folder_open(&w.session, load, &d, dtype, &error) &&
               write_on(&w, prompt ? prompt : "", tokens, temperature, (uint64_t)seed, &error);
        lm_session_close(&w.session);
    }
    free(w.ids);
    free(w.logits);
    bert_vocab_free(vocab);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}

int lm_export(const lm_kind *kind, int argc, char **argv)
{
    const char *load = NULL, *out;
    int64_t dtype = ZF_F32;
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "a checkpoint, or a folder of Hugging Face"},
        {"dtype", OPTION_CHOICE, "f32|bf16|f16", &dtype, 0, 0,
         "of the weights that are written; f32 are the master weights of runs in 16 bits"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    lm_config config = {{0}};
    lm_session_desc d = {.kind = kind,
                         .purpose = LM_GENERATE,
                         .config = &config,
                         .shape = {1, 1, false},
                         .threads = 1};
    lm_session s;
    zf_error error = {ZF_OK, ""};
    char file[FOLDER_PATH];
    int status;
    bool good;
    if (!command_options(argc, argv, "export --load DIR [OPTIONS] DIR|FILE.safetensors", rows, &out,
                         &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!out) return command_usage_error(argv, "a folder or a file to write is needed");
    good = lm_folder_config(kind, load, &config, &error) &&
           lm_folder_open(&s, load, &d, 1 + ZF_F32, &error);
    if (good) {
        good = folder_export(out, load, kind->json(&config), FOLDER_GPT,
                             *kind->facts(&config).positions, file, &error) &&
               kind->export(s.program, s.graph, file, false, (zf_dtype)dtype, &error);
        lm_session_close(&s);
    }
    return good ? EXIT_GOOD : command_error("%s", error.text);
}
