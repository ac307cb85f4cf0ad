"""A drafted tracker as a `Tracker`. Every call goes through the sandbox; rewards come from the draft's own table.

A draft is a Python file with these definitions (`draft.py` has the prompt for the model):

    BOUND = 300                                             maximum length of the state block, in characters
    REWARDS = {"progress": {"subgoal": 1.0}, "error": {"repeated": 0.2}}
    CLAIMS = {"subgoal": 3.0}                               rule -> its total in every won episode

    start(goal, observation) -> state                       a dict of plain JSON
    update(state, action, observation) -> state
    render(state) -> text                                   the state block
    done(state) -> bool                                     exactly when the task is achieved
    events(before, action, observation, after) -> names     rules that apply to this step

It sees only texts and actions: no list of valid actions, and never whether the episode was won.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.hindsight import ERROR, PROGRESS, component_names, score_events, sum_signals
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment, Tracker
from tacit.modules.drafting.packaged import PackagedDraft
from tacit.modules.drafting.sandbox import DraftError, DraftTimeout, Kind, Limits, Sandbox
from tacit.training.imitation import Recording, TaskReplayer

MAX_BOUND = 2000  # largest BOUND
CALLS_PER_PROCESS = 100_000  # then a new process starts, since its CPU time is limited; the process holds no state
MAX_REWARD = 100.0  # largest reward of a rule


@dataclass(frozen=True)
class DraftRules:
    bound: int
    progress: Mapping[str, float]
    errors: Mapping[str, float]
    claims: Mapping[str, float]

    @classmethod
    def of(cls, constants: Mapping[str, Any], kind: Kind = "tracker") -> DraftRules:
        """Check and convert the constants. A draft with only rewards needs no BOUND."""
        bound, rewards, claims = (constants.get(name) for name in ("BOUND", "REWARDS", "CLAIMS"))
        bound = MAX_BOUND if kind == "rewards" else bound
        if not isinstance(bound, int) or isinstance(bound, bool) or not 0 < bound <= MAX_BOUND:
            raise DraftError(f"BOUND must be a number of characters, 1 to {MAX_BOUND}, and is {bound!r}")
        if not isinstance(rewards, dict) or set(rewards) - {PROGRESS, ERROR}:
            raise DraftError('REWARDS must be {"progress": {rule: amount}, "error": {rule: amount}}')
        progress, errors = _amounts(rewards.get(PROGRESS, {})), _amounts(rewards.get(ERROR, {}))
        if both := set(progress) & set(errors):
            raise DraftError(f"REWARDS has the rule {min(both)!r} both as progress and as error")
        claimed = _amounts(claims)
        if not claimed:
            raise DraftError("CLAIMS is empty: at least one rule must say what it adds up to in a won episode")
        for rule in claimed:
            if rule not in progress:
                raise DraftError(f"CLAIMS names {rule!r}, which is no rule of progress")
        return cls(bound, progress, errors, claimed)

    def unknown(self, events: tuple[str, ...]) -> str:
        """The first event that is not a rule, or an empty string."""
        return next((event for event in events if event not in self.progress and event not in self.errors), "")


def _amounts(table: Any) -> dict[str, float]:
    if not isinstance(table, dict):
        raise DraftError(f"a table of rules and amounts is needed, and {table!r} is none")
    for rule, amount in table.items():
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool) and math.isfinite(amount)
        if not is_number or not 0 <= amount <= MAX_REWARD:
            raise DraftError(f"{rule!r} is worth {amount!r}; amounts are positive numbers up to {MAX_REWARD:g}, errors too")
    return {str(rule): float(amount) for rule, amount in table.items()}


@dataclass(frozen=True)
class DraftState:
    fields: Mapping[str, Any]
    block: str
    done: bool
    events: tuple[str, ...] = ()  # of the step that led here


class SandboxedDraft:
    """A draft that starts its sandbox at the first call."""

    kind: Kind = "tracker"

    def __init__(self, draft: PackagedDraft, limits: Limits | None = None) -> None:
        self.draft, self.limits = draft, limits or Limits()
        self._lock = threading.RLock()
        self._sandbox: Sandbox | None = None
        self._rules: DraftRules | None = None
        self._calls = 0
        self.version = f"{draft.name}-{hashlib.sha256(draft.text.encode()).hexdigest()[:12]}"  # changes with every character

    @property
    def rules(self) -> DraftRules:
        with self._lock:
            self._open()
            assert self._rules is not None
            return self._rules

    @property
    def components(self) -> tuple[str, ...]:
        return component_names(self.rules.progress, self.rules.errors)

    def signals(self, before: Any, after: DraftState | RewardedState) -> Mapping[str, float]:
        """Reward components of a step (`core/hindsight.py`)."""
        tables = (self.rules.progress, self.rules.errors)
        return sum_signals(*(score_events((e for e in after.events if e in table), table) for table in tables))

    def check_events(self, events: Sequence[str]) -> tuple[str, ...]:
        if name := self.rules.unknown(tuple(events)):
            raise TacitError(f"the drafted tracker {self.draft.name} returned an event that is not in its REWARDS: {name!r}.")
        return tuple(events)

    def close(self) -> None:
        with self._lock:
            if self._sandbox is not None:
                self._sandbox.close()
            self._sandbox, self._calls = None, 0

    def call(self, name: str, **arguments: Any) -> Any:
        with self._lock:
            if self._calls >= CALLS_PER_PROCESS:
                self.close()
            sandbox = self._open()
            self._calls += 1
            try:
                return sandbox.call(name, **arguments)
            except DraftError as error:
                if isinstance(error, DraftTimeout):
                    self._sandbox = None  # the next call starts a new process
                raise type(error)(f"the drafted tracker {self.draft.name}: {error}.") from error

    def _open(self) -> Sandbox:
        if self._sandbox is None:
            sandbox = Sandbox(self.draft.text, self.limits, kind=self.kind)
            try:
                if sandbox.findings:
                    raise TacitError(f"the drafted tracker {self.draft.name} is refused: {'; '.join(sandbox.findings)}.")
                self._rules = DraftRules.of(sandbox.constants, self.kind)
            except TacitError:
                sandbox.close()
                raise
            self._sandbox = sandbox
        return self._sandbox


class DraftedTracker(SandboxedDraft):
    def start(self, task: Task, observation: Observation) -> DraftState:
        return DraftState(*self.call("start", goal=task.goal, saw=observation.text))

    def update(self, state: DraftState, action: str, transition: Transition) -> DraftState:
        fields, block, done, events = self.call("update", state=state.fields, action=action, saw=transition.observation.text)
        return DraftState(fields, block, done, self.check_events(events))

    def render(self, state: DraftState) -> str:
        bound = self.rules.bound
        if len(state.block) > bound:
            raise TacitError(
                f"the drafted tracker {self.draft.name} wrote {len(state.block)} characters, more than its BOUND of {bound}."
            )
        return state.block


# Drafted rewards for the world's own tracker.
#
# As in the paper, where reward rules were drafted from the schema of the state block (§7.5), a draft sees only what an agent
# sees: the state block before and after, the action, and the observation. The block
#
#     subgoal: find_object
#     holding: nothing
#
# is passed as {"subgoal": "find_object", "holding": "nothing", "block": <all of it>, "came_up": {"took": 1}}. `came_up` counts
# earlier events, so that a subgoal can be rewarded once.

Fields = dict[str, Any]
COUNTS = "came_up"


def parse_block(block: str) -> Fields:
    """The block's `name: value` lines, and the block itself."""
    lines = (line.partition(": ") for line in block.splitlines())
    return {**{name: value for name, colon, value in lines if colon}, "block": block}


@dataclass(frozen=True)
class RewardedState:
    inner: Any  # state of the world's tracker
    fields: Fields
    events: tuple[str, ...] = ()  # of the step that led here
    counts: Mapping[str, int] = field(default_factory=dict)


class RewardedTracker(SandboxedDraft):
    kind: Kind = "rewards"

    def __init__(self, inner: Tracker, draft: PackagedDraft, limits: Limits | None = None) -> None:
        """`inner` is the world's tracker for the form `draft.block`."""
        super().__init__(draft, limits)
        self.inner = inner
        self.version = f"{inner.version}+{self.version}"

    def start(self, task: Task, observation: Observation) -> RewardedState:
        inner = self.inner.start(task, observation)
        return RewardedState(inner, parse_block(self.inner.render(inner)))

    def update(self, state: RewardedState, action: str, transition: Transition) -> RewardedState:
        inner = self.inner.update(state.inner, action, transition)
        after = parse_block(self.inner.render(inner))
        before = {**state.fields, COUNTS: dict(state.counts)}
        events = self.check_events(
            self.call("events", state=before, action=action, saw=transition.observation.text, after=after)
        )
        return RewardedState(inner, after, events, Counter(state.counts) + Counter(events))

    def render(self, state: RewardedState) -> str:
        return self.inner.render(state.inner)


def render_fields(
    world: Environment, tracker: Tracker, episodes: Sequence[Recording], tasks: Sequence[Any]
) -> tuple[dict[Recording, list[Fields]], list[str]]:
    """Run the world's tracker over recorded episodes. Return its fields per turn, and messages for episodes it cannot read."""
    lookup, blocks_by_episode, unreadable = TaskReplayer(world, tasks), {}, []
    for episode in episodes:
        try:
            task, interactions, _ = lookup.replay(episode, needs_goal=False)
            state = tracker.start(task, interactions[0].observation)
            blocks = [tracker.render(state)]
            for _, action, transition, _ in interactions:
                state = tracker.update(state, action, transition)
                blocks.append(tracker.render(state))
            blocks_by_episode[episode] = [parse_block(block) for block in blocks]
        except Exception as error:  # a log may contain texts that the world never writes
            unreadable.append(f"line {episode.line}: {type(error).__name__}: {error}")
    lookup.close()
    return blocks_by_episode, unreadable
