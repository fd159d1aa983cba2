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
    ZF_OPTION(session_desc, TEXT, offload_dir, 0, NULL, .unit = "DIR",
              .help = "for values on a disk"),
    ZF_OPTION(session_desc, DESC, device, 0, NULL, .rows = bench_device_rows),
    {.name = NULL}};

#endif
