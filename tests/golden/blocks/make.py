"""Transformer blocks in PyTorch: blocks.safetensors.

    pip install torch safetensors transformers
    python make.py

Of each case CASE.NAME: the parameters under zf_nn_block's names, x and its other inputs, w, the result
y, and the gradients of sum(y w) by each of them as CASE.d.NAME, computed in float64.

    post      nn.TransformerEncoderLayer: norms after parts, relu, padding that is not seen
    cross     nn.TransformerDecoderLayer: norms before parts, gelu, causal, attention to a memory
    llama     LlamaDecoderLayer of transformers: RMS norms, SwiGLU, rope, 4 heads over 2 of k and v
"""
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

HERE = pathlib.Path(__file__).parent
B, T, N, H = 2, 7, 5, 16
torch.manual_seed(1)
out = {}


def names(part, layer, to):
    """The parts of in_proj and the other products of nn.MultiheadAttention."""
    for i, k in enumerate("qkv"):
        to[f"{part}.{k}.weight"] = layer.in_proj_weight.chunk(3)[i]
        to[f"{part}.{k}.bias"] = layer.in_proj_bias.chunk(3)[i]
    to[f"{part}.out.weight"], to[f"{part}.out.bias"] = layer.out_proj.weight, layer.out_proj.bias


def fill(layer):
    for name, p in layer.named_parameters():
        with torch.no_grad():
            p.copy_(torch.randn_like(p) * 0.3 + (1 if "norm" in name and name.endswith("weight") else 0))


def llama_name(name):
    for old, new in (("self_attn.", "self."), ("_proj", ""), ("self.o.", "self.out."),
                     ("input_layernorm", "self.norm"), ("post_attention_layernorm", "mlp.norm")):
        name = name.replace(old, new)
    return name


def params_of(layer, cross):
    """The parameters, cut as the block has them."""
    if isinstance(layer, LlamaDecoderLayer):
        return {llama_name(k): p for k, p in layer.named_parameters()}
    to = {}
    names("self", layer.self_attn, to)
    if cross:
        names("cross", layer.multihead_attn, to)
    norms = ["self.norm", "cross.norm", "mlp.norm"] if cross else ["self.norm", "mlp.norm"]
    for i, name in enumerate(norms):
        norm = getattr(layer, f"norm{i + 1}")
        to[f"{name}.weight"], to[f"{name}.bias"] = norm.weight, norm.bias
    for name, fc in (("mlp.up", layer.linear1), ("mlp.down", layer.linear2)):
        to[f"{name}.weight"], to[f"{name}.bias"] = fc.weight, fc.bias
    return to


def rounded(*shape):
    """What f32 holds."""
    return torch.randn(*shape).float().double().requires_grad_()


def case(name, layer, inputs, run, cross):
    fill(layer)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(p.float().double())
    y = run()
    w = torch.randn_like(y).float().double()
    (y * w).sum().backward()
    for k, v in params_of(layer, cross).items():
        out[f"{name}.{k}"] = v.detach().numpy().astype(np.float32)
    for p in layer.parameters():
        p.data = p.grad
    for k, v in params_of(layer, cross).items():
        out[f"{name}.d.{k}"] = v.detach().numpy()
    for k, v in inputs.items():
        out[f"{name}.{k}"] = v.detach().numpy().astype(np.float32)
        out[f"{name}.d.{k}"] = v.grad.numpy()
    out[f"{name}.w"], out[f"{name}.y"] = w.numpy().astype(np.float32), y.detach().numpy()


unseen = torch.zeros(B, T, dtype=torch.bool)
unseen[1, 4:] = True
x = rounded(B, T, H)
layer = nn.TransformerEncoderLayer(H, 2, 24, 0.0, batch_first=True, dtype=torch.float64)
case("post", layer, {"x": x}, lambda: layer(x, src_key_padding_mask=unseen), False)

x, memory = rounded(B, T, H), rounded(B, N, H)
layer2 = nn.TransformerDecoderLayer(H, 4, 24, 0.0, "gelu", batch_first=True, norm_first=True,
                                    dtype=torch.float64)
causal = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
case("cross", layer2, {"x": x, "memory": memory},
     lambda: layer2(x, memory, tgt_mask=causal, tgt_is_causal=True), True)

x = rounded(B, T, H)
config = LlamaConfig(hidden_size=H, intermediate_size=24, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=6, attn_implementation="eager",
                     rms_norm_eps=1e-5)
layer3 = LlamaDecoderLayer(config, 0).double()
rope = LlamaRotaryEmbedding(config)(x, torch.arange(T)[None])
mask = torch.full((T, T), -torch.inf, dtype=torch.float64).triu(1)[None, None]


def run3():
    y = layer3(x, attention_mask=mask, position_embeddings=rope)
    return y[0] if isinstance(y, tuple) else y


case("llama", layer3, {"x": x}, run3, False)
save_file(out, HERE / "blocks.safetensors")
