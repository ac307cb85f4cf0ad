"""Prompts as they were read, in their sections.

Runs record what was seen and written, not the prompts: with histories these would be most of the disk. So where a turn has no
prompt on record, the recorded actions are played again in the world and the run's context writes the prompts anew. Every
observation is held against the record: if one differs, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.core.types import PLAIN, Prompt
from tacit.report.known import Known
from tacit.report.run_files import Record

Sections = list[tuple[str, str]]
"""(name, text) in the order they were read"""


@dataclass(frozen=True)
class Prompts:
    turns: list[Sections]
    """one per turn, or none at all"""
    source: str
    """where they are from, or why there are none"""


def prompts_of(record: Record, known: Known) -> Prompts:
    if record["turns"] and all("prompt" in turn for turn in record["turns"]):
        return Prompts([_recorded(turn["prompt"]) for turn in record["turns"]], "as recorded")
    task = known.tasks.get(record["task"])
    if known.world is None or known.context is None or task is None:
        return Prompts([], "The prompts were not recorded, and the world is not here to write them anew.")
    if record.get("condition", PLAIN.name) != PLAIN.name:
        return Prompts([], "The prompts were not recorded, and the note that was in them is not on record.")
    try:
        return _played_again(record, known)
    except Exception as error:  # worlds and contexts may be anybody's
        return Prompts(
            [], f"The prompts were not recorded, and playing the actions again failed: {type(error).__name__}: {error}"
        )


def sections(prompt: Prompt) -> Sections:
    named = [
        ("task", prompt.task),
        ("note", prompt.task_note),
        ("history", prompt.separator.join(prompt.history)),
        ("now", prompt.now),
        ("note", prompt.step_note),
        ("request", prompt.request),
    ]
    return [(name, text) for name, text in named if text]


def _recorded(prompt: object) -> Sections:
    if isinstance(prompt, Mapping):
        return [(str(name), "\n".join(text) if isinstance(text, list) else str(text)) for name, text in prompt.items() if text]
    return [("prompt", str(prompt))]


def _played_again(record: Record, known: Known) -> Prompts:
    assert known.world is not None and known.context is not None
    task = known.tasks[record["task"]]
    world, reader = known.world.make(), known.context.begin(task, PLAIN)
    try:
        observation, turns = world.reset(task), []
        for number, turn in enumerate(record["turns"], start=1):
            if observation.text != turn["saw"]:
                return Prompts(
                    [],
                    f"The prompts were not recorded, and the world now answers differently at step {number} than it did then.",
                )
            turns.append(sections(reader.read(observation)))
            answer = world.step(turn["action"])
            reader.record(turn["action"], answer)
            observation = answer.observation
    finally:
        world.close()
    return Prompts(turns, "written anew by playing the recorded actions; every observation is the recorded one")
