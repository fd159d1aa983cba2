/* zf-plan: the memory, traffic and time of training a model on each of N ranks, without running it
 * (docs/layouts.md, docs/memory-and-plans.md).
 *
 *     build/zf-plan --model gpt --layers 36 --hidden 4096 --heads 32 --world 64 --zero 2 \
 *                   --precision bf16 --memory 32G
 *
 * Builds the graph of one training step, runs the passes of a rank over it, and prints the plan. It
 * allocates only the graph. */
#include "plan/plan.h"
#include "../examples/frame/plan/rlhf_plan.h"
#include "../examples/llm/model.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

enum { GOOD, BAD }; /* exit status */

/* The plan of one variant of the step. */
static int print_variant(const options *o)
{
    result r;
    zf_graph *g = plan_graph(&r);
    zf_tensor loss = plan_model(g, o);
    int end = GOOD;
    if (!g || plan_passes(g, loss, o, &r)) {
        fprintf(stderr, "zf-plan: %s\n", g ? zf_graph_error(g) : "out of memory");
        end = BAD;
    } else {
        options plain;
        result other;
        char why[512];
        if (plan_plain(o, &plain) && plan_of(&plain, &other, why))
            r.plain_seconds = other.estimate.seconds;
        if (o->json) end = plan_print_json(o, g, &r);
        else plan_print_table(o, &r);
        if (plan_draw(o, g)) end = BAD;
        if (zf_plan_fits(g, (size_t)o->memory)) {
            fflush(stdout);
            fprintf(stderr, "zf-plan: %s\n", zf_graph_error(g));
            end = BAD;
        }
    }
    zf_graph_free(g);
    return end;
}

/* The plan of each stage of a variant. */
static int print_stages(const options *o)
{
    stages_plan p;
    char error[512];
    int end = GOOD;
    if (!plan_stages(o, &p, error)) {
        fprintf(stderr, "zf-plan: %s\n", error);
        return BAD;
    }
    if (o->json) end = plan_print_stages_json(o, &p);
    else plan_print_stages(o, &p);
    if (o->memory && p.stages[p.largest].peak > (size_t)o->memory) {
        fflush(stdout);
        fprintf(stderr, "zf-plan: stage %lld takes %zu bytes, %zu more than the limit of %lld\n",
                (long long)p.largest, p.stages[p.largest].peak,
                p.stages[p.largest].peak - (size_t)o->memory, (long long)o->memory);
        end = BAD;
    }
    plan_stages_free(&p);
    return end;
}

static int plan_step(int argc, char **argv)
{
    options o;
    zf_training t;
    zf_error error = {ZF_OK, ""};
    int end = plan_read_options(argc, argv, &o);
    if (end) return end - 1;
    if (o.layout) return plan_print_layout(&o);
    t = plan_varying(&o);
    o.t.variant = 0, o.variants = zf_variant_count(&t);
    if (o.cost_file && zf_cost_read(o.cost_file, &o.cost, NULL, &error)) {
        fprintf(stderr, "zf-plan: %s\n", error.text);
        return BAD;
    }
    if (o.link) o.cost.link.bytes_per_s = (double)o.link;
    if (o.between) o.cost.between.bytes_per_s = (double)o.between;
    if (o.fit) return plan_print_fit(&o);
    if (o.search) return plan_print_search(&o);
    if (plan_changes(&o)) return plan_print_phases(&o);
    for (; o.t.variant < o.variants && !end; o.t.variant++) {
        if (o.json && o.variants > 1) puts(o.t.variant ? "," : "[");
        else if (o.variants > 1)
            printf("%svariant %d of %d: %s\n", o.t.variant ? "\n" : "", (int)o.t.variant + 1,
                   (int)o.variants, zf_variant_name(&t, o.t.variant));
        end = o.pipe > 1 ? print_stages(&o) : print_variant(&o);
    }
    if (o.json && o.variants > 1 && !end) puts("]");
    return end;
}

static int close_output(int end)
{
    const bool failed = ferror(stdout);
    if ((!fclose(stdout) && !failed) || end) return end;
    fprintf(stderr, "zf-plan: cannot write: %s\n", strerror(errno));
    return BAD;
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file that becomes too large is an error of the write */
    if (argc > 1 && !strcmp(argv[1], "rlhf"))
        return close_output(rlhf_plan_command(&llm_sample, argc - 1, argv + 1));
    return close_output(plan_step(argc, argv));
}
