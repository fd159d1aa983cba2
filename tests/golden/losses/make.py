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
inputs = {k: f32(v) for k, v in inputs.items()}
inputs["reference"][labels == -100] = 7
for k, v in inputs.items():
    keep(k, v)


def given(name):
    return torch.tensor(inputs[name])


def case(name, of, by):
    """by: log p or scores -> (loss, losses)."""
    x = given(of).requires_grad_()
    loss, losses = by(x)
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

save_file(out, str(pathlib.Path(__file__).parent / "losses.safetensors"))
