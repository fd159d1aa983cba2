#!/usr/bin/env python3
"""Fine-tuning steps of a Llama, full and with LoRA, of zeroflow and of transformers with PEFT, in turns.

    make && pip install torch transformers peft safetensors
    python bench/peers/tuning.py                    # a Llama of 160 million parameters: a few minutes
    python bench/peers/tuning.py --kinds lora --dtypes bf16          # one row of its table
    python bench/peers/tuning.py --layers 2 --hidden 64 --rounds 1 --steps 3     # that it runs

Each round runs build/llm finetune on a batch file, then PyTorch tuned (tuned.py) on the same tokens:
AdamW (fused), scaled dot-product attention, no cache; bf16 is autocast over f32 parameters in full
tuning, and a base in bf16 with adapters in f32 in LoRA. Printed are the tokens/s of the median step
of each round, then for each row medians over the rounds of these, of their ratio, and of peak
resident bytes. Figures are only fair on a quiet machine: the load average is printed too.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import tuned

KINDS, DTYPES = ("full", "lora"), ("f32", "bf16")


def make_model(o, folder):
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=32000, hidden_size=o.hidden, num_hidden_layers=o.layers,
                                 num_attention_heads=o.hidden // 64, intermediate_size=4 * o.hidden,
                                 max_position_embeddings=2048)).save_pretrained(folder)
    ids = torch.randint(0, 32000, (1, o.batch, o.seq))
    save_file(dict(input_ids=ids, labels=ids.clone()), folder / "batch.safetensors")


def torch_steps(o, folder, kind, dtype):
    """Prints the median step's tokens/s and the peak; a process of its own."""
    tuned.restart(o.threads, o.malloc, o.mkl)
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(o.threads)
    half = dtype == "bf16"
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16 if half and kind == "lora" else torch.float32,
        attn_implementation="sdpa", use_cache=False)
    if kind == "lora":
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32,
                                                 target_modules="all-linear"))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4,
                                  fused=True)
    batch = {k: v[0] for k, v in load_file(folder / "batch.safetensors").items()}
    times = []
    for _ in range(o.steps + 2):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    print(json.dumps([o.batch * o.seq / statistics.median(times[2:]),
                      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))


def output(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def our_steps(o, folder, kind, dtype):
    report = folder / "report.json"
    output([o.llm, "finetune", "--model", folder, "--batch-file", folder / "batch.safetensors",
            "--steps", o.steps + 2, "--lr", 1e-4, "--precision", dtype, "--threads", o.threads,
            "--quiet", "--report", report, *(["--lora", "r=16,alpha=32"] if kind == "lora" else [])])
    found = json.loads(report.read_text())
    return found["tokens_per_s"], found["resident_peak_bytes"]


def measure(o, folder, kind, dtype):
    sizes = [f"--{k}={getattr(o, k)}" for k in ("batch", "seq", "threads", "steps", "malloc", "mkl")]
    rounds = []
    for n in range(o.rounds):
        ours = our_steps(o, folder, kind, dtype)
        theirs = json.loads(output([sys.executable, __file__, *sizes, "--torch", folder, kind,
                                    dtype]).splitlines()[-1])
        rounds.append((ours[0], theirs[0], ours[0] / theirs[0], ours[1] / 2**20, theirs[1] / 2**20))
        print(f"  {kind} {dtype}, round {n + 1}: {ours[0]:.0f} tokens/s, PyTorch {theirs[0]:.0f}; load "
              f"{os.getloadavg()[0]:.1f}", flush=True)
    print("{} {}: {:.0f} tokens/s, PyTorch {:.0f}: {:.2f}; {:.0f} MiB, PyTorch {:.0f}".format(
        kind, dtype, *map(statistics.median, zip(*rounds))), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--hidden", type=int, default=768)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq", type=int, default=256)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--dtypes", default=",".join(DTYPES))
    tuned.add_options(p)
    p.add_argument("--llm", default="build/llm")
    p.add_argument("--make", help=argparse.SUPPRESS)
    p.add_argument("--torch", nargs=3, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.make:
        return make_model(o, pathlib.Path(o.make))
    if o.torch:
        return torch_steps(o, pathlib.Path(o.torch[0]), *o.torch[1:])
    rows = [(kind, dtype) for kind in o.kinds.split(",") for dtype in o.dtypes.split(",")]
    for kind, dtype in rows:
        if kind not in KINDS or dtype not in DTYPES:
            p.error(f"--kinds are of {','.join(KINDS)}, --dtypes of {','.join(DTYPES)}: not {kind} {dtype}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # A process begins with the peak of the one that starts it: this one stays small.
        output([sys.executable, __file__, *[f"--{k}={getattr(o, k)}" for k in
                                            ("layers", "hidden", "batch", "seq")], "--make", folder])
        print(f"{o.layers} layers of {o.hidden}, {o.batch} x {o.seq} tokens, {o.threads} threads; "
              f"load {os.getloadavg()[0]:.1f}", flush=True)
        for kind, dtype in rows:
            measure(o, folder, kind, dtype)


if __name__ == "__main__":
    main()
