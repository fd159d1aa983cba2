/* The speed that a run of a sample prints, with a clock by which each step takes four seconds. */
#define _POSIX_C_SOURCE 200809L
#include "../support/golden.h"

#include "../../examples/bert/masked.h"
#include "../../examples/bert/model.h"
#include "../../examples/frame/options/fail.h"
#include "../../examples/frame/run/interrupt.h"
#include "../../examples/frame/run/run.h"

#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

static const zf_program *timed;
static char said[4096];
static FILE *said_file;

static int step_clock(clockid_t id, struct timespec *t)
{
    (void)id;
    *t = (struct timespec){100 + 4 * zf_program_step(timed), 0};
    return 0;
}

/* The source once more, under other names. */
#define clock_gettime         step_clock
#define run_now               timed_run_now
#define run_peak_mib          timed_peak_mib
#define run_speed             timed_run_speed
#define run_train             timed_run_train
#define interrupt_catch(echo) ((void)(echo))
#define run_open_metrics      timed_open_metrics
#define run_open_live         timed_open_live
#define run_put_step          timed_put_step
#define run_put_score         timed_put_score
#define run_close_metrics     timed_close_metrics
#define run_number            timed_number
#define run_scaled            timed_scaled
bool run_open_live(run *r);
bool run_put_step(run *r, const step_log_row *row);
#include "../../examples/frame/run/train.c"
#undef stdout
#define stdout said_file
#include "../../examples/frame/run/metrics.c"
#undef clock_gettime

static void close_file(void *file) { fclose(file); }
static void close_session(void *s) { session_close(s); }
static void free_batches(void *batches) { bert_batch_file_free(batches); }

/* Four examples of 32 tokens in four seconds: 32 tokens/s, in the log, in the median and in both
 * lines, of which the first is due when ten seconds have passed. */
TEST_ONCE(bert_speed_by_a_clock)
{
    static run_job job;
    static run r;
    static masked_data data;
    bert_config config;
    session_desc d = {.sample = &bert_sample, .config = &config, .threads = 1};
    zf_error error = {ZF_OK, ""}, ignored = {ZF_OK, ""};
    char *line;
    job = (run_job){.sample = &bert_sample,
                    .o = {.batch = 4, .seq = 32, .steps = 6, .lr = 1e-3, .schedule = ZF_CONSTANT},
                    .data.own = &data,
                    .ranks.world = 1};
    r = (run){.job = &job, .leads = true};
    CHECK(t, (data.file =
                  bert_batch_file_load("tests/golden/bert/batch.safetensors", 197, 2, &error)));
    test_defer(t, free_batches, data.file);
    CHECK(t, bert_config_load("tests/golden/bert/config.json", &config, &error));
    job.shape = d.shape =
        (sample_shape){.batch = 4, .sequence = 32, .predictions = data.file->predictions};
    CHECK(t, session_open(&r.session, &d, &error));
    test_defer(t, close_session, &r.session);
    timed = r.session.program;
    CHECK(t, (said_file = tmpfile()));
    test_defer(t, close_file, said_file);
    CHECK(t, timed_run_train(&r));
    rewind(said_file);
    said[fread(said, 1, sizeof said - 1, said_file)] = 0;
    CHECK_TEXT(t, r.error.text, "");
    CHECK(t, r.log.count == 6);
    for (int i = 0; i < 6; i++) CHECK_NEAR(t, r.log.rows[i].tokens_per_s, 32, 1e-12);
    CHECK_NEAR(t, timed_run_speed(&r), 32, 1e-12);
    step_log_close(&r.log, &ignored);
    masked_objective.stop(r.reader);
    CHECK(t, (line = strstr(said, "step 3/6 ")) && strstr(line, "  32 tokens/s  "));
    CHECK(t, strstr(line, "  ETA 0:12\n"));
    CHECK(t, (line = strstr(said, "step 6/6 ")) && strstr(line, "  32 tokens/s  "));
    CHECK(t, strstr(line, "  ETA 0:00\n"));
    CHECK(t, !strstr(said, "step 4/6 ") && !strstr(said, "step 5/6 "));
}
