/* Which tests the words of the command line select (main.c). A word selects the tests whose name or
 * file contains it. The name of an operator also selects the cases of that operator and of its
 * gradient in the tests of all operators, and the files of tests/passes that have it. -WORD leaves
 * out what it names; of several words that name a test, the last counts. */
#ifndef SELECT_H
#define SELECT_H

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

/* The least number of letters to insert, delete or replace in `word` to find it in `name`. */
static int distance(const char *word, const char *name)
{
    enum { LONGEST = 256 };
    int row[LONGEST] = {0}, least;
    const int length = (int)strnlen(name, LONGEST - 1);
    for (int i = 1; word[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= length; j++) {
            const int replaced = diagonal + (word[i - 1] != name[j - 1]);
            diagonal = row[j];
            if (row[j - 1] < row[j]) row[j] = row[j - 1];
            row[j] = row[j] + 1 < replaced ? row[j] + 1 : replaced;
        }
    }
    least = row[0];
    for (int j = 1; j <= length; j++)
        if (row[j] < least) least = row[j];
    return least;
}

typedef struct near_name {
    const char *text;
    int far;
} near_name;

enum { NEAR_NAMES = 4 };

/* Keeps the nearest names, of equally near ones the shorter. */
static void keep_near(near_name near[NEAR_NAMES], const char *word, const char *text)
{
    near_name one = {text, 256 * distance(word, text) + (int)strlen(text)};
    for (int k = 0; k < NEAR_NAMES; k++) {
        const near_name was = near[k];
        if (was.text && was.far <= one.far) continue;
        near[k] = one;
        one = was;
        if (!one.text) return;
    }
}

static void say_near(const char *word, const test_case *all)
{
    near_name near[NEAR_NAMES] = {{0}};
    const char *file = "";
    for (int op = ZF_OP_none + 1; op < ZF_OP_COUNT; op++)
        keep_near(near, word, zf_op_name((zf_op)op));
    for (const test_case *c = all; c; c = c->next) {
        keep_near(near, word, c->name);
        if (strcmp(file, c->file)) keep_near(near, word, c->file);
        file = c->file;
    }
    fprintf(stderr, "tests: '%s' is in the name of no test, file or operator; near are", word);
    for (int k = 0; k < NEAR_NAMES && near[k].text; k++)
        fprintf(stderr, "%s %s", k ? "," : "", near[k].text);
    fprintf(stderr, " (--list lists all tests)\n");
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
