/* The commands of the program, except tokenize. */
#include "commands.h"
#include "../../zeroflow_llm.h"
#include "../frame/commands/frame.h"
#include "../frame/options/tokenizing.h"
#include "masked.h"
#include "model.h"

#include <stdio.h>

int bert_command_pretrain(int argc, char **argv)
{
    masked_options own = {.masked = 0};
    static const zf_option rows[] = {
        ZF_OPTION(masked_options, COUNT, masked, 15, "[1,100]", .unit = "PERCENT", .topic = "data",
                  .traits = ZF_OPTION_CHANGES,
                  .help = "of the words of training examples; held-out ones have 15"),
        ZF_OPTION(masked_options, FLAG, no_nsp, 0, NULL,
                  .help = "masked words alone: no next sentences, examples of one segment"),
        ZF_OPTION(masked_options, CHOICE, sinusoids, 0, "drawn|sinusoids", .topic = "model",
                  .flag = "first-positions", .help = "the position embedding of a new model"),
        ZF_OPTION(masked_options, CHOICE, unigrams, 0, "zero|unigrams", .flag = "first-bias",
                  .help = "the bias of the words of a new model; unigrams: their shares of the text"),
        {.name = NULL}};
    return pretrain_command(&bert_sample, &(settings_desc){.own = {.rows = rows, .desc = &own}}, argc, argv);
}

int bert_command_eval(int argc, char **argv) { return evaluate_command(&bert_sample, argc, argv); }
int bert_command_export(int argc, char **argv) { return export_command(&bert_sample, argc, argv); }

int bert_command_vocab(int argc, char **argv)
{
    const char *corpus = NULL, *out = NULL;
    int64_t size = 8192;
    tokenizing words = {.cased = false};
    zf_wordpiece_options options;
    zf_error error = {ZF_OK, ""};
    int status;
    const option_row rows[] = {
        {"corpus", OPTION_TEXT, "FILE", &corpus, 0, 0, "the text"},
        {"vocab", OPTION_TEXT, "FILE", &out, 0, 0, "the vocab.txt to write"},
        {"size", OPTION_COUNT, "N", &size, 16, 1e7, "tokens, at most"},
        TOKENIZING_ROWS(&words),
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    int32_t tokens;
    if (!command_options(argc, argv, "vocab --corpus FILE --vocab FILE [OPTIONS]", rows, NULL,
                         &status))
        return status;
    if (!corpus) return command_usage_error(argv, "a text is needed: --corpus FILE");
    if (!out) return command_usage_error(argv, "a file to write is needed: --vocab FILE");
    options = tokenizing_options(&words);
    tokens = zf_wordpiece_train(corpus, (int32_t)size, &options, out, &error);
    if (tokens < 0) return command_error("%s", error.text);
    printf("%s: %d tokens\n", out, (int)tokens);
    return EXIT_GOOD;
}

int bert_command_fill(int argc, char **argv)
{
    const char *load = NULL, *text;
    int64_t seq = 128, threads = 1, dtype = 0;
    bool json = false;
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "a checkpoint, or a folder of Hugging Face"},
        {"seq", OPTION_COUNT, "T", &seq, 8, 65536, "tokens of the text, at most"},
        {"dtype", OPTION_CHOICE, SESSION_DTYPES, &dtype, 0, 0,
         "it computes in; auto: as the checkpoint was trained, else f32"},
        {"json", OPTION_FLAG, NULL, &json, 0, 0, "print JSON"},
        {"threads", OPTION_COUNT, "N", &threads, 1, 1024, "workers"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    bert_config config;
    session_desc d = {.sample = &bert_sample,
                      .purpose = SAMPLE_EVALUATE,
                      .config = &config,
                      .shape = {1, 1, 1, false, 0}};
    session s;
    zf_wordpiece *vocab;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "fill --load DIR \"Paris is the [MASK] of France .\"", rows,
                         &text, &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!text) return command_usage_error(argv, "a text with [MASK] in it is needed");
    if (!(vocab = zf_folder_vocab(load, NULL, &error))) return command_error("%s", error.text);
    d.threads = threads;
    good = session_config(&bert_sample, load, &config, &error) &&
           session_open_folder(&s, load, &d, dtype, &error);
    if (good) {
        if (seq > config.positions) seq = config.positions;
        good = masked_fill_text(&s, &config, vocab, seq, text, NULL, json, &error);
        session_close(&s);
    }
    zf_wordpiece_free(vocab);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}
