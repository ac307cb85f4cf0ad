"""Logits as they are summed, in float32, also of a model in bfloat16.

    logits = h Wᵀ

The head's product is added up in float32 anyway; but as a number of bfloat16 a logit of 20 is a multiple of 1/8, and of all
that is rounded in a pass this shows most in a log-probability. Gradients go back in the model's own format.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn.functional import linear

from tacit.engines.local.memory import ran_out


def unrounded(x_ND: torch.Tensor, weight_VD: torch.Tensor) -> torch.Tensor:
    """[N, V] in float32, where this device can; rounded before, where not."""
    if weight_VD.dtype == torch.float32:
        return linear(x_ND, weight_VD)
    if weight_VD.device.type != "cpu" and not has_wide_product(weight_VD.device, weight_VD.dtype):
        return linear(x_ND, weight_VD).float()
    return _Unrounded.apply(x_ND, weight_VD)


class _Unrounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        if weight.device.type == "cpu":
            return x.float() @ weight.float().t()
        return torch.mm(x, weight.t(), out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].to(x.dtype)
        needs_x, needs_weight = ctx.needs_input_grad
        return gradient @ weight if needs_x else None, gradient.t() @ x if needs_weight else None


@cache
def has_wide_product(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch multiplies in this format and answers in float32: asked by doing so once."""
    try:
        x = torch.arange(64.0, device=device).view(4, 16).to(dtype)
        return torch.equal(torch.mm(x, x.t(), out_dtype=torch.float32), x.float() @ x.float().t())
    except (RuntimeError, TypeError) as error:  # an older torch does not know it
        if ran_out(error):
            raise
        return False
