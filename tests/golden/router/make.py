"""The router of DeepSeek-V3, DeepseekV3TopkRouter of transformers, computed in float64.

    pip install torch transformers safetensors
    python make.py                   # writes NAME.safetensors

    logits [64, 16], bias [16]       F64; the router's weight is the identity
    experts [64, 4]                  I32, of each token those with the largest score and bias first
    weights [64, 4], by [64, 4]      F64; the loss is the sum of weights times `by`
    gradient [64, 16]                F64, of the loss with respect to the logits
"""
import pathlib
from unittest import mock

import torch
from safetensors.torch import save_file
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

HERE = pathlib.Path(__file__).parent
TOKENS, EXPERTS, CHOSEN = 64, 16, 4
CASES = {
    "groups": dict(n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5),
    "plain": dict(n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0),
}

for seed, (name, case) in enumerate(CASES.items()):
    torch.manual_seed(seed)
    router = DeepseekV3TopkRouter(DeepseekV3Config(
        hidden_size=EXPERTS, n_routed_experts=EXPERTS, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN,
        **case)).double()
    assert router.num_experts == EXPERTS
    router.weight.data = torch.eye(EXPERTS, dtype=torch.float64)
    router.e_score_correction_bias.data = 0.3 * torch.randn(EXPERTS, dtype=torch.float64)
    logits = (2 * torch.randn(TOKENS, EXPERTS, dtype=torch.float64)).requires_grad_()
    by = torch.randn(TOKENS, CHOSEN, dtype=torch.float64)
    # The router computes in torch.float32, whatever its weight is.
    with mock.patch.object(torch, "float32", torch.float64):
        _, weights, experts = router(logits)
    order = (logits.sigmoid() + router.e_score_correction_bias).gather(1, experts).argsort(1, descending=True)
    weights, experts = weights.gather(1, order), experts.gather(1, order)
    (weights * by).sum().backward()
    save_file({"logits": logits.detach(), "bias": router.e_score_correction_bias.detach(), "by": by,
               "experts": experts.int().contiguous(), "weights": weights.detach().contiguous(),
               "gradient": logits.grad}, HERE / f"{name}.safetensors")
