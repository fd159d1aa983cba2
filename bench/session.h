/* What benchmarks of training steps share: the options of their session. */
#ifndef BENCH_SESSION_H
#define BENCH_SESSION_H

#include "../examples/frame/model/session.h"
#include "options.h"

static const zf_option bench_session_rows[] = {
    ZF_OPTION(session_desc, COUNT, shape.batch, 0, "[1,1000000]", .flag = "batch", .unit = "B",
              .topic = "session", .help = "examples, of each rank"),
    ZF_OPTION(session_desc, COUNT, shape.sequence, 0, "[1,65536]", .flag = "seq", .unit = "T",
              .help = "tokens of an example"),
    ZF_OPTION(session_desc, COUNT, threads, 0, "[1,1024]", .help = "worker threads of a rank"),
    ZF_OPTION(session_desc, TEXT, offload_dir, 0, NULL, .unit = "DIR", .traits = ZF_OPTION_READS,
              .help = "folder for values on a disk"),
    ZF_OPTION(session_desc, DESC, device, 0, NULL, .rows = bench_device_rows),
    {.name = NULL}};

/* What is measured of a step, and how it is printed. */
typedef struct bench_step {
    int64_t steps;
    double roof_gflops, roof_gbytes;
    bool estimate, profile, json;
} bench_step;

static const zf_option bench_step_rows[] = {
    ZF_OPTION(bench_step, COUNT, steps, 30, "[1,1000000]", .topic = "step",
              .help = "steps that are timed, after three others"),
    ZF_OPTION(bench_step, FLAG, estimate, 0, NULL,
              .help = "print the time that measured rates predict"),
    ZF_OPTION(bench_step, FLAG, profile, 0, NULL,
              .help = "print the time by operator, and its floor"),
    ZF_OPTION(bench_step, NUMBER, roof_gflops, 0, "[0,1000000000]", .with = "profile",
              .help = "GFLOP/s of the floor; 0: they are measured"),
    ZF_OPTION(bench_step, NUMBER, roof_gbytes, 0, "[0,1000000000]", .with = "profile",
              .help = "GB/s of memory of the floor; 0: they are measured"),
    ZF_OPTION(bench_step, FLAG, json, 0, NULL, .help = "print one JSON object"),
    {.name = NULL}};

#endif
