"""A drafted tracker as a `Tracker`: every call goes through the fence, and what it pays is looked up in its own table.

A draft is plain Python with no more than this in it (`asking.py` tells a model the same):

    BOUND = 300                                             the most characters its block ever has
    REWARDS = {"progress": {"subgoal": 1.0}, "error": {"repeated": 0.2}}
    CLAIMS = {"subgoal": 3.0}                               rule -> what it adds up to in every won episode

    start(goal, observation) -> state                       a dict of plain JSON
    update(state, action, observation) -> state
    render(state) -> text                                   the state block
    done(state) -> bool                                     exactly when the task is achieved
    events(before, action, observation, after) -> names     which rules came up on this step

It sees texts and actions alone: no list of actions, and never whether the episode was won.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.hindsight import ERROR, PROGRESS, component_names, counted, summed
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment, Tracker
from tacit.modules.drafting.fence import DraftFailed, DraftHung, Fence, Kind, Limits
from tacit.training.recordings import Known, Recording

LONGEST_BLOCK = 2000
"""characters that a draft may allow itself"""
CALLS_PER_PROCESS = 100_000
"""then another takes its place: a process has only so much processor time, and a server lives for long. No state is in it"""
HIGHEST = 100.0
"""what a rule may be worth"""


@dataclass(frozen=True)
class Terms:
    """What a draft says of itself."""

    bound: int
    progress: Mapping[str, float]
    errors: Mapping[str, float]
    claims: Mapping[str, float]

    @classmethod
    def of(cls, constants: Mapping[str, Any], kind: Kind = "tracker") -> Terms:
        """Refused, with the reason, where a constant is not what it must be. Rewards alone bound no block."""
        bound, rewards, claims = (constants.get(name) for name in ("BOUND", "REWARDS", "CLAIMS"))
        bound = LONGEST_BLOCK if kind == "rewards" else bound
        if not isinstance(bound, int) or isinstance(bound, bool) or not 0 < bound <= LONGEST_BLOCK:
            raise DraftFailed(f"BOUND must be a number of characters, 1 to {LONGEST_BLOCK}, and is {bound!r}")
        if not isinstance(rewards, dict) or set(rewards) - {PROGRESS, ERROR}:
            raise DraftFailed('REWARDS must be {"progress": {rule: amount}, "error": {rule: amount}}')
        progress, errors = _amounts(rewards.get(PROGRESS, {})), _amounts(rewards.get(ERROR, {}))
        if both := set(progress) & set(errors):
            raise DraftFailed(f"REWARDS has the rule {min(both)!r} both as progress and as error")
        claimed = _amounts(claims)
        if not claimed:
            raise DraftFailed("CLAIMS is empty: at least one rule must say what it adds up to in a won episode")
        for rule in claimed:
            if rule not in progress:
                raise DraftFailed(f"CLAIMS names {rule!r}, which is no rule of progress")
        return cls(bound, progress, errors, claimed)

    def signals(self, events: tuple[str, ...]) -> Mapping[str, float]:
        """tacit/core/hindsight.py"""
        return summed(
            counted((e for e in events if e in self.progress), self.progress),
            counted((e for e in events if e in self.errors), self.errors),
        )

    def unknown(self, events: tuple[str, ...]) -> str:
        """The first name that is no rule, or nothing."""
        return next((event for event in events if event not in self.progress and event not in self.errors), "")


def _amounts(table: Any) -> dict[str, float]:
    if not isinstance(table, dict):
        raise DraftFailed(f"a table of rules and amounts is needed, and {table!r} is none")
    for rule, amount in table.items():
        sound = isinstance(amount, int | float) and not isinstance(amount, bool) and math.isfinite(amount)
        if not sound or not 0 <= amount <= HIGHEST:
            raise DraftFailed(f"{rule!r} is worth {amount!r}; amounts are positive numbers up to {HIGHEST:g}, errors too")
    return {str(rule): float(amount) for rule, amount in table.items()}


@dataclass(frozen=True)
class DraftState:
    fields: Mapping[str, Any]
    block: str
    done: bool
    events: tuple[str, ...] = ()
    """of the step that led here"""


class FencedDraft:
    """Texts that are run behind a fence when they are first needed, and the terms they set."""

    kind: Kind = "tracker"

    def __init__(self, sources: tuple[str, ...], name: str, limits: Limits | None = None, world: str = "") -> None:
        """`world`: the name of the world that it is for, where there is one."""
        self.sources, self.name, self.limits, self.world = sources, name, limits or Limits(), world
        self._lock = threading.Lock()
        self._fence: Fence | None = None
        self._terms: Terms | None = None
        self._calls = 0
        written = "\0".join(self.sources).encode()
        self.version = f"{self.name}-{hashlib.sha256(written).hexdigest()[:12]}"
        """changes with every character of the draft: a module has learned to read this one"""

    @property
    def terms(self) -> Terms:
        with self._lock:
            self._open()
            assert self._terms is not None
            return self._terms

    @property
    def components(self) -> tuple[str, ...]:
        return component_names(self.terms.progress, self.terms.errors)

    def known(self, events: Sequence[str]) -> tuple[str, ...]:
        """The events, where all are rules of its table."""
        if stranger := self.terms.unknown(tuple(events)):
            raise TacitError(f"the drafted tracker {self.name} named a rule it has not: {stranger!r}.")
        return tuple(events)

    def close(self) -> None:
        with self._lock:
            if self._fence is not None:
                self._fence.close()
            self._fence = None

    def call(self, name: str, **arguments: Any) -> Any:
        with self._lock:
            if self._fence is not None and self._calls >= CALLS_PER_PROCESS:
                self._fence.close()
                self._fence = None
            fence = self._open()
            self._calls += 1
            try:
                return fence.call(name, **arguments)
            except DraftHung as error:
                self._fence = None  # the next episode begins with another process
                raise DraftHung(f"the drafted tracker {self.name}: {error}.") from error
            except DraftFailed as error:
                raise DraftFailed(f"the drafted tracker {self.name}: {error}.") from error

    def _open(self) -> Fence:
        if self._fence is None:
            fence = Fence(self.sources, self.limits, kind=self.kind)
            try:
                if fence.findings:
                    raise TacitError(f"the drafted tracker {self.name} is refused: {'; '.join(fence.findings)}.")
                self._terms = Terms.of(fence.constants, self.kind)
            except TacitError:
                fence.close()
                raise
            self._fence, self._calls = fence, 0
        return self._fence


class DraftedTracker(FencedDraft):
    @classmethod
    def read(cls, tracker: Path, rewards: Path | None = None, world: str = "") -> DraftedTracker:
        return cls(tuple(read_draft(path) for path in (tracker, rewards) if path is not None), tracker.stem, world=world)

    def start(self, task: Task, observation: Observation) -> DraftState:
        return DraftState(*self.call("start", goal=task.goal, saw=observation.text))

    def update(self, state: DraftState, action: str, transition: Transition) -> DraftState:
        fields, block, done, events = self.call("update", state=state.fields, action=action, saw=transition.observation.text)
        return DraftState(fields, block, done, self.known(events))

    def render(self, state: DraftState) -> str:
        bound = self.terms.bound
        if len(state.block) > bound:
            raise TacitError(
                f"the drafted tracker {self.name} wrote {len(state.block)} characters, more than its BOUND of {bound}."
            )
        return state.block

    def signals(self, before: DraftState, after: DraftState) -> Mapping[str, float]:
        return self.terms.signals(after.events)


def read_draft(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read the draft {path}: {error}.") from error


# Rewards drafted over a tracker that a world has already: the block stays the world's own, what a step pays is the draft's.
#
# As in the paper, whose reward rules were drafted from the schema of the state block (§7.5), a draft sees no more than an agent
# does: the block before and after, the action, and what was then seen. A block is handed over as its fields,
#
#     subgoal: find_object
#     holding: nothing              {"subgoal": "find_object", "holding": "nothing", "block": <all of it>, "came_up": {"took":
# 1}}
#
# and with `came_up`, how often each rule has come up before this step, so that a subgoal can be paid once.

Fields = dict[str, Any]
COUNTS = "came_up"


def fields_of(block: str) -> Fields:
    """The lines of a block that have a name; and the block."""
    lines = (line.partition(": ") for line in block.splitlines())
    return {**{name: value for name, colon, value in lines if colon}, "block": block}


@dataclass(frozen=True)
class RewardedState:
    own: Any
    """the world's tracker's"""
    fields: Fields
    events: tuple[str, ...] = ()
    """of the step that led here"""
    counts: Mapping[str, int] = field(default_factory=dict)


class RewardedTracker(FencedDraft):
    kind: Kind = "rewards"

    def __init__(self, inner: Tracker, source: str, name: str, world: str, block: str, limits: Limits | None = None) -> None:
        """`inner` is the tracker of the world's block of that form."""
        super().__init__((source,), name, limits, world)
        self.inner, self.block = inner, block
        self.version = f"{inner.version}+{self.version}"

    def start(self, task: Task, observation: Observation) -> RewardedState:
        own = self.inner.start(task, observation)
        return RewardedState(own, fields_of(self.inner.render(own)))

    def update(self, state: RewardedState, action: str, transition: Transition) -> RewardedState:
        own = self.inner.update(state.own, action, transition)
        after = fields_of(self.inner.render(own))
        before = {**state.fields, COUNTS: dict(state.counts)}
        events = self.known(self.call("events", state=before, action=action, saw=transition.observation.text, after=after))
        return RewardedState(own, after, events, Counter(state.counts) + Counter(events))

    def render(self, state: RewardedState) -> str:
        return self.inner.render(state.own)

    def signals(self, before: RewardedState, after: RewardedState) -> Mapping[str, float]:
        return self.terms.signals(after.events)


def fields_along(
    world: Environment, tracker: Tracker, episodes: Sequence[Recording], tasks: Sequence[Any]
) -> tuple[dict[Recording, list[Fields]], list[str]]:
    """What the world's tracker makes of every episode, turn by turn; and of which it can make nothing, with the reason."""
    known, found, failed = Known(world, tasks), {}, []
    for episode in episodes:
        try:
            task, course = known.happened(episode)
            state = tracker.start(task, course[0].observation)
            blocks = [tracker.render(state)]
            for _, action, transition, _ in course:
                state = tracker.update(state, action, transition)
                blocks.append(tracker.render(state))
            found[episode] = [fields_of(block) for block in blocks]
        except Exception as error:  # a tracker meets texts that its world never wrote
            failed.append(f"line {episode.line}: {type(error).__name__}: {error}")
    known.close()
    return found, failed
