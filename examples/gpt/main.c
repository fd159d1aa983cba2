/* gpt: trains a GPT-2 on a text, continues sentences, exports its weights. */
#include "commands.h"

#include <stdarg.h>
#include <string.h>

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"pretrain", "train on the next token", gpt_command_pretrain},
    {"generate", "continue a text", gpt_command_generate},
    {"export", "write a checkpoint's weights as GPT-2's files have them", gpt_command_export},
};

int gpt_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("gpt: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EXIT_FAILED;
}

int gpt_usage_error(char **argv, const char *text)
{
    gpt_error("%s: %s; 'gpt %s --help' lists the options", argv[1], text, argv[1]);
    return EXIT_USAGE;
}

bool gpt_options(int argc, char **argv, const char *usage, const option_row *rows,
                 const char **rest, int *status)
{
    char error[512];
    int count;
    if (rest) *rest = NULL;
    switch (
        options_parse(argc - 1, argv + 1, rows, rest, rest ? 1 : 0, &count, error, sizeof error)) {
    case OPTIONS_GOOD: return true;
    case OPTIONS_HELP:
        printf("usage: gpt %s\n\n", usage);
        options_print(stdout, rows);
        *status = EXIT_GOOD;
        return false;
    default: *status = gpt_usage_error(argv, error); return false;
    }
}

static void print_usage(FILE *out)
{
    fputs("usage: gpt COMMAND [OPTIONS]\n\n", out);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(out, "  %-10s%s\n", commands[i].name, commands[i].summary);
    fputs("\n'gpt COMMAND --help' lists its options.\n", out);
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
    gpt_error("there is no command '%s'; 'gpt --help' lists them", argv[1]);
    return EXIT_USAGE;
}
