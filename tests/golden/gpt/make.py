"""GPT-2 goldens from PyTorch and transformers: a tiny GPT2LMHeadModel on the CPU.

    pip install torch transformers safetensors numpy
    python make.py            # writes the files below, prints how far f32 PyTorch is from f64
    python make.py generated  # writes the folder generated/ alone

2 layers, hidden 32, 2 heads, vocabulary 97, positions 40, T = 24, B = 3, no dropout. The truth is
the f64 run of the same model (attention "eager": scores + mask, softmax); the f32 run tells how much
of a difference is rounding.

    config.json              Hugging Face form
    init.safetensors         F32, Hugging Face names and shapes (Conv1D weights are [in, out]), no
                             tied head; all parameters random
    batch.safetensors        I64 input_ids and labels [S,B,T], S = 3; step k takes entry k mod S.
                             Labels are the ids, but -100 at some places; transformers shifts them
    step0.safetensors        F64 [] loss at init on entry 0, and the f64 gradient of every parameter
                             cast to F32, under its name
    adamw10.json             ten steps: settings, and per step loss (before its update) and grad_norm
                             (before clipping), each also as *_f32; loss_after: entry 0 after the
                             last update
    adamw10_params.safetensors  F32 (of the f64 run): parameters after the last update
    generated/               a smaller model with more positions: config.json, model.safetensors
                             (BF16), and tokens.safetensors: I32 "prompts" [P,9], -1 after their
                             ends, and "tokens" [P,200], the most likely tokens that follow, by
                             generate in f64 with a repetition penalty of 1.3; they and the second
                             ones are at least 5e-5 apart in their logits

Rule of a step: g /= max(1, (||g|| + 1e-6) / clip), ||g|| over all parameters (the tied weight
once); then the update, with weight decay on tensors of rank 2 only.

The gradient of the middle third of every `attn.c_attn.bias`, that of the keys, is zero: it adds the
same number to all scores of a query. AdamW makes steps out of its rounding, so leave these biases
out of a comparison of parameters.
"""
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

HERE = pathlib.Path(__file__).parent
S, B, T, V, STEPS = 3, 3, 24, 97, 10

CONFIG = dict(vocab_size=V, n_positions=40, n_embd=32, n_layer=2, n_head=2, n_inner=None,
              activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
              layer_norm_epsilon=1e-5, initializer_range=0.02, bos_token_id=0, eos_token_id=0)
ADAMW = dict(optimizer="adamw", lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.1, clip=1.0)


def make_init(model):
    """Every parameter random: weights wide enough that attention is far from uniform."""
    rng = np.random.default_rng(1)
    init = {}
    for name, p in model.named_parameters():    # visits the tied weight once, as transformer.wte
        x = rng.standard_normal(tuple(p.shape))
        x = 1 + 0.2 * x if ".ln_" in name and name.endswith("weight") else 0.15 * x
        init[name] = x.astype(np.float32)
    return init


def make_batch():
    rng = np.random.default_rng(2)
    ids = (V * rng.random((S, B, T)) ** 2).astype(np.int64)    # the square makes low ids frequent
    labels = np.where(rng.random((S, B, T)) < 0.1, -100, ids)
    labels[1, 2, 5:] = -100
    return {"input_ids": ids, "labels": labels}


class Run:
    """The model in one precision, with its loss and gradients on entry s of the batch."""

    def __init__(self, init, batch, dtype):
        config = GPT2Config(**CONFIG)
        config._attn_implementation = "eager"
        self.model = GPT2LMHeadModel(config).to(dtype).train()
        self.model.tie_weights()
        self.params = dict(self.model.named_parameters())
        assert self.params.keys() == init.keys()
        with torch.no_grad():
            for name, p in self.params.items():
                p.copy_(torch.from_numpy(init[name]))
        self.batch = {k: torch.from_numpy(v) for k, v in batch.items()}

    def loss(self, s):
        """Of the logits as they are; the loss that transformers returns is rounded to f32."""
        ids, labels = self.batch["input_ids"][s], self.batch["labels"][s]
        out = self.model(input_ids=ids, labels=labels)
        loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1),
                                                 labels[:, 1:].flatten())
        assert abs(out.loss.item() - loss.item()) < 1e-5
        return loss

    def grads(self, s):
        loss = self.loss(s)
        self.model.zero_grad()
        loss.backward()
        return loss.item(), {n: p.grad for n, p in self.params.items()}

    def train(self, settings):
        wd, clip = settings["weight_decay"], settings["clip"]
        groups = [{"params": [p for p in self.params.values() if (p.dim() >= 2) == decayed],
                   "weight_decay": wd if decayed else 0.0} for decayed in (True, False)]
        optimizer = torch.optim.AdamW(groups, lr=settings["lr"], betas=tuple(settings["betas"]),
                                      eps=settings["eps"], foreach=False)
        curve = []
        for k in range(STEPS):
            loss, grads = self.grads(k % S)
            norm = torch.sqrt(sum((g * g).sum() for g in grads.values())).item()
            for g in grads.values():
                g /= max(1.0, (norm + 1e-6) / clip)
            optimizer.step()
            curve.append([loss, norm])
        with torch.no_grad():
            after = self.loss(0).item()
        return np.array(curve).T, after, {n: p.detach().clone() for n, p in self.params.items()}


def nmse(x, truth):
    """Mean squared error over the mean square of the truth."""
    return (((x.double() - truth) ** 2).sum() / (truth ** 2).sum()).item()


def print_far(what, x, truth):
    for e, n in sorted(((nmse(x[n], truth[n]), n) for n in truth), reverse=True)[:4]:
        print(f"    {what} nmse {e:.1e} {n}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    batch = make_batch()
    save_file(batch, HERE / "batch.safetensors")

    model = GPT2LMHeadModel(GPT2Config(**CONFIG))
    init = make_init(model)
    model.load_state_dict({n: torch.from_numpy(v) for n, v in init.items()}, strict=False)
    model.tie_weights()
    model.save_pretrained(HERE / "saved")    # what Hugging Face writes; checked and moved
    (HERE / "saved" / "model.safetensors").rename(HERE / "init.safetensors")
    (HERE / "saved" / "config.json").rename(HERE / "config.json")
    for rest in (HERE / "saved").iterdir():
        rest.unlink()
    (HERE / "saved").rmdir()
    saved = load_file(HERE / "init.safetensors")
    assert saved.keys() == init.keys() and all(np.array_equal(saved[n], init[n]) for n in init)

    loss, grads = Run(init, batch, torch.float64).grads(0)
    loss_f32, grads_f32 = Run(init, batch, torch.float32).grads(0)
    step0 = {n: g.float().numpy() for n, g in grads.items()}
    save_file({**step0, "loss": np.array(loss)}, HERE / "step0.safetensors")
    print(f"step 0: loss {loss:.9f}; f32 PyTorch: off by {abs(loss_f32 / loss - 1):.1e} relative")
    print_far("gradient", grads_f32, grads)

    truth, after, params = Run(init, batch, torch.float64).train(ADAMW)
    f32, after_f32, params_f32 = Run(init, batch, torch.float32).train(ADAMW)
    out = dict(ADAMW, steps=STEPS)
    for i, name in enumerate(("loss", "grad_norm")):
        out[name], out[name + "_f32"] = truth[i].tolist(), f32[i].tolist()
    out["loss_after"], out["loss_after_f32"] = after, after_f32
    text = json.dumps(out, indent=1).replace("\n  ", " ").replace("\n ]", " ]")
    (HERE / f"adamw{STEPS}.json").write_text(text + "\n")
    save_file({n: p.float().numpy() for n, p in params.items()},
              HERE / f"adamw{STEPS}_params.safetensors")
    print(f"adamw: loss {truth[0][0]:.6f} -> {after:.6f}, grad norm {truth[1].min():.3f} to "
          f"{truth[1].max():.3f} (clip {ADAMW['clip']}); f32 PyTorch: loss off by "
          f"{np.abs(f32[0] / truth[0] - 1).max():.1e} relative at worst")
    print_far("parameter", params_f32, params)


def make_generated():
    folder = HERE / "generated"
    rng = np.random.default_rng(4)
    model = GPT2LMHeadModel(GPT2Config(**{**CONFIG, "vocab_size": 37, "n_positions": 224, "n_embd": 16}))
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.from_numpy(rng.standard_normal(tuple(p.shape)))
            p.copy_(1 + 0.2 * x if ".ln_" in name and name.endswith("weight") else 0.3 * x)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    prompts = [[5, 11, 3, 28, 30], [7], [1, 2, 35, 4, 36, 6, 21, 8, 9]]
    rows, least = [], np.inf
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                             max_new_tokens=200, eos_token_id=None, pad_token_id=0,
                             repetition_penalty=1.3, return_dict_in_generate=True,
                             output_scores=True)
        best = torch.cat(out.scores).topk(2).values
        least = min(least, (best[:, 0] - best[:, 1]).min().item())
        rows.append(out.sequences[0, len(prompt):].int().numpy())
    print(f"generated: {[len(set(r.tolist())) for r in rows]} different tokens, apart {least:.2g}")
    assert least > 5e-5
    save_file({"prompts": np.array([p + [-1] * (9 - len(p)) for p in prompts], np.int32),
               "tokens": np.stack(rows)}, folder / "tokens.safetensors")


if __name__ == "__main__":
    if sys.argv[1:] == ["generated"]:
        make_generated()
    else:
        main()
        make_generated()
