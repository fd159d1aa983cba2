/* A model that is built twice in one graph over the same parameters (zf_push_shared): gradients are
 * the sum of those of two graphs, with equal bits on any ranks, and mistakes are errors. */
#include "../support/numbers.h"

#include <math.h>

enum { WORDS = 11, WIDTH = 16 };

/* Inputs, one layer of attention with three projections, an output layer that is tied. */
static zf_tensor model(zf_graph *g, int64_t batch, int64_t tokens)
{
    zf_tensor ids = zf_input(g, "ids", ZF_I32, ZF_SHAPE(batch, tokens)),
              labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(batch * tokens)), x, table, q, k, v;
    table = zf_nn_embedding_table(g, "words", WORDS, WIDTH, NULL);
    x = zf_embedding(table, ids);
    zf_push(g, "layer.0");
    q = zf_nn_linear(x, "query", WIDTH, NULL);
    k = zf_nn_linear(x, "key", WIDTH, NULL);
    v = zf_nn_linear(x, "value", WIDTH, NULL);
    x = zf_add(x, zf_attention(q, k, v, &(zf_attention_desc){.heads = 2, .causal = true}));
    x = zf_nn_layer_norm(x, "norm", 1e-5);
    zf_pop(g);
    x = zf_reshape(x, ZF_SHAPE(batch * tokens, WIDTH));
    return zf_cross_entropy(zf_linear(x, table, ZF_NONE), labels,
                            zf_constant(g, ZF_F32, ZF_SCALAR, 0.125));
}

/* The text of a graph with the model for long rows, for short ones, or for both; to be freed. */
static char *text_with(bool longer, bool shorter)
{
    zf_graph *g = zf_graph_new(NULL);
    const zf_output_desc sum = {ZF_REDUCTION_SUM};
    zf_tensor loss = longer ? zf_output_ex(model(g, 2, 6), "long", &sum) : ZF_NONE, other;
    char *text;
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    if (shorter && longer) zf_push_shared(g, "short");
    else if (shorter) zf_push(g, "short");
    if (shorter) other = zf_output_ex(model(g, 3, 4), "brief", &sum), zf_pop(g);
    if (shorter) loss = longer ? zf_add(loss, zf_scale(other, 0.5)) : zf_scale(other, 0.5);
    zf_output_ex(loss, "loss", &sum);
    text = text_of(g);
    zf_graph_free(g);
    return text;
}

static bool after_passes(test *t, numbers *out, const char *text, const char *passes,
                   const numbers_desc *d)
{
    zf_error error = {ZF_OK, ""};
    char *after = text ? text_after(t, text, passes) : NULL;
    const bool good = after && numbers_of(out, after, d, &error);
    if (after && !good) test_fail(t, __FILE__, __LINE__, passes, error.text);
    free(after);
    return good;
}

/* "short.words" of a graph of its own is "words". */
static void name_as_shared(char *text)
{
    for (char *at = text; (at = strstr(at, "param \"short.")) != NULL;)
        memmove(at + 7, at + 13, strlen(at + 13) + 1);
}

TEST_ONCE(twice_gradients_are_sums)
{
    static const char *const rewrites[] = {"autograd loss", "fuse; autograd loss; simplify"};
    static const char *const params[] = {
        "words.weight",       "layer.0.query.weight", "layer.0.key.weight", "layer.0.value.weight",
        "layer.0.value.bias", "layer.0.norm.weight",  "layer.0.norm.bias"};
    char *text[3] = {text_with(true, true), text_with(true, false), text_with(false, true)};
    char *wide[3] = {NULL};
    if (text[2]) name_as_shared(text[2]);
    for (int n = 0; n < 3; n++) wide[n] = text[n] ? text_in_f64(text[n]) : NULL;
    for (size_t r = 0; r < sizeof rewrites / sizeof *rewrites; r++) {
        numbers of[3] = {{0}};
        bool good = true;
        for (int n = 0; n < 3; n++)
            good = good && after_passes(t, &of[n], wide[n], rewrites[r], &(numbers_desc){.steps = 1});
        for (size_t k = 0; k < sizeof params / sizeof *params && good; k++) {
            char name[64];
            const number *sum, *one, *other;
            double most = 0, largest = 0;
            snprintf(name, sizeof name, "1 gradient %s", params[k]);
            sum = numbers_find(&of[0], name), one = numbers_find(&of[1], name);
            other = numbers_find(&of[2], name);
            good = sum && one && other;
            for (int64_t i = 0; good && i < number_count(sum); i++) {
                const double wanted = number_at(one, i) + number_at(other, i);
                most = fmax(most, fabs(number_at(sum, i) - wanted));
                largest = fmax(largest, fmin(fabs(number_at(one, i)), fabs(number_at(other, i))));
            }
            if (!good || !(most <= 1e-13) || !(largest > 1e-4))
                test_fail(t, __FILE__, __LINE__, name, rewrites[r]);
        }
        for (int n = 0; n < 3; n++) numbers_free(&of[n]);
    }
    for (int n = 0; n < 3; n++) free(text[n]), free(wide[n]);
}

static int count_of(const char *text, const char *what)
{
    int count = 0;
    for (; (text = strstr(text, what)) != NULL; text++) count++;
    return count;
}

/* The projections of both passes are joined, over one concat; with another reader of a weight, or
 * where the passes join others, none is. */
TEST_ONCE(twice_projections_are_joined)
{
    char *text = text_with(true, true), *after = NULL, *apart = NULL;
    NEED(t, text, NULL);
    after = text_after(t, text, "fuse");
    if (after) {
        CHECK(t, count_of(after, "= concat ") == 2); /* of weights, and of biases */
        CHECK(t, count_of(after, "= linear ") == 2 && count_of(after, "f32[2,6,48]") == 1);
        CHECK(t, count_of(after, "f32[3,4,48]") == 1);
    }
    apart = malloc(strlen(text) + 400);
    if (apart) {
        strcpy(apart, text);
        strcat(apart, "%900 = ");
        char *at = strstr(apart, "param \"layer.0.key.weight\"");
        int id = 0;
        while (at && at > apart && *at != '%') at--;
        if (at) sscanf(at, "%%%d", &id);
        sprintf(strstr(apart, "%900 = "),
                "%%900 = total %%%d : f32[]\n      output %%900 \"stranger\"\n", id);
    }
    free(after);
    after = apart ? text_after(t, apart, "fuse") : NULL;
    if (after) CHECK(t, count_of(after, "= concat ") == 0);
    free(after), free(apart), free(text);
}

/* One result at every stage, on any ranks, with offload, prefetch, adapters and 16 bits. */
TEST_ONCE(twice_has_the_same_bits_everywhere)
{
    static const char *const models[] = {"fuse; ", "lora rank=2 targets=query,value; fuse; ",
                                         "fuse; precision bf16; "};
    static const char *const after[] = {
        "zero stage=1 world=2", "zero stage=2 world=4 bucket=1", "zero stage=3 world=2 bucket=1",
        "zero stage=3 world=4; offload optimizer=host parameters=host; prefetch 65536",
        "zero stage=3 world=1 bucket=1; offload optimizer=host; prefetch 4096"};
    char *text = text_with(true, true);
    NEED(t, text, NULL);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        const numbers_desc d = {.steps = 2, .fast = true, .slots = 4, .no_gradients = true};
        numbers one = {0};
        char line[300], why[300] = "";
        bool good;
        snprintf(line, sizeof line,
                 "%sautograd loss; simplify; adamw lr; zero stage=0 micro_batches=4", models[m]);
        good = after_passes(t, &one, text, line, &d);
        for (size_t k = 0; k < sizeof after / sizeof *after && good; k++) {
            numbers other = {0};
            const char *world = strstr(after[k], "world=");
            snprintf(line, sizeof line,
                     "%sautograd loss; simplify; adamw lr; %.*s micro_batches=%d%s", models[m],
                     (int)(world + 7 - after[k]), after[k], 4 / atoi(world + 6), world + 7);
            if (!after_passes(t, &other, text, line, &d)) good = false;
            else if (numbers_compare(&one, &other, "", why, sizeof why) < 10)
                test_fail(t, __FILE__, __LINE__, line, why);
            numbers_free(&other);
        }
        numbers_free(&one);
    }
    free(text);
}

/* ---------------------------------------------------------------------------------------- mistakes */

static zf_tensor a_weight(zf_graph *g, const char *name, int64_t rows, const zf_param_desc *desc)
{
    return zf_param(g, name, ZF_SHAPE(rows, 4), desc);
}

TEST(twice_names)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}), *copy;
    zf_tensor w, x, s;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_push(g, "actor");
    zf_push(g, "head");
    w = a_weight(g, "w", 3, NULL);
    zf_pop(g);
    zf_push_shared(g, "batch.%d", 2);
    zf_push(g, "head");
    x = a_weight(g, "w", 3, NULL);
    s = zf_state(g, "mean", ZF_F32, ZF_SCALAR, 0);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, x.id == w.id && zf_param_count(g) == 1);
    CHECK_TEXT(t, zf_tensor_name(s), "actor.batch.2.head.mean");
    zf_push_shared(g, "again");
    CHECK(t, a_weight(g, "w", 3, NULL).id == w.id);
    NEED(t, copy = zf_graph_copy(g), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, copy);
    zf_pop(copy), zf_pop(copy);
    zf_push(copy, "head");
    CHECK(t, a_weight(copy, "w", 3, NULL).id == w.id);
    zf_pop(g), zf_pop(g), zf_pop(g);
    a_weight(g, "other", 3, NULL); /* declared again */
    zf_pop(g);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK_TEXT(t, zf_tensor_name(zf_param_at(g, 1)), "actor.other");
}

typedef struct mistake {
    const char *name;
    int64_t rows;
    zf_param_desc desc;
    zf_status status;
    const char *says;
} mistake;

TEST(twice_mistakes)
{
    static const mistake mistakes[] = {
        {"weigt",
         3,
         {.dtype = ZF_F32},
         ZF_ERR_ARGUMENT,
         "the graph has no parameter \"weigt\" that zf_push_shared could take; near are weight"},
        {"x",
         3,
         {.dtype = ZF_F32},
         ZF_ERR_ARGUMENT,
         "no parameter \"x\" that zf_push_shared could take"},
        {"",
         3,
         {.dtype = ZF_F32},
         ZF_ERR_ARGUMENT,
         "no parameter \"\" that zf_push_shared could take"},
        {NULL,
         3,
         {.dtype = ZF_F32},
         ZF_ERR_ARGUMENT,
         "no parameter \"\" that zf_push_shared could take"},
        {"weight",
         2,
         {.init = ZF_ONES},
         ZF_ERR_MISMATCH,
         "\"weight\" is shared (zf_push_shared), but its type differs: %2 = f32[3,4], here "
         "f32[2,4]"},
        {"weight", 3, {.dtype = ZF_BF16, .init = ZF_ONES}, ZF_ERR_MISMATCH, "its type differs"},
        {"weight", 3, {.init = ZF_ZEROS}, ZF_ERR_MISMATCH, "its first values differs"},
        {"weight",
         3,
         {.init = ZF_ONES, .frozen = true},
         ZF_ERR_MISMATCH,
         "whether it is frozen differs"},
    };
    for (size_t k = 0; k < sizeof mistakes / sizeof *mistakes; k++) {
        const mistake *m = &mistakes[k];
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        zf_input(g, "x", ZF_F32, ZF_SHAPE(3, 4));
        a_weight(g, "weight", 3, &(zf_param_desc){.init = ZF_ONES});
        zf_push_shared(g, "again");
        CHECK(t, !zf_valid(a_weight(g, m->name, m->rows, &m->desc)));
        GIVES(t, zf_graph_status(g), m->status, zf_graph_error(g));
        if (!strstr(zf_graph_error(g), m->says))
            test_fail(t, __FILE__, __LINE__, m->says, zf_graph_error(g));
    }
}

TEST(twice_is_said)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    a_weight(g, "w", 3, NULL);
    zf_push_shared(g, "%s", "");
    GIVES(t, zf_graph_status(g), ZF_ERR_ARGUMENT, zf_graph_error(g));
    zf_push_shared(NULL, "x");
    zf_push_shared(g, "x");
    NEED(t, g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    a_weight(g, "w", 3, NULL);
    a_weight(g, "w", 3, NULL);
    GIVES(t, zf_graph_status(g), ZF_ERR_ARGUMENT, zf_graph_error(g));
    CHECK(t,
          strstr(zf_graph_error(g), "the name \"w\" is taken by %1; within zf_push_shared a model "
                                    "is built over parameters that are there"));
}
