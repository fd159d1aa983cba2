#!/usr/bin/env python3
"""BERT's step by DeepSpeed on the CPU, with ZeRO-3's states in memory or in files (NVMe offload).

    pip install torch transformers deepspeed
    apt-get install libaio-dev ninja-build g++        # DeepSpeed compiles its own operators
    python deepspeed_offload.py --model base --offload nvme --folder /mnt/disk

Next to it, the same shapes and counts:

    build/bert pretrain --model base --seq 128 --batch 8 --offload optimizer=disk,parameters=disk \
        --offload-dir /mnt/disk --prefetch 256000000 --clip 0 ...

Prints one JSON object: the median step after the warm-up, the highest resident memory, and the
seconds from the start to the first step. The model and the batch are torch_bert.py's. What
DeepSpeed writes itself goes to stderr.
"""
import argparse
import json
import os
import resource
import statistics
import sys
import time

import torch_bert


def arguments():
    a = argparse.ArgumentParser(description="BERT by DeepSpeed with offload, on the CPU.")
    a.add_argument("--model", default="base", choices=sorted(torch_bert.MODELS))
    a.add_argument("--offload", choices=("none", "cpu", "nvme"), default="nvme")
    a.add_argument("--folder", default="/tmp", help="of the files of --offload nvme")
    a.add_argument("--batch", type=int, default=8)
    a.add_argument("--seq", type=int, default=128)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--steps", type=int, default=5)
    a.add_argument("--warmup", type=int, default=2)
    a.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    a.add_argument("--dropout", type=float, default=0.1)
    a.add_argument("--lr", type=float, default=1e-4)
    return a.parse_args()


def configuration(args):
    zero = {"stage": 3, "contiguous_gradients": True, "overlap_comm": False}
    if args.offload != "none":
        device = {"device": args.offload, "pin_memory": False}
        if args.offload == "nvme":
            device["nvme_path"] = args.folder
        zero["offload_optimizer"] = dict(device, buffer_count=4)
        zero["offload_param"] = dict(device, buffer_count=5, buffer_size=10**8)
        zero["sub_group_size"] = 10**8
    return {
        "train_micro_batch_size_per_gpu": args.batch,
        "zero_optimization": zero,
        "bf16": {"enabled": args.dtype == "bf16"},
        "optimizer": {"type": "AdamW", "params": {"lr": args.lr, "weight_decay": 0.01}},
        "aio": {"block_size": 1 << 20, "queue_depth": 16, "thread_count": 1,
                "single_submit": False, "overlap_events": True},
        "zero_allow_untested_optimizer": True,
    }


def main():
    args = arguments()
    started = time.time()
    os.environ.update(OMP_NUM_THREADS=str(args.threads), DS_ACCELERATOR="cpu", RANK="0",
                      LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="29511")
    answer, sys.stdout = sys.stdout, sys.stderr
    import deepspeed
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.set_num_threads(args.threads)
    deepspeed.init_distributed("gloo")
    layers, hidden, heads, intermediate, vocab, _ = torch_bert.MODELS[args.model]
    config = BertConfig(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
                        intermediate_size=intermediate, vocab_size=vocab,
                        hidden_dropout_prob=args.dropout,
                        attention_probs_dropout_prob=args.dropout)
    settings = configuration(args)
    model = BertForPreTraining(config)    # zero.Init fails in transformers 5: padding_idx of no row
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()),
                                      config=settings)
    shape = (args.batch, args.seq)
    ids = torch.randint(5, vocab, shape)
    labels = torch.where(torch.rand(shape) < 0.15, ids, torch.tensor(-100))
    batch = {"input_ids": ids, "labels": labels,
             "next_sentence_label": torch.randint(0, 2, (args.batch,))}
    times, losses = [], []
    ready = time.time() - started
    for _ in range(args.warmup + args.steps):
        begin = time.time()
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        times.append(time.time() - begin)
        losses.append(float(loss))
    print(json.dumps({
        "peer": f"deepspeed {deepspeed.__version__}, torch {torch.__version__}",
        "model": args.model, "offload": args.offload, "dtype": args.dtype, "batch": args.batch,
        "seq": args.seq, "threads": args.threads,
        "step_s": statistics.median(times[args.warmup:]), "ready_s": ready,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "losses": losses}), file=answer)


if __name__ == "__main__":
    main()
