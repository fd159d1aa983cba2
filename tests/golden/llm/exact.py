"""The loss and the gradients of llama2 in float64, every number of it: what transformers computes in
f32 whatever a model's dtype is (norms, cosines of rope, softmax) is computed in f64 here, but for
the angles of rope, which are products of f32.

    python exact.py    # writes llama2/exact.safetensors, F64: "loss" [], and gradients under the
                       # names of the parameters, of batch.safetensors
"""
import pathlib

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

HERE = pathlib.Path(__file__).parent


class Doubled:
    """torch, in which f32 is f64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


modeling_llama.torch = Doubled()
torch.Tensor.float = torch.Tensor.double
softmax = torch.nn.functional.softmax
torch.nn.functional.softmax = lambda x, dim, dtype=None: softmax(x, dim, dtype=torch.float64)

model = AutoModelForCausalLM.from_pretrained(HERE / "llama2", dtype=torch.float64,
                                             attn_implementation="eager")
width = model.config.hidden_size // model.config.num_attention_heads
theta = model.config.rope_parameters["rope_theta"]


def rope(x, position_ids):
    frequency = theta ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = position_ids[..., None].to(torch.float32) * frequency.to(torch.float32)
    angle = torch.cat((angle, angle), -1).to(torch.float64)
    return angle.cos(), angle.sin()


model.model.rotary_emb.forward = rope
batch = {k: x[0] for k, x in load_file(HERE / "batch.safetensors").items()}
out = model(input_ids=batch["input_ids"])
loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1),
                                         batch["labels"][:, 1:].flatten())
loss.backward()
tensors = {n: p.grad for n, p in model.named_parameters()}
assert all(x.dtype == torch.float64 for x in (out.logits, *tensors.values()))
save_file({"loss": loss.detach(), **tensors}, HERE / "llama2" / "exact.safetensors")
print(f"loss {loss.item():.15f}")
