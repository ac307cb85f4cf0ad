"""The skill dictionary: ReuseRL's E-step as a companion of the policy (Algorithm 1).

    B⁺ ← skill sequences of this batch's successes                     none: the dictionary stays as it is
    G  ← the newest `buffer` successes, this batch's last              the batch counts once and is never truncated
    C  ← greedy merging over B⁺ ∪ G                                    extraction.py

`observe` runs before rewards are computed, so the reward term's `seg` uses the fresh C.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tacit.companions.dictionary.extraction import (
    Dictionary,
    Extraction,
    Phrase,
    check_alphabet,
    extract_dictionary,
    normalized_loss,
    theorem_3,
)
from tacit.core.errors import TacitError
from tacit.core.method import Companion
from tacit.core.protocols import Policy
from tacit.core.types import Group, IterationInfo
from tacit.core.world import Alphabet
from tacit.rewards.segmentation import check_horizon, success_skills

FILE = "dictionary.json"


@dataclass
class SkillDictionary(Companion):
    """Learns a dictionary from successes. Equality compares settings only, not what was learned."""

    name = "dictionary"
    read_in_rollouts: ClassVar[bool] = False

    alphabet: Alphabet
    horizon: int  # T, for the bound
    max_phrase: int = 4  # L
    buffer: int = 256  # successes kept from earlier batches; 0 uses the batch alone
    delta: float = 0.05  # probability with which the bound may fail
    dictionary: Dictionary = field(init=False, compare=False, repr=False)
    successes: list[Phrase] = field(init=False, compare=False, repr=False)  # the buffer, oldest first
    history: History = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_alphabet(self.alphabet.skills, self.max_phrase)
        check_horizon(self.horizon)
        if self.buffer < 0:
            raise TacitError(f"buffer = {self.buffer} must not be negative.")
        if not 0 < self.delta < 1:
            raise TacitError(f"delta = {self.delta}: the bound fails with probability δ, which lies between 0 and 1.")
        self.dictionary = Dictionary(self.alphabet.skills, (), self.max_phrase)
        self.successes, self.history = [], History()

    def seg(self, sequence: Sequence[str]) -> int:
        return self.dictionary.seg(sequence)

    def observe(
        self, groups: Sequence[Group], policy: Policy | None = None, info: IterationInfo | None = None
    ) -> dict[str, float]:
        """The E-step; returns its metrics. A bad projection raises before anything is changed."""
        began = time.perf_counter()
        batch = [success_skills(self.alphabet, t) for g in groups for t in g.trajectories if t.success]
        self.history.iteration += 1
        if not batch:
            return self._sizes() | {"dictionary_seconds": time.perf_counter() - began}
        remembered = self.buffer - len(batch)
        corpus = [*(self.successes[-remembered:] if remembered > 0 else ()), *batch]
        self.successes = corpus[-self.buffer :] if self.buffer else []
        before, found = self.dictionary, extract_dictionary(corpus, self.alphabet.skills, self.max_phrase)
        self.dictionary = found.dictionary
        self.history.add(found)
        changed = len(set(before.merged) ^ set(found.dictionary.merged))
        segments = found.segments / found.sequences
        metrics = {
            **self._sizes(),
            "dictionary_changed": changed,
            "description_length": found.description_length,
            "success_skills": found.skills / found.sequences,
            "success_segments": segments,
            "phrase_length": found.skills / found.segments,
        }
        if max(map(len, corpus)) <= self.horizon:  # otherwise the loss leaves [0, 1] and there is no bound
            settings = segments, self.dictionary, found.sequences, self.horizon
            metrics |= {"mdl_loss": normalized_loss(*settings), "mdl_bound": theorem_3(*settings, self.delta)}
        return metrics | {"dictionary_seconds": time.perf_counter() - began}

    def state(self) -> dict[str, Any]:
        return {
            "skills": list(self.alphabet.skills),
            "phrases": [list(p) for p in self.dictionary.merged],
            "buffer": [list(s) for s in self.successes],
            "history": self.history.state(),
        }

    def save(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps(self.state(), ensure_ascii=False), encoding="utf-8")

    def load(self, directory: Path) -> None:
        state = json.loads((directory / FILE).read_text(encoding="utf-8"))
        if tuple(state["skills"]) != self.alphabet.skills:
            raise TacitError("the saved skill dictionary has another alphabet: the world's skills have changed since.")
        self.dictionary = Dictionary(self.alphabet.skills, tuple(map(tuple, state["phrases"])), self.max_phrase)
        self.successes = [tuple(s) for s in state["buffer"]]
        self.history = History.load(state["history"])

    def _sizes(self) -> dict[str, float]:
        return {
            "dictionary_size": len(self.dictionary),
            "dictionary_merged": len(self.dictionary.merged),
            "dictionary_bits": self.dictionary.bits,
            "success_buffer": len(self.successes),
        }


@dataclass
class History:
    """The merged phrases of every E-step with their uses. Phrases are stored once and numbered."""

    iteration: int = 0  # batches observed
    phrases: list[Phrase] = field(default_factory=list)
    steps: list[list[Any]] = field(default_factory=list)
    """[iteration, [[number of a phrase, uses in the corpus], …]] of each E-step that had a success; append-only"""

    def __post_init__(self) -> None:
        self._numbers = {phrase: i for i, phrase in enumerate(self.phrases)}

    def add(self, found: Extraction) -> None:
        uses = []
        for phrase in found.dictionary.merged:
            if phrase not in self._numbers:
                self._numbers[phrase] = len(self.phrases)
                self.phrases.append(phrase)
            uses.append([self._numbers[phrase], found.uses.get(phrase, 0)])
        self.steps.append([self.iteration, uses])

    def uses(self) -> list[tuple[int, dict[Phrase, int]]]:
        """(iteration, uses of each merged phrase in the dictionary at that time)"""
        return [(step, {self.phrases[i]: count for i, count in uses}) for step, uses in self.steps]

    def standing(self) -> list[dict[str, Any]]:
        """Merged phrases by use: uses, the iteration since which it has been present, share of E-steps it was in."""
        history = self.uses()
        now = history[-1][1] if history else {}
        rows = []
        for phrase in sorted(now, key=lambda p: (-now[p], p)):
            present = [phrase in uses for _, uses in history]
            absent = max((i for i, here in enumerate(present) if not here), default=-1)
            since, share = history[absent + 1][0], sum(present) / len(present)
            rows.append({"phrase": list(phrase), "uses": now[phrase], "since": since, "present": round(share, 4)})
        return rows

    def state(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "phrases": [list(p) for p in self.phrases], "steps": list(self.steps)}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> History:
        return cls(state["iteration"], [tuple(p) for p in state["phrases"]], list(state["steps"]))
