/* A test that hangs is named, and ends the run. Part of main.c. */
#ifndef ZF_TESTS_DEADLINE_H
#define ZF_TESTS_DEADLINE_H

#include <signal.h>

#define DEADLINE_S 600 /* the longest test takes a minute, under ThreadSanitizer */

static char hangs[256]; /* the line to print, made before the test runs */

static void on_deadline(int number)
{
    (void)number;
    if (write(STDOUT_FILENO, hangs, strlen(hangs)) < 0) abort();
    _exit(3);
}

/* Begins the time of one run of this test. A child that it forks has no deadline. */
static void deadline_begin(const test_case *c)
{
    snprintf(hangs, sizeof hangs, "FAILED %s (%s): it hangs, or runs longer than %d s\n", c->name,
             c->file, DEADLINE_S);
    signal(SIGALRM, on_deadline);
    alarm(DEADLINE_S);
}

static void deadline_end(void) { alarm(0); }

#endif
