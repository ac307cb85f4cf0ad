"""The weights that are trained: their gradients, their optimiser, and the precision that small steps need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tacit.core.errors import NoRoom
from tacit.core.seeds import derive
from tacit.engines.local.memory import ran_out
from tacit.engines.local.settings import EngineSettings


class TrainedWeights:
    """The parameters that move, their AdamW state, and float32 masters where the model itself is held in bfloat16.

    A step of lr 1e-6 is far below the spacing of bfloat16 numbers and would be rounded away; so gradients are summed and
    steps taken in float32, and the model gets the rounded result. It stays one model, in the precision it samples with.

    A model that comes in bfloat16 lies on its grid, and there a master has half a spacing to go before its weight shows that it
    moved: half of SmolLM2's have 2.4e-4 or more, over two hundred steps of the published 1e-6. So before the first step each
    master goes to a place of its own among those that are rounded to its weight,

        m = w + u · spacing(w) / 2        u uniform in (−1, 1)

    and of many weights that move by a little, as many change as make up for it: E[Δw] = Δm.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], settings: EngineSettings):
        self.live = dict(sorted(named.items()))
        self.master = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float()) for name, p in self.live.items()
        }
        self.split = any(self.master[name] is not p for name, p in self.live.items())
        matrices = [p for p in self.master.values() if p.ndim > 1]
        vectors = [p for p in self.master.values() if p.ndim <= 1]
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=0.0,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.clip_norm = settings.clip_norm
        self.steps = 0

    def forget_moments(self) -> None:
        """Begin another stage: the optimiser starts as new, from the weights as they are."""
        self.optimizer.state.clear()

    def make_moments(self) -> None:
        """Of what has a gradient and none yet, as AdamW would, and with the first of them a step of a single number, for which
        the device loads what a step runs: a real one must not run out of memory half-way."""
        for p in self.master.values():
            if p.grad is not None and not self.optimizer.state.get(p):
                if not self.optimizer.state:
                    _rehearse(p.device)
                moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                self.optimizer.state[p] = {"step": torch.zeros((), device=p.device), **moments}

    @torch.no_grad()
    def leave_the_grid(self) -> None:
        """Before the first step. A function of names and weights alone: done again, it comes to the same."""
        if self.steps:
            return
        for name, weight in self.live.items():
            if (master := self.master[name]) is weight:
                continue
            master.copy_(off_the_grid(weight.float(), places_of(name, weight.shape, weight.device), weight.dtype))

    def collect(self) -> None:
        """Add the gradients of one micro-batch to the masters'."""
        if not self.split:
            return  # the masters are the parameters: autograd has already added them up
        for name, p in self.live.items():
            master = self.master[name]
            if p.grad is None or master is p:
                continue
            master.grad = p.grad.float() if master.grad is None else master.grad.add_(p.grad)
            p.grad = None

    def gradient_norm(self) -> torch.Tensor:
        gradients = [p.grad for p in self.master.values() if p.grad is not None]
        if not gradients:
            return torch.zeros(())
        return torch.nn.utils.get_total_norm(gradients)

    def step(self, lr: float, norm: float) -> None:
        """Clip by the global norm and move. Nothing in it asks for memory that `make_moments` has not seen to; should it run
        out all the same, nobody may go on with these weights as if nothing had happened."""
        try:
            self._move(lr, norm)
        except RuntimeError as error:
            if not ran_out(error):
                raise
            raise NoRoom(
                "out of GPU memory in the middle of an optimiser step: some weights have moved and others have not. Go on from "
                "the last checkpoint, and let fewer runs share the GPU."
            ) from error

    @torch.no_grad()
    def _move(self, lr: float, norm: float) -> None:
        if self.clip_norm and norm > self.clip_norm:
            gradients = [p.grad for p in self.master.values() if p.grad is not None]
            torch._foreach_mul_(gradients, self.clip_norm / (norm + 1e-6))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.steps += 1
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model, in place: whoever holds its tensors sees the new weights."""
        if self.split:
            torch._foreach_copy_(list(self.live.values()), list(self.master.values()))

    def clear(self) -> None:
        for p in (*self.live.values(), *self.master.values()):
            p.grad = None


def places_of(name: str, shape: torch.Size, device: torch.device) -> torch.Tensor:
    """u of each weight of a parameter, uniform in (−1, 1): always the same."""
    generator = torch.Generator(device).manual_seed(derive(0, "place within its rounding", name))
    return torch.rand(shape, generator=generator, device=device).mul_(2).sub_(1)


def off_the_grid(weights: torch.Tensor, places: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """w + u · spacing(w) / 2 of float32 weights that are numbers of `dtype`, where that is rounded to w. Others stay."""
    # w = mantissa · 2^exponent with a mantissa of at least ½, so that half a spacing is 2^exponent · eps / 4
    moved = torch.ldexp(places * (torch.finfo(dtype).eps / 4), torch.frexp(weights).exponent).add_(weights)
    return torch.where(moved.to(dtype) == weights, moved, weights)


@torch.no_grad()
def _rehearse(device: torch.device) -> None:
    """All that `step` does, with one number."""
    number, rounded = nn.Parameter(torch.zeros(1, device=device)), torch.zeros(1, dtype=torch.bfloat16, device=device)
    number.grad = torch.zeros_like(number)
    torch._foreach_mul_([number.grad], 1.0)
    torch.optim.AdamW([number], fused=True).step()
    torch._foreach_copy_([rounded], [number])
