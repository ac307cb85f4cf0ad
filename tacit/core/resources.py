"""What a method is handed when it is built, and what it is told of the model before that. Nothing here is loaded by building:
a tool is a way to the thing, opened once the run starts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.protocols import Policy

Thing = TypeVar("Thing")
Encode = Callable[[Sequence[str]], np.ndarray]  # N texts -> [N, D]


@dataclass(frozen=True)
class Base:
    """What is known of a model before it is loaded."""

    model: str = ""
    small: bool = False  # a policy of a few million parameters, which cannot read what is written for language models
    chat_template: bool = False  # instruction-tuned: its tokenizer has a chat template
    layers: int | None = None  # how deep it is, where its files say so
    calibrated: Mapping[str, Mapping[str, Any]] | None = None
    """by embedder: what `tacit calibrate` found for this model, in this world and context; None: nobody has looked yet"""


class Resources:
    """The tools of a method. This class is for building one only to look at it: every tool can be asked for, and none used."""

    def sentences(self, model: str) -> Encode:
        """A frozen sentence encoder: a directory or a hub id."""
        return lambda texts: _refuse(f"the sentence encoder {model!r}")

    def served_sentences(self, model: str, url: str, key_variable: str) -> Encode:
        """An embedding model behind an OpenAI-compatible endpoint; the key is in that environment variable."""
        return self.sentences(model)

    def policy(self, name: str) -> Callable[[], Policy]:
        """A policy beside the trained one, by the name its settings and its checkpoint have: `extractor`, `teacher`."""
        return lambda: _refuse(f"the policy {name!r}")

    def helper(self, name: str) -> Callable[[], Policy]:
        """As `policy`, but only asked and never trained: it need only sample, and is in no checkpoint."""
        return self.policy(name)

    def directory(self, name: str) -> Path:
        """A place of its own in the run directory, for what must outlive a kill between two checkpoints."""
        return Path(name)

    def shared(self, name: str, like: Hashable, make: Callable[[], Thing]) -> Thing:
        """One for all the worlds of a run, made by the first that asks; a world that needs it otherwise (`like`) is refused."""
        return make()

    def check_learns(self, name: str, remedy: str) -> None:
        """Refuse, before anything is loaded, an engine that cannot train the policy of this name (an endpoint)."""

    def check_layer(self, layer: int) -> None:
        """Have it said, once the model is loaded, if it has no such layer."""


def _refuse(what: str) -> Any:
    raise TacitError(f"{what} was not loaded: this method was built without tools.")


NO_RESOURCES = Resources()


# What tokens cost.


@dataclass(frozen=True)
class Prices:
    """In whatever currency, per million."""

    prompt: float = 0.0
    completion: float = 0.0

    def of(self, prompt_tokens: float, completion_tokens: float) -> float:
        return (self.prompt * prompt_tokens + self.completion * completion_tokens) / 1_000_000


FREE = Prices()
