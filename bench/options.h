/* The command line of a benchmark, by tables (api/options.h). */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include "../examples/frame/options/device.h"
#include "../examples/frame/options/files.h"

#include <stdio.h>
#include <string.h>

/* Options of any benchmark with a device. Members that are not 0 have another default. */
static const zf_option bench_device_rows[] = {
    ZF_OPTION(device_desc, CHOICE, kind, 0, DEVICE_KINDS, .flag = "device", .topic = "device",
              .help = "device that computes"),
    ZF_OPTION(device_desc, TEXT, tuning, 0, NULL, .unit = "FILE", .traits = ZF_OPTION_READS,
              .with = "kind=cuda", .help = "file of CUDA's algorithms"),
    ZF_OPTION(device_desc, FLAG, no_graphs, 0, NULL, .with = "kind=cuda",
              .help = "each kernel is launched by itself, without CUDA graphs"),
    {.name = NULL}};

static inline const char *bench_name(char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    return slash ? slash + 1 : argv[0];
}

/* Reads the options into the descs of the tables, and fills in the defaults of the first `own`
 * ones; the others are descs of passes. *rest: how many arguments stay, in argv[1..]; NULL: none
 * may. False: main returns *status. */
static inline bool bench_options(int argc, char **argv, const zf_options *all, int32_t count,
                                 int32_t own, int *rest, int *status)
{
    zf_error error = {ZF_OK, ""};
    named_files files = {.count = 0};
    bool help = false;
    for (int k = 1; k < argc; k++) help = help || !strcmp(argv[k], "--help");
    if (!help && !zf_options_take(all, count, &argc, argv, &error) &&
        !zf_options_check(all, count, true, &error)) {
        zf_options_resolve(all, own);
        if (rest) *rest = argc - 1;
        files_add_options(&files, all, count);
        if ((rest || argc < 2) && files_apart(&files, &error)) return true;
        if (!rest && argc > 1)
            snprintf(error.text, sizeof error.text, "'%.100s' is one argument too many", argv[1]);
    }
    if (!help) fprintf(stderr, "%s: %s; --help lists the options\n", bench_name(argv), error.text);
    else zf_options_help(all, count, "all", stdout, &error);
    *status = help ? 0 : 2;
    return false;
}

#endif
