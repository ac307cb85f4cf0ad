"""One session: an episode, its turns so far, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tacit.core.protocols import Request
from tacit.core.types import Observation
from tacit.modules.episode import Episode
from tacit.serving.offer import Offer

MODULE, HAND = "module", "hand"
"""who acted"""


@dataclass
class Turn:
    """One turn, as it can be looked at."""

    number: int
    observation: Observation
    prompt: str
    state: str
    """the tracker's block in the prompt; empty where the module reads none"""
    action: str = ""
    acted: bool = False
    by: str = MODULE
    wrote: str = ""
    effective: bool = True
    """the world did something with it"""
    valid: bool = True
    """what was written is an action in the module's format"""
    probability: float | None = None
    """of exactly what was written, at the temperature it was drawn at"""
    prompt_tokens: int = 0
    tokens: int = 0
    alternatives: list[dict[str, Any]] | None = None
    """the likeliest actions and their probabilities, where they were asked for"""
    signals: dict[str, float] = field(default_factory=dict)
    """what the tracker said of the action once its result was known"""

    def to_json(self) -> dict[str, Any]:
        told = {name: value for name, value in vars(self).items() if name not in ("number", "observation", "action")}
        seen = {"observation": self.observation.text, "actions": list(self.observation.actions)}
        return {"turn": self.number, "action": self.action, **seen, **told}


class Session:
    def __init__(self, name: str, offer: Offer, episode: Episode, release: Callable[[], None]) -> None:
        self.name, self.offer, self.episode, self._release = name, offer, episode, release
        self.turns: list[Turn] = []
        self.outcome = ""
        """empty while it is open"""
        self.note = ""
        self.began = self.touched = time.time()
        self.final: Observation | None = None
        """what was seen at the end"""
        self.request: Request | None = None
        """of the present turn"""
        self.acting = False
        """an answer is under way"""
        self.world: Any = None
        """its world, where it is played here (`hosting.Hosted`)"""

    @property
    def open(self) -> bool:
        return not self.outcome

    @property
    def unanswered(self) -> bool:
        """it has acted, and what came of it is not known; where it is and no turn has begun since, what was seen could not be
        read, and something else may be told"""
        return self.episode.action is not None

    def close(self, outcome: str, note: str = "") -> None:
        if self.open:
            self.outcome, self.note = outcome, note
            self._release()

    def to_json(self, turns: bool = False) -> dict[str, Any]:
        task, module = self.episode.task, self.offer.module
        told: dict[str, Any] = {
            "session": self.name, "module": self.offer.name, "digest": module.digest, "goal": task.goal, "family": task.family,
            "task": task.id, "seed": self.episode.seed, "temperature": self.episode.sampling.temperature,
            "open": self.open, "outcome": self.outcome, "note": self.note, "hosted": self.world is not None,
            "turn": len(self.turns), "began": self.began, "touched": self.touched,
        }  # fmt: skip
        if turns:
            told["turns"] = [turn.to_json() for turn in self.turns]
            told["final"] = self.final.text if self.final else ""
        return told
