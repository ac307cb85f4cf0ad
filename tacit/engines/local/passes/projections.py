"""Linear layers that read the same input, computed as one; LoRA adapters included.

    y = x [W₁; W₂; …]ᵀ + [b₁; b₂; …] + (x [A₁; A₂; …]ᵀ) diag(s₁B₁, s₂B₂, …)ᵀ

LoRA stays beside the weights instead of being merged into them: in bfloat16 a merge would round most of an adapter away,
and the sampler's log-probabilities would no longer be those of the policy that learns. A float32 matrix that is copied anyway
(`_wants_input_major`) takes an adapter in without a loss that could be told from a product's own rounding:

    y = x [W₁ + s₁B₁A₁; W₂ + s₂B₂A₂; …]ᵀ + [b₁; b₂; …]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import linear

from tacit.engines.local.passes.unrounded import unrounded

Groups = Sequence[tuple[str | None, int]]
"""(adapter, rows that are read with it), in the order of the rows; None: whichever is active"""
ALL = -1
"""rows, where there is one group"""
_Adapter = tuple[torch.Tensor, torch.Tensor, float]
_Parts = tuple[torch.Tensor, torch.Tensor | None, list[_Adapter]]
INPUT_MAJOR_LIMIT = 1 << 22
"""largest matrix, in elements, that is worth a copy in another memory order"""


class NotPlain(Exception):
    """A module is no plain linear layer (quantised, DoRA, …), so only its own `forward` knows what it computes."""


class Projection:
    """One or several linear modules as one matrix, with the adapter that is active or with a named one. `refresh` takes over
    changed weights, in place where shapes allow."""

    def __init__(self, modules: Sequence[nn.Module], order: torch.Tensor | None = None) -> None:
        """`order` permutes the output features."""
        self._modules = tuple(modules)
        self._order = order
        self._adapted = any(type(module) is not nn.Linear for module in modules)
        self._of: dict[str | None, _Matrix] = {}
        self.refresh()
        self._now: list[_Matrix] = [self._of[None]]
        self._rows = [ALL]

    def use(self, groups: Groups) -> None:
        """From now on so many rows of the input are read with each adapter, one group after the other."""
        self._now = [self._of[name if self._adapted else None] for name, _ in groups]
        self._rows = [rows for _, rows in groups]
        if not self._adapted:
            del self._now[1:]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(self._now) == 1:
            return self._now[0](x)
        return torch.cat([matrix(part) for matrix, part in zip(self._now, x.split(self._rows), strict=True)])

    def unrounded(self, x: torch.Tensor) -> torch.Tensor:
        """What this makes of x [rows, features], in float32."""
        matrix = self._now[0]
        return unrounded(x, matrix.weight) if self.is_plain and matrix.bias is None else self(x).float()

    def onto(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """h becomes h + y, where it lies: in one operation where there is neither bias nor adapter. Returns h."""
        if len(self._now) == 1:
            self._now[0].onto(h, x)
        else:
            for matrix, part, read in zip(self._now, h.split(self._rows), x.split(self._rows), strict=True):
                matrix.onto(part, read)
        return h

    @property
    def is_plain(self) -> bool:
        """whether all rows are read with one matrix and nothing beside it, as `into` and `add_to` need"""
        return len(self._now) == 1 and self._now[0].lora_A is None

    def into(self, y: torch.Tensor, x: torch.Tensor) -> None:
        """y becomes what this makes of x, both [rows, features]."""
        matrix = self._now[0]
        if matrix.bias is None:
            torch.mm(x, matrix.turned, out=y)
        else:
            torch.addmm(matrix.bias, x, matrix.turned, out=y)

    def add_to(self, h: torch.Tensor, x: torch.Tensor) -> None:
        """h grows by what this makes of x."""
        matrix = self._now[0]
        h.addmm_(x, matrix.turned)
        if matrix.bias is not None:
            h.add_(matrix.bias)

    def from_feature(self, start: int) -> _Slice:
        """The same projection without its first `start` output features, where all rows are read with one adapter."""
        (matrix,) = self._now
        return _Slice(matrix, start)

    @property
    def weight(self) -> torch.Tensor:
        return self._of[None].weight

    @property
    def merges(self) -> bool:
        """whether adapters are part of the matrix"""
        return _wants_input_major([parts_of(module)[0] for module in self._modules])

    def tensors(self) -> list[torch.Tensor]:
        matrix = self._of[None]
        return [t for t in (matrix.weight, matrix.bias, matrix.lora_A, matrix.lora_B) if t is not None]

    def sources(self, adapter: str | None = None) -> list[torch.Tensor]:
        """The parameters this was made from: while these are untouched, it is up to date."""
        found = []
        for module in self._modules:
            weight, bias, adapters = parts_of(module, adapter)
            found += [weight, *([] if bias is None else [bias]), *(t for a, b, _ in adapters for t in (a, b))]
        return found

    def refresh(self, adapter: str | None = None) -> None:
        """With the adapter that is active now, or with a named one."""
        if not self._adapted:
            adapter = None
        matrix = self._of.setdefault(adapter, _Matrix())
        matrix.take([parts_of(module, adapter) for module in self._modules], self._order)

    def forget(self, adapter: str) -> None:
        self._of.pop(adapter, None)


class _Matrix:
    """What is multiplied with."""

    def __init__(self) -> None:
        self.weight = self.turned = torch.empty(0)
        self.bias: torch.Tensor | None = None
        self.lora_A: torch.Tensor | None = None
        self.lora_B: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return add_adapter(linear(x, self.weight, self.bias), x, self.lora_A, self.lora_B)

    def onto(self, h: torch.Tensor, x: torch.Tensor) -> None:
        if self.bias is not None or self.lora_A is not None:
            h += self(x)  # h is larger than y, and would round a small adapter away
        else:
            h.view(-1, h.shape[-1]).addmm_(x.flatten(0, -2), self.weight.t())

    def take(self, parts: Sequence[_Parts], order: torch.Tensor | None) -> None:
        def ordered(rows: torch.Tensor) -> torch.Tensor:
            return rows if order is None else rows[order]

        weights, biases = [w for w, _, _ in parts], [b for _, b, _ in parts]
        input_major = _wants_input_major(weights)
        if input_major:
            weights = [_merged(w, adapters) for w, _, adapters in parts]
        if len(parts) == 1 and order is None and not input_major:
            self.weight, self.bias = weights[0], biases[0]
        else:
            self.weight = _into(self.weight, ordered(torch.cat(weights)), input_major)
            if any(b is not None for b in biases):
                filled = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
                self.bias = _into(self.bias, ordered(torch.cat(filled)))
        self.turned = self.weight.t()
        adapters = [(a, b * scale, i) for i, (_, _, loras) in enumerate(parts) for a, b, scale in loras]
        if input_major or not adapters:
            self.lora_A = self.lora_B = None
            return
        rows = [len(w) for w in weights]
        blocks = []
        for _, b, i in adapters:
            block = b.new_zeros(sum(rows), b.shape[1])
            block[sum(rows[:i]) : sum(rows[: i + 1])] = b
            blocks.append(block)
        dtype = self.weight.dtype
        self.lora_A = _into(self.lora_A, torch.cat([a for a, _, _ in adapters]).to(dtype))
        self.lora_B = _into(self.lora_B, ordered(torch.cat(blocks, dim=1)).to(dtype))


class _Slice:
    """A view of a matrix; made anew for each use, so that it never outlives a refresh."""

    def __init__(self, whole: _Matrix, start: int) -> None:
        self._whole, self._start = whole, start

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        whole, start = self._whole, self._start
        y = linear(x, whole.weight[start:], None if whole.bias is None else whole.bias[start:])
        return add_adapter(y, x, whole.lora_A, None if whole.lora_B is None else whole.lora_B[start:])


def add_adapter(y: torch.Tensor, x: torch.Tensor, lora_A: torch.Tensor | None, lora_B: torch.Tensor | None) -> torch.Tensor:
    """y becomes y + (x Aᵀ) Bᵀ where it lies, B with its scale: the second product adds to it as it is computed, and is not
    rounded before. Rows are taken as they are: through a view of them a gradient would be copied three times."""
    if lora_A is not None and lora_B is not None:
        rows = y if y.dim() == 2 else y.view(-1, y.shape[-1])
        rows.addmm_(linear(x, lora_A).view(-1, len(lora_A)), lora_B.t())
    return y


def _wants_input_major(weights: Sequence[torch.Tensor]) -> bool:
    """On a CPU the product of a few rows with a float32 matrix takes a third to a half less time where the memory runs along
    the outputs, so that every input's weights are read in one go. The shape stays [out, in]."""
    elements = sum(weight.numel() for weight in weights)
    return weights[0].device.type == "cpu" and weights[0].dtype == torch.float32 and elements <= INPUT_MAJOR_LIMIT


def _into(old: torch.Tensor | None, new: torch.Tensor, input_major: bool = False) -> torch.Tensor:
    """`new`, in the memory of `old` where it fits: CUDA graphs remember addresses."""
    if old is None or old.shape != new.shape or old.dtype != new.dtype or old.device != new.device:
        return new.t().clone(memory_format=torch.contiguous_format).t() if input_major else new.clone()
    if input_major:
        old.t().copy_(new.t())  # into what is contiguous torch transposes by blocks: a third of the time
        return old
    return old.copy_(new)


def _merged(weight: torch.Tensor, adapters: Sequence[_Adapter]) -> torch.Tensor:
    """W + s·B·A"""
    for a, b, scale in adapters:
        weight = torch.addmm(weight, b.to(weight.dtype), a.to(weight.dtype), alpha=scale)
    return weight


def parts_of(module: nn.Module, adapter: str | None = None) -> _Parts:
    """(weight, bias, [(A, B, scale), …]) of a linear module with the adapters that are active now, or with a named one."""
    if type(module) is nn.Linear:
        return module.weight, module.bias, []
    from peft.tuners.lora import Linear as LoraLinear  # a second of imports, which a model without adapters does without

    if type(module) is not LoraLinear or type(module.base_layer) is not nn.Linear:
        raise NotPlain(f"{type(module).__name__} is not a plain or LoRA linear layer")
    base = module.base_layer
    if module.disable_adapters and adapter is None:
        if module.merged:
            raise NotPlain("a merged adapter is switched off")
        return base.weight, base.bias, []
    adapters: list[_Adapter] = []
    if module.merged and adapter is not None:
        raise NotPlain("an adapter is merged into the weights")
    if not module.merged:
        for name in module.active_adapters if adapter is None else (adapter,):
            if name not in module.lora_A:
                if adapter is not None:  # all adapters of an engine have the same layers: this one was given up
                    raise NotPlain(f"there is no adapter {name!r} here any more")
                continue
            lora_A, lora_B = module.lora_A[name], module.lora_B[name]
            if not isinstance(lora_A, nn.Linear) or not isinstance(lora_B, nn.Linear):
                raise NotPlain(f"adapter {name!r} is no pair of linear layers")
            if name in module.lora_variant or lora_B.bias is not None:
                raise NotPlain(f"adapter {name!r} is a LoRA variant")
            adapters.append((lora_A.weight, lora_B.weight, module.scaling[name]))
    return base.weight, base.bias, adapters
