"""How a policy behaves beside how often it succeeds (ReuseRL Tables 2 and 4–9): pure functions over trajectories."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tacit.core.types import Observation, Step, Trajectory
from tacit.core.world import Alphabet

Places = Callable[[str, Observation], str]
"""(action, what was then seen) -> the place it led to, as a world's `Environment.place` says"""


@dataclass(frozen=True)
class Behaviour:
    """Shares and means over episodes whose world did not break; None where there is nothing to take them over."""

    episodes: int
    successes: int
    success_length: float | None
    """mean steps of a success"""
    failure_length: float | None
    """mean steps of a failure"""
    invalid: float | None
    """share of the steps of successes that did not parse or that the world refused ("Nothing happens")"""
    repeats: float | None
    """share of the steps of successes whose action had been taken before in the episode; what does not parse is not one"""
    unparsed: float | None = None
    """share of the steps of successes that did not parse"""
    refused: float | None = None
    """share of the steps of successes that parsed and that the world refused"""
    revisits: float | None = None
    """mean number of times a success goes where it has already been; 0 in worlds without places"""
    all_repeats: float | None = None
    """share of all steps, of failures too, whose action had been taken before in the episode"""
    failures: Mapping[str, float] = field(default_factory=dict)
    """share of the failures by label: `burned`, `stuck`, `timeout`, …"""
    failure_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """family -> label -> how many failures"""
    per_success: Mapping[str, float] = field(default_factory=dict)
    """mean number of skills of each kind in a success"""
    without: Mapping[str, float] = field(default_factory=dict)
    """share of the successes without any skill of the kind: `RESET` gives the straight-through solutions"""
    operators: Mapping[str, float] = field(default_factory=dict)
    """share of each operator among the operations of successes"""
    operators_per_success: float | None = None
    """mean number of different operators in a success; None in worlds without any"""
    closings: Mapping[str, int] = field(default_factory=dict)
    """how many successes end with a skill of each kind"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def behaviour(
    played: Sequence[Trajectory],
    alphabet: Alphabet | None = None,
    failure: Callable[[Trajectory], str] | None = None,
    place: Places | None = None,
) -> Behaviour:
    """Statistics of the episodes; those of skills need the world's alphabet, failures are named by its own labels, and where an
    action led it knows itself."""
    sound = [t for t in played if not t.stop.crashed]
    won, lost = [t for t in sound if t.success], [t for t in sound if not t.success]
    steps = [step for t in won for step in t.steps]
    skills = [[kind(skill) for skill in alphabet(t)] for t in won] if alphabet else []
    kinds = Counter(skill for sequence in skills for skill in sequence)
    operators = alphabet.operators if alphabet else ()
    operations = {name: count for name, count in kinds.items() if name in operators}
    label = failure or (lambda t: str(t.stop))
    labels = [(t.task.family, label(t)) for t in lost]
    return Behaviour(
        episodes=len(sound),
        successes=len(won),
        success_length=_mean(len(t) for t in won),
        failure_length=_mean(len(t) for t in lost),
        invalid=_mean(not (step.valid and step.effective) for step in steps),
        repeats=_mean(again for t in won for again in repeated(t)),
        unparsed=_mean(not step.valid for step in steps),
        refused=_mean(step.valid and not step.effective for step in steps),
        revisits=_mean(revisits(t, place) for t in won),
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
        closings=dict(sorted(Counter(s[-1] for s in skills if s).items())),
    )


IN_WORDS = {"timeout": "out of steps", "step_limit": "out of steps", "failure": "ended by the world"}


def ending_in_words(label: str) -> str:
    """How people read it; `timeout`, which the papers have in their tables, was no matter of time."""
    return IN_WORDS.get(label, label.replace("_", " "))


def repeated(trajectory: Trajectory) -> list[bool]:
    """For each step, whether its action had been taken before in the episode, well written or not. A turn that did not parse
    counts as unparsed, and not as a repetition besides."""
    seen: set[str] = set()
    again = []
    for step in trajectory.steps:
        again.append(step.valid and step.action in seen)
        if step.valid or step.effective:
            seen.add(step.action)
    return again


def revisits(trajectory: Trajectory, place: Places | None) -> int:
    """How often the episode goes where it has already been. Only movements that the world carried out count."""
    steps = trajectory.steps
    if place is None or not steps:
        return 0
    been, again = {place("", steps[0].observation)}, 0
    for step, after in zip(steps, [*(s.observation for s in steps[1:]), trajectory.final], strict=True):
        there = place(step.action, after) if step.effective else ""
        if there:
            again += there in been
            been.add(there)
    return again


@dataclass(frozen=True)
class ThoughtAndAction:
    """Whether what is thought of is done (ReuseRL Table 5)."""

    mentions: float | None
    """share of steps whose thought mentions it"""
    acted: float | None
    """share of those steps whose action does it"""
    games: float | None
    """share of episodes with at least one such action"""


def thought_and_action(played: Sequence[Trajectory], thought: str, action: str) -> ThoughtAndAction:
    """`thought` and `action` are regular expressions: the first is looked for in what was written before the action, the second
    must match the whole action. Table 5: `r"cook|roast|fry|grill|stove|oven"` and `r"cook .*"`, over the games it names."""
    mention, does = re.compile(thought, re.IGNORECASE), re.compile(action, re.IGNORECASE)
    steps = [step for t in played for step in t.steps]
    thinking = [step for step in steps if mention.search(_thought(step))]
    return ThoughtAndAction(
        mentions=_mean(mention.search(_thought(step)) is not None for step in steps),
        acted=_mean(does.fullmatch(step.action) is not None for step in thinking),
        games=_mean(any(does.fullmatch(step.action) for step in t.steps) for t in played),
    )


def _thought(step: Step) -> str:
    return step.completion.text.partition("<action>")[0] if "<action>" in step.completion.text else ""


def kind(skill: str) -> str:
    """What a skill is without its details: `OP_ADD-LARGE-SMALL` is an OP_ADD."""
    return skill.partition("-")[0]


def _kinds(alphabet: Alphabet | None) -> set[str]:
    return {kind(skill) for skill in alphabet.skills} if alphabet else set()


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: counts[name] / total for name in sorted(counts)}


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None
