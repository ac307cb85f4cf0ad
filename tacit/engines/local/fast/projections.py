"""Linear layers with the same input, fused into one product; LoRA adapters included.

    y = x [W₁; W₂; …]ᵀ + [b₁; b₂; …] + (x [A₁; A₂; …]ᵀ) diag(s₁B₁, s₂B₂, …)ᵀ

`FusedLinear` is the sampler's version, with copies of the weights; `fused_linear` is differentiable, for training. LoRA is not
merged into the weights, because bfloat16 rounding would lose most of an adapter, except for small float32 matrices on a CPU
(`wants_column_major`). On a GPU, A is stacked below the weights for a single product [y, a] = x [W₁; W₂; …; A₁; A₂; …]ᵀ, which
needs a copy of the matrix; for single matrices above `STACK_LORA_LIMIT`, y and a are two products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

from tacit.engines.local.memory import is_out_of_memory

FAMILY = ("llama", "mistral", "qwen2", "qwen3")  # model types that the Llama forward pass supports
Adapter = tuple[Tensor, Tensor, float]  # A, B, scale
LinearTensors = tuple[Tensor, Tensor | None, list[Adapter]]  # weight, bias and adapters of a linear module
COLUMN_MAJOR_LIMIT = 1 << 22  # largest matrix, in elements, that is copied in column-major order
STACK_LORA_LIMIT = 1 << 24
"""single matrices with fewer elements are copied with A below; with larger ones, reading takes longer than a second launch"""
RANK_STEP = 16
"""on a GPU A is zero-padded to a multiple of this many rows, so that rows of [y, a] are aligned to 16 bytes and triton
vectorizes its loads"""


class UnsupportedModule(Exception):
    """A module is not a plain or LoRA linear layer (quantized, DoRA, …), so only its own `forward` can compute it."""


class FusedLinear:
    """Linear modules with the same input as one matrix, with the active adapter. `refresh` copies changed weights, in place
    where shapes allow."""

    def __init__(self, modules: Sequence[nn.Module], order: Tensor | None = None) -> None:
        """`order` permutes the output features."""
        self._modules, self._order = tuple(modules), order
        self.weight = self.transposed = self._stacked = torch.empty(0)
        """`_stacked`: the weight, with A below it on a GPU"""
        self.bias: Tensor | None = None
        self._stacked_bias: Tensor | None = None
        self._lora_A: Tensor | None = None
        self._lora_B: Tensor | None = None
        self._sources: tuple[Any, list[nn.Module]] = None, []
        """cache of `source_modules`: (LoRA state, modules with the parameters)"""
        self.refresh()

    @property
    def _is_stacked(self) -> bool:
        return len(self._stacked) > len(self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        return self.project_from(0, x)

    def project_from(self, start: int, x: Tensor) -> Tensor:
        """The product without its first `start` output features."""
        bias, lora_B = self._stacked_bias, self._lora_B
        y = linear(x, self._stacked[start:], None if bias is None else bias[start:])
        if lora_B is None or self._lora_A is None:
            return y
        lora_B = lora_B[start:]
        if not self._is_stacked:
            return add_lora_product(y, linear(x, self._lora_A), lora_B)
        y, a = y.split(lora_B.shape, dim=-1)
        return add_lora_product(y, a, lora_B)

    def to_float32(self, x: Tensor) -> Tensor:
        """The product with x [rows, features], in float32."""
        return linear_float32(x, self.weight) if self.is_plain and self.bias is None else self(x).float()

    def add_to(self, h: Tensor, x: Tensor) -> Tensor:
        """h += y in place; one operation without bias and adapter. Returns h."""
        if self.bias is not None or self._lora_A is not None:
            h += self(x)  # not in parts: h is larger than y, so rounding would lose a small adapter
        else:
            h.view(-1, h.shape[-1]).addmm_(x.flatten(0, -2), self.weight.t())
        return h

    @property
    def is_plain(self) -> bool:
        """whether it is one matrix without a separate adapter, as `write_plain_to` and `add_plain_to` need"""
        return self._lora_A is None

    def write_plain_to(self, y: Tensor, x: Tensor) -> None:
        """y = x Wᵀ + b into existing memory, both [rows, features]; ignores adapters."""
        if self.bias is None:
            torch.mm(x, self.transposed, out=y)
        else:
            torch.addmm(self.bias, x, self.transposed, out=y)

    def add_plain_to(self, h: Tensor, x: Tensor) -> None:
        """h += x Wᵀ + b in place; ignores adapters."""
        h.addmm_(x, self.transposed)
        if self.bias is not None:
            h.add_(self.bias)

    @property
    def lora_rank(self) -> int:
        """0: no adapter"""
        return 0 if self._lora_A is None else len(self._lora_A)

    def project_with_lora_input(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """([y, a], B) for x [rows, features], with a = x Aᵀ; the caller must still add a Bᵀ. Needs `lora_rank` > 0."""
        assert self._lora_A is not None and self._lora_B is not None
        if self._is_stacked:
            return linear(x, self._stacked, self._stacked_bias), self._lora_B
        product = x.new_empty(len(x), sum(self._lora_B.shape))
        y, a = product.split(self._lora_B.shape, dim=1)
        self.write_plain_to(y, x)
        torch.mm(x, self._lora_A.t(), out=a)
        return product, self._lora_B

    def tensors(self) -> list[Tensor]:
        return [t for t in (self.weight, self.bias, self._lora_A, self._lora_B) if t is not None]

    def source_modules(self) -> list[nn.Module]:
        """The layers whose parameters were copied. Called before every round of sampling, so the result is cached until the
        LoRA state changes."""
        lora: list[Any] = [module for module in self._modules if type(module) is not nn.Linear]
        key = [(m.disable_adapters, tuple(m.merged_adapters), tuple(m.active_adapters)) for m in lora]
        if self._sources[0] != key:
            layers: list[nn.Module] = []
            for base, adapters in map(split_lora, self._modules):
                layers += [base, *(layer for lora_A, lora_B, _ in adapters for layer in (lora_A, lora_B))]
            self._sources = key, layers
        return self._sources[1]

    def refresh(self) -> None:
        """Copy the weights, with the active adapter."""
        self._sources = None, []
        parts, order = [tensors_of(module) for module in self._modules], self._order
        weights, biases = [w for w, _, _ in parts], [b for _, b, _ in parts]
        on_gpu, column_major = is_launch_bound(weights[0].device), wants_column_major(weights)
        lora_A: Tensor | None = None
        lora_B: Tensor | None = None
        if column_major:  # merge the adapters: W + s·B·A
            for i, (_, _, adapters) in enumerate(parts):
                for a, b, scale in adapters:
                    weights[i] = torch.addmm(weights[i], b.to(weights[i].dtype), a.to(weights[i].dtype), alpha=scale)
        else:
            lora_A, lora_B = _fuse_adapters(parts, order)
        if on_gpu and lora_A is not None and lora_B is not None:
            padding = -len(lora_A) % RANK_STEP
            lora_A, lora_B = pad(lora_A, (0, 0, 0, padding)), pad(lora_B, (0, padding))

        needs_copy = len(parts) > 1 or order is not None or column_major
        below: list[Tensor] = []  # A, where it is stacked below the weights
        if on_gpu and lora_A is not None and (needs_copy or weights[0].numel() < STACK_LORA_LIMIT):
            below = [lora_A]
        if not needs_copy and not below:
            self._stacked, self._stacked_bias = weights[0], biases[0]
        else:
            rows = weights if order is None else [torch.cat(weights)[order]]
            self._stacked = _copy_into(self._stacked, torch.cat([*rows, *below]), column_major)
            if any(bias is not None for bias in biases):
                bias = _fill_biases(weights, biases)
                bias = torch.cat([bias if order is None else bias[order], *(a.new_zeros(len(a)) for a in below)])
                self._stacked_bias = _copy_into(self._stacked_bias, bias)

        features = sum(len(weight) for weight in weights)
        self.weight = self._stacked[:features]
        self.transposed = self.weight.t()
        self.bias = None if self._stacked_bias is None else self._stacked_bias[:features]
        if below:
            self._lora_A = self._stacked[features:]
        else:
            self._lora_A = None if lora_A is None else _copy_into(self._lora_A, lora_A)
        self._lora_B = None if lora_B is None else _copy_into(self._lora_B, lora_B, column_major=on_gpu)


def add_lora_product(y: Tensor, a: Tensor, lora_B: Tensor) -> Tensor:
    """y += a Bᵀ in place and in one operation, so the product is not rounded before the addition."""
    rows = y if y.dim() == 2 else y.view(-1, y.shape[-1])
    rows.addmm_(a.view(-1, lora_B.shape[1]), lora_B.t())
    return y


def _fuse_adapters(parts: Sequence[LinearTensors], order: Tensor | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """[A₁; A₂; …] and diag(s₁B₁, s₂B₂, …) of all adapters."""
    adapters = [(a, b * scale, i) for i, (_, _, loras) in enumerate(parts) for a, b, scale in loras]
    if not adapters:
        return None, None
    rows, dtype = [len(w) for w, _, _ in parts], parts[0][0].dtype
    blocks = []
    for _, b, i in adapters:
        block = b.new_zeros(sum(rows), b.shape[1])
        block[sum(rows[:i]) : sum(rows[: i + 1])] = b
        blocks.append(block)
    fused = torch.cat(blocks, dim=1)
    return torch.cat([a for a, _, _ in adapters]).to(dtype), (fused if order is None else fused[order]).to(dtype)


def is_launch_bound(device: torch.device) -> bool:
    """Whether kernel launches cost more than an adapter's products: on GPUs only."""
    return device.type == "cuda"


def wants_column_major(weights: Sequence[Tensor]) -> bool:
    """Whether to store the [out, in] matrix column-major (all weights of an input contiguous). On a CPU the product of a few
    rows with a float32 matrix then takes a third to a half less time."""
    elements = sum(weight.numel() for weight in weights)
    return weights[0].device.type == "cpu" and weights[0].dtype == torch.float32 and elements <= COLUMN_MAJOR_LIMIT


def _copy_into(old: Tensor | None, new: Tensor, column_major: bool = False) -> Tensor:
    """`new`, in the memory of `old` if it fits, because CUDA graphs read fixed addresses."""
    if old is None or old.shape != new.shape or old.dtype != new.dtype or old.device != new.device:
        return new.t().clone(memory_format=torch.contiguous_format).t() if column_major else new.clone()
    if column_major:
        old.t().copy_(new.t())  # into contiguous memory, torch transposes by blocks, in a third of the time
        return old
    return old.copy_(new)


def split_lora(module: Any) -> tuple[nn.Linear, list[tuple[nn.Linear, nn.Linear, float]]]:
    """The base layer of a linear module, and A, B and scale of each active adapter."""
    if type(module) is nn.Linear:
        return module, []
    if type(module) is not _lora_linear():
        raise UnsupportedModule(f"{type(module).__name__} is not a plain or LoRA linear layer")
    base = module.base_layer
    if type(base) is not nn.Linear:
        raise UnsupportedModule(f"the base layer of a LoRA layer is {type(base).__name__}, not a plain linear layer")
    if module.merged and module.disable_adapters:
        raise UnsupportedModule("a merged adapter is disabled")
    adapters: list[tuple[nn.Linear, nn.Linear, float]] = []
    for name in () if module.merged or module.disable_adapters else module.active_adapters:
        if name not in module.lora_A:
            continue
        lora_A, lora_B = module.lora_A[name], module.lora_B[name]
        if not isinstance(lora_A, nn.Linear) or not isinstance(lora_B, nn.Linear):
            raise UnsupportedModule(f"adapter {name!r} is not a pair of linear layers")
        if name in module.lora_variant or lora_B.bias is not None:
            raise UnsupportedModule(f"adapter {name!r} is a LoRA variant")
        adapters.append((lora_A, lora_B, module.scaling[name]))
    return base, adapters


def tensors_of(module: Any) -> LinearTensors:
    """Weight, bias and active adapters of a linear module."""
    base, adapters = split_lora(module)
    return base.weight, base.bias, [(lora_A.weight, lora_B.weight, scale) for lora_A, lora_B, scale in adapters]


@cache
def _lora_linear() -> type[Any]:
    """peft's LoRA layer class; cached, since it is needed for every module in every pass."""
    from peft.tuners.lora import Linear  # takes a second, so models without adapters do not import it

    return Linear


# Training: the same fused product, differentiable, over the parameters themselves.

LoRALayout = tuple[list[int], list[int], list[float]]  # features, LoRA rank (0: none) and scale of each layer


def fused_linear(x_ND: Tensor, *modules: Any) -> Tensor:
    """[y₁, y₂, …] of several linear modules. Unsupported modules, and LoRA with dropout, run their own forward."""
    parts = fusable_tensors(modules)
    if parts is None:
        return torch.cat([module(x_ND) for module in modules], dim=-1)
    loras = [adapters[0] if adapters else None for _, _, adapters in parts]  # at most one each
    if not any(loras):
        return linear(x_ND, *_fuse_weights(parts))
    ranks, scales = [len(lora[0]) if lora else 0 for lora in loras], [lora[2] if lora else 0.0 for lora in loras]
    layout = [len(weight) for weight, _, _ in parts], ranks, scales
    lora_A, all_B = _concat([lora[0] for lora in loras if lora]), [lora[1] if lora else None for lora in loras]
    return FusedLoRALinear.apply(x_ND, *_fuse_weights(parts), lora_A, layout, *all_B)


def fusable_tensors(modules: Sequence[Any]) -> list[LinearTensors] | None:
    """Weights and adapters of these modules. None if one is unsupported, uses dropout, or has several adapters."""
    try:
        parts = [tensors_of(module) for module in modules]
    except UnsupportedModule:
        return None
    if any(len(adapters) > 1 for _, _, adapters in parts):
        return None
    for module in modules:
        if type(module) is not nn.Linear and any(d.training and getattr(d, "p", 0.0) for d in module.lora_dropout.values()):
            return None
    return parts


class FusedLoRALinear(torch.autograd.Function):
    """Fused linear layers with LoRA. With a = x Aᵀ, for each layer i that has an adapter:

        yᵢ = x Wᵢᵀ + bᵢ + sᵢ aᵢ Bᵢᵀ

    For g = dL/dy and eᵢ = sᵢ gᵢ Bᵢ:  dL/dx = g W + e A,  dL/dA = eᵀ x,  dL/dBᵢ = sᵢ gᵢᵀ aᵢ,  dL/dW = gᵀ x,  dL/db = Σ g

    Adapter terms are accumulated by their products (addmm), forward and backward. Plain autograd would add the two gradients
    of x in a separate pass, and would write and multiply blocks of zeros.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, lora_A: Tensor, layout: LoRALayout, *lora_B: Tensor | None
    ) -> Tensor:
        ctx.layout = layout
        y, a = linear(x, weight, bias), linear(x, lora_A)
        features, ranks, scales = layout
        columns = y.split_with_sizes(features, 1), a.split_with_sizes(ranks, 1)
        for B, scale, y_i, a_i in zip(lora_B, scales, *columns, strict=True):
            if B is not None:
                y_i.addmm_(a_i, B.t(), alpha=scale)
        ctx.save_for_backward(x, weight if ctx.needs_input_grad[0] else None, lora_A, a, *lora_B)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        g, (x, weight, lora_A, a, *lora_B) = gradients[0], ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_A, _, *needs_B = ctx.needs_input_grad
        features, ranks, scales = ctx.layout
        e = torch.empty_like(a)
        columns = g.split_with_sizes(features, 1), a.split_with_sizes(ranks, 1), e.split_with_sizes(ranks, 1)
        grad_B: list[Tensor | None] = []
        for B, scale, needed, g_i, a_i, e_i in zip(lora_B, scales, needs_B, *columns, strict=True):
            if B is not None:
                e_i.addmm_(g_i, B, beta=0, alpha=scale)
            grad_B.append(torch.addmm(B, g_i.t(), a_i, beta=0, alpha=scale) if needed else None)
        return (
            torch.mm(g, weight).addmm_(e, lora_A) if needs_x else None,
            g.t() @ x if needs_weight else None,
            g.sum(0) if needs_bias else None,
            e.t() @ x if needs_A else None,
            None,
            *grad_B,
        )


def _fuse_weights(parts: Sequence[LinearTensors]) -> tuple[Tensor, Tensor | None]:
    """[W₁; W₂; …] and [b₁; b₂; …]"""
    weights, biases = [weight for weight, _, _ in parts], [bias for _, bias, _ in parts]
    if all(bias is None for bias in biases):
        return _concat(weights), None
    return _concat(weights), _fill_biases(weights, biases)


def _fill_biases(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor:
    """[b₁; b₂; …] with zeros for layers without a bias."""
    return _concat([w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)])


def _concat(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def linear_float32(x_ND: Tensor, weight_VD: Tensor) -> Tensor:
    """x Wᵀ [N, V] with float32 output, also for bfloat16 inputs; rounded first if torch cannot.

    The product is summed in float32 anyway, and in bfloat16 a logit of 20 would be a multiple of 1/8: the largest rounding
    error of a log-probability. Gradients have the inputs' dtype."""
    if weight_VD.dtype == torch.float32:
        return linear(x_ND, weight_VD)
    if weight_VD.device.type != "cpu" and not has_float32_output(weight_VD.device, weight_VD.dtype):
        return linear(x_ND, weight_VD).float()
    return _LinearFloat32.apply(x_ND, weight_VD)


class _LinearFloat32(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        if weight.device.type == "cpu":
            return x.float() @ weight.float().t()
        return torch.mm(x, weight.t(), out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].to(x.dtype)
        needs_x, needs_weight = ctx.needs_input_grad
        return gradient @ weight if needs_x else None, gradient.t() @ x if needs_weight else None


@cache
def has_float32_output(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch.mm supports `out_dtype` for this dtype; tried once."""
    try:
        x = torch.arange(64.0, device=device).view(4, 16).to(dtype)
        return torch.equal(torch.mm(x, x.t(), out_dtype=torch.float32), x.float() @ x.float().t())
    except (RuntimeError, TypeError) as error:  # an older torch
        if is_out_of_memory(error):
            raise
        return False
