/* Writes one self-contained header to standard output:
 *
 *     amalgamate VERSION LICENSE HEADER [NAME=FILE ...]
 *
 *     HEADER                                          output
 *       #include "base/alloc.c"                 ->     the file's lines, its own includes replaced
 *       #include <stb/stb_ds.h>, named by NAME   ->     FILE's lines, between pragmas
 *       #include "zeroflow.h", by NAME, no FILE  ->     itself
 *       any other line                           ->     itself
 *
 * The output begins with the version and the licence, as a comment. A quoted name is relative to
 * the file that includes it. Exit status 1 with a message where a file cannot be read or
 * written. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096, PATH = 1024, DEEPEST = 16 };

static char **foreign; /* NAME=FILE arguments, ended by NULL */

static void stop(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("amalgamate: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

/* Reads the next line of `path` without its line end; false after the last. */
static int next_line(FILE *file, const char *path, char line[LINE])
{
    size_t length;
    if (!fgets(line, LINE, file)) {
        if (ferror(file)) stop("%s: cannot be read", path);
        return 0;
    }
    length = strlen(line);
    if (length == LINE - 1) stop("%s: a line is longer than %d", path, LINE - 2);
    while (length && strchr("\r\n", line[length - 1])) line[--length] = '\0';
    return 1;
}

static FILE *open_file(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file) stop("%s: cannot be read", path);
    return file;
}

/* The file given for <name>, or NULL. */
static const char *find_foreign(const char *name)
{
    size_t length = strlen(name);
    for (char **f = foreign; *f; f++)
        if (!strncmp(*f, name, length) && (*f)[length] == '=') return *f + length + 1;
    return NULL;
}

/* The quoted name remains an include. */
static int stays(const char *name)
{
    const char *file = find_foreign(name);
    return file && !*file;
}

static void copy_file(const char *path, int depth)
{
    char line[LINE], name[PATH], inner[PATH];
    const char *slash = strrchr(path, '/'), *file_of_name;
    int folder = slash ? (int)(slash - path) + 1 : 0;
    FILE *file = open_file(path);
    if (depth > DEEPEST) stop("%s: includes itself", path);
    while (next_line(file, path, line)) {
        if (sscanf(line, "#include \"%1000[^\"]\"", name) == 1 && !stays(name)) {
            if (snprintf(inner, sizeof inner, "%.*s%s", folder, path, name) >= PATH)
                stop("%s: the path of '%s' is too long", path, name);
            printf("\n/* ==== %s */\n", name);
            copy_file(inner, depth + 1);
        } else if (sscanf(line, "#include <%1000[^>]>", name) == 1 &&
                   (file_of_name = find_foreign(name))) {
            printf("\n/* ==== <%s>, whose licence is at its end */\n"
                   "#if defined(__GNUC__)\n"
                   "#pragma GCC diagnostic push\n"
                   "#pragma GCC diagnostic ignored \"-Wconversion\"\n"
                   "#pragma GCC diagnostic ignored \"-Wsign-conversion\"\n"
                   "#endif\n",
                   name);
            copy_file(file_of_name, depth + 1);
            fputs("#if defined(__GNUC__)\n"
                  "#pragma GCC diagnostic pop\n"
                  "#endif\n"
                  "/* ==== back */\n\n",
                  stdout);
        } else {
            puts(line);
        }
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    char line[LINE];
    FILE *licence;
    if (argc < 4) {
        fputs("usage: amalgamate VERSION LICENSE HEADER [NAME=FILE ...]\n", stderr);
        return 2;
    }
    foreign = argv + 4;
    licence = open_file(argv[2]);
    printf("/* zeroflow %s, in one file made from its sources.\n *\n", argv[1]);
    while (next_line(licence, argv[2], line)) printf(" *%s%s\n", *line ? " " : "", line);
    printf(" */\n");
    fclose(licence);
    copy_file(argv[3], 0);
    if (fflush(stdout) || ferror(stdout)) stop("the output cannot be written");
    return 0;
}
