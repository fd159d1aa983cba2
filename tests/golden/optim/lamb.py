"""LAMB as published in timm (timm.optim.Lamb), set to the form that zeroflow defines:

    m = b1 m + (1 - b1) g              v = b2 v + (1 - b2) g^2
    u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + wd p
    r = min(max(||p|| / ||u||, min_coeff), max_coeff), and 1 when either norm is 0
    p -= lr r u

timm has everything but the two bounds on r, so `bounded` puts them around timm's own ratio; with
bounds out of reach the numbers are timm's, untouched. Its options, here:
bias_correction on, max_grad_norm None (clipping is a step of its own), trust_clip off (that bound
is 1), always_adapt on (tensors without weight decay have a ratio as well), grad_averaging on.

Others on PyPI cannot be made equal: torch_optimizer.Lamb and pytorch_optimizer.Lamb bound ||p||
instead of r, and the first applies the bias correction to lr, after the ratio was taken.
"""
import contextlib

import timm.optim.lamb as published
import torch


def lamb(groups, lr, betas, eps, weight_decay):
    return published.Lamb(groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                          bias_correction=True, grad_averaging=True, max_grad_norm=None,
                          trust_clip=False, always_adapt=True, foreach=False)


@contextlib.contextmanager
def bounded(min_coeff, max_coeff, seen=None):
    """Within this block timm's ratio is kept in the bounds; `seen` collects (raw, used) pairs."""
    raw_ratio = published._lamb_trust_ratio

    def ratio(p_norm, u_norm, trust_clip):
        raw = raw_ratio(p_norm, u_norm, trust_clip)
        used = torch.where((p_norm > 0) & (u_norm > 0), raw.clamp(min_coeff, max_coeff), 1.0)
        if seen is not None:
            seen.append((raw.item(), used.item()))
        return used

    published._lamb_trust_ratio = ratio
    try:
        yield
    finally:
        published._lamb_trust_ratio = raw_ratio
