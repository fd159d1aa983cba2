"""Losses over judgements in float64: losses.safetensors.

    pip install torch numpy safetensors
    python make.py

Inputs have numbers of f32 (and -100 in labels where a token is not of an answer, where the others have
numbers that must not matter). Of each case: CASE.loss, CASE.losses and CASE.grad, the gradient of the
loss with respect to log p, or to scores. The formulas are written down here as in the papers and in TRL,
line by line; nothing is taken from the library.
"""

import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file

torch.set_default_dtype(torch.float64)
F = torch.nn.functional
rng = np.random.default_rng(30)
LENGTHS = [5, 3, 1, 7, 4, 4, 7, 2]  # of answers; chosen and rejected in turns
FIRST = [1, 2, 6, 0, 3, 0, 0, 5]  # column of the first token of the answer
TEXTS, TOKENS = 8, 7
PAIRS = TEXTS // 2
out = {}


def f32(x):
    return np.asarray(x, dtype=np.float32).astype(np.float64)


def keep(name, x):
    out[name] = np.ascontiguousarray(np.asarray(x, dtype=np.float64))


labels = np.full((TEXTS, TOKENS), -100, dtype=np.int32)
for i, (n, at) in enumerate(zip(LENGTHS, FIRST)):
    labels[i, at : at + n] = rng.integers(0, 50, n)
out["labels"] = labels
mask = torch.tensor(labels != -100)
m = mask.double()
n = m.sum(1)

inputs = {
    "logp": -rng.exponential(1.5, (TEXTS, TOKENS)) - 0.01,
    "reference": -rng.exponential(1.5, (TEXTS, TOKENS)) - 0.01,
    "pair_weight": rng.uniform(0, 0.5, PAIRS),
    "score": rng.normal(0, 2, TEXTS),
    "scores": rng.normal(0, 2, (TEXTS, TOKENS)),
    "margin": rng.uniform(0, 1, PAIRS),
}
inputs["old"] = inputs["logp"] + rng.normal(0, 0.35, (TEXTS, TOKENS))
inputs["advantage"] = rng.normal(0.5, 1, (TEXTS, 1))
inputs["advantages"] = rng.normal(0.5, 1, (TEXTS, TOKENS))
inputs["correction"] = rng.uniform(0.5, 2, (TEXTS, TOKENS))
inputs["value"] = rng.normal(0, 1, (TEXTS, TOKENS))
inputs["old_value"] = inputs["value"] + rng.normal(0, 0.3, (TEXTS, TOKENS))
inputs["returns"] = rng.normal(0, 1, (TEXTS, TOKENS))
inputs = {k: f32(v) for k, v in inputs.items()}
for k in ("reference", "old", "advantages", "correction", "old_value", "returns"):
    inputs[k][labels == -100] = np.nan
for k, v in inputs.items():
    keep(k, v)


def given(name):
    return torch.tensor(inputs[name])


def case(name, of, by):
    """by: log p or scores -> (loss, losses), or with where the gradient of a ratio is cut."""
    x = given(of).requires_grad_()
    loss, losses, *cut = by(x)
    if cut:
        keep(name + ".clipped", (cut[0].expand(TEXTS, TOKENS) & mask).double())
    (grad,) = torch.autograd.grad(loss, x)
    keep(name + ".loss", loss.detach().reshape(1))
    keep(name + ".losses", losses.detach())
    keep(name + ".grad", grad)


# ------------------------------------------------------------------------------------ preferences


def preference(kind, beta, smoothing=0.0, gamma=0.5, weighted=False):
    def by(logp):
        d = torch.where(mask, logp - given("reference"), 0.0)
        p = torch.where(mask, logp, 0.0)
        sums, means, plain = d.sum(1), d.sum(1) / n, p.sum(1) / n
        s = {"ipo": means, "norm": means, "orpo": plain, "simpo": plain}.get(kind, sums)
        w, l = s[0::2], s[1::2]
        if kind in ("sigmoid", "norm"):
            losses = (
                -F.logsigmoid(beta * (w - l)) * (1 - smoothing)
                - F.logsigmoid(-beta * (w - l)) * smoothing
            )
        elif kind == "robust":
            losses = (
                -F.logsigmoid(beta * (w - l)) * (1 - smoothing)
                + F.logsigmoid(-beta * (w - l)) * smoothing
            ) / (1 - 2 * smoothing)
        elif kind == "hinge":
            losses = torch.relu(1 - beta * (w - l))
        elif kind == "ipo":
            losses = ((w - l) - 1 / (2 * beta)) ** 2
        elif kind == "simpo":
            x = beta * (w - l - gamma / beta)
            losses = -F.logsigmoid(x) * (1 - smoothing) - F.logsigmoid(-x) * smoothing
        elif kind == "orpo":
            odds = (w - l) - (torch.log1p(-torch.exp(w)) - torch.log1p(-torch.exp(l)))
            losses = -w - beta * F.logsigmoid(odds)
        return (losses * given("pair_weight")).sum() if weighted else losses.mean(), losses

    return by


for kind in ("sigmoid", "ipo", "hinge", "robust", "norm", "orpo", "simpo"):
    case(kind, "logp", preference(kind, 0.3, 0.1 if kind == "robust" else 0.0))
case("sigmoid_weighted", "logp", preference("sigmoid", 0.1, 0.2, weighted=True))
case("hinge_weighted", "logp", preference("hinge", 0.1, weighted=True))
case("simpo_smoothed", "logp", preference("simpo", 2.0, 0.1, 1.5))

# ---------------------------------------------------------------------------------------- rewards


def pairs(center=0.0, margin=0.0):
    def by(score):
        chosen, rejected = score[0::2], score[1::2]
        losses = -F.logsigmoid(chosen - rejected - margin) + center * (chosen + rejected) ** 2
        return losses.mean(), losses

    return by


case("pair", "score", pairs())
case("pair_center", "score", pairs(0.01, given("margin")))

# DeepSpeed-Chat: ids of chosen and rejected texts, padded with 0; the mean over the positions from the
# first difference to the later end.
IDS = [
    ([4, 5, 6, 7, 8], [4, 5, 9]),
    ([1, 2, 3], [1, 2, 3, 4, 5, 6, 7]),
    ([3, 3, 3, 3], [3, 3, 3, 3]),
    ([2, 8], [5, 8]),
]


def positions(scores):
    total, weight = 0, torch.zeros(PAIRS, TOKENS)
    for k, (c, r) in enumerate(IDS):
        c_ids = torch.tensor(c + [0] * (TOKENS - len(c)))
        r_ids = torch.tensor(r + [0] * (TOKENS - len(r)))
        differ = (c_ids != r_ids).nonzero()
        end = max(len(c), len(r))
        first = int(differ[0]) if len(differ) else end - 1
        d = scores[2 * k][first:end] - scores[2 * k + 1][first:end]
        total = total - F.logsigmoid(d).mean()
        weight[k, first:end] = 1 / (end - first) / PAIRS
    keep("pair_positions.weight", weight)
    return total / PAIRS, -F.logsigmoid(scores[0::2] - scores[1::2])


case("pair_positions", "scores", positions)

# ---------------------------------------------------------------------------------------- actors

LONGEST = 12


def mean_of(kind, losses):
    """What TRL does with losses of tokens, with counts of the global batch."""
    losses = torch.where(mask, losses, 0.0)
    if kind in ("grpo", "gspo"):
        return (losses.sum(1) / n).mean()
    if kind == "dr_grpo":
        return losses.sum() / (TEXTS * LONGEST)
    return losses.sum() / m.sum()


def policy(kind, low=0.2, high=0.2, dual=None, cap=5.0, kl=None, beta=0.0, first=False,
           advantage="advantage", corrected=False):
    def by(logp):
        old = logp.detach() if first else torch.where(mask, given("old"), 0.0)
        a = torch.nan_to_num(given(advantage))
        q = torch.where(mask, logp - old, 0.0)
        if kind == "gspo":
            q = (q.sum(1) / n)[:, None]
        rho = torch.exp(q)
        if kind == "cispo":
            losses = -torch.clamp(rho, max=cap).detach() * a * logp
            cut = rho > cap
        else:
            losses = torch.max(-a * rho, -a * torch.clamp(rho, 1 - low, 1 + high))
            cut = ((rho > 1 + high) & (a > 0)) | ((rho < 1 - low) & (a < 0))
            if dual:
                cut = cut | ((a < 0) & (rho > dual))
                losses = torch.where(a < 0, torch.min(losses, -a * dual), losses)
        if corrected:
            losses = losses * torch.nan_to_num(given("correction"))
        d = torch.where(mask, logp - torch.where(mask, given("reference"), 0.0), 0.0)
        if kl == "k1":
            losses = losses + beta * d
        if kl == "k2":
            losses = losses + beta * d**2 / 2
        if kl == "k3":
            losses = losses + beta * (torch.exp(-d) + d - 1)
        losses = torch.where(mask, losses.expand(TEXTS, TOKENS), 0.0)
        return mean_of(kind, losses), losses, cut

    return by


for kind in ("grpo", "bnpo", "dr_grpo", "gspo"):
    case(kind, "logp", policy(kind))
case("dapo", "logp", policy("dapo", high=0.28))
case("cispo", "logp", policy("cispo", cap=1.1))
case("dual", "logp", policy("grpo", dual=1.25))
for kl in ("k1", "k2", "k3"):
    case("grpo_" + kl, "logp", policy("grpo", kl=kl, beta=0.04))
case("first", "logp", policy("bnpo", first=True))
case("tokens", "logp", policy("bnpo", advantage="advantages", corrected=True, kl="k3", beta=0.1))


def critic(clip):
    def by(value):
        old, returns = (torch.nan_to_num(given(k)) for k in ("old_value", "returns"))
        clipped = torch.clamp(value, old - clip, old + clip) if clip else value
        losses = 0.5 * torch.max((value - returns) ** 2, (clipped - returns) ** 2)
        losses = torch.where(mask, losses, 0.0)
        return mean_of("bnpo", losses), losses, (clipped - returns).abs() > (value - returns).abs()

    return by


case("critic", "value", critic(0.2))
case("critic_unclipped", "value", critic(None))

# ------------------------------------------------------------------------------- numbers of a batch

rewards = rng.normal(0, 2, 12)
rewards[4] = rewards[7] = rewards[1] = 0.95
rewards[5] = np.nan
group = np.array([0, 1, 2, 0, 1, 2, 2, 1, 0, 2, 3, 4], dtype=np.int32)  # of interleaved prompts
out["group"] = group
keep("rewards", rewards)
advantages = {k: np.zeros(12) for k in ("group", "mean", "rloo")}
for g in range(5):
    at = np.flatnonzero((group == g) & ~np.isnan(rewards))
    r = torch.tensor(rewards[at])
    if len(at) < 2 or bool((r == r[0]).all()):
        continue
    advantages["group"][at] = (r - r.mean()) / (r.std() + 1e-4)
    advantages["mean"][at] = r - r.mean()
    advantages["rloo"][at] = r - (r.sum() - r) / (len(at) - 1)
for k, v in advantages.items():
    keep("advantage." + k, v)


def token_rewards(beta, clip):
    r = np.where(labels != -100, -beta * (inputs["logp"] - inputs["reference"]), 0.0)
    for i in range(TEXTS):
        r[i, FIRST[i] + LENGTHS[i] - 1] += np.clip(rewards_of_texts[i], -clip, clip)
    return r


def gae(r, v, gamma, lam):
    a, returns = np.zeros_like(r), np.zeros_like(r)
    for i in range(TEXTS):
        span = range(FIRST[i], FIRST[i] + LENGTHS[i])
        for t in span:  # from the definition: a sum of discounted deltas
            for s in range(t, span.stop):
                after = v[i, s + 1] if s + 1 < span.stop else 0.0
                a[i, t] += (gamma * lam) ** (s - t) * (r[i, s] + gamma * after - v[i, s])
            returns[i, t] = a[i, t] + v[i, t]
    return a, returns


rewards_of_texts = f32(rng.normal(0, 4, TEXTS))
keep("score_of_texts", rewards_of_texts)
shaped = token_rewards(0.1, 3.0)
keep("token_rewards", shaped)
a, returns = gae(shaped, inputs["value"], 0.97, 0.9)
keep("gae.advantage", a)
keep("gae.returns", returns)


def chat_experience(beta, clip, gamma, lam):
    """DeepSpeed-Chat's compute_rewards and get_advantages_and_returns for texts of which each begins in a
    column of its own. The action after an answer has no KL divergence: its token would be padding."""
    rewards, values = np.zeros((TEXTS, TOKENS)), np.zeros((TEXTS, TOKENS))
    advantages, returns = np.zeros((TEXTS, TOKENS)), np.zeros((TEXTS, TOKENS))
    for j in range(TEXTS):
        start, count = FIRST[j], LENGTHS[j]
        ends = min(start + count + 1, TOKENS)
        for t in range(start, start + count):
            rewards[j, t] = -beta * (inputs["logp"][j, t] - inputs["reference"][j, t])
        rewards[j, ends - 1] += np.clip(rewards_of_texts[j], -clip, clip)
        values[j, start:ends] = inputs["value"][j, start:ends]
        lastgaelam = 0
        for t in reversed(range(start, TOKENS)):
            nextvalues = values[j, t + 1] if t < TOKENS - 1 else 0.0
            delta = rewards[j, t] + gamma * nextvalues - values[j, t]
            lastgaelam = delta + gamma * lam * lastgaelam
            if t < start + count:
                advantages[j, t] = lastgaelam
                returns[j, t] = lastgaelam + values[j, t]
    return rewards, advantages, returns


for name, x in zip(("rewards", "advantage", "returns"), chat_experience(0.1, 3.0, 0.97, 0.9)):
    keep("chat." + name, x)
plus, _ = gae(shaped, np.zeros_like(shaped), 1.0, 1.0)
keep("reinforce.advantage", plus)
white = np.zeros_like(plus)
x = torch.tensor(plus[labels != -100])
white[labels != -100] = (x - x.mean()) / torch.sqrt(x.var() + 1e-8)
keep("reinforce.whitened", white)

sampled = inputs["old"] + rng.normal(0, 0.5, (TEXTS, TOKENS))
sampled[3, 2] = np.nan  # not known
keep("sampled", sampled)
w = np.where(labels != -100, np.exp(np.nan_to_num(inputs["old"] - sampled)), 0.0)
whole = np.exp(np.where(labels != -100, np.nan_to_num(inputs["old"] - sampled), 0.0).sum(1))
answers = (labels != -100).astype(float)
keep("correction.truncate", np.clip(w, 0.8, 1.5) * answers)
keep("correction.mask", np.where((w < 0.8) | (w > 1.5), 0.0, w))
keep("correction.sequence", np.where((whole < 0.8) | (whole > 1.5), 0.0, whole)[:, None] * answers)

save_file(out, str(pathlib.Path(__file__).parent / "losses.safetensors"))
