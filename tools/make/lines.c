/* Writes api/lines.h, the macros by which builders note the line that calls them, to standard
 * output:
 *
 *     lines HEADER...
 *
 *     ZF_BUILDER zf_tensor zf_neg(zf_tensor x);
 *
 *         #define zf_neg(x) zf_neg(zf_at((x), __FILE__, __LINE__))
 *         #undef zf_neg
 *
 * Each row of ZF_OPS with B(NAME, ...) needs such a declaration of zf_NAME. Exit status 1 with a
 * message where it is missing, where the first parameter of a builder is neither a zf_tensor nor a
 * zf_graph *, or where a file cannot be read or written. */
#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 64, MOST = 512, COLUMNS = 100 };

static struct builder {
    char name[NAME];
    bool graph; /* its first parameter is the graph */
    bool more;  /* it has others */
} builders[MOST];
static int count;

static void stop(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("lines: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t size = 0, room = 0, n;
    if (!file) stop("%s: cannot be read", path);
    do {
        if (room - size < 2 && !(text = realloc(text, room = 2 * room + 65536)))
            stop("out of memory");
        size += n = fread(text + size, 1, room - size - 1, file);
    } while (n);
    if (ferror(file)) stop("%s: cannot be read", path);
    fclose(file);
    text[size] = '\0';
    return text;
}

/* The name that ends at `end`, copied. */
static void name_before(const char *end, const char *begin, char name[NAME])
{
    const char *at = end;
    while (at > begin && (isalnum((unsigned char)at[-1]) || at[-1] == '_')) at--;
    if (end - at >= NAME) stop("a name is longer than %d", NAME - 1);
    memcpy(name, at, (size_t)(end - at));
    name[end - at] = '\0';
}

/* A line that begins with ZF_BUILDER. */
static void add_builder(const char *path, const char *at)
{
    const char *open = strchr(at, '(');
    struct builder *b = &builders[count];
    if (!open || count == MOST) stop("%s: there are too many builders, or half a one", path);
    name_before(open, at, b->name);
    b->graph = !strncmp(open + 1, "zf_graph *", 10);
    if (!b->graph && strncmp(open + 1, "zf_tensor ", 10) != 0)
        stop("%s: the first parameter of %s must be a zf_tensor or a zf_graph *", path, b->name);
    b->more = open[strcspn(open, ",)")] == ',';
    count++;
}

static void find_builders(const char *path, const char *text)
{
    static const char mark[] = "\nZF_BUILDER ";
    while ((text = strstr(text, mark)) != NULL) add_builder(path, text += sizeof mark - 1);
}

/* Rows say B(NAME, UNARY) or B(NAME, BINARY). */
static void check_rows(const char *path, const char *text)
{
    for (; (text = strstr(text, " B(")) != NULL; text += 3) {
        const char *end = text + strcspn(text, ",)");
        char name[NAME], function[NAME + 3];
        int k = 0;
        if (strncmp(end, ", UNARY)", 8) != 0 && strncmp(end, ", BINARY)", 9) != 0) continue;
        name_before(end, text, name);
        snprintf(function, sizeof function, "zf_%s", name);
        while (k < count && strcmp(builders[k].name, function) != 0) k++;
        if (k == count)
            stop("%s: the row of %s says B: declare ZF_BUILDER zf_tensor %s(...) among the "
                 "builders",
                 path, name, function);
    }
}

static void write_define(const struct builder *b)
{
    const char *x = b->graph ? "g" : "x", *at = b->graph ? "zf_graph_at" : "zf_at";
    const char *more = b->more ? ", ..." : "", *rest = b->more ? ", __VA_ARGS__" : "";
    char head[2 * COLUMNS], body[2 * COLUMNS];
    snprintf(head, sizeof head, "#define %.63s(%s%s)", b->name, x, more);
    snprintf(body, sizeof body, "%.63s(%s((%s), __FILE__, __LINE__)%s)", b->name, at, x, rest);
    if (strlen(head) + 1 + strlen(body) <= COLUMNS) printf("%s %s\n", head, body);
    else printf("%-*s\\\n    %s\n", COLUMNS - 1, head, body);
}

int main(int argc, char **argv)
{
    char *text[64];
    if (argc < 2 || argc > 64) {
        fputs("usage: lines HEADER...\n", stderr);
        return 2;
    }
    for (int k = 1; k < argc; k++) find_builders(argv[k], text[k] = read_file(argv[k]));
    for (int k = 1; k < argc; k++) check_rows(argv[k], text[k]), free(text[k]);
    if (!count) stop("there are no builders");
    puts("/* Made by `make lines` (tools/make/lines.c) of the declarations that begin with "
         "ZF_BUILDER.\n"
         " * Included once, it defines their macros; included again, it removes them. "
         "A macro is not\n"
         " * expanded within itself: the name on the right is the function. */");
    printf("#ifndef %s\n", builders[0].name);
    for (int k = 0; k < count; k++) write_define(&builders[k]);
    puts("#else");
    for (int k = 0; k < count; k++) printf("#undef %s\n", builders[k].name);
    puts("#endif");
    if (fflush(stdout) || ferror(stdout)) stop("the output cannot be written");
    return 0;
}
