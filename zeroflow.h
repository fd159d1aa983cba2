/* zeroflow.h - train transformers from C: a static autograd graph, rewritten by passes, run as one plan. */
#ifndef ZEROFLOW_H
#define ZEROFLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ZF_API
#define ZF_API /* decorates every public function; -DZF_API=static makes the library private to one file */
#endif

/* -------------------------------------------------------------------------------------------- 1 STATUS, MEMORY */

typedef enum zf_status {
    ZF_OK = 0,
    ZF_ERR_NOMEM,    /* the allocator returned NULL */
    ZF_ERR_ARGUMENT, /* a value outside its documented range */
    ZF_ERR_SHAPE,    /* operands whose dimensions do not fit together */
    ZF_ERR_DTYPE,    /* operands whose element types do not fit together */
    ZF_ERR_STAGE,    /* a pass or call out of order */
    ZF_ERR_PARSE,    /* text that is not IR */
    ZF_ERR_VERIFY,   /* a graph or plan that breaks a rule of the IR */
    ZF_ERR_LIMIT,    /* a plan that does not fit the memory it was given */
    ZF_ERR_IO,       /* the operating system refused */
    ZF_ERR_FORMAT,   /* a damaged or foreign file */
    ZF_ERR_MISMATCH, /* state that belongs to another model, graph or plan */
    ZF_ERR_BACKEND   /* a device or its library failed */
} zf_status;

/* The name of a status: "ok", "out of memory", ... Never NULL. */
ZF_API const char *zf_status_name(zf_status status);

/* What went wrong, for a person: `text` is one line, terminated, at most 511 bytes, "" when status is ZF_OK. */
typedef struct zf_error {
    zf_status status;
    char text[512];
} zf_error;

/* One function allocates, resizes and frees (new_size 0); it returns NULL when it cannot, and then `ptr` is still valid.
 * `fn` NULL means the C library's realloc and free. A graph and all that is made from it use the graph's allocator. */
typedef struct zf_allocator {
    void *(*fn)(void *user, void *ptr, size_t old_size, size_t new_size);
    void *user;
} zf_allocator;

#ifdef __cplusplus
}
#endif
#endif /* ZEROFLOW_H */

#if defined(ZEROFLOW_IMPLEMENTATION) && !defined(ZEROFLOW_IMPLEMENTED)
#define ZEROFLOW_IMPLEMENTED
#include "graph/alloc.c"
#endif
