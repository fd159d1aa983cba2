#!/usr/bin/env python3
"""zeroflow, DeepSpeed and PyTorch: the same BERT pretraining step on ranks, ZeRO stages 0 to 3.

    make build/bert && pip install torch transformers safetensors numpy
    DS_BUILD_OPS=0 pip install deepspeed
    python bench/peers/ranks.py

BERT-mini, a batch of 16 x 128 cut over two ranks of one thread, f32, AdamW, clipping, no dropout:
20 batches of words as frequent as in a text, 19 labels in each example, and initial parameters, all
of it read from the same files. zeroflow's ranks are threads of a process, or processes that mpirun
starts; those of the others are processes (torch_ranks.py says how they are configured).

Systems take turns: in each round each makes three steps while the rest wait for input. The others
start once and go on; zeroflow starts anew, and its first steps are left out each time. Printed are
the medians over the rounds of a round's median step, the ratio to zeroflow's threads, and what a
stage changes: the largest difference of the losses of 20 steps, and of the parameters after them,
from stage 0 of the same system. Of zeroflow's, the files of parameters and the losses are compared
to the last bit over both kinds of ranks. A system that fails is named with its error.

Figures are only fair on a quiet machine, where it all takes about four minutes; --limit ends it in
any case, with what has been measured until then.
"""
import argparse
import csv
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
VOCAB, SEQ, LABELS = 8192, 128, 19
WARMUP, TURN = 5, 3    # steps before those that are timed, and of a round
NAMES = {"threads": "zeroflow threads", "mpi": "zeroflow MPI", "deepspeed": "DeepSpeed",
         "torch": "PyTorch"}


def write_inputs(folder, o):
    """config.json, init.safetensors, batch.safetensors, and the ranks' parts of it, part0 ..."""
    import torch
    import transformers
    from safetensors.torch import save_file

    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)
    config = transformers.BertConfig(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024,
        vocab_size=VOCAB, hidden_dropout_prob=o.dropout,
        attention_probs_dropout_prob=o.dropout)
    config.to_json_file(folder / "config.json", use_diff=False)
    tensors = transformers.BertForPreTraining(config).state_dict()
    tensors = {k: v for k, v in tensors.items() if ".decoder." not in k}    # it is tied
    save_file(tensors, folder / "init.safetensors")

    s, b, t = o.steps, o.batch, SEQ
    often = 1 / (torch.arange(VOCAB) + 2.0)    # the k-th word of a text comes like 1 / k
    often[:5] = 0
    ids = torch.multinomial(often, s * b * t, replacement=True).view(s, b, t)
    where = torch.rand(s, b, t).argsort(-1)[..., :LABELS]
    labels = torch.full_like(ids, -100).scatter_(-1, where, ids.gather(-1, where))
    ids.scatter_(-1, where, torch.full_like(where, 3))
    data = {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids),
            "token_type_ids": (torch.arange(t) >= t // 2).long().expand(s, b, t).contiguous(),
            "next_sentence_label": torch.randint(0, 2, (s, b))}
    save_file(data, folder / "batch.safetensors")
    part = b // o.ranks
    for rank in range(o.ranks):
        own = {k: v[:, rank * part:(rank + 1) * part].contiguous() for k, v in data.items()}
        save_file(own, folder / f"part{rank}.safetensors")


class Late(BaseException):
    """Time is up; no library takes it for an error of its own."""


class Zeroflow:
    """Ranks as threads or as processes, started anew in each round."""

    def __init__(self, kind, stage, folder, o):
        self.kind, self.stage, self.folder, self.o = kind, stage, folder, o
        self.times, self.loss, self.error = [], [], None
        self.dump = folder / f"{kind}{stage}.safetensors"

    def round(self, number):
        o, folder, log = self.o, self.folder, self.folder / "log.csv"
        steps = o.steps if number == 0 else WARMUP + TURN
        command = [o.bert, "pretrain", "--model", folder / "config.json",
                   "--init", folder / "init.safetensors",
                   "--batch-file", folder / "batch.safetensors", "--steps", steps,
                   "--schedule", "constant", "--warmup", 0, "--lr", 1e-3,
                   "--zero", self.stage, "--prefetch", o.prefetch, "--precision", "f32", "--log", log, "--quiet"]
        if self.kind == "threads":
            command += ["--ranks", o.ranks, "--threads", o.ranks]
        else:
            command = ["mpirun", "-np", o.ranks, *command, "--threads", 1]
        if number == 0:
            command += ["--dump", self.dump]
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1",
                   OMPI_MCA_hwloc_base_binding_policy="none")
        try:
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                                  env=env, stdin=subprocess.DEVNULL)
        except FileNotFoundError as e:
            self.error = str(e)
            return
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip("-")]
            said = [line for line in said if line.startswith("bert: ")] or said
            self.error = said[0] if said else f"status {done.returncode}"
            return
        rows = list(csv.DictReader(log.open()))
        times = [o.batch * SEQ / float(row["tokens_per_s"]) for row in rows]
        self.times.append(statistics.median(times[WARMUP:]))
        if number == 0:
            self.loss = [float(row["loss"]) for row in rows]


class Peer:
    """Processes that make steps when asked, one for each rank."""

    def __init__(self, kind, stage, folder, o):
        self.o, self.times, self.loss, self.error = o, [], [], None
        self.dump = folder / f"{kind}{stage}.safetensors"
        self.messages = folder / f"{kind}{stage}.txt"
        self.ranks = []
        for rank in range(o.ranks):
            command = [sys.executable, HERE / "torch_ranks.py", "--system", kind, "--stage", stage,
                       "--rank", rank, "--world", o.ranks, "--bucket", o.bucket,
                       "--meet", folder / f"{kind}{stage}.meet", "--model", folder / "config.json",
                       "--init", folder / "init.safetensors", "--dropout", o.dropout,
                       "--batch-file", folder / f"part{rank}.safetensors"]
            if o.as_installed:
                command += ["--malloc", "plain", "--mkl", "native"]
            self.ranks.append(subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self.messages.open("a"), text=True, start_new_session=True))

    def answers(self):
        """What the ranks answer; after an error, [] for good."""
        out = []
        for rank in self.ranks:
            line = rank.stdout.readline()
            answer = json.loads(line or '{"error": ""}')
            if "error" in answer:
                self.error = answer["error"] or f"a rank ended: {self.messages.read_text()[-300:]}"
                self.end()
                return []
            out.append(answer)
        return out

    def ask(self, line):
        for rank in self.ranks:
            try:
                print(line, file=rank.stdin, flush=True)
            except BrokenPipeError:
                pass    # its last answer says why
        return self.answers()

    def steps(self, count):
        """The times of so many steps, each the mean of the ranks'."""
        answers = self.ask(count)
        self.loss += [statistics.mean(loss) for loss in zip(*(a["loss"] for a in answers))]
        return [statistics.mean(times) for times in zip(*(a["seconds"] for a in answers))]

    def round(self, number):
        if number == 0:
            self.steps(WARMUP)
        times = self.steps(TURN)
        if times:
            self.times.append(statistics.median(times))
        if times and len(self.loss) == self.o.steps:
            self.ask(f"dump {self.dump}")

    def end(self):
        for rank in self.ranks:
            try:
                os.killpg(rank.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            rank.wait()
        self.ranks = []


def difference(one, other):
    """The largest differences of the losses of all steps, and of the parameters then."""
    import torch
    from safetensors.torch import load_file
    losses = max(abs(a - b) for a, b in zip(one.loss, other.loss, strict=True))
    a, b = load_file(one.dump), load_file(other.dump)
    both = a.keys() & b.keys()    # what is tied has one name in one file and two in the other
    return losses, max(float(torch.max(torch.abs(a[k].double() - b[k].double()))) for k in both)


def report(systems, o):
    rounds = max(len(s.times) for s in systems.values())
    print(f"\nBERT-mini, batch {o.batch} x {SEQ}, vocabulary {VOCAB}, dropout {o.dropout:g}, "
          f"{o.ranks} ranks of one thread, f32; ms a step, median of {rounds} rounds")
    kinds = [kind for kind in NAMES if kind in o.systems]
    print("stage" + "".join(f"{NAMES[kind]:>18s}" for kind in kinds))
    for stage in o.stages:
        base, cells = systems.get(("threads", stage)), []
        for kind in kinds:
            s = systems[kind, stage]
            cell = "fails" if s.error else "-"
            if s.times and not s.error:
                cell = f"{1e3 * statistics.median(s.times):.0f}"
            if s.times and base and base.times and s is not base:
                cell += f" {statistics.median(s.times) / statistics.median(base.times):5.2f}x"
            cells.append(f"{cell:>18s}")
        print(f"{stage:5d}" + "".join(cells))
    whole = {key: s for key, s in systems.items() if len(s.loss) == o.steps and s.dump.exists()}
    print(f"\nloss of step {o.steps}; largest difference from the system's stage {o.stages[0]}: of "
          "the losses of all steps, of the parameters after them")
    first = {}
    for (kind, stage), s in whole.items():
        base = first.setdefault(kind, s)
        line = f"{NAMES[kind]:18s} stage {stage}  {s.loss[-1]:.7f}"
        if s is not base:
            line += "  {:8.2g} {:8.2g}".format(*difference(s, base))
        print(line)
    ours = [s for (kind, _), s in whole.items() if kind in ("threads", "mpi")]
    if ours:
        same = all(s.dump.read_bytes() == ours[0].dump.read_bytes() and s.loss == ours[0].loss
                   for s in ours)
        print(f"zeroflow's {len(ours)} files of parameters and lists of losses are "
              f"{'' if same else 'NOT '}identical")
        for kind, s in first.items():
            if kind in ("deepspeed", "torch") and not o.dropout:
                print(f"{NAMES[kind]}, stage {o.stages[0]}, against zeroflow: "
                      "{:.2g} {:.2g}".format(*difference(s, ours[0])))
    for (kind, stage), s in systems.items():
        if s.error:
            print(f"{NAMES[kind]}, stage {stage}, fails: {s.error}")


def main():
    a = argparse.ArgumentParser(description="zeroflow, DeepSpeed and PyTorch on ranks, in turns.")
    a.add_argument("--bert", default="build/bert", help="zeroflow's program")
    a.add_argument("--ranks", type=int, default=2)
    a.add_argument("--batch", type=int, default=16)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--dropout", type=float, default=0.0, help="0: losses can be compared")
    a.add_argument("--as-installed", action="store_true", help="tuned.py changes nothing")
    a.add_argument("--prefetch", type=int, default=-1, help="zeroflow's")
    a.add_argument("--bucket", type=int, default=0,
                   help="elements in a bucket of the others; 0: their own")
    a.add_argument("--systems", nargs="+", choices=NAMES, default=list(NAMES))
    a.add_argument("--stages", nargs="+", type=int, choices=range(4), default=list(range(4)))
    a.add_argument("--limit", type=int, default=350, help="seconds after which it ends in any case")
    o = a.parse_args()
    o.steps = WARMUP + o.rounds * TURN

    def late(*_):
        raise Late

    signal.signal(signal.SIGALRM, late)
    signal.alarm(o.limit)
    systems, versions, start = {}, {}, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            write_inputs(pathlib.Path(folder), o)
            for stage in o.stages:
                for kind in o.systems:
                    make = Zeroflow if kind in ("threads", "mpi") else Peer
                    systems[kind, stage] = make(kind, stage, pathlib.Path(folder), o)
            for (kind, _), s in systems.items():
                for answer in s.answers()[:1] if isinstance(s, Peer) else []:
                    versions[kind] = answer["system"]
            if versions:
                print("; ".join(versions.values()), flush=True)
            for number in range(o.rounds):
                for s in systems.values():
                    if not s.error:
                        s.round(number)
                print(f"round {number + 1} done after {time.monotonic() - start:.0f} s; "
                      f"load {os.getloadavg()[0]:.1f}", flush=True)
        except Late:
            print(f"not done after {o.limit} seconds")
        finally:
            signal.alarm(0)
            for s in systems.values():
                if isinstance(s, Peer):
                    s.end()
        if systems:
            report(systems, o)


if __name__ == "__main__":
    main()
