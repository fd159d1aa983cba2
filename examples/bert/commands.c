/* The smaller commands: vocab, eval, fill, export. */
#include "../common/folder.h"
#include "../common/tokenizing.h"
#include "commands.h"

#include <stdio.h>
#include <string.h>

int bert_command_vocab(int argc, char **argv)
{
    const char *corpus = NULL, *out = NULL;
    int64_t size = 8192;
    tokenizing words = {.cased = false};
    bert_tokenizer_options options;
    char err[512];
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
    tokens = bert_vocab_train(corpus, (int32_t)size, &options, out, err, sizeof err);
    if (tokens < 0) return command_error("%s", err);
    printf("%s: %d tokens\n", out, (int)tokens);
    return EXIT_GOOD;
}

void bert_score_print(const bert_score *score, const bert_config *config, double unigram_nats)
{
    printf("MLM loss %.4f, accuracy %.1f%% of %lld masked words", score->mlm_loss,
           100 * score->mlm_accuracy, (long long)score->labelled);
    if (config->nsp) printf("; NSP loss %.4f", score->nsp_loss);
    printf("; unigram entropy %.4f\n", unigram_nats);
}

int bert_command_eval(int argc, char **argv)
{
    const char *load = NULL, *corpus = NULL;
    int64_t seq = 128, batch = 16, batches = 16, threads = 1, dtype = 0;
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "a checkpoint, or a folder of Hugging Face"},
        {"corpus", OPTION_TEXT, "FILE", &corpus, 0, 0, "the text, whose held-out part is used"},
        {"seq", OPTION_COUNT, "T", &seq, 8, 65536, "tokens of an example"},
        {"batch", OPTION_COUNT, "B", &batch, 1, 1 << 20, "examples at a time"},
        {"batches", OPTION_COUNT, "N", &batches, 1, 1e6, "how many of them"},
        {"dtype", OPTION_CHOICE, BERT_DTYPES, &dtype, 0, 0,
         "it computes in; auto: as the checkpoint was trained, else f32"},
        {"threads", OPTION_COUNT, "N", &threads, 1, 1024, "workers"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    bert_session s;
    bert_config config;
    bert_text text;
    bert_score score;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "eval --load DIR --corpus FILE [OPTIONS]", rows, NULL,
                         &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!corpus) return command_usage_error(argv, "a text is needed: --corpus FILE");
    if (!bert_folder_config(load, &config, &error) ||
        !bert_text_open(&text, corpus, load, NULL, config.nsp, seq, 0, 1, threads, &error))
        return command_error("%s", error.text);
    good = bert_folder_open(&s, load, &config,
                            &(bert_shape){batch, seq, bert_predictions(batch, seq, 0)}, threads,
                            dtype, &error);
    if (good) {
        good = bert_session_score(&s, text.held_out, batches, &score, &error);
        bert_session_close(&s);
    }
    if (good) bert_score_print(&score, &config, text.corpus->unigram_nats);
    else command_error("%s", error.text);
    bert_text_close(&text);
    return good ? EXIT_GOOD : EXIT_FAILED;
}

int bert_command_fill(int argc, char **argv)
{
    const char *load = NULL, *text;
    int64_t seq = 128, threads = 1, dtype = 0;
    bool json = false;
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "a checkpoint, or a folder of Hugging Face"},
        {"seq", OPTION_COUNT, "T", &seq, 8, 65536, "tokens of the text, at most"},
        {"dtype", OPTION_CHOICE, BERT_DTYPES, &dtype, 0, 0,
         "it computes in; auto: as the checkpoint was trained, else f32"},
        {"json", OPTION_FLAG, NULL, &json, 0, 0, "print JSON"},
        {"threads", OPTION_COUNT, "N", &threads, 1, 1024, "workers"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    bert_session s;
    bert_config config;
    bert_vocab *vocab;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "fill --load DIR \"Paris is the [MASK] of France .\"", rows,
                         &text, &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!text) return command_usage_error(argv, "a text with [MASK] in it is needed");
    if (!(vocab = folder_vocab(load, NULL, &error))) return command_error("%s", error.text);
    good = bert_folder_config(load, &config, &error) &&
           bert_folder_open(&s, load, &config, &(bert_shape){1, 8, 1}, threads, dtype, &error);
    if (good) {
        if (seq > config.positions) seq = config.positions;
        good = bert_fill_text(&s, &config, vocab, seq, text, NULL, json, &error);
        bert_session_close(&s);
    }
    bert_vocab_free(vocab);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}

int bert_command_export(int argc, char **argv)
{
    const char *load = NULL, *out;
    int64_t dtype = ZF_F32;
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "a checkpoint, or a folder of Hugging Face"},
        {"dtype", OPTION_CHOICE, "f32|bf16|f16", &dtype, 0, 0,
         "of the weights that are written; f32 are the master weights of runs in 16 bits"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    bert_session s;
    bert_config config;
    zf_error error = {ZF_OK, ""};
    char file[FOLDER_PATH];
    int status;
    bool good;
    if (!command_options(argc, argv, "export --load DIR [OPTIONS] DIR|FILE.safetensors", rows, &out,
                         &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!out) return command_usage_error(argv, "a folder or a file to write is needed");
    good = bert_folder_config(load, &config, &error) &&
           bert_folder_open(&s, load, &config, &(bert_shape){1, 8, 1}, 1, 1 + ZF_F32, &error);
    if (good) {
        good = folder_export(out, load, bert_config_json(&config), FOLDER_BERT, config.positions,
                             file, &error) &&
               !bert_export(s.program, s.graph, file, false, (zf_dtype)dtype, &error);
        bert_session_close(&s);
    }
    return good ? EXIT_GOOD : command_error("%s", error.text);
}
