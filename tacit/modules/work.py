"""Work of which there are only logs: a world that can be told and tracked, and not acted in.

    WORK                                      no tracker: an agent reads the turns before
    work_of("mugs_tracker.py", __file__)      with a drafted tracker, in a file beside the one that says so
    work_of(…, world="alfworld")              a world there is, in which the draft is one more form of the state block
    work_of(rewards=…, world="alfworld")      the world's own block, and drafted rewards

A tracker's file is never imported: it is run behind a fence (`drafting/fence.py`), in training and in play.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.core.wording import Brief, Numbered
from tacit.core.world import FULL_BLOCK, Environment, World
from tacit.environments import get_environment
from tacit.modules.drafting.rewarded import RewardedTracker
from tacit.modules.drafting.tracker import DraftedTracker, read_draft

NAME = "tacit.modules.work:WORK"
"""as `--world` takes it"""
DRAFTED = "drafted"
"""the form of the state block that a draft writes in a world with a tracker of its own"""
MAX_STEPS = 50


class FullWording(Numbered):
    asked = "Your task: "


class TerseWording(Brief):
    ends = " >"

    def task(self, task: Task) -> str:
        return task.goal


def _nowhere() -> World:
    raise TacitError(
        "there is no world to act in: these modules were taught from logs alone. Play them from a program of yours (Agent) or "
        "serve them (tacit serve), and tell them what they see."
    )


def _no_tasks(split: str, count: int, seed: int) -> Sequence[Task]:
    return ()


WORK = Environment(
    name="work",
    summary="work known from logs alone",
    max_steps=MAX_STEPS,
    make=_nowhere,
    tasks=_no_tasks,
    splits=(),
    families=(),
    wordings={"full": FullWording(), "terse": TerseWording()},
    playable=False,
)


def work_of(tracker: str = "", beside: str = "", world: str = "", rewards: str = "", block: str = FULL_BLOCK) -> Environment:
    """`tracker`, and `rewards` where they were drafted apart, are files beside the file `beside`. Without a tracker the rewards
    are for the world's own, of the form `block`."""
    place = Path(beside).parent
    if not tracker:
        source, name = read_draft(place / rewards), Path(rewards).stem
        return with_draft(RewardedTracker(get_environment(world).tracker_of(block), source, name, world, block))
    return with_draft(DraftedTracker.read(place / tracker, place / rewards if rewards else None, world))


def with_draft(drafted: DraftedTracker | RewardedTracker) -> Environment:
    """The world that a draft is for, with it."""
    if not drafted.world:
        return replace(WORK, tracker=drafted)
    known = get_environment(drafted.world)
    return replace(known, forms={**known.forms, DRAFTED: drafted}) if known.tracker else replace(known, tracker=drafted)
