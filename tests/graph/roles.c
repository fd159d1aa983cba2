/* Names say nothing. A graph whose input, output or state is called like something of the library
 * gives, after every pass, the text of the same graph under plain names, also with every place in
 * memory. A file notes no roles: there alone names decide. */
#include "../support/test.h"

typedef struct naming {
    const char *input, *param, *state, *part, *loss; /* part: an output that is not the loss */
} naming;

static const naming plain = {"x", "bias", "kept", "a.part", "loss"};
static const naming odd[] = {
    {"loss", "a.master/b", "zero_one_adam.own_m/q", "a.part", "total"},
    {"x", "loco.error/q", "a.master/layer.0.w", "loss", "total"},
    {"grad_norm/x", "zero_one_adam.own_m/q", "loco.error/q", "loss", "zero_one_adam.u/q"},
    {"loss", "delay.gradient/q", "a.error/layer.1.w", "autograd", "autograd.loss"},
};

/* Three layers, one of which adds a state. A third output is a number, but not the loss. */
static zf_graph *graph_of(const naming *n, zf_tensor *loss)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.1};
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, n->input, ZF_F32, ZF_SHAPE(256, 64)), w, aside;
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    for (int k = 0; k < 2; k++) {
        w = zf_param(g, k ? "layer.1.w" : "layer.0.w", ZF_SHAPE(64, 64), &normal);
        x = zf_tanh(zf_matmul(zf_tanh(zf_matmul(x, w)), w));
    }
    x = zf_add(x, zf_state(g, n->state, ZF_F32, ZF_SHAPE(64), 0.5));
    aside = zf_mean(zf_mul(x, x));
    x = zf_gelu(zf_linear(x, w, zf_param(g, n->param, ZF_SHAPE(64), &normal)));
    x = zf_matmul(x, zf_param(g, "layer.2.w", ZF_SHAPE(64, 64), &normal));
    *loss = zf_mean(zf_mul(x, x));
    zf_output(aside, n->part);
    zf_output(*loss, n->loss);
    return g;
}

/* Replaces each name between `before` and " by the other. */
static void rename_all(char *text, size_t size, char before, const char *from, const char *to)
{
    char old[80], new[80], *at = text;
    snprintf(old, sizeof old, "%c%s\"", before, from);
    snprintf(new, sizeof new, "%c%s\"", before, to);
    while ((at = strstr(at, old)) != NULL) {
        const size_t rest = strlen(at + strlen(old)) + 1;
        if (strlen(text) + strlen(new) >= size) return;
        memmove(at + strlen(new), at + strlen(old), rest);
        memcpy(at, new, strlen(new));
        at += strlen(new);
    }
}

/* The text after the passes, under plain names. */
static bool text_after(test *t, const zf_training *d, const naming *n, char *text, size_t size,
                       zf_plan *plan)
{
    zf_training own = *d;
    zf_graph *g = graph_of(n, &own.loss);
    bool good = !zf_passes(g, &own) && !zf_memory(g, NULL) && !zf_graph_plan(g, plan) &&
                zf_graph_text(g, text, size) < size;
    if (!good) test_fail(t, __FILE__, __LINE__, n->state, zf_graph_error(g));
    zf_graph_free(g);
    rename_all(text, size, '"', n->input, plain.input);
    rename_all(text, size, '"', n->state, plain.state);
    rename_all(text, size, '"', n->part, plain.part);
    rename_all(text, size, '"', n->loss, plain.loss);
    rename_all(text, size, '"', n->param, plain.param);
    rename_all(text, size, '/', n->param, plain.param);
    return good;
}

/* Prints the first line that differs. */
static bool same_text(test *t, size_t row, const naming *n, const char *a, const char *b)
{
    char both[900];
    size_t at = 0, line = 0;
    if (!strcmp(a, b)) return true;
    for (; a[at] && a[at] == b[at]; at++)
        if (a[at] == '\n') line = at + 1;
    snprintf(both, sizeof both, "row %zu:\n%.400s\n%.400s", row, a + line, b + line);
    test_fail(t, __FILE__, __LINE__, n->state, both);
    return false;
}

#define RANKS(n, s) .zero = {.stage = (s), .world = (n), .micro_batches = 1, .bucket_bytes = 4096}

TEST_ONCE(roles_not_names)
{
    const zf_training rows[] = {
        {.optimizer = ZF_ADAMW, RANKS(1, 0)},
        {.optimizer = ZF_ADAMW, RANKS(1, 0), .offload = {.activations = ZF_HOST}},
        {.optimizer = ZF_ADAMW, RANKS(1, 0), .recompute.mode = ZF_RECOMPUTE_LAYERS},
        {.optimizer = ZF_ADAMW, RANKS(2, 2), .precision.dtype = ZF_BF16, .clip = 1,
         .offload = {.optimizer = ZF_HOST, .gradients = ZF_HOST}, .prefetch.bytes = 65536},
        {.optimizer = ZF_ADAMW, RANKS(2, 3), .precision.dtype = ZF_BF16, .delay = true},
        {.optimizer = ZF_LAMB, RANKS(2, 1), .precision = {.dtype = ZF_F16, .scale = 8}},
        {.optimizer = ZF_SGD, .zero = {.stage = 2, .world = 4, .nodes = 2, .micro_batches = 1,
                                       .quantized_gradients = true, .loco = true}},
        {.optimizer = ZF_ZERO_ONE_ADAM, RANKS(2, 0)},
        {.optimizer = ZF_ZERO_ONE_ADAM, RANKS(2, 0), .variant = 1},
        {.optimizer = ZF_ZERO_ONE_ADAM, RANKS(2, 0), .variant = 2, .precision.dtype = ZF_BF16},
        {.optimizer = ZF_ZERO_ONE_ADAM, RANKS(2, 2), .zero_one_adam.local_step_clipper = 1},
        {.optimizer = ZF_ONEBIT_ADAM, RANKS(2, 1), .variant = 1},
    };
    static char expected[1 << 16], text[1 << 16];
    zf_plan plans[sizeof rows / sizeof *rows], other;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        if (!text_after(t, &rows[k], &plain, expected, sizeof expected, &plans[k])) return;
        for (size_t n = 0; n < sizeof odd / sizeof *odd; n++)
            if (!text_after(t, &rows[k], &odd[n], text, sizeof text, &other) ||
                !same_text(t, k, &odd[n], text, expected))
                return;
    }
    /* An activation has left the device, and one is recomputed. */
    CHECK(t, plans[1].spaces[ZF_DEVICE].peak_bytes + 256 * 64 * 4 <=
                 plans[0].spaces[ZF_DEVICE].peak_bytes);
    CHECK(t, plans[2].peak_bytes < plans[0].peak_bytes && plans[2].recomputed_flops > 0);
}
