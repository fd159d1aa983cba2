#!/usr/bin/env python3
"""GPT-2 training steps of zeroflow and of llm.c on the CPU, in turns on the same threads.

    git clone https://github.com/karpathy/llm.c build/llm.c && make build/bench/gpt
    python bench/peers/llmc.py                       # both shapes, five rounds
    python bench/peers/llmc.py --models small --rounds 3 --steps 5
    python bench/peers/llmc.py --source ~/llm.c --blas "-L/opt/openblas/lib -lopenblas"

The shapes are 8 x 128 tokens of a model of 4 layers, 256 wide, vocabulary 8192 (small), and of the
124M model. llm.c is compiled as its Makefile does (-Ofast -march=native -fopenmp), with its main
replaced by llmc.c; and a second time with its two matrix products by a BLAS (llmc_blas.c), by
default OpenBLAS for OpenMP as Debian has it, which shares llm.c's threads; --blas none: not. Neither
has dropout. zeroflow runs with no environment set. Prints tokens/s of each round, medians, ratios
and peak resident memory.

Figures are only fair on a quiet machine: the load average is printed too.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
FLAGS = ["-Ofast", "-march=native", "-fopenmp", "-DOMP", "-w"]


def sh(command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def openblas():
    """Link flags of an OpenBLAS that shares OpenMP's threads, None where there is none."""
    for folder in sorted(pathlib.Path("/usr/lib").glob("*/openblas-openmp")):
        if (folder / "libopenblas.so").exists():
            return [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lopenblas"]
    return None


def build(o, folder):
    """The peers: name to program."""
    source = pathlib.Path(o.source)
    if not (source / "train_gpt2.c").exists():
        sys.exit(f"{source}/train_gpt2.c is missing: git clone https://github.com/karpathy/llm.c "
                 f"{source}, or say with --source where it is")
    peers = {"llm.c": pathlib.Path(folder, "llmc")}
    common = [o.cc, *FLAGS, f"-I{source}"]
    sh([*common, HERE / "llmc.c", "-o", peers["llm.c"], "-lm"])
    flags = openblas() if o.blas == "auto" else None if o.blas == "none" else o.blas.split()
    if flags:
        peers["llm.c, BLAS"] = pathlib.Path(folder, "llmc_blas")
        sh([*common, "-DPEER_BLAS", HERE / "llmc.c", HERE / "llmc_blas.c", "-o",
            peers["llm.c, BLAS"], *flags, "-lm"])
    elif o.blas == "auto":
        print("no OpenBLAS for OpenMP was found (Debian: libopenblas-openmp-dev): llm.c is measured "
              "as it is")
    return peers


def main():
    a = argparse.ArgumentParser(description="zeroflow and llm.c in turns.")
    a.add_argument("--models", nargs="+", default=["small", "124m"], choices=["small", "124m"])
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--steps", type=int, help="of a turn; default: 10 of small, 2 of 124m")
    a.add_argument("--source", default="build/llm.c", help="llm.c's folder")
    a.add_argument("--blas", default="auto", help="auto, none, or flags for the linker")
    a.add_argument("--cc", default="gcc")
    a.add_argument("--gpt", default="build/bench/gpt", help="the zeroflow bench")
    o = a.parse_args()
    env = dict(os.environ, OMP_NUM_THREADS=str(o.threads))
    with tempfile.TemporaryDirectory() as folder:
        peers = build(o, folder)
        for model in o.models:
            steps = o.steps or {"small": 10, "124m": 2}[model]
            systems = {"zeroflow": [o.gpt, "--model", model, "--batch", 8, "--seq", 128, "--threads",
                                    o.threads, "--steps", steps, "--json"]}
            systems.update({name: [peer, model, 8, 128, steps] for name, peer in peers.items()})
            results = {name: [] for name in systems}
            print(f"GPT-2 {model}, batch 8 x 128, {o.threads} threads, f32")
            for n in range(o.rounds):
                for name, command in systems.items():
                    done = sh(command, env=None if name == "zeroflow" else env)
                    results[name].append(json.loads(done.strip().splitlines()[-1]))
                print(f"round {n + 1}: " + ", ".join(
                    f"{name} {r[-1]['tokens_per_s']:.0f}" for name, r in results.items())
                    + f" tokens/s; load {os.getloadavg()[0]:.1f}", flush=True)
            speed = {name: statistics.median(x["tokens_per_s"] for x in r)
                     for name, r in results.items()}
            for name, r in results.items():
                print(f"{name:14s}{speed[name]:8.0f} tokens/s   {r[-1]['peak_rss_bytes'] / 2**20:6.0f} "
                      f"MiB   zeroflow is {speed['zeroflow'] / speed[name]:.2f} times", flush=True)


if __name__ == "__main__":
    main()
