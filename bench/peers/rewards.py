#!/usr/bin/env python3
"""Steps of GRPO and of DPO with LoRA, of zeroflow and of TRL, in turns.

    make && pip install torch transformers peft trl
    python bench/peers/rewards.py                           # a Llama of 15 million parameters
    python bench/peers/rewards.py --kinds dpo --rounds 3
    python bench/peers/rewards.py --layers 1 --hidden 64 --prompts 2 --tokens 4 --pairs 2 --steps 1 --rounds 1   # it runs

The model has made-up weights, a vocabulary of 32000 and the GPT-2 shape of a byte-level tokenizer.
grpo: an iteration samples --group answers of --tokens tokens to each of --prompts prompts, rewards
their length, and makes one step on all parameters, without a reference. dpo: a step on --pairs pairs
by an adapter of rank 16 over all products; both sides compute the reference's log p before the first
step. TRL's trainer runs with transformers' generate, fused AdamW, in f32, without gradient
checkpointing, logging nothing, in the environment of tuned.py.

Each round runs build/llm, then TRL. A time is that of the median step after the first. Wall seconds
are fair on a quiet machine only; seconds of processors (all that the process uses) are printed next
to them, which with --threads 1 others disturb less.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import tuned

KINDS = ("grpo", "dpo")
SIZES = ("layers", "hidden", "prompts", "group", "tokens", "pairs", "steps", "threads", "malloc", "mkl")
VOCAB = 32000


def make_tokenizer(folder):
    """Bytes, and tokens that no text has, so that any id of the model is one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = letters + [f"t{k}" for k in range(VOCAB - len(letters) - 2)] + ["<pad>", "<end>"]
    t = Tokenizer(models.BPE(vocab={name: k for k, name in enumerate(names)}, merges=[]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<end>", pad_token="<pad>").save_pretrained(folder)


def make(o, folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=o.hidden, num_hidden_layers=o.layers, tie_word_embeddings=True,
        num_attention_heads=6 if o.hidden % 6 == 0 else 4, intermediate_size=o.hidden * 8 // 3,
        max_position_embeddings=512, eos_token_id=VOCAB - 1, pad_token_id=VOCAB - 2,
        bos_token_id=None)).save_pretrained(folder)
    make_tokenizer(folder)
    with open(folder / "prompts.jsonl", "w") as f:
        for k in range(64):
            f.write(json.dumps({"prompt": f"prompt number {k:03d}: "}) + "\n")
    with open(folder / "pairs.jsonl", "w") as f:
        for k in range(256):
            f.write(json.dumps({"prompt": f"prompt number {k:03d}: ",
                                "chosen": "a" * (o.tokens - 2) + str(k % 10),
                                "rejected": "b" * (o.tokens - 2) + str(k % 10)}) + "\n")


class Clock:
    """Seconds of each step: of a clock, and of processors."""

    def __init__(self):
        from transformers import TrainerCallback
        times = self.times = []

        class Steps(TrainerCallback):
            def on_step_begin(self, *_, **__):
                self.began = time.perf_counter(), time.process_time()

            def on_step_end(self, *_, **__):
                times.append((time.perf_counter() - self.began[0], time.process_time() - self.began[1]))

        self.callback = Steps()


def their_arguments(o, folder):
    return dict(output_dir=str(folder / "out"), max_steps=o.steps + 1, learning_rate=1e-5,
                optim="adamw_torch_fused", gradient_checkpointing=False, bf16=False, report_to=[],
                logging_strategy="no", save_strategy="no", disable_tqdm=True, use_cpu=True)


def their_grpo(o, folder, clock):
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer
    answers = o.prompts * o.group
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa"),
        args=GRPOConfig(per_device_train_batch_size=answers, num_generations=o.group,
                        max_completion_length=o.tokens, beta=0.0, loss_type="grpo",
                        **their_arguments(o, folder)),
        train_dataset=load_dataset("json", data_files=str(folder / "prompts.jsonl"), split="train"),
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        processing_class=AutoTokenizer.from_pretrained(folder), callbacks=[clock.callback])


def their_dpo(o, folder, clock):
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer
    return DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa"),
        args=DPOConfig(per_device_train_batch_size=o.pairs, precompute_ref_log_probs=True,
                       **their_arguments(o, folder)),
        train_dataset=load_dataset("json", data_files=str(folder / "pairs.jsonl"), split="train"),
        peft_config=LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32,
                               target_modules="all-linear"),
        processing_class=AutoTokenizer.from_pretrained(folder), callbacks=[clock.callback])


def theirs(o, folder, kind):
    """Prints the seconds of the median step; a process of its own."""
    tuned.restart(o.threads, o.malloc, o.mkl)
    import torch
    torch.set_num_threads(o.threads)
    clock = Clock()
    (their_grpo if kind == "grpo" else their_dpo)(o, folder, clock).train()
    print(json.dumps([statistics.median(t) for t in zip(*clock.times[1:])]))


def output(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def our_run(o, folder, kind, steps):
    """What a run prints, and its seconds, of a clock and of processors."""
    command = [o.llm, kind, "--model", folder, "--precision", "f32", "--threads", o.threads, "--lr",
               1e-5, "--steps", steps, "--seq", 128]
    if kind == "grpo":
        command += ["--data", folder / "prompts.jsonl", "--reward", "length", "--group", o.group,
                    "--batch", o.prompts * o.group, "--tokens", o.tokens]
    else:
        command += ["--data", folder / "pairs.jsonl", "--lora", "r=16,alpha=32", "--batch", o.pairs,
                    "--eval-batches", 1]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    text = output(command)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return text, wall, sum(after[:2]) - sum(before[:2])


def ours(o, folder, kind):
    """Seconds of a step: what `steps` more steps take, which leaves out all that a run does once."""
    runs = [our_run(o, folder, kind, steps) for steps in (1, 1 + o.steps)]
    if kind == "grpo":
        walls = [float(s) for s in re.findall(r"iteration \d+, ([\d.e+-]+) s", runs[1][0])]
        wall = statistics.median(walls[1:] or walls)
    else:
        wall = (runs[1][1] - runs[0][1]) / o.steps
    return wall, (runs[1][2] - runs[0][2]) / o.steps


def measure(o, folder, kind):
    rounds = []
    for n in range(o.rounds):
        mine = ours(o, folder, kind)
        other = json.loads(output([sys.executable, __file__, *[f"--{k}={getattr(o, k)}" for k in SIZES],
                                   "--theirs", folder, kind]).splitlines()[-1])
        rounds.append((*mine, *other, other[0] / mine[0], other[1] / mine[1]))
        print("  {} round {}: {:.3f} s ({:.3f} of processors), TRL {:.3f} s ({:.3f}); load {:.1f}".format(
            kind, n + 1, *mine, *other, os.getloadavg()[0]), flush=True)
    print("{}: {:.3f} s ({:.3f} of processors), TRL {:.3f} s ({:.3f}): {:.2f} times ({:.2f})".format(
        kind, *map(statistics.median, zip(*rounds))), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--hidden", type=int, default=288)
    p.add_argument("--prompts", type=int, default=16)
    p.add_argument("--group", type=int, default=8)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--pairs", type=int, default=8)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--kinds", default=",".join(KINDS))
    tuned.add_options(p)
    p.add_argument("--llm", default="build/llm")
    p.add_argument("--make", help=argparse.SUPPRESS)
    p.add_argument("--theirs", nargs=2, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.make:
        return make(o, pathlib.Path(o.make))
    if o.theirs:
        return theirs(o, pathlib.Path(o.theirs[0]), o.theirs[1])
    for kind in o.kinds.split(","):
        if kind not in KINDS:
            p.error(f"--kinds are of {','.join(KINDS)}: not {kind}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        output([sys.executable, __file__, *[f"--{k}={getattr(o, k)}" for k in SIZES], "--make", folder])
        print(f"{o.layers} layers of {o.hidden}, {o.prompts} x {o.group} answers of {o.tokens} tokens, "
              f"{o.pairs} pairs, {o.threads} threads; load {os.getloadavg()[0]:.1f}", flush=True)
        for kind in o.kinds.split(","):
            measure(o, folder, kind)


if __name__ == "__main__":
    main()
