"""Operator goldens from PyTorch: ops.safetensors, everything computed in f64.

    pip install torch transformers safetensors numpy
    python make.py

Tensors are F64 unless said; every input is exactly a float, so that an f32 kernel sees the same
numbers. OP.x (or its named inputs) go in, OP.y comes out, OP.dy is the gradient that flows in, and
OP.dx (OP.dgamma, ...) flow out. Shapes are odd on purpose.

    gelu_erf, gelu_tanh, silu       x, dy, y, dx [257]: from -40 to 40, denser near 0, with +-0 and
                                    tiny values; far below 0 gelu is right to 1e-15, not relatively
    softmax, log_softmax            x, dy, y, dx [5,37], over the last dimension; row 1 is shifted
                                    by 1000, row 2 spans 400, row 3 is constant
    layer_norm                      x, dy, y, dx [6,33], gamma, beta, dgamma, dbeta [33], eps [1];
                                    row 1 has a mean of 100, row 2 a spread of 1e-3
    rms_norm                        the same without beta and dbeta
    cross_entropy                   x [9,41], labels I64 [9] (-100 is ignored), y [1] the mean over
                                    the labels that count, dx for dy = 1
    embedding                       weight [11,6], ids I64 [3,5] with repeats, dy, y [3,5,6],
                                    dweight (rows of unused ids are zero)
    attention, attention_causal     q, k, v, dy, y, dq, dk, dv [2,3,7,5] = [batch,head,token,size];
                                    y = softmax(q k^T / sqrt(5) + mask) v; attention: mask I64
                                    [2,7], a key with 0 gets probability 0 from every query; causal:
                                    a query sees itself and what is before it
    rope, rope_llama3               x, dy, y, dx [2,40,3,12] = [batch,token,head,size], positions 0 to
                                    39: theta 10000; theta 500000 with the scaling of Llama 3.1
                                    (factor 8, low 1, high 4, original 32). Frequencies and angles
                                    are rounded to f32, and are within 1e-6 of transformers'
"""
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = pathlib.Path(__file__).parent
RNG = np.random.default_rng(1)


def exact(x):
    """f64 holding float values."""
    return torch.tensor(np.asarray(x, dtype=np.float32)).double()


def normal(*shape):
    return exact(RNG.standard_normal(shape))


def record(out, name, fn, inputs, extra=None, dy=None):
    """Runs fn on the named inputs, and stores them, the result and the gradients."""
    leaves = {k: v.clone().requires_grad_() for k, v in inputs.items()}
    y = fn(*leaves.values())
    dy = normal(*y.shape) if dy is None else dy
    grads = torch.autograd.grad(y, leaves.values(), dy)
    out |= {f"{name}.{k}": v for k, v in (inputs | (extra or {})).items()}
    out |= {f"{name}.{k}": v.reshape(v.shape or (1,)) for k, v in (("y", y.detach()), ("dy", dy))}
    out |= {f"{name}.d{k}": g for k, g in zip(leaves, grads)}


def rope(kind, theta, d):
    """x -> x with the halves of each head turned, as modeling_llama does it."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}
    config = transformers.LlamaConfig(
        hidden_size=3 * d, num_attention_heads=3, max_position_embeddings=64,
        rope_parameters={"rope_type": kind, "rope_theta": theta} | (scaling if kind == "llama3"
                                                                    else {}))
    theirs = LlamaRotaryEmbedding(config).inv_freq.double()
    f = exact(theta ** (-2.0 * np.arange(d // 2) / d))
    if kind == "llama3":
        wave = 2 * np.pi / f
        share = (32 / wave - 1) / (4 - 1)
        f = exact(torch.where(wave < 32 / 4, f, torch.where(
            wave > 32 / 1, f / 8, (1 - share) * f / 8 + share * f)))
    assert torch.allclose(f, theirs, rtol=1e-6, atol=0)

    def turn(x):
        angle = exact((torch.arange(x.shape[1]).float()[:, None] * f.float()).numpy())
        c = torch.cat([angle.cos()] * 2, -1)[:, None]
        s = torch.cat([angle.sin()] * 2, -1)[:, None]
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return x * c + torch.cat([-b, a], -1) * s

    return turn


def main():
    out = {}

    t = np.linspace(-1, 1, 257)
    x = 40 * np.sign(t) * np.abs(t) ** 3
    x[:6] = [-40, -14, -13, -6, 1e-30, -1e-30]
    x[128:130] = [0.0, -0.0]
    x[130:132] = [1e-4, -1e-4]
    record(out, "gelu_erf", lambda x: F.gelu(x), {"x": exact(x)})
    record(out, "gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), {"x": exact(x)})
    record(out, "silu", F.silu, {"x": exact(x)})

    x = normal(5, 37)
    x[1] = exact(x[1] + 1000)
    x[2] = exact(np.linspace(-200, 200, 37)[RNG.permutation(37)])
    x[3] = 2.5
    record(out, "softmax", lambda x: F.softmax(x, -1), {"x": x})
    record(out, "log_softmax", lambda x: F.log_softmax(x, -1), {"x": x})

    x, gamma, beta = normal(6, 33), exact(1 + 0.3 * normal(33)), normal(33)
    x[1] = exact(x[1] + 100)
    x[2] = exact(x[2] * 1e-3)
    for name, eps in (("layer_norm", 1e-12), ("rms_norm", 1e-6)):
        eps = exact([eps])
        inputs = {"x": x, "gamma": gamma}
        if name == "layer_norm":
            inputs["beta"] = beta
            fn = lambda x, g, b: F.layer_norm(x, (33,), g, b, eps.item())
        else:
            fn = lambda x, g: F.rms_norm(x, (33,), g, eps.item())
        record(out, name, fn, inputs, {"eps": eps})

    x = exact(3 * normal(9, 41))
    x[4] = exact(x[4] + 500)
    labels = torch.tensor([3, -100, 40, 0, 7, -100, 40, 21, -100])
    record(out, "cross_entropy", lambda x: F.cross_entropy(x, labels), {"x": x},
           {"labels": labels}, torch.tensor(1.0, dtype=torch.float64))

    ids = torch.tensor([[0, 4, 4, 9, 10], [4, 0, 7, 10, 4], [2, 2, 2, 9, 4]])
    record(out, "embedding", lambda w: F.embedding(ids, w), {"weight": normal(11, 6)}, {"ids": ids})

    def attention(mask):
        def fn(q, k, v):
            s = q @ k.transpose(-1, -2) / 5 ** 0.5
            return torch.softmax(s.masked_fill(~mask, -torch.inf), -1) @ v
        return fn

    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[0, 5:] = 0
    mask[1, 2] = 0
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    for name, seen, extra in (("attention", mask[:, None, None, :] != 0, {"mask": mask}),
                              ("attention_causal", causal, None)):
        qkv = {n: normal(2, 3, 7, 5) for n in "qkv"}
        record(out, name, attention(seen), qkv, extra)
        library = F.scaled_dot_product_attention(*qkv.values(), attn_mask=seen)
        torch.testing.assert_close(out[f"{name}.y"], library, rtol=1e-13, atol=1e-14)

    x = {"x": normal(2, 40, 3, 12)}
    record(out, "rope", rope("default", 10000.0, 12), x)
    record(out, "rope_llama3", rope("llama3", 500000.0, 12), x)

    assert all(torch.isfinite(v).all() for v in out.values())
    tensors = {k: np.ascontiguousarray(v.numpy()) for k, v in out.items()}
    save_file(tensors, HERE / "ops.safetensors")


if __name__ == "__main__":
    main()
