"""Memory planned before the first update, and again when there is more, instead of found out by one that fails.

A few rows are gone through, then twice as many, and what autograd keeps of them is counted:

    kept(tokens) = fixed + per_token · tokens
    tokens of a pass  ≤  (what is free − what an update needs anyway − fixed) / (per_token · SLACK)
    tokens of a pass  ≤  plenty / per_token                where no token budget was chosen; plenty a SHARE of what is free

What it needs anyway: gradients, the optimiser's moments where it has none yet, and the logits of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tacit.core.batch import Batch
from tacit.core.engine import LOGITS, TEACHER
from tacit.core.protocols import LossTerm
from tacit.engines.local.learning.update import Learning, Tally, training
from tacit.engines.local.learning.weights import TrainedWeights
from tacit.engines.local.memory import free_bytes, make_room, ran_out
from tacit.engines.local.passes.pieces import WORTH_COMPILING

TRIED_TOKENS = WORTH_COMPILING
"""tokens that are gone through: enough for the pass to be that of a whole micro-batch"""
SLACK = 1.2
"""the backward pass has a layer's gradients beside what is kept, and memory comes in blocks"""
LOGIT_COPIES = 4
"""logits, their softmax, and the gradients of both"""
SHARE = 0.4
"""of the free memory that a pass may keep, so that whoever comes first leaves room for others. On an empty H200 that is 65,536
tokens of SmolLM2-135M (0.78 MB each, 48 GiB). A pass of a third of that computes half as many tokens a second: the host, which
launches as much for each pass, is then slower than the GPU"""


def planned_budget(learning: Learning, batch: Batch, losses: Sequence[LossTerm]) -> int:
    """The token budget that was chosen, or less where so much does not fit or is not needed. Room is made before it is lowered
    for want of it, and never to less than has been tried: the update itself cuts finer where it must."""
    model, budget = learning.model, learning.budget.chosen
    rows = np.array([i for i, c in enumerate(batch.completions) if len(c)], dtype=np.int64)
    if not len(rows):
        return budget
    try:
        fixed, per_token = kept_by(learning, batch, losses, rows)
    except RuntimeError as error:
        if not ran_out(error):
            raise
        fixed = per_token = 0.0
    if not per_token:  # others have the GPU and even a few rows are too many now: begin with as few, and cut finer
        make_room(model.device)
        return min(budget, TRIED_TOKENS)
    if not learning.settings.token_budget:
        budget = min(budget, max(TRIED_TOKENS, int(SHARE * free_bytes(model.device) / per_token)))
    logits = LOGIT_COPIES * 4 * min(batch.total_tokens, model.chunk_tokens) * model.vocabulary

    def fits() -> int:
        return int((free_bytes(model.device) - needed_anyway(learning.weights) - logits - fixed) / (SLACK * per_token))

    if fits() < budget:
        make_room(model.device)
    return min(budget, max(fits(), TRIED_TOKENS))


def needed_anyway(weights: TrainedWeights) -> int:
    """Bytes of the gradients and of moments that are still to be made."""
    needed = 0
    for name, master in weights.master.items():
        live = weights.live[name]
        needed += master.numel() * 4 + (live.numel() * live.element_size() if live is not master else 0)
        needed += 0 if weights.optimizer.state.get(master) else master.numel() * 8
    return needed


def kept_by(learning: Learning, batch: Batch, losses: Sequence[LossTerm], rows: np.ndarray) -> tuple[float, float]:
    """Bytes that autograd keeps for the backward pass: (whatever the tokens, and for each)."""
    model = learning.model
    needs: frozenset[str] = frozenset().union(*(loss.needs for loss in losses))
    in_chunks = not needs & {LOGITS, TEACHER}

    def counts(tensor: torch.Tensor) -> bool:
        """Logits of a single chunk are kept where there is no other, and are counted by themselves."""
        shape = tuple(tensor.shape)
        return not (in_chunks and len(shape) == 2 and shape[0] <= model.chunk_tokens and shape[1] == model.vocabulary)

    tried: dict[int, int] = {}
    for budget in (TRIED_TOKENS, 2 * TRIED_TOKENS):
        part = model.parts(batch.prompts, batch.completions, rows, budget)[0]
        packed = model.packed(batch.prompts, batch.completions, part, learning.codec.pad)
        with training(model, learning.settings, dropout=False, seed=0):
            tried[packed.computed] = kept_bytes(
                lambda packed=packed: Tally(losses, batch.total_tokens).add(  # type: ignore[misc]
                    learning._view(batch, packed, needs, len(rows)), batch.sampled
                ),
                (*learning.weights.live.values(), *model.hf.parameters()),
                counts,
            )[0]  # its result would hold on to all that was counted while twice as much is
    fewer, more = min(tried), max(tried)
    if more == fewer:  # the whole batch is no more than that
        return 0.0, max(1.0, tried[more] / more)
    per_token = max(1.0, (tried[more] - tried[fewer]) / (more - fewer))
    return max(0.0, tried[fewer] - per_token * fewer), per_token


def kept_bytes(
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
