/* Fusion: a BERT with each rewrite alone, with all, and with all but one computes the numbers of
 * the plain one, in f64 within the rounding of f64. Each rewrite makes its nodes, and without it
 * there are none. */
#include "../../examples/bert/model.h"
#include "../../tools/pass.h"
#include "../support/numbers.h"

/* The nodes that a rewrite adds to the graph, and those that it removes. */
static const struct fusion {
    const char *name, *makes, *replaces;
} fusions[] = {
    {"linear", "= linear ", " tanh %"},
    {"qkv", "= concat ", NULL},
    {"attention", "= attention ", "= softmax "},
    {"norm", "= residual_norm ", NULL},
    {"embedding", "= embed_norm ", NULL},
    {"head", "= head_loss ", "= cross_entropy "},
    {"sums", "{index=3} : f32[16]", NULL},
    {"invert", "= affine ", NULL},
};

enum { FUSIONS = sizeof fusions / sizeof fusions[0] };

enum { BATCH = 3, TOKENS = 8, PREDICTIONS = 5 };

/* The text of a small BERT's forward pass, to be freed. */
static char *bert_text(double dropout)
{
    zf_graph *g = zf_graph_new(NULL);
    bert_config config = {.vocab = 11,
                          .hidden = 16,
                          .layers = 2,
                          .heads = 2,
                          .intermediate = 32,
                          .positions = 12,
                          .types = 3,
                          .eps = 1e-12,
                          .dropout = dropout,
                          .attention_dropout = dropout,
                          .std = 0.02,
                          .pad = -1,
                          .tied = 1,
                          .nsp = 1};
    char *text;
    bert_build(g, &config,
               &(sample_shape){.batch = BATCH, .sequence = TOKENS, .predictions = PREDICTIONS},
               false);
    text = text_of(g);
    zf_graph_free(g);
    return text;
}

/* The text after the passes, to be freed; NULL with why. */
static char *after(const char *text, const char *passes, char *why, size_t size)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_parse(text, strlen(text), NULL, &error);
    char *result = NULL;
    if (!g) snprintf(why, size, "%s", error.text);
    else if (pass_run(g, passes, NULL, why, size) == PASS_DONE) result = text_of(g);
    zf_graph_free(g);
    return result;
}

#define TRAINING "autograd loss; simplify; clip 1; adamw lr weight_decay=0.01"

/* The gradient of a key's bias is 0, since it adds one number to all scores of a query. A program
 * computes rounding errors there, and AdamW turns these into steps. */
static void forget_key_biases(numbers *n)
{
    int kept = 0;
    for (int k = 0; k < n->count; k++)
        if (strstr(n->list[k].name, "key.bias")) free(n->list[k].data);
        else n->list[kept++] = n->list[k];
    n->count = kept;
}

/* Three steps of both have the same outputs, parameters and states (and so gradients), within
 * `within` of the largest element. With fast kernels, only the outputs and states of one step:
 * AdamW turns rounding errors of gradients near 0 into steps. */
static bool same_numbers(const char *a, const char *b, double within, bool fast, char *why,
                         size_t size)
{
    zf_error error = {ZF_OK, ""};
    static const char *const kinds[] = {"output", "state", "param"};
    numbers x = {0}, y = {0};
    numbers_desc d = {.steps = fast ? 1 : 3, .fast = fast, .threads = 2};
    bool good = numbers_of(&x, a, &d, &error) && numbers_of(&y, b, &d, &error);
    forget_key_biases(&x);
    if (!good) snprintf(why, size, "%s", error.text);
    for (int k = 0; k < 3 && good; k++)
        if (!fast || strcmp(kinds[k], "param"))
            good = numbers_compare_within(&x, &y, kinds[k], within, why, size) > 0;
    numbers_free(&x);
    numbers_free(&y);
    return good;
}

static void check_without(test *t, double dropout, const char *without)
{
    char passes[400], why[600] = "they have not the same values";
    char *plain = bert_text(dropout), *wide = plain ? text_in_f64(plain) : NULL;
    const char *texts[] = {plain, wide};
    snprintf(passes, sizeof passes, "fuse%s%s; " TRAINING "; fuse%s%s", *without ? " without=" : "",
             without, *without ? " without=" : "", without);
    for (int k = 0; k < 2 && texts[k]; k++) {
        char *before = after(texts[k], TRAINING, why, sizeof why);
        char *fused = after(texts[k], passes, why, sizeof why);
        if (!before || !fused ||
            !same_numbers(before, fused, k ? 1e-11 : 3e-5, !k, why, sizeof why))
            test_fail(t, __FILE__, __LINE__, passes, why);
        free(before);
        free(fused);
    }
    free(plain);
    free(wide);
}

/* All names but that of `index`; -1: all of them. */
static void names_but(char *names, size_t size, int index)
{
    *names = '\0';
    for (int k = 0; zf_fuse_name(k); k++)
        if (k != index)
            snprintf(names + strlen(names), size - strlen(names), "%s%s", *names ? "," : "",
                     zf_fuse_name(k));
}

TEST_ONCE(fuse_computes_the_same)
{
    char names[300];
    check_without(t, 0, "");
    check_without(t, 0.25, "");
    for (int k = 0; zf_fuse_name(k); k++) {
        if (!TEST_TAKES(k)) continue;
        names_but(names, sizeof names, k);
        check_without(t, 0.25, names);           /* it alone */
        check_without(t, 0.25, zf_fuse_name(k)); /* all the others */
    }
}

TEST_ONCE(fuse_does_what_it_names)
{
    char why[600] = "";
    char *plain = bert_text(0.25),
         *fused = after(plain, "fuse; " TRAINING "; fuse", why, sizeof why);
    for (int k = 0; k < FUSIONS && fused; k++) {
        char passes[200], *without;
        snprintf(passes, sizeof passes, "fuse without=%s; " TRAINING "; fuse without=%s",
                 fusions[k].name, fusions[k].name);
        without = after(plain, passes, why, sizeof why);
        if (!strstr(fused, fusions[k].makes) ||
            (fusions[k].replaces && strstr(fused, fusions[k].replaces)))
            test_fail(t, __FILE__, __LINE__, "fuse", fusions[k].name);
        if (!without || strstr(without, fusions[k].makes))
            test_fail(t, __FILE__, __LINE__, "fuse without", fusions[k].name);
        free(without);
    }
    CHECK(t, fused);
    free(plain);
    free(fused);
}

/* A product of [m, k] and [k, n] multiplies and adds m k n times. */
static double product(double m, double k, double n) { return 2 * m * k * n; }

/* The products of a step are those of the model, and for each of them one for the gradient of each
 * operand, however nodes are fused: none is lost, and recomputation inside fused nodes is not
 * counted. */
TEST_ONCE(fuse_keeps_the_flops)
{
    const double tokens = BATCH * TOKENS, hidden = 16, wide = 32, vocab = 11, layers = 2;
    const double forward =
        layers * (4 * product(tokens, hidden, hidden) + 2 * product(tokens, hidden, TOKENS) +
                  2 * product(tokens, hidden, wide)) +
        product(BATCH, hidden, hidden) + product(BATCH, hidden, 2) +
        product(PREDICTIONS, hidden, hidden) + product(PREDICTIONS, hidden, vocab);
    char names[300], passes[700], why[900] = "";
    char *plain = bert_text(0.25);
    CHECK(t, plain);
    for (int k = -2; k < 0 || zf_fuse_name(k / 2); k++) {
        zf_graph *g = zf_graph_parse(plain, strlen(plain), NULL, NULL);
        zf_plan plan = {0};
        if (k >= 0 && k % 2) snprintf(names, sizeof names, "%s", zf_fuse_name(k / 2));
        else names_but(names, sizeof names, k < 0 ? -1 : k / 2);
        if (k == -2) snprintf(passes, sizeof passes, TRAINING);
        else if (k == -1) snprintf(passes, sizeof passes, "fuse; " TRAINING "; fuse");
        else
            snprintf(passes, sizeof passes, "fuse without=%s; " TRAINING "; fuse without=%s", names,
                     names);
        if (!g || pass_run(g, passes, NULL, why, sizeof why) || zf_graph_plan(g, &plan))
            test_fail(t, __FILE__, __LINE__, passes, why);
        zf_graph_free(g);
        snprintf(why, sizeof why, "%s: %.0f FLOPs, not %.0f", passes, plan.flops, 3 * forward);
        if (plan.flops != 3 * forward) test_fail(t, __FILE__, __LINE__, "FLOPs", why);
        *why = '\0';
    }
    free(plain);
}

TEST(fuse_refuses_unknown_names)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    GIVES(t, zf_fuse(g, &(zf_fuse_desc){.without = "linear,lineer"}), ZF_ERR_ARGUMENT,
          zf_graph_error(g));
    CHECK(t,
          strstr(zf_graph_error(g), "zf_fuse: \"lineer\" is none of its rewrites: linear, swiglu"));
}
