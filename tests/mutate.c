/* Mutated graphs: the graphs that tests/passes begin with, changed at random, go through random
 * lists of passes. What a pass accepts must keep every rule, and compute what the plain graph does:
 * to the last bit, or, where passes fuse, within some times the rounding that running the plain
 * graph in f64 shows. A bounded run is a test; MUTATE_RUNS=N and MUTATE_SEED=N make it longer and
 * other (make mutate).
 */
#define _POSIX_C_SOURCE 200809L
#include "../tools/pass.h"
#include "numbers.h"

#include <dirent.h>

enum { GRAPHS = 320, TEXT = 1 << 15, LINES = 400 };

typedef struct mutator {
    uint64_t state;
    char *graphs[GRAPHS];
    int count;
} mutator;

static int choose(mutator *m, int n)
{
    m->state = m->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((m->state >> 33) % (uint64_t)n);
}

static void mutator_free(void *object)
{
    mutator *m = object;
    for (int k = 0; k < m->count; k++) free(m->graphs[k]);
    m->count = 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* What stands in front of the first passes in every file. */
static bool read_graphs(mutator *m)
{
    DIR *folder = opendir("tests/passes");
    for (struct dirent *entry; folder && (entry = readdir(folder)) && m->count < GRAPHS;) {
        char path[400], *text = calloc(1, TEXT), *end;
        FILE *file;
        snprintf(path, sizeof path, "tests/passes/%.300s", entry->d_name);
        file = strstr(path, ".zf") ? fopen(path, "r") : NULL;
        if (file && text && fread(text, 1, TEXT - 1, file) && (end = strstr(text, "-->"))) {
            *end = '\0';
            m->graphs[m->count++] = text;
        } else {
            free(text);
        }
        if (file) fclose(file);
    }
    if (folder) closedir(folder);
    qsort(m->graphs, (size_t)m->count, sizeof *m->graphs, by_text);
    return m->count > 0;
}

/* -------------------------------------------------------------------------------------- changes */

/* Writes `with` over text[at .. at + length). */
static void splice(char *text, size_t at, size_t length, const char *with)
{
    size_t rest = strlen(text + at + length) + 1, more = strlen(with);
    if (at + more + rest > TEXT) return;
    memmove(text + at + more, text + at + length, rest);
    memcpy(text + at, with, more);
}

/* One of the places where `what` stands; NULL: there is none. */
static char *any_place(mutator *m, char *text, const char *what)
{
    int count = 0;
    char *at;
    for (at = text; (at = strstr(at, what)); at++) count++;
    if (!count) return NULL;
    count = choose(m, count);
    for (at = strstr(text, what); count; count--) at = strstr(at + 1, what);
    return at;
}

/* Another operator of as many operands, another operand, another size everywhere, another dtype of
 * leaves, a parameter frozen or not. */
static void change(mutator *m, char *text)
{
    static const char *const ops[2][13] = {{"exp", "tanh", "relu", "gelu", "silu", "sigmoid", "neg",
                                            "softmax", "sqrt", "log", "rsqrt", "logsumexp", "sum"},
                                           {"add", "sub", "mul", "div", "maximum", "minimum",
                                            "matmul", "add", "mul", "less", "equal", "sub", "mul"}};
    char *at, word[48];
    switch (choose(m, 6)) {
    case 0:
    case 1: {
        int set = choose(m, 2);
        snprintf(word, sizeof word, "= %s %%", ops[set][choose(m, 13)]);
        if (!(at = any_place(m, text, word))) return;
        splice(text, (size_t)(at - text) + 2, strcspn(at + 2, " "), ops[set][choose(m, 13)]);
        return;
    }
    case 2: /* an operand: another value from above */
        if (!(at = any_place(m, text, "%")) || (at > text && at[-1] == '\n') || at == text) return;
        snprintf(word, sizeof word, "%%%d", 1 + choose(m, atoi(at + 1) + 1));
        splice(text, (size_t)(at - text), 1 + strspn(at + 1, "0123456789"), word);
        return;
    case 3: { /* a size */
        static const char *const sizes[] = {"1", "2", "3", "4", "5", "8", "16", "33"};
        const char *from = sizes[choose(m, 8)], *to = sizes[choose(m, 8)];
        for (size_t i = 1; text[i]; i++) {
            size_t digits = strspn(text + i, "0123456789");
            bool is = digits == strlen(from) && !strncmp(text + i, from, digits) &&
                      strchr("[,", text[i - 1]) && strchr("],", text[i + digits]);
            if (is) splice(text, i, digits, to);
            if (digits) i += strspn(text + i, "0123456789") - 1;
        }
        return;
    }
    case 4:
        if ((at = any_place(m, text, " : f32["))) splice(text, (size_t)(at - text) + 3, 3, "bf16");
        return;
    default:
        if ((at = any_place(m, text, "{init=normal")))
            splice(text, (size_t)(at - text), 1, choose(m, 2) ? "{frozen=true " : "{");
    }
}

/* Makes the types behind the nodes those of their operands; NULL: it is no graph. */
static zf_graph *repaired(char *text)
{
    for (int turn = 0; turn < 2 * LINES; turn++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(text, strlen(text), NULL, &error);
        const char *give = strstr(error.text, " give ");
        char *line = text, *type;
        if (g || !give) return g;
        for (int n = atoi(error.text); n > 1 && line; n--)
            if ((line = strchr(line, '\n'))) line++;
        type = line ? strstr(line, " : ") : NULL;
        if (!type) return NULL;
        splice(text, (size_t)(type - text) + 3, strcspn(type + 3, " \n"), give + 6);
    }
    return NULL;
}

/* --------------------------------------------------------------------------------------- passes */

/* A list of passes behind `autograd; optimizer`; *fuses: it may round otherwise. */
static void random_passes(mutator *m, char *line, size_t size, int64_t *slots, bool *fuses)
{
    int world = 1 + choose(m, 3), micro = 1 + choose(m, 2), stage = choose(m, 4);
    char zero[96] = "", ahead[96] = "";
    *fuses = !choose(m, 3);
    *slots = choose(m, 3) ? (int64_t)world * micro : 0;
    if (*slots)
        snprintf(zero, sizeof zero, "; zero stage=%d world=%d micro_batches=%d bucket=%d", stage,
                 world, micro, 1 << choose(m, 14));
    if (*slots && choose(m, 2))
        snprintf(ahead, sizeof ahead, "; prefetch bytes=%d", 1 << choose(m, 20));
    snprintf(line, size, "%s%s%s%s%s; memory threads=1%s; verify", choose(m, 2) ? "simplify; " : "",
             *fuses ? "fuse" : "verify", choose(m, 4) ? "" : "; recompute layers", zero, ahead,
             choose(m, 4) ? "" : " no_reuse");
}

/* Text of the graph after the passes; NULL where one refuses, with why in message. */
static char *passed(const char *text, const char *line, char *message, size_t size)
{
    zf_graph *g = zf_graph_parse(text, strlen(text), NULL, NULL);
    char *out = NULL;
    *message = '\0';
    if (g && pass_run(g, line, NULL, message, size) == PASS_DONE) out = text_of(g);
    zf_graph_free(g);
    return out;
}

/* ------------------------------------------------------------------------------------- numbers */

/* What both have agrees within 256 times what f64 differs by from the first, where that is small
 * enough to tell something. */
static bool near_enough(const numbers *a, const numbers *b, const numbers *exact, char *why,
                        size_t size)
{
    for (int k = 0; k < a->count; k++) {
        const number *x = &a->list[k], *y = numbers_find(b, x->name),
                     *z = numbers_find(exact, x->name);
        double largest = 0, off = 0;
        if (!y || !z || x->dtype != ZF_F32 || y->dtype != ZF_F32) continue;
        for (int64_t i = 0; i < number_count(x); i++) {
            double p = number_at(x, i), e = number_at(z, i);
            if (fabs(e) > largest) largest = fabs(e);
            off = isfinite(p) && isfinite(e) ? fmax(off, fabs(p - e)) : INFINITY;
        }
        if (!(off < 1e-4 * largest)) continue;
        for (int64_t i = 0; i < number_count(x); i++) {
            double p = number_at(x, i), q = number_at(y, i);
            if (fabs(p - q) <= 256 * off + 2e-6 * largest) continue;
            snprintf(why, size, "%s: element %lld is %.9g and %.9g", x->name, (long long)i, p, q);
            return false;
        }
    }
    return true;
}

/* Steps where a little decides much, which rounding may tip. */
static bool tips(const char *text)
{
    static const char *const ops[] = {"= less ", "= equal ", "max", "= minimum ", "= relu "};
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
        if (strstr(text, ops[k])) return true;
    return false;
}

/* The output of a step, as numbers_of calls it, is an input: nothing sums it over the slots, of which
 * each has its own. */
static bool is_input(const char *text, const char *called)
{
    const char *name = strstr(called, " output ") + strlen(" output ");
    char mark[300], first[32];
    for (const char *at = text; (at = strstr(at, "output %")); at++) {
        int id = atoi(at + strlen("output %"));
        snprintf(mark, sizeof mark, "output %%%d \"%.200s\"", id, name);
        snprintf(first, sizeof first, "%%%d ", id);
        if (strncmp(at, mark, strlen(mark))) continue;
        for (const char *line = text; line;
             line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
            if (!strncmp(line, first, strlen(first)) &&
                !strncmp(line + strcspn(line, "="), "= input ", strlen("= input ")))
                return true;
    }
    return false;
}

static bool same_numbers(const char *plain, const char *text, int64_t slots, bool fuses, char *why,
                         size_t size)
{
    numbers_desc d = {.steps = 2, .fast = true, .no_reuse = true, .slots = slots},
                 e = {.steps = 2, .fast = true};
    zf_error error = {ZF_OK, ""};
    numbers a = {0}, b = {0}, c = {0};
    char *exact = fuses ? text_in_f64(plain) : NULL;
    bool good = true, ran = numbers_of(&a, plain, &d, &error);
    *why = '\0';
    for (int k = 0; k < a.count && slots > 1; k++) /* of one slot each has its own */
        if (strstr(a.list[k].name, " output ") &&
            (number_count(&a.list[k]) != 1 || a.list[k].dtype > ZF_F64 ||
             is_input(plain, a.list[k].name)))
            snprintf(a.list[k].name, sizeof a.list[k].name, "- -");
    if (ran) { /* an index out of range, say, is an error of both */
        if (!(good = numbers_of(&b, text, &e, &error))) {
            snprintf(why, size, "%s", error.text);
            good = error.status == ZF_ERR_MISMATCH; /* a rate must be one for all slots */
        }
        if (!error.status && !fuses) good = numbers_compare(&a, &b, "", why, size) >= 0;
        else if (!error.status && !tips(plain) && numbers_of(&c, exact, &d, &error))
            good = near_enough(&a, &b, &c, why, size);
    }
    numbers_free(&a), numbers_free(&b), numbers_free(&c);
    free(exact);
    return good;
}

/* ---------------------------------------------------------------------------------------- runs */

/* One graph, changed, and its passes; false where something is wrong. *checked: it came so far. */
static bool mutate_once(mutator *m, char *why, size_t size, char *shown, bool *checked)
{
    static const char *const rules[] = {"sgd lr", "sgd lr momentum=0.9", "adamw lr",
                                        "clip 1; lamb lr", "clip 1; adamw lr weight_decay=0.1"};
    char text[TEXT], line[400], train[200], *plain, *after;
    zf_graph *g;
    int64_t slots;
    bool fuses, good, trained;
    int32_t loss = 0;
    snprintf(text, sizeof text, "%s", m->graphs[choose(m, m->count)]);
    for (int n = choose(m, 4); n >= 0; n--) change(m, text);
    if (!(g = repaired(text))) return true;
    for (int32_t id = 1; id < LINES; id++) {
        zf_tensor x = {g, id};
        if (zf_valid(x) && zf_tensor_dtype(x) <= ZF_F64 && !zf_tensor_shape(x).rank &&
            !*zf_tensor_name(x))
            loss = id;
    }
    good = zf_valid(zf_graph_find(g, "lr"));
    zf_graph_free(g);
    trained = strstr(text, "update:") != NULL;
    if (!good || (!loss && !trained)) return true;
    snprintf(train, sizeof train, "%s%sautograd %%%d; %s", choose(m, 4) ? "" : "fuse; ",
             choose(m, 3)   ? ""
             : choose(m, 2) ? "precision bf16; "
                            : "precision f16; ",
             (int)loss, rules[choose(m, 5)]);
    if (trained) snprintf(train, sizeof train, "verify");
    random_passes(m, line, sizeof line, &slots, &fuses);
    if (!(plain = passed(text, train, why, size))) return true;
    after = passed(plain, line, why, size);
    *checked = after != NULL;
    good = after || !strstr(why, "verify: ");
    if (after) good = same_numbers(plain, after, slots, fuses, why, size);
    if (!good) snprintf(shown, TEXT, "%s--> %s\n--> %s\n", text, train, line);
    free(plain), free(after);
    return good;
}

TEST_ONCE(mutate_graphs)
{
    static mutator m;
    static char shown[TEXT];
    const char *runs = getenv("MUTATE_RUNS"), *seed = getenv("MUTATE_SEED");
    char why[700];
    long count = runs ? atol(runs) : 600, checked = 0, first = seed ? atol(seed) : 1;
    test_defer(t, mutator_free, &m);
    CHECK(t, read_graphs(&m));
    for (long n = first; n < first + count; n++) {
        bool is = false;
        m.state = (uint64_t)n * 0x9e3779b97f4a7c15u;
        if (!mutate_once(&m, why, sizeof why, shown, &is)) {
            char where[800];
            snprintf(where, sizeof where, "seed %ld: %s", n, why);
            test_fail(t, __FILE__, __LINE__, where, shown);
        }
        checked += is;
    }
    CHECK(t, checked > count / 20);
    if (runs) printf("%ld of %ld came to run\n", checked, count);
}
