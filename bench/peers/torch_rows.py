#!/usr/bin/env python3
"""A step of a large table with few lookups in PyTorch on the CPU: nn.Embedding(sparse=True) with
SparseAdam, whose gradient and update are those of the rows that are read, and the dense one with
AdamW; as build/bench/lazy.

    pip install torch numpy
    python torch_rows.py --threads 1

SparseAdam's moments of rows that are not read do not decay either. Neither step clips: clip_grad_norm_
takes no sparse gradients. Times are medians. Prints one JSON object.
"""
import argparse
import json
import statistics
import time

import tuned


def main():
    a = argparse.ArgumentParser(description="A step of a large table in PyTorch on the CPU.")
    a.add_argument("--rows", type=int, default=1000000)
    a.add_argument("--width", type=int, default=32)
    a.add_argument("--lookups", type=int, default=256)
    a.add_argument("--rounds", type=int, default=200)
    a.add_argument("--threads", type=int, default=1)
    tuned.add_options(a)
    args = a.parse_args()
    settings = tuned.restart(args.threads, args.malloc, args.mkl)

    import torch
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)

    def measure(sparse, rounds):
        table = torch.nn.Embedding(args.rows, args.width, sparse=sparse)
        kind = torch.optim.SparseAdam if sparse else torch.optim.AdamW
        optimizer = kind(list(table.parameters()), lr=1e-3)
        times = []
        for step in range(rounds + 2):
            ids = torch.randint(args.rows, (args.lookups,))
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            table(ids).square().mean().backward()
            optimizer.step()
            if step > 1:
                times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1e3

    print(json.dumps({"torch": torch.__version__, **settings,
                      "sparse_ms": measure(True, args.rounds), "dense_ms": measure(False, 9)},
                     indent=1))


if __name__ == "__main__":
    main()
