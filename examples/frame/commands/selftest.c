/* The command selftest: the perplexity of a text, tokens per second of prompts and of
 * generation, and the plan of memory. */
#include "../data/corpus.h"
#include "../model/causal.h"
#include "../options/command.h"
#include "../model/decoder.h"
#include "../options/fail.h"
#include "../folder/folder.h"
#include "../../../zeroflow_llm.h"
#include "../run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char own_text[] =
    "The sun had not yet risen when the fishermen pushed their boats into the water. There was no "
    "wind, and the sea lay as flat as a table. One after the other they lit their lamps, and from "
    "the hill above the village the small lights looked like stars that had fallen into the bay. "
    "An "
    "old woman stood at the window of the last house and counted them, as she had done every "
    "morning for forty years. When she had counted eleven she closed the shutter, put wood on the "
    "fire, and began to make bread.";

typedef struct probe {
    folder_options from;
    const char *text;
    int64_t tokens, most;
    zf_config_any config;
    session scores; /* has the parameters */
    decoder writes;
    zf_ids ids;
} probe;

static bool encode(probe *p, const char *text, size_t bytes, int64_t vocab, zf_error *error)
{
    const char *folder = p->from.tokenizer ? p->from.tokenizer : p->from.load;
    bool good;
    if (zf_folder_has_bpe(folder)) {
        zf_tokenizer *t = zf_tokenizer_open(folder, error);
        good = t && zf_tokenizer_encode(t, text, bytes, ZF_TOKENIZER_FRAME, &p->ids, error) &&
               zf_ids_check(p->ids.at, p->ids.count, vocab, t, NULL, error);
        zf_tokenizer_free(t);
    } else {
        zf_wordpiece *words = zf_folder_vocab(folder, NULL, error);
        int64_t count = words ? zf_wordpiece_encode(words, text, bytes, 0, NULL, 0) : 0;
        int32_t *ids = malloc((size_t)(count + 1) * sizeof *ids);
        good = words && (ids || fail(error, ZF_ERR_NOMEM, "out of memory"));
        if (good) zf_wordpiece_encode(words, text, bytes, 0, ids, count);
        for (int64_t i = 0; good && i < count; i++) zf_ids_add(&p->ids, ids[i]);
        good = good && zf_ids_check(ids, (size_t)count, vocab, NULL, words, error);
        free(ids);
        zf_wordpiece_free(words);
    }
    return good && (!p->ids.failed || fail(error, ZF_ERR_NOMEM, "out of memory"));
}

/* The ids of the text, at most p->most of them. */
static bool read_ids(probe *p, int64_t vocab, zf_error *error)
{
    zf_text text = {.at = NULL};
    bool good;
    if (!p->text) zf_text_add_string(&text, own_text);
    good = (!p->text || zf_text_read_plain(p->text, &text, error)) &&
           (!text.failed || fail(error, ZF_ERR_NOMEM, "out of memory")) &&
           encode(p, text.at ? text.at : "", text.count, vocab, error);
    zf_text_free(&text);
    if ((int64_t)p->ids.count > p->most) p->ids.count = (size_t)p->most;
    return good &&
           (p->ids.count > 1 || fail(error, ZF_ERR_ARGUMENT, "the text has fewer than two tokens"));
}

/* The mean loss of the text's tokens, each predicted from all before it. */
static bool score(probe *p, double *loss, zf_error *error)
{
    session *s = &p->scores;
    size_t count = p->ids.count;
    int32_t *labels = malloc(count * sizeof *labels);
    const float weight = 1 / (float)(count - 1);
    zf_status status;
    if (!labels) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < count; i++) labels[i] = i + 1 < count ? p->ids.at[i + 1] : -100;
    status = session_write(s, "input_ids", p->ids.at, count * sizeof *labels);
    if (!status) status = session_write(s, "labels", labels, count * sizeof *labels);
    if (!status) status = session_write(s, "loss_weight", &weight, sizeof weight);
    if (!status) status = zf_step(s->program);
    free(labels);
    if (status) return fail(error, status, "%s", zf_program_error(s->program));
    *loss = session_scalar(s, "loss");
    return true;
}

/* Seconds in which the decoder takes the text, and then `tokens` of the most likely tokens. */
static bool time_it(probe *p, double *prompt, double *each, zf_error *error)
{
    const int32_t *next = p->ids.at;
    int64_t count = (int64_t)p->ids.count;
    int32_t id = 0;
    double start;
    for (int turn = 0; turn < 2; turn++) { /* the first one meets a cold memory */
        zf_decoder_rewind(&p->writes.steps, 0, 0);
        start = run_now();
        if (!zf_decoder_add(&p->writes.steps, &next, &count, error)) return false;
        *prompt = run_now() - start;
    }
    next = &id, count = 1, start = run_now();
    for (int64_t n = 0; n < p->tokens; n++) {
        for (int32_t k = id = 0; k < p->writes.steps.vocab; k++)
            if (p->writes.steps.logits[k] > p->writes.steps.logits[id]) id = k;
        if (!zf_decoder_add(&p->writes.steps, &next, &count, error)) return false;
    }
    *each = (run_now() - start) / (double)p->tokens;
    return true;
}

static void print_memory(const probe *p)
{
    const zf_program_info prompt = zf_program_info_of(p->writes.prompt.program),
                          token = zf_program_info_of(p->writes.token.program);
    const double mib = 1048576,
                 params = (double)zf_store_info_of(zf_program_store(p->writes.token.program)).bytes;
    printf(
        "memory: weights %.1f MiB, caches for %lld tokens %.1f, prompts of %lld tokens %.1f, one "
        "token %.1f: %.1f MiB\n",
        params / mib, (long long)p->writes.steps.context, (double)prompt.cache_bytes / mib,
        (long long)p->writes.steps.prompt.tokens,
        (double)(prompt.peak_bytes - prompt.store_bytes - prompt.cache_bytes) / mib,
        (double)token.peak_bytes / mib,
        (params + (double)(prompt.peak_bytes - prompt.store_bytes + token.peak_bytes)) / mib);
}

static bool probe_all(probe *p, const sample_model *sample, zf_error *error)
{
    session_desc of_text = {.sample = sample,
                            .config = &p->config,
                            .purpose = SAMPLE_EVALUATE,
                            .threads = folder_threads(&p->from),
                            .average = p->from.average},
                 of_writer = {.sample = sample, .config = &p->config, .share = &p->scores};
    decoder_desc room = {.texts = 1};
    double loss = 0, prompt = 1, each = 1;
    bool good;
    p->most = zf_config_positions(sample->config(), &p->config) - p->tokens;
    if (p->most < 2)
        return fail(error, ZF_ERR_ARGUMENT, "--tokens %lld leaves no room for the text",
                    (long long)p->tokens);
    if (!read_ids(p, *zf_config_facts_of(sample->config(), &p->config).vocab, error)) return false;
    of_text.shape = (sample_shape){.batch = 1, .sequence = (int64_t)p->ids.count};
    room.context = (int64_t)p->ids.count + p->tokens;
    if (!session_open_folder(&p->scores, p->from.load, &of_text, p->from.dtype, error))
        return false;
    session_tell_floats(&p->scores);
    good = decoder_open(&p->writes, &room, &of_writer, NULL, 0, error);
    good = good && score(p, &loss, error) && time_it(p, &prompt, &each, error);
    if (error->status == ZF_ERR_NAN) zf_decoder_blame(&p->writes.steps, error);
    if (good) {
        printf("text: %zu tokens, loss %.4f, perplexity %.2f\n", p->ids.count, loss, exp(loss));
        printf("speed: prompt %.1f tokens/s, generation %.2f tokens/s, %s, %lld threads\n",
               (double)p->ids.count / prompt, 1 / each, zf_dtype_name(p->scores.dtype),
               (long long)folder_threads(&p->from));
        print_memory(p);
    }
    decoder_close(&p->writes);
    session_close(&p->scores);
    return good;
}

static const zf_option rows[] = {
    ZF_OPTION(probe, TEXT, text, 0, NULL, .unit = "FILE", .topic = "text",
              .traits = ZF_OPTION_READS,
              .help = "the text; without this option a paragraph of English"),
    ZF_OPTION(probe, COUNT, tokens, 32, "[1,1000000]", .help = "number of tokens to write"),
    {.name = NULL}};

int causal_selftest(const sample_model *sample, int argc, char **argv)
{
    probe p = {.text = NULL};
    const command_tables tables = {.all = {{.rows = folder_load_rows, .desc = &p.from},
                                    {.rows = folder_tokenizer_rows, .desc = &p.from},
                                    {.rows = rows, .desc = &p},
                                    {.rows = folder_compute_rows, .desc = &p.from},
                                    {.rows = folder_weights_rows, .desc = &p.from}},
                                   .count = 5};
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "selftest --load DIR [OPTIONS]", &tables, NULL, &status))
        return status;
    if (!p.from.load) return command_usage_error(argv, folder_is_missing);
    good = session_config(sample, p.from.load, p.from.adapter, &p.config, &error) &&
           zf_config_set_weights(sample->config(), &p.config, p.from.weights, &error) &&
           probe_all(&p, sample, &error);
    zf_ids_free(&p.ids);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}
