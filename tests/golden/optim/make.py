"""Optimizer goldens: sgd.safetensors and adamw.safetensors from torch.optim, lamb.safetensors and
lion.safetensors from timm (see lamb.py for the exact form of LAMB).

    pip install torch timm safetensors numpy
    python make.py

Each file holds K = 6 tensors, S = 10 steps and several cases that share them:

    p0.k            F32 [dims]      value of tensor k before the first step
    g.k             F32 [S,dims]    its gradients; step s (from 0) uses g.k[s]
    CASE.lr         F64 [S]         learning rate of each step
    CASE.hyper      F64 [n]         the rest, below
    CASE.p.k        F64 [S,dims]    value of tensor k after step s
    CASE.ratio.k    F64 [S]         lamb only: the trust ratio r that step s used

    sgd    hyper = momentum, nesterov (0 or 1), weight_decay
           g += wd p;  b = momentum b + g (b = 0 at first);  p -= lr (nesterov ? g + momentum b : b)
    adamw  hyper = beta1, beta2, eps, weight_decay
    lamb   hyper = beta1, beta2, eps, weight_decay, min_coeff, max_coeff
    lion   hyper = beta1, beta2, weight_decay

Weight decay applies to every tensor, whatever its rank. Every number in `lr` and `hyper` is exactly
a float, the arithmetic is in f64, and nothing is clipped: an implementation in f64 agrees to
rounding. Tensors: 0 to 2 are ordinary, of odd sizes; 3 is one element; 4 starts at zero; 5 never
has a gradient other than zero. At the end each file is recomputed with numpy from the formulas.
"""
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file

from lamb import bounded, lamb
from timm.optim.lion import Lion

HERE = pathlib.Path(__file__).parent
STEPS = 10
SHAPES = [(3, 5), (7,), (2, 3, 11), (1,), (4, 3), (9,)]


def f(x):
    """x rounded to a float, as a Python number."""
    return float(np.float32(x))


def inputs(seed, scales):
    rng = np.random.default_rng(seed)
    p0 = [(scale * rng.standard_normal(s)).astype(np.float32) for s, scale in zip(SHAPES, scales)]
    g = [rng.standard_normal((STEPS, *s)).astype(np.float32) for s in SHAPES]
    g[1] *= np.float32(1e-3)    # small enough for eps to matter
    g[2][4:6] = 0               # two steps without a gradient: the moments decay alone
    p0[4][:] = 0
    g[5][:] = 0
    return p0, g


def lrs(base):
    """A warm-up, then a decay: no two steps are alike."""
    return [f(base * min(s + 1, 4) / 4 * (1 - s / 20)) for s in range(STEPS)]


def run(p0, g, lr, make):
    """Values of every tensor after each step, in f64."""
    params = [torch.nn.Parameter(torch.tensor(p, dtype=torch.float64)) for p in p0]
    optimizer = make(params)
    out = [np.empty((STEPS, *p.shape)) for p in p0]
    for s in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = lr[s]
        for p, gk in zip(params, g):
            p.grad = torch.tensor(gk[s], dtype=torch.float64)
        optimizer.step()
        for o, p in zip(out, params):
            o[s] = p.detach().numpy()
    return out


def agree(name, got, expected):
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14, err_msg=name)


def sgd(p0, g):
    out = {}
    for name, hyper in {"plain": (0, 0, 0), "decay": (0, 0, f(0.1)), "momentum": (f(0.9), 0, 0),
                        "momentum_decay": (f(0.9), 0, f(0.1)),
                        "nesterov_decay": (f(0.9), 1, f(0.1))}.items():
        momentum, nesterov, wd = hyper
        lr = lrs(0.1)
        values = run(p0, g, lr, lambda ps: torch.optim.SGD(
            ps, lr=1, momentum=momentum, nesterov=bool(nesterov), weight_decay=wd, foreach=False))

        check = [np.empty_like(v) for v in values]
        for k, p in enumerate(p0):
            p, b = p.astype(np.float64), 0.0
            for s in range(STEPS):
                d = g[k][s] + wd * p
                b = momentum * b + d
                p = p - lr[s] * (d + momentum * b if nesterov else b)
                check[k][s] = p
        agree(f"sgd {name}", values, check)
        out |= case(name, lr, hyper, values)
    return out


def adamw(p0, g):
    out = {}
    for name, hyper in {"default": (f(0.9), f(0.999), f(1e-8), f(0.01)),
                        "no_decay": (f(0.9), f(0.999), f(1e-8), 0),
                        "large_eps": (f(0.8), f(0.95), f(1e-2), f(0.1))}.items():
        b1, b2, eps, wd = hyper
        lr = lrs(0.01)
        values = run(p0, g, lr, lambda ps: torch.optim.AdamW(
            ps, lr=1, betas=(b1, b2), eps=eps, weight_decay=wd, foreach=False))

        check = [np.empty_like(v) for v in values]
        for k, p in enumerate(p0):
            p, m, v = p.astype(np.float64), 0.0, 0.0
            for s in range(STEPS):
                d = g[k][s].astype(np.float64)
                m, v = b1 * m + (1 - b1) * d, b2 * v + (1 - b2) * d * d
                mh, vh = m / (1 - b1 ** (s + 1)), v / (1 - b2 ** (s + 1))
                p = p - lr[s] * (mh / (np.sqrt(vh) + eps) + wd * p)
                check[k][s] = p
        agree(f"adamw {name}", values, check)
        out |= case(name, lr, hyper, values)
    return out


def lambs(p0, g):
    out = {}
    usual = (f(0.9), f(0.999), f(1e-6), f(0.01))
    for name, hyper in {"unbounded": (*usual, f(1e-30), f(1e30)), "default": (*usual, f(0.01), 10),
                        "no_decay": (*usual[:3], 0, f(0.01), 10),
                        "narrow": (f(0.8), f(0.95), f(1e-3), f(0.1), f(0.01), f(0.3))}.items():
        b1, b2, eps, wd, lo, hi = hyper
        lr, seen = lrs(0.02), []
        with bounded(lo, hi, seen):
            values = run(p0, g, lr, lambda ps: lamb(ps, 1, (b1, b2), eps, wd))
        seen = np.array(seen).reshape(STEPS, len(SHAPES), 2)
        if name == "unbounded":    # the bounds must not have changed a bit
            assert all(map(np.array_equal, values, run(p0, g, lr, lambda ps: lamb(
                ps, 1, (b1, b2), eps, wd))))
        else:
            low, high = (seen[..., 0] < lo).sum(), (seen[..., 0] > hi).sum()
            assert low and high and (seen[..., 0] == seen[..., 1]).any(), (name, low, high)

        check = [np.empty_like(v) for v in values]
        for k, p in enumerate(p0):
            p, m, v = p.astype(np.float64), 0.0, 0.0
            for s in range(STEPS):
                d = g[k][s].astype(np.float64)
                m, v = b1 * m + (1 - b1) * d, b2 * v + (1 - b2) * d * d
                mh, vh = m / (1 - b1 ** (s + 1)), v / (1 - b2 ** (s + 1))
                u = mh / (np.sqrt(vh) + eps) + wd * p
                pn, un = np.linalg.norm(p), np.linalg.norm(u)
                r = min(max(pn / un, lo), hi) if pn > 0 and un > 0 else 1.0
                p = p - lr[s] * r * u
                check[k][s] = p
        agree(f"lamb {name}", values, check)
        out |= case(name, lr, hyper, values)
        out |= {f"{name}.ratio.{k}": seen[:, k, 1].copy() for k in range(len(SHAPES))}
    return out


def lions(p0, g):
    out = {}
    for name, hyper in {"default": (f(0.9), f(0.99), f(0.1)), "no_decay": (f(0.9), f(0.99), 0),
                        "equal_betas": (f(0.5), f(0.5), f(0.3))}.items():
        b1, b2, wd = hyper
        lr = lrs(0.01)
        values = run(p0, g, lr, lambda ps: Lion(ps, 1, betas=(b1, b2), weight_decay=wd,
                                                foreach=False))

        check = [np.empty_like(v) for v in values]
        for k, p in enumerate(p0):
            p, m = p.astype(np.float64), 0.0
            for s in range(STEPS):
                d = g[k][s].astype(np.float64)
                p = p - lr[s] * (np.sign(b1 * m + (1 - b1) * d) + wd * p)
                m = b2 * m + (1 - b2) * d
                check[k][s] = p
        agree(f"lion {name}", values, check)
        out |= case(name, lr, hyper, values)
    return out


def case(name, lr, hyper, values):
    return {f"{name}.lr": np.array(lr), f"{name}.hyper": np.array(hyper, dtype=np.float64),
            **{f"{name}.p.{k}": v for k, v in enumerate(values)}}


def main():
    ordinary = (1, 0.1, 1, 1, 1, 1)
    # For lamb, tensor 0 is large, 1 is tiny: their ratios leave the bounds on either side.
    for name, make, seed, scales in (("sgd", sgd, 1, ordinary), ("adamw", adamw, 2, ordinary),
                                     ("lamb", lambs, 3, (40, 1e-3, 1, 1, 1, 1)),
                                     ("lion", lions, 4, ordinary)):
        p0, g = inputs(seed, scales)
        tensors = {f"p0.{k}": p for k, p in enumerate(p0)} | {f"g.{k}": x for k, x in enumerate(g)}
        save_file(tensors | make(p0, g), HERE / f"{name}.safetensors")


if __name__ == "__main__":
    main()
