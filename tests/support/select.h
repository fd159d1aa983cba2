/* Which tests the words of the command line select (main.c). A word selects the tests whose name or
 * file contains it. The name of an operator also selects the cases of that operator and of its
 * gradient in the tests of all operators, and the files of tests/passes that have it. -WORD leaves
 * out what it names; of several words that name a test, the last counts. */
#ifndef SELECT_H
#define SELECT_H

#include "../../base/near.c"

#include <limits.h>

static char **words;
static int word_count;
static bool only_operators; /* the test that runs is selected as one of operators alone */

static bool is_named(const test_case *c, const char *word)
{
    return strstr(c->name, word) || strstr(c->file, word);
}

static bool has_operator(const test_case *c, const char *word)
{
    return c->has_operator && c->has_operator(c, word);
}

static bool selects(const test_case *c)
{
    bool wanted = !word_count || *words[0] == '-';
    only_operators = false;
    for (int k = 0; k < word_count; k++) {
        const bool leaves_out = *words[k] == '-';
        if (is_named(c, words[k] + leaves_out)) {
            wanted = !leaves_out;
            only_operators = false;
        } else if (!leaves_out && !wanted && has_operator(c, words[k])) {
            wanted = only_operators = true;
        }
    }
    return wanted;
}

bool test_concerns(const char *operator_name)
{
    for (int k = 0; k < word_count && only_operators; k++) {
        const size_t length = strlen(words[k]);
        if (!strncmp(operator_name, words[k], length) &&
            (!operator_name[length] || !strcmp(operator_name + length, "_grad")))
            return true;
    }
    return !only_operators;
}

/* ------------------------------------------------------------------------ words that select nothing */

static void say_near(const char *word, const test_case *all)
{
    zfi_near near = {.word = word, .most = INT_MAX};
    const char *file = "";
    char names[400];
    for (int op = ZF_OP_none + 1; op < ZF_OP_COUNT; op++)
        zfi_near_add(&near, zf_op_name((zf_op)op));
    for (const test_case *c = all; c; c = c->next) {
        zfi_near_add(&near, c->name);
        if (strcmp(file, c->file)) zfi_near_add(&near, c->file);
        file = c->file;
    }
    fprintf(stderr,
            "tests: '%s' is in the name of no test, file or operator%s (--list lists all tests)\n",
            word, zfi_near_text(&near, names, sizeof names));
}

/* False with a message where a word that selects tests selects none. */
static bool words_name_tests(const test_case *all)
{
    for (int k = 0; k < word_count; k++) {
        const test_case *c = all;
        if (*words[k] == '-') continue;
        while (c && !is_named(c, words[k]) && !has_operator(c, words[k])) c = c->next;
        if (c) continue;
        say_near(words[k], all);
        return false;
    }
    return true;
}

#endif
