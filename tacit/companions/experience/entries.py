"""What a bank holds: texts with where they came from, and the calls of the extractor that wrote them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

LONGEST = 4000
"""characters of an entry; longer ones are refused"""


@dataclass(frozen=True)
class Origin:
    """Where an entry came from."""

    world: str = ""
    family: str = ""
    task: str = ""
    episode: int = 0
    """the seed of the episode it was distilled from"""
    success: bool = False
    step: int = 0
    """iteration in which it was written"""
    operation: str = "add"
    """add, update or merge; import for those that came from a file"""
    made_from: tuple[int, ...] = ()
    """entries it takes the place of"""
    call: int | None = None
    """the extractor's call that wrote it, where there was one"""


@dataclass(frozen=True)
class Entry:
    id: int
    text: str
    origin: Origin = field(default_factory=Origin)


@dataclass(frozen=True, eq=False)
class Call:
    """What the extractor read and wrote, with the log-probabilities of that moment: what it is trained on later (Eq. 3)."""

    prompt: np.ndarray
    completion: np.ndarray
    logprobs: np.ndarray
    version: int = 0
    """of the extractor's weights"""


@dataclass
class Usage:
    """How an entry has been used so far."""

    retrieved: int = 0
    """c(m) of Eq. 6"""
    last_retrieved: int = -(10**9)
    """step"""
    wins: int = 0
    losses: int = 0
    """of the episodes it guided"""
    trained: int = 0
    """c_train(m) of Eq. 7"""
    last_trained: int = -(10**9)
    """step"""
