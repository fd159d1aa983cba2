#!/usr/bin/env python3
"""One BERT pretraining step (MLM + NSP, AdamW, clipping) in PyTorch + transformers.

    pip install torch transformers safetensors numpy
    apt-get install libjemalloc2            # optional; see --malloc
    python torch_bert.py --model mini --threads 2
    python torch_bert.py --model base --threads 2 --mode compile --dtype bf16
    python torch_bert.py --model config.json --init init.safetensors \
        --batch-file batch.safetensors --dropout 0 --lr 1e-3 --warmup 0 --steps 20
    python torch_bert.py --device cuda --model large --batch 256 --dtype bf16 --mode compile

Prints one JSON object. tokens_per_s is batch x seq over the median step after the warm-up; a step
is everything from the ids to the updated parameters. The work is what zeroflow does: the MLM head
(dense, GELU, LayerNorm, tied decoder, cross-entropy) sees the labelled positions only, gathered
before it; full-length sequences carry no mask. Data are random unless --batch-file is given (int64
input_ids, token_type_ids, attention_mask, labels [S,B,T] or [B,T], next_sentence_label [S,B] or
[B]; step k takes entry k mod S).

flops_per_step counts matrix products, 2 per multiply-add, backward as twice the forward:
6 (tokens L (4 h^2 + 2 h I) + labels (h^2 + h V) + B (h^2 + 2 h)) + 12 L tokens T h.

tuned.py says what --malloc and --mkl change; the second matters most. Of the other choices:
  --attention  sdpa, or the same written out; with dropout sdpa decomposes into products and a
               softmax as well, since the fused CPU kernel knows no dropout.
  --optimizer  fused AdamW is one pass over all tensors.
  --mode       compile fuses the elementwise work into C++ loops (needs g++), dropout's random
               numbers among them: faster without dropout, slower with it.
Threads are OpenMP's, one pool for products and elementwise work; denormals are flushed. On a GPU
--threads, --malloc and --mkl mean nothing; f32 products are TF32; peak_bytes is what tensors took at
most, reserved_bytes what the caching allocator held, device_bytes what the GPU then had in use.
"""
import argparse
import json
import pathlib
import resource
import statistics
import sys
import time

import tuned

MODELS = {    # layers, hidden, heads, intermediate, vocabulary, default batch
    "tiny": (2, 128, 2, 512, 30522, 32),
    "mini": (4, 256, 4, 1024, 8192, 16),
    "small": (4, 512, 8, 2048, 30522, 16),
    "medium": (8, 512, 8, 2048, 30522, 8),
    "base": (12, 768, 12, 3072, 30522, 8),
    "large": (24, 1024, 16, 4096, 30522, 4),
}


def arguments():
    a = argparse.ArgumentParser(description="A BERT pretraining step in PyTorch.")
    a.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    a.add_argument("--model", default="mini", help=f"{', '.join(MODELS)}, or a config.json")
    a.add_argument("--init", help="safetensors with Hugging Face names")
    a.add_argument("--batch-file", help="safetensors; replaces --batch and --seq")
    a.add_argument("--vocab", type=int)
    a.add_argument("--batch", type=int)
    a.add_argument("--seq", type=int, default=128)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--steps", type=int, default=10)
    a.add_argument("--warmup", type=int, default=3)
    a.add_argument("--mode", choices=("eager", "compile"), default="eager")
    a.add_argument("--dtype", choices=("f32", "bf16"), default="f32",
                   help="bf16: autocast over f32 parameters")
    a.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    a.add_argument("--optimizer", choices=("fused", "foreach", "loop"), default="fused")
    tuned.add_options(a)
    a.add_argument("--dropout", type=float, default=0.1)
    a.add_argument("--lr", type=float, default=1e-4)
    a.add_argument("--weight-decay", type=float, default=0.01)
    a.add_argument("--clip", type=float, default=1.0, help="0: none")
    a.add_argument("--seed", type=int, default=1)
    return a.parse_args()


def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024


def build(args):
    import torch
    from transformers import BertConfig, BertForPreTraining

    if args.model in MODELS:
        layers, hidden, heads, intermediate, vocab, batch = MODELS[args.model]
        config = BertConfig(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
                            intermediate_size=intermediate, vocab_size=args.vocab or vocab)
    else:
        config, batch = BertConfig(**json.loads(pathlib.Path(args.model).read_text())), 8
    args.batch = args.batch or batch
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = args.dropout
    config._attn_implementation = args.attention
    torch.manual_seed(args.seed)
    model = BertForPreTraining(config).train()
    if args.init:
        from safetensors.torch import load_file
        missing, unexpected = model.load_state_dict(load_file(args.init), strict=False)
        missing = [n for n in missing if not n.startswith("cls.predictions.decoder.")]
        if missing or unexpected:
            sys.exit(f"torch_bert: --init: missing {missing}, unexpected {unexpected}")
        model.tie_weights()
    return config, model


def entries(args, config):
    """One dict a step: the inputs, and the flat indices and labels of the labelled positions.

    Compiled, every entry has as many rows as the largest (the rest is label -100), so that no
    shape changes.
    """
    import torch

    if args.batch_file:
        from safetensors.torch import load_file
        data = load_file(args.batch_file)
        if data["input_ids"].dim() == 2:
            data = {k: v[None] for k, v in data.items()}
        args.batch, args.seq = data["input_ids"].shape[1:]
    else:
        s, b, t, v = 8, args.batch, args.seq, config.vocab_size
        ids = torch.randint(5, v, (s, b, t))
        labels = torch.full((s, b, t), -100)
        where = torch.rand(s, b, t).argsort(-1)[..., :max(1, round(0.15 * t))]
        labels.scatter_(-1, where, ids.gather(-1, where))
        ids.scatter_(-1, where, torch.full_like(where, 3))
        data = {"input_ids": ids, "labels": labels,
                "token_type_ids": (torch.arange(t) >= t // 2).long().expand(s, b, t).contiguous(),
                "attention_mask": torch.ones_like(ids),
                "next_sentence_label": torch.randint(0, 2, (s, b))}
    full = bool(data["attention_mask"].all())
    most = int((data["labels"] >= 0).flatten(1).sum(1).max())
    out = []
    for k in range(len(data["input_ids"])):
        labels = data["labels"][k].flatten()
        rows = (labels >= 0).nonzero().flatten()
        entry = {"ids": data["input_ids"][k], "types": data["token_type_ids"][k],
                 "mask": None if full else data["attention_mask"][k],
                 "nsp": data["next_sentence_label"][k], "labelled": len(rows)}
        pad = most - len(rows) if args.mode == "compile" else 0
        entry["labels"] = torch.cat([labels[rows], torch.full((pad,), -100)])
        entry["rows"] = torch.cat([rows, torch.zeros(pad, dtype=torch.long)])
        out.append(entry)
    return out


def flops(config, args, labelled):
    h, i, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    tokens = args.batch * args.seq
    encoder = 6 * tokens * layers * (4 * h * h + 2 * h * i) + 12 * layers * tokens * args.seq * h
    heads = 6 * labelled * (h * h + h * config.vocab_size) + 6 * args.batch * (h * h + 2 * h)
    return encoder + heads


def on_gpu(torch, args):
    if args.device == "cpu":
        return {}
    left, everything = torch.cuda.mem_get_info()
    return {"gpu": torch.cuda.get_device_name(), "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(), "device_bytes": everything - left}


def main():
    args = arguments()
    settings = tuned.restart(args.threads, args.malloc, args.mkl) if args.device == "cpu" else {}

    import torch
    import transformers
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    if args.device == "cuda":
        torch.set_float32_matmul_precision("high")
    transformers.logging.set_verbosity_error()

    config, model = build(args)
    model.to(args.device)
    data = [{k: v.to(args.device) if torch.is_tensor(v) else v for k, v in e.items()}
            for e in entries(args, config)]
    params = list(model.parameters())
    groups = [{"params": [p for p in params if p.dim() >= 2], "weight_decay": args.weight_decay},
              {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, fused=args.optimizer == "fused",
                                  foreach=args.optimizer == "foreach")
    cross_entropy = torch.nn.functional.cross_entropy

    def losses(e):
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16"):
            out = model.bert(e["ids"], attention_mask=e["mask"], token_type_ids=e["types"])
            hidden = out.last_hidden_state.flatten(0, 1).index_select(0, e["rows"])
            scores = model.cls.predictions(hidden)
            nsp = model.cls.seq_relationship(out.pooler_output)
        return (cross_entropy(scores.float(), e["labels"]) + cross_entropy(nsp.float(), e["nsp"]))

    if args.mode == "compile":
        losses = torch.compile(losses, dynamic=False)
    tensors_only = [{k: v for k, v in e.items() if k != "labelled"} for e in data]

    rss_before = resident()
    seconds, values = [], []
    for k in range(args.warmup + args.steps):
        start = time.perf_counter()
        loss = losses(tensors_only[k % len(data)])
        loss.backward()
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(params, args.clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        values.append(loss.item())
        seconds.append(time.perf_counter() - start)

    timed = seconds[args.warmup:]
    median = statistics.median(timed)
    labelled = statistics.mean(e["labelled"] for e in data)
    work = flops(config, args, labelled)
    print(json.dumps({
        "system": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "model": args.model, "mode": args.mode, "dtype": args.dtype, "threads": args.threads,
        "batch": args.batch, "seq": args.seq, "vocab": config.vocab_size, "labelled": labelled,
        "attention": args.attention, "optimizer": args.optimizer, **settings,
        "dropout": args.dropout, "parameters": sum(p.numel() for p in params),
        "tokens_per_s": args.batch * args.seq / median, "gflops": work / median / 1e9,
        "flops_per_step": work, "step_s": timed, "warmup_s": seconds[:args.warmup],
        **on_gpu(torch, args), "rss_before_bytes": rss_before,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "loss": values,
    }))


if __name__ == "__main__":
    main()
