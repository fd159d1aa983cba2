#!/usr/bin/env python3
"""Generation by zeroflow and by llama.cpp, of one Llama with made-up weights, in turns on the same threads.

    make build/bench/generate && pip install llama-cpp-python gguf numpy
    python bench/peers/llamacpp.py                   # 160 million parameters, f16 and q8_0: minutes
    python bench/peers/llamacpp.py --layers 2 --hidden 128 --rounds 1    # that it runs

Where there is no wheel, its source package has llama.cpp in vendor/llama.cpp: build the target `llama`
there with cmake (-DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON) into DIR, link DIR/bin/libggml.so into the
package's llama_cpp/lib, and set PYTHONPATH to the package and LLAMA_CPP_LIB_PATH to DIR/bin.

The model is written as GGUF in f16, and in q8_0: blocks of 32 integers of 8 bits with a scale in f16,
8.5 bits a weight. zeroflow has bf16, and int8 (blocks of 64 with a scale in bf16, 8.25 bits). Both
take a prompt in one batch, then one token at a time; keys and values are in caches. Printed are
medians over the rounds of the tokens/s of a prompt and of generation, and the ratios. Figures are
only fair on a quiet machine: the load average is printed too.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

KINDS = {"f16": ("bf16", []), "q8_0": ("bf16", ["--weights", "int8"])}


def write_gguf(o, path, kind):
    import gguf
    import numpy as np
    random = np.random.default_rng(0)
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(2048)
    w.add_embedding_length(o.hidden)
    w.add_block_count(o.layers)
    w.add_feed_forward_length(4 * o.hidden)
    w.add_head_count(o.hidden // 64)
    w.add_head_count_kv(o.hidden // 64)
    w.add_rope_dimension_count(64)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_vocab_size(32000)
    w.add_tokenizer_model("no_vocab")

    def put(name, *shape):
        x = (0.02 * random.standard_normal(shape)).astype(np.float32)
        if len(shape) == 1:
            w.add_tensor(name, 1 + x)
        elif kind == "f16" or name.startswith("token"):
            w.add_tensor(name, x.astype(np.float16))
        else:
            w.add_tensor(name, gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0),
                         raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    put("token_embd.weight", 32000, o.hidden)
    for k in range(o.layers):
        for name in ("q", "k", "v", "output"):
            put(f"blk.{k}.attn_{name}.weight", o.hidden, o.hidden)
        for name in ("gate", "up"):
            put(f"blk.{k}.ffn_{name}.weight", 4 * o.hidden, o.hidden)
        put(f"blk.{k}.ffn_down.weight", o.hidden, 4 * o.hidden)
        put(f"blk.{k}.attn_norm.weight", o.hidden)
        put(f"blk.{k}.ffn_norm.weight", o.hidden)
    put("output_norm.weight", o.hidden)
    put("output.weight", 32000, o.hidden)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def peer(o, path):
    """Prints tokens/s of a prompt, and of the median token; a process of its own."""
    import llama_cpp as lib
    lib.llama_backend_init()
    m = lib.llama_model_default_params()
    m.use_extra_bufts = not o.plain
    model = lib.llama_model_load_from_file(str(path).encode(), m)
    d = lib.llama_context_default_params()
    d.n_ctx = o.prompt + o.tokens + 8
    d.n_batch = d.n_ubatch = o.prompt
    d.n_threads = d.n_threads_batch = o.threads
    context = lib.llama_init_from_model(model, d)
    memory = lib.llama_get_memory(context)

    def add(ids):
        array = (lib.llama_token * len(ids))(*ids)
        start = time.perf_counter()
        if lib.llama_decode(context, lib.llama_batch_get_one(array, len(ids))):
            sys.exit("llama_decode has failed")
        lib.llama_get_logits(context)
        return time.perf_counter() - start

    for _ in range(2):   # the first one meets a cold memory
        lib.llama_memory_clear(memory, True)
        prompt = add([k * 7 % 32000 for k in range(o.prompt)])
    each = statistics.median(add([k * 7 % 32000]) for k in range(o.tokens))
    print(json.dumps([o.prompt / prompt, 1 / each]))


def output(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def ours(o, folder, precision, more):
    found = json.loads(output([o.generate, "--model", folder / "config.json", "--prompt", o.prompt,
                               "--tokens", o.tokens, "--threads", o.threads, "--rounds", 1,
                               "--precision", precision, "--json", *more]))
    return found["prompt_tokens_per_s"], found["tokens_per_s"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--hidden", type=int, default=768)
    p.add_argument("--prompt", type=int, default=256)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    p.add_argument("--plain", action="store_true",
                   help="llama.cpp reads weights as they are in the file: no packing, no AMX")
    p.add_argument("--generate", default="build/bench/generate")
    p.add_argument("--peer", help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.peer:
        return peer(o, o.peer)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "config.json").write_text(json.dumps(dict(
            model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=32000,
            hidden_size=o.hidden, intermediate_size=4 * o.hidden, num_hidden_layers=o.layers,
            num_attention_heads=o.hidden // 64, max_position_embeddings=2048, rms_norm_eps=1e-6,
            hidden_act="silu", tie_word_embeddings=False)))
        sizes = [f"--{k}={getattr(o, k)}" for k in ("prompt", "tokens", "threads")]
        sizes += ["--plain"] * o.plain
        print(f"{o.layers} layers of {o.hidden}, {o.prompt} tokens and {o.tokens}, {o.threads} "
              f"threads; load {os.getloadavg()[0]:.1f}")
        for kind in o.kinds:
            precision, more = KINDS[kind]
            write_gguf(o, folder / "model.gguf", kind)
            a, b = [], []
            for _ in range(o.rounds):
                a.append(ours(o, folder, precision, more))
                b.append(json.loads(output([sys.executable, __file__, *sizes, "--peer",
                                            folder / "model.gguf"]).splitlines()[-1]))
            a, b = ([statistics.median(x) for x in zip(*rows)] for rows in (a, b))
            for k, what in enumerate(("prompt", "generation")):
                print(f"{kind}, {what}: {a[k]:.1f} tokens/s, llama.cpp {b[k]:.1f}: "
                      f"{a[k] / b[k]:.2f}")


if __name__ == "__main__":
    main()
