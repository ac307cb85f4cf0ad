"""A run's skill dictionary and how it came to be: read from its checkpoint, or extracted from its recorded episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.cli.settings.recipe import Recipe
from tacit.companions.dictionary import SkillDictionary
from tacit.core.errors import TacitError
from tacit.core.types import Group, Task
from tacit.core.world import Environment
from tacit.rewards.segmentation import world_alphabet
from tacit.training.metrics import read_metrics
from tacit.training.replay import recorded_steps, replay
from tacit.training.run import saved_checkpoints

READINGS = ("description_length", "mdl_bound", "dictionary_size", "phrase_length")
"""what a step of the dictionary's training is recognised by and plotted with"""


@dataclass(frozen=True)
class Story:
    """A dictionary at one moment, and how it came to be."""

    companion: SkillDictionary
    source: str
    steps: list[dict[str, Any]]
    """readings of each E-step, oldest first"""

    def phrases(self) -> list[dict[str, Any]]:
        """Merged phrases in use order: uses, the iteration since which it has been there, share of E-steps it was in."""
        history = self.companion.history.uses()
        now = history[-1][1] if history else {}
        rows = []
        for phrase in sorted(now, key=lambda p: (-now[p], p)):
            present = [phrase in uses for _, uses in history]
            absent = max((i for i, here in enumerate(present) if not here), default=-1)
            since, share = history[absent + 1][0], sum(present) / len(present)
            rows.append({"phrase": list(phrase), "uses": now[phrase], "since": since, "present": round(share, 4)})
        return rows


def open_story(path: Path, recipe: Recipe, world: Environment, tasks: Sequence[Task], checkpoint: str) -> Story:
    method = recipe.settings.build(world)
    for number, companion in enumerate(method.companions):
        if isinstance(companion, SkillDictionary):
            return _saved(path, number, companion, checkpoint)
    if checkpoint:
        raise TacitError(f"{path} was trained by {recipe.method}, which saves no dictionary; leave --checkpoint out.")
    return _replayed(path, world, tasks)


def _saved(path: Path, number: int, companion: SkillDictionary, checkpoint: str) -> Story:
    saved = saved_checkpoints(path)
    if not saved.all():
        raise TacitError(f"{path} has no checkpoint yet; its dictionary comes with the first of practice.")
    found = saved.find(checkpoint or "newest")
    states = found.state()["companions"]
    if len(states) <= number:
        raise TacitError(f"the checkpoint {found.path.name} of {path} is older than the dictionary: it comes with practice.")
    companion.load(states[number])
    records = read_metrics(path / "metrics.jsonl")
    steps = [r for r in records if r["stage"] == "rl" and r["step"] <= found.step and READINGS[0] in r]
    return Story(companion, f"checkpoint {found.path.name}", steps)


def _replayed(path: Path, world: Environment, tasks: Sequence[Task]) -> Story:
    files = recorded_steps(path)
    if not files:
        raise TacitError(f"{path} has neither a dictionary nor recorded iterations; train with --trajectories (the default).")
    companion, steps = SkillDictionary(world_alphabet(world, "a skill dictionary"), world.max_steps), []
    for step, file in files.items():
        companion.history.iteration = step - 1
        sound = [Group(t.task, (t,)) for t in replay(file, tasks) if not t.stop.crashed]
        metrics = companion.observe(sound)
        if READINGS[0] in metrics:
            steps.append({"stage": "rl", "step": step, **metrics})
    return Story(companion, f"extracted from {len(files)} recorded iterations", steps)
