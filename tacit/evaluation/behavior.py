"""Behavior statistics besides success (ReuseRL Tables 2 and 4–9): pure functions over trajectories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tacit.core.types import Observation, Trajectory
from tacit.core.world import Alphabet, Environment

SCORE_PART = "score."
Places = Callable[[str, Observation], str]  # (action, next observation) -> the place reached, as `Environment.place`


@dataclass(frozen=True)
class Behavior:
    """Shares and means over episodes without crashes; None if there is nothing to average."""

    episodes: int
    successes: int
    success_length: float | None  # mean steps of a success
    failure_length: float | None  # mean steps of a failure
    invalid: float | None  # share of the steps of successes that did not parse or were refused ("Nothing happens")
    repeats: float | None  # share of the steps of successes that repeat an earlier action; unparsed steps do not count
    unparsed: float | None = None  # share of the steps of successes that did not parse
    refused: float | None = None  # share of the steps of successes that parsed and that the world refused
    revisits: float | None = None  # mean number of returns to a visited place per success; None in worlds without places
    all_repeats: float | None = None  # share of all steps, including failures, that repeat an earlier action
    failures: Mapping[str, float] = field(default_factory=dict)  # share of failures by label: `burned`, `stuck`, `timeout`, …
    failure_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # family -> label -> number of failures
    per_success: Mapping[str, float] = field(default_factory=dict)  # mean number of skills of each kind per success
    without: Mapping[str, float] = field(default_factory=dict)
    """share of successes without a skill of the kind; for `RESET`, the straight solutions"""
    operators: Mapping[str, float] = field(default_factory=dict)  # share of each operator in the operations of successes
    operators_per_success: float | None = None
    """mean number of distinct operators per success; None in worlds without operators"""
    closings: Mapping[str, int] = field(default_factory=dict)  # number of successes that end with each kind of skill

    score_parts: Mapping[str, float] = field(default_factory=dict)
    """mean of each part of the score, where the world reports them (signals `score.NAME` of the last step)"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def behavior(
    played: Sequence[Trajectory],
    alphabet: Alphabet | None = None,
    failure: Callable[[Trajectory], str] | None = None,
    place: Places | None = None,
) -> Behavior:
    """Statistics of episodes. Skill statistics need the world's alphabet; failure labels and places come from the world."""
    sound = [t for t in played if not t.stop.crashed]
    won, lost = [t for t in sound if t.success], [t for t in sound if not t.success]
    steps = [step for t in won for step in t.steps]
    skills = [[kind(skill) for skill in alphabet(t)] for t in won] if alphabet else []
    kinds = Counter(skill for sequence in skills for skill in sequence)
    operators = alphabet.operators if alphabet else ()
    operations = {name: count for name, count in kinds.items() if name in operators}
    label = failure or (lambda t: str(t.stop))
    labels = [(t.task.family, label(t)) for t in lost]
    return Behavior(
        episodes=len(sound),
        successes=len(won),
        success_length=_mean(len(t) for t in won),
        failure_length=_mean(len(t) for t in lost),
        invalid=_mean(not (step.valid and step.effective) for step in steps),
        repeats=_mean(again for t in won for again in repeated(t)),
        unparsed=_mean(not step.valid for step in steps),
        refused=_mean(step.valid and not step.effective for step in steps),
        revisits=_mean(revisits(t, place) for t in won if place),
        all_repeats=_mean(again for t in sound for again in repeated(t)),
        failures=_shares(Counter(name for _, name in labels)),
        failure_counts={
            family: dict(sorted(Counter(name for of, name in labels if of == family).items()))
            for family in sorted({family for family, _ in labels})
        },
        per_success={name: count / len(skills) for name, count in sorted(kinds.items())},
        without={name: sum(name not in s for s in skills) / len(skills) for name in sorted(_kinds(alphabet))} if skills else {},
        operators=_shares(operations),
        operators_per_success=_mean(len({k for k in s if k in operators}) for s in skills) if operations else None,
        score_parts={
            name.removeprefix(SCORE_PART): sum(t.steps[-1].signals.get(name, 0.0) for t in sound if t.steps) / len(sound)
            for name in sorted({name for t in sound for s in t.steps[-1:] for name in s.signals if name.startswith(SCORE_PART)})
        },
        closings=dict(sorted(Counter(s[-1] for s in skills if s).items())),
    )


def describe_episode(trajectory: Trajectory, world: Environment) -> dict[str, Any]:
    """The world's labels of an episode, recorded with it so that reports need no world: its name and, for a failure, its label;
    for a success, the kinds of its skills, all kinds of the alphabet, and the number of returns to places."""
    description: dict[str, Any] = {"world": world.name}
    try:
        if not trajectory.success and not trajectory.stop.crashed:
            description["failure"] = world.failure(trajectory) if world.failure else str(trajectory.stop)
        elif trajectory.success:
            description["revisits"] = revisits(trajectory, world.place) if world.place else None
            if alphabet := world.alphabet:
                description["skills"] = [kind(skill) for skill in alphabet(trajectory)]
                description |= {"kinds": sorted(_kinds(alphabet)), "operators": list(alphabet.operators)}
    except Exception:  # a world may be the user's own code; its errors must not stop the run
        return {"world": world.name}
    return description


def behavior_from_labels(played: Sequence[Trajectory], labels: Sequence[Mapping[str, Any]]) -> Behavior | None:
    """`behavior` from the labels of `describe_episode`; None if any episode has no labels."""
    by_episode = {id(t): own for t, own in zip(played, labels, strict=True)}
    sound = [t for t in played if not t.stop.crashed]
    for own, success in ((by_episode[id(t)], t.success) for t in sound):
        if not (isinstance(own.get("revisits", ""), int | None) if success else own.get("failure")):
            return None
    won = [by_episode[id(t)] for t in sound if t.success]
    skills = {id(t): list(map(str, by_episode[id(t)].get("skills", ()))) for t in sound}
    kinds, operators = ({str(name) for own in won for name in own.get(key, ())} for key in ("kinds", "operators"))
    kinds |= {name for own in skills.values() for name in own}
    alphabet = Alphabet(tuple(sorted(kinds)), lambda t: skills[id(t)], tuple(operators)) if kinds else None
    result = behavior(played, alphabet, lambda t: str(by_episode[id(t)]["failure"]))
    return replace(result, revisits=_mean(own["revisits"] for own in won if own["revisits"] is not None))


IN_WORDS = {"timeout": "out of steps", "step_limit": "out of steps", "failure": "ended by the world"}


def describe_ending(label: str) -> str:
    """A label in words. `timeout` is the papers' term for the step limit."""
    return IN_WORDS.get(label, label.replace("_", " "))


def repeated(trajectory: Trajectory) -> list[bool]:
    """For each step, whether its action was taken before in the episode. Unparsed turns do not count."""
    seen: set[str] = set()
    again = []
    for step in trajectory.steps:
        again.append(step.valid and step.action in seen)
        if step.valid or step.effective:
            seen.add(step.action)
    return again


def revisits(trajectory: Trajectory, place: Places | None) -> int:
    """Number of returns to a visited place; only executed movements count."""
    steps = trajectory.steps
    if place is None or not steps:
        return 0
    visited, count = {place("", steps[0].observation)}, 0
    for step, after in zip(steps, trajectory.observations[1:], strict=True):
        reached = place(step.action, after) if step.effective else ""
        if reached:
            count += reached in visited
            visited.add(reached)
    return count


def kind(skill: str) -> str:
    """A skill without its details: `OP_ADD-LARGE-SMALL` is an OP_ADD."""
    return skill.partition("-")[0]


def _kinds(alphabet: Alphabet | None) -> set[str]:
    return {kind(skill) for skill in alphabet.skills} if alphabet else set()


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: counts[name] / total for name in sorted(counts)}


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None
