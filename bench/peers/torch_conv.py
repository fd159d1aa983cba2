#!/usr/bin/env python3
"""Convolutions in PyTorch on the CPU, which are oneDNN's, in milliseconds and GFLOP/s.

    pip install torch numpy
    python torch_conv.py --threads 2

The shapes are those of the rows of build/bench/ops that are called conv. A figure is the median of
--rounds calls, in PyTorch's usual layout and in channels_last, after a first call; the better one is
that to compare with. Prints one JSON object.
"""
import argparse
import json
import math
import statistics
import time

import tuned

# name, dtype, x, weight, groups
SHAPES = [
    ("conv 3x3, 64 channels, f32", "float32", (16, 64, 56, 56), (64, 64, 3, 3), 1),
    ("conv 3x3, 64 channels", "bfloat16", (16, 64, 56, 56), (64, 64, 3, 3), 1),
    ("conv 3x3, depthwise, f32", "float32", (16, 256, 28, 28), (256, 1, 3, 3), 256),
    ("conv1d 3, 80 to 384, f32", "float32", (4, 80, 3000), (384, 80, 3), 1),
]


def main():
    a = argparse.ArgumentParser(description="Convolutions in PyTorch on the CPU.")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--rounds", type=int, default=10)
    a.add_argument("--dtype", choices=["float32", "bfloat16"], help="those of this dtype alone")
    tuned.add_options(a)
    args = a.parse_args()
    settings = tuned.restart(args.threads, args.malloc, args.mkl)

    import torch
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(1)

    def milliseconds(run):
        times = []
        run()
        for _ in range(args.rounds):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1e3

    rows = []
    for name, dtype, x_shape, w_shape, groups in SHAPES:
        if args.dtype not in (None, dtype):
            continue
        flops = 2 * x_shape[0] * math.prod(x_shape[2:]) * math.prod(w_shape)
        sizes = len(x_shape) - 2
        for layout in ("contiguous_format", "channels_last")[:sizes]:
            form = dict(memory_format=getattr(torch, layout))
            x = torch.randn(*x_shape).to(getattr(torch, dtype)).contiguous(**form)
            w = torch.randn(*w_shape).to(getattr(torch, dtype)).contiguous(**form)
            dy = torch.randn(x_shape[0], w_shape[0], *x_shape[2:]).to(x.dtype).contiguous(**form)
            ones = [1] * sizes
            conv = getattr(torch.nn.functional, f"conv{sizes}d")
            runs = {"conv": lambda: conv(x, w, padding=1, groups=groups)}
            for which in range(2):
                runs[("conv_grad_x", "conv_grad_w")[which]] = (
                    lambda which=which: torch.ops.aten.convolution_backward(
                        dy, x, w, None, ones, ones, ones, False, [0] * sizes, groups,
                        [which == 0, which == 1, False]))
            with torch.no_grad():
                for kind, run in runs.items():
                    ms = milliseconds(run)
                    rows.append({"name": name, "kind": kind, "layout": layout, "ms": ms,
                                 "gflops": flops / ms / 1e6})
    print(json.dumps({"torch": torch.__version__, **settings, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
