/* The commands of the program, except tokenize. */
#include "commands.h"
#include "../../zeroflow_llm.h"
#include "../frame/commands/frame.h"
#include "../frame/folder/folder.h"
#include "../frame/folder/tokenizing.h"
#include "masked.h"
#include "model.h"

#include <stdio.h>

int bert_command_pretrain(int argc, char **argv)
{
    masked_options own = {.masked = 0};
    static const zf_option rows[] = {
        ZF_OPTION(masked_options, COUNT, masked, 15, "[1,100]", .unit = "PERCENT", .topic = "data",
                  .traits = ZF_OPTION_CHANGES,
                  .help = "percent of the words of training examples that are masked; held-out "
                          "examples have 15"),
        ZF_OPTION(masked_options, FLAG, no_nsp, 0, NULL,
                  .help = "train on masked words alone; examples have one segment"),
        ZF_OPTION(masked_options, CHOICE, sinusoids, 0, "drawn|sinusoids", .topic = "model",
                  .flag = "first-positions", .help = "position embedding of a new model"),
        ZF_OPTION(masked_options, CHOICE, unigrams, 0, "zero|unigrams", .flag = "first-bias",
                  .help =
                      "the bias of the words of a new model; unigrams: their shares of the text"),
        ZF_OPTION(masked_options, FLAG, pre_norm, 0, NULL, .traits = ZF_OPTION_CHANGES,
                  .help = "LayerNorm before each half of a layer instead of after it"),
        ZF_OPTION(masked_options, COUNT, experts, 0, "[0,16384]", .unit = "E",
                  .traits = ZF_OPTION_CHANGES,
                  .help = "layers have E experts in place of two products; 0: they have none"),
        ZF_OPTION(masked_options, COUNT, chosen, 2, "[1,64]", .flag = "top-k", .unit = "K",
                  .traits = ZF_OPTION_CHANGES, .with = "experts",
                  .help = "experts of a token, each with a K-th of the products' hidden numbers"),
        ZF_OPTION(masked_options, NUMBER, aux_loss, 0, "[0,1e3]", .traits = ZF_OPTION_CHANGES,
                  .with = "experts",
                  .help = "factor of the loss that spreads tokens over experts; 0: there is none"),
        ZF_OPTION(masked_options, NUMBER, balance_bias, 0, "[0,1]", .traits = ZF_OPTION_CHANGES,
                  .with = "experts",
                  .help = "routers have a bias for the choice, which moves by this in a step; 0: none"),
        ZF_OPTION(masked_options, CHOICE, recipe, 0, "off|bert44", .topic = "phases",
                  .with = "corpus",
                  .help = "bert44: that of BERT-large in 44 minutes, for --batch B examples of "
                          "--seq tokens (512) in --steps steps (6760)"),
        {.name = NULL}};
    return pretrain_command(&bert_sample,
                            &(settings_desc){.own = {.rows = rows, .desc = &own},
                                             .choose = recipe_choose},
                            argc, argv);
}

int bert_command_export(int argc, char **argv) { return export_command(&bert_sample, argc, argv); }
int bert_command_merge(int argc, char **argv) { return merge_command(&bert_sample, argc, argv); }

typedef struct vocab_options {
    const char *corpus, *vocab;
    int64_t size;
    tokenizing words;
} vocab_options;

static const zf_option vocab_rows[] = {
    ZF_OPTION(vocab_options, TEXT, corpus, 0, NULL, .unit = "FILE", .topic = "files",
              .traits = ZF_OPTION_READS,
              .help = "the text"),
    ZF_OPTION(vocab_options, TEXT, vocab, 0, NULL, .unit = "FILE", .traits = ZF_OPTION_WRITES,
              .help = "the vocab.txt to write"),
    ZF_OPTION(vocab_options, COUNT, size, 8192, "[16,10000000]", .topic = "tokens",
              .help = "maximum number of tokens"),
    ZF_OPTION(vocab_options, DESC, words, 0, NULL, .rows = tokenizing_rows),
    {.name = NULL}};

int bert_command_vocab(int argc, char **argv)
{
    vocab_options o = {.corpus = NULL};
    const command_tables tables = {.all = {{.rows = vocab_rows, .desc = &o}}, .count = 1};
    zf_wordpiece_options options;
    zf_error error = {ZF_OK, ""};
    int status;
    int32_t tokens;
    if (!command_options(argc, argv, "vocab --corpus FILE --vocab FILE [OPTIONS]", &tables, NULL,
                         &status))
        return status;
    if (!o.corpus) return command_usage_error(argv, "a text is needed: --corpus FILE");
    if (!o.vocab) return command_usage_error(argv, "a file to write is needed: --vocab FILE");
    options = tokenizing_options(&o.words);
    tokens = zf_wordpiece_train(o.corpus, (int32_t)o.size, &options, o.vocab, &error);
    if (tokens < 0) return command_error("%s", error.text);
    printf("%s: %d tokens\n", o.vocab, (int)tokens);
    return EXIT_GOOD;
}

typedef struct fill_options {
    folder_options from;
    int64_t seq;
    bool json;
} fill_options;

static const zf_option fill_rows[] = {
    ZF_OPTION(fill_options, COUNT, seq, 128, "[8,65536]", .unit = "T", .topic = "text",
              .help = "maximum number of tokens of the text"),
    ZF_OPTION(fill_options, FLAG, json, 0, NULL, .help = "print JSON"),
    {.name = NULL}};

int bert_command_fill(int argc, char **argv)
{
    fill_options o = {.json = false};
    const command_tables tables = {.all = {{.rows = folder_load_rows, .desc = &o.from},
                                    {.rows = fill_rows, .desc = &o},
                                    {.rows = folder_compute_rows, .desc = &o.from}},
                                   .count = 3};
    bert_config config;
    session_desc d = {.sample = &bert_sample,
                      .purpose = SAMPLE_EVALUATE,
                      .config = &config,
                      .shape = {.batch = 1, .sequence = 1, .predictions = 1}};
    session s;
    const char *text;
    zf_wordpiece *vocab;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "fill --load DIR \"Paris is the [MASK] of France .\"", &tables,
                         &text, &status))
        return status;
    if (!o.from.load) return command_usage_error(argv, folder_is_missing);
    if (!text) return command_usage_error(argv, "a text with [MASK] in it is needed");
    if (!(vocab = zf_folder_vocab(o.from.load, NULL, &error)))
        return command_error("%s", error.text);
    d.threads = folder_threads(&o.from), d.average = o.from.average;
    good = session_config(&bert_sample, o.from.load, NULL, &config, &error) &&
           masked_predicts(&config, o.from.load, &error) &&
           session_open_folder(&s, o.from.load, &d, o.from.dtype, &error);
    if (good) {
        const int64_t most = zf_config_positions(bert_sample.config(), &config);
        if (o.seq > most) o.seq = most;
        good = masked_fill_text(&s, &config, vocab, o.seq, text, NULL, o.json, &error);
        session_close(&s);
    }
    zf_wordpiece_free(vocab);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}
