#!/usr/bin/env python3
"""Attention that looks at less against PyTorch, in turns on one machine: milliseconds.

    make build/bench/attention
    pip install torch numpy
    python bench/peers/attention.py [--tokens 4096] [--dtype f32] [--rounds 5] [--threads 2]

A round runs build/bench/attention once, then PyTorch's scaled_dot_product_attention with a mask of
all pairs (forward, and forward with backward) and flex_attention, compiled, with a block mask of
the same share of blocks (forward: it has no backward pass on CPUs). Ratios are theirs over ours,
medians of rounds. tuned.py says what --malloc and --mkl change.
"""
import argparse
import statistics
import subprocess
import time

import tuned

KINDS = ("dense", "causal", "bigbird, 1/8", "window of 256", "8 documents")


def ours(args):
    """Name -> (forward, both), of one round."""
    out = subprocess.run(
        ["build/bench/attention", "--tokens", str(args.tokens), "--heads", str(args.heads),
         "--threads", str(args.threads), "--dtype", args.dtype, "--rounds", "1", *KINDS],
        check=True, capture_output=True, text=True).stdout
    rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    return {row[0]: (float(row[1]), float(row[2])) for row in rows}


def main():
    a = argparse.ArgumentParser(description="Masked attention against PyTorch on the CPU.")
    a.add_argument("--tokens", type=int, default=4096)
    a.add_argument("--heads", type=int, default=12)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    tuned.add_options(a)
    args = a.parse_args()
    tuned.restart(args.threads, args.malloc, args.mkl)

    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torch.nn.functional import scaled_dot_product_attention
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(1)
    dtype = torch.float32 if args.dtype == "f32" else torch.bfloat16
    tokens = args.tokens
    q, k, v = (torch.randn(1, args.heads, tokens, 64).to(dtype) for _ in range(3))
    sees = {
        "causal": lambda b, h, i, j: i >= j,
        "bigbird, 1/8": lambda b, h, i, j: (i // 64 - j // 64).abs() <= 4,
        "window of 256": lambda b, h, i, j: (i >= j) & (i - j < 256),
        "8 documents": lambda b, h, i, j: (i >= j) & (i * 8 // tokens == j * 8 // tokens),
    }
    at = torch.arange(tokens)
    dense = {name: f(0, 0, at[:, None], at[None, :]) for name, f in sees.items()}
    blocks = {name: create_block_mask(f, None, None, tokens, tokens, device="cpu")
              for name, f in sees.items()}
    flex = torch.compile(flex_attention)

    def sdpa(name):
        if name in ("dense", "causal"):
            return scaled_dot_product_attention(q, k, v, is_causal=name == "causal")
        return scaled_dot_product_attention(q, k, v, attn_mask=dense[name])

    def forward(name):
        with torch.no_grad():
            sdpa(name)

    def both(name):
        for x in (q, k, v):
            x.requires_grad_(True)
            x.grad = None
        y = sdpa(name)
        (y * y).mean().backward()
        for x in (q, k, v):
            x.requires_grad_(False)

    def flexed(name):
        with torch.no_grad():
            flex(q, k, v, block_mask=blocks.get(name))

    def milliseconds(call, name):
        begin = time.perf_counter()
        call(name)
        return 1e3 * (time.perf_counter() - begin)

    taken = {name: {"sdpa forward": [], "sdpa both": [], "flex forward": []} for name in KINDS}
    mine = {name: ([], []) for name in KINDS}
    for turn in range(-1, args.rounds):
        figures = ours(args)
        for name in KINDS:
            times = (milliseconds(forward, name), milliseconds(both, name),
                     milliseconds(flexed, name))
            if turn < 0:
                continue
            for column, one in zip(taken[name].values(), times):
                column.append(one)
            for column, one in zip(mine[name], figures[name]):
                column.append(one)
    print(f"{tokens} tokens, {args.heads} x 64, {args.dtype}, {args.threads} threads, "
          f"torch {torch.__version__}")
    for name in KINDS:
        print(f"{name}: ours {statistics.median(mine[name][0]):.1f} forward, "
              f"{statistics.median(mine[name][1]):.1f} both")
        for label, column in taken[name].items():
            own = mine[name][label.endswith("both")]
            print(f"    {label} {statistics.median(column):.1f}, "
                  f"{statistics.median(x / y for x, y in zip(column, own)):.2f} times ours")


if __name__ == "__main__":
    main()
