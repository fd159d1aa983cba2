/* A run whose shapes change: --phase, --curriculum, --recipe. Its programs share parameters and
 * states, and the values of a step lie in the memory of the largest; each has inputs of its own.
 *
 *     peak    parameters + states + the inputs of all shapes + the most values of one of them */
#include "plan.h"
#include "../../examples/bert/masked.h"
#include "../../examples/frame/options/fail.h"
#include "../../examples/frame/plan/human.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------- options */

/* The recipe sets phases, and defaults of other options; those of a run that no plan depends on are
 * left out. */
bool plan_recipe(options *o, const zf_options *all, int32_t tables, zf_error *error)
{
    static masked_options own = {.recipe = 1};
    settings s = {.batch = o->examples, .seq = o->seq, .steps = o->steps, .phase = o->phase};
    const settings_default *list = NULL;
    zf_error none = {ZF_OK, ""};
    if (!o->recipe) return true;
    s.curriculum = o->curriculum;
    if (!o->examples)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--recipe bert44 needs --global-batch B, the examples of "
                    "a step of phase 1");
    if (o->gpt) return fail(error, ZF_ERR_ARGUMENT, "--recipe bert44 is for --model bert");
    if (!recipe_choose(&own, &s, &list, error)) return false;
    o->phase = s.phase, o->steps = s.steps;
    for (int k = 0; list && list[k].option && k < PLAN_DEFAULTS; k++) {
        snprintf(o->defaults[k], sizeof o->defaults[k], "%s", list[k].text);
        if (!strcmp(list[k].option, "schedule")) continue; /* of the rate */
        (void)zf_options_default(all, tables, list[k].option, o->defaults[k], &none);
    }
    return true;
}

bool plan_curriculum_ends(const options *o)
{
    const curriculum *c = &o->curriculum;
    const bool given = c->min || c->max || c->round || c->schedule || c->root != 0;
    return !given || c->steps || c->schedule == CURRICULUM_DISCRETE;
}

bool plan_changes(const options *o)
{
    const curriculum *c = &o->curriculum;
    return o->phase.count || c->steps || c->lengths || c->schedule;
}

/* --------------------------------------------------------------------------------------- plans */

/* What a shape takes of a stage. */
typedef struct shape_bytes {
    size_t kept, inputs, values;
} shape_bytes;

typedef struct shape_plan {
    shape_bytes *stages;
    size_t peak, parameters; /* of the stage with most parameters */
    double seconds;          /* of a step */
} shape_plan;

static shape_bytes bytes_of(const zf_plan *plan, size_t peak)
{
    shape_bytes b = {.kept = plan->most[ZF_PARAMETERS] + plan->most[ZF_OPTIMIZER] +
                             plan->most[ZF_CACHES],
                     .inputs = plan->most[ZF_INPUTS]};
    b.values = peak - b.kept - b.inputs;
    return b;
}

static bool plan_shape(const options *o, shape_plan *out, char error[512])
{
    stages_plan p;
    result r;
    out->stages = calloc((size_t)o->pipe, sizeof *out->stages);
    if (!out->stages) return snprintf(error, 512, "out of memory"), false;
    if (o->pipe == 1) {
        if (!plan_of(o, &r, error)) return false;
        out->stages[0] = bytes_of(&r.plan, r.plan.peak_bytes);
        out->parameters = r.plan.most[ZF_PARAMETERS];
        out->peak = r.plan.peak_bytes, out->seconds = r.estimate.seconds;
        return true;
    }
    if (!plan_stages(o, &p, error)) return false;
    for (int64_t k = 0; k < o->pipe; k++) {
        out->stages[k] = bytes_of(&p.stages[k].plan, p.stages[k].peak);
        if (p.stages[k].plan.most[ZF_PARAMETERS] > out->parameters)
            out->parameters = p.stages[k].plan.most[ZF_PARAMETERS];
    }
    out->peak = p.stages[p.largest].peak, out->seconds = p.seconds;
    plan_stages_free(&p);
    return true;
}

/* The peak of the whole run on the stage that takes most. */
static size_t peak_of(const options *o, const shape_plan *plans, int32_t count)
{
    size_t most = 0;
    for (int64_t s = 0; s < o->pipe; s++) {
        size_t sum = plans[0].stages[s].kept, values = 0;
        for (int32_t k = 0; k < count; k++) {
            const shape_bytes *b = &plans[k].stages[s];
            sum += b->inputs;
            if (b->values > values) values = b->values;
        }
        if (sum + values > most) most = sum + values;
    }
    return most;
}

static int64_t longest_of(const shape_phases *p)
{
    int64_t longest = 0;
    for (int32_t k = 0; k < p->count; k++)
        if (p->at[k].sequence > longest) longest = p->at[k].sequence;
    return longest;
}

/* The options of a phase's step; false where its batch has no equal parts, or it is too long. */
static bool options_of_phase(const options *o, const shape_phases *p, const shape_phase *of,
                             options *out, char error[512])
{
    const int64_t parts = o->data * o->t.zero.micro_batches;
    const bool good = of->batch % parts == 0;
    *out = *o;
    out->batch = of->batch / parts, out->seq = of->sequence, out->positions = longest_of(p);
    if (!good)
        snprintf(error, 512,
                 "a batch of %lld examples cannot be split into %lld ranks along data times "
                 "%lld micro-batches",
                 (long long)of->batch, (long long)o->data, (long long)o->t.zero.micro_batches);
    return good && plan_fits_positions(out, error);
}

/* ------------------------------------------------------------------------------------- printing */

static void print_phases(const options *o, const shape_phases *p, const shape_plan *plans,
                         size_t peak)
{
    char text[32];
    double seconds = 0;
    plan_print_head(o), plan_print_ranks(o);
    printf("%-8s%12s%10s%8s%12s%14s%14s\n", "phase", "steps", "examples", "tokens", "peak",
           "seconds/step", "seconds");
    for (int32_t k = 0; k < p->count; k++) {
        const shape_phase *of = &p->at[k];
        const shape_plan *plan = &plans[of->shape];
        printf("%-8d%12lld%10lld%8lld%12s%14.4g%14.4g\n", (int)k + 1, (long long)of->steps,
               (long long)of->batch, (long long)of->sequence, human(text, (double)plan->peak),
               plan->seconds, plan->seconds * (double)of->steps);
        seconds += plan->seconds * (double)of->steps;
    }
    printf("%-8s%12s%10s%8s%12s%14s%14.4g\n", "all", "", "", "", human(text, (double)peak), "",
           seconds);
}

static int print_json(const options *o, const shape_phases *p, const shape_plan *plans, size_t peak)
{
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    plan_put_options(w, o);
    zf_json_put_key(w, "phases"), zf_json_begin_array(w);
    for (int32_t k = 0; k < p->count; k++) {
        const shape_phase *of = &p->at[k];
        zf_json_begin_object(w);
        plan_put_bytes(w, "steps", (size_t)of->steps),
            plan_put_bytes(w, "examples", (size_t)of->batch);
        plan_put_bytes(w, "tokens", (size_t)of->sequence);
        plan_put_bytes(w, "peak", plans[of->shape].peak);
        zf_json_put_key(w, "seconds"), zf_json_put_double(w, plans[of->shape].seconds);
        zf_json_end(w);
    }
    zf_json_end(w);
    plan_put_bytes(w, "parameters", plans[0].parameters);
    plan_put_bytes(w, "peak", peak);
    zf_json_end(w);
    return plan_end_json(w);
}

static int print_all(const options *o, const shape_phases *p, const shape_plan *plans)
{
    const size_t peak = peak_of(o, plans, p->shapes);
    int end = 0;
    if (o->json) end = print_json(o, p, plans, peak);
    else print_phases(o, p, plans, peak);
    if (!o->memory || peak <= (size_t)o->memory) return end;
    fflush(stdout);
    fprintf(stderr, "zf-plan: the phases take %zu bytes, %zu more than the limit of %lld\n", peak,
            peak - (size_t)o->memory, (long long)o->memory);
    return 1;
}

int plan_print_phases(const options *o)
{
    const int64_t parts = o->data * o->t.zero.micro_batches;
    shape_phases p;
    shape_phases_desc d = {.phase = &o->phase,
                           .curriculum = &o->curriculum,
                           .seq = o->seq,
                           .batch = o->examples ? o->examples : o->batch * parts,
                           .steps = o->steps,
                           .schedule.kind = ZF_EXPONENTIAL}; /* rates change no plan */
    shape_plan *plans = calloc(SHAPE_PHASES, sizeof *plans);
    zf_error error = {ZF_OK, "out of memory"};
    bool good = plans && shape_phases_make(&p, &d, &error);
    int end = 1;
    for (int32_t k = 0; good && k < p.shapes; k++) {
        options of;
        good = options_of_phase(o, &p, &p.at[p.first[k]], &of, error.text) &&
               plan_shape(&of, &plans[k], error.text);
    }
    if (good) end = print_all(o, &p, plans);
    else fprintf(stderr, "zf-plan: %s\n", error.text);
    for (int32_t k = 0; plans && k < SHAPE_PHASES; k++) free(plans[k].stages);
    free(plans);
    return end;
}
