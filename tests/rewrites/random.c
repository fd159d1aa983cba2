/* Random graphs through random passes: the numbers do not change.
 *
 * A generator builds graphs from all builders: shared values, views of views, parameters used
 * twice, broadcasts, several dtypes, empty tensors. Each runs without memory reuse; then it is
 * simplified, placed, run with reuse, with dead bytes poisoned, on threads, over parameters of
 * another program, and from its own text. All runs must give the same bits. Where they differ, the
 * graph is printed. */
#include "../../tools/pass.h"
#include "../support/numbers.h"

typedef struct maker {
    uint64_t state;
    zf_graph *g;
    zf_tensor list[80]; /* what has been made */
    int count, params, names;
    int64_t dims[3]; /* shapes are made of these and 1 */
} maker;

/* 0 .. n - 1 */
static int pick(maker *m, int n)
{
    m->state = m->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((m->state >> 33) % (uint64_t)n);
}

static bool is_float(zf_tensor x) { return zf_tensor_dtype(x) <= ZF_F64; }

/* Any tensor that suits; ZF_NONE when twenty tries find none. `rank`: at least that. */
static zf_tensor any(maker *m, bool floats, int rank)
{
    for (int attempt = 0; attempt < 20; attempt++) {
        zf_tensor x = m->list[pick(m, m->count)];
        if ((!floats || is_float(x)) && zf_tensor_shape(x).rank >= rank) return x;
    }
    return ZF_NONE;
}

/* A shape of rank 0 .. 3 whose dimensions are the graph's, aligned at the last, or 1. */
static zf_shape any_shape(maker *m)
{
    zf_shape shape = {pick(m, 4), {0}};
    for (int axis = 0; axis < shape.rank; axis++)
        shape.dims[axis] = pick(m, 5) ? m->dims[3 - shape.rank + axis] : 1;
    return shape;
}

static bool broadcast_together(zf_shape a, zf_shape b)
{
    for (int i = 1; i <= a.rank && i <= b.rank; i++) {
        int64_t p = a.dims[a.rank - i], q = b.dims[b.rank - i];
        if (p != q && p != 1 && q != 1) return false;
    }
    return true;
}

/* Another tensor of x's dtype that broadcasts with it; x itself if there is none. */
static zf_tensor partner(maker *m, zf_tensor x)
{
    for (int attempt = 0; attempt < 20; attempt++) {
        zf_tensor y = m->list[pick(m, m->count)];
        if (zf_tensor_dtype(y) == zf_tensor_dtype(x) &&
            broadcast_together(zf_tensor_shape(x), zf_tensor_shape(y)))
            return y;
    }
    return x;
}

static zf_tensor make_leaf(maker *m)
{
    zf_param_desc d = {
        .init = (zf_init)pick(m, 6), .mean = 0.1, .std = 0.5, .low = -1, .high = 1, .value = 0.5};
    char name[32];
    d.frozen = !pick(m, 6);
    if (!pick(m, 8)) d.dtype = pick(m, 2) ? ZF_BF16 : ZF_F64;
    snprintf(name, sizeof name, "n%d", m->names++);
    switch (pick(m, 6)) {
    case 0: return zf_constant(m->g, ZF_F32, any_shape(m), pick(m, 4) - 1);
    case 1: return zf_values(m->g, ZF_F32, ZF_SHAPE(2, 2), (double[]){0.5, -1, 2, 0});
    case 2: return zf_input(m->g, name, pick(m, 4) ? ZF_F32 : ZF_I32, any_shape(m));
    case 3: return zf_state(m->g, name, ZF_F32, any_shape(m), 1.5);
    default: m->params++; return zf_param(m->g, name, any_shape(m), &d);
    }
}

static bool is_one_float(zf_tensor x)
{
    return is_float(x) && zf_shape_count(zf_tensor_shape(x)) == 1;
}

static zf_tensor make_unary(maker *m)
{
    static zf_tensor (*const functions[])(zf_tensor) = {zf_neg,   zf_exp,       zf_log,  zf_sqrt,
                                                        zf_rsqrt, zf_tanh,      zf_relu, zf_sigmoid,
                                                        zf_gelu,  zf_gelu_tanh, zf_silu};
    static const zf_dtype dtypes[] = {ZF_F32, ZF_F32, ZF_BF16, ZF_F16, ZF_F64,
                                      ZF_I32, ZF_I64, ZF_U8,   ZF_BOOL};
    zf_tensor x = any(m, true, 0);
    switch (pick(m, 8)) {
    case 0: return zf_scale(x, (pick(m, 9) - 4) * 0.5);
    case 1: return zf_dropout(x, pick(m, 3) * 0.25);
    case 2: return zf_cast(any(m, false, 0), dtypes[pick(m, 9)]);
    default: return x.graph ? functions[pick(m, 11)](x) : x;
    }
}

static zf_tensor make_binary(maker *m)
{
    zf_tensor x = any(m, pick(m, 4) != 0, 0), y = x.graph ? partner(m, x) : x, c;
    zf_dtype dtype = zf_tensor_dtype(x);
    int choice = pick(m, 10);
    if (!x.graph) return x;
    if (choice == 6) return zf_equal(x, y);
    if (choice == 7) return zf_less(x, y);
    if (choice == 8) {
        c = zf_less(x, y);
        return zf_where(c, y, x);
    }
    if (dtype == ZF_U8 || dtype == ZF_BOOL) return ZF_NONE;
    switch (choice) {
    case 0: return zf_sub(x, y);
    case 1: return zf_div(x, y);
    case 2: return zf_maximum(x, y);
    case 3: return zf_minimum(x, y);
    case 4: return zf_mul(x, y);
    case 5: return zf_mul(x, x);
    default: return zf_add(x, y);
    }
}

static zf_tensor make_move(maker *m)
{
    zf_tensor x = any(m, false, 0), parts[3];
    zf_shape s = zf_tensor_shape(x), t;
    int axis = s.rank > 0 ? pick(m, s.rank) : 0;
    int32_t order[ZF_MAX_RANK] = {0, 1, 2, 3, 4, 5};
    int64_t start, n;
    if (!x.graph) return x;
    switch (pick(m, 9)) {
    case 0: return zf_reshape(x, ZF_SHAPE(zf_shape_count(s)));
    case 1: /* a dimension 1 somewhere */
        if (s.rank == ZF_MAX_RANK) return ZF_NONE;
        t = s;
        for (int i = t.rank++; i > axis; i--) t.dims[i] = t.dims[i - 1];
        t.dims[axis] = 1;
        return zf_reshape(x, t);
    case 2: /* two dimensions become one */
        if (s.rank < 2 || axis == s.rank - 1) return ZF_NONE;
        t = s;
        t.dims[axis] *= t.dims[axis + 1];
        for (int i = axis + 1; i < t.rank - 1; i++) t.dims[i] = t.dims[i + 1];
        t.rank--;
        return zf_reshape(x, t);
    case 3:
    case 4:
        if (!s.rank) return ZF_NONE;
        start = s.dims[axis] ? pick(m, (int)s.dims[axis]) : 0;
        n = s.dims[axis] - start;
        return zf_slice(x, axis, start, start + (n ? pick(m, (int)n + 1) : 0));
    case 5: return s.rank && s.dims[axis] < 20 ? zf_pad(x, axis, pick(m, 3), pick(m, 3)) : ZF_NONE;
    case 6:
        for (int i = s.rank - 1; i > 0; i--) {
            int j = pick(m, i + 1);
            int32_t kept = order[i];
            order[i] = order[j], order[j] = kept;
        }
        return zf_permute(x, order);
    case 7:
        if (!s.rank || s.dims[axis] > 20) return ZF_NONE;
        parts[0] = parts[2] = x;
        parts[1] = zf_slice(x, axis, 0, s.dims[axis] / 2);
        return zf_concat(parts, 1 + pick(m, 3), axis);
    default:
        if (s.rank > 3 || !is_float(x)) return ZF_NONE;
        t = s;
        for (int i = 0; i < t.rank; i++)
            if (pick(m, 2)) t.dims[i] = 1;
        x = zf_sum_to(x, t);
        return pick(m, 2) ? x : zf_broadcast(x, s);
    }
}

static zf_tensor make_rows(maker *m)
{
    zf_tensor x = any(m, true, 1), gamma, beta;
    zf_shape s = zf_tensor_shape(x), matrix;
    zf_reduce_desc d = {0, pick(m, 2)};
    zf_param_desc of_x = {.dtype = zf_tensor_dtype(x), .init = ZF_ONES};
    int64_t n;
    char name[32];
    if (!x.graph) return x;
    n = s.dims[s.rank - 1];
    d.axis = pick(m, s.rank);
    snprintf(name, sizeof name, "n%d", m->names++);
    switch (pick(m, 12)) {
    case 0: return zf_softmax(x);
    case 1: return zf_logsumexp(x);
    case 2: return s.rank < ZF_MAX_RANK ? zf_log_softmax(x) : ZF_NONE;
    case 3: return zf_sum_ex(x, &d);
    case 4: return zf_max_ex(x, &d);
    case 5: return zf_mean_ex(x, &d);
    case 6: return s.dims[d.axis] ? zf_argmax_ex(x, &d) : ZF_NONE;
    case 7:
        gamma = zf_param(m->g, name, ZF_SHAPE(n), &of_x);
        snprintf(name, sizeof name, "n%d", m->names++);
        beta = zf_param(m->g, name, ZF_SHAPE(n), &of_x);
        return pick(m, 2) ? zf_layer_norm(x, gamma, beta, 1e-5) : zf_rms_norm(x, gamma, 1e-5);
    case 8: /* ids are 0, 1 or 2 */
        x = zf_param(m->g, name, ZF_SHAPE(3, m->dims[2]), &of_x);
        snprintf(name, sizeof name, "n%d", m->names++);
        return zf_gather_rows(
            x, zf_input(m->g, name, pick(m, 2) ? ZF_I32 : ZF_I64, ZF_SHAPE(m->dims[1])));
    case 9:
        if (n < 3 || zf_shape_count(s) > 200) return ZF_NONE;
        snprintf(name, sizeof name, "label%d", m->names++);
        x = zf_reshape(x, ZF_SHAPE(zf_shape_count(s) / n, n));
        return zf_cross_entropy(x, zf_input(m->g, name, ZF_I32, ZF_SHAPE(zf_shape_count(s) / n)),
                                ZF_NONE);
    case 10: /* a product with its own transpose */
        if (s.rank < 2 || zf_shape_count(s) > 400) return ZF_NONE;
        return zf_matmul_ex(x, x,
                            pick(m, 2) ? &(zf_matmul_desc){.transpose_b = true}
                                       : &(zf_matmul_desc){.transpose_a = true});
    default: /* a weight */
        if (s.rank < 2) return ZF_NONE;
        matrix = ZF_SHAPE(n, 1 + pick(m, 5));
        of_x.init = ZF_NORMAL, of_x.std = 0.5;
        return zf_matmul(x, zf_param(m->g, name, matrix, &of_x));
    }
}

/* A graph of the seed: its values, some outputs, and a scalar output "loss" of a parameter and all
 * that is float. */
static zf_graph *make_graph(uint64_t seed, zf_tensor *loss)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 33, 0};
    /* Few of these values are sums or means of the batch, so it is said of all. */
    const zf_output_desc sum = {.reduction = ZF_REDUCTION_SUM};
    zf_param_desc ones = {.init = ZF_ONES};
    maker m = {.state = seed * 0x9e3779b97f4a7c15u + 1};
    int target = 6 + pick(&m, 30);
    for (int k = 0; k < 3; k++) m.dims[k] = sizes[pick(&m, pick(&m, 6) ? 6 : 10)];
    m.g = zf_graph_new(NULL);
    if (!m.g) return NULL;
    zf_input(m.g, "lr", ZF_F32, ZF_SCALAR);
    m.list[m.count++] = zf_param(m.g, "first", any_shape(&m), &ones);
    for (int tries = 0; m.count < target && tries < 300; tries++) {
        int kind = pick(&m, 12);
        zf_tensor x = kind < 2    ? make_leaf(&m)
                      : kind < 5  ? make_unary(&m)
                      : kind < 8  ? make_binary(&m)
                      : kind < 10 ? make_move(&m)
                                  : make_rows(&m);
        if (!zf_valid(x) || zf_shape_count(zf_tensor_shape(x)) > 20000) {
            if (zf_graph_status(m.g)) break;
            continue;
        }
        m.list[m.count++] = x;
        if (!pick(&m, 8)) {
            char name[32];
            snprintf(name, sizeof name, "o%d", m.names++);
            zf_output_ex(x, name, is_one_float(x) ? &sum : NULL);
        }
    }
    *loss = zf_mean(zf_tanh(m.list[0]));
    for (int k = 1; k < m.count; k++)
        if (is_float(m.list[k]) && pick(&m, 3))
            *loss = zf_add(*loss, zf_cast(zf_sum(zf_tanh(m.list[k])), ZF_F32));
    zf_output_ex(*loss, "loss", &sum);
    return m.g;
}

/* The text of `from` after the passes of `line`, to be freed; the graph must go on reading back as
 * itself. */
static char *after(test *t, uint64_t seed, const char *from, const char *line)
{
    zf_error error = {ZF_OK, ""};
    char message[600] = "", *text = NULL;
    zf_graph *g = zf_graph_parse(from, strlen(from), NULL, &error), *again;
    if (!g || pass_run(g, line, NULL, message, sizeof message)) {
        char why[900];
        snprintf(why, sizeof why, "seed %d, %s: %.600s", (int)seed, line, g ? message : error.text);
        test_fail(t, __FILE__, __LINE__, why, from);
    } else {
        text = text_of(g);
        again = zf_graph_parse(text, strlen(text), NULL, &error);
        if (!again || zf_graph_hash(again) != zf_graph_hash(g))
            test_fail(t, __FILE__, __LINE__,
                      *error.text ? error.text : "it reads back as another graph", text);
        zf_graph_free(again);
    }
    zf_graph_free(g);
    return text;
}

/* Runs `text` and compares with `expected`; false after a failure. */
static bool same_numbers(test *t, uint64_t seed, const numbers *expected, const char *text,
                         numbers_desc d, const char *what)
{
    zf_error error = {ZF_OK, ""};
    char why[600] = "", where[700];
    numbers n = {0};
    bool good = numbers_of(&n, text, &d, &error);
    if (!good) snprintf(why, sizeof why, "%s", error.text);
    else if (numbers_compare(expected, &n, "", why, sizeof why) <= 0) good = false;
    numbers_free(&n);
    snprintf(where, sizeof where, "seed %d, %s, %s: %.500s", (int)seed, what,
             d.fast ? "fast" : "reference", why);
    if (!good) test_fail(t, __FILE__, __LINE__, where, text);
    return good;
}

/* Passes that recompute as much as possible, by the minimum that the error for an impossible limit
 * names; "" where there are no gradients. */
static void recomputation(char *line, size_t size, const char *text)
{
    long long least = numbers_least_peak(text);
    *line = '\0';
    if (least > 0) snprintf(line, size, "recompute memory=%lld; ", least);
}

static bool check_graph(test *t, uint64_t seed, const char *built)
{
    static const char *const training[] = {"verify",
                                           "autograd loss",
                                           "autograd loss; clip 0.5; adamw lr weight_decay=0.1",
                                           "autograd loss; sgd lr momentum=0.9 nesterov",
                                           "autograd loss; clip 0; lamb lr",
                                           "autograd loss; simplify; sgd lr weight_decay=0.1"};
    bool good = true;
    char *text = after(t, seed, built, training[seed % 6]), least[100] = "", *again;
    char *simple = text ? after(t, seed, text, "simplify") : NULL;
    char *twice = simple ? after(t, seed, simple, "simplify") : NULL;
    char *placed = simple ? after(t, seed, simple, "memory; verify") : NULL;
    char *stored = simple ? after(t, seed, text, "memory store") : NULL;
    if (simple) recomputation(least, sizeof least, simple);
    again = simple ? after(t, seed, simple, *least ? least : "verify") : NULL;
    if (seed % 6 && !*least) {
        test_fail(t, __FILE__, __LINE__, "nothing is said of the least memory", text);
        good = false;
    }
    if (!twice || !placed || !stored || !again) good = false;
    else if (strcmp(simple, twice))
        test_fail(t, __FILE__, __LINE__, "simplify twice is more than once", simple), good = false;
    for (int fast = 0; fast < 2 && good; fast++) {
        numbers_desc d = {.steps = 3, .fast = fast, .no_reuse = true},
                     e = {.steps = 3, .fast = fast};
        zf_error error = {ZF_OK, ""};
        numbers expected = {0};
        if (!numbers_of(&expected, text, &d, &error)) {
            test_fail(t, __FILE__, __LINE__, error.text, text);
            good = false;
            break;
        }
        good = same_numbers(t, seed, &expected, text, e, "reused") &&
               same_numbers(t, seed, &expected, simple, d, "simplified") &&
               same_numbers(t, seed, &expected, simple, e, "simplified, reused") &&
               same_numbers(t, seed, &expected, again, e, "recomputed");
        e.poison = true;
        good = good && same_numbers(t, seed, &expected, simple, e, "poisoned");
        if (!fast) {
            good = good && same_numbers(t, seed, &expected, placed, e, "placed");
            e.donor = text;
            good = good && same_numbers(t, seed, &expected, stored, e, "stored");
        } else {
            e.poison = false, e.threads = 3;
            good = good && same_numbers(t, seed, &expected, simple, e, "threads");
        }
        numbers_free(&expected);
    }
    free(text);
    free(simple);
    free(twice);
    free(placed);
    free(stored);
    free(again);
    return good;
}

/* The output of that name is an input as it is. */
static bool shows_input(const char *text, const char *name)
{
    char mark[300], leaf[40];
    const char *at;
    snprintf(mark, sizeof mark, " \"%.255s\"", name);
    for (at = strstr(text, mark); at && strncmp(at, "output %", 8); at--)
        if (*at == '\n' && at < strstr(text, mark)) return false;
    if (!at) return false;
    snprintf(leaf, sizeof leaf, "\n%%%d ", atoi(at + 8));
    at = strstr(text, leaf);
    return at && !strncmp(at + strcspn(at, "="), "= input", 7);
}

/* Leaves out numbers that ranks do not share: outputs that are no scalar floats, or are inputs,
 * belong to a part of the global batch. */
static void keep_shared(numbers *n, const char *text)
{
    int kept = 0;
    for (int k = 0; k < n->count; k++) {
        const number *x = &n->list[k];
        const char *name = strstr(x->name, " output ");
        if (name && (number_count(x) != 1 || x->dtype > ZF_F64 || shows_input(text, name + 8)))
            free(x->data);
        else n->list[kept++] = *x;
    }
    n->count = kept;
}

/* The graph, on ranks: random stage, world, micro-batches, bucket and prefetch give the numbers of
 * one rank that runs all parts of the global batch. */
static bool check_ranks(test *t, uint64_t seed, const char *built)
{
    static const char *const training[] = {"autograd loss; clip 0.5; adamw lr weight_decay=0.1",
                                           "autograd loss; sgd lr momentum=0.9 nesterov",
                                           "autograd loss; clip 0; lamb lr decay_all",
                                           "autograd loss; simplify; clip 1; adamw lr"};
    maker m = {.state = seed * 77 + 5};
    char *text = after(t, seed, built, training[seed % 4]), *with = NULL, *cut = NULL, line[300],
         least[100] = "";
    int stage = pick(&m, 4), world = 1 + pick(&m, 5), micro = 1 + pick(&m, 3);
    numbers_desc d = {.steps = 2,
                      .fast = seed % 2,
                      .slots = world * micro,
                      .no_reuse = true,
                      .no_gradients = true},
                 e;
    numbers expected = {0};
    zf_error error = {ZF_OK, ""};
    bool good = text != NULL;
    if (good) { /* gradients are outputs, so that those after zf_zero can be compared */
        zf_graph *g = zf_graph_parse(text, strlen(text), NULL, &error);
        for (int32_t k = 0; g && k < zf_param_count(g); k++) {
            char name[300];
            zf_tensor p = zf_param_at(g, k);
            snprintf(name, sizeof name, "gradient:%s", zf_tensor_name(p));
            if (zf_valid(zf_gradient(g, p))) zf_output(zf_gradient(g, p), name);
        }
        with = g && !zf_graph_status(g) ? text_of(g) : NULL;
        zf_graph_free(g);
        good = with && numbers_of(&expected, with, &d, &error);
        if (!good) test_fail(t, __FILE__, __LINE__, error.text, text);
    }
    if (good) keep_shared(&expected, with);
    if (good && pick(&m, 2)) recomputation(least, sizeof least, with);
    snprintf(line, sizeof line,
             "%s%szero stage=%d world=%d micro_batches=%d bucket=%d; %sprefetch bytes=%d memory=%d; "
             "memory threads=1; verify",
             least, pick(&m, 2) ? "simplify; " : "", stage, world, micro, 1 << pick(&m, 16),
             pick(&m, 2) ? "offload optimizer=host; " : "", pick(&m, 3) ? 1 << pick(&m, 18) : 0,
             pick(&m, 2) ? 1 << pick(&m, 20) : 0);
    if (good) cut = after(t, seed, with, line);
    good = good && cut;
    e = (numbers_desc){.steps = 2, .fast = d.fast, .seed = (uint64_t)pick(&m, 1000)};
    good = good && same_numbers(t, seed, &expected, cut, e, line);
    e.poison = true;
    good = good && same_numbers(t, seed, &expected, cut, e, "poisoned ranks");
    numbers_free(&expected);
    free(text);
    free(with);
    free(cut);
    return good;
}

#ifndef RANDOM_GRAPHS
#define RANDOM_GRAPHS 100
#endif
#ifndef RANDOM_FIRST
#define RANDOM_FIRST 1
#endif

TEST_ONCE(random_graphs_keep_their_numbers)
{
    for (uint64_t seed = RANDOM_FIRST; seed < RANDOM_FIRST + RANDOM_GRAPHS; seed++) {
        zf_tensor loss = ZF_NONE;
        zf_graph *g = make_graph(seed, &loss);
        char *text = g ? text_of(g) : NULL;
        bool good = text && !zf_graph_status(g);
        if (text && !good) test_fail(t, __FILE__, __LINE__, zf_graph_error(g), text);
        zf_graph_free(g);
        good = good && check_graph(t, seed, text) && check_ranks(t, seed, text);
        free(text);
        CHECK(t, good);
    }
}
