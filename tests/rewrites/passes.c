/* Passes over text: every file of tests/passes is a test.
 *
 *     # A sentence that says what the test shows.
 *     %1 = input "x" : f32[4]                  the graph
 *     --> simplify                             passes, as tools/zf-opt takes them
 *     ...                                      near misses and the graph after them, or
 *     error: zf_clip: needs ...                why not; the next line of passes starts from the
 * graph before
 *
 * `tests --bless` rewrites the expected text. Text shows the form of a graph, not whether it is
 * right, so each graph also runs before and after the passes, on the same values. Outputs,
 * parameters and states after one step and after three, and gradients, must be equal to the last
 * bit. There are two exceptions. After `fuse`, reference kernels round less often, and fast ones
 * may add in another order if the sentence says so ("rounding"): they must be equal within 2e-6 of
 * the largest element, as after `divide`; with quantised gradients within a quarter of it. After
 * `precision`, float outputs must be near those before. New gradients
 * must equal finite differences (in f64), clipped ones must be scaled by the rule, and updates must
 * change every parameter with a gradient and no other. `lora` is compared on first values, with which
 * nothing changes. A plan must also give these numbers without
 * memory reuse, and with dead bytes poisoned. */
#define _POSIX_C_SOURCE 200809L /* opendir */
#include "../../tools/pass.h"
#include "../support/numbers.h"

#include <dirent.h>

/* ------------------------------------------------------------------------------------- files */

static void run_file(test *t);

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool has_node(const test_case *self, const char *operator_name);

__attribute__((constructor)) static void register_files(void)
{
    static test_case cases[256];
    static char names[256][96], *sorted[256];
    int count = 0;
    DIR *folder = opendir("tests/passes");
    for (struct dirent *entry; folder && (entry = readdir(folder)) && count < 256;) {
        size_t length = strlen(entry->d_name);
        if (length < 4 || length > 80 || strcmp(entry->d_name + length - 3, ".zf")) continue;
        snprintf(names[count], sizeof names[0], "tests/passes/%.80s", entry->d_name);
        sorted[count] = names[count];
        count++;
    }
    if (folder) closedir(folder);
    qsort(sorted, (size_t)count, sizeof *sorted, by_name);
    for (int k = 0; k < count; k++) {
        cases[k] = (test_case){sorted[k], __FILE__, run_file, false, NULL, has_node};
        test_register(&cases[k]);
    }
}

TEST_ONCE(passes_have_files)
{
    DIR *folder = opendir("tests/passes");
    if (folder) closedir(folder);
    CHECK(t, folder && "tests run from the root of the source");
}

/* Text that grows. */
typedef struct text {
    char *data;
    size_t length, room;
} text;

static void append(text *to, const char *data, size_t length)
{
    if (to->length + length + 1 > to->room) {
        to->room = 2 * (to->length + length + 1);
        to->data = realloc(to->data, to->room);
        if (!to->data) abort();
    }
    memcpy(to->data + to->length, data, length);
    to->data[to->length += length] = '\0';
}

static text read_file(const char *path)
{
    text all = {0};
    char piece[4096];
    size_t n;
    FILE *file = fopen(path, "rb");
    append(&all, "", 0);
    while (file && (n = fread(piece, 1, sizeof piece, file)) > 0) append(&all, piece, n);
    if (file) fclose(file);
    return all;
}

/* Whether a graph of the file has a node of that operator, or a pass has its name. */
static bool has_node(const test_case *self, const char *operator_name)
{
    static const char *const before[] = {"= ", "\n", "> ", "; "};
    text all = read_file(self->name);
    char node[80];
    bool found = false;
    for (size_t k = 0; k < sizeof before / sizeof *before; k++) {
        snprintf(node, sizeof node, "%s%.64s ", before[k], operator_name);
        found = found || strstr(all.data, node);
    }
    free(all.data);
    return found;
}

/* The part up to the next line that begins with "-->", or to the end. */
static const char *part_end(const char *at)
{
    while (*at && strncmp(at, "-->", 3)) {
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    return at;
}

/* ----------------------------------------------------------------------------------- numbers */

/* Whether the line runs the pass; *arguments: the text after its name. */
static bool runs(const char *line, const char *pass, const char **arguments)
{
    size_t length = strlen(pass);
    for (const char *at = line; at; at = strchr(at, ';')) {
        at += strspn(at, "; ");
        if (strncmp(at, pass, length) || (at[length] && !strchr(" ;", at[length]))) continue;
        if (arguments) *arguments = at + length;
        return true;
    }
    return false;
}

static bool updates(const char *line)
{
    return runs(line, "sgd", NULL) || runs(line, "adamw", NULL) || runs(line, "lamb", NULL) ||
           runs(line, "lion", NULL);
}

/* The line that declares the parameter says that it is not trained. */
static bool is_frozen(const char *graph, const char *name)
{
    char declared[300];
    const char *at;
    snprintf(declared, sizeof declared, " = param \"%.255s\"", name);
    at = strstr(graph, declared);
    return at && strstr(at, "frozen=true") && strstr(at, "frozen=true") < at + strcspn(at, "\n");
}

/* The loss with element i of a parameter moved by `by`. */
static bool loss_at(zf_program *p, zf_tensor param, zf_tensor loss, double *values, int64_t i,
                    double by, double *out)
{
    double kept = values[i];
    bool good;
    values[i] = kept + by;
    good = !zf_write(p, param, values, zf_tensor_bytes(param)) && !zf_step(p) &&
           !zf_read(p, loss, out, sizeof *out);
    values[i] = kept;
    return good;
}

/* The gradients of the graph are those of central differences of its loss, in f64, at up to 24
 * elements of each. */
static bool check_differences(const char *graph, char *why, size_t size)
{
    char *wide = text_in_f64(graph);
    zf_error error = {ZF_OK, ""};
    numbers n = {0};
    zf_graph *g = zf_graph_parse(wide, strlen(wide), NULL, &error);
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.reference = true}, NULL);
    zf_tensor loss = zf_graph_find(g, "loss"), x;
    zf_program *p = g ? zf_compile(g, &(zf_compile_desc){.backend = cpu, .evaluate = true}) : NULL;
    bool good = p && numbers_of(&n, wide, &(numbers_desc){.evaluate = true}, &error);
    if (!good)
        snprintf(why, size, "in f64: %s", *error.text || !g ? error.text : zf_graph_error(g));
    for (const char *at = wide; good && (at = strstr(at, "= input \"")); at++) {
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 9, "\""), at + 9);
        good = !write_seeded(p, zf_graph_find(g, name));
    }
    for (int32_t k = 0; good && k < zf_param_count(g); k++)
        good = !write_seeded(p, x = zf_param_at(g, k));
    for (int32_t k = 0; good && k < zf_param_count(g); k++) {
        const number *gradient;
        double values[4096], high, low;
        int64_t count;
        char name[300];
        x = zf_param_at(g, k);
        if (is_frozen(graph, zf_tensor_name(x))) continue;
        count = zf_shape_count(zf_tensor_shape(x));
        snprintf(name, sizeof name, "1 gradient %.255s", zf_tensor_name(x));
        gradient = numbers_find(&n, name);
        good = count <= 4096 && !zf_read(p, x, values, (size_t)count * sizeof *values);
        for (int64_t i = 0; good && i < count; i += count / 24 + 1) {
            double h = 1e-5, expected, got = gradient ? number_at(gradient, i) : 0;
            good = loss_at(p, x, loss, values, i, h, &high) &&
                   loss_at(p, x, loss, values, i, -h, &low);
            expected = (high - low) / (2 * h);
            if (good && fabs(expected - got) <= 1e-7 * (1 + fabs(expected))) continue;
            snprintf(why, size, "%s: element %lld is %.9g, by differences %.9g", name, (long long)i,
                     got, expected);
            good = false;
        }
        if (good && zf_write(p, x, values, (size_t)count * sizeof *values)) good = false;
    }
    zf_program_free(p);
    zf_graph_free(g);
    zf_backend_free(cpu);
    numbers_free(&n);
    free(wide);
    return good;
}

/* Outputs are as before, within one rounding for each node of the graph. */
static bool check_precision(const numbers *before, const numbers *after, const char *line,
                            const char *graph, char *why, size_t size)
{
    double rounding = strstr(line, " bf16") ? 0x1p-9 : strstr(line, " f16") ? 0x1p-12 : 0;
    int nodes = 0;
    for (const char *at = graph; *at; at += strcspn(at, "\n"), at += *at == '\n')
        nodes += *at == '%';
    for (int k = 0; k < before->count; k++) {
        const number *x = &before->list[k], *y = numbers_find(after, x->name);
        if (strncmp(strchr(x->name, ' '), " output ", 8)) continue;
        if (!y || y->dtype != x->dtype || y->bytes != x->bytes) {
            snprintf(why, size, "%s is another type", x->name);
            return false;
        }
        for (int64_t i = 0; i < number_count(x); i++) {
            double p = number_at(x, i), q = number_at(y, i), most = fabs(p) > 1 ? fabs(p) : 1;
            if (fabs(p - q) <= (x->dtype == ZF_F32 ? nodes * rounding * most : 0)) continue;
            snprintf(why, size, "%s: element %lld is %.9g and %.9g", x->name, (long long)i, p, q);
            return false;
        }
    }
    return true;
}

/* With a loss scale, gradients do not change, and their norm is that without the scale. */
static bool check_scaled(const numbers *before, const numbers *after, char *why, size_t size)
{
    double squares = 0, scale;
    const number *norm = numbers_find(after, "1 output grad_norm"),
                 *was = numbers_find(before, "1 state scaler.scale");
    for (int k = 0; k < before->count; k++)
        for (int64_t i = 0;
             !strncmp(before->list[k].name, "1 gradient", 10) && i < number_count(&before->list[k]);
             i++)
            squares += number_at(&before->list[k], i) * number_at(&before->list[k], i);
    scale = was ? number_at(was, 0) : 0;
    if (numbers_compare(before, after, "gradient", why, size) < 0) return false;
    if (norm && fabs(number_at(norm, 0) * scale - sqrt(squares)) <= 1e-6 * sqrt(squares))
        return true;
    snprintf(why, size, "grad_norm is not %.9g / %g", sqrt(squares), scale);
    return false;
}

/* Gradients are scaled by 1 / max(1, (norm + 1e-6) / most); a bf16 one by that, rounded twice. */
static bool check_clip(const numbers *before, const numbers *after, double most, char *why,
                       size_t size)
{
    double squares = 0, factor = 1;
    const number *norm = numbers_find(after, "1 output grad_norm");
    for (int k = 0; k < before->count; k++)
        for (int64_t i = 0;
             !strncmp(before->list[k].name, "1 gradient", 10) && i < number_count(&before->list[k]);
             i++)
            squares += number_at(&before->list[k], i) * number_at(&before->list[k], i);
    if (most > 0 && (sqrt(squares) + 1e-6) / most > 1) factor = most / (sqrt(squares) + 1e-6);
    if (!norm || fabs(number_at(norm, 0) - sqrt(squares)) > 1e-6 * sqrt(squares)) {
        snprintf(why, size, "grad_norm is not %.9g", sqrt(squares));
        return false;
    }
    for (int k = 0; k < before->count; k++) {
        const number *x = &before->list[k], *y = numbers_find(after, x->name);
        double rounding = x->dtype == ZF_BF16 ? 0x1p-7 : 1e-6;
        if (strncmp(x->name, "1 gradient", 10)) continue;
        for (int64_t i = 0; i < number_count(x); i++) {
            double expected = number_at(x, i) * factor;
            if (y && fabs(number_at(y, i) - expected) <= rounding * fabs(expected)) continue;
            snprintf(why, size, "%s: element %lld is not %.9g", x->name, (long long)i, expected);
            return false;
        }
    }
    return true;
}

/* A parameter has changed if its gradient is not zero everywhere, and has not if it has none. */
static bool check_updates(const numbers *before, const numbers *after, char *why, size_t size)
{
    for (int k = 0; k < before->count; k++) {
        const number *x = &before->list[k], *y = numbers_find(after, x->name), *gradient;
        char name[300];
        bool pulled = false;
        if (strncmp(x->name, "1 param ", 8)) continue;
        snprintf(name, sizeof name, "1 gradient %.255s", x->name + 8);
        gradient = numbers_find(before, name);
        for (int64_t i = 0; gradient && i < number_count(gradient); i++)
            pulled |= number_at(gradient, i) != 0;
        if (y && (memcmp(x->data, y->data, x->bytes) != 0) == pulled) continue;
        snprintf(why, size, "%s %s", x->name, pulled ? "has not changed" : "has changed");
        return false;
    }
    return true;
}

/* Parts of the global batch that a graph for ranks shares out. */
static int64_t slots_of(const char *graph)
{
    int world = 1;
    long long micro = 1;
    const char *line = strstr(graph, "zero stage=");
    if (line) sscanf(line, "zero stage=%*d world=%d micro_batches=%lld", &world, &micro);
    return world * micro;
}

/* Checks the numbers of the graphs before and after the passes of `line`. */
static bool check_numbers(const char *line, const char *before, const char *after, bool fast,
                          bool rounds, char *why, size_t size)
{
    const bool sums = strstr(line, "nodes=") != NULL; /* in the order of nodes */
    double within = strstr(line, "quantized_") ? 0.25 /* of 8 bits, 4 bits and 4 bits again */
                    : sums || runs(line, "divide", NULL) || (runs(line, "fuse", NULL) && (rounds || !fast))
                        ? 2e-6
                                                                              : 0;
    zf_error error = {ZF_OK, ""};
    /* What zf_lora adds begins as zeros. */
    numbers_desc d = {.steps = updates(line) ? 1 : 3,
                      .fast = fast,
                      .slots = slots_of(after),
                      .first_values = runs(line, "lora", NULL)};
    numbers_desc of_after = d;
    numbers x = {0}, y = {0}, z = {0};
    const char *most = NULL;
    bool placed = strstr(after, "\npeak ") != NULL, precision = runs(line, "precision", NULL), good;
    bool scales = runs(line, "clip", NULL) && strstr(before, " loss_scale ");
    if (runs(line, "memory", &most) && strstr(most, "store")) of_after.donor = before;
    good = numbers_of(&x, before, &d, &error) && numbers_of(&y, after, &of_after, &error);
    if (!good && fast && placed && error.status == ZF_ERR_STAGE) { /* a plan without scratch */
        numbers_free(&x);
        return true;
    }
    if (!good) snprintf(why, size, "%s", error.text);
    else if (precision) good = check_precision(&x, &y, line, after, why, size);
    else good = numbers_compare_within(&x, &y, "output", within, why, size) >= 0;
    if (good && !updates(line) && !precision)
        good = numbers_compare_within(&x, &y, "param", within, why, size) >= 0 &&
               (scales || numbers_compare_within(&x, &y, "state", within, why, size) >= 0);
    if (good && scales && !runs(line, "autograd", NULL)) good = check_scaled(&x, &y, why, size);
    else if (good && runs(line, "clip", &most) && !runs(line, "autograd", NULL))
        good = check_clip(&x, &y, strtod(most, NULL), why, size);
    else if (good) good = numbers_compare_within(&x, &y, "gradient", within, why, size) >= 0;
    if (good && updates(line) && !runs(line, "autograd", NULL) && !runs(line, "clip", NULL))
        good = check_updates(&x, &y, why, size);
    if (good && placed) {
        of_after.poison = true;
        good =
            numbers_of(&z, after, &of_after, &error) && numbers_compare(&y, &z, "", why, size) >= 0;
        if (error.status) snprintf(why, size, "poisoned: %s", error.text);
    } else if (good) {
        of_after.no_reuse = true;
        good =
            numbers_of(&z, after, &of_after, &error) && numbers_compare(&y, &z, "", why, size) >= 0;
        if (error.status) snprintf(why, size, "without reuse: %s", error.text);
    }
    numbers_free(&x);
    numbers_free(&y);
    numbers_free(&z);
    return good;
}

/* ------------------------------------------------------------------------------------ the run */

/* Reports the first line in which the file and the new text differ. */
static void report_difference(test *t, const char *is, const char *would_be)
{
    char why[700];
    int line = 1;
    for (; *is == *would_be; is++, would_be++) line += *is == '\n';
    for (; line > 0 && is[-1] != '\n'; is--, would_be--) {
    }
    snprintf(why, sizeof why, "expected %.*s\n    got      %.*s", (int)strcspn(is, "\n"), is,
             (int)strcspn(would_be, "\n"), would_be);
    test_fail(t, t->self->name, line, "other text (--bless accepts it)", why);
}

/* Runs one line of passes over the graph whose text is `before`; its text afterwards goes to
 * `after`. False when the body must end. */
static bool run_line(test *t, int line, const char *passes, const char *before, bool rounds,
                     text *after, bool *failed)
{
    static const bool fast[] = {false, true};
    zf_error error = {ZF_OK, ""};
    char message[600] = "", why[600] = "";
    zf_graph *g =
        zf_graph_parse(before, strlen(before), &(zf_graph_desc){.allocator = t->allocator}, &error);
    char *notes = NULL;
    size_t notes_length = 0;
    FILE *out = open_memstream(&notes, &notes_length);
    pass_result result = g ? pass_run(g, passes, out, message, sizeof message) : PASS_FAILED;
    bool good = true;
    *after = (text){0};
    if (out) fclose(out);
    for (const char *at = notes; at && *at && result == PASS_DONE; at += strcspn(at, "\n") + 1)
        if (!strncmp(at, "# near miss", 11)) append(after, at, strcspn(at, "\n") + 1);
    free(notes);
    *failed = result != PASS_DONE;
    if (!g || zf_graph_status(g) == ZF_ERR_NOMEM) {
        test_unwind(t, t->self->name, line, "the passes", g ? ZF_ERR_NOMEM : error.status,
                    g ? message : error.text);
        good = false;
    } else if (result == PASS_DONE) {
        char *printed = text_of(g);
        append(after, printed, strlen(printed));
        free(printed);
    } else {
        append(after, "error: ", 7);
        append(after, message, strlen(message));
        append(after, "\n", 1);
    }
    zf_graph_free(g);
    for (int k = 0; k < 2 && good && !*failed && t->refuse_at < 0; k++) {
        good = check_numbers(passes, before, after->data, fast[k], rounds, why, sizeof why);
        if (!good)
            test_fail(t, t->self->name, line,
                      fast[k] ? "other numbers" : "other numbers (reference)", why);
    }
    if (good && !*failed && t->refuse_at < 0 && runs(passes, "autograd", NULL) &&
        !updates(passes) && !runs(passes, "clip", NULL) && !strstr(before, "f16") &&
        !(good = check_differences(after->data, why, sizeof why)))
        test_fail(t, t->self->name, line, "gradients", why);
    return good;
}

static void run_file(test *t)
{
    text file = read_file(t->self->name), made = {0}, before = {0}, after = {0};
    const char *at = part_end(file.data);
    bool good = true, failed = false;
    const char *rounding = strstr(file.data, "rounding");
    bool rounds = rounding && rounding < strchr(file.data, '\n');
    append(&before, file.data, (size_t)(at - file.data));
    append(&made, file.data, (size_t)(at - file.data));
    if (*file.data != '#' || !*at)
        test_fail(t, t->self->name, 1, "a file has a comment, a graph and passes", "");
    while (*at && good) {
        char passes[300];
        int line = 1;
        size_t length = strcspn(at, "\n");
        for (const char *c = file.data; c < at; c++) line += *c == '\n';
        snprintf(passes, sizeof passes, "%.*s", (int)(length - 3), at + 3);
        append(&made, at, length + (at[length] == '\n'));
        good = run_line(t, line, passes, before.data, rounds, &after, &failed);
        if (good) append(&made, after.data, after.length);
        if (failed || !good) {
            free(after.data);
        } else {
            free(before.data);
            before = after;
        }
        at = part_end(at + length);
    }
    if (good && test_bless && strcmp(file.data, made.data)) {
        FILE *out = fopen(t->self->name, "wb");
        if (out) fwrite(made.data, 1, made.length, out);
        if (out) fclose(out);
        printf("  %s: rewritten\n", t->self->name);
    } else if (good && strcmp(file.data, made.data)) {
        report_difference(t, file.data, made.data);
    }
    free(file.data);
    free(made.data);
    free(before.data);
}
