#define _POSIX_C_SOURCE 200809L
#include "step_log.h"
#include "../options/fail.h"
#include "training.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool io_error(zf_error *error, const char *path)
{
    return fail(error, ZF_ERR_IO, "%s: %s", path, strerror(errno));
}

static int losses_of(const step_log *log)
{
    int n = 0;
    while (n < STEP_LOSSES && log->losses[n]) n++;
    return n;
}

static bool keep(step_log *log, const step_log_row *row)
{
    if (log->count == log->room) {
        int64_t room = log->room ? 2 * log->room : 256;
        step_log_row *rows = realloc(log->rows, (size_t)room * sizeof *rows);
        if (!rows) return false;
        log->rows = rows, log->room = room;
    }
    log->rows[log->count++] = *row;
    return true;
}

/* Reads a row of an earlier part of the run. */
static bool read_row(void *user, const char *line)
{
    step_log *log = user;
    int losses = losses_of(log), used;
    step_log_row r = {.step = 0};
    double *const values[] = {&r.lr, &r.grad_norm, &r.tokens_per_s};
    long long at;
    if (sscanf(line, "%lld%n", &at, &used) != 1) return false;
    for (int k = 0; k < losses + 3; k++) {
        line += used;
        if (sscanf(line, ",%lf%n", k < losses ? &r.losses[k] : values[k - losses], &used) != 1)
            return false;
    }
    r.step = at;
    if (!keep(log, &r)) log->lacks_memory = true;
    return true;
}

/* "log.eval.csv" of "log.csv"; "" where the log is no regular file. */
static void name_held_out(step_log *log, const char *path)
{
    struct stat about;
    const size_t length = path ? strlen(path) : 0;
    const bool csv = length > 4 && !strcmp(path + length - 4, ".csv");
    *log->held_out_path = 0;
    if (!path || length + 10 > sizeof log->held_out_path) return;
    if (!stat(path, &about) && !S_ISREG(about.st_mode)) return;
    snprintf(log->held_out_path, sizeof log->held_out_path, "%.*s.eval.csv",
             (int)(length - (csv ? 4 : 0)), path);
}

/* Removes the held-out values of another run, which are known by their header. False, with *error,
 * where the file of that name is something else. */
static bool make_way(const step_log *log, zf_error *error)
{
    static const char header[] = "step,eval_";
    char found[sizeof header - 1];
    FILE *file = *log->held_out_path ? fopen(log->held_out_path, "rb") : NULL;
    struct stat about;
    size_t count;
    if (!file) return true;
    count = fstat(fileno(file), &about) || !S_ISREG(about.st_mode)
                ? 1
                : fread(found, 1, sizeof found, file);
    fclose(file);
    if (count && (count < sizeof found || memcmp(found, header, count)))
        return fail(error, ZF_ERR_IO,
                    "%s is there, and is no log of held-out losses: move it, or give --log another "
                    "name",
                    log->held_out_path);
    if (!log->resumed) remove(log->held_out_path);
    return true;
}

bool step_log_open(step_log *log, const char *path, const char *program, const char *const *losses,
                   int64_t step, zf_error *error)
{
    char header[512] = "step";
    *log = (step_log){.program = program, .losses = losses, .resumed = step};
    name_held_out(log, path);
    if (!make_way(log, error)) return false;
    for (int k = 0; k < losses_of(log); k++) {
        size_t at = strlen(header);
        snprintf(header + at, sizeof header - at, ",%s", losses[k]);
    }
    snprintf(header + strlen(header), sizeof header - strlen(header),
             ",lr,grad_norm,tokens_per_s\n");
    if (!csv_open(&log->file, path, header, step, read_row, log, error)) return false;
    return !log->lacks_memory || fail(error, ZF_ERR_NOMEM, "out of memory");
}

bool step_log_add(step_log *log, const step_log_row *r, zf_error *error)
{
    char row[24 * (STEP_LOSSES + 4)]; /* a number has at most 16 bytes, a step 20 */
    int at = snprintf(row, sizeof row, "%lld", (long long)r->step);
    if (!keep(log, r)) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int k = 0; k < losses_of(log); k++)
        at += snprintf(row + at, sizeof row - (size_t)at, ",%.9g", r->losses[k]);
    snprintf(row + at, sizeof row - (size_t)at, ",%.9g,%.9g,%.9g\n", r->lr, r->grad_norm,
             r->tokens_per_s);
    training_log(&log->file, log->program, row);
    return true;
}

/* Opens the file of held-out values, for a run that has these. */
static bool open_held_out(step_log *log, const zf_metric *list, int32_t count, zf_error *error)
{
    char header[512] = "step";
    for (int32_t k = 0; k < count; k++) {
        const size_t at = strlen(header);
        snprintf(header + at, sizeof header - at, ",%s", list[k].name);
    }
    snprintf(header + strlen(header), sizeof header - strlen(header), "\n");
    return csv_open(&log->held_out, log->held_out_path, header, log->resumed, NULL, NULL, error);
}

static bool add_held_out(step_log *log, const zf_metric *list, int32_t count, zf_error *error)
{
    char row[512];
    int at = snprintf(row, sizeof row, "%lld", (long long)list->step);
    if (!*log->held_out_path) return true;
    if (!log->held_out.path && !open_held_out(log, list, count, error)) {
        *log->held_out_path = 0; /* it is not tried again */
        return false;
    }
    for (int32_t k = 0; k < count && at < (int)sizeof row - 30; k++)
        at += snprintf(row + at, sizeof row - (size_t)at, ",%.9g", list[k].value);
    snprintf(row + at, sizeof row - (size_t)at, "\n");
    training_log(&log->held_out, log->program, row);
    return true;
}

static double metric_of(const zf_metric *list, int32_t count, const char *name)
{
    for (int32_t k = 0; k < count; k++)
        if (!strcmp(list[k].name, name)) return list[k].value;
    return 0;
}

static zf_status take_metrics(void *self, const zf_metric *list, int32_t count, zf_error *error)
{
    step_log *log = self;
    step_log_row row = {.step = list->step};
    if (!strncmp(list->name, "eval_", 5))
        return add_held_out(log, list, count, error) ? ZF_OK : error->status;
    for (int k = 0; k < losses_of(log); k++) row.losses[k] = metric_of(list, count, log->losses[k]);
    row.lr = metric_of(list, count, "learning_rate");
    row.grad_norm = metric_of(list, count, "grad_norm");
    row.tokens_per_s = metric_of(list, count, "train_tokens_per_second");
    return step_log_add(log, &row, error) ? ZF_OK : error->status;
}

zf_sink step_log_sink(step_log *log) { return (zf_sink){.self = log, .put = take_metrics}; }

bool step_log_close(step_log *log, zf_error *error)
{
    bool good = csv_close(&log->held_out, error);
    good = csv_close(&log->file, error) && good;
    free(log->rows);
    *log = (step_log){.rows = NULL};
    return good;
}

/* --------------------------------------------------------------------------------------- SVG */

enum { WIDTH = 800, HEIGHT = 480, LEFT = 64, RIGHT = 24, TOP = 40, BOTTOM = 48 };

typedef struct frame {
    double first, last, low, high;
} frame;

static double x_of(const frame *f, double step)
{
    return LEFT + (step - f->first) / (f->last > f->first ? f->last - f->first : 1) *
                      (WIDTH - LEFT - RIGHT);
}

static double y_of(const frame *f, double loss)
{
    return HEIGHT - BOTTOM - (loss - f->low) / (f->high - f->low) * (HEIGHT - TOP - BOTTOM);
}

/* A round distance between ticks, so that there are about five. */
static double tick(double span)
{
    double unit = pow(10, floor(log10(span > 0 ? span / 5 : 1)));
    double n = span / 5 / unit;
    return unit * (n > 5 ? 10 : n > 2 ? 5 : n > 1 ? 2 : 1);
}

static void axes(FILE *out, const frame *f)
{
    double dx = fmax(1, tick(f->last - f->first)), dy = tick(f->high - f->low);
    for (double y = ceil(f->low / dy) * dy; y <= f->high; y += dy)
        fprintf(out,
                "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' stroke='#ddd'/><text x='%d' y='%.1f' "
                "text-anchor='end'>%g"
                "</text>\n",
                LEFT, WIDTH - RIGHT, y_of(f, y), y_of(f, y), LEFT - 8, y_of(f, y) + 4, y);
    for (double x = ceil(f->first / dx) * dx; x <= f->last; x += dx)
        fprintf(out, "<text x='%.1f' y='%d' text-anchor='middle'>%g</text>\n", x_of(f, x),
                HEIGHT - BOTTOM + 20, x);
    fprintf(out, "<text x='%d' y='%d' text-anchor='middle'>step</text>\n",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8);
}

/* At most about 2000 points: of the rows, or of their exponential mean over 25 rows. The mean
 * begins at 0, with the weight `rest`, and is divided by the weight of the rows. */
static void curve(FILE *out, const step_log *log, int32_t loss, const frame *f, bool smooth,
                  const char *style)
{
    int64_t stride = log->count / 2000 + 1;
    double keep = smooth ? 0.96 : 0, sum = 0, rest = 1;
    fprintf(out, "<polyline fill='none' %s points='", style);
    for (int64_t i = 0; i < log->count; i++) {
        sum = keep * sum + (1 - keep) * log->rows[i].losses[loss];
        rest *= keep;
        if (i % stride == 0 || i == log->count - 1)
            fprintf(out, "%.1f,%.1f ", x_of(f, (double)log->rows[i].step),
                    y_of(f, sum / (1 - rest)));
    }
    fprintf(out, "'/>\n");
}

static void level_line(FILE *out, const frame *f, double level, const char *name,
                       const char *colour)
{
    fprintf(out,
            "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' stroke='%s' stroke-dasharray='6 4'/><text "
            "x='%d' y='%.1f' "
            "text-anchor='end' fill='%s'>%s %.3f</text>\n",
            LEFT, WIDTH - RIGHT, y_of(f, level), y_of(f, level), colour, WIDTH - RIGHT,
            y_of(f, level) - 5, colour, name, level);
}

bool step_log_plot(const step_log *log, const char *path, int32_t loss, const char *title,
                   double level, const char *level_name, double held_out, zf_error *error)
{
    frame f = {0, 1, level > 0 ? level : INFINITY, level};
    FILE *out;
    if (!log->count) return true;
    f.first = (double)log->rows[0].step, f.last = (double)log->rows[log->count - 1].step;
    for (int64_t i = 0; i < log->count; i++) {
        double value = log->rows[i].losses[loss];
        if (value < f.low) f.low = value;
        if (value > f.high) f.high = value;
    }
    if (held_out > 0 && held_out < f.low) f.low = held_out;
    if (!(f.high > f.low)) f.high = f.low + 1;
    f.low -= 0.05 * (f.high - f.low), f.high += 0.05 * (f.high - f.low);
    out = fopen(path, "w");
    if (!out) return io_error(error, path);
    fprintf(out,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' font-family='sans-serif' "
            "font-size='13'>\n"
            "<rect width='100%%' height='100%%' fill='white'/>\n<text x='%d' y='24' "
            "font-size='15'>%s (nats)</text>\n",
            WIDTH, HEIGHT, LEFT, title);
    axes(out, &f);
    curve(out, log, loss, &f, false, "stroke='#9ecae1' stroke-width='0.8'");
    curve(out, log, loss, &f, true, "stroke='#08519c' stroke-width='2'");
    if (level > 0) level_line(out, &f, level, level_name, "#888");
    if (held_out > 0) level_line(out, &f, held_out, "held out", "#d94801");
    fprintf(out, "</svg>\n");
    return fclose(out) == 0 || io_error(error, path);
}
