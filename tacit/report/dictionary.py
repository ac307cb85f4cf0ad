"""A run's dictionary, the episodes of one iteration segmented by it, and the behavior in them and in the last evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from typing import Any

from tacit.companions.dictionary import Dictionary, Phrase, SkillDictionary
from tacit.config.checks import open_world
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.types import Group, Task, Trajectory
from tacit.core.world import Environment
from tacit.evaluation.behavior import Behavior, behavior
from tacit.rewards.segmentation import world_alphabet
from tacit.runs.directory import open_checkpoints, read_metrics, read_settings
from tacit.runs.trajectories import list_recordings, read_trajectories
from tacit.training.setup import TaskSets

Played = Callable[[Path], list[Trajectory]]  # recording -> its episodes in the dictionary's world
E_STEP = "description_length"  # a metric that only iterations with an E-step have


@dataclass(frozen=True)
class EStep:
    """One E-step: the two terms of Eq. 3, and the code length of the same successes with single skills."""

    step: int
    successes: int  # |B|
    phrases: int  # |C|
    bits: float  # L_BDL: bits per success
    shared: float  # the dictionary's part of `bits`: L_dict / |B|
    single: float  # L_BDL of the same corpus under the dictionary of single skills
    segments: float
    phrase_length: float
    loss: float | None
    bound: float | None  # None if a success has more than T segments

    @classmethod
    def of(cls, metrics: Mapping[str, Any], single: Dictionary) -> EStep:
        """From the metrics of an iteration. They lack |B|, which is L_dict divided by `shared`."""
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
class DictionaryHistory:
    """A dictionary, its source, and the metrics of its E-steps."""

    companion: SkillDictionary
    source: str
    steps: list[dict[str, Any]]  # metrics of each E-step, oldest first

    def cut(self, trajectory: Trajectory) -> tuple[Phrase, ...]:
        return self.companion.dictionary.segment(self.companion.alphabet(trajectory))

    def readings(self) -> list[EStep]:
        single = Dictionary(self.companion.alphabet.skills, (), self.companion.max_phrase)
        return [EStep.of(step, single) for step in self.steps]


def open_dictionary(
    path: Path, recipe: Recipe, world: Environment, played: Played, checkpoint: str, name: str = ""
) -> DictionaryHistory:
    """The dictionary in the run's checkpoint if it has one, else one extracted from the recordings with the method's settings
    or ReuseRL's. `name`: the world, if the run has several; each has its own dictionary."""
    companion = next((c for c in recipe.settings.build(world).companions if isinstance(c, SkillDictionary)), None)
    if companion is None and checkpoint:
        raise TacitError(f"{path} was trained by {recipe.method}, which saves no dictionary; leave --checkpoint out.")
    if companion is not None and (checkpoint or any(saved.stage == "rl" for saved in open_checkpoints(path).all())):
        source, prefix = open_checkpoints(path).find(checkpoint or "newest"), f"{name}/" if name else ""
        if source.stage != "rl":
            raise TacitError(
                f"the checkpoint {source.path.name} of {path} has no dictionary: RL training extracts it; name an rl "
                "checkpoint."
            )
        companion.load(source.companion(f"{prefix}{companion.name}"))
        records = [r for r in read_metrics(path / "metrics.jsonl") if r["stage"] == "rl" and r["step"] <= source.step]
        steps = [{name.removeprefix(prefix): value for name, value in r.items()} for r in records if f"{prefix}{E_STEP}" in r]
        return DictionaryHistory(companion, f"checkpoint {source.path.name}", steps)
    companion = companion or SkillDictionary(world_alphabet(world, "a skill dictionary"), world.max_steps)
    files, steps = list_recordings(path), []
    if not files:
        raise TacitError(f"{path} has neither a dictionary nor recorded iterations; train with --trajectories (the default).")
    for step, file in files.items():
        companion.history.iteration = step - 1
        metrics = companion.observe([Group(t.task, (t,)) for t in played(file) if not t.stop.crashed])
        steps += [{"stage": "rl", "step": step, **metrics}] if E_STEP in metrics else []
    return DictionaryHistory(companion, f"extracted from {len(files)} recorded iterations", steps)


@dataclass(frozen=True)
class DictionaryReport:
    title: str
    story: DictionaryHistory
    file: str  # where the episodes are recorded; empty where none is
    episodes: Sequence[Trajectory]  # of one iteration, successes first
    behaviors: dict[str, Behavior]  # of that iteration and of the run's last evaluation, if they are recorded

    def to_json(self) -> dict[str, Any]:
        story, phrases = self.story, self.story.companion.history.standing()
        behaviors = {name: behavior.to_json() for name, behavior in self.behaviors.items()}
        cut = [{"task": t.task.id, "success": t.success, "segments": story.cut(t)} for t in self.episodes]
        return {"source": story.source, "phrases": phrases, "steps": story.steps, "behaviour": behaviors, "episodes": cut}


def inspect_dictionary(
    run: Path, checkpoint: str = "", iteration: int | None = None, limit: int | None = None, where: str = ""
) -> DictionaryReport:
    """The dictionary of a checkpoint, and up to `limit` episodes of an iteration (default: the newest). `where`: the world, if
    the run has several."""
    whole = replace(Recipe.from_json(read_settings(run)), out=run)
    recipe = whole.alone(where)
    world = open_world(recipe.world)
    world_alphabet(world, "a skill dictionary")
    task_sets = {place.world: TaskSets.of(open_world(place.world), place.train) for place in whole.places}
    own = {task.id for task in (*task_sets[recipe.world].training, *task_sets[recipe.world].panel.tasks)}

    def played(file: Path, tasks: Iterable[Task]) -> list[Trajectory]:
        return [trajectory for trajectory in read_trajectories(file, tasks) if trajectory.task.id in own]

    training = [task for tasks in task_sets.values() for task in tasks.training]
    name = world.name if len(task_sets) > 1 else ""
    story = open_dictionary(run, recipe, world, lambda file: played(file, training), checkpoint, name)
    files = list_recordings(run)
    if iteration is not None and iteration not in files:
        recorded = f"it has {min(files)} to {max(files)}" if files else "it has none"
        raise TacitError(f"iteration {iteration} is not recorded in {run}; {recorded}.")
    step = max(files, default=0) if iteration is None else iteration
    file = files.get(step)
    behaviors, episodes = {}, list[Trajectory]()
    if file is not None:
        before: Counter[tuple[str, bool]] = Counter()
        places: list[tuple[bool, int, int, Trajectory]] = []  # successes first, and one of each task before a second
        for trajectory in played(file, training):
            kind = (trajectory.task.id, trajectory.success)
            places.append((not trajectory.success, before[kind], len(places), trajectory))
            before[kind] += 1
        episodes = [trajectory for *_, trajectory in sorted(places, key=lambda place: place[:3])]
        behaviors[f"training, iteration {step}"] = behavior(episodes, world.alphabet, world.failure, world.place)
    if evaluations := list_recordings(run, "eval-rl"):
        last = max(evaluations)
        measured = played(evaluations[last], [task for tasks in task_sets.values() for task in tasks.panel.tasks])
        behaviors[f"evaluation after rl {last}"] = behavior(measured, world.alphabet, world.failure, world.place)
    title = f"{world.name}, {recipe.method}"
    return DictionaryReport(title, story, file.name if file else "", episodes[:limit], behaviors)
