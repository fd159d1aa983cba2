/* Errors. Communicators that are compiled separately include this file too. */
#ifndef ZFI_ERROR
#define ZFI_ERROR

#include <stdarg.h>

#if defined(__GNUC__)
#define ZFI_PRINTF(string, first) __attribute__((format(printf, string, first)))
#define ZFI_UNUSED                __attribute__((unused))
#define ZFI_COLD                  __attribute__((cold, noinline))
#else
#define ZFI_PRINTF(string, first)
#define ZFI_UNUSED
#define ZFI_COLD
#endif
/* Reports a failure: what leads there is compiled for size. */
#define ZFI_FAILS(string, first) ZFI_COLD ZFI_PRINTF(string, first)

/* Records `status` and the text, unless an error is recorded already: the first error names the
 * cause. `error` may be NULL. Returns `status`. */
ZFI_FAILS(3, 4)
static zf_status zfi_fail(zf_error *error, zf_status status, const char *format, ...)
{
    if (error && !error->status) {
        va_list args;
        va_start(args, format);
        error->status = status;
        vsnprintf(error->text, sizeof error->text, format, args);
        va_end(args);
    }
    return status;
}

ZFI_COLD static zf_status zfi_nomem(zf_error *error)
{
    return zfi_fail(error, ZF_ERR_NOMEM, "out of memory");
}

#endif
