/* Mixed precision: the loss scaler by a table that was derived by hand, what is retyped, and steps
 * in bf16 and f16 that have the same bits at every ZeRO stage, skipped ones among them. */
#include "test.h"

#include <stdio.h>

/* ---------------------------------------------------------------------------- the loss scaler
 *
 * Each step is + (gradients were finite), - (they were not: it is skipped) or ! (they were not, at
 * the least scale: an error, after which all is as before), then the scale and the hysteresis left
 * behind it. The rule, of which iteration counts + and - from 0, and last is that of the last -, at
 * first -1:
 *
 *     -   left > 1: left - 1, otherwise scale / factor, not below least
 *     +   consecutive: left = hysteresis; iteration - last - 1 is a positive multiple of window:
 *         left = hysteresis, scale * factor
 */

typedef struct scaler_row {
    const char *name, *options, *steps;
} scaler_row;

static const scaler_row scaler_rows[] = {
    {"growth, after every third good step behind the first",
     "scale=4 factor=2 least=1 window=3 hysteresis=2 consecutive=0",
     "+4:2 +4:2 +4:2 +8:2 +8:2 +8:2 +16:2"},
    {"hysteresis 1", "scale=16 factor=2 least=1 window=2 hysteresis=1 consecutive=0",
     "-8:1 +8:1 +8:1 +16:1 +16:1 +32:1 -16:1 -8:1 +8:1 +8:1 -4:1 +4:1 +4:1 +8:1"},
    {"hysteresis 1, consecutive", "scale=16 factor=2 least=1 window=2 hysteresis=1 consecutive=1",
     "-8:1 +8:1 -4:1 +4:1 +4:1 +8:1"},
    {"hysteresis 2", "scale=16 factor=2 least=1 window=2 hysteresis=2 consecutive=0",
     "-16:1 -8:1 -4:1 +4:1 +4:1 +8:2 -8:1 +8:1 -4:1 +4:1 +4:1 +8:2"},
    {"hysteresis 2: overflows apart add up",
     "scale=16 factor=2 least=1 window=2 hysteresis=2 consecutive=0",
     "-16:1 +16:1 -8:1 +8:1 -4:1 +4:1"},
    {"hysteresis 2, consecutive: they do not",
     "scale=16 factor=2 least=1 window=2 hysteresis=2 consecutive=1",
     "-16:1 +16:2 -16:1 +16:2 -16:1 -8:1 +8:2 +8:2 +16:2 -16:1"},
    {"hysteresis 3", "scale=16 factor=2 least=1 window=3 hysteresis=3 consecutive=0",
     "-16:2 +16:2 -16:1 -8:1 -4:1 +4:1 +4:1 +4:1 +8:3 -8:2 +8:2 +8:2"},
    {"hysteresis 3, consecutive", "scale=16 factor=2 least=1 window=3 hysteresis=3 consecutive=1",
     "-16:2 -16:1 +16:3 -16:2 -16:1 -8:1 +8:3"},
    {"overflow at first, hysteresis 1",
     "scale=65536 factor=2 least=1 window=1000 hysteresis=1 consecutive=0", "-32768:1 +32768:1"},
    {"overflow at first, hysteresis 2",
     "scale=65536 factor=2 least=1 window=1000 hysteresis=2 consecutive=0",
     "-65536:1 -32768:1 +32768:1"},
    {"growth after a skip counts from it",
     "scale=8 factor=2 least=1 window=2 hysteresis=1 consecutive=0",
     "-4:1 +4:1 +4:1 -2:1 +2:1 +2:1 +4:1 +4:1 +8:1"},
    {"window 1", "scale=8 factor=2 least=1 window=1 hysteresis=1 consecutive=0",
     "-4:1 +4:1 +8:1 +16:1 -8:1 +8:1 +16:1"},
    {"the least scale, hysteresis 1",
     "scale=2 factor=2 least=1 window=2 hysteresis=1 consecutive=0",
     "-1:1 !1:1 !1:1 +1:1 +1:1 +2:1 -1:1 !1:1"},
    {"the least scale, hysteresis 2",
     "scale=1 factor=2 least=1 window=2 hysteresis=2 consecutive=0",
     "-1:1 !1:1 +1:1 +1:1 +2:2 -2:1 -1:1 !1:1"},
    {"not below the least scale", "scale=6 factor=4 least=2 window=9 hysteresis=1 consecutive=0",
     "-2:1 !2:1"},
    {"factor 4", "scale=16 factor=4 least=1 window=2 hysteresis=1 consecutive=0",
     "-4:1 +4:1 +4:1 +16:1 -4:1"},
    {"a fixed scale", "scale=16 factor=1 least=1 window=2 hysteresis=2 consecutive=0",
     "-16:1 -16:1 -16:1 +16:1 +16:1 +16:2 -16:1"},
    {"a fixed scale, the least", "scale=1 factor=1 least=1 window=2 hysteresis=1 consecutive=0",
     "-1:1 -1:1 +1:1"},
    {"not beyond f32",
     "scale=1.7014118346046923e+38 factor=2 least=1 window=1 hysteresis=1 "
     "consecutive=0",
     "+1.7014118346046923e+38:1 +1.7014118346046923e+38:1 -8.507059173023462e+37:1"},
};

typedef struct scaler {
    zf_graph *graph;
    zf_program *program;
} scaler;

static void scaler_close(void *object)
{
    scaler *s = object;
    zf_program_free(s->program);
    zf_graph_free(s->graph);
    *s = (scaler){NULL, NULL};
}

static bool scaler_open(test *t, scaler *s, const scaler_row *row, zf_error *error)
{
    char text[1024];
    double scale, factor, least;
    int window, hysteresis, consecutive, length;
    if (sscanf(row->options,
               "scale=%lf factor=%lf least=%lf window=%d hysteresis=%d consecutive=%d", &scale,
               &factor, &least, &window, &hysteresis, &consecutive) != 6)
        return false;
    length = snprintf(
        text, sizeof text,
        "%%1 = state \"scale\" {value=%.17g} : f32[]\n%%2 = state \"left\" {value=%d} : i64[]\n"
        "%%3 = state \"iteration\" : i64[]\n%%4 = state \"last\" {value=-1} : i64[]\n"
        "%%5 = state \"skipped\" : i64[]\n%%6 = input \"good\" : f32[]\nupdate:\n"
        "loss_scale_update %%1, %%2, %%3, %%4, %%5, %%6 {factor=%.17g window=%d hysteresis=%d "
        "least=%.17g consecutive=%s}\n",
        scale, hysteresis, factor, window, hysteresis, least, consecutive ? "true" : "false");
    *s = (scaler){
        zf_graph_parse(text, (size_t)length, &(zf_graph_desc){.allocator = t->allocator}, error),
        NULL};
    if (!s->graph) return false;
    s->program = zf_compile(s->graph, NULL);
    if (s->program) return true;
    error->status = zf_graph_status(s->graph);
    snprintf(error->text, sizeof error->text, "%s", zf_graph_error(s->graph));
    return false;
}

static double scaler_state(scaler *s, const char *name)
{
    zf_tensor x = zf_graph_find(s->graph, name);
    float value = NAN;
    int64_t count = -99;
    bool scale = zf_tensor_dtype(x) == ZF_F32;
    if (zf_read(s->program, x, scale ? (void *)&value : (void *)&count, zf_tensor_bytes(x)))
        return NAN;
    return scale ? (double)value : (double)count;
}

/* A step whose operand 5 is `good`. */
static zf_status scaler_step(scaler *s, float good)
{
    zf_status status = zf_write(s->program, zf_graph_find(s->graph, "good"), &good, sizeof good);
    return status ? status : zf_step(s->program);
}

TEST(precision_scaler_table)
{
    static scaler s;
    for (size_t r = 0; r < sizeof scaler_rows / sizeof scaler_rows[0]; r++) {
        const scaler_row *row = &scaler_rows[r];
        zf_error error = {ZF_ERR_ARGUMENT, "the row's options"};
        int iteration = 0, last = -1, skipped = 0, k = 0;
        OK(t, scaler_open(t, &s, row, &error) ? ZF_OK : error.status, error.text);
        test_defer(t, scaler_close, &s);
        for (const char *at = row->steps; *at; at += strspn(at, " "), k++) {
            static const float good[] = {0.5, 0, 1, 65536}, bad[] = {-1, -1e-30f, -2, -INFINITY};
            char step = *at++, got[160], want[160];
            zf_status status = scaler_step(&s, step == '+' ? good[k % 4] : bad[k % 4]);
            double scale = strtod(at, (char **)&at);
            long left = strtol(at + 1, (char **)&at, 10);
            CHECK(t, status == (step == '!' ? ZF_ERR_NAN : ZF_OK));
            CHECK(t, !status || strstr(zf_program_error(s.program),
                                       "gradients are not finite at the least loss scale"));
            if (step == '-') last = iteration, skipped++;
            iteration += step != '!';
            snprintf(want, sizeof want, "%s: step %d: %.9g %ld %d %d %d", row->name, k, scale, left,
                     iteration, last, skipped);
            snprintf(got, sizeof got, "%s: step %d: %.9g %.0f %.0f %.0f %.0f", row->name, k,
                     scaler_state(&s, "scale"), scaler_state(&s, "left"),
                     scaler_state(&s, "iteration"), scaler_state(&s, "last"),
                     scaler_state(&s, "skipped"));
            CHECK_TEXT(t, got, want);
        }
        scaler_close(&s);
        t->deferred_count--;
    }
}

/* States that hold anything, as a checkpoint might, are no undefined behaviour. */
TEST_ONCE(precision_scaler_survives_any_state)
{
    static scaler s;
    static const int64_t values[] = {INT64_MIN, -1, 0, 1, INT64_MAX};
    static const char *const names[] = {"left", "iteration", "last", "skipped"};
    zf_error error = {ZF_OK, ""};
    OK(t, scaler_open(t, &s, &scaler_rows[0], &error) ? ZF_OK : error.status, error.text);
    test_defer(t, scaler_close, &s);
    for (int k = 0; k < 5 * 5 * 5 * 5 * 2; k++) {
        int rest = k / 2;
        float scale = 8;
        OK(t, zf_write(s.program, zf_graph_find(s.graph, "scale"), &scale, sizeof scale),
           zf_program_error(s.program));
        for (int n = 0; n < 4; n++, rest /= 5)
            OK(t,
               zf_write(s.program, zf_graph_find(s.graph, names[n]), &values[rest % 5],
                        sizeof values[0]),
               zf_program_error(s.program));
        OK(t, scaler_step(&s, k % 2 ? 1.0f : -1.0f), zf_program_error(s.program));
    }
}

#define SCALER                                                                                     \
    "%1 = state \"scale\" : f32[]\n%2 = state \"left\" : i64[]\n%3 = state \"at\" : i64[]\n"       \
    "%4 = state \"last\" : i64[]\n%5 = state \"skipped\" : i64[]\n%6 = input \"x\" : f32[2]\n"     \
    "%7 = input \"good\" : f32[]\n"

TEST(precision_scaler_misused)
{
    static const char *const rows[][2] = {
        {"loss_scale %7, %2, %3, %4, %5 {factor=2 window=9 hysteresis=1 least=1}",
         "operand 0, the scale, must be a state f32[]"},
        {"loss_scale %2, %2, %3, %4, %5 {factor=2 window=9 hysteresis=1 least=1}",
         "operand 0, the scale, must be a state f32[]"},
        {"loss_scale %1, %2, %3, %1, %5 {factor=2 window=9 hysteresis=1 least=1}",
         "operand 3, the last overflow, must be a state i64[]"},
        {"loss_scale %1, %2, %3, %2, %5 {factor=2 window=9 hysteresis=1 least=1}",
         "operands 1 and 3, the hysteresis left and the last overflow, must be two states"},
        {"loss_scale %1, %2, %3, %4, %5 {factor=0.5 window=9 hysteresis=1 least=1}",
         "factor = 0.5 must be finite and at least 1"},
        {"loss_scale %1, %2, %3, %4, %5 {factor=nan window=9 hysteresis=1 least=1}",
         "factor = nan must be finite and at least 1"},
        {"loss_scale %1, %2, %3, %4, %5 {factor=2 hysteresis=1 least=1}",
         "window = 0, hysteresis = 1: both must be at least 1"},
        {"loss_scale %1, %2, %3, %4, %5 {factor=2 window=9 hysteresis=-1 least=1}",
         "window = 9, hysteresis = -1: both must be at least 1"},
        {"loss_scale %1, %2, %3, %4, %5 {factor=2 window=9 hysteresis=1}",
         "least = 0 must be finite and above 0"},
        {"loss_scale_update %1, %2, %3, %4, %5, %6 {factor=2 window=9 hysteresis=1 least=1}",
         "operand 5, which is below 0 where gradients are not finite, must be one float"},
        {"loss_scale_update %1, %2, %3, %4, %5, %2 {factor=2 window=9 hysteresis=1 least=1}",
         "operand 5, which is below 0 where gradients are not finite, must be one float"},
        {"advance %2, %3", "operand 1 must be one float"},
    };
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        char text[1024];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        snprintf(text, sizeof text, "%s%s\n", SCALER, rows[n][0]);
        g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        CHECK(t, !g);
        if (t->refused && error.status == ZF_ERR_NOMEM) return;
        if (!strstr(error.text, rows[n][1])) CHECK_TEXT(t, error.text, rows[n][1]);
    }
}
