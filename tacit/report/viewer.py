"""Which trajectories a page embeds, and what it says of each step. What is left out is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from markupsafe import Markup

from tacit.core.method import Context
from tacit.core.progress import number_of
from tacit.core.types import PLAIN, Prompt
from tacit.evaluation.behaviour import describe_ending
from tacit.report.method_sections import FIELDS, taught
from tacit.report.page import clean, count, is_number, short
from tacit.report.run_files import Episodes, Known, Record, Scene
from tacit.rollout.replay import ReplayMismatch, render_turns, replay_actions

# Prompts as they were read, in their sections.
#
# Runs record what was seen and written, not the prompts: with histories these would be most of the disk. So the recorded
# actions
# are played again in the world, and the run's context writes the prompts anew. Every observation is held against the record: if
# one differs, nothing is claimed.

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
        turns = render_turns(context, scene.task, replay_actions(world, scene.task, actions, seen, wrote))
        written = [sections(turn.prompt) for turn in turns]
    except ReplayMismatch as difference:
        return [], f"{LOST} the world now answers differently at step {difference.turn} than it did then."
    finally:
        world.close()
    return written, "written anew by playing the recorded actions; every observation is the recorded one"


MOST_TRAJECTORIES = 24
"""on one page, where nothing else is asked for"""
MOST_CHARACTERS = 8000
"""of one text; a page is for reading"""

TOLD_APART = ("prompt", *FIELDS)

Chosen = tuple[str, Record, Scene | None]
"""where an episode is from, the episode, and where it was played, if that is here"""


def viewer(found: Sequence[Episodes], known: Known, most: int) -> dict[str, Any]:
    """The part of the page in which trajectories are read step by step."""
    total = sum(len(episodes.records) for episodes in found)
    if not total:
        return {"lead": "No trajectories were recorded (`--no-trajectories`), or none can be read."}
    chosen = choose(found, most)
    if not chosen:
        return {"lead": f"No trajectories were asked for; {count(total)} can be read."}
    sources = ("; " if len(found) > 2 else " and ").join(f"{count(len(e.records))} of {e.title}" for e in found)
    lead = Markup("{}, chosen from {}").format(number_of(len(chosen), "episode"), sources)
    if total > len(chosen):
        more = Markup(': the other {} are not on this page; <code class="whole">--trajectories N</code> embeds more')
        lead += more.format(count(total - len(chosen)))
    left = {family_of(r) for e in found for r in e.records} - {family_of(r) for _, r in chosen}
    lead += f". Families with none here: {', '.join(sorted(left))}." if left else "."
    return {"lead": lead, "data": embedded([(title, r, known.scenes.get(r["task"])) for title, r in chosen])}


def choose(found: Sequence[Episodes], most: int) -> list[tuple[str, Record]]:
    """(where it is from, episode): a success, a failure and the longest of every family in every file, then others in turn."""
    wanted: dict[int, tuple[str, Record]] = {}
    for title, record in _preferred(found):
        wanted.setdefault(id(record), (title, record))
    return list(wanted.values())[:most]


def embedded(chosen: Sequence[Chosen]) -> dict[str, Any]:
    """What the script reads. Texts are kept once and named by number: a task's statement stands in every prompt."""
    texts: dict[str, int] = {}

    def kept(text: Any) -> int:
        return texts.setdefault(_clipped(text), len(texts))

    episodes = []
    for title, record, scene in chosen:
        prompts, source = prompts_of(record, scene)
        turns: list[dict[str, Any]] = [
            {
                name: v if is_number(v) or isinstance(v, bool) else _clipped(_listed(v) if isinstance(v, dict) else v)
                for name, v in turn.items()
                if name not in TOLD_APART
            }
            | {name: kept(turn[name]) for name in ("saw", "wrote", "action")}
            | taught(turn, kept)
            for turn in record["turns"]
        ]
        for turn, prompt in zip(turns, prompts, strict=False):  # there may be none
            turn["prompt"] = [[name, kept(text)] for name, text in prompt]
        head = {name: str(record.get(name, "")) for name in ("task", "goal", "score", "stop", "detail", "condition")}
        head["stop"] = describe_ending(head["stop"])
        head |= {"from": clean(title), "family": family_of(record), "success": record["success"], "prompts": source}
        episodes.append({**head, "turns": turns, "final": kept(record["saw"])})
    return {"texts": list(texts), "episodes": episodes}


def family_of(record: Record) -> str:
    return clean(str(record.get("family", "")))


def _preferred(found: Sequence[Episodes]) -> Iterator[tuple[str, Record]]:
    """All of them, most wanted first; some more than once."""
    families: dict[tuple[int, str], list[tuple[str, Record]]] = {}
    for number, episodes in enumerate(found):
        for record in episodes.records:
            families.setdefault((number, family_of(record)), []).append((episodes.title, record))
    groups = [families[key] for key in sorted(families)]
    for success in (True, False):
        yield from (entry for own in groups for entry in [e for e in own if e[1]["success"] is success][:1])
    yield from (max(own, key=lambda entry: len(entry[1]["turns"])) for own in groups)
    yield from (entry for column in zip_longest(*groups) for entry in column if entry is not None)


def _listed(values: dict[str, Any]) -> str:
    """What a world measured on a step, and the like: progress 0.02, error 0"""
    return ", ".join(f"{name} {short(value) if is_number(value) else value}" for name, value in values.items())


def _clipped(text: Any) -> str:
    text = str(text)
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}\n… {len(text) - MOST_CHARACTERS:,} more characters are not on this page"
