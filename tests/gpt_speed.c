/* What a run of the sample GPT says of its speed, by a clock that tells each step to take four
 * seconds. */
#define _POSIX_C_SOURCE 200809L
#include "test.h"

#include "../examples/common/alike.h"
#include "../examples/common/command.h"
#include "../examples/common/csv.h"
#include "../examples/common/fail.h"
#include "../examples/common/interrupt.h"
#include "../examples/common/training.h"
#include "../examples/gpt/model.h"
#include "../examples/common/lm_session.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

static int64_t feeds;
static char said[4096];

static int step_clock(clockid_t id, struct timespec *t)
{
    (void)id;
    *t = (struct timespec){100 + 4 * feeds, 0};
    return 0;
}

static zf_status counted_feed(lm_session *s, const lm_batch *b)
{
    feeds++;
    return lm_session_feed(s, b);
}

static int keep_said(const char *format, ...)
{
    size_t n = strlen(said);
    va_list args;
    va_start(args, format);
    vsnprintf(said + n, sizeof said - n, format, args);
    va_end(args);
    return 0;
}

/* The source once more, under another name. */
#define clock_gettime         step_clock
#define lm_session_feed       counted_feed
#define printf                keep_said
#define lm_pretrain           timed_pretrain
#define interrupt_catch(echo) ((void)(echo))
#include "../examples/common/lm_pretrain.c"
#undef clock_gettime
#undef lm_session_feed
#undef printf

/* In the log, in both lines, of which the first is due when ten seconds have passed, and in the
 * report. */
TEST_ONCE(gpt_speed_by_a_clock)
{
    const char *log = test_path("log.csv"), *path = test_path("report.json");
    char *argv[] = {"gpt",          "pretrain", "--model",  "tests/golden/gpt/config.json",
                    "--batch-file", NULL,       "--steps",  "6",
                    "--log",        NULL,       "--report", NULL};
    lm_batch_file file;
    zf_error error = {ZF_OK, ""};
    char *line, expected[80], row[256];
    double speed, logged, reported = 0;
    int rows = 0;
    FILE *csv;
    zf_json *json;
    argv[5] = "tests/golden/gpt/batch.safetensors", argv[9] = (char *)log, argv[11] = (char *)path;
    CHECK(t, lm_batch_file_load(&file, argv[5], 1 << 20, &error));
    speed = (double)(file.batch[0].examples * file.batch[0].sequence) / 4;
    lm_batch_file_free(&file);
    remove(log);
    feeds = 0, said[0] = 0;
    CHECK(t, timed_pretrain(&gpt_kind, 12, argv) == EXIT_GOOD);
    CHECK(t, (csv = fopen(log, "r")));
    while (fgets(row, sizeof row, csv))
        if (rows++ && (sscanf(strrchr(row, ',') + 1, "%lf", &logged) != 1 || logged != speed))
            test_fail(t, __FILE__, __LINE__, "the speed in the log", row);
    fclose(csv);
    CHECK(t, rows == 7);
    snprintf(expected, sizeof expected, "  %.0f tokens/s\n", speed);
    CHECK(t, (line = strstr(said, "step 3/6 ")) && strstr(line, expected));
    CHECK(t, (line = strstr(said, "step 6/6 ")) && strstr(line, expected));
    CHECK(t, (json = zf_json_read(path, NULL, &error)));
    zf_json_to_double(zf_json_member(json, "tokens_per_s"), 0, 1e9, &reported, &error);
    zf_json_free(json);
    CHECK_NEAR(t, reported, speed, 1e-9 * speed);
}
