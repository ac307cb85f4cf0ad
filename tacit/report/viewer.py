"""The trajectory viewer: which trajectories a page embeds, and the prompts of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from tacit.core.progress import pluralize
from tacit.core.types import PLAIN
from tacit.evaluation.behaviour import describe_ending
from tacit.report.method_sections import FIELDS, embed_skills
from tacit.report.page import format_count, format_short, is_number, replace_invisible
from tacit.report.run_files import Episodes, Record, TaskContext, WorldInfo
from tacit.rollout.replay import ReplayMismatch, render_turns, replay_actions
from tacit.runs.trajectories import order_by_interest, split_sections

# Runs record the prompts of some episodes. Those of others are rendered again by replaying the recorded actions in the world,
# if its name is registered. If any observation differs from the record, no prompts are shown.

Sections = list[list[str]]
"""[name, text] in prompt order"""
LOST = "The prompts were not recorded, and"
FindScene = Callable[[str], TaskContext | None]
"""task id -> its task and world, if available"""


def find_prompts(record: Record, find_scene: FindScene) -> tuple[list[Sections], str]:
    """(prompts of every turn or none, where they come from or why there are none)."""
    recorded = [turn.get("prompt") for turn in record["turns"]]
    if recorded and all(map(_is_prompt, recorded)):
        return recorded, "as recorded"
    scene = find_scene(record["task"])
    if scene is None:
        return [], f"{LOST} the world is not available to render them again."
    if scene.context is None:
        return [], "An expert acts on observations and reads no prompt."
    if record.get("condition", PLAIN.name) != PLAIN.name:
        return [], f"{LOST} the note they contained was not recorded."
    try:
        context = scene.context
        world = scene.world.make()
        actions, seen = ([turn[name] for turn in record["turns"]] for name in ("action", "saw"))
        try:
            wrote = [None if turn.get("valid", True) else turn.get("wrote") for turn in record["turns"]]
            turns = render_turns(context, scene.task, replay_actions(world, scene.task, actions, seen, wrote))
            written = [split_sections(turn.prompt) for turn in turns]
        except ReplayMismatch as difference:
            return [], f"{LOST} the world's observation at step {difference.turn} differs from the recorded one."
        finally:
            world.close()
        return written, "rendered again by replaying the recorded actions; all observations match the record"
    except Exception as error:  # worlds and contexts may be third-party code
        return [], f"{LOST} replaying the actions failed: {type(error).__name__}: {error}"


def _is_prompt(found: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(section, list) and len(section) == 2 and all(isinstance(text, str) for text in section) for section in found
    )


MAX_TRAJECTORIES = 24
"""default number of trajectories on a page"""
MAX_CHARACTERS = 8000
"""of one text"""
EMBEDDED_SEPARATELY = ("prompt", *FIELDS)

ChosenEpisode = tuple[str, Record, FindScene]
"""(source, record, how to find its task and world)"""


def build_viewer(found: Sequence[Episodes], known: WorldInfo, most: int) -> dict[str, Any]:
    """Values for the page's trajectory viewer."""
    total = sum(len(episodes.records) for episodes in found)
    if not total:
        return {"lead": "No trajectories were recorded (`--no-trajectories`), or none can be read."}
    chosen = choose_episodes(found, most)
    if not chosen:
        return {"lead": f"No trajectories were requested; {format_count(total)} are available."}
    sources = ("; " if len(found) > 2 else " and ").join(f"{format_count(len(e.records))} of {e.title}" for e in found)
    lead = Markup("{}, chosen from {}").format(pluralize(len(chosen), "episode"), sources)
    if total > len(chosen):
        more = Markup(': the other {} are not on this page; <code class="whole">--trajectories N</code> embeds more')
        lead += more.format(format_count(total - len(chosen)))
    left = {get_family(r) for e in found for r in e.records} - {get_family(r) for _, r in chosen}
    lead += f". Families with none here: {', '.join(sorted(left))}." if left else "."
    return {"lead": lead, "data": embed_episodes([(title, r, known.find_scene) for title, r in chosen])}


def choose_episodes(found: Sequence[Episodes], most: int) -> list[tuple[str, Record]]:
    """(source, record): a success, a failure and the longest of every family in every file, then others in turn."""
    titles = {id(record): episodes.title for episodes in found for record in episodes.records}
    return [(titles[id(r)], r) for r in order_by_interest([episodes.records for episodes in found])[:most]]


def embed_episodes(chosen: Sequence[ChosenEpisode]) -> dict[str, Any]:
    """The script's data. Texts are stored once and referred to by number: prompts repeat the task statement."""
    texts: dict[str, int] = {}

    def text_id(text: Any) -> int:
        return texts.setdefault(_clip(text), len(texts))

    episodes = []
    for title, record, find_scene in chosen:
        prompts, source = find_prompts(record, find_scene)
        turns: list[dict[str, Any]] = [
            {
                name: v if is_number(v) or isinstance(v, bool) else _clip(_list_values(v) if isinstance(v, dict) else v)
                for name, v in turn.items()
                if name not in EMBEDDED_SEPARATELY
            }
            | {name: text_id(turn[name]) for name in ("saw", "wrote", "action")}
            | embed_skills(turn, text_id)
            for turn in record["turns"]
        ]
        for turn, prompt in zip(turns, prompts, strict=False):  # `prompts` may be empty
            turn["prompt"] = [[name, text_id(text)] for name, text in prompt]
        head = {name: str(record.get(name, "")) for name in ("task", "goal", "score", "stop", "detail", "condition")}
        head["stop"] = describe_ending(head["stop"])
        head |= {
            "from": replace_invisible(title),
            "family": get_family(record),
            "success": record["success"],
            "prompts": source,
        }
        episodes.append({**head, "turns": turns, "final": text_id(record["saw"])})
    return {"texts": list(texts), "episodes": episodes}


def get_family(record: Record) -> str:
    return replace_invisible(str(record.get("family", "")))


def _list_values(values: dict[str, Any]) -> str:
    """progress 0.02, error 0"""
    return ", ".join(f"{name} {format_short(value) if is_number(value) else value}" for name, value in values.items())


def _clip(text: Any) -> str:
    text = str(text)
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}\n… {len(text) - MAX_CHARACTERS:,} more characters are not on this page"
