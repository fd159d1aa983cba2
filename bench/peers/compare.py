#!/usr/bin/env python3
"""zeroflow and PyTorch, the same BERT pretraining step, in turns on the same threads.

    make bench && pip install torch transformers safetensors numpy
    python bench/peers/compare.py --model mini --rounds 5
    python bench/peers/compare.py --model base --rounds 3 --steps 5

Each round runs build/bench/step, then torch_bert.py as configured best (AVX-512 products, jemalloc,
sdpa, fused AdamW), then torch_bert.py as installed. Prints each system's tokens/s per round, the
medians, and the ratios of the medians. Other work on the machine slows PyTorch down more than
zeroflow, so figures are only fair on a quiet machine: the load average is printed too.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
SHAPES = {"mini": (8192, 16), "base": (30522, 8), "large": (30522, 4)}    # vocabulary, batch


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])["tokens_per_s"]


def main():
    a = argparse.ArgumentParser(description="zeroflow and PyTorch in turns.")
    a.add_argument("--model", default="mini", choices=SHAPES)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--steps", type=int, default=15)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--step", default="build/bench/step", help="the zeroflow bench")
    o = a.parse_args()
    vocab, batch = SHAPES[o.model]
    sizes = ["--model", o.model, "--vocab", vocab, "--batch", batch, "--seq", 128, "--threads", o.threads,
             "--steps", o.steps]
    torch = [sys.executable, HERE / "torch_bert.py", *sizes]
    systems = {
        "zeroflow": [o.step, *sizes, "--json"],
        "PyTorch, tuned": torch,
        "PyTorch, as installed": [*torch, "--mkl", "native", "--malloc", "plain"],
    }
    speeds = {name: [] for name in systems}
    print(f"BERT-{o.model}, batch {batch} x 128, vocabulary {vocab}, {o.threads} threads, f32")
    for n in range(o.rounds):
        for name, command in systems.items():
            speeds[name].append(run([str(word) for word in command]))
        print(f"round {n + 1}: " + ", ".join(f"{name} {s[-1]:.0f}" for name, s in speeds.items())
              + f" tokens/s; load {os.getloadavg()[0]:.1f}", flush=True)
    ours = statistics.median(speeds["zeroflow"])
    for name, s in speeds.items():
        print(f"{name:24s}{statistics.median(s):8.0f} tokens/s   zeroflow is {ours / statistics.median(s):.2f} times")


if __name__ == "__main__":
    main()
