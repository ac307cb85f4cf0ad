"""Rewards drafted over a tracker that a world has already: the block stays the world's own, what a step pays is the draft's.

As in the paper, whose reward rules were drafted from the schema of the state block (§7.5), a draft sees no more than an agent
does: the block before and after, the action, and what was then seen. A block is handed over as its fields,

    subgoal: find_object
    holding: nothing              {"subgoal": "find_object", "holding": "nothing", "block": <all of it>, "came_up": {"took": 1}}

and with `came_up`, how often each rule has come up before this step, so that a subgoal can be paid once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment, Tracker
from tacit.modules.drafting.fence import Kind, Limits
from tacit.modules.drafting.tracker import FencedDraft
from tacit.training.recordings import Known, Recording

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
