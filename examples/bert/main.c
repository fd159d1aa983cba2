/* bert: pretrains BERT on a text, evaluates it, fills in masked words, exports its weights. */
#include "commands.h"
#include "ranks.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"pretrain", "train on masked words and next sentences", bert_command_pretrain},
    {"vocab", "make a WordPiece vocabulary from a text", bert_command_vocab},
    {"eval", "loss and accuracy of a checkpoint on the held-out part of a text", bert_command_eval},
    {"fill", "guess the [MASK] words of a sentence", bert_command_fill},
    {"export", "write a checkpoint's weights under Hugging Face names", bert_command_export},
};

/* One of several processes that a launcher has started, and not the first: all make the same
 * mistakes, which are told once. */
static bool is_echo(void)
{
    int64_t rank, world;
    return bert_launcher(&rank, &world) && rank > 0;
}

int bert_error(const char *format, ...)
{
    va_list args;
    if (is_echo()) return EXIT_FAILED;
    va_start(args, format);
    fputs("bert: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EXIT_FAILED;
}

int bert_usage_error(char **argv, const char *text)
{
    bert_error("%s: %s; 'bert %s --help' lists the options", argv[1], text, argv[1]);
    return EXIT_USAGE;
}

bool bert_options(int argc, char **argv, const char *usage, const option_row *rows,
                  const char **rest, int *status)
{
    char error[512];
    int count;
    if (rest) *rest = NULL;
    switch (
        options_parse(argc - 1, argv + 1, rows, rest, rest ? 1 : 0, &count, error, sizeof error)) {
    case OPTIONS_GOOD: return true;
    case OPTIONS_HELP:
        printf("usage: bert %s\n\n", usage);
        options_print(stdout, rows);
        *status = EXIT_GOOD;
        return false;
    default: *status = bert_usage_error(argv, error); return false;
    }
}

static void print_usage(FILE *out)
{
    fputs("usage: bert COMMAND [OPTIONS]\n\n", out);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(out, "  %-10s%s\n", commands[i].name, commands[i].summary);
    fputs("\n'bert COMMAND --help' lists its options.\n", out);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_usage(stdout);
        return EXIT_GOOD;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (!strcmp(argv[1], commands[i].name)) return commands[i].run(argc, argv);
    bert_error("there is no command '%s'; 'bert --help' lists them", argv[1]);
    return EXIT_USAGE;
}
