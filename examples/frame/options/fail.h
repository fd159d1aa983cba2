/* An error of a sample: its status and its text. */
#ifndef FAIL_H
#define FAIL_H

#include "../../../zeroflow.h"

#include <stdarg.h>
#include <stdio.h>

static inline void fail_text(zf_error *error, zf_status status, const char *format, va_list args)
{
    error->status = status;
    vsnprintf(error->text, sizeof error->text, format, args);
}

/* Sets *error; returns false. */
__attribute__((format(printf, 3, 4))) static inline bool fail(zf_error *error, zf_status status,
                                                              const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail_text(error, status, format, args);
    va_end(args);
    return false;
}

/* The same for functions that return a status. */
__attribute__((format(printf, 3, 4))) static inline zf_status
fail_with(zf_error *error, zf_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail_text(error, status, format, args);
    va_end(args);
    return status;
}

#endif
