"""Linear layers that read the same input, as one product with a gradient; adapters included.

    y = x [W₁; W₂; …]ᵀ + [b₁; b₂; …] + (x [A₁; A₂; …]ᵀ) diag(s₁B₁, s₂B₂, …)ᵀ

which is also how they are sampled from (`projections.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from tacit.engines.local.passes.projections import RANK_STEP, NotPlain, Parts, add_adapter, parts_of

Layout = tuple[list[int], list[int], list[float]]
"""of each layer: its features, its adapter's rank (0: it has none), and its scale"""


def joint(x_ND: torch.Tensor, *modules: Any) -> torch.Tensor:
    """A module of another kind, or with dropout, speaks for itself."""
    parts = plain_parts(modules)
    if parts is None:
        return torch.cat([module(x_ND) for module in modules], dim=-1)
    if not any(adapters for _, _, adapters in parts):
        return together(x_ND, parts)
    layout, lora_B = _layout(parts), [adapters[0][1] if adapters else None for _, _, adapters in parts]
    return _Adapted.apply(x_ND, *_product_of(parts), _all_A(parts), layout, *lora_B)


def plain_parts(modules: Sequence[Any]) -> list[Parts] | None:
    """What these modules are made of, each with one adapter at most. None: only they know what they compute."""
    try:
        parts = [parts_of(module) for module in modules]
    except NotPlain:
        return None
    return None if any(len(adapters) > 1 for _, _, adapters in parts) or _drops_out(modules) else parts


def together(x: torch.Tensor, parts: Sequence[Parts]) -> torch.Tensor:
    """In whole tensors, and differentiated by torch: what a compiler makes most of."""
    y = linear(x, *_product_of(parts))
    return add_adapter(y, x, _all_A(parts), *_scaled(parts)) if any(adapters for _, _, adapters in parts) else y


class _Adapted(torch.autograd.Function):
    """Layers with adapters, one operation after the other: with a = x Aᵀ, and of each layer i that has one

        yᵢ = x Wᵢᵀ + bᵢ + sᵢ aᵢ Bᵢᵀ

    For g = dL/dy and eᵢ = sᵢ gᵢ Bᵢ:  dL/dx = g W + e A,  dL/dA = eᵀ x,  dL/dBᵢ = sᵢ gᵢᵀ aᵢ,  dL/dW = gᵀ x,  dL/db = Σ g

    What an adapter adds, there and back, is added by its product; left to torch, the two gradients of x are added in a pass of
    their own, and blocks of zeros are written and multiplied with.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        lora_A: torch.Tensor,
        layout: Layout,
        *lora_B: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.layout = layout
        y, x, read = _way_there(x, weight)(x, weight, bias, lora_A, layout, lora_B)
        ctx.save_for_backward(x, weight if ctx.needs_input_grad[0] else None, lora_A, read, *lora_B)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient, (x, weight, lora_A, read, *lora_B) = gradients[0], ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_A, _, *needs_B = ctx.needs_input_grad
        features, ranks, scales = ctx.layout
        back, for_B = torch.empty_like(read), []
        of_y, of_a = gradient.split_with_sizes(features, 1), back.split_with_sizes(ranks, 1)
        a = read.split_with_sizes(ranks, 1)
        for i, (B, scale, needed) in enumerate(zip(lora_B, scales, needs_B, strict=True)):
            if B is not None:
                of_a[i].addmm_(of_y[i], B, beta=0, alpha=scale)
            for_B.append(torch.addmm(B, of_y[i].t(), a[i], beta=0, alpha=scale) if needed else None)
        return (
            _way_back(gradient, weight)(gradient, weight, back, lora_A) if needs_x else None,
            gradient.t() @ x if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
            back.t() @ x if needs_A else None,
            None,
            *for_B,
        )


def _way_there(x: torch.Tensor, weight: torch.Tensor) -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    features, inputs = weight.shape
    return _in_one_product if x.is_cuda and _saves_time(len(x), features, inputs) else _one_after_the_other


def _way_back(gradient: torch.Tensor, weight: torch.Tensor) -> Callable[..., torch.Tensor]:
    features, inputs = weight.shape
    saves = gradient.is_cuda and _saves_time(len(gradient), inputs, features)
    return _back_in_one_product if saves else _back_one_after_the_other


def _saves_time(rows: int, written: int, read: int) -> bool:
    """One product instead of two saves reading and writing what is written, so wide, once more, and costs a copy of what is
    read and one of the weights; it was only measured where it saves far more than that. Of q, k and v, y is hardly larger than
    x, and of few rows than the weights."""
    return rows * written > 2 * (rows * read + written * read)


def _one_after_the_other(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    lora_A: torch.Tensor,
    layout: Layout,
    lora_B: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y, x, a): what adapters add is added to y where it lies, which is read and written once more."""
    y, read = linear(x, weight, bias), linear(x, lora_A)
    features, ranks, scales = layout
    columns = zip(y.split_with_sizes(features, 1), read.split_with_sizes(ranks, 1), strict=True)
    for B, scale, (y_i, read_i) in zip(lora_B, scales, columns, strict=True):
        if B is not None:
            y_i.addmm_(read_i, B.t(), alpha=scale)
    return y, x, read


def _in_one_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    lora_A: torch.Tensor,
    layout: Layout,
    lora_B: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y, x, a) with y = [x, a] [W, diag(s₁B₁, s₂B₂, …)]ᵀ, which is written once; x is copied instead, beside a. Of gate and
    up, 8,960 features each from 1,536, an H200 needs 2.6 ms instead of 3.4 for 32,768 tokens, and 2.4 without adapters; the
    copy of the weights, which is not in these figures, has to move a twentieth of what y is."""
    inputs, rank = x.shape[1], len(lora_A)
    missing = -(inputs + rank) % RANK_STEP
    blocks = [weight.new_zeros(n, 0) if B is None else B * scale for B, n, _, scale in zip(lora_B, *layout, strict=True)]
    matrix = torch.cat([weight, torch.block_diag(*blocks), weight.new_zeros(len(weight), missing)], 1)
    beside = torch.cat([x, linear(x, lora_A), x.new_zeros(len(x), missing)], 1)
    x, read = beside[:, :inputs], beside[:, inputs : inputs + rank]
    return linear(beside, matrix, bias), x, read


def _back_one_after_the_other(
    gradient: torch.Tensor, weight: torch.Tensor, back: torch.Tensor, lora_A: torch.Tensor
) -> torch.Tensor:
    """dL/dx = g W + e A"""
    return torch.mm(gradient, weight).addmm_(back, lora_A)


def _back_in_one_product(
    gradient: torch.Tensor, weight: torch.Tensor, back: torch.Tensor, lora_A: torch.Tensor
) -> torch.Tensor:
    """dL/dx = [g, e] [W; A]"""
    missing = -(len(weight) + len(lora_A)) % RANK_STEP
    beside = torch.cat([gradient, back, gradient.new_zeros(len(gradient), missing)], 1)
    return beside @ torch.cat([weight, lora_A, weight.new_zeros(missing, weight.shape[1])])


def _product_of(parts: Sequence[Parts]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[W₁; W₂; …] and [b₁; b₂; …]"""
    weights, biases = [weight for weight, _, _ in parts], [bias for _, bias, _ in parts]
    if all(bias is None for bias in biases):
        return _end_to_end(weights), None
    filled = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
    return _end_to_end(weights), _end_to_end(filled)


def _all_A(parts: Sequence[Parts]) -> torch.Tensor:
    return _end_to_end([lora_A for _, _, adapters in parts for lora_A, _, _ in adapters])


def _layout(parts: Sequence[Parts]) -> Layout:
    loras = [adapters[0] if adapters else None for _, _, adapters in parts]
    ranks = [0 if lora is None else lora[0].shape[0] for lora in loras]
    return [weight.shape[0] for weight, _, _ in parts], ranks, [0.0 if lora is None else lora[2] for lora in loras]


def _scaled(parts: Sequence[Parts]) -> tuple[torch.Tensor, float]:
    """diag(s₁B₁, s₂B₂, …), as a matrix and a number to multiply it with. Each operation is one more to launch and one more to
    differentiate, so as few as there can be."""
    scales = [scale for _, _, adapters in parts for _, _, scale in adapters]
    alike = all(scale == scales[0] for scale in scales)
    blocks = [
        w.new_zeros(len(w), 0) if not adapters else adapters[0][1] if alike else adapters[0][1] * adapters[0][2]
        for w, _, adapters in parts
    ]
    return blocks[0] if len(blocks) == 1 else torch.block_diag(*blocks), scales[0] if alike else 1.0


def _drops_out(modules: Sequence[Any]) -> bool:
    """Of linear layers, plain or with adapters."""
    adapted = [module for module in modules if type(module) is not nn.Linear]
    return any(drop.training and getattr(drop, "p", 0.0) for module in adapted for drop in module.lora_dropout.values())


def _end_to_end(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
