"""Calibration: layer and pooling by a probe (appendix H), radius by the policy's first iteration (appendix F).

They use different episodes. The probe measures which layer separates task families: it needs all families and held-out tasks,
played by any agent. The radius must suit the groups that training compares: it needs groups of that size, played by this
policy.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tacit.core.errors import TacitError, unknown
from tacit.core.files import read_json
from tacit.core.method import Context
from tacit.core.protocols import Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import Group, Observation, Task
from tacit.core.world import Environment, Expert
from tacit.credit.partitions import TARGET, ActorHidden, Embedder, HashNgram, Pooling, by_cosine, late_layer, search_radius
from tacit.credit.step_relative import partition_metrics
from tacit.evaluation.evaluate import RolloutSetup
from tacit.rollout.replay import play_episode, render_turns
from tacit.runs.alarms import LARGEST_PART

# An audit set: prompts of played episodes by task and family, to examine a policy's hidden states.

MakeAgent = Callable[[Task, int], Expert]  # (task, member of its group) -> the agent that plays it
MIN_TASKS = 2  # tasks per family that are always played: one to train the probe, one to test it


@dataclass(frozen=True, eq=False)
class Audit:
    prompts: list[np.ndarray]  # tokens of each step, episode by episode
    task_N: np.ndarray
    episode_N: np.ndarray
    family_N: np.ndarray
    families: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def of(cls, world: Environment, steps: Sequence[tuple[np.ndarray, Task, int]]) -> Audit:
        """From (prompt tokens, task, episode number) of every step."""
        if not steps:
            raise TacitError(f"no episode of world {world.name!r} could be played, so there is nothing to calibrate on.")
        families = tuple(dict.fromkeys(task.family for _, task, _ in steps))
        numbers = {name: i for i, name in enumerate(dict.fromkeys(task.id for _, task, _ in steps))}
        return cls(
            [tokens for tokens, _, _ in steps],
            np.array([numbers[task.id] for _, task, _ in steps], np.int64),
            np.array([episode for _, _, episode in steps], np.int64),
            np.array([families.index(task.family) for _, task, _ in steps], np.int64),
            families,
        )


class NoisyAgent:
    """An agent that takes a share of its actions at random from the admissible ones."""

    def __init__(self, agent: Expert, noise: float, rng: random.Random) -> None:
        self._agent, self._noise, self._rng = agent, noise, rng

    def act(self, observation: Observation) -> str:
        action = self._agent.act(observation)
        own = self._rng.random() >= self._noise or not observation.actions
        return action if own else self._rng.choice(observation.actions)


def audit(
    world: Environment,
    tasks: Sequence[Task],
    members: int,
    context: Context,
    tokenizer: Tokenizer,
    agent: MakeAgent,
    room: int,
    max_steps: int,
    most: int | None = None,
    at_least: int = 0,
) -> Audit:
    """Play each task `members` times; keep every prompt that leaves `room` for a completion. Episodes that raise are dropped.

    After `most` steps no further task is played, except the first `at_least`.
    """
    steps: list[tuple[np.ndarray, Task, int]] = []
    episode = 0
    live = world.make()
    for number, task in enumerate(tasks):
        if most is not None and number >= at_least and len(steps) >= most:
            break
        for member in range(members):
            try:
                course = play_episode(live, task, agent(task, member), max_steps)
                turns = render_turns(context, task, course, tokenizer=tokenizer, room=room)
                read = [turn.tokens for turn in turns if turn.fits]
            except TacitError:
                raise
            except (Exception, SystemExit):  # a broken world ends its own episode, here as in a rollout
                live = world.make()
                continue
            steps += [(tokens, task, episode) for tokens in read]
            episode += 1
    live.close()
    return Audit.of(world, steps)


def spread_over_families(tasks: Sequence[Task], each: int) -> list[Task]:
    """The first `each` tasks of every family, alternating, so that any prefix covers the families evenly."""
    by_family: dict[str, list[Task]] = {}
    for task in tasks:
        by_family.setdefault(task.family, []).append(task)
    return [members[i] for i in range(each) for members in by_family.values() if i < len(members)]


# Sources of the audited episodes.

NOISE = 0.3  # share of random actions of an expert, so that episodes of a task differ
SOURCES = {
    "policy": "episodes played by the policy itself",
    "expert": f"episodes played by the expert, {NOISE:.0%} of the actions at random",
}  # source -> description


def play_audit(setup: RolloutSetup, source: str, tasks_each: int, members: int, most: int) -> Audit:
    """An audit of `tasks_each` tasks per family with `members` episodes each. After `most` steps no further task is played, but
    at least two per family."""
    if source not in SOURCES:
        raise unknown("audit agent", source, SOURCES)
    tasks = spread_over_families(setup.tasks, tasks_each)
    at_least = MIN_TASKS * len({task.family for task in tasks})
    if source == "policy":
        # The first task of all families in one batch, then the second, …
        groups: list[Group] = []
        width = max(1, at_least // MIN_TASKS)
        for start in range(0, len(tasks), width):
            if start >= at_least and sum(len(group.steps) for group in groups) >= most:
                break
            groups += setup.play(tasks[start : start + width], members, derive(setup.seed, "audit", start))
        played = enumerate(trajectory for group in groups for trajectory in group.trajectories)
        return Audit.of(setup.world, [(step.prompt_tokens, t.task, number) for number, t in played for step in t.steps])
    expert = setup.world.expert()

    def noisy(task: Task, member: int) -> Expert:
        return NoisyAgent(expert(task), NOISE, random.Random(derive(setup.seed, "audit", task.id, member)))

    room = setup.sampling.max_tokens
    return audit(setup.world, tasks, members, setup.context, setup.policy, noisy, room, setup.max_steps, most, at_least)


# Choice of layer and pooling: appendix H's scan and rule. The rule takes the layer whose features best separate the task
# families (linear probe), among those with at least five clusters, not nearly all steps in one cluster and not nearly all
# singletons. The probe is tested on held-out tasks, because steps of one task are similar in every layer. Ties within one
# standard error go to the last token and to a late layer before the final one.

EPSILONS = (0.05, 0.10, 0.15, 0.20)
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
MIN_CLUSTERS = 5
DEGENERATE = 0.95  # unusable: a larger share of steps in one cluster, or in singletons


@dataclass(frozen=True)
class Slice:
    layer: int  # from the end: −1 is the last
    pooling: Pooling
    epsilon: float
    probe: float  # held-out accuracy of the probe; the same for every epsilon
    clusters: int
    singletons: float  # share of clusters with one member
    singleton_steps: float  # share of steps in such clusters
    largest: float  # share of steps in the largest cluster
    probe_error: float = 0.0  # standard error of the accuracy over tasks

    def refusal(self, min_clusters: int = MIN_CLUSTERS) -> str:
        """Why this geometry is unusable; empty if it is usable."""
        if self.largest > DEGENERATE:
            return "one giant cluster"
        if self.singleton_steps > DEGENERATE:
            return "all singletons"
        return f"fewer than {min_clusters} clusters" if self.clusters < min_clusters else ""


def layers_to_scan(layers: int) -> list[int]:
    """The paper's grid {4, 8, …, 24, 27} of 28 layers for any depth, counted from the end; every layer of a shallow model.

    >>> layers_to_scan(28)
    [-24, -20, -16, -12, -8, -4, -1]
    """
    blocks = range(layers) if layers <= 8 else [*range(4, layers - 1, 4), layers - 1]
    return [block - layers for block in blocks]


def probe_accuracy(
    features_ND: np.ndarray, label_N: np.ndarray, task_N: np.ndarray, folds: int = 5, ridge: float = 1e-2
) -> tuple[float, float]:
    """(accuracy, standard error over tasks) of a ridge classifier (one-hot targets, argmax) on unseen tasks.

    W = (XᵀX + λ I)⁻¹ Xᵀ Y on centered unit features, λ = ridge · mean squared length. Folds are whole tasks, dealt out label by
    label, so that every fold leaves tasks of every label for training; labels with one task are dropped. Accuracy is the mean
    over tasks of their share of correct steps. A single label gives (1, 0).
    """
    # [N] whether a step's label has at least two tasks.
    tasks_of = {label: len(np.unique(task_N[label_N == label])) for label in np.unique(label_N)}
    usable_N = np.array([tasks_of[label] >= 2 for label in label_N], bool)
    if len(np.unique(label_N)) < 2:
        return 1.0, 0.0
    if len(np.unique(label_N[usable_N])) < 2:
        raise TacitError(
            "the linear probe needs two families with two tasks each, one to train on and one to test on. Play more tasks "
            "(--tasks-each), or use more of the recorded ones (--observations)."
        )
    x_ND = np.asarray(features_ND, np.float64)[usable_N]
    x_ND = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    label_N = np.unique(label_N[usable_N], return_inverse=True)[1]
    task_N = np.unique(task_N[usable_N], return_inverse=True)[1]
    y_NC = np.eye(int(label_N.max()) + 1)[label_N]
    # [N] fold of each step: a label's tasks are dealt out in turn.
    label_K = np.zeros(task_N.max() + 1, np.int64)
    label_K[task_N] = label_N
    turn_K = np.array([(label_K[:task] == label_K[task]).sum() for task in range(len(label_K))])
    fold_N = (turn_K % folds)[task_N]
    right_N = np.zeros(len(label_N))
    for fold in np.unique(fold_N):
        held = fold_N == fold
        mean_D, mean_C = x_ND[~held].mean(axis=0), y_NC[~held].mean(axis=0)
        weights_DC = solve_ridge(x_ND[~held] - mean_D, y_NC[~held] - mean_C, ridge)
        right_N[held] = np.argmax((x_ND[held] - mean_D) @ weights_DC + mean_C, axis=1) == label_N[held]
    share_K = np.bincount(task_N, weights=right_N) / np.bincount(task_N)
    return float(share_K.mean()), float(share_K.std(ddof=1) / len(share_K) ** 0.5)


def scan(
    features: Mapping[tuple[int, Pooling], np.ndarray],
    label_N: np.ndarray,
    task_N: np.ndarray,
    epsilons: Sequence[float] = EPSILONS,
) -> list[Slice]:
    """Every (layer, pooling) at every radius, clustered over the audit set."""
    slices = []
    for (layer, pooling), features_ND in features.items():
        probe, error = probe_accuracy(features_ND, label_N, task_N)
        for epsilon in epsilons:
            sizes = np.bincount(by_cosine(features_ND, epsilon))
            alone, n = int((sizes == 1).sum()), len(label_N)
            shares = (alone / len(sizes), alone / n, int(sizes.max()) / n)
            slices.append(Slice(layer, pooling, epsilon, probe, len(sizes), *shares, error))
    return slices


def choose(slices: Sequence[Slice], layers: int, min_clusters: int = MIN_CLUSTERS) -> Slice:
    """The slice with the best probe among the usable ones, for a model with `layers` layers.

    Geometries within a standard error are equal; prefer the last token (the sampler returns its state anyway), then a layer
    before the final one nearest to the published depth, then fewer singletons.
    """
    usable = [s for s in slices if not s.refusal(min_clusters)]
    if not usable:
        reasons = sorted({s.refusal(min_clusters) for s in slices})
        raise TacitError(
            f"none of {len(slices)} combinations of layer, pooling and radius is usable ({', '.join(reasons)}). Scan other "
            "radii (--epsilons) or layers (--layers), or lower --min-clusters if the world has few kinds of states."
        )
    best = max(usable, key=lambda s: s.probe)
    equals = [s for s in usable if s.probe >= best.probe - best.probe_error]
    late = late_layer(layers)
    return max(equals, key=lambda s: (s.pooling == "last", s.layer != -1, -abs(s.layer - late), s.layer, -s.singleton_steps))


def solve_ridge(x_ND: np.ndarray, y_NC: np.ndarray, ridge: float) -> np.ndarray:
    """[D, C] minimizer of ‖XW − Y‖² + λ‖W‖², solved in the smaller of steps and dimensions."""
    n, d = x_ND.shape
    damping = ridge * max(float((x_ND * x_ND).sum()) / n, 1e-12)
    if d <= n:
        return np.linalg.solve(x_ND.T @ x_ND + damping * np.eye(d), x_ND.T @ y_NC)
    return x_ND.T @ np.linalg.solve(x_ND @ x_ND.T + damping * np.eye(n), y_NC)


# Both together.


@dataclass(frozen=True)
class FoundRadius:
    """The searched radius of one embedder over an iteration's groups."""

    epsilon: float
    median_cluster: float
    singleton_steps: float  # share of steps in no cluster
    largest_cluster: float  # mean over groups of the largest cluster's share of steps

    @property
    def warning(self) -> str:
        if not TARGET[0] <= self.median_cluster <= TARGET[1]:
            return f"no radius gives a median cluster of {TARGET[0]:g} to {TARGET[1]:g} steps; the nearest was chosen"
        if self.largest_cluster > LARGEST_PART:
            return f"the largest cluster holds {self.largest_cluster:.0%} of a group, so it compares dissimilar steps"
        return ""


@dataclass(frozen=True)
class Calibration:
    chosen: Slice
    slices: Sequence[Slice]
    radii: Mapping[str, FoundRadius]  # by embedder: actor, ngram

    def to_json(self) -> dict[str, Any]:
        """The content of a calibration file. Top-level layer, pooling and epsilon are those of the embedder `actor`."""
        return {
            "layer": self.chosen.layer,
            "pooling": self.chosen.pooling,
            "epsilon": self.radii["actor"].epsilon,
            "median_cluster": self.radii["actor"].median_cluster,
            "probe": self.chosen.probe,
            "probe_error": self.chosen.probe_error,
            "embedders": {
                "actor": {"layer": self.chosen.layer, "pooling": self.chosen.pooling, "epsilon": self.radii["actor"].epsilon},
                **{name: {"epsilon": radius.epsilon} for name, radius in self.radii.items() if name != "actor"},
            },
            "radii": {name: asdict(radius) for name, radius in self.radii.items()},
            "slices": [asdict(s) for s in self.slices],
        }


def scan_layers(
    policy: Any, played: Audit, layers: Sequence[int] = (), poolings: Sequence[str] = (), epsilons: Sequence[float] = ()
) -> list[Slice]:
    """One forward pass over the audit's prompts; every layer and pooling at every radius. Defaults are the paper's."""
    wanted = list(layers) or layers_to_scan(policy.engine.model.layers)
    features = policy.hidden_scan(played.prompts, wanted, list(poolings) or list(policy.poolings))
    return scan(features, played.family_N, played.task_N, tuple(epsilons) or EPSILONS)


def finish(policy: Any, slices: Sequence[Slice], first: Sequence[Group], min_clusters: int = MIN_CLUSTERS) -> Calibration:
    """Choose the layer from the scan, and each embedder's radius on `first`, the groups of the policy's first iteration."""
    chosen = choose(slices, policy.engine.model.layers, min_clusters)
    embedders: dict[str, Embedder] = {"actor": ActorHidden(chosen.layer, chosen.pooling), "ngram": HashNgram()}
    return Calibration(chosen, slices, {name: find_radius(phi, first, policy) for name, phi in embedders.items()})


def find_radius(embedder: Embedder, groups: Sequence[Group], policy: Any) -> FoundRadius:
    features = embedder([group for group in groups if group.steps], policy)
    epsilon, median = search_radius(features)
    metrics = partition_metrics([by_cosine(rows, epsilon) for rows in features])
    return FoundRadius(epsilon, median, metrics["parts_singleton_steps"], metrics["parts_largest"])


# Calibration files, one per model, world and prompt.

GEOMETRY = {"layer": int, "pooling": str, "epsilon": float}


def calibration_file(root: Path, name: str, identity: Mapping[str, Any]) -> Path:
    """The path for this identity, `<name>-<hash>.json`. An existing file with the same hash is used whatever its name."""
    digest, folder = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12], root / "calibrations"
    existing = sorted(folder.glob(f"*-{digest}.json"))
    return existing[0] if existing else folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}-{digest}.json"


def read_calibration(place: Path) -> dict[str, dict[str, Any]]:
    """Embedder -> layer, pooling and epsilon; empty if the file does not exist."""
    if not place.exists():
        return {}
    try:
        calibration = read_json(place)
        return {
            embedder: {name: kind(own[name]) for name, kind in GEOMETRY.items() if own.get(name) is not None}
            for embedder, own in calibration["embedders"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TacitError(f"cannot read the calibration {place}: {error}. Delete it, or run `tacit calibrate` again.") from error
