"""BERT pretraining goldens from PyTorch and transformers: a tiny BertForPreTraining on the CPU.

    pip install torch transformers timm safetensors numpy
    python make.py            # writes the files below, prints how far f32 PyTorch is from f64

2 layers, hidden 64, 2 heads, intermediate 256, vocabulary 197, positions 64, T = 32, B = 4, no
dropout. The truth is the f64 run of the same model (attention "eager": scores + mask, softmax); the
f32 run tells how much of a difference is rounding.

    config.json                 Hugging Face form
    init.safetensors            F32, Hugging Face names, no tied decoder; all parameters random
    batch.safetensors           I64 input_ids, token_type_ids, attention_mask, labels [S,B,T] and
                                next_sentence_label [S,B], S = 4; step k takes entry k mod S.
                                Lengths 32 to 6, padded at the end with id 0; 0 to 7 labels in a
                                sequence, never on padding. Id 0 is nowhere else, so it makes no
                                difference that Hugging Face gives its embedding no gradient.
    step0.safetensors           F64 [] loss, mlm_loss, nsp_loss at init on entry 0, and the f64
                                gradient of every parameter cast to F32, under its name.
                                loss = mean of MLM over the labels + mean of NSP over B
    adamw20.json, lamb20.json   twenty steps: settings, and per step loss, mlm_loss, nsp_loss
                                (before its update), grad_norm (before clipping), each also as
                                *_f32; loss_after: entry 0 after the last update
    adamw20_params.safetensors  F32 (of the f64 run): parameters after the last update

Rule of a step: g /= max(1, (||g|| + 1e-6) / clip), ||g|| over all parameters (the tied weight
once); then the update, with weight decay on tensors of rank 2 and more only.

The gradient of every `attention.self.key.bias` is zero: it adds the same number to all scores of a
query. What stands in step0 is the rounding of f64 (1e-18); compare it with the size of the
gradient of `attention.self.query.bias`, and leave it out of the comparison of parameters, because
AdamW makes steps out of rounding.
"""
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import BertConfig, BertForPreTraining

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "optim"))
from lamb import bounded, lamb    # noqa: E402

S, B, T, V, STEPS = 4, 4, 32, 197, 20
PAD, CLS, SEP, MASK, FIRST_WORD = 0, 2, 3, 4, 5

CONFIG = dict(architectures=["BertForPreTraining"], model_type="bert", vocab_size=V, hidden_size=64,
              num_hidden_layers=2, num_attention_heads=2, intermediate_size=256, hidden_act="gelu",
              hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=64,
              type_vocab_size=2, initializer_range=0.02, layer_norm_eps=1e-12, pad_token_id=PAD)

ADAMW = dict(optimizer="adamw", lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.01, clip=1.0)
LAMB = dict(optimizer="lamb", lr=1e-2, betas=[0.9, 0.999], eps=1e-6, weight_decay=0.01, clip=5.0,
            min_coeff=0.01, max_coeff=10.0)


def make_init(model):
    """Every parameter random: weights wide enough that attention is far from uniform."""
    rng = np.random.default_rng(1)
    init = {}
    for name, p in model.named_parameters():    # visits a tied weight once, under its first name
        x = rng.standard_normal(tuple(p.shape))
        x = 1 + 0.2 * x if name.endswith("LayerNorm.weight") else 0.1 * x
        init[name] = x.astype(np.float32)
    return init


def make_batch():
    rng = np.random.default_rng(2)
    lengths = [[32, 21, 6, 13], [32, 32, 32, 32], [9, 30, 17, 25], [11, 32, 7, 20]]
    labelled = [[5, 3, 0, 2], [5, 7, 4, 6], [1, 4, 3, 0], [2, 5, 1, 3]]
    x = {k: np.zeros((S, B, T), np.int64)    # padding is 0 in all three
         for k in ("input_ids", "token_type_ids", "attention_mask")}
    x["labels"] = np.full((S, B, T), -100, np.int64)
    x["next_sentence_label"] = rng.integers(0, 2, (S, B))
    for s in range(S):
        for b in range(B):
            n = lengths[s][b]
            half = int(rng.integers(2, n - 2))    # [CLS] a ... [SEP] b ... [SEP]
            # The square makes low ids frequent, so that words repeat within a batch.
            ids = FIRST_WORD + ((V - FIRST_WORD) * rng.random(n) ** 2).astype(np.int64)
            ids[0], ids[half], ids[n - 1] = CLS, SEP, SEP
            words = np.setdiff1d(np.arange(1, n - 1), [half])
            where = rng.choice(words, labelled[s][b], replace=False)
            x["labels"][s, b, where] = ids[where]
            for t in where:
                u = rng.random()
                if u < 0.9:
                    ids[t] = MASK if u < 0.8 else rng.integers(FIRST_WORD, V)
            x["input_ids"][s, b, :n] = ids
            x["token_type_ids"][s, b, half + 1:n] = 1
            x["attention_mask"][s, b, :n] = 1
    return x


class Run:
    """The model in one precision, with its losses and gradients on entry s of the batch."""

    def __init__(self, init, batch, dtype):
        config = BertConfig(**CONFIG)
        config._attn_implementation = "eager"
        self.model = BertForPreTraining(config).to(dtype).train()
        self.model.tie_weights()
        self.params = dict(self.model.named_parameters())
        assert self.params.keys() == init.keys()
        with torch.no_grad():
            for name, p in self.params.items():
                p.copy_(torch.from_numpy(init[name]))
        self.batch = {k: torch.from_numpy(v) for k, v in batch.items()}

    def losses(self, s):
        """Tensors loss, mlm_loss, nsp_loss; the first is the one that transformers returns."""
        entry = {k: v[s] for k, v in self.batch.items()}
        out = self.model(**entry)
        ce = torch.nn.functional.cross_entropy
        mlm = ce(out.prediction_logits.flatten(0, 1), entry["labels"].flatten())
        nsp = ce(out.seq_relationship_logits, entry["next_sentence_label"])
        assert torch.equal(out.loss, mlm + nsp)
        return out.loss, mlm, nsp

    def grads(self, s):
        losses = self.losses(s)
        self.model.zero_grad()
        losses[0].backward()
        return [x.item() for x in losses], {n: p.grad for n, p in self.params.items()}

    def train(self, settings):
        lr, betas, eps = settings["lr"], tuple(settings["betas"]), settings["eps"]
        wd, clip = settings["weight_decay"], settings["clip"]
        groups = [{"params": [p for p in self.params.values() if (p.dim() >= 2) == decayed],
                   "weight_decay": wd if decayed else 0.0} for decayed in (True, False)]
        if settings["optimizer"] == "adamw":
            optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, foreach=False)
        else:
            optimizer = lamb(groups, lr, betas, eps, wd)
        curve = []
        for k in range(STEPS):
            losses, grads = self.grads(k % S)
            norm = torch.sqrt(sum((g * g).sum() for g in grads.values())).item()
            for g in grads.values():
                g /= max(1.0, (norm + 1e-6) / clip)
            optimizer.step()
            curve.append([*losses, norm])
        with torch.no_grad():
            after = self.losses(0)[0].item()
        return np.array(curve).T, after, {n: p.detach().clone() for n, p in self.params.items()}


def nmse(x, truth):
    """Mean squared error over the mean square of the truth."""
    return (((x.double() - truth) ** 2).sum() / (truth ** 2).sum()).item()


def twenty(settings, init, batch):
    truth, after, params = Run(init, batch, torch.float64).train(settings)
    f32, after_f32, params_f32 = Run(init, batch, torch.float32).train(settings)
    out = dict(settings, steps=STEPS)
    for i, name in enumerate(("loss", "mlm_loss", "nsp_loss", "grad_norm")):
        out[name], out[name + "_f32"] = truth[i].tolist(), f32[i].tolist()
    out["loss_after"], out["loss_after_f32"] = after, after_f32
    name = settings["optimizer"]
    text = json.dumps(out, indent=1).replace("\n  ", " ").replace("\n ]", " ]")
    (HERE / f"{name}{STEPS}.json").write_text(text + "\n")

    print(f"{name}: loss {truth[0][0]:.6f} -> {after:.6f}, grad norm {truth[3].min():.3f} to "
          f"{truth[3].max():.3f} (clip {settings['clip']}); f32 PyTorch: loss off by "
          f"{np.abs(f32[0] / truth[0] - 1).max():.1e} relative at worst")
    far = sorted(((nmse(params_f32[n], params[n]), n) for n in params), reverse=True)
    for e, n in far[:4]:
        print(f"    parameter nmse {e:.1e} {n}")
    return params


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    batch = make_batch()
    save_file(batch, HERE / "batch.safetensors")

    BertConfig(**CONFIG).save_pretrained(HERE)
    model = BertForPreTraining(BertConfig(**CONFIG))
    init = make_init(model)
    model.load_state_dict({n: torch.from_numpy(v) for n, v in init.items()}, strict=False)
    model.tie_weights()
    model.save_pretrained(HERE / "saved")    # what Hugging Face writes; checked and moved
    (HERE / "saved" / "model.safetensors").rename(HERE / "init.safetensors")
    for rest in (HERE / "saved").iterdir():
        rest.unlink()
    (HERE / "saved").rmdir()
    saved = load_file(HERE / "init.safetensors")
    assert saved.keys() == init.keys() and all(np.array_equal(saved[n], init[n]) for n in init)

    losses, grads = Run(init, batch, torch.float64).grads(0)
    losses_f32, grads_f32 = Run(init, batch, torch.float32).grads(0)
    step0 = {n: g.float().numpy() for n, g in grads.items()}
    for name, value in zip(("loss", "mlm_loss", "nsp_loss"), losses):
        step0[name] = np.array(value)
    save_file(step0, HERE / "step0.safetensors")
    print(f"step 0: loss {losses[0]:.9f}; f32 PyTorch: off by "
          f"{abs(losses_f32[0] / losses[0] - 1):.1e} relative")
    far = sorted(((nmse(grads_f32[n], g), n) for n, g in grads.items()), reverse=True)
    for e, n in far[:6]:
        print(f"    gradient nmse {e:.1e} {n} (norm {grads[n].norm():.1e}, f32 "
              f"{grads_f32[n].norm():.1e})")

    params = twenty(ADAMW, init, batch)
    params = {n: p.float().numpy() for n, p in params.items()}
    save_file(params, HERE / "adamw20_params.safetensors")
    with bounded(LAMB["min_coeff"], LAMB["max_coeff"]):
        twenty(LAMB, init, batch)


if __name__ == "__main__":
    main()
