#!/usr/bin/env python3
"""One training step of GPT-2 124M (AdamW, clipping, no dropout) in PyTorch + transformers on a GPU.

    python torch_gpt.py --batch 32 --seq 1024 --steps 10 --mode compile

Prints one JSON object. The work is that of bench/gpt: every position counts, bf16 (autocast over f32
parameters), SDPA, fused AdamW. flops_per_step counts matrix products as torch_bert.py does, causal
attention in full.
"""
import argparse
import json
import statistics
import time

import torch
import transformers


def main():
    a = argparse.ArgumentParser(description="A GPT-2 training step in PyTorch.")
    a.add_argument("--batch", type=int, default=32)
    a.add_argument("--seq", type=int, default=1024)
    a.add_argument("--steps", type=int, default=10)
    a.add_argument("--mode", choices=("eager", "compile"), default="eager")
    args = a.parse_args()
    torch.set_float32_matmul_precision("high")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)

    config = transformers.GPT2Config(embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)
    config._attn_implementation = "sdpa"
    model = transformers.GPT2LMHeadModel(config).train().cuda()
    params = list(model.parameters())
    groups = [{"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)

    def loss_of(ids):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids, use_cache=False).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    step_loss = torch.compile(loss_of, dynamic=False) if args.mode == "compile" else loss_of
    batches = torch.randint(0, config.vocab_size, (4, args.batch, args.seq), device="cuda")
    seconds = []
    for k in range(3 + args.steps):
        start = time.perf_counter()
        loss = step_loss(batches[k % len(batches)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        seconds.append(time.perf_counter() - start)

    median = statistics.median(seconds[3:])
    h, layers, tokens = config.n_embd, config.n_layer, args.batch * args.seq
    work = 6 * tokens * (layers * 12 * h * h + h * config.vocab_size)
    work += 12 * layers * tokens * args.seq * h
    left, everything = torch.cuda.mem_get_info()
    print(json.dumps({
        "system": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "mode": args.mode, "batch": args.batch, "seq": args.seq,
        "tokens_per_s": tokens / median, "gflops": work / median / 1e9, "flops_per_step": work,
        "peak_bytes": torch.cuda.max_memory_allocated(), "device_bytes": everything - left,
        "step_s": seconds[3:],
    }))


if __name__ == "__main__":
    main()
