"""A draft taken along recorded episodes, turn by turn, behind its fence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.modules.drafting.fence import DraftFailed, Fence, Limits
from tacit.modules.drafting.rewarded import COUNTS, Fields
from tacit.training.recordings import Recording

MOST_HUNG = 3
"""calls without an end after which a draft is given up"""
MOST_STATE = 100_000
"""characters of a state"""


@dataclass
class Course:
    """One episode as the draft followed it."""

    blocks: list[str] = field(default_factory=list)
    done: list[bool] = field(default_factory=list)
    events: list[list[str]] = field(default_factory=list)
    state: Any = None
    broke: str = ""
    """why it goes no further"""


def follow(fence: Fence, goal: str, seen: Sequence[str], actions: Sequence[str]) -> Course:
    course = Course()
    try:
        course.state, block, done = fence.call("start", goal=goal, saw=seen[0])
        course.blocks, course.done = [block], [done]
        for turn, action in enumerate(actions, start=1):
            saw = seen[min(turn, len(seen) - 1)]
            course.state, block, done, events = fence.call("update", state=course.state, action=action, saw=saw)
            course.blocks.append(block)
            course.done.append(done)
            course.events.append(events)
            if len(str(course.state)) > MOST_STATE:
                course.broke = f"the state has more than {MOST_STATE} characters"
                return course
    except DraftFailed as error:
        course.broke = str(error)
    return course


def follow_rewards(fence: Fence, told: Sequence[Fields], seen: Sequence[str], actions: Sequence[str]) -> Course:
    """Rewards alone, over the blocks that a world's own tracker wrote: `told`, one more than there are actions."""
    course, counts = Course(), Counter[str]()
    try:
        for turn, action in enumerate(actions, start=1):
            before, saw = {**told[turn - 1], COUNTS: dict(counts)}, seen[min(turn, len(seen) - 1)]
            events = fence.call("events", state=before, action=action, saw=saw, after=told[turn])
            course.events.append(events)
            counts.update(events)
    except DraftFailed as error:
        course.broke = str(error)
    return course


@dataclass(frozen=True)
class Draft:
    """What is examined: texts that stand below each other, and the blocks they are for where those are a world's own."""

    sources: Sequence[str]
    limits: Limits | None = None
    blocks: Mapping[Recording, Sequence[Fields]] | None = None
    """None: the draft writes its own"""

    def fence(self, seed: int = 0) -> Fence:
        return Fence(self.sources, self.limits, seed, kind="tracker" if self.blocks is None else "rewards")

    def follow(self, fence: Fence, episode: Recording) -> Course:
        if self.blocks is None:
            return follow(fence, episode.goal, episode.seen, episode.actions)
        return follow_rewards(fence, self.blocks[episode], episode.seen, episode.actions)

    def follow_all(self, episodes: Sequence[Recording]) -> list[Course | None]:
        """Every episode, or None for those that were not looked at any more."""
        fence, hung = self.fence(), 0
        courses: list[Course | None] = []
        try:
            for episode in episodes:
                if hung >= MOST_HUNG:
                    courses.append(None)
                    continue
                courses.append(self.follow(fence, episode))
                if not fence.alive:
                    hung += 1
                    fence = self.fence()
        finally:
            fence.close()
        return courses
