"""OPT: small random models as folders of transformers, with the logits, the loss and the gradients that
it computes of them in float64, on the batches of ../llm.

    pip install torch transformers safetensors numpy
    python make.py                   # writes the folders
    python make.py check FOLDER      # loads what `build/opt export --load NAME FOLDER/NAME` wrote

    NAME/config.json, model.safetensors    a model: "before" has norms before what they are for, as
                                 125m and 1.3b have, "after" has them after it and projects its word
                                 embedding, as 350m
    NAME/expected.safetensors    F32 of f64: "logits" [B,T,V], "loss" [], and the gradient of every
                                 parameter under its name
    NAME/trained.safetensors     F64 "losses" [20], of AdamW over the batch, each before its update
    generated.safetensors        I32 "prompts" [P,9], -1 after their ends, and of each model NAME
                                 [P,200], the most likely tokens that follow, by generate in f64 with a
                                 repetition penalty; they and the second ones are at least 5e-5 apart
                                 in their logits

The gradient of k_proj.bias is zero: it adds the same number to all scores of a query.
"""
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM

HERE = pathlib.Path(__file__).parent
V, TOKENS = 37, 200
SIZES = dict(vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_dim=20,
             max_position_embeddings=256, dropout=0.0, attention_dropout=0.0, use_cache=False,
             attn_implementation="eager")

# name: masked batch, dtype of the file, repetition penalty, the rest
CASES = {
    "before": (True, torch.float32, 3.0, dict(word_embed_proj_dim=16)),
    "after": (False, torch.float16, 2.5, dict(do_layer_norm_before=False, word_embed_proj_dim=12)),
}


def fill(model, dtype):
    """Every parameter random, exact in the file's dtype, and wide enough to matter."""
    rng = np.random.default_rng(len(list(model.parameters())))
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.from_numpy(rng.standard_normal(tuple(p.shape)))
            gain = "norm" in name and name.endswith("weight")
            p.copy_((1 + 0.2 * x if gain else 0.25 * x).to(dtype))
    return model


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")


def read_batch(masked):
    path = HERE.parent / "llm" / ("batch-masked.safetensors" if masked else "batch.safetensors")
    return {k: v[0] for k, v in load_file(path).items()}


def make_case(name):
    masked, dtype, _, more = CASES[name]
    folder = HERE / name
    fill(OPTForCausalLM(OPTConfig(**{**SIZES, **more})).to(torch.float64), dtype).to(
        dtype).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model, batch = load(folder).eval(), read_batch(masked)
    logits = model(batch["input_ids"], attention_mask=batch.get("attention_mask")).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1),
                                             batch["labels"][:, 1:].flatten())
    loss.backward()
    tensors = {n: p.grad for n, p in model.named_parameters()}
    tensors.update(logits=logits.detach(), loss=loss.detach())
    save_file({n: x.float().contiguous() for n, x in tensors.items()}, folder / "expected.safetensors")
    print(f"{name}: loss {loss.item():.6f}, {sum(p.numel() for p in model.parameters())} weights")


def make_trained(name, steps=20):
    model, batch, losses = load(HERE / name).eval(), read_batch(CASES[name][0]), []
    step = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3, weight_decay=0)
    for _ in range(steps):
        logits = model(batch["input_ids"], attention_mask=batch.get("attention_mask")).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1),
                                                 batch["labels"][:, 1:].flatten())
        losses.append(loss.item())
        step.zero_grad()
        loss.backward()
        step.step()
    save_file({"losses": torch.tensor(losses, dtype=torch.float64)}, HERE / name / "trained.safetensors")
    print(f"{name}: losses {losses[0]:.6f} to {losses[-1]:.6f}")


def make_generated():
    prompts = [[5, 11, 3, 28, 30], [7], [1, 2, 35, 4, 36, 6, 21, 8, 9]]
    tensors = {"prompts": torch.tensor([p + [-1] * (9 - len(p)) for p in prompts], dtype=torch.int32)}
    for name, (_, _, penalty, _) in CASES.items():
        model, rows, least = load(HERE / name), [], np.inf
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                 max_new_tokens=TOKENS, use_cache=True, eos_token_id=None, pad_token_id=1,
                                 repetition_penalty=penalty, return_dict_in_generate=True,
                                 output_scores=True)
            best = torch.cat(out.scores).topk(2).values
            least = min(least, (best[:, 0] - best[:, 1]).min().item())
            rows.append(out.sequences[0, len(prompt):].int())
        print(f"{name}: {[len(set(r.tolist())) for r in rows]} different tokens, apart {least:.2g}")
        assert least > 5e-5
        tensors[name] = torch.stack(rows)
    save_file(tensors, HERE / "generated.safetensors")


def check(exported):
    ids = read_batch(False)["input_ids"]
    for name in CASES:
        golden = load(HERE / name)
        own, info = AutoModelForCausalLM.from_pretrained(exported / name, dtype=torch.float64,
                                                         attn_implementation="eager",
                                                         output_loading_info=True)
        assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        own.load_state_dict(golden.state_dict(), strict=True)
        own = load(exported / name)
        with torch.no_grad():
            assert torch.equal(own(ids).logits, golden(ids).logits)
        assert own.config.eos_token_id == golden.config.eos_token_id
        print(name, "is equal")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if len(sys.argv) > 2:
        check(pathlib.Path(sys.argv[2]))
    else:
        for each in CASES:
            make_case(each)
            make_trained(each)
        make_generated()
