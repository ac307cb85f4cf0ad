"""A run's skill dictionary and how it came to be: read from its checkpoint, or extracted from its recorded episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

from tacit.assembly.recipe import Recipe
from tacit.companions.dictionary.companion import SkillDictionary
from tacit.companions.dictionary.segmentation import Dictionary, Phrase
from tacit.core.errors import TacitError
from tacit.core.types import Group, Trajectory
from tacit.core.world import Environment
from tacit.rewards.segmentation import world_alphabet
from tacit.runs.directory import saved_checkpoints
from tacit.runs.metrics import read_metrics
from tacit.runs.replay import recorded_steps

Played = Callable[[Path], list[Trajectory]]
"""the episodes of a file that were played in the dictionary's world"""
E_STEP = "description_length"
"""the metric that only iterations with an E-step have"""


@dataclass(frozen=True)
class Reading:
    """One E-step in the two parts of Eq. 3, beside what the same successes would take skill by skill."""

    step: int
    successes: int
    """|B|"""
    phrases: int
    """|C|"""
    bits: float
    """L_BDL: bits per success"""
    shared: float
    """of these, each success's share in the dictionary: L_dict / |B|"""
    single: float
    """L_BDL of the same corpus under the dictionary of single skills"""
    segments: float
    phrase_length: float
    loss: float | None
    bound: float | None
    """None where a success outlasted T"""

    @classmethod
    def of(cls, metrics: Mapping[str, Any], single: Dictionary) -> Reading:
        """From the metrics of an iteration; |B| is not among them, and is what L_dict is shared by."""
        bits, segments = metrics[E_STEP], metrics["success_segments"]
        shared = bits - segments * log2(metrics["dictionary_size"])
        successes = max(1, round(metrics["dictionary_bits"] / shared)) if shared else 1  # one skill and L = 1 cost nothing
        return cls(
            step=int(metrics["step"]),
            successes=successes,
            phrases=int(metrics["dictionary_size"]),
            bits=bits,
            shared=shared,
            single=single.bits / successes + metrics["success_skills"] * log2(len(single)),
            segments=segments,
            phrase_length=metrics["phrase_length"],
            loss=metrics.get("mdl_loss"),
            bound=metrics.get("mdl_bound"),
        )


@dataclass(frozen=True)
class Story:
    """A dictionary at one moment, and how it came to be."""

    companion: SkillDictionary
    source: str
    steps: list[dict[str, Any]]
    """metrics of each E-step, oldest first"""

    def cut(self, trajectory: Trajectory) -> tuple[Phrase, ...]:
        """An episode in phrases of the dictionary."""
        return self.companion.dictionary.segment(self.companion.alphabet(trajectory))

    def readings(self) -> list[Reading]:
        single = Dictionary(self.companion.alphabet.skills, (), self.companion.max_phrase)
        return [Reading.of(step, single) for step in self.steps]

    def rates(self) -> list[tuple[int, dict[Phrase, float]]]:
        """(iteration, uses per success of each merged phrase then in the dictionary)"""
        successes = {reading.step: reading.successes for reading in self.readings()}
        history = self.companion.history.uses()
        return [
            (step, {p: count / successes[step] for p, count in uses.items()}) for step, uses in history if step in successes
        ]

    def lives(self) -> dict[Phrase, dict[int, float]]:
        """phrase -> (iteration -> its uses per success), those used most over all iterations first"""
        found: dict[Phrase, dict[int, float]] = {}
        for step, uses in self.rates():
            for phrase, rate in uses.items():
                found.setdefault(phrase, {})[step] = rate
        return dict(sorted(found.items(), key=lambda life: (-sum(life[1].values()), life[0])))

    def gone(self) -> list[tuple[Phrase, int]]:
        """Phrases no longer in the dictionary with the last iteration they were there, those once used most first."""
        lives = self.lives()
        now = max((step for step, _ in self.rates()), default=0)
        return [(phrase, max(life)) for phrase, life in lives.items() if max(life) < now]

    def phrases(self) -> list[dict[str, Any]]:
        """Merged phrases in use order: uses, the iteration since which it has been there, share of E-steps it was in."""
        return self.companion.history.standing()


def open_story(path: Path, recipe: Recipe, world: Environment, played: Played, checkpoint: str, name: str = "") -> Story:
    """The dictionary of the run's checkpoint, where there is one; otherwise extracted as its method, or ReuseRL, would. `name`:
    of the world, where the run has several, each with a dictionary of its own."""
    method = recipe.settings.build(world)
    for companion in method.companions:
        if isinstance(companion, SkillDictionary):
            practised = [saved for saved in saved_checkpoints(path).all() if saved.stage == "rl"]
            if checkpoint or practised:
                return _saved(path, companion, checkpoint, f"{name}/" if name else "")
            return _replayed(path, companion, played)
    if checkpoint:
        raise TacitError(f"{path} was trained by {recipe.method}, which saves no dictionary; leave --checkpoint out.")
    return _replayed(path, SkillDictionary(world_alphabet(world, "a skill dictionary"), world.max_steps), played)


def _saved(path: Path, companion: SkillDictionary, checkpoint: str, prefix: str) -> Story:
    """`prefix` is before the names of what belongs to one of several worlds."""
    found = saved_checkpoints(path).find(checkpoint or "newest")
    if found.stage != "rl":
        raise TacitError(f"the checkpoint {found.path.name} of {path} is older than the dictionary: it comes with practice.")
    companion.load(found.companion(f"{prefix}{companion.name}"))
    records = [r for r in read_metrics(path / "metrics.jsonl") if r["stage"] == "rl" and r["step"] <= found.step]
    steps = [{name.removeprefix(prefix): value for name, value in r.items()} for r in records if f"{prefix}{E_STEP}" in r]
    return Story(companion, f"checkpoint {found.path.name}", steps)


def _replayed(path: Path, companion: SkillDictionary, played: Played) -> Story:
    files = recorded_steps(path)
    if not files:
        raise TacitError(f"{path} has neither a dictionary nor recorded iterations; train with --trajectories (the default).")
    steps = []
    for step, file in files.items():
        companion.history.iteration = step - 1
        sound = [Group(t.task, (t,)) for t in played(file) if not t.stop.crashed]
        metrics = companion.observe(sound)
        if E_STEP in metrics:
            steps.append({"stage": "rl", "step": step, **metrics})
    return Story(companion, f"extracted from {len(files)} recorded iterations", steps)
