"""What `tacit inspect` shows of recorded episodes: a run's dictionary, the episodes of one iteration segmented by it, and the
behavior in them and in the last evaluation; and the clusters of a group's steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from tacit.companions.dictionary import Dictionary, Phrase, SkillDictionary
from tacit.config.checks import open_world
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError, unknown
from tacit.core.types import Group, Task, Trajectory
from tacit.core.world import Environment
from tacit.credit.partitions import HashNgram, by_cosine, by_key
from tacit.credit.step_relative import BRANCHES, action_peers, action_values, partition_metrics
from tacit.evaluation.behavior import Behavior, behavior
from tacit.rewards.segmentation import world_alphabet
from tacit.runs.directory import open_checkpoints, read_metrics, read_settings
from tacit.runs.trajectories import list_recordings, read_records, read_trajectories
from tacit.training.setup import TaskSets

Played = Callable[[Path], list[Trajectory]]  # recording -> its episodes in the dictionary's world
E_STEP = "description_length"  # a metric that only iterations with an E-step have


@dataclass(frozen=True)
class DictionaryHistory:
    """A dictionary, its source, and the metrics of its E-steps."""

    companion: SkillDictionary
    source: str
    steps: list[dict[str, Any]]  # metrics of each E-step, oldest first

    def cut(self, trajectory: Trajectory) -> tuple[Phrase, ...]:
        return self.companion.dictionary.segment(self.companion.alphabet(trajectory))

    def readings(self) -> list[dict[str, Any]]:
        """The metrics of each E-step and two numbers that follow from them: `successes` (|B|, which is L_dict divided by its
        share of the bits), and `single_bits`, the description length of the same successes with single skills."""
        single, readings = Dictionary(self.companion.alphabet.skills, (), self.companion.max_phrase), []
        for step in self.steps:
            shared = step[E_STEP] - step["success_segments"] * log2(step["dictionary_size"])
            successes = max(1, round(step["dictionary_bits"] / shared)) if shared else 1  # one skill and L = 1 cost nothing
            single_bits = single.bits / successes + step["success_skills"] * log2(len(single))
            readings.append({**step, "successes": successes, "single_bits": single_bits})
        return readings


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
    story: DictionaryHistory
    file: str  # where the episodes are recorded; empty where none is
    episodes: Sequence[Trajectory]  # of one iteration, successes first
    behaviors: dict[str, Behavior]  # of that iteration and of the run's last evaluation, if they are recorded

    def to_json(self) -> dict[str, Any]:
        story, phrases = self.story, self.story.companion.history.current_phrases()
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
    return DictionaryReport(story, file.name if file else "", episodes[:limit], behaviors)


# The steps of one recorded group by cluster. Methods that compare steps record each step's cluster, return, and PACE's Q̂, V̂
# and branch. For other runs, or for another partition, clusters are computed from the observations.

BY = ("recorded", "identity", "ngram")
GAMMA = 0.95  # discount for runs whose method has none


@dataclass(frozen=True)
class ClusterStep:
    member: int
    turn: int
    record: Mapping[str, Any]
    won: bool
    value: float = 0.0  # R, the discounted return
    q: float = 0.0
    v: float = 0.0
    branch: str = BRANCHES[0]

    @property
    def credit(self) -> float:
        """The step-level part of the credit; all of it if the method recorded no parts."""
        return float(self.record.get("step_credit", self.record.get("credit", 0.0)))

    def to_json(self) -> dict[str, Any]:
        numbers = {name: round(value, 4) for name, value in (("return", self.value), ("q", self.q), ("v", self.v))}
        return {"member": self.member, "turn": self.turn, "won": self.won, **self.record, **numbers, "branch": self.branch}


def read_groups(path: Path) -> dict[str, list[ClusterStep]]:
    """Trained-on steps by task, in credit order."""
    groups: dict[str, list[ClusterStep]] = {}
    members: dict[str, int] = {}
    for record in read_records(path):
        if not any("credit" in turn for turn in record["turns"]):
            continue  # crashed, or not selected
        member = members[record["task"]] = members.get(record["task"], -1) + 1
        steps = groups.setdefault(record["task"], [])
        steps += [ClusterStep(member, t, turn, record["success"]) for t, turn in enumerate(record["turns"])]
    if not groups:
        raise TacitError(f"{path} contains no episode that was trained on.")
    return groups


def partition(steps: Sequence[ClusterStep], by: str, epsilon: float = 0.25) -> np.ndarray:
    """[N] cluster of each step, recorded or computed from the observations (`by`). `epsilon`: radius for n-grams."""
    if by not in BY:
        raise unknown("partition", by, BY)
    if by == "recorded":
        if not all("part" in s.record for s in steps):
            raise TacitError(
                "this run's method recorded no clusters; compute them from the text with --by identity or --by ngram."
            )
        return np.array([int(s.record["part"]) for s in steps])
    texts = [s.record["saw"] for s in steps]
    return by_key(texts) if by == "identity" else by_cosine(HashNgram().texts(texts), epsilon)


def value_steps(steps: Sequence[ClusterStep], cluster_N: np.ndarray, gamma: float = GAMMA) -> list[ClusterStep]:
    """The steps with R and PACE's Q̂, V̂ and branch: recorded values for recorded clusters, else computed from returns and
    actions (Q form). Cluster −1 is a single step."""
    returns_N = returns_of(steps, gamma)
    if all("branch" in s.record for s in steps) and all(
        int(s.record["part"]) == p for s, p in zip(steps, cluster_N, strict=True)
    ):
        return [
            replace(s, value=value, q=s.record["q"], v=s.record["v"], branch=BRANCHES[s.record["branch"]])
            for s, value in zip(steps, returns_N.tolist(), strict=True)
        ]
    alone_N = np.arange(len(steps)) + cluster_N.max(initial=-1) + 1
    own_N = by_key(np.where(cluster_N < 0, alone_N, cluster_N).tolist())
    key_N = by_key([s.record["action"] if s.record["valid"] else ("", s.record["wrote"]) for s in steps])
    branch_N = action_peers(returns_N, own_N, key_N)[1]
    q_N, v_N = action_values(returns_N, own_N, key_N)
    rows = zip(steps, returns_N.tolist(), q_N.tolist(), v_N.tolist(), branch_N.tolist(), strict=True)
    return [replace(s, value=value, q=q, v=v, branch=BRANCHES[branch]) for s, value, q, v, branch in rows]


def returns_of(steps: Sequence[ClusterStep], gamma: float) -> np.ndarray:
    """[N] R of each step: recorded, or discounted from the recorded rewards."""
    if all("return" in s.record for s in steps):
        return np.array([float(s.record["return"]) for s in steps])
    returns_N = np.array([float(s.record.get("reward", 0.0)) for s in steps])
    for i in range(len(steps) - 2, -1, -1):
        if steps[i].member == steps[i + 1].member:
            returns_N[i] += gamma * returns_N[i + 1]
    return returns_N


def list_clusters(steps: Sequence[ClusterStep], cluster_N: np.ndarray) -> list[list[ClusterStep]]:
    """Clusters, largest first; members sorted by step-level credit, highest first, then action."""
    clusters: dict[int, list[ClusterStep]] = {}
    for step, label in zip(steps, cluster_N.tolist(), strict=True):
        clusters.setdefault(label, []).append(step)
    ordered = sorted(clusters.values(), key=len, reverse=True)
    return [sorted(cluster, key=lambda s: (-s.credit, s.record["action"])) for cluster in ordered]


def as_json(task: str, steps: Sequence[ClusterStep], cluster_N: np.ndarray, by: str, path: Path) -> dict[str, Any]:
    clusters = [[s.to_json() for s in cluster] for cluster in list_clusters(steps, cluster_N)]
    return {"file": str(path), "task": task, "by": by, **partition_metrics([cluster_N]), "members": clusters}


def choose_group(groups: Mapping[str, list[ClusterStep]], name: str, path: Path) -> str:
    """The task of a group, by task id or number. Default: the largest group with both outcomes, else the largest."""
    if not name:
        return max(groups, key=lambda task: (len({s.won for s in groups[task]}), len(groups[task])))
    if name.isdigit() and int(name) < len(groups):
        return list(groups)[int(name)]
    if name not in groups:
        raise unknown(f"group of {path.name}", name, groups)
    return name
