"""Llama and its relatives: small random models as folders of transformers, with the logits, the loss
and the gradients that it computes of them in float64.

    pip install torch transformers safetensors numpy
    python make.py                   # writes the folders and the batches
    python make.py generated         # writes generated.safetensors alone, from the folders
    python make.py only NAME         # writes the folder of one model, and its tokens into that file
    python make.py trained [NAME...] # writes NAME/trained.safetensors alone, from the folders
    python make.py wide              # writes NAME/wide.safetensors alone, from the folders
    python make.py part NAME         # writes the folder of one model of several parts
    python make.py check FOLDER      # loads what `build/llm export --load NAME FOLDER/NAME` wrote

    NAME/config.json, model*.safetensors    a model; its weights are f32, bf16 or f16
    NAME/balanced.safetensors    of models with experts: the auxiliary loss of their routers
    NAME/trained.safetensors     losses of 20 steps
    NAME/wide.safetensors        of models with experts: F64 of f64, computed in f64 throughout: what
                                 expected.safetensors has, and auxiliary losses of routers, "pooled"
                                 over layers (transformers) and the sum over "layers" (Switch)
    NAME/expected.safetensors    F32 of f64: "logits" [B,T,V], "loss" [], and the gradient of every
                                 parameter under its name
    batch.safetensors            I64 input_ids and labels [1,B,T], as batch files have them
    batch-masked.safetensors     the same with attention_mask: padding within and after
    generated.safetensors        I32 "prompts" [P,9], -1 after their ends, and of each model NAME
                                 [P,200], the most likely tokens that follow, by generate in f64 with
                                 a repetition penalty (PENALTY); they and the second ones are at
                                 least 5e-5 apart in their logits

Half of the configurations are as transformers 5 writes them (rope_parameters), the others as older
ones do (rope_theta, rope_scaling). Norms, the cosines of rope and softmax are computed in f32 by
transformers whatever the model's dtype is.
"""
import contextlib
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = pathlib.Path(__file__).parent
V, B, T = 37, 2, 11
SIZES = dict(vocab_size=V, num_hidden_layers=2, max_position_embeddings=64, use_cache=False,
             bos_token_id=1, eos_token_id=2, attn_implementation="eager")
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)

# name: model type, masked batch, dtype of the file, old configuration, shards, the rest
CASES = {
    "llama2": ("llama", False, torch.float32, False, None,
               dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=4,
                    intermediate_size=20)),
    "llama3": ("llama", True, torch.bfloat16, True, None,
               dict(hidden_size=18, num_attention_heads=3, num_key_value_heads=1,
                    intermediate_size=21, tie_word_embeddings=True, rope_parameters=LLAMA3,
                    eos_token_id=[2, 5, 7], rms_norm_eps=1e-5, pad_token_id=0)),
    "linear": ("llama", False, torch.float16, True, None,
               dict(hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                    intermediate_size=14, attention_bias=True, mlp_bias=True,
                    rope_parameters=dict(rope_type="linear", rope_theta=100.0, factor=2.5))),
    "yarn": ("qwen2", True, torch.float32, True, None,
             dict(hidden_size=24, num_attention_heads=2, num_key_value_heads=1, intermediate_size=20,
                  tie_word_embeddings=True, pad_token_id=0,
                  rope_parameters=dict(rope_type="yarn", rope_theta=100.0, factor=4.0, beta_fast=4.0,
                                       original_max_position_embeddings=16))),
    "yarn3": ("llama", False, torch.float32, False, None,
              dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=2, intermediate_size=14,
                   rope_parameters=dict(rope_type="yarn", rope_theta=50.0, factor=3.0, beta_slow=0.5,
                                        mscale=0.7, mscale_all_dim=2.0, truncate=False,
                                        original_max_position_embeddings=20))),
    "gemma3": ("gemma3_text", False, torch.bfloat16, True, None,
               dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                    intermediate_size=20, num_hidden_layers=3, sliding_window=4,
                    query_pre_attn_scalar=9, rms_norm_eps=1e-5, pad_token_id=0,
                    tie_word_embeddings=False,
                    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                    rope_parameters=dict(
                        full_attention=dict(rope_type="linear", rope_theta=500.0, factor=2.0),
                        sliding_attention=dict(rope_type="default", rope_theta=30.0)))),
    "gemma2": ("gemma2", True, torch.float32, True, None,
               dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                    intermediate_size=20, num_hidden_layers=3, sliding_window=4,
                    query_pre_attn_scalar=9, pad_token_id=0, tie_word_embeddings=False,
                    attn_logit_softcapping=0.8, final_logit_softcapping=3.0,
                    rope_parameters=dict(rope_type="default", rope_theta=300.0))),
    "granite": ("granite", True, torch.bfloat16, True, None,
                dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2,
                     intermediate_size=20, attention_bias=True, mlp_bias=True, pad_token_id=0,
                     embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.6,
                     logits_scaling=1.7)),
    "olmo2": ("olmo2", False, torch.float32, False, None,
              dict(hidden_size=18, num_attention_heads=3, num_key_value_heads=1,
                   intermediate_size=20, pad_token_id=0)),
    "smollm3": ("smollm3", True, torch.float32, False, None,
                dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2,
                     intermediate_size=20, num_hidden_layers=4, pad_token_id=0,
                     no_rope_layers=[1, 0, 1, 1], use_sliding_window=True, sliding_window=4,
                     rope_parameters=dict(rope_type="default", rope_theta=300.0))),
    "phi3": ("phi3", False, torch.bfloat16, True, None,
             dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
                  intermediate_size=20, sliding_window=5, pad_token_id=0,
                  rope_parameters=dict(rope_type="default", rope_theta=300.0,
                                       partial_rotary_factor=0.75))),
    "longrope": ("phi3", False, torch.bfloat16, True, None,
                 dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=1,
                      intermediate_size=20, pad_token_id=0, original_max_position_embeddings=9,
                      rope_parameters=dict(rope_type="longrope", rope_theta=300.0,
                                           partial_rotary_factor=0.75, short_factor=[1.0, 1.5, 2.5],
                                           long_factor=[1.25, 3.0, 7.5]))),
    "shortrope": ("phi3", True, torch.float32, False, None,
                  dict(hidden_size=12, num_attention_heads=3, num_key_value_heads=3,
                       intermediate_size=20, pad_token_id=0, max_position_embeddings=400,
                       original_max_position_embeddings=300,
                       rope_parameters=dict(rope_type="longrope", rope_theta=200.0, factor=6.0,
                                            short_factor=[0.8, 2.5], long_factor=[2.0, 9.5]))),
    "starcoder2": ("starcoder2", True, torch.float32, False, None,
                   dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2,
                        intermediate_size=20, sliding_window=5, norm_epsilon=1e-3,
                        rope_parameters=dict(rope_type="default", rope_theta=300.0))),
    "neox": ("gpt_neox", False, torch.float32, False, None,
             dict(hidden_size=24, num_attention_heads=3, intermediate_size=20,
                  rope_parameters=dict(rope_type="default", rope_theta=300.0,
                                       partial_rotary_factor=0.5))),
    "pythia": ("gpt_neox", True, torch.float16, True, None,
               dict(hidden_size=16, num_attention_heads=2, intermediate_size=20,
                    use_parallel_residual=False, attention_bias=False, layer_norm_eps=1e-3,
                    rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                         partial_rotary_factor=0.25))),
    "falcon40b": ("falcon", False, torch.float32, False, None,
                  dict(hidden_size=24, num_attention_heads=6, num_kv_heads=2,
                       new_decoder_architecture=True, bias=True, ffn_hidden_size=20,
                       tie_word_embeddings=False, activation="gelu_pytorch_tanh",
                       rope_parameters=dict(rope_type="default", rope_theta=300.0))),
    "falcon7b": ("falcon", True, torch.bfloat16, True, None,
                 dict(hidden_size=12, num_attention_heads=3, layer_norm_epsilon=1e-3,
                      rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "falconrow": ("falcon", False, torch.float32, False, None,
                  dict(hidden_size=12, num_attention_heads=3, multi_query=False,
                       parallel_attn=False, ffn_hidden_size=14, bias=True,
                       rope_parameters=dict(rope_type="linear", factor=2.5, rope_theta=50.0))),
    "bloom6": ("bloom", False, torch.float32, False, None,
               dict(hidden_size=24, n_layer=2, n_head=6, layer_norm_epsilon=1e-3)),
    "bloom4": ("bloom", True, torch.bfloat16, False, None,
               dict(hidden_size=16, n_layer=2, n_head=4, pad_token_id=0)),
    "falconalibi": ("falcon", True, torch.float32, False, None,
                    dict(hidden_size=32, num_attention_heads=16, multi_query=False, alibi=True,
                         parallel_attn=False, ffn_hidden_size=20, bias=True)),
    "mpt6": ("mpt", False, torch.float32, False, None,
             dict(d_model=24, n_layers=2, n_heads=6, layer_norm_epsilon=1e-3,
                  attn_config=dict(clip_qkv=1.5, softmax_scale=0.4))),
    "mpt4": ("mpt", True, torch.bfloat16, False, None,
             dict(d_model=16, n_layers=2, n_heads=4, pad_token_id=0)),
    "mistral": ("mistral", True, torch.bfloat16, False, None,
                dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=1,
                     intermediate_size=12, sliding_window=4)),
    "qwen2": ("qwen2", False, torch.float32, False, "6KB",
              dict(hidden_size=12, num_attention_heads=6, num_key_value_heads=3,
                   intermediate_size=10, tie_word_embeddings=True, use_sliding_window=True,
                   sliding_window=3, max_window_layers=1)),
    "qwen3": ("qwen3", False, torch.bfloat16, True, None,
              dict(hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                   intermediate_size=15, rope_parameters=dict(rope_type="default",
                                                              rope_theta=1000.0))),
    "alternating": ("qwen3", False, torch.bfloat16, False, None,
                    dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=6,
                         intermediate_size=15, num_hidden_layers=4, use_sliding_window=True,
                         sliding_window=4,
                         layer_types=["sliding_attention", "full_attention", "full_attention",
                                      "sliding_attention"])),
    "ministral": ("ministral", True, torch.bfloat16, False, None,
                  dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                       intermediate_size=12, sliding_window=4,
                       layer_types=["full_attention", "sliding_attention"])),
    # Experts: of all layers; with a shared one, of some layers; with as many weights as chosen ones.
    "mixtral": ("mixtral", True, torch.bfloat16, True, None,
                dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2,
                     intermediate_size=12, num_local_experts=4, num_experts_per_tok=2,
                     sliding_window=None, pad_token_id=0,
                     rope_parameters=dict(rope_type="default", rope_theta=300.0))),
    "qwen2moe": ("qwen2_moe", False, torch.float32, False, None,
                 dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2,
                      intermediate_size=20, moe_intermediate_size=10, num_hidden_layers=3,
                      shared_expert_intermediate_size=14, num_experts=5, num_experts_per_tok=3,
                      mlp_only_layers=[1])),
    "qwen3moe": ("qwen3_moe", True, torch.bfloat16, False, None,
                 dict(hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                      intermediate_size=20, moe_intermediate_size=8, num_experts=6,
                      num_experts_per_tok=2, norm_topk_prob=True, num_hidden_layers=3,
                      decoder_sparse_step=2, pad_token_id=0)),
    "olmoe": ("olmoe", False, torch.float32, False, None,
              dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2,
                   intermediate_size=10, num_experts=8, num_experts_per_tok=8, pad_token_id=0)),
}

# Models of several parts, of which that of text is tested. name: model type, dtype, whether the file
# is as older transformers wrote it, without text_config; of the text; of the vision part
SMALL = dict(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
PARTS = {
    "gemma3parts": ("gemma3", torch.bfloat16, False,
                    dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                         intermediate_size=20, sliding_window=4, query_pre_attn_scalar=9,
                         pad_token_id=0, layer_types=["sliding_attention", "full_attention"]),
                    dict(**SMALL, image_size=8, patch_size=4)),
    "qwen25vl": ("qwen2_5_vl", torch.float32, False,
                 dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
                      intermediate_size=20, rms_norm_eps=1e-5,
                      rope_parameters=dict(rope_type="default", rope_theta=300.0,
                                           mrope_section=[2, 1, 1])),
                 dict(depth=1, hidden_size=8, num_heads=2, intermediate_size=8, out_hidden_size=32,
                      patch_size=4, window_size=8, fullatt_block_indexes=[0])),
    "qwen25vlflat": ("qwen2_5_vl", torch.bfloat16, True,
                     dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=1,
                          intermediate_size=20, rms_norm_eps=1e-5, tie_word_embeddings=True,
                          rope_parameters=dict(rope_type="default", rope_theta=500.0,
                                               mrope_section=[2, 1, 1])),
                     dict(depth=1, hidden_size=8, num_heads=2, intermediate_size=8,
                          out_hidden_size=16, patch_size=4, window_size=8,
                          fullatt_block_indexes=[0])),
}


def fill(model, dtype):
    """Every parameter random, exact in the file's dtype, and wide enough to matter."""
    rng = np.random.default_rng(len(model.config.model_type) +
                                model.config.get_text_config().hidden_size)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.from_numpy(rng.standard_normal(tuple(p.shape)))
            ones = ("norm" in name or ".ln_" in name) and "bias" not in name and \
                "gemma" not in model.config.model_type
            p.copy_((1 + 0.2 * x if ones else 0.25 * x).to(dtype))
    return model


def make_batch(masked):
    rng = np.random.default_rng(3)
    ids = rng.integers(0, V, (B, T))
    mask = np.ones((B, T), np.int64)
    labels = np.where(rng.random((B, T)) < 0.1, -100, ids)
    if masked:
        mask[0, 3] = mask[1, 8:] = 0
        ids = np.where(mask == 1, ids, 0)
        labels = np.where(mask == 1, ids, -100)
        labels[0, 4] = -100    # its prediction would come from a token that is masked
    out = dict(input_ids=ids, labels=labels)
    if masked:
        out["attention_mask"] = mask
    return {k: torch.from_numpy(v) for k, v in out.items()}


def older(path):
    """What transformers 4 wrote for the same model."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    neox = config["model_type"] == "gpt_neox"
    config["rotary_emb_base" if neox else "rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    if "partial_rotary_factor" in rope:
        config["rotary_pct" if neox else "partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if kind == "longrope":    # it is in the file, not in the object
        rope.pop("original_max_position_embeddings", None)
    config["rope_scaling"] = None if kind == "default" else \
        {"type" if kind == "linear" and config["model_type"] == "llama" else "rope_type": kind, **rope}
    path.write_text(json.dumps(config, indent=2) + "\n")


def split_experts(tensors, name, kind):
    """Gate and up, and the names of files, where these have a tensor for each expert."""
    at = name.removesuffix("gate_up_proj")
    both, down = tensors.pop(name), tensors.pop(at + "down_proj")
    names = ("gate_proj", "up_proj", "down_proj")
    if kind == "mixtral":
        at, names = at.replace(".mlp.", ".block_sparse_moe."), ("w1", "w3", "w2")
        gate = at.replace("experts.", "gate.weight")
        tensors[gate] = tensors.pop(gate.replace(".block_sparse_moe.", ".mlp."))
    for part, x in zip(names, (*both.chunk(2, 1), down)):
        tensors[f"{at}{part}.weight"] = x


def attention_of(name):
    """transformers adds ALiBi of a Falcon twice in its eager attention, and once in the other."""
    return "sdpa" if name == "falconalibi" else "eager"


def make_case(name):
    kind, masked, dtype, old, shards, more = CASES[name]
    config = AutoConfig.for_model(kind, **{**SIZES, **more})
    config._experts_implementation = "eager"
    model = fill(AutoModelForCausalLM.from_config(config).to(torch.float64), dtype)
    model.tie_weights()
    folder = HERE / name
    model.to(dtype).save_pretrained(folder, **(dict(max_shard_size=shards) if shards else {}))
    (folder / "generation_config.json").unlink()
    if old:
        older(folder / "config.json")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64,
                                                 attn_implementation=attention_of(name))
    model.config._experts_implementation = "eager"
    batch = make_batch(masked)
    out = model(**batch)
    loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1),
                                             batch["labels"][:, 1:].flatten())
    loss.backward()
    tensors = {n: p.grad for n, p in model.named_parameters()}
    if kind == "gpt_neox":    # as files call it
        tensors["embed_out.weight"] = tensors.pop("lm_head.weight")
    for name in [n for n in tensors if n.endswith("experts.gate_up_proj")]:
        split_experts(tensors, name, kind)
    tensors.update(logits=out.logits.detach(), loss=loss.detach())
    save_file({n: x.float().contiguous() for n, x in tensors.items()},
              folder / "expected.safetensors")
    print(f"{name}: loss {loss.item():.6f}, {sum(p.numel() for p in model.parameters())} weights")


def flatten(path):
    """A configuration without text_config."""
    config = json.loads(path.read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    text.pop("model_type")
    config.update({k: v for k, v in text.items() if k not in ("layer_types", "architectures")})
    config["rope_theta"] = rope["rope_theta"]
    config["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    path.write_text(json.dumps(config, indent=2) + "\n")


def make_part(name):
    kind, dtype, flat, text, vision = PARTS[name]
    config = AutoConfig.for_model(kind, text_config={**SIZES, **text}, vision_config=vision,
                                  tie_word_embeddings=text.get("tie_word_embeddings", False))
    model = fill(AutoModelForImageTextToText.from_config(config).to(torch.float64), dtype)
    model.tie_weights()
    folder = HERE / name
    model.to(dtype).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if flat:
        flatten(folder / "config.json")
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float64,
                                                        attn_implementation=attention_of(name))
    batch = make_batch(False)
    out = model(**batch)
    loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1),
                                             batch["labels"][:, 1:].flatten())
    loss.backward()
    tensors = {n.replace("model.language_model.", "model."): p.grad
               for n, p in model.named_parameters() if p.grad is not None}
    tensors.update(logits=out.logits.detach(), loss=loss.detach())
    save_file({n: x.float().contiguous() for n, x in tensors.items()},
              folder / "expected.safetensors")
    print(f"{name}: loss {loss.item():.6f}, {len(tensors) - 2} gradients")


def make_balanced(name, factor=0.5):
    """balanced.safetensors: the auxiliary loss of routers, over all layers and the tokens that are not
    padding, and what the gradient of `factor` times it is for the routers' weights."""
    folder, kind = HERE / name, CASES[name][0]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64,
                                                 attn_implementation=attention_of(name))
    model.config._experts_implementation = "eager"
    out = model(**make_batch(CASES[name][1]), output_router_logits=True)
    (factor * out.aux_loss).backward()
    scope = ".block_sparse_moe.gate." if kind == "mixtral" else ".mlp.gate."
    tensors = {n.replace(".mlp.gate.", scope): p.grad for n, p in model.named_parameters()
               if ".mlp.gate." in n}
    tensors["aux_loss"] = out.aux_loss.detach()
    save_file({n: x.float().contiguous() for n, x in tensors.items()},
              folder / "balanced.safetensors")
    print(f"{name}: auxiliary loss {out.aux_loss.item():.6f}")


@contextlib.contextmanager
def all_in_f64():
    """What transformers computes in f32 is computed in f64: norms and softmaxes."""
    was = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = was


def rope_of(config, narrow=torch.float32):
    """Cosines and sines of angles that are rounded to f32, as the models' training code has them."""
    def forward(x, position_ids, *_, **__):
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        powers = torch.arange(0, width, 2, dtype=torch.float64) / width
        frequencies = (config.rope_parameters["rope_theta"] ** -powers).to(narrow)
        angles = (position_ids[..., None].to(narrow) * frequencies).to(torch.float64)
        angles = torch.cat((angles, angles), -1)
        return angles.cos(), angles.sin()
    return forward


def switch_loss(logits, k, kept):
    """That of Switch Transformers, of one layer: experts times the sum of f P, where k experts of a
    token share it."""
    p = torch.softmax(logits, -1)[kept]
    chosen = torch.nn.functional.one_hot(p.topk(k, -1).indices, p.shape[1]).sum(1).double()
    return p.shape[1] * ((chosen / k).mean(0) * p.mean(0)).sum()


def make_wide(name):
    folder, (kind, masked, *_) = HERE / name, CASES[name]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64,
                                                 attn_implementation="eager")
    config = model.config
    config._experts_implementation = "eager"
    model.model.rotary_emb.forward = rope_of(config)
    batch = make_batch(masked)
    with all_in_f64():
        out = model(**batch, output_router_logits=True)
        loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1),
                                                 batch["labels"][:, 1:].flatten())
        loss.backward()
    kept = batch.get("attention_mask", torch.ones(B, T)).flatten().bool()
    tensors = {n: p.grad for n, p in model.named_parameters()}
    for each in [n for n in tensors if n.endswith("experts.gate_up_proj")]:
        split_experts(tensors, each, kind)
    routers = [x for x in out.router_logits if x is not None]
    layers = sum(switch_loss(x.detach(), config.num_experts_per_tok, kept) for x in routers)
    tensors.update(logits=out.logits.detach(), loss=loss.detach(), pooled=out.aux_loss.detach(),
                   layers=layers)
    assert all(x.dtype == torch.float64 for x in tensors.values())
    save_file({n: x.contiguous() for n, x in tensors.items()}, folder / "wide.safetensors")
    print(f"{name}: loss {loss.item():.15f}, auxiliary {out.aux_loss.item():.6f} {layers:.6f}")


def make_trained(name, steps=20):
    """trained.safetensors: F64 "losses" [20], of AdamW over one batch, each before its update."""
    kind = AutoModelForImageTextToText if name in PARTS else AutoModelForCausalLM
    model = kind.from_pretrained(HERE / name, dtype=torch.float64, attn_implementation=attention_of(name))
    model.config._experts_implementation = "eager"
    step = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3, weight_decay=0)
    batch, losses = make_batch(name in CASES and CASES[name][1]), []
    for _ in range(steps):
        logits = model(**batch).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1),
                                                 batch["labels"][:, 1:].flatten())
        losses.append(loss.item())
        step.zero_grad()
        loss.backward()
        step.step()
    save_file({"losses": torch.tensor(losses, dtype=torch.float64)},
              HERE / name / "trained.safetensors")
    print(f"{name}: losses {losses[0]:.6f} to {losses[-1]:.6f}")


BALANCED = ("mixtral", "qwen3moe")
WIDE = ("mixtral", "qwen2moe", "qwen3moe", "olmoe")
TRAINED = (*CASES, *PARTS)
PENALTY = {"falconalibi": 2.0, "mpt6": 1.3, "mpt4": 1.3, "bloom6": 1.3, "bloom4": 1.3, "llama2": 1.0, "llama3": 1.2, "linear": 1.3, "mistral": 1.0, "qwen2": 1.3, "qwen3": 1.4,
           "alternating": 1.2, "yarn": 1.3, "yarn3": 1.2, "gemma3": 1.3, "ministral": 1.3,
           "granite": 1.3, "olmo2": 1.3, "smollm3": 1.3, "phi3": 1.3, "gemma2": 1.3, "longrope": 1.3,
           "shortrope": 1.3, "starcoder2": 2.0, "neox": 2.0, "pythia": 2.0, "falcon40b": 2.0, "falcon7b": 2.0,
           "falconrow": 2.0, "mixtral": 1.3, "qwen2moe": 2.0, "qwen3moe": 1.3, "olmoe": 1.3}


def take_long_factors(model):
    """Of longrope, where a text may become longer than the original length: all of its tokens have
    the long factors from the beginning, as with a plan of room. transformers begins with the short
    ones, and computes the keys again where it takes the others."""
    config = model.config
    original = (getattr(config, "rope_parameters", None) or {}).get("original_max_position_embeddings", np.inf)
    if config.model_type == "phi3" and original < 200:
        rotary = model.model.rotary_emb
        rotary.original_inv_freq = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=original + 1)[0]


def make_generated(names):
    prompts = [[5, 11, 3, 28, 30], [7], [1, 2, 35, 4, 36, 6, 21, 8, 9]]
    tensors = {"prompts": torch.tensor([p + [-1] * (9 - len(p)) for p in prompts],
                                       dtype=torch.int32)}
    if len(names) < len(CASES):
        tensors = load_file(HERE / "generated.safetensors")
    for name in names:
        model = AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float64,
                                                     attn_implementation=attention_of(name))
        model.config._experts_implementation = "eager"
        take_long_factors(model)
        rows, least = [], np.inf
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                 max_new_tokens=200, use_cache=True, eos_token_id=None,
                                 pad_token_id=0, repetition_penalty=PENALTY[name],
                                 return_dict_in_generate=True, output_scores=True)
            best = torch.cat(out.scores).topk(2).values
            least = min(least, (best[:, 0] - best[:, 1]).min().item())
            rows.append(out.sequences[0, len(prompt):].int())
        print(f"{name}: {[len(set(r.tolist())) for r in rows]} different tokens, apart {least:.2g}")
        assert least > 5e-5
        tensors[name] = torch.stack(rows)
    save_file(tensors, HERE / "generated.safetensors")


def check(exported):
    batch = make_batch(False)
    for name in CASES:
        golden = AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32)
        own, info = AutoModelForCausalLM.from_pretrained(exported / name, dtype=torch.float32,
                                                         output_loading_info=True)
        assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        assert own.state_dict().keys() == golden.state_dict().keys()
        own.load_state_dict(golden.state_dict(), strict=True)
        own = AutoModelForCausalLM.from_pretrained(exported / name, dtype=torch.float32)
        own.config._experts_implementation = golden.config._experts_implementation = "eager"
        with torch.no_grad():
            assert torch.equal(own(batch["input_ids"]).logits, golden(batch["input_ids"]).logits)
        assert own.config.eos_token_id == golden.config.eos_token_id
        print(name, "is equal")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if sys.argv[1:] == ["generated"]:
        make_generated(CASES)
    elif sys.argv[1:2] == ["only"]:
        make_case(sys.argv[2])
        if sys.argv[2] in BALANCED:
            make_balanced(sys.argv[2])
        if sys.argv[2] in WIDE:
            make_wide(sys.argv[2])
        if sys.argv[2] in TRAINED:
            make_trained(sys.argv[2])
        make_generated(sys.argv[2:])
    elif sys.argv[1:2] == ["part"]:
        make_part(sys.argv[2])
        make_trained(sys.argv[2])
    elif sys.argv[1:] == ["wide"]:
        for each in WIDE:
            make_wide(each)
    elif sys.argv[1:2] == ["trained"]:
        for each in sys.argv[2:] or TRAINED:
            make_trained(each)
    elif len(sys.argv) > 2:
        check(pathlib.Path(sys.argv[2]))
    else:
        for masked in (False, True):
            save_file({k: v[None].contiguous() for k, v in make_batch(masked).items()},
                      HERE / ("batch-masked.safetensors" if masked else "batch.safetensors"))
        for each in CASES:
            make_case(each)
        for each in PARTS:
            make_part(each)
        for each in BALANCED:
            make_balanced(each)
        for each in WIDE:
            make_wide(each)
        for each in TRAINED:
            make_trained(each)
        make_generated(CASES)
