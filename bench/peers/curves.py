#!/usr/bin/env python3
"""Losses of twenty steps of BERT-mini in zeroflow and in PyTorch, f32 and bf16, as a table and a plot.

    make build/bert && pip install torch transformers safetensors numpy
    python bench/peers/curves.py --svg curves.svg

Both start from the same weights, take the same batches (16 x 128, 19 labels in each example) with
AdamW, clipping and no dropout. PyTorch's bf16 is autocast over f32 weights, zeroflow's is bf16
weights and gradients over f32 master weights. Printed is the loss of every step, and for each
precision the largest difference between the two; f32 of zeroflow is also compared with its bf16.
"""
import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import ranks

HERE = pathlib.Path(__file__).parent
COLOURS = {"zeroflow f32": "#1f77b4", "PyTorch f32": "#ff7f0e", "zeroflow bf16": "#2ca02c",
           "PyTorch bf16": "#d62728"}


def output(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def zeroflow(o, folder, dtype):
    log = folder / "log.csv"
    output([o.bert, "pretrain", "--model", folder / "config.json", "--init", folder / "init.safetensors",
            "--batch-file", folder / "batch.safetensors", "--steps", o.steps, "--schedule", "constant",
            "--warmup", 0, "--lr", o.lr, "--precision", dtype, "--threads", o.threads, "--log", log, "--quiet"])
    return [float(row["loss"]) for row in csv.DictReader(log.open())]


def pytorch(o, folder, dtype):
    text = output([sys.executable, HERE / "torch_bert.py", "--model", folder / "config.json", "--init",
                   folder / "init.safetensors", "--batch-file", folder / "batch.safetensors", "--dropout", 0,
                   "--lr", o.lr, "--warmup", 0, "--steps", o.steps, "--dtype", dtype, "--threads", o.threads])
    return json.loads(text.strip().splitlines()[-1])["loss"]


def plot(path, curves):
    width, height, left, top = 720, 400, 60, 20
    values = [v for curve in curves.values() for v in curve]
    low, high, steps = min(values), max(values), max(map(len, curves.values()))
    x = [left + (width - left - 20) * k / max(1, steps - 1) for k in range(steps)]

    def y(v):
        return top + (height - top - 40) * (high - v) / ((high - low) or 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
             'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for k in range(5):
        v = low + (high - low) * k / 4
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>'
                     f'<text x="{left - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.2f}</text>')
    for k, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{x[i]:.1f},{y(v):.1f}" for i, v in enumerate(curve))
        dash = ' stroke-dasharray="6 4"' if "PyTorch" in name else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"{dash}/>'
                     f'<text x="{width - 160}" y="{top + 16 * (k + 1)}" fill="{COLOURS[name]}">{name}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">step 1 to {steps}: loss</text></svg>')
    pathlib.Path(path).write_text("\n".join(parts) + "\n")


def main():
    a = argparse.ArgumentParser(description="Losses of twenty steps in zeroflow and in PyTorch.")
    a.add_argument("--steps", type=int, default=20)
    a.add_argument("--lr", type=float, default=1e-3)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--bert", default="build/bert")
    a.add_argument("--svg")
    o = a.parse_args()
    o.batch, o.dropout, o.ranks = 16, 0.0, 1
    curves = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ranks.write_inputs(folder, o)
        for dtype in ("f32", "bf16"):
            curves[f"zeroflow {dtype}"] = zeroflow(o, folder, dtype)
            curves[f"PyTorch {dtype}"] = pytorch(o, folder, dtype)
    print("step  " + "".join(f"{name:>16s}" for name in curves))
    for k, row in enumerate(zip(*curves.values())):
        print(f"{k + 1:4d}  " + "".join(f"{v:16.6f}" for v in row))
    for one, other in (("zeroflow f32", "PyTorch f32"), ("zeroflow bf16", "PyTorch bf16"),
                       ("zeroflow f32", "zeroflow bf16"), ("PyTorch f32", "PyTorch bf16")):
        most = max(abs(p - q) for p, q in zip(curves[one], curves[other]))
        print(f"largest difference of {one} and {other}: {most:.2g}")
    if o.svg:
        plot(o.svg, curves)


if __name__ == "__main__":
    main()
