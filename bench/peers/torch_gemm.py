#!/usr/bin/env python3
"""Matrix products of BERT training in PyTorch on the CPU (f32: MKL, bf16: oneDNN), in GFLOP/s.

    pip install torch numpy
    python torch_gemm.py --threads 2
    python torch_gemm.py --threads 2 --dtype bf16

Each shape M,N,K is taken three times, as in y = x w^T with w [N,K]:
    forward  [M,K] x [N,K]^T        dx  [M,N] x [N,K]        dw  [M,N]^T x [M,K]
and attention in batches of heads, T = 128, head size 64: q k^T and p v. A figure is that of the
fastest call: the one that nothing else on the machine disturbed. Prints one JSON object: `products`
with every figure, and `mean_gflops` over the products of `SHAPES` alone. tuned.py says what --mkl
changes.
"""
import argparse
import json
import time

import tuned

SIZES = [(256, 256), (768, 256), (1024, 256), (256, 1024), (768, 768), (2304, 768), (3072, 768),
         (768, 3072), (30522, 768), (8192, 256)]
SHAPES = [(m, n, k) for m in (512, 1024, 4096) for n, k in SIZES if (m, n) != (4096, 30522)]
HEADS, T, D = (32, 64, 96), 128, 64


def main():
    a = argparse.ArgumentParser(description="Matrix products of BERT in PyTorch on the CPU.")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    a.add_argument("--seconds", type=float, default=0.1, help="for each product, at least")
    a.add_argument("--calls", type=int, default=5, help="of each product, at least")
    tuned.add_options(a)
    args = a.parse_args()
    settings = tuned.restart(args.threads, args.malloc, args.mkl)

    import torch
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(1)
    dtype = torch.float32 if args.dtype == "f32" else torch.bfloat16

    def gflops(flops, a, b):
        """Of a @ b into memory that is there already."""
        out = torch.matmul(a, b)
        best, calls, begin = float("inf"), 0, time.perf_counter()
        while calls < args.calls or time.perf_counter() - begin < args.seconds:
            start = time.perf_counter()
            torch.matmul(a, b, out=out)
            best = min(best, time.perf_counter() - start)
            calls += 1
        return flops / best / 1e9

    products = []
    for m, n, k in SHAPES:
        x, w, dy = (torch.randn(*s).to(dtype) for s in ((m, k), (n, k), (m, n)))
        for kind, p, q in (("forward", x, w.T), ("dx", dy, w), ("dw", dy.T, x)):
            products.append({"kind": kind, "m": m, "n": n, "k": k,
                             "gflops": gflops(2 * m * n * k, p, q)})
    mean = sum(p["gflops"] for p in products) / len(products)
    for heads in HEADS:
        q, k = (torch.randn(heads, T, D).to(dtype) for _ in "qk")
        s = torch.randn(heads, T, T).to(dtype)
        for kind, p, r in (("q k^T", q, k.transpose(1, 2)), ("p v", s, k)):
            products.append({"kind": kind, "batch": heads,
                             "gflops": gflops(2 * heads * T * T * D, p, r)})
    print(json.dumps({"system": f"torch {torch.__version__}", "dtype": args.dtype,
                      "threads": args.threads, **settings, "mean_gflops": mean,
                      "products": products}))


if __name__ == "__main__":
    main()
