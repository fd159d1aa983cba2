/* bert tokenize: the ids or tokens of texts. */
#define _POSIX_C_SOURCE 200809L
#include "../../zeroflow_llm.h"
#include "../frame/folder/tokenizing.h"
#include "commands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct printer {
    const zf_wordpiece *vocab;
    bool bare, tokens;
    int32_t *ids;
    int64_t room;
} printer;

static void put(const printer *p, int32_t id, bool first)
{
    if (!first) putchar(' ');
    if (p->tokens) printf("%s", zf_wordpiece_token(p->vocab, id));
    else printf("%d", (int)id);
}

/* Prints a line for a text; false: no memory. */
static bool print_text(printer *p, const char *text, size_t bytes)
{
    int64_t n = zf_wordpiece_encode(p->vocab, text, bytes, ZF_WORDPIECE_SPECIAL, p->ids, p->room);
    if (n > p->room) {
        int32_t *more = realloc(p->ids, (size_t)n * sizeof *more);
        if (!more) return false;
        p->ids = more;
        p->room = n;
        zf_wordpiece_encode(p->vocab, text, bytes, ZF_WORDPIECE_SPECIAL, p->ids, n);
    }
    if (!p->bare) put(p, zf_wordpiece_id(p->vocab, "[CLS]"), true);
    for (int64_t i = 0; i < n; i++) put(p, p->ids[i], p->bare && !i);
    if (!p->bare) put(p, zf_wordpiece_id(p->vocab, "[SEP]"), false);
    putchar('\n');
    return true;
}

/* Reads the lines of the standard input. */
static int print_lines(printer *p)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    bool good = true;
    errno = 0;
    while (good && (n = getline(&line, &room, stdin)) >= 0) {
        if (n && line[n - 1] == '\n') n--;
        good = print_text(p, line, (size_t)n);
    }
    free(line);
    if (!good || errno == ENOMEM) return command_error("out of memory");
    if (ferror(stdin)) return command_error("standard input: %s", strerror(errno));
    return EXIT_GOOD;
}

typedef struct tokenize_options {
    const char *vocab;
    tokenizing words;
    bool bare, tokens;
} tokenize_options;

static const zf_option rows[] = {
    ZF_OPTION(tokenize_options, TEXT, vocab, 0, NULL, .unit = "FILE|DIR", .topic = "tokens",
              .traits = ZF_OPTION_READS,
              .help = "a vocab.txt, a tokenizer.json, or a folder with one: a checkpoint or of "
                      "Hugging Face"),
    ZF_OPTION(tokenize_options, DESC, words, 0, NULL, .rows = tokenizing_rows),
    ZF_OPTION(tokenize_options, FLAG, bare, 0, NULL,
              .help = "leave out [CLS] before and [SEP] after the text"),
    ZF_OPTION(tokenize_options, FLAG, tokens, 0, NULL, .help = "print tokens in place of ids"),
    {.name = NULL}};

int bert_command_tokenize(int argc, char **argv)
{
    tokenize_options o = {.vocab = NULL};
    const command_tables tables = {.all = {{.rows = rows, .desc = &o}}, .count = 1};
    const char *text;
    printer p;
    zf_wordpiece_options options;
    zf_wordpiece *vocab;
    zf_error error = {ZF_OK, ""};
    int status;
    if (!command_options(argc, argv,
                         "tokenize --vocab FILE|DIR [OPTIONS] [TEXT]\n\n"
                         "Prints the ids of a text, or of each line of the standard input.",
                         &tables, &text, &status))
        return status;
    if (!o.vocab) return command_usage_error(argv, "a vocabulary is needed: --vocab FILE|DIR");
    options = tokenizing_options(&o.words);
    if (!(vocab = zf_folder_vocab(o.vocab, &options, &error)))
        return command_error("%s", error.text);
    p = (printer){.vocab = vocab, .bare = o.bare, .tokens = o.tokens};
    if (!text) status = print_lines(&p);
    else if (print_text(&p, text, strlen(text))) status = EXIT_GOOD;
    else status = command_error("out of memory");
    free(p.ids);
    zf_wordpiece_free(vocab);
    return status;
}
