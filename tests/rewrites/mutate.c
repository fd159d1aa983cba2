/* Mutated graphs: the graphs at the beginning of tests/passes, changed at random, go through random
 * lists of passes, with fusion before zf_autograd, after it, or not at all. A graph that a pass
 * accepts must keep every rule, and compute the numbers of the plain graph: to the last bit, or
 * where passes fuse, as near to the plain graph in f64 as the plain graph itself is, within some
 * times its rounding. A bounded run is a test; MUTATE_RUNS=N and MUTATE_SEED=N set its length and
 * seed, MUTATE_CHANGES=N changes graphs up to N times instead of 4 (make mutate). */
#define _POSIX_C_SOURCE 200809L
#include "../../tools/pass.h"
#include "../support/numbers.h"

#include <dirent.h>

enum { GRAPHS = 320, TEXT = 1 << 15, LINES = 400 };

typedef struct mutator {
    uint64_t state;
    char *graphs[GRAPHS];
    int count, changes;
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

/* Reads the graph before the first passes of every file. */
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

/* One of the places where `what` occurs; NULL: there is none. */
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

/* Corrects the types after nodes to those of their operands; NULL: it is no graph. */
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

/* A list of passes after `autograd; optimizer`; *fuses: it may round differently. */
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

/* The text of the graph after the passes; NULL where one refuses, with the reason in message. */
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

/* The distance of x from the exact numbers; *largest of these. */
static double distance(const number *x, const number *exact, double *largest)
{
    double off = 0;
    *largest = 0;
    for (int64_t i = 0; i < number_count(exact); i++) {
        double p = number_at(x, i), e = number_at(exact, i);
        *largest = fmax(*largest, fabs(e));
        off = isfinite(p) && isfinite(e) ? fmax(off, fabs(p - e)) : INFINITY;
    }
    return off;
}

/* The numbers that all three have are in b about as near to the exact ones as in a, where that is
 * near enough to be meaningful. In 16 bits roundings are few and large, and a sum may be near by
 * chance: the bound for b is the largest distance in a, and at least what is expected of a few
 * numbers. */
static bool near_enough(const numbers *a, const numbers *b, const numbers *exact, bool narrow,
                        char *why, size_t size)
{
    double limit = narrow ? 0.1 : 1e-4, times = narrow ? 8 : 256, least = narrow ? 2e-4 : 2e-6,
           share = 0;
    for (int k = 0; k < 2 * a->count; k++) {
        const number *x = &a->list[k % a->count], *y = numbers_find(b, x->name),
                     *z = numbers_find(exact, x->name);
        double largest, off, its;
        if (!y || !z || x->dtype > ZF_F64 || y->dtype != x->dtype || z->dtype > ZF_F64 ||
            number_count(x) != number_count(z) || number_count(y) != number_count(z))
            continue;
        off = distance(x, z, &largest);
        if (!(off < limit * largest)) continue;
        if (narrow && number_count(x) < 8) off = fmax(off, largest / 32);
        else if (narrow && k < a->count) share = fmax(share, off / largest);
        if (k < a->count) continue;
        its = distance(y, z, &largest);
        if (its <= times * fmax(off, share * largest) + least * largest) continue;
        snprintf(why, size, "%s: of %g, the plain graph is off by %g, the other by %g", x->name,
                 largest, off, its);
        return false;
    }
    return true;
}

/* LayerNorm of one element: its gradient is 0 times the reciprocal of the root of eps, and in 16
 * bits the rounding of a recomputed activation is not 0. */
static bool is_steep(const char *text)
{
    for (const char *at = text; (at = strstr(at, "= layer_norm ")); at++) {
        size_t line = strcspn(at, "\n");
        if (line > 3 && !strncmp(at + line - 3, ",1]", 3)) return true;
    }
    return false;
}

/* The output of a step, named as in numbers_of, is an input: it is not summed over the slots, each
 * of which has its own. */
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

/* Every float of the steps is finite. A fused gradient spreads a NaN further than a plain one. */
static bool all_finite(const numbers *a)
{
    for (int k = 0; k < a->count; k++)
        for (int64_t i = 0; i < number_count(&a->list[k]) && a->list[k].dtype <= ZF_F64; i++)
            if (!isfinite(number_at(&a->list[k], i))) return false;
    return true;
}

/* The passes of a graph, and how its numbers may differ from those of the plain graph. */
typedef struct comparison {
    int64_t slots;
    bool fuses, narrow; /* rounds differently; computes in 16 bits */
} comparison;

/* `wide`: the plain graph in f32. */
static bool same_numbers(const char *plain, const char *wide, const char *text, const comparison *c,
                         char *why, size_t size)
{
    numbers_desc d = {.steps = 2, .fast = true, .no_reuse = true, .slots = c->slots},
                 e = {.steps = 2, .fast = true};
    zf_error error = {ZF_OK, ""};
    numbers a = {0}, b = {0}, exact = {0};
    char *in_f64 = c->fuses ? text_in_f64(wide) : NULL;
    bool good = true, ran = numbers_of(&a, plain, &d, &error);
    *why = '\0';
    for (int k = 0; k < a.count && c->slots > 1; k++) /* of one slot each has its own */
        if (strstr(a.list[k].name, " output ") &&
            (number_count(&a.list[k]) != 1 || a.list[k].dtype > ZF_F64 ||
             is_input(plain, a.list[k].name)))
            snprintf(a.list[k].name, sizeof a.list[k].name, "- -");
    if (ran) { /* an index out of range, say, is an error of both */
        if (!(good = numbers_of(&b, text, &e, &error))) {
            snprintf(why, size, "%s", error.text);
            good = error.status == ZF_ERR_MISMATCH; /* a rate must be one for all slots */
        }
        if (!error.status && !c->fuses) good = numbers_compare(&a, &b, "", why, size) >= 0;
        else if (!error.status && !(c->narrow && is_steep(plain)) && all_finite(&a) &&
                 numbers_of(&exact, in_f64, &d, &error))
            good = near_enough(&a, &b, &exact, c->narrow, why, size);
    }
    numbers_free(&a), numbers_free(&b), numbers_free(&exact);
    free(in_f64);
    return good;
}

/* ---------------------------------------------------------------------------------------- runs */

/* The last scalar without a name, which may be a loss; 0: there is none. */
static int32_t loss_of(const zf_graph *g)
{
    int32_t loss = 0;
    for (int32_t id = 1; id < LINES; id++) {
        zf_tensor x = {(zf_graph *)g, id};
        if (zf_valid(x) && zf_tensor_dtype(x) <= ZF_F64 && !zf_tensor_shape(x).rank &&
            !*zf_tensor_name(x))
            loss = id;
    }
    return loss;
}

/* Changes one graph and runs its passes; false where something is wrong. *checked: numbers were
 * compared. */
static bool mutate_once(mutator *m, char *why, size_t size, char *shown, bool *checked)
{
    static const char *const rules[] = {"sgd lr", "sgd lr momentum=0.9", "adamw lr",
                                        "clip 1; lamb lr", "clip 1; adamw lr weight_decay=0.1"},
                             *const precisions[] = {
                                 "", "", "", "", "precision bf16; ", "precision f16; "};
    char text[TEXT], line[400], wide[100] = "verify", train[200] = "verify", ahead[220] = "verify";
    char *plain, *in_f32, *start, *after;
    zf_graph *g;
    comparison c = {.narrow = false};
    bool good, fuses_ahead = false;
    snprintf(text, sizeof text, "%s", m->graphs[choose(m, m->count)]);
    for (int n = choose(m, m->changes); n >= 0; n--) change(m, text);
    if (!(g = repaired(text))) return true;
    good = zf_valid(zf_graph_find(g, "lr"));
    if (!strstr(text, "update:")) { /* it has no updates of its own */
        const char *precision = precisions[choose(m, 6)];
        int32_t loss = loss_of(g);
        good = good && loss;
        snprintf(wide, sizeof wide, "autograd %%%d; %s", (int)loss, rules[choose(m, 5)]);
        snprintf(train, sizeof train, "%s%s", precision, wide);
        snprintf(ahead, sizeof ahead, "fuse; %s", train);
        fuses_ahead = choose(m, 2);
        c.narrow = *precision;
    }
    zf_graph_free(g);
    if (!good) return true;
    random_passes(m, line, sizeof line, &c.slots, &c.fuses);
    c.fuses = c.fuses || fuses_ahead;
    if (!(plain = passed(text, train, why, size))) return true;
    in_f32 = passed(text, wide, why, size);
    start = passed(text, fuses_ahead ? ahead : train, why, size);
    after = start ? passed(start, line, why, size) : NULL;
    *checked = after != NULL;
    good = start && (after || !strstr(why, "verify: "));
    if (after && in_f32) good = same_numbers(plain, in_f32, after, &c, why, size);
    if (!good) snprintf(shown, TEXT, "%s--> %s\n--> %s\n", text, fuses_ahead ? ahead : train, line);
    free(plain), free(in_f32), free(start), free(after);
    return good;
}

TEST_ONCE(mutate_graphs)
{
    static mutator m;
    static char shown[TEXT];
    const char *runs = getenv("MUTATE_RUNS"), *seed = getenv("MUTATE_SEED"),
               *changes = getenv("MUTATE_CHANGES");
    char why[700];
    long count = runs ? atol(runs) : 600, checked = 0, first = seed ? atol(seed) : 1;
    m.changes = changes ? atoi(changes) : 4;
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
