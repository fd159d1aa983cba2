/* A small language model, and teams of ranks that share its sequences: their steps have the bits of
 * one rank with as many sections. */
#ifndef CONTEXT_H
#define CONTEXT_H

#include "../ranks/team_passes.h"

#include <math.h>

enum { B = 2, S = 16, WORDS = 11, WIDTH = 16, STEPS = 3, TEXT = 6000, MOST = 1024 };

/* Two kinds of positions, norms, attention of four heads with a window, two layers with biases, the
 * head tied to the embedding. `$`: a float dtype. */
static const char *const model =
    "%1 = param \"e\" {init=normal b=0.5} : $[11,16]\n%2 = input \"tokens\" : i32[2,16]\n"
    "%3 = gather_rows %1, %2 : $[2,16,16]\n%4 = param \"p\" {init=normal b=0.5} : $[20,16]\n"
    "%5 = slice %4 {stop=16} : $[16,16]\n%6 = add %3, %5 : $[2,16,16]\n%7 = rms %6 : @[2,16,2]\n"
    "%8 = param \"g\" {init=normal a=1 b=0.5} : $[16]\n%9 = rms_norm %6, %7, %8 : $[2,16,16]\n"
    "%10 = param \"q\" {init=normal b=0.3} : $[16,16]\n%11 = linear %9, %10 : $[2,16,16]\n"
    "%12 = rope %11 {heads=4 theta=100} : $[2,16,16]\n"
    "%13 = param \"k\" {init=normal b=0.3} : $[16,16]\n%14 = linear %9, %13 : $[2,16,16]\n"
    "%15 = rope %14 {heads=4 theta=100} : $[2,16,16]\n"
    "%16 = param \"v\" {init=normal b=0.3} : $[16,16]\n%17 = linear %9, %16 : $[2,16,16]\n"
    "%18 = attention %12, %15, %17 {heads=4 scale=0.5 causal=true window=7} : $[2,16,16]\n"
    "%19 = param \"o\" {init=normal b=0.3} : $[16,16]\n%20 = linear %18, %19 : $[2,16,16]\n"
    "%21 = add %20, %6 : $[2,16,16]\n%22 = param \"up\" {init=normal b=0.3} : $[32,16]\n"
    "%23 = param \"upb\" {init=normal b=0.3} : $[32]\n%24 = linear %21, %22, %23 : $[2,16,32]\n"
    "%25 = gelu %24 : $[2,16,32]\n%26 = param \"down\" {init=normal b=0.3} : $[16,32]\n"
    "%27 = linear %25, %26 : $[2,16,16]\n%28 = add %27, %21 : $[2,16,16]\n"
    "%29 = reshape %28 {shape=[32,16]} : $[32,16]\n%30 = input \"labels\" : i32[2,16]\n"
    "%31 = reshape %30 {shape=[32]} : i32[32]\n%32 = input \"weight\" : @[]\n"
    "%33 = head_loss %29, %1, %31, %32 {ignore=-100} : @[]\noutput %33 \"loss\" role=loss\n"
    "%34 = input \"lr\" : @[]\n";

/* Dropout of tokens, of attention and, with FLAT, of rows of all sequences. */
#define DROPS(tokens, rows, width, heads, flat)                                                    \
    "%1 = param \"e\" {init=normal b=0.5} : $[11," width "]\n"                                     \
    "%2 = input \"tokens\" : i32[2," tokens "]\n"                                                  \
    "%3 = gather_rows %1, %2 : $[2," tokens "," width "]\n"                                        \
    "%4 = dropout %3 {p=0.25 stream=1} : $[2," tokens "," width "]\n"                              \
    "%5 = attention %4, %4, %4 {heads=" heads " scale=0.5 causal=true p=0.25 stream=2} : "         \
    "$[2," tokens "," width "]\n"                                                                  \
    "%6 = param \"o\" {init=normal b=0.3} : $[" width "," width "]\n"                              \
    "%7 = linear %5, %6 : $[2," tokens "," width "]\n"                                             \
    "%8 = reshape %7 {shape=[" rows "," width "]} : $[" rows "," width "]\n"                       \
    "%9 = " flat " : $[" rows "," width "]\n%10 = input \"labels\" : i32[2," tokens "]\n"          \
    "%11 = reshape %10 {shape=[" rows "]} : i32[" rows "]\n%12 = input \"weight\" : @[]\n"         \
    "%13 = head_loss %9, %1, %11, %12 {ignore=-100} : @[]\noutput %13 \"loss\" role=loss\n"        \
    "%14 = input \"lr\" : @[]\n"

static const char *source; /* of the graphs that are made; NULL: model */

static const char *const params[] = {"e", "p", "g", "q", "k", "v", "o", "up", "upb", "down"};

static void write_model(char text[TEXT], const char *dtype)
{
    const char *const wide = strcmp(dtype, "bf16") ? dtype : "f32";
    size_t at = 0;
    for (const char *c = source ? source : model; *c && at + 5 < TEXT; c++)
        if (*c == '$' || *c == '@')
            at += (size_t)snprintf(text + at, TEXT - at, "%s", *c == '$' ? dtype : wide);
        else text[at++] = *c;
    text[at] = '\0';
}

static void write_number(test *t, zf_program *p, zf_tensor to, double x)
{
    const float f = (float)x;
    OK(t, zf_write(p, to, zf_tensor_dtype(to) == ZF_F64 ? (const void *)&x : &f,
                   zf_tensor_bytes(to)),
       zf_program_error(p));
}

/* Steps of ranks, of which `sharing` neighbours have one part of the batch. */
static void step_all(test *t, team *m, int sharing, int steps)
{
    for (int step = 0; step < steps && !t->failed; step++) {
        for (int r = 0; r < m->world; r++) {
            int32_t tokens[MOST], labels[MOST];
            zf_graph *g = m->members[r].graph;
            const size_t bytes = zf_tensor_bytes(zf_graph_find(g, "tokens"));
            for (int i = 0; i < (int)(bytes / sizeof *tokens); i++) {
                tokens[i] = (i * 7 + step + 3 * (r / sharing)) % WORDS;
                labels[i] = i % 5 ? (i * 3 + r / sharing) % WORDS : -100;
            }
            zf_write(m->programs[r], zf_graph_find(g, "tokens"), tokens, bytes);
            zf_write(m->programs[r], zf_graph_find(g, "labels"), labels, bytes);
            write_number(t, m->programs[r], zf_graph_find(g, "weight"), 1.0 / 26);
            write_number(t, m->programs[r], zf_graph_find(g, "lr"), 0.01);
        }
        team_step(t, m);
    }
}

static bool make(test *t, team *m, int ranks, int sharing, const char *dtype, const char *line,
                 int steps)
{
    char text[TEXT];
    write_model(text, dtype);
    passes = line;
    if (!team_new(t, m, text, ranks, ranks == 1, team_change)) return false;
    step_all(t, m, sharing, steps);
    return !t->failed;
}

/* A value as ranks of a team have it. */
static void read_value(test *t, const team *m, int rank, const char *name, void *x)
{
    const zf_tensor of = zf_graph_find(m->members[rank].graph, name);
    OK(t, zf_read(m->programs[rank], of, x, zf_tensor_bytes(of)), zf_program_error(m->programs[rank]));
}

/* All ranks of a team have the loss and the parameters of one rank. */
static void check_bits(test *t, const team *one, const team *all)
{
    static char mine[MOST * 8], its[MOST * 8];
    for (size_t k = 0; k <= sizeof params / sizeof *params && !t->failed; k++) {
        const char *name = k < sizeof params / sizeof *params ? params[k] : "loss";
        const zf_tensor of = zf_graph_find(one->members[0].graph, name);
        const size_t bytes = of.id ? zf_tensor_bytes(of) : 0;
        if (!bytes) continue;
        read_value(t, one, 0, name, its);
        for (int r = 0; r < all->world; r++) {
            read_value(t, all, r, name, mine);
            if (memcmp(mine, its, bytes))
                test_fail(t, __FILE__, __LINE__, name, "not that of one rank");
        }
    }
}

/* The parameters of the last rank, of f64, are those of one rank but for 1e-12 of the largest. */
static void check_near(test *t, const team *one, const team *all)
{
    static double x[MOST], y[MOST];
    for (size_t k = 0; k < sizeof params / sizeof *params; k++) {
        const zf_tensor of = zf_graph_find(one->members[0].graph, params[k]);
        double far = 0, most = 0;
        if (!zf_valid(of)) continue;
        read_value(t, one, 0, params[k], x);
        read_value(t, all, all->world - 1, params[k], y);
        for (size_t i = 0; i < zf_tensor_bytes(of) / sizeof(double); i++)
            far = fmax(far, fabs(x[i] - y[i])), most = fmax(most, fabs(x[i]));
        if (!(far <= 1e-12 * most)) test_fail(t, __FILE__, __LINE__, params[k], "is far");
    }
}

#define TRAINS "autograd loss; simplify; adamw lr; "

static void check_ranks(test *t, const char *dtype, const char *alone, int parts, const char *line)
{
    static team one, all;
    test_defer(t, team_end, &one);
    test_defer(t, team_end, &all);
    if (make(t, &one, 1, 1, dtype, alone, STEPS) && make(t, &all, parts, parts, dtype, line, STEPS))
        check_bits(t, &one, &all);
    team_end(&all);
    team_end(&one);
}

#endif
