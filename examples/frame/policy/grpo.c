/* The command grpo: an answer is worth what its reward is compared with those of its group. */
#include "../options/fail.h"
#include "../experience/experience.h"
#include "policy.h"

#include <stdlib.h>

static bool advantages(experience *e, session *s, zf_error *error)
{
    const int64_t sequence = e->desc->sequence;
    double *numbers = malloc((size_t)e->answers * sizeof *numbers);
    (void)s;
    if (!numbers) return fail(error, ZF_ERR_NOMEM, "out of memory");
    zf_group_advantages(e->reward, e->group, e->answers, e->desc->o->advantage.advantage, numbers);
    for (int64_t k = 0; k < e->answers; k++)
        for (int64_t t = 0; t < sequence; t++)
            e->advantage[k * sequence + t] = (float)numbers[k];
    free(numbers);
    return true;
}

#define CHANGES ZF_OPTION_CHANGES
#define BASIC   ZF_OPTION_BASIC

static const zf_option advantage_rows[] = {
    ZF_OPTION(zf_advantage_desc, CHOICE, advantage, 0, "group|mean|rloo", .flag = "advantage",
              .traits = CHANGES,
              .help = "advantage of an answer in its group; group: (R - mean) / deviation; mean: R "
                      "- mean; rloo: R - mean of the others"),
    {.name = NULL}};

static const zf_option rows[] = {
    ZF_OPTION(policy_options, COUNT, group, 8, "[2,65536]", .traits = CHANGES | BASIC,
              .help = "answers to each prompt, which are compared with one another"),
    ZF_OPTION(policy_options, COUNT, redraws, 0, "[0,100]", .traits = CHANGES, .unit = "N",
              .help = "groups with equal rewards, which teach nothing, are replaced by answers to "
                      "other prompts, at most N times (dynamic sampling)"),
    ZF_OPTION(policy_options, DESC, advantage, 0, NULL, .rows = advantage_rows, .topic = "policy"),
    ZF_OPTION(policy_options, DESC, loss, 0, NULL, .rows = NULL),
    {.name = NULL}};

static const char *wrong(const policy_options *own, const settings *o)
{
    if (own->loss.kl_beta > 0 && !settings_first(o))
        return "--kl-beta compares with the first weights, and these are random: --model DIR, or "
               "--init DIR";
    return NULL;
}

int grpo_command(const sample_model *sample, int argc, char **argv)
{
    /* Without "accumulate", products over an adapter are rounded by the program of a step as by the
     * one that evaluates, so that the first ratios are 1 in 16 bits as well. */
    static const settings_default defaults[] = {{"batch", "64"},
                                                {"schedule", "constant"},
                                                {"lr", "1e-6"},
                                                {"seq", "1024"},
                                                {"weight-decay", "0"},
                                                {"eval-batches", "0"},
                                                {"no-fuse", "accumulate"},
                                                {NULL, NULL}};
    static const policy_kind grpo = {
        .usage = "grpo --model DIR --data FILE --reward SPEC [OPTIONS]",
        .defaults = defaults,
        .rows = rows,
        .wrong = wrong,
        .columns = {"loss", "reward", "reward_deviation", "no_signal", "kl1", "kl3", "entropy",
                    "ratio_low", "ratio_high", "clipped", "length", "ended", "mismatch", "redrawn",
                    "held_out"},
        .advantages = advantages};
    return policy_command(sample, &grpo, argc, argv);
}
