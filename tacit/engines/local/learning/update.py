"""Learning: one AdamW step on a whole batch, however it has to be cut up to fit.

Every loss term divides by totals of the whole batch, so micro-batch gradients simply add up to the gradient of the batch. With
LoRA dropout they do so in expectation: masks are drawn pass by pass, in the order in which the parts are computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.core.batch import Batch
from tacit.core.errors import NonFiniteLoss, NoRoom, TacitError
from tacit.core.protocols import LossTerm, TokenView
from tacit.core.seeds import derive
from tacit.engines.local.learning.teaching import compared, longest_read, taught_states
from tacit.engines.local.learning.weights import TrainedWeights
from tacit.engines.local.memory import Budget, patiently
from tacit.engines.local.passes.codec import TextCodec
from tacit.engines.local.passes.flat import FlatPack
from tacit.engines.local.passes.handing import handed
from tacit.engines.local.passes.models import LanguageModel
from tacit.engines.local.passes.packing import Packed, flat, input_lengths
from tacit.engines.local.passes.scoring import EntropyMode, distribution_scores, token_scores
from tacit.engines.local.settings import EngineSettings


class Learning:
    """Updates of one set of weights (all parameters, or one adapter) of one model."""

    def __init__(
        self,
        model: LanguageModel,
        codec: TextCodec,
        weights: TrainedWeights,
        settings: EngineSettings,
        budget: Budget,
        seed: int,
        value_head: nn.Linear | None = None,
    ):
        self.model, self.codec, self.weights, self.settings = model, codec, weights, settings
        self.budget, self.seed, self.value_head = budget, seed, value_head

    def update(self, batch: Batch, losses: Sequence[LossTerm], lr: float) -> dict[str, float]:
        """One step on the whole batch. Rows without completion tokens have nothing to learn from and are left out.

        Where memory runs out, the batch is cut finer and gone through again; the budget stays at what did fit."""
        rows = np.array([i for i, c in enumerate(batch.completions) if len(c)], dtype=np.int64)
        _check_columns(batch)
        lengths = input_lengths(batch.prompts, batch.completions, self.codec.context_limit)[rows]
        needs: frozenset[str] = frozenset().union(*(loss.needs for loss in losses))
        if "values" in needs and self.value_head is None:
            raise TacitError("this method's loss needs a value head; set the engine setting value_head.")
        if not len(rows):
            return {"loss": 0.0, "grad_norm": 0.0, "tokens": 0.0, "rows": 0.0}

        def gradient(token_budget: int) -> tuple[dict[str, float], int]:
            return self._gradient(batch, losses, rows, needs, token_budget)

        try:
            metrics, computed = self._fitting(gradient, int(lengths.max()))
            if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])):
                failure = NonFiniteLoss(
                    f"the loss is {metrics['loss']} and its gradient's norm {metrics['grad_norm']}, after "
                    f"{self.weights.steps} updates; no weight has been changed. Lower the learning rate, or look for "
                    "extreme advantages and log-probabilities in the batch."
                )
                failure.batch = batch
                raise failure
            patiently(self.weights.leave_the_grid, self.model.device, "taking the first step")
            self.weights.step(lr, metrics["grad_norm"])
        except torch.OutOfMemoryError as error:
            raise NoRoom(
                f"out of GPU memory in an update, cut as finely as its longest row of {lengths.max()} tokens allows; "
                f"{'' if self.settings.lora_rank else 'train adapters (--engine.lora-rank), '}turn on gradient_checkpointing, "
                "shorten the prompts, or let fewer runs share the GPU."
            ) from error
        finally:
            self.weights.clear()
        # above 1 some was padding, below 1 some prompts were shared
        share = computed / float(lengths.sum())
        return metrics | {"tokens": float(batch.total_tokens), "rows": float(len(rows)), "computed_share": share}

    def _fitting(self, gradient: Callable[[int], tuple[dict[str, float], int]], least: int) -> tuple[dict[str, float], int]:
        """The gradient, of a batch cut as finely as memory asks for."""
        # Nobody waits with half a gradient in his hands.
        return self.budget.fit(gradient, least, "an update with a token_budget of {}", let_go=self.weights.clear)

    def _gradient(
        self, batch: Batch, losses: Sequence[LossTerm], rows: np.ndarray, needs: frozenset[str], token_budget: int
    ) -> tuple[dict[str, float], int]:
        """Leaves the batch's gradient with the masters; (what there is to say of it, tokens that were computed)."""
        self.weights.clear()  # of what an attempt before this one may have left
        tally, computed = Tally(losses, batch.total_tokens), 0
        sampled = batch.sampled
        seed = derive(self.seed, "dropout", self.weights.steps)
        with training(self.model, self.settings, dropout=bool(self.settings.lora_dropout) and not sampled, seed=seed):
            for part in self.model.parts(longest_read(batch, needs), batch.completions, rows, token_budget):
                packed = self.model.packed(batch.prompts, batch.completions, part, self.codec.pad)
                computed += packed.computed
                view = self._view(batch, packed, needs, len(rows))
                total = tally.add(view, sampled)
                if total.requires_grad:
                    total.backward()
                    self.weights.collect()
                del view, total  # before the next pass begins
        self.weights.make_moments()
        return tally.metrics(tally.read(self.weights.gradient_norm())), computed

    def _view(self, batch: Batch, packed: FlatPack | Packed, needs: frozenset[str], total_rows: int) -> TokenView:
        device = self.model.device
        targets_T = handed(packed.targets_T, device)
        hidden_TD = self.model.predicting(packed)
        entropy: EntropyMode = "gradient" if "entropy" in needs else "value"
        logits_TV = self.model.logits(hidden_TD) if "logits" in needs else None
        if logits_TV is not None:
            logprobs_T, entropy_T = distribution_scores(logits_TV, targets_T, batch.temperature, entropy)
        else:
            logprobs_T, entropy_T = token_scores(self.model, hidden_TD, targets_T, batch.temperature, entropy)
        values_R = None
        if "values" in needs and self.value_head is not None:
            ends_RD = hidden_TD.index_select(0, handed(packed.first_R, device))
            values_R = self.value_head(ends_RD.float()).squeeze(-1)

        def per_token(column: Sequence[np.ndarray]) -> torch.Tensor:
            return _column(np.concatenate([column[r] for r in packed.rows]), device)

        return TokenView(
            logprobs_T=logprobs_T,
            behaviour_T=handed(flat([batch.behaviour[r] for r in packed.rows], np.float32), device),
            advantages_T=handed(flat([batch.advantages[r] for r in packed.rows], np.float32), device),
            row_T=handed(packed.row_T, device),
            lengths_R=handed(packed.lengths_R, device),
            total_tokens=batch.total_tokens,
            total_rows=total_rows,
            tokens={name: per_token(column) for name, column in batch.tokens.items()},
            rows={name: _column(np.asarray(column)[packed.rows], device) for name, column in batch.rows.items()},
            entropy_T=entropy_T,
            values_R=values_R,
            logits_TV=logits_TV,
            beside_teacher=self._teacher(batch, packed, hidden_TD) if "teacher" in needs else None,
        )

    def _teacher(self, batch: Batch, packed: FlatPack | Packed, hidden_TD: torch.Tensor) -> Callable[[Any], torch.Tensor]:
        taught_TD = taught_states(self.model, batch, packed, self.codec.pad)
        return partial(compared, self.model, hidden_TD, taught_TD, batch.temperature)


class Tally:
    """Adds up losses and statistics over micro-batches on the device; reads them back once, at the end."""

    def __init__(self, losses: Sequence[LossTerm], total_tokens: int):
        self.losses, self.names, self.total_tokens = losses, _names(losses), total_tokens
        self.sums: dict[str, torch.Tensor] = {}
        self.peaks: dict[str, torch.Tensor] = {}
        self.parts: dict[str, torch.Tensor] = {}
        self.owner: dict[str, str] = {}

    def add(self, view: TokenView, sampled: bool) -> torch.Tensor:
        total = view.logprobs_T.new_zeros(())
        for name, term in zip(self.names, self.losses, strict=True):
            value, statistics = term(view)
            total = total + value
            self.parts[name] = self.parts.get(name, 0.0) + value.detach()
            for key, number in statistics.items():
                # Two terms may report the same word; the second says whose it is.
                mine = self.owner.setdefault(key, name) == name
                self._count(key if mine else f"{name}/{key}", number)
        with torch.no_grad():
            self._count("logprob", view.logprobs_T.sum())
            if view.entropy_T is not None and "entropy" not in self.owner:
                self._count("entropy", view.entropy_T.sum())
            if sampled:
                gap_T = (view.logprobs_T - view.behaviour_T).abs()
                self._count("behaviour_gap", gap_T.sum())
                self._count("behaviour_gap_max", gap_T.max())
        return total

    def read(self, norm: torch.Tensor) -> dict[str, float]:
        """All that was counted, and the norm, from the device in one reading."""
        columns = {f"sum:{k}": v for k, v in self.sums.items()} | {f"max:{k}": v for k, v in self.peaks.items()}
        columns |= {f"part:{k}": v for k, v in self.parts.items()} | {"norm": norm}
        numbers = torch.stack([v.detach().to(norm.device, torch.float64).reshape(()) for v in columns.values()]).tolist()
        return dict(zip(columns, numbers, strict=True))

    def metrics(self, read: Mapping[str, float]) -> dict[str, float]:
        metrics = {"loss": sum(read[f"part:{name}"] for name in self.parts), "grad_norm": read["norm"]}
        if len(self.parts) > 1:
            metrics |= {f"loss/{name}": read[f"part:{name}"] for name in self.parts}
        metrics |= {key: read[f"sum:{key}"] / self.total_tokens for key in self.sums}
        return metrics | {key: read[f"max:{key}"] for key in self.peaks}

    def _count(self, key: str, number: Any) -> None:
        number = torch.as_tensor(number).detach()
        if key.endswith("_max"):
            self.peaks[key] = torch.maximum(self.peaks[key], number) if key in self.peaks else number
        else:
            self.sums[key] = self.sums[key] + number if key in self.sums else number


@contextmanager
def training(model: LanguageModel, settings: EngineSettings, dropout: bool, seed: int) -> Iterator[None]:
    """Gradient checkpointing on, and LoRA dropout where rows are imitated; not where they were sampled, since ratios are taken
    against what the sampler saw, and the base model's own never. Its randomness is the seed's and the update's alone."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    switched = [
        module
        for name, module in model.hf.named_modules()
        if (dropout and ".lora_dropout." in name and isinstance(module, nn.Dropout))
        or (settings.gradient_checkpointing and isinstance(module, GradientCheckpointingLayer))
    ]
    for module in switched:
        module.training = True
    try:
        if dropout:
            with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
                torch.manual_seed(seed)
                yield
        else:
            yield
    finally:
        for module in switched:
            module.training = False


def _names(losses: Sequence[LossTerm]) -> list[str]:
    """`ClippedSurrogate` is reported as `clipped_surrogate`, or by its own `name`."""
    names: list[str] = []
    for loss in losses:
        given = getattr(loss, "name", None) or getattr(loss, "__name__", None) or type(loss).__name__
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", given).lower()
        names.append(name if name not in names else f"{name}_{len(names)}")
    return names


def _column(values: np.ndarray, device: torch.device) -> torch.Tensor:
    kind = np.float32 if np.issubdtype(values.dtype, np.floating) else values.dtype
    return handed(values.astype(kind, copy=False), device)


def _check_columns(batch: Batch) -> None:
    lengths = [len(c) for c in batch.completions]
    columns = {"behaviour": batch.behaviour, "advantages": batch.advantages, **batch.tokens}
    for name, column in columns.items():
        if [len(c) for c in column] != lengths:
            raise ValueError(f"token column {name!r} does not have one number per completion token of each row")
    for name, values in batch.rows.items():
        if len(values) != len(batch):
            raise ValueError(f"row column {name!r} has {len(values)} entries for {len(batch)} rows")
