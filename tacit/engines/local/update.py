"""One policy update: `Batch` -> micro-batches -> loss terms -> accumulated gradient -> one AdamW step on master weights.

`Updater.update` runs `accumulate_gradient` (forward, loss and backward of each micro-batch), then `MasterWeights.step`. Every
loss term divides by totals of the whole batch, so micro-batch gradients add up to the batch gradient. With LoRA dropout this
holds in expectation: masks are drawn micro-batch by micro-batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tacit.core.credit import Batch
from tacit.core.errors import NonFiniteLoss, OutOfGPUMemory, TacitError
from tacit.core.protocols import TEACHER, LossTerm, TokenView
from tacit.core.seeds import derive
from tacit.engines.local.fast.layers import MIN_TOKENS_TO_COMPILE
from tacit.engines.local.memory import AdaptiveBudget, free_bytes, free_memory, is_out_of_memory, retry_on_oom
from tacit.engines.local.model import LanguageModel
from tacit.engines.local.packing import PackedBatch, PaddedBatch, concat_column, input_lengths, to_device
from tacit.engines.local.scoring import (
    EntropyMode,
    compare_with_teacher,
    longer_prompts,
    teacher_prompts,
    token_logprobs,
)
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.tokenizer import TextCodec


class MasterWeights:
    """Trainable parameters, their AdamW state, and float32 master copies of bfloat16 parameters.

    An lr of 1e-6 is far below the spacing of bfloat16 numbers, so gradients are accumulated and steps taken in float32 and the
    model gets the rounded result.

    A master that starts exactly at its bfloat16 weight must move half a spacing before the weight changes: 2.4e-4 or more for
    half of SmolLM2's weights, over two hundred steps of 1e-6. So before the first step each master is dithered within the
    interval that rounds to its weight,

        m = w + u · spacing(w) / 2        u uniform in (−1, 1)

    and the rounded weights move by the right amount on average: E[Δw] = Δm.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], settings: EngineSettings):
        self.params = dict(sorted(named.items()))  # the model's own
        self.master = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float()) for name, p in self.params.items()
        }
        self.has_copies = any(self.master[name] is not p for name, p in self.params.items())
        self.optimizer = make_adamw(self.master.values(), settings.betas, settings.weight_decay)
        self.clip_norm = settings.clip_norm
        self.steps = 0

    def reset_optimizer(self) -> None:
        """Drop the AdamW moments; the weights stay."""
        self.optimizer.state.clear()

    @torch.no_grad()
    def allocate_moments(self) -> None:
        """Allocate missing AdamW moments and load the optimizer kernels, so that the step itself does not run out of memory."""
        for p in self.master.values():
            if p.grad is not None and not self.optimizer.state.get(p):
                if not self.optimizer.state:  # run the kernels of `step` once, on one element
                    number = nn.Parameter(torch.zeros(1, device=p.device))
                    number.grad = torch.zeros_like(number)
                    torch._foreach_mul_([number.grad], 1.0)
                    torch.optim.AdamW([number], fused=True).step()
                    torch._foreach_copy_([torch.zeros(1, dtype=torch.bfloat16, device=p.device)], [number])
                moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                self.optimizer.state[p] = {"step": torch.zeros((), device=p.device), **moments}

    @torch.no_grad()
    def dither_masters(self) -> None:
        """Dither the masters before the first step. Depends on names and weights only, so a retry gives the same result."""
        if self.steps:
            return
        for name, weight in self.params.items():
            master = self.master[name]
            if master is not weight:
                noise = dither_noise(name, weight.shape, weight.device)
                master.copy_(dither(weight.float(), noise, weight.dtype))

    def accumulate_gradients(self) -> None:
        for name, p in self.params.items():
            master = self.master[name]
            if p.grad is None or master is p:  # if they are one tensor, autograd accumulates
                continue
            master.grad = p.grad.float() if master.grad is None else master.grad.add_(p.grad)
            p.grad = None

    def gradient_norm(self) -> Tensor:
        gradients = [p.grad for p in self.master.values() if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())

    def step(self, lr: float, norm: float) -> None:
        """Clip by the global norm, take an AdamW step, copy into the model. `allocate_moments` must have reserved the memory:
        out of memory here is fatal, since some weights may have changed."""
        try:
            with torch.no_grad():
                if self.clip_norm and norm > self.clip_norm:
                    gradients = [p.grad for p in self.master.values() if p.grad is not None]
                    torch._foreach_mul_(gradients, self.clip_norm / (norm + 1e-6))
                for group in self.optimizer.param_groups:
                    group["lr"] = lr
                self.optimizer.step()
                self.steps += 1
                self.copy_masters_to_model()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfGPUMemory(
                "out of GPU memory during an optimizer step: some weights have changed and others have not. Resume from the "
                "last checkpoint, and run fewer processes on this GPU."
            ) from error

    @torch.no_grad()
    def copy_masters_to_model(self) -> None:
        """Round the masters into the model's own tensors, in place."""
        if self.has_copies:
            torch._foreach_copy_(list(self.params.values()), list(self.master.values()))

    def zero_grad(self) -> None:
        for p in (*self.params.values(), *self.master.values()):
            p.grad = None


def make_adamw(parameters: Iterable[nn.Parameter], betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    """AdamW without weight decay on vectors (norms, biases)."""
    parameters = list(parameters)
    matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    used = [group for group in groups if group["params"]]
    return torch.optim.AdamW(used, lr=0.0, betas=betas, weight_decay=weight_decay, fused=True)


def dither_noise(name: str, shape: torch.Size, device: torch.device) -> Tensor:
    """u for each weight of a parameter, uniform in (−1, 1), seeded by its name."""
    generator = torch.Generator(device).manual_seed(derive(0, "place within its rounding", name))
    return torch.rand(shape, generator=generator, device=device).mul_(2).sub_(1)


def dither(weights: Tensor, noise: Tensor, dtype: torch.dtype) -> Tensor:
    """w + u · spacing(w) / 2 if that rounds to w in `dtype`, else w."""
    # w = mantissa · 2^exponent with a mantissa of at least ½, so half a spacing is 2^exponent · eps / 4
    moved = torch.ldexp(noise * (torch.finfo(dtype).eps / 4), torch.frexp(weights).exponent).add_(weights)
    return torch.where(moved.to(dtype) == weights, moved, weights)


class Updater:
    """Updates one set of weights (all parameters, or one adapter) of one model."""

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

    def update(self, batch: Batch, losses: Sequence[LossTerm], lr: float | None) -> dict[str, float]:
        """One optimizer step on the whole batch; returns metrics. Rows without completion tokens are skipped. Without `lr`,
        only the gradient is computed. After an out of memory error, it is recomputed with half the token budget."""
        sizes = [len(completion) for completion in batch.completions]
        token_columns = {"behavior": batch.behavior, "advantages": batch.advantages, **batch.tokens}
        for name, column in token_columns.items():
            if [len(numbers) for numbers in column] != sizes:
                raise ValueError(f"token column {name!r} does not have one number per completion token of each row")
        for name, values in batch.rows.items():
            if len(values) != len(batch):
                raise ValueError(f"row column {name!r} has {len(values)} entries for {len(batch)} rows")
        rows = np.flatnonzero(sizes)
        lengths = input_lengths(batch.prompts, batch.completions, self.codec.context_limit)[rows]
        needs: frozenset[str] = frozenset().union(*(loss.needs for loss in losses))
        if "values" in needs and self.value_head is None:
            raise TacitError("this method's loss needs a value head; set --engine.value-head.")
        if not len(rows):
            return {"loss": 0.0, "grad_norm": 0.0, "tokens": 0.0, "rows": 0.0}
        gradient = partial(self.accumulate_gradient, batch, losses, rows, needs)
        try:
            metrics, computed = self._run_within_budget(gradient, int(lengths.max()))
            if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])):
                failure = NonFiniteLoss(
                    f"the loss is {metrics['loss']} and its gradient norm {metrics['grad_norm']}, after {self.weights.steps} "
                    "updates; no weight was changed. Lower the learning rate, or look for extreme advantages and "
                    "log-probabilities in the batch."
                )
                failure.batch = batch
                raise failure
            if lr is not None:
                retry_on_oom(self.weights.dither_masters, self.model.device, "taking the first step")
                self.weights.step(lr, metrics["grad_norm"])
        except torch.OutOfMemoryError as error:
            raise OutOfGPUMemory(
                f"out of GPU memory in an update, even with a single row per pass (the longest has {lengths.max()} tokens); "
                f"{'' if self.settings.lora_rank else 'train adapters (--engine.lora-rank), '}turn on "
                "--engine.gradient-checkpointing, shorten the prompts, or run fewer processes on this GPU."
            ) from error
        finally:
            self.weights.zero_grad()
        # above 1: padding; below 1: shared prompts
        share = computed / float(lengths.sum())
        return metrics | {"tokens": float(batch.total_tokens), "rows": float(len(rows)), "computed_share": share}

    def _run_within_budget(
        self, gradient: Callable[[int], tuple[dict[str, float], int]], minimum: int
    ) -> tuple[dict[str, float], int]:
        """`gradient(token_budget)`, retried with smaller budgets on out of memory. The sharded engine overrides this."""
        return self.budget.run(gradient, minimum, "an update with a token_budget of {}", clean_up=self.weights.zero_grad)

    def accumulate_gradient(
        self, batch: Batch, losses: Sequence[LossTerm], rows: np.ndarray, needs: frozenset[str], token_budget: int
    ) -> tuple[dict[str, float], int]:
        """Accumulate the batch gradient in the masters; returns (metrics, tokens in the forward passes)."""
        self.weights.zero_grad()  # of a failed attempt
        loss_metrics = LossMetrics(losses, batch.total_tokens)
        computed = 0
        sampled = batch.sampled
        dropout = bool(self.settings.lora_dropout) and not sampled
        seed = derive(self.seed, "dropout", self.weights.steps)
        with training_mode(self.model, self.settings, dropout, seed):
            for part in self.model.plan_micro_batches(longer_prompts(batch, needs), batch.completions, rows, token_budget):
                packed = self.model.make_micro_batch(batch.prompts, batch.completions, part, self.codec.pad)
                computed += packed.num_tokens
                view = self._forward(batch, packed, needs, len(rows))
                loss = loss_metrics.add(view, sampled)
                if loss.requires_grad:
                    loss.backward()
                    self.weights.accumulate_gradients()
                del view, loss  # free the activations before the next forward pass
        self.weights.allocate_moments()
        return loss_metrics.metrics(loss_metrics.read(self.weights.gradient_norm())), computed

    def _forward(self, batch: Batch, packed: PackedBatch | PaddedBatch, needs: frozenset[str], total_rows: int) -> TokenView:
        """Forward pass of one micro-batch; returns the inputs of the loss terms."""
        device = self.model.device
        targets_T = to_device(packed.targets_T, device)
        hidden_TD = self.model.forward_hidden(packed)
        entropy: EntropyMode = "gradient" if "entropy" in needs else "value"
        logprobs_T, entropy_T = token_logprobs(self.model, hidden_TD, targets_T, batch.temperature, entropy)
        values_R = None
        if "values" in needs and self.value_head is not None:
            prompt_ends_RD = hidden_TD.index_select(0, to_device(packed.first_R, device))
            values_R = self.value_head(prompt_ends_RD.float()).squeeze(-1)
        compare_teacher = None
        if "teacher" in needs:
            with torch.no_grad():
                prompts = teacher_prompts(batch)
                teacher_batch = self.model.make_micro_batch(prompts, batch.completions, packed.rows, self.codec.pad)
                teacher_TD = self.model.forward_hidden(teacher_batch)
            compare_teacher = partial(compare_with_teacher, self.model, hidden_TD, teacher_TD, batch.temperature)
        inputs = {"entropy_T": entropy_T, "values_R": values_R, "compare_with_teacher": compare_teacher}
        return make_view(batch, packed.rows, packed.lengths_R, total_rows, logprobs_T, **inputs)


def make_view(
    batch: Batch, rows: Sequence[int] | np.ndarray, lengths_R: np.ndarray, total_rows: int, logprobs_T: Tensor, **inputs: Any
) -> TokenView:
    """The inputs of the loss terms for these rows. `lengths_R`: completion tokens of each; `inputs`: further fields."""
    device = logprobs_T.device

    def to_tensor(values: np.ndarray) -> Tensor:
        dtype = np.float32 if np.issubdtype(values.dtype, np.floating) else values.dtype
        return to_device(values.astype(dtype, copy=False), device)

    return TokenView(
        logprobs_T=logprobs_T,
        behavior_T=to_device(concat_column([batch.behavior[r] for r in rows], np.float32), device),
        advantages_T=to_device(concat_column([batch.advantages[r] for r in rows], np.float32), device),
        row_T=to_device(np.repeat(np.arange(len(rows)), lengths_R), device),
        lengths_R=to_device(lengths_R, device),
        total_tokens=batch.total_tokens,
        total_rows=total_rows,
        tokens={name: to_tensor(np.concatenate([column[r] for r in rows])) for name, column in batch.tokens.items()},
        rows={name: to_tensor(np.asarray(column)[rows]) for name, column in batch.rows.items()},
        **inputs,
    )


class LossMetrics:
    """Sums losses and statistics over micro-batches on the device and reads them back once, at the end."""

    def __init__(self, losses: Sequence[LossTerm], total_tokens: int):
        self.losses, self.total_tokens = losses, total_tokens
        self.names: list[str] = []
        """of each term: its `name`, else its class in snake case, such as `clipped_surrogate`"""
        for loss in losses:
            label = getattr(loss, "name", None) or getattr(loss, "__name__", None) or type(loss).__name__
            name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", label).lower()
            self.names.append(name if name not in self.names else f"{name}_{len(self.names)}")
        self.totals: dict[str, Tensor] = {}  # `part:` of the loss by term, `sum:` and `max:` of statistics
        self.owner: dict[str, str] = {}  # of each statistic: the first term that reports it

    def add(self, view: TokenView, sampled: bool) -> Tensor:
        """The micro-batch loss: the sum of all terms."""
        total = view.logprobs_T.new_zeros(())
        for name, term in zip(self.names, self.losses, strict=True):
            value, statistics = term(view)
            total = total + value
            self._count(f"part:{name}", value)
            for key, number in statistics.items():
                # If two terms report the same key, the second's is prefixed with its name.
                is_first = self.owner.setdefault(key, name) == name
                self._count(key if is_first else f"{name}/{key}", number)
        with torch.no_grad():
            self._count("logprob", view.logprobs_T.sum())
            if view.entropy_T is not None and "entropy" not in self.owner:
                self._count("entropy", view.entropy_T.sum())
            if sampled:
                gap_T = (view.logprobs_T - view.behavior_T).abs()
                self._count("behaviour_gap", gap_T.sum())
                self._count("behaviour_gap_max", gap_T.max())
        return total

    def read(self, norm: Tensor) -> dict[str, float]:
        """All sums, maxima and the gradient norm, in one transfer from the device."""
        columns = self.totals | {"norm": norm}
        numbers = torch.stack([v.detach().to(norm.device, torch.float64).reshape(()) for v in columns.values()]).tolist()
        return dict(zip(columns, numbers, strict=True))

    def metrics(self, read: Mapping[str, float]) -> dict[str, float]:
        def with_prefix(prefix: str) -> dict[str, float]:
            return {key.removeprefix(prefix): read[key] for key in self.totals if key.startswith(prefix)}

        parts = with_prefix("part:")
        metrics = {"loss": sum(parts.values()), "grad_norm": read["norm"]}
        if len(parts) > 1:
            metrics |= {f"loss/{name}": part for name, part in parts.items()}
        for key, total in with_prefix("sum:").items():
            metrics[key] = total / self.total_tokens
        return metrics | with_prefix("max:")

    def _count(self, key: str, number: Any) -> None:
        number = torch.as_tensor(number).detach()
        if not key.startswith("part:"):
            key = f"max:{key}" if key.endswith("_max") else f"sum:{key}"
        if key not in self.totals:
            self.totals[key] = number
        elif key.startswith("max:"):
            self.totals[key] = torch.maximum(self.totals[key], number)
        else:
            self.totals[key] = self.totals[key] + number


@contextmanager
def training_mode(model: LanguageModel, settings: EngineSettings, dropout: bool, seed: int) -> Iterator[None]:
    """Turns on gradient checkpointing and, if `dropout`, LoRA dropout seeded with `seed`. RL uses no dropout, because
    importance ratios compare with the sampler's log-probabilities. The base model's own dropout stays off."""
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


# Planning the token budget before the first update, instead of by running out of memory.
#
# Two forward passes, one with twice the tokens, measure the bytes that autograd saves:
#
#     saved(tokens) = fixed + per_token · tokens
#     tokens per pass ≤ (free − gradients and moments − logits of one chunk − fixed) / (per_token · SLACK)
#     tokens per pass ≤ SHARE · free / per_token                if the user set no token_budget

PROBE_TOKENS = MIN_TOKENS_TO_COMPILE  # tokens of the first probe: enough to run the same code as a full micro-batch
SLACK = 1.2  # margin for one layer's gradients in the backward pass and for memory block sizes
LOGIT_COPIES = 4  # logits, their softmax, and the gradients of both
SHARE = 0.4
"""maximum share of free memory that one pass may save, which leaves memory for other processes. On an empty H200 that is 65,536
tokens of SmolLM2-135M (0.78 MB each, 48 GiB). A third of it halves the throughput, because kernel launches dominate"""


def plan_token_budget(updater: Updater, batch: Batch, losses: Sequence[LossTerm]) -> int:
    """The token budget's limit, or less if it does not fit; at least PROBE_TOKENS, or the limit if that is smaller. Caches are
    freed before the budget is lowered."""
    model, budget = updater.model, updater.budget.limit
    rows = np.flatnonzero([len(completion) for completion in batch.completions])
    if not len(rows):
        return budget
    try:
        fixed, per_token = measure_activation_bytes(updater, batch, losses, rows)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        fixed = per_token = 0.0
    if not per_token:  # not even the probe fits, while others hold the GPU: start with its size
        free_memory(model.device)
        return min(budget, PROBE_TOKENS)
    if not updater.settings.token_budget:
        budget = min(budget, max(PROBE_TOKENS, int(SHARE * free_bytes(model.device) / per_token)))
    logit_bytes = LOGIT_COPIES * 4 * min(batch.total_tokens, model.chunk_tokens) * model.vocabulary

    def tokens_that_fit() -> int:
        left = free_bytes(model.device) - gradient_and_moment_bytes(updater.weights) - logit_bytes - fixed
        return int(left / (SLACK * per_token))

    if tokens_that_fit() < budget:
        free_memory(model.device)
    return min(budget, max(tokens_that_fit(), PROBE_TOKENS))


def gradient_and_moment_bytes(weights: MasterWeights) -> int:
    """Bytes of the gradients and of AdamW moments not allocated yet."""
    needed = 0
    for name, master in weights.master.items():
        param = weights.params[name]
        needed += 4 * master.numel()
        if param is not master:
            needed += param.element_size() * param.numel()
        if not weights.optimizer.state.get(master):
            needed += 8 * master.numel()
    return needed


def measure_activation_bytes(
    updater: Updater, batch: Batch, losses: Sequence[LossTerm], rows: np.ndarray
) -> tuple[float, float]:
    """Bytes that autograd saves for the backward pass: (fixed, per token)."""
    model = updater.model
    needs: frozenset[str] = frozenset().union(*(loss.needs for loss in losses))
    in_chunks = TEACHER not in needs

    def is_counted(tensor: Tensor) -> bool:
        """False for the logits of a single chunk, which are planned for separately."""
        shape = tuple(tensor.shape)
        return not (in_chunks and len(shape) == 2 and shape[0] <= model.chunk_tokens and shape[1] == model.vocabulary)

    def forward(packed: PackedBatch | PaddedBatch) -> None:
        """Returns nothing, because a loss would keep these activations alive during the larger probe."""
        view = updater._forward(batch, packed, needs, len(rows))
        LossMetrics(losses, batch.total_tokens).add(view, batch.sampled)

    parameters = (*updater.weights.params.values(), *model.hf.parameters())
    saved: dict[int, int] = {}
    for budget in (PROBE_TOKENS, 2 * PROBE_TOKENS):
        part = model.plan_micro_batches(batch.prompts, batch.completions, rows, budget)[0]
        packed = model.make_micro_batch(batch.prompts, batch.completions, part, updater.codec.pad)
        with training_mode(model, updater.settings, dropout=False, seed=0):
            saved[packed.num_tokens], _ = count_saved_bytes(partial(forward, packed), parameters, is_counted)
    fewer, more = min(saved), max(saved)
    if more == fewer:  # the whole batch fits into the smaller probe
        return 0.0, max(1.0, saved[more] / more)
    per_token = max(1.0, (saved[more] - saved[fewer]) / (more - fewer))
    return max(0.0, saved[fewer] - per_token * fewer), per_token


def count_saved_bytes(
    work: Callable[[], Any], exclude: Sequence[Tensor], is_counted: Callable[[Tensor], bool] = lambda _: True
) -> tuple[int, Any]:
    """(bytes of distinct storage that autograd saves in `work()`, its result), without `exclude` and tensors for which
    `is_counted` is false."""
    local: list[Any] = [t.to_local() if hasattr(t, "to_local") else t for t in exclude]  # this rank's shard of a weight
    excluded = {t.untyped_storage().data_ptr() for t in local}
    saved: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in excluded and is_counted(tensor):
            saved[storage.data_ptr()] = storage.nbytes()
        # Detached: an operation that saves its own output would otherwise keep itself alive.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        result = work()
    return sum(saved.values()), result


# Next-token pretraining on documents of similar length. `Updater` is for long prompts and short completions; here every token
# is predicted, so a padded transformers forward pass is faster. Uses bfloat16 autocast on a GPU.

MICRO_BATCHES = {"cpu": 4, "cuda": 2}
"""padded micro-batches per step, sorted by length; fewer on a GPU, where launches cost more than padding"""


class PretrainingTrainer:
    """AdamW on all parameters of a transformers model in float32. If a policy samples from this model, call
    `LocalEngine.weights_changed` afterwards."""

    def __init__(self, model: Any, pad: int, weight_decay: float = 0.05):
        self.model, self.pad = model, pad
        self.device: torch.device = model.device
        self.optimizer = make_adamw(self.model.parameters(), (0.9, 0.98), weight_decay)

    def step(self, rows: Sequence[np.ndarray], lr: float) -> torch.Tensor:
        """One step on the documents; returns the mean loss per token, on the device."""
        rows = sorted(rows, key=len)
        total = sum(len(row) - 1 for row in rows)
        loss = torch.zeros((), device=self.device)
        for part in np.array_split(np.arange(len(rows)), min(MICRO_BATCHES[self.device.type], len(rows))):
            loss = loss + self._backward([rows[i] for i in part], total)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def _backward(self, rows: Sequence[np.ndarray], total: int) -> torch.Tensor:
        width = max(len(row) for row in rows)
        padded_ids, padded_targets = (np.full((len(rows), width), value, np.int64) for value in (self.pad, -100))
        for i, row in enumerate(rows):
            padded_ids[i, : len(row)] = padded_targets[i, : len(row)] = row
        ids, targets = to_device(padded_ids, self.device), to_device(padded_targets, self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            # Right padding needs no mask under causal attention.
            logits = self.model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1).float(), targets[:, 1:].flatten(), ignore_index=-100, reduction="sum") / total
        loss.backward()
        return loss.detach()
