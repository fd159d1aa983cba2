/* The runner: build/tests [--oom[=all]] [--bless] [--list] [--times] [--part=K/N] [SUBSTRING ...]
 * [-SUBSTRING ...]. It runs the tests whose name or file contains one of the first and none of the
 * second; the name of an operator is one of the first, too (select.h). Of these, with --part, it
 * runs numbers K, K + N, K + 2 N, ... from 1 on. Its last line is "N passed, N failed", followed by
 * ", N skipped" if tests left out what this machine lacks. The status is 1 if a test failed, 2 if
 * none is selected. */
#define _XOPEN_SOURCE 700
#include "test.h"

#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

bool test_bless;
static test_case *cases;

/* Sorted by file, then by order of registration, as in the folder. */
void test_register(test_case *self)
{
    test_case **at = &cases;
    while (*at && strcmp((*at)->file, self->file) <= 0) at = &(*at)->next;
    self->next = *at;
    *at = self;
}

/* A TEST_ONCE that runs with allocations refused, those of the library's default allocator and of
 * the samples too; NULL: none. */
static test *hooked;

#include "deadline.h"
#include "refusals.h"
#include "select.h"

/* A graph that could not be made has no message of its own. */
static bool says_so(const char *text)
{
    return strstr(text, "out of memory") || !strcmp(text, "there is no graph");
}

void test_fail(test *t, const char *file, int line, const char *what, const char *text)
{
    if (hooked && (says_so(what) || (text && says_so(text)))) t->said = true;
    if (t->refused && (t->said || is_unjudged(t->self))) t->unwound = true;
    if (t->unwound) return;
    t->failed = true;
    printf("  %s:%d: %s\n", file, line, what);
    if (text && *text) printf("    %s\n", text);
    if (t->refused) printf("    an allocation was refused, and no call said ZF_ERR_NOMEM\n");
}

bool test_unwind(test *t, const char *file, int line, const char *what, zf_status status,
                 const char *text)
{
    if (t->refused && status == ZF_ERR_NOMEM) t->unwound = true;
    test_fail(t, file, line, what, text && *text ? text : zf_status_name(status));
    return t->unwound;
}

zf_status test_status_of(const char *text)
{
    return strstr(text, "out of memory") ? ZF_ERR_NOMEM : ZF_ERR_ARGUMENT;
}

void test_skip(test *t, const char *what)
{
    if (!t->skipped && t->refuse_at < 0)
        printf("skipped in %s (%s): %s\n", t->self->name, t->self->file, what);
    t->skipped = true;
}

bool test_has_isa(test *t, const char *isa)
{
#if defined(__x86_64__)
    static const char *const sets[] = {"portable", "avx2", "avx512", "amx"};
#elif defined(__aarch64__)
    static const char *const sets[] = {"portable", "neon"};
#else
    static const char *const sets[] = {"portable"};
#endif
    enum { SETS = sizeof sets / sizeof *sets };
    static int has[SETS]; /* 0: not asked yet, 1: no, 2: yes */
    int k = 0;
    if (!isa) return true;
    while (k < SETS && strcmp(isa, sets[k]) != 0) k++;
    if (k == SETS) return false;
    if (!has[k]) {
        zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.isa = isa}, NULL);
        has[k] = cpu ? 2 : 1;
        zf_backend_free(cpu);
    }
    if (has[k] == 1) test_skip(t, isa);
    return has[k] == 2;
}

void test_defer(test *t, test_cleanup *run, void *object)
{
    if (t->deferred_count == (int)(sizeof t->deferred / sizeof t->deferred[0])) abort();
    t->deferred[t->deferred_count].run = run;
    t->deferred[t->deferred_count++].object = object;
}

/* New for each run, since a killed run leaves its folder, and process numbers are used again. */
static char test_folder[] = "/tmp/zeroflow-test-XXXXXX";
static bool test_folder_made;

const char *test_path(const char *name)
{
    static char paths[8][256];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    if (!test_folder_made && !mkdtemp(test_folder)) abort();
    test_folder_made = true;
    snprintf(path, sizeof paths[0], "%s/%s", test_folder, name);
    return path;
}

/* Blocks carry nothing extra: what is freed must name its size, so the sums must come out even. */
static void *counting_allocator(void *user, void *ptr, size_t old_size, size_t new_size)
{
    test *t = user;
    void *block;
    if (!new_size) {
        if (ptr) t->live_blocks--, t->live_bytes -= (long)old_size;
        free(ptr);
        return NULL;
    }
    if (t->allocations++ == t->refuse_at) {
        t->refused = true;
        return NULL;
    }
    block = realloc(ptr, new_size);
    if (!block) return NULL;
    if (!ptr) t->live_blocks++;
    t->live_bytes += (long)new_size - (long)(ptr ? old_size : 0);
    if (t->live_bytes > t->peak_bytes) t->peak_bytes = t->live_bytes;
    return block;
}

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
/* Memory that no machine has is refused, as without a sanitizer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

/* Blocks of the default allocator are lost, for the first time: the report shows where they came from.
 * To look takes as long as many tests do, so that is done after every so many, and at the end by
 * the sanitizer itself. */
static bool leaks(int ran)
{
    enum { TESTS = 32 };
    static bool lost;
    if (lost || ran % TESTS) return false;
    lost = __lsan_do_recoverable_leak_check() != 0;
    if (lost) printf("  one of the last %d tests has lost these\n", (int)TESTS);
    return lost;
}
#else
static bool leaks(int ran) { return (void)ran, false; }
#endif

/* ------------------------------------------------------- what does not go through t->allocator */

/* An allocation of the library's default allocator or of a sample, on any thread. */
static bool refuses(void)
{
    test *t = hooked;
    if (!t || t->allocations++ != t->refuse_at) return false;
    t->refused = true;
    return true;
}

void *test_malloc(size_t bytes) { return refuses() ? NULL : malloc(bytes); }
void *test_calloc(size_t count, size_t bytes) { return refuses() ? NULL : calloc(count, bytes); }
void *test_realloc(void *block, size_t bytes) { return refuses() ? NULL : realloc(block, bytes); }

/* A message was made. */
int test_vsnprintf(char *text, size_t size, const char *format, va_list args)
{
    int length = vsnprintf(text, size, format, args);
    if (hooked && size && strstr(text, "out of memory")) hooked->said = true;
    return length;
}

int test_snprintf(char *text, size_t size, const char *format, ...)
{
    va_list args;
    int length;
    va_start(args, format);
    length = test_vsnprintf(text, size, format, args);
    va_end(args);
    return length;
}

static _Atomic long comparisons;

int test_strcmp(const char *left, const char *right)
{
    comparisons++;
    return strcmp(left, right);
}

long test_comparisons(void) { return comparisons; }

static bool refusing; /* the test that runs has allocations refused in turn */

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *at)
{
    (void)about, (void)kind, (void)at;
    return remove(path), 0;
}

/* Each test has a folder of its own. */
static void remove_folder(void)
{
    if (!test_folder_made) return;
    nftw(test_folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    memcpy(test_folder + sizeof test_folder - 7, "XXXXXX", 6);
    test_folder_made = false;
}

/* Runs the body with allocation `refuse_at` refused (-1: none); true when it passed. */
static bool run(const test_case *c, long refuse_at, test *t)
{
    *t = (test){.self = c, .refuse_at = refuse_at};
    t->allocator = (zf_allocator){counting_allocator, t};
    if (refusing && c->once) hooked = t;
    deadline_begin(c);
    c->body(t);
    while (t->deferred_count) {
        t->deferred_count--;
        t->deferred[t->deferred_count].run(t->deferred[t->deferred_count].object);
    }
    deadline_end();
    hooked = NULL;
    if (refusing && c->once) remove_folder();
    if ((t->live_blocks || t->live_bytes) && !(t->refused && is_unjudged(c))) {
        t->refused = false;
        t->said = false;
        t->unwound = false;
        test_fail(t, c->file, 0, "left allocated", "");
        if (t->failed) printf("    %ld blocks, %ld bytes\n", t->live_blocks, t->live_bytes);
    }
    return !t->failed;
}

#ifndef OOM_REFUSALS
#define OOM_REFUSALS 30
#endif
/* Of TEST_ONCE; 0: they run without. */
#ifndef OOM_SPARSE
#define OOM_SPARSE 3
#endif

/* The tests that were run with allocations refused. */
static struct {
    int whole, sampled; /* tests with each of their allocations, and with a sample */
    int unjudged;       /* of these */
    int none;           /* they allocate nothing */
    int without;        /* ran as they do without --oom */
    long refusals, allocations;
} refused;

/* Processor time, so that waiting and other work on the machine do not count. */
static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The number of refusals of a test, by the time of its run; 0: all. */
static long refusals_of(const test_case *c, long most, double spent)
{
    if (c->once) return spent > 0.5 ? 1 : spent > 0.1 && OOM_SPARSE > 2 ? 2 : OOM_SPARSE;
    return most > 2 && spent > 0.1 ? 2 : most;
}

/* Runs the body with each of its allocations refused in turn, or with `most` of them, evenly
 * spread, if there are more (0: all); then once more without a refusal, unless that takes long. */
static bool run_out_of_memory(const test_case *c, long most, test *t)
{
    double from = seconds(), spent;
    long total, step;
    if (!run(c, -1, t)) return false;
    total = t->allocations;
    spent = seconds() - from;
    most = refusals_of(c, most, spent);
    step = most && total > most ? (total + most - 1) / most : 1;
    for (long k = total > most && c->once ? step / 2 : 0; k < total; k += step) {
        if (!run(c, k, t)) {
            printf("    with allocation %ld of %ld refused\n", k, total);
            return false;
        }
        refused.refusals++;
    }
    refused.allocations += total;
    if (!total) refused.none++;
    else if (step > 1) refused.sampled++;
    else refused.whole++;
    if (total && is_unjudged(c)) refused.unjudged++;
    return spent > 0.1 || run(c, -1, t);
}

static int says_usage(const char *option)
{
    fprintf(stderr,
            "tests: %s: no option; usage: tests [--oom[=all]] [--bless] [--list] [--times] "
            "[--part=K/N] [SUBSTRING | -SUBSTRING ...]\n",
            option);
    return 2;
}

int main(int argc, char **argv)
{
    bool out_of_memory = false, list = false, times = false;
    long most = OOM_REFUSALS;
    int passed = 0, failed = 0, skipped = 0, part = 1, parts = 1, number = 0;
    words = argv + 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--oom")) out_of_memory = true;
        else if (!strcmp(argv[i], "--oom=all")) out_of_memory = true, most = 0;
        else if (!strcmp(argv[i], "--bless")) test_bless = true;
        else if (!strcmp(argv[i], "--list")) list = true;
        else if (!strcmp(argv[i], "--times")) times = true;
        else if (sscanf(argv[i], "--part=%d/%d", &part, &parts) == 2 && part >= 1 && part <= parts)
            continue;
        else if (!strncmp(argv[i], "--", 2)) return says_usage(argv[i]);
        else words[word_count++] = argv[i];
    }
    if (!words_name_tests(cases)) return 2;
    for (const test_case *c = cases; c; c = c->next) {
        bool good;
        double from = seconds();
        test t;
        if (!selects(c) || number++ % parts != part - 1) continue;
        if (list) {
            printf("%s (%s)\n", c->name, c->file);
            continue;
        }
        refusing = out_of_memory && (!c->once || (OOM_SPARSE && !is_without(c)));
        if (!refusing) refused.without++;
        good = refusing ? run_out_of_memory(c, most, &t) : run(c, -1, &t);
        remove_folder();
        good = !leaks(1 + passed + failed + skipped) && good;
        if (!good) printf("FAILED %s (%s)\n", c->name, c->file);
        if (times) printf("%7.2f s  %s (%s)\n", seconds() - from, c->name, c->file);
        if (!good) failed++;
        else if (t.skipped) skipped++;
        else passed++;
    }
    if (!number) {
        fprintf(stderr, "tests: no test is selected\n");
        return 2;
    }
    if (list) return 0;
    if (out_of_memory)
        printf("%d tests with every allocation refused in turn, %d with a sample: %ld of %ld; of "
               "these %d judged by crashes alone; %d allocate nothing; %d ran without "
               "(tests/support/refusals.h)\n",
               refused.whole, refused.sampled, refused.refusals, refused.allocations,
               refused.unjudged, refused.none, refused.without);
    printf("%d passed, %d failed", passed, failed);
    if (skipped) printf(", %d skipped", skipped);
    printf("\n");
    return failed != 0;
}
