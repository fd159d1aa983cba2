/* An error that a caller gets: its status and its text. */
#include <stdarg.h>
#include <stdio.h>

static void zfl_fail_text(zf_error *error, zf_status status, const char *format, va_list args)
{
    error->status = status;
    vsnprintf(error->text, sizeof error->text, format, args);
}

/* Sets *error; returns false. */
__attribute__((format(printf, 3, 4))) static bool zfl_fail(zf_error *error, zf_status status,
                                                           const char *format, ...)
{
    va_list args;
    va_start(args, format);
    zfl_fail_text(error, status, format, args);
    va_end(args);
    return false;
}

/* The same for functions that return a status. */
__attribute__((format(printf, 3, 4))) static zf_status
zfl_fail_with(zf_error *error, zf_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    zfl_fail_text(error, status, format, args);
    va_end(args);
    return status;
}

/* The same where *error may be NULL. */
__attribute__((format(printf, 3, 4))) static void zfl_tell(zf_error *error, zf_status status,
                                                           const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (error) zfl_fail_text(error, status, format, args);
    va_end(args);
}
