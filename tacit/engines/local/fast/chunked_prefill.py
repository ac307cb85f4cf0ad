"""Chunked prefill: prompt tokens piggyback on decode steps, so running sequences never stop for a prefill.

    one step  =  [ one token of every slot | 16 tokens of a prompt | its next 16 | 16 of another | … | padding ]

A decode step of few slots takes as long as reading the weights, so a few hundred more tokens cost less than a separate
prefill. The last prompt token is not part of a chunk: once all tokens before it are cached, the slot decodes from it.

Until then the slot takes part in decode steps and its output is discarded. Its state is set to the last prompt token and that
token's position from the start, so it writes its key and value behind the prompt, where the first real step overwrites them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tacit.engines.local.decoding import ChunkSchedule, SlotAssignment
from tacit.engines.local.fast.decode_attention import BLOCK_FIELDS, BLOCK_TOKENS, PromptChunk
from tacit.engines.local.packing import to_device

MAX_CHUNKED_STEPS = 16
"""prompts that need more steps than this, at the largest chunk size, get a separate prefill: slots would idle too long"""
DECODE_STEPS_PER_PREFILL_STEP = 8
"""so do prompts that need more than one prefill step per this many decode steps of a sequence: short completions would mostly
wait for prompts"""
CHUNKED_ADMIT_COST, CHUNKED_MAX_WAIT = 1, 8
"""ADMIT_COST and MAX_WAIT_STEPS of scheduler.py for requests that can be prefilled in chunks"""
FULL_STEP_TOKENS = 256
"""tokens of a step before it takes one step's time longer: with a 1.5B model and adapters an H200 takes 2.2 ms for 64 slots,
3.1 and 4.2 ms with 192 and 448 prompt tokens; a separate prefill of as many tokens takes longer"""
MIN_CHUNK_TOKENS = 64
"""fewer prompt tokens are not worth a wider step"""


def max_prefill_steps(completion_tokens: int, completions: int) -> int:
    """Most steps a chunked prefill may take, given the completions finished so far."""
    return min(MAX_CHUNKED_STEPS, completion_tokens // (DECODE_STEPS_PER_PREFILL_STEP * max(1, completions)))


def chunk_sizes(slots: int) -> tuple[int, int]:
    """The two chunk sizes, in prompt tokens per step of `slots` slots: a small one for few waiting prompts, a large one for
    many. Slots and chunk together fill the device."""
    full = -(-(slots + MIN_CHUNK_TOKENS) // FULL_STEP_TOKENS) * FULL_STEP_TOKENS
    small, large = ((tokens - slots) // BLOCK_TOKENS * BLOCK_TOKENS for tokens in (full, full + FULL_STEP_TOKENS))
    return small, large


@dataclass(eq=False)
class _PartialPrompt:
    slot: int
    prompt: np.ndarray
    cached: int

    @property
    def remaining(self) -> int:
        return len(self.prompt) - 1 - self.cached


class ChunkedPrefill:
    """Queue of prompts that are being prefilled in chunks."""

    def __init__(self) -> None:
        self._queue: deque[_PartialPrompt] = deque()

    def __len__(self) -> int:
        """Prompt tokens left, rounded up to full blocks."""
        return BLOCK_TOKENS * sum(_num_blocks(partial.remaining) for partial in self._queue)

    @property
    def is_active(self) -> bool:
        return bool(self._queue)

    def has_capacity(self, lengths: Sequence[int], sizes: tuple[int, ...], steps: int) -> bool:
        """Whether prompts of these lengths, behind those in the queue, fit into `steps` steps of the largest chunk size."""
        more = BLOCK_TOKENS * sum(_num_blocks(length - 1) for length in lengths)
        return bool(sizes) and len(self) + more <= steps * sizes[-1]

    def add(self, slots_N: np.ndarray, prompts: Sequence[np.ndarray], cached: Sequence[int] = ()) -> None:
        """`cached`: tokens of each prompt that are in the KV cache already; default none."""
        for slot, prompt, done in zip(slots_N, prompts, cached or [0] * len(prompts), strict=True):
            self._queue.append(_PartialPrompt(int(slot), prompt, done))

    def schedule(self, steps: int, sizes: tuple[int, ...], max_steps: int) -> ChunkSchedule | None:
        """Take the chunks of the next `steps` steps from the queue. The chunk size is the smallest that finishes the queue
        within `max_steps`: a larger one makes each step slower. None if the queue is empty."""
        if not self._queue:
            return None
        needed = len(self)
        size = next((size for size in sizes if needed <= max_steps * size), sizes[-1])
        packed: list[np.ndarray] = []
        completed: list[_PartialPrompt] = []
        while self._queue and len(packed) < steps:
            packed.append(self._pack_step(size, completed))
        assignment = SlotAssignment.at_last_token([one.slot for one in completed], [one.prompt for one in completed])
        return ChunkSchedule(size, np.stack(packed), assignment)

    def _pack_step(self, size: int, completed: list[_PartialPrompt]) -> np.ndarray:
        """Fill one step with blocks from the queue. A block holds tokens of one prompt only."""
        packed_X = np.zeros(_packed_size(size), dtype=np.int64)
        tokens_C, positions_C, fields = np.split(packed_X, (size, 2 * size))
        blocks_N4, at = fields.reshape(-1, BLOCK_FIELDS), 0
        while self._queue and at < size:
            partial = self._queue[0]
            count = min(partial.remaining, size - at)
            used, first = _num_blocks(count), at // BLOCK_TOKENS
            end = partial.cached + count
            tokens_C[at : at + count] = partial.prompt[partial.cached : end]
            positions_C[at : at + count] = np.arange(partial.cached, end)
            blocks_N4[first : first + used, :3] = partial.slot, partial.cached, at
            blocks_N4[first : first + used, 3] = np.minimum(BLOCK_TOKENS, count - BLOCK_TOKENS * np.arange(used))
            at += used * BLOCK_TOKENS
            partial.cached = end
            if not partial.remaining:
                completed.append(self._queue.popleft())
        return packed_X


class ChunkBuffer:
    """The chunks of a few steps on the device, at fixed addresses, as CUDA graphs need."""

    def __init__(self, size: int, steps: int, device: torch.device) -> None:
        self.size, self._all_KX = size, torch.zeros(steps, _packed_size(size), dtype=torch.long, device=device)

    def fill(self, packed_KX: np.ndarray) -> None:
        self._all_KX[: len(packed_KX)].copy_(to_device(packed_KX, self._all_KX.device), non_blocking=True)

    def select(self, step: torch.Tensor) -> PromptChunk:
        """The chunk of a step, whose number [1] only the device knows."""
        packed_X = self._all_KX.index_select(0, step)[0]
        tokens_C, positions_C, fields = packed_X.split((self.size, self.size, len(packed_X) - 2 * self.size))
        return PromptChunk(tokens_C, positions_C, fields.view(-1, BLOCK_FIELDS))


def _num_blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def _packed_size(size: int) -> int:
    return 2 * size + size // BLOCK_TOKENS * BLOCK_FIELDS
