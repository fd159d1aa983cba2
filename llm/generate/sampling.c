/* The next token from logits. A vocabulary is large, and each token of each text goes through it:
 * what is done with all of its probabilities is done with two at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef double zfl_two __attribute__((vector_size(16)));
typedef uint64_t zfl_two_bits __attribute__((vector_size(16)));

/* e^x for x <= 0, to 1e-14 of it; 0 below -708. x = k ln 2 + r, and the sum of r^n / n!. */
static zfl_two zfl_exp_two(zfl_two x)
{
    const double rounds = 6755399441055744.0, /* 1.5 * 2^52: adding it leaves an integer in the bits */
        high = 0.693147180369123816490, low = 1.90821492927058770002e-10; /* their sum is ln 2 */
    const zfl_two_bits small = (zfl_two_bits)(x < -708.0);
    const zfl_two t = x * 1.4426950408889634 + rounds, k = t - rounds, r = (x - k * high) - k * low;
    const zfl_two r2 = r * r, r4 = r2 * r2;
    const zfl_two low_terms = (1 + r) + (0.5 + r * (1 / 6.0)) * r2;
    const zfl_two terms = (1 / 24.0 + r * (1 / 120.0)) + (1 / 720.0 + r * (1 / 5040.0)) * r2;
    const zfl_two high_terms =
        (1 / 40320.0 + r * (1 / 362880.0)) + (1 / 3628800.0 + r * (1 / 39916800.0)) * r2;
    const zfl_two y = low_terms + (terms + high_terms * r4) * r4;
    return (zfl_two)((zfl_two_bits)(y * (zfl_two)(((zfl_two_bits)t + 1023) << 52)) & ~small);
}

ZF_API const zf_option *zf_sampling_options(void)
{
    static const zf_option rows[] = {
        ZF_OPTION(zf_sampling, NUMBER, temperature, 0.8, "[0,100]", .topic = "sampling",
                  .help = "temperature of sampling; 0: always the most likely token"),
        ZF_OPTION(zf_sampling, COUNT, top_k, 0, "[0,1000000000]", .unit = "K",
                  .help = "sample of the K most likely tokens; 0: of all"),
        ZF_OPTION(zf_sampling, NUMBER, top_p, 1, "[0,1]", .unit = "P",
                  .help = "sample of the most likely tokens whose probabilities add up to P"),
        ZF_OPTION(zf_sampling, NUMBER, repetition, 1, "[0.01,100]", .flag = "repetition-penalty",
                  .help = "above 1, tokens that were there are less likely"),
        {.name = NULL}};
    return rows;
}

bool zf_sampler_open(zf_sampler *s, const zf_sampling *how, int64_t count)
{
    *s = (zf_sampler){.how = *how, .count = count};
    s->p = calloc((size_t)count + 3, sizeof *s->p); /* pairs of twos */
    s->order = malloc((size_t)count * sizeof *s->order);
    if (s->p && s->order) return true;
    zf_sampler_close(s);
    return false;
}

void zf_sampler_close(zf_sampler *s)
{
    free(s->p);
    free(s->order);
    *s = (zf_sampler){.p = NULL};
}

/* Each token is penalised once, however often it was there: s->p says which is still to be. */
static void zfl_penalise(zf_sampler *s, float *logits, const int32_t *seen, int64_t seen_count)
{
    double by = s->how.repetition;
    for (int64_t i = 0; i < seen_count; i++)
        if (seen[i] >= 0 && seen[i] < s->count) s->p[seen[i]] = 1;
    for (int64_t i = 0; i < seen_count; i++) {
        int32_t v = seen[i];
        if (v < 0 || v >= s->count || s->p[v] == 0) continue;
        s->p[v] = 0;
        logits[v] = (float)(logits[v] < 0 ? logits[v] * by : logits[v] / by);
    }
}

/* Quickselect: place k of `order` gets what it has when all are sorted, the likeliest first. */
static void zfl_select_best(int32_t *order, const double *p, int64_t count, int64_t k)
{
    int64_t first = 0, last = count - 1;
    while (first < last) {
        double pivot = p[order[(first + last) / 2]];
        int64_t i = first, j = last;
        while (i <= j) {
            while (p[order[i]] > pivot) i++;
            while (p[order[j]] < pivot) j--;
            if (i <= j) {
                int32_t swap = order[i];
                order[i++] = order[j], order[j--] = swap;
            }
        }
        if (k <= j) last = j;
        else if (k >= i) first = i;
        else return;
    }
}

/* Tokens less likely than the k-th best are left out. */
static void zfl_keep_k(zf_sampler *s)
{
    double least;
    if (!s->how.top_k || s->how.top_k >= s->count) return;
    for (int64_t v = 0; v < s->count; v++) s->order[v] = (int32_t)v;
    zfl_select_best(s->order, s->p, s->count, s->how.top_k - 1);
    least = s->p[s->order[s->how.top_k - 1]];
    for (int64_t v = 0; v < s->count; v++)
        if (s->p[v] < least) s->p[v] = 0;
}

/* The likeliest first; of equal ones the lower number. */
static void zfl_sort_best(int32_t *order, int64_t count, const double *p)
{
    for (int64_t root = count / 2, end = count; end > 1;) { /* heapsort: the least on top */
        int32_t item;
        int64_t at;
        if (root > 0) at = --root, item = order[at];
        else {
            item = order[--end], order[end] = order[0], at = 0;
        }
        for (int64_t child; (child = 2 * at + 1) < end; at = child) {
            const int32_t *c = &order[child];
            if (child + 1 < end && (p[c[1]] < p[c[0]] || (p[c[1]] == p[c[0]] && c[1] > c[0])))
                child++, c++;
            if (p[item] < p[*c] || (p[item] == p[*c] && item > *c)) break;
            order[at] = *c;
        }
        order[at] = item;
    }
}

/* Of probabilities with the sum `sum`: the likeliest are kept, while those before reach less than
 * top_p of it. Tokens so unlikely that all of them together are left out are not sorted. */
static void zfl_keep_p(zf_sampler *s, double sum)
{
    double before = 0, least = sum * (1 - s->how.top_p) / (double)s->count;
    int64_t kept = 0;
    for (int64_t v = 0; v < s->count; v++) {
        if (s->p[v] >= least && s->p[v] > 0) s->order[kept++] = (int32_t)v;
        else s->p[v] = 0;
    }
    zfl_sort_best(s->order, kept, s->p);
    for (int64_t k = 0; k < kept; k++) {
        double p = s->p[s->order[k]];
        if (k && before >= s->how.top_p * sum) s->p[s->order[k]] = 0;
        before += p;
    }
}

static double zfl_sum_of(const zf_sampler *s)
{
    zfl_two sum[2] = {{0}}, p[2];
    for (int64_t v = 0; v < s->count; v += 4) {
        memcpy(p, s->p + v, sizeof p);
        sum[0] += p[0], sum[1] += p[1];
    }
    sum[0] += sum[1];
    return sum[0][0] + sum[0][1];
}

static void zfl_divide(zf_sampler *s, double sum)
{
    for (int64_t v = 0; v < s->count; v += 2) {
        zfl_two p;
        memcpy(&p, s->p + v, sizeof p);
        p /= sum;
        memcpy(s->p + v, &p, sizeof p);
    }
}

/* The first of the largest logits. */
static int32_t zfl_best_of(const float *logits, int64_t count)
{
    enum { TOGETHER = 8 };
    float most[TOGETHER], all = logits[0];
    int64_t v = 0;
    for (int k = 0; k < TOGETHER; k++) most[k] = all;
    for (; v + TOGETHER <= count; v += TOGETHER)
        for (int k = 0; k < TOGETHER; k++)
            most[k] = logits[v + k] > most[k] ? logits[v + k] : most[k];
    for (; v < count; v++) all = logits[v] > all ? logits[v] : all;
    for (int k = 0; k < TOGETHER; k++) all = most[k] > all ? most[k] : all;
    for (v = 0; v + 1 < count && logits[v] != all;) v++;
    return (int32_t)v;
}

/* Sets s->p to e^((logit - that of the best) / temperature). */
static void zfl_weigh(zf_sampler *s, const float *logits, double best)
{
    for (int64_t v = 0; v < s->count; v += 2) {
        const bool last = v + 1 == s->count;
        zfl_two x = {logits[v], last ? -INFINITY : logits[v + 1]};
        x = zfl_exp_two((x - best) / s->how.temperature);
        memcpy(s->p + v, &x, sizeof x);
    }
}

int32_t zf_sampler_draw(zf_sampler *s, float *logits, const int32_t *seen, int64_t seen_count,
                        uint64_t dice)
{
    int32_t best;
    double sum, at;
    if (s->how.repetition != 1) zfl_penalise(s, logits, seen, seen_count);
    best = zfl_best_of(logits, s->count);
    if (!(s->how.temperature > 0)) return best;
    zfl_weigh(s, logits, logits[best]);
    zfl_keep_k(s);
    if (s->how.top_p < 1) zfl_keep_p(s, zfl_sum_of(s));
    sum = zfl_sum_of(s);
    zfl_divide(s, sum);
    at = ldexp((double)(dice >> 11), -53);
    for (int64_t v = 0; v < s->count; v++) {
        at -= s->p[v];
        if (at < 0) return (int32_t)v;
    }
    return best;
}

/* A well-mixed number: different ones give different ones. */
static uint64_t zfl_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

double zf_sampler_logp(const zf_sampler *s, int32_t id)
{
    return s->how.temperature > 0 ? log(s->p[id]) : 0;
}

uint64_t zf_sampler_owner(const int32_t *prompt, size_t count, int64_t sample)
{
    const uint64_t own = zf_digest_bytes(ZF_DIGEST_START, prompt, count * sizeof *prompt);
    return zfl_mix(own + zfl_mix((uint64_t)sample));
}

uint64_t zf_sampler_owner_of(int64_t iteration, int64_t prompt, int64_t sample)
{
    const uint64_t own = zfl_mix((uint64_t)prompt + zfl_mix((uint64_t)iteration));
    return zfl_mix(own + zfl_mix((uint64_t)sample));
}

uint64_t zf_sampler_dice(uint64_t seed, uint64_t owner, int64_t place)
{
    return zfl_mix(seed + zfl_mix(owner + zfl_mix((uint64_t)place)));
}
