"""Estimators of step credit, and how well they agree with Monte Carlo advantages.

An estimator is a tuple of credit terms whose credits add up. Rewards are the outcome alone, scaled as in the methods: the scale
matters for terms without a standard deviation (Eqs. 4–7 of BiPACE).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tacit.core.credit import Rewards, sum_terms
from tacit.core.errors import TacitError
from tacit.core.method import CreditTerm, credit_terms
from tacit.core.protocols import Encoder
from tacit.core.types import Group, IterationInfo
from tacit.credit.episode import EpisodeRelative, StepReturns
from tacit.credit.partitions import ActorHidden, Clusters, Embedder, HashNgram, Partition, Pooling, SameKey, search_radius
from tacit.credit.step_relative import ActionPeers, HistoryHierarchy, StepRelative, partition_metrics
from tacit.evaluation.credit_truth import Truth
from tacit.rewards.outcome import Outcome

SUCCESS = 10.0  # reward of success in the methods
Estimators = Mapping[str, tuple[CreditTerm, ...]]


@dataclass(frozen=True)
class Geometry:
    """How steps are compared: hidden states of a layer within a cosine radius, which is searched if it is None."""

    layer: int
    pooling: Pooling = "last"
    epsilon: float | None = None

    @classmethod
    def parse(cls, text: str) -> Geometry:
        """`-2:last` or `-1:mean:0.0675`."""
        layer, _, rest = text.partition(":")
        pooling, _, epsilon = rest.partition(":")
        try:
            if pooling not in ("last", "mean", "attention"):
                raise ValueError(pooling)
            return cls(int(layer), pooling, float(epsilon) if epsilon else None)  # type: ignore[arg-type]
        except ValueError as error:
            raise TacitError(f"{text!r} must be LAYER:POOLING[:EPSILON], such as -2:last or -1:mean:0.0675.") from error


class CachedEmbedder(Embedder):
    """Caches an embedder's features for several partitions."""

    def __init__(self, embedder: Embedder, groups: Sequence[Group], policy: Encoder | None) -> None:
        self._groups, self._features = groups, embedder(groups, policy)

    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> Any:
        assert groups is self._groups
        return self._features

    def search_radius(self) -> float:
        return search_radius([rows for rows in self._features if len(rows)])[0]


def partitions(
    groups: Sequence[Group], policy: Encoder | None, geometries: Sequence[Geometry]
) -> tuple[dict[str, Partition], dict[str, float]]:
    """(partitions by name, searched radii): exact, n-gram, and hidden states by geometry."""
    by_name: dict[str, Partition] = {
        "exact observation": SameKey(),
        "exact state": SameKey("state"),
        "exact prompt": SameKey("prompt"),
    }
    searched_radii: dict[str, float] = {}

    def cluster(name: str, features: CachedEmbedder, epsilon: float | None) -> None:
        label = f"{name}, ε " + ("searched" if epsilon is None else f"{epsilon:.4g}")
        if epsilon is None:
            epsilon = searched_radii[label] = features.search_radius()
        by_name[label] = Clusters(features, epsilon)

    cluster("n-grams", CachedEmbedder(HashNgram(), groups, policy), None)
    states: dict[tuple[int, Pooling], CachedEmbedder] = {}
    for geometry in geometries:
        key = (geometry.layer, geometry.pooling)
        if key not in states:
            states[key] = CachedEmbedder(ActorHidden(*key), groups, policy)
        cluster(f"layer {geometry.layer} {geometry.pooling}", states[key], geometry.epsilon)
    return by_name, searched_radii


def make_estimators(parts: Mapping[str, Partition], gamma: float = 0.95, history: int | None = 2) -> Estimators:
    """Name -> credit terms of the methods, over these partitions. `history`: past turns in the prompt, for HGPO's depth."""
    episode = EpisodeRelative()
    depth = None if history is None else history + 1
    exact, state = parts["exact observation"], parts["exact state"]
    terms: dict[str, tuple[CreditTerm, ...]] = {
        "GRPO": (episode,),
        "step returns": (StepReturns(gamma),),
        "GiGPO": (episode, StepRelative(exact, gamma=gamma)),
        "GiGPO, exact state": (episode, StepRelative(state, gamma=gamma)),
        "HGPO": (HistoryHierarchy(depth, gamma=gamma),),
        "HGPO, exact state": (HistoryHierarchy(depth, gamma=gamma, key="state"),),
        "PACE-Q, exact observation": (episode, ActionPeers(exact, gamma=gamma)),
        "PACE-Q, exact state": (episode, ActionPeers(state, gamma=gamma)),
    }
    for name, partition in parts.items():
        if not name.startswith("exact"):
            terms[f"BiGPO, {name}"] = (episode, StepRelative(partition, gamma=gamma))
            terms[f"BiPACE-Q, {name}"] = (episode, ActionPeers(partition, gamma=gamma))
            terms[f"BiPACE-diff, {name}"] = (episode, ActionPeers(partition, form="difference", gamma=gamma))
    return terms


def credit_per_step(
    terms: Sequence[CreditTerm], groups: Sequence[Group], policy: Any, rewards: Sequence[Rewards] | None = None
) -> list[np.ndarray]:
    """[N] per group: the summed credits, averaged over each step's tokens."""
    rewards = Outcome(SUCCESS)(groups) if rewards is None else rewards
    totals = sum_terms(credit_terms(terms, groups, rewards, policy, IterationInfo()))
    return [np.array([float(np.mean(tokens)) if len(tokens) else 0.0 for tokens in total.steps()]) for total in totals]


# Credit and truth of a group as plain numbers.

Ending = Literal["mixed", "all won", "all lost"]
ENDINGS: tuple[Ending, ...] = ("mixed", "all won", "all lost")
STAGES = ("first third", "second third", "last third")


@dataclass(frozen=True, eq=False)
class GroupCredit:
    """A group's credit by estimator."""

    task: str
    ending: Ending
    stage_N: np.ndarray  # third of the episode of each step
    credits: Mapping[str, np.ndarray]
    parts: Mapping[str, np.ndarray]

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "ending": self.ending,
            "stage": self.stage_N.tolist(),
            "credits": {name: values_N.tolist() for name, values_N in self.credits.items()},
            "parts": {name: cluster_N.tolist() for name, cluster_N in self.parts.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GroupCredit:
        credits = {name: np.array(values, float) for name, values in data["credits"].items()}
        parts = {name: np.array(part, np.int64) for name, part in data["parts"].items()}
        return cls(data["task"], data["ending"], np.array(data["stage"], np.int64), credits, parts)


@dataclass(frozen=True, eq=False)
class MeasuredGroup:
    """A group's credit with its Monte Carlo values, one estimate from each half of the continuations."""

    group: GroupCredit
    a_HN: np.ndarray  # [2, N] Q − V
    v_HN: np.ndarray
    episodes: int = 0  # continuations played
    steps: int = 0
    per_state: float = 0.0

    @classmethod
    def of(cls, group: GroupCredit, truth: Truth) -> MeasuredGroup:
        return cls(group, truth.q_HN - truth.v_HN, truth.v_HN, truth.episodes, truth.steps, truth.per_state)

    def to_json(self) -> dict[str, Any]:
        played = {"episodes": self.episodes, "steps": self.steps, "per_state": self.per_state}
        return {"group": self.group.to_json(), "a": self.a_HN.tolist(), "v": self.v_HN.tolist(), **played}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MeasuredGroup:
        a_HN, v_HN = (np.array(data[name], float).reshape(2, -1) for name in ("a", "v"))
        return cls(GroupCredit.from_json(data["group"]), a_HN, v_HN, data["episodes"], data["steps"], data["per_state"])


def credit_groups(
    groups: Sequence[Group],
    policy: Any,
    estimators: Estimators,
    partitions: Mapping[str, Partition],
    precomputed: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> list[GroupCredit]:
    """Every estimator's credit for every step. `precomputed`: further credit, one array per group."""
    credits = {name: credit_per_step(terms, groups, policy) for name, terms in estimators.items()}
    credits |= {name: list(values) for name, values in (precomputed or {}).items()}
    parts = {name: partition(groups, policy) for name, partition in partitions.items()}
    return [
        GroupCredit(
            task=group.task.id,
            ending=ending_of(group),
            stage_N=stages_of(group),
            credits={name: values[i] for name, values in credits.items()},
            parts={name: partitions_G[i] for name, partitions_G in parts.items()},
        )
        for i, group in enumerate(groups)
    ]


def ending_of(group: Group) -> Ending:
    won = {trajectory.success for trajectory in group.trajectories}
    return "mixed" if len(won) > 1 else "all won" if True in won else "all lost"


def stages_of(group: Group) -> np.ndarray:
    """[N] 0, 1 or 2: the step's third of its episode. A one-step episode is in the first third."""
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(n) * 3 // n for n in group.lengths.tolist() if n)])


# Agreement: correlation and cosine over steps, corrected for the Monte Carlo noise of the truth.
#
# The truth is measured twice, by each half of the continuations: Â₁ and Â₂, with mean Â = A + noise. Credit c is independent of
# that noise, and the noise of the two halves is independent, so over many steps
#
#     cov(c, Â) = cov(c, A)        cov(Â₁, Â₂) = var A        and likewise for the plain second moments
#
#     correlation = cov(c, Â) / √(var c · cov(Â₁, Â₂))         cosine = Σ cÂ / √(Σ c² · Σ Â₁Â₂)
#
# estimate the correlation and cosine with A itself (correction for attenuation, with reliability cov(Â₁, Â₂) / var Â).
#
# For a partition: the share of V's variance inside its clusters, Σ (V₁ − mean_C V₁)(V₂ − mean_C V₂), divided by the same sum
# about the group mean. No baseline computed within clusters can do better. A singleton contributes 0.
#
# Intervals resample tasks, not steps, since steps of a task are correlated; differences from the baseline use the same draws.
# Sums of squares at rounding level count as 0. An estimate outside [−1, 1] is unknown; a resample outside is clipped to ±1.

RESAMPLES = 2000
BASELINE = "GRPO"
ROUNDING = 1e-12  # variances below this share of their terms, and advantages below this, are rounding errors


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval over tasks; None if unknown."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, value: float, drawn_B: np.ndarray, confidence: float = 0.95) -> Estimate:
        drawn_B = drawn_B[np.isfinite(drawn_B)]
        if not np.isfinite(value):
            return cls(None)
        if len(drawn_B) < 2:
            return cls(float(value))
        low, high = np.percentile(drawn_B, [50 * (1 - confidence), 50 * (1 + confidence)])
        return cls(float(value), float(low), float(high))

    def to_json(self) -> list[float | None]:
        return [None if x is None else round(x, 5) for x in (self.value, self.low, self.high)]


@dataclass(frozen=True)
class Agreement:
    """One estimator on a subset of the steps."""

    estimator: str
    on: str  # the steps: all, one of ENDINGS, or one of STAGES
    steps: int
    correlation: Estimate
    cosine: Estimate
    raw: float | None  # correlation with the measured values, without correction
    gain: Estimate  # correlation minus the baseline's

    def to_json(self) -> dict[str, Any]:
        return {name: value.to_json() if isinstance(value, Estimate) else value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Unexplained:
    """The share of V's variance that lies within the clusters of a partition."""

    partition: str
    unexplained: Estimate
    metrics: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"partition": self.partition, "unexplained": self.unexplained.to_json(), **self.metrics}


@dataclass(frozen=True)
class Quality:
    agreements: Sequence[Agreement]
    partitions: Sequence[Unexplained]
    reliability: float | None  # share of the measured advantage's variance that is not Monte Carlo noise
    noise: float | None  # standard error of one step's measured advantage
    spread: float | None  # standard deviation of the true advantage over steps
    groups: int
    tasks: int
    steps: int
    episodes: int
    endings: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        truth = {"reliability": self.reliability, "noise": self.noise, "spread": self.spread}
        counts = {"groups": self.groups, "tasks": self.tasks, "steps": self.steps, "continuations": self.episodes}
        rows = {name: [row.to_json() for row in getattr(self, name)] for name in ("agreements", "partitions")}
        return {**counts, "endings": dict(self.endings), "truth": truth, **rows}


def quality(groups: Sequence[MeasuredGroup], baseline: str = BASELINE, resamples: int = RESAMPLES, seed: int = 0) -> Quality:
    """Agreement of every estimator with the measured advantages, on all steps and on subsets of them."""
    tasks = list(dict.fromkeys(m.group.task for m in groups))
    rng, uniform = np.random.default_rng(seed), np.full(len(tasks), 1.0 / max(1, len(tasks)))
    drawn_BT = rng.multinomial(len(tasks), uniform, size=resamples) if len(tasks) > 1 else np.zeros((0, len(tasks)))
    weights_BT = drawn_BT.astype(float)  # how often each task is drawn
    names = list(groups[0].group.credits) if groups else []
    agreements: list[Agreement] = []
    for on in ("all", *ENDINGS, *STAGES):
        sums = {name: _sums_by_task(groups, tasks, name, on) for name in names}
        correlations = {name: _resample("correlation", sums_TK, weights_BT) for name, sums_TK in sums.items()}
        for name, sums_TK in sums.items():
            value, drawn_B = correlations[name]
            gain = Estimate(None)
            if baseline in sums and name != baseline:
                gain = Estimate.of(value - correlations[baseline][0], drawn_B - correlations[baseline][1])
            total = sums_TK.sum(0)
            raw, cosine = _rounded(float(_agreement("raw", total))), Estimate.of(*_resample("cosine", sums_TK, weights_BT))
            agreements.append(Agreement(name, on, int(total[0]), Estimate.of(value, drawn_B), cosine, raw, gain))
    reliability, noise, spread = _noise_statistics(groups)
    return Quality(
        agreements=agreements,
        partitions=[_unexplained(groups, tasks, name, weights_BT) for name in (groups[0].group.parts if groups else ())],
        reliability=reliability,
        noise=noise,
        spread=spread,
        groups=len(groups),
        tasks=len(tasks),
        steps=sum(len(m.group.stage_N) for m in groups),
        episodes=sum(m.episodes for m in groups),
        endings={ending: sum(m.group.ending == ending for m in groups) for ending in ENDINGS},
    )


def _sums_by_task(groups: Sequence[MeasuredGroup], tasks: Sequence[str], name: str, on: str) -> np.ndarray:
    """[T, 9] sums over each task's steps: n, Σc, ΣÂ, Σc², ΣcÂ, ΣÂ₁, ΣÂ₂, ΣÂ₁Â₂, ΣÂ₁² + Â₂²."""
    sums_TK = np.zeros((len(tasks), 9))
    for m in groups:
        chosen_N = (
            m.group.stage_N == STAGES.index(on)
            if on in STAGES
            else np.full(len(m.group.stage_N), on in ("all", m.group.ending))
        )
        c_N, (one_N, two_N) = m.group.credits[name][chosen_N], m.a_HN[:, chosen_N]
        a_N = (one_N + two_N) / 2
        columns = (np.ones_like(c_N), c_N, a_N, c_N * c_N, c_N * a_N, one_N, two_N, one_N * two_N, one_N**2 + two_N**2)
        sums_TK[tasks.index(m.group.task)] += [float(column.sum()) for column in columns]
    return sums_TK


def _resample(kind: Literal["correlation", "cosine"], sums_TK: np.ndarray, weights_BT: np.ndarray) -> tuple[float, np.ndarray]:
    """(figure, resampled figures). A single task gives no interval."""
    value, has_interval = float(_agreement(kind, sums_TK.sum(0))), (sums_TK[:, 0] > 0).sum() > 1
    drawn_B = _agreement(kind, (weights_BT if has_interval else weights_BT[:0]) @ sums_TK)
    return float(np.clip(value, -1, 1)) if abs(value) < 1 + 1e-9 else np.nan, np.clip(drawn_B, -1, 1)


def _agreement(kind: Literal["correlation", "cosine", "raw"], sums: np.ndarray) -> Any:
    """cov(c, Â) / √(var c · cov(Â₁, Â₂)), the cosine, or the correlation with Â as measured; nan if credit is constant or the
    truth has no variance above its noise, beyond rounding."""
    n, c, a, cc, ca, one, two, both, squares = np.moveaxis(sums, -1, 0)
    safe_n = np.maximum(n, 1.0)
    covariance, credit, truth = ca - c * a / safe_n, cc - c * c / safe_n, both - one * two / safe_n
    if kind == "cosine":
        covariance, credit, truth = ca, cc, both
    elif kind == "raw":
        truth = (squares + 2 * both) / 4 - a * a / safe_n
    is_defined = (credit > ROUNDING * np.maximum(cc, 1e-300)) & (truth > ROUNDING * (squares + ROUNDING * n))
    return np.where(is_defined, covariance / np.sqrt(np.where(is_defined, credit * truth, 1.0)), np.nan)


def _unexplained(groups: Sequence[MeasuredGroup], tasks: Sequence[str], name: str, weights_BT: np.ndarray) -> Unexplained:
    within_T, total_T, squares_T = np.zeros((3, len(tasks)))
    for m in groups:
        task = tasks.index(m.group.task)
        within_T[task] += _scatter(m.v_HN, m.group.parts[name])
        total_T[task] += _scatter(m.v_HN, np.zeros(len(m.group.stage_N), np.int64))
        squares_T[task] += float((m.v_HN**2).sum())
    drawn_B = _share(weights_BT @ within_T, weights_BT @ total_T, weights_BT @ squares_T)
    metrics = partition_metrics([m.group.parts[name] for m in groups])
    return Unexplained(name, Estimate.of(float(_share(within_T.sum(), total_T.sum(), squares_T.sum())), drawn_B), metrics)


def _scatter(v_HN: np.ndarray, cluster_N: np.ndarray) -> float:
    """Σ (V₁ − mean_C V₁)(V₂ − mean_C V₂)."""
    if not len(cluster_N):
        return 0.0
    count_K = np.maximum(np.bincount(cluster_N), 1)
    one_N, two_N = (v_N - (np.bincount(cluster_N, weights=v_N) / count_K)[cluster_N] for v_N in v_HN)
    return float((one_N * two_N).sum())


def _share(within: Any, total: Any, squares: Any) -> Any:
    is_defined = np.asarray(total) > ROUNDING * squares
    return np.where(is_defined, within / np.where(is_defined, total, 1.0), np.nan)


def _noise_statistics(groups: Sequence[MeasuredGroup]) -> tuple[float | None, float | None, float | None]:
    """(reliability of Â, its standard error, standard deviation of A) over all steps; None if the halves share nothing."""
    if not groups:
        return None, None, None
    one_N, two_N = np.concatenate([m.a_HN for m in groups], axis=1)
    shared = max(float(np.mean((one_N - one_N.mean()) * (two_N - two_N.mean()))), 0.0)
    measured_variance = float(np.var((one_N + two_N) / 2))
    noise = float(np.sqrt(np.mean((one_N - two_N) ** 2)) / 2)
    if measured_variance <= ROUNDING * (float(np.mean(one_N**2 + two_N**2)) + ROUNDING):
        return None, noise, None
    return _rounded(shared / measured_variance), noise, _rounded(float(np.sqrt(shared)))


def _rounded(value: float) -> float | None:
    return round(float(value), 5) if np.isfinite(value) else None
