"""Fine-tuning of the models of ../llm by PEFT and torch in float64: twenty steps of AdamW on one batch,
of an adapter and of all parameters.

    pip install torch transformers peft safetensors numpy
    python make.py                   # writes the folders
    python make.py make NAME...      # writes these adapters alone
    python make.py check FOLDER      # loads adapters and merged models that build/llm wrote (below)

    NAME/adapter_config.json, adapter_model.safetensors
                             the adapter before the first step, as PEFT saves it; lora_B is random
                             kept modules differ from the base's, too
    NAME/trained.safetensors F32 of f64: the adapter after the last step, under PEFT's names, all
                             of them with .weight; lora_embedding_A as [rows, rank]; and "losses" [21],
                             before each step and after the last
    full-MODEL.safetensors   the same of all parameters of a model

int8 and int4 belong to a Llama called "wide", which no file has: its weights follow from their names
(wide_value). Those of products were rounded to 8 and 4 bits in blocks of 64, as ops/quantize.c says.

AdamW: lr 1e-3 for models and as below for adapters, betas 0.9 and 0.999, eps 1e-8, weight decay 0.1 on
tensors of rank 2, the norm clipped at 1.

The gradient of k_proj.bias is zero: it adds the same number to all scores of a query. AdamW makes
steps out of its rounding, so leave it out of a comparison.

check: FOLDER/NAME is an adapter that build/llm has trained, FOLDER/NAME-merged the model that
build/llm merge has made of it; their logits must be equal.
"""
import pathlib
import sys

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parent / "llm"
STEPS = 20

# name: model, masked batch, learning rate, the rest. Rounding grows with the rate: the losses of "all"
# in f32 PyTorch are off by 4e-5 at 1e-2, and by 7e-7 at 3e-3.
CASES = {
    "qv": ("llama3", True, 1e-2, dict(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"])),
    "all": ("qwen2", False, 3e-3, dict(r=2, lora_alpha=4, target_modules="all-linear", use_rslora=True)),
    "kept": ("llama2", False, 3e-3, dict(r=2, lora_alpha=4, target_modules=["q_proj", "up_proj"],
                                         modules_to_save=["lm_head", "model.norm"])),
    "tied": ("qwen2", False, 3e-3, dict(r=2, lora_alpha=3, target_modules=["v_proj"],
                                       modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    "uneven": ("qwen2", False, 3e-3, dict(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj", "up_proj"],
                                         rank_pattern={"v_proj": 3, r"layers\.[1-9]\.mlp\.up_proj": 1},
                                         alpha_pattern={"layers.0.self_attn.q_proj": 5.5, "v_proj": 1})),
    "biases": ("qwen2", False, 3e-3, dict(r=2, lora_alpha=3, target_modules=["q_proj", "o_proj"],
                                          bias="all")),
    "words": ("llama2", False, 3e-3, dict(r=2, lora_alpha=3,
                                         target_modules=["embed_tokens", "lm_head", "v_proj"])),
    "tied-words": ("llama3", True, 3e-3, dict(r=2, lora_alpha=3,
                                             target_modules=["embed_tokens", "q_proj"])),
    "dora": ("qwen2", False, 3e-3, dict(r=2, lora_alpha=3, use_dora=True, use_rslora=True,
                                       target_modules=["q_proj", "o_proj", "down_proj"])),
    "dora-words": ("llama2", False, 3e-3, dict(r=2, lora_alpha=3, use_dora=True,
                                              target_modules=["embed_tokens", "lm_head", "v_proj"])),
    "dora8": ("wide8", True, 3e-3, dict(r=2, lora_alpha=3, use_dora=True,
                                       target_modules=["q_proj", "down_proj"])),
    "experts": ("mixtral", False, 3e-3, dict(r=2, lora_alpha=3, target_modules=["w1", "w2", "w3", "q_proj"],
                                            rank_pattern={"w2": 3}, alpha_pattern={"w3": 5.5})),
    "int8": ("wide8", True, 3e-3, dict(r=2, lora_alpha=3, target_modules=["q_proj", "down_proj"])),
    "int4": ("wide4", False, 3e-3, dict(r=2, lora_alpha=4, target_modules=["v_proj", "up_proj"])),
}


def wide_value(name, count):
    i = np.arange(count, dtype=np.uint64) + np.uint64(sum(name.encode()) * 100003)
    mask = np.uint64(0xffffffff)
    x = i * np.uint64(2654435761) & mask
    x ^= x >> np.uint64(15)
    x = x * np.uint64(2246822519) & mask
    x ^= x >> np.uint64(13)
    return ((x % np.uint64(4001)).astype(np.float64) - 2000) / 16384


def rounded(weight, bits):
    """The numbers that blocks of 64 of so many bits, with scales in bf16, stand for."""
    most = np.float32(127 if bits == 8 else 7)
    x = weight.astype(np.float32).reshape(-1, 64)
    scale = torch.from_numpy(np.abs(x).max(axis=1, keepdims=True) / most).bfloat16().float().numpy()
    q = np.rint(np.clip(x * (np.float32(1) / scale), -most, most))
    return (scale * q).astype(np.float64).reshape(weight.shape)


def wide_model(bits):
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=37, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, hidden_act="silu",
        tie_word_embeddings=False, attn_implementation="eager")).double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = wide_value(name, p.numel()).reshape(tuple(p.shape))
            if p.dim() == 1:
                x = 1 + x
            elif "embed" not in name:
                x = rounded(x, bits)
            p.copy_(torch.from_numpy(x))
    return model


class Experts(torch.nn.Module):
    """A layer of experts with a module for each product, as Mixtral's files and PEFT's have it."""

    def __init__(self, fused):
        super().__init__()
        self.router, (up, down) = fused.gate, (fused.experts.gate_up_proj, fused.experts.down_proj)
        self.experts = torch.nn.ModuleList()
        for e in range(len(up)):
            expert = torch.nn.Module()
            for name, weight in zip(("w1", "w3", "w2"), (*up[e].detach().chunk(2), down[e].detach())):
                product = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
                product.weight.data.copy_(weight)
                setattr(expert, name, product)
            self.experts.append(expert)

    def forward(self, x):
        rows = x.flatten(0, 1)
        _, weights, chosen = self.router(rows)
        out = torch.zeros_like(rows)
        for e, expert in enumerate(self.experts):
            row, k = torch.where(chosen == e)
            of = rows[row]
            y = expert.w2(torch.nn.functional.silu(expert.w1(of)) * expert.w3(of))
            out = out.index_add(0, row, y * weights[row, k, None])
        return out.view_as(x)


def with_modules(model):
    """The same model with a module for each expert's product, which newer transformers have not."""
    for layer in model.model.layers:
        layer.block_sparse_moe = Experts(layer.mlp)
        del layer.mlp
        object.__setattr__(layer, "mlp", layer.block_sparse_moe.forward)
    model.config.model_type = "mixtral_of_modules"  # of a Mixtral PEFT takes these modules for fused ones
    return model


def load_model(name):
    if name.startswith("wide"):
        return wide_model(int(name[4:]))
    model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float64, experts_implementation="eager",
                                                 attn_implementation="eager")
    if name != "mixtral":
        return model
    ids = load_file(MODELS / "batch.safetensors")["input_ids"][0]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        after = with_modules(model)(input_ids=ids).logits
    assert (before - after).abs().max() < 1e-12
    return model


def loss_of(model, masked):
    batch = load_file(MODELS / ("batch-masked.safetensors" if masked else "batch.safetensors"))
    batch = {k: v[0] for k, v in batch.items()}
    labels = batch.pop("labels")
    return torch.nn.functional.cross_entropy(model(**batch).logits[:, :-1].flatten(0, 1),
                                             labels[:, 1:].flatten())


def train(model, masked, lr):
    """The losses, and the trained parameters by name."""
    params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    groups = [{"params": [p for p in params.values() if (p.dim() >= 2) == decayed],
               "weight_decay": 0.1 if decayed else 0.0} for decayed in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=1e-8, foreach=False)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, masked)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(loss_of(model, masked).item())
    return losses, {n: p.detach() for n, p in params.items()}


def save(path, losses, params):
    save_file({**{n: p.float().contiguous() for n, p in params.items()},
               "losses": torch.tensor(losses, dtype=torch.float64)}, path)


def as_param(name, p):
    """As a program of zeroflow has it."""
    for part in (".default", ".modules_to_save", ".base_layer"):
        name = name.replace(part, "")
    if name.endswith(".lora_embedding_A"):
        p = p.T
    return name + ("" if name.endswith((".weight", ".bias")) else ".weight"), p


def stacked(params):
    """One tensor for the parameters of all experts."""
    out = {}
    for name, p in params:
        before, experts, after = name.partition(".experts.")
        number, _, rest = after.partition(".")
        out.setdefault(f"{before}.experts.{rest}" if experts else name, {})[int(number or 0)] = p
    return {n: torch.stack([p[e] for e in sorted(p)]) if ".experts." in n else p[0]
            for n, p in out.items()}


def make_case(name):
    model, masked, lr, options = CASES[name]
    peft = get_peft_model(load_model(model), LoraConfig(task_type="CAUSAL_LM", **options),
                          autocast_adapter_dtype=False)
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for n, p in peft.named_parameters():
            if p.requires_grad:    # exact in f32, so that both begin with the same
                x = 0.25 * rng.standard_normal(tuple(p.shape))
                if "lora_A" not in n and "lora_B" not in n and "lora_embedding" not in n:
                    x = p.numpy() + 0.2 * x
                p.copy_(torch.from_numpy(x.astype(np.float32)))
    peft.float().save_pretrained(HERE / name)
    (HERE / name / "README.md").unlink(missing_ok=True)
    config = HERE / name / "adapter_config.json"
    config.write_text(config.read_text().replace(str(MODELS), "tests/golden/llm"))
    losses, params = train(peft.double(), masked, lr)
    save(HERE / name / "trained.safetensors", losses, stacked(as_param(n, p) for n, p in params.items()))
    print(f"{name}: {losses[0]:.6f} to {losses[-1]:.6f}")


def make_full(name, masked):
    losses, params = train(load_model(name), masked, 1e-3)
    save(HERE / f"full-{name}.safetensors", losses, params)
    print(f"{name}, all parameters: {losses[0]:.6f} to {losses[-1]:.6f}")


def check(folder):
    ids = load_file(MODELS / "batch.safetensors")["input_ids"][0]
    for name, (model, _, _, options) in CASES.items():
        if model.startswith("wide"):
            continue
        base = load_model(model).float()
        peft = PeftModel.from_pretrained(base, folder / name)
        assert peft.peft_config["default"].r == options["r"]
        merged, info = AutoModelForCausalLM.from_pretrained(
            folder / f"{name}-merged", dtype=torch.float32, attn_implementation="eager",
            output_loading_info=True)
        assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        with torch.no_grad():
            with peft.disable_adapter():
                before = peft(input_ids=ids).logits
            x, y = peft(input_ids=ids).logits, merged(input_ids=ids).logits
        off = ((x - y).abs().max() / x.abs().max()).item()
        assert off < 1e-5 < ((x - before).abs().max() / x.abs().max()).item(), off
        print(f"{name}: the merged model is off by {off:.1e}")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if sys.argv[1:2] == ["make"]:
        for each in sys.argv[2:]:
            make_case(each)
    elif len(sys.argv) > 2:
        check(pathlib.Path(sys.argv[2]))
    else:
        for each in CASES:
            make_case(each)
        make_full("llama3", True)
        make_full("qwen2", False)
