/* The test runner: bodies register themselves. Each may run again with every allocation failing in
 * turn.
 *
 *     TEST(add_broadcasts)
 *     {
 *         zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
 *         NEED(t, g, NULL);
 *         test_defer(t, (test_cleanup *)zf_graph_free, g);
 *         CHECK(t, zf_rank(...) == 2);
 *     }
 *
 * A failed check ends the body; deferred functions run in reverse order. In the out-of-memory run,
 * allocation number k of t->allocator is refused. Then OK, GIVES or NEED must get ZF_ERR_NOMEM, or
 * every check must hold; nothing may stay allocated. TEST_ONCE is for bodies that take long, or
 * allocate in other ways: a few refusals are spread over their run, of t->allocator, of the
 * library's default allocator and of the samples. Then some message must say that memory is out, or
 * every check must hold. refusals.h names tests that are not judged, or not run, in this way. */
#ifndef TEST_H
#define TEST_H

#ifndef ZF_HEADER
#define ZF_HEADER "../../zeroflow.h"
#endif
#include ZF_HEADER

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Of the combinations that a long test crosses, one in so many, and which of them: builds of
 * test-all take different ones (Makefile). They rotate, so that each value of each factor comes up.
 * Builds that are slow, with more than 3, leave out what is large as well. */
#ifndef TEST_ONE_IN
#define TEST_ONE_IN 1
#endif
#ifndef TEST_TURN
#define TEST_TURN 0
#endif
#define TEST_TAKES(number) (((long)(number) + TEST_TURN) % TEST_ONE_IN == 0)
#define TEST_LARGE         (TEST_ONE_IN <= 3 && TEST_TURN == 0)

/* Emulated kernels are slow under AddressSanitizer: no large sizes, one order of blocks; no f16, whose
 * kernels are bf16's. So are a few tests of the library, of whose sizes it sees one. */
#ifdef __SANITIZE_ADDRESS__
#define TEST_SANITIZED 1
#else
#define TEST_SANITIZED 0
#endif

typedef void test_cleanup(void *);

typedef struct test_case test_case;

typedef struct test {
    const test_case *self;
    zf_allocator allocator; /* counts, checks sizes, and refuses on demand */
    atomic_long allocations;
    long refuse_at, live_blocks, live_bytes, peak_bytes;
    atomic_bool refused; /* an allocation was */
    atomic_bool said;    /* a message says that memory is out; for TEST_ONCE only */
    bool unwound;        /* a call said so: later checks do not count */
    bool failed, skipped;
    struct {
        test_cleanup *run;
        void *object;
    } deferred[64];
    int deferred_count;
} test;

struct test_case {
    const char *name, *file;
    void (*body)(test *);
    bool once;
    struct test_case *next;
    /* whether the operator occurs in it; NULL: not known. It is selected by that name, too. */
    bool (*has_operator)(const test_case *, const char *operator_name);
};

/* --bless: a test rewrites the files that it expects */
extern bool test_bless;

void test_register(test_case *);
/* Reports a failure; `text` may be "" . */
void test_fail(test *, const char *file, int line, const char *what, const char *text);
/* Whether a test of all operators runs the cases of this one: of a test that was selected by the
 * names of operators alone, only theirs. */
/* How often samples and their library have called strcmp. */
long test_comparisons(void);
bool test_concerns(const char *operator_name);
void test_defer(test *, test_cleanup *, void *object);
/* Notes that the machine lacks something, so that a part of the test is skipped. */
void test_skip(test *, const char *what);
/* True when the CPU backend has these instructions; NULL: its own choice. Notes as skipped those
 * that only a better machine of this architecture has. */
bool test_has_isa(test *, const char *isa);
/* True when `error` (NULL: not checked) reports the refused allocation; reports a failure
 * otherwise. */
bool test_unwind(test *, const char *file, int line, const char *what, zf_status, const char *text);
/* ZF_ERR_NOMEM of a text that says so, as the samples do; ZF_ERR_ARGUMENT of any other. */
zf_status test_status_of(const char *text);
/* A path in a folder of this test, for a file or folder; both are gone after it. The text lives until the
 * next call with the same name. */
const char *test_path(const char *name);

#define TEST_CASE(name, is_once, has)                                                              \
    static void name(test *t);                                                                     \
    __attribute__((constructor)) static void name##_register(void)                                 \
    {                                                                                              \
        static test_case self = {#name, __FILE__, name, is_once, NULL, has};                       \
        test_register(&self);                                                                      \
    }                                                                                              \
    static void name(test *t)

#define TEST(name)      TEST_CASE(name, false, NULL)
#define TEST_ONCE(name) TEST_CASE(name, true, NULL)

#define CHECK(t, condition)                                                                        \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            test_fail((t), __FILE__, __LINE__, #condition, "");                                    \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* |a - b| <= tolerance, both printed when it is not. */
#define CHECK_NEAR(t, a, b, tolerance)                                                             \
    do {                                                                                           \
        double near_a = (a), near_b = (b);                                                         \
        if (!(fabs(near_a - near_b) <= (tolerance))) {                                             \
            char near_text[96];                                                                    \
            snprintf(near_text, sizeof near_text, "%.17g and %.17g", near_a, near_b);              \
            test_fail((t), __FILE__, __LINE__, #a " ~ " #b, near_text);                            \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* The texts are equal; both are printed when they are not. A text that says that memory is out is
 * accepted after a refused allocation. */
#define CHECK_TEXT(t, a, b)                                                                        \
    do {                                                                                           \
        const char *text_a = (a), *text_b = (b);                                                   \
        if (strcmp(text_a, text_b)) {                                                              \
            static char both[4096];                                                                \
            snprintf(both, sizeof both, "got      %s\n    expected %s", text_a, text_b);           \
            test_unwind((t), __FILE__, __LINE__, #a, test_status_of(text_a), both);                \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* The store of a program, and its error. */
#define STORE(program)       zf_program_store(program)
#define STORE_ERROR(program) zf_store_error(zf_program_store(program))

/* The status is ZF_OK (text: what to print if not, may be NULL). */
#define OK(t, status_, text)                                                                       \
    do {                                                                                           \
        zf_status ok_status = (status_);                                                           \
        if (ok_status) {                                                                           \
            test_unwind((t), __FILE__, __LINE__, #status_, ok_status, (text));                     \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* The status is `wanted` (text: as for OK). */
#define GIVES(t, status_, wanted, text)                                                            \
    do {                                                                                           \
        zf_status gives_status = (status_);                                                        \
        if (gives_status != (wanted)) {                                                            \
            test_unwind((t), __FILE__, __LINE__, #status_ " == " #wanted, gives_status, (text));   \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* The pointer is not NULL; `error` is the zf_error (or NULL) that tells why it is. */
#define NEED(t, pointer, error)                                                                    \
    do {                                                                                           \
        const zf_error *need_error = (error);                                                      \
        if (!(pointer)) {                                                                          \
            test_unwind((t), __FILE__, __LINE__, #pointer,                                         \
                        need_error ? need_error->status : ZF_ERR_NOMEM,                            \
                        need_error ? need_error->text : NULL);                                     \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* Sets an option of the selected optimizer, as its flag names it: "weight-decay". */
static inline void test_set(zf_training *t, const char *option, double value)
{
    char text[40];
    snprintf(text, sizeof text, isinf(value) ? "inf" : "%.17g", value);
    if (zf_options_set(&(zf_options){.rows = zf_training_options(), .desc = t}, 1, option, text, NULL)) abort();
}

#endif
