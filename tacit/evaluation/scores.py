"""Scores of one panel. Every number is a function of the episodes, so stored episodes give the same table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import comb
from typing import Any, TypeVar

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.core.types import PLAIN, Trajectory
from tacit.evaluation.panels import Panel, Rules
from tacit.evaluation.statistics import effective_episodes, mean_interval, wilson

# pass@k and SC@k, unbiased, from n tries with c successes: the mean over all choices of k tries, with exact binomials.

Rule = Callable[[int, int, int], float]  # (k, tries, successes) -> share


def pass_at(k: int, tries: int, successes: int) -> float:
    """Probability that at least one of k tries succeeds:  1 − C(n−c, k) / C(n, k)."""
    check_k(k, tries)
    return 1.0 - comb(tries - successes, k) / comb(tries, k)


def majority_at(k: int, tries: int, successes: int) -> float:
    """SC@k: probability that more than half of k tries succeed:  Σ_{j > k/2} C(c, j) C(n−c, k−j) / C(n, k).

    Half of an even k is no majority.
    """
    check_k(k, tries)
    more_than_half = range(k // 2 + 1, k + 1)
    return sum(comb(successes, j) * comb(tries - successes, k - j) for j in more_than_half) / comb(tries, k)


def over_tasks(rule: Rule, k: int, outcomes: Sequence[Sequence[bool]]) -> float:
    """Mean of a rule over tasks, each with the outcomes of its tries. No tasks: 0."""
    shares = [rule(k, len(tries), sum(tries)) for tries in outcomes]
    return sum(shares) / len(shares) if shares else 0.0


def interval_over_tasks(outcomes: Sequence[Sequence[bool]], rule: Rule = pass_at, k: int = 1) -> tuple[float, float]:
    """95% interval of `over_tasks` for T tasks with n tries each: Wilson's, widened because tries at one task are correlated.

    All tries together are worth at most T n/k independent tasks tried k times (`worth`). k = n is plain Wilson; pass@1 is the
    success rate.
    """
    tries = sum(map(len, outcomes))
    if not tries:
        return wilson(0, 0)
    shares = [rule(k, len(task_outcomes), sum(task_outcomes)) for task_outcomes in outcomes]
    p = sum(shares) / len(shares)
    tasks = effective_episodes(shares, p * (1 - p), tries / k)
    return wilson(p * tasks, tasks)


def check_k(k: int, tries: int) -> None:
    if k < 1:
        raise TacitError(f"k = {k} must be at least 1.")
    if k > tries:
        raise TacitError(f"pass@{k} and SC@{k} need {k} episodes per task, and there are {tries}; add --repeats {k}.")


@dataclass(frozen=True)
class FamilyScore:
    episodes: int
    successes: int
    success: float
    score: float
    steps: float
    interval: tuple[float, float] = (0.0, 1.0)  # 95%, of the success rate


@dataclass(frozen=True)
class PanelScore:
    """Counts are episodes; a crashed world counts as a failure and is reported. Empty means are 0."""

    panel: str
    panel_hash: str
    episodes: int
    successes: int
    score: float  # mean graded outcome
    steps: float  # mean turns per episode
    success_steps: float  # mean turns per successful episode
    invalid: float  # share of turns whose completion did not parse
    ineffective: float  # share of turns whose action parsed but was refused by the world
    prompt_tokens: float  # mean per turn
    completion_tokens: float  # mean per turn
    crashed: int
    sampling: dict[str, Any]
    seed: int
    panel_version: str = "1"
    repeats: int = 1  # episodes per task
    macro: float = 0.0  # mean success over families, weighting each family equally
    macro_interval: tuple[float, float] = (0.0, 1.0)  # 95%
    families: Mapping[str, FamilyScore] = field(default_factory=dict)
    pass_at: Mapping[int, float] = field(default_factory=dict)
    """k -> probability that at least one of k tries succeeds, mean over tasks"""
    majority_at: Mapping[int, float] = field(default_factory=dict)
    """SC@k: k -> probability that more than half of k tries succeed, mean over tasks"""
    pass_interval: Mapping[int, tuple[float, float]] = field(default_factory=dict)  # k -> 95%, of pass@k
    majority_interval: Mapping[int, tuple[float, float]] = field(default_factory=dict)  # k -> 95%, of SC@k
    episode_prompt_tokens: float = 0.0  # mean per episode
    episode_completion_tokens: float = 0.0  # mean per episode
    outcomes: tuple[str, ...] = ()  # one line per repeat, one digit per task in panel order: 1 for success
    condition: Mapping[str, str] = field(default_factory=lambda: {"name": PLAIN.name})  # the condition's name and text
    unusable: int = 0  # turns without a usable completion; they count as not parsed

    @property
    def success(self) -> float:
        return self.successes / self.episodes if self.episodes else 0.0

    @cached_property
    def interval(self) -> tuple[float, float]:
        """95%, of the success rate; repeated tries at a task count for less than new tasks."""
        if sum(map(len, self.outcomes)) != self.episodes or len(set(map(len, self.outcomes))) != 1:
            return wilson(self.successes, self.episodes)
        return interval_over_tasks([[digit == "1" for digit in tries] for tries in zip(*self.outcomes, strict=True)])

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "success": self.success, "interval": list(self.interval), "outcomes": list(self.outcomes)}

    def __str__(self) -> str:
        low, high = self.interval
        under = "" if self.condition["name"] == PLAIN.name else f" under condition {self.condition['name']}"
        return f"{100 * self.success:.1f}% [{100 * low:.1f}, {100 * high:.1f}] of {pluralize(self.episodes, 'episode')}{under}"


def score_panel(panel: Panel, played: Sequence[Trajectory], rules: Rules, ks: Sequence[int] = ()) -> PanelScore:
    """`played` holds every task of the panel in order, once per repeat.

    pass@k and SC@k are computed for each k of `ks`; by default for k = repeats, if there are several.
    """
    size = max(1, len(panel.tasks))
    repeats = max(1, len(played) // size)
    if not ks:
        ks = (repeats,) if repeats > 1 else ()
    for k in ks:
        check_k(k, repeats)
    steps = [step for t in played for step in t.steps]
    prompt = [sum(len(s.prompt_tokens) for s in t.steps) for t in played]
    written = [t.completion_tokens for t in played]
    tries = [[t.success for t in played[i::size]] for i in range(min(size, len(played)))]
    families = {}
    for family in sorted({t.task.family for t in played}):
        episodes = [t for t in played if t.task.family == family]
        family_tries = [[t.success for t in played[i::size]] for i, t in enumerate(played[:size]) if t.task.family == family]
        wins, score, length = sum(t.success for t in episodes), mean(t.score for t in episodes), mean(map(len, episodes))
        count, interval = len(episodes), interval_over_tasks(family_tries)
        families[family] = FamilyScore(count, wins, wins / count, score, length, interval)
    return PanelScore(
        panel=panel.name,
        panel_hash=panel.hash,
        episodes=len(played),
        successes=sum(t.success for t in played),
        score=mean([t.score for t in played]),
        steps=mean([len(t) for t in played]),
        success_steps=mean([len(t) for t in played if t.success]),
        invalid=mean([not s.valid for s in steps]),
        ineffective=mean([s.valid and not s.effective for s in steps]),
        prompt_tokens=mean([len(s.prompt_tokens) for s in steps]),
        completion_tokens=mean([len(s.completion.tokens) for s in steps]),
        crashed=sum(t.stop.crashed for t in played),
        sampling=asdict(rules.sampling),
        seed=rules.seed,
        panel_version=panel.version,
        repeats=repeats,
        macro=mean([f.success for f in families.values()]),
        macro_interval=mean_interval([f.success for f in families.values()], [f.interval for f in families.values()]),
        families=families,
        pass_at={k: over_tasks(pass_at, k, tries) for k in ks},
        majority_at={k: over_tasks(majority_at, k, tries) for k in ks},
        pass_interval={k: interval_over_tasks(tries, pass_at, k) for k in ks},
        majority_interval={k: interval_over_tasks(tries, majority_at, k) for k in ks},
        episode_prompt_tokens=mean(prompt),
        episode_completion_tokens=mean(written),
        outcomes=tuple("".join(str(int(t.success)) for t in played[i : i + size]) for i in range(0, len(played), size)),
        condition=rules.describe_condition(panel.tasks),
        unusable=sum(t.unusable for t in played),
    )


Record = TypeVar("Record", bound=Mapping[str, Any])


def final_and_peak(evaluations: Sequence[Record]) -> tuple[Record, Record]:
    """(last, best) of a run's evaluations: the best after imitation or in RL, of equals the latest, as `--checkpoint best`."""
    trained = [e for e in evaluations if e.get("stage") != "untrained"]
    return evaluations[-1], max(reversed(trained or list(evaluations)), key=lambda e: e["success"])


def over_worlds(scores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Evaluations in several worlds at one step, combined with equal weights; single scores are under `worlds`. The interval
    treats the worlds' errors as independent."""
    if len(scores) == 1:
        return dict(scores[0])
    means: dict[str, float] = {
        name: mean([score[name] for score in scores]) for name in ("success", "score") if name in scores[0]
    }
    intervals = np.array([score["interval"] for score in scores])
    rates = [score["success"] for score in scores]
    below, above = (np.sqrt(np.sum((intervals[:, side] - rates) ** 2)) / len(scores) for side in (0, 1))
    interval = [max(0.0, means["success"] - float(below)), min(1.0, means["success"] + float(above))]
    return {
        **{name: value for name, value in scores[0].items() if name in ("stage", "step", "fingerprint", "code")},
        **means,
        "interval": interval,
        "episodes": sum(score["episodes"] for score in scores),
        "panel": " + ".join(score["panel"] for score in scores),
        "worlds": {score["world"]: score for score in scores},
    }


def in_world(score: dict[str, Any], world: str) -> dict[str, Any]:
    return score.get("worlds", {}).get(world, score)


def mean(values: Iterable[float]) -> float:
    """The mean; 0 without values."""
    values = list(values)
    return float(np.mean(values)) if values else 0.0
