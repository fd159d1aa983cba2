/* The log of a run: the CSV of its steps, resumed or not, and the curve as SVG. */
#define _XOPEN_SOURCE 700
#include "../support/test.h"

#include "../../examples/frame/output/step_log.h"

#include <ctype.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const losses[] = {"loss", "mlm_loss", "nsp_loss", NULL};

#define HEADER "step,loss,mlm_loss,nsp_loss,lr,grad_norm,tokens_per_s\n"

static void close_log(void *log)
{
    zf_error ignored;
    step_log_close(log, &ignored);
}

/* A whole file; "" when there is none. */
static const char *text_of(const char *path)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "rb");
    text[file ? fread(text, 1, sizeof text - 1, file) : 0] = 0;
    if (file) fclose(file);
    return text;
}

static step_log_row row_of(int64_t step)
{
    double x = (double)step;
    return (step_log_row){step, {10 / x, 9 / x, 1 / x}, 1e-3 * x, 1 + x, 1000 * x};
}

static bool add_rows(step_log *log, int64_t first, int64_t last, zf_error *error)
{
    bool good = true;
    for (int64_t step = first; step <= last && good; step++) {
        step_log_row row = row_of(step);
        good = step_log_add(log, &row, error);
    }
    return good;
}

TEST_ONCE(log_has_nine_digits)
{
    const char *path = test_path("log.csv");
    zf_error error = {ZF_OK, ""};
    static step_log log; /* outlives what the test defers */
    CHECK(t, step_log_open(&log, path, "bert", losses, 0, &error));
    test_defer(t, close_log, &log);
    CHECK(t,
          step_log_add(&log, &(step_log_row){1, {1.0 / 3, (double)0.1f, 12345678.25}, 1e-4, 0, 5e9},
                       &error));
    /* Each row is in the file at once, since a run may end at any time. */
    CHECK_TEXT(t, text_of(path), HEADER "1,0.333333333,0.100000001,12345678.2,0.0001,0,5e+09\n");
    CHECK(t, step_log_add(&log, &(step_log_row){2, {INFINITY, NAN, -1}, 1, 1, 1}, &error));
    CHECK(t, step_log_close(&log, &error));
    CHECK_TEXT(t, text_of(path),
               HEADER "1,0.333333333,0.100000001,12345678.2,0.0001,0,5e+09\n2,inf,nan,-1,1,1,1\n");
}

/* Nine digits are a float to the bit. */
TEST_ONCE(log_keeps_floats)
{
    const char *path = test_path("log.csv");
    zf_error error = {ZF_OK, ""};
    uint32_t bits = 1;
    float x[100];
    static step_log log; /* outlives what the test defers */
    CHECK(t, step_log_open(&log, path, "bert", losses, 0, &error));
    test_defer(t, close_log, &log);
    for (int i = 0; i < 100; i++) {
        bits = bits * 1664525 + 1013904223;
        x[i] = ldexpf((float)(bits >> 8), (int)(bits % 60) - 50);
        CHECK(t, step_log_add(&log, &(step_log_row){i + 1, {x[i], x[i], x[i]}, x[i], x[i], x[i]},
                              &error));
    }
    CHECK(t,
          step_log_close(&log, &error) && step_log_open(&log, path, "bert", losses, 100, &error));
    CHECK(t, log.count == 100);
    for (int i = 0; i < 100; i++)
        CHECK(t, (float)log.rows[i].losses[0] == x[i] && (float)log.rows[i].tokens_per_s == x[i]);
}

/* As many columns as there may be, and the longest numbers. */
TEST_ONCE(log_has_room_for_the_longest_rows)
{
    enum { LONGEST = 16 }; /* bytes of ",-1.23456789e-300" but the comma */
    static const char *names[STEP_LOSSES + 1];
    const char *path = test_path("log.csv"), *line;
    zf_error error = {ZF_OK, ""};
    step_log_row row = {.step = INT64_MAX, .lr = -1.23456789e-300, .grad_norm = -1.23456789e-300,
                        .tokens_per_s = -1.23456789e-300};
    static step_log log; /* outlives what the test defers */
    for (int k = 0; k < STEP_LOSSES; k++) names[k] = "explained_variance", row.losses[k] = row.lr;
    CHECK(t, step_log_open(&log, path, "bert", names, 0, &error));
    test_defer(t, close_log, &log);
    CHECK(t, step_log_add(&log, &row, &error) && step_log_close(&log, &error));
    line = strchr(text_of(path), '\n');
    CHECK(t, line && strlen(line + 1) == 19 + (STEP_LOSSES + 3) * (1 + LONGEST) + 1);
    CHECK(t, step_log_open(&log, path, "bert", names, INT64_MAX, &error));
    CHECK(t, log.count == 1 && log.rows[0].tokens_per_s == row.lr &&
                 log.rows[0].losses[STEP_LOSSES - 1] == row.lr);
}

TEST_ONCE(log_that_continues_drops_later_rows)
{
    const char *path = test_path("log.csv");
    static char whole[1 << 16];
    zf_error error = {ZF_OK, ""};
    static step_log log; /* outlives what the test defers */
    CHECK(t,
          step_log_open(&log, path, "bert", losses, 0, &error) && add_rows(&log, 1, 600, &error));
    test_defer(t, close_log, &log);
    CHECK(t, step_log_close(&log, &error));
    snprintf(whole, sizeof whole, "%s", text_of(path));
    CHECK(t, step_log_open(&log, path, "bert", losses, 250, &error));
    CHECK(t, log.count == 250 && log.rows[249].step == 250 && log.rows[249].lr == 0.25);
    CHECK(t,
          !strncmp(text_of(path), whole, strlen(text_of(path))) && strstr(text_of(path), "\n250,"));
    CHECK(t, !strstr(text_of(path), "\n251,"));
    CHECK(t, add_rows(&log, 251, 600, &error) && log.count == 600 && step_log_close(&log, &error));
    CHECK(t, !strcmp(text_of(path), whole));
    CHECK(t, step_log_open(&log, path, "bert", losses, 0, &error)); /* a run from the beginning */
    CHECK(t, log.count == 0);
    CHECK_TEXT(t, text_of(path), HEADER);
}

/* An incomplete line, an empty file, no file: complete rows are kept. */
TEST_ONCE(log_that_continues_a_damaged_one)
{
    static const struct {
        const char *before;
        int64_t rows;
    } cases[] = {{HEADER "1,1,1,1,1,1,1\n2,1,1,1", 1},
                 {HEADER "1,1,1,1,1,1,1\n2,1,1,1,1,1,1", 1}, /* its newline is missing */
                 {HEADER "1,1,1,1,1,1,1\n\n\n2,1,1,1,1,1,1\n", 1},
                 {"", 0},
                 {NULL, 0}};
    const char *path = test_path("log.csv");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zf_error error = {ZF_OK, ""};
        FILE *file = cases[i].before ? fopen(path, "w") : NULL;
        static step_log log;
        if (file) fputs(cases[i].before, file), fclose(file);
        else remove(path);
        CHECK(t, step_log_open(&log, path, "bert", losses, 5, &error));
        CHECK(t, log.count == cases[i].rows);
        CHECK(t, step_log_close(&log, &error));
        CHECK_TEXT(t, text_of(path), cases[i].rows ? HEADER "1,1,1,1,1,1,1\n" : HEADER);
    }
}

/* Rows are not added to a file that is no such log, and it does not change; a new run replaces
 * it. */
TEST_ONCE(log_that_continues_a_foreign_one)
{
    const char *path = test_path("log.csv");
    zf_error error = {ZF_OK, ""};
    static step_log log; /* outlives what the test defers */
    FILE *file = fopen(path, "w");
    fputs("time,loss\n1,2\n", file), fclose(file);
    CHECK(t,
          !step_log_open(&log, path, "bert", losses, 5, &error) && error.status == ZF_ERR_FORMAT);
    CHECK(t, strstr(error.text, "the first line of this file is not step,loss,mlm_loss,nsp_loss,lr,"
                                "grad_norm,tokens_per_s: name another file"));
    CHECK_TEXT(t, text_of(path), "time,loss\n1,2\n");
    CHECK(t, step_log_close(&log, &error) && step_log_open(&log, path, "bert", losses, 0, &error));
    CHECK(t, step_log_close(&log, &error));
    CHECK_TEXT(t, text_of(path), HEADER);
}

/* Adds rows while no file may grow over `most` bytes. That limit is for what the tests print as
 * well: standard error goes into a pipe meanwhile, and comes back as text. */
static bool add_rows_to_full_disk(step_log *log, int64_t first, int64_t last, rlim_t most,
                                  char said[256], zf_error *error)
{
    struct rlimit was, full;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    int ends[2], standard = dup(STDERR_FILENO);
    ssize_t length = 0;
    bool good = standard >= 0 && !getrlimit(RLIMIT_FSIZE, &was) && !pipe(ends);
    if (good) {
        full = was;
        full.rlim_cur = most;
        good = dup2(ends[1], STDERR_FILENO) >= 0 && !setrlimit(RLIMIT_FSIZE, &full) &&
               add_rows(log, first, last, error);
        setrlimit(RLIMIT_FSIZE, &was);
        dup2(standard, STDERR_FILENO);
        close(ends[1]);
        length = read(ends[0], said, 255);
        close(ends[0]);
    }
    said[length > 0 ? length : 0] = 0;
    close(standard);
    signal(SIGXFSZ, handler);
    return good;
}

/* While the disk is full, rows are lost as a whole; the run goes on, and closing says so. */
/* The file next to it, of held-out losses, is that of another run by its header alone. */
TEST_ONCE(log_next_to_a_foreign_file)
{
    static const struct {
        const char *text;
        bool foreign;
    } cases[] = {
        {"step,eval_loss\n2,3.25\n", false}, {"", false}, {"step", true}, {"my notes\n", true}};
    char path[300], held_out[300], expected[500];
    snprintf(path, sizeof path, "%s.csv", test_path("next"));
    snprintf(held_out, sizeof held_out, "%.*s.eval.csv", (int)strlen(path) - 4, path);
    snprintf(expected, sizeof expected,
             "%s is there, and is no log of held-out losses: move it, or give --log another name",
             held_out);
    for (int k = 0; k < 4; k++)
        for (int64_t step = 0; step < 2; step++) {
            zf_error error = {ZF_OK, ""};
            static step_log log;
            FILE *file = fopen(held_out, "wb");
            bool opened;
            CHECK(t, file && fputs(cases[k].text, file) >= 0 && !fclose(file));
            opened = step_log_open(&log, path, "bert", losses, step, &error);
            if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
            if (opened) step_log_close(&log, &error);
            CHECK(t, opened == !cases[k].foreign);
            if (!opened) CHECK_TEXT(t, error.text, expected);
            CHECK_TEXT(t, text_of(held_out), opened && !step ? "" : cases[k].text);
            CHECK(t, (access(held_out, F_OK) != 0) == (opened && !step));
        }
}

TEST_ONCE(log_on_a_full_disk)
{
    static const char lost[] = "; 2 rows are not in the log";
    const char *path = test_path("log.csv");
    char said[256];
    zf_error error = {ZF_OK, ""};
    static step_log log; /* outlives what the test defers */
    CHECK(t, step_log_open(&log, path, "bert", losses, 0, &error) && add_rows(&log, 1, 2, &error));
    test_defer(t, close_log, &log);
    CHECK(t, add_rows_to_full_disk(&log, 3, 4, strlen(text_of(path)) + 10, said, &error));
    CHECK(t, !strncmp(said, "bert: ", 6) && strstr(said, "log.csv: File too large; the run goes on"));
    CHECK(t, said[strlen(said) - 1] == '\n');
    CHECK(t, add_rows(&log, 5, 5, &error));
    CHECK(t, log.count == 5 && strstr(text_of(path), "\n2,5,") && !strstr(text_of(path), "\n3,"));
    CHECK(t, strstr(text_of(path), "0.002,3,2000\n5,2,"));
    CHECK(t, !step_log_close(&log, &error) && error.status == ZF_ERR_IO);
    CHECK(t, strlen(error.text) > sizeof lost &&
                 !strcmp(error.text + strlen(error.text) + 1 - sizeof lost, lost));
}

TEST_ONCE(log_without_a_file_keeps_rows)
{
    zf_error error = {ZF_OK, ""};
    static step_log log; /* outlives what the test defers */
    CHECK(t, step_log_open(&log, NULL, "bert", losses, 0, &error) && add_rows(&log, 1, 3, &error));
    test_defer(t, close_log, &log);
    CHECK(t, log.count == 3 && log.rows[2].losses[1] == 3 && step_log_close(&log, &error));
    CHECK(t, !step_log_open(&log, "nowhere/log.csv", "bert", losses, 0, &error));
    CHECK_TEXT(t, error.text, "nowhere/log.csv: No such file or directory");
}

/* ---------------------------------------------------------------------------------------- SVG */

/* Elements of the XML text, or -1: one root, tags closed in order, attributes named once and in
 * quotes, no stray < or &. */
static int count_elements(const char *s)
{
    char open[16][16];
    int depth = 0, elements = 0;
    while (*s) {
        char name[16] = "", seen[512] = " ";
        int n = 0;
        if (*s != '<') {
            if (*s == '&' || (!depth && !isspace((unsigned char)*s))) return -1;
            s++;
            continue;
        }
        if (s[1] == '/') {
            size_t length = depth ? strlen(open[depth - 1]) : 0;
            if (!depth || strncmp(s + 2, open[--depth], length) || s[2 + length] != '>') return -1;
            s += 3 + length;
            continue;
        }
        if (elements++ && !depth) return -1;
        for (s++; isalpha((unsigned char)*s) && n < 15; s++) name[n++] = *s;
        name[n] = 0;
        while (*s == ' ') {
            char attribute[64];
            size_t length = strcspn(++s, "= <>/'\"");
            if (!length || length > 60 || s[length] != '=' || s[length + 1] != '\'') return -1;
            snprintf(attribute, sizeof attribute, " %.*s ", (int)length, s);
            if (strstr(seen, attribute)) return -1;
            strcat(seen, attribute + 1);
            s += length + 2;
            s += strcspn(s, "'<&");
            if (*s++ != '\'') return -1;
        }
        if (*s == '/') s++;
        else if (depth == 16) return -1;
        else strcpy(open[depth++], name);
        if (!n || *s++ != '>') return -1;
    }
    return depth ? -1 : elements;
}

TEST_ONCE(svg_checker_sees_what_is_wrong)
{
    CHECK(t, count_elements("<a><b x='1' y='2'/>text</a>\n") == 2);
    CHECK(t, count_elements("<a>") == -1 && count_elements("<a></b>") == -1 &&
                 count_elements("<a/><b/>") == -1);
    CHECK(t, count_elements("<a x=1/>") == -1 && count_elements("<a x='1' x='2'/>") == -1);
    CHECK(t, count_elements("<a>&</a>") == -1 && count_elements("a") == -1);
}

/* How many pairs the last polyline has; -1 when one of them is outside the picture. */
static int count_points(const char *svg)
{
    const char *at = svg, *last = NULL;
    int count = 0, used;
    double x, y;
    while ((at = strstr(at, "points='"))) last = at += 8;
    for (; last && sscanf(last, "%lf,%lf %n", &x, &y, &used) == 2; last += used, count++)
        if (!(x >= 64 && x <= 776 && y >= 40 && y <= 432)) return -1;
    return count;
}

static void check_plot(test *t, int64_t rows, double level, double held_out, int points)
{
    const char *path = test_path("loss.svg"), *svg;
    zf_error error = {ZF_OK, ""};
    static step_log log; /* outlives what the test defers */
    CHECK(t,
          step_log_open(&log, NULL, "bert", losses, 0, &error) && add_rows(&log, 1, rows, &error));
    remove(path);
    CHECK(t, step_log_plot(&log, path, 1, "loss", level, "unigram entropy", held_out, &error));
    CHECK(t, step_log_close(&log, &error));
    svg = text_of(path);
    CHECK(t, count_elements(svg) > 8);
    CHECK(t, !strstr(svg, "nan") && !strstr(svg, "inf"));
    CHECK(t, count_points(svg) == points);
    CHECK(t, !strstr(svg, "unigram entropy") == !level && !strstr(svg, "held out") == !held_out);
}

TEST_ONCE(svg_of_many_rows) { check_plot(t, 9000, 7.5, 0.25, 1801); }
TEST_ONCE(svg_of_few_rows) { check_plot(t, 3, 20, 0, 3); }
TEST_ONCE(svg_of_one_row) { check_plot(t, 1, 0, 0, 1); }

/* 9, 1, 1, 1, ...: after n more rows the first one has the weight 0.96^n of those together. A mean
 * that began at the first row would be at 6.32 after 10. */
TEST_ONCE(svg_smooth_curve_does_not_lag_at_the_start)
{
    const char *path = test_path("lag.svg"), *at, *last = NULL;
    zf_error error = {ZF_OK, ""};
    double x, y, weight = 1, weights = 0;
    step_log_row row = {.losses = {9, 9}};
    static step_log log; /* outlives what the test defers */
    int used, n = 0;
    CHECK(t, step_log_open(&log, NULL, "bert", losses, 0, &error));
    test_defer(t, close_log, &log);
    for (row.step = 1; row.step <= 40; row.step++) {
        CHECK(t, step_log_add(&log, &row, &error));
        row.losses[1] = 1;
    }
    CHECK(t, step_log_plot(&log, path, 1, "loss", 0, "", 0, &error));
    at = text_of(path);
    while ((at = strstr(at, "points='"))) last = at += 8;
    for (; last && sscanf(last, "%lf,%lf %n", &x, &y, &used) == 2; last += used, n++) {
        weights += weight; /* of the n + 1 rows; the axis goes from 0.6 to 9.42 in 392 units */
        CHECK(t, fabs(y - (432 - (1 + 8 * weight / weights - 0.6) / 8.82 * 392)) < 0.11);
        weight *= 0.96;
    }
    CHECK(t, n == 40);
}

TEST_ONCE(svg_of_no_rows_is_none)
{
    const char *path = test_path("none.svg");
    zf_error error = {ZF_OK, ""};
    static step_log log; /* outlives what the test defers */
    struct stat s;
    CHECK(t, step_log_open(&log, NULL, "bert", losses, 0, &error));
    CHECK(t, step_log_plot(&log, path, 1, "loss", 1, "level", 0, &error) && stat(path, &s) != 0);
    CHECK(t, add_rows(&log, 1, 2, &error));
    test_defer(t, close_log, &log);
    CHECK(t, !step_log_plot(&log, "nowhere/loss.svg", 1, "loss", 1, "level", 0, &error));
    CHECK_TEXT(t, error.text, "nowhere/loss.svg: No such file or directory");
}
