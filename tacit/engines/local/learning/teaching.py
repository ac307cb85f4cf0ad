"""Learning from oneself under another prompt: whole distributions side by side, in memory the vocabulary does not decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from tacit.core.batch import Batch
from tacit.core.errors import TacitError
from tacit.engines.local.passes.flat import FlatPack
from tacit.engines.local.passes.models import LanguageModel
from tacit.engines.local.passes.packing import Packed

TAUGHT = "taught"
"""the column of prompts that the teacher reads"""


def longest_read(batch: Batch, needs: frozenset[str]) -> Sequence[np.ndarray]:
    """The prompts by which a batch is cut: where a teacher reads it too, the longer of the two. So one pass of the teacher fits
    wherever one of the student does, and every rank of many makes as many passes as the others, which wait for each other."""
    if "teacher" not in needs:
        return batch.prompts
    return [max(own, taught, key=len) for own, taught in zip(batch.prompts, _taught(batch), strict=True)]


@torch.no_grad()
def taught_states(model: LanguageModel, batch: Batch, packed: FlatPack | Packed, pad: int) -> torch.Tensor:
    """[T, D] the states from which the teacher predicts the completion tokens of one micro-batch, in its order. The teacher is
    the policy as it stands at this step; only what it reads is another."""
    return model.predicting(model.packed(_taught(batch), batch.completions, packed.rows, pad))


def compared(
    model: LanguageModel,
    student_TD: torch.Tensor,
    teacher_TD: torch.Tensor,
    temperature: float,
    compare: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """[T] `compare` of both log-distributions, chunk by chunk; a chunk's logits are computed again in the backward pass."""

    def chunk(student_CD: torch.Tensor, teacher_CD: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            teacher_CV = torch.log_softmax(model.logits(teacher_CD) / temperature, dim=-1)
        return compare(torch.log_softmax(model.logits(student_CD) / temperature, dim=-1), teacher_CV)

    size = model.chunk_tokens
    return torch.cat(
        [
            checkpoint(chunk, own, other, use_reentrant=False, preserve_rng_state=False)
            for own, other in zip(student_TD.split(size), teacher_TD.split(size), strict=True)
        ]
    )


def _taught(batch: Batch) -> Sequence[np.ndarray]:
    if TAUGHT not in batch.contexts:
        raise TacitError(f"a loss compares with a teacher, but the batch has no column {TAUGHT!r} of prompts for it.")
    return batch.contexts[TAUGHT]
