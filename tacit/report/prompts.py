"""Prompts as they were read, in their sections.

Runs record what was seen and written, not the prompts: with histories these would be most of the disk. So the recorded actions
are played again in the world, and the run's context writes the prompts anew. Every observation is held against the record: if
one differs, nothing is claimed.
"""

from __future__ import annotations

from tacit.core.method import Context
from tacit.core.types import PLAIN, Prompt
from tacit.report.known import Scene
from tacit.report.run_files import Record
from tacit.rollout.retelling import Differs, repeating, told

Sections = list[tuple[str, str]]
"""(name, text) in the order they were read"""
LOST = "The prompts were not recorded, and"


def prompts_of(record: Record, scene: Scene | None) -> tuple[list[Sections], str]:
    """One for each turn, or none at all; and where they are from, or why there are none."""
    if scene is None:
        return [], f"{LOST} the world is not here to write them anew."
    if scene.context is None:
        return [], "An expert acts on what it sees, and reads no prompt."
    if record.get("condition", PLAIN.name) != PLAIN.name:
        return [], f"{LOST} the note that was in them is not on record."
    try:
        return _played_again(record, scene, scene.context)
    except Exception as error:  # worlds and contexts may be anybody's
        return [], f"{LOST} playing the actions again failed: {type(error).__name__}: {error}"


def sections(prompt: Prompt) -> Sections:
    history = prompt.separator.join(prompt.history)
    named = [("task", prompt.task), ("note", prompt.task_note), ("history", history), ("now", prompt.now)]
    return [(name, text) for name, text in [*named, ("note", prompt.step_note), ("request", prompt.request)] if text]


def _played_again(record: Record, scene: Scene, context: Context) -> tuple[list[Sections], str]:
    world = scene.world.make()
    actions, seen = ([turn[name] for turn in record["turns"]] for name in ("action", "saw"))
    try:
        wrote = [None if turn.get("valid", True) else turn.get("wrote") for turn in record["turns"]]
        turns = told(context, scene.task, repeating(world, scene.task, actions, seen, wrote))
        written = [sections(turn.prompt) for turn in turns]
    except Differs as difference:
        return [], f"{LOST} the world now answers differently at step {difference.turn} than it did then."
    finally:
        world.close()
    return written, "written anew by playing the recorded actions; every observation is the recorded one"
