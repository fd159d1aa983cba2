"""Writes all.safetensors and foreign.safetensors next to this file: what Python's safetensors makes of every dtype.

python3 make.py
"""
import os
import torch
from safetensors.torch import save_file

here = os.path.dirname(os.path.abspath(__file__))
names = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64,
         "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8}
tensors = {}
for name, dtype in names.items():
    tensors[name] = torch.arange(6).reshape(2, 3).to(dtype)
    tensors["scalar." + name] = torch.tensor(7, dtype=dtype)
    tensors["empty." + name] = torch.zeros((0, 4), dtype=dtype)
tensors["bool"] = torch.tensor([True, False, True])
tensors["six"] = torch.arange(4, dtype=torch.float32).reshape(1, 2, 1, 1, 2, 1)
tensors["é \"quoted\" \\ name"] = torch.tensor([1.5])
save_file(tensors, os.path.join(here, "all.safetensors"), {"format": "pt", "note": "line\nline"})
save_file({"i8": torch.arange(3, dtype=torch.int8), "f32": torch.tensor([2.0]),
           "f8": torch.zeros(2, dtype=torch.float8_e4m3fn)}, os.path.join(here, "foreign.safetensors"))
