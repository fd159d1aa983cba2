#!/usr/bin/env python3
"""The table of bench/cuda.sh, in Markdown, from what it has left in a folder:

    python3 bench/peers/cuda_table.py build/cuda/bench-out 'sh bench/cuda.sh' > table.md
"""
import json
import pathlib
import re
import sys

FOLDER = pathlib.Path(sys.argv[1])


# Dense bf16 TFLOP/s and GB/s of memory by the datasheet, by a word of the device's name; the first
# that fits counts.
DATASHEET = (("H100 PCIe", 756, 2000), ("H100 NVL", 835, 3900), ("H100", 989, 3350),
             ("H200", 989, 4800), ("A100", 312, 2039), ("B200", 2250, 8000))


def datasheet(which=0):
    return next((rates[which] for word, *rates in DATASHEET if word in text("gpu")), None)


def load(name):
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def text(name):
    path = FOLDER / name
    return path.read_text().strip() if path.exists() else ""


def last(name):
    lines = [line for line in text(f"{name}.log").splitlines() if line.strip()]
    return lines[-1] if lines else "not run"


def gib(x):
    return f"{x / 2**30:.1f}" if x else ""


def tflops(r):
    return f"{r['gflops'] / 1e3:.0f}" if r["gflops"] else ""


def losses(name):
    return [float(line) for line in text(f"{name}.losses").split()]


def tests():
    print("## Tests\n")
    print(f"- on the device: {last('tests')}")
    cpu, cuda, again = losses("cpu"), losses("cuda"), losses("again")
    if cpu and cuda:
        off = max(abs(a - b) / abs(a) for a, b in zip(cpu, cuda))
        print(f"- BERT-tiny, {len(cuda)} steps in f32, dropout 0.1: losses within {off:.2g} of the CPU's "
              f"(wanted: 1e-4: {'yes' if off <= 1e-4 and len(cpu) == len(cuda) else 'NO'}); two "
              f"runs: {'the same bits' if cuda == again else 'OTHER BITS'}")
    for log in sorted(FOLDER.glob("sanitizer-*.log")):
        said = re.findall(r"(?:ERROR|RACECHECK) SUMMARY.*", log.read_text())
        print(f"- compute-sanitizer, {log.stem.removeprefix('sanitizer-')}: "
              f"{said[-1] if said else 'did not end'}")
    print()


def rates():
    found = dict(re.findall(r"^(step|most) ([\d.]+) TFLOP/s", text("matmul.log"), re.M))
    return {k: float(v) for k, v in found.items()}


def large(rate):
    if not any(FOLDER.glob("step-*.json")) and not any(FOLDER.glob("torch-*-*.json")):
        return
    print("## BERT-large, bf16, one training step (AdamW, dropout 0.1, 15% labelled)\n")
    if "most" in rate:
        print(f"The matrix rate in this run (`build/cuda/matmul`): {rate['step']:.0f} TFLOP/s over the "
              f"products of the step, {rate['most']:.0f} the best of any shape. Utilisation is the "
              "model's products (twice multiply-adds, nothing counted twice) over the time of the "
              "step, of the best; next to it the same of the datasheet's rate.\n")
    sheet = datasheet()
    print("| tokens x batch | system | tokens/s | TFLOP/s | of the best | "
          f"of {sheet or 'the datasheet'} | ms | peak GiB | GPU in use GiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for seq, batch in (128, 256), (512, 64):
        rows = [("zeroflow", load(f"step-{seq}")),
                ("zeroflow, with `invert`", load(f"invert-{seq}")),
                ("zeroflow, no CUDA graph", load(f"launches-{seq}"))]
        rows += [(f"PyTorch {m}", load(f"torch-{m}-{seq}")) for m in ("eager", "compile")]
        for name, r in rows:
            if not r:
                continue
            ms = r.get("step_ms") or 1e3 * r["batch"] * r["seq"] / r["tokens_per_s"]
            share = f"{r['gflops'] / 1e3 / rate['most']:.1%}" if "most" in rate else ""
            of_sheet = f"{r['gflops'] / 1e3 / sheet:.1%}" if sheet else ""
            print(f"| {seq} x {batch} | {name} | {r['tokens_per_s']:.0f} | {r['gflops'] / 1e3:.0f} | "
                  f"{share} | {of_sheet} | {ms:.1f} | {gib(r.get('peak_bytes'))} | "
                  f"{gib(r.get('device_bytes'))} |")
    print()
    for seq in 128, 512:
        mine = load(f"step-{seq}")
        theirs = [r for r in (load(f"torch-{m}-{seq}") for m in ("eager", "compile")) if r]
        if not mine:
            continue
        if theirs:
            best = max(theirs, key=lambda r: r["tokens_per_s"])
            print(f"- {seq} tokens: {mine['tokens_per_s'] / best['tokens_per_s']:.2f} times PyTorch "
                  f"{best['mode']}; peak memory {mine['peak_bytes'] / best['peak_bytes']:.2f} of its")
        without = load(f"launches-{seq}")
        if without:
            print(f"- {seq} tokens: replay of the graph gains "
                  f"{without['step_ms'] / mine['step_ms'] - 1:.1%}")
    torch = load("torch-eager-128") or load("torch-compile-128")
    if torch:
        print("\n`invert`, which is part of fusion unless it is left out (`--no-fuse invert`, as in the "
              "other rows), computes LayerNorms and activations again in the backward pass to save "
              "memory.")
        print(f"\n{torch['system']}: bf16 autocast, SDPA, fused AdamW, the head on labelled "
              "positions only. Peak: zeroflow's arena; what PyTorch's tensors took at most.")
    print()


def others():
    graph, launches, gpt = load("small-graph"), load("small-launches"), load("gpt")
    if graph and launches:
        print(f"BERT-mini, 128 x 16, bf16: {graph['step_ms']:.3f} ms as a graph, "
              f"{launches['step_ms']:.3f} ms launch by launch.\n")
    if gpt:
        print(f"## GPT-2 124M, bf16, 32 x 1024 tokens, no dropout\n\n"
              "| system | tokens/s | TFLOP/s | ms | peak GiB |\n|---|---|---|---|---|")
        for name, r in (("zeroflow", gpt), ("PyTorch eager", load("torch-gpt-eager")),
                        ("PyTorch compile", load("torch-gpt-compile"))):
            if r:
                print(f"| {name} | {r['tokens_per_s']:.0f} | {r['gflops'] / 1e3:.0f} | "
                      f"{32768e3 / r['tokens_per_s']:.1f} | {gib(r['peak_bytes'])} |")
        print("\nTFLOP/s count causal attention in full.\n")


def llama():
    rows = []
    for more, lora in ((", all parameters", ""), (", LoRA of rank 16", "-lora"),
                       (", the same over 4 bits", "-qlora")):
        rows.append(("zeroflow" + more, load("llama" + lora)))
        for mode in "eager", "compile":
            rows.append((f"PyTorch {mode}{more}", load(f"torch-llama{lora}-{mode}")))
    rows = [(name, r) for name, r in rows if r]
    if not rows:
        return
    print("## Llama of 160 million parameters, bf16, 32 x 1024 tokens, no dropout\n\n"
          "| system | tokens/s | TFLOP/s | ms | peak GiB |\n|---|---|---|---|---|")
    for name, r in rows:
        print(f"| {name} | {r['tokens_per_s']:.0f} | {tflops(r)} | "
              f"{32768e3 / r['tokens_per_s']:.1f} | {gib(r['peak_bytes'])} |")
    print()


def generation():
    rows = [(weights, streams, load(f"generate-{weights}-{streams}"))
            for streams in (1, 32) for weights in ("float", "int8", "int4")]
    if not any(r for _, _, r in rows):
        return
    print("## Generation by that Llama, bf16, prompts of 1024 tokens, 64 tokens each\n\n"
          "GB/s: weights and caches that a token reads, of what memory gives.\n\n"
          "| weights | texts | prompt, tokens/s | tokens/s | GB/s | of |\n|---|---|---|---|---|---|")
    for weights, streams, r in rows:
        if r:
            print(f"| {weights} | {streams} | {r['prompt_tokens_per_s']:.0f} | "
                  f"{r['tokens_per_s']:.0f} | {r['read_gbytes_per_s']:.0f} | "
                  f"{r['memory_gbytes_per_s']:.0f} |")
    print()


def operators():
    found = load("ops")
    if not found:
        return
    sheet = datasheet(1)
    print("## Single operators" + (f" (memory by the datasheet: {sheet} GB/s)" if sheet else "") +
          "\n\n| operator | ms | GB/s | of a copy | TFLOP/s |\n|---|---|---|---|---|")
    for name, r in found.items():
        print(f"| {name} | {r['ms']:.3f} | {r['gbytes_per_s']:.0f} | {r['of_copy']:.1%} | "
              f"{r['gflops'] / 1e3:.1f} |")
    print()


def offload():
    rows = [(p.stem.removeprefix("offload-"), json.loads(p.read_text()))
            for p in sorted(FOLDER.glob("offload-*.json"))]
    if not rows:
        return
    print("## Offload: GPT, bf16, layers recomputed, no dropout, not clipped\n")
    print("Host memory is pinned, and the CPU updates. TFLOP/s are the model's products without what "
          "is recomputed. `largest` are the largest that fit by their plans, with a batch of 1.\n")
    print("| what leaves the GPU | parameters, 1e9 | tokens/s | TFLOP/s | ms | GPU GiB | host GiB | "
          "disk GiB | up, down GB a step |\n|---|---|---|---|---|---|---|---|---|")
    for name, r in rows:
        print(f"| {name} | {r['parameters'] / 1e9:.2f} | {r['tokens_per_s']:.0f} | "
              f"{r['gflops'] / 1e3:.0f} | {r['step_ms']:.0f} | {gib(r['peak_bytes'])} | "
              f"{gib(r['host_bytes'])} | {gib(r['disk_bytes'])} | "
              f"{r['up_bytes'] / 1e9:.1f}, {r['down_bytes'] / 1e9:.1f} |")
    print()


def kernels():
    for name, title in (("profile-128", "BERT-large, 128 tokens"),
                        ("profile-512", "BERT-large, 512 tokens"), ("gpt-profile", "GPT-2 124M"),
                        ("llama-profile", "Llama, all parameters"),
                        ("llama-lora-profile", "Llama, LoRA of rank 16")):
        r = load(name)
        if not r:
            continue
        total = sum(r["ms"].values())
        print(f"## Time by operator, {title}\n\nEvents around each launch; {total:.1f} ms in "
              f"all. The floor is what bytes or products take at the rates of memory (measured) and "
              "of products.\n\n| operator | ms | share | floor, ms |\n|---|---|---|---|")
        for op, ms in sorted(r["ms"].items(), key=lambda x: -x[1]):
            if ms > 0.003 * total:
                print(f"| {op} | {ms:.2f} | {ms / total:.1%} | {r['floor_ms'][op]:.2f} |")
        print()
    if text("matmul.log"):
        print("## Matrix products\n\n```\n" + text("matmul.log") + "\n```\n")


def main():
    what = text("what").splitlines()
    print(f"# {(text('gpu') or 'no GPU').splitlines()[0]}\n")
    print(f"`{sys.argv[2]}`, " + ", ".join(line.strip() for line in what) + "\n")
    rate = rates()
    large(rate)
    others()
    llama()
    generation()
    operators()
    offload()
    tests()
    kernels()
    failed = sorted(p.stem for p in FOLDER.glob("*.failed"))
    if failed:
        print("Ended with an error or ran out of time: " + ", ".join(failed) + "\n")


main()
