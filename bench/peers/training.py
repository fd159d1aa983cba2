#!/usr/bin/env python3
"""BERT pretraining steps of zeroflow and of PyTorch, in turns: speed, share of the peak, where time
and memory go, and what each fusion is worth.

    make bench && pip install torch transformers safetensors numpy
    python bench/peers/training.py                                   # everything: about an hour
    python bench/peers/training.py --models mini --seqs 128 --dtypes f32 --rounds 5
    python bench/peers/training.py --models base --fusions --no-torch

For each model, length and precision a round runs build/bench/step, which measures the peak of this
machine before and after each of its steps (multiply-adds in registers; of bf16 its dot products),
then PyTorch tuned (tuned.py) in eager mode and compiled; bf16 is autocast there. Printed are
medians over the rounds: tokens/s, the share of the peak that the model's products make, the ratios;
of zeroflow's last round milliseconds by operator and megabytes by kind, and peak resident bytes of
both. --fusions adds a turn with each rewrite of zf_fuse left out, and one with none.

Figures are only fair on a quiet machine: the load average is printed too.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
VOCAB = {"mini": 8192, "base": 30522, "large": 30522}
BATCH = {("mini", 128): 16, ("mini", 512): 4, ("base", 128): 8, ("base", 512): 2,
         ("large", 128): 4, ("large", 512): 1}


def output(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def result(command):
    return json.loads(output(command).strip().splitlines()[-1])


def measure(o, model, seq, dtype):
    sizes = ["--model", model, "--vocab", VOCAB[model], "--batch", BATCH[model, seq], "--seq", seq,
             "--threads", o.threads, "--steps", o.steps]
    ours = [o.step, *sizes, "--precision", dtype, "--json", "--profile", "--peak"]
    theirs = [sys.executable, HERE / "torch_bert.py", *sizes, "--dtype", dtype]
    systems = {"zeroflow": ours}
    for mode in o.torch:
        systems[f"PyTorch {mode}"] = [*theirs, "--mode", mode] if mode != "installed" else \
            [*theirs, "--mkl", "native", "--malloc", "plain"]
    if o.fusions:
        systems["without fusion"] = [*ours, "--no-fuse", "all"]
        for name in o.names:
            systems[f"without {name}"] = [*ours, "--no-fuse", name]
    print(f"\nBERT-{model}, batch {BATCH[model, seq]} x {seq}, vocabulary {VOCAB[model]}, {dtype}, "
          f"{o.threads} threads; load {os.getloadavg()[0]:.1f}")
    results = {name: [] for name in systems}
    for _ in range(o.rounds):
        for name, command in systems.items():
            results[name].append(result(command))
    speed = {name: statistics.median(r["tokens_per_s"] for r in rs) for name, rs in results.items()}
    mine = results["zeroflow"]
    print("zeroflow: %.0f of %.0f GFLOP/s; %.3f of the peak around each step" % tuple(
        statistics.median(r[key] for r in mine) for key in ("gflops", "peak_gflops", "peak_share")))
    for name in systems:
        line = f"  {name:24s}{speed[name]:9.0f} tokens/s"
        if name != "zeroflow":
            ratio = statistics.median(a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(mine, results[name]))
            line += f"   zeroflow is {ratio:.2f} times"
        if "peak_rss_bytes" in results[name][-1]:
            line += f"   {results[name][-1]['peak_rss_bytes'] / 2**20:.0f} MiB resident"
        print(line)
    total = sum(mine[-1]["ms"].values())
    print("  ms by operator: " + ", ".join(f"{op} {ms:.1f}" for op, ms in sorted(
        mine[-1]["ms"].items(), key=lambda item: -item[1]) if ms > 0.005 * total))
    print("  MB by kind: " + ", ".join(f"{kind} {n / 1e6:.1f}" for kind, n in mine[-1]["bytes"].items())
          + f"; plan {mine[-1]['peak_bytes'] / 1e6:.1f}", flush=True)


def main():
    a = argparse.ArgumentParser(description="BERT pretraining steps of zeroflow and of PyTorch, in turns.")
    a.add_argument("--models", default="mini,base,large")
    a.add_argument("--seqs", default="128,512")
    a.add_argument("--dtypes", default="f32,bf16")
    a.add_argument("--torch", default="eager,compile", help="of eager, compile (both tuned), installed")
    a.add_argument("--no-torch", action="store_true")
    a.add_argument("--fusions", action="store_true", help="each of them left out in turn")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--steps", type=int, default=8)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--step", default="build/bench/step")
    o = a.parse_args()
    o.torch = [] if o.no_torch else o.torch.split(",")
    o.names = output([o.step, "--fusions"]).split() if o.fusions else []
    for model in o.models.split(","):
        for seq in map(int, o.seqs.split(",")):
            for dtype in o.dtypes.split(","):
                measure(o, model, seq, dtype)


if __name__ == "__main__":
    main()
