"""Rates of DeepSpeed's learning rate schedules: those that its optimizer has in each of 2,000 steps.

    make.py DeepSpeed-0.19.8/deepspeed/runtime/lr_schedules.py

runs that file, with the two names that it imports from its package, and writes rates.safetensors.
tests/training/nn.c has the same arguments.
"""
import sys
import types

import numpy
import torch
from safetensors.numpy import save_file

STEPS = 2000


def load(path):
    source = open(path).read()
    package, utils = types.ModuleType("deepspeed"), types.ModuleType("deepspeed.utils")
    utils.logger = types.SimpleNamespace(warning=lambda *a: None, info=lambda *a: None)
    sys.modules["deepspeed"], sys.modules["deepspeed.utils"] = package, utils
    module = types.ModuleType("lr_schedules")
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def rates(make):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    schedule = make(optimizer)
    out = []
    for _ in range(STEPS):
        out.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    return numpy.array(out, dtype=numpy.float64)


m = load(sys.argv[1])
save_file({
    "warmup_log": rates(lambda o: m.WarmupLR(o, 1e-6, 2e-3, 700)),
    "warmup_linear": rates(lambda o: m.WarmupLR(o, 1e-6, None, 333, "linear")),
    "decay": rates(lambda o: m.WarmupDecayLR(o, 1500, 1e-5, 1e-3, 100)),
    "cosine": rates(lambda o: m.WarmupCosineLR(o, 1900, 0.1, 150, 0.01)),
    "cosine_linear": rates(lambda o: m.WarmupCosineLR(o, 2500, 0, 1, 1e-4, "linear")),
    "cycle": rates(lambda o: m.OneCycle(o, 1e-4, 1e-3, 0.01, 300, 517, decay_step_size=7,
                                        cycle_momentum=False)),
    "range": rates(lambda o: m.LRRangeTest(o, 1e-4, 13, 0.7)),
    "range_stairs": rates(lambda o: m.LRRangeTest(o, 1e-4, 200, 5.0, True)),
}, __file__.replace("make.py", "rates.safetensors"))
