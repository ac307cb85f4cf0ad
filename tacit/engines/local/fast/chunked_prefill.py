"""Prompts that are read along in the steps of those who write, a few tokens at a time, so that nobody waits for them.

    a step  =  [ a token of every row | 16 tokens of a prompt | its next 16 | 16 of another | … | nobody's ]

A decode step of few rows takes as long as reading the weights does; some hundred tokens more are read in less time than a
prefill would take, and nobody stops for them. The last token of a prompt is not read along: once all before it are in the
cache, the row begins to write with it, like any other.

Until then its place runs along unread, and what it writes there must be where nobody has been yet: it has the last token, and
that token's position, from the beginning. So it writes behind the prompt, and its row writes there again before it reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tacit.engines.local.fast.decode_attention import DESCRIBED, TOKENS, Chunk
from tacit.engines.local.packing import to_device

MIXED_STEPS = 16
"""prompts that would take more steps than this in all, read as fast as can be, are prefilled while everybody waits: rows would
stand idle too long"""
SHARE = 8
"""and so are those that would take more than one in so many of the steps in which a row writes: whoever writes little would
mostly wait to be read"""
MIXING_COSTS, MIXING_PATIENCE = 1, 8
"""JOINING_COSTS and PATIENCE (scheduler.py) of rows whose prompts are read along"""
FULL = 256
"""rows that a step may have before it takes a step's time more: with adapters, of 1.5 thousand million weights, an H200 takes
2.2 ms for 64 rows, and with 192 or 448 prompt tokens beside them 3.1 or 4.2; in a prefill as many tokens take longer"""
FEWEST = 64
"""tokens that are worth a wider step"""


def most_steps(written: int, rows: int) -> int:
    """In which prompts are to be read, where so many rows wrote so many tokens until they were over."""
    return min(MIXED_STEPS, written // (SHARE * max(1, rows)))


def chunk_sizes(width: int) -> tuple[int, int]:
    """Prompt tokens beside so many rows, where few wait to be read and where many do; with the rows they fill a device."""
    full = -(-(width + FEWEST) // FULL) * FULL
    few, many = ((rows - width) // TOKENS * TOKENS for rows in (full, full + FULL))
    return few, many


@dataclass(frozen=True, eq=False)
class Seats:
    """Rows whose last token is not read yet, and goes to a position."""

    places_N: np.ndarray
    tokens_N: np.ndarray
    positions_N: np.ndarray

    @staticmethod
    def at_the_end(places: Sequence[int] | np.ndarray, prompts: Sequence[np.ndarray]) -> Seats:
        """With the last token of each prompt."""
        tokens_N, positions_N = [prompt[-1] for prompt in prompts], [len(prompt) - 1 for prompt in prompts]
        return Seats(*(np.array(numbers, dtype=np.int64) for numbers in (places, tokens_N, positions_N)))


@dataclass(frozen=True, eq=False)
class Look:
    """What is read along in the first of a few steps."""

    size: int
    """tokens of a step"""
    packed_KX: np.ndarray
    """of each step: tokens, positions, and what describes the blocks, as a `ChunkRoom` has them"""
    ready: Seats
    """those whose prompts are then read as far as the last token"""


class Readings:
    """The prompts that are being read along, in order; see `Look`."""

    def __init__(self) -> None:
        self._queue: deque[_Reading] = deque()

    def __len__(self) -> int:
        """tokens yet to be read, as so many full blocks"""
        return TOKENS * sum(_blocks(reading.left) for reading in self._queue)

    @property
    def under_way(self) -> bool:
        return bool(self._queue)

    def takes(self, lengths: Sequence[int], sizes: tuple[int, ...], steps: int) -> bool:
        """Whether prompts of these lengths would be read in so many steps of the most tokens, with those that are being
        read."""
        more = TOKENS * sum(_blocks(length - 1) for length in lengths)
        return bool(sizes) and len(self) + more <= steps * sizes[-1]

    def add(self, places_N: np.ndarray, prompts: Sequence[np.ndarray], known: Sequence[int] = ()) -> None:
        """`known`: how many of each prompt's tokens lie there already; none, where it is left out."""
        for place, prompt, read in zip(places_N, prompts, known or [0] * len(prompts), strict=True):
            self._queue.append(_Reading(int(place), prompt, read))

    def look(self, steps: int, sizes: tuple[int, ...], most: int) -> Look | None:
        """What so many steps are to read, in chunks of the least of the sizes with which all are read in `most` steps: of the
        others, each step reads more and takes longer. None: nothing is left."""
        if not self._queue:
            return None
        needed = len(self)
        size = next((size for size in sizes if needed <= most * size), sizes[-1])
        packed: list[np.ndarray] = []
        ready: list[_Reading] = []
        while self._queue and len(packed) < steps:
            packed.append(self._pack(size, ready))
        seats = Seats.at_the_end([reading.place for reading in ready], [reading.prompt for reading in ready])
        return Look(size, np.stack(packed), seats)

    def _pack(self, size: int, ready: list[_Reading]) -> np.ndarray:
        """One step's; a prompt begins with a block of its own."""
        packed_X = np.zeros(_packed(size), dtype=np.int64)
        tokens_C, positions_C, described = np.split(packed_X, (size, 2 * size))
        blocks_N4, at = described.reshape(-1, DESCRIBED), 0
        while self._queue and at < size:
            reading = self._queue[0]
            count = min(reading.left, size - at)
            used, first = _blocks(count), at // TOKENS
            end = reading.read + count
            tokens_C[at : at + count] = reading.prompt[reading.read : end]
            positions_C[at : at + count] = np.arange(reading.read, end)
            blocks_N4[first : first + used, :3] = reading.place, reading.read, at
            blocks_N4[first : first + used, 3] = np.minimum(TOKENS, count - TOKENS * np.arange(used))
            at += used * TOKENS
            reading.read = end
            if not reading.left:
                ready.append(self._queue.popleft())
        return packed_X


class _Reading:
    """A prompt, and how far it is read."""

    def __init__(self, place: int, prompt: np.ndarray, read: int) -> None:
        self.place, self.prompt, self.read = place, prompt, read

    @property
    def left(self) -> int:
        return len(self.prompt) - 1 - self.read


class ChunkRoom:
    """The chunks of a few steps on the device, at addresses that stay."""

    def __init__(self, size: int, steps: int, device: torch.device) -> None:
        self.size, self._all_KX = size, torch.zeros(steps, _packed(size), dtype=torch.long, device=device)

    def fill(self, packed_KX: np.ndarray) -> None:
        self._all_KX[: len(packed_KX)].copy_(to_device(packed_KX, self._all_KX.device), non_blocking=True)

    def chunk(self, step: torch.Tensor) -> Chunk:
        """Of the step with this number, [1]; the host does not know it."""
        packed_X = self._all_KX.index_select(0, step)[0]
        tokens_C, positions_C, described = packed_X.split((self.size, self.size, len(packed_X) - 2 * self.size))
        return Chunk(tokens_C, positions_C, described.view(-1, DESCRIBED))


class ChunkRooms:
    """Of all sizes that have come."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self._steps, self._device = steps, device
        self._of: dict[int, ChunkRoom] = {}

    def fill(self, look: Look | None, steps: int) -> list[ChunkRoom | None]:
        """Where each of so many steps finds what it reads along."""
        if look is None:
            return [None] * steps
        if look.size not in self._of:
            self._of[look.size] = ChunkRoom(look.size, self._steps, self._device)
        room, count = self._of[look.size], len(look.packed_KX)
        room.fill(look.packed_KX)
        return [room] * count + [None] * (steps - count)


def _blocks(tokens: int) -> int:
    return -(-tokens // TOKENS)


def _packed(size: int) -> int:
    return 2 * size + size // TOKENS * DESCRIBED
