"""Linear layers that read the same input, as one product with a gradient; adapters included.

    y = x [W₁; W₂; …]ᵀ + [b₁; b₂; …] + (x [A₁; A₂; …]ᵀ) diag(s₁B₁, s₂B₂, …)ᵀ

which is also how they are sampled from (`projections.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from tacit.engines.local.passes.projections import NotPlain, Parts, add_adapter, parts_of


def joint(x: torch.Tensor, *modules: Any) -> torch.Tensor:
    """A module of another kind, or with dropout, speaks for itself."""
    parts = plain_parts(modules)
    return torch.cat([module(x) for module in modules], dim=-1) if parts is None else together(x, parts)


def plain_parts(modules: Sequence[Any]) -> list[Parts] | None:
    """What these modules are made of, each with one adapter at most. None: only they know what they compute."""
    try:
        parts = [parts_of(module) for module in modules]
    except NotPlain:
        return None
    return None if any(len(adapters) > 1 for _, _, adapters in parts) or _drops_out(modules) else parts


def together(x: torch.Tensor, parts: Sequence[Parts]) -> torch.Tensor:
    weights, biases = [weight for weight, _, _ in parts], [bias for _, bias, _ in parts]
    bias = None
    if any(b is not None for b in biases):
        bias = _end_to_end([w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)])
    y = linear(x, _end_to_end(weights), bias)
    if not any(adapters for _, _, adapters in parts):
        return y
    return add_adapter(y, x, _end_to_end([a for _, _, adapters in parts for a, _, _ in adapters]), _scaled(parts))


def _scaled(parts: Sequence[Parts]) -> torch.Tensor:
    """diag(s₁B₁, s₂B₂, …). Each operation is one more to launch and one more to differentiate, so as few as there can be."""
    if len(parts) == 1:
        ((_, b, scale),) = parts[0][2]
        return b * scale
    scales = [scale for _, _, adapters in parts for _, _, scale in adapters]
    alike = all(scale == scales[0] for scale in scales)
    blocks = [
        w.new_zeros(len(w), 0) if not adapters else adapters[0][1] if alike else adapters[0][1] * adapters[0][2]
        for w, _, adapters in parts
    ]
    return torch.block_diag(*blocks) * scales[0] if alike else torch.block_diag(*blocks)


def _drops_out(modules: Sequence[Any]) -> bool:
    """Of linear layers, plain or with adapters."""
    adapted = [module for module in modules if type(module) is not nn.Linear]
    return any(drop.training and getattr(drop, "p", 0.0) for module in adapted for drop in module.lora_dropout.values())


def _end_to_end(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
