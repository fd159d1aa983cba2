/* The smaller commands: vocab, eval, fill, export. */
#include "commands.h"

#include <stdio.h>
#include <string.h>

zf_dtype bert_checkpoint_precision(const char *path)
{
    char note[8] = "f32";
    zf_error none;
    (void)zf_checkpoint_note(path, "precision", note, sizeof note, &none);
    return !strcmp(note, "bf16") ? ZF_BF16 : !strcmp(note, "f16") ? ZF_F16 : ZF_F32;
}

bool bert_checkpoint_open(bert_session *s, const char *path, bert_config *config,
                          const bert_shape *shape, int64_t threads, zf_error *error)
{
    char file[1024];
    bert_session_desc d = {.shape = *shape, .threads = threads};
    zf_status status;
    snprintf(file, sizeof file, "%s/config.json", path);
    if (!bert_config_load(file, config, error)) return false;
    d.config = *config;
    d.dtype = bert_checkpoint_precision(path);
    if (!bert_session_open(s, &d, error)) return false;
    status = zf_load(s->program, path, &(zf_load_desc){.params_only = true});
    if (!status) return true;
    error->status = status;
    snprintf(error->text, sizeof error->text, "%s", zf_program_error(s->program));
    bert_session_close(s);
    return false;
}

bool bert_checkpoint_cased(const char *path, bool *cased, zf_error *error)
{
    char note[8];
    if (zf_checkpoint_note(path, "cased", note, sizeof note, error)) return false;
    *cased = !strcmp(note, "yes");
    return true;
}

int bert_command_vocab(int argc, char **argv)
{
    const char *corpus = NULL, *out = NULL;
    int64_t size = 8192;
    bool cased = false;
    char err[512];
    int status;
    const option_row rows[] = {
        {"corpus", OPTION_TEXT, "FILE", &corpus, 0, 0, "the text"},
        {"vocab", OPTION_TEXT, "FILE", &out, 0, 0, "the vocab.txt to write"},
        {"size", OPTION_COUNT, "N", &size, 16, 1e7, "tokens, at most"},
        {"cased", OPTION_FLAG, NULL, &cased, 0, 0, "tell capitals and accents apart"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    int32_t tokens;
    if (!command_options(argc, argv, "vocab --corpus FILE --vocab FILE [OPTIONS]", rows, NULL,
                         &status))
        return status;
    if (!corpus) return command_usage_error(argv, "a text is needed: --corpus FILE");
    if (!out) return command_usage_error(argv, "a file to write is needed: --vocab FILE");
    tokens = bert_vocab_train(corpus, (int32_t)size, bert_cased(cased), out, err, sizeof err);
    if (tokens < 0) return command_error("%s", err);
    printf("%s: %d tokens\n", out, (int)tokens);
    return EXIT_GOOD;
}

int bert_command_eval(int argc, char **argv)
{
    const char *load = NULL, *corpus = NULL;
    int64_t seq = 128, batch = 16, batches = 16, threads = 1;
    char vocab[1024];
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "the checkpoint"},
        {"corpus", OPTION_TEXT, "FILE", &corpus, 0, 0, "the text, whose held-out part is used"},
        {"seq", OPTION_COUNT, "T", &seq, 8, 65536, "tokens of an example"},
        {"batch", OPTION_COUNT, "B", &batch, 1, 1 << 20, "examples at a time"},
        {"batches", OPTION_COUNT, "N", &batches, 1, 1e6, "how many of them"},
        {"threads", OPTION_COUNT, "N", &threads, 1, 1024, "workers"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    bert_session s;
    bert_config config;
    bert_text text;
    bert_score score;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good, cased;
    if (!command_options(argc, argv, "eval --load DIR --corpus FILE [OPTIONS]", rows, NULL,
                         &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!corpus) return command_usage_error(argv, "a text is needed: --corpus FILE");
    if (!bert_checkpoint_cased(load, &cased, &error)) return command_error("%s", error.text);
    snprintf(vocab, sizeof vocab, "%s/vocab.txt", load);
    if (!bert_text_open(&text, corpus, vocab, cased, seq, 0, 1, threads)) return EXIT_FAILED;
    good = bert_checkpoint_open(&s, load, &config,
                                &(bert_shape){batch, seq, bert_predictions(batch, seq, 0)}, threads,
                                &error);
    if (good) {
        good = bert_session_score(&s, text.held_out, batches, &score, &error);
        bert_session_close(&s);
    }
    if (good)
        printf("MLM loss %.4f, accuracy %.1f%% of %lld masked words; NSP loss %.4f; unigram "
               "entropy %.4f\n",
               score.mlm_loss, 100 * score.mlm_accuracy, (long long)score.labelled, score.nsp_loss,
               text.corpus->unigram_nats);
    else command_error("%s", error.text);
    bert_text_close(&text);
    return good ? EXIT_GOOD : EXIT_FAILED;
}

int bert_command_fill(int argc, char **argv)
{
    const char *load = NULL, *text;
    int64_t seq = 128, threads = 1;
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "the checkpoint"},
        {"seq", OPTION_COUNT, "T", &seq, 8, 65536, "tokens of the text, at most"},
        {"threads", OPTION_COUNT, "N", &threads, 1, 1024, "workers"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    bert_session s;
    bert_config config;
    bert_vocab *vocab;
    zf_error error = {ZF_OK, ""};
    char file[1024], err[512];
    int status;
    bool good, cased;
    if (!command_options(argc, argv, "fill --load DIR \"Paris is the [MASK] of France .\"", rows,
                         &text, &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!text) return command_usage_error(argv, "a text with [MASK] in it is needed");
    if (!bert_checkpoint_cased(load, &cased, &error)) return command_error("%s", error.text);
    snprintf(file, sizeof file, "%s/vocab.txt", load);
    if (!(vocab = bert_vocab_load(file, bert_cased(cased), err, sizeof err)))
        return command_error("%s", err);
    good = bert_checkpoint_open(&s, load, &config, &(bert_shape){1, 8, 1}, threads, &error);
    if (good) {
        if (seq > config.positions) seq = config.positions;
        good = bert_fill_text(&s, &config, vocab, seq, text, NULL, &error);
        bert_session_close(&s);
    }
    bert_vocab_free(vocab);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}

int bert_command_export(int argc, char **argv)
{
    const char *load = NULL, *out;
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "the checkpoint"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    bert_session s;
    bert_config config;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "export --load DIR FILE.safetensors", rows, &out, &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!out) return command_usage_error(argv, "a file to write is needed");
    good = bert_checkpoint_open(&s, load, &config, &(bert_shape){1, 8, 1}, 1, &error);
    if (good) {
        good = !bert_export(s.program, s.graph, out, false, &error);
        bert_session_close(&s);
    }
    return good ? EXIT_GOOD : command_error("%s", error.text);
}
