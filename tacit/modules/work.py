"""Worlds known only from logs. They have prompts and trackers but no environment to act in.

    WORK                                      no tracker; the agent reads previous turns
    work_of("mugs_tracker.py", __file__)      with a drafted tracker from a file next to this one
    work_of(…, world="alfworld")              an existing world, with the draft as another form of its state block
    work_of(rewards=…, world="alfworld")      an existing world and state block, with drafted rewards

A draft is never imported; it runs in a sandbox (`drafting/sandbox.py`). Manifests and draft files contain this module's name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.core.world import FULL_BLOCK, Brief, Environment, Numbered, Tracker, World
from tacit.modules.drafting.packaged import PackagedDraft
from tacit.modules.drafting.tracker import DraftedTracker, RewardedTracker
from tacit.worlds import get_environment

NAME = "tacit.modules.work:WORK"  # name for `--world`
DRAFTED = "drafted"  # form of the drafted state block in a world that has its own tracker
MAX_STEPS = 50


class FullWording(Numbered):
    goal_prefix = "Your task: "


class TerseWording(Brief):
    ends = " >"

    def task(self, task: Task) -> str:
        return task.goal


def _make_no_world() -> World:
    raise TacitError(
        "there is no world to act in: these modules were trained from logs alone. Use them in your own program (Agent) or "
        "serve them (tacit serve)."
    )


WORK = Environment(
    name="work",
    summary="work known from logs alone",
    max_steps=MAX_STEPS,
    make=_make_no_world,
    tasks=lambda split, count, seed: (),
    splits=(),
    families=(),
    wordings={"full": FullWording(), "terse": TerseWording()},
    playable=False,
)


def work_of(tracker: str = "", beside: str = "", world: str = "", rewards: str = "", block: str = FULL_BLOCK) -> Environment:
    """A world with a draft. Draft files written by `tacit modules draft-tracker` and `draft-rewards` call this. `tracker` or
    `rewards` is a file in the directory of the file `beside`. Rewards are for the world's own tracker of the form `block`."""
    file = Path(beside).parent / (tracker or rewards)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read the draft {file}: {error}.") from error
    return open_draft(PackagedDraft("tracker" if tracker else "rewards", file.stem, text, world, "" if tracker else block))


def open_draft(draft: PackagedDraft) -> Environment:
    """The draft's world, with the draft added."""
    is_tracker = draft.kind == "tracker"
    base = WORK if is_tracker and not draft.world else get_environment(draft.world)
    drafted: Tracker = DraftedTracker(draft) if is_tracker else RewardedTracker(base.tracker_of(draft.block), draft)
    return replace(base, forms={**base.forms, DRAFTED: drafted}) if base.tracker else replace(base, tracker=drafted)
