/* `bert44` is how DeepSpeed trained BERT-large in 44 minutes on 1024 GPUs (its tutorial on BERT
 * pretraining; You et al. 2020 for LAMB):
 *
 *     phase   tokens   batch   steps   rate    warm-up   rate * 0.9 every
 *     1          128   65536    6150   0.011       150                250
 *     2          512   32768     610   0.002       150                150
 *
 * with LayerNorm before each half of a layer, a ratio of LAMB within [0.01, 0.3], no bias
 * correction, weight decay 0.01 and gradients clipped to a norm of 1.
 *
 * A smaller run of N steps with B examples: both phases have the same shares of N, and so have
 * warm-ups and decays; the second phase has B/2 examples and a quarter of the tokens is the first
 * one's length. Rates go with the square root of the batch, as the variance of a mean of B
 * gradients goes with 1/B. */
#include "masked.h"
#include "../frame/options/fail.h"

#include <math.h>

enum { FULL_BATCH = 65536, FULL_TOKENS = 512, FULL_STEPS = 6760 };

static const settings_default bert44[] = {{"optimizer", "lamb"},
                                          {"max-ratio", "0.3"},
                                          {"no-bias-correction", "true"},
                                          {"schedule", "exponential"},
                                          {"lr-rate", "0.9"},
                                          {"pre-norm", "true"},
                                          {NULL, NULL}};

/* Steps that are `part` of the full run's, in a run of `steps`; at least 1. */
static int64_t share(int64_t part, int64_t steps)
{
    const int64_t n = llround((double)part * (double)steps / FULL_STEPS);
    return n > 1 ? n : 1;
}

static void add_phase(settings *o, char *text, int64_t seq, int64_t batch, int64_t steps, double lr,
                      int64_t warmup, int64_t every)
{
    snprintf(text, RECIPE_TEXT, "seq=%lld,batch=%lld,steps=%lld,lr=%.6g,warmup=%lld,every=%lld",
             (long long)seq, (long long)batch, (long long)steps, lr, (long long)warmup,
             (long long)every);
    o->phase.at[o->phase.count++] = text;
}

/* Whether options leave the recipe its phases. */
static bool fits(const settings *o, zf_error *error)
{
    const curriculum *c = &o->curriculum;
    if (o->phase.count || c->min || c->max || c->steps || c->schedule)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--recipe has phases of its own: without --phase and --curriculum");
    if (!o->batch)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--recipe bert44 needs --batch B, the examples of a step of phase 1: %d in the "
                    "recipe; its rates follow from B",
                    (int)FULL_BATCH);
    return (o->batch >= 2 && (!o->steps || o->steps >= 20)) ||
           fail(error, ZF_ERR_ARGUMENT,
                "--recipe bert44 needs at least 2 examples a step and 20 steps, for two phases");
}

bool recipe_choose(void *masked, settings *o, const settings_default **list, zf_error *error)
{
    masked_options *own = masked;
    const int64_t tokens = o->seq ? o->seq : FULL_TOKENS, steps = o->steps ? o->steps : FULL_STEPS;
    const int64_t second = share(610, steps), first = steps - second;
    double lr;
    if (!own->recipe) return true;
    if (!fits(o, error)) return false;
    lr = o->lr != 0 ? o->lr : 0.011 * sqrt((double)o->batch / FULL_BATCH);
    add_phase(o, own->phases[0], tokens / 4 > 8 ? tokens / 4 : 8, o->batch, first, lr,
              share(150, steps), share(250, steps));
    add_phase(o, own->phases[1], tokens, o->batch / 2, second, lr * 2 / 11, share(150, steps),
              share(150, steps));
    o->steps = 0; /* those of the phases */
    *list = bert44;
    return true;
}
