"""Two trainings over one set of parameters: a GAN, and an actor and critic with a common trunk.

    pip install torch safetensors numpy
    python make.py

trainings.safetensors holds F64 tensors, of each CASE (gan, actor, grouped,
mixed):

    CASE.losses     [STEPS,2]   the two losses of each step, each before its own update
    CASE.p.NAME     [dims]      the parameter after all steps
    gan.e.NAME      [dims]      its average, by torch.optim.swa_utils' function, of decay 0.875

Each training has an optimizer of its own, torch.optim.AdamW, with its own count of steps and
moments, also for parameters that both train; those of `mixed` have torch.optim.SGD for some
parameters, and clip the gradients of all. All is in f64, from numbers that are exactly floats;
tests/training/trainings.c has the same formulas for first values and data.
"""
import pathlib

import torch
from safetensors.torch import save_file
from torch.nn.functional import log_softmax, softplus

STEPS, ROWS = 10, 8
tensors = {}
torch.set_default_dtype(torch.float64)


def first(k, *shape):
    """The first values of parameter k."""
    i = torch.arange(int(torch.tensor(shape).prod()))
    return (((i * 17 + k * 7) % 23 - 11) / 32).reshape(shape).requires_grad_()


def data(step, which, *shape):
    i = torch.arange(int(torch.tensor(shape).prod()))
    return (((i * 37 + step * 11 + which * 5) % 29 - 14) / 16).reshape(shape)


def adamw(params, lr, betas, decay=0.0):
    groups = [{"params": [p for p in params if p.dim() > 1], "weight_decay": decay},
              {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=betas, eps=1e-8)


def gan():
    p = {"gen.w0": first(0, 4, 6), "gen.b0": first(1, 6), "gen.w1": first(2, 6, 3),
         "critic.w0": first(3, 3, 6), "critic.b0": first(4, 6), "critic.w1": first(5, 6, 1)}

    def generate(z):
        return torch.tanh(z @ p["gen.w0"] + p["gen.b0"]) @ p["gen.w1"]

    def judge(x):
        return torch.tanh(x @ p["critic.w0"] + p["critic.b0"]) @ p["critic.w1"]

    gen = adamw([v for k, v in p.items() if k.startswith("gen")], 0.0078125, (0.5, 0.9375))
    critic = adamw([v for k, v in p.items() if k.startswith("critic")], 0.015625, (0.5, 0.9375))
    losses = torch.zeros(STEPS, 2)
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.875)
    averages = {k: v.detach().clone() for k, v in p.items()}

    def follow(of):
        names = [k for k in p if k.startswith(of)]
        average([averages[k] for k in names], [p[k].detach() for k in names], None)

    for step in range(STEPS):
        z, real = data(step, 0, ROWS, 4), data(step, 1, ROWS, 3)
        loss = (softplus(-judge(real)).sum() + softplus(judge(generate(z).detach())).sum()) / ROWS
        critic.zero_grad(), loss.backward(), critic.step(), follow("critic")
        losses[step, 0] = loss.detach()
        loss = softplus(-judge(generate(z))).sum() / ROWS
        gen.zero_grad(), loss.backward(), gen.step(), follow("gen")
        losses[step, 1] = loss.detach()
    tensors.update({f"gan.e.{k}": v for k, v in averages.items()})
    return losses, p


class Both:
    """Two optimizers over disjoint parameters, after the gradients of all have been clipped."""

    def __init__(self, *parts):
        self.parts = parts

    def zero_grad(self):
        [part.zero_grad() for part in self.parts]

    def step(self):
        torch.nn.utils.clip_grad_norm_([p for part in self.parts for group in part.param_groups
                                        for p in group["params"]], 0.5)
        [part.step() for part in self.parts]


def actor(optimizers):
    p = {"trunk.w": first(6, 4, 6), "trunk.b": first(7, 6), "policy.w": first(8, 6, 3),
         "value.w": first(9, 6, 1)}
    critic, policy = optimizers(p)
    losses = torch.zeros(STEPS, 2)
    for step in range(STEPS):
        s, reward = data(step, 2, ROWS, 4), data(step, 3, ROWS, 1)
        taken = torch.eye(3)[(torch.arange(ROWS) * 5 + step) % 3]

        def trunk():
            return torch.tanh(s @ p["trunk.w"] + p["trunk.b"])

        loss = ((trunk() @ p["value.w"] - reward) ** 2).sum() / ROWS
        critic.zero_grad(), loss.backward(), critic.step()
        losses[step, 0] = loss.detach()
        h = trunk()
        advantage = (reward - h @ p["value.w"]).detach()
        loss = -(log_softmax(h @ p["policy.w"], -1) * taken * advantage).sum() / ROWS
        policy.zero_grad(), loss.backward(), policy.step()
        losses[step, 1] = loss.detach()
    return losses, p


def plain(p):
    return (adamw([p["trunk.w"], p["trunk.b"], p["value.w"]], 0.015625, (0.75, 0.9375)),
            adamw([p["trunk.w"], p["trunk.b"], p["policy.w"]], 0.0078125, (0.875, 0.96875), 0.0625))


def grouped(p):
    """The same with groups; tests/training/trainings.c has them as a text."""
    def group(name, lr, betas, decay):
        return {"params": [p[name]], "lr": lr, "betas": betas, "weight_decay": decay}

    return (torch.optim.AdamW([group("trunk.w", 0.015625 / 2, (0.5, 0.9375), 0.0625),
                               group("trunk.b", 0.015625 * 2, (0.5, 0.9375), 0.125),
                               group("value.w", 0.015625, (0.75, 0.9375), 0.0625)], eps=1e-8),
            torch.optim.AdamW([group("trunk.w", 0.0078125, (0.875, 0.5), 0.0),
                               group("policy.w", 0.0078125 / 4, (0.875, 0.96875), 0.0625)], eps=1e-8))


def mixed(p):
    """AdamW for some parameters, SGD for the others."""
    slower, betas = {"params": [p["trunk.w"]], "lr": 0.015625 / 2}, (0.75, 0.9375)
    return (Both(torch.optim.AdamW([slower, {"params": [p["trunk.b"]]}], lr=0.015625, betas=betas,
                                   eps=1e-8, weight_decay=0),
                 torch.optim.SGD([p["value.w"]], lr=0.015625, momentum=0.75, weight_decay=0.125)),
            Both(adamw([p["trunk.b"], p["policy.w"]], 0.0078125, (0.875, 0.96875), 0.0625),
                 torch.optim.SGD([p["trunk.w"]], lr=0.0078125 / 2, momentum=0.75)))


cases = {"gan": gan(), "actor": actor(plain), "grouped": actor(grouped),
         "mixed": actor(mixed)}
for name, (losses, params) in cases.items():
    tensors[f"{name}.losses"] = losses
    tensors |= {f"{name}.p.{k}": v.detach().contiguous() for k, v in params.items()}
    print(name, losses[-1].tolist())
save_file(tensors, pathlib.Path(__file__).parent / "trainings.safetensors")
