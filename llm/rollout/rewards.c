/* Rewards by their specs, and their weighted sum. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct zf_rewards {
    zf_reward *at; /* [count] */
    int32_t count;
    int64_t tokens;
};

static const struct {
    const char *name;
    zf_reward_fn fn;
    enum { ZFL_BARE, ZFL_MAY, ZFL_NEEDS, ZFL_NUMBER } argument;
} zfl_reward_kinds[] = {
    {"exact", zfl_reward_exact, ZFL_MAY},          {"number", zfl_reward_number, ZFL_MAY},
    {"regex", zfl_reward_regex, ZFL_NEEDS},        {"length", zfl_reward_length, ZFL_BARE},
    {"overlong", zfl_reward_overlong, ZFL_NUMBER}, {"cmd", zfl_reward_command, ZFL_NEEDS}};
enum { ZFL_REWARD_KINDS = sizeof zfl_reward_kinds / sizeof *zfl_reward_kinds };

static void zfl_reward_spec_close(void *user)
{
    zfl_reward_spec *s = user;
    zfl_regex_free(s->regex);
    free(s);
}

static bool zfl_reward_builtin(int kind, const zf_rewards_desc *d, const char *argument,
                               zf_reward *out, zf_error *error)
{
    zfl_reward_spec *s = calloc(1, sizeof *s);
    const bool regex = zfl_reward_kinds[kind].fn == zfl_reward_regex;
    if (!s) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    *s = (zfl_reward_spec){.name = out->name, .argument = argument};
    s->deadline = d->deadline > 0 ? d->deadline : 60;
    out->fn = zfl_reward_kinds[kind].fn, out->user = s, out->close = zfl_reward_spec_close;
    return !regex || (s->regex = zfl_regex_new(argument, strlen(argument), error));
}

/* Whether the argument of a spec is as its kind needs it. */
static bool zfl_reward_fits(int kind, const char *argument, int64_t tokens)
{
    double number;
    switch (zfl_reward_kinds[kind].argument) {
    case ZFL_BARE: return !argument;
    case ZFL_MAY: return !argument || *argument;
    case ZFL_NEEDS: return argument && *argument;
    default:
        return argument && *argument &&
               zfl_decimal(argument, argument + strlen(argument), &number) == strlen(argument) &&
               number >= 1 && number <= (double)tokens;
    }
}

static bool zfl_is_name(const char *name, const char *at, size_t bytes)
{
    return strlen(name) == bytes && !memcmp(name, at, bytes);
}

/* The reward of a spec, without its weight. */
static bool zfl_reward_named(const zf_rewards_desc *d, const char *at, zf_reward *out,
                             zf_error *error)
{
    const size_t bytes = strcspn(at, ":");
    const char *argument = at[bytes] ? at + bytes + 1 : NULL;
    for (int k = 0; k < ZFL_REWARD_KINDS; k++) {
        if (!zfl_is_name(zfl_reward_kinds[k].name, at, bytes)) continue;
        if (zfl_reward_fits(k, argument, d->tokens))
            return zfl_reward_builtin(k, d, argument, out, error);
        return zfl_fail(error, ZF_ERR_ARGUMENT, "the reward \"%.200s\" is not as %s", out->name,
                        "exact[:MEMBER], number[:MEMBER], regex:PATTERN, length, overlong:TOKENS "
                        "(at most those of an answer) or cmd:COMMAND");
    }
    for (int32_t k = 0; k < d->kind_count; k++)
        if (zfl_is_name(d->kinds[k].name, at, bytes))
            return d->kinds[k].open(d->kinds[k].user, argument, out, error);
    return zfl_fail(error, ZF_ERR_ARGUMENT,
                    "there is no reward \"%.200s\": exact, number, regex:PATTERN, length, "
                    "overlong:TOKENS or cmd:COMMAND, perhaps with a weight, as 0.2*length",
                    out->name);
}

static bool zfl_reward_open(const zf_rewards_desc *d, const char *spec, zf_reward *out,
                            zf_error *error)
{
    double weight = 1;
    const size_t n = zfl_decimal(spec, spec + strlen(spec), &weight);
    const bool weighted = n && spec[n] == '*';
    out->name = spec, out->weight = weighted ? weight : 1;
    if (out->weight == 0)
        return zfl_fail(error, ZF_ERR_ARGUMENT, "the weight of the reward \"%.200s\" must not be 0",
                        spec);
    return zfl_reward_named(d, weighted ? spec + n + 1 : spec, out, error);
}

static bool zfl_rewards_fill(zf_rewards *r, const zf_rewards_desc *d, zf_error *error)
{
    for (int32_t k = 0; k < d->spec_count; k++)
        if (!zfl_reward_open(d, d->specs[k], &r->at[r->count++], error)) return false;
    for (int32_t k = 0; k < d->own_count; k++) {
        zf_reward *own = &r->at[r->count++];
        *own = d->own[k];
        if (own->weight == 0) own->weight = 1;
    }
    return r->count || zfl_fail(error, ZF_ERR_ARGUMENT, "a reward is needed");
}

zf_rewards *zf_rewards_open(const zf_rewards_desc *d, zf_error *error)
{
    zf_rewards *r = calloc(1, sizeof *r);
    *error = (zf_error){ZF_OK, ""};
    if (r) r->at = calloc((size_t)(d->spec_count + d->own_count) + 1, sizeof *r->at);
    if (!r || !r->at) {
        free(r);
        zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
        return NULL;
    }
    r->tokens = d->tokens;
    if (zfl_rewards_fill(r, d, error)) return r;
    zf_rewards_close(r);
    return NULL;
}

void zf_rewards_close(zf_rewards *r)
{
    if (!r) return;
    for (int32_t k = 0; k < r->count; k++)
        if (r->at[k].close && r->at[k].user) r->at[k].close(r->at[k].user);
    free(r->at);
    free(r);
}

int32_t zf_rewards_count(const zf_rewards *r) { return r->count; }
const char *zf_rewards_name(const zf_rewards *r, int32_t which) { return r->at[which].name; }

static zf_reward_item zfl_item_of(const zf_rewards *rewards, const zf_rollouts *r, int64_t k)
{
    const zf_answer *a = &r->answers[k];
    const size_t from = a->prompt;
    return (zf_reward_item){.prompt = r->prompts[k / r->group],
                            .text = a->text.at ? a->text.at + from : "",
                            .bytes = a->text.count - from,
                            .ids = a->ids.at + a->given,
                            .count = (int64_t)(a->ids.count - a->given),
                            .finish = a->finish,
                            .tokens = rewards->tokens};
}

/* Adds one reward of all answers to their sums. */
static bool zfl_add_reward(const zf_reward *reward, const zf_reward_item *items, int64_t n,
                           double *own, double *sum, zf_error *error)
{
    if (!reward->fn(reward->user, items, n, own, error))
        return error->status ? false
                             : zfl_fail(error, ZF_ERR_ARGUMENT, "the reward %.200s failed",
                                        reward->name ? reward->name : "of the program");
    for (int64_t k = 0; k < n; k++) {
        if (isinf(own[k]))
            return zfl_fail(error, ZF_ERR_NAN,
                            "the reward %.200s of an answer to the prompt of line %lld is infinite",
                            reward->name ? reward->name : "of the program",
                            (long long)items[k].prompt->line);
        sum[k] += reward->weight * own[k];
    }
    return true;
}

bool zf_rewards_score(zf_rewards *rewards, const zf_rollouts *r, double *sum, double *each,
                      zf_error *error)
{
    zf_reward_item *items = calloc((size_t)r->count + 1, sizeof *items);
    double *own = calloc((size_t)r->count + 1, sizeof *own);
    bool good = (items && own) || zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (good) *error = (zf_error){ZF_OK, ""};
    for (int64_t k = 0; k < r->count && good; k++)
        items[k] = zfl_item_of(rewards, r, k), sum[k] = 0;
    for (int32_t i = 0; i < rewards->count && good && r->count; i++) {
        good = zfl_add_reward(&rewards->at[i], items, r->count, own, sum, error);
        if (each) memcpy(each + i * r->count, own, (size_t)r->count * sizeof *own);
    }
    free(items);
    free(own);
    return good;
}
