#!/usr/bin/env python3
"""One training step of GPT-2 124M, or of a Llama of 160 million parameters, in PyTorch + transformers
on a GPU (AdamW, clipping, no dropout).

    python torch_gpt.py --batch 32 --seq 1024 --steps 10 --mode compile [--llama [--lora RANK]]

Prints one JSON object. The work is that of bench/gpt: every position counts, bf16 (autocast over f32
parameters; with --lora, of PEFT, a base in bf16), SDPA, fused AdamW. flops_per_step counts matrix
products as torch_bert.py does, causal attention in full; not for --lora.
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
    a.add_argument("--llama", action="store_true")
    a.add_argument("--lora", type=int, default=0, metavar="RANK")
    args = a.parse_args()
    torch.set_float32_matmul_precision("high")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)

    if args.llama:
        config = transformers.LlamaConfig(
            vocab_size=32000, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
            intermediate_size=3072, max_position_embeddings=max(2048, args.seq))
    else:
        config = transformers.GPT2Config(embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)
    config._attn_implementation = "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config).train().cuda()
    if args.lora:
        import peft
        model = peft.get_peft_model(model.to(torch.bfloat16), peft.LoraConfig(
            task_type="CAUSAL_LM", r=args.lora, lora_alpha=args.lora, target_modules="all-linear"))
    params = [p for p in model.parameters() if p.requires_grad]
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
    h, layers, tokens = config.hidden_size, config.num_hidden_layers, args.batch * args.seq
    of_layer = 4 * h * h + 3 * h * config.intermediate_size if args.llama else 12 * h * h
    work = 6 * tokens * (layers * of_layer + h * config.vocab_size)
    work = 0 if args.lora else work + 12 * layers * tokens * args.seq * h
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
