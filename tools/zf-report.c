/* zf-report: several runs on one page, with their curves over one another.
 *
 *     build/zf-report runs/a/log.csv runs/b > page.html
 *
 * A run is a log (--log FILE), or a folder with log.csv. The held-out losses next to it, of log.csv
 * in log.eval.csv, are read as well. */
#include "../zeroflow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { GOOD, BAD, MISUSED }; /* exit status */
enum { COLUMNS = 64, LINE = 4096, PATH = 4096 };

static int fail(const char *path, int64_t line, const char *what)
{
    fprintf(stderr, "zf-report: %s:", path);
    if (line) fprintf(stderr, "%lld:", (long long)line);
    fprintf(stderr, " %s\n", what);
    return BAD;
}

/* The name of a column in a stream of metrics. */
static const char *metric_name(const char *column)
{
    if (!strcmp(column, "lr")) return "learning_rate";
    return strcmp(column, "tokens_per_s") ? column : "train_tokens_per_second";
}

/* Splits a line at its commas, without its end; returns the number of fields. */
static int split(char *line, char *fields[COLUMNS])
{
    int count = 0;
    line[strcspn(line, "\r\n")] = 0;
    while (count < COLUMNS) {
        fields[count++] = line;
        if (!(line = strchr(line, ','))) break;
        *line++ = 0;
    }
    return count;
}

/* Gives the sink the numbers of a row. */
static int take_row(const zf_sink *sink, char *const *names, char *const *fields, int count,
                    const char *path, int64_t line)
{
    zf_error error = {ZF_OK, ""};
    char *end;
    const int64_t step = strtoll(fields[0], &end, 10);
    if (end == fields[0] || *end)
        return fail(path, line, "a row must begin with the number of its step");
    for (int k = 1; k < count; k++) {
        const zf_metric m = {
            .name = metric_name(names[k]), .step = step, .value = strtod(fields[k], &end)};
        if (end == fields[k] || *end) return fail(path, line, "a field is not a number");
        if (sink->put(sink->self, &m, 1, &error)) return fail(path, line, error.text);
    }
    return GOOD;
}

static int read_log(const zf_sink *sink, const char *path, FILE *in)
{
    static char header[LINE], row[LINE];
    char *names[COLUMNS], *fields[COLUMNS];
    int columns, end = GOOD;
    if (!fgets(header, sizeof header, in)) return fail(path, 0, "the file is empty");
    columns = split(header, names);
    if (strcmp(names[0], "step") || columns < 2)
        return fail(path, 1, "this is no log: its first column must be \"step\"");
    for (int64_t line = 2; !end && fgets(row, sizeof row, in); line++) {
        const bool whole = strchr(row, '\n') != NULL;
        if (!whole && feof(in)) break; /* a run is writing it, or was killed */
        if (split(row, fields) != columns)
            return fail(path, line, "a row must have the columns of the header");
        end = take_row(sink, names, fields, columns, path, line);
    }
    return end;
}

/* needed false: a missing file is nothing. */
static int read_file(const zf_sink *sink, const char *path, bool needed)
{
    FILE *in = fopen(path, "r");
    int end;
    if (!in) return needed || errno != ENOENT ? fail(path, 0, strerror(errno)) : GOOD;
    end = read_log(sink, path, in);
    fclose(in);
    return end;
}

/* Reads the log of a run, and its held-out losses. */
static int read_run(zf_report *r, const zf_sink *sink, const char *name)
{
    char path[PATH], held_out[PATH + 16];
    struct stat about;
    const bool folder = !stat(name, &about) && S_ISDIR(about.st_mode);
    size_t length;
    int end;
    if (zf_report_run(r, name)) return fail(name, 0, "a page has at most 16 runs");
    if (snprintf(path, sizeof path, folder ? "%s/log.csv" : "%s", name) >= (int)sizeof path)
        return fail(name, 0, strerror(ENAMETOOLONG));
    length = strlen(path);
    if (length > 4 && !strcmp(path + length - 4, ".csv")) length -= 4;
    snprintf(held_out, sizeof held_out, "%.*s.eval.csv", (int)length, path);
    end = read_file(sink, path, true);
    return end ? end : read_file(sink, held_out, false);
}

static void usage(FILE *out)
{
    fputs("Usage: zf-report RUN... > page.html\n"
          "Write a page with the curves of several runs over one another.\n"
          "A RUN is a log (--log FILE), or a folder with log.csv.\n\n"
          "The exit status is 0 if the page is written, 1 for a log that cannot be read, 2 for bad "
          "usage.\n",
          out);
}

int main(int argc, char **argv)
{
    zf_report *r;
    zf_sink sink;
    const char *text;
    size_t bytes = 0;
    int end = GOOD;
    if (argc > 1 && !strcmp(argv[1], "--help")) return usage(stdout), GOOD;
    if (argc < 2 || argv[1][0] == '-') {
        fputs("zf-report: which runs?\nTry 'zf-report --help'.\n", stderr);
        return MISUSED;
    }
    r = zf_report_new(argc > 2 ? "Runs" : argv[1], NULL);
    if (!r || zf_report_sink(r, NULL, 0, &sink, NULL)) return fail(argv[1], 0, "out of memory");
    for (int k = 1; k < argc && !end; k++) end = read_run(r, &sink, argv[k]);
    if (!end && !(text = zf_report_text(r, &bytes))) end = fail(argv[1], 0, "out of memory");
    if (!end && (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout)))
        end = fail("standard output", 0, strerror(errno));
    zf_report_free(r);
    return end;
}
