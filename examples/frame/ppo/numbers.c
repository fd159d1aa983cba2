#include "numbers.h"

#include <math.h>

static bool is_answer(const zf_answers *a, int64_t at) { return a->labels[at] != -100; }

double ppo_explained(const zf_answers *a, const double *value, const double *returns)
{
    const int64_t cells = a->texts * a->tokens;
    double n = 0, mean = 0, miss = 0, all = 0, left = 0;
    for (int64_t k = 0; k < cells; k++)
        if (is_answer(a, k)) mean += returns[k], miss += returns[k] - value[k], n++;
    if (n > 0) mean /= n, miss /= n;
    for (int64_t k = 0; k < cells; k++) {
        if (!is_answer(a, k)) continue;
        all += (returns[k] - mean) * (returns[k] - mean);
        left += (returns[k] - value[k] - miss) * (returns[k] - value[k] - miss);
    }
    return all > 0 ? 1 - left / all : NAN;
}

double ppo_kl(const zf_answers *a, const double *logp, const double *reference)
{
    double sum = 0, n = 0;
    for (int64_t k = 0; k < a->texts * a->tokens; k++)
        if (is_answer(a, k)) sum += logp[k] - reference[k], n++;
    return n > 0 ? sum / n : 0;
}

double ppo_beta(double beta, double kl, double target, int64_t answers, int64_t horizon)
{
    double miss;
    if (!(target > 0)) return beta;
    miss = kl / target - 1;
    if (miss > 0.2) miss = 0.2;
    if (miss < -0.2) miss = -0.2;
    return beta * (1 + miss * (double)answers / (double)horizon);
}
