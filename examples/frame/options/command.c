#define _XOPEN_SOURCE 700
#include "command.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static const command_program *program; /* set by command_main */

int command_error(const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* In one call, since other processes may write at the same time. */
    fprintf(stderr, "%s: %s\n", program->name, text);
    return EXIT_FAILED;
}

int command_usage_error(char **argv, const char *text)
{
    command_error("%s: %s; '%s %s --help' lists the options", argv[1], text, program->name,
                  argv[1]);
    return EXIT_USAGE;
}

int command_asks(int argc, char **argv)
{
    int at = 2;
    while (at < argc && strcmp(argv[at], "--help") && strcmp(argv[at], "-h")) at++;
    return at < argc ? at : argc;
}

bool command_help(int argc, char **argv, const zf_options *all, int32_t count, const char *usage,
                  const char *without, int *status)
{
    zf_error error;
    const int at = command_asks(argc, argv);
    const char *topic;
    if (at >= argc) return false;
    topic = at + 1 < argc && argv[at + 1][0] != '-' ? argv[at + 1] : without;
    printf("usage: %s %s\n\n", program->name, usage);
    *status = EXIT_GOOD;
    if (zf_options_help(all, count, topic, stdout, &error))
        *status = command_usage_error(argv, error.text);
    return true;
}

void command_add(command_tables *t, const zf_option *rows, void *desc)
{
    if (rows) t->all[t->count++] = (zf_options){.rows = rows, .desc = desc};
}

bool command_options(int argc, char **argv, const char *usage, const command_tables *t,
                     const char **rest, int *status)
{
    zf_error error = {ZF_OK, ""};
    named_files files = {.count = 0};
    char text[sizeof error.text] = "";
    int left = argc - 1, most = rest ? 2 : 1;
    if (command_help(argc, argv, t->all, t->count, usage, "all", status)) return false;
    if (zf_options_take(t->all, t->count, &left, argv + 1, &error) ||
        zf_options_check(t->all, t->count, true, &error))
        snprintf(text, sizeof text, "%s", error.text);
    else if (left > most)
        snprintf(text, sizeof text, "'%.100s' is one argument too many", argv[1 + most]);
    if (*text) *status = command_usage_error(argv, text);
    if (*text) return false;
    files_add_options(&files, t->all, t->count);
    if (!files_apart(&files, &error)) *status = command_error("%s", error.text);
    if (error.status) return false;
    if (!t->open) zf_options_resolve(t->all, t->count);
    if (rest) *rest = left > 1 ? argv[2] : NULL;
    return true;
}

static void print_usage(FILE *out)
{
    fprintf(out, "usage: %s COMMAND [OPTIONS]\n\n", program->name);
    for (const command *c = program->commands; c->name; c++)
        if (c->summary) fprintf(out, "  %-10s%s\n", c->name, c->summary);
    fprintf(out, "\n'%s COMMAND --help' lists its options.\n", program->name);
}

/* Opens standard streams that are closed. Otherwise a file opened later would get the number of
 * such a stream, and receive the output printed to it. */
static void open_streams(void)
{
    int file;
    do file = open("/dev/null", O_RDWR);
    while (file >= 0 && file <= STDERR_FILENO);
    if (file > STDERR_FILENO) close(file);
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_usage(stdout);
        return EXIT_GOOD;
    }
    for (const command *c = program->commands; c->name; c++)
        if (!strcmp(argv[1], c->name)) return c->run(argc, argv);
    command_error("there is no command '%s'; '%s --help' lists them", argv[1], program->name);
    return EXIT_USAGE;
}

int command_main(const command_program *self, int argc, char **argv)
{
    int status;
    program = self;
    open_streams();
    signal(SIGXFSZ, SIG_IGN); /* a file that becomes too large is an error of the write */
    status = run_command(argc, argv);
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout)) return status;
    command_error("what was printed could not be written: %s",
                  errno ? strerror(errno) : "an earlier write has failed");
    return status ? status : EXIT_FAILED;
}
