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

from tacit.core.credit import Batch
from tacit.core.errors import NonFiniteLoss, NoRoom, TacitError
from tacit.core.protocols import LOGITS, TEACHER, LossTerm, TokenView
from tacit.core.seeds import derive
from tacit.engines.local.fast.compiled import MIN_TOKENS_TO_COMPILE
from tacit.engines.local.memory import AdaptiveBudget, free_bytes, free_memory, is_out_of_memory, retry_on_oom
from tacit.engines.local.model import LanguageModel
from tacit.engines.local.packing import PackedBatch, PaddedBatch, concat_column, input_lengths, to_device
from tacit.engines.local.scoring import (
    EntropyMode,
    compare_with_teacher,
    logprobs_from_logits,
    longer_prompts,
    teacher_hidden_states,
    token_logprobs,
)
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.tokenizer import TextCodec

# The weights that are trained: their gradients, their optimiser, and the precision that small steps need.


class MasterWeights:
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

    def reset_optimizer(self) -> None:
        """Begin another stage: the optimiser starts as new, from the weights as they are."""
        self.optimizer.state.clear()

    def allocate_moments(self) -> None:
        """Of what has a gradient and none yet, as AdamW would, and with the first of them a step of a single number, for which
        the device loads what a step runs: a real one must not run out of memory half-way."""
        for p in self.master.values():
            if p.grad is not None and not self.optimizer.state.get(p):
                if not self.optimizer.state:
                    _warm_up_optimizer(p.device)
                moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                self.optimizer.state[p] = {"step": torch.zeros((), device=p.device), **moments}

    @torch.no_grad()
    def dither_masters(self) -> None:
        """Before the first step. A function of names and weights alone: done again, it comes to the same."""
        if self.steps:
            return
        for name, weight in self.live.items():
            if (master := self.master[name]) is weight:
                continue
            master.copy_(dither(weight.float(), dither_noise(name, weight.shape, weight.device), weight.dtype))

    def accumulate_gradients(self) -> None:
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
            if not is_out_of_memory(error):
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
        self.copy_masters_to_model()

    @torch.no_grad()
    def copy_masters_to_model(self) -> None:
        """Round the masters into the model, in place: whoever holds its tensors sees the new weights."""
        if self.split:
            torch._foreach_copy_(list(self.live.values()), list(self.master.values()))

    def zero_grad(self) -> None:
        for p in (*self.live.values(), *self.master.values()):
            p.grad = None


def dither_noise(name: str, shape: torch.Size, device: torch.device) -> torch.Tensor:
    """u of each weight of a parameter, uniform in (−1, 1): always the same."""
    generator = torch.Generator(device).manual_seed(derive(0, "place within its rounding", name))
    return torch.rand(shape, generator=generator, device=device).mul_(2).sub_(1)


def dither(weights: torch.Tensor, places: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """w + u · spacing(w) / 2 of float32 weights that are numbers of `dtype`, where that is rounded to w. Others stay."""
    # w = mantissa · 2^exponent with a mantissa of at least ½, so that half a spacing is 2^exponent · eps / 4
    moved = torch.ldexp(places * (torch.finfo(dtype).eps / 4), torch.frexp(weights).exponent).add_(weights)
    return torch.where(moved.to(dtype) == weights, moved, weights)


@torch.no_grad()
def _warm_up_optimizer(device: torch.device) -> None:
    """All that `step` does, with one number."""
    number, rounded = nn.Parameter(torch.zeros(1, device=device)), torch.zeros(1, dtype=torch.bfloat16, device=device)
    number.grad = torch.zeros_like(number)
    torch._foreach_mul_([number.grad], 1.0)
    torch.optim.AdamW([number], fused=True).step()
    torch._foreach_copy_([rounded], [number])


class Updater:
    """Updates of one set of weights (all parameters, or one adapter) of one model."""

    def __init__(
        self,
        model: LanguageModel,
        codec: TextCodec,
        weights: MasterWeights,
        settings: EngineSettings,
        budget: AdaptiveBudget,
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
            return self._accumulate_gradient(batch, losses, rows, needs, token_budget)

        try:
            metrics, computed = self._run_within_budget(gradient, int(lengths.max()))
            if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])):
                failure = NonFiniteLoss(
                    f"the loss is {metrics['loss']} and its gradient's norm {metrics['grad_norm']}, after "
                    f"{self.weights.steps} updates; no weight has been changed. Lower the learning rate, or look for "
                    "extreme advantages and log-probabilities in the batch."
                )
                failure.batch = batch
                raise failure
            retry_on_oom(self.weights.dither_masters, self.model.device, "taking the first step")
            self.weights.step(lr, metrics["grad_norm"])
        except torch.OutOfMemoryError as error:
            raise NoRoom(
                f"out of GPU memory in an update, cut as finely as its longest row of {lengths.max()} tokens allows; "
                f"{'' if self.settings.lora_rank else 'train adapters (--engine.lora-rank), '}turn on gradient_checkpointing, "
                "shorten the prompts, or let fewer runs share the GPU."
            ) from error
        finally:
            self.weights.zero_grad()
        # above 1 some was padding, below 1 some prompts were shared
        share = computed / float(lengths.sum())
        return metrics | {"tokens": float(batch.total_tokens), "rows": float(len(rows)), "computed_share": share}

    def _run_within_budget(
        self, gradient: Callable[[int], tuple[dict[str, float], int]], least: int
    ) -> tuple[dict[str, float], int]:
        """The gradient, of a batch cut as finely as memory asks for."""
        # Nobody waits with half a gradient in his hands.
        return self.budget.fit(gradient, least, "an update with a token_budget of {}", let_go=self.weights.zero_grad)

    def _accumulate_gradient(
        self, batch: Batch, losses: Sequence[LossTerm], rows: np.ndarray, needs: frozenset[str], token_budget: int
    ) -> tuple[dict[str, float], int]:
        """Leaves the batch's gradient with the masters; (what there is to say of it, tokens that were computed)."""
        self.weights.zero_grad()  # of what an attempt before this one may have left
        tally, computed = LossMetrics(losses, batch.total_tokens), 0
        sampled = batch.sampled
        seed = derive(self.seed, "dropout", self.weights.steps)
        with training_mode(self.model, self.settings, dropout=bool(self.settings.lora_dropout) and not sampled, seed=seed):
            for part in self.model.plan_micro_batches(longer_prompts(batch, needs), batch.completions, rows, token_budget):
                packed = self.model.make_micro_batch(batch.prompts, batch.completions, part, self.codec.pad)
                computed += packed.num_tokens
                view = self._forward(batch, packed, needs, len(rows))
                total = tally.add(view, sampled)
                if total.requires_grad:
                    total.backward()
                    self.weights.accumulate_gradients()
                del view, total  # before the next pass begins
        self.weights.allocate_moments()
        return tally.metrics(tally.read(self.weights.gradient_norm())), computed

    def _forward(self, batch: Batch, packed: PackedBatch | PaddedBatch, needs: frozenset[str], total_rows: int) -> TokenView:
        device = self.model.device
        targets_T = to_device(packed.targets_T, device)
        hidden_TD = self.model.forward_hidden(packed)
        entropy: EntropyMode = "gradient" if "entropy" in needs else "value"
        logits_TV = self.model.logits(hidden_TD) if "logits" in needs else None
        if logits_TV is not None:
            logprobs_T, entropy_T = logprobs_from_logits(logits_TV, targets_T, batch.temperature, entropy)
        else:
            logprobs_T, entropy_T = token_logprobs(self.model, hidden_TD, targets_T, batch.temperature, entropy)
        values_R = None
        if "values" in needs and self.value_head is not None:
            ends_RD = hidden_TD.index_select(0, to_device(packed.first_R, device))
            values_R = self.value_head(ends_RD.float()).squeeze(-1)

        def per_token(column: Sequence[np.ndarray]) -> torch.Tensor:
            return _column(np.concatenate([column[r] for r in packed.rows]), device)

        return TokenView(
            logprobs_T=logprobs_T,
            behaviour_T=to_device(concat_column([batch.behaviour[r] for r in packed.rows], np.float32), device),
            advantages_T=to_device(concat_column([batch.advantages[r] for r in packed.rows], np.float32), device),
            row_T=to_device(packed.row_T, device),
            lengths_R=to_device(packed.lengths_R, device),
            total_tokens=batch.total_tokens,
            total_rows=total_rows,
            tokens={name: per_token(column) for name, column in batch.tokens.items()},
            rows={name: _column(np.asarray(column)[packed.rows], device) for name, column in batch.rows.items()},
            entropy_T=entropy_T,
            values_R=values_R,
            logits_TV=logits_TV,
            beside_teacher=self._teacher(batch, packed, hidden_TD) if "teacher" in needs else None,
        )

    def _teacher(
        self, batch: Batch, packed: PackedBatch | PaddedBatch, hidden_TD: torch.Tensor
    ) -> Callable[[Any], torch.Tensor]:
        taught_TD = teacher_hidden_states(self.model, batch, packed, self.codec.pad)
        return partial(compare_with_teacher, self.model, hidden_TD, taught_TD, batch.temperature)


class LossMetrics:
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
def training_mode(model: LanguageModel, settings: EngineSettings, dropout: bool, seed: int) -> Iterator[None]:
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
    return to_device(values.astype(kind, copy=False), device)


def _check_columns(batch: Batch) -> None:
    lengths = [len(c) for c in batch.completions]
    columns = {"behaviour": batch.behaviour, "advantages": batch.advantages, **batch.tokens}
    for name, column in columns.items():
        if [len(c) for c in column] != lengths:
            raise ValueError(f"token column {name!r} does not have one number per completion token of each row")
    for name, values in batch.rows.items():
        if len(values) != len(batch):
            raise ValueError(f"row column {name!r} has {len(values)} entries for {len(batch)} rows")


# Memory planned before the first update, and again when there is more, instead of found out by one that fails.
#
# A few rows are gone through, then twice as many, and what autograd keeps of them is counted:
#
#     kept(tokens) = fixed + per_token · tokens
#     tokens of a pass  ≤  (what is free − what an update needs anyway − fixed) / (per_token · SLACK)
#     tokens of a pass  ≤  plenty / per_token                where no token budget was chosen; plenty a SHARE of what is free
#
# What it needs anyway: gradients, the optimiser's moments where it has none yet, and the logits of one chunk.

PROBE_TOKENS = MIN_TOKENS_TO_COMPILE
"""tokens that are gone through: enough for the pass to be that of a whole micro-batch"""
SLACK = 1.2
"""the backward pass has a layer's gradients beside what is kept, and memory comes in blocks"""
LOGIT_COPIES = 4
"""logits, their softmax, and the gradients of both"""
SHARE = 0.4
"""of the free memory that a pass may keep, so that whoever comes first leaves room for others. On an empty H200 that is 65,536
tokens of SmolLM2-135M (0.78 MB each, 48 GiB). A pass of a third of that computes half as many tokens a second: the host, which
launches as much for each pass, is then slower than the GPU"""


def plan_token_budget(learning: Updater, batch: Batch, losses: Sequence[LossTerm]) -> int:
    """The token budget that was chosen, or less where so much does not fit or is not needed. Room is made before it is lowered
    for want of it, and never to less than has been tried: the update itself cuts finer where it must."""
    model, budget = learning.model, learning.budget.limit
    rows = np.array([i for i, c in enumerate(batch.completions) if len(c)], dtype=np.int64)
    if not len(rows):
        return budget
    try:
        fixed, per_token = measure_activation_bytes(learning, batch, losses, rows)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        fixed = per_token = 0.0
    if not per_token:  # others have the GPU and even a few rows are too many now: begin with as few, and cut finer
        free_memory(model.device)
        return min(budget, PROBE_TOKENS)
    if not learning.settings.token_budget:
        budget = min(budget, max(PROBE_TOKENS, int(SHARE * free_bytes(model.device) / per_token)))
    logits = LOGIT_COPIES * 4 * min(batch.total_tokens, model.chunk_tokens) * model.vocabulary

    def fits() -> int:
        return int(
            (free_bytes(model.device) - gradient_and_moment_bytes(learning.weights) - logits - fixed) / (SLACK * per_token)
        )

    if fits() < budget:
        free_memory(model.device)
    return min(budget, max(fits(), PROBE_TOKENS))


def gradient_and_moment_bytes(weights: MasterWeights) -> int:
    """Bytes of the gradients and of moments that are still to be made."""
    needed = 0
    for name, master in weights.master.items():
        live = weights.live[name]
        needed += master.numel() * 4 + (live.numel() * live.element_size() if live is not master else 0)
        needed += 0 if weights.optimizer.state.get(master) else master.numel() * 8
    return needed


def measure_activation_bytes(
    learning: Updater, batch: Batch, losses: Sequence[LossTerm], rows: np.ndarray
) -> tuple[float, float]:
    """Bytes that autograd keeps for the backward pass: (whatever the tokens, and for each)."""
    model = learning.model
    needs: frozenset[str] = frozenset().union(*(loss.needs for loss in losses))
    in_chunks = not needs & {LOGITS, TEACHER}

    def counts(tensor: torch.Tensor) -> bool:
        """Logits of a single chunk are kept where there is no other, and are counted by themselves."""
        shape = tuple(tensor.shape)
        return not (in_chunks and len(shape) == 2 and shape[0] <= model.chunk_tokens and shape[1] == model.vocabulary)

    tried: dict[int, int] = {}
    for budget in (PROBE_TOKENS, 2 * PROBE_TOKENS):
        part = model.plan_micro_batches(batch.prompts, batch.completions, rows, budget)[0]
        packed = model.make_micro_batch(batch.prompts, batch.completions, part, learning.codec.pad)
        with training_mode(model, learning.settings, dropout=False, seed=0):
            tried[packed.num_tokens] = count_saved_bytes(
                lambda packed=packed: LossMetrics(losses, batch.total_tokens).add(  # type: ignore[misc]
                    learning._forward(batch, packed, needs, len(rows)), batch.sampled
                ),
                (*learning.weights.live.values(), *model.hf.parameters()),
                counts,
            )[0]  # its result would hold on to all that was counted while twice as much is
    fewer, more = min(tried), max(tried)
    if more == fewer:  # the whole batch is no more than that
        return 0.0, max(1.0, tried[more] / more)
    per_token = max(1.0, (tried[more] - tried[fewer]) / (more - fewer))
    return max(0.0, tried[fewer] - per_token * fewer), per_token


def count_saved_bytes(
    work: Callable[[], Any], apart_from: Sequence[torch.Tensor], counts: Callable[[torch.Tensor], bool] = lambda _: True
) -> tuple[int, Any]:
    """(bytes of distinct memory that autograd keeps of `work()`, its result), without what is there anyway or does not
    count."""
    own: list[Any] = [t.to_local() if hasattr(t, "to_local") else t for t in apart_from]  # of a weight in shards, what is here
    there = {t.untyped_storage().data_ptr() for t in own}
    kept: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in there and counts(tensor):
            kept[storage.data_ptr()] = storage.nbytes()
        # What an operation keeps of its own answer would, as it is, hold the operation that holds it, for good.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        result = work()
    return sum(kept.values()), result
