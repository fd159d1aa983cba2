"""Reward models: small random ...ForSequenceClassification as folders of transformers, with their
scores, losses of pairs, gradients, and twenty steps of training, in float64.

    pip install torch transformers peft safetensors numpy
    python make.py                   # writes the folders and pairs.safetensors
    python make.py adapter           # writes the adapter alone
    python make.py check FOLDER      # loads what `build/llm export --load NAME FOLDER/NAME` (of gpt2
                                     # build/gpt, of opt build/opt) wrote

    pairs.safetensors            I64 "ids" [6,9]: chosen and rejected texts in turns, -1 after their
                                 ends; F64 "margin" [3]
    NAME/config.json, model.safetensors    a model; its weights are f32 or bf16
    NAME/expected.safetensors    F32 of f64: "scores" [6]; "loss" [], of pairs with the margins and a
                                 centre term of CENTER, and the gradient of every parameter under its
                                 name; "losses" [21], before each step of AdamW and after the last;
                                 "positions" [], DeepSpeed-Chat's loss, and of every parameter
                                 "positions/NAME", its gradient
    adapter/                     an adapter of ../llm/llama2 with a head, as PEFT saves it;
                                 expected.safetensors has its "scores" [6]

A text is scored alone and without pad_token_id: else transformers takes trailing tokens of that id for
padding, also where they belong to the text. For the loss of positions the rows are padded with PAD and masked, as DeepSpeed-Chat's are.

AdamW: lr 1e-3, betas 0.9 and 0.999, eps 1e-8, weight decay 0.1 on tensors of rank 2, the norm
clipped at 1.
"""
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

HERE = pathlib.Path(__file__).parent
LLM = HERE.parent / "llm"
V, T, STEPS, CENTER, PAD = 37, 9, 20, 0.02, 0
SIZES = dict(vocab_size=V, num_labels=1, use_cache=False, bos_token_id=1, eos_token_id=2,
             attn_implementation="eager")
RELATIVES = dict(num_hidden_layers=2, max_position_embeddings=64)

# name: model type, dtype of the file, the rest
CASES = {
    "llama": ("llama", torch.float32,
              dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=20,
                   pad_token_id=2, **RELATIVES)),
    "qwen2": ("qwen2", torch.float32,
              dict(hidden_size=12, num_attention_heads=6, num_key_value_heads=3, intermediate_size=10,
                   tie_word_embeddings=True, **RELATIVES)),
    "qwen3": ("qwen3", torch.bfloat16,
              dict(hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                   intermediate_size=15, **RELATIVES)),
    "gpt2": ("gpt2", torch.float32,
             dict(n_embd=16, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
                  attn_pdrop=0.0)),
    "opt": ("opt", torch.float32,
            dict(hidden_size=16, num_attention_heads=4, ffn_dim=20, word_embed_proj_dim=12,
                 do_layer_norm_before=False, dropout=0.0, attention_dropout=0.0, **RELATIVES)),
}

# The end token is inside a text, last in two, and missing in others; text 5 begins as text 4.
TEXTS = [[1, 5, 11, 3, 28, 30, 2], [1, 5, 11, 7, 2], [4, 9, 2], [4, 9, 36, 8, 17, 21, 2, 20, 33],
         [6, 13, 35], [6, 13, 35, 12]]
MARGIN = [0.0, 0.5, -0.25]


def fill(model, dtype):
    """Every parameter random, exact in the file's dtype, and wide enough to matter."""
    rng = np.random.default_rng(len(model.config.model_type) + model.config.hidden_size)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.from_numpy(rng.standard_normal(tuple(p.shape)))
            gain = p.dim() == 1 and name.endswith("weight")
            p.copy_((1 + 0.2 * x if gain else 0.25 * x).to(dtype))
    return model


def load(folder, dtype=torch.float64):
    return AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype,
                                                              attn_implementation="eager")


def scores_of(model):
    model.config.pad_token_id = None
    return torch.stack([model(torch.tensor([text])).logits[0, 0] for text in TEXTS])


def pair_loss(model):
    r = scores_of(model).reshape(-1, 2)
    margin = torch.tensor(MARGIN, dtype=r.dtype)
    return (-F.logsigmoid(r[:, 0] - r[:, 1] - margin)).mean() + CENTER * r.sum(1).square().mean()


def values_of(model):
    """w . h at each token, padding too."""
    ids = torch.full((len(TEXTS), T), PAD)
    mask = torch.zeros((len(TEXTS), T), dtype=torch.long)
    for row, text in enumerate(TEXTS):
        ids[row, :len(text)] = torch.tensor(text)
        mask[row, :len(text)] = 1
    hidden = model.base_model(ids, attention_mask=mask)[0]
    return model.score(hidden)[..., 0]


def positions_loss(model):
    """The mean over pairs of that over the positions from the first token that differs to the later
    end: the loss of DeepSpeed-Chat's reward model."""
    values, losses = values_of(model), []
    for p in range(len(TEXTS) // 2):
        c, r = TEXTS[2 * p], TEXTS[2 * p + 1]
        end = max(len(c), len(r))
        padded = [text + [PAD] * (end - len(text)) for text in (c, r)]
        begin = next(i for i in range(end) if padded[0][i] != padded[1][i])
        difference = values[2 * p, begin:end] - values[2 * p + 1, begin:end]
        losses.append(-F.logsigmoid(difference - MARGIN[p]).mean())
    return torch.stack(losses).mean()


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters()}


def train(model):
    params = list(model.parameters())
    groups = [{"params": [p for p in params if (p.dim() >= 2) == decayed],
               "weight_decay": 0.1 if decayed else 0.0} for decayed in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, foreach=False)
    losses = []
    for _ in range(STEPS):
        loss = pair_loss(model)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(pair_loss(model).item())
    return losses


def make_case(name):
    kind, dtype, more = CASES[name]
    folder = HERE / name
    config = AutoConfig.for_model(kind, **{**SIZES, **more})
    fill(AutoModelForSequenceClassification.from_config(config).to(torch.float64),
         dtype).to(dtype).save_pretrained(folder)
    model = load(folder).eval()
    loss, positions = pair_loss(model), positions_loss(model)
    tensors = {"scores": scores_of(model).detach(), "loss": loss.detach(),
               "positions": positions.detach(), **gradients(model, loss)}
    tensors.update({"positions/" + n: x for n, x in gradients(model, positions).items()})
    tensors["losses"] = torch.tensor(train(model), dtype=torch.float64)
    save_file({n: x.float().contiguous() for n, x in tensors.items()}, folder / "expected.safetensors")
    print(f"{name}: loss {loss.item():.6f}, of positions {positions.item():.6f}, after {STEPS} steps "
          f"{tensors['losses'][-1]:.6f}")


def make_adapter():
    base = AutoModelForSequenceClassification.from_pretrained(
        LLM / "llama2", dtype=torch.float64, num_labels=1, attn_implementation="eager")
    peft = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4,
                                           target_modules=["q_proj", "up_proj"]),
                          autocast_adapter_dtype=False)
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for n, p in peft.named_parameters():
            if p.requires_grad:    # exact in f32
                x = 0.25 * rng.standard_normal(tuple(p.shape))
                p.copy_(torch.from_numpy(x.astype(np.float32)))
        scores = scores_of(peft.eval())
    folder = HERE / "adapter"
    peft.float().save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace(str(LLM), "tests/golden/llm"))
    save_file({"scores": scores.float()}, folder / "expected.safetensors")
    print("adapter:", *(f"{x:.6f}" for x in scores))


def check(exported):
    for name in CASES:
        golden, own = load(HERE / name), load(exported / name)
        own.load_state_dict(golden.state_dict(), strict=True)
        own, info = AutoModelForSequenceClassification.from_pretrained(
            exported / name, dtype=torch.float64, attn_implementation="eager", output_loading_info=True)
        assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        assert type(own) is type(golden) and own.config.num_labels == 1
        with torch.no_grad():
            assert torch.equal(scores_of(own), scores_of(golden))
        print(name, "is equal")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if sys.argv[1:] == ["adapter"]:
        make_adapter()
    elif len(sys.argv) > 2:
        check(pathlib.Path(sys.argv[2]))
    else:
        ids = torch.tensor([text + [-1] * (T - len(text)) for text in TEXTS])
        save_file({"ids": ids, "margin": torch.tensor(MARGIN, dtype=torch.float64)},
                  HERE / "pairs.safetensors")
        for each in CASES:
            make_case(each)
        make_adapter()
