"""The tools of a run: asked for while a method is built, opened once before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tacit.assembly.encoders import load_encoder
from tacit.assembly.recipe import PolicyRecipe, Recipe
from tacit.core.engine import LEARNING, ModelSource
from tacit.core.errors import TacitError
from tacit.core.protocols import Policy
from tacit.core.seeds import derive
from tacit.core.tools import Encode, Thing
from tacit.core.world import Environment
from tacit.engines import get_engine
from tacit.engines.models.sources import TEXTS_SEED


class Toolbox:
    def __init__(self, recipe: Recipe, worlds: Sequence[Environment]) -> None:
        self.recipe, self._worlds = recipe, worlds
        self._encoders: dict[tuple[str, ...], Any] = {}
        """by model, or by model, address and where the key is"""
        self._layers: set[int] = set()
        self._asked: dict[str, None] = {}
        self._helping: dict[str, Policy | None] = {}
        self._shared: dict[str, tuple[Hashable, Any]] = {}
        self.policies: dict[str, Policy] = {}
        """those beside the trained one, by name; here once `open` has loaded them"""

    def sentences(self, model: str) -> Encode:
        return self._encoder((model,))

    def served_sentences(self, model: str, url: str, key_variable: str) -> Encode:
        return self._encoder((model, url, key_variable))

    def _encoder(self, place: tuple[str, ...]) -> Encode:
        self._encoders.setdefault(place, None)

        def encode(texts: Sequence[str]) -> np.ndarray:
            return self._encoders[place](texts)

        return encode

    def policy(self, name: str) -> Callable[[], Policy]:
        self._asked[name] = None
        return lambda: self.policies[name]

    def helper(self, name: str) -> Callable[[], Policy]:
        self._helping.setdefault(name, None)

        def help() -> Policy:
            found = self._helping[name]
            assert found is not None, "asked before it was opened"
            return found

        return help

    def directory(self, name: str) -> Path:
        return self.recipe.out / name

    def shared(self, name: str, like: Hashable, make: Callable[[], Thing]) -> Thing:
        if name not in self._shared:
            self._shared[name] = (like, make())
        known, thing = self._shared[name]
        if known != like:
            raise TacitError(
                f"the worlds of a run share its {name}, and [worlds.…] would have it made differently: say those settings "
                "outside [worlds]."
            )
        return thing

    @property
    def alike(self) -> frozenset[str]:
        """Policies beside the trained one that begin as it does: nobody said otherwise."""
        return frozenset(self._asked.keys() - self.recipe.policies.keys())

    def check_learns(self, name: str, remedy: str) -> None:
        beside = self.recipe.policies.get(name)
        if beside is not None and LEARNING not in get_engine(beside.engine_name).capabilities:
            raise TacitError(f"[policies.{name}]: engine {beside.engine_name!r} cannot learn. {remedy}")

    def check_layer(self, layer: int) -> None:
        self._layers.add(layer)

    def check_policies(self) -> None:
        """Refuse a policy that the built methods did not ask for, before anything is loaded."""
        for name in self.recipe.policies:
            known = [*self._asked, *self._helping]
            if name not in known:
                asked = f"it asks for {', '.join(known)}" if known else "it asks for none"
                method = self.recipe.method
                raise TacitError(f"[policies.{name}]: method {method!r} does not use a policy of that name; {asked}.")

    def open(self) -> Policy:
        """Load the trained policy and everything that was asked for. What cannot be had is found out here."""
        recipe = self.recipe
        main = PolicyRecipe(recipe.model, recipe.engine_name, recipe.engine, recipe.tiny)
        policy = load_policy(main, recipe.train.seed, self._worlds)
        for layer in self._layers:
            policy.check_layer(layer)
        for name in self._asked:
            self.policies[name] = self._load(name, recipe.policies.get(name, main))
        for name in self._helping:
            self._helping[name] = self._load(name, recipe.policies.get(name, main))
        for beside in (*self.policies.values(), *self._helping.values()):
            if (answers := getattr(beside, "check_answers", None)) is not None:
                answers()
        for place in self._encoders:
            self._encoders[place] = load_encoder(*place)
        return policy

    def _load(self, name: str, policy: PolicyRecipe) -> Policy:
        with naming_policy(name):
            return load_policy(policy, derive(self.recipe.train.seed, name), self._worlds)


@contextmanager
def naming_policy(name: str) -> Iterator[None]:
    """Say of what is refused that it is about the policy of this name."""
    try:
        yield
    except TacitError as error:
        raise TacitError(f"[policies.{name}]: {error}") from error


def load_policy(policy: PolicyRecipe, seed: int, worlds: Sequence[Environment]) -> Policy:
    """The untrained policy. A tiny one trains its tokenizer on the text of all the worlds that have some."""
    makers = [world.example_texts for world in worlds if world.example_texts is not None]
    texts = (lambda: [text for make in makers for text in make(TEXTS_SEED)]) if makers else None
    return get_engine(policy.engine_name).load(ModelSource(policy.model, seed, texts, policy.tiny), policy.engine)
