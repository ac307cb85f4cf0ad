"""A draft taken along recorded episodes, turn by turn, behind its fence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.modules.drafting.fence import DraftFailed, Fence, Limits
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


def follow_all(sources: Sequence[str], episodes: Sequence[Recording], limits: Limits | None = None) -> list[Course | None]:
    """Every episode, or None for those that were not looked at any more."""
    fence, hung = Fence(sources, limits), 0
    courses: list[Course | None] = []
    try:
        for episode in episodes:
            if hung >= MOST_HUNG:
                courses.append(None)
                continue
            courses.append(follow(fence, episode.goal, episode.seen, episode.actions))
            if not fence.alive:
                hung += 1
                fence = Fence(sources, limits)
    finally:
        fence.close()
    return courses
