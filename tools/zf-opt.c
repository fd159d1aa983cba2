/* zf-opt: reads a graph as text, runs passes over it, and prints the result.
 *
 *     build/zf-opt 'autograd %8; clip 1; adamw lr weight_decay=0.01; simplify; memory' < in.zf
 */
#define _GNU_SOURCE /* getopt_long */
#include "pass.h"
#include "picture.h"
#include "written.h"
#include "../examples/frame/options/files.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { GOOD, BAD, MISUSED }; /* exit status */

static void usage(FILE *out)
{
    fputs("Usage: zf-opt [OPTION]... PASSES [FILE]\n"
          "  or:  zf-opt [OPTION]... --check [FILE]\n"
          "Read a graph from FILE, or from standard input, run PASSES over it, and print it.\n"
          "PASSES is one argument, names with their arguments and ';' between them:\n"
          "  zf-opt 'autograd %8; clip 1; adamw lr weight_decay=0.01; simplify; memory' < in.zf\n"
          "\n"
          "  -c, --check        run no passes: read, verify and print\n"
          "  -q, --quiet        do not print the graph\n"
          "  -o, --output=FILE  print to FILE\n"
          "      --svg=FILE     draw the graph before and after PASSES (--check: as it is)\n"
          "      --dot=FILE     the same as text for graphviz\n"
          "      --html=FILE    a page about the plan: memory, queues, operators, traffic; memory "
          "must\n"
          "                     be the last of PASSES\n"
          "      --help         print this and exit\n"
          "\n"
          "Passes (a value is %ID or the name of an input, param, state or output):\n",
          out);
    pass_list(out);
    fputs("\nThe exit status is 0 if all went well, 1 for a bad graph or pass, 2 for bad usage.\n",
          out);
}

/* The text of the file, terminated; NULL with errno on failure. */
static char *read_all(FILE *file, size_t *bytes)
{
    char *text = NULL, *more;
    size_t room = 0;
    *bytes = 0;
    do {
        if (*bytes + 1 >= room) {
            room = room ? 2 * room : 65536;
            more = realloc(text, room);
            if (!more) break;
            text = more;
        }
        *bytes += fread(text + *bytes, 1, room - 1 - *bytes, file);
        text[*bytes] = '\0';
        if (feof(file)) return text;
    } while (!ferror(file));
    free(text);
    return NULL;
}

typedef struct pictures {
    const char *svg, *dot, *html; /* files; NULL: none */
} pictures;

/* Draws the graphs. `before` NULL: only the other. */
static int draw(const pictures *p, const zf_graph *before, const zf_graph *after, const char *title)
{
    for (int dot = 0; dot < 2; dot++) {
        const char *name = dot ? p->dot : p->svg;
        written w = {.path = NULL};
        zf_status status = ZF_ERR_NOMEM;
        zf_error error;
        if (!name) continue;
        written_open(&w, name);
        if (w.file)
            status = dot ? picture_graph_dot(before, after, title, w.file)
                         : picture_graph_svg(before, after, title, w.file);
        if (written_close(&w, !status, &error)) continue;
        fprintf(stderr, "zf-opt: %s\n", *error.text ? error.text : zf_status_name(status));
        return BAD;
    }
    return GOOD;
}

/* Writes the page about the plan. */
static int write_page(const pictures *p, zf_graph *graph, const char *title)
{
    zf_error error = {ZF_OK, ""};
    zf_report *r = p->html ? zf_report_new(title, NULL) : NULL;
    zf_status status = !p->html ? ZF_OK : r ? zf_report_plan(r, graph, NULL, NULL) : ZF_ERR_NOMEM;
    if (status) snprintf(error.text, sizeof error.text, "%s", zf_status_name(status));
    if (r && !status) status = zf_report_save(r, p->html, &error);
    zf_report_free(r);
    if (status) fprintf(stderr, "zf-opt: --html: %s\n", error.text);
    return status ? BAD : GOOD;
}

/* Runs the passes (NULL: none) over the text and prints the graph to `out` (NULL: nowhere). */
static int optimize(const char *name, const char *text, size_t bytes, const char *line, FILE *out,
                    const pictures *p)
{
    zf_error error = {ZF_OK, ""};
    char message[600] = "";
    zf_graph *graph = zf_graph_parse(text, bytes, NULL, &error), *before = NULL;
    pass_result result = PASS_DONE;
    zf_status status = ZF_OK;
    int end;
    if (!graph) {
        fprintf(stderr, "zf-opt: %s:%s\n", name, error.text);
        return BAD;
    }
    if (line && (p->svg || p->dot)) before = zf_graph_copy(graph);
    if (line) result = pass_run(graph, line, stdout, message, sizeof message);
    if (result) fprintf(stderr, "zf-opt: %s\n", message);
    else if (out) status = zf_graph_print(graph, out);
    if (status) fprintf(stderr, "zf-opt: cannot write: %s\n", strerror(errno));
    end = result == PASS_MISUSED ? MISUSED : result || status ? BAD : GOOD;
    if (!end) end = draw(p, before, graph, line ? line : name);
    if (!end) end = write_page(p, graph, line ? line : name);
    zf_graph_free(before);
    zf_graph_free(graph);
    return end;
}

static int file_error(const char *name)
{
    fprintf(stderr, "zf-opt: %s: %s\n", name, strerror(errno));
    return BAD;
}

static int misuse(const char *what)
{
    fprintf(stderr, "zf-opt: %s\nTry 'zf-opt --help'.\n", what);
    return MISUSED;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"check", no_argument, NULL, 'c'},
        {"quiet", no_argument, NULL, 'q'},
        {"output", required_argument, NULL, 'o'},
        {"svg", required_argument, NULL, 's'},
        {"dot", required_argument, NULL, 'd'},
        {"html", required_argument, NULL, 'p'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    const char *output = NULL, *line = NULL, *name = "standard input";
    pictures drawn = {.svg = NULL};
    bool check = false, quiet = false, failed;
    FILE *in = stdin;
    written out = {.file = stdout};
    named_files files = {.count = 0};
    zf_error error;
    char *text;
    size_t bytes;
    int option, result;
    signal(SIGXFSZ, SIG_IGN); /* a file that becomes too large is an error of the write */
    while ((option = getopt_long(argc, argv, "cqo:", options, NULL)) != -1) {
        switch (option) {
        case 'c': check = true; break;
        case 'q': quiet = true; break;
        case 'o': output = optarg; break;
        case 's': drawn.svg = optarg; break;
        case 'd': drawn.dot = optarg; break;
        case 'p': drawn.html = optarg; break;
        case 'h': usage(stdout); return GOOD;
        default: fputs("Try 'zf-opt --help'.\n", stderr); return MISUSED;
        }
    }
    if (!check) {
        if (optind == argc) return misuse("which passes?");
        line = argv[optind++];
    }
    if (argc - optind > 1) return misuse("more than one file");
    if (optind < argc && strcmp(argv[optind], "-")) {
        name = argv[optind];
        files_add(&files, "", name, false);
        in = fopen(name, "rb");
        if (!in) return file_error(name);
    }
    files_add(&files, "output", output, true);
    files_add(&files, "svg", drawn.svg, true), files_add(&files, "dot", drawn.dot, true);
    files_add(&files, "html", drawn.html, true);
    if (!files_apart(&files, &error)) return misuse(error.text);
    text = read_all(in, &bytes);
    if (!text) return file_error(name);
    if (in != stdin) fclose(in);
    if (output && !quiet) written_open(&out, output);
    result = out.file ? optimize(name, text, bytes, line, quiet ? NULL : out.file, &drawn) : BAD;
    free(text);
    if (out.path && !written_close(&out, !result, &error) && !result) {
        fprintf(stderr, "zf-opt: %s\n", error.text);
        return BAD;
    }
    failed = ferror(stdout);
    if ((fclose(stdout) || failed) && !result) return file_error("standard output");
    return result;
}
