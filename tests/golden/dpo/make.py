"""Twenty steps on pairs of answers by the loss of TRL's DPOTrainer, in float64, of ../llm/llama3 and of the
adapter ../lora/qv over it, which has been trained before.

    pip install torch transformers peft trl safetensors numpy
    python make.py

    pairs.jsonl             the pairs, of letters: a is token 3, b 4, ...; <s> 0, </s> 1
    tokenizer.json          these tokens; tokenizer_config.json says that </s> ends a text, and fills rows
    trained.safetensors     CASE.losses [20], before each step; CASE.rewards [20, 4]: of chosen and of
                            rejected answers, accuracy and margin; of "sigmoid" and "full" also
                            CASE.PARAMETER, F32 of f64, after the last step; "orpo" and "simpo" have
                            losses alone, by the formulas of their papers; of models of other
                            families FAMILY.losses and FAMILY.rewards, as those of "full"

Each step has all pairs but the held-out one. The reference is the policy before the first step.
AdamW: lr 1e-2 for the adapter, 1e-3 for all parameters, betas 0.9 and 0.999, eps 1e-8, no weight decay;
the norm is clipped at 1. beta 0.1.
"""
import collections
import json
import pathlib
import types

import numpy as np
import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from trl import DPOTrainer

HERE = pathlib.Path(__file__).parent
MODEL, ADAPTER = HERE.parent / "llm" / "llama3", HERE.parent / "lora" / "qv"
STEPS = 20
HELD_OUT = 7  # as examples_order says of nine

# name: TRL's loss, label smoothing, adapter or all parameters
CASES = {
    "sigmoid": ("sigmoid", 0, True),
    "ipo": ("ipo", 0, True),
    "hinge": ("hinge", 0, True),
    "robust": ("robust", 0.2, True),
    "norm": ("sigmoid_norm", 0, True),
    "full": ("sigmoid", 0, False),
}

FAMILIES = {"qwen2": "llm/qwen2", "gpt2": "hf/gpt", "opt": "opt/before"}

PAIRS = [
    ("cat", "dog", "e"),
    ("x", "yz", "zyx"),
    ("q</s>q</s>", "rs</s>", "r"),
    ("mnopq", "r", "stuvwxy"),
    ("", "hello", "hi"),
    ("fg", "h</s>i", "hj"),
    ("zzz", "k", "l"),
    ("cde", "cde", "edc"),
    ("w", "w", "ww"),
]


def write_data():
    with open(HERE / "pairs.jsonl", "w") as f:
        for p, c, r in PAIRS:
            f.write(json.dumps({"prompt": p, "chosen": c, "rejected": r}) + "\n")
    vocab = {"\n": 2, **{chr(ord("a") + k): 3 + k for k in range(26)}}
    special = [{"id": k, "content": t, "special": True} for k, t in enumerate(("<s>", "</s>"))]
    (HERE / "tokenizer.json").write_text(json.dumps({
        "added_tokens": special,
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
                           "special_tokens": {"<s>": {"ids": [0]}}},
        "model": {"vocab": vocab, "merges": []}}) + "\n")
    (HERE / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}) + "\n")


def tokens(text):
    out = []
    while text:
        n = 4 if text.startswith("</s>") else 1
        out.append(1 if n == 4 else 3 + ord(text[0]) - ord("a"))
        text = text[n:]
    return out


def batch():
    """Rows of TRL's collator: all chosen texts, then all rejected ones; filled with the end token."""
    rows = []
    for answer in (1, 2):
        for pair in [p for k, p in enumerate(PAIRS) if k != HELD_OUT]:
            before, after = [0] + tokens(pair[0]), tokens(pair[answer])
            rows.append((before, after if after[-1] == 1 else after + [1]))
    width = max(len(b) + len(a) for b, a in rows)
    fill = [(width - len(b) - len(a)) for b, a in rows]
    return {
        "input_ids": torch.tensor([b + a + [1] * n for (b, a), n in zip(rows, fill)]),
        "attention_mask": torch.tensor([[1] * len(b + a) + [0] * n for (b, a), n in zip(rows, fill)]),
        "completion_mask": torch.tensor([[0] * len(b) + [1] * len(a) + [0] * n
                                         for (b, a), n in zip(rows, fill)]),
    }


def scored(model):
    """The model as TRL's fused head gives it: log p of the next token, 0 where it has no label."""
    def run(input_ids, labels, **_):  # what fills a row is after all that is read
        logits = model(input_ids=input_ids).logits[:, :-1]
        logp = logits.log_softmax(-1).gather(2, input_ids[:, 1:, None])[..., 0]
        nothing = torch.zeros_like(logp)
        return types.SimpleNamespace(log_probs=logp * (labels[:, 1:] != -100), entropy=nothing,
                                     mean_logits=nothing, is_top1=nothing.bool())
    return run


def trainer(model, loss, smoothing, metrics):
    same = types.SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    return types.SimpleNamespace(
        model=model, accelerator=same, aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=True,
        f_divergence_type="reverse_kl", loss_types=[loss], loss_weights=[1.0], beta=0.1,
        label_smoothing=smoothing, use_weighting=False, _metrics={"train": metrics}, _tp_size=1,
        _total_train_tokens=0)


def train(model, loss, smoothing, lr):
    params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(params.values(), lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0,
                                  foreach=False)
    data, run, losses, rewards = batch(), scored(model), [], []
    mask = data["completion_mask"][:, 1:]
    with torch.no_grad():
        labels = data["input_ids"].masked_fill(data["completion_mask"] == 0, -100)
        first = (run(data["input_ids"], labels).log_probs * mask).sum(1)
    data["ref_chosen_logps"], data["ref_rejected_logps"] = first.chunk(2)
    model.train()
    for _ in range(STEPS):
        metrics = collections.defaultdict(list)
        value = DPOTrainer._compute_loss(trainer(model, loss, smoothing, metrics), run, data, False)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
        optimizer.step()
        losses.append(value.item())
        rewards.append([metrics[f"rewards/{k}"][0]
                        for k in ("chosen", "rejected", "accuracies", "margins")])
    return losses, rewards, {n.replace(".default", ""): p.detach() for n, p in params.items()}


def free_loss(name, logp, mask):
    """Losses without a reference, of means over the tokens of chosen [0] and rejected [1] answers. ORPO
    (Hong et al. 2024, eq. 6): -c + beta L(log odds of c - those of r); SimPO (Meng et al. 2024, eq. 6)."""
    c, r = ((logp * mask).sum(1) / mask.sum(1)).chunk(2)
    if name == "simpo":
        return -torch.nn.functional.logsigmoid(2.0 * (c - r) - 0.7).mean()
    odds = (c - torch.log1p(-c.exp())) - (r - torch.log1p(-r.exp()))
    return (-c - 0.3 * torch.nn.functional.logsigmoid(odds)).mean()


def train_free(model, name, lr):
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, foreach=False)
    data, losses = batch(), []
    labels = data["input_ids"].masked_fill(data["completion_mask"] == 0, -100)
    for _ in range(STEPS):
        logp = scored(model)(data["input_ids"], labels).log_probs
        value = free_loss(name, logp, data["completion_mask"][:, 1:])
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        losses.append(value.item())
    return losses


def adapted(adapts, folder=MODEL):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    if adapts:
        model = PeftModel.from_pretrained(model, ADAPTER, is_trainable=True,
                                          autocast_adapter_dtype=False).double()
    return model


def make():
    out = {}
    for name in ("orpo", "simpo"):
        losses = train_free(adapted(True), name, 1e-2)
        out[f"{name}.losses"] = torch.tensor(losses, dtype=torch.float64)
        print(f"{name}: {losses[0]:.6f} to {losses[-1]:.6f}")
    for name, (loss, smoothing, adapts) in CASES.items():
        model = adapted(adapts)
        losses, rewards, params = train(model, loss, smoothing, 1e-2 if adapts else 1e-3)
        out[f"{name}.losses"] = torch.tensor(losses, dtype=torch.float64)
        out[f"{name}.rewards"] = torch.tensor(rewards, dtype=torch.float64)
        if name in ("sigmoid", "full"):
            out.update({f"{name}.{n}": p.float().contiguous() for n, p in params.items()})
        print(f"{name}: {losses[0]:.6f} to {losses[-1]:.6f}, margin {rewards[-1][3]:.6f}")
    for name, folder in FAMILIES.items():
        losses, rewards, _ = train(adapted(False, HERE.parent / folder), "sigmoid", 0, 1e-3)
        out[f"{name}.losses"] = torch.tensor(losses, dtype=torch.float64)
        out[f"{name}.rewards"] = torch.tensor(rewards, dtype=torch.float64)
        print(f"{name}: {losses[0]:.6f} to {losses[-1]:.6f}, margin {rewards[-1][3]:.6f}")
    save_file(out, HERE / "trained.safetensors")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    write_data()
    make()
