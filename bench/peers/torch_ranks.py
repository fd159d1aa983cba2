#!/usr/bin/env python3
"""One rank of a BERT pretraining step under DeepSpeed or PyTorch's own sharding, on the CPU.

    pip install torch transformers safetensors numpy
    DS_BUILD_OPS=0 pip install deepspeed
    python torch_ranks.py --system deepspeed --stage 2 --rank 0 --world 2 --meet /tmp/meet \
        --model config.json --init init.safetensors --batch-file part0.safetensors &  # and rank 1

ranks.py starts all ranks and talks to them. A line of the input asks, a line of JSON answers:

    (start)       {"system": "deepspeed 0.19.8, malloc jemalloc, ..."}
    5             {"seconds": [...], "loss": [...]}    five steps; this rank's loss
    dump FILE     {}                                   rank 0 writes the parameters, whole

The model, the work of a step and AdamW (fused) are torch_bert.py's. Collectives are gloo's over the
loopback interface; each process has one thread and the settings of tuned.py. Gradients are averages
over the ranks, so that ranks must have equally many labels for the loss to be that of one process.

--system deepspeed: stages 0 to 3 of its engine, f32, gradient_clipping, torch's fused AdamW as its
    optimizer, contiguous_gradients and overlap_comm on. Buckets hold --bucket elements. At stage 3
    the thresholds are DeepSpeed's own, which for a small model means that a parameter once gathered
    stays so until the step ends: less communication than ZeRO-3 has, and in its favour.
--system torch: stage 0 is DistributedDataParallel (static graph, gradients are views of its
    buckets), stage 1 adds ZeroRedundancyOptimizer, stage 2 is fully_shard (FSDP2) that keeps
    parameters gathered after the forward pass, stage 3 fully_shard that does not; units are the
    encoder's layers and the rest.
"""
import argparse
import json
import os
import sys
import time
import traceback

import tuned


def arguments():
    a = argparse.ArgumentParser(description="One rank of a step under DeepSpeed or PyTorch.")
    a.add_argument("--system", choices=("deepspeed", "torch"), required=True)
    a.add_argument("--stage", type=int, choices=range(4), required=True)
    a.add_argument("--rank", type=int, required=True)
    a.add_argument("--world", type=int, required=True)
    a.add_argument("--meet", required=True, help="a file that does not exist yet, for all ranks")
    a.add_argument("--model", required=True, help="config.json")
    a.add_argument("--init", required=True, help="safetensors with Hugging Face names")
    a.add_argument("--batch-file", required=True, help="this rank's part of the batches")
    a.add_argument("--bucket", type=int, default=0, help="elements; 0: the system's own")
    a.add_argument("--dropout", type=float, default=0.0)
    a.add_argument("--lr", type=float, default=1e-3)
    a.add_argument("--weight-decay", type=float, default=0.01)
    a.add_argument("--clip", type=float, default=1.0)
    tuned.add_options(a)
    a.set_defaults(mode="eager", attention="sdpa", vocab=None, batch=None, seq=None, seed=1)
    return a.parse_args()


def groups(model, args):
    params = list(model.parameters())
    return [{"params": [p for p in params if p.dim() >= 2], "weight_decay": args.weight_decay},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]


def deepspeed_step(model, args):
    """step(batch), which returns the loss; whole(), in which parameters are whole; the version."""
    import contextlib

    import deepspeed
    import torch

    zero = {"stage": args.stage}
    if args.stage:
        zero.update(overlap_comm=True, contiguous_gradients=True)
    if args.stage and args.bucket:
        zero.update(reduce_bucket_size=args.bucket, allgather_bucket_size=args.bucket)
    config = {"train_batch_size": args.batch * args.world, "gradient_accumulation_steps": 1,
              "train_micro_batch_size_per_gpu": args.batch, "gradient_clipping": args.clip,
              "zero_optimization": zero, "zero_allow_untested_optimizer": True,
              "steps_per_print": 1 << 30}
    optimizer = torch.optim.AdamW(groups(model, args), lr=args.lr, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def step(batch):
        loss = engine(**batch)
        engine.backward(loss)
        engine.step()
        return loss.item()

    def whole():
        if args.stage < 3:
            return contextlib.nullcontext()
        return deepspeed.zero.GatheredParameters(list(model.parameters()))

    return step, whole, f"deepspeed {deepspeed.__version__}"


def torch_step(model, args):
    import contextlib

    import torch

    if args.stage < 2:
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.nn.parallel import DistributedDataParallel
        size = {"bucket_cap_mb": args.bucket * 4 / 2**20} if args.bucket else {}
        call = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True,
                                       **size)
        if args.stage == 0:
            optimizer = torch.optim.AdamW(groups(model, args), lr=args.lr, fused=True)
        else:
            optimizer = ZeroRedundancyOptimizer(groups(model, args), torch.optim.AdamW, lr=args.lr,
                                                parameters_as_bucket_view=True, fused=True)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh, call = init_device_mesh("cpu", (args.world,)), model
        for layer in model.model.bert.encoder.layer:
            fully_shard(layer, mesh=mesh, reshard_after_forward=args.stage == 3)
        fully_shard(model, mesh=mesh, reshard_after_forward=args.stage == 3)
        optimizer = torch.optim.AdamW(groups(model, args), lr=args.lr, fused=True)
    params = list(model.parameters())

    def step(batch):
        loss = call(**batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, args.clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, contextlib.nullcontext, f"torch {torch.__version__}"


def work(args, settings, answer):
    import torch
    import torch.distributed
    import transformers

    import torch_bert

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    transformers.logging.set_verbosity_error()
    torch.distributed.init_process_group("gloo", init_method=f"file://{args.meet}", rank=args.rank,
                                         world_size=args.world)

    class Pretraining(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids, types, mask, nsp, labels, rows):
            out = self.model.bert(ids, attention_mask=mask, token_type_ids=types)
            hidden = out.last_hidden_state.flatten(0, 1).index_select(0, rows)
            cross_entropy = torch.nn.functional.cross_entropy
            return (cross_entropy(self.model.cls.predictions(hidden), labels)
                    + cross_entropy(self.model.cls.seq_relationship(out.pooler_output), nsp))

    config, model = torch_bert.build(args)
    data = [{k: v for k, v in e.items() if k != "labelled"}
            for e in torch_bert.entries(args, config)]
    model = Pretraining(model)
    make = deepspeed_step if args.system == "deepspeed" else torch_step
    step, whole, system = make(model, args)
    torch.manual_seed(args.seed + args.rank)    # of dropout
    answer({"system": f"{system}, malloc {settings['malloc']}, mkl {settings['mkl']}"})

    done = 0
    for line in sys.stdin:
        if line.startswith("dump "):
            with whole():
                tensors = {}
                for name, p in model.named_parameters():
                    p = p.full_tensor() if hasattr(p, "full_tensor") else p
                    tensors[name.removeprefix("model.")] = p.detach().clone()
            if args.rank == 0:
                from safetensors.torch import save_file
                save_file(tensors, line.split()[1])
            answer({})
            continue
        seconds, loss = [], []
        for _ in range(int(line)):
            start = time.perf_counter()
            loss.append(step(data[done % len(data)]))
            seconds.append(time.perf_counter() - start)
            done += 1
        answer({"seconds": seconds, "loss": loss})


def main():
    args = arguments()
    os.environ.update(DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo", RANK=str(args.rank),
                      LOCAL_RANK=str(args.rank), WORLD_SIZE=str(args.world))
    settings = tuned.restart(1, args.malloc, args.mkl)

    # What libraries print goes to stderr.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(thing):
        print(json.dumps(thing), file=out, flush=True)

    try:
        work(args, settings, answer)
        code = 0
    except Exception as e:
        traceback.print_exc()
        answer({"error": f"{type(e).__name__}: {e}"})
        code = 1
    os._exit(code)    # the other ranks may be gone: nothing is to be taken leave of


if __name__ == "__main__":
    main()
