#define _POSIX_C_SOURCE 200809L
/* Delayed updates: a step updates by the gradients of the step before, and the first step makes no
 * update. tests/programs/offload.c compares bits with what is offloaded. */
#include "../../tools/pass.h"
#include "../support/numbers.h"

/* The gradient of w is x, whatever w is. */
static const char linear[] = "%1 = input \"x\" : f32[40,60]\n"
                             "%2 = param \"w\" {init=normal b=0.3} : f32[40,60]\n"
                             "%3 = input \"lr\" : f32[]\n"
                             "%4 = mul %1, %2 : f32[40,60]\n"
                             "%5 = reshape %4 {shape=[2400]} : f32[2400]\n"
                             "%6 = sum %5 : f32[]\n"
                             "      output %6 \"loss\"\n";

enum { COUNT = 2400, STEPS = 4 };

typedef struct trained {
    zf_graph *graph;
    zf_program *program;
} trained;

/* The program of `linear` after the passes, over a store or a new one (NULL); without one after a
 * failed check. */
static trained program_of(test *t, const char *line, zf_store *store)
{
    char message[600] = "";
    zf_error error = {ZF_OK, ""};
    trained made = {.graph = zf_graph_parse(linear, strlen(linear), NULL, &error)};
    if (made.graph) test_defer(t, (test_cleanup *)zf_graph_free, made.graph);
    if (made.graph && !pass_run(made.graph, line, NULL, message, sizeof message))
        made.program = zf_compile(made.graph, &(zf_compile_desc){.store = store, .verify = true});
    if (made.program) test_defer(t, (test_cleanup *)zf_program_free, made.program);
    else
        test_fail(t, __FILE__, __LINE__, line,
                  !made.graph ? error.text : *message ? message : zf_graph_error(made.graph));
    return made;
}

/* A step with the inputs of step `at`; what w is then. */
static bool step(trained of, int at, unsigned char *w, size_t bytes)
{
    zf_program *p = of.program;
    zf_graph *g = of.graph;
    static float x[COUNT];
    const float lr = 0.01f;
    char name[16];
    snprintf(name, sizeof name, "x%d", at);
    for (int i = 0; i < COUNT; i++) x[i] = (float)seeded(name, i);
    return !zf_write(p, zf_graph_find(g, "x"), x, sizeof x) &&
           !zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr) && !zf_step(p) &&
           !zf_store_read(STORE(p), "w", w, bytes);
}

/* Where gradients do not depend on parameters, delayed parameters are those of one step before,
 * to the last bit. */
TEST_ONCE(delay_is_one_step_late)
{
    static const char *const lines[] = {
        "autograd loss; adamw lr weight_decay=0.1; %szero",
        ("autograd loss; clip 0.5; lamb lr weight_decay=0.1; %szero; "
         "offload optimizer=host piece=4096"),
        "autograd loss; sgd lr momentum=0.9; %s",
        "autograd loss; lion lr; %szero; offload optimizer=host; prefetch bytes=100000",
        "precision bf16; autograd loss; adamw lr; %szero",
        /* The scale is too large for the first steps, which are skipped. */
        "precision f16 scale=200000 hysteresis=1; autograd loss; adamw lr; %szero",
        "autograd loss; clip 0.5; adamw lr; fuse; %szero",
    };
    static unsigned char plain[STEPS + 1][COUNT * 4], delayed[COUNT * 4];
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++) {
        const size_t bytes = strstr(lines[k], "precision") ? COUNT * 2 : COUNT * 4;
        char line[200];
        trained p;
        bool moved = false;
        snprintf(line, sizeof line, lines[k], "");
        CHECK(t, (p = program_of(t, line, NULL)).program);
        OK(t, zf_store_read(STORE(p.program), "w", plain[0], bytes), STORE_ERROR(p.program));
        for (int n = 1; n <= STEPS; n++) {
            CHECK(t, step(p, n, plain[n], bytes));
            moved |= memcmp(plain[n], plain[n - 1], bytes) != 0;
        }
        snprintf(line, sizeof line, lines[k], "delay; ");
        CHECK(t, (p = program_of(t, line, NULL)).program);
        for (int n = 1; n <= STEPS; n++) {
            CHECK(t, step(p, n, delayed, bytes));
            if (memcmp(delayed, plain[n - 1], bytes) != 0)
                test_fail(t, __FILE__, __LINE__, line, "it is not one step late");
        }
        if (!moved) test_fail(t, __FILE__, __LINE__, line, "no step updates");
    }
}

/* The pending gradients are states: a checkpoint goes on with the same bits. */
TEST_ONCE(delay_goes_on_from_a_checkpoint)
{
    static const char line[] = "autograd loss; clip 0.5; adamw lr; delay; zero";
    static unsigned char found[2][COUNT * 4];
    char saved[512];
    trained p;
    snprintf(saved, sizeof saved, "%s", test_path("delayed"));
    CHECK(t, (p = program_of(t, line, NULL)).program);
    for (int n = 1; n <= 2; n++) CHECK(t, step(p, n, found[0], COUNT * 4));
    OK(t, zf_save(STORE(p.program), saved, NULL), STORE_ERROR(p.program));
    for (int n = 3; n <= 4; n++) CHECK(t, step(p, n, found[0], COUNT * 4));
    CHECK(t, (p = program_of(t, line, NULL)).program);
    OK(t, zf_load(STORE(p.program), saved, NULL), STORE_ERROR(p.program));
    for (int n = 3; n <= 4; n++) CHECK(t, step(p, n, found[1], COUNT * 4));
    CHECK(t, !memcmp(found[0], found[1], COUNT * 4));
}

/* From the second step on: another program goes on with the store of the first. */
TEST_ONCE(delay_begins_later)
{
    static unsigned char plain[COUNT * 4], delayed[COUNT * 4];
    trained p, other;
    CHECK(t, (p = program_of(t, "autograd loss; adamw lr; zero", NULL)).program);
    for (int n = 1; n <= 3; n++) CHECK(t, step(p, n, plain, COUNT * 4));
    CHECK(t, (p = program_of(t, "autograd loss; adamw lr; zero", NULL)).program);
    for (int n = 1; n <= 2; n++) CHECK(t, step(p, n, delayed, COUNT * 4));
    other = program_of(t, "autograd loss; adamw lr; delay; zero", STORE(p.program));
    CHECK(t, other.program);
    CHECK(t, step(other, 3, delayed, COUNT * 4) && memcmp(plain, delayed, COUNT * 4) != 0);
    CHECK(t, step(other, 4, delayed, COUNT * 4) && !memcmp(plain, delayed, COUNT * 4));
    CHECK(t, zf_program_step(other.program) == 4);
}

/* From some step on: two variants of a description's step. */
TEST(delay_makes_variants)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor w = zf_param(g, "w", ZF_SHAPE(4), NULL);
    zf_training d = {.loss = zf_sum(zf_mul(w, w)), .delay = true};
    bool good;
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    NEED(t, g && zf_valid(d.loss), NULL);
    good = zf_variant_count(&d) == 1;
    d.delay_from = 3;
    good &= zf_variant_count(&d) == 2 && !strcmp(zf_variant_name(&d, 1), "delayed") &&
            zf_variant_at(&d, 3) == 0 && zf_variant_at(&d, 4) == 1;
    CHECK(t, good);
    d.optimizer = ZF_ONEBIT_ADAM;
    CHECK(t, zf_passes(g, &d) != ZF_OK);
}

/* Where the pass can run, and what the verifier asks of a state that an update reads as its
 * gradient. */
TEST_ONCE(delay_mistakes_are_found)
{
    static const struct {
        const char *line, *error;
    } wrong[] = {
        {"autograd loss; delay", "zf_delay: needs an optimizer (zf_adamw or another) before it"},
        {"autograd loss; adamw lr; zero; delay",
         "zf_delay: must come before zf_zero, which has been run"},
        {"autograd loss; adamw lr; delay; delay", "zf_delay: zf_delay has been run already"},
    };
    static const struct {
        const char *from, *to, *error;
    } list[] = {
        {"      delay %43", "      delay %4", "operand 0 must be a state or a bucket of states"},
        {"      delay %43, %46\n", "", "%43, its gradient, is a state that no delay sets"},
        {"delay %43, %46", "delay %43, %42", "is no gradient"},
        {"delay %43, %46", "delay %43, %4", "operand 1 must be of the type of operand 0"},
    };
    static const char good[] = "zero stage=0 world=1 micro_batches=1\n"
                               "%2  = param \"w\" : f32[8,8]\n"
                               "%42 = bucket %2 {at=[0] size=1024} : f32[1024]\n"
                               "%1  = input \"x\" : f32[8,8]\n"
                               "%4  = input \"lr\" : f32[]\n"
                               "%46 = pack %1 {at=[0] size=1024} : f32[1024]\n"
                               "update:\n"
                               "%5  = state \"delay.gradient/w\" : f32[8,8]\n"
                               "%43 = bucket %5 {at=[0] size=1024} : f32[1024]\n"
                               "      sgd %42, %43, %4 {blocks=[0,1] decays=[0]}\n"
                               "      delay %43, %46\n";
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        zf_error error = {ZF_OK, ""};
        char message[600] = "";
        zf_graph *g = zf_graph_parse(linear, strlen(linear), NULL, &error);
        NEED(t, g, &error);
        pass_run(g, wrong[k].line, NULL, message, sizeof message);
        zf_graph_free(g);
        CHECK_TEXT(t, message, wrong[k].error);
    }
    for (size_t k = 0; k <= sizeof list / sizeof *list; k++) {
        const bool is_good = k == sizeof list / sizeof *list;
        const char *const at = is_good ? good : strstr(good, list[k].from);
        zf_error error = {ZF_OK, ""};
        char text[2000];
        zf_graph *g;
        CHECK(t, at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, is_good ? "" : list[k].to,
                 at + (is_good ? 0 : strlen(list[k].from)));
        g = zf_graph_parse(text, strlen(text), NULL, &error);
        zf_graph_free(g);
        if (is_good) CHECK_TEXT(t, error.text, "");
        else if (g || !strstr(error.text, list[k].error))
            test_fail(t, __FILE__, __LINE__, list[k].error, g ? "no error" : error.text);
    }
}
