"""Inputs for building a method: properties of the model, and handles to encoders, policies and directories. Building a method
loads nothing; handles are opened when the run starts."""

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
    """Properties of a model, known before it is loaded."""

    model: str = ""
    small: bool = False  # a few million parameters: too small for prompts written for language models
    chat_template: bool = False  # instruction-tuned: its tokenizer has a chat template
    layers: int | None = None  # None if its files do not say
    calibrated: Mapping[str, Mapping[str, Any]] | None = None
    """embedder -> result of `tacit calibrate` for this model, world and context; None: not looked up"""


class Resources:
    """Handles for a method. This base class is for building a method only to inspect it: using a handle raises."""

    def sentences(self, model: str, *endpoint: str) -> Encode:
        """A frozen sentence encoder: a directory or a hub id. `endpoint`: the URL of an OpenAI-compatible endpoint that serves
        it, and the environment variable with the key."""
        return lambda texts: _refuse(f"the sentence encoder {model!r}")

    def policy(self, name: str) -> Callable[[], Policy]:
        """A second trained policy, by its name in settings and checkpoints: `extractor`, `teacher`."""
        return lambda: _refuse(f"the policy {name!r}")

    def helper(self, name: str) -> Callable[[], Policy]:
        """A policy that only samples. It is not trained and not saved in checkpoints."""
        return self.policy(name)

    def directory(self, name: str) -> Path:
        """A directory in the run, for data that must survive a crash between two checkpoints."""
        return Path(name)

    def shared(self, name: str, like: Hashable, make: Callable[[], Thing]) -> Thing:
        """One object for all worlds of a run, made on first use. Raises if a world needs other settings (`like`)."""
        return make()

    def check_learns(self, name: str, remedy: str) -> None:
        """Raise, before anything is loaded, if the engine cannot train the policy of this name (an endpoint)."""

    def check_layer(self, layer: int) -> None:
        """Raise if the model has no such layer, once it is loaded."""


def _refuse(what: str) -> Any:
    raise TacitError(f"cannot use {what}: this method was built without resources, only to inspect it.")


NO_RESOURCES = Resources()
